/* A stream fills another device's memory, which needs the same waits as that device's own work. */
#include "race.h"

RACE("cross-device", TWO_DEVICES ",peers=none");

enum { BYTES = 3000 };

static bool run(void)
{
    tcuda_stream *const owner = make_stream(0), *const other = make_stream(1);
    unsigned char *const block = make_memory(BYTES, owner), *const to = make_memory(BYTES, owner);

    fill(block, 3, BYTES, other);
    WAIT(tcuda_stream_wait_stream(owner, other));
    copy(to, block, BYTES, owner);
    return memory_is(to, 3, BYTES);
}
