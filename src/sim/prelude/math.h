/* The declarations that NVRTC has built in, for the host's C++ compiler. */
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __managed__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static thread_local
#define __grid_constant__
#define __CUDACC_RTC__ 1
#define TCUDA_SIMULATED 1
typedef decltype(sizeof(0)) size_t;
typedef decltype((char *)0 - (char *)0) ptrdiff_t;
namespace std { using ::size_t; using ::ptrdiff_t; typedef decltype(nullptr) nullptr_t; }
namespace tcuda_host {
template <class T> struct is_whole { static const bool value = false; };
template <bool, class T> struct only_if {};
template <class T> struct only_if<true, T> { typedef T type; };
}
#define TCUDA_WHOLE(T) \
    template <> struct tcuda_host::is_whole<T> { static const bool value = true; };
TCUDA_WHOLE(bool) TCUDA_WHOLE(char) TCUDA_WHOLE(signed char) TCUDA_WHOLE(unsigned char)
TCUDA_WHOLE(short) TCUDA_WHOLE(unsigned short) TCUDA_WHOLE(int) TCUDA_WHOLE(unsigned)
TCUDA_WHOLE(long) TCUDA_WHOLE(unsigned long) TCUDA_WHOLE(long long) TCUDA_WHOLE(unsigned long long)
#undef TCUDA_WHOLE
/* Overloads of a C function: double, float, and integers converted to double. */
#define TCUDA_ONE(name) \
    extern "C" double name(double) noexcept; \
    extern "C" float name##f(float) noexcept; \
    inline float name(float x) { return name##f(x); } \
    template <class T> inline typename tcuda_host::only_if<tcuda_host::is_whole<T>::value, \
        double>::type name(T x) { return name(double(x)); }
#define TCUDA_TWO(name) \
    extern "C" double name(double, double) noexcept; \
    extern "C" float name##f(float, float) noexcept; \
    inline float name(float x, float y) { return name##f(x, y); } \
    inline double name(double x, float y) { return name(x, double(y)); } \
    inline double name(float x, double y) { return name(double(x), y); } \
    template <class T, class U> inline typename tcuda_host::only_if< \
        tcuda_host::is_whole<T>::value || tcuda_host::is_whole<U>::value, \
        double>::type name(T x, U y) { return name(double(x), double(y)); }
TCUDA_ONE(fabs) TCUDA_ONE(sqrt) TCUDA_ONE(cbrt) TCUDA_ONE(exp) TCUDA_ONE(exp2) TCUDA_ONE(expm1)
TCUDA_ONE(exp10) TCUDA_ONE(log) TCUDA_ONE(log2) TCUDA_ONE(log10) TCUDA_ONE(log1p) TCUDA_ONE(sin)
TCUDA_ONE(cos) TCUDA_ONE(tan) TCUDA_ONE(asin) TCUDA_ONE(acos) TCUDA_ONE(atan) TCUDA_ONE(sinh)
TCUDA_ONE(cosh) TCUDA_ONE(tanh) TCUDA_ONE(asinh) TCUDA_ONE(acosh) TCUDA_ONE(atanh) TCUDA_ONE(erf)
TCUDA_ONE(erfc) TCUDA_ONE(tgamma) TCUDA_ONE(lgamma) TCUDA_ONE(ceil) TCUDA_ONE(floor)
TCUDA_ONE(trunc) TCUDA_ONE(round) TCUDA_ONE(rint) TCUDA_ONE(nearbyint) TCUDA_ONE(logb)
TCUDA_TWO(hypot) TCUDA_TWO(pow) TCUDA_TWO(atan2) TCUDA_TWO(fmod) TCUDA_TWO(remainder)
TCUDA_TWO(fmax) TCUDA_TWO(fmin) TCUDA_TWO(fdim) TCUDA_TWO(copysign) TCUDA_TWO(nextafter)
#undef TCUDA_ONE
#undef TCUDA_TWO
extern "C" double fma(double, double, double) noexcept;
extern "C" float fmaf(float, float, float) noexcept;
extern "C" double ldexp(double, int) noexcept;
extern "C" float ldexpf(float, int) noexcept;
extern "C" double scalbn(double, int) noexcept;
extern "C" float scalbnf(float, int) noexcept;
/* Functions of one number with another result type or an output pointer. */
#define TCUDA_TO(result, name) \
    extern "C" result name(double) noexcept; \
    extern "C" result name##f(float) noexcept; \
    inline result name(float x) { return name##f(x); } \
    template <class T> inline typename tcuda_host::only_if<tcuda_host::is_whole<T>::value, \
        result>::type name(T x) { return name(double(x)); }
TCUDA_TO(int, ilogb) TCUDA_TO(long, lrint) TCUDA_TO(long, lround) TCUDA_TO(long long, llrint)
TCUDA_TO(long long, llround)
#undef TCUDA_TO
extern "C" double frexp(double, int *) noexcept;
extern "C" float frexpf(float, int *) noexcept;
extern "C" double modf(double, double *) noexcept;
extern "C" float modff(float, float *) noexcept;
extern "C" double remquo(double, double, int *) noexcept;
extern "C" float remquof(float, float, int *) noexcept;
extern "C" double scalbln(double, long) noexcept;
extern "C" float scalblnf(float, long) noexcept;
extern "C" double nan(const char *) noexcept;
extern "C" float nanf(const char *) noexcept;
inline float frexp(float x, int *power) { return frexpf(x, power); }
inline float modf(float x, float *whole) { return modff(x, whole); }
inline float remquo(float x, float y, int *quotient) { return remquof(x, y, quotient); }
inline float scalbln(float x, long n) { return scalblnf(x, n); }
extern "C" int abs(int) noexcept;
extern "C" long labs(long) noexcept;
extern "C" long long llabs(long long) noexcept;
extern "C" int printf(const char *, ...);
inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
inline float ldexp(float x, int n) { return ldexpf(x, n); }
inline float scalbn(float x, int n) { return scalbnf(x, n); }
inline long abs(long x) { return labs(x); }
inline long long abs(long long x) { return llabs(x); }
inline float abs(float x) { return fabsf(x); }
inline double abs(double x) { return fabs(x); }
#define TCUDA_ASK(f) \
    inline bool f(float x) { return __builtin_##f(x); } \
    inline bool f(double x) { return __builtin_##f(x); }
TCUDA_ASK(isnan) TCUDA_ASK(isinf) TCUDA_ASK(isfinite) TCUDA_ASK(signbit)
#undef TCUDA_ASK
#define TCUDA_LEAST(T) \
    inline T max(T x, T y) { return x > y ? x : y; } \
    inline T min(T x, T y) { return x < y ? x : y; }
TCUDA_LEAST(int) TCUDA_LEAST(unsigned) TCUDA_LEAST(long) TCUDA_LEAST(unsigned long)
TCUDA_LEAST(long long) TCUDA_LEAST(unsigned long long)
#undef TCUDA_LEAST
inline float max(float x, float y) { return fmaxf(x, y); }
inline float min(float x, float y) { return fminf(x, y); }
inline double max(double x, double y) { return fmax(x, y); }
inline double min(double x, double y) { return fmin(x, y); }
inline unsigned __float_as_uint(float x) { unsigned y; __builtin_memcpy(&y, &x, 4); return y; }
inline int __float_as_int(float x) { int y; __builtin_memcpy(&y, &x, 4); return y; }
inline float __uint_as_float(unsigned x) { float y; __builtin_memcpy(&y, &x, 4); return y; }
inline float __int_as_float(int x) { float y; __builtin_memcpy(&y, &x, 4); return y; }
inline long long __double_as_longlong(double x) {
    long long y; __builtin_memcpy(&y, &x, 8); return y;
}
inline double __longlong_as_double(long long x) {
    double y; __builtin_memcpy(&y, &x, 8); return y;
}
inline unsigned __umulhi(unsigned x, unsigned y) {
    return unsigned((unsigned long long)x * y >> 32);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(x); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float rsqrt(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float normcdff(float x) { return 0.5f * erfcf(x * -0.707106781186547524f); }
inline double normcdf(double x) { return 0.5 * erfc(x * -0.707106781186547524); }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline void sincosf(float x, float *s, float *c) { *s = sinf(x); *c = cosf(x); }
inline void sincos(double x, double *s, double *c) { *s = sin(x); *c = cos(x); }
template <class T> inline T __ldg(const T *from) { return *from; }
template <class T> inline T __ldcs(const T *from) { return *from; }
template <class T> inline void __stcs(T *to, T value) { *to = value; }
template <class T> inline T atomicAdd(T *at, T value) {
    T old = *at, sum;
    do sum = old + value; while (!__atomic_compare_exchange(at, &old, &sum, false, 5, 5));
    return old;
}
template <class T> inline T atomicMax(T *at, T value) {
    T old = *at, sum;
    do sum = old > value ? old : value;
    while (!__atomic_compare_exchange(at, &old, &sum, false, 5, 5));
    return old;
}
template <class T> inline T atomicMin(T *at, T value) {
    T old = *at, sum;
    do sum = old < value ? old : value;
    while (!__atomic_compare_exchange(at, &old, &sum, false, 5, 5));
    return old;
}
template <class T> inline T atomicExch(T *at, T value) {
    T old;
    __atomic_exchange(at, &value, &old, 5);
    return old;
}
template <class T> inline T atomicCAS(T *at, T old, T value) {
    __atomic_compare_exchange(at, &old, &value, false, 5, 5);
    return old;
}
inline void __threadfence() { __atomic_thread_fence(5); }
inline void __threadfence_block() { __atomic_thread_fence(5); }
inline void __threadfence_system() { __atomic_thread_fence(5); }
[[noreturn]] inline void __trap() { __builtin_trap(); }
#undef assert
#define assert(x) ((void)0)
