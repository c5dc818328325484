/* What the tests of collectives share: tensors on any device or on the host, and their elements. */
#ifndef COMM_H
#define COMM_H

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

static inline int64_t count_of(const tcuda_tensor *tensor)
{
    int64_t count = 1;
    for (int32_t i = 0; i < tensor->ndim; i++)
        count *= tensor->shape[i];
    return count;
}

/* Memory for `elements` elements on a device, or on the host: pinned, or not. */
static inline void make(owned *tensor, int32_t device, bool pinned, tcuda_dtype dtype,
    size_t elements)
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

static inline void shape_of(owned *tensor, int32_t ndim, const int64_t *shape,
    const int64_t *strides)
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
static inline void set_memory(const owned *tensor, const void *bytes, size_t size)
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

static inline void drop(owned *tensor)
{
    if (tensor->is_device)
        CHECK_OK(tcuda_free(tensor->memory));
    else if (tensor->is_pinned)
        CHECK_OK(tcuda_host_free(tensor->memory));
    else
        free(tensor->memory);
}

/* Of numbers first, first + 1, ... as they lie in memory. */
static inline void make_numbers(owned *tensor, int32_t device, int32_t first, int32_t ndim,
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
static inline void synchronize_all(void)
{
    for (int32_t device = 0; device < all_devices; device++) {
        tcuda_stream *stream = NULL;
        CHECK_OK(tcuda_stream_current(device, &stream));
        CHECK_OK(tcuda_stream_synchronize(stream));
    }
}

/* The element of these indices, of a tensor on any device or on the host. */
static inline int32_t number_at(const tcuda_tensor *tensor, const int64_t *indices)
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

static inline void check_same(const tcuda_tensor *tensor, const tcuda_tensor *expected, int32_t add)
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

static inline bool is_zero(const tcuda_tensor *tensor)
{
    static const tcuda_tensor zero;
    return memcmp(tensor, &zero, sizeof zero) == 0;
}

static inline bool is_compact(const tcuda_tensor *tensor)
{
    int64_t stride = 1;
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        if (tensor->shape[i] != 1 && tensor->strides[i] != stride)
            return count_of(tensor) == 0;
        stride *= tensor->shape[i];
    }
    return true;
}

static inline void release_all(tcuda_tensor *tensors, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        CHECK_OK(tcuda_tensor_release(&tensors[i]));
        CHECK(is_zero(&tensors[i]));
    }
}

static inline size_t allocated(int32_t device)
{
    size_t bytes = 0;
    CHECK_OK(tcuda_memory_allocated(device, &bytes));
    return bytes;
}

enum { MANY = 24 };

static inline void make_many(owned *tensors, tcuda_tensor *views, int32_t device, int32_t first)
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

/* First of all, after SKIP_WITHOUT_GPU. */
static inline void find_devices(void)
{
    const int32_t found = num_devices();
    /* A driver that fails for ever has none. */
    CHECK(found > 0);
    all_devices = found < MOST_DEVICES ? found : MOST_DEVICES;
    other = all_devices - 1;
}

#endif /* COMM_H */
