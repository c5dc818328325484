"""usage: python3 python/conformance [--json FILE] [--all] [WORD...]

Runs the cases, or those whose names have a word, on the module that CONFORMANCE names, "torch"
(torch.cuda) or "tcuda", and prints those that are wrong (--all: each) as they end. Wrong is a case
that fails and is not in differences.txt, or is there and does not fail.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import pathlib
import sys
import time
import traceback
import unittest
from collections.abc import Callable, Iterator

FOLDER = pathlib.Path(__file__).resolve().parent
MOST_SECONDS = 20  # of a case
# PyTorch's defaults where tcuda has others; PyTorch does not read it.
CONFIGURATION = "expandable_segments:False,pinned_max_round_threshold_mb:17592186044415"
Report = Callable[[str, str], None]


class Outcomes(unittest.TestResult):
    """Reports the start of each case, and what became of it: "passed", "skipped: ..." or text."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.report = report

    def startTest(self, test: unittest.TestCase) -> None:
        faulthandler.dump_traceback_later(MOST_SECONDS, exit=True)
        self.outcome = "passed"
        self.report(name_of(test), "started")

    def stopTest(self, test: unittest.TestCase) -> None:
        self.report(name_of(test), self.outcome)
        faulthandler.cancel_dump_traceback_later()

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.outcome = f"skipped: {reason}"

    def addError(self, test, err) -> None:
        frames = traceback.extract_tb(err[2])
        here = [frame for frame in frames if frame.filename.startswith(str(FOLDER))]
        where = here[-1] if here else frames[-1]
        text = "".join(traceback.format_exception_only(err[0], err[1])).strip()
        file = pathlib.Path(where.filename).name
        self.outcome = f"{text}\n    {file}:{where.lineno}: {where.line}"

    addFailure = addError


def name_of(test: unittest.TestCase) -> str:
    """A case's name, "streams.Work.test_query"."""
    return test.id().removeprefix("test_")


def cases_of(suite: unittest.TestSuite | unittest.TestCase) -> Iterator[unittest.TestCase]:
    """The cases of a suite and its suites."""
    if isinstance(suite, unittest.TestCase):
        yield suite
    else:
        for part in suite:
            yield from cases_of(part)


def run_files(words: list[str], ended: set[str], report: Report) -> None:
    """Runs the cases that have not ended. Those that may spoil the process are the last."""
    result = Outcomes(report)
    stems = [path.stem for path in sorted(FOLDER.glob("test_*.py"))]
    for stem in sorted(stems, key="test_capture_errors".__eq__):
        for case in cases_of(unittest.defaultTestLoader.loadTestsFromName(stem)):
            name = name_of(case)
            if name not in ended and (not words or any(word in name for word in words)):
                case.run(result)
    report("", "end")


def in_child(words: list[str], ended: set[str]) -> Iterator[tuple[str, str]]:
    """What `run_files` reports in a process of its own, which has the module loaded."""
    end, begin = os.pipe()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            with open(begin, "w", encoding="utf-8") as pipe:
                run_files(
                    words, ended,
                    lambda name, outcome: print(json.dumps([name, outcome]), file=pipe, flush=True))
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    os.close(begin)
    with open(end, encoding="utf-8") as pipe:
        for line in pipe:
            name, outcome = json.loads(line)
            yield name, outcome
    os.waitpid(process, 0)


def run(words: list[str], report: Report) -> None:
    """Runs the cases; after one that ends the process, a new process goes on."""
    ended: set[str] = set()
    while True:
        name = outcome = ""
        for name, outcome in in_child(words, ended):
            if outcome not in ("started", "end"):
                ended.add(name)
                report(name, outcome)
        if outcome == "end":
            return
        if outcome != "started":
            report("process", "ended between cases")
            return
        ended.add(name)
        report(name, f"ended the process, or took longer than {MOST_SECONDS} s")


def main() -> int:
    """Runs and prints."""
    parser = argparse.ArgumentParser(prog="conformance", usage=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    os.environ.setdefault("TCUDA_ALLOC_CONF", CONFIGURATION)
    from adapters import NAME
    from differences import known_differences

    known = known_differences(NAME)
    outcomes: dict[str, str] = {}
    wrong = 0
    start = time.monotonic()

    def report(name: str, outcome: str) -> None:
        nonlocal wrong
        outcomes[name] = outcome
        if outcome.startswith("skipped") or (outcome == "passed") == (name not in known):
            if options.all:
                print(f"{time.monotonic() - start:6.2f} s {name}: {outcome}", flush=True)
            return
        wrong += 1
        if outcome == "passed":
            outcome = "passed, but differences.txt has it"
        print(f"{name}: {outcome}", flush=True)

    run(options.words, report)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(outcomes, indent=1))
    passed, skipped = (
        sum(outcome.startswith(word) for outcome in outcomes.values())
        for word in ("passed", "skipped"))
    print(f"{NAME}: {len(outcomes)} cases, {passed} passed, {skipped} skipped, {wrong} wrong")
    return int(wrong > 0 or not outcomes)


if __name__ == "__main__":
    sys.exit(main())
