/* A branch begins without waiting for the trunk that it forks from, though it is joined. */
#include "race.h"

RACE("stream", MACHINE);

enum { BYTES = 3000 };

static bool run(void)
{
    tcuda_stream *const trunk = make_stream(0), *const branch = make_stream(0);
    unsigned char *const block = make_memory(BYTES, trunk);
    unsigned char *const result = make_memory(BYTES, trunk);

    fill(block, 1, BYTES, trunk);
    WAIT(tcuda_stream_wait_stream(branch, trunk));
    copy(result, block, BYTES, branch);
    DO(tcuda_stream_wait_stream(trunk, branch));
    fill(block, 2, BYTES, trunk);
    return memory_is(result, 1, BYTES);
}
