/* One thread waits for the event of another, which may not have recorded it: that is no wait. */
#include "race.h"

#include <semaphore.h>

RACE("host threads", MACHINE);

enum { BYTES = 4096 };

static tcuda_stream *producer, *consumer;
static tcuda_event *filled;
static unsigned char *from, *to;
static sem_t recorded;

static void produce(void)
{
    fill(from, 1, BYTES, producer);
    DO(tcuda_event_record(filled, producer));
    CHECK_EQ(sem_post(&recorded), 0);
}

static void consume(void)
{
    while (!IS_RACY && sem_wait(&recorded) != 0)
        continue;
    DO(tcuda_stream_wait_event(consumer, filled));
    copy(to, from, BYTES, consumer);
}

static bool run(void)
{
    producer = make_stream(0);
    consumer = make_stream(0);
    from = make_memory(BYTES, producer);
    to = make_memory(BYTES, consumer);
    filled = make_event();
    fill(from, 9, BYTES, producer);
    DO(tcuda_stream_synchronize(producer));
    CHECK_EQ(sem_init(&recorded, 0, 0), 0);
    run_both(produce, consume);
    CHECK_EQ(sem_destroy(&recorded), 0);
    return memory_is(to, 1, BYTES);
}
