// Fills tensors as PyTorch's cauchy_; see random.cuh.

#include "random.cuh"

FLAT(cauchy_f32, Cauchy<F32>)
FLAT(cauchy_f16, Cauchy<F16>)
FLAT(cauchy_bf16, Cauchy<BF16>)
FLAT(cauchy_f64, Cauchy<F64>)

STRIDED(cauchy, Cauchy<F32>, Cauchy<F16>, Cauchy<BF16>, Cauchy<F64>)
