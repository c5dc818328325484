#!/usr/bin/env python3
"""Prints a random CUDA program: a kernel whose results are the same on every machine.

  cuda_programs.py SEED

A program is a kernel k(u32 *out, const u32 *in, u32 n, Params p) and its launch. The seed decides
all of it; seed % len(FAMILIES) is the family, which says what the program is about. Nothing in it
is undefined, approximate or dependent on the order of threads: accumulators are changed by one
operation that commutes, and threads spin only for threads that are resident. cuda_expressions.py
makes the expressions and statements.

A GPU's results may depend on the optimisation of ptxas (driver 580.159.04). With -O3,
max.NaN.f16(add.sat.f16(a, b), 0) loses the saturation, and neg.s16 and abs.s16 of -32768, extended
to 32 bits, are 32768; with -O0, and on the simulated machine, they are saturated and -32768. The
first is not generated. Of the seeds 300 to 999, five (364, 565, 678, 865, 876) differ from the
simulated machine with -O1 and -O3, and none of the five with -O0.

out has 4 words for each thread, 256 accumulators, then 4 words for each thread; all are zero.
"""

import dataclasses
import signal
import sys

from cuda_expressions import (CONSTRAINTS, Context, Expressions, FLOATS, INTEGERS, PRELUDE, Random,
                              TYPES, bits_of)

ACCUMULATORS = 256
WORDS_IN = 1024
# Values of Params, in its order.
PARAMETERS = (-7, 2.5, 1234, 0x0123456789ABCDEF, -0.75)


@dataclasses.dataclass
class Program:
    seed: int
    family: str
    source: str
    grid: tuple
    block: tuple
    shared_bytes: int
    # Compiled with a * b + c fused, which is the compiler's default.
    is_fused: bool = False

    @property
    def words_out(self):
        threads = 1
        for count in self.grid + self.block:
            threads *= count
        return 8 * threads + ACCUMULATORS


def inputs(seed):
    """The words of the input: half random, half edges of integers and floats."""
    random = Random(seed + 1000003)
    edges = [0, 1, 2, 3, 0xFFFFFFFF, 0xFFFFFFFE, 0x80000000, 0x7FFFFFFF, 0x80000001, 0x7F800000,
             0xFF800000, 0x7FC00000, 0x7F800001, 0x00000001, 0x007FFFFF, 0x00800000, 0x807FFFFF,
             0x3F800000, 0xBF800000, 0x7F7FFFFF, 0x4F000000, 0x5F000000, 0x4B000000, 0x3F000000,
             0x7FF00000, 0xFFF00000, 0x7FF80000, 0x3FF00000, 0x43E00000, 0x41E00000, 0x0000FFFF,
             0x00007FFF, 0x00000080, 0x0000007F, 31, 32, 33, 64, 0x00100000, 0x000FFFFF]
    return [random.pick(edges) if random.chance(35) else
            random.below(64) if random.chance(15) else random.word() & 0xFFFFFFFF
            for _ in range(WORDS_IN)]


class Writer(Expressions):
    """Writes one program. A family is a method that writes the middle of the kernel."""

    def __init__(self, seed):
        super().__init__(Random(seed))
        self.seed = seed
        self.family = FAMILIES[seed % len(FAMILIES)]
        random = self.random
        self.block = random.pick([(32, 1, 1), (64, 1, 1), (96, 1, 1), (128, 1, 1), (33, 1, 1),
                                  (17, 1, 1), (100, 1, 1), (7, 5, 1), (16, 4, 1), (8, 4, 3),
                                  (3, 3, 3), (32, 2, 1), (5, 13, 1)])
        self.grid = random.pick([(1, 1, 1), (2, 1, 1), (3, 1, 1), (2, 2, 1), (1, 3, 1), (2, 1, 2)])
        self.shared_bytes = 0
        self.attributes = ""
        self.is_fused = False
        self.globals = []    # declarations before the kernel
        self.extras = []     # functions that write a statement of the family
        self.mixed = []      # u32 expressions that go into the result

    @property
    def threads(self):
        x, y, z = self.block
        return x * y * z

    def extra(self, context):
        if not self.extras:
            return None
        return self.random.pick(self.extras)(context)

    def program(self):
        body = getattr(self, self.family)()
        source = PRELUDE + self.state() + "".join(self.helpers.values())
        source += "".join(text + "\n" for text in self.globals)
        source += self.kernel(body)
        return Program(self.seed, self.family, source, self.grid, self.block, self.shared_bytes,
                       self.is_fused)

    def state(self):
        fields = "".join(f" {kind} {kind}_0, {kind}_1;" for kind in TYPES)
        return f"struct S {{{fields} }};\n"

    def initial(self):
        """Loads the variables."""
        random, lines = self.random, []
        for kind in TYPES:
            for i in range(2):
                word = lambda: f"in[(g * {random.below(64) * 2 + 1}u + {random.below(999)}u) % n]"
                if kind == "f32":
                    value = random.pick([f"__uint_as_float({word()})", f"moderate32({word()})",
                                         f"(f32)(i32)({word()} & 255u) - 99.5f"])
                elif kind == "f64":
                    value = random.pick([f"__hiloint2double((i32){word()}, (i32){word()})",
                                         f"moderate64({word()}, {word()})",
                                         f"(f64)__uint_as_float({word()})"])
                elif bits_of(kind) == 64:
                    value = f"({kind})((u64){word()} << 32 | {word()})"
                else:
                    value = f"({kind}){word()}"
                lines.append(f"s.{kind}_{i} = {value};")
        return lines

    def kernel(self, body):
        small = [f"s.{kind}_{i}" for kind in INTEGERS if bits_of(kind) <= 32 for i in range(2)]
        large = [f"s.{kind}_{i}" for kind in ("i64", "u64") for i in range(2)]
        lines = [
            "const u32 tid = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);",
            "const u32 nt = blockDim.x * blockDim.y * blockDim.z;",
            "const u32 b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);",
            "const u32 nb = gridDim.x * gridDim.y * gridDim.z;",
            "const u32 g = b * nt + tid;",
            f"u32 *const acc = out + 4 * nb * nt, *const slot = acc + {ACCUMULATORS} + 4 * g;",
            "const u32 left = nt - (tid & ~31u);",
            "const u32 live = left >= 32 ? ~0u : (1u << left) - 1;",
            "u32 h = mix64(mix(p.a, p.c), p.d) ^ bits32(p.e) ^ (u32)(p.b * 4.0);",
            "S s;",
        ] + self.initial() + body + [
            "u32 ints = 0, longs = 0, floats = 0;",
        ] + [f"ints = mix(ints, (u32){value});" for value in small] + [
            f"longs = mix64(longs, (u64){value});" for value in large] + [
            f"floats = mix(floats, bits32(s.f32_{i}));" for i in range(2)] + [
            f"floats = mix64(floats, bits64(s.f64_{i}));" for i in range(2)] + [
            f"h = mix(h, {value});" for value in self.mixed] + [
            "out[4 * g] = ints; out[4 * g + 1] = longs; out[4 * g + 2] = floats;",
            "out[4 * g + 3] = h;",
            "(void)live; (void)slot;",
        ]
        return (f'extern "C" __global__ void {self.attributes}\n'
                "k(u32 *out, const u32 *in, u32 n, Params p)\n{\n"
                + "\n".join(self.indented(lines)) + "\n}\n")

    def function(self, count, depth, kinds=None):
        """The statements in a function with early returns, and its call."""
        self.kinds = kinds or self.kinds
        lines = self.statements(count, depth, Context(may_return=True))
        inline = self.random.pick(["", "__noinline__ ", "__forceinline__ "])
        parameters = "S &s, const u32 *in, u32 n, u32 g, u32 tid"
        self.globals.append(f"__device__ {inline}u32 body({parameters})\n{{\n"
                            + "\n".join(self.indented(lines)) + "\n    return 1;\n}")
        return ["h = mix(h, body(s, in, n, g, tid));"]

    # Families.

    def operators(self):
        return self.function(14, 1, INTEGERS)

    def floats(self):
        return self.function(14, 1, FLOATS + ("i32", "u32"))

    def conversions(self):
        lines = []
        for _ in range(10):
            source, target = self.random.pick(TYPES), self.random.pick(TYPES)
            value = self.expression(source, 1)
            if source in FLOATS and target in INTEGERS:
                value = self.rounded(target, source, 1)
            lines.append(f"s.{target}_{self.random.below(2)} = ({target})({value});")
            lines += self.assignment()
        return lines

    def control(self):
        return self.function(6, 3)

    def shared(self):
        random = self.random
        rooms = {"room": "u32"}
        lines = ["__shared__ u32 room[%d];" % self.threads]
        for kind in (random.pick(["f32", "f64"]), random.pick(["u8", "i16", "u64"])):
            rooms[f"room_{kind}"] = kind
            lines.append(f"__shared__ {kind} room_{kind}[{self.threads}];")
        if random.chance(60):
            self.shared_bytes = 8 * self.threads
            lines.append("extern __shared__ u64 dynamic[];")
            rooms["dynamic"] = "u64"
        for _ in range(4):
            lines += self.statements(1, 2, Context())
            name = random.pick(list(rooms))
            kind = rooms[name]
            where = f"(tid * {self.coprime()}u + {random.below(50)}u) % nt"
            lines += [f"{name}[{where}] = {self.expression(kind, 2)};", "__syncthreads();",
                      f"s.{kind}_{random.below(2)} = {name}[(tid + {random.below(40)}u) % nt];"]
            lines.append("__syncthreads();")
            lines += random.pick([self.tree, self.scan, self.counted_barrier, self.bytes_shared,
                                  self.named_barrier, self.copied])()
        return lines

    def coprime(self):
        """A factor that permutes the threads of a block."""
        return self.random.pick([factor for factor in (1, 3, 5, 7, 11, 13, 17, 29, 31)
                                 if self.threads % factor or factor == 1])

    def tree(self):
        operator = self.random.pick(["+", "^", "*", "|"])
        return [f"room[tid] = {self.expression('u32', 2)} | 1u;", "__syncthreads();",
                "for (u32 size = nt; size > 1;) {",
                "    const u32 half = (size + 1) / 2;",
                f"    if (tid + half < size) room[tid] = room[tid] {operator} room[tid + half];",
                "    __syncthreads();", "    size = half;", "}",
                "h = mix(h, room[0]);", "__syncthreads();"]

    def scan(self):
        return [f"room[tid] = {self.expression('u32', 2)};", "__syncthreads();",
                "for (u32 step = 1; step < nt; step *= 2) {",
                "    const u32 before = tid >= step ? room[tid - step] : 0;",
                "    __syncthreads();",
                "    room[tid] += before;", "    __syncthreads();", "}",
                "h = mix(h, room[tid]);", "__syncthreads();"]

    def counted_barrier(self):
        call = self.random.pick(["__syncthreads_count", "__syncthreads_and", "__syncthreads_or"])
        value = f"{call}({self.condition(2)}){' != 0' if call[-1] != 't' else ''}"
        return [f"h = mix(h, (u32){value});"]

    def bytes_shared(self):
        return ["{", "    u8 *bytes = (u8 *)room;",
                "    for (u32 i = tid; i < 4 * nt; i += nt) "
                f"bytes[i] = (u8)(i * {self.coprime()}u + "
                f"({self.expression('u32', 1)}));",
                "    __syncthreads();",
                "    h = mix(h, bytes[4 * nt - 1 - tid] + 256u * bytes[(tid * 3) % (4 * nt)]);",
                "    h = mix(h, ((u16 *)room)[2 * tid + 1]);",
                "    __syncthreads();", "}"]

    def named_barrier(self):
        if self.threads % 64:
            return self.counted_barrier()
        if self.random.chance(50):
            return [f"room[tid] = {self.expression('u32', 1)};",
                    'asm volatile("bar.sync %0, 64;" :: "r"(1 + tid / 64) : "memory");',
                    "h = mix(h, room[tid ^ 32]);", "__syncthreads();"]
        # The first warp of each pair does not wait.
        return ["if (!(tid & 32)) {", f"    room[tid] = {self.expression('u32', 1)};",
                "    __threadfence_block();",
                '    asm volatile("bar.arrive %0, 64;" :: "r"(1 + tid / 64) : "memory");',
                "} else {",
                '    asm volatile("bar.sync %0, 64;" :: "r"(1 + tid / 64) : "memory");',
                "    h = mix(h, room[tid ^ 32]);", "}", "__syncthreads();"]

    def copied(self):
        """An asynchronous copy from global to shared memory."""
        return [
            "{", "    const u32 to = (u32)__cvta_generic_to_shared(room + tid);",
            f"    const u32 *from = in + (g * 5 + {self.random.below(500)}u) % n;",
            '    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(from)'
            ' : "memory");',
            '    asm volatile("cp.async.wait_all;" ::: "memory");', "    __syncthreads();",
            "    h = mix(h, room[(tid + 9) % nt]);", "    __syncthreads();", "}"]

    def atomics(self):
        random = self.random
        lines = [f"__shared__ u64 pool[{ACCUMULATORS // 2}];",
                 "for (u32 i = tid; i < %d; i += nt) pool[i] = %#xull;"
                 % (ACCUMULATORS // 2, random.pick([0, 0x00000000FFFFFFFF, 0x8000000000000000,
                                                    0x7FFFFFFF7FFFFFFF])),
                 f"__shared__ __align__(16) u32 own[{4 * self.threads}];",
                 "for (u32 i = tid; i < 4 * nt; i += nt) own[i] = i * 0x01010101u;",
                 "__syncthreads();"]
        zones = [(self.zone(i), i) for i in range(12)]
        self.extras = [lambda context: self.shared_zone(*random.pick(zones)),
                       lambda context: self.own_slot()]
        lines += self.statements(8, 2, Context())
        for zone in zones:
            lines += self.shared_zone(*zone)
        lines += self.own_slot() + self.own_slot() + self.ticket()
        return lines + ["__syncthreads();",
                        f"for (u32 i = tid; i < {ACCUMULATORS // 2}; i += nt)",
                        "    h = mix64(h, pool[i]);",
                        "for (u32 i = 0; i < 4; i++) h = mix(h, own[4 * tid + i]);"]

    def zone(self, index):
        """What one group of accumulators is for: a space, a type and an operation."""
        random = self.random
        # Global accumulators begin at zero.
        space = random.pick(["acc", "acc", "pool"])
        kind = random.pick(["i32", "u32", "u64", "i64", "f32", "f64"])
        choices = {"i32": ["Add", "Sub", "Min", "Max", "Xor", "Or"],
                   "u32": ["Add", "Sub", "Max", "Xor", "Or", "Inc", "Dec", "CAS"],
                   "u64": ["Add", "Max", "Xor", "Or", "CAS"], "i64": ["Min", "Max"],
                   "f32": ["Add"], "f64": ["Add"]}
        if space == "pool":
            choices["u32"] += ["Min", "And"]
            choices["u64"] += ["Min", "And"]
            if kind in FLOATS:
                kind = "u32"
        return (space, kind, random.pick(choices[kind]), random.below(1000),
                random.pick(["", "", "_block" if space == "pool" else "", "_system"]))

    def shared_zone(self, zone, index):
        space, kind, operation, limit, scope = zone
        place = self.expression("u32", 1)
        words = 2 if bits_of(kind) == 64 else 1
        where = f"({kind} *){space} + {16 // words * index} + (({place}) & 3u)"
        if operation == "CAS":
            # A product of odd numbers, which commutes.
            return ["{", f"    {kind} *q = {where}, seen = *(volatile {kind} *)q, old;",
                    f"    const {kind} factor = ({self.expression(kind, 1)}) | 1u;",
                    "    do {", "        old = seen;",
                    f"        seen = atomicCAS(q, old, (old | 1u) * factor);",
                    "    } while (seen != old);", "}"]
        if operation in ("Inc", "Dec"):
            value = f"{limit + 1}u"
        elif kind in FLOATS:
            # Sums of small integers are exact.
            value = f"({kind})(i32)(({self.expression('u32', 1)}) & 511u)"
        else:
            value = self.expression(kind, 2)
        return [f"atomic{operation}{scope}({where}, {value});"]

    def own_slot(self):
        """An operation on memory of this thread alone, whose result has one value."""
        random = self.random
        target = random.pick(["own + 4 * tid", "slot"])
        kind = random.pick(["i32", "u32", "u64", "f32", "f64"])
        if kind == "f64":
            return [f"h = mix64(h, bits64(atomicAdd((f64 *)({target}), "
                    f"{self.expression('f64', 2)})));", f"*(u64 *)({target}) = h & 0xFFFFFu;"]
        if kind == "f32":
            if target != "slot":
                # Subnormals differ between shared and global memory: see docs of atom.add.f32.
                target = "slot"
            return [f"*(f32 *)({target}) = {self.expression('f32', 1)};",
                    f"h = mix(h, bits32(atomicAdd((f32 *)({target}), "
                    f"{self.expression('f32', 2)})));",
                    f"h = mix(h, bits32(*(f32 *)({target})));", f"*({target}) = h;"]
        operations = ["Add", "Exch", "Min", "Max", "And", "Or", "Xor", "CAS"]
        operation = random.pick(operations + (["Inc", "Dec"] if kind == "u32" else []))
        value = self.expression(kind, 2)
        if operation == "CAS":
            value = f"*({kind} *)({target}) + (({self.condition(1)}) ? 1 : 0), {value}"
        return [f"h = mix64(h, (u64)atomic{operation}(({kind} *)({target}), {value}));"]

    def ticket(self):
        """Each thread gets another number; what is made of them commutes."""
        return ["{", "    const u32 mine = atomicAdd(acc + 250, 1u);",
                f"    atomicXor(acc + 251, mix({self.random.below(1000)}u, mine));",
                "    atomicAdd(acc + 252, mine * mine);", "}"]

    def warps(self):
        random = self.random
        self.helpers["chosen"] = (
            "// The k-th thread of a mask, counted around.\n"
            "__device__ u32 chosen(u32 mask, u32 k)\n{\n"
            "    for (k %= __popc(mask); k; k--) mask &= mask - 1;\n"
            "    return __ffs(mask) - 1;\n}\n")
        self.extras = [self.warp_statement]
        lines = ["h = mix(h, __activemask());"] if random.chance(50) else []
        lines += self.statements(8, 2, Context(mask="live"))
        lines += ["__syncwarp(live);"]
        if random.chance(50):
            lines.append("h = mix(h, __activemask());")
        for _ in range(3):
            lines += self.warp_statement(Context(mask="live"))
        return lines

    def warp_statement(self, context):
        random, mask = self.random, context.mask
        form = random.below(11)
        if form < 3:
            kind = random.pick(["i32", "u32", "i64", "u64", "f32", "f64"])
            source = f"chosen({mask}, {self.expression('u32', 1)})"
            return [f"s.{kind}_{random.below(2)} = __shfl_sync({mask}, "
                    f"{self.expression(kind, 1)}, {source});"]
        if form == 3:
            # Lanes of the whole warp.
            kind = random.pick(["i32", "u32", "u64", "f32", "f64"])
            call = random.pick(["__shfl_xor_sync", "__shfl_up_sync", "__shfl_down_sync",
                                "__shfl_sync"])
            width = random.pick([32, 32, 16, 8, 4, 2])
            target = f"s.{kind}_{random.below(2)}"
            return [f"if ({mask} == ~0u)", f"    {target} = {call}(~0u, "
                    f"{self.expression(kind, 1)}, {random.below(32)}, {width});"]
        if form == 4:
            call = random.pick(["__ballot_sync", "__any_sync", "__all_sync"])
            return [f"h = mix(h, (u32){call}({mask}, {self.condition(2)})"
                    f"{'' if call[2] == 'b' else ' != 0'});"]
        if form == 5:
            kind = random.pick(["u32", "i32", "u64"])
            return [f"h = mix(h, __match_any_sync({mask}, ({self.expression(kind, 1)}) & 3));"]
        if form == 6:
            flag = self.name("f")
            kind = random.pick(["u32", "u64"])
            return [f"i32 {flag};",
                    f"h = mix(h, __match_all_sync({mask}, ({self.expression(kind, 1)}) & 1, "
                    f"&{flag}));", f"h += {flag} != 0;"]
        if form in (7, 8):
            operation = random.pick(["add", "min", "max", "and", "or", "xor"])
            kind = "u32" if operation in ("and", "or", "xor") else random.pick(["u32", "i32"])
            return [f"h = mix(h, (u32)__reduce_{operation}_sync({mask}, "
                    f"{self.expression(kind, 2)}));"]
        if form == 9:
            lanes = random.pick(["lt", "le", "eq", "ge", "gt"])
            name = self.name("l")
            return [f"u32 {name};", f'asm("mov.u32 %0, %%lanemask_{lanes};" : "=r"({name}));',
                    f"h = mix(h, __popc({name} & {mask}) + {name});"]
        return [f"h = mix(h, __fns({mask}, 0, 1 + (i32)(tid % __popc({mask}))));"]

    def structs(self):
        random = self.random
        scalars = ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f32", "f64"]
        names, fields = [], {}
        for index in range(3):
            name, body, fields_of = f"R{index}", [], []
            for number in range(3 + random.below(4)):
                kind, field = random.pick(scalars), f"f{number}"
                form = random.below(6)
                if form == 0:
                    body.append(f"{kind} {field}[4];")
                    fields_of += [(kind, f".{field}[{random.below(4)}]"),
                                  (kind, f".{field}[s.u32_0 & 3]")]
                elif form == 1:
                    width = 1 + random.below(20)
                    sign = random.pick(["u32", "i32"])
                    body.append(f"{sign} {field} : {width + 1};")
                    fields_of.append((sign, f".{field}"))
                elif form == 2 and names:
                    inner = random.pick(names)
                    body.append(f"{inner} {field}[2];")
                    for other, path in fields[inner]:
                        fields_of.append((other, f".{field}[{random.below(2)}]{path}"))
                elif form == 3:
                    body.append(f"union {{ u32 w; u8 c[4]; u16 d[2]; }} {field};")
                    fields_of += [("u32", f".{field}.w"), ("u8", f".{field}.c[g & 3]"),
                                  ("u16", f".{field}.d[1]")]
                else:
                    body.append(f"{kind} {field};")
                    fields_of.append((kind, f".{field}"))
            alignment = random.pick(["", "", "__align__(16) ", "__align__(8) "])
            self.globals.append(f"struct {alignment}{name} {{ {' '.join(body)} }};")
            names.append(name)
            fields[name] = fields_of
        lines = []
        for index, name in enumerate(names):
            lines.append(f"{name} x{index}[4] = {{}};")
        saved = {kind: list(values) for kind, values in self.variables.items()}
        observed = []
        for index, name in enumerate(names):
            for kind, path in fields[name]:
                element = random.pick(["[0]", "[1]", "[2]", "[3]", "[s.u32_1 & 3]", "[tid & 3]"])
                self.variables[kind].append(f"x{index}{element}{path}")
                observed.append((kind, f"x{index}{element}{path}"))
            self.globals.append(self.struct_function(name, fields[name]))
        self.extras = [lambda context: self.struct_statement(names)]
        lines += self.statements(12, 2, Context())
        self.variables = saved
        for kind, place in observed:
            if kind in FLOATS:
                lines.append(f"h = mix64(h, bits{kind[1:]}({place}));")
            else:
                lines.append(f"h = mix64(h, (u64){place});")
        return lines

    def struct_function(self, name, fields):
        """A function that takes a structure by value and returns another."""
        random = self.random
        lines = []
        for kind, path in fields[:4]:
            path = path.replace("s.u32_0", "i").replace("[g & 3]", "[i & 3]")
            if kind in FLOATS:
                lines.append(f"    a{path} = a{path} * ({kind})0.5 + ({kind})i;")
            else:
                lines.append(f"    a{path} = (({self.wide(kind)})a{path} * "
                             f"{random.below(99)}u + i);")
        inline = random.pick(["__noinline__ ", "", "__forceinline__ "])
        return (f"__device__ {inline}{name} changed(const {name} from, u32 i)\n{{\n"
                f"    {name} a = from;\n" + "\n".join(lines) + "\n    return a;\n}")

    @staticmethod
    def wide(kind):
        return "u64" if bits_of(kind) == 64 else "u32"

    def struct_statement(self, names):
        random = self.random
        index = random.below(len(names))
        a, b = (f"x{index}[({self.expression('u32', 1)}) & 3]" for _ in range(2))
        form = random.below(3)
        if form == 0:
            return [f"{a} = {b};"]
        if form == 1:
            return [f"{a} = changed({b}, {self.expression('u32', 1)});"]
        return ["{", f"    {names[index]} *q = &{a}, copy = *q;", f"    *q = {b};",
                f"    x{index}[{random.below(4)}] = changed(copy, 3);", "}"]

    def calls(self):
        random = self.random
        kinds = ("u32", "i32", "f32", "u64")
        parameters = {"u32": ["a", "d"], "i32": ["i"], "f32": ["x"], "u64": ["w"]}
        signature = "u32 a, u32 d, i32 i, f32 x, u64 w"
        inner = Expressions(random, kinds)
        inner.variables = {**{kind: [f"({kind})0"] for kind in TYPES}, **parameters}
        inner.helpers = self.helpers
        make = lambda kind, depth=2: inner.expression(kind, depth)
        arguments = lambda: (f"{make('u32')}, d - 1, {make('i32', 1)}, {make('f32', 1)}, "
                             f"{make('u64', 1)}")
        functions = []
        for index in range(3):
            functions.append(
                f"__device__ __noinline__ u32 simple{index}({signature})\n{{\n"
                f"    if ({inner.condition(2)}) return {make('u32')};\n"
                f"    w += {make('u64')};\n    x = {make('f32')};\n"
                f"    return mix64(bits32(x), w) ^ (u32)({make('i32')});\n}}")
        # Recursion, of a function and of two; d bounds its depth.
        functions.append(
            f"__device__ u32 odd({signature});\n"
            f"__device__ u32 even({signature})\n{{\n"
            f"    if (d == 0 || d > 5) return {make('u32')};\n"
            f"    return mix(odd({arguments()}), {make('u32')});\n}}\n"
            f"__device__ u32 odd({signature})\n{{\n"
            f"    if (d == 0 || d > 5) return {make('u32')};\n"
            f"    u32 r = even({arguments()});\n"
            f"    if ({inner.condition(1)}) r += odd({arguments()});\n    return r;\n}}")
        functions.append(
            "typedef u32 (*Pointer)(" + signature + ");\n"
            "__device__ const Pointer pointers[4] = {simple0, simple1, simple2, even};")
        functions.append(
            f"struct Base {{\n    u32 k;\n    __device__ Base(u32 v) : k(v) {{}}\n"
            f"    __device__ virtual u32 run({signature}) {{ return mix(k, {make('u32')}); }}\n"
            f"    __device__ virtual u32 twice(u32 v) {{ return v * 2 + k; }}\n}};\n"
            f"struct First : Base {{\n    f32 y;\n"
            f"    __device__ First(u32 v) : Base(v ^ 5), y((f32)(v & 7)) {{}}\n"
            f"    __device__ u32 run({signature}) override\n"
            f"    {{ return mix(k, bits32(y + {make('f32')})); }}\n}};\n"
            f"struct Second : First {{\n    u64 z;\n"
            f"    __device__ Second(u32 v) : First(v + 1), z(v) {{}}\n"
            f"    __device__ u32 run({signature}) override\n"
            f"    {{ z += {make('u64')}; return mix64(First::run(a, d, i, x, w), z); }}\n"
            f"    __device__ u32 twice(u32 v) override {{ return ~v + (u32)z; }}\n}};")
        functions.append(
            "template <typename T, int N> __device__ T powers(T x)\n"
            "{\n    if constexpr (N == 0) return (T)1;\n"
            "    else return x * powers<T, N - 1>(x);\n}\n"
            "template <typename... T> __device__ u32 mixed(T... values)\n"
            "{\n    u32 h = 0;\n    ((h = mix(h, (u32)values)), ...);\n    return h;\n}\n"
            "template <typename F> __device__ u32 applied(F f, u32 n)\n"
            "{\n    u32 r = n;\n    for (u32 i = 0; i < (n & 3u); i++) r = f(r, i);\n"
            "    return r;\n}")
        self.globals += functions
        outer = lambda: (f"{self.expression('u32', 2)}, ({self.expression('u32', 1)}) % 4u, "
                         f"{self.expression('i32', 1)}, {self.expression('f32', 1)}, "
                         f"{self.expression('u64', 1)}")
        self.extras = [
            lambda context: [f"h = mix(h, {random.pick(['simple0', 'simple1', 'even', 'odd'])}"
                             f"({outer()}));"],
            lambda context: [f"h = mix(h, pointers[({self.expression('u32', 1)}) & 3]"
                             f"({outer()}));"],
            lambda context: [f"h = mix(h, objects[({self.expression('u32', 1)}) % 3]->"
                             f"run({outer()}));"],
            lambda context: [f"h = objects[({self.expression('u32', 1)}) % 3]->twice(h);"],
            lambda context: [f"s.u32_1 = powers<u32, {random.below(6)}>"
                             f"({self.expression('u32', 1)});"],
            lambda context: [f"h = mix(h, mixed({self.expression('i16', 1)}, "
                             f"{self.expression('u64', 1)}, {self.expression('i32', 1)}));"],
            lambda context: [f"h = mix(h, applied([=](u32 r, u32 i) {{ return r * "
                             f"({self.expression('u32', 1)}) + i; }}, {self.expression('u32', 1)})"
                             f");"],
        ]
        lines = ["Base base(g); First first(tid); Second second(h);",
                 "Base *const objects[3] = {&base, &first, &second};"]
        lines += self.statements(8, 2, Context())
        for extra in self.extras:
            lines += extra(Context())
        return lines

    def halves(self):
        random = self.random
        operations = {}   # name: result, arguments
        bits = {"h": "u16", "g": "u16", "hh": "u32", "gg": "u32"}  # f16, bf16, pairs of them
        names = {"h": "f16", "g": "bf16", "hh": "f16x2", "gg": "bf16x2"}

        def define(name, result, arguments, ptx):
            result_bits = bits.get(result, result)
            kinds = [bits.get(kind, kind) for kind in arguments]
            inputs_of = ", ".join(f'"{CONSTRAINTS[kind]}"(a{i})' for i, kind in enumerate(kinds))
            parameters = ", ".join(f"{kind} a{i}" for i, kind in enumerate(kinds))
            self.helpers[name] = (
                f"__device__ {result_bits} {name}({parameters})\n{{\n    {result_bits} r;\n"
                f'    asm("{ptx}" : "={CONSTRAINTS[result_bits]}"(r) : {inputs_of});\n'
                f"    return r;\n}}\n")
            operations.setdefault(result, []).append((name, arguments))

        for kind, name in names.items():
            for operation in ("add", "sub", "mul"):
                define(f"{operation}_{name}", kind, (kind, kind),
                       f"{operation}.rn.{name} %0, %1, %2;")
            define(f"fma_{name}", kind, (kind,) * 3, f"fma.rn.{name} %0, %1, %2, %3;")
            define(f"fma_relu_{name}", kind, (kind,) * 3, f"fma.rn.relu.{name} %0, %1, %2, %3;")
            for operation in ("min", "max", "min.NaN", "max.NaN"):
                define(f"{operation.replace('.', '_')}_{name}", kind, (kind, kind),
                       f"{operation}.{name} %0, %1, %2;")
            define(f"abs_{name}", kind, (kind,), f"abs.{name} %0, %1;")
            define(f"neg_{name}", kind, (kind,), f"neg.{name} %0, %1;")
        define("fma_sat_f16x2", "hh", ("hh",) * 3, "fma.rn.sat.f16x2 %0, %1, %2, %3;")
        define("set_lt_f16x2", "hh", ("hh", "hh"), "set.lt.f16x2.f16x2 %0, %1, %2;")
        define("set_geu_f16x2", "hh", ("hh", "hh"), "set.geu.f16x2.f16x2 %0, %1, %2;")
        for mode in ("rn", "rz"):
            define(f"f16_{mode}_of_f32", "h", ("f32",), f"cvt.{mode}.f16.f32 %0, %1;")
            define(f"bf16_{mode}_of_f32", "g", ("f32",), f"cvt.{mode}.bf16.f32 %0, %1;")
            define(f"f16x2_{mode}_of_f32", "hh", ("f32", "f32"),
                   f"cvt.{mode}.f16x2.f32 %0, %1, %2;")
            define(f"bf16x2_{mode}_of_f32", "gg", ("f32", "f32"),
                   f"cvt.{mode}.bf16x2.f32 %0, %1, %2;")
        define("f16_of_f64", "h", ("f64",), "cvt.rn.f16.f64 %0, %1;")
        define("f16_of_s32", "h", ("i32",), "cvt.rn.f16.s32 %0, %1;")
        define("f16_of_u64", "h", ("u64",), "cvt.rz.f16.u64 %0, %1;")
        define("f16_floor", "h", ("h",), "cvt.rmi.f16.f16 %0, %1;")
        define("f32_of_f16", "f32", ("h",), "cvt.f32.f16 %0, %1;")
        define("f32_of_bf16", "f32", ("g",), "cvt.f32.bf16 %0, %1;")
        define("f64_of_f16", "f64", ("h",), "cvt.f64.f16 %0, %1;")
        define("s32_of_f16", "i32", ("h",), "cvt.rni.s32.f16 %0, %1;")
        define("u16_of_f16", "u16", ("h",), "cvt.rzi.u16.f16 %0, %1;")
        define("s64_of_f16", "i64", ("h",), "cvt.rpi.s64.f16 %0, %1;")
        # One NaN for all.
        self.helpers["bits16"] = (
            "__device__ u32 bits_h(u16 x) { return (x & 0x7FFFu) > 0x7C00u ? 0x7FFFu : x; }\n"
            "__device__ u32 bits_g(u16 x) { return (x & 0x7FFFu) > 0x7F80u ? 0x7FFFu : x; }\n"
            "__device__ u32 bits_hh(u32 x)\n"
            "{ return bits_h((u16)x) | bits_h((u16)(x >> 16)) << 16; }\n"
            "__device__ u32 bits_gg(u32 x)\n"
            "{ return bits_g((u16)x) | bits_g((u16)(x >> 16)) << 16; }\n")

        def make(kind, depth):
            if kind not in bits and kind not in operations:
                return self.expression(kind, depth)
            if depth <= 0 or (kind not in bits and random.chance(50)):
                return (f"{kind}_{random.below(3)}" if kind in bits
                        else self.expression(kind, depth))
            name, arguments = random.pick(operations[kind])
            return f"{name}({', '.join(make(argument, depth - 1) for argument in arguments)})"

        lines = []
        for kind, type_name in bits.items():
            for i in range(3):
                lines.append(f"{type_name} {kind}_{i} = ({type_name})in[(g * 7 + "
                             f"{random.below(900)}u) % n];")
        def statement(context):
            kind = random.pick(list(bits))
            return [f"{kind}_{random.below(3)} = {make(kind, 3)};"]

        self.extras = [statement]
        for _ in range(8):
            lines += statement(None)
            kind = random.pick(["f32", "f64", "i32", "u16", "i64"])
            lines.append(f"s.{kind}_{random.below(2)} = {make(kind, 2)};")
        lines += self.statements(4, 2, Context())
        self.mixed += [f"bits_{kind}({kind}_{i})" for kind in bits for i in range(3)]
        return lines

    def memory(self):
        random = self.random
        for kind, space in (("u32", "__constant__"), ("f32", "__constant__"),
                            ("i16", "__device__"), ("f64", "__device__ const"),
                            ("u64", "static __device__")):
            values = ", ".join(self.literal(kind) for _ in range(16))
            self.globals.append(f"{space} {kind} table_{kind}[16] = {{{values}}};")
            self.tables[kind] = f"table_{kind}"
        self.globals += [
            f"__device__ u32 counter = {random.below(1 << 30)}u;",
            "__device__ u32 *counter_at = &counter;",
            "__device__ struct { i8 a; f64 b; u16 c[3]; const f32 *d; } record = "
            "{-3, 0.125, {1, 2, 0xFFFF}, table_f32 + 2};",
            '__constant__ char words[] = "abcdefghijklmno";',
        ]
        lines = [f"__shared__ u32 room[{self.threads}];",
                 f"room[tid] = {self.expression('u32', 2)};",
                 "__syncthreads();", "u32 array[16]; u8 bytes[24]; volatile i32 kept = (i32)g;",
                 "for (u32 i = 0; i < 16; i++) array[i] = i * s.u32_0;",
                 "for (u32 i = 0; i < 24; i++) bytes[i] = (u8)(i * 11 + g);"]
        index = lambda: f"({self.expression('u32', 1)})"
        vectors = [("uint4", 16, ("x", "y", "z", "w"), "u32"), ("float2", 8, ("x", "y"), "f32"),
                   ("short4", 8, ("x", "w"), "i16"), ("char4", 4, ("y", "z"), "i8"),
                   ("longlong2", 16, ("x", "y"), "i64"), ("ushort2", 4, ("x", "y"), "u16"),
                   ("double2", 16, ("x", "y"), "f64"), ("int3", 4, ("x", "z"), "i32")]

        def vector(context):
            name, size, fields, kind = random.pick(vectors)
            count = WORDS_IN * 4 // (16 if name == "int3" else size)
            load = random.pick(["{}", "__ldg(&{})", "__ldcg(&{})", "__ldcs(&{})"])
            if name == "int3":
                load = "{}"
            place = f"((const {name} *)in)[{index()} % {count}u]"
            value = self.name("v")
            return [f"const {name} {value} = {load.format(place)};"] + [
                f"s.{kind}_{i} = ({kind}){value}.{field};" for i, field in enumerate(fields[:2])]

        def store(context):
            kind, name = random.pick([("u32", "uint4"), ("f32", "float4")])
            value = self.name("v")
            make = [self.expression(kind, 1) for _ in range(4)]
            if kind == "f32":
                make = [f"__uint_as_float(bits32({value}))" for value in make]
            write = random.pick(["*({0} *)slot = {1};", "__stcg(({0} *)slot, {1});",
                                 "__stwt(({0} *)slot, {1});"])
            return [f"const {name} {value} = make_{name}({', '.join(make)});",
                    write.format(name, value)]

        def local(context):
            return random.pick([
                lambda: [f"array[{index()} & 15] = {self.expression('u32', 2)};"],
                lambda: [f"s.u32_{random.below(2)} = array[{index()} & 15];"],
                lambda: [f"bytes[{index()} % 24u] ^= (u8){index()};"],
                lambda: ["{", "    u64 word;", f"    memcpy(&word, bytes + ({index()} & 15u), 8);",
                         "    s.u64_0 ^= word;", "}"],
                lambda: [f"kept = {self.expression('i32', 1)};", "s.i32_0 = kept;"],
            ])()

        def generic(context):
            name = self.name("q")
            kinds = ["room", "in", "array", "table_u32", "slot"]
            first, second, third = (random.pick(kinds) for _ in range(3))
            size = lambda of: {"room": "nt", "in": "n", "slot": "4u"}.get(of, "16u")
            at = lambda of: f"{of} + {index()} % {size(of)}"
            return [f"const u32 *const {name} = {self.condition(1)} ? (const u32 *)({at(first)}) : "
                    f"{self.condition(1)} ? (const u32 *)({at(second)}) : ({at(third)});",
                    f"s.u32_{random.below(2)} = *{name};"]

        def variables(context):
            return random.pick([
                lambda: ["h = mix(h, *counter_at + record.c[tid % 3]);"],
                lambda: ["s.f32_0 = record.d[tid & 7] + (f32)record.b;"],
                lambda: ["h = mix(h, (u32)(record.d - table_f32) + words[tid & 15]);"],
                lambda: [f"s.{kind}_0 = table_{kind}[{index()} & 15];" for kind in
                         [random.pick(["u32", "f32", "i16", "f64", "u64"])]],
            ])()

        def heap(context):
            name = self.name("p")
            return [f"u32 *const {name} = (u32 *)malloc({4 * (4 + random.below(30))});",
                    f"if ({name}) {{", f"    for (u32 i = 0; i < 4; i++) {name}[i] = i * h;",
                    f"    h = mix(h, {name}[h & 3]);", f"    free({name});", "}",
                    "{", f"    f64 *const fresh = new f64({self.expression('f64', 1)});",
                    "    if (fresh) h = mix64(h, bits64(*fresh));", "    delete fresh;", "}"]

        self.extras = [vector, vector, store, local, local, generic, generic, variables]
        lines += self.statements(10, 2, Context())
        for extra in (vector, store, local, generic, variables) + (
                (heap,) if random.chance(40) else ()):
            lines += extra(None)
        # The initial value is read by all before one thread changes it.
        return lines + ["__syncthreads();", "for (u32 i = 0; i < 16; i++) h = mix(h, array[i]);",
                        "for (u32 i = 0; i < 24; i++) h = mix(h, bytes[i]);"]

    def text(self):
        random = self.random
        def line(context):
            parts, values = [], []
            for _ in range(1 + random.below(5)):
                kind = random.pick(["i32", "u32", "i64", "u64", "f32", "f64", "i8", "text"])
                flags = random.pick(["", "", "-12", "12", "05", "+", " ", "-8"])
                if kind == "text":
                    parts.append("%" + random.pick(["", "10", "-7"]) + "s")
                    values.append(random.pick(['"word"', '""', '"a longer text"',
                                               '(tid & 1 ? "odd" : "even")']))
                    continue
                value = self.expression(kind, 2)
                if kind in FLOATS:
                    precision = random.pick(["", ".3", ".0", ".10"])
                    form = random.pick("feEgG")
                    parts.append(f"%{flags}{precision}{form}")
                    value = (f"__uint_as_float(bits32({value}))" if kind == "f32"
                             else f"__longlong_as_double((i64)bits64({value}))")
                elif kind == "i8":
                    parts.append("%c")
                    value = f"(i32)('A' + (({value}) & 15))"
                else:
                    size = "ll" if bits_of(kind) == 64 else ""
                    if kind[0] == "i":
                        form = random.pick("di")
                    else:
                        form = random.pick("uxXo")
                        flags = flags.replace("+", "#").replace(" ", "#012" if form in "xX" else "")
                    precision = random.pick(["", "", "", ".7"])
                    parts.append(f"%{flags}{precision}{size}{form}")
                values.append(value)
            name = self.name("line ")
            text = random.pick([" ", ", ", "|", "%% "]).join(parts)
            return [f"if ((g & 3u) == {random.below(4)}u)",
                    f'    h += printf("{name} %u: {text}\\n", g, {", ".join(values)});']

        self.grid, self.block = (random.pick([(1, 1, 1), (2, 1, 1)]),
                                 random.pick([(8, 1, 1), (4, 3, 1), (20, 1, 1)]))
        self.extras = [line]
        lines = self.statements(6, 1, Context())
        for _ in range(4):
            lines += line(None)
        return lines

    def blocks(self):
        self.grid = self.random.pick([(4, 1, 1), (3, 2, 1), (8, 1, 1), (2, 2, 2)])
        lines = self.statements(4, 2, Context()) + ["u32 v = %s;" % self.expression("u32", 3)]
        forms = [self.last_block, self.look_back, self.locked, self.handed_over, self.chained]
        first = self.seed // len(FAMILIES) % len(forms)
        for form in (forms[first], forms[(first + 1 + self.random.below(4)) % len(forms)]):
            lines += ["{"] + self.indented(form()) + ["}", "__syncthreads();"]
        return lines

    def last_block(self):
        """The block that comes last adds what all have written."""
        return ["__shared__ u32 rank;", "if (tid == 0) {",
                "    ((volatile u32 *)acc)[16 + b] = v;", "    __threadfence();",
                "    rank = atomicAdd(acc, 1u);", "}", "__syncthreads();",
                "if (rank == nb - 1 && tid == 0) {", "    __threadfence();", "    u32 sum = 0;",
                "    for (u32 i = 0; i < nb; i++) sum = mix(sum, ((volatile u32 *)acc)[16 + i]);",
                "    acc[1] = sum;", "}"]

    def look_back(self):
        """Blocks take numbers, and each waits for the block that took the one before."""
        return ["__shared__ u32 number, before;", "if (tid == 0) {",
                "    number = atomicAdd(acc + 2, 1u);", "    volatile u32 *const flags = acc + 32;",
                "    volatile u32 *const sums = acc + 48;",
                "    if (number) while (!flags[number - 1]) {}", "    __threadfence();",
                "    before = number ? sums[number - 1] : 0;",
                "    sums[number] = before * 31 + number + 1;", "    __threadfence();",
                "    flags[number] = 1;", "}", "__syncthreads();",
                # Which block has a number is left to the machine: what is made of it commutes.
                "atomicAdd(acc + 3, mix(before, tid));"]

    def locked(self):
        """Threads of all warps and blocks change one word under a lock."""
        return ["volatile u32 *const sum = acc + 65;", "bool done = false;", "while (!done) {",
                "    if (atomicCAS(acc + 64, 0u, 1u) == 0) {", "        __threadfence();",
                "        *sum = *sum + (v & 0xFFFFu);", "        __threadfence();",
                "        atomicExch(acc + 64, 0u);", "        done = true;", "    }", "}"]

    def handed_over(self):
        """Each warp waits for the one before."""
        return ["__shared__ volatile u32 turn, sum;", "if (tid == 0) { turn = 0; sum = b; }",
                "__syncthreads();", "if (tid % 32 == 0) {", "    while (turn != tid / 32) {}",
                "    __threadfence_block();", "    sum = sum * 33 + v;",
                "    __threadfence_block();", "    turn = tid / 32 + 1;", "}",
                "__syncthreads();", "h = mix(h, sum);"]

    def chained(self):
        """Each thread waits for the one before, also within a warp."""
        return ["__shared__ volatile u32 turn, sum;", "if (tid == 0) { turn = 0; sum = b; }",
                "__syncthreads();", "while (turn != tid) {}", "__threadfence_block();",
                "sum = sum * 33 + v;", "__threadfence_block();", "turn = tid + 1;",
                "__syncthreads();", "h = mix(h, sum);"]

    def clusters(self):
        random = self.random
        size = random.pick([2, 2, 4])
        self.grid = (size * (1 + random.below(2)), 1 + random.below(2), 1)
        self.attributes = f"__cluster_dims__({size}, 1, 1)"
        self.helpers["cluster"] = (
            "__device__ void cluster_sync()\n{\n"
            '    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");\n'
            '    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");\n}\n'
            "__device__ u32 cluster_rank()\n{\n    u32 r;\n"
            '    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));\n    return r;\n}\n'
            "__device__ u32 cluster_size()\n{\n    u32 r;\n"
            '    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(r));\n    return r;\n}\n'
            "__device__ u32 *of_block(u32 *mine, u32 rank)\n{\n    u64 r;\n"
            '    asm("mapa.u64 %0, %1, %2;" : "=l"(r) : "l"(mine), "r"(rank));\n'
            "    return (u32 *)r;\n}\n"
            "__device__ u32 loaded(u32 *mine, u32 rank)\n{\n    u32 at, r;\n"
            '    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at)\n'
            '        : "r"((u32)__cvta_generic_to_shared(mine)), "r"(rank));\n'
            '    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(r) : "r"(at)'
            ' : "memory");\n    return r;\n}\n')
        lines = [f"__shared__ u32 room[{self.threads}], sums[8];", "if (tid < 8) sums[tid] = tid;",
                 "const u32 rank = cluster_rank(), size = cluster_size();",
                 "h = mix(h, rank + 16 * size);"]
        for _ in range(2):
            lines += self.statements(2, 2, Context())
            lines += [f"room[tid] = {self.expression('u32', 2)};", "cluster_sync();"]
            other = f"(rank + {1 + random.below(3)}u) % size"
            lines += random.pick([
                [f"s.u32_0 = loaded(room + (tid + 7) % nt, {other});"],
                [f"s.u32_1 = *of_block(room + nt - 1 - tid, {other});"],
                [f"atomicAdd(of_block(sums + (tid & 7), {other}), {self.expression('u32', 1)});"],
                [f"atomicXor(of_block(sums + (tid & 7), tid % size), "
                 f"{self.expression('u32', 1)});"],
            ])
            lines += ["cluster_sync();", "h = mix(h, sums[tid & 7]);", "__syncthreads();"]
        return lines

    def fused(self):
        """Compiled as it is: each sum of a product is one of the values that fusing allows."""
        self.is_fused = True
        random, lines = self.random, []
        for _ in range(8):
            kind = random.pick(FLOATS)
            suffix, fma = ("f", "fmaf") if kind == "f32" else ("", "fma")
            mul, add = ("__fmul_rn", "__fadd_rn") if kind == "f32" else ("__dmul_rn", "__dadd_rn")
            bits = "bits32" if kind == "f32" else "bits64"
            a, b, c, d, r = (self.name(letter) for letter in "abcdr")
            for name in (a, b, c, d):
                word = lambda: f"in[(g * {2 * random.below(64) + 1}u + {random.below(999)}u) % n]"
                value = (f"moderate32({word()})" if kind == "f32"
                         else f"moderate64({word()}, {word()})")
                lines.append(f"const {kind} {name} = {value};")
            if random.chance(50):
                sign = random.pick(["", "-"])
                value = f"{a} * {b} {sign or '+'} {c}"
                possible = [f"{fma}({a}, {b}, {sign}{c})", f"{add}({mul}({a}, {b}), {sign}{c})"]
            else:
                sign = random.pick(["", "-"])
                value = f"{a} * {b} {sign or '+'} {c} * {d}"
                possible = [f"{fma}({a}, {b}, {sign}{mul}({c}, {d}))",
                            f"{fma}({sign}{c}, {d}, {mul}({a}, {b}))",
                            f"{add}({mul}({a}, {b}), {sign}{mul}({c}, {d}))"]
            lines.append(f"const {kind} {r} = {value};")
            checks = " || ".join(f"{bits}({r}) == {bits}({other})" for other in possible)
            lines.append(f"h = mix(h, {checks} ? 1u : 2u);")
        return lines


FAMILIES = ("operators", "floats", "conversions", "control", "shared", "atomics", "warps",
            "structs", "calls", "halves", "memory", "text", "blocks", "clusters", "fused")


def generate(seed):
    return Writer(seed).program()


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    program = generate(int(sys.argv[1]))
    print(f"// {program.family}: grid {program.grid}, blocks {program.block}, "
          f"{program.shared_bytes} bytes of dynamic shared memory")
    print(program.source, end="")
