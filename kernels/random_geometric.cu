// Fills tensors as PyTorch's geometric_; see random.cuh. Integers of 32 bits and less are cast with
// a sign, but for bytes without one.

#include "random.cuh"

FLAT(geometric_f32, Geometric<F32>)
FLAT(geometric_f16, Geometric<F16>)
FLAT(geometric_bf16, Geometric<BF16>)
FLAT(geometric_f64, Geometric<F64>)
FLAT(geometric_u8, Geometric<Unsigned8>)
FLAT(geometric_i8, Geometric<Integer<u8>>)
FLAT(geometric_i16, Geometric<Integer<u16>>)
FLAT(geometric_i32, Geometric<Integer<u32>>)
FLAT(geometric_i64, Geometric<Integer<u64>>)

STRIDED(geometric, Geometric<F32>, Geometric<F16>, Geometric<BF16>, Geometric<F64>,
        Geometric<Unsigned8>, Geometric<Integer<u8>>, Geometric<Integer<u16>>,
        Geometric<Integer<u32>>, Geometric<Integer<u64>>)
