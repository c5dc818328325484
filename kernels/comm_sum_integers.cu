// Sums of integers, with a sign or not: several in a word, of which none carries into its
// neighbour.

#include "comm_sum.cuh"

template <u32 BYTES, u64 TOPS> struct Packed {
    static constexpr u32 SIZE = BYTES;
    static __device__ __forceinline__ u64 word(u64 a, u64 b)
    {
        return ((a & ~TOPS) + (b & ~TOPS)) ^ ((a ^ b) & TOPS);
    }
    static __device__ __forceinline__ u64 one(u64 a, u64 b) { return word(a, b); }
};

struct B64 {
    static constexpr u32 SIZE = 8;
    static __device__ __forceinline__ u64 word(u64 a, u64 b) { return a + b; }
    static __device__ __forceinline__ u64 one(u64 a, u64 b) { return word(a, b); }
};

// Either of them.
struct Bool {
    static constexpr u32 SIZE = 1;
    static __device__ __forceinline__ u64 word(u64 a, u64 b)
    {
        u64 any = a | b;
        any |= any >> 4;
        any |= any >> 2;
        any |= any >> 1;
        return any & 0x0101010101010101;
    }
    static __device__ __forceinline__ u64 one(u64 a, u64 b) { return word(a, b); }
};

typedef Packed<1, 0x8080808080808080> B8;
typedef Packed<2, 0x8000800080008000> B16;
typedef Packed<4, 0x8000000080000000> B32;

SUM(bool, Bool)
SUM(b8, B8)
SUM(b16, B16)
SUM(b32, B32)
SUM(b64, B64)
