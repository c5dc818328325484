"""The module under test, and what is named differently in the two modules.

`CONFORMANCE` in the environment chooses: "torch" or "tcuda" (default). No other file of this
folder knows which one it is. torch.cuda shows memory, draws and busy streams by tensors, tcuda by
addresses: the functions below are the same for both.
"""

from __future__ import annotations

import os
import time

NAME = os.environ.get("CONFORMANCE", "tcuda")

if NAME == "torch":
    import torch
    from torch import cuda

    class _View:
        """Device memory that torch.as_tensor makes a tensor of, without a copy."""

        def __init__(self, address: int, size: int) -> None:
            self.__cuda_array_interface__ = {
                "data": (address, False), "shape": (size,), "typestr": "|u1", "version": 2}

    class Memory:
        """Device memory of the allocator, which `record_stream` can keep longer."""

        def __init__(self, size: int, device: int = 0) -> None:
            self.object = torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")
            self.address = self.object.data_ptr()

        def record_stream(self, stream: cuda.Stream) -> None:
            self.object.record_stream(stream)

        def free(self) -> None:
            del self.object

    def host_object() -> object:
        """An object that is in no device's memory."""
        return torch.empty(1)

    def fill(address: int, value: int, size: int = 4) -> None:
        """Fills bytes with a value, on the current stream."""
        torch.as_tensor(_View(address, size), device="cuda").fill_(value)

    def read(address: int, size: int = 4) -> list[int]:
        """The bytes at an address, after the work of the device."""
        cuda.synchronize()
        return torch.as_tensor(_View(address, size), device="cuda").tolist()

    def draw(address: int) -> None:
        """Draws 4 numbers to an address: the offset of the device's generator grows by 4."""
        torch.as_tensor(_View(address, 4), device="cuda").random_()

    def busy(stream: cuda.Stream, seconds: float = 0.1) -> None:
        """Queues work that takes so long, or a little less."""
        with cuda.stream(stream):
            cuda._sleep(int(seconds * 1.7e9))

    def state_bytes(state: torch.Tensor) -> bytes:
        """The content of the state of a generator."""
        return bytes(state.tolist())

    def state_from(content: bytes) -> torch.Tensor:
        """The state of a generator with a content."""
        return torch.tensor(list(content), dtype=torch.uint8)

    class Pinned:
        """Pinned memory of the host."""

        def __init__(self, size: int) -> None:
            self._tensor = torch.empty(size, dtype=torch.uint8, pin_memory=True)

        def free(self) -> None:
            del self._tensor

elif NAME == "tcuda":
    import ctypes
    import types

    import tcuda as cuda
    from tcuda import _core

    class Memory:
        """Device memory of the allocator, which `record_stream` can keep longer."""

        def __init__(self, size: int, device: int = 0) -> None:
            self.object = self.address = cuda.caching_allocator_alloc(size, device)

        def record_stream(self, stream: cuda.Stream) -> None:
            cuda.memory.record_stream(self.address, stream)

        def free(self) -> None:
            cuda.caching_allocator_delete(self.address)

    def host_object() -> object:
        """An object that is in no device's memory."""
        return types.SimpleNamespace(__dlpack_device__=lambda: (1, 0))

    def fill(address: int, value: int, size: int = 4) -> None:
        """Fills bytes with a value, on the current stream."""
        byte = ctypes.c_uint8(value)
        _core.fill(address, ctypes.addressof(byte), 1, size, None)

    def read(address: int, size: int = 4) -> list[int]:
        """The bytes at an address, after the work of the device."""
        content = (ctypes.c_uint8 * size)()
        cuda.synchronize()
        _core.copy(ctypes.addressof(content), address, size, None)
        cuda.synchronize()
        return list(content)

    def draw(address: int) -> None:
        """Draws 4 numbers to an address: the offset of the device's generator grows by 4."""
        generator = cuda.default_generators[cuda.current_device()]
        _core.generator_philox_state(generator._handle, 4)
        fill(address, 0)

    # Longer than the host may pause between two calls when other tests run.
    def busy(stream: cuda.Stream, seconds: float = 0.25) -> None:
        """Queues work that takes so long, or a little less."""
        stream.add_callback(lambda: time.sleep(seconds))

    def state_bytes(state: bytes) -> bytes:
        """The content of the state of a generator."""
        return state

    def state_from(content: bytes) -> bytes:
        """The state of a generator with a content."""
        return content

    class Pinned:
        """Pinned memory of the host."""

        def __init__(self, size: int) -> None:
            self._address = _core.host_malloc(size)

        def free(self) -> None:
            _core.host_free(self._address)

else:
    raise ImportError(f'CONFORMANCE is "torch" or "tcuda", not {NAME!r}')
