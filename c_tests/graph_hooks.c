/* Hooks: functions of the host at the steps of a graph's life, and objects that a graph keeps. */
#include "graph.h"

enum { MOST_SEEN = 32, EVERY_EVENT = 63 };

/* What a hook saw, in order. */
typedef struct seen {
    tcuda_graph_event events[MOST_SEEN];
    tcuda_graph *graph;
    template *native;
    executable *exec;
    int count, destroyed;
} seen;

/* The order of calls of several hooks. */
static int clock_of_calls;

static void note(void *user_data, tcuda_graph_event event, tcuda_graph *graph, template *native,
    executable *exec)
{
    seen *const self = (seen *)user_data;
    if (self->count < MOST_SEEN)
        self->events[self->count] = event;
    self->count++;
    self->graph = graph;
    self->native = native;
    self->exec = exec;
    /* A hook may look at the graph; before the first replay is over nothing else is known of it. */
    if (graph != NULL && event != TCUDA_GRAPH_CAPTURE_BEGUN) {
        template *found = NULL;
        executable *found_exec = NULL;
        CHECK_OK(tcuda_graph_native(graph, &found, &found_exec));
        CHECK(found == native && found_exec == exec);
    }
    clock_of_calls++;
}

static void forget(void *user_data)
{
    ((seen *)user_data)->destroyed++;
}

static tcuda_observer *watch(tcuda_graph *graph, tcuda_graph_event events, seen *self)
{
    tcuda_observer *observer = NULL;
    CHECK_OK(tcuda_graph_on_event(graph, events, note, self, forget, &observer));
    CHECK(observer != NULL);
    return observer;
}

static void saw(const seen *self, int count, const tcuda_graph_event *expected)
{
    CHECK_EQ(self->count, count);
    for (int index = 0; index < count; index++)
        CHECK_EQ(self->events[index], expected[index]);
}

static void capture_a_fill(tcuda_graph *graph, tcuda_stream *stream, void *ptr)
{
    begin(graph, stream);
    fill_bytes(ptr, 1, PAGE, stream);
    end(graph);
}

/* The order of torch: capture, its end, instantiation, replays, the end of the graph. Both kinds of
 * graphs have a template until the hooks of the instantiation have run. */
static void steps_come_in_order(int32_t keep)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *const bytes = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    tcuda_graph *const graph = create_graph(keep);
    seen all = { .count = 0 }, own = { .count = 0 };
    tcuda_observer *const of_all = watch(NULL, EVERY_EVENT, &all);
    tcuda_observer *const of_one = watch(graph, EVERY_EVENT, &own);

    begin(graph, stream);
    saw(&own, 1, (tcuda_graph_event[]){ TCUDA_GRAPH_CAPTURE_BEGUN });
    CHECK(own.graph == graph && own.native == NULL && own.exec == NULL);
    fill_bytes(bytes, 1, PAGE, stream);
    end(graph);
    if (keep) {
        saw(&own, 2, (tcuda_graph_event[]){
            TCUDA_GRAPH_CAPTURE_BEGUN, TCUDA_GRAPH_CAPTURE_ENDED });
        CHECK(own.native != NULL && own.exec == NULL);
    } else {
        CHECK(own.native != NULL && own.exec != NULL);
        template *native = NULL;
        CHECK_OK(tcuda_graph_native(graph, &native, NULL));
        CHECK(native == NULL);
    }
    replay(graph, stream);
    saw(&own, 5, (tcuda_graph_event[]){ TCUDA_GRAPH_CAPTURE_BEGUN, TCUDA_GRAPH_CAPTURE_ENDED,
        TCUDA_GRAPH_INSTANTIATED, TCUDA_GRAPH_REPLAY_BEGINS, TCUDA_GRAPH_REPLAY_QUEUED });
    CHECK((own.native != NULL) == (keep == 1) && own.exec != NULL);

    /* A second instantiation. */
    int count = 5;
    if (keep) {
        CHECK_OK(tcuda_graph_instantiate(graph));
        CHECK_EQ(own.events[count], TCUDA_GRAPH_INSTANTIATED);
        count++;
    }
    CHECK_EQ(own.count, count);
    CHECK_OK(tcuda_graph_reset(graph));
    CHECK_EQ(own.events[count], TCUDA_GRAPH_DESTROYED);
    CHECK(own.exec != NULL);
    count++;
    /* Nothing is left to be destroyed. */
    CHECK_OK(tcuda_graph_reset(graph));
    CHECK_EQ(own.count, count);

    /* The hooks of a graph outlive a reset, and end with the graph. */
    capture_a_fill(graph, stream, bytes);
    CHECK_EQ(own.events[count], TCUDA_GRAPH_CAPTURE_BEGUN);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_EQ(own.events[own.count - 1], TCUDA_GRAPH_DESTROYED);
    CHECK_EQ(own.destroyed, 1);
    CHECK_EQ(all.count, own.count);
    CHECK_EQ(all.destroyed, 0);
    CHECK_OK(tcuda_observer_destroy(of_one));
    CHECK_OK(tcuda_observer_destroy(of_all));
    CHECK(own.destroyed == 1 && all.destroyed == 1);
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* Which of two was called first. */
typedef struct turn {
    int at;
} turn;

static void take_turn(void *user_data, tcuda_graph_event event, tcuda_graph *graph,
    template *native, executable *exec)
{
    (void)event, (void)graph, (void)native, (void)exec;
    ((turn *)user_data)->at = ++clock_of_calls;
}

/* Those of all graphs first, then in the order of their registration; one may remove another, and
 * itself; only the events that it wants. */
static void hooks_run_in_order(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *const bytes = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    tcuda_graph *const graph = create_graph(0), *const other = create_graph(0);
    turn own[2] = { { 0 }, { 0 } }, all = { 0 }, of_other = { 0 };
    seen only = { .count = 0 };
    tcuda_observer *observer = NULL;
    for (int index = 0; index < 2; index++)
        CHECK_OK(tcuda_graph_on_event(graph, TCUDA_GRAPH_REPLAY_BEGINS, take_turn, &own[index],
            NULL, NULL));
    CHECK_OK(tcuda_graph_on_event(other, TCUDA_GRAPH_REPLAY_BEGINS, take_turn, &of_other, NULL,
        NULL));
    CHECK_OK(tcuda_graph_on_event(NULL, TCUDA_GRAPH_REPLAY_BEGINS, take_turn, &all, NULL,
        &observer));
    tcuda_observer *const of_only = watch(graph,
        TCUDA_GRAPH_CAPTURE_BEGUN | TCUDA_GRAPH_DESTROYED, &only);
    capture_a_fill(graph, stream, bytes);
    clock_of_calls = 0;
    replay(graph, stream);
    CHECK_EQ(all.at, 1);
    CHECK_EQ(own[0].at, 2);
    CHECK_EQ(own[1].at, 3);
    CHECK_EQ(of_other.at, 0);
    saw(&only, 1, (tcuda_graph_event[]){ TCUDA_GRAPH_CAPTURE_BEGUN });
    CHECK_OK(tcuda_observer_destroy(observer));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_observer_destroy(observer));
    replay(graph, stream);
    CHECK_EQ(all.at, 1);
    CHECK_EQ(own[0].at, 4);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_EQ(only.count, 2);
    CHECK_OK(tcuda_observer_destroy(of_only));
    CHECK_OK(tcuda_graph_destroy(other));
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void replay_again(void *user_data, tcuda_graph_event event, tcuda_graph *graph,
    template *native, executable *exec)
{
    int *const depth = (int *)user_data;
    (void)native, (void)exec;
    if (event == TCUDA_GRAPH_REPLAY_BEGINS && ++*depth < 3)
        replay(graph, NULL);
    if (event == TCUDA_GRAPH_DESTROYED)
        CHECK_OK(tcuda_graph_reset(graph));
}

static void empty_it(void *user_data, tcuda_graph_event event, tcuda_graph *graph,
    template *native, executable *exec)
{
    (void)user_data, (void)event, (void)native, (void)exec;
    CHECK_OK(tcuda_graph_reset(graph));
}

/* A hook may call what the thread may: it replays the graph, resets it while it is reset, and
 * empties it before it is executable. */
static void hooks_may_call_the_library(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *const bytes = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    tcuda_graph *const graph = create_graph(0);
    int depth = 0;
    CHECK_OK(tcuda_graph_on_event(graph, TCUDA_GRAPH_REPLAY_BEGINS | TCUDA_GRAPH_DESTROYED,
        replay_again, &depth, NULL, NULL));
    capture_a_fill(graph, stream, bytes);
    replay(graph, NULL);
    CHECK_EQ(depth, 3);
    CHECK_OK(tcuda_graph_reset(graph));
    tcuda_observer *observer = NULL;
    CHECK_OK(tcuda_graph_on_event(graph, TCUDA_GRAPH_CAPTURE_ENDED, empty_it, NULL, NULL,
        &observer));
    begin(graph, stream);
    fill_bytes(bytes, 1, PAGE, stream);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_capture_end(graph));
    CHECK_OK(tcuda_observer_destroy(observer));
    capture_a_fill(graph, stream, bytes);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* Replays the graph when its capture has ended, and counts instantiations. */
static void replay_early(void *user_data, tcuda_graph_event event, tcuda_graph *graph,
    template *native, executable *exec)
{
    int *const instantiations = (int *)user_data;
    (void)exec;
    CHECK(native != NULL);
    if (event == TCUDA_GRAPH_INSTANTIATED) {
        ++*instantiations;
        return;
    }
    /* Both linkages run at the same time. */
    char path[64];
    snprintf(path, sizeof path, "graph_hooks_%ld.dot", (long)getpid());
    CHECK_OK(tcuda_graph_debug_dump(graph, path));
    CHECK_EQ(remove(path), 0);
    replay(graph, NULL);
}

/* It is executable then, and is made so once. */
static void a_hook_may_replay_what_was_captured(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *const bytes = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    tcuda_graph *const graph = create_graph(0);
    int instantiations = 0;
    CHECK_OK(tcuda_graph_on_event(graph, TCUDA_GRAPH_CAPTURE_ENDED | TCUDA_GRAPH_INSTANTIATED,
        replay_early, &instantiations, NULL, NULL));
    fill_bytes(bytes, 9, PAGE, NULL);
    capture_a_fill(graph, stream, bytes);
    CHECK_EQ(instantiations, 1);
    CHECK_EQ(count_other_bytes(bytes, 1, PAGE, NULL), 0);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void bad_arguments(void)
{
    tcuda_graph *const graph = create_graph(0);
    tcuda_observer *observer = NULL;
    seen self = { .count = 0 };
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_graph_on_event(graph, EVERY_EVENT, NULL, &self, forget, &observer));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_graph_on_event(graph, 0, note, &self, forget, &observer));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_graph_on_event(graph, EVERY_EVENT + 1, note, &self, forget, &observer));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_graph_retain(graph, &self, NULL, 0));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_graph_retain(graph, &self, forget, 2));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_graph_retain(NULL, &self, forget, 0));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE,
        tcuda_graph_on_event(graph, EVERY_EVENT, note, &self, forget, &observer));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_graph_retain(graph, &self, forget, 1));
    CHECK(observer == NULL);
    CHECK_EQ(self.destroyed, 0);
}

/* Memory that a graph writes, freed when the graph no longer does. */
typedef struct buffer {
    unsigned char *bytes;
    int freed;
} buffer;

static void free_buffer(void *user_data)
{
    buffer *const self = (buffer *)user_data;
    CHECK_OK(tcuda_free(self->bytes));
    self->freed++;
}

/* Until the reset, or the end of the graph; of a source, as long as the graph that it updated; with
 * synchronize until the replays are complete. */
static void graphs_retain_objects(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    seen early = { .count = 0 }, late = { .count = 0 };
    tcuda_graph *const graph = create_graph(0), *const source = create_graph(1);
    unsigned char *const bytes = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);

    /* Also of an empty graph. */
    CHECK_OK(tcuda_graph_retain(graph, &early, forget, 0));
    CHECK_OK(tcuda_graph_reset(graph));
    CHECK_EQ(early.destroyed, 1);

    buffer owned = { .bytes = allocate(MIB, TCUDA_CURRENT_DEVICE, stream) };
    begin(graph, stream);
    fill_bytes(owned.bytes, 7, MIB, stream);
    end(graph);
    CHECK_OK(tcuda_graph_retain(graph, &owned, free_buffer, 1));
    for (int again = 0; again < 4; again++)
        replay(graph, stream);
    CHECK_EQ(owned.freed, 0);
    CHECK_OK(tcuda_graph_reset(graph));
    CHECK_EQ(owned.freed, 1);
    bool done = false;
    CHECK_OK(tcuda_stream_query(stream, &done));
    CHECK(done);

    capture_a_fill(graph, stream, bytes);
    capture_a_fill(source, stream, bytes);
    CHECK_OK(tcuda_graph_retain(source, &late, forget, 0));
    CHECK_OK(tcuda_graph_update(graph, source));
    CHECK_OK(tcuda_graph_update(graph, source));
    CHECK_OK(tcuda_graph_destroy(source));
    CHECK_EQ(late.destroyed, 0);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_EQ(late.destroyed, 1);
    CHECK_EQ(early.destroyed, 1);
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static int32_t add_one(void *user_data, const tcuda_tensor *inputs, size_t num_inputs,
    tcuda_stream *stream, tcuda_tensor *outputs, size_t num_outputs)
{
    (void)user_data;
    if (num_inputs != 1 || num_outputs != 1)
        return 1;
    void *ptr = NULL;
    if (tcuda_malloc(PAGE, TCUDA_CURRENT_DEVICE, stream, &ptr) != TCUDA_STATUS_OK ||
        tcuda_copy(ptr, inputs[0].data, PAGE, stream) != TCUDA_STATUS_OK)
        return 2;
    outputs[0] = inputs[0];
    outputs[0].data = ptr;
    return 0;
}

/* A hook in a replay of a callable is a callback: it must not wait. */
static void wait_in_vain(void *user_data, tcuda_graph_event event, tcuda_graph *graph,
    template *native, executable *exec)
{
    seen *const self = (seen *)user_data;
    CHECK(graph == NULL);
    (void)native;
    self->count++;
    if (event == TCUDA_GRAPH_REPLAY_BEGINS) {
        CHECK(exec != NULL);
        CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_device_synchronize(TCUDA_CURRENT_DEVICE));
    }
}

static void callables_have_graphs(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *const bytes = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    int64_t size = PAGE;
    const tcuda_tensor sample = { .data = bytes, .device = { TCUDA_DEVICE_CUDA, 0 }, .ndim = 1,
        .dtype = { TCUDA_DTYPE_UINT, 8, 1 }, .shape = &size };
    const tcuda_callable callable = { .struct_size = sizeof callable, .forward = add_one,
        .sample_inputs = &sample, .num_inputs = 1, .num_outputs = 1 };
    tcuda_graphed_callable *graphed = NULL;
    tcuda_tensor output = { .data = NULL };
    seen all = { .count = 0 };
    tcuda_observer *observer = NULL;
    fill_bytes(bytes, 3, PAGE, stream);
    CHECK_OK(tcuda_graph_on_event(NULL, EVERY_EVENT, wait_in_vain, &all, forget, &observer));
    CHECK_OK(tcuda_graphed_callable_create(&callable, 1, NULL, &graphed));
    CHECK_EQ(all.count, 3);
    CHECK_OK(tcuda_graphed_callable_call(graphed, &sample, 1, stream, &output, 1));
    CHECK_EQ(all.count, 5);
    CHECK_EQ(count_other_bytes(output.data, 3, PAGE, stream), 0);
    CHECK_OK(tcuda_graphed_callable_destroy(graphed));
    CHECK_EQ(all.count, 6);
    CHECK_OK(tcuda_observer_destroy(observer));
    CHECK_EQ(all.destroyed, 1);
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* Hooks and kept objects end with the library, and their handles are counted. */
static void everything_ends_with_the_library(void)
{
    seen all = { .count = 0 }, own = { .count = 0 }, kept = { .count = 0 };
    tcuda_graph *const graph = create_graph(0);
    size_t live = 0;
    (void)watch(NULL, EVERY_EVENT, &all);
    CHECK_OK(tcuda_graph_on_event(graph, EVERY_EVENT, note, &own, forget, NULL));
    CHECK_OK(tcuda_graph_retain(graph, &kept, forget, 1));
    CHECK_OK(tcuda_shutdown(&live));
    CHECK_EQ(live, 2);
    CHECK(all.destroyed == 1 && own.destroyed == 1 && kept.destroyed == 1);
    CHECK_EQ(own.count, 0);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_device_set(0));
    bad_arguments();
    steps_come_in_order(0);
    steps_come_in_order(1);
    hooks_run_in_order();
    hooks_may_call_the_library();
    a_hook_may_replay_what_was_captured();
    graphs_retain_objects();
    callables_have_graphs();
    everything_ends_with_the_library();
    return finish();
}
