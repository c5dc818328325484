/* Snapshots: what they show of blocks, that they add up, alone and under other threads. */
#define _POSIX_C_SOURCE 200809L
#include "support.h"

enum { KIB = 1 << 10, MIB = 1 << 20, THREADS = 4, ROUNDS = 3000, HELD = 16 };

/* Up to which size a block lies in a segment of small ones: PyTorch's line where it has PyTorch's
   segments, the library's own where memory is mapped. */
static size_t largest_small(void)
{
    return in_segments() ? MIB : 64 * KIB;
}

static tcuda_memory_snapshot *take(void)
{
    tcuda_memory_snapshot *snapshot = NULL;
    CHECK_OK(tcuda_memory_snapshot_create(0, &snapshot));
    CHECK(snapshot != NULL);
    return snapshot;
}

static size_t num_segments(tcuda_memory_snapshot *snapshot)
{
    size_t segments = 0, blocks = 0;
    CHECK_OK(tcuda_memory_snapshot_counts(snapshot, &segments, &blocks));
    return segments;
}

static tcuda_segment_info segment_at(tcuda_memory_snapshot *snapshot, size_t index)
{
    tcuda_segment_info segment = TCUDA_INIT(tcuda_segment_info);
    CHECK_OK(tcuda_memory_snapshot_segment(snapshot, index, &segment));
    return segment;
}

static tcuda_block_info block_at(tcuda_memory_snapshot *snapshot, size_t index)
{
    tcuda_block_info block = TCUDA_INIT(tcuda_block_info);
    CHECK_OK(tcuda_memory_snapshot_block(snapshot, index, &block));
    return block;
}

/* Blocks partition their segment, sums are right, everything is in order. */
static void check_whole(tcuda_memory_snapshot *snapshot)
{
    size_t segments = 0, blocks = 0, next = 0;
    CHECK_OK(tcuda_memory_snapshot_counts(snapshot, &segments, &blocks));
    int32_t device = 0;
    uintptr_t end = 0;
    for (size_t i = 0; i < segments; i++) {
        const tcuda_segment_info segment = segment_at(snapshot, i);
        CHECK(segment.device >= device && segment.device < num_devices());
        if (segment.device > device)
            end = 0;
        device = segment.device;
        CHECK((uintptr_t)segment.ptr >= end);
        CHECK_EQ(segment.first_block, next);
        CHECK(segment.block_count > 0);
        uintptr_t at = (uintptr_t)segment.ptr;
        uint64_t allocated = 0, active = 0, requested = 0;
        for (size_t j = 0; j < segment.block_count; j++) {
            const tcuda_block_info block = block_at(snapshot, next++);
            CHECK((uintptr_t)block.ptr == at);
            CHECK(block.bytes > 0);
            CHECK_EQ(block.bytes % 512, 0);
            CHECK_EQ(block.device, segment.device);
            CHECK(block.requested_bytes <= block.bytes);
            CHECK_EQ(block.requested_bytes == 0, block.state == TCUDA_BLOCK_INACTIVE);
            if (block.state != TCUDA_BLOCK_INACTIVE)
                CHECK_EQ(block.bytes <= largest_small(), segment.is_small);
            allocated += block.state == TCUDA_BLOCK_ACTIVE_ALLOCATED ? block.bytes : 0;
            active += block.state != TCUDA_BLOCK_INACTIVE ? block.bytes : 0;
            requested += block.requested_bytes;
            at += block.bytes;
        }
        end = (uintptr_t)segment.ptr + segment.total_bytes;
        CHECK(at == end);
        CHECK_EQ(segment.allocated_bytes, allocated);
        CHECK_EQ(segment.active_bytes, active);
        CHECK_EQ(segment.requested_bytes, requested);
    }
    CHECK_EQ(next, blocks);
}

/* The block that starts at `ptr`, and its segment. */
static tcuda_block_info find(tcuda_memory_snapshot *snapshot, const void *ptr,
    tcuda_segment_info *segment)
{
    for (size_t i = 0; i < num_segments(snapshot); i++) {
        *segment = segment_at(snapshot, i);
        for (size_t j = 0; j < segment->block_count; j++) {
            const tcuda_block_info block = block_at(snapshot, segment->first_block + j);
            if (block.ptr == ptr)
                return block;
        }
    }
    check_failed(__FILE__, __LINE__, "no block starts there", "");
    return block_at(snapshot, 0);
}

static int32_t state_of(const void *ptr)
{
    tcuda_memory_snapshot *const snapshot = take();
    tcuda_segment_info segment;
    check_whole(snapshot);
    const tcuda_block_info block = find(snapshot, ptr, &segment);
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    return block.state;
}

static void nothing_is_there_before_initialisation(void)
{
    bool initialized = true;
    tcuda_memory_snapshot *const snapshot = take();
    CHECK_OK(tcuda_is_initialized(&initialized));
    CHECK(!initialized);
    CHECK_EQ(num_segments(snapshot), 0);
    tcuda_block_info block = TCUDA_INIT(tcuda_block_info);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_snapshot_block(snapshot, 0, &block));
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
}

static void a_block_is_shown_with_its_size_stream_and_device(void)
{
    static const size_t sizes[] = { 1, 513, 64 * KIB, 64 * KIB + 1, MIB, MIB + 1, 30 * MIB };
    const int32_t device = num_devices() - 1;
    tcuda_stream *const stream = create_stream(device);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *const ptr = allocate(sizes[i], device, stream);
        tcuda_memory_snapshot *const snapshot = take();
        tcuda_segment_info segment;
        const tcuda_block_info block = find(snapshot, ptr, &segment);
        CHECK_EQ(block.state, TCUDA_BLOCK_ACTIVE_ALLOCATED);
        CHECK_EQ(block.requested_bytes, sizes[i]);
        CHECK_EQ(block.bytes, (sizes[i] + 511) / 512 * 512);
        CHECK_EQ(block.device, device);
        CHECK_EQ(segment.device, device);
        CHECK_EQ(segment.stream_id, id_of(stream));
        CHECK(segment.cu_stream == native_of(stream));
        CHECK_EQ(segment.is_small, sizes[i] <= largest_small());
        /* A snapshot is of its moment. */
        CHECK_OK(tcuda_free(ptr));
        CHECK_EQ(find(snapshot, ptr, &segment).state, TCUDA_BLOCK_ACTIVE_ALLOCATED);
        CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    }
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void a_block_that_awaits_streams_is_pending(void)
{
    tcuda_stream *const own = create_stream(0), *const other = create_stream(0);
    static gate held;
    char *const block = allocate(KIB, 0, own);
    char *const guard = allocate(KIB, 0, own);
    CHECK_OK(tcuda_record_stream(block, other));
    gate_close(&held, other);
    CHECK_EQ(state_of(block), TCUDA_BLOCK_ACTIVE_ALLOCATED);
    CHECK_OK(tcuda_free(block));
    CHECK_EQ(state_of(block), TCUDA_BLOCK_ACTIVE_PENDING_FREE);
    gate_open(&held);
    CHECK_OK(tcuda_stream_synchronize(other));
    /* As in torch, it moves on when memory is next wanted. */
    CHECK_EQ(state_of(block), TCUDA_BLOCK_ACTIVE_PENDING_FREE);
    CHECK_OK(tcuda_free(allocate(4 * KIB, 0, own)));
    CHECK_OK(tcuda_stream_synchronize(other)); /* passes the event that was recorded there */
    CHECK_OK(tcuda_free(allocate(4 * KIB, 0, own)));
    CHECK_EQ(state_of(block), TCUDA_BLOCK_INACTIVE);
    CHECK_OK(tcuda_free(guard));
    CHECK_OK(tcuda_stream_destroy(own));
    CHECK_OK(tcuda_stream_destroy(other));
}

/* ---- Which stream tcuda_record_stream means ---- */

static tcuda_stream *per_thread;

static void *record_own_default_stream(void *block)
{
    CHECK_OK(tcuda_record_stream(block, per_thread));
    return NULL;
}

static void the_default_stream_of_a_thread_is_its_own(void)
{
    struct CUstream_st *const native = (struct CUstream_st *)(uintptr_t)2;
    CHECK_OK(tcuda_stream_from_external(0, native, &per_thread));
    void *const block = allocate(KIB, 0, per_thread), *const guard = allocate(KIB, 0, per_thread);
    CHECK_OK(tcuda_record_stream(block, per_thread));
    CHECK_OK(tcuda_free(block));
    CHECK_EQ(state_of(block), TCUDA_BLOCK_INACTIVE);
    /* On another thread the same handle is another stream. */
    CHECK(allocate(KIB, 0, per_thread) == block);
    run_on_thread(record_own_default_stream, block);
    CHECK_OK(tcuda_free(block));
    CHECK_EQ(state_of(block), TCUDA_BLOCK_ACTIVE_PENDING_FREE);
    CHECK_OK(tcuda_free(guard));
    CHECK_OK(tcuda_stream_destroy(per_thread));
}

static void no_stream_is_the_current_one_of_the_device_of_the_block(void)
{
    const int32_t device = num_devices() - 1;
    tcuda_stream *const own = create_stream(device), *const current = create_stream(device);
    CHECK_OK(tcuda_stream_set_current(current));
    CHECK_OK(tcuda_device_set(0));
    void *const awaited = allocate(KIB, device, own);
    void *const free_at_once = allocate(KIB, device, NULL);
    void *const guard = allocate(KIB, device, NULL);
    CHECK_OK(tcuda_record_stream(awaited, NULL));
    CHECK_OK(tcuda_record_stream(free_at_once, NULL));
    CHECK_OK(tcuda_free(awaited));
    CHECK_OK(tcuda_free(free_at_once));
    CHECK_EQ(state_of(awaited), TCUDA_BLOCK_ACTIVE_PENDING_FREE);
    CHECK_EQ(state_of(free_at_once), TCUDA_BLOCK_INACTIVE);
    CHECK_OK(tcuda_free(guard));
    tcuda_stream *unset = NULL;
    CHECK_OK(tcuda_stream_default(device, &unset));
    CHECK_OK(tcuda_stream_set_current(unset));
    CHECK_OK(tcuda_device_set(0));
    CHECK_OK(tcuda_stream_destroy(own));
    CHECK_OK(tcuda_stream_destroy(current));
}

static void holes_part_segments(void)
{
    tcuda_stream *const stream = create_stream(0);
    char *blocks[3];
    CHECK_OK(tcuda_memory_empty_cache());
    for (size_t i = 0; i < 3; i++)
        blocks[i] = allocate(64 * MIB, 0, stream);
    CHECK_OK(tcuda_free(blocks[1]));
    CHECK_OK(tcuda_memory_empty_cache());
    tcuda_memory_snapshot *const snapshot = take();
    tcuda_memory_statistics stats = TCUDA_INIT(tcuda_memory_statistics);
    CHECK_OK(tcuda_memory_stats(0, &stats));
    check_whole(snapshot);
    CHECK_EQ(num_segments(snapshot), 2);
    CHECK_EQ(num_segments(snapshot), stats.segment.all.current);
    CHECK_EQ(segment_at(snapshot, 0).total_bytes + segment_at(snapshot, 1).total_bytes,
        stats.reserved_bytes.all.current);
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    CHECK_OK(tcuda_free(blocks[0]));
    CHECK_OK(tcuda_free(blocks[2]));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void wrong_arguments_are_refused(void)
{
    void *const ptr = allocate(KIB, 0, NULL);
    tcuda_memory_snapshot *const snapshot = take();
    size_t segments = 0, blocks = 0;
    CHECK_OK(tcuda_memory_snapshot_counts(snapshot, &segments, &blocks));
    tcuda_segment_info segment = TCUDA_INIT(tcuda_segment_info);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_memory_snapshot_segment(snapshot, segments, &segment));
    CHECK(strstr(tcuda_last_error(), "index") != NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_memory_snapshot_segment(snapshot, SIZE_MAX, &segment));
    CHECK(segment.ptr == NULL);
    tcuda_memory_snapshot *other = snapshot;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_snapshot_create(2, &other));
    CHECK(other == snapshot);
    /* A host of an older header has a shorter struct. */
    tcuda_block_info block = TCUDA_INIT(tcuda_block_info);
    block.struct_size = offsetof(tcuda_block_info, bytes);
    block.bytes = 7;
    CHECK_OK(tcuda_memory_snapshot_block(snapshot, 0, &block));
    CHECK(block.ptr != NULL);
    CHECK_EQ(block.bytes, 7);
    CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_memory_snapshot_destroy(snapshot));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE,
        tcuda_memory_snapshot_counts(snapshot, &segments, &blocks));
    CHECK_OK(tcuda_free(ptr));
}

/* ---- Under other threads ---- */

static atomic_bool stop;

static void *allocate_and_free(void *argument)
{
    unsigned random = (unsigned)(uintptr_t)argument * 7919u + 1;
    tcuda_stream *const own = create_stream(0), *const other = create_stream(0);
    void *held[HELD] = { NULL };
    for (int i = 0; i < ROUNDS && !atomic_load(&stop); i++) {
        random = random * 1103515245u + 12345u;
        void **const place = &held[random >> 8 & (HELD - 1)];
        if (*place != NULL) {
            if (random >> 16 & 1)
                CHECK_OK(tcuda_record_stream(*place, other));
            CHECK_OK(tcuda_free(*place));
        }
        *place = allocate(1 + (random >> 12) % (3 * MIB), 0, own);
        if (i % 500 == 499)
            CHECK_OK(tcuda_memory_empty_cache());
    }
    for (int i = 0; i < HELD; i++)
        CHECK_OK(tcuda_free(held[i]));
    CHECK_OK(tcuda_stream_destroy(own));
    CHECK_OK(tcuda_stream_destroy(other));
    return NULL;
}

static void snapshots_add_up_while_others_work(void)
{
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        threads[i] = start_thread(allocate_and_free, (void *)(i + 1));
    for (int i = 0; i < 1000; i++) {
        tcuda_memory_snapshot *const snapshot = take();
        check_whole(snapshot);
        CHECK_OK(tcuda_memory_snapshot_destroy(snapshot));
    }
    atomic_store(&stop, true);
    for (int i = 0; i < THREADS; i++)
        join_thread(threads[i]);
}

int main(void)
{
    nothing_is_there_before_initialisation();
    SKIP_WITHOUT_GPU();
    a_block_is_shown_with_its_size_stream_and_device();
    a_block_that_awaits_streams_is_pending();
    the_default_stream_of_a_thread_is_its_own();
    no_stream_is_the_current_one_of_the_device_of_the_block();
    holes_part_segments();
    wrong_arguments_are_refused();
    snapshots_add_up_while_others_work();

    size_t live_handles = 0;
    tcuda_memory_snapshot *const forgotten = take();
    CHECK_OK(tcuda_shutdown(&live_handles));
    CHECK_EQ(live_handles, 1);
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_memory_snapshot_destroy(forgotten));
    return finish();
}
