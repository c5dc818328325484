/* Host time of pinned memory, through the C interface: one "MICRO name ns" line each.
 *
 * Beside the cache the driver's own cuMemHostAlloc and cuMemFreeHost. Times are the best of several
 * rounds, per pair; with threads, wall time per pair of one thread. */

#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tcuda.h>
#include <time.h>

enum { ROUNDS = 5, LIVE = 256, MAX_THREADS = 16, PAIRS = 200000 };

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

static int (*driver_allocate)(void **ptr, size_t bytes, unsigned flags);
static int (*driver_free)(void *ptr);

static void find(const char *name, void *function)
{
    void *address = NULL;
    check(tcuda_backend_function(name, &address), name);
    memcpy(function, &address, sizeof address);
}

/* Runs `count` pairs and gives the first failure. */
typedef tcuda_status (*loop_fn)(size_t bytes, long count);

static tcuda_status pairs(size_t bytes, long count)
{
    for (long i = 0; i < count; i++) {
        void *ptr;
        tcuda_status status = tcuda_host_malloc(bytes, &ptr);
        if (status != TCUDA_STATUS_OK || (status = tcuda_host_free(ptr)) != TCUDA_STATUS_OK)
            return status;
    }
    return TCUDA_STATUS_OK;
}

/* The same of a device, for scale. */
static tcuda_status device_pairs(size_t bytes, long count)
{
    for (long i = 0; i < count; i++) {
        void *ptr;
        tcuda_status status = tcuda_malloc(bytes, TCUDA_CURRENT_DEVICE, NULL, &ptr);
        if (status != TCUDA_STATUS_OK || (status = tcuda_free(ptr)) != TCUDA_STATUS_OK)
            return status;
    }
    return TCUDA_STATUS_OK;
}

static tcuda_status driver_pairs(size_t bytes, long count)
{
    for (long i = 0; i < count; i++) {
        void *ptr;
        if (driver_allocate(&ptr, bytes, 0) != 0 || driver_free(ptr) != 0)
            return TCUDA_STATUS_CUDA_ERROR;
    }
    return TCUDA_STATUS_OK;
}

/* Blocks of many sizes live at once; one is freed and one allocated. */
static tcuda_status churn(size_t bytes, long count)
{
    static void *live[LIVE];
    uint64_t state = UINT64_C(88172645463325252);
    for (long i = 0; i < count; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        void **const place = &live[state % LIVE];
        tcuda_status status = tcuda_host_free(*place);
        *place = NULL;
        if (status == TCUDA_STATUS_OK)
            status = tcuda_host_malloc(1 + (size_t)(state >> 20) % bytes, place);
        if (status != TCUDA_STATUS_OK)
            return status;
    }
    for (size_t i = 0; i < LIVE; i++) {
        check(tcuda_host_free(live[i]), "tcuda_host_free");
        live[i] = NULL;
    }
    return TCUDA_STATUS_OK;
}

static void measure(const char *name, size_t bytes, long count, loop_fn loop)
{
    double best = 0;
    check(loop(bytes, count / 10 + 1), name);
    for (int round = 0; round < ROUNDS; round++) {
        const double start = now_ns();
        check(loop(bytes, count), name);
        const double ns = (now_ns() - start) / (double)count;
        if (round == 0 || ns < best)
            best = ns;
    }
    printf("MICRO %s_%-*zu %12.2f ns\n", name, 32 - (int)strlen(name), bytes, best);
    fflush(stdout);
}

typedef struct worker {
    pthread_t thread;
    pthread_barrier_t *start;
    size_t bytes;
    double began, ended;
} worker;

static void *run_worker(void *argument)
{
    worker *const w = argument;
    check(pairs(w->bytes, 1000), "tcuda_host_malloc");
    pthread_barrier_wait(w->start);
    w->began = now_ns();
    check(pairs(w->bytes, PAIRS), "tcuda_host_malloc");
    w->ended = now_ns();
    return NULL;
}

/* From the first thread's start to the last one's end. */
static void measure_threads(int count, size_t bytes)
{
    worker workers[MAX_THREADS];
    pthread_barrier_t start;
    if (pthread_barrier_init(&start, NULL, (unsigned)count) != 0)
        exit(EXIT_FAILURE);
    for (int i = 0; i < count; i++) {
        workers[i] = (worker){ .start = &start, .bytes = bytes };
        if (pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) != 0)
            exit(EXIT_FAILURE);
    }
    double began = 0, ended = 0;
    for (int i = 0; i < count; i++) {
        pthread_join(workers[i].thread, NULL);
        began = i == 0 || workers[i].began < began ? workers[i].began : began;
        ended = workers[i].ended > ended ? workers[i].ended : ended;
    }
    pthread_barrier_destroy(&start);
    printf("MICRO host_pair_%zu_threads_%-12d %12.2f ns\n", bytes, count,
        (ended - began) / PAIRS);
    fflush(stdout);
}

int main(void)
{
    static const size_t sizes[] = { 64, 4096, 1 << 20, 20 << 20 };
    void *ptr;
    check(tcuda_device_set(0), "tcuda_device_set");
    check(tcuda_host_malloc(1, &ptr), "tcuda_host_malloc");
    find("cuMemHostAlloc", &driver_allocate);
    find("cuMemFreeHost", &driver_free);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        measure("host_pair", sizes[i], PAIRS, pairs);
        measure("device_pair", sizes[i], PAIRS, device_pairs);
        measure("driver_pair", sizes[i], 200, driver_pairs);
    }
    measure("host_churn_up_to", 60000, PAIRS, churn);
    measure("host_churn_up_to", 1 << 20, PAIRS, churn);
    for (int count = 1; count <= MAX_THREADS; count *= 2)
        measure_threads(count, 4096);
    measure_threads(MAX_THREADS, 1 << 20);
    check(tcuda_host_free(ptr), "tcuda_host_free");
    check(tcuda_shutdown(NULL), "tcuda_shutdown");
    return EXIT_SUCCESS;
}
