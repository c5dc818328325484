/* Nodes of graphs that wait for values in memory and write values. */
#define _POSIX_C_SOURCE 200809L

#include "driver_graph.h"
#include "driver_value.h"

#include <time.h>
#include <unistd.h>

enum { BATCH = 12, MOST = 255, BYTES = 4096, UPDATE_FAILURE = 910 };

/* CUDA_BATCH_MEM_OP_NODE_PARAMS */
struct batch {
    void *context;
    unsigned int count;
    struct operation *operations;
    unsigned int flags;
};

static volatile uint32_t *words;
static char pageable[4];

static struct {
    int (*add)(node_handle *node, graph_handle graph, const void *after, size_t count,
        const struct batch *batch);
    int (*get)(node_handle node, struct batch *batch);
    int (*set)(node_handle node, const struct batch *batch);
    int (*set_exec)(exec_handle exec, node_handle node, const struct batch *batch);
    int (*query)(void *stream);
} values;

static void find_the_rest(void)
{
    FIND(values.add, "cuGraphAddBatchMemOpNode");
    FIND(values.get, "cuGraphBatchMemOpNodeGetParams");
    FIND(values.set, "cuGraphBatchMemOpNodeSetParams");
    FIND(values.set_exec, "cuGraphExecBatchMemOpNodeSetParams");
    FIND(values.query, "cuStreamQuery");
}

static void stays_busy(void)
{
    const struct timespec time = { 0, 1000000 };
    for (int i = 0; i < 6; i++) {
        CHECK_EQ(values.query(stream), NOT_READY);
        nanosleep(&time, NULL);
    }
}

static void nodes_keep_their_operations(void)
{
    CALL(cuGraphNodeGetType, (node_handle node, int *type));
    CALL(cuGraphClone, (graph_handle *clone, graph_handle graph));
    struct operation operations[2];
    struct batch batch = { context, 2, operations, 0 }, seen;
    graph_handle graph = NULL, clone = NULL;
    node_handle node = NULL;
    int type = -1;
    words[0] = words[1] = 0;
    operations[0] = operation(WRITE_32, of(words), 41, 0);
    operations[1] = operation(WRITE_64, of(words + 2), 42, 0);
    CHECK_EQ(driver.create(&graph, 0), SUCCESS);
    CHECK_EQ(values.add(&node, graph, NULL, 0, &batch), SUCCESS);
    CHECK_EQ(cuGraphNodeGetType(node, &type), SUCCESS);
    CHECK_EQ(type, BATCH);
    CHECK_EQ(cuGraphClone(&clone, graph), SUCCESS);
    /* They were copied. */
    operations[0].value = 43;
    memset(&seen, 0, sizeof seen);
    CHECK_EQ(values.get(node, &seen), SUCCESS);
    CHECK(seen.context == context && seen.count == 2 && seen.flags == 0);
    CHECK(seen.operations != operations);
    CHECK_EQ(seen.operations[0].type, WRITE_32);
    CHECK_EQ(seen.operations[0].value, 41);
    CHECK_EQ(seen.operations[1].place, of(words + 2));
    run(graph);
    CHECK_EQ(words[0], 41);
    CHECK_EQ(words[2], 42);
    /* Another number of them. */
    batch.count = 1;
    CHECK_EQ(values.set(node, &batch), SUCCESS);
    CHECK_EQ(values.get(node, &seen), SUCCESS);
    CHECK_EQ(seen.count, 1);
    run(graph);
    CHECK_EQ(words[0], 43);
    run(clone);
    CHECK_EQ(words[0], 41);
    CHECK_EQ(driver.destroy(graph), SUCCESS);
    CHECK_EQ(driver.destroy(clone), SUCCESS);
}

static void statuses(void)
{
    static struct operation many[MOST + 1];
    CALL(cuGraphNodeSetEnabled, (exec_handle exec, node_handle node, unsigned int is_enabled));
    struct operation one = operation(WRITE_32, of(words), 1, 0);
    struct batch batch = { context, 1, &one, 0 }, seen = { NULL, 9, NULL, 0 };
    graph_handle graph = NULL;
    node_handle node = NULL, other = NULL, empty = NULL;
    exec_handle exec = NULL;
    CHECK_EQ(driver.create(&graph, 0), SUCCESS);
    CHECK_EQ(driver.add_empty(&empty, graph, NULL, 0), SUCCESS);
    CHECK_EQ(values.add(&node, graph, NULL, 0, &batch), SUCCESS);
    CHECK_EQ(values.add(&other, graph, NULL, 0, NULL), INVALID_VALUE);
    const struct batch bad[]
        = { { NULL, 1, &one, 0 }, { context, 1, &one, 1 }, { context, MOST + 1, many, 0 } };
    for (int i = 0; i <= MOST; i++)
        many[i] = one;
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(values.add(&other, graph, NULL, 0, &bad[i]), INVALID_VALUE);
        CHECK_EQ(values.set(node, &bad[i]), INVALID_VALUE);
    }
    CHECK_EQ(values.set(empty, &batch), INVALID_VALUE);
    CHECK_EQ(values.set(node, NULL), INVALID_VALUE);
    CHECK_EQ(values.get(empty, &seen), INVALID_VALUE);
    CHECK_EQ(values.get(node, NULL), INVALID_VALUE);
    CHECK_EQ(seen.count, 9);
    const struct operation wrong[] = { operation(WRITE_32, of(words) + 2, 1, 0),
        operation(WRITE_64, of(words) + 4, 1, 0), operation(WRITE_32, of(words), 1, 1),
        operation(WAIT_32, of(words), 1, 4), operation(7, 0, 0, 0) };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        one = wrong[i];
        CHECK_EQ(values.add(&other, graph, NULL, 0, &batch), INVALID_VALUE);
    }
    CHECK(other == NULL);
    /* Addresses are not looked up before a launch. */
    one = operation(WRITE_32, 0, 1, 0);
    CHECK_EQ(values.set(node, &batch), SUCCESS);
    one = operation(WRITE_32, (address)(uintptr_t)pageable & ~(address)3, 1, 0);
    CHECK_EQ(values.set(node, &batch), SUCCESS);
    batch.count = 0;
    CHECK_EQ(values.set(node, &batch), SUCCESS);
    run(graph);
    CHECK_EQ(driver.instantiate(&exec, graph, 0), SUCCESS);
    CHECK_EQ(cuGraphNodeSetEnabled(exec, node, 0), INVALID_VALUE);
    CHECK_EQ(driver.destroy_exec(exec), SUCCESS);
    CHECK_EQ(driver.destroy(graph), SUCCESS);
}

static void executable_graphs_change(void)
{
    CALL(cuGraphExecUpdate_v2, (exec_handle exec, graph_handle graph, void *info));
    struct {
        int result;
        void *node, *from;
    } info = { 0, NULL, NULL };
    struct operation operations[2];
    struct batch batch = { context, 2, operations, 0 };
    graph_handle graph = NULL;
    node_handle node = NULL, empty = NULL;
    exec_handle exec = NULL;
    words[0] = words[1] = words[3] = 0;
    operations[0] = operation(WAIT_32, of(words), 1, EQUAL);
    operations[1] = operation(WRITE_32, of(words + 1), 2, 0);
    CHECK_EQ(driver.create(&graph, 0), SUCCESS);
    CHECK_EQ(values.add(&node, graph, NULL, 0, &batch), SUCCESS);
    CHECK_EQ(driver.add_empty(&empty, graph, NULL, 0), SUCCESS);
    CHECK_EQ(driver.instantiate(&exec, graph, 0), SUCCESS);
    CHECK_EQ(driver.launch(exec, stream), SUCCESS);
    stays_busy();
    CHECK_EQ(words[1], 0);
    words[0] = 1;
    CHECK_EQ(driver.synchronize(stream), SUCCESS);
    CHECK_EQ(words[1], 2);
    /* Address, value and condition can change, but nothing else. */
    operations[0] = operation(WAIT_32, of(words + 1), 1, AT_LEAST);
    operations[1] = operation(WRITE_32, of(words + 3), 4, 0);
    CHECK_EQ(values.set_exec(exec, node, &batch), SUCCESS);
    batch.count = 1;
    CHECK_EQ(values.set_exec(exec, node, &batch), INVALID_VALUE);
    batch.count = 2;
    batch.context = NULL;
    CHECK_EQ(values.set_exec(exec, node, &batch), INVALID_VALUE);
    batch.context = context;
    operations[1].type = WAIT_32;
    CHECK_EQ(values.set_exec(exec, node, &batch), INVALID_VALUE);
    operations[1] = operation(WRITE_32, of(words) + 1, 4, 0);
    CHECK_EQ(values.set_exec(exec, node, &batch), INVALID_VALUE);
    operations[1] = operation(WRITE_32, of(words), 4, 0);
    CHECK_EQ(values.set_exec(exec, empty, &batch), INVALID_VALUE);
    CHECK_EQ(values.set_exec(exec, node, NULL), INVALID_VALUE);
    CHECK_EQ(driver.launch(exec, stream), SUCCESS);
    CHECK_EQ(driver.synchronize(stream), SUCCESS);
    CHECK_EQ(words[3], 4);
    /* An update by a graph has the same rules. */
    operations[1] = operation(WRITE_32, of(words + 3), 5, 0);
    CHECK_EQ(values.set(node, &batch), SUCCESS);
    CHECK_EQ(cuGraphExecUpdate_v2(exec, graph, &info), SUCCESS);
    CHECK_EQ(driver.launch(exec, stream), SUCCESS);
    CHECK_EQ(driver.synchronize(stream), SUCCESS);
    CHECK_EQ(words[3], 5);
    batch.count = 1;
    CHECK_EQ(values.set(node, &batch), SUCCESS);
    CHECK_EQ(cuGraphExecUpdate_v2(exec, graph, &info), UPDATE_FAILURE);
    CHECK(info.node == node && info.from == NULL);
    CHECK_EQ(driver.destroy_exec(exec), SUCCESS);
    CHECK_EQ(driver.destroy(graph), SUCCESS);
}

static void parameters_of_any_kind(void)
{
    CALL(cuGraphNodeSetParams, (node_handle node, struct node_parameters *parameters));
    CALL(cuGraphExecNodeSetParams,
        (exec_handle exec, node_handle node, struct node_parameters *parameters));
    struct operation operations[2];
    struct batch batch = { context, 1, operations, 0 };
    struct node_parameters parameters;
    graph_handle graph = NULL;
    node_handle node = NULL;
    exec_handle exec = NULL;
    memset(&parameters, 0, sizeof parameters);
    parameters.type = BATCH;
    memcpy(&parameters.of, &batch, sizeof batch);
    operations[0] = operation(WRITE_32, of(words), 51, 0);
    operations[1] = operation(WRITE_32, of(words + 1), 52, 0);
    CHECK_EQ(driver.create(&graph, 0), SUCCESS);
    CHECK_EQ(driver.add(&node, graph, NULL, 0, &parameters), SUCCESS);
    run(graph);
    CHECK_EQ(words[0], 51);
    batch.count = 2;
    memcpy(&parameters.of, &batch, sizeof batch);
    CHECK_EQ(cuGraphNodeSetParams(node, &parameters), SUCCESS);
    CHECK_EQ(driver.instantiate(&exec, graph, 0), SUCCESS);
    operations[0].value = 53;
    CHECK_EQ(cuGraphExecNodeSetParams(exec, node, &parameters), SUCCESS);
    CHECK_EQ(driver.launch(exec, stream), SUCCESS);
    CHECK_EQ(driver.synchronize(stream), SUCCESS);
    CHECK_EQ(words[0], 53);
    CHECK_EQ(words[1], 52);
    batch.count = 1;
    memcpy(&parameters.of, &batch, sizeof batch);
    CHECK_EQ(cuGraphExecNodeSetParams(exec, node, &parameters), INVALID_VALUE);
    batch.context = NULL;
    memcpy(&parameters.of, &batch, sizeof batch);
    CHECK_EQ(driver.add(&node, graph, NULL, 0, &parameters), INVALID_VALUE);
    CHECK_EQ(driver.destroy_exec(exec), SUCCESS);
    CHECK_EQ(driver.destroy(graph), SUCCESS);
}

static void captures(void)
{
    CALL(cuStreamBeginCapture_v2, (void *stream, int mode));
    CALL(cuStreamEndCapture, (void *stream, graph_handle *graph));
    CALL(cuStreamWaitValue32_v2, (void *stream, address place, uint32_t value, unsigned flags));
    CALL(cuStreamWriteValue64_v2, (void *stream, address place, uint64_t value, unsigned flags));
    CALL(cuStreamBatchMemOp_v2,
        (void *stream, unsigned int count, struct operation *operations, unsigned int flags));
    CALL(cuGraphGetNodes, (graph_handle graph, node_handle *nodes, size_t *count));
    CALL(cuGraphGetEdges, (graph_handle graph, node_handle *from, node_handle *to, size_t *count));
    struct operation operations[2] = { operation(WRITE_32, of(words + 1), 62, 0),
        operation(BARRIER, 0, 0, 0) };
    struct batch seen;
    graph_handle graph = NULL;
    node_handle nodes[5] = { NULL };
    size_t count = 5, edges = 0;
    words[0] = words[1] = words[2] = 0;
    CHECK_EQ(cuStreamBeginCapture_v2(stream, 0), SUCCESS);
    CHECK_EQ(cuStreamWaitValue32_v2(stream, of(words), 1, EQUAL), SUCCESS);
    CHECK_EQ(cuStreamWriteValue64_v2(stream, of(words + 2), 61, 0), SUCCESS);
    CHECK_EQ(cuStreamBatchMemOp_v2(stream, 0, NULL, 0), SUCCESS);
    CHECK_EQ(cuStreamBatchMemOp_v2(stream, 2, operations, 0), SUCCESS);
    /* A refused operation does not end the capture. */
    CHECK_EQ(cuStreamWaitValue32_v2(stream, of(words) + 2, 1, EQUAL), INVALID_VALUE);
    CHECK_EQ(cuStreamWaitValue32_v2(stream, of(words), 1, 9), INVALID_VALUE);
    CHECK_EQ(cuStreamEndCapture(stream, &graph), SUCCESS);
    CHECK_EQ(cuGraphGetNodes(graph, nodes, &count), SUCCESS);
    CHECK_EQ(count, 4);
    CHECK_EQ(cuGraphGetEdges(graph, NULL, NULL, &edges), SUCCESS);
    CHECK_EQ(edges, 3);
    size_t operations_seen = 0;
    for (size_t i = 0; i < count; i++) {
        CHECK_EQ(values.get(nodes[i], &seen), SUCCESS);
        CHECK(seen.context == context);
        operations_seen += seen.count;
    }
    CHECK_EQ(operations_seen, 4);
    exec_handle exec = NULL;
    CHECK_EQ(driver.instantiate(&exec, graph, 0), SUCCESS);
    CHECK_EQ(driver.launch(exec, stream), SUCCESS);
    stays_busy();
    CHECK_EQ(words[1], 0);
    words[0] = 1;
    CHECK_EQ(driver.synchronize(stream), SUCCESS);
    CHECK_EQ(words[1], 62);
    CHECK_EQ(words[2], 61);
    CHECK_EQ(driver.destroy_exec(exec), SUCCESS);
    CHECK_EQ(driver.destroy(graph), SUCCESS);
}

int main(void)
{
    int (*cuMemHostAlloc)(void **pointer, size_t bytes, unsigned int flags);
    int (*cuMemFreeHost)(void *pointer);
    void *pinned = NULL;
    alarm(20);
    begin();
    find_the_rest();
    FIND(cuMemHostAlloc, "cuMemHostAlloc");
    FIND(cuMemFreeHost, "cuMemFreeHost");
    CHECK_EQ(cuMemHostAlloc(&pinned, BYTES, 0), SUCCESS);
    words = pinned;
    nodes_keep_their_operations();
    statuses();
    executable_graphs_change();
    parameters_of_any_kind();
    captures();
    CHECK_EQ(cuMemFreeHost(pinned), SUCCESS);
    end();
    return EXIT_SUCCESS;
}
