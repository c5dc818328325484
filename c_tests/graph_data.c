/* The nodes and edges of a template as JSON and as DOT, and annotations on nodes. */
#include "graph.h"

typedef tcuda_status text_fn(tcuda_graph *graph, char *buf, size_t len, size_t *needed);

/* The whole text, to be freed. */
static char *text_of(tcuda_graph *graph, text_fn *write)
{
    size_t needed = 0, again = 0;
    CHECK_OK(write(graph, NULL, 0, &needed));
    CHECK(needed > 2);
    char *const text = malloc(needed + 1);
    CHECK(text != NULL);
    memset(text, 'x', needed + 1);
    CHECK_OK(write(graph, text, needed + 1, &again));
    CHECK_EQ(again, needed);
    CHECK_EQ(strlen(text), needed);
    return text;
}

static size_t count_of(const char *text, const char *part)
{
    size_t count = 0;
    while ((text = strstr(text, part)) != NULL) {
        count++;
        text++;
    }
    return count;
}

static void has(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fprintf(stderr, "%s\nis not in\n%s\n", part, text);
    CHECK(strstr(text, part) != NULL);
}

/* The number after a key, from a place in the text on; ~0: null. */
static uint64_t number_after(const char *text, const char *key)
{
    const char *const found = strstr(text, key);
    CHECK(found != NULL);
    const char *const value = found + strlen(key);
    return strncmp(value, "null", 4) == 0 ? UINT64_MAX : strtoull(value, NULL, 10);
}

/* Brackets close, outside of quotes. */
static void is_balanced(const char *json)
{
    int depth = 0;
    bool quoted = false;
    for (; *json != '\0'; json++) {
        if (*json == '"')
            quoted = !quoted;
        else if (*json == '\\')
            json++;
        else if (!quoted)
            depth += (*json == '{' || *json == '[') - (*json == '}' || *json == ']');
        CHECK(depth >= 0 && (unsigned char)*json < 128);
    }
    CHECK(depth == 0 && !quoted);
}

static void a_host_function(void *user_data)
{
    ++*(int *)user_data;
}

/* A fill, a copy, a kernel (CUDA fills no elements of 8 bytes) and a function, one after the
 * other. */
static void nodes_have_their_kinds_and_values(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *const bytes = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    unsigned char *const other = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    tcuda_graph *const graph = create_graph(1);
    const uint64_t wide = 0x0102030405060708;
    int calls = 0;
    char part[256];
    begin(graph, stream);
    fill_bytes(bytes, 7, PAGE, stream);
    CHECK_OK(tcuda_copy(other, bytes, PAGE / 2, stream));
    CHECK_OK(tcuda_fill(bytes, &wide, 8, 100, stream));
    CHECK_OK(tcuda_stream_add_callback(stream, a_host_function, &calls, NULL));
    end(graph);

    char *json = text_of(graph, tcuda_graph_data_json);
    is_balanced(json);
    has(json, "{\"exec_graph_id\": null, \"nodes\": [{\"index\": 0, \"node_type\": \"memset\"");
    snprintf(part, sizeof part, "\"memory\": {\"dst\": %zu, \"value\": 7, \"element_bytes\": 1, "
        "\"bytes\": 4096}, \"dependencies\": [], \"dependents\": [1]", (size_t)bytes);
    has(json, part);
    has(json, "\"index\": 1, \"node_type\": \"memcpy\"");
    snprintf(part, sizeof part, "\"memory\": {\"dst\": %zu, \"src\": %zu, \"bytes\": 2048}, "
        "\"dependencies\": [0], \"dependents\": [2]", (size_t)other, (size_t)bytes);
    has(json, part);
    const char *const kernel = strstr(json, "\"index\": 2, \"node_type\": \"kernel\"");
    CHECK(kernel != NULL);
    has(kernel, "\"kernel_name\": \"");
    has(kernel, "\"grid_dim\": [");
    has(kernel, "\"shared_mem_bytes\": 0, \"parameters\": [{\"offset\": 0, \"bytes\": ");
    snprintf(part, sizeof part, "\"index\": 3, \"node_type\": \"host\"");
    has(kernel, part);
    snprintf(part, sizeof part, "\"host_fn_addr\": %zu", (size_t)a_host_function);
    has(kernel, part);
    has(json, "\"edges\": [{\"from\": 0, \"to\": 1, \"from_port\": 0, \"to_port\": 0, "
        "\"type\": 0}");
    CHECK_EQ(count_of(json, "\"from\": "), 3);
    CHECK_EQ(count_of(json, "\"annotations\": []"), 4);
    free(json);

    char *const dot = text_of(graph, tcuda_graph_data_dot);
    has(dot, "digraph graph_1 {\nn0 [label=\"memset\\n4096 B\"];\n");
    has(dot, "n0 -> n1;\nn1 -> n2;\nn2 -> n3;\n}\n");
    free(dot);

    /* IDs of nodes are the executable's, once there is one, where the driver has them. */
    CHECK_OK(tcuda_graph_instantiate(graph));
    json = text_of(graph, tcuda_graph_data_json);
    const uint64_t exec = number_after(json, "\"exec_graph_id\": ");
    const char *const second = strstr(json, "\"index\": 1");
    CHECK(second != NULL);
    const uint64_t graph_id = number_after(second, "\"graph_id\": ");
    const uint64_t node_id = number_after(second, "\"node_id\": ");
    CHECK_EQ(graph_id, exec);
    if (exec != UINT64_MAX)
        CHECK_EQ(number_after(second, "\"tools_id\": "), exec << 32 | node_id);
    CHECK(exec != UINT64_MAX || !on_simulator());
    free(json);

    replay(graph, stream);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_EQ(calls, 1);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(other));
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* The annotations of each node, in its order. */
static void annotated(const char *json, int count, const char *const *expected)
{
    for (int index = 0; index < count; index++) {
        json = strstr(json, "\"annotations\": [");
        CHECK(json != NULL);
        json += strlen("\"annotations\": [");
        const size_t length = (size_t)(strchr(json, ']') - json);
        if (length != strlen(expected[index]) || memcmp(json, expected[index], length) != 0)
            fprintf(stderr, "node %d: expected [%s], got [%.*s]\n", index, expected[index],
                (int)length, json);
        CHECK_EQ(length, strlen(expected[index]));
        CHECK_EQ(memcmp(json, expected[index], length), 0);
    }
    CHECK(strstr(json, "\"annotations\": [") == NULL);
}

static void annotations_are_on_what_was_captured(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_stream *const side = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *const bytes = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    tcuda_graph *const graph = create_graph(1);
    /* Without a capture they do nothing. */
    CHECK_OK(tcuda_graph_annotation_push(stream, "nothing"));
    CHECK_OK(tcuda_graph_annotation_pop(stream));
    CHECK_OK(tcuda_graph_annotation_pop(NULL));

    begin(graph, stream);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_annotation_pop(stream));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_graph_annotation_push(stream, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_graph_annotation_push(stream, "\xff"));
    CHECK_OK(tcuda_graph_annotation_push(stream, "first"));
    fill_bytes(bytes, 1, 16, stream);
    CHECK_OK(tcuda_graph_annotation_pop(stream));
    fill_bytes(bytes, 2, 16, stream);
    CHECK_OK(tcuda_graph_annotation_push(stream, "outer \"<\xc3\xa9>\""));
    fill_bytes(bytes, 3, 16, stream);
    CHECK_OK(tcuda_stream_wait_stream(side, stream));
    CHECK_OK(tcuda_graph_annotation_push(stream, "inner"));
    fill_bytes(bytes, 4, 16, stream);
    /* No annotation began on that stream. */
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_annotation_pop(side));
    CHECK_OK(tcuda_graph_annotation_pop(stream));
    fill_bytes(bytes + 16, 5, 16, side);
    CHECK_OK(tcuda_stream_wait_stream(stream, side));
    CHECK_OK(tcuda_graph_annotation_pop(stream));
    fill_bytes(bytes, 6, 16, stream);
    /* Open at the end. */
    CHECK_OK(tcuda_graph_annotation_push(stream, "last"));
    fill_bytes(bytes, 7, 16, stream);
    end(graph);

    char *const json = text_of(graph, tcuda_graph_data_json);
    is_balanced(json);
    const char *const outer = "\"outer \\\"\\u003c\\u00e9\\u003e\\\"\"";
    char both[64];
    snprintf(both, sizeof both, "\"inner\", %s", outer);
    annotated(json, 7,
        (const char *const[]){ "\"first\"", "", outer, both, outer, "", "\"last\"" });
    free(json);
    char *const dot = text_of(graph, tcuda_graph_data_dot);
    has(dot, "n0 [label=\"memset\\n16 B\\nfirst\"];\n");
    has(dot, "\\nouter &#34;&#60;&#233;&#62;&#34;\"];\n");
    free(dot);

    /* A capture begins without those of the last. */
    CHECK_OK(tcuda_graph_reset(graph));
    begin(graph, stream);
    fill_bytes(bytes, 1, 16, stream);
    end(graph);
    char *const fresh = text_of(graph, tcuda_graph_data_json);
    annotated(fresh, 1, (const char *const[]){ "" });
    free(fresh);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(side));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* What another stream added behind the same node before the annotation began is not its own. */
static void earlier_branches_are_not_annotated(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_stream *const side = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *const bytes = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    tcuda_graph *const graph = create_graph(1);
    begin(graph, stream);
    fill_bytes(bytes, 1, 16, stream);
    CHECK_OK(tcuda_stream_wait_stream(side, stream));
    fill_bytes(bytes + 16, 2, 16, side);
    CHECK_OK(tcuda_graph_annotation_push(stream, "late"));
    fill_bytes(bytes, 3, 16, stream);
    CHECK_OK(tcuda_graph_annotation_pop(stream));
    CHECK_OK(tcuda_stream_wait_stream(stream, side));
    end(graph);
    char *const json = text_of(graph, tcuda_graph_data_json);
    annotated(json, 3, (const char *const[]){ "", "", "\"late\"" });
    free(json);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(side));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void export_data(void *user_data, tcuda_graph_event event, tcuda_graph *graph,
    template *native, executable *exec)
{
    CHECK(event == TCUDA_GRAPH_INSTANTIATED && native != NULL && exec != NULL);
    *(char **)user_data = text_of(graph, tcuda_graph_data_json);
}

/* A graph without a kept template has its data in the hooks up to its instantiation. */
static void hooks_see_the_data(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *const bytes = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    tcuda_graph *const graph = create_graph(0);
    char *json = NULL;
    size_t needed = 5;
    CHECK_OK(tcuda_graph_on_event(graph, TCUDA_GRAPH_INSTANTIATED, export_data, &json, NULL,
        NULL));
    begin(graph, stream);
    CHECK_OK(tcuda_graph_annotation_push(stream, "all"));
    fill_bytes(bytes, 1, PAGE, stream);
    end(graph);
    CHECK(json != NULL);
    annotated(json, 1, (const char *const[]){ "\"all\"" });
    free(json);
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_data_json(graph, NULL, 0, &needed));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_data_dot(graph, NULL, 0, &needed));
    CHECK_EQ(needed, 5);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static tcuda_graph *capturing(tcuda_stream *stream)
{
    tcuda_graph *graph = (tcuda_graph *)1;
    CHECK_OK(tcuda_graph_capturing(stream, &graph));
    return graph;
}

static void captured_streams_have_graphs(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_stream *const side = create_stream(TCUDA_CURRENT_DEVICE);
    unsigned char *const bytes = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    tcuda_graph *const graph = create_graph(0);
    CHECK(capturing(NULL) == NULL && capturing(stream) == NULL);
    begin(graph, stream);
    CHECK(capturing(stream) == graph && capturing(side) == NULL);
    fill_bytes(bytes, 1, PAGE, stream);
    CHECK_OK(tcuda_stream_wait_stream(side, stream));
    CHECK(capturing(side) == graph);
    CHECK_OK(tcuda_stream_wait_stream(stream, side));
    end(graph);
    CHECK(capturing(stream) == NULL && capturing(side) == NULL);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_graph_capturing(stream, NULL));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_stream_destroy(side));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static bool same_pool(tcuda_mem_pool *left, tcuda_mem_pool *right)
{
    uint64_t ids[4] = { 0, 0, 0, 0 };
    CHECK_OK(tcuda_mem_pool_id(left, &ids[0], &ids[1]));
    CHECK_OK(tcuda_mem_pool_id(right, &ids[2], &ids[3]));
    return ids[0] == ids[2] && ids[1] == ids[3];
}

/* Its own pool, and the one that an allocation in the capture came from. */
static void graphs_list_their_pools(void)
{
    tcuda_stream *const stream = create_stream(TCUDA_CURRENT_DEVICE);
    tcuda_graph *const graph = create_graph(0);
    tcuda_mem_pool *own = NULL, *other = NULL, *pools[3] = { NULL, NULL, NULL };
    size_t count = 9;
    CHECK_OK(tcuda_mem_pool_create(NULL, 0, &other));
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_graph_pools(graph, pools, 3, &count));
    begin(graph, stream);
    CHECK_OK(tcuda_mem_pool_begin(other, TCUDA_CURRENT_DEVICE));
    unsigned char *const bytes = allocate(PAGE, TCUDA_CURRENT_DEVICE, stream);
    CHECK_OK(tcuda_mem_pool_end(other, TCUDA_CURRENT_DEVICE));
    fill_bytes(bytes, 1, PAGE, stream);
    end(graph);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_graph_pools(graph, pools, 3, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_graph_pools(graph, NULL, 3, &count));
    CHECK(count == 9 && pools[0] == NULL);
    CHECK_OK(tcuda_graph_pools(graph, NULL, 0, &count));
    CHECK_EQ(count, 2);
    CHECK_OK(tcuda_graph_pools(graph, pools, 1, &count));
    CHECK(count == 2 && pools[0] != NULL && pools[1] == NULL);
    CHECK_OK(tcuda_mem_pool_destroy(pools[0]));
    CHECK_OK(tcuda_graph_pools(graph, pools, 3, &count));
    CHECK(count == 2 && pools[1] != NULL && pools[2] == NULL);
    CHECK_OK(tcuda_graph_pool(graph, &own));
    CHECK(same_pool(own, pools[0]) && same_pool(other, pools[1]));
    CHECK_OK(tcuda_mem_pool_destroy(pools[1]));
    CHECK_OK(tcuda_mem_pool_destroy(pools[0]));
    CHECK_OK(tcuda_mem_pool_destroy(own));
    CHECK_OK(tcuda_free(bytes));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_mem_pool_destroy(other));
    CHECK_OK(tcuda_stream_destroy(stream));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    CHECK_OK(tcuda_device_set(0));
    nodes_have_their_kinds_and_values();
    annotations_are_on_what_was_captured();
    earlier_branches_are_not_annotated();
    hooks_see_the_data();
    captured_streams_have_graphs();
    graphs_list_their_pools();
    return finish();
}
