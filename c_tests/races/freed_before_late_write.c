/* A writer on another stream is queued, the block is freed without a wait, and the next
 * owner of the memory finds its bytes changed. */
#include "race.h"

RACE("freed memory", MACHINE);

enum { BYTES = 4096, TURNS = 3 };

static bool run(void)
{
    tcuda_stream *const owner = make_stream(0), *const writer = make_stream(0);
    tcuda_event *const written = make_event();
    void *block = NULL;

    for (int turn = 0; turn < TURNS; turn++) {
        DO(tcuda_malloc(BYTES, 0, owner, &block));
        DO(tcuda_stream_wait_stream(writer, owner));
        fill(block, 100 + turn, BYTES, writer);
        DO(tcuda_event_record(written, writer));
        WAIT(tcuda_event_wait(written, owner));
        DO(tcuda_free(block));
    }
    unsigned char *const next = make_memory(BYTES, owner);
    fill(next, 2, BYTES, owner);
    return memory_is(next, 2, BYTES);
}
