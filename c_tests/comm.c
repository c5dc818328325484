/* Collectives: what each verb gives, in values, which outputs are the inputs themselves, and who frees
 * what. With one device some of it is left out; where there are more, two of them take part, or all. */
#define _POSIX_C_SOURCE 200809L

#include "support.h"

static const tcuda_dtype int32 = { TCUDA_DTYPE_INT, 32, 1 };
static const tcuda_dtype float32 = { TCUDA_DTYPE_FLOAT, 32, 1 };
static const tcuda_dtype uint8 = { TCUDA_DTYPE_UINT, 8, 1 };

enum { MOST_DIMS = 5, MOST_DEVICES = 16, HOST = TCUDA_CPU_DEVICE };

/* The last device: another than the first where there are more than one. */
static int32_t other;
static int32_t all_devices;

/* ---- Tensors of the test's own ---- */

typedef struct owned {
    tcuda_tensor view;
    int64_t shape[MOST_DIMS], strides[MOST_DIMS];
    char *memory; /* what was allocated */
    bool is_device, is_pinned;
} owned;

static int64_t count_of(const tcuda_tensor *tensor)
{
    int64_t count = 1;
    for (int32_t i = 0; i < tensor->ndim; i++)
        count *= tensor->shape[i];
    return count;
}

/* Memory for `elements` elements on a device, or on the host: pinned, or not. */
static void make(owned *tensor, int32_t device, bool pinned, tcuda_dtype dtype, size_t elements)
{
    const size_t bytes = elements * dtype.bits / 8 + 1;
    memset(tensor, 0, sizeof *tensor);
    tensor->is_device = device != HOST;
    tensor->is_pinned = pinned;
    if (tensor->is_device)
        tensor->memory = allocate(bytes, device, NULL);
    else if (pinned)
        CHECK_OK(tcuda_host_malloc(bytes, (void **)(void *)&tensor->memory));
    else
        CHECK((tensor->memory = malloc(bytes)) != NULL);
    tensor->view.data = tensor->memory;
    tensor->view.device.device_type = tensor->is_device ? TCUDA_DEVICE_CUDA
        : pinned ? TCUDA_DEVICE_CUDA_HOST : TCUDA_DEVICE_CPU;
    tensor->view.device.device_id = tensor->is_device ? device : 0;
    tensor->view.dtype = dtype;
    tensor->view.shape = tensor->shape;
    tensor->view.strides = tensor->strides;
}

static void shape_of(owned *tensor, int32_t ndim, const int64_t *shape, const int64_t *strides)
{
    int64_t stride = 1;
    tensor->view.ndim = ndim;
    for (int32_t i = ndim - 1; i >= 0; i--) {
        tensor->shape[i] = shape[i];
        tensor->strides[i] = strides != NULL ? strides[i] : stride;
        stride *= shape[i];
    }
}

/* All of its memory, byte by byte: waits. */
static void set_memory(const owned *tensor, const void *bytes, size_t size)
{
    if (!tensor->is_device) {
        memcpy(tensor->memory, bytes, size);
        return;
    }
    CHECK_OK(tcuda_copy(tensor->memory, bytes, size, NULL));
    tcuda_stream *stream = NULL;
    CHECK_OK(tcuda_stream_current(tensor->view.device.device_id, &stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
}

static void drop(owned *tensor)
{
    if (tensor->is_device)
        CHECK_OK(tcuda_free(tensor->memory));
    else if (tensor->is_pinned)
        CHECK_OK(tcuda_host_free(tensor->memory));
    else
        free(tensor->memory);
}

/* Of numbers first, first + 1, ... as they lie in memory. */
static void make_numbers(owned *tensor, int32_t device, int32_t first, int32_t ndim,
    const int64_t *shape)
{
    int64_t elements = 1;
    for (int32_t i = 0; i < ndim; i++)
        elements *= shape[i];
    make(tensor, device, false, int32, (size_t)elements);
    shape_of(tensor, ndim, shape, NULL);
    int32_t *numbers = malloc((size_t)elements * sizeof *numbers + 1);
    CHECK(numbers != NULL);
    for (int64_t i = 0; i < elements; i++)
        numbers[i] = first + (int32_t)i;
    set_memory(tensor, numbers, (size_t)elements * sizeof *numbers);
    free(numbers);
}

/* Waits until the work on the current streams is done. */
static void synchronize_all(void)
{
    for (int32_t device = 0; device < all_devices; device++) {
        tcuda_stream *stream = NULL;
        CHECK_OK(tcuda_stream_current(device, &stream));
        CHECK_OK(tcuda_stream_synchronize(stream));
    }
}

/* The element of these indices, of a tensor on any device or on the host. */
static int32_t number_at(const tcuda_tensor *tensor, const int64_t *indices)
{
    int64_t offset = 0, stride = 1;
    int32_t number = 0;
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        offset += indices[i] * (tensor->strides != NULL ? tensor->strides[i] : stride);
        stride *= tensor->shape[i];
    }
    const char *at = (const char *)tensor->data + tensor->byte_offset + offset * 4;
    if (tensor->device.device_type != TCUDA_DEVICE_CUDA) {
        memcpy(&number, at, sizeof number);
        return number;
    }
    tcuda_stream *stream = NULL;
    CHECK_OK(tcuda_stream_current(tensor->device.device_id, &stream));
    CHECK_OK(tcuda_copy(&number, at, sizeof number, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    return number;
}

static void check_same(const tcuda_tensor *tensor, const tcuda_tensor *expected, int32_t add)
{
    int64_t indices[MOST_DIMS] = { 0 };
    CHECK_EQ(tensor->ndim, expected->ndim);
    for (int32_t i = 0; i < tensor->ndim; i++)
        CHECK_EQ(tensor->shape[i], expected->shape[i]);
    for (int64_t left = count_of(tensor); left > 0; left--) {
        CHECK_EQ(number_at(tensor, indices), number_at(expected, indices) + add);
        for (int32_t i = tensor->ndim - 1; i >= 0 && ++indices[i] == tensor->shape[i]; i--)
            indices[i] = 0;
    }
}

static bool is_zero(const tcuda_tensor *tensor)
{
    static const tcuda_tensor zero;
    return memcmp(tensor, &zero, sizeof zero) == 0;
}

static bool is_compact(const tcuda_tensor *tensor)
{
    int64_t stride = 1;
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        if (tensor->shape[i] != 1 && tensor->strides[i] != stride)
            return count_of(tensor) == 0;
        stride *= tensor->shape[i];
    }
    return true;
}

static void release_all(tcuda_tensor *tensors, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        CHECK_OK(tcuda_tensor_release(&tensors[i]));
        CHECK(is_zero(&tensors[i]));
    }
}

static size_t allocated(int32_t device)
{
    size_t bytes = 0;
    CHECK_OK(tcuda_memory_allocated(device, &bytes));
    return bytes;
}

/* ---- Broadcast ---- */

static void copies_go_to_all_devices(void)
{
    const int64_t shape[] = { 3, 5 };
    int32_t devices[MOST_DEVICES + 2];
    tcuda_tensor outs[MOST_DEVICES + 2];
    owned src;
    make_numbers(&src, 0, 100, 2, shape);
    const size_t before = allocated(other);
    for (int32_t i = 0; i < all_devices; i++)
        devices[i] = i;
    devices[all_devices] = other;
    devices[all_devices + 1] = HOST;
    const size_t count = (size_t)all_devices + 2;
    CHECK_OK(tcuda_comm_broadcast(&src.view, devices, count, outs));
    /* The host has its copy already. */
    const tcuda_tensor *const host = &outs[count - 1];
    CHECK_EQ(host->device.device_type, TCUDA_DEVICE_CUDA_HOST);
    for (int32_t i = 0; i < 15; i++)
        CHECK_EQ(((const int32_t *)host->data)[i], 100 + i);
    synchronize_all();
    for (size_t i = 0; i < count; i++) {
        check_same(&outs[i], &src.view, 0);
        CHECK_EQ(outs[i].dtype.bits, 32);
        CHECK(is_compact(&outs[i]));
        const bool is_own = devices[i] == 0;
        CHECK((outs[i].data == src.view.data) == is_own);
        CHECK(outs[i].shape != src.shape);
        if (devices[i] != HOST)
            CHECK_EQ(outs[i].device.device_id, devices[i]);
    }
    /* Two copies on one device are two. */
    CHECK(other == 0 || outs[other].data != outs[all_devices].data);
    release_all(outs, count);
    CHECK_EQ(allocated(other), before);
    drop(&src);
}

static void the_host_sends_too(void)
{
    const int64_t shape[] = { 2, 3 };
    const int32_t devices[] = { HOST, 0, other };
    tcuda_tensor outs[3];
    for (int pinned = 0; pinned < 2; pinned++) {
        owned src;
        make(&src, HOST, pinned, int32, 6);
        shape_of(&src, 2, shape, (const int64_t[]) { 1, 2 });
        set_memory(&src, (const int32_t[]) { 1, 2, 3, 4, 5, 6 }, 24);
        CHECK_OK(tcuda_comm_broadcast(&src.view, devices, 3, outs));
        CHECK(outs[0].data == src.memory && outs[0].strides[1] == 2);
        synchronize_all();
        for (int i = 0; i < 3; i++)
            check_same(&outs[i], &src.view, 0);
        CHECK(is_compact(&outs[1]) && is_compact(&outs[2]));
        release_all(outs, 3);
        drop(&src);
    }
}

static void outputs_have_any_layout(void)
{
    const int64_t shape[] = { 2, 3, 4 };
    owned src, outs[7];
    tcuda_tensor views[7];
    make_numbers(&src, 0, -7, 3, shape);
    const struct { int32_t device; bool pinned; int64_t strides[3]; size_t offset; } layouts[] = {
        { other, false, { 12, 4, 1 }, 0 },
        { other, false, { 1, 2, 6 }, 0 },          /* turned around */
        { 0, false, { 40, 10, 2 }, 0 },            /* with holes */
        { HOST, false, { -12, -4, -1 }, 23 },      /* from the other end */
        { HOST, true, { 12, 4, 1 }, 0 },
        { HOST, true, { 1, 2, 6 }, 3 },
        { HOST, false, { 30, 7, 1 }, 1 },
    };
    unsigned char marks[320];
    memset(marks, 0x5A, sizeof marks);
    for (int i = 0; i < 7; i++) {
        make(&outs[i], layouts[i].device, layouts[i].pinned, int32, 80);
        shape_of(&outs[i], 3, shape, layouts[i].strides);
        outs[i].view.byte_offset = layouts[i].offset * 4;
        set_memory(&outs[i], marks, sizeof marks);
        views[i] = outs[i].view;
    }
    CHECK_OK(tcuda_comm_broadcast_into(&src.view, views, 7));
    /* Pageable memory has it when the call returns, pinned memory when the stream gets there. */
    check_same(&views[3], &src.view, 0);
    check_same(&views[6], &src.view, 0);
    synchronize_all();
    for (int i = 0; i < 7; i++)
        check_same(&views[i], &src.view, 0);
    /* What lies between the elements is as it was: 4 * 24 bytes are written. */
    for (int i = 2; i < 7; i++) {
        unsigned char bytes[320];
        CHECK_OK(tcuda_copy(bytes, outs[i].memory, sizeof bytes, NULL));
        synchronize_all();
        int kept = 0;
        for (size_t at = 0; at < sizeof bytes; at += 4)
            kept += memcmp(bytes + at, marks, 4) == 0;
        CHECK_EQ(kept, 80 - 24);
    }
    /* Into itself: nothing. */
    CHECK_OK(tcuda_comm_broadcast_into(&src.view, &src.view, 1));
    for (int i = 0; i < 7; i++)
        drop(&outs[i]);
    drop(&src);
}

static void any_source_will_do(void)
{
    const int64_t shape[] = { 4, 3 };
    const int64_t layouts[][2] = { { 1, 4 }, { 8, 2 }, { 0, 1 }, { 3, 0 }, { -3, -1 }, { -3, 1 } };
    const size_t starts[] = { 0, 0, 0, 0, 11, 9 };
    const int32_t places[] = { 0, HOST };
    owned src;
    for (int place = 0; place < 2; place++) {
        for (int i = 0; i < 6; i++) {
            make_numbers(&src, places[place], 50, 1, (const int64_t[]) { 40 });
            shape_of(&src, 2, shape, layouts[i]);
            src.view.byte_offset = starts[i] * 4;
            tcuda_tensor outs[3];
            const int32_t devices[] = { other, HOST, other };
            CHECK_OK(tcuda_comm_broadcast(&src.view, devices, 3, outs));
            synchronize_all();
            for (int out = 0; out < 3; out++)
                check_same(&outs[out], &src.view, 0);
            release_all(outs, 3);
            drop(&src);
        }
    }
}

static void small_types_move_as_bytes(void)
{
    owned src;
    tcuda_tensor outs[2];
    const int32_t devices[] = { other, HOST };
    const tcuda_dtype half_bytes = { TCUDA_DTYPE_FLOAT4_E2M1FN, 4, 1 };
    make(&src, 0, false, uint8, 9);
    shape_of(&src, 2, (const int64_t[]) { 3, 6 }, NULL);
    src.view.dtype = half_bytes;
    set_memory(&src, "abcdefghi", 9);
    CHECK_OK(tcuda_comm_broadcast(&src.view, devices, 2, outs));
    CHECK_EQ(memcmp(outs[1].data, "abcdefghi", 9), 0);
    release_all(outs, 2);
    /* Every other row: three bytes of each six. */
    shape_of(&src, 2, (const int64_t[]) { 2, 6 }, (const int64_t[]) { 12, 1 });
    CHECK_OK(tcuda_comm_broadcast(&src.view, devices, 2, outs));
    CHECK_EQ(memcmp(outs[1].data, "abcghi", 6), 0);
    release_all(outs, 2);
    shape_of(&src, 1, (const int64_t[]) { 3 }, NULL);
    memset(outs, 0xAB, sizeof outs);
    const tcuda_tensor before = outs[0];
    /* One and a half. */
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_comm_broadcast(&src.view, &devices[1], 1, outs));
    CHECK(memcmp(outs, &before, sizeof before) == 0);
    drop(&src);
}

static void nothing_is_moved_too(void)
{
    const int64_t shape[] = { 0, 4 };
    const int32_t devices[] = { 0, other, HOST };
    tcuda_tensor outs[3];
    owned src, scalar;
    make(&src, 0, false, float32, 1);
    shape_of(&src, 2, shape, NULL);
    CHECK_OK(tcuda_comm_broadcast(&src.view, devices, 3, outs));
    for (int i = 0; i < 3; i++)
        CHECK(outs[i].ndim == 2 && outs[i].shape[0] == 0 && outs[i].shape[1] == 4);
    release_all(outs, 3);
    CHECK_OK(tcuda_comm_broadcast(&src.view, NULL, 0, NULL));
    CHECK_OK(tcuda_comm_broadcast_into(&src.view, NULL, 0));
    drop(&src);
    /* One element, without dimensions. */
    make_numbers(&scalar, 0, 77, 0, NULL);
    CHECK_OK(tcuda_comm_broadcast(&scalar.view, devices, 3, outs));
    synchronize_all();
    for (int i = 0; i < 3; i++)
        check_same(&outs[i], &scalar.view, 0);
    release_all(outs, 3);
    drop(&scalar);
}

/* ---- Many at once ---- */

enum { MANY = 24 };

static void make_many(owned *tensors, tcuda_tensor *views, int32_t device, int32_t first)
{
    for (int i = 0; i < MANY; i++) {
        const int64_t shape[] = { 1 + i % 5, i % 7 == 3 ? 0 : 3 * i + 1 };
        make_numbers(&tensors[i], device, first + 1000 * i, 2, shape);
        /* Some lie otherwise. */
        if (i % 4 == 1)
            shape_of(&tensors[i], 2, (const int64_t[]) { shape[1], shape[0] },
                (const int64_t[]) { 1, shape[1] });
        if (i == 5)
            tensors[i].view.ndim = 1;
        views[i] = tensors[i].view;
    }
}

static void many_share_blocks(size_t buffer_bytes)
{
    owned tensors[MANY];
    tcuda_tensor views[MANY], outs[3 * MANY];
    const int32_t devices[] = { 0, other, HOST };
    make_many(tensors, views, 0, 5);
    const size_t before = allocated(other);
    CHECK_OK(tcuda_comm_broadcast_coalesced(views, MANY, devices, 3, buffer_bytes, outs));
    synchronize_all();
    for (int i = 0; i < 3 * MANY; i++) {
        const tcuda_tensor *const from = &views[i % MANY];
        const bool is_own = i < MANY || (i < 2 * MANY && other == 0);
        check_same(&outs[i], from, 0);
        CHECK(is_own ? outs[i].data == from->data : is_compact(&outs[i]));
        if (!is_own && count_of(from) > 0)
            CHECK_EQ((uintptr_t)outs[i].data % 64, 0);
    }
    /* Blocks go with the last that lies in them, in whatever order. */
    CHECK(other == 0 || allocated(other) > before);
    for (int i = 0; i < 3 * MANY; i += 2)
        CHECK_OK(tcuda_tensor_release(&outs[i]));
    for (int i = 1; i < 3 * MANY; i += 2)
        check_same(&outs[i], &views[i % MANY], 0);
    for (int i = 3 * MANY - 1; i > 0; i -= 2)
        CHECK_OK(tcuda_tensor_release(&outs[i]));
    CHECK_EQ(allocated(other), before);
    for (int i = 0; i < MANY; i++)
        drop(&tensors[i]);
    CHECK_OK(tcuda_comm_broadcast_coalesced(NULL, 0, devices, 3, 0, NULL));
}

/* DLPack's capsule, as far as a consumer needs it. */
struct capsule {
    uint32_t version[2];
    void *manager;
    void (*deleter)(struct capsule *self);
    uint64_t flags;
    tcuda_tensor tensor;
};

static void a_part_of_a_block_becomes_a_capsule(void)
{
    owned tensors[2];
    tcuda_tensor views[2], outs[4];
    const int32_t devices[] = { 0, other };
    for (int i = 0; i < 2; i++) {
        make_numbers(&tensors[i], 0, 10 * i, 1, (const int64_t[]) { 9 });
        views[i] = tensors[i].view;
    }
    const size_t before = allocated(other);
    CHECK_OK(tcuda_comm_broadcast_coalesced(views, 2, devices, 2, 0, outs));
    struct DLManagedTensorVersioned *managed = NULL;
    tcuda_tensor copy = outs[3];
    CHECK_OK(tcuda_tensor_to_dlpack(&outs[3], &managed));
    struct capsule *const capsule = (struct capsule *)(void *)managed;
    CHECK(is_zero(&outs[3]));
    /* The copy of the struct is no tensor any more. */
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_tensor_release(&copy));
    CHECK_OK(tcuda_tensor_release(&outs[2]));
    synchronize_all();
    check_same(&capsule->tensor, &views[1], 0);
    CHECK(other == 0 || allocated(other) > before);
    capsule->deleter(capsule);
    CHECK_EQ(allocated(other), before);
    release_all(outs, 2);
    for (int i = 0; i < 2; i++)
        drop(&tensors[i]);
}

/* ---- Sums ---- */

static void set_numbers(const owned *tensor, int32_t first, int32_t step, size_t count)
{
    int32_t *numbers = malloc(count * sizeof *numbers);
    CHECK(numbers != NULL);
    for (size_t i = 0; i < count; i++)
        numbers[i] = first + step * (int32_t)i;
    set_memory(tensor, numbers, count * sizeof *numbers);
    free(numbers);
}

static void sums_are_those_of_all(void)
{
    const int64_t shape[] = { 6, 7 };
    owned inputs[MOST_DEVICES + 1];
    tcuda_tensor views[MOST_DEVICES + 1], out;
    const size_t count = (size_t)all_devices + 1;
    const int32_t n = (int32_t)count;
    for (int32_t i = 0; i < n; i++) {
        make(&inputs[i], i % all_devices, false, int32, 42);
        shape_of(&inputs[i], 2, shape, NULL);
        set_numbers(&inputs[i], i, 10, 42);
        views[i] = inputs[i].view;
    }
    const int32_t destinations[] = { 0, other, TCUDA_CURRENT_DEVICE, HOST };
    for (int i = 0; i < 4; i++) {
        CHECK_OK(tcuda_comm_reduce_add(views, count, destinations[i], &out));
        if (destinations[i] != HOST)
            synchronize_all();
        CHECK_EQ(out.device.device_type,
            destinations[i] == HOST ? TCUDA_DEVICE_CUDA_HOST : TCUDA_DEVICE_CUDA);
        for (int64_t at = 0; at < 42; at++)
            CHECK_EQ(number_at(&out, (const int64_t[]) { at / 7, at % 7 }),
                n * (n - 1) / 2 + n * 10 * (int32_t)at);
        CHECK_OK(tcuda_tensor_release(&out));
    }
    /* In place, into another layout, and into memory of the host. */
    owned turned, host;
    make(&turned, other, false, int32, 100);
    shape_of(&turned, 2, shape, (const int64_t[]) { 1, 8 });
    make(&host, HOST, false, int32, 42);
    shape_of(&host, 2, shape, NULL);
    CHECK_OK(tcuda_comm_reduce_add_into(views, count, &turned.view));
    CHECK_OK(tcuda_comm_reduce_add_into(views, count, &host.view));
    synchronize_all();
    check_same(&turned.view, &host.view, 0);
    CHECK_OK(tcuda_comm_reduce_add_into(views, count, &views[0]));
    synchronize_all();
    check_same(&views[0], &host.view, 0);
    drop(&turned);
    drop(&host);
    for (size_t i = 0; i < count; i++)
        drop(&inputs[i]);
}

/* 1e8 + 1 is 1e8 in floats, so that the order shows: the one on the destination comes first. */
static void sums_are_rounded_in_order(void)
{
    const float big[] = { 1e8F, -1e8F }, ones[] = { 1, 1 }, back[] = { -1e8F, 1e8F };
    const float *const values[] = { big, ones, back };
    owned inputs[3];
    tcuda_tensor views[3], out;
    for (int i = 0; i < 3; i++) {
        make(&inputs[i], i == 1 ? other : 0, false, float32, 2);
        shape_of(&inputs[i], 1, (const int64_t[]) { 2 }, NULL);
        set_memory(&inputs[i], values[i], 8);
        views[i] = inputs[i].view;
    }
    float result[2];
    CHECK_OK(tcuda_comm_reduce_add(views, 3, other, &out));
    CHECK_OK(tcuda_copy(result, out.data, 8, NULL));
    synchronize_all();
    if (other != 0) {
        /* ones + big rounds the ones away; the last but one is lost too. */
        CHECK(result[0] == 0 && result[1] == 0);
    } else {
        /* The last one first: back, big, ones. */
        CHECK(result[0] == 1 && result[1] == 1);
    }
    CHECK_OK(tcuda_tensor_release(&out));
    /* Of two on the destination the last comes first: back + big is 0, and 1 is kept. */
    CHECK_OK(tcuda_comm_reduce_add(views, 3, 0, &out));
    CHECK_OK(tcuda_copy(result, out.data, 8, NULL));
    synchronize_all();
    CHECK(result[0] == 1 && result[1] == 1);
    CHECK_OK(tcuda_tensor_release(&out));
    for (int i = 0; i < 3; i++)
        drop(&inputs[i]);
}

static void one_tensor_is_its_own_sum(void)
{
    owned input;
    tcuda_tensor out;
    make_numbers(&input, other, 3, 1, (const int64_t[]) { 11 });
    CHECK_OK(tcuda_comm_reduce_add(&input.view, 1, other, &out));
    CHECK(out.data == input.memory);
    CHECK_OK(tcuda_tensor_release(&out));
    CHECK_OK(tcuda_comm_reduce_add(&input.view, 1, HOST, &out));
    check_same(&out, &input.view, 0);
    CHECK_OK(tcuda_tensor_release(&out));
    drop(&input);
}

static void bools_and_bytes_are_added(void)
{
    const unsigned char first[] = { 0, 1, 0, 1, 200 }, second[] = { 0, 0, 1, 1, 100 };
    const unsigned char bools[] = { 0, 1, 1, 1, 1 }, bytes[] = { 0, 1, 1, 2, 44 };
    owned inputs[2];
    tcuda_tensor views[2], out;
    for (int is_bool = 0; is_bool < 2; is_bool++) {
        for (int i = 0; i < 2; i++) {
            make(&inputs[i], i == 0 ? 0 : other, false, uint8, 5);
            shape_of(&inputs[i], 1, (const int64_t[]) { is_bool ? 4 : 5 }, NULL);
            set_memory(&inputs[i], i == 0 ? first : second, 5);
            views[i] = inputs[i].view;
            views[i].dtype.code = is_bool ? TCUDA_DTYPE_BOOL : TCUDA_DTYPE_UINT;
        }
        CHECK_OK(tcuda_comm_reduce_add(views, 2, HOST, &out));
        CHECK_EQ(memcmp(out.data, is_bool ? bools : bytes, is_bool ? 4 : 5), 0);
        CHECK_OK(tcuda_tensor_release(&out));
        views[0].dtype.code = views[1].dtype.code = TCUDA_DTYPE_FLOAT8_E5M2;
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_comm_reduce_add(views, 2, 0, &out));
        CHECK(strstr(tcuda_last_error(), "cannot be added") != NULL);
        drop(&inputs[0]);
        drop(&inputs[1]);
    }
}

static void many_sums_at_once(int32_t destination, size_t buffer_bytes)
{
    owned tensors[2][MANY];
    tcuda_tensor views[2 * MANY], outs[MANY];
    make_many(tensors[0], views, 0, 1);
    make_many(tensors[1], views + MANY, other, 100000);
    CHECK_OK(tcuda_comm_reduce_add_coalesced(views, 2, MANY, destination, buffer_bytes, outs));
    synchronize_all();
    for (int i = 0; i < MANY; i++) {
        /* The two inputs differ by the same everywhere. */
        int64_t zeros[MOST_DIMS] = { 0 }, last[MOST_DIMS] = { 0 };
        CHECK(is_compact(&outs[i]));
        if (count_of(&outs[i]) == 0)
            continue;
        for (int32_t dim = 0; dim < outs[i].ndim; dim++)
            last[dim] = outs[i].shape[dim] - 1;
        CHECK_EQ(number_at(&outs[i], zeros),
            number_at(&views[i], zeros) + number_at(&views[MANY + i], zeros));
        CHECK_EQ(number_at(&outs[i], last),
            number_at(&views[i], last) + number_at(&views[MANY + i], last));
    }
    release_all(outs, MANY);
    /* Of one list the sums are the tensors. */
    CHECK_OK(tcuda_comm_reduce_add_coalesced(views, 1, MANY, 0, buffer_bytes, outs));
    for (int i = 0; i < MANY; i++)
        CHECK(outs[i].data == views[i].data);
    release_all(outs, MANY);
    for (int i = 0; i < MANY; i++) {
        drop(&tensors[0][i]);
        drop(&tensors[1][i]);
    }
}

/* ---- Pieces ---- */

/* The part of a tensor from `start` on along a dimension, in `shape`. */
static tcuda_tensor part_of(const tcuda_tensor *tensor, int32_t dim, int64_t start, int64_t size,
    int64_t *shape)
{
    tcuda_tensor part = *tensor;
    for (int32_t i = 0; i < tensor->ndim; i++)
        shape[i] = i == dim ? size : tensor->shape[i];
    part.shape = shape;
    part.byte_offset += (uint64_t)(start * tensor->strides[dim] * 4);
    return part;
}

static void pieces_go_to_devices(int32_t dim, bool turned, const int64_t *sizes)
{
    const int64_t shape[] = { 7, 8, 9 };
    const int32_t devices[] = { other, 0, HOST };
    tcuda_tensor outs[3];
    owned whole;
    make_numbers(&whole, 0, 0, 3, shape);
    if (turned)
        shape_of(&whole, 3, shape, (const int64_t[]) { 1, 63, 7 });
    const int32_t positive = dim < 0 ? dim + 3 : dim;
    CHECK_OK(tcuda_comm_scatter(&whole.view, devices, sizes, 3, dim, NULL, outs));
    int64_t start = 0;
    synchronize_all();
    for (int i = 0; i < 3; i++) {
        int64_t part_shape[3];
        const int64_t size = outs[i].shape[positive];
        const int64_t expected = (shape[positive] + 2) / 3;
        CHECK_EQ(size, sizes != NULL ? sizes[i]
            : i < 2 ? expected : shape[positive] - 2 * expected);
        const tcuda_tensor part = part_of(&whole.view, positive, start, size, part_shape);
        check_same(&outs[i], &part, 0);
        start += size;
        const bool is_own = devices[i] == 0;
        CHECK((outs[i].data == whole.view.data) == is_own || count_of(&outs[i]) == 0);
        /* In the tensor's order of strides. */
        CHECK(is_own || size == 0 || outs[i].strides[turned ? 0 : 2] == 1);
    }
    CHECK_EQ(start, shape[positive]);
    /* And together again, in another place. */
    tcuda_tensor joined;
    CHECK_OK(tcuda_comm_gather(outs, 3, dim, other, &joined));
    synchronize_all();
    check_same(&joined, &whole.view, 0);
    CHECK(is_compact(&joined) && joined.device.device_id == other);
    owned back;
    make(&back, HOST, false, int32, 504);
    shape_of(&back, 3, shape, (const int64_t[]) { 8, 1, 56 });
    CHECK_OK(tcuda_comm_gather_into(outs, 3, dim, &back.view));
    check_same(&back.view, &whole.view, 0);
    /* Into outputs: their sizes say how. */
    owned into[3];
    tcuda_tensor views[3];
    for (int i = 0; i < 3; i++) {
        make(&into[i], devices[2 - i], false, int32, 600);
        shape_of(&into[i], 3, outs[i].shape, NULL);
        views[i] = into[i].view;
    }
    CHECK_OK(tcuda_comm_scatter_into(&whole.view, views, 3, dim, NULL));
    synchronize_all();
    for (int i = 0; i < 3; i++) {
        check_same(&views[i], &outs[i], 0);
        drop(&into[i]);
    }
    drop(&back);
    CHECK_OK(tcuda_tensor_release(&joined));
    release_all(outs, 3);
    drop(&whole);
}

static void left_over_outputs_are_zero(void)
{
    const int32_t devices[] = { 0, other, 0, other };
    tcuda_tensor outs[4];
    owned whole;
    make_numbers(&whole, 0, 0, 1, (const int64_t[]) { 5 });
    memset(outs, 0xAB, sizeof outs);
    CHECK_OK(tcuda_comm_scatter(&whole.view, devices, NULL, 4, 0, NULL, outs));
    CHECK(outs[0].shape[0] == 2 && outs[1].shape[0] == 2 && outs[2].shape[0] == 1);
    CHECK(is_zero(&outs[3]));
    synchronize_all();
    CHECK_EQ(number_at(&outs[2], (const int64_t[]) { 0 }), 4);
    release_all(outs, 4);
    drop(&whole);
}

static void pieces_have_streams_of_their_own(void)
{
    owned whole;
    make_numbers(&whole, 0, 0, 1, (const int64_t[]) { 400000 });
    tcuda_stream *const first = create_stream(other), *const second = create_stream(other);
    tcuda_stream *const streams[] = { first, second, NULL };
    const int32_t devices[] = { other, other, other };
    tcuda_tensor outs[3];
    CHECK_OK(tcuda_comm_scatter(&whole.view, devices, NULL, 3, 0, streams, outs));
    CHECK_OK(tcuda_stream_synchronize(first));
    CHECK_OK(tcuda_stream_synchronize(second));
    synchronize_all();
    const int64_t last[] = { 133333 };
    for (int i = 0; i < 3; i++)
        CHECK_EQ(number_at(&outs[i], (const int64_t[]) { 0 }), i * 133334);
    CHECK_EQ(number_at(&outs[1], last), 133334 + 133333);
    release_all(outs, 3);
    /* Outputs of the own device are copied on the stream that is named. */
    owned into[2];
    tcuda_tensor views[2];
    for (int i = 0; i < 2; i++) {
        make(&into[i], i == 0 ? 0 : other, false, int32, 200000);
        shape_of(&into[i], 1, (const int64_t[]) { 200000 }, NULL);
        views[i] = into[i].view;
    }
    tcuda_stream *const own = create_stream(0);
    tcuda_stream *const named[] = { own, second };
    synchronize_all();
    CHECK_OK(tcuda_comm_scatter_into(&whole.view, views, 2, 0, named));
    CHECK_OK(tcuda_stream_synchronize(own));
    CHECK_OK(tcuda_stream_synchronize(second));
    CHECK_EQ(number_at(&views[0], (const int64_t[]) { 199999 }), 199999);
    CHECK_EQ(number_at(&views[1], (const int64_t[]) { 199999 }), 399999);
    if (other != 0) {
        tcuda_stream *const wrong[] = { second, own };
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT,
            tcuda_comm_scatter_into(&whole.view, views, 2, 0, wrong));
        CHECK(strstr(tcuda_last_error(), "streams[0]") != NULL);
    }
    CHECK_OK(tcuda_stream_destroy(own));
    CHECK_OK(tcuda_stream_destroy(first));
    CHECK_OK(tcuda_stream_destroy(second));
    drop(&into[0]);
    drop(&into[1]);
    drop(&whole);
}

static void channels_may_come_last(void)
{
    const int64_t shape[] = { 2, 3, 4, 5 }, last[] = { 60, 1, 15, 3 };
    owned inputs[2];
    tcuda_tensor views[2], out;
    for (int i = 0; i < 2; i++) {
        make_numbers(&inputs[i], i == 0 ? 0 : other, 200 * i, 4, shape);
        shape_of(&inputs[i], 4, shape, last);
        views[i] = inputs[i].view;
    }
    CHECK_OK(tcuda_comm_gather(views, 2, -1, 0, &out));
    CHECK(out.strides[1] == 1 && out.strides[3] == 3 && out.strides[2] == 30);
    synchronize_all();
    int64_t part_shape[4];
    for (int i = 0; i < 2; i++) {
        const tcuda_tensor part = part_of(&out, 3, 5 * i, 5, part_shape);
        check_same(&part, &views[i], 0);
    }
    CHECK_OK(tcuda_tensor_release(&out));
    /* Unless one of them lies otherwise. */
    shape_of(&inputs[1], 4, shape, NULL);
    CHECK_OK(tcuda_comm_gather(views, 2, 0, other, &out));
    CHECK(is_compact(&out) && out.shape[0] == 4);
    CHECK_OK(tcuda_tensor_release(&out));
    drop(&inputs[0]);
    drop(&inputs[1]);
}

static void single_elements_are_joined(void)
{
    owned inputs[3];
    tcuda_tensor views[3], out;
    for (int i = 0; i < 3; i++) {
        make_numbers(&inputs[i], i == 1 ? other : i == 2 ? HOST : 0, 10 * i, 0, NULL);
        views[i] = inputs[i].view;
    }
    CHECK_OK(tcuda_comm_gather(views, 3, 0, HOST, &out));
    CHECK(out.ndim == 1 && out.shape[0] == 3);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(((const int32_t *)out.data)[i], 10 * i);
        drop(&inputs[i]);
    }
    CHECK_OK(tcuda_tensor_release(&out));
}

/* ---- Order ---- */

/* Sources are written late on their streams, and written over as soon as the call returns. */
static void calls_are_in_order_with_streams(void)
{
    const int64_t shape[] = { 1 << 18 };
    const size_t bytes = 4U << 18;
    owned src, out;
    make(&src, 0, false, int32, 1 << 18);
    make(&out, other, false, int32, 1 << 18);
    shape_of(&src, 1, shape, NULL);
    shape_of(&out, 1, shape, NULL);
    /* On one device it is the same stream. */
    tcuda_stream *const from = create_stream(0);
    tcuda_stream *const to = other == 0 ? from : create_stream(other);
    synchronize_all();
    CHECK_OK(tcuda_stream_set_current(from));
    CHECK_OK(tcuda_stream_set_current(to));
    for (int round = 1; round < 4; round++) {
        fill_bytes(src.memory, round, bytes, from);
        fill_bytes(out.memory, 0x70, bytes, to);
        CHECK_OK(tcuda_comm_broadcast_into(&src.view, &out.view, 1));
        fill_bytes(src.memory, 0x60, bytes, from);
        CHECK_EQ(count_other_bytes(out.memory, round, bytes, to), 0);
        /* Memory that a call has allocated is the stream's at once. */
        tcuda_tensor copy;
        const int32_t host_too[] = { other };
        fill_bytes(src.memory, 0x10 + round, bytes, from);
        CHECK_OK(tcuda_comm_broadcast(&src.view, host_too, 1, &copy));
        fill_bytes(src.memory, 0x61, other == 0 ? 1 : bytes, from);
        if (other != 0)
            CHECK_EQ(count_other_bytes(copy.data, 0x10 + round, bytes, to), 0);
        CHECK_OK(tcuda_tensor_release(&copy));
    }
    /* A block of another stream that is freed after the call is not reused before it is read. */
    tcuda_stream *const owner = create_stream(0);
    void *const block = allocate(bytes, 0, owner);
    fill_bytes(block, 0x33, bytes, owner);
    CHECK_OK(tcuda_stream_wait_stream(from, owner));
    tcuda_tensor view = src.view;
    view.data = block;
    CHECK_OK(tcuda_comm_broadcast_into(&view, &out.view, 1));
    CHECK_OK(tcuda_free(block));
    void *const next = allocate(bytes, 0, owner);
    fill_bytes(next, 0x44, bytes, owner);
    CHECK_EQ(count_other_bytes(out.memory, 0x33, bytes, to), 0);
    CHECK_OK(tcuda_stream_synchronize(owner));
    CHECK_OK(tcuda_free(next));
    tcuda_stream *standard = NULL;
    for (int32_t device = other; device >= 0; device -= other > 0 ? other : 1) {
        CHECK_OK(tcuda_stream_default(device, &standard));
        CHECK_OK(tcuda_stream_set_current(standard));
    }
    CHECK_OK(tcuda_stream_synchronize(from));
    CHECK_OK(tcuda_stream_synchronize(to));
    CHECK_OK(tcuda_stream_destroy(owner));
    CHECK_OK(tcuda_stream_destroy(from));
    if (to != from)
        CHECK_OK(tcuda_stream_destroy(to));
    drop(&src);
    drop(&out);
}

/* ---- What is refused ---- */

static void refuse(tcuda_status status, const char *sentence)
{
    CHECK_EQ(status, TCUDA_STATUS_INVALID_ARGUMENT);
    if (strstr(tcuda_last_error(), sentence) == NULL)
        check_failed(__FILE__, __LINE__, sentence, tcuda_last_error());
}

static void what_does_not_fit_is_refused(void)
{
    const int64_t shape[] = { 2, 3 };
    owned src, wide, bytes;
    make_numbers(&src, 0, 0, 2, shape);
    make_numbers(&wide, other, 0, 2, (const int64_t[]) { 2, 4 });
    make(&bytes, 0, false, uint8, 6);
    shape_of(&bytes, 2, shape, NULL);
    tcuda_tensor outs[4];
    memset(outs, 0xAB, sizeof outs);
    const tcuda_tensor before = outs[0];
    const tcuda_tensor wrong_shape[] = { src.view, wide.view };
    const tcuda_tensor wrong_type[] = { src.view, bytes.view };
    refuse(tcuda_comm_broadcast_into(&src.view, wrong_shape, 2), "outs[1] has shape [2, 4], and [2, 3]");
    refuse(tcuda_comm_broadcast_into(&src.view, wrong_type, 2), "outs[1] has type uint8, and int32");
    refuse(tcuda_comm_reduce_add(wrong_shape, 2, 0, outs), "tensors[1] has shape [2, 4]");
    refuse(tcuda_comm_reduce_add(NULL, 0, 0, outs), "count is 0");
    refuse(tcuda_comm_gather(NULL, 0, 0, 0, outs), "count is 0");
    refuse(tcuda_comm_gather(wrong_shape, 2, 0, 0, outs), "tensors[1] has shape [2, 4]");
    refuse(tcuda_comm_gather(wrong_type, 2, 1, 0, outs), "tensors[1] has type uint8");
    refuse(tcuda_comm_gather(wrong_shape, 2, 2, 0, outs), "dim is 2");
    refuse(tcuda_comm_gather_into(wrong_shape, 2, 1, &src.view), "out has shape [2, 3], and [2, 7]");
    const int32_t devices[] = { 0, other };
    const int64_t few[] = { 1, 1 }, negative[] = { 4, -1 };
    refuse(tcuda_comm_scatter(&src.view, devices, few, 2, 1, NULL, outs), "2 together along dim");
    refuse(tcuda_comm_scatter(&src.view, devices, negative, 2, 1, NULL, outs), "is -1");
    refuse(tcuda_comm_scatter(&src.view, devices, NULL, 2, -3, NULL, outs), "dim is -3");
    refuse(tcuda_comm_scatter_into(&src.view, wrong_shape, 2, 0, NULL), "outs[1] has shape [2, 4]");
    refuse(tcuda_comm_scatter_into(&src.view, &wide.view, 1, 1, NULL), "4 together along dim");
    owned scalar;
    make_numbers(&scalar, 0, 0, 0, NULL);
    refuse(tcuda_comm_scatter(&scalar.view, devices, NULL, 2, 0, NULL, outs), "without dimensions");
    drop(&scalar);
    /* Elements that share an address cannot be written apart. */
    owned folded;
    make(&folded, 0, false, int32, 6);
    shape_of(&folded, 2, shape, (const int64_t[]) { 0, 1 });
    refuse(tcuda_comm_broadcast_into(&src.view, &folded.view, 1), "keep them apart");
    drop(&folded);
    refuse(tcuda_comm_broadcast_coalesced(&src.view, 1, NULL, 0, 0, NULL), "num_devices is 0");
    if (other != 0) {
        const int32_t reversed[] = { other, 0 };
        refuse(tcuda_comm_broadcast_coalesced(&src.view, 1, reversed, 2, 0, outs),
            "tensors[0] is on device 0");
        refuse(tcuda_comm_reduce_add(&src.view, 1, other, outs), "none of the tensors is on device");
    }
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE,
        tcuda_comm_broadcast(&src.view, (const int32_t[]) { 99 }, 1, outs));
    /* What says that it is the host's, and is a device's. */
    tcuda_tensor pretender = src.view;
    pretender.device.device_type = TCUDA_DEVICE_CPU;
    refuse(tcuda_comm_broadcast(&pretender, devices, 2, outs), "in memory of the host");
    CHECK(memcmp(&outs[0], &before, sizeof before) == 0);
    drop(&src);
    drop(&wide);
    drop(&bytes);
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    all_devices = num_devices() < MOST_DEVICES ? num_devices() : MOST_DEVICES;
    other = all_devices - 1;
    copies_go_to_all_devices();
    the_host_sends_too();
    outputs_have_any_layout();
    any_source_will_do();
    small_types_move_as_bytes();
    nothing_is_moved_too();
    many_share_blocks(0);
    many_share_blocks(1500);
    a_part_of_a_block_becomes_a_capsule();
    sums_are_those_of_all();
    sums_are_rounded_in_order();
    one_tensor_is_its_own_sum();
    bools_and_bytes_are_added();
    many_sums_at_once(0, 0);
    many_sums_at_once(other, 1500);
    many_sums_at_once(HOST, 0);
    for (int32_t dim = -1; dim < 3; dim++) {
        pieces_go_to_devices(dim, false, NULL);
        pieces_go_to_devices(dim, true, NULL);
    }
    pieces_go_to_devices(1, false, (const int64_t[]) { 0, 7, 1 });
    left_over_outputs_are_zero();
    pieces_have_streams_of_their_own();
    channels_may_come_last();
    single_elements_are_joined();
    calls_are_in_order_with_streams();
    what_does_not_fit_is_refused();
    return finish();
}
