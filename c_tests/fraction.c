/* The share of a device's memory that the cache may reserve. */
#include "support.h"

static const size_t mib = 1 << 20;

static uint64_t statistic(const char *key)
{
    uint64_t value = 0;
    CHECK_OK(tcuda_memory_stat(0, key, &value));
    return value;
}

static double fraction(void)
{
    double value = -1;
    CHECK_OK(tcuda_memory_fraction_get(0, &value));
    return value;
}

static void runs_out(size_t bytes)
{
    void *ptr = NULL;
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc(bytes, 0, NULL, &ptr));
    CHECK(ptr == NULL);
    CHECK_EQ(tcuda_last_error_native(), 2);
}

static void shares_are_checked(void)
{
    static const struct {
        double value;
        const char *text;
    } wrong[] = { { -0.5, "invalid fraction:-0.5. Please set within [0, 1]." },
        { 1.5, "invalid fraction:1.5. Please set within [0, 1]." } };
    CHECK(fraction() == 1.0);
    for (size_t i = 0; i < 2; i++) {
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_fraction_set(0, wrong[i].value));
        CHECK_STR(tcuda_last_error(), wrong[i].text);
    }
    const double zero = fraction() - 1;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_fraction_set(0, zero / zero));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_memory_fraction_set(99, 0.5));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_fraction_get(0, NULL));
    CHECK(fraction() == 1.0);
    CHECK_OK(tcuda_memory_fraction_set(0, 0.3));
    CHECK(fraction() == 0.3);
    CHECK_OK(tcuda_memory_fraction_set(TCUDA_CURRENT_DEVICE, 1));
    CHECK(fraction() == 1.0);
}

/* The share of a size allows that size, and not the next larger one. */
static void a_share_allows_what_it_is_the_share_of(void)
{
    size_t free_bytes = 0, total = 0;
    CHECK_OK(tcuda_memory_info(0, &free_bytes, &total));
    const size_t most = free_bytes / (4 * mib) * (2 * mib);
    for (size_t bytes = 2 * mib; bytes <= most; bytes += (on_simulator() ? 2 : 98) * mib) {
        CHECK_OK(tcuda_memory_fraction_set(0, (double)bytes / (double)total));
        CHECK_OK(tcuda_free(allocate(bytes, 0, NULL)));
        runs_out(bytes + 1);
        CHECK_OK(tcuda_memory_empty_cache());
    }
    CHECK_OK(tcuda_memory_fraction_set(0, 1));
}

/* What is reserved counts, to the byte; another stream's cache goes before a failure, where streams
 * do not share. */
static void the_limit_is_kept(void)
{
    CHECK_OK(tcuda_allocator_config_set("share_between_streams:False"));
    tcuda_stream *const stream = create_stream(0);
    const uint64_t retries = statistic("num_alloc_retries");
    limit_to(64 * mib - 1);
    runs_out(64 * mib);
    CHECK(strstr(tcuda_last_error(), " 64.00 MiB allowed; Of the allocated") != NULL);
    CHECK_EQ(statistic("num_alloc_retries"), retries + 1);
    limit_to(64 * mib);
    CHECK_OK(tcuda_free(allocate(64 * mib, 0, stream)));
    void *const block = allocate(40 * mib, 0, NULL);
    CHECK_EQ(statistic("reserved_bytes.all.current"), 40 * mib);
    CHECK_EQ(statistic("num_alloc_retries"), retries + 2);
    runs_out(26 * mib);
    void *const rest = allocate(24 * mib, 0, NULL);
    CHECK_EQ(statistic("reserved_bytes.all.current"), 64 * mib);
    runs_out(1);

    /* Below what is reserved: that stays, and the next growth gives back what is unused. */
    limit_to(30 * mib);
    CHECK_EQ(statistic("reserved_bytes.all.current"), 64 * mib);
    CHECK_OK(tcuda_free(block));
    runs_out(31 * mib + 10 * mib);
    CHECK_EQ(statistic("reserved_bytes.all.current"), 24 * mib);
    CHECK_OK(tcuda_free(allocate(4 * mib, 0, stream)));
    CHECK_OK(tcuda_free(rest));
    CHECK_OK(tcuda_memory_fraction_set(0, 0));
    CHECK_OK(tcuda_free(allocate(20 * mib, 0, NULL)));
    CHECK_OK(tcuda_memory_empty_cache());
    runs_out(1);
    CHECK_OK(tcuda_memory_fraction_set(0, 1));
    CHECK_OK(tcuda_free(allocate(80 * mib, 0, NULL)));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(statistic("reserved_bytes.all.current"), 0);
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void *allocate_many(void *count)
{
    tcuda_stream *const stream = create_stream(0);
    void *blocks[64];
    for (int i = 0; i < 64; i++) {
        void *ptr = NULL;
        if (tcuda_malloc(2 * mib, 0, stream, &ptr) == TCUDA_STATUS_OK)
            blocks[(*(int *)count)++] = ptr;
    }
    CHECK(statistic("reserved_bytes.all.peak") <= 64 * mib);
    CHECK_OK(tcuda_stream_destroy(stream));
    (void)blocks;
    return NULL;
}

/* Threads that grow at once do not pass it together, and use all of it. */
static void threads_share_the_limit(void)
{
    int counts[4] = { 0 };
    pthread_t threads[4];
    CHECK_OK(tcuda_memory_reset_peak(0));
    limit_to(64 * mib);
    for (int i = 0; i < 4; i++)
        threads[i] = start_thread(allocate_many, &counts[i]);
    for (int i = 0; i < 4; i++)
        join_thread(threads[i]);
    CHECK_EQ(counts[0] + counts[1] + counts[2] + counts[3], 32);
    CHECK_EQ(statistic("reserved_bytes.all.peak"), 64 * mib);
}

/* Above the threshold unused memory goes before more is asked for, a free block at a time. */
static void garbage_is_collected(void)
{
    tcuda_stream *const first = create_stream(0), *const second = create_stream(0);
    CHECK_OK(tcuda_allocator_config_set("garbage_collection_threshold:0.5"));
    limit_to(64 * mib);
    const uint64_t retries = statistic("num_alloc_retries");
    CHECK_OK(tcuda_free(allocate(40 * mib, 0, first)));
    void *const block = allocate(16 * mib, 0, second);
    CHECK_EQ(statistic("num_alloc_retries"), retries);
    CHECK_EQ(statistic("reserved_bytes.all.current"), 16 * mib);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_allocator_config_set(""));
    CHECK_OK(tcuda_memory_fraction_set(0, 1));
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
    CHECK_OK(tcuda_memory_empty_cache());
}

typedef struct rejection {
    int calls;
    int32_t device;
    size_t bytes, allocated, total;
    tcuda_status inside; /* of an allocation within */
    bool is_destroyed;
} rejection;

static void on_rejection(void *user_data, int32_t device, size_t bytes, size_t allocated,
    size_t total)
{
    rejection *const to = user_data;
    void *ptr = NULL;
    to->calls++;
    to->device = device;
    to->bytes = bytes;
    to->allocated = allocated;
    to->total = total;
    to->inside = tcuda_malloc(1, 0, NULL, &ptr);
}

static void on_end(void *user_data)
{
    ((rejection *)user_data)->is_destroyed = true;
}

/* Refused before anything is reclaimed. */
static void an_early_rejection_is_counted(void)
{
    tcuda_stream *const stream = create_stream(0);
    CHECK_OK(tcuda_allocator_config_set("throw_on_cudamalloc_oom:True"));
    limit_to(64 * mib);
    CHECK_OK(tcuda_free(allocate(64 * mib, 0, stream)));
    const uint64_t ooms = statistic("num_ooms");
    rejection seen = { .calls = 0 };
    tcuda_observer *observer = NULL;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_memory_on_rejection(NULL, &seen, on_end, &observer));
    CHECK_OK(tcuda_memory_on_rejection(on_rejection, &seen, on_end, &observer));
    runs_out(2 * mib);
    CHECK(seen.calls == 1 && seen.device == 0 && seen.inside == TCUDA_STATUS_INVALID_STATE);
    CHECK_EQ(seen.bytes, 2 * mib);
    CHECK_EQ(seen.allocated, statistic("allocated_bytes.all.current"));
    size_t unused = 0, total = 0;
    CHECK_OK(tcuda_memory_info(0, &unused, &total));
    CHECK_EQ(seen.total, total);
    CHECK(!seen.is_destroyed);
    CHECK_OK(tcuda_observer_destroy(observer));
    CHECK(seen.is_destroyed);
    CHECK_STR(tcuda_last_error(), "CUDA out of memory. Allocation was preemptively rejected "
        "because it would exceed per_process_memory_fraction limit. Requested size: 2.00 MiB "
        "(64.00 MiB allowed on GPU 0, 64.00 MiB reserved by tcuda). Set "
        "throw_on_cudamalloc_oom:false to disable.");
    CHECK_EQ(statistic("num_oom_rejections"), 1);
    CHECK_EQ(statistic("num_ooms"), ooms);
    CHECK_EQ(statistic("reserved_bytes.all.current"), 64 * mib);
    CHECK_OK(tcuda_allocator_config_set("throw_on_cudamalloc_oom:False"));
    CHECK_OK(tcuda_free(allocate(2 * mib, 0, NULL)));
    CHECK_OK(tcuda_memory_fraction_set(0, 1));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_memory_empty_cache());
}

/* Memory of a pool that sleeps is not counted, and waking is growth like any other. */
static void waking_is_limited(void)
{
    tcuda_mem_pool *pool = NULL;
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_OK(tcuda_mem_pool_create(NULL, 0, &pool));
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    void *const block = allocate(40 * mib, 0, NULL);
    CHECK_OK(tcuda_mem_pool_end(pool, 0));
    limit_to(64 * mib);
    runs_out(30 * mib);
    CHECK_OK(tcuda_mem_pool_sleep(pool, 0));
    void *const other = allocate(30 * mib, 0, NULL);
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_mem_pool_wake(pool));
    CHECK_OK(tcuda_free(other));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_OK(tcuda_mem_pool_wake(pool));
    runs_out(30 * mib);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(statistic("reserved_bytes.all.current"), 0);
    CHECK_OK(tcuda_free(allocate(64 * mib, 0, NULL)));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_OK(tcuda_memory_fraction_set(0, 1));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    shares_are_checked();
    a_share_allows_what_it_is_the_share_of();
    the_limit_is_kept();
    garbage_is_collected();
    an_early_rejection_is_counted();
    waking_is_limited();
    threads_share_the_limit();
    return finish();
}
