//! Arithmetic of integers, as far as it differs from Rust's methods of the same name.
//!
//! Sums, differences and products wrap (`wrapping_add` and so on); these have no function here.

/// The integer types of PTX arithmetic: `u16`, `s16`, `u32`, `s32`, `u64` and `s64`.
pub trait Integer: Copy + Ord {
    /// Number of bits.
    const BITS: u32;

    /// Quotient, truncated. `MIN / -1` wraps; the quotient by zero has all bits set.
    fn div(self, divisor: Self) -> Self;

    /// Remainder with the sign of the dividend. `MIN % -1` is 0; that by zero has all bits set.
    fn rem(self, divisor: Self) -> Self;

    /// `shl`: amounts above the width count as the width.
    fn shl(self, amount: u32) -> Self;

    /// `shr`: arithmetic for signed types; amounts above the width count as the width.
    fn shr(self, amount: u32) -> Self;

    /// Upper half of the product.
    fn mul_hi(self, other: Self) -> Self;

    /// `sad`: `c + |a - b|`, wrapping.
    fn sad(self, other: Self, addend: Self) -> Self;

    /// `cnot`: 1 if the operand is zero, else 0.
    fn cnot(self) -> Self;
}

macro_rules! integer {
    ($type:ty, $wide:ty) => {
        impl Integer for $type {
            const BITS: u32 = <$type>::BITS;

            #[inline(always)]
            fn div(self, divisor: Self) -> Self {
                let safe = if divisor == 0 { 1 } else { divisor };
                let quotient = self.wrapping_div(safe);
                if divisor == 0 { !0 } else { quotient }
            }

            #[inline(always)]
            fn rem(self, divisor: Self) -> Self {
                let safe = if divisor == 0 { 1 } else { divisor };
                let remainder = self.wrapping_rem(safe);
                if divisor == 0 { !0 } else { remainder }
            }

            #[inline(always)]
            fn shl(self, amount: u32) -> Self {
                let shifted = self << (amount & (Self::BITS - 1));
                if amount < Self::BITS { shifted } else { 0 }
            }

            #[inline(always)]
            #[allow(unused_comparisons)]
            fn shr(self, amount: u32) -> Self {
                let sign: Self = if Self::MIN < 0 { Self::BITS - 1 } else { 0 } as Self;
                let shifted = self >> (amount & (Self::BITS - 1));
                let fill = if Self::MIN < 0 { self >> sign } else { 0 };
                if amount < Self::BITS { shifted } else { fill }
            }

            #[inline(always)]
            fn mul_hi(self, other: Self) -> Self {
                ((self as $wide * other as $wide) >> Self::BITS) as Self
            }

            #[inline(always)]
            fn sad(self, other: Self, addend: Self) -> Self {
                addend.wrapping_add(self.abs_diff(other) as Self)
            }

            #[inline(always)]
            fn cnot(self) -> Self {
                (self == 0) as Self
            }
        }
    };
}

integer!(u16, u32);
integer!(i16, i32);
integer!(u32, u64);
integer!(i32, i64);
integer!(u64, u128);
integer!(i64, i128);

/// Product of the lower 24 bits, 48 bits wide.
#[inline(always)]
const fn product24(a: u32, b: u32) -> u64 {
    (a & 0x00ff_ffff) as u64 * (b & 0x00ff_ffff) as u64
}

/// Product of the sign-extended lower 24 bits, 48 bits wide.
#[inline(always)]
const fn product24_signed(a: i32, b: i32) -> i64 {
    ((a << 8) >> 8) as i64 * ((b << 8) >> 8) as i64
}

/// `mul24.lo.u32`: bits 31..0 of the product.
#[inline(always)]
pub const fn mul24_lo_u32(a: u32, b: u32) -> u32 {
    product24(a, b) as u32
}

/// `mul24.hi.u32`: bits 47..16 of the product.
#[inline(always)]
pub const fn mul24_hi_u32(a: u32, b: u32) -> u32 {
    (product24(a, b) >> 16) as u32
}

/// `mul24.lo.s32`: bits 31..0 of the product.
#[inline(always)]
pub const fn mul24_lo_s32(a: i32, b: i32) -> i32 {
    product24_signed(a, b) as i32
}

/// `mul24.hi.s32`: bits 47..16 of the product.
#[inline(always)]
pub const fn mul24_hi_s32(a: i32, b: i32) -> i32 {
    (product24_signed(a, b) >> 16) as i32
}

/// `mad.hi.sat.s32`: the sum saturates, the upper half of the product does not need to.
#[inline(always)]
pub fn mad_hi_sat_s32(a: i32, b: i32, c: i32) -> i32 {
    a.mul_hi(b).saturating_add(c)
}

/// `mad24.hi.sat.s32`.
#[inline(always)]
pub const fn mad24_hi_sat_s32(a: i32, b: i32, c: i32) -> i32 {
    mul24_hi_s32(a, b).saturating_add(c)
}

macro_rules! fields {
    ($type:ty, $signed:ty, $count:expr, $mask:ident, $bfe:ident, $bfe_signed:ident, $bfi:ident) => {
        /// The lower `length` bits set; all of them from the width on.
        #[inline(always)]
        const fn $mask(length: u32) -> $type {
            let below = ((1 as $type) << (length & (<$type>::BITS - 1))).wrapping_sub(1);
            if length < <$type>::BITS { below } else { <$type>::MAX }
        }

        /// `bfe` of an unsigned type: the field of `length` bits from bit `position` on.
        ///
        /// Of `position` and `length`, the lower 8 bits count for 32-bit fields and all bits for
        /// 64-bit fields.
        #[inline(always)]
        pub fn $bfe(a: $type, position: u32, length: u32) -> $type {
            a.shr(position & $count) & $mask(length & $count)
        }

        /// `bfe` of a signed type: the field, extended with its own uppermost bit.
        #[inline(always)]
        pub fn $bfe_signed(a: $signed, position: u32, length: u32) -> $signed {
            let (position, length) = (position & $count, length & $count);
            let shifted = a >> position.min(<$type>::BITS - 1);
            let unused = (<$type>::BITS - length.min(<$type>::BITS)) & (<$type>::BITS - 1);
            let field = (shifted << unused) >> unused;
            if length == 0 { 0 } else { field }
        }

        /// `bfi`: `b` with the lower `length` bits of `a` from bit `position` on.
        #[inline(always)]
        pub fn $bfi(a: $type, b: $type, position: u32, length: u32) -> $type {
            let position = position & $count;
            let mask = Integer::shl($mask(length & $count), position);
            (b & !mask) | (Integer::shl(a, position) & mask)
        }
    };
}

fields!(u32, i32, 0xff, low_bits_32, bfe_u32, bfe_s32, bfi_b32);
fields!(u64, i64, u32::MAX, low_bits_64, bfe_u64, bfe_s64, bfi_b64);

/// `bfind.u32`: position of the uppermost set bit, or all ones if there is none.
///
/// `SHIFT` is `.shiftamt`: the shift that brings this bit to the uppermost position.
#[inline(always)]
pub const fn bfind_u32<const SHIFT: bool>(a: u32) -> u32 {
    let zeros = a.leading_zeros();
    let found = if SHIFT { zeros } else { 31u32.wrapping_sub(zeros) };
    if a == 0 { u32::MAX } else { found }
}

/// `bfind.s32`: as `bfind.u32`, of the complement where the operand is negative.
#[inline(always)]
pub const fn bfind_s32<const SHIFT: bool>(a: i32) -> u32 {
    bfind_u32::<SHIFT>((a ^ (a >> 31)) as u32)
}

/// `bfind.u64`: position of the uppermost set bit, or all ones if there is none.
#[inline(always)]
pub const fn bfind_u64<const SHIFT: bool>(a: u64) -> u32 {
    let zeros = a.leading_zeros();
    let found = if SHIFT { zeros } else { 63u32.wrapping_sub(zeros) };
    if a == 0 { u32::MAX } else { found }
}

/// `bfind.s64`: as `bfind.u64`, of the complement where the operand is negative.
#[inline(always)]
pub const fn bfind_s64<const SHIFT: bool>(a: i64) -> u32 {
    bfind_u64::<SHIFT>((a ^ (a >> 63)) as u64)
}

/// `fns.b32`: position of the n-th set bit of `mask`, n = `|offset|`, counted from bit `base`
/// upwards if `offset` is positive and downwards if it is negative; all ones if there is none.
///
/// An offset of 0 asks for bit `base` itself.
#[inline]
pub const fn fns(mask: u32, base: u32, offset: i32) -> u32 {
    if base > 31 {
        return u32::MAX;
    }
    if offset == 0 {
        return if mask >> base & 1 == 1 { base } else { u32::MAX };
    }
    let upwards = offset > 0;
    let mut rest =
        if upwards { mask & (u32::MAX << base) } else { mask & (u32::MAX >> (31 - base)) };
    let mut further = offset.unsigned_abs() - 1;
    if further >= 32 {
        return u32::MAX;
    }
    while further > 0 && rest != 0 {
        let bit = if upwards { rest.trailing_zeros() } else { 31 - rest.leading_zeros() };
        rest &= !(1 << bit);
        further -= 1;
    }
    if rest == 0 {
        u32::MAX
    } else if upwards {
        rest.trailing_zeros()
    } else {
        31 - rest.leading_zeros()
    }
}

/// The modes of `prmt`.
pub mod permute {
    /// No mode: four selectors of 4 bits, each with a bit that replicates the byte's sign.
    pub const DEFAULT: u8 = 0;
    /// `.f4e`: four bytes forward from the selected one.
    pub const FORWARD: u8 = 1;
    /// `.b4e`: four bytes backward from the selected one.
    pub const BACKWARD: u8 = 2;
    /// `.rc8`: the selected byte in all places.
    pub const REPLICATE_8: u8 = 3;
    /// `.ecl`: bytes below the selected one are replaced by it.
    pub const CLAMP_LEFT: u8 = 4;
    /// `.ecr`: bytes above the selected one are replaced by it.
    pub const CLAMP_RIGHT: u8 = 5;
    /// `.rc16`: the selected half in both places.
    pub const REPLICATE_16: u8 = 6;
}

/// The selectors of the default mode that do what `MODE` does with the control word.
#[inline(always)]
const fn selectors<const MODE: u8>(control: u32) -> u32 {
    const BACKWARD: [u32; 4] = [0x5670, 0x6701, 0x7012, 0x0123];
    const CLAMP_LEFT: [u32; 4] = [0x3210, 0x3211, 0x3222, 0x3333];
    const CLAMP_RIGHT: [u32; 4] = [0x0000, 0x1110, 0x2210, 0x3210];
    let n = control & 3;
    match MODE {
        permute::FORWARD => 0x3210 + n * 0x1111,
        permute::BACKWARD => BACKWARD[n as usize],
        permute::REPLICATE_8 => n * 0x1111,
        permute::CLAMP_LEFT => CLAMP_LEFT[n as usize],
        permute::CLAMP_RIGHT => CLAMP_RIGHT[n as usize],
        permute::REPLICATE_16 => 0x1010 + (n & 1) * 0x2222,
        _ => control,
    }
}

/// `prmt.b32`: four bytes, each selected from the eight of `b:a`. `MODE` is one of [`permute`].
#[inline(always)]
pub const fn prmt<const MODE: u8>(a: u32, b: u32, control: u32) -> u32 {
    let bytes = (b as u64) << 32 | a as u64;
    let selectors = selectors::<MODE>(control);
    let mut value = 0;
    let mut i = 0;
    while i < 4 {
        let selector = selectors >> (4 * i) & 15;
        let byte = (bytes >> (8 * (selector & 7))) as u32 & 0xff;
        let sign = 0u32.wrapping_sub(byte >> 7) & 0xff;
        value |= (if selector & 8 == 0 { byte } else { sign }) << (8 * i);
        i += 1;
    }
    value
}

/// `lop3.b32`: the bit of `table` at the position whose binary digits are the bits of a, b, c.
///
/// The table is brought into the form of a polynomial over the field of two elements, whose
/// coefficients do not depend on the operands. Over a row of lanes they are computed once.
#[inline(always)]
pub const fn lop3(a: u32, b: u32, c: u32, table: u8) -> u32 {
    let mut coefficients = table;
    coefficients ^= (coefficients & 0x55) << 1;
    coefficients ^= (coefficients & 0x33) << 2;
    coefficients ^= (coefficients & 0x0f) << 4;
    let k = coefficients as u32;
    let without_a = mask(k) ^ (c & mask(k >> 1)) ^ (b & mask(k >> 2)) ^ (b & c & mask(k >> 3));
    let with_a = mask(k >> 4) ^ (c & mask(k >> 5)) ^ (b & mask(k >> 6)) ^ (b & c & mask(k >> 7));
    without_a ^ (a & with_a)
}

/// All ones if bit 0 is set, else 0.
#[inline(always)]
const fn mask(bit: u32) -> u32 {
    0u32.wrapping_sub(bit & 1)
}

/// The amount of a funnel shift: at most 32 (`.clamp`), or modulo 32 (`.wrap`).
#[inline(always)]
const fn funnel_amount<const WRAP: bool>(amount: u32) -> u32 {
    if WRAP {
        amount & 31
    } else if amount > 32 {
        32
    } else {
        amount
    }
}

/// `shf.l`: the upper word of `b:a`, shifted left.
#[inline(always)]
pub const fn shf_l<const WRAP: bool>(a: u32, b: u32, amount: u32) -> u32 {
    let both = (b as u64) << 32 | a as u64;
    ((both << funnel_amount::<WRAP>(amount)) >> 32) as u32
}

/// `shf.r`: the lower word of `b:a`, shifted right.
#[inline(always)]
pub const fn shf_r<const WRAP: bool>(a: u32, b: u32, amount: u32) -> u32 {
    let both = (b as u64) << 32 | a as u64;
    (both >> funnel_amount::<WRAP>(amount)) as u32
}

/// Byte `i` of a word, sign-extended if `SIGNED`.
#[inline(always)]
const fn byte<const SIGNED: bool>(word: u32, i: u32) -> i32 {
    let byte = (word >> (8 * i)) as u8;
    if SIGNED { byte as i8 as i32 } else { byte as i32 }
}

/// Half `i` of a word, sign-extended if `SIGNED`.
#[inline(always)]
const fn half<const SIGNED: bool>(word: u32, i: u32) -> i32 {
    let half = (word >> (16 * i)) as u16;
    if SIGNED { half as i16 as i32 } else { half as i32 }
}

/// `dp4a`: `c` plus the products of the four bytes. `A` and `B` say whether these are signed.
#[inline(always)]
pub const fn dp4a<const A: bool, const B: bool>(a: u32, b: u32, c: u32) -> u32 {
    let mut sum = c as i32;
    let mut i = 0;
    while i < 4 {
        sum = sum.wrapping_add(byte::<A>(a, i) * byte::<B>(b, i));
        i += 1;
    }
    sum as u32
}

/// `dp2a`: `c` plus the products of the halves of `a` and two bytes of `b`, the lower two or,
/// if `HIGH`, the upper two. `A` and `B` say whether these are signed.
#[inline(always)]
pub const fn dp2a<const A: bool, const B: bool, const HIGH: bool>(a: u32, b: u32, c: u32) -> u32 {
    let first = if HIGH { 2 } else { 0 };
    let low = half::<A>(a, 0) * byte::<B>(b, first);
    let high = half::<A>(a, 1) * byte::<B>(b, first + 1);
    (c as i32).wrapping_add(low).wrapping_add(high) as u32
}

/// `szext`: the lower `width` bits, extended with the uppermost of them if `SIGNED`, else with 0.
///
/// `width` is modulo 32 (`WRAP`), or leaves the value as it is from 32 on (`.clamp`).
#[inline(always)]
pub const fn szext<const SIGNED: bool, const WRAP: bool>(a: u32, width: u32) -> u32 {
    let unused = (32 - (width & 31)) & 31;
    let shifted = a << unused;
    let extended = if SIGNED { ((shifted as i32) >> unused) as u32 } else { shifted >> unused };
    if !WRAP && width >= 32 {
        a
    } else if width & 31 == 0 {
        0
    } else {
        extended
    }
}

/// `bmsk`: `width` ones from bit `position` on.
///
/// Both are modulo 32 (`WRAP`), or: a position from 32 on gives 0, a width from 32 on gives all
/// the bits above the position (`.clamp`).
#[inline(always)]
pub const fn bmsk<const WRAP: bool>(position: u32, width: u32) -> u32 {
    let start = position & 31;
    let length = width & 31;
    let from_start = u32::MAX << start;
    let from_end = ((u32::MAX as u64) << (start + length)) as u32;
    if !WRAP && position >= 32 {
        0
    } else if !WRAP && width >= 32 {
        from_start
    } else {
        from_start & !from_end
    }
}

/// Applies a function of 16 bits to both halves of two words: the `.x2` types.
#[inline(always)]
pub fn halves(a: u32, b: u32, function: impl Fn(u16, u16) -> u16) -> u32 {
    let low = function(a as u16, b as u16) as u32;
    let high = function((a >> 16) as u16, (b >> 16) as u16) as u32;
    high << 16 | low
}

/// `add.u16x2`, `add.s16x2`.
#[inline(always)]
pub fn add_x2(a: u32, b: u32) -> u32 {
    halves(a, b, u16::wrapping_add)
}

/// `min.u16x2`.
#[inline(always)]
pub fn min_u16x2(a: u32, b: u32) -> u32 {
    halves(a, b, |a, b| a.min(b))
}

/// `max.u16x2`.
#[inline(always)]
pub fn max_u16x2(a: u32, b: u32) -> u32 {
    halves(a, b, |a, b| a.max(b))
}

/// `min.s16x2`; `RELU` makes negative results 0.
#[inline(always)]
pub fn min_s16x2<const RELU: bool>(a: u32, b: u32) -> u32 {
    halves(a, b, |a, b| {
        let value = (a as i16).min(b as i16);
        (if RELU { value.max(0) } else { value }) as u16
    })
}

/// `max.s16x2`; `RELU` makes negative results 0.
#[inline(always)]
pub fn max_s16x2<const RELU: bool>(a: u32, b: u32) -> u32 {
    halves(a, b, |a, b| {
        let value = (a as i16).max(b as i16);
        (if RELU { value.max(0) } else { value }) as u16
    })
}

/// `min.relu.s32`: a negative result becomes 0.
#[inline(always)]
pub fn min_relu_s32(a: i32, b: i32) -> i32 {
    a.min(b).max(0)
}

/// `max.relu.s32`: a negative result becomes 0.
#[inline(always)]
pub fn max_relu_s32(a: i32, b: i32) -> i32 {
    a.max(b).max(0)
}

macro_rules! carries {
    ($type:ty, $wide:ty, $add:ident, $sub:ident, $mad_lo:ident, $mad_hi:ident) => {
        /// `add.cc` and `addc.cc`: the sum of the operands and the carry, and the carry out.
        #[inline(always)]
        pub const fn $add(a: $type, b: $type, carry: bool) -> ($type, bool) {
            let (sum, first) = a.overflowing_add(b);
            let (sum, second) = sum.overflowing_add(carry as $type);
            (sum, first | second)
        }

        /// `sub.cc` and `subc.cc`: `a - b - 1` plus the carry, and the carry out, which is the
        /// opposite of a borrow. For `sub.cc` the carry in is true.
        #[inline(always)]
        pub const fn $sub(a: $type, b: $type, carry: bool) -> ($type, bool) {
            $add(a, !b, carry)
        }

        /// `mad.lo.cc` and `madc.lo.cc`: the lower half of the product, plus `c` and the carry.
        #[inline(always)]
        pub const fn $mad_lo(a: $type, b: $type, c: $type, carry: bool) -> ($type, bool) {
            $add(a.wrapping_mul(b), c, carry)
        }

        /// `mad.hi.cc` and `madc.hi.cc`: the upper half of the product, signed if `SIGNED`, plus
        /// `c` and the carry.
        #[inline(always)]
        pub const fn $mad_hi<const SIGNED: bool>(
            a: $type,
            b: $type,
            c: $type,
            carry: bool,
        ) -> ($type, bool) {
            let mut high = ((a as $wide * b as $wide) >> <$type>::BITS) as $type;
            if SIGNED {
                let sign = <$type>::BITS - 1;
                // The signed product is less by b where a is negative, and the reverse.
                high = high.wrapping_sub(b & (0 as $type).wrapping_sub(a >> sign));
                high = high.wrapping_sub(a & (0 as $type).wrapping_sub(b >> sign));
            }
            $add(high, c, carry)
        }
    };
}

carries!(u32, u64, add_carry_32, sub_carry_32, mad_lo_carry_32, mad_hi_carry_32);
carries!(u64, u128, add_carry_64, sub_carry_64, mad_lo_carry_64, mad_hi_carry_64);

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of xorshift64*, and the edges of ranges among them.
    fn samples(count: usize) -> impl Iterator<Item = u64> {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        (0..count).map(move |i| {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            let random = state.wrapping_mul(0x2545_f491_4f6c_dd1d);
            match i % 5 {
                0 => random & 0xff,
                1 => u64::MAX - (random & 0xf),
                2 => 1u64.rotate_left(random as u32) as i32 as u64,
                _ => random,
            }
        })
    }

    #[test]
    fn division_does_not_trap() {
        assert_eq!(7u32.div(0), u32::MAX);
        assert_eq!((-7i32).div(0), -1);
        assert_eq!(i32::MIN.div(-1), i32::MIN);
        assert_eq!(i32::MIN.rem(-1), 0);
        assert_eq!(i64::MIN.div(-1), i64::MIN);
        assert_eq!(i16::MIN.div(-1), i16::MIN);
        assert_eq!((-7i32).div(2), -3);
        assert_eq!((-7i32).rem(2), -1);
        assert_eq!(7u64.div(0), u64::MAX);
        assert_eq!(7u32.rem(0), u32::MAX);
        assert_eq!(7i16.rem(0), -1);
    }

    #[test]
    fn shifts_clamp() {
        assert_eq!(Integer::shl(1u32, 31), 1 << 31);
        assert_eq!(Integer::shl(1u32, 32), 0);
        assert_eq!(Integer::shr(u32::MAX, 77), 0);
        assert_eq!(Integer::shr(i32::MIN, 32), -1);
        assert_eq!(Integer::shr(i32::MAX, u32::MAX), 0);
        assert_eq!(Integer::shr(-5i16, 16), -1);
        assert_eq!(Integer::shl(1u16, 16), 0);
        assert_eq!(Integer::shl(3u64, 64), 0);
        assert_eq!(Integer::shr(-1i64, 255), -1);
    }

    #[test]
    fn products() {
        assert_eq!(0xffff_ffffu32.mul_hi(0xffff_ffff), 0xffff_fffe);
        assert_eq!(i32::MIN.mul_hi(i32::MIN), 0x4000_0000);
        assert_eq!((-1i64).mul_hi(1), -1);
        assert_eq!(u64::MAX.mul_hi(u64::MAX), u64::MAX - 1);
        assert_eq!(mul24_lo_u32(0xffff_ffff, 0xffff_ffff), 0xfe00_0001);
        assert_eq!(mul24_hi_u32(0xffff_ffff, 0xffff_ffff), 0xffff_fe00);
        assert_eq!(mul24_lo_s32(0x00ff_ffff, 2), -2);
        assert_eq!(mul24_hi_s32(0x00ff_ffff, 2), -1);
        assert_eq!(mad_hi_sat_s32(i32::MIN, i32::MIN, i32::MAX), i32::MAX);
        assert_eq!(mad24_hi_sat_s32(0x7f_ffff, -0x7f_ffff, i32::MIN), i32::MIN);
        assert_eq!(3u32.sad(5, u32::MAX), 1);
        assert_eq!(i32::MIN.sad(i32::MAX, 0), -1);
        assert_eq!(0u64.cnot(), 1);
        assert_eq!(7u16.cnot(), 0);
    }

    /// The PTX ISA has the lower 8 bits of both; so does the GPU for 32-bit fields, while it looks
    /// at all bits for 64-bit fields.
    fn counts(position: u32, length: u32, msb: u32) -> (u32, u32) {
        if msb == 31 { (position & 0xff, length & 0xff) } else { (position, length) }
    }

    /// The semantics of `bfe` in the PTX ISA, bit by bit.
    fn bfe_bits(a: u64, position: u32, length: u32, msb: u32, signed: bool) -> u64 {
        let (position, length) = counts(position, length, msb);
        let sign = signed && length != 0 && a >> (position + length - 1).min(msb) & 1 == 1;
        (0..=msb).fold(0, |d, i| {
            let inside = i < length && position + i <= msb;
            let bit = if inside { a >> (position + i) & 1 } else { sign as u64 };
            d | bit << i
        })
    }

    /// The semantics of `bfi` in the PTX ISA, bit by bit.
    fn bfi_bits(a: u64, b: u64, position: u32, length: u32, msb: u32) -> u64 {
        let (position, length) = counts(position, length, msb);
        (0..length.min(64))
            .filter(|i| position + i <= msb)
            .fold(b, |d, i| d & !(1 << (position + i)) | (a >> i & 1) << (position + i))
    }

    #[test]
    fn bit_fields() {
        for a in samples(40) {
            for position in (0..70).chain([254, 255, 256, 0x101, 0x7fff_ff00]) {
                for length in (0..70).chain([254, 255, 256, 0x120, 0x7fff_ff00]) {
                    let (low, signed) = (a as u32, a as i32);
                    let wide = low as u64;
                    let expected = bfe_bits(wide, position, length, 31, false);
                    assert_eq!(bfe_u32(low, position, length) as u64, expected);
                    let expected = bfe_bits(wide, position, length, 31, true);
                    assert_eq!(bfe_s32(signed, position, length) as u32 as u64, expected);
                    let expected = bfe_bits(a, position, length, 63, false);
                    assert_eq!(bfe_u64(a, position, length), expected);
                    let expected = bfe_bits(a, position, length, 63, true);
                    assert_eq!(bfe_s64(a as i64, position, length) as u64, expected);
                    let b = !a.rotate_left(13);
                    let expected = bfi_bits(wide, b & 0xffff_ffff, position, length, 31);
                    assert_eq!(bfi_b32(low, b as u32, position, length) as u64, expected);
                    let expected = bfi_bits(a, b, position, length, 63);
                    assert_eq!(bfi_b64(a, b, position, length), expected);
                }
            }
        }
    }

    #[test]
    fn found_bits() {
        assert_eq!(bfind_u32::<false>(0), u32::MAX);
        assert_eq!(bfind_u32::<true>(0), u32::MAX);
        assert_eq!(bfind_u32::<false>(0x8000_0000), 31);
        assert_eq!(bfind_u32::<true>(1), 31);
        assert_eq!(bfind_s32::<false>(-1), u32::MAX);
        assert_eq!(bfind_s32::<false>(-256), 7);
        assert_eq!(bfind_s32::<true>(255), 24);
        assert_eq!(bfind_u64::<false>(1 << 40), 40);
        assert_eq!(bfind_u64::<true>(1 << 40), 23);
        assert_eq!(bfind_s64::<false>(i64::MIN), 62);
        assert_eq!(bfind_s64::<true>(0), u32::MAX);
    }

    /// The semantics of `fns` in the PTX ISA.
    fn fns_loop(mask: u32, base: u32, offset: i32) -> u32 {
        if offset == 0 {
            return if mask >> base & 1 == 1 { base } else { u32::MAX };
        }
        let (mut position, mut count) = (base as i64, offset.unsigned_abs() - 1);
        while (0..32).contains(&position) {
            if mask >> position & 1 == 1 {
                if count == 0 {
                    return position as u32;
                }
                count -= 1;
            }
            position += i64::from(offset.signum());
        }
        u32::MAX
    }

    #[test]
    fn nth_bits() {
        for mask in samples(60).map(|a| a as u32) {
            for base in 0..32 {
                for offset in (-34..=34).chain([i32::MIN, i32::MAX]) {
                    assert_eq!(fns(mask, base, offset), fns_loop(mask, base, offset));
                }
            }
        }
    }

    #[test]
    fn permuted_bytes() {
        let (a, b) = (0x8302_81a0, 0x0706_05f4);
        assert_eq!(prmt::<{ permute::DEFAULT }>(a, b, 0x7640), 0x0706_f4a0);
        assert_eq!(prmt::<{ permute::DEFAULT }>(a, b, 0x8baf), 0xffff_0000);
        let (a, b) = (0x0302_0100, 0x0706_0504);
        type Case = (fn(u32, u32, u32) -> u32, [u32; 4]);
        let cases: [Case; 6] = [
            (prmt::<{ permute::FORWARD }>, [0x0302_0100, 0x0403_0201, 0x0504_0302, 0x0605_0403]),
            (prmt::<{ permute::BACKWARD }>, [0x0506_0700, 0x0607_0001, 0x0700_0102, 0x0001_0203]),
            (
                prmt::<{ permute::REPLICATE_8 }>,
                [0x0000_0000, 0x0101_0101, 0x0202_0202, 0x0303_0303],
            ),
            (prmt::<{ permute::CLAMP_LEFT }>, [0x0302_0100, 0x0302_0101, 0x0302_0202, 0x0303_0303]),
            (
                prmt::<{ permute::CLAMP_RIGHT }>,
                [0x0000_0000, 0x0101_0100, 0x0202_0100, 0x0302_0100],
            ),
            (
                prmt::<{ permute::REPLICATE_16 }>,
                [0x0100_0100, 0x0302_0302, 0x0100_0100, 0x0302_0302],
            ),
        ];
        for (function, expected) in cases {
            for (control, expected) in expected.into_iter().enumerate() {
                assert_eq!(function(a, b, control as u32), expected);
                assert_eq!(function(a, b, control as u32 | 0xffff_fffc), expected);
            }
        }
    }

    #[test]
    fn tables_of_three_operands() {
        for table in 0..=255u8 {
            let value = lop3(0b1111_0000, 0b1100_1100, 0b1010_1010, table);
            assert_eq!(value as u8, table);
        }
        assert_eq!(lop3(0x1234_5678, 0xffff_0000, 0x0f0f_0f0f, 0x80), 0x0204_0000);
    }

    #[test]
    fn funnel_shifts() {
        assert_eq!(shf_l::<true>(0x8000_0001, 0x1, 1), 3);
        assert_eq!(shf_l::<false>(0xdead_beef, 0x1, 32), 0xdead_beef);
        assert_eq!(shf_l::<false>(0xdead_beef, 0x1, 99), 0xdead_beef);
        assert_eq!(shf_l::<true>(0xdead_beef, 0x1, 32), 1);
        assert_eq!(shf_r::<true>(0x8000_0001, 0x1, 1), 0xc000_0000);
        assert_eq!(shf_r::<false>(0xdead_beef, 0x1, 32), 1);
        assert_eq!(shf_r::<true>(0xdead_beef, 0x1, 32), 0xdead_beef);
    }

    #[test]
    fn dot_products() {
        assert_eq!(dp4a::<false, false>(0xffff_ffff, 0xffff_ffff, 1), 4 * 255 * 255 + 1);
        assert_eq!(dp4a::<true, true>(0xffff_ffff, 0xffff_ffff, 1), 5);
        assert_eq!(dp4a::<true, false>(0xffff_ffff, 0xffff_ffff, 0) as i32, -4 * 255);
        assert_eq!(dp4a::<false, true>(0x0403_0201, 0xff00_ff01, 0) as i32, 1 - 2 - 4);
        assert_eq!(dp2a::<true, true, false>(0xfffe_0003, 0x7f7f_0205, 0) as i32, 15 - 4);
        assert_eq!(dp2a::<false, false, true>(0xfffe_0003, 0x0205_7f7f, 0), 15 + 2 * 0xfffe);
    }

    #[test]
    fn extensions_and_masks() {
        assert_eq!(szext::<true, true>(0x0000_0080, 8), 0xffff_ff80);
        assert_eq!(szext::<false, true>(0xffff_ff80, 8), 0x80);
        assert_eq!(szext::<true, true>(5, 32), 0);
        assert_eq!(szext::<true, false>(0x8000_0005, 32), 0x8000_0005);
        assert_eq!(szext::<true, false>(5, 0), 0);
        assert_eq!(bmsk::<true>(4, 8), 0xff0);
        assert_eq!(bmsk::<true>(4, 0), 0);
        assert_eq!(bmsk::<true>(36, 40), 0xff0);
        assert_eq!(bmsk::<false>(32, 4), 0);
        assert_eq!(bmsk::<false>(4, 40), 0xffff_fff0);
        assert_eq!(bmsk::<false>(28, 8), 0xf000_0000);
    }

    #[test]
    fn pairs_of_halves() {
        assert_eq!(add_x2(0xffff_ffff, 0x0001_0002), 1);
        assert_eq!(min_u16x2(0x8000_0001, 0x0001_8000), 0x0001_0001);
        assert_eq!(max_u16x2(0x8000_0001, 0x0001_8000), 0x8000_8000);
        assert_eq!(min_s16x2::<false>(0x8000_0001, 0x0001_8000), 0x8000_8000);
        assert_eq!(min_s16x2::<true>(0x8000_0001, 0x0001_0003), 0x0000_0001);
        assert_eq!(max_s16x2::<true>(0x8000_0001, 0xffff_8000), 0x0000_0001);
        assert_eq!(min_relu_s32(-5, 7), 0);
        assert_eq!(max_relu_s32(-5, -7), 0);
    }

    #[test]
    fn chains_of_carries() {
        for (x, y) in samples(300).zip(samples(600).skip(300)) {
            let (low, carry) = add_carry_32(x as u32, y as u32, false);
            let (high, carry) = add_carry_32((x >> 32) as u32, (y >> 32) as u32, carry);
            let expected = x.overflowing_add(y);
            assert_eq!(((high as u64) << 32 | low as u64, carry), expected);
            let (low, carry) = sub_carry_32(x as u32, y as u32, true);
            let (high, carry) = sub_carry_32((x >> 32) as u32, (y >> 32) as u32, carry);
            let expected = x.overflowing_sub(y);
            assert_eq!(((high as u64) << 32 | low as u64, !carry), expected);
            let product = (x as i32 as i64 * y as i32 as i64) as u64;
            let (low, carry) = mad_lo_carry_32(x as u32, y as u32, 0xffff_ffff, false);
            let (high, _) = mad_hi_carry_32::<true>(x as u32, y as u32, 0, carry);
            let sum = product.wrapping_add(0xffff_ffff);
            assert_eq!((high as u64) << 32 | low as u64, sum);
            let product = x as u128 * y as u128;
            let (low, carry) = mad_lo_carry_64(x, y, u64::MAX, false);
            let (high, _) = mad_hi_carry_64::<false>(x, y, 0, carry);
            let sum = product + u64::MAX as u128;
            assert_eq!((high as u128) << 64 | low as u128, sum);
        }
        assert_eq!(add_carry_64(u64::MAX, 0, true), (0, true));
        assert_eq!(sub_carry_64(0, 0, false), (u64::MAX, false));
        assert_eq!(sub_carry_64(0, 0, true), (0, true));
    }
}
