/* Enough of CUDA C++ to run a kernel without barriers on the CPU, one thread after the other. */
#pragma once

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(threads)

struct Index {
    unsigned x;
};
static Index blockIdx, threadIdx, blockDim, gridDim;

struct alignas(16) ulonglong2 {
    unsigned long long x, y;
};

static inline int __ffs(int value) { return __builtin_ffs(value); }

template <class Kernel, class... Arguments>
static void launch(unsigned grid, unsigned block, Kernel kernel, Arguments... arguments)
{
    gridDim.x = grid;
    blockDim.x = block;
    for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < block; threadIdx.x++)
            kernel(arguments...);
}
