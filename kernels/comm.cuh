// What the kernels of collective calls share: tables of entries as parameters, of which each block
// of threads takes tiles. src/collectives/path/table.rs writes them.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#include "random_math.cuh"

#define BLOCK 256

// A parameter of a kernel is copied whole at each launch: there is a short one for few entries.
template <u32 WORDS> struct Table {
    u64 words[WORDS];
};
#define FEW 60
#define MANY 504

// Word 0: entries, and in the high half a number of the kernel's own. Word 1: items of a tile, and
// all tiles. Then BEFORE words of the kernel's own, then the entries, of `size` words each, which
// have their first tile in the high half of word `first`.
static __device__ __forceinline__ u32 low(u64 word) { return (u32)word; }
static __device__ __forceinline__ u32 high(u64 word) { return (u32)(word >> 32); }

// The last entry whose first tile is not after `tile`: where its words begin.
template <u32 WORDS>
static __device__ __forceinline__ u32 entry_of(const Table<WORDS> &table, u32 start, u32 size,
                                               u32 first, u32 tile)
{
    u32 from = 0, to = low(table.words[0]);
    while (to - from > 1) {
        u32 middle = (from + to) / 2;
        if (high(table.words[start + middle * size + first]) <= tile)
            from = middle;
        else
            to = middle;
    }
    return start + from * size;
}

// A range of bytes in vectors: those before the first whole one, and after the last. `differences`
// is everything in which the addresses differ that are used alike: that decides how long a vector
// is.
struct Span {
    u32 vector, head, tail;
    u64 vectors;
};
static __device__ __forceinline__ Span span_of(u64 dst, u64 differences, u64 bytes)
{
    Span span;
    u32 odd = (u32)differences;
    // Few lengths: each is code that a driver compiles at the first use.
    span.vector = odd % 16 == 0 ? 16 : odd % 4 == 0 ? 4 : 1;
    span.head = -(u32)dst & (span.vector - 1);
    if (span.head > bytes)
        span.head = (u32)bytes;
    u32 shift = span.vector == 16 ? 4 : span.vector / 2;
    span.vectors = (bytes - span.head) >> shift;
    span.tail = (u32)(bytes - span.head - (span.vectors << shift));
    return span;
}

// The item `edge` of those bytes: where it is in the range.
static __device__ __forceinline__ u64 edge_of(const Span &span, u32 edge)
{
    return edge < span.head ? edge : edge + span.vectors * span.vector;
}
