"""Graphs of captured work."""

from __future__ import annotations

import json
import pickle
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from . import _core, devices, graph_annotations
from .arrays import Array, asarray, copy_elements, empty
from .errors import InvalidArgumentError, error_for
from .handles import Owner
from .memory import MemPool
from .random import Generator
from .streams import Stream, StreamContext

__all__ = [
    "CUDAGraph", "export_dot", "export_graph_data", "graph", "graph_pool_handle",
    "is_current_stream_capturing", "make_graphed_callables", "register_graph_capture_end_hook",
    "register_graph_capture_start_hook", "register_graph_destroy_hook",
    "register_graph_instantiate_hook", "register_graph_replay_end_hook",
    "register_graph_replay_start_hook",
]

_MODES = {
    "global": _core.CAPTURE_GLOBAL,
    "thread_local": _core.CAPTURE_THREAD_LOCAL,
    "relaxed": _core.CAPTURE_RELAXED,
}

# A pool, or the numbers of one whose object lives, as PyTorch has them.
Pool = MemPool | tuple[int, int]

# The graphs of this package, by handle.
_graphs: weakref.WeakValueDictionary[int, CUDAGraph] = weakref.WeakValueDictionary()


class RemovableHandle:
    """Ends a registration by `remove`."""

    __slots__ = ("_remove",)

    def __init__(self, remove: Callable[[], object]) -> None:
        self._remove: Callable[[], object] | None = remove

    def remove(self) -> None:
        """Ends the registration; a second call does nothing."""
        remove, self._remove = self._remove, None
        if remove is not None:
            remove()


Hook = Callable[["CUDAGraph"], object]


def _register(
    graph: int | None, event: int, hook: Hook, observers: set[int] | None = None
) -> RemovableHandle:
    """Registers a hook of a graph, or of all; `observers` are those of the graph's hooks."""

    def call(event: int, handle: int) -> None:
        graph = _graphs.get(handle)
        if graph is not None:
            hook(graph)

    observers = set() if observers is None else observers
    observer = _core.graph_on_event(graph, event, call)
    observers.add(observer)

    def remove() -> None:
        if observer in observers:
            observers.remove(observer)
            _core.observer_destroy(observer)

    return RemovableHandle(remove)


def _mode(capture_error_mode: str) -> int:
    """The number of a mode."""
    if capture_error_mode not in _MODES:
        raise InvalidArgumentError(
            f"capture_error_mode is {capture_error_mode!r}: pass one of {', '.join(_MODES)}")
    return _MODES[capture_error_mode]


def is_current_stream_capturing() -> bool:
    """Is a graph being captured on the current stream?"""
    return _core.stream_is_capturing(None)


def graph_pool_handle() -> MemPool:
    """A new pool for graphs to share.

    Graphs that share a pool reuse each other's memory: they are replayed in the order of their
    captures, or need no earlier outputs.
    """
    return MemPool._owning(_core.graph_pool_handle())


class CUDAGraph(Owner):
    """Captured work, which `replay` queues again.

    With `keep_graph` the template stays after the capture, for `debug_dump` and `get_graph_data`,
    and the graph becomes executable by `instantiate` or its first replay.

    >>> g = tcuda.CUDAGraph()
    >>> with tcuda.graph(g):
    ...     event = tcuda.Event(external=True)
    ...     event.record()
    >>> g.replay()
    """

    __slots__ = ("_is_ending", "_is_used", "_keeps", "_observers", "_retained")
    _destroy = _core.graph_destroy
    _retained: dict[object, object]

    def __init__(self, keep_graph: bool = False) -> None:
        self._observers: set[int] = set()
        self._handle = _core.graph_create(keep_graph)
        self._keeps = bool(keep_graph)
        self._is_used = False  # captured, or the library keeps something for the handle
        self._is_ending = False  # between both parts of the end of a capture
        self._retained = {}
        _graphs[self._handle] = self

    def __del__(self) -> None:
        super().__del__()  # calls hooks
        observers = getattr(self, "_observers", None)
        while observers:
            self._end(_core.observer_destroy, observers.pop())

    @staticmethod
    def get_currently_capturing_graph() -> CUDAGraph | None:
        """The graph that the current stream is captured into."""
        return _graphs.get(_core.graph_capturing(None))

    def capture_begin(
        self, pool: Pool | None = None, capture_error_mode: str = "global"
    ) -> None:
        """Begins to capture the work of the current stream; `graph` does this and more."""
        self._is_used = True
        _core.graph_capture_begin(self._handle, None, _pool(pool), _mode(capture_error_mode))

    def capture_end(self) -> None:
        """Ends the capture."""
        _core.graph_capture_end(self._handle)

    def capture_end_pre(self) -> None:
        """Ends the capture; `instantiate` and `capture_end_post` follow.

        A graph with `keep_graph` has its template then. One without is executable already, and its
        template was there for hooks of `register_capture_end_hook` alone.
        """
        _core.graph_capture_end(self._handle)
        self._is_ending = True

    def capture_end_post(self) -> None:
        """Ends what `capture_end_pre` began."""
        if not self._is_ending:
            raise RuntimeError("capture_end_post() without capture_end_pre()")
        self._is_ending = False

    def instantiate(self) -> None:
        """Makes a graph executable that keeps its template."""
        if self._keeps or not self._is_ending:
            _core.graph_instantiate(self._handle)

    def replay(self) -> None:
        """Queues the captured work on the current stream."""
        _core.graph_replay(self._handle, None)

    def reset(self) -> None:
        """Ends what was captured: the graph is empty again."""
        _core.graph_reset(self._handle)
        self._is_ending = False
        self._retained.clear()

    def pool(self) -> MemPool:
        """The pool of the captured graph, to capture others into."""
        return MemPool._owning(_core.graph_pool(self._handle))

    def pools(self) -> list[MemPool]:
        """The pools that hold the memory of the captured graph, that of `pool` first."""
        return [MemPool._owning(pool) for pool in _core.graph_pools(self._handle)]

    def enable_debug_mode(self) -> None:
        """Keeps the template, as keep_graph=True does; before anything else is done with the graph.
        """
        if self._keeps:
            return
        if self._is_used:
            raise RuntimeError("enable_debug_mode() comes before captures, hooks and generators")
        handle, self._handle = self._handle, _core.graph_create(True)
        _core.graph_destroy(handle)
        _graphs[self._handle] = self
        self._keeps = True

    def debug_dump(self, debug_path: str) -> None:
        """Writes the template, if it is kept, to a file in the DOT language."""
        _core.graph_debug_dump(self._handle, debug_path)

    def get_graph_data(self) -> dict[str, Any]:
        """The nodes and edges of the template, if it is kept."""
        data: dict[str, Any] = json.loads(_core.graph_data_json(self._handle))
        return data

    def raw_cuda_graph(self) -> int:
        """The template, a cudaGraph_t; an error unless it is kept."""
        return self._native(0, "the template, which only a graph with keep_graph has")

    def raw_cuda_graph_exec(self) -> int:
        """What is launched, a cudaGraphExec_t; an error before the graph is executable."""
        return self._native(1, "the executable graph, before instantiate() or a replay")

    def _native(self, which: int, name: str) -> int:
        native = _core.graph_native(self._handle)[which]
        if native == 0:
            raise error_for(_core.STATUS_INVALID_STATE, f"there is no handle of {name}", 0)
        return native

    def register_generator_state(self, generator: Generator) -> None:
        """Lets each replay of the next capture draw new numbers from a generator.

        The default generator of the device needs no call.
        """
        self._is_used = True
        _core.graph_register_generator(self._handle, generator._handle)

    def retain_object(self, obj: object) -> RemovableHandle:
        """Keeps an object until the graph is reset or ends."""
        retained, key = self._retained, object()
        retained[key] = obj
        return RemovableHandle(lambda: retained.pop(key, None))

    def register_capture_start_hook(self, hook: Hook) -> RemovableHandle:
        """Registers a function that is called with the graph when its capture has begun.

        Hooks cannot stop a step: `sys.unraisablehook` gets their exceptions. A hook that refers to
        the graph keeps it alive.
        """
        return self._register(_core.GRAPH_CAPTURE_BEGUN, hook)

    def register_capture_end_hook(self, hook: Hook) -> RemovableHandle:
        """Registers a hook for the end of the capture, while the template is there."""
        return self._register(_core.GRAPH_CAPTURE_ENDED, hook)

    def register_post_instantiate_hook(self, hook: Hook) -> RemovableHandle:
        """Registers a hook for when the graph has become executable."""
        return self._register(_core.GRAPH_INSTANTIATED, hook)

    def register_replay_start_hook(self, hook: Hook) -> RemovableHandle:
        """Registers a hook for the begin of each replay."""
        return self._register(_core.GRAPH_REPLAY_BEGINS, hook)

    def register_replay_end_hook(self, hook: Hook) -> RemovableHandle:
        """Registers a hook for when a replay is queued."""
        return self._register(_core.GRAPH_REPLAY_QUEUED, hook)

    def register_destroy_callback(self, hook: Hook) -> RemovableHandle:
        """Registers a hook for when what was captured is about to end: `reset`, or the last
        reference to the graph, which the hook must not keep. Replays may still run."""
        return self._register(_core.GRAPH_DESTROYED, hook)

    def _register(self, event: int, hook: Hook) -> RemovableHandle:
        self._is_used = True
        return _register(self._handle, event, hook, self._observers)

    def begin_capture_to_if_node(self, predicate: int) -> None:
        """Begins work that a replay runs if the byte at a device address is not 0."""
        _core.graph_conditional_begin(self._handle, _core.CONDITION_IF, predicate, None)

    def begin_capture_to_while_node(self, predicate: int) -> None:
        """Begins work that a replay repeats while its condition is set.

        The first run depends on the byte at a device address. The work calls
        `set_conditional_handle_for_current_node`, or it is repeated for ever.
        """
        _core.graph_conditional_begin(self._handle, _core.CONDITION_WHILE, predicate, None)

    def set_conditional_handle_for_current_node(self, predicate: int) -> None:
        """Sets the condition of the innermost node from the byte at a device address."""
        _core.graph_conditional_set(self._handle, predicate, None)

    def end_capture_to_conditional_node(self) -> None:
        """Ends the innermost conditional work."""
        _core.graph_conditional_end(self._handle)


def _pool(pool: Pool | None) -> int | None:
    """The handle of a pool."""
    return None if pool is None else MemPool._of(pool)._handle


class _GraphType(type):
    @property
    def default_capture_stream(cls) -> Stream:
        """The stream of the current device for captures."""
        return Stream._owning(_core.graph_stream(-1))


class graph(metaclass=_GraphType):
    """A context whose work is captured into a graph.

    It waits for the device, empties the caches, and makes a stream current: the given one, or
    `graph.default_capture_stream`. Where the context ends with an exception, the graph stays empty.
    With `enable_annotations` the graph enters those of its work into `graph_annotations`.
    """

    __slots__ = (
        "cuda_graph", "pool", "stream", "capture_error_mode", "enable_annotations", "_previous")

    def __init__(
        self, cuda_graph: CUDAGraph, pool: Pool | None = None, stream: Stream | None = None,
        capture_error_mode: str = "global", enable_annotations: bool = False,
    ) -> None:
        self.cuda_graph = cuda_graph
        self.pool = pool
        self.stream = stream
        self.capture_error_mode = _mode(capture_error_mode)
        self.enable_annotations = enable_annotations

    def __enter__(self) -> None:
        self.cuda_graph._is_used = True
        graph_annotations._begin_capture(self.cuda_graph, self.enable_annotations)
        stream = None if self.stream is None else self.stream._handle
        self._previous = _core.graph_begin(
            self.cuda_graph._handle, stream, _pool(self.pool), self.capture_error_mode)

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        stream, device_index = self._previous
        if kind is None:
            _core.graph_end(self.cuda_graph._handle, stream, device_index)
        else:
            _core.graph_capture_abort(self.cuda_graph._handle)
            _core.stream_set_current(stream)
            _core.device_set(device_index)


def register_graph_capture_start_hook(fn: Hook) -> RemovableHandle:
    """Registers a hook for the capture of every graph of this package, when it has begun."""
    return _register(None, _core.GRAPH_CAPTURE_BEGUN, fn)


def register_graph_capture_end_hook(fn: Hook) -> RemovableHandle:
    """Registers a hook for the end of every capture, while the template is there."""
    return _register(None, _core.GRAPH_CAPTURE_ENDED, fn)


def register_graph_instantiate_hook(fn: Hook) -> RemovableHandle:
    """Registers a hook for when any graph has become executable."""
    return _register(None, _core.GRAPH_INSTANTIATED, fn)


def register_graph_replay_start_hook(fn: Hook) -> RemovableHandle:
    """Registers a hook for the begin of each replay of any graph."""
    return _register(None, _core.GRAPH_REPLAY_BEGINS, fn)


def register_graph_replay_end_hook(fn: Hook) -> RemovableHandle:
    """Registers a hook for when a replay of any graph is queued."""
    return _register(None, _core.GRAPH_REPLAY_QUEUED, fn)


def register_graph_destroy_hook(fn: Hook) -> RemovableHandle:
    """Registers a hook for when what any graph captured is about to end."""
    return _register(None, _core.GRAPH_DESTROYED, fn)


def export_dot(path: str) -> Hook:
    """A capture-end hook that writes the graph to a file in the DOT language."""
    return lambda graph: graph.debug_dump(path)


def export_graph_data(path: str) -> Hook:
    """A post-instantiate hook that writes `CUDAGraph.get_graph_data` to a file, pickled."""

    def hook(graph: CUDAGraph) -> None:
        with open(path, "wb") as file:
            pickle.dump(graph.get_graph_data(), file)

    return hook


class _GraphedCallable:
    """A function over arrays that was captured: a call copies its arguments and replays."""

    __slots__ = ("function", "inputs", "graph", "outputs")
    outputs: Any

    def __init__(self, function: Callable[..., Any], samples: Sequence[Array]) -> None:
        self.function = function
        self.inputs = [
            empty(sample.shape, sample.dtype, sample.device, sample.strides) for sample in samples]
        self.graph = CUDAGraph()
        for source, own in zip(samples, self.inputs):
            copy_elements(source, own)

    def __call__(self, *args: Any) -> Any:
        if len(args) != len(self.inputs):
            raise TypeError(f"{len(args)} arguments for {len(self.inputs)} that were captured")
        with devices.device_of(self.inputs[0]):
            for source, own in zip(map(asarray, args), self.inputs):
                if source.address != own.address:
                    copy_elements(source, own)
            self.graph.replay()
        return self.outputs


def make_graphed_callables(
    callables: Any, sample_args: tuple[Any, ...], num_warmup_iters: int = 3,
    allow_unused_input: bool = False, pool: Pool | None = None,
) -> Any:
    """Captures a function over arrays, or several that will be called in this order.

    The result takes arrays like the samples, copies them to addresses of its own, and replays the
    captured work on the current stream. It returns what the function returned in the capture, in
    memory that each call overwrites.

    Args:
        callables: a function, or a tuple of functions, which queue work on the current stream.
        sample_args: a tuple of arrays on one device, or a tuple of these for each function.
        num_warmup_iters: calls of each function before its capture.
        allow_unused_input: has no effect: arrays have no gradients.
        pool: the memory of the graphs; None: a new one, which all functions share.

    >>> double = lambda array: tcuda.comm.reduce_add([array, array])
    >>> array = tcuda.empty(2, "int8")
    >>> graphed = tcuda.make_graphed_callables(double, (array,))
    >>> array.copy_from(bytes([3, 4]))
    >>> list(graphed(array).tobytes())
    [6, 8]
    """
    is_one = callable(callables)
    functions = (callables,) if is_one else tuple(callables)
    samples = [list(map(asarray, args)) for args in ((sample_args,) if is_one else sample_args)]
    if len(functions) != len(samples):
        raise ValueError(f"there are {len(samples)} tuples of arguments for {len(functions)} "
                         "functions")
    found = {array.device for args in samples for array in args}
    device = found.pop() if len(found) == 1 and all(samples) else None
    if device is None:
        raise ValueError("the sample arguments of each function are arrays on one device")
    stream = Stream(device)
    pool = graph_pool_handle() if pool is None else pool
    devices.synchronize(device)
    graphed = []
    with StreamContext(stream):
        for function, args in zip(functions, samples):
            graphed.append(_GraphedCallable(function, args))
            for _ in range(num_warmup_iters):
                function(*graphed[-1].inputs)
    for each in graphed:
        with graph(each.graph, pool, stream):
            each.outputs = each.function(*each.inputs)
    return graphed[0] if is_one else tuple(graphed)
