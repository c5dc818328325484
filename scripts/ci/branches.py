"""Adds up what llvm-cov exports, and holds the core to a floor.

usage: branches.py EXPORT.json ROOT [--branches PERCENT] [--json FILE] [--missed WORD]

One source is compiled into several programs (the tests', the library's), each with its own
counters: a side of a branch counts as taken if any of them took it. llvm-cov's own sums take the
best program instead. Tests inside a file do not count. --missed lists the sides not taken in files
with that word.
"""

import argparse
import collections
import json
import pathlib
import sys

BRANCH = 4  # llvm-cov's kind of region
CODE = 0


def group_of(path):
    """The part of the house to which a file belongs; None: it is not measured."""
    parts = path.parts
    if "tests" in parts or path.stem.endswith("tests") or path.stem == "host_faults":
        return None
    if parts[0] == "sim":
        return "simulator"
    if parts[0] != "src":
        return None
    return {"driver": "driver", "ffi": "door", "sim": "simulator"}.get(parts[1], "core")


def first_line_of_tests(file):
    """Where the tests begin, which end a file."""
    lines = file.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        attribute = line.startswith(("#[cfg(test)]", "#[cfg(all(test"))
        if attribute and any(next.startswith("mod ") and next.endswith("{")
                             for next in lines[number:number + 2]):
            return number
    return len(lines) + 1


class File:
    def __init__(self, file):
        self.end = first_line_of_tests(file)
        self.branches = collections.defaultdict(lambda: [0, 0])  # taken as true, as false
        self.regions = collections.defaultdict(int)

    def sides(self):
        return [count for counts in self.branches.values() for count in counts]

    def row(self):
        sides, regions = self.sides(), self.regions.values()
        return sum(map(bool, sides)), len(sides), sum(map(bool, regions)), len(regions)

    def missed(self):
        for place, counts in sorted(self.branches.items()):
            for side, count in zip(("true", "false"), counts):
                if not count:
                    yield f"{place[0]}:{place[1]}", f"never {side}"
        for place, count in sorted(self.regions.items()):
            if not count:
                yield f"{place[0]}:{place[1]}-{place[2]}:{place[3]}", "never run"


def read(export, root):
    files = {}
    for function in json.loads(export.read_text())["data"][0]["functions"]:
        names = [pathlib.Path(name) for name in function["filenames"]]
        paths = [n.relative_to(root) if n.is_relative_to(root) else None for n in names]

        def of(index, line):
            path = paths[index]
            if path is None or group_of(path) is None:
                return None
            if path not in files:
                files[path] = File(root / path)
            return files[path] if line < files[path].end else None

        for branch in function["branches"]:
            place, (true, false, file) = tuple(branch[:4]), branch[4:7]
            if found := of(file, place[0]):
                found.branches[place][0] += true
                found.branches[place][1] += false
        for region in function["regions"]:
            place, count, file, kind = tuple(region[:4]), region[4], region[5], region[7]
            if kind == CODE and (found := of(file, place[0])):
                found.regions[place] += count
    return files


def percent(part, whole):
    return 100 * part / whole if whole else 100.0


def line(name, row):
    taken, sides, run, regions = row
    return (f"{name:40} {percent(taken, sides):6.1f} % of {sides:5} branches"
            f"   {percent(run, regions):6.1f} % of {regions:5} regions")


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1])
    parser.add_argument("export", type=pathlib.Path)
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--branches", type=float, default=0)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--missed")
    options = parser.parse_args()
    files = read(options.export, options.root)
    if options.missed:
        for path, file in sorted(files.items()):
            if options.missed in str(path):
                for place, what in file.missed():
                    print(f"{path}:{place} {what}")
        return
    sums = collections.defaultdict(lambda: (0, 0, 0, 0))
    for path, file in sorted(files.items()):
        row = file.row()
        print(line(str(path), row))
        group = group_of(path)
        sums[group] = tuple(map(sum, zip(sums[group], row)))
    print()
    for group in ("core", "door", "driver", "simulator"):
        print(line(group, sums[group]))
    if options.json:
        figures = {
            group: {"branches": round(percent(row[0], row[1]), 1),
                    "regions": round(percent(row[2], row[3]), 1)}
            for group, row in sums.items()
        }
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    core = percent(*sums["core"][:2])
    if core < options.branches or not sums["core"][1]:
        sys.exit(f"the core takes {core:.1f} % of its branches; "
                 f"the floor is {options.branches:g} %: "
                 "write the tests that are missing (--missed src/memory lists the sides)")


main()
