/* Graphs that a program builds node by node: their parameters, edges, copies and launches. */
#include "driver_graph.h"

static address memory;

static void kernels_keep_their_parameters(void)
{
    CALL(cuGraphKernelNodeGetParams_v2, (node_handle node, struct kernel *kernel));
    CALL(cuGraphKernelNodeSetParams_v2, (node_handle node, const struct kernel *kernel));
    CALL(cuGraphNodeGetType, (node_handle node, int *type));
    struct values values;
    struct kernel kernel = put_kernel(&values, memory, 0, 11), seen;
    graph_handle graph = NULL;
    node_handle node = NULL, other = NULL;
    int type = -1;
    CHECK_EQ(driver.create(&graph, 0), SUCCESS);
    CHECK_EQ(driver.add_kernel(&node, graph, NULL, 0, &kernel), SUCCESS);
    CHECK_EQ(cuGraphNodeGetType(node, &type), SUCCESS);
    CHECK_EQ(type, KERNEL);
    memset(&seen, 0, sizeof seen);
    CHECK_EQ(cuGraphKernelNodeGetParams_v2(node, &seen), SUCCESS);
    CHECK(seen.function == put);
    CHECK_EQ(seen.grid[0], 1);
    CHECK_EQ(seen.block[2], 1);
    /* The arguments were copied. */
    values.value = 0;
    CHECK_EQ(*(unsigned int *)seen.parameters[2], 11);
    CHECK_EQ(*(address *)seen.parameters[0], memory);
    kernel = put_kernel(&values, memory, 1, 12);
    CHECK_EQ(driver.add_kernel(&other, graph, &node, 1, &kernel), SUCCESS);
    kernel = put_kernel(&values, memory, 1, 13);
    CHECK_EQ(cuGraphKernelNodeSetParams_v2(other, &kernel), SUCCESS);
    run(graph);
    CHECK_EQ(read_number(memory, 0), 11);
    CHECK_EQ(read_number(memory, 1), 13);
    /* Errors. */
    CHECK_EQ(driver.add_kernel(&other, graph, NULL, 1, &kernel), INVALID_VALUE);
    CHECK_EQ(driver.add_kernel(&other, graph, NULL, 0, NULL), INVALID_VALUE);
    kernel.grid[0] = 0;
    CHECK_EQ(driver.add_kernel(&other, graph, NULL, 0, &kernel), INVALID_VALUE);
    kernel.grid[0] = 1;
    kernel.block[0] = 1025;
    CHECK_EQ(driver.add_kernel(&other, graph, NULL, 0, &kernel), INVALID_VALUE);
    CHECK_EQ(driver.destroy(graph), SUCCESS);
}

static void kernels_have_attributes(void)
{
    /* CUkernelNodeAttrValue */
    union value {
        int number;
        unsigned int sizes[3];
        char padding[64];
    } value = { 0 };
    enum { COOPERATIVE = 2, PRIORITY = 8, UNKNOWN = 99 };
    CALL(cuGraphKernelNodeGetAttribute, (node_handle node, int attribute, union value *value));
    CALL(cuGraphKernelNodeSetAttribute,
        (node_handle node, int attribute, const union value *value));
    CALL(cuGraphKernelNodeCopyAttributes, (node_handle target, node_handle source));
    struct values values;
    struct kernel kernel = put_kernel(&values, memory, 0, 14);
    graph_handle graph = NULL;
    node_handle nodes[3];
    CHECK_EQ(driver.create(&graph, 0), SUCCESS);
    CHECK_EQ(driver.add_kernel(&nodes[0], graph, NULL, 0, &kernel), SUCCESS);
    CHECK_EQ(driver.add_kernel(&nodes[1], graph, nodes, 1, &kernel), SUCCESS);
    CHECK_EQ(driver.add_empty(&nodes[2], graph, NULL, 0), SUCCESS);
    value.number = 9;
    CHECK_EQ(cuGraphKernelNodeGetAttribute(nodes[0], COOPERATIVE, &value), SUCCESS);
    CHECK_EQ(value.number, 0);
    value.number = 1;
    CHECK_EQ(cuGraphKernelNodeSetAttribute(nodes[0], COOPERATIVE, &value), SUCCESS);
    value.number = -1;
    CHECK_EQ(cuGraphKernelNodeSetAttribute(nodes[0], PRIORITY, &value), SUCCESS);
    CHECK_EQ(cuGraphKernelNodeCopyAttributes(nodes[1], nodes[0]), SUCCESS);
    value.number = 9;
    CHECK_EQ(cuGraphKernelNodeGetAttribute(nodes[1], COOPERATIVE, &value), SUCCESS);
    CHECK_EQ(value.number, 1);
    CHECK_EQ(cuGraphKernelNodeGetAttribute(nodes[1], PRIORITY, &value), SUCCESS);
    CHECK_EQ(value.number, -1);
    run(graph);
    CHECK_EQ(read_number(memory, 0), 14);
    CHECK_EQ(cuGraphKernelNodeGetAttribute(nodes[0], UNKNOWN, &value), INVALID_VALUE);
    CHECK_EQ(cuGraphKernelNodeSetAttribute(nodes[0], UNKNOWN, &value), INVALID_VALUE);
    CHECK_EQ(cuGraphKernelNodeGetAttribute(nodes[2], PRIORITY, &value), INVALID_VALUE);
    CHECK_EQ(cuGraphKernelNodeCopyAttributes(nodes[2], nodes[0]), INVALID_VALUE);
    CHECK_EQ(driver.destroy(graph), SUCCESS);
}

static void copies_and_fills_keep_their_parameters(void)
{
    CALL(cuGraphMemcpyNodeGetParams, (node_handle node, struct copy *copy));
    CALL(cuGraphMemcpyNodeSetParams, (node_handle node, const struct copy *copy));
    CALL(cuGraphMemsetNodeGetParams, (node_handle node, void *fill));
    CALL(cuGraphMemsetNodeSetParams, (node_handle node, const struct fill *fill));
    static unsigned int numbers[4] = { 1, 2, 3, 4 }, back[16];
    struct copy copy = line(MEMORY_HOST, (address)(uintptr_t)numbers, MEMORY_DEVICE, memory, 16);
    struct copy seen;
    struct fill fill = { memory, 0, 0xabcd1234, 4, 8, 1, NULL }, filled;
    graph_handle graph = NULL;
    node_handle nodes[3];
    CHECK_EQ(driver.create(&graph, 0), SUCCESS);
    CHECK_EQ(driver.add_fill(&nodes[0], graph, NULL, 0, &fill, context), SUCCESS);
    CHECK_EQ(driver.add_copy(&nodes[1], graph, nodes, 1, &copy, context), SUCCESS);
    CHECK_EQ(cuGraphMemcpyNodeGetParams(nodes[1], &seen), SUCCESS);
    CHECK_EQ(seen.width, 16);
    CHECK_EQ(seen.rows, 1);
    CHECK_EQ(seen.source.memory_type, MEMORY_HOST);
    CHECK(seen.source.host == numbers);
    CHECK_EQ(seen.target.device, memory);
    memset(&filled, 0, sizeof filled);
    CHECK_EQ(cuGraphMemsetNodeGetParams(nodes[0], &filled), SUCCESS);
    CHECK_EQ(filled.target, memory);
    CHECK_EQ(filled.value, 0xabcd1234);
    CHECK_EQ(filled.element_size, 4);
    CHECK_EQ(filled.width, 8);
    CHECK_EQ(filled.rows, 1);
    copy = line(MEMORY_DEVICE, memory, MEMORY_HOST, (address)(uintptr_t)back, 64);
    CHECK_EQ(driver.add_copy(&nodes[2], graph, &nodes[1], 1, &copy, context), SUCCESS);
    /* Two rows of three elements, 32 bytes apart. */
    fill.value = 7;
    fill.width = 3;
    fill.rows = 2;
    fill.pitch = 32;
    CHECK_EQ(cuGraphMemsetNodeSetParams(nodes[0], &fill), SUCCESS);
    copy = line(MEMORY_HOST, (address)(uintptr_t)numbers, MEMORY_DEVICE, memory + 4, 4);
    CHECK_EQ(cuGraphMemcpyNodeSetParams(nodes[1], &copy), SUCCESS);
    CHECK_EQ(driver.fill(memory, 0, 64, stream), SUCCESS);
    /* Pageable memory is read at the launch. */
    numbers[0] = 99;
    run(graph);
    const unsigned int expected[16] = { 7, 99, 7, 0, 0, 0, 0, 0, 7, 7, 7 };
    for (int i = 0; i < 16; i++)
        CHECK_EQ(back[i], expected[i]);
    fill.element_size = 3;
    CHECK_EQ(driver.add_fill(&nodes[0], graph, NULL, 0, &fill, context), INVALID_VALUE);
    CHECK_EQ(driver.destroy(graph), SUCCESS);
}

static int calls;

static void count(void *step)
{
    calls += *(int *)step;
}

static void host_functions_and_events(void)
{
    CALL(cuGraphHostNodeGetParams, (node_handle node, struct host *host));
    CALL(cuGraphHostNodeSetParams, (node_handle node, const struct host *host));
    CALL(cuGraphEventRecordNodeGetEvent, (node_handle node, void **event));
    CALL(cuGraphEventRecordNodeSetEvent, (node_handle node, void *event));
    CALL(cuGraphEventWaitNodeGetEvent, (node_handle node, void **event));
    CALL(cuGraphEventWaitNodeSetEvent, (node_handle node, void *event));
    static int one = 1, ten = 10;
    struct host host = { count, &one }, seen = { NULL, NULL };
    graph_handle graph = NULL;
    node_handle function = NULL, wait = NULL, record = NULL;
    void *events[2], *event = NULL;
    CHECK_EQ(driver.event(&events[0], 0), SUCCESS);
    CHECK_EQ(driver.event(&events[1], 0), SUCCESS);
    CHECK_EQ(driver.create(&graph, 0), SUCCESS);
    CHECK_EQ(driver.add_wait(&wait, graph, NULL, 0, events[0]), SUCCESS);
    CHECK_EQ(driver.add_host(&function, graph, &wait, 1, &host), SUCCESS);
    CHECK_EQ(driver.add_record(&record, graph, &function, 1, events[1]), SUCCESS);
    CHECK_EQ(cuGraphHostNodeGetParams(function, &seen), SUCCESS);
    CHECK(seen.function == count && seen.user_data == &one);
    CHECK_EQ(cuGraphEventWaitNodeGetEvent(wait, &event), SUCCESS);
    CHECK(event == events[0]);
    CHECK_EQ(cuGraphEventRecordNodeGetEvent(record, &event), SUCCESS);
    CHECK(event == events[1]);
    run(graph);
    CHECK_EQ(calls, 1);
    CHECK_EQ(driver.query(events[1]), SUCCESS);
    host.user_data = &ten;
    CHECK_EQ(cuGraphHostNodeSetParams(function, &host), SUCCESS);
    CHECK_EQ(cuGraphEventRecordNodeSetEvent(record, events[0]), SUCCESS);
    CHECK_EQ(cuGraphEventWaitNodeSetEvent(wait, events[1]), SUCCESS);
    CHECK_EQ(cuGraphEventWaitNodeGetEvent(wait, &event), SUCCESS);
    CHECK(event == events[1]);
    run(graph);
    CHECK_EQ(calls, 11);
    host.function = NULL;
    CHECK_EQ(driver.add_host(&function, graph, NULL, 0, &host), INVALID_VALUE);
    /* A node of another kind. */
    CHECK_EQ(cuGraphEventRecordNodeSetEvent(wait, events[0]), INVALID_VALUE);
    CHECK_EQ(cuGraphHostNodeGetParams(wait, &seen), INVALID_VALUE);
    CHECK_EQ(driver.destroy(graph), SUCCESS);
    CHECK_EQ(driver.destroy_event(events[0]), SUCCESS);
    CHECK_EQ(driver.destroy_event(events[1]), SUCCESS);
}

static void edges_are_added_and_removed(void)
{
    CALL(cuGraphAddDependencies,
        (graph_handle graph, const node_handle *from, const node_handle *to, size_t count));
    CALL(cuGraphRemoveDependencies,
        (graph_handle graph, const node_handle *from, const node_handle *to, size_t count));
    CALL(cuGraphGetNodes, (graph_handle graph, node_handle *nodes, size_t *count));
    CALL(cuGraphGetRootNodes, (graph_handle graph, node_handle *nodes, size_t *count));
    CALL(cuGraphGetEdges, (graph_handle graph, node_handle *from, node_handle *to, size_t *count));
    CALL(cuGraphGetEdges_v2,
        (graph_handle graph, node_handle *from, node_handle *to, uint64_t *data, size_t *count));
    CALL(cuGraphNodeGetDependencies, (node_handle node, void *dependencies, size_t *count));
    CALL(cuGraphNodeGetDependentNodes, (node_handle node, void *dependents, size_t *count));
    CALL(cuGraphNodeGetDependencies_v2,
        (node_handle node, void *dependencies, uint64_t *data, size_t *count));
    CALL(cuGraphAddDependencies_v2,
        (graph_handle graph, const node_handle *from, const node_handle *to,
            const uint64_t *data, size_t count));
    CALL(cuGraphDestroyNode, (node_handle node));
    graph_handle graph = NULL, other = NULL;
    node_handle nodes[4], found[4], to[4], stranger;
    size_t count = 0;
    uint64_t data[4] = { 1, 1, 1, 1 };
    CHECK_EQ(driver.create(&graph, 1), INVALID_VALUE);
    CHECK_EQ(driver.create(NULL, 0), INVALID_VALUE);
    CHECK_EQ(driver.create(&graph, 0), SUCCESS);
    CHECK_EQ(driver.create(&other, 0), SUCCESS);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(driver.add_empty(&nodes[i], graph, NULL, 0), SUCCESS);
    CHECK_EQ(driver.add_empty(&stranger, other, NULL, 0), SUCCESS);
    CHECK_EQ(cuGraphGetNodes(graph, NULL, &count), SUCCESS);
    CHECK_EQ(count, 4);
    /* 0 and 1 before 2 and 3, against the order of creation in one case. */
    const node_handle from[] = { nodes[0], nodes[1], nodes[3] }, later[] = { nodes[2], nodes[2],
        nodes[0] };
    CHECK_EQ(cuGraphAddDependencies(graph, from, later, 3), SUCCESS);
    CHECK_EQ(cuGraphGetRootNodes(graph, NULL, &count), SUCCESS);
    CHECK_EQ(count, 2);
    CHECK_EQ(cuGraphGetRootNodes(graph, found, &count), SUCCESS);
    CHECK(found[0] == nodes[1] || found[1] == nodes[1]);
    CHECK_EQ(cuGraphGetEdges(graph, NULL, NULL, &count), SUCCESS);
    CHECK_EQ(count, 3);
    CHECK_EQ(cuGraphGetEdges_v2(graph, found, to, data, &count), SUCCESS);
    CHECK_EQ(count, 3);
    CHECK(data[0] == 0 && data[1] == 0 && data[2] == 0);
    CHECK_EQ(cuGraphNodeGetDependencies(nodes[2], NULL, &count), SUCCESS);
    CHECK_EQ(count, 2);
    CHECK_EQ(cuGraphNodeGetDependencies_v2(nodes[2], found, data, &count), SUCCESS);
    CHECK((found[0] == nodes[0]) != (found[1] == nodes[0]));
    count = 4;
    found[1] = stranger;
    CHECK_EQ(cuGraphNodeGetDependentNodes(nodes[3], found, &count), SUCCESS);
    CHECK_EQ(count, 1);
    CHECK(found[0] == nodes[0]);
    /* More room than nodes: the rest is NULL. */
    CHECK(found[1] == NULL);
    /* All or nothing: the first exists, the second does not. */
    CHECK_EQ(cuGraphAddDependencies(graph, from, later, 1), INVALID_VALUE);
    CHECK_EQ(cuGraphRemoveDependencies(graph, &nodes[0], &nodes[1], 1), INVALID_VALUE);
    CHECK_EQ(cuGraphAddDependencies(graph, &stranger, &nodes[1], 1), INVALID_VALUE);
    CHECK_EQ(cuGraphAddDependencies(graph, &nodes[1], &nodes[1], 1), INVALID_VALUE);
    CHECK_EQ(driver.add_empty(&stranger, graph, &stranger, 1), INVALID_VALUE);
    const node_handle twice[] = { nodes[0], nodes[0] };
    CHECK_EQ(driver.add_empty(&stranger, graph, twice, 2), INVALID_VALUE);
    CHECK_EQ(cuGraphRemoveDependencies(graph, from, later, 1), SUCCESS);
    CHECK_EQ(cuGraphGetEdges(graph, NULL, NULL, &count), SUCCESS);
    CHECK_EQ(count, 2);
    memset(data, 0, sizeof data);
    CHECK_EQ(cuGraphAddDependencies_v2(graph, from, later, data, 1), SUCCESS);
    /* A node takes its edges with it. */
    CHECK_EQ(cuGraphDestroyNode(nodes[0]), SUCCESS);
    CHECK_EQ(cuGraphGetEdges(graph, NULL, NULL, &count), SUCCESS);
    CHECK_EQ(count, 1);
    CHECK_EQ(cuGraphGetNodes(graph, NULL, &count), SUCCESS);
    CHECK_EQ(count, 3);
    run(graph);
    /* A cycle is found when the graph is instantiated. */
    CHECK_EQ(cuGraphAddDependencies(graph, &nodes[2], &nodes[1], 1), SUCCESS);
    exec_handle exec = NULL;
    CHECK_EQ(driver.instantiate(&exec, graph, 0), INVALID_VALUE);
    CHECK_EQ(driver.destroy(graph), SUCCESS);
    CHECK_EQ(driver.destroy(other), SUCCESS);
}

static void clones_and_child_graphs(void)
{
    CALL(cuGraphClone, (graph_handle *clone, graph_handle graph));
    CALL(cuGraphNodeFindInClone, (node_handle *found, node_handle node, graph_handle clone));
    CALL(cuGraphChildGraphNodeGetGraph, (node_handle node, graph_handle *graph));
    CALL(cuGraphKernelNodeSetParams_v2, (node_handle node, const struct kernel *kernel));
    CALL(cuGraphGetNodes, (graph_handle graph, node_handle *nodes, size_t *count));
    CALL(cuGraphNodeGetType, (node_handle node, int *type));
    struct values values;
    struct kernel kernel = put_kernel(&values, memory, 2, 5);
    graph_handle graph = NULL, clone = NULL, parent = NULL, inner = NULL;
    node_handle node = NULL, copy = NULL, child = NULL, before = NULL, after = NULL;
    size_t count = 1;
    int type = -1;
    CHECK_EQ(driver.create(&graph, 0), SUCCESS);
    CHECK_EQ(driver.add_kernel(&node, graph, NULL, 0, &kernel), SUCCESS);
    CHECK_EQ(cuGraphClone(&clone, graph), SUCCESS);
    CHECK_EQ(cuGraphNodeFindInClone(&copy, node, clone), SUCCESS);
    CHECK(copy != node);
    CHECK_EQ(cuGraphNodeFindInClone(&copy, copy, graph), INVALID_VALUE);
    CHECK_EQ(cuGraphNodeFindInClone(&copy, node, clone), SUCCESS);
    /* A change of the original does not change the clone. */
    kernel = put_kernel(&values, memory, 2, 6);
    CHECK_EQ(cuGraphKernelNodeSetParams_v2(node, &kernel), SUCCESS);
    run(clone);
    CHECK_EQ(read_number(memory, 2), 5);
    run(graph);
    CHECK_EQ(read_number(memory, 2), 6);

    /* A fill, the child graph that writes over it, and a kernel that writes over both. */
    const struct fill fill = { memory, 0, 1, 4, 4, 1, NULL };
    CHECK_EQ(driver.create(&parent, 0), SUCCESS);
    CHECK_EQ(driver.add_fill(&before, parent, NULL, 0, &fill, context), SUCCESS);
    CHECK_EQ(driver.add_child(&child, parent, &before, 1, graph), SUCCESS);
    kernel = put_kernel(&values, memory, 3, 8);
    CHECK_EQ(driver.add_kernel(&after, parent, &child, 1, &kernel), SUCCESS);
    CHECK_EQ(cuGraphNodeGetType(child, &type), SUCCESS);
    CHECK_EQ(type, CHILD);
    /* The node owns a copy. */
    CHECK_EQ(driver.destroy(graph), SUCCESS);
    run(parent);
    CHECK_EQ(read_number(memory, 0), 1);
    CHECK_EQ(read_number(memory, 2), 6);
    CHECK_EQ(read_number(memory, 3), 8);
    CHECK_EQ(cuGraphChildGraphNodeGetGraph(child, &inner), SUCCESS);
    CHECK_EQ(cuGraphGetNodes(inner, &node, &count), SUCCESS);
    CHECK_EQ(count, 1);
    kernel = put_kernel(&values, memory, 2, 9);
    CHECK_EQ(cuGraphKernelNodeSetParams_v2(node, &kernel), SUCCESS);
    run(parent);
    CHECK_EQ(read_number(memory, 2), 9);
    CHECK_EQ(driver.destroy(parent), SUCCESS);
    CHECK_EQ(driver.destroy(clone), SUCCESS);
}

static void parameters_of_any_kind(void)
{
    CALL(cuGraphNodeSetParams, (node_handle node, struct node_parameters *parameters));
    struct values values;
    struct node_parameters parameters = { 0 };
    graph_handle graph = NULL;
    node_handle nodes[3];
    CHECK_EQ(driver.create(&graph, 0), SUCCESS);
    parameters.type = FILL;
    const struct fill fill = { memory, 0, 3, 4, 4, 1, context };
    parameters.of.fill = fill;
    CHECK_EQ(driver.add(&nodes[0], graph, NULL, 0, &parameters), SUCCESS);
    memset(&parameters, 0, sizeof parameters);
    parameters.type = KERNEL;
    parameters.of.kernel = put_kernel(&values, memory, 0, 21);
    CHECK_EQ(driver.add(&nodes[1], graph, &nodes[0], 1, &parameters), SUCCESS);
    memset(&parameters, 0, sizeof parameters);
    parameters.type = COPY;
    parameters.of.copy.context = context;
    parameters.of.copy.copy = line(MEMORY_DEVICE, memory, MEMORY_DEVICE, memory + 16, 16);
    CHECK_EQ(driver.add(&nodes[2], graph, &nodes[1], 1, &parameters), SUCCESS);
    run(graph);
    CHECK_EQ(read_number(memory, 4), 21);
    CHECK_EQ(read_number(memory, 5), 3);
    memset(&parameters, 0, sizeof parameters);
    parameters.type = KERNEL;
    parameters.of.kernel = put_kernel(&values, memory, 0, 22);
    CHECK_EQ(cuGraphNodeSetParams(nodes[1], &parameters), SUCCESS);
    run(graph);
    CHECK_EQ(read_number(memory, 4), 22);
    CHECK_EQ(cuGraphNodeSetParams(nodes[0], &parameters), INVALID_VALUE);
    CHECK_EQ(driver.destroy(graph), SUCCESS);
}

static void memory_of_graphs(void)
{
    CALL(cuGraphMemAllocNodeGetParams, (node_handle node, struct allocation *allocation));
    CALL(cuGraphMemFreeNodeGetParams, (node_handle node, address *pointer));
    CALL(cuDeviceGetGraphMemAttribute, (int device, int attribute, uint64_t *value));
    CALL(cuDeviceSetGraphMemAttribute, (int device, int attribute, uint64_t *value));
    CALL(cuDeviceGraphMemTrim, (int device));
    CALL(cuGraphClone, (graph_handle *clone, graph_handle graph));
    CALL(cuGraphDestroyNode, (node_handle node));
    static unsigned int number;
    struct allocation allocation, seen;
    struct values values;
    graph_handle graph = NULL, clone = NULL;
    node_handle nodes[4], other = NULL;
    address freed = 0;
    uint64_t value = 0;
    memset(&allocation, 0, sizeof allocation);
    allocation.type = 1;
    allocation.location_type = 1;
    allocation.bytes = 1 << 20;
    CHECK_EQ(driver.create(&graph, 0), SUCCESS);
    CHECK_EQ(driver.add_allocation(&nodes[0], graph, NULL, 0, &allocation), SUCCESS);
    CHECK(allocation.pointer != 0);
    struct kernel kernel = put_kernel(&values, allocation.pointer, 1, 77);
    CHECK_EQ(driver.add_kernel(&nodes[1], graph, nodes, 1, &kernel), SUCCESS);
    struct copy copy = line(
        MEMORY_DEVICE, allocation.pointer + 4, MEMORY_HOST, (address)(uintptr_t)&number, 4);
    CHECK_EQ(driver.add_copy(&nodes[2], graph, &nodes[1], 1, &copy, context), SUCCESS);
    CHECK_EQ(
        driver.add_free(&nodes[3], graph, &nodes[2], 1, allocation.pointer), SUCCESS);
    CHECK_EQ(cuGraphMemAllocNodeGetParams(nodes[0], &seen), SUCCESS);
    CHECK_EQ(seen.pointer, allocation.pointer);
    CHECK_EQ(seen.bytes, 1 << 20);
    CHECK_EQ(seen.device, 0);
    CHECK_EQ(cuGraphMemFreeNodeGetParams(nodes[3], &freed), SUCCESS);
    CHECK_EQ(freed, allocation.pointer);
    /* Freed only once, and only memory of a graph. */
    CHECK_EQ(driver.add_free(&other, graph, NULL, 0, allocation.pointer), INVALID_VALUE);
    CHECK_EQ(driver.add_free(&other, graph, NULL, 0, memory), INVALID_VALUE);
    /* Such graphs stay as they are. */
    CHECK(cuGraphClone(&clone, graph) != SUCCESS);
    CHECK(cuGraphDestroyNode(nodes[1]) != SUCCESS);
    exec_handle exec = NULL;
    CHECK_EQ(driver.instantiate(&exec, graph, 0), SUCCESS);
    for (int round = 0; round < 2; round++) {
        number = 0;
        CHECK_EQ(driver.launch(exec, stream), SUCCESS);
        CHECK_EQ(driver.synchronize(stream), SUCCESS);
        CHECK_EQ(number, 77);
    }
    CHECK_EQ(cuDeviceGetGraphMemAttribute(0, 3, &value), SUCCESS);
    CHECK(value >= 1 << 20);
    CHECK_EQ(driver.destroy_exec(exec), SUCCESS);
    CHECK_EQ(driver.destroy(graph), SUCCESS);
    CHECK_EQ(cuDeviceGraphMemTrim(0), SUCCESS);
    for (int attribute = 0; attribute < 4; attribute += 2) {
        CHECK_EQ(cuDeviceGetGraphMemAttribute(0, attribute, &value), SUCCESS);
        CHECK_EQ(value, 0);
        CHECK_EQ(cuDeviceSetGraphMemAttribute(0, attribute + 1, &value), SUCCESS);
        CHECK_EQ(cuDeviceGetGraphMemAttribute(0, attribute + 1, &value), SUCCESS);
        CHECK_EQ(value, 0);
    }
    value = 1;
    CHECK_EQ(cuDeviceSetGraphMemAttribute(0, 1, &value), INVALID_VALUE);
    allocation.bytes = 0;
    CHECK_EQ(driver.create(&graph, 0), SUCCESS);
    CHECK_EQ(driver.add_allocation(&nodes[0], graph, NULL, 0, &allocation), INVALID_VALUE);
    CHECK_EQ(driver.destroy(graph), SUCCESS);
}

int main(void)
{
    begin();
    CHECK_EQ(driver.allocate(&memory, 4096), SUCCESS);
    kernels_keep_their_parameters();
    kernels_have_attributes();
    copies_and_fills_keep_their_parameters();
    host_functions_and_events();
    edges_are_added_and_removed();
    clones_and_child_graphs();
    parameters_of_any_kind();
    memory_of_graphs();
    CHECK_EQ(driver.free(memory), SUCCESS);
    end();
    return EXIT_SUCCESS;
}
