"""Finds a seed of the adversarial schedule that a program fails under, and the few operations that
must be late for it.

    python3 scripts/ci/shrink.py [--seeds 0-999] [--options devices=2] [--timeout 60]
                                 -- PROGRAM ARGS...

The program runs on the simulated machine and takes its options from the environment (TCUDA_SIM).
It fails when it ends with a status other than 0 and 77, with a signal, or not at all. The exit
status is 0 when a failing seed was found and shrunk, 1 when no seed fails, 2 for wrong usage.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile

SKIPPED = 77
# The line of a Python traceback that names the error.
ERROR = re.compile(r"[\w.]+(Error|Exception)\b")
# One string of the environment holds 128 KiB.
LONGEST_LIST = 100_000


def operations_of(lines):
    """The operations of a trace by number. A Python program that runs with
    python/tcuda/software_gpu.py notes its lines between them."""
    operations, source, failed = {}, None, None
    for line in lines:
        source, failed = line.get("source", source), line.get("failed", failed)
        if "number" in line:
            # The last line of an operation counts; what has not run is as late as can be.
            before = operations.get(line["number"], {"source": source})
            operations[line["number"]] = {
                "late": True, **line, "source": before["source"], "host": source,
                "is_after_failure": failed is not None}
    for operation in operations.values():
        operation["failed"] = failed
    return operations


class Runner:
    """Runs the program, and counts how often."""

    def __init__(self, command, options, timeout):
        self.command = command
        self.options = [part for part in options.split(",")
                        if part and part.split("=")[0].strip() not in ("schedule", "late", "trace")]
        self.timeout = timeout
        self.runs = 0

    def setting(self, seed, late=None, trace=None):
        parts = [f"schedule=adversarial:{seed}"]
        if late is not None:
            parts.append("late=" + ("+".join(map(str, sorted(late))) or "none"))
        if trace is not None:
            parts.append(f"trace={trace}")
        return ",".join(self.options + parts)

    def run(self, seed, late=None, trace=None):
        """What went wrong, as text; None when nothing did."""
        self.runs += 1
        setting = self.setting(seed, late, trace)
        environment = dict(os.environ, TCUDA_BACKEND="sim", TCUDA_SIM=setting)
        try:
            ended = subprocess.run(self.command, env=environment, timeout=self.timeout,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        except OSError as error:
            sys.exit(f"{self.command[0]} cannot be run: {error.strerror}")
        except subprocess.TimeoutExpired:
            return f"did not end within {self.timeout} seconds"
        if ended.returncode in (0, SKIPPED):
            return None
        said = ended.stderr.decode(errors="replace").strip().splitlines()
        said = [line for line in said if ERROR.match(line)] or said
        last = f": {said[-1]}" if said else ""
        if ended.returncode < 0:
            return f"ended by {signal.Signals(-ended.returncode).name}{last}"
        return f"exit status {ended.returncode}{last}"

    def traced(self, seed, late=None):
        """What went wrong, and the operations that ran."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace")
            outcome = self.run(seed, late, path)
            try:
                with open(path, encoding="utf-8") as file:
                    lines = [json.loads(line) for line in file if line.endswith("\n")]
            except FileNotFoundError:
                lines = []
        return outcome, operations_of(lines)


def minimise(fails, numbers):
    """Delta debugging: a subset that still fails, and none of whose members can be left out."""
    parts = 2
    while len(numbers) > 1:
        size = -(-len(numbers) // parts)
        chunks = [numbers[at:at + size] for at in range(0, len(numbers), size)]
        for chunk in chunks:
            if fails(chunk):
                numbers, parts = chunk, 2
                break
        else:
            for index in range(len(chunks) if len(chunks) > 2 else 0):
                rest = [n for at, chunk in enumerate(chunks) if at != index for n in chunk]
                if fails(rest):
                    numbers, parts = rest, max(parts - 1, 2)
                    break
            else:
                if parts >= len(numbers):
                    break
                parts = min(2 * parts, len(numbers))
    return numbers


def describe(operation, note=""):
    text = f"#{operation['number']} {operation['kind']} on stream {operation['stream']}"
    if operation["thread"]:
        text += f" by thread {operation['thread']}"
    if operation["device"]:
        text += f" of device {operation['device']}"
    for what in ("reads", "writes"):
        if what in operation:
            start, count = operation[what]
            place = "of the host" if start == "host" else f"at {start}"
            text += f", {what} {count} bytes {place}"
    if operation["waits"]:
        text += ", waits for " + " ".join(f"#{number}" for number in operation["waits"])
    text += note
    if operation["source"]:
        text += f"\n      queued at {operation['source']}"
    return text


def report(by_number, late):
    for number in late:
        operation = by_number.get(number)
        if operation is None:
            print(f"  #{number}, which did not run")
            continue
        print("  " + describe(operation))
        overtaker = by_number.get(operation.get("overtaken_by"))
        if overtaker is not None:
            touched = ", which touches the same bytes" if operation["conflicts"] else ""
            text = describe(overtaker, touched).replace("\n", "\n    ")
            print(f"      overtaken by {text}")
            print(f"      nothing orders #{overtaker['number']} after #{number}")
        elif operation["is_after_failure"]:
            print("      had not run when the program failed")
        elif "ran_after" in operation:
            print(f"      ran when #{operation['ran_after']} was queued; nothing overtook it but "
                  "the host, which did not wait")
            if operation["host"]:
                print(f"      ran while the host was at {operation['host']}")
        else:
            print("      had not run when the program ended")
    failed = [operation["failed"] for operation in by_number.values() if operation["failed"]]
    if failed:
        print(f"  The program failed at {failed[0]}")


def shrink(runner, seed):
    if (outcome := runner.run(seed, [])) is not None:
        print(f"It fails with no operation late as well ({outcome}): the order of operations does "
              "not matter; it may read memory that nobody has written.")
        return
    _, operations = runner.traced(seed)
    late = sorted(number for number, operation in operations.items() if operation["late"])
    if len("+".join(map(str, late))) > LONGEST_LIST:
        print(f"{len(late)} operations are late, too many for the environment: shrink the program")
        return

    def fails(numbers):
        return runner.run(seed, numbers) is not None

    if not fails(late):
        print("It does not fail again with the same operations late: the program is not the same "
              "each time it runs (time, addresses, threads).")
        return
    late = minimise(fails, late)
    outcome, operations = runner.traced(seed, late)
    print(f"{len(late)} operation{'s' if len(late) > 1 else ''} must be late "
          f"({runner.runs} runs): {outcome}")
    report(operations, late)
    print("To see it again:")
    print(f"  TCUDA_BACKEND=sim TCUDA_SIM={runner.setting(seed, late)} {' '.join(runner.command)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--seeds", default="0-999", help="the seeds to try: 7, or 0-999")
    parser.add_argument("--options", default=os.environ.get("TCUDA_SIM", ""),
                        help="other options of the simulated machine; those of TCUDA_SIM otherwise")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for one run")
    parser.add_argument("command", nargs="+", metavar="PROGRAM")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    if not first.isdigit() or not (last or first).isdigit():
        parser.error(f"--seeds cannot be '{arguments.seeds}': write 7, or 0-999")
    runner = Runner(arguments.command, arguments.options, arguments.timeout)
    for seed in range(int(first), int(last or first) + 1):
        outcome = runner.run(seed)
        if outcome is not None:
            print(f"Seed {seed} fails: {outcome}")
            shrink(runner, seed)
            return 0
    print(f"No seed of {arguments.seeds} fails.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
