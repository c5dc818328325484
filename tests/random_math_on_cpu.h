/* kernels/random_math.cuh with the CPU's functions: what is IEEE's is the same, what the GPU
 * approximates is rounded from a double. */
#pragma once

#include <cmath>
#include <cstring>

template <class To, class From> static inline To bits_of(From from)
{
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

static inline float bits_float(u32 bits) { return bits_of<float>(bits); }
static inline u32 float_bits(float a) { return bits_of<u32>(a); }
static inline double bits_double(u64 bits) { return bits_of<double>(bits); }
static inline u64 double_bits(double a) { return bits_of<u64>(a); }

static inline float fma32(float a, float b, float c) { return std::fma(a, b, c); }
static inline float mul32(float a, float b) { return a * b; }
static inline float add32(float a, float b) { return a + b; }
static inline float div32(float a, float b) { return a / b; }
static inline float ceil32(float a) { return std::ceil(a); }
static inline float float_of(u32 a) { return (float)a; }
static inline float float_of_signed(int a) { return (float)a; }
static inline float float_of_long(i64 a) { return (float)a; }

static inline float fast_log(float a)
{
    return (float)std::log2((double)a) * bits_float(0x3f317218);
}
static inline float fast_log_of_normal(float a) { return fast_log(a); }
static inline float fast_exp(float a)
{
    return (float)std::exp2((double)(a * bits_float(0x3fb8aa3b)));
}
static inline void fast_sincos(float a, float *s, float *c)
{
    *s = (float)std::sin((double)a);
    *c = (float)std::cos((double)a);
}
static inline float fast_tan(float a)
{
    float s, c;
    fast_sincos(a, &s, &c);
    return s / c;
}
static inline float sqrt_of_normal_or_zero(float a) { return std::sqrt(a); }

static inline double fma64(double a, double b, double c) { return std::fma(a, b, c); }
static inline double mul64(double a, double b) { return a * b; }
static inline double add64(double a, double b) { return a + b; }
static inline double div64(double a, double b) { return a / b; }
static inline double sqrt64_of_normal_or_zero(double a) { return std::sqrt(a); }
static inline double reciprocal_about(double a) { return 1 / a; }
static inline double ceil64(double a) { return std::ceil(a); }
static inline double log1p64(double a) { return std::log1p(a); }
static inline double exp64(double a) { return std::exp(a); }
static inline double tan64(double a) { return std::tan(a); }
static inline double double_of_long(i64 a) { return (double)a; }

/* What has no place becomes the nearest that has one; a NaN is 0. */
template <class To>
static inline To saturated(float a, float least, float most, To lowest, To highest)
{
    if (!(a == a))
        return 0;
    return a < least ? lowest : a >= most ? highest : (To)a;
}
static inline u32 unsigned_of(float a) { return saturated<u32>(a, 0, 0x1p32f, 0, ~0u); }
static inline int signed_of(float a)
{
    return saturated<int>(a, -0x1p31f, 0x1p31f, -0x7fffffff - 1, 0x7fffffff);
}
static inline i64 long_of(float a)
{
    return saturated<i64>(a, -0x1p63f, 0x1p63f, -0x7fffffffffffffff - 1, 0x7fffffffffffffff);
}

static inline u32 high_halves(u32 a, u32 b) { return a >> 16 | (b & 0xffff0000); }

static inline u32 half_of(float a)
{
    if (!(a == a))
        return 0x7fff;
    u32 sign = float_bits(a) >> 16 & 0x8000;
    double magnitude = std::fabs(a);
    if (magnitude >= 65520)
        return sign | 0x7c00;
    int exponent = magnitude < 0x1p-14 ? -14 : std::ilogb(magnitude);
    // In units of the last place; it may round up into the next exponent, whose bits follow.
    return sign
        | (u32)((exponent + 14) * 1024 + (int)std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
}
static inline float of_half(u32 bits)
{
    int exponent = bits >> 10 & 31, significand = bits & 1023;
    double magnitude = exponent == 0    ? std::ldexp(significand, -24)
                       : exponent == 31 ? (significand ? NAN : INFINITY)
                                        : std::ldexp(1024 + significand, exponent - 25);
    return (float)(bits & 0x8000 ? -magnitude : magnitude);
}

static inline u32 high_product(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }
static inline u64 high_product(u64 a, u64 b) { return (u64)((unsigned __int128)a * b >> 64); }
