//! The registers of a warp, as rows of 32 lanes, and the closures that compute rows from rows.
//!
//! A register of up to 32 bits is a row of `u32`, with zeros above its width; one of 64 bits is a
//! row of `u64`; a predicate is a mask of 32 bits. A lane that has exited may hold anything.

/// Lanes of a warp.
pub const LANES: usize = 32;

/// Registers of up to 32 bits of all lanes.
pub type Narrow = [u32; LANES];
/// A register of 64 bits of all lanes.
pub type Wide = [u64; LANES];

/// The registers of one call of a function.
#[derive(Clone, Default)]
pub struct Registers {
    /// Rows of up to 32 bits.
    pub narrow: Vec<Narrow>,
    /// Rows of 64 bits.
    pub wide: Vec<Wide>,
    /// Predicates.
    pub masks: Vec<u32>,
}

/// The lanes that execute an instruction.
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    /// One bit for each lane.
    pub active: u32,
    /// True if all other lanes have exited, so that their rows may be overwritten.
    pub whole: bool,
}

impl Mask {
    /// The active lanes in order.
    pub fn lanes(self) -> impl Iterator<Item = usize> {
        let mut rest = self.active;
        std::iter::from_fn(move || {
            let lane = rest.trailing_zeros();
            rest &= rest.wrapping_sub(1);
            (lane < 32).then_some(lane as usize)
        })
    }
}

/// A closure that computes rows.
pub type Compute = Box<dyn Fn(&mut Registers, Mask) + Send + Sync>;

/// A value of an instruction, which a lane of a row holds.
pub trait Element: Copy + Default + Send + Sync + 'static {
    /// `u32` or `u64`.
    type Cell: Copy + Default;
    /// True for 64 bits.
    const IS_WIDE: bool;
    /// The rows that hold such values.
    fn rows(registers: &Registers) -> &[[Self::Cell; LANES]];
    /// The same, to write.
    fn rows_mut(registers: &mut Registers) -> &mut [[Self::Cell; LANES]];
    /// The value of a cell.
    fn of(cell: Self::Cell) -> Self;
    /// The cell of a value, zero-extended.
    fn cell(self) -> Self::Cell;
}

macro_rules! element {
    ($($type:ty, $cell:ty, $is_wide:literal, $rows:ident, $of:expr, $to:expr;)*) => {$(
        impl Element for $type {
            type Cell = $cell;
            const IS_WIDE: bool = $is_wide;
            #[inline(always)]
            fn rows(registers: &Registers) -> &[[$cell; LANES]] {
                &registers.$rows
            }
            #[inline(always)]
            fn rows_mut(registers: &mut Registers) -> &mut [[$cell; LANES]] {
                &mut registers.$rows
            }
            #[inline(always)]
            fn of(cell: $cell) -> $type {
                let of: fn($cell) -> $type = $of;
                of(cell)
            }
            #[inline(always)]
            fn cell(self) -> $cell {
                let to: fn($type) -> $cell = $to;
                to(self)
            }
        }
    )*};
}

element! {
    u8, u32, false, narrow, |cell| cell as u8, u32::from;
    i8, u32, false, narrow, |cell| cell as i8, |value| u32::from(value as u8);
    u16, u32, false, narrow, |cell| cell as u16, u32::from;
    i16, u32, false, narrow, |cell| cell as i16, |value| u32::from(value as u16);
    u32, u32, false, narrow, |cell| cell, |value| value;
    i32, u32, false, narrow, |cell| cell as i32, |value| value as u32;
    f32, u32, false, narrow, f32::from_bits, f32::to_bits;
    u64, u64, true, wide, |cell| cell, |value| value;
    i64, u64, true, wide, |cell| cell as i64, |value| value as u64;
    f64, u64, true, wide, f64::from_bits, f64::to_bits;
}

/// Writes a row: the active lanes, or all if the others have exited.
#[inline(always)]
pub fn store<D: Element>(
    registers: &mut Registers,
    mask: Mask,
    to: u32,
    values: &[D::Cell; LANES],
) {
    let row = &mut D::rows_mut(registers)[to as usize];
    if mask.whole {
        *row = *values;
    } else {
        for lane in 0..LANES {
            row[lane] = if mask.active >> lane & 1 != 0 { values[lane] } else { row[lane] };
        }
    }
}

/// Writes a predicate.
#[inline(always)]
pub fn store_mask(registers: &mut Registers, mask: Mask, to: u32, bits: u32) {
    let old = &mut registers.masks[to as usize];
    *old = (*old & !mask.active) | (bits & mask.active);
}

/// A predicate that an instruction reads.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    /// Its mask's number.
    pub index: u32,
    /// All ones if it is negated.
    pub flip: u32,
}

impl Condition {
    /// The lanes for which it is true.
    #[inline(always)]
    pub fn read(self, registers: &Registers) -> u32 {
        registers.masks[self.index as usize] ^ self.flip
    }
}

/// True if the processor has the vectors for which the fast form of each closure is compiled.
#[cfg(target_arch = "x86_64")]
fn has_wide_vectors() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

/// Defines a function that makes a closure from a function of one lane. The closure exists twice:
/// for any processor, and for those with AVX2, which the compiler uses for the loop over lanes.
macro_rules! lift {
    (
        $(#[$doc:meta])*
        $name:ident<$($type:ident),*>($($row:ident: $what:ty),*), $f:ident: $bound:path,
        |$registers:ident, $mask:ident| $body:block
    ) => {
        $(#[$doc])*
        pub fn $name<$($type: Element),*>(
            $($row: $what,)*
            $f: impl $bound + Copy + Send + Sync + 'static,
        ) -> Compute {
            #[allow(clippy::too_many_arguments, reason = "a row each")]
            #[inline(always)]
            fn any<$($type: Element),*>(
                $registers: &mut Registers,
                $mask: Mask,
                $($row: $what,)*
                $f: impl $bound + Copy,
            ) $body
            #[cfg(target_arch = "x86_64")]
            #[allow(clippy::too_many_arguments, reason = "a row each")]
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            fn fast<$($type: Element),*>(
                registers: &mut Registers,
                mask: Mask,
                $($row: $what,)*
                f: impl $bound + Copy,
            ) {
                any::<$($type),*>(registers, mask, $($row,)* f);
            }
            #[cfg(target_arch = "x86_64")]
            if has_wide_vectors() {
                return Box::new(move |registers, mask| {
                    // SAFETY: the processor has these features.
                    unsafe { fast::<$($type),*>(registers, mask, $($row,)* $f) };
                });
            }
            Box::new(move |registers, mask| any::<$($type),*>(registers, mask, $($row,)* $f))
        }
    };
}

lift! {
    /// `to = f(a)`.
    unary<D, A>(to: u32, a: u32), f: Fn(A) -> D,
    |registers, mask| {
        let a = &A::rows(registers)[a as usize];
        let mut values = [D::Cell::default(); LANES];
        for lane in 0..LANES {
            values[lane] = f(A::of(a[lane])).cell();
        }
        store::<D>(registers, mask, to, &values);
    }
}

lift! {
    /// `to = f(a, b)`.
    binary<D, A, B>(to: u32, a: u32, b: u32), f: Fn(A, B) -> D,
    |registers, mask| {
        let (a, b) = (&A::rows(registers)[a as usize], &B::rows(registers)[b as usize]);
        let mut values = [D::Cell::default(); LANES];
        for lane in 0..LANES {
            values[lane] = f(A::of(a[lane]), B::of(b[lane])).cell();
        }
        store::<D>(registers, mask, to, &values);
    }
}

lift! {
    /// `to = f(a, b, c)`.
    ternary<D, A, B, C>(to: u32, a: u32, b: u32, c: u32), f: Fn(A, B, C) -> D,
    |registers, mask| {
        let a = &A::rows(registers)[a as usize];
        let b = &B::rows(registers)[b as usize];
        let c = &C::rows(registers)[c as usize];
        let mut values = [D::Cell::default(); LANES];
        for lane in 0..LANES {
            values[lane] = f(A::of(a[lane]), B::of(b[lane]), C::of(c[lane])).cell();
        }
        store::<D>(registers, mask, to, &values);
    }
}

lift! {
    /// `to = f(a, b, c, d)`.
    quaternary<R, A, B, C, D>(to: u32, a: u32, b: u32, c: u32, d: u32), f: Fn(A, B, C, D) -> R,
    |registers, mask| {
        let a = &A::rows(registers)[a as usize];
        let b = &B::rows(registers)[b as usize];
        let c = &C::rows(registers)[c as usize];
        let d = &D::rows(registers)[d as usize];
        let mut values = [R::Cell::default(); LANES];
        for lane in 0..LANES {
            values[lane] =
                f(A::of(a[lane]), B::of(b[lane]), C::of(c[lane]), D::of(d[lane])).cell();
        }
        store::<R>(registers, mask, to, &values);
    }
}

lift! {
    /// `to = condition ? a : b`, by `f(condition, a, b)`.
    choose<D, A, B>(to: u32, condition: Condition, a: u32, b: u32), f: Fn(bool, A, B) -> D,
    |registers, mask| {
        let (a, b) = (&A::rows(registers)[a as usize], &B::rows(registers)[b as usize]);
        let bits = condition.read(registers);
        let mut values = [D::Cell::default(); LANES];
        for lane in 0..LANES {
            values[lane] = f(bits >> lane & 1 != 0, A::of(a[lane]), B::of(b[lane])).cell();
        }
        store::<D>(registers, mask, to, &values);
    }
}

/// What a comparison does with its result.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The predicate.
    pub to: u32,
    /// The predicate for the opposite, if it is wanted.
    pub opposite: Option<u32>,
    /// How another predicate is combined: 0 not, 1 and, 2 or, 3 xor.
    pub combine: u8,
    /// The other predicate.
    pub with: Condition,
}

impl Outcome {
    #[inline(always)]
    fn write(self, registers: &mut Registers, mask: Mask, bits: u32) {
        let other = if self.combine == 0 { 0 } else { self.with.read(registers) };
        let combined = |bits: u32| match self.combine {
            0 => bits,
            1 => bits & other,
            2 => bits | other,
            _ => bits ^ other,
        };
        store_mask(registers, mask, self.to, combined(bits));
        if let Some(opposite) = self.opposite {
            store_mask(registers, mask, opposite, combined(!bits));
        }
    }
}

lift! {
    /// A predicate from `f(a, b)`.
    compare<A, B>(outcome: Outcome, a: u32, b: u32), f: Fn(A, B) -> bool,
    |registers, mask| {
        let (a, b) = (&A::rows(registers)[a as usize], &B::rows(registers)[b as usize]);
        let mut bits = 0;
        for lane in 0..LANES {
            bits |= u32::from(f(A::of(a[lane]), B::of(b[lane]))) << lane;
        }
        outcome.write(registers, mask, bits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers() -> Registers {
        Registers {
            narrow: vec![std::array::from_fn(|lane| lane as u32), [7; LANES], [0; LANES]],
            wide: vec![[0; LANES]],
            masks: vec![0xffff_0000, 0],
        }
    }

    #[test]
    fn a_row_is_computed_for_the_active_lanes() {
        let add = binary::<u32, u32, u32>(2, 0, 1, |a, b| a + b);
        let mut all = registers();
        add(&mut all, Mask { active: u32::MAX, whole: true });
        assert_eq!(all.narrow[2], std::array::from_fn(|lane| lane as u32 + 7));
        let mut some = registers();
        add(&mut some, Mask { active: 0b101, whole: false });
        assert_eq!(some.narrow[2][..4], [7, 0, 9, 0]);
    }

    #[test]
    fn comparisons_write_masks_and_combine_them() {
        let with = Condition { index: 0, flip: u32::MAX };
        let outcome = Outcome { to: 1, opposite: Some(0), combine: 1, with };
        let less = compare::<u32, u32>(outcome, 0, 1, |a, b| a < b);
        let mut all = registers();
        less(&mut all, Mask { active: u32::MAX, whole: true });
        assert_eq!((all.masks[1], all.masks[0]), (0x7f, 0xff80));
    }
}
