/* A block is freed while another stream uses it, which was not recorded. */
#include "race.h"

RACE("freed memory", MACHINE);

enum { BYTES = 4096 };

static bool run(void)
{
    tcuda_stream *const owner = make_stream(0), *const reader = make_stream(0);
    unsigned char *const to = make_memory(BYTES, reader);
    void *block = NULL;

    DO(tcuda_malloc(BYTES, 0, owner, &block));
    fill(block, 1, BYTES, owner);
    DO(tcuda_stream_wait_stream(reader, owner));
    copy(to, block, BYTES, reader);
    WAIT(tcuda_record_stream(block, reader));
    DO(tcuda_free(block));
    unsigned char *const next = make_memory(BYTES, owner); /* the same block, if it may be */
    fill(next, 2, BYTES, owner);
    return memory_is(to, 1, BYTES) && memory_is(next, 2, BYTES);
}
