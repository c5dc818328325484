"""Events: flags, order, times, handles for other processes."""

import unittest

from adapters import busy, cuda
from base import Case, each, two_devices

FLAGS = {
    "none": {}, "timing": {"enable_timing": True}, "blocking": {"blocking": True},
    "interprocess": {"interprocess": True}, "external": {"external": True},
    "timing_and_blocking": {"enable_timing": True, "blocking": True},
    "blocking_and_interprocess": {"blocking": True, "interprocess": True},
}


class BeforeTheRecord(Case):
    """The event is created on a device when it is first recorded."""

    def setUp(self):
        super().setUp()
        self.event = cuda.Event()

    def test_query(self):
        self.assertIs(self.event.query(), True)

    def test_synchronize(self):
        self.assertIsNone(self.event.synchronize())

    def test_wait(self):
        self.assertIsNone(self.event.wait())
        self.assertIsNone(self.event.wait(cuda.Stream()))

    def test_device(self):
        self.assertIsNone(self.event.device)

    def test_handle(self):
        self.assertEqual((self.event.cuda_event, self.event.event_id), (0, 0))

    def test_repr(self):
        self.assertRegex(repr(self.event), r"^<[\w.]+Event uninitialized>$")


class Recorded(Case):
    def tearDown(self):
        cuda.synchronize()

    @each(**{name: (flags,) for name, flags in FLAGS.items()})
    def test_flags(self, flags):
        event, stream = cuda.Event(**flags), cuda.Stream()
        busy(stream)
        self.assertIsNone(event.record(stream))
        self.assertIs(event.query(), False)
        self.assertIsNone(event.synchronize())
        self.assertIs(event.query(), True)
        self.assertIs(stream.query(), True)

    def test_arguments_by_position(self):
        start, end = cuda.Event(True, True), cuda.Event(True, False, False)
        start.record()
        end.record()
        end.synchronize()
        self.assertGreaterEqual(start.elapsed_time(end), 0)
        self.assertRaises(ValueError, cuda.Event(False, True).elapsed_time, end)

    def test_device(self):
        event = cuda.Event()
        event.record()
        self.assertEqual(str(event.device), "cuda:0")

    def test_handle(self):
        event = cuda.Event()
        event.record()
        self.assertNotEqual(event.cuda_event, 0)
        self.assertEqual(event.cuda_event, event.event_id)
        self.assertRegex(repr(event), r"^<[\w.]+Event 0x[0-9a-f]+>$")

    def test_default_is_the_current_stream(self):
        stream, event = cuda.Stream(), cuda.Event()
        busy(stream)
        event.record()
        event.synchronize()
        self.assertIs(stream.query(), False)
        with cuda.stream(stream):
            event.record()
        self.assertIs(event.query(), False)

    def test_again(self):
        stream, event = cuda.Stream(), cuda.Event()
        event.record(stream)
        handle = event.cuda_event
        event.synchronize()
        busy(stream)
        event.record(stream)
        self.assertIs(event.query(), False)
        self.assertEqual(event.cuda_event, handle)

    def test_wait_of_the_current_stream(self):
        stream, waiting = cuda.Stream(), cuda.Stream()
        busy(stream)
        event = stream.record_event()
        with cuda.stream(waiting):
            event.wait()
        self.assertIs(waiting.query(), False)

    def test_wait_of_a_stream(self):
        stream, waiting, other = (cuda.Stream() for _ in range(3))
        busy(stream)
        event = stream.record_event()
        event.wait(waiting)
        self.assertEqual((waiting.query(), other.query()), (False, True))
        waiting.synchronize()
        self.assertIs(event.query(), True)

    @two_devices
    def test_on_another_device(self):
        event, stream = cuda.Event(), cuda.Stream(1)
        event.record(stream)
        self.assertEqual(event.device.index, 1)
        self.assertEqual(cuda.current_device(), 0)
        event.wait(cuda.Stream(0))
        event.synchronize()

    @two_devices
    def test_stays_on_its_device(self):
        event = cuda.Event()
        event.record(cuda.Stream(0))
        with self.assertRaisesRegex(
                RuntimeError, "Event device 0 does not match recording stream's device 1"):
            event.record(cuda.Stream(1))


class Times(Case):
    def events(self):
        return cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)

    def test_of_work(self):
        start, end = self.events()
        stream = cuda.Stream()
        start.record(stream)
        busy(stream, 0.1)
        end.record(stream)
        end.synchronize()
        milliseconds = start.elapsed_time(end)
        self.assertIs(type(milliseconds), float)
        self.assertGreater(milliseconds, 50)
        self.assertLess(milliseconds, 5000)

    def test_backwards(self):
        start, end = self.events()
        stream = cuda.Stream()
        start.record(stream)
        busy(stream, 0.1)
        end.record(stream)
        end.synchronize()
        self.assertAlmostEqual(end.elapsed_time(start), -start.elapsed_time(end), places=2)

    def test_of_itself(self):
        start, _ = self.events()
        start.record()
        start.synchronize()
        self.assertEqual(start.elapsed_time(start), 0.0)

    @each(neither=(False, False), end=(True, False), start=(False, True))
    def test_without_timing(self, *timing):
        start, end = (cuda.Event(enable_timing=enabled) for enabled in timing)
        start.record()
        end.record()
        cuda.synchronize()
        with self.assertRaisesRegex(ValueError, "enable_timing=True"):
            start.elapsed_time(end)

    @each(neither=(False, False), end=(True, False), start=(False, True))
    def test_before_the_record(self, *recorded):
        events = self.events()
        for event, record in zip(events, recorded):
            if record:
                event.record()
        cuda.synchronize()
        with self.assertRaisesRegex(ValueError, "must be recorded before"):
            events[0].elapsed_time(events[1])

    def test_before_the_end(self):
        start, end = self.events()
        stream = cuda.Stream()
        start.record(stream)
        busy(stream)
        end.record(stream)
        with self.assertRaisesRegex(RuntimeError, "must be completed before"):
            start.elapsed_time(end)
        end.synchronize()
        self.assertGreater(start.elapsed_time(end), 0)


class Handles(Case):
    """Handles for other processes."""

    def test_of_a_recorded_event(self):
        event = cuda.Event(interprocess=True)
        event.record()
        handle = event.ipc_handle()
        self.assertEqual((type(handle), len(handle)), (bytes, 64))
        self.assertEqual(event.ipc_handle(), handle)

    def test_creates_the_event(self):
        event = cuda.Event(interprocess=True)
        self.assertEqual(len(event.ipc_handle()), 64)
        self.assertEqual(event.device.index, 0)
        self.assertNotEqual(event.cuda_event, 0)

    def test_of_another_event(self):
        event = cuda.Event()
        event.record()
        self.assertRaises(RuntimeError, event.ipc_handle)

    @each(short=bytes(63), long=bytes(65), none=b"")
    def test_of_wrong_size(self, handle):
        self.assertRaises(RuntimeError, cuda.Event.from_ipc_handle, 0, handle)

    def test_of_wrong_type(self):
        self.assertRaises(TypeError, cuda.Event.from_ipc_handle, 0, 5)


if __name__ == "__main__":
    unittest.main()
