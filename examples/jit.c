/* A function of elements: a row is added to each row of a matrix in one call, by a kernel that is
 * compiled when it is first needed and kept on disk for the next time. */

#include <stdio.h>
#include <stdlib.h>
#include <tcuda.h>

static void check(tcuda_status status)
{
    if (status == TCUDA_STATUS_OK)
        return;
    fprintf(stderr, "%s: %s\n", tcuda_status_name((int32_t)status), tcuda_last_error());
    exit(EXIT_FAILURE);
}

enum { ROWS = 3, COLUMNS = 4, ELEMENTS = ROWS * COLUMNS };

static const char *const code =
    "template <typename T> T relu(T x) { return x > T(0) ? x : T(0); }\n"
    "template <typename T> T layer(T x, T bias, T scale) { return relu(x * scale + bias); }";

int main(void)
{
    float host[ELEMENTS], bias[COLUMNS] = {-6, 0, 1, 2};
    int64_t matrix[] = {ROWS, COLUMNS};
    tcuda_stream *stream;
    tcuda_jit *layer;
    tcuda_tensor inputs[2], output;

    check(tcuda_stream_create(0, 0, &stream));
    for (int i = 0; i < ELEMENTS; i++)
        host[i] = (float)i;
    output = (tcuda_tensor){
        .device = {TCUDA_DEVICE_CUDA, 0},
        .ndim = 2,
        .dtype = {TCUDA_DTYPE_FLOAT, 32, 1},
        .shape = matrix,
    };
    check(tcuda_malloc(sizeof host, 0, stream, &output.data));
    check(tcuda_copy(output.data, host, sizeof host, stream));
    /* In place, and the row broadcasts. */
    inputs[0] = inputs[1] = output;
    inputs[1].ndim = 1;
    inputs[1].shape = &matrix[1];
    check(tcuda_malloc(sizeof bias, 0, stream, &inputs[1].data));
    check(tcuda_copy(inputs[1].data, bias, sizeof bias, stream));

    tcuda_scalar scale = {.name = "scale", .kind = TCUDA_SCALAR_DOUBLE, .real = 1};
    const tcuda_jit_options options = {sizeof options, &scale, 1};
    check(tcuda_jit_create(code, &options, &layer));
    scale.real = 0.5;
    check(tcuda_jit_call(layer, inputs, 2, &scale, 1, &output, 1, stream));

    check(tcuda_copy(host, output.data, sizeof host, stream));
    check(tcuda_stream_synchronize(stream));
    for (int i = 0; i < ELEMENTS; i++)
        printf("%g%c", (double)host[i], i % COLUMNS == COLUMNS - 1 ? '\n' : ' ');

    tcuda_jit_destroy(layer);
    tcuda_free(inputs[1].data);
    tcuda_free(output.data);
    tcuda_stream_destroy(stream);
    check(tcuda_shutdown(NULL));
    return EXIT_SUCCESS;
}
