/* A device overwrites what is still being sent to another. */
#include "race.h"

RACE("cross-device", TWO_DEVICES);

enum { BYTES = 4096 };

static bool run(void)
{
    tcuda_stream *const producer = make_stream(0), *const consumer = make_stream(1);
    unsigned char *const from = make_memory(BYTES, producer);
    unsigned char *const to = make_memory(BYTES, consumer);

    fill(from, 1, BYTES, producer);
    DO(tcuda_stream_wait_stream(consumer, producer));
    copy(to, from, BYTES, consumer);
    WAIT(tcuda_stream_wait_stream(producer, consumer));
    fill(from, 2, BYTES, producer);
    return memory_is(to, 1, BYTES) && memory_is(from, 2, BYTES);
}
