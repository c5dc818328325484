/* Calls without a stream go to the current one; after it changes, they no longer follow what was
 * queued before. */
#include "race.h"

RACE("default stream", MACHINE);

enum { BYTES = 2048 };

static bool run(void)
{
    tcuda_stream *const first = make_stream(0), *const second = make_stream(0);
    unsigned char *const block = make_memory(BYTES, first);
    unsigned char *const result = make_memory(BYTES, second);

    DO(tcuda_stream_set_current(first));
    fill(block, 1, BYTES, NULL);
    DO(tcuda_stream_set_current(second));
    WAIT(tcuda_stream_wait_stream(NULL, first));
    copy(result, block, BYTES, NULL);
    return memory_is(result, 1, BYTES);
}
