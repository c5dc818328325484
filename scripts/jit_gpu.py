#!/usr/bin/env python3
"""Compares functions of elements with torch.cuda.jiterator, bit for bit, on a GPU.

  jit_gpu.py LIBRARY [--budget SECONDS] [--out FOLDER] [--only TEXT] [--part NAME]

LIBRARY is libtcuda.so. Functions, types and ways in which tensors lie get the same inputs by both,
infinities and NaNs among them. Parts, in this order: "corpus", one function with every pair of types in
every layout; "functions", the others with one pair for each kind of numbers, side by side and turned;
"rest", all that is left. PyTorch compiles for each pair of types and some of the layouts, which takes
most of the time: what has not begun when the budget is spent is left out and counted. Each case is a line
of FOLDER/jit_cases.jsonl as soon as it is known, and each pair of types a line of the output. What
PyTorch cannot compile is counted apart. The table comes last; exit status 1: something differs.
"""

import argparse
import collections
import ctypes
import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from random_gpu import Dtype, Tensor

# Name, code, inputs, extra arguments, types: f floats, i integers, c complex numbers, b bool.
FUNCTIONS = [
    ("axpy", "template <typename T> T axpy(T x, T y, T alpha) { return alpha * x + y; }", 2,
     {"alpha": 2.5}, "fc"),
    ("integer_axpy", "template <typename T> T axpy(T x, T y, T alpha) { return alpha * x + y; }", 2,
     {"alpha": 3}, "fic"),
    ("product", "template <typename T> T product(T x, T y) { return x * y; }", 2, {}, "ficb"),
    ("quotient", "template <typename T> T quotient(T x, T y) { return x / y; }", 2, {}, "fc"),
    ("larger", "template <typename T> T larger(T x, T y) { return x < y ? y : x; }", 2, {}, "fib"),
    ("gelu", "template <typename T> T gelu(T x) { return T(0.5) * x * (T(1) + std::erf(x * "
     "T(0.70710678118654752440))); }", 1, {}, "f"),
    ("helper", "template <typename T> T square(T x) { return x * x; }\n"
     "template <typename T> T helper(T x, T y) { return square(x) - square(y); }", 2, {}, "fic"),
    ("exponentials", "template <typename T> T f(T x) { return std::exp(x) + std::tanh(x); }", 1, {}, "f"),
    ("logarithms", "template <typename T> T f(T x) { return std::log(std::abs(x)) * std::log1p("
     "std::abs(x)); }", 1, {}, "f"),
    ("waves", "template <typename T> T f(T x) { return std::sin(x) * std::cos(x); }", 1, {}, "f"),
    ("powers", "template <typename T> T f(T x, T y) { return std::pow(std::abs(x), y); }", 2, {}, "f"),
    ("complex_exp", "template <typename T> T f(T x) { return std::exp(x); }", 1, {}, "c"),
    ("complex_sqrt", "template <typename T> T f(T x) { return std::sqrt(x); }", 1, {}, "c"),
    ("complex_log", "template <typename T> T f(T x) { return std::log(x); }", 1, {}, "c"),
    ("complex_abs", "template <typename T> T f(T x) { return std::abs(x); }", 1, {}, "c"),
    ("four", "template <typename T> T f(T a, T b, T c, T d) { return a * b + c * d; }", 4, {}, "fi"),
]
MULTIPLE = ("template <typename T> void f(T x, T y, T by, T& sum, T& difference) "
            "{ sum = x + by * y; difference = x - y; }", {"by": 2.0})
TYPES = {
    "f": [("float32",) * 2, ("float64",) * 2, ("float16",) * 2, ("bfloat16",) * 2, ("float16", "float32"),
          ("float16", "bfloat16"), ("int32", "float16"), ("int64", "float32"), ("bool", "float32"),
          ("float32", "float64"), ("uint8", "bfloat16")],
    "i": [(name,) * 2 for name in ("uint8", "int8", "int16", "int32", "int64")]
         + [("uint8", "int8"), ("int16", "int64"), ("bool", "int32")],
    "c": [("complex64",) * 2, ("complex128",) * 2, ("float32", "complex64"), ("complex32",) * 2],
    "b": [("bool",) * 2],
}
SCALAR_KINDS = {float: 0, int: 1, bool: 2, complex: 3}


class Scalar(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("kind", ctypes.c_int32), ("integer", ctypes.c_int64),
                ("real", ctypes.c_double), ("imaginary", ctypes.c_double)]

    @classmethod
    def of(cls, name, value):
        made = cls(name.encode(), SCALAR_KINDS[type(value)])
        made.integer = int(value) if isinstance(value, (int, bool)) else 0
        made.real, made.imaginary = complex(value).real, complex(value).imag
        return made


class Options(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("scalars", ctypes.POINTER(Scalar)),
                ("num_scalars", ctypes.c_size_t)]


def view_of(tensor):
    view = Tensor.of(tensor)
    name = str(tensor.dtype).removeprefix("torch.")
    if name.startswith("complex"):
        view.dtype = Dtype(5, 8 * tensor.element_size(), 1)
    return view


class Library:
    def __init__(self, path):
        self.tcuda = ctypes.CDLL(str(path))
        self.tcuda.tcuda_last_error.restype = ctypes.c_char_p

    def call(self, function, *arguments):
        status = getattr(self.tcuda, function)(*arguments)
        if status:
            raise RuntimeError(f"{function}: {status}: {self.tcuda.tcuda_last_error().decode()}")

    def create(self, code, outputs, scalars):
        handle = ctypes.c_void_p()
        listed = (Scalar * max(1, len(scalars)))(*(Scalar.of(*item) for item in scalars.items()))
        options = Options(ctypes.sizeof(Options), listed, len(scalars))
        if outputs is None:
            self.call("tcuda_jit_create", code.encode(), ctypes.byref(options), ctypes.byref(handle))
        else:
            self.call("tcuda_jit_create_multi", code.encode(), outputs, ctypes.byref(options),
                      ctypes.byref(handle))
        return handle

    def prepared(self, handle, inputs, outputs):
        """A call that can be made over and over, with as little of Python as can be."""
        of = lambda tensors: (Tensor * len(tensors))(*(view_of(tensor) for tensor in tensors))
        inputs, outputs = of(inputs), of(outputs)
        function = self.tcuda.tcuda_jit_call
        counts = ctypes.c_size_t(len(inputs)), ctypes.c_size_t(len(outputs))

        def call(keep=(inputs, outputs)):
            status = function(handle, inputs, counts[0], None, 0, outputs, counts[1], None)
            if status:
                raise RuntimeError(f"{status}: {self.tcuda.tcuda_last_error().decode()}")

        return call


def numbers(torch, dtype, count, seed):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    kind = getattr(torch, dtype)
    if dtype == "bool":
        return torch.rand(count, generator=generator, device="cuda") < 0.5
    if dtype.startswith(("int", "uint")):
        return torch.randint(0, 100, (count,), generator=generator, device="cuda").to(kind)
    values = torch.randn(count, generator=generator, device="cuda", dtype=torch.float64) * 4
    if dtype.startswith("complex"):
        other = torch.randn(count, generator=generator, device="cuda", dtype=torch.float64) * 4
        special = [complex(0, 0), complex(1, float("inf")), complex(float("nan"), 1), complex(-1, 0)]
        values = torch.complex(values, other)
        values[:4] = torch.tensor(special, device="cuda", dtype=torch.complex128)
        # There is no conversion to complex32 on every version.
        if dtype == "complex32":
            return torch.view_as_complex(torch.view_as_real(values).to(torch.float16))
        return values.to(kind)
    values[:6] = torch.tensor([0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-8], device="cuda")
    return values.to(kind)


def layouts(torch, dtypes, inputs):
    """Inputs of each layout, by its name."""
    def of(which, count):
        return numbers(torch, dtypes[which % len(dtypes)], count, which + 1)

    def all_of(shape_of, count):
        return [shape_of(which, of(which, count)) for which in range(inputs)]

    yield "side by side", all_of(lambda _, t: t, 9001)
    yield "at odd addresses", all_of(lambda _, t: t[1:], 4101)
    yield "one element", all_of(lambda which, t: t if which == 0 else t[7:8], 3000)
    yield "without dimensions", all_of(lambda which, t: t if which == 0 else t[9], 3000)
    yield "rows and columns", all_of(
        lambda which, t: t.view(30, 40) if which == 0 else t[:30, None] if which % 2 else t[:40], 1200)
    yield "transposed", all_of(lambda which, t: t.view(30, 40) if which else t.view(40, 30).t(), 1200)
    yield "with gaps", all_of(lambda which, t: t.view(100, 40)[::2, which % 3::3][:, :12], 4000)


def bits(torch, tensor):
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def same(torch, a, b):
    a, b = (bits(torch, t).contiguous().flatten().view(torch.uint8) for t in (a, b))
    return bool(torch.equal(a, b))


QUICK = ("side by side", "transposed")


class Function:
    """A function, made by both when it is first needed: PyTorch compiles for each pair of types."""

    def __init__(self, ours, name, code, inputs, scalars, classes, outputs=None):
        self.ours, self.name, self.code, self.inputs = ours, name, code, inputs
        self.scalars, self.classes, self.outputs = scalars, classes, outputs
        self.made = None

    def both(self, torch):
        if self.made is None:
            create = torch.cuda.jiterator
            theirs = (create._create_jit_fn(self.code, **self.scalars) if self.outputs is None else
                      create._create_multi_output_jit_fn(self.code, self.outputs, **self.scalars))
            self.made = self.ours.create(self.code, self.outputs, self.scalars), theirs
        return self.made


def groups(functions):
    """What is compared together: the part, a function, types, and the layouts or None for all."""
    corpus, *others = functions
    for kind in corpus.classes:
        for dtypes in TYPES[kind]:
            yield "corpus", corpus, dtypes, None
    for function in others:
        for kind in function.classes:
            yield "functions", function, TYPES[kind][0], QUICK
    for function in others:
        for kind in function.classes:
            for index, dtypes in enumerate(TYPES[kind]):
                yield "rest", function, dtypes, None if index else (*QUICK, None)


def compare(torch, function, dtypes, wanted):
    """Cases of one function and pair of types: layout, what came out, and what differs."""
    ours, theirs = function.both(torch)
    for layout, tensors in layouts(torch, dtypes, function.inputs):
        # Those of "rest" leave out what "functions" has had.
        if wanted is not None and (layout in wanted) == (None in wanted):
            continue
        try:
            expected = theirs(*tensors)
        except RuntimeError as error:
            yield layout, "torch cannot", str(error)[:200]
            return
        expected = [expected] if torch.is_tensor(expected) else list(expected)
        found = [torch.full_like(e, 1) for e in expected]
        try:
            function.ours.prepared(ours, tensors, found)()
        except RuntimeError as error:
            yield layout, "failed", str(error)[:400]
            return
        torch.cuda.synchronize()
        if all(same(torch, f, e) for f, e in zip(found, expected)):
            yield layout, "same", ""
            continue
        f, e = bits(torch, found[0]).flatten(), bits(torch, expected[0]).flatten()
        unequal = ((f != e) & ~((f != f) & (e != e))).nonzero().flatten()[:3].tolist()
        values = [(i, f[i].item(), e[i].item()) for i in unequal]
        yield layout, "other", f"element, ours, theirs: {values or 'NaNs or zeros by their bits'}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--budget", type=float, default=150, help="seconds; 150")
    parser.add_argument("--out", type=pathlib.Path, help="folder for jit_cases.jsonl and jit_cases.json")
    parser.add_argument("--only", default="", help="functions with this in their names")
    parser.add_argument("--part", default="", help="corpus, functions or rest alone")
    options = parser.parse_args()
    begin = time.monotonic()
    import torch

    ours = Library(options.library)
    functions = [Function(ours, *row) for row in FUNCTIONS]
    functions.append(Function(ours, "two_outputs", MULTIPLE[0], 2, MULTIPLE[1], "fc", 2))
    # The first one has floats, integers and complex numbers.
    functions.sort(key=lambda function: function.name != "integer_axpy")
    lines = None
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        lines = (options.out / "jit_cases.jsonl").open("w")
    counts, left_out, failures = collections.defaultdict(collections.Counter), 0, []
    for part, function, dtypes, wanted in groups(functions):
        if options.only not in function.name or options.part not in ("", part):
            continue
        if time.monotonic() - begin > options.budget:
            left_out += 1
            continue
        types, found = "+".join(dtypes[:function.inputs]), collections.Counter()
        for layout, result, what in compare(torch, function, dtypes, wanted):
            found[result] += 1
            if result in ("failed", "other"):
                failures.append((f"{function.name} {types} {layout}", what))
                print(f"  {layout}: {what}")
            if lines:
                case = {"part": part, "function": function.name, "types": types, "layout": layout,
                        "result": result, "what": what}
                print(json.dumps(case), file=lines, flush=True)
        counts[function.name].update(found)
        summary = ", ".join(f"{number} {result}" for result, number in found.items())
        print(f"{time.monotonic() - begin:6.1f} s {part:10}{function.name:14}{types:24}{summary}", flush=True)
    for function in functions:
        if function.made:
            ours.call("tcuda_jit_destroy", function.made[0])
    if options.out:
        record = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "counts": counts,
                  "left_out": left_out, "failures": failures}
        (options.out / "jit_cases.json").write_text(json.dumps(record, indent=1))
    print(f"{'function':16}{'same':>7}{'other':>7}{'failed':>8}{'torch cannot':>14}")
    sum_of = collections.Counter()
    for found in counts.values():
        sum_of.update(found)
    for name, found in [*counts.items(), ("all", sum_of)]:
        print(f"{name:16}{found['same']:7}{found['other']:7}{found['failed']:8}{found['torch cannot']:14}")
    print(f"left out, for want of time: {left_out} pairs of types")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
