"""Green contexts: streams whose kernels run on a part of the multiprocessors of a device."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from . import _core
from .devices import Device, index_of
from .handles import Owner
from .streams import Stream

__all__ = [
    "GreenContext", "SMPartition", "get_num_locality_domains", "is_localization_supported",
]

_SCOPES = {
    None: _core.WORKQUEUE_DEFAULT,
    "device_ctx": _core.WORKQUEUE_DEVICE,
    "balanced": _core.WORKQUEUE_BALANCED,
}


def get_num_locality_domains(device: Device = None) -> int:
    """The number of parts of a device that have memory nearby; 1 before CUDA 13.4."""
    return _core.device_locality_domains(index_of(device))


def is_localization_supported(device: Device = None) -> bool:
    """Has a device more than one locality domain?"""
    return get_num_locality_domains(device) > 1


def _packed(form: str, *numbers: int) -> bytes:
    """A struct of C with these numbers."""
    try:
        return struct.pack(form, *map(operator.index, numbers))
    except struct.error as error:
        raise OverflowError(f"{error}, not {numbers}") from None


def _groups(**options: object) -> bytes:
    """The groups of a split, each a tcuda_sm_group; what is no list counts for all groups."""
    lengths = {len(value) for value in options.values() if isinstance(value, (list, tuple))}
    if len(lengths) > 1:
        raise ValueError(
            f"the lists have {sorted(lengths)} entries: each group needs one of every list")
    count = lengths.pop() if lengths else 1
    if count == 0:
        raise ValueError("the lists are empty: a split has one group or more")
    columns = [value if isinstance(value, (list, tuple)) else [value] * count
               for value in options.values()]
    for name, column in zip(options, columns):
        for entry in column:
            if name == "backfill":
                if not isinstance(entry, bool):
                    raise ValueError(f"backfill is {entry!r}: pass True or False")
            elif not (isinstance(entry, int) and entry >= 0 and not isinstance(entry, bool)
                      or entry is None and name == "locality_domain_id"):
                raise ValueError(f"{name} is {entry!r}: pass an integer from 0 on")
    groups = b""
    for index, (sms, together, preferred, backfill, domain) in enumerate(zip(*columns)):
        if sms == 0 and backfill and index < count - 1:
            raise ValueError(f"Split group {index} has num_sms=0 and backfill=True, which takes "
                             "all that is left: only the last group may do so")
        flags = (_core.SM_GROUP_BACKFILL if backfill else 0) | (
            0 if domain is None else _core.SM_GROUP_LOCALITY_DOMAIN)
        groups += _packed("5I", sms, together, preferred, flags, domain or 0)
    return groups


class _Multiprocessors(Owner):
    """Multiprocessors of a device."""

    __slots__ = ()
    _properties: ClassVar[Callable[[int], dict[str, Any]]]

    def _property(self, name: str) -> int:
        value: int = type(self)._properties(self._handle)[name]
        return value

    @property
    def device_id(self) -> int:
        """The ordinal of the device."""
        return self._property("device")

    @property
    def sm_count(self) -> int:
        """The number of multiprocessors."""
        return self._property("sm_count")

    @property
    def locality_domain_id(self) -> int | None:
        """The locality domain of all; None: there is none, or it is not known."""
        domain = self._property("locality_domain")
        return None if domain < 0 else domain


class SMPartition(_Multiprocessors):
    """A set of multiprocessors of a device, from `from_device`, `split` or a green context.

    It does not reserve them: contexts of one partition share its multiprocessors.

    >>> tcuda.green_contexts.SMPartition.from_device(0).sm_count
    132
    """

    __slots__ = ()
    _destroy = _core.sm_partition_destroy
    _properties = _core.sm_partition_properties

    @classmethod
    def from_device(cls, device_id: Device = None) -> SMPartition:
        """All multiprocessors of a device. CUDA 12.4."""
        return cls._owning(_core.sm_partition_from_device(index_of(device_id)))

    @property
    def coscheduled_sm_count(self) -> int:
        """How many multiprocessors are scheduled together; 0: not known."""
        return self._property("coscheduled_sm_count")

    def split(
        self, *, num_sms: int | Sequence[int] = 0, coscheduled_sm_count: int | Sequence[int] = 0,
        preferred_coscheduled_sm_count: int | Sequence[int] = 0,
        backfill: bool | Sequence[bool] = False,
        locality_domain_id: int | None | Sequence[int | None] = None,
    ) -> tuple[tuple[SMPartition, ...], SMPartition | None]:
        """Splits off disjoint groups; returns them and what is left, None for nothing. CUDA 13.1.

        Each option is one for all groups, or a sequence with one for each. `num_sms` is a
        multiple of 2; 0: as many as are left. `backfill` fills a group up with multiprocessors
        that do not meet its conditions. `locality_domain_id` takes those of one domain. To split
        a part again, create a GreenContext with it and split its `sm_partition`.
        """
        parts, rest = _core.sm_partition_split_groups(self._handle, _groups(
            num_sms=num_sms, coscheduled_sm_count=coscheduled_sm_count,
            preferred_coscheduled_sm_count=preferred_coscheduled_sm_count, backfill=backfill,
            locality_domain_id=locality_domain_id))
        return self._parts(parts, rest)

    def split_by_count(
        self, min_sm_count: int = 0, max_parts: int = 64, *, ignore_coscheduling: bool = False,
        max_cluster: bool = False,
    ) -> tuple[tuple[SMPartition, ...], SMPartition | None]:
        """Splits off equal parts of at least so many multiprocessors; 0: the fewest. (+)

        Returns at most `max_parts` parts, and what is left. Sizes are rounded up to what the
        device schedules together; with `ignore_coscheduling` they are multiples of 2 and hold no
        larger clusters, with `max_cluster` they hold the largest ones. CUDA 12.4.
        """
        flags = (_core.SM_SPLIT_IGNORE_COSCHEDULING if ignore_coscheduling else 0) | (
            _core.SM_SPLIT_MAX_CLUSTER if max_cluster else 0)
        return self._parts(*_core.sm_partition_split(self._handle, min_sm_count, flags, max_parts))

    def _parts(
        self, parts: list[int], rest: int
    ) -> tuple[tuple[SMPartition, ...], SMPartition | None]:
        return (tuple(map(SMPartition._owning, parts)),
                SMPartition._owning(rest) if rest else None)

    def __repr__(self) -> str:
        return f"<tcuda.SMPartition device_id={self.device_id} sm_count={self.sm_count}>"


class GreenContext(_Multiprocessors):
    """A context with a part of the multiprocessors of a device. CUDA 12.4.

    `num_sms` (rounded up to what the device schedules together), `sm_partition` or
    `workqueue_scope` is given. A scope, "device_ctx" (work queues that all contexts share) or
    "balanced" (where possible, none that another such context uses), needs CUDA 13.1;
    `workqueue_concurrency_limit` is then the number of streams expected to run at a time.

    >>> context = tcuda.green_contexts.GreenContext(num_sms=8)
    >>> with tcuda.stream(context.Stream()):
    ...     pass  # kernels that are queued here run on 8 multiprocessors
    >>> context.sm_count
    8
    """

    __slots__ = ()
    _destroy = _core.green_context_destroy
    _properties = _core.green_context_properties

    def __init__(
        self, num_sms: int | None = None, device_id: Device = None, *,
        sm_partition: SMPartition | None = None, workqueue_scope: str | None = None,
        workqueue_concurrency_limit: int | None = None,
    ) -> None:
        if workqueue_scope not in _SCOPES:
            raise ValueError(f"workqueue_scope is {workqueue_scope!r}: pass 'device_ctx', "
                             "'balanced' or None")
        if sm_partition is not None and not isinstance(sm_partition, SMPartition):
            raise TypeError(f"sm_partition is {sm_partition!r}: pass an SMPartition")
        if num_sms is not None and sm_partition is not None:
            raise ValueError("pass num_sms or sm_partition, not both")
        if num_sms is None and sm_partition is None and workqueue_scope is None:
            raise RuntimeError("pass num_sms, sm_partition or workqueue_scope")
        if workqueue_concurrency_limit is not None and workqueue_scope is None:
            raise RuntimeError("pass workqueue_scope with workqueue_concurrency_limit")
        if num_sms is not None and num_sms < 1:
            raise RuntimeError(f"num_sms is {num_sms}: pass 1 or more")
        size = struct.calcsize("NIiI4x")
        options = _packed("NIiI4x", size, num_sms or 0, _SCOPES[workqueue_scope],
                          workqueue_concurrency_limit or 0)
        self._handle = _core.green_context_create(
            index_of(device_id), None if sm_partition is None else sm_partition._handle, options)

    @staticmethod
    def create(
        num_sms: int | None = None, device_id: Device = None, *,
        sm_partition: SMPartition | None = None, workqueue_scope: str | None = None,
        workqueue_concurrency_limit: int | None = None,
    ) -> GreenContext:
        """A green context: the constructor."""
        return GreenContext(
            num_sms, device_id, sm_partition=sm_partition, workqueue_scope=workqueue_scope,
            workqueue_concurrency_limit=workqueue_concurrency_limit)

    @staticmethod
    def split(
        *, num_sms: int | Sequence[int] = 0, coscheduled_sm_count: int | Sequence[int] = 0,
        preferred_coscheduled_sm_count: int | Sequence[int] = 0,
        backfill: bool | Sequence[bool] = False,
        locality_domain_id: int | None | Sequence[int | None] = None,
        workqueue_scope: str | None = None, workqueue_concurrency_limit: int | None = None,
        device_id: Device = None,
    ) -> tuple[GreenContext, ...]:
        """Contexts with disjoint parts of a device, as `SMPartition.split` makes them."""
        parts, _ = SMPartition.from_device(device_id).split(
            num_sms=num_sms, coscheduled_sm_count=coscheduled_sm_count,
            preferred_coscheduled_sm_count=preferred_coscheduled_sm_count, backfill=backfill,
            locality_domain_id=locality_domain_id)
        return tuple(
            GreenContext(sm_partition=part, workqueue_scope=workqueue_scope,
                         workqueue_concurrency_limit=workqueue_concurrency_limit)
            for part in parts)

    @staticmethod
    def max_workqueue_concurrency(device_id: Device = None) -> int:
        """The most streams whose work the driver can submit concurrently. CUDA 13.1."""
        return _core.device_workqueue_concurrency(index_of(device_id))

    @property
    def sm_partition(self) -> SMPartition:
        """The multiprocessors, which can be split further; keeps the driver's context alive."""
        return SMPartition._owning(_core.green_context_partition(self._handle))

    def Stream(self) -> Stream:
        """One of 32 streams of the context, round robin; the default stream does not wait for it.
        """
        return Stream._owning(_core.green_context_stream_create(self._handle))

    def set_context(self) -> None:
        """Makes the context, and one of its streams, current for this thread.

        That stream waits for the one that was current. PyTorch advises to use `Stream` instead.
        """
        _core.green_context_set(self._handle)

    def pop_context(self) -> None:
        """Undoes `set_context` on the same thread."""
        _core.green_context_pop(self._handle)
