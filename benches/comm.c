/* The C side of comm.py: collectives of one process, the driver's peer copy and NCCL's collectives,
 * timed one by one and in batches. A shared library: comm.py loads libtcuda first, and calls it.
 *
 * cc -std=c11 -O2 -shared -fPIC -Iinclude benches/comm.c -o comm.so */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tcuda.h>
#include <time.h>

enum { MOST = 16, TENSORS = 500, SUBJECTS = TENSORS * MOST };
enum verb { PEER_COPY, BROADCAST, BROADCAST_OUT, REDUCE_ADD, SCATTER, GATHER, COALESCED,
    NCCL_BROADCAST, NCCL_REDUCE };

static int num_devices;
static int32_t devices[MOST];
static tcuda_stream *streams[MOST];
static struct CUstream_st *native;
static int (*copy_async)(unsigned long long dst, unsigned long long src, size_t bytes,
    struct CUstream_st *stream);
static tcuda_communicator *ranks[MOST];
static int have_ranks;

static enum verb verb;
static tcuda_tensor inputs[SUBJECTS], outs[SUBJECTS];
static int64_t shapes[2 * SUBJECTS];
static void *blocks[2 * SUBJECTS];
static size_t num_blocks;

#define TRY(call) do { if ((call) != TCUDA_STATUS_OK) return failed(#call); } while (0)

static int failed(const char *call)
{
    fprintf(stderr, "%.40s...: %s\n", call, tcuda_last_error());
    return 1;
}

static double now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

/* Waits for the default stream of every device, on which PyTorch's work is as well. */
int comm_sync(void)
{
    for (int i = 0; i < num_devices; i++)
        TRY(tcuda_stream_synchronize(streams[i]));
    return 0;
}

/* The first `count` devices, with their contexts. */
int comm_begin(int count)
{
    num_devices = count < MOST ? count : MOST;
    void *address = NULL;
    TRY(tcuda_backend_function("cuMemcpyAsync", &address));
    memcpy(&copy_async, &address, sizeof address);
    for (int i = 0; i < num_devices; i++) {
        devices[i] = i;
        TRY(tcuda_stream_default(i, &streams[i]));
        TRY(tcuda_device_synchronize(i));
    }
    TRY(tcuda_device_set(0));
    TRY(tcuda_stream_native(streams[0], &native));
    return 0;
}

/* NCCL's communicators; gives the milliseconds that they took. */
int comm_join(double *taken_ms)
{
    const double start = now_us();
    TRY(tcuda_communicator_init_all(devices, (size_t)num_devices, ranks));
    *taken_ms = (now_us() - start) / 1e3;
    have_ranks = 1;
    return 0;
}

/* A tensor of float32, filled with ones. */
static int make(tcuda_tensor *tensor, int32_t device, size_t elements)
{
    const float one = 1;
    void *data = NULL;
    TRY(tcuda_malloc(elements * sizeof one, device, streams[device], &data));
    blocks[num_blocks] = data;
    int64_t *shape = &shapes[num_blocks++];
    *shape = (int64_t)elements;
    TRY(tcuda_fill(data, &one, sizeof one, elements, streams[device]));
    *tensor = (tcuda_tensor){ .data = data, .device = { TCUDA_DEVICE_CUDA, device }, .ndim = 1,
        .dtype = { TCUDA_DTYPE_FLOAT, 32, 1 }, .shape = shape };
    return 0;
}

static size_t small_size(int i)
{
    static const size_t sizes[] = { 64, 1000, 256 * 256, 10, 3 * 3 * 64 * 64 };
    return sizes[i % 5];
}

/* One call, with the release of what it gave. */
static int call(void)
{
    const size_t n = (size_t)num_devices;
    size_t given = 0;
    switch (verb) {
    case PEER_COPY: {
        const unsigned long long to = (unsigned long long)(uintptr_t)outs[0].data;
        const unsigned long long from = (unsigned long long)(uintptr_t)inputs[0].data;
        return copy_async(to, from, (size_t)*inputs[0].shape * 4, native);
    }
    case BROADCAST:
        TRY(tcuda_comm_broadcast(inputs, devices, n, outs));
        given = n;
        break;
    case BROADCAST_OUT:
        TRY(tcuda_comm_broadcast_into(inputs, outs, n));
        break;
    case REDUCE_ADD:
        TRY(tcuda_comm_reduce_add(inputs, n, 0, outs));
        given = 1;
        break;
    case SCATTER:
        TRY(tcuda_comm_scatter(inputs, devices, NULL, n, 0, NULL, outs));
        given = n;
        break;
    case GATHER:
        TRY(tcuda_comm_gather(inputs, n, 0, 0, outs));
        given = 1;
        break;
    case COALESCED:
        TRY(tcuda_comm_broadcast_coalesced(inputs, TENSORS, devices, n, 0, outs));
        given = n * TENSORS;
        break;
    case NCCL_BROADCAST:
    case NCCL_REDUCE:
        TRY(tcuda_communicator_group_begin());
        for (size_t i = 0; i < n; i++) {
            if (verb == NCCL_BROADCAST)
                TRY(tcuda_communicator_broadcast(ranks[i], &inputs[i], &outs[i], 0, NULL));
            else
                TRY(tcuda_communicator_reduce(ranks[i], &inputs[i], &outs[i], TCUDA_REDUCE_SUM, 0,
                    NULL));
        }
        TRY(tcuda_communicator_group_end());
        break;
    }
    for (size_t i = 0; i < given; i++)
        TRY(tcuda_tensor_release(&outs[i]));
    return 0;
}

/* Makes the tensors of a verb whose whole has so many bytes. */
int comm_prepare(int which, size_t bytes)
{
    const size_t n = (size_t)num_devices, elements = bytes / 4, chunk = (elements + n - 1) / n;
    verb = (enum verb)which;
    num_blocks = 0;
    if (verb == COALESCED) {
        for (int i = 0; i < TENSORS; i++)
            if (make(&inputs[i], 0, small_size(i))) return 1;
        return comm_sync();
    }
    const int many_inputs = verb == REDUCE_ADD || verb == GATHER || verb >= NCCL_BROADCAST;
    for (size_t i = 0; i < (many_inputs ? n : 1); i++) {
        size_t size = elements;
        if (verb == GATHER) size = i + 1 < n ? chunk : elements - (n - 1) * chunk;
        if (make(&inputs[i], (int32_t)i, size)) return 1;
    }
    if (verb == PEER_COPY) {
        TRY(tcuda_device_enable_peer_access(0, 1));
        TRY(tcuda_device_enable_peer_access(1, 0));
        if (make(&outs[0], 1, elements)) return 1;
    }
    if (verb == BROADCAST_OUT || verb >= NCCL_BROADCAST)
        for (size_t i = 0; i < n; i++)
            if (make(&outs[i], (int32_t)i, elements)) return 1;
    return comm_sync();
}

/* Memory of another library in the place of an input, or an output (is_out), of equal size. */
void comm_replace(int index, int is_out, void *data)
{
    (is_out ? outs : inputs)[index].data = data;
}

/* Frees them, and what is cached. */
int comm_finish(void)
{
    for (size_t i = 0; i < num_blocks; i++)
        TRY(tcuda_free(blocks[i]));
    num_blocks = 0;
    if (comm_sync()) return 1;
    return 0;
}

/* Calls one by one: for each the time of the call, and that until every device has done it. */
int comm_each(int count, double *host_us, double *whole_us)
{
    for (int i = 0; i < count; i++) {
        const double start = now_us();
        if (call()) return 1;
        host_us[i] = now_us() - start;
        if (comm_sync()) return 1;
        whole_us[i] = now_us() - start;
    }
    return 0;
}

/* Calls in a row, and one wait: the time of one of them. */
int comm_batch(int count, double *whole_us)
{
    const double start = now_us();
    for (int i = 0; i < count; i++)
        if (call()) return 1;
    if (comm_sync()) return 1;
    *whole_us = (now_us() - start) / count;
    return 0;
}

/* The end: nothing is left. */
int comm_end(void)
{
    if (comm_sync()) return 1;
    for (int i = 0; have_ranks && i < num_devices; i++)
        TRY(tcuda_communicator_destroy(ranks[i]));
    have_ranks = 0;
    return 0;
}
