/* Work forks to four streams; the last one is not joined. */
#include "race.h"

RACE("stream", MACHINE);

enum { BYTES = 1024, BRANCHES = 4 };

static bool run(void)
{
    tcuda_stream *const trunk = make_stream(0);
    tcuda_stream *branches[BRANCHES];
    unsigned char *const block = make_memory(BRANCHES * BYTES, trunk);
    unsigned char *const result = make_memory(BRANCHES * BYTES, trunk);

    fill(block, 1, BRANCHES * BYTES, trunk);
    for (int i = 0; i < BRANCHES; i++) {
        branches[i] = make_stream(0);
        DO(tcuda_stream_wait_stream(branches[i], trunk));
        fill(block + i * BYTES, 2, BYTES, branches[i]);
    }
    for (int i = 0; i < BRANCHES - 1; i++)
        DO(tcuda_stream_wait_stream(trunk, branches[i]));
    WAIT(tcuda_stream_wait_stream(trunk, branches[BRANCHES - 1]));
    copy(result, block, BRANCHES * BYTES, trunk);
    return memory_is(result, 2, BRANCHES * BYTES);
}
