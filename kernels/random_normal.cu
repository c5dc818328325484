// Fills tensors as PyTorch's normal_; see random.cuh.

#include "random.cuh"

FLAT(normal_f32, Normal<F32>)
FLAT(normal_f16, Normal<F16>)
FLAT(normal_bf16, Normal<BF16>)
FLAT(normal_f64, Normal<F64>)

STRIDED(normal)
{
    STRIDED_CASE(0, Normal<F32>);
    STRIDED_CASE(1, Normal<F16>);
    STRIDED_CASE(2, Normal<BF16>);
    STRIDED_CASE(3, Normal<F64>);
}
