"""Programs of Numba with a missing wait, and the same with it.

usage: numba_races.py NAME wrong|right, or --list. The wrong one fails under some seeds of the
adversarial schedule, the right one under none (scripts/ci/python_races.py).
"""

import numpy as np
import support
from numba import cuda

COUNT = 256


@cuda.jit
def add(out, source, value):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = source[i] + value


def pinned(value):
    array = cuda.pinned_array(COUNT, np.int32)
    array[:] = value
    return array


def on_device(value=0):
    return cuda.to_device(np.full(COUNT, value, np.int32))


def copy_without_wait(right):
    """The host reads a copy's target without a wait."""
    stream, data, host = cuda.stream(), on_device(), pinned(0)
    add[2, 128, stream](data, data, 7)
    data.copy_to_host(host, stream=stream)
    if right:
        stream.synchronize()
    assert (host == 7).all(), host


def two_streams_without_event(right):
    """A second stream reads what the first one writes."""
    one, two, data, result, host = cuda.stream(), cuda.stream(), on_device(), on_device(), pinned(0)
    add[2, 128, one](data, data, 7)
    if right:
        event = cuda.event()
        event.record(one)
        event.wait(two)
    add[2, 128, two](result, data, 1)
    result.copy_to_host(host, stream=two)
    two.synchronize()
    assert (host == 8).all(), host


def event_too_early(right):
    """The event that the second stream waits for is recorded before the work."""
    one, two, data, result, host = cuda.stream(), cuda.stream(), on_device(), on_device(), pinned(0)
    event = cuda.event()
    if not right:
        event.record(one)
    add[2, 128, one](data, data, 7)
    if right:
        event.record(one)
    event.wait(two)
    add[2, 128, two](result, data, 1)
    result.copy_to_host(host, stream=two)
    two.synchronize()
    assert (host == 8).all(), host


def pinned_buffer_reused(right):
    """The host writes the next values into a buffer that a copy still reads."""
    stream, staging, host = cuda.stream(), pinned(1), pinned(0)
    data = cuda.device_array(COUNT, np.int32)
    data.copy_to_device(staging, stream=stream)
    if right:
        stream.synchronize()
    staging[:] = 2
    data.copy_to_host(host, stream=stream)
    stream.synchronize()
    assert (host == 1).all(), host


def mapped_array_read_early(right):
    """The host reads memory that a kernel on another stream than the one it waits for writes."""
    one, two = cuda.stream(), cuda.stream()
    array = cuda.mapped_array(COUNT, np.int32)
    array[:] = 3
    add[2, 128, one](array, array, 4)
    (one if right else two).synchronize()
    assert (array == 7).all(), array


if __name__ == "__main__":
    support.main_of_races(globals())
