#!/usr/bin/env python3
"""tcuda beside its peers: runs the programs that peers.sh built, by turns, and compares.

    benches/peers/peers.py --programs DIR [--quick] [--rounds N] [--only GROUP]... OUT TRACE...

DIR holds peers_tcuda, peers_torch, ...; OUT gets peers.json, tables.md and the plots. Each round
runs one process of each peer after the other, so that a machine that speeds up or slows down does
so for all; figures are medians over the rounds. A peer or a group that fails is listed, and the
others go on. The exit status is 1 when tcuda did not run, or its peaks of allocated or requested
bytes are not PyTorch's, to the byte.
"""

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time

import plots
import tables

GROUPS = ("pairs", "churn", "latency", "random", "step", "recorded", "threads", "handoff", "traces",
          "rotation", "regrow", "events", "driver")
# They have a process each, and so has each trace.
ALONE = ("traces", "regrow")
# They take a second or two: what a machine does for some seconds shows if they run several times.
SHORT = ("pairs", "churn", "latency", "step", "recorded", "threads", "handoff")
# Of which there is a floor: of the search alone, and of all that is asked for.
FLOOR_GROUPS = {"pairs", "churn", "latency", "random", "step", "recorded", "handoff"}
WHOLE_GROUPS = {"pairs", "churn", "latency", "random", "step", "recorded", "traces"}
EXPANDABLE = "expandable_segments:True"
# Peer: program, PyTorch's configuration, what it is not asked for, whether it means anything
# over a stub of the CUDA runtime.
PEERS = {
    "tcuda": ("tcuda", "", ("driver",), True),
    "torch": ("torch", "", ("driver",), True),
    "torch_expandable": ("torch", EXPANDABLE, ("events", "driver"), True),
    "malloc": ("cuda", "", tuple({*GROUPS, "limits"} - {"pairs", "events", "driver"}), False),
    "torch_async": ("torch", "backend:cudaMallocAsync", ("events", "limits", "driver"), False),
    "malloc_async": ("cuda", "", ("driver",), False),
    "cub": ("cuda", "", ("driver",), True),
    "rmm_pool": ("rmm", "", ("driver",), False),
    "rmm_arena": ("rmm", "", ("driver",), False),
    "rmm_async": ("rmm", "", ("driver",), False),
    # No peers: what the workload takes at least.
    "floor": ("floor", "", tuple({*GROUPS, "limits"} - FLOOR_GROUPS), True),
    "floor_whole": ("floor", "", tuple({*GROUPS, "limits"} - WHOLE_GROUPS), True),
}
STARTS = 7


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--backend", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="less of everything: four minutes")
    parser.add_argument("--rounds", type=int, help="default: 5; 2 with --quick")
    parser.add_argument("--again", type=int, default=0, metavar="N",
                        help="after the rounds, so many more of the groups that take a second")
    parser.add_argument("--seconds", type=int,
                        help="no round starts that would pass them; default: 200 with --quick")
    parser.add_argument("--only", action="append", metavar="GROUP", default=[],
                        choices=(*GROUPS, "limits", "start"), help=", ".join((*GROUPS, "start")))
    parser.add_argument("--limits", action="store_true",
                        help="also the smallest limit at which each trace completes")
    parser.add_argument("--peer", action="append", default=[], choices=PEERS,
                        help="only this one, or these")
    parser.add_argument("--timeout", type=int, metavar="SECONDS",
                        help="of a process; default: 400; 90 with --quick")
    parser.add_argument("--programs", required=True, metavar="DIR", help="what peers.sh built")
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("traces", nargs="*", metavar="TRACE")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.timeout = options.timeout or (90 if options.quick else 400)
    options.seconds = options.seconds or (200 if options.quick else None)
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    groups = options.only or [*GROUPS, "start"]
    options.starts = "start" in groups
    # Limits are not a matter of rounds: they run once, at the end.
    options.limits = options.limits or "limits" in groups
    options.groups = [g for g in groups if g in GROUPS]
    return options


def output_of(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine(options):
    gpu = output_of(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])
    name, _, driver = (gpu.splitlines() or [""])[0].partition(", ")
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        cpu = re.search(r"^model name\s*: (.*)", file.read(), re.MULTILINE)
    return {"backend": options.backend, "gpu": name if options.backend == "cuda" else "simulated",
            "driver": driver, "cpu": cpu[1] if cpu else platform.machine(), "cores": os.cpu_count(),
            "date": datetime.date.today().isoformat()}


class Results:
    """What the programs said: rows by group, name, figure and peer; lists; and what is left out."""

    def __init__(self):
        self.samples = {}
        self.memory = {}
        self.left_out = {}

    def take(self, peer, line):
        row = json.loads(line)
        for state in ("skipped", "failed"):
            if state in row:
                self.leave_out(peer, row[state], f"{state}: {row['why']}")
                return
        group, name = row.pop("group"), row.pop("name")
        if group == "memory":
            self.memory.setdefault(name, {})[peer] = row
            return
        figures = self.samples.setdefault(group, {}).setdefault(name, {})
        for figure, value in row.items():
            figures.setdefault(figure, {}).setdefault(peer, []).append(value)

    def leave_out(self, peer, group, why):
        known = self.left_out.setdefault(peer, {}).setdefault(group, why)
        if known == why:
            print(f"  {peer}: {group}: {why}", file=sys.stderr)


def run(options, results, peer, command, environment):
    """One process; what it said before it failed counts."""
    try:
        program = subprocess.run(command, stdout=subprocess.PIPE, text=True,
                                 env={**os.environ, **environment}, timeout=options.timeout)
        output, why = program.stdout, f"exit status {program.returncode}"
        failed = program.returncode != 0
    except subprocess.TimeoutExpired as expired:
        output = (expired.stdout or b"").decode()
        failed, why = True, f"not over after {options.timeout} s"
    except OSError as error:
        output, failed, why = "", True, error.strerror
    for line in output.splitlines():
        if line.startswith("{") and line.endswith("}"):
            results.take(peer, line)
    if failed:
        results.leave_out(peer, "process", f"failed: {why}")


def present(options, results):
    """The peers that run here, in order."""
    names = []
    for name, (program, _, _, without_gpu) in PEERS.items():
        if options.peer and name not in options.peer:
            continue
        if options.backend == "sim" and not without_gpu:
            results.leave_out(name, "all", "skipped: needs a GPU")
        elif not os.path.exists(os.path.join(options.programs, f"peers_{program}")):
            results.leave_out(name, "all", f"skipped: peers_{program} was not built")
        else:
            names.append(name)
    return names


def run_peer(options, results, peer, wanted):
    program, configuration, without, _ = PEERS[peer]
    groups = [group for group in wanted if group not in without]
    # What ran before may have used all of the memory, after which an allocator may act otherwise.
    together = [group for group in groups if group not in ALONE]
    processes = [(together, options.traces)] if together else []
    if "traces" in groups:
        processes += [(["traces"], [trace]) for trace in options.traces]
    if "regrow" in groups:
        processes += [(["regrow"], [])]
    for some, traces in processes:
        environment = {"PYTORCH_CUDA_ALLOC_CONF": configuration}
        clock = os.path.join(options.programs, "libdriver_clock.so")
        if some == ["traces"] and os.path.exists(clock):
            environment["TCUDA_CUDA_DRIVER_PATH"] = clock
        run(options, results, peer,
            [os.path.join(options.programs, f"peers_{program}"), peer, ",".join(some),
             *(["--quick"] if options.quick else []), *traces], environment)


def run_starts(options, results):
    """Fresh processes by turns: ours, and the least that a host can do with the driver."""
    program = os.path.join(options.programs, "peers_start")
    if options.backend == "sim":
        results.leave_out("tcuda", "start", "skipped: needs a GPU")
        return
    library = os.path.join(options.programs, "libtcuda.so")
    for _ in range(max(STARTS, options.rounds)):
        run(options, results, "tcuda", [program, "tcuda", library], {})
        for peer in ("driver_map", "driver_malloc"):
            run(options, results, peer, [program, peer], {})


def run_all(options, results):
    """All rounds, or as many as there is time for; gives their number, and of the short ones."""
    names = present(options, results)
    begin, rounds = time.monotonic(), 0
    if options.starts and not options.peer:
        run_starts(options, results)

    def run_round(title, groups):
        for peer in names:
            if options.seconds and time.monotonic() - begin > options.seconds:
                results.leave_out(peer, "all", f"skipped in {title}: there was no time left")
                continue
            print(f"{title}: {peer}", file=sys.stderr)
            run_peer(options, results, peer, groups)

    for number in range(options.rounds if options.groups else 0):
        start = time.monotonic()
        run_round(f"round {number + 1} of {options.rounds}", options.groups)
        rounds += 1
        now = time.monotonic()
        if options.seconds and now - begin + (now - start) > options.seconds:
            break
    short = [group for group in options.groups if group in SHORT]
    again = 0
    while short and again < options.again:
        again += 1
        run_round(f"once more, {again} of {options.again}", short)
        if options.seconds and time.monotonic() - begin > options.seconds:
            break
    for peer in names if options.limits else ():
        print(f"limits: {peer}", file=sys.stderr)
        run_peer(options, results, peer, ["limits"])
    return rounds, again


def main():
    options = parse_arguments()
    results = Results()
    rounds, again = run_all(options, results)
    about = machine(options)
    medians = tables.medians(results.samples)
    words = f"{rounds} rounds" + (
        f", {rounds + again} of the groups that take a second" if again else "")
    text = tables.text(about, words, medians, results.left_out, list(PEERS))
    print(text)
    with open(os.path.join(options.out, "tables.md"), "w", encoding="utf-8") as file:
        file.write(text)
    with open(os.path.join(options.out, "peers.json"), "w", encoding="utf-8") as file:
        json.dump({"machine": about, "rounds": rounds, "medians": medians,
                   "samples": results.samples, "memory": results.memory,
                   "left_out": results.left_out}, file, indent=1)
    for path in plots.draw(options.out, medians, results.memory, list(PEERS)):
        print(f"peers: wrote {path}", file=sys.stderr)
    ran = any("tcuda" in peers for names in medians.values() for figures in names.values()
              for peers in figures.values())
    return 0 if ran and not tables.differences(medians.get("traces", {})) else 1


if __name__ == "__main__":
    sys.exit(main())
