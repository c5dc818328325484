/* The host overwrites a pinned source before the copy from it ran. */
#include "race.h"

RACE("pinned buffer", MACHINE);

enum { BYTES = 4096 };

static bool run(void)
{
    tcuda_stream *const stream = make_stream(0);
    unsigned char *const block = make_memory(BYTES, stream), *const host = make_pinned(BYTES);

    memset(host, 1, BYTES);
    copy(block, host, BYTES, stream);
    WAIT(tcuda_stream_synchronize(stream));
    memset(host, 2, BYTES);
    return memory_is(block, 1, BYTES);
}
