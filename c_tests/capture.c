/* The library's own work never breaks, or becomes part of, a capture that a host has under way: a
 * stream is captured by the driver, in every mode, while the allocator does all that it does. What
 * a host asks to be recorded is recorded, and runs when the graph is launched. */
#define _POSIX_C_SOURCE 200809L
#include "support.h"

enum { GLOBAL, THREAD_LOCAL, RELAXED };

typedef struct CUgraph_st graph;
typedef struct CUgraphExec_st executable;

static struct {
    int (*create)(struct CUstream_st **stream, unsigned flags, int priority);
    int (*destroy)(struct CUstream_st *stream);
    int (*begin)(struct CUstream_st *stream, int mode);
    int (*end)(struct CUstream_st *stream, graph **graph);
    int (*status)(struct CUstream_st *stream, int *status);
    int (*nodes)(graph *graph, void **nodes, size_t *count);
    int (*instantiate)(executable **exec, graph *graph, unsigned long long flags);
    int (*launch)(executable *exec, struct CUstream_st *stream);
    int (*destroy_graph)(graph *graph);
    int (*destroy_exec)(executable *exec);
} driver;

/* As dlsym, it gives an object pointer, and C has no cast from one to a function. */
static void find(const char *name, void *function)
{
    void *address = NULL;
    CHECK_OK(tcuda_backend_function(name, &address));
    CHECK(address != NULL);
    memcpy(function, &address, sizeof address);
}

static void find_driver(void)
{
    find("cuStreamCreateWithPriority", &driver.create);
    find("cuStreamDestroy", &driver.destroy);
    find("cuStreamBeginCapture", &driver.begin);
    find("cuStreamEndCapture", &driver.end);
    find("cuStreamIsCapturing", &driver.status);
    find("cuGraphGetNodes", &driver.nodes);
    find("cuGraphInstantiateWithFlags", &driver.instantiate);
    find("cuGraphLaunch", &driver.launch);
    find("cuGraphDestroy", &driver.destroy_graph);
    find("cuGraphExecDestroy", &driver.destroy_exec);
}

static void begin(struct CUstream_st *stream, int mode)
{
    CHECK_EQ(driver.begin(stream, mode), 0);
}

static bool is_under_way(struct CUstream_st *stream)
{
    int status = -1;
    CHECK_EQ(driver.status(stream, &status), 0);
    return status == 1;
}

/* Ends a capture that nothing has broken; it has so many nodes. */
static graph *end(struct CUstream_st *stream, size_t expected)
{
    graph *made = NULL;
    CHECK(is_under_way(stream));
    CHECK_EQ(driver.end(stream, &made), 0);
    size_t nodes = 99;
    CHECK_EQ(driver.nodes(made, NULL, &nodes), 0);
    CHECK_EQ(nodes, expected);
    return made;
}

static void end_empty(struct CUstream_st *stream)
{
    CHECK_EQ(driver.destroy_graph(end(stream, 0)), 0);
}

static uint64_t active(void)
{
    uint64_t value = 0;
    CHECK_OK(tcuda_memory_stat(TCUDA_CURRENT_DEVICE, "active.all.current", &value));
    return value;
}

/* Growing, reuse, waiting for streams, giving back: with `captured` among the streams in use. */
static void allocate_in_every_way(tcuda_stream *captured, tcuda_stream *other)
{
    static const size_t sizes[] = {512, 70000, 3 << 20, 90 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *own, *shared, *foreign;
        CHECK_OK(tcuda_malloc(sizes[i], TCUDA_CURRENT_DEVICE, captured, &own));
        CHECK_OK(tcuda_malloc(sizes[i], TCUDA_CURRENT_DEVICE, other, &shared));
        CHECK_OK(tcuda_malloc(sizes[i], TCUDA_CURRENT_DEVICE, other, &foreign));
        /* Freed while `captured` may still use it: its event must not be recorded there now. */
        CHECK_OK(tcuda_record_stream(shared, captured));
        CHECK_OK(tcuda_free(shared));
        CHECK_OK(tcuda_record_stream(own, other));
        CHECK_OK(tcuda_free(own));
        CHECK_OK(tcuda_malloc(sizes[i], TCUDA_CURRENT_DEVICE, other, &own));
        CHECK_OK(tcuda_free(own));
        CHECK_OK(tcuda_free(foreign));
    }
    CHECK_OK(tcuda_memory_empty_cache());
    size_t free_bytes, total_bytes;
    CHECK_OK(tcuda_memory_info(TCUDA_CURRENT_DEVICE, &free_bytes, &total_bytes));
}

struct streams {
    tcuda_stream *captured, *other;
};

static void *allocate_on_a_thread(void *user_data)
{
    const struct streams *streams = user_data;
    allocate_in_every_way(streams->captured, streams->other);
    return NULL;
}

static void the_allocator_leaves_captures_alone(void)
{
    for (int mode = GLOBAL; mode <= RELAXED; mode++) {
        struct streams streams = {create_stream(TCUDA_CURRENT_DEVICE),
            create_stream(TCUDA_CURRENT_DEVICE)};
        struct CUstream_st *native = native_of(streams.captured);
        begin(native, mode);
        allocate_in_every_way(streams.captured, streams.other);
        /* A capture of another thread forbids more than one's own. */
        run_on_thread(allocate_on_a_thread, &streams);
        /* What the captured stream may use waits for the end of the capture. */
        CHECK(active() > 0);
        end_empty(native);
        /* With the capture over, everything moves on. */
        CHECK_OK(tcuda_memory_empty_cache());
        CHECK_EQ(active(), 0);
        CHECK_OK(tcuda_stream_destroy(streams.captured));
        CHECK_OK(tcuda_stream_destroy(streams.other));
    }
}

/* While a stream that it waits for is captured, nothing may touch the default stream. */
static void the_allocator_leaves_the_default_stream_alone(void)
{
    tcuda_stream *legacy, *other = create_stream(TCUDA_CURRENT_DEVICE);
    CHECK_OK(tcuda_stream_default(TCUDA_CURRENT_DEVICE, &legacy));
    struct CUstream_st *blocking;
    CHECK_EQ(driver.create(&blocking, 0, 0), 0);
    begin(blocking, GLOBAL);
    allocate_in_every_way(legacy, other);
    CHECK(active() > 0);
    end_empty(blocking);
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(active(), 0);
    CHECK_EQ(driver.destroy(blocking), 0);
    CHECK_OK(tcuda_stream_destroy(other));
}

/* The driver's number of a captured stream cannot be asked for: that breaks the capture. */
static void captured_streams_are_known_by_their_handles(void)
{
    tcuda_stream *pooled = create_stream(TCUDA_CURRENT_DEVICE), *known, *again = NULL;
    struct CUstream_st *foreign, *stranger, *native = native_of(pooled);
    CHECK_EQ(driver.create(&foreign, 1, 0), 0);
    CHECK_EQ(driver.create(&stranger, 1, 0), 0);
    CHECK_OK(tcuda_stream_from_external(TCUDA_CURRENT_DEVICE, foreign, &known));
    begin(native, GLOBAL);
    begin(foreign, GLOBAL);
    begin(stranger, GLOBAL);

    CHECK_OK(tcuda_stream_from_external(TCUDA_CURRENT_DEVICE, native, &again));
    CHECK_EQ(id_of(again), id_of(pooled));
    CHECK_OK(tcuda_stream_destroy(again));
    CHECK_OK(tcuda_stream_from_external(TCUDA_CURRENT_DEVICE, foreign, &again));
    CHECK_EQ(id_of(again), id_of(known));
    CHECK_OK(tcuda_stream_destroy(again));
    CHECK_STATUS(TCUDA_STATUS_CAPTURING,
        tcuda_stream_from_external(TCUDA_CURRENT_DEVICE, stranger, &again));

    end_empty(native);
    end_empty(foreign);
    end_empty(stranger);
    CHECK_OK(tcuda_stream_from_external(TCUDA_CURRENT_DEVICE, stranger, &again));
    CHECK_OK(tcuda_stream_destroy(again));
    CHECK_OK(tcuda_stream_destroy(known));
    CHECK_OK(tcuda_stream_destroy(pooled));
    CHECK_EQ(driver.destroy(foreign), 0);
    CHECK_EQ(driver.destroy(stranger), 0);
}

/* The handle means another stream on each thread, so that without a number it is unknown which. */
static void a_threads_own_stream_is_not_known_while_it_is_captured(void)
{
    struct CUstream_st *const own = (struct CUstream_st *)(uintptr_t)2;
    tcuda_stream *known, *again = NULL;
    CHECK_OK(tcuda_stream_from_external(TCUDA_CURRENT_DEVICE, own, &known));
    begin(own, GLOBAL);
    CHECK_STATUS(TCUDA_STATUS_CAPTURING,
        tcuda_stream_from_external(TCUDA_CURRENT_DEVICE, own, &again));
    CHECK(again == NULL);
    end_empty(own);
    CHECK_OK(tcuda_stream_from_external(TCUDA_CURRENT_DEVICE, own, &again));
    CHECK_OK(tcuda_stream_destroy(again));
    CHECK_OK(tcuda_stream_destroy(known));
}

static void illegal_calls_have_a_status_of_their_own(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_event *event = create_event(0);
    struct CUstream_st *native = native_of(stream);
    graph *made = NULL;
    bool done;

    begin(native, GLOBAL);
    CHECK_OK(tcuda_event_record(event, stream));
    CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_event_query(event, &done));
    CHECK_STATUS(TCUDA_STATUS_CAPTURE_INVALIDATED, tcuda_event_record(event, stream));
    CHECK_EQ(driver.end(native, &made), 901);
    CHECK(made == NULL);

    begin(native, RELAXED);
    CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_stream_synchronize(stream));
    CHECK_EQ(driver.end(native, &made), 901);
    begin(native, RELAXED);
    CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_device_synchronize(TCUDA_CURRENT_DEVICE));
    CHECK_EQ(driver.end(native, &made), 901);

    CHECK_OK(tcuda_event_record(event, stream));
    CHECK_OK(tcuda_event_synchronize(event));
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void what_is_recorded_runs_at_each_launch(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_stream *branch = create_stream(TCUDA_CURRENT_DEVICE);
    struct CUstream_st *native = native_of(stream);
    unsigned char *bytes = allocate(3 * 4096, TCUDA_CURRENT_DEVICE, stream);
    fill_bytes(bytes, 1, 3 * 4096, stream);
    CHECK_OK(tcuda_stream_synchronize(stream));

    begin(native, GLOBAL);
    fill_bytes(bytes, 2, 4096, stream);
    CHECK_OK(tcuda_stream_wait_stream(branch, stream));
    fill_bytes(bytes + 4096, 3, 4096, branch);
    CHECK_OK(tcuda_stream_wait_stream(stream, branch));
    CHECK_OK(tcuda_copy(bytes + 2 * 4096, bytes + 4096, 4096, stream));
    graph *made = end(native, 3);
    CHECK_EQ(count_other_bytes(bytes, 1, 3 * 4096, stream), 0);

    executable *exec;
    CHECK_EQ(driver.instantiate(&exec, made, 0), 0);
    CHECK_EQ(driver.destroy_graph(made), 0);
    for (int launch = 0; launch < 3; launch++) {
        fill_bytes(bytes, 9, 3 * 4096, stream);
        CHECK_EQ(driver.launch(exec, native), 0);
        CHECK_EQ(count_other_bytes(bytes, 2, 4096, stream), 0);
        CHECK_EQ(count_other_bytes(bytes + 4096, 3, 2 * 4096, stream), 0);
    }
    CHECK_EQ(driver.destroy_exec(exec), 0);
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(branch));
}

static void ignore(void *user_data) { (void)user_data; }

/* There is no notice that a foreign graph is gone: its captures get no host functions. */
static void host_functions_are_refused(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    struct CUstream_st *native = native_of(stream);
    begin(native, THREAD_LOCAL);
    CHECK_STATUS(TCUDA_STATUS_CAPTURING,
        tcuda_stream_add_callback(stream, ignore, NULL, ignore));
    CHECK(strstr(tcuda_last_error(), "a host function runs once, and a graph many times") != NULL);
    end_empty(native);
    CHECK_OK(tcuda_stream_destroy(stream));
}

static uint64_t active_pinned(void)
{
    tcuda_host_memory_statistics stats = TCUDA_INIT(tcuda_host_memory_statistics);
    CHECK_OK(tcuda_host_memory_stats(&stats));
    return stats.active_requests.current;
}

static unsigned char *pinned(size_t bytes)
{
    void *ptr = NULL;
    CHECK_OK(tcuda_host_malloc(bytes, &ptr));
    return ptr;
}

/* What a graph reads at each launch is never another's, although it was freed; what was not used in
 * it is. The capture goes on, whatever the cache of pinned memory does. */
static void pinned_memory_of_a_graph_is_kept(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_stream *other = create_stream(TCUDA_CURRENT_DEVICE);
    struct CUstream_st *native = native_of(stream);
    unsigned char *memory = allocate(100, TCUDA_CURRENT_DEVICE, stream);
    unsigned char *read = pinned(100), *earlier = pinned(100);
    memset(read, 5, 100);
    CHECK_OK(tcuda_host_record(earlier, stream));

    begin(native, GLOBAL);
    CHECK_OK(tcuda_copy(memory, read, 100, stream));
    unsigned char *unused = pinned(3 << 20);
    CHECK_OK(tcuda_host_free(unused));
    CHECK(pinned(3 << 20) == unused);
    CHECK_OK(tcuda_host_record(unused, other));
    CHECK_OK(tcuda_host_free(unused));
    CHECK_OK(tcuda_host_free(read));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_host_free(read));
    /* Nothing is recorded on a stream while it is captured: this one waits for the end. */
    CHECK_OK(tcuda_host_free(earlier));
    CHECK_OK(tcuda_host_memory_empty_cache());
    unsigned char *meanwhile = pinned(100);
    CHECK(meanwhile != earlier && meanwhile != read);
    graph *made = end(native, 1);
    CHECK_OK(tcuda_host_free(meanwhile));
    CHECK_OK(tcuda_stream_synchronize(other));
    CHECK_OK(tcuda_host_memory_empty_cache());
    CHECK_EQ(active_pinned(), 1);

    unsigned char *blocks[10];
    for (int i = 0; i < 10; i++) {
        blocks[i] = pinned(100);
        memset(blocks[i], 6, 100);
    }
    executable *exec;
    CHECK_EQ(driver.instantiate(&exec, made, 0), 0);
    CHECK_EQ(driver.launch(exec, native), 0);
    CHECK_EQ(count_other_bytes(memory, 5, 100, stream), 0);
    for (int i = 0; i < 10; i++)
        CHECK_OK(tcuda_host_free(blocks[i]));
    CHECK_EQ(driver.destroy_exec(exec), 0);
    CHECK_EQ(driver.destroy_graph(made), 0);
    CHECK_OK(tcuda_free(memory));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(other));
}

/* An external event is a node of its own: recorded and waited for at each launch, and no captured
 * stream follows another by it. Outside of a capture it is as any other. */
static void external_events_order_graphs(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_stream *other = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_event *event = create_event(TCUDA_EVENT_EXTERNAL);
    unsigned char *bytes = allocate(2 * 4096, TCUDA_CURRENT_DEVICE, stream);
    graph *made[2];
    executable *execs[2];
    fill_bytes(bytes, 1, 2 * 4096, stream);
    CHECK_OK(tcuda_event_record(event, stream));
    CHECK_OK(tcuda_stream_wait_event(other, event));
    CHECK_OK(tcuda_stream_synchronize(other));
    CHECK(is_reached(event));

    begin(native_of(stream), GLOBAL);
    fill_bytes(bytes, 2, 4096, stream);
    CHECK_OK(tcuda_event_record(event, stream));
    made[0] = end(native_of(stream), 2);
    begin(native_of(other), GLOBAL);
    CHECK_OK(tcuda_stream_wait_event(other, event));
    CHECK_OK(tcuda_copy(bytes + 4096, bytes, 4096, other));
    made[1] = end(native_of(other), 2);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(driver.instantiate(&execs[i], made[i], 0), 0);
        CHECK_EQ(driver.destroy_graph(made[i]), 0);
    }
    CHECK_EQ(driver.launch(execs[0], native_of(stream)), 0);
    CHECK_EQ(driver.launch(execs[1], native_of(other)), 0);
    CHECK_EQ(count_other_bytes(bytes + 4096, 2, 4096, other), 0);
    CHECK_OK(tcuda_event_synchronize(event));
    CHECK_OK(tcuda_stream_synchronize(stream));
    for (int i = 0; i < 2; i++)
        CHECK_EQ(driver.destroy_exec(execs[i]), 0);
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(other));
}

/* Copies between devices name contexts, which would break a capture; with peer access they need
 * not. */
static void copies_between_devices_are_recorded(void)
{
    bool possible = false;
    if (num_devices() < 2) return;
    CHECK_OK(tcuda_device_can_access_peer(0, 1, &possible));
    if (!possible) return;
    tcuda_stream *stream = create_stream(0), *other = create_stream(1);
    struct CUstream_st *native = native_of(stream);
    unsigned char *here = allocate(4096, 0, stream), *there = allocate(4096, 1, other);
    fill_bytes(here, 1, 4096, stream);
    fill_bytes(there, 2, 4096, other);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_stream_synchronize(other));

    begin(native, GLOBAL);
    CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_copy(there, here, 4096, stream));
    CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_copy(here, there, 4096, stream));
    CHECK_STATUS(TCUDA_STATUS_CAPTURING,
        tcuda_copy_2d(there, 64, here, 64, 32, 8, stream));
    end_empty(native);

    CHECK_OK(tcuda_device_enable_peer_access(0, 1));
    begin(native, GLOBAL);
    CHECK_OK(tcuda_copy(there, here, 2048, stream));
    CHECK_OK(tcuda_copy_2d(there + 2048, 64, here, 64, 32, 8, stream));
    graph *made = end(native, 2);
    executable *exec;
    CHECK_EQ(driver.instantiate(&exec, made, 0), 0);
    CHECK_EQ(count_other_bytes(there, 2, 4096, other), 0);
    CHECK_EQ(driver.launch(exec, native), 0);
    CHECK_OK(tcuda_stream_wait_stream(other, stream));
    CHECK_EQ(count_other_bytes(there, 1, 2048, other), 0);
    CHECK_EQ(count_other_bytes(there + 2048, 1, 32, other), 0);
    CHECK_EQ(count_other_bytes(there + 2080, 2, 32, other), 0);
    CHECK_EQ(driver.destroy_exec(exec), 0);
    CHECK_EQ(driver.destroy_graph(made), 0);
    CHECK_OK(tcuda_free(here));
    CHECK_OK(tcuda_free(there));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(other));
}

/* Its graph may write what was freed in a private pool: no other request gets that memory. */
static void pools_of_captures_are_kept(void)
{
    if (!on_simulator())
        return; /* takes all memory */
    CHECK_OK(tcuda_memory_empty_cache());
    tcuda_stream *const stream = create_stream(0);
    struct CUstream_st *const native = native_of(stream);
    tcuda_mem_pool *pool = NULL;
    size_t free_bytes = 0, total = 0;
    CHECK_OK(tcuda_memory_info(0, &free_bytes, &total));
    const size_t part = free_bytes / 16 / (2 << 20) * (2 << 20);
    CHECK_OK(tcuda_mem_pool_create(NULL, 0, &pool));
    for (int is_captured = 0; is_captured < 2; is_captured++) {
        if (is_captured)
            begin(native, GLOBAL);
        CHECK_OK(tcuda_mem_pool_begin(pool, 0));
        void *const block = allocate(10 * part, 0, stream), *other = NULL;
        CHECK_OK(tcuda_mem_pool_end(pool, 0));
        CHECK_OK(tcuda_free(block));
        if (is_captured) {
            end_empty(native);
            CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc(12 * part, 0, NULL, &other));
        } else {
            CHECK_OK(tcuda_free(allocate(12 * part, 0, NULL)));
            CHECK_OK(tcuda_memory_empty_cache());
        }
    }
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_free(allocate(12 * part, 0, NULL)));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void functions_have_names(void)
{
    void *address = &driver;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_backend_function(NULL, &address));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_backend_function("cuNothing", &address));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_backend_function("cuStreamBeginCapture_v2", &address));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_backend_function("cuMemMap", NULL));
    CHECK(address == &driver);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_device_set(0));
    find_driver();
    functions_have_names();
    the_allocator_leaves_captures_alone();
    the_allocator_leaves_the_default_stream_alone();
    captured_streams_are_known_by_their_handles();
    a_threads_own_stream_is_not_known_while_it_is_captured();
    illegal_calls_have_a_status_of_their_own();
    what_is_recorded_runs_at_each_launch();
    host_functions_are_refused();
    pinned_memory_of_a_graph_is_kept();
    pools_of_captures_are_kept();
    external_events_order_graphs();
    copies_between_devices_are_recorded();
    return finish();
}
