"""Annotations of captured work."""

import pathlib
import pickle
import tempfile
import unittest

import tcuda
from support import TestCase
from tcuda import _core, graph_annotations
from tcuda.graph_annotations import (
    clear_kernel_annotations, dump_kernel_py_stacks, get_kernel_annotations,
    get_kernel_py_stacks, mark_kernels)

numbered = unittest.skipUnless(graph_annotations.is_available(), "needs a driver of CUDA 13.1")


class AnnotationsTest(TestCase):
    def setUp(self):
        super().setUp()
        self.address = self.allocate(512)
        clear_kernel_annotations()
        self.addCleanup(clear_kernel_annotations)

    def capture(self, graph, enabled=True):
        with tcuda.graph(graph, enable_annotations=enabled):
            self.fill(self.address, 1)
            with mark_kernels("first"):
                self.fill(self.address, 2)
                with mark_kernels({"str": "inner", "layer": 3}, py_stack=True):
                    self.fill(self.address, 3)
            self.fill(self.address, 4)


class Data(AnnotationsTest):
    def test_texts_of_the_graph(self):
        graph = tcuda.CUDAGraph(keep_graph=True)
        self.capture(graph, enabled=False)
        texts = [node["annotations"] for node in graph.get_graph_data()["nodes"]]
        self.assertEqual([len(of_node or ()) for of_node in texts], [0, 1, 3, 0])
        self.assertEqual(texts[1], ['{"str": "first"}'])
        self.assertIn('{"str": "inner", "layer": 3}', texts[2])
        self.assertEqual(texts[2][-1], '{"str": "first"}')
        self.assertEqual(get_kernel_annotations(), {})

    def test_outside_of_a_capture(self):
        with mark_kernels("nothing"):
            self.fill(self.address, 5)
        self.assertEqual(self.value(self.address), 5)

    def test_exception(self):
        graph = tcuda.CUDAGraph()
        with tcuda.graph(graph):
            with self.assertRaises(KeyError), mark_kernels("first"):
                raise KeyError
            self.fill(self.address, 1)
            with self.raises_status("INVALID_STATE"):
                _core.graph_annotation_pop(None)
        with self.assertRaises(TypeError), mark_kernels({"a": object()}):
            pass


@numbered
class Maps(AnnotationsTest):
    def test_by_the_number_of_the_node(self):
        graph = tcuda.CUDAGraph(keep_graph=True)
        self.capture(graph)
        self.assertEqual(get_kernel_annotations(), {})
        graph.instantiate()
        nodes = graph.get_graph_data()["nodes"]
        self.assertEqual(get_kernel_annotations(), {
            nodes[1]["tools_id"]: [{"str": "first"}],
            nodes[2]["tools_id"]: [{"str": "inner", "layer": 3}],
        })
        before = set(get_kernel_annotations())
        graph.instantiate()  # another executable, whose nodes have other numbers
        self.assertEqual(len(get_kernel_annotations()), 2)
        self.assertFalse(before & set(get_kernel_annotations()))
        clear_kernel_annotations()
        self.assertEqual(get_kernel_annotations(), {})

    def test_graph_without_a_template(self):
        graph, other = tcuda.CUDAGraph(), tcuda.CUDAGraph()
        self.capture(graph)
        self.assertEqual(len(get_kernel_annotations()), 2)
        self.capture(other)
        self.assertEqual(len(get_kernel_annotations()), 4)
        graph.reset()
        self.capture(graph, enabled=False)
        self.assertEqual(len(get_kernel_annotations()), 2)

    def test_annotations_of_others(self):
        graph = tcuda.CUDAGraph()
        with tcuda.graph(graph, enable_annotations=True):
            _core.graph_annotation_push(None, "plain text")
            self.fill(self.address, 1)
            _core.graph_annotation_pop(None)
        self.assertEqual(list(get_kernel_annotations().values()), [[{"str": "plain text"}]])

    def test_stacks(self):
        graph = tcuda.CUDAGraph()
        self.capture(graph)
        (number, stack), = get_kernel_py_stacks().items()
        lines = stack.split("\n")
        line = AnnotationsTest.capture.__code__.co_firstlineno + 5
        self.assertEqual(lines[0], f"{__file__}:{line}:capture")
        self.assertTrue(lines[1].endswith(":test_stacks"))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "stacks.pickle")
            dump_kernel_py_stacks(str(path))
            self.assertEqual(pickle.loads(path.read_bytes()), {number: stack})


if __name__ == "__main__":
    unittest.main()
