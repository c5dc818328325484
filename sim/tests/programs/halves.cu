// f16 and bf16 by the toolkit's headers.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
extern "C" __global__ void k(unsigned *out, const unsigned *in, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, v = in[i], w = in[n - 1 - i];
    __half2 a = *(__half2 *)&v, b = *(__half2 *)&w;
    __nv_bfloat162 c = *(__nv_bfloat162 *)&v, d = *(__nv_bfloat162 *)&w;
    __half2 e = __hfma2(a, b, __hadd2(a, b));
    __nv_bfloat162 f = __hmul2(c, __hsub2(c, d));
    unsigned r = *(unsigned *)&e ^ *(unsigned *)&f;
    r += __float_as_uint(__half2float(__low2half(a)) + __bfloat162float(__high2bfloat16(d)));
    r ^= __half_as_ushort(__float2half_rz((int)v * 1e-5f)) + __hlt(__low2half(a), __high2half(b));
    r += __half_as_ushort(__hmax(__low2half(a), __low2half(b)));
    r += __half2int_rn(__float2half((int)w * 1e-6f));
    out[i] = r;
}
