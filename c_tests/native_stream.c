/* Memory for native streams: allocation by a handle of the driver, and tcuda_free_on, after which a
 * block is reused in the order of the stream that freed it. */
#include "support.h"

#define MIB ((size_t)1 << 20)

enum { BYTES = 24 << 20, STEPS = 200, STREAMS = 3 };

static tcuda_stream *streams[STREAMS];
static struct CUstream_st *natives[STREAMS];

/* Memory in segments keeps its stream: a block waits for the stream that freed it. */
static bool is_moved(void)
{
    const char *const options = getenv("TCUDA_ALLOC_CONF");
    return options == NULL || strstr(options, "expandable_segments:False") == NULL;
}

static void *allocate_on(size_t bytes, int32_t device, struct CUstream_st *native)
{
    void *ptr = NULL;
    CHECK_OK(tcuda_malloc_native(bytes, device, native, &ptr));
    CHECK(ptr != NULL);
    return ptr;
}

static tcuda_memory_statistics statistics(int32_t device)
{
    tcuda_memory_statistics stats = TCUDA_INIT(tcuda_memory_statistics);
    CHECK_OK(tcuda_memory_stats(device, &stats));
    return stats;
}

/* `stream` comes after what `other` has now. */
static void order(int stream, int other)
{
    CHECK_OK(tcuda_stream_wait_stream(streams[stream], streams[other]));
}

/* What is used for the first time while a gate is closed may wait for the device. */
static void use_everything_once(void)
{
    gate held;
    for (int i = 0; i < STREAMS; i++) {
        void *const block = allocate_on(BYTES, 0, natives[i]);
        gate_close(&held, streams[i]);
        gate_open(&held);
        fill_bytes(block, 1, BYTES, streams[i]);
        CHECK_EQ(count_other_bytes(block, 1, BYTES, streams[i]), 0);
        order(i, (i + 1) % STREAMS);
        CHECK_OK(tcuda_free(block));
    }
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_memory_empty_cache());
}

static void arguments_are_checked(void)
{
    void *const before = &streams, *ptr = before;
    CHECK_OK(tcuda_malloc_native(0, 0, natives[0], &ptr));
    CHECK(ptr == NULL);
    ptr = before;
    const size_t wrong[] = { 3, 384, 1024, SIZE_MAX };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_STATUS(tcuda_malloc_native_aligned(64, wrong[i], 0, natives[0], &ptr),
            TCUDA_STATUS_INVALID_ARGUMENT);
        CHECK(ptr == before);
    }
    CHECK_STATUS(tcuda_malloc_native(64, num_devices(), natives[0], &ptr),
        TCUDA_STATUS_INVALID_DEVICE);
    CHECK_STATUS(tcuda_malloc_native(64, 0, natives[0], NULL), TCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(ptr == before);
    for (size_t alignment = 0; alignment <= 512; alignment += alignment + (alignment == 0)) {
        CHECK_OK(tcuda_malloc_native_aligned(3, alignment, 0, NULL, &ptr));
        CHECK_EQ((uintptr_t)ptr % 512, 0);
        CHECK_OK(tcuda_free_on(ptr, NULL));
    }
    CHECK_OK(tcuda_free_on(NULL, natives[0]));
    CHECK_STATUS(tcuda_free_on(before, natives[0]), TCUDA_STATUS_INVALID_POINTER);
    ptr = allocate_on(64, 0, natives[0]);
    CHECK_STATUS(tcuda_free_on((char *)ptr + 1, natives[1]), TCUDA_STATUS_INVALID_POINTER);
    CHECK_OK(tcuda_free_on(ptr, natives[1]));
    CHECK_STATUS(tcuda_free_on(ptr, natives[1]), TCUDA_STATUS_INVALID_POINTER);
    CHECK_EQ(statistics(0).allocation.all.current, 0);
}

/* The current device counts only for handles that denote a stream of any device. */
static void a_stream_determines_the_device(void)
{
    if (num_devices() < 2)
        return;
    tcuda_stream *const far = create_stream(1);
    void *ptr = allocate_on(MIB, TCUDA_CURRENT_DEVICE, native_of(far));
    CHECK_EQ(statistics(1).allocation.all.current, 1);
    /* Another device than the block's: the block waits for that stream, and stays its own. */
    CHECK_OK(tcuda_free_on(ptr, natives[0]));
    CHECK_OK(tcuda_stream_synchronize(streams[0]));
    ptr = allocate_on(MIB, 1, native_of(far));
    CHECK_EQ(statistics(1).allocation.all.current, 1);
    CHECK_EQ(statistics(1).active.all.current, 1);
    CHECK_OK(tcuda_free_on(ptr, NULL));
    int32_t previous = -1;
    CHECK_OK(tcuda_device_exchange(1, &previous));
    ptr = allocate_on(MIB, TCUDA_CURRENT_DEVICE, NULL);
    CHECK_OK(tcuda_device_exchange(previous, &previous));
    CHECK_EQ(statistics(1).allocation.all.current, 1);
    CHECK_EQ(statistics(0).allocation.all.current, 0);
    CHECK_OK(tcuda_free_on(ptr, NULL));
    CHECK_EQ(statistics(1).allocation.all.current, 0);
    CHECK_OK(tcuda_stream_destroy(far));
}

/* A block of stream 0, with work of stream 1 that is held back, freed on stream 1. */
static void *freed_on_the_other(gate *held)
{
    void *const block = allocate_on(BYTES, 0, natives[0]);
    fill_bytes(block, 1, BYTES, streams[0]);
    order(1, 0);
    gate_close(held, streams[1]);
    fill_bytes(block, 2, BYTES, streams[1]);
    CHECK_OK(tcuda_free_on(block, natives[1]));
    return block;
}

static void the_stream_that_freed_it_gets_it_at_once(void)
{
    gate held;
    void *const block = freed_on_the_other(&held);
    CHECK(statistics(0).active.all.current == 0 || !is_moved());
    void *const same = allocate_on(BYTES, 0, natives[1]);
    CHECK(same == block || !is_moved());
    fill_bytes(same, 3, BYTES, streams[1]);
    gate_open(&held);
    CHECK_EQ(count_other_bytes(same, 3, BYTES, streams[1]), 0);
    /* Back in the order of its first stream. */
    order(0, 1);
    CHECK_OK(tcuda_free_on(same, natives[0]));
    void *const again = allocate_on(BYTES, 0, natives[0]);
    CHECK(again == block || !is_moved());
    CHECK_OK(tcuda_free_on(again, natives[0]));
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(statistics(0).reserved_bytes.all.current, 0);
}

static void other_streams_get_it_after_that_work(void)
{
    gate held;
    void *const block = freed_on_the_other(&held);
    void *const other = allocate_on(BYTES, 0, natives[0]);
    CHECK(!runs_late() || other != block);
    fill_bytes(other, 4, BYTES, streams[0]);
    CHECK_OK(tcuda_stream_synchronize(streams[0]));
    gate_open(&held);
    CHECK_OK(tcuda_stream_synchronize(streams[1]));
    CHECK_EQ(count_other_bytes(other, 4, BYTES, streams[0]), 0);
    const uint64_t reserved = statistics(0).reserved_bytes.all.current;
    void *const second = allocate_on(BYTES, 0, natives[0]);
    CHECK(!runs_late() || second == block);
    CHECK_EQ(statistics(0).reserved_bytes.all.current, runs_late() ? reserved : 2 * reserved);
    CHECK_OK(tcuda_free(second));
    CHECK_OK(tcuda_free(other));
    CHECK_OK(tcuda_memory_empty_cache());
}

/* A recorded stream counts as before. */
static void recorded_streams_are_waited_for(void)
{
    gate held;
    void *const block = allocate_on(BYTES, 0, natives[0]);
    fill_bytes(block, 1, BYTES, streams[0]);
    order(2, 0);
    order(1, 0);
    gate_close(&held, streams[2]);
    fill_bytes(block, 2, BYTES, streams[2]);
    CHECK_OK(tcuda_record_stream(block, streams[2]));
    CHECK_OK(tcuda_record_stream(block, streams[1]));
    CHECK_OK(tcuda_free_on(block, natives[1]));
    void *const other = allocate_on(BYTES, 0, natives[1]);
    CHECK(!runs_late() || other != block);
    gate_open(&held);
    CHECK_OK(tcuda_stream_synchronize(streams[2]));
    void *const second = allocate_on(BYTES, 0, natives[1]);
    CHECK(!runs_late() || second == block || !is_moved());
    CHECK_OK(tcuda_free_on(second, natives[1]));
    CHECK_OK(tcuda_free_on(other, natives[1]));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(statistics(0).reserved_bytes.all.current, 0);
}

/* Blocks are written on one stream and again on another, which frees them: what a block holds at
 * its end is what was written last. */
static void blocks_keep_what_is_written(void)
{
    static unsigned char found[2 * STEPS], wanted[2 * STEPS];
    unsigned char *const witness = allocate_on(MIB, 0, natives[0]);
    unsigned random = 12345;
    for (int i = 0; i < STREAMS; i++)
        order(i, 0);
    for (int step = 0; step < STEPS; step++) {
        random = random * 1664525 + 1013904223;
        const size_t bytes = (1 + (random >> 20) % 9) * 512 * 1024;
        const int first = (int)(random >> 8) % STREAMS, last = (int)(random >> 12) % STREAMS;
        char *const block = allocate_on(bytes, 0, natives[first]);
        fill_bytes(block, step, bytes, streams[first]);
        if (step % 3 == 0)
            CHECK_OK(tcuda_record_stream(block, streams[first]));
        order(last, first);
        if (step % 2 == 0)
            fill_bytes(block, step + 1, bytes, streams[last]);
        const unsigned char expected = (unsigned char)(step + (step % 2 == 0));
        wanted[2 * step] = wanted[2 * step + 1] = expected;
        CHECK_OK(tcuda_copy(witness + 2 * step, block, 1, streams[last]));
        CHECK_OK(tcuda_copy(witness + 2 * step + 1, block + bytes - 1, 1, streams[last]));
        CHECK_OK(tcuda_free_on(block, natives[last]));
    }
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_copy(found, witness, sizeof found, streams[0]));
    CHECK_OK(tcuda_stream_synchronize(streams[0]));
    for (size_t i = 0; i < sizeof found; i++)
        CHECK_EQ(found[i], wanted[i]);
    CHECK_OK(tcuda_free(witness));
    CHECK_EQ(statistics(0).allocation.all.current, 0);
    CHECK_OK(tcuda_memory_empty_cache());
}

/* Memory of a private pool keeps its stream: it waits for the one that freed it. */
static void a_pool_keeps_its_streams(void)
{
    gate held;
    tcuda_mem_pool *pool = NULL;
    CHECK_OK(tcuda_mem_pool_create(NULL, 0, &pool));
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    void *const block = freed_on_the_other(&held);
    void *const other = allocate_on(BYTES, 0, natives[0]);
    CHECK(!runs_late() || other != block);
    gate_open(&held);
    CHECK_OK(tcuda_stream_synchronize(streams[1]));
    void *const second = allocate_on(BYTES, 0, natives[0]);
    CHECK(!runs_late() || second == block);
    CHECK_OK(tcuda_mem_pool_end(pool, 0));
    CHECK_OK(tcuda_free_on(second, natives[1]));
    CHECK_OK(tcuda_free_on(other, natives[0]));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_memory_empty_cache());
    CHECK_EQ(statistics(0).reserved_bytes.all.current, 0);
}

static void functions_of_onnx_runtime(void)
{
    CHECK(tcuda_ort_malloc(0) == NULL);
    void *const block = tcuda_ort_malloc(BYTES);
    CHECK(block != NULL);
    CHECK_EQ(statistics(0).allocation.all.current, 1);
    tcuda_ort_free(block);
    tcuda_ort_free(NULL);
    CHECK_EQ(statistics(0).allocation.all.current, 0);
    CHECK(statistics(0).reserved_bytes.all.current > 0);
    tcuda_ort_empty_cache();
    CHECK_EQ(statistics(0).reserved_bytes.all.current, 0);
}

/* The driver's pool frees in the order of the stream that is named. */
static void a_pool_of_the_driver(void)
{
    gate held;
    CHECK_OK(tcuda_allocator_config_set("backend:cudaMallocAsync"));
    for (int i = 0; i < STREAMS; i++) {
        CHECK_OK(tcuda_stream_create(0, 0, &streams[i]));
        natives[i] = native_of(streams[i]);
    }
    for (int step = 0; step < 2; step++) {
        void *const block = freed_on_the_other(&held);
        void *const other = allocate_on(BYTES, 0, natives[step]);
        CHECK(!on_simulator() || step == 0 || other == block);
        fill_bytes(other, 4, BYTES, streams[step]);
        gate_open(&held);
        CHECK_EQ(count_other_bytes(other, 4, BYTES, streams[step]), 0);
        CHECK_OK(tcuda_free_on(other, natives[step]));
    }
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_EQ(statistics(0).allocation.all.current, 0);
    for (int i = 0; i < STREAMS; i++)
        CHECK_OK(tcuda_stream_destroy(streams[i]));
    CHECK_EQ(finish(), 0);
}

int main(void)
{
    skip_without_gpu_before_forks();
    RUNS(a_pool_of_the_driver);
    for (int i = 0; i < STREAMS; i++) {
        CHECK_OK(tcuda_stream_create(0, 0, &streams[i]));
        natives[i] = native_of(streams[i]);
    }
    use_everything_once();
    arguments_are_checked();
    a_stream_determines_the_device();
    the_stream_that_freed_it_gets_it_at_once();
    other_streams_get_it_after_that_work();
    recorded_streams_are_waited_for();
    blocks_keep_what_is_written();
    a_pool_keeps_its_streams();
    functions_of_onnx_runtime();
    for (int i = 0; i < STREAMS; i++)
        CHECK_OK(tcuda_stream_destroy(streams[i]));
    CHECK_EQ(finish_cases(), EXIT_SUCCESS);
    return finish();
}
