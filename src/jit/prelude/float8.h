namespace tcuda {
/* A float of `digits` binary digits behind the point of its 8 bits, rounded to even. */
template <int digits> TCUDA_INLINE uint8_t eight_of(float x, uint32_t largest, uint8_t beyond) {
    const int exponents = 7 - digits, bias = (1 << (exponents - 1)) - 1;
    const uint32_t bits = __float_as_uint(x), sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return uint8_t(sign | 0x7f);
    if (size >= largest) return uint8_t(sign | beyond);
    if (size < uint32_t(128 - bias) << 23) {
        /* The sum has the smallest step in its last digit. */
        const uint32_t magic = uint32_t(128 - bias + 23 - digits) << 23;
        const float sum = __uint_as_float(size) + __uint_as_float(magic);
        return uint8_t(sign | (__float_as_uint(sum) - magic));
    }
    const uint32_t rebased = size - (uint32_t(127 - bias) << 23);
    const uint32_t odd = rebased >> (23 - digits) & 1;
    return uint8_t(sign | (rebased + (1u << (22 - digits)) - 1 + odd) >> (23 - digits));
}
template <int digits> TCUDA_INLINE float float_of_eight(uint8_t bits) {
    const int exponents = 7 - digits, bias = (1 << (exponents - 1)) - 1;
    const uint32_t sign = uint32_t(bits & 0x80) << 24, size = bits & 0x7f;
    if (size >> digits == 0) {
        const float step = __uint_as_float(uint32_t(128 - bias - digits) << 23);
        return __uint_as_float(sign | __float_as_uint(float(size) * step));
    }
    return __uint_as_float(sign | (size << (23 - digits)) + (uint32_t(127 - bias) << 23));
}
struct e4m3 {
    uint8_t bits;
    e4m3() = default;
    TCUDA_INLINE e4m3(float x) : bits(eight_of<3>(x, 0x43f00000, 0x7f)) {}
    TCUDA_INLINE operator float() const {
        return (bits & 0x7f) == 0x7f ? __uint_as_float(uint32_t(bits & 0x80) << 24 | 0x7fc00000)
                                     : float_of_eight<3>(bits);
    }
};
struct e5m2 {
    uint8_t bits;
    e5m2() = default;
    TCUDA_INLINE e5m2(float x) : bits(eight_of<2>(x, 0x47800000, 0x7c)) {}
    TCUDA_INLINE operator float() const {
        const uint32_t size = bits & 0x7f, sign = uint32_t(bits & 0x80) << 24;
        return size >= 0x7c ? __uint_as_float(sign | 0x7f800000 | (size & 3) << 21)
                            : float_of_eight<2>(bits);
    }
};
template <class From> struct cast<e4m3, From> {
    static TCUDA_INLINE e4m3 of(From x) { return e4m3(static_cast<float>(x)); }
};
template <class From> struct cast<e5m2, From> {
    static TCUDA_INLINE e5m2 of(From x) { return e5m2(static_cast<float>(x)); }
};
}
