/* A temporary of one stream is used on a side stream and freed before the side stream is joined. */
#include "race.h"

RACE("freed memory", MACHINE);

enum { BYTES = 2 << 20, USED = 2048 };

static bool run(void)
{
    tcuda_stream *const owner = make_stream(0), *const side = make_stream(0);
    void *temporary = NULL;

    DO(tcuda_malloc(BYTES, 0, owner, &temporary));
    DO(tcuda_stream_wait_stream(side, owner));
    fill(temporary, 1, USED, side);
    WAIT(tcuda_stream_wait_stream(owner, side));
    DO(tcuda_free(temporary));
    unsigned char *const next = make_memory(BYTES, owner);
    fill(next, 2, USED, owner);
    return memory_is(next, 2, USED);
}
