// Words of a stream to uniform and normal numbers.
#pragma once

#include "random_philox.cuh"

template <class Acc> struct Draws;
template <> struct Draws<float> {
    static constexpr int COUNT = 4;
};
template <> struct Draws<double> {
    static constexpr int COUNT = 2;
};

static __device__ __forceinline__ float fused(float a, float b, float c) { return fma32(a, b, c); }
static __device__ __forceinline__ double fused(double a, double b, double c)
{
    return fma64(a, b, c);
}
static __device__ __forceinline__ float product(float a, float b) { return mul32(a, b); }
static __device__ __forceinline__ double product(double a, double b) { return mul64(a, b); }
static __device__ __forceinline__ float scalar(u64 word, float) { return bits_float((u32)word); }
static __device__ __forceinline__ double scalar(u64 word, double) { return bits_double(word); }

// In (0, 1].
static __device__ __forceinline__ float uniform_of(u32 x)
{
    return fma32(float_of(x), bits_float(0x2f800000), bits_float(0x2f000000)); // 2^-32, 2^-33
}

// The 53 bits of x ^ y << 21 as a double: each half in the significand of a power of two, and those
// taken off again; all of it exact, and without a conversion of integers, which is slow.
static __device__ __forceinline__ double double_of53(u32 x, u32 y)
{
    u32 low = x ^ y << 21, high = y >> 11;
    double upper = bits_double((u64)0x45300000 << 32 | high); // 2^84 + high*2^32
    double lower = bits_double((u64)0x43300000 << 32 | low);  // 2^52 + low
    return add64(add64(upper, -bits_double(0x4530000000100000)), lower);
}

static __device__ __forceinline__ double uniform_of(u32 x, u32 y)
{
    double z = double_of53(x, y);
    return fma64(z, bits_double(0x3ca0000000000000), bits_double(0x3c90000000000000));
}

static __device__ __forceinline__ void uniforms(const Words &r, float *u)
{
    u[0] = uniform_of(r.x), u[1] = uniform_of(r.y), u[2] = uniform_of(r.z), u[3] = uniform_of(r.w);
}

static __device__ __forceinline__ void uniforms(const Words &r, double *u)
{
    u[0] = uniform_of(r.x, r.y), u[1] = uniform_of(r.z, r.w);
}

// logf of a number from 2^-33 to 1, without what only others need.
static __device__ __forceinline__ float log_of_uniform(float u)
{
    u32 bits = float_bits(u);
    u32 exponent = (bits - 0x3f2aaaab) & 0xff800000;
    float f = add32(bits_float(bits - exponent), -1.0f);
    float p = fma32(bits_float(0xbe055027), f, bits_float(0x3e1039f6));
    p = fma32(p, f, bits_float(0xbdf8cdcc));
    p = fma32(p, f, bits_float(0x3e0f2955));
    p = fma32(p, f, bits_float(0xbe2ad8b9));
    p = fma32(p, f, bits_float(0x3e4ced0b));
    p = fma32(p, f, bits_float(0xbe7fff22));
    p = fma32(p, f, bits_float(0x3eaaaa78));
    p = fma32(p, f, -0.5f);
    p = fma32(mul32(f, p), f, f);
    // logf scales the exponent to 1 first; exact, so that it may as well scale ln 2: by 2^-23.
    return fma32(float_of_signed((int)exponent), bits_float(0x33b17218), p);
}

// Box and Muller's, as curand has it.
static __device__ __forceinline__ void normal_pair(u32 x, u32 y, float *n)
{
    float u = uniform_of(x);
    float v = fma32(float_of(y), bits_float(0x30c90fdb), bits_float(0x30490fdb)); // 2 pi 2^-32
    float s = sqrt_of_normal_or_zero(mul32(log_of_uniform(u), -2.0f));
    float sine, cosine;
    fast_sincos(v, &sine, &cosine);
    n[0] = mul32(sine, s);
    n[1] = mul32(cosine, s);
}

static __device__ __forceinline__ void normals(const Words &r, float *n)
{
    normal_pair(r.x, r.y, n);
    normal_pair(r.z, r.w, n + 2);
}

// Coefficients lie in constant memory, where an instruction reads them on its way.
static __constant__ u64 LOG64[] = {
    0x3eb1380b3ae80f1e, 0x3ed0ee258b7a8b04, 0x3ef3b2669f02676f, 0x3f1745cba9ab0956,
    0x3f3c71c72d1b5154, 0x3f624924923be72d, 0x3f8999999999a3c4, 0x3fb5555555555554,
    0x3fe62e42fefa39ef, // ln 2, and what it lacks
    0x3c7abc9e3b39803f,
};
static __constant__ u64 COS64[] = {
    0xbda8ff8320fd8164, 0x3e21eea7c1ef8528, 0xbe927e4f8e06e6d9, 0x3efa01a019ddbce9,
    0xbf56c16c16c15d47, 0x3fa5555555555551, 0xbfe0000000000000, 0x3ff0000000000000,
};
static __constant__ u64 SIN64[] = {
    0x3de5db65f9785eba, 0xbe5ae5f12cb0d246, 0x3ec71de369ace392, 0xbf2a01a019db62a1,
    0x3f81111111110818, 0xbfc5555555555554,
};

template <int COUNT>
static __device__ __forceinline__ double polynomial(const u64 (&coefficients)[COUNT], int terms,
    double x)
{
    double p = bits_double(coefficients[0]);
#pragma unroll
    for (int i = 1; i < terms; i++)
        p = fma64(p, x, bits_double(coefficients[i]));
    return p;
}

// log of a number from 2^-54 to 1, without what only others need.
static __device__ __forceinline__ double log_of_uniform(double u)
{
    u64 bits = double_bits(u);
    u32 high = (u32)(bits >> 32), significand = (high & 0xfffff) | 0x3ff00000;
    // From the square root of 2 on, half of it.
    u32 above = significand >= 0x3ff6a09f;
    double m = bits_double((u64)(significand - (above << 20)) << 32 | (u32)bits);
    u32 exponent = (high >> 20) - 1023 + above;
    double e = add64(bits_double((u64)0x43300000 << 32 | (exponent ^ 0x80000000)),
                     -bits_double(0x4330000080000000));

    double sum = add64(m, 1.0), less = add64(m, -1.0);
    double r = reciprocal_about(sum);
    double rest = fma64(-sum, r, 1.0);
    r = fma64(fma64(rest, rest, rest), r, r);
    double half = mul64(less, r), q = fma64(less, r, half), square = mul64(q, q);
    double p = polynomial(LOG64, 8, square);
    double lost = add64(less, -q);
    lost = mul64(r, fma64(-q, less, add64(lost, lost)));
    p = fma64(mul64(square, p), q, lost);
    double ln2 = bits_double(LOG64[8]);
    double y = fma64(e, ln2, q);
    p = add64(p, -add64(fma64(-e, ln2, y), -q));
    return add64(y, fma64(e, bits_double(LOG64[9]), p));
}

// sincospi of a number from 0 to 2, likewise.
static __device__ __forceinline__ void sincospi_of_uniform(double v, double *sine, double *cosine)
{
    // Quarters of a turn, to nearest, ties to even: in the low bits beside a large number.
    double large = bits_double(0x4338000000000000);
    double t = fma64(v, 2.0, large);
    u32 quarter = (u32)double_bits(t);
    double r = fma64(add64(t, -large), -0.5, v);
    double x = fma64(r, bits_double(0x400921fb54442d18), mul64(r, bits_double(0x3ca1a62633145c07)));
    double square = mul64(x, x);
    double c = polynomial(COS64, 8, square);
    double s = polynomial(SIN64, 6, square);
    s = fma64(fma64(s, square, 0.0), x, x);
    double first = quarter & 1 ? c : s, second = quarter & 1 ? -s : c;
    // Zeros are without a sign.
    *sine = add64(quarter & 2 ? -first : first, 0.0);
    *cosine = add64(quarter & 2 ? -second : second, 0.0);
}

static __device__ __forceinline__ void normals(const Words &r, double *n)
{
    double u = uniform_of(r.x, r.y);
    double v = fma64(double_of53(r.z, r.w), bits_double(0x3cb0000000000000),
                     bits_double(0x3ca0000000000000));
    double s = sqrt64_of_normal_or_zero(mul64(log_of_uniform(u), -2.0));
    double sine, cosine;
    sincospi_of_uniform(v, &sine, &cosine);
    n[0] = mul64(sine, s);
    n[1] = mul64(cosine, s);
}
