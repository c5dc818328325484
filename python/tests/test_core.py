"""tcuda._core: every function of tcuda.h, and how arguments and results are converted."""

import inspect
import json
import pathlib
import pickle
import sys
import unittest

import tcuda
from support import COUNT, TestCase, simulated
from tcuda import _core

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "python"))
import generate  # noqa: E402

API = json.loads((ROOT / "include/api.json").read_text())


class Functions(unittest.TestCase):
    def test_each_is_there_or_left_out_for_a_reason(self):
        for function in API["functions"]:
            with self.subTest(function["name"]):
                is_there = hasattr(_core, generate.python_name(function))
                self.assertEqual(is_there, generate.left_out_because(function) is None)

    def test_each_reason_leaves_something_out(self):
        used = {generate.left_out_because(function) for function in API["functions"]}
        reasons = {*generate.LEFT_OUT.values(), *generate.LEFT_OUT_TYPES.values()}
        self.assertEqual(reasons, used - {None})

    def test_signatures_and_comments(self):
        self.assertEqual(str(inspect.signature(_core.copy)), "(dst, src, bytes, stream, /)")
        self.assertIn("One of 32 pooled streams", _core.stream_create.__doc__)

    def test_constants(self):
        for enum in API["enums"]:
            for value in enum["values"]:
                name = value["name"].removeprefix("TCUDA_")
                self.assertEqual(getattr(_core, name), value["value"], name)


class Arguments(unittest.TestCase):
    def test_number_of_arguments(self):
        with self.assertRaisesRegex(TypeError, r"stream_create\(\) takes 2 arguments, not 1"):
            _core.stream_create(0)

    def test_types(self):
        for call in (
            lambda: _core.device_set("0"), lambda: _core.nvtx_mark(1), lambda: _core.free("0"),
            lambda: _core.random_state_set(0, "16 characters..."),
            lambda: _core.memory_fraction_set(0, "half"),
            lambda: _core.stream_add_callback(0, 1),
        ):
            self.assertRaises(TypeError, call)

    def test_ranges(self):
        for call in (
            lambda: _core.device_set(1 << 31), lambda: _core.device_set(-(1 << 31) - 1),
            lambda: _core.event_create(1 << 32), lambda: _core.event_create(-1),
            lambda: _core.malloc(-1, 0, None), lambda: _core.malloc(1 << 64, 0, None),
            lambda: _core.random_manual_seed(0, 1 << 64),
        ):
            self.assertRaises(OverflowError, call)

    def test_largest_numbers(self):
        _core.random_manual_seed(0, (1 << 64) - 1)
        self.assertEqual(_core.random_initial_seed(0), (1 << 64) - 1)

    def test_bytes_have_the_right_length(self):
        with self.assertRaisesRegex(ValueError, "16 bytes"):
            _core.random_state_set(0, b"fifteen bytes..")
        with self.assertRaisesRegex(ValueError, "expected 16 bytes, not 32"):
            _core.random_state_set(0, bytes(32))

    def test_text_without_nul(self):
        with self.assertRaisesRegex(ValueError, "embedded null"):
            _core.nvtx_mark("a\0b")

    def test_null_handle(self):
        for null in (0, None):
            with self.assertRaises(tcuda.CudaError) as raised:
                _core.event_record(null, None)
            self.assertEqual(raised.exception.status, "INVALID_HANDLE")


class Results(TestCase):
    def test_text_that_is_longer_than_the_first_buffer(self):
        snapshot = _core.memory_snapshot_create(0)
        self.addCleanup(_core.memory_snapshot_destroy, snapshot)
        page, content = (
            _core.memory_snapshot_html(snapshot), _core.memory_snapshot_pickle(snapshot))
        self.assertGreater(len(page), 8192)
        self.assertIn("</html>", page)
        self.assertIn("segments", pickle.loads(content))

    def test_text_of_each_length_about_that_of_the_buffer(self):
        self.addCleanup(_core.memory_metadata_set, None)
        for length in (0, 1, *range(8188, 8196), 20000):
            text = "ä" * (length // 2) + "x" * (length % 2)
            _core.memory_metadata_set(text)
            self.assertEqual(_core.memory_metadata_get(), text)

    def test_list_that_is_longer_than_the_first_buffer(self):
        stream = tcuda.Stream()
        pool = tcuda.MemPool()
        with tcuda.use_mem_pool(pool):
            addresses = [self.allocate(512, 0, stream) for _ in range(1000)]
        blocks = _core.mem_pool_blocks(pool._handle, 0)
        allocated = {block["ptr"] for block in blocks if block["requested_bytes"] == 512}
        self.assertEqual(allocated, set(addresses))

    def test_struct(self):
        info = _core.device_properties(0)
        self.assertEqual(info["name"], tcuda.get_device_name(0))
        self.assertEqual(len(info["uuid"]), 16)
        self.assertEqual(info["max_block_dim"], (1024, 1024, 64))
        self.assertNotIn("struct_size", info)

    def test_nested_struct(self):
        self.allocate(512, 0)
        self.assertGreaterEqual(_core.memory_stats(0)["allocation"]["small_pool"]["current"], 1)

    def test_error(self):
        with self.assertRaises(tcuda.CudaError) as raised:
            _core.stream_create(99 + COUNT, 0)
        self.assertIs(type(raised.exception), tcuda.InvalidDeviceError)
        self.assertIsInstance(raised.exception, AssertionError)
        self.assertEqual((raised.exception.status, raised.exception.code), ("INVALID_DEVICE", 0))
        self.assertIn(f"device {99 + COUNT} does not exist", str(raised.exception))

    @simulated
    def test_code_of_the_driver(self):
        _core.backend_inject("cuEventRecord", 1, 999, 0)
        self.addCleanup(_core.backend_faults, None)
        with self.assertRaises(tcuda.CudaError) as raised:
            tcuda.Event().record()
        self.assertEqual((raised.exception.status, raised.exception.code), ("CUDA_ERROR", 999))


if __name__ == "__main__":
    unittest.main()
