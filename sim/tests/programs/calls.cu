// Recursion, function pointers, virtual functions, structures by value.
struct Shape {
    __device__ virtual unsigned area() const = 0;
    unsigned tag;
};
struct Square : Shape {
    unsigned side;
    __device__ unsigned area() const override { return side * side; }
};
struct Box : Shape {
    unsigned w, h;
    __device__ unsigned area() const override { return w * h + tag; }
};
struct Triple {
    unsigned char a;
    unsigned short b;
    double c;
    unsigned d[3];
};
struct __attribute__((packed)) Packed {
    char c;
    const unsigned *p;
    int n;
};

__device__ __noinline__ unsigned ackermann(unsigned m, unsigned n) {
    if (m == 0) return n + 1;
    return n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}
__device__ __noinline__ Triple turn(Triple t) {
    t.d[0] += t.a;
    t.c *= t.b;
    t.d[2] ^= t.d[1];
    return t;
}
__device__ __noinline__ unsigned twice(unsigned x) { return 2 * x; }
__device__ __noinline__ unsigned half(unsigned x) { return x / 2; }
__device__ unsigned (*const table[])(unsigned) = {twice, half};

extern "C" __global__ void k(unsigned *out, const unsigned *in, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, v = in[i];
    Square q;
    Box b;
    q.side = v % 100;
    b.w = v % 7;
    b.h = v % 11;
    q.tag = b.tag = i;
    const Shape *s = v & 1 ? (const Shape *)&q : &b;
    Triple t = {(unsigned char)v, (unsigned short)(v >> 8), 1.5, {v, i, n}};
    t = turn(t);
    Packed p;
    p.c = 1;
    p.p = in;
    p.n = i;
    volatile Packed *pp = &p;
    unsigned r = s->area() + ackermann(v % 2, v % 3) + t.d[0] + t.d[2] + (unsigned)t.c;
    out[i] = r + table[v >> 1 & 1](v) + pp->p[pp->n] + sizeof(Packed);
}
