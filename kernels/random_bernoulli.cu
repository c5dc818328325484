// Fills tensors as PyTorch's bernoulli_, with one probability for all or one for each; see
// random.cuh.

#include "random.cuh"

FLAT(bernoulli_b8, Bernoulli<u8>)
FLAT(bernoulli_b16, Bernoulli<u16>)
FLAT(bernoulli_b32, Bernoulli<u32>)
FLAT(bernoulli_b64, Bernoulli<u64>)
FLAT(bernoulli_f64, BernoulliF64)

STRIDED(bernoulli, Bernoulli<u8>, Bernoulli<u16>, Bernoulli<u32>, Bernoulli<u64>, BernoulliF64)

// ---- A probability for each element.

// Torch lets a thread write four neighbours, from the first block of its stream.

// Dimensions of both tensors, in the order of linear indices; none: without gaps.
struct Pair {
    u32 dims, p_dims;
    u64 size[DIMS], p_size[DIMS];
    i64 stride[DIMS], p_stride[DIMS]; // bytes
};

// words: how many elements, the bits of a one, the type of the probabilities (P_...), 1: elements
// are doubles, of which torch compares doubles.
#define P_F32 0
#define P_F64 1
#define P_F16 2
#define P_BF16 3

static __device__ __forceinline__ u64 place(u32 dims, const u64 *size, const i64 *stride, u64 li,
                                            u32 bytes)
{
    if (dims == 0)
        return li * bytes;
    u64 offset = 0;
#pragma unroll 1
    for (u32 d = 0; d < dims; d++) {
        u64 q;
        if ((li | size[d]) >> 32)
            q = li / size[d];
        else
            q = (u32)li / (u32)size[d];
        offset += (li - q * size[d]) * (u64)stride[d];
        li = q;
    }
    return offset;
}

static __device__ __forceinline__ bool drawn(float u, const u8 *p, u32 type, bool doubles)
{
    double wide;
    if (type == P_F32)
        wide = *(const float *)p;
    else if (type == P_F64)
        wide = *(const double *)p;
    else if (type == P_F16)
        wide = of_half(*(const u16 *)p);
    else
        wide = bits_float((u32) * (const u16 *)p << 16);
    return doubles ? u <= wide : u <= (float)wide;
}

template <class Bits>
static __device__ __forceinline__ void each(u8 *address, const u8 *probabilities,
                                            const Philox &philox, const Scalars &scalars,
                                            const Pair &pair)
{
    typedef Stores<sizeof(Bits), 0> Store;
    u64 numel = scalars.word[0];
    Bits one = (Bits)scalars.word[1];
    u32 type = (u32)scalars.word[2];
    bool doubles = scalars.word[3] != 0;
    u32 p_bytes = type == P_F64 ? 8 : type == P_F32 ? 4 : 2;
    u64 seed = philox.seed_ptr ? *philox.seed_ptr : philox.seed;
    u64 offset = philox.offset + (philox.offset_ptr ? *philox.offset_ptr : 0);
    Keys keys = keys_of(seed);
    u64 step = (u64)gridDim.x * BLOCK;
    u64 group = (u64)blockIdx.x * BLOCK + threadIdx.x;
    for (; group < (numel + 3) / 4; group += step) {
        // Torch numbers its threads with 32 bits.
        Words words = words_of(keys, offset / 4, (u32)group);
        float u[4];
        uniforms(words, u);
        u64 li = 4 * group;
        Bits out[4];
        u64 left = numel - li;
        if (pair.p_dims == 0 && type == P_F32 && left >= 4 && (u64)probabilities % 16 == 0) {
            float4 p = *(const float4 *)(probabilities + 4 * li);
            out[0] = u[0] <= p.x ? one : (Bits)0;
            out[1] = u[1] <= p.y ? one : (Bits)0;
            out[2] = u[2] <= p.z ? one : (Bits)0;
            out[3] = u[3] <= p.w ? one : (Bits)0;
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                out[i] = 0;
                if (i < left) {
                    u64 at = place(pair.p_dims, pair.p_size, pair.p_stride, li + i, p_bytes);
                    out[i] = drawn(u[i], probabilities + at, type, doubles) ? one : (Bits)0;
                }
            }
        }
        if (pair.dims == 0 && left >= 4 && (u64)address % (sizeof(Bits) * Store::LANES) == 0) {
#pragma unroll
            for (u32 i = 0; i < 4; i += Store::LANES)
                Store::vector(address + (li + i) * sizeof(Bits), out + i);
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                if (i < left)
                    Store::one(
                        address + place(pair.dims, pair.size, pair.stride, li + i, sizeof(Bits)),
                        out[i]);
        }
    }
}

#define EACH(name, Bits)                                                                           \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                            \
    tcuda_random_bernoulli_each_##name(u8 *address, const u8 *probabilities, Philox philox,        \
                                       Scalars scalars, Pair pair)                                 \
    {                                                                                              \
        each<Bits>(address, probabilities, philox, scalars, pair);                                 \
    }

EACH(b8, u8)
EACH(b16, u16)
EACH(b32, u32)
EACH(b64, u64)
