#!/usr/bin/env python3
"""Compares the prototypes of newer.rs, which cudarc does not have yet, with NVIDIA's cuda.h.

usage: prototypes.py [CUDA_H]

Without a header it gets NVIDIA's from PyPI, into target/tools. Fails where a call is missing or
has other types.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SOURCES = ["src/driver/newer.rs", "sim/src/driver/newer.rs"]
RUNTIME = "nvidia-cuda-runtime==13.5.37"
# Numbers by their names in Rust.
NUMBERS = {"c_uint": "unsigned int", "c_int": "int", "c_ulonglong": "unsigned long long",
           "usize": "size_t", "c_char": "char", "c_void": "void"}


def get_header():
    folder = ROOT / "target/tools" / RUNTIME.replace("==", "-")
    header = folder / "nvidia/cu13/include/cuda.h"
    if not header.exists():
        subprocess.run([sys.executable, ROOT / "scripts/tools/pip_install.py", RUNTIME, folder],
                       check=True)
    return header


def as_c(rust):
    """A type of Rust's as C writes it."""
    rust = rust.strip()
    for prefix, suffix in (("*mut ", " *"), ("*const ", " const *")):
        if rust.startswith(prefix):
            return as_c(rust[len(prefix):]) + suffix
    return NUMBERS.get(rust, rust)


def declared(header):
    """The types of the parameters of each call of a header; of several, all."""
    text = re.sub(r"/\*.*?\*/", " ", header.read_text(encoding="latin-1"), flags=re.DOTALL)
    found = {}
    for name, parameters in re.findall(r"CUresult CUDAAPI (\w+)\(([^;]*?)\);", text):
        types = []
        for parameter in parameters.split(","):
            parameter = re.sub(r"\bconst (\w+(?: \w+)*?) ?\*", r"\1 const *", parameter.strip())
            types.append(re.sub(r" ?(\w+)$", "", parameter).replace("*", " *").replace("  ", " "))
        found.setdefault(name, []).append(types)
    return found


def main():
    header = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else get_header()
    known, problems, count = declared(header), [], 0
    for source in SOURCES:
        text = (ROOT / source).read_text().rpartition("prototypes! {")[2]
        for name, parameters in re.findall(r"^    (\w+)\(([^;]*)\);", text, re.MULTILINE):
            count += 1
            ours = [as_c(parameter.partition(":")[2]) for parameter in parameters.split(",")]
            if ours not in known.get(name, []):
                problems.append(f"{source}: {name}({', '.join(ours)}); the header has "
                                f"{known.get(name, 'no such call')}")
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"{count} prototypes, {len(problems)} differ from {header.name}")
    return 1 if problems or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
