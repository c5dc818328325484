/* A consumer on one stream does not wait for the event of the producer on another. */
#include "race.h"

RACE("event", MACHINE);

enum { BYTES = 4096 };

static bool run(void)
{
    tcuda_stream *const producer = make_stream(0), *const consumer = make_stream(0);
    unsigned char *const from = make_memory(BYTES, producer);
    unsigned char *const to = make_memory(BYTES, consumer);
    tcuda_event *const produced = make_event();

    fill(from, 1, BYTES, producer);
    DO(tcuda_event_record(produced, producer));
    WAIT(tcuda_stream_wait_event(consumer, produced));
    copy(to, from, BYTES, consumer);
    return memory_is(to, 1, BYTES);
}
