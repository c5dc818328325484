/* Host time of tcuda's small operations, through the C interface: one "MICRO name ns" line each.
 *
 * torch_replay.cpp prints the same names for PyTorch, and compare.py puts the two side by side.
 * Times are the best of several rounds, per operation; with threads, wall time per pair of one
 * thread. */

#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tcuda.h>
#include <time.h>

enum {
    ROUNDS = 5,
    LIVE = 1000,
    CHOICES = 1 << 16,
    MAX_THREADS = 16,
    PAIRS_PER_THREAD = 200000,
    THREAD_BLOCK_BYTES = 4096,
    BATCH = 64,
    RING = 1024,
    SNAPSHOT_BLOCKS = 16000
};

static void check(tcuda_status status, const char *call)
{
    if (status == TCUDA_STATUS_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", call, tcuda_status_name((int32_t)status), tcuda_last_error());
    exit(EXIT_FAILURE);
}

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* What the measured loops work on. */
typedef struct subject {
    tcuda_stream *stream, *others[2];
    tcuda_event *event;
    size_t bytes;
    void *live[LIVE];
    uint32_t pick[CHOICES];
    size_t sizes[CHOICES];
} subject;

/* Runs a loop of `count` operations and gives the first failure. */
typedef tcuda_status (*loop_fn)(subject *s, long count);

static void measure(const char *name, subject *s, long count, loop_fn loop)
{
    double best = 0;
    check(loop(s, count / 10 + 1), name);
    for (int round = 0; round < ROUNDS; round++) {
        const double start = now_ns();
        const tcuda_status status = loop(s, count);
        const double ns = (now_ns() - start) / (double)count;
        check(status, name);
        if (round == 0 || ns < best)
            best = ns;
    }
    printf("MICRO %-32s %10.2f ns\n", name, best);
    fflush(stdout);
}

/* ---- Memory ---- */

static tcuda_status malloc_free(subject *s, long count)
{
    for (long i = 0; i < count; i++) {
        void *ptr;
        tcuda_status status = tcuda_malloc(s->bytes, TCUDA_CURRENT_DEVICE, s->stream, &ptr);
        if (status != TCUDA_STATUS_OK || (status = tcuda_free(ptr)) != TCUDA_STATUS_OK)
            return status;
    }
    return TCUDA_STATUS_OK;
}

static tcuda_status churn(subject *s, long count)
{
    for (long i = 0; i < count; i++) {
        void **const place = &s->live[s->pick[i % CHOICES]];
        tcuda_status status = tcuda_free(*place);
        *place = NULL;
        if (status == TCUDA_STATUS_OK) {
            status = tcuda_malloc(s->sizes[i * 7 % CHOICES], TCUDA_CURRENT_DEVICE, s->stream,
                place);
        }
        if (status != TCUDA_STATUS_OK)
            return status;
    }
    return TCUDA_STATUS_OK;
}

/* The generator of torch_replay.cpp too: both sides see the same sizes in the same order. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* 512 B to 16 MiB: every power of two as often as any other. */
static size_t random_size(uint64_t *state)
{
    const size_t low = (size_t)1 << (9 + next_random(state) % 15);
    return low + next_random(state) % low;
}

static void measure_churn(subject *s)
{
    uint64_t state = UINT64_C(88172645463325252);
    for (size_t i = 0; i < CHOICES; i++) {
        s->sizes[i] = random_size(&state);
        s->pick[i] = (uint32_t)(next_random(&state) % LIVE);
    }
    for (size_t i = 0; i < LIVE; i++) {
        check(tcuda_malloc(s->sizes[i], TCUDA_CURRENT_DEVICE, s->stream, &s->live[i]),
            "tcuda_malloc");
    }
    measure("churn_1000_live", s, 100000, churn);
    for (size_t i = 0; i < LIVE; i++)
        check(tcuda_free(s->live[i]), "tcuda_free");
}

/* Blocks that two other streams use, 64 at a time: freed together, or each at once. The others have
 * nothing to do, and are waited for after each 64. */
static tcuda_status malloc_recorded(subject *s, long count, int together)
{
    for (long i = 0; i < count; i++) {
        void **const block = &s->live[i % BATCH];
        tcuda_status status = tcuda_malloc(s->bytes, TCUDA_CURRENT_DEVICE, s->stream, block);
        for (int k = 0; k < 2 && status == TCUDA_STATUS_OK; k++)
            status = tcuda_record_stream(*block, s->others[k]);
        const int is_last = i % BATCH == BATCH - 1 || i == count - 1;
        for (long j = together ? 0 : i % BATCH;
             (!together || is_last) && j <= i % BATCH && status == TCUDA_STATUS_OK; j++)
            status = tcuda_free(s->live[j]);
        for (int k = 0; is_last && k < 2 && status == TCUDA_STATUS_OK; k++)
            status = tcuda_stream_synchronize(s->others[k]);
        if (status != TCUDA_STATUS_OK)
            return status;
    }
    return TCUDA_STATUS_OK;
}

static tcuda_status recorded_together(subject *s, long count)
{
    return malloc_recorded(s, count, 1);
}

static tcuda_status recorded_one_by_one(subject *s, long count)
{
    return malloc_recorded(s, count, 0);
}

static void measure_recorded(subject *s)
{
    for (int k = 0; k < 2; k++) {
        check(tcuda_stream_create(TCUDA_CURRENT_DEVICE, 0, &s->others[k]), "tcuda_stream_create");
    }
    s->bytes = THREAD_BLOCK_BYTES;
    measure("recorded_together", s, 100000, recorded_together);
    measure("recorded_one_by_one", s, 100000, recorded_one_by_one);
    for (int k = 0; k < 2; k++)
        check(tcuda_stream_destroy(s->others[k]), "tcuda_stream_destroy");
}

static void measure_memory(subject *s)
{
    static const size_t sizes[] = {512, 4096, 1 << 20, 2 << 20, 20 << 20, 64 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char name[32];
        snprintf(name, sizeof name, "pair_%zu", sizes[i]);
        s->bytes = sizes[i];
        measure(name, s, 200000, malloc_free);
    }
    measure_churn(s);
    measure_recorded(s);
}

/* ---- Statistics ---- */

static tcuda_status memory_stats(subject *s, long count)
{
    (void)s;
    tcuda_memory_statistics stats = TCUDA_INIT(tcuda_memory_statistics);
    tcuda_status status = TCUDA_STATUS_OK;
    for (long i = 0; i < count && status == TCUDA_STATUS_OK; i++)
        status = tcuda_memory_stats(TCUDA_CURRENT_DEVICE, &stats);
    return status;
}

static tcuda_status snapshot(subject *s, long count)
{
    (void)s;
    for (long i = 0; i < count; i++) {
        tcuda_memory_snapshot *taken;
        tcuda_status status = tcuda_memory_snapshot_create(0, &taken);
        if (status == TCUDA_STATUS_OK)
            status = tcuda_memory_snapshot_destroy(taken);
        if (status != TCUDA_STATUS_OK)
            return status;
    }
    return TCUDA_STATUS_OK;
}

static void measure_statistics(subject *s)
{
    static void *blocks[SNAPSHOT_BLOCKS];
    measure("memory_stats", s, 100000, memory_stats);
    for (size_t i = 0; i < SNAPSHOT_BLOCKS; i++) {
        check(tcuda_malloc(512 * (1 + i % 64), TCUDA_CURRENT_DEVICE, s->stream, &blocks[i]),
            "tcuda_malloc");
    }
    measure("snapshot_16000", s, 50, snapshot);
    for (size_t i = 0; i < SNAPSHOT_BLOCKS; i++)
        check(tcuda_free(blocks[i]), "tcuda_free");
}

/* ---- Threads ---- */

typedef struct worker {
    pthread_t thread;
    pthread_barrier_t *start;
    subject work;
    tcuda_status status;
    double began, ended;
} worker;

static void *run_worker(void *argument)
{
    worker *w = argument;
    w->status = malloc_free(&w->work, 1000);
    pthread_barrier_wait(w->start);
    w->began = now_ns();
    if (w->status == TCUDA_STATUS_OK)
        w->status = malloc_free(&w->work, PAIRS_PER_THREAD);
    w->ended = now_ns();
    return NULL;
}

/* From the first thread's start to the last one's end. */
static double run_workers(worker *workers, int count)
{
    pthread_barrier_t start;
    if (pthread_barrier_init(&start, NULL, (unsigned)count) != 0)
        exit(EXIT_FAILURE);
    for (int i = 0; i < count; i++) {
        workers[i].start = &start;
        if (pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) != 0) {
            fprintf(stderr, "a thread cannot be started\n");
            exit(EXIT_FAILURE);
        }
    }
    double began = 0, ended = 0;
    for (int i = 0; i < count; i++) {
        pthread_join(workers[i].thread, NULL);
        if (workers[i].status != TCUDA_STATUS_OK) {
            /* The message stayed with the thread that failed. */
            fprintf(stderr, "a thread failed: %s\n",
                tcuda_status_name((int32_t)workers[i].status));
            exit(EXIT_FAILURE);
        }
        began = i == 0 || workers[i].began < began ? workers[i].began : began;
        ended = workers[i].ended > ended ? workers[i].ended : ended;
    }
    pthread_barrier_destroy(&start);
    return ended - began;
}

static void measure_threads(tcuda_stream *shared, int count, int own)
{
    worker *workers = calloc((size_t)count, sizeof *workers);
    if (workers == NULL)
        exit(EXIT_FAILURE);
    for (int i = 0; i < count; i++) {
        workers[i].work.bytes = THREAD_BLOCK_BYTES;
        workers[i].work.stream = shared;
        if (own) {
            check(tcuda_stream_create(TCUDA_CURRENT_DEVICE, 0, &workers[i].work.stream),
                "tcuda_stream_create");
        }
    }
    double best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        const double ns = run_workers(workers, count) / PAIRS_PER_THREAD;
        if (round == 0 || ns < best)
            best = ns;
    }
    for (int i = 0; own && i < count; i++)
        check(tcuda_stream_destroy(workers[i].work.stream), "tcuda_stream_destroy");
    free(workers);
    char name[32];
    snprintf(name, sizeof name, "threads_%d_%s", count, own ? "own_stream" : "one_stream");
    printf("MICRO %-32s %10.2f ns per pair, %.2f M pairs/s\n", name, best, count / best * 1e3);
    fflush(stdout);
}

/* One thread allocates, the other one frees: the blocks between them. */
static struct ring {
    _Alignas(64) atomic_long filled;
    _Alignas(64) atomic_long emptied;
    _Alignas(64) void *blocks[RING];
    tcuda_status status;
} ring;

static void *free_from_ring(void *unused)
{
    for (long i = 0; i < PAIRS_PER_THREAD && ring.status == TCUDA_STATUS_OK; i++) {
        while (atomic_load_explicit(&ring.filled, memory_order_acquire) == i)
            sched_yield();
        ring.status = tcuda_free(ring.blocks[i % RING]);
        atomic_store_explicit(&ring.emptied, i + 1, memory_order_release);
    }
    return unused;
}

static void measure_handoff(tcuda_stream *stream)
{
    double best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t other;
        atomic_store(&ring.filled, 0);
        atomic_store(&ring.emptied, 0);
        if (pthread_create(&other, NULL, free_from_ring, NULL) != 0) {
            fprintf(stderr, "a thread cannot be started\n");
            exit(EXIT_FAILURE);
        }
        const double start = now_ns();
        for (long i = 0; i < PAIRS_PER_THREAD; i++) {
            while (i - atomic_load_explicit(&ring.emptied, memory_order_acquire) == RING)
                sched_yield();
            check(tcuda_malloc(THREAD_BLOCK_BYTES, TCUDA_CURRENT_DEVICE, stream,
                      &ring.blocks[i % RING]),
                "tcuda_malloc");
            atomic_store_explicit(&ring.filled, i + 1, memory_order_release);
        }
        pthread_join(other, NULL);
        const double ns = (now_ns() - start) / PAIRS_PER_THREAD;
        check(ring.status, "tcuda_free");
        if (round == 0 || ns < best)
            best = ns;
    }
    printf("MICRO %-32s %10.2f ns\n", "handoff", best);
    fflush(stdout);
}

/* ---- Streams and events ---- */

static tcuda_status event_record(subject *s, long count)
{
    tcuda_status status = TCUDA_STATUS_OK;
    for (long i = 0; i < count && status == TCUDA_STATUS_OK; i++)
        status = tcuda_event_record(s->event, s->stream);
    return status;
}

static tcuda_status event_query(subject *s, long count)
{
    tcuda_status status = TCUDA_STATUS_OK;
    bool done;
    for (long i = 0; i < count && status == TCUDA_STATUS_OK; i++)
        status = tcuda_event_query(s->event, &done);
    return status;
}

static tcuda_status event_life(subject *s, long count)
{
    for (long i = 0; i < count; i++) {
        tcuda_event *event;
        tcuda_status status = tcuda_event_create(0, &event);
        if (status != TCUDA_STATUS_OK)
            return status;
        status = tcuda_event_record(event, s->stream);
        const tcuda_status destroyed = tcuda_event_destroy(event);
        if (status != TCUDA_STATUS_OK || destroyed != TCUDA_STATUS_OK)
            return status != TCUDA_STATUS_OK ? status : destroyed;
    }
    return TCUDA_STATUS_OK;
}

static tcuda_status stream_query(subject *s, long count)
{
    tcuda_status status = TCUDA_STATUS_OK;
    bool done;
    for (long i = 0; i < count && status == TCUDA_STATUS_OK; i++)
        status = tcuda_stream_query(s->stream, &done);
    return status;
}

static tcuda_status current_stream_get(subject *s, long count)
{
    tcuda_status status = TCUDA_STATUS_OK;
    tcuda_stream *current;
    (void)s;
    for (long i = 0; i < count && status == TCUDA_STATUS_OK; i++)
        status = tcuda_stream_current(TCUDA_CURRENT_DEVICE, &current);
    return status;
}

static tcuda_status stream_exchange_restore(subject *s, long count)
{
    for (long i = 0; i < count; i++) {
        tcuda_stream *previous;
        int32_t device;
        tcuda_status status = tcuda_stream_exchange(s->stream, &previous, &device);
        if (status == TCUDA_STATUS_OK)
            status = tcuda_stream_set_current(previous);
        if (status == TCUDA_STATUS_OK && device != 0)
            status = tcuda_device_set(device);
        if (status != TCUDA_STATUS_OK)
            return status;
    }
    return TCUDA_STATUS_OK;
}

static void measure_streams(subject *s)
{
    check(tcuda_event_create(0, &s->event), "tcuda_event_create");
    measure("event_record", s, 100000, event_record);
    check(tcuda_stream_synchronize(s->stream), "tcuda_stream_synchronize");
    measure("event_query", s, 100000, event_query);
    measure("event_create_record_destroy", s, 20000, event_life);
    check(tcuda_stream_synchronize(s->stream), "tcuda_stream_synchronize");
    measure("stream_query", s, 100000, stream_query);
    measure("current_stream_get", s, 1000000, current_stream_get);
    measure("stream_exchange_restore", s, 200000, stream_exchange_restore);
    check(tcuda_event_destroy(s->event), "tcuda_event_destroy");
}

int main(void)
{
    subject *s = calloc(1, sizeof *s);
    if (s == NULL)
        return EXIT_FAILURE;
    check(tcuda_init(), "tcuda_init");
    check(tcuda_stream_create(TCUDA_CURRENT_DEVICE, 0, &s->stream), "tcuda_stream_create");
    printf("BACKEND %s\n", tcuda_backend_name());
    measure_memory(s);
    measure_statistics(s);
    for (int count = 1; count <= MAX_THREADS; count *= 2) {
        measure_threads(s->stream, count, 0);
        measure_threads(s->stream, count, 1);
    }
    measure_handoff(s->stream);
    measure_streams(s);
    check(tcuda_stream_destroy(s->stream), "tcuda_stream_destroy");
    free(s);
    size_t live = 0;
    check(tcuda_shutdown(&live), "tcuda_shutdown");
    return live == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
