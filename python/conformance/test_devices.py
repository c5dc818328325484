"""Devices: number, choice, contexts, properties, synchronization."""

import threading
import unittest

from adapters import Memory, cuda, host_object
from base import Case, each, two_devices


class Choice(Case):
    def test_count(self):
        self.assertIs(type(cuda.device_count()), int)
        self.assertGreaterEqual(cuda.device_count(), 1)

    def test_is_available(self):
        self.assertIs(cuda.is_available(), True)

    def test_is_initialized(self):
        cuda.init()
        cuda.init()
        self.assertIs(cuda.is_initialized(), True)

    def test_current(self):
        self.assertEqual(cuda.current_device(), 0)

    @each(number=0, text="cuda:0", negative=-1, context=cuda.device(0))
    def test_set(self, device):
        cuda.set_device(device)
        self.assertEqual(cuda.current_device(), 0)

    @each(number=1, text="cuda:1")
    @two_devices
    def test_set_another(self, device):
        cuda.set_device(device)
        self.assertEqual(cuda.current_device(), 1)
        cuda.set_device(-1)
        self.assertEqual(cuda.current_device(), 1)

    def test_device_of_stream_is_a_device(self):
        device = cuda.Stream().device
        self.assertEqual((str(device), device.type, device.index), ("cuda:0", "cuda", 0))
        cuda.set_device(device)
        cuda.synchronize(device)

    @two_devices
    def test_of_each_thread(self):
        cuda.set_device(1)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(cuda.current_device()))
        thread.start()
        thread.join()
        self.assertEqual((seen, cuda.current_device()), ([0], 1))

    @each(none=None, text="cuda", number=0, numbered="cuda:0", negative=-1)
    def test_synchronize(self, device):
        self.assertIsNone(cuda.synchronize(device))


class Contexts(Case):
    @each(number=0, text="cuda:0", current="cuda", none=None)
    def test_index(self, device):
        context = cuda.device(device)
        self.assertEqual(context.idx, 0)
        with context:
            self.assertEqual(cuda.current_device(), 0)

    def test_negative(self):
        with cuda.device(-1):
            self.assertEqual(cuda.current_device(), 0)

    def test_gives_nothing(self):
        with cuda.device(0) as entered:
            self.assertIsNone(entered)

    @two_devices
    def test_other(self):
        with cuda.device(1):
            self.assertEqual(cuda.current_device(), 1)
        self.assertEqual(cuda.current_device(), 0)

    @two_devices
    def test_nested(self):
        with cuda.device(1), cuda.device(0), cuda.device(-1):
            self.assertEqual(cuda.current_device(), 0)
            with cuda.device("cuda:1"):
                self.assertEqual(cuda.current_device(), 1)
            self.assertEqual(cuda.current_device(), 0)
        self.assertEqual(cuda.current_device(), 0)

    @two_devices
    def test_exception(self):
        with self.assertRaises(KeyError), cuda.device(1):
            raise KeyError
        self.assertEqual(cuda.current_device(), 0)

    @two_devices
    def test_of_current(self):
        cuda.set_device(1)
        self.assertEqual(cuda.device("cuda").idx, 1)
        self.assertEqual(cuda.device(None).idx, 1)

    @two_devices
    def test_object_on_another(self):
        memory = Memory(100, 1)
        with cuda.device_of(memory.object):
            self.assertEqual(cuda.current_device(), 1)
        self.assertEqual(cuda.current_device(), 0)
        memory.free()

    def test_object_on_device(self):
        memory = Memory(100)
        context = cuda.device_of(memory.object)
        self.assertEqual(context.idx, 0)
        with context:
            self.assertEqual(cuda.current_device(), 0)
        memory.free()

    def test_object_on_host(self):
        context = cuda.device_of(host_object())
        self.assertEqual(context.idx, -1)
        with context:
            self.assertEqual(cuda.current_device(), 0)

    def test_device_of_is_a_device_context(self):
        self.assertTrue(issubclass(cuda.device_of, cuda.device))


class Properties(Case):
    def setUp(self):
        super().setUp()
        self.properties = cuda.get_device_properties(0)

    @each(number=0, text="cuda:0", current="cuda", none=None)
    def test_of(self, device):
        self.assertEqual(cuda.get_device_properties(device).uuid, self.properties.uuid)

    def test_name(self):
        self.assertIs(type(self.properties.name), str)
        self.assertEqual(cuda.get_device_name(), self.properties.name)
        self.assertEqual(cuda.get_device_name("cuda:0"), self.properties.name)

    def test_capability(self):
        capability = cuda.get_device_capability()
        self.assertEqual(capability, (self.properties.major, self.properties.minor))
        self.assertIs(type(capability), tuple)
        self.assertEqual(cuda.get_device_capability(0), capability)

    def test_total_memory(self):
        self.assertEqual(self.properties.total_memory, cuda.mem_get_info(0)[1])

    @each(
        warp_size=("warp_size", 32), block=("max_threads_per_block", 1024),
        shared_memory=("shared_memory_per_block", 49152),
        registers=("regs_per_multiprocessor", 65536),
    )
    def test_same_for_all_models(self, name, value):
        self.assertEqual(getattr(self.properties, name), value)

    @each(**{name: name for name in (
        "major", "multi_processor_count", "max_threads_per_multi_processor", "L2_cache_size",
        "shared_memory_per_block_optin", "shared_memory_per_multiprocessor", "memory_bus_width",
        "clock_rate", "memory_clock_rate",
    )})
    def test_positive(self, name):
        value = getattr(self.properties, name)
        self.assertIs(type(value), int)
        self.assertGreater(value, 0)

    @each(**{name: name for name in ("pci_bus_id", "pci_device_id", "pci_domain_id", "minor")})
    def test_not_negative(self, name):
        value = getattr(self.properties, name)
        self.assertIs(type(value), int)
        self.assertGreaterEqual(value, 0)

    @each(is_integrated="is_integrated", is_multi_gpu_board="is_multi_gpu_board")
    def test_flag(self, name):
        self.assertIn(getattr(self.properties, name), (0, 1))

    def test_shared_memory_grows(self):
        of = self.properties
        self.assertLess(of.shared_memory_per_block, of.shared_memory_per_block_optin)
        self.assertLessEqual(of.shared_memory_per_block_optin, of.shared_memory_per_multiprocessor)

    def test_uuid(self):
        self.assertRegex(str(self.properties.uuid), r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")

    @two_devices
    def test_uuids_differ(self):
        other = cuda.get_device_properties(1).uuid
        self.assertNotEqual(str(other), str(self.properties.uuid))

    def test_repr(self):
        of = self.properties
        self.assertEqual(repr(of), (
            f"_CudaDeviceProperties(name='{of.name}', major={of.major}, minor={of.minor}, "
            f"total_memory={of.total_memory // 2**20}MB, "
            f"multi_processor_count={of.multi_processor_count}, uuid={of.uuid}, "
            f"pci_bus_id={of.pci_bus_id}, pci_device_id={of.pci_device_id}, "
            f"pci_domain_id={of.pci_domain_id}, L2_cache_size={of.L2_cache_size // 2**20}MB)"))

    def test_bfloat16(self):
        in_hardware = cuda.get_device_capability() >= (8, 0)
        self.assertIs(cuda.is_bf16_supported(), True)
        self.assertIs(cuda.is_bf16_supported(including_emulation=False), in_hardware)
        self.assertIs(cuda.is_tf32_supported(), in_hardware)

    def test_architectures(self):
        architectures = cuda.get_arch_list()
        self.assertTrue(architectures)
        for architecture in architectures:
            self.assertRegex(architecture, r"^(sm|compute)_\d{2,3}[af]?$")

    def test_flags_of_architectures(self):
        flags = [
            f"-gencode compute=compute_{number},code={kind}_{number}"
            for kind, number in (one.split("_") for one in cuda.get_arch_list())]
        self.assertEqual(cuda.get_gencode_flags(), " ".join(flags))

    def test_reaches_itself(self):
        self.assertIs(cuda.can_device_access_peer(0, 0), False)

    @two_devices
    def test_reaches_another(self):
        reaches = cuda.can_device_access_peer(0, 1)
        self.assertIs(type(reaches), bool)
        self.assertIs(cuda.can_device_access_peer("cuda:1", "cuda:0"), reaches)


class Errors(Case):
    """A device that does not exist, and what names none."""

    @each(
        properties=cuda.get_device_properties, name=cuda.get_device_name,
        capability=cuda.get_device_capability,
        peer=lambda device: cuda.can_device_access_peer(0, device),
        of_peer=lambda device: cuda.can_device_access_peer(device, 0),
    )
    def test_assertion(self, call):
        with self.assertRaisesRegex(AssertionError, "(?i)invalid .*device|device 99"):
            call(99)

    @each(
        set_device=cuda.set_device, synchronize=cuda.synchronize, stream=cuda.Stream,
        memory_stats=cuda.memory_stats, current_stream=cuda.current_stream,
        default_stream=cuda.default_stream, reset_peak=cuda.reset_peak_memory_stats,
        mem_get_info=cuda.mem_get_info,
        alloc=lambda device: cuda.caching_allocator_alloc(512, device),
        fraction=lambda device: cuda.set_per_process_memory_fraction(0.5, device),
    )
    def test_runtime_error(self, call):
        self.assertRaises(RuntimeError, call, 99)
        self.assertEqual(cuda.current_device(), 0)

    def test_context(self):
        context = cuda.device(99)
        self.assertRaises(RuntimeError, context.__enter__)
        self.assertEqual(cuda.current_device(), 0)

    @each(
        set_device=cuda.set_device, synchronize=cuda.synchronize, device=cuda.device,
        stream=cuda.Stream, properties=cuda.get_device_properties,
        current_stream=cuda.current_stream, memory_stats=cuda.memory_stats,
    )
    def test_cpu(self, call):
        with self.assertRaises(ValueError):
            call("cpu")

    @each(
        word="gpu", letter="cuda:x", no_number="cuda:", negative="cuda:-1", float_="cuda:1.0",
        empty="",
    )
    def test_text(self, text):
        self.assertRaises(RuntimeError, cuda.synchronize, text)

    @each(none=None, text="cuda")
    def test_set_without_index(self, device):
        self.assertRaises(ValueError, cuda.set_device, device)

    @each(
        properties=cuda.get_device_properties, name=cuda.get_device_name,
        capability=cuda.get_device_capability,
        peer=lambda device: cuda.can_device_access_peer(0, device),
        of_peer=lambda device: cuda.can_device_access_peer(device, 0),
    )
    def test_negative(self, call):
        self.assertRaises(AssertionError, call, -1)


if __name__ == "__main__":
    unittest.main()
