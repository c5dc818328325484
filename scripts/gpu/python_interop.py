#!/usr/bin/env python3
"""Arrays of the Python package with PyTorch, CuPy, Numba and JAX, on a GPU, in both directions.

  python_interop.py [LIBRARY...]   # torch, cupy, numba, jax; by default each that is installed

Each library has a process of its own. A line for each check: passed, FAILED with the reason.
"""

import gc
import importlib.util
import subprocess
import sys
import traceback

LIBRARIES = ("torch", "cupy", "numba", "jax")
CHECKS = {name: [] for name in LIBRARIES}
MIB = 1 << 20


def check(function):
    CHECKS[function.__name__.split("_")[0]].append(function)
    return function


def numbers(tcuda, count=1000, dtype="float32", code="f"):
    """An array of 0, 1, ..."""
    import array

    made = tcuda.empty(count, dtype)
    made.copy_from(array.array(code, range(count)))
    return made


# ---- PyTorch ----

@check
def torch_to_tcuda(tcuda, torch):
    for tensor in (
        torch.arange(12.0, device="cuda").reshape(3, 4), torch.ones(5, device="cuda").bool(),
        torch.arange(6, device="cuda", dtype=torch.bfloat16), torch.tensor(3, device="cuda"),
        torch.arange(24, device="cuda").reshape(4, 6)[1:, ::2].t(),
        torch.ones(2, 0, device="cuda"), torch.arange(3.0, device="cuda").to(torch.float8_e5m2),
        torch.arange(3, device="cuda") * 1j, torch.arange(4.0), torch.arange(4.0).pin_memory(),
    ):
        made = tcuda.asarray(tensor)
        assert made.address == tensor.data_ptr(), (made, tensor)
        assert made.shape == tuple(tensor.shape), made
        assert tensor.numel() == 0 or made.strides == tensor.stride(), made
        assert f"torch.{made.dtype}" == str(tensor.dtype), made
        if tensor.numel():
            raw = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            assert made.tobytes() == raw, made


@check
def torch_from_tcuda(tcuda, torch):
    before = tcuda.memory_allocated()
    for dtype in ("float32", "bfloat16", "bool", "int64", "complex64", "float8_e4m3fn", "uint16"):
        made = tcuda.empty((4, 6), dtype, strides=(1, 4))
        made.copy_from(bytes([1, 0]) * (made.nbytes // 2))
        tensor = torch.from_dlpack(made)
        assert tensor.data_ptr() == made.address and str(tensor.dtype) == f"torch.{dtype}", dtype
        assert (tuple(tensor.shape), tensor.stride()) == ((4, 6), (1, 4)), tensor
        del made
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()
        assert raw == bytes([1, 0]) * (len(raw) // 2), dtype
        del tensor
        gc.collect()
    assert tcuda.memory_allocated() == before, tcuda.memory_allocated()


@check
def torch_from_tcuda_is_the_same_memory(tcuda, torch):
    made = numbers(tcuda)
    tensor = torch.from_dlpack(made)
    tensor += 1
    torch.cuda.synchronize()
    assert torch.equal(torch.from_dlpack(made).cpu(), torch.arange(1000.0) + 1)
    interface = torch.as_tensor(made, device="cuda")
    assert interface.data_ptr() == made.address
    copied = torch.from_dlpack(made, copy=True)
    assert copied.data_ptr() != made.address and torch.equal(copied, tensor)


@check
def torch_waits_for_the_stream_of_tcuda(tcuda, torch):
    writer, reader = tcuda.Stream(), torch.cuda.Stream()
    for _ in range(5):
        made = tcuda.empty(MIB, "float32")
        value = numbers(tcuda, MIB)
        tcuda.synchronize()
        with tcuda.stream(writer), torch.cuda.stream(torch.cuda.ExternalStream(writer.cuda_stream)):
            torch.cuda._sleep(50_000_000)
            made.copy_from(value)
            with torch.cuda.stream(reader):
                tensor = torch.from_dlpack(made)
                result = tensor.clone()
                assert not reader.query(), "nothing was held back"
        reader.synchronize()
        assert torch.equal(result, torch.arange(float(MIB), device="cuda"))


@check
def torch_is_waited_for_by_tcuda(tcuda, torch):
    writer, reader = torch.cuda.Stream(), tcuda.Stream()
    for _ in range(5):
        tensor = torch.zeros(MIB, device="cuda")
        value = torch.arange(float(MIB), device="cuda")
        result = tcuda.empty(MIB)
        torch.cuda.synchronize()
        with torch.cuda.stream(writer):
            torch.cuda._sleep(50_000_000)
            tensor.copy_(value)
            with tcuda.stream(reader):
                result.copy_from(tensor)
                assert not reader.query(), "nothing was held back"
        reader.synchronize()
        assert torch.equal(torch.from_dlpack(result), value)


@check
def torch_uses_memory_after_its_end(tcuda, torch):
    """Memory of an ended array is not reused while a stream of PyTorch still reads it."""
    reader = torch.cuda.Stream()
    with torch.cuda.stream(reader):
        made = numbers(tcuda, MIB)
        address = made.address
        torch.cuda._sleep(2_000_000_000)
        result = torch.from_dlpack(made).clone()
        del made
    other = tcuda.empty(MIB)
    assert not reader.query(), "the work was done before"
    assert other.address != address, "the memory was reused"
    reader.synchronize()
    assert torch.equal(result, torch.arange(float(MIB), device="cuda"))
    del other
    later = [tcuda.empty(MIB) for _ in range(4)]
    assert address in {each.address for each in later}, "the memory never came back"


@check
def torch_memory_ends_with_the_array(tcuda, torch):
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    made = tcuda.asarray(torch.ones(MIB, device="cuda"))
    assert torch.cuda.memory_allocated() == before + 4 * MIB
    del made
    gc.collect()
    assert torch.cuda.memory_allocated() == before


@check
def torch_random_numbers_are_equal(tcuda, torch):
    fills = [
        ("uniform_", (-1.0, 2.0)), ("normal_", (1.0, 2.0)), ("random_", ()), ("random_", (100,)),
        ("random_", (3, 50)), ("bernoulli_", (0.3,)), ("exponential_", (2.0,)),
        ("log_normal_", (0.0, 1.0)), ("cauchy_", (1.0, 2.0)), ("geometric_", (0.3,)),
    ]
    for name, arguments in fills:
        for count in (1, 1000, 1_000_000):
            torch.cuda.manual_seed(count)
            tcuda.manual_seed(count)
            expected = getattr(torch.empty(count, device="cuda"), name)(*arguments)
            made = getattr(tcuda, name)(tcuda.empty(count), *arguments)
            assert torch.equal(torch.from_dlpack(made), expected), (name, arguments, count)
            tensor = torch.empty(count, device="cuda")
            tcuda.manual_seed(count)
            assert getattr(tcuda, name)(tensor, *arguments) is tensor
            assert torch.equal(tensor, expected), (name, arguments, count)
            state = bytes(torch.cuda.get_rng_state().numpy())
            assert tcuda.get_rng_state() == state, (name, arguments, count)


@check
def torch_generators(tcuda, torch):
    expected = torch.empty(100, device="cuda").normal_(
        generator=torch.Generator("cuda").manual_seed(5))
    made = tcuda.normal_(tcuda.empty(100), generator=tcuda.Generator().manual_seed(5))
    assert torch.equal(torch.from_dlpack(made), expected)


@check
def torch_jiterator_is_equal(tcuda, torch):
    code = "template <typename T> T f(T x, T y, T a) { return x * y + a; }"
    ours, theirs = (of.jiterator._create_jit_fn(code, a=1.0) for of in (tcuda, torch.cuda))
    scalar = torch.tensor(3, device="cuda")
    for x, y in (
        (torch.rand(1000, device="cuda"), torch.rand(1000, device="cuda")),
        (torch.rand(7, 1, device="cuda"), torch.rand(5, device="cuda").double()),
        (torch.arange(9, device="cuda"), torch.rand(9, device="cuda").half()),
        (torch.arange(9, device="cuda").int(), scalar),
        (torch.rand(9, device="cuda").half(), scalar),
        (torch.ones(4, device="cuda").bool(), torch.arange(4, device="cuda").to(torch.uint8)),
        (torch.rand(4, device="cuda").bfloat16(), torch.tensor(2j, device="cuda")),
    ):
        for extra in ({}, {"a": 2}):
            expected, result = theirs(x, y, **extra), torch.from_dlpack(ours(x, y, **extra))
            assert result.dtype == expected.dtype and result.shape == expected.shape, (x, y)
            assert torch.equal(result, expected), (x, y)


@check
def torch_common_types_are_equal(tcuda, torch):
    from tcuda import jiterator

    names = [name for name in tcuda.arrays._DTYPES if name != "complex32"]
    made = {(name, shape): tcuda.empty(shape, name) for name in names for shape in ((), (1,))}
    tensors = {
        key: torch.empty(key[1], dtype=getattr(torch, key[0]), device="cuda") for key in made}
    wrong = []
    for a in made:
        for b in made:
            try:
                expected = str(torch.result_type(tensors[a], tensors[b]))
            except RuntimeError:
                expected = None
            try:
                result = f"torch.{jiterator._common_type([made[a], made[b]])}"
            except TypeError:
                result = expected  # refused, as some that PyTorch 2.11 has for unsigned integers
            if result != expected:
                wrong.append((a, b, result, expected))
    assert not wrong, wrong


@check
def torch_comm(tcuda, torch):
    tensor = torch.arange(12.0, device="cuda").reshape(4, 3)
    same, = tcuda.comm.broadcast(tensor, [0])
    assert same.address == tensor.data_ptr()
    total = tcuda.comm.reduce_add([tensor, tensor, tensor.cpu()], "cuda:0")
    assert torch.equal(torch.from_dlpack(total), 3 * tensor)
    joined = tcuda.comm.gather([tensor, tensor], dim=1, destination="cpu")
    assert torch.equal(torch.from_dlpack(joined), torch.cat([tensor, tensor], 1).cpu())
    out = torch.empty(8, 3, device="cuda")
    assert tcuda.comm.gather([tensor, tensor], out=out) is out
    assert torch.equal(out, torch.cat([tensor, tensor]))
    pieces = tcuda.comm.scatter(tensor, [0, 0], dim=-1, chunk_sizes=[1, 2])
    assert torch.equal(torch.from_dlpack(pieces[1]), tensor[:, 1:])


@check
def torch_nccl(tcuda, torch):
    assert tcuda.nccl.version() == torch.cuda.nccl.version()[:3]
    tensor = torch.arange(4.0, device="cuda")
    assert tcuda.nccl.is_available([tensor])
    out = torch.empty_like(tensor)
    tcuda.nccl.all_reduce([tensor], [out])
    assert torch.equal(out, tensor)
    comm = tcuda.nccl.init_rank(1, tcuda.nccl.unique_id(), 0)
    tcuda.nccl.all_gather([tensor], [out.zero_()], comms=[comm])
    assert torch.equal(out, tensor)


@check
def torch_graphed_callables(tcuda, torch):
    axpy = tcuda.jiterator._create_jit_fn("template <typename T> T f(T x, T y) { return 2*x + y; }")
    samples = tuple(torch.rand(100, device="cuda") for _ in range(2))
    graphed = tcuda.make_graphed_callables(lambda x, y: axpy(axpy(x, y), y), samples)
    for _ in range(3):
        x, y = (torch.rand(100, device="cuda") for _ in range(2))
        assert torch.equal(torch.from_dlpack(graphed(x, y)), 2 * (2 * x + y) + y)


# ---- CuPy ----

@check
def cupy_to_tcuda(tcuda, cupy):
    for source in (cupy.arange(12.0).reshape(3, 4), cupy.arange(24)[::2].reshape(3, 4).T):
        made = tcuda.asarray(source)
        assert made.address == source.data.ptr and made.shape == source.shape
        assert made.tobytes() == source.get().tobytes(), source


@check
def cupy_from_tcuda(tcuda, cupy):
    made = numbers(tcuda)
    for result in (cupy.from_dlpack(made), cupy.asarray(made)):
        assert result.data.ptr == made.address
        result += 1
    cupy.cuda.Device().synchronize()
    assert made.tobytes() == (cupy.arange(1000, dtype="float32") + 2).get().tobytes()


@check
def cupy_waits_for_the_stream_of_tcuda(tcuda, cupy):
    stream, writer = cupy.cuda.Stream(non_blocking=True), tcuda.Stream()
    made, value = tcuda.empty(16 * MIB), cupy.arange(16 * MIB, dtype="float32")
    cupy.cuda.Device().synchronize()
    for export in (cupy.from_dlpack, cupy.asarray):
        made.copy_from(bytes(64 * MIB))
        tcuda.synchronize()
        with tcuda.stream(writer):
            for _ in range(100):
                made.copy_from(tcuda.uniform_(tcuda.empty(16 * MIB)))
            made.copy_from(value)
            with stream:
                result = export(made) + 0
        stream.synchronize()
        wrong = int((result != value).sum())
        assert wrong == 0, (export, wrong)


@check
def cupy_is_waited_for_by_tcuda(tcuda, cupy):
    stream, reader = cupy.cuda.Stream(non_blocking=True), tcuda.Stream()
    made, value = tcuda.empty(16 * MIB), cupy.zeros(16 * MIB, "float32")
    cupy.cuda.Device().synchronize()
    with stream:
        for _ in range(100):
            value += 1
        with tcuda.stream(reader):
            made.copy_from(value)
    reader.synchronize()
    assert made.tobytes() == cupy.full(16 * MIB, 100, "float32").get().tobytes()


@check
def cupy_stream_ends_before_the_array(tcuda, cupy):
    """The stream that a capsule was made for is destroyed before the capsule ends."""
    for _ in range(50):
        stream = cupy.cuda.Stream(non_blocking=True)
        made = numbers(tcuda)
        with stream:
            result = cupy.from_dlpack(made)
            result += 1
        del stream
        gc.collect()
        del made
        del result
        gc.collect()
        tcuda.empty(1000)
    tcuda.synchronize()
    tcuda.empty_cache()


# ---- Numba ----

@check
def numba_to_tcuda(tcuda, numba):
    import numba.cuda
    import numpy

    source = numba.cuda.to_device(numpy.arange(12.0).reshape(3, 4))
    made = tcuda.asarray(source)
    assert made.address == source.device_ctypes_pointer.value and made.shape == (3, 4)
    assert made.tobytes() == source.copy_to_host().tobytes()


@check
def numba_from_tcuda(tcuda, numba):
    import numba.cuda
    import numpy

    made, stream = numbers(tcuda), tcuda.Stream()
    theirs = numba.cuda.as_cuda_array(made)
    assert theirs.device_ctypes_pointer.value == made.address
    assert (theirs.copy_to_host() == numpy.arange(1000)).all()
    with tcuda.stream(stream):
        made.copy_from(bytes(4000))
        theirs = numba.cuda.as_cuda_array(made)
        theirs.copy_to_device(numpy.ones(1000, "float32"))
        assert made.tobytes() == numpy.ones(1000, "float32").tobytes()


# ---- JAX ----

@check
def jax_to_tcuda(tcuda, jax):
    source = jax.numpy.arange(12, dtype="float32").reshape(3, 4)
    made = tcuda.asarray(source)
    assert made.shape == (3, 4) and made.device == tcuda.device(0)
    assert made.tobytes() == jax.device_get(source).tobytes()


@check
def jax_from_tcuda(tcuda, jax):
    made = numbers(tcuda)
    result = jax.numpy.from_dlpack(made)
    assert jax.device_get(result * 2).tobytes() == jax.device_get(
        jax.numpy.arange(1000, dtype="float32") * 2).tobytes()


def run(name):
    """The checks of one library, in this process."""
    import tcuda

    library = importlib.import_module(name)
    failures = 0
    for function in CHECKS[name]:
        try:
            function(tcuda, library)
        except Exception as error:
            failures += 1
            line = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"{type(error).__name__}: {error}"
            print(f"FAILED {function.__name__}, line {line.lineno}: {reason}", flush=True)
        else:
            print(f"passed {function.__name__}", flush=True)
    return failures


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--one":
        sys.exit(run(sys.argv[2]) > 0)
    failures = 0
    for name in sys.argv[1:] or LIBRARIES:
        if importlib.util.find_spec(name) is None:
            print(f"skipped {name}: not installed", flush=True)
            continue
        code = subprocess.run([sys.executable, __file__, "--one", name], timeout=300).returncode
        if code not in (0, 1):
            print(f"FAILED {name}: the process ended with {code}", flush=True)
        failures += code != 0
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
