/* NCCL's types and operations, one rank after the other. */
#include "fake_nccl.h"

#include <string.h>

size_t size_of_type(int type)
{
    static const size_t sizes[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2 };
    return type >= 0 && type < 10 ? sizes[type] : 0;
}

static float of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float of_bfloat(uint16_t bits) { return of_bits((uint32_t)bits << 16); }

/* Rounded to nearest, to even between two. */
static uint16_t to_bfloat(float value)
{
    const uint32_t bits = bits_of(value);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float of_half(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) return of_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    /* 2^112 brings the exponent of a half to that of a float, also where it has none. */
    return of_bits(sign | bits_of(of_bits(rest << 13) * 0x1p112f));
}

static uint16_t to_half(float value)
{
    const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000;
    const float size = of_bits(bits & 0x7fffffff);
    if (size >= 65520.0f) return (uint16_t)(sign | 0x7c00);
    if (size < 0x1p-14f) {
        /* Adding a half rounds to the last place that such a number has. */
        return (uint16_t)(sign | (bits_of(size + 0.5f) - bits_of(0.5f)));
    }
    const uint32_t fits = bits_of(size);
    return (uint16_t)(sign | (((fits + 0xfff + (fits >> 13 & 1)) >> 13) - (112 << 10)));
}

#define OPERATE(type, read, write) \
    for (size_t i = 0; i < count; i++) { \
        type *to = (type *)into + i; \
        const type *from = (const type *)other + i; \
        switch (op) { \
        case 0: *to = write(read(*to) + read(*from)); break; \
        case 1: *to = write(read(*to) * read(*from)); break; \
        case 2: *to = read(*to) > read(*from) ? *to : *from; break; \
        default: *to = read(*to) < read(*from) ? *to : *from; break; \
        } \
    } \
    break

void combine(void *into, const void *other, size_t count, int type, int op)
{
    switch (type) {
    case 0: OPERATE(int8_t, (int), (int8_t));
    case 1: OPERATE(uint8_t, (unsigned), (uint8_t));
    case 2: OPERATE(int32_t, (int64_t), (int32_t));
    case 3: OPERATE(uint32_t, , );
    case 4: OPERATE(int64_t, , );
    case 5: OPERATE(uint64_t, , );
    case 6: OPERATE(uint16_t, of_half, to_half);
    case 7: OPERATE(float, , );
    case 8: OPERATE(double, , );
    case 9: OPERATE(uint16_t, of_bfloat, to_bfloat);
    }
}
