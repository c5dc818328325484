/* An allocator as one writes it for torch.cuda.CUDAPluggableAllocator, with every optional function
 * that C can have. It is not for several threads. */
#include "torch_style.h"

#define EXPORTED __attribute__((visibility("default")))

extern EXPORTED struct torch_style torch_style;
struct torch_style torch_style;

EXPORTED void *torch_style_alloc(ptrdiff_t bytes, int device, struct CUstream_st *stream);
EXPORTED void torch_style_free(void *ptr, ptrdiff_t bytes, int device,
    struct CUstream_st *stream);
EXPORTED void torch_style_init(int device_count);
EXPORTED void torch_style_reset(void);
EXPORTED void torch_style_memory_fraction(double fraction, int device);
EXPORTED void *torch_style_base_alloc(void *ptr, size_t *bytes);
EXPORTED void torch_style_record_stream(void *ptr, struct CUstream_st *stream);

static void note(ptrdiff_t bytes, int device, struct CUstream_st *stream)
{
    torch_style.bytes = bytes;
    torch_style.device = device;
    torch_style.stream = stream;
}

void *torch_style_alloc(ptrdiff_t bytes, int device, struct CUstream_st *stream)
{
    uint64_t ptr = 0;
    note(bytes, device, stream);
    if (torch_style.allocate == NULL || torch_style.allocate(&ptr, (size_t)bytes) != 0)
        return NULL;
    torch_style.allocated++;
    return (void *)(uintptr_t)ptr;
}

void torch_style_free(void *ptr, ptrdiff_t bytes, int device, struct CUstream_st *stream)
{
    note(bytes, device, stream);
    torch_style.freed++;
    (void)torch_style.release((uint64_t)(uintptr_t)ptr);
}

void torch_style_init(int device_count)
{
    torch_style.inits++;
    torch_style.device_count = device_count;
}

void torch_style_reset(void)
{
    torch_style.resets++;
}

void torch_style_memory_fraction(double fraction, int device)
{
    torch_style.fraction = fraction;
    torch_style.device = device;
}

void *torch_style_base_alloc(void *ptr, size_t *bytes)
{
    *bytes = (size_t)torch_style.bytes;
    return ptr;
}

void torch_style_record_stream(void *ptr, struct CUstream_st *stream)
{
    torch_style.recorded = ptr;
    torch_style.recorded_stream = stream;
}
