/* A pinned buffer carries bytes from one device to another; the second does not wait. */
#include "race.h"

RACE("pinned buffer", TWO_DEVICES);

enum { BYTES = 4096 };

static bool run(void)
{
    tcuda_stream *const sender = make_stream(0), *const receiver = make_stream(1);
    unsigned char *const from = make_memory(BYTES, sender);
    unsigned char *const to = make_memory(BYTES, receiver);
    unsigned char *const host = make_pinned(BYTES);
    tcuda_event *const sent = make_event();

    fill(from, 1, BYTES, sender);
    copy(host, from, BYTES, sender);
    DO(tcuda_event_record(sent, sender));
    WAIT(tcuda_event_wait(sent, receiver));
    copy(to, host, BYTES, receiver);
    return memory_is(to, 1, BYTES);
}
