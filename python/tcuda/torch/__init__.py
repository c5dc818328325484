"""PyTorch on tcuda: `tcuda.torch.enable()` makes tcuda the allocator of PyTorch's CUDA memory.

    import tcuda.torch
    tcuda.torch.enable()  # before the first use of CUDA

All of PyTorch's CUDAAllocator is there, so that torch.cuda.memory_stats, memory_summary,
memory_snapshot, _record_memory_history, OutOfMemoryError, MemPool, graphs, the graph trees of
torch.compile, and tensors that are sent to other processes work as with PyTorch's own allocator.
`enable(host=True)` does the same for pinned memory, with PyTorch's HostAllocator.

With TCUDA_TORCH=1 in the environment, `import torch` calls enable() itself; TCUDA_TORCH=host is
enable(host=True). Each process that a program starts inherits it. PyTorch 2.9 and newer load
this as a device backend of the installed package, unless TORCH_DEVICE_BACKEND_AUTOLOAD is 0.

The interface is C++ and differs between versions of PyTorch. So enable() compiles `backend.cpp`
against the installed one, with the C++ compiler in CXX, or g++, and keeps the result in
TCUDA_TORCH_CACHE, or in ~/.cache/tcuda/torch. nvcc and ninja are not needed; the headers of the
CUDA runtime are.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from typing import Any, Iterator

__all__ = ["enable", "is_enabled", "is_host_enabled"]

_FOLDER = pathlib.Path(__file__).resolve().parent
_OLDEST = (2, 9)
_backend: ctypes.CDLL | None = None
_is_host_enabled = False


def enable(
    library: str | os.PathLike[str] | None = None, verbose: bool = False, host: bool = False
) -> None:
    """Makes tcuda the allocator of PyTorch's CUDA memory, in this process; again: no-op. (+)

    Raises RuntimeError if PyTorch has used CUDA already, or, with `host`, has pinned memory, or if
    the backend cannot be compiled.

    Args:
        library: path of libtcuda.so. None: TCUDA_LIBRARY of the environment, else the library
            beside the package, else what the system's search path has.
        verbose: True: prints the compiler's command and what it says.
        host: True: tcuda is the allocator of pinned memory as well. It can be added by a second
            call.
    """
    global _backend, _is_host_enabled
    if _backend is None:
        _backend = _installed(library, verbose)
    if host and not _is_host_enabled:
        _call(_backend, "tcuda_torch_backend_install_host")
        _is_host_enabled = True


def is_enabled() -> bool:
    """Is tcuda the allocator of PyTorch's CUDA memory? (+)"""
    return _backend is not None


def is_host_enabled() -> bool:
    """Is tcuda the allocator of PyTorch's pinned memory? (+)"""
    return _is_host_enabled


def _call(backend: ctypes.CDLL, function: str) -> None:
    error = ctypes.create_string_buffer(4096)
    # PyDLL does not release the interpreter lock: no other thread may use CUDA meanwhile.
    called = getattr(ctypes.PyDLL(backend._name), function)
    if called(error, ctypes.c_size_t(len(error))) != 0:
        raise RuntimeError(error.value.decode(errors="replace"))


def _version(torch: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def _installed(library: str | os.PathLike[str] | None, verbose: bool) -> ctypes.CDLL:
    """The backend, once PyTorch allocates from it."""
    import torch

    if torch.version.cuda is None:
        raise RuntimeError(f"PyTorch {torch.__version__} is built without CUDA")
    if _version(torch) < _OLDEST:
        raise RuntimeError(f"PyTorch {torch.__version__} is too old for tcuda.torch.enable(): "
                           f"{'.'.join(map(str, _OLDEST))} or later is needed")
    if torch.cuda.is_initialized():
        raise RuntimeError(
            "PyTorch has used CUDA already: call tcuda.torch.enable() before that")

    path = _find_library(library)
    # The backend takes the functions of tcuda from the process.
    try:
        tcuda = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise OSError(f"{error}: pass the path of libtcuda.so to tcuda.torch.enable(), or set "
                      "TCUDA_LIBRARY") from None
    backend = ctypes.CDLL(str(_built(torch, path, verbose)))
    _call(backend, "tcuda_torch_backend_install")
    if _version(torch) < (2, 10):
        _forward_settings(torch, tcuda)
    return backend


# ---- The library and its header ----


def _find_library(given: str | os.PathLike[str] | None) -> str:
    given = given or os.environ.get("TCUDA_LIBRARY")
    if given:
        if not os.path.exists(given):
            raise FileNotFoundError(f"there is no library of tcuda: {os.fspath(given)}")
        return str(pathlib.Path(given).resolve())
    package = _FOLDER.parent
    for folder in (package, package / "lib", package.parent / "lib"):
        for found in sorted(folder.glob("libtcuda.so*")):
            return str(found.resolve())
    return "libtcuda.so.0.1"


def _find_header(library: str) -> pathlib.Path:
    """The folder of tcuda.h: in the package, beside the library, or in the source tree."""
    beside = pathlib.Path(library).parent
    for folder in (_FOLDER / "include", _FOLDER.parent / "include", beside / "include",
                   beside.parent / "include", _FOLDER.parents[2] / "include",
                   beside.parent.parent / "include", pathlib.Path("/usr/local/include"),
                   pathlib.Path("/usr/include")):
        if (folder / "tcuda.h").is_file():
            return folder
    raise FileNotFoundError(
        f"tcuda.h is neither in the package nor beside {library}, in include/ or ../include/")


def _cuda_headers() -> Iterator[pathlib.Path]:
    """Folders that may have the headers of the CUDA runtime, the likeliest first."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield pathlib.Path(os.environ[name]) / "include"
    yield pathlib.Path("/usr/local/cuda/include")
    compiler = shutil.which("nvcc")
    if compiler:
        yield pathlib.Path(compiler).resolve().parent.parent / "include"
    places = [pathlib.Path(place) for place in sys.path if place]
    places.append(pathlib.Path(sysconfig.get_paths()["purelib"]))
    for place in places:
        yield from sorted((place / "nvidia").glob("cu*/include"), reverse=True)
        yield place / "nvidia/cuda_runtime/include"
    for place in places:  # Triton has a copy of them
        yield place / "triton/backends/nvidia/include"


def _find_cuda_headers() -> pathlib.Path:
    for folder in _cuda_headers():
        if all((folder / name).is_file() for name in ("cuda_runtime.h", "crt/host_config.h")):
            return folder
    raise FileNotFoundError(
        "the headers of the CUDA runtime are missing: set CUDA_HOME, or install the packages "
        "nvidia-cuda-runtime and nvidia-cuda-crt")


# ---- The backend ----


def _cache() -> pathlib.Path:
    given = os.environ.get("TCUDA_TORCH_CACHE")
    if given:
        return pathlib.Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(base) / "tcuda" / "torch"


def _options(version: tuple[int, ...], abi: int) -> list[str]:
    """Options of the compiler for a version of PyTorch and its ABI of the C++ library, 0 or 1."""
    standard = "c++20" if version >= (2, 14) else "c++17"
    return ["-O2", f"-std={standard}", "-fPIC", "-shared", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]


def _built(torch: Any, library: str, verbose: bool) -> pathlib.Path:
    """The backend for this PyTorch, compiled if it is not in the cache."""
    source, header = _FOLDER / "backend.cpp", _find_header(library)
    torch_folder = pathlib.Path(torch.__file__).resolve().parent
    compiler = os.environ.get("CXX") or "g++"
    options = _options(_version(torch), int(torch.compiled_with_cxx11_abi()))
    digest = hashlib.sha256()
    for part in (source.read_bytes(), (header / "tcuda.h").read_bytes(),
                 torch.__version__.encode(), str(torch.version.git_version).encode(),
                 str(torch_folder).encode(), compiler.encode(), " ".join(options).encode()):
        digest.update(hashlib.sha256(part).digest())
    target = _cache() / f"backend-{digest.hexdigest()[:24]}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may compile at once: each writes a file of its own, and renames it.
    handle, made = tempfile.mkstemp(suffix=".so", dir=target.parent)
    os.close(handle)
    command = [
        *shlex.split(compiler), *options, "-isystem", str(torch_folder / "include"),
        "-isystem", str(_find_cuda_headers()), "-I", str(header), str(source), "-o", made,
        "-L", str(torch_folder / "lib"), "-lc10", "-lc10_cuda", "-ltorch_cpu",
        f"-Wl,-rpath,{torch_folder / 'lib'}",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if verbose:
            print(shlex.join(command), done.stdout, done.stderr, sep="\n", file=sys.stderr)
        if done.returncode != 0:
            raise RuntimeError("the backend for PyTorch does not compile:\n"
                               f"{shlex.join(command)}\n{done.stderr[-8000:]}")
        os.replace(made, target)
    finally:
        if os.path.exists(made):
            os.unlink(made)
    return target


def _forward_settings(torch: Any, tcuda: ctypes.CDLL) -> None:
    """Has settings that a program gives to PyTorch 2.9 change tcuda's as well. The backend does it
    for newer versions, also where a program gives them in C++."""

    def forwarding(function: Any) -> Any:
        def set_allocator_settings(settings: str) -> None:
            function(settings)
            if tcuda.tcuda_allocator_config_set(settings.encode()) != 0:
                tcuda.tcuda_last_error.restype = ctypes.c_char_p
                raise RuntimeError(tcuda.tcuda_last_error().decode(errors="replace"))
        return set_allocator_settings

    for name in ("_accelerator_setAllocatorSettings",
                 "_cuda_cudaCachingAllocator_set_allocator_settings"):
        if hasattr(torch._C, name):
            setattr(torch._C, name, forwarding(getattr(torch._C, name)))
