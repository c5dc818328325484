/* What queues work, orders it or gives memory out tells the stream sanitizer: each such call makes
 * a race or prevents one. tests/observed.rs checks that none is missing. */
#define _POSIX_C_SOURCE 200809L

#include "sanitizer_calls.h"

/* ---- Copies and fills: what is read and what is written ---- */

static void copy_writes(bool call)
{
    access_all(far, dst, READS);
    if (call) CHECK_OK(tcuda_copy(dst, src, BYTES, own));
}

static void copy_reads(bool call)
{
    access_all(far, src, WRITES);
    if (call) CHECK_OK(tcuda_copy(dst, src, BYTES, own));
}

static void copy_reads_pinned(bool call)
{
    access_all(far, pinned, WRITES);
    if (call) CHECK_OK(tcuda_copy(dst, pinned, BYTES, own));
}

static void copy_writes_pinned(bool call)
{
    access_all(far, pinned, READS);
    if (call) CHECK_OK(tcuda_copy(pinned, src, BYTES, own));
}

/* Comes back when the stream is there. */
static void copy_waits(bool call)
{
    static char host[16];
    access_all(far, dst, WRITES);
    if (call) CHECK_OK(tcuda_copy(host, src, sizeof host, far));
    access_all(own, dst, WRITES);
}

static void copy_2d_writes(bool call)
{
    access_some(far, dst + 64, 16, READS);
    if (call) CHECK_OK(tcuda_copy_2d(dst, 64, src, 32, 16, 2, own));
}

static void copy_2d_reads(bool call)
{
    access_some(far, src + 32, 16, WRITES);
    if (call) CHECK_OK(tcuda_copy_2d(dst, 64, src, 32, 16, 2, own));
}

/* A file that reads as zeros and takes everything. */
static tcuda_file *zeros;

static void file_read_writes(bool call)
{
    size_t done = 0;
    access_all(far, dst, READS);
    if (call) CHECK_OK(tcuda_file_read(zeros, dst, BYTES, 0, own, &done));
}

static void file_write_reads(bool call)
{
    size_t done = 0;
    access_all(far, src, WRITES);
    if (call) CHECK_OK(tcuda_file_write(zeros, src, BYTES, 0, own, &done));
}

/* Both return when the stream's work is over. */
static void file_read_waits(bool call)
{
    size_t done = 0;
    access_all(far, dst, WRITES);
    if (call) CHECK_OK(tcuda_file_read(zeros, src, BYTES, 0, far, &done));
    access_all(own, dst, WRITES);
}

static void file_write_waits(bool call)
{
    size_t done = 0;
    access_all(far, dst, WRITES);
    if (call) CHECK_OK(tcuda_file_write(zeros, src, BYTES, 0, far, &done));
    access_all(own, dst, WRITES);
}

static void fill_writes(bool call)
{
    const int32_t value = 1;
    access_some(far, dst + 12, 4, READS);
    if (call) CHECK_OK(tcuda_fill(dst, &value, 4, 4, own));
}

/* ---- Random numbers, functions of elements, kernels ---- */

#define FILLS(name, call_of_it) \
    static void name(bool call) \
    { \
        const tcuda_tensor tensor = floats(dst); \
        access_some(far, dst + BYTES - 1, 1, READS); \
        if (call) CHECK_OK(call_of_it); \
    }

FILLS(uniform, tcuda_random_uniform(&tensor, 0, 1, NULL, own))
FILLS(normal, tcuda_random_normal(&tensor, 0, 1, NULL, own))
FILLS(integers, tcuda_random_integers(&tensor, 0, 9, NULL, own))
FILLS(integers_from, tcuda_random_integers_from(&tensor, 0, NULL, own))
FILLS(integers_all, tcuda_random_integers_all(&tensor, NULL, own))
FILLS(bernoulli, tcuda_random_bernoulli(&tensor, 0.5, NULL, own))
FILLS(exponential, tcuda_random_exponential(&tensor, 1, NULL, own))
FILLS(log_normal, tcuda_random_log_normal(&tensor, 0, 1, NULL, own))
FILLS(cauchy, tcuda_random_cauchy(&tensor, 0, 1, NULL, own))
FILLS(geometric, tcuda_random_geometric(&tensor, 0.5, NULL, own))

static void bernoulli_tensor(bool call)
{
    const tcuda_tensor tensor = floats(dst), p = floats(src);
    access_all(far, src, WRITES);
    if (call) CHECK_OK(tcuda_random_bernoulli_tensor(&tensor, &p, NULL, own));
}

static tcuda_jit *jit;

static void jit_writes(bool call)
{
    const tcuda_tensor output = floats(dst), input = floats(src);
    access_all(far, dst, READS);
    if (call) CHECK_OK(tcuda_jit_call(jit, &input, 1, NULL, 0, &output, 1, own));
}

static void jit_reads(bool call)
{
    const tcuda_tensor output = floats(dst), input = floats(src);
    access_all(far, src, WRITES);
    if (call) CHECK_OK(tcuda_jit_call(jit, &input, 1, NULL, 0, &output, 1, own));
}

static tcuda_kernel *kernel;

static void kernel_writes(bool call)
{
    static const int32_t accesses[] = { TCUDA_ACCESS_WRITE };
    tcuda_launch_options options = TCUDA_INIT(tcuda_launch_options);
    options.accesses = accesses;
    void *argument = dst;
    void *const arguments[] = { &argument };
    access_all(far, dst, READS);
    if (call) CHECK_OK(tcuda_kernel_launch(kernel, &options, arguments, 1, own));
}

static const struct row WORK[] = {
    RACES(tcuda_copy, copy_writes),
    RACES(tcuda_copy, copy_reads),
    RACES(tcuda_copy, copy_reads_pinned),
    RACES(tcuda_copy, copy_writes_pinned),
    ORDERS(tcuda_copy, copy_waits),
    RACES(tcuda_copy_2d, copy_2d_writes),
    RACES(tcuda_copy_2d, copy_2d_reads),
    RACES(tcuda_file_read, file_read_writes),
    RACES(tcuda_file_write, file_write_reads),
    ORDERS(tcuda_file_read, file_read_waits),
    ORDERS(tcuda_file_write, file_write_waits),
    RACES(tcuda_fill, fill_writes),
    RACES(tcuda_random_uniform, uniform),
    RACES(tcuda_random_normal, normal),
    RACES(tcuda_random_integers, integers),
    RACES(tcuda_random_integers_from, integers_from),
    RACES(tcuda_random_integers_all, integers_all),
    RACES(tcuda_random_bernoulli, bernoulli),
    RACES(tcuda_random_bernoulli_tensor, bernoulli_tensor),
    RACES(tcuda_random_exponential, exponential),
    RACES(tcuda_random_log_normal, log_normal),
    RACES(tcuda_random_cauchy, cauchy),
    RACES(tcuda_random_geometric, geometric),
    RACES(tcuda_jit_call, jit_writes),
    RACES(tcuda_jit_call, jit_reads),
    RACES(tcuda_kernel_launch, kernel_writes),
};

/* ---- What waits for what ---- */

#define BETWEEN(name, before, it, after) \
    static void name(bool call) \
    { \
        access_all(far, dst, WRITES); \
        before; \
        if (call) it; \
        after; \
        access_all(own, dst, WRITES); \
    }
#define NOTHING (void)0

/* A question that is answered with yes, or a time that is known, says that work is over. */
#define UNTIL(condition) \
    do { \
        for (int i = 0; i < 10000 && !(condition); i++) \
            sleep_ms(1); \
        CHECK(condition); \
    } while (0)

static bool stream_is_over(void)
{
    bool is_over = false;
    CHECK_OK(tcuda_stream_query(far, &is_over));
    return is_over;
}

static bool event_is_over(void)
{
    bool is_over = false;
    CHECK_OK(tcuda_event_query(event, &is_over));
    return is_over;
}

static bool time_is_known(void)
{
    float elapsed = 0;
    const tcuda_status status = tcuda_event_elapsed_ms(event, event, &elapsed);
    CHECK(status == TCUDA_STATUS_OK || status == TCUDA_STATUS_NOT_READY);
    return status == TCUDA_STATUS_OK;
}

static atomic_bool is_called;

static void called(void *user_data)
{
    (void)user_data;
    atomic_store(&is_called, true);
}

static void add(void)
{
    atomic_store(&is_called, false);
    CHECK_OK(tcuda_stream_add_callback(far, called, NULL, NULL));
    UNTIL(atomic_load(&is_called));
}

static void record(void)
{
    CHECK_OK(tcuda_event_record(event, far));
}

BETWEEN(stream_query, NOTHING, UNTIL(stream_is_over()), NOTHING)
BETWEEN(stream_synchronize, NOTHING, CHECK_OK(tcuda_stream_synchronize(far)), NOTHING)
BETWEEN(stream_wait_stream, NOTHING, CHECK_OK(tcuda_stream_wait_stream(own, far)), NOTHING)
BETWEEN(stream_wait_event, record(), CHECK_OK(tcuda_stream_wait_event(own, event)), NOTHING)
BETWEEN(stream_record_event, NOTHING, CHECK_OK(tcuda_stream_record_event(far, event)),
    CHECK_OK(tcuda_event_wait(event, own)))
BETWEEN(event_record, NOTHING, record(), CHECK_OK(tcuda_event_wait(event, own)))
BETWEEN(event_wait, record(), CHECK_OK(tcuda_event_wait(event, own)), NOTHING)
BETWEEN(event_query, record(), UNTIL(event_is_over()), NOTHING)
BETWEEN(event_synchronize, record(), CHECK_OK(tcuda_event_synchronize(event)), NOTHING)
BETWEEN(event_elapsed_ms, record(), UNTIL(time_is_known()), NOTHING)
BETWEEN(device_synchronize, NOTHING, CHECK_OK(tcuda_device_synchronize(0)), NOTHING)
BETWEEN(add_callback, NOTHING, add(), NOTHING)

static void record_new_event(bool call)
{
    tcuda_event *made = NULL;
    access_all(far, dst, WRITES);
    if (call) {
        CHECK_OK(tcuda_stream_record_new_event(far, 0, &made));
        CHECK_OK(tcuda_event_wait(made, own));
        CHECK_OK(tcuda_event_destroy(made));
    }
    access_all(own, dst, WRITES);
}

/* A key that is another event's knows nothing of the first. */
static void event_destroy(bool call)
{
    tcuda_event *made = NULL;
    access_all(far, dst, WRITES);
    CHECK_OK(tcuda_event_create(0, &made));
    CHECK_OK(tcuda_event_record(made, far));
    if (call) {
        CHECK_OK(tcuda_event_destroy(made));
        CHECK_OK(tcuda_event_create(0, &made));
    }
    CHECK_OK(tcuda_event_wait(made, own));
    CHECK_OK(tcuda_event_destroy(made));
    access_all(own, dst, WRITES);
}

/* Only a pool that has memory of the device makes it wait for that. */
static void mem_pool_sleep(bool call)
{
    tcuda_mem_pool *pool = NULL;
    void *block = NULL;
    CHECK_OK(tcuda_mem_pool_create(NULL, 0, &pool));
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    CHECK_OK(tcuda_malloc(BYTES, 0, own, &block));
    CHECK_OK(tcuda_mem_pool_end(pool, 0));
    access_all(far, dst, WRITES);
    if (call) CHECK_OK(tcuda_mem_pool_sleep(pool, 0));
    access_all(own, dst, WRITES);
    CHECK_OK(tcuda_mem_pool_wake(pool));
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
}

static const struct row ORDER[] = {
    ORDERS(tcuda_stream_query, stream_query),
    ORDERS(tcuda_stream_synchronize, stream_synchronize),
    ORDERS(tcuda_stream_wait_stream, stream_wait_stream),
    ORDERS(tcuda_stream_wait_event, stream_wait_event),
    ORDERS(tcuda_stream_record_event, stream_record_event),
    ORDERS(tcuda_stream_record_new_event, record_new_event),
    ORDERS(tcuda_event_record, event_record),
    ORDERS(tcuda_event_wait, event_wait),
    ORDERS(tcuda_event_query, event_query),
    ORDERS(tcuda_event_synchronize, event_synchronize),
    ORDERS(tcuda_event_elapsed_ms, event_elapsed_ms),
    RACES(tcuda_event_destroy, event_destroy),
    ORDERS(tcuda_device_synchronize, device_synchronize),
    ORDERS(tcuda_stream_add_callback, add_callback),
};

/* Pools can sleep whose memory is mapped. */
static const struct row SLEEP[] = {
    ORDERS(tcuda_mem_pool_sleep, mem_pool_sleep),
};

/* ---- Memory: what used it before, and what is waited for ---- */

/* A block used on its own stream, and once more on the same: a stream that does not come after the
 * second allocation meets the first use. */
static void meets_earlier_use(bool call)
{
    void *block = NULL;
    CHECK_OK(tcuda_malloc(BYTES, 0, own, &block));
    access_all(own, block, WRITES);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_malloc(BYTES, 0, own, &block));
    if (call) access_all(far, block, WRITES);
    CHECK_OK(tcuda_free(block));
}

/* A freed block comes again where the streams that used it have got there, and were asked: on a GPU
 * that takes some microseconds. No wait that the sanitizer sees. */
static void let_it_come_there(void) { sleep_ms(5); }

/* The second use of a block, on its own stream, comes after the first, on another, only where that
 * was recorded. It is the same memory, or the test would say nothing. */
static void record_stream(bool call)
{
    void *block = NULL, *again = NULL;
    CHECK_OK(tcuda_malloc(BYTES, 0, own, &block));
    access_all(far, block, WRITES);
    if (call) CHECK_OK(tcuda_record_stream(block, far));
    CHECK_OK(tcuda_free(block));
    let_it_come_there();
    CHECK_OK(tcuda_malloc(BYTES, 0, own, &again));
    CHECK(again == block);
    access_all(own, again, WRITES);
    CHECK_OK(tcuda_free(again));
}

static void allocation(bool call)
{
    tcuda_allocation *made = NULL;
    void *block = NULL, *again = NULL;
    CHECK_OK(tcuda_allocation_create(BYTES, 0, own, &made));
    CHECK_OK(tcuda_allocation_pointer(made, &block));
    access_all(far, block, WRITES);
    if (call) CHECK_OK(tcuda_record_stream(block, far));
    CHECK_OK(tcuda_allocation_destroy(made));
    let_it_come_there();
    CHECK_OK(tcuda_allocation_create(BYTES, 0, own, &made));
    CHECK_OK(tcuda_allocation_pointer(made, &again));
    CHECK(again == block);
    access_all(own, again, WRITES);
    CHECK_OK(tcuda_allocation_destroy(made));
}

static void torch(bool call)
{
    struct CUstream_st *own_native = NULL, *far_native = NULL;
    CHECK_OK(tcuda_stream_native(own, &own_native));
    CHECK_OK(tcuda_stream_native(far, &far_native));
    void *const block = tcuda_torch_malloc(BYTES, 0, own_native);
    CHECK(block != NULL);
    access_all(far, block, WRITES);
    if (call) tcuda_torch_record_stream(block, far_native);
    tcuda_torch_free(block, BYTES, 0, own_native);
    let_it_come_there();
    void *const again = tcuda_torch_malloc(BYTES, 0, own_native);
    CHECK(again == block);
    access_all(own, again, WRITES);
    tcuda_torch_free(again, BYTES, 0, own_native);
}

/* Freed on the stream that used it, a block is reused in the order of that stream. It is large, so
 * that the stream has no other memory of that size. */
static void free_on(bool call)
{
    const size_t bytes = (size_t)30 << 20;
    struct CUstream_st *own_native = NULL, *far_native = NULL;
    void *block = NULL, *again = NULL;
    CHECK_OK(tcuda_stream_native(own, &own_native));
    CHECK_OK(tcuda_stream_native(far, &far_native));
    CHECK_OK(tcuda_malloc_native(bytes, 0, own_native, &block));
    access_all(far, block, WRITES);
    CHECK_OK(tcuda_free_on(block, call ? far_native : own_native));
    CHECK_OK(tcuda_malloc_native(bytes, 0, call ? far_native : own_native, &again));
    /* Memory in segments stays with its stream. */
    CHECK(again == block || getenv("TCUDA_ALLOC_CONF") != NULL);
    access_all(call ? far : own, again, WRITES);
    CHECK_OK(tcuda_free_on(again, call ? far_native : own_native));
    CHECK_OK(tcuda_memory_empty_cache());
}

static void ort(bool call)
{
    tcuda_stream *now = NULL;
    CHECK_OK(tcuda_stream_current(0, &now));
    void *const block = tcuda_ort_malloc(BYTES);
    CHECK(block != NULL);
    access_all(far, block, WRITES);
    if (call) CHECK_OK(tcuda_record_stream(block, far));
    tcuda_ort_free(block);
    let_it_come_there();
    void *const again = tcuda_ort_malloc(BYTES);
    CHECK(again == block);
    access_all(now, again, WRITES);
    tcuda_ort_free(again);
}

static void host_record(bool call)
{
    void *block = NULL, *again = NULL;
    CHECK_OK(tcuda_host_malloc(BYTES, &block));
    access_all(far, block, WRITES);
    if (call) CHECK_OK(tcuda_host_record(block, far));
    CHECK_OK(tcuda_host_free(block));
    let_it_come_there();
    CHECK_OK(tcuda_host_malloc(BYTES, &again));
    CHECK(again == block);
    access_all(own, again, WRITES);
    CHECK_OK(tcuda_host_free(again));
}

static const struct row MEMORY[] = {
    RACES(tcuda_malloc, meets_earlier_use),
    ORDERS(tcuda_free, record_stream),
    ORDERS(tcuda_record_stream, record_stream),
    ORDERS(tcuda_allocation_create, allocation),
    ORDERS(tcuda_allocation_destroy, allocation),
    ORDERS(tcuda_torch_malloc, torch),
    ORDERS(tcuda_torch_free, torch),
    ORDERS(tcuda_torch_record_stream, torch),
    ORDERS(tcuda_malloc_native, free_on),
    ORDERS(tcuda_free_on, free_on),
    ORDERS(tcuda_ort_malloc, ort),
    ORDERS(tcuda_ort_free, ort),
    ORDERS(tcuda_host_malloc, host_record),
    ORDERS(tcuda_host_free, host_record),
    ORDERS(tcuda_host_record, host_record),
};

int main(void)
{
    SKIP_WITHOUT_GPU();
    skip_without_compiler();
    begin();
    const char *const code = "template <typename T> T twice(T x) { return x + x; }";
    CHECK_OK(tcuda_jit_create(code, NULL, &jit));
    const char *const source = "extern \"C\" __global__ void one(float *to) { *to = 1; }";
    CHECK_OK(tcuda_kernel_compile(source, "one", NULL, &kernel));
    CHECK_OK(tcuda_file_open("/dev/zero",
        TCUDA_FILE_READ | TCUDA_FILE_WRITE | TCUDA_FILE_STAGING, &zeros));
    RUN(WORK);
    RUN(ORDER);
    RUN(MEMORY);
    if (!in_segments())
        RUN(SLEEP);
    CHECK_OK(tcuda_file_close(zeros));
    CHECK_OK(tcuda_kernel_destroy(kernel));
    CHECK_OK(tcuda_jit_destroy(jit));
    end();
    return finish();
}
