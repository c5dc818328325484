/* Whole kernels: sources that compile and do not, launches, streams, graphs. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

enum { NUMBER = 1000 };
static float *values;
static float host[NUMBER];

static const char *const source =
    "template <typename T> __global__ void scale(T *values, T factor, int count)\n"
    "{\n"
    "    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < count) values[i] *= factor;\n"
    "}\n"
    "struct range { float *from; int count; };\n"
    "extern \"C\" __global__ void ramp(range r, short step)\n"
    "{\n"
    "    for (int i = threadIdx.x; i < r.count; i += blockDim.x) r.from[i] = float(i * step);\n"
    "}\n"
    "extern \"C\" __global__ void nothing() {}\n";

static tcuda_kernel *compile(const char *text, const char *name)
{
    tcuda_kernel *kernel = NULL;
    CHECK_OK(tcuda_kernel_compile(text, name, NULL, &kernel));
    CHECK(kernel != NULL);
    return kernel;
}

static tcuda_launch_options shape(uint32_t grid, uint32_t block)
{
    tcuda_launch_options options = TCUDA_INIT(tcuda_launch_options);
    options.grid[0] = grid;
    options.block[0] = block;
    return options;
}

static void fetch(void)
{
    CHECK_OK(tcuda_copy(host, values, sizeof host, NULL));
    CHECK_OK(tcuda_stream_synchronize(NULL));
}

static void ramp(int16_t step)
{
    struct { float *from; int32_t count; } range = { values, NUMBER };
    tcuda_kernel *kernel = compile(source, "ramp");
    const tcuda_launch_options options = shape(1, 64);
    void *args[] = { &range, &step };
    CHECK_OK(tcuda_kernel_launch(kernel, &options, args, 2, NULL));
    CHECK_OK(tcuda_kernel_destroy(kernel));
}

static void kernels_are_compiled_and_launched(void)
{
    float factor = 3;
    int32_t count = NUMBER - 1;
    ramp(2);
    tcuda_kernel *scale = compile(source, "scale<float>");
    tcuda_launch_options options = shape((NUMBER + 127) / 128, 128);
    void *args[] = { &values, &factor, &count };
    CHECK_OK(tcuda_kernel_launch(scale, &options, args, 3, NULL));
    fetch();
    for (int i = 0; i < NUMBER; i++)
        CHECK(host[i] == (i < count ? 6.0f : 2.0f) * (float)i);
    const int32_t accesses[] = { TCUDA_ACCESS_READ_WRITE, TCUDA_ACCESS_NONE, TCUDA_ACCESS_NONE };
    options.accesses = accesses;
    CHECK_OK(tcuda_kernel_launch(scale, &options, args, 3, NULL));
    const int32_t wrong[] = { 4, 0, 0 };
    options.accesses = wrong;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_kernel_launch(scale, &options, args, 3, NULL));
    options.accesses = NULL;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_kernel_launch(scale, &options, args, 2, NULL));
    CHECK_STR(tcuda_last_error(), "num_args is 2; the function has 3");
    args[1] = NULL;
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_kernel_launch(scale, &options, args, 3, NULL));
    CHECK_OK(tcuda_kernel_destroy(scale));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_kernel_destroy(scale));
    tcuda_kernel *nothing = compile(source, "nothing");
    CHECK_OK(tcuda_kernel_launch(nothing, NULL, NULL, 0, NULL));
    CHECK_OK(tcuda_kernel_destroy(nothing));
    CHECK_OK(tcuda_stream_synchronize(NULL));
}

/* What is wrong with a source is said with its own lines. */
static void compilers_are_quoted(void)
{
    tcuda_kernel *kernel = (tcuda_kernel *)host;
    const char *const text = "extern \"C\" __global__ void f(int *p)\n{\n    *p = nowhere;\n}\n";
    CHECK_STATUS(TCUDA_STATUS_COMPILE_ERROR, tcuda_kernel_compile(text, "f", NULL, &kernel));
    CHECK(kernel == (tcuda_kernel *)host);
    CHECK(strstr(tcuda_last_error(), "nowhere") != NULL);
    CHECK(strstr(tcuda_last_error(), "source(3)") != NULL
        || strstr(tcuda_last_error(), "source:3") != NULL);
    CHECK_STATUS(TCUDA_STATUS_COMPILE_ERROR,
        tcuda_kernel_compile(source, "no_such_kernel", NULL, &kernel));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_kernel_compile(source, "", NULL, &kernel));
}

static void flags_reach_the_compiler(void)
{
    const char *const text = "extern \"C\" __global__ void f(int *p) { *p = VALUE; }";
    const char *const flags[] = { "-DVALUE=42", "-std=c++14" };
    tcuda_kernel_options options = TCUDA_INIT(tcuda_kernel_options);
    tcuda_kernel *kernel = NULL;
    int32_t found = 0;
    CHECK_STATUS(TCUDA_STATUS_COMPILE_ERROR, tcuda_kernel_compile(text, "f", NULL, &kernel));
    options.flags = flags;
    options.num_flags = 2;
    CHECK_OK(tcuda_kernel_compile(text, "f", &options, &kernel));
    void *args[] = { &values };
    CHECK_OK(tcuda_kernel_launch(kernel, NULL, args, 1, NULL));
    CHECK_OK(tcuda_copy(&found, values, sizeof found, NULL));
    CHECK_OK(tcuda_stream_synchronize(NULL));
    CHECK_EQ(found, 42);
    CHECK_OK(tcuda_kernel_destroy(kernel));
}

/* Threads of a block wait for each other, in memory that the kernel declares and in what the launch
 * gives; blocks in three dimensions. */
static void blocks_share_memory(void)
{
    const char *const text =
        "extern \"C\" __global__ void sum(const float *from, float *sums, int count)\n"
        "{\n"
        "    extern __shared__ float room[];\n"
        "    __shared__ int rounds;\n"
        "    const int me = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);\n"
        "    const int all = blockDim.x * blockDim.y * blockDim.z;\n"
        "    const int block = blockIdx.x + gridDim.x * blockIdx.y;\n"
        "    const int i = block * all + me;\n"
        "    if (me == 0) rounds = 0;\n"
        "    room[me] = i < count ? from[i] : 0;\n"
        "    for (int half = all / 2; half > 0; half /= 2) {\n"
        "        __syncthreads();\n"
        "        if (me < half) room[me] += room[me + half];\n"
        "        if (me == 0) rounds++;\n"
        "    }\n"
        "    __syncthreads();\n"
        "    if (me == all - 1) sums[block] = room[0] + 1000000 * rounds;\n"
        "}\n";
    float *sums = values + NUMBER - 8;
    int32_t count = 512;
    ramp(1);
    tcuda_kernel *kernel = compile(text, "sum");
    tcuda_launch_options options = { .struct_size = sizeof options, .grid = { 2, 2 },
        .block = { 8, 4, 4 }, .shared_bytes = 128 * sizeof(float) };
    void *args[] = { &values, &sums, &count };
    CHECK_OK(tcuda_kernel_launch(kernel, &options, args, 3, NULL));
    fetch();
    for (int i = 0; i < 4; i++)
        CHECK(host[NUMBER - 8 + i] == 128 * 128 * i + 128 * 127 / 2 + 7 * 1000000);
    CHECK_OK(tcuda_kernel_destroy(kernel));
}

/* More shared memory than blocks get without asking, with some that the kernel declares. */
static void blocks_share_much_memory(void)
{
    const char *const text =
        "extern \"C\" __global__ void turn(float *values, int count)\n"
        "{\n"
        "    extern __shared__ float room[];\n"
        "    __shared__ float first[2048];\n"
        "    for (int i = threadIdx.x; i < 2048; i += blockDim.x) first[i] = i;\n"
        "    for (int i = threadIdx.x; i < count; i += blockDim.x) room[i] = values[i % 100] + i;\n"
        "    __syncthreads();\n"
        "    if (threadIdx.x < 100)\n"
        "        values[threadIdx.x] = room[count - 1 - threadIdx.x] + first[threadIdx.x + 1000];\n"
        "}\n";
    tcuda_device_info info = { .struct_size = sizeof info };
    CHECK_OK(tcuda_device_properties(0, &info));
    const uint32_t most = (uint32_t)info.shared_memory_per_block_optin_bytes - 2048 * sizeof(float);
    CHECK(most > 48 << 10);
    tcuda_kernel *kernel = compile(text, "turn");
    tcuda_launch_options options = { .struct_size = sizeof options, .block = { 128 } };
    const uint32_t sizes[] = { 1000, 44 << 10, (48 << 10) + 4, 100000, most - most % 4, 2000 };
    for (int k = 0; k < 6; k++) {
        int32_t count = (int32_t)(sizes[k] / sizeof(float));
        void *args[] = { &values, &count };
        ramp(1);
        options.shared_bytes = sizes[k];
        CHECK_OK(tcuda_kernel_launch(kernel, &options, args, 2, NULL));
        fetch();
        for (int i = 0; i < 100; i++)
            CHECK(host[i] == (float)((count - 1 - i) % 100 + (count - 1 - i) + i + 1000));
        /* The simulated machine counts what the launch gives alone. */
        options.shared_bytes = (uint32_t)info.shared_memory_per_block_optin_bytes + 1;
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
            tcuda_kernel_launch(kernel, &options, args, 2, NULL));
        CHECK(strstr(tcuda_last_error(), "shared_bytes") != NULL);
    }
    CHECK_OK(tcuda_kernel_destroy(kernel));
}

static void graphs_replay_kernels(void)
{
    tcuda_stream *stream = NULL;
    tcuda_graph *graph = NULL;
    float factor = 2;
    int32_t count = NUMBER;
    CHECK_OK(tcuda_stream_create(TCUDA_CURRENT_DEVICE, 0, &stream));
    CHECK_OK(tcuda_graph_create(0, &graph));
    tcuda_kernel *scale = compile(source, "scale<float>");
    ramp(1);
    CHECK_OK(tcuda_stream_synchronize(NULL));
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, NULL, TCUDA_CAPTURE_GLOBAL));
    const tcuda_launch_options options = shape((NUMBER + 127) / 128, 128);
    void *args[] = { &values, &factor, &count };
    CHECK_OK(tcuda_kernel_launch(scale, &options, args, 3, stream));
    /* One that is new is compiled and loaded meanwhile. */
    tcuda_kernel *other = compile(source, "scale<int>");
    CHECK_OK(tcuda_graph_capture_end(graph));
    CHECK_OK(tcuda_kernel_destroy(scale));
    CHECK_OK(tcuda_kernel_destroy(other));
    for (int i = 0; i < 3; i++)
        CHECK_OK(tcuda_graph_replay(graph, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    fetch();
    for (int i = 0; i < NUMBER; i++)
        CHECK(host[i] == 8.0f * (float)i);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_stream_destroy(stream));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    skip_without_compiler();
    setenv("TCUDA_KERNEL_CACHE", "0", 1);
    CHECK_OK(tcuda_malloc(sizeof host, TCUDA_CURRENT_DEVICE, NULL, (void **)&values));
    kernels_are_compiled_and_launched();
    compilers_are_quoted();
    flags_reach_the_compiler();
    blocks_share_memory();
    blocks_share_much_memory();
    graphs_replay_kernels();
    CHECK_OK(tcuda_free(values));
    return finish();
}
