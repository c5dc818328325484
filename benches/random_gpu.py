#!/usr/bin/env python3
"""How fast fills are beside PyTorch's, on a GPU, in the same run.

  random_gpu.py LIBRARY [--out FOLDER] [--only TEXT]

LIBRARY is libtcuda.so. For each fill and size, batches of ours and of PyTorch's take turns; the
figure is bytes written by the median of the batches, by events. A constant fill shows what memory
allows.
"""

import argparse
import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts/gpu"))
import random_gpu

FILLS = [
    ("uniform", (0.0, 1.0), ("float32", "bfloat16", "float16", "float64")),
    ("normal", (0.0, 1.0), ("float32", "bfloat16", "float16", "float64")),
    ("integers_all", (), ("int32", "int64", "uint8")),
    ("integers", (0, 100), ("int32", "int64", "uint8", "float32")),
    ("integers", (0, 1 << 40), ("int64",)),
    ("integers_full", (), ("int64",)),
    ("bernoulli", (0.5,), ("float32", "bool", "bfloat16")),
    ("bernoulli_tensor", ("float32",), ("float32", "bool")),
    ("exponential", (1.0,), ("float32", "bfloat16")),
    ("log_normal", (0.0, 1.0), ("float32",)),
    ("cauchy", (0.0, 1.0), ("float32",)),
    ("geometric", (0.3,), ("float32", "int32")),
]
SIZES = (1 << 30, 64 << 20)
TURNS = 9


def timed(torch, work, repeats):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats / 1e3


def main(library=random_gpu.Library):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, help="folder for random_speed.json")
    parser.add_argument("--only", default="", help="fills with this in their names")
    options = parser.parse_args()
    import torch

    memory = torch.empty(SIZES[0], dtype=torch.uint8, device="cuda")
    ours = library(options.library)
    ours.set_state(1, 0)
    theirs = torch.Generator(device="cuda")
    rows = []
    print(f"{'fill':18}{'type':10}{'MiB':>6}{'ours GB/s':>11}{'torch GB/s':>11}{'ratio':>7}"
          f"{'fill GB/s':>11}")
    for name, arguments, dtypes in FILLS:
        for dtype in dtypes if options.only in name else ():
            for size in SIZES:
                tensor = memory[:size].view(getattr(torch, dtype))
                if name == "bernoulli_tensor":
                    p = torch.rand(tensor.numel(), device="cuda")
                    passed = (p,)
                else:
                    passed = arguments
                works = {
                    "ours": ours.prepared(name, passed, tensor),
                    "torch": lambda: random_gpu.torch_fill(name, passed, tensor, theirs),
                    "fill": lambda: memory[:size].fill_(1),
                }
                repeats = max(4, (2 << 30) // size)
                found = {what: [] for what in works}
                for turn in range(TURNS + 1):
                    for what, work in works.items():
                        seconds = timed(torch, work, repeats)
                        if turn:  # the first one warms up
                            found[what].append(seconds)
                speed = {what: size / statistics.median(found[what]) / 1e9 for what in works}
                row = {"fill": name, "arguments": str(arguments), "type": dtype, "bytes": size,
                       **speed}
                row["ratio"] = speed["ours"] / speed["torch"]
                rows.append(row)
                print(
                    f"{name:18}{dtype:10}{size >> 20:>6}{speed['ours']:>11.0f}"
                    f"{speed['torch']:>11.0f}{row['ratio']:>7.2f}{speed['fill']:>11.0f}",
                    flush=True,
                )
    facts = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name()}
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**facts, "rows": rows}, indent=1)
        (options.out / "random_speed.json").write_text(text + "\n")
    print(facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
