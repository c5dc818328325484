#!/usr/bin/env python3
"""Sets the two columns of the driver contract suite side by side.

    scripts/contract.py BINARY            runs it on the simulated machine and on the GPU
    scripts/contract.py SIM.json GPU.json compares what two runs wrote with --json

Every step at which the columns differ, or at which a GPU gave something else than is expected, is
printed; one that tests/contract/differences.txt does not list is a failure, and so is a line there
that is no difference any more (where its sequence was run on both)."""

import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile

LIST = pathlib.Path(__file__).resolve().parent.parent / "tests/contract/differences.txt"


def run(binary, backend, folder):
    path = os.path.join(folder, backend + ".json")
    environment = dict(os.environ, TCUDA_BACKEND=backend)
    subprocess.run([binary, "--json", path], env=environment, check=False,
                   stdout=subprocess.DEVNULL)
    return path


def load(path):
    """By topic/name: the steps, each with its expectation and what was seen."""
    rows = {}
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    for row in document["rows"]:
        count = collections.Counter()
        steps = {}
        for _, what, expected, seen in row["steps"]:
            count[what] += 1
            steps[what, count[what]] = (expected, seen)
        if row.get("fate"):
            steps["the process", 1] = ("ends", row["fate"])
        if not row.get("skipped"):
            rows[row["topic"] + "/" + row["name"]] = steps
    return rows


def main():
    with tempfile.TemporaryDirectory() as folder:
        paths = sys.argv[1:]
        if len(paths) == 1:
            paths = [run(paths[0], backend, folder) for backend in ("sim", "cuda")]
        if len(paths) != 2:
            sys.exit(__doc__)
        simulated, device = map(load, paths)
    lines = LIST.read_text(encoding="utf-8").splitlines()
    listed = {line for line in lines if line and not line.startswith("#")}
    common = [name for name in simulated if name in device]
    found = set()
    for name in common:
        for what in {**simulated[name], **device[name]}:
            nothing = ("nothing", "nothing")
            expected, sim = simulated[name].get(what, nothing)
            gpu = device[name].get(what, nothing)[1]
            if sim != gpu:
                line = f"{name}: {what[0]}"
                found.add(line)
                mark = "listed" if line in listed else "DIFFERENT"
                print(f"{mark:9} {line}\n          expected {expected}, sim {sim}, gpu {gpu}")
    stale = {line for line in listed
             if any(line.startswith(name + ": ") for name in common)} - found
    for line in sorted(stale):
        print(f"STALE     {line}")
    print(f"{len(common)} sequences on both, {len(found)} differences, "
          f"{len(found - listed)} of them not listed")
    sys.exit(bool(found - listed or stale))


if __name__ == "__main__":
    main()
