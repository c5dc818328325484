#!/usr/bin/env python3
"""Compares every kernel of the library on a GPU with the same kernel on the simulated one.

  kernels_gpu.py FOLDER [--out FILE]

FOLDER has libtcuda.so and libtcuda_sim.so. The same calls run with TCUDA_BACKEND=cuda and =sim:
fills, random numbers of every distribution and type, contiguous and strided, and, where there are
two devices, sums and copies of collectives. All bytes are compared. Numbers that approximate
instructions compute may differ in their last places, and the table says in how many. Exit status
1: another byte differs.
"""

import argparse
import ctypes
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

TYPES = {  # code and bits of DLPack
    "float16": (2, 16), "bfloat16": (4, 16), "float32": (2, 32), "float64": (2, 64),
    "uint8": (1, 8), "int8": (0, 8), "int16": (0, 16), "int32": (0, 32), "int64": (0, 64),
    "uint16": (1, 16), "uint32": (1, 32), "uint64": (1, 64), "bool": (6, 8),
    "complex64": (5, 64), "complex128": (5, 128),
}
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
# Distributions of which some steps are approximate instructions.
APPROXIMATE = ("normal", "log_normal", "exponential", "cauchy", "geometric")
SIZE = 10007


class Dtype(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    """tcuda_tensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
        ("ordinal", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", Dtype),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


def tensor(data, name, shape, strides, device=0):
    code, bits = TYPES[name]
    many = ctypes.c_int64 * len(shape)
    return Tensor(data, 2, device, len(shape), Dtype(code, bits, 1), many(*shape), many(*strides))


class Library:
    """The library, and what its calls left in memory, by name."""

    def __init__(self, path):
        self.tcuda = ctypes.CDLL(str(path))
        self.tcuda.tcuda_last_error.restype = ctypes.c_char_p
        self.results = {}

    def call(self, function, *arguments):
        status = getattr(self.tcuda, function)(*arguments)
        if status:
            raise RuntimeError(f"{function}: {status}: {self.tcuda.tcuda_last_error().decode()}")

    def memory(self, content, device=0):
        """A block with this content."""
        block = ctypes.c_void_p()
        self.call("tcuda_malloc", ctypes.c_size_t(len(content)), device, None, ctypes.byref(block))
        self.call("tcuda_copy", block, content, ctypes.c_size_t(len(content)), None)
        self.call("tcuda_device_synchronize", device)
        return block.value

    def keep(self, name, block, size, device=0):
        """Keeps the content of a block, and frees it."""
        content = ctypes.create_string_buffer(size)
        self.call("tcuda_device_synchronize", device)
        self.call("tcuda_copy", content, ctypes.c_void_p(block), ctypes.c_size_t(size), None)
        self.call("tcuda_device_synchronize", device)
        self.call("tcuda_free", ctypes.c_void_p(block))
        self.results[name] = content.raw


def distributions():
    """(name, arguments, types)."""
    yield "uniform", (-3.7, 11.3), FLOATS + ("complex64", "complex128")
    yield "normal", (0.5, 3.0), FLOATS + ("complex64", "complex128")
    yield "log_normal", (1.0, 0.5), FLOATS
    yield "exponential", (0.7,), FLOATS
    yield "cauchy", (-2.5, 0.3), FLOATS
    yield "geometric", (0.3,), FLOATS + INTEGERS
    yield "bernoulli", (0.25,), FLOATS + INTEGERS + ("bool",)
    yield "integers", (3, 100), FLOATS + INTEGERS + ("uint16", "uint32", "uint64")
    yield "integers", (0, 2), ("bool",)
    yield "integers", (0, 1 << 40), ("int64", "uint64", "float64")
    yield "integers_all", (), FLOATS + INTEGERS + ("bool",)
    yield "integers_from", (-(1 << 63),), ("int64",)


def fills(library):
    for width in range(1, 17):
        pattern = bytes(range(7, 7 + width))
        block = library.memory(b"\x55" * (width * 1031 + 16))
        library.call("tcuda_fill", ctypes.c_void_p(block + width), pattern, ctypes.c_size_t(width),
                     ctypes.c_size_t(1021), None)
        library.keep(f"fill of {width} bytes", block, width * 1031 + 16)


def randoms(library):
    generator = ctypes.c_void_p()
    library.call("tcuda_generator_create", 0, ctypes.byref(generator))
    for name, arguments, types in distributions():
        for of in types:
            size = TYPES[of][1] // 8
            for shape, strides in (((SIZE,), (1,)), ((101, 37), (41, 1)), ((5, 7, 11), (1, 5, 36))):
                state = struct.pack("<QQ", 1234567, 64)
                library.call("tcuda_generator_state_set", generator, state)
                extent = 1 + sum((n - 1) * step for n, step in zip(shape, strides))
                block = library.memory(b"\x55" * (extent * size))
                view = tensor(block, of, shape, strides)
                kind = ctypes.c_int64 if name.startswith("integers") else ctypes.c_double
                library.call(f"tcuda_random_{name}", ctypes.byref(view),
                             *[kind(argument) for argument in arguments], generator, None)
                library.keep(f"{name}{arguments} {of} {shape}", block, extent * size)
    for of in FLOATS + INTEGERS + ("bool",):
        size = TYPES[of][1] // 8
        library.call("tcuda_generator_state_set", generator, struct.pack("<QQ", 99, 0))
        chances = library.memory(struct.pack(f"<{SIZE}d", *[i / SIZE for i in range(SIZE)]))
        block = library.memory(b"\x55" * (SIZE * size))
        view, p = tensor(block, of, (SIZE,), (1,)), tensor(chances, "float64", (SIZE,), (1,))
        library.call("tcuda_random_bernoulli_tensor", ctypes.byref(view), ctypes.byref(p),
                     generator, None)
        library.keep(f"bernoulli of each {of}", block, SIZE * size)
        library.call("tcuda_free", ctypes.c_void_p(chances))


def numbers(of, count, seed):
    """Bytes of finite numbers of a type."""
    source = random.Random(f"{of} {seed}")
    if of == "float32":
        return struct.pack(f"<{count}f", *[source.gauss(0, 100) for _ in range(count)])
    if of == "float64":
        return struct.pack(f"<{count}d", *[source.gauss(0, 100) for _ in range(count)])
    if of == "float16":
        return struct.pack(f"<{count}e", *[source.gauss(0, 100) for _ in range(count)])
    if of == "bfloat16":
        wide = struct.pack(f"<{count}f", *[source.gauss(0, 100) for _ in range(count)])
        return b"".join(wide[4 * i + 2:4 * i + 4] for i in range(count))
    if of == "bool":
        return bytes(source.getrandbits(1) for _ in range(count))
    return source.randbytes(count * TYPES[of][1] // 8)


def collectives(library):
    count = ctypes.c_int32()
    library.call("tcuda_device_count", ctypes.byref(count))
    if count.value < 2:
        return
    shape, dense, spread = (67, 33), (33, 1), (1, 70)
    for of in FLOATS + INTEGERS + ("bool", "uint16", "uint32", "uint64"):
        size = TYPES[of][1] // 8
        for label, strides in (("rows", dense), ("strided", spread)):
            extent = 1 + sum((n - 1) * step for n, step in zip(shape, strides))
            blocks = [library.memory(numbers(of, extent, device), device) for device in (0, 1)]
            out = library.memory(b"\x55" * (67 * 33 * size))
            inputs = (Tensor * 2)(*[tensor(blocks[device], of, shape, strides, device)
                                    for device in (0, 1)])
            target = tensor(out, of, shape, dense)
            library.call("tcuda_comm_reduce_add_into", inputs, ctypes.c_size_t(2),
                         ctypes.byref(target))
            library.keep(f"sum of two {of} {label}", out, 67 * 33 * size)
            target_block = library.memory(b"\x55" * (2 * 67 * 33 * size))
            target = tensor(target_block, of, (2 * 67, 33), dense)
            library.call("tcuda_comm_gather_into", inputs, ctypes.c_size_t(2), 0,
                         ctypes.byref(target))
            library.keep(f"gather of two {of} {label}", target_block, 2 * 67 * 33 * size)
            for device in (0, 1):
                library.call("tcuda_device_synchronize", device)
                library.call("tcuda_free", ctypes.c_void_p(blocks[device]))


def run(library, out):
    """One backend: all results into a file."""
    library = Library(library)
    fills(library)
    randoms(library)
    collectives(library)
    out.write_text(json.dumps({name: data.hex() for name, data in library.results.items()}))


def places(a, b, size):
    """Elements that differ, and the largest difference of their bits as integers."""
    pairs = zip((a[i:i + size] for i in range(0, len(a), size)),
                (b[i:i + size] for i in range(0, len(b), size)))
    gaps = [abs(int.from_bytes(x, "little") - int.from_bytes(y, "little"))
            for x, y in pairs if x != y]
    return len(gaps), max(gaps, default=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--run", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    path = options.folder.resolve() / "libtcuda.so"
    if options.run:
        run(path, options.run)
        return
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for backend in ("cuda", "sim"):
            out = pathlib.Path(folder) / backend
            environment = dict(os.environ, TCUDA_BACKEND=backend, TCUDA_SIM=os.environ.get(
                "TCUDA_SIM", "devices=2,multiprocessors=132"))
            subprocess.run([sys.executable, __file__, options.folder, "--run", out], check=True,
                           env=environment)
            results[backend] = {name: bytes.fromhex(data)
                                for name, data in json.loads(out.read_text()).items()}
    gpu, simulated = results["cuda"], results["sim"]
    equal = different = 0
    table = []
    for name, expected in gpu.items():
        found = simulated[name]
        if found == expected:
            equal += 1
            continue
        kind = name.split("(")[0]
        of = next((word for word in name.split() if word in TYPES), "uint8")
        size = TYPES[of][1] // 8 // (2 if of.startswith("complex") else 1)
        count, gap = places(expected, found, size)
        may_differ = kind in APPROXIMATE
        different += not may_differ
        row = {"case": name, "elements": len(expected) // size, "different": count,
               "largest": gap, "approximate": may_differ}
        table.append(row)
        print(f"{'approximate' if may_differ else 'DIFFERENT'}: {name}: {count} of "
              f"{row['elements']} elements, by at most {gap} in the bits")
    print(f"{len(gpu)} cases, {equal} equal in all bytes, {len(table) - different} that differ "
          f"where instructions are approximate, {different} that differ elsewhere")
    if options.out:
        options.out.write_text(json.dumps({"cases": len(gpu), "equal": equal, "rows": table}))
    sys.exit(different != 0)


main()
