#!/usr/bin/env python3
"""Sets the two columns of the driver contract suite side by side.

    scripts/ci/contract.py [--steps] BINARY            runs it on the simulated machine and the GPU
    scripts/ci/contract.py [--steps] SIM.json GPU.json compares what two runs wrote with --json

Prints for each topic how many sequences and steps were run on both, how many steps went as expected
in each column, and how many differ; with --steps every step with both columns. Every step at which
the columns differ, or at which both gave something else than is expected, is printed. A difference
that tests/contract/differences.txt does not list is a failure, as is an unexpected answer, and a
line of the list that is no difference any more (where its sequence was run on both)."""

import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile

LIST = pathlib.Path(__file__).resolve().parent.parent.parent / "tests/contract/differences.txt"
NOTHING = ("", "nothing")


def run(binary, backend, folder):
    path = os.path.join(folder, backend + ".json")
    environment = dict(os.environ, TCUDA_BACKEND=backend)
    subprocess.run([binary, "--json", path], env=environment, check=False,
                   stdout=subprocess.DEVNULL)
    return path


def load(path):
    """By topic and name: the steps, each with its expectation and what was seen; and how many
    sequences were skipped."""
    rows, skipped = {}, 0
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    for row in document["rows"]:
        if row.get("skipped"):
            skipped += 1
            continue
        count = collections.Counter()
        steps = {}
        for _, what, expected, seen in row["steps"]:
            count[what] += 1
            steps[what, count[what]] = (expected, seen)
        if row.get("fate"):
            steps["the process", 1] = ("ends", row["fate"])
        rows[row["topic"], row["name"]] = steps
    return rows, skipped


def compare(simulated, device, listed, every_step):
    """Prints what is noteworthy; gives the differences, the unexpected answers, and the counts of
    each topic."""
    found, unexpected = set(), 0
    counts = collections.defaultdict(collections.Counter)
    for row in (row for row in simulated if row in device):
        topic, name = row
        counts[topic]["sequences"] += 1
        for what in {**simulated[row], **device[row]}:
            expected, sim = simulated[row].get(what, NOTHING)
            also, gpu = device[row].get(what, NOTHING)
            expected = expected or also
            line = f"{topic}/{name}: {what[0]}"
            mark = "same"
            if sim != gpu:
                found.add(line)
                mark = "listed" if line in listed else "DIFFERENT"
            elif sim != expected:
                unexpected += 1
                mark = "UNEXPECTED"
            counts[topic].update({"steps": 1, "sim": sim == expected, "gpu": gpu == expected,
                                  "different": sim != gpu})
            if every_step or mark != "same":
                print(f"{mark:10} {line}\n           expected {expected}, sim {sim}, gpu {gpu}")
    return found, unexpected, counts


def table(counts):
    columns = ("sequences", "steps", "sim", "gpu", "different")
    print(f"{'topic':20}" + "".join(f"{column:>11}" for column in columns))
    for topic, count in [*counts.items(), ("all", sum(counts.values(), collections.Counter()))]:
        print(f"{topic:20}" + "".join(f"{count[column]:11}" for column in columns))


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--steps"]
    with tempfile.TemporaryDirectory() as folder:
        if len(arguments) == 1:
            arguments = [run(arguments[0], backend, folder) for backend in ("sim", "cuda")]
        if len(arguments) != 2:
            sys.exit(__doc__)
        (simulated, _), (device, skipped) = map(load, arguments)
    lines = LIST.read_text(encoding="utf-8").splitlines()
    listed = {line for line in lines if line and not line.startswith("#")}
    found, unexpected, counts = compare(simulated, device, listed, "--steps" in sys.argv)
    names = [f"{topic}/{name}: " for topic, name in simulated if (topic, name) in device]
    stale = {line for line in listed if line.startswith(tuple(names))} - found
    for line in sorted(stale):
        print(f"STALE      {line}")
    table(counts)
    print(f"{len(names)} sequences on both, {skipped} skipped on the GPU, "
          f"{len(found)} differences, {len(found - listed)} of them not listed, "
          f"{unexpected} unexpected")
    sys.exit(bool(found - listed or stale or unexpected))


if __name__ == "__main__":
    main()
