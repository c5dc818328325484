// Fills tensors as PyTorch's log_normal_; see random.cuh.

#include "random.cuh"

FLAT(log_normal_f32, LogNormal<F32>)
FLAT(log_normal_f16, LogNormal<F16>)
FLAT(log_normal_bf16, LogNormal<BF16>)
FLAT(log_normal_f64, LogNormal<F64>)

STRIDED(log_normal, LogNormal<F32>, LogNormal<F16>, LogNormal<BF16>, LogNormal<F64>)
