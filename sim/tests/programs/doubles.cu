// Functions of f64.
extern "C" __global__ void k(unsigned *out, const unsigned *in, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    double s = (int)in[i] * 1e-8, t = (int)in[n - 1 - i] * 1e-8, r = 0;
    double x = __longlong_as_double((long long)in[i] << 32 | in[n - 1 - i]);
    switch (i % 16) {
    case 0: r = sin(s); break;
    case 1: r = cos(x); break;
    case 2: r = exp(s); break;
    case 3: r = log(fabs(x)); break;
    case 4: r = pow(fabs(s), t); break;
    case 5: r = atan2(s, t); break;
    case 6: r = s / t; break;
    case 7: r = sqrt(fabs(x)); break;
    case 8: r = tanh(s); break;
    case 9: r = fmod(s, t); break;
    case 10: r = erf(s * 0.1); break;
    case 11: r = (double)(long long)(x) + (double)(unsigned long long)fabs(s * 1e12); break;
    case 12: r = floor(x) + rint(s); break;
    case 13: r = hypot(s, t); break;
    case 14: r = (float)x; break;
    case 15: r = 1.0 / s; break;
    }
    if (i < 256) ((long long *)out)[i] = __double_as_longlong(r);
}
