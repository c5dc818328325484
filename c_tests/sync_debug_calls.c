/* Every function that queues, frees or waits, in sync debug mode 2 while a stream is held back: it
 * does not wait, or is refused, or is documented to wait. tests/observed.rs checks that none is
 * missing. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

enum { BYTES = 4096, FLOATS = BYTES / 4, MIB = 1 << 20 };

static tcuda_stream *held, *other;
static tcuda_event *event, *recorded;
static float *a, *b, *pinned;
static float pageable[FLOATS];
static tcuda_jit *jit;
static tcuda_kernel *kernel;
static tcuda_graph *ready, *kept;
static tcuda_mem_pool *pool;
static int64_t shape = FLOATS, part = FLOATS / 2;

static tcuda_tensor tensor(void *data, int32_t type)
{
    const tcuda_tensor made = { .data = data, .device = { type, 0 }, .ndim = 1,
        .dtype = { TCUDA_DTYPE_FLOAT, 32, 1 }, .shape = &shape };
    return made;
}

static tcuda_tensor on_device(void *data) { return tensor(data, TCUDA_DEVICE_CUDA); }

static tcuda_status released(tcuda_status status, tcuda_tensor *outs, size_t count)
{
    for (size_t i = 0; status == TCUDA_STATUS_OK && i < count; i++)
        status = tcuda_tensor_release(&outs[i]);
    return status;
}

#define CALL(name) static tcuda_status call_##name(void)

/* ---- Streams, events, copies ---- */

CALL(stream_query) { bool b; return tcuda_stream_query(held, &b); }
CALL(stream_synchronize) { return tcuda_stream_synchronize(held); }
CALL(stream_wait_event) { return tcuda_stream_wait_event(other, recorded); }
CALL(stream_wait_stream) { return tcuda_stream_wait_stream(other, held); }
CALL(stream_record_event) { return tcuda_stream_record_event(held, event); }
CALL(stream_record_new_event)
{
    tcuda_event *made;
    const tcuda_status status = tcuda_stream_record_new_event(held, 0, &made);
    return status == TCUDA_STATUS_OK ? tcuda_event_destroy(made) : status;
}
static void nothing(void *user_data) { (void)user_data; }
CALL(stream_add_callback) { return tcuda_stream_add_callback(held, nothing, NULL, NULL); }
CALL(stream_destroy)
{
    tcuda_stream *made = create_stream(0);
    CHECK_OK(tcuda_stream_wait_stream(made, held));
    return tcuda_stream_destroy(made);
}
CALL(event_record) { return tcuda_event_record(event, held); }
CALL(event_query) { bool b; return tcuda_event_query(recorded, &b); }
CALL(event_wait) { return tcuda_event_wait(recorded, other); }
CALL(event_elapsed_ms) { float ms; return tcuda_event_elapsed_ms(recorded, event, &ms); }
CALL(event_destroy)
{
    tcuda_event *made = create_event(0);
    CHECK_OK(tcuda_event_record(made, held));
    return tcuda_event_destroy(made);
}
CALL(event_ipc_handle)
{
    tcuda_event *made = create_event(TCUDA_EVENT_INTERPROCESS);
    tcuda_ipc_event_handle handle;
    const tcuda_status status = tcuda_event_ipc_handle(made, &handle);
    CHECK_OK(tcuda_event_destroy(made));
    return status;
}
CALL(copy) { return tcuda_copy(b, a, BYTES, held); }
CALL(copy_pinned) { return tcuda_copy(pinned, a, BYTES, held); }
CALL(copy_pageable) { return tcuda_copy(pageable, a, BYTES, held); }
CALL(copy_from_pageable) { return tcuda_copy(a, pageable, BYTES, held); }
CALL(copy_2d) { return tcuda_copy_2d(b, 64, a, 64, 32, 4, held); }
CALL(copy_2d_pageable) { return tcuda_copy_2d(pageable, 64, a, 64, 32, 4, held); }
CALL(fill) { const char byte = 1; return tcuda_fill(a, &byte, 1, BYTES, held); }

/* ---- Memory ---- */

CALL(malloc)
{
    void *made;
    const tcuda_status status = tcuda_malloc(3 * MIB, 0, held, &made);
    return status == TCUDA_STATUS_OK ? tcuda_free(made) : status;
}
CALL(record_stream)
{
    void *made = allocate(2 * MIB, 0, other);
    CHECK_OK(tcuda_record_stream(made, held));
    return tcuda_free(made);
}
CALL(allocation_create)
{
    tcuda_allocation *made;
    const tcuda_status status = tcuda_allocation_create(BYTES, 0, held, &made);
    return status == TCUDA_STATUS_OK ? tcuda_allocation_destroy(made) : status;
}
CALL(memory_empty_cache) { return tcuda_memory_empty_cache(); }
CALL(mem_pool_sleep) { return tcuda_mem_pool_sleep(pool, 0); }
CALL(mem_pool_wake) { return tcuda_mem_pool_wake(pool); }
CALL(mem_pool_destroy)
{
    tcuda_mem_pool *made;
    CHECK_OK(tcuda_mem_pool_create(NULL, 0, &made));
    CHECK_OK(tcuda_mem_pool_begin(made, 0));
    void *const block = allocate(BYTES, 0, held);
    CHECK_OK(tcuda_mem_pool_end(made, 0));
    CHECK_OK(tcuda_free(block));
    return tcuda_mem_pool_destroy(made);
}
CALL(malloc_native)
{
    struct CUstream_st *const native = native_of(held);
    void *made = NULL;
    CHECK_OK(tcuda_malloc_native(BYTES, 0, native, &made));
    CHECK_OK(tcuda_free_on(made, native));
    CHECK_OK(tcuda_malloc_native_aligned(BYTES, 512, 0, native, &made));
    return tcuda_free_on(made, native_of(other));
}
CALL(ort_malloc)
{
    void *const made = tcuda_ort_malloc(BYTES);
    CHECK(made != NULL);
    tcuda_ort_free(made);
    tcuda_ort_empty_cache();
    return TCUDA_STATUS_OK;
}
CALL(torch_malloc)
{
    struct CUstream_st *const native = native_of(held);
    void *const made = tcuda_torch_malloc(BYTES, 0, native);
    CHECK(made != NULL);
    tcuda_torch_record_stream(made, native);
    tcuda_torch_free(made, BYTES, 0, native);
    tcuda_torch_reset();
    return TCUDA_STATUS_OK;
}
CALL(host_malloc)
{
    void *made;
    CHECK_OK(tcuda_host_malloc(5 * MIB, &made));
    CHECK_OK(tcuda_copy(made, a, BYTES, held));
    return tcuda_host_free(made);
}
CALL(host_record) { return tcuda_host_record(pinned, held); }
CALL(host_memory_empty_cache)
{
    // No stream uses the block, but the driver waits for the device when it frees the memory.
    void *made;
    CHECK_OK(tcuda_host_malloc(5 * MIB, &made));
    CHECK_OK(tcuda_host_free(made));
    return tcuda_host_memory_empty_cache();
}
static _Alignas(4096) unsigned char page[4096];
CALL(host_register)
{
    const tcuda_status status = tcuda_host_register(page, sizeof page, 0);
    return status == TCUDA_STATUS_OK ? status : tcuda_host_unregister(page);
}
CALL(host_unregister) { return tcuda_host_unregister(page); }
static tcuda_file *zeros;
CALL(file_read) { size_t done; return tcuda_file_read(zeros, a, BYTES, 0, held, &done); }
CALL(file_write) { size_t done; return tcuda_file_write(zeros, a, BYTES, 0, held, &done); }
CALL(ipc_export)
{
    tcuda_ipc_handle handle;
    const tcuda_status status = tcuda_ipc_export(a, held, &handle);
    return status == TCUDA_STATUS_OK ? tcuda_ipc_withdraw(&handle) : status;
}
CALL(ipc_collect) { return tcuda_ipc_collect(); }

/* ---- Random numbers and kernels ---- */

#define RANDOM(name, ...) \
    CALL(random_##name) \
    { \
        const tcuda_tensor out = on_device(a), probabilities = on_device(b); \
        (void)probabilities; \
        return tcuda_random_##name(&out, ##__VA_ARGS__); \
    }
RANDOM(uniform, 0, 1, NULL, NULL)
RANDOM(normal, 0, 1, NULL, NULL)
RANDOM(integers, 0, 9, NULL, NULL)
RANDOM(integers_from, 0, NULL, NULL)
RANDOM(integers_all, NULL, NULL)
RANDOM(bernoulli, 0.5, NULL, NULL)
RANDOM(bernoulli_tensor, &probabilities, NULL, NULL)
RANDOM(exponential, 1, NULL, NULL)
RANDOM(log_normal, 0, 1, NULL, NULL)
RANDOM(cauchy, 0, 1, NULL, NULL)
RANDOM(geometric, 0.5, NULL, NULL)

CALL(jit_call)
{
    const tcuda_tensor in = on_device(a), out = on_device(b);
    return tcuda_jit_call(jit, &in, 1, NULL, 0, &out, 1, NULL);
}
CALL(kernel_launch)
{
    void *arguments[] = { &a };
    return tcuda_kernel_launch(kernel, NULL, arguments, 1, NULL);
}

/* ---- Graphs ---- */

static void record(tcuda_graph *graph)
{
    const char byte = 1;
    CHECK_OK(tcuda_graph_capture_begin(graph, other, NULL, TCUDA_CAPTURE_RELAXED));
    CHECK_OK(tcuda_fill(b, &byte, 1, BYTES, other));
    CHECK_OK(tcuda_graph_capture_end(graph));
}
CALL(graph_capture_begin)
{
    tcuda_graph *graph;
    CHECK_OK(tcuda_graph_create(0, &graph));
    record(graph);
    CHECK_OK(tcuda_graph_replay(graph, held));
    CHECK_OK(tcuda_graph_reset(graph));
    record(graph);
    CHECK_OK(tcuda_graph_replay(graph, held));
    return tcuda_graph_destroy(graph);
}
CALL(graph_capture_abort)
{
    tcuda_graph *graph;
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_graph_capture_begin(graph, other, NULL, TCUDA_CAPTURE_RELAXED));
    CHECK_OK(tcuda_graph_capture_abort(graph));
    return tcuda_graph_destroy(graph);
}
CALL(graph_instantiate) { return tcuda_graph_instantiate(kept); }
CALL(graph_update) { return tcuda_graph_update(ready, kept); }
CALL(graph_replay) { return tcuda_graph_replay(ready, held); }

/* ---- Collectives, with and without memory of the host ---- */

static const int32_t host_only[] = { TCUDA_CPU_DEVICE }, device_only[] = { 0 };

static tcuda_status broadcast(const int32_t *devices)
{
    const tcuda_tensor src = on_device(a);
    tcuda_tensor out;
    return released(tcuda_comm_broadcast(&src, devices, 1, &out), &out, 1);
}
CALL(comm_broadcast) { return broadcast(device_only); }
CALL(comm_broadcast_to_host) { return broadcast(host_only); }
static tcuda_status broadcast_into(tcuda_tensor out)
{
    const tcuda_tensor src = on_device(a);
    return tcuda_comm_broadcast_into(&src, &out, 1);
}
CALL(comm_broadcast_into) { return broadcast_into(on_device(b)); }
CALL(comm_broadcast_into_pinned)
{
    return broadcast_into(tensor(pinned, TCUDA_DEVICE_CUDA_HOST));
}
CALL(comm_broadcast_into_pageable) { return broadcast_into(tensor(pageable, TCUDA_DEVICE_CPU)); }
static tcuda_status broadcast_coalesced(const int32_t *devices)
{
    const tcuda_tensor src[] = { on_device(a), on_device(b) };
    tcuda_tensor outs[2];
    return released(tcuda_comm_broadcast_coalesced(src, 2, devices, 1, MIB, outs), outs, 2);
}
CALL(comm_broadcast_coalesced) { return broadcast_coalesced(device_only); }
static tcuda_status reduce(int32_t destination)
{
    const tcuda_tensor src[] = { on_device(a), on_device(b) };
    tcuda_tensor out;
    return released(tcuda_comm_reduce_add(src, 2, destination, &out), &out, 1);
}
CALL(comm_reduce_add) { return reduce(0); }
CALL(comm_reduce_add_to_host) { return reduce(TCUDA_CPU_DEVICE); }
static tcuda_status reduce_into(tcuda_tensor out)
{
    const tcuda_tensor src[] = { on_device(a), on_device(b) };
    return tcuda_comm_reduce_add_into(src, 2, &out);
}
CALL(comm_reduce_add_into) { return reduce_into(on_device(a + FLOATS)); }
CALL(comm_reduce_add_into_pageable) { return reduce_into(tensor(pageable, TCUDA_DEVICE_CPU)); }
static tcuda_status reduce_coalesced(int32_t destination)
{
    const tcuda_tensor src[] = { on_device(a), on_device(b) };
    tcuda_tensor outs[2];
    return released(
        tcuda_comm_reduce_add_coalesced(src, 1, 2, destination, MIB, outs), outs, 2);
}
CALL(comm_reduce_add_coalesced) { return reduce_coalesced(0); }
CALL(comm_reduce_add_coalesced_to_host) { return reduce_coalesced(TCUDA_CPU_DEVICE); }
static tcuda_status scatter(int32_t to)
{
    const int32_t devices[] = { to, to };
    const tcuda_tensor src = on_device(a);
    tcuda_tensor outs[2];
    return released(tcuda_comm_scatter(&src, devices, NULL, 2, 0, NULL, outs), outs, 2);
}
CALL(comm_scatter) { return scatter(0); }
CALL(comm_scatter_to_host) { return scatter(TCUDA_CPU_DEVICE); }
static tcuda_status scatter_into(int32_t type, float *data)
{
    const tcuda_tensor src = on_device(a);
    tcuda_tensor outs[] = { tensor(data, type), tensor(data + FLOATS / 2, type) };
    outs[0].shape = outs[1].shape = &part;
    return tcuda_comm_scatter_into(&src, outs, 2, 0, NULL);
}
CALL(comm_scatter_into) { return scatter_into(TCUDA_DEVICE_CUDA, b); }
CALL(comm_scatter_into_pageable) { return scatter_into(TCUDA_DEVICE_CPU, pageable); }
static tcuda_status gather(int32_t destination)
{
    tcuda_tensor src[] = { on_device(a), on_device(b) }, out;
    return released(tcuda_comm_gather(src, 2, 0, destination, &out), &out, 1);
}
CALL(comm_gather) { return gather(0); }
CALL(comm_gather_to_host) { return gather(TCUDA_CPU_DEVICE); }
CALL(comm_gather_from_pageable)
{
    tcuda_tensor src[] = { on_device(a), tensor(pageable, TCUDA_DEVICE_CPU) }, out;
    return released(tcuda_comm_gather(src, 2, 0, 0, &out), &out, 1);
}
static tcuda_status gather_into(tcuda_tensor out)
{
    tcuda_tensor src[] = { on_device(a), on_device(b) };
    src[0].shape = src[1].shape = &part;
    return tcuda_comm_gather_into(src, 2, 0, &out);
}
CALL(comm_gather_into) { return gather_into(on_device(a + FLOATS)); }
CALL(comm_gather_into_pinned) { return gather_into(tensor(pinned, TCUDA_DEVICE_CUDA_HOST)); }
CALL(comm_gather_into_pageable) { return gather_into(tensor(pageable, TCUDA_DEVICE_CPU)); }

/* ---- Calls that are documented to wait ---- */

CALL(device_synchronize) { return tcuda_device_synchronize(0); }
CALL(event_synchronize) { return tcuda_event_synchronize(recorded); }
CALL(graph_begin)
{
    tcuda_graph *graph;
    tcuda_stream *previous;
    int32_t device;
    CHECK_OK(tcuda_graph_create(0, &graph));
    CHECK_OK(tcuda_graph_begin(graph, other, NULL, TCUDA_CAPTURE_RELAXED, &previous, &device));
    CHECK_OK(tcuda_graph_end(graph, previous, device));
    return tcuda_graph_destroy(graph);
}

/* NEVER: it does not wait. REFUSED: it would. FREE: refused where it would wait. WAITS: as
 * documented. */
enum effect { NEVER, REFUSED, FREE, WAITS };

static const struct {
    const char *name;
    enum effect effect;
    tcuda_status (*call)(void);
} rows[] = {
#define ROW(name, effect) { #name, effect, call_##name }
    ROW(stream_query, NEVER), ROW(stream_synchronize, REFUSED), ROW(stream_wait_event, NEVER),
    ROW(stream_wait_stream, NEVER), ROW(stream_record_event, NEVER),
    ROW(stream_record_new_event, NEVER), ROW(stream_add_callback, NEVER),
    ROW(stream_destroy, NEVER), ROW(event_record, NEVER), ROW(event_query, NEVER),
    ROW(event_wait, NEVER), ROW(event_elapsed_ms, NEVER), ROW(event_destroy, NEVER),
    ROW(event_ipc_handle, NEVER), ROW(copy, NEVER), ROW(copy_pinned, NEVER),
    ROW(copy_pageable, REFUSED), ROW(copy_from_pageable, REFUSED), ROW(copy_2d, NEVER),
    ROW(copy_2d_pageable, REFUSED), ROW(fill, NEVER), ROW(malloc, NEVER),
    ROW(record_stream, NEVER), ROW(allocation_create, NEVER), ROW(memory_empty_cache, FREE),
    ROW(mem_pool_sleep, REFUSED), ROW(mem_pool_wake, REFUSED), ROW(mem_pool_destroy, WAITS),
    ROW(malloc_native, NEVER), ROW(ort_malloc, NEVER), ROW(torch_malloc, NEVER),
    ROW(host_malloc, NEVER), ROW(host_record, NEVER),
    ROW(host_memory_empty_cache, WAITS), ROW(host_register, NEVER), ROW(host_unregister, WAITS),
    ROW(file_read, REFUSED), ROW(file_write, REFUSED),
    ROW(ipc_export, FREE), ROW(ipc_collect, FREE),
    ROW(random_uniform, NEVER), ROW(random_normal, NEVER), ROW(random_integers, NEVER),
    ROW(random_integers_from, NEVER), ROW(random_integers_all, NEVER),
    ROW(random_bernoulli, NEVER), ROW(random_bernoulli_tensor, NEVER),
    ROW(random_exponential, NEVER), ROW(random_log_normal, NEVER), ROW(random_cauchy, NEVER),
    ROW(random_geometric, NEVER), ROW(jit_call, NEVER), ROW(kernel_launch, NEVER),
    ROW(graph_capture_begin, NEVER), ROW(graph_capture_abort, NEVER),
    ROW(graph_instantiate, NEVER), ROW(graph_update, NEVER), ROW(graph_replay, NEVER),
    ROW(comm_broadcast, NEVER), ROW(comm_broadcast_to_host, REFUSED),
    ROW(comm_broadcast_into, NEVER), ROW(comm_broadcast_into_pinned, NEVER),
    ROW(comm_broadcast_into_pageable, REFUSED), ROW(comm_broadcast_coalesced, NEVER),
    ROW(comm_reduce_add, NEVER), ROW(comm_reduce_add_to_host, REFUSED),
    ROW(comm_reduce_add_into, NEVER), ROW(comm_reduce_add_into_pageable, REFUSED),
    ROW(comm_reduce_add_coalesced, NEVER), ROW(comm_reduce_add_coalesced_to_host, REFUSED),
    ROW(comm_scatter, NEVER), ROW(comm_scatter_to_host, REFUSED), ROW(comm_scatter_into, NEVER),
    ROW(comm_scatter_into_pageable, REFUSED), ROW(comm_gather, NEVER),
    ROW(comm_gather_to_host, REFUSED), ROW(comm_gather_from_pageable, REFUSED),
    ROW(comm_gather_into, NEVER), ROW(comm_gather_into_pinned, NEVER),
    ROW(comm_gather_into_pageable, REFUSED), ROW(device_synchronize, WAITS),
    ROW(event_synchronize, WAITS), ROW(graph_begin, WAITS),
};

/* ---- The gate, which a call that waits too long opens ---- */

static gate the_gate;
static atomic_bool is_over, has_waited;

static void *watch(void *argument)
{
    const long patience = *(const long *)argument;
    for (long i = 0; i < patience && !atomic_load(&is_over); i++)
        sleep_ms(1);
    if (!atomic_load(&is_over)) {
        atomic_store(&has_waited, true);
        atomic_store(&the_gate.is_open, true);
    }
    return NULL;
}

static void judge(size_t row)
{
    const enum effect effect = rows[row].effect;
    long patience = effect == WAITS ? 20 : 2000;
    CHECK_OK(tcuda_event_record(event, held));
    gate_close(&the_gate, held);
    CHECK_OK(tcuda_event_record(recorded, held));
    CHECK_OK(tcuda_sync_debug_mode_set(TCUDA_SYNC_DEBUG_ERROR));
    atomic_store(&is_over, false);
    atomic_store(&has_waited, false);
    const pthread_t watcher = start_thread(watch, &patience);
    const tcuda_status status = rows[row].call();
    atomic_store(&is_over, true);
    join_thread(watcher);
    const bool waited = atomic_load(&has_waited);
    const bool refused = status == TCUDA_STATUS_WOULD_SYNCHRONIZE;
    const bool right = effect == WAITS ? waited && status == TCUDA_STATUS_OK
        : effect == FREE ? !waited : !waited && refused == (effect == REFUSED);
    if (!right) {
        char text[400];
        snprintf(text, sizeof text, ": %s %s: %s (%s)", rows[row].name,
            waited ? "waited" : "did not wait", tcuda_status_name(status), tcuda_last_error());
        check_failed(__FILE__, __LINE__, "right", text);
    }
    atomic_store(&the_gate.is_open, true);
    CHECK_OK(tcuda_sync_debug_mode_set(TCUDA_SYNC_DEBUG_DEFAULT));
    CHECK_OK(tcuda_device_synchronize(0));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    skip_without_compiler();
    void *memory = NULL;
    held = create_stream(0);
    other = create_stream(0);
    event = create_event(TCUDA_EVENT_TIMING);
    recorded = create_event(TCUDA_EVENT_TIMING);
    a = allocate(2 * BYTES, 0, held);
    b = allocate(BYTES, 0, held);
    CHECK_OK(tcuda_host_malloc(BYTES, &memory));
    pinned = memory;
    CHECK_OK(tcuda_stream_set_current(held));
    CHECK_OK(tcuda_jit_create("template <typename T> T f(T x) { return x; }", NULL, &jit));
    CHECK_OK(tcuda_kernel_compile("extern \"C\" __global__ void one(float *to) { *to = 1; }", "one",
        NULL, &kernel));
    CHECK_OK(tcuda_file_open("/dev/zero",
        TCUDA_FILE_READ | TCUDA_FILE_WRITE | TCUDA_FILE_STAGING, &zeros));
    CHECK_OK(tcuda_mem_pool_create(NULL, 0, &pool));
    CHECK_OK(tcuda_graph_create(0, &ready));
    CHECK_OK(tcuda_graph_create(1, &kept));
    record(ready);
    record(kept);
    CHECK_OK(tcuda_event_record(event, held));
    CHECK_OK(tcuda_event_record(recorded, held));
    /* Once before, since what is used for the first time may wait. */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const tcuda_status status = rows[i].call();
        if (status != TCUDA_STATUS_OK && status != TCUDA_STATUS_NOT_READY)
            check_status_failed(__FILE__, __LINE__, rows[i].name, TCUDA_STATUS_OK, status);
        CHECK_OK(tcuda_device_synchronize(0));
    }
    for (size_t i = 0; runs_late() && i < sizeof rows / sizeof *rows; i++)
        judge(i);
    CHECK_OK(tcuda_file_close(zeros));
    CHECK_OK(tcuda_graph_destroy(kept));
    CHECK_OK(tcuda_graph_destroy(ready));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_kernel_destroy(kernel));
    CHECK_OK(tcuda_jit_destroy(jit));
    CHECK_OK(tcuda_host_free(pinned));
    CHECK_OK(tcuda_free(a));
    CHECK_OK(tcuda_free(b));
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_OK(tcuda_event_destroy(recorded));
    CHECK_OK(tcuda_stream_set_current(NULL));
    CHECK_OK(tcuda_stream_destroy(held));
    CHECK_OK(tcuda_stream_destroy(other));
    return finish();
}
