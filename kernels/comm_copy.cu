// Copies of collective calls: ranges to several devices, rows, and elements in any order, also over
// the links between devices.

#include "comm.cuh"

// Independent loads that a thread has in flight.
#define LOADS 4

// ---- Ranges, each to `targets` places.
//
// Word 0: entries | targets. Words 2..: the other targets less the first. An entry: source, first
// target, bytes | first tile.

// Items `i`.. of a range, one in BLOCK, up to `end`: vectors.
template <class Vector, u32 WORDS>
static __device__ __forceinline__ void spread_vectors(const Table<WORDS> &table, u32 targets,
                                                      const Vector *src, u64 dst, u32 i, u32 end)
{
    for (; i < end; i += LOADS * BLOCK) {
        Vector values[LOADS];
#pragma unroll
        for (u32 k = 0; k < LOADS; k++)
            if (i + k * BLOCK < end)
                values[k] = src[i + k * BLOCK];
        for (u32 target = 0; target < targets; target++) {
            Vector *to = (Vector *)(dst + (target == 0 ? 0 : table.words[1 + target]));
#pragma unroll
            for (u32 k = 0; k < LOADS; k++)
                if (i + k * BLOCK < end)
                    to[i + k * BLOCK] = values[k];
        }
    }
}

template <u32 WORDS> static __device__ __forceinline__ void spread(const Table<WORDS> &table)
{
    u32 targets = high(table.words[0]), tile = low(table.words[1]), tiles = high(table.words[1]);
    u64 differences = 0;
    for (u32 target = 1; target < targets; target++)
        differences |= table.words[1 + target];
    for (u32 at = blockIdx.x; at < tiles; at += gridDim.x) {
        u32 entry = entry_of(table, 1 + targets, 3, 2, at);
        u64 src = table.words[entry], dst = table.words[entry + 1];
        Span span = span_of(dst, differences | (src ^ dst), low(table.words[entry + 2]));
        u32 vectors = (u32)span.vectors, edges = span.head + span.tail;
        u32 begin = (at - high(table.words[entry + 2])) * tile;
        u32 end = vectors - begin < tile ? vectors : begin + tile;
        if (begin < vectors) {
            u64 from = src + span.head, to = dst + span.head;
            u32 i = begin + threadIdx.x;
            if (span.vector == 16)
                spread_vectors(table, targets, (const ulonglong2 *)from, to, i, end);
            else if (span.vector == 4)
                spread_vectors(table, targets, (const u32 *)from, to, i, end);
            else
                spread_vectors(table, targets, (const u8 *)from, to, i, end);
        }
        // The edges are at most 30 bytes: the first tile's.
        if (begin == 0 && threadIdx.x < edges) {
            u64 x = edge_of(span, threadIdx.x);
            u8 value = *(const u8 *)(src + x);
            for (u32 target = 0; target < targets; target++)
                *(u8 *)(dst + x + (target == 0 ? 0 : table.words[1 + target])) = value;
        }
    }
}

// ---- Rows.
//
// An entry: source, target, width, pitch of the source, pitch of the target, rows | first tile. The
// items are the vectors of all rows, then the bytes at their edges.

template <class Vector>
static __device__ __forceinline__ void row_vectors(u64 src, u64 dst, i64 src_pitch,
                                                   i64 dst_pitch, u32 columns, u32 i, u32 end)
{
    for (; i < end; i += LOADS * BLOCK) {
        Vector values[LOADS];
        u64 to[LOADS];
#pragma unroll
        for (u32 k = 0; k < LOADS; k++) {
            if (i + k * BLOCK < end) {
                u32 row = (i + k * BLOCK) / columns, column = i + k * BLOCK - row * columns;
                u64 x = (u64)column * sizeof(Vector);
                to[k] = dst + (u64)(row * dst_pitch) + x;
                values[k] = *(const Vector *)(src + (u64)(row * src_pitch) + x);
            }
        }
#pragma unroll
        for (u32 k = 0; k < LOADS; k++)
            if (i + k * BLOCK < end)
                *(Vector *)to[k] = values[k];
    }
}

template <u32 WORDS> static __device__ __forceinline__ void rows(const Table<WORDS> &table)
{
    u32 tile = low(table.words[1]), tiles = high(table.words[1]);
    for (u32 at = blockIdx.x; at < tiles; at += gridDim.x) {
        u32 entry = entry_of(table, 2, 6, 5, at);
        u64 src = table.words[entry], dst = table.words[entry + 1];
        i64 src_pitch = (i64)table.words[entry + 3], dst_pitch = (i64)table.words[entry + 4];
        u32 rows = low(table.words[entry + 5]);
        u64 pitches = rows > 1 ? src_pitch | dst_pitch : 0;
        Span span = span_of(dst, pitches | (src ^ dst), table.words[entry + 2]);
        u32 columns = (u32)span.vectors, vectors = rows * columns;
        u32 edges = span.head + span.tail, items = vectors + rows * edges;
        u32 begin = (at - high(table.words[entry + 5])) * tile;
        u32 end = items - begin < tile ? items : begin + tile;
        u32 i = begin + threadIdx.x, last = end < vectors ? end : vectors;
        if (i < last) {
            u64 from = src + span.head, to = dst + span.head;
            if (span.vector == 16)
                row_vectors<ulonglong2>(from, to, src_pitch, dst_pitch, columns, i, last);
            else if (span.vector == 4)
                row_vectors<u32>(from, to, src_pitch, dst_pitch, columns, i, last);
            else
                row_vectors<u8>(from, to, src_pitch, dst_pitch, columns, i, last);
        }
        if (end > vectors) {
            u32 start = begin > vectors ? begin : vectors;
            for (u32 j = start + threadIdx.x; j < end; j += BLOCK) {
                u32 row = (j - vectors) / edges;
                u64 x = edge_of(span, j - vectors - row * edges);
                *(u8 *)(dst + (u64)(row * dst_pitch) + x) =
                    *(const u8 *)(src + (u64)(row * src_pitch) + x);
            }
        }
    }
}

// ---- Elements in any order.
//
// Words 2..: for each entry, where its words begin | its first tile. An entry: source, target,
// elements | dimensions, the logarithm of an element's bytes to base 2; then for each dimension its
// size, and the steps in bytes of source and target. The first dimension changes fastest.

struct Places {
    u64 src, dst;
};

template <u32 WORDS>
static __device__ __forceinline__ Places places_of(const Table<WORDS> &table, u32 entry,
                                                   u32 element)
{
    Places places = {table.words[entry], table.words[entry + 1]};
    u32 dims = high(table.words[entry + 2]);
#pragma unroll 1
    for (u32 d = 0; d < dims; d++) {
        u32 word = entry + 4 + 3 * d, size = low(table.words[word]);
        u32 rest = element / size;
        u64 index = element - rest * size;
        places.src += index * table.words[word + 1];
        places.dst += index * table.words[word + 2];
        element = rest;
    }
    return places;
}

template <class Element>
static __device__ __forceinline__ void move(const Places *places, u32 count)
{
    Element values[LOADS];
#pragma unroll
    for (u32 k = 0; k < LOADS; k++)
        if (k < count)
            values[k] = *(const Element *)places[k].src;
#pragma unroll
    for (u32 k = 0; k < LOADS; k++)
        if (k < count)
            *(Element *)places[k].dst = values[k];
}

template <u32 WORDS> static __device__ __forceinline__ void strided(const Table<WORDS> &table)
{
    u32 tile = low(table.words[1]), tiles = high(table.words[1]);
    for (u32 at = blockIdx.x; at < tiles; at += gridDim.x) {
        u64 found = table.words[entry_of(table, 2, 1, 0, at)];
        u32 entry = low(found), items = low(table.words[entry + 2]);
        u32 begin = (at - high(found)) * tile;
        u32 end = items - begin < tile ? items : begin + tile;
        u32 size = low(table.words[entry + 3]);
        for (u32 i = begin + threadIdx.x; i < end; i += LOADS * BLOCK) {
            Places places[LOADS];
            u32 count = (end - i + BLOCK - 1) / BLOCK;
#pragma unroll
            for (u32 k = 0; k < LOADS; k++)
                if (k < count)
                    places[k] = places_of(table, entry, i + k * BLOCK);
            if (size == 4)
                move<ulonglong2>(places, count);
            else if (size == 3)
                move<u64>(places, count);
            else if (size == 2)
                move<u32>(places, count);
            else if (size == 1)
                move<u16>(places, count);
            else
                move<u8>(places, count);
        }
    }
}

#define KERNEL(name, function)                                                                     \
    extern "C" __global__ void __launch_bounds__(BLOCK) tcuda_comm_##name(const Table<FEW> table)  \
    {                                                                                              \
        function(table);                                                                           \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                            \
    tcuda_comm_##name##_many(const Table<MANY> table)                                              \
    {                                                                                              \
        function(table);                                                                           \
    }

KERNEL(spread, spread)
KERNEL(rows, rows)
KERNEL(strided, strided)
