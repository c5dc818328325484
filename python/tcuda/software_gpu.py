"""Runs a Python program, or pytest, on the GPU in software.

usage: python -m tcuda.software_gpu [--seed N] PROGRAM ARGS...
       python -m tcuda.software_gpu [--seed N] -m MODULE ARGS...

libtcuda_sim.so is the program's libcuda.so.1. Each run has another seed of the adversarial
schedule, which is printed, unless the environment names a schedule (TCUDA_SIM="schedule=...").
Machine code that NVRTC compiles for cuda.bindings and cuda.core is replaced by PTX, which the
simulator needs.
"""

import os
import sys

if not __package__:
    # As a file, not as a module: the modules beside it are not Python's own.
    sys.path.pop(0)

import json
import linecache
import pathlib
import random
import runpy
import subprocess
import tempfile
from types import FrameType
from typing import Any, TypeGuard

# Of a process on the software GPU.
_IS_INSIDE = "TCUDA_SOFTWARE_GPU"


def _library() -> pathlib.Path:
    beside = pathlib.Path(__file__).with_name("lib") / "libtcuda_sim.so"
    path = pathlib.Path(os.environ.get("TCUDA_SIM_PATH") or beside)
    if not path.exists():
        sys.exit(f"{path} does not exist: TCUDA_SIM_PATH names libtcuda_sim.so")
    return path.resolve()


def _options(seed: int | None) -> str:
    """The options of the simulated machine, with a schedule."""
    options = os.environ.get("TCUDA_SIM", "")
    if "schedule=" in options:
        return options
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    return ",".join(filter(None, [options, f"schedule=adversarial:{seed}"]))


def _use_ptx() -> None:
    """NVRTC's machine code becomes PTX, here and in cuda.core."""
    for name in ("cuda.bindings.nvrtc", "cuda.nvrtc"):
        try:
            nvrtc: Any = __import__(name, fromlist=["nvrtc"])
        except ImportError:
            continue
        nvrtc.nvrtcGetCUBIN = nvrtc.nvrtcGetPTX
        nvrtc.nvrtcGetCUBINSize = nvrtc.nvrtcGetPTXSize
        break
    try:
        import cuda.core
    except ImportError:
        return

    class Program(cuda.core.Program):
        """cuda.core's, whose machine code is PTX."""

        def compile(self, target_type: str, *args: Any, **kwargs: Any) -> Any:
            if target_type != "cubin":
                return super().compile(target_type, *args, **kwargs)
            code = super().compile("ptx", *args, **kwargs)
            if code.code_type == "cubin":
                return code
            names = code.symbol_mapping
            return cuda.core.ObjectCode.from_cubin(code.code, name=code.name, symbol_mapping=names)

    cuda.core.Program = Program


def _avoid_other_libraries() -> None:
    """cuda.core calls NVML and CUDA's runtime for what the driver can do."""
    try:
        from cuda.bindings import driver, runtime
        from cuda.core import system
    except ImportError:
        return

    def count() -> int:
        driver.cuInit(0)
        return int(driver.cuDeviceGetCount()[1])

    system.get_num_devices = count
    statuses = runtime.cudaError_t
    runtime.cudaDeviceSynchronize = lambda: (statuses(int(driver.cuCtxSynchronize()[0])),)

    def bus_id(length: int, device: int) -> tuple[Any, bytes]:
        status, text = driver.cuDeviceGetPCIBusId(length, device)
        return statuses(int(status)), text

    runtime.cudaDeviceGetPCIBusId = bus_id


class _Lines:
    """Notes in the trace of operations which line of the program is executed, and which failed."""

    def __init__(self, path: str, folder: str) -> None:
        self._file = open(path, "a", buffering=1, encoding="utf-8")
        self._folder = folder
        self._raised: BaseException | None = None

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self._is_of_program(frame):
            return None
        if event == "line":
            self._note("source", frame)
        elif event == "return" and self._is_of_program(frame.f_back):
            self._note("source", frame.f_back)
        elif event == "exception" and argument[1] is not self._raised:
            self._raised = argument[1]
            self._note("failed", frame)
        return self

    def _is_of_program(self, frame: FrameType | None) -> TypeGuard[FrameType]:
        name = frame.f_code.co_filename if frame else ""
        return name.startswith(self._folder) and "site-packages" not in name

    def _note(self, what: str, frame: FrameType) -> None:
        name, line = frame.f_code.co_filename, frame.f_lineno
        text = f"{self._place(frame)}: {linecache.getline(name, line).strip()}"
        caller = frame.f_back
        while self._is_of_program(caller) and caller.f_code.co_name != "<module>":
            text += f" (called at {self._place(caller)})"
            caller = caller.f_back
        self._file.write(json.dumps({what: text}) + "\n")

    def _place(self, frame: FrameType) -> str:
        return f"{os.path.relpath(frame.f_code.co_filename, self._folder)}:{frame.f_lineno}"


def _trace_lines(folder: str) -> None:
    for option in os.environ.get("TCUDA_SIM", "").split(","):
        if option.startswith("trace="):
            import threading

            lines = _Lines(option.removeprefix("trace="), folder)
            threading.settrace(lines)
            sys.settrace(lines)


def _run(arguments: list[str]) -> None:
    """The program, in this process."""
    _use_ptx()
    _avoid_other_libraries()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        _trace_lines(os.getcwd() + os.sep)
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        folder = os.path.dirname(os.path.abspath(arguments[0]))
        sys.path.insert(0, folder)
        _trace_lines(folder + os.sep)
        runpy.run_path(os.path.abspath(arguments[0]), run_name="__main__")


def main(arguments: list[str]) -> None:
    seed = None
    if arguments[:1] == ["--seed"] and len(arguments) > 1 and arguments[1].isdigit():
        seed, arguments = int(arguments[1]), arguments[2:]
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        sys.exit(__doc__)
    if os.environ.get(_IS_INSIDE):
        _run(arguments)
        return
    options = _options(seed)
    line = f"software GPU: TCUDA_SIM={options} repeats this run"
    is_chosen = options != os.environ.get("TCUDA_SIM")
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "libcuda.so.1").symlink_to(_library())
        path = ":".join(filter(None, [folder, os.environ.get("LD_LIBRARY_PATH")]))
        environment = dict(os.environ, TCUDA_SIM=options, LD_LIBRARY_PATH=path)
        environment[_IS_INSIDE] = "1"
        if is_chosen:
            print(line, file=sys.stderr, flush=True)
        command = [sys.executable, __file__, *arguments]
        status = subprocess.run(command, env=environment, check=False).returncode
    if status and is_chosen:
        print(line, file=sys.stderr, flush=True)
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main(sys.argv[1:])
