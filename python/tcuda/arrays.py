"""Arrays: memory with a type, a shape and strides, and their exchange with other libraries."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, SupportsIndex

from . import _core, devices
from .devices import Device, index_of
from .handles import Owner
from .streams import ExternalStream, current_stream

__all__ = ["Array", "asarray", "empty", "from_dlpack"]


class _SupportsDLPack(Protocol):
    def __dlpack__(self, *, stream: Any = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, int]: ...


class _SupportsCudaArrayInterface(Protocol):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


# What functions of this package take for an array: an Array, or one of another library.
ArrayLike = _SupportsDLPack | _SupportsCudaArrayInterface

# The kinds of numbers by their letter in the format of a buffer; others, as bytes, are of any kind.
_BUFFER_KINDS = {
    **dict.fromkeys("hHiIlLqQ", "iu"), **dict.fromkeys(("e", "f", "d"), "f"), "Zf": "c", "Zd": "c",
}

# For each type DLPack's code, the bits of an element, and NumPy's letter; "" where it has none.
_DTYPES = {
    "bool": (_core.DTYPE_BOOL, 8, "b"),
    **{f"int{bits}": (_core.DTYPE_INT, bits, "i") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (_core.DTYPE_UINT, bits, "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (_core.DTYPE_FLOAT, bits, "f") for bits in (16, 32, 64)},
    "bfloat16": (_core.DTYPE_BFLOAT, 16, ""),
    "float8_e4m3fn": (_core.DTYPE_FLOAT8_E4M3FN, 8, ""),
    "float8_e5m2": (_core.DTYPE_FLOAT8_E5M2, 8, ""),
    "complex32": (_core.DTYPE_COMPLEX, 32, ""),
    "complex64": (_core.DTYPE_COMPLEX, 64, "c"),
    "complex128": (_core.DTYPE_COMPLEX, 128, "c"),
}
_NAMES = {(code, bits, 1): name for name, (code, bits, _) in _DTYPES.items()}
_TYPESTRS = {
    f"{'|' if bits == 8 else '<'}{letter}{bits // 8}": name
    for name, (_, bits, letter) in _DTYPES.items() if letter
}


def _numbers_of(dtype: object) -> tuple[int, int, str]:
    """The entry of _DTYPES for a name, or a dtype of NumPy or PyTorch."""
    if isinstance(dtype, str) and dtype in _DTYPES:
        return _DTYPES[dtype]
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    name = name.removeprefix("torch.")
    if name not in _DTYPES:
        raise TypeError(f"no dtype {dtype!r}; expected one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


class Array(Owner):
    """Memory with a dtype, a shape and strides; `empty` and `asarray` make one.

    Other libraries take it by DLPack and by `__cuda_array_interface__`. The memory is freed with
    the last of the array and what was made of it, in the order of the stream on which it was
    allocated. It waits for the work that a consumer's stream holds when the consumer's array ends,
    if the stream is one of this package or of PyTorch: those of others may not exist any more.
    """

    __slots__ = ()
    _destroy = _core.tensor_destroy

    def __init__(self) -> None:
        raise TypeError("use tcuda.empty, tcuda.asarray or tcuda.from_dlpack")

    @property
    def dtype(self) -> str:
        """The type of the elements, by its name in NumPy and PyTorch: "float32"."""
        return _NAMES[_core.tensor_info(self._handle)[3]]

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return _core.tensor_info(self._handle)[1]

    @property
    def strides(self) -> tuple[int, ...]:
        """The distance of neighbours in each dimension, in elements."""
        return _core.tensor_info(self._handle)[2]

    @property
    def device(self) -> devices.device | None:
        """The device of the memory; None: memory of the host."""
        kind, index = self.__dlpack_device__()
        return devices.device(index) if kind in devices._DLPACK_DEVICES else None

    @property
    def address(self) -> int:
        """The address of the first element."""
        return _core.tensor_info(self._handle)[0]

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        _, shape, _, (_, bits, _), _, _ = _core.tensor_info(self._handle)
        return math.prod(shape) * bits // 8

    def copy_from(self, source: Any) -> None:
        """Copies all elements from a host buffer of the same bytes, or from a like array.

        Buffers are `bytes`, `bytearray`, `array.array`, NumPy's arrays and others, in row-major
        order; they may be changed once this returns. Nothing is converted: numbers of another kind,
        as floats for integers, are a TypeError. It is queued on the current stream of the device.

        >>> array = tcuda.empty((2, 2), "int16")
        >>> array.copy_from(b"tcuda...")
        >>> array.tobytes()
        b'tcuda...'
        """
        try:
            view = memoryview(source)
        except TypeError:
            copy_elements(asarray(source), self)
        else:
            copy_elements(self._host_array(view, False), self)

    def copy_to(self, destination: Any) -> None:
        """Copies all elements to a host buffer of the same bytes, or to a like array.

        A buffer is writable, and has its bytes when this returns.
        """
        try:
            view = memoryview(destination)
        except TypeError:
            copy_elements(self, asarray(destination))
        else:
            copy_elements(self, self._host_array(view, True))

    def tobytes(self) -> bytes:
        """The elements as bytes, in row-major order."""
        content = bytearray(self.nbytes)
        self.copy_to(content)
        return bytes(content)

    def _host_array(self, view: memoryview, is_written: bool) -> Array:
        """A buffer of the host as an array of the same dtype and shape."""
        import ctypes  # most programs do not need it

        if view.nbytes != self.nbytes:
            raise ValueError(f"the buffer has {view.nbytes} bytes, the array {self.nbytes}")
        _, shape, _, (code, bits, _), _, _ = _core.tensor_info(self._handle)
        letter, kinds = _DTYPES[self.dtype][2], _BUFFER_KINDS.get(view.format.lstrip("@=<>"))
        if letter and kinds and (
                letter not in kinds or view.itemsize * 8 != bits or view.format[0] == ">"):
            raise TypeError(f"the buffer has elements of the format {view.format!r}, the array of "
                            f"{self.dtype}; pass its bytes to copy them as they are")
        if not view.c_contiguous:
            raise BufferError("the buffer is not contiguous in row-major order")
        if view.readonly and is_written:
            raise BufferError("the buffer is read-only")
        owner: Any = None
        address: int | None = 0
        if view.nbytes and view.readonly:
            is_whole = isinstance(view.obj, bytes) and len(view.obj) == view.nbytes
            owner = view.obj if is_whole else bytes(view)
            address = ctypes.cast(ctypes.c_char_p(owner), ctypes.c_void_p).value
        elif view.nbytes:
            owner = (ctypes.c_char * view.nbytes).from_buffer(view)
            address = ctypes.addressof(owner)
        return Array._owning(_core.tensor_view(
            address or 0, shape, None, code, bits, _core.DEVICE_CPU, 0, not is_written, owner))

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's kind of device, 2 for CUDA and 1 for the host, and the ordinal."""
        kind, index = _core.tensor_info(self._handle)[4]
        return _core.DEVICE_CPU if kind == _core.DEVICE_CUDA_HOST else kind, index

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> Any:
        """A capsule of DLPack, for `from_dlpack` of another library.

        Args:
            stream: what the consumer uses, which then waits for the current stream of the device:
                None or 1: the legacy default stream; 2: the per-thread one; a cudaStream_t; -1:
                no stream waits.
            max_version: the newest version that the consumer has; None: before 1.0.
            dl_device: the device of the result, which must be the array's own.
            copy: True: the capsule has a copy; queued on the current stream.
        """
        device = self.__dlpack_device__()
        is_read_only = _core.tensor_info(self._handle)[5]
        if dl_device is not None and (int(dl_device[0]), int(dl_device[1])) != device:
            raise BufferError(f"the array is on device {device}, not {tuple(dl_device)}")
        is_on_device = device[0] in devices._DLPACK_DEVICES
        if not is_on_device and (stream is not None or copy):
            raise BufferError("memory of the host has no stream, and is not copied")
        if stream == 0:
            raise BufferError("stream 0 is ambiguous: use 1, the legacy default stream, or 2")
        is_versioned = max_version is not None and max_version[0] >= 1
        if is_read_only and not (is_versioned or copy):
            raise BufferError("the array is read-only, which DLPack before 1.0 cannot say")
        array = self
        if copy:
            array = empty(self.shape, self.dtype, device[1])
            copy_elements(self, array)
        native = None if stream in (None, 1, -1) else stream
        return _core.tensor_to_capsule(
            array._handle, is_versioned, bool(copy), is_on_device and stream != -1, native,
            native is not None and _is_of_torch(native, device[1]))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of Numba's protocol; its stream is the current one of the device."""
        address, shape, strides, numbers, device, is_read_only = _core.tensor_info(self._handle)
        dtype = _NAMES[numbers]
        _, bits, letter = _DTYPES[dtype]
        if device[0] not in devices._DLPACK_DEVICES or not letter:
            raise AttributeError(f"no __cuda_array_interface__ for {dtype} on device {device}")
        size = bits // 8
        return {
            "version": 3,
            "shape": shape,
            "strides": tuple(stride * size for stride in strides),
            "typestr": f"{'|' if size == 1 else '<'}{letter}{size}",
            "data": (address, is_read_only),
            "stream": _core.stream_native(_core.stream_current(device[1])) or 1,
        }

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """The array for NumPy, if it is in memory of the host; TypeError on a device."""
        if self.device is not None:
            raise TypeError(f"NumPy has no arrays on {self.device}: use copy_to or tobytes")
        numpy = sys.modules["numpy"]  # the caller
        return numpy.array(numpy.from_dlpack(self), dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        return (f"<tcuda.Array shape={self.shape} dtype={self.dtype} "
                f"device={self.device or 'cpu'}>")


def empty(
    shape: SupportsIndex | Sequence[int], dtype: object = "float32", device: Device = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """An array in new memory, whose content is undefined, for the device's current stream. (+)

    Args:
        shape: the size of each dimension.
        dtype: a name, as "float32", or a dtype of NumPy or PyTorch.
        device: where the memory is.
        strides: distances of neighbours in elements, not negative; None: row-major.

    >>> array = tcuda.empty((2, 3), "float64")
    >>> array.strides, array.nbytes
    ((3, 1), 48)
    """
    if isinstance(shape, int):
        shape = (shape,)
    elif not isinstance(shape, tuple):
        shape = tuple(shape) if isinstance(shape, Iterable) else (operator.index(shape),)
    code, bits, _ = _numbers_of(dtype)
    return Array._owning(_core.tensor_empty(
        shape, None if strides is None else tuple(strides), code, bits, index_of(device)))


def from_dlpack(obj: Any) -> Array:
    """An array in the memory of an object with `__dlpack__`, which stays its owner. (+)

    The current stream of its device waits for the work that wrote it.

    >>> array = tcuda.empty(4, "uint8")
    >>> tcuda.from_dlpack(array).address == array.address
    True
    """
    kind, index = obj.__dlpack_device__()
    arguments: dict[str, Any] = {}
    if kind in devices._DLPACK_DEVICES:
        arguments["stream"] = _core.stream_native(_core.stream_current(int(index))) or 1
    try:
        capsule = obj.__dlpack__(max_version=(1, 1), **arguments)
    except TypeError:  # it is from before DLPack 1.0
        capsule = obj.__dlpack__(**arguments)
    array = Array._owning(_core.tensor_from_capsule(capsule))
    numbers = _core.tensor_info(array._handle)[3]
    if numbers not in _NAMES:
        raise TypeError("elements of DLPack's type (code, bits, lanes) "
                        f"= {numbers} are not supported")
    return array


def asarray(obj: Any) -> Array:
    """An array in the memory of another one, which stays its owner. (+)

    The object is an `Array`, which is returned itself, or has `__dlpack__` or
    `__cuda_array_interface__`. The current stream of its device waits for the work that wrote it.
    """
    if isinstance(obj, Array):
        return obj
    if hasattr(obj, "__dlpack__"):
        return from_dlpack(obj)
    interface = getattr(obj, "__cuda_array_interface__", None)
    if interface is None:
        raise TypeError(f"{type(obj).__name__} is no array: it has neither __dlpack__ nor "
                        "__cuda_array_interface__")
    return _from_interface(obj, interface)


def _from_interface(obj: object, interface: dict[str, Any]) -> Array:
    """An array from the protocol of Numba."""
    typestr = interface["typestr"]
    if typestr not in _TYPESTRS:
        raise TypeError(f"elements of type {typestr} are not supported")
    if interface.get("mask") is not None:
        raise TypeError("arrays with a mask are not supported")
    address, is_read_only = interface["data"]
    code, bits, _ = _DTYPES[_TYPESTRS[typestr]]
    strides = interface.get("strides")
    if strides is not None:
        if any(stride * 8 % bits for stride in strides):
            raise ValueError(f"the strides {strides} are no multiples of an element")
        strides = tuple(stride * 8 // bits for stride in strides)
    index = _core.device_of(address)
    if index < 0:
        if address:
            raise ValueError(f"{address:#x} is no address of device memory")
        index = _core.device_current()
    stream = interface.get("stream")
    if stream is not None:
        native = 0 if stream == 1 else stream
        current_stream(index).wait_stream(ExternalStream(native, index))
    return Array._owning(_core.tensor_view(
        address, tuple(interface["shape"]), strides, code, bits, _core.DEVICE_CUDA, index,
        bool(is_read_only), obj))


def _is_of_torch(cu_stream: int, index: int) -> bool:
    """Is a stream PyTorch's current one, and does thus exist as long as the process?"""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    is_current: bool = torch.cuda.current_stream(index).cuda_stream == cu_stream
    return is_current


def bits_of(dtype: str) -> int:
    """The bits of an element of a type."""
    return _DTYPES[dtype][1]


def copy_elements(source: Array, destination: Array) -> None:
    """Queues a copy of all elements."""
    _core.comm_broadcast_into(source._handle, _core.tensor_list([destination._handle]))


def tensor_list(arrays: Iterable[Array]) -> bytes:
    """A list of arrays for `_core`, which does not keep them."""
    return _core.tensor_list([array._handle for array in arrays])
