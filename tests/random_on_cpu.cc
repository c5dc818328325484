// The random kernels' sources, compiled for the CPU.

#include "kernel_on_cpu.h"
#include <cstring>

#define TCUDA_RANDOM_MATH "../tests/random_math_on_cpu.h"
#include "../kernels/random_uniform.cu"
#include "../kernels/random_normal.cu"
#include "../kernels/random_log_normal.cu"
#include "../kernels/random_exponential.cu"
#include "../kernels/random_cauchy.cu"
#include "../kernels/random_geometric.cu"
#include "../kernels/random_integers.cu"
#include "../kernels/random_bernoulli.cu"

static void call(void (*kernel)(u8 *, Philox, Target, Scalars), u32 grid, u32 block, void **p)
{
    launch(grid, block, kernel, *(u8 **)p[0], *(Philox *)p[1], *(Target *)p[2], *(Scalars *)p[3]);
}

static void call(void (*kernel)(u8 *, Philox, Target, Scalars, Shape), u32 grid, u32 block,
    void **p)
{
    launch(grid, block, kernel, *(u8 **)p[0], *(Philox *)p[1], *(Target *)p[2], *(Scalars *)p[3],
           *(Shape *)p[4]);
}

static void call(void (*kernel)(u8 *, const u8 *, Philox, Scalars, Pair), u32 grid, u32 block,
    void **p)
{
    launch(grid, block, kernel, *(u8 **)p[0], *(const u8 **)p[1], *(Philox *)p[2], *(Scalars *)p[3],
           *(Pair *)p[4]);
}

// False: no kernel of this name. `parameters` is as for cuLaunchKernel.
extern "C" bool random_on_cpu(const char *name, u32 grid, u32 block, void **parameters)
{
#define KERNEL(kernel)                                                                             \
    if (strcmp(name, "tcuda_random_" #kernel) == 0)                                                \
        return call(tcuda_random_##kernel, grid, block, parameters), true
#define FLOATS(distribution)                                                                       \
    KERNEL(distribution##_f32);                                                                    \
    KERNEL(distribution##_f16);                                                                    \
    KERNEL(distribution##_bf16);                                                                   \
    KERNEL(distribution##_f64);                                                                    \
    KERNEL(distribution##_strided)
    FLOATS(uniform);
    FLOATS(normal);
    FLOATS(log_normal);
    FLOATS(exponential);
    FLOATS(cauchy);
    FLOATS(geometric);
    KERNEL(geometric_u8);
    KERNEL(geometric_i8);
    KERNEL(geometric_i16);
    KERNEL(geometric_i32);
    KERNEL(geometric_i64);
    FLOATS(integers32);
    KERNEL(integers32_b8);
    KERNEL(integers32_b16);
    KERNEL(integers32_b32);
    KERNEL(integers32_b64);
    KERNEL(integers32_bool);
    KERNEL(integers64_f32);
    KERNEL(integers64_bf16);
    KERNEL(integers64_f64);
    KERNEL(integers64_b32);
    KERNEL(integers64_b64);
    KERNEL(integers64_strided);
    KERNEL(bernoulli_b8);
    KERNEL(bernoulli_b16);
    KERNEL(bernoulli_b32);
    KERNEL(bernoulli_b64);
    KERNEL(bernoulli_f64);
    KERNEL(bernoulli_strided);
    KERNEL(bernoulli_each_b8);
    KERNEL(bernoulli_each_b16);
    KERNEL(bernoulli_each_b32);
    KERNEL(bernoulli_each_b64);
    return false;
}
