"""Devices."""

import threading
import types
import unittest

import tcuda
from support import COUNT, OTHER, TOTAL, TestCase, run_program, simulated, two_devices


class Index(TestCase):
    def test_what_names_a_device(self):
        torch_device = types.SimpleNamespace(type="cuda", index=OTHER)
        for other in (OTHER, f"cuda:{OTHER}", torch_device, tcuda.device(OTHER)):
            self.assertEqual(tcuda.Stream(other).device_index, OTHER, other)
        tcuda.set_device(OTHER)
        for current in (None, "cuda", types.SimpleNamespace(type="cuda", index=None), -1):
            self.assertEqual(tcuda.Stream(current).device_index, OTHER, current)

    def test_what_does_not(self):
        for other in ("cpu", "cuda:", "cuda:x", "cuda:-1", types.SimpleNamespace(
                type="cpu", index=0)):
            with self.assertRaisesRegex(ValueError, "is no CUDA device"):
                tcuda.synchronize(other)
        self.assertRaises(TypeError, tcuda.synchronize, 1.0)
        self.assertRaises(tcuda.CudaError, tcuda.synchronize, COUNT)


@two_devices
class Current(TestCase):
    def test_set(self):
        tcuda.set_device("cuda:1")
        self.assertEqual(tcuda.current_device(), 1)
        tcuda.set_device(-1)
        self.assertEqual(tcuda.current_device(), 1)
        for without_index in (None, "cuda"):
            self.assertRaises(ValueError, tcuda.set_device, without_index)

    def test_each_thread_has_its_own(self):
        tcuda.set_device(1)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(tcuda.current_device()))
        thread.start()
        thread.join()
        self.assertEqual(seen, [0])

    def test_context(self):
        with tcuda.device(1):
            self.assertEqual(tcuda.current_device(), 1)
            with tcuda.device(-1):
                self.assertEqual(tcuda.current_device(), 1)
        self.assertEqual(tcuda.current_device(), 0)
        with self.assertRaises(KeyError), tcuda.device("cuda:1"):
            raise KeyError
        self.assertEqual(tcuda.current_device(), 0)

    def test_device_of(self):
        address = self.allocate(100, 1)
        array = types.SimpleNamespace(__dlpack_device__=lambda: (2, 1))
        on_host = types.SimpleNamespace(__dlpack_device__=lambda: (1, 0))
        for obj, index in ((address, 1), (array, 1), (on_host, 0), (id(self), 0)):
            with tcuda.device_of(obj):
                self.assertEqual(tcuda.current_device(), index)
            self.assertEqual(tcuda.current_device(), 0)

    def test_equal_devices(self):
        self.assertEqual(tcuda.device(1), tcuda.device("cuda:1"))
        self.assertEqual(hash(tcuda.device(1)), hash(tcuda.device("cuda:1")))
        self.assertNotEqual(tcuda.device(0), tcuda.device(1))
        self.assertNotEqual(tcuda.device(0), 0)
        self.assertEqual(str(tcuda.device(1)), "cuda:1")


class Properties(TestCase):
    def test_properties(self):
        properties = tcuda.get_device_properties(OTHER)
        self.assertEqual(properties.name, tcuda.get_device_name(OTHER))
        self.assertEqual(
            (properties.major, properties.minor), tcuda.get_device_capability(f"cuda:{OTHER}"))
        self.assertEqual(properties.total_memory, TOTAL)
        self.assertGreater(properties.multi_processor_count, 0)
        self.assertEqual(properties.warp_size, 32)
        self.assertIn(f"name='{properties.name}', major={properties.major}", repr(properties))

    @simulated
    @two_devices
    def test_text_of_properties(self):
        self.assertRegex(
            repr(tcuda.get_device_properties(1)),
            r"^_CudaDeviceProperties\(name='Simulated GPU', major=9, minor=0, total_memory=16384MB,"
            r" multi_processor_count=132, uuid=[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}, "
            r"pci_bus_id=2, pci_device_id=0, pci_domain_id=0, L2_cache_size=50MB\)$")

    def test_others(self):
        self.assertTrue(tcuda.is_available())
        new = tcuda.get_device_capability(0) >= (8, 0)
        self.assertEqual(tcuda.is_bf16_supported(including_emulation=False), new)
        self.assertEqual(tcuda.is_tf32_supported(), new)
        self.assertIn("compute_52", tcuda.get_arch_list())
        self.assertIn("-gencode compute=compute_52,code=compute_52", tcuda.get_gencode_flags())
        tcuda.init()
        self.assertTrue(tcuda.is_initialized())
        tcuda.ipc_collect()

    def test_without_a_driver(self):
        run = run_program("""
            import tcuda
            print(tcuda.is_available(), tcuda.device_count(), tcuda.is_bf16_supported(),
                  tcuda.is_tf32_supported(), tcuda.memory_stats())
        """, TCUDA_BACKEND="cuda", TCUDA_CUDA_DRIVER_PATH="/absent")
        self.assertEqual(run.stdout, "False 0 False False {}\n", run.stderr)

    @simulated
    @two_devices
    def test_peers(self):
        self.assertTrue(tcuda.can_device_access_peer(0, 1))

    def test_sync_debug_mode(self):
        tcuda.set_sync_debug_mode("error")
        self.assertEqual(tcuda.get_sync_debug_mode(), 2)
        with self.assertRaises(tcuda.CudaError) as raised:
            tcuda.current_stream().synchronize()
        self.assertEqual(raised.exception.status, "WOULD_SYNCHRONIZE")
        self.assertRaises(RuntimeError, tcuda.set_sync_debug_mode, "loud")


if __name__ == "__main__":
    unittest.main()
