"""Builds and runs a program in another language, where its toolchain can be had.

usage: languages.py SOURCE PROJECT LIBRARY TOOLS_DIR BUILD_DIR
SOURCE: a quickstart of examples/languages or a program of c_tests/languages, for Go (cgo), Node
(koffi from npm, into TOOLS_DIR), mono, Java 22 or newer, rustc, Python (cffi, into TOOLS_DIR) or
LuaJIT. Without the toolchain the exit status is 77.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

EXPECTED = {
    "quickstart": "1.5 ... 1.5, 4096 bytes allocated\n",
    "errors.go": "128000 texts are right, 0 are not\n",
    "errors.mjs": "2000 texts are right, 0 are not\n",
}
KOFFI = "koffi@3.3.4"


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def found(*names):
    for name in names:
        if shutil.which(name) is None:
            skip(f"there is no {name}")


def go(source, project, build, tools):
    found("go")
    os.environ.update(CGO_CFLAGS=f"-I{project}/include", CGO_LDFLAGS=f"-L{build}",
        GOCACHE=str(build / "go"), GOFLAGS="-mod=mod", GO111MODULE="off")
    program = build / source.stem
    subprocess.run(["go", "build", "-o", program, source], check=True)
    return [program]


def node(source, project, build, tools):
    found("node", "npm")
    modules = tools / "koffi"
    if not (modules / "node_modules/koffi").exists():
        modules.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--silent", "--no-save", "--prefix", modules, KOFFI]
        if subprocess.run(command).returncode != 0:
            skip(f"{KOFFI} cannot be fetched")
    # Modules are searched beside the program.
    shutil.copy(source, modules)
    os.environ["TCUDA_LIBRARY"] = str(build / "libtcuda.so.0.1")
    return ["node", modules / source.name]


def cs(source, project, build, tools):
    found("mcs", "mono")
    program = build / f"{source.stem}.exe"
    subprocess.run(["mcs", f"-out:{program}", source], check=True)
    return ["mono", program]


def java(source, project, build, tools):
    found("java", "javac")
    version = subprocess.run(["javac", "-version"], capture_output=True, text=True).stdout
    if int(re.search(r"(\d+)", version)[1]) < 22:
        skip(f"{version.strip()} is older than Java 22")
    subprocess.run(["javac", "-d", build, source], check=True)
    return ["java", "--enable-native-access=ALL-UNNAMED", "-cp", build, source.stem]


def rs(source, project, build, tools):
    found("rustc")
    program = build / source.stem
    subprocess.run(["rustc", "--edition", "2024", source, "-L", f"native={build}", "-o", program],
        check=True)
    return [program]


def py(source, project, build, tools):
    packages = tools / f"python{sys.version_info.major}.{sys.version_info.minor}"
    if not (packages / "cffi").exists():
        installer = project / "scripts/tools/pip_install.py"
        if subprocess.run([sys.executable, installer, "cffi", packages]).returncode != 0:
            skip("cffi cannot be fetched")
    os.environ["PYTHONPATH"] = str(packages)
    return [sys.executable, source]


def lua(source, project, build, tools):
    found("luajit")
    return ["luajit", source]


def main():
    source, project, library, tools, build = map(pathlib.Path, sys.argv[1:])
    folder = build / f"language_{source.name}"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("libtcuda.so.0.1", "libtcuda.so", "libtcuda_sim.so"):
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(library if "sim" not in name else library.parent / name)
    os.environ.update(LD_LIBRARY_PATH=str(folder), TCUDA_INCLUDE=str(project / "include"))
    builders = {".go": go, ".mjs": node, ".cs": cs, ".java": java, ".rs": rs, ".py": py,
        ".lua": lua}
    command = builders[source.suffix](source, project, folder, tools)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="")
    expected = EXPECTED.get(source.name) or EXPECTED[source.stem.lower()]
    sys.exit(done.returncode or done.stdout != expected)


main()
