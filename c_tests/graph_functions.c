/* Host functions in graphs: they run at each replay, and their data are freed once, when no graph
 * has them any more and the replays are over. */
#include "graph.h"

/* What a host function sees. */
struct counts {
    atomic_int calls, frees;
};

static void count_call(void *user_data)
{
    struct counts *counts = user_data;
    CHECK_EQ(atomic_load(&counts->frees), 0);
    atomic_fetch_add(&counts->calls, 1);
}

static void count_free(void *user_data)
{
    atomic_fetch_add(&((struct counts *)user_data)->frees, 1);
}

static void add(tcuda_stream *stream, struct counts *counts)
{
    CHECK_OK(tcuda_stream_add_callback(stream, count_call, counts, count_free));
}

static void check(struct counts *counts, int calls, int frees)
{
    CHECK_EQ(atomic_load(&counts->calls), calls);
    CHECK_EQ(atomic_load(&counts->frees), frees);
}

static void run_at_each_replay(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_stream *branch = create_stream(TCUDA_CURRENT_DEVICE);
    struct counts first = {0}, second = {0};
    tcuda_graph *graph = create_graph(0);
    begin(graph, stream);
    add(stream, &first);
    CHECK_OK(tcuda_stream_wait_stream(branch, stream));
    add(branch, &second);
    add(branch, &second);
    CHECK_OK(tcuda_stream_wait_stream(stream, branch));
    CHECK_OK(tcuda_stream_add_callback(stream, count_call, &first, NULL));
    end(graph);
    check(&first, 0, 0);
    for (int i = 1; i <= 3; i++) {
        replay(graph, i == 2 ? NULL : stream);
        CHECK_OK(tcuda_device_synchronize(TCUDA_CURRENT_DEVICE));
        check(&first, 2 * i, 0);
        check(&second, 2 * i, 0);
    }
    CHECK_OK(tcuda_graph_destroy(graph));
    check(&first, 6, 1);
    check(&second, 6, 2);
    CHECK_OK(tcuda_stream_destroy(branch));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void are_freed_without_a_graph(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    struct counts aborted = {0}, broken = {0};
    tcuda_graph *graph = create_graph(1);
    begin(graph, stream);
    add(stream, &aborted);
    CHECK_OK(tcuda_graph_capture_abort(graph));
    check(&aborted, 0, 1);
    begin(graph, stream);
    add(stream, &broken);
    CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_stream_synchronize(stream));
    CHECK(tcuda_stream_add_callback(stream, count_call, &broken, count_free) != TCUDA_STATUS_OK);
    CHECK_STATUS(TCUDA_STATUS_CAPTURE_INVALIDATED, tcuda_graph_capture_end(graph));
    check(&broken, 0, 1);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* They stay until launches are over that the graph does not wait for. */
static void outlive_their_graph(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    struct counts counts = {0};
    tcuda_graph *graph = create_graph(0);
    begin(graph, stream);
    add(stream, &counts);
    end(graph);
    gate held;
    gate_close(&held, stream);
    for (int i = 0; i < 3; i++)
        replay(graph, stream);
    CHECK_OK(tcuda_graph_destroy(graph));
    if (runs_late())
        check(&counts, 0, 0);
    gate_open(&held);
    CHECK_OK(tcuda_stream_synchronize(stream));
    check(&counts, 3, 1);
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* An update takes the functions of the other's template along; instantiating anew brings back its
 * own. */
static void are_taken_over(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    struct counts own = {0}, other = {0};
    tcuda_graph *graph = create_graph(1), *source = create_graph(1);
    begin(graph, stream);
    add(stream, &own);
    end(graph);
    CHECK_OK(tcuda_graph_instantiate(graph));
    begin(source, stream);
    add(stream, &other);
    end(source);
    for (int i = 0; i < 2; i++)
        CHECK_OK(tcuda_graph_update(graph, source));
    CHECK_OK(tcuda_graph_destroy(source));
    check(&other, 0, 0);
    replay(graph, stream);
    CHECK_OK(tcuda_stream_synchronize(stream));
    check(&own, 0, 0);
    check(&other, 1, 0);
    CHECK_OK(tcuda_graph_instantiate(graph));
    check(&other, 1, 1);
    replay(graph, stream);
    CHECK_OK(tcuda_stream_synchronize(stream));
    check(&own, 1, 0);
    CHECK_OK(tcuda_graph_update(graph, graph));
    replay(graph, stream);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_graph_reset(graph));
    check(&own, 2, 1);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* The input is the output, and a function is called beside it: in each warm-up and at each call. */
static int32_t forward(void *user_data, const tcuda_tensor *inputs, size_t num_inputs,
    tcuda_stream *stream, tcuda_tensor *outputs, size_t num_outputs)
{
    void *data = NULL;
    CHECK(num_inputs == 1 && num_outputs == 1);
    CHECK_OK(tcuda_malloc(PAGE, TCUDA_CURRENT_DEVICE, stream, &data));
    CHECK_OK(tcuda_copy(data, inputs->data, PAGE, stream));
    CHECK_OK(tcuda_stream_add_callback(stream, count_call, user_data, NULL));
    *outputs = *inputs;
    outputs->data = data;
    return 0;
}

static void run_in_callables(void)
{
    int64_t shape[1] = {PAGE};
    struct counts counts = {0};
    void *bytes = allocate(PAGE, TCUDA_CURRENT_DEVICE, NULL);
    tcuda_tensor sample, output;
    memset(&sample, 0, sizeof sample);
    sample.data = bytes;
    sample.device.device_type = TCUDA_DEVICE_CUDA;
    sample.ndim = 1;
    sample.dtype.code = TCUDA_DTYPE_UINT;
    sample.dtype.bits = 8;
    sample.dtype.lanes = 1;
    sample.shape = shape;
    output = sample;
    tcuda_callable callable = TCUDA_INIT(tcuda_callable);
    callable.forward = forward;
    callable.user_data = &counts;
    callable.destroy = count_free;
    callable.sample_inputs = &sample;
    callable.num_inputs = callable.num_outputs = 1;
    tcuda_graphed_callable *graphed = NULL;
    CHECK_OK(tcuda_graphed_callable_create(&callable, 1, NULL, &graphed));
    const int warmups = atomic_load(&counts.calls);
    for (int i = 1; i <= 3; i++) {
        CHECK_OK(tcuda_graphed_callable_call(graphed, &sample, 1, NULL, &output, 1));
        CHECK_OK(tcuda_stream_synchronize(NULL));
        check(&counts, warmups + i, 0);
    }
    CHECK_OK(tcuda_graphed_callable_destroy(graphed));
    check(&counts, warmups + 3, 1);
    CHECK_OK(tcuda_free(bytes));
}

/* A graph, a capture and launches that were not ended. */
static void wait_for_shutdown(void)
{
    tcuda_stream *stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_stream *captured = create_stream(TCUDA_CURRENT_DEVICE);
    struct counts launched = {0}, kept = {0}, under_way = {0};
    tcuda_graph *graph = create_graph(0), *second = create_graph(1), *third = create_graph(0);
    begin(graph, stream);
    add(stream, &launched);
    end(graph);
    begin(second, stream);
    add(stream, &kept);
    end(second);
    CHECK_OK(tcuda_graph_capture_begin(third, captured, NULL, TCUDA_CAPTURE_RELAXED));
    add(captured, &under_way);
    replay(graph, stream);
    replay(graph, stream);
    CHECK_OK(tcuda_shutdown(NULL));
    check(&launched, 2, 1);
    check(&kept, 0, 1);
    check(&under_way, 0, 1);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_device_set(0));
    run_at_each_replay();
    are_freed_without_a_graph();
    outlive_their_graph();
    are_taken_over();
    run_in_callables();
    wait_for_shutdown();
    return finish();
}
