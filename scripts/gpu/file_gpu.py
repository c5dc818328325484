#!/usr/bin/env python3
"""Files read into device memory and written from it, on a GPU: by cuFile and by staging.

  file_gpu.py [LIBRARY] [--bytes N] [--rounds N] [--folder FOLDER] [--out FILE]

LIBRARY is libtcuda.so; without it TCUDA_LIBRARY, else the one of LD_LIBRARY_PATH. For each way it
writes a file of N bytes (1 GiB) from device memory and reads it back, registered and not, aligned
and not, and compares every byte with the file as the system reads it. Then it measures rates, cold
(the system's cache is dropped for the file, where it allows that) and warm, and beside them
torch.cuda.gds and kvikio where they are installed. FOLDER should be on the disk that is measured.
Exit status 1: bytes differ or a call failed, 77: there is no GPU.
"""

import argparse
import ctypes
import hashlib
import json
import os
import pathlib
import statistics
import sys
import time

SKIPPED = 77
READ, WRITE, CREATE, TRUNCATE, STAGING = 1, 2, 4, 8, 16
MIB = 1 << 20
STATUS_OK = 0


class Failed(Exception):
    """A call of the library's failed."""


class Library:
    """The functions of libtcuda that are called here; a status other than 0 is an exception."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.tcuda_last_error.restype = ctypes.c_char_p
        self.library.tcuda_backend_name.restype = ctypes.c_char_p

    def __getattr__(self, name):
        function = getattr(self.library, f"tcuda_{name}")

        def call(*arguments):
            status = function(*arguments)
            if status != STATUS_OK:
                message = self.library.tcuda_last_error().decode(errors="replace")
                raise Failed(f"tcuda_{name}: {status}: {message}")
        return call

    def backend(self):
        return self.library.tcuda_backend_name().decode()


def open_library(given):
    named = os.environ.get("TCUDA_LIBRARY")
    names = [given] if given else [named, "libtcuda.so", "libtcuda.so.0.1"]
    problems = []
    for name in filter(None, names):
        try:
            return Library(name)
        except OSError as error:
            problems.append(str(error))
    sys.exit(f"libtcuda was not found: {'; '.join(problems)}")


class Memory:
    """A block of device memory."""

    def __init__(self, library, count):
        self.library, self.count = library, count
        self.pointer = ctypes.c_void_p()
        library.malloc(ctypes.c_size_t(count), ctypes.c_int32(0), None, ctypes.byref(self.pointer))

    def at(self, offset):
        return ctypes.c_void_p(self.pointer.value + offset)

    def fill(self, byte):
        value = ctypes.c_uint8(byte)
        self.library.fill(self.pointer, ctypes.byref(value), ctypes.c_size_t(1),
                          ctypes.c_size_t(self.count), None)

    def put(self, content):
        self.library.copy(self.pointer, content, ctypes.c_size_t(len(content)), None)
        self.library.stream_synchronize(None)

    def get(self, offset, count):
        host = ctypes.create_string_buffer(count)
        self.library.copy(host, self.at(offset), ctypes.c_size_t(count), None)
        self.library.stream_synchronize(None)
        return host.raw

    def free(self):
        self.library.free(self.pointer)


class File:
    """A file of the library's, to be used with `with`."""

    def __init__(self, library, path, flags):
        self.library, self.handle = library, ctypes.c_void_p()
        library.file_open(os.fsencode(path), ctypes.c_uint32(flags), ctypes.byref(self.handle))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.library.file_close(self.handle)

    def transfer(self, name, memory, offset, count, file_offset):
        done = ctypes.c_size_t()
        getattr(self.library, name)(self.handle, memory.at(offset), ctypes.c_size_t(count),
                                    ctypes.c_int64(file_offset), None, ctypes.byref(done))
        return done.value

    def read(self, *place):
        return self.transfer("file_read", *place)

    def write(self, *place):
        return self.transfer("file_write", *place)


def pattern(count):
    """Bytes without a short period."""
    block = b"".join(hashlib.sha256(number.to_bytes(8, "little")).digest()
                     for number in range(MIB // 32 + 1))
    period = block[:MIB - 7]
    return (period * (count // len(period) + 1))[:count]


def drop_cache(path):
    """Asks the system to forget what it keeps of a file."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def check_way(library, path, mode, registered, count):
    """Rows (what, is right) of one way."""
    content = pattern(count)
    memory, rows = Memory(library, count + 4096), []
    try:
        if registered:
            library.file_register_buffer(memory.pointer, ctypes.c_size_t(count + 4096))
        memory.put(content)
        with File(library, path, READ | WRITE | CREATE | TRUNCATE | mode) as file:
            rows.append(("all bytes are written", file.write(memory, 0, count, 0) == count))
        rows.append(("the file has them", pathlib.Path(path).read_bytes() == content))
        drop_cache(path)
        with File(library, path, READ | mode) as file:
            memory.fill(0)
            rows.append(("all bytes are read", file.read(memory, 0, count, 0) == count))
            rows.append(("memory has them", memory.get(0, count) == content))
            for offset, length, at in [(1, 1000, 7), (4095, 3 * MIB + 1, 513), (0, 4096, 4096),
                                       (64, 1, count - 1)]:
                length = min(length, count - at)
                memory.fill(0)
                is_right = (file.read(memory, offset, length, at) == length
                            and memory.get(offset, length) == content[at:at + length])
                rows.append((f"{length} bytes from {at} to {offset}", is_right))
            rest = file.read(memory, 0, 4096, count - 100)
            rows.append(("100 bytes before the end", rest == 100
                         and memory.get(0, 100) == content[-100:]))
            rows.append(("nothing beyond the end", file.read(memory, 0, 4096, count + 5) == 0))
        with File(library, path, WRITE | mode) as file:
            memory.put(content[:5000])
            file.write(memory, 3, 1001, count + 13)
        end = pathlib.Path(path).read_bytes()[count:]
        rows.append(("an odd write behind the end", end == bytes(13) + content[3:1004]))
        if registered:
            library.file_unregister_buffer(memory.pointer)
    finally:
        memory.free()
    return rows


def rates_of(count, rounds, prepare, transfer):
    """GB/s of the rounds."""
    rates = []
    for _ in range(rounds):
        prepare()
        begun = time.perf_counter()
        transfer()
        rates.append(count / (time.perf_counter() - begun) / 1e9)
    return rates


def row_of(name, rates):
    return {"what": name, "median_gb_s": round(statistics.median(rates), 3),
            "best_gb_s": round(max(rates), 3), "rounds": len(rates)}


def measure_way(library, path, name, mode, registered, count, rounds):
    memory, rows = Memory(library, count), []
    nothing = lambda: None
    try:
        memory.put(pattern(count))
        if registered:
            library.file_register_buffer(memory.pointer, ctypes.c_size_t(count))
        with File(library, path, READ | WRITE | CREATE | TRUNCATE | mode) as file:
            write = lambda: file.write(memory, 0, count, 0)
            read = lambda: file.read(memory, 0, count, 0)
            write()
            rows.append(row_of(f"{name} write", rates_of(count, rounds, nothing, write)))
            rows.append(row_of(f"{name} read, cold",
                               rates_of(count, rounds, lambda: drop_cache(path), read)))
            rows.append(row_of(f"{name} read, warm", rates_of(count, rounds, nothing, read)))
        if registered:
            library.file_unregister_buffer(memory.pointer)
    finally:
        memory.free()
    return rows


def measure_torch(path, count, rounds):
    import torch

    gds = torch.cuda.gds
    if hasattr(gds, "is_available") and not gds.is_available():
        raise RuntimeError("torch.cuda.gds is not available")
    tensor = torch.empty(count, dtype=torch.uint8, device="cuda")
    storage = tensor.untyped_storage()
    file = gds.GdsFile(path, os.O_CREAT | os.O_RDWR)

    def read():
        file.load_storage(storage, 0)
        torch.cuda.synchronize()

    def write():
        torch.cuda.synchronize()
        file.save_storage(storage, 0)

    nothing = lambda: None
    write()
    rows = [row_of("torch.cuda.gds write", rates_of(count, rounds, nothing, write)),
            row_of("torch.cuda.gds read, cold",
                   rates_of(count, rounds, lambda: drop_cache(path), read)),
            row_of("torch.cuda.gds read, warm", rates_of(count, rounds, nothing, read))]
    del file
    return rows


def measure_kvikio(path, count, rounds):
    import cupy
    import kvikio

    array = cupy.arange(count, dtype=cupy.uint8)
    cupy.cuda.Device().synchronize()
    nothing, rows = (lambda: None), []
    with kvikio.CuFile(path, "w+") as file:
        def write():
            file.write(array)

        def read():
            file.read(array)

        write()
        rows.append(row_of("kvikio write", rates_of(count, rounds, nothing, write)))
        rows.append(row_of("kvikio read, cold",
                           rates_of(count, rounds, lambda: drop_cache(path), read)))
        rows.append(row_of("kvikio read, warm", rates_of(count, rounds, nothing, read)))
    return rows


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("library", nargs="?")
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--check-bytes", type=int, default=200 * MIB + 12345)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default=".")
    parser.add_argument("--out", default="file_gpu.json")
    return parser.parse_args()


def main():
    options = parse()
    library = open_library(options.library)
    available, supported = ctypes.c_bool(), ctypes.c_bool()
    library.is_available(ctypes.byref(available))
    if not available.value:
        print("left out: there is no GPU")
        return SKIPPED
    name = ctypes.create_string_buffer(256)
    library.device_name(ctypes.c_int32(0), name, ctypes.c_size_t(256), None)
    library.file_is_supported(ctypes.byref(supported))
    path = os.path.join(options.folder, f"file_gpu_{os.getpid()}.bin")
    ways = [("staging", STAGING, False)]
    left_out, checks, rates = {}, [], []
    if supported.value:
        ways += [("cuFile", 0, False), ("cuFile, registered", 0, True)]
    else:
        left_out["cuFile"] = "libcufile cannot be opened"
    try:
        for way, mode, registered in ways:
            try:
                rows = check_way(library, path, mode, registered, options.check_bytes)
                checks += [{"way": way, "what": what, "right": right} for what, right in rows]
                rates += measure_way(library, path, way, mode, registered, options.bytes,
                                     options.rounds)
            except Failed as error:
                # cuFile may be there and refuse: then that is said, and the rest goes on.
                left_out[way] = str(error)
        for peer, measure in (("torch.cuda.gds", measure_torch), ("kvikio", measure_kvikio)):
            try:
                rates += measure(path, options.bytes, options.rounds)
            except Exception as error:  # a peer that is absent, or does not run here
                left_out[peer] = f"{type(error).__name__}: {error}"
    finally:
        if os.path.exists(path):
            os.unlink(path)
    for check in checks:
        print(f"{'right' if check['right'] else 'WRONG':<6} {check['way']}: {check['what']}")
    for row in rates:
        print(f"{row['median_gb_s']:8.2f} GB/s (best {row['best_gb_s']:.2f})  {row['what']}")
    for what, why in left_out.items():
        print(f"left out: {what}: {why}")
    wrong = sum(not check["right"] for check in checks)
    failed = "staging" in left_out
    result = {"device": name.value.decode(), "backend": library.backend(), "bytes": options.bytes,
              "folder": os.path.abspath(options.folder), "checks": checks, "rates": rates,
              "left_out": left_out}
    pathlib.Path(options.out).write_text(json.dumps(result, indent=1))
    print(f"{len(checks)} comparisons, {wrong} wrong; {name.value.decode()}")
    return 1 if wrong or failed else 0


if __name__ == "__main__":
    sys.exit(main())
