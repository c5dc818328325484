"""Programs for the calls of cuda.bindings that its examples show, each a function.

usage: cuda_driver_programs.py NAME, or --list. The kernels are compiled to machine code, as in the
examples; python/tcuda/software_gpu.py makes it PTX.
"""

import ctypes

import numpy as np
import support
from cuda.bindings import driver, nvrtc

COUNT = 4000
ADD = """extern "C" __global__ void add(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}"""
HELPERS = ("start",)


def need(result):
    """The values of a call that succeeded."""
    status, *values = result
    if int(status):
        raise RuntimeError(status.name)
    return values[0] if len(values) == 1 else values


def start():
    """The primary context of device 0."""
    need(driver.cuInit(0))
    device = need(driver.cuDeviceGet(0))
    need(driver.cuCtxSetCurrent(need(driver.cuDevicePrimaryCtxRetain(device))))
    return device


def compiled(code, name):
    device = need(driver.cuCtxGetDevice())
    kinds = driver.CUdevice_attribute
    major = need(driver.cuDeviceGetAttribute(
        kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
    program = need(nvrtc.nvrtcCreateProgram(code.encode(), b"program.cu", 0, [], []))
    options = [f"--gpu-architecture=sm_{major}0".encode(), b"--std=c++17"]
    options += [f"-I{folder}".encode() for folder in support.include_folders()]
    status, = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status):
        text = b" " * need(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, text)
        raise RuntimeError(text.decode())
    image = b" " * need(nvrtc.nvrtcGetCUBINSize(program))
    need(nvrtc.nvrtcGetCUBIN(program, image))
    module = need(driver.cuModuleLoadData(np.char.array(image).tobytes()))
    return need(driver.cuModuleGetFunction(module, name.encode()))


def launch(function, grid, block, *arguments, stream=0, shared=0, cooperative=False):
    """Integers are int, floats float, other arguments addresses."""
    kinds = [ctypes.c_int if isinstance(it, int) else ctypes.c_float if isinstance(it, float)
             else ctypes.c_void_p for it in arguments]
    values = [it if isinstance(it, (int, float)) else int(it) for it in arguments]
    parameters = (tuple(values), tuple(kinds))
    if cooperative:
        need(driver.cuLaunchCooperativeKernel(
            function, grid, 1, 1, block, 1, 1, shared, stream, parameters))
    else:
        need(driver.cuLaunchKernel(
            function, grid, 1, 1, block, 1, 1, shared, stream, parameters, 0))


def numbers(seed):
    return np.random.default_rng(seed).random(COUNT).astype(np.float32)


def on_device(array, address=None):
    address = address or need(driver.cuMemAlloc(array.nbytes))
    need(driver.cuMemcpyHtoD(address, array.ctypes.data, array.nbytes))
    return address


def on_host(address, count=COUNT, dtype=np.float32):
    array = np.zeros(count, dtype)
    need(driver.cuMemcpyDtoH(array.ctypes.data, address, array.nbytes))
    return array


def pinned(count, dtype, flags=0):
    address = need(driver.cuMemHostAlloc(count * np.dtype(dtype).itemsize, flags))
    kind = np.ctypeslib.as_ctypes_type(dtype) * count
    return address, np.ctypeslib.as_array(kind.from_address(int(address)))


def check_add(a, b, c):
    x, y = numbers(1), numbers(2)
    on_device(x, a)
    on_device(y, b)
    launch(compiled(ADD, "add"), (COUNT + 255) // 256, 256, a, b, c, COUNT)
    np.testing.assert_array_equal(on_host(c), x + y)


def vector_add():
    start()
    check_add(*(need(driver.cuMemAlloc(4 * COUNT)) for _ in range(3)))


def vector_add_in_mapped_memory():
    """Memory that is created, and mapped into a range of addresses."""
    start()
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    size = need(driver.cuMemGetAllocationGranularity(properties, minimum))
    access = driver.CUmemAccessDesc()
    access.location = properties.location
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    addresses = []
    for _ in range(3):
        address = need(driver.cuMemAddressReserve(size, 0, 0, 0))
        handle = need(driver.cuMemCreate(size, properties, 0))
        need(driver.cuMemMap(address, size, 0, handle, 0))
        need(driver.cuMemRelease(handle))
        need(driver.cuMemSetAccess(address, size, [access], 1))
        addresses.append(address)
    check_add(*addresses)
    for address in addresses:
        need(driver.cuMemUnmap(address, size))
        need(driver.cuMemAddressFree(address, size))


def zero_copy():
    """The kernel reads and writes memory of the host."""
    start()
    (a, x), (b, y), (c, total) = (pinned(COUNT, np.float32, 2) for _ in range(3))
    x[:], y[:] = numbers(1), numbers(2)
    a, b, c = (need(driver.cuMemHostGetDevicePointer(it, 0)) for it in (a, b, c))
    launch(compiled(ADD, "add"), (COUNT + 255) // 256, 256, a, b, c, COUNT)
    need(driver.cuCtxSynchronize())
    np.testing.assert_array_equal(total, x + y)


def stream_ordered_allocation():
    start()
    stream = need(driver.cuStreamCreate(1))
    function = compiled(ADD, "add")
    host, array = pinned(COUNT, np.float32)
    for value in (3, 5):
        memory = [need(driver.cuMemAllocAsync(4 * COUNT, stream)) for _ in range(2)]
        array[:] = value
        need(driver.cuMemcpyHtoDAsync(memory[0], int(host), 4 * COUNT, stream))
        launch(function, (COUNT + 255) // 256, 256, memory[0], memory[0], memory[1], COUNT,
               stream=stream)
        need(driver.cuMemcpyDtoHAsync(int(host), memory[1], 4 * COUNT, stream))
        for address in memory:
            need(driver.cuMemFreeAsync(address, stream))
        need(driver.cuStreamSynchronize(stream))
        assert (array == 2 * value).all(), array


def clocks():
    """A reduction that measures its own time."""
    start()
    function = compiled("""extern "C" __global__ void least(const float *in, float *out,
                                                            long long *ticks) {
        extern __shared__ float shared[];
        if (threadIdx.x == 0) ticks[blockIdx.x] = clock64();
        shared[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
        for (int d = blockDim.x / 2; d > 0; d /= 2) {
            __syncthreads();
            if (threadIdx.x < d)
                shared[threadIdx.x] = fminf(shared[threadIdx.x], shared[threadIdx.x + d]);
        }
        if (threadIdx.x == 0) {
            out[blockIdx.x] = shared[0];
            ticks[blockIdx.x] = clock64() - ticks[blockIdx.x];
        }
    }""", "least")
    x = numbers(1)
    out, ticks = (need(driver.cuMemAlloc(8 * 10)) for _ in range(2))
    launch(function, 10, 256, on_device(x), out, ticks, shared=1024)
    np.testing.assert_array_equal(on_host(out, 10), x[:2560].reshape(10, 256).min(axis=1))
    assert (on_host(ticks, 10, np.int64) > 0).all()


def system_wide_atomics():
    """Kernels on managed memory."""
    start()
    attach = driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value
    address = need(driver.cuMemAllocManaged(4 * 4, attach))
    array = np.ctypeslib.as_array((ctypes.c_int * 4).from_address(int(address)))
    array[:] = [0, 0, 1 << 20, 0]
    function = compiled("""extern "C" __global__ void atomics(int *words) {
        int id = blockIdx.x * blockDim.x + threadIdx.x;
        atomicAdd_system(&words[0], 10);
        atomicMax_system(&words[1], id);
        atomicMin_system(&words[2], id + 7);
        atomicXor_system(&words[3], id);
    }""", "atomics")
    launch(function, 8, 64, address)
    need(driver.cuCtxSynchronize())
    assert array.tolist() == [5120, 511, 7, 0], array


def peer_to_peer():
    start()
    other = need(driver.cuDeviceGet(1))
    assert need(driver.cuDeviceCanAccessPeer(0, other)) == 1
    x = numbers(1)
    source, one = on_device(x), need(driver.cuCtxGetCurrent())
    # A copy from pageable memory may return before it has arrived.
    need(driver.cuCtxSynchronize())
    two = need(driver.cuDevicePrimaryCtxRetain(other))
    need(driver.cuCtxSetCurrent(two))
    need(driver.cuCtxEnablePeerAccess(one, 0))
    target = need(driver.cuMemAlloc(x.nbytes))
    launch(compiled(ADD, "add"), (COUNT + 255) // 256, 256, source, source, target, COUNT)
    np.testing.assert_array_equal(on_host(target), x + x)
    need(driver.cuMemcpyPeer(source, one, target, two, x.nbytes))
    need(driver.cuCtxSetCurrent(one))
    np.testing.assert_array_equal(on_host(source), x + x)


def copies_to_shared_memory():
    """Asynchronous copies into shared memory, two stages ahead."""
    start()
    function = compiled("""#include <cuda_pipeline_primitives.h>
    extern "C" __global__ void sums(const float *in, float *out, int rounds) {
        __shared__ float stage[2][128];
        float sum = 0;
        __pipeline_memcpy_async(&stage[0][threadIdx.x], &in[threadIdx.x], 4);
        __pipeline_commit();
        for (int i = 0; i < rounds; i++) {
            if (i + 1 < rounds)
                __pipeline_memcpy_async(&stage[(i + 1) & 1][threadIdx.x],
                                        &in[(i + 1) * 128 + threadIdx.x], 4);
            __pipeline_commit();
            __pipeline_wait_prior(1);
            sum += stage[i & 1][threadIdx.x];
        }
        out[threadIdx.x] = sum;
    }""", "sums")
    x, out = np.arange(128 * 9, dtype=np.float32), need(driver.cuMemAlloc(512))
    launch(function, 1, 128, on_device(x), out, 9)
    np.testing.assert_array_equal(on_host(out, 128), x.reshape(9, 128).sum(axis=0))


def graph_by_hand():
    """Nodes for a fill, a kernel and a copy."""
    start()
    a, c = (need(driver.cuMemAlloc(4 * COUNT)) for _ in range(2))
    context, graph = need(driver.cuCtxGetCurrent()), need(driver.cuGraphCreate(0))
    fill = driver.CUDA_MEMSET_NODE_PARAMS()
    fill.dst, fill.value, fill.elementSize, fill.width, fill.height = a, 0x40400000, 4, COUNT, 1
    first = need(driver.cuGraphAddMemsetNode(graph, None, 0, fill, context))
    node = driver.CUDA_KERNEL_NODE_PARAMS()
    node.func, node.gridDimX, node.blockDimX = compiled(ADD, "add"), (COUNT + 255) // 256, 256
    node.gridDimY = node.gridDimZ = node.blockDimY = node.blockDimZ = 1
    kinds = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    node.kernelParams = ((int(a), int(a), int(c), COUNT), kinds)
    need(driver.cuGraphAddKernelNode(graph, [first], 1, node))
    runnable = need(driver.cuGraphInstantiate(graph, 0))
    stream = need(driver.cuStreamCreate(1))
    for _ in range(2):
        need(driver.cuGraphLaunch(runnable, stream))
    need(driver.cuStreamSynchronize(stream))
    assert (on_host(c) == 6).all()


def conjugate_gradient():
    """A solver of all blocks together, which meet at barriers of the grid."""
    start()
    function = compiled("""#include <cooperative_groups.h>
    namespace cg = cooperative_groups;
    __device__ void dot(const float *a, const float *b, int n, double *sum, cg::grid_group grid) {
        double own = 0;
        for (int i = grid.thread_rank(); i < n; i += grid.size()) own += a[i] * b[i];
        atomicAdd(sum, own);
        grid.sync();
    }
    extern "C" __global__ void solve(float *x, float *r, float *p, float *q, double *sums, int n) {
        cg::grid_group grid = cg::this_grid();
        for (int i = grid.thread_rank(); i < n; i += grid.size()) { x[i] = 0; p[i] = r[i]; }
        dot(r, r, n, &sums[0], grid);
        for (int k = 0; k < 60 && sums[2 * k] > 1e-12; k++) {
            for (int i = grid.thread_rank(); i < n; i += grid.size())
                q[i] = 3 * p[i] - (i ? p[i - 1] : 0) - (i + 1 < n ? p[i + 1] : 0);
            grid.sync();
            dot(p, q, n, &sums[2 * k + 1], grid);
            float alpha = sums[2 * k] / sums[2 * k + 1];
            for (int i = grid.thread_rank(); i < n; i += grid.size()) {
                x[i] += alpha * p[i];
                r[i] -= alpha * q[i];
            }
            dot(r, r, n, &sums[2 * k + 2], grid);
            float beta = sums[2 * k + 2] / sums[2 * k];
            for (int i = grid.thread_rank(); i < n; i += grid.size()) p[i] = r[i] + beta * p[i];
            grid.sync();
        }
    }""", "solve")
    n, right = 200, numbers(3)[:200]
    memory = [need(driver.cuMemAlloc(4 * n)) for _ in range(4)]
    on_device(right, memory[1])
    sums = on_device(np.zeros(200))
    launch(function, 4, 32, *memory, sums, n, cooperative=True)
    x = on_host(memory[0], n)
    matrix = 3 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    np.testing.assert_allclose(matrix @ x, right, atol=1e-4)


if __name__ == "__main__":
    support.main(globals())
