/* Two threads wait for each of two producers by one event, so that one may record it anew before
 * the other has waited. */
#include "race.h"

RACE("host threads", MACHINE);

enum { BYTES = 4096 };

static tcuda_stream *producers[2], *consumers[2];
static tcuda_event *events[2];
static unsigned char *from[2], *to[2];

static void use(int which)
{
    tcuda_event *const event = events[INSTEAD(0, which)];
    fill(from[which], 1, BYTES, producers[which]);
    DO(tcuda_event_record(event, producers[which]));
    DO(tcuda_event_wait(event, consumers[which]));
    copy(to[which], from[which], BYTES, consumers[which]);
}

static void first(void)
{
    use(0);
}

static void second(void)
{
    use(1);
}

static bool run(void)
{
    for (int i = 0; i < 2; i++) {
        producers[i] = make_stream(0);
        consumers[i] = make_stream(0);
        events[i] = make_event();
        from[i] = make_memory(BYTES, producers[i]);
        to[i] = make_memory(BYTES, consumers[i]);
        fill(from[i], 9, BYTES, producers[i]);
        DO(tcuda_stream_synchronize(producers[i]));
    }
    run_both(first, second);
    return memory_is(to[0], 1, BYTES) && memory_is(to[1], 1, BYTES);
}
