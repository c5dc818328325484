/* Many threads allocate and free, on streams of their own and on one that they share, and free what
 * others allocated. Totals are exact and no two live blocks overlap. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

enum { THREADS = 8, PHASES = 4, STEPS = 6000, ADVERSARY_STEPS = 1500, HELD = 64, MAILBOXES = 32 };

/* A live block; the thread that has the record may free the block. */
typedef struct block {
    uintptr_t start;
    size_t bytes;
} block;

typedef struct worker {
    pthread_t thread;
    tcuda_stream *stream;
    uint64_t random;
    uint64_t count, bytes, requested;
    block *held[HELD];
} worker;

static tcuda_stream *shared;
static _Atomic(block *) mailboxes[MAILBOXES];
static worker workers[THREADS];

static size_t random_below(worker *w, size_t bound)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (size_t)(w->random % bound);
}

static block *allocate_some(worker *w)
{
    const size_t kind = random_below(w, 32);
    const size_t largest = kind == 0 ? 4 << 20 : kind < 4 ? 200000 : 5000;
    block *const b = (block *)malloc(sizeof *b);
    CHECK(b != NULL);
    b->bytes = 1 + random_below(w, largest);
    void *ptr = NULL;
    CHECK_OK(tcuda_malloc(b->bytes, 0, random_below(w, 2) ? w->stream : shared, &ptr));
    CHECK(ptr != NULL);
    b->start = (uintptr_t)ptr;
    w->count++;
    w->bytes += (b->bytes + 511) / 512 * 512;
    w->requested += b->bytes;
    return b;
}

static void release(block *b)
{
    if (b == NULL)
        return;
    CHECK_OK(tcuda_free((void *)b->start));
    free(b);
}

static void *work(void *user_data)
{
    worker *const w = (worker *)user_data;
    const int steps = under_adversary() ? ADVERSARY_STEPS : STEPS;
    for (int step = 0; step < steps; step++) {
        block **const place = &w->held[random_below(w, HELD)];
        if (*place == NULL) {
            *place = allocate_some(w);
        } else if (random_below(w, 3) == 0) {
            /* To another thread, which frees it; and in return, perhaps, what another left here. */
            block *const other = atomic_exchange(&mailboxes[random_below(w, MAILBOXES)], *place);
            *place = NULL;
            release(other);
        } else {
            release(*place);
            *place = NULL;
        }
    }
    return NULL;
}

static int by_start(const void *a, const void *b)
{
    const block *const x = *(block *const *)a, *const y = *(block *const *)b;
    return (x->start > y->start) - (x->start < y->start);
}

/* Between phases no thread is at work: what is live is known. */
static void everything_is_exact(void)
{
    static block *live[THREADS * HELD + MAILBOXES];
    size_t count = 0;
    for (int i = 0; i < THREADS; i++)
        for (int j = 0; j < HELD; j++)
            if (workers[i].held[j] != NULL)
                live[count++] = workers[i].held[j];
    for (int i = 0; i < MAILBOXES; i++)
        if (atomic_load(&mailboxes[i]) != NULL)
            live[count++] = atomic_load(&mailboxes[i]);
    qsort(live, count, sizeof *live, by_start);
    uint64_t bytes = 0, small_bytes = 0, requested = 0;
    for (size_t i = 0; i < count; i++) {
        const size_t rounded = (live[i]->bytes + 511) / 512 * 512;
        bytes += rounded;
        small_bytes += rounded <= (size_t)1 << 20 ? rounded : 0;
        requested += live[i]->bytes;
        if (i + 1 < count)
            CHECK(live[i]->start + rounded <= live[i + 1]->start);
    }

    uint64_t all_count = 0, all_bytes = 0, all_requested = 0;
    for (int i = 0; i < THREADS; i++) {
        all_count += workers[i].count;
        all_bytes += workers[i].bytes;
        all_requested += workers[i].requested;
    }
    tcuda_memory_statistics stats = TCUDA_INIT(tcuda_memory_statistics);
    CHECK_OK(tcuda_memory_stats(0, &stats));
    CHECK_EQ(stats.allocation.all.current, count);
    CHECK_EQ(stats.allocation.all.allocated, all_count);
    CHECK_EQ(stats.allocation.all.freed, all_count - count);
    CHECK_EQ(stats.active.all.current, count);
    CHECK_EQ(stats.active_bytes.all.current, stats.allocated_bytes.all.current);
    if (in_segments()) {
        CHECK(stats.allocated_bytes.all.current >= bytes);
        CHECK_EQ(stats.allocated_bytes.small_pool.current, small_bytes);
    } else {
        CHECK_EQ(stats.allocated_bytes.all.current, bytes);
        CHECK_EQ(stats.allocated_bytes.all.allocated, all_bytes);
    }
    CHECK_EQ(stats.requested_bytes.all.current, requested);
    CHECK_EQ(stats.requested_bytes.all.allocated, all_requested);
    CHECK_EQ(stats.allocated_bytes.small_pool.current + stats.allocated_bytes.large_pool.current,
        stats.allocated_bytes.all.current);
    CHECK(stats.allocated_bytes.all.peak >= bytes);
    CHECK(stats.reserved_bytes.all.current >= bytes);
    CHECK(stats.allocated_bytes.all.peak <= stats.reserved_bytes.all.peak);
}

/* One thread at a time, so that the peak of the sum over both streams is known. */
static void *hand_over(void *user_data)
{
    worker *const w = (worker *)user_data;
    void *ptr = NULL;
    CHECK_OK(tcuda_malloc(w->bytes, 0, w->stream, &ptr));
    w->held[0] = (block *)ptr;
    return NULL;
}

static void *hand_back(void *user_data)
{
    worker *const w = (worker *)user_data;
    CHECK_OK(tcuda_free(w->held[0]));
    w->held[0] = NULL;
    return NULL;
}

static void peak_after(worker *w, void *(*step)(void *), uint64_t bytes, size_t expected)
{
    size_t peak = 0;
    w->bytes = bytes;
    CHECK_EQ(pthread_create(&w->thread, NULL, step, w), 0);
    CHECK_EQ(pthread_join(w->thread, NULL), 0);
    CHECK_OK(tcuda_memory_max_allocated(0, &peak));
    CHECK_EQ(peak, expected);
}

static void peaks_are_exact(void)
{
    const size_t mib = 1 << 20;
    worker a = { .stream = workers[0].stream }, b = { .stream = workers[1].stream };
    worker c = { .stream = workers[1].stream };
    CHECK_OK(tcuda_memory_reset_peak(0));
    peak_after(&a, hand_over, 10 * mib, 10 * mib);
    peak_after(&b, hand_over, 5 * mib, 15 * mib);
    peak_after(&a, hand_back, 0, 15 * mib);
    peak_after(&c, hand_over, 7 * mib, 15 * mib);
    peak_after(&a, hand_over, 3 * mib, 15 * mib);
    peak_after(&b, hand_back, 0, 15 * mib);
    peak_after(&b, hand_over, 6 * mib, 16 * mib);
    peak_after(&a, hand_back, 0, 16 * mib);
    peak_after(&b, hand_back, 0, 16 * mib);
    peak_after(&c, hand_back, 0, 16 * mib);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_stream_create(0, 0, &shared));
    for (int i = 0; i < THREADS; i++) {
        workers[i].random = 88172645463325252u + (uint64_t)i * 7919;
        CHECK_OK(tcuda_stream_create(0, 0, &workers[i].stream));
    }
    for (int phase = 0; phase < PHASES; phase++) {
        for (int i = 0; i < THREADS; i++)
            CHECK_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
        for (int i = 0; i < THREADS; i++)
            CHECK_EQ(pthread_join(workers[i].thread, NULL), 0);
        everything_is_exact();
    }
    for (int i = 0; i < MAILBOXES; i++)
        release(atomic_exchange(&mailboxes[i], NULL));
    for (int i = 0; i < THREADS; i++) {
        for (int j = 0; j < HELD; j++) {
            release(workers[i].held[j]);
            workers[i].held[j] = NULL;
        }
    }
    everything_is_exact();
    peaks_are_exact();
    CHECK_OK(tcuda_memory_empty_cache());
    size_t reserved = 1;
    CHECK_OK(tcuda_memory_reserved(0, &reserved));
    CHECK_EQ(reserved, 0);
    for (int i = 0; i < THREADS; i++)
        CHECK_OK(tcuda_stream_destroy(workers[i].stream));
    CHECK_OK(tcuda_stream_destroy(shared));
    return finish();
}
