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
