"""How deep the functions of tcuda.h go into the stack of their caller: at most 16 KiB, 32 KiB where
the call initialises the library, and 128 KiB where NVRTC compiles, in a release build.

usage: stack.py LIBRARY BUILD_TYPE API_JSON PROGRAM...

The programs run with LIBRARY (stack.h) preloaded, and kernels on other threads, as on a GPU. In a
debug build, whose frames are several times as large, depths are printed and not bounded.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "every_function"))
import header as reader

KIB = 1024
MOST, MOST_OF_INIT, MOST_OF_NVRTC = 16 * KIB, 32 * KIB, 128 * KIB
COMPILING = {"tcuda_jit_call", "tcuda_kernel_compile", "tcuda_kernel_launch"}


def depths(library, programs):
    deepest = {}
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "depths"
        environment = dict(os.environ, LD_PRELOAD=library, TCUDA_TEST_STACK=str(report),
                           TCUDA_SIM="schedule=threads")
        for program in programs:
            done = subprocess.run([program], env=environment, capture_output=True, text=True)
            if done.returncode not in (0, 77):
                sys.exit(f"{program} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        for line in report.read_text().splitlines():
            name, depth = line.rsplit(" ", 1)
            deepest[name] = max(deepest.get(name, 0), int(depth))
    return deepest


def most(name):
    if name.removeprefix("init ") in COMPILING:
        return MOST_OF_NVRTC
    return MOST_OF_INIT if name.startswith("init ") else MOST


def main():
    library, build, api, *programs = sys.argv[1:]
    found = depths(library, programs)
    names = {function.name for function in reader.read(api).functions}
    unseen = sorted(name for name in names if name not in found and f"init {name}" not in found)
    closest = sorted(found.items(), key=lambda item: -item[1] / most(item[0]))
    for name, depth in closest[:20]:
        print(f"{depth:8} of {most(name)} {name}")
    if unseen:
        sys.exit(f"not called by any of the programs: {', '.join(unseen)}")
    deep = {name: depth for name, depth in found.items() if depth > most(name)}
    if build != "Release":
        print(f"{len(deep)} are deeper than a release build may be: not bounded in a build of "
              f"type {build}")
    elif deep:
        sys.exit(f"too deep: {deep}")


main()
