/* What torch.cuda.jiterator accepts: outputs beside a returned value, and its names of std, of
 * which each is called and compared with C's own. */
#include <complex.h>
#include <math.h>

#include "support.h"

enum { ROOM = 1 << 16, MOST = 4096 };

static const double points[] = { 0.3, 1.75, -0.4, 2.5, -3.5, 0.999, 12.25 };
enum { POINTS = sizeof points / sizeof *points };

/* ---- Real numbers: name, and C's function of x and y; n and w are places for results ---- */

#define ONE(X) X(fabs) X(sqrt) X(cbrt) X(exp) X(exp2) X(expm1) X(log) X(log2) X(log10) X(log1p) \
    X(sin) X(cos) X(tan) X(asin) X(acos) X(atan) X(sinh) X(cosh) X(tanh) X(asinh) X(acosh) \
    X(atanh) X(erf) X(erfc) X(tgamma) X(lgamma) X(ceil) X(floor) X(trunc) X(round) X(rint) \
    X(nearbyint) X(logb) X(ilogb) X(lrint) X(llrint) X(lround) X(llround)
#define TWO(X) X(hypot) X(pow) X(atan2) X(fmod) X(remainder) X(fmax) X(fmin) X(fdim) X(copysign) \
    X(nextafter)
#define OTHERS(X) \
    X("std::frexp(x, &n) + n", frexp(x, &n) + n) \
    X("std::frexpf(x, &n) + n", frexpf((float)x, &n) + (float)n) \
    X("std::modf(x, &w) + 10 * w", modf(x, &w) + 10 * w) \
    X("std::modff(x, &v) + 10 * v", modff((float)x, &v) + 10 * v) \
    X("std::remquo(x, y, &n) + (n & 7)", remquo(x, y, &n) + (n & 7)) \
    X("std::remquof(x, y, &n)", remquof((float)x, (float)y, &n)) \
    X("std::ldexp(x, 3) + std::ldexpf(x, 3)", ldexp(x, 3) * 2) \
    X("std::scalbn(x, -2) + std::scalbnf(x, 2)", x / 4 + x * 4) \
    X("std::scalbln(x, 5L) + std::scalblnf(x, 1L)", x * 34) \
    X("std::fma(x, y, x) + std::fmaf(x, y, x)", 2 * (x * y + x)) \
    X("std::nan(\"\")", NAN) X("std::nanf(\"\")", NAN) \
    X("std::hypot(x, y, 2.0)", sqrt(x * x + y * y + 4)) \
    X("std::abs(x) + std::abs(-3) + std::abs(float(x))", 2 * fabs(x) + 3) \
    X("std::max(x, y) - std::min(x, y)", fabs(x - y)) \
    X("std::isnan(x) + 2 * std::isinf(x) + 4 * std::isfinite(x)", 4) \
    X("std::signbit(x) ? 1 : 0", signbit(x) ? 1 : 0) \
    X("std::lerp(x, y, T(0.25))", x + 0.25 * (y - x)) \
    X("std::lerp(x, 1, 2.0f)", x + 2 * (1 - x)) \
    X("std::lerp(x, y, T(1)) == y", 1) \
    X("std::is_same<T, double>::value + 2 * std::is_same_v<T, float>", 1) \
    X("std::is_floating_point<T>::value + 2 * std::is_floating_point_v<int>", 1) \
    X("std::is_integral<bool>::value + 2 * std::is_integral_v<T>", 1) \
    X("std::is_arithmetic<const long>::value + 2 * std::is_arithmetic_v<T *>", 1) \
    X("std::is_signed<T>::value + 2 * std::is_unsigned<T>::value", 1) \
    X("std::is_signed_v<bool> + 2 * std::is_unsigned_v<unsigned char>", 2) \
    X("std::enable_if_t<std::is_floating_point_v<T>, T>(x)", x) \
    X("std::conditional_t<std::is_same_v<T, float>, int, T>(x)", x) \
    X("std::remove_cv_t<const volatile T>(x) + std::remove_reference_t<T &>(x)", 2 * x) \
    X("std::remove_const_t<const T>(x) + std::remove_volatile_t<volatile T>(x)", 2 * x) \
    X("std::integral_constant<int, 7>::value + std::true_type::value", 8) \
    X("std::is_same_v<decltype(std::declval<T>()), T &&>", 1) \
    X("chosen(x) + chosen(3)", 43)

#define CASE_ONE(name) { "std::" #name "(x)" }, { "std::" #name "f(x)" },
#define CASE_TWO(name) { "std::" #name "(x, y)" }, { "std::" #name "f(x, y)" },
#define CASE(code, value) { code },
static const struct { const char *code; } real_cases[] = {
    ONE(CASE_ONE) TWO(CASE_TWO) OTHERS(CASE)
};
enum { REALS = sizeof real_cases / sizeof *real_cases };

#define VALUE_ONE(name) values[at++] = (double)name(x); values[at++] = (double)name##f((float)x);
#define VALUE_TWO(name) \
    values[at++] = name(x, y); values[at++] = (double)name##f((float)x, (float)y);
#define VALUE(code, value) values[at++] = (double)(value);

static void real_values(double x, double y, double *values)
{
    int at = 0, n = 0;
    double w = 0;
    float v = 0;
    ONE(VALUE_ONE) TWO(VALUE_TWO) OTHERS(VALUE)
    CHECK_EQ(at, REALS);
}

static bool is_near(double found, double expected, double scale, double tolerance)
{
    if (isnan(expected) || isinf(expected))
        return isnan(expected) ? isnan(found) : found == expected;
    return fabs(found - expected) <= tolerance * (1 + scale);
}

static void disagree(const char *code, double complex x, double complex found,
    double complex expected)
{
    char text[300];
    snprintf(text, sizeof text, "%s of %g %+gi: %.17g %+.17gi, not %.17g %+.17gi", code, creal(x),
        cimag(x), creal(found), cimag(found), creal(expected), cimag(expected));
    check_failed(__FILE__, __LINE__, "as in C", text);
}

/* A function whose first argument says which of the cases is wanted. */
static tcuda_jit *function_of(const char *before, const char *selector, const char *const *codes,
    size_t count)
{
    static char code[ROOM];
    size_t length = (size_t)snprintf(code, ROOM,
        "%s\ntemplate <typename T> T f(T which, T x, T y)\n"
        "{\n int n = 0; double w = 0; float v = 0;\n switch (int(%s)) {\n", before, selector);
    for (size_t i = 0; i < count; i++)
        length += (size_t)snprintf(code + length, ROOM - length,
            "case %d: { const auto value = %s; return T(value); }\n", (int)i, codes[i]);
    snprintf(code + length, ROOM - length, "} return T(n + w + v); }");
    tcuda_jit *jit = NULL;
    CHECK_OK(tcuda_jit_create(code, NULL, &jit));
    return jit;
}

/* Computes `count` elements of three lists of numbers. */
static void compute(tcuda_jit *jit, tcuda_dtype dtype, const void *const lists[3], void *result,
    int64_t count)
{
    const size_t bytes = (size_t)count * (dtype.bits / 8);
    tcuda_tensor tensors[4];
    for (int i = 0; i < 4; i++) {
        tensors[i] = (tcuda_tensor){ .data = allocate(bytes, 0, NULL),
            .device = { TCUDA_DEVICE_CUDA, 0 }, .ndim = 1, .dtype = dtype, .shape = &count };
        if (i < 3)
            CHECK_OK(tcuda_copy(tensors[i].data, lists[i], bytes, NULL));
    }
    CHECK_OK(tcuda_jit_call(jit, tensors, 3, NULL, 0, &tensors[3], 1, NULL));
    CHECK_OK(tcuda_copy(result, tensors[3].data, bytes, NULL));
    CHECK_OK(tcuda_stream_synchronize(NULL));
    for (int i = 0; i < 4; i++)
        CHECK_OK(tcuda_free(tensors[i].data));
    CHECK_OK(tcuda_jit_destroy(jit));
}

static void real_functions(void)
{
    static double which[MOST], xs[MOST], ys[MOST], found[MOST], expected[REALS];
    const char *codes[REALS];
    int count = 0;
    for (int i = 0; i < REALS; i++)
        codes[i] = real_cases[i].code;
    for (int p = 0; p < POINTS; p++) {
        for (int i = 0; i < REALS; i++, count++)
            which[count] = i, xs[count] = points[p], ys[count] = points[(p + 1) % POINTS];
    }
    CHECK(count <= MOST);
    tcuda_jit *jit = function_of(
        "template <typename T, std::enable_if_t<std::is_integral<T>::value, int> = 0>\n"
        "T chosen(T) { return T(1); }\n"
        "template <typename T, std::enable_if_t<std::is_floating_point<T>::value, int> = 0>\n"
        "T chosen(T) { return T(42); }\n", "which", codes, REALS);
    compute(jit, (tcuda_dtype){ TCUDA_DTYPE_FLOAT, 64, 1 },
        (const void *const[]){ which, xs, ys }, found, count);
    for (int at = 0; at < count; at++) {
        const int i = (int)which[at];
        if (i == 0)
            real_values(xs[at], ys[at], expected);
        if (!is_near(found[at], expected[i], fabs(expected[i]), 1e-5))
            disagree(codes[i], xs[at], found[at], expected[i]);
    }
}

/* ---- Complex numbers ---- */

#define COMPLEX(X) \
    X("std::exp(x)", cexp(x)) X("std::log(x)", clog(x)) X("std::log10(x)", clog(x) / log(10)) \
    X("std::sqrt(x)", csqrt(x)) X("std::pow(x, y)", cpow(x, y)) \
    X("std::pow(x, y.real())", cpow(x, creal(y))) X("std::pow(x.real(), y)", cpow(creal(x), y)) \
    X("std::pow(x, 2)", x * x) X("std::pow(2.0f, x)", cpow(2, x)) \
    X("std::sin(x)", csin(x)) X("std::cos(x)", ccos(x)) X("std::tan(x)", ctan(x)) \
    X("std::sinh(x)", csinh(x)) X("std::cosh(x)", ccosh(x)) X("std::tanh(x)", ctanh(x)) \
    X("std::asin(x)", casin(x)) X("std::acos(x)", cacos(x)) X("std::atan(x)", catan(x)) \
    X("std::asinh(x)", casinh(x)) X("std::acosh(x)", cacosh(x)) X("std::atanh(x)", catanh(x)) \
    X("std::proj(x)", cproj(x)) X("std::conj(x)", conj(x)) \
    X("std::real(x) + 10 * std::imag(x)", creal(x) + 10 * cimag(x)) \
    X("std::abs(x) + std::arg(x) + std::norm(x)", cabs(x) + carg(x) + cabs(x) * cabs(x)) \
    X("std::polar(x.real(), x.imag())", creal(x) * cexp(cimag(x) * I)) \
    X("std::real(2.5f) + std::imag(3) + std::norm(3) + std::arg(-1.0)", 11.5 + acos(-1)) \
    X("std::conj(2.5) + std::complex<double>(std::proj(3))", 5.5)
/* Of these also what is no number or not finite. */
#define INVERSE(X) X(asin) X(acos) X(atan) X(asinh) X(acosh) X(atanh)

static const struct { const char *code; } complex_cases[] = { COMPLEX(CASE) };
enum { COMPLEXES = sizeof complex_cases / sizeof *complex_cases };
#define CASE_OF(name) "std::" #name "(x)",
static const char *const inverses[] = { INVERSE(CASE_OF) };
enum { INVERSES = sizeof inverses / sizeof *inverses };

static const tcuda_dtype complex128 = { TCUDA_DTYPE_COMPLEX, 128, 1 };

static void complex_functions(void)
{
    static double complex which[MOST], xs[MOST], ys[MOST], found[MOST];
    const char *codes[COMPLEXES];
    int count = 0;
    for (int i = 0; i < COMPLEXES; i++)
        codes[i] = complex_cases[i].code;
    for (int p = 0; p < POINTS; p++) {
        for (int i = 0; i < COMPLEXES; i++, count++) {
            which[count] = i, xs[count] = points[p] + points[(p + 3) % POINTS] * 0.25 * I;
            ys[count] = points[(p + 1) % POINTS] * 0.5 - 0.75 * I;
        }
    }
    CHECK(count <= MOST);
    tcuda_jit *jit = function_of("", "which.real()", codes, COMPLEXES);
    compute(jit, complex128, (const void *const[]){ which, xs, ys }, found, count);
    for (int at = 0; at < count; at++) {
        const double complex x = xs[at], y = ys[at];
        double complex values[COMPLEXES];
        int i = 0;
#define COMPLEX_VALUE(code, value) values[i++] = value;
        COMPLEX(COMPLEX_VALUE)
        i = (int)creal(which[at]);
        const double scale = cabs(values[i]);
        if (!is_near(creal(found[at]), creal(values[i]), scale, 1e-9)
            || !is_near(cimag(found[at]), cimag(values[i]), scale, 1e-9))
            disagree(codes[i], x, found[at], values[i]);
    }
}

/* Both are the same at the edges, but for signs that C leaves open. */
static bool is_same_edge(double found, double expected)
{
    if (isnan(expected) || isnan(found))
        return isnan(expected) && isnan(found);
    return isinf(expected) ? isinf(found) : fabs(found - expected) <= 1e-12;
}

static void edges_of_inverses(void)
{
    static double complex which[MOST], xs[MOST], found[MOST];
    const double edges[] = { 0.0, -0.0, 1, -1, 0.5, INFINITY, -INFINITY, NAN };
    int count = 0;
    for (int re = 0; re < 8; re++) {
        for (int im = 0; im < 8; im++) {
            for (int i = 0; i < INVERSES; i++, count++) {
                double parts[2] = { edges[re], edges[im] };
                memcpy(&xs[count], parts, sizeof parts);
                which[count] = i;
            }
        }
    }
    tcuda_jit *jit = function_of("", "which.real()", inverses, INVERSES);
    compute(jit, complex128, (const void *const[]){ which, xs, xs }, found, count);
    for (int at = 0; at < count; at++) {
        const double complex x = xs[at];
#define OF_C(name) c##name(x),
        const double complex values[] = { INVERSE(OF_C) };
        const double complex expected = values[(int)creal(which[at])];
        if (!is_same_edge(creal(found[at]), creal(expected))
            || !is_same_edge(cimag(found[at]), cimag(expected)))
            disagree(inverses[(int)creal(which[at])], x, found[at], expected);
    }
}

/* ---- Outputs ---- */

static void a_value_beside_outputs_is_ignored(void)
{
    const char *const codes[] = {
        "template <typename T> T f(T x, T &p, T &q) { p = x + x; q = x - x; return T(77); }",
        "template <typename T> int f(T x, T &p, T &q) { p = x + x; q = x - x; return 0; }",
        "template <typename T> T &f(T x, T &p, T &q) { p = x + x; q = x - x; return p; }",
    };
    const double values[] = { 1, 2, 3 };
    int64_t shape = 3;
    tcuda_tensor tensors[3];
    for (int i = 0; i < 3; i++)
        tensors[i] = (tcuda_tensor){ .data = allocate(sizeof values, 0, NULL),
            .device = { TCUDA_DEVICE_CUDA, 0 }, .ndim = 1,
            .dtype = { TCUDA_DTYPE_FLOAT, 64, 1 }, .shape = &shape };
    CHECK_OK(tcuda_copy(tensors[0].data, values, sizeof values, NULL));
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        tcuda_jit *jit = NULL;
        double sums[3], differences[3];
        CHECK_OK(tcuda_jit_create_multi(codes[i], 2, NULL, &jit));
        fill_bytes(tensors[1].data, 0x55, sizeof values, NULL);
        fill_bytes(tensors[2].data, 0x55, sizeof values, NULL);
        CHECK_OK(tcuda_jit_call(jit, tensors, 1, NULL, 0, tensors + 1, 2, NULL));
        CHECK_OK(tcuda_copy(sums, tensors[1].data, sizeof sums, NULL));
        CHECK_OK(tcuda_copy(differences, tensors[2].data, sizeof differences, NULL));
        CHECK_OK(tcuda_stream_synchronize(NULL));
        for (int k = 0; k < 3; k++)
            CHECK(sums[k] == 2 * values[k] && differences[k] == 0);
        CHECK_OK(tcuda_jit_destroy(jit));
    }
    for (int i = 0; i < 3; i++)
        CHECK_OK(tcuda_free(tensors[i].data));
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    skip_without_compiler();
    a_value_beside_outputs_is_ignored();
    real_functions();
    complex_functions();
    edges_of_inverses();
    return finish();
}
