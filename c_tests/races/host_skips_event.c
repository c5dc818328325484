/* The host reads pinned memory without waiting for the event behind the copy. */
#include "race.h"

RACE("host", MACHINE);

enum { BYTES = 4096 };

static bool run(void)
{
    tcuda_stream *const stream = make_stream(0);
    unsigned char *const block = make_memory(BYTES, stream), *const host = make_pinned(BYTES);
    tcuda_event *const copied = make_event();

    fill(block, 1, BYTES, stream);
    copy(host, block, BYTES, stream);
    DO(tcuda_event_record(copied, stream));
    fill(block, 2, BYTES, stream);
    WAIT(tcuda_event_synchronize(copied));
    return host_is(host, 1, BYTES);
}
