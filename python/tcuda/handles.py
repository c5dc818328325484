"""Objects that own a handle of the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NoReturn, TypeVar

_Self = TypeVar("_Self", bound="Owner")


class Unique:
    """An object that is neither copied nor pickled: both copies would end the same handle."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot copy or pickle a {type(self).__name__}")


class Owner(Unique):
    """Ends its handle with the last reference."""

    __slots__ = ("_handle", "__weakref__")
    _handle: int
    _destroy: ClassVar[Callable[[int], None]]  # does nothing with a borrowed handle

    @classmethod
    def _owning(cls: type[_Self], handle: int) -> _Self:
        self = object.__new__(cls)
        self._handle = handle
        return self

    def __del__(self) -> None:
        try:
            type(self)._destroy(self._handle)
            del self._handle  # objects that end in the same cycle may still refer to this one
        except (AttributeError, RuntimeError):
            pass  # the constructor failed; the status of a forked child, for example
