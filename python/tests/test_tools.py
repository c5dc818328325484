"""NVTX, the profiler, telemetry, the report for bugs, and programs on the software GPU."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import tcuda
from support import OTHER, SIMULATED, TOTAL, TestCase, simulated
from tcuda.__main__ import mapped_libraries


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


@simulated
class SoftwareGpu(unittest.TestCase):
    # Ends with 3, and the number of cuInit's status.
    PROGRAM = "import ctypes, sys\nsys.exit(3 + ctypes.CDLL('libcuda.so.1').cuInit(0))\n"

    def run_program(self, *options, **environment):
        library = next(it for it in mapped_libraries() if it.endswith("/libtcuda_sim.so"))
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "program.py")
            program.write_text(self.PROGRAM)
            return subprocess.run(
                [sys.executable, "-m", "tcuda.software_gpu", *options, str(program)],
                capture_output=True, text=True, check=False,
                env={**os.environ, "TCUDA_SIM_PATH": library, **environment})

    def test_the_seed_is_printed_before_and_after_a_failure(self):
        ended = self.run_program("--seed", "7", TCUDA_SIM="devices=2")
        self.assertEqual(ended.returncode, 3, ended.stderr)
        line = "software GPU: TCUDA_SIM=devices=2,schedule=adversarial:7 repeats this run\n"
        self.assertEqual(ended.stderr, 2 * line)

    def test_each_run_has_another_seed(self):
        seeds = {self.run_program(TCUDA_SIM="").stderr for _ in range(3)}
        self.assertGreater(len(seeds), 1)

    def test_a_schedule_of_the_environment_stays(self):
        ended = self.run_program(TCUDA_SIM="schedule=immediate")
        self.assertEqual((ended.returncode, ended.stderr), (3, ""))


if __name__ == "__main__":
    unittest.main()
