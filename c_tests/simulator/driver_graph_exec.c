/* Executable graphs: instantiation, changes of single nodes and of all, and user objects. */
#include "driver_graph.h"

#include <time.h>

/* Flags of cuGraphInstantiate. */
enum { FREE_AT_LAUNCH = 1, UPLOAD = 2, USE_NODE_PRIORITY = 8 };

/* CUgraphInstantiateResult */
enum { INSTANTIATED = 0, INVALID_STRUCTURE = 2 };

/* CUgraphExecUpdateResult, and the status of a failed update. */
enum { UPDATED = 0, TOPOLOGY_CHANGED = 2, TYPE_CHANGED = 3, UPDATE_FAILURE = 910 };

static address memory;

static void launch(exec_handle exec)
{
    CHECK_EQ(driver.launch(exec, stream), SUCCESS);
    CHECK_EQ(driver.synchronize(stream), SUCCESS);
}

static void instantiation_has_parameters(void)
{
    CALL(cuGraphInstantiateWithParams, (exec_handle *exec, graph_handle graph, void *parameters));
    CALL(cuGraphExecGetFlags, (exec_handle exec, uint64_t *flags));
    CALL(cuGraphUpload, (exec_handle exec, void *stream));
    CALL(cuGraphAddDependencies,
        (graph_handle graph, const node_handle *from, const node_handle *to, size_t count));
    /* CUDA_GRAPH_INSTANTIATE_PARAMS */
    struct {
        uint64_t flags;
        void *stream;
        node_handle node;
        int result;
    } parameters = { UPLOAD, stream, &memory, -1 };
    struct values values;
    const struct kernel kernel = put_kernel(&values, memory, 0, 31);
    graph_handle graph = NULL;
    node_handle nodes[2];
    exec_handle exec = NULL;
    uint64_t flags = 77;
    CHECK_EQ(driver.create(&graph, 0), SUCCESS);
    CHECK_EQ(driver.add_kernel(&nodes[0], graph, NULL, 0, &kernel), SUCCESS);
    CHECK_EQ(cuGraphInstantiateWithParams(&exec, graph, &parameters), SUCCESS);
    CHECK_EQ(parameters.result, INSTANTIATED);
    CHECK(parameters.node == NULL);
    launch(exec);
    CHECK_EQ(read_number(memory, 0), 31);
    CHECK_EQ(driver.destroy_exec(exec), SUCCESS);
    CHECK_EQ(driver.instantiate(&exec, graph, FREE_AT_LAUNCH | USE_NODE_PRIORITY), SUCCESS);
    CHECK_EQ(cuGraphExecGetFlags(exec, &flags), SUCCESS);
    CHECK_EQ(flags, FREE_AT_LAUNCH);
    CHECK_EQ(cuGraphUpload(exec, stream), SUCCESS);
    launch(exec);
    CHECK_EQ(driver.destroy_exec(exec), SUCCESS);
    CHECK_EQ(driver.instantiate(&exec, graph, 1ull << 32), INVALID_VALUE);
    CHECK_EQ(driver.instantiate(NULL, graph, 0), INVALID_VALUE);
    /* A cycle of two nodes. */
    CHECK_EQ(driver.add_empty(&nodes[1], graph, nodes, 1), SUCCESS);
    CHECK_EQ(cuGraphAddDependencies(graph, &nodes[1], &nodes[0], 1), SUCCESS);
    parameters.flags = 0;
    CHECK(cuGraphInstantiateWithParams(&exec, graph, &parameters) != SUCCESS);
    CHECK_EQ(parameters.result, INVALID_STRUCTURE);
    CHECK(parameters.node == nodes[0] || parameters.node == nodes[1]);
    CHECK_EQ(driver.destroy(graph), SUCCESS);
}

static int calls;

static void count(void *step)
{
    calls += *(int *)step;
}

static void single_nodes_change(void)
{
    CALL(cuGraphExecKernelNodeSetParams_v2,
        (exec_handle exec, node_handle node, const struct kernel *kernel));
    CALL(cuGraphExecMemcpyNodeSetParams,
        (exec_handle exec, node_handle node, const struct copy *copy, void *context));
    CALL(cuGraphExecMemsetNodeSetParams,
        (exec_handle exec, node_handle node, const struct fill *fill, void *context));
    CALL(cuGraphExecHostNodeSetParams,
        (exec_handle exec, node_handle node, const struct host *host));
    CALL(cuGraphExecEventRecordNodeSetEvent, (exec_handle exec, node_handle node, void *event));
    CALL(cuGraphExecEventWaitNodeSetEvent, (exec_handle exec, node_handle node, void *event));
    CALL(cuGraphExecNodeSetParams,
        (exec_handle exec, node_handle node, struct node_parameters *parameters));
    CALL(cuGraphKernelNodeGetParams_v2, (node_handle node, struct kernel *kernel));
    CALL(cuEventElapsedTime, (float *milliseconds, void *start, void *end));
    static int one = 1, ten = 10;
    struct values values;
    struct kernel kernel = put_kernel(&values, memory, 0, 1), seen;
    struct fill fill = { memory + 16, 0, 2, 4, 4, 1, NULL };
    struct copy copy = line(MEMORY_DEVICE, memory, MEMORY_DEVICE, memory + 64, 4);
    struct host host = { count, &one };
    struct node_parameters parameters = { 0 };
    void *events[3];
    float milliseconds = -1;
    graph_handle graph = NULL;
    node_handle nodes[6], stranger = NULL;
    exec_handle exec = NULL;
    for (int i = 0; i < 3; i++)
        CHECK_EQ(driver.event(&events[i], 0), SUCCESS);
    CHECK_EQ(driver.create(&graph, 0), SUCCESS);
    CHECK_EQ(driver.add_kernel(&nodes[0], graph, NULL, 0, &kernel), SUCCESS);
    CHECK_EQ(driver.add_fill(&nodes[1], graph, &nodes[0], 1, &fill, context), SUCCESS);
    CHECK_EQ(driver.add_copy(&nodes[2], graph, &nodes[1], 1, &copy, context), SUCCESS);
    CHECK_EQ(driver.add_host(&nodes[3], graph, &nodes[2], 1, &host), SUCCESS);
    CHECK_EQ(driver.add_record(&nodes[4], graph, &nodes[3], 1, events[0]), SUCCESS);
    CHECK_EQ(driver.add_wait(&nodes[5], graph, &nodes[4], 1, events[1]), SUCCESS);
    CHECK_EQ(driver.instantiate(&exec, graph, 0), SUCCESS);
    calls = 0;
    launch(exec);
    CHECK_EQ(read_number(memory, 0), 1);
    CHECK_EQ(read_number(memory, 7), 2);
    CHECK_EQ(read_number(memory, 16), 1);
    CHECK_EQ(calls, 1);

    kernel = put_kernel(&values, memory, 1, 3);
    CHECK_EQ(cuGraphExecKernelNodeSetParams_v2(exec, nodes[0], &kernel), SUCCESS);
    fill.value = 4;
    CHECK_EQ(cuGraphExecMemsetNodeSetParams(exec, nodes[1], &fill, context), SUCCESS);
    copy = line(MEMORY_DEVICE, memory + 4, MEMORY_DEVICE, memory + 68, 4);
    CHECK_EQ(cuGraphExecMemcpyNodeSetParams(exec, nodes[2], &copy, context), SUCCESS);
    host.user_data = &ten;
    CHECK_EQ(cuGraphExecHostNodeSetParams(exec, nodes[3], &host), SUCCESS);
    CHECK_EQ(cuGraphExecEventRecordNodeSetEvent(exec, nodes[4], events[2]), SUCCESS);
    CHECK_EQ(cuGraphExecEventWaitNodeSetEvent(exec, nodes[5], events[0]), SUCCESS);
    launch(exec);
    CHECK_EQ(read_number(memory, 1), 3);
    CHECK_EQ(read_number(memory, 7), 4);
    CHECK_EQ(read_number(memory, 17), 3);
    CHECK_EQ(calls, 11);
    /* Both events were recorded, in this order. */
    CHECK_EQ(cuEventElapsedTime(&milliseconds, events[0], events[2]), SUCCESS);
    CHECK(milliseconds >= 0);
    /* The graph's own node is as before. */
    CHECK_EQ(cuGraphKernelNodeGetParams_v2(nodes[0], &seen), SUCCESS);
    CHECK_EQ(*(unsigned int *)seen.parameters[2], 1);

    parameters.type = KERNEL;
    parameters.of.kernel = put_kernel(&values, memory, 1, 8);
    CHECK_EQ(cuGraphExecNodeSetParams(exec, nodes[0], &parameters), SUCCESS);
    launch(exec);
    CHECK_EQ(read_number(memory, 17), 8);
    CHECK_EQ(cuGraphExecNodeSetParams(exec, nodes[1], &parameters), INVALID_VALUE);
    /* A node that is not in the graph of the instantiation. */
    CHECK_EQ(driver.add_kernel(&stranger, graph, NULL, 0, &kernel), SUCCESS);
    CHECK_EQ(cuGraphExecKernelNodeSetParams_v2(exec, stranger, &kernel), INVALID_VALUE);
    CHECK_EQ(driver.destroy_exec(exec), SUCCESS);
    CHECK_EQ(driver.destroy(graph), SUCCESS);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(driver.destroy_event(events[i]), SUCCESS);
}

static void nodes_are_disabled(void)
{
    CALL(cuGraphNodeSetEnabled, (exec_handle exec, node_handle node, unsigned int is_enabled));
    CALL(cuGraphNodeGetEnabled, (exec_handle exec, node_handle node, unsigned int *is_enabled));
    struct values values;
    const struct kernel kernel = put_kernel(&values, memory, 0, 41);
    const struct fill fill = { memory, 0, 40, 4, 1, 1, NULL };
    graph_handle graph = NULL;
    node_handle nodes[3];
    exec_handle exec = NULL;
    unsigned int is_enabled = 9;
    CHECK_EQ(driver.create(&graph, 0), SUCCESS);
    CHECK_EQ(driver.add_fill(&nodes[0], graph, NULL, 0, &fill, context), SUCCESS);
    CHECK_EQ(driver.add_kernel(&nodes[1], graph, &nodes[0], 1, &kernel), SUCCESS);
    CHECK_EQ(driver.add_empty(&nodes[2], graph, &nodes[1], 1), SUCCESS);
    CHECK_EQ(driver.instantiate(&exec, graph, 0), SUCCESS);
    CHECK_EQ(cuGraphNodeGetEnabled(exec, nodes[1], &is_enabled), SUCCESS);
    CHECK_EQ(is_enabled, 1);
    CHECK_EQ(cuGraphNodeSetEnabled(exec, nodes[1], 0), SUCCESS);
    CHECK_EQ(cuGraphNodeGetEnabled(exec, nodes[1], &is_enabled), SUCCESS);
    CHECK_EQ(is_enabled, 0);
    launch(exec);
    CHECK_EQ(read_number(memory, 0), 40);
    CHECK_EQ(cuGraphNodeSetEnabled(exec, nodes[1], 1), SUCCESS);
    launch(exec);
    CHECK_EQ(read_number(memory, 0), 41);
    /* Only kernels, copies and fills. */
    CHECK_EQ(cuGraphNodeSetEnabled(exec, nodes[2], 0), INVALID_VALUE);
    CHECK_EQ(driver.destroy_exec(exec), SUCCESS);
    CHECK_EQ(driver.destroy(graph), SUCCESS);
}

/* A graph with a child graph that writes a number. */
static graph_handle with_child(unsigned int value, node_handle *child)
{
    struct values values;
    const struct kernel kernel = put_kernel(&values, memory, 2, value);
    const struct fill fill = { memory, 0, value, 4, 4, 1, NULL };
    graph_handle graph = NULL, inner = NULL;
    node_handle first = NULL, node = NULL;
    CHECK_EQ(driver.create(&inner, 0), SUCCESS);
    CHECK_EQ(driver.add_empty(&first, inner, NULL, 0), SUCCESS);
    CHECK_EQ(driver.add_kernel(&node, inner, &first, 1, &kernel), SUCCESS);
    CHECK_EQ(driver.create(&graph, 0), SUCCESS);
    CHECK_EQ(driver.add_fill(&node, graph, NULL, 0, &fill, context), SUCCESS);
    CHECK_EQ(driver.add_child(child, graph, &node, 1, inner), SUCCESS);
    CHECK_EQ(driver.destroy(inner), SUCCESS);
    return graph;
}

static void child_graphs_and_whole_graphs_change(void)
{
    CALL(cuGraphExecChildGraphNodeSetParams,
        (exec_handle exec, node_handle node, graph_handle child));
    CALL(cuGraphChildGraphNodeGetGraph, (node_handle node, graph_handle *graph));
    /* CUgraphExecUpdateResultInfo */
    struct {
        int result;
        node_handle node, from;
    } info = { -1, NULL, NULL };
    CALL(cuGraphExecUpdate_v2, (exec_handle exec, graph_handle graph, void *info));
    node_handle child = NULL, other_child = NULL, node = NULL;
    graph_handle graph = with_child(50, &child), other = with_child(60, &other_child);
    graph_handle inner = NULL, different = NULL;
    exec_handle exec = NULL;
    CHECK_EQ(driver.instantiate(&exec, graph, 0), SUCCESS);
    launch(exec);
    CHECK_EQ(read_number(memory, 1), 50);
    CHECK_EQ(read_number(memory, 2), 50);
    CHECK_EQ(cuGraphChildGraphNodeGetGraph(other_child, &inner), SUCCESS);
    CHECK_EQ(cuGraphExecChildGraphNodeSetParams(exec, child, inner), SUCCESS);
    launch(exec);
    CHECK_EQ(read_number(memory, 1), 50);
    CHECK_EQ(read_number(memory, 2), 60);
    CHECK_EQ(cuGraphExecUpdate_v2(exec, other, &info), SUCCESS);
    CHECK_EQ(info.result, UPDATED);
    launch(exec);
    CHECK_EQ(read_number(memory, 1), 60);
    CHECK_EQ(read_number(memory, 2), 60);

    CHECK_EQ(driver.create(&different, 0), SUCCESS);
    CHECK_EQ(driver.add_empty(&node, different, NULL, 0), SUCCESS);
    CHECK(cuGraphExecChildGraphNodeSetParams(exec, child, different) != SUCCESS);
    CHECK_EQ(cuGraphExecUpdate_v2(exec, different, &info), UPDATE_FAILURE);
    CHECK_EQ(info.result, TOPOLOGY_CHANGED);
    CHECK(info.node == NULL);
    CHECK_EQ(driver.add_empty(&node, different, &node, 1), SUCCESS);
    CHECK_EQ(cuGraphExecUpdate_v2(exec, different, &info), UPDATE_FAILURE);
    CHECK_EQ(info.result, TYPE_CHANGED);
    launch(exec);
    CHECK_EQ(read_number(memory, 2), 60);
    CHECK_EQ(driver.destroy_exec(exec), SUCCESS);
    CHECK_EQ(driver.destroy(graph), SUCCESS);
    CHECK_EQ(driver.destroy(other), SUCCESS);
    CHECK_EQ(driver.destroy(different), SUCCESS);
}

static volatile int destroyed;

static void destroy(void *object)
{
    destroyed += *(int *)object;
}

/* Destructors run on a thread of the driver: waits up to five seconds. */
static void is_destroyed(int expected)
{
    const struct timespec pause = { 0, 1000000 };
    for (int i = 0; i < 5000 && destroyed != expected; i++)
        nanosleep(&pause, NULL);
    CHECK_EQ(destroyed, expected);
}

static void graphs_keep_user_objects(void)
{
    CALL(cuUserObjectCreate,
        (void **object, void *data, void (*destroy)(void *), unsigned int count,
            unsigned int flags));
    CALL(cuUserObjectRetain, (void *object, unsigned int count));
    CALL(cuUserObjectRelease, (void *object, unsigned int count));
    CALL(cuGraphRetainUserObject,
        (graph_handle graph, void *object, unsigned int count, unsigned int flags));
    CALL(cuGraphReleaseUserObject, (graph_handle graph, void *object, unsigned int count));
    CALL(cuGraphClone, (graph_handle *clone, graph_handle graph));
    static int one = 1, ten = 10;
    graph_handle graph = NULL, clone = NULL;
    node_handle node = NULL;
    exec_handle exec = NULL;
    void *object = NULL, *other = NULL;
    CHECK_EQ(cuUserObjectCreate(&object, &one, destroy, 1, 0), INVALID_VALUE);
    CHECK_EQ(cuUserObjectCreate(&object, &one, destroy, 0, 1), INVALID_VALUE);
    CHECK_EQ(cuUserObjectCreate(&object, &one, NULL, 1, 1), INVALID_VALUE);
    CHECK_EQ(cuUserObjectCreate(&object, &one, destroy, 2, 1), SUCCESS);
    CHECK_EQ(cuUserObjectRetain(object, 1), SUCCESS);
    CHECK_EQ(cuUserObjectRetain(object, 0), INVALID_VALUE);
    CHECK_EQ(cuUserObjectRelease(object, 2), SUCCESS);
    CHECK_EQ(driver.create(&graph, 0), SUCCESS);
    CHECK_EQ(driver.add_empty(&node, graph, NULL, 0), SUCCESS);
    /* The graph takes the last reference; the clone and the executable graph have their own. */
    CHECK_EQ(cuGraphRetainUserObject(graph, object, 1, 2), INVALID_VALUE);
    CHECK_EQ(cuGraphRetainUserObject(graph, object, 1, 1), SUCCESS);
    CHECK_EQ(cuGraphClone(&clone, graph), SUCCESS);
    CHECK_EQ(driver.instantiate(&exec, clone, 0), SUCCESS);
    CHECK_EQ(driver.destroy(graph), SUCCESS);
    CHECK_EQ(driver.destroy(clone), SUCCESS);
    launch(exec);
    CHECK_EQ(destroyed, 0);
    CHECK_EQ(driver.destroy_exec(exec), SUCCESS);
    is_destroyed(1);
    /* References of the host and of a graph, which it gives up. */
    CHECK_EQ(cuUserObjectCreate(&other, &ten, destroy, 1, 1), SUCCESS);
    CHECK_EQ(driver.create(&graph, 0), SUCCESS);
    CHECK_EQ(cuGraphRetainUserObject(graph, other, 2, 0), SUCCESS);
    CHECK_EQ(cuUserObjectRelease(other, 1), SUCCESS);
    CHECK_EQ(cuGraphReleaseUserObject(graph, other, 1), SUCCESS);
    CHECK_EQ(destroyed, 1);
    CHECK_EQ(cuGraphReleaseUserObject(graph, other, 1), SUCCESS);
    is_destroyed(11);
    CHECK_EQ(driver.destroy(graph), SUCCESS);
}

int main(void)
{
    begin();
    CHECK_EQ(driver.allocate(&memory, 4096), SUCCESS);
    instantiation_has_parameters();
    single_nodes_change();
    nodes_are_disabled();
    child_graphs_and_whole_graphs_change();
    graphs_keep_user_objects();
    CHECK_EQ(driver.free(memory), SUCCESS);
    end();
    return EXIT_SUCCESS;
}
