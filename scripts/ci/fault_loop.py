"""The fault loop over the C tests: each program is run with its k-th driver call, or its k-th call
of the C library, failing, with k = 1, 2, 3 ... until nothing is left to fail.

usage: fault_loop.py DIRECTORY [--all] [--most K] [--seconds N] [--jobs N] [--json FILE]
                     [--schedule NAME] [PROGRAM [RULE]]

DIRECTORY holds the programs that CMake built (build/dev/c_tests). A share takes ever longer steps
up to k = 400, or --most; --all has more kinds of faults and programs, and leaves no k out but with
--seconds, which ends it and has it take such steps too. --schedule is that of the simulated machine
for programs of which the list names none. PROGRAM is one row of the list that --list prints, RULE
one run of it: "*@17=2!", or "libc malloc@3=fail".

A run fails when the program crashes, hangs, or its report (c_tests/recovery.h,
c_tests/faults/watch.h) names a problem: an output written on failure, a wrong number of live
handles, a library that does not work again, driver objects that are alive when their context ends.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

RECOVERED = 78
SKIPPED = 77
TIMEOUT = 120
# A share tries every k up to this one, then takes ever longer steps; and no k beyond the last.
ALL_UP_TO = 12
MOST = 400
MOST_FAILURES = 40

# What a driver call gives, once or (!) for ever; lost: the device is lost with this call.
DRIVER = ["2", "2!", "999", "999!", "700", "700!", "lost", "slow:2ms"]
# Functions of the C library, as c_tests/faults/libc_faults.c names them; * is any.
# Without munmap for ever: addresses that cannot be given back are used up in the end.
LIBC = ["*", "mmap", "munmap", "mprotect", "madvise", "memfd_create", "ftruncate", "fallocate",
        "open", "read", "write", "pthread_create", "pthread_key_create", "pthread_setspecific",
        "pthread_atfork", "membarrier", "getrandom", "dlopen", "posix_memalign", "calloc",
        "realloc", "malloc"]
KINDS = [f"*@{{}}={effect}" for effect in DRIVER] + [
    f"libc {name}@{{}}={effect}" for name in LIBC for effect in ("fail", "fail!")
    if (name, effect) != ("munmap", "fail!")]

# What a share begins with.
SHARE = ["*@{}=2", "*@{}=999!", "*@{}=700", "*@{}=lost", "libc *@{}=fail", "libc *@{}=fail!"]

# Not in the loop: they set faults themselves, end in ways of their own, have an environment that is
# wrong, make driver objects of their own, shut down in the middle, where the driver may keep a
# context, check inside callbacks and captures, where recovery cannot begin, compile for seconds, or
# are several processes, of which one waits for what the other is refused.
LEFT_OUT = {"faults", "replay_faults", "denied", "cancel", "reclamation", "pluggable_hooks",
            "pool_memory", "forks", "log", "remedies", "without_driver", "without_driver_cc",
            "ended", "files", "kernel_headers", "many", "sync_debug_calls", "unmapped",
            "wrong_kind", "every_function", "dlopen", "hpp_cc", "compiled_hpp_cc",
            "memory_hpp_cc", "random_hpp_cc", "comm_hpp_cc",
            "quickstart_cc", "link_cc", "driver_gone", "driver_poor",
            "simulator_driver", "simulator_missing", "visible", "backend", "backends",
            "backends_capture", "pluggable", "sandbox", "teardown", "reentry", "capture",
            "contexts", "limits", "memory_event", "neighbours", "stream_routes",
            "privileges", "settings", "torch_streams",
            "nvtx_suballocations", "nvtx_ranges", "nvml_telemetry", "cublas_handles",
            "cufile_transfers", "file_failures",
            "race_clean_shutdown", "generator", "graph",
            "graph_calls", "graph_conditional", "graph_data", "graph_functions", "graph_hooks",
            "graph_hpp_cc", "graph_memory", "graph_random", "graphed_callable", "random_order",
            "tensor",
            "comm_capture", "comm_hammer", "communicator_failures", "communicator_library",
            "jit_cases", "compiler", "kernel", "kernel_launch", "kernel_link",
            "ipc", "ipc_death", "ipc_event", "ipc_hostile"}
# Only with --all: a run that comes to its end takes seconds.
SLOW = {"handles", "process", "statistics", "threads", "copy", "copy_threads", "comm",
        "comm_2_devices", "comm_parts", "comm_parts_2_devices", "communicator", "monitor",
        "nvtx", "blas", "solver", "sync_debug", "jit", "jit_torch"}
# The same programs on other machines.
LATE = ["stream", "event", "copy", "host", "host_cache", "host_crowd", "snapshot"]
TWO = ["device", "memory", "comm", "comm_parts"]
OPTIONS = "leaks=report"


@dataclasses.dataclass
class Program:
    name: str
    command: list
    options: str
    own: int = 0  # faults that it sets by itself


@dataclasses.dataclass
class Result:
    seconds: float = 0
    fired: int = 0
    absorbed: int = 0
    told: int = 0
    ended: str = ""
    problems: list = dataclasses.field(default_factory=list)


def programs(directory, schedule):
    """Every program of the loop."""
    own = f"schedule={schedule},{OPTIONS}"
    found = {path.name.removesuffix("_shared"): path for path in sorted(directory.glob("*_shared"))}
    rows = []
    for name, path in found.items():
        if name not in LEFT_OUT:
            rows.append(Program(name, [path], own))
    for suffix, names, options in (("threads", LATE, f"schedule=threads,devices=2,{OPTIONS}"),
                                   ("2_devices", TWO, f"devices=2,{own}")):
        rows += [Program(f"{name}_{suffix}", [found[name]], options)
                 for name in names if name in found]
    for path in sorted(directory.glob("race_clean_*")):
        if path.name in LEFT_OUT:
            continue
        rows.append(Program(path.name, [path, "--seeds", "1", "1"], OPTIONS))
    return rows


def preloaded(directory, rule):
    libraries = [directory / "libwatch.so"]
    if rule.startswith("libc "):
        libraries.append(directory / "liblibc_faults.so")
    sanitizer = os.environ.get("TCUDA_TEST_PRELOAD")
    return ":".join(([sanitizer] if sanitizer else []) + [str(path) for path in libraries])


def run(directory, program, rule):
    """One run, and what came of it."""
    result, start = Result(), time.monotonic()
    environment = dict(os.environ, TCUDA_BACKEND="sim", TCUDA_SIM=program.options,
                       LD_PRELOAD=preloaded(directory, rule))
    environment.setdefault("TCUDA_NCCL_PATH", str(directory / "libfake_nccl.so"))
    # Where ctest keeps kernels: each is compiled once.
    environment.setdefault("TCUDA_KERNEL_CACHE_PATH", str(directory.parent / "kernels"))
    environment["TCUDA_LIBC_FAULTS" if rule.startswith("libc ") else "TCUDA_FAULTS"] = \
        rule.removeprefix("libc ")
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report"
        environment["TCUDA_TEST_RECOVERY"] = str(report)
        try:
            done = subprocess.run(program.command, env=environment, cwd=folder, timeout=TIMEOUT,
                                  capture_output=True, stdin=subprocess.DEVNULL, text=True,
                                  errors="replace", check=False)
            status, said = done.returncode, done.stderr
        except subprocess.TimeoutExpired:
            status, said = None, ""
            result.problems.append(f"hangs: not over after {TIMEOUT} s")
        lines = report.read_text(errors="replace").splitlines() if report.exists() else []
    for line in lines:
        kind, _, text = line.partition(": ")
        if kind == "problem":
            result.problems.append(text)
        elif kind == "ended":
            result.ended = result.ended or text
        elif kind == "fired":
            fired, told, absorbed = (int(part.split()[-1]) for part in text.split(","))
            result.fired += fired
            result.told += told
            result.absorbed += absorbed
    judge(result, rule, status, said)
    result.seconds = time.monotonic() - start
    return result


def judge(result, rule, status, said):
    """Adds what the exit status and stderr tell."""
    if status is not None and status < 0:
        result.problems.append(f"ended by signal {-status}: {said.strip()[-400:]}")
    elif status not in (0, SKIPPED, RECOVERED, None):
        result.problems.append(f"ended with status {status}: {said.strip()[-600:]}")
    # A shutdown in the middle of faults that do not end cannot give back what the driver refuses.
    if rule.endswith("!"):
        said = said.partition("faults end\n")[2]
    # What a lost device does not take back any more goes with its context.
    if "=lost" not in rule:
        result.problems += [
            line for line in said.splitlines() if line.startswith("simulated machine:")]


class Cursor:
    """The runs of one program with one kind of fault."""

    def __init__(self, program, kind):
        self.program, self.kind, self.next = program, kind, 1
        self.fired = self.runs = 0
        self.seconds = 0.0
        self.is_whole = False  # ran until nothing was left to fail

    def take(self, takes_all):
        k = self.next
        self.next = None
        step = 1 if takes_all or k < ALL_UP_TO else 1 + k // 4
        return self.kind.format(k), k + step


def report_failure(program, rule, problems, directory):
    print(f"FAILED python3 scripts/ci/fault_loop.py {directory} {program.name} '{rule}'",
          flush=True)
    for problem in problems[:6]:
        print(f"    {problem}", flush=True)


class Loop:
    def __init__(self, options, cursors):
        self.options, self.cursors = options, cursors
        self.start = time.monotonic()
        self.failures, self.silent = 0, {}

    def goes_on(self):
        limit = self.options.seconds
        in_time = limit is None or time.monotonic() - self.start < limit
        return in_time and self.failures < MOST_FAILURES

    def finished(self, cursor, rule, following, result):
        cursor.runs += 1
        cursor.seconds += result.seconds
        # A program that ended early did not come to all faults of its own.
        cursor.fired += max(result.fired - cursor.program.own, int(result.ended != ""))
        fired = result.ended != "" or result.fired != cursor.program.own or result.problems
        most = self.options.most
        cursor.next = following if fired and (most is None or following <= most) else None
        cursor.is_whole = not fired
        if result.ended and result.told == 0 and result.absorbed > 0:
            self.silent.setdefault((cursor.program.name, result.ended), rule)
        if result.problems:
            self.failures += 1
            report_failure(cursor.program, rule, result.problems, self.options.directory)

    def run(self):
        """Always the cursor that took the least time so far, several runs at a time."""
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            pending = {}
            while self.goes_on():
                waiting = [cursor for cursor in self.cursors if cursor.next is not None]
                if waiting and len(pending) < 2 * self.options.jobs:
                    cursor = min(waiting, key=lambda cursor: cursor.seconds)
                    rule, following = cursor.take(self.options.takes_all)
                    future = pool.submit(run, self.options.directory, cursor.program, rule)
                    pending[future] = (cursor, rule, following)
                elif pending:
                    self.collect(pending)
                else:
                    break
            while pending:
                self.collect(pending)

    def collect(self, pending):
        done, _ = concurrent.futures.wait(
            pending, return_when=concurrent.futures.FIRST_COMPLETED)
        for future in done:
            self.finished(*pending.pop(future), future.result())

    def summary(self):
        kinds, left = {}, sum(not cursor.is_whole for cursor in self.cursors)
        for cursor in self.cursors:
            kinds[cursor.kind] = kinds.get(cursor.kind, 0) + cursor.fired
        for kind, count in kinds.items():
            if count:
                print(f"  {kind.format('k'):32} {count:>9}")
        for (name, check), rule in self.silent.items():
            print(f"  no call failed, yet {name} ended at \"{check}\" with '{rule}'")
        seconds = time.monotonic() - self.start
        injections, runs = sum(kinds.values()), sum(cursor.runs for cursor in self.cursors)
        programs = len({cursor.program.name for cursor in self.cursors})
        print(f"{injections} injections in {runs} runs of {programs} C programs, {left} of"
              f" {len(self.cursors)} loops not run to the end, {seconds:.1f} s,"
              f" {self.failures} failed")
        if self.options.json:
            self.options.json.write_text(json.dumps(
                {"injections": injections, "runs": runs, "kinds": kinds, "seconds": seconds,
                 "not_run_to_the_end": left, "failed": self.failures}, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].removeprefix("usage: "))
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("program", nargs="?")
    parser.add_argument("rule", nargs="?")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--most", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--schedule", default="immediate")
    parser.add_argument("--kinds", default="", help="only kinds that contain this text")
    parser.add_argument("--no-libc", action="store_true", help="only faults of the driver")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    options.directory = options.directory.resolve()
    is_share = not options.all and options.program is None
    if options.most is None and is_share:
        options.most = MOST
    options.takes_all = not is_share and options.seconds is None

    chosen = [row for row in programs(options.directory, options.schedule)
              if options.program in (None, row.name)]
    if not options.all and options.program is None:
        chosen = [row for row in chosen if row.name not in SLOW]
    for library in ("libwatch.so", "liblibc_faults.so"):
        if not (options.directory / library).exists():
            sys.exit(f"{options.directory} has no {library}, without which no fault is seen")
    if not chosen:
        sys.exit(f"no such programs in {options.directory}; build them first, or see --list")
    if options.list:
        for program in chosen:
            print(f"{program.name:32} {program.options}")
        return 0
    # Without a fault all is well, or the loop would prove nothing.
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda program: run(options.directory, program, ""), chosen))
    for program, result in zip(chosen, results):
        program.own = result.fired
        if result.problems or result.ended:
            report_failure(program, "", result.problems or [result.ended], options.directory)
            return 1
    if options.rule is not None:
        for program in chosen:
            result = run(options.directory, program, options.rule)
            print(result)
        return 1 if result.problems else 0
    kinds = [kind for kind in (KINDS if options.all or options.program else SHARE)
             if options.kinds in kind and not (options.no_libc and kind.startswith("libc"))]
    cursors = [Cursor(program, kind) for kind in kinds for program in chosen]
    loop = Loop(options, cursors)
    loop.run()
    loop.summary()
    return 1 if loop.failures else 0


if __name__ == "__main__":
    sys.exit(main())
