/* For turns.py: six threads with a stream each and one that all share. They allocate and free, wait
 * for each other's events, add callbacks and query, and draw at random what they do; a mutex, a
 * barrier and a semaphore are the host's own. Prints what each thread has seen.
 *
 * usage: turns [ROUNDS] */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>

enum { THREADS = 6, BLOCKS = 4, BYTES = 2048, MOST = 1 << 20 };

typedef struct worker {
    pthread_t thread;
    int index;
    uint64_t random, seen;
    tcuda_stream *stream;
    tcuda_event *event; /* recorded by its thread, waited for by others */
    void *blocks[BLOCKS];
    unsigned char *pinned;
    sem_t called; /* by a callback */
} worker;

static int rounds = 40;
static worker workers[THREADS];
static tcuda_stream *shared;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t guarded; /* by the lock */
static pthread_barrier_t barrier;

static int below(worker *w, int limit)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (int)(w->random % (uint64_t)limit);
}

static void note(worker *w, uint64_t value)
{
    w->seen = (w->seen ^ value) * 0x100000001b3u; /* FNV */
}

static void called(void *user_data)
{
    CHECK_EQ(sem_post(&((worker *)user_data)->called), 0);
}

static void await(sem_t *semaphore)
{
    while (sem_wait(semaphore) != 0)
        continue;
}

static void step(worker *w)
{
    const int which = below(w, BLOCKS);
    tcuda_stream *const stream = below(w, 3) == 0 ? shared : w->stream;
    bool done = false;
    switch (below(w, 10)) {
    case 0:
    case 1:
        CHECK_OK(tcuda_free(w->blocks[which]));
        CHECK_OK(tcuda_malloc((size_t)(BYTES + below(w, MOST)), 0, stream, &w->blocks[which]));
        /* Which block it is depends on what the others have freed before. */
        note(w, (uintptr_t)w->blocks[which]);
        break;
    case 2:
        fill_bytes(w->blocks[which], w->index, BYTES, w->stream);
        break;
    case 3:
        CHECK_OK(tcuda_copy(w->pinned, w->blocks[which], BYTES, stream));
        break;
    case 4:
        CHECK_OK(tcuda_event_record(w->event, stream));
        break;
    case 5:
        CHECK_OK(tcuda_stream_wait_event(stream, workers[below(w, THREADS)].event));
        break;
    case 6:
        CHECK_OK(tcuda_event_query(workers[below(w, THREADS)].event, &done));
        note(w, done);
        break;
    case 7:
        CHECK_OK(tcuda_stream_add_callback(w->stream, called, w, NULL));
        CHECK_OK(tcuda_stream_synchronize(w->stream));
        await(&w->called);
        break;
    case 8:
        /* Between two calls threads that wake each other race for the mutex. Where a call comes
         * before it is asked for, and one after it was given back, they do not. */
        CHECK_OK(tcuda_stream_query(w->stream, &done));
        pthread_mutex_lock(&lock);
        note(w, guarded++);
        CHECK_OK(tcuda_copy(w->blocks[which], w->pinned, BYTES, shared));
        pthread_mutex_unlock(&lock);
        CHECK_OK(tcuda_stream_query(w->stream, &done));
        break;
    default:
        CHECK_OK(tcuda_stream_query(shared, &done));
        note(w, done);
    }
}

static void *work(void *user_data)
{
    worker *const w = user_data;
    for (int round = 0; round < rounds; round++) {
        step(w);
        if (round % 16 == 15)
            pthread_barrier_wait(&barrier);
    }
    CHECK_OK(tcuda_stream_synchronize(w->stream));
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        rounds = atoi(argv[1]);
    shared = create_stream(0);
    CHECK_EQ(pthread_barrier_init(&barrier, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++) {
        worker *const w = &workers[i];
        void *pinned = NULL;
        w->index = i;
        w->random = 0x9e3779b97f4a7c15u * (uint64_t)(i + 1);
        w->stream = create_stream(0);
        w->event = create_event(0);
        CHECK_OK(tcuda_host_malloc(BYTES, &pinned));
        w->pinned = pinned;
        CHECK_EQ(sem_init(&w->called, 0, 0), 0);
        for (int j = 0; j < BLOCKS; j++)
            w->blocks[j] = allocate(BYTES, 0, w->stream);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_join(workers[i].thread, NULL), 0);

    CHECK_OK(tcuda_stream_synchronize(shared));
    for (int i = 0; i < THREADS; i++) {
        worker *const w = &workers[i];
        printf("thread %d has seen %016" PRIx64 "\n", i, w->seen);
        for (int j = 0; j < BLOCKS; j++)
            CHECK_OK(tcuda_free(w->blocks[j]));
        CHECK_OK(tcuda_host_free(w->pinned));
        CHECK_OK(tcuda_event_destroy(w->event));
        CHECK_OK(tcuda_stream_destroy(w->stream));
        CHECK_EQ(sem_destroy(&w->called), 0);
    }
    CHECK_OK(tcuda_stream_destroy(shared));
    CHECK_EQ(pthread_barrier_destroy(&barrier), 0);
    return finish();
}
