/* The per-thread stream and the default stream wait for each other by themselves; a stream of the
 * pools waits for neither. */
#include "race.h"

RACE("default stream", MACHINE);

enum { BYTES = 1024 };

static bool run(void)
{
    tcuda_stream *const own = make_per_thread_stream(0), *const pooled = make_stream(0);
    unsigned char *const block = make_memory(BYTES, NULL);
    unsigned char *const result = make_memory(BYTES, pooled);
    tcuda_stream *legacy = NULL;

    DO(tcuda_stream_default(0, &legacy));
    fill(block, 1, BYTES, legacy);
    fill(block, 2, BYTES, own);
    fill(block, 3, BYTES / 2, legacy);
    WAIT(tcuda_stream_wait_stream(pooled, legacy));
    copy(result, block, BYTES, pooled);
    return memory_is(result, 3, BYTES / 2) && memory_is(result + BYTES / 2, 2, BYTES / 2);
}
