#!/usr/bin/env python3
"""What tcuda.torch.enable() brings to PyTorch programs, on one GPU: those of torch_models.py on
PyTorch's allocator, on PyTorch's with expandable_segments:True, and on tcuda, by turns.

  torch_programs.py LIBRARY --out FILE [--processes N] [--rounds N] [--seconds S]
                    [--programs NAME,...] [--allocators NAME,...] [--searches NAME,...]
  torch_programs.py --tables FILE
  torch_programs.py --draw FILE SVG

LIBRARY is libtcuda.so. The first form measures, prints each process and tables, and writes FILE; it
ends with 1 if a process fails, or if tcuda's losses differ where PyTorch's own are equal. The
others print the tables of FILE, and draw its memory. Ends with 77 where there is no PyTorch or no
GPU.

Each program runs in a process for each allocator, forked by one that has only imported PyTorch.
The three start one after another; then one of them at a time does some steps, in each round in
another order, and the others wait. All that is done `--processes` times.
  - Memory: NVML's bytes in use of the device are sampled each 2 ms. What they rise by while a
    process runs is that process's. CUDA's context and libraries are included.
  - Steps a second: by the wall clock, with one synchronisation at the end.
  - Host time: processor time of all threads of the process for a step, while waits for the device
    sleep; of further steps.
  - Segment events: what the history says of segments in a step then: allocated, freed, mapped,
    unmapped. tcuda has such events, but makes no driver call, when it uses a second mapping again.
The search within a limit runs in one process for each program and allocator. It bisects the batch
size to 3 % with set_per_process_memory_fraction, and goes on after each OutOfMemoryError.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import dataclasses
import gc
import json
import os
import pathlib
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import types
from typing import Any, Callable, Iterator, Optional
from xml.sax.saxutils import escape

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parent / "python" / "tcuda"
SKIPPED = 77
ALLOCATORS = ("torch", "expandable", "tcuda")
TITLES = {"torch": "PyTorch", "expandable": "expandable_segments:True", "tcuda": "tcuda"}
SETTINGS = {"torch": "expandable_segments:False", "expandable": "expandable_segments:True"}
GIB = 1 << 30
LIMIT = 12 * GIB
PROCESS_SECONDS, SEARCH_STEPS, HISTORY_STEPS = 120, 4, 3
LONG_STARTS = ("compiled", "resnet")  # two processes have to be enough
BLOCKING_SYNC, SCHEDULING = 4, 7  # of the flags of a context


# ---- In the process of a program ----


def enable_tcuda() -> None:
    """tcuda.torch alone: the package around it has a compiled part, which is not needed here."""
    package = types.ModuleType("tcuda")
    package.__path__ = [str(PACKAGE)]
    sys.modules["tcuda"] = package
    import tcuda.torch

    tcuda.torch.enable()


def check_allocator(torch: Any, allocator: str) -> None:
    """Is it the allocator that the row says?"""
    name = torch.cuda.get_allocator_backend()
    expandable = any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot())
    found = name if name == "tcuda" else "expandable" if expandable else "torch"
    if found != allocator:
        raise RuntimeError(f"the allocator is {found}, not {allocator}")


def sleep_in_waits(sleep: bool) -> None:
    """Has the host sleep when it waits for the device, or else use the processor."""
    cuda, flags = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint()
    wanted = BLOCKING_SYNC if sleep else 0
    if cuda.cuCtxGetFlags(ctypes.byref(flags)) \
            or cuda.cuCtxSetFlags(flags.value & ~SCHEDULING | wanted):
        raise RuntimeError("the driver does not change the flags of the context")


def share_of_waits(torch: Any) -> float:
    """The processor time of a wait for the device, by its time."""
    sleep_in_waits(True)
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    wall, host = time.perf_counter(), time.process_time()
    torch.cuda._sleep(10_000_000)
    torch.cuda.synchronize()
    wall, host = time.perf_counter() - wall, time.process_time() - host
    sleep_in_waits(False)
    return host / wall


def measure(name: str, allocator: str, rounds: int) -> Iterator[dict]:
    """Starts a program; then does some steps, `rounds` times; then says what it used."""
    import torch
    import torch_models

    begin = time.perf_counter()
    if allocator == "tcuda":
        enable_tcuda()
    program, cuda, losses = torch_models.PROGRAMS[name], torch.cuda, []
    step = torch_models.build(program, program.batch)
    cuda.synchronize()
    built = time.perf_counter()

    def do(count: int) -> None:
        for _ in range(count):
            losses.append(step(len(losses)))

    do(1)
    cuda.synchronize()
    first = time.perf_counter() - built
    do(program.warm)
    waits = share_of_waits(torch)
    yield {"start_s": built - begin, "first_step_s": first, "host_share_of_waits": waits,
           "warm_s": time.perf_counter() - built - first}
    for _ in range(rounds):
        wall = time.perf_counter()
        do(program.steps)
        cuda.synchronize()
        wall = time.perf_counter() - wall
        sleep_in_waits(True)
        issued, host, count = [], time.process_time(), (program.steps + 1) // 2
        for _ in range(count):
            before = time.perf_counter()
            do(1)
            issued.append(time.perf_counter() - before)
            cuda.synchronize()
        host = time.process_time() - host
        sleep_in_waits(False)
        yield {"steps_per_s": program.steps / wall, "host_ms": host / count * 1e3,
               "issue_ms": statistics.median(issued) * 1e3}
    check_allocator(torch, allocator)
    stats = cuda.memory_stats()
    cuda.memory._record_memory_history("all", context=None)
    do(HISTORY_STEPS)
    history = cuda.memory._snapshot()["device_traces"][0]
    yield {
        "segment_events": sum(event["action"].startswith("segment") for event in history)
        / HISTORY_STEPS,
        "losses": [loss.hex() for loss in torch.stack(losses).double().tolist()],
        "reserved": stats["reserved_bytes.all.peak"],
        "allocated": stats["allocated_bytes.all.peak"],
        "allocations": sum(event["action"] == "alloc" for event in history) / HISTORY_STEPS,
        "segments": stats["segment.all.allocated"], "device_alloc": stats["num_device_alloc"],
        "device_free": stats["num_device_free"], "retries": stats["num_alloc_retries"],
        "device": cuda.get_device_name(), "torch": torch.__version__,
    }


def search(name: str, allocator: str, _rounds: int) -> Iterator[dict]:
    """The largest batch that trains within LIMIT, and whether a small one trains as before then."""
    import torch
    import torch_models

    if allocator == "tcuda":
        enable_tcuda()
    program, failures = torch_models.PROGRAMS[name], 0

    def losses(batch: int) -> Optional[list[str]]:
        nonlocal failures
        try:
            step = torch_models.build(program, batch)
            found = [step(index) for index in range(SEARCH_STEPS)]
            return [loss.hex() for loss in torch.stack(found).double().tolist()]
        except torch.OutOfMemoryError:
            failures += 1
            return None

    def trains(batch: int) -> bool:
        found = losses(batch)
        gc.collect()
        torch.cuda.empty_cache()
        return found is not None

    begin = time.perf_counter()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(LIMIT / total)
    before = losses(2)
    low, high = 2, program.most + 1
    while high - low > max(1, low // 32):
        middle = (low + high) // 2
        low, high = (middle, high) if trains(middle) else (low, middle)
    after = losses(2)
    check_allocator(torch, allocator)
    yield {"batch": low, "most": program.most, "failures": failures,
           "recovers": before is not None and before == after,
           "reserved": torch.cuda.memory_stats()["reserved_bytes.all.peak"],
           "search_s": time.perf_counter() - begin}


# ---- Processes ----


def serve(allocator: str) -> None:
    """For a line with the name of a function, its program, rounds and a file for the output, forks
    a process that yields an answer then, and one for each further line. After the last of them, or
    if it fails, the answer is that it has ended."""
    sys.path.insert(0, str(HERE))
    import torch
    import torch_models

    # What needs no GPU and all programs do: a process that has used CUDA cannot fork.
    torch_models.prepare()
    commands, answers = open(0, "rb", buffering=0), os.dup(1)
    os.dup2(2, 1)

    def answer(value: Any) -> None:
        os.write(answers, json.dumps(value).encode() + b"\n")

    answer({"torch": torch.__version__})
    while line := commands.readline():
        kind, name, rounds, output = json.loads(line)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
                os.dup2(file, 1)
                os.dup2(file, 2)
                signal.alarm(PROCESS_SECONDS)
                for value in {"measure": measure, "search": search}[kind](name, allocator, rounds):
                    answer(value)
                    commands.readline()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        said = pathlib.Path(output).read_text(errors="replace")[-3000:] if status else ""
        answer({"ended": status, "said": said})


class DeviceMemory:
    """Bytes in use of device 0."""

    def __init__(self) -> None:
        self.nvml, self.device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        self._check(self.nvml.nvmlInit_v2())
        self._check(self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device)))

    @staticmethod
    def _check(status: int) -> None:
        if status:
            raise OSError(f"NVML: {status}")

    def used(self) -> int:
        values = (ctypes.c_uint64 * 3)()  # total, free, used
        self._check(self.nvml.nvmlDeviceGetMemoryInfo(self.device, values))
        return values[2]


class Server:
    """A process that imports PyTorch once for all programs on an allocator."""

    def __init__(self, allocator: str, memory: DeviceMemory) -> None:
        environment = dict(os.environ)
        for key in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "TCUDA_ALLOC_CONF"):
            environment.pop(key, None)
        if allocator in SETTINGS:
            environment["PYTORCH_CUDA_ALLOC_CONF"] = SETTINGS[allocator]
        # Counts devices without cuInit, after which no process can be forked.
        environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "--serve", allocator], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.memory, self.current, self.peak = memory, 0, 0

    def send(self, *what: Any) -> None:
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        self.process.stdin.flush()

    def begin(self, *what: Any) -> dict:
        self.current = self.peak = 0
        return self.next(*what)

    def next(self, *what: Any) -> dict:
        """The next answer. Memory that is used meanwhile is the process's."""
        before = self.memory.used()
        highest = before
        self.send(*what)
        while not select.select([self.process.stdout], [], [], 0.002)[0]:
            highest = max(highest, self.memory.used())
        after = self.memory.used()
        self.peak = max(self.peak, self.current + max(highest, after) - before)
        self.current += after - before
        return self.receive()

    def receive(self) -> dict:
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()


# ---- Tables ----


@dataclasses.dataclass(frozen=True)
class Column:
    title: str
    key: str
    unit: float
    form: str
    more_is_better: bool = False

    def text(self, runs: list[dict]) -> str:
        """The median and the range."""
        values = [part[self.key] / self.unit for run in runs for part in (run, *run["rounds"])
                  if self.key in part]
        if not values:
            return "-"
        middle, low, high = (format(f(values), self.form)
                             for f in (statistics.median, min, max))
        return middle if low == high else f"{middle} ({low} to {high})"


COLUMNS = (
    Column("peak of the process (GiB)", "peak", GIB, ".2f"),
    Column("reserved at the peak (GiB)", "reserved", GIB, ".2f"),
    Column("allocated at the peak (GiB)", "allocated", GIB, ".2f"),
    Column("steps a second", "steps_per_s", 1, ".2f", True),
    Column("host time of a step (ms)", "host_ms", 1, ".2f"),
    Column("time until a step is issued (ms)", "issue_ms", 1, ".2f"),
    Column("first step (s)", "first_step_s", 1, ".3f"),
    Column("allocations of a step", "allocations", 1, ".0f"),
    Column("segment events of a step", "segment_events", 1, ".1f"),
)


def by_program(runs: list[dict]) -> dict[str, dict[str, list[dict]]]:
    found: dict = collections.defaultdict(lambda: {allocator: [] for allocator in ALLOCATORS})
    for run in runs:
        if "error" not in run:
            found[run["program"]][run["allocator"]].append(run)
    return found


def tables(result: dict) -> str:
    """The measured tables, in Markdown."""
    programs, lines = by_program(result["runs"]), []
    head = " | ".join(TITLES[allocator] for allocator in ALLOCATORS)
    for column in COLUMNS:
        lines += ["", f"**{column.title}**", "", f"| | {head} |", "|---|---:|---:|---:|"]
        for name, runs in programs.items():
            cells = " | ".join(column.text(runs[allocator]) for allocator in ALLOCATORS)
            lines.append(f"| {name} | {cells} |")
    if result["searches"]:
        lines += ["", f"**largest batch within {LIMIT // GIB} GiB**", "", f"| | {head} |",
                  "|---|---:|---:|---:|"]
        found: dict = collections.defaultdict(dict)
        for run in result["searches"]:
            found[run["program"]][run["allocator"]] = run
        for name, runs in found.items():
            cells = " | ".join(str(runs.get(allocator, {}).get("batch", "-"))
                               for allocator in ALLOCATORS)
            lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


def differences(runs: list[list[str]]) -> str:
    """How many losses differ between runs, and the first of them; empty if none does."""
    found = [index for index, values in enumerate(zip(*runs)) if len(set(values)) > 1]
    if not found and len(set(map(len, runs))) == 1:
        return ""
    values = sorted(float.fromhex(run[found[0]]) for run in runs) if found else []
    return f"{len(found)} of {len(runs[0])}, first {found[:1]} {values[:1]} to {values[-1:]}"


def compare_losses(runs: list[dict]) -> tuple[list[str], bool]:
    """A line for each program, and whether tcuda's losses are PyTorch's where those are equal."""
    lines, right = [], True
    for name, found in by_program(runs).items():
        theirs = [run["losses"] for run in found["torch"] + found["expandable"]]
        ours = [run["losses"] for run in found["tcuda"]]
        if len(theirs) < 2 or not ours:
            lines.append(f"{name}: too few runs")
        elif differing := differences(theirs):
            lines.append(f"{name}: PyTorch's own runs differ: {differing}")
        elif differing := differences([theirs[0], *ours]):
            lines.append(f"{name}: tcuda's losses DIFFER from PyTorch's: {differing}")
            right = False
        else:
            first, last = (float.fromhex(theirs[0][index]) for index in (0, -1))
            lines.append(f"{name}: {len(theirs[0])} losses of {len(ours)} runs equal to the last "
                         f"bit, {first:.4f} to {last:.4f}")
    return lines, right


# ---- A picture ----


def picture(result: dict) -> str:
    """Bars of the process's peak for each program and allocator, as SVG."""
    colours = {"torch": "#e08e0b", "expandable": "#8e6bb0", "tcuda": "#c0392b"}
    programs = by_program(result["runs"])
    peaks = {name: {allocator: statistics.median(run["peak"] for run in found) / GIB
                    for allocator, found in runs.items() if found}
             for name, runs in programs.items()}
    most = max(value for values in peaks.values() for value in values.values())
    left, right, top, bar, gap = 110, 150, 58, 11, 12
    width, height = 720, top + len(peaks) * (3 * bar + gap) + 10
    scale = (width - left - right) / most
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{left}" y="22" font-size="15">Peak memory of the process, GiB</text>']
    at = left
    for allocator in ALLOCATORS:
        parts.append(f'<rect x="{at}" y="34" width="10" height="10" fill="{colours[allocator]}"/>')
        parts.append(f'<text x="{at + 15}" y="43">{escape(TITLES[allocator])}</text>')
        at += 40 + 7 * len(TITLES[allocator])
    y = top
    for name, values in peaks.items():
        parts.append(f'<text x="{left - 8}" y="{y + 1.5 * bar + 4:.1f}" text-anchor="end">'
                     f'{escape(name.replace("_", " "))}</text>')
        for allocator, value in values.items():
            parts.append(f'<rect x="{left}" y="{y}" width="{value * scale:.1f}" '
                         f'height="{bar - 1}" fill="{colours[allocator]}"/>')
            parts.append(f'<text x="{left + value * scale + 4:.1f}" y="{y + bar - 2}" '
                         f'font-size="10">{value:.2f}</text>')
            y += bar
        y += gap
    return "\n".join([*parts, "</svg>"]) + "\n"


# ---- All runs ----


def row(run: dict) -> str:
    head = f"{run['program']:<14}{run['allocator']:<11}{run['seconds']:5.1f} s "
    if "error" in run:
        return f"{head}FAILED {run['error']}"
    middle = {key: statistics.median(part[key] for part in run["rounds"])
              for key in (run["rounds"] or [{}])[0]}
    return (f"{head}peak {run['peak'] / GIB:6.2f} reserved {run['reserved'] / GIB:6.2f} allocated "
            f"{run['allocated'] / GIB:6.2f} GiB, {middle.get('steps_per_s', 0):7.2f} steps/s, host "
            f"{middle.get('host_ms', 0):7.2f} issue {middle.get('issue_ms', 0):7.2f} ms, start "
            f"{run['start_s']:.2f} first {run['first_step_s']:.2f} warm {run['warm_s']:.2f} s, "
            f"calls {run['device_alloc']}+{run['device_free']}, a step {run['segment_events']:.1f} "
            f"and {run['allocations']:.0f} allocations, waits {run['host_share_of_waits']:.2f}, "
            f"{float.fromhex(run['losses'][-1]):.5f}")


def take_turns(servers: dict[str, Server], order: list[str], name: str, rounds: int,
               folder: pathlib.Path) -> list[dict]:
    """One process of a program for each allocator; they do their rounds by turns."""
    runs = {allocator: {"program": name, "allocator": allocator, "seconds": 0.0, "rounds": []}
            for allocator in order}

    def advance(allocator: str, line: Optional[list] = None) -> dict:
        run, server = runs[allocator], servers[allocator]
        if "error" in run:
            return {}
        begin = time.monotonic()
        answer = server.begin(*line) if line else server.next()
        run["seconds"] += time.monotonic() - begin
        if "ended" in answer:
            run["error"] = f"ended with {answer['ended']}: {answer['said']}"
            return {}
        return answer

    for allocator in order:
        output = folder / f"{name}_{allocator}.txt"
        runs[allocator].update(advance(allocator, ["measure", name, rounds, str(output)]))
    for number in range(rounds):
        shift = number % len(order)
        for allocator in order[shift:] + order[:shift]:
            runs[allocator]["rounds"].append(advance(allocator))
    for allocator in order:
        run, server = runs[allocator], servers[allocator]
        run["peak"] = server.peak
        run.update(advance(allocator))
        if "error" not in run and (answer := server.next())["ended"] != 0:
            run["error"] = f"ended with {answer['ended']}: {answer['said']}"
    return list(runs.values())


def warm_up(servers: dict[str, Server], programs: list[str], folder: pathlib.Path) -> list[dict]:
    """Reads libraries from the disk and compiles, so that the first measured processes need not:
    a program on each allocator, those with long starts among them, all at once."""
    first = [name for name in LONG_STARTS if name in programs]
    first += [name for name in programs if name not in LONG_STARTS] or first
    warm = dict(zip(servers, first * len(servers)))
    for allocator, name in warm.items():
        output = str(folder / f"first_{name}_{allocator}.txt")
        servers[allocator].send("measure", name, 0, output)
    for server in servers.values():
        while "ended" not in (answer := server.receive()):
            server.send()
        print(answer["said"])
    return []


def search_all(servers: dict[str, Server], name: str, folder: pathlib.Path) -> list[dict]:
    found = []
    for allocator, server in servers.items():
        output = folder / f"search_{name}_{allocator}.txt"
        run = {"program": name, "allocator": allocator}
        run.update(server.begin("search", name, 0, str(output)))
        if "ended" in run:
            run["error"] = f"ended with {run['ended']}: {run['said']}"
        else:
            server.next()
        print(run, flush=True)
        found.append(run)
    return found


def drive(options: argparse.Namespace) -> bool:
    """Does all within the time; is everything as it should be?"""
    start, memory = time.monotonic(), DeviceMemory()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="torch_programs"))
    print(f"The output of the processes is in {folder}")
    servers = {allocator: Server(allocator, memory) for allocator in options.allocators}
    for server in servers.values():
        server.receive()
    result: dict = {"date": time.strftime("%Y-%m-%d"), "limit": LIMIT, "runs": [], "searches": []}

    def step(what: str, work: Callable[[], list[dict]], into: list[dict]) -> None:
        if time.monotonic() - start > options.seconds:
            print(f"no time is left for {what}")
            return
        into += work()
        options.out.write_text(json.dumps(result, indent=1) + "\n")
        print(f"{time.monotonic() - start:.0f} s: {what}", flush=True)

    def program(name: str, number: int, rounds: int) -> list[dict]:
        shift = number % len(servers)
        order = (list(servers) * 2)[shift:shift + len(servers)]
        runs = take_turns(servers, order, name, rounds, folder)
        print(*map(row, runs), sep="\n", flush=True)
        return runs

    step("PyTorch is imported", list, [])
    step("warm-up", lambda: warm_up(servers, options.programs, folder), [])
    for number in range(options.processes):
        for name in options.programs:
            if number >= 2 and name in LONG_STARTS:
                continue
            step(f"{name}, process {number + 1}",
                 lambda: program(name, number, options.rounds), result["runs"])
        for name in options.searches if number == min(1, options.processes - 1) else ():
            step(f"search of {name}", lambda: search_all(servers, name, folder),
                 result["searches"])
    for server in servers.values():
        server.end()
    result["losses"], right = compare_losses(result["runs"])
    losses = {f"{run['program']} {run['allocator']} {index}": run.pop("losses", None)
              for index, run in enumerate(result["runs"])}
    options.out.with_suffix(".losses.json").write_text(json.dumps(losses) + "\n")
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(tables(result), *result["losses"], sep="\n")
    failed = [found for found in result["runs"] + result["searches"] if "error" in found]
    stuck = [found for found in result["searches"] if found.get("recovers") is False]
    print(f"{len(result['runs'])} processes and {len(result['searches'])} searches, {len(failed)} "
          f"failed, {len(stuck)} did not recover from lack of memory")
    return right and not failed and not stuck


def names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("library", type=pathlib.Path, nargs="?")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1e9, help="nothing begins after this")
    parser.add_argument("--programs", type=names, help="not all")
    parser.add_argument("--allocators", type=names, default=list(ALLOCATORS), help="not all")
    parser.add_argument("--searches", type=names, help="not all; empty: none")
    parser.add_argument("--tables", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--draw", nargs=2, type=pathlib.Path, metavar=("FILE", "SVG"))
    parser.add_argument("--serve", choices=ALLOCATORS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.draw:
        options.draw[1].write_text(picture(json.loads(options.draw[0].read_text())))
        return
    if options.tables:
        print(tables(json.loads(options.tables.read_text())))
        return
    if options.serve:
        serve(options.serve)
        return
    if not options.library or not options.out:
        parser.error("LIBRARY and --out are needed")
    options.out = options.out.resolve()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    os.environ["TCUDA_LIBRARY"] = str(options.library.resolve())
    os.environ.setdefault("TCUDA_TORCH_CACHE", str(options.out.parent / "cache"))
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(options.out.parent / "inductor"))
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    check = ("import sys, torch; sys.path.insert(0, sys.argv[1]); import torch_models as m; "
             "print(*m.PROGRAMS); print(*[n for n, p in m.PROGRAMS.items() if p.most]); "
             "sys.exit(0 if torch.cuda.is_available() else 1)")
    done = subprocess.run([sys.executable, "-c", check, str(HERE)], text=True, capture_output=True)
    if done.returncode != 0:
        print("skipped: PyTorch is missing, or sees no GPU")
        sys.exit(SKIPPED)
    programs, searches = (line.split() for line in done.stdout.splitlines()[:2])
    options.programs = options.programs or programs
    if options.searches is None:
        options.searches = searches
    sys.exit(0 if drive(options) else 1)


if __name__ == "__main__":
    main()
