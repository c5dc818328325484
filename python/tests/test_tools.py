"""NVTX, the profiler, telemetry and the report for bugs."""

import os
import subprocess
import sys
import unittest

import tcuda
from support import OTHER, SIMULATED, TOTAL, TestCase


class Nvtx(unittest.TestCase):
    def test_depths(self):
        self.assertEqual(tcuda.nvtx.range_push("outer"), 0)
        self.assertEqual(tcuda.nvtx.range_push("inner"), 1)
        self.assertEqual(tcuda.nvtx.range_pop(), 1)
        self.assertEqual(tcuda.nvtx.range_pop(), 0)

    def test_context_and_decorator(self):
        @tcuda.nvtx.range("call")
        def depth():
            tcuda.nvtx.range_push("inner")
            return tcuda.nvtx.range_pop()

        self.assertEqual(depth(), 1)
        with self.assertRaises(KeyError), tcuda.nvtx.range("{} {name}", 1, name="a"):
            raise KeyError
        self.assertEqual(depth(), 1)

    def test_range_of_any_thread(self):
        tcuda.nvtx.mark("now")
        tcuda.nvtx.range_end(tcuda.nvtx.range_start("work"))


class Others(TestCase):
    def test_profiler(self):
        with tcuda.profiler.profile():
            pass

    def test_telemetry(self):
        for function, most in (
            (tcuda.utilization, 100), (tcuda.memory_usage, 100), (tcuda.temperature, 120),
            (tcuda.power_draw, 10**6), (tcuda.clock_rate, 10**4),
            (tcuda.device_memory_used, 2 * TOTAL),
        ):
            self.assertIn(function(OTHER), range(most + 1), function)

    def report(self, **environment):
        return subprocess.run(
            [sys.executable, "-m", "tcuda"], capture_output=True, text=True, check=True,
            env={**os.environ, **environment}).stdout

    def test_report(self):
        report = self.report()
        self.assertTrue(report.startswith(f"tcuda {tcuda.__version__}, Python "))
        self.assertIn(f"backend: {'sim' if SIMULATED else 'cuda'}: found\n", report)
        self.assertIn("NVML: found\n", report)
        name = tcuda.get_device_name(OTHER)
        self.assertIn(f"device {OTHER}: _CudaDeviceProperties(name='{name}'", report)
        self.assertRegex(report, r"driver for CUDA 1\d\.\d+, \d+ of \d+ MiB free\n")
        self.assertRegex(report, r"libtcuda_sim\.so\n" if SIMULATED else r"libcuda\.so")

    def test_report_without_a_driver(self):
        report = self.report(TCUDA_BACKEND="cuda", TCUDA_CUDA_DRIVER_PATH="/absent")
        self.assertIn("backend: cuda: NO_DRIVER: ", report)
        self.assertIn("/absent", report)
        self.assertNotIn("NVML", report)


if __name__ == "__main__":
    unittest.main()
