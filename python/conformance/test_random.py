"""Seeds and states of the generators."""

import struct
import unittest

from adapters import cuda, draw, state_bytes, state_from
from base import Case, each, two_devices


def content(seed, offset=0):
    """The bytes of a state."""
    return struct.pack("<Qq", seed, offset)


class RandomCase(Case):
    def state(self, *device):
        return state_bytes(cuda.get_rng_state(*device))


class Seeds(RandomCase):
    @each(zero=(0, 0), some=(42, 42), large=(2**63 - 1, 2**63 - 1), largest=(2**64 - 1, 2**64 - 1),
          negative=(-1, 2**64 - 1), least=(-2**63, 2**63), float_=(7.9, 7), text=("8", 8),
          true=(True, 1))
    def test_manual(self, seed, expected):
        self.assertIsNone(cuda.manual_seed(seed))
        self.assertEqual(cuda.initial_seed(), expected)
        self.assertEqual(self.state(), content(expected))

    @each(some=42, zero=0)
    def test_manual_of_all(self, seed):
        self.assertIsNone(cuda.manual_seed_all(seed))
        states = [state_bytes(state) for state in cuda.get_rng_state_all()]
        self.assertEqual(states, [content(seed)] * cuda.device_count())

    def test_ends_the_offset(self):
        draw(self.alloc(512))
        cuda.manual_seed(1)
        self.assertEqual(self.state(), content(1))

    def test_random(self):
        seeds = set()
        for _ in range(4):
            self.assertIsNone(cuda.seed())
            seeds.add(cuda.initial_seed())
            self.assertEqual(self.state(), content(cuda.initial_seed()))
        self.assertEqual(len(seeds), 4)

    def test_random_of_all(self):
        self.assertIsNone(cuda.seed_all())
        first = cuda.initial_seed()
        states = {state_bytes(state) for state in cuda.get_rng_state_all()}
        self.assertEqual(states, {content(first)})
        cuda.seed_all()
        self.assertNotEqual(cuda.initial_seed(), first)

    def test_initial_is_an_int(self):
        self.assertIs(type(cuda.initial_seed()), int)

    @two_devices
    def test_of_the_current_device(self):
        cuda.manual_seed_all(1)
        with cuda.device(1):
            cuda.manual_seed(2)
            self.assertEqual(cuda.initial_seed(), 2)
        self.assertEqual(cuda.initial_seed(), 1)
        self.assertEqual((self.state(0), self.state(1)), (content(1), content(2)))

    @each(large=2**64, negative=-2**63 - 1)
    def test_too_large(self, seed):
        cuda.manual_seed(3)
        self.assertRaises((RuntimeError, ValueError), cuda.manual_seed, seed)
        self.assertEqual(cuda.initial_seed(), 3)

    @each(text=("x", ValueError), none=(None, TypeError), list_=([1], TypeError))
    def test_type(self, seed, kind):
        self.assertRaises(kind, cuda.manual_seed, seed)


class States(RandomCase):
    @each(default=(), number=(0,), text=("cuda:0",), current=("cuda",))
    def test_device(self, *device):
        cuda.manual_seed(9)
        self.assertEqual(self.state(*device), content(9))

    def test_round_trip(self):
        cuda.manual_seed(4)
        state = cuda.get_rng_state()
        cuda.manual_seed(5)
        self.assertIsNone(cuda.set_rng_state(state))
        self.assertEqual((cuda.initial_seed(), self.state()), (4, content(4)))

    @each(default=(), number=(0,), text=("cuda:0",))
    def test_set(self, *device):
        cuda.set_rng_state(state_from(content(77, 16)), *device)
        self.assertEqual(self.state(), content(77, 16))
        self.assertEqual(cuda.initial_seed(), 77)

    def test_is_a_copy(self):
        cuda.manual_seed(4)
        state = cuda.get_rng_state()
        cuda.manual_seed(5)
        self.assertEqual(state_bytes(state), content(4))

    def test_seed_alone(self):
        """8 bytes are a seed with the offset 0."""
        draw(self.alloc(512))
        cuda.set_rng_state(state_from(struct.pack("<Q", 31)))
        self.assertEqual(self.state(), content(31))

    def test_all(self):
        cuda.manual_seed_all(11)
        states = cuda.get_rng_state_all()
        self.assertEqual((type(states), len(states)), (list, cuda.device_count()))
        cuda.manual_seed_all(12)
        self.assertIsNone(cuda.set_rng_state_all(states))
        self.assertEqual(
            [state_bytes(state) for state in cuda.get_rng_state_all()],
            [content(11)] * cuda.device_count())

    @two_devices
    def test_of_another_device(self):
        cuda.manual_seed_all(1)
        cuda.set_rng_state(state_from(content(2, 8)), 1)
        self.assertEqual((self.state(0), self.state("cuda:1")), (content(1), content(2, 8)))

    @each(empty=0, short=15, long=17, legacy=816)
    def test_size(self, size):
        cuda.manual_seed(3)
        with self.assertRaises(RuntimeError):
            cuda.set_rng_state(state_from(bytes(size)))
        self.assertEqual(self.state(), content(3))


class Draws(RandomCase):
    def test_offset(self):
        cuda.manual_seed(3)
        address = self.alloc(512)
        for draws in range(1, 4):
            draw(address)
            self.assertEqual(self.state(), content(3, 4 * draws))

    def test_fork(self):
        """Numbers that are drawn aside, as torch.random.fork_rng does."""
        cuda.manual_seed(3)
        address = self.alloc(512)
        draw(address)
        state = cuda.get_rng_state()
        cuda.manual_seed(4)
        draw(address)
        draw(address)
        cuda.set_rng_state(state)
        draw(address)
        self.assertEqual(self.state(), content(3, 8))

    @two_devices
    def test_of_one_device(self):
        cuda.manual_seed_all(3)
        draw(self.alloc(512))
        self.assertEqual((self.state(0), self.state(1)), (content(3, 4), content(3)))


class Generators(RandomCase):
    """The default generators of the devices."""

    def setUp(self):
        super().setUp()
        self.generator = cuda.default_generators[0]

    def test_number(self):
        self.assertEqual(len(cuda.default_generators), cuda.device_count())
        self.assertIs(type(cuda.default_generators), tuple)

    def test_device(self):
        self.assertEqual(str(self.generator.device), "cuda:0")

    def test_is_that_of_the_device(self):
        cuda.manual_seed(21)
        self.assertEqual(self.generator.initial_seed(), 21)
        self.generator.manual_seed(22)
        self.assertEqual(cuda.initial_seed(), 22)

    def test_manual_seed_gives_it(self):
        self.assertIs(self.generator.manual_seed(1), self.generator)

    def test_seed(self):
        seed = self.generator.seed()
        self.assertEqual((seed, self.state()), (self.generator.initial_seed(), content(seed)))
        self.assertNotEqual(self.generator.seed(), seed)

    def test_offset(self):
        self.generator.manual_seed(2)
        self.generator.set_offset(12)
        self.assertEqual(self.generator.get_offset(), 12)
        self.assertEqual(self.state(), content(2, 12))

    @each(one=1, two=2, six=6)
    def test_offset_that_is_no_multiple_of_4(self, offset):
        self.generator.manual_seed(2)
        self.assertRaises(RuntimeError, self.generator.set_offset, offset)
        self.assertEqual(self.generator.get_offset(), 0)

    def test_state(self):
        self.generator.set_state(state_from(content(6, 20)))
        self.assertEqual(state_bytes(self.generator.get_state()), content(6, 20))
        self.assertEqual(
            (self.generator.initial_seed(), self.generator.get_offset()), (6, 20))


if __name__ == "__main__":
    unittest.main()
