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
# Of calls that launch: what the simulated machine makes of the launch is left out.
LAUNCHES = {"jit_call": "tcuda_jit_call", "jit_call_row": "tcuda_jit_call"}
WITHOUT = "cuLaunchKernel"
# Collectives take longer, most of that in the simulated machine.
FEW_COLLECTIVES, MANY_COLLECTIVES = 640, 1_920
TOLERANCE = 1.05


def count(program, name, times):
    # Collectives say last on how many devices.
    devices = name.rpartition("_")[2] if name.startswith("comm_") else "1"
    environment = dict(os.environ, TCUDA_BACKEND="sim", TCUDA_SIM=f"memory=4GiB,devices={devices}")
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    if name in LAUNCHES:
        toggles = [f"--toggle-collect={function}" for function in (LAUNCHES[name], WITHOUT)]
        command += ["--demangle=no", *toggles]
        times //= 20
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
        few, many = (FEW_COLLECTIVES, MANY_COLLECTIVES) if name.startswith("comm_") else (FEW, MANY)
        times = (many - few) // (20 if name in LAUNCHES else 1)
        cost = (count(options.program, name, many) - count(options.program, name, few)) / times
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
