"""Runs the races of c_tests/races over many seeds of the adversarial schedule.

usage: races.py DIRECTORY [--racy SEEDS] [--twin SEEDS] [--workload SEEDS]
                [--json FILE] [--sanitizer]

DIRECTORY holds the programs that CMake built (build/release/c_tests). Prints one row for each race:
the first seed that shows it in the racy build, how many of the seeds do, and how many seeds its
corrected twin passed; then the clean workloads. Exit status 1 if a race was not caught, or if a
corrected program failed. With --sanitizer a run shows a race where the stream sanitizer reports
one: each program once, work running at once; what it cannot see is listed below.
"""

import argparse
import json
import pathlib
import subprocess
import sys

HOUR = 3600

# What the stream sanitizer cannot see, or not on each run: what the host's own processor and
# threads do, and memory that goes back to the driver while it is used.
UNSEEN = {
    "callback_data_reused", "callback_fills_buffer", "callback_of_another_stream",
    "freed_and_unmapped", "host_queries_once", "host_reads_early", "host_skips_event",
    "host_waits_for_one_stream",
    "pinned_double_buffer", "pinned_freed_without_record", "pinned_overwritten",
    "pinned_ring_wrong_slot", "threads_event_not_recorded", "threads_host_told_early",
    "threads_share_a_stream", "threads_share_an_event",
}


def run(program, seeds, *more):
    """What a program says about its seeds; None if it crashed."""
    command = [program, "--json", "--seeds", "1", str(seeds), *more]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=HOUR)
    except subprocess.TimeoutExpired:
        print(f"{program.name} did not end within {HOUR} s", file=sys.stderr)
        return None
    sys.stderr.write(done.stderr)
    try:
        return json.loads(done.stdout)
    except ValueError:
        print(f"{program.name} ended with status {done.returncode}", file=sys.stderr)
        return None


def row(name, racy, twin):
    """The row of the table, and whether it is as it should be."""
    kind = (racy or twin or {}).get("kind", "?")
    caught = bool(racy) and racy["failed"] > 0
    clean = bool(twin) and twin["failed"] == 0
    share = f"{racy['failed'] / racy['seeds']:.1%}" if racy else "crashed"
    first = racy["first_failed"] if caught else "none"
    passed = f"{twin['seeds'] - twin['failed']} of {twin['seeds']}" if twin else "crashed"
    rate = twin["seeds_per_second"] if twin else 0
    return f"{name:32} {kind:16} {first!s:>6} {share:>8} {passed:>18} {rate:>9}", caught and clean


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--racy", type=int, default=1000)
    parser.add_argument("--twin", type=int, default=10000)
    parser.add_argument("--workload", type=int, default=1000)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--sanitizer", action="store_true")
    options = parser.parse_args()
    more = ()
    if options.sanitizer:
        options.racy = options.twin = options.workload = 1
        more = ("--sanitizer", "--schedule", "immediate")

    found = lambda prefix: sorted(options.directory.glob(f"{prefix}_*"))
    names = [path.name.removeprefix("race_racy_") for path in found("race_racy")]
    workloads = [path.name.removeprefix("race_clean_") for path in found("race_clean")]
    if not names or not workloads:
        sys.exit(f"no races in {options.directory}; build them first")

    results, wrong = [], []
    print(f"{'race':32} {'kind':16} {'first':>6} {'share':>8} {'twin passed':>18} {'seeds/s':>9}")
    for name in names:
        racy = run(options.directory / f"race_racy_{name}", options.racy, *more)
        twin = run(options.directory / f"race_twin_{name}", options.twin, *more)
        text, right = row(name, racy, twin)
        print(text, flush=True)
        results.append({"name": name, "racy": racy, "twin": twin})
        if more and name in UNSEEN:
            right = bool(racy and twin) and not twin["failed"]
        wrong += [] if right else [name]
    for name in workloads:
        clean = run(options.directory / f"race_clean_{name}", options.workload, *more)
        passed = f"{clean['seeds'] - clean['failed']} of {clean['seeds']}" if clean else "crashed"
        rate = clean["seeds_per_second"] if clean else 0
        print(f"{name:32} {'workload':16} {'':6} {'':8} {passed:>18} {rate:>9}", flush=True)
        results.append({"name": name, "clean": clean})
        wrong += [] if clean and clean["failed"] == 0 else [name]

    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    caught = sum(1 for result in results if (result.get("racy") or {}).get("failed"))
    how = "reported" if more else f"caught within {options.racy} seeds"
    print(f"{caught} of {len(names)} races {how}; not as they should be: "
          f"{', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


sys.exit(main())
