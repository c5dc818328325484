/* Graphs that a program builds: the functions and parameters of CUDA that the tests need, and a
 * kernel that writes a number. */
#ifndef TCUDA_TEST_DRIVER_GRAPH_H
#define TCUDA_TEST_DRIVER_GRAPH_H

#include "driver.h"

/* CUgraphNodeType */
enum {
    KERNEL = 0,
    COPY = 1,
    FILL = 2,
    HOST = 3,
    CHILD = 4,
    EMPTY = 5,
    WAIT = 6,
    RECORD = 7,
    ALLOCATE = 10,
    FREE = 11
};

/* CUmemorytype */
enum { MEMORY_HOST = 1, MEMORY_DEVICE = 2 };

/* CUDA_KERNEL_NODE_PARAMS */
struct kernel {
    void *function;
    unsigned int grid[3], block[3], shared_bytes;
    void **parameters, **extra;
    void *library_kernel, *context;
};

/* A side of CUDA_MEMCPY3D */
struct side {
    size_t x, y, z, level;
    int memory_type;
    const void *host;
    address device;
    void *array, *reserved;
    size_t pitch, height;
};

/* CUDA_MEMCPY3D */
struct copy {
    struct side source, target;
    size_t width, rows, depth;
};

/* CUDA_MEMSET_NODE_PARAMS, and the context that CUDA_MEMSET_NODE_PARAMS_v2 adds. */
struct fill {
    address target;
    size_t pitch;
    unsigned int value, element_size;
    size_t width, rows;
    void *context;
};

/* CUDA_HOST_NODE_PARAMS */
struct host {
    void (*function)(void *user_data);
    void *user_data;
};

/* CUDA_MEM_ALLOC_NODE_PARAMS */
struct allocation {
    int type, handle_types, location_type, device;
    void *attributes;
    size_t most;
    unsigned short usage;
    unsigned char reserved[54];
    const void *access;
    size_t access_count, bytes;
    address pointer;
};

/* CUgraphNodeParams */
struct node_parameters {
    int type, reserved[3];
    union {
        long long padding[29];
        struct kernel kernel;
        struct {
            int flags, reserved;
            void *context;
            struct copy copy;
        } copy;
        struct fill fill;
        struct host host;
        void *event;
        address freed;
    } of;
    long long reserved_too;
};

/* A local pointer to a function of the driver. */
#define CALL(name, parameters) \
    int(*name) parameters; \
    FIND(name, #name)

typedef void *graph_handle, *node_handle, *exec_handle;

static struct {
    int (*init)(unsigned int flags);
    int (*retain)(void **context, int device);
    int (*release)(int device);
    int (*set_current)(void *context);
    int (*allocate)(address *pointer, size_t bytes);
    int (*free)(address pointer);
    int (*load)(void **module, const void *image);
    int (*unload)(void *module);
    int (*function)(void **function, void *module, const char *name);
    int (*stream)(void **stream, unsigned int flags);
    int (*destroy_stream)(void *stream);
    int (*synchronize)(void *stream);
    int (*fill)(address pointer, unsigned char value, size_t count, void *stream);
    int (*copy)(address to, address from, size_t bytes, void *stream);
    int (*event)(void **event, unsigned int flags);
    int (*destroy_event)(void *event);
    int (*record)(void *event, void *stream);
    int (*query)(void *event);
    int (*create)(graph_handle *graph, unsigned int flags);
    int (*destroy)(graph_handle graph);
    int (*instantiate)(exec_handle *exec, graph_handle graph, unsigned long long flags);
    int (*launch)(exec_handle exec, void *stream);
    int (*destroy_exec)(exec_handle exec);
    int (*add_kernel)(
        node_handle *node, graph_handle graph, const void *after, size_t count,
            const struct kernel *kernel);
    int (*add_copy)(node_handle *node, graph_handle graph, const void *after, size_t count,
        const struct copy *copy, void *context);
    int (*add_fill)(node_handle *node, graph_handle graph, const void *after, size_t count,
        const struct fill *fill, void *context);
    int (*add_host)(
        node_handle *node, graph_handle graph, const void *after, size_t count,
            const struct host *host);
    int (*add_empty)(node_handle *node, graph_handle graph, const void *after, size_t count);
    int (*add_child)(node_handle *node, graph_handle graph, const void *after, size_t count,
        graph_handle child);
    int (*add_record)(node_handle *node, graph_handle graph, const void *after, size_t count,
        void *event);
    int (*add_wait)(node_handle *node, graph_handle graph, const void *after, size_t count,
        void *event);
    int (*add_allocation)(
        node_handle *node, graph_handle graph, const void *after, size_t count,
            struct allocation *allocation);
    int (*add_free)(node_handle *node, graph_handle graph, const void *after, size_t count,
        address pointer);
    int (*add)(node_handle *node, graph_handle graph, const void *after, size_t count,
        struct node_parameters *parameters);
} driver;

/* put(out, at, value): out[at] = value. */
static const char IMAGE[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry put(.param .u64 out, .param .u32 at, .param .u32 value)\n{\n"
    "    .reg .u32 %r<3>;\n    .reg .u64 %rd<4>;\n"
    "    ld.param.u64 %rd1, [out];\n    ld.param.u32 %r1, [at];\n    ld.param.u32 %r2, [value];\n"
    "    cvta.to.global.u64 %rd1, %rd1;\n    mul.wide.u32 %rd2, %r1, 4;\n"
    "    add.u64 %rd3, %rd1, %rd2;\n    st.global.u32 [%rd3], %r2;\n    ret;\n}\n";

static void *context, *stream, *module, *put;

static inline void find_the_functions(void)
{
    FIND(driver.init, "cuInit");
    FIND(driver.retain, "cuDevicePrimaryCtxRetain");
    FIND(driver.release, "cuDevicePrimaryCtxRelease_v2");
    FIND(driver.set_current, "cuCtxSetCurrent");
    FIND(driver.allocate, "cuMemAlloc_v2");
    FIND(driver.free, "cuMemFree_v2");
    FIND(driver.load, "cuModuleLoadData");
    FIND(driver.unload, "cuModuleUnload");
    FIND(driver.function, "cuModuleGetFunction");
    FIND(driver.synchronize, "cuStreamSynchronize");
    FIND(driver.destroy_stream, "cuStreamDestroy_v2");
    FIND(driver.fill, "cuMemsetD8Async");
    FIND(driver.copy, "cuMemcpyAsync");
    FIND(driver.event, "cuEventCreate");
    FIND(driver.destroy_event, "cuEventDestroy_v2");
    FIND(driver.record, "cuEventRecord");
    FIND(driver.query, "cuEventQuery");
    FIND(driver.create, "cuGraphCreate");
    FIND(driver.destroy, "cuGraphDestroy");
    FIND(driver.instantiate, "cuGraphInstantiateWithFlags");
    FIND(driver.launch, "cuGraphLaunch");
    FIND(driver.destroy_exec, "cuGraphExecDestroy");
    FIND(driver.add_kernel, "cuGraphAddKernelNode_v2");
    FIND(driver.add_copy, "cuGraphAddMemcpyNode");
    FIND(driver.add_fill, "cuGraphAddMemsetNode");
    FIND(driver.add_host, "cuGraphAddHostNode");
    FIND(driver.add_empty, "cuGraphAddEmptyNode");
    FIND(driver.add_child, "cuGraphAddChildGraphNode");
    FIND(driver.add_record, "cuGraphAddEventRecordNode");
    FIND(driver.add_wait, "cuGraphAddEventWaitNode");
    FIND(driver.add_allocation, "cuGraphAddMemAllocNode");
    FIND(driver.add_free, "cuGraphAddMemFreeNode");
    FIND(driver.add, "cuGraphAddNode");
}

/* Opens the driver with a context, a stream and the kernel. */
static inline void begin(void)
{
    int (*create_stream)(void **stream, unsigned int flags, int priority);
    open_the_driver();
    find_the_functions();
    FIND(create_stream, "cuStreamCreateWithPriority");
    CHECK_EQ(driver.init(0), SUCCESS);
    CHECK_EQ(driver.retain(&context, 0), SUCCESS);
    CHECK_EQ(driver.set_current(context), SUCCESS);
    CHECK_EQ(create_stream(&stream, 1, 0), SUCCESS);
    CHECK_EQ(driver.load(&module, IMAGE), SUCCESS);
    CHECK_EQ(driver.function(&put, module, "put"), SUCCESS);
}

static inline void end(void)
{
    CHECK_EQ(driver.unload(module), SUCCESS);
    CHECK_EQ(driver.destroy_stream(stream), SUCCESS);
    CHECK_EQ(driver.release(0), SUCCESS);
}

/* The values of a launch of `put`. */
struct values {
    address out;
    unsigned int at, value;
    void *list[3];
};

static inline struct kernel put_kernel(
    struct values *values, address out, unsigned int at, unsigned int value)
{
    const struct values given = { out, at, value, { NULL, NULL, NULL } };
    *values = given;
    values->list[0] = &values->out;
    values->list[1] = &values->at;
    values->list[2] = &values->value;
    const struct kernel kernel = { put, { 1, 1, 1 }, { 1, 1, 1 }, 0, values->list, NULL, NULL,
        NULL };
    return kernel;
}

/* A copy of one row. */
static inline struct copy line(
    int from_type, address from, int to_type, address to, size_t bytes)
{
    struct copy copy = { 0 };
    copy.source.memory_type = from_type;
    copy.target.memory_type = to_type;
    if (from_type == MEMORY_HOST)
        copy.source.host = (const void *)(uintptr_t)from;
    else
        copy.source.device = from;
    if (to_type == MEMORY_HOST)
        copy.target.host = (const void *)(uintptr_t)to;
    else
        copy.target.device = to;
    copy.width = bytes;
    copy.rows = copy.depth = 1;
    return copy;
}

/* Instantiates and launches a graph once, and waits. */
static inline void run(graph_handle graph)
{
    exec_handle exec = NULL;
    CHECK_EQ(driver.instantiate(&exec, graph, 0), SUCCESS);
    CHECK_EQ(driver.launch(exec, stream), SUCCESS);
    CHECK_EQ(driver.synchronize(stream), SUCCESS);
    CHECK_EQ(driver.destroy_exec(exec), SUCCESS);
}

/* The number at a place of device memory. */
static inline unsigned int read_number(address memory, size_t at)
{
    unsigned int value = 0;
    CHECK_EQ(driver.copy((address)(uintptr_t)&value, memory + 4 * at, 4, stream), SUCCESS);
    CHECK_EQ(driver.synchronize(stream), SUCCESS);
    return value;
}

#endif
