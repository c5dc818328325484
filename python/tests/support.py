"""What the tests have in common. They run on the simulated machine and on GPUs, one or more."""

import contextlib
import ctypes
import os
import subprocess
import sys
import textwrap
import unittest

import tcuda
from tcuda import _core

SIMULATED = _core.backend_name() == "sim"
COUNT = tcuda.device_count()
OTHER = min(1, COUNT - 1)  # another device than 0 where there is one
TOTAL = tcuda.mem_get_info(0)[1]  # bytes of device 0
GIB = 1 << 30
MIB = 1 << 20

two_devices = unittest.skipIf(COUNT < 2, "needs two devices")
simulated = unittest.skipUnless(SIMULATED, "needs the simulated machine")


def run_program(program, **environment):
    """Runs a program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True,
        timeout=60, env={**os.environ, **environment})


class TestCase(unittest.TestCase):
    """Leaves nothing to the tests after it, also where it fails."""

    def setUp(self):
        self.held = set()
        self.addCleanup(self.clean)

    def clean(self):
        tcuda.sanitizer.cuda_sanitizer.disable()
        tcuda.set_sync_debug_mode("default")
        for address in list(self.held):
            self.free(address)
        for index in range(COUNT):
            tcuda.set_stream(tcuda.default_stream(index))
            tcuda.set_per_process_memory_fraction(1.0, index)
        tcuda.set_device(0)
        tcuda.synchronize()
        tcuda.empty_cache()

    def allocate(self, *arguments):
        """Memory that the end of the test frees, unless the test does."""
        address = tcuda.caching_allocator_alloc(*arguments)
        self.held.add(address)
        return address

    def free(self, address):
        self.held.remove(address)
        tcuda.caching_allocator_delete(address)

    def fill(self, address, value, count=1, stream=None):
        """Queues that numbers of 32 bits become a value."""
        number = ctypes.c_uint32(value)
        _core.fill(address, ctypes.addressof(number), 4, count,
                   None if stream is None else stream._handle)

    def fill_byte(self, address, value):
        number = ctypes.c_uint8(value)
        _core.fill(address, ctypes.addressof(number), 1, 1, None)

    def value(self, address):
        """The number of 32 bits at an address, after all work."""
        number = ctypes.c_uint32()
        tcuda.synchronize()
        _core.copy(ctypes.addressof(number), address, 4, None)
        tcuda.synchronize()
        return number.value

    @contextlib.contextmanager
    def raises_status(self, status):
        """Expects an error with a status."""
        with self.assertRaises(tcuda.CudaError) as raised:
            yield raised
        self.assertEqual(raised.exception.status, status, raised.exception)
