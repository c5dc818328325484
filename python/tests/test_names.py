"""The names of torch.cuda, the examples of docstrings, and the types."""

import ast
import doctest
import inspect
import pathlib
import unittest

import tcuda
from support import COUNT, two_devices
from tcuda import (
    _core, _cudart, arrays, comm, devices, errors, gds, graph_annotations, graphs, green_contexts,
    ipc, jiterator, memory, nccl, nvtx, profiler, random, sanitizer, streams, telemetry)

ROOT = pathlib.Path(__file__).parents[2]
MODULES = (
    _cudart, arrays, comm, devices, errors, gds, graph_annotations, graphs, green_contexts, ipc,
    jiterator, memory, nccl, nvtx, profiler, random, sanitizer, streams, telemetry)


def torch_names(section):
    """The names of a module of PyTorch for which data/torch_cuda.txt has functions."""
    text = (ROOT / "data/torch_cuda.txt").read_text()
    lines = text.split(f"[{section}]\n")[1].split("\n\n")[0].splitlines()
    pairs = (line.split(": ", 1) for line in lines)
    return {name for name, functions in pairs if not functions.startswith("none")}


def has_name(module, name):
    """Has a module a name, or a class of it?"""
    for part in name.split("."):
        if not hasattr(module, part):
            return False
        module = getattr(module, part)
    return True


class Names(unittest.TestCase):
    def test_of_torch_cuda_and_its_modules(self):
        for module in (tcuda, comm, gds, graph_annotations, graphs, green_contexts, memory, nccl,
                       nvtx, profiler, random, streams):
            section = module.__name__.replace("tcuda", "torch.cuda")
            absent = {name for name in torch_names(section) if not has_name(module, name)}
            self.assertEqual(absent, set())

    def test_of_the_sanitizer(self):
        self.assertIs(tcuda._sanitizer.enable_cuda_sanitizer, sanitizer.enable_cuda_sanitizer)

    def test_all(self):
        self.assertEqual(len(tcuda.__all__), len(set(tcuda.__all__)))
        for name in tcuda.__all__:
            self.assertTrue(hasattr(tcuda, name), name)

    def test_every_public_name_has_a_docstring(self):
        for module in MODULES:
            self.assertTrue(module.__doc__)
            for name in module.__all__:
                value = getattr(module, name)
                members = vars(value).items() if inspect.isclass(value) else ()
                for label, member in [(name, value), *members]:
                    if not label.startswith("_") and callable(member):
                        self.assertTrue(member.__doc__, f"{module.__name__}.{name}: {label}")


class Examples(unittest.TestCase):
    def test_examples_of_docstrings(self):
        attempted = 0
        for module in MODULES:
            if module is comm and COUNT < 2:
                continue
            result = doctest.testmod(module, extraglobs={"tcuda": tcuda})
            self.assertEqual(result.failed, 0, module.__name__)
            attempted += result.attempted
        self.assertGreater(attempted, 15)

    @two_devices
    def test_examples_of_the_page(self):
        result = doctest.testfile(str(ROOT / "docs/python.md"), module_relative=False)
        self.assertEqual(result.failed, 0)
        self.assertGreater(result.attempted, 5)


class Stub(unittest.TestCase):
    def test_it_has_the_functions_of_the_module(self):
        stub = ast.parse(pathlib.Path(_core.__file__).with_name("_core.pyi").read_text())
        functions = {
            node.name: [argument.arg for argument in node.args.posonlyargs]
            for node in stub.body if isinstance(node, ast.FunctionDef)
        }
        there = {name for name in dir(_core) if callable(getattr(_core, name))}
        self.assertEqual(there - {"__loader__"}, set(functions))
        for name in there & (set(functions) - {"close_callbacks"}):
            signature = inspect.signature(getattr(_core, name))
            self.assertEqual(list(signature.parameters), functions[name], name)


if __name__ == "__main__":
    unittest.main()
