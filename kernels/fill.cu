// Fills memory with a value of 1 to 16 bytes, at any address and of any length.
//
// Byte `x` of the destination is byte `x % period` of the value. The host (src/ops/fill.rs) passes
// the value repeated over 32 bytes: enough that a 16-byte vector that starts at any byte of the
// value is a shift away, and no thread needs memory but what it writes.

typedef unsigned int u32;
typedef unsigned long long u64;


// Independent stores that a thread has in flight; src/ops/fill.rs knows it.
#define STORES 4

// Bytes `at`.. of the repeated value as a vector; `at` < 16.
static __device__ __forceinline__ ulonglong2 vector_at(u64 p0, u64 p1, u64 p2, u64 p3, u32 at)
{
    u64 a = at < 8 ? p0 : p1, b = at < 8 ? p1 : p2, c = at < 8 ? p2 : p3;
    u32 shift = 8 * (at % 8);
    ulonglong2 vector;
    // Two steps to the left: a shift by 64 is not one.
    vector.x = a >> shift | b << 1 << (63 - shift);
    vector.y = b >> shift | c << 1 << (63 - shift);
    return vector;
}

extern "C" __global__ void __launch_bounds__(256)
tcuda_fill_pattern(unsigned char *dst, u64 bytes, u64 p0, u64 p1, u64 p2, u64 p3, u32 period)
{
    u64 head = -(u64)dst % 16;
    if (head > bytes)
        head = bytes;
    u64 vectors = (bytes - head) / 16;

    // The bytes before the first whole vector and after the last one, at most 15 each.
    if (blockIdx.x == 0 && threadIdx.x < 32) {
        u64 x = threadIdx.x < 16 ? threadIdx.x : head + 16 * vectors + (threadIdx.x - 16);
        if (x < (threadIdx.x < 16 ? head : bytes))
            dst[x] = (unsigned char)vector_at(p0, p1, p2, p3, (u32)(x % period)).x;
    }

    // The vectors repeat after `cycle` of them: the odd part of the period. A thread whose steps
    // are multiples of that writes the same vector every time; for that, the last few of a block
    // rest.
    u32 cycle = period >> (__ffs(period) - 1);
    u32 width = blockDim.x - blockDim.x % cycle;
    if (threadIdx.x >= width)
        return;
    // A tile is a multiple of the cycle, so that the phase depends on the thread alone.
    u32 phase = ((u32)head + 16 * (threadIdx.x % cycle)) % period;
    ulonglong2 vector = vector_at(p0, p1, p2, p3, phase);
    ulonglong2 *body = (ulonglong2 *)(dst + head);
    u64 step = (u64)width * STORES * gridDim.x;
    for (u64 i = (u64)width * STORES * blockIdx.x + threadIdx.x; i < vectors; i += step) {
        if (i + (STORES - 1) * width < vectors) {
#pragma unroll
            for (u32 k = 0; k < STORES; k++)
                body[i + k * width] = vector;
        } else {
            for (u64 j = i; j < vectors; j += width)
                body[j] = vector;
        }
    }
}
