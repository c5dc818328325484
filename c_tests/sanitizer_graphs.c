/* Graphs and graphed callables tell the stream sanitizer what their launches do
 * (sanitizer_calls.h). */
#define _POSIX_C_SOURCE 200809L

#include "sanitizer_calls.h"

static char *third;

/* A copy that is captured on the first stream. */
static tcuda_graph *copy_captured(int32_t keep, void *to)
{
    tcuda_graph *graph = NULL;
    CHECK_OK(tcuda_graph_create(keep, &graph));
    CHECK_OK(tcuda_graph_capture_begin(graph, own, NULL, TCUDA_CAPTURE_GLOBAL));
    CHECK_OK(tcuda_copy(to, src, BYTES, own));
    CHECK_OK(tcuda_graph_capture_end(graph));
    return graph;
}

static void replay(bool call)
{
    tcuda_graph *const graph = copy_captured(0, dst);
    access_all(far, dst, READS);
    if (call) CHECK_OK(tcuda_graph_replay(graph, own));
    CHECK_OK(tcuda_graph_destroy(graph));
}

static void update(bool call)
{
    tcuda_graph *const graph = copy_captured(1, dst), *const source = copy_captured(1, third);
    CHECK_OK(tcuda_graph_instantiate(graph));
    if (call) CHECK_OK(tcuda_graph_update(graph, source));
    access_all(far, third, READS);
    CHECK_OK(tcuda_graph_replay(graph, own));
    CHECK_OK(tcuda_graph_destroy(source));
    CHECK_OK(tcuda_graph_destroy(graph));
}

/* It does what its template says again. */
static void instantiate(bool call)
{
    tcuda_graph *const graph = copy_captured(1, dst), *const source = copy_captured(1, third);
    CHECK_OK(tcuda_graph_instantiate(graph));
    CHECK_OK(tcuda_graph_update(graph, source));
    if (call) CHECK_OK(tcuda_graph_instantiate(graph));
    access_all(far, third, READS);
    CHECK_OK(tcuda_graph_replay(graph, own));
    CHECK_OK(tcuda_graph_destroy(source));
    CHECK_OK(tcuda_graph_destroy(graph));
}

static atomic_int calls;

static void called(void *user_data)
{
    (void)user_data;
    atomic_fetch_add(&calls, 1);
}

/* A function of the host's is called at the launch, after what was on the stream before. */
static void add_callback(bool call)
{
    tcuda_graph *graph = NULL;
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_graph_capture_begin(graph, own, NULL, TCUDA_CAPTURE_GLOBAL));
    CHECK_OK(tcuda_copy(third, src, BYTES, own));
    if (call) CHECK_OK(tcuda_stream_add_callback(own, called, NULL, NULL));
    CHECK_OK(tcuda_graph_capture_end(graph));
    access_all(far, dst, WRITES);
    atomic_store(&calls, 0);
    CHECK_OK(tcuda_graph_replay(graph, far));
    for (int i = 0; call && i < 10000 && atomic_load(&calls) == 0; i++)
        sleep_ms(1);
    access_all(own, dst, WRITES);
    access_all(own, third, WRITES);
    CHECK_OK(tcuda_graph_destroy(graph));
}

/* Two branches of a capture that nothing orders race when they are captured. */
static void branches(bool call)
{
    tcuda_graph *graph = NULL;
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_graph_capture_begin(graph, own, NULL, TCUDA_CAPTURE_GLOBAL));
    CHECK_OK(tcuda_stream_wait_stream(far, own));
    CHECK_OK(tcuda_copy(dst, src, BYTES, far));
    if (call) CHECK_OK(tcuda_stream_wait_stream(own, far));
    CHECK_OK(tcuda_copy(dst, third, BYTES, own));
    CHECK_OK(tcuda_stream_wait_stream(own, far));
    CHECK_OK(tcuda_graph_capture_end(graph));
    CHECK_OK(tcuda_graph_destroy(graph));
}

/* An event that is a node of its own is recorded by the launch. */
static void external_event(bool call)
{
    tcuda_event *node = NULL;
    tcuda_graph *graph = NULL;
    CHECK_OK(tcuda_event_create(TCUDA_EVENT_EXTERNAL, &node));
    CHECK_OK(tcuda_event_record(node, own));
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_graph_capture_begin(graph, own, NULL, TCUDA_CAPTURE_GLOBAL));
    CHECK_OK(tcuda_copy(dst, src, BYTES, own));
    if (call) CHECK_OK(tcuda_event_record(node, own));
    CHECK_OK(tcuda_graph_capture_end(graph));
    CHECK_OK(tcuda_graph_replay(graph, own));
    CHECK_OK(tcuda_event_wait(node, far));
    access_all(far, dst, READS);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_event_destroy(node));
}

/* The copy is in the body of a conditional node; its predicate is no part of it. */
static void conditional_begin(bool call)
{
    tcuda_graph *graph = NULL;
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_graph_capture_begin(graph, own, NULL, TCUDA_CAPTURE_GLOBAL));
    if (call) {
        tcuda_stream *body = NULL;
        CHECK_OK(tcuda_graph_conditional_begin(graph, TCUDA_CONDITION_IF, third, own, &body));
        CHECK_OK(tcuda_copy(dst, src, BYTES, body));
        CHECK_OK(tcuda_graph_conditional_end(graph));
    }
    CHECK_OK(tcuda_graph_capture_end(graph));
    access_all(far, dst, READS);
    CHECK_OK(tcuda_graph_replay(graph, own));
    CHECK_OK(tcuda_graph_destroy(graph));
}

/* The predicate is read. */
static void conditional_set(bool call)
{
    tcuda_graph *graph = NULL;
    tcuda_stream *body = NULL;
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_graph_capture_begin(graph, own, NULL, TCUDA_CAPTURE_GLOBAL));
    CHECK_OK(tcuda_graph_conditional_begin(graph, TCUDA_CONDITION_IF, third, own, &body));
    if (call) CHECK_OK(tcuda_graph_conditional_set(graph, dst, body));
    CHECK_OK(tcuda_graph_conditional_end(graph));
    CHECK_OK(tcuda_graph_capture_end(graph));
    access_all(far, dst, WRITES);
    CHECK_OK(tcuda_graph_replay(graph, own));
    CHECK_OK(tcuda_graph_destroy(graph));
}

static int32_t pass(void *user_data, const tcuda_tensor *inputs, size_t num_inputs,
    tcuda_stream *stream, tcuda_tensor *outputs, size_t num_outputs)
{
    (void)user_data;
    void *made = NULL;
    if (num_inputs != 1 || num_outputs != 1
        || tcuda_malloc(BYTES, TCUDA_CURRENT_DEVICE, stream, &made) != TCUDA_STATUS_OK)
        return 1;
    if (tcuda_copy(made, inputs[0].data, BYTES, stream) != TCUDA_STATUS_OK) {
        CHECK_OK(tcuda_free(made));
        return 2;
    }
    outputs[0] = floats(made);
    return 0;
}

static tcuda_graphed_callable *make(const tcuda_tensor *sample)
{
    tcuda_callable layer = TCUDA_INIT(tcuda_callable);
    tcuda_graphed_callable *made = NULL;
    layer.forward = layer.backward = pass;
    layer.sample_inputs = sample;
    layer.num_inputs = layer.num_outputs = 1;
    CHECK_OK(tcuda_graphed_callable_create(&layer, 1, NULL, &made));
    return made;
}

/* It waits for the device, and leaves nothing behind that is not over. */
static void callable_create(bool call)
{
    const tcuda_tensor sample = floats(src);
    access_all(far, dst, WRITES);
    tcuda_graphed_callable *const made = call ? make(&sample) : NULL;
    access_all(own, dst, WRITES);
    access_all(own, src, WRITES);
    CHECK_OK(tcuda_graphed_callable_destroy(made));
}

static void callable_call(bool call)
{
    const tcuda_tensor sample = floats(src);
    tcuda_tensor output;
    tcuda_graphed_callable *const made = make(&sample);
    access_all(far, src, WRITES);
    if (call) CHECK_OK(tcuda_graphed_callable_call(made, &sample, 1, own, &output, 1));
    CHECK_OK(tcuda_graphed_callable_destroy(made));
}

static void callable_call_backward(bool call)
{
    const tcuda_tensor sample = floats(src);
    tcuda_tensor gradient;
    tcuda_graphed_callable *const made = make(&sample);
    access_all(far, src, WRITES);
    if (call) CHECK_OK(tcuda_graphed_callable_call_backward(made, &sample, 1, own, &gradient, 1));
    CHECK_OK(tcuda_graphed_callable_destroy(made));
}

static const struct row GRAPHS[] = {
    RACES(tcuda_graph_replay, replay),
    RACES(tcuda_graph_capture_end, replay),
    RACES(tcuda_graph_update, update),
    RACES(tcuda_graph_conditional_begin, conditional_begin),
    RACES(tcuda_graph_conditional_set, conditional_set),
    ORDERS(tcuda_graph_instantiate, instantiate),
    ORDERS(tcuda_stream_add_callback, add_callback),
    ORDERS(tcuda_stream_wait_stream, branches),
    ORDERS(tcuda_event_record, external_event),
    ORDERS(tcuda_graphed_callable_create, callable_create),
    RACES(tcuda_graphed_callable_call, callable_call),
    RACES(tcuda_graphed_callable_call_backward, callable_call_backward),
};

int main(void)
{
    SKIP_WITHOUT_GPU();
    begin();
    CHECK_OK(tcuda_malloc(BYTES, 0, own, (void **)(void *)&third));
    RUN(GRAPHS);
    CHECK_OK(tcuda_free(third));
    end();
    return finish();
}
