/* A producer overwrites what a consumer on another stream has yet to read. */
#include "race.h"

RACE("event", MACHINE);

enum { BYTES = 4096 };

static bool run(void)
{
    tcuda_stream *const producer = make_stream(0), *const consumer = make_stream(0);
    unsigned char *const from = make_memory(BYTES, producer);
    unsigned char *const to = make_memory(BYTES, consumer);
    tcuda_event *const produced = make_event(), *const consumed = make_event();

    fill(from, 1, BYTES, producer);
    DO(tcuda_event_record(produced, producer));
    DO(tcuda_event_wait(produced, consumer));
    copy(to, from, BYTES, consumer);
    DO(tcuda_event_record(consumed, consumer));
    WAIT(tcuda_event_wait(consumed, producer));
    fill(from, 2, BYTES, producer);
    return memory_is(to, 1, BYTES) && memory_is(from, 2, BYTES);
}
