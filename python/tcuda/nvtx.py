"""Ranges and marks for profilers (NVTX)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from . import _core
from .errors import CudaError

__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]


def range_push(msg: str) -> int:
    """Opens a range of this thread; returns its depth, from 0."""
    return _core.nvtx_range_push(msg)


def range_pop() -> int:
    """Ends the innermost range of this thread; returns its depth, -1 if there is none."""
    try:
        return _core.nvtx_range_pop()
    except CudaError as error:
        if error.status != "INVALID_STATE":
            raise
        return -1


def range_start(msg: str) -> int:
    """Starts a range that any thread may end; returns its id."""
    return _core.nvtx_range_start(msg)


def range_end(range_id: int) -> None:
    """Ends a range of `range_start`."""
    _core.nvtx_range_end(range_id)


def mark(msg: str) -> None:
    """Marks a moment."""
    _core.nvtx_mark(msg)


@contextlib.contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
    """A context, or a decorator, with a range that has `msg.format(*args, **kwargs)` as its text.

    >>> with tcuda.nvtx.range("step {}", 1):
    ...     tcuda.nvtx.range_push("inner"), tcuda.nvtx.range_pop()
    (1, 1)
    """
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()
