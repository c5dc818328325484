/* Two pinned buffers take turns; the host does not wait for the copy of two turns ago. */
#include "race.h"

RACE("pinned buffer", MACHINE);

enum { BYTES = 1024, TURNS = 5 };

static bool run(void)
{
    tcuda_stream *const stream = make_stream(0);
    unsigned char *const block = make_memory(TURNS * BYTES, stream);
    unsigned char *const host[2] = { make_pinned(BYTES), make_pinned(BYTES) };
    tcuda_event *const copied[2] = { make_event(), make_event() };
    bool right = true;

    for (int turn = 0; turn < TURNS; turn++) {
        WAIT(tcuda_event_synchronize(copied[turn % 2]));
        memset(host[turn % 2], turn + 1, BYTES);
        copy(block + turn * BYTES, host[turn % 2], BYTES, stream);
        DO(tcuda_event_record(copied[turn % 2], stream));
    }
    for (int turn = 0; turn < TURNS; turn++)
        right = memory_is(block + turn * BYTES, turn + 1, BYTES) && right;
    return right;
}
