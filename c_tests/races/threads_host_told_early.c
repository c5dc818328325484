/* One thread tells another that pinned memory is filled when the copy to it is queued, not over. */
#include "race.h"

#include <semaphore.h>

RACE("host threads", MACHINE);

enum { BYTES = 4096 };

static tcuda_stream *stream;
static unsigned char *block, *host;
static sem_t copied;
static bool right;

static void bring(void)
{
    fill(block, 1, BYTES, stream);
    copy(host, block, BYTES, stream);
    WAIT(tcuda_stream_synchronize(stream));
    CHECK_EQ(sem_post(&copied), 0);
}

static void look(void)
{
    while (sem_wait(&copied) != 0)
        continue;
    right = host_is(host, 1, BYTES);
}

static bool run(void)
{
    stream = make_stream(0);
    block = make_memory(BYTES, stream);
    host = make_pinned(BYTES);
    CHECK_EQ(sem_init(&copied, 0, 0), 0);
    run_both(bring, look);
    CHECK_EQ(sem_destroy(&copied), 0);
    return right;
}
