/* Graphs, generators, tensors, compiled functions, and libraries that are opened. */
#include "soak.h"

static tcuda_stream *stream_of_all;
static float *data_of_all;
static int64_t length[1] = { 64 };

static tcuda_tensor floats(void)
{
    return tensor_of(data_of_all, TCUDA_DTYPE_FLOAT, 32, length);
}

static void with_data(void)
{
    bool available = false;
    CHECK_OK(tcuda_is_available(&available));
    if (!available)
        leave_out("there is no GPU");
    stream_of_all = create_stream(0);
    data_of_all = allocate(sizeof(float) * 64, 0, stream_of_all);
}

static void without_data(void)
{
    CHECK_OK(tcuda_free(data_of_all));
    CHECK_OK(tcuda_stream_destroy(stream_of_all));
}

static tcuda_graph *captured(int32_t keep, size_t bytes, tcuda_generator *generator)
{
    tcuda_graph *graph = NULL;
    CHECK_OK(tcuda_graph_create(keep, &graph));
    if (generator != NULL)
        CHECK_OK(tcuda_graph_register_generator(graph, generator));
    CHECK_OK(tcuda_graph_capture_begin(graph, stream_of_all, NULL, TCUDA_CAPTURE_GLOBAL));
    void *const block = allocate(bytes, 0, stream_of_all);
    fill_bytes(block, 1, bytes, stream_of_all);
    CHECK_OK(tcuda_free(block));
    return graph;
}

static void graph_round(int64_t number)
{
    tcuda_graph *const graph = captured(0, 1000, NULL);
    CHECK_OK(tcuda_graph_capture_end(graph));
    CHECK_OK(tcuda_graph_replay(graph, stream_of_all));
    CHECK_OK(tcuda_graph_destroy(graph));
    if (number % 16 == 0) {
        CHECK_OK(tcuda_stream_synchronize(stream_of_all));
        CHECK_OK(tcuda_memory_empty_cache());
    }
}

static void called(void *user_data)
{
    (void)user_data;
}

/* Templates, updates, functions of the host, generators, captures that are given up. A graph that
 * takes random numbers cannot be updated. */
static void template_round(int64_t number)
{
    tcuda_generator *generator = NULL;
    const tcuda_tensor tensor = floats();
    tcuda_graph *graphs[2];
    CHECK_OK(tcuda_generator_create(0, &generator));
    for (int index = 0; index < 2; index++) {
        graphs[index] = captured(1, 1000, NULL);
        CHECK_OK(tcuda_stream_add_callback(stream_of_all, called, NULL, NULL));
        CHECK_OK(tcuda_graph_capture_end(graphs[index]));
    }
    CHECK_OK(tcuda_graph_instantiate(graphs[0]));
    CHECK_OK(tcuda_graph_replay(graphs[0], stream_of_all));
    CHECK_OK(tcuda_graph_update(graphs[0], graphs[1]));
    CHECK_OK(tcuda_graph_replay(graphs[0], stream_of_all));
    for (int index = 0; index < 2; index++)
        CHECK_OK(tcuda_graph_destroy(graphs[index]));
    tcuda_graph *const random = captured(0, 1000, generator), *given_up = NULL;
    CHECK_OK(tcuda_random_uniform(&tensor, 0, 1, generator, stream_of_all));
    CHECK_OK(tcuda_graph_capture_end(random));
    CHECK_OK(tcuda_graph_replay(random, stream_of_all));
    CHECK_OK(tcuda_graph_destroy(random));
    CHECK_OK(tcuda_generator_destroy(generator));
    given_up = captured(0, 1000, NULL);
    CHECK_OK(tcuda_graph_capture_abort(given_up));
    CHECK_OK(tcuda_graph_destroy(given_up));
    if (number % 16 == 0)
        CHECK_OK(tcuda_stream_synchronize(stream_of_all));
}

static int32_t forward(void *user_data, const tcuda_tensor *inputs, size_t num_inputs,
    tcuda_stream *stream, tcuda_tensor *outputs, size_t num_outputs)
{
    (void)user_data, (void)num_inputs, (void)num_outputs;
    void *data = NULL;
    if (tcuda_malloc(sizeof(float) * 64, TCUDA_CURRENT_DEVICE, stream, &data) != TCUDA_STATUS_OK)
        return 1;
    outputs[0] = tensor_of(data, TCUDA_DTYPE_FLOAT, 32, length);
    return tcuda_copy(data, inputs[0].data, sizeof(float) * 64, stream) != TCUDA_STATUS_OK;
}

static void callable_round(int64_t number)
{
    (void)number;
    tcuda_graphed_callable *graphed = NULL;
    tcuda_callable callable = TCUDA_INIT(tcuda_callable);
    const tcuda_tensor sample = floats();
    tcuda_tensor output;
    callable.forward = forward;
    callable.sample_inputs = &sample;
    callable.num_inputs = callable.num_outputs = 1;
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_graphed_callable_create(&callable, 1, NULL, &graphed));
    CHECK_OK(tcuda_graphed_callable_call(graphed, &sample, 1, stream_of_all, &output, 1));
    CHECK_OK(tcuda_graphed_callable_destroy(graphed));
}

static void generator_round(int64_t number)
{
    tcuda_generator *generator = NULL;
    const tcuda_tensor tensor = floats();
    CHECK_OK(tcuda_generator_create(0, &generator));
    CHECK_OK(tcuda_generator_seed_set(generator, (uint64_t)number));
    CHECK_OK(tcuda_random_normal(&tensor, 0, 1, generator, stream_of_all));
    CHECK_OK(tcuda_generator_destroy(generator));
    if (number % 64 == 0)
        CHECK_OK(tcuda_stream_synchronize(stream_of_all)); /* which may be slower than the host */
}

/* Outputs of the library's, and views that change hands. */
static void tensor_round(int64_t number)
{
    const tcuda_tensor source = floats();
    const int32_t devices[] = { 0, 0 };
    tcuda_tensor outputs[1];
    struct DLManagedTensorVersioned *capsule = NULL;
    (void)number;
    memset(outputs, 0, sizeof outputs);
    CHECK_OK(tcuda_comm_broadcast(&source, devices, 1, outputs));
    CHECK_OK(tcuda_tensor_to_dlpack(&outputs[0], &capsule));
    CHECK_OK(tcuda_tensor_from_dlpack(capsule, &outputs[0]));
    CHECK_OK(tcuda_tensor_release(&outputs[0]));
}

/* Functions that are read, and never compiled: each is another one. */
static void unread_function_round(int64_t number)
{
    char code[200];
    tcuda_jit *jit = NULL;
    snprintf(code, sizeof code, "template <typename T> T f_%lld(T x) { return x + T(%lld); }",
        (long long)number, (long long)number);
    CHECK_OK(tcuda_jit_create(code, NULL, &jit));
    CHECK_OK(tcuda_jit_destroy(jit));
}

static const char function_code[] = "template <typename T> T soak(T x) { return x + x; }";

static void function_round(int64_t number)
{
    tcuda_jit *jit = NULL;
    tcuda_tensor input = floats(), output = floats();
    int64_t shape[1] = { number % 60 + 1 }; /* a plan of its own for each */
    input.shape = output.shape = shape;
    CHECK_OK(tcuda_jit_create(function_code, NULL, &jit));
    CHECK_OK(tcuda_jit_call(jit, &input, 1, NULL, 0, &output, 1, stream_of_all));
    CHECK_OK(tcuda_jit_destroy(jit));
}

/* Layouts, addresses and streams of one function that stays. */
static tcuda_jit *jit_of_all;

static void with_function(void)
{
    with_data();
    CHECK_OK(tcuda_jit_create(function_code, NULL, &jit_of_all));
    tcuda_tensor tensor = floats();
    const tcuda_status status =
        tcuda_jit_call(jit_of_all, &tensor, 1, NULL, 0, &tensor, 1, stream_of_all);
    if (status == TCUDA_STATUS_NO_LIBRARY || status == TCUDA_STATUS_NOT_SUPPORTED) {
        CHECK_OK(tcuda_jit_destroy(jit_of_all));
        leave_out("there is no compiler");
    }
    CHECK_EQ(status, TCUDA_STATUS_OK);
}

static void without_function(void)
{
    CHECK_OK(tcuda_jit_destroy(jit_of_all));
    without_data();
}

static void layout_round(int64_t number)
{
    tcuda_stream *const stream = create_stream(0);
    const uint64_t word = (uint64_t)number * 0x9e3779b97f4a7c15u >> 32;
    int64_t shape[2] = { (int64_t)(word % 7 + 1), (int64_t)(word / 7 % 7 + 1) };
    int64_t strides[2] = { (int64_t)(word / 49 % 8), 1 };
    tcuda_tensor input = floats(), output = floats();
    input.ndim = output.ndim = 2;
    input.shape = output.shape = shape;
    input.strides = strides;
    output.data = allocate(4096, 0, stream);
    CHECK_OK(tcuda_jit_call(jit_of_all, &input, 1, NULL, 0, &output, 1, stream));
    CHECK_OK(tcuda_free(output.data));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void kernel_round(int64_t number)
{
    (void)number;
    tcuda_kernel *kernel = NULL;
    tcuda_launch_options options = TCUDA_INIT(tcuda_launch_options);
    void *const args[] = { &data_of_all };
    CHECK_OK(tcuda_kernel_compile("extern \"C\" __global__ void twice(float *x) { *x += *x; }",
        "twice", NULL, &kernel));
    CHECK_OK(tcuda_kernel_launch(kernel, &options, args, 1, stream_of_all));
    CHECK_OK(tcuda_kernel_destroy(kernel));
}

static void *blas_body(void *argument)
{
    struct cublasContext *handle = NULL;
    CHECK_OK(tcuda_blas_handle(0, &handle));
    return argument;
}

static void with_blas(void)
{
    struct cublasContext *handle = NULL;
    with_data();
    const tcuda_status status = tcuda_blas_handle(0, &handle);
    if (status == TCUDA_STATUS_NO_LIBRARY || status == TCUDA_STATUS_NOT_SUPPORTED)
        leave_out("there is no cuBLAS");
    CHECK_EQ(status, TCUDA_STATUS_OK);
}

static void blas_round(int64_t number)
{
    (void)number;
    run_on_thread(blas_body, NULL);
}

/* Faults that are armed, and fire or do not. */
static void fault_round(int64_t number)
{
    CHECK_OK(tcuda_backend_inject("cuEventRecord", 1, 999, (int32_t)(number % 2)));
    CHECK_OK(tcuda_backend_faults("cuEventRecord@100=2"));
    CHECK_OK(tcuda_backend_faults(NULL));
}

#define ON_DATA .begin = with_data, .end = without_data
#define WITH_FUNCTION .begin = with_function, .end = without_function

const kind object_kinds[] = {
    { "graphs", graph_round, .share = 4, ON_DATA },
    { "graphs, all of them", template_round, .share = 10, ON_DATA },
    { "graphed callables", callable_round, .share = 20, ON_DATA },
    { "generators", generator_round, ON_DATA },
    { "tensors", tensor_round, ON_DATA },
    { "functions, not called", unread_function_round, .share = 4 },
    { "functions", function_round, .share = 4, WITH_FUNCTION, .heap_kib = 512 },
    { "layouts of a function", layout_round, .share = 4, WITH_FUNCTION, .heap_kib = 512 },
    { "kernels", kernel_round, .share = 4, WITH_FUNCTION },
    { "threads with cuBLAS", blas_round, .share = 10, .begin = with_blas, .end = without_data },
    { "injected faults", fault_round, .share = 4 },
    { NULL, NULL, .share = 0 },
};
