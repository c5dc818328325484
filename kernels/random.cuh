// What the kernels that fill tensors with random numbers share.
//
// The value of an element is PyTorch's: torch launches T threads, of which thread t draws from
// Philox's stream t of the seed, four words at a time (a block), and its w-th block gives elements
// (w*DRAWS + i)*T + t. Here a thread takes LANES neighbouring streams, so that what it writes for
// one i is a vector, and every `slices`-th block of them. src/random/plan.rs is the other side.
#pragma once

#include "random_distribution.cuh"

// Seed and offset: values, or where they are on the device; as tcuda_philox_state.
struct Philox {
    u64 seed, offset;
    const u64 *seed_ptr, *offset_ptr;
};

// A tensor whose elements follow each other without gaps.
struct Target {
    u32 numel;
    u32 threads; // of torch: T
    u32 waves;   // blocks of a stream: numel by T*DRAWS, rounded up
    u32 slices;  // threads of ours that share a stream
    u32 lead;    // lanes of the first thread that do not exist, so that vectors are aligned
    u32 full;    // waves of which every element exists
};

// Elements of SIZE bytes, SHIFT bits up in their words: how many make a vector, a vector of them,
// one.
template <int SIZE, int SHIFT> struct Stores;
template <> struct Stores<1, 0> {
    static constexpr int LANES = 4;
    template <class Raw> static __device__ __forceinline__ void vector(u8 *at, const Raw *v)
    {
        *(u32 *)at = (u32)v[0] | (u32)v[1] << 8 | (u32)v[2] << 16 | (u32)v[3] << 24;
    }
    static __device__ __forceinline__ void one(u8 *at, u32 v) { *at = (u8)v; }
};
template <> struct Stores<2, 0> {
    static constexpr int LANES = 4;
    template <class Raw> static __device__ __forceinline__ void vector(u8 *at, const Raw *v)
    {
        *(uint2 *)at = make_uint2((u32)v[0] | (u32)v[1] << 16, (u32)v[2] | (u32)v[3] << 16);
    }
    static __device__ __forceinline__ void one(u8 *at, u32 v) { *(u16 *)at = (u16)v; }
};
template <> struct Stores<2, 16> {
    static constexpr int LANES = 4;
    static __device__ __forceinline__ void vector(u8 *at, const u32 *v)
    {
        *(uint2 *)at = make_uint2(high_halves(v[0], v[1]), high_halves(v[2], v[3]));
    }
    static __device__ __forceinline__ void one(u8 *at, u32 v) { *(u16 *)at = (u16)(v >> 16); }
};
template <> struct Stores<4, 0> {
    static constexpr int LANES = 4;
    static __device__ __forceinline__ void vector(u8 *at, const u32 *v)
    {
        *(uint4 *)at = make_uint4(v[0], v[1], v[2], v[3]);
    }
    static __device__ __forceinline__ void one(u8 *at, u32 v) { *(u32 *)at = v; }
};
template <> struct Stores<8, 0> {
    static constexpr int LANES = 2;
    static __device__ __forceinline__ void vector(u8 *at, const u64 *v)
    {
        *(ulonglong2 *)at = make_ulonglong2(v[0], v[1]);
    }
    static __device__ __forceinline__ void one(u8 *at, u64 v) { *(u64 *)at = v; }
};

template <class Element> struct StoresOf {
    typedef Stores<Element::SIZE, Element::SHIFT> Type;
};

// What the first two rounds leave of a stream: the rest of them is the same for all streams.
struct Lane {
    u32 low, p_high, p_low;
};

// What bounds it on an H200 (132 multiprocessors, 1.98 GHz, fills of 4.65 TB/s): a warp's round of
// this loop, 128 streams, is of uniform floats 268 instructions, of which 124 take the integer unit
// (16 lanes a cycle in each quarter of a multiprocessor) and 67 are wide products (as many, twice
// as long): some 270 cycles for 2 KiB in each quarter, or 8 TB/s, so that memory is what bounds it.
// Of bfloat16 it is 199 on the integer unit for 1 KiB, 2.7 TB/s; of bytes 0.5 KiB, 2 TB/s.
template <class Distribution>
static __device__ __forceinline__ void flat(u8 *address, const Philox &philox,
                                            const Target &target, const Scalars &scalars)
{
    typedef typename StoresOf<typename Distribution::Element>::Type Store;
    typedef typename Distribution::Raw Raw;
    const int LANES = Store::LANES, DRAWS = Distribution::DRAWS, SIZE = Distribution::Element::SIZE;

    u32 column = blockIdx.x / target.slices, slice = blockIdx.x - column * target.slices;
    // The first stream; before the first and after the last there is none.
    int first = (int)((column * BLOCK + threadIdx.x) * LANES) - (int)target.lead;
    int threads = (int)target.threads;
    if (first >= threads)
        return;
    bool whole = first >= 0 && first + LANES <= threads;

    u64 seed = philox.seed_ptr ? *philox.seed_ptr : philox.seed;
    u64 offset = philox.offset + (philox.offset_ptr ? *philox.offset_ptr : 0);
    Keys keys = keys_of(seed);
    Distribution distribution(scalars);
    u32 span = target.threads * DRAWS;
    // Bytes from one draw of a stream to the next, and from wave to wave of this thread.
    u64 row = (u64)target.threads * SIZE, step = row * DRAWS * target.slices;

    u32 wave = slice;
    while (wave < target.waves) {
        // Waves to the next carry into the block number's high word: one round of this loop, nearly
        // always.
        u64 block = offset / 4 + wave;
        u32 high = (u32)(block >> 32), carry = 0 - (u32)block;
        u32 end = carry == 0 || target.waves - wave <= carry ? target.waves : wave + carry;
        Lane lanes[LANES];
#pragma unroll
        for (int v = 0; v < LANES; v++) {
            u64 q = (u64)M1 * (u32)(first + v);
            u64 p = (u64)M0 * ((u32)(q >> 32) ^ high ^ keys.low[0]);
            // Worth their registers where there are few of other things.
            if (SIZE < 8)
                lanes[v] = Lane{kept((u32)q), kept((u32)(p >> 32)), kept((u32)p)};
            else
                lanes[v] = Lane{(u32)q, (u32)(p >> 32), (u32)p};
        }
        u8 *at = address + (i64)((u64)wave * span + first) * SIZE;
        for (; wave < end; wave += target.slices, at += step) {
            u64 p = (u64)M0 * (u32)(offset / 4 + wave);
            u64 q = (u64)M1 * ((u32)(p >> 32) ^ keys.high[0]);
            u32 x = (u32)(q >> 32) ^ keys.low[1], y = (u32)q, z = (u32)p ^ keys.high[1];
            Raw out[DRAWS][LANES];
#pragma unroll
            for (int v = 0; v < LANES; v++) {
                Words words = {x ^ lanes[v].low, y, z ^ lanes[v].p_high, lanes[v].p_low};
                Raw values[DRAWS];
                distribution(rounds(words, keys, 2), values);
#pragma unroll
                for (int i = 0; i < DRAWS; i++)
                    out[i][v] = values[i];
            }
            if (whole && wave < target.full) {
#pragma unroll
                for (int i = 0; i < DRAWS; i++)
                    Store::vector(at + i * row, out[i]);
                continue;
            }
#pragma unroll
            for (int i = 0; i < DRAWS; i++) {
                u32 li = wave * span + i * target.threads + first;
                if (whole && li + LANES <= target.numel) {
                    Store::vector(at + i * row, out[i]);
                } else {
#pragma unroll
                    for (int v = 0; v < LANES; v++) {
                        bool exists = first + v >= 0 && first + v < threads;
                        // Where the first lanes do not exist, li may be below 0.
                        if (exists && li + v < target.numel)
                            Store::one(at + i * row + v * SIZE, out[i][v]);
                    }
                }
            }
        }
    }
}

// ---- Filling what has gaps.

// As many as PyTorch's.
#define DIMS 25

// A dimension: its size as a divisor, and what a step is in bytes.
struct Dimension {
    Modulo<u32> size;
    i64 stride;
};

// In the order of linear indices: the first changes fastest.
struct Shape {
    u32 dims, element;
    Dimension dim[DIMS];
};

static __device__ __forceinline__ i64 offset_of(const Shape &shape, u32 li)
{
    i64 offset = 0;
#pragma unroll 1
    for (u32 d = 0; d < shape.dims; d++) {
        const Modulo<u32> &size = shape.dim[d].size;
        u32 t = high_product(li, size.magic);
        u32 q = (t + ((li - t) >> size.first)) >> size.second;
        offset += (i64)(li - q * size.divisor) * shape.dim[d].stride;
        li = q;
    }
    return offset;
}

// In a list of distributions: there is none of this number.
struct None {
    typedef u32 Raw;
    typedef F32 Element;
    static constexpr int DRAWS = 4;
    __device__ __forceinline__ None(const Scalars &) {}
    __device__ __forceinline__ void operator()(const Words &, Raw *out) const
    {
        out[0] = out[1] = out[2] = out[3] = 0;
    }
};

// Of a list of distributions that of a number: elements of a block, bytes of one, a block's
// elements.
template <class First, class... Rest> static __device__ __forceinline__ u32 draws_of(u32 number)
{
    if constexpr (sizeof...(Rest) != 0)
        if (number != 0)
            return draws_of<Rest...>(number - 1);
    return First::DRAWS;
}
template <class First, class... Rest> static __device__ __forceinline__ u32 bytes_of(u32 number)
{
    if constexpr (sizeof...(Rest) != 0)
        if (number != 0)
            return bytes_of<Rest...>(number - 1);
    return First::Element::SIZE;
}
template <class First, class... Rest>
static __device__ __forceinline__ void draw(u32 number, const Scalars &scalars, const Words &words,
                                            u64 *out)
{
    if constexpr (sizeof...(Rest) != 0) {
        if (number != 0) {
            draw<Rest...>(number - 1, scalars, words, out);
            return;
        }
    }
    typename First::Raw values[First::DRAWS];
    First distribution(scalars);
    distribution(words, values);
#pragma unroll
    for (int i = 0; i < First::DRAWS; i++)
        out[i] = (u64)values[i] >> First::Element::SHIFT;
}

// One of the distributions, which is chosen when it runs: what is shared is there once.
template <class... Distributions>
static __device__ __forceinline__ void strided(u8 *address, const Philox &philox,
                                               const Target &target, const Scalars &scalars,
                                               const Shape &shape)
{
    u32 column = blockIdx.x / target.slices, slice = blockIdx.x - column * target.slices;
    u32 t = column * BLOCK + threadIdx.x;
    if (t >= target.threads)
        return;
    u64 seed = philox.seed_ptr ? *philox.seed_ptr : philox.seed;
    u64 offset = philox.offset + (philox.offset_ptr ? *philox.offset_ptr : 0);
    Keys keys = keys_of(seed);
    u32 draws = draws_of<Distributions...>(shape.element);
    u32 bytes = bytes_of<Distributions...>(shape.element);
    for (u32 wave = slice; wave < target.waves; wave += target.slices) {
        u64 values[4] = {};
        draw<Distributions...>(
            shape.element, scalars, words_of(keys, offset / 4 + wave, t), values);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 li = (wave * draws + i) * target.threads + t;
            if (i >= draws || li >= target.numel)
                break;
            u8 *at = address + offset_of(shape, li);
            if (bytes == 1)
                *at = (u8)values[i];
            else if (bytes == 2)
                *(u16 *)at = (u16)values[i];
            else if (bytes == 4)
                *(u32 *)at = (u32)values[i];
            else
                *(u64 *)at = values[i];
        }
    }
}

// Blocks that a multiprocessor is to hold, which bounds the registers; found by trying, on an H200.
#define RESIDENT 4

#define FLAT(name, ...)                                                                            \
    extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)                                  \
    tcuda_random_##name(u8 *address, Philox philox, Target target, Scalars scalars)                \
    {                                                                                              \
        flat<__VA_ARGS__>(address, philox, target, scalars);                                       \
    }

// The same elements in a tensor with gaps, of one of the distributions.
#define STRIDED(name, ...)                                                                         \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                            \
    tcuda_random_##name##_strided(u8 *address, Philox philox, Target target, Scalars scalars,      \
                                  Shape shape)                                                     \
    {                                                                                              \
        strided<__VA_ARGS__>(address, philox, target, scalars, shape);                             \
    }
