/* Collective calls in captures: replayed with new inputs, in the order of the streams around them,
 * with memory that is the graph's. On the devices 0 and 1, or on one where there is no other that
 * reaches it. */
#define _POSIX_C_SOURCE 200809L

#include "graph.h"

enum { REPLAYS = 10, ROWS = 600, COLUMNS = 4, MOST = 2, TENSORS = 3 };
enum { COUNT = ROWS * COLUMNS, BYTES = COUNT * 4 };

static int32_t devices; /* 1 or 2 */
static tcuda_stream *streams[MOST];

typedef struct view {
    int64_t shape[2];
    tcuda_tensor tensor;
} view;

static void make_view(view *v, int32_t device, int64_t rows)
{
    v->shape[0] = rows;
    v->shape[1] = COLUMNS;
    v->tensor = (tcuda_tensor){
        .data = allocate((size_t)rows * COLUMNS * 4, device, streams[device]),
        .device = { TCUDA_DEVICE_CUDA, device }, .ndim = 2, .dtype = { TCUDA_DTYPE_INT, 32, 1 },
        .shape = v->shape };
}

static uint32_t value_of(uint32_t number, size_t i)
{
    return number * 2654435761u + (uint32_t)i * 40503u;
}

static void write_view(const view *v, uint32_t number)
{
    const size_t count = (size_t)v->shape[0] * COLUMNS;
    void *ptr = NULL;
    CHECK_OK(tcuda_host_malloc(count * 4, &ptr));
    uint32_t *const staged = ptr;
    for (size_t i = 0; i < count; i++)
        staged[i] = value_of(number, i);
    CHECK_OK(tcuda_copy(v->tensor.data, staged, count * 4, streams[v->tensor.device.device_id]));
    CHECK_OK(tcuda_host_free(staged));
}

/* Element i is element first + i of the sum of `parts` tensors from `number` on. */
static void check_bytes(const void *data, int32_t device, size_t count, size_t first,
    uint32_t number, uint32_t parts)
{
    uint32_t *const host = malloc(count * 4);
    CHECK(host != NULL);
    CHECK_OK(tcuda_copy(host, data, count * 4, streams[device]));
    CHECK_OK(tcuda_stream_synchronize(streams[device]));
    for (size_t i = 0; i < count; i++) {
        uint32_t expected = 0;
        for (uint32_t part = 0; part < parts; part++)
            expected += value_of(number + part, first + i);
        CHECK_EQ(host[i], expected);
    }
    free(host);
}

static const void *start_of(const tcuda_tensor *tensor)
{
    return (const unsigned char *)tensor->data + tensor->byte_offset;
}

/* ---- A verb: makes its tensors, is called, in captures too, and checks the result ---- */

typedef struct verb {
    void (*call)(void);
    void (*check)(uint32_t number);
    size_t inputs;       /* of them the first on device 0 */
    bool one_for_each;   /* or one for each device */
    bool fills_in;       /* outs that the library allocates */
} verb;

static view in[MOST * TENSORS], out[MOST];
static tcuda_tensor inputs[MOST * TENSORS], outs[MOST * TENSORS];
static size_t num_outs;
static const int32_t list[MOST] = { 0, 1 };

static size_t num_devices_used(void)
{
    return (size_t)devices;
}

static void broadcast_into(void)
{
    const tcuda_tensor to[MOST] = { out[0].tensor, out[1].tensor };
    CHECK_OK(tcuda_comm_broadcast_into(&inputs[0], to, num_devices_used()));
}

static void check_broadcast(uint32_t number)
{
    for (int32_t device = 0; device < devices; device++)
        check_bytes(out[device].tensor.data, device, COUNT, 0, number, 1);
}

static void reduce_add_into(void)
{
    CHECK_OK(tcuda_comm_reduce_add_into(inputs, num_devices_used(), &out[0].tensor));
}

static void check_sum(uint32_t number)
{
    check_bytes(out[0].tensor.data, 0, COUNT, 0, number, (uint32_t)devices);
}

/* Halves of the outs. */
static int64_t half_shape[2] = { 0, COLUMNS };

static tcuda_tensor half(int32_t device)
{
    tcuda_tensor tensor = out[device].tensor;
    half_shape[0] = ROWS / devices;
    tensor.shape = half_shape;
    return tensor;
}

static void scatter_into(void)
{
    const tcuda_tensor to[MOST] = { half(0), half(devices - 1) };
    CHECK_OK(tcuda_comm_scatter_into(&inputs[0], to, num_devices_used(), 0, NULL));
}

static void check_halves(uint32_t number)
{
    const size_t count = COUNT / num_devices_used();
    for (int32_t device = 0; device < devices; device++)
        check_bytes(out[device].tensor.data, device, count, (size_t)device * count, number, 1);
}

static tcuda_tensor whole;
static int64_t whole_shape[2] = { 0, COLUMNS };

static void gather_into(void)
{
    CHECK_OK(tcuda_comm_gather_into(inputs, num_devices_used(), 0, &whole));
}

static void check_whole(uint32_t number)
{
    for (uint32_t part = 0; part < (uint32_t)devices; part++)
        check_bytes((unsigned char *)whole.data + part * (size_t)BYTES, 0, COUNT, 0,
            number + part, 1);
}

/* What the library allocated in the capture is the graph's: it is copied to our memory there. */
static void keep(size_t tensor, int32_t device)
{
    CHECK_OK(tcuda_copy(out[device].tensor.data, start_of(&outs[tensor]), BYTES, streams[device]));
}

static void broadcast(void)
{
    num_outs = num_devices_used();
    CHECK_OK(tcuda_comm_broadcast(&inputs[0], list, num_outs, outs));
    for (int32_t device = 0; device < devices; device++)
        keep((size_t)device, device);
}

static void broadcast_coalesced(void)
{
    num_outs = num_devices_used() * TENSORS;
    CHECK_OK(tcuda_comm_broadcast_coalesced(inputs, TENSORS, list, num_devices_used(), 0, outs));
    for (int32_t device = 0; device < devices; device++)
        keep((size_t)device * TENSORS, device);
}

static void reduce_add(void)
{
    num_outs = 1;
    CHECK_OK(tcuda_comm_reduce_add(inputs, num_devices_used(), 0, outs));
    keep(0, 0);
}

static const verb verbs[] = {
    { broadcast_into, check_broadcast, 1, false, false },
    { reduce_add_into, check_sum, 1, true, false },
    { scatter_into, check_halves, 1, false, false },
    { gather_into, check_whole, 1, true, false },
    { broadcast, check_broadcast, 1, false, true },
    { broadcast_coalesced, check_broadcast, TENSORS, false, true },
    { reduce_add, check_sum, 1, true, true },
};

static size_t num_inputs(const verb *v)
{
    return v->one_for_each ? num_devices_used() : v->inputs;
}

static void write_inputs(const verb *v, uint32_t number)
{
    for (size_t i = 0; i < num_inputs(v); i++)
        write_view(&in[i], number + (uint32_t)i);
}

static void release_outs(void)
{
    for (size_t i = 0; i < num_outs; i++)
        CHECK_OK(tcuda_tensor_release(&outs[i]));
    num_outs = 0;
}

/* The streams of other devices come after the work of the graph, which is launched on that of
 * device 0. */
static void join_streams(void)
{
    for (int32_t device = 1; device < devices; device++)
        CHECK_OK(tcuda_stream_wait_stream(streams[device], streams[0]));
}

static void fork_streams(void)
{
    for (int32_t device = 1; device < devices; device++)
        CHECK_OK(tcuda_stream_wait_stream(streams[0], streams[device]));
}

/* Replays make what a call makes, each time of what the inputs are then. */
static void a_verb_is_replayed(const verb *v)
{
    for (size_t i = 0; i < num_inputs(v); i++) {
        make_view(&in[i], v->one_for_each ? (int32_t)i : 0, ROWS);
        inputs[i] = in[i].tensor;
    }
    for (int32_t device = 0; device < devices; device++)
        make_view(&out[device], device, ROWS);
    whole_shape[0] = (int64_t)ROWS * devices;
    whole = in[0].tensor;
    whole.data = allocate((size_t)devices * BYTES, 0, streams[0]);
    whole.shape = whole_shape;
    /* What is loaded, or enabled, at first use cannot be so in a capture. */
    write_inputs(v, 1);
    v->call();
    v->check(1);
    release_outs();

    tcuda_graph *const graph = create_graph(0);
    begin(graph, streams[0]);
    v->call();
    /* Only the capture itself waits for its streams: they come together in its first one. */
    fork_streams();
    end(graph);
    release_outs();
    /* New allocations get no memory that the graph writes. */
    void *others[MOST][4];
    for (int32_t device = 0; device < devices; device++)
        for (size_t i = 0; i < 4; i++) {
            others[device][i] = allocate(BYTES, device, streams[device]);
            fill_bytes(others[device][i], 0x5A, BYTES, streams[device]);
        }
    for (uint32_t turn = 0; turn < REPLAYS; turn++) {
        const uint32_t number = 1000 * (turn + 1);
        write_inputs(v, number);
        for (int32_t device = 0; device < devices; device++)
            fill_bytes(out[device].tensor.data, 0xEE, BYTES, streams[device]);
        fork_streams();
        replay(graph, streams[0]);
        join_streams();
        /* At the next replay they are written anew: that comes after this one has read them. */
        v->check(number);
    }
    for (int32_t device = 0; device < devices; device++)
        for (size_t i = 0; i < 4; i++) {
            CHECK_EQ(count_other_bytes(others[device][i], 0x5A, BYTES, streams[device]), 0);
            CHECK_OK(tcuda_free(others[device][i]));
        }
    CHECK_OK(tcuda_graph_destroy(graph));
    for (size_t i = 0; i < num_inputs(v); i++)
        CHECK_OK(tcuda_free(in[i].tensor.data));
    for (int32_t device = 0; device < devices; device++)
        CHECK_OK(tcuda_free(out[device].tensor.data));
    CHECK_OK(tcuda_free(whole.data));
}

/* A capture goes on after a call that is refused, and what is captured before and after it is
 * whole. */
static void what_is_refused_breaks_no_capture(void)
{
    int64_t other[2] = { ROWS + 1, COLUMNS };
    make_view(&in[0], 0, ROWS);
    make_view(&out[0], 0, ROWS);
    tcuda_tensor bad = out[0].tensor;
    bad.shape = other;
    tcuda_graph *const graph = create_graph(0);
    begin(graph, streams[0]);
    CHECK_OK(tcuda_comm_broadcast_into(&in[0].tensor, &out[0].tensor, 1));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_comm_broadcast_into(&in[0].tensor, &bad, 1));
    CHECK(is_capturing(streams[0]));
    end(graph);
    write_view(&in[0], 77);
    replay(graph, streams[0]);
    check_bytes(out[0].tensor.data, 0, COUNT, 0, 77, 1);
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_free(in[0].tensor.data));
    CHECK_OK(tcuda_free(out[0].tensor.data));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    devices = 1;
    if (num_devices() > 1) {
        bool there = false, back = false;
        CHECK_OK(tcuda_device_can_access_peer(0, 1, &there));
        CHECK_OK(tcuda_device_can_access_peer(1, 0, &back));
        devices = there && back ? MOST : 1;
    }
    for (int32_t device = 0; device < devices; device++) {
        streams[device] = create_stream(device);
        CHECK_OK(tcuda_stream_set_current(streams[device]));
    }
    CHECK_OK(tcuda_device_set(0));
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        a_verb_is_replayed(&verbs[i]);
    what_is_refused_breaks_no_capture();
    for (int32_t device = 0; device < devices; device++) {
        CHECK_OK(tcuda_device_synchronize(device));
        CHECK_OK(tcuda_stream_destroy(streams[device]));
    }
    return finish();
}
