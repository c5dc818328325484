/* Conditional nodes: bodies that a replay runs by a byte of memory, once or again and again. */
#include "graph.h"

/* Bytes whose first one is what counts, and space to move them by one. */
typedef struct tape {
    unsigned char *bytes, *scratch;
} tape;

enum { TAPE = 64, RUNS = 3 };

static tape create_tape(tcuda_stream *stream)
{
    tape self;
    self.bytes = allocate(TAPE, TCUDA_CURRENT_DEVICE, stream);
    self.scratch = allocate(TAPE, TCUDA_CURRENT_DEVICE, stream);
    return self;
}

static void destroy_tape(tape self)
{
    CHECK_OK(tcuda_free(self.bytes));
    CHECK_OK(tcuda_free(self.scratch));
}

static void write_tape(tape self, const unsigned char *values, size_t count, tcuda_stream *stream)
{
    unsigned char all[TAPE] = {0};
    memcpy(all, values, count);
    CHECK_OK(tcuda_copy(self.bytes, all, TAPE, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
}

/* 0, 1, 2, ...: the first byte is the number of advances. */
static void count_from_zero(tape self, tcuda_stream *stream)
{
    unsigned char all[TAPE];
    for (int index = 0; index < TAPE; index++)
        all[index] = (unsigned char)index;
    write_tape(self, all, TAPE, stream);
}

static void advance(tape self, tcuda_stream *stream)
{
    CHECK_OK(tcuda_copy(self.scratch, self.bytes + 1, TAPE - 1, stream));
    CHECK_OK(tcuda_copy(self.bytes, self.scratch, TAPE - 1, stream));
}

static unsigned first_of(const unsigned char *bytes, tcuda_stream *stream)
{
    unsigned char value = 0;
    CHECK_OK(tcuda_copy(&value, bytes, 1, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    return value;
}

static tcuda_stream *current(void)
{
    tcuda_stream *stream = NULL;
    CHECK_OK(tcuda_stream_current(TCUDA_CURRENT_DEVICE, &stream));
    return stream;
}

static tcuda_stream *enter(tcuda_graph *graph, tcuda_condition condition,
    const void *predicate, tcuda_stream *stream)
{
    tcuda_stream *body = NULL;
    CHECK_OK(tcuda_graph_conditional_begin(graph, condition, predicate, stream, &body));
    CHECK(body != NULL && body == current() && is_capturing(body));
    return body;
}

static void leave(tcuda_graph *graph)
{
    CHECK_OK(tcuda_graph_conditional_end(graph));
}

static void an_if_runs_by_the_byte(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE), *const before = current();
    tcuda_graph *const graph = create_graph(0);
    const tape inside = create_tape(stream), after = create_tape(stream);
    unsigned char *const predicate = allocate(1, TCUDA_CURRENT_DEVICE, stream);
    begin(graph, stream);
    tcuda_stream *const body = enter(graph, TCUDA_CONDITION_IF, predicate, stream);
    advance(inside, body);
    leave(graph);
    CHECK(current() == before && is_capturing(stream) && !is_capturing(body));
    /* Comes after the body. */
    CHECK_OK(tcuda_copy(after.bytes, inside.bytes, TAPE, stream));
    end(graph);

    const unsigned char values[] = {1, 0, 2, 255, 0, 128};
    unsigned runs = 0;
    count_from_zero(inside, stream);
    for (size_t index = 0; index < sizeof values; index++) {
        CHECK_OK(tcuda_copy(predicate, &values[index], 1, stream));
        replay(graph, stream);
        runs += values[index] != 0;
        CHECK_EQ(first_of(inside.bytes, stream), runs);
        CHECK_EQ(first_of(after.bytes, stream), runs);
    }
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(predicate));
    destroy_tape(inside);
    destroy_tape(after);
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* The captured work before the node writes the byte that the node reads. */
static void the_byte_is_read_when_the_node_is_reached(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_graph *const graph = create_graph(0);
    const tape answers = create_tape(stream), runs = create_tape(stream);
    begin(graph, stream);
    advance(answers, stream);
    tcuda_stream *const body = enter(graph, TCUDA_CONDITION_IF, answers.bytes, stream);
    advance(runs, body);
    leave(graph);
    end(graph);
    const unsigned char values[] = {0, 1, 0, 1, 1};
    const unsigned expected[] = {1, 1, 2, 3};
    write_tape(answers, values, sizeof values, stream);
    count_from_zero(runs, stream);
    for (size_t index = 0; index < 4; index++) {
        replay(graph, stream);
        CHECK_EQ(first_of(runs.bytes, stream), expected[index]);
    }
    CHECK_OK(tcuda_graph_destroy(graph));
    destroy_tape(answers);
    destroy_tape(runs);
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void a_loop_runs_until_the_byte_is_zero(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_graph *const graph = create_graph(0);
    const tape answers = create_tape(stream), runs = create_tape(stream);
    /* On the current stream, as PyTorch does it. */
    tcuda_stream *const previous = current();
    CHECK_OK(tcuda_stream_set_current(stream));
    tcuda_stream *const own = current();
    begin(graph, NULL);
    tcuda_stream *const body = enter(graph, TCUDA_CONDITION_WHILE, answers.bytes, NULL);
    advance(runs, NULL);
    advance(answers, NULL);
    CHECK_OK(tcuda_graph_conditional_set(graph, answers.bytes, NULL));
    CHECK(current() == body);
    leave(graph);
    CHECK(current() == own);
    end(graph);
    CHECK_OK(tcuda_stream_set_current(previous));

    for (unsigned count = 0; count < 5; count++) {
        unsigned char values[TAPE] = {0};
        memset(values, 1, count);
        write_tape(answers, values, sizeof values, stream);
        count_from_zero(runs, stream);
        replay(graph, stream);
        CHECK_EQ(first_of(runs.bytes, stream), count);
    }
    CHECK_OK(tcuda_graph_destroy(graph));
    destroy_tape(answers);
    destroy_tape(runs);
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* A loop with work, a loop, an if and work again: each in its order, each run of the outer one. */
static void bodies_have_conditional_nodes(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE), *const before = current();
    tcuda_graph *const graph = create_graph(0);
    const tape outer = create_tape(stream), inner = create_tape(stream);
    const tape outer_runs = create_tape(stream), inner_runs = create_tape(stream);
    const tape chosen = create_tape(stream), last = create_tape(stream);
    const tape between = create_tape(stream);
    unsigned char *const two = allocate(TAPE, TCUDA_CURRENT_DEVICE, stream);
    const unsigned char twice[TAPE] = {1, 1};
    CHECK_OK(tcuda_copy(two, twice, TAPE, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));

    begin(graph, stream);
    tcuda_stream *const first = enter(graph, TCUDA_CONDITION_WHILE, outer.bytes, stream);
    CHECK_OK(tcuda_copy(inner.bytes, two, TAPE, first));
    tcuda_stream *const second = enter(graph, TCUDA_CONDITION_WHILE, inner.bytes, NULL);
    CHECK(second != first && first != stream);
    advance(inner_runs, second);
    advance(inner, second);
    tcuda_stream *const third = enter(graph, TCUDA_CONDITION_IF, inner.bytes, second);
    CHECK(third != second && third != first);
    advance(chosen, third);
    leave(graph);
    CHECK(current() == second);
    CHECK_OK(tcuda_graph_conditional_set(graph, inner.bytes, second));
    leave(graph);
    CHECK(current() == first);
    CHECK_OK(tcuda_copy(between.bytes, inner_runs.bytes, TAPE, first));
    advance(outer_runs, first);
    advance(outer, first);
    CHECK_OK(tcuda_graph_conditional_set(graph, outer.bytes, first));
    leave(graph);
    CHECK(current() == before);
    CHECK_OK(tcuda_copy(last.bytes, inner_runs.bytes, TAPE, stream));
    end(graph);

    for (unsigned count = 0; count < 3; count++) {
        unsigned char values[TAPE] = {0};
        memset(values, 1, count);
        write_tape(outer, values, sizeof values, stream);
        count_from_zero(outer_runs, stream);
        count_from_zero(inner_runs, stream);
        count_from_zero(chosen, stream);
        count_from_zero(between, stream);
        replay(graph, stream);
        CHECK_EQ(first_of(outer_runs.bytes, stream), count);
        CHECK_EQ(first_of(inner_runs.bytes, stream), 2 * count);
        CHECK_EQ(first_of(chosen.bytes, stream), count);
        CHECK_EQ(first_of(between.bytes, stream), 2 * count);
        CHECK_EQ(first_of(last.bytes, stream), 2 * count);
    }
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(two));
    const tape all[] = {outer, inner, outer_runs, inner_runs, chosen, between, last};
    for (size_t index = 0; index < sizeof all / sizeof *all; index++)
        destroy_tape(all[index]);
    CHECK_OK(tcuda_stream_destroy(stream));
}

static uint64_t allocated(void)
{
    uint64_t bytes = 0;
    CHECK_OK(tcuda_memory_allocated(TCUDA_CURRENT_DEVICE, &bytes));
    return bytes;
}

/* What a body allocates is the graph's, and serves the work after the node. */
static void bodies_allocate_from_the_pool(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_graph *const graph = create_graph(0);
    unsigned char *const predicate = allocate(1, TCUDA_CURRENT_DEVICE, stream);
    unsigned char *const result = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    void *made = NULL, *other = NULL;
    const uint64_t before = allocated();
    begin(graph, stream);
    tcuda_stream *const body = enter(graph, TCUDA_CONDITION_IF, predicate, stream);
    CHECK_OK(tcuda_malloc(PAGE, TCUDA_CURRENT_DEVICE, NULL, &made));
    CHECK_OK(tcuda_malloc(PAGE, TCUDA_CURRENT_DEVICE, body, &other));
    CHECK_EQ(allocated(), before + 2 * PAGE);
    fill_bytes(other, 7, PAGE, body);
    CHECK_OK(tcuda_copy(made, other, PAGE, body));
    CHECK_OK(tcuda_free(other));
    leave(graph);
    CHECK_OK(tcuda_record_stream(made, stream));
    CHECK_OK(tcuda_copy(result, made, PAGE, stream));
    CHECK_OK(tcuda_free(made));
    end(graph);
    CHECK_EQ(allocated(), before);
    /* Nothing else gets the graph's memory. */
    unsigned char *const foreign = allocate(PAGE, TCUDA_CURRENT_DEVICE, body);
    CHECK(foreign != made && foreign != other);
    const unsigned char yes = 1;
    CHECK_OK(tcuda_copy(predicate, &yes, 1, stream));
    fill_bytes(result, 0, PAGE, stream);
    replay(graph, stream);
    CHECK_EQ(first_of(result, stream), 7);
    CHECK_EQ(first_of(result + PAGE - 1, stream), 7);
    CHECK_OK(tcuda_free(foreign));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(predicate));
    CHECK_OK(tcuda_free(result));
    CHECK_EQ(allocated(), before - 512 - PAGE);
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* Two branches of a graph have bodies on streams of their own; nodes one after the other share. */
static void branches_have_streams_of_their_own(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_stream *const branch = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_graph *const graph = create_graph(0);
    const tape left = create_tape(stream), right = create_tape(stream);
    unsigned char *const predicate = allocate(2, TCUDA_CURRENT_DEVICE, stream);
    count_from_zero(left, stream);
    count_from_zero(right, stream);
    begin(graph, stream);
    CHECK_OK(tcuda_stream_wait_stream(branch, stream));
    tcuda_stream *const first = enter(graph, TCUDA_CONDITION_IF, predicate, stream);
    advance(left, first);
    leave(graph);
    tcuda_stream *const second = enter(graph, TCUDA_CONDITION_IF, predicate + 1, branch);
    CHECK(second != first);
    advance(right, second);
    leave(graph);
    tcuda_stream *const third = enter(graph, TCUDA_CONDITION_IF, predicate, stream);
    CHECK(third == first);
    advance(left, third);
    leave(graph);
    CHECK_OK(tcuda_stream_wait_stream(stream, branch));
    end(graph);
    const unsigned char both[] = {1, 0, 1};
    for (int turn = 0; turn < 2; turn++) {
        CHECK_OK(tcuda_copy(predicate, both + turn, 2, stream));
        replay(graph, stream);
        CHECK_EQ(first_of(left.bytes, stream), 2);
        CHECK_EQ(first_of(right.bytes, stream), (unsigned)turn);
    }
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(predicate));
    destroy_tape(left);
    destroy_tape(right);
    CHECK_OK(tcuda_stream_destroy(branch));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* A stream that waits for the body's is part of the body, if the body waits for it again. */
static void streams_join_a_body(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_stream *const helper = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_graph *const graph = create_graph(0);
    const tape answers = create_tape(stream), runs = create_tape(stream);
    begin(graph, stream);
    tcuda_stream *const body = enter(graph, TCUDA_CONDITION_WHILE, answers.bytes, stream);
    CHECK_OK(tcuda_stream_wait_stream(helper, body));
    advance(runs, helper);
    advance(answers, body);
    CHECK_OK(tcuda_stream_wait_stream(helper, body));
    CHECK_OK(tcuda_graph_conditional_set(graph, answers.bytes, helper));
    CHECK_OK(tcuda_stream_wait_stream(body, helper));
    leave(graph);
    end(graph);
    const unsigned char values[] = {1, 1, 0};
    write_tape(answers, values, sizeof values, stream);
    count_from_zero(runs, stream);
    replay(graph, stream);
    CHECK_EQ(first_of(runs.bytes, stream), 2);
    CHECK_OK(tcuda_graph_reset(graph));

    /* Without that the body is no graph. */
    begin(graph, stream);
    tcuda_stream *const again = enter(graph, TCUDA_CONDITION_WHILE, answers.bytes, stream);
    CHECK_OK(tcuda_stream_wait_stream(helper, again));
    advance(runs, helper);
    CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_graph_conditional_end(graph));
    CHECK_STATUS(TCUDA_STATUS_CAPTURE_INVALIDATED,
        tcuda_graph_conditional_begin(graph, TCUDA_CONDITION_IF, answers.bytes, stream, NULL));
    CHECK_STATUS(TCUDA_STATUS_CAPTURE_INVALIDATED, tcuda_graph_capture_end(graph));
    CHECK(!is_capturing(stream) && !is_capturing(again) && !is_capturing(helper));
    CHECK_OK(tcuda_graph_destroy(graph));
    destroy_tape(answers);
    destroy_tape(runs);
    CHECK_OK(tcuda_stream_destroy(helper));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* A body whose capture is invalidated spoils the graph, and nothing else; the driver would crash
 * where it destroys a graph with such a body. */
static void an_invalidated_body_spoils_the_capture(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE), *const before = current();
    const tape runs = create_tape(stream);
    tcuda_graph *const graph = create_graph(0);
    for (int turn = 0; turn < 6; turn++) {
        begin(graph, stream);
        tcuda_stream *body = enter(graph, TCUDA_CONDITION_WHILE, runs.bytes, stream);
        if (turn % 2 == 1)
            body = enter(graph, TCUDA_CONDITION_IF, runs.bytes, body);
        advance(runs, body);
        CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_stream_synchronize(body));
        if (turn >= 2)
            CHECK_STATUS(TCUDA_STATUS_CAPTURING, tcuda_stream_synchronize(stream));
        if (turn >= 4) {
            CHECK_OK(tcuda_graph_capture_abort(graph));
        } else {
            CHECK_STATUS(TCUDA_STATUS_CAPTURE_INVALIDATED, tcuda_graph_conditional_end(graph));
            if (turn % 2 == 1)
                CHECK_STATUS(TCUDA_STATUS_CAPTURE_INVALIDATED,
                    tcuda_graph_conditional_end(graph));
            if (turn % 2 == 1)
                CHECK_OK(tcuda_graph_capture_abort(graph));
            else
                CHECK_STATUS(TCUDA_STATUS_CAPTURE_INVALIDATED, tcuda_graph_capture_end(graph));
        }
        CHECK(current() == before && !is_capturing(stream) && !is_capturing(body));
        CHECK_OK(tcuda_device_synchronize(TCUDA_CURRENT_DEVICE));
    }
    /* The same streams and the same graph serve again. */
    begin(graph, stream);
    tcuda_stream *const body = enter(graph, TCUDA_CONDITION_IF, runs.bytes, stream);
    advance(runs, body);
    leave(graph);
    end(graph);
    const unsigned char values[] = {1, 2};
    write_tape(runs, values, sizeof values, stream);
    replay(graph, stream);
    CHECK_EQ(first_of(runs.bytes, stream), 2);
    CHECK_OK(tcuda_graph_destroy(graph));
    destroy_tape(runs);
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void a_host_function(void *user_data)
{
    ++*(int *)user_data;
}

static void bodies_have_work_of_devices_alone(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    const tape runs = create_tape(stream);
    tcuda_graph *const graph = create_graph(0);
    int calls = 0;
    begin(graph, stream);
    tcuda_stream *body = enter(graph, TCUDA_CONDITION_IF, runs.bytes, stream);
    CHECK_OK(tcuda_stream_add_callback(body, a_host_function, &calls, NULL));
    CHECK_STATUS(TCUDA_STATUS_NOT_SUPPORTED, tcuda_graph_conditional_end(graph));
    CHECK(strstr(tcuda_last_error(), "host function") != NULL);
    CHECK_STATUS(TCUDA_STATUS_CAPTURE_INVALIDATED, tcuda_graph_capture_end(graph));
    CHECK_EQ(calls, 0);

    begin(graph, stream);
    body = enter(graph, TCUDA_CONDITION_IF, runs.bytes, stream);
    int64_t shape[] = {16}, stride[] = {1};
    const tcuda_tensor numbers = { .data = runs.bytes, .device = { TCUDA_DEVICE_CUDA, 0 },
        .ndim = 1, .dtype = { TCUDA_DTYPE_FLOAT, 32, 1 }, .shape = shape, .strides = stride };
    CHECK_STATUS(TCUDA_STATUS_NOT_SUPPORTED, tcuda_random_uniform(&numbers, 0, 1, NULL, body));
    CHECK(strstr(tcuda_last_error(), "random numbers") != NULL);
    leave(graph);
    end(graph);
    CHECK_OK(tcuda_graph_destroy(graph));
    destroy_tape(runs);
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void *ends_a_body(void *graph)
{
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_conditional_end(graph));
    return NULL;
}

static void wrong_calls_change_nothing(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE), *const before = current();
    tcuda_stream *const other = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_graph *const graph = create_graph(0);
    const tape runs = create_tape(stream);
    tcuda_stream *body = stream;
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE,
        tcuda_graph_conditional_begin(NULL, TCUDA_CONDITION_IF, runs.bytes, stream, &body));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_graph_conditional_end(NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_graph_conditional_set(NULL, runs.bytes, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE,
        tcuda_graph_conditional_begin(graph, TCUDA_CONDITION_IF, runs.bytes, stream, &body));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_conditional_end(graph));
    begin(graph, stream);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_graph_conditional_begin(graph, 2, runs.bytes, stream, &body));
    CHECK(strstr(tcuda_last_error(), "2") != NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_graph_conditional_begin(graph, -1, runs.bytes, stream, &body));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
        tcuda_graph_conditional_begin(graph, TCUDA_CONDITION_IF, NULL, stream, &body));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE,
        tcuda_graph_conditional_begin(graph, TCUDA_CONDITION_IF, runs.bytes, other, &body));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE,
        tcuda_graph_conditional_set(graph, runs.bytes, stream));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_conditional_end(graph));
    CHECK(body == stream && current() == before);

    body = enter(graph, TCUDA_CONDITION_IF, runs.bytes, stream);
    tcuda_graph *found = NULL;
    CHECK_OK(tcuda_graph_capturing(body, &found));
    CHECK(found == graph);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE,
        tcuda_graph_conditional_begin(graph, TCUDA_CONDITION_IF, runs.bytes, stream, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE,
        tcuda_graph_conditional_set(graph, runs.bytes, stream));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_graph_conditional_set(graph, NULL, body));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_capture_end(graph));
    run_on_thread(ends_a_body, graph);
    /* Annotations of nodes are the graph's, which the body's are not. */
    CHECK_OK(tcuda_graph_annotation_push(body, "body"));
    advance(runs, body);
    CHECK_OK(tcuda_graph_annotation_pop(body));
    leave(graph);
    end(graph);
    const unsigned char values[] = {1, 5};
    write_tape(runs, values, sizeof values, stream);
    replay(graph, stream);
    CHECK_EQ(first_of(runs.bytes, stream), 5);
    CHECK_OK(tcuda_graph_destroy(graph));
    destroy_tape(runs);
    CHECK_OK(tcuda_stream_destroy(other));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* Kept templates: instantiated again, described, and updated by another of the same shape. */
static void templates_are_kept(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_graph *const graph = create_graph(1), *const other = create_graph(1);
    const tape runs = create_tape(stream), others = create_tape(stream);
    unsigned char *const predicate = allocate(1, TCUDA_CURRENT_DEVICE, stream);
    const tape *const tapes[] = {&runs, &others};
    tcuda_graph *const graphs[] = {graph, other};
    for (int index = 0; index < 2; index++) {
        begin(graphs[index], stream);
        tcuda_stream *const body = enter(graphs[index], TCUDA_CONDITION_IF, predicate, stream);
        advance(*tapes[index], body);
        leave(graphs[index]);
        end(graphs[index]);
        count_from_zero(*tapes[index], stream);
    }
    char json[1 << 14];
    CHECK_OK(tcuda_graph_data_json(graph, json, sizeof json, NULL));
    CHECK(strstr(json, "\"node_type\": \"conditional\"") != NULL);
    CHECK(strstr(json, "tcuda_set_condition") != NULL);
    fill_bytes(predicate, 1, 1, stream);
    CHECK_OK(tcuda_graph_instantiate(graph));
    replay(graph, stream);
    CHECK_OK(tcuda_graph_instantiate(graph));
    replay(graph, stream);
    CHECK_EQ(first_of(runs.bytes, stream), 2);
    CHECK_OK(tcuda_graph_update(graph, other));
    replay(graph, stream);
    CHECK_EQ(first_of(runs.bytes, stream), 2);
    CHECK_EQ(first_of(others.bytes, stream), 1);
    CHECK_OK(tcuda_graph_destroy(other));
    replay(graph, stream);
    CHECK_EQ(first_of(others.bytes, stream), 2);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(predicate));
    destroy_tape(runs);
    destroy_tape(others);
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* More nodes, and more graphs, than there are streams for bodies; what they leave is nothing. */
static void many_nodes_come_and_go(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    const tape runs = create_tape(stream);
    for (int turn = 0; turn < 40; turn++) {
        tcuda_graph *const graph = create_graph(0);
        begin(graph, stream);
        for (int node = 0; node < 40; node++) {
            tcuda_stream *const body = enter(graph, TCUDA_CONDITION_IF, runs.bytes, stream);
            fill_bytes(runs.scratch, (unsigned char)node, 1, body);
            leave(graph);
        }
        if (turn % 3 == 0) {
            enter(graph, TCUDA_CONDITION_IF, runs.bytes, stream);
            CHECK_OK(turn % 2 == 0 ? tcuda_graph_reset(graph) : TCUDA_STATUS_OK);
        } else {
            end(graph);
        }
        CHECK_OK(tcuda_graph_destroy(graph));
    }
    destroy_tape(runs);
    CHECK_OK(tcuda_stream_destroy(stream));
}

int main(void)
{
    const tape probe = create_tape(NULL);
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_graph *const graph = create_graph(0);
    begin(graph, stream);
    if (tcuda_graph_conditional_begin(graph, TCUDA_CONDITION_IF, probe.bytes, stream, NULL)
        == TCUDA_STATUS_NOT_SUPPORTED) {
        printf("skipped: %s\n", tcuda_last_error());
        return CHECK_SKIPPED;
    }
    CHECK_OK(tcuda_graph_destroy(graph));
    destroy_tape(probe);
    CHECK_OK(tcuda_stream_destroy(stream));

    an_if_runs_by_the_byte();
    the_byte_is_read_when_the_node_is_reached();
    a_loop_runs_until_the_byte_is_zero();
    bodies_have_conditional_nodes();
    bodies_allocate_from_the_pool();
    branches_have_streams_of_their_own();
    streams_join_a_body();
    an_invalidated_body_spoils_the_capture();
    bodies_have_work_of_devices_alone();
    wrong_calls_change_nothing();
    templates_are_kept();
    many_nodes_come_and_go();
    return finish();
}
