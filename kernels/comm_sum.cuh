// Sums of collective calls: (s0 + s1) + s2 and so on, rounded to the type after each step, in the
// order of the sources wherever they are; so the result is the same to the bit however work is cut.
//
// Word 0: entries | sources. An entry: target, elements | first tile, the sources. The items are
// the vectors of 16 bytes, then the elements before the first and after the last of those.
#pragma once

#include "comm.cuh"

// Elements where they are not aligned to their size.
template <int SIZE> static __device__ __forceinline__ u64 load_bytes(u64 at)
{
    u64 bits = 0;
#pragma unroll
    for (int k = 0; k < SIZE; k++)
        bits |= (u64) * (const u8 *)(at + k) << 8 * k;
    return bits;
}
template <int SIZE> static __device__ __forceinline__ void store_bytes(u64 at, u64 bits)
{
#pragma unroll
    for (int k = 0; k < SIZE; k++)
        *(u8 *)(at + k) = (u8)(bits >> 8 * k);
}

template <class Number, u32 WORDS>
static __device__ __forceinline__ void sum(const Table<WORDS> &table)
{
    const u32 SIZE = Number::SIZE;
    u32 sources = high(table.words[0]), tile = low(table.words[1]), tiles = high(table.words[1]);
    for (u32 at = blockIdx.x; at < tiles; at += gridDim.x) {
        u32 entry = entry_of(table, 2, 2 + sources, 1, at);
        const u64 *source = &table.words[entry + 2];
        u64 dst = table.words[entry], differences = 0;
        for (u32 k = 0; k < sources; k++)
            differences |= source[k] ^ dst;
        u64 elements = low(table.words[entry + 1]);
        Span span = span_of(dst, differences, elements * SIZE);
        // Shorter vectors, or elements that are cut by them: one element after the other.
        if (span.vector != 16 || span.head % SIZE != 0) {
            span.vectors = 0;
            span.head = 0;
        }
        u32 vectors = (u32)span.vectors;
        // Elements of the edges.
        u32 head = span.head / SIZE, items = (u32)elements - vectors * (16 / SIZE) + vectors;
        u32 begin = (at - high(table.words[entry + 1])) * tile;
        u32 end = items - begin < tile ? items : begin + tile;
        u32 last = end < vectors ? end : vectors, i = begin + threadIdx.x;
        for (; i < last; i += BLOCK) {
            ulonglong2 sum = ((const ulonglong2 *)(source[0] + span.head))[i];
#pragma unroll 2
            for (u32 k = 1; k < sources; k++) {
                ulonglong2 next = ((const ulonglong2 *)(source[k] + span.head))[i];
                sum.x = Number::word(sum.x, next.x);
                sum.y = Number::word(sum.y, next.y);
            }
            ((ulonglong2 *)(dst + span.head))[i] = sum;
        }
        for (i = (begin > vectors ? begin : vectors) + threadIdx.x; i < end; i += BLOCK) {
            u64 x = i - vectors < head ? i - vectors : i - vectors + (u64)vectors * (16 / SIZE);
            x *= SIZE;
            u64 bits = load_bytes<SIZE>(source[0] + x);
#pragma unroll 1
            for (u32 k = 1; k < sources; k++)
                bits = Number::one(bits, load_bytes<SIZE>(source[k] + x));
            store_bytes<SIZE>(dst + x, bits);
        }
    }
}

#define SUM(name, Number)                                                                          \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                            \
    tcuda_comm_sum_##name(const Table<FEW> table)                                                  \
    {                                                                                              \
        sum<Number>(table);                                                                        \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                            \
    tcuda_comm_sum_##name##_many(const Table<MANY> table)                                          \
    {                                                                                              \
        sum<Number>(table);                                                                        \
    }
