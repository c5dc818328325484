/* An event is recorded before the last operation that it should cover, and not again after it. */
#include "race.h"

RACE("event", MACHINE);

enum { BYTES = 6000, HALF = BYTES / 2 };

static bool run(void)
{
    tcuda_stream *const producer = make_stream(0), *const consumer = make_stream(0);
    unsigned char *const from = make_memory(BYTES, producer);
    unsigned char *const to = make_memory(BYTES, consumer);
    tcuda_event *const produced = make_event();

    fill(from, 7, HALF, producer);
    DO(tcuda_event_record(produced, producer));
    fill(from + HALF, 7, HALF, producer);
    WAIT(tcuda_event_record(produced, producer));
    DO(tcuda_stream_wait_event(consumer, produced));
    copy(to, from, BYTES, consumer);
    return memory_is(to, 7, BYTES);
}
