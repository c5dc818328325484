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
            type(self)._destroy(self._handle)
        except AttributeError:
            return  # the constructor failed
        except RuntimeError as error:
            self._keep_refused(error, type(self)._destroy, self._handle)
        del self._handle  # objects that end in the same cycle may still refer to this one
        if self._refused:
            self._end_refused()

    @classmethod
    def _end_refused(cls) -> None:
        for _ in range(len(cls._refused)):
            try:
                entry = cls._refused.pop(0)
            except IndexError:
                return  # another thread tries it
            cls._end(*entry)

    @classmethod
    def _end(cls, destroy: Callable[[int], None], handle: int) -> None:
        try:
            destroy(handle)
        except RuntimeError as error:
            cls._keep_refused(error, destroy, handle)

    @classmethod
    def _keep_refused(
        cls, error: RuntimeError, destroy: Callable[[int], None], handle: int
    ) -> None:
        # Another status is that of a forked child, for example.
        if getattr(error, "status", "") == "INVALID_STATE":
            cls._refused.append((destroy, handle))
