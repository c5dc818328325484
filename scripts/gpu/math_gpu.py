#!/usr/bin/env python3
"""Compares the arithmetic of the random kernels with CUDA 13.0's and with PyTorch's, on a GPU.

  math_gpu.py --make FILE   without a GPU: writes the PTX, made as those of kernels/
  math_gpu.py FILE [--out FOLDER]
                            on a machine with a GPU and PyTorch 2.11+cu130: every 32-bit input of
                            the functions of floats, 2^28 samples of those of doubles

Of each function the number of inputs whose results differ in a bit, and the first of them. What the
compiler makes of C comes from the NVRTC that PyTorch itself brings. Exit status 1: something
differs.
"""

import argparse
import ctypes
import json
import pathlib
import re
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "scripts/gpu/math_gpu.cu"
CHUNK = 1 << 28
BLOCK = 256


def make(path):
    sys.path.insert(0, str(ROOT / "scripts/generate"))
    import make_ptx

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(make_ptx.Compiler().compile(SOURCE, ROOT / "kernels"))


def check(status, what):
    if status:
        sys.exit(f"{what}: error {status}")


class Module:
    """A loaded image, by libcuda."""

    cuda = None

    def __init__(self, image):
        Module.cuda = Module.cuda or ctypes.CDLL("libcuda.so.1")
        self.handle = ctypes.c_void_p()
        check(self.cuda.cuModuleLoadData(ctypes.byref(self.handle), image), "cuModuleLoadData")

    def launch(self, name, tensor, start):
        function = ctypes.c_void_p()
        check(
            self.cuda.cuModuleGetFunction(ctypes.byref(function), self.handle, name.encode()), name
        )
        out, first = ctypes.c_uint64(tensor.data_ptr()), ctypes.c_uint32(start)
        parameters = (ctypes.c_void_p * 2)(ctypes.addressof(out), ctypes.addressof(first))
        grid = tensor.numel() // BLOCK
        status = self.cuda.cuLaunchKernel(
            function, grid, 1, 1, BLOCK, 1, 1, 0, None, parameters, None)
        check(status, name)


def torch_nvrtc(torch):
    """The NVRTC beside this PyTorch."""
    folders = [pathlib.Path(folder) for folder in sys.path if folder]
    folders.append(pathlib.Path(torch.__file__).resolve().parent.parent)
    found = [f for folder in folders for f in folder.glob("nvidia/*/lib/libnvrtc.so.*")]
    names = [str(f) for f in found] + ["libnvrtc.so.13", "libnvrtc.so"]
    for name in names:
        # NVRTC looks for its other half by name alone: found if it is loaded.
        for half in pathlib.Path(name).parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(half), mode=ctypes.RTLD_GLOBAL)
        try:
            return ctypes.CDLL(name), name
        except OSError:
            continue
    sys.exit("no NVRTC")


def compile_theirs(torch):
    nvrtc, name = torch_nvrtc(torch)
    major, minor = ctypes.c_int(), ctypes.c_int()
    check(nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
    capability = torch.cuda.get_device_capability()
    options = [f"--gpu-architecture=sm_{capability[0]}{capability[1]}", "--std=c++17"]
    options += [f"-I{ROOT / 'kernels'}"]
    array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    program = ctypes.c_void_p()
    text = SOURCE.read_bytes()
    create = nvrtc.nvrtcCreateProgram
    check(create(ctypes.byref(program), text, b"math_gpu.cu", 0, None, None), "nvrtcCreateProgram")
    status = nvrtc.nvrtcCompileProgram(program, len(options), array)
    size = ctypes.c_size_t()
    if status:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        sys.exit(f"{name}: {status}\n{log.value.decode()}")
    check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), "nvrtcGetCUBINSize")
    image = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetCUBIN(program, image), "nvrtcGetCUBIN")
    return image, f"NVRTC {major.value}.{minor.value} ({name})"


def with_torch(torch, name, start, count):
    """What PyTorch's own operations give, for the functions that it has as operations; bits."""
    words = torch.arange(start, start + count, device="cuda", dtype=torch.int64)
    if name in ("half", "bfloat"):
        floats = words.to(torch.int32).view(torch.float32)
        kind = torch.float16 if name == "half" else torch.bfloat16
        return floats.to(kind).view(torch.int16).to(torch.int32) & 0xFFFF
    return None


def compare(torch, ours, theirs, name, wide, total):
    kind = torch.int64 if wide else torch.int32
    a = torch.empty(CHUNK, dtype=kind, device="cuda")
    b = torch.empty(CHUNK, dtype=kind, device="cuda")
    differ, first = 0, []
    for start in range(0, total, CHUNK):
        ours.launch(f"ours_{name}", a, start)
        own = with_torch(torch, name, start, CHUNK)
        if own is None:
            theirs.launch(f"theirs_{name}", b, start)
        else:
            b = own
        torch.cuda.synchronize()
        # A NaN is a NaN: none of the distributions tells one from another.
        if not wide and name not in ("half", "bfloat"):
            x, y = a.view(torch.float32), b.view(torch.float32)
            wrong = (a != b) & ~(x.isnan() & y.isnan())
        elif wide:
            x, y = a.view(torch.float64), b.view(torch.float64)
            wrong = (a != b) & ~(x.isnan() & y.isnan())
        else:
            wrong = a != b
        count = int(wrong.sum())
        differ += count
        if count and len(first) < 8:
            for i in wrong.nonzero()[:8, 0].tolist():
                mask = (1 << 64) - 1 if wide else 0xFFFFFFFF
                first.append([hex(start + i), hex(a[i].item() & mask), hex(b[i].item() & mask)])
    return differ, first[:8]


# Their forms leave out what the kernels never meet: inputs for which that is no fault.
NARROW = {"sqrt": "spelled for -0 and normal numbers only"}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("ptx", type=pathlib.Path)
    parser.add_argument("--make", action="store_true", help="write the PTX instead")
    parser.add_argument("--out", type=pathlib.Path, help="folder for math.json")
    options = parser.parse_args()
    if options.make:
        return make(options.ptx)

    import torch

    torch.zeros(1, device="cuda")
    text = options.ptx.read_text()
    ours = Module(text.encode() + b"\0")
    image, compiler = compile_theirs(torch)
    theirs = Module(image)
    functions = re.findall(r"\.entry ours_(\w+)\(", text)
    rows = []
    for name in functions:
        begin = time.time()
        wide = name.endswith("64") or "64_" in name
        total = CHUNK if wide else 1 << 32
        differ, first = compare(torch, ours, theirs, name, wide, total)
        rows.append({"function": name, "inputs": total, "differ": differ, "first": first})
        note = NARROW.get(name, "")
        seconds = time.time() - begin
        print(f"{name:24} {total:>11} inputs  {differ:>11} differ  {seconds:5.1f} s  {note}"
              f"  {first[:3]}")
    facts = {"torch": torch.__version__, "compiler": compiler, "gpu": torch.cuda.get_device_name()}
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        report = json.dumps({**facts, "functions": rows}, indent=1)
        (options.out / "math.json").write_text(report + "\n")
    bad = [row["function"] for row in rows if row["differ"] and row["function"] not in NARROW]
    print(", ".join(facts.values()))
    print("differ: " + ", ".join(bad) if bad else "nothing differs")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
