/* Private pools in segments: lending, blocks that are whole segments, allocators of other
 * libraries, and that such pools do not sleep. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

#define MIB ((size_t)1 << 20)

static uint64_t statistic(const char *key)
{
    uint64_t value = 0;
    CHECK_OK(tcuda_memory_stat(0, key, &value));
    return value;
}

static tcuda_mem_pool *create_pool(tcuda_pluggable_allocator *allocator, uint32_t flags)
{
    tcuda_mem_pool *pool = NULL;
    CHECK_OK(tcuda_mem_pool_create(allocator, flags, &pool));
    return pool;
}

static void *allocate_in(tcuda_mem_pool *pool, size_t bytes, tcuda_stream *stream)
{
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    void *const ptr = allocate(bytes, 0, stream);
    CHECK_OK(tcuda_mem_pool_end(pool, 0));
    return ptr;
}

static void begin(bool segments)
{
    CHECK_OK(tcuda_allocator_config_set("share_between_streams:False"));
    CHECK_OK(tcuda_allocator_config_set(
        segments ? "expandable_segments:False" : "expandable_segments:True"));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_OK(tcuda_memory_reset_accumulated(0));
}

static void nothing_is_left(void)
{
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(statistic("reserved_bytes.all.current"), 0);
}

/* A pool that lends is asked before anybody's cache is given back, and lends to its own stream. */
static void pools_lend_before_caches_go(bool segments)
{
    begin(segments);
    tcuda_stream *const stream = create_stream(0);
    tcuda_mem_pool *const pool = create_pool(NULL, TCUDA_MEM_POOL_USE_ON_OOM);
    limit_to(64 * MIB);
    void *const lent = allocate_in(pool, 30 * MIB, NULL);
    CHECK_OK(tcuda_free(lent));
    CHECK_OK(tcuda_free(allocate(30 * MIB, 0, stream)));
    void *const block = allocate(30 * MIB, 0, NULL);
    CHECK(block == lent);
    CHECK_EQ(statistic("num_alloc_retries"), 0);
    CHECK_EQ(statistic("reserved_bytes.all.current"), 60 * MIB);
    /* To no other pool. */
    tcuda_mem_pool *const other = create_pool(NULL, 0);
    CHECK_OK(tcuda_free(block));
    void *const apart = allocate_in(other, 30 * MIB, NULL);
    CHECK(apart != lent);
    CHECK_EQ(statistic("num_alloc_retries"), 1);
    CHECK_OK(tcuda_free(apart));
    CHECK_OK(tcuda_memory_fraction_set(0, 1));
    CHECK_OK(tcuda_mem_pool_destroy(other));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    nothing_is_left();
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void blocks_are_whole_segments(bool segments)
{
    static const size_t sizes[][2]
        = { { 1, 2 }, { MIB, 2 }, { MIB + 1, 20 }, { 10 * MIB, 20 }, { 31 * MIB, 32 } };
    begin(segments);
    tcuda_mem_pool *const pool = create_pool(NULL, TCUDA_MEM_POOL_NO_SPLIT);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        void *const block = allocate_in(pool, sizes[i][0], NULL);
        const uint64_t bytes = sizes[i][1] * MIB;
        const uint64_t reserved = statistic("reserved_bytes.all.current");
        CHECK_EQ(statistic("allocated_bytes.all.current"), bytes);
        CHECK_EQ(statistic("requested_bytes.all.current"), sizes[i][0]);
        CHECK_EQ(statistic("inactive_split.all.current"), 0);
        CHECK_OK(tcuda_free(block));
        CHECK(allocate_in(pool, sizes[i][0], NULL) == block);
        CHECK_EQ(statistic("reserved_bytes.all.current"), reserved);
        CHECK_OK(tcuda_free(block));
    }
    CHECK_EQ(statistic("reserved_bytes.all.current"), (2 + 20 + 32) * MIB);
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    nothing_is_left();
}

/* What each pool has is a statistic of its own, as long as the pool is there or has memory. */
static void each_pool_is_counted(bool segments)
{
    begin(segments);
    char keys[2][96];
    uint64_t id[2] = { 0, 0 }, value = 0;
    tcuda_mem_pool *const pool = create_pool(NULL, 0), *const other = create_pool(NULL, 0);
    CHECK_OK(tcuda_mem_pool_id(pool, &id[0], &id[1]));
    static const char *const names[] = { "large_pool.current", "all.peak" };
    for (int i = 0; i < 2; i++)
        snprintf(keys[i], sizeof keys[i], "reserved_bytes_by_private_pools.%llu_%llu.%s",
            (unsigned long long)id[0], (unsigned long long)id[1], names[i]);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_stat(0, keys[0], &value));
    void *const small = allocate_in(pool, 1, NULL);
    void *const large = allocate_in(pool, 30 * MIB, NULL);
    void *const apart = allocate_in(other, 10 * MIB, NULL);
    CHECK_EQ(statistic(keys[0]), 30 * MIB);
    CHECK_EQ(statistic(keys[1]), 32 * MIB);
    CHECK_OK(tcuda_free(small));
    CHECK_OK(tcuda_free(large));
    CHECK_OK(tcuda_free(apart));
    CHECK_EQ(statistic(keys[0]), 30 * MIB);
    void *const left = allocate_in(pool, 30 * MIB, NULL);
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_EQ(statistic(keys[0]), 30 * MIB);
    CHECK_EQ(statistic(keys[1]), 32 * MIB);
    CHECK_OK(tcuda_free(left));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_stat(0, keys[0], &value));
    CHECK_OK(tcuda_mem_pool_destroy(other));
    nothing_is_left();
}

static void segments_do_not_sleep(void)
{
    begin(false);
    tcuda_mem_pool *const pool = create_pool(NULL, TCUDA_MEM_POOL_NO_SPLIT);
    void *const block = allocate_in(pool, 5 * MIB, NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_mem_pool_sleep(pool, 1));
    CHECK(strstr(tcuda_last_error(), "expandable_segments:True") != NULL);
    fill_bytes(block, 6, 5 * MIB, NULL);
    CHECK_EQ(count_other_bytes(block, 6, 5 * MIB, NULL), 0);
    CHECK_OK(tcuda_free(allocate_in(pool, 5 * MIB, NULL)));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    nothing_is_left();
}

/* ---- An allocator of another library: its addresses are its own business ---- */

enum { MOST = 8 };
static struct piece {
    uintptr_t address;
    ptrdiff_t bytes;
    struct CUstream_st *stream;
} pieces[MOST];
static atomic_int piece_count, calls;
static uintptr_t next_address = (uintptr_t)0x510000000000;
static bool is_empty;

static void *give(ptrdiff_t bytes, int32_t device, struct CUstream_st *cu_stream)
{
    atomic_fetch_add(&calls, 1);
    CHECK_EQ(device, 0);
    const int index = atomic_load(&piece_count);
    if (is_empty || index == MOST)
        return NULL;
    pieces[index] = (struct piece){ next_address, bytes, cu_stream };
    atomic_store(&piece_count, index + 1);
    next_address += (uintptr_t)bytes + 4096;
    return (void *)pieces[index].address;
}

static void take(void *ptr, ptrdiff_t bytes, int32_t device, struct CUstream_st *cu_stream)
{
    const int count = atomic_load(&piece_count);
    CHECK_EQ(device, 0);
    for (int i = 0; i < count; i++) {
        if (pieces[i].address == (uintptr_t)ptr) {
            CHECK_EQ(bytes, pieces[i].bytes);
            CHECK(cu_stream == pieces[i].stream);
            pieces[i] = pieces[count - 1];
            atomic_store(&piece_count, count - 1);
            return;
        }
    }
    CHECK(!"what it never gave was taken back");
}

static void segments_come_from_another_allocator(void)
{
    begin(false);
    tcuda_pluggable_allocator *allocator = NULL;
    tcuda_stream *const stream = create_stream(0);
    CHECK_OK(tcuda_pluggable_allocator_create(give, take, &allocator));
    tcuda_mem_pool *const pool = create_pool(allocator, 0);
    char *const small = allocate_in(pool, 1000, stream);
    char *const second = allocate_in(pool, 1, stream);
    void *const large = allocate_in(pool, 3 * MIB, stream);
    CHECK_EQ(atomic_load(&calls), 2);
    CHECK_EQ(pieces[0].bytes, 2 * MIB);
    CHECK_EQ(pieces[1].bytes, 20 * MIB);
    CHECK(pieces[0].stream == native_of(stream));
    CHECK((uintptr_t)small == pieces[0].address && second == small + 1024);
    CHECK_EQ(statistic("reserved_bytes.all.current"), 22 * MIB);
    CHECK_EQ(statistic("segment.all.current"), 2);
    int32_t device = -7;
    CHECK_OK(tcuda_device_of(large, &device));
    CHECK_EQ(device, 0);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_mem_pool_sleep(pool, 0));
    /* Out of memory is the same failure, the driver's or the allocator's. */
    const uint64_t ooms = statistic("num_ooms");
    void *ptr = NULL;
    is_empty = true;
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc(30 * MIB, 0, stream, &ptr));
    CHECK_OK(tcuda_mem_pool_end(pool, 0));
    CHECK_EQ(statistic("num_ooms"), ooms + 1);
    is_empty = false;
    /* Blocks outlive the pool and the allocator's handle. */
    CHECK_OK(tcuda_free(small));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_pluggable_allocator_destroy(allocator));
    CHECK_EQ(atomic_load(&piece_count), 2);
    CHECK_OK(tcuda_free(second));
    CHECK_OK(tcuda_free(large));
    nothing_is_left();
    CHECK_EQ(atomic_load(&piece_count), 0);
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void *same(ptrdiff_t bytes, int32_t device, struct CUstream_st *cu_stream)
{
    (void)bytes, (void)device, (void)cu_stream;
    return (void *)pieces[0].address;
}

static void untake(void *ptr, ptrdiff_t bytes, int32_t device, struct CUstream_st *cu_stream)
{
    (void)ptr, (void)bytes, (void)device, (void)cu_stream;
    atomic_fetch_add(&calls, 1);
}

/* One that gives what it gave already is found out. */
static void memory_of_tcuda_is_refused(void)
{
    begin(false);
    void *const block = allocate(3 * MIB, 0, NULL), *ptr = NULL;
    tcuda_pluggable_allocator *allocator = NULL;
    CHECK_OK(tcuda_pluggable_allocator_create(same, untake, &allocator));
    tcuda_mem_pool *const pool = create_pool(allocator, 0);
    pieces[0].address = (uintptr_t)block;
    atomic_store(&calls, 0);
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_malloc(1, 0, NULL, &ptr));
    /* It is not given back: it is in use. */
    CHECK_EQ(atomic_load(&calls), 0);
    pieces[0].address = next_address;
    void *const first = allocate(2 * MIB, 0, NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_malloc(1, 0, NULL, &ptr));
    CHECK_EQ(atomic_load(&calls), 0);
    /* Nor is a block that is in no arena. */
    CHECK_OK(tcuda_memory_caching_enable(0));
    void *const uncached = allocate(2 * MIB, 0, NULL);
    CHECK_OK(tcuda_memory_caching_enable(1));
    pieces[0].address = (uintptr_t)uncached;
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_malloc(1, 0, NULL, &ptr));
    CHECK_EQ(atomic_load(&calls), 0);
    CHECK_OK(tcuda_free(uncached));
    CHECK_OK(tcuda_mem_pool_end(pool, 0));
    CHECK_OK(tcuda_free(first));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_pluggable_allocator_destroy(allocator));
    nothing_is_left();
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    for (int segments = 0; segments < 2; segments++) {
        pools_lend_before_caches_go(segments != 0);
        blocks_are_whole_segments(segments != 0);
        each_pool_is_counted(segments != 0);
    }
    segments_do_not_sleep();
    segments_come_from_another_allocator();
    memory_of_tcuda_is_refused();
    return finish();
}
