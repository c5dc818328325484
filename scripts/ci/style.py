"""usage: style.py [--long]: what is checked of texts.

Fails where a line of a source file, comments included, is wider than 100 columns, where a page
names a Rust file that does not exist, where the sources, the header and the pages have 40 or more
of the words that treat objects as people, or where a recipe of packaging/ has another version than
Cargo.toml.
Also counts files over 800 lines and Rust functions over 80 lines, which do not fail; --long names
them.
"""

import pathlib
import re
import subprocess
import sys

WIDTH, FILE_LINES, FUNCTION_LINES = 100, 800, 80
SUFFIXES = {".rs", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".cuh", ".py", ".sh"}
# Inputs of tests and data that other programs wrote.
LEFT_OUT = ("abi/", "fuzz/corpus/", "fuzz/regressions/", "data/")
WORDS = re.compile(
    r"\b(who|whoever|nobody|somebody|told|hears|lets go|gives out|given out)\b", re.IGNORECASE
)
MOST_WORDS = 40
# A path of a Rust file; not the end of a pattern ("sim/*_calls.rs") or of an address.
RUST_FILE = re.compile(r"(?<![\w./*:-])[\w./-]*\w\.rs\b(?!/)")
WITH_BARE_NAMES = ("src/", "tests/", "models/tests/", "fuzz/")
# Files with the version, and where it is in them.
VERSIONS = {
    "Cargo.toml": r'^version = "(.*)"',
    "packaging/conda/recipe.yaml": r'^  version: "(.*)"',
    "packaging/vcpkg/ports/tcuda/vcpkg.json": r'"version": "(.*)"',
}
FUNCTION = re.compile(r"^( *)(?:pub(?:\([a-z: ]+\))? )?(?:const |unsafe |extern \"C\" )*fn (\w+)")


def functions(lines):
    """The name and number of lines of each function of a Rust file."""
    for index, line in enumerate(lines):
        if found := FUNCTION.match(line):
            end = found.group(1) + "}"
            for last in range(index, len(lines)):
                if lines[last] == end:
                    yield found.group(2), index + 1, last - index + 1
                    break
                if last > index and FUNCTION.match(lines[last]) and lines[last].startswith(
                    found.group(1) + "fn"
                ):
                    break


def is_page(name):
    """Is it a page at the top, in docs/, or the one of models/?"""
    return name.endswith(".md") and re.fullmatch(r"(docs/)?[^/]+|models/README.md", name)


def absent_files(names):
    """Where a page names a Rust file that is neither below the repository's root, src/,
    src/memory/ nor a folder of src/memory/."""
    rust = {name for name in names if name.endswith(".rs")}
    folders = {"", "src/", "src/memory/"}
    folders |= {
        f"src/memory/{name.split('/')[2]}/" for name in rust if name.startswith("src/memory/")
    }
    bare = {name.split("/")[-1] for name in rust if name.startswith(WITH_BARE_NAMES)}
    for page in filter(is_page, names):
        if page == "docs/benchmark-log.md":
            continue
        for number, line in enumerate(pathlib.Path(page).read_text().split("\n"), 1):
            for path in RUST_FILE.findall(line):
                if path not in bare and not any(folder + path in rust for folder in folders):
                    yield f"{page}:{number}: {path}"


def other_versions():
    """Versions of recipes that cannot read Cargo.toml, where they differ from it."""
    of = {
        name: re.search(pattern, pathlib.Path(name).read_text(), re.MULTILINE)[1]
        for name, pattern in VERSIONS.items()
    }
    return [f"{name}: {version}" for name, version in of.items() if version != of["Cargo.toml"]]


def main():
    names = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout
    wide, long_files, long_functions = [], [], []
    for name in names.splitlines():
        path = pathlib.Path(name)
        if path.suffix not in SUFFIXES or name.startswith(LEFT_OUT) or not path.is_file():
            continue
        lines = path.read_text().split("\n")
        wide += [f"{name}:{n}: {len(text)}" for n, text in enumerate(lines, 1) if len(text) > WIDTH]
        if len(lines) > FILE_LINES:
            long_files.append(f"{name}: {len(lines)} lines")
        if path.suffix == ".rs" and name.startswith(("src/", "sim/src/")):
            long_functions += [
                f"{name}:{line}: {function} has {count} lines"
                for function, line, count in functions(lines)
                if count > FUNCTION_LINES
            ]
    if "--long" in sys.argv:
        print("\n".join(long_files + long_functions))
    print(f"figure: files over {FILE_LINES} lines = {len(long_files)}")
    print(f"figure: functions over {FUNCTION_LINES} lines = {len(long_functions)}")
    words = []
    for name in names.splitlines():
        path = pathlib.Path(name)
        is_source = name.startswith(("src/", "sim/src/", "include/")) and path.suffix in SUFFIXES
        if is_page(name) or is_source:
            for number, line in enumerate(path.read_text().split("\n"), 1):
                words += [f"{name}:{number}: {found}" for found in WORDS.findall(line)]
    print(f"figure: words that treat objects as people = {len(words)}")
    if len(words) >= MOST_WORDS:
        print("\n".join(words[:50]))
        sys.exit(f"{len(words)} such words: name the thing, or the standard term")
    if absent := list(absent_files(names.splitlines())):
        print("\n".join(absent))
        sys.exit(f"{len(absent)} Rust files that pages name do not exist: correct their paths")
    if others := other_versions():
        sys.exit(f"another version than that of Cargo.toml: {', '.join(others)}")
    if wide:
        print("\n".join(wide[:50]))
        sys.exit(f"{len(wide)} lines are wider than {WIDTH} columns: break them")


main()
