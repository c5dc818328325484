/* What one call of a function of elements costs the host, in C: nanoseconds of tcuda_jit_call, and
 * of tcuda_kernel_launch with a kernel that does nothing beside it, both queued without waiting.
 *
 *   jit_call [CALLS]    the best of 10 rounds of so many calls; 1000
 *
 * On the simulated machine the calls contain the kernel, which runs there at once. */

#define _POSIX_C_SOURCE 200809L

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <tcuda.h>
#include <time.h>

enum { ROUNDS = 10, ROWS = 8, COLUMNS = 128 };

static void check(tcuda_status status, const char *call)
{
    if (status == TCUDA_STATUS_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", call, tcuda_status_name((int32_t)status), tcuda_last_error());
    exit(EXIT_FAILURE);
}

#define CHECK(call) check((call), #call)

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static tcuda_jit *function;
static tcuda_kernel *nothing;
static tcuda_stream *stream;
static int64_t matrix[] = { ROWS, COLUMNS }, row[] = { COLUMNS }, transposed[] = { 1, ROWS };
static tcuda_tensor inputs[2], output;

static void launch(void)
{
    const tcuda_launch_options options = { .struct_size = sizeof options, .grid = { 1, 1, 1 },
        .block = { 128, 1, 1 } };
    CHECK(tcuda_kernel_launch(nothing, &options, NULL, 0, stream));
}

static void call(void)
{
    CHECK(tcuda_jit_call(function, inputs, 2, NULL, 0, &output, 1, stream));
}

/* Another function of the host's in between: the sizes of two calls alternate. */
static void call_others(void)
{
    static int turn;
    turn = !turn;
    inputs[0].ndim = inputs[1].ndim = output.ndim = turn + 1;
    inputs[0].shape = inputs[1].shape = output.shape = turn ? matrix : row;
    call();
}

static void measure(const char *name, void (*body)(void), long calls)
{
    double best = 1e30;
    for (int round = 0; round < ROUNDS; round++) {
        CHECK(tcuda_stream_synchronize(stream));
        const double start = now();
        for (long i = 0; i < calls; i++)
            body();
        const double took = (now() - start) / (double)calls;
        best = took < best ? took : best;
    }
    CHECK(tcuda_stream_synchronize(stream));
    printf("%-28s%10.1f ns\n", name, best);
}

int main(int argc, char **argv)
{
    const long calls = argc > 1 ? atol(argv[1]) : 1000;
    const tcuda_dtype float32 = { TCUDA_DTYPE_FLOAT, 32, 1 };
    void *memory[3];
    CHECK(tcuda_stream_create(TCUDA_CURRENT_DEVICE, 0, &stream));
    for (int i = 0; i < 3; i++)
        CHECK(tcuda_malloc(ROWS * COLUMNS * sizeof(float), TCUDA_CURRENT_DEVICE, NULL, &memory[i]));
    for (int i = 0; i < 3; i++) {
        tcuda_tensor *tensor = i < 2 ? &inputs[i] : &output;
        *tensor = (tcuda_tensor){ .data = memory[i], .device = { TCUDA_DEVICE_CUDA, 0 }, .ndim = 2,
            .dtype = float32, .shape = matrix };
    }
    CHECK(tcuda_jit_create("template <typename T> T add(T x, T y) { return x + y; }", NULL,
        &function));
    CHECK(tcuda_kernel_compile("__global__ void nothing() {}", "nothing", NULL, &nothing));
    measure("a launch of nothing", launch, calls);
    measure("a + b", call, calls);
    inputs[1].ndim = 1;
    inputs[1].shape = row;
    measure("a + row", call, calls);
    inputs[1].ndim = 2;
    inputs[1].shape = matrix;
    inputs[1].strides = transposed;
    measure("a + b transposed", call, calls);
    inputs[1].strides = NULL;
    measure("sizes that alternate", call_others, calls);
    CHECK(tcuda_jit_destroy(function));
    CHECK(tcuda_kernel_destroy(nothing));
    for (int i = 0; i < 3; i++)
        CHECK(tcuda_free(memory[i]));
    CHECK(tcuda_stream_destroy(stream));
    return EXIT_SUCCESS;
}
