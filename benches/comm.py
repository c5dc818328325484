#!/usr/bin/env python3
"""How fast collectives of one process are beside PyTorch's, peer copies and NCCL, in the same run.

  comm.py LIBRARY [--devices N[,N]] [--out FOLDER] [--only TEXT] [--no-nccl] [--foreign] [--check]

LIBRARY is libtcuda.so; TCUDA_NCCL_PATH names NCCL where it is not PyTorch's. Calls of ours and of
PyTorch's take turns, on the default streams of N devices (all), each with memory of its own
library; --foreign adds rows in which ours work on PyTorch's memory. For each verb and size the
table, which comes last, has the median time from a call to its end on every device, the time of a
call among many with one wait at the end, and that of the call alone, all in microseconds. --check
compares results with PyTorch's instead, byte for byte, and sums with those of adding one after the
other.

The helper comm.c is compiled by cc, or taken from TCUDA_BENCH_HELPER.
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

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scripts/gpu"))

KIB, MIB = 1 << 10, 1 << 20
SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB, 1024 * MIB)
VERBS = ("peer_copy", "broadcast", "broadcast_out", "reduce_add", "scatter", "gather", "coalesced",
         "nccl_broadcast", "nccl_reduce")
# The tensors of one coalesced broadcast, a hundred times.
SMALL = (64, 1000, 256 * 256, 10, 3 * 3 * 64 * 64)
TURNS = 5
# Calls of a turn: one by one, and in a row.
EACH = {4 * KIB: 40, 64 * KIB: 40, MIB: 40, 16 * MIB: 12, 256 * MIB: 4, 1024 * MIB: 2}
ROW = {4 * KIB: 100, 64 * KIB: 100, MIB: 60, 16 * MIB: 20, 256 * MIB: 4, 1024 * MIB: 2}
FIRST = (("broadcast", 4 * KIB), ("broadcast", 1024 * MIB), ("reduce_add", 1024 * MIB),
         ("scatter", 1024 * MIB), ("gather", 1024 * MIB), ("coalesced", 0))


def torch_or_none():
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


class Ours:
    """The library and the helper."""

    def __init__(self, library, devices):
        self.tcuda = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        self.tcuda.tcuda_last_error.restype = ctypes.c_char_p
        self.helper = ctypes.CDLL(self.built())
        self.begin(devices)

    def begin(self, devices):
        count = ctypes.c_int32()
        self.call("tcuda_device_count", ctypes.byref(count))
        self.devices = min(devices or count.value, count.value)
        self.run("comm_begin", self.devices)

    def built(self):
        given = os.environ.get("TCUDA_BENCH_HELPER")
        if given:
            return given
        self.folder = tempfile.TemporaryDirectory()
        target = f"{self.folder.name}/comm.so"
        subprocess.run(["cc", "-std=c11", "-O2", "-shared", "-fPIC", f"-I{HERE.parent / 'include'}",
                        str(HERE / "comm.c"), "-o", target], check=True)
        return target

    def call(self, function, *arguments):
        if getattr(self.tcuda, function)(*arguments):
            raise RuntimeError(f"{function}: {self.tcuda.tcuda_last_error().decode()}")

    def run(self, function, *arguments):
        if getattr(self.helper, function)(*arguments):
            raise RuntimeError(f"{function} failed: {self.tcuda.tcuda_last_error().decode()}")

    def sync(self):
        self.run("comm_sync")

    def join(self):
        taken = ctypes.c_double()
        self.run("comm_join", ctypes.byref(taken))
        return taken.value

    def prepare(self, verb, size):
        self.run("comm_prepare", VERBS.index(verb), ctypes.c_size_t(size))

    def finish(self):
        self.run("comm_finish")
        self.call("tcuda_memory_empty_cache")

    def each(self, count):
        host, whole = (ctypes.c_double * count)(), (ctypes.c_double * count)()
        self.run("comm_each", count, host, whole)
        return list(host), list(whole)

    def row(self, count):
        whole = ctypes.c_double()
        self.run("comm_batch", count, ctypes.byref(whole))
        return whole.value


class Foreign:
    """Ours, on memory of PyTorch's."""

    def __init__(self, torch, ours):
        self.torch, self.ours, self.kept = torch, ours, []
        self.each, self.row = ours.each, ours.row

    def prepare(self, verb, size):
        n = self.ours.devices
        self.ours.prepare(verb, size)
        if verb == "coalesced":
            places = [(index, 0, 0, count) for index, count in enumerate(SMALL * 100)]
        else:
            many = verb in ("reduce_add", "gather")
            # A gather's parts are smaller than this.
            places = [(index, 0, index, size // 4) for index in range(n if many else 1)]
            if verb == "broadcast_out":
                places += [(index, 1, index, size // 4) for index in range(n)]
        for index, is_out, device, count in places:
            tensor = self.torch.ones(count, device=device)
            self.kept.append(tensor)
            self.ours.helper.comm_replace(index, is_out, ctypes.c_void_p(tensor.data_ptr()))
        self.ours.sync()

    def finish(self):
        self.ours.finish()
        self.kept.clear()
        self.torch.cuda.empty_cache()


class Theirs:
    """PyTorch, timed as the helper does it."""

    def __init__(self, torch, ours):
        import torch.cuda.comm
        self.torch, self.ours, self.work = torch, ours, None

    def prepare(self, verb, size):
        torch, n = self.torch, self.ours.devices
        comm, devices = torch.cuda.comm, list(range(n))
        elements = size // 4

        def ones(device, count=elements):
            return torch.ones(count, device=device)

        if verb == "coalesced":
            tensors = [ones(0, count) for count in SMALL * 100]
            self.work = lambda: comm.broadcast_coalesced(tensors, devices)
        elif verb == "broadcast":
            x = ones(0)
            self.work = lambda: comm.broadcast(x, devices)
        elif verb == "broadcast_out":
            x, outs = ones(0), [ones(device) for device in devices]
            self.work = lambda: comm.broadcast(x, out=outs)
        elif verb == "reduce_add":
            xs = [ones(device) for device in devices]
            self.work = lambda: comm.reduce_add(xs, 0)
        elif verb == "scatter":
            x = ones(0)
            self.work = lambda: comm.scatter(x, devices)
        elif verb == "gather":
            parts = [ones(device, len(part)) for device, part in
                     enumerate(torch.empty(elements, device="meta").chunk(n))]
            self.work = lambda: comm.gather(parts, destination=0)
        elif verb == "peer_copy":
            x, y = ones(0), ones(1)
            self.work = lambda: y.copy_(x, non_blocking=True)
        else:
            nccl = torch.cuda.nccl
            xs = [ones(device) for device in devices]
            if verb == "nccl_broadcast":
                self.work = lambda: nccl.broadcast(xs, 0)
            else:
                outs = torch.empty_like(xs[0])
                self.work = lambda: nccl.reduce(xs, outs, 0)
        self.ours.sync()

    def finish(self):
        self.work = None
        self.ours.sync()
        self.torch.cuda.empty_cache()

    def each(self, count):
        host, whole = [], []
        work, sync, clock = self.work, self.ours.helper.comm_sync, time.perf_counter
        for _ in range(count):
            start = clock()
            work()
            called = clock()
            sync()
            end = clock()
            host.append((called - start) * 1e6)
            whole.append((end - start) * 1e6)
        return host, whole

    def row(self, count):
        work = self.work
        start = time.perf_counter()
        for _ in range(count):
            work()
        self.ours.sync()
        return (time.perf_counter() - start) * 1e6 / count


def measured(sides, verb, size, rounds):
    """Median times of each side, in turns."""
    found = {}
    for name, side in list(sides.items()):
        try:
            side.prepare(verb, size)
            side.row(3)
            found[name] = {"host": [], "whole": [], "row": []}
        except Exception as error:  # one side may not be able to
            print(f"{verb} {size}: {name}: {error}", file=sys.stderr, flush=True)
            side.finish()
    each, row = EACH.get(size, 12), ROW.get(size, 10)
    for _ in range(rounds):
        for name, times in found.items():
            host, whole = sides[name].each(each)
            times["host"] += host
            times["whole"] += whole
            times["row"].append(sides[name].row(row))
    for name in found:
        sides[name].finish()
    return {name: {what: statistics.median(values) for what, values in times.items()}
            for name, times in found.items()}


def first_calls(options):
    """Each in a process of its own, with contexts and tensors there."""
    rows = []
    for verb, size in FIRST:
        row = {"verb": verb, "bytes": size}
        for side in ("ours", "torch"):
            command = [sys.executable, __file__, str(options.library), "--devices", options.devices,
                       "--first", side, verb, str(size)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode == 0:
                row[side] = float(done.stdout.split()[-1])
            else:
                print(f"first {verb}: {side}: {done.stderr[-300:]}", file=sys.stderr, flush=True)
        rows.append(row)
    return rows


def first_call(options):
    side, verb, size = options.first
    torch = None
    if side == "torch":
        torch = torch_or_none()
        if torch is None:
            return 1
    ours = Ours(options.library, int(options.devices))
    timed = Theirs(torch, ours) if torch else ours
    timed.prepare(verb, int(size))
    print(timed.each(1)[1][0] / 1e3)
    return 0


def cell(times, what, digits=1):
    return f"{times[what]:.{digits}f}" if times else "-"


def size_text(size):
    return "41 MB" if not size else f"{size >> 20} MiB" if size >= MIB else f"{size >> 10} KiB"


def table(report):
    print(f"\n{report['gpu']}, PyTorch {report['torch']}; microseconds: one call to its end on "
          "every device, one of many, the call alone; (f): on PyTorch's memory")
    print(f"{'verb':17}{'n':>3}{'size':>9} |{'ours':>9}{'of many':>9}{'host':>8}{'GB/s':>7} |"
          f"{'torch':>9}{'of many':>9}{'host':>8} | {'whole':>6}{'host':>6} ours/torch")
    for row in report["rows"]:
        ours, theirs = row.get("ours"), row.get("torch")
        size = row["bytes"] or row["moved"]
        speed = f"{size / ours['whole'] / 1e3:.0f}" if ours else "-"
        ratios = ["", ""]
        if ours and theirs:
            ratios = [f"{ours[what] / theirs[what]:.2f}" for what in ("whole", "host")]
        name = row["verb"] + (" (f)" if row["foreign"] else "")
        print(f"{name:17}{row['devices']:>3}{size_text(row['bytes']):>9} |{cell(ours, 'whole'):>9}"
              f"{cell(ours, 'row'):>9}{cell(ours, 'host', 2):>8}{speed:>7} |"
              f"{cell(theirs, 'whole'):>9}"
              f"{cell(theirs, 'row'):>9}{cell(theirs, 'host', 2):>8} |"
              f" {ratios[0]:>6}{ratios[1]:>6}")
    if report["first"]:
        print("\nfirst call of a process, ms: " + "; ".join(
            f"{row['verb']} {size_text(row['bytes'])}: {row.get('ours', float('nan')):.1f}"
            f" (torch {row.get('torch', float('nan')):.1f})" for row in report["first"]))
    if report["nccl_init_ms"] is not None:
        print(f"NCCL's communicators: {report['nccl_init_ms']:.0f} ms")


def bench_devices(options, torch, ours, report):
    """The rows for as many devices as `ours` has now."""
    n = ours.devices
    theirs = Theirs(torch, ours) if torch else None
    if not options.no_nccl:
        try:
            report["nccl_init_ms"] = ours.join()
        except RuntimeError as error:
            report["nccl_init_ms"] = None
            print(error, file=sys.stderr, flush=True)
    sets = [(False, VERBS, SIZES)]
    if options.foreign and torch:
        sets.append((True, VERBS[1:7], (4 * KIB, 16 * MIB, 1024 * MIB)))
    for foreign, verbs, sizes in sets:
        sides = {"ours": Foreign(torch, ours) if foreign else ours}
        if theirs:
            sides["torch"] = theirs
        for verb in verbs:
            if options.only not in verb:
                continue
            if verb.startswith("nccl") and report["nccl_init_ms"] is None:
                continue
            for size in (0,) if verb == "coalesced" else sizes:
                if size > options.most << 20:
                    continue
                row = {"verb": verb, "devices": n, "foreign": foreign, "bytes": size,
                       "moved": 4 * sum(SMALL) * 100}
                row.update(measured(sides, verb, size, options.rounds))
                report["rows"].append(row)
                done = {name: round(times["whole"], 1) for name, times in row.items()
                        if isinstance(times, dict)}
                print(verb, n, size_text(size), done, flush=True)
    ours.run("comm_end")


def bench(options):
    start = time.monotonic()
    torch = torch_or_none()
    if torch:
        # Before tcuda: contexts, and NCCL where PyTorch brings it along.
        for device in range(torch.cuda.device_count()):
            torch.zeros(1, device=device)
    counts = [int(count) for count in options.devices.split(",")]
    ours = Ours(options.library, counts[0])
    report = {"gpu": torch.cuda.get_device_name() if torch else "", "devices": [],
              "torch": torch.__version__ if torch else "none", "rows": [], "first": [],
              "nccl_init_ms": None}
    for count in counts:
        ours.begin(count)
        if ours.devices < 2:
            print("skipped: two devices are needed")
            return 0
        report["devices"].append(ours.devices)
        bench_devices(options, torch, ours, report)
    if not options.only and not options.no_first:
        options.devices = str(report["devices"][-1])
        report["first"] = first_calls(options)
    report["seconds"] = time.monotonic() - start
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        name = "_".join(str(count) for count in report["devices"])
        path = options.out / f"comm_{name}.json"
        path.write_text(json.dumps(report, indent=1) + "\n")
    table(report)
    print(f"{report['seconds']:.0f} s")
    return 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--devices", default="0", help="how many, or several numbers with commas")
    parser.add_argument("--out", type=pathlib.Path, help="folder for comm_N.json")
    parser.add_argument("--only", default="", help="verbs with this in their names")
    parser.add_argument("--most", type=int, default=1024, help="largest size, in MiB")
    parser.add_argument("--rounds", type=int, default=TURNS, help="turns of each side")
    parser.add_argument("--no-nccl", action="store_true", help="without communicators")
    parser.add_argument("--foreign", action="store_true", help="rows with PyTorch's memory as well")
    parser.add_argument("--no-first", action="store_true", help="without first calls")
    parser.add_argument("--check", action="store_true", help="compare results instead")
    parser.add_argument("--check-rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first:
        return first_call(options)
    if not options.check:
        return bench(options)
    if torch_or_none() is None:
        print("skipped: no PyTorch with a GPU")
        return 0
    import comm_check
    return comm_check.check(options, Ours)


if __name__ == "__main__":
    sys.exit(main())
