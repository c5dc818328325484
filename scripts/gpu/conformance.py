"""usage: conformance.py [--all] [--json FILE] [WORD...]

Runs the cases of python/conformance, or those whose names have a word, on torch.cuda and on tcuda,
and prints a table of those that not both pass (--all: each), with reasons. Ends with 1 where a case
fails in a module for which differences.txt does not have it; with 77 where there is no PyTorch,
tcuda or GPU. Both are in this Python. What a module's run prints goes to stderr.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
MODULES = ("torch", "tcuda")
CASES = pathlib.Path(__file__).resolve().parents[2] / "python/conformance"
sys.path.insert(0, str(CASES))
from differences import known_differences  # noqa: E402


def run(module, words, folder):
    """The outcome of each case on a module, and the seconds."""
    file = pathlib.Path(folder, f"{module}.json")
    start = time.monotonic()
    subprocess.run(
        [sys.executable, str(CASES), "--json", str(file), *words], stdout=sys.stderr,
        env={**os.environ, "CONFORMANCE": module}, check=False)
    return json.loads(file.read_text()), time.monotonic() - start


def word(outcome):
    """The column of an outcome."""
    return outcome.split(":")[0] if outcome.startswith(("passed", "skipped")) else "failed"


def compare(theirs, ours, every):
    """Prints the table; the number of cases that are wrong."""
    known = {module: known_differences(module) for module in MODULES}
    counts = {"passed": 0, "skipped": 0, "known": 0, "wrong": 0}
    print(f"{'case':<64} {'torch':<8}{'tcuda':<8}")
    for name in dict.fromkeys([*theirs, *ours]):
        outcomes = [of.get(name, "no outcome") for of in (theirs, ours)]
        columns = [word(outcome) for outcome in outcomes]
        note = "; ".join(known[module][name] for module in MODULES if name in known[module])
        failed = [module for module, column in zip(MODULES, columns) if column == "failed"]
        if not all(name in known[module] for module in failed):
            kind = "wrong"
        else:
            kind = "known" if failed else "skipped" if "skipped" in columns else "passed"
        counts[kind] += 1
        if every or failed or note:
            print(f"{name:<64} {columns[0]:<8}{columns[1]:<8}{note}")
        if kind == "wrong":
            for module, outcome in zip(MODULES, outcomes):
                print(f"    {module}: {outcome[:2000]}")
    print(f"{sum(counts.values())} cases: {counts['passed']} pass in both, {counts['skipped']} are "
          f"skipped, {counts['known']} differ for known reasons, {counts['wrong']} are wrong")
    return counts["wrong"]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    if not all(importlib.util.find_spec(module) for module in MODULES):
        print("skipped: needs torch and tcuda")
        return SKIPPED
    import tcuda

    if not tcuda.is_available():
        print("skipped: no GPU")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        results = {module: run(module, options.words, folder) for module in MODULES}
    outcomes = {module: outcome for module, (outcome, _) in results.items()}
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(outcomes, indent=1))
    wrong = compare(outcomes["torch"], outcomes["tcuda"], options.all)
    print(*(f"{module}: {seconds:.0f} s" for module, (_, seconds) in results.items()), sep=", ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
