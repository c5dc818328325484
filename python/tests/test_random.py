"""Random number generators. A state is the seed and the offset, little-endian."""

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

    def test_all(self):
        states = [struct.pack("<QQ", seed, 4) for seed in range(1, COUNT + 1)]
        tcuda.set_rng_state_all(states)
        self.assertEqual(tcuda.get_rng_state_all(), states)
        self.assertEqual(tcuda.get_rng_state(0), states[0])


if __name__ == "__main__":
    unittest.main()
