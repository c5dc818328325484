/* One event serves two producers; the wait for the first is missing, and recording the event again
 * moves it to the second. */
#include "race.h"

RACE("event", MACHINE);

enum { BYTES = 1000 };

static bool run(void)
{
    tcuda_stream *const left = make_stream(0), *const right = make_stream(0);
    tcuda_stream *const consumer = make_stream(0);
    unsigned char *const from = make_memory(2 * BYTES, left);
    unsigned char *const to = make_memory(2 * BYTES, consumer);
    tcuda_event *const produced = make_event();

    fill(from, 3, BYTES, left);
    DO(tcuda_event_record(produced, left));
    WAIT(tcuda_stream_wait_event(consumer, produced));
    fill(from + BYTES, 3, BYTES, right);
    DO(tcuda_event_record(produced, right));
    DO(tcuda_stream_wait_event(consumer, produced));
    copy(to, from, 2 * BYTES, consumer);
    return memory_is(to, 3, 2 * BYTES);
}
