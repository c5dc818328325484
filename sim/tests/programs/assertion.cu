// A failed assertion.
namespace checks { __device__ __noinline__ void small(unsigned x) { assert(x < 100 && "small"); } }
extern "C" __global__ void k(unsigned *out, const unsigned *in, unsigned n) {
    checks::small(threadIdx.x + blockIdx.x);
    out[threadIdx.x] = 1;
}
