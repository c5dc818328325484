"""Elementwise functions; those that run need NVRTC."""

import itertools
import os
import pathlib
import struct
import tempfile
import unittest

import tcuda
from support import OTHER, run_program
from tcuda import _core, jiterator
from tcuda.arrays import tensor_list

AXPY = "template <typename T> T axpy(T x, T y, T alpha) { return alpha * x + y; }"


def has_compiler():
    # A name that is new, so that no cache has it.
    name = f"f{os.urandom(8).hex()}"
    function = jiterator._create_jit_fn(f"template <typename T> T {name}(T x) {{ return x; }}")
    try:
        function(tcuda.empty(1))
    except tcuda.CudaError as error:
        if error.status == "NO_LIBRARY":
            return False
        raise
    return True


def made(code, values, dtype, shape=None, device=0):
    result = tcuda.empty(len(values) if shape is None else shape, dtype, device)
    result.copy_from(struct.pack(f"<{len(values)}{code}", *values))
    return result


def values(code, array):
    count = array.nbytes // struct.calcsize(code)
    return list(struct.unpack(f"<{count}{code}", array.tobytes()))


@unittest.skipUnless(has_compiler(), "there is no NVRTC: TCUDA_NVRTC_PATH may name one")
class Calls(unittest.TestCase):
    def test_extra_arguments(self):
        axpy = jiterator._create_jit_fn(AXPY, alpha=2.0)
        x, y = made("f", [1, 2, 3], "float32"), made("f", [10, 20, 30], "float32")
        self.assertEqual(values("f", axpy(x, y)), [12, 24, 36])
        for alpha, expected in ((3, [13, 26, 39]), (0.5, [10.5, 21, 31.5]), (True, [11, 22, 33])):
            self.assertEqual(values("f", axpy(x, y, alpha=alpha)), expected)
        with self.assertRaisesRegex(KeyError, "beta"):
            axpy(x, y, beta=1)
        with self.assertRaises(TypeError):
            axpy(x, y, alpha="1")

    def test_complex_argument(self):
        scale = jiterator._create_jit_fn("template <typename T> T f(T x, T a) { return x * a; }",
                                         a=1.0)
        x = made("f", [1, 2], "complex64", shape=(1,))
        self.assertEqual(values("f", scale(x, a=2j)), [-4, 2])

    def test_shapes_and_types(self):
        add = jiterator._create_jit_fn("template <typename T> T add(T x, T y) { return x + y; }")
        result = add(made("i", [1, 2], "int32", (2, 1)), made("f", [0.5, 1.5, 2.5], "float32"))
        self.assertEqual((result.shape, result.dtype), ((2, 3), "float32"))
        self.assertEqual(values("f", result), [1.5, 2.5, 3.5, 2.5, 3.5, 4.5])
        with self.assertRaisesRegex(ValueError, "broadcast"):
            add(tcuda.empty(2), tcuda.empty(3))

    def test_several_results_on_another_device(self):
        both = jiterator._create_multi_output_jit_fn(
            "template <typename T> void f(T x, T &twice, T &square) { twice = 2*x; square = x*x; }",
            2)
        results = both(made("h", [3, -4], "int16", device=OTHER))
        self.assertEqual([values("h", result) for result in results], [[6, -8], [9, 16]])
        self.assertEqual([result.device.index for result in results], [OTHER, OTHER])

    def test_invalid_code(self):
        wrong = jiterator._create_jit_fn("template <typename T> T f(T x) { return y; }")
        with self.assertRaisesRegex(tcuda.CudaError, "y") as raised:
            wrong(tcuda.empty(1))
        self.assertEqual(raised.exception.status, "COMPILE_ERROR")

    def test_graphed_callables(self):
        axpy = jiterator._create_jit_fn(AXPY, alpha=2)
        samples = (tcuda.empty(2), tcuda.empty(2))
        first, second = tcuda.make_graphed_callables(
            (lambda x, y: (axpy(x, y), axpy(y, x)), lambda x: [axpy(x, x)]),
            (samples, samples[:1]))
        x, y = made("f", [1, 2], "float32"), made("f", [10, 20], "float32")
        for factor in (1, 3):
            x.copy_from(struct.pack("<2f", factor, 2 * factor))
            results = first(x, y)
            self.assertEqual(values("f", results[0]), [2 * factor + 10, 4 * factor + 20])
            self.assertEqual(values("f", results[1]), [20 + factor, 40 + 2 * factor])
            again = values("f", second(results[0])[0])
            self.assertEqual(again, [6 * factor + 30, 12 * factor + 60])


class Types(unittest.TestCase):
    def common(self, *arrays):
        return jiterator._common_type([tcuda.empty(shape, dtype) for dtype, shape in arrays])

    def test_promotion(self):
        for a, b, expected in (
            ("bool", "uint8", "uint8"), ("uint8", "int8", "int16"), ("int8", "int64", "int64"),
            ("uint8", "int32", "int32"), ("int64", "float16", "float16"),
            ("float16", "bfloat16", "float32"), ("bfloat16", "float64", "float64"),
            ("int32", "complex64", "complex64"), ("float64", "complex64", "complex128"),
            ("float16", "complex32", "complex32"), ("bfloat16", "complex32", "complex64"),
            ("uint32", "float32", "float32"), ("uint64", "uint64", "uint64"),
            ("float8_e5m2", "float8_e5m2", "float8_e5m2"),
        ):
            self.assertEqual(self.common((a, 1), (b, 1)), expected, (a, b))
            self.assertEqual(self.common((b, 1), (a, 1)), expected, (b, a))
        for a, b in (("uint16", "int32"), ("float8_e5m2", "float32"), ("uint32", "float8_e5m2")):
            with self.assertRaises(TypeError):
                self.common((a, 1), (b, 1))

    def test_arrays_without_dimensions(self):
        for dtype, scalar, expected in (
            ("int8", "int64", "int8"), ("int8", "float64", "float64"), ("bool", "int8", "int8"),
            ("float16", "float64", "float16"), ("float16", "complex128", "complex32"),
            ("bfloat16", "complex64", "complex64"), ("complex64", "float64", "complex64"),
        ):
            self.assertEqual(self.common((scalar, ()), (dtype, 1)), expected, (dtype, scalar))
        self.assertEqual(self.common(("int8", ()), ("int64", ())), "int64")

    def test_it_is_the_type_that_the_library_expects(self):
        add = jiterator._create_jit_fn("template <typename T> T add(T x, T y) { return x + y; }")
        types = 0
        for a, b in itertools.product(tcuda.arrays._DTYPES, repeat=2):
            for shapes in (((0,), (0,)), ((0,), ()), ((), (0,))):  # so that nothing is compiled
                x, y = tcuda.empty(shapes[0], a), tcuda.empty(shapes[1], b)
                try:
                    add(x, y)  # the library refuses a result of another type
                    types += 1
                except TypeError:
                    for dtype in tcuda.arrays._DTYPES:
                        result = tcuda.empty((0,), dtype)  # tensor_list does not keep it
                        with self.assertRaises(tcuda.InvalidArgumentError):
                            _core.jit_call(
                                add._handle, tensor_list([x, y]), {}, tensor_list([result]))
        self.assertGreater(types, 700)

    def test_extra_arguments_that_change_meanwhile(self):
        class Number:
            def __float__(self):
                extra.update((f"a{index}", Number()) for index in range(100))
                return 2.0

        extra = {"alpha": Number()}
        _core.jit_destroy(_core.jit_create(AXPY, extra))
        self.assertEqual(len(extra), 101)

    def test_too_many_extra_arguments(self):
        with self.assertRaisesRegex(ValueError, "32"):
            jiterator._create_jit_fn(AXPY, **{f"a{index}": 1 for index in range(33)})


class Compiler(unittest.TestCase):
    @unittest.skipUnless(os.environ.get("TCUDA_NVRTC_PATH"), "TCUDA_NVRTC_PATH names no NVRTC")
    def test_of_pip_is_found(self):
        program = f"""
            import os, sys
            del os.environ["TCUDA_NVRTC_PATH"]
            import tcuda
            sys.path.append(os.environ["FOLDER"])
            code = "template <typename T> T f{os.urandom(8).hex()}(T x) {{ return x + 1; }}"
            array = tcuda.empty(1, "int8")
            array.copy_from(b"a")
            print(tcuda.jiterator._create_jit_fn(code)(array).tobytes())
            maps = open("/proc/self/maps").read()
            assert os.environ["FOLDER"] in maps or os.environ["REAL"] in maps, maps
        """
        real = pathlib.Path(os.environ["TCUDA_NVRTC_PATH"]).resolve().parent
        with tempfile.TemporaryDirectory() as folder:
            package = pathlib.Path(folder, "nvidia/cuda_nvrtc")
            package.mkdir(parents=True)
            (package / "lib").symlink_to(real)
            result = run_program(program, FOLDER=folder, REAL=str(real), LD_LIBRARY_PATH="")
        self.assertEqual((result.stdout, result.returncode), ("b'b'\n", 0), result.stderr)


if __name__ == "__main__":
    unittest.main()
