// What the kernels that fill tensors with random numbers share.
//
// The value of an element is PyTorch's: torch launches T threads, of which thread t draws from
// Philox's stream t of the seed, four words at a time (a block), and its w-th block gives elements
// (w*DRAWS + i)*T + t. Here a thread takes LANES neighbouring streams, so that what it writes for one
// i is a vector, and every `slices`-th block of them. src/random/plan.rs is the other side.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#ifdef TCUDA_RANDOM_MATH // another, of the CPU
#include TCUDA_RANDOM_MATH
#else
#include "random_math.cuh"
#endif

#define BLOCK 256

// Seed and offset: values, or where they are on the device; as tcuda_philox_state.
struct Philox {
    u64 seed, offset;
    const u64 *seed_ptr, *offset_ptr;
};

// A tensor whose elements follow each other without gaps.
struct Target {
    u32 numel;
    u32 threads; // of torch: T
    u32 waves;   // blocks of a stream: numel by T*DRAWS, rounded up
    u32 slices;  // threads of ours that share a stream
    u32 lead;    // lanes of the first thread that do not exist, so that vectors are aligned
    u32 full;    // waves of which every element exists
};

// The distribution's parameters; each kernel says what they are.
struct Scalars {
    u64 word[4];
};

// Four words of a stream.
struct Words {
    u32 x, y, z, w;
};

// Philox 4x32-10: multipliers, and what is added to the key from round to round.
#define M0 0xd2511f53u
#define M1 0xcd9e8d57u
#define W0 0x9e3779b9u
#define W1 0xbb67ae85u

struct Keys {
    u32 low[10], high[10];
};

static __device__ __forceinline__ Keys keys_of(u64 seed)
{
    Keys keys;
#pragma unroll
    for (u32 round = 0; round < 10; round++) {
        keys.low[round] = (u32)seed + round * W0;
        keys.high[round] = (u32)(seed >> 32) + round * W1;
    }
    return keys;
}

// The same number, which the compiler does not compute again instead of keeping it.
static __device__ __forceinline__ u32 kept(u32 a)
{
#ifdef __CUDACC__
    asm volatile("mov.b32 %0, %0;" : "+r"(a));
#endif
    return a;
}

// Rounds `first`.. of ten.
static __device__ __forceinline__ Words rounds(Words c, const Keys &keys, u32 first)
{
#pragma unroll
    for (u32 round = first; round < 10; round++) {
        u64 p = (u64)M0 * c.x, q = (u64)M1 * c.z;
        c = Words{(u32)(q >> 32) ^ c.y ^ keys.low[round], (u32)q,
                  (u32)(p >> 32) ^ c.w ^ keys.high[round], (u32)p};
    }
    return c;
}

static __device__ __forceinline__ Words words_of(const Keys &keys, u64 block, u64 stream)
{
    Words counter = {(u32)block, (u32)(block >> 32), (u32)stream, (u32)(stream >> 32)};
    return rounds(counter, keys, 0);
}

// ---- Types of elements: their bits, and the type in which torch computes them.

struct F32 {
    typedef float Acc;
    typedef u32 Raw;
    static const int SIZE = 4, SHIFT = 0;
    static __device__ __forceinline__ Raw from(float a) { return float_bits(a); }
    static __device__ __forceinline__ float to(Raw raw) { return bits_float(raw); }
    static __device__ __forceinline__ Raw from_integer(i64 a) { return float_bits(float_of_long(a)); }
    static __device__ __forceinline__ Raw from_finite(float a) { return from(a); }
};

struct F16 {
    typedef float Acc;
    typedef u32 Raw;
    static const int SIZE = 2, SHIFT = 0;
    static __device__ __forceinline__ Raw from(float a) { return half_of(a); }
    static __device__ __forceinline__ float to(Raw raw) { return of_half(raw); }
    static __device__ __forceinline__ Raw from_integer(i64 a) { return half_of(float_of_long(a)); }
    static __device__ __forceinline__ Raw from_finite(float a) { return from(a); }
};

// Rounded by integers: to nearest, ties to even; any NaN becomes 0x7fff, as the GPU's own conversion.
// In the high half of a word, where a float has it; what the low half holds does not matter.
struct BF16 {
    typedef float Acc;
    typedef u32 Raw;
    static const int SIZE = 2, SHIFT = 16;
    static __device__ __forceinline__ Raw from_finite(float a)
    {
        u32 bits = float_bits(a);
        return bits + 0x7fff + (bits >> 16 & 1);
    }
    static __device__ __forceinline__ Raw from(float a) { return a == a ? from_finite(a) : 0x7fff0000; }
    static __device__ __forceinline__ float to(Raw raw) { return bits_float(raw & 0xffff0000); }
    static __device__ __forceinline__ Raw from_integer(i64 a) { return from_finite(float_of_long(a)); }
};

struct F64 {
    typedef double Acc;
    typedef u64 Raw;
    static const int SIZE = 8, SHIFT = 0;
    static __device__ __forceinline__ Raw from(double a) { return double_bits(a); }
    static __device__ __forceinline__ double to(Raw raw) { return bits_double(raw); }
    static __device__ __forceinline__ Raw from_integer(i64 a) { return double_bits(double_of_long(a)); }
    static __device__ __forceinline__ Raw from_finite(double a) { return from(a); }
};

// Integers, signed or not: what is stored are the low bits.
template <class Bits> struct Integer {
    typedef float Acc;
    typedef Bits Raw;
    static const int SIZE = sizeof(Bits), SHIFT = 0;
    static __device__ __forceinline__ Raw from_integer(i64 a) { return (Bits)a; }
};

struct Bool {
    typedef float Acc;
    typedef u32 Raw;
    static const int SIZE = 1, SHIFT = 0;
    static __device__ __forceinline__ Raw from_integer(i64 a) { return a != 0; }
};

// ---- Draws: words to uniform and normal numbers.

template <class Acc> struct Draws;
template <> struct Draws<float> {
    static const int COUNT = 4;
};
template <> struct Draws<double> {
    static const int COUNT = 2;
};

static __device__ __forceinline__ float fused(float a, float b, float c) { return fma32(a, b, c); }
static __device__ __forceinline__ double fused(double a, double b, double c) { return fma64(a, b, c); }
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
static __device__ __forceinline__ double polynomial(const u64 (&coefficients)[COUNT], int terms, double x)
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

// ---- Distributions: a block's words to elements.

// low + u*(high - low), and low where that is high; words: the difference, low, high.
template <class Type> struct Uniform {
    typedef typename Type::Acc Acc;
    typedef typename Type::Raw Raw;
    typedef Type Element;
    static const int DRAWS = Draws<Acc>::COUNT;
    Acc range, low, high;
    Raw low_raw;
    __device__ __forceinline__ Uniform(const Scalars &s)
        : range(scalar(s.word[0], Acc())), low(scalar(s.word[1], Acc())),
          high(scalar(s.word[2], Acc())), low_raw(Type::from_finite(low))
    {
    }
    __device__ __forceinline__ void operator()(const Words &words, Raw *out) const
    {
        Acc u[DRAWS];
        uniforms(words, u);
#pragma unroll
        for (int i = 0; i < DRAWS; i++) {
            Raw raw = Type::from_finite(fused(u[i], range, low));
            out[i] = Type::to(raw) == high ? low_raw : raw;
        }
    }
};

// mean + n*stddev; words: mean, standard deviation.
template <class Type> struct Normal {
    typedef typename Type::Acc Acc;
    typedef typename Type::Raw Raw;
    typedef Type Element;
    static const int DRAWS = Draws<Acc>::COUNT;
    Acc mean, stddev;
    __device__ __forceinline__ Normal(const Scalars &s)
        : mean(scalar(s.word[0], Acc())), stddev(scalar(s.word[1], Acc()))
    {
    }
    __device__ __forceinline__ void operator()(const Words &words, Raw *out) const
    {
        Acc n[DRAWS];
        normals(words, n);
#pragma unroll
        for (int i = 0; i < DRAWS; i++)
            out[i] = Type::from(fused(n[i], stddev, mean));
    }
};

static __device__ __forceinline__ float exponential_of(float n) { return fast_exp(n); }
static __device__ __forceinline__ double exponential_of(double n) { return exp64(n); }

// e to a normal number; words: its mean and standard deviation.
template <class Type> struct LogNormal {
    typedef typename Type::Acc Acc;
    typedef typename Type::Raw Raw;
    typedef Type Element;
    static const int DRAWS = Draws<Acc>::COUNT;
    Acc mean, stddev;
    __device__ __forceinline__ LogNormal(const Scalars &s)
        : mean(scalar(s.word[0], Acc())), stddev(scalar(s.word[1], Acc()))
    {
    }
    __device__ __forceinline__ void operator()(const Words &words, Raw *out) const
    {
        Acc n[DRAWS];
        normals(words, n);
#pragma unroll
        for (int i = 0; i < DRAWS; i++)
            out[i] = Type::from(exponential_of(fused(n[i], stddev, mean)));
    }
};

// log(u), but never 0: -epsilon/2 where u is 1 or next to it.
static __device__ __forceinline__ float exponential_log(float u)
{
    return u >= bits_float(0x3f7fffff) ? bits_float(0xb3800000) : fast_log_of_normal(u);
}

static __device__ __forceinline__ double exponential_log(double u)
{
    return u >= bits_double(0x3fefffffffffffff) ? bits_double(0xbca0000000000000) : log_of_uniform(u);
}

// -log(u)/rate; words: -1/rate, a division of the type in which torch computes.
template <class Type> struct Exponential {
    typedef typename Type::Acc Acc;
    typedef typename Type::Raw Raw;
    typedef Type Element;
    static const int DRAWS = Draws<Acc>::COUNT;
    Acc scale;
    __device__ __forceinline__ Exponential(const Scalars &s) : scale(scalar(s.word[0], Acc())) {}
    __device__ __forceinline__ void operator()(const Words &words, Raw *out) const
    {
        Acc u[DRAWS];
        uniforms(words, u);
#pragma unroll
        for (int i = 0; i < DRAWS; i++)
            out[i] = Type::from(product(scale, exponential_log(u[i])));
    }
};

// tan(pi*(u - 1/2)); of floats u keeps clear of 0 and 1.
static __device__ __forceinline__ float cauchy_tan(float u)
{
    u = u > bits_float(0x3f7ffffe) ? bits_float(0x3f7ffffe) : u;
    u = u < bits_float(0x34000000) ? bits_float(0x34000000) : u;
    return fast_tan(mul32(add32(u, -0.5f), bits_float(0x40490fdb)));
}

static __device__ __forceinline__ double cauchy_tan(double u)
{
    return tan64(mul64(add64(u, -0.5), bits_double(0x400921fb54442d18)));
}

// median + sigma*tan(pi*(u - 1/2)); words: median, sigma.
template <class Type> struct Cauchy {
    typedef typename Type::Acc Acc;
    typedef typename Type::Raw Raw;
    typedef Type Element;
    static const int DRAWS = Draws<Acc>::COUNT;
    Acc median, sigma;
    __device__ __forceinline__ Cauchy(const Scalars &s)
        : median(scalar(s.word[0], Acc())), sigma(scalar(s.word[1], Acc()))
    {
    }
    __device__ __forceinline__ void operator()(const Words &words, Raw *out) const
    {
        Acc u[DRAWS];
        uniforms(words, u);
#pragma unroll
        for (int i = 0; i < DRAWS; i++)
            out[i] = Type::from(fused(sigma, cauchy_tan(u[i]), median));
    }
};

static __device__ __forceinline__ float geometric_divisor(float p) { return fast_log(add32(1.0f, -p)); }
static __device__ __forceinline__ double geometric_divisor(double p) { return log1p64(-p); }
static __device__ __forceinline__ float geometric_of(float u, float divisor)
{
    return ceil32(div32(fast_log_of_normal(u), divisor));
}
static __device__ __forceinline__ double geometric_of(double u, double divisor)
{
    return ceil64(div64(log_of_uniform(u), divisor));
}

// What trials become as an element: as torch's casts, through 32 or 64 bits with or without a sign.
template <class Type> struct Trials {
    static __device__ __forceinline__ typename Type::Raw from(typename Type::Acc a) { return Type::from(a); }
};
template <class Bits> struct Trials<Integer<Bits>> {
    static __device__ __forceinline__ Bits from(float a) { return (Bits)signed_of(a); }
};
template <> struct Trials<Integer<u64>> {
    static __device__ __forceinline__ u64 from(float a) { return long_of(a); }
};
struct Unsigned8 : Integer<u8> {};
template <> struct Trials<Unsigned8> {
    static __device__ __forceinline__ u8 from(float a) { return (u8)unsigned_of(a); }
};

// ceil(log(u)/log(1 - p)); words: p.
template <class Type> struct Geometric {
    typedef typename Type::Acc Acc;
    typedef typename Type::Raw Raw;
    typedef Type Element;
    static const int DRAWS = Draws<Acc>::COUNT;
    Acc divisor;
    __device__ __forceinline__ Geometric(const Scalars &s)
        : divisor(geometric_divisor(scalar(s.word[0], Acc())))
    {
    }
    __device__ __forceinline__ void operator()(const Words &words, Raw *out) const
    {
        Acc u[DRAWS];
        uniforms(words, u);
#pragma unroll
        for (int i = 0; i < DRAWS; i++)
            out[i] = Trials<Type>::from(geometric_of(u[i], divisor));
    }
};

// The rest of a division by a number that the host knows, without dividing.
template <class Word> struct Modulo {
    Word divisor, magic;
    u32 first, second; // shifts
    __device__ __forceinline__ Word operator()(Word x) const
    {
        Word t = high_product(x, magic);
        return x - ((t + ((x - t) >> first)) >> second) * divisor;
    }
};

// base + r % range of 32-bit draws; words: base, range, its magic and (from bit 32, 40 on) shifts; bit
// 48: the range is a power of two, and r % range is some of r's bits.
template <class Type> struct Integers32 {
    typedef typename Type::Raw Raw;
    typedef Type Element;
    static const int DRAWS = 4;
    i64 base;
    Modulo<u32> modulo;
    bool masks;
    __device__ __forceinline__ Integers32(const Scalars &s)
        : base(s.word[0]), modulo{(u32)s.word[1], (u32)s.word[2], (u32)(s.word[2] >> 32) & 63,
                                  (u32)(s.word[2] >> 40) & 63},
          masks(s.word[2] >> 48 & 1)
    {
    }
    __device__ __forceinline__ void operator()(const Words &words, Raw *out) const
    {
        u32 r[4] = {words.x, words.y, words.z, words.w};
        if (masks) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                r[i] &= modulo.divisor - 1;
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                r[i] = modulo(r[i]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[i] = Type::from_integer((i64)((u64)base + r[i]));
    }
};

// The same of 64-bit draws; range 0 is all of them. Words: base, range, magic, shifts (bits 0, 8) and
// whether the range is a power of two (bit 16).
template <class Type> struct Integers64 {
    typedef typename Type::Raw Raw;
    typedef Type Element;
    static const int DRAWS = 2;
    i64 base;
    Modulo<u64> modulo;
    bool masks;
    __device__ __forceinline__ Integers64(const Scalars &s)
        : base(s.word[0]),
          modulo{s.word[1], s.word[2], (u32)s.word[3] & 63, (u32)(s.word[3] >> 8) & 63},
          masks(s.word[3] >> 16 & 1)
    {
    }
    __device__ __forceinline__ void operator()(const Words &words, Raw *out) const
    {
        u64 r[2] = {(u64)words.x << 32 | words.y, (u64)words.z << 32 | words.w};
        if (masks) {
            r[0] &= modulo.divisor - 1;
            r[1] &= modulo.divisor - 1;
        } else {
            r[0] = modulo(r[0]);
            r[1] = modulo(r[1]);
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
            out[i] = Type::from_integer((i64)((u64)base + r[i]));
    }
};

// One where u < p, else zero. u grows with the word that it is made of: the host found the first word
// of which u is not less. Words: that word, the bits of a one.
template <class Bits> struct Bernoulli {
    typedef Bits Raw;
    typedef Integer<Bits> Element;
    static const int DRAWS = 4;
    u32 threshold;
    Bits one;
    __device__ __forceinline__ Bernoulli(const Scalars &s)
        : threshold((u32)s.word[0]), one((Bits)s.word[1])
    {
    }
    __device__ __forceinline__ void operator()(const Words &words, Raw *out) const
    {
        u32 r[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[i] = r[i] < threshold ? one : (Bits)0;
    }
};

struct BernoulliF64 {
    typedef u64 Raw;
    typedef F64 Element;
    static const int DRAWS = 2;
    u64 threshold, one;
    __device__ __forceinline__ BernoulliF64(const Scalars &s) : threshold(s.word[0]), one(s.word[1]) {}
    __device__ __forceinline__ void operator()(const Words &words, Raw *out) const
    {
        out[0] = (words.x ^ (u64)words.y << 21) < threshold ? one : 0;
        out[1] = (words.z ^ (u64)words.w << 21) < threshold ? one : 0;
    }
};

// ---- Filling.

// Elements of SIZE bytes, SHIFT bits up in their words: how many make a vector, a vector of them, one.
template <int SIZE, int SHIFT> struct Stores;
template <> struct Stores<1, 0> {
    static const int LANES = 4;
    template <class Raw> static __device__ __forceinline__ void vector(u8 *at, const Raw *v)
    {
        *(u32 *)at = (u32)v[0] | (u32)v[1] << 8 | (u32)v[2] << 16 | (u32)v[3] << 24;
    }
    static __device__ __forceinline__ void one(u8 *at, u32 v) { *at = (u8)v; }
};
template <> struct Stores<2, 0> {
    static const int LANES = 4;
    template <class Raw> static __device__ __forceinline__ void vector(u8 *at, const Raw *v)
    {
        *(uint2 *)at = make_uint2((u32)v[0] | (u32)v[1] << 16, (u32)v[2] | (u32)v[3] << 16);
    }
    static __device__ __forceinline__ void one(u8 *at, u32 v) { *(u16 *)at = (u16)v; }
};
template <> struct Stores<2, 16> {
    static const int LANES = 4;
    static __device__ __forceinline__ void vector(u8 *at, const u32 *v)
    {
        *(uint2 *)at = make_uint2(high_halves(v[0], v[1]), high_halves(v[2], v[3]));
    }
    static __device__ __forceinline__ void one(u8 *at, u32 v) { *(u16 *)at = (u16)(v >> 16); }
};
template <> struct Stores<4, 0> {
    static const int LANES = 4;
    static __device__ __forceinline__ void vector(u8 *at, const u32 *v)
    {
        *(uint4 *)at = make_uint4(v[0], v[1], v[2], v[3]);
    }
    static __device__ __forceinline__ void one(u8 *at, u32 v) { *(u32 *)at = v; }
};
template <> struct Stores<8, 0> {
    static const int LANES = 2;
    static __device__ __forceinline__ void vector(u8 *at, const u64 *v)
    {
        *(ulonglong2 *)at = make_ulonglong2(v[0], v[1]);
    }
    static __device__ __forceinline__ void one(u8 *at, u64 v) { *(u64 *)at = v; }
};

template <class Element> struct StoresOf {
    typedef Stores<Element::SIZE, Element::SHIFT> Type;
};

// What the first two rounds leave of a stream: the rest of them is the same for all streams.
struct Lane {
    u32 low, p_high, p_low;
};

// What bounds it on an H200 (132 multiprocessors, 1.98 GHz, fills of 4.65 TB/s): a warp's round of this
// loop, 128 streams, is of uniform floats 268 instructions, of which 124 take the integer unit (16 lanes
// a cycle in each quarter of a multiprocessor) and 67 are wide products (as many, twice as long): some
// 270 cycles for 2 KiB in each quarter, or 8 TB/s, so that memory is what bounds it. Of bfloat16 it is
// 199 on the integer unit for 1 KiB, 2.7 TB/s; of bytes 0.5 KiB, 2 TB/s.
template <class Distribution>
static __device__ __forceinline__ void flat(u8 *address, const Philox &philox,
                                            const Target &target, const Scalars &scalars)
{
    typedef typename StoresOf<typename Distribution::Element>::Type Store;
    typedef typename Distribution::Raw Raw;
    const int LANES = Store::LANES, DRAWS = Distribution::DRAWS, SIZE = Distribution::Element::SIZE;

    u32 column = blockIdx.x / target.slices, slice = blockIdx.x - column * target.slices;
    // The first stream; before the first and after the last there is none.
    int first = (int)((column * BLOCK + threadIdx.x) * LANES) - (int)target.lead;
    int threads = (int)target.threads;
    if (first >= threads)
        return;
    bool whole = first >= 0 && first + LANES <= threads;

    u64 seed = philox.seed_ptr ? *philox.seed_ptr : philox.seed;
    u64 offset = philox.offset + (philox.offset_ptr ? *philox.offset_ptr : 0);
    Keys keys = keys_of(seed);
    Distribution distribution(scalars);
    u32 span = target.threads * DRAWS;
    // Bytes from one draw of a stream to the next, and from wave to wave of this thread.
    u64 row = (u64)target.threads * SIZE, step = row * DRAWS * target.slices;

    u32 wave = slice;
    while (wave < target.waves) {
        // Waves to the next carry into the block number's high word: one round of this loop, nearly
        // always.
        u64 block = offset / 4 + wave;
        u32 high = (u32)(block >> 32), carry = 0 - (u32)block;
        u32 end = carry == 0 || target.waves - wave <= carry ? target.waves : wave + carry;
        Lane lanes[LANES];
#pragma unroll
        for (int v = 0; v < LANES; v++) {
            u64 q = (u64)M1 * (u32)(first + v);
            u64 p = (u64)M0 * ((u32)(q >> 32) ^ high ^ keys.low[0]);
            // Worth their registers where there are few of other things.
            if (SIZE < 8)
                lanes[v] = Lane{kept((u32)q), kept((u32)(p >> 32)), kept((u32)p)};
            else
                lanes[v] = Lane{(u32)q, (u32)(p >> 32), (u32)p};
        }
        u8 *at = address + (i64)((u64)wave * span + first) * SIZE;
        for (; wave < end; wave += target.slices, at += step) {
            u64 p = (u64)M0 * (u32)(offset / 4 + wave);
            u64 q = (u64)M1 * ((u32)(p >> 32) ^ keys.high[0]);
            u32 x = (u32)(q >> 32) ^ keys.low[1], y = (u32)q, z = (u32)p ^ keys.high[1];
            Raw out[DRAWS][LANES];
#pragma unroll
            for (int v = 0; v < LANES; v++) {
                Words words = {x ^ lanes[v].low, y, z ^ lanes[v].p_high, lanes[v].p_low};
                Raw values[DRAWS];
                distribution(rounds(words, keys, 2), values);
#pragma unroll
                for (int i = 0; i < DRAWS; i++)
                    out[i][v] = values[i];
            }
            if (whole && wave < target.full) {
#pragma unroll
                for (int i = 0; i < DRAWS; i++)
                    Store::vector(at + i * row, out[i]);
                continue;
            }
#pragma unroll
            for (int i = 0; i < DRAWS; i++) {
                u32 li = wave * span + i * target.threads + first;
                if (whole && li + LANES <= target.numel) {
                    Store::vector(at + i * row, out[i]);
                } else {
#pragma unroll
                    for (int v = 0; v < LANES; v++) {
                        bool exists = first + v >= 0 && first + v < threads;
                        // Where the first lanes do not exist, li may be below 0.
                        if (exists && li + v < target.numel)
                            Store::one(at + i * row + v * SIZE, out[i][v]);
                    }
                }
            }
        }
    }
}

// ---- Filling what has gaps.

// As many as PyTorch's.
#define DIMS 25

// A dimension: its size as a divisor, and what a step is in bytes.
struct Dimension {
    Modulo<u32> size;
    i64 stride;
};

// In the order of linear indices: the first changes fastest.
struct Shape {
    u32 dims, element;
    Dimension dim[DIMS];
};

static __device__ __forceinline__ i64 offset_of(const Shape &shape, u32 li)
{
    i64 offset = 0;
#pragma unroll 1
    for (u32 d = 0; d < shape.dims; d++) {
        const Modulo<u32> &size = shape.dim[d].size;
        u32 t = high_product(li, size.magic);
        u32 q = (t + ((li - t) >> size.first)) >> size.second;
        offset += (i64)(li - q * size.divisor) * shape.dim[d].stride;
        li = q;
    }
    return offset;
}

// In a list of distributions: there is none of this number.
struct None {
    typedef u32 Raw;
    typedef F32 Element;
    static const int DRAWS = 4;
    __device__ __forceinline__ None(const Scalars &) {}
    __device__ __forceinline__ void operator()(const Words &, Raw *out) const
    {
        out[0] = out[1] = out[2] = out[3] = 0;
    }
};

// Of a list of distributions that of a number: elements of a block, bytes of one, a block's elements.
template <class First, class... Rest> static __device__ __forceinline__ u32 draws_of(u32 number)
{
    if constexpr (sizeof...(Rest) != 0)
        if (number != 0)
            return draws_of<Rest...>(number - 1);
    return First::DRAWS;
}
template <class First, class... Rest> static __device__ __forceinline__ u32 bytes_of(u32 number)
{
    if constexpr (sizeof...(Rest) != 0)
        if (number != 0)
            return bytes_of<Rest...>(number - 1);
    return First::Element::SIZE;
}
template <class First, class... Rest>
static __device__ __forceinline__ void draw(u32 number, const Scalars &scalars, const Words &words,
                                            u64 *out)
{
    if constexpr (sizeof...(Rest) != 0) {
        if (number != 0) {
            draw<Rest...>(number - 1, scalars, words, out);
            return;
        }
    }
    typename First::Raw values[First::DRAWS];
    First distribution(scalars);
    distribution(words, values);
#pragma unroll
    for (int i = 0; i < First::DRAWS; i++)
        out[i] = (u64)values[i] >> First::Element::SHIFT;
}

// One of the distributions, which is chosen when it runs: what is shared is there once.
template <class... Distributions>
static __device__ __forceinline__ void strided(u8 *address, const Philox &philox,
                                               const Target &target, const Scalars &scalars,
                                               const Shape &shape)
{
    u32 column = blockIdx.x / target.slices, slice = blockIdx.x - column * target.slices;
    u32 t = column * BLOCK + threadIdx.x;
    if (t >= target.threads)
        return;
    u64 seed = philox.seed_ptr ? *philox.seed_ptr : philox.seed;
    u64 offset = philox.offset + (philox.offset_ptr ? *philox.offset_ptr : 0);
    Keys keys = keys_of(seed);
    u32 draws = draws_of<Distributions...>(shape.element);
    u32 bytes = bytes_of<Distributions...>(shape.element);
    for (u32 wave = slice; wave < target.waves; wave += target.slices) {
        u64 values[4] = {};
        draw<Distributions...>(shape.element, scalars, words_of(keys, offset / 4 + wave, t), values);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 li = (wave * draws + i) * target.threads + t;
            if (i >= draws || li >= target.numel)
                break;
            u8 *at = address + offset_of(shape, li);
            if (bytes == 1)
                *at = (u8)values[i];
            else if (bytes == 2)
                *(u16 *)at = (u16)values[i];
            else if (bytes == 4)
                *(u32 *)at = (u32)values[i];
            else
                *(u64 *)at = values[i];
        }
    }
}

// Blocks that a multiprocessor is to hold, which bounds the registers; found by trying, on an H200.
#define RESIDENT 4

#define FLAT(name, ...)                                                                            \
    extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)                                  \
    tcuda_random_##name(u8 *address, Philox philox, Target target, Scalars scalars)                \
    {                                                                                              \
        flat<__VA_ARGS__>(address, philox, target, scalars);                                       \
    }

// The same elements in a tensor with gaps, of one of the distributions.
#define STRIDED(name, ...)                                                                         \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                            \
    tcuda_random_##name##_strided(u8 *address, Philox philox, Target target, Scalars scalars,      \
                                  Shape shape)                                                     \
    {                                                                                              \
        strided<__VA_ARGS__>(address, philox, target, scalars, shape);                             \
    }
