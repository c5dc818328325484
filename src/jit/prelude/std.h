namespace std {
using ::abs; using ::fabs; using ::sqrt; using ::cbrt; using ::hypot; using ::pow; using ::exp;
using ::exp2; using ::expm1; using ::log; using ::log2; using ::log10; using ::log1p; using ::sin;
using ::cos; using ::tan; using ::asin; using ::acos; using ::atan; using ::atan2; using ::sinh;
using ::cosh; using ::tanh; using ::asinh; using ::acosh; using ::atanh; using ::erf; using ::erfc;
using ::tgamma; using ::lgamma; using ::ceil; using ::floor; using ::trunc; using ::round;
using ::rint; using ::nearbyint; using ::fmod; using ::remainder; using ::fma; using ::fmax;
using ::fmin; using ::fdim; using ::copysign; using ::nextafter; using ::ldexp; using ::logb;
using ::scalbn; using ::isnan; using ::isinf; using ::isfinite; using ::signbit; using ::max;
using ::min; using ::frexp; using ::modf; using ::remquo; using ::ilogb; using ::scalbln;
using ::lrint; using ::llrint; using ::lround; using ::llround; using ::nan;
using ::fabsf; using ::sqrtf; using ::cbrtf; using ::hypotf; using ::powf; using ::expf;
using ::exp2f; using ::expm1f; using ::logf; using ::log2f; using ::log10f; using ::log1pf;
using ::sinf; using ::cosf; using ::tanf; using ::asinf; using ::acosf; using ::atanf;
using ::atan2f; using ::sinhf; using ::coshf; using ::tanhf; using ::asinhf; using ::acoshf;
using ::atanhf; using ::erff; using ::erfcf; using ::tgammaf; using ::lgammaf; using ::ceilf;
using ::floorf; using ::truncf; using ::roundf; using ::rintf; using ::nearbyintf; using ::fmodf;
using ::remainderf; using ::fmaf; using ::fmaxf; using ::fminf; using ::fdimf; using ::copysignf;
using ::nextafterf; using ::ldexpf; using ::logbf; using ::scalbnf; using ::frexpf; using ::modff;
using ::remquof; using ::ilogbf; using ::scalblnf; using ::lrintf; using ::llrintf;
using ::lroundf; using ::llroundf; using ::nanf;
template <class T, T V> struct integral_constant {
    static constexpr T value = V;
    typedef T value_type;
    typedef integral_constant type;
    TCUDA_INLINE constexpr operator T() const { return V; }
};
template <bool V> using bool_constant = integral_constant<bool, V>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;
template <class T, class U> struct is_same : false_type {};
template <class T> struct is_same<T, T> : true_type {};
template <bool, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool, class T, class U> struct conditional { typedef T type; };
template <class T, class U> struct conditional<false, T, U> { typedef U type; };
template <class T> struct remove_const { typedef T type; };
template <class T> struct remove_const<const T> { typedef T type; };
template <class T> struct remove_volatile { typedef T type; };
template <class T> struct remove_volatile<volatile T> { typedef T type; };
template <class T> struct remove_cv : remove_const<typename remove_volatile<T>::type> {};
template <class T> struct remove_reference { typedef T type; };
template <class T> struct remove_reference<T &> { typedef T type; };
template <class T> struct remove_reference<T &&> { typedef T type; };
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;
template <bool B, class T, class U> using conditional_t = typename conditional<B, T, U>::type;
template <class T> using remove_const_t = typename remove_const<T>::type;
template <class T> using remove_volatile_t = typename remove_volatile<T>::type;
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> T &&declval() noexcept;
template <class T, class... U> struct is_any_of : false_type {};
template <class T, class U, class... More> struct is_any_of<T, U, More...>
    : bool_constant<is_same<T, U>::value || is_any_of<T, More...>::value> {};
template <class T>
struct is_floating_point : is_any_of<remove_cv_t<T>, float, double, long double> {};
template <class T> struct is_integral : is_any_of<remove_cv_t<T>, bool, char, signed char,
    unsigned char, short, unsigned short, int, unsigned, long, unsigned long, long long,
    unsigned long long, wchar_t, char16_t, char32_t> {};
template <class T> struct is_arithmetic
    : bool_constant<is_integral<T>::value || is_floating_point<T>::value> {};
template <class T, bool = is_arithmetic<T>::value>
struct is_signed : bool_constant<(T(-1) < T(0))> {};
template <class T> struct is_signed<T, false> : false_type {};
template <class T> struct is_unsigned
    : bool_constant<is_arithmetic<T>::value && !is_signed<T>::value> {};
template <class T, class U> constexpr bool is_same_v = is_same<T, U>::value;
template <class T> constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <class T> constexpr bool is_integral_v = is_integral<T>::value;
template <class T> constexpr bool is_arithmetic_v = is_arithmetic<T>::value;
template <class T> constexpr bool is_signed_v = is_signed<T>::value;
template <class T> constexpr bool is_unsigned_v = is_unsigned<T>::value;
}
namespace tcuda {
/* What C computes in: float for floats alone, else double. */
template <class... T> using real_of = std::conditional_t<(std::is_same<T, float>::value && ...),
    float, std::enable_if_t<(std::is_arithmetic<T>::value && ...), double>>;
}
namespace std {
template <class A, class B, class C>
TCUDA_INLINE tcuda::real_of<A, B, C> hypot(A x, B y, C z) {
    typedef tcuda::real_of<A, B, C> T;
    return hypot(hypot(T(x), T(y)), T(z));
}
/* Exact at both ends, and it rises and falls as they do. */
template <class A, class B, class C>
TCUDA_INLINE tcuda::real_of<A, B, C> lerp(A from, B to, C at) {
    typedef tcuda::real_of<A, B, C> T;
    const T a = T(from), b = T(to), t = T(at);
    if ((a <= 0 && b >= 0) || (a >= 0 && b <= 0)) return t * b + (1 - t) * a;
    if (t == 1) return b;
    const T x = a + t * (b - a);
    return (t > 1) == (b > a) ? (b < x ? x : b) : (b > x ? x : b);
}
}
