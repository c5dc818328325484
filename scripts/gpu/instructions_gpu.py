#!/usr/bin/env python3
"""Records what a GPU answers for every row of sim/tests/instructions/rows.txt.

  instructions_gpu.py ROWS FOLDER [--only FAMILY[,FAMILY...]] [--list] [--ptx TEXT]

Each family of rows becomes FOLDER/FAMILY.txt, which sim/tests/instructions.rs reads. A row that
the driver refuses goes to FOLDER/refused.txt with the driver's words. --list only prints the rows;
--ptx prints the kernels of the rows that contain TEXT. Needs nothing but libcuda.so.1.

A line of ROWS is a family ("# family NAME SHOWN", SHOWN: the items whose results are recorded one
by one), a comment (";"), or a template of rows:

  NAME=value,value NAME=... | OUTPUTS = INPUTS : BODY

Each combination of the variables' values makes one row, in which $NAME is replaced. OUTPUTS and
INPUTS are kinds of operands (KINDS), BODY is PTX that computes %d0, %d1, ... from %a0, %a1, ...
"DECLARATIONS ;; BODY" declares functions and variables before the kernel. "~R,A" before the
outputs: the results are approximate, within 2^R relatively or 2^A absolutely. BODY may use
%globalmem and %sharedmem (32 zeroed bytes of the thread's own in global and in shared memory), and
%globalblk and %sharedblk (32 zeroed bytes of the block).

An answer is the row's text, then a line with the results of the first SHOWN items in hexadecimal
and four digests, one for each quarter of all items; approximate rows have no digests. Each row of
family "fault" runs in a process of its own; its answer is the status of the synchronisation.
"""

import argparse
import concurrent.futures
import ctypes
import itertools
import pathlib
import struct
import subprocess
import sys
import time

MASK = (1 << 64) - 1
BLOCK = 64
BLOCKS = 33
ALL_BLOCKS = 1024  # of rows with an input of kind all16
VERSION = "8.6"


def splitmix64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def integer_specials(bits):
    ones = (1 << bits) - 1
    half = 1 << (bits - 1)
    quarter = 1 << (bits // 2)
    values = [0, 1, 2, 3, ones, ones - 1, half, half - 1, half + 1, half - 2, quarter - 1, quarter,
              quarter >> 1, (quarter >> 1) - 1, ones - (quarter >> 1) + 1, 7, 31, 32, 33, 64, 127,
              128, 0x5555555555555555, 0xAAAAAAAAAAAAAAAA, 0x123456789ABCDEF0, 0xFEDCBA9876543210]
    return [value & ones for value in values]


def float_specials(exponent, mantissa):
    """Bits of special values of a format with so many bits of exponent and mantissa."""
    bias = (1 << (exponent - 1)) - 1
    infinity = ((1 << exponent) - 1) << mantissa
    sign = 1 << (exponent + mantissa)
    one = bias << mantissa
    quiet = 1 << (mantissa - 1)
    top = (bias + bias) << mantissa
    values = [0, one, 1, (1 << mantissa) - 1, 1 << mantissa, infinity - 1, infinity,
              infinity | quiet]
    values += [value | sign for value in values]
    values += [infinity | 1, infinity | sign | quiet | 5, infinity | (1 << mantissa) - 1,
               one - (1 << mantissa), one | quiet, one + (1 << mantissa) | (quiet >> 1),
               one | sign | quiet, one - 1, one + 1, (1 << mantissa) + 1, top]
    return values


FORMATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}
LISTS = {
    # Shift amounts, positions and lengths.
    "n32": [0, 1, 2, 7, 8, 15, 16, 24, 31, 32, 33, 48, 63, 64, 65, 255, 256, 0xFFFFFFFF,
            0x80000000],
    # Positions and lengths of bits.
    "pos32": [0, 1, 2, 7, 8, 15, 16, 24, 31, 32, 33, 48, 63, 64, 65, 127, 128, 255],
    # Offsets of fns.
    "off32": [0, 1, 0xFFFFFFFF, 2, 0xFFFFFFFE, 3, 5, 0xFFFFFFFB, 32, 0xFFFFFFE0, 16],
    # The third operand of shfl: segment mask and clamp.
    "seg32": [0x1F, 0, 0x181F, 0x1C1F, 0x1E1F, 0x1F1F, 0x1800, 0x1C03, 0x100F, 0x0F, 0x101F],
    # Values that agree in many lanes.
    "few32": [0, 1, 2],
    "few64": [0, 1, 1 << 32],
}
RANDOM_MASKS = {"n32": 63, "pos32": 63, "off32": 7, "seg32": 0x1F1F, "few32": 3,
                "few64": (1 << 32) + 1}


def specials(kind):
    if kind in LISTS:
        return LISTS[kind]
    if kind in FORMATS:
        return float_specials(*FORMATS[kind])
    if kind == "pred":
        return [0, 1]
    return integer_specials(int(kind[1:]))


def random_float(kind, r, conversion):
    """A random value of a format from 64 random bits `r`."""
    exponent_bits, mantissa_bits = FORMATS[kind]
    bias = (1 << (exponent_bits - 1)) - 1
    width = 1 + exponent_bits + mantissa_bits
    mode = r >> 61
    s = splitmix64(r)
    mantissa = s & ((1 << mantissa_bits) - 1)
    if r >> 60 & 1:
        # Few bits, so that sums and products are ties or close to them.
        mantissa &= 3 << (mantissa_bits - 2) | 3
    if mode <= 1:
        return s & ((1 << width) - 1)
    if mode == 2:
        exponent = 0
    elif mode == 3:
        exponent = bias // 2 - 4 + (s >> 56) % 8
    elif conversion:
        exponent = min(bias - 3 + (s >> 56) % 70, 2 * bias)
    else:
        exponent = bias - 8 + (s >> 56) % 16
    return (s >> 55 & 1) << (width - 1) | exponent << mantissa_bits | mantissa


def plain_operand(kind, item, operand, conversion):
    values = specials(kind)
    if operand == 0 and item < len(values):
        return values[item]
    h = splitmix64(item * 8 + operand)
    if h & 7 < (4 if item < BLOCK else 2):
        return values[(h >> 8) % len(values)]
    r = splitmix64(h)
    if kind in RANDOM_MASKS:
        return r & RANDOM_MASKS[kind]
    if kind in FORMATS:
        return random_float(kind, r, conversion)
    if kind == "pred":
        return r & 1
    bits = int(kind[1:])
    s = splitmix64(r) & ((1 << bits) - 1)
    # Half of the integers are of any magnitude, of either sign.
    if r & 1:
        s >>= (r >> 8) % bits
        if r & 2:
            s ^= (1 << bits) - 1
    return s


# Kind of operand: register type, bits in the answers.
KINDS = {
    "pred": ("pred", 4),
    "b8": ("b16", 16), "s8": ("b16", 16), "u8": ("b16", 16),
    "b16": ("b16", 16), "s16": ("b16", 16), "u16": ("b16", 16),
    "f16": ("b16", 16), "bf16": ("b16", 16), "all16": ("b16", 16), "allf8": ("b16", 16),
    "b32": ("b32", 32), "s32": ("b32", 32), "u32": ("b32", 32), "f32": ("b32", 32),
    "n32": ("b32", 32), "pos32": ("b32", 32), "off32": ("b32", 32), "seg32": ("b32", 32),
    "few32": ("b32", 32), "lane32": ("b32", 32), "c32": ("b32", 32),
    "s16x2": ("b32", 32), "u16x2": ("b32", 32), "f16x2": ("b32", 32), "bf16x2": ("b32", 32),
    "b64": ("b64", 64), "s64": ("b64", 64), "u64": ("b64", 64), "f64": ("b64", 64),
    "c64": ("b64", 64), "few64": ("b64", 64), "cf16": ("b16", 16), "cbf16": ("b16", 16),
}


def operand(kind, item, index):
    """The value of input `index` of an item."""
    if kind == "all16":
        return item * 40503 & 0xFFFF
    if kind == "allf8":
        return item * 40503 & 0xFFFF
    if kind == "lane32":
        return splitmix64(item * 8 + index) & 31
    if kind in ("b8", "s8", "u8"):
        # The bits above the operand's eight are not looked at.
        low = plain_operand("b8", item, index, False)
        return low | splitmix64(item) & 0xFF00
    if kind in ("s16x2", "u16x2", "f16x2", "bf16x2"):
        half = kind[:-2]
        return (plain_operand(half, item, index, False)
                | plain_operand(half, item * 7 + 3, index + 4, False) << 16)
    if kind.startswith("c"):
        # Floats whose integers are of every size.
        return plain_operand({"c": "f"}.get(kind[0]) + kind[1:] if kind[1].isdigit() else kind[1:],
                             item, index, True)
    return plain_operand(kind, item, index, False)


class Row:
    """One form of one instruction."""

    def __init__(self, family, text):
        self.family = family
        self.text = text
        head, self.body = text.split(" : ", 1)
        self.before = ""
        if " ;; " in self.body:
            self.before, self.body = self.body.split(" ;; ", 1)
        left, right = head.split("=", 1)
        self.outputs = left.split()
        self.inputs = right.split()
        self.approximate = None
        if self.outputs[0].startswith("~"):
            self.approximate = self.outputs.pop(0)
        whole = "all16" in self.inputs or "allf8" in self.inputs
        self.blocks = ALL_BLOCKS if whole else BLOCKS
        if self.approximate:
            self.blocks = 1

    def ptx(self, name):
        lines = [self.before] if self.before else []
        lines += [f".visible .entry {name}(.param .u64 p_in, .param .u64 p_out, .param .u64 p_mem)",
                 "{", ".reg .b64 %in, %out;", ".reg .b32 %thread, %block, %item;"]
        memory = any(word in self.body
                     for word in ("%globalmem", "%sharedmem", "%globalblk", "%sharedblk"))
        for letter, kinds in ("a", self.inputs), ("d", self.outputs):
            for i, kind in enumerate(kinds):
                lines.append(f".reg .{KINDS[kind][0]} %{letter}{i};")
                if kind == "pred":
                    lines.append(f".reg .b32 %{letter}w{i};")
        if memory:
            lines += [".reg .b64 %globalmem, %sharedmem, %globalblk, %sharedblk, %zero;",
                      f".shared .align 16 .b8 sh[{(BLOCK + 1) * 32}];"]
        lines += ["mov.u32 %thread, %tid.x;", "mov.u32 %block, %ctaid.x;",
                  f"mad.lo.u32 %item, %block, {BLOCK}, %thread;",
                  "ld.param.u64 %in, [p_in];", "ld.param.u64 %out, [p_out];"]
        lines.append(f"mad.wide.u32 %in, %item, {8 * len(self.inputs)}, %in;")
        lines.append(f"mad.wide.u32 %out, %item, {8 * len(self.outputs)}, %out;")
        if memory:
            lines += ["ld.param.u64 %globalblk, [p_mem];",
                      f"mad.wide.u32 %globalblk, %block, {(BLOCK + 1) * 32}, %globalblk;",
                      "mad.wide.u32 %globalmem, %thread, 32, %globalblk;",
                      "add.u64 %globalmem, %globalmem, 32;", "mov.u64 %sharedblk, sh;",
                      "mad.wide.u32 %sharedmem, %thread, 32, %sharedblk;",
                      "add.u64 %sharedmem, %sharedmem, 32;",
                      "mov.b64 %zero, 0;",
                      "st.shared.v2.b64 [%sharedblk], {%zero, %zero};",
                      "st.shared.v2.b64 [%sharedblk+16], {%zero, %zero};",
                      "st.shared.v2.b64 [%sharedmem], {%zero, %zero};",
                      "st.shared.v2.b64 [%sharedmem+16], {%zero, %zero};", "bar.sync 0;"]
        for i, kind in enumerate(self.inputs):
            register = KINDS[kind][0]
            if kind == "pred":
                lines += [f"ld.global.b32 %aw{i}, [%in+{8 * i}];",
                          f"setp.ne.b32 %a{i}, %aw{i}, 0;"]
            else:
                lines.append(f"ld.global.{register} %a{i}, [%in+{8 * i}];")
        lines.append(self.body)
        for i, kind in enumerate(self.outputs):
            register = KINDS[kind][0]
            if kind == "pred":
                lines += [f"selp.b32 %dw{i}, 1, 0, %d{i};",
                          f"st.global.b32 [%out+{8 * i}], %dw{i};"]
            else:
                lines.append(f"st.global.{register} [%out+{8 * i}], %d{i};")
        lines += ["ret;", "}"]
        return "\n".join(lines) + "\n"

    def items(self):
        return self.blocks * BLOCK


def header():
    return f".version {VERSION}\n.target sm_90\n.address_size 64\n"


def expand(text):
    """The rows of the lines of a file, and how many items each family shows."""
    family, shown, rows = None, {}, []
    seen = set()
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith(";"):
            continue
        if line.startswith("# family "):
            _, _, family, count = line.split()
            shown[family] = int(count)
            continue
        variables = []
        if "=" in line.split(" ", 1)[0]:
            head, line = line.split(" | ", 1)
            for word in head.split():
                name, values = word.split("=", 1)
                variables.append((name, values.split(",")))
        for choice in itertools.product(*(values for _, values in variables)):
            row = line
            for (name, _), value in zip(variables, choice):
                row = row.replace("$" + name, value)
            if row not in seen:
                seen.add(row)
                rows.append(Row(family, row))
    return rows, shown


class Refused(Exception):
    pass


class Gpu:
    """A context on the first device."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.check(self.cuda.cuInit(0), "cuInit")
        self.check(self.cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
        self.check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "retain")
        self.check(self.cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")

    def check(self, status, what):
        if status != 0:
            raise RuntimeError(f"{what}: status {status}")

    def alloc(self, size):
        pointer = ctypes.c_uint64()
        self.check(self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)), "alloc")
        return pointer

    def load(self, text):
        log = ctypes.create_string_buffer(1 << 16)
        options = (ctypes.c_int * 2)(5, 6)
        values = (ctypes.c_void_p * 2)(ctypes.cast(log, ctypes.c_void_p), len(log))
        module = ctypes.c_void_p()
        status = self.cuda.cuModuleLoadDataEx(ctypes.byref(module), text.encode(), 2, options,
                                              values)
        if status != 0:
            raise Refused(f"status {status}: " + log.value.decode(errors="replace"))
        return module


def load_rows(gpu, rows, refused):
    """Modules of as many rows as the driver takes, with the names of their kernels."""
    text = header() + "".join(row.ptx(f"k{i}") for i, row in enumerate(rows))
    try:
        module = gpu.load(text)
    except Refused as error:
        if len(rows) == 1:
            refused.append((rows[0], str(error)))
            return []
        middle = len(rows) // 2
        return (load_rows(gpu, rows[:middle], refused) + load_rows(gpu, rows[middle:], refused))
    return [(module, list(enumerate(rows)))]


INPUTS = {}


def column(kind, index, items):
    key = (kind, index)
    values = INPUTS.get(key, [])
    if len(values) < items:
        values = [operand(kind, item, index) for item in range(items)]
        INPUTS[key] = values
    return values


def digest(values):
    h = 0
    for value in values:
        h = splitmix64(h ^ value)
    return h >> 32


def answer(row, shown, values):
    """The line of a row's results. `values`: all outputs, item by item."""
    n = len(row.outputs)
    widths = [KINDS[kind][1] // 4 for kind in row.outputs]
    text = "".join(f"{values[item * n + k]:0{widths[k]}x}" for item in range(shown)
                   for k in range(n))
    if row.approximate is None:
        quarter = len(values) // 4
        text += "".join(f" {digest(values[q * quarter:(q + 1) * quarter]):08x}" for q in range(4))
    return text


def record(gpu, rows, refused):
    """Runs rows; yields each with its results."""
    cuda = gpu.cuda
    room = ALL_BLOCKS * BLOCK * 8 * 8
    scratch = BLOCKS * (BLOCK + 1) * 32
    device_in, device_out, device_mem = gpu.alloc(room), gpu.alloc(room), gpu.alloc(scratch)
    packed = {}
    for start in range(0, len(rows), 64):
        for module, kernels in load_rows(gpu, rows[start:start + 64], refused):
            for i, row in kernels:
                function = ctypes.c_void_p()
                gpu.check(cuda.cuModuleGetFunction(ctypes.byref(function), module,
                                                   f"k{i}".encode()), "cuModuleGetFunction")
                items = row.items()
                key = (tuple(row.inputs), items)
                if key not in packed:
                    columns = [column(kind, k, items)[:items] for k, kind in enumerate(row.inputs)]
                    flat = list(itertools.chain.from_iterable(zip(*columns)))
                    packed[key] = struct.pack(f"<{len(flat)}Q", *flat)
                data = packed[key]
                size = items * len(row.outputs) * 8
                if data:
                    gpu.check(cuda.cuMemcpyHtoD_v2(device_in, data, ctypes.c_size_t(len(data))),
                              "copy")
                gpu.check(cuda.cuMemsetD8_v2(device_out, 0, ctypes.c_size_t(size)), "set")
                gpu.check(cuda.cuMemsetD8_v2(device_mem, 0, ctypes.c_size_t(scratch)), "set")
                arguments = (ctypes.c_void_p * 3)(*(ctypes.addressof(pointer) for pointer in
                                                   (device_in, device_out, device_mem)))
                gpu.check(cuda.cuLaunchKernel(function, row.blocks, 1, 1, BLOCK, 1, 1, 0, None,
                                              arguments, None), f"launch of {row.text}")
                output = ctypes.create_string_buffer(size)
                gpu.check(cuda.cuMemcpyDtoH_v2(output, device_out, ctypes.c_size_t(size)),
                          f"run of {row.text}")
                yield row, struct.unpack(f"<{size // 8}Q", output.raw)
            gpu.check(cuda.cuModuleUnload(module), "unload")


def fault_status(path, row):
    """What the synchronisation after a row's kernel returns, in a new process."""
    command = [sys.executable, __file__, path, "--fault", row.text]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
    except subprocess.TimeoutExpired:
        return "timeout"
    return output.strip() or "none"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("rows")
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--ptx")
    parser.add_argument("--fault", help=argparse.SUPPRESS)
    options = parser.parse_args()
    text = pathlib.Path(options.rows).read_text()
    rows, shown = expand(text)
    if options.only:
        rows = [row for row in rows if row.family in options.only.split(",")]
    if options.ptx:
        for row in rows:
            if options.ptx in row.text:
                print(header() + row.ptx("k"))
        return
    if options.list:
        for row in rows:
            print(row.family, row.text)
        return
    if options.fault:
        status, refused = 0, []
        try:
            list(record(Gpu(), [Row("fault", options.fault)], refused))
        except RuntimeError as error:
            status = str(error).rsplit(" ", 1)[1]
        print(refused[0][1] if refused else status)
        return
    folder = pathlib.Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    began = time.time()
    refused = []
    files = {}
    recorded = 0
    fault = None
    faults = [row for row in rows if row.family == "fault"]
    rows = [row for row in rows if row.family != "fault"]
    if faults:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            statuses = pool.map(lambda row: fault_status(options.rows, row), faults)
            lines = [f"{row.text}\n{status}\n" for row, status in zip(faults, statuses)]
        (folder / "fault.txt").write_text("# family fault 0\n" + "".join(lines))
    try:
        for row, values in record(Gpu(), rows, refused):
            if row.family not in files:
                files[row.family] = open(folder / f"{row.family}.txt", "w", buffering=1)
                print(f"# family {row.family} {shown[row.family]}", file=files[row.family])
            print(row.text, answer(row, shown[row.family], values), sep="\n",
                  file=files[row.family])
            recorded += 1
    except RuntimeError as error:
        # After a fault the context is of no further use; what came before it is good.
        fault = error
    kinds = {(kind, k) for row in expand(text)[0] for k, kind in enumerate(row.inputs)}
    (folder / "operands.txt").write_text("".join(
        f"{kind} {k} {digest(column(kind, k, BLOCKS * BLOCK)[:BLOCKS * BLOCK]):08x}\n"
        for kind, k in sorted(kinds)))
    (folder / "refused.txt").write_text("".join(f"{row.text}\n  {why}\n" for row, why in refused))
    print(f"{recorded} rows, {len(refused)} refused, {time.time() - began:.1f} s")
    if fault is not None:
        sys.exit(f"stopped: {fault}")


if __name__ == "__main__":
    sys.exit(main())
