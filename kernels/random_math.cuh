// The arithmetic of the random kernels, spelled out: which operations, in which order, rounded how.
//
// PyTorch's values come from CUDA 13.0's compiler, with contraction, without fast-math. What it
// makes of them was read off its machine code; here every fused and every single operation is
// named, so that no compiler chooses. What is left to the compiler, NVRTC 11.8, is instruction for
// instruction as in CUDA 13.0 (scripts/gpu/math_gpu.py compares all of it on a GPU).
#pragma once

static __device__ __forceinline__ float fma32(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}
static __device__ __forceinline__ float mul32(float a, float b) { return __fmul_rn(a, b); }
static __device__ __forceinline__ float add32(float a, float b) { return __fadd_rn(a, b); }
static __device__ __forceinline__ float div32(float a, float b) { return __fdiv_rn(a, b); }
static __device__ __forceinline__ float ceil32(float a) { return ceilf(a); }
static __device__ __forceinline__ float bits_float(u32 bits) { return __uint_as_float(bits); }
static __device__ __forceinline__ u32 float_bits(float a) { return __float_as_uint(a); }
static __device__ __forceinline__ float float_of(u32 a) { return __uint2float_rn(a); }
static __device__ __forceinline__ float float_of_signed(int a) { return __int2float_rn(a); }
static __device__ __forceinline__ float float_of_long(i64 a) { return __ll2float_rn(a); }

// Where the argument is a normal number, so that what the form for all of them adds is idle.
static __device__ __forceinline__ float lg2_of_normal(float a)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(a));
    return y;
}
static __device__ __forceinline__ float rsqrt_of_normal(float a)
{
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(a));
    return y;
}

// __logf, __expf, __tanf and __sincosf.
static __device__ __forceinline__ float fast_log_of_normal(float a)
{
    return mul32(lg2_of_normal(a), bits_float(0x3f317218)); // ln 2
}
static __device__ __forceinline__ float fast_log(float a) { return __logf(a); }
static __device__ __forceinline__ float fast_exp(float a) { return __expf(a); }
static __device__ __forceinline__ float fast_tan(float a) { return __tanf(a); }
static __device__ __forceinline__ void fast_sincos(float a, float *s, float *c)
{
    __sincosf(a, s, c);
}

// sqrtf of -0 or of a normal number from 2^-100 on: its steps without its way out for the rest.
static __device__ __forceinline__ float sqrt_of_normal_or_zero(float a)
{
    float y = rsqrt_of_normal(a);
    float root = mul32(a, y), half = mul32(y, 0.5f);
    float rest = fma32(-root, root, a);
    return a == 0 ? a : fma32(rest, half, root);
}

// Of the high word of a normal number; what follows them here makes them exact.
static __device__ __forceinline__ double reciprocal_about(double a)
{
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(a));
    return y;
}
static __device__ __forceinline__ double rsqrt_about(double a)
{
    double y;
    asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(a));
    return y;
}

static __device__ __forceinline__ double fma64(double a, double b, double c)
{
    return __fma_rn(a, b, c);
}
static __device__ __forceinline__ double mul64(double a, double b) { return __dmul_rn(a, b); }
static __device__ __forceinline__ double add64(double a, double b) { return __dadd_rn(a, b); }
static __device__ __forceinline__ double div64(double a, double b) { return __ddiv_rn(a, b); }
static __device__ __forceinline__ double sqrt64_of_normal_or_zero(double a)
{
    double y = rsqrt_about(a);
    double e = __fma_rn(a, -__dmul_rn(y, y), 1.0);
    y = __fma_rn(__fma_rn(e, 0.375, 0.5), __dmul_rn(y, e), y);
    double root = __dmul_rn(a, y);
    double rest = __fma_rn(-root, root, a);
    return a == 0 ? a : __fma_rn(rest, __dmul_rn(y, 0.5), root);
}
static __device__ __forceinline__ double ceil64(double a) { return ceil(a); }
static __device__ __forceinline__ double log1p64(double a) { return log1p(a); }
static __device__ __forceinline__ double exp64(double a) { return exp(a); }
static __device__ __forceinline__ double tan64(double a) { return tan(a); }
static __device__ __forceinline__ double bits_double(u64 bits)
{
    return __longlong_as_double(bits);
}
static __device__ __forceinline__ u64 double_bits(double a) { return __double_as_longlong(a); }
static __device__ __forceinline__ double double_of_long(i64 a) { return __ll2double_rn(a); }

// Towards zero; what has no place becomes the nearest that has one.
static __device__ __forceinline__ u32 unsigned_of(float a) { return __float2uint_rz(a); }
static __device__ __forceinline__ int signed_of(float a) { return __float2int_rz(a); }
static __device__ __forceinline__ i64 long_of(float a) { return __float2ll_rz(a); }

// The high halves of two words, the first one's lower.
static __device__ __forceinline__ u32 high_halves(u32 a, u32 b)
{
    return __byte_perm(a, b, 0x7632);
}

static __device__ __forceinline__ u32 half_of(float a)
{
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(a));
    return bits;
}
static __device__ __forceinline__ float of_half(u32 bits)
{
    float a;
    asm("cvt.f32.f16 %0, %1;" : "=f"(a) : "h"((unsigned short)bits));
    return a;
}

static __device__ __forceinline__ u32 high_product(u32 a, u32 b) { return __umulhi(a, b); }
static __device__ __forceinline__ u64 high_product(u64 a, u64 b) { return __umul64hi(a, b); }
