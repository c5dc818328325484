"""Is PyTorch on tcuda the same PyTorch? Runs examples/torch_on_tcuda.py on its own allocator and on
tcuda's, each in a process of its own, and compares the losses to the last bit; reads the snapshot
with PyTorch's own viewer.

usage: torch_check.py LIBDIR OUT [--steps N] [--seed N]

LIBDIR has libtcuda.so. OUT gets what the runs wrote, and torch.json. Ends with 77 where there is no
PyTorch or no GPU.
"""

import argparse
import contextlib
import io
import json
import pathlib
import pickle
import subprocess
import sys
import time

SKIPPED = 77
TIMEOUT = 90
EXAMPLE = pathlib.Path(__file__).resolve().parent.parent.parent / "examples/torch_on_tcuda.py"
ACTIONS = {"alloc", "free_requested", "free_completed", "segment_map", "segment_unmap", "snapshot"}


class Table:
    def __init__(self):
        self.rows = []

    def check(self, name, passed, detail):
        self.rows.append({"name": name, "passed": bool(passed), "detail": detail})

    def tell(self, name, detail):
        self.rows.append({"name": name, "passed": None, "detail": detail})

    def print(self):
        words = {True: "passed", False: "FAILED", None: ""}
        for row in self.rows:
            print(f"{row['name']:<34} {words[row['passed']]:<7} {row['detail']}")

    def passed(self):
        return all(row["passed"] is not False for row in self.rows)


def run(options, allocator, part):
    """What a run wrote, or why there is nothing."""
    folder = options.out / f"{allocator}_{part}"
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(EXAMPLE), "--allocator", allocator, "--part", part, "--library",
               str(options.library / "libtcuda.so"), "--steps", str(options.steps), "--seed",
               str(options.seed), "--out", str(folder)]
    start = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        status, said = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode() + (error.stderr or b"").decode()
        status = f"not over after {TIMEOUT} s"
    (folder / "output.txt").write_text(said)
    if status == SKIPPED:
        print(said.strip())
        sys.exit(SKIPPED)
    if status != 0 or not (folder / "result.json").exists():
        print(f"--- {allocator}, {part}: ended with {status}:\n{said[-3000:]}")
        last = said.strip().splitlines()[-1:] or [""]
        return None, f"ended with {status}: {last[0][:150]}", time.monotonic() - start
    return json.loads((folder / "result.json").read_text()), "", time.monotonic() - start


def compare(table, name, torch, tcuda):
    """Losses, to the last bit."""
    theirs, ours = torch["losses"][name], tcuda["losses"][name]
    differing = [i for i, pair in enumerate(zip(theirs, ours)) if pair[0] != pair[1]]
    first, last = float.fromhex(ours[0]), float.fromhex(ours[-1])
    text = f"{len(ours)} losses, {first:.6f} to {last:.6f}"
    if differing:
        i = differing[0]
        text += f"; step {i}: torch {theirs[i]}, tcuda {ours[i]}; {len(differing)} differ"
    table.check(f"{name}: losses bit for bit", len(theirs) == len(ours) > 0 and not differing, text)


def check_statistics(table, part, torch, tcuda):
    ours, theirs = tcuda["statistics"], torch["statistics"]
    lives = 0 < ours["allocated_bytes.all.current"] <= ours["allocated_bytes.all.peak"]
    counted = ours["allocation.all.allocated"] - ours["allocation.all.freed"] \
        == ours["allocation.all.current"] > 0
    table.check(f"{part}: statistics", lives and counted,
                f"{ours['allocation.all.allocated']} allocations, peak "
                f"{ours['allocated_bytes.all.peak'] / 2**20:.1f} MiB")
    # How long a block waits for other streams depends on when they are queried; so do the peaks.
    differing = [f"{key} {theirs[key]} {ours[key]}" for key in ours if ours[key] != theirs[key]]
    totals = [key for key in ours if not key.endswith(".peak")]
    table.check(f"{part}: statistics as PyTorch's own",
                all(ours[key] == theirs[key] for key in totals),
                f"{len(ours) - len(differing)} of {len(ours)} equal {'; '.join(differing[:4])}")


def check_snapshot(table, part, folder, result):
    """PyTorch's viewer reads it, and it says what the statistics say."""
    import torch  # where this runs there is one
    from torch.cuda import _memory_viz as viz

    snapshot = pickle.loads((folder / "snapshot.pickle").read_bytes())
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    held = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    table.check(f"{part}: snapshot has what is held",
                held == result["statistics"]["allocated_bytes.all.current"],
                f"{held} bytes in {len(snapshot['segments'])} segments")
    trace = snapshot["device_traces"][0]
    allocated = sum(event["action"] == "alloc" for event in trace)
    table.check(f"{part}: snapshot has every event",
                allocated == result["statistics"]["allocation.all.allocated"]
                and {event["action"] for event in trace} <= ACTIONS,
                f"{len(trace)} events, {allocated} allocations")

    def as_it_is(text):  # in place of flamegraph.pl, which would be fetched
        return text

    views = {
        "trace_plot": lambda: viz.trace_plot(snapshot),
        "segment_plot": lambda: viz.segment_plot(snapshot),
        "stats": lambda: viz.segsum(snapshot),
        "trace": lambda: viz.trace(snapshot),
        "memory": lambda: viz.memory(snapshot, as_it_is),
        "segments": lambda: viz.segments(snapshot, as_it_is),
        "compare": lambda: viz.compare(
            snapshot["segments"][1:], snapshot["segments"][:-1], as_it_is),
    }
    for name, view in views.items():
        try:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                text = view()
            table.check(f"{part}: _memory_viz {name}", isinstance(text, str),
                        f"{len(text)} bytes, {len(printed.getvalue())} printed")
        except Exception as error:  # each view is a row
            table.check(f"{part}: _memory_viz {name}", False, f"{type(error).__name__}: {error}")
    page = (folder / "snapshot.html").stat().st_size
    table.check(f"{part}: page", page > 10_000,
                f"{page} bytes in snapshot.html; {torch.__version__}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.library, options.out = options.library.resolve(), options.out.resolve()
    table, device = Table(), ""
    for part in ("train", "graph"):
        torch, why, before = run(options, "torch", part)
        if torch is None:
            table.check(f"{part}: on PyTorch's allocator", False, why)
            continue
        tcuda, why, after = run(options, "tcuda", part)
        table.check(f"{part}: on tcuda", tcuda is not None,
                    why or f"{after:.1f} s, {before:.1f} s before")
        if tcuda is None:
            continue
        device = f"{torch['device']}, PyTorch {torch['torch']}"
        for name in torch["losses"]:
            compare(table, name, torch, tcuda)
        check_statistics(table, part, torch, tcuda)
        try:
            check_snapshot(table, part, options.out / f"tcuda_{part}", tcuda)
        except Exception as error:  # the other rows are worth having
            table.check(f"{part}: snapshot", False, f"{type(error).__name__}: {error}")
    print(f"PyTorch on tcuda beside PyTorch on its own allocator ({device})")
    table.print()
    result = {"device": device, "rows": table.rows}
    (options.out / "torch.json").write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(0 if table.passed() else 1)


if __name__ == "__main__":
    main()
