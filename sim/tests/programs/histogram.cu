// Shared and global atomics, and a loop of compare-and-swap.
__device__ double sum;
__device__ float atomic_max(float *p, float v) {
    int *q = (int *)p, old = *q, seen;
    do {
        seen = old;
        if (__int_as_float(seen) >= v) break;
        old = atomicCAS(q, seen, __float_as_int(v));
    } while (old != seen);
    return __int_as_float(old);
}
extern "C" __global__ void k(unsigned *out, const unsigned *in, unsigned n) {
    __shared__ unsigned bins[64];
    extern __shared__ unsigned more[];
    if (threadIdx.x < 64) { bins[threadIdx.x] = 0; more[threadIdx.x] = ~0u; }
    __syncthreads();
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        atomicAdd(&bins[in[i] % 64], 1);
        atomicMin(&more[in[i] % 64], in[i]);
        atomic_max((float *)out + 200, (float)(in[i] >> 8));
        atomicAdd(&sum, 1.0);
        atomicInc(out + 201, 100);
        atomicXor(out + 202, in[i]);
        atomicAdd((unsigned long long *)(out + 204), (unsigned long long)in[i]);
        atomicAdd(out + 206, -3);
    }
    __syncthreads();
    if (threadIdx.x < 64) {
        atomicAdd(out + threadIdx.x, bins[threadIdx.x]);
        atomicMax(out + 64 + threadIdx.x, ~more[threadIdx.x]);
    }
}
