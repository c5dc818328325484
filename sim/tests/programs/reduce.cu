// Sums of blocks by shuffles and shared memory, then one atomic addition a block.
__device__ unsigned total;
extern "C" __global__ void k(unsigned *out, const unsigned *in, unsigned n) {
    __shared__ unsigned sums[32];
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned v = i < n ? in[i] : 0;
    for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(~0u, v, d);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < blockDim.x / 32 ? sums[threadIdx.x] : 0;
        for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(~0u, v, d);
        if (threadIdx.x == 0) {
            out[blockIdx.x] = v;
            atomicAdd(&total, v);
            atomicAdd(out + 8, v);
            atomicMax(out + 9, v);
        }
    }
    v = __ballot_sync(~0u, in[i] & 1);
    if (threadIdx.x % 32 == 3) out[16 + i / 32] = v;
}
