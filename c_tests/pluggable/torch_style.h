/* What torch_style.c saw, and what it allocates with: for the test that opened it. */
#ifndef TORCH_STYLE_H
#define TORCH_STYLE_H

#include <stddef.h>
#include <stdint.h>

struct CUstream_st;

struct torch_style {
    /* Of the driver, or of the simulated machine. */
    int (*allocate)(uint64_t *ptr, size_t bytes);
    int (*release)(uint64_t ptr);
    unsigned allocated, freed, resets, inits;
    ptrdiff_t bytes;
    int device, device_count;
    struct CUstream_st *stream;
    double fraction;
    void *recorded;
    struct CUstream_st *recorded_stream;
};

#endif /* TORCH_STYLE_H */
