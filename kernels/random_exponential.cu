// Fills tensors as PyTorch's exponential_; see random.cuh.

#include "random.cuh"

FLAT(exponential_f32, Exponential<F32>)
FLAT(exponential_f16, Exponential<F16>)
FLAT(exponential_bf16, Exponential<BF16>)
FLAT(exponential_f64, Exponential<F64>)

STRIDED(exponential, Exponential<F32>, Exponential<F16>, Exponential<BF16>, Exponential<F64>)
