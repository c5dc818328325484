// Fills tensors as PyTorch's log_normal_; see random.cuh.

#include "random.cuh"

FLAT(log_normal_f32, LogNormal<F32>)
FLAT(log_normal_f16, LogNormal<F16>)
FLAT(log_normal_bf16, LogNormal<BF16>)
FLAT(log_normal_f64, LogNormal<F64>)

STRIDED(log_normal)
{
    STRIDED_CASE(0, LogNormal<F32>);
    STRIDED_CASE(1, LogNormal<F16>);
    STRIDED_CASE(2, LogNormal<BF16>);
    STRIDED_CASE(3, LogNormal<F64>);
}
