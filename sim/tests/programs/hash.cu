// Integer arithmetic of many kinds: CRC, Philox, wide products, rotations, divisions, sorting.
__constant__ unsigned polynomial = 0xedb88320;

extern "C" __global__ void k(unsigned *out, const unsigned *in, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, v = in[i], w = in[n - 1 - i];
    unsigned crc = ~0u;
    for (int j = 0; j < 4; j++) {
        crc ^= (v >> (8 * j)) & 255;
        for (int b = 0; b < 8; b++) crc = crc >> 1 ^ (polynomial & -(crc & 1));
    }
    unsigned c[2] = {v, w}, key = 0x9E3779B9;
    for (int r = 0; r < 7; r++) {
        unsigned hi = __umulhi(0xD256D193, c[0]), lo = 0xD256D193 * c[0];
        c[0] = hi ^ key ^ c[1];
        c[1] = lo;
        key += 0xBB67AE85;
    }
    int x = (int)v, y = (int)w;
    long long big = (long long)x * y;
    unsigned long long u = (unsigned long long)v << 32 | w;
    unsigned r = crc ^ c[0] ^ c[1] ^ (unsigned)(big >> 7);
    r ^= (unsigned)(u / 1000003) ^ (unsigned)(u % 97);
    r += x / (y | 1) + x % 1000 + v / 7 + __popc(v) + __clz(w) + __ffs(v) + __brev(w);
    r ^= __funnelshift_l(v, w, 13) + __byte_perm(v, w, 0x5140) + __dp4a(x, y, 5) + __sad(x, y, 3u);
    r += min(v, w) + (unsigned)max(x, y) + (unsigned)llabs(big) + (unsigned)__mulhi(x, y);
    unsigned char a[8];
    for (int j = 0; j < 8; j++) a[j] = j < 4 ? v >> (8 * j) : w >> (8 * (j - 4));
    for (int j = 1; j < 8; j++) {
        for (int e = j; e > 0 && a[e - 1] > a[e]; e--) {
            unsigned char t = a[e];
            a[e] = a[e - 1];
            a[e - 1] = t;
        }
    }
    for (int j = 0; j < 8; j++) r = r * 31 + a[j];
    unsigned char byte = (unsigned char)v;
    signed char small = (signed char)w;
    short h = (short)v;
    out[i] = r + (byte >> 3) + (small >> 2) + h / 3 + (v ? w / v : 0) + (unsigned short)(v * w);
}
