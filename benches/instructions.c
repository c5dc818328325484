/* One operation of tcuda, again and again: instructions.py counts what it costs under valgrind's
 * callgrind, where no clock and no neighbour disturbs.
 *
 *   instructions NAME COUNT    or no argument: the names */

#define _POSIX_C_SOURCE 200809L

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tcuda.h>

enum { LIVE = 1000, BATCH = 64 };

/* Of collectives: the most devices, tensors at once, and elements of a tensor, few so that what the
 * simulated machine does with them is little. */
enum { DEVICES = 4, TENSORS = 64, ELEMENTS = 128 };

/* An allocator joins what is freed at once while it still grows; the counts begin after that. */
enum { SETTLED = 20000 };

static void check(tcuda_status status, const char *call)
{
    if (status == TCUDA_STATUS_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", call, tcuda_status_name((int32_t)status), tcuda_last_error());
    exit(EXIT_FAILURE);
}

#define CHECK(call) check((call), #call)

static tcuda_stream *own, *others[2];
static tcuda_event *event;

static uint64_t state = 88172645463325252u;

static size_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (size_t)(state >> 11);
}

static void pairs(long count, size_t bytes, tcuda_stream *stream)
{
    void *block;
    for (long i = 0; i < count; i++) {
        CHECK(tcuda_malloc(bytes, TCUDA_CURRENT_DEVICE, stream, &block));
        CHECK(tcuda_free(block));
    }
}

static void pair_small(long count)
{
    pairs(count, 4096, NULL);
}

static void pair_large(long count)
{
    pairs(count, 20 << 20, NULL);
}

static void pair_of_stream(long count)
{
    pairs(count, 4096, own);
}

/* Blocks of random sizes up to `most` bytes; a random one goes, another one comes. */
static void churn(long count, size_t most)
{
    static void *blocks[LIVE];
    for (int i = 0; i < LIVE; i++)
        CHECK(tcuda_malloc(512 + next_random() % most, TCUDA_CURRENT_DEVICE, NULL, &blocks[i]));
    for (long i = 0; i < count; i++) {
        void **block = &blocks[next_random() % LIVE];
        CHECK(tcuda_free(*block));
        CHECK(tcuda_malloc(512 + next_random() % most, TCUDA_CURRENT_DEVICE, NULL, block));
    }
}

static void churn_small(long count)
{
    churn(count, 512 << 10);
}

static void churn_mixed(long count)
{
    churn(count, 4 << 20);
}

/* A step of a program: the same sizes come, all live at a time, and go the other way round. */
static void step(long count)
{
    static void *blocks[LIVE];
    static size_t sizes[LIVE];
    for (int i = 0; i < LIVE; i++)
        sizes[i] = 512 + next_random() % (2 << 20);
    for (long done = 0; done < count; done += LIVE) {
        for (int i = 0; i < LIVE; i++)
            CHECK(tcuda_malloc(sizes[i], TCUDA_CURRENT_DEVICE, NULL, &blocks[i]));
        for (int i = LIVE; i > 0; i--)
            CHECK(tcuda_free(blocks[i - 1]));
    }
}

/* Used on two other streams, freed in batches. */
static void recorded(long count)
{
    void *blocks[BATCH];
    for (long done = 0; done < count; done += BATCH) {
        for (int i = 0; i < BATCH; i++) {
            CHECK(tcuda_malloc(4096, TCUDA_CURRENT_DEVICE, own, &blocks[i]));
            for (int k = 0; k < 2; k++)
                CHECK(tcuda_record_stream(blocks[i], others[k]));
        }
        for (int i = 0; i < BATCH; i++)
            CHECK(tcuda_free(blocks[i]));
    }
}

/* The same while the other streams are busy, each freed at once; a batch ends with a wait. */
static void recorded_busy(long count)
{
    void *block;
    for (long done = 0; done < count; done += BATCH) {
        for (int i = 0; i < BATCH; i++) {
            CHECK(tcuda_malloc(4096, TCUDA_CURRENT_DEVICE, own, &block));
            if (i == 0)
                CHECK(tcuda_backend_faults("cuEventQuery@1=600!,cuStreamQuery@1=600!"));
            for (int k = 0; k < 2; k++)
                CHECK(tcuda_record_stream(block, others[k]));
            CHECK(tcuda_free(block));
        }
        CHECK(tcuda_backend_faults(NULL));
        for (int k = 0; k < 2; k++)
            CHECK(tcuda_stream_synchronize(others[k]));
    }
}

static void statistics(long count)
{
    tcuda_memory_statistics stats = TCUDA_INIT(tcuda_memory_statistics);
    for (long i = 0; i < count; i++)
        CHECK(tcuda_memory_stats(TCUDA_CURRENT_DEVICE, &stats));
}

/* No tool listens. */
static void nvtx_range(long count)
{
    int32_t depth;
    for (long i = 0; i < count; i++) {
        CHECK(tcuda_nvtx_range_push("a range", &depth));
        CHECK(tcuda_nvtx_range_pop(&depth));
    }
}

static void current_stream(long count)
{
    tcuda_stream *stream;
    for (long i = 0; i < count; i++)
        CHECK(tcuda_stream_current(TCUDA_CURRENT_DEVICE, &stream));
}

static void stream_exchange(long count)
{
    tcuda_stream *stream, *before;
    for (long i = 0; i < count; i++) {
        int32_t device;
        CHECK(tcuda_stream_exchange(own, &before, &device));
        CHECK(tcuda_stream_exchange(before, &stream, &device));
    }
}

static void event_query(long count)
{
    for (long i = 0; i < count; i++) {
        bool reached;
        CHECK(tcuda_event_query(event, &reached));
    }
}

/* A function of elements, of two matrices and of a matrix and a row. instructions.py leaves out
 * what the simulated machine makes of the launch. */
static void jit(long count, int32_t dimensions)
{
    int64_t matrix[] = { 2, 8 };
    tcuda_tensor tensors[3];
    tcuda_jit *function;
    void *memory;
    CHECK(tcuda_malloc(3 * 64, TCUDA_CURRENT_DEVICE, NULL, &memory));
    for (int i = 0; i < 3; i++)
        tensors[i] = (tcuda_tensor){ .data = memory, .device = { TCUDA_DEVICE_CUDA, 0 }, .ndim = 2,
            .dtype = { TCUDA_DTYPE_FLOAT, 32, 1 }, .shape = matrix,
            .byte_offset = (uint64_t)i * 64 };
    tensors[1].ndim = dimensions;
    tensors[1].shape = matrix + 2 - dimensions;
    CHECK(tcuda_jit_create("template <typename T> T add(T x, T y) { return x + y; }", NULL,
        &function));
    for (long i = 0; i < count; i++)
        CHECK(tcuda_jit_call(function, tensors, 2, NULL, 0, &tensors[2], 1, own));
    CHECK(tcuda_jit_destroy(function));
    CHECK(tcuda_free(memory));
}

static void jit_call(long count)
{
    jit(count, 2);
}

static void jit_call_row(long count)
{
    jit(count, 1);
}

static int32_t devices[DEVICES] = { 0, 1, 2, 3 };
static int64_t elements = ELEMENTS;

/* Tensors on a device. */
static void make_tensors(tcuda_tensor *tensors, int count, int32_t device)
{
    for (int i = 0; i < count; i++) {
        void *block;
        CHECK(tcuda_malloc(sizeof(float) * ELEMENTS, device, NULL, &block));
        tensors[i] = (tcuda_tensor){ .data = block, .device = { TCUDA_DEVICE_CUDA, device },
            .ndim = 1, .dtype = { TCUDA_DTYPE_FLOAT, 32, 1 }, .shape = &elements };
    }
}

static void release(tcuda_tensor *tensors, size_t count)
{
    for (size_t i = 0; i < count; i++)
        CHECK(tcuda_tensor_release(&tensors[i]));
}

static void broadcasts(long count, size_t n)
{
    tcuda_tensor in, outs[DEVICES];
    make_tensors(&in, 1, 0);
    for (long i = 0; i < count; i++) {
        CHECK(tcuda_comm_broadcast(&in, devices, n, outs));
        release(outs, n);
    }
}

static void comm_broadcast_2(long count)
{
    broadcasts(count, 2);
}

static void comm_broadcast_4(long count)
{
    broadcasts(count, 4);
}

static void sums(long count, size_t n)
{
    tcuda_tensor in[DEVICES], out;
    for (size_t i = 0; i < n; i++)
        make_tensors(&in[i], 1, devices[i]);
    for (long i = 0; i < count; i++) {
        CHECK(tcuda_comm_reduce_add(in, n, 0, &out));
        release(&out, 1);
    }
}

static void comm_reduce_add_2(long count)
{
    sums(count, 2);
}

static void comm_reduce_add_4(long count)
{
    sums(count, 4);
}

static void comm_scatter_2(long count)
{
    tcuda_tensor in, outs[2];
    make_tensors(&in, 1, 0);
    for (long i = 0; i < count; i++) {
        CHECK(tcuda_comm_scatter(&in, devices, NULL, 2, 0, NULL, outs));
        release(outs, 2);
    }
}

static void comm_gather_2(long count)
{
    tcuda_tensor in[2], out;
    for (int i = 0; i < 2; i++)
        make_tensors(&in[i], 1, i);
    for (long i = 0; i < count; i++) {
        CHECK(tcuda_comm_gather(in, 2, 0, 0, &out));
        release(&out, 1);
    }
}

/* What one of many tensors costs. */
static void comm_broadcast_coalesced_2(long count)
{
    static tcuda_tensor in[TENSORS], outs[2 * TENSORS];
    make_tensors(in, TENSORS, 0);
    for (long done = 0; done < count; done += TENSORS) {
        CHECK(tcuda_comm_broadcast_coalesced(in, TENSORS, devices, 2, 0, outs));
        release(outs, 2 * TENSORS);
    }
}

static void comm_reduce_add_coalesced_2(long count)
{
    static tcuda_tensor in[2 * TENSORS], outs[TENSORS];
    for (int i = 0; i < 2; i++)
        make_tensors(in + i * TENSORS, TENSORS, i);
    for (long done = 0; done < count; done += TENSORS) {
        CHECK(tcuda_comm_reduce_add_coalesced(in, 2, TENSORS, 0, 0, outs));
        release(outs, TENSORS);
    }
}

static const struct operation {
    const char *name;
    void (*run)(long count);
} OPERATIONS[] = {
    { "pair_small", pair_small },
    { "pair_large", pair_large },
    { "pair_of_stream", pair_of_stream },
    { "step", step },
    { "churn_small", churn_small },
    { "churn_mixed", churn_mixed },
    { "recorded", recorded },
    { "recorded_busy", recorded_busy },
    { "statistics", statistics },
    { "current_stream", current_stream },
    { "nvtx_range", nvtx_range },
    { "stream_exchange", stream_exchange },
    { "event_query", event_query },
    { "jit_call", jit_call },
    { "jit_call_row", jit_call_row },
    { "comm_broadcast_2", comm_broadcast_2 },
    { "comm_broadcast_4", comm_broadcast_4 },
    { "comm_reduce_add_2", comm_reduce_add_2 },
    { "comm_reduce_add_4", comm_reduce_add_4 },
    { "comm_scatter_2", comm_scatter_2 },
    { "comm_gather_2", comm_gather_2 },
    { "comm_broadcast_coalesced_2", comm_broadcast_coalesced_2 },
    { "comm_reduce_add_coalesced_2", comm_reduce_add_coalesced_2 },
};

enum { COUNT = sizeof OPERATIONS / sizeof OPERATIONS[0] };

int main(int argc, char **argv)
{
    if (argc != 3) {
        for (int i = 0; i < COUNT; i++)
            printf("%s\n", OPERATIONS[i].name);
        return argc == 1 ? EXIT_SUCCESS : EXIT_FAILURE;
    }
    const long count = atol(argv[2]);
    CHECK(tcuda_stream_create(TCUDA_CURRENT_DEVICE, 0, &own));
    for (int i = 0; i < 2; i++)
        CHECK(tcuda_stream_create(TCUDA_CURRENT_DEVICE, 0, &others[i]));
    CHECK(tcuda_event_create(0, &event));
    CHECK(tcuda_event_record(event, own));
    CHECK(tcuda_event_synchronize(event));
    /* One block stays, so that no arena is ever without. */
    void *kept[4];
    CHECK(tcuda_malloc(512, TCUDA_CURRENT_DEVICE, NULL, &kept[0]));
    CHECK(tcuda_malloc(2 << 20, TCUDA_CURRENT_DEVICE, NULL, &kept[1]));
    CHECK(tcuda_malloc(512, TCUDA_CURRENT_DEVICE, own, &kept[2]));
    CHECK(tcuda_malloc(2 << 20, TCUDA_CURRENT_DEVICE, own, &kept[3]));
    pairs(SETTLED, 20 << 20, NULL);
    pairs(SETTLED, 4096, NULL);
    pairs(SETTLED, 4096, own);
    for (int i = 0; i < COUNT; i++) {
        if (strcmp(argv[1], OPERATIONS[i].name) == 0) {
            OPERATIONS[i].run(count);
            return EXIT_SUCCESS;
        }
    }
    fprintf(stderr, "%s: no such operation\n", argv[1]);
    return EXIT_FAILURE;
}
