"""Programs for the calls of cuda.core that its documentation shows, each a function.

usage: cuda_core_programs.py NAME, or --list. The kernels are compiled to machine code, as in the
documentation; python/tcuda/software_gpu.py makes it PTX. Arrays are buffers of cuda.core, since
CuPy and PyTorch need CUDA's runtime. With TCUDA_ADAPTER=1 the memory is tcuda's.
"""

import os

import numpy as np
import support
from cuda.core import (
    ContextOptions, Device, DeviceMemoryResource, DeviceMemoryResourceOptions, EventOptions,
    GraphMemoryResource, LaunchConfig, LegacyPinnedMemoryResource, Linker, LinkerOptions,
    ManagedMemoryResource, ObjectCode, PinnedMemoryResource, PinnedMemoryResourceOptions, Program,
    ProgramOptions, SMResourceOptions, Stream, StreamOptions, VirtualMemoryResource, launch,
    system)
from cuda.core.graph import GraphCompleteOptions, GraphDefinition
from cuda.core.utils import (
    InMemoryProgramCache, StridedMemoryView, args_viewable_as_strided_memory,
    make_program_cache_key)

ADD = """
template<typename T> __global__ void add(const T *a, const T *b, T *sum, size_t n) {
    for (size_t i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += gridDim.x * blockDim.x)
        sum[i] = a[i] + b[i];
}
template<typename T> __global__ void scale(T *a, T factor, size_t n) {
    for (size_t i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += gridDim.x * blockDim.x)
        a[i] *= factor;
}
template<typename T> __global__ void saxpy(T a, const T *x, const T *y, T *out, size_t n) {
    for (size_t i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += gridDim.x * blockDim.x)
        out[i] = a * x[i] + y[i];
}
extern "C" __global__ void plus_index(int *data, size_t n) {
    for (size_t i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += gridDim.x * blockDim.x)
        data[i] += i;
}
extern "C" __global__ void increment(int *value) { *value += 1; }
"""
COUNT = 5000
HELPERS = ("start",)
CONFIG = LaunchConfig(grid=8, block=256)
ONE = LaunchConfig(grid=1, block=1)


def start():
    device = Device()
    device.set_current()
    if os.environ.get("TCUDA_ADAPTER"):
        import tcuda.cuda_core

        tcuda.cuda_core.enable()
    return device, device.create_stream()


def compiled(code, *names, target="cubin", **options):
    arch = f"sm_{Device().arch}"
    program = Program(code, "c++", ProgramOptions(std="c++17", arch=arch, **options))
    return program.compile(target, name_expressions=names)


def pinned(count, dtype, stream):
    """A buffer of the host, and it as an array."""
    buffer = LegacyPinnedMemoryResource().allocate(count * np.dtype(dtype).itemsize, stream=stream)
    return buffer, np.from_dlpack(buffer).view(dtype)


def on_device(values, device, stream):
    """A copy of an array, in memory of the device."""
    host, array = pinned(values.size, values.dtype, stream)
    array[:] = values.reshape(-1)
    buffer = device.allocate(values.nbytes, stream=stream)
    buffer.copy_from(host, stream=stream)
    stream.sync()
    return buffer


def on_host(buffer, dtype, stream):
    host, array = pinned(buffer.size // np.dtype(dtype).itemsize, dtype, stream)
    buffer.copy_to(host, stream=stream)
    stream.sync()
    return array.copy()


def numbers(dtype=np.float32, seed=1):
    return np.random.default_rng(seed).random(COUNT).astype(dtype)


def vector_add():
    device, stream = start()
    kernel = compiled(ADD, "add<float>").get_kernel("add<float>")
    a, b = numbers(seed=1), numbers(seed=2)
    total = device.allocate(a.nbytes, stream=stream)
    launch(stream, CONFIG, kernel, on_device(a, device, stream), on_device(b, device, stream),
           total, np.uint64(COUNT))
    np.testing.assert_array_equal(on_host(total, np.float32, stream), a + b)
    total.close(stream)
    stream.close()


def saxpy():
    device, stream = start()
    module = compiled(ADD, "saxpy<float>", "saxpy<double>")
    for dtype, name in ((np.float32, "saxpy<float>"), (np.float64, "saxpy<double>")):
        x, y, factor = numbers(dtype, 3), numbers(dtype, 4), dtype(2.5)
        out = device.allocate(x.nbytes, stream=stream)
        launch(stream, CONFIG, module.get_kernel(name), factor, on_device(x, device, stream),
               on_device(y, device, stream), out, np.uint64(COUNT))
        np.testing.assert_allclose(on_host(out, dtype, stream), factor * x + y, rtol=1e-6)


def multi_gpu():
    assert system.get_num_devices() == 2
    streams, results = [], []
    for index in range(2):
        device = Device(index)
        device.set_current()
        stream = device.create_stream()
        kernel = compiled(ADD, "add<float>").get_kernel("add<float>")
        a, b = numbers(seed=5 + index), numbers(seed=7 + index)
        total = device.allocate(a.nbytes, stream=stream)
        launch(stream, CONFIG, kernel, on_device(a, device, stream), on_device(b, device, stream),
               total, np.uint64(COUNT))
        streams.append(stream)
        results.append((total, a + b))
    for index, (stream, (total, wanted)) in enumerate(zip(streams, results)):
        Device(index).set_current()
        np.testing.assert_array_equal(on_host(total, np.float32, stream), wanted)


def peer_access():
    one, two = Device(0), Device(1)
    two.set_current()
    one.set_current()
    assert one.can_access_peer(two)
    stream = one.create_stream()
    resource = DeviceMemoryResource(one, DeviceMemoryResourceOptions(max_size=1 << 22))
    resource.peer_accessible_by = [two]
    values = numbers()
    buffer = resource.allocate(values.nbytes, stream=stream)
    buffer.copy_from(on_device(values, one, stream), stream=stream)
    stream.sync()
    two.set_current()
    stream = two.create_stream()
    kernel = compiled(ADD, "scale<float>").get_kernel("scale<float>")
    launch(stream, CONFIG, kernel, buffer, np.float32(2), np.uint64(COUNT))
    np.testing.assert_array_equal(on_host(buffer, np.float32, stream), values * 2)


def cluster():
    device, stream = start()
    kernel = compiled(r"""
        #include <cooperative_groups.h>
        extern "C" __global__ void sizes(unsigned *out) {
            auto grid = cooperative_groups::this_grid();
            auto cluster = cooperative_groups::this_cluster();
            if (grid.thread_rank() == 0) {
                out[0] = grid.dim_blocks().x;
                out[1] = grid.dim_clusters().x;
                out[2] = cluster.num_blocks();
                out[3] = cluster.num_threads();
            }
        }""", include_path=support.include_folders()).get_kernel("sizes")
    buffer, array = pinned(4, np.uint32, stream)
    array[:] = 0
    launch(stream, LaunchConfig(grid=4, cluster=2, block=32), kernel, buffer)
    device.sync()
    assert array.tolist() == [8, 4, 2, 64], array


def cooperative():
    _, stream = start()
    kernel = compiled(r"""
        #include <cooperative_groups.h>
        extern "C" __global__ void everyone(int *counters, int *seen) {
            auto grid = cooperative_groups::this_grid();
            if (threadIdx.x == 0) atomicAdd(&counters[0], 1);
            grid.sync();
            if (threadIdx.x == 0) seen[blockIdx.x] = counters[0];
        }""", include_path=support.include_folders()).get_kernel("everyone")
    counters, array = pinned(1, np.int32, stream)
    seen, answers = pinned(6, np.int32, stream)
    array[:], answers[:] = 0, 0
    launch(stream, LaunchConfig(grid=6, block=64, is_cooperative=True), kernel, counters, seen)
    stream.sync()
    assert answers.tolist() == [6] * 6, answers


def linked():
    """Two programs, linked when the second is there."""
    _, stream = start()
    main = """extern __device__ int art(int x);
        extern "C" __global__ void paint(int *out) { out[threadIdx.x] = art(threadIdx.x); }"""
    buffer, array = pinned(32, np.int32, stream)
    for body, wanted in (("x * x", [x * x for x in range(32)]), ("7 - x", range(7, -25, -1))):
        parts = [compiled(code, target="ptx", relocatable_device_code=True)
                 for code in (main, f"__device__ int art(int x) {{ return {body}; }}")]
        linker = Linker(*parts, options=LinkerOptions(arch=f"sm_{Device().arch}"))
        kernel = linker.link("cubin").get_kernel("paint")
        launch(stream, LaunchConfig(grid=1, block=32), kernel, buffer)
        stream.sync()
        assert array.tolist() == list(wanted), array


def text_of_ptx():
    """PTX as text, and its kernel's attributes."""
    _, stream = start()
    ptx = compiled(ADD, target="ptx")
    assert b".visible .entry increment" in bytes(ptx.code)
    text = bytes(ptx.code).decode().rstrip("\0")
    program = Program(text, "ptx", ProgramOptions(arch=f"sm_{Device().arch}"))
    for module in (program.compile("cubin"), ObjectCode.from_ptx(bytes(ptx.code))):
        kernel = module.get_kernel("increment")
        assert kernel.num_arguments == 1
        assert kernel.attributes.max_threads_per_block == 1024
        assert kernel.attributes.shared_size_bytes == 0
        buffer, array = pinned(1, np.int32, stream)
        array[:] = 4
        launch(stream, ONE, kernel, buffer)
        stream.sync()
        assert array[0] == 5


def occupancy():
    start()
    kernel = compiled(ADD).get_kernel("plus_index")
    blocks = kernel.occupancy.max_active_blocks_per_multiprocessor(256, 0)
    assert blocks == Device().properties.max_threads_per_multiprocessor // 256, blocks
    best = kernel.occupancy.max_potential_block_size(0, 0)
    assert best.min_grid_size > 0 and best.max_block_size == 1024, best


def cuda_graphs():
    device, stream = start()
    module = compiled(ADD, "add<float>", "scale<float>")
    a, b = numbers(seed=8), numbers(seed=9)
    x, y = on_device(a, device, stream), on_device(b, device, stream)
    total = device.allocate(a.nbytes, stream=stream)
    builder = stream.create_graph_builder().begin_building()
    launch(builder, CONFIG, module.get_kernel("add<float>"), x, y, total, np.uint64(COUNT))
    launch(builder, CONFIG, module.get_kernel("scale<float>"), total, np.float32(3),
           np.uint64(COUNT))
    graph = builder.end_building().complete()
    graph.upload(stream)
    for _ in range(3):
        graph.launch(stream)
    np.testing.assert_array_equal(on_host(total, np.float32, stream), (a + b) * np.float32(3))


def graph_branches():
    """A capture that forks and joins."""
    device, stream = start()
    kernel = compiled(ADD).get_kernel("increment")
    buffer, array = pinned(3, np.int32, stream)
    array[:] = 0
    builder = device.create_graph_builder().begin_building()
    launch(builder, ONE, kernel, buffer)
    branches = builder.split(2)
    for index, branch in enumerate(branches):
        launch(branch, ONE, kernel, int(buffer.handle) + 4 * (index + 1))
    builder = builder.join(*branches)
    launch(builder, ONE, kernel, buffer)
    graph = builder.end_building().complete(GraphCompleteOptions(auto_free_on_launch=True))
    graph.launch(stream)
    stream.sync()
    assert array.tolist() == [2, 1, 1], array


def graph_update():
    device, stream = start()
    kernel = compiled(ADD).get_kernel("increment")
    buffer, array = pinned(2, np.int32, stream)
    array[:] = 0

    def built(index):
        builder = device.create_graph_builder().begin_building()
        for _ in range(2):
            launch(builder, ONE, kernel, int(buffer.handle) + 4 * index)
        return builder.end_building()

    first, second = built(0), built(1)
    graph = first.complete()
    graph.launch(stream)
    stream.sync()
    assert array.tolist() == [2, 0], array
    graph.update(second)
    graph.launch(stream)
    stream.sync()
    assert array.tolist() == [2, 2], array


def graph_definition():
    """A graph from its nodes."""
    _, stream = start()
    kernel = compiled(ADD).get_kernel("increment")
    buffer, array = pinned(2, np.int32, stream)
    array[:] = 9
    definition = GraphDefinition()
    node = definition.memset(int(buffer.handle), 0, 8)
    node = node.launch(ONE, kernel, int(buffer.handle))
    node.memcpy(int(buffer.handle) + 4, int(buffer.handle), 4)
    assert len(list(definition.nodes())) == 3
    definition.instantiate().launch(stream)
    stream.sync()
    assert array.tolist() == [1, 1], array


def graph_callback():
    """The host in the middle of a graph."""
    device, stream = start()
    kernel = compiled(ADD).get_kernel("increment")
    buffer, array = pinned(2, np.int32, stream)
    array[:] = 0
    builder = device.create_graph_builder().begin_building()
    launch(builder, ONE, kernel, buffer)
    builder.callback(lambda: array.__setitem__(1, array[0] + 10))
    launch(builder, ONE, kernel, buffer)
    builder.end_building().complete().launch(stream)
    stream.sync()
    assert array.tolist() == [2, 11], array


def graph_condition():
    """A part of a graph that runs only if a kernel sets a condition."""
    device, stream = start()
    module = compiled(r"""
        extern "C" __device__ __cudart_builtin__ void CUDARTAPI
        cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned int value);
        extern "C" __global__ void decide(cudaGraphConditionalHandle handle, int *value) {
            cudaGraphSetConditional(handle, *value == 1);
        }
        extern "C" __global__ void increment(int *value) { *value += 1; }""",
        pre_include="cuda_runtime_api.h", include_path=support.include_folders())
    decide, increment = module.get_kernel("decide"), module.get_kernel("increment")
    buffer, array = pinned(1, np.int32, stream)
    builder = device.create_graph_builder().begin_building()
    condition = builder.create_condition(default_value=0)
    launch(builder, ONE, decide, condition.handle, buffer)
    body = builder.if_then(condition).begin_building()
    launch(body, ONE, increment, buffer)
    body.end_building()
    graph = builder.end_building().complete()
    for value, wanted in ((0, 0), (1, 2)):
        array[:] = value
        graph.launch(stream)
        stream.sync()
        assert array[0] == wanted, (value, array)


def memory_ops():
    device, stream = start()
    kernel = compiled(ADD, "scale<float>").get_kernel("scale<float>")
    values = numbers()
    one = on_device(values, device, stream)
    host, array = pinned(COUNT, np.float32, stream)
    array[:] = values
    launch(stream, CONFIG, kernel, one, np.float32(2), np.uint64(COUNT))
    launch(stream, CONFIG, kernel, host, np.float32(3), np.uint64(COUNT))
    stream.sync()
    np.testing.assert_array_equal(array, values * np.float32(3))
    one.copy_to(host, stream=stream)
    stream.sync()
    np.testing.assert_array_equal(array, values * np.float32(2))
    other = device.memory_resource.allocate(values.nbytes, stream=stream)
    host.copy_to(other, stream=stream)
    np.testing.assert_array_equal(on_host(other, np.float32, stream), array)
    assert other.memory_resource is device.memory_resource and other.device_id == 0
    for buffer in (one, host, other):
        buffer.close(stream)
        assert buffer.handle == 0


def fills():
    device, stream = start()
    buffer = device.allocate(64, stream=stream)
    for value, dtype in ((7, np.uint8), (b"\x34\x12", np.uint16), (np.int32(-5), np.int32)):
        buffer.fill(value, stream=stream)
        array = on_host(buffer, dtype, stream)
        wanted = value if isinstance(value, int) else np.frombuffer(
            value if isinstance(value, bytes) else value.tobytes(), dtype)[0]
        assert (array == wanted).all(), array


def pool_of_device():
    device, stream = start()
    resource = DeviceMemoryResource(device, DeviceMemoryResourceOptions(max_size=1 << 22))
    buffer = resource.allocate(1 << 20, stream=stream)
    attributes = resource.attributes
    assert attributes.used_mem_current >= 1 << 20
    assert attributes.reserved_mem_high >= attributes.used_mem_current
    buffer.close(stream)
    stream.sync()
    assert resource.attributes.used_mem_current == 0
    resource.close()


def pool_of_host():
    device, stream = start()
    kernel = compiled(ADD).get_kernel("plus_index")
    resource = PinnedMemoryResource(PinnedMemoryResourceOptions(numa_id=0))
    buffer = resource.allocate(4000, stream=stream)
    stream.sync()
    array = np.from_dlpack(buffer).view(np.int32)
    array[:] = 1
    # cuda.core gives no device access to the pool, so that only copies reach it.
    other = device.memory_resource.allocate(4000, stream=stream)
    buffer.copy_to(other, stream=stream)
    launch(stream, CONFIG, kernel, other, np.uint64(1000))
    buffer.copy_from(other, stream=stream)
    stream.sync()
    np.testing.assert_array_equal(array, np.arange(1000) + 1)
    assert buffer.is_host_accessible and buffer.is_device_accessible


def pool_of_managed_memory():
    device, stream = start()
    kernel = compiled(ADD).get_kernel("plus_index")
    resource = ManagedMemoryResource()
    buffer = resource.allocate(4000, stream=stream)
    stream.sync()
    array = np.from_dlpack(buffer).view(np.int32)
    array[:] = 2
    launch(stream, CONFIG, kernel, buffer, np.uint64(1000))
    stream.sync()
    np.testing.assert_array_equal(array, np.arange(1000) + 2)


def memory_of_graph():
    device, stream = start()
    kernel = compiled(ADD, "scale<float>").get_kernel("scale<float>")
    values = numbers()
    data = on_device(values, device, stream)
    resource = GraphMemoryResource(device)
    builder = device.create_graph_builder().begin_building("relaxed")
    scratch = resource.allocate(values.nbytes, stream=builder)
    scratch.copy_from(data, stream=builder)
    launch(builder, CONFIG, kernel, scratch, np.float32(4), np.uint64(COUNT))
    data.copy_from(scratch, stream=builder)
    scratch.close()
    builder.end_building().complete().launch(stream)
    np.testing.assert_array_equal(on_host(data, np.float32, stream), values * np.float32(4))
    assert resource.attributes.reserved_mem_high > 0
    resource.trim()


def virtual_memory():
    device, stream = start()
    resource = VirtualMemoryResource(device)
    buffers = [resource.allocate(size, stream=stream) for size in (1024, 1 << 20)]
    for value, buffer in enumerate(buffers):
        buffer.fill(value + 1, stream=stream)
    buffers[0].copy_to(device.allocate(buffers[0].size, stream=stream), stream=stream)
    stream.sync()
    grown = resource.modify_allocation(buffers[0], 1 << 22)
    assert grown.size >= 1 << 22
    assert (on_host(grown, np.uint8, stream)[:1024] == 1).all()
    assert (on_host(buffers[1], np.uint8, stream)[:1 << 20] == 2).all()


@args_viewable_as_strided_memory((0,))
def plus_index_of(array, stream, kernel):
    view = array.view(stream.handle)
    assert view.dtype == np.int32 and view.is_device_accessible and len(view.shape) == 1
    launch(stream, CONFIG, kernel, view.ptr, np.uint64(view.shape[0]))
    stream.sync()


class ArrayInterface:
    """What another library's array shows."""

    def __init__(self, buffer, shape, typestr):
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": typestr, "data": (int(buffer.handle), False), "version": 3}


def strided_memory_view():
    device, stream = start()
    buffer = on_device(np.ones(1024, np.int32), device, stream)
    kernel = compiled(ADD).get_kernel("plus_index")
    plus_index_of(ArrayInterface(buffer, (1024,), "<i4"), stream, kernel)
    np.testing.assert_array_equal(on_host(buffer, np.int32, stream), np.arange(1024) + 1)


def strided_memory_constructors():
    device, stream = start()
    host = np.arange(12, dtype=np.int16).reshape(3, 4)
    for view in (StridedMemoryView.from_array_interface(host),
                 StridedMemoryView.from_dlpack(host, stream_ptr=-1)):
        assert view.shape == (3, 4) and not view.is_device_accessible
        np.testing.assert_array_equal(np.from_dlpack(view), host)
    buffer = on_device(host, device, stream)
    view = StridedMemoryView.from_buffer(buffer, shape=(3, 4), strides=(4, 1), dtype=host.dtype)
    assert view.ptr == int(buffer.handle) and view.is_device_accessible
    other = StridedMemoryView.from_cuda_array_interface(
        ArrayInterface(buffer, (3, 4), "<i2"), stream_ptr=stream.handle)
    assert other.shape == (3, 4) and other.device_id == 0


def device_properties():
    for index in range(system.get_num_devices()):
        device = Device(index)
        device.set_current()
        names = [name for name in dir(device.properties) if not name.startswith("_")]
        values = {name: getattr(device.properties, name) for name in names}
        assert len(values) > 90 and values["warp_size"] == 32
        assert values["compute_capability_major"] == device.compute_capability.major
        assert len(device.uuid) == 36 and ":" in device.pci_bus_id and device.name


def streams_and_priorities():
    device, _ = start()
    low = device.create_stream(options=StreamOptions(priority=0))
    high = device.create_stream(options=StreamOptions(priority=-1, nonblocking=True))
    assert (low.priority, high.priority, high.is_nonblocking) == (0, -1, True)
    again = Stream.from_handle(int(high.handle))
    assert again.device.device_id == 0 and again.handle == high.handle
    assert device.default_stream.handle is not None


def stream_order():
    """One stream waits for another, by event and by stream."""
    device, one = start()
    two = device.create_stream()
    kernel = compiled(ADD).get_kernel("increment")
    buffer, array = pinned(1, np.int32, one)
    array[:] = 0
    launch(one, ONE, kernel, buffer)
    two.wait(one.record())
    launch(two, ONE, kernel, buffer)
    one.wait(two)
    launch(one, ONE, kernel, buffer)
    one.sync()
    assert array[0] == 3, array


def events_and_timing():
    _, stream = start()
    kernel = compiled(ADD).get_kernel("plus_index")
    buffer, array = pinned(1000, np.int32, stream)
    begin = stream.record(options=EventOptions(timing_enabled=True))
    launch(stream, CONFIG, kernel, buffer, np.uint64(1000))
    end = stream.record(options=EventOptions(timing_enabled=True))
    end.sync()
    assert begin.is_done and end.is_done and end - begin > 0
    try:
        stream.record() - begin
        raise AssertionError("an event without timing gave a time")
    except RuntimeError as error:
        assert "timing" in str(error).lower(), error


def deallocation_stream():
    device, producer = start()
    consumer = device.create_stream()
    output, array = pinned(4096, np.uint8, consumer)
    buffer = device.allocate(4096, stream=producer)
    buffer.fill(42, stream=producer)
    consumer.wait(producer.record())
    buffer.set_deallocation_stream(consumer)
    buffer.copy_to(output, stream=consumer)
    buffer.close()
    consumer.sync()
    assert (array == 42).all()


def green_context():
    device, _ = start()
    groups, rest = device.resources.sm.split(SMResourceOptions(count=16))
    assert groups[0].sm_count == 16 and rest.sm_count > 0
    context = device.create_context(ContextOptions(resources=[groups[0]]))
    assert context.is_green
    stream = context.create_stream()
    kernel = compiled(ADD).get_kernel("increment")
    buffer, array = pinned(1, np.int32, stream)
    array[:] = 1
    launch(stream, ONE, kernel, buffer)
    stream.sync()
    assert array[0] == 2


def program_cache():
    start()
    options = ProgramOptions(std="c++17", arch=f"sm_{Device().arch}")
    key = make_program_cache_key(code=ADD, code_type="c++", options=options, target_type="cubin")
    cache = InMemoryProgramCache()
    assert cache.get(key) is None
    cache[key] = compiled(ADD)
    ObjectCode.from_ptx(cache[key]).get_kernel("increment")


def errors_of_compiler():
    start()
    try:
        compiled("__global__ void wrong() { undeclared(); }")
        raise AssertionError("it compiled")
    except Exception as error:
        assert "undeclared" in str(error), error


def constants_of_module():
    """A printf of the device and a kernel of several dimensions."""
    _, stream = start()
    kernel = compiled(r"""extern "C" __global__ void places(int *out) {
        int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
        if (x == 0 && y == 0) printf("blocks %u %u\n", gridDim.x, gridDim.y);
        out[y * gridDim.x * blockDim.x + x] = 100 * y + x;
    }""").get_kernel("places")
    buffer, array = pinned(6 * 8, np.int32, stream)
    launch(stream, LaunchConfig(grid=(3, 2), block=(2, 4)), kernel, buffer)
    stream.sync()
    wanted = 100 * np.arange(8)[:, None] + np.arange(6)[None, :]
    np.testing.assert_array_equal(array.reshape(8, 6), wanted)


if __name__ == "__main__":
    support.main(globals())
