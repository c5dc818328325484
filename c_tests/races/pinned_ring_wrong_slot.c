/* A ring of four pinned slots that two streams copy from in turn: whichever slot the host writes,
 * it waits for the event of the first one, which says nothing of the other stream. */
#include "race.h"

RACE("pinned buffer", MACHINE);

enum { BYTES = 256, SLOTS = 4, TURNS = 11 };

static bool run(void)
{
    tcuda_stream *const streams[2] = { make_stream(0), make_stream(0) };
    unsigned char *const block = make_memory(TURNS * BYTES, streams[0]);
    unsigned char *slots[SLOTS];
    tcuda_event *copied[SLOTS];
    bool right = true;

    for (int i = 0; i < SLOTS; i++) {
        slots[i] = make_pinned(BYTES);
        copied[i] = make_event();
    }
    for (int turn = 0; turn < TURNS; turn++) {
        const int slot = turn % SLOTS;
        DO(tcuda_event_synchronize(copied[INSTEAD(0, slot)]));
        memset(slots[slot], turn + 1, BYTES);
        copy(block + turn * BYTES, slots[slot], BYTES, streams[slot % 2]);
        DO(tcuda_event_record(copied[slot], streams[slot % 2]));
    }
    for (int turn = 0; turn < TURNS; turn++)
        right = memory_is(block + turn * BYTES, turn + 1, BYTES) && right;
    return right;
}
