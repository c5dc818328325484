// printf of one thread at a time.
extern "C" __global__ void k(unsigned *out, const unsigned *in, unsigned n) {
    if (blockIdx.x != 0 || threadIdx.x % 32 != 5) return;
    for (unsigned turn = 0; turn < 4; turn++) {
        if (threadIdx.x / 32 == turn)
            out[turn] = printf("thread %3u: %d %u %#x %lld %c %5.2f %g %s %%\n", threadIdx.x,
                               (int)in[turn], in[turn], in[turn], (long long)in[turn] * -5,
                               'A' + turn, in[turn] * 1e-7, (double)turn / 3,
                               turn & 1 ? "odd" : "even");
        __syncthreads();
    }
}
