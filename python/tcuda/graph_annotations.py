"""Annotations of the work that is captured into graphs, for traces of profilers.

A graph that is captured with `graph(g, enable_annotations=True)` enters its annotations into the
map of `get_kernel_annotations` whenever it is made executable, under the numbers by which profilers
name its nodes (CUDA 13.1). `CUDAGraph.get_graph_data` has them with every driver.

    with tcuda.graph(g, enable_annotations=True):
        with tcuda.graph_annotations.mark_kernels("first"):
            ...
"""

from __future__ import annotations

import contextlib
import json
import pickle
import sys
import traceback
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import _core
from .errors import CudaError

if TYPE_CHECKING:
    from .graphs import CUDAGraph, RemovableHandle

__all__ = [
    "clear_kernel_annotations", "dump_kernel_py_stacks", "get_kernel_annotations",
    "get_kernel_py_stacks", "is_available", "mark_kernels",
]

_KINDS = {"kernel", "memcpy", "memset", "batch_mem_op"}
_STACK = "Python stack:\n"  # how an annotation with a stack begins

_annotations: dict[int, list[Any]] = {}
_stacks: dict[int, str] = {}
# Of each annotated graph: the numbers of its nodes, and what ends its hook.
_nodes: weakref.WeakKeyDictionary[CUDAGraph, list[int]] = weakref.WeakKeyDictionary()
_hooks: weakref.WeakKeyDictionary[CUDAGraph, RemovableHandle] = weakref.WeakKeyDictionary()


def is_available() -> bool:
    """Does the driver number the nodes of graphs, as CUDA 13.1 and newer do?"""
    try:
        return _core.backend_function("cuGraphNodeGetToolsId") != 0
    except CudaError:
        return False


@contextlib.contextmanager
def mark_kernels(annotation: str | dict[str, Any], *, py_stack: bool = False) -> Iterator[None]:
    """A context whose captured work on the current stream has an annotation, text or JSON.

    Work of streams that join there has it as well. Of nested annotations the inner one has
    precedence. With `py_stack` (+) the work has the stack of this statement, too. Does nothing
    where no graph is captured.
    """
    if isinstance(annotation, str):
        annotation = {"str": annotation}
    texts = [json.dumps(annotation)]
    if py_stack:
        frames = traceback.extract_stack(sys._getframe(2))
        texts.append(_STACK + "\n".join(
            f"{frame.filename}:{frame.lineno}:{frame.name}" for frame in reversed(frames)))
    stream = _core.stream_current(-1)
    try:
        for text in texts:
            _core.graph_annotation_push(stream, text)
        try:
            yield
        finally:
            for _ in texts:
                _core.graph_annotation_pop(stream)
    finally:
        _core.stream_destroy(stream)


def _object_of(text: str) -> Any:
    """What an annotation was made of; a plain text of another host is {"str": text}."""
    try:
        return json.loads(text)
    except ValueError:
        return {"str": text}


def _forget(graph: CUDAGraph) -> None:
    """Removes the nodes of a graph from the maps."""
    for number in _nodes.pop(graph, ()):
        _annotations.pop(number, None)
        _stacks.pop(number, None)


def _collect(graph: CUDAGraph) -> None:
    """Enters the annotations of a graph that has become executable into the maps."""
    _forget(graph)
    numbers = _nodes[graph] = []
    for node in graph.get_graph_data()["nodes"]:
        number, texts = node["tools_id"], node["annotations"]
        if number is None or not texts or node["node_type"] not in _KINDS:
            continue
        numbers.append(number)
        stacks = [text for text in texts if text.startswith(_STACK)]
        if stacks:
            _stacks[number] = stacks[0].removeprefix(_STACK)
        objects = [_object_of(text) for text in texts if not text.startswith(_STACK)]
        if len(objects) > 1:
            merged: dict[str, Any] = {}
            for one in objects:  # the inner ones first
                for key, value in (one if isinstance(one, dict) else {"name": one}).items():
                    merged.setdefault(key, value)
            objects = [merged]
        _annotations[number] = objects


def _begin_capture(graph: CUDAGraph, enabled: bool) -> None:
    """Makes a graph that is about to be captured enter its annotations into the maps, or not."""
    if enabled and graph not in _hooks:
        _hooks[graph] = graph.register_post_instantiate_hook(_collect)
    elif not enabled and graph in _hooks:
        _hooks.pop(graph).remove()
        _forget(graph)


def get_kernel_annotations() -> dict[int, list[Any]]:
    """The annotations of kernels, copies and fills, by the numbers of their nodes."""
    return _annotations


def get_kernel_py_stacks() -> dict[int, str]:
    """The stacks of `mark_kernels(..., py_stack=True)`, by the numbers of nodes, innermost first.
    """
    return _stacks


def dump_kernel_py_stacks(path: str) -> None:
    """Writes `get_kernel_py_stacks` to a file, pickled."""
    with open(path, "wb") as file:
        pickle.dump(_stacks, file)


def clear_kernel_annotations() -> None:
    """Empties the maps."""
    _annotations.clear()
    _stacks.clear()
