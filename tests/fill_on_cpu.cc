// The fill kernel's source, compiled for the CPU.

#include "kernel_on_cpu.h"
#include "../kernels/fill.cu"

extern "C" void fill_on_cpu(u32 grid, u32 block, unsigned char *dst, u64 bytes, const u64 *pattern,
                            u32 period)
{
    launch(grid, block, tcuda_fill_pattern, dst, bytes, pattern[0], pattern[1], pattern[2],
           pattern[3], period);
}
