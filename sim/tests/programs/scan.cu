// An inclusive prefix sum of each block, and a stable partition by the lowest bit.
extern "C" __global__ void k(unsigned *out, const unsigned *in, unsigned n) {
    __shared__ unsigned a[128], odd;
    unsigned t = threadIdx.x, i = blockIdx.x * 128 + t;
    unsigned bit = in[i] & 1;
    a[t] = bit;
    __syncthreads();
    for (unsigned d = 1; d < 128; d *= 2) {
        unsigned v = t >= d ? a[t - d] : 0;
        __syncthreads();
        a[t] += v;
        __syncthreads();
    }
    if (t == 127) odd = a[127];
    __syncthreads();
    unsigned place = bit ? 128 - odd + a[t] - 1 : t - a[t];
    out[blockIdx.x * 128 + place] = in[i];
}
