/* A block is freed before a stream that is not of the library's pools is done with it. */
#include "race.h"

RACE("freed memory", MACHINE);

enum { BYTES = 700 };

static bool run(void)
{
    tcuda_stream *const owner = make_stream(0), *const foreign = make_per_thread_stream(0);
    unsigned char *const to = make_memory(BYTES, owner);
    void *block = NULL;

    DO(tcuda_malloc(BYTES, 0, owner, &block));
    fill(block, 1, BYTES, owner);
    DO(tcuda_stream_wait_stream(foreign, owner));
    copy(to, block, BYTES, foreign);
    WAIT(tcuda_record_stream(block, foreign));
    DO(tcuda_free(block));
    unsigned char *const next = make_memory(BYTES, owner);
    fill(next, 2, BYTES, owner);
    return memory_is(to, 1, BYTES) && memory_is(next, 2, BYTES);
}
