"""JAX and tcuda: functions that queue work of tcuda on the stream of a JAX program.

    import jax, tcuda.jax

    def double(stream, inputs, outputs):  # called when the program runs
        tcuda._core.copy(outputs[0].address, inputs[0].address, inputs[0].nbytes, stream._handle)

    @jax.jit
    def program(x):
        return tcuda.jax.call(double, jax.ShapeDtypeStruct(x.shape, x.dtype), x) * 2

JAX has no interface for allocators: its memory stays its own. XLA_PYTHON_CLIENT_PREALLOCATE=false
leaves tcuda the rest of the device. Arrays are exchanged by DLPack and `__cuda_array_interface__`.

The interface is XLA's FFI. Its handler is compiled at the first call, by the C++ compiler in CXX,
or g++, against jaxlib's headers, and kept in TCUDA_JAX_CACHE, or in ~/.cache/tcuda/jax.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import pathlib
import shlex
import subprocess
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jaxlib
import numpy

from .streams import ExternalStream

__all__ = ["Buffer", "call"]

_SOURCE = r"""
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using callback_fn = const char *(*)(int64_t function, int32_t device, void *stream,
                                    const void *const *buffers);
static callback_fn callback;

extern "C" void tcuda_jax_set_callback(callback_fn function) { callback = function; }

static ffi::Error call(void *stream, int32_t device, int64_t function, ffi::RemainingArgs args,
                       ffi::RemainingRets rets)
{
    std::vector<const void *> buffers;
    for (size_t i = 0; i < args.size(); i++)
        buffers.push_back(args.get<ffi::AnyBuffer>(i)->untyped_data());
    for (size_t i = 0; i < rets.size(); i++)
        buffers.push_back((*rets.get<ffi::AnyBuffer>(i))->untyped_data());
    const char *error = callback(function, device, stream, buffers.data());
    return error ? ffi::Error(ffi::ErrorCode::kInternal, error) : ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(tcuda_jax_call, call,
    ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void *>>().Ctx<ffi::DeviceOrdinal>()
        .Attr<int64_t>("function").RemainingArgs().RemainingRets());
"""
# The functions of `call`, each with the shapes and types of its inputs and of its outputs.
_calls: list[tuple[Callable[..., object], list[Any], list[Any]]] = []
_failure = threading.local()  # the message of this thread's last failure, which XLA copies at once


class Buffer:
    """Memory of an array of JAX, while a function of `call` runs; contiguous, the last index
    fastest."""

    __slots__ = ("address", "dtype", "shape", "_stream")

    def __init__(self, address: int, description: Any, stream: int) -> None:
        self.address = address
        self.shape: tuple[int, ...] = description.shape
        self.dtype: numpy.dtype[Any] = numpy.dtype(description.dtype)
        self._stream = stream

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return int(numpy.prod(self.shape, dtype=numpy.int64) * self.dtype.itemsize)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """For CuPy, Numba, PyTorch and others."""
        return {"version": 3, "shape": self.shape, "typestr": self.dtype.str, "strides": None,
                "data": (self.address, False), "stream": self._stream or 1}


def call(
    function: Callable[[ExternalStream, list[Buffer], list[Buffer]], object],
    results: Any, *arguments: Any,
) -> Any:
    """Calls a function whenever the program runs, with XLA's stream; returns its results.

    The function gets a stream, the buffers of the arguments, and those of the results, which it
    fills by work that it queues on the stream. It must not wait for the device nor call JAX, and
    an exception fails the program. It is kept as long as the process.

    Args:
        function: called on a thread of XLA.
        results: a jax.ShapeDtypeStruct, or a list of them.
        arguments: arrays of JAX.
    """
    _register()
    outputs = list(results) if isinstance(results, Sequence) else [results]
    inputs = [jax.ShapeDtypeStruct(numpy.shape(a), jax.dtypes.result_type(a)) for a in arguments]
    _calls.append((function, inputs, outputs))
    return jax.ffi.ffi_call("tcuda_call", results)(
        *arguments, function=numpy.int64(len(_calls) - 1))


@ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p))
def _run(index: int, device: int, stream: int | None, addresses: Any) -> int | None:
    """Calls a function of `call`; returns the address of a message where it fails."""
    try:
        function, inputs, outputs = _calls[index]
        native = stream or 0
        buffers = [Buffer(addresses[position] or 0, description, native)
                   for position, description in enumerate(inputs + outputs)]
        function(ExternalStream(native, device), buffers[:len(inputs)], buffers[len(inputs):])
    except BaseException:
        _failure.message = ctypes.create_string_buffer(traceback.format_exc().encode())
        return ctypes.addressof(_failure.message)
    return None


@functools.cache
def _register() -> None:
    """Registers the handler, compiled if it is not in the cache."""
    compiler = os.environ.get("CXX") or "g++"
    key = f"{_SOURCE}{jax.__version__}{jaxlib.__version__}{jax.ffi.include_dir()}{compiler}"
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = pathlib.Path(os.environ.get("TCUDA_JAX_CACHE") or os.path.join(base, "tcuda", "jax"))
    target = folder / f"handler-{hashlib.sha256(key.encode()).hexdigest()[:24]}.so"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Several processes may compile at once: each writes a file of its own, and renames it.
        with tempfile.TemporaryDirectory(dir=folder) as own:
            command = [*shlex.split(compiler), "-O2", "-std=c++17", "-fPIC", "-shared", "-x", "c++",
                       "-", "-o", f"{own}/handler.so", "-isystem", jax.ffi.include_dir()]
            done = subprocess.run(
                command, input=_SOURCE, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError("the handler for JAX does not compile:\n"
                                   f"{shlex.join(command)}\n{done.stderr[-8000:]}")
            os.replace(f"{own}/handler.so", target)
    library = ctypes.CDLL(str(target))
    library.tcuda_jax_set_callback(_run)
    jax.ffi.register_ffi_target(
        "tcuda_call", jax.ffi.pycapsule(library.tcuda_jax_call), platform="CUDA")
