/* One device fetches what another has not produced yet. */
#include "race.h"

RACE("cross-device", TWO_DEVICES);

enum { BYTES = 4096 };

static bool run(void)
{
    tcuda_stream *const producer = make_stream(0), *const consumer = make_stream(1);
    unsigned char *const from = make_memory(BYTES, producer);
    unsigned char *const to = make_memory(BYTES, consumer);
    tcuda_event *const produced = make_event();

    fill(from, 1, BYTES, producer);
    DO(tcuda_event_record(produced, producer));
    WAIT(tcuda_stream_wait_event(consumer, produced));
    copy(to, from, BYTES, consumer);
    return memory_is(to, 1, BYTES);
}
