#!/usr/bin/env python3
"""Instructions that tcuda's operations cost, counted under valgrind's callgrind on the simulated
machine.

    benches/instructions.py build/release/benches/instructions [--check | --write]

Each operation runs twice, so many times and then many more; the difference is what one costs, free
of how the program begins. Counts are the same on every machine with the same compiler; --check
exits with 1 where one is more than 5 % above what benches/instructions.json says, --write writes
that file.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

KEPT = pathlib.Path(__file__).with_name("instructions.json")
FEW, MANY = 20_000, 60_000
# The simulated machine executes a kernel in the call that launches it, which is left out.
LAUNCH = "cuLaunchKernel"
FEW_LAUNCHES, MANY_LAUNCHES = 640, 1_920
TOLERANCE = 1.05


def launching(name):
    """The function of tcuda whose launches are left out, if it has any."""
    if name.startswith("comm_"):
        return "tcuda_" + name.rpartition("_")[0]
    return "tcuda_jit_call" if name.startswith("jit_call") else None


def count(program, name, times):
    # Collectives say last on how many devices.
    devices = name.rpartition("_")[2] if name.startswith("comm_") else "1"
    environment = dict(os.environ, TCUDA_BACKEND="sim", TCUDA_SIM=f"memory=4GiB,devices={devices}")
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    if launching(name):
        toggles = [f"--toggle-collect={function}" for function in (launching(name), LAUNCH)]
        command += ["--demangle=no", *toggles]
        # So that all counted runs find the kernel on disk.
        subprocess.run([program, name, "1"], env=environment, check=True)
    command += [program, name, str(times)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"refs:\s+([\d,]+)", done.stderr)
    if done.returncode != 0 or found is None:
        sys.exit(f"{name}: {done.stderr.strip()[-400:]}")
    return int(found[1].replace(",", ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("program")
    parser.add_argument("--check", action="store_true", help="fail where a count has grown")
    parser.add_argument("--write", action="store_true", help="keep the counts")
    options = parser.parse_args()
    names = subprocess.run(
        [options.program], capture_output=True, text=True, check=True).stdout.split()
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    counted, grown = {}, []
    print(f"{'operation':<28}{'instructions':>14}{'kept':>10}")
    for name in names:
        few, many = (FEW_LAUNCHES, MANY_LAUNCHES) if launching(name) else (FEW, MANY)
        runs = [count(options.program, name, times) for times in (few, many)]
        cost = (runs[1] - runs[0]) / (many - few)
        counted[name] = round(cost, 1)
        before = kept.get(name)
        print(f"{name:<28}{cost:>14.1f}{'' if before is None else before:>10}", flush=True)
        if before is not None and cost > before * TOLERANCE:
            grown.append(name)
    if options.write:
        KEPT.write_text(json.dumps(counted, indent=2) + "\n")
    if options.check and grown:
        sys.exit(f"costs more than it did: {', '.join(grown)}")


if __name__ == "__main__":
    main()
