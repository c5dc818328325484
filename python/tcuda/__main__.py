"""python -m tcuda: versions, devices and libraries, for reports of bugs."""

import platform
import re
from collections.abc import Callable

import tcuda
from tcuda import _core

# Each opens a library when it is first called.
_PROBES: dict[str, Callable[[], object]] = {
    "NVML": lambda: _core.monitor_memory_used(0),
    "NCCL": _core.nccl_version,
    "cuBLAS": lambda: _core.blas_handle(0),
    "cuSOLVER": lambda: _core.solver_handle(0),
    "cuFile": _core.file_is_supported,
}
_LIBRARY = re.compile(r"/lib(cu|nv|nccl|tcuda)[^/]*\.so[^/]*$")


def outcome(probe: Callable[[], object]) -> str:
    """What a probe found, in a few words."""
    try:
        return "unsupported" if probe() is False else "found"
    except tcuda.CudaError as error:
        return f"{error.status}: {error}"


def mapped_libraries() -> list[str]:
    """The libraries of CUDA that this process has opened."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "/" in line}
    return sorted(filter(_LIBRARY.search, paths))


def main() -> None:
    """Prints the report."""
    print(f"tcuda {tcuda.__version__}, Python {platform.python_version()}, {platform.platform()}")
    print(f"backend: {_core.backend_name()}: {outcome(tcuda.init)}")
    for index in range(tcuda.device_count()):
        free, total = tcuda.mem_get_info(index)
        info = _core.device_properties(index)
        print(f"device {index}: {tcuda.get_device_properties(index)}")
        print(f"    driver for CUDA {info['driver_version'] // 1000}."
              f"{info['driver_version'] % 1000 // 10}, {free >> 20} of {total >> 20} MiB free")
    if tcuda.is_available():
        for name, probe in _PROBES.items():
            print(f"{name}: {outcome(probe)}")
    print("opened:", *mapped_libraries(), sep="\n    ")


if __name__ == "__main__":
    main()
