/* Blocks of a private pool at given addresses, and the return of a pool to an earlier list of its
 * blocks, also with a graph that was captured in it. */
#include "graph.h"

enum { MOST = 64, KIB = 1 << 10 };

typedef struct list {
    tcuda_pool_block blocks[MOST];
    size_t count;
} list;

static tcuda_mem_pool *create_pool(void)
{
    tcuda_mem_pool *pool = NULL;
    CHECK_OK(tcuda_mem_pool_create(NULL, 0, &pool));
    return pool;
}

static void *allocate_in(tcuda_mem_pool *pool, size_t bytes, tcuda_stream *stream)
{
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    void *block = allocate(bytes, 0, stream);
    CHECK_OK(tcuda_mem_pool_end(pool, 0));
    return block;
}

static list blocks_of(tcuda_mem_pool *pool)
{
    list found = { .count = MOST + 1 };
    CHECK_OK(tcuda_mem_pool_blocks(pool, 0, found.blocks, MOST, &found.count));
    CHECK(found.count <= MOST);
    return found;
}

static void check_same(const list *expected, tcuda_mem_pool *pool)
{
    const list found = blocks_of(pool);
    CHECK_EQ(found.count, expected->count);
    for (size_t i = 0; i < found.count; i++) {
        CHECK(found.blocks[i].ptr == expected->blocks[i].ptr);
        CHECK_EQ(found.blocks[i].requested_bytes, expected->blocks[i].requested_bytes);
        CHECK_EQ(found.blocks[i].bytes, expected->blocks[i].bytes);
        CHECK_EQ(found.blocks[i].stream_id, expected->blocks[i].stream_id);
    }
}

static bool are_live(tcuda_mem_pool *pool, const void *const *ptrs, size_t count)
{
    bool equal = false;
    CHECK_OK(tcuda_mem_pool_check_live(pool, 0, ptrs, count, &equal));
    return equal;
}

static uint64_t stat(const char *key)
{
    uint64_t value = 0;
    CHECK_OK(tcuda_memory_stat(0, key, &value));
    return value;
}

/* In memory of small blocks and of large ones: the second of three blocks, which were merged. */
static void a_block_is_at_its_address_again(size_t bytes, size_t whole, size_t shorter)
{
    tcuda_mem_pool *const pool = create_pool();
    tcuda_stream *const stream = create_stream(0);
    const uint64_t before = stat("allocated_bytes.all.current");
    const uint64_t requested = stat("requested_bytes.all.current");
    const uint64_t allocations = stat("allocation.all.allocated");
    char *blocks[3];
    for (int i = 0; i < 3; i++)
        blocks[i] = allocate_in(pool, bytes, stream);
    CHECK(blocks[1] == blocks[0] + whole && blocks[2] == blocks[1] + whole);
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_mem_pool_malloc_at(pool, blocks[1], bytes));
    CHECK(strstr(tcuda_last_error(), "free") != NULL);
    for (int i = 0; i < 3; i++)
        CHECK_OK(tcuda_free(blocks[i]));
    CHECK_EQ(blocks_of(pool).count, 0);

    CHECK_OK(tcuda_mem_pool_malloc_at(pool, blocks[1], shorter));
    CHECK_EQ(stat("allocated_bytes.all.current"), before + whole);
    CHECK_EQ(stat("requested_bytes.all.current"), requested + shorter);
    CHECK_EQ(stat("allocation.all.allocated"), allocations + 4);
    const list only = blocks_of(pool);
    CHECK_EQ(only.count, 1);
    CHECK(only.blocks[0].ptr == blocks[1]);
    CHECK_EQ(only.blocks[0].requested_bytes, shorter);
    CHECK_EQ(only.blocks[0].bytes, whole);
    CHECK_EQ(only.blocks[0].stream_id, id_of(stream));
    /* It is not there twice, nothing overlaps it, and its class does not change. */
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_mem_pool_malloc_at(pool, blocks[1], bytes));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER,
        tcuda_mem_pool_malloc_at(pool, blocks[0], whole + 1));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_mem_pool_malloc_at(pool, blocks[0] + 1, 1));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER,
        tcuda_mem_pool_malloc_at(pool, blocks[0], bytes < MIB ? 3 * MIB : 1000));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_mem_pool_malloc_at(pool, blocks[0], SIZE_MAX));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_mem_pool_malloc_at(pool, blocks[0], 0));
    check_same(&only, pool);

    /* Around it is what it was. */
    CHECK_OK(tcuda_mem_pool_malloc_at(pool, blocks[2], bytes));
    CHECK_OK(tcuda_mem_pool_malloc_at(pool, blocks[0], bytes));
    for (int i = 0; i < 3; i++)
        fill_bytes(blocks[i], i + 1, shorter, stream);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(count_other_bytes(blocks[i], i + 1, shorter, stream), 0);
    CHECK(are_live(pool, (const void *[]){ blocks[2], blocks[0], blocks[1], blocks[0] }, 4));
    CHECK(!are_live(pool, (const void *[]){ blocks[2], blocks[0] }, 2));
    CHECK(!are_live(pool, (const void *[]){ blocks[2], blocks[0], blocks[1], &pool }, 4));
    for (int i = 0; i < 3; i++)
        CHECK_OK(tcuda_free(blocks[i]));
    CHECK(are_live(pool, NULL, 0));
    CHECK_EQ(stat("allocated_bytes.all.current"), before);
    CHECK_EQ(stat("requested_bytes.all.current"), requested);

    /* Addresses of others are not the pool's. */
    tcuda_mem_pool *const other = create_pool();
    char *const outside = allocate(bytes, 0, stream);
    CHECK_OK(tcuda_free(outside));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_mem_pool_malloc_at(pool, outside, bytes));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_mem_pool_malloc_at(other, blocks[1], bytes));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_mem_pool_malloc_at(pool, &blocks, bytes));
    CHECK_OK(tcuda_mem_pool_destroy(other));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* Two streams; some blocks stay, some were freed, and new ones took their places. */
static void a_pool_returns_to_a_checkpoint(void)
{
    tcuda_mem_pool *const pool = create_pool();
    tcuda_stream *const streams[2] = { create_stream(0), create_stream(0) };
    enum { COUNT = 8 };
    static const size_t sizes[COUNT] = { 1000, 5000, 700, 3 * MIB, 100 * KIB, 9 * MIB, 1, 2 * MIB };
    unsigned char *blocks[COUNT];
    for (int i = 0; i < COUNT; i++) {
        blocks[i] = allocate_in(pool, sizes[i], streams[i % 2]);
        fill_bytes(blocks[i], i + 1, sizes[i], streams[i % 2]);
    }
    const list checkpoint = blocks_of(pool);
    CHECK_EQ(checkpoint.count, COUNT);
    const uint64_t freed = stat("allocation.all.freed");
    const uint64_t allocated = stat("allocation.all.allocated");
    const uint64_t bytes = stat("allocated_bytes.all.current");
    const uint64_t requested = stat("requested_bytes.all.current");

    for (int i = 0; i < COUNT; i += 3)
        CHECK_OK(tcuda_free(blocks[i]));
    void *stale[3] = { allocate_in(pool, 300, streams[0]), allocate_in(pool, 4 * MIB, streams[0]),
        allocate_in(pool, 2 * MIB, streams[1]) };
    CHECK_EQ(blocks_of(pool).count, COUNT);
    CHECK(!are_live(pool, (const void *const *)blocks, COUNT));

    CHECK_OK(tcuda_mem_pool_restore(pool, 0, checkpoint.blocks, checkpoint.count));
    check_same(&checkpoint, pool);
    CHECK(are_live(pool, (const void *const *)blocks, COUNT));
    CHECK_EQ(stat("allocation.all.freed"), freed + 3 + 3);
    CHECK_EQ(stat("allocation.all.allocated"), allocated + 3 + 3);
    CHECK_EQ(stat("allocated_bytes.all.current"), bytes);
    CHECK_EQ(stat("requested_bytes.all.current"), requested);
    /* Nothing was written. */
    for (int i = 0; i < COUNT; i++)
        CHECK_EQ(count_other_bytes(blocks[i], i + 1, sizes[i], streams[i % 2]), 0);
    for (int i = 0; i < 3; i++) {
        bool is_again = false;
        for (int j = 0; j < COUNT; j++)
            is_again |= stale[i] == blocks[j];
        if (!is_again)
            CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(stale[i]));
    }
    /* Again, in another order, from nothing, and with nothing to do. */
    list turned = checkpoint;
    for (size_t i = 0; i < COUNT; i++) {
        turned.blocks[i] = checkpoint.blocks[COUNT - 1 - i];
        CHECK_OK(tcuda_free(blocks[i]));
    }
    CHECK_OK(tcuda_mem_pool_restore(pool, 0, turned.blocks, COUNT));
    CHECK_OK(tcuda_mem_pool_restore(pool, 0, turned.blocks, COUNT));
    check_same(&checkpoint, pool);
    CHECK_EQ(stat("allocation.all.freed"), freed + 6 + COUNT);
    /* To nothing. */
    CHECK_OK(tcuda_mem_pool_restore(pool, 0, NULL, 0));
    CHECK(are_live(pool, NULL, 0));
    size_t count = 7;
    CHECK_OK(tcuda_mem_pool_blocks(pool, 0, NULL, 0, &count));
    CHECK_EQ(count, 0);
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_stream_destroy(streams[0]));
    CHECK_OK(tcuda_stream_destroy(streams[1]));
}

/* What other streams may still use is not freed, nor is its place given. */
static void other_streams_are_respected(void)
{
    tcuda_mem_pool *const pool = create_pool();
    tcuda_stream *const stream = create_stream(0), *const other = create_stream(0);
    unsigned char *const block = allocate_in(pool, 5000, stream);
    fill_bytes(block, 1, 5000, other);
    CHECK_OK(tcuda_stream_synchronize(other));
    const list checkpoint = blocks_of(pool), nothing = { .count = 0 };

    /* A block that is freed, and waits. */
    static gate held;
    CHECK_OK(tcuda_record_stream(block, other));
    gate_close(&held, other);
    CHECK_OK(tcuda_free(block));
    check_same(&nothing, pool);
    if (runs_late()) {
        CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER,
            tcuda_mem_pool_restore(pool, 0, checkpoint.blocks, 1));
        CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_mem_pool_malloc_at(pool, block, 5000));
        check_same(&nothing, pool);
    }
    gate_open(&held);
    CHECK_OK(tcuda_stream_synchronize(other));
    CHECK_OK(tcuda_mem_pool_restore(pool, 0, checkpoint.blocks, 1));
    check_same(&checkpoint, pool);

    /* A block that would be freed: nothing is done, also not for the other. */
    CHECK_OK(tcuda_free(block));
    char *const stale = allocate_in(pool, 3 * MIB, stream);
    CHECK_OK(tcuda_record_stream(stale, other));
    const list before = blocks_of(pool);
    const uint64_t freed = stat("allocation.all.freed");
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER,
        tcuda_mem_pool_restore(pool, 0, checkpoint.blocks, 1));
    check_same(&before, pool);
    CHECK_EQ(stat("allocation.all.freed"), freed);
    CHECK_OK(tcuda_free(stale));
    CHECK_OK(tcuda_stream_synchronize(other));
    CHECK_OK(tcuda_mem_pool_restore(pool, 0, checkpoint.blocks, 1));
    check_same(&checkpoint, pool);

    /* Lists that no pool gave. */
    list wrong = checkpoint;
    CHECK_OK(tcuda_free(block));
    wrong.blocks[1] = wrong.blocks[0];
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_mem_pool_restore(pool, 0, wrong.blocks, 2));
    wrong.blocks[0].stream_id = id_of(other);
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_mem_pool_restore(pool, 0, wrong.blocks, 1));
    wrong.blocks[0] = checkpoint.blocks[0];
    wrong.blocks[0].requested_bytes = wrong.blocks[0].bytes + 1;
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_mem_pool_restore(pool, 0, wrong.blocks, 1));
    check_same(&nothing, pool);
    CHECK_OK(tcuda_mem_pool_destroy(pool));

    /* Memory that went back to the driver. */
    CHECK_OK(tcuda_memory_empty_cache());
    tcuda_mem_pool *const next = create_pool();
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER,
        tcuda_mem_pool_restore(next, 0, checkpoint.blocks, 1));
    CHECK_OK(tcuda_mem_pool_destroy(next));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(other));
}

/* A graph's outputs are freed, others use the memory, and the next replay finds it as it was. */
static void a_graph_replays_from_a_checkpoint(void)
{
    tcuda_mem_pool *const pool = create_pool();
    tcuda_stream *const stream = create_stream(0);
    tcuda_graph *const graph = create_graph(0);
    unsigned char *const input = allocate(3 * MIB, 0, stream);
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, pool, TCUDA_CAPTURE_THREAD_LOCAL));
    unsigned char *const inner = allocate(3 * MIB, 0, stream);
    unsigned char *const small = allocate(1000, 0, stream);
    unsigned char *const output = allocate(3 * MIB, 0, stream);
    CHECK_OK(tcuda_copy(inner, input, 3 * MIB, stream));
    CHECK_OK(tcuda_copy(small, inner, 1000, stream));
    CHECK_OK(tcuda_copy(output, inner, 3 * MIB, stream));
    CHECK_OK(tcuda_free(inner));
    end(graph);
    CHECK(are_live(pool, (const void *[]){ small, output }, 2));
    const list checkpoint = blocks_of(pool);
    for (int round = 0; round < 3; round++) {
        fill_bytes(input, 10 + round, 3 * MIB, stream);
        replay(graph, stream);
        CHECK_EQ(count_other_bytes(output, 10 + round, 3 * MIB, stream), 0);
        CHECK_EQ(count_other_bytes(small, 10 + round, 1000, stream), 0);
        CHECK_OK(tcuda_free(output));
        if (round > 0)
            CHECK_OK(tcuda_free(small));
        void *junk[4];
        for (int i = 0; i < 4; i++) {
            junk[i] = allocate_in(pool, i == 3 ? 600 : 2 * MIB, stream);
            fill_bytes(junk[i], 99, 600, stream);
        }
        CHECK_OK(tcuda_free(junk[round]));
        CHECK_OK(tcuda_mem_pool_restore(pool, 0, checkpoint.blocks, checkpoint.count));
        CHECK(are_live(pool, (const void *[]){ small, output }, 2));
        check_same(&checkpoint, pool);
        fill_bytes(input, 20 + round, 3 * MIB, stream);
        replay(graph, stream);
        CHECK_EQ(count_other_bytes(output, 20 + round, 3 * MIB, stream), 0);
        CHECK_EQ(count_other_bytes(small, 20 + round, 1000, stream), 0);
    }
    CHECK_OK(tcuda_free(small));
    CHECK_OK(tcuda_free(output));
    CHECK_OK(tcuda_free(input));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* Small blocks of the second capture at addresses that the first chose, while it is captured. */
static void a_capture_may_allocate_at_addresses(void)
{
    tcuda_mem_pool *const pool = create_pool();
    tcuda_stream *const stream = create_stream(0);
    tcuda_graph *const graph = create_graph(0);
    unsigned char *const block = allocate_in(pool, 1000, stream);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, pool, TCUDA_CAPTURE_GLOBAL));
    CHECK_OK(tcuda_mem_pool_malloc_at(pool, block, 1000));
    fill_bytes(block, 5, 1000, stream);
    CHECK_OK(tcuda_free(block));
    end(graph);
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    replay(graph, stream);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_stream_destroy(stream));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    a_block_is_at_its_address_again(1000, 1 * KIB, 800);
    a_block_is_at_its_address_again(2 * MIB, 2 * MIB, 2 * MIB - 300);
    a_pool_returns_to_a_checkpoint();
    other_streams_are_respected();
    a_graph_replays_from_a_checkpoint();
    a_capture_may_allocate_at_addresses();
    CHECK_OK(tcuda_memory_empty_cache());
    return finish();
}
