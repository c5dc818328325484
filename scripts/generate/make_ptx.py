#!/usr/bin/env python3
"""Makes kernels/*.ptx from kernels/*.cu.

Always with NVRTC 11.8 for compute_52, whose PTX (7.8) every driver since R520 accepts and newer
GPUs compile for themselves; kernels named *_sm80.cu are for compute_80. A driver takes 60 ms and
more to compile anything, so that some kernels have machine code as well, in kernels/*.cubin: of
sm_80 for all GPUs 8.x, of sm_90 for 9.x. The compiler is a PyPI wheel, put under target/tools.

  make_ptx.py             writes the files
  make_ptx.py --check     compares them instead; exit status 1: one is out of date
  make_ptx.py --assemble  then lets ptxas translate them for the GPUs of today

Exit status 77: a wheel could not be fetched.
"""

import argparse
import ctypes
import difflib
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOOLS = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "tools"
NVRTC = ("nvidia-cuda-nvrtc-cu11==11.8.89", "nvidia/cuda_nvrtc/lib/libnvrtc.so.11.2")
PTXAS = ("nvidia-cuda-nvcc-cu12==12.9.86", "nvidia/cuda_nvcc/bin/ptxas")
GPUS = (75, 80, 86, 90, 100, 120)
HEADER = ".version 7.8\n.target sm_"
# What has machine code, and for which GPUs.
COMPILED = ("comm_*.cu", "fill.cu")
MACHINES = (80, 90)
SKIPPED = 77


def fetch(requirement, path):
    """The path of a file of a wheel, which is installed under target/tools when it is not yet."""
    folder = TOOLS / requirement.replace("==", "-")
    if not (folder / path).exists():
        # Into a folder of our own first: two runs may be at this point at the same time.
        part = folder.with_name(f"{folder.name}.{os.getpid()}")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--retries", "1"]
        command += ["--target", str(part), requirement]
        result = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if result.returncode != 0:
            print(f"skipped: cannot fetch {requirement}\n{result.stdout}", file=sys.stderr)
            sys.exit(SKIPPED)
        try:
            part.rename(folder)
        except OSError:  # the other run was faster
            pass
    return folder / path


class Compiler:
    """NVRTC, by ctypes."""

    def __init__(self):
        self.nvrtc = ctypes.CDLL(str(fetch(*NVRTC)))

    def call(self, function, *arguments):
        status = getattr(self.nvrtc, function)(*arguments)
        if status:
            raise RuntimeError(f"{function}: NVRTC error {status}")

    def bytes(self, program, what):
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def text(self, program, what):
        return self.bytes(program, what).split(b"\0")[0].decode()

    def compile(self, source, include=None):
        target = 80 if source.stem.endswith("_sm80") else 52
        ptx = self.build(
            source, include, f"compute_{target}", lambda program: self.text(program, "PTX"))
        # Without the compiler's banner, so that the file begins with what a driver reads first.
        ptx = ptx[ptx.index(".version"):].rstrip() + "\n"
        if not ptx.startswith(f"{HEADER}{target}\n"):
            sys.exit(f"{source.name}: unexpected target:\n{ptx[:80]}")
        return ptx

    def machine_code(self, source, gpu):
        return self.build(source, None, f"sm_{gpu}", lambda program: self.bytes(program, "CUBIN"))

    def build(self, source, include, target, result):
        include = include or source.parent
        options = [f"--gpu-architecture={target}", "--std=c++17", f"-I{include}"]
        options = [option.encode() for option in options]
        program = ctypes.c_void_p()
        name = source.name.encode()
        text = source.read_bytes()
        self.call("nvrtcCreateProgram", ctypes.byref(program), text, name, 0, None, None)
        try:
            array = (ctypes.c_char_p * len(options))(*options)
            self.call("nvrtcCompileProgram", program, len(options), array)
            return result(program)
        except RuntimeError as error:
            sys.exit(f"{source.name}: {error}\n{self.text(program, 'ProgramLog')}")
        finally:
            self.nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def assemble(paths):
    ptxas = fetch(*PTXAS)
    ptxas.chmod(0o755)  # pip drops the bit
    for path in paths:
        for gpu in GPUS:
            command = [str(ptxas), f"--gpu-name=sm_{gpu}", "--verbose", "--warning-as-error"]
            command += ["--output-file", os.devnull, str(path)]
            if ".extern .func" in path.read_text():
                command.append("--compile-only")  # the driver links it
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode != 0:
                sys.exit(f"{path.name} for sm_{gpu}:\n{result.stdout}{result.stderr}")
            facts = [line for line in result.stderr.splitlines()
                     if "registers" in line or "spill" in line]
            facts = "; ".join(fact.split(":", 1)[-1].strip() for fact in facts)
            print(f"{path.name} for sm_{gpu}:", facts)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--assemble", action="store_true", help="try the files with ptxas")
    options = parser.parse_args()

    compiler = Compiler()
    stale = False
    paths = []
    # The compiler numbers the calls of all files, so that one that is new comes last.
    for source in sorted((ROOT / "kernels").glob("*.cu")):
        path = source.with_suffix(".ptx")
        paths.append(path)
        ptx = compiler.compile(source)
        if not options.check:
            path.write_text(ptx)
            continue
        old = path.read_text() if path.exists() else ""
        if ptx != old:
            stale = True
            difference = difflib.unified_diff(
                old.splitlines(True), ptx.splitlines(True), f"{path.name} (checked in)",
                f"{path.name} (new)"
            )
            sys.stderr.writelines(difference)
            print(f"{path.name} is out of date: run scripts/generate/make_ptx.py", file=sys.stderr)
    for source in sorted(source for name in COMPILED for source in (ROOT / "kernels").glob(name)):
        for gpu in MACHINES:
            path = source.with_suffix(f".sm_{gpu}.cubin")
            code = compiler.machine_code(source, gpu)
            if not options.check:
                path.write_bytes(code)
            elif not path.exists() or path.read_bytes() != code:
                stale = True
                print(f"{path.name} is out of date: run scripts/generate/make_ptx.py",
                      file=sys.stderr)
    if stale:
        sys.exit(1)
    if options.assemble:
        assemble(paths)


if __name__ == "__main__":
    main()
