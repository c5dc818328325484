// Each function twice: as the random kernels spell it, and as C that the compiler makes of it what
// it makes of PyTorch's. Input i of a launch is word start + i; what a double needs more is hashed
// of it.

#include "random.cuh"

static __device__ __forceinline__ u32 hashed(u32 x)
{
    x ^= x >> 16, x *= 0x7feb352d, x ^= x >> 15, x *= 0x846ca68b, x ^= x >> 16;
    return x;
}

#define BOTH(name, Out, ours, theirs)                                                              \
    extern "C" __global__ void ours_##name(Out *out, u32 start)                                    \
    {                                                                                              \
        u32 i = blockIdx.x * blockDim.x + threadIdx.x, x = start + i, y = hashed(x);               \
        (void)y;                                                                                   \
        out[i] = ours;                                                                             \
    }                                                                                              \
    extern "C" __global__ void theirs_##name(Out *out, u32 start)                                  \
    {                                                                                              \
        u32 i = blockIdx.x * blockDim.x + threadIdx.x, x = start + i, y = hashed(x);               \
        (void)y;                                                                                   \
        out[i] = theirs;                                                                           \
    }

#define INV 2.3283064e-10f
#define INV_2PI (2.3283064e-10f * 6.2831855f)
#define INV53 1.1102230246251565e-16

static __device__ __forceinline__ float c_uniform(u32 x) { return x * INV + (INV / 2.0f); }
static __device__ __forceinline__ double c_uniform(u32 x, u32 y)
{
    u64 z = (u64)x ^ ((u64)y << (53 - 32));
    return z * INV53 + (INV53 / 2.0);
}
static __device__ __forceinline__ float2 c_normal(u32 x, u32 y)
{
    float2 r;
    float u = x * INV + (INV / 2), v = y * INV_2PI + (INV_2PI / 2);
    float s = sqrtf(-2.0f * logf(u));
    __sincosf(v, &r.x, &r.y);
    r.x *= s;
    r.y *= s;
    return r;
}
static __device__ __forceinline__ double2 c_normal64(u32 x)
{
    double2 r;
    u32 y0 = hashed(x + 1), y1 = hashed(x + 2);
    u64 zy = (u64)y0 ^ ((u64)y1 << (53 - 32));
    double u = c_uniform(x, hashed(x)), v = zy * (INV53 * 2.0) + INV53;
    double s = sqrt(-2.0 * log(u));
    sincospi(v, &r.x, &r.y);
    r.x *= s;
    r.y *= s;
    return r;
}
static __device__ __forceinline__ float normal_of(u32 x, u32 y, int which)
{
    float n[2];
    normal_pair(x, y, n);
    return n[which];
}
static __device__ __forceinline__ double normal64_of(u32 x, int which)
{
    double n[2];
    normals(Words{x, hashed(x), hashed(x + 1), hashed(x + 2)}, n);
    return n[which];
}
static __device__ __forceinline__ double log64_few(u32 x)
{
    return log_of_uniform(uniform_of(x, hashed(x) >> 20));
}
static __device__ __forceinline__ float c_cauchy(float val)
{
    const float eps = 1.1920928955078125e-07f, below = 1 - eps;
    val = (val > below ? below : val);
    val = (val < eps ? eps : val);
    return __tanf(3.14159274f * (val - 0.5f));
}
static __device__ __forceinline__ float c_exponential(float val)
{
    const float eps = 1.1920928955078125e-07f;
    return val >= 1.0f - eps / 2 ? -eps / 2 : __logf(val);
}
static __device__ __forceinline__ double c_exponential(double val)
{
    const double eps = 2.220446049250313e-16;
    return val >= 1.0 - eps / 2 ? -eps / 2 : log(val);
}
static __device__ __forceinline__ float sine(float a)
{
    float s, c;
    fast_sincos(a, &s, &c);
    return s;
}
static __device__ __forceinline__ float cosine(float a)
{
    float s, c;
    fast_sincos(a, &s, &c);
    return c;
}
static __device__ __forceinline__ float c_sine(float a)
{
    float s, c;
    __sincosf(a, &s, &c);
    return s;
}
static __device__ __forceinline__ float c_cosine(float a)
{
    float s, c;
    __sincosf(a, &s, &c);
    return c;
}

// Of every word, or of every float.
BOTH(uniform, float, uniform_of(x), c_uniform(x))
BOTH(log_of_uniform, float, log_of_uniform(uniform_of(x)), logf(c_uniform(x)))
BOTH(root, float, sqrt_of_normal_or_zero(mul32(log_of_uniform(uniform_of(x)), -2.0f)),
     sqrtf(-2.0f * logf(c_uniform(x))))
BOTH(sqrt, float, sqrt_of_normal_or_zero(bits_float(x)), sqrtf(__uint_as_float(x)))
BOTH(fast_log_of_uniform, float, fast_log_of_normal(uniform_of(x)), __logf(c_uniform(x)))
BOTH(fast_log, float, fast_log(bits_float(x)), __logf(__uint_as_float(x)))
BOTH(fast_exp, float, fast_exp(bits_float(x)), __expf(__uint_as_float(x)))
BOTH(fast_tan, float, fast_tan(bits_float(x)), __tanf(__uint_as_float(x)))
BOTH(fast_sin, float, sine(bits_float(x)), c_sine(__uint_as_float(x)))
BOTH(fast_cos, float, cosine(bits_float(x)), c_cosine(__uint_as_float(x)))
BOTH(normal_first, float, normal_of(x, y, 0), c_normal(x, y).x)
BOTH(normal_second, float, normal_of(x, y, 1), c_normal(x, y).y)
BOTH(normal_first_of_angle, float, normal_of(y, x, 0), c_normal(y, x).x)
BOTH(normal_second_of_angle, float, normal_of(y, x, 1), c_normal(y, x).y)
BOTH(exponential, float, exponential_log(uniform_of(x)), c_exponential(c_uniform(x)))
BOTH(cauchy, float, cauchy_tan(uniform_of(x)), c_cauchy(c_uniform(x)))
BOTH(geometric, float, geometric_of(uniform_of(x), geometric_divisor(uniform_of(y))),
     ceilf(__logf(c_uniform(x)) / __logf(1.0f + -c_uniform(y))))
BOTH(divide, float, div32(bits_float(x), bits_float(y)), __uint_as_float(x) / __uint_as_float(y))
BOTH(half, u32, half_of(bits_float(x)), (u32)half_of(__uint_as_float(x)))
BOTH(bfloat, u32, BF16::from(bits_float(x)) >> 16, BF16::from(__uint_as_float(x)) >> 16)

// Doubles, of samples.
BOTH(uniform64, double, uniform_of(x, y), c_uniform(x, y))
BOTH(log64, double, log_of_uniform(uniform_of(x, y)), log(c_uniform(x, y)))
BOTH(log64_of_few_bits, double, log_of_uniform(uniform_of(x, 0)), log(c_uniform(x, 0)))
BOTH(normal64_first, double, normal64_of(x, 0), c_normal64(x).x)
BOTH(normal64_second, double, normal64_of(x, 1), c_normal64(x).y)
BOTH(exponential64, double, exponential_log(uniform_of(x, y)), c_exponential(c_uniform(x, y)))
BOTH(cauchy64, double, cauchy_tan(uniform_of(x, y)),
     tan(3.141592653589793 * (c_uniform(x, y) - 0.5)))
BOTH(geometric64, double,
     geometric_of(uniform_of(x, y), geometric_divisor(uniform_of(y, hashed(y)))),
     ceil(log(c_uniform(x, y)) / log1p(-c_uniform(y, hashed(y)))))
BOTH(exp64, double, exp64(bits_double((u64)(x & 0xbfffffff) << 32 | y)),
     exp(__longlong_as_double((u64)(x & 0xbfffffff) << 32 | y)))
BOTH(sqrt64, double, sqrt64_of_normal_or_zero(mul64(log64_few(x), -2.0)),
     sqrt(-2.0 * log(c_uniform(x, hashed(x) >> 20))))
BOTH(root64, double, sqrt64_of_normal_or_zero(uniform_of(x, y)), sqrt(c_uniform(x, y)))
