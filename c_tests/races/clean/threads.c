/* Three threads at once, each with streams of its own; some free what others allocated. */
#include "model.h"

#include <pthread.h>

RACE("workload", TWO_DEVICES);

enum { THREADS = 3 };

typedef struct part {
    uint64_t seed;
    bool right;
} part;

static void *work(void *argument)
{
    static const workload plan = { .devices = 2, .streams = 4, .operations = 100, .frees = 20,
        .largest = 2 << 20 };
    part *const own = argument;
    own->right = model_run(&plan, own->seed);
    return NULL;
}

static bool run(void)
{
    pthread_t threads[THREADS];
    part parts[THREADS];
    bool right = true;
    for (uint64_t i = 0; i < THREADS; i++) {
        parts[i] = (part){ race_seed * THREADS + i, false };
        CHECK_EQ(pthread_create(&threads[i], NULL, work, &parts[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
        right = parts[i].right && right;
    }
    return right;
}
