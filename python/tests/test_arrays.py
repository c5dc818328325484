"""Arrays: layout, copies, DLPack and __cuda_array_interface__, and when memory is freed."""

import array
import copy
import ctypes
import gc
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import threading
import unittest
from unittest import mock

import tcuda
from support import COUNT, OTHER, run_program, two_devices
from tcuda import _core

CAPSULE = ctypes.pythonapi.PyCapsule_GetPointer
CAPSULE.restype, CAPSULE.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
RENAME = ctypes.pythonapi.PyCapsule_SetName
RENAME.argtypes = [ctypes.py_object, ctypes.c_char_p]
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
RUNS_LATE = _core.backend_name() != "sim" or "schedule=" in os.environ.get("TCUDA_SIM", "")
FRESH = {False: b"dltensor", True: b"dltensor_versioned"}
USED = {False: b"used_dltensor", True: b"used_dltensor_versioned"}


class DLTensor(ctypes.Structure):
    """The layout in dlpack.h."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]


class Unversioned(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", DELETER), ("flags", ctypes.c_uint64), ("tensor", DLTensor),
    ]


class Consumer:
    """What another library makes of a capsule; `end` is the end of its array."""

    def __init__(self, capsule, is_versioned):
        self.address = CAPSULE(capsule, FRESH[is_versioned])
        kind = Versioned if is_versioned else Unversioned
        self.managed = kind.from_address(self.address)
        self.tensor = self.managed.tensor
        RENAME(capsule, USED[is_versioned])

    def end(self):
        self.managed.deleter(self.address)


class Producer:
    """An array of another library, in memory of the host, with capsules of its own."""

    def __init__(self, content, is_versioned, flags=0):
        self.memory = (ctypes.c_uint8 * len(content))(*content)
        self.sizes = (ctypes.c_int64 * 1)(len(content))
        self.ended, self.is_versioned = 0, is_versioned
        self.deleter = DELETER(self.count)
        tensor = DLTensor(ctypes.addressof(self.memory), 1, 0, 1, 1, 8, 1, self.sizes, None, 0)
        if is_versioned:
            self.managed = Versioned(1, 0, None, self.deleter, flags, tensor)
        else:
            self.managed = Unversioned(tensor, None, self.deleter)

    def count(self, address):
        assert address == ctypes.addressof(self.managed)
        self.ended += 1

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **arguments):
        if arguments and not self.is_versioned:
            raise TypeError("unexpected keyword argument 'max_version'")
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), FRESH[self.is_versioned], None)


class Interface:
    """An object with __cuda_array_interface__, as Numba's arrays."""

    def __init__(self, **interface):
        self.__cuda_array_interface__ = interface


class BusyStream:
    """A stream that does not get on before `end`."""

    def __init__(self, device=None):
        self.stream, self._gate = tcuda.Stream(device), threading.Event()
        self.stream.add_callback(lambda: self._gate.wait(20))

    def end(self):
        self._gate.set()
        self.stream.synchronize()


class ForeignStream:
    """A stream of another library, of device 0."""

    def __init__(self):
        handle = ctypes.c_void_p()
        _core.init()
        _core.device_synchronize(0)  # makes its context current
        create = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)(
            _core.backend_function("cuStreamCreateWithPriority"))
        assert create(ctypes.addressof(handle), 1, 0) == 0
        self.handle = handle.value

    def end(self):
        destroy = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(
            _core.backend_function("cuStreamDestroy"))
        assert destroy(self.handle) == 0


class ArrayTest(unittest.TestCase):
    def setUp(self):
        tcuda.set_device(0)
        tcuda.synchronize()
        gc.collect()
        self.before = tcuda.memory_allocated(0)

    def allocated(self):
        return tcuda.memory_allocated(0) - self.before

    def numbers(self, count=6):
        result = tcuda.empty(count, "float32")
        result.copy_from(array.array("f", range(count)))
        return result


class Layout(ArrayTest):
    def test_properties(self):
        made = tcuda.empty((2, 3), "float64", OTHER)
        self.assertEqual((made.shape, made.strides, made.nbytes), ((2, 3), (3, 1), 48))
        self.assertEqual((made.dtype, made.device), ("float64", tcuda.device(OTHER)))
        self.assertEqual(_core.device_of(made.address), OTHER)
        self.assertEqual(
            repr(made), f"<tcuda.Array shape=(2, 3) dtype=float64 device=cuda:{OTHER}>")

    def test_strides(self):
        made = tcuda.empty((2, 3), "int8", strides=(1, 1000))
        self.assertEqual((made.strides, made.nbytes), ((1, 1000), 6))
        self.assertEqual(self.allocated(), 2048)  # 1 + 2 * 1000 + 1 bytes, rounded up

    def test_without_dimensions_and_without_elements(self):
        made = tcuda.empty(())
        self.assertEqual((made.shape, made.nbytes), ((), 4))
        empty = tcuda.empty((0, 5))
        self.assertEqual((empty.shape, empty.strides, empty.nbytes), ((0, 5), (5, 1), 0))
        self.assertEqual(empty.tobytes(), b"")
        self.assertEqual(self.allocated(), 512)

    def test_shapes_of_other_types(self):
        for shape in (3, [3], range(3, 4), array.array("l", [3])):
            self.assertEqual(tcuda.empty(shape).shape, (3,))
        number = mock.Mock(spec=["__index__"], __index__=lambda self: 3)  # an integer of NumPy
        self.assertEqual(tcuda.empty(number).shape, (3,))
        self.assertRaises(TypeError, tcuda.empty, 3.0)

    def test_dtypes_of_other_libraries(self):
        class Numpy:
            name = "int16"

        class Torch:
            def __str__(self):
                return "torch.bfloat16"

        float32 = type("float32", (), {})
        for dtype, expected in (
            (Numpy(), "int16"), (Torch(), "bfloat16"), (float32, "float32"), ("bool", "bool"),
        ):
            self.assertEqual(tcuda.empty(1, dtype).dtype, expected)

    def test_refusals(self):
        for error, call in (
            (TypeError, lambda: tcuda.Array()),
            (TypeError, lambda: tcuda.empty(1, "float31")),
            (TypeError, lambda: tcuda.empty((1.5,))),
            (ValueError, lambda: tcuda.empty(-1)),
            (ValueError, lambda: tcuda.empty(2, strides=(-1,))),
            (ValueError, lambda: tcuda.empty(2, strides=(1, 1))),
            (ValueError, lambda: tcuda.empty((1 << 32, 1 << 32))),
            (ValueError, lambda: tcuda.empty((1 << 61,), "float64")),
            (ValueError, lambda: tcuda.empty((4,), "int8", strides=((1 << 63) - 1,))),
            (ValueError, lambda: tcuda.empty((1,) * 65)),
            (OverflowError, lambda: tcuda.empty(1 << 64)),
            (tcuda.OutOfMemoryError, lambda: tcuda.empty(1 << 50)),
            (tcuda.CudaError, lambda: tcuda.empty(1, device=7)),
        ):
            with self.assertRaises(error):
                call()
        self.assertEqual(self.allocated(), 0)


class Copies(ArrayTest):
    def test_from_and_to_buffers(self):
        content = struct.pack("<4h", 1, -2, 3, -4)
        made = tcuda.empty((2, 2), "int16")
        for source in (content, bytearray(content), memoryview(content),
                       array.array("h", [1, -2, 3, -4]), memoryview(bytes(8) + content)[8:]):
            made.copy_from(bytes(8))
            made.copy_from(source)
            self.assertEqual(made.tobytes(), content)
        numbers = array.array("h", [0] * 4)
        made.copy_to(numbers)
        self.assertEqual(list(numbers), [1, -2, 3, -4])

    def test_strides(self):
        columns = tcuda.empty((2, 3), "uint8", strides=(1, 2))
        columns.copy_from(b"abcdef")
        self.assertEqual(columns.tobytes(), b"abcdef")
        memory = bytearray(6)
        flat = tcuda.asarray(Interface(
            shape=(6,), typestr="|u1", data=(columns.address, False), version=3))
        flat.copy_to(memory)
        self.assertEqual(memory, b"adbecf")

    def test_between_arrays(self):
        source, destination = self.numbers(), tcuda.empty(6, "float32", OTHER)
        destination.copy_from(source)
        self.assertEqual(destination.tobytes(), struct.pack("<6f", *range(6)))
        other = tcuda.empty(6, "float32")
        destination.copy_to(other)
        self.assertEqual(other.tobytes(), struct.pack("<6f", *range(6)))

    def test_refusals(self):
        made = tcuda.empty(4, "int8")
        for error, call in (
            (ValueError, lambda: made.copy_from(bytes(3))),
            (ValueError, lambda: made.copy_to(bytearray(5))),
            (BufferError, lambda: made.copy_to(bytes(4))),
            (BufferError, lambda: made.copy_from(memoryview(bytes(8))[::2])),
            (TypeError, lambda: made.copy_from(4)),
            (ValueError, lambda: made.copy_from(tcuda.empty(4, "uint8"))),
            (ValueError, lambda: made.copy_from(tcuda.empty((2, 2), "int8"))),
        ):
            with self.assertRaises(error):
                call()

    def test_numbers_of_another_kind(self):
        numbers = array.array("i", [1, 2])
        for dtype in ("float32", "bool", "complex64"):
            made = tcuda.empty(64 // tcuda.arrays.bits_of(dtype), dtype)
            for call in (lambda: made.copy_from(numbers), lambda: made.copy_to(numbers)):
                with self.assertRaisesRegex(TypeError, f"format 'i', the array of {dtype}"):
                    call()
            made.copy_from(memoryview(numbers).cast("B"))
            self.assertEqual(made.tobytes(), numbers.tobytes())
        tcuda.empty(2, "uint32").copy_from(numbers)  # the same bits
        tcuda.empty(4, "bfloat16").copy_from(array.array("H", range(4)))
        for buffer in (array.array("q", [1]), array.array("f", [1, 2]),
                       (ctypes.c_int.__ctype_be__ * 2)(1, 2)):
            with self.assertRaises(TypeError):
                tcuda.empty(2, "int32").copy_from(buffer)
        tcuda.empty(2, "int32").copy_from((ctypes.c_int * 2)(1, 2))


    def test_for_numpy(self):
        with self.assertRaisesRegex(TypeError, "NumPy has no arrays on cuda:0"):
            self.numbers().__array__()
        try:
            import numpy
        except ImportError:
            self.skipTest("there is no NumPy")
        own = numpy.arange(6, dtype="float32")
        host = tcuda.asarray(own)
        self.assertEqual(numpy.asarray(host).ctypes.data, own.ctypes.data)
        self.assertEqual(numpy.array(host, "int8").tolist(), list(range(6)))
        self.assertNotEqual(numpy.array(host).ctypes.data, own.ctypes.data)
        self.assertRaises(TypeError, numpy.asarray, self.numbers())


class Ends(ArrayTest):
    def test_no_copies_of_the_handle(self):
        objects = [tcuda.empty(1), tcuda.Stream(), tcuda.Event(), tcuda.CUDAGraph(),
                   tcuda.MemPool(), tcuda.Generator(), tcuda.memory.OutOfMemoryObserver(print)]
        self.addCleanup(objects[-1].remove)
        for each in objects:
            for function in (copy.copy, copy.deepcopy, pickle.dumps):
                with self.assertRaisesRegex(TypeError, f"copy or pickle a {type(each).__name__}"):
                    function(each)

    def test_in_a_cycle(self):
        errors = []

        class Node:
            def __del__(self):
                try:
                    errors.append(self.array.shape)
                except AttributeError as error:
                    errors.append(type(error))

        made = tcuda.empty(1)  # older than the node: it is finalized first
        node = Node()
        node.array, node.node = made, node
        del made, node
        gc.collect()
        self.assertEqual(errors, [AttributeError])
        self.assertEqual(self.allocated(), 0)


class Export(ArrayTest):
    def test_fields(self):
        made = tcuda.empty((2, 3), "bfloat16", OTHER, strides=(1, 2))
        for is_versioned, version in ((False, None), (False, (0, 8)), (True, (1, 0)),
                                      (True, (2, 0))):
            consumer = Consumer(made.__dlpack__(stream=-1, max_version=version), is_versioned)
            tensor = consumer.tensor
            self.assertEqual(tensor.data, made.address)
            self.assertEqual((tensor.device_type, tensor.device_id), (2, OTHER))
            self.assertEqual((tensor.code, tensor.bits, tensor.lanes), (4, 16, 1))
            self.assertEqual(
                (tensor.shape[:2], tensor.strides[:2], tensor.byte_offset), ([2, 3], [1, 2], 0))
            if is_versioned:
                self.assertEqual((consumer.managed.major, consumer.managed.flags), (1, 0))
            consumer.end()
        self.assertEqual(made.__dlpack_device__(), (2, OTHER))

    def test_memory_lives_as_long_as_array_or_capsule(self):
        for is_versioned in (False, True):
            made = self.numbers()
            version = (1, 0) if is_versioned else None
            first = Consumer(made.__dlpack__(stream=-1, max_version=version), is_versioned)
            second = Consumer(made.__dlpack__(stream=-1, max_version=version), is_versioned)
            unused = made.__dlpack__(stream=-1, max_version=version)
            first.end()
            self.assertEqual(made.tobytes(), struct.pack("<6f", *range(6)))
            del made
            self.assertEqual(self.allocated(), 512)
            del unused
            self.assertEqual(self.allocated(), 512)
            thread = threading.Thread(target=second.end)
            thread.start()
            thread.join()
            self.assertEqual(self.allocated(), 0)

    def test_consumer_that_has_the_lock_of_the_interpreter(self):
        # Another thread waits for it in a callback, with locks of tcuda.
        program = run_program(f"""
            import ctypes, sys, threading, tcuda
            sys.path.insert(0, {os.path.dirname(__file__)!r})
            from test_arrays import Consumer

            def allocate():
                while not is_over.is_set():
                    tcuda.caching_allocator_delete(tcuda.caching_allocator_alloc(512))

            is_over = threading.Event()
            observer = tcuda.memory.MemoryEventObserver(lambda event: None)
            thread = threading.Thread(target=allocate)
            thread.start()
            for turn in range(400):
                consumer = Consumer(tcuda.empty(4).__dlpack__(), False)
                deleter = ctypes.cast(consumer.managed.deleter, ctypes.c_void_p).value
                ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(deleter)(consumer.address)
            is_over.set()
            thread.join()
            print(tcuda.memory_allocated())
            """)
        self.assertEqual((program.stdout, program.stderr), ("0\n", ""))

    def test_per_thread_stream(self):
        Consumer(tcuda.empty(1).__dlpack__(stream=2), False).end()

    def test_copy(self):
        made = self.numbers()
        consumer = Consumer(made.__dlpack__(stream=1, max_version=(1, 0), copy=True), True)
        self.assertEqual(consumer.managed.flags, 2)
        self.assertNotEqual(consumer.tensor.data, made.address)
        made.copy_from(bytes(24))
        memory = (ctypes.c_float * 6)()
        _core.copy(ctypes.addressof(memory), consumer.tensor.data, 24, None)
        tcuda.synchronize()
        self.assertEqual(list(memory), list(range(6)))
        consumer.end()
        self.assertEqual(self.allocated(), 512)

    def test_refusals(self):
        made = tcuda.empty(1)
        for call in (
            lambda: made.__dlpack__(stream=0), lambda: made.__dlpack__(dl_device=(1, 0)),
            lambda: made.__dlpack__(dl_device=(2, 1)),
        ):
            self.assertRaises(BufferError, call)
        with self.assertRaises(TypeError):
            made.__dlpack__(stream="default")
        Consumer(made.__dlpack__(dl_device=(2, 0)), False).end()

    def test_of_read_only_memory(self):
        producer = Producer(b"abc", True, flags=1)
        made = tcuda.from_dlpack(producer)
        self.assertRaises(BufferError, made.__dlpack__)
        consumer = Consumer(made.__dlpack__(max_version=(1, 0)), True)
        self.assertEqual(consumer.managed.flags, 1)
        consumer.end()
        with self.assertRaises(tcuda.InvalidArgumentError):
            made.copy_from(b"def")

    def test_interface(self):
        made = tcuda.empty((2, 3), "complex64", strides=(1, 2))
        stream = tcuda.Stream()
        expected = {
            "version": 3, "shape": (2, 3), "typestr": "<c8", "strides": (8, 16),
            "data": (made.address, False), "stream": 1,
        }
        self.assertEqual(made.__cuda_array_interface__, expected)
        with tcuda.stream(stream):
            self.assertEqual(
                made.__cuda_array_interface__, {**expected, "stream": stream.cuda_stream})
        for typestr, dtype in (("|b1", "bool"), ("|u1", "uint8"), ("<i8", "int64"),
                               ("<f2", "float16")):
            self.assertEqual(tcuda.empty(1, dtype).__cuda_array_interface__["typestr"], typestr)
        self.assertFalse(hasattr(tcuda.empty(1, "bfloat16"), "__cuda_array_interface__"))
        self.assertFalse(hasattr(tcuda.from_dlpack(Producer(b"a", True)),
                                 "__cuda_array_interface__"))


class Import(ArrayTest):
    def test_capsules_of_both_versions(self):
        for is_versioned in (False, True):
            producer = Producer(b"abcd", is_versioned)
            made = tcuda.from_dlpack(producer)
            self.assertEqual((made.shape, made.dtype, made.device), ((4,), "uint8", None))
            self.assertEqual(made.address, ctypes.addressof(producer.memory))
            self.assertEqual(made.tobytes(), b"abcd")
            made.copy_from(b"efgh")
            self.assertEqual(bytes(producer.memory), b"efgh")
            capsule = made.__dlpack__()
            del made
            self.assertEqual(producer.ended, 0)
            del capsule
            self.assertEqual(producer.ended, 1)

    def test_byte_offset(self):
        producer = Producer(b"abcd", True)
        producer.managed.tensor.byte_offset, producer.sizes[0] = 1, 3
        made = tcuda.from_dlpack(producer)
        self.assertEqual(made.address, ctypes.addressof(producer.memory) + 1)
        self.assertEqual(made.tobytes(), b"bcd")
        consumer = Consumer(made.__dlpack__(), False)
        self.assertEqual((consumer.tensor.data, consumer.tensor.byte_offset), (made.address, 0))
        consumer.end()

    def test_own_arrays(self):
        made = self.numbers()
        again = tcuda.from_dlpack(made)
        self.assertEqual((again.address, again.shape), (made.address, made.shape))
        self.assertIs(tcuda.asarray(made), made)
        del made
        self.assertEqual(again.tobytes(), struct.pack("<6f", *range(6)))
        del again
        self.assertEqual(self.allocated(), 0)

    def test_current_stream_waits_for_the_producer(self):
        class Exporter:
            def __dlpack_device__(self):
                return made.__dlpack_device__()

            def __dlpack__(self, **arguments):
                given.append(arguments)
                return made.__dlpack__(**arguments)

        made, given, stream = self.numbers(), [], tcuda.Stream()
        tcuda.from_dlpack(Exporter())
        with tcuda.stream(stream):
            tcuda.from_dlpack(Exporter())
        self.assertEqual([arguments["stream"] for arguments in given], [1, stream.cuda_stream])
        self.assertEqual([arguments["max_version"] for arguments in given], [(1, 1)] * 2)

    def test_a_capsule_is_taken_once(self):
        class Exporter:
            capsule = tcuda.empty(1).__dlpack__()

            def __dlpack_device__(self):
                return 2, 0

            def __dlpack__(self, **arguments):
                return self.capsule

        tcuda.from_dlpack(Exporter())
        self.assertRaises(ValueError, tcuda.from_dlpack, Exporter())

    def test_one_of_two_threads_takes_a_capsule(self):
        whole = tcuda.empty(1)
        for _ in range(300):
            capsule, taken, barrier = whole.__dlpack__(), [], threading.Barrier(2)

            def take():
                barrier.wait()  # noqa: B023
                try:
                    taken.append(_core.tensor_from_capsule(capsule))  # noqa: B023
                except ValueError:
                    pass

            threads = [threading.Thread(target=take) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(len(taken), 1)
            _core.tensor_destroy(taken[0])

    def test_invalid_capsules_stay_the_producers(self):
        producer = Producer(b"abc", True)
        producer.managed.major = 2
        self.assertRaises(tcuda.InvalidArgumentError, tcuda.from_dlpack, producer)
        self.assertEqual(producer.ended, 0)
        producer.managed.major, producer.managed.tensor.lanes = 1, 2
        with self.assertRaisesRegex(TypeError, r"\(1, 8, 2\)"):
            tcuda.from_dlpack(producer)
        self.assertEqual(producer.ended, 1)  # it was taken and given back

    def test_interface(self):
        own = self.numbers()
        other = Interface(shape=(2, 2), strides=(12, 4), typestr="<f4",
                          data=(own.address + 4, False), version=3, stream=None)
        made = tcuda.asarray(other)
        self.assertEqual((made.shape, made.strides, made.dtype), ((2, 2), (3, 1), "float32"))
        self.assertEqual(made.device, tcuda.device(0))
        self.assertEqual(made.tobytes(), struct.pack("<4f", 1, 2, 4, 5))

    def test_interface_keeps_its_object(self):
        memory = self.numbers()
        other = Interface(shape=(6,), typestr="<f4", data=(memory.address, False), version=2)
        other.memory = memory
        del memory
        made = tcuda.asarray(other)
        capsule = made.__dlpack__()
        del other, made
        gc.collect()
        self.assertEqual(self.allocated(), 512)
        del capsule
        gc.collect()
        self.assertEqual(self.allocated(), 0)

    def test_read_only_interface(self):
        own = self.numbers(1)
        made = tcuda.asarray(
            Interface(shape=(1,), typestr="<f4", data=(own.address, True), version=3))
        self.assertRaises(tcuda.InvalidArgumentError, made.copy_from, bytes(4))
        self.assertEqual(made.__cuda_array_interface__["data"], (own.address, True))

    def test_refusals(self):
        address = self.numbers().address
        interface = {"shape": (1,), "typestr": "<f4", "data": (address, False), "version": 3}
        for error, other in (
            (TypeError, 1), (TypeError, b"bytes"), (TypeError, None),
            (TypeError, Interface(**{**interface, "typestr": ">f4"})),
            (TypeError, Interface(**interface, mask=object())),
            (ValueError, Interface(**interface, strides=(2,))),
            (ValueError, Interface(**{**interface, "data": (8, False)})),
        ):
            with self.subTest(other), self.assertRaises(error):
                tcuda.asarray(other)


@unittest.skipUnless(RUNS_LATE, "the simulated machine runs work at once")
class Order(ArrayTest):
    def busy_stream(self):
        stream = BusyStream()
        self.addCleanup(stream.end)
        return stream

    def test_memory_is_of_the_current_stream(self):
        busy = self.busy_stream()
        with tcuda.stream(busy.stream):
            made = tcuda.empty(512, "int8")
        address = made.address
        del made
        self.assertNotEqual(tcuda.empty(512, "int8").address, address)
        with tcuda.stream(busy.stream):
            self.assertEqual(tcuda.empty(512, "int8").address, address)

    def waits(self, argument, stream):
        """Does a stream wait for the current one once an array was exported for it?"""
        busy = self.busy_stream()
        with tcuda.stream(busy.stream):
            made = tcuda.empty(1)
            consumer = Consumer(made.__dlpack__(stream=argument), False)
        is_waiting = not stream.query()
        busy.end()
        stream.synchronize()
        consumer.end()
        return is_waiting

    def test_stream_of_the_consumer_waits(self):
        own, default = tcuda.Stream(), tcuda.default_stream()
        self.assertTrue(self.waits(own.cuda_stream, own))
        self.assertTrue(self.waits(1, default))
        self.assertTrue(self.waits(None, default))
        self.assertFalse(self.waits(-1, own))
        self.assertFalse(self.waits(-1, default))
        self.assertFalse(self.waits(own.cuda_stream, tcuda.Stream()))

    def test_memory_waits_for_the_work_of_the_consumer(self):
        for order in ("array first", "capsule first"):
            made, busy = tcuda.empty(100, "int8"), self.busy_stream()
            address = made.address
            consumer = Consumer(made.__dlpack__(stream=busy.stream.cuda_stream), False)
            if order == "array first":
                del made
                consumer.end()
            else:
                consumer.end()
                del made
            other = tcuda.empty(100, "int8")
            self.assertNotEqual(other.address, address, order)
            busy.end()
            del other
            later = [tcuda.empty(100, "int8") for _ in range(4)]
            self.assertIn(address, {each.address for each in later}, order)
            del later

    def test_streams_of_other_libraries(self):
        class Torch:  # whose streams are never destroyed
            class cuda:
                is_initialized = staticmethod(lambda: True)
                current_stream = staticmethod(lambda index: tcuda.ExternalStream(foreign.handle))

        for modules, is_kept in (({"torch": Torch}, True), ({}, False)):
            foreign, busy = ForeignStream(), BusyStream()
            self.addCleanup(busy.end)
            with tcuda.stream(busy.stream):
                made = tcuda.empty(100, "int8")
                address = made.address
                with mock.patch.dict(sys.modules, modules):
                    consumer = Consumer(made.__dlpack__(stream=foreign.handle), False)
            stream = tcuda.ExternalStream(foreign.handle)
            self.assertFalse(stream.query(), "it does not wait for the current stream")
            del stream
            if not is_kept:  # then it may end before the array
                foreign.end()
            del made
            consumer.end()
            with tcuda.stream(busy.stream):
                other = tcuda.empty(100, "int8")
            self.assertEqual(other.address != address, is_kept)
            busy.end()
            del other
            if is_kept:
                foreign.end()

    @two_devices
    def test_memory_of_results_in_one_block_waits(self):
        sources = [tcuda.empty(100, "int8"), tcuda.empty(100, "int8")]
        for index in (0, 1):
            made, busy = tcuda.comm.broadcast_coalesced(sources, [1])[0], BusyStream(1)
            self.addCleanup(busy.end)
            address = made[0].address
            consumer = Consumer(made[index].__dlpack__(stream=busy.stream.cuda_stream), False)
            del made
            consumer.end()
            other = tcuda.empty(1024, "int8", 1)
            self.assertNotEqual(other.address, address)
            busy.end()
            del other

    def test_stream_of_an_interface(self):
        busy, own = self.busy_stream(), self.numbers(1)
        interface = {"shape": (1,), "typestr": "<f4", "data": (own.address, False), "version": 3}
        tcuda.asarray(Interface(**interface))
        tcuda.default_stream().synchronize()
        stream = tcuda.Stream()
        with tcuda.stream(stream):
            tcuda.asarray(Interface(**interface, stream=busy.stream.cuda_stream))
        self.assertFalse(stream.query())
        self.assertTrue(tcuda.default_stream().query())
        busy.end()
        stream.synchronize()


class OrderOnThreads(unittest.TestCase):
    def test_order(self):
        if RUNS_LATE:
            self.skipTest("Order runs here")
        options = f"{os.environ.get('TCUDA_SIM', '')},schedule=threads".lstrip(",")
        run = subprocess.run(
            [sys.executable, "-W", "error", "-m", "unittest", "test_arrays.Order"],
            cwd=pathlib.Path(__file__).parent, env={**os.environ, "TCUDA_SIM": options},
            capture_output=True, text=True, timeout=120)
        self.assertEqual(run.returncode, 0, run.stderr)
        if COUNT > 1:
            self.assertNotIn("skipped", run.stderr)


if __name__ == "__main__":
    unittest.main()
