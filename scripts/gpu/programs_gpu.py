#!/usr/bin/env python3
"""Records what a GPU answers for the programs of sim/tests/programs.

  programs_gpu.py FOLDER OUTPUT

Compiles each NAME.cu with NVRTC and runs its kernel k(unsigned *out, const unsigned *in, unsigned
n) with 4 blocks of 128 threads, 512 words of input (splitmix64 of the index, its low 32 bits), 512
words of zeroed output and 1 KiB of dynamic shared memory, each in a process of its own. OUTPUT gets
NAME.ptx and NAME.txt: the status of the synchronisation, the words of the output in hexadecimal
("-" after a fault), then what the kernel printed, on lines that begin with "out" or "err".
"""

import ctypes
import glob
import pathlib
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import instructions_gpu

WORDS = 512


def compile_ptx(path):
    nvrtc = ctypes.CDLL(sorted(glob.glob("/usr/local/cuda*/lib64/libnvrtc.so*"))[0])
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), path.read_bytes(), path.name.encode(), 0, None,
                             None)
    options = [b"--gpu-architecture=compute_90", b"-I/usr/local/cuda/include"]
    status = nvrtc.nvrtcCompileProgram(program, len(options),
                                       (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    if status != 0:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        sys.exit(log.value.decode())
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, text)
    return text.value.decode()


def run(path):
    """Runs one program; the last line of the output is its status and its words."""
    gpu = instructions_gpu.Gpu()
    cuda = gpu.cuda
    module = gpu.load(path.read_text())
    function = ctypes.c_void_p()
    gpu.check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"k"), "function")
    device_in, device_out = gpu.alloc(4 * WORDS), gpu.alloc(4 * WORDS)
    words = [instructions_gpu.splitmix64(i) & 0xFFFFFFFF for i in range(WORDS)]
    data = struct.pack(f"<{WORDS}I", *words)
    gpu.check(cuda.cuMemcpyHtoD_v2(device_in, data, ctypes.c_size_t(len(data))), "copy")
    gpu.check(cuda.cuMemsetD8_v2(device_out, 0, ctypes.c_size_t(len(data))), "set")
    count = ctypes.c_uint32(WORDS)
    arguments = (ctypes.c_void_p * 3)(*(ctypes.addressof(value)
                                       for value in (device_out, device_in, count)))
    gpu.check(cuda.cuLaunchKernel(function, 4, 1, 1, 128, 1, 1, 1024, None, arguments, None),
              "launch")
    status = cuda.cuCtxSynchronize()
    output = ctypes.create_string_buffer(len(data))
    if status == 0:
        gpu.check(cuda.cuMemcpyDtoH_v2(output, device_out, ctypes.c_size_t(len(data))), "copy")
    text = "".join(f"{word:08x}" for word in struct.unpack(f"<{WORDS}I", output.raw))
    print(f"\n{status} {text if status == 0 else '-'}")


def main():
    if sys.argv[1] == "--run":
        run(pathlib.Path(sys.argv[2]))
        return
    folder, output = map(pathlib.Path, sys.argv[1:])
    output.mkdir(parents=True, exist_ok=True)
    for source in sorted(folder.glob("*.cu")):
        ptx = output / f"{source.stem}.ptx"
        ptx.write_text(compile_ptx(source))
        done = subprocess.run([sys.executable, __file__, "--run", ptx], capture_output=True,
                              text=True, timeout=60)
        printed, _, last = done.stdout.rstrip("\n").rpartition("\n")
        lines = [line for line in printed.split("\n") if line]
        (output / f"{source.stem}.txt").write_text(
            f"{last}\n" + "".join(f"out {line}\n" for line in lines)
            + "".join(f"err {line}\n" for line in done.stderr.splitlines()))
        print(source.stem, last[:40], len(lines), len(done.stderr.splitlines()))


if __name__ == "__main__":
    sys.exit(main())
