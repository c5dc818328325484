"""Programs of cuda.core with a missing wait, and the same with it.

usage: cuda_core_races.py NAME wrong|right, or --list. The wrong one fails under some seeds of the
adversarial schedule, the right one under none (scripts/ci/python_races.py).
"""

import numpy as np
import support
from cuda.core import (
    Device, LaunchConfig, LegacyPinnedMemoryResource, Program, ProgramOptions, launch)

COUNT = 256
CODE = r"""
extern "C" __global__ void add(int *out, const int *in, int value, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = in[i] + value;
}"""
CONFIG = LaunchConfig(grid=2, block=128)


class Bench:
    """A device, its kernel, and buffers of it and of the host."""

    def __init__(self):
        self.device = Device()
        self.device.set_current()
        options = ProgramOptions(arch=f"sm_{self.device.arch}")
        self.kernel = Program(CODE, "c++", options).compile("ptx").get_kernel("add")
        self.stream, self.other = self.device.create_stream(), self.device.create_stream()
        self.pinned = LegacyPinnedMemoryResource()

    def on_host(self, value):
        buffer = self.pinned.allocate(4 * COUNT, stream=self.stream)
        array = np.from_dlpack(buffer).view(np.int32)
        array[:] = value
        return buffer, array

    def on_device(self):
        buffer = self.device.allocate(4 * COUNT, stream=self.stream)
        buffer.fill(0, stream=self.stream)
        self.stream.sync()
        return buffer

    def add(self, stream, out, source, value):
        launch(stream, CONFIG, self.kernel, out, source, np.int32(value), np.int32(COUNT))


def copy_without_wait(right):
    """The host reads a copy's target without a wait."""
    bench = Bench()
    data, (host, array) = bench.on_device(), bench.on_host(0)
    bench.add(bench.stream, data, data, 7)
    data.copy_to(host, stream=bench.stream)
    if right:
        bench.stream.sync()
    assert (array == 7).all(), array


def two_streams_without_event(right):
    """A second stream reads what the first one writes."""
    bench = Bench()
    data, result, (host, array) = bench.on_device(), bench.on_device(), bench.on_host(0)
    bench.add(bench.stream, data, data, 7)
    if right:
        bench.other.wait(bench.stream.record())
    bench.add(bench.other, result, data, 1)
    result.copy_to(host, stream=bench.other)
    bench.other.sync()
    assert (array == 8).all(), array


def event_too_early(right):
    """The event that the second stream waits for is recorded before the work."""
    bench = Bench()
    data, result, (host, array) = bench.on_device(), bench.on_device(), bench.on_host(0)
    if not right:
        event = bench.stream.record()
    bench.add(bench.stream, data, data, 7)
    if right:
        event = bench.stream.record()
    bench.other.wait(event)
    bench.add(bench.other, result, data, 1)
    result.copy_to(host, stream=bench.other)
    bench.other.sync()
    assert (array == 8).all(), array


def pinned_buffer_reused(right):
    """The host writes the next values into a buffer that a copy still reads."""
    bench = Bench()
    data, result = bench.on_device(), bench.on_device()
    (staging, values), (host, array) = bench.on_host(1), bench.on_host(0)
    data.copy_from(staging, stream=bench.stream)
    if right:
        bench.stream.sync()
    values[:] = 2
    bench.add(bench.stream, result, data, 0)
    result.copy_to(host, stream=bench.stream)
    bench.stream.sync()
    assert (array == 1).all(), array


def wrong_stream_synchronized(right):
    """The host waits for a stream that has no work."""
    bench = Bench()
    host, array = bench.on_host(3)
    bench.add(bench.stream, host, host, 4)
    (bench.stream if right else bench.other).sync()
    assert (array == 7).all(), array


def memory_freed_on_another_stream(right):
    """A buffer goes back to its pool on one stream while another one still reads it."""
    bench = Bench()
    data, result, (host, array) = bench.on_device(), bench.on_device(), bench.on_host(0)
    bench.add(bench.stream, data, data, 7)
    bench.other.wait(bench.stream.record())
    bench.add(bench.other, result, data, 1)
    if right:
        bench.stream.wait(bench.other.record())
    data.close(bench.stream)
    again = bench.device.allocate(4 * COUNT, stream=bench.stream)
    again.fill(0, stream=bench.stream)
    result.copy_to(host, stream=bench.other)
    bench.other.sync()
    assert (array == 8).all(), array


if __name__ == "__main__":
    support.main_of_races(globals())
