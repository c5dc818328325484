"""Kernels of Triton, compiled ahead of time to PTX without a GPU and launched through the driver.

usage: triton_programs.py NAME, or --list. The values are compared with NumPy's.
"""

import ctypes

import numpy as np
import support
import triton
import triton.language as tl
from cuda.bindings import driver
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

# The simulated driver is of CUDA 12.9, which reads PTX up to 8.8.
PTX_VERSION = 88
HELPERS = ("setup",)


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0) * columns
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row + at, mask=at < columns, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row + at, powers / tl.sum(powers, axis=0), mask=at < columns)


@triton.jit
def norm_kernel(x, weight, bias, out, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0) * columns
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row + at, mask=inside, other=0.0)
    mean = tl.sum(values, axis=0) / columns
    centred = tl.where(inside, values - mean, 0.0)
    factor = tl.rsqrt(tl.sum(centred * centred, axis=0) / columns + epsilon)
    scaled = centred * factor * tl.load(weight + at, mask=inside)
    tl.store(out + row + at, scaled + tl.load(bias + at, mask=inside), mask=inside)


@triton.jit
def product_kernel(a, b, c, m, n, k, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
                   DEPTH: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, k, DEPTH):
        depth = first + tl.arange(0, DEPTH)
        left = tl.load(a + rows[:, None] * k + depth[None, :],
                       mask=(rows[:, None] < m) & (depth[None, :] < k), other=0.0)
        right = tl.load(b + depth[:, None] * n + columns[None, :],
                        mask=(depth[:, None] < k) & (columns[None, :] < n), other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(c + rows[:, None] * n + columns[None, :], total,
             mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def histogram_kernel(x, counts, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.atomic_add(counts + tl.load(x + at, mask=inside, other=0), 1, mask=inside)


@triton.jit
def scan_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.cumsum(tl.load(x + at, mask=at < n, other=0), axis=0), mask=at < n)


@triton.jit
def convert_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(out + at, (value.to(tl.bfloat16).to(tl.float32) + value.to(tl.float16).to(tl.float32)),
             mask=at < n)


@triton.jit
def random_kernel(out, seed, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.rand(seed, at), mask=at < n)


def need(result):
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(driver.cuGetErrorName(status)[1])
    return values[0] if len(values) == 1 else values


TYPES = {np.dtype(np.float32): "*fp32", np.dtype(np.int32): "*i32"}


def setup():
    """The primary context of device 0; its compute capability, as Triton writes it."""
    need(driver.cuInit(0))
    device = need(driver.cuDeviceGet(0))
    need(driver.cuCtxSetCurrent(need(driver.cuDevicePrimaryCtxRetain(device))))
    kinds = driver.CUdevice_attribute
    major = need(driver.cuDeviceGetAttribute(
        kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
    return 10 * major


def compiled(kernel, arguments, constants, capability, **options):
    names = [name for name in kernel.arg_names if name not in constants]
    signature = dict.fromkeys(constants, "constexpr")
    for name, value in zip(names, arguments):
        kind = "i32" if isinstance(value, int) else "fp32"
        signature[name] = TYPES[value.dtype] if isinstance(value, np.ndarray) else kind
    signature = {name: signature[name] for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32),
                          options={"ptx_version": PTX_VERSION, **options})


def call(kernel, grid, *arguments, options=None, **constants):
    """Runs a kernel on copies of arrays, and copies these back."""
    made = compiled(kernel, arguments, constants, setup(), **(options or {}))
    module = need(driver.cuModuleLoadData(made.asm["ptx"].encode() + b"\0"))
    function = need(driver.cuModuleGetFunction(module, made.metadata.name.encode()))
    shared = made.metadata.shared
    if shared > 48 << 10:
        kind = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        need(driver.cuFuncSetAttribute(function, kind, shared))
    values, kinds, copies = [], [], []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            address = need(driver.cuMemAlloc(argument.nbytes))
            need(driver.cuMemcpyHtoD(address, argument.ctypes.data, argument.nbytes))
            copies.append((address, argument))
            argument = int(address)
            kinds.append(ctypes.c_uint64)
        else:
            kinds.append(ctypes.c_int32 if isinstance(argument, int) else ctypes.c_float)
        values.append(argument)
    # Two more are Triton's own scratch memory, which these kernels do not use.
    values, kinds = (*values, 0, 0), (*kinds, ctypes.c_uint64, ctypes.c_uint64)
    grid = (*grid, 1, 1)[:3]
    need(driver.cuLaunchKernel(function, *grid, made.metadata.num_warps * 32, 1, 1, shared, 0,
                               (values, kinds), 0))
    need(driver.cuCtxSynchronize())
    for address, array in copies:
        need(driver.cuMemcpyDtoH(array.ctypes.data, address, array.nbytes))
        need(driver.cuMemFree(address))


def numbers(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def vector_add():
    x, y = numbers(5000), numbers(5001)[:5000]
    out = np.zeros_like(x)
    call(add_kernel, (5,), x, y, out, 5000, BLOCK=1024)
    np.testing.assert_array_equal(out, x + y)


def softmax():
    x = numbers(33, 781)
    out = np.zeros_like(x)
    call(softmax_kernel, (33,), x, out, 781, BLOCK=1024)
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(out, powers / powers.sum(axis=1, keepdims=True), rtol=1e-5)


def layer_norm():
    x, weight, bias = numbers(21, 500), numbers(500), numbers(500)[::-1].copy()
    out = np.zeros_like(x)
    call(norm_kernel, (21,), x, weight, bias, out, 500, 1e-5, BLOCK=512)
    centred = x - x.mean(axis=1, keepdims=True)
    wanted = centred / np.sqrt((centred ** 2).mean(axis=1, keepdims=True) + 1e-5) * weight + bias
    np.testing.assert_allclose(out, wanted, rtol=1e-3, atol=1e-5)


def product(options):
    a, b = numbers(70, 90), numbers(90, 50)
    c = np.zeros((70, 50), np.float32)
    call(product_kernel, (3, 2), a, b, c, 70, 50, 90, ROWS=32, COLUMNS=32, DEPTH=16,
         options=options)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)


def matrix_product():
    product({})


def pipelined_matrix_product():
    """Loads run ahead of the loop."""
    product({"num_stages": 4, "num_warps": 8})


def histogram():
    x = np.random.default_rng(1).integers(0, 16, 3000).astype(np.int32)
    counts = np.zeros(16, np.int32)
    call(histogram_kernel, (6,), x, counts, 3000, BLOCK=512)
    np.testing.assert_array_equal(counts, np.bincount(x, minlength=16))


def prefix_sum():
    x = np.random.default_rng(2).integers(-9, 9, 1000).astype(np.int32)
    out = np.zeros_like(x)
    call(scan_kernel, (1,), x, out, 1000, BLOCK=1024)
    np.testing.assert_array_equal(out, np.cumsum(x))


def half_precision():
    x = numbers(700)
    out = np.zeros_like(x)
    call(convert_kernel, (3,), x, out, 700, BLOCK=256)
    bits = x.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32)
    np.testing.assert_array_equal(out, rounded.view(np.float32) + x.astype(np.float16))


def random_numbers():
    out = np.zeros(4096, np.float32)
    call(random_kernel, (4,), out, 7, 4096, BLOCK=1024)
    assert 0 <= out.min() and out.max() < 1 and abs(out.mean() - 0.5) < 0.02, out
    assert len(np.unique(out)) > 4000


if __name__ == "__main__":
    support.main(globals())
