/* Collective calls by four threads at once: random verbs, sizes and streams, memory that comes and
 * goes between launches, and every value is looked at.
 *
 * usage: comm_hammer [CALLS [SEED]], in all threads together; or TCUDA_HAMMER_CALLS. On a GPU
 * tensors are larger. */
#define _POSIX_C_SOURCE 200809L

#include <inttypes.h>

#include "support.h"

enum { THREADS = 4, STREAMS = 3, MOST_DEVICES = 4, MOST_TENSORS = 5, COLUMNS = 3 };
enum { MOST_PARTS = MOST_DEVICES * MOST_TENSORS };

typedef struct random_numbers { uint64_t state; } random_numbers;

typedef struct hammer {
    random_numbers random;
    uint64_t calls;
    int32_t devices;
    tcuda_stream *streams[MOST_DEVICES][STREAMS];
    int now[MOST_DEVICES];
    uint64_t done;
} hammer;

/* A tensor of the host's, of rows of three 32-bit integers. */
typedef struct view {
    int64_t shape[2];
    tcuda_tensor tensor;
    void *block;
} view;

static uint64_t next(random_numbers *random)
{
    random->state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    uint64_t mixed = random->state;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
}

static int below(hammer *h, int limit)
{
    return (int)(next(&h->random) % (uint64_t)limit);
}

static bool one_in(hammer *h, int count)
{
    return below(h, count) == 0;
}

/* What element `i` of the tensor with this number is. */
static uint32_t value_of(uint32_t number, size_t i)
{
    return number * 2654435761u + (uint32_t)i * 40503u;
}

static int64_t some_rows(hammer *h)
{
    static const int few[] = { 1, 2, 7, 64, 300, 2000 };
    static const int many[] = { 30000, 100000, 400000, 1500000 };
    if (!on_simulator() && one_in(h, 50))
        return 1 + below(h, many[one_in(h, 10) ? 3 : below(h, 3)]);
    return 1 + below(h, few[below(h, 6)]);
}

static tcuda_stream *stream_of(const hammer *h, int32_t device)
{
    return h->streams[device][h->now[device]];
}

/* Another stream is current from now on, after what the last one holds. */
static void change_stream(hammer *h, int32_t device)
{
    tcuda_stream *const before = stream_of(h, device);
    h->now[device] = below(h, STREAMS);
    tcuda_stream *const after = stream_of(h, device);
    if (after != before)
        CHECK_OK(tcuda_stream_wait_stream(after, before));
    CHECK_OK(tcuda_stream_set_current(after));
}

static void *pinned(size_t bytes)
{
    void *ptr = NULL;
    CHECK_OK(tcuda_host_malloc(bytes, &ptr));
    return ptr;
}

static view make_view(int32_t device, int64_t rows)
{
    view v = { .shape = { rows, COLUMNS } };
    v.tensor = (tcuda_tensor){ .device = { TCUDA_DEVICE_CUDA, device }, .ndim = 2,
        .dtype = { TCUDA_DTYPE_INT, 32, 1 } };
    return v;
}

static size_t bytes_of(int64_t rows)
{
    return (size_t)rows * COLUMNS * sizeof(uint32_t);
}

/* Memory on the current stream. */
static void allocate_view(hammer *h, view *v)
{
    const int32_t device = v->tensor.device.device_id;
    v->block = allocate(bytes_of(v->shape[0] + 1), device, stream_of(h, device));
    v->tensor.data = v->block;
    v->tensor.shape = v->shape;
}

/* Filled from pinned memory that is freed at once. */
static void fill_view(hammer *h, view *v, uint32_t number)
{
    const size_t bytes = bytes_of(v->shape[0]);
    uint32_t *const staged = pinned(bytes);
    if (threads_keep_memory())
        for (size_t i = 0; i < bytes / sizeof *staged; i++)
            staged[i] = value_of(number, i);
    CHECK_OK(tcuda_copy(v->block, staged, bytes, stream_of(h, v->tensor.device.device_id)));
    CHECK_OK(tcuda_host_free(staged));
}

/* The rows of `out` are those from `first` on of the sum of tensors `number`, `number` + 1, ... */
static void check(hammer *h, const tcuda_tensor *out, int64_t first, uint32_t number, int count)
{
    const int64_t rows = out->shape[0];
    const size_t bytes = bytes_of(rows), from = (size_t)first * COLUMNS;
    const int32_t device = out->device.device_id;
    if (rows == 0)
        return;
    uint32_t *const staged = pinned(bytes);
    const unsigned char *const start = (const unsigned char *)out->data + out->byte_offset;
    CHECK_OK(tcuda_copy(staged, start, bytes, stream_of(h, device)));
    CHECK_OK(tcuda_stream_synchronize(stream_of(h, device)));
    for (size_t i = 0; threads_keep_memory() && i < bytes / sizeof *staged; i++) {
        uint32_t expected = 0;
        for (int part = 0; part < count; part++)
            expected += value_of(number + (uint32_t)part, from + i);
        if (staged[i] != expected) {
            fprintf(stderr, "element %zu of %" PRId64 " rows on device %d, call %" PRIu64 "\n",
                i, rows, (int)device, h->done);
            CHECK_EQ(staged[i], expected);
        }
    }
    CHECK_OK(tcuda_host_free(staged));
}

/* Blocks that are written late and freed at once. */
static void churn(hammer *h)
{
    for (int i = below(h, 4); i > 0; i--) {
        const int32_t device = below(h, h->devices);
        const size_t bytes = bytes_of(some_rows(h));
        void *const block = allocate(bytes, device, stream_of(h, device));
        fill_bytes(block, below(h, 256), bytes, stream_of(h, device));
        CHECK_OK(tcuda_free(block));
    }
}

static void release_all(tcuda_tensor *tensors, size_t count)
{
    for (size_t i = 0; i < count; i++)
        CHECK_OK(tcuda_tensor_release(&tensors[i]));
}

static void free_views(view *views, size_t count)
{
    for (size_t i = 0; i < count; i++)
        CHECK_OK(tcuda_free(views[i].block));
}

/* Each device of a list once, in a random order. */
static void shuffle(hammer *h, int32_t *list)
{
    for (int32_t i = 0; i < h->devices; i++) {
        const int at = below(h, i + 1);
        list[i] = list[at];
        list[at] = i;
    }
}

static void one_call(hammer *h, uint32_t number)
{
    const size_t n = (size_t)h->devices;
    int32_t list[MOST_DEVICES];
    view views[MOST_PARTS], targets[MOST_DEVICES];
    tcuda_tensor in[MOST_PARTS], outs[MOST_PARTS];
    size_t num_views = 0, num_targets = 0, num_outs = 0;
    const bool into = one_in(h, 2);
    shuffle(h, list);
    const int32_t root = list[0];
    const int verb = below(h, 6);
    const int64_t rows = some_rows(h);
    const bool is_one = verb == 0 || verb == 2; /* has one input */
    const size_t tensors = verb >= 4 ? (size_t)(1 + below(h, MOST_TENSORS)) : 1;

    /* Inputs: of a coalesced broadcast all are the root's, of a sum one tensor of each device. */
    for (size_t d = 0; d < (is_one || verb == 4 ? 1 : n); d++)
        for (size_t t = 0; t < tensors; t++) {
            view *const v = &views[num_views];
            /* The parts of a whole have as many rows each, but for the coalesced verbs. */
            *v = make_view(list[d], verb >= 4 ? rows / (int64_t)(t + 1) + 1 : rows);
            allocate_view(h, v);
            fill_view(h, v, number + (uint32_t)(t * 100 + d));
            num_views++;
        }
    for (size_t i = 0; i < num_views; i++) {
        views[i].tensor.shape = views[i].shape;
        in[i] = views[i].tensor;
    }
    /* Outs of our own. */
    const int64_t total = verb == 3 ? rows * (int64_t)n : rows;
    if (into && verb < 4) {
        num_targets = is_one ? n : 1;
        int64_t left = rows;
        for (size_t i = 0; i < num_targets; i++) {
            const int64_t own = verb != 2 ? total : i + 1 == n ? left : below(h, (int)left + 1);
            left -= verb == 2 ? own : 0;
            targets[i] = make_view(list[i], own);
            allocate_view(h, &targets[i]);
            fill_bytes(targets[i].block, 0xEE, bytes_of(own), stream_of(h, list[i]));
            outs[i] = targets[i].tensor;
        }
    }
    churn(h);

    switch (verb) {
    case 0:
        if (into)
            CHECK_OK(tcuda_comm_broadcast_into(&in[0], outs, n));
        else
            CHECK_OK(tcuda_comm_broadcast(&in[0], list, n, outs));
        num_outs = n;
        break;
    case 1:
        if (into)
            CHECK_OK(tcuda_comm_reduce_add_into(in, n, &outs[0]));
        else
            CHECK_OK(tcuda_comm_reduce_add(in, n, root, &outs[0]));
        num_outs = 1;
        break;
    case 2:
        if (into)
            CHECK_OK(tcuda_comm_scatter_into(&in[0], outs, n, 0, NULL));
        else
            CHECK_OK(tcuda_comm_scatter(&in[0], list, NULL, n, 0, NULL, outs));
        num_outs = n;
        break;
    case 3:
        if (into)
            CHECK_OK(tcuda_comm_gather_into(in, n, 0, &outs[0]));
        else
            CHECK_OK(tcuda_comm_gather(in, n, 0, root, &outs[0]));
        num_outs = 1;
        break;
    case 4:
        CHECK_OK(tcuda_comm_broadcast_coalesced(in, tensors, list, n, one_in(h, 2) ? 5000 : 0,
            outs));
        num_outs = n * tensors;
        break;
    default:
        CHECK_OK(tcuda_comm_reduce_add_coalesced(in, n, tensors, root, one_in(h, 2) ? 5000 : 0,
            outs));
        num_outs = tensors;
        break;
    }

    /* What the call reads is freed at once, unless an out leads there. */
    const bool has_aliases = verb == 4 || (verb == 5 && n == 1)
        || (!into && (is_one || (verb == 1 && n == 1)));
    if (!has_aliases)
        free_views(views, num_views);
    churn(h);
    int64_t first = 0;
    for (size_t i = 0; i < num_outs; i++) {
        if (outs[i].shape == NULL)
            continue; /* fewer chunks than devices */
        const uint32_t own = verb >= 4 ? (uint32_t)(i % tensors) * 100 : 0;
        if (verb == 3) {
            for (size_t part = 0; part < n; part++) {
                tcuda_tensor slice = outs[0];
                slice.shape = (int64_t[]){ rows, COLUMNS };
                slice.byte_offset += part * bytes_of(rows);
                check(h, &slice, 0, number + (uint32_t)part, 1);
            }
            continue;
        }
        check(h, &outs[i], first, number + own, verb == 1 || verb == 5 ? (int)n : 1);
        if (verb == 2)
            first += outs[i].shape[0];
    }
    if (num_targets == 0)
        release_all(outs, num_outs);
    free_views(targets, num_targets);
    if (has_aliases)
        free_views(views, num_views);
}

static void *work(void *argument)
{
    hammer *const h = argument;
    for (int32_t device = 0; device < h->devices; device++) {
        for (int i = 0; i < STREAMS; i++)
            h->streams[device][i] = create_stream(device);
        CHECK_OK(tcuda_stream_set_current(h->streams[device][0]));
    }
    for (h->done = 0; h->done < h->calls; h->done++) {
        CHECK_OK(tcuda_device_set(below(h, h->devices)));
        if (one_in(h, 3))
            for (int32_t device = 0; device < h->devices; device++)
                change_stream(h, device);
        /* change_stream made its device the current one. */
        CHECK_OK(tcuda_device_set(below(h, h->devices)));
        one_call(h, (uint32_t)next(&h->random));
    }
    for (int32_t device = 0; device < h->devices; device++)
        for (int i = 0; i < STREAMS; i++)
            CHECK_OK(tcuda_stream_destroy(h->streams[device][i]));
    return NULL;
}

static uint64_t number(const char *text, uint64_t otherwise)
{
    return text == NULL ? otherwise : strtoull(text, NULL, 10);
}

int main(int argc, char **argv)
{
    static hammer hammers[THREADS];
    pthread_t threads[THREADS];
    SKIP_WITHOUT_GPU();
    const int32_t count = num_devices();
    const uint64_t few = number(getenv("TCUDA_HAMMER_CALLS"), on_simulator() ? 160 : 4000);
    const uint64_t calls = number(argc > 1 ? argv[1] : NULL, few);
    const uint64_t seed = number(argc > 2 ? argv[2] : NULL, 1);
    for (int i = 0; i < THREADS; i++) {
        hammers[i].random.state = seed * THREADS + (uint64_t)i;
        hammers[i].calls = calls / THREADS + 1;
        hammers[i].devices = count < MOST_DEVICES ? count : MOST_DEVICES;
        threads[i] = start_thread(work, &hammers[i]);
    }
    for (int i = 0; i < THREADS; i++)
        join_thread(threads[i]);
    for (int32_t device = 0; device < count; device++) {
        uint64_t left = 1;
        CHECK_OK(tcuda_device_synchronize(device));
        CHECK_OK(tcuda_memory_allocated(device, &left));
        CHECK_EQ(left, 0);
    }
    printf("%" PRIu64 " calls of %d threads on %d devices\n", calls, THREADS, (int)count);
    return finish();
}
