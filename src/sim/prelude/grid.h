/* Runs the threads of a grid one by one. */
struct uint3 { unsigned x, y, z; };
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
#define TCUDA_VECTORS(T, name) \
    struct alignas(2 * sizeof(T)) name##2 { T x, y; }; \
    struct name##3 { T x, y, z; }; \
    struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; }; \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
TCUDA_VECTORS(float, float) TCUDA_VECTORS(double, double) TCUDA_VECTORS(int, int)
#undef TCUDA_VECTORS
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static thread_local uint3 threadIdx, blockIdx;
static thread_local dim3 blockDim, gridDim;
static const int warpSize = 32;
namespace tcuda_host {
static thread_local void *dynamic_shared;
struct launch {
    unsigned grid[3], block[3];
    void *const *arguments;
    void *shared;
    void *stacks;
    size_t stack_bytes;
};
template <unsigned... I> struct indices {};
template <unsigned N, unsigned... I> struct count : count<N - 1, N - 1, I...> {};
template <unsigned... I> struct count<0, I...> { typedef indices<I...> type; };
template <class T> struct is_pointer { static constexpr bool value = false; };
template <class T> struct is_pointer<T *> { static constexpr bool value = true; };
template <class T> struct is_pointer<T *const> { static constexpr bool value = true; };
template <class F> struct entry;
template <class... P> struct entry<void(P...)> {
    static constexpr size_t sizes[] = {sizeof(P)..., 0};
    static constexpr unsigned char pointers[] = {
        (is_pointer<P>::value ? 1 : alignof(P) < alignof(void *) ? 0 : 2)..., 0};
    static const unsigned number = sizeof...(P);
    template <void (*kernel)(P...), unsigned... I>
    static void call(void *const *arguments, indices<I...>) {
        kernel(*static_cast<typename plain<P>::type *>(arguments[I])...);
    }
    template <class T> struct plain { typedef T type; };
    template <class T> struct plain<const T> { typedef T type; };
    template <void (*kernel)(P...)> static void run_one(void *const *arguments) {
        call<kernel>(arguments, typename count<sizeof...(P)>::type());
    }
};
template <class... P> constexpr size_t entry<void(P...)>::sizes[];
template <class... P> constexpr unsigned char entry<void(P...)>::pointers[];
typedef void one_thread(void *const *);
