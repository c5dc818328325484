/* Enough of CUDA C++ to run a kernel without barriers on the CPU, one thread after the other. */
#pragma once

#define __device__
#define __global__
#define __constant__ const
#define __forceinline__ inline
#define __launch_bounds__(...)

struct Index {
    unsigned x;
};
static thread_local Index blockIdx, threadIdx, blockDim, gridDim;

struct alignas(16) ulonglong2 {
    unsigned long long x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
static inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y)
{
    return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }

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
