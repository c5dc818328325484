// Fills tensors as PyTorch's uniform_; see random.cuh.

#include "random.cuh"

FLAT(uniform_f32, Uniform<F32>)
FLAT(uniform_f16, Uniform<F16>)
FLAT(uniform_bf16, Uniform<BF16>)
FLAT(uniform_f64, Uniform<F64>)

STRIDED(uniform)
{
    STRIDED_CASE(0, Uniform<F32>);
    STRIDED_CASE(1, Uniform<F16>);
    STRIDED_CASE(2, Uniform<BF16>);
    STRIDED_CASE(3, Uniform<F64>);
}
