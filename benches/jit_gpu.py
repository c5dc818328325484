#!/usr/bin/env python3
"""How fast functions of elements are beside PyTorch's and CuPy's, on a GPU, in the same run.

  jit_gpu.py LIBRARY [--out FOLDER] [--calls PROGRAM] [--tune]

LIBRARY is libtcuda.so. Bandwidth: bytes read and written by the median of batches that take turns,
by events; a copy shows what memory allows. Calls: host time of one warm call of 1024 elements, from
here and, where --calls names the built benches/jit_call.c, from C. First calls: each in a process
of its own, whose context is there: cold with an empty cache, then from disk.
--tune instead tries other shapes of the kernel of a + b. The tables come last.
"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts/gpu"))
import jit_gpu

ADD = "template <typename T> T add(T x, T y) { return x + y; }"
TURNS, GIB = 9, 1 << 30


def timed(torch, work, repeats):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats / 1e3


def medians(torch, works, repeats):
    found = {what: [] for what in works}
    for turn in range(TURNS + 1):
        for what, work in works.items():
            seconds = timed(torch, work, repeats)
            if turn:  # the first one warms up
                found[what].append(seconds)
    return {what: statistics.median(seconds) for what, seconds in found.items()}


def bandwidth(torch, ours):
    rows = []
    handle = ours.create(ADD, None, {})
    theirs = torch.cuda.jiterator._create_jit_fn(ADD)
    for name, dtypes, shape in [
        ("float32 + float32", ("float32", "float32"), "flat"),
        ("bfloat16 + bfloat16", ("bfloat16", "bfloat16"), "flat"),
        ("float64 + float64", ("float64", "float64"), "flat"),
        ("uint8 + uint8", ("uint8", "uint8"), "flat"),
        ("float16 + float32", ("float16", "float32"), "flat"),
        ("float32 + a row", ("float32", "float32"), "row"),
        ("bfloat16 + a row", ("bfloat16", "bfloat16"), "row"),
        ("float32 + an odd row", ("float32", "float32"), "odd row"),
        ("float32 + a column", ("float32", "float32"), "column"),
        ("float32 + one", ("float32", "float32"), "one"),
        ("float32, each second", ("float32", "float32"), "second"),
        ("float32, a part", ("float32", "float32"), "part"),
        ("float32 transposed", ("float32", "float32"), "transposed"),
    ]:
        kinds = [getattr(torch, dtype) for dtype in dtypes]
        count = GIB // max(kind.itemsize for kind in kinds)
        side = 1 << (count.bit_length() // 2)
        a, b = (torch.ones(count, dtype=kind, device="cuda") for kind in kinds)
        if shape == "row":
            a, b = a.view(-1, side), b[:side]
        if shape == "odd row":
            a = a[:count // (side - 1) * (side - 1)].view(-1, side - 1)
            b = b[:side - 1]
        if shape == "column":
            a = a.view(-1, side)
            b = b[:a.shape[0], None]
        if shape == "one":
            b = b[:1]
        if shape == "second":
            a, b = a[::2], b[::2]
        if shape == "part":
            a, b = a.view(-1, side)[:, :side // 2], b.view(-1, side)[:, side // 2:]
        if shape == "transposed":
            a, b = a.view(-1, side).t(), b.view(side, -1)
        out = torch.empty(torch.broadcast_shapes(a.shape, b.shape), device="cuda",
                          dtype=torch.promote_types(*kinds))
        # Of every second element all bytes are moved.
        moved = sum(t.numel() * t.element_size() * (2 if shape == "second" and t is not out else 1)
                    for t in (a, b, out))
        other, copied = torch.empty(GIB, dtype=torch.uint8, device="cuda"), torch.empty(
            GIB, dtype=torch.uint8, device="cuda")
        works = {"ours": ours.prepared(handle, [a, b], [out]), "jiterator": lambda: theirs(a, b),
                 "torch.add": lambda: torch.add(a, b, out=out), "copy": lambda: copied.copy_(other)}
        try:
            import cupy
            kernel = cupy.ElementwiseKernel("A x, B y", "C z", "z = x + y", "add_cupy")
            arrays = [cupy.from_dlpack(t) for t in (a, b, out)]
            works["cupy"] = lambda: kernel(*arrays)
        except Exception as error:  # no CuPy, or a type that it has not
            print(f"cupy: {name}: {error}")
        rates = {what: (2 * GIB if what == "copy" else moved) / seconds / 1e9
                 for what, seconds in medians(torch, works, 8).items()}
        rows.append({"name": name, **rates})
        del a, b, out, works, other, copied
        torch.cuda.empty_cache()
    return rows


def calls(torch, ours):
    """Host time of one call, the queue being kept short."""
    handle = ours.create(ADD, None, {})
    theirs = torch.cuda.jiterator._create_jit_fn(ADD)
    a, b, out = (torch.ones(1024, device="cuda") for _ in range(3))
    works = {"ours, PyTorch's memory": ours.prepared(handle, [a, b], [out]),
             "jiterator": lambda: theirs(a, b), "torch.add": lambda: torch.add(a, b, out=out)}
    own = []
    for _ in range(3):
        pointer = ctypes.c_void_p()
        ours.call("tcuda_malloc", ctypes.c_size_t(4096), -1, None, ctypes.byref(pointer))
        view = jit_gpu.view_of(a)
        view.data = pointer
        own.append(view)
    inputs, outputs = (jit_gpu.Tensor * 2)(*own[:2]), (jit_gpu.Tensor * 1)(own[2])
    function, two, one = ours.tcuda.tcuda_jit_call, ctypes.c_size_t(2), ctypes.c_size_t(1)
    function.argtypes = None
    works["ours, own memory"] = lambda: function(handle, inputs, two, None, 0, outputs, one, None)
    version = ours.tcuda.tcuda_version
    works["an empty call of ctypes"] = lambda: version()
    found = {what: [] for what in works}
    for _ in range(40):
        for what, work in works.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(200):
                work()
            found[what].append((time.perf_counter() - start) / 200 * 1e6)
    return {what: min(times) for what, times in found.items()}


FIRST = """
import sys, time, ctypes
sys.path.insert(0, {scripts!r})
import jit_gpu
library = jit_gpu.Library({library!r})
views = []
for _ in range(3):
    pointer = ctypes.c_void_p()
    library.call("tcuda_malloc", ctypes.c_size_t(4096), -1, None, ctypes.byref(pointer))
    sizes = (ctypes.c_int64 * 1)(1024)
    views.append(jit_gpu.Tensor(pointer, (2, 0), 1, jit_gpu.Dtype(2, 32, 1), sizes, None, 0))
inputs, outputs = (jit_gpu.Tensor * 2)(*views[:2]), (jit_gpu.Tensor * 1)(views[2])
def first(code):
    handle = library.create(code, None, {{}})
    start = time.perf_counter()
    library.call("tcuda_jit_call", handle, inputs, ctypes.c_size_t(2), None, ctypes.c_size_t(0),
                 outputs, ctypes.c_size_t(1), None)
    return (time.perf_counter() - start) * 1e3
print(*(first("template <typename T> T add%d(T x, T y) {{ return x + y; }}" % i) for i in range(6)))
"""


def first_calls(library):
    """The first call of a process, which opens NVRTC, and the median of five others."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold", "from disk"):
            scripts = str(pathlib.Path(jit_gpu.__file__).parent)
            code = FIRST.format(scripts=scripts, library=str(library))
            environment = {**os.environ, "TCUDA_KERNEL_CACHE_PATH": folder}
            done = subprocess.run([sys.executable, "-c", code], env=environment,
                                  capture_output=True, text=True)
            if done.returncode:
                print(done.stderr)
                continue
            times = [float(word) for word in done.stdout.split()]
            rows[name] = (times[0], statistics.median(times[1:]))
    return rows


TUNED = """
template <int N> struct alignas(16) pack { float at[N]; };
template <int THREADS, int U, int HINT> __global__ void __launch_bounds__(THREADS)
add(unsigned long long n, const float *a, const float *b, float *c)
{
    const unsigned long long first = (unsigned long long)blockIdx.x * (THREADS * U * 4);
    float4 x[U], y[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
        const unsigned long long at = first + (u * THREADS + threadIdx.x) * 4;
        if (HINT) {
            x[u] = __ldcs((const float4 *)(a + at));
            y[u] = __ldcs((const float4 *)(b + at));
        } else {
            x[u] = *(const float4 *)(a + at);
            y[u] = *(const float4 *)(b + at);
        }
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
        const unsigned long long at = first + (u * THREADS + threadIdx.x) * 4;
        float4 z = { x[u].x + y[u].x, x[u].y + y[u].y, x[u].z + y[u].z, x[u].w + y[u].w };
        if (HINT) __stcs((float4 *)(c + at), z); else *(float4 *)(c + at) = z;
    }
}
"""


class Launch(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("grid", ctypes.c_uint32 * 3),
                ("block", ctypes.c_uint32 * 3), ("shared_bytes", ctypes.c_uint32),
                ("accesses", ctypes.c_void_p)]


def tune(torch, ours):
    count = GIB // 4
    a, b, out = (torch.ones(count, device="cuda") for _ in range(3))
    works = {"copy": lambda: out.copy_(a)}
    n = ctypes.c_uint64(count)
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (a, b, out)]
    args = (ctypes.c_void_p * 4)(*(ctypes.addressof(value) for value in (n, *pointers)))
    for threads in (128, 256, 512):
        for unroll in (1, 2, 4, 8):
            for hint in (0, 1):
                kernel = ctypes.c_void_p()
                name = f"add<{threads}, {unroll}, {hint}>"
                ours.call("tcuda_kernel_compile", TUNED.encode(), name.encode(), None,
                          ctypes.byref(kernel))
                shape = Launch(ctypes.sizeof(Launch))
                shape.grid[0], shape.block[0] = count // (threads * unroll * 4), threads
                works[name] = lambda kernel=kernel, shape=shape: ours.call(
                    "tcuda_kernel_launch", kernel, ctypes.byref(shape), args, ctypes.c_size_t(4),
                    None)
    seconds = medians(torch, works, 8)
    for name, time_ in sorted(
            seconds.items(), key=lambda item: item[1] if item[0] != "copy" else 0):
        moved = 2 * GIB if name == "copy" else 3 * GIB
        print(f"{name:18}{moved / time_ / 1e9:8.0f} GB/s")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, help="folder for jit_speed.json")
    parser.add_argument("--calls", type=pathlib.Path, help="the built benches/jit_call.c")
    parser.add_argument("--tune", action="store_true", help="other shapes of one kernel")
    options = parser.parse_args()
    first = {} if options.tune else first_calls(options.library.resolve())
    import torch

    torch.zeros(1, device="cuda")
    ours = jit_gpu.Library(options.library)
    if options.tune:
        return tune(torch, ours)
    rows, host = bandwidth(torch, ours), calls(torch, ours)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        record = {"torch": torch.__version__, "device": torch.cuda.get_device_name(),
                  "bandwidth": rows, "calls_us": host, "first_ms": first}
        (options.out / "jit_speed.json").write_text(json.dumps(record, indent=1))
    names = ("ours", "jiterator", "torch.add", "cupy", "copy")
    print(f"{'GB/s':22}" + "".join(f"{name:>11}" for name in names) + f"{'ours/copy':>11}")
    for row in rows:
        cells = "".join(f"{row[name]:11.0f}" if name in row else f"{'':11}" for name in names)
        print(f"{row['name']:22}{cells}{row['ours'] / row['copy']:11.3f}")
    for what, microseconds in host.items():
        print(f"one call, {what:28}{microseconds:8.2f} us")
    if options.calls:
        print("calls from C", flush=True)
        subprocess.run(
            [options.calls.resolve()], env={**os.environ, "TCUDA_BACKEND": "cuda"}, check=True)
    for what, (whole, later) in first.items():
        print(f"first call {what:10} with opening NVRTC {whole:8.2f} ms, then {later:8.2f} ms")


if __name__ == "__main__":
    main()
