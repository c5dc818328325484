/* Memory in segments of cuMemAlloc (expandable_segments:False), as PyTorch has it by default:
 * sizes, statistics, what goes before an allocation fails. Numbers are those of PyTorch for the
 * same calls. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

#define MIB ((size_t)1 << 20)

static uint64_t statistic(const char *key)
{
    uint64_t value = 0;
    CHECK_OK(tcuda_memory_stat(0, key, &value));
    return value;
}

static void configure(const char *more)
{
    char text[160];
    snprintf(text, sizeof text, "expandable_segments:False%s%s", more[0] == '\0' ? "" : ",", more);
    CHECK_OK(tcuda_allocator_config_set(text));
}

static void begin(void)
{
    configure("");
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_OK(tcuda_memory_reset_peak(0));
    CHECK_OK(tcuda_memory_reset_accumulated(0));
}

static void nothing_is_left(void)
{
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(statistic("reserved_bytes.all.current"), 0);
    CHECK_EQ(statistic("segment.all.current"), 0);
    CHECK_EQ(statistic("inactive_split.all.current"), 0);
}

static void runs_out(size_t bytes, tcuda_stream *stream)
{
    void *ptr = &ptr;
    CHECK_STATUS(TCUDA_STATUS_OUT_OF_MEMORY, tcuda_malloc(bytes, 0, stream, &ptr));
    CHECK(ptr == (void *)&ptr);
}

/* What a snapshot has of the segment at `ptr`. */
static tcuda_segment_info segment_of(const void *ptr, size_t *block_count)
{
    tcuda_memory_snapshot *snapshot = NULL;
    tcuda_segment_info info = TCUDA_INIT(tcuda_segment_info), found = info;
    size_t segments = 0, blocks = 0;
    CHECK_OK(tcuda_memory_snapshot_create(0, &snapshot));
    CHECK_OK(tcuda_memory_snapshot_counts(snapshot, &segments, &blocks));
    *block_count = 0;
    for (size_t i = 0; i < segments; i++) {
        CHECK_OK(tcuda_memory_snapshot_segment(snapshot, i, &info));
        const uintptr_t first = (uintptr_t)info.ptr, byte = (uintptr_t)ptr;
        if (byte >= first && byte - first < info.total_bytes) {
            found = info;
            *block_count = info.block_count;
        }
    }
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    return found;
}

static void blocks_share_segments(void)
{
    begin();
    void *const small = allocate(1000, 0, NULL), *const other = allocate(1, 0, NULL);
    CHECK_EQ(statistic("reserved_bytes.small_pool.current"), 2 * MIB);
    CHECK_EQ(statistic("inactive_split.all.current"), 1);
    CHECK_EQ(statistic("inactive_split_bytes.all.current"), 2 * MIB - 1024 - 512);
    void *const large = allocate(3 * MIB, 0, NULL), *const alone = allocate(31 * MIB, 0, NULL);
    CHECK_EQ(statistic("reserved_bytes.large_pool.current"), (20 + 32) * MIB);
    CHECK_EQ(statistic("allocated_bytes.large_pool.current"), (3 + 32) * MIB);
    CHECK_EQ(statistic("segment.all.current"), 3);
    CHECK_EQ(statistic("num_device_alloc"), 3);
    size_t blocks = 0;
    CHECK_EQ(segment_of(large, &blocks).total_bytes, 20 * MIB);
    CHECK_EQ(blocks, 2);
    CHECK(segment_of(small, &blocks).ptr == segment_of(other, &blocks).ptr);
    CHECK_EQ(blocks, 3);
    fill_bytes(large, 7, 3 * MIB, NULL);
    CHECK_EQ(count_other_bytes(large, 7, 3 * MIB, NULL), 0);
    CHECK_OK(tcuda_free(small));
    CHECK_EQ(statistic("inactive_split.all.current"), 3);
    CHECK_OK(tcuda_free(other));
    CHECK_EQ(statistic("inactive_split.all.current"), 1);
    CHECK_EQ(statistic("inactive_split.all.peak"), 3);
    CHECK_OK(tcuda_free(large));
    CHECK_OK(tcuda_free(alone));
    CHECK_EQ(statistic("inactive_split_bytes.all.current"), 0);
    /* The best fit is the smallest. */
    void *const again = allocate(10 * MIB, 0, NULL);
    CHECK(again == large);
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free((char *)again + 512));
    CHECK_OK(tcuda_free(again));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(again));
    nothing_is_left();
    CHECK_EQ(statistic("num_device_free"), 3);
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_free(again));
}

static void other_streams_are_waited_for(void)
{
    begin();
    tcuda_stream *const own = create_stream(0), *const other = create_stream(0);
    gate held = { 0 };
    void *const block = allocate(3 * MIB, 0, own);
    CHECK_OK(tcuda_record_stream(block, other));
    if (runs_late())
        gate_close(&held, other);
    CHECK_OK(tcuda_free(block));
    CHECK_EQ(statistic("active.all.current"), 1);
    if (runs_late()) {
        void *const meanwhile = allocate(3 * MIB, 0, own);
        CHECK(meanwhile != block);
        CHECK_OK(tcuda_free(meanwhile));
        gate_open(&held);
    }
    CHECK_OK(tcuda_stream_synchronize(other));
    CHECK_OK(tcuda_free(allocate(3 * MIB, 0, own)));
    CHECK_EQ(statistic("active.all.current"), 0);
    nothing_is_left();
    CHECK_OK(tcuda_stream_destroy(own));
    CHECK_OK(tcuda_stream_destroy(other));
}

/* Blocks from max_split_size on stay whole, and go first, the largest first. */
static void oversize_blocks_stay_whole(void)
{
    begin();
    configure("max_split_size_mb:24");
    tcuda_stream *const stream = create_stream(0);
    void *blocks[3] = { allocate(30 * MIB, 0, NULL), allocate(40 * MIB, 0, NULL),
        allocate(36 * MIB, 0, stream) };
    CHECK_EQ(statistic("oversize_segments.current"), 3);
    CHECK_EQ(statistic("oversize_allocations.current"), 3);
    for (int i = 0; i < 3; i++)
        CHECK_OK(tcuda_free(blocks[i]));
    CHECK_EQ(statistic("oversize_allocations.current"), 0);
    /* None of them is for less than 24 MiB, nor for what is 20 MiB smaller. */
    void *const small = allocate(12 * MIB, 0, NULL);
    CHECK_EQ(statistic("num_device_alloc"), 4);
    void *const fits = allocate(28 * MIB, 0, NULL);
    CHECK(fits == blocks[0]);
    CHECK_EQ(statistic("allocated_bytes.all.current"), (12 + 30) * MIB);
    CHECK_OK(tcuda_free(fits));
    /* Of 118 MiB, 26 are wanted more than the limit allows: the smallest that is enough goes, of
     * this stream, and nothing else. */
    limit_to((118 + 10) * MIB);
    void *const wanted = allocate(62 * MIB, 0, NULL);
    CHECK_EQ(statistic("num_alloc_retries"), 0);
    CHECK_EQ(statistic("reserved_bytes.all.current"), (118 - 70 + 62) * MIB);
    CHECK_EQ(statistic("oversize_segments.current"), 2);
    CHECK_OK(tcuda_free(wanted));
    CHECK_OK(tcuda_free(small));
    CHECK_OK(tcuda_memory_fraction_set(0, 1));
    nothing_is_left();
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* Above the threshold the unused large segments of at least average age go. */
static void the_oldest_garbage_goes(void)
{
    begin();
    configure("garbage_collection_threshold:0.5");
    limit_to(100 * MIB);
    void *const old = allocate(20 * MIB, 0, NULL), *const young = allocate(30 * MIB, 0, NULL);
    CHECK_OK(tcuda_free(old));
    for (int i = 0; i < 10; i++)
        CHECK_OK(tcuda_free(allocate(25 * MIB, 0, NULL)));
    CHECK_EQ(statistic("reserved_bytes.all.current"), (20 + 30 + 26) * MIB);
    CHECK_OK(tcuda_free(young));
    void *const more = allocate(40 * MIB, 0, NULL);
    CHECK_EQ(statistic("reserved_bytes.all.current"), (30 + 26 + 40 - 26 - 30) * MIB);
    CHECK_EQ(statistic("num_alloc_retries"), 0);
    CHECK_OK(tcuda_free(more));
    CHECK_OK(tcuda_memory_fraction_set(0, 1));
    nothing_is_left();
}

static void steps_before_a_failure(void)
{
    begin();
    tcuda_stream *const stream = create_stream(0);
    limit_to(64 * MIB);
    CHECK_OK(tcuda_free(allocate(30 * MIB, 0, stream)));
    void *const used = allocate(20 * MIB, 0, NULL);
    /* Another stream's cache goes only for a retry. */
    void *const more = allocate(40 * MIB, 0, NULL);
    CHECK_EQ(statistic("num_alloc_retries"), 1);
    CHECK_EQ(statistic("num_sync_all_streams"), 1);
    CHECK_EQ(statistic("reserved_bytes.all.current"), 60 * MIB);
    runs_out(3 * MIB, NULL);
    CHECK(strstr(tcuda_last_error(), "Tried to allocate 20.00 MiB. ") != NULL);
    CHECK(strstr(tcuda_last_error(), " 64.00 MiB allowed; Of the ") != NULL);
    CHECK_EQ(statistic("num_ooms"), 1);
    CHECK_OK(tcuda_free(allocate(1, 0, NULL)));
    CHECK_OK(tcuda_free(used));
    CHECK_OK(tcuda_free(more));
    CHECK_OK(tcuda_memory_fraction_set(0, 1));
    nothing_is_left();
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void the_driver_may_refuse(void)
{
    if (getenv("TCUDA_TEST_RECOVERY") != NULL)
        return; /* its rules would end those of the fault loop */
    begin();
    CHECK_OK(tcuda_backend_faults("cuMemAlloc@1=2"));
    void *block = allocate(3 * MIB, 0, NULL);
    CHECK_EQ(statistic("num_alloc_retries"), 1);
    CHECK_OK(tcuda_backend_faults("cuMemAlloc@1=2!"));
    runs_out(20 * MIB, NULL);
    CHECK_EQ(statistic("num_ooms"), 1);
    CHECK_OK(tcuda_backend_faults("cuMemAlloc@1=999"));
    void *ptr = NULL;
    CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_malloc(20 * MIB, 0, NULL, &ptr));
    CHECK_EQ(statistic("num_alloc_retries"), 2);
    CHECK_EQ(statistic("reserved_bytes.all.current"), 20 * MIB);
    CHECK_OK(tcuda_free(block));
    /* What the driver will not take back is not counted, and is tried again. */
    size_t unused = 0, before = 0, total = 0;
    CHECK_OK(tcuda_backend_faults(NULL));
    CHECK_OK(tcuda_memory_info(0, &before, &total));
    CHECK_OK(tcuda_backend_faults("cuMemFree@1=999"));
    CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_memory_empty_cache());
    CHECK_OK(tcuda_backend_faults(NULL));
    CHECK_EQ(statistic("reserved_bytes.all.current"), 0);
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_OK(tcuda_memory_info(0, &unused, &total));
    CHECK_EQ(unused, before + 20 * MIB);
}

static void the_setting_may_change(void)
{
    begin();
    CHECK_OK(tcuda_allocator_config_set("expandable_segments:True"));
    void *const mapped = allocate(3 * MIB, 0, NULL);
    configure("");
    void *const segment = allocate(3 * MIB, 0, NULL);
    CHECK_EQ(statistic("reserved_bytes.all.current"), 24 * MIB);
    CHECK_OK(tcuda_copy(segment, mapped, 3 * MIB, NULL));
    CHECK_OK(tcuda_free(mapped));
    CHECK_OK(tcuda_free(segment));
    nothing_is_left();
}

static void a_device_may_lack_virtual_memory(void)
{
    if (!on_simulator() || getenv("TCUDA_TEST_RECOVERY") != NULL)
        return;
    size_t live = 0;
    CHECK_OK(tcuda_shutdown(&live));
    CHECK_OK(tcuda_backend_select("sim", "memory=1GiB,virtual_memory=none"));
    void *const block = allocate(3 * MIB, 0, NULL);
    CHECK_EQ(statistic("reserved_bytes.all.current"), 20 * MIB);
    fill_bytes(block, 4, 3 * MIB, NULL);
    CHECK_EQ(count_other_bytes(block, 4, 3 * MIB, NULL), 0);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_shutdown(&live));
    CHECK_EQ(live, 0);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    blocks_share_segments();
    other_streams_are_waited_for();
    oversize_blocks_stay_whole();
    the_oldest_garbage_goes();
    steps_before_a_failure();
    the_driver_may_refuse();
    the_setting_may_change();
    a_device_may_lack_virtual_memory();
    return finish();
}
