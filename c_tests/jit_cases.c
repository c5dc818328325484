/* Every type and every way in which tensors lie, against what the host computes: small numbers,
 * with which all of these operations are exact. */
#define _POSIX_C_SOURCE 200809L

#include <complex.h>
#include <math.h>

#include "jit_cases.h"
#include "support.h"

enum { ADD, SUBTRACT, MULTIPLY, DIVIDE };
enum { ELEMENTS = 9100, BYTES = ELEMENTS * 16, MOST_DIMS = 5 };
enum kind { KIND_bool, KIND_uint8, KIND_int8, KIND_int16, KIND_int32, KIND_int64, KIND_uint16,
    KIND_uint32, KIND_uint64, KIND_float16, KIND_bfloat16, KIND_float32, KIND_float64,
    KIND_complex32, KIND_complex64, KIND_complex128, KIND_float8_e4m3fn, KIND_float8_e5m2 };

static const struct { tcuda_dtype dtype; int bytes; } kinds[] = {
    [KIND_bool] = { { TCUDA_DTYPE_BOOL, 8, 1 }, 1 },
    [KIND_uint8] = { { TCUDA_DTYPE_UINT, 8, 1 }, 1 },
    [KIND_int8] = { { TCUDA_DTYPE_INT, 8, 1 }, 1 },
    [KIND_int16] = { { TCUDA_DTYPE_INT, 16, 1 }, 2 },
    [KIND_int32] = { { TCUDA_DTYPE_INT, 32, 1 }, 4 },
    [KIND_int64] = { { TCUDA_DTYPE_INT, 64, 1 }, 8 },
    [KIND_uint16] = { { TCUDA_DTYPE_UINT, 16, 1 }, 2 },
    [KIND_uint32] = { { TCUDA_DTYPE_UINT, 32, 1 }, 4 },
    [KIND_uint64] = { { TCUDA_DTYPE_UINT, 64, 1 }, 8 },
    [KIND_float16] = { { TCUDA_DTYPE_FLOAT, 16, 1 }, 2 },
    [KIND_bfloat16] = { { TCUDA_DTYPE_BFLOAT, 16, 1 }, 2 },
    [KIND_float32] = { { TCUDA_DTYPE_FLOAT, 32, 1 }, 4 },
    [KIND_float64] = { { TCUDA_DTYPE_FLOAT, 64, 1 }, 8 },
    [KIND_complex32] = { { TCUDA_DTYPE_COMPLEX, 32, 1 }, 4 },
    [KIND_complex64] = { { TCUDA_DTYPE_COMPLEX, 64, 1 }, 8 },
    [KIND_complex128] = { { TCUDA_DTYPE_COMPLEX, 128, 1 }, 16 },
    [KIND_float8_e4m3fn] = { { TCUDA_DTYPE_FLOAT8_E4M3FN, 8, 1 }, 1 },
    [KIND_float8_e5m2] = { { TCUDA_DTYPE_FLOAT8_E5M2, 8, 1 }, 1 },
};

/* ---- Numbers of each type ---- */

/* A float of `digits` binary digits behind the point and `exponents` bits before them. */
static double small_float(unsigned bits, int digits, int exponents)
{
    const int bias = (1 << (exponents - 1)) - 1;
    const unsigned fraction = bits & ((1u << digits) - 1);
    const int exponent = (int)(bits >> digits & ((1u << exponents) - 1));
    const double size = exponent == 0 ? ldexp(fraction, 1 - bias - digits)
        : ldexp(fraction + (1u << digits), exponent - bias - digits);
    return bits >> (digits + exponents) & 1 ? -size : size;
}

static unsigned bits_of(double value, int digits, int exponents)
{
    for (unsigned bits = 0; bits < 1u << (1 + digits + exponents); bits++)
        if (small_float(bits, digits, exponents) == value)
            return bits;
    CHECK(!"a number that the type has");
    return 0;
}

/* The numbers in use come again and again. */
static unsigned known_bits(double value, int digits, int exponents)
{
    static struct { double value; int digits; unsigned bits; } known[256];
    for (int i = 0; i < 256; i++) {
        if (known[i].digits == 0) {
            known[i].value = value;
            known[i].digits = digits;
            known[i].bits = bits_of(value, digits, exponents);
        }
        if (known[i].value == value && known[i].digits == digits)
            return known[i].bits;
    }
    return bits_of(value, digits, exponents);
}

static double complex get(const void *from, enum kind kind, int64_t index)
{
#define AS(type) ((const type *)from)[index]
    switch (kind) {
    case KIND_bool: return AS(uint8_t);
    case KIND_uint8: return AS(uint8_t);
    case KIND_int8: return AS(int8_t);
    case KIND_int16: return AS(int16_t);
    case KIND_int32: return AS(int32_t);
    case KIND_int64: return (double)AS(int64_t);
    case KIND_uint16: return AS(uint16_t);
    case KIND_uint32: return AS(uint32_t);
    case KIND_uint64: return (double)AS(uint64_t);
    case KIND_float16: return small_float(AS(uint16_t), 10, 5);
    case KIND_bfloat16: return small_float(AS(uint16_t), 7, 8);
    case KIND_float32: return AS(float);
    case KIND_float64: return AS(double);
    case KIND_complex32:
        return CMPLX(small_float(((const uint16_t *)from)[2 * index], 10, 5),
            small_float(((const uint16_t *)from)[2 * index + 1], 10, 5));
    case KIND_complex64: return AS(float complex);
    case KIND_complex128: return AS(double complex);
    case KIND_float8_e4m3fn: return small_float(AS(uint8_t), 3, 4);
    case KIND_float8_e5m2: return small_float(AS(uint8_t), 2, 5);
    }
#undef AS
    return 0;
}

static void set(void *to, enum kind kind, int64_t index, double complex value)
{
    const double real = creal(value);
#define AS(type) ((type *)to)[index]
    switch (kind) {
    case KIND_bool: AS(uint8_t) = value != 0; break;
    case KIND_uint8: case KIND_int8: AS(uint8_t) = (uint8_t)(int64_t)real; break;
    case KIND_int16: case KIND_uint16: AS(uint16_t) = (uint16_t)(int64_t)real; break;
    case KIND_int32: case KIND_uint32: AS(uint32_t) = (uint32_t)(int64_t)real; break;
    case KIND_int64: case KIND_uint64: AS(int64_t) = (int64_t)real; break;
    case KIND_float16: AS(uint16_t) = (uint16_t)known_bits(real, 10, 5); break;
    case KIND_bfloat16: AS(uint16_t) = (uint16_t)known_bits(real, 7, 8); break;
    case KIND_float32: AS(float) = (float)real; break;
    case KIND_float64: AS(double) = real; break;
    case KIND_complex32:
        ((uint16_t *)to)[2 * index] = (uint16_t)known_bits(real, 10, 5);
        ((uint16_t *)to)[2 * index + 1] = (uint16_t)known_bits(cimag(value), 10, 5);
        break;
    case KIND_complex64: AS(float complex) = (float complex)value; break;
    case KIND_complex128: AS(double complex) = value; break;
    case KIND_float8_e4m3fn: AS(uint8_t) = (uint8_t)known_bits(real, 3, 4); break;
    case KIND_float8_e5m2: AS(uint8_t) = (uint8_t)known_bits(real, 2, 5); break;
    }
#undef AS
}

static bool is_complex(enum kind kind)
{
    return kind >= KIND_complex32 && kind <= KIND_complex128;
}

static bool has_sign(enum kind kind)
{
    return (kind >= KIND_int8 && kind <= KIND_int64) || kind >= KIND_float16;
}

/* The number at a place of an input; those of the second are powers of two, since they divide. */
static double complex number(enum kind kind, int which, int64_t index)
{
    const bool is_short = kind >= KIND_float8_e4m3fn;
    double size = which == 0 && !is_short ? (double)(index % 13 + 1)
        : ldexp(1, (int)(index % (which == 0 || !is_short ? 3 : 2)));
    if (has_sign(kind) && index % 5 == 1)
        size = -size;
    if (kind == KIND_bool)
        return which == 1 || index % 3 != 0;
    return is_complex(kind) && index % 2 == 1 ? CMPLX(0, size) : CMPLX(size, 0);
}

static double complex compute(int operation, enum kind common, double complex x, double complex y)
{
    double complex value = 0;
    switch (operation) {
    case ADD: value = x + y * (common == KIND_bool ? 1 : 2); break;
    case SUBTRACT: value = x - y; break;
    case MULTIPLY:
        value = CMPLX(creal(x) * creal(y) - cimag(x) * cimag(y),
            creal(x) * cimag(y) + cimag(x) * creal(y));
        break;
    case DIVIDE: {
        const double whole = creal(y) * creal(y) + cimag(y) * cimag(y);
        value = CMPLX((creal(x) * creal(y) + cimag(x) * cimag(y)) / whole,
            (cimag(x) * creal(y) - creal(x) * cimag(y)) / whole);
        break;
    }
    }
    return common <= KIND_uint64 && common != KIND_bool ? CMPLX(trunc(creal(value)), 0) : value;
}

/* ---- Tensors ---- */

typedef struct view {
    int64_t shape[MOST_DIMS], strides[MOST_DIMS], start;
    int ndim;
} view;

static char host[3][BYTES], expected[BYTES];
static char *memory[3];

static tcuda_tensor tensor_of(const view *view, int which, enum kind kind)
{
    return (tcuda_tensor){ .data = memory[which], .device = { TCUDA_DEVICE_CUDA, current_device() },
        .ndim = view->ndim, .dtype = kinds[kind].dtype, .shape = (int64_t *)view->shape,
        .strides = (int64_t *)view->strides, .byte_offset =
        (uint64_t)(view->start * kinds[kind].bytes) };
}

/* Where the element of a number of the output is in a tensor. */
static int64_t place(const view *view, const struct view *output, int64_t number)
{
    int64_t at = view->start;
    for (int i = output->ndim - 1; i >= 0; i--) {
        const int64_t index = number % output->shape[i];
        const int own = i - (output->ndim - view->ndim);
        number /= output->shape[i];
        if (own >= 0 && view->shape[own] != 1)
            at += index * view->strides[own];
    }
    return at;
}

static int cases;

static void check(const char *name, const char *types, tcuda_jit *jit, int operation,
    const enum kind of[3], const view views[3])
{
    tcuda_tensor tensors[3];
    int64_t numel = 1;
    for (int i = 0; i < views[2].ndim; i++)
        numel *= views[2].shape[i];
    for (int which = 0; which < 3; which++) {
        tensors[which] = tensor_of(&views[which], which, of[which]);
        memset(host[which], 0x3c, BYTES);
        for (int64_t i = 0; i < ELEMENTS && which < 2; i++)
            set(host[which], of[which], i, number(of[which], which, i));
        CHECK_OK(tcuda_copy(memory[which], host[which], BYTES, NULL));
    }
    memcpy(expected, host[2], BYTES);
    for (int64_t i = 0; i < numel; i++) {
        const double complex x = get(host[0], of[0], place(&views[0], &views[2], i));
        const double complex y = get(host[1], of[1], place(&views[1], &views[2], i));
        set(expected, of[2], place(&views[2], &views[2], i), compute(operation, of[2], x, y));
    }
    CHECK_OK(tcuda_jit_call(jit, tensors, 2, NULL, 0, &tensors[2], 1, NULL));
    CHECK_OK(tcuda_copy(host[2], memory[2], BYTES, NULL));
    CHECK_OK(tcuda_stream_synchronize(NULL));
    /* By value: -0 is 0 to the host's operations on complex numbers. */
    for (int64_t i = 0; i < BYTES / kinds[of[2]].bytes; i++) {
        const size_t at = (size_t)i * (size_t)kinds[of[2]].bytes;
        if (memcmp(host[2] + at, expected + at, (size_t)kinds[of[2]].bytes) != 0
            && get(host[2], of[2], i) != get(expected, of[2], i)) {
            const double complex found = get(host[2], of[2], i);
            const double complex wanted = get(expected, of[2], i);
            fprintf(stderr, "%s, %s: element %lld is %g%+gi, not %g%+gi\n", types, name,
                (long long)i, creal(found), cimag(found), creal(wanted), cimag(wanted));
            exit(EXIT_FAILURE);
        }
    }
    cases++;
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    skip_without_compiler();
    for (int i = 0; i < 3; i++)
        CHECK_OK(tcuda_malloc(BYTES, TCUDA_CURRENT_DEVICE, NULL, (void **)&memory[i]));
#define TYPE(first, second, result, body, operation) \
    { #first " " #second, "template <typename T> T f(T x, T y) { return " body "; }", operation, \
        { KIND_##first, KIND_##second, KIND_##result } },
    static const struct { const char *name, *code; int operation; enum kind of[3]; } types[] = {
        TYPES(TYPE)
    };
    static const struct { const char *name; view views[3]; } layouts[] = {
        LAYOUTS
    };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        tcuda_jit *jit = NULL;
        CHECK_OK(tcuda_jit_create(types[i].code, NULL, &jit));
        for (size_t j = 0; j < sizeof layouts / sizeof layouts[0]; j++)
            check(layouts[j].name, types[i].name, jit, types[i].operation, types[i].of,
                layouts[j].views);
        CHECK_OK(tcuda_jit_destroy(jit));
    }
    CHECK(cases >= 200);
    printf("%d cases\n", cases);
    for (int i = 0; i < 3; i++)
        CHECK_OK(tcuda_free(memory[i]));
    return finish();
}
