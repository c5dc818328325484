//! The video instructions: arithmetic of bytes and halves, with a second operation at the end.
//!
//! Each instruction is described by a value that does not depend on the thread.

/// A comparison of `vset`, `vset2` and `vset4`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Comparison {
    /// `.eq`
    Equal,
    /// `.ne`
    NotEqual,
    /// `.lt`
    Less,
    /// `.le`
    LessOrEqual,
    /// `.gt`
    Greater,
    /// `.ge`
    GreaterOrEqual,
}

impl Comparison {
    /// 1 if the comparison holds, else 0.
    #[inline(always)]
    fn apply(self, a: i64, b: i64) -> i64 {
        let holds = match self {
            Comparison::Equal => a == b,
            Comparison::NotEqual => a != b,
            Comparison::Less => a < b,
            Comparison::LessOrEqual => a <= b,
            Comparison::Greater => a > b,
            Comparison::GreaterOrEqual => a >= b,
        };
        holds as i64
    }
}

/// The bits of a word that are an operand or a result: `.b0` to `.b3`, `.h0`, `.h1`, or all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Position of its lowest bit.
    pub shift: u32,
    /// Number of bits: 8, 16 or 32.
    pub bits: u32,
}

impl Part {
    /// The whole word.
    pub const WORD: Part = Part { shift: 0, bits: 32 };

    /// Byte `i` of the word.
    pub const fn byte(i: u32) -> Part {
        Part { shift: 8 * (i & 3), bits: 8 }
    }

    /// Half `i` of the word.
    pub const fn half(i: u32) -> Part {
        Part { shift: 16 * (i & 1), bits: 16 }
    }

    /// These bits of a word, extended.
    #[inline(always)]
    fn extract(self, word: u32, signed: bool) -> i64 {
        let unused = 32 - self.bits;
        let left = (word >> self.shift) << unused;
        if signed { ((left as i32) >> unused) as i64 } else { (left >> unused) as i64 }
    }

    /// The word with these bits replaced.
    #[inline(always)]
    fn insert(self, word: u32, value: i64) -> u32 {
        let mask = (u32::MAX >> (32 - self.bits)) << self.shift;
        (word & !mask) | (((value as u32) << self.shift) & mask)
    }
}

/// `.sat` to a whole word, as the GPU does it.
///
/// After `vshl`, 34 bits of the value count, of which the uppermost is the sign. After the other
/// operations, a value that exceeds 32 unsigned bits wraps, where the PTX ISA has the greatest
/// value.
#[inline(always)]
fn saturate_word(value: i64, signed: bool, operation: Operation) -> i64 {
    if matches!(operation, Operation::ShiftLeftClamp | Operation::ShiftLeftWrap) {
        saturate_lane((value << 30) >> 30, 32, signed)
    } else if signed {
        saturate_lane(value, 32, true)
    } else {
        value.max(0)
    }
}

/// `.sat` to a byte or a half that is merged into `c`, as the GPU does it.
///
/// The GPU takes the value as unsigned, so that negative values give the greatest one, and the
/// upper half as 0. The PTX ISA has the nearest value.
#[inline(always)]
fn saturate_part(value: i64, part: Part, signed: bool) -> i64 {
    let greatest = u32::MAX >> (32 - part.bits + signed as u32);
    if part == Part::half(1) { 0 } else { (value as u32).min(greatest) as i64 }
}

/// The nearest value of an integer type: `.sat` of the parallel instructions.
#[inline(always)]
fn saturate_lane(value: i64, bits: u32, signed: bool) -> i64 {
    if signed {
        value.clamp(-1 << (bits - 1), (1 << (bits - 1)) - 1)
    } else {
        value.clamp(0, (1 << bits) - 1)
    }
}

/// The first operation of an instruction on two operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// `vadd`
    Add,
    /// `vsub`
    Subtract,
    /// `vabsdiff`
    AbsoluteDifference,
    /// `vmin`
    Minimum,
    /// `vmax`
    Maximum,
    /// `vavrg2`, `vavrg4`: the sum, halved; halves are rounded upwards if it is not negative.
    Average,
    /// `vshl.clamp`
    ShiftLeftClamp,
    /// `vshl.wrap`
    ShiftLeftWrap,
    /// `vshr.clamp`
    ShiftRightClamp,
    /// `vshr.wrap`
    ShiftRightWrap,
    /// `vset`
    Compare(Comparison),
}

impl Operation {
    #[inline(always)]
    fn apply(self, a: i64, b: i64) -> i64 {
        match self {
            Operation::Add => a + b,
            Operation::Subtract => a - b,
            Operation::AbsoluteDifference => (a - b).abs(),
            Operation::Minimum => a.min(b),
            Operation::Maximum => a.max(b),
            Operation::Average => (a + b + (a + b >= 0) as i64) >> 1,
            Operation::ShiftLeftClamp => a << b.clamp(0, 32),
            Operation::ShiftLeftWrap => a << (b & 31),
            Operation::ShiftRightClamp => a >> b.clamp(0, 32),
            Operation::ShiftRightWrap => a >> (b & 31),
            Operation::Compare(comparison) => comparison.apply(a, b),
        }
    }
}

/// What follows the first operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Secondary {
    /// Nothing.
    None,
    /// `.add`: the sum with `c`.
    Add,
    /// `.min`: the smaller one of the result and `c`.
    Minimum,
    /// `.max`: the greater one of the result and `c`.
    Maximum,
    /// `d.dsel`: `c` with this part replaced by the result.
    Merge(Part),
}

/// `vadd`, `vsub`, `vabsdiff`, `vmin`, `vmax`, `vshl`, `vshr` or `vset`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scalar {
    /// The first operation.
    pub operation: Operation,
    /// The part of `a`.
    pub a: Part,
    /// Whether `a` is signed.
    pub a_signed: bool,
    /// The part of `b`.
    pub b: Part,
    /// Whether `b` is signed; shift amounts are not.
    pub b_signed: bool,
    /// Whether the result is signed, and `c` for `.min` and `.max`; true for `vset`.
    pub signed: bool,
    /// `.sat`
    pub saturate: bool,
    /// What follows.
    pub secondary: Secondary,
}

impl Scalar {
    /// The result for one thread.
    #[inline(always)]
    pub fn apply(self, a: u32, b: u32, c: u32) -> u32 {
        let a = self.a.extract(a, self.a_signed);
        let b = self.b.extract(b, self.b_signed);
        let mut value = self.operation.apply(a, b);
        if self.saturate {
            value = match self.secondary {
                Secondary::Merge(part) => saturate_part(value, part, self.signed),
                _ => saturate_word(value, self.signed, self.operation),
            };
        }
        let addend = Part::WORD.extract(c, self.signed);
        // A negative value compares as a great one where the result is unsigned.
        let less = if self.signed { value < addend } else { (value as u64) < addend as u64 };
        match self.secondary {
            Secondary::None => value as u32,
            Secondary::Add => (value + addend) as u32,
            Secondary::Minimum => (if less { value } else { addend }) as u32,
            Secondary::Maximum => (if less { addend } else { value }) as u32,
            Secondary::Merge(part) => part.insert(c, value),
        }
    }
}

/// `vmad`: a product and a sum, with a right shift at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MultiplyAdd {
    /// The part of `a`.
    pub a: Part,
    /// Whether `a` is signed.
    pub a_signed: bool,
    /// The part of `b`.
    pub b: Part,
    /// Whether `b` is signed.
    pub b_signed: bool,
    /// Whether exactly one of `a` and `b` is negated.
    pub negate_product: bool,
    /// Whether `c` is negated.
    pub negate_addend: bool,
    /// `.po`: adds one.
    pub plus_one: bool,
    /// The right shift: 0, 7 or 15.
    pub shift: u32,
    /// `.sat`
    pub saturate: bool,
}

impl MultiplyAdd {
    /// The result for one thread.
    #[inline(always)]
    pub fn apply(self, a: u32, b: u32, c: u32) -> u32 {
        let signed = self.a_signed || self.b_signed || self.negate_product || self.negate_addend;
        // The GPU takes whole words as signed, whatever their type.
        let a = self.a.extract(a, self.a_signed || self.a == Part::WORD) as i128;
        let b = self.b.extract(b, self.b_signed || self.b == Part::WORD) as i128;
        let mut product = a * b;
        let mut addend = c;
        let mut one = 0;
        if self.plus_one {
            one = 1;
        } else if self.negate_product {
            product = !product;
            one = 1;
        } else if self.negate_addend {
            addend = !addend;
            one = 1;
        }
        // The GPU takes c as signed, and shifts the 64 bits of an unsigned sum logically.
        let sum = (product + addend as i32 as i128 + one) as i64;
        let value = if signed { sum >> self.shift } else { (sum as u64 >> self.shift) as i64 };
        if !self.saturate {
            value as u32
        } else if signed {
            value.clamp(i32::MIN as i64, i32::MAX as i64) as u32
        } else {
            value.clamp(0, u32::MAX as i64) as u32
        }
    }
}

/// One of the instructions on two halves or four bytes: `vadd2` to `vset4`.
///
/// `LANES` is 2 or 4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parallel<const LANES: usize> {
    /// The first operation.
    pub operation: Operation,
    /// For each lane, the place of its first operand among the halves or bytes of `b:a`.
    pub a: [u8; LANES],
    /// Whether the first operands are signed.
    pub a_signed: bool,
    /// For each lane, the place of its second operand among the halves or bytes of `b:a`.
    pub b: [u8; LANES],
    /// Whether the second operands are signed.
    pub b_signed: bool,
    /// Whether the results are signed; those of `vset2` and `vset4` are not.
    pub signed: bool,
    /// `.sat`
    pub saturate: bool,
    /// `.mask`: the lanes that are computed.
    pub mask: [bool; LANES],
    /// `.add`: the results of the lanes are added to `c`. Without it, lanes that are not computed
    /// are those of `c`.
    pub accumulate: bool,
}

impl<const LANES: usize> Parallel<LANES> {
    const BITS: u32 = 32 / LANES as u32;

    /// The half or byte at a place of `b:a`.
    #[inline(always)]
    fn extract(both: u64, place: u8, signed: bool) -> i64 {
        let word = (both >> (Self::BITS * place as u32)) as u32;
        Part { shift: 0, bits: Self::BITS }.extract(word, signed)
    }

    /// The result for one thread.
    #[inline(always)]
    pub fn apply(self, a: u32, b: u32, c: u32) -> u32 {
        let both = (b as u64) << 32 | a as u64;
        let mut result = c;
        for lane in 0..LANES {
            let first = Self::extract(both, self.a[lane], self.a_signed);
            let second = Self::extract(both, self.b[lane], self.b_signed);
            let mut value = self.operation.apply(first, second);
            if self.saturate {
                value = saturate_lane(value, Self::BITS, self.signed);
            }
            if self.mask[lane] {
                result = if self.accumulate {
                    result.wrapping_add(value as u32)
                } else {
                    Part { shift: Self::BITS * lane as u32, bits: Self::BITS }.insert(result, value)
                };
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADD: Scalar = Scalar {
        operation: Operation::Add,
        a: Part::WORD,
        a_signed: true,
        b: Part::WORD,
        b_signed: true,
        signed: true,
        saturate: false,
        secondary: Secondary::None,
    };

    #[test]
    fn parts_and_saturation() {
        assert_eq!(ADD.apply(0x7fff_ffff, 1, 0), 0x8000_0000);
        assert_eq!(Scalar { saturate: true, ..ADD }.apply(0x7fff_ffff, 1, 0), 0x7fff_ffff);
        let unsigned = Scalar { saturate: true, signed: false, ..ADD };
        assert_eq!(unsigned.apply(-5i32 as u32, 1, 0), 0);
        let bytes = Scalar { a: Part::byte(1), b: Part::half(1), ..ADD };
        assert_eq!(bytes.apply(0x0000_ff00, 0x0005_0000, 0), 4);
        let merged = Scalar { secondary: Secondary::Merge(Part::byte(2)), saturate: true, ..ADD };
        assert_eq!(merged.apply(100, 100, 0x1122_3344), 0x117f_3344);
        // A GPU's answers: .sat of a part takes a negative value as a great one.
        assert_eq!(merged.apply(0, 0xffff_fffe, 0), 0x007f_0000);
        let high = Scalar { secondary: Secondary::Merge(Part::half(1)), ..merged };
        assert_eq!(high.apply(0x21, 0, 7), 7);
        let wrapped = Scalar { a_signed: false, b_signed: false, ..unsigned };
        assert_eq!(wrapped.apply(2, 0xffff_fffe, 0), 0);
        let half = Scalar { secondary: Secondary::Merge(Part::half(1)), ..ADD };
        assert_eq!(half.apply(0x1_0000, 5, 0x1122_3344), 0x0005_3344);
        let sum = Scalar { secondary: Secondary::Add, ..ADD };
        assert_eq!(sum.apply(1, 2, 3), 6);
        let least = Scalar { secondary: Secondary::Minimum, ..ADD };
        assert_eq!(least.apply(1, 2, -1i32 as u32), u32::MAX);
        let least = Scalar { signed: false, ..least };
        assert_eq!(least.apply(1, 2, -1i32 as u32), 3);
    }

    #[test]
    fn operations() {
        let with = |operation| Scalar { operation, ..ADD };
        assert_eq!(with(Operation::Subtract).apply(3, 5, 0), -2i32 as u32);
        assert_eq!(with(Operation::AbsoluteDifference).apply(3, 5, 0), 2);
        assert_eq!(with(Operation::Minimum).apply(u32::MAX, 5, 0), u32::MAX);
        assert_eq!(with(Operation::Maximum).apply(u32::MAX, 5, 0), 5);
        let shift = |operation| Scalar { operation, b_signed: false, ..ADD };
        assert_eq!(shift(Operation::ShiftLeftClamp).apply(3, 33, 0), 0);
        assert_eq!(shift(Operation::ShiftLeftWrap).apply(3, 33, 0), 6);
        let left = shift(Operation::ShiftLeftClamp);
        let left = Scalar { a_signed: false, signed: false, saturate: true, ..left };
        // A GPU's answers.
        assert_eq!(left.apply(0xffff, 17, 0), u32::MAX);
        assert_eq!(left.apply(u32::MAX, 64, 0), 0);
        assert_eq!(shift(Operation::ShiftRightClamp).apply(0x8000_0000, 40, 0), u32::MAX);
        assert_eq!(shift(Operation::ShiftRightWrap).apply(0x8000_0000, 32, 0), 0x8000_0000);
        let less = Operation::Compare(Comparison::Less);
        assert_eq!(with(less).apply(u32::MAX, 0, 0), 1);
        assert_eq!(Scalar { a_signed: false, ..with(less) }.apply(u32::MAX, 0, 0), 0);
    }

    #[test]
    fn multiply_add() {
        let plain = MultiplyAdd {
            a: Part::WORD,
            a_signed: false,
            b: Part::WORD,
            b_signed: false,
            negate_product: false,
            negate_addend: false,
            plus_one: false,
            shift: 0,
            saturate: false,
        };
        assert_eq!(plain.apply(7, 8, 9), 65);
        assert_eq!(MultiplyAdd { plus_one: true, ..plain }.apply(7, 8, 9), 66);
        assert_eq!(MultiplyAdd { negate_product: true, ..plain }.apply(7, 8, 9), -47i32 as u32);
        assert_eq!(MultiplyAdd { negate_addend: true, ..plain }.apply(7, 8, 9), 47);
        assert_eq!(MultiplyAdd { shift: 7, ..plain }.apply(1 << 20, 1 << 14, 0), 1 << 27);
        // Answers of a GPU.
        let parts = MultiplyAdd { a: Part::half(0), b: Part::half(1), ..plain };
        let saturated = MultiplyAdd { saturate: true, ..parts };
        assert_eq!(saturated.apply(0, 0x9abc_def0, 0xa275_ec95), 0);
        let shifted = MultiplyAdd { shift: 7, ..parts };
        assert_eq!(shifted.apply(0, 0x9abc_def0, 0xa275_ec95), 0xff44_ebd9);
        let shifted = MultiplyAdd { shift: 7, ..saturated };
        assert_eq!(shifted.apply(0, 0x9abc_def0, 0xa275_ec95), u32::MAX);
        let words = MultiplyAdd { shift: 7, ..plain };
        assert_eq!(words.apply(2, 0xffff_fffe, 0), u32::MAX);
        assert_eq!(words.apply(0xffff_ffff, 0x8000_0000, 0x3d0f_e3fc), 0x017a_1fc7);
    }

    const ADD2: Parallel<2> = Parallel {
        operation: Operation::Add,
        a: [0, 1],
        a_signed: true,
        b: [2, 3],
        b_signed: true,
        signed: true,
        saturate: false,
        mask: [true; 2],
        accumulate: false,
    };

    #[test]
    fn pairs() {
        assert_eq!(ADD2.apply(0xffff_7fff, 0x0001_0001, 0), 0x0000_8000);
        assert_eq!(Parallel { saturate: true, ..ADD2 }.apply(0xffff_7fff, 0x0001_0001, 0), 0x7fff);
        let swapped = Parallel { a: [1, 0], ..ADD2 };
        assert_eq!(swapped.apply(0x0001_0002, 0x0010_0020, 0), 0x0012_0021);
        let masked = Parallel { mask: [true, false], ..ADD2 };
        assert_eq!(masked.apply(0x0001_0002, 0x0010_0020, 0x1234_5678), 0x1234_0022);
        let summed = Parallel { accumulate: true, ..ADD2 };
        assert_eq!(summed.apply(0x0001_fffe, 0, 10), 9);
        let average = Parallel { operation: Operation::Average, ..ADD2 };
        assert_eq!(average.apply(0x0001_fffe, 0x0002_fffb, 0), 0x0002_fffc);
    }

    #[test]
    fn quads() {
        let add = Parallel::<4> {
            operation: Operation::Add,
            a: [0, 1, 2, 3],
            a_signed: false,
            b: [4, 5, 6, 7],
            b_signed: false,
            signed: false,
            saturate: true,
            mask: [true; 4],
            accumulate: false,
        };
        assert_eq!(add.apply(0xff01_80fe, 0x0102_8001, 0), 0xff03_ffff);
        let compare = Parallel {
            operation: Operation::Compare(Comparison::Greater),
            saturate: false,
            accumulate: true,
            ..add
        };
        assert_eq!(compare.apply(0x0102_0304, 0x0002_0005, 7), 9);
        let difference = Parallel { operation: Operation::AbsoluteDifference, ..add };
        assert_eq!(difference.apply(0x0102_03ff, 0x0405_0300, 0), 0x0303_00ff);
    }
}
