// Fills tensors as PyTorch's random_; see random.cuh. By the width of a draw, then by the type of
// the elements; integers of one size share a kernel.

#include "random.cuh"

FLAT(integers32_f32, Integers32<F32>)
FLAT(integers32_f16, Integers32<F16>)
FLAT(integers32_bf16, Integers32<BF16>)
FLAT(integers32_f64, Integers32<F64>)
FLAT(integers32_b8, Integers32<Integer<u8>>)
FLAT(integers32_b16, Integers32<Integer<u16>>)
FLAT(integers32_b32, Integers32<Integer<u32>>)
FLAT(integers32_b64, Integers32<Integer<u64>>)
FLAT(integers32_bool, Integers32<Bool>)

FLAT(integers64_f32, Integers64<F32>)
FLAT(integers64_bf16, Integers64<BF16>)
FLAT(integers64_f64, Integers64<F64>)
FLAT(integers64_b32, Integers64<Integer<u32>>)
FLAT(integers64_b64, Integers64<Integer<u64>>)

STRIDED(integers32, Integers32<F32>, Integers32<F16>, Integers32<BF16>, Integers32<F64>,
        Integers32<Integer<u8>>, Integers32<Integer<u16>>, Integers32<Integer<u32>>,
        Integers32<Integer<u64>>, Integers32<Bool>)

STRIDED(integers64, Integers64<F32>, None, Integers64<BF16>, Integers64<F64>, None, None,
        Integers64<Integer<u32>>, Integers64<Integer<u64>>)
