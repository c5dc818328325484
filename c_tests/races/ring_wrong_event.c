/* A ring between two streams: the consumer waits for the event of the slot before its own. */
#include "race.h"

RACE("event", MACHINE);

enum { BYTES = 512, SLOTS = 3, TURNS = 9 };

static bool run(void)
{
    tcuda_stream *const producer = make_stream(0), *const consumer = make_stream(0);
    unsigned char *const ring = make_memory(SLOTS * BYTES, producer);
    unsigned char *const result = make_memory(TURNS * BYTES, consumer);
    tcuda_event *produced[SLOTS], *consumed[SLOTS];
    bool right = true;

    for (int i = 0; i < SLOTS; i++) {
        produced[i] = make_event();
        consumed[i] = make_event();
    }
    for (int turn = 0; turn < TURNS; turn++) {
        const int slot = turn % SLOTS;
        DO(tcuda_stream_wait_event(producer, consumed[slot]));
        fill(ring + slot * BYTES, turn + 1, BYTES, producer);
        DO(tcuda_event_record(produced[slot], producer));
        DO(tcuda_stream_wait_event(consumer,
            produced[INSTEAD((slot + SLOTS - 1) % SLOTS, slot)]));
        copy(result + turn * BYTES, ring + slot * BYTES, BYTES, consumer);
        DO(tcuda_event_record(consumed[slot], consumer));
    }
    for (int turn = 0; turn < TURNS; turn++)
        right = memory_is(result + turn * BYTES, turn + 1, BYTES) && right;
    return right;
}
