#!/usr/bin/env python3
"""Compares fills with PyTorch's, byte for byte, on a GPU.

  random_gpu.py LIBRARY [--out FOLDER] [--rounds N] [--only TEXT]

LIBRARY is libtcuda.so. For every distribution, its parameters, type, shape, seed and offset,
PyTorch's generator and one of ours begin alike; both fill a view of their own memory, and the
memory, around the view too, and the offsets afterwards must be the same. Then chains of fills on
one generator, whose state goes back and forth. The table comes last; exit status 1: something
differs.
"""

import argparse
import collections
import ctypes
import json
import pathlib
import random
import struct
import sys
import time

MIN64 = -(1 << 63)
FLOATS = ("float32", "float64", "float16", "bfloat16")
SIGNED = ("int8", "int16", "int32", "int64")
INTEGERS = ("uint8", *SIGNED)
UNSIGNED = ("uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")


class Dtype(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Place(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("ordinal", ctypes.c_int32)]


class Tensor(ctypes.Structure):
    """tcuda_tensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", Place),
        ("ndim", ctypes.c_int32),
        ("dtype", Dtype),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]

    @classmethod
    def of(cls, tensor):
        name = str(tensor.dtype).removeprefix("torch.")
        code = {"i": 0, "u": 1, "f": 2}.get(name[0], 6)
        code = {"bfloat16": 4, "bool": 6, "complex64": 5, "complex128": 5}.get(name, code)
        bits = 8 * tensor.element_size()
        many = ctypes.c_int64 * max(tensor.dim(), 1)
        view = cls(
            data=tensor.data_ptr(),
            device=Place(2, tensor.device.index or 0),
            ndim=tensor.dim(),
            dtype=Dtype(code, bits, 1),
            shape=many(*tensor.shape),
            strides=many(*tensor.stride()),
            byte_offset=0,
        )
        return view


class Library:
    """Fills through the C API, from a generator of its own."""

    def __init__(self, path):
        self.tcuda = ctypes.CDLL(str(path))
        self.generator = ctypes.c_void_p()
        self.call("tcuda_generator_create", 0, ctypes.byref(self.generator))

    def knows(self, name, dtype):
        return True

    def call(self, function, *arguments):
        status = getattr(self.tcuda, function)(*arguments)
        if status:
            self.failed(function, status)

    def failed(self, function, status):
        self.tcuda.tcuda_last_error.restype = ctypes.c_char_p
        raise RuntimeError(f"{function}: {status}: {self.tcuda.tcuda_last_error().decode()}")

    def set_state(self, seed, offset):
        self.call("tcuda_generator_state_set", self.generator, struct.pack("<QQ", seed, offset))

    def state(self):
        state = ctypes.create_string_buffer(16)
        self.call("tcuda_generator_state_get", self.generator, state)
        return struct.unpack("<QQ", state.raw)

    def prepared(self, name, arguments, tensor):
        """A fill that can be called over and over, with as little of Python as can be."""
        if name == "integers_full":
            name, arguments = "integers_from", (MIN64,)
        function = getattr(self.tcuda, f"tcuda_random_{name}")
        view = Tensor.of(tensor)
        kind = ctypes.c_int64 if name.startswith("integers") else ctypes.c_double
        if name == "bernoulli_tensor":
            p = Tensor.of(arguments[0])
            passed = [ctypes.byref(p)]
        else:
            p, passed = None, [kind(argument) for argument in arguments]
        passed = (ctypes.byref(view), *passed, self.generator, None)

        def call(kept=(view, p, tensor, arguments)):
            status = function(*passed)
            if status:
                self.failed(name, status)

        return call

    def fill(self, name, arguments, tensor):
        self.prepared(name, arguments, tensor)()


def torch_fill(name, arguments, tensor, generator):
    """The same by PyTorch."""
    if name == "integers_all":
        return tensor.random_(generator=generator)
    if name == "integers_full":
        return tensor.random_(MIN64, None, generator=generator)
    if name == "integers_from":
        return tensor.random_(arguments[0], None, generator=generator)
    if name == "integers":
        return tensor.random_(*arguments, generator=generator)
    if name == "bernoulli_tensor":
        return tensor.bernoulli_(arguments[0], generator=generator)
    return getattr(tensor, name + "_")(*arguments, generator=generator)


def set_torch_state(torch, generator, seed, offset):
    state = torch.tensor(list(struct.pack("<QQ", seed, offset)), dtype=torch.uint8)
    generator.set_state(state)


def torch_state(generator):
    return struct.unpack("<QQ", bytes(generator.get_state().tolist()))


def fills():
    """(name, arguments, types)."""
    yield "uniform", (0.0, 1.0), FLOATS
    yield "uniform", (-3.7, 11.3), FLOATS
    yield "uniform", (1e-3, 2e-3), FLOATS
    yield "uniform", (2.5, 2.5), FLOATS
    yield "uniform", (-1.0, 2.0), COMPLEX
    yield "normal", (0.5, 3.0), COMPLEX
    yield "normal", (0.0, 1.0), FLOATS
    yield "normal", (-12.25, 0.01), FLOATS
    yield "normal", (0.1, 30.0), FLOATS
    yield "normal", (5.0, 0.0), FLOATS
    yield "log_normal", (1.0, 2.0), FLOATS
    yield "log_normal", (-3.0, 0.5), FLOATS
    yield "log_normal", (0.0, 20.0), FLOATS
    yield "exponential", (1.0,), FLOATS
    yield "exponential", (0.037,), FLOATS
    yield "exponential", (1e5,), FLOATS
    yield "cauchy", (0.0, 1.0), FLOATS
    yield "cauchy", (-2.5, 0.3), FLOATS
    yield "geometric", (0.3,), FLOATS + INTEGERS
    yield "geometric", (0.999,), FLOATS + INTEGERS
    yield "geometric", (1e-4,), FLOATS + INTEGERS
    yield "geometric", (1e-9,), FLOATS + INTEGERS
    yield "bernoulli", (0.5,), FLOATS + INTEGERS + ("bool",)
    yield "bernoulli", (0.0,), FLOATS + INTEGERS + ("bool",)
    yield "bernoulli", (1.0,), FLOATS + INTEGERS + ("bool",)
    yield "bernoulli", (1e-3,), FLOATS + INTEGERS + ("bool",)
    yield "bernoulli_tensor", ("float32",), FLOATS + INTEGERS + ("bool",)
    yield "bernoulli_tensor", ("float64",), FLOATS + INTEGERS + ("bool",)
    yield "bernoulli_tensor", ("float16",), ("float32", "bool", "float64")
    yield "bernoulli_tensor", ("bfloat16",), ("float32", "bool", "float64")
    yield "integers", (0, 100), FLOATS + INTEGERS + UNSIGNED
    yield "integers", (-5, 5), FLOATS + SIGNED
    yield "integers", (0, 1), FLOATS + INTEGERS + ("bool",)
    yield "integers", (0, 2), FLOATS + INTEGERS + UNSIGNED + ("bool",)
    yield "integers", (0, 65535), (
        "uint16", "uint32", "uint64", "int32", "int64", "float32", "float64")
    yield "integers", (0, (1 << 28) - 1), (
        "int32", "int64", "uint32", "uint64", "float64", "bfloat16")
    yield "integers", (0, 1 << 28), ("int32", "int64", "uint32", "uint64", "float64", "bfloat16")
    yield "integers", (-(1 << 31), 1 << 31), ("int32", "int64", "float64", "bfloat16")
    yield "integers", (0, (1 << 32) - 1), ("uint32", "uint64", "int64", "float64")
    yield "integers", (0, 1 << 40), ("int64", "uint64", "float64", "bfloat16")
    yield "integers", (-(1 << 62), (1 << 62) + 12345), ("int64", "bfloat16")
    yield "integers_from", (-7,), FLOATS + SIGNED
    yield "integers_from", (1,), FLOATS + INTEGERS + UNSIGNED + ("bool",)
    yield "integers_from", (-(1 << 62),), ("int64", "float32", "float64", "bfloat16")
    yield "integers", (-65000, 65500), ("float16", "bfloat16", "float32")
    yield "integers", (-12345678901, 98765432109), ("float32", "bfloat16", "float64", "int64")
    yield "integers_all", (), FLOATS + INTEGERS + ("bool",)
    yield "integers_full", (), ("int64", "float64", "float32", "bfloat16")


def numels(threads):
    """Around what matters: vectors, blocks, PyTorch's threads, and their rounds."""
    yield from (1, 2, 3, 4, 5, 7, 31, 255, 256, 257, 1000, 1023, 4097, 65_537)
    yield from (threads - 1, threads, threads + 1, 2 * threads, 2 * threads + 1, 2 * threads + 3)
    yield from (4 * threads - 1, 4 * threads, 4 * threads + 1, 9 * threads + 5, 30 * threads + 77)


def views(base, numel):
    """Views of a tensor of one dimension, which has four times as many elements."""
    yield "flat", lambda a: a[:numel]
    yield "from 1", lambda a: a[1 : 1 + numel]
    yield "from 3", lambda a: a[3 : 3 + numel]
    yield "every second", lambda a: a[: 2 * numel : 2]
    rows = max(1, int(numel**0.5))
    columns = max(1, numel // rows)
    yield "transposed", lambda a: a[: rows * columns].view(rows, columns).t()
    yield "columns", lambda a: a[: rows * (columns + 3)].view(rows, columns + 3)[:, 1 : 1 + columns]
    yield "gaps, transposed", lambda a: a[: rows * (columns + 3)].view(rows, columns + 3)[:, 2:].t()
    side = max(1, int(numel ** (1 / 3)))
    yield "permuted", lambda a: a[: side**3].view(side, side, side).permute(2, 0, 1)
    yield "channels last", lambda a: (
        a[: 2 * 3 * side * side].view(2, side, side, 3).permute(0, 3, 1, 2)
    )
    steps = side * side * 4 * side
    yield "steps", lambda a: a[:steps].view(side, 2 * side, 2 * side)[:, ::2, 1::2]
    yield "one element", lambda a: a[5:6].view(())


class Comparison:
    def __init__(self, torch, ours, rounds):
        self.torch, self.ours, self.rounds = torch, ours, rounds
        self.theirs = torch.Generator(device="cuda")
        properties = torch.cuda.get_device_properties(0)
        per_processor = properties.max_threads_per_multi_processor // 256
        self.threads = properties.multi_processor_count * per_processor * 256
        self.random = random.Random(1)
        self.rows = collections.OrderedDict()
        self.wrong = []
        self.refused = {}  # by PyTorch
        self.memory = {}

    def buffers(self, dtype, count):
        """Two alike, of a type, with something in them."""
        torch = self.torch
        kind = getattr(torch, dtype)
        size = kind.itemsize
        if "bytes" not in self.memory or self.memory["bytes"][0].numel() < count * size:
            self.memory["bytes"] = [
                torch.empty(count * size, dtype=torch.uint8, device="cuda") for _ in range(2)
            ]
        pair = [buffer[: count * size] for buffer in self.memory["bytes"]]
        for buffer in pair:
            buffer.fill_(0x5A)
        return pair, [buffer.view(kind) for buffer in pair]

    def start(self):
        seed = self.random.choice(
            [0, 42, 67280421310721, self.random.getrandbits(64), (1 << 64) - 1])
        offset = self.random.choice([0, 4, 1 << 20, (1 << 34) - 8, 4 * self.random.getrandbits(40)])
        set_torch_state(self.torch, self.theirs, seed, offset)
        self.ours.set_state(seed, offset)
        return seed, offset

    def probabilities(self, dtype, view):
        """As the view's shape; sometimes with a stride of 0 or another order."""
        torch = self.torch
        kind = self.random.randrange(3)
        shape = list(view.shape)
        if kind == 1 and view.dim() > 1:
            shape[self.random.randrange(view.dim())] = 1
        p = torch.rand(shape, device="cuda", dtype=torch.float32).to(getattr(torch, dtype))
        if kind == 2 and view.dim() == 2:
            p = p.t().contiguous().t()
        return p.expand(view.shape)

    def one(self, name, arguments, dtype, numel, how, cut):
        pair, (a, b) = self.buffers(dtype, 4 * numel + 16)
        mine, own = cut(a), cut(b)
        if mine.numel() == 0:
            return
        if name == "bernoulli_tensor":
            arguments = (self.probabilities(arguments[0], mine),)
        seed, offset = self.start()
        try:
            torch_fill(name, arguments, own, self.theirs)
        except (RuntimeError, NotImplementedError) as error:
            self.refused[name, dtype] = str(error).splitlines()[0]
            return
        row = self.rows.setdefault((name, dtype), [0, 0, 0])
        try:
            self.ours.fill(name, arguments, mine)
        except (RuntimeError, AttributeError) as error:
            return self.failed(row, name, arguments, dtype, numel, how, seed, offset, str(error))
        row[0] += 1
        row[1] += mine.numel()
        if not self.torch.equal(*pair):
            where = (pair[0] != pair[1]).nonzero()[:4, 0].tolist()
            many = int((pair[0] != pair[1]).sum())
            bits = [[hex(x[i].item()) for i in where] for x in pair]
            what = f"{many} bytes, at {where}: {bits[0]}, PyTorch {bits[1]}"
            self.failed(row, name, arguments, dtype, numel, how, seed, offset, what)
        elif self.ours.state() != torch_state(self.theirs):
            what = f"state {self.ours.state()}, PyTorch {torch_state(self.theirs)}"
            self.failed(row, name, arguments, dtype, numel, how, seed, offset, what)

    def failed(self, row, name, arguments, dtype, numel, how, seed, offset, what):
        row[2] += 1
        arguments = [str(getattr(argument, "dtype", argument)) for argument in arguments]
        case = f"{name}{tuple(arguments)} {dtype} {numel} {how} seed {seed:#x} offset {offset}"
        self.wrong.append(f"{case}: {what}")
        if len(self.wrong) <= 40:
            print(self.wrong[-1], flush=True)

    def all(self, only):
        sizes = list(numels(self.threads))
        for name, arguments, dtypes in fills():
            if only not in name:
                continue
            for dtype in dtypes:
                if not self.ours.knows(name, dtype):
                    continue
                for _ in range(self.rounds):
                    numel = self.random.choice(sizes)
                    self.one(name, arguments, dtype, numel, "flat", lambda a: a[:numel])
                numel = self.random.choice([n for n in sizes if n < 3 * self.threads])
                for how, cut in views(None, numel):
                    self.one(name, arguments, dtype, numel, how, cut)

    def chain(self, steps):
        """One generator through many fills; its state is read, set and exchanged on the way."""
        torch = self.torch
        row = self.rows.setdefault(("chain", "mixed"), [0, 0, 0])
        kinds = [fill for fill in fills() if fill[0] != "bernoulli_tensor"]
        seed, offset = self.start()
        kept = None
        for step in range(steps):
            name, arguments, dtypes = self.random.choice(kinds)
            dtype, numel = self.random.choice(dtypes), self.random.randrange(1, 3 * self.threads)
            if (name, dtype) in self.refused or not self.ours.knows(name, dtype):
                continue
            pair, (a, b) = self.buffers(dtype, numel)
            torch_fill(name, arguments, b, self.theirs)
            self.ours.fill(name, arguments, a)
            row[0] += 1
            row[1] += numel
            if not torch.equal(*pair) or self.ours.state() != torch_state(self.theirs):
                what = f"step {step}"
                self.failed(row, name, arguments, dtype, numel, "chain", seed, offset, what)
                return
            act = self.random.randrange(8)
            if act == 0:
                kept = self.ours.state()
            elif act == 1 and kept:  # ours to both
                set_torch_state(torch, self.theirs, *kept)
                self.ours.set_state(*kept)
            elif act == 2:  # theirs to ours, after what only they drew
                torch.rand(1000, device="cuda", generator=self.theirs)
                self.ours.set_state(*torch_state(self.theirs))

    def large(self):
        """More elements than 32 bits number: PyTorch splits them."""
        for name, arguments, dtype in (
            ("integers", (0, 100), "uint8"),
            ("bernoulli", (0.25,), "bool"),
            ("uniform", (0.0, 1.0), "float16"),
        ):
            numel = (1 << 31) + 4099
            self.memory.clear()
            pair, (a, b) = self.buffers(dtype, numel)
            row = self.rows.setdefault((name + ", split", dtype), [0, 0, 0])
            seed, offset = self.start()
            torch_fill(name, arguments, b, self.theirs)
            self.ours.fill(name, arguments, a)
            row[0] += 1
            row[1] += numel
            if not self.torch.equal(*pair) or self.ours.state() != torch_state(self.theirs):
                self.failed(row, name, arguments, dtype, numel, "split", seed, offset, "differs")
        self.memory.clear()


def report(comparison, out, facts):
    for (name, dtype), why in comparison.refused.items():
        print(f"PyTorch refuses {name} of {dtype}: {why}")
    total = [sum(row[i] for row in comparison.rows.values()) for i in range(3)]
    print(f"{'fill':24}{'type':10}{'combinations':>13}{'elements':>14}{'wrong':>7}")
    for (name, dtype), (count, elements, wrong) in comparison.rows.items():
        print(f"{name:24}{dtype:10}{count:>13}{elements:>14}{wrong:>7}")
    print(f"{'all':34}{total[0]:>13}{total[1]:>14}{total[2]:>7}")
    if out:
        out.mkdir(parents=True, exist_ok=True)
        rows = [
            {"fill": name, "type": dtype, "combinations": row[0], "elements": row[1],
             "wrong": row[2]}
            for (name, dtype), row in comparison.rows.items()
        ]
        text = json.dumps({**facts, "rows": rows, "wrong": comparison.wrong[:1000]}, indent=1)
        (out / "random.json").write_text(text + "\n")
    return 1 if total[2] else 0


def main(library=Library):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, help="folder for random.json")
    parser.add_argument("--rounds", type=int, default=6, help="sizes for each fill and type")
    parser.add_argument("--only", default="", help="fills with this in their names")
    options = parser.parse_args()
    import torch

    torch.zeros(1, device="cuda")
    begin = time.time()
    comparison = Comparison(torch, library(options.library), options.rounds)
    comparison.all(options.only)
    if not options.only:
        for _ in range(5):
            comparison.chain(100)
        if library is Library:
            comparison.large()
    facts = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name()}
    facts["seconds"] = round(time.time() - begin, 1)
    status = report(comparison, options.out, facts)
    print(facts)
    return status


if __name__ == "__main__":
    sys.exit(main())
