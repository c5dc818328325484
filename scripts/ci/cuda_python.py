#!/usr/bin/env python3
"""Runs Python programs of the driver API on the simulated machine as libcuda.so.1.

    scripts/ci/cuda_python.py [--suite NAME]... [--seed N] [--wheel FILE] LIBRARY

LIBRARY is libtcuda_sim.so. Suites: the tests that the package cuda-python brings, with its
bindings; programs for the calls that the documentation of cuda.bindings and cuda.core shows, and
kernels of Triton (tests/suites); the programs of cuda.core with memory of tcuda's adapter, and the
tests of the package tcuda, with its wheel (scripts/tools/release.sh). Other packages come from PyPI
into target/suites. Each program runs in a process of its own with a time limit, under an
adversarial schedule, whose seed changes from run to run and is printed; the tests of cuda-python
run at once. A failure that tests/suites/cuda_python.txt does not list ends it with 1, and so does a
listed one that passes."""

import argparse
import concurrent.futures
import os
import pathlib
import random
import re
import subprocess
import sys
import time

from pip_environment import ROOT, environment, install_wheel, wheel

PROGRAMS = ROOT / "tests/suites"
KNOWN = PROGRAMS / "cuda_python.txt"
SECONDS = 120
NVRTC = "nvidia-cuda-nvrtc-cu12==12.9.86"
BINDINGS = "cuda-bindings==12.9.10"
HEADERS = ["nvidia-cuda-runtime-cu12==12.9.79", "nvidia-cuda-cccl-cu12==12.9.27"]
SUITES = {
    "cuda-bindings": ["cuda-python==12.5.0", "pytest==9.0.2", "numpy==2.2.6", NVRTC],
    "cuda-driver": [BINDINGS, "numpy==2.2.6", NVRTC, *HEADERS],
    "cuda-core": ["cuda-core==1.2.2", BINDINGS, "numpy==2.2.6", NVRTC, *HEADERS],
    "triton": ["triton==3.9.0", BINDINGS, "numpy==2.2.6"],
    "tcuda": ["pytest==9.0.2", "numpy==2.2.6"],
    "numba": ["numba-cuda==0.30.4", "numba==0.68.0", "cuda-core==1.2.2", BINDINGS, "numpy==2.2.6",
              NVRTC, "nvidia-cuda-nvcc-cu12==12.9.86", "nvidia-cuda-runtime-cu12==12.9.79"],
}
SUITES["cuda-core-tcuda"] = SUITES["cuda-core"]
PROGRAMS_OF = ("cuda-bindings", "cuda-driver", "cuda-core", "triton", "cuda-core-tcuda", "tcuda")
# Suites with tcuda's wheel.
WITH_TCUDA = ("cuda-core-tcuda", "tcuda")


def python_of(suite):
    """The Python of a virtual environment with the packages of a suite, and its variables."""
    folder = environment(suite, SUITES[suite])
    python = folder / "bin/python"
    libraries = folder.glob("lib/python3*/site-packages/nvidia/*/lib")
    return python, dict(os.environ, LD_LIBRARY_PATH=":".join(map(str, libraries)),
                        TRITON_CACHE_DIR=str(folder / "cache"))


def command_of(python, arguments):
    return [str(python), str(ROOT / "python/tcuda/software_gpu.py"), *arguments]


def run(command, variables):
    """Why it failed, in a line, or None; and whether it was skipped."""
    try:
        ended = subprocess.run(command, env=variables, timeout=SECONDS, check=False, text=True,
                               errors="replace", capture_output=True)
    except subprocess.TimeoutExpired:
        return f"not over after {SECONDS} s", False
    if ended.returncode == 0:
        return None, "-m" in command and " skipped" in ended.stdout
    lines = [line for line in (ended.stdout + ended.stderr).splitlines()
             if re.match(r"(E  +)?[\w.]*(Error|Exception|error)\b|tcuda_sim: ", line)]
    return (lines[-1] if lines else f"exit status {ended.returncode}")[:300], False


def listed(command, variables):
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    return ended.stdout.split("\n")


def commands(suite, python, variables):
    """The command of each program, by its name."""
    if suite == "tcuda":
        tests = ROOT / "python/tests"
    elif suite == "cuda-bindings":
        tests = next(python.parents[1].glob("lib/python3*/site-packages/cuda/tests"))
    else:
        file = PROGRAMS / f"{suite.removesuffix('-tcuda').replace('-', '_')}_programs.py"
        program = command_of(python, [str(file)])
        return {name: [*program, name] for name in listed([*program, "--list"], variables) if name}
    pytest = command_of(python, ["-m", "pytest", "-q", "-p", "no:cacheprovider",
                                 f"--rootdir={tests}"])
    found = listed([*pytest, "--collect-only", str(tests)], variables)
    found = [line.rpartition("/")[2] for line in found if "::" in line]
    return {name: [*pytest, f"{tests}/{name}"] for name in found}


def known_of(suite):
    lines = (line.split(maxsplit=2) for line in KNOWN.read_text().splitlines())
    return {line[1]: line[2] for line in lines if len(line) == 3 and line[0] == suite}


def run_suite(suite, library, options, path):
    """True if nothing is new. The path is that of tcuda's wheel."""
    start, known = time.monotonic(), known_of(suite)
    python, variables = python_of(suite)
    variables |= {"TCUDA_SIM_PATH": str(library), "TCUDA_SIM": options}
    if suite in WITH_TCUDA:
        install_wheel(python, path)
        variables |= {"TCUDA_BACKEND": "cuda", "TCUDA_ADAPTER": "1"}
    programs = commands(suite, python, variables)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = dict(zip(programs, pool.map(lambda it: run(it, variables), programs.values())))
    failures = {name: reason for name, (reason, _) in outcomes.items() if reason}
    skipped = sum(was for _, was in outcomes.values())
    for name, reason in failures.items():
        print(f"{'known' if name in known else 'NEW'} failure of {suite}: {name}: "
              f"{known.get(name, reason)}")
    stale = [name for name in known if name not in failures]
    for name in stale:
        print(f"STALE: {suite} {name} is listed in {KNOWN.name} and does not fail")
    inapplicable = sum(known.get(name, "").startswith("n/a: ") for name in failures) + skipped
    passed = len(programs) - len(failures) - skipped
    applicable = len(programs) - inapplicable
    print(f"{suite} ({SUITES[suite][0]}): {passed} of {applicable} passed, "
          f"{applicable - passed} failed, {inapplicable} not applicable, "
          f"{time.monotonic() - start:.0f} s, TCUDA_SIM={options}\n"
          f"figure: programs passed = {passed}", flush=True)
    return bool(programs) and not stale and set(failures) <= set(known)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--suite", action="append", choices=PROGRAMS_OF)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--wheel", type=pathlib.Path, default=wheel())
    parser.add_argument("library", type=pathlib.Path)
    arguments = parser.parse_args()
    schedules = {"cuda-bindings": "immediate"}
    is_good = [
        run_suite(suite, arguments.library.resolve(), "devices=2,schedule=" + schedules.get(
            suite, f"adversarial:{arguments.seed}"), arguments.wheel)
        for suite in arguments.suite or PROGRAMS_OF]
    sys.exit(not all(is_good))


if __name__ == "__main__":
    main()
