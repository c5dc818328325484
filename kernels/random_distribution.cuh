// Distributions: a block of a stream to elements.
#pragma once

#include "random_draw.cuh"
#include "random_element.cuh"

// The distribution's parameters; each kernel says what they are.
struct Scalars {
    u64 word[4];
};

// low + u*(high - low), and low where that is high; words: the difference, low, high.
template <class Type> struct Uniform {
    typedef typename Type::Acc Acc;
    typedef typename Type::Raw Raw;
    typedef Type Element;
    static constexpr int DRAWS = Draws<Acc>::COUNT;
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
    static constexpr int DRAWS = Draws<Acc>::COUNT;
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
    static constexpr int DRAWS = Draws<Acc>::COUNT;
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
    return u >= bits_double(0x3fefffffffffffff) ? bits_double(0xbca0000000000000)
        : log_of_uniform(u);
}

// -log(u)/rate; words: -1/rate, a division of the type in which torch computes.
template <class Type> struct Exponential {
    typedef typename Type::Acc Acc;
    typedef typename Type::Raw Raw;
    typedef Type Element;
    static constexpr int DRAWS = Draws<Acc>::COUNT;
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
    static constexpr int DRAWS = Draws<Acc>::COUNT;
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

static __device__ __forceinline__ float geometric_divisor(float p)
{
    return fast_log(add32(1.0f, -p));
}
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
    static __device__ __forceinline__ typename Type::Raw from(typename Type::Acc a)
    {
        return Type::from(a);
    }
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
    static constexpr int DRAWS = Draws<Acc>::COUNT;
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

// base + r % range of 32-bit draws; words: base, range, its magic and (from bit 32, 40 on) shifts;
// bit 48: the range is a power of two, and r % range is some of r's bits.
template <class Type> struct Integers32 {
    typedef typename Type::Raw Raw;
    typedef Type Element;
    static constexpr int DRAWS = 4;
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

// The same of 64-bit draws; range 0 is all of them. Words: base, range, magic, shifts (bits 0, 8)
// and whether the range is a power of two (bit 16).
template <class Type> struct Integers64 {
    typedef typename Type::Raw Raw;
    typedef Type Element;
    static constexpr int DRAWS = 2;
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

// One where u < p, else zero. u grows with the word that it is made of: the host found the first
// word of which u is not less. Words: that word, the bits of a one.
template <class Bits> struct Bernoulli {
    typedef Bits Raw;
    typedef Integer<Bits> Element;
    static constexpr int DRAWS = 4;
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
    static constexpr int DRAWS = 2;
    u64 threshold, one;
    __device__ __forceinline__ BernoulliF64(const Scalars &s)
        : threshold(s.word[0]), one(s.word[1]) {}
    __device__ __forceinline__ void operator()(const Words &words, Raw *out) const
    {
        out[0] = (words.x ^ (u64)words.y << 21) < threshold ? one : 0;
        out[1] = (words.z ^ (u64)words.w << 21) < threshold ? one : 0;
    }
};
