#!/usr/bin/env python3
"""Runs the tests and examples of the crate cudarc on the simulated driver.

usage: cudarc_tests.py [--schedule SCHEDULE] [--limit SECONDS] LIBRARY [NAME ...]

LIBRARY is libtcuda_sim.so; the tests find it as libcuda.so.1. The crate has the version and the
checksum of Cargo.lock and comes from crates.io; NVTX, headers of CUDA and, without
TCUDA_NVRTC_PATH, NVRTC come from PyPI. NAMEs select tests and examples. A failure that
cudarc_failures.txt does not list ends the script with 1, and so does a listed one that passes."""

import argparse
import hashlib
import io
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ROOT / "target/tools"
LIST = pathlib.Path(__file__).with_name("cudarc_failures.txt")
# The last version of NVTX with the library that cudarc opens.
WHEELS = ("nvidia-nvtx-cu12==12.1.105", "nvidia-cuda-runtime-cu12==12.9.79")
FEATURES = "std,driver,nvrtc,nvtx,f16,dynamic-loading,cuda-12090"
# Two devices for tests between devices. An A100, since one example reads a limit that devices of
# compute capability 9.0 do not have. The slow kernels take a minute on a busy machine.
MACHINE = "gpu=A100,devices=2,kernel_time=600,schedule="
# Tests that compare durations pass in one of so many runs, or are not judged.
RUNS = 2


def crate():
    """The folder of the unpacked crate."""
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))
    package = next(each for each in lock["package"] if each["name"] == "cudarc")
    name = f"cudarc-{package['version']}"
    folder = TOOLS / name
    if not folder.exists():
        url = f"https://static.crates.io/crates/cudarc/{name}.crate"
        with urllib.request.urlopen(url) as answer:
            data = answer.read()
        if hashlib.sha256(data).hexdigest() != package["checksum"]:
            sys.exit(f"{url} does not have the checksum of Cargo.lock")
        with tempfile.TemporaryDirectory(dir=TOOLS) as partial:
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                archive.extractall(partial, filter="data")
            with open(f"{partial}/{name}/Cargo.toml", "a", encoding="utf-8") as manifest:
                # It is not a member of the workspace around it.
                manifest.write("\n[workspace]\n")
            os.rename(f"{partial}/{name}", folder)
    return folder


def wheel(requirement):
    """The folder of an installed wheel."""
    folder = TOOLS / requirement.replace("==", "-")
    if not folder.exists():
        command = [sys.executable, ROOT / "scripts/tools/pip_install.py", requirement, folder]
        subprocess.run(command, check=True)
    return folder / "nvidia"


def nvrtc():
    """The folder of NVRTC."""
    script = 'source scripts/tools/tools.sh >&2 && get_nvrtc >&2 && echo "$TCUDA_NVRTC_PATH"'
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return pathlib.Path(done.stdout.decode().strip()).parent


def build(folder, left_out):
    """The program of the tests, and the programs of the examples by name."""
    examples = sorted(path.stem for path in folder.glob("examples/*.rs"))
    wanted = [name for name in examples if f"examples::{name}" not in left_out]
    environment = dict(os.environ, CARGO_TARGET_DIR=str(ROOT / "target/cudarc"))
    environment.pop("CUDARC_CUDA_VERSION", None)
    common = ["--locked", "--no-default-features", "--features", FEATURES,
              "--message-format", "json-render-diagnostics"]
    programs = {}
    for command in (["test", "--no-run", "--lib"],
                    ["build", *(part for name in wanted for part in ("--example", name))]):
        done = subprocess.run(["cargo", *command, *common], cwd=folder, env=environment,
                              check=True, stdout=subprocess.PIPE)
        for line in done.stdout.decode().splitlines():
            message = json.loads(line)
            if message.get("executable"):
                programs[message["target"]["name"]] = message["executable"]
    return programs.pop("cudarc"), programs


def run(command, folder, environment, limit):
    """Why a command failed, or None."""
    try:
        done = subprocess.run(command, cwd=folder, env=environment, timeout=limit,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except subprocess.TimeoutExpired:
        return f"it takes more than {limit} s"
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in done.stdout.decode(errors="replace").splitlines()]
    words = ("panicked at", "Error:")
    for number, line in enumerate(lines):
        if any(word in line for word in words):
            return " ".join(lines[number:number + 2])
    return f"status {done.returncode}: " + " ".join(lines[-3:])


def known(schedule):
    """The listed names: what is expected of each, and why."""
    listed = {}
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            head, reason = line.split(": ", 1)
            kind, name, *schedules = head.split()
            if not schedules or schedule.split(":")[0] in schedules:
                listed[name] = kind, reason
    return listed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedule", default="threads")
    parser.add_argument("--limit", type=int, default=900)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    listed = known(options.schedule)
    folder, (nvtx, runtime) = crate(), map(wheel, WHEELS)
    tests, examples = build(folder, {name for name in listed if listed[name][0] == "absent"})
    counts, start = dict.fromkeys(("passed", "failed", "not judged"), 0), time.monotonic()
    with tempfile.TemporaryDirectory() as driver:
        os.symlink(options.library.resolve(), f"{driver}/libcuda.so.1")
        libraries = ":".join(map(str, (driver, nvrtc(), nvtx / "nvtx/lib")))
        environment = dict(os.environ, TCUDA_SIM=MACHINE + options.schedule,
                           LD_LIBRARY_PATH=libraries)
        # NVRTC finds the headers of CUDA in the working directory.
        headers = runtime / "cuda_runtime/include"
        names = subprocess.run([tests, "--list"], env=environment, check=True,
                               stdout=subprocess.PIPE).stdout.decode()
        names = [name[:-6] for name in names.splitlines() if name.endswith(": test")]
        jobs = {name: ([tests, "--exact", "--include-ignored", name], headers) for name in names}
        jobs |= {f"examples::{name}": ([path], folder) for name, path in examples.items()}
        unexpected = [name for name, (kind, _) in listed.items()
                      if kind != "absent" and name not in jobs]
        for name, (command, place) in jobs.items():
            if options.names and name not in options.names:
                continue
            kind, reason = listed.get(name, ("", ""))
            failure = "not run"
            for _ in range(RUNS if kind == "timing" else 1):
                failure = failure and run(command, place, environment, options.limit)
            outcome = "passed" if failure is None else \
                "not judged" if kind == "timing" else "failed"
            counts[outcome] += 1
            if failure is not None:
                print(f"{outcome} {name}: {failure}\n    {reason or 'not listed'}", flush=True)
            if (outcome == "failed") != (kind == "fails"):
                unexpected.append(name)
    for name, (kind, reason) in listed.items():
        if kind == "absent":
            print(f"not applicable {name}: {reason}")
    print(f"{folder.name}, {MACHINE}{options.schedule}: " + ", ".join(
        f"{count} {outcome}" for outcome, count in counts.items())
        + f", {time.monotonic() - start:.0f} s")
    for name in unexpected:
        print(f"UNEXPECTED {name}: {shlex.join(map(str, jobs[name][0]))}" if name in jobs else
              f"UNEXPECTED {name}: listed, and there is no such test")
    sys.exit(bool(unexpected))


if __name__ == "__main__":
    main()
