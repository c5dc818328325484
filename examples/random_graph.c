/* A graph that draws random numbers: captured once, replayed twice. Each replay goes on where the
 * last one ended, with the numbers of torch.manual_seed(42); torch.rand(8, device="cuda"), and the
 * next. */

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

int main(void)
{
    enum { COUNT = 8 };
    float host[COUNT];
    int64_t shape[] = {COUNT};
    tcuda_stream *stream;
    tcuda_graph *graph;
    tcuda_tensor tensor = {
        .device = {TCUDA_DEVICE_CUDA, 0},
        .ndim = 1,
        .dtype = {TCUDA_DTYPE_FLOAT, 32, 1},
        .shape = shape,
    };

    check(tcuda_random_manual_seed(0, 42));
    check(tcuda_stream_create(0, 0, &stream));
    check(tcuda_malloc(sizeof host, 0, stream, &tensor.data));

    check(tcuda_graph_create(0, &graph));
    check(tcuda_graph_capture_begin(graph, stream, NULL, TCUDA_CAPTURE_GLOBAL));
    check(tcuda_random_uniform(&tensor, 0, 1, NULL, stream));
    check(tcuda_graph_capture_end(graph));

    for (int replay = 0; replay < 2; replay++) {
        check(tcuda_graph_replay(graph, stream));
        check(tcuda_copy(host, tensor.data, sizeof host, stream));
        check(tcuda_stream_synchronize(stream));
        printf("%.6f %.6f\n", (double)host[0], (double)host[1]);
    }
    check(tcuda_graph_destroy(graph));
    tcuda_free(tensor.data);
    tcuda_stream_destroy(stream);
    check(tcuda_shutdown(NULL));
    return EXIT_SUCCESS;
}
