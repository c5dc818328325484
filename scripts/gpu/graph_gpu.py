#!/usr/bin/env python3
"""Compares graphs with PyTorch's on a GPU: the random numbers that replays give, and the memory
that captures hold.

  graph_gpu.py LIBRARY [--out FOLDER] [--replays N]

LIBRARY is libtcuda.so. Each program of fills is captured by both, from the same state of the
default generator; after each replay the bytes and the generators' states must be the same. In
between both fill eagerly, and seeds and offsets are set. Then eight programs that allocate are
captured into one
pool. The table comes last; exit status 1: something differs, 77: no PyTorch or no GPU.
"""

import argparse
import ctypes
import json
import os
import pathlib
import random
import subprocess
import sys

from random_gpu import Library, Tensor, set_torch_state, torch_fill, torch_state

SKIPPED = 77
MIB = 1 << 20

# (name, arguments, type, numel)
PROGRAMS = {
    "one uniform": [("uniform", (0.0, 1.0), "float32", 1000)],
    "uniform, more than a round": [("uniform", (-1.0, 2.0), "float32", 1_200_001)],
    "three distributions": [
        ("normal", (0.0, 1.0), "float32", 4097),
        ("uniform", (0.0, 1.0), "bfloat16", 270_337),
        ("bernoulli", (0.3,), "bool", 65_537),
    ],
    "doubles": [("normal", (1.0, 2.0), "float64", 540_675), ("exponential", (0.5,), "float64", 7)],
    "integers": [
        ("integers", (0, 100), "int32", 300_000),
        ("integers", (-(1 << 40), 1 << 40), "int64", 300_000),
        ("integers_all", (), "int64", 31),
    ],
    "the others": [
        ("log_normal", (1.0, 2.0), "float32", 1_081_345),
        ("cauchy", (0.0, 1.0), "float16", 999),
        ("geometric", (0.3,), "int64", 257),
    ],
    "forty small": [("uniform", (0.0, 1.0), "float32", 1 + 7 * i) for i in range(40)],
}


class Graphs(Library):
    """Captures and replays through the C API, with the default generator."""

    def __init__(self, path):
        self.tcuda = ctypes.CDLL(str(path))
        self.generator = ctypes.c_void_p()
        self.call("tcuda_generator_default", 0, ctypes.byref(self.generator))
        self.stream = ctypes.c_void_p()
        self.call("tcuda_stream_create", 0, 0, ctypes.byref(self.stream))

    def capture(self, body, pool=None):
        graph, before, device = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int32()
        self.call("tcuda_graph_create", 0, ctypes.byref(graph))
        self.call("tcuda_stream_exchange", self.stream, ctypes.byref(before), ctypes.byref(device))
        self.call("tcuda_graph_capture_begin", graph, None, pool, 0)
        body()
        self.call("tcuda_graph_capture_end", graph)
        self.call("tcuda_stream_exchange", before, ctypes.byref(ctypes.c_void_p()),
                  ctypes.byref(device))
        return graph

    def replay(self, graph):
        self.call("tcuda_graph_replay", graph, self.stream)

    def wait(self):
        self.call("tcuda_device_synchronize", 0)

    def reserved(self):
        size = ctypes.c_size_t()
        self.call("tcuda_memory_reserved", 0, ctypes.byref(size))
        return size.value


def compare_program(torch, ours, steps, replays, seed):
    """Differing replays of one program."""
    choose = random.Random(seed)
    theirs = [torch.zeros(numel, dtype=getattr(torch, kind), device="cuda")
              for _, _, kind, numel in steps]
    own = [tensor.clone() for tensor in theirs]
    torch_generator = torch.cuda.default_generators[0]
    state = (choose.getrandbits(64), 4 * choose.randrange(1 << 20))
    set_torch_state(torch, torch_generator, *state)
    ours.set_state(*state)
    theirs_graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(theirs_graph):
        for (name, arguments, _, _), tensor in zip(steps, theirs):
            torch_fill(name, arguments, tensor, torch_generator)

    def body():
        for (name, arguments, _, _), tensor in zip(steps, own):
            ours.fill(name, arguments, tensor)

    graph = ours.capture(body)
    differing = 0
    eager = [torch.zeros(5000, device="cuda") for _ in range(2)]
    for turn in range(replays):
        if turn % 10 == 3:
            torch_fill("normal", (0.0, 1.0), eager[0], torch_generator)
            ours.fill("normal", (0.0, 1.0), eager[1])
        if turn % 10 == 7:
            state = (choose.getrandbits(64), 4 * choose.getrandbits(40))
            set_torch_state(torch, torch_generator, *state)
            ours.set_state(*state)
        theirs_graph.replay()
        ours.replay(graph)
        torch.cuda.synchronize()
        ours.wait()
        same = all(torch.equal(a.view(torch.uint8), b.view(torch.uint8))
                   for a, b in zip(theirs, own))
        same &= torch.equal(*eager) and torch_state(torch_generator) == ours.state()
        differing += not same
    ours.call("tcuda_graph_destroy", graph)
    return differing


def sizes_of(index):
    """What the program of one capture allocates: layers, whose results live to its end."""
    choose = random.Random(index)
    return [choose.choice((1, 2, 3, 5, 8, 13)) * choose.choice((4096, 300_000, MIB))
            for _ in range(60)]


def capture_torch():
    """Bytes that eight captures hold; run in a process of its own."""
    import torch

    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before, pool, graphs = torch.cuda.memory_reserved(), torch.cuda.graph_pool_handle(), []
    for index in range(8):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            live = []
            for size in sizes_of(index):
                live.append(torch.zeros(size, dtype=torch.uint8, device="cuda"))
                if len(live) > 4:
                    del live[len(live) % 4]
            live.clear()
        graphs.append(graph)
    print(torch.cuda.memory_reserved() - before)


def capture_ours(ours):
    ours.call("tcuda_memory_empty_cache")
    before, pool, graphs = ours.reserved(), ctypes.c_void_p(), []
    ours.call("tcuda_graph_pool_handle", ctypes.byref(pool))
    zero = ctypes.c_uint8(0)

    def body(index):
        live = []
        for size in sizes_of(index):
            block = ctypes.c_void_p()
            ours.call("tcuda_malloc", ctypes.c_size_t(size), -1, None, ctypes.byref(block))
            ours.call("tcuda_fill", block, ctypes.byref(zero), ctypes.c_size_t(1),
                      ctypes.c_size_t(size), None)
            live.append(block)
            if len(live) > 4:
                ours.call("tcuda_free", live.pop(len(live) % 4))
        for block in live:
            ours.call("tcuda_free", block)

    for index in range(8):
        graphs.append(ours.capture(lambda: body(index), pool))
    held = ours.reserved() - before
    for graph in graphs:
        ours.replay(graph)
    ours.wait()
    for graph in graphs:
        ours.call("tcuda_graph_destroy", graph)
    ours.call("tcuda_mem_pool_destroy", pool)
    ours.call("tcuda_memory_empty_cache")
    return held, ours.reserved() - before


def held_by_torch(settings):
    environment = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=settings, PYTORCH_ALLOC_CONF=settings)
    command = [sys.executable, __file__, "--capture-torch", "-"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True,
                          timeout=120)
    return int(done.stdout.split()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("library")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--replays", type=int, default=100)
    parser.add_argument("--capture-torch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        return SKIPPED
    if not torch.cuda.is_available():
        return SKIPPED
    if options.capture_torch:
        capture_torch()
        return 0
    torch.zeros(1, device="cuda")
    ours = Graphs(pathlib.Path(options.library).resolve())
    rows, failed = [], 0
    for number, (name, steps) in enumerate(PROGRAMS.items()):
        differing = compare_program(torch, ours, steps, options.replays, number)
        failed += differing
        rows.append({"program": name, "fills": len(steps), "replays": options.replays,
                     "differ": differing})
    held, left = capture_ours(ours)
    memory = {"tcuda": held, "left_by_tcuda": left, "torch": held_by_torch("backend:native")}
    memory["torch_expandable"] = held_by_torch("expandable_segments:True")
    failed += left > 0 or held > min(memory["torch"], memory["torch_expandable"])
    options.out.mkdir(parents=True, exist_ok=True)
    about = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(0)}
    result = {**about, "programs": rows, "memory_of_8_captures": memory}
    (options.out / "graph.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"{'program':<28}{'fills':>6}{'replays':>9}{'differ':>8}")
    for row in rows:
        print(f"{row['program']:<28}{row['fills']:>6}{row['replays']:>9}{row['differ']:>8}")
    for name, size in memory.items():
        print(f"8 captures, {name:<20}{size / MIB:>10.2f} MiB")
    print(about)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
