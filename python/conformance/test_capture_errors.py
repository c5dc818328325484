"""What a capture refuses. PyTorch 2.11 needs a new process after such an error: its allocator still
takes memory from the graph's pool.
"""

import unittest

from adapters import cuda, fill
from base import GraphCase


class Refused(GraphCase):
    """What a capture refuses. It is over afterwards, without a graph."""

    def refused(self, call):
        graph = cuda.CUDAGraph()
        with self.assertRaises(RuntimeError):
            with cuda.graph(graph):
                fill(self.address, 1)
                call()
        self.assertIs(cuda.is_current_stream_capturing(), False)
        cuda.synchronize()
        self.capture().replay()
        self.assert_memory(7)

    def test_synchronize(self):
        self.refused(cuda.synchronize)

    def test_stream_synchronize(self):
        self.refused(lambda: cuda.current_stream().synchronize())

    def test_stream_query(self):
        self.refused(lambda: cuda.current_stream().query())

    def test_another_capture(self):
        self.refused(lambda: cuda.CUDAGraph().capture_begin())


if __name__ == "__main__":
    unittest.main()
