/* Managed memory: blocks and pools of it, advice, prefetches, attachment. */
#include "support.h"

enum { MIB = 1 << 20, BYTES = 4 * MIB };

static tcuda_memory_range_info range_of(const void *ptr, size_t bytes)
{
    tcuda_memory_range_info info = TCUDA_INIT(tcuda_memory_range_info);
    CHECK_OK(tcuda_memory_range(ptr, bytes, &info));
    return info;
}

/* Can pages be moved one by one? On other devices the driver moves all. */
static bool can_move(void)
{
    tcuda_device_info info = TCUDA_INIT(tcuda_device_info);
    CHECK_OK(tcuda_device_properties(TCUDA_CURRENT_DEVICE, &info));
    return info.has_concurrent_managed_access != 0;
}

static unsigned char *allocate_managed(size_t bytes, uint32_t flags, tcuda_stream *stream)
{
    void *ptr = NULL;
    CHECK_OK(tcuda_managed_malloc(bytes, TCUDA_CURRENT_DEVICE, stream, flags, &ptr));
    CHECK(ptr != NULL);
    return ptr;
}

/* The host writes, the device reads and writes, the host reads. */
static void both_sides_use_it(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    uint64_t before = 0, now = 0;
    CHECK_OK(tcuda_memory_allocated(TCUDA_CURRENT_DEVICE, &before));
    unsigned char *const shared = allocate_managed(BYTES, 0, stream);
    CHECK_OK(tcuda_memory_allocated(TCUDA_CURRENT_DEVICE, &now));
    CHECK_EQ(now - before, BYTES);
    int32_t device = -1;
    CHECK_OK(tcuda_device_of(shared, &device));
    CHECK_EQ(device, current_device());
    memset(shared, 3, BYTES);
    unsigned char *const plain = allocate(BYTES, TCUDA_CURRENT_DEVICE, stream);
    CHECK_OK(tcuda_copy(plain, shared, BYTES, stream));
    CHECK_EQ(count_other_bytes(plain, 3, BYTES, stream), 0);
    fill_bytes(shared, 4, BYTES / 2, stream);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK(shared[0] == 4 && shared[BYTES / 2 - 1] == 4);
    CHECK(shared[BYTES / 2] == 3 && shared[BYTES - 1] == 3);
    CHECK_OK(tcuda_free(plain));
    CHECK_OK(tcuda_free(shared));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(shared));
    CHECK_OK(tcuda_memory_allocated(TCUDA_CURRENT_DEVICE, &now));
    CHECK_EQ(now, before);
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void advice_is_known(void)
{
    unsigned char *const shared = allocate_managed(BYTES, 0, NULL);
    const int32_t own = current_device();
    tcuda_memory_range_info info = range_of(shared, BYTES);
    /* PyTorch's advice, unless it was refused. */
    CHECK(info.preferred_device == own && info.accessed_by == UINT64_C(1) << own);
    CHECK(info.is_read_mostly == 0 && info.is_accessed_by_host == 0);
    CHECK_EQ(info.prefetched_device, -1);
    CHECK_OK(tcuda_free(shared));

    unsigned char *const other = allocate_managed(BYTES, TCUDA_MANAGED_NO_ADVICE, NULL);
    info = range_of(other, BYTES);
    CHECK(info.preferred_device == -1 && info.accessed_by == 0);
    CHECK_OK(tcuda_memory_advise(other, MIB * 2, TCUDA_ADVISE_SET_READ_MOSTLY, own));
    CHECK_EQ(range_of(other, MIB * 2).is_read_mostly, 1);
    /* Not all of it. */
    CHECK_EQ(range_of(other, BYTES).is_read_mostly, 0);
    CHECK_OK(tcuda_memory_advise(other, MIB * 2, TCUDA_ADVISE_UNSET_READ_MOSTLY, own));
    CHECK_EQ(range_of(other, MIB * 2).is_read_mostly, 0);
    CHECK_OK(tcuda_memory_advise(
        other, BYTES, TCUDA_ADVISE_SET_PREFERRED_LOCATION, TCUDA_CPU_DEVICE));
    CHECK_EQ(range_of(other, BYTES).preferred_device, TCUDA_CPU_DEVICE);
    CHECK_OK(tcuda_memory_advise(
        other, BYTES, TCUDA_ADVISE_UNSET_PREFERRED_LOCATION, TCUDA_CURRENT_DEVICE));
    CHECK_EQ(range_of(other, BYTES).preferred_device, -1);
    CHECK_OK(tcuda_memory_advise(other, BYTES, TCUDA_ADVISE_SET_ACCESSED_BY, TCUDA_CPU_DEVICE));
    CHECK_OK(tcuda_memory_advise(
        other, BYTES, TCUDA_ADVISE_SET_ACCESSED_BY, TCUDA_CURRENT_DEVICE));
    info = range_of(other, BYTES);
    CHECK(info.is_accessed_by_host == 1 && info.accessed_by == UINT64_C(1) << own);
    CHECK_OK(tcuda_memory_advise(
        other, BYTES, TCUDA_ADVISE_UNSET_ACCESSED_BY, TCUDA_CURRENT_DEVICE));
    info = range_of(other, BYTES);
    CHECK(info.is_accessed_by_host == 1 && info.accessed_by == 0);
    CHECK_OK(tcuda_free(other));
}

/* Both ways, in the order of a stream, and the bytes stay. */
static void pages_move(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *const shared = allocate_managed(BYTES, TCUDA_MANAGED_PREFETCH, stream);
    CHECK_EQ(range_of(shared, BYTES).prefetched_device, current_device());
    fill_bytes(shared, 5, BYTES, stream);
    CHECK_OK(tcuda_memory_prefetch(shared, BYTES, TCUDA_CPU_DEVICE, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_EQ(range_of(shared, BYTES).prefetched_device, TCUDA_CPU_DEVICE);
    for (size_t i = 0; i < BYTES; i++)
        CHECK(shared[i] == 5);
    memset(shared, 6, BYTES);
    CHECK_OK(tcuda_memory_prefetch(shared, BYTES / 2, TCUDA_CURRENT_DEVICE, stream));
    CHECK_EQ(range_of(shared, BYTES / 2).prefetched_device, current_device());
    CHECK_EQ(range_of(shared, BYTES).prefetched_device, -1);
    CHECK_EQ(count_other_bytes(shared, 6, BYTES, stream), 0);

    CHECK_OK(tcuda_memory_attach(shared, BYTES, TCUDA_ATTACH_SINGLE, stream));
    fill_bytes(shared, 7, BYTES, stream);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK(shared[0] == 7 && shared[BYTES - 1] == 7);
    CHECK_OK(tcuda_memory_attach(shared, BYTES, TCUDA_ATTACH_GLOBAL, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_free(shared));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* PyTorch's _use_uvm: a pool whose blocks are managed, cached as others are. */
static void pools_are_managed(void)
{
    tcuda_pluggable_allocator *allocator = NULL;
    tcuda_mem_pool *pool = NULL;
    CHECK_OK(tcuda_pluggable_allocator_managed(0, &allocator));
    CHECK_OK(tcuda_mem_pool_create(allocator, 0, &pool));
    CHECK_OK(tcuda_pluggable_allocator_destroy(allocator));
    CHECK_OK(tcuda_mem_pool_begin(pool, TCUDA_CURRENT_DEVICE));
    const uint64_t before = calls_of("cuMemAllocManaged");
    for (int round = 0; round < 3; round++) {
        unsigned char *const block = allocate(BYTES, TCUDA_CURRENT_DEVICE, NULL);
        unsigned char *const second = allocate(MIB, TCUDA_CURRENT_DEVICE, NULL);
        memset(block, round, BYTES);
        CHECK_OK(tcuda_copy(second, block, MIB, NULL));
        CHECK_OK(tcuda_stream_synchronize(NULL));
        CHECK(second[0] == round && second[MIB - 1] == round);
        CHECK_EQ(range_of(block, BYTES).preferred_device, current_device());
        CHECK_OK(tcuda_free(second));
        CHECK_OK(tcuda_free(block));
    }
    const uint64_t calls = calls_of("cuMemAllocManaged") - before;
    CHECK(calls >= 1 && calls <= 2);
    CHECK_OK(tcuda_mem_pool_end(pool, TCUDA_CURRENT_DEVICE));
    /* Outside of it memory is the device's own. */
    void *const plain = allocate(BYTES, TCUDA_CURRENT_DEVICE, NULL);
    tcuda_memory_range_info info = TCUDA_INIT(tcuda_memory_range_info);
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_memory_range(plain, BYTES, &info));
    CHECK_OK(tcuda_free(plain));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_memory_empty_cache());
}

static void *opens_late(void *held)
{
    sleep_ms(50);
    gate_open(held);
    return NULL;
}

/* A stream of another device that used a block is waited for before it is freed. */
static void other_devices_use_it(void)
{
    tcuda_device_info info = TCUDA_INIT(tcuda_device_info);
    if (num_devices() < 2)
        return;
    CHECK_OK(tcuda_device_properties(1, &info));
    if (info.has_concurrent_managed_access == 0)
        return;
    tcuda_stream *const far = create_stream(1);
    unsigned char *const shared = allocate_managed(BYTES, 0, NULL);
    gate held;
    memset(shared, 1, BYTES);
    gate_close(&held, far);
    fill_bytes(shared, 2, BYTES, far);
    CHECK_OK(tcuda_memory_prefetch(shared, BYTES, 1, far));
    CHECK_OK(tcuda_record_stream(shared, far));
    const pthread_t opener = start_thread(opens_late, &held);
    CHECK_OK(tcuda_free(shared));
    if (runs_late())
        CHECK(atomic_load(&held.is_open));
    join_thread(opener);
    bool done = false;
    CHECK_OK(tcuda_stream_query(far, &done));
    CHECK(done);
    CHECK_OK(tcuda_stream_destroy(far));
}

static void bad_arguments(void)
{
    void *const none = (void *)&none, *ptr = none;
    unsigned char *const shared = allocate_managed(BYTES, 0, NULL);
    unsigned char host[64];
    tcuda_memory_range_info info = TCUDA_INIT(tcuda_memory_range_info);
    tcuda_pluggable_allocator *allocator = NULL;
    CHECK_OK(tcuda_managed_malloc(0, TCUDA_CURRENT_DEVICE, NULL, 0, &ptr));
    CHECK(ptr == NULL);
    ptr = none;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_managed_malloc(BYTES, TCUDA_CURRENT_DEVICE, NULL, 8, &ptr));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_managed_malloc(BYTES, 99, NULL, 0, &ptr));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_managed_malloc(BYTES, TCUDA_CURRENT_DEVICE, NULL, 0, NULL));
    if (on_simulator())
        CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY,
            tcuda_managed_malloc(SIZE_MAX / 2, TCUDA_CURRENT_DEVICE, NULL, 0, &ptr));
    CHECK(ptr == none);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_pluggable_allocator_managed(8, &allocator));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_pluggable_allocator_managed(0, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_advise(NULL, BYTES, 1, 0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_advise(shared, 0, 1, 0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_advise(shared, SIZE_MAX, 1, 0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_advise(shared, BYTES, 0, 0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_advise(shared, BYTES, 7, 0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_memory_advise(shared, BYTES, 3, 99));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_memory_prefetch(shared, BYTES, 99, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_prefetch(shared, 0, 0, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_attach(shared, BYTES, 3, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_memory_attach(shared, BYTES, TCUDA_ATTACH_SINGLE, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_range(shared, BYTES, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_memory_range(host, sizeof host, &info));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER,
        tcuda_memory_range(shared, (size_t)1 << 40, &info));
    CHECK_OK(tcuda_free(shared));
    CHECK_OK(tcuda_free(NULL));
}

/* It counts towards the share of memory that the process may use. */
static void the_fraction_counts(void)
{
    void *const none = (void *)&none, *ptr = none;
    limit_to(BYTES);
    unsigned char *const shared = allocate_managed(BYTES, 0, NULL);
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY,
        tcuda_managed_malloc(1, TCUDA_CURRENT_DEVICE, NULL, 0, &ptr));
    CHECK(ptr == none);
    CHECK_OK(tcuda_free(shared));
    CHECK_OK(tcuda_memory_fraction_set(0, 1.0));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    the_fraction_counts();
    both_sides_use_it();
    if (can_move()) {
        advice_is_known();
        pages_move();
        pools_are_managed();
        other_devices_use_it();
    }
    bad_arguments();
    return finish();
}
