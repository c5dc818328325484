// Philox 4x32-10: a block of four words of a stream; and the types that all these files speak of.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#include "random_math.cuh"

#define BLOCK 256

// Four words of a stream.
struct Words {
    u32 x, y, z, w;
};

// Philox 4x32-10: multipliers, and what is added to the key from round to round.
#define M0 0xd2511f53u
#define M1 0xcd9e8d57u
#define W0 0x9e3779b9u
#define W1 0xbb67ae85u

struct Keys {
    u32 low[10], high[10];
};

static __device__ __forceinline__ Keys keys_of(u64 seed)
{
    Keys keys;
#pragma unroll
    for (u32 round = 0; round < 10; round++) {
        keys.low[round] = (u32)seed + round * W0;
        keys.high[round] = (u32)(seed >> 32) + round * W1;
    }
    return keys;
}

// The same number, which the compiler does not compute again instead of keeping it.
static __device__ __forceinline__ u32 kept(u32 a)
{
    asm volatile("mov.b32 %0, %0;" : "+r"(a));
    return a;
}

// Rounds `first`.. of ten.
static __device__ __forceinline__ Words rounds(Words c, const Keys &keys, u32 first)
{
#pragma unroll
    for (u32 round = first; round < 10; round++) {
        u64 p = (u64)M0 * c.x, q = (u64)M1 * c.z;
        c = Words{(u32)(q >> 32) ^ c.y ^ keys.low[round], (u32)q,
                  (u32)(p >> 32) ^ c.w ^ keys.high[round], (u32)p};
    }
    return c;
}

static __device__ __forceinline__ Words words_of(const Keys &keys, u64 block, u64 stream)
{
    Words counter = {(u32)block, (u32)(block >> 32), (u32)stream, (u32)(stream >> 32)};
    return rounds(counter, keys, 0);
}
