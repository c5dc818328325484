/* A stream waits for an event that is recorded only afterwards, which is no wait at all. */
#include "race.h"

RACE("event", MACHINE);

enum { BYTES = 512 };

static bool run(void)
{
    tcuda_stream *const producer = make_stream(0), *const consumer = make_stream(0);
    unsigned char *const from = make_memory(BYTES, producer);
    unsigned char *const to = make_memory(BYTES, consumer);
    tcuda_event *const produced = make_event();

    fill(from, 9, BYTES, producer);
    WAIT(tcuda_event_record(produced, producer));
    DO(tcuda_stream_wait_event(consumer, produced));
    DO(tcuda_event_record(produced, producer));
    copy(to, from, BYTES, consumer);
    return memory_is(to, 9, BYTES);
}
