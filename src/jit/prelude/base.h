#define TCUDA_INLINE __forceinline__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define POS_INFINITY (__builtin_huge_valf())
#define NEG_INFINITY (-__builtin_huge_valf())
#undef INFINITY
#define INFINITY POS_INFINITY
#undef NAN
#define NAN (__builtin_nanf(""))
namespace std {
using ::abs; using ::fabs; using ::sqrt; using ::cbrt; using ::hypot; using ::pow; using ::exp;
using ::exp2; using ::expm1; using ::log; using ::log2; using ::log10; using ::log1p; using ::sin;
using ::cos; using ::tan; using ::asin; using ::acos; using ::atan; using ::atan2; using ::sinh;
using ::cosh; using ::tanh; using ::asinh; using ::acosh; using ::atanh; using ::erf; using ::erfc;
using ::tgamma; using ::lgamma; using ::ceil; using ::floor; using ::trunc; using ::round;
using ::rint; using ::nearbyint; using ::fmod; using ::remainder; using ::fma; using ::fmax;
using ::fmin; using ::fdim; using ::copysign; using ::nextafter; using ::ldexp; using ::logb;
using ::scalbn; using ::isnan; using ::isinf; using ::isfinite; using ::signbit; using ::max;
using ::min;
}
namespace tcuda {
template <class T, int N> struct alignas(sizeof(T) * N) vector { T at[N]; };
template <class To, class From> struct cast {
    static TCUDA_INLINE To of(From x) { return static_cast<To>(x); }
};
template <class To, class From> TCUDA_INLINE To to(From x) { return cast<To, From>::of(x); }
}
