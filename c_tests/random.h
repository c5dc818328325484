/* What the tests of random numbers share: tensors at the start of one block of memory, and a model
 * of torch's kernels. The includer asks for POSIX. */
#ifndef RANDOM_H
#define RANDOM_H

#include <math.h>

#include "support.h"

#define boolean ((tcuda_dtype){ TCUDA_DTYPE_BOOL, 8, 1 })
#define uint8 ((tcuda_dtype){ TCUDA_DTYPE_UINT, 8, 1 })
#define uint32 ((tcuda_dtype){ TCUDA_DTYPE_UINT, 32, 1 })
#define int8 ((tcuda_dtype){ TCUDA_DTYPE_INT, 8, 1 })
#define int16 ((tcuda_dtype){ TCUDA_DTYPE_INT, 16, 1 })
#define int32 ((tcuda_dtype){ TCUDA_DTYPE_INT, 32, 1 })
#define int64 ((tcuda_dtype){ TCUDA_DTYPE_INT, 64, 1 })
#define float16 ((tcuda_dtype){ TCUDA_DTYPE_FLOAT, 16, 1 })
#define bfloat16 ((tcuda_dtype){ TCUDA_DTYPE_BFLOAT, 16, 1 })
#define float32 ((tcuda_dtype){ TCUDA_DTYPE_FLOAT, 32, 1 })
#define float64 ((tcuda_dtype){ TCUDA_DTYPE_FLOAT, 64, 1 })
#define complex64 ((tcuda_dtype){ TCUDA_DTYPE_COMPLEX, 64, 1 })
#define float8 ((tcuda_dtype){ TCUDA_DTYPE_FLOAT8_E4M3FN, 8, 1 })

/* Device memory, and the host's copy of it. */
enum { BYTES = 8 << 20 };
static char *memory;
static union { uint8_t u8[BYTES]; uint32_t u32[BYTES / 4]; uint64_t u64[BYTES / 8];
    float f32[BYTES / 4]; int64_t i64[BYTES / 8]; int32_t i32[BYTES / 4]; } host;

static inline tcuda_tensor tensor_of(void *data, tcuda_dtype dtype, int32_t ndim, int64_t *shape,
    int64_t *strides)
{
    int32_t device = 0;
    CHECK_OK(tcuda_device_current(&device));
    const tcuda_tensor tensor = { .data = data, .device = { TCUDA_DEVICE_CUDA, device },
        .ndim = ndim, .dtype = dtype, .shape = shape, .strides = strides };
    return tensor;
}

/* A row of elements at the start of the memory; one at a time. */
static inline const tcuda_tensor *row(tcuda_dtype dtype, int64_t numel)
{
    static int64_t shape[1];
    static tcuda_tensor tensor;
    shape[0] = numel;
    tensor = tensor_of(memory, dtype, 1, shape, NULL);
    return &tensor;
}

static inline void fetch(size_t bytes)
{
    CHECK_OK(tcuda_copy(&host, memory, bytes, NULL));
    CHECK_OK(tcuda_stream_synchronize(NULL));
}

static inline void seed(uint64_t seed)
{
    CHECK_OK(tcuda_random_manual_seed(TCUDA_CURRENT_DEVICE, seed));
}

static inline uint64_t offset(void)
{
    uint64_t offset = 77;
    CHECK_OK(tcuda_generator_offset_get(NULL, &offset));
    return offset;
}

/* ---- A model of torch's kernels ---- */

static uint64_t threads_of_device;

static inline void measure_device(void)
{
    tcuda_device_info info = TCUDA_INIT(tcuda_device_info);
    CHECK_OK(tcuda_device_properties(TCUDA_CURRENT_DEVICE, &info));
    threads_of_device = 256 * (uint64_t)info.multi_processor_count
        * (uint64_t)(info.max_threads_per_multi_processor / 256);
}

static inline void philox(uint64_t key, uint64_t block, uint64_t stream, uint32_t c[4])
{
    uint32_t k[2] = { (uint32_t)key, (uint32_t)(key >> 32) };
    c[0] = (uint32_t)block, c[1] = (uint32_t)(block >> 32);
    c[2] = (uint32_t)stream, c[3] = (uint32_t)(stream >> 32);
    for (int i = 0; i < 10; i++) {
        const uint64_t p = UINT64_C(0xD2511F53) * c[0], q = UINT64_C(0xCD9E8D57) * c[2];
        const uint32_t next[] = { (uint32_t)(q >> 32) ^ c[1] ^ k[0], (uint32_t)q,
            (uint32_t)(p >> 32) ^ c[3] ^ k[1], (uint32_t)p };
        memcpy(c, next, sizeof next);
        k[0] += 0x9E3779B9, k[1] += 0xBB67AE85;
    }
}

/* The 32 or 64 bits of element i of n; draws is 4 or 2. */
static inline uint64_t drawn(uint64_t key, uint64_t offset, uint64_t n, uint64_t draws, uint64_t i)
{
    uint64_t threads = (n + 255) / 256 * 256;
    if (threads > threads_of_device)
        threads = threads_of_device;
    uint32_t words[4];
    philox(key, offset / 4 + i / (threads * draws), i % threads, words);
    const uint64_t at = i % (threads * draws) / threads;
    return draws == 4 ? words[at] : (uint64_t)words[2 * at] << 32 | words[2 * at + 1];
}

static inline uint64_t increment(uint64_t n, uint64_t draws)
{
    uint64_t threads = (n + 255) / 256 * 256;
    if (threads > threads_of_device)
        threads = threads_of_device;
    return ((n - 1) / (threads * draws) + 1) * 4;
}

static inline float uniform_of(uint64_t bits)
{
    const float u = fmaf((float)(uint32_t)bits, 0x1p-32f, 0x1p-33f);
    return u == 1.0f ? 0.0f : u;
}

static inline void refuses(tcuda_status expected, tcuda_status status, const char *word)
{
    CHECK_EQ(status, expected);
    if (strstr(tcuda_last_error(), word) == NULL)
        check_failed(__FILE__, __LINE__, word, tcuda_last_error());
}

/* First and last. */
static inline void begin_random(void)
{
    memory = allocate(BYTES, TCUDA_CURRENT_DEVICE, NULL);
    measure_device();
}

static inline int finish_random(void)
{
    CHECK_OK(tcuda_free(memory));
    return finish();
}

#endif /* RANDOM_H */
