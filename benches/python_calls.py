#!/usr/bin/env python3
"""What a call of the Python package costs, beside the same call of torch.cuda in the same run.

  python_calls.py [--rounds 5] [--calls 20000] [--json FILE]

Needs PyTorch and a GPU. In each round both sides take turns; a row has the median of the rounds and
their range, in nanoseconds a call, and the ratio of the medians.
"""

import argparse
import json
import statistics
import time


def pairs(tcuda, torch):
    """Name, our call and PyTorch's."""
    cuda = torch.cuda
    streams = {"ours": tcuda.Stream(), "theirs": cuda.Stream()}
    events = {"ours": tcuda.Event(), "theirs": cuda.Event()}
    streams["ours"].record_event(events["ours"])
    streams["theirs"].record_event(events["theirs"])

    def allocate(of):
        of.caching_allocator_delete(of.caching_allocator_alloc(1 << 20))

    def enter(of, stream):
        with of.stream(stream):
            pass

    def enter_device(of):
        with of.device(0):
            pass

    yield "current_stream()", tcuda.current_stream, cuda.current_stream
    yield "default_stream()", tcuda.default_stream, cuda.default_stream
    yield "Stream()", tcuda.Stream, cuda.Stream
    yield "with stream(s)", lambda: enter(tcuda, streams["ours"]), lambda: enter(
        cuda, streams["theirs"])
    yield "Stream.query()", streams["ours"].query, streams["theirs"].query
    yield "Stream.cuda_stream", lambda: streams["ours"].cuda_stream, lambda: (
        streams["theirs"].cuda_stream)
    yield "Stream.synchronize()", streams["ours"].synchronize, streams["theirs"].synchronize
    yield "Stream.wait_event()", lambda: streams["ours"].wait_event(events["ours"]), lambda: (
        streams["theirs"].wait_event(events["theirs"]))
    yield "Event()", tcuda.Event, cuda.Event
    yield "Event.record()", events["ours"].record, events["theirs"].record
    yield "Event.query()", events["ours"].query, events["theirs"].query
    yield "current_device()", tcuda.current_device, cuda.current_device
    yield "set_device(0)", lambda: tcuda.set_device(0), lambda: cuda.set_device(0)
    yield "with device(0)", lambda: enter_device(tcuda), lambda: enter_device(cuda)
    yield "device_count()", tcuda.device_count, cuda.device_count
    yield "synchronize()", tcuda.synchronize, cuda.synchronize
    yield "memory_allocated()", tcuda.memory_allocated, cuda.memory_allocated
    yield "memory_reserved()", tcuda.memory_reserved, cuda.memory_reserved
    yield "memory_stats()", tcuda.memory_stats, cuda.memory_stats
    yield "mem_get_info()", tcuda.mem_get_info, cuda.mem_get_info
    yield "is_current_stream_capturing()", tcuda.is_current_stream_capturing, (
        cuda.is_current_stream_capturing)
    yield "get_rng_state()", tcuda.get_rng_state, cuda.get_rng_state
    yield "caching_allocator_alloc(), _delete()", lambda: allocate(tcuda), lambda: allocate(cuda)
    yield "empty(1000)", lambda: tcuda.empty(1000), lambda: torch.empty(1000, device="cuda")
    yield "empty((10, 10), float16)", lambda: tcuda.empty((10, 10), "float16"), lambda: torch.empty(
        (10, 10), dtype=torch.float16, device="cuda")
    ours, theirs = tcuda.empty(1000), torch.empty(1000, device="cuda")
    yield "__dlpack__(stream=1)", lambda: ours.__dlpack__(stream=1), lambda: theirs.__dlpack__(
        stream=1)
    yield "from_dlpack()", lambda: tcuda.from_dlpack(ours), lambda: torch.from_dlpack(theirs)
    yield "uniform_()", lambda: tcuda.uniform_(ours), theirs.uniform_


def nanoseconds(call, count):
    """Of one call, from `count` of them."""
    numbers = range(count)
    begin = time.perf_counter_ns()
    for _ in numbers:
        call()
    return (time.perf_counter_ns() - begin) / count


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=20000)
    parser.add_argument("--json")
    options = parser.parse_args()

    import tcuda
    import torch

    torch.zeros(1, device="cuda")
    tcuda.init()
    rows = []
    print(f"{'call':38} {'tcuda':>24} {'torch.cuda':>24} {'ratio':>6}")
    for name, ours, theirs in pairs(tcuda, torch):
        figures = {"tcuda": [], "torch": []}
        first = max(nanoseconds(ours, 200), nanoseconds(theirs, 200))
        count = max(200, min(options.calls, int(1e8 / first)))  # 0.1 s a round at most
        for round_ in range(options.rounds):
            turns = [("tcuda", ours), ("torch", theirs)]
            for side, call in turns if round_ % 2 == 0 else reversed(turns):
                figures[side].append(nanoseconds(call, count))
                torch.cuda.synchronize()
        medians = {side: statistics.median(values) for side, values in figures.items()}
        shown = [f"{medians[side]:.0f} ({min(values):.0f} to {max(values):.0f})"
                 for side, values in figures.items()]
        ratio = medians["tcuda"] / medians["torch"]
        print(f"{name:38} {shown[0]:>24} {shown[1]:>24} {ratio:6.2f}", flush=True)
        rows.append({"call": name, "calls": count, **figures, "ratio": ratio})
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
