"""What scripts of checks share: each check runs in a process of its own, so that a crash of one
leaves the others alone. A check is a function that returns what it saw."""

import json
import pathlib
import subprocess
import sys
import threading
import time

SKIPPED = 77
MIB = 1 << 20


class Skipped(Exception):
    """A check that does not apply here, with the reason."""


def need(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(part) for part in what))


def fill_in_threads(fill, stream):
    """Six threads, each on a `stream` of its own, keep some of 300 arrays that `fill` makes."""
    errors = []

    def work(seed):
        try:
            with stream():
                held = []
                for index in range(300):
                    value = float(seed * 1000 + index)
                    held.append((fill(1 + (index * 7919) % 300_000, value), value))
                    if len(held) > 20:
                        array, wanted = held.pop(index % 20)
                        need(float(array.min()) == float(array.max()) == wanted, "corrupted")
        except BaseException as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    need(not errors, errors)


def run_one(checks):
    """In the process of a check: runs it, and ends; else returns. Its last line is the result."""
    if sys.argv[1:2] != ["--check"]:
        return
    try:
        result = {"outcome": "passed", "detail": checks[sys.argv[2]]()}
    except Skipped as error:
        result = {"outcome": "skipped", "detail": str(error)}
    print("\n" + json.dumps(result), flush=True)
    sys.exit()


def run_all(names, out, seconds):
    """Runs checks of this script, writes OUT/NAME.json, and ends. `seconds`: a limit by name."""
    out.mkdir(parents=True, exist_ok=True)
    results = [_start(name, out, seconds(name)) for name in names]
    path = out / f"{pathlib.Path(sys.argv[0]).stem}.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    failed = [result["name"] for result in results if result["outcome"] == "FAILED"]
    print(f"{len(results)} checks, {len(failed)} failed: {' '.join(failed)}")
    sys.exit(1 if failed else 0)


def _start(name, out, limit):
    begin = time.monotonic()
    with open(out / f"{name}.txt", "w+") as file:
        child = subprocess.Popen([sys.executable, sys.argv[0], "--check", name], stdout=file,
                                 stderr=subprocess.STDOUT)
        try:
            status = child.wait(limit)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            status = f"not over after {limit} s"
        file.seek(0)
        said = file.read()
    result = {"outcome": "FAILED", "detail": f"ended with {status}"}
    if status == 0:
        # Something may be printed after it, when the process ends.
        line, _, after = said.rpartition('\n{"outcome"')[2].partition("\n")
        result = json.loads('{"outcome"' + line)
        if "Traceback" in after:
            result = {"outcome": "FAILED", "detail": "an exception at the end of the process"}
    if result["outcome"] == "FAILED":
        result["output"] = said[-6000:]
    result.update(name=name, seconds=round(time.monotonic() - begin, 1))
    print(f"{name:<20} {result['outcome']:<8} {result['seconds']:6.1f} s  {result['detail']}",
          flush=True)
    if "output" in result:
        print(f"--- {name}:\n{result['output']}\n---", flush=True)
    return result
