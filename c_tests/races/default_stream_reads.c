/* The default stream does not wait for streams of the pools either. */
#include "race.h"

RACE("default stream", MACHINE);

enum { BYTES = 4096 };

static bool run(void)
{
    tcuda_stream *const stream = make_stream(0);
    unsigned char *const from = make_memory(BYTES, stream), *const to = make_memory(BYTES, NULL);

    fill(from, 1, BYTES, stream);
    WAIT(tcuda_stream_wait_stream(NULL, stream));
    copy(to, from, BYTES, NULL);
    return memory_is(to, 1, BYTES);
}
