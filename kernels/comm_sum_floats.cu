// Sums of floating numbers. Those of 16 bits are added as floats: of two of them that is exact
// enough to be rounded once more to what the true sum would be.

#include "comm_sum.cuh"

struct F64 {
    static constexpr u32 SIZE = 8;
    static __device__ __forceinline__ u64 one(u64 a, u64 b)
    {
        return double_bits(add64(bits_double(a), bits_double(b)));
    }
    static __device__ __forceinline__ u64 word(u64 a, u64 b) { return one(a, b); }
};

struct F32 {
    static constexpr u32 SIZE = 4;
    static __device__ __forceinline__ u32 one(u32 a, u32 b)
    {
        return float_bits(add32(bits_float(a), bits_float(b)));
    }
    static __device__ __forceinline__ u64 word(u64 a, u64 b)
    {
        return one(low(a), low(b)) | (u64)one(high(a), high(b)) << 32;
    }
};

struct F16 {
    static constexpr u32 SIZE = 2;
    static __device__ __forceinline__ u32 one(u32 a, u32 b)
    {
        return half_of(add32(of_half(a), of_half(b)));
    }
    static __device__ __forceinline__ u32 two(u32 a, u32 b)
    {
        return one(a & 0xffff, b & 0xffff) | one(a >> 16, b >> 16) << 16;
    }
    static __device__ __forceinline__ u64 word(u64 a, u64 b)
    {
        return two(low(a), low(b)) | (u64)two(high(a), high(b)) << 32;
    }
};

struct BF16 {
    static constexpr u32 SIZE = 2;
    // In the high halves of words, where floats have them; the low half of what comes out is not 0.
    static __device__ __forceinline__ u32 high_one(u32 a, u32 b)
    {
        float sum = add32(bits_float(a), bits_float(b));
        u32 bits = float_bits(sum);
        return sum == sum ? bits + 0x7fff + (bits >> 16 & 1) : 0x7fff0000;
    }
    static __device__ __forceinline__ u32 one(u32 a, u32 b)
    {
        return high_one(a << 16, b << 16) >> 16;
    }
    static __device__ __forceinline__ u32 two(u32 a, u32 b)
    {
        return high_halves(high_one(a << 16, b << 16), high_one(a & 0xffff0000, b & 0xffff0000));
    }
    static __device__ __forceinline__ u64 word(u64 a, u64 b)
    {
        return two(low(a), low(b)) | (u64)two(high(a), high(b)) << 32;
    }
};

SUM(f16, F16)
SUM(bf16, BF16)
SUM(f32, F32)
SUM(f64, F64)
