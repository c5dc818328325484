#!/usr/bin/env python3
"""Runs generated CUDA programs and compares their results with a GPU's.

  generated_programs.py LIBRARY [--backend sim|cuda] [--seeds 0-299] [--jobs N]
                        [--record FILE | --answers FILE] [--unmodified] [--outputs FOLDER]

LIBRARY is libtcuda.so, whose C interface compiles and runs each program of
scripts/generate/cuda_programs.py, with -fmad=false except in the programs of family "fused".
A line of FILE is a program: seed, family, digest of the source, digest of all words that it wrote
and of the sorted lines that it printed, and its first 8 words. --record writes the file; otherwise
the results are compared with tests/generated/answers.txt, and the exit status is 1 if one differs.
--unmodified leaves -fmad=false out everywhere, and compares with unmodified.txt there. --outputs
keeps all words and lines of each program.
"""

import argparse
import collections
import ctypes
import hashlib
import os
import pathlib
import queue
import struct
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts" / "generate"))
import cuda_programs

class KernelOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("flags", ctypes.POINTER(ctypes.c_char_p)),
                ("num_flags", ctypes.c_size_t)]


class LaunchOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("grid", ctypes.c_uint32 * 3),
                ("block", ctypes.c_uint32 * 3), ("shared_bytes", ctypes.c_uint32),
                ("accesses", ctypes.POINTER(ctypes.c_int32))]


class Parameters(ctypes.Structure):
    _fields_ = [("a", ctypes.c_int8), ("b", ctypes.c_double), ("c", ctypes.c_int16),
                ("d", ctypes.c_uint64), ("e", ctypes.c_float)]


class Library:
    """The functions of libtcuda that a program needs."""

    def __init__(self, path, backend):
        self.tcuda = ctypes.CDLL(str(path))
        self.tcuda.tcuda_last_error.restype = ctypes.c_char_p
        self.call("backend_select", backend.encode(), None)

    def call(self, name, *arguments):
        if getattr(self.tcuda, f"tcuda_{name}")(*arguments):
            raise RuntimeError(self.tcuda.tcuda_last_error().decode(errors="replace"))

    def run(self, program, is_unmodified):
        """Runs a program; its words."""
        flags = [] if is_unmodified or program.is_fused else [b"-fmad=false"]
        kernel = ctypes.c_void_p()
        options = KernelOptions(ctypes.sizeof(KernelOptions),
                                (ctypes.c_char_p * 1)(*flags), len(flags))
        self.call("kernel_compile", program.source.encode(), b"k", ctypes.byref(options),
                  ctypes.byref(kernel))
        words = cuda_programs.inputs(program.seed)
        data = struct.pack(f"<{len(words)}I", *words)
        size = 4 * program.words_out
        host = ctypes.create_string_buffer(size)
        out, source = ctypes.c_void_p(), ctypes.c_void_p()
        for pointer, start in ((out, host.raw), (source, data)):
            self.call("malloc", ctypes.c_size_t(len(start)), -1, None, ctypes.byref(pointer))
            self.call("copy", pointer, start, ctypes.c_size_t(len(start)), None)
        arguments = [out, source, ctypes.c_uint32(len(words)),
                     Parameters(*cuda_programs.PARAMETERS)]
        pointers = (ctypes.c_void_p * 4)(*(ctypes.addressof(value) for value in arguments))
        launch = LaunchOptions(ctypes.sizeof(LaunchOptions), program.grid, program.block,
                               program.shared_bytes, None)
        self.call("kernel_launch", kernel, ctypes.byref(launch), pointers, ctypes.c_size_t(4), None)
        self.call("copy", host, out, ctypes.c_size_t(size), None)
        self.call("stream_synchronize", None)
        for pointer in (out, source):
            self.call("free", pointer)
        self.call("kernel_destroy", kernel)
        return host.raw


def work(arguments):
    """Runs the seeds that stdin names; a line on the original stdout for each."""
    answers = os.fdopen(os.dup(1), "w")
    printed = tempfile.TemporaryFile()
    os.dup2(printed.fileno(), 1)
    library = Library(arguments.library.resolve(), arguments.backend)
    for line in sys.stdin:
        seed = int(line)
        program = cuda_programs.generate(seed)
        try:
            data = library.run(program, arguments.unmodified)
        except RuntimeError as error:
            print(seed, "error", str(error).replace("\n", " \\ ")[:2000], file=answers, flush=True)
            continue
        ctypes.CDLL(None).fflush(None)
        printed.seek(0)
        lines = b"\n".join(sorted(printed.read().splitlines()))
        printed.seek(0)
        printed.truncate()
        digest = hashlib.sha256(data + lines).hexdigest()[:16]
        source = hashlib.sha256(program.source.encode()).hexdigest()[:8]
        words = " ".join(f"{word:08x}" for word in struct.unpack("<8I", data[:32]))
        if arguments.outputs:
            words_all = struct.unpack(f"<{len(data) // 4}I", data)
            (arguments.outputs / f"{seed}.txt").write_text(
                "\n".join(f"{word:08x}" for word in words_all) + "\n" + lines.decode() + "\n")
        print(seed, program.family, source, digest, words, file=answers, flush=True)


class Worker(threading.Thread):
    """A process that runs programs, replaced when one hangs or loses the device."""

    def __init__(self, arguments, limit, seeds, results):
        super().__init__()
        self.arguments, self.limit = arguments, limit
        self.seeds, self.results = seeds, results
        self.process = None

    def run(self):
        while True:
            try:
                seed = self.seeds.get_nowait()
            except queue.Empty:
                break
            self.results[seed] = self.answer(seed)
        self.end()

    def answer(self, seed):
        if self.process is None:
            command = [sys.executable, __file__, "--worker"] + self.arguments
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True,
                                            stdout=subprocess.PIPE)
        timer = threading.Timer(self.limit, self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(f"{seed}\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline().rstrip("\n")
        except OSError:
            line = ""
        timer.cancel()
        if not line or line.split(" ", 2)[1] == "error":
            self.end()
        return line or f"{seed} error its process ended"

    def end(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.stdout.close()
            self.process.kill()
            self.process.wait()
            self.process = None


def seeds_of(text):
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def compare(found, expected):
    """Prints what differs; the number of differences."""
    counts, differences = collections.Counter(), 0
    for seed, line in sorted(found.items()):
        answer = expected.get(seed)
        if answer is None:
            print(f"{seed}: no answer is recorded")
        elif line.split(" ")[2] != answer.split(" ")[2] and line.split(" ")[1] != "error":
            print(f"{seed}: the generator makes another program than when it was recorded")
        elif line == answer:
            counts[answer.split(" ")[1]] += 1
            continue
        else:
            print(f"{seed}: differs\n  here   {line}\n  on GPU {answer}")
        differences += 1
    print(f"{len(found) - differences} of {len(found)} programs equal a GPU: "
          + ", ".join(f"{family} {count}" for family, count in sorted(counts.items())))
    return differences


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--backend", default="sim")
    parser.add_argument("--seeds", default="0-299")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--limit", type=int, default=60, help="seconds for one program")
    parser.add_argument("--record", type=pathlib.Path)
    parser.add_argument("--answers", type=pathlib.Path)
    parser.add_argument("--unmodified", action="store_true")
    parser.add_argument("--outputs", type=pathlib.Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments)
        return 0
    if arguments.outputs:
        arguments.outputs.mkdir(parents=True, exist_ok=True)
    seeds, results = queue.Queue(), {}
    for seed in seeds_of(arguments.seeds):
        seeds.put(seed)
    workers = [Worker(sys.argv[1:], arguments.limit, seeds, results)
               for _ in range(arguments.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if arguments.record:
        arguments.record.write_text("".join(f"{results[seed]}\n" for seed in sorted(results)))
        failed = [line for line in results.values() if line.split(" ")[1] == "error"]
        print(f"{len(results)} programs recorded, {len(failed)} failed", *failed, sep="\n")
        return bool(failed)
    name = "unmodified.txt" if arguments.unmodified else "answers.txt"
    answers = arguments.answers or ROOT / "tests" / "generated" / name
    expected = {int(line.split(" ", 1)[0]): line for line in answers.read_text().splitlines()}
    return compare(results, expected) != 0


if __name__ == "__main__":
    sys.exit(main())
