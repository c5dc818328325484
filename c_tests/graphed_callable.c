/* Functions of a host that are captured: forward and backward, in order, with tensors that stay
 * where they are. What fails leaves nothing behind. */
#include "support.h"

enum { LENGTH = 4096 };

/* Copies its input and marks its first byte; backward the same with another mark. */
struct layer {
    int forwards, backwards, destroyed;
    unsigned char mark;
    int fails_at;   /* the run that fails, from 1; 0: none */
    int breaks_at;  /* the run that breaks its capture */
    int64_t shape[1];
    const void *seen; /* where the input was last */
};

static tcuda_tensor bytes_of(void *data, int64_t *shape)
{
    tcuda_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.data = data;
    tensor.device.device_type = TCUDA_DEVICE_CUDA;
    tensor.ndim = 1;
    tensor.dtype.code = TCUDA_DTYPE_UINT;
    tensor.dtype.bits = 8;
    tensor.dtype.lanes = 1;
    tensor.shape = shape;
    return tensor;
}

static int32_t pass(struct layer *layer, int run, const tcuda_tensor *input, tcuda_stream *stream,
    tcuda_tensor *output, unsigned char mark)
{
    tcuda_stream *current = NULL;
    if (run == layer->fails_at) return 77;
    if (run == layer->breaks_at)
        CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_stream_current(TCUDA_CURRENT_DEVICE, &current));
    CHECK_EQ(id_of(current), id_of(stream));
    CHECK_EQ(input->ndim, 1);
    CHECK_EQ(input->shape[0], LENGTH);
    unsigned char *data = NULL, *scratch = NULL;
    /* NULL is the stream that is current. */
    if (tcuda_malloc(LENGTH, TCUDA_CURRENT_DEVICE, NULL, (void **)&data) != TCUDA_STATUS_OK)
        return 78;
    const bool worked = tcuda_malloc(LENGTH, TCUDA_CURRENT_DEVICE, stream, (void **)&scratch)
            == TCUDA_STATUS_OK
        && tcuda_copy(scratch, input->data, LENGTH, stream) == TCUDA_STATUS_OK
        && tcuda_copy(data, scratch, LENGTH, stream) == TCUDA_STATUS_OK
        && tcuda_fill(data, &mark, 1, 1, stream) == TCUDA_STATUS_OK;
    CHECK_OK(tcuda_free(scratch));
    if (!worked) {
        CHECK_OK(tcuda_free(data));
        return 79;
    }
    layer->seen = input->data;
    *output = bytes_of(data, layer->shape);
    return 0;
}

static int32_t forward(void *user_data, const tcuda_tensor *inputs, size_t num_inputs,
    tcuda_stream *stream, tcuda_tensor *outputs, size_t num_outputs)
{
    struct layer *layer = user_data;
    CHECK(num_inputs >= 1 && num_outputs == 1);
    return pass(layer, ++layer->forwards, inputs, stream, outputs, layer->mark);
}

/* Of the second input, if there is one, there is no gradient. */
static int32_t backward(void *user_data, const tcuda_tensor *inputs, size_t num_inputs,
    tcuda_stream *stream, tcuda_tensor *outputs, size_t num_outputs)
{
    struct layer *layer = user_data;
    CHECK(num_inputs == 1 && num_outputs >= 1);
    return pass(layer, 100 + ++layer->backwards, inputs, stream, outputs,
        (unsigned char)(layer->mark + 1));
}

static void destroyed(void *user_data)
{
    ((struct layer *)user_data)->destroyed++;
}

static tcuda_callable callable_of(struct layer *layer, const tcuda_tensor *samples, size_t count,
    bool goes_back)
{
    tcuda_callable callable = TCUDA_INIT(tcuda_callable);
    layer->shape[0] = LENGTH;
    callable.forward = forward;
    callable.backward = goes_back ? backward : NULL;
    callable.user_data = layer;
    callable.destroy = destroyed;
    callable.sample_inputs = samples;
    callable.num_inputs = count;
    callable.num_outputs = 1;
    return callable;
}

/* The first byte is `mark`, all others `value`. */
static void check_bytes(const tcuda_tensor *tensor, int mark, int value, tcuda_stream *stream)
{
    unsigned char *data = tensor->data;
    CHECK_EQ(tensor->ndim, 1);
    CHECK_EQ(tensor->shape[0], LENGTH);
    CHECK_EQ(tensor->strides[0], 1);
    CHECK_EQ(count_other_bytes(data, mark, 1, stream), 0);
    CHECK_EQ(count_other_bytes(data + 1, value, LENGTH - 1, stream), 0);
}

static uint64_t allocated(void)
{
    uint64_t bytes = 0;
    CHECK_OK(tcuda_memory_stat(TCUDA_CURRENT_DEVICE, "allocated_bytes.all.current", &bytes));
    return bytes;
}

static void two_layers_forward_and_backward(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_stream *elsewhere = create_stream(TCUDA_CURRENT_DEVICE);
    int64_t shape[1] = {LENGTH};
    const uint64_t before = allocated();
    unsigned char *x = allocate(LENGTH, TCUDA_CURRENT_DEVICE, stream);
    unsigned char *y = allocate(LENGTH, TCUDA_CURRENT_DEVICE, stream);
    fill_bytes(x, 1, LENGTH, stream);
    fill_bytes(y, 2, LENGTH, stream);
    tcuda_tensor samples[2] = {bytes_of(x, shape), bytes_of(y, shape)}, out[2], grads[2];
    struct layer layers[2] = {{.mark = 10}, {.mark = 20}};
    tcuda_callable callables[2] = {callable_of(&layers[0], samples, 2, true),
        callable_of(&layers[1], samples, 1, true)};
    tcuda_graphed_callable *graphed[2] = {NULL, NULL};
    tcuda_graphed_callable_options options = TCUDA_INIT(tcuda_graphed_callable_options);
    options.warmup_iterations = 2;
    options.error_mode = TCUDA_CAPTURE_THREAD_LOCAL;
    CHECK_OK(tcuda_graphed_callable_create(callables, 2, &options, graphed));
    for (int i = 0; i < 2; i++) {
        CHECK(graphed[i] != NULL);
        CHECK_EQ(layers[i].forwards, 3);
        CHECK_EQ(layers[i].backwards, 3);
    }

    for (int round = 3; round < 7; round++) {
        tcuda_stream *on = round % 2 == 0 ? stream : elsewhere;
        fill_bytes(x, round, LENGTH, on);
        CHECK_OK(tcuda_graphed_callable_call(graphed[0], samples, 2, on, &out[0], 1));
        CHECK_OK(tcuda_graphed_callable_call(graphed[1], &out[0], 1, on, &out[1], 1));
        check_bytes(&out[0], 10, round, on);
        check_bytes(&out[1], 20, round, on);
        CHECK_EQ(layers[0].forwards, 3);
        fill_bytes(y, 100 + round, LENGTH, on);
        CHECK_OK(tcuda_graphed_callable_call_backward(graphed[1], &samples[1], 1, on, grads, 1));
        CHECK_OK(tcuda_graphed_callable_call_backward(graphed[0], grads, 1, on, grads, 2));
        check_bytes(&grads[0], 11, 100 + round, on);
        CHECK(grads[1].data == NULL && grads[1].ndim == 0);
        CHECK_OK(tcuda_stream_synchronize(on));
    }
    /* What is in its place already is not copied. */
    tcuda_tensor in_place = samples[0];
    in_place.data = (void *)(uintptr_t)layers[1].seen;
    const uint64_t copies = calls_of("cuMemcpyAsync");
    CHECK_OK(tcuda_graphed_callable_call_backward(graphed[1], &in_place, 1, stream, grads, 1));
    CHECK_EQ(calls_of("cuMemcpyAsync"), copies);
    CHECK_OK(tcuda_stream_synchronize(stream));

    CHECK_OK(tcuda_graphed_callable_destroy(graphed[0]));
    CHECK_EQ(layers[0].destroyed, 1);
    CHECK_OK(tcuda_graphed_callable_call(graphed[1], samples, 1, stream, &out[1], 1));
    check_bytes(&out[1], 20, 6, stream);
    CHECK_OK(tcuda_graphed_callable_destroy(graphed[1]));
    CHECK_EQ(layers[1].destroyed, 1);
    CHECK_OK(tcuda_free(x));
    CHECK_OK(tcuda_free(y));
    CHECK_EQ(allocated(), before);
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(elsewhere));
}

/* Wherever it fails, nothing is left and nothing was taken. */
static void what_fails_leaves_nothing(void)
{
    int64_t shape[1] = {LENGTH};
    unsigned char *x = allocate(LENGTH, TCUDA_CURRENT_DEVICE, NULL);
    fill_bytes(x, 1, LENGTH, NULL);
    tcuda_tensor sample = bytes_of(x, shape);
    tcuda_mem_pool *pool = NULL;
    CHECK_OK(tcuda_graph_pool_handle(&pool));
    const uint64_t before = allocated();
    /* Warm-ups are runs 1 to 3, the capture is run 4; those of backward count from 101. */
    static const int runs[] = {1, 3, 4, 101, 103, 104};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        for (int second = 0; second < 2; second++) {
            struct layer layers[2] = {{.mark = 1}, {.mark = 2}};
            layers[second].fails_at = runs[i];
            tcuda_callable callables[2] = {callable_of(&layers[0], &sample, 1, true),
                callable_of(&layers[1], &sample, 1, true)};
            tcuda_graphed_callable *graphed[2] = {NULL, NULL};
            tcuda_graphed_callable_options options = TCUDA_INIT(tcuda_graphed_callable_options);
            options.pool = i % 2 == 0 ? pool : NULL;
            CHECK_STATUS(TCUDA_STATUS_CALLBACK_FAILED,
                tcuda_graphed_callable_create(callables, 2, &options, graphed));
            CHECK_EQ(tcuda_last_error_native(), 77);
            CHECK(strstr(tcuda_last_error(), runs[i] > 100 ? "backward" : "forward") != NULL);
            CHECK(graphed[0] == NULL && graphed[1] == NULL);
            CHECK_EQ(layers[0].destroyed + layers[1].destroyed, 0);
            CHECK_EQ(allocated(), before);
        }
    }
    struct layer layer = {.mark = 1, .breaks_at = 4};
    tcuda_callable callable = callable_of(&layer, &sample, 1, false);
    tcuda_graphed_callable *graphed = NULL;
    CHECK_STATUS(TCUDA_STATUS_CALLBACK_FAILED,
        tcuda_graphed_callable_create(&callable, 1, NULL, &graphed));
    CHECK_EQ(allocated(), before);

    /* And then it works. */
    layer = (struct layer){.mark = 9};
    callable = callable_of(&layer, &sample, 1, false);
    CHECK_OK(tcuda_graphed_callable_create(&callable, 1, NULL, &graphed));
    CHECK_EQ(layer.forwards, 4);
    tcuda_tensor out, other = sample;
    CHECK_OK(tcuda_graphed_callable_call(graphed, &sample, 1, NULL, &out, 1));
    check_bytes(&out, 9, 1, NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE,
        tcuda_graphed_callable_call_backward(graphed, &sample, 1, NULL, &out, 1));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_graphed_callable_call(graphed, &sample, 0, NULL, &out, 1));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_graphed_callable_call(graphed, &sample, 1, NULL, &out, 2));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_graphed_callable_call(graphed, NULL, 1, NULL, &out, 1));
    int64_t shorter[1] = {LENGTH - 1};
    other.shape = shorter;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_graphed_callable_call(graphed, &other, 1, NULL, &out, 1));
    other = sample;
    other.dtype.code = TCUDA_DTYPE_INT;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_graphed_callable_call(graphed, &other, 1, NULL, &out, 1));
    /* Host memory is copied in, too. */
    static unsigned char host[LENGTH];
    memset(host, 8, sizeof host);
    other = sample;
    other.data = host;
    other.device.device_type = TCUDA_DEVICE_CPU;
    CHECK_OK(tcuda_graphed_callable_call(graphed, &other, 1, NULL, &out, 1));
    check_bytes(&out, 9, 8, NULL);
    /* Not in a capture, which goes on. */
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_graph *graph = NULL;
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, NULL, TCUDA_CAPTURE_RELAXED));
    CHECK_STATUS(TCUDA_STATUS_CAPTURING,
        tcuda_graphed_callable_call(graphed, &sample, 1, stream, &out, 1));
    CHECK_OK(tcuda_graph_capture_end(graph));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_graphed_callable_destroy(graphed));
    CHECK_EQ(layer.destroyed, 1);
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE,
        tcuda_graphed_callable_call(graphed, &sample, 1, NULL, &out, 1));
    CHECK_OK(tcuda_graphed_callable_destroy(NULL));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_free(x));
}

static void wrong_arguments(void)
{
    int64_t shape[1] = {LENGTH};
    static unsigned char host[LENGTH];
    tcuda_tensor sample = bytes_of(host, shape);
    struct layer layer = {.mark = 1};
    tcuda_callable callable = callable_of(&layer, &sample, 1, false);
    tcuda_graphed_callable *graphed = NULL;
    tcuda_graphed_callable_options options = TCUDA_INIT(tcuda_graphed_callable_options);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_graphed_callable_create(NULL, 1, NULL, &graphed));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_graphed_callable_create(&callable, 0, NULL, &graphed));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_graphed_callable_create(&callable, 1, NULL, NULL));
    /* Not memory of a device, as it says. */
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER,
        tcuda_graphed_callable_create(&callable, 1, NULL, &graphed));
    sample.device.device_type = TCUDA_DEVICE_CPU;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_graphed_callable_create(&callable, 1, NULL, &graphed));
    callable.sample_inputs = NULL;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_graphed_callable_create(&callable, 1, NULL, &graphed));
    callable.num_inputs = 0;
    callable.forward = NULL;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_graphed_callable_create(&callable, 1, NULL, &graphed));
    callable.forward = forward;
    options.warmup_iterations = -1;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_graphed_callable_create(&callable, 1, &options, &graphed));
    options.warmup_iterations = 1;
    options.error_mode = 3;
    callable.num_outputs = 0;
    layer.fails_at = -1;
    CHECK(graphed == NULL);
    CHECK_EQ(layer.forwards + layer.destroyed, 0);
}

/* What a call reads is not another's before the call is over, although the callable is gone. */
static void memory_waits_for_the_last_call(void)
{
    int64_t shape[1] = {LENGTH};
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE), *side = NULL;
    unsigned char *x = allocate(LENGTH, TCUDA_CURRENT_DEVICE, stream);
    fill_bytes(x, 1, LENGTH, stream);
    CHECK_OK(tcuda_stream_synchronize(stream));
    tcuda_tensor sample = bytes_of(x, shape), out;
    struct layer layer = {.mark = 9};
    tcuda_callable callable = callable_of(&layer, &sample, 1, false);
    tcuda_graphed_callable *graphed = NULL;
    CHECK_OK(tcuda_graphed_callable_create(&callable, 1, NULL, &graphed));
    CHECK_OK(tcuda_graph_stream(TCUDA_CURRENT_DEVICE, &side));
    gate held;
    gate_close(&held, stream);
    CHECK_OK(tcuda_graphed_callable_call(graphed, &sample, 1, stream, &out, 1));
    CHECK_OK(tcuda_graphed_callable_destroy(graphed));
    unsigned char *other = allocate(LENGTH, TCUDA_CURRENT_DEVICE, side);
    CHECK(!runs_late() || other != layer.seen);
    CHECK_OK(tcuda_free(other));
    gate_open(&held);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_free(x));
    CHECK_OK(tcuda_stream_destroy(stream));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_device_set(0));
    wrong_arguments();
    two_layers_forward_and_backward();
    what_fails_leaves_nothing();
    memory_waits_for_the_last_call();
    return finish();
}
