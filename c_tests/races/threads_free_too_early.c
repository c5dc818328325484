/* One thread frees a block that the other's stream uses, without telling the allocator. */
#include "race.h"

#include <semaphore.h>

RACE("host threads", MACHINE);

enum { BYTES = 4096 };

static tcuda_stream *owner, *reader;
static unsigned char *to, *next;
static void *block;
static sem_t used;

static void use(void)
{
    DO(tcuda_stream_wait_stream(reader, owner));
    copy(to, block, BYTES, reader);
    WAIT(tcuda_record_stream(block, reader));
    CHECK_EQ(sem_post(&used), 0);
}

static void give_back(void)
{
    void *same = NULL;
    while (sem_wait(&used) != 0)
        continue;
    DO(tcuda_free(block));
    DO(tcuda_malloc(BYTES, 0, owner, &same));
    next = same;
    fill(next, 2, BYTES, owner);
}

static bool run(void)
{
    owner = make_stream(0);
    reader = make_stream(0);
    to = make_memory(BYTES, reader);
    DO(tcuda_malloc(BYTES, 0, owner, &block));
    fill(block, 1, BYTES, owner);
    CHECK_EQ(sem_init(&used, 0, 0), 0);
    run_both(use, give_back);
    CHECK_EQ(sem_destroy(&used), 0);
    const bool right = memory_is(to, 1, BYTES) && memory_is(next, 2, BYTES);
    DO(tcuda_free(next));
    return right;
}
