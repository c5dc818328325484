/* Backends of the allocator without its cache: the driver's pools, and a call of the driver for
 * each block. */
#include "support.h"

static const size_t mib = 1 << 20;

/* Of CUmemPool_attribute. */
enum { THRESHOLD = 4, RESERVED, RESERVED_HIGH, USED, USED_HIGH };

static struct {
    int (*default_pool)(void **pool, int device);
    int (*attribute)(void *pool, int attribute, void *value);
} driver;

/* As dlsym, it gives an object pointer, and C has no cast from one to a function. */
static void find(const char *name, void *function)
{
    void *address = NULL;
    CHECK_OK(tcuda_backend_function(name, &address));
    memcpy(function, &address, sizeof address);
}

static void find_driver(void)
{
    find("cuDeviceGetDefaultMemPool", &driver.default_pool);
    find("cuMemPoolGetAttribute", &driver.attribute);
}

static uint64_t attribute(int number)
{
    void *pool = NULL;
    uint64_t value = 0;
    CHECK_EQ(driver.default_pool(&pool, 0), 0);
    CHECK_EQ(driver.attribute(pool, number, &value), 0);
    return value;
}

static uint64_t statistic(const char *key)
{
    uint64_t value = 0;
    CHECK_OK(tcuda_memory_stat(0, key, &value));
    return value;
}

static tcuda_memory_statistics statistics(void)
{
    tcuda_memory_statistics stats = TCUDA_INIT(tcuda_memory_statistics);
    CHECK_OK(tcuda_memory_stats(0, &stats));
    return stats;
}

static void begin_backend(const char *config)
{
    CHECK_OK(tcuda_allocator_config_set(config));
    CHECK_OK(tcuda_init());
    find_driver();
}

static void end_backend(void)
{
    CHECK_EQ(finish(), EXIT_SUCCESS);
    CHECK_STR(tcuda_allocator_backend(), "native");
}

static void not_a_block(void *ptr)
{
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(ptr));
    CHECK(strstr(tcuda_last_error(), "was freed already") != NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_record_stream(ptr, NULL));
}

/* ---- cudaMallocAsync ---- */

/* What PyTorch tells of this backend: bytes allocated, active and reserved, now and at most. */
static void tells_what_the_driver_counts(void)
{
    const tcuda_memory_statistics stats = statistics();
    tcuda_memory_statistics expected;
    memset(&expected, 0, sizeof expected);
    expected.struct_size = sizeof expected;
    expected.allocated_bytes.all.current = attribute(USED);
    expected.allocated_bytes.all.peak = attribute(USED_HIGH);
    expected.active_bytes.all = expected.allocated_bytes.all;
    expected.reserved_bytes.all.current = attribute(RESERVED);
    expected.reserved_bytes.all.peak = attribute(RESERVED_HIGH);
    expected.max_split_size = UINT64_MAX;
    CHECK(memcmp(&stats, &expected, sizeof stats) == 0);
}

static void the_drivers_pool_is_counted_by_the_driver(void)
{
    CHECK_STR(tcuda_allocator_backend(), "native");
    begin_backend("backend:cudaMallocAsync");
    CHECK_STR(tcuda_allocator_backend(), "cudaMallocAsync");
    tells_what_the_driver_counts();
    void *const block = allocate(3 * mib, 0, NULL), *const other = allocate(100, 0, NULL);
    CHECK(attribute(THRESHOLD) == UINT64_MAX);
    CHECK_EQ(calls_of("cuMemAllocFromPoolAsync"), 2);
    CHECK_EQ(calls_of("cuMemCreate"), 0);
    CHECK(statistic("allocated_bytes.all.current") >= 3 * mib + 100);
    tells_what_the_driver_counts();
    fill_bytes(block, 7, 3 * mib, NULL);
    CHECK_EQ(count_other_bytes(block, 7, 3 * mib, NULL), 0);
    CHECK_OK(tcuda_free(block));
    tells_what_the_driver_counts();
    CHECK(statistic("allocated_bytes.all.current") < 3 * mib);
    CHECK(statistic("allocated_bytes.all.peak") >= 3 * mib);
    CHECK_OK(tcuda_memory_reset_peak(0));
    CHECK_EQ(statistic("allocated_bytes.all.peak"), statistic("allocated_bytes.all.current"));
    CHECK_OK(tcuda_memory_reset_accumulated(0));
    tells_what_the_driver_counts();
    not_a_block(block);
    CHECK_OK(tcuda_free(other));
    CHECK(statistic("reserved_bytes.all.current") > 0);
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(statistic("reserved_bytes.all.current"), 0);
    end_backend();
}

static void what_the_drivers_pool_lacks_is_told(void)
{
    begin_backend("backend:cudaMallocAsync");
    tcuda_mem_pool *pool = NULL;
    CHECK_OK(tcuda_mem_pool_create(NULL, 0, &pool));
    CHECK_STATUS(TCUDA_STATUS_NOT_SUPPORTED, tcuda_mem_pool_begin(pool, 0));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_STATUS(TCUDA_STATUS_NOT_SUPPORTED, tcuda_memory_stats_push(0));
    /* Caching is the native backend's. */
    CHECK_OK(tcuda_memory_caching_enable(0));
    CHECK_OK(tcuda_free(allocate(1, 0, NULL)));
    CHECK_EQ(calls_of("cuMemAlloc"), 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_allocator_config_set("backend:native"));
    CHECK(strstr(tcuda_last_error(), "cannot change after the first allocation") != NULL);
    CHECK_OK(tcuda_allocator_config_set("backend:cudaMallocAsync"));
    end_backend();
    begin_backend("");
    CHECK_OK(tcuda_free(allocate(1, 0, NULL)));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE,
        tcuda_allocator_config_set("backend:cudaMallocAsync"));
    CHECK_STR(tcuda_allocator_backend(), "native");
    end_backend();
}

static size_t warnings;

static void count_warnings(void *user_data, int32_t level, const char *message)
{
    if (level == TCUDA_LOG_WARNING && strstr(message, user_data) != NULL)
        warnings++;
}

static void expect_warning(const char *part)
{
    warnings = 0;
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_WARNING, count_warnings, (void *)(uintptr_t)part,
        NULL));
}

/* What another stream uses is not reused before that is done. */
static void the_drivers_pool_waits_for_recorded_streams(void)
{
    begin_backend("backend:cudaMallocAsync");
    tcuda_stream *const first = create_stream(0), *const second = create_stream(0);
    void *const block = allocate(mib, 0, first);
    CHECK_OK(tcuda_record_stream(block, second));
    CHECK_OK(tcuda_record_stream(block, second));
    expect_warning("has no effect");
    CHECK_OK(tcuda_record_stream(block, first));
    CHECK_EQ(warnings, 1);
    fill_bytes(block, 1, mib, first);
    CHECK_OK(tcuda_stream_synchronize(first));
    void *const copy = allocate(mib, 0, second);
    gate held;
    gate_close(&held, second);
    CHECK_OK(tcuda_copy(copy, block, mib, second));
    CHECK_OK(tcuda_free(block));
    void *const next = allocate(mib, 0, first);
    fill_bytes(next, 2, mib, first);
    CHECK(!runs_late() || next != block);
    if (runs_late())
        gate_open(&held);
    CHECK_EQ(count_other_bytes(copy, 1, mib, second), 0);
    CHECK_OK(tcuda_free(copy));
    CHECK_OK(tcuda_free(next));
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL));
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
    end_backend();
}

static void the_drivers_pool_runs_out(void)
{
    begin_backend("backend:cudaMallocAsync");
    void *ptr = NULL;
    char text[512], total[64];
    limit_to(8 * mib);
    void *const block = allocate(4 * mib, 0, NULL);
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc(5 * mib, 0, NULL, &ptr));
    CHECK(ptr == NULL);
    CHECK_EQ(tcuda_last_error_native(), 2);
    CHECK(sscanf(tcuda_last_error(), "%*[^\n]\n%*[^\n]\n%*[^\n]\n"
        "Device limit            : %63[^\n]", total) == 1);
    snprintf(text, sizeof text, "Allocation on device 0 would exceed allowed memory. "
        "(out of memory)\nCurrently allocated     : 4.00 MiB\nRequested               : 5.00 MiB\n"
        "Device limit            : %s\nFree (according to CUDA): ", total);
    CHECK(strncmp(tcuda_last_error(), text, strlen(text)) == 0);
    CHECK(strstr(tcuda_last_error(), "\ntcuda limit (set by user-supplied memory fraction)\n"
        "                        : 8.00 MiB") != NULL);
    CHECK_EQ(statistic("num_ooms"), 1);
    CHECK_EQ(statistic("num_alloc_retries"), 1);
    CHECK_OK(tcuda_free(allocate(4 * mib, 0, NULL)));
    CHECK_OK(tcuda_free(block));
    /* What the driver refuses is tried again once its cache was given back. */
    CHECK_OK(tcuda_backend_inject("cuMemAllocFromPoolAsync", 1, 2, 0));
    const uint64_t trims = calls_of("cuMemPoolTrimTo");
    CHECK_OK(tcuda_free(allocate(mib, 0, NULL)));
    CHECK_EQ(calls_of("cuMemPoolTrimTo"), trims + 1);
    CHECK_OK(tcuda_backend_inject("cuMemAllocFromPoolAsync", 1, 2, 1));
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc(mib, 0, NULL, &ptr));
    CHECK_OK(tcuda_backend_inject(NULL, 0, 0, 0));
    CHECK_OK(tcuda_backend_inject("cuMemAllocFromPoolAsync", 0, 0, 0));
    /* A block that the driver does not take back is still one. */
    void *const kept = allocate(mib, 0, NULL);
    CHECK_OK(tcuda_backend_inject("cuMemFreeAsync", 1, 999, 0));
    CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_free(kept));
    CHECK_OK(tcuda_free(kept));
    not_a_block(kept);
    end_backend();
}

/* ---- Without a cache ---- */

static size_t live_blocks(void)
{
    size_t segments = 0, blocks = 0;
    tcuda_memory_snapshot *snapshot = NULL;
    CHECK_OK(tcuda_memory_snapshot_create(0, &snapshot));
    CHECK_OK(tcuda_memory_snapshot_counts(snapshot, &segments, &blocks));
    for (size_t i = 0; i < segments; i++) {
        tcuda_segment_info info = TCUDA_INIT(tcuda_segment_info);
        CHECK_OK(tcuda_memory_snapshot_segment(snapshot, i, &info));
        CHECK_EQ(info.block_count, 1);
        CHECK(info.total_bytes == info.allocated_bytes && info.total_bytes == info.requested_bytes);
    }
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    CHECK_EQ(segments, blocks);
    return blocks;
}

static void check_stat(tcuda_stat stat, uint64_t current, uint64_t peak, uint64_t allocated)
{
    CHECK_EQ(stat.current, current);
    CHECK_EQ(stat.peak, peak);
    CHECK_EQ(stat.allocated, allocated);
    CHECK_EQ(stat.freed, allocated - current);
}

/* Nothing is rounded; each block is a segment of its own. */
static void without_a_cache_each_block_is_one_call(void)
{
    tcuda_stream *const stream = create_stream(0);
    void *const small = allocate(1000, 0, stream), *const large = allocate(3 * mib + 1, 0, NULL);
    CHECK_EQ(calls_of("cuMemAlloc"), 2);
    CHECK_EQ(live_blocks(), 2);
    CHECK_OK(tcuda_record_stream(small, NULL));
    fill_bytes(large, 9, 3 * mib + 1, stream);
    CHECK_EQ(count_other_bytes(large, 9, 3 * mib + 1, stream), 0);
    CHECK_OK(tcuda_free(large));
    CHECK_EQ(calls_of("cuMemFree"), 1);
    not_a_block(large);
    const tcuda_memory_statistics stats = statistics();
    const uint64_t both = 1000 + 3 * mib + 1;
    check_stat(stats.allocation.all, 1, 2, 2);
    check_stat(stats.allocation.small_pool, 1, 1, 1);
    check_stat(stats.allocation.large_pool, 0, 1, 1);
    check_stat(stats.active.all, 1, 2, 2);
    check_stat(stats.segment.all, 1, 2, 2);
    check_stat(stats.allocated_bytes.all, 1000, both, both);
    check_stat(stats.active_bytes.all, 1000, both, both);
    check_stat(stats.requested_bytes.small_pool, 1000, 1000, 1000);
    check_stat(stats.reserved_bytes.all, 1000, both, both);
    check_stat(stats.reserved_bytes.large_pool, 0, 3 * mib + 1, 3 * mib + 1);
    check_stat(stats.inactive_split.all, 0, 0, 0);
    CHECK_EQ(stats.num_device_alloc, 2);
    CHECK_EQ(stats.num_device_free, 1);
    CHECK_OK(tcuda_memory_reset_peak(0));
    CHECK_OK(tcuda_memory_reset_accumulated(0));
    const tcuda_stat fresh = statistics().allocated_bytes.all;
    CHECK(fresh.current == 1000 && fresh.peak == 1000 && fresh.allocated == 0 && fresh.freed == 0);
    CHECK_OK(tcuda_free(small));
    CHECK_EQ(live_blocks(), 0);
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(calls_of("cuMemFree"), 2);
    CHECK_OK(tcuda_stream_destroy(stream));
}

static bool is_caching(void)
{
    bool enabled = false;
    CHECK_OK(tcuda_memory_caching_is_enabled(&enabled));
    return enabled;
}

/* Exactly "1" turns caching off, and nothing turns it on again. */
static void the_environment_turns_caching_off(void)
{
    static const char *const variables[] = { "TCUDA_NO_MEMORY_CACHING",
        "PYTORCH_NO_CUDA_MEMORY_CACHING" };
    for (size_t i = 0; i < 2; i++) {
        CHECK_EQ(setenv(variables[i], "0", 1), 0);
        CHECK(is_caching());
        begin_backend("");
        CHECK_OK(tcuda_free(allocate(1, 0, NULL)));
        CHECK_EQ(calls_of("cuMemAlloc"), 0);
        end_backend();
        CHECK_EQ(setenv(variables[i], "1", 1), 0);
        CHECK(!is_caching());
        begin_backend("");
        CHECK_STR(tcuda_allocator_backend(), "native");
        CHECK_OK(tcuda_memory_caching_enable(1));
        CHECK(!is_caching());
        CHECK_EQ(unsetenv(variables[i]), 0);
        without_a_cache_each_block_is_one_call();
        end_backend();
        CHECK(is_caching());
    }
}

/* Blocks go as they came, whatever holds by then. */
static void caching_can_be_turned_off_and_on(void)
{
    begin_backend("");
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_caching_enable(2));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_caching_is_enabled(NULL));
    void *const cached = allocate(1000, 0, NULL);
    CHECK_OK(tcuda_memory_caching_enable(0));
    CHECK(!is_caching());
    void *const plain = allocate(1000, 0, NULL);
    CHECK_EQ(calls_of("cuMemAlloc"), 1);
    CHECK_EQ(statistic("allocated_bytes.all.current"), 1024 + 1000);
    CHECK_EQ(statistic("reserved_bytes.all.current"), 2 * mib + 1000);
    CHECK_OK(tcuda_free(cached));
    CHECK_OK(tcuda_memory_caching_enable(1));
    CHECK(allocate(1000, 0, NULL) == cached);
    CHECK_OK(tcuda_free(plain));
    CHECK_EQ(calls_of("cuMemFree"), 1);
    CHECK_OK(tcuda_free(cached));
    CHECK_EQ(statistic("allocation.all.current"), 0);
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(statistic("reserved_bytes.all.current"), 0);
    end_backend();
}

/* A tensor that begins inside a block without an arena is held to that block, as any other is. */
static void tensors_stay_in_blocks_without_an_arena(const char *config, int32_t caching)
{
    enum { BYTES = 9218, OFFSET = 3 };
    begin_backend(config);
    CHECK_OK(tcuda_memory_caching_enable(caching));
    void *const block = allocate(BYTES, 0, NULL), *const other = allocate(BYTES, 0, NULL);
    int64_t size = BYTES - OFFSET;
    tcuda_tensor tensor = { .data = block, .device = { TCUDA_DEVICE_CUDA, 0 }, .ndim = 1,
        .dtype = { 0, 8, 1 }, .shape = &size, .strides = NULL, .byte_offset = OFFSET };
    CHECK_OK(tcuda_random_geometric(&tensor, 0.5, NULL, NULL));
    const int64_t too_large[] = { BYTES - OFFSET + 1, 1 << 20, INT64_MAX };
    for (size_t i = 0; i < sizeof too_large / sizeof *too_large; i++) {
        size = too_large[i];
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
            tcuda_random_geometric(&tensor, 0.5, NULL, NULL));
        CHECK(strstr(tcuda_last_error(), "leaves the block") != NULL);
    }
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_free(other));
    end_backend();
}

static int32_t free_it(void *user_data, int32_t device, size_t bytes, size_t limit_bytes,
    size_t free_bytes)
{
    void **const block = user_data;
    (void)free_bytes;
    CHECK_EQ(device, 0);
    CHECK_EQ(bytes, 5 * mib);
    CHECK_EQ(limit_bytes, 8 * mib);
    CHECK_OK(tcuda_free(*block));
    *block = NULL;
    return 1;
}

/* The cache goes before a failure, then observers are asked; what fails changes nothing. */
static void without_a_cache_memory_runs_out(void)
{
    begin_backend("");
    void *ptr = NULL;
    CHECK_OK(tcuda_free(allocate(6 * mib, 0, NULL)));
    CHECK_OK(tcuda_memory_caching_enable(0));
    limit_to(8 * mib);
    void *block = allocate(4 * mib, 0, NULL);
    CHECK_EQ(statistic("reserved_bytes.all.current"), 4 * mib);
    CHECK_EQ(statistic("num_alloc_retries"), 1);
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc(5 * mib, 0, NULL, &ptr));
    CHECK(ptr == NULL);
    CHECK(strncmp(tcuda_last_error(), "CUDA out of memory. Tried to allocate 5.00 MiB. GPU 0 has",
        57) == 0);
    CHECK(strstr(tcuda_last_error(), " 8.00 MiB allowed; Of the allocated memory 4.00 MiB is "
        "allocated by tcuda, and 0 bytes is reserved") != NULL);
    CHECK_EQ(statistic("num_ooms"), 1);
    tcuda_observer *observer = NULL;
    CHECK_OK(tcuda_memory_on_out_of_memory(free_it, &block, NULL, &observer));
    ptr = allocate(5 * mib, 0, NULL);
    CHECK(block == NULL);
    CHECK_OK(tcuda_observer_destroy(observer));
    CHECK_EQ(statistic("num_ooms"), 1);
    CHECK_OK(tcuda_allocator_config_set("throw_on_cudamalloc_oom:True"));
    void *other = NULL;
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc(5 * mib, 0, NULL, &other));
    CHECK(strstr(tcuda_last_error(), "preemptively rejected") != NULL);
    CHECK_EQ(statistic("num_oom_rejections"), 1);
    /* A block that the driver does not take back is still one, and counted as before. */
    const tcuda_memory_statistics before = statistics();
    CHECK_OK(tcuda_backend_inject("cuMemFree", 1, 999, 0));
    CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_free(ptr));
    const tcuda_memory_statistics after = statistics();
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    CHECK_OK(tcuda_free(ptr));
    CHECK_OK(tcuda_memory_caching_enable(1));
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc((size_t)1 << 60, 0, NULL, &ptr));
    end_backend();
}

/* ---- Both ---- */

enum { THREADS = 4, ROUNDS = 200, HELD = 8 };

static void *allocate_and_free(void *argument)
{
    tcuda_stream *const stream = create_stream(0), *const other = create_stream(0);
    void *held[HELD] = { NULL };
    unsigned random = *(const unsigned *)argument;
    for (int i = 0; i < ROUNDS; i++) {
        random = random * 1664525u + 1013904223u;
        void **const block = &held[random >> 24 & (HELD - 1)];
        if (*block == NULL) {
            *block = allocate(1 + (random >> 8 & 0xffff), 0, stream);
            if (random >> 30 == 0)
                CHECK_OK(tcuda_record_stream(*block, other));
        } else {
            CHECK_OK(tcuda_free(*block));
            *block = NULL;
        }
    }
    for (int i = 0; i < HELD; i++)
        CHECK_OK(tcuda_free(held[i]));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(other));
    return NULL;
}

static void threads_share_the_table(void)
{
    for (int round = 0; round < 2; round++) {
        begin_backend(round == 0 ? "backend:cudaMallocAsync" : "");
        CHECK_OK(tcuda_memory_caching_enable(0));
        pthread_t threads[THREADS];
        unsigned seeds[THREADS];
        for (int i = 0; i < THREADS; i++) {
            seeds[i] = (unsigned)(7 * i + round);
            threads[i] = start_thread(allocate_and_free, &seeds[i]);
        }
        for (int i = 0; i < THREADS; i++)
            (void)live_blocks();
        for (int i = 0; i < THREADS; i++)
            join_thread(threads[i]);
        CHECK_EQ(live_blocks(), 0);
        CHECK_OK(tcuda_memory_empty_cache());
        CHECK_EQ(statistic("allocated_bytes.all.current"), 0);
        CHECK_EQ(statistic("reserved_bytes.all.current"), 0);
        CHECK_EQ(statistic("allocation.all.allocated"), statistic("allocation.all.freed"));
        end_backend();
    }
}

/* A shutdown gives back what the host forgot. */
static void what_is_left_is_given_back(void)
{
    for (int round = 0; round < 2; round++) {
        begin_backend(round == 0 ? "backend:cudaMallocAsync" : "");
        CHECK_OK(tcuda_memory_caching_enable(0));
        void *const block = allocate(mib, 0, NULL);
        end_backend();
        CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(block));
    }
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    the_drivers_pool_is_counted_by_the_driver();
    what_the_drivers_pool_lacks_is_told();
    the_drivers_pool_waits_for_recorded_streams();
    the_drivers_pool_runs_out();
    the_environment_turns_caching_off();
    caching_can_be_turned_off_and_on();
    without_a_cache_memory_runs_out();
    threads_share_the_table();
    what_is_left_is_given_back();
    tensors_stay_in_blocks_without_an_arena("", 0);
    tensors_stay_in_blocks_without_an_arena("backend:cudaMallocAsync", 1);
    return finish();
}
