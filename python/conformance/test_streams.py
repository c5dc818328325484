"""Streams: pools, priorities, equality, order of work, contexts."""

import threading
import unittest

from adapters import busy, cuda
from base import Case, each, two_devices

REPR = r"^<[\w.]+Stream device=cuda:0 cuda_stream=0x[0-9a-f]+>$"


class Objects(Case):
    def test_properties(self):
        stream = cuda.Stream()
        self.assertEqual(
            (stream.device_index, stream.device_type, stream.priority), (0, 1, 0))
        self.assertNotEqual(stream.cuda_stream, 0)
        self.assertIs(type(stream.cuda_stream), int)

    @each(none=None, number=0, text="cuda:0", current="cuda", negative=-1)
    def test_device(self, device):
        self.assertEqual(cuda.Stream(device).device_index, 0)
        self.assertEqual(cuda.Stream(device=device).device.index, 0)

    @two_devices
    def test_other_device(self):
        self.assertEqual(cuda.Stream(1).device_index, 1)
        self.assertEqual(cuda.Stream("cuda:1").device.index, 1)
        self.assertEqual(cuda.current_device(), 0)
        cuda.set_device(1)
        self.assertEqual(cuda.Stream().device_index, 1)

    def test_default(self):
        stream = cuda.default_stream()
        self.assertEqual(
            (stream.cuda_stream, stream.stream_id, stream.priority, stream.device_index),
            (0, 0, 0, 0))

    def test_32_of_a_priority(self):
        streams = [cuda.Stream() for _ in range(64)]
        handles = [stream.cuda_stream for stream in streams]
        self.assertEqual(len(set(handles)), 32)
        self.assertEqual(handles[:32], handles[32:])
        self.assertEqual(streams[:32], streams[32:])

    def test_priorities_have_pools_of_their_own(self):
        of = [{cuda.Stream(priority=priority).cuda_stream for _ in range(32)}
              for priority in (0, -1)]
        self.assertEqual([len(handles) for handles in of], [32, 32])
        self.assertFalse(of[0] & of[1])

    def test_id(self):
        number = cuda.Stream().stream_id
        self.assertEqual(number & 0x1F, 1 | 1 << 1)
        self.assertLess(number >> 5, 32)
        self.assertEqual(cuda.Stream(priority=-1).stream_id & 0x1F, 1 | 2 << 1)

    def test_ids_are_in_turn(self):
        first, second = ((cuda.Stream().stream_id >> 5) for _ in range(2))
        self.assertEqual((first + 1) % 32, second)

    def test_priority_range(self):
        least, greatest = cuda.Stream.priority_range()
        self.assertEqual(least, 0)
        self.assertLess(greatest, 0)
        self.assertGreaterEqual(greatest, -3)

    @each(least=(0, 0), one=(-1, -1), two=(-2, -2))
    def test_priority(self, priority, expected):
        self.assertEqual(cuda.Stream(0, priority).priority, expected)

    def test_priority_is_clamped(self):
        self.assertEqual(cuda.Stream(priority=5).priority, 0)
        self.assertEqual(cuda.Stream(priority=-100).priority, cuda.Stream.priority_range()[1])

    def test_repr(self):
        self.assertRegex(repr(cuda.Stream()), REPR)
        self.assertRegex(repr(cuda.default_stream()), REPR)

    def test_protocol(self):
        stream = cuda.Stream()
        self.assertEqual(stream.__cuda_stream__(), (0, stream.cuda_stream))

    def test_from_id(self):
        stream = cuda.Stream()
        again = cuda.Stream(stream_id=stream.stream_id, device_index=0, device_type=1)
        self.assertEqual(again.cuda_stream, stream.cuda_stream)


class Equality(Case):
    def test_same(self):
        self.assertEqual(cuda.default_stream(), cuda.default_stream(0))
        self.assertEqual(cuda.current_stream(), cuda.default_stream())
        self.assertEqual(hash(cuda.current_stream()), hash(cuda.default_stream()))

    def test_other(self):
        first, second = cuda.Stream(), cuda.Stream()
        self.assertNotEqual(first, second)
        self.assertNotEqual(first, cuda.default_stream())
        self.assertFalse(first == second)

    @each(number=0, none=None, text="cuda:0", device=cuda.device(0))
    def test_other_type(self, other):
        self.assertIs(cuda.default_stream() == other, False)

    @two_devices
    def test_of_devices(self):
        self.assertNotEqual(cuda.default_stream(0), cuda.default_stream(1))

    def test_in_sets(self):
        stream = cuda.Stream()
        with cuda.stream(stream):
            self.assertIn(cuda.current_stream(), {stream})
            self.assertEqual({stream: 1}[cuda.current_stream()], 1)

    def test_external_with_itself(self):
        handle = cuda.Stream().cuda_stream
        first, second = cuda.ExternalStream(handle), cuda.ExternalStream(handle)
        self.assertEqual(first, second)
        self.assertEqual(hash(first), hash(second))

    def test_external_with_the_stream(self):
        """They have other ids."""
        stream = cuda.Stream()
        self.assertNotEqual(cuda.ExternalStream(stream.cuda_stream), stream)


class Work(Case):
    def setUp(self):
        super().setUp()
        self.stream, self.other = cuda.Stream(), cuda.Stream()

    def tearDown(self):
        cuda.synchronize()

    def test_query(self):
        self.assertIs(self.stream.query(), True)
        busy(self.stream)
        self.assertIs(self.stream.query(), False)
        self.assertIsNone(self.stream.synchronize())
        self.assertIs(self.stream.query(), True)

    def test_synchronize_waits_for_its_stream_alone(self):
        busy(self.stream)
        self.other.synchronize()
        self.assertIs(self.stream.query(), False)

    def test_device_synchronize(self):
        busy(self.stream)
        cuda.synchronize()
        self.assertIs(self.stream.query(), True)

    def test_wait_stream(self):
        busy(self.stream)
        self.assertIs(self.other.query(), True)
        self.assertIsNone(self.other.wait_stream(self.stream))
        self.assertIs(self.other.query(), False)
        self.other.synchronize()
        self.assertIs(self.stream.query(), True)

    def test_wait_stream_is_for_its_present_work(self):
        self.other.wait_stream(self.stream)
        busy(self.stream)
        self.other.synchronize()
        self.assertIs(self.stream.query(), False)

    def test_wait_event(self):
        busy(self.stream)
        event = self.stream.record_event()
        self.assertIsNone(self.other.wait_event(event))
        self.assertIs(self.other.query(), False)
        self.other.synchronize()
        self.assertIs(event.query(), True)

    def test_wait_event_before_its_record(self):
        event = cuda.Event()
        self.other.wait_event(event)
        busy(self.stream)
        event.record(self.stream)
        self.assertIs(self.other.query(), True)

    def test_record_event(self):
        event = self.stream.record_event()
        self.assertIsInstance(event, cuda.Event)
        self.assertEqual(event.device.index, 0)
        given = cuda.Event()
        self.assertIs(self.stream.record_event(given), given)
        self.assertNotEqual(given.cuda_event, 0)

    def test_default_stream_query(self):
        busy(cuda.default_stream())
        self.assertIs(cuda.default_stream().query(), False)
        cuda.default_stream().synchronize()
        self.assertIs(cuda.default_stream().query(), True)


class Current(Case):
    def test_default(self):
        self.assertEqual(cuda.current_stream().cuda_stream, 0)

    @each(none=None, number=0, text="cuda:0", current="cuda")
    def test_of(self, device):
        self.assertEqual(cuda.current_stream(device), cuda.default_stream(device))

    def test_set(self):
        stream = cuda.Stream()
        self.assertIsNone(cuda.set_stream(stream))
        self.assertEqual(cuda.current_stream(), stream)
        self.assertEqual(cuda.default_stream().cuda_stream, 0)

    def test_set_none(self):
        stream = cuda.Stream()
        cuda.set_stream(stream)
        cuda.set_stream(None)
        self.assertEqual(cuda.current_stream(), stream)

    @two_devices
    def test_set_of_another_device(self):
        stream = cuda.Stream(1)
        cuda.set_stream(stream)
        self.assertEqual(cuda.current_device(), 1)
        self.assertEqual(cuda.current_stream(), stream)
        self.assertEqual(cuda.current_stream(0), cuda.default_stream(0))
        cuda.set_stream(cuda.default_stream(1))

    @two_devices
    def test_each_device_keeps_its_own(self):
        stream = cuda.Stream(1)
        cuda.set_stream(stream)
        cuda.set_device(0)
        self.assertEqual(cuda.current_stream(1), stream)
        cuda.set_stream(cuda.default_stream(1))

    def test_of_each_thread(self):
        cuda.set_stream(cuda.Stream())
        seen = []
        thread = threading.Thread(target=lambda: seen.append(cuda.current_stream().cuda_stream))
        thread.start()
        thread.join()
        self.assertEqual(seen, [0])


class Contexts(Case):
    def test_context(self):
        stream = cuda.Stream()
        with cuda.stream(stream):
            self.assertEqual(cuda.current_stream(), stream)
        self.assertEqual(cuda.current_stream(), cuda.default_stream())

    def test_class(self):
        stream = cuda.Stream()
        context = cuda.stream(stream)
        self.assertIsInstance(context, cuda.StreamContext)
        self.assertIs(context.stream, stream)
        with cuda.StreamContext(stream):
            self.assertEqual(cuda.current_stream(), stream)

    def test_none(self):
        with cuda.stream(None) as entered:
            self.assertIsNone(entered)
            self.assertEqual(cuda.current_stream(), cuda.default_stream())

    def test_nested(self):
        first, second = cuda.Stream(), cuda.Stream()
        with cuda.stream(first):
            with cuda.stream(second), cuda.stream(None):
                self.assertEqual(cuda.current_stream(), second)
            self.assertEqual(cuda.current_stream(), first)
            with cuda.stream(first):
                self.assertEqual(cuda.current_stream(), first)
            self.assertEqual(cuda.current_stream(), first)
        self.assertEqual(cuda.current_stream(), cuda.default_stream())

    def test_exception(self):
        with self.assertRaises(KeyError), cuda.stream(cuda.Stream()):
            raise KeyError
        self.assertEqual(cuda.current_stream(), cuda.default_stream())

    def test_again(self):
        context = cuda.stream(cuda.Stream())
        for _ in range(2):
            with context:
                self.assertEqual(cuda.current_stream(), context.stream)
            self.assertEqual(cuda.current_stream(), cuda.default_stream())

    def test_stream_itself(self):
        stream = cuda.Stream()
        with stream as entered:
            self.assertIs(entered, stream)
            self.assertEqual(cuda.current_stream(), stream)
        self.assertEqual(cuda.current_stream(), cuda.default_stream())

    def test_streams_themselves_nested(self):
        first, second = cuda.Stream(), cuda.Stream()
        with first:
            with second:
                self.assertEqual(cuda.current_stream(), second)
            self.assertEqual(cuda.current_stream(), first)
        self.assertEqual(cuda.current_stream(), cuda.default_stream())

    @two_devices
    def test_other_device(self):
        stream, here = cuda.Stream(1), cuda.Stream(0)
        with cuda.stream(here):
            with cuda.stream(stream):
                self.assertEqual(cuda.current_device(), 1)
                self.assertEqual(cuda.current_stream(), stream)
                self.assertEqual(cuda.current_stream(0), here)
            self.assertEqual(cuda.current_device(), 0)
            self.assertEqual(cuda.current_stream(1), cuda.default_stream(1))
            self.assertEqual(cuda.current_stream(), here)

    @two_devices
    def test_other_device_of_the_stream_itself(self):
        with cuda.Stream(1):
            self.assertEqual(cuda.current_device(), 1)
        self.assertEqual(cuda.current_device(), 0)
        self.assertEqual(cuda.current_stream(1), cuda.default_stream(1))


class External(Case):
    def setUp(self):
        super().setUp()
        self.stream = cuda.Stream()
        self.external = cuda.ExternalStream(self.stream.cuda_stream)

    def tearDown(self):
        cuda.synchronize()
        cuda.set_stream(cuda.default_stream())

    def test_properties(self):
        self.assertEqual(self.external.cuda_stream, self.stream.cuda_stream)
        self.assertEqual(self.external.device_index, 0)
        self.assertIsInstance(self.external, cuda.Stream)

    def test_id_is_the_handle(self):
        self.assertEqual(self.external.stream_id, self.stream.cuda_stream)

    def test_priority(self):
        urgent = cuda.Stream(priority=-1)
        self.assertEqual(cuda.ExternalStream(urgent.cuda_stream).priority, -1)

    def test_work(self):
        busy(self.stream)
        self.assertIs(self.external.query(), False)
        self.external.synchronize()
        self.assertIs(self.stream.query(), True)

    def test_is_current(self):
        with cuda.stream(self.external):
            self.assertEqual(cuda.current_stream().cuda_stream, self.stream.cuda_stream)
        cuda.set_stream(self.external)
        self.assertEqual(cuda.current_stream(), self.external)

    @each(none=None, number=0, text="cuda:0")
    def test_from_external(self, device):
        stream = cuda.get_stream_from_external(self.stream.cuda_stream, device)
        self.assertIsInstance(stream, cuda.Stream)
        self.assertEqual(stream, self.external)


class Errors(Case):
    def test_priority_type(self):
        self.assertRaises(TypeError, cuda.Stream, 0, "high")

    def test_cpu(self):
        self.assertRaises(ValueError, cuda.Stream, "cpu")

    def test_external_handle_type(self):
        self.assertRaises(TypeError, cuda.ExternalStream, "0")


if __name__ == "__main__":
    unittest.main()
