"""Graphs. The captured work fills numbers in device memory, which the host reads."""

import ctypes
import gc
import pathlib
import pickle
import struct
import tempfile
import unittest
import weakref
from unittest import mock

import tcuda
from support import COUNT, OTHER, TestCase
from tcuda import _core


class GraphTest(TestCase):
    def setUp(self):
        super().setUp()
        self.address = self.allocate(512)
        self.fill(self.address, 0)


class Captures(GraphTest):
    def test_replay(self):
        graph = tcuda.CUDAGraph()
        with tcuda.graph(graph):
            self.assertTrue(tcuda.is_current_stream_capturing())
            self.fill(self.address, 7)
        self.assertFalse(tcuda.is_current_stream_capturing())
        self.assertEqual(self.value(self.address), 0)
        graph.replay()
        self.assertEqual(self.value(self.address), 7)
        self.assertRaises(tcuda.CudaError, graph.raw_cuda_graph)
        self.assertNotEqual(graph.raw_cuda_graph_exec(), 0)

    def test_by_hand(self):
        graph = tcuda.CUDAGraph()
        with tcuda.stream(tcuda.Stream()):
            graph.capture_begin(capture_error_mode="thread_local")
            self.fill(self.address, 8)
            graph.capture_end()
        graph.replay()
        self.assertEqual(self.value(self.address), 8)

    def test_stream_and_device_are_restored(self):
        stream = tcuda.Stream(OTHER)
        with tcuda.graph(tcuda.CUDAGraph(), stream=stream):
            self.assertEqual(tcuda.current_stream(), stream)
            stream.record_event()
        self.assertEqual(tcuda.current_device(), 0)
        self.assertEqual(tcuda.current_stream(OTHER), tcuda.default_stream(OTHER))

    def test_exception(self):
        graph = tcuda.CUDAGraph()
        with self.assertRaises(KeyError), tcuda.graph(graph):
            self.fill(self.address, 9)
            raise KeyError
        self.assertEqual(tcuda.current_stream(), tcuda.default_stream())
        self.assertFalse(tcuda.is_current_stream_capturing())
        self.assertRaises(tcuda.CudaError, graph.replay)
        with tcuda.graph(graph):
            self.fill(self.address, 10)
        graph.replay()
        self.assertEqual(self.value(self.address), 10)

    def test_reset_and_retained_objects(self):
        graph = tcuda.CUDAGraph()
        for end in (graph.reset, lambda: None):
            with tcuda.graph(graph):
                self.fill(self.address, 1)
            pool = tcuda.MemPool()
            graph.retain_object([]).remove()
            graph.retain_object(pool)
            ended = weakref.ref(pool)
            del pool
            gc.collect()
            self.assertIsNotNone(ended())
            end()
        del graph, end
        gc.collect()
        self.assertIsNone(ended())

    def test_modes(self):
        with self.assertRaisesRegex(ValueError, "pass one of global"):
            tcuda.graph(tcuda.CUDAGraph(), capture_error_mode="some")

    def test_default_stream_cannot_be_captured(self):
        self.assertRaises(tcuda.CudaError, tcuda.CUDAGraph().capture_begin)


class Hooks(GraphTest):
    def test_of_a_graph_and_of_all(self):
        steps = ("capture_start", "capture_end", "instantiate", "replay_start", "replay_end",
                 "destroy")
        graph, called = tcuda.CUDAGraph(), []
        handles = []
        for step in steps:
            def hook(graph, step=step):
                called.append((step, graph))

            name = {"instantiate": "post_instantiate_hook", "destroy": "destroy_callback"}.get(
                step, f"{step}_hook")
            handles.append(getattr(graph, f"register_{name}")(hook))
            handles.append(getattr(tcuda.graphs, f"register_graph_{step}_hook")(hook))
        with tcuda.graph(graph):
            self.assertIs(tcuda.CUDAGraph.get_currently_capturing_graph(), graph)
            self.fill(self.address, 1)
        graph.replay()
        self.assertIsNone(tcuda.CUDAGraph.get_currently_capturing_graph())
        graph.reset()
        self.assertEqual(called, [(step, graph) for step in steps for _ in range(2)])
        for handle in handles * 2:
            handle.remove()
        with tcuda.graph(graph):
            self.fill(self.address, 1)
        graph.replay()
        graph.reset()
        self.assertEqual(len(called), 2 * len(steps))

    def test_exception_is_reported(self):
        graph = tcuda.CUDAGraph()
        graph.register_replay_start_hook(lambda graph: 1 // 0)
        with tcuda.graph(graph):
            self.fill(self.address, 14)
        with mock.patch("sys.unraisablehook") as hook:
            graph.replay()
        self.assertIs(hook.call_args[0][0].exc_type, ZeroDivisionError)
        self.assertEqual(self.value(self.address), 14)

    def test_hooks_end_with_the_object(self):
        called = []
        graph = tcuda.CUDAGraph()
        handles = [graph.register_replay_start_hook(called.append),
                   graph.register_destroy_callback(lambda graph: called.append(1))]
        handles[0].remove()
        with mock.patch.object(_core, "observer_destroy", wraps=_core.observer_destroy) as destroy:
            del graph
            self.assertEqual(destroy.call_count, 1)
            for handle in handles:
                handle.remove()
            self.assertEqual(destroy.call_count, 1)

    def test_end_of_the_object(self):
        graph, called = tcuda.CUDAGraph(), []
        graph.register_destroy_callback(lambda graph: called.append(graph.raw_cuda_graph_exec()))
        with tcuda.graph(graph):
            self.fill(self.address, 1)
        executable = graph.raw_cuda_graph_exec()
        del graph
        gc.collect()
        self.assertEqual(called, [executable])

    def test_exports(self):
        graph = tcuda.CUDAGraph()
        with tempfile.TemporaryDirectory() as folder:
            dot, data = pathlib.Path(folder, "graph.dot"), pathlib.Path(folder, "graph.pickle")
            graph.register_capture_end_hook(tcuda.graphs.export_dot(str(dot)))
            graph.register_post_instantiate_hook(tcuda.graphs.export_graph_data(str(data)))
            with tcuda.graph(graph):
                self.fill(self.address, 1)
            self.assertIn("digraph", dot.read_text())
            nodes = pickle.loads(data.read_bytes())["nodes"]
        self.assertEqual([node["node_type"] for node in nodes], ["memset"])


class Pools(GraphTest):
    def test_shared(self):
        pool = tcuda.graph_pool_handle()
        first, second = tcuda.CUDAGraph(), tcuda.CUDAGraph()
        addresses = []
        for graph in (first, second):
            with tcuda.graph(graph, pool=pool):
                addresses.append(self.allocate(512))
                self.free(addresses[-1])
                self.fill(self.address, 1)
        self.assertEqual(first.pool(), pool)
        self.assertEqual(hash(first.pool()), hash(second.pool()))
        self.assertEqual(addresses[0], addresses[1])
        self.assertNotEqual(tcuda.graph_pool_handle(), pool)
        self.assertNotEqual(pool, pool.id)

    def test_of_a_mem_pool(self):
        pool, graph = tcuda.MemPool(), tcuda.CUDAGraph()
        with tcuda.graph(graph, pool):
            address = self.allocate(512)
            self.fill(self.address, 1)
        blocks = [block["address"] for segment in pool.snapshot() for block in segment["blocks"]]
        self.assertIn(address, blocks)

    def test_by_its_numbers(self):
        pools = [tcuda.MemPool(), tcuda.MemPool(), tcuda.graph_pool_handle()]
        for pool in pools:
            graph = tcuda.CUDAGraph()
            with tcuda.graph(graph, pool=pool.id):
                self.fill(self.address, 1)
            self.assertEqual(graph.pool(), pool)
        numbers = pools[0].id
        del pools, pool
        with self.assertRaisesRegex(ValueError, "keep its object"):
            tcuda.CUDAGraph().capture_begin(numbers)

    def test_of_a_graph(self):
        graph, pool = tcuda.CUDAGraph(), tcuda.graph_pool_handle()
        self.assertRaises(tcuda.CudaError, graph.pools)
        with tcuda.graph(graph, pool):
            self.fill(self.address, 1)
        self.assertEqual(graph.pools(), [pool])
        self.assertEqual(pool.use_count(), 2)
        other = tcuda.CUDAGraph(keep_graph=True)
        with tcuda.graph(other, tcuda.MemPool()):
            self.fill(self.address, 2)
        _core.graph_update(graph._handle, other._handle)  # now it holds the memory of both
        self.assertEqual(graph.pools(), [pool, other.pool()])

    def test_live_blocks(self):
        pool = tcuda.MemPool()
        with tcuda.use_mem_pool(pool):
            held = [self.allocate(512) for _ in range(3)]

        def is_live(*addresses):
            items = b"".join(address.to_bytes(8, "little") for address in addresses)
            return _core.mem_pool_check_live(pool._handle, 0, items)

        self.assertTrue(is_live(*held))
        self.assertFalse(is_live(*held[:2]))
        self.free(held.pop())
        self.assertTrue(is_live(*held))


class Templates(GraphTest):
    def test_debug_mode(self):
        graph = tcuda.CUDAGraph()
        graph.enable_debug_mode()
        graph.enable_debug_mode()
        with tcuda.graph(graph):
            self.assertIs(tcuda.CUDAGraph.get_currently_capturing_graph(), graph)
            self.fill(self.address, 2)
        self.assertNotEqual(graph.raw_cuda_graph(), 0)
        graph.replay()
        self.assertEqual(self.value(self.address), 2)
        used = tcuda.CUDAGraph()
        used.register_capture_end_hook(print)
        self.assertRaises(RuntimeError, used.enable_debug_mode)

    def test_end_of_a_capture_in_two_parts(self):
        for keep in (True, False):
            graph = tcuda.CUDAGraph(keep_graph=keep)
            self.assertRaises(RuntimeError, graph.capture_end_post)
            with tcuda.stream(tcuda.Stream()):
                graph.capture_begin()
                self.fill(self.address, 3 + keep)
                graph.capture_end_pre()
                self.assertFalse(tcuda.is_current_stream_capturing())
                if keep:
                    self.assertNotEqual(graph.raw_cuda_graph(), 0)
                else:
                    self.assertRaises(tcuda.CudaError, graph.raw_cuda_graph)
                graph.instantiate()
                graph.capture_end_post()
            self.assertRaises(RuntimeError, graph.capture_end_post)
            graph.replay()
            self.assertEqual(self.value(self.address), 3 + keep)

    def test_default_capture_stream(self):
        stream = tcuda.graph.default_capture_stream
        self.assertEqual(stream, tcuda.graph.default_capture_stream)
        self.assertNotEqual(stream, tcuda.default_stream())
        with tcuda.graph(tcuda.CUDAGraph()):
            self.assertEqual(tcuda.current_stream(), stream)
            self.fill(self.address, 1)
        with tcuda.device(OTHER):
            self.assertEqual(tcuda.graph.default_capture_stream.device_index, OTHER)

    def test_is_kept(self):
        graph = tcuda.CUDAGraph(keep_graph=True)
        with tcuda.graph(graph):
            self.fill(self.address, 11)
        self.assertNotEqual(graph.raw_cuda_graph(), 0)
        self.assertRaises(tcuda.CudaError, graph.raw_cuda_graph_exec)
        nodes = graph.get_graph_data()["nodes"]
        self.assertEqual([node["node_type"] for node in nodes], ["memset"])
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "graph.dot")
            graph.debug_dump(str(path))
            self.assertIn("digraph", path.read_text())
        graph.instantiate()
        self.assertNotEqual(graph.raw_cuda_graph_exec(), 0)
        graph.replay()
        self.assertEqual(self.value(self.address), 11)

    def test_is_not_kept(self):
        graph = tcuda.CUDAGraph()
        with tcuda.graph(graph):
            self.fill(self.address, 1)
        self.assertRaises(tcuda.CudaError, graph.get_graph_data)
        self.assertRaises(tcuda.CudaError, graph.instantiate)


class Conditions(GraphTest):
    def test_if(self):
        predicate = self.address + 256
        graph = tcuda.CUDAGraph()
        with tcuda.graph(graph):
            graph.begin_capture_to_if_node(predicate)
            self.fill(self.address, 12)
            graph.end_capture_to_conditional_node()
        for condition, value in ((0, 0), (1, 12)):
            self.fill_byte(predicate, condition)
            graph.replay()
            self.assertEqual(self.value(self.address), value)

    def test_while(self):
        predicate, again = self.address + 256, self.address + 257
        graph = tcuda.CUDAGraph()
        with tcuda.graph(graph):
            graph.begin_capture_to_while_node(predicate)
            self.fill(self.address, 13)
            graph.set_conditional_handle_for_current_node(again)
            graph.end_capture_to_conditional_node()
        self.fill_byte(predicate, 1)
        self.fill_byte(again, 0)
        graph.replay()
        self.assertEqual(self.value(self.address), 13)


class Generators(TestCase):
    def test_state(self):
        generator = tcuda.random.Generator(f"cuda:{OTHER}")
        self.assertEqual(generator.device, tcuda.device(OTHER))
        self.assertIs(generator.manual_seed(-2), generator)
        self.assertEqual(generator.initial_seed(), (1 << 64) - 2)
        generator.set_offset(8)
        self.assertEqual(generator.get_offset(), 8)
        self.assertEqual(generator.get_state(), struct.pack("<QQ", (1 << 64) - 2, 8))
        generator.set_state(struct.pack("<QQ", 5, 12))
        self.assertEqual((generator.initial_seed(), generator.get_offset()), (5, 12))
        self.assertRaises(ValueError, generator.set_offset, 3)
        self.assertEqual(generator.seed(), generator.initial_seed())
        self.assertLess(generator.initial_seed(), 1 << 53)

    def test_default_ones(self):
        self.assertEqual([g.device.index for g in tcuda.default_generators], list(range(COUNT)))
        tcuda.default_generators[OTHER].manual_seed(6)
        gc.collect()
        self.assertEqual(tcuda.get_rng_state(OTHER), struct.pack("<QQ", 6, 0))

    def test_numbers_of_a_graph(self):
        generator = tcuda.random.Generator().manual_seed(1)
        graph = tcuda.CUDAGraph()
        graph.register_generator_state(generator)
        with tcuda.graph(graph):
            _core.generator_philox_state(generator._handle, 4)
            tcuda.Event(external=True).record()
        self.assertEqual(generator.get_offset(), 0)
        for _ in range(2):
            graph.replay()
        self.assertEqual(generator.get_offset(), 8)


class GraphedCallables(unittest.TestCase):
    def setUp(self):
        tcuda.set_device(0)
        self.calls = 0

    def array(self, values, device=0):
        made = tcuda.empty(len(values), "uint8", device)
        made.copy_from(bytes(values))
        return made

    def total(self, *arrays):
        self.calls += 1
        return tcuda.comm.reduce_add([*arrays, arrays[0]])

    def test_replays(self):
        sample = self.array([1, 2])
        graphed = tcuda.make_graphed_callables(self.total, (sample, sample), num_warmup_iters=2)
        self.assertEqual(self.calls, 3)
        result = graphed(self.array([3, 4]), self.array([10, 20]))
        self.assertEqual(list(result.tobytes()), [16, 28])
        self.assertIs(graphed(result, self.array([1, 1])), result)
        self.assertEqual(list(result.tobytes()), [33, 57])
        self.assertEqual(self.calls, 3)
        self.assertEqual(list(sample.tobytes()), [1, 2])

    def test_structure_and_other_libraries(self):
        class Foreign:
            def __init__(self, inner):
                self.__dlpack_device__, self.__dlpack__ = inner.__dlpack_device__, inner.__dlpack__

        graphed = tcuda.make_graphed_callables(
            lambda x: {"sum": self.total(x), "same": x}, (Foreign(self.array([1])),))
        results = graphed(Foreign(self.array([5])))
        self.assertEqual(list(results["sum"].tobytes()), [10])
        self.assertEqual(list(results["same"].tobytes()), [5])

    def test_several_on_another_device(self):
        sample, pool = self.array([1, 2], OTHER), tcuda.graph_pool_handle()
        first, second = tcuda.make_graphed_callables(
            (self.total, lambda x: self.total(x, x)), ((sample,), (sample,)), pool=pool)
        self.assertEqual(tcuda.current_device(), 0)
        self.assertEqual(list(second(first(self.array([1, 4], OTHER))).tobytes()), [6, 24])
        self.assertEqual(tcuda.current_device(), 0)
        self.assertGreaterEqual(pool.use_count(), 3)

    def test_it_is_ordered_on_the_current_stream(self):
        graphed = tcuda.make_graphed_callables(self.total, (self.array([1]),))
        with tcuda.stream(tcuda.Stream()):
            self.assertEqual(list(graphed(self.array([7])).tobytes()), [14])

    def test_memory_ends_with_it(self):
        gc.collect()
        before = tcuda.memory_allocated()
        graphed = tcuda.make_graphed_callables(self.total, (self.array([1]),))
        self.assertGreater(tcuda.memory_allocated(), before)
        del graphed
        gc.collect()
        self.assertEqual(tcuda.memory_allocated(), before)

    def test_exception(self):
        def fails(array):
            self.calls += 1
            if self.calls == 4:
                raise KeyError("in the capture")
            return array

        with self.assertRaises(KeyError):
            tcuda.make_graphed_callables(fails, (self.array([1]),))
        self.assertFalse(tcuda.is_current_stream_capturing())
        self.assertEqual(tcuda.current_stream(), tcuda.default_stream())

    def test_refusals(self):
        sample = self.array([1, 2])
        for error, call in (
            (ValueError, lambda: tcuda.make_graphed_callables(self.total, ())),
            (ValueError, lambda: tcuda.make_graphed_callables((self.total,), ((sample,),) * 2)),
            (TypeError, lambda: tcuda.make_graphed_callables(self.total, (1,))),
        ):
            self.assertRaises(error, call)
        if COUNT > 1:
            inputs = (sample, self.array([1], 1))
            self.assertRaises(ValueError, tcuda.make_graphed_callables, self.total, inputs)
        graphed = tcuda.make_graphed_callables(self.total, (sample,))
        self.assertRaises(TypeError, graphed)
        self.assertRaises(ValueError, graphed, self.array([1]))


if __name__ == "__main__":
    unittest.main()
