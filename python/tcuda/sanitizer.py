"""The stream sanitizer: reports accesses of two streams to memory that nothing orders.

`enable_cuda_sanitizer()` begins to record what is queued through this package and other hosts of
the library. Two accesses to the same bytes, of which one writes, without an event, wait or
synchronization between them, are a report: it is printed to stderr, and the call that queued the
later access raises `CUDASanitizerErrors`. A call that returns something does not: the next call of
its thread that queues work, or waits for it, raises. TCUDA_SANITIZER=1 in the environment needs no
change of the program, and writes reports to the log.
"""

from __future__ import annotations

import enum
import sys
import threading
from dataclasses import dataclass
from typing import Any

from . import _core
from .streams import Stream

__all__ = [
    "Access", "AccessType", "CUDASanitizer", "CUDASanitizerErrors", "SynchronizationError",
    "UnsynchronizedAccessError", "cuda_sanitizer", "enable_cuda_sanitizer", "record_access",
]


class AccessType(enum.Enum):
    """What an access does."""

    READ = _core.ACCESS_READ
    WRITE = _core.ACCESS_WRITE
    READ_WRITE = _core.ACCESS_READ_WRITE  # (+)

    def __str__(self) -> str:
        return {"READ": "reading from", "WRITE": "writing to"}.get(self.name, "updating")


@dataclass(frozen=True)
class Access:
    """An access to memory by one operation: its number, stream, name and the stack of Python."""

    type: AccessType
    seq_num: int
    stream: int
    operator: str
    stack_trace: str
    device: int
    data_ptr: int
    size: int

    @classmethod
    def _of(cls, access: dict[str, Any]) -> Access:
        return cls(AccessType(access["mode"]), access["sequence"], access["stream_id"],
                   access["label"], access["frames"], access["device"], access["ptr"],
                   access["bytes"])

    def __str__(self) -> str:
        trace = f"\n{self.stack_trace}" if self.stack_trace else ""
        return f"{self.operator}\n{self.type} {self.size} bytes at {self.data_ptr:#x}{trace}\n"


class SynchronizationError(Exception):
    """What the sanitizer finds."""


class UnsynchronizedAccessError(SynchronizationError):
    """Two accesses to the same bytes that nothing orders.

    `data_ptr` and `size` are the bytes that both access; `allocation_stack_trace` has the block
    and the stack of its allocation, or is ""; `missing` says which order is missing. (+)
    """

    def __init__(self, report: dict[str, Any]) -> None:
        self.data_ptr: int = report["ptr"]
        self.size: int = report["bytes"]
        self.current_access = Access._of(report["current"])
        self.previous_access = Access._of(report["previous"])
        self.allocation_stack_trace: str = report["allocation"]
        self.missing: str = report["missing"]
        super().__init__(self.data_ptr)

    def __str__(self) -> str:
        current, previous = self.current_access, self.previous_access
        return (
            f"possible data race on {self.size} bytes at {self.data_ptr:#x}\n"
            f"stream {current.stream}: {current}\n"
            f"before it stream {previous.stream}: {previous}\n"
            f"allocation: {self.allocation_stack_trace or 'unknown'}\n{self.missing}")


class CUDASanitizerErrors(Exception):
    """The errors of one call."""

    def __init__(self, errors: list[UnsynchronizedAccessError]) -> None:
        super().__init__(errors)
        self.errors = errors

    def __str__(self) -> str:
        return f"data races: {len(self.errors)}, see `errors`"


class _ThreadState(threading.local):
    """The errors that no call of this thread has raised yet."""

    def __init__(self) -> None:
        self.errors: list[UnsynchronizedAccessError] = []


_thread = _ThreadState()


def raise_reports() -> None:
    """Raises what this thread has not raised yet; `_core` calls it."""
    if errors := _thread.errors:
        _thread.errors = []
        raise CUDASanitizerErrors(errors)


class CUDASanitizer:
    """Turns the sanitizer of the process on and off; `cuda_sanitizer` is one."""

    def __init__(self) -> None:
        self.enabled = False

    def enable(
        self, *, raise_errors: bool = True, max_reports: int = 1000, stack_traces: bool = True
    ) -> None:
        """Begins anew: earlier reports are dropped, and work that was queued before is not known.

        With raise_errors=False (+) reports are printed and kept alone. The first `max_reports` (+)
        are reported. `stack_traces` (+): with the stack of each operation and allocation.
        """

        def report(content: dict[str, Any]) -> bool:
            error = UnsynchronizedAccessError(content)
            print(error, file=sys.stderr)
            if raise_errors:
                _thread.errors.append(error)
            return raise_errors

        _thread.errors = []
        _core.sanitizer_enable(max_reports, report, stack_traces)
        self.enabled = True

    def disable(self) -> None:
        """Turns the sanitizer off; its reports are dropped."""
        _thread.errors = []
        self.enabled = False
        _core.sanitizer_disable()

    def report_count(self) -> int:
        """The number of reports, also of those beyond `max_reports`. (+)"""
        return _core.sanitizer_report_count()

    def report(self, index: int) -> UnsynchronizedAccessError:
        """One of the reports that are kept, 0 for the oldest. (+)"""
        return UnsynchronizedAccessError(_core.sanitizer_report_get(index))


cuda_sanitizer = CUDASanitizer()


def enable_cuda_sanitizer(*, raise_errors: bool = True) -> None:
    """Turns the sanitizer on: best at the beginning of the program."""
    cuda_sanitizer.enable(raise_errors=raise_errors)


def record_access(
    mem_ptr: int, size: int, type: AccessType, stream: Stream | None = None,
    operator: str = "kernel",
) -> None:
    """Records an access by a kernel that was not queued through the library, after its launch. (+)

    `size` is in bytes, the stream by default the current one. Does nothing while the sanitizer is
    off.
    """
    _core.sanitizer_access(
        None if stream is None else stream._handle, mem_ptr, size, type.value, operator)
