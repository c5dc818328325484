/* Two threads use one block on one stream. Each writes it and copies it away, which are two calls:
 * only a lock around both makes them one. */
#include "race.h"

#include <pthread.h>

RACE("host threads", MACHINE);

enum { BYTES = 4096 };

static tcuda_stream *stream;
static unsigned char *block, *results[2];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void use(int which)
{
    if (!IS_RACY)
        pthread_mutex_lock(&lock);
    fill(block, 1 + which, BYTES, stream);
    copy(results[which], block, BYTES, stream);
    if (!IS_RACY)
        pthread_mutex_unlock(&lock);
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
    stream = make_stream(0);
    block = make_memory(BYTES, stream);
    results[0] = make_memory(BYTES, stream);
    results[1] = make_memory(BYTES, stream);
    run_both(first, second);
    return memory_is(results[0], 1, BYTES) && memory_is(results[1], 2, BYTES);
}
