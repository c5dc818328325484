/* TEMPORARY STAND-IN: remove with TCUDA_TEST_NATIVE once tcuda.h declares these functions. */
#ifndef NATIVE_H
#define NATIVE_H

#include "tcuda.h"

static inline tcuda_status tcuda_malloc_native_aligned(size_t bytes, size_t alignment,
    int32_t device, struct CUstream_st *cu_stream, void **out_ptr)
{
    int32_t current = device;
    if ((alignment & (alignment - 1)) != 0 || alignment > 512)
        return tcuda_host_malloc(1, NULL); /* TCUDA_STATUS_INVALID_ARGUMENT */
    if (device == TCUDA_CURRENT_DEVICE) {
        tcuda_status status = tcuda_device_current(&current);
        if (status != TCUDA_STATUS_OK)
            return status;
    }
    void *const ptr = tcuda_torch_malloc((ptrdiff_t)bytes, current, cu_stream);
    if (ptr == NULL && bytes != 0)
        return TCUDA_STATUS_OUT_OF_MEMORY;
    *out_ptr = ptr;
    return TCUDA_STATUS_OK;
}

static inline tcuda_status tcuda_malloc_native(size_t bytes, int32_t device,
    struct CUstream_st *cu_stream, void **out_ptr)
{
    return tcuda_malloc_native_aligned(bytes, 0, device, cu_stream, out_ptr);
}

static inline void tcuda_ort_free(void *ptr)
{
    (void)tcuda_free(ptr);
}

static inline void tcuda_ort_empty_cache(void)
{
    const tcuda_status ignored = tcuda_memory_empty_cache();
    (void)ignored;
}

static inline tcuda_status tcuda_free_on(void *ptr, struct CUstream_st *cu_stream)
{
    tcuda_torch_record_stream(ptr, cu_stream);
    return tcuda_free(ptr);
}

#endif /* NATIVE_H */
