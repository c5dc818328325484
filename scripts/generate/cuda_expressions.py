"""Random CUDA C++ expressions and statements with defined results: the base of cuda_programs.py.

Integers wrap in unsigned arithmetic, divisors and shifts are bounded or go through PTX that defines
every case, conversions use PTX that saturates, and bits of a float are read with one NaN for all
NaNs. No function is approximate.
"""

MASK = (1 << 64) - 1

SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
INTEGERS = SIGNED + UNSIGNED
FLOATS = ("f32", "f64")
TYPES = INTEGERS + FLOATS

ROUNDINGS = ("rn", "rz", "rd", "ru")

PRELUDE = """\
typedef signed char i8; typedef short i16; typedef int i32; typedef long long i64;
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned u32;
typedef unsigned long long u64; typedef float f32; typedef double f64;
struct Params { i8 a; f64 b; i16 c; u64 d; f32 e; };
__device__ u32 mix(u32 h, u32 x) { h = (h ^ x) * 0x9E3779B1u; return h ^ (h >> 15); }
__device__ u32 mix64(u32 h, u64 x) { return mix(mix(h, (u32)x), (u32)(x >> 32)); }
__device__ u32 bits32(f32 x) { return x != x ? 0x7FFFFFFFu : __float_as_uint(x); }
__device__ u64 bits64(f64 x)
{
    return x != x ? 0x7FFFFFFFFFFFFFFFull : (u64)__double_as_longlong(x);
}
__device__ f32 moderate32(u32 x) { return __uint_as_float((x & 0x87FFFFFFu) + 0x3C000000u); }
__device__ f64 moderate64(u32 x, u32 y)
{
    return __longlong_as_double(((i64)((x & 0x807FFFFFu) + 0x3FC00000u) << 32) | y);
}
"""

# Intrinsics: name, result, arguments.
INTRINSICS = [
    ("__popc", "i32", ("u32",)), ("__clz", "i32", ("i32",)), ("__ffs", "i32", ("i32",)),
    ("__brev", "u32", ("u32",)), ("__byte_perm", "u32", ("u32", "u32", "u32")),
    ("__funnelshift_l", "u32", ("u32", "u32", "u32")),
    ("__funnelshift_lc", "u32", ("u32", "u32", "u32")),
    ("__funnelshift_r", "u32", ("u32", "u32", "u32")),
    ("__funnelshift_rc", "u32", ("u32", "u32", "u32")),
    ("__umulhi", "u32", ("u32", "u32")), ("__mulhi", "i32", ("i32", "i32")),
    ("__mul64hi", "i64", ("i64", "i64")), ("__umul64hi", "u64", ("u64", "u64")),
    ("__mul24", "i32", ("i32", "i32")), ("__umul24", "u32", ("u32", "u32")),
    ("__sad", "u32", ("i32", "i32", "u32")), ("__usad", "u32", ("u32", "u32", "u32")),
    ("__hadd", "i32", ("i32", "i32")), ("__rhadd", "i32", ("i32", "i32")),
    ("__uhadd", "u32", ("u32", "u32")), ("__urhadd", "u32", ("u32", "u32")),
    ("__popcll", "i32", ("u64",)), ("__clzll", "i32", ("i64",)), ("__ffsll", "i32", ("i64",)),
    ("__brevll", "u64", ("u64",)),
    ("__vadd4", "u32", ("u32", "u32")), ("__vaddss4", "u32", ("u32", "u32")),
    ("__vaddus4", "u32", ("u32", "u32")), ("__vsub2", "u32", ("u32", "u32")),
    ("__vsubss2", "u32", ("u32", "u32")), ("__vavgu4", "u32", ("u32", "u32")),
    ("__vavgs2", "u32", ("u32", "u32")), ("__vabsdiffu4", "u32", ("u32", "u32")),
    ("__vabsdiffs2", "u32", ("u32", "u32")), ("__vcmpgts4", "u32", ("u32", "u32")),
    ("__vcmpleu2", "u32", ("u32", "u32")), ("__vmaxs2", "u32", ("u32", "u32")),
    ("__vminu4", "u32", ("u32", "u32")), ("__vmaxs4", "u32", ("u32", "u32")),
    ("__vsadu4", "u32", ("u32", "u32")), ("__vsads2", "u32", ("u32", "u32")),
    ("__vsetgeu2", "u32", ("u32", "u32")), ("__vneg2", "u32", ("u32",)),
    ("__vnegss4", "u32", ("u32",)), ("__vabsss2", "u32", ("u32",)),
    ("__dp4a", "i32", ("i32", "i32", "i32")), ("__dp4a", "u32", ("u32", "u32", "u32")),
    ("__dp2a_lo", "i32", ("i32", "i32", "i32")), ("__dp2a_hi", "u32", ("u32", "u32", "u32")),
    ("__vimax3_s32", "i32", ("i32", "i32", "i32")), ("__vimin3_u32", "u32", ("u32", "u32", "u32")),
    ("__vimax3_s16x2", "u32", ("u32", "u32", "u32")),
    ("__viaddmax_s16x2", "u32", ("u32", "u32", "u32")),
    ("__viaddmin_u32", "u32", ("u32", "u32", "u32")),
    ("__vimin_s16x2_relu", "u32", ("u32", "u32")),
    ("__viaddmax_s16x2_relu", "u32", ("u32", "u32", "u32")),
]

# Inline PTX with a result for every operand. Each becomes a function: name, result, arguments, PTX.
ASSEMBLY = []
for _name, _type in (("u32", "u32"), ("s32", "i32"), ("u64", "u64"), ("s64", "i64"),
                     ("u16", "u16"), ("s16", "i16")):
    ASSEMBLY += [(f"div_{_name}", _type, (_type, _type), f"div.{_name} %0, %1, %2;"),
                 (f"rem_{_name}", _type, (_type, _type), f"rem.{_name} %0, %1, %2;"),
                 (f"shr_{_name}", _type, (_type, "u32"), f"shr.{_name} %0, %1, %2;"),
                 (f"max_{_name}", _type, (_type, _type), f"max.{_name} %0, %1, %2;")]
ASSEMBLY += [
    ("shl_b16", "u16", ("u16", "u32"), "shl.b16 %0, %1, %2;"),
    ("shl_b32", "u32", ("u32", "u32"), "shl.b32 %0, %1, %2;"),
    ("shl_b64", "u64", ("u64", "u32"), "shl.b64 %0, %1, %2;"),
    ("bfe_u32", "u32", ("u32", "u32", "u32"), "bfe.u32 %0, %1, %2, %3;"),
    ("bfe_s32", "i32", ("i32", "u32", "u32"), "bfe.s32 %0, %1, %2, %3;"),
    ("bfe_u64", "u64", ("u64", "u32", "u32"), "bfe.u64 %0, %1, %2, %3;"),
    ("bfe_s64", "i64", ("i64", "u32", "u32"), "bfe.s64 %0, %1, %2, %3;"),
    ("bfi_b32", "u32", ("u32", "u32", "u32", "u32"), "bfi.b32 %0, %1, %2, %3, %4;"),
    ("bfi_b64", "u64", ("u64", "u64", "u32", "u32"), "bfi.b64 %0, %1, %2, %3, %4;"),
    ("bfind_u64", "u32", ("u64",), "bfind.u64 %0, %1;"),
    ("bfind_s32", "u32", ("i32",), "bfind.shiftamt.s32 %0, %1;"),
    ("lop3_1a", "u32", ("u32", "u32", "u32"), "lop3.b32 %0, %1, %2, %3, 0x1A;"),
    ("lop3_e8", "u32", ("u32", "u32", "u32"), "lop3.b32 %0, %1, %2, %3, 0xE8;"),
    ("prmt_f4e", "u32", ("u32", "u32", "u32"), "prmt.b32.f4e %0, %1, %2, %3;"),
    ("prmt_rc16", "u32", ("u32", "u32", "u32"), "prmt.b32.rc16 %0, %1, %2, %3;"),
    ("add_sat", "i32", ("i32", "i32"), "add.sat.s32 %0, %1, %2;"),
    ("sub_sat", "i32", ("i32", "i32"), "sub.sat.s32 %0, %1, %2;"),
    ("mad_wide", "i64", ("i32", "i32", "i64"), "mad.wide.s32 %0, %1, %2, %3;"),
    ("mad_hi", "u32", ("u32", "u32", "u32"), "mad.hi.u32 %0, %1, %2, %3;"),
    ("bmsk", "u32", ("u32", "u32"), "bmsk.clamp.b32 %0, %1, %2;"),
    ("szext", "i32", ("i32", "u32"), "szext.wrap.s32 %0, %1, %2;"),
    ("carry", "u64", ("u32", "u32", "u32", "u32"),
     "{.reg .u32 l, h; add.cc.u32 l, %1, %3; addc.u32 h, %2, %4; mov.b64 %0, {l, h};}"),
    ("borrow", "u64", ("u32", "u32", "u32", "u32"),
     "{.reg .u32 l, h; sub.cc.u32 l, %1, %3; subc.u32 h, %2, %4; mov.b64 %0, {l, h};}"),
    ("max_nan", "f32", ("f32", "f32"), "max.NaN.f32 %0, %1, %2;"),
    ("add_ftz", "f32", ("f32", "f32"), "add.ftz.f32 %0, %1, %2;"),
    ("mul_ftz", "f32", ("f32", "f32"), "mul.rz.ftz.f32 %0, %1, %2;"),
    ("fma_sat", "f32", ("f32", "f32", "f32"), "fma.rn.sat.f32 %0, %1, %2, %3;"),
    ("slct", "f32", ("f32", "f32", "i32"), "slct.f32.s32 %0, %1, %2, %3;"),
]
CONSTRAINTS = {"i16": "h", "u16": "h", "i32": "r", "u32": "r", "i64": "l", "u64": "l", "f32": "f",
               "f64": "d"}
PTX_TYPES = {"i8": "s8", "u8": "u8", "i16": "s16", "u16": "u16", "i32": "s32", "u32": "u32",
             "i64": "s64", "u64": "u64", "f32": "f32", "f64": "f64"}


class Random:
    """splitmix64."""

    def __init__(self, seed):
        # A word of the generator: states of neighbouring seeds are far from each other.
        self.state = seed
        self.state = self.word() ^ 0x243F6A8885A308D3

    def word(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        x = self.state
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        return x ^ (x >> 31)

    def below(self, count):
        return (self.word() >> 11) % count

    def pick(self, items):
        return items[self.below(len(items))]

    def chance(self, percent):
        return self.below(100) < percent


def bits_of(kind):
    return int(kind[1:])


def unsigned_of(kind):
    """The unsigned type in which a type's arithmetic wraps."""
    return "u64" if kind in ("i64", "u64") else "u32"


class Context:
    """Where a statement is: what it may do there."""

    def __init__(self, **values):
        self.loops = 0          # loops around it
        self.may_leave = False  # break and continue are allowed
        self.may_return = False
        self.mask = None        # the threads of the warp that are here, an expression
        self.mask_is_loops = False  # the mask is the variable of the loop around it
        self.__dict__.update(values)

    def inside(self, **values):
        return Context(**{**self.__dict__, **values})


class Expressions:
    """Expressions and statements over a struct S s of variables and loop counters."""

    def __init__(self, random, kinds=TYPES, table=None):
        self.random = random
        self.kinds = kinds
        self.variables = {kind: [f"s.{kind}_{i}" for i in range(2)] for kind in TYPES}
        self.counters = []      # names of u32 variables that are only read
        self.helpers = {}
        self.tables = dict(table or {})  # type to the name of an array of 16 values
        self.number = 0

    def name(self, prefix):
        self.number += 1
        return f"{prefix}{self.number}"

    # Expressions.

    def literal(self, kind):
        random = self.random
        if kind in FLOATS:
            suffix = "f" if kind == "f32" else ""
            values = ["0.0", "1.0", "-1.5", "3.0e5", "1.0e-30", "0.1", "-7.25", "1.0e30",
                      "1.0e-40" if kind == "f32" else "1.0e-310"]
            return f"({kind})({random.pick(values)}{suffix})"
        bits = bits_of(kind)
        choices = [0, 1, 2, 3, 5, 7, 31, 100, (1 << bits) - 1, 1 << (bits - 1),
                   (1 << (bits - 1)) - 1, random.word() & ((1 << bits) - 1)]
        value = random.pick(choices) & ((1 << bits) - 1)
        return f"({kind}){value:#x}{'ull' if bits == 64 else 'u'}"

    def leaf(self, kind):
        random = self.random
        roll = random.below(10)
        if roll < 2:
            return self.literal(kind)
        if roll < 3 and self.counters:
            return f"({kind})({random.pick(self.counters)})"
        if roll < 4 and kind in self.tables:
            return f"{self.tables[kind]}[{random.pick(self.variables['u32'])} & 15]"
        return random.pick(self.variables[kind])

    def expression(self, kind, depth):
        if depth <= 0 or self.random.chance(12):
            return self.leaf(kind)
        if kind in FLOATS:
            return self.of_float(kind, depth - 1)
        return self.of_integer(kind, depth - 1)

    def any_integer(self):
        return self.random.pick([kind for kind in self.kinds if kind in INTEGERS] or ["u32"])

    def any_float(self):
        return self.random.pick([kind for kind in self.kinds if kind in FLOATS] or ["f32"])

    def of_integer(self, kind, depth):
        random = self.random
        make = lambda: self.expression(kind, depth)
        wide, bits = unsigned_of(kind), bits_of(kind)
        form = random.below(16)
        if form < 4:
            return f"({kind})(({wide})({make()}) {random.pick('+-*')} ({wide})({make()}))"
        if form < 6:
            return f"({kind})(({make()}) {random.pick('&|^')} ({make()}))"
        if form == 6:
            return f"({kind})({random.pick(['~', '-', '!'])}({wide})({make()}))"
        if form == 7:
            amount = f"(({self.expression('u32', depth)}) & {bits - 1})"
            if random.chance(50):
                return f"({kind})(({make()}) >> {amount})"
            return f"({kind})(({wide})({make()}) << {amount})"
        if form == 8:
            return self.quotient(kind, random.pick("/%"), make(), make())
        if form == 9:
            return f"({self.condition(depth)} ? {make()} : {make()})"
        if form == 10:
            return f"({kind})({self.condition(depth)})"
        if form == 11:
            other = random.pick([other for other in self.kinds if other in INTEGERS] or ["u32"])
            return f"({kind})({self.expression(other, depth)})"
        if form == 12 and any(other in FLOATS for other in self.kinds):
            return self.rounded(kind, self.any_float(), depth)
        if form == 13 and any(other in FLOATS for other in self.kinds):
            if self.any_float() == "f64":
                return f"({kind})bits64({self.expression('f64', depth)})"
            return f"({kind})bits32({self.expression('f32', depth)})"
        return self.called(kind, depth)

    def quotient(self, kind, operator, a, b):
        """A quotient or remainder, or a value of its own where C++ defines none."""
        name = f"{'quotient' if operator == '/' else 'remainder'}_{kind}"
        if kind in SIGNED:
            low = f"({kind})({unsigned_of(kind)})({1 << (bits_of(kind) - 1):#x}ull)"
            guard = f"b == 0 ? ({kind})-1 : a == {low} && b == -1 ? ({kind})7"
        else:
            guard = f"b == 0 ? ({kind})5"
        self.helpers[name] = (f"__device__ {kind} {name}({kind} a, {kind} b)\n"
                              f"{{ return {guard} : ({kind})(a {operator} b); }}\n")
        return f"{name}({a}, {b})"

    def called(self, kind, depth):
        """A call of an intrinsic or of inline PTX, converted to an integer type."""
        random = self.random
        if random.chance(50):
            # Of the type itself where there is one: conversions lose bits.
            fitting = [row for row in INTRINSICS if bits_of(row[1]) == bits_of(kind)]
            name, _, arguments = random.pick(fitting or INTRINSICS)
        else:
            rows = [row for row in ASSEMBLY if row[1] in INTEGERS]
            fitting = [row for row in rows if bits_of(row[1]) == bits_of(kind)]
            name, _, arguments = self.assembly(random.pick(fitting or rows))
        values = ", ".join(self.expression(argument, depth) for argument in arguments)
        return f"({kind})({name}({values}))"

    def assembly(self, row):
        name, result, arguments, ptx = row
        inputs = ", ".join(f'"{CONSTRAINTS[kind]}"(a{i})' for i, kind in enumerate(arguments))
        parameters = ", ".join(f"{kind} a{i}" for i, kind in enumerate(arguments))
        self.helpers[f"ptx_{name}"] = (
            f"__device__ {result} ptx_{name}({parameters})\n{{\n    {result} r;\n"
            f'    asm("{ptx}" : "={CONSTRAINTS[result]}"(r) : {inputs});\n    return r;\n}}\n')
        return f"ptx_{name}", result, arguments

    def rounded(self, kind, source, depth):
        """A float converted to an integer: out of range and NaN included."""
        mode = self.random.pick(["rni", "rzi", "rmi", "rpi"])
        name = f"cvt_{mode}_{kind}_{source}"
        register = kind if kind in CONSTRAINTS else "i32" if kind == "i8" else "u32"
        self.helpers[name] = (
            f"__device__ {kind} {name}({source} a)\n{{\n    {register} r;\n"
            f'    asm("cvt.{mode}.{PTX_TYPES[kind]}.{PTX_TYPES[source]} %0, %1;" '
            f': "={CONSTRAINTS[register]}"(r) : "{CONSTRAINTS[source]}"(a));\n'
            f"    return ({kind})r;\n}}\n")
        return f"{name}({self.expression(source, depth)})"

    def of_float(self, kind, depth):
        random = self.random
        make = lambda: self.expression(kind, depth)
        single = kind == "f32"
        suffix = "f" if single else ""
        form = random.below(16)
        if form < 4:
            return f"(({make()}) {random.pick('+-*/')} ({make()}))"
        if form == 4:
            prefix = "f" if single else "d"
            operation = random.pick(["add", "sub", "mul", "div"])
            return f"__{prefix}{operation}_{random.pick(ROUNDINGS)}({make()}, {make()})"
        if form == 5:
            name = random.pick(["fmaf" if single else "fma"]
                               + [f"__{'fmaf' if single else 'fma'}_{way}" for way in ROUNDINGS])
            return f"{name}({make()}, {make()}, {make()})"
        if form == 6:
            name = random.pick([f"sqrt{suffix}"]
                               + [f"__{'f' if single else 'd'}{operation}_{way}"
                                  for way in ROUNDINGS for operation in ("sqrt", "rcp")])
            return f"{name}({make()})"
        if form == 7:
            name = random.pick(["fmin", "fmax", "fmod", "fdim", "remainder"])
            return f"{name}{suffix}({make()}, {make()})"
        if form == 8:
            name = random.pick(["trunc", "floor", "ceil", "rint", "round", "nearbyint"])
            return f"{name}{suffix}({make()})"
        if form == 9:
            return random.pick([f"(-({make()}))", f"fabs{suffix}({make()})"])
        if form == 10:
            sign = (f"__uint_as_float(bits32({make()}))" if single
                    else f"__longlong_as_double((i64)bits64({make()}))")
            return f"copysign{suffix}({make()}, {sign})"
        if form == 11:
            return f"({self.condition(depth)} ? {make()} : {make()})"
        if form == 12 and not ("f32" in self.kinds and "f64" in self.kinds):
            form = 13
        if form == 12:
            if not single:
                return f"(f64)({self.expression('f32', depth)})"
            name = random.pick(["(f32)"] + [f"__double2float_{way}" for way in ROUNDINGS])
            return f"{name}({self.expression('f64', depth)})"
        if form == 13:
            source = self.any_integer()
            if source in ("i32", "u32", "i64", "u64") and (single or bits_of(source) == 64):
                name = {"i32": "int", "u32": "uint", "i64": "ll", "u64": "ull"}[source]
                target = "float" if single else "double"
                return (f"__{name}2{target}_{random.pick(ROUNDINGS)}"
                        f"({self.expression(source, depth)})")
            return f"({kind})({self.expression(source, depth)})"
        if form == 14 and single:
            rows = [row for row in ASSEMBLY if row[1] == "f32"]
            name, _, arguments = self.assembly(random.pick(rows))
            values = ", ".join(self.expression(argument, depth) for argument in arguments)
            return f"{name}({values})"
        if single:
            return random.pick([f"__uint_as_float({self.expression('u32', depth)})",
                                f"moderate32({self.expression('u32', depth)})",
                                f"__saturatef({make()})"])
        return f"moderate64({self.expression('u32', depth)}, {self.expression('u32', depth)})"

    def condition(self, depth):
        random = self.random
        if depth > 0 and random.chance(25):
            return (f"({self.condition(depth - 1)} {random.pick(['&&', '||', '!=', '=='])} "
                    f"{self.condition(depth - 1)})")
        kind = random.pick(self.kinds)
        if kind in FLOATS and random.chance(20):
            test = random.pick(["isnan", "isinf", "isfinite"])
            return f"(bool){test}({self.expression(kind, depth - 1)})"
        operator = random.pick(["<", "<=", ">", ">=", "==", "!="])
        a, b = (self.expression(kind, depth - 1) for _ in range(2))
        if random.chance(35) and kind in INTEGERS:
            a, b = f"(({a}) & 7)", f"({kind}){random.below(8)}"
        return f"(({a}) {operator} ({b}))"

    # Statements: lists of lines.

    def statements(self, count, depth, context):
        lines = []
        for _ in range(count):
            lines += self.statement(depth, context)
        return lines

    def extra(self, context):
        """A statement that only one family of programs has; overridden."""
        return None

    def statement(self, depth, context):
        random = self.random
        if random.chance(30):
            lines = self.extra(context)
            if lines:
                return lines
        form = random.below(12) if depth > 0 else 0
        if context.mask and form >= 9:
            form = 6  # no switch, do or while in warps that are counted
        if form < 5:
            return self.assignment()
        if form == 5:
            return self.leave(context) or self.assignment()
        if form == 6:
            return self.branch(depth - 1, context)
        if context.loops >= 2:
            return self.branch(depth - 1, context)
        if form in (7, 8):
            return self.counted_loop(depth - 1, context)
        if form == 9:
            return self.shrinking_loop(depth - 1, context)
        if form == 10:
            return self.repeated(depth - 1, context)
        return self.switch(depth - 1, context)

    def assignment(self):
        random = self.random
        kind = random.pick(self.kinds)
        target = random.pick(self.variables[kind])
        value = self.expression(kind, 1 + random.below(3))
        if kind in INTEGERS and random.chance(15):
            return [f"{target} {random.pick(['&', '|', '^'])}= {value};"]
        return [f"{target} = {value};"]

    def leave(self, context):
        """break, continue or return."""
        choices = []
        if context.may_leave:
            choices += ["break", "continue"]
        if context.may_return:
            choices.append(f"return {self.random.below(1000)}u")
        if not choices:
            return None
        condition, choice = self.condition(2), self.random.pick(choices)
        if not context.mask:
            return [f"if ({condition}) {choice};"]
        if choice != "break" or not context.mask_is_loops:
            return None
        flag = self.name("c")
        return [f"const bool {flag} = {condition};",
                f"{context.mask} = __ballot_sync({context.mask}, !{flag});", f"if ({flag}) break;"]

    def branch(self, depth, context):
        random, body = self.random, []
        condition = self.condition(2)
        has_else = random.chance(50)
        if context.mask:
            flag, mask = self.name("c"), self.name("m")
            body += [f"const bool {flag} = {condition};",
                     f"const u32 {mask} = __ballot_sync({context.mask}, {flag});"]
            condition = flag
            one = context.inside(mask=mask, may_leave=False, mask_is_loops=False)
            other = context.inside(mask=f"({context.mask} & ~{mask})", may_leave=False,
                                   mask_is_loops=False)
        else:
            one = other = context
        body += [f"if ({condition}) {{"] + self.indented(
            self.statements(1 + random.below(3), depth, one))
        if has_else:
            body += ["} else {"] + self.indented(
                self.statements(1 + random.below(3), depth, other))
        body.append("}")
        if context.mask:
            body.append(f"__syncwarp({context.mask});")
        return body

    @staticmethod
    def indented(lines):
        return ["    " + line for line in lines]

    def loop_body(self, depth, context, counter):
        self.counters.append(counter)
        body = self.statements(1 + self.random.below(3), depth, context)
        self.counters.remove(counter)
        return self.indented(body)

    def counted_loop(self, depth, context):
        random = self.random
        counter, bound = self.name("j"), self.name("b")
        if random.chance(30):
            count = f"{1 + random.below(6)}u"
        else:
            count = f"({self.expression('u32', 2)}) % 6u"
        lines = [f"const u32 {bound} = {count};"]
        if not context.mask:
            inner = context.inside(loops=context.loops + 1, may_leave=True)
            unroll = random.pick(["", "", "#pragma unroll 1", "#pragma unroll"])
            return lines + ([unroll] if unroll else []) + [
                f"for (u32 {counter} = 0; {counter} < {bound}; {counter}++) {{"
            ] + self.loop_body(depth, inner, counter) + ["}"]
        # Each round counts the threads that are still in the loop.
        mask = self.name("m")
        inner = context.inside(loops=context.loops + 1, may_leave=True, mask=mask,
                               mask_is_loops=True)
        flag = self.name("c")
        return lines + [
            f"u32 {mask} = {context.mask};",
            f"for (u32 {counter} = 0;; {counter}++) {{",
            f"    const bool {flag} = {counter} < {bound};",
            f"    {mask} = __ballot_sync({mask}, {flag});",
            f"    if (!{flag}) break;",
        ] + self.loop_body(depth, inner, counter) + ["}", f"__syncwarp({context.mask});"]

    def shrinking_loop(self, depth, context):
        counter = self.name("w")
        inner = context.inside(loops=context.loops + 1, may_leave=True)
        return [f"u32 {counter} = ({self.expression('u32', 2)}) & 255u;",
                f"while ({counter}) {{",
                f"    {counter} >>= 1 + (({self.expression('u32', 1)}) & 3u);",
                ] + self.loop_body(depth, inner, counter) + ["}"]

    def repeated(self, depth, context):
        counter = self.name("d")
        inner = context.inside(loops=context.loops + 1, may_leave=True)
        body = self.loop_body(depth, inner, counter)
        return [f"u32 {counter} = 0;", "do {"] + body + [
            f"}} while (++{counter} < (({self.expression('u32', 2)}) & 7u));"]

    def switch(self, depth, context):
        random = self.random
        count = 2 + random.below(5)
        lines = [f"switch (({self.expression('u32', 2)}) % {count + 1}u) {{"]
        inner = context.inside(may_leave=False)
        for label in range(count):
            lines += [f"case {label}: {{"] + self.indented(
                self.statements(1 + random.below(2), depth, inner)) + ["}"]
            if random.chance(70):
                lines.append("    break;")
        return lines + ["default: {"] + self.indented(
            self.statements(1, depth, inner)) + ["}", "}"]
