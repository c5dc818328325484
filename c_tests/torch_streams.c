/* Streams that others made, as PyTorch does, and where allocations on them go while they are
 * captured. */
#define _POSIX_C_SOURCE 200809L

#include "torch.h"

enum { GLOBAL = 0 };

typedef struct CUgraph_st graph;
typedef struct CUgraphExec_st executable;

static struct {
    int (*create)(struct CUstream_st **stream, unsigned flags, int priority);
    int (*destroy)(struct CUstream_st *stream);
    int (*begin)(struct CUstream_st *stream, int mode);
    int (*end)(struct CUstream_st *stream, graph **graph);
    int (*destroy_graph)(graph *graph);
    int (*instantiate)(executable **exec, graph *graph, unsigned long long flags);
    int (*launch)(executable *exec, struct CUstream_st *stream);
    int (*destroy_exec)(executable *exec);
    int (*memset)(unsigned long long address, unsigned char value, size_t bytes,
        struct CUstream_st *stream);
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
    find("cuStreamCreateWithPriority", &driver.create);
    find("cuStreamDestroy", &driver.destroy);
    find("cuStreamBeginCapture", &driver.begin);
    find("cuStreamEndCapture", &driver.end);
    find("cuGraphDestroy", &driver.destroy_graph);
    find("cuGraphInstantiateWithFlags", &driver.instantiate);
    find("cuGraphLaunch", &driver.launch);
    find("cuGraphExecDestroy", &driver.destroy_exec);
    find("cuMemsetD8Async", &driver.memset);
}

/* Streams that PyTorch makes have memory of their own, the same at each call. */
static void streams_of_others_are_found_again(void)
{
    struct CUstream_st *foreign[2];
    void *first[2] = { NULL, NULL };
    for (int i = 0; i < 2; i++)
        CHECK_EQ(driver.create(&foreign[i], 1, 0), 0);
    for (int turn = 0; turn < 200; turn++) {
        for (int i = 0; i < 2; i++) {
            void *block = torch_malloc(700, 0, foreign[i]);
            CHECK(first[i] == NULL || first[i] == block);
            first[i] = block;
            torch_free(block);
        }
    }
    CHECK(first[0] != first[1]);
    CHECK_EQ(stat_of("segment.all.current"), 2);
    /* A handle of the host's that goes takes nothing along: the stream's work is waited for. */
    tcuda_stream *wrapped = NULL;
    CHECK_OK(tcuda_stream_from_external(0, foreign[0], &wrapped));
    CHECK_OK(tcuda_stream_destroy(wrapped));
    void *block = torch_malloc(700, 0, foreign[0]);
    CHECK(block == first[0]);
    for (int i = 0; i < 20; i++)
        CHECK_EQ(driver.memset((uintptr_t)block, 7, 700, foreign[0]), 0);
    torch_free(block);
    tcuda_torch_reset();
    CHECK_EQ(reserved(), 0);
    CHECK_OK(tcuda_device_synchronize(0));
    for (int i = 0; i < 2; i++)
        CHECK_EQ(driver.destroy(foreign[i]), 0);
    expect_silence();
}

/* A capture that begins as PyTorch begins one: the pool first, on a stream unknown to tcuda. */
static void begin_capture(struct CUstream_st *stream, uint64_t id0, uint64_t id1)
{
    tcuda_torch_begin_allocate_to_pool(0, id0, id1, NULL);
    expect_silence();
    CHECK_EQ(driver.begin(stream, GLOBAL), 0);
}

static graph *end_capture_of_graph(struct CUstream_st *stream, uint64_t id0, uint64_t id1)
{
    graph *made = NULL;
    CHECK_EQ(driver.end(stream, &made), 0);
    tcuda_torch_end_allocate_to_pool(0, id0, id1);
    expect_silence();
    return made;
}

static void end_capture(struct CUstream_st *stream, uint64_t id0, uint64_t id1)
{
    CHECK_EQ(driver.destroy_graph(end_capture_of_graph(stream, id0, id1)), 0);
}

static void *allocate_and_free(void *stream)
{
    void *block = torch_malloc(5 * MIB, 0, stream);
    torch_free(block);
    return block;
}

static void a_capture_has_memory_of_its_own(void)
{
    struct CUstream_st *stream = NULL, *other = NULL;
    CHECK_EQ(driver.create(&stream, 1, 0), 0);
    CHECK_EQ(driver.create(&other, 1, 0), 0);
    void *outside = torch_malloc(5 * MIB, 0, other);
    CHECK_EQ(pool_of(outside), 0);

    begin_capture(stream, 1, 0);
    void *inside = torch_malloc(5 * MIB, 0, stream);
    const uint64_t pool = pool_of(inside);
    CHECK(pool != 0);
    void *small = torch_malloc(100, 0, stream);
    CHECK_EQ(pool_of(small), pool);
    /* What is freed in a capture is there again in it, and nowhere else. */
    torch_free(inside);
    void *beside = torch_malloc(5 * MIB, 0, other);
    CHECK_EQ(pool_of(beside), 0);
    void *again = torch_malloc(5 * MIB, 0, stream);
    CHECK(again == inside);
    /* PyTorch runs backward passes on a thread of its own, on the same stream. */
    void *block = NULL;
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, allocate_and_free, stream), 0);
    CHECK_EQ(pthread_join(thread, &block), 0);
    CHECK_EQ(pool_of(block), pool);
    end_capture(stream, 1, 0);

    /* After it, the stream's memory is the shared one again; the pool's stays as it is. */
    void *after = torch_malloc(5 * MIB, 0, stream);
    CHECK_EQ(pool_of(after), 0);
    torch_free(again);
    torch_free(small);
    torch_free(after);
    torch_free(beside);
    torch_free(outside);
    tcuda_torch_reset();
    CHECK_EQ(pool_of(inside), pool);
    CHECK(reserved() >= 7 * MIB);

    /* A second capture into the same pool, and its end. */
    begin_capture(stream, 1, 0);
    again = torch_malloc(5 * MIB, 0, stream);
    CHECK_EQ(pool_of(again), pool);
    torch_free(again);
    end_capture(stream, 1, 0);
    tcuda_torch_release_pool(0, 1, 0);
    tcuda_torch_reset();
    CHECK(reserved() >= 7 * MIB);
    tcuda_torch_release_pool(0, 1, 0);
    tcuda_torch_reset();
    CHECK_EQ(reserved(), 0);
    CHECK_EQ(driver.destroy(stream), 0);
    CHECK_EQ(driver.destroy(other), 0);
    expect_silence();
}

/* Each of two captures at a time is known by what it allocates first. */
static void two_captures_have_two_pools(void)
{
    struct CUstream_st *streams[2];
    void *blocks[2];
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(driver.create(&streams[i], 1, 0), 0);
        begin_capture(streams[i], 10 + (uint64_t)i, 0);
        blocks[i] = torch_malloc(1000, 0, streams[i]);
    }
    CHECK(pool_of(blocks[0]) != pool_of(blocks[1]));
    for (int i = 0; i < 2; i++) {
        void *block = torch_malloc(1000, 0, streams[i]);
        CHECK_EQ(pool_of(block), pool_of(blocks[i]));
        torch_free(block);
        torch_free(blocks[i]);
    }
    for (int i = 0; i < 2; i++) {
        end_capture(streams[i], 10 + (uint64_t)i, 0);
        tcuda_torch_release_pool(0, 10 + (uint64_t)i, 0);
    }
    tcuda_torch_reset();
    CHECK_EQ(reserved(), 0);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(driver.destroy(streams[i]), 0);
    expect_silence();
}

static void *open_late(void *argument)
{
    sleep_ms(50);
    gate_open(argument);
    return NULL;
}

/* The memory of a graph that is gone stays until its last launch is over, on whatever stream that
 * is: neither another graph gets it, nor the driver. The pool is PyTorch's, or of the host. */
static void memory_waits_for_launches_elsewhere(bool of_host)
{
    struct CUstream_st *stream = NULL, *elsewhere = NULL;
    tcuda_stream *wrapped = NULL;
    tcuda_mem_pool *pool = NULL;
    CHECK_EQ(driver.create(&stream, 1, 0), 0);
    CHECK_EQ(driver.create(&elsewhere, 1, 0), 0);
    CHECK_OK(tcuda_stream_from_external(0, elsewhere, &wrapped));
    if (of_host) {
        CHECK_OK(tcuda_mem_pool_create(NULL, 0, &pool));
        CHECK_OK(tcuda_mem_pool_begin(pool, 0));
        CHECK_EQ(driver.begin(stream, GLOBAL), 0);
    } else {
        begin_capture(stream, 20, 0);
    }
    void *block = torch_malloc(8 * MIB, 0, stream);
    CHECK_EQ(driver.memset((uintptr_t)block, 7, 8 * MIB, stream), 0);
    graph *made = NULL;
    if (of_host) {
        CHECK_EQ(driver.end(stream, &made), 0);
        CHECK_OK(tcuda_mem_pool_end(pool, 0));
    } else {
        made = end_capture_of_graph(stream, 20, 0);
    }
    executable *exec = NULL;
    CHECK_EQ(driver.instantiate(&exec, made, 0), 0);
    CHECK_EQ(driver.launch(exec, elsewhere), 0);
    CHECK_OK(tcuda_stream_synchronize(wrapped));

    gate held;
    gate_close(&held, wrapped);
    CHECK_EQ(driver.launch(exec, elsewhere), 0);
    torch_free(block);
    if (of_host)
        CHECK_OK(tcuda_mem_pool_destroy(pool));
    else
        tcuda_torch_release_pool(0, 20, 0);
    CHECK_EQ(driver.destroy_exec(exec), 0);
    CHECK_EQ(driver.destroy_graph(made), 0);
    begin_capture(stream, 21, 0);
    void *other = torch_malloc(8 * MIB, 0, stream);
    CHECK(other != block);
    /* A wait would break the capture. */
    const size_t before = reserved();
    tcuda_torch_reset();
    CHECK_EQ(reserved(), before);
    torch_free(other);
    end_capture(stream, 21, 0);
    tcuda_torch_release_pool(0, 21, 0);

    pthread_t opener = start_thread(open_late, &held);
    tcuda_torch_reset();
    CHECK(atomic_load(&held.is_open) || !runs_late());
    CHECK_EQ(reserved(), 0);
    CHECK_EQ(pthread_join(opener, NULL), 0);
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_stream_destroy(wrapped));
    CHECK_EQ(driver.destroy(stream), 0);
    CHECK_EQ(driver.destroy(elsewhere), 0);
    expect_silence();
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_ERROR, take_line, NULL, NULL));
    CHECK_OK(tcuda_device_set(0));
    find_driver();
    /* First, while the driver has no address of a stream to use again. */
    a_capture_has_memory_of_its_own();
    streams_of_others_are_found_again();
    two_captures_have_two_pools();
    memory_waits_for_launches_elsewhere(false);
    memory_waits_for_launches_elsewhere(true);
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_OFF, NULL, NULL, NULL));
    return finish();
}
