"""Do CuPy, Numba, cuda.core, RMM and JAX work on tcuda? Each check runs in a process of its own.

usage: python_others.py OUT [CHECK ...]

Needs the package tcuda; checks of a library that is not installed are skipped. OUT gets
python_others.json, and the output of each check. Ends with 77 where tcuda sees no GPU.
"""

import argparse
import gc
import importlib.metadata
import os
import pathlib
import pickle
import statistics
import subprocess
import sys
import threading
import time

import tcuda
from checks import MIB, SKIPPED, Skipped, fill_in_threads, need, run_all, run_one

SECONDS = 100
# Keeps one multiprocessor busy for some nanoseconds, then writes.
SPIN = r"""
extern "C" __global__ void spin(float *out, float value, long long nanoseconds, int count)
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        out[i] = value;
}
"""
LONG = 400_000_000


def version(*packages):
    """The version of the first of these packages that is installed."""
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    return "?"


def by_turns(functions, rounds=5, repeats=2000):
    """Microseconds of a call of each function: lowest and highest of the rounds."""
    times = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(repeats):
                function()
            times[name].append((time.perf_counter() - start) / repeats * 1e6)
    return "; ".join(f"{name} {min(found):.2f} to {max(found):.2f} us, median "
                     f"{statistics.median(found):.2f}" for name, found in times.items())


# ---- CuPy ----


def cupy_on_tcuda(**arguments):
    try:
        import cupy
    except ImportError as error:
        raise Skipped(f"no CuPy: {error}") from error
    import tcuda.cupy

    tcuda.cupy.enable(**arguments)
    return cupy


def spin_of(cupy):
    """Starts work of some nanoseconds on CuPy's current stream."""
    kernel = cupy.RawKernel(SPIN, "spin", options=("--std=c++11",))

    def spin(array, value=1.0, nanoseconds=LONG):
        kernel((1,), (256,), (array, cupy.float32(value), cupy.int64(nanoseconds),
                              cupy.int32(array.size)))

    spin(cupy.zeros(256, cupy.float32), nanoseconds=1)
    cupy.cuda.Device().synchronize()
    return spin


def check_cupy_arrays():
    cupy = cupy_on_tcuda()
    import numpy

    x = cupy.arange(1_000_000, dtype=cupy.float64)
    need(tcuda.memory_allocated() == 8_000_000, tcuda.memory_allocated())
    need(int(tcuda._core.device_of(x.data.ptr)) == 0, "the device of an address")
    y = cupy.sort(cupy.sin(x) @ cupy.ones((1_000_000, 3)))
    wanted = numpy.sort(numpy.sin(numpy.arange(1e6)) @ numpy.ones((1_000_000, 3)))
    need(numpy.allclose(y.get(), wanted), y, wanted)
    need(cupy.get_default_memory_pool().total_bytes() == 0, "CuPy's pool has memory")
    del x, y
    need(tcuda.memory_allocated() == 0, tcuda.memory_allocated())
    count = tcuda.memory_stats()["allocation.all.allocated"]
    z = cupy.zeros((0, 3))
    need(z.sum() == 0, z)
    return f"CuPy {version('cupy-cuda13x', 'cupy-cuda12x', 'cupy')}; {count} allocations"


def check_cupy_streams():
    cupy = cupy_on_tcuda()
    spin = spin_of(cupy)
    one, two = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with one:
        x = cupy.empty(MIB, cupy.float32)
        spin(x, 1.0)
        address = x.data.ptr
        del x
        again = cupy.empty(MIB, cupy.float32)
        need(again.data.ptr == address, "the same stream gets its memory back at once")
        del again
    need(not one.done, "the stream has work")
    with two:
        other = cupy.empty(MIB, cupy.float32)
        need(other.data.ptr != address, "memory of a stream that has work went to another one")
        other.fill(7.0)
        need(bool((other == 7.0).all()), "values")
    # An array of one stream, freed where another one uses it.
    with one:
        x = cupy.empty(MIB, cupy.float32)
        address = x.data.ptr
    one.synchronize()
    with two:
        spin(x, 3.0)
        del x
    with one:
        y = cupy.empty(MIB, cupy.float32)
        need(y.data.ptr != address, "memory was reused while another stream writes it")
    need(not two.done, "the other stream has work")
    two.synchronize()
    return "reused in stream order; not before the work of the stream that freed it"


def native_stream(cupy):
    """A stream of another library."""
    class Stream:
        def __init__(self):
            self.handle = cupy.cuda.runtime.streamCreateWithFlags(1)

        def __cuda_stream__(self):
            return 0, self.handle

        def end(self):
            cupy.cuda.runtime.streamDestroy(self.handle)

    return Stream()


def check_cupy_stream_ends():
    cupy = cupy_on_tcuda()
    kept = []
    for index in range(300):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            x = cupy.full(10_000 + index, float(index), cupy.float32)
            if index % 3 == 0:
                kept.append((x, float(index)))
            del x
        del stream
        if index % 50 == 49:
            tcuda.empty_cache()
    # Streams of another library, which end as well, and work on them without an allocation.
    for index in range(100):
        stream = native_stream(cupy)
        with cupy.cuda.Stream.from_external(stream):
            x = cupy.zeros(10_000, cupy.float32)
        with cupy.cuda.Stream.from_external(stream):
            x += index
            kept.append((x, float(index)))
        del x
        stream.end()
    gc.collect()
    need(all(bool((x == value).all()) for x, value in kept), "values of arrays of ended streams")
    kept.clear()
    cupy.cuda.Device().synchronize()
    tcuda.empty_cache()
    need(tcuda.memory_reserved() == 0, tcuda.memory_reserved())
    return "400 streams ended before and after their memory; all of it went back to the driver"


def check_cupy_out_of_memory():
    cupy = cupy_on_tcuda()
    _, total = tcuda.mem_get_info()
    tcuda.set_per_process_memory_fraction(256 * MIB / total)
    held = [cupy.zeros(32 * MIB, cupy.uint8) for _ in range(6)]
    try:
        cupy.zeros(512 * MIB, cupy.uint8)
        raise AssertionError("no error")
    except cupy.cuda.memory.OutOfMemoryError as error:
        need(isinstance(error, tcuda.OutOfMemoryError), type(error).__mro__)
        need("512.00 MiB" in str(error) and error.status == "OUT_OF_MEMORY", error)
        other = pickle.loads(pickle.dumps(error))
        need(str(other) == str(error) and other.code == error.code, other)
        text = str(error).split(". ")[0]
    del held
    need(int(cupy.ones(200 * MIB, cupy.uint8).sum()) == 200 * MIB, "work goes on")
    return text


def check_cupy_pinned():
    cupy = cupy_on_tcuda(pinned=True)
    import cupyx
    import numpy

    x = cupyx.empty_pinned((MIB,), numpy.float32)
    stats = tcuda.host_memory_stats()
    need(stats["active_bytes.current"] == 4 * MIB, stats)
    x[:] = numpy.arange(MIB)
    need(tcuda._core.backend_name() == "cuda", tcuda._core.backend_name())
    need(cupy.cuda.runtime.pointerGetAttributes(x.ctypes.data).type == 1, "not page-locked")
    y = cupy.asarray(x)
    del x
    z = cupy.asnumpy(y)
    need(float(z[-1]) == MIB - 1, z)
    big = cupy.asarray(numpy.ones(5 * MIB, numpy.uint8))
    need(int(big.sum()) == 5 * MIB, "copies of pageable memory")
    gc.collect()
    cupy.cuda.Device().synchronize()
    cupy.cuda.alloc_pinned_memory(1)  # CuPy looks for copies that are done
    left = tcuda.host_memory_stats()["active_bytes.current"]
    need(left <= 64, left)
    return f"{stats['active_bytes.current']} bytes of tcuda's pinned memory, then {left}"


def check_cupy_graphs():
    cupy = cupy_on_tcuda()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.ones(MIB, cupy.float32)
        (x * 2 + 1).sum()
        stream.synchronize()
        stream.begin_capture()
        y = x * 2
        z = y + 1
        total = z.sum()
        graph = stream.end_capture()
        held = []
        for index in range(20):
            x.fill(float(index))
            graph.launch(stream)
            held.append(cupy.full(MIB, 9.0, cupy.float32))
            need(float(total) == (2.0 * index + 1) * MIB, index, float(total))
            need(bool((held[-1] == 9.0).all()), "a replay wrote memory of another array")
    del y, z, total, graph, held, x
    return "20 replays beside new arrays"


def check_cupy_threads():
    cupy = cupy_on_tcuda()
    fill_in_threads(lambda count, value: cupy.full(count, value, cupy.float32),
                    lambda: cupy.cuda.Stream(non_blocking=True))
    return f"6 threads, {tcuda.memory_stats()['allocation.all.allocated']} allocations"


def check_cupy_interop():
    cupy = cupy_on_tcuda()
    spin = spin_of(cupy)
    ours = tcuda.Stream()
    theirs = cupy.cuda.Stream.from_external(ours)
    with theirs:
        x = cupy.zeros(256, cupy.float32)
        spin(x, 5.0, 50_000_000)
        need(not ours.query(), "work of CuPy on a stream of tcuda")
    event = ours.record_event()
    stream = cupy.cuda.Stream(non_blocking=True)
    external = tcuda.ExternalStream(stream)
    need(external.cuda_stream == stream.ptr, external, stream)
    external.wait_event(event)
    with stream:
        y = x + 1
    external.synchronize()
    need(float(y.get()[0]) == 6.0, y)
    address = tcuda.caching_allocator_alloc(1024, stream=ours)
    memory = cupy.cuda.UnownedMemory(address, 1024, ours)
    z = cupy.ndarray(256, cupy.float32, cupy.cuda.MemoryPointer(memory, 0))
    with theirs:
        z.fill(2.0)
        need(float(z.sum()) == 512.0, z)
    tcuda.caching_allocator_delete(address)
    return "streams both ways, and memory of tcuda as an array"


def check_cupy_cost():
    cupy = cupy_on_tcuda()
    import tcuda.cupy

    pool = cupy.get_default_memory_pool().malloc
    ours = tcuda.cupy.malloc
    stream = cupy.cuda.Stream(non_blocking=True)
    lines = []
    for name, current in (("default stream", cupy.cuda.Stream.null), ("own stream", stream)):
        with current:
            lines.append(f"{name}: " + by_turns({
                "CuPy's pool": lambda: pool(100_000), "tcuda": lambda: ours(100_000),
                "cudaMallocAsync": lambda: cupy.cuda.malloc_async(100_000)}, repeats=20_000))
    return " | ".join(lines)


# ---- Numba ----


def numba_on_tcuda():
    try:
        from numba import cuda
    except ImportError as error:
        raise Skipped(f"no Numba: {error}") from error
    import tcuda.numba

    tcuda.numba.enable()
    return cuda


def numba_kernel(cuda):
    """Adds to an array."""
    @cuda.jit
    def add(x, value):
        index = cuda.grid(1)
        if index < x.size:
            x[index] += value

    return add


def check_numba_arrays():
    cuda = numba_on_tcuda()
    import numpy

    add = numba_kernel(cuda)
    x = cuda.to_device(numpy.arange(1_000_000, dtype=numpy.float64))
    add[4000, 256](x, 0.5)
    need(numpy.array_equal(x.copy_to_host(), numpy.arange(1e6) + 0.5), "values")
    need(tcuda.memory_allocated() == 8_000_000, tcuda.memory_allocated())
    part = x[1000:2000]
    del x
    need(tcuda.memory_allocated() > 0, "a view keeps its memory")
    need(float(part.copy_to_host()[0]) == 1000.5, "the view")
    del part
    need(tcuda.memory_allocated() == 0, tcuda.memory_allocated())
    need(cuda.current_context().get_memory_info() == tcuda.mem_get_info(), "memory info")
    with cuda.defer_cleanup():
        y = cuda.device_array(1000)
        del y
        need(tcuda.memory_allocated() == 8192, tcuda.memory_allocated())
    need(tcuda.memory_allocated() == 0, tcuda.memory_allocated())
    z = cuda.device_array(1000)
    cuda.current_context().reset()
    need(tcuda.memory_allocated() == 0, "after a reset", tcuda.memory_allocated())
    w = cuda.device_array(1000)
    del z
    need(tcuda.memory_allocated() == 8192, "an array of before the reset freed a new one")
    del w
    return f"numba-cuda {version('numba-cuda')}, Numba {version('numba')}"


def check_numba_exchange():
    cuda = numba_on_tcuda()
    import numpy

    add = numba_kernel(cuda)
    theirs = cuda.to_device(numpy.arange(1000, dtype=numpy.float64))
    ours = tcuda.asarray(theirs)
    need(ours.address == theirs.device_ctypes_pointer.value, "memory of Numba was copied")
    back = cuda.as_cuda_array(ours)
    add[4, 256](back, 1.0)
    cuda.synchronize()
    need(float(theirs.copy_to_host()[999]) == 1000.0, "values")
    del theirs, back
    need(tcuda.memory_allocated() > 0, "tcuda's array keeps the memory")
    del ours
    gc.collect()
    need(tcuda.memory_allocated() == 0, tcuda.memory_allocated())
    return "arrays both ways without copies"


def check_numba_order():
    """Memory is not reused before work of any stream, blocking or not, is over."""
    cuda = numba_on_tcuda()
    import numpy

    add = numba_kernel(cuda)
    host = numpy.zeros(MIB // 4)
    warm = cuda.to_device(host)
    add[1, 1](warm, 1.0)
    cuda.synchronize()
    ours = tcuda.Stream()
    streams = {"Numba's": cuda.stream(), "a stream of tcuda": cuda.external_stream(
        ours.cuda_stream), "the default stream": cuda.default_stream()}
    for name, stream in streams.items():
        x = cuda.to_device(host)
        address = x.device_ctypes_pointer.value
        external, gate = tcuda.ExternalStream(stream), threading.Event()
        external.add_callback(lambda gate=gate: gate.wait(30))
        try:
            add[1024, 256, stream](x, 1.0)
            del x
            held = [cuda.device_array(host.shape) for _ in range(4)]
            need(not external.query(), name, "the work was over too early to tell")
            need(address not in [y.device_ctypes_pointer.value for y in held],
                 name, "memory was reused before a kernel writes it")
        finally:
            gate.set()
        cuda.synchronize()
        held.append(cuda.device_array(host.shape))
        stats = tcuda.memory_stats()
        need(stats["active.all.current"] == stats["allocation.all.current"] == 6,
             name, "memory was not given back", stats)
        held.clear()
    return "not reused before work on: " + ", ".join(streams)


def check_numba_pinned():
    cuda = numba_on_tcuda()
    import numpy

    x = cuda.pinned_array(MIB, dtype=numpy.float32)
    need(tcuda.host_memory_stats()["active_bytes.current"] == 4 * MIB,
         tcuda.host_memory_stats())
    x[:] = 2.0
    stream = cuda.stream()
    y = cuda.to_device(x, stream=stream)
    y.copy_to_host(x, stream=stream)
    stream.synchronize()
    need(float(x.sum()) == 2.0 * MIB, x.sum())
    address = x.ctypes.data
    del x
    tcuda.synchronize()
    x = cuda.pinned_array(MIB, dtype=numpy.float32)
    need(x.ctypes.data == address, "pinned memory is not reused")
    mapped = cuda.mapped_array(100)
    mapped[:] = 1.0
    with cuda.pinned(numpy.zeros(1000)):
        pass
    managed = cuda.managed_array(100)
    managed[:] = 3.0
    add = numba_kernel(cuda)
    add[1, 128](mapped, 1.0)
    add[1, 128](managed, 1.0)
    cuda.synchronize()
    need(mapped.sum() == 200.0 and managed.sum() == 400.0, mapped, managed)
    return "pinned memory of tcuda; mapped, managed and registered memory of the driver"


def check_numba_out_of_memory():
    cuda = numba_on_tcuda()
    from numba.cuda.cudadrv.driver import CudaAPIError

    _, total = tcuda.mem_get_info()
    tcuda.set_per_process_memory_fraction(256 * MIB / total)
    try:
        cuda.device_array(512 * MIB, dtype="u1")
        raise AssertionError("no error")
    except CudaAPIError as error:
        need(int(error.code) == 2 and "512.00 MiB" in error.msg, error)
        text = error.msg.split(". ")[0]
    x = cuda.device_array(100 * MIB, dtype="u1")
    del x
    return text


def check_numba_variable():
    program = ("from numba import cuda; import numpy, tcuda; x = cuda.to_device(numpy.ones(1000));"
               "print(tcuda.memory_allocated(), type(cuda.current_context().memory_manager))")
    child = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env=dict(os.environ, NUMBA_CUDA_MEMORY_MANAGER="tcuda.numba"))
    if "No module named 'numba'" in child.stderr:
        raise Skipped("no Numba")
    need(child.stdout == "8192 <class 'tcuda.numba.MemoryManager'>\n", child)
    return child.stdout.strip()


def numba_child(inbox, outbox):
    try:
        cuda = numba_on_tcuda()
        handle, size = inbox.get(timeout=40)
        x = handle.open()
        need(x.size == size, x.size)
        outbox.put(float(x[10:].copy_to_host().sum() + x[:10].copy_to_host().sum()))
        numba_kernel(cuda)[400, 256](x, 1.0)
        cuda.synchronize()
        del x
        handle.close()
        outbox.put("closed")
    except BaseException as error:
        outbox.put(f"{type(error).__name__}: {error}")
        raise


def check_numba_ipc():
    cuda = numba_on_tcuda()
    import multiprocessing

    import numpy

    context = multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=numba_child, args=(inbox, outbox))
    child.start()
    try:
        x = cuda.to_device(numpy.arange(100_000, dtype=numpy.float64))
        part = x[50_000:]
        inbox.put((part.get_ipc_handle(), 50_000))
        found = outbox.get(timeout=60)
        need(found == float(numpy.arange(50_000, 100_000.0).sum()), found)
        need(outbox.get(timeout=60) == "closed", "the child")
        child.join(30)
        need(child.exitcode == 0, child.exitcode)
        wanted = numpy.arange(100_000, dtype=numpy.float64)
        wanted[50_000:] += 1
        need(numpy.array_equal(x.copy_to_host(), wanted), "what the child wrote")
        return "a part of an array, read and written by another process"
    finally:
        if child.is_alive():
            child.kill()


def check_numba_cost():
    """The same program in this process on tcuda and in another one on Numba's manager."""
    program = ("import sys, time; from numba import cuda\n"
               "for _ in range(200): cuda.device_array(25_000)\n"
               "start = time.perf_counter()\n"
               "for _ in range(2000): cuda.device_array(25_000)\n"
               "print((time.perf_counter() - start) / 2000 * 1e6)")
    times = {"default": [], "tcuda.numba": []}
    for _ in range(5):
        for manager, found in times.items():
            child = subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True, check=False,
                env=dict(os.environ, NUMBA_CUDA_MEMORY_MANAGER=manager))
            if "No module named 'numba'" in child.stderr:
                raise Skipped("no Numba")
            need(child.returncode == 0, child.stderr[-2000:])
            found.append(float(child.stdout))
    return "an array of 200 kB, made and freed: " + "; ".join(
        f"{name} {min(found):.1f} to {max(found):.1f} us" for name, found in times.items())


# ---- cuda.core ----


def core_on_tcuda():
    try:
        from cuda.core import Device
    except ImportError as error:
        raise Skipped(f"no cuda.core: {error}") from error
    import tcuda.cuda_core

    device = Device(0)
    device.set_current()
    tcuda.cuda_core.enable()
    return device


def check_core_buffers():
    device = core_on_tcuda()
    import tcuda.cuda_core

    stream = device.create_stream()
    one = device.allocate(MIB, stream=stream)
    need(one.memory_resource is device.memory_resource, one.memory_resource)
    need(isinstance(one.memory_resource, tcuda.cuda_core.MemoryResource), one.memory_resource)
    need(tcuda.memory_allocated() == MIB, tcuda.memory_allocated())
    need(one.is_device_accessible and not one.is_host_accessible and one.device_id == 0, one)
    one.fill(0x5A, stream=stream)
    two = one.copy_to(stream=stream)
    need(two.memory_resource is one.memory_resource, "a copy")
    host = bytearray(MIB)
    stream.sync()
    tcuda._core.copy(host_address(host), int(two.handle), MIB, None)
    tcuda.synchronize()
    need(host == b"\x5A" * MIB, "values")
    address = int(two.handle)
    two.close()
    again = device.allocate(MIB, stream=stream)
    need(int(again.handle) == address, "the stream gets its memory back")
    del one, two, again
    need(tcuda.memory_allocated() == 0, tcuda.memory_allocated())
    return f"cuda-core {version('cuda-core')}, cuda-bindings {version('cuda-bindings')}"


def host_address(buffer):
    import ctypes

    return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))


def check_core_streams():
    device = core_on_tcuda()
    ours = tcuda.Stream()
    theirs = device.create_stream(ours)
    need(theirs == device.create_stream(ours) and int(theirs.handle) == ours.cuda_stream, theirs)
    buffer = device.allocate(MIB, stream=ours)
    buffer.fill(1, stream=theirs)
    event = ours.record_event()
    stream = device.create_stream()
    external = tcuda.ExternalStream(stream)
    external.wait_event(event)
    need(external.cuda_stream == int(stream.handle), external)
    address = tcuda.caching_allocator_alloc(MIB, stream=external)
    tcuda._core.copy(address, int(buffer.handle), MIB, external._handle)
    tcuda.caching_allocator_delete(address)
    stream.sync()
    # Buffers that are freed on another stream than their own, whose stream ends before.
    for _ in range(100):
        one, two = device.create_stream(), device.create_stream()
        first, second = device.allocate(10_000, stream=one), device.allocate(10_000, stream=one)
        first.close()
        two.wait(one)
        second.set_deallocation_stream(two)
        one.close()
        second.close()
        two.close()
    del buffer, external
    tcuda.synchronize()
    tcuda.empty_cache()
    need(tcuda.memory_reserved() == 0, tcuda.memory_reserved())
    return "streams both ways; 200 streams ended before all of their memory was free"


def check_core_out_of_memory():
    device = core_on_tcuda()
    _, total = tcuda.mem_get_info()
    tcuda.set_per_process_memory_fraction(256 * MIB / total)
    stream = device.create_stream()
    try:
        device.allocate(512 * MIB, stream=stream)
        raise AssertionError("no error")
    except tcuda.OutOfMemoryError as error:
        text = str(error).split(". ")[0]
    device.allocate(100 * MIB, stream=stream).close()
    return text


def check_core_cost():
    device = core_on_tcuda()
    from cuda.core import DeviceMemoryResource

    stream, own = device.create_stream(), DeviceMemoryResource(0)
    ours = device.memory_resource
    return by_turns({
        "DeviceMemoryResource": lambda: own.allocate(100_000, stream=stream).close(),
        "tcuda": lambda: ours.allocate(100_000, stream=stream).close()})


# ---- RMM ----


def rmm_on_tcuda():
    try:
        import rmm
    except (ImportError, OSError) as error:
        raise Skipped(f"no RMM: {error}") from error
    import tcuda.rmm

    tcuda.rmm.enable()
    return rmm


def check_rmm_resources():
    rmm = rmm_on_tcuda()
    from rmm.pylibrmm.stream import Stream

    base, stream = rmm.mr.get_per_device_resource(0), Stream(tcuda.Stream())
    first = base.allocate(MIB, stream)
    need(tcuda.memory_allocated() == MIB, tcuda.memory_allocated())
    base.deallocate(first, MIB, stream)
    second = base.allocate(MIB, stream)
    need(first == second, "the stream gets its memory back")
    base.deallocate(second, MIB, stream)
    base.deallocate(base.allocate(1000), 1000)
    counted = rmm.mr.StatisticsResourceAdaptor(base)
    address = counted.allocate(MIB, stream)
    need(counted.allocation_counts.current_bytes == MIB == tcuda.memory_allocated(),
         counted.allocation_counts)
    counted.deallocate(address, MIB, stream)
    limited = rmm.mr.LimitingResourceAdaptor(base, 2 * MIB)
    for resource, size, text in ((limited, 3 * MIB, "Exceeded memory limit"),
                                 (base, 1 << 50, "CUDA out of memory")):
        try:
            resource.allocate(size, stream)
            raise AssertionError("no error")
        except MemoryError as error:
            need(text in str(error), error)
    need(tcuda.memory_allocated() == 0, tcuda.memory_allocated())
    return f"RMM {version('rmm-cu13', 'rmm-cu12')}; adaptors, MemoryError"


def check_rmm_buffers():
    rmm = rmm_on_tcuda()
    from rmm.pylibrmm.stream import Stream

    stream = Stream()
    one = rmm.DeviceBuffer.to_device(b"tcuda" * 1000, stream)
    need(tcuda.memory_allocated() == 5120, tcuda.memory_allocated())
    need(bytes(one.tobytes(stream)) == b"tcuda" * 1000, "values")
    one.resize(100_000, stream)
    need(tcuda.memory_allocated() >= 100_000, tcuda.memory_allocated())
    del one
    need(tcuda.memory_allocated() == 0, tcuda.memory_allocated())
    for _ in range(100):
        first, second = Stream(), Stream()
        buffer = rmm.DeviceBuffer(size=10_000, stream=first)
        first.synchronize()
        buffer.resize(20_000, second)
        del buffer, first, second
    tcuda.synchronize()
    tcuda.empty_cache()
    need(tcuda.memory_reserved() == 0, tcuda.memory_reserved())
    return "values; 200 streams that ended"


def check_rmm_out_of_memory():
    rmm = rmm_on_tcuda()
    _, total = tcuda.mem_get_info()
    tcuda.set_per_process_memory_fraction(256 * MIB / total)
    try:
        rmm.DeviceBuffer(size=512 * MIB)
        raise AssertionError("no error")
    except MemoryError as error:
        text = f"MemoryError: {error}"
    del text
    buffer = rmm.DeviceBuffer(size=100 * MIB)
    need(buffer.size == 100 * MIB, buffer)
    return "MemoryError, and memory after it"


def check_rmm_libraries():
    """CuPy and Numba by RMM's own adapters, on tcuda in the end."""
    rmm_on_tcuda()
    try:
        import cupy
    except ImportError as error:
        raise Skipped(f"no CuPy: {error}") from error
    from rmm.allocators.cupy import rmm_cupy_allocator

    cupy.cuda.set_allocator(rmm_cupy_allocator)
    with cupy.cuda.Stream(non_blocking=True):
        x = cupy.arange(100_000)
        need(int(x.sum()) == 4_999_950_000, x)
        need(tcuda.memory_allocated() >= 800_000, tcuda.memory_allocated())
        del x
    return "rmm_cupy_allocator"


def check_rmm_cost():
    rmm = rmm_on_tcuda()
    from rmm.pylibrmm.stream import Stream

    stream = Stream()
    resources = {"tcuda": rmm.mr.get_current_device_resource(),
                 "CudaAsyncMemoryResource": rmm.mr.CudaAsyncMemoryResource(),
                 "PoolMemoryResource": rmm.mr.PoolMemoryResource(
                     rmm.mr.CudaMemoryResource(), initial_pool_size=64 * MIB)}

    def use(resource):
        resource.deallocate(resource.allocate(100_000, stream), 100_000, stream)

    return by_turns({name: lambda resource=resource: use(resource)
                     for name, resource in resources.items()})


# ---- JAX ----


def jax_beside_tcuda():
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    try:
        import jax
    except ImportError as error:
        raise Skipped(f"no JAX: {error}") from error
    if jax.default_backend() != "gpu":
        raise Skipped("JAX sees no GPU")
    return jax


def check_jax_calls():
    jax = jax_beside_tcuda()
    import numpy

    import tcuda.jax

    seen = []

    def copy(stream, inputs, outputs):
        seen.append((stream.cuda_stream, inputs[0].shape, str(outputs[0].dtype)))
        address = tcuda.caching_allocator_alloc(inputs[0].nbytes, stream=stream.cuda_stream)
        tcuda._core.copy(address, inputs[0].address, inputs[0].nbytes, stream._handle)
        tcuda._core.copy(outputs[0].address, address, inputs[0].nbytes, stream._handle)
        tcuda._core.free_on(address, stream.cuda_stream)

    @jax.jit
    def program(x):
        return tcuda.jax.call(copy, jax.ShapeDtypeStruct(x.shape, x.dtype), x * 2) + 1

    for index in range(50):
        x = jax.numpy.arange(100_000, dtype="float32") + index
        need(numpy.array_equal(program(x), numpy.asarray(x) * 2 + 1), "values at", index)
    need(len(seen) == 50 and seen[0][1:] == ((100_000,), "float32"), seen[0], len(seen))

    def fail(stream, inputs, outputs):
        raise KeyError("what went wrong")

    try:
        tcuda.jax.call(fail, jax.ShapeDtypeStruct((3,), "float32"),
                       jax.numpy.ones(3)).block_until_ready()
        raise AssertionError("no error")
    except Exception as error:
        need("KeyError: 'what went wrong'" in str(error), error)
    return f"JAX {jax.__version__}; {len(seen)} calls, stream {seen[0][0]:#x}"


def check_jax_arrays():
    jax = jax_beside_tcuda()
    cupy = cupy_on_tcuda()

    ours = cupy.arange(100_000, dtype=cupy.float32)
    cupy.cuda.Device().synchronize()
    theirs = jax.dlpack.from_dlpack(ours)
    need(theirs.unsafe_buffer_pointer() == ours.data.ptr, "memory of tcuda was copied for JAX")
    need(float(theirs.sum()) == float(ours.sum()), theirs.sum(), ours.sum())
    del ours
    need(tcuda.memory_allocated() > 0, "JAX's array keeps the memory")
    made = (theirs * 3).block_until_ready()
    back = cupy.from_dlpack(made)
    need(back.data.ptr == made.unsafe_buffer_pointer(), "memory of JAX was copied for CuPy")
    target = tcuda.caching_allocator_alloc(back.nbytes)
    tcuda._core.copy(target, made.unsafe_buffer_pointer(), back.nbytes, None)
    tcuda.synchronize()
    memory = cupy.cuda.UnownedMemory(target, back.nbytes, None)
    copied = cupy.ndarray(back.shape, back.dtype, cupy.cuda.MemoryPointer(memory, 0))
    need(bool((copied == back).all()) and float(copied[2]) == 6.0, copied[:5])
    tcuda.caching_allocator_delete(target)
    return "DLPack both ways without copies; tcuda copies from JAX's memory"


CHECKS = {name[6:]: function for name, function in list(globals().items())
          if name.startswith("check_")}


def main():
    run_one(CHECKS)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("checks", nargs="*", default=list(CHECKS))
    options = parser.parse_args()
    if not tcuda.is_available():
        print("skipped: tcuda sees no GPU")
        sys.exit(SKIPPED)
    run_all(options.checks, options.out.resolve(), lambda name: SECONDS)


if __name__ == "__main__":
    main()
