"""Runs PyTorch's own test/test_cuda.py with PyTorch's allocator and with tcuda's, and compares.

usage: torch_test_cuda.py CHECKOUT OUT [--only NAMES] [--seconds N] [--at-once] [--jobs N]

CHECKOUT is a checkout of PyTorch, or a folder with test/test_cuda.py; nothing of it is copied here.
Names that its version imports from torch.testing, and that the installed PyTorch does not have, are
replaced by ones that change nothing. With two GPUs, or --at-once, both allocators run at the same
time; with two GPUs, each with a GPU of its own. Tests that fail beside others run once more,
one at a time of each allocator, and the table is printed again.
Subprocesses of tests use the same allocator. Needs the package tcuda, pytest, expecttest and
psutil; OUT gets torch_test_cuda.json. Exit status 77: no PyTorch with a GPU.
"""

import argparse
import ast
import concurrent.futures
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve()
GROUP = 15
GROUP_SECONDS, TEST_SECONDS = 150, 45
OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR|XFAIL|XPASS) [^:\s]*::(\S+)", re.MULTILINE)
# Each Python of a run with tcuda, also those that tests start.
START = """
import sys
try:
    import tcuda.torch
    tcuda.torch.enable()
except Exception as error:
    print(f"tcuda.torch.enable: {error}", file=sys.stderr)
"""
# The tests, in a module that replaces missing names before.
TESTS = """
import pathlib, sys
sys.path.insert(0, {scripts!r})
from torch_test_cuda import replace_missing_names
source = pathlib.Path({source!r}).read_text()
replace_missing_names(source)
exec(compile(source, {source!r}, "exec"), globals())
"""


def unchanged(*arguments, **_):
    """A decorator that changes nothing, with arguments or without."""
    return arguments[0] if arguments and callable(arguments[0]) else lambda function: function


def replace_missing_names(source):
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            module = importlib.import_module(node.module)
            for name in (alias.name for alias in node.names):
                if not hasattr(module, name):
                    is_flag = name.startswith(("TEST_", "IS_", "NO_"))
                    value = False if is_flag else object if name == "NoTest" else unchanged
                    setattr(module, name, value)


class Run:
    """The tests with one allocator on one GPU."""

    def __init__(self, options, folder, allocator, gpu):
        self.options, self.folder, self.allocator = options, folder, allocator
        self.end = float("inf")
        paths = [str(folder / "start")] if allocator == "tcuda" else []
        paths += filter(None, [os.environ.get("PYTHONPATH")])
        self.environment = dict(
            os.environ, CUDA_VISIBLE_DEVICES=str(gpu), PYTHONPATH=os.pathsep.join(paths))

    def pytest(self, seconds, *arguments):
        """The exit status, None after so many seconds, and the output."""
        command = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=short", "-c", "/dev/null",
                   "--rootdir", ".", "-p", "no:cacheprovider", *arguments]
        limit = max(1, min(seconds, self.end - time.monotonic()))
        try:
            done = subprocess.run(command, cwd=self.folder, env=self.environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit)
        except subprocess.TimeoutExpired:
            return None, f"not over after {limit:.0f} s"
        return done.returncode, done.stdout

    def names(self):
        status, text = self.pytest(GROUP_SECONDS, "--collect-only", "test_of_pytorch.py")
        found = re.findall(r"^\S+?::(\S+)$", text, re.MULTILINE)
        if status != 0 or not found:
            sys.exit(f"the tests cannot be collected:\n{text[-3000:]}")
        return [name for name in found if name.startswith(tuple(self.options.only.split(",")))]

    def all(self):
        """Outcome and, after a failure, the end of the output, by the name of the test."""
        self.end = time.monotonic() + self.options.seconds
        outcomes, names = {}, self.names()

        def run_group(start):
            self.group(names[start:start + GROUP], outcomes)
            print(f"{self.allocator}: {len(outcomes)} of {len(names)}", flush=True)

        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as threads:
            list(threads.map(run_group, range(0, len(names), GROUP)))
        return outcomes

    def group(self, names, outcomes):
        """Runs tests in one process, or one by one if it crashes or does not end."""
        if time.monotonic() > self.end:
            return
        status, text = self.run(names, GROUP_SECONDS, outcomes)
        if status not in (0, 1):
            for name in names:
                if time.monotonic() > self.end:
                    return
                status, text = self.run([name], TEST_SECONDS, outcomes)
                outcomes.setdefault(name, ("CRASHED" if status else "SKIPPED", text[-1500:]))
        for name in names:
            outcomes.setdefault(name, ("SKIPPED", ""))

    def again(self, outcomes):
        """Runs the tests that failed beside others once more, each in a process without others."""
        names = [name for name, (outcome, _) in outcomes.items()
                 if outcome not in ("PASSED", "SKIPPED", "XFAIL")]
        self.end = time.monotonic() + self.options.seconds
        for name in names:
            second = {}
            self.group([name], second)
            outcomes.update(second)

    def run(self, names, seconds, outcomes):
        status, text = self.pytest(seconds, *(f"test_of_pytorch.py::{name}" for name in names))
        for outcome, name in OUTCOME.findall(text):
            output = ""
            if outcome in ("FAILED", "ERROR"):
                title = re.escape(name.replace("::", "."))
                part = re.search(rf"_ {title} _+\n(.*?)(?=\n_{{5,}} |\n====)", text, re.DOTALL)
                output = part[1][-1500:] if part else ""
            outcomes[name] = (outcome, output)
        return status, text


def report(out, own, ours):
    """Prints what differs, and writes all outcomes."""
    passed = [name for name, (outcome, _) in own.items() if outcome == "PASSED" and name in ours]
    failed = [name for name in passed if ours[name][0] != "PASSED"]
    for name in failed:
        print(f"==== {name}: {ours[name][0]} with tcuda\n{ours[name][1]}")
    for name, (outcome, _) in own.items():
        if outcome != "PASSED":
            print(f"{name}: {outcome}, with tcuda {ours.get(name, ('not run',))[0]}")
    print(f"{len(passed)} of {len(own)} pass with PyTorch's allocator, "
          f"{len(passed) - len(failed)} of these with tcuda")
    out.mkdir(parents=True, exist_ok=True)
    import torch
    text = json.dumps({"torch": torch.__version__, "PyTorch": own, "tcuda": ours}, indent=1)
    (out / "torch_test_cuda.json").write_text(text + "\n")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--only", default="", help="the beginnings of names, with commas")
    parser.add_argument("--seconds", type=float, default=1800, help="for each allocator")
    parser.add_argument("--jobs", type=int, default=1, help="processes of an allocator at once")
    parser.add_argument("--at-once", action="store_true", help="both on one GPU")
    options = parser.parse_args()
    source = (options.checkout / "test/test_cuda.py").resolve()
    try:
        import torch
        gpus = torch.cuda.device_count()
    except ImportError:
        gpus = 0
    if gpus == 0:
        print("skipped: there is no PyTorch with a GPU")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "start").mkdir()
        (folder / "start/sitecustomize.py").write_text(START)
        (folder / "test_of_pytorch.py").write_text(
            TESTS.format(scripts=str(HERE.parent), source=str(source)))
        runs = [Run(options, folder, "PyTorch", 0), Run(options, folder, "tcuda", min(gpus, 2) - 1)]
        at_once = 2 if options.at_once or gpus > 1 else 1
        with concurrent.futures.ThreadPoolExecutor(at_once) as threads:
            own, ours = threads.map(Run.all, runs)
            report(options.out, own, ours)
            if at_once * options.jobs > 1:
                list(threads.map(Run.again, runs, (own, ours)))
                report(options.out, own, ours)


if __name__ == "__main__":
    main()
