/* Streams, threads, events and the work in them. */
#include "soak.h"

static tcuda_stream *stream_of_all;

static void with_stream(void)
{
    bool available = false;
    CHECK_OK(tcuda_is_available(&available));
    if (available)
        stream_of_all = create_stream(0);
}

static void without_stream(void)
{
    CHECK_OK(tcuda_stream_destroy(stream_of_all));
}

struct CUstream_st *make_native_stream(void)
{
    static int (*make)(struct CUstream_st **stream, unsigned flags, int priority);
    struct CUstream_st *native = NULL;
    if (make == NULL) {
        void *address = NULL;
        CHECK_OK(tcuda_init());
        CHECK_OK(tcuda_device_set(0));
        CHECK_OK(tcuda_backend_function("cuStreamCreateWithPriority", &address));
        memcpy(&make, &address, sizeof make);
    }
    CHECK_EQ(make(&native, 1, 0), 0);
    return native;
}

void end_native_stream(struct CUstream_st *native)
{
    static int (*end)(struct CUstream_st *stream);
    if (end == NULL) {
        void *address = NULL;
        CHECK_OK(tcuda_backend_function("cuStreamDestroy", &address));
        memcpy(&end, &address, sizeof end);
    }
    CHECK_EQ(end(native), 0);
}

/* A small block and a large one, written and given back. */
static void use_memory(tcuda_stream *stream)
{
    void *const small = allocate(1000, 0, stream), *const large = allocate(3 * MIB, 0, stream);
    fill_bytes(small, 1, 1000, stream);
    CHECK_OK(tcuda_free(large));
    CHECK_OK(tcuda_free(small));
}

static void stream_round(int64_t number)
{
    tcuda_stream *const stream = create_stream(0);
    use_memory(stream);
    if (number % 8 == 0)
        CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void external_round(int64_t number)
{
    (void)number;
    struct CUstream_st *const native = make_native_stream();
    tcuda_stream *stream = NULL;
    CHECK_OK(tcuda_stream_from_external(0, native, &stream));
    CHECK_OK(tcuda_stream_destroy(stream));
    end_native_stream(native);
}

static void external_memory_round(int64_t number)
{
    struct CUstream_st *const native = make_native_stream();
    tcuda_stream *stream = NULL;
    CHECK_OK(tcuda_stream_from_external(0, native, &stream));
    use_memory(stream);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_stream_destroy(stream));
    end_native_stream(native);
    if (number % 16 == 0)
        CHECK_OK(tcuda_memory_empty_cache());
}

/* What a request does on a thread of its own: another stream is current, a call fails, memory comes
 * and goes. */
static void *thread_body(void *argument)
{
    tcuda_stream *const stream = create_stream(0), *previous = NULL;
    size_t reserved = 0;
    int32_t device = 0;
    CHECK_OK(tcuda_stream_exchange(stream, &previous, &device));
    use_memory(NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_memory_reserved(99, &reserved));
    CHECK_OK(tcuda_stream_synchronize(NULL));
    CHECK_OK(tcuda_stream_destroy(stream));
    return argument;
}

static void thread_round(int64_t number)
{
    (void)number;
    run_on_thread(thread_body, NULL);
}

static void *per_thread_body(void *argument)
{
    tcuda_stream *stream = NULL;
    struct CUstream_st *per_thread = NULL;
    const uintptr_t named = 2; /* CU_STREAM_PER_THREAD */
    memcpy(&per_thread, &named, sizeof per_thread);
    CHECK_OK(tcuda_stream_from_external(0, per_thread, &stream));
    use_memory(stream);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_stream_destroy(stream));
    return argument;
}

static void per_thread_round(int64_t number)
{
    run_on_thread(per_thread_body, NULL);
    if (number % 16 == 0)
        CHECK_OK(tcuda_memory_empty_cache());
}

/* Scopes and pools that a thread opens and leaves open. */
static void *forgetful_body(void *pool)
{
    CHECK_OK(tcuda_memory_stats_push(0));
    CHECK_OK(tcuda_memory_stats_push(0));
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    CHECK_OK(tcuda_nvtx_range_push("request", NULL));
    return NULL;
}

static tcuda_mem_pool *pool_of_all;

static void begin_forgetful(void)
{
    bool available = false;
    CHECK_OK(tcuda_is_available(&available));
    if (available)
        CHECK_OK(tcuda_mem_pool_create(NULL, 0, &pool_of_all));
}

static void end_forgetful(void)
{
    CHECK_OK(tcuda_mem_pool_destroy(pool_of_all));
}

static void forgetful_round(int64_t number)
{
    (void)number;
    run_on_thread(forgetful_body, pool_of_all);
}

static void *no_call(void *argument)
{
    return argument;
}

static void plain_thread_round(int64_t number)
{
    (void)number;
    run_on_thread(no_call, NULL);
}

static void event_round(int64_t number)
{
    tcuda_event *const event = create_event(number % 2 == 0 ? TCUDA_EVENT_TIMING : 0);
    CHECK_OK(tcuda_event_record(event, stream_of_all));
    CHECK_OK(tcuda_event_wait(event, NULL));
    CHECK_OK(tcuda_event_synchronize(event));
    CHECK_OK(tcuda_event_destroy(event));
}

static void ipc_event_round(int64_t number)
{
    (void)number;
    tcuda_event *const event = create_event(TCUDA_EVENT_INTERPROCESS);
    tcuda_ipc_event_handle handle;
    CHECK_OK(tcuda_event_ipc_handle(event, &handle));
    CHECK_OK(tcuda_event_record(event, stream_of_all));
    CHECK_OK(tcuda_event_synchronize(event));
    CHECK_OK(tcuda_event_destroy(event));
}

static void ended(void *user_data)
{
    ++*(int64_t *)user_data;
}

static void callback_round(int64_t number)
{
    static int64_t calls;
    CHECK_OK(tcuda_stream_add_callback(stream_of_all, ended, &calls, NULL));
    CHECK_OK(tcuda_stream_synchronize(stream_of_all));
    CHECK_EQ(calls, number + 1);
}

static void copy_round(int64_t number)
{
    (void)number;
    char bytes[256] = "";
    void *const block = allocate(sizeof bytes, 0, stream_of_all);
    CHECK_OK(tcuda_copy(block, bytes, sizeof bytes, stream_of_all));
    CHECK_OK(tcuda_copy(bytes, block, sizeof bytes, stream_of_all));
    CHECK_OK(tcuda_stream_synchronize(stream_of_all));
    CHECK_OK(tcuda_free(block));
}

/* Memory that other streams use. */
static void record_round(int64_t number)
{
    tcuda_stream *const other = create_stream(0);
    void *const block = allocate((size_t)(number % 7 + 1) * 1000, 0, stream_of_all);
    CHECK_OK(tcuda_stream_wait_stream(other, stream_of_all));
    fill_bytes(block, 1, 100, other);
    CHECK_OK(tcuda_record_stream(block, other));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_stream_synchronize(other));
    CHECK_OK(tcuda_stream_destroy(other));
}

static void logged(void *user_data, tcuda_log_level level, const char *message)
{
    (void)user_data, (void)level, (void)message;
}

static int64_t destroyed;

static void count_destroyed(void *user_data)
{
    (void)user_data;
    destroyed++;
}

static void settings_round(int64_t number)
{
    size_t needed = 0;
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_ERROR, logged, &destroyed, count_destroyed));
    CHECK_OK(tcuda_allocator_config_set(number % 2 == 0 ? "garbage_collection_threshold:0.8"
                                                        : "max_split_size_mb:64"));
    CHECK_OK(tcuda_allocator_config_get(NULL, 0, &needed));
    CHECK_OK(tcuda_memory_fraction_set(0, number % 2 == 0 ? 0.5 : 1.0));
    CHECK_OK(tcuda_sync_debug_mode_set(0));
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL));
}

static void whole_life_round(int64_t number)
{
    size_t live = 0;
    tcuda_stream *const stream = create_stream(0);
    use_memory(stream);
    void *pinned = NULL;
    CHECK_OK(tcuda_host_malloc(1000, &pinned));
    if (number % 2 == 0)
        CHECK_OK(tcuda_stream_destroy(stream)); /* else the shutdown does it */
    CHECK_OK(tcuda_shutdown(&live));
}

/* Seeds that are set before the library is initialised. */
static void seed_round(int64_t number)
{
    size_t live = 0;
    CHECK_OK(tcuda_random_manual_seed((int32_t)(number % 3), (uint64_t)number));
    CHECK_OK(tcuda_random_manual_seed_all((uint64_t)number));
    if (number % 64 == 0)
        CHECK_OK(tcuda_shutdown(&live));
}

/* Handles that no longer name anything. */
static void stale_round(int64_t number)
{
    (void)number;
    bool done = false;
    tcuda_event *const event = create_event(0);
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_event_query(event, &done));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_event_destroy(event));
}

static void range_round(int64_t number)
{
    (void)number;
    uint64_t id = 0;
    CHECK_OK(tcuda_nvtx_range_push("step", NULL));
    CHECK_OK(tcuda_nvtx_range_pop(NULL));
    CHECK_OK(tcuda_nvtx_range_start("phase", &id));
    CHECK_OK(tcuda_nvtx_range_end(id));
    CHECK_OK(tcuda_nvtx_device_range_start("phase", stream_of_all, &id));
    CHECK_OK(tcuda_nvtx_device_range_end(id, stream_of_all));
}

#define ON_A_STREAM .begin = with_stream, .end = without_stream

const kind work_kinds[] = {
    { "streams", stream_round, .share = 1 },
    { "external streams", external_round, .share = 1 },
    { "external with memory", external_memory_round, .share = 4 },
    { "threads", thread_round, .share = 4 },
    { "threads, no call", plain_thread_round, .share = 4 },
    { "per-thread streams", per_thread_round, .share = 4 },
    { "threads, open scopes", forgetful_round, .share = 4, .begin = begin_forgetful,
        .end = end_forgetful },
    { "events", event_round, ON_A_STREAM },
    { "interprocess events", ipc_event_round, .share = 4, ON_A_STREAM },
    { "host functions", callback_round, .share = 4, ON_A_STREAM },
    { "copies", copy_round, ON_A_STREAM },
    { "recorded streams", record_round, ON_A_STREAM },
    { "stale handles", stale_round, .share = 1 },
    { "settings", settings_round, .share = 1 },
    { "ranges", range_round, ON_A_STREAM },
    { "seeds before the start", seed_round, .share = 4 },
    { "lives of the library", whole_life_round, .share = 10 },
    { NULL, NULL, .share = 0 },
};
