/* The cache of pinned memory: what it rounds to, whose work it waits for, what it counts. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

enum { KIB = 1 << 10, MIB = 1 << 20, TURNS = 300 };

static unsigned char *pinned(size_t bytes)
{
    void *ptr = NULL;
    CHECK_OK(tcuda_host_malloc(bytes, &ptr));
    CHECK(ptr != NULL);
    return ptr;
}

static tcuda_host_memory_statistics stats(void)
{
    tcuda_host_memory_statistics all = TCUDA_INIT(tcuda_host_memory_statistics);
    CHECK_OK(tcuda_host_memory_stats(&all));
    CHECK_EQ(all.struct_size, sizeof all);
    return all;
}

static void is_stat(tcuda_stat stat, uint64_t current, uint64_t peak, uint64_t up, uint64_t down)
{
    CHECK_EQ(stat.current, current);
    CHECK_EQ(stat.peak, peak);
    CHECK_EQ(stat.allocated, up);
    CHECK_EQ(stat.freed, down);
}

static void nothing_is_counted_before_the_beginning(void)
{
    is_stat(stats().allocations, 0, 0, 0, 0);
    CHECK_OK(tcuda_host_memory_empty_cache());
    CHECK_OK(tcuda_host_memory_reset_peak());
    CHECK_OK(tcuda_host_memory_reset_accumulated());
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_host_memory_stats(NULL));
    tcuda_host_memory_statistics none = { .struct_size = 0 };
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_host_memory_stats(&none));
}

/* A size one above a power of two takes that, and not the next one. */
static void sizes_are_exact(void)
{
    unsigned char *const odd = pinned(4 * MIB + 1), *const small = pinned(1);
    CHECK_EQ((uintptr_t)odd % 512, 0);
    CHECK_EQ((uintptr_t)small % 64, 0);
    is_stat(stats().active_requests, 2, 2, 2, 0);
    const uint64_t bytes = 4 * MIB + 512 + 64;
    is_stat(stats().active_bytes, bytes, bytes, bytes, 0);
    CHECK_EQ(stats().num_host_alloc, 2);
    CHECK_EQ(stats().host_alloc_time.count, 2);
    CHECK_EQ(stats().host_alloc_time.avg_us, stats().host_alloc_time.total_us / 2);
    CHECK(stats().allocated_bytes.current <= 6 * MIB + 2 * MIB);
    CHECK_OK(tcuda_host_free(odd));
    CHECK_OK(tcuda_host_free(small));
    is_stat(stats().active_requests, 0, 2, 2, 2);
    CHECK_EQ(stats().num_host_free, 0);
    CHECK_OK(tcuda_host_memory_reset_peak());
    CHECK_OK(tcuda_host_memory_reset_accumulated());
    is_stat(stats().active_bytes, 0, 0, 0, 0);
    CHECK_EQ(stats().num_host_alloc, 0);
    CHECK_OK(tcuda_host_memory_empty_cache());
    CHECK_EQ(stats().num_host_free, 2);
    CHECK_EQ(stats().allocations.current, 0);
    CHECK_EQ(stats().allocated_bytes.current, 0);
}

static void many_small_blocks_share_a_segment(void)
{
    unsigned char *blocks[1000];
    for (size_t i = 0; i < 1000; i++)
        blocks[i] = pinned(100);
    /* A page more where 2 MiB were not there at first. */
    CHECK(stats().allocated_bytes.current <= 2 * MIB + 4 * KIB);
    for (size_t i = 0; i < 1000; i++)
        memset(blocks[i], (int)(i % 251), 100);
    for (size_t i = 0; i < 1000; i++) {
        CHECK_EQ(blocks[i][0], i % 251);
        CHECK_EQ(blocks[i][99], i % 251);
        CHECK_OK(tcuda_host_free(blocks[i]));
    }
    /* All are one again. */
    unsigned char *const whole = pinned(64 * KIB);
    CHECK(stats().allocated_bytes.current <= 2 * MIB + 4 * KIB);
    CHECK_OK(tcuda_host_free(whole));
}

static void a_steady_state_calls_no_driver(void)
{
    CHECK_OK(tcuda_host_free(pinned(3000)));
    uint64_t before = 0, after = 1;
    CHECK_OK(tcuda_backend_call_count(NULL, &before));
    for (int i = 0; i < TURNS; i++)
        CHECK_OK(tcuda_host_free(pinned((size_t)i * 10 + 1)));
    CHECK_OK(tcuda_backend_call_count(NULL, &after));
    CHECK_EQ(after, before);
}

/* A stream that is held back keeps its own block, whatever others free and allocate. */
static void recorded_blocks_wait_for_their_streams(void)
{
    tcuda_stream *const slow = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_stream *const idle = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *const a = pinned(5000), *const b = pinned(5000), *const c = pinned(5000);
    gate held;
    gate_close(&held, slow);
    CHECK_OK(tcuda_host_record(a + 4999, slow)); /* any address inside */
    CHECK_OK(tcuda_host_record(b, idle));
    CHECK_OK(tcuda_host_record(c, slow));
    CHECK_OK(tcuda_host_record(c, idle));
    CHECK_OK(tcuda_host_record(NULL, slow));
    CHECK_OK(tcuda_host_free(a));
    CHECK_OK(tcuda_host_free(b));
    CHECK_OK(tcuda_host_free(c));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_host_free(a));
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_host_record(a, idle));
    if (runs_late()) {
        CHECK_OK(tcuda_stream_synchronize(idle));
        unsigned char *others[8];
        bool found = false;
        for (size_t i = 0; i < 8; i++) {
            others[i] = pinned(5000);
            CHECK(others[i] != a && others[i] != c);
            found = found || others[i] == b;
        }
        CHECK(found);
        CHECK_EQ(stats().active_requests.current, 10);
        for (size_t i = 0; i < 8; i++)
            CHECK_OK(tcuda_host_free(others[i]));
    }
    gate_open(&held);
    CHECK_OK(tcuda_stream_synchronize(slow));
    CHECK_OK(tcuda_host_memory_empty_cache());
    CHECK_EQ(stats().active_requests.current, 0);
    CHECK_EQ(stats().allocations.current, 0);
    CHECK_OK(tcuda_stream_destroy(slow));
    CHECK_OK(tcuda_stream_destroy(idle));
}

static void wrong_records_are_refused(void)
{
    int local = 0;
    unsigned char *const block = pinned(100);
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_host_record(&local, NULL));
    CHECK(strstr(tcuda_last_error(), "is not inside pinned memory") != NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_host_record(block + 128, NULL));
    tcuda_stream *const gone = create_stream(TCUDA_CURRENT_DEVICE);
    CHECK_OK(tcuda_stream_destroy(gone));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_host_record(block, gone));
    CHECK_OK(tcuda_host_record(block, NULL));
    CHECK_OK(tcuda_host_free(block));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    nothing_is_counted_before_the_beginning();
    sizes_are_exact();
    many_small_blocks_share_a_segment();
    a_steady_state_calls_no_driver();
    recorded_blocks_wait_for_their_streams();
    wrong_records_are_refused();
    return finish();
}
