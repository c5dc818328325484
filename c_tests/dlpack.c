/* Every function that writes to tensors of the host's own: memory that a read-only capsule covers
 * is not written, and without elements nothing is queued, whatever the strides. */
#include "dl_tensor.h"

enum { FLOATS = 64 };

static tcuda_jit *jit, *jit_multi;
static tcuda_tensor input;

static tcuda_status call_jit(const tcuda_tensor *out)
{
    return tcuda_jit_call(jit, &input, 1, NULL, 0, out, 1, NULL);
}

static tcuda_status call_multi(const tcuda_tensor *out)
{
    const tcuda_tensor outs[] = { input, *out };
    return tcuda_jit_call(jit_multi, &input, 1, NULL, 0, outs, 2, NULL);
}

static tcuda_status uniform(const tcuda_tensor *out)
{
    return tcuda_random_uniform(out, 0, 1, NULL, NULL);
}

static tcuda_status normal(const tcuda_tensor *out)
{
    return tcuda_random_normal(out, 0, 1, NULL, NULL);
}

static tcuda_status integers(const tcuda_tensor *out)
{
    return tcuda_random_integers(out, 0, 9, NULL, NULL);
}

static tcuda_status integers_from(const tcuda_tensor *out)
{
    return tcuda_random_integers_from(out, 0, NULL, NULL);
}

static tcuda_status integers_all(const tcuda_tensor *out)
{
    return tcuda_random_integers_all(out, NULL, NULL);
}

static tcuda_status bernoulli(const tcuda_tensor *out)
{
    return tcuda_random_bernoulli(out, 0.5, NULL, NULL);
}

static tcuda_status bernoulli_tensor(const tcuda_tensor *out)
{
    return tcuda_random_bernoulli_tensor(out, &input, NULL, NULL);
}

static tcuda_status exponential(const tcuda_tensor *out)
{
    return tcuda_random_exponential(out, 1, NULL, NULL);
}

static tcuda_status log_normal(const tcuda_tensor *out)
{
    return tcuda_random_log_normal(out, 0, 1, NULL, NULL);
}

static tcuda_status cauchy(const tcuda_tensor *out)
{
    return tcuda_random_cauchy(out, 0, 1, NULL, NULL);
}

static tcuda_status geometric(const tcuda_tensor *out)
{
    return tcuda_random_geometric(out, 0.5, NULL, NULL);
}

static tcuda_status broadcast_into(const tcuda_tensor *out)
{
    return tcuda_comm_broadcast_into(&input, out, 1);
}

static tcuda_status reduce_add_into(const tcuda_tensor *out)
{
    return tcuda_comm_reduce_add_into(&input, 1, out);
}

static tcuda_status scatter_into(const tcuda_tensor *out)
{
    return tcuda_comm_scatter_into(&input, out, 1, 0, NULL);
}

static tcuda_status gather_into(const tcuda_tensor *out)
{
    return tcuda_comm_gather_into(&input, 1, 0, out);
}

static const struct {
    const char *name;
    tcuda_status (*write)(const tcuda_tensor *out);
} writers[] = {
    { "jit_call", call_jit }, { "jit_call of two", call_multi }, { "uniform", uniform },
    { "normal", normal }, { "integers", integers }, { "integers_from", integers_from },
    { "integers_all", integers_all }, { "bernoulli", bernoulli },
    { "bernoulli_tensor", bernoulli_tensor }, { "exponential", exponential },
    { "log_normal", log_normal }, { "cauchy", cauchy }, { "geometric", geometric },
    { "broadcast_into", broadcast_into }, { "reduce_add_into", reduce_add_into },
    { "scatter_into", scatter_into }, { "gather_into", gather_into },
};

static void expect(size_t writer, tcuda_status expected, const tcuda_tensor *out, const char *what)
{
    const tcuda_status status = writers[writer].write(out);
    if (status == expected)
        return;
    char text[400];
    snprintf(text, sizeof text, "%s: %s gave %s: %s", what, writers[writer].name,
        tcuda_status_name(status), tcuda_last_error());
    check_failed(__FILE__, __LINE__, "status == expected", text);
}

static tcuda_tensor floats(void *data, int32_t ndim, int64_t *shape, int64_t *strides)
{
    const tcuda_tensor tensor = { .data = data, .device = { TCUDA_DEVICE_CUDA, 0 },
        .ndim = ndim, .dtype = float32, .shape = shape, .strides = strides };
    return tensor;
}

static void what_is_read_only_stays_so(void)
{
    float *const block = allocate(3 * FLOATS * sizeof(float), 0, NULL);
    int64_t all[] = { FLOATS }, half[] = { FLOATS / 2 }, quarter[] = { FLOATS / 4 };
    fill_bytes(block, 1, 3 * FLOATS * sizeof *block, NULL);
    input = floats(block, 1, quarter, NULL);
    dl_managed managed = lend(block + FLOATS, 1, all, NULL);
    managed.tensor.device.device_type = TCUDA_DEVICE_CUDA;
    managed.flags = READ_ONLY;
    tcuda_tensor lent;
    CHECK_OK(tcuda_tensor_from_dlpack(capsule(&managed), &lent));
    const struct {
        const char *what;
        float *data;
        uint64_t byte_offset;
        int64_t *strides;
    } views[] = {
        { "a shape of the host's", block + FLOATS, 0, NULL },
        { "a part by its offset", block + FLOATS, 64, NULL },
        { "a part by its data", block + 2 * FLOATS - 1, 0, NULL },
        { "one that reaches into it", block + FLOATS - FLOATS / 4 + 1, 0, NULL },
        { "from before its start", block, (FLOATS + 4) * sizeof(float), NULL },
        { "with gaps", block, 0, (int64_t[]){ 8 } },
    };
    tcuda_tensor smaller = lent;
    for (size_t writer = 0; writer < sizeof writers / sizeof *writers; writer++) {
        /* Once before, so that a call like the last one is refused too. */
        tcuda_tensor out = floats(block + 2 * FLOATS, 1, quarter, NULL);
        expect(writer, TCUDA_STATUS_OK, &out, "beside it");
        out = floats(block + FLOATS - FLOATS / 4, 1, quarter, NULL);
        expect(writer, TCUDA_STATUS_OK, &out, "before it");
        for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
            out = floats(views[i].data, 1, quarter, views[i].strides);
            out.byte_offset = views[i].byte_offset;
            expect(writer, TCUDA_STATUS_INVALID_ARGUMENT, &out, views[i].what);
            CHECK(strstr(tcuda_last_error(), "read-only") != NULL);
        }
        smaller.shape = quarter;
        expect(writer, TCUDA_STATUS_INVALID_ARGUMENT, &smaller, "another shape");
        smaller.shape = lent.shape, smaller.shape[0] = FLOATS / 4;
        expect(writer, TCUDA_STATUS_INVALID_ARGUMENT, &smaller, "itself");
    }
    CHECK_EQ(count_other_bytes(block + FLOATS, 1, FLOATS * sizeof *block, NULL), 0);
    /* Exported by another shape it is read-only still. */
    dl_managed *out = NULL;
    smaller = floats(block, 1, half, NULL);
    CHECK_OK(tcuda_tensor_release(&lent));
    input = floats(block, 1, quarter, NULL);
    for (size_t writer = 0; writer < sizeof writers / sizeof *writers; writer++) {
        const tcuda_tensor free = floats(block + FLOATS, 1, quarter, NULL);
        expect(writer, TCUDA_STATUS_OK, &free, "after its release");
    }
    managed = lend(block, 1, quarter, NULL);
    managed.tensor.device.device_type = TCUDA_DEVICE_CUDA;
    managed.flags = READ_ONLY;
    CHECK_OK(tcuda_tensor_from_dlpack(capsule(&managed), &lent));
    CHECK_OK(tcuda_tensor_to_dlpack(&smaller, (struct DLManagedTensorVersioned **)(void *)&out));
    CHECK_EQ(out->flags, READ_ONLY);
    CHECK_OK(tcuda_tensor_release(&lent));
    out->deleter(out);
}

static const char *const work[] = { "cuLaunchKernel", "cuMemcpyAsync", "cuMemcpyHtoDAsync",
    "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuMemcpyPeerAsync", "cuMemcpy3DAsync",
    "cuMemcpy3DPeerAsync", "cuMemcpy2DAsync", "cuMemsetD8Async" };

static uint64_t queued(void)
{
    uint64_t total = 0;
    for (size_t i = 0; i < sizeof work / sizeof *work; i++) {
        uint64_t calls = 0;
        if (tcuda_backend_call_count(work[i], &calls) == TCUDA_STATUS_OK)
            total += calls;
    }
    return total;
}

static void nothing_is_queued_without_elements(void)
{
    static int64_t shapes[][2] = { { 0, 3 }, { 3, 0 }, { 0, 0 } };
    static int64_t strides[][2] = { { -1, -1 }, { -3, 1 }, { 1, -7 }, { INT64_MIN, INT64_MIN } };
    float *const block = allocate(64, 0, NULL);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (size_t k = 0; k < sizeof strides / sizeof *strides; k++) {
            for (int is_nowhere = 0; is_nowhere < 2; is_nowhere++) {
                const tcuda_tensor out =
                    floats(is_nowhere ? NULL : block, 2, shapes[i], strides[k]);
                input = out;
                const uint64_t before = queued();
                for (size_t writer = 0; writer < sizeof writers / sizeof *writers; writer++)
                    expect(writer, TCUDA_STATUS_OK, &out, "no elements");
                CHECK_EQ(queued(), before);
            }
        }
    }
    /* With elements they are refused as before. */
    int64_t shape[] = { 2, 3 }, falling[] = { 3, -1 };
    tcuda_tensor out = floats(block, 2, shape, falling);
    out.byte_offset = 8;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, uniform(&out));
    CHECK(strstr(tcuda_last_error(), "negative") != NULL);
    CHECK_OK(tcuda_free(block));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    skip_without_compiler();
    CHECK_OK(tcuda_jit_create("template <typename T> T f(T x) { return x; }", NULL, &jit));
    CHECK_OK(tcuda_jit_create_multi(
        "template <typename T> void f(T x, T &a, T &b) { a = x; b = x; }", 2, NULL, &jit_multi));
    what_is_read_only_stays_so();
    nothing_is_queued_without_elements();
    CHECK_OK(tcuda_jit_destroy(jit));
    CHECK_OK(tcuda_jit_destroy(jit_multi));
    return finish();
}
