/* DLPack as its consumers have it, and a library that lends tensors. */
#ifndef DL_TENSOR_H
#define DL_TENSOR_H

#include <stddef.h>

#include "support.h"

/* DLPack 1.0's own structs, written down once more: what consumers are compiled with. */
typedef struct { int32_t device_type, device_id; } dl_device;
typedef struct { uint8_t code, bits; uint16_t lanes; } dl_data_type;
typedef struct {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_data_type dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;
typedef struct { uint32_t major, minor; } dl_version;
typedef struct dl_managed {
    dl_version version;
    void *manager_ctx;
    void (*deleter)(struct dl_managed *self);
    uint64_t flags;
    dl_tensor tensor;
} dl_managed;

enum { READ_ONLY = 1, COPIED = 2, PADDED = 4 };

static const tcuda_dtype float32 = { TCUDA_DTYPE_FLOAT, 32, 1 };

/* ---- A library that lends ---- */

static atomic_int deleted;

static inline void delete(dl_managed *self)
{
    CHECK(self->manager_ctx == &deleted);
    atomic_fetch_add(&deleted, 1);
    memset(self, 0x5A, sizeof *self);
}

static inline dl_managed lend(void *data, int32_t ndim, int64_t *shape, int64_t *strides)
{
    const dl_managed managed = {
        .version = { 1, 0 }, .manager_ctx = &deleted, .deleter = delete,
        .tensor = { .data = data, .device = { TCUDA_DEVICE_CPU, 0 }, .ndim = ndim,
            .dtype = { TCUDA_DTYPE_FLOAT, 32, 1 }, .shape = shape, .strides = strides },
    };
    return managed;
}

static inline struct DLManagedTensorVersioned *capsule(dl_managed *managed)
{
    return (struct DLManagedTensorVersioned *)(void *)managed;
}

static inline bool is_zero(const tcuda_tensor *tensor)
{
    static const tcuda_tensor zero;
    return memcmp(tensor, &zero, sizeof zero) == 0;
}

#endif /* DL_TENSOR_H */
