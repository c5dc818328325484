// Fills tensors as PyTorch's cauchy_; see random.cuh.

#include "random.cuh"

FLAT(cauchy_f32, Cauchy<F32>)
FLAT(cauchy_f16, Cauchy<F16>)
FLAT(cauchy_bf16, Cauchy<BF16>)
FLAT(cauchy_f64, Cauchy<F64>)

STRIDED(cauchy)
{
    STRIDED_CASE(0, Cauchy<F32>);
    STRIDED_CASE(1, Cauchy<F16>);
    STRIDED_CASE(2, Cauchy<BF16>);
    STRIDED_CASE(3, Cauchy<F64>);
}
