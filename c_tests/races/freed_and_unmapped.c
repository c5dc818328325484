/* A block is freed, and the cache emptied, while another stream uses it. */
#include "race.h"

RACE("freed memory", MACHINE);

enum { BYTES = 4 << 20, USED = 4096 };

static bool run(void)
{
    tcuda_stream *const owner = make_stream(0), *const reader = make_stream(0);
    unsigned char *const to = make_memory(USED, reader);
    void *block = NULL;

    DO(tcuda_malloc(BYTES, 0, owner, &block));
    fill(block, 1, USED, owner);
    DO(tcuda_stream_wait_stream(reader, owner));
    copy(to, block, USED, reader);
    WAIT(tcuda_record_stream(block, reader));
    DO(tcuda_free(block));
    DO(tcuda_memory_empty_cache());
    return memory_is(to, 1, USED);
}
