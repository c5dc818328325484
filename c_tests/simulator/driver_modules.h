/* What the programs about modules, libraries and launches share: a context, and kernels as PTX. */
#ifndef TCUDA_TEST_DRIVER_MODULES_H
#define TCUDA_TEST_DRIVER_MODULES_H

#include "driver.h"

/* CUmodule, CUfunction, CUlibrary, CUkernel, CUstream, CUevent */
typedef void *handle;

/* CUresult, besides those of driver.h */
enum {
    NO_BINARY_FOR_GPU = 209,
    UNSUPPORTED_PTX_VERSION = 222,
    COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    INVALID_CLUSTER_SIZE = 912
};

/* CUfunction_attribute */
enum {
    MAX_THREADS_PER_BLOCK = 0,
    SHARED_SIZE_BYTES = 1,
    NUM_REGS = 4,
    MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    PREFERRED_SHARED_MEMORY_CARVEOUT = 9,
    REQUIRED_CLUSTER_WIDTH = 11,
    REQUIRED_CLUSTER_HEIGHT = 12,
    REQUIRED_CLUSTER_DEPTH = 13,
    NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14
};

/* store(to, value): *to = value + counter; then counter = value. double_of(to): *to *= 2. */
static const char kernels[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .global .align 4 .u32 counter = 7;\n"
    ".visible .const .align 8 .b8 table[16] = {1, 2, 3};\n"
    ".visible .entry store(.param .u64 to, .param .u32 value)\n"
    "{\n"
    ".reg .b64 %a;\n.reg .b32 %r<3>;\n"
    "ld.param.u64 %a, [to];\ncvta.to.global.u64 %a, %a;\n"
    "ld.param.u32 %r0, [value];\nld.global.u32 %r1, [counter];\n"
    "add.u32 %r2, %r0, %r1;\nst.global.u32 [%a], %r2;\n"
    "st.global.u32 [counter], %r0;\nret;\n"
    "}\n"
    ".visible .entry double_of(.param .u64 to)\n"
    ".maxntid 64, 1, 1\n"
    "{\n"
    ".reg .b64 %a;\n.reg .b32 %r<2>;\n.shared .align 4 .b8 room[1024];\n"
    "ld.param.u64 %a, [to];\ncvta.to.global.u64 %a, %a;\n"
    "ld.global.u32 %r0, [%a];\n"
    "st.volatile.shared.u32 [room], %r0;\nld.volatile.shared.u32 %r1, [room];\n"
    "add.u32 %r1, %r1, %r0;\nst.global.u32 [%a], %r1;\nret;\n"
    "}\n";

static int (*cuda_synchronize)(void);
static int (*cuda_allocate)(address *pointer, size_t bytes);
static int (*cuda_copy)(address to, address from, size_t bytes, handle stream);
static int (*cuda_launch)(handle function, unsigned int grid_x, unsigned int grid_y,
    unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z,
    unsigned int shared_bytes, handle stream, void **parameters, void **extra);
static int (*cuda_function_attribute)(int *value, int attribute, handle function);
static int (*cuda_set_function_attribute)(handle function, int attribute, int value);
static int (*cuda_device_attribute)(int *value, int attribute, int device);

static inline void start_the_driver(void)
{
    int (*init)(unsigned int flags);
    open_the_driver();
    FIND(init, "cuInit");
    FIND(cuda_synchronize, "cuCtxSynchronize");
    FIND(cuda_allocate, "cuMemAlloc_v2");
    FIND(cuda_copy, "cuMemcpyAsync");
    FIND(cuda_launch, "cuLaunchKernel");
    FIND(cuda_function_attribute, "cuFuncGetAttribute");
    FIND(cuda_set_function_attribute, "cuFuncSetAttribute");
    FIND(cuda_device_attribute, "cuDeviceGetAttribute");
    CHECK_EQ(init(0), SUCCESS);
}

/* Makes the primary context of device 0 current. */
static inline void start_a_context(void)
{
    int (*retain)(handle *context, int device);
    int (*set)(handle context);
    handle context = NULL;
    FIND(retain, "cuDevicePrimaryCtxRetain");
    FIND(set, "cuCtxSetCurrent");
    CHECK_EQ(retain(&context, 0), SUCCESS);
    CHECK_EQ(set(context), SUCCESS);
}

static inline uint32_t word_at(address from)
{
    uint32_t word = 0;
    CHECK_EQ(cuda_copy((address)(uintptr_t)&word, from, sizeof word, NULL), SUCCESS);
    CHECK_EQ(cuda_synchronize(), SUCCESS);
    return word;
}

static inline void set_word(address to, uint32_t word)
{
    CHECK_EQ(cuda_copy(to, (address)(uintptr_t)&word, sizeof word, NULL), SUCCESS);
    CHECK_EQ(cuda_synchronize(), SUCCESS);
}

/* Runs the kernel `store`, and returns what it has stored. */
static inline uint32_t stored(handle function, address to, uint32_t value)
{
    void *parameters[] = {&to, &value};
    CHECK_EQ(cuda_launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL), SUCCESS);
    return word_at(to);
}

static inline int attribute_of(handle function, int attribute)
{
    int value = -77;
    CHECK_EQ(cuda_function_attribute(&value, attribute, function), SUCCESS);
    return value;
}

#endif
