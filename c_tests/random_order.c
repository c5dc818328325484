/* Random numbers: what is refused and then changes nothing, and what devices, streams, threads and
 * captures make of them. */
#define _POSIX_C_SOURCE 200809L

#include "random.h"

/* ---- What is refused changes nothing ---- */

static void what_torch_refuses_is_refused(void)
{
    const tcuda_status invalid = TCUDA_STATUS_INVALID_ARGUMENT;
    seed(1);
    refuses(invalid, tcuda_random_uniform(row(float32, 9), 1, 0, NULL, NULL), "low is 1");
    refuses(invalid, tcuda_random_uniform(row(float32, 9), 0, INFINITY, NULL, NULL), "high is inf");
    refuses(invalid, tcuda_random_uniform(row(float32, 9), NAN, 1, NULL, NULL), "low is NaN");
    refuses(invalid, tcuda_random_uniform(row(float16, 9), 0, 65505, NULL, NULL), "high is 65505");
    refuses(invalid, tcuda_random_uniform(row(float64, 9), -1e308, 1e308, NULL, NULL),
        "high - low");
    refuses(invalid, tcuda_random_uniform(row(int32, 9), 0, 1, NULL, NULL), "floats");
    refuses(invalid, tcuda_random_normal(row(float32, 9), 0, -1, NULL, NULL), "stddev is -1");
    refuses(invalid, tcuda_random_normal(row(float32, 9), 0, NAN, NULL, NULL), "stddev");
    refuses(invalid, tcuda_random_normal(row(int64, 9), 0, 1, NULL, NULL), "floats");
    refuses(invalid, tcuda_random_log_normal(row(float32, 9), 0, 0, NULL, NULL), "stddev is 0");
    refuses(invalid, tcuda_random_exponential(row(float32, 9), 0, NULL, NULL), "rate is 0");
    refuses(invalid, tcuda_random_cauchy(row(float32, 9), 0, -2, NULL, NULL), "sigma is -2");
    refuses(invalid, tcuda_random_geometric(row(float32, 9), 1, NULL, NULL), "p is 1");
    refuses(invalid, tcuda_random_geometric(row(float32, 9), 0, NULL, NULL), "p is 0");
    refuses(invalid, tcuda_random_geometric(row(boolean, 9), 0.5, NULL, NULL), "geometric");
    refuses(invalid, tcuda_random_bernoulli(row(float32, 9), 1.5, NULL, NULL), "p is 1.5");
    refuses(invalid, tcuda_random_bernoulli(row(float32, 9), -0.5, NULL, NULL), "p is -0.5");
    refuses(invalid, tcuda_random_bernoulli(row(uint32, 9), 0.5, NULL, NULL), "uint32");
    refuses(invalid, tcuda_random_bernoulli(row(complex64, 9), 0.5, NULL, NULL), "complex");
    refuses(invalid, tcuda_random_integers(row(int32, 9), 5, 5, NULL, NULL), "low is 5");
    refuses(invalid, tcuda_random_integers(row(uint8, 9), 0, 257, NULL, NULL), "high - 1 is 256");
    refuses(invalid, tcuda_random_integers(row(int8, 9), -129, 0, NULL, NULL), "low is -129");
    refuses(invalid, tcuda_random_integers(row(float16, 9), 0, 70000, NULL, NULL), "high - 1");
    refuses(invalid, tcuda_random_integers(row(float16, 9), 4097, 4099, NULL, NULL), "low is 4097");
    refuses(invalid, tcuda_random_integers_from(row(int32, 9), INT64_MIN, NULL, NULL), "int64");
    refuses(invalid, tcuda_random_integers_from(row(int8, 9), 128, NULL, NULL), "low is 128");
    refuses(invalid, tcuda_random_integers_all(row(float8, 9), NULL, NULL), "bfloat16");
    CHECK_EQ(offset(), 0);
}

static void what_is_no_tensor_is_refused(void)
{
    const tcuda_status invalid = TCUDA_STATUS_INVALID_ARGUMENT;
    const tcuda_status pointer = TCUDA_STATUS_INVALID_POINTER;
    int64_t shape[] = { 4, 4 }, twice[] = { 1, 1 }, none[] = { 0, 1 }, down[] = { -4, 1 };
    tcuda_tensor bad = tensor_of(memory, float32, 2, shape, NULL);
    const tcuda_tensor good = bad;
    seed(1);
    refuses(invalid, tcuda_random_uniform(NULL, 0, 1, NULL, NULL), "tensor is NULL");
    bad.strides = twice;
    refuses(invalid, tcuda_random_uniform(&bad, 0, 1, NULL, NULL), "one address");
    bad.strides = none;
    refuses(invalid, tcuda_random_uniform(&bad, 0, 1, NULL, NULL), "one address");
    bad.strides = down, bad.byte_offset = 48;
    refuses(invalid, tcuda_random_uniform(&bad, 0, 1, NULL, NULL), "negative");
    bad = good, bad.byte_offset = 2;
    refuses(invalid, tcuda_random_uniform(&bad, 0, 1, NULL, NULL), "multiple of their size");
    bad = good, bad.byte_offset = BYTES - 60;
    refuses(invalid, tcuda_random_uniform(&bad, 0, 1, NULL, NULL), "block");
    bad = good, bad.device.device_type = TCUDA_DEVICE_CPU;
    refuses(invalid, tcuda_random_uniform(&bad, 0, 1, NULL, NULL), "memory of the host");
    bad = good, bad.data = &host;
    refuses(pointer, tcuda_random_uniform(&bad, 0, 1, NULL, NULL), "not memory of a device");
    bad = good, bad.device.device_id = num_devices();
    refuses(TCUDA_STATUS_INVALID_DEVICE, tcuda_random_uniform(&bad, 0, 1, NULL, NULL), "device");
    bad = good, bad.dtype.lanes = 2;
    refuses(invalid, tcuda_random_uniform(&bad, 0, 1, NULL, NULL), "one lane");
    /* Probabilities. */
    const tcuda_tensor p = tensor_of(memory + 4096, float32, 2, shape, NULL);
    int64_t other[] = { 2, 8 };
    bad = p, bad.shape = other;
    refuses(invalid, tcuda_random_bernoulli_tensor(&good, &bad, NULL, NULL), "shape");
    bad = p, bad.dtype = int32;
    refuses(invalid, tcuda_random_bernoulli_tensor(&good, &bad, NULL, NULL), "floats");
    bad = p, bad.data = &host;
    refuses(pointer, tcuda_random_bernoulli_tensor(&good, &bad, NULL, NULL), "not memory");
    refuses(invalid, tcuda_random_bernoulli_tensor(&good, NULL, NULL, NULL), "p is NULL");
    refuses(invalid, tcuda_random_bernoulli_tensor(NULL, &p, NULL, NULL), "tensor is NULL");
    /* Handles. */
    tcuda_generator *generator = NULL;
    CHECK_OK(tcuda_generator_create(TCUDA_CURRENT_DEVICE, &generator));
    CHECK_OK(tcuda_generator_destroy(generator));
    refuses(TCUDA_STATUS_INVALID_HANDLE, tcuda_random_uniform(&good, 0, 1, generator, NULL),
        "generator");
    /* Of a capsule whose memory must not be written. */
    struct { uint32_t major, minor; void *manager; void (*deleter)(void *); uint64_t flags;
        tcuda_tensor tensor; } capsule = { .major = 1, .flags = 1, .tensor = good };
    capsule.tensor.data = allocate(BYTES, TCUDA_CURRENT_DEVICE, NULL);
    tcuda_tensor constant;
    CHECK_OK(tcuda_tensor_from_dlpack((struct DLManagedTensorVersioned *)(void *)&capsule,
        &constant));
    refuses(invalid, tcuda_random_uniform(&constant, 0, 1, NULL, NULL), "read-only");
    CHECK_OK(tcuda_random_bernoulli_tensor(&good, &constant, NULL, NULL));
    CHECK_OK(tcuda_tensor_release(&constant));
    CHECK_OK(tcuda_free(capsule.tensor.data));
    CHECK_EQ(offset(), 12);
    /* Freed memory. */
    bad = good, bad.data = allocate(1 << 21, TCUDA_CURRENT_DEVICE, NULL);
    CHECK_OK(tcuda_random_uniform(&bad, 0, 1, NULL, NULL));
    CHECK_OK(tcuda_free(bad.data));
    refuses(pointer, tcuda_random_uniform(&bad, 0, 1, NULL, NULL), "allocated");
    CHECK_EQ(offset(), 16);
}

static void without_elements_nothing_is_drawn(void)
{
    int64_t shape[] = { 3, 0, 5 };
    const tcuda_tensor empty = tensor_of(NULL, float32, 3, shape, NULL);
    const uint64_t launches = calls_of("cuLaunchKernel");
    seed(1);
    CHECK_OK(tcuda_random_uniform(&empty, 0, 1, NULL, NULL));
    CHECK_OK(tcuda_random_bernoulli_tensor(&empty, &empty, NULL, NULL));
    CHECK_EQ(offset(), 0);
    CHECK_EQ(calls_of("cuLaunchKernel"), launches);
    /* What is wrong is wrong all the same. */
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_random_uniform(&empty, 1, 0, NULL, NULL));
}

/* ---- Devices, streams, threads, captures ---- */

static void devices_are_kept_apart(void)
{
    if (num_devices() < 2)
        return;
    tcuda_generator *generator = NULL;
    tcuda_stream *stream = create_stream(1);
    CHECK_OK(tcuda_generator_create(1, &generator));
    const tcuda_status invalid = TCUDA_STATUS_INVALID_ARGUMENT;
    refuses(invalid, tcuda_random_uniform(row(float32, 8), 0, 1, generator, NULL), "generator");
    refuses(invalid, tcuda_random_uniform(row(float32, 8), 0, 1, NULL, stream), "stream");
    /* Another device than the current one: its own generator and stream. */
    int64_t shape[] = { 8 };
    void *const far = allocate(32, 1, NULL);
    tcuda_tensor tensor = tensor_of(far, float32, 1, shape, NULL);
    refuses(invalid, tcuda_random_uniform(&tensor, 0, 1, NULL, NULL), "on device 1");
    tensor.device.device_id = 1;
    CHECK_OK(tcuda_random_manual_seed(1, 0));
    seed(5);
    CHECK_OK(tcuda_random_uniform(&tensor, 0, 1, NULL, NULL));
    CHECK_EQ(offset(), 0);
    CHECK_OK(tcuda_device_synchronize(1));
    CHECK_OK(tcuda_copy(&host, far, 32, NULL));
    CHECK_OK(tcuda_device_synchronize(1));
    CHECK_EQ(host.u32[0], 0x3ecc4fd2);
    CHECK_OK(tcuda_free(far));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_generator_destroy(generator));
}

static void work_is_in_the_order_of_its_stream(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    gate held;
    CHECK_OK(tcuda_device_synchronize(TCUDA_CURRENT_DEVICE));
    /* Loaded before the gate closes. */
    CHECK_OK(tcuda_random_uniform(row(float32, 8), 0, 1, NULL, stream));
    fill_bytes(memory, 0, 32, stream);
    CHECK_OK(tcuda_stream_synchronize(stream));
    gate_close(&held, stream);
    seed(0);
    CHECK_OK(tcuda_random_uniform(row(float32, 8), 0, 1, NULL, stream));
    /* The generator moves when the call is made, the numbers come later. */
    CHECK_EQ(offset(), 4);
    bool done = true;
    CHECK_OK(tcuda_stream_query(stream, &done));
    CHECK_EQ(done, !runs_late());
    gate_open(&held);
    CHECK_OK(tcuda_stream_synchronize(stream));
    fetch(32);
    CHECK_EQ(host.u32[0], 0x3ecc4fd2);
    CHECK_OK(tcuda_stream_destroy(stream));
}

enum { THREADS = 4, ROUNDS = 25, PART = 4096 };

static void *fill_a_part(void *argument)
{
    int64_t shape[] = { 64 };
    char *const part = argument;
    CHECK_OK(tcuda_device_set(0));
    for (int i = 0; i < ROUNDS; i++) {
        const tcuda_tensor tensor = tensor_of(part + 256 * (i % 16), float32, 1, shape, NULL);
        CHECK_OK(tcuda_random_uniform(&tensor, 0, 1, NULL, NULL));
    }
    return NULL;
}

static void threads_share_a_generator(void)
{
    pthread_t threads[THREADS];
    seed(9);
    for (int i = 0; i < THREADS; i++)
        threads[i] = start_thread(fill_a_part, memory + i * PART);
    for (int i = 0; i < THREADS; i++)
        join_thread(threads[i]);
    CHECK_EQ(offset(), 4 * THREADS * ROUNDS);
    fetch(THREADS * PART);
    /* The last numbers of each thread are those of some call, and of no other's. */
    bool seen[THREADS * ROUNDS] = { false };
    for (int i = 0; i < THREADS; i++) {
        for (int part = 0; part < 16; part++) {
            const float *const found = host.f32 + (i * PART + part * 256) / 4;
            int call = 0;
            while (call < THREADS * ROUNDS && found[0] != uniform_of(drawn(9, 4 * call, 64, 4, 0)))
                call++;
            CHECK(call < THREADS * ROUNDS && !seen[call]);
            seen[call] = true;
            for (uint64_t j = 0; j < 64; j++)
                CHECK(found[j] == uniform_of(drawn(9, 4 * (uint64_t)call, 64, 4, j)));
        }
    }
}

static void a_capture_of_the_drivers_is_refused(void)
{
    int (*begin)(struct CUstream_st *, int), (*end)(struct CUstream_st *, struct CUgraph_st **);
    int (*destroy)(struct CUgraph_st *);
    void *address = NULL;
    CHECK_OK(tcuda_backend_function("cuStreamBeginCapture", &address));
    memcpy(&begin, &address, sizeof address);
    CHECK_OK(tcuda_backend_function("cuStreamEndCapture", &address));
    memcpy(&end, &address, sizeof address);
    CHECK_OK(tcuda_backend_function("cuGraphDestroy", &address));
    memcpy(&destroy, &address, sizeof address);
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    struct CUgraph_st *graph = NULL;
    seed(1);
    CHECK_EQ(begin(native_of(stream), 0), 0);
    refuses(TCUDA_STATUS_CAPTURING, tcuda_random_uniform(row(float32, 8), 0, 1, NULL, stream),
        "tcuda_random_uniform");
    /* Beside it work goes on. */
    CHECK_OK(tcuda_random_uniform(row(float32, 8), 0, 1, NULL, NULL));
    CHECK_EQ(end(native_of(stream), &graph), 0);
    CHECK_EQ(destroy(graph), 0);
    CHECK_EQ(offset(), 4);
    CHECK_OK(tcuda_stream_destroy(stream));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    begin_random();
    what_torch_refuses_is_refused();
    what_is_no_tensor_is_refused();
    without_elements_nothing_is_drawn();
    devices_are_kept_apart();
    work_is_in_the_order_of_its_stream();
    threads_share_a_generator();
    a_capture_of_the_drivers_is_refused();
    return finish_random();
}
