// Fills tensors as PyTorch's normal_; see random.cuh.

#include "random.cuh"

FLAT(normal_f32, Normal<F32>)
FLAT(normal_f16, Normal<F16>)
FLAT(normal_bf16, Normal<BF16>)
FLAT(normal_f64, Normal<F64>)

STRIDED(normal, Normal<F32>, Normal<F16>, Normal<BF16>, Normal<F64>)
