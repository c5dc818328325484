/* The host reads pinned memory without waiting for the copy to it. */
#include "race.h"

RACE("host", MACHINE);

enum { BYTES = 4096 };

static bool run(void)
{
    tcuda_stream *const stream = make_stream(0);
    unsigned char *const block = make_memory(BYTES, stream), *const host = make_pinned(BYTES);

    fill(block, 1, BYTES, stream);
    copy(host, block, BYTES, stream);
    WAIT(tcuda_stream_synchronize(stream));
    return host_is(host, 1, BYTES);
}
