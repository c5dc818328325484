#!/usr/bin/env python3
"""Compiles PyTorch's backend (python/tcuda/torch/backend.cpp) against the headers of each PyTorch.

usage: torch_headers.py [--run LIBRARY] [VERSION ...]

Without a version: the newest patch of each minor version that tcuda.torch supports. The headers
come from PyTorch's wheel for macOS, which is the smallest that has those of CUDA, and from NVIDIA's
wheels, once, into target/tools. Warnings are errors.

--run: also links torch_backend.cpp, which tests the backend, with the libraries of PyTorch's wheel
for Linux (500 to 900 MB for each version, which are not kept), and runs it on the simulated
machine. LIBRARY is libtcuda.so, with libtcuda_sim.so beside it.
"""

import argparse
import importlib.util
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/tools"))
from pip_install import pip  # noqa: E402

TOOLS = ROOT / "target/tools"
VERSIONS = ("2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
CUDA = ("nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88")
PARTS = ("c10/", "ATen/", "torch/headeronly/", "torch/csrc/api/include/torch/version.h")
LIBRARIES = ("libc10.so", "libc10_cuda.so", "libtorch_cpu.so", "libgomp.so.1")
PYTHON = "3.12"
MACOS, LINUX = ("macosx_14_0_arm64", "macosx_11_0_arm64"), ("manylinux_2_28_x86_64",)
# What the runtime that does nothing writes to.
RUNTIME = {
    "cudaGetDevice": ("int *out", "*out = 0;"),
    "cudaGetDeviceCount": ("int *out", "*out = 1;"),
    "cudaStreamIsCapturing": ("void *stream, int *out", "(void)stream; *out = 0;"),
}


def backend():
    """The module tcuda.torch, without the package, which needs its compiled part."""
    file = ROOT / "python/tcuda/torch/__init__.py"
    spec = importlib.util.spec_from_file_location("tcuda_torch", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def download(version, platforms, place):
    """Puts a wheel of PyTorch into a folder, and opens it."""
    subprocess.run(
        [*pip(TOOLS), "download", "--quiet", "--disable-pip-version-check", "--no-deps",
         "--only-binary", ":all:", "--python-version", PYTHON,
         *(f"--platform={platform}" for platform in platforms), "--dest", str(place),
         f"torch=={version}"], check=True)
    return zipfile.ZipFile(next(place.glob("torch-*.whl")))


def torch_headers(version):
    """The folder of the headers of a PyTorch."""
    folder = TOOLS / f"torch-headers-{version}"
    if not folder.exists():
        TOOLS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=TOOLS) as name:
            place = pathlib.Path(name)
            beginnings = tuple(f"torch/include/{part}" for part in PARTS)
            with download(version, MACOS, place) as wheel:
                wheel.extractall(
                    place, [file for file in wheel.namelist() if file.startswith(beginnings)])
            (place / "torch/include").rename(folder)
    return folder


def cuda_headers():
    folder = TOOLS / "cuda-headers-13.0"
    if not folder.exists():
        subprocess.run([sys.executable, str(ROOT / "scripts/tools/pip_install.py"), *CUDA,
                        str(folder)], check=True)
    return next(folder.glob("nvidia/*/include/cuda_runtime.h")).parent


def newer():
    """Minor versions of PyTorch that PyPI has and VERSIONS has not."""
    done = subprocess.run([*pip(TOOLS), "index", "versions", "torch"], capture_output=True,
                          text=True, check=False)
    known = {version.rsplit(".", 1)[0] for version in VERSIONS}
    oldest = tuple(map(int, VERSIONS[0].split(".")))
    found = re.findall(r"\b(\d+\.\d+)\.\d+\b", done.stdout)
    return sorted({minor for minor in found if tuple(map(int, minor.split("."))) > oldest} - known)


def call(command, **options):
    """Runs a command; a failure prints it and what it says. Did it succeed?"""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          check=False, **options)
    if done.returncode != 0:
        print(shlex.join(map(str, command)), done.stdout[-3000:], done.stderr[-6000:], sep="\n",
              flush=True)
    return done.returncode == 0


def compiler():
    return shlex.split(os.environ.get("CXX") or "g++")


def compiles(module, version, source, output):
    """Does a source compile against a PyTorch?"""
    numbers = tuple(map(int, version.split(".")[:2]))
    return call([
        *compiler(), *module._options(numbers, 1), "-c", "-Wall", "-Wextra", "-Werror",
        "-DC10_USING_CUSTOM_GENERATED_MACROS", "-isystem", torch_headers(version),
        "-isystem", cuda_headers(), "-I", ROOT / "include", ROOT / source, "-o", output])


def make_runtime(inputs, folder):
    """Libraries with each function of CUDA's runtime and of CUPTI that the inputs need."""
    listed = [subprocess.run(["nm", *options, "--undefined-only", file], text=True, check=True,
                             capture_output=True).stdout
              for file in inputs for options in [["-D"] if file.suffix == ".so" else ["-g"]]]
    lines = []
    for name in sorted(set(re.findall(r"\bU ((?:cuda|cupti)\w+)", "".join(listed)))):
        parameters, body = RUNTIME.get(name, ("void", ""))
        lines.append(f"int {name}({parameters}) {{ {body} return 0; }}\n")
    (folder / "runtime.c").write_text("".join(lines))
    needed = subprocess.run(["readelf", "-d", *inputs[1:]], text=True, check=True,
                            capture_output=True).stdout
    for name in set(re.findall(r"\[(libcu(?:dart|pti)\.so\.\d+)\]", needed)):
        (folder / "symbols.map").write_text(f"{name} {{ *; }};\n")
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", folder / "runtime.c", "-o", folder / name,
                        f"-Wl,--version-script={folder / 'symbols.map'}", f"-Wl,-soname,{name}"],
                       check=True)


def runs(module, version, library):
    """Do the tests of the backend pass on the simulated machine?"""
    with tempfile.TemporaryDirectory(dir=TOOLS) as name:
        place = pathlib.Path(name)
        if not compiles(module, version, "scripts/ci/torch_backend.cpp", place / "test.o"):
            return False
        with download(version, LINUX, place) as wheel:
            for file in wheel.namelist():
                if file.removeprefix("torch/lib/") in LIBRARIES:
                    (place / pathlib.PurePath(file).name).write_bytes(wheel.read(file))
        make_runtime([place / "test.o", *(place / file for file in LIBRARIES[:3])], place)
        (place / "libtcuda.so.0.1").symlink_to(library.resolve())
        (place / "libtcuda_sim.so").symlink_to(library.resolve().parent / "libtcuda_sim.so")
        if not call([*compiler(), place / "test.o", "-o", place / "test", "-L", place,
                     "-l:libtcuda.so.0.1", "-lc10", "-lc10_cuda", "-ltorch_cpu",
                     next(place.glob("libcudart.so.*")), f"-Wl,-rpath-link,{place}",
                     "-Wl,--unresolved-symbols=ignore-in-shared-libs"]):
            return False
        return call([place / "test"], timeout=120,
                    env={**os.environ, "TCUDA_BACKEND": "sim", "LD_LIBRARY_PATH": str(place)})


def works(module, version, library):
    with tempfile.TemporaryDirectory() as place:
        is_good = compiles(module, version, "python/tcuda/torch/backend.cpp", f"{place}/backend.o")
    said = "compiles" if is_good else "does NOT compile"
    if is_good and library:
        is_good = runs(module, version, library)
        said += ", runs" if is_good else ", FAILED"
    print(f"PyTorch {version}: {said}", flush=True)
    return is_good


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--run", type=pathlib.Path, metavar="LIBRARY")
    options = parser.parse_args()
    module = backend()
    if tuple(map(int, VERSIONS[0].split(".")[:2])) != module._OLDEST:
        sys.exit(f"tcuda.torch supports {module._OLDEST}, this script begins with {VERSIONS[0]}")
    failed = [version for version in options.versions if not works(module, version, options.run)]
    print(f"figure: versions of PyTorch that the backend compiles with = "
          f"{len(options.versions) - len(failed)}")
    if options.versions is VERSIONS and (more := newer()):
        print(f"PyPI has newer ones, which are not tried: {' '.join(more)}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
