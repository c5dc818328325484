/* What holds memory: pools, pinned memory, history, snapshots, allocators of a host's. */
#include "soak.h"

static tcuda_stream *default_stream(void)
{
    tcuda_stream *stream = NULL;
    CHECK_OK(tcuda_stream_default(0, &stream));
    return stream;
}

static void pool_round(int64_t number)
{
    tcuda_mem_pool *pool = NULL;
    CHECK_OK(tcuda_mem_pool_create(NULL, 0, &pool));
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    void *const block = allocate(number % 2 == 0 ? 1000 : 3 * MIB, 0, NULL);
    CHECK_OK(tcuda_mem_pool_end(pool, 0));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    if (number % 16 == 0)
        CHECK_OK(tcuda_memory_empty_cache());
}

static void sleeping_pool_round(int64_t number)
{
    (void)number;
    tcuda_mem_pool *pool = NULL;
    CHECK_OK(tcuda_mem_pool_create(NULL, 0, &pool));
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    void *const block = allocate(3 * MIB, 0, NULL);
    CHECK_OK(tcuda_mem_pool_end(pool, 0));
    CHECK_OK(tcuda_mem_pool_sleep(pool, 0));
    CHECK_OK(tcuda_mem_pool_wake(pool));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
}

/* As PyTorch does it: pools by its own numbers, on a captured stream or not. */
static void torch_round(int64_t number)
{
    struct CUstream_st *const native = native_of(default_stream());
    const uint64_t id = (uint64_t)number + 1;
    tcuda_torch_begin_allocate_to_pool(0, id, 0, native);
    void *const block = tcuda_torch_malloc(1000, 0, native);
    CHECK(block != NULL);
    tcuda_torch_end_allocate_to_pool(0, id, 0);
    tcuda_torch_free(block, 1000, 0, native);
    tcuda_torch_release_pool(0, id, 0);
}

static void *host_allocate(ptrdiff_t bytes, int32_t device, struct CUstream_st *stream)
{
    return tcuda_torch_malloc(bytes, device, stream);
}

static void host_free(void *block, ptrdiff_t bytes, int32_t device, struct CUstream_st *stream)
{
    tcuda_torch_free(block, bytes, device, stream);
}

static void allocator_round(int64_t number)
{
    (void)number;
    tcuda_pluggable_allocator *allocator = NULL;
    tcuda_mem_pool *pool = NULL;
    CHECK_OK(tcuda_pluggable_allocator_create(host_allocate, host_free, &allocator));
    CHECK_OK(tcuda_mem_pool_create(allocator, 0, &pool));
    CHECK_OK(tcuda_pluggable_allocator_destroy(allocator));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
}

static int32_t observed(void *user_data, int32_t device, size_t bytes, size_t limit, size_t unused)
{
    (void)user_data, (void)device, (void)bytes, (void)limit, (void)unused;
    return 0;
}

static int64_t destroyed;

static void count_destroyed(void *user_data)
{
    (void)user_data;
    destroyed++;
}

static void observer_round(int64_t number)
{
    tcuda_observer *observer = NULL;
    CHECK_OK(tcuda_memory_on_out_of_memory(observed, &destroyed, count_destroyed, &observer));
    if (number % 16 == 0) {
        void *block = NULL;
        CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc((size_t)1 << 50, 0, NULL, &block));
    }
    CHECK_OK(tcuda_observer_destroy(observer));
}

static void allocation_round(int64_t number)
{
    tcuda_allocation *allocation = NULL;
    CHECK_OK(tcuda_allocation_create((size_t)(number % 100) * 1000, 0, NULL, &allocation));
    CHECK_OK(tcuda_allocation_destroy(allocation));
}

/* Sizes that come and go, small and large, in no order. */
static void size_round(int64_t number)
{
    static void *blocks[64];
    uint64_t word = (uint64_t)number * 0x9e3779b97f4a7c15u;
    void **const place = &blocks[word >> 58];
    CHECK_OK(tcuda_free(*place));
    *place = NULL;
    word = word >> 20 & 0xffff;
    *place = allocate(word % 8 == 0 ? word * 64 + 1 : word % 5000 + 1, 0, NULL);
}

static void end_sizes(void)
{
    CHECK_OK(tcuda_memory_empty_cache());
}

static void pinned_round(int64_t number)
{
    void *pinned = NULL;
    const size_t bytes = number % 8 == 0 ? (size_t)2 * MIB : (size_t)(number % 61 + 1) * 512;
    CHECK_OK(tcuda_host_malloc(bytes, &pinned));
    CHECK_OK(tcuda_host_record(pinned, default_stream()));
    CHECK_OK(tcuda_host_free(pinned));
    if (number % 64 == 0)
        CHECK_OK(tcuda_host_memory_empty_cache());
}

/* Each call is from a place of its own. */
static size_t frames_of(void *user_data, tcuda_frame *frames, size_t capacity)
{
    static char name[64];
    static atomic_int last;
    (void)user_data;
    if (capacity < 1)
        return 0;
    const int line = atomic_fetch_add(&last, 1);
    snprintf(name, sizeof name, "a_function_of_a_program_%d", line);
    frames[0] = (tcuda_frame) { .name = name, .filename = "program.c", .line = line };
    return 1;
}

static void start_history(void)
{
    tcuda_history_options options = TCUDA_INIT(tcuda_history_options);
    options.max_entries = 100;
    options.frames = frames_of;
    options.flags = TCUDA_RECORD_HOST;
    CHECK_OK(tcuda_memory_record_history(TCUDA_HISTORY_ALL, &options));
}

static void stop_history(void)
{
    CHECK_OK(tcuda_memory_record_history(TCUDA_HISTORY_OFF, NULL));
}

static void history_round(int64_t number)
{
    void *pinned = NULL;
    void *const block = allocate(1000, 0, NULL);
    CHECK_OK(tcuda_host_malloc(1000, &pinned));
    CHECK_OK(tcuda_host_free(pinned));
    CHECK_OK(tcuda_free(block));
    if (number % (1 << 16) == (1 << 16) - 1)
        start_history(); /* anew */
}

static void snapshot_round(int64_t number)
{
    (void)number;
    tcuda_memory_snapshot *snapshot = NULL;
    size_t needed = 0;
    void *const block = allocate(1000, 0, NULL);
    CHECK_OK(tcuda_memory_snapshot_create(1, &snapshot));
    CHECK_OK(tcuda_memory_snapshot_json(snapshot, NULL, 0, &needed));
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    CHECK_OK(tcuda_free(block));
}

static void scope_round(int64_t number)
{
    (void)number;
    tcuda_memory_statistics stats = TCUDA_INIT(tcuda_memory_statistics);
    size_t needed = 0;
    CHECK_OK(tcuda_memory_stats_push(0));
    CHECK_OK(tcuda_free(allocate(1000, 0, NULL)));
    CHECK_OK(tcuda_memory_stats_pop(0, &stats));
    CHECK_OK(tcuda_memory_stats_json(0, NULL, 0, &needed));
}

static void start_uncached(void)
{
    CHECK_OK(tcuda_memory_caching_enable(0));
}

static void uncached_round(int64_t number)
{
    CHECK_OK(tcuda_free(allocate((size_t)(number % 9 + 1) * 100000, 0, NULL)));
}

static void reported(void *user_data, const tcuda_sanitizer_report *report)
{
    (void)user_data, (void)report;
}

static void start_sanitizer(void)
{
    tcuda_sanitizer_options options = TCUDA_INIT(tcuda_sanitizer_options);
    options.max_reports = 10;
    options.report = reported;
    options.frames = frames_of;
    CHECK_OK(tcuda_sanitizer_enable(&options));
}

static void stop_sanitizer(void)
{
    CHECK_OK(tcuda_sanitizer_disable());
}

/* Blocks, streams and events under the sanitizer. */
static void watched(bool is_race)
{
    tcuda_stream *const stream = create_stream(0), *const other = create_stream(0);
    tcuda_event *const event = create_event(0);
    void *const block = allocate(4096, 0, stream);
    fill_bytes(block, 1, 4096, stream);
    CHECK_OK(tcuda_event_record(event, stream));
    CHECK_OK(tcuda_event_wait(event, other));
    fill_bytes(block, 2, 1000, other);
    if (is_race)
        fill_bytes(block, 3, 500, stream); /* nothing orders these two */
    CHECK_OK(tcuda_stream_wait_stream(stream, other));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_OK(tcuda_stream_destroy(other));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void sanitizer_round(int64_t number)
{
    (void)number;
    watched(false);
}

/* What is not ordered is remembered until the host has waited for it. */
static void race_round(int64_t number)
{
    watched(true);
    if (number % 16 == 0)
        CHECK_OK(tcuda_device_synchronize(0));
}

/* Streams of the host's own, under the sanitizer. */
static void external_watched_round(int64_t number)
{
    struct CUstream_st *const native = make_native_stream();
    tcuda_stream *stream = NULL;
    CHECK_OK(tcuda_stream_from_external(0, native, &stream));
    void *const block = allocate(4096, 0, stream);
    fill_bytes(block, 1, 4096, stream);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_stream_destroy(stream));
    end_native_stream(native);
    if (number % 16 == 0)
        CHECK_OK(tcuda_memory_empty_cache());
}

/* Written and read through pinned memory. */
static void file_round(int64_t number)
{
    size_t done = 0;
    tcuda_file *file = NULL;
    (void)number;
    CHECK_OK(tcuda_file_open("/dev/zero",
        TCUDA_FILE_READ | TCUDA_FILE_WRITE | TCUDA_FILE_STAGING, &file));
    void *const block = allocate(4096, 0, NULL);
    CHECK_OK(tcuda_file_write(file, block, 4096, 0, NULL, &done));
    CHECK_OK(tcuda_file_read(file, block, 4096, 0, NULL, &done));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_file_close(file));
}

static void ignore(void *user_data, const tcuda_memory_event *event)
{
    (void)user_data, (void)event;
}

static int32_t accept(void *user_data, struct CUstream_st *stream)
{
    (void)user_data, (void)stream;
    return 1;
}

/* A listener, a context of compilation, and a pool by its numbers, to which streams are routed. */
static void event_round(int64_t number)
{
    tcuda_observer *observer = NULL;
    tcuda_mem_pool *pool = NULL;
    CHECK_OK(tcuda_memory_on_event(ignore, NULL, NULL, &observer));
    CHECK_OK(tcuda_mem_pool_from_id(0, 1 + (uint64_t)number % 100, NULL, &pool));
    CHECK_OK(tcuda_mem_pool_begin_streams(pool, 0, accept, NULL, NULL));
    CHECK_OK(tcuda_memory_compile_context_push("0/0"));
    CHECK_OK(tcuda_free(allocate(1000, 0, NULL)));
    CHECK_OK(tcuda_memory_compile_context_pop());
    if (number % 2 == 0)
        CHECK_OK(tcuda_mem_pool_end_streams(pool, 0));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_observer_destroy(observer));
    if (number % 16 == 0)
        CHECK_OK(tcuda_memory_empty_cache());
}

static void watching_round(int64_t number)
{
    (void)number;
    start_sanitizer();
    watched(false);
    stop_sanitizer();
}

const kind memory_kinds[] = {
    { "pools", pool_round, .share = 4 },
    { "sleeping pools", sleeping_pool_round, .share = 4 },
    { "pools of torch", torch_round, .share = 4 },
    { "allocators of hosts", allocator_round, .share = 1 },
    { "observers", observer_round, .share = 1 },
    { "allocations", allocation_round, .share = 1 },
    { "blocks of all sizes", size_round, .end = end_sizes },
    { "blocks without cache", uncached_round, .begin = start_uncached },
    { "pinned memory", pinned_round, .share = 1 },
    { "files", file_round, .share = 4 },
    { "memory events", event_round, .share = 4 },
    { "history", history_round, .begin = start_history, .end = stop_history,
        .heap_kib = 512 },
    { "snapshots", snapshot_round, .share = 4, .heap_kib = 512 },
    { "statistics", scope_round, .share = 1 },
    { "sanitizer", sanitizer_round, .begin = start_sanitizer, .end = stop_sanitizer,
        .heap_kib = 512 },
    { "sanitizer, races", race_round, .begin = start_sanitizer, .end = stop_sanitizer,
        .heap_kib = 512 },
    { "sanitizer, external", external_watched_round, .share = 4, .begin = start_sanitizer,
        .end = stop_sanitizer, .heap_kib = 512 },
    { "sanitizer, on and off", watching_round, .share = 4 },
    { NULL, NULL, .share = 0 },
};
