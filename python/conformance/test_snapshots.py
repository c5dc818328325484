"""Snapshots of the allocator and its history."""

import pathlib
import pickle
import tempfile
import time
import unittest

from adapters import Memory, busy, cuda
from base import MIB, Case, each

SEGMENT_KEYS = {
    "device": int, "address": int, "total_size": int, "allocated_size": int, "active_size": int,
    "requested_size": int, "stream": int, "segment_type": str, "segment_pool_id": tuple,
    "is_expandable": bool, "frames": list, "blocks": list,
}
BLOCK_KEYS = {"address": int, "size": int, "requested_size": int, "state": str, "frames": list}
ENTRY_KEYS = {"action": str, "addr": int, "size": int, "stream": int, "time_us": int}
SETTINGS = {
    "PYTORCH_CUDA_ALLOC_CONF": str, "max_split_size": int, "garbage_collection_threshold": float,
    "expandable_segments": bool, "pinned_num_register_threads": int,
    "release_lock_on_cudamalloc": bool, "pinned_use_cuda_host_register": bool,
    "roundup_power2_divisions": dict,
}


class Segments(Case):
    def test_nothing(self):
        self.assertEqual(cuda.memory_snapshot(), [])

    def test_one(self):
        address = self.alloc(1000)
        segment, = cuda.memory_snapshot()
        self.assertEqual(
            {key: segment[key] for key in (
                "device", "address", "total_size", "allocated_size", "active_size",
                "requested_size", "stream", "segment_type", "segment_pool_id", "is_expandable")},
            {"device": 0, "address": address, "total_size": 2 * MIB, "allocated_size": 1024,
             "active_size": 1024, "requested_size": 1000, "stream": 0, "segment_type": "small",
             "segment_pool_id": (0, 0), "is_expandable": False})

    def test_blocks(self):
        address = self.alloc(1000)
        second = self.alloc(600)
        self.free(address)
        segment, = cuda.memory_snapshot()
        self.assertEqual(
            [(block["address"], block["size"], block["state"]) for block in segment["blocks"]],
            [(address, 1024, "inactive"), (second, 1024, "active_allocated"),
             (second + 1024, 2 * MIB - 2048, "inactive")])
        self.assertEqual(segment["blocks"][1]["requested_size"], 600)

    def test_pending_block(self):
        stream, memory = cuda.Stream(), Memory(1000)
        busy(stream)
        memory.record_stream(stream)
        memory.free()
        segment, = cuda.memory_snapshot()
        self.assertEqual(segment["blocks"][0]["state"], "active_pending_free")
        self.assertEqual((segment["allocated_size"], segment["active_size"]), (0, 1024))
        stream.synchronize()

    def test_stream(self):
        stream = cuda.Stream()
        self.alloc(1000, stream)
        self.assertEqual(cuda.memory_snapshot()[0]["stream"], stream.cuda_stream)

    def test_types(self):
        self.alloc(1000)
        self.alloc(5 * MIB)
        self.assertEqual(
            sorted((segment["segment_type"], segment["total_size"])
                   for segment in cuda.memory_snapshot()),
            [("large", 20 * MIB), ("small", 2 * MIB)])

    def test_order(self):
        for size in (1000, 5 * MIB, 30 * MIB, 17 * MIB):
            self.alloc(size)
        addresses = [segment["address"] for segment in cuda.memory_snapshot()]
        self.assertEqual(addresses, sorted(addresses))
        self.assertEqual(len(addresses), 4)

    @each(**{name: (name, kind) for name, kind in SEGMENT_KEYS.items()})
    def test_key(self, name, kind):
        self.alloc(1000)
        self.assertIs(type(cuda.memory_snapshot()[0][name]), kind)

    @each(**{name: (name, kind) for name, kind in BLOCK_KEYS.items()})
    def test_key_of_blocks(self, name, kind):
        self.alloc(1000)
        for block in cuda.memory_snapshot()[0]["blocks"]:
            self.assertIs(type(block[name]), kind)

    def test_sums(self):
        for size in (1, 1000, 70000, 2 * MIB, 11 * MIB, 25 * MIB):
            self.alloc(size)
        for segment in cuda.memory_snapshot():
            blocks = segment["blocks"]
            self.assertEqual(sum(block["size"] for block in blocks), segment["total_size"])
            address = segment["address"]
            for block in blocks:
                self.assertEqual(block["address"], address)
                address += block["size"]
        self.assertEqual(
            sum(segment["allocated_size"] for segment in cuda.memory_snapshot()),
            cuda.memory_allocated())
        self.assertEqual(
            sum(segment["total_size"] for segment in cuda.memory_snapshot()),
            cuda.memory_reserved())


class Whole(Case):
    def test_keys(self):
        self.assertLessEqual(
            {"segments", "device_traces", "allocator_settings", "external_annotations"},
            set(cuda.memory._snapshot()))

    def test_traces_of_each_device(self):
        self.assertEqual(len(cuda.memory._snapshot()["device_traces"]), cuda.device_count())

    @each(**{name: (name, kind) for name, kind in SETTINGS.items()})
    def test_setting(self, name, kind):
        self.assertIs(type(cuda.memory._snapshot()["allocator_settings"][name]), kind)

    def test_settings(self):
        settings = cuda.memory._snapshot()["allocator_settings"]
        self.assertIs(settings["expandable_segments"], False)
        self.assertEqual(
            settings["roundup_power2_divisions"], {str(1 << power): 0 for power in range(16)})
        self.assertEqual(settings["garbage_collection_threshold"], 0.0)

    def test_dump(self):
        address = self.alloc(1000)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "snapshot.pickle")
            self.assertIsNone(cuda.memory._dump_snapshot(str(path)))
            content = pickle.loads(path.read_bytes())
        self.assertEqual(set(content), set(cuda.memory._snapshot()))
        self.assertEqual(content["segments"][0]["address"], address)


class HistoryCase(Case):
    def record(self, **options):
        """Starts an empty history."""
        cuda.memory._record_memory_history(**{"stacks": "python", "clear_history": True} | options)
        self.addCleanup(cuda.memory._record_memory_history, None)

    def trace(self):
        """The entries of device 0, but those of snapshots."""
        trace = cuda.memory._snapshot()["device_traces"][0]
        return [entry for entry in trace if entry["action"] != "snapshot"]

    def pairs(self):
        """Actions and sizes."""
        return [(entry["action"], entry["size"]) for entry in self.trace()]

    def allocate_here(self):
        return self.alloc(1000)


class History(HistoryCase):
    def test_actions(self):
        self.record()
        self.free(self.alloc(1000))
        cuda.empty_cache()
        self.assertEqual(self.pairs(), [
            ("segment_alloc", 2 * MIB), ("alloc", 1000), ("free_requested", 1000),
            ("free_completed", 1000), ("segment_free", 2 * MIB)])

    def test_addresses(self):
        self.record()
        address = self.alloc(1000)
        self.free(address)
        self.assertEqual({entry["addr"] for entry in self.trace()}, {address})

    def test_reuse(self):
        self.free(self.alloc(1000))
        self.record()
        self.alloc(700)
        self.assertEqual(self.pairs(), [("alloc", 700)])

    def test_pending(self):
        stream = cuda.Stream()
        self.record()
        memory = Memory(1000)
        busy(stream)
        memory.record_stream(stream)
        memory.free()
        self.assertEqual(self.pairs()[-1], ("free_requested", 1000))
        stream.synchronize()
        self.alloc(5 * MIB)
        self.assertEqual(self.pairs()[3:], [
            ("free_completed", 1000), ("segment_alloc", 20 * MIB), ("alloc", 5 * MIB)])

    def test_stream(self):
        stream = cuda.Stream()
        self.record()
        self.alloc(1000, stream)
        self.assertEqual({entry["stream"] for entry in self.trace()}, {stream.cuda_stream})

    def test_out_of_memory(self):
        self.addCleanup(cuda.set_per_process_memory_fraction, 1.0)
        cuda.set_per_process_memory_fraction(0.0)
        self.record()
        self.assertRaises(cuda.OutOfMemoryError, self.alloc, 1000)
        entry = self.trace()[-1]
        self.assertEqual((entry["action"], entry["size"]), ("oom", 1024))
        self.assertGreater(entry["device_free"], 0)
        self.assertNotIn("addr", entry)

    def test_snapshot_is_an_entry(self):
        self.record()
        self.alloc(1000)
        cuda.memory._snapshot()
        entry = cuda.memory._snapshot()["device_traces"][0][2]
        self.assertEqual((entry["action"], entry["size"]), ("snapshot", 1024))

    @each(**{name: (name, kind) for name, kind in ENTRY_KEYS.items()})
    def test_key(self, name, kind):
        self.record()
        self.free(self.alloc(1000))
        for entry in self.trace():
            self.assertIs(type(entry[name]), kind)

    def test_times(self):
        before = time.time_ns() // 1000
        self.record()
        for _ in range(20):
            self.free(self.alloc(1000))
        times = [entry["time_us"] for entry in self.trace()]
        self.assertEqual(times, sorted(times))
        self.assertLess(abs(times[0] - before), 10_000_000)

    def test_off(self):
        """The end clears the history."""
        self.record()
        self.alloc(1000)
        cuda.memory._record_memory_history(None)
        self.alloc(1000)
        self.assertEqual(self.pairs(), [])

    def test_clear(self):
        self.record()
        self.alloc(1000)
        self.record()
        self.assertEqual(self.pairs(), [])

    def test_is_kept_without_clear(self):
        self.record()
        self.alloc(1000)
        self.record(clear_history=False)
        self.alloc(500)
        self.assertEqual([size for action, size in self.pairs() if action == "alloc"], [1000, 500])

    def test_most_entries(self):
        self.alloc(1000)
        self.record(max_entries=3)
        for size in (10, 20, 30):
            self.free(self.alloc(size))
        trace = cuda.memory._snapshot()["device_traces"][0]
        self.assertEqual([(entry["action"], entry["size"]) for entry in trace], [
            ("alloc", 30), ("free_requested", 30), ("free_completed", 30)])

    def test_few_entries(self):
        self.record(max_entries=5)
        for size in (10, 20, 30):
            self.free(self.alloc(size))
        pairs = self.pairs()
        self.assertLessEqual(len(pairs), 5)
        self.assertEqual(pairs[-2:], [("free_requested", 30), ("free_completed", 30)])

    def test_state_has_no_entries(self):
        """Only stacks of live memory are kept: the ring has one entry."""
        self.record(enabled="state", context="state")
        for _ in range(3):
            self.free(self.alloc(1000))
        self.assertLessEqual(len(self.trace()), 1)

    def test_skipped_actions(self):
        self.record(skip_actions=["free_requested", "segment_alloc"])
        self.free(self.alloc(1000))
        self.assertEqual(self.pairs(), [("alloc", 1000), ("free_completed", 1000)])

    def test_metadata(self):
        cuda.memory._set_memory_metadata("phase one")
        self.addCleanup(cuda.memory._set_memory_metadata, "")
        self.assertEqual(cuda.memory._get_memory_metadata(), "phase one")
        self.record()
        self.alloc(1000)
        self.assertEqual(self.trace()[-1]["user_metadata"], "phase one")


class Frames(HistoryCase):
    def names(self, entry):
        return [frame["name"] for frame in entry.get("frames", ())]

    def test_of_entries(self):
        self.record()
        self.allocate_here()
        for entry in self.trace():
            names = self.names(entry)
            here = names.index("allocate_here")
            self.assertEqual(names[here + 1], "test_of_entries")

    def test_places(self):
        self.record()
        self.allocate_here()
        frame = next(
            one for one in self.trace()[-1]["frames"] if one["name"] == "allocate_here")
        code = HistoryCase.allocate_here.__code__
        self.assertEqual(
            (frame["filename"], frame["line"]), (code.co_filename, code.co_firstlineno + 1))

    def test_of_blocks(self):
        self.record()
        self.allocate_here()
        segment, = cuda.memory_snapshot()
        self.assertIn("allocate_here", self.names(segment["blocks"][0]))

    def test_of_frees(self):
        address = self.alloc(1000)
        self.record()
        self.free(address)
        self.assertIn("free", self.names(self.trace()[0]))

    def test_none(self):
        self.record(context=None)
        self.allocate_here()
        self.assertEqual([self.names(entry) for entry in self.trace()], [[], []])

    def test_of_state(self):
        """Stacks of live memory, not of entries."""
        self.record(context="state")
        self.allocate_here()
        segment, = cuda.memory_snapshot()
        self.assertIn("allocate_here", self.names(segment["blocks"][0]))
        self.assertEqual(self.names(self.trace()[-1]), [])

    def test_of_state_mode(self):
        self.record(enabled="state", context="state")
        self.allocate_here()
        segment, = cuda.memory_snapshot()
        self.assertIn("allocate_here", self.names(segment["blocks"][0]))

    def test_of_allocations_alone(self):
        """Then those of frees are their allocations' stacks."""
        self.record(context="alloc")
        self.free(self.allocate_here())
        for entry in self.trace():
            self.assertIn("allocate_here", self.names(entry))


class Errors(Case):
    def tearDown(self):
        cuda.memory._record_memory_history(None)

    @each(
        enabled={"enabled": "some"}, context={"context": "some"}, stacks={"stacks": "some"},
    )
    def test_value(self, options):
        self.assertRaises(
            (ValueError, RuntimeError), lambda: cuda.memory._record_memory_history(**options))

    def test_action(self):
        self.assertRaises(
            (ValueError, RuntimeError),
            lambda: cuda.memory._record_memory_history(skip_actions=["jump"]))


if __name__ == "__main__":
    unittest.main()
