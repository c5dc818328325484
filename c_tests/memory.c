/* Memory: blocks, wrong pointers, handles, the order of streams, the cache. */
#include "check.h"

#include <stdatomic.h>
#include <time.h>

enum { KIB = 1 << 10, MIB = 1 << 20 };

static tcuda_memory_statistics statistics(void)
{
    tcuda_memory_statistics stats = TCUDA_INIT(tcuda_memory_statistics);
    CHECK_OK(tcuda_memory_stats(0, &stats));
    return stats;
}

/* The struct has no padding: all of its fields are 64 bits wide. */
static bool is_equal(tcuda_memory_statistics a, tcuda_memory_statistics b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static tcuda_stream *new_stream(void)
{
    tcuda_stream *stream = NULL;
    CHECK_OK(tcuda_stream_create(0, 0, &stream));
    return stream;
}

static char *allocate(size_t bytes, tcuda_stream *stream)
{
    void *ptr = NULL;
    CHECK_OK(tcuda_malloc(bytes, 0, stream, &ptr));
    CHECK(ptr != NULL);
    CHECK_EQ((uintptr_t)ptr % 512, 0);
    return (char *)ptr;
}

static void no_bytes_are_no_block(void)
{
    const tcuda_memory_statistics before = statistics();
    void *ptr = &ptr;
    CHECK_OK(tcuda_malloc(0, TCUDA_CURRENT_DEVICE, NULL, &ptr));
    CHECK(ptr == NULL);
    CHECK_OK(tcuda_free(NULL));
    CHECK_OK(tcuda_record_stream(NULL, NULL));
    CHECK(is_equal(statistics(), before));
}

static void sizes_are_rounded_to_512(void)
{
    static const size_t cases[][2] = { { 1, 512 }, { 511, 512 }, { 512, 512 }, { 513, 1024 },
        { 1000, 1024 }, { MIB - 1, MIB }, { MIB, MIB }, { MIB + 1, MIB + 512 },
        { 2 * MIB, 2 * MIB }, { 3 * MIB + 7, 3 * MIB + 512 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tcuda_memory_statistics before = statistics();
        void *const ptr = allocate(cases[i][0], NULL);
        const tcuda_memory_statistics after = statistics();
        const bool is_small = cases[i][1] <= MIB;
        const uint64_t rounded = cases[i][1];
        CHECK_EQ(after.allocated_bytes.all.current - before.allocated_bytes.all.current, rounded);
        CHECK_EQ(after.active_bytes.all.current - before.active_bytes.all.current, rounded);
        CHECK_EQ(after.requested_bytes.all.current - before.requested_bytes.all.current,
            cases[i][0]);
        CHECK_EQ(after.allocation.small_pool.current - before.allocation.small_pool.current,
            is_small);
        CHECK_EQ(after.allocation.large_pool.current - before.allocation.large_pool.current,
            !is_small);
        CHECK_OK(tcuda_free(ptr));
        CHECK_EQ(statistics().allocated_bytes.all.current, before.allocated_bytes.all.current);
        CHECK_EQ(statistics().requested_bytes.all.current, before.requested_bytes.all.current);
    }
}

static void is_refused(void *ptr)
{
    const tcuda_memory_statistics before = statistics();
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(ptr));
    CHECK(strstr(tcuda_last_error(), "invalid device pointer: 0x") == tcuda_last_error());
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_record_stream(ptr, NULL));
    CHECK(is_equal(statistics(), before));
}

static void wrong_pointers_are_refused(void)
{
    int on_stack = 0;
    void *const on_heap = malloc(512);
    is_refused(&on_stack);
    is_refused(on_heap);
    is_refused((void *)(uintptr_t)1);
    is_refused((void *)UINTPTR_MAX);
    free(on_heap);

    static const size_t sizes[] = { 2000, 5 * MIB };
    for (size_t i = 0; i < 2; i++) {
        char *const block = allocate(sizes[i], NULL);
        char *const next = allocate(sizes[i], NULL);
        is_refused(block + 1);
        is_refused(block + 512);
        is_refused(block + sizes[i] / 2 / 512 * 512);
        is_refused(block + sizes[i] - 1);
        CHECK_OK(tcuda_free(block));
        is_refused(block);
        CHECK(strstr(tcuda_last_error(), "was freed already") != NULL);
        CHECK_OK(tcuda_free(next));
        is_refused(next);
        is_refused(block);
    }
}

static void a_stream_gets_its_memory_back(void)
{
    tcuda_stream *const first = new_stream(), *const second = new_stream();
    static const size_t sizes[] = { 1000, 4 * MIB };
    for (size_t i = 0; i < 2; i++) {
        char *const kept = allocate(sizes[i], first);
        char *const block = allocate(sizes[i], first);
        char *const foreign = allocate(sizes[i], second);
        CHECK_OK(tcuda_free(block));
        CHECK_OK(tcuda_free(foreign));
        /* Both were needed at a time, so that each stream has its own. */
        CHECK(allocate(sizes[i], second) == foreign);
        CHECK(allocate(sizes[i], first) == block);
        CHECK_OK(tcuda_free(block));
        CHECK_OK(tcuda_free(kept));
        CHECK_OK(tcuda_free(foreign));
    }
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
}

static void the_current_stream_is_the_default(void)
{
    tcuda_stream *const stream = new_stream();
    tcuda_stream *previous = NULL;
    int32_t device = -1;
    char *const block = allocate(KIB, stream);
    CHECK_OK(tcuda_free(block));
    char *const foreign = allocate(KIB, NULL);
    CHECK(foreign != block);
    CHECK_OK(tcuda_stream_exchange(stream, &previous, &device));
    CHECK(allocate(KIB, NULL) == block);
    CHECK_OK(tcuda_stream_set_current(previous));
    CHECK_OK(tcuda_free(foreign));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void allocations_are_objects(void)
{
    tcuda_stream *const stream = new_stream();
    tcuda_stream *of = NULL;
    tcuda_allocation *allocation = NULL;
    void *ptr = NULL;
    size_t bytes = 0;
    int32_t device = -1;
    int64_t id = -1, expected_id = -2;
    const uint64_t before = statistics().allocation.all.current;

    CHECK_OK(tcuda_allocation_create(1000, TCUDA_CURRENT_DEVICE, stream, &allocation));
    CHECK_OK(tcuda_allocation_pointer(allocation, &ptr));
    CHECK_OK(tcuda_allocation_bytes(allocation, &bytes));
    CHECK_OK(tcuda_allocation_device(allocation, &device));
    CHECK_OK(tcuda_allocation_stream(allocation, &of));
    CHECK_OK(tcuda_stream_id(of, &id));
    CHECK_OK(tcuda_stream_id(stream, &expected_id));
    CHECK(ptr != NULL);
    CHECK_EQ(bytes, 1000);
    CHECK_EQ(device, 0);
    CHECK_EQ(id, expected_id);
    CHECK_EQ(statistics().allocation.all.current, before + 1);
    CHECK_OK(tcuda_allocation_destroy(allocation));
    CHECK_EQ(statistics().allocation.all.current, before);
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_allocation_destroy(allocation));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_allocation_bytes(allocation, &bytes));
    CHECK_EQ(bytes, 1000);
    is_refused(ptr);

    CHECK_OK(tcuda_allocation_create(0, 0, NULL, &allocation));
    CHECK_OK(tcuda_allocation_pointer(allocation, &ptr));
    CHECK_OK(tcuda_allocation_bytes(allocation, &bytes));
    CHECK(ptr == NULL && bytes == 0);
    CHECK_EQ(statistics().allocation.all.current, before);
    CHECK_OK(tcuda_allocation_destroy(allocation));
    CHECK_OK(tcuda_allocation_destroy(NULL));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void a_stream_is_of_one_device(void)
{
    int32_t count = 0, device = -1;
    void *ptr = NULL;
    CHECK_OK(tcuda_device_count(&count));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_malloc(KIB, count, NULL, &ptr));
    if (count < 2)
        return;
    tcuda_stream *other = NULL;
    CHECK_OK(tcuda_stream_create(1, 0, &other));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_malloc(KIB, 0, other, &ptr));
    CHECK(ptr == NULL);
    tcuda_allocation *allocation = NULL;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_allocation_create(KIB, 0, other, &allocation));
    /* Its own device, or none, will do. */
    CHECK_OK(tcuda_allocation_create(KIB, TCUDA_CURRENT_DEVICE, other, &allocation));
    CHECK_OK(tcuda_allocation_device(allocation, &device));
    CHECK_EQ(device, 1);
    CHECK_OK(tcuda_allocation_destroy(allocation));
    CHECK_OK(tcuda_malloc(KIB, 1, other, &ptr));
    CHECK_OK(tcuda_free(ptr));
    CHECK_OK(tcuda_stream_destroy(other));
}

static atomic_bool is_open;

static void wait_until_open(void *user_data)
{
    const struct timespec pause_between = { 0, 1000000 };
    (void)user_data;
    while (!atomic_load(&is_open) && !atomic_load(&recovery_began))
        nanosleep(&pause_between, NULL);
}

static void set_open(bool open)
{
    atomic_store(&is_open, open);
}

static void a_recorded_block_waits_for_its_streams(void)
{
    tcuda_stream *const own = new_stream(), *const other = new_stream();
    const tcuda_memory_statistics before = statistics();
    char *const block = allocate(1000, own);
    CHECK_OK(tcuda_record_stream(block, other));
    set_open(false);
    CHECK_OK(tcuda_stream_add_callback(other, wait_until_open, NULL, NULL));
    CHECK_OK(tcuda_free(block));
    tcuda_memory_statistics now = statistics();
    CHECK_EQ(now.allocation.all.current, before.allocation.all.current);
    CHECK_EQ(now.allocated_bytes.all.current, before.allocated_bytes.all.current);
    CHECK_EQ(now.active.all.current, before.active.all.current + 1);
    CHECK_EQ(now.active_bytes.all.current, before.active_bytes.all.current + 1024);
    CHECK_EQ(now.requested_bytes.all.current, before.requested_bytes.all.current + 1000);
    is_refused(block);
    char *const meanwhile = allocate(1000, own);
    CHECK(meanwhile != block);
    set_open(true);
    CHECK_OK(tcuda_stream_synchronize(other));
    CHECK(allocate(1000, own) == block);
    CHECK_EQ(statistics().active.all.current, before.active.all.current + 2);

    /* Its own stream is no other stream. */
    CHECK_OK(tcuda_record_stream(block, own));
    CHECK_OK(tcuda_free(block));
    CHECK(allocate(1000, own) == block);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_free(meanwhile));
    now = statistics();
    CHECK_EQ(now.active.all.current, before.active.all.current);
    CHECK_EQ(now.requested_bytes.all.current, before.requested_bytes.all.current);
    CHECK_OK(tcuda_stream_destroy(own));
    CHECK_OK(tcuda_stream_destroy(other));
}

static void an_empty_cache_is_the_drivers_again(void)
{
    enum { BYTES = 32 * MIB };
    size_t free_before = 0, free_during = 0, free_after = 0, total = 0;
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(statistics().reserved_bytes.all.current, 0);
    CHECK_EQ(statistics().segment.all.current, 0);
    CHECK_OK(tcuda_memory_info(0, &free_before, &total));
    char *const block = allocate(BYTES, NULL);
    char *const other = allocate(KIB, NULL);
    CHECK_EQ(statistics().reserved_bytes.all.current, BYTES + 2 * MIB);
    CHECK_OK(tcuda_free(block));
    /* The cache keeps it. */
    CHECK_EQ(statistics().reserved_bytes.all.current, BYTES + 2 * MIB);
    CHECK_OK(tcuda_memory_info(0, &free_during, &total));
    CHECK(free_before - free_during >= BYTES);
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(statistics().reserved_bytes.all.current, 2 * MIB);
    CHECK_OK(tcuda_memory_info(0, &free_after, &total));
    CHECK(free_after - free_during >= BYTES);
    CHECK(free_after <= total);
    is_refused(block);
    /* Addresses are used again. */
    CHECK(allocate(BYTES, NULL) == block);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_free(other));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(statistics().reserved_bytes.all.current, 0);
}

typedef struct block {
    char *ptr;
    size_t bytes;
    uint32_t tag;
} block;

static uint32_t random_state = 2463534242u;

static uint32_t random_below(uint32_t bound)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state % bound;
}

static void holds_its_tag(const block *b)
{
    uint32_t first = 0, last = 0;
    CHECK_OK(tcuda_copy(&first, b->ptr, sizeof first, NULL));
    CHECK_OK(tcuda_copy(&last, b->ptr + b->bytes - sizeof last, sizeof last, NULL));
    CHECK_EQ(first, b->tag);
    CHECK_EQ(last, b->tag);
}

/* All on one stream, whose order makes the copies see the fills. */
static void blocks_keep_what_is_written(void)
{
    enum { BLOCKS = 48, ROUNDS = 600 };
    static block blocks[BLOCKS];
    for (uint32_t round = 0; round < ROUNDS; round++) {
        block *const b = &blocks[random_below(BLOCKS)];
        if (b->ptr != NULL) {
            holds_its_tag(b);
            CHECK_OK(tcuda_free(b->ptr));
        }
        const uint32_t largest = round % 8 == 0 ? 2 * MIB : 20 * KIB;
        b->bytes = (1 + random_below(largest / 4)) * sizeof b->tag;
        b->ptr = allocate(b->bytes, NULL);
        b->tag = round + 1;
        CHECK_OK(tcuda_fill(b->ptr, &b->tag, sizeof b->tag, b->bytes / sizeof b->tag, NULL));
        if (round % 100 == 99)
            CHECK_OK(tcuda_memory_empty_cache());
    }
    for (block *b = blocks; b < blocks + BLOCKS; b++) {
        if (b->ptr == NULL)
            continue;
        holds_its_tag(b);
        CHECK_OK(tcuda_free(b->ptr));
    }
}

static void an_address_has_a_base(void)
{
    char *const block = allocate(3000, NULL), *const other = allocate(3000, NULL);
    void *base = NULL, *same = NULL;
    size_t bytes = 0, again = 0;
    CHECK_OK(tcuda_memory_base(block + 2999, &base, &bytes));
    CHECK((char *)base <= block && block + 3000 <= (char *)base + bytes);
    CHECK_OK(tcuda_memory_base((char *)base + bytes - 1, &same, &again));
    CHECK(same == base && again == bytes);
    CHECK_OK(tcuda_memory_base(other, &same, &again));
    CHECK(same == base && again == bytes); /* of one segment */
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_free(other));
    int local = 0;
    void *unset = &local;
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_memory_base(&local, &unset, &bytes));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_base(NULL, &unset, &bytes));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_base(base, NULL, &bytes));
    CHECK(unset == &local && bytes == again);
}

int main(void)
{
    /* A stream that can be held up, and a second device; small, so that valgrind can run it. */
    if (strcmp(tcuda_backend_name(), "sim") == 0)
        CHECK_OK(tcuda_backend_select("sim",
            "devices=2,memory=128MiB,schedule=threads,leaks=report"));
    SKIP_WITHOUT_GPU();
    no_bytes_are_no_block();
    sizes_are_rounded_to_512();
    wrong_pointers_are_refused();
    a_stream_gets_its_memory_back();
    the_current_stream_is_the_default();
    allocations_are_objects();
    a_stream_is_of_one_device();
    a_recorded_block_waits_for_its_streams();
    an_empty_cache_is_the_drivers_again();
    blocks_keep_what_is_written();
    an_address_has_a_base();
    const tcuda_memory_statistics end = statistics();
    CHECK_EQ(end.allocation.all.allocated, end.allocation.all.freed);
    CHECK_EQ(end.active_bytes.all.current, 0);
    return finish();
}
