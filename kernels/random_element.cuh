// Types of elements: their bits, and the type in which torch computes them.
#pragma once

#include "random_philox.cuh"

struct F32 {
    typedef float Acc;
    typedef u32 Raw;
    static constexpr int SIZE = 4, SHIFT = 0;
    static __device__ __forceinline__ Raw from(float a) { return float_bits(a); }
    static __device__ __forceinline__ float to(Raw raw) { return bits_float(raw); }
    static __device__ __forceinline__ Raw from_integer(i64 a)
    {
        return float_bits(float_of_long(a));
    }
    static __device__ __forceinline__ Raw from_finite(float a) { return from(a); }
};

struct F16 {
    typedef float Acc;
    typedef u32 Raw;
    static constexpr int SIZE = 2, SHIFT = 0;
    static __device__ __forceinline__ Raw from(float a) { return half_of(a); }
    static __device__ __forceinline__ float to(Raw raw) { return of_half(raw); }
    static __device__ __forceinline__ Raw from_integer(i64 a) { return half_of(float_of_long(a)); }
    static __device__ __forceinline__ Raw from_finite(float a) { return from(a); }
};

// Rounded by integers: to nearest, ties to even; any NaN becomes 0x7fff, as the GPU's own
// conversion. In the high half of a word, where a float has it; what the low half holds does not
// matter.
struct BF16 {
    typedef float Acc;
    typedef u32 Raw;
    static constexpr int SIZE = 2, SHIFT = 16;
    static __device__ __forceinline__ Raw from_finite(float a)
    {
        u32 bits = float_bits(a);
        return bits + 0x7fff + (bits >> 16 & 1);
    }
    static __device__ __forceinline__ Raw from(float a)
    {
        return a == a ? from_finite(a) : 0x7fff0000;
    }
    static __device__ __forceinline__ float to(Raw raw) { return bits_float(raw & 0xffff0000); }
    static __device__ __forceinline__ Raw from_integer(i64 a)
    {
        return from_finite(float_of_long(a));
    }
};

struct F64 {
    typedef double Acc;
    typedef u64 Raw;
    static constexpr int SIZE = 8, SHIFT = 0;
    static __device__ __forceinline__ Raw from(double a) { return double_bits(a); }
    static __device__ __forceinline__ double to(Raw raw) { return bits_double(raw); }
    static __device__ __forceinline__ Raw from_integer(i64 a)
    {
        return double_bits(double_of_long(a));
    }
    static __device__ __forceinline__ Raw from_finite(double a) { return from(a); }
};

// Integers, signed or not: what is stored are the low bits.
template <class Bits> struct Integer {
    typedef float Acc;
    typedef Bits Raw;
    static constexpr int SIZE = sizeof(Bits), SHIFT = 0;
    static __device__ __forceinline__ Raw from_integer(i64 a) { return (Bits)a; }
};

struct Bool {
    typedef float Acc;
    typedef u32 Raw;
    static constexpr int SIZE = 1, SHIFT = 0;
    static __device__ __forceinline__ Raw from_integer(i64 a) { return a != 0; }
};
