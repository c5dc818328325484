/* Rounds of producing and consuming share one event; in the last round the consumer goes on with
 * the wait of the round before. */
#include "race.h"

RACE("event", MACHINE);

enum { BYTES = 2048, ROUNDS = 4 };

static bool run(void)
{
    tcuda_stream *const producer = make_stream(0), *const consumer = make_stream(0);
    unsigned char *const from = make_memory(ROUNDS * BYTES, producer);
    unsigned char *const to = make_memory(ROUNDS * BYTES, consumer);
    tcuda_event *const produced = make_event();
    bool right = true;

    for (int round = 0; round < ROUNDS; round++) {
        fill(from + round * BYTES, round + 1, BYTES, producer);
        DO(tcuda_stream_record_event(producer, produced));
        if (round < INSTEAD(ROUNDS - 1, ROUNDS))
            DO(tcuda_stream_wait_event(consumer, produced));
        copy(to + round * BYTES, from + round * BYTES, BYTES, consumer);
    }
    for (int round = 0; round < ROUNDS; round++)
        right = memory_is(to + round * BYTES, round + 1, BYTES) && right;
    return right;
}
