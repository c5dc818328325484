"""Copies and sums on two devices, and collectives by NCCL, or what stands in for it."""

import gc
import struct
import threading
import unittest

import tcuda
from support import two_devices
from tcuda import comm, nccl

try:
    nccl.version()
    HAS_NCCL = True
except tcuda.CudaError:
    HAS_NCCL = False


class Foreign:
    """An array of another library, which has only DLPack."""

    def __init__(self, inner):
        self.inner = inner

    def __dlpack_device__(self):
        return self.inner.__dlpack_device__()

    def __dlpack__(self, **arguments):
        return self.inner.__dlpack__(**arguments)


def floats(values, device=0, shape=None):
    made = tcuda.empty(shape or len(values), "float32", device)
    made.copy_from(struct.pack(f"<{len(values)}f", *values))
    return made


def values(made):
    return list(struct.unpack(f"<{made.nbytes // 4}f", made.tobytes()))


class CommTest(unittest.TestCase):
    def setUp(self):
        tcuda.set_device(0)
        gc.collect()
        self.before = [tcuda.memory_allocated(device) for device in (0, 1)]

    def allocated(self):
        gc.collect()
        return [tcuda.memory_allocated(device) - self.before[device] for device in (0, 1)]


@two_devices
class Copies(CommTest):
    def test_broadcast(self):
        source = floats([1, 2])
        for made in (comm.broadcast(source), comm.broadcast(Foreign(source), ["cuda:0", 1])):
            self.assertEqual([each.device for each in made], [tcuda.device(0), tcuda.device(1)])
            self.assertEqual([values(each) for each in made], [[1, 2], [1, 2]])
            self.assertEqual(made[0].address, source.address)

    def test_a_result_keeps_the_memory_of_its_input(self):
        made = comm.broadcast(floats([1, 2]), [0])[0]
        self.assertEqual(self.allocated(), [512, 0])
        self.assertEqual(values(made), [1, 2])
        capsule = made.__dlpack__()
        del made
        self.assertEqual(self.allocated(), [512, 0])
        del capsule
        self.assertEqual(self.allocated(), [0, 0])

    def test_a_result_does_not_keep_other_inputs(self):
        made = comm.reduce_add([floats([1]), floats([2])])
        self.assertEqual(values(made), [3])
        self.assertEqual(self.allocated(), [512, 0])

    def test_broadcast_out(self):
        out = [tcuda.empty(2), Foreign(tcuda.empty(2, device=1))]
        made = comm.broadcast(floats([3, 4]), out=out)
        self.assertIs(made[1], out[1])
        self.assertEqual([values(out[0]), values(out[1].inner)], [[3, 4], [3, 4]])
        with self.assertRaises(RuntimeError):
            comm.broadcast(floats([3, 4]), [0], out=out)

    def test_broadcast_coalesced(self):
        sources = [floats([1, 2]), floats([3] * 3), floats([4])]
        made = comm.broadcast_coalesced(sources, [1, 0])
        self.assertEqual(
            [[values(each) for each in row] for row in made], [[[1, 2], [3, 3, 3], [4]]] * 2)
        self.assertEqual([each.device.index for each in made[0]], [1, 1, 1])
        self.assertEqual(
            [each.address for each in made[1]], [source.address for source in sources])
        self.assertEqual(comm.broadcast_coalesced([], [0, 1]), [[], []])

    def test_blocks_of_coalesced_results(self):
        def blocks(**arguments):
            before = tcuda.memory_stats(1)["allocation.all.current"]
            made = comm.broadcast_coalesced(sources, [1], **arguments)
            return tcuda.memory_stats(1)["allocation.all.current"] - before, made

        sources = [floats([1, 2]), floats([3] * 3), floats([4])]
        self.assertEqual(blocks()[0], 1)
        self.assertEqual(blocks(buffer_size=1)[0], 3)
        made = comm.broadcast_coalesced(sources, [1, 0])
        del sources
        made[1][0] = None
        self.assertEqual(self.allocated(), [1024, 1536])
        for stream in (tcuda.Stream(1), tcuda.Stream(1)):  # streams are recorded for it
            for each in made[0]:
                each.__dlpack__(stream=stream.cuda_stream)
        del made, each
        self.assertEqual(self.allocated(), [0, 0])

    def test_scatter(self):
        source = floats(range(6), shape=(2, 3))
        rows = comm.scatter(source)
        self.assertEqual([values(row) for row in rows], [[0, 1, 2], [3, 4, 5]])
        self.assertEqual(rows[0].address, source.address)
        columns = comm.scatter(source, [1, 0], [2, 1], dim=-1, streams=[tcuda.Stream(1), None])
        tcuda.synchronize(1)
        self.assertEqual([values(column) for column in columns], [[0, 1, 3, 4], [2, 5]])
        self.assertEqual([column.shape for column in columns], [(2, 2), (2, 1)])
        self.assertEqual(len(comm.scatter(source, [0, 1, 0])), 2)  # there are two rows
        del source, columns
        self.assertEqual(values(rows[0]), [0, 1, 2])

    def test_scatter_out(self):
        out = (tcuda.empty((1, 3), device=1), tcuda.empty((1, 3)))
        made = comm.scatter(floats(range(6), shape=(2, 3)), out=out)
        self.assertIs(made, out)
        self.assertEqual([values(row) for row in out], [[0, 1, 2], [3, 4, 5]])

    def test_gather(self):
        sources = [floats([1, 2], shape=(2, 1)), Foreign(floats([3, 4], 1, (2, 1)))]
        self.assertEqual(values(comm.gather(sources)), [1, 2, 3, 4])
        made = comm.gather(sources, dim=1, destination=1)
        self.assertEqual((made.shape, made.device.index, values(made)), ((2, 2), 1, [1, 3, 2, 4]))
        on_host = comm.gather(sources, destination="cpu")
        self.assertEqual((on_host.device, values(on_host)), (None, [1, 2, 3, 4]))
        self.assertEqual(on_host.__dlpack_device__(), (1, 0))
        out = tcuda.empty((4, 1))
        self.assertIs(comm.gather(sources, out=out), out)
        self.assertEqual(values(out), [1, 2, 3, 4])
        with self.assertRaises(RuntimeError):
            comm.gather(sources, destination=0, out=out)

    def test_refusals(self):
        source = floats([1, 2])
        for error, call in (
            (tcuda.CudaError, lambda: comm.broadcast(source, [5])),
            (TypeError, lambda: comm.broadcast([1, 2])),
            (ValueError, lambda: comm.broadcast(source, ["xpu:0"])),
            (ValueError, lambda: comm.scatter(source, [0, 1], [2])),
            (tcuda.InvalidArgumentError, lambda: comm.scatter(source, [0, 1], [2, 1])),
            (ValueError, lambda: comm.scatter(source, [0, 1], streams=[None])),
            (tcuda.InvalidArgumentError, lambda: comm.gather([])),
            (tcuda.InvalidArgumentError, lambda: comm.gather([source, tcuda.empty(2, "int8")])),
        ):
            with self.assertRaises(error):
                call()


@two_devices
class Sums(CommTest):
    def test_reduce_add(self):
        made = comm.reduce_add([floats([1, 2]), Foreign(floats([10, 20], 1))], destination=1)
        self.assertEqual((made.device.index, values(made)), (1, [11, 22]))

    def test_reduce_add_coalesced(self):
        lists = [[floats([1]), floats([2, 3])], [floats([10], 1), floats([20, 30], 1)]]
        made = comm.reduce_add_coalesced(lists)
        self.assertEqual([values(each) for each in made], [[11], [22, 33]])
        with self.assertRaisesRegex(ValueError, "lengths"):
            comm.reduce_add_coalesced([lists[0], lists[1][:1]])


@two_devices
@unittest.skipUnless(HAS_NCCL, "there is no NCCL: TCUDA_NCCL_PATH may name one")
class Nccl(CommTest):
    def arrays(self, *rows):
        return [floats(row, device) for device, row in enumerate(rows)]

    def results(self, arrays):
        return [values(each) for each in arrays]

    def test_is_available(self):
        self.assertTrue(nccl.is_available(self.arrays([1], [2])))
        self.assertFalse(nccl.is_available([floats([1]), floats([2])]))
        self.assertFalse(nccl.is_available([tcuda.empty((2, 2), strides=(1, 2))]))
        self.assertEqual(len(nccl.version()), 3)

    def test_all_reduce(self):
        arrays = self.arrays([1, 2], [10, 20])
        outputs = self.arrays([0, 0], [0, 0])
        nccl.all_reduce(arrays, [Foreign(output) for output in outputs])
        self.assertEqual(self.results(outputs), [[11, 22]] * 2)
        nccl.all_reduce(arrays, op=2, streams=[None, tcuda.Stream(1)])
        tcuda.synchronize(1)
        self.assertEqual(self.results(arrays), [[10, 20]] * 2)

    def test_reduce_and_broadcast(self):
        arrays = self.arrays([1, 2], [10, 20])
        nccl.reduce(arrays, root=1)
        self.assertEqual(self.results(arrays), [[1, 2], [11, 22]])
        output = floats([0, 0])
        nccl.reduce(arrays, output, op=1)
        self.assertEqual(values(output), [11, 44])
        nccl.broadcast(arrays, root=1)
        self.assertEqual(self.results(arrays), [[11, 22]] * 2)

    def test_all_gather_and_reduce_scatter(self):
        outputs = self.arrays([0, 0], [0, 0])
        nccl.all_gather(self.arrays([1], [2]), outputs)
        self.assertEqual(self.results(outputs), [[1, 2]] * 2)
        parts = self.arrays([0], [0])
        nccl.reduce_scatter(outputs, parts)
        self.assertEqual(self.results(parts), [[2], [4]])

    def test_ranks_on_threads(self):
        uid, results = nccl.unique_id(), [None, None]
        self.assertEqual(len(uid), 128)

        def rank(index):
            with tcuda.device(index):
                communicator = nccl.init_rank(2, uid, index)
                own, other = floats([index + 1], index), floats([0], index)
                with nccl.group():
                    nccl.send(own, 1 - index, communicator)
                    nccl.recv(other, 1 - index, communicator)
                nccl.all_reduce([own], comms=[communicator])
                communicator.query()
                results[index] = values(own) + values(other)

        threads = [threading.Thread(target=rank, args=(index,)) for index in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, [[3, 2], [3, 1]])

    def test_abort(self):
        communicator = nccl.init_rank(1, nccl.unique_id(), 0)
        communicator.abort()
        with self.assertRaises(tcuda.CudaError) as raised:
            nccl.all_reduce([floats([1])], comms=[communicator])
        self.assertEqual(raised.exception.status, "INVALID_STATE")
        nccl.all_reduce(self.arrays([1], [2]))  # the group was closed

    def test_refusals(self):
        arrays = self.arrays([1, 2], [3, 4])
        for error, call in (
            (TypeError, lambda: nccl.all_reduce(arrays[0])),
            (ValueError, lambda: nccl.all_reduce([arrays[0], floats([1], 1)])),
            (ValueError, lambda: nccl.all_reduce(arrays, arrays[:1])),
            (ValueError, lambda: nccl.all_reduce(arrays, streams=[None])),
            (ValueError, lambda: nccl.reduce(arrays, root=2)),
            (tcuda.CudaError, lambda: nccl.all_reduce(arrays, op=17)),
            (tcuda.CudaError, lambda: nccl.all_reduce([arrays[0], arrays[0]])),
            (tcuda.InvalidArgumentError, lambda: nccl.all_gather(arrays, arrays)),
            (ValueError, lambda: nccl.init_rank(1, b"short", 0)),
        ):
            with self.assertRaises(error):
                call()
        nccl.all_reduce(arrays)
        self.assertEqual(self.results(arrays), [[4, 6]] * 2)


if __name__ == "__main__":
    unittest.main()
