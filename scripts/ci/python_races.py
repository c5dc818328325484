#!/usr/bin/env python3
"""Programs of cuda.core and Numba with a missing wait: seeds of the adversarial schedule find each,
and the report names the line of the program at which it failed. The programs with the wait pass.

    scripts/ci/python_races.py [--suite NAME]... [--wrong N] [--right N] LIBRARY

LIBRARY is libtcuda_sim.so. N is the number of seeds. Ends with 1 if a missing wait is not found,
or a right program fails."""

import argparse
import pathlib
import re
import subprocess
import sys
import time

from cuda_python import PROGRAMS, ROOT, command_of, python_of, listed

SHRINK = [sys.executable, str(ROOT / "scripts/ci/shrink.py")]
SOURCE = re.compile(r"^  The program failed at \w+_races\.py:\d+: assert ", re.MULTILINE)


def shrunk(seeds, command, variables):
    """True if a seed fails; and the report."""
    ended = subprocess.run([*SHRINK, "--seeds", f"0-{seeds - 1}", "--", *command], env=variables,
                           capture_output=True, text=True, check=False)
    return ended.returncode == 0, ended.stdout + ended.stderr


def check(name, program, variables, arguments):
    """True if the wrong program is found and the right one is not."""
    is_found, report = shrunk(arguments.wrong, [*program, name, "wrong"], variables)
    is_named = bool(SOURCE.search(report))
    print(f"== {name}: {'found' if is_found else 'NOT FOUND'}{'' if is_named else ', NO LINE'}\n"
          f"{report}", end="", flush=True)
    fails, report = shrunk(arguments.right, [*program, name, "right"], variables)
    if fails:
        print(f"== {name} with the wait FAILS\n{report}", end="", flush=True)
    return is_found and is_named and not fails


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--suite", action="append", choices=("cuda-core", "numba"))
    parser.add_argument("--wrong", type=int, default=100, help="seeds without the wait")
    parser.add_argument("--right", type=int, default=20, help="seeds with it")
    parser.add_argument("library", type=pathlib.Path)
    arguments = parser.parse_args()
    is_good = True
    for suite in arguments.suite or ("cuda-core", "numba"):
        start = time.monotonic()
        python, variables = python_of(suite)
        variables |= {"TCUDA_SIM_PATH": str(arguments.library.resolve())}
        program = command_of(python, [str(PROGRAMS / f"{suite.replace('-', '_')}_races.py")])
        names = [name for name in listed([*program, "--list"], variables) if name]
        good = sum(check(name, program, variables, arguments) for name in names)
        is_good &= good == len(names) > 0
        print(f"races in programs of {suite}: {good} of {len(names)} found, with {arguments.right} "
              f"seeds of the right programs, {time.monotonic() - start:.0f} s\n"
              f"figure: missing waits found = {good}", flush=True)
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
