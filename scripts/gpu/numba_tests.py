"""Runs the tests that numba-cuda brings with its own memory manager and with tcuda's, and compares.

usage: numba_tests.py OUT [--only PART ...] [--jobs N] [--seconds N] [--managers NAME ...]
    [--by-turns] [--test-seconds N] [--leave-out TEST ...]

The tests are those of the installed package numba-cuda (numba.cuda.tests); nothing of them is
copied here. Both managers run at the same time on one GPU, or one after the other. A test that
crashes its process, or takes longer than --test-seconds, fails, and the others go on. Needs the
package tcuda, pytest and pytest-xdist; OUT gets numba_tests.json and pytest's output. Exit status
77: Numba sees no GPU.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

TEST_SECONDS = 120
# The memory managers by the names that Numba's setting has for them.
MANAGERS = {"numba": "default", "tcuda": "tcuda.numba"}
# A test in pytest's output, which is all there is where pytest did not end.
LINE = re.compile(r"^\[gw\d+\] \[ *\d+%\] (?:SUB)?(PASSED|FAILED|SKIPPED)(?:\(.*\))? (test_.+?) *$",
                  re.MULTILINE)
# A module with the tests of one of Numba's, under the name that Numba itself imports it by.
TESTS = """
import importlib
tests = vars(importlib.import_module({module!r}))
globals().update((name, tests[name]) for name in tests if not name.startswith("__"))
"""
# Numba's tests use a fixture that its package does not have.
FIXTURE = """
import pytest

@pytest.fixture
def initialize_from_pytest_config(request):
    request.cls._dump_failed_filechecks = False
"""


def write_modules(folder, parts):
    """The modules of tests, one file each."""
    import numba.cuda.tests

    (folder / "conftest.py").write_text(FIXTURE)

    root = pathlib.Path(numba.cuda.tests.__file__).parent
    for path in sorted(root.glob("*/test_*.py")):
        name = f"{path.parent.name}.{path.stem}"
        if path.parent.name not in ("benchmarks", "cudasim") and any(p in name for p in parts):
            (folder / f"test_{path.parent.name}_{path.stem[5:]}.py").write_text(
                TESTS.format(module=f"numba.cuda.tests.{name}"))


def run(command, folder, environment, seconds, stem):
    """Outcome and text by the name of the test; pytest's output goes to stem.txt."""
    report = stem.with_suffix(".xml")
    with open(stem.with_suffix(".txt"), "w") as output:
        try:
            subprocess.run([*command, f"--junitxml={report}"], cwd=folder, env=environment,
                           stdout=output, stderr=subprocess.STDOUT, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            print(f"{stem.name}: not over after {seconds} s", flush=True)
    if report.exists():
        return outcomes(report)
    found = {}
    for line in LINE.finditer(stem.with_suffix(".txt").read_text()):
        path, *classes, test = line[2].split("::")
        name = ".".join([path.removesuffix(".py").replace("/", "."), *classes])
        keep_failed(found, f"{name}::{test}", (line[1].lower(), ""))
    return found


def keep_failed(found, name, result):
    """Adds the outcome of a test or of a part of it; pytest reports parts by themselves."""
    if found.get(name, ("",))[0] != "failed":
        found[name] = result


def outcomes(report):
    """Outcome and text of each test of a report in JUnit's form."""
    found = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        outcome, text = "passed", ""
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                outcome = {"failure": "failed", "error": "failed"}.get(child.tag, child.tag)
                text = f"{child.get('message') or ''}\n{child.text or ''}"[-2500:]
        keep_failed(found, name, (outcome, text))
    return found


def compare(own_name, own, ours):
    """Prints what differs; returns the tests that pass with the own one only."""
    passed = [name for name, (outcome, _) in own.items() if outcome == "passed"]
    lost = [name for name in passed if ours.get(name, ("not run",))[0] != "passed"]
    for name in lost:
        outcome, text = ours.get(name, ("not run", ""))
        print(f"==== {name}: {outcome} with tcuda\n{text}")
    for name, (outcome, text) in own.items():
        if outcome == "failed":
            line = text.strip().splitlines()[0] if text.strip() else ""
            print(f"{name}: fails with {own_name}, with tcuda "
                  f"{ours.get(name, ('not run',))[0]}: {line[:150]}")
    skipped = [name for name, (outcome, _) in ours.items() if outcome == "skipped"]
    only_ours = [name for name in skipped if own.get(name, ("",))[0] == "passed"]
    print(f"{len(own)} tests: {len(passed)} pass with {own_name}; of these with tcuda "
          f"{len(passed) - len(lost)} pass, {len(only_ours)} are skipped, "
          f"{len(lost) - len(only_ours)} fail")
    return lost


def pytest_command(jobs, *arguments):
    """pytest without the settings and caches of the folder."""
    return [sys.executable, "-m", "pytest", "-v", "--tb=short", "-W", "ignore", "-c", "/dev/null",
            "--rootdir", ".", "-p", "no:cacheprovider", "-n", str(jobs),
            f"--timeout={TEST_SECONDS}", *arguments]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--only", nargs="*", default=[""], help="parts of names: cudadrv.")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2 - 1))
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--managers", nargs="*", choices=MANAGERS, default=list(MANAGERS))
    parser.add_argument("--by-turns", action="store_true", help="one manager after the other")
    parser.add_argument("--test-seconds", type=int, default=TEST_SECONDS)
    parser.add_argument("--leave-out", nargs="*", default=[], help="test_folder_file.Class::test")
    options = parser.parse_args()
    try:
        from numba import cuda
        is_available = cuda.is_available()
    except ImportError:
        is_available = False
    if not is_available:
        print("skipped: Numba sees no GPU")
        sys.exit(77)
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_modules(folder, options.only)

        left_out = [f"--deselect={name.replace('.', '.py::', 1)}" for name in options.leave_out]

        def start(manager):
            environment = dict(os.environ, NUMBA_CUDA_MEMORY_MANAGER=MANAGERS[manager],
                               PYTHONDONTWRITEBYTECODE="1")
            begin = time.monotonic()
            # A thread ends the process, even where a call into a library does not return.
            found = run(pytest_command(options.jobs, "--dist=loadfile", "--timeout-method=thread",
                                       "--max-worker-restart=1000",
                                       f"--timeout={options.test_seconds}", *left_out),
                        folder, environment, options.seconds, out / f"numba_tests_{manager}")
            return found, round(time.monotonic() - begin)

        with concurrent.futures.ThreadPoolExecutor(1 if options.by_turns else 2) as threads:
            ran = dict(zip(options.managers, threads.map(start, options.managers)))
    if len(ran) == len(MANAGERS):
        compare("Numba's manager", ran["numba"][0], ran["tcuda"][0])
    import numba_cuda
    text = json.dumps(
        {"numba_cuda": numba_cuda.__version__,
         **{manager: found for manager, (found, _) in ran.items()},
         "seconds": {manager: seconds for manager, (_, seconds) in ran.items()}}, indent=1)
    (out / "numba_tests.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
