/* A ring of four pinned slots: before a slot is written again the host waits for the event of the
 * slot after the next, which is older. */
#include "race.h"

RACE("pinned buffer", MACHINE);

enum { BYTES = 256, SLOTS = 4, TURNS = 11 };

static bool run(void)
{
    tcuda_stream *const stream = make_stream(0);
    unsigned char *const block = make_memory(TURNS * BYTES, stream);
    unsigned char *slots[SLOTS];
    tcuda_event *copied[SLOTS];
    bool right = true;

    for (int i = 0; i < SLOTS; i++) {
        slots[i] = make_pinned(BYTES);
        copied[i] = make_event();
    }
    for (int turn = 0; turn < TURNS; turn++) {
        const int slot = (turn * 3) % SLOTS;
        DO(tcuda_event_synchronize(copied[INSTEAD((slot + 3) % SLOTS, slot)]));
        memset(slots[slot], turn + 1, BYTES);
        copy(block + turn * BYTES, slots[slot], BYTES, stream);
        DO(tcuda_event_record(copied[slot], stream));
    }
    for (int turn = 0; turn < TURNS; turn++)
        right = memory_is(block + turn * BYTES, turn + 1, BYTES) && right;
    return right;
}
