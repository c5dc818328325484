"""Files, without cuFile (staging) and, where there is one, with it."""

import os
import pathlib
import tempfile
import types
import unittest

import tcuda
from support import TestCase
from tcuda import _core
from tcuda.gds import GdsFile


class Files(TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name, "numbers")
        self.address = self.allocate(4096)
        self.fill(self.address, 0x01020304, 1024)

    def open(self, flags=os.O_RDWR | os.O_CREAT):
        return GdsFile(self.path, flags, staging=True)

    def test_save_and_load(self):
        file = self.open()
        file.save_storage(self.address, offset=3, size=4096)
        self.assertEqual(self.path.read_bytes(), bytes(3) + b"\4\3\2\1" * 1024)
        self.path.write_bytes(b"\7\0\0\0" * 1024)
        file.load_storage(self.address, size=8)
        self.assertEqual(self.value(self.address + 4), 7)
        self.assertEqual(self.value(self.address + 8), 0x01020304)

    def test_end_of_the_file(self):
        self.path.write_bytes(b"ab")
        with self.assertRaisesRegex(EOFError, "has 1 bytes from 1 on, not 4"):
            self.open(os.O_RDONLY).load_storage(self.address, 1, 4)

    def test_flags(self):
        with self.raises_status("FILE_ERROR"):
            self.open(os.O_RDONLY)
        self.path.write_bytes(b"text")
        for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_RDWR | os.O_DIRECT):
            self.open(flags)
        self.assertEqual(self.path.read_bytes(), b"text")
        with self.assertRaises(tcuda.CudaError):
            self.open(os.O_RDONLY).save_storage(self.address, 0, 4)
        self.open(os.O_RDWR | os.O_TRUNC)
        self.assertEqual(self.path.read_bytes(), b"")
        with self.assertRaisesRegex(ValueError, "does not know the flags"):
            self.open(os.O_RDWR | os.O_APPEND)

    def test_registration_of_the_file(self):
        file = self.open(os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        file.save_storage(self.address, 0, 16)
        descriptor = file.fd
        self.assertEqual((os.fstat(descriptor).st_size, file.handle), (16, 0))
        self.assertRaises(RuntimeError, file.register_handle)
        file.deregister_handle()
        self.assertIsNone(file.handle)
        self.assertRaises(OSError, os.fstat, descriptor)
        for call in (file.deregister_handle, lambda: file.load_storage(self.address, 0, 4),
                     lambda: file.save_storage(self.address, 0, 4)):
            self.assertRaises(RuntimeError, call)
        file.register_handle()
        self.assertEqual(self.path.stat().st_size, 16)
        file.load_storage(self.address, 0, 16)

    def test_is_closed_with_its_object(self):
        file = self.open()
        descriptor = file.fd
        del file
        self.assertRaises(OSError, os.fstat, descriptor)

    def array(self, shape, strides=None, typestr="<u4"):
        return types.SimpleNamespace(__cuda_array_interface__={
            "data": (self.address, False), "shape": shape, "strides": strides, "typestr": typestr,
            "version": 3})

    def test_arrays(self):
        file = self.open()
        for array, size in ((self.array((2, 3)), 24), (self.array((2, 3), (12, 4)), 24),
                            (self.array((1, 3), (99, 4)), 12), (self.array(()), 4),
                            (self.array((0, 5)), 0), (self.array((5,), typestr="|b1"), 5)):
            self.path.write_bytes(b"")
            file.save_storage(array)
            self.assertEqual(self.path.stat().st_size, size)
        numbers = tcuda.empty((2, 3), "int16")
        numbers.copy_from(bytes(range(12)))
        file.save_storage(numbers)
        numbers.copy_from(bytes(12))
        file.load_storage(numbers)
        self.assertEqual(numbers.tobytes(), bytes(range(12)))
        for strides in ((4, 8), (16, 4)):
            with self.assertRaisesRegex(ValueError, "not contiguous"):
                file.save_storage(self.array((2, 3), strides))
        with self.assertRaisesRegex(ValueError, "has 4 bytes, fewer than 5"):
            file.save_storage(self.array((1,)), 0, 5)
        with self.assertRaisesRegex(TypeError, "needs a size"):
            file.save_storage(self.address)
        self.assertRaises(AttributeError, file.save_storage, "text")

    def test_without_cufile(self):
        if tcuda.gds.is_available():
            self.skipTest("there is cuFile")
        with self.assertRaises(tcuda.CudaError) as raised:
            GdsFile(self.path, os.O_RDWR | os.O_CREAT)
        self.assertIn(raised.exception.status, ("NO_LIBRARY", "NOT_SUPPORTED"))
        with self.assertRaises(tcuda.CudaError):
            tcuda.gds.gds_register_buffer(self.address, 4096)

    def test_with_cufile(self):
        if not tcuda.gds.is_available():
            self.skipTest("there is no cuFile")
        try:
            tcuda.gds.gds_register_buffer(self.array((1024,)))
        except tcuda.CudaError as error:
            self.skipTest(f"{error.status}: {error}")
        with self.raises_status("INVALID_POINTER"):
            tcuda.gds.gds_register_buffer(self.address, 4096)
        tcuda.gds.gds_deregister_buffer(self.address)
        try:
            file = GdsFile(self.path, os.O_RDWR | os.O_CREAT)
        except tcuda.CudaError as error:
            self.skipTest(f"{error.status}: {error}")
        file.save_storage(self.address, 0, 4096)
        self.assertEqual(self.path.read_bytes(), b"\4\3\2\1" * 1024)
        self.assertNotEqual(_core.file_native(file._file)[1], 0)


if __name__ == "__main__":
    unittest.main()
