/* Streams: their attributes, callbacks, events and captures, and the default stream of a thread. */
#include <stdatomic.h>

#include "driver.h"

/* CUstreamAttrValue */
union attribute {
    char bytes[64];
    struct {
        void *base;
        size_t bytes;
        float ratio;
        int hit, miss;
    } window;
    int number;
};

#define FUNCTIONS(F) \
    F(init, "cuInit", (unsigned int flags)) \
    F(retain, "cuDevicePrimaryCtxRetain", (void **context, int device)) \
    F(release, "cuDevicePrimaryCtxRelease_v2", (int device)) \
    F(set_current, "cuCtxSetCurrent", (void *context)) \
    F(allocate, "cuMemAlloc_v2", (address *ptr, size_t bytes)) \
    F(free_memory, "cuMemFree_v2", (address ptr)) \
    F(fill, "cuMemsetD32Async", (address ptr, unsigned int value, size_t count, void *stream)) \
    F(to_host, "cuMemcpyDtoH_v2", (void *dst, address src, size_t bytes)) \
    F(to_device_own, "cuMemcpyHtoD_v2_ptds", (address dst, const void *src, size_t bytes)) \
    F(fill_own, "cuMemsetD32Async_ptsz", \
        (address ptr, unsigned int value, size_t count, void *stream)) \
    F(create, "cuStreamCreate", (void **stream, unsigned int flags)) \
    F(create_with, "cuStreamCreateWithPriority", \
        (void **stream, unsigned int flags, int priority)) \
    F(destroy, "cuStreamDestroy_v2", (void *stream)) \
    F(synchronize, "cuStreamSynchronize", (void *stream)) \
    F(synchronize_own, "cuStreamSynchronize_ptsz", (void *stream)) \
    F(flags_of, "cuStreamGetFlags", (void *stream, unsigned int *flags)) \
    F(priority_of, "cuStreamGetPriority", (void *stream, int *priority)) \
    F(id_of, "cuStreamGetId", (void *stream, uint64_t *id)) \
    F(id_of_own, "cuStreamGetId_ptsz", (void *stream, uint64_t *id)) \
    F(device_of, "cuStreamGetDevice", (void *stream, int *device)) \
    F(get, "cuStreamGetAttribute", (void *stream, int id, union attribute *value)) \
    F(set, "cuStreamSetAttribute", (void *stream, int id, const union attribute *value)) \
    F(copy_attributes, "cuStreamCopyAttributes", (void *dst, void *src)) \
    F(context_of, "cuStreamGetCtx_v2", (void *stream, void **context, void **green)) \
    F(create_context, "cuCtxCreate_v2", (void **context, unsigned int flags, int device)) \
    F(destroy_context, "cuCtxDestroy_v2", (void *context)) \
    F(create_event, "cuEventCreate", (void **event, unsigned int flags)) \
    F(destroy_event, "cuEventDestroy_v2", (void *event)) \
    F(record, "cuEventRecord", (void *event, void *stream)) \
    F(query_event, "cuEventQuery", (void *event)) \
    F(await_event, "cuEventSynchronize", (void *event)) \
    F(elapsed, "cuEventElapsedTime_v2", (float *milliseconds, void *start, void *end)) \
    F(record_all, "cuCtxRecordEvent", (void *context, void *event)) \
    F(wait_all, "cuCtxWaitEvent", (void *context, void *event)) \
    F(capturing, "cuStreamIsCapturing", (void *stream, int *status)) \
    F(call_back, "cuStreamAddCallback", \
        (void *stream, void (*function)(void *, int, void *), void *data, unsigned int flags)) \
    F(begin, "cuStreamBeginCapture_v2", (void *stream, int mode)) \
    F(begin_in, "cuStreamBeginCaptureToGraph", \
        (void *stream, void *graph, void *const *nodes, const void *data, size_t count, \
            int mode)) \
    F(end, "cuStreamEndCapture", (void *stream, void **graph)) \
    F(info, "cuStreamGetCaptureInfo_v2", \
        (void *stream, int *status, uint64_t *id, void **graph, void *const **nodes, \
            size_t *count)) \
    F(info_with_data, "cuStreamGetCaptureInfo_v3", \
        (void *stream, int *status, uint64_t *id, void **graph, void *const **nodes, \
            const uint64_t **data, size_t *count)) \
    F(depend, "cuStreamUpdateCaptureDependencies", \
        (void *stream, void **nodes, size_t count, unsigned int flags)) \
    F(nodes_of, "cuGraphGetNodes", (void *graph, void **nodes, size_t *count)) \
    F(edges_of, "cuGraphGetEdges", (void *graph, void **from, void **to, size_t *count)) \
    F(destroy_graph, "cuGraphDestroy", (void *graph)) \
    F(find, "cuGetProcAddress_v2", \
        (const char *name, void **function, int version, uint64_t flags, int *status))

FUNCTIONS(DECLARE)

enum {
    ILLEGAL_STATE = 401,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURED_EVENT = 907,
    BYTES = 256
};

static address memory;

static void creation(void)
{
    void *stream = NULL;
    unsigned int flags = 9;
    int number = 9;
    CHECK_EQ(create(&stream, 1), SUCCESS);
    CHECK_EQ(flags_of(stream, &flags), SUCCESS);
    CHECK_EQ(flags, 1);
    CHECK_EQ(priority_of(stream, &number), SUCCESS);
    CHECK_EQ(number, 0);
    number = 9;
    CHECK_EQ(device_of(stream, &number), SUCCESS);
    CHECK_EQ(number, 0);
    CHECK_EQ(device_of(NULL, &number), SUCCESS);
    CHECK_EQ(destroy(stream), SUCCESS);
    CHECK_EQ(create(NULL, 0), INVALID_VALUE);
    CHECK_EQ(create(&stream, 2), INVALID_VALUE);
}

static void attributes(void)
{
    /* CU_LAUNCH_ATTRIBUTE_... */
    enum { WINDOW = 1, COOPERATIVE = 2, POLICY = 3, PRIORITY = 8, DOMAIN = 10 };
    union attribute value = {{0}};
    void *first = NULL, *second = NULL;
    CHECK_EQ(create_with(&first, 1, -1), SUCCESS);
    CHECK_EQ(create(&second, 1), SUCCESS);
    value.number = 3;
    CHECK_EQ(set(first, POLICY, &value), SUCCESS);
    value.number = 0;
    CHECK_EQ(get(first, POLICY, &value), SUCCESS);
    CHECK_EQ(value.number, 3);
    memset(&value, 0, sizeof value);
    value.window.base = (void *)(uintptr_t)memory;
    value.window.bytes = BYTES;
    value.window.ratio = 0.5F;
    CHECK_EQ(set(first, WINDOW, &value), SUCCESS);
    CHECK_EQ(copy_attributes(second, first), SUCCESS);
    memset(&value, 0, sizeof value);
    CHECK_EQ(get(second, WINDOW, &value), SUCCESS);
    CHECK(value.window.base == (void *)(uintptr_t)memory);
    CHECK_EQ(value.window.bytes, BYTES);
    CHECK_EQ(get(second, POLICY, &value), SUCCESS);
    CHECK_EQ(value.number, 3);
    CHECK_EQ(get(first, PRIORITY, &value), SUCCESS);
    CHECK_EQ(value.number, -1);
    CHECK_EQ(get(first, DOMAIN, &value), SUCCESS);
    CHECK_EQ(value.number, 0);
    CHECK_EQ(get(first, COOPERATIVE, &value), INVALID_VALUE);
    CHECK_EQ(destroy(first), SUCCESS);
    CHECK_EQ(destroy(second), SUCCESS);
}

static atomic_int calls;
static void *called_for;

static void count(void *stream, int status, void *data)
{
    called_for = stream;
    atomic_fetch_add(&calls, status == SUCCESS ? *(int *)data : 1000);
}

static void callbacks(void)
{
    int one = 1, two = 2;
    void *stream = NULL, *graph = &one;
    CHECK_EQ(create(&stream, 0), SUCCESS);
    CHECK_EQ(call_back(stream, count, &one, 0), SUCCESS);
    CHECK_EQ(fill(memory, 1, 1, stream), SUCCESS);
    CHECK_EQ(call_back(stream, count, &two, 0), SUCCESS);
    CHECK_EQ(synchronize(stream), SUCCESS);
    CHECK_EQ(atomic_load(&calls), 3);
    CHECK(called_for == stream);
    CHECK_EQ(call_back(stream, count, &one, 1), INVALID_VALUE);
    CHECK_EQ(call_back(stream, NULL, &one, 0), INVALID_VALUE);
    /* It cannot be captured. */
    CHECK_EQ(begin(stream, 0), SUCCESS);
    CHECK(call_back(stream, count, &one, 0) != SUCCESS);
    CHECK(end(stream, &graph) != SUCCESS);
    CHECK(graph == NULL);
    CHECK_EQ(destroy(stream), SUCCESS);
}

static void captures(void)
{
    void *stream = NULL, *graph = NULL, *now = NULL, *nodes[4] = {NULL};
    void *const *ends = NULL;
    size_t number = 0;
    uint64_t id = 0;
    int status = 0;
    CHECK_EQ(create(&stream, 1), SUCCESS);
    CHECK_EQ(depend(stream, NULL, 0, 1), ILLEGAL_STATE);
    CHECK_EQ(begin(stream, 0), SUCCESS);
    CHECK_EQ(fill(memory, 1, 1, stream), SUCCESS);
    CHECK_EQ(info(stream, &status, &id, &graph, &ends, &number), SUCCESS);
    CHECK_EQ(number, 1);
    nodes[0] = ends[0];
    /* The next operation depends on nothing, the last on both. */
    CHECK_EQ(depend(stream, NULL, 0, 1), SUCCESS);
    CHECK_EQ(fill(memory + 4, 1, 1, stream), SUCCESS);
    CHECK_EQ(depend(stream, nodes, 1, 0), SUCCESS);
    CHECK_EQ(info(stream, &status, &id, &graph, &ends, &number), SUCCESS);
    CHECK_EQ(number, 2);
    CHECK_EQ(fill(memory + 8, 1, 1, stream), SUCCESS);
    CHECK_EQ(end(stream, &graph), SUCCESS);
    number = 0;
    CHECK_EQ(edges_of(graph, NULL, NULL, &number), SUCCESS);
    CHECK_EQ(number, 2);
    /* A capture adds to the graph. */
    CHECK_EQ(begin_in(stream, graph, nodes, NULL, 1, 0), SUCCESS);
    CHECK_EQ(fill(memory + 12, 1, 1, stream), SUCCESS);
    CHECK_EQ(end(stream, &now), SUCCESS);
    CHECK(now == graph);
    CHECK_EQ(nodes_of(graph, NULL, &number), SUCCESS);
    CHECK_EQ(number, 4);
    CHECK_EQ(edges_of(graph, NULL, NULL, &number), SUCCESS);
    CHECK_EQ(number, 3);
    CHECK_EQ(destroy_graph(graph), SUCCESS);
    CHECK_EQ(destroy(stream), SUCCESS);
}

static void captures_have_data(void)
{
    void *stream = NULL, *graph = NULL, *const none = &graph;
    void *const *nodes = none;
    const uint64_t *data = none;
    uint64_t id = 9;
    size_t number = 9;
    int status = 9;
    CHECK_EQ(create(&stream, 1), SUCCESS);
    CHECK_EQ(info_with_data(stream, &status, &id, &graph, &nodes, &data, &number), SUCCESS);
    CHECK(status == 0 && id == 9 && nodes == none && data == none && number == 9);
    CHECK_EQ(begin(stream, 0), SUCCESS);
    CHECK_EQ(info_with_data(stream, &status, &id, &graph, &nodes, &data, &number), SUCCESS);
    CHECK(status == 1 && number == 0);
    CHECK_EQ(fill(memory, 1, 1, stream), SUCCESS);
    CHECK_EQ(info_with_data(stream, &status, &id, &graph, &nodes, &data, &number), SUCCESS);
    CHECK_EQ(number, 1);
    CHECK(nodes[0] != NULL);
    CHECK_EQ(data[0], 0);
    CHECK_EQ(info_with_data(stream, &status, NULL, NULL, NULL, NULL, NULL), SUCCESS);
    CHECK_EQ(info_with_data(stream, &status, NULL, NULL, NULL, &data, NULL), INVALID_VALUE);
    CHECK_EQ(info_with_data(stream, NULL, NULL, NULL, NULL, NULL, NULL), INVALID_VALUE);
    CHECK_EQ(end(stream, &graph), SUCCESS);
    CHECK_EQ(destroy_graph(graph), SUCCESS);
    CHECK_EQ(destroy(stream), SUCCESS);
}

static void contexts_of_streams(void *context)
{
    void *stream = NULL, *found = &stream, *green = &stream;
    CHECK_EQ(create(&stream, 0), SUCCESS);
    CHECK_EQ(context_of(stream, &found, &green), SUCCESS);
    CHECK(found == context && green == NULL);
    found = green = &stream;
    CHECK_EQ(context_of(NULL, &found, NULL), SUCCESS);
    CHECK(found == context);
    CHECK_EQ(context_of(stream, NULL, &green), SUCCESS);
    CHECK(green == NULL);
    CHECK_EQ(context_of(stream, NULL, NULL), INVALID_VALUE);
    CHECK_EQ(destroy(stream), SUCCESS);
}

static void times(void)
{
    void *stream = NULL, *events[3] = {NULL};
    float milliseconds = -1;
    CHECK_EQ(create(&stream, 1), SUCCESS);
    /* The last one has no time. */
    for (int i = 0; i < 3; i++)
        CHECK_EQ(create_event(&events[i], i == 2 ? 2 : 0), SUCCESS);
    CHECK_EQ(elapsed(&milliseconds, events[0], events[1]), INVALID_HANDLE);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(record(events[i], stream), SUCCESS);
    CHECK_EQ(synchronize(stream), SUCCESS);
    CHECK_EQ(elapsed(&milliseconds, events[0], events[2]), INVALID_HANDLE);
    CHECK_EQ(elapsed(&milliseconds, NULL, events[1]), INVALID_HANDLE);
    CHECK_EQ(elapsed(NULL, events[0], events[1]), INVALID_HANDLE);
    CHECK(milliseconds == -1);
    CHECK_EQ(elapsed(&milliseconds, events[0], events[1]), SUCCESS);
    CHECK(milliseconds >= 0 && milliseconds < 10000);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(destroy_event(events[i]), SUCCESS);
    CHECK_EQ(destroy(stream), SUCCESS);
}

/* During a capture on this stream, a call about its context. */
static void refuse_captured(void *stream, int (*call)(void *, void *), void *context, void *event)
{
    void *graph = &graph;
    int status = 0;
    CHECK_EQ(call(context, event), CAPTURE_UNSUPPORTED);
    CHECK_EQ(capturing(stream, &status), SUCCESS);
    CHECK_EQ(status, 2);
    CHECK_EQ(end(stream, &graph), CAPTURE_INVALIDATED);
    CHECK(graph == NULL);
}

static void events_of_contexts(void *context)
{
    void *stream = NULL, *other = NULL, *graph = NULL;
    void *event = NULL, *never = NULL, *foreign = NULL;
    int status = 0;
    CHECK_EQ(create_context(&other, 0, 0), SUCCESS);
    CHECK_EQ(create_event(&foreign, 0), SUCCESS);
    CHECK_EQ(set_current(context), SUCCESS);
    CHECK_EQ(create(&stream, 1), SUCCESS);
    CHECK_EQ(create_event(&event, 0), SUCCESS);
    CHECK_EQ(create_event(&never, 0), SUCCESS);
    CHECK_EQ(fill(memory, 1, BYTES / 4, stream), SUCCESS);
    CHECK_EQ(record_all(context, event), SUCCESS);
    CHECK_EQ(wait_all(context, event), SUCCESS);
    CHECK_EQ(await_event(event), SUCCESS);
    CHECK_EQ(query_event(event), SUCCESS);
    CHECK_EQ(wait_all(context, never), SUCCESS);
    CHECK_EQ(wait_all(context, foreign), SUCCESS);
    /* Only an event of the context can be recorded in it, whatever context is current. */
    CHECK_EQ(record_all(context, foreign), INVALID_HANDLE);
    CHECK_EQ(record_all(other, event), INVALID_HANDLE);
    CHECK_EQ(record_all(other, foreign), SUCCESS);
    CHECK_EQ(wait_all(other, event), SUCCESS);
    CHECK_EQ(record_all(NULL, event), INVALID_CONTEXT);
    CHECK_EQ(wait_all(NULL, NULL), INVALID_CONTEXT);
    CHECK_EQ(record_all(context, NULL), INVALID_HANDLE);
    CHECK_EQ(wait_all(context, NULL), INVALID_HANDLE);
    for (int mode = 0; mode < 3; mode++) {
        CHECK_EQ(begin(stream, mode), SUCCESS);
        refuse_captured(stream, record_all, context, event);
        CHECK_EQ(begin(stream, mode), SUCCESS);
        refuse_captured(stream, wait_all, context, event);
    }
    /* Other contexts are not concerned, unless the event is captured. */
    CHECK_EQ(begin(stream, 0), SUCCESS);
    CHECK_EQ(record_all(other, foreign), SUCCESS);
    CHECK_EQ(wait_all(other, foreign), SUCCESS);
    CHECK_EQ(capturing(stream, &status), SUCCESS);
    CHECK_EQ(status, 1);
    CHECK_EQ(record(never, stream), SUCCESS);
    CHECK_EQ(wait_all(other, never), CAPTURED_EVENT);
    CHECK_EQ(end(stream, &graph), CAPTURE_INVALIDATED);
    CHECK_EQ(destroy_event(event), SUCCESS);
    CHECK_EQ(destroy_event(never), SUCCESS);
    CHECK_EQ(destroy(stream), SUCCESS);
    CHECK_EQ(destroy_context(other), SUCCESS);
}

/* CU_STREAM_LEGACY, CU_STREAM_PER_THREAD */
static void *const legacy = (void *)1, *const own = (void *)2;

static void own_default_streams(void)
{
    const uint32_t word = 7;
    uint32_t found[2] = {0, 0};
    uint64_t of_legacy = 0, of_own = 0, id = 0;
    int (*found_id)(void *stream, uint64_t *id) = NULL;
    void *function = NULL;
    int status = 9;
    CHECK_EQ(id_of(legacy, &of_legacy), SUCCESS);
    CHECK_EQ(id_of(own, &of_own), SUCCESS);
    CHECK(of_legacy != of_own);
    CHECK_EQ(id_of(NULL, &id), SUCCESS);
    CHECK(id == of_legacy);
    CHECK_EQ(id_of_own(NULL, &id), SUCCESS);
    CHECK(id == of_own);
    CHECK_EQ(id_of_own(legacy, &id), SUCCESS);
    CHECK(id == of_legacy);
    CHECK_EQ(fill_own(memory, 5, 2, NULL), SUCCESS);
    CHECK_EQ(to_device_own(memory + 4, &word, sizeof word), SUCCESS);
    CHECK_EQ(synchronize_own(NULL), SUCCESS);
    CHECK_EQ(to_host(found, memory, sizeof found), SUCCESS);
    CHECK_EQ(found[0], 5);
    CHECK_EQ(found[1], 7);
    /* The search by name has a flag for them: 1 is for the legacy stream, 2 for the thread's. */
    for (uint64_t flags = 0; flags < 3; flags++) {
        CHECK_EQ(find("cuStreamGetId", &function, 12000, flags, &status), SUCCESS);
        CHECK_EQ(status, 0);
        memcpy(&found_id, &function, sizeof function);
        CHECK_EQ(found_id(NULL, &id), SUCCESS);
        CHECK(id == (flags == 2 ? of_own : of_legacy));
    }
    CHECK_EQ(find("cuMemAlloc", &function, 12000, 2, &status), SUCCESS);
}

int main(void)
{
    void *context = NULL, *stream = NULL;
    open_the_driver();
    FUNCTIONS(LOAD)
    CHECK_EQ(create(&stream, 0), NOT_INITIALIZED);
    CHECK_EQ(init(0), SUCCESS);
    CHECK_EQ(create(&stream, 0), INVALID_CONTEXT);
    CHECK_EQ(retain(&context, 0), SUCCESS);
    CHECK_EQ(set_current(context), SUCCESS);
    CHECK_EQ(allocate(&memory, BYTES), SUCCESS);
    creation();
    attributes();
    callbacks();
    captures();
    captures_have_data();
    contexts_of_streams(context);
    times();
    events_of_contexts(context);
    own_default_streams();
    CHECK_EQ(free_memory(memory), SUCCESS);
    CHECK_EQ(set_current(NULL), SUCCESS);
    CHECK_EQ(release(0), SUCCESS);
    return EXIT_SUCCESS;
}
