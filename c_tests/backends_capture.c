/* backend:cudaMallocAsync while streams are captured: memory of a graph, and memory that must not
 * become part of one. */
#include "support.h"

enum { GLOBAL, THREAD_LOCAL, RELAXED };

static const size_t mib = 1 << 20;

static struct {
    int (*begin)(struct CUstream_st *stream, int mode);
    int (*end)(struct CUstream_st *stream, struct CUgraph_st **graph);
    int (*status)(struct CUstream_st *stream, int *status);
    int (*nodes)(struct CUgraph_st *graph, void **nodes, size_t *count);
    int (*instantiate)(struct CUgraphExec_st **exec, struct CUgraph_st *graph,
        unsigned long long flags);
    int (*launch)(struct CUgraphExec_st *exec, struct CUstream_st *stream);
    int (*destroy_graph)(struct CUgraph_st *graph);
    int (*destroy_exec)(struct CUgraphExec_st *exec);
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
    find("cuStreamBeginCapture", &driver.begin);
    find("cuStreamEndCapture", &driver.end);
    find("cuStreamIsCapturing", &driver.status);
    find("cuGraphGetNodes", &driver.nodes);
    find("cuGraphInstantiateWithFlags", &driver.instantiate);
    find("cuGraphLaunch", &driver.launch);
    find("cuGraphDestroy", &driver.destroy_graph);
    find("cuGraphExecDestroy", &driver.destroy_exec);
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

/* Ends a capture that nothing has broken; it has so many nodes. */
static struct CUgraph_st *end(tcuda_stream *stream, size_t expected)
{
    struct CUgraph_st *graph = NULL;
    size_t nodes = 99;
    int status = -1;
    CHECK_EQ(driver.status(native_of(stream), &status), 0);
    CHECK_EQ(status, 1);
    CHECK_EQ(driver.end(native_of(stream), &graph), 0);
    CHECK_EQ(driver.nodes(graph, NULL, &nodes), 0);
    CHECK_EQ(nodes, expected);
    return graph;
}

/* Allocations and frees in a capture are nodes of its graph, also where two streams used one. */
static void a_graph_has_its_own_memory(void)
{
    tcuda_stream *const stream = create_stream(0), *const other = create_stream(0);
    for (int joins = 0; joins < 2; joins++) {
        void *const result = allocate(mib, 0, stream);
        CHECK_EQ(driver.begin(native_of(stream), GLOBAL), 0);
        void *const block = allocate(mib, 0, stream);
        fill_bytes(block, 3, mib, stream);
        if (joins) {
            CHECK_OK(tcuda_stream_wait_stream(other, stream));
            CHECK_OK(tcuda_copy(result, block, mib, other));
            CHECK_OK(tcuda_record_stream(block, other));
        } else {
            CHECK_OK(tcuda_copy(result, block, mib, stream));
        }
        CHECK_OK(tcuda_free(block));
        CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(block));
        /* Allocated, filled, copied, freed. */
        struct CUgraph_st *const graph = end(stream, 4);
        struct CUgraphExec_st *exec = NULL;
        CHECK_EQ(driver.instantiate(&exec, graph, 0), 0);
        for (int i = 0; i < 2; i++) {
            fill_bytes(result, 0, mib, stream);
            CHECK_EQ(driver.launch(exec, native_of(stream)), 0);
            CHECK_EQ(count_other_bytes(result, 3, mib, stream), 0);
        }
        CHECK_EQ(driver.destroy_exec(exec), 0);
        CHECK_EQ(driver.destroy_graph(graph), 0);
        CHECK_OK(tcuda_free(result));
    }
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(other));
}

/* Freed in a capture, it would be freed by each launch: it waits, and goes when it can. */
static void what_no_graph_allocated_is_freed_after_the_capture(void)
{
    for (int mode = GLOBAL; mode <= RELAXED; mode++) {
        tcuda_stream *const stream = create_stream(0), *const other = create_stream(0);
        void *const own = allocate(mib, 0, stream), *const used = allocate(mib, 0, other);
        void *const free_at_once = allocate(mib, 0, other);
        CHECK_OK(tcuda_record_stream(used, stream));
        expect_warning("during graph capture");
        CHECK_EQ(driver.begin(native_of(stream), mode), 0);
        const uint64_t freed = calls_of("cuMemFreeAsync");
        CHECK_OK(tcuda_free(own));
        CHECK_OK(tcuda_free(used));
        CHECK_EQ(calls_of("cuMemFreeAsync"), freed);
        CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(own));
        CHECK_OK(tcuda_free(free_at_once));
        CHECK_EQ(calls_of("cuMemFreeAsync"), freed + 1);
        CHECK_OK(tcuda_memory_empty_cache());
        CHECK_EQ(calls_of("cuMemFreeAsync"), freed + 1);
        CHECK_EQ(driver.destroy_graph(end(stream, 0)), 0);
        CHECK_OK(tcuda_memory_empty_cache());
        CHECK_EQ(calls_of("cuMemFreeAsync"), freed + 3);
        /* Said once. */
        CHECK_EQ(warnings, mode == GLOBAL);
        uint64_t reserved = 1;
        CHECK_OK(tcuda_memory_stat(0, "reserved_bytes.all.current", &reserved));
        CHECK_EQ(reserved, 0);
        CHECK_OK(tcuda_stream_destroy(stream));
        CHECK_OK(tcuda_stream_destroy(other));
    }
}

/* A block that outlives its capture is there from the launch on, and is freed with a warning. */
static void what_a_graph_leaves_can_be_freed(void)
{
    tcuda_stream *const stream = create_stream(0);
    CHECK_EQ(driver.begin(native_of(stream), THREAD_LOCAL), 0);
    void *const block = allocate(mib, 0, stream);
    fill_bytes(block, 9, mib, stream);
    struct CUgraph_st *const graph = end(stream, 2);
    struct CUgraphExec_st *exec = NULL;
    CHECK_EQ(driver.instantiate(&exec, graph, 0), 0);
    CHECK_EQ(driver.launch(exec, native_of(stream)), 0);
    CHECK_EQ(count_other_bytes(block, 9, mib, stream), 0);
    expect_warning("uncaptured free of a captured allocation");
    CHECK_OK(tcuda_free(block));
    CHECK_EQ(warnings, 1);
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(block));
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_EQ(driver.destroy_exec(exec), 0);
    CHECK_EQ(driver.destroy_graph(graph), 0);
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* A block that a graph allocates, but that is not freed and that no launch has made, ends with the
 * graph: its address may be another's. */
static void what_went_with_a_graph_may_come_again(void)
{
    tcuda_stream *const stream = create_stream(0);
    void *seen[4];
    int again = 0;
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(driver.begin(native_of(stream), THREAD_LOCAL), 0);
        seen[i] = allocate(mib, 0, stream);
        for (int before = 0; before < i; before++)
            again += seen[before] == seen[i];
        CHECK_EQ(driver.destroy_graph(end(stream, 1)), 0);
    }
    if (on_simulator())
        CHECK(again > 0);
    CHECK_OK(tcuda_stream_destroy(stream));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_allocator_config_set("backend:cudaMallocAsync"));
    CHECK_OK(tcuda_device_set(0)); /* for what the driver is asked here */
    find_driver();
    a_graph_has_its_own_memory();
    what_no_graph_allocated_is_freed_after_the_capture();
    what_a_graph_leaves_can_be_freed();
    what_went_with_a_graph_may_come_again();
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL));
    return finish();
}
