// Fills tensors as PyTorch's uniform_; see random.cuh.

#include "random.cuh"

FLAT(uniform_f32, Uniform<F32>)
FLAT(uniform_f16, Uniform<F16>)
FLAT(uniform_bf16, Uniform<BF16>)
FLAT(uniform_f64, Uniform<F64>)

STRIDED(uniform, Uniform<F32>, Uniform<F16>, Uniform<BF16>, Uniform<F64>)
