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
    # Handles whose end was refused, within a host function of a stream, for example. Each later end
    # tries them again. In the class, because modules may have ended before their objects.
    _refused: ClassVar[list[tuple[Callable[[int], None], int]]] = []

    @classmethod
    def _owning(cls: type[_Self], handle: int) -> _Self:
        self = object.__new__(cls)
        self._handle = handle
        return self

    def __del__(self) -> None:
        try:
            handle = self._handle
        except AttributeError:
            return  # the constructor failed
        self._end(type(self)._destroy, handle)
        del self._handle  # objects that end in the same cycle may still refer to this one
        for _ in range(len(self._refused)):
            try:
                entry = self._refused.pop(0)
            except IndexError:
                return  # another thread tries it
            self._end(*entry)

    @classmethod
    def _end(cls, destroy: Callable[[int], None], handle: int) -> None:
        try:
            destroy(handle)
        except RuntimeError as error:  # the status of a forked child, for example
            if getattr(error, "status", "") == "INVALID_STATE":
                cls._refused.append((destroy, handle))
