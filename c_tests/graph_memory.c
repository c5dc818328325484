/* The memory of graphs: private pools, pinned memory, and what stays reserved until the last
 * replay is over. */
#include "graph.h"

struct request {
    tcuda_stream *stream;
    unsigned char *block;
};

static void *allocate_on_a_thread(void *user_data)
{
    struct request *request = user_data;
    request->block = allocate(PAGE, TCUDA_CURRENT_DEVICE, request->stream);
    return NULL;
}

/* A block of a pool that was freed is the next one of that pool, and of no other. */
static void memory_comes_from_the_pool(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_stream *branch = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_graph *graph = create_graph(0), *next = create_graph(0);
    tcuda_mem_pool *pool = NULL;
    uint64_t id0 = 0, id1 = 1;
    CHECK_OK(tcuda_memory_empty_cache());
    const uint64_t before = reserved();

    begin(graph, stream);
    struct request elsewhere = {stream, NULL};
    unsigned char *block = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    unsigned char *large = allocate(30 * MIB, TCUDA_CURRENT_DEVICE, stream);
    run_on_thread(allocate_on_a_thread, &elsewhere);
    CHECK_OK(tcuda_stream_wait_stream(branch, stream));
    unsigned char *of_branch = allocate(PAGE, TCUDA_CURRENT_DEVICE, branch);
    fill_bytes(of_branch, 1, PAGE, branch);
    fill_bytes(large, 1, 30 * MIB, stream);
    CHECK_OK(tcuda_stream_wait_stream(stream, branch));
    CHECK_OK(tcuda_free(block));
    end(graph);
    CHECK_OK(tcuda_graph_pool(graph, &pool));
    CHECK_OK(tcuda_mem_pool_id(pool, &id0, &id1));
    CHECK(id0 > 0 && id1 == 0);
    CHECK_OK(tcuda_free(elsewhere.block));
    CHECK_OK(tcuda_free(of_branch));
    CHECK_OK(tcuda_free(large));

    /* No other allocation gets it, and it is not released. */
    const uint64_t held = reserved();
    CHECK(held >= before + 30 * MIB);
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(reserved(), held);
    unsigned char *outside = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    CHECK(outside != block && outside != elsewhere.block && outside != of_branch);
    CHECK_OK(tcuda_free(outside));
    replay(graph, stream);
    CHECK_EQ(count_other_bytes(large, 1, 30 * MIB, stream), 0);

    /* Another graph of this pool does. */
    CHECK_OK(tcuda_graph_capture_begin(next, stream, pool, TCUDA_CAPTURE_THREAD_LOCAL));
    unsigned char *again = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    CHECK(again == block || again == elsewhere.block);
    CHECK_OK(tcuda_free(again));
    end(next);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK(reserved() >= before + 30 * MIB);
    CHECK_OK(tcuda_graph_destroy(next));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK(reserved() <= before);
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(branch));
}

/* Of a thread's own pool and a capture, the one that began later counts; the graph keeps both. */
static void pools_nest_with_captures(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_graph *graph = create_graph(0);
    tcuda_mem_pool *pool = NULL, *inner = NULL;
    CHECK_OK(tcuda_graph_pool_handle(&pool));
    CHECK_OK(tcuda_mem_pool_create(NULL, 0, &inner));
    CHECK_OK(tcuda_mem_pool_begin(inner, TCUDA_CURRENT_DEVICE));
    unsigned char *of_inner = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    CHECK_OK(tcuda_free(of_inner));
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, pool, TCUDA_CAPTURE_GLOBAL));
    unsigned char *captured = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    CHECK(captured != of_inner);
    CHECK_OK(tcuda_mem_pool_end(inner, TCUDA_CURRENT_DEVICE));
    CHECK_OK(tcuda_mem_pool_begin(inner, TCUDA_CURRENT_DEVICE));
    unsigned char *again = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    CHECK(again == of_inner);
    fill_bytes(again, 7, PAGE, stream);
    CHECK_OK(tcuda_mem_pool_end(inner, TCUDA_CURRENT_DEVICE));
    CHECK_OK(tcuda_free(captured));
    CHECK_OK(tcuda_free(again));
    end(graph);
    CHECK_OK(tcuda_mem_pool_destroy(inner));
    CHECK_OK(tcuda_memory_empty_cache());
    replay(graph, stream);
    CHECK_EQ(count_other_bytes(again, 7, PAGE, stream), 0);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static uint64_t active_pinned(void)
{
    tcuda_host_memory_statistics stats = TCUDA_INIT(tcuda_host_memory_statistics);
    CHECK_OK(tcuda_host_memory_empty_cache());
    CHECK_OK(tcuda_host_memory_stats(&stats));
    return stats.active_requests.current;
}

static unsigned char *pinned(size_t bytes)
{
    void *ptr = NULL;
    CHECK_OK(tcuda_host_malloc(bytes, &ptr));
    return ptr;
}

/* Pinned memory that graphs read is kept until the last of them is gone, freed or not. */
static void pinned_memory_is_kept_as_long_as_graphs(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_stream *other = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *memory = allocate(100, TCUDA_CURRENT_DEVICE, stream);
    unsigned char *read = pinned(100), *live = pinned(100);
    tcuda_graph *graphs[2] = {create_graph(0), create_graph(0)};
    memset(read, 5, 100);
    memset(live, 6, 100);
    const uint64_t before = active_pinned();
    for (int i = 0; i < 2; i++) {
        begin(graphs[i], stream);
        CHECK_OK(tcuda_copy(memory, live, 100, stream));
        CHECK_OK(tcuda_copy(memory, read, 100, stream));
        end(graphs[i]);
    }
    CHECK_OK(tcuda_host_free(read));
    CHECK_EQ(active_pinned(), before);
    replay(graphs[0], other);
    CHECK_EQ(count_other_bytes(memory, 5, 100, other), 0);
    CHECK_OK(tcuda_graph_destroy(graphs[0]));
    CHECK_EQ(active_pinned(), before);
    gate held;
    gate_close(&held, other);
    replay(graphs[1], other);
    CHECK_OK(tcuda_graph_destroy(graphs[1]));
    if (runs_late()) {
        /* The launch still reads it. */
        tcuda_host_memory_statistics stats = TCUDA_INIT(tcuda_host_memory_statistics);
        unsigned char *meanwhile = pinned(100);
        CHECK(meanwhile != read);
        CHECK_OK(tcuda_host_memory_stats(&stats));
        CHECK_EQ(stats.active_requests.current, before + 1);
        CHECK_OK(tcuda_host_free(meanwhile));
    }
    gate_open(&held);
    CHECK_OK(tcuda_stream_synchronize(other));
    CHECK_EQ(active_pinned(), before - 1);
    CHECK_OK(tcuda_host_free(live));
    CHECK_EQ(active_pinned(), before - 2);
    CHECK_OK(tcuda_free(memory));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(other));
}

/* The memory of a graph that is gone stays reserved until its last replay is over, wherever that
 * ran. */
static void memory_waits_for_the_last_replay(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_stream *elsewhere = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *result = allocate(8 * MIB, TCUDA_CURRENT_DEVICE, elsewhere);
    fill_bytes(result, 0, 8 * MIB, elsewhere);
    for (int round = 0; round < 4; round++) {
        tcuda_graph *graph = create_graph(0), *next = create_graph(0);
        begin(graph, stream);
        unsigned char *block = allocate(8 * MIB, TCUDA_CURRENT_DEVICE, stream);
        fill_bytes(block, 1, 8 * MIB, stream);
        CHECK_OK(tcuda_copy(result, block, 8 * MIB, stream));
        CHECK_OK(tcuda_free(block));
        end(graph);
        gate held;
        gate_close(&held, elsewhere);
        replay(graph, elsewhere);
        CHECK_OK(tcuda_graph_destroy(graph));
        /* Another graph may get it: what that does comes after the replay. */
        begin(next, stream);
        unsigned char *again = allocate(8 * MIB, TCUDA_CURRENT_DEVICE, stream);
        fill_bytes(again, 2, 8 * MIB, stream);
        CHECK_OK(tcuda_free(again));
        end(next);
        replay(next, stream);
        gate_open(&held);
        CHECK_EQ(count_other_bytes(result, 1, 8 * MIB, elsewhere), 0);
        CHECK_OK(tcuda_graph_destroy(next));
        CHECK_OK(tcuda_memory_empty_cache());
    }
    CHECK_OK(tcuda_free(result));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(elsewhere));
}

/* The same while the stream on which it runs is captured, where no wait for it is possible: what it
 * held stays until that is over. */
static void memory_waits_beside_captures(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_stream *elsewhere = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_graph *graph = create_graph(0), *next = create_graph(0), *beside = create_graph(0);
    unsigned char *result = allocate(8 * MIB, TCUDA_CURRENT_DEVICE, elsewhere);
    fill_bytes(result, 0, 8 * MIB, elsewhere);
    begin(graph, stream);
    unsigned char *block = allocate(8 * MIB, TCUDA_CURRENT_DEVICE, stream);
    fill_bytes(block, 1, 8 * MIB, stream);
    CHECK_OK(tcuda_copy(result, block, 8 * MIB, stream));
    CHECK_OK(tcuda_free(block));
    end(graph);
    gate held;
    gate_close(&held, elsewhere);
    replay(graph, elsewhere);
    begin(beside, elsewhere);
    CHECK_OK(tcuda_graph_destroy(graph));
    begin(next, stream);
    unsigned char *again = allocate(8 * MIB, TCUDA_CURRENT_DEVICE, stream);
    CHECK(again != block);
    CHECK_OK(tcuda_free(again));
    end(next);
    end(beside);
    gate_open(&held);
    CHECK_EQ(count_other_bytes(result, 1, 8 * MIB, elsewhere), 0);
    CHECK_OK(tcuda_graph_destroy(next));
    CHECK_OK(tcuda_graph_destroy(beside));
    CHECK_OK(tcuda_free(result));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(elsewhere));
}

/* A graph that is destroyed while a stream on which it ran is captured: what it held goes later. */
static void graphs_go_beside_captures(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_stream *other = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_graph *first = create_graph(0), *second = create_graph(0);
    CHECK_OK(tcuda_memory_empty_cache());
    const uint64_t before = reserved();
    begin(first, stream);
    unsigned char *block = allocate(8 * MIB, TCUDA_CURRENT_DEVICE, stream);
    fill_bytes(block, 1, 8 * MIB, stream);
    CHECK_OK(tcuda_free(block));
    end(first);
    replay(first, other);
    begin(second, other);
    CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_graph_replay(first, other));
    CHECK(strstr(tcuda_last_error(), "tcuda_graph_replay") != NULL);
    CHECK_OK(tcuda_graph_destroy(first));
    end(second);
    CHECK_OK(tcuda_graph_destroy(second));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(reserved(), before);
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(other));
}

static void *grow_on_a_thread(void *user_data)
{
    struct request *request = user_data;
    request->block = allocate(64 * MIB, 0, request->stream);
    return NULL;
}

/* Memory is mapped during a capture of any mode, by the thread that captures and by a new thread
 * without a context, and the capture stays valid. */
static void memory_grows_beside_captures(void)
{
    for (tcuda_capture_mode mode = TCUDA_CAPTURE_GLOBAL; mode <= TCUDA_CAPTURE_RELAXED; mode++) {
        tcuda_stream *stream = create_stream(0), *other = create_stream(0);
        tcuda_graph *graph = create_graph(0);
        struct request elsewhere = {other, NULL};
        unsigned char *result = allocate(PAGE, 0, stream);
        fill_bytes(result, 0, PAGE, stream);
        CHECK_OK(tcuda_memory_empty_cache());
        const uint64_t before = reserved();

        CHECK_OK(tcuda_graph_capture_begin(graph, stream, NULL, mode));
        fill_bytes(result, 1, PAGE, stream);
        run_on_thread(grow_on_a_thread, &elsewhere);
        const uint64_t after_thread = reserved();
        CHECK(after_thread >= before + 64 * MIB);
        unsigned char *here = allocate(64 * MIB, 0, other);
        CHECK(reserved() >= after_thread + 64 * MIB);
        end(graph);

        replay(graph, stream);
        CHECK_EQ(count_other_bytes(result, 1, PAGE, stream), 0);
        fill_bytes(here, 2, 64 * MIB, other);
        fill_bytes(elsewhere.block, 3, 64 * MIB, other);
        CHECK_EQ(count_other_bytes(here, 2, 64 * MIB, other), 0);
        CHECK_OK(tcuda_free(here));
        CHECK_OK(tcuda_free(elsewhere.block));
        CHECK_OK(tcuda_free(result));
        CHECK_OK(tcuda_graph_destroy(graph));
        CHECK_OK(tcuda_memory_empty_cache());
        CHECK_OK(tcuda_stream_destroy(stream));
        CHECK_OK(tcuda_stream_destroy(other));
    }
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_device_set(0));
    memory_comes_from_the_pool();
    pools_nest_with_captures();
    pinned_memory_is_kept_as_long_as_graphs();
    memory_waits_for_the_last_replay();
    memory_waits_beside_captures();
    graphs_go_beside_captures();
    memory_grows_beside_captures();
    return finish();
}
