"""Builds the test of an adapter beside the packages that the adapter is for, and runs it.

usage: run.py TEST PROJECT LIBRARY CC CXX TOOLS_DIR BUILD_DIR

A package that is missing is installed into TOOLS_DIR; if it cannot be, the exit status is 77. On
the simulated machine the program runs once for each line of RUNS.
"""

import dataclasses
import fcntl
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
# TCUDA_SIM and TCUDA_ALLOC_CONF.
RUNS = [("", ""), ("schedule=threads,devices=2", ""), ("schedule=adversarial:1,devices=2", ""),
    ("leaks=report", ""), ("memory=16GiB", "expandable_segments:False")]

CCCL = "nvidia-cuda-cccl==13.3.5.0.6"
CCCL_2 = "nvidia-cuda-cccl-cu12==12.9.27"
CCCL_3_1 = "nvidia-cuda-cccl==13.1.115"
CUDART = "nvidia-cuda-runtime==13.5.37"
CRT = "nvidia-cuda-crt==13.5.37"  # headers of CUDART
RMM = "librmm-cu13==26.10.0"
RMM_25 = "librmm-cu12==25.4.0"
NCCL = "nvidia-nccl-cu13==2.32.3"  # 300 MB
TVM_FFI = "apache-tvm-ffi==0.1.15.post2"
GGML = ("llama-cpp-sys-2", "0.1.161")  # of crates.io; has the sources of llama.cpp


@dataclasses.dataclass
class Test:
    source: str
    options: list  # for the compiler
    # Package, its folders of headers, its libraries.
    packages: list


RUNTIME = [(CUDART, ["nvidia/cu13/include"], []), (CRT, ["nvidia/cu13/include"], [])]
LINKED_RUNTIME = [(CUDART, ["nvidia/cu13/include"], ["nvidia/cu13/lib/libcudart.so.13"]),
    RUNTIME[1]]
TESTS = {
    "mr": Test("mr.cc", ["-std=c++17"], [(CCCL, ["nvidia/cu13/include/cccl"], []), *RUNTIME]),
    "mr_cccl_2": Test("mr.cc", ["-std=c++17", "-DWITH_CCCL_2"],
        [(CCCL_2, ["nvidia/cuda_cccl/include"], []), *RUNTIME]),
    "mr_cccl_3_1": Test("mr.cc",
        ["-std=c++17", "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE"],
        [(CCCL_3_1, ["nvidia/cu13/include/cccl"], []), *LINKED_RUNTIME]),
    "mr_per_thread": Test("mr.cc", ["-std=c++17", "-DCUDA_API_PER_THREAD_DEFAULT_STREAM"],
        [(CCCL, ["nvidia/cu13/include/cccl"], []), *RUNTIME]),
    "rmm": Test("rmm.cc", ["-std=c++20"], [
        (RMM, ["librmm/include/rapids", "librmm/include", "rapids_logger/include"],
            ["librmm/lib64/librmm.so", "rapids_logger/lib64/librapids_logger.so"]),
        *LINKED_RUNTIME]),
    "rmm_25": Test("rmm_25.cc", ["-std=c++17"], [
        (RMM_25, ["librmm/include/rapids/libcudacxx", "librmm/include", "rapids_logger/include"],
            ["rapids_logger/lib64/librapids_logger.so"]),
        *LINKED_RUNTIME]),
    "dlpack": Test("dlpack.cc", ["-std=c++17"], [
        (TVM_FFI, ["tvm_ffi/include", "tvm_ffi/3rdparty/dlpack/include"],
            ["tvm_ffi/lib/libtvm_ffi.so"])]),
    "ort": Test("ort.c", ["-std=c99"], []),
    "ort_cc": Test("ort.c", ["-std=c++17"], []),
    "ggml": Test("ggml.cc", ["-std=c++17"], []),
    "nccl": Test("nccl.cc", ["-std=c++17", "-isystem", HERE / "stub"], []),
    # For GPUs.
    "nccl_real": Test("nccl.cc", ["-std=c++17", "-DWITH_NCCL"], [
        (NCCL, ["nvidia/nccl/include"], ["nvidia/nccl/lib/libnccl.so.2"]),
        (CCCL, ["nvidia/cu13/include/cccl"], []), *RUNTIME]),
}


def install(project, package, tools):
    """The folder of a package. Tests run at the same time: one installs, others wait."""
    folder = tools / package.replace("==", "-")
    tools.mkdir(parents=True, exist_ok=True)
    with open(tools / "adapters.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            partial = tools / (folder.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            installer = project / "scripts/tools/pip_install.py"
            command = [sys.executable, installer, package, partial]
            if subprocess.run(command, stdout=subprocess.DEVNULL).returncode != 0:
                print(f"skipped: no {package}, and it cannot be fetched")
                sys.exit(77)
            partial.rename(folder)
    return folder


def write_ggml_interface(tools, folder):
    """Writes the two classes of ggml's common.cuh that users of its pool see; the rest of that file
    needs nvcc."""
    name, version = GGML
    crate = tools / "adapters_ggml"
    (crate / "src").mkdir(parents=True, exist_ok=True)
    (crate / "src/lib.rs").touch()
    (crate / "Cargo.toml").write_text('[package]\nname = "ggml"\nversion = "0.0.0"\n'
        f'[workspace]\n[dependencies]\n{name} = "={version}"\n')
    try:
        found = subprocess.run(["cargo", "metadata", "--format-version", "1", "--filter-platform",
            "x86_64-unknown-linux-gnu", "--manifest-path", crate / "Cargo.toml"],
            capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        print(f"skipped: no {name}, and it cannot be fetched")
        sys.exit(77)
    sources, = [pathlib.Path(package["manifest_path"]).parent
        for package in json.loads(found.stdout)["packages"] if package["name"] == name]
    text = (sources / "llama.cpp/ggml/src/ggml-cuda/common.cuh").read_text()
    classes = re.findall(r"^(?:template<typename T>\n)?struct ggml_cuda_pool(?:_alloc)? \{.*?^\};$",
        text, re.MULTILINE | re.DOTALL)
    assert len(classes) == 2, classes
    (folder / "ggml_interface.h").write_text("#pragma GCC system_header\n" + "\n".join(classes))


def build(test, project, library, compilers, tools, program):
    is_cxx = "++" in test.options[0]
    command = [compilers["c++" if is_cxx else "c"], *test.options, "-g", "-Wall", "-Wextra",
        "-Wpedantic", "-Wconversion", "-Werror", "-pthread", "-D_POSIX_C_SOURCE=200809L",
        f"-I{project}/include", f"-I{project}/c_tests", f"-I{program.parent}", "-o", program]
    libraries = [library]
    for package, headers, files in test.packages:
        folder = install(project, package, tools)
        for header in headers:
            command += ["-isystem", folder / header]
        libraries += [folder / file for file in files]
    command += ["-x", "c++" if is_cxx else "c", HERE / test.source, "-x", "none", *libraries]
    command += [f"-Wl,-rpath,{file.parent}" for file in libraries]
    subprocess.run(command, check=True)


def main():
    name, project, library, cc, cxx, tools, folder = sys.argv[1:]
    project, library, tools = map(pathlib.Path, (project, library, tools))
    program = pathlib.Path(folder) / f"adapter_{name}"
    if name == "ggml":
        write_ggml_interface(tools, program.parent)
    build(TESTS[name], project, library, {"c": cc, "c++": cxx}, tools, program)
    on_simulator = os.environ.get("TCUDA_BACKEND") == "sim"
    for machine, settings in RUNS if on_simulator else [("", "")]:
        environment = dict(os.environ, TCUDA_SIM=machine, TCUDA_ALLOC_CONF=settings)
        done = subprocess.run([program], env=environment, stderr=subprocess.PIPE, text=True)
        print(done.stderr, end="", file=sys.stderr)
        if done.returncode != 0 or "simulated machine:" in done.stderr:
            print(f"failed with {done.returncode}; TCUDA_SIM={machine!r}, {settings!r}")
            sys.exit(done.returncode or 1)


main()
