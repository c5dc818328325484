/* Private pools: which threads use them, what stays apart, and when memory goes. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

#define MIB ((size_t)1 << 20)

typedef struct pool_id { uint64_t first, second; } pool_id;

static tcuda_mem_pool *create_pool(uint32_t flags)
{
    tcuda_mem_pool *pool = NULL;
    CHECK_OK(tcuda_mem_pool_create(NULL, flags, &pool));
    CHECK(pool != NULL);
    return pool;
}

static pool_id id_of_pool(tcuda_mem_pool *pool)
{
    pool_id id = { 77, 77 };
    CHECK_OK(tcuda_mem_pool_id(pool, &id.first, &id.second));
    return id;
}

/* The pool of the segment at `ptr`, or the number of segments where `ptr` is in none. */
static size_t find_segment(tcuda_memory_snapshot *snapshot, const void *ptr, pool_id *id)
{
    size_t segments = 0, blocks = 0;
    CHECK_OK(tcuda_memory_snapshot_counts(snapshot, &segments, &blocks));
    for (size_t i = 0; i < segments; i++) {
        tcuda_segment_info info = TCUDA_INIT(tcuda_segment_info);
        CHECK_OK(tcuda_memory_snapshot_segment(snapshot, i, &info));
        const uintptr_t first = (uintptr_t)info.ptr, byte = (uintptr_t)ptr;
        if (byte >= first && byte - first < info.total_bytes) {
            *id = (pool_id){ info.pool_id0, info.pool_id1 };
            return i;
        }
    }
    return segments;
}

static pool_id pool_of(const void *ptr)
{
    tcuda_memory_snapshot *snapshot = NULL;
    pool_id id = { 99, 99 };
    CHECK_OK(tcuda_memory_snapshot_create(0, &snapshot));
    find_segment(snapshot, ptr, &id);
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    return id;
}

static bool is_in(const void *ptr, tcuda_mem_pool *pool)
{
    const pool_id found = pool_of(ptr), id = id_of_pool(pool);
    return found.first == id.first && found.second == id.second;
}

static bool is_in_none(const void *ptr)
{
    const pool_id found = pool_of(ptr);
    return found.first == 0 && found.second == 0;
}

static void *allocate_in(tcuda_mem_pool *pool, size_t bytes, tcuda_stream *stream)
{
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    void *block = allocate(bytes, 0, stream);
    CHECK_OK(tcuda_mem_pool_end(pool, 0));
    return block;
}

static size_t reserved(void)
{
    size_t bytes = 0;
    CHECK_OK(tcuda_memory_reserved(0, &bytes));
    return bytes;
}

static void blocks_come_from_where_the_thread_is_routed(void)
{
    tcuda_mem_pool *outer = create_pool(0), *inner = create_pool(0);
    CHECK(id_of_pool(outer).first == 0 && id_of_pool(outer).second >= 1);
    CHECK(id_of_pool(inner).second > id_of_pool(outer).second);
    void *blocks[6];
    blocks[0] = allocate(1000, 0, NULL);
    CHECK_OK(tcuda_mem_pool_begin(outer, 0));
    blocks[1] = allocate(1000, 0, NULL);
    CHECK_OK(tcuda_mem_pool_begin(inner, TCUDA_CURRENT_DEVICE));
    blocks[2] = allocate(3 * MIB, 0, NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_mem_pool_end(outer, 0));
    CHECK_OK(tcuda_mem_pool_end(inner, 0));
    blocks[3] = allocate(3 * MIB, 0, NULL);
    CHECK_OK(tcuda_mem_pool_end(outer, 0));
    blocks[4] = allocate(3 * MIB, 0, NULL);
    CHECK(is_in_none(blocks[0]) && is_in(blocks[1], outer) && is_in(blocks[2], inner));
    CHECK(is_in(blocks[3], outer) && is_in_none(blocks[4]));
    /* A free block of a pool is for the pool alone. */
    CHECK_OK(tcuda_free(blocks[1]));
    blocks[1] = allocate(1000, 0, NULL);
    CHECK(is_in_none(blocks[1]));
    blocks[5] = allocate_in(outer, 1000, NULL);
    CHECK(is_in(blocks[5], outer));
    for (int i = 0; i < 6; i++) {
        fill_bytes(blocks[i], i + 1, 1000, NULL);
        CHECK_EQ(count_other_bytes(blocks[i], i + 1, 1000, NULL), 0);
        CHECK_OK(tcuda_free(blocks[i]));
    }
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_mem_pool_end(outer, 0));
    CHECK_OK(tcuda_mem_pool_destroy(outer));
    CHECK_OK(tcuda_mem_pool_destroy(inner));
}

static void each_stream_has_memory_of_its_own(void)
{
    tcuda_mem_pool *pool = create_pool(0);
    tcuda_stream *stream = create_stream(0);
    void *of_default = allocate_in(pool, 1000, NULL), *of_stream = allocate_in(pool, 1000, stream);
    CHECK_OK(tcuda_free(of_stream));
    CHECK(allocate_in(pool, 1000, stream) == of_stream);
    CHECK(is_in(of_default, pool) && is_in(of_stream, pool));
    CHECK_OK(tcuda_free(of_default));
    CHECK_OK(tcuda_free(of_stream));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void a_snapshot_of_a_pool_has_nothing_else(void)
{
    tcuda_mem_pool *pool = create_pool(0);
    void *outside = allocate(1000, 0, NULL), *inside = allocate_in(pool, 1000, NULL);
    tcuda_memory_snapshot *snapshot = NULL;
    size_t segments = 0, blocks = 0;
    pool_id id;
    CHECK_OK(tcuda_mem_pool_snapshot(pool, 0, &snapshot));
    CHECK_OK(tcuda_memory_snapshot_counts(snapshot, &segments, &blocks));
    CHECK_EQ(segments, 1);
    CHECK_EQ(find_segment(snapshot, inside, &id), 0);
    CHECK_EQ(find_segment(snapshot, outside, &id), 1);
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    CHECK_OK(tcuda_free(outside));
    CHECK_OK(tcuda_free(inside));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
}

static void memory_goes_when_nobody_needs_it(void)
{
    CHECK_OK(tcuda_memory_empty_cache());
    const size_t before = reserved();
    tcuda_mem_pool *pool = create_pool(0);
    const size_t whole = (in_segments() ? 20 : 8) * MIB;
    CHECK_OK(tcuda_free(allocate_in(pool, 8 * MIB, NULL)));
    CHECK_EQ(reserved() - before, whole);
    /* The cache of a live pool is its own business. */
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(reserved() - before, whole);
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_EQ(reserved(), before);
    /* Blocks outlive their pool. */
    pool = create_pool(0);
    void *block = allocate_in(pool, 8 * MIB, NULL);
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    fill_bytes(block, 5, 1000, NULL);
    CHECK_EQ(count_other_bytes(block, 5, 1000, NULL), 0);
    CHECK_EQ(reserved() - before, whole);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(reserved(), before);
}

static void pools_that_come_and_go_leave_nothing(void)
{
    const size_t before = reserved();
    CHECK_OK(tcuda_free(allocate(1000, 0, NULL)));
    const uint64_t reservations = calls_of("cuMemAddressReserve");
    tcuda_stream *streams[2] = { create_stream(0), create_stream(0) };
    for (int i = 0; i < 300; i++) {
        tcuda_mem_pool *pool = create_pool(0);
        CHECK_OK(tcuda_free(allocate_in(pool, 1000, streams[i % 2])));
        CHECK_OK(tcuda_free(allocate_in(pool, 3 * MIB, streams[i / 2 % 2])));
        CHECK_OK(tcuda_mem_pool_destroy(pool));
    }
    CHECK(calls_of("cuMemAddressReserve") - reservations <= 1);
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK(reserved() <= before);
    CHECK_OK(tcuda_stream_destroy(streams[0]));
    CHECK_OK(tcuda_stream_destroy(streams[1]));
}

/* As many at a time as host memory allows. */
static void there_may_be_many_pools(void)
{
    enum { MANY = 10000 };
    static tcuda_mem_pool *pools[MANY];
    for (int i = 0; i < MANY; i++)
        pools[i] = create_pool(0);
    const size_t before = reserved();
    void *const block = allocate_in(pools[MANY - 1], 1000, NULL);
    CHECK(is_in(block, pools[MANY - 1]));
    CHECK_OK(tcuda_free(block));
    for (int i = 0; i < MANY; i++)
        CHECK_OK(tcuda_mem_pool_destroy(pools[i]));
    CHECK_EQ(reserved(), before);
}

static void a_pool_lends_when_it_was_asked_to(void)
{
    if (!on_simulator())
        return; /* takes all memory */
    CHECK_OK(tcuda_memory_empty_cache());
    size_t free_bytes = 0, total = 0;
    CHECK_OK(tcuda_memory_info(0, &free_bytes, &total));
    const size_t most = free_bytes - 8 * MIB;
    for (uint32_t flags = 0; flags <= TCUDA_MEM_POOL_USE_ON_OOM; flags++) {
        tcuda_mem_pool *pool = create_pool(flags);
        void *block = allocate_in(pool, most, NULL), *other = NULL;
        CHECK_OK(tcuda_free(block));
        other = allocate(most, 0, NULL);
        if (flags == 0)
            CHECK(is_in_none(other)); /* of its memory, which it gave back */
        else
            CHECK(other == block && is_in(other, pool));
        CHECK_OK(tcuda_free(other));
        CHECK_OK(tcuda_mem_pool_destroy(pool));
    }
}

static size_t free_memory(void)
{
    size_t free_bytes = 0, total = 0;
    CHECK_OK(tcuda_memory_info(0, &free_bytes, &total));
    return free_bytes;
}

static void a_pool_that_slept_has_what_it_had(void)
{
    CHECK_OK(tcuda_memory_empty_cache());
    const size_t before = reserved();
    tcuda_mem_pool *pool = create_pool(0);
    tcuda_stream *stream = create_stream(0);
    void *const small = allocate_in(pool, 1000, NULL);
    void *const large = allocate_in(pool, 5 * MIB, stream);
    void *const freed = allocate_in(pool, 5 * MIB, stream), *outside = NULL;
    const size_t awake = reserved(), available = free_memory();
    CHECK_EQ(awake - before, 2 * MIB + 10 * MIB);
    for (int32_t keep = 1; keep >= 0; keep--) {
        fill_bytes(small, 21, 1000, NULL);
        fill_bytes(large, 22, 5 * MIB, stream);
        CHECK_OK(tcuda_mem_pool_sleep(pool, keep));
        CHECK_OK(tcuda_mem_pool_sleep(pool, 0)); /* keeps what was kept */
        CHECK_EQ(reserved(), before);
        CHECK_EQ(free_memory() - available, awake - before);
        CHECK_OK(tcuda_mem_pool_begin(pool, 0));
        CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_malloc(1000, 0, NULL, &outside));
        CHECK(strstr(tcuda_last_error(), "tcuda_mem_pool_wake") != NULL);
        CHECK_OK(tcuda_mem_pool_end(pool, 0));
        CHECK_OK(tcuda_memory_empty_cache());
        if (keep == 1)
            CHECK_OK(tcuda_free(freed));
        CHECK_OK(tcuda_mem_pool_wake(pool));
        CHECK_OK(tcuda_mem_pool_wake(pool));
        CHECK_EQ(reserved(), awake);
        if (keep == 1) {
            CHECK_EQ(count_other_bytes(small, 21, 1000, NULL), 0);
            CHECK_EQ(count_other_bytes(large, 22, 5 * MIB, stream), 0);
            CHECK(allocate_in(pool, 5 * MIB, stream) == freed);
            CHECK_OK(tcuda_free(freed));
        }
    }
    CHECK_OK(tcuda_free(small));
    CHECK_OK(tcuda_free(large));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_EQ(reserved(), before);
}

static void a_pool_may_die_in_its_sleep(void)
{
    CHECK_OK(tcuda_memory_empty_cache());
    const size_t before = reserved();
    tcuda_mem_pool *pool = create_pool(0);
    void *block = allocate_in(pool, 5 * MIB, NULL), *other = allocate_in(pool, 5 * MIB, NULL);
    CHECK_OK(tcuda_mem_pool_sleep(pool, 1));
    CHECK_OK(tcuda_free(other));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_free(block));
    /* A pool without memory serves no request. */
    pool = create_pool(0);
    other = allocate_in(pool, 5 * MIB, NULL);
    fill_bytes(other, 9, 5 * MIB, NULL);
    CHECK_EQ(count_other_bytes(other, 9, 5 * MIB, NULL), 0);
    CHECK_OK(tcuda_free(other));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(reserved(), before);
}

static void sleep_and_wake_may_fail_at_any_call(void)
{
    if (getenv("TCUDA_TEST_RECOVERY") != NULL)
        return; /* its rules would end those of the fault loop */
    tcuda_mem_pool *pool = create_pool(0);
    void *const block = allocate_in(pool, 5 * MIB, NULL);
    fill_bytes(block, 33, 5 * MIB, NULL);
    const size_t awake = reserved();
    static const char *const calls[] = { "cuCtxSynchronize", "cuMemcpyAsync", "cuMemUnmap",
        "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuStreamSynchronize" };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        for (int k = 1; k <= 3; k++) {
            char rule[64];
            snprintf(rule, sizeof rule, "%s@%d=2", calls[i], k);
            CHECK_OK(tcuda_backend_faults(rule));
            tcuda_status status = tcuda_mem_pool_sleep(pool, 1);
            CHECK(status == TCUDA_STATUS_OK || status == TCUDA_STATUS_OUT_OF_MEMORY);
            status = tcuda_mem_pool_wake(pool);
            CHECK(status == TCUDA_STATUS_OK || status == TCUDA_STATUS_OUT_OF_MEMORY);
            CHECK_OK(tcuda_backend_faults(NULL));
            CHECK_OK(tcuda_mem_pool_wake(pool));
            CHECK_EQ(reserved(), awake);
            CHECK_EQ(count_other_bytes(block, 33, 5 * MIB, NULL), 0);
        }
    }
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
}

static void a_pool_sleeps_on_where_memory_is_short(void)
{
    if (!on_simulator())
        return; /* takes all memory */
    CHECK_OK(tcuda_memory_empty_cache());
    tcuda_mem_pool *pool = create_pool(0);
    void *const block = allocate_in(pool, 64 * MIB, NULL);
    CHECK_OK(tcuda_mem_pool_sleep(pool, 0));
    void *const all = allocate(free_memory() - 8 * MIB, 0, NULL);
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_mem_pool_wake(pool));
    CHECK_OK(tcuda_free(all));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_OK(tcuda_mem_pool_wake(pool));
    fill_bytes(block, 3, 64 * MIB, NULL);
    CHECK_EQ(count_other_bytes(block, 3, 64 * MIB, NULL), 0);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
}

static tcuda_mem_pool *shared_pool;
static void *block_of_the_thread, *second_block_of_the_thread;

static void *allocates_unrouted(void *unused)
{
    (void)unused;
    block_of_the_thread = allocate(1000, 0, NULL);
    return NULL;
}

static void *ends_while_it_is_routed(void *unused)
{
    (void)unused;
    CHECK_OK(tcuda_mem_pool_begin(shared_pool, 0));
    CHECK_OK(tcuda_mem_pool_begin(shared_pool, 0));
    second_block_of_the_thread = allocate(1000, 0, NULL);
    return NULL;
}

static void threads_are_routed_each_for_itself(void)
{
    CHECK_OK(tcuda_memory_empty_cache());
    const size_t before = reserved();
    shared_pool = create_pool(0);
    CHECK_OK(tcuda_mem_pool_begin(shared_pool, 0));
    run_on_thread(allocates_unrouted, NULL);
    CHECK(is_in_none(block_of_the_thread));
    CHECK_OK(tcuda_mem_pool_end(shared_pool, 0));
    run_on_thread(ends_while_it_is_routed, NULL);
    CHECK(is_in(second_block_of_the_thread, shared_pool));
    CHECK_OK(tcuda_free(block_of_the_thread));
    CHECK_OK(tcuda_free(second_block_of_the_thread));
    CHECK_OK(tcuda_mem_pool_destroy(shared_pool));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK(reserved() <= before);
}

static void *ends_a_route_of_another_thread(void *pool)
{
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_mem_pool_end((tcuda_mem_pool *)pool, 0));
    return NULL;
}

/* Until the end, which works; twice begun it ends twice, and in the order of other pools. */
static void a_destroyed_pool_serves_those_who_are_routed_there(void)
{
    CHECK_OK(tcuda_memory_empty_cache());
    const size_t before = reserved();
    tcuda_mem_pool *const pool = create_pool(0), *const inner = create_pool(0);
    const pool_id id = id_of_pool(pool);
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    CHECK_OK(tcuda_mem_pool_begin(pool, TCUDA_CURRENT_DEVICE));
    CHECK_OK(tcuda_mem_pool_begin(inner, 0));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_mem_pool_end(pool, 0));
    CHECK_OK(tcuda_mem_pool_end(inner, 0));
    run_on_thread(ends_a_route_of_another_thread, pool);
    for (int i = 0; i < 2; i++) {
        void *const block = allocate(1000, 0, NULL);
        CHECK_EQ(pool_of(block).second, id.second);
        CHECK_OK(tcuda_free(block));
        CHECK_OK(tcuda_mem_pool_end(pool, TCUDA_CURRENT_DEVICE));
    }
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_mem_pool_end(pool, 0));
    void *const block = allocate(1000, 0, NULL);
    CHECK(is_in_none(block));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_mem_pool_destroy(inner));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(reserved(), before);
    /* A shutdown ends what was not ended. */
    tcuda_mem_pool *const last = create_pool(0);
    CHECK_OK(tcuda_mem_pool_begin(last, 0));
    CHECK_OK(tcuda_shutdown(NULL));
    void *const after = allocate(1000, 0, NULL);
    CHECK(is_in_none(after));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_mem_pool_end(last, 0));
    CHECK_OK(tcuda_free(after));
}

static uint32_t uses_of(tcuda_mem_pool *pool)
{
    uint32_t count = 0;
    CHECK_OK(tcuda_mem_pool_use_count(pool, &count));
    return count;
}

/* Its handle, each route of a thread, and each graph. */
static void uses_are_counted(void)
{
    tcuda_stream *const stream = create_stream(0);
    tcuda_mem_pool *const pool = create_pool(0);
    tcuda_graph *graph = NULL;
    CHECK_EQ(uses_of(pool), 1);
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    CHECK_EQ(uses_of(pool), 3);
    CHECK_OK(tcuda_mem_pool_end(pool, 0));
    CHECK_OK(tcuda_mem_pool_end(pool, 0));
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, pool, TCUDA_CAPTURE_GLOBAL));
    CHECK(uses_of(pool) > 1);
    CHECK_OK(tcuda_graph_capture_end(graph));
    CHECK_EQ(uses_of(pool), 2);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_EQ(uses_of(pool), 1);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_mem_pool_use_count(pool, NULL));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void wrong_arguments_are_refused(void)
{
    tcuda_mem_pool *pool = NULL;
    tcuda_memory_snapshot *snapshot = NULL;
    uint64_t first = 5, second = 6;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_mem_pool_create(NULL, 4, &pool));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_mem_pool_create(NULL, 0, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE,
        tcuda_mem_pool_create((tcuda_pluggable_allocator *)(void *)&pool, 0, &pool));
    CHECK(pool == NULL);
    CHECK_OK(tcuda_mem_pool_destroy(NULL));
    pool = create_pool(0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_mem_pool_begin(pool, num_devices()));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_mem_pool_end(pool, 0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_mem_pool_sleep(pool, 2));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_mem_pool_wake(NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_mem_pool_id(pool, &first, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_mem_pool_snapshot(pool, 2, &snapshot));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_mem_pool_destroy(pool));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_mem_pool_begin(pool, 0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_mem_pool_begin(NULL, 0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_mem_pool_id(pool, &first, &second));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_mem_pool_snapshot(pool, 0, &snapshot));
    CHECK(first == 5 && second == 6 && snapshot == NULL);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    blocks_come_from_where_the_thread_is_routed();
    each_stream_has_memory_of_its_own();
    a_snapshot_of_a_pool_has_nothing_else();
    memory_goes_when_nobody_needs_it();
    pools_that_come_and_go_leave_nothing();
    there_may_be_many_pools();
    uses_are_counted();
    a_pool_lends_when_it_was_asked_to();
    if (!in_segments()) { /* which cannot sleep: segment_pools.c */
        a_pool_that_slept_has_what_it_had();
        a_pool_may_die_in_its_sleep();
        sleep_and_wake_may_fail_at_any_call();
        a_pool_sleeps_on_where_memory_is_short();
    }
    threads_are_routed_each_for_itself();
    a_destroyed_pool_serves_those_who_are_routed_there();
    wrong_arguments_are_refused();
    return finish();
}
