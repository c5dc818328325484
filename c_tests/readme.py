"""Compiles and runs every C and C++ program in README.md, as a reader would.

usage: readme.py SOURCE_DIR BUILD_DIR CC CXX LIBRARY

A program is a fenced block marked c or cpp that has a main; other blocks are only fragments. While
there is no README.md, examples/quickstart.c stands in.
"""

import os
import pathlib
import re
import subprocess
import sys

FENCE = re.compile(r"^```(c|cpp|c\+\+)[ \t]*$\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
OPTIONS = {
    ".c": ["-std=c11"],
    ".cc": ["-std=c++17"],
}


def programs(source):
    readme = source / "README.md"
    if not readme.exists():
        return [(".c", (source / "examples/quickstart.c").read_text())]
    blocks = FENCE.findall(readme.read_text())
    complete = [(kind, text) for kind, text in blocks if re.search(r"\bmain\s*\(", text)]
    return [(".c" if kind == "c" else ".cc", text) for kind, text in complete]


def main():
    source, build, library = (pathlib.Path(sys.argv[i]) for i in (1, 2, 5))
    compilers = {".c": sys.argv[3], ".cc": sys.argv[4]}
    build.mkdir(parents=True, exist_ok=True)
    found = programs(source)
    if not found:
        sys.exit("README.md has no complete C or C++ program")
    for number, (suffix, text) in enumerate(found, 1):
        if not compilers[suffix]:
            print(f"example {number} left out: no C++ compiler")
            continue
        file = build / f"example{number}{suffix}"
        program = build / f"example{number}"
        file.write_text(text)
        compile = [compilers[suffix], *OPTIONS[suffix], "-Wall", "-Wextra", "-Wpedantic", "-Werror",
                   f"-I{source / 'include'}", str(file), "-o", str(program),
                   str(library), f"-Wl,-rpath,{library.parent}"]
        print("$", *compile, flush=True)
        subprocess.run(compile, check=True)
        print("$", program, flush=True)
        subprocess.run([str(program)], check=True, env=os.environ, timeout=100)


main()
