/* Pools that another library names by two numbers, their flags after the creation, and routes to
 * pools by streams, as PyTorch's allocator uses them. */
#define _POSIX_C_SOURCE 200809L
#include "torch.h"

enum { RELAXED = 2, MOST = 16 };

static struct {
    int (*create)(struct CUstream_st **stream, unsigned flags, int priority);
    int (*destroy)(struct CUstream_st *stream);
    int (*begin)(struct CUstream_st *stream, int mode);
    int (*end)(struct CUstream_st *stream, struct CUgraph_st **graph);
    int (*status)(struct CUstream_st *stream, int *status);
    int (*destroy_graph)(struct CUgraph_st *graph);
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
    find("cuStreamIsCapturing", &driver.status);
    find("cuGraphDestroy", &driver.destroy_graph);
}

static tcuda_mem_pool *pool_of_id(uint64_t id0, uint64_t id1)
{
    tcuda_mem_pool *pool = NULL;
    CHECK_OK(tcuda_mem_pool_from_id(id0, id1, NULL, &pool));
    CHECK(pool != NULL);
    return pool;
}

static uint32_t uses(tcuda_mem_pool *pool)
{
    uint32_t count = 0;
    CHECK_OK(tcuda_mem_pool_use_count(pool, &count));
    return count;
}

static bool is_in(const void *ptr, tcuda_mem_pool *pool)
{
    tcuda_pool_block blocks[MOST];
    size_t count = MOST + 1;
    CHECK_OK(tcuda_mem_pool_blocks(pool, 0, blocks, MOST, &count));
    CHECK(count <= MOST);
    for (size_t i = 0; i < count; i++) {
        if (blocks[i].ptr == ptr)
            return true;
    }
    return false;
}

static bool allocates_in(tcuda_mem_pool *pool, tcuda_stream *stream)
{
    void *const block = allocate(1000, 0, stream);
    const bool found = is_in(block, pool);
    CHECK_OK(tcuda_free(block));
    return found;
}

/* ---- Filters ---- */

typedef struct wanted {
    struct CUstream_st *stream;
    atomic_int calls;
    atomic_int destroyed;
    atomic_int inside; /* status of a call that the filter made */
} wanted;

static int32_t accepts(void *user_data, struct CUstream_st *stream)
{
    wanted *const set = user_data;
    void *ptr = NULL;
    atomic_fetch_add(&set->calls, 1);
    atomic_store(&set->inside, (int)tcuda_malloc(1, 0, NULL, &ptr));
    return stream == set->stream;
}

static void destroyed(void *user_data)
{
    atomic_fetch_add(&((wanted *)user_data)->destroyed, 1);
}

static void route(tcuda_mem_pool *pool, wanted *set)
{
    CHECK_OK(tcuda_mem_pool_begin_streams(pool, 0, accepts, set, destroyed));
}

typedef struct on_thread {
    tcuda_mem_pool *pool;
    tcuda_stream *stream;
    bool found;
} on_thread;

static void *allocate_there(void *argument)
{
    on_thread *const at = argument;
    at->found = allocates_in(at->pool, at->stream);
    return NULL;
}

static void streams_have_the_pool_on_all_threads(void)
{
    tcuda_stream *const stream = create_stream(0), *const other = create_stream(0);
    tcuda_mem_pool *const pool = pool_of_id(0, 7), *inner = NULL;
    wanted set = { .stream = native_of(stream) };
    CHECK_OK(tcuda_mem_pool_create(NULL, 0, &inner));
    route(pool, &set);
    CHECK_EQ(uses(pool), 2);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE,
        tcuda_mem_pool_begin_streams(pool, 0, accepts, &set, destroyed));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_mem_pool_begin_streams(inner, 0, NULL, &set, destroyed));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE,
        tcuda_mem_pool_begin_streams(inner, 99, accepts, &set, destroyed));
    CHECK_EQ(set.destroyed, 0);

    CHECK(allocates_in(pool, stream));
    CHECK_EQ(set.calls, 1);
    CHECK_EQ(set.inside, TCUDA_STATUS_INVALID_STATE);
    CHECK(!allocates_in(pool, other));
    on_thread there = { .pool = pool, .stream = stream };
    run_on_thread(allocate_there, &there);
    CHECK(there.found);

    /* What began last counts. */
    CHECK_OK(tcuda_mem_pool_begin(inner, 0));
    CHECK(allocates_in(inner, stream));
    wanted both = { .stream = native_of(stream) };
    tcuda_mem_pool *const newest = pool_of_id(0, 8);
    route(newest, &both);
    CHECK(allocates_in(newest, stream) && allocates_in(inner, other));
    CHECK_OK(tcuda_mem_pool_end_streams(newest, 0));
    CHECK_EQ(both.destroyed, 1);
    CHECK(allocates_in(inner, stream));
    CHECK_OK(tcuda_mem_pool_end(inner, 0));
    CHECK(allocates_in(pool, stream));

    /* Any handle of the pool ends it. */
    tcuda_mem_pool *const again = pool_of_id(0, 7);
    CHECK_OK(tcuda_mem_pool_end_streams(again, 0));
    CHECK_EQ(set.destroyed, 1);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_mem_pool_end_streams(pool, 0));
    const int calls = set.calls;
    CHECK(!allocates_in(pool, stream));
    CHECK_EQ(set.calls, calls);

    /* So does the end of the handle that began it. */
    route(pool, &set);
    CHECK_OK(tcuda_mem_pool_destroy(again));
    CHECK(allocates_in(pool, stream));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_EQ(set.destroyed, 2);
    CHECK_OK(tcuda_mem_pool_destroy(newest));
    CHECK_OK(tcuda_mem_pool_destroy(inner));
    CHECK_OK(tcuda_stream_destroy(other));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* Threads allocate while routes to two pools come and go: each block is in one of the three. */
enum { THREADS = 3, ROUNDS = 200 };

static atomic_bool is_over;

static void *allocate_on(void *stream)
{
    while (!atomic_load(&is_over))
        CHECK_OK(tcuda_free(allocate(1000, 0, stream)));
    return NULL;
}

static void routes_may_change_under_threads(void)
{
    tcuda_stream *const stream = create_stream(0);
    tcuda_mem_pool *const pools[2] = { pool_of_id(0, 1), pool_of_id(1, 0) };
    wanted sets[2] = { { .stream = native_of(stream) }, { .stream = native_of(stream) } };
    pthread_t threads[THREADS];
    atomic_store(&is_over, false);
    for (int i = 0; i < THREADS; i++)
        threads[i] = start_thread(allocate_on, stream);
    const int rounds = under_adversary() ? ROUNDS / 10 : ROUNDS;
    for (int round = 0; round < rounds; round++) {
        route(pools[round % 2], &sets[round % 2]);
        CHECK_OK(tcuda_free(allocate(1000, 0, stream)));
        CHECK_OK(tcuda_mem_pool_end_streams(pools[round % 2], 0));
    }
    /* A pool that ends, whose memory serves the next one. */
    wanted last = { .stream = native_of(stream) };
    for (int round = 0; round < rounds; round++) {
        tcuda_mem_pool *pool = NULL;
        CHECK_OK(tcuda_mem_pool_create(NULL, 0, &pool));
        route(pool, &last);
        CHECK_OK(tcuda_free(allocate(1000, 0, stream)));
        CHECK_OK(tcuda_mem_pool_destroy(pool));
    }
    atomic_store(&is_over, true);
    for (int i = 0; i < THREADS; i++)
        join_thread(threads[i]);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(sets[i].destroyed, rounds / 2);
        CHECK_OK(tcuda_mem_pool_destroy(pools[i]));
    }
    CHECK_EQ(last.destroyed, rounds);
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* ---- Captures, as PyTorch makes them ---- */

static int32_t is_captured(void *user_data, struct CUstream_st *stream)
{
    int status = 0;
    (void)user_data;
    CHECK_EQ(driver.status(stream, &status), 0);
    return status != 0;
}

static void a_capture_of_the_host_has_the_pool(void)
{
    struct CUstream_st *native = NULL, *outside = NULL;
    struct CUgraph_st *graph = NULL;
    tcuda_stream *stream = NULL;
    CHECK_EQ(driver.create(&native, 1, 0), 0);
    CHECK_EQ(driver.create(&outside, 1, 0), 0);
    CHECK_OK(tcuda_stream_from_external(0, native, &stream));
    tcuda_mem_pool *const pool = pool_of_id(5, 0);
    CHECK_OK(tcuda_mem_pool_begin_streams(pool, 0, is_captured, NULL, NULL));
    CHECK_EQ(driver.begin(native, RELAXED), 0);
    tcuda_torch_mark_capture_begin(0);
    void *const inside = allocate(5 * MIB, 0, stream);
    CHECK(is_in(inside, pool));
    void *const by_torch = torch_malloc(1000, 0, native);
    CHECK(is_in(by_torch, pool));
    void *const beside = torch_malloc(1000, 0, outside);
    CHECK(!is_in(beside, pool));
    void *ptr = NULL;
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc((size_t)1 << 46, 0, NULL, &ptr));
    CHECK(in_segments() || strstr(tcuda_last_error(), "captur") != NULL);
    CHECK_OK(tcuda_free(inside));
    torch_free(by_torch);
    torch_free(beside);
    CHECK_EQ(driver.end(native, &graph), 0);
    tcuda_torch_mark_capture_end(0);
    expect_silence();
    tcuda_torch_mark_capture_end(0);
    expect_line("no capture is marked");
    CHECK_OK(tcuda_mem_pool_end_streams(pool, 0));
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc((size_t)1 << 46, 0, NULL, &ptr));
    CHECK(strstr(tcuda_last_error(), "captur") == NULL);

    /* Replays write the unused memory of the pool: it stays as long as the pool does. */
    const size_t with_pool = reserved();
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK(with_pool >= 5 * MIB && reserved() >= 5 * MIB);
    CHECK_EQ(driver.destroy_graph(graph), 0);
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(reserved(), 0);
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_EQ(driver.destroy(native), 0);
    CHECK_EQ(driver.destroy(outside), 0);
}

/* ---- Pools by numbers ---- */

static void numbers_name_a_pool_while_it_lives(void)
{
    tcuda_mem_pool *const pool = pool_of_id(0, 77), *const same = pool_of_id(0, 77);
    tcuda_mem_pool *const of_graph = pool_of_id(77, 0), *unset = NULL;
    CHECK(pool != same && uses(pool) == 2 && uses(of_graph) == 1);
    uint64_t id0 = 1, id1 = 1;
    CHECK_OK(tcuda_mem_pool_id(of_graph, &id0, &id1));
    CHECK(id0 == 77 && id1 == 0);

    /* PyTorch's hooks find it as well. */
    tcuda_torch_begin_allocate_to_pool(0, 0, 77, NULL);
    void *const block = torch_malloc(1000, 0, NULL);
    tcuda_torch_end_allocate_to_pool(0, 0, 77);
    expect_silence();
    CHECK(is_in(block, pool) && is_in(block, same) && !is_in(block, of_graph));
    CHECK_EQ(uses(pool), 3);
    tcuda_torch_release_pool(0, 0, 77);
    CHECK_EQ(uses(pool), 2);
    const char *const key = "reserved_bytes_by_private_pools.0_77.all.current";
    CHECK(stat_of(key) > 0);
    torch_free(block);

    CHECK_OK(tcuda_mem_pool_destroy(same));
    CHECK_EQ(uses(pool), 1);
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    tcuda_mem_pool *const later = pool_of_id(0, 77);
    CHECK_EQ(uses(later), 1);
    CHECK(allocates_in(of_graph, NULL) == false);
    CHECK_OK(tcuda_mem_pool_destroy(later));
    CHECK_OK(tcuda_mem_pool_destroy(of_graph));

    const uint64_t wrong[][2] = { { 0, 0 }, { 1, 1 }, { (uint64_t)1 << 30, 0 },
        { 0, (uint64_t)1 << 30 }, { UINT64_MAX, UINT64_MAX } };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
            tcuda_mem_pool_from_id(wrong[i][0], wrong[i][1], NULL, &unset));
    }
    CHECK(unset == NULL);
}

static void *no_memory(ptrdiff_t bytes, int32_t device, struct CUstream_st *stream)
{
    (void)bytes, (void)device, (void)stream;
    return NULL;
}

static void no_free(void *ptr, ptrdiff_t bytes, int32_t device, struct CUstream_st *stream)
{
    (void)ptr, (void)bytes, (void)device, (void)stream;
}

static void only_a_new_pool_takes_an_allocator(void)
{
    tcuda_pluggable_allocator *allocator = NULL;
    tcuda_mem_pool *pool = NULL, *unset = NULL;
    void *ptr = NULL;
    CHECK_OK(tcuda_pluggable_allocator_create(no_memory, no_free, &allocator));
    CHECK_OK(tcuda_mem_pool_from_id(0, 9, allocator, &pool));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_mem_pool_from_id(0, 9, allocator, &unset));
    CHECK(unset == NULL && uses(pool) == 1);
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc(100, 0, NULL, &ptr));
    CHECK_OK(tcuda_mem_pool_end(pool, 0));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_pluggable_allocator_destroy(allocator));
}

static void flags_may_be_set_later(void)
{
    tcuda_mem_pool *const pool = pool_of_id(0, 3);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_mem_pool_set_flags(pool, 4));
    CHECK_OK(tcuda_memory_empty_cache());
    if (on_simulator()) { /* takes all memory */
        size_t unused = 0, total = 0;
        CHECK_OK(tcuda_memory_info(0, &unused, &total));
        const size_t most = unused - 8 * MIB;
        CHECK_OK(tcuda_mem_pool_begin(pool, 0));
        void *const block = allocate(most, 0, NULL);
        CHECK_OK(tcuda_mem_pool_end(pool, 0));
        CHECK_OK(tcuda_free(block));
        CHECK_OK(tcuda_mem_pool_set_flags(pool, TCUDA_MEM_POOL_USE_ON_OOM));
        void *const other = allocate(most, 0, NULL);
        CHECK(other == block && is_in(other, pool));
        CHECK_OK(tcuda_free(other));
        CHECK_OK(tcuda_mem_pool_set_flags(pool, 0));
    }
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    void *const split = allocate(1000, 0, NULL);
    CHECK_OK(tcuda_mem_pool_set_flags(pool, TCUDA_MEM_POOL_NO_SPLIT));
    const uint64_t before = stat_of("allocated_bytes.all.current");
    void *const whole = allocate(1000, 0, NULL);
    const uint64_t bytes = stat_of("allocated_bytes.all.current") - before;
    CHECK(bytes == 2 * MIB || (in_segments() && bytes == 2 * MIB - 1024)); /* the rest of one */
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_mem_pool_set_flags(pool, 0));
    CHECK_OK(tcuda_mem_pool_set_flags(pool, TCUDA_MEM_POOL_NO_SPLIT | TCUDA_MEM_POOL_USE_ON_OOM));
    CHECK_OK(tcuda_mem_pool_end(pool, 0));
    CHECK(is_in(split, pool) && is_in(whole, pool));
    CHECK_OK(tcuda_free(whole));
    CHECK_OK(tcuda_free(split));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
}

/* What is left to shutdown. */
static wanted left;

int main(void)
{
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_set_log_callback(TCUDA_LOG_ERROR, take_line, NULL, NULL));
    find_driver();
    CHECK_OK(tcuda_device_set(0));
    a_capture_of_the_host_has_the_pool();
    streams_have_the_pool_on_all_threads();
    routes_may_change_under_threads();
    numbers_name_a_pool_while_it_lives();
    only_a_new_pool_takes_an_allocator();
    flags_may_be_set_later();
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(reserved(), 0);
    tcuda_mem_pool *const pool = pool_of_id(0, 2);
    tcuda_mem_pool *const other = pool_of_id(0, 2);
    route(pool, &left);
    size_t live_handles = 0;
    CHECK_OK(tcuda_mem_pool_destroy(other));
    CHECK_EQ(left.destroyed, 0);
    CHECK_OK(tcuda_shutdown(&live_handles));
    CHECK_EQ(live_handles, 1); /* that of `pool` */
    CHECK_EQ(left.destroyed, 1);
    return EXIT_SUCCESS;
}
