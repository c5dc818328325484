"""Random number generators. A state is the seed and the offset, little-endian."""

import math
import statistics
import struct
import unittest

import tcuda
from support import COUNT, OTHER, TestCase, two_devices


class Seeds(TestCase):
    @two_devices
    def test_of_the_current_device(self):
        tcuda.manual_seed_all(7)
        tcuda.manual_seed(42)
        self.assertEqual(tcuda.initial_seed(), 42)
        self.assertEqual(tcuda.get_rng_state(), struct.pack("<QQ", 42, 0))
        self.assertEqual(tcuda.get_rng_state(1), struct.pack("<QQ", 7, 0))

    def test_negative_seed(self):
        tcuda.manual_seed(-1)
        self.assertEqual(tcuda.initial_seed(), (1 << 64) - 1)

    def test_seed_beyond_64_bits(self):
        for seed in (1 << 64, -(1 << 63) - 1):
            self.assertRaises(RuntimeError, tcuda.manual_seed, seed)
            self.assertRaises(ValueError, tcuda.manual_seed_all, seed)

    def test_random_seeds(self):
        tcuda.seed_all()
        with tcuda.device(OTHER):
            self.assertEqual(tcuda.initial_seed(), tcuda.random.initial_seed())
            of_other = tcuda.initial_seed()
        self.assertEqual(tcuda.initial_seed(), of_other)
        tcuda.seed()
        self.assertNotEqual(tcuda.initial_seed(), of_other)


class States(TestCase):
    def test_one(self):
        state = struct.pack("<QQ", 3, 8)
        for kind in (bytes, bytearray, memoryview):
            tcuda.set_rng_state(kind(state), f"cuda:{OTHER}")
            self.assertEqual(tcuda.get_rng_state(OTHER), state)
        self.assertRaises(ValueError, tcuda.set_rng_state, state[:-1])
        for number in (16, 1 << 60):  # bytes(number) would be zeros
            self.assertRaises(TypeError, tcuda.set_rng_state, number)
            self.assertRaises(TypeError, tcuda.Generator(0).set_state, number)

    def test_all(self):
        states = [struct.pack("<QQ", seed, 4) for seed in range(1, COUNT + 1)]
        tcuda.set_rng_state_all(states)
        self.assertEqual(tcuda.get_rng_state_all(), states)
        self.assertEqual(tcuda.get_rng_state(0), states[0])


def values(array, code="f"):
    count = array.nbytes // struct.calcsize(code)
    return struct.unpack(f"<{count}{code}", array.tobytes())


class Fills(unittest.TestCase):
    def setUp(self):
        tcuda.manual_seed(0)

    def assert_close(self, array, expected):
        for value, other in zip(values(array), expected, strict=True):
            self.assertAlmostEqual(value, other, places=4)

    def test_numbers_are_those_of_pytorch(self):
        # torch.rand and torch.randn on a GPU, after torch.manual_seed(0)
        self.assert_close(
            tcuda.uniform_(tcuda.empty(5)), [0.3990, 0.5167, 0.0249, 0.9401, 0.9459])
        tcuda.manual_seed(0)
        self.assert_close(tcuda.normal_(tcuda.empty(4)), [-0.9247, -0.4253, -2.6438, 0.1452])

    def test_arguments(self):
        self.assertEqual(set(values(tcuda.uniform_(tcuda.empty(9), 3, 3))), {3.0})
        self.assertEqual(set(values(tcuda.normal_(tcuda.empty(9), 2, 0))), {2.0})
        self.assertTrue(all(5 <= value < 9 for value in values(
            tcuda.uniform_(tcuda.empty(1000), 5, 9))))
        self.assertEqual(set(values(tcuda.bernoulli_(tcuda.empty(9), 1))), {1.0})
        # 1 - 0.8**3 < 1/2 < 1 - 0.8**4
        self.assertEqual(statistics.median(values(tcuda.geometric_(tcuda.empty(9999), 0.2))), 4)
        for fill, median in ((tcuda.exponential_, math.log(2)), (tcuda.log_normal_, math.e),
                             (tcuda.cauchy_, 0)):
            found = statistics.median(values(fill(tcuda.empty(10001))))
            self.assertAlmostEqual(found, median, delta=0.15, msg=fill.__name__)

    def test_integers(self):
        def drawn(*bounds):
            return set(values(tcuda.random_(tcuda.empty(2000, "int8"), *bounds), "b"))

        self.assertEqual(drawn(), set(range(128)))
        self.assertEqual(drawn(3), {0, 1, 2})
        self.assertEqual(drawn(-2, 2), {-2, -1, 0, 1})
        self.assertEqual(drawn(100, None), set(range(100, 128)))
        for bounds in ((None,), (1, 2, 3), (1.5,)):
            self.assertRaises(TypeError, drawn, *bounds)

    def test_probability_of_each(self):
        p = tcuda.empty(4)
        p.copy_from(struct.pack("<4f", 0, 1, 1, 0))
        result = tcuda.empty(4, "int8", strides=(2,))
        self.assertIs(tcuda.bernoulli_(result, p), result)
        self.assertEqual(values(result, "b"), (0, 1, 1, 0))

    def test_generator(self):
        generator = tcuda.Generator().manual_seed(0)
        tcuda.manual_seed(1)
        array = tcuda.uniform_(tcuda.empty(1), generator=generator)
        self.assert_close(array, [0.3990])
        self.assertEqual(generator.get_offset(), 4)
        self.assertEqual(tcuda.get_rng_state(), struct.pack("<QQ", 1, 0))
        if COUNT > 1:
            with self.assertRaises(tcuda.InvalidArgumentError):
                tcuda.uniform_(tcuda.empty(1, device=1), generator=generator)

    def test_refusals(self):
        for call in (
            lambda: tcuda.uniform_(tcuda.empty(1, "int8")),
            lambda: tcuda.uniform_(tcuda.empty(1), 2, 1),
            lambda: tcuda.normal_(tcuda.empty(1), std=-1),
            lambda: tcuda.bernoulli_(tcuda.empty(1), 2),
        ):
            self.assertRaises(tcuda.InvalidArgumentError, call)
        self.assertRaises(TypeError, tcuda.uniform_, [1.0])


if __name__ == "__main__":
    unittest.main()
