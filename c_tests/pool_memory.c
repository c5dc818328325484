/* Private pools where memory is short: what serves before a request fails, what sleeps and wakes as
 * a whole, and what is refused while a pool sleeps. */
#include "support.h"

#define MIB ((size_t)1 << 20)

static tcuda_mem_pool *create_pool(uint32_t flags)
{
    tcuda_mem_pool *pool = NULL;
    CHECK_OK(tcuda_mem_pool_create(NULL, flags, &pool));
    return pool;
}

static tcuda_graph *create_graph(void)
{
    tcuda_graph *graph = NULL;
    CHECK_OK(tcuda_graph_create(0, &graph));
    return graph;
}

static tcuda_status try_allocate_in(tcuda_mem_pool *pool, size_t bytes, tcuda_stream *stream,
    void **ptr)
{
    if (pool == NULL)
        return tcuda_malloc(bytes, 0, stream, ptr);
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    const tcuda_status status = tcuda_malloc(bytes, 0, stream, ptr);
    CHECK_OK(tcuda_mem_pool_end(pool, 0));
    return status;
}

static void *allocate_in(tcuda_mem_pool *pool, size_t bytes, tcuda_stream *stream)
{
    void *ptr = NULL;
    CHECK_OK(try_allocate_in(pool, bytes, stream, &ptr));
    return ptr;
}

static size_t reserved(int32_t device)
{
    size_t bytes = 0;
    CHECK_OK(tcuda_memory_reserved(device, &bytes));
    return bytes;
}

static size_t free_memory(int32_t device)
{
    size_t free_bytes = 0, total = 0;
    CHECK_OK(tcuda_memory_info(device, &free_bytes, &total));
    return free_bytes;
}

/* So many sixteenths of what is free, in whole segments. */
static size_t share_of_memory(size_t sixteenths)
{
    return free_memory(0) / (32 * MIB) * sixteenths * (2 * MIB);
}

/* ---- Before a request fails ---- */

enum { OWN_POOL, OTHER_POOL, NO_POOL, NO_CACHE, WAYS };

static void unused_memory_of_pools_serves(uint32_t flags, bool first_in_segments, int way,
    bool on_other_stream)
{
    CHECK_OK(tcuda_memory_empty_cache());
    tcuda_mem_pool *const pool = create_pool(flags), *const other = create_pool(0);
    tcuda_stream *const stream = create_stream(0);
    const size_t bytes = share_of_memory(10), more = share_of_memory(12);
    void *const small = allocate_in(pool, 1000, NULL);
    fill_bytes(small, 7, 1000, NULL);
    if (first_in_segments)
        CHECK_OK(tcuda_allocator_config_set("expandable_segments:False"));
    CHECK_OK(tcuda_free(allocate_in(pool, bytes, NULL)));
    CHECK_OK(tcuda_memory_empty_cache()); /* which leaves it alone */
    CHECK(reserved(0) >= bytes);
    if (way == NO_CACHE)
        CHECK_OK(tcuda_memory_caching_enable(0));
    tcuda_mem_pool *const of_way = way == OWN_POOL ? pool : way == OTHER_POOL ? other : NULL;
    void *const block = allocate_in(of_way, more, on_other_stream ? stream : NULL);
    fill_bytes(block, 9, MIB, on_other_stream ? stream : NULL);
    CHECK_EQ(count_other_bytes(block, 9, MIB, on_other_stream ? stream : NULL), 0);
    CHECK_EQ(count_other_bytes(small, 7, 1000, NULL), 0);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_memory_caching_enable(1));
    CHECK_OK(tcuda_allocator_config_set("expandable_segments:True"));
    CHECK_OK(tcuda_free(small));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_mem_pool_destroy(other));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(reserved(0), 0);
}

static void nothing_fails_beside_unused_pools(void)
{
    static const uint32_t flags[] = { 0, TCUDA_MEM_POOL_NO_SPLIT, TCUDA_MEM_POOL_USE_ON_OOM };
    for (int i = 0; i < 3; i++) {
        for (int way = 0; way < WAYS; way++) {
            for (int choice = 0; choice < 4; choice++)
                unused_memory_of_pools_serves(flags[i], choice & 1, way, choice & 2);
        }
    }
}

/* What a capture freed is written by each replay: it is the graph's. */
static void memory_of_graphs_stays(bool of_host)
{
    tcuda_stream *const stream = create_stream(0);
    tcuda_mem_pool *const pool = create_pool(0);
    tcuda_graph *const graph = create_graph();
    const size_t bytes = share_of_memory(10), more = share_of_memory(12);
    unsigned char *const result = allocate(1000, 0, stream);
    void *ptr = NULL;
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, of_host ? pool : NULL, TCUDA_CAPTURE_GLOBAL));
    void *const scratch = allocate(bytes, 0, stream);
    fill_bytes(scratch, 5, bytes, stream);
    CHECK_OK(tcuda_copy(result, scratch, 1000, stream));
    CHECK_OK(tcuda_free(scratch));
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, try_allocate_in(pool, more, NULL, &ptr));
    CHECK_OK(tcuda_graph_capture_end(graph));
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc(more, 0, NULL, &ptr));
        CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, try_allocate_in(pool, more, NULL, &ptr));
        CHECK(ptr == NULL);
        fill_bytes(result, 0, 1000, stream);
        CHECK_OK(tcuda_graph_replay(graph, stream));
        CHECK_EQ(count_other_bytes(result, 5, 1000, stream), 0);
    }
    /* With the graph its memory is the pool's, which may be gone. */
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(allocate(more, 0, NULL)));
    CHECK_OK(tcuda_free(result));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(reserved(0), 0);
}

/* ---- Sleeping and waking ---- */

typedef struct helper {
    void *block;
    int asked;
    size_t bytes;
    tcuda_status freed;
} helper;

static int32_t helps(void *user_data, int32_t device, size_t bytes, size_t limit_bytes,
    size_t free_bytes)
{
    helper *const self = user_data;
    (void)device, (void)limit_bytes, (void)free_bytes;
    self->asked++;
    self->bytes = bytes;
    self->freed = tcuda_free(self->block);
    self->block = NULL;
    return 1;
}

/* All of it or nothing, after all steps: our own cache, other pools, and observers. */
static void waking_is_all_or_nothing(void)
{
    tcuda_mem_pool *const pool = create_pool(0), *const other = create_pool(0);
    tcuda_stream *const stream = create_stream(0);
    const size_t half = share_of_memory(3);
    void *const first = allocate_in(pool, half, NULL);
    void *const second = allocate_in(pool, half, stream);
    fill_bytes(first, 11, half, NULL);
    fill_bytes(second, 12, half, stream);
    CHECK_OK(tcuda_mem_pool_sleep(pool, 1));
    CHECK_EQ(reserved(0), 0);
    helper help = { .block = allocate(free_memory(0) - half - 4 * MIB, 0, NULL) };
    for (int i = 0; i < 2; i++) {
        const size_t before = reserved(0), available = free_memory(0);
        CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_mem_pool_wake(pool));
        CHECK(strstr(tcuda_last_error(), "CUDA out of memory. Tried to allocate") != NULL);
        CHECK_EQ(reserved(0), before);
        CHECK_EQ(free_memory(0), available);
        CHECK_OK(tcuda_mem_pool_sleep(pool, 0)); /* keeps what was kept */
        CHECK_EQ(free_memory(0), available);
    }
    /* An observer frees it. */
    tcuda_observer *observer = NULL;
    CHECK_OK(tcuda_memory_on_out_of_memory(helps, &help, NULL, &observer));
    CHECK_OK(tcuda_mem_pool_wake(pool));
    CHECK_EQ(help.asked, 1);
    CHECK_EQ(help.freed, TCUDA_STATUS_OK);
    CHECK_EQ(help.bytes, 2 * half);
    CHECK_OK(tcuda_observer_destroy(observer));
    CHECK_EQ(count_other_bytes(first, 11, half, NULL), 0);
    CHECK_EQ(count_other_bytes(second, 12, half, stream), 0);
    /* It lies unused in the cache, of the library or of another pool. */
    for (int i = 0; i < 2; i++) {
        CHECK_OK(tcuda_mem_pool_sleep(pool, 1));
        CHECK_OK(tcuda_memory_empty_cache());
        CHECK_OK(tcuda_free(allocate_in(i == 0 ? NULL : other, free_memory(0) - half, stream)));
        CHECK_OK(tcuda_mem_pool_wake(pool));
        CHECK_EQ(count_other_bytes(first, 11, half, NULL), 0);
        CHECK_EQ(count_other_bytes(second, 12, half, stream), 0);
    }
    CHECK_OK(tcuda_free(first));
    CHECK_OK(tcuda_free(second));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_mem_pool_destroy(other));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(reserved(0), 0);
}

/* Nor is one device awake where another has no memory. */
static void waking_is_for_all_devices(void)
{
    if (num_devices() < 2)
        return;
    tcuda_mem_pool *const pool = create_pool(0);
    void *blocks[2];
    for (int32_t device = 0; device < 2; device++) {
        CHECK_OK(tcuda_mem_pool_begin(pool, device));
        blocks[device] = allocate(64 * MIB, device, NULL);
        CHECK_OK(tcuda_mem_pool_end(pool, device));
    }
    CHECK_OK(tcuda_mem_pool_sleep(pool, 0));
    void *const all = allocate(free_memory(1) - 32 * MIB, 1, NULL);
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_mem_pool_wake(pool));
    CHECK(strstr(tcuda_last_error(), "GPU 1") != NULL);
    CHECK_EQ(reserved(0), 0);
    CHECK_OK(tcuda_free(all));
    CHECK_OK(tcuda_mem_pool_wake(pool));
    CHECK_EQ(reserved(0), 64 * MIB);
    CHECK_OK(tcuda_free(blocks[0]));
    CHECK_OK(tcuda_free(blocks[1]));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_memory_empty_cache());
}

/* A graph whose pool sleeps is not launched. */
static void graphs_of_sleeping_pools_are_refused(void)
{
    tcuda_stream *const stream = create_stream(0);
    tcuda_mem_pool *const pool = create_pool(0);
    tcuda_graph *const graph = create_graph();
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, pool, TCUDA_CAPTURE_GLOBAL));
    void *const result = allocate(MIB, 0, stream);
    fill_bytes(result, 6, MIB, stream);
    /* Nor does a pool fall asleep during a capture, which goes on. */
    CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_mem_pool_sleep(pool, 0));
    CHECK_OK(tcuda_graph_capture_end(graph));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(tcuda_mem_pool_sleep(pool, 0));
        CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_replay(graph, stream));
        CHECK(strstr(tcuda_last_error(), "tcuda_mem_pool_wake") != NULL);
        CHECK_OK(tcuda_stream_synchronize(stream));
        CHECK_OK(tcuda_mem_pool_wake(pool));
        CHECK_OK(tcuda_graph_replay(graph, stream));
        CHECK_EQ(count_other_bytes(result, 6, MIB, stream), 0);
    }
    CHECK_OK(tcuda_free(result));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_memory_empty_cache());
}

/* The library's own copies and fills are not queued, also where the pool is gone. */
static void sleeping_memory_is_not_used(void)
{
    tcuda_mem_pool *const pool = create_pool(0);
    unsigned char bytes[16] = { 1 };
    unsigned char *const block = allocate_in(pool, 5 * MIB, NULL);
    void *const other = allocate(MIB, 0, NULL);
    CHECK_OK(tcuda_mem_pool_sleep(pool, 0));
    for (int i = 0; i < 2; i++) {
        unsigned char *const inside = block + 3 * MIB;
        CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_fill(block, bytes, 1, 16, NULL));
        CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_copy(bytes, inside, 16, NULL));
        CHECK(strstr(tcuda_last_error(), "tcuda_mem_pool_wake") != NULL);
        CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_copy(inside, other, 16, NULL));
        CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER,
            tcuda_copy_2d(block, 16, other, 16, 16, 2, NULL));
        fill_bytes(other, 2, MIB, NULL);
        CHECK_EQ(count_other_bytes(other, 2, MIB, NULL), 0);
        if (i == 0)
            CHECK_OK(tcuda_mem_pool_destroy(pool));
    }
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_free(other));
    CHECK_OK(tcuda_memory_empty_cache());
}

/* Memory that a pool lent is not taken away from its user. */
static void pools_that_lent_do_not_sleep(bool on_other_stream)
{
    tcuda_mem_pool *const pool = create_pool(TCUDA_MEM_POOL_USE_ON_OOM);
    tcuda_stream *const stream = create_stream(0), *const user = create_stream(0);
    const size_t bytes = share_of_memory(12);
    CHECK_OK(tcuda_free(allocate_in(pool, bytes, stream)));
    void *const kept = allocate_in(pool, MIB, stream);
    void *const lent = allocate(bytes - 8 * MIB, 0, stream);
    char named[32];
    snprintf(named, sizeof named, "%#llx", (unsigned long long)(uintptr_t)lent);
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_mem_pool_sleep(pool, i));
        CHECK(strstr(tcuda_last_error(), named) != NULL);
        fill_bytes(lent, 3, MIB, stream);
        CHECK_EQ(count_other_bytes(lent, 3, MIB, stream), 0);
    }
    /* The pool is awake. */
    CHECK_OK(tcuda_free(allocate_in(pool, MIB, stream)));
    if (on_other_stream)
        CHECK_OK(tcuda_record_stream(lent, user));
    CHECK_OK(tcuda_free(lent));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(lent));
    CHECK_OK(tcuda_mem_pool_sleep(pool, 0));
    CHECK_EQ(reserved(0), 0);
    CHECK_OK(tcuda_mem_pool_wake(pool));
    /* The same block, now of the pool's own users. */
    void *const own = allocate_in(pool, bytes - 8 * MIB, stream);
    CHECK_OK(tcuda_mem_pool_sleep(pool, 0));
    CHECK_OK(tcuda_mem_pool_wake(pool));
    CHECK_OK(tcuda_free(own));
    CHECK_OK(tcuda_free(kept));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(user));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(reserved(0), 0);
}

/* Pools that come and go leave nothing in the statistics. */
static void statistics_forget_pools(void)
{
    tcuda_stream *const stream = create_stream(0);
    size_t lengths[2] = { 0, 0 };
    for (int i = 0; i < 600; i++) {
        tcuda_graph *const graph = create_graph();
        tcuda_mem_pool *const pool = create_pool(0);
        CHECK_OK(tcuda_graph_capture_begin(graph, stream, NULL, TCUDA_CAPTURE_GLOBAL));
        void *const block = allocate(1000, 0, stream);
        fill_bytes(block, 1, 1000, stream);
        CHECK_OK(tcuda_graph_capture_end(graph));
        CHECK_OK(tcuda_graph_replay(graph, stream));
        CHECK_OK(tcuda_free(allocate_in(pool, 1000, stream)));
        CHECK_OK(tcuda_free(block));
        CHECK_OK(tcuda_graph_destroy(graph));
        CHECK_OK(tcuda_mem_pool_destroy(pool));
        if (i == 5)
            CHECK_OK(tcuda_memory_stats_json(0, NULL, 0, &lengths[0]));
    }
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_OK(tcuda_memory_stats_json(0, NULL, 0, &lengths[1]));
    CHECK(lengths[1] < lengths[0] + 200);
    CHECK_OK(tcuda_stream_destroy(stream));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    statistics_forget_pools();
    if (!on_simulator())
        return finish(); /* takes all memory */
    CHECK_OK(tcuda_allocator_config_set("share_between_streams:False"));
    nothing_fails_beside_unused_pools();
    memory_of_graphs_stays(false);
    memory_of_graphs_stays(true);
    waking_is_all_or_nothing();
    waking_is_for_all_devices();
    graphs_of_sleeping_pools_are_refused();
    sleeping_memory_is_not_used();
    pools_that_lent_do_not_sleep(false);
    pools_that_lent_do_not_sleep(true);
    return finish();
}
