#define TCUDA_INLINE __forceinline__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define POS_INFINITY __int_as_float(0x7f800000)
#define NEG_INFINITY __int_as_float(0xff800000)
#undef INFINITY
#define INFINITY POS_INFINITY
#undef NAN
#define NAN __int_as_float(0x7fffffff)
namespace tcuda {
template <class T, int N> struct alignas(sizeof(T) * N) vector { T at[N]; };
template <class To, class From> struct cast {
    static TCUDA_INLINE To of(From x) { return static_cast<To>(x); }
};
template <class To, class From> TCUDA_INLINE To to(From x) { return cast<To, From>::of(x); }
}
