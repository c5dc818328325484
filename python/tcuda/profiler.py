"""Start and stop of a profiler that waits for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from . import _core

__all__ = ["profile", "start", "stop"]


def start() -> None:
    """Starts the profiler, as cudaProfilerStart does."""
    _core.profiler_start()


def stop() -> None:
    """Stops the profiler, as cudaProfilerStop does."""
    _core.profiler_stop()


@contextlib.contextmanager
def profile() -> Iterator[None]:
    """A context that the profiler records."""
    start()
    try:
        yield
    finally:
        stop()
