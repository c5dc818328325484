"""What PyTorch shows of the CUDA runtime."""

import ctypes
import unittest

import tcuda
from support import COUNT, TestCase


class Runtime(TestCase):
    def test_errors(self):
        tcuda.check_error(tcuda.cudaStatus.SUCCESS)
        tcuda.check_error(tcuda.cudart().cudaError.success)
        for code, text in ((2, "out of memory"), (999, "unknown error"), (77777, "unrecognized")):
            with self.assertRaisesRegex(tcuda.CudaError, rf"{text}.* \({code}\)") as raised:
                tcuda.check_error(code)
            self.assertEqual((raised.exception.status, raised.exception.code),
                             ("CUDA_ERROR", code))
        self.assertEqual(tcuda.cudaStatus.ERROR_NOT_READY, 34)
        self.assertEqual(tcuda.cudart().cudaGetErrorString(1), "invalid argument")

    def test_registered_memory(self):
        rt = tcuda.cudart()
        size = 1 << 16
        memory = ctypes.create_string_buffer(2 * size)
        address = -(-ctypes.addressof(memory) // 4096) * 4096
        self.assertEqual(rt.cudaHostRegister(address, size, 0), rt.cudaError.success)
        self.assertEqual(rt.cudaHostRegister(address, size, 0), 712)  # it is registered already
        self.assertEqual(rt.cudaHostUnregister(address), 0)
        self.assertEqual(rt.cudaHostUnregister(address), 713)  # it is not
        self.assertEqual(rt.cudaHostRegister(0, size, 0), 1)

    def test_streams(self):
        rt = tcuda.cudart()
        native = ctypes.c_void_p()
        self.assertEqual(rt.cudaStreamCreate(ctypes.addressof(native)), 0)
        stream = tcuda.ExternalStream(native.value)
        address = self.allocate(512, 0, stream)
        self.fill(address, 3, 1, stream)
        stream.synchronize()
        self.assertEqual(self.value(address), 3)
        self.assertEqual(rt.cudaStreamDestroy(native.value), 0)
        self.assertEqual(rt.cudaStreamDestroy(native.value), 400)
        self.assertEqual(rt.cudaStreamDestroy(1), 400)

    def test_others(self):
        rt = tcuda.cudart()
        self.assertEqual((rt.cudaProfilerStart(), rt.cudaProfilerStop()), (0, 0))
        free, total = rt.cudaMemGetInfo(0)
        self.assertEqual(total, tcuda.mem_get_info(0)[1])
        self.assertLessEqual(free, total)
        with self.raises_status("INVALID_DEVICE"):
            rt.cudaMemGetInfo(COUNT)


if __name__ == "__main__":
    unittest.main()
