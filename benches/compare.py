#!/usr/bin/env python3
"""tcuda beside PyTorch in one run: traces and small operations, one table, ratios, JSON.

    benches/compare.py --ours build/examples/replay --micro build/benches/replay_threads \\
        --torch target/c10/torch_replay --json out.json data/traces/*.xz

Programs run by turns (ours, PyTorch, PyTorch with expandable segments, ours, ...), and every time
is the median over the rounds, so that a machine that speeds up or slows down does so for all.
Traces may be packed with xz. The exit status is 1 when a program fails, or when the peaks of
allocated or requested bytes are not PyTorch's, to the byte (with expandable segments, where
PyTorch too counts nothing but the rounding to 512 bytes).
"""

import argparse
import json
import lzma
import os
import re
import statistics
import subprocess
import sys
import tempfile

OURS, TORCH, EXPANDABLE = "tcuda", "torch", "torch expandable"
MODES = {TORCH: "", EXPANDABLE: "expandable_segments:True"}
# What must not change from round to round.
EXACT = ("events", "peak_allocated", "peak_requested", "peak_reserved")
TIMES = ("cold_ns", "warm_ns")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0],
                                     epilog="The exit status is 1 when the peaks differ.")
    parser.add_argument("--ours", help="the replay program; without it, no traces are played")
    parser.add_argument("--micro", help="the replay_threads program; without it, no small operations")
    parser.add_argument("--torch", required=True, help="the torch_replay program")
    parser.add_argument("--backend", choices=("cuda", "sim"), help="of ours (default: its own choice)")
    parser.add_argument("--rounds", type=int, default=5, help="times that each one runs (default: 5)")
    parser.add_argument("--json", metavar="FILE", help="write every figure of every round there")
    parser.add_argument("traces", nargs="*", metavar="TRACE", help="as text, or packed with xz")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    if not options.ours and not options.micro:
        parser.error("nothing to run: give --ours, --micro or both")
    if bool(options.ours) != bool(options.traces):
        parser.error("--ours and traces go together")
    names = [trace_name(path) for path in options.traces]
    if len(set(names)) != len(names):
        parser.error("two traces have the same name")
    return options


def trace_name(path):
    return os.path.basename(path).removesuffix(".xz")


def unpack(paths, folder):
    """Paths of the traces as text; packed ones are unpacked into the folder."""
    texts = []
    for path in paths:
        if path.endswith(".xz"):
            text = os.path.join(folder, trace_name(path))
            with lzma.open(path) as packed, open(text, "wb") as file:
                file.write(packed.read())
            path = text
        texts.append(path)
    return texts


def run(command, **variables):
    """Its standard output; a failure ends the comparison."""
    try:
        program = subprocess.run(command, stdout=subprocess.PIPE, text=True,
                                 env={**os.environ, **variables})
    except OSError as error:
        sys.exit(f"compare: {command[0]}: cannot be run: {error.strerror}")
    if program.returncode != 0:
        sys.exit(f"compare: {command[0]}: exit status {program.returncode}")
    return program.stdout


# ---- One round of each program ----

def replay_ours(options, traces, folder):
    path = os.path.join(folder, "ours.json")
    backend = ["--backend", options.backend] if options.backend else []
    run([options.ours, "--no-verify", "--json", path, *backend, *traces])
    with open(path) as file:
        report = json.load(file)
    results = {}
    for r in report["results"]:
        results[r["trace"]] = {
            "cold_ns": r["cold_ns_per_event"], "warm_ns": r["warm_ns_per_event"],
            **{key: r[key] for key in EXACT}, "segments": r["segments"],
            "driver_calls_cold": r["driver_calls_cold"],
            "driver_calls_warm": r["driver_calls_warm"]}
    return results, report["machine"]


def replay_torch(options, traces, mode):
    results = {}
    for line in run([options.torch, "replay", *traces],
                    PYTORCH_CUDA_ALLOC_CONF=MODES[mode]).splitlines():
        if line.startswith("REPLAY "):
            _, name, *fields = line.split()
            pairs = dict(field.split("=", 1) for field in fields)
            results[name] = {key: float(pairs[key]) for key in TIMES}
            results[name].update({key: int(pairs[key]) for key in EXACT})
    return results


def micro(command, **variables):
    return {match[1]: float(match[2]) for match in
            re.finditer(r"^MICRO +(\S+) +([0-9.]+) ns", run(command, **variables), re.MULTILINE)}


def run_rounds(options, traces, folder):
    """Samples by side: {"traces": {side: [{trace: figures}]}, "micro": {side: [{name: ns}]}}."""
    samples = {"traces": {side: [] for side in (OURS, TORCH, EXPANDABLE)},
               "micro": {OURS: [], TORCH: []}}
    machine = None
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        if options.ours:
            results, machine = replay_ours(options, traces, folder)
            samples["traces"][OURS].append(results)
            for mode in MODES:
                samples["traces"][mode].append(replay_torch(options, traces, mode))
        if options.micro:
            backend = {"TCUDA_BACKEND": options.backend} if options.backend else {}
            samples["micro"][OURS].append(micro([options.micro], **backend))
            samples["micro"][TORCH].append(
                micro([options.torch, "micro"], PYTORCH_CUDA_ALLOC_CONF=""))
    return samples, machine


# ---- Summary ----

def summarize_traces(options, samples):
    """Figures of every trace by side, and the complaints."""
    traces, complaints = {}, []
    for name in map(trace_name, options.traces):
        sides = {}
        for side, rounds in samples.items():
            try:
                figures = [results[name] for results in rounds]
            except KeyError:
                sys.exit(f"compare: {side} gave no result for {name}")
            sides[side] = dict(figures[-1])
            for key in TIMES:
                sides[side][key] = statistics.median(f[key] for f in figures)
            for key in EXACT:
                if len({f[key] for f in figures}) > 1:
                    complaints.append(f"{name}: {side}: {key} changes from round to round")
            allocated = sides[side]["peak_allocated"]
            sides[side]["ratio"] = sides[side]["peak_reserved"] / allocated if allocated else 0.0
        for key in ("events", "peak_allocated", "peak_requested"):
            ours, theirs = sides[OURS][key], sides[EXPANDABLE][key]
            if ours != theirs:
                complaints.append(f"{name}: {key}: tcuda {ours}, torch expandable {theirs}")
        traces[name] = sides
    return traces, complaints


def summarize_micro(samples):
    """Medians by name; a side that does not measure a name lacks it."""
    rows = {}
    for side, rounds in samples.items():
        for name in (rounds[0] if rounds else ()):
            values = [r[name] for r in rounds if name in r]
            rows.setdefault(name, {})[side] = statistics.median(values)
    return rows


def times(theirs, ours):
    return f"{theirs / ours:.2f}x" if ours else "-"


def trace_rows(traces):
    header = ["trace", "cold ns", "torch", "exp.", "faster", "warm ns", "torch", "exp.", "faster",
              "allocated", "requested", "ratio", "torch", "exp.", "calls warm"]
    rows = []
    for name, sides in traces.items():
        ours, torch, expandable = sides[OURS], sides[TORCH], sides[EXPANDABLE]
        row = [name.removesuffix(".trace")]
        for key in TIMES:
            row += [f"{side[key]:.1f}" for side in (ours, torch, expandable)]
            row.append(times(torch[key], ours[key]))
        for key in ("peak_allocated", "peak_requested"):
            difference = ours[key] - expandable[key]
            row.append("equal" if difference == 0 else f"{difference:+d}")
        row += [f"{side['ratio']:.4f}" for side in (ours, torch, expandable)]
        row.append(str(ours["driver_calls_warm"]))
        rows.append(row)
    return [header, *rows]


def micro_rows(rows):
    table = [["operation", "ns", "torch", "faster"]]
    for name, sides in rows.items():
        if OURS in sides and TORCH in sides:
            table.append([name, f"{sides[OURS]:.1f}", f"{sides[TORCH]:.1f}",
                          times(sides[TORCH], sides[OURS])])
    for name, sides in rows.items():
        if name.startswith("raw_"):
            table.append([name, "", f"{sides[TORCH]:.1f}", ""])
        elif len(sides) == 1:
            table.append([name, *(f"{sides[s]:.1f}" if s in sides else "" for s in (OURS, TORCH)),
                          ""])
    return table


def print_table(table):
    """As Markdown, so that it can go into the documentation as it is."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for number, row in enumerate(table):
        cells = [cell.ljust(width) if i == 0 else cell.rjust(width)
                 for i, (cell, width) in enumerate(zip(row, widths))]
        print("| " + " | ".join(cells) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 1) + ("-" if i == 0 else ":")
                                 for i, width in enumerate(widths)) + "|")


def main():
    options = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        samples, machine = run_rounds(options, unpack(options.traces, folder), folder)
    traces, complaints = summarize_traces(options, samples["traces"])
    small = summarize_micro(samples["micro"])
    print(f"tcuda: {machine or 'small operations only'}; medians of {options.rounds} round(s); "
          "exp.: torch with expandable segments\n")
    if traces:
        print_table(trace_rows(traces))
    if traces and small:
        print()
    if small:
        print_table(micro_rows(small))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": machine, "rounds": options.rounds, "traces": traces,
                       "micro": small, "samples": samples, "complaints": complaints}, file,
                      indent=1)
    for complaint in complaints:
        print(f"compare: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
