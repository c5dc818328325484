"""The key figures that a step of the gauntlet prints, as one line of text or of JSON.

usage: figures.py STEP OUTCOME SECONDS LOG [--json]

A step needs nothing to have its figures found: cargo's and ctest's counts, and the lines of
PATTERNS, are known. Whatever else is to be seen it prints as "figure: NAME = NUMBER". Numbers of
one name add up.
"""

import json
import re
import sys

# A line, and the names of the numbers in it.
PATTERNS = [
    (r"test result: .*?(\d+) passed; (\d+) failed", ("tests", "tests failed")),
    (r"\d+% tests passed, (\d+) tests failed out of (\d+)", ("programs failed", "programs")),
    (r"^(\d+) injections in (\d+) runs of (\d+) (?:scenarios|C programs)",
     ("injections", "runs", "scenarios")),
    (r"^contract, \w+: (\d+) sequences, (\d+) steps; \d+ skipped, (\d+) failed",
     ("sequences", "steps", "sequences failed")),
    (r": (\d+) programs, TCUDA_MODEL_SEED=", ("random programs",)),
    (r"^\S+: (\d+) runs, \d+/s, coverage", ("inputs",)),
    (r"^(\d+) of (\d+) races caught", ("races caught", "races")),
    (r" (\d+) of \d+ +\d+$", ("seeds passed",)),
    (r"^core +([\d.]+) % of +(\d+) branches", ("core: % of branches", "core: branches")),
    (r"^(?:door|driver|simulator) +([\d.]+) % of +\d+ branches", None),
    (r"^figure: (.+) = ([\d.]+)$", ()),
]


def number(text):
    return float(text) if "." in text else int(text)


def figures(log):
    found = {}
    for line in log:
        for pattern, names in PATTERNS:
            match = re.search(pattern, line)
            if not match:
                continue
            numbers = match.groups()
            if names is None:
                names, numbers = (line.split()[0] + ": % of branches",), numbers[:1]
            elif not names:
                names, numbers = (match[1],), (match[2],)
            for name, value in zip(names, numbers):
                found[name] = found.get(name, 0) + number(value)
    return {name: value for name, value in found.items() if value or not name.endswith("failed")}


def main():
    step, outcome, seconds, path = sys.argv[1:5]
    with open(path, errors="replace") as log:
        lines = log.readlines()
    skipped = [line for line in lines if line.startswith("skipped: ")]
    if skipped and outcome == "passed":
        outcome = "skipped"
    found = figures(lines)
    if sys.argv[5:] == ["--json"]:
        print(json.dumps(
            {"step": step, "outcome": outcome, "seconds": int(seconds), "figures": found}))
        return
    text = ", ".join(f"{value:,} {name}" for name, value in found.items())
    if outcome == "skipped":
        text = skipped[0].removeprefix("skipped: ").strip()
    print(f"{outcome:8} {step:14} {int(seconds):5} s  {text}")


main()
