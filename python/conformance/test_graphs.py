"""Graphs: captures, replays, pools, modes, errors. The work of the graphs fills bytes."""

import pathlib
import tempfile
import unittest

from adapters import cuda, draw, fill, read
from base import MIB, GraphCase, each


class Replays(GraphCase):
    def test_once(self):
        graph = self.capture()
        self.assert_memory(0)
        self.assertIsNone(graph.replay())
        self.assert_memory(7)

    def test_again(self):
        graph = self.capture()
        for _ in range(3):
            graph.replay()
            self.assert_memory(7)
            fill(self.address, 0)
            self.assert_memory(0)

    def test_two(self):
        first, second = self.capture(1), self.capture(2)
        for graph, value in ((second, 2), (first, 1), (second, 2)):
            graph.replay()
            self.assert_memory(value)

    def test_on_the_current_stream(self):
        graph = self.capture()
        stream = cuda.Stream()
        with cuda.stream(stream):
            graph.replay()
        stream.synchronize()
        self.assert_memory(7)

    def test_by_hand(self):
        graph = cuda.CUDAGraph()
        with cuda.stream(cuda.Stream()):
            self.assertIsNone(graph.capture_begin())
            fill(self.address, 8)
            self.assertIsNone(graph.capture_end())
        graph.replay()
        self.assert_memory(8)

    def test_branches(self):
        other = cuda.Stream()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            fill(self.address, 1, 2)
            other.wait_stream(cuda.current_stream())
            with cuda.stream(other):
                self.assertIs(cuda.is_current_stream_capturing(), True)
                fill(self.address + 2, 2, 2)
            cuda.current_stream().wait_stream(other)
        graph.replay()
        self.assertEqual(read(self.address), [1, 1, 2, 2])


class Contexts(GraphCase):
    def test_capturing(self):
        self.assertIs(cuda.is_current_stream_capturing(), False)
        with cuda.graph(cuda.CUDAGraph()):
            self.assertIs(cuda.is_current_stream_capturing(), True)
            fill(self.address, 1)
        self.assertIs(cuda.is_current_stream_capturing(), False)

    def test_stream(self):
        stream = cuda.Stream()
        with cuda.graph(cuda.CUDAGraph(), stream=stream):
            self.assertEqual(cuda.current_stream(), stream)
            fill(self.address, 1)
        self.assertEqual(cuda.current_stream(), cuda.default_stream())

    def test_stream_of_captures(self):
        seen = []
        for _ in range(2):
            with cuda.graph(cuda.CUDAGraph()):
                seen.append(cuda.current_stream())
                fill(self.address, 1)
        self.assertEqual(seen[0], seen[1])
        self.assertNotEqual(seen[0], cuda.default_stream())

    def test_gives_nothing(self):
        with cuda.graph(cuda.CUDAGraph()) as entered:
            self.assertIsNone(entered)
            fill(self.address, 1)

    def test_caches_are_emptied(self):
        self.free(self.alloc(64 * MIB))
        self.assertEqual(self.large(), 64 * MIB)
        with cuda.graph(cuda.CUDAGraph()):
            self.assertEqual(self.large(), 0)
            fill(self.address, 1)

    def test_exception(self):
        with self.assertRaises(KeyError), cuda.graph(cuda.CUDAGraph()):
            fill(self.address, 9)
            raise KeyError
        self.assertEqual(cuda.current_stream(), cuda.default_stream())
        self.assertIs(cuda.is_current_stream_capturing(), False)
        self.assert_memory(0)

    def test_graph_of_an_exception(self):
        """What was captured until then can be replayed."""
        graph = cuda.CUDAGraph()
        with self.assertRaises(KeyError), cuda.graph(graph):
            fill(self.address, 9)
            raise KeyError
        graph.replay()
        self.assert_memory(9)

    @each(all_="global", thread="thread_local", none="relaxed")
    def test_mode(self, mode):
        self.capture(capture_error_mode=mode).replay()
        self.assert_memory(7)

    @each(all_="global", thread="thread_local", none="relaxed")
    def test_mode_by_hand(self, mode):
        graph = cuda.CUDAGraph()
        with cuda.stream(cuda.Stream()):
            graph.capture_begin(capture_error_mode=mode)
            fill(self.address, 3)
            graph.capture_end()
        graph.replay()
        self.assert_memory(3)

    def test_empty_graph_warns(self):
        graph = cuda.CUDAGraph()
        with self.assertWarnsRegex(UserWarning, "(?i)graph is empty"), cuda.graph(graph):
            pass


class Memory(GraphCase):
    def test_pool_of_a_capture(self):
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            address = self.alloc(1000)
            fill(self.address, 1)
        segments = [
            segment for segment in cuda.memory_snapshot() if segment["segment_pool_id"] != (0, 0)]
        self.assertEqual([segment["address"] for segment in segments], [address])
        self.assertGreater(segments[0]["segment_pool_id"][0], 0)
        self.free(address)

    def test_addresses_are_valid_in_replays(self):
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            address = self.alloc(1000)
            fill(address, 5)
        graph.replay()
        self.assertEqual(read(address), [5] * 4)
        self.free(address)

    def test_its_free_memory_is_not_for_others(self):
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            address = self.alloc(5 * MIB)
            fill(address, 5)
            self.free(address)
        self.assertEqual(self.large(), 20 * MIB)
        self.assertNotEqual(self.alloc(5 * MIB), address)
        cuda.empty_cache()
        graph.replay()
        self.assertEqual(self.large(), 40 * MIB)

    def test_reuse_within(self):
        with cuda.graph(cuda.CUDAGraph()):
            first = self.alloc(1000)
            fill(first, 1)
            self.free(first)
            self.assertEqual(self.alloc(1000), first)
            fill(first, 2)
            self.free(first)

    def test_reset_gives_it_back(self):
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            self.free(self.alloc(64 * MIB))
            fill(self.address, 1)
        self.assertEqual(self.large(), 64 * MIB)
        graph.reset()
        cuda.empty_cache()
        self.assertEqual(self.large(), 0)

    def test_end_gives_it_back(self):
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            self.free(self.alloc(64 * MIB))
            fill(self.address, 1)
        del graph
        cuda.empty_cache()
        self.assertEqual(self.large(), 0)


class Pools(GraphCase):
    def test_handles_differ(self):
        first, second = cuda.graph_pool_handle(), cuda.graph_pool_handle()
        self.assertNotEqual(first, second)
        self.assertEqual(first, first)

    def test_is_that_of_the_graph(self):
        pool = cuda.graph_pool_handle()
        graph = self.capture(pool=pool)
        self.assertEqual(graph.pool(), pool)

    def test_each_graph_has_its_own(self):
        self.assertNotEqual(self.capture().pool(), self.capture().pool())

    def test_shared(self):
        pool, addresses = cuda.graph_pool_handle(), []
        graphs = [cuda.CUDAGraph(), cuda.CUDAGraph()]
        for graph in graphs:
            with cuda.graph(graph, pool=pool):
                address = self.alloc(1000)
                fill(address, 1)
                addresses.append(address)
                self.free(address)
        self.assertEqual(addresses[0], addresses[1])

    def test_pool_of_the_first(self):
        first = self.capture(1)
        second = self.capture(2, pool=first.pool())
        self.assertEqual(first.pool(), second.pool())
        second.replay()
        first.replay()
        self.assert_memory(1)

    def graphs_of(self, pool):
        """Two graphs that share a pool."""
        graphs = [cuda.CUDAGraph(), cuda.CUDAGraph()]
        for graph in graphs:
            with cuda.graph(graph, pool=pool):
                address = self.alloc(64 * MIB)
                fill(address, 6)
                self.free(address)
        return graphs

    def test_outlives_the_first(self):
        first, second = self.graphs_of(cuda.graph_pool_handle())
        first.reset()
        cuda.empty_cache()
        self.assertEqual(self.large(), 64 * MIB)
        second.replay()
        second.reset()
        cuda.empty_cache()
        self.assertEqual(self.large(), 0)

    def test_ends_with_the_last_graph(self):
        """A handle does not keep the memory."""
        pool = cuda.graph_pool_handle()
        for graph in self.graphs_of(pool):
            graph.reset()
        cuda.empty_cache()
        self.assertEqual(self.large(), 0)

    def test_by_hand(self):
        pool, graph = cuda.graph_pool_handle(), cuda.CUDAGraph()
        with cuda.stream(cuda.Stream()):
            graph.capture_begin(pool=pool)
            fill(self.address, 1)
            graph.capture_end()
        self.assertEqual(graph.pool(), pool)


class Templates(GraphCase):
    def test_is_instantiated_by_the_first_replay(self):
        graph = self.capture(graph=cuda.CUDAGraph(keep_graph=True))
        graph.replay()
        self.assert_memory(7)

    def test_instantiate(self):
        graph = self.capture(graph=cuda.CUDAGraph(keep_graph=True))
        for _ in range(2):
            self.assertIsNone(graph.instantiate())
            graph.replay()
        self.assert_memory(7)

    def test_handles(self):
        graph = self.capture(graph=cuda.CUDAGraph(keep_graph=True))
        self.assertGreater(graph.raw_cuda_graph(), 0)
        graph.instantiate()
        self.assertGreater(graph.raw_cuda_graph_exec(), 0)
        self.assertNotEqual(graph.raw_cuda_graph(), graph.raw_cuda_graph_exec())

    def test_handle_of_what_is_launched(self):
        self.assertGreater(self.capture().raw_cuda_graph_exec(), 0)

    def test_dump(self):
        graph = self.capture(graph=cuda.CUDAGraph(keep_graph=True))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "graph.dot")
            graph.debug_dump(str(path))
            self.assertIn("digraph", path.read_text())


class Reset(GraphCase):
    def test_capture_again(self):
        graph = self.capture(1)
        graph.reset()
        self.capture(2, graph=graph).replay()
        self.assert_memory(2)

    def test_of_nothing(self):
        graph = cuda.CUDAGraph()
        self.assertIsNone(graph.reset())
        self.capture(graph=graph).replay()
        self.assert_memory(7)

    def test_replay_after_it(self):
        graph = self.capture()
        graph.reset()
        self.assertRaises(RuntimeError, graph.replay)


class Numbers(GraphCase):
    """The default generator in graphs."""

    def setUp(self):
        super().setUp()
        cuda.manual_seed(5)
        self.generator = cuda.default_generators[0]

    def test_capture_draws_nothing(self):
        with cuda.graph(cuda.CUDAGraph()):
            draw(self.address)
        self.assertEqual(self.generator.get_offset(), 0)

    def test_each_replay_draws(self):
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            draw(self.address)
            draw(self.address)
        for replays in (1, 2, 3):
            graph.replay()
            self.assertEqual(self.generator.get_offset(), 8 * replays)

    def test_beside_draws(self):
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            draw(self.address)
        draw(self.address)
        graph.replay()
        draw(self.address)
        self.assertEqual(self.generator.get_offset(), 12)

    def test_seed_after_the_capture(self):
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            draw(self.address)
        cuda.manual_seed(6)
        graph.replay()
        self.assertEqual((self.generator.initial_seed(), self.generator.get_offset()), (6, 4))

    def test_without_draws(self):
        self.capture().replay()
        self.assertEqual(self.generator.get_offset(), 0)


class Errors(GraphCase):
    def test_replay_before_the_capture(self):
        self.assertRaises(RuntimeError, cuda.CUDAGraph().replay)

    def test_pool_before_the_capture(self):
        self.assertRaises(RuntimeError, cuda.CUDAGraph().pool)

    def test_default_stream(self):
        self.assertRaises(RuntimeError, cuda.CUDAGraph().capture_begin)
        self.assertIs(cuda.is_current_stream_capturing(), False)

    def test_second_capture(self):
        graph = self.capture()
        with cuda.stream(cuda.Stream()):
            self.assertRaises(RuntimeError, graph.capture_begin)
            self.assertIs(cuda.is_current_stream_capturing(), False)

    def test_end_before_the_begin(self):
        with cuda.stream(cuda.Stream()):
            self.assertRaises(RuntimeError, cuda.CUDAGraph().capture_end)

    def test_mode(self):
        with self.assertRaises(RuntimeError):
            with cuda.graph(cuda.CUDAGraph(), capture_error_mode="some"):
                pass

    def test_mode_by_hand(self):
        with cuda.stream(cuda.Stream()):
            with self.assertRaises(RuntimeError):
                cuda.CUDAGraph().capture_begin(capture_error_mode="some")

    def test_instantiate_before_the_capture(self):
        self.assertRaises(RuntimeError, cuda.CUDAGraph(keep_graph=True).instantiate)

    def test_instantiate_again(self):
        self.assertRaises(RuntimeError, self.capture().instantiate)

    def test_template_that_is_not_kept(self):
        self.assertRaises(RuntimeError, self.capture().raw_cuda_graph)

    def test_what_is_launched_before_instantiate(self):
        graph = self.capture(graph=cuda.CUDAGraph(keep_graph=True))
        self.assertRaises(RuntimeError, graph.raw_cuda_graph_exec)


if __name__ == "__main__":
    unittest.main()
