// The kernels of collective calls, compiled for the CPU.

#include "kernel_on_cpu.h"
#include <cstring>

#define TCUDA_RANDOM_MATH "../tests/random_math_on_cpu.h"
#include "../kernels/comm_copy.cu"
#undef KERNEL
#include "../kernels/comm_sum_floats.cu"
#include "../kernels/comm_sum_integers.cu"

// False: no kernel of this name.
extern "C" bool comm_on_cpu(const char *name, u32 grid, u32 block, const u64 *words)
{
#define KERNEL(kernel)                                                                             \
    if (strcmp(name, "tcuda_comm_" #kernel) == 0)                                                  \
        return launch(grid, block, tcuda_comm_##kernel, *(const Table<FEW> *)words), true;         \
    if (strcmp(name, "tcuda_comm_" #kernel "_many") == 0)                                          \
        return launch(grid, block, tcuda_comm_##kernel##_many, *(const Table<MANY> *)words), true
    KERNEL(spread);
    KERNEL(rows);
    KERNEL(strided);
    KERNEL(sum_f16);
    KERNEL(sum_bf16);
    KERNEL(sum_f32);
    KERNEL(sum_f64);
    KERNEL(sum_bool);
    KERNEL(sum_b8);
    KERNEL(sum_b16);
    KERNEL(sum_b32);
    KERNEL(sum_b64);
    return false;
}
