#!/usr/bin/env python3
"""Compares functions of elements with torch.cuda.jiterator, bit for bit, on a GPU.

  jit_gpu.py LIBRARY [--budget SECONDS] [--out FOLDER] [--only TEXT] [--part NAME] [--jobs N]

LIBRARY is libtcuda.so. Functions, types and ways in which tensors lie get the same inputs by both,
infinities and NaNs among them. Parts, in this order: "corpus", one function with every pair of
types in every layout; "functions", the others with one pair for each kind of numbers, side by side
and turned; "rest", all that is left. PyTorch compiles for each pair of types and some of the
layouts, which takes most of the time: what has not begun when the budget is spent is left out and
counted; --jobs N shares the pairs among N processes, which take the GPUs in turn. Each case is a
line of FOLDER/jit_cases.jsonl, and each pair of types a line of the output. What PyTorch cannot
compile is counted apart.

"fused": sums of two products, as in those of complex numbers, which differ only in which product
the compiler fused with the sum. It chooses anew for each kernel, in PyTorch's as in ours, so that
PyTorch's own layouts differ in these elements as well; both values are checked to be among those
that fused operations give exactly. NaNs equal NaNs. The table comes last; exit status 1: something
else differs.
"""

import argparse
import collections
import ctypes
import fractions
import itertools
import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
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
    ("exponentials", "template <typename T> T f(T x) { return std::exp(x) + std::tanh(x); }",
     1, {}, "f"),
    ("logarithms", "template <typename T> T f(T x) { return std::log(std::abs(x)) * std::log1p("
     "std::abs(x)); }", 1, {}, "f"),
    ("waves", "template <typename T> T f(T x) { return std::sin(x) * std::cos(x); }", 1, {}, "f"),
    ("powers", "template <typename T> T f(T x, T y) { return std::pow(std::abs(x), y); }",
     2, {}, "f"),
    ("complex_exp", "template <typename T> T f(T x) { return std::exp(x); }", 1, {}, "c"),
    ("complex_sqrt", "template <typename T> T f(T x) { return std::sqrt(x); }", 1, {}, "c"),
    ("complex_log", "template <typename T> T f(T x) { return std::log(x); }", 1, {}, "c"),
    ("complex_abs", "template <typename T> T f(T x) { return std::abs(x); }", 1, {}, "c"),
    ("four", "template <typename T> T f(T a, T b, T c, T d) { return a * b + c * d; }",
     4, {}, "fi"),
]
MULTIPLE = ("template <typename T> void f(T x, T y, T by, T& sum, T& difference) "
            "{ sum = x + by * y; difference = x - y; }", {"by": 2.0})
TYPES = {
    "f": [("float32",) * 2, ("float64",) * 2, ("float16",) * 2, ("bfloat16",) * 2,
          ("float16", "float32"), ("float16", "bfloat16"), ("int32", "float16"),
          ("int64", "float32"), ("bool", "float32"), ("float32", "float64"),
          ("uint8", "bfloat16")],
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
            self.call("tcuda_jit_create", code.encode(), ctypes.byref(options),
                      ctypes.byref(handle))
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
        special = [complex(0, 0), complex(1, float("inf")), complex(float("nan"), 1),
                   complex(-1, 0)]
        values = torch.complex(values, other)
        values[:4] = torch.tensor(special, device="cuda", dtype=torch.complex128)
        # There is no conversion to complex32 on every version.
        if dtype == "complex32":
            return torch.view_as_complex(torch.view_as_real(values).to(torch.float16))
        return values.to(kind)
    special = [0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-8]
    values[:6] = torch.tensor(special, device="cuda")
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
        lambda which, t: t.view(30, 40) if which == 0 else t[:30, None] if which % 2 else t[:40],
        1200)
    yield "transposed", all_of(
        lambda which, t: t.view(30, 40) if which else t.view(40, 30).t(), 1200)
    yield "with gaps", all_of(lambda which, t: t.view(100, 40)[::2, which % 3::3][:, :12], 4000)


def bits(torch, tensor):
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def same(torch, a, b):
    a, b = (bits(torch, t).contiguous().flatten() for t in (a, b))
    both_nan = (a != a) & (b != b)
    a, b = (t.view(torch.uint8).view(t.numel(), -1) if t.numel() else t for t in (a, b))
    return bool(((a == b).all(dim=-1) | both_nan).all())


def rounded(exact, is_single):
    """The nearest number of a type to a fraction, once rounded."""
    if not is_single:
        return float(exact)
    # By way of a double it would be rounded twice.
    near, = struct.unpack("<I", struct.pack("<f", float(exact)))
    numbers = [(struct.unpack("<f", struct.pack("<I", n))[0], n & 1)
               for n in (near - 1, near, near + 1) if 0 <= n < 1 << 32]
    finite = [(number, odd) for number, odd in numbers if math.isfinite(number)]
    return min(finite, key=lambda pair: (abs(fractions.Fraction(pair[0]) - exact), pair[1]))[0]


def sums_of_products(p, q, r, s, is_single):
    """What p * q + r * s can be: both products rounded, or either one fused with the sum."""
    exact = fractions.Fraction
    one, two = exact(p) * exact(q), exact(r) * exact(s)
    near = exact(rounded(one, is_single)), exact(rounded(two, is_single))
    return {rounded(value, is_single)
            for value in (near[0] + near[1], one + near[1], near[0] + two)}


def fused_products(a, b, is_single):
    """What the parts of a * b can be."""
    return [sums_of_products(a[0], b[0], -a[1], b[1], is_single),
            sums_of_products(a[0], b[1], a[1], b[0], is_single)]


def fused_results(name, values, is_single):
    """What the parts of a function's result can be."""
    if name == "product":
        return fused_products(*values, is_single)
    if name == "helper":
        return [{rounded(fractions.Fraction(p) - fractions.Fraction(q), is_single)
                 for p, q in itertools.product(*terms)}
                for terms in zip(*(fused_products(a, a, is_single) for a in values))]
    return [sums_of_products(*(value[0] for value in values), is_single)]


def is_fused_otherwise(torch, name, tensors, found, expected):
    """Do they differ only in which product was fused with a sum?"""
    single, double = (torch.float32, torch.complex64), (torch.float64, torch.complex128)
    if found.dtype not in single + double or not (
            name == "four" or name in ("product", "helper") and found.is_complex()):
        return False

    def parts(tensor):
        values = bits(torch, tensor.to(found.dtype).expand(found.shape).flatten())
        return (values if found.is_complex() else values[:, None]).tolist()

    for *values, f, e in zip(*map(parts, (*tensors, found, expected))):
        # Zeros differ by their signs as well.
        if all(struct.pack("<d", p) == struct.pack("<d", q) or p != p and q != q
               for p, q in zip(f, e)):
            continue
        if not all(map(math.isfinite, itertools.chain(f, e, *values))):
            return False
        allowed = fused_results(name, values, found.dtype in single)
        if not all(p in choice and q in choice for p, q, choice in zip(f, e, allowed)):
            return False
    return True


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
        if is_fused_otherwise(torch, function.name, tensors, found[0], expected[0]):
            yield layout, "fused", ""
            continue
        f, e = bits(torch, found[0]).flatten(), bits(torch, expected[0]).flatten()
        unequal = ((f != e) & ~((f != f) & (e != e))).nonzero().flatten()[:3].tolist()
        values = [(i, f[i].item(), e[i].item()) for i in unequal]
        if not values:
            apart = (torch.signbit(f) != torch.signbit(e)).nonzero().flatten()[:3].tolist()
            values = [(i, f[i].item(), e[i].item()) for i in apart]
        yield layout, "other", f"element, ours, theirs: {values}"


def compare_share(options, lines):
    """The share of this process: each case a line; how many pairs of types were left out."""
    begin = time.monotonic()
    import torch

    ours = Library(options.library)
    functions = [Function(ours, *row) for row in FUNCTIONS]
    functions.append(Function(ours, "two_outputs", MULTIPLE[0], 2, MULTIPLE[1], "fc", 2))
    # The first one has floats, integers and complex numbers.
    functions.sort(key=lambda function: function.name != "integer_axpy")
    index, jobs = map(int, options.share.split("/"))
    left_out = 0
    for number, (part, function, dtypes, wanted) in enumerate(groups(functions)):
        is_chosen = options.only in function.name and options.part in ("", part)
        if number % jobs != index or not is_chosen:
            continue
        if time.monotonic() - begin > options.budget:
            left_out += 1
            continue
        types, found = "+".join(dtypes[:function.inputs]), collections.Counter()
        for layout, result, what in compare(torch, function, dtypes, wanted):
            found[result] += 1
            if result in ("failed", "other"):
                print(f"  {layout}: {what}")
            case = {"part": part, "function": function.name, "types": types, "layout": layout,
                    "result": result, "what": what}
            print(json.dumps(case), file=lines, flush=True)
        summary = ", ".join(f"{number} {result}" for result, number in found.items())
        print(f"{time.monotonic() - begin:6.1f} s {part:10}{function.name:14}{types:24}{summary}",
              flush=True)
    for function in functions:
        if function.made:
            ours.call("tcuda_jit_destroy", function.made[0])
    print(json.dumps({"left_out": left_out}), file=lines, flush=True)


def share_among(options, folder):
    """Starts the processes and collects their lines."""
    import torch

    gpus, started = torch.cuda.device_count(), []
    for index in range(options.jobs):
        path = pathlib.Path(folder) / f"{index}.jsonl"
        command = [sys.executable, __file__, options.library, "--share", f"{index}/{options.jobs}",
                   "--lines", path, "--budget", options.budget, "--only", options.only,
                   "--part", options.part]
        visible = {"CUDA_VISIBLE_DEVICES": str(index % gpus)} if gpus > 1 else {}
        started.append((path, subprocess.Popen(
            [str(word) for word in command], env={**os.environ, **visible})))
    for index, (_, process) in enumerate(started):
        if process.wait():
            raise SystemExit(f"process {index} of {options.jobs} ended with {process.returncode}")
    return [json.loads(line) for path, _ in started for line in path.read_text().splitlines()]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--budget", type=float, default=150, help="seconds; 150")
    parser.add_argument(
        "--out", type=pathlib.Path, help="folder for jit_cases.jsonl and jit_cases.json")
    parser.add_argument("--only", default="", help="functions with this in their names")
    parser.add_argument("--part", default="", help="corpus, functions or rest alone")
    parser.add_argument("--jobs", type=int, default=1, help="processes; 1")
    parser.add_argument("--share", help=argparse.SUPPRESS)
    parser.add_argument("--lines", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.share:
        with options.lines.open("w") as lines:
            return compare_share(options, lines)
    with tempfile.TemporaryDirectory() as folder:
        cases = share_among(options, folder)
    left_out = sum(case.pop("left_out") for case in cases if "left_out" in case)
    cases = [case for case in cases if case]
    counts = collections.defaultdict(collections.Counter)
    for case in cases:
        counts[case["function"]][case["result"]] += 1
        counts["all"][case["result"]] += 1
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "jit_cases.jsonl").write_text(
            "".join(json.dumps(case) + "\n" for case in cases))
        record = {"counts": counts, "left_out": left_out}
        (options.out / "jit_cases.json").write_text(json.dumps(record, indent=1))
    results = ("same", "fused", "other", "failed", "torch cannot")
    print(f"{'function':16}" + "".join(f"{name:>14}" for name in results))
    for name in sorted(counts, key=lambda name: name == "all"):
        print(f"{name:16}" + "".join(f"{counts[name][result]:14}" for result in results))
    print(f"left out, for want of time: {left_out} pairs of types")
    sys.exit(1 if counts["all"]["other"] or counts["all"]["failed"] or not cases else 0)


if __name__ == "__main__":
    main()
