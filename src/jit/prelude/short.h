namespace tcuda {
#ifndef __CUDA_ARCH__
TCUDA_INLINE uint32_t bits_of(float x) { return __float_as_uint(x); }
TCUDA_INLINE uint16_t half_of(float x) {
    const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return 0x7fff;
    if (size >= 0x477ff000) return uint16_t(sign | 0x7c00);
    if (size < 0x38800000) {
        /* A sum with 0.5 rounds to whole numbers of 2^-24. */
        const float sum = __uint_as_float(size) + 0.5f;
        return uint16_t(sign | (bits_of(sum) - 0x3f000000));
    }
    return uint16_t(sign | (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
}
TCUDA_INLINE float float_of(uint16_t half) {
    const uint32_t sign = uint32_t(half & 0x8000) << 16, size = half & 0x7fff;
    if (size >= 0x7c00) return __uint_as_float(sign | 0x7f800000 | (size & 0x3ff) << 13);
    if (size >= 0x400) return __uint_as_float(sign | (size << 13) + 0x38000000);
    return __uint_as_float(sign | bits_of(float(size) * 0x1p-24f));
}
#else
TCUDA_INLINE uint16_t half_of(float x) {
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
}
TCUDA_INLINE float float_of(uint16_t half) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
    return x;
}
#endif
struct alignas(2) half {
    uint16_t bits;
    half() = default;
    TCUDA_INLINE half(float x) : bits(half_of(x)) {}
    TCUDA_INLINE operator float() const { return float_of(bits); }
};
struct alignas(2) bfloat16 {
    uint16_t bits;
    bfloat16() = default;
    TCUDA_INLINE bfloat16(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
        const uint32_t word = __float_as_uint(x);
        const uint32_t rounded = word + 0x7fff + (word >> 16 & 1);
        bits = (word & 0x7fffffff) > 0x7f800000 ? uint16_t(0x7fff) : uint16_t(rounded >> 16);
#endif
    }
    TCUDA_INLINE operator float() const { return __uint_as_float(uint32_t(bits) << 16); }
};
template <class From> struct cast<half, From> {
    static TCUDA_INLINE half of(From x) { return half(static_cast<float>(x)); }
};
template <class From> struct cast<bfloat16, From> {
    static TCUDA_INLINE bfloat16 of(From x) { return bfloat16(static_cast<float>(x)); }
};
}
