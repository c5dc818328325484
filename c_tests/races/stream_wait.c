/* A stream does not wait for another one. */
#include "race.h"

RACE("stream", MACHINE);

enum { BYTES = 4096 };

static bool run(void)
{
    tcuda_stream *const producer = make_stream(0), *const consumer = make_stream(0);
    unsigned char *const block = make_memory(BYTES, producer);

    fill(block, 1, BYTES, producer);
    WAIT(tcuda_stream_wait_stream(consumer, producer));
    fill(block, 2, BYTES / 2, consumer);
    return memory_is(block, 2, BYTES / 2) && memory_is(block + BYTES / 2, 1, BYTES / 2);
}
