/* The third stage waits for the second, which does not wait for the first: what the third needs of
 * the first was to come through it. */
#include "race.h"

RACE("stream", MACHINE);

enum { BYTES = 2000 };

static bool run(void)
{
    tcuda_stream *const first = make_stream(0), *const second = make_stream(0);
    tcuda_stream *const third = make_stream(0);
    unsigned char *const a = make_memory(BYTES, first), *const b = make_memory(BYTES, second);
    unsigned char *const result = make_memory(2 * BYTES, third);

    fill(a, 4, BYTES, first);
    WAIT(tcuda_stream_wait_stream(second, first));
    fill(b, 4, BYTES, second);
    DO(tcuda_stream_wait_stream(third, second));
    copy(result, b, BYTES, third);
    copy(result + BYTES, a, BYTES, third);
    return memory_is(result, 4, 2 * BYTES);
}
