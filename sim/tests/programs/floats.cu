// Functions of f32 whose code rounds every step exactly.
extern "C" __global__ void k(unsigned *out, const unsigned *in, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    float x = __uint_as_float(in[i]), y = __uint_as_float(in[n - 1 - i]), r = 0;
    float s = (int)in[i] * 1e-8f, t = (int)in[n - 1 - i] * 1e-8f;
    switch (i % 24) {
    case 0: r = sinf(s); break;
    case 1: r = cosf(s); break;
    case 2: r = sinf(x); break;
    case 3: r = logf(fabsf(x)); break;
    case 4: r = log1pf(fabsf(s)); break;
    case 5: r = atanf(x); break;
    case 6: r = __fsqrt_rd(fabsf(s)); break;
    case 7: r = __fdiv_ru(s, t); break;
    case 8: r = floorf(x) + ceilf(s) + truncf(t) + rintf(s) + roundf(t); break;
    case 9: r = fmodf(x, t); break;
    case 10: r = remainderf(s, t); break;
    case 11: r = ldexpf(s, (int)(in[i] % 300) - 150); break;
    case 12: { int e; r = frexpf(x, &e) + e; break; }
    case 13: r = nextafterf(x, y); break;
    case 14: r = sqrtf(fabsf(x)); break;
    case 15: r = x / t; break;
    case 16: r = fminf(x, y) + fmaxf(s, t); break;
    case 17: r = fmaf(s, t, -s * t); break;
    case 18: r = (float)(int)x + (float)(unsigned)y; break;
    case 19: r = (float)(long long)x; break;
    case 20: r = copysignf(s, y); break;
    case 21: r = __fdividef(0.0f, s) + fdimf(s, t); break;
    case 22: r = logbf(x) + ilogbf(s); break;
    case 23: r = isnan(x) ? 1 : isinf(y) ? 2 : signbit(x) ? 3 : 4; break;
    }
    out[i] = __float_as_uint(r);
}
