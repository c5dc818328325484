// A product of 16 x 16 tiles in shared memory, contracted to fused multiplications.
extern "C" __global__ void k(unsigned *out, const unsigned *in, unsigned n) {
    __shared__ float a[8][16], b[16][9];
    int x = threadIdx.x % 8, y = threadIdx.x / 8;
    for (int j = threadIdx.x; j < 128; j += 128) {
        a[j / 16][j % 16] = (int)in[blockIdx.x * 128 + j] * 1e-5f;
        b[j / 8][j % 8] = (int)in[511 - blockIdx.x * 128 - j] * 1.5e-7f;
    }
    __syncthreads();
    float s = 0;
    #pragma unroll
    for (int j = 0; j < 16; j++) s += a[y % 8][j] * b[j][x];
    out[blockIdx.x * 128 + threadIdx.x] = __float_as_uint(s / (1.0f + s * s) + rsqrtf(4.0f) * 0.0f);
}
