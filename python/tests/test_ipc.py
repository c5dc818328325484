"""Memory and events of another process."""

import os
import subprocess
import sys
import textwrap
import unittest

import tcuda
from support import SIMULATED, TestCase
from tcuda import _core, ipc

RECEIVER = textwrap.dedent("""
    import ctypes, sys
    import tcuda
    from tcuda import _core

    def value(address):
        number = ctypes.c_uint32()
        _core.copy(ctypes.addressof(number), address, 4, None)
        tcuda.synchronize()
        return number.value

    handle = sys.stdin.buffer.read(512)
    """)


class Memory(TestCase):
    def receive(self, handle, program):
        """Runs a program in another process, which has `handle` and `value`."""
        ended = subprocess.run(
            [sys.executable, "-c", RECEIVER + textwrap.dedent(program)], input=handle,
            capture_output=True, timeout=60, env=os.environ)
        self.assertEqual(ended.stderr.decode(), "")
        return ended.stdout.decode()

    def test_contents_and_size(self):
        address = self.allocate(1000)
        self.fill(address, 41, 250)
        handle = ipc.export_memory(address + 8)
        self.assertEqual(len(handle), 512)
        printed = self.receive(handle, """
            with tcuda.ipc.Memory(handle) as memory:
                print(memory.size, value(memory.ptr))
                number = ctypes.c_uint32(42)
                _core.fill(memory.ptr, ctypes.addressof(number), 4, 1, None)
            memory.close()
            """)
        self.assertEqual(printed, "992 41\n")
        self.assertEqual([self.value(address + offset) for offset in (4, 8, 12)], [41, 42, 41])

    def test_is_kept_for_the_receiver(self):
        address = self.allocate(3 << 20)
        self.fill(address, 43)
        handle = ipc.export_memory(address, tcuda.current_stream())
        self.free(address)
        tcuda.ipc_collect()
        self.assertNotEqual(self.allocate(3 << 20), address)
        self.assertEqual(self.receive(handle, """
            memory = tcuda.ipc.Memory(handle, tcuda.Stream())
            memory.close(tcuda.Stream())
            stream = tcuda.Stream()
            print("closed")
            """), "closed\n")
        tcuda.ipc_collect()

    def test_withdrawn(self):
        handle = ipc.export_memory(self.allocate(512))
        ipc.withdraw(handle)
        self.assertEqual(self.receive(handle, """
            try:
                tcuda.ipc.Memory(handle)
            except tcuda.CudaError as error:
                print(error.status)
            """), "INVALID_ARGUMENT\n")

    def test_what_is_refused(self):
        handle = ipc.export_memory(self.allocate(512))
        with self.raises_status("INVALID_STATE"):  # it is of this process
            ipc.Memory(handle)
        with self.raises_status("INVALID_POINTER"):
            ipc.export_memory(1)
        with self.assertRaisesRegex(ValueError, "512 bytes"):
            ipc.Memory(handle[:-1])
        ipc.withdraw(handle)

    def test_event(self):
        event = tcuda.Event(interprocess=True)
        address = self.allocate(512)
        self.fill(address, 44)
        event.record()
        handle = ipc.export_memory(address)
        printed = self.receive(handle, f"""
            event = tcuda.Event.from_ipc_handle(0, {event.ipc_handle()!r})
            event.synchronize()
            with tcuda.ipc.Memory(handle) as memory:
                print(event.query(), value(memory.ptr))
            """)
        self.assertEqual(printed, "True 44\n")


if __name__ == "__main__":
    unittest.main()
