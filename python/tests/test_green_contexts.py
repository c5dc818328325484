"""Green contexts: the sizes of partitions, their streams, and what is refused."""

import gc
import unittest

import tcuda
from support import COUNT, TestCase, run_program, simulated
from tcuda import _core
from tcuda.green_contexts import GreenContext, SMPartition


def has(function):
    """Has the driver a function?"""
    try:
        return _core.backend_function(function) != 0
    except tcuda.CudaError:
        return False


HAS_GROUPS = has("cuDevSmResourceSplit")
groups = unittest.skipUnless(HAS_GROUPS, "needs a driver of CUDA 13.1")
ALL = tcuda.get_device_properties(0).multi_processor_count


class Partitions(TestCase):
    def test_of_a_device(self):
        whole = SMPartition.from_device()
        self.assertEqual((whole.sm_count, whole.device_id), (ALL, 0))
        self.assertGreaterEqual(whole.coscheduled_sm_count, 2)
        self.assertIn(f"sm_count={ALL}", repr(whole))
        self.assertRaises(tcuda.CudaError, SMPartition.from_device, COUNT)

    def test_equal_parts(self):
        parts, rest = SMPartition.from_device(0).split_by_count(16, 3)
        self.assertEqual([part.sm_count for part in parts], [16, 16, 16])
        self.assertEqual(rest.sm_count, ALL - 48)
        (small,), _ = SMPartition.from_device(0).split_by_count(
            2, 1, ignore_coscheduling=True)
        self.assertEqual(small.sm_count, 2)
        half = ALL // 2
        parts, rest = SMPartition.from_device(0).split_by_count(half + 1)
        self.assertEqual(len(parts), 1)
        self.assertGreater(parts[0].sm_count, half)

    def test_part_of_a_part(self):
        (part,), _ = SMPartition.from_device(0).split_by_count(16, 1)
        with self.raises_status("INVALID_STATE"):
            part.split_by_count(8)
        context = GreenContext(sm_partition=part)
        (inner,), rest = context.sm_partition.split_by_count(8, 1)
        self.assertEqual((inner.sm_count, rest.sm_count), (8, 8))

    def test_none_left(self):
        parts, rest = SMPartition.from_device(0).split_by_count(2, ALL, ignore_coscheduling=True)
        self.assertEqual(sum(part.sm_count for part in parts), ALL - (rest.sm_count if rest else 0))
        self.assertLess(rest.sm_count if rest else 0, 2)

    @groups
    def test_groups(self):
        parts, rest = SMPartition.from_device(0).split(num_sms=(8, 24), coscheduled_sm_count=8)
        self.assertEqual([part.sm_count for part in parts], [8, 24])
        self.assertEqual(rest.sm_count, ALL - 32)
        parts, rest = SMPartition.from_device(0).split(num_sms=(8, 0), backfill=(False, True))
        self.assertEqual([part.sm_count for part in parts], [8, ALL - 8])
        self.assertIsNone(rest)
        with self.raises_status("INVALID_ARGUMENT"):
            SMPartition.from_device(0).split(num_sms=8, coscheduled_sm_count=16)
        contexts = GreenContext.split(num_sms=[16, 32], coscheduled_sm_count=8)
        self.assertEqual([context.sm_count for context in contexts], [16, 32])

    @unittest.skipIf(HAS_GROUPS, "the driver has what is refused here")
    def test_groups_before_cuda_13_1(self):
        with self.raises_status("NOT_SUPPORTED"):
            SMPartition.from_device(0).split(num_sms=8)

    @groups
    @simulated
    def test_groups_of_locality_domains(self):
        ended = run_program("""
            from tcuda.green_contexts import *
            print(get_num_locality_domains(), is_localization_supported())
            parts, rest = SMPartition.from_device(0).split(
                num_sms=(8, 16), locality_domain_id=(1, 0))
            print([(part.sm_count, part.locality_domain_id) for part in parts])
            print(GreenContext(sm_partition=parts[0]).locality_domain_id)
            """, TCUDA_SIM="locality_domains=2")
        self.assertEqual((ended.stdout, ended.stderr), ("2 True\n[(8, 1), (16, 0)]\n1\n", ""))

    def test_options_of_groups(self):
        whole = SMPartition.from_device(0)
        for message, options in {
            "of every list": {"num_sms": (8, 8), "backfill": (True,)},
            "the lists are empty": {"num_sms": ()},
            "num_sms is -1: pass an integer": {"num_sms": -1},
            "coscheduled_sm_count is True": {"coscheduled_sm_count": True},
            "backfill is 1": {"backfill": 1},
            "only the last group": {"num_sms": (0, 8), "backfill": True},
            "locality_domain_id is .0.": {"locality_domain_id": "0"},
        }.items():
            with self.assertRaisesRegex(ValueError, message):
                whole.split(**options)


class Contexts(TestCase):
    def test_size(self):
        context = GreenContext(num_sms=12)
        together = SMPartition.from_device(0).coscheduled_sm_count
        self.assertEqual(context.sm_count, -(-12 // together) * together)
        self.assertEqual(context.device_id, 0)
        self.assertEqual(context.sm_partition.sm_count, context.sm_count)
        self.assertEqual(GreenContext.create(8, 0).sm_count, 8)
        with self.assertRaises(tcuda.CudaError):
            GreenContext(num_sms=ALL + 1)

    def test_streams_queue_work(self):
        context = GreenContext(num_sms=8)
        stream = context.Stream()
        address = self.allocate(512, 0, stream)
        with tcuda.stream(stream):
            self.assertEqual(tcuda.current_stream(), stream)
            self.fill(address, 5)
        stream.synchronize()
        self.assertEqual(self.value(address), 5)
        self.assertEqual(stream.device_index, 0)
        streams = [context.Stream() for _ in range(32)]
        self.assertEqual(streams[-1], stream)
        self.assertEqual(len({one.cuda_stream for one in streams}), 32)

    def test_set_and_pop(self):
        context, before = GreenContext(num_sms=8), tcuda.Stream(0)
        tcuda.set_stream(before)
        context.set_context()
        self.assertNotEqual(tcuda.current_stream(), before)
        with self.raises_status("INVALID_STATE"):
            context.set_context()
        address = self.allocate(512)
        self.fill(address, 6)
        context.pop_context()
        self.assertEqual(tcuda.current_stream(), before)
        self.assertEqual(self.value(address), 6)
        with self.raises_status("INVALID_STATE"):
            context.pop_context()

    def test_ends_with_its_object(self):
        context = GreenContext(num_sms=8)
        handle, stream = context._handle, context.Stream()
        del context
        gc.collect()
        with self.raises_status("INVALID_HANDLE"):
            _core.green_context_properties(handle)
        stream.synchronize()
        self.assertTrue(stream.query())

    def test_arguments(self):
        whole = SMPartition.from_device(0)
        for kind, options in (
            (RuntimeError, {}), (RuntimeError, {"num_sms": 0}),
            (ValueError, {"num_sms": 8, "sm_partition": whole}),
            (ValueError, {"num_sms": 8, "workqueue_scope": "own"}),
            (RuntimeError, {"num_sms": 8, "workqueue_concurrency_limit": 2}),
            (TypeError, {"sm_partition": 8}),
        ):
            self.assertRaises(kind, GreenContext, **options)

    @groups
    def test_work_queues(self):
        most = GreenContext.max_workqueue_concurrency()
        self.assertGreaterEqual(most, 1)
        for scope in ("device_ctx", "balanced"):
            context = GreenContext(workqueue_scope=scope, workqueue_concurrency_limit=1)
            self.assertEqual(context.sm_count, ALL)

    def test_numbers(self):
        self.assertRaises(TypeError, GreenContext, 8.5)
        for number in (1 << 32, 1 << 70):
            with self.assertRaisesRegex(OverflowError, f"{number}"):
                GreenContext(number)

    def test_locality(self):
        domains = tcuda.green_contexts.get_num_locality_domains(0)
        self.assertGreaterEqual(domains, 1)
        self.assertEqual(tcuda.green_contexts.is_localization_supported(0), domains > 1)
        if domains == 1:
            self.assertIsNone(SMPartition.from_device(0).locality_domain_id)
            self.assertIsNone(GreenContext(num_sms=8).locality_domain_id)


if __name__ == "__main__":
    unittest.main()
