//! Atomic operations: `atom` and `red`.

use super::super::registers::{Element, LANES, Mask, Registers, store, unary};
use super::super::{Access, Action};
use super::Lowering;
use super::memory::{HINTS, Target};
use super::name::Name;
use super::transfer::each_lane;
use crate::memory::fault::{Fault, FaultKind};
use crate::memory::{Place, SHARED_WINDOW, WINDOW_MASK, Word};
use crate::number::float::{Float, NEAREST};
use crate::number::half::{self, Bf16, F16};
use crate::ptx::Result;
use crate::ptx::tree::Operand;
use crate::ptx::types::Type;

/// The operations by name.
const OPERATIONS: &[&str] = &["add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"];

/// The access for an operation on integers of a type.
macro_rules! integers {
    (
        $operation:expr, $is_signed:expr, $target:expr, $to:expr, $rows:expr, $word:ty, $signed:ty
    ) => {
        match ($operation, $is_signed) {
            ("add", _) => update::<$word>($target, $to, $rows, |old, a, _| old.wrapping_add(a)),
            ("min", false) => update::<$word>($target, $to, $rows, |old, a, _| old.min(a)),
            ("max", false) => update::<$word>($target, $to, $rows, |old, a, _| old.max(a)),
            ("min", true) => update::<$word>($target, $to, $rows, |old, a, _| {
                (old as $signed).min(a as $signed) as $word
            }),
            ("max", true) => update::<$word>($target, $to, $rows, |old, a, _| {
                (old as $signed).max(a as $signed) as $word
            }),
            ("inc", _) => {
                update::<$word>($target, $to, $rows, |old, a, _| if old >= a { 0 } else { old + 1 })
            }
            ("dec", _) => {
                update::<$word>(
                    $target,
                    $to,
                    $rows,
                    |old, a, _| {
                        if old == 0 || old > a { a } else { old - 1 }
                    },
                )
            }
            ("and", _) => update::<$word>($target, $to, $rows, |old, a, _| old & a),
            ("or", _) => update::<$word>($target, $to, $rows, |old, a, _| old | a),
            ("xor", _) => update::<$word>($target, $to, $rows, |old, a, _| old ^ a),
            ("exch", _) => update::<$word>($target, $to, $rows, |_, a, _| a),
            ("cas", _) => {
                update::<$word>($target, $to, $rows, |old, a, b| if old == a { b } else { old })
            }
            _ => return None,
        }
    };
}

/// The access for an operation of an atomic instruction, where there is one. The result goes to
/// `to`; the operands are in `rows`.
pub(super) fn access(
    operation: &str,
    of: Type,
    target: Target,
    to: Option<u32>,
    rows: [u32; 2],
) -> Option<Access> {
    Some(match (of, operation) {
        (Type::F32, "add") => add_floats::<u32>(
            target,
            to,
            rows[0],
            |old, a| {
                Float::add::<NEAREST, true, false>(f32::from_bits(old), f32::from_bits(a)).to_bits()
            },
            |old, a| {
                Float::add::<NEAREST, false, false>(f32::from_bits(old), f32::from_bits(a))
                    .to_bits()
            },
        ),
        (Type::F64, "add") => {
            add_floats::<u64>(target, to, rows[0], add_f64_in_global, add_f64_in_shared)
        }
        (Type::F16, _) => halves::<F16>(operation, target, to, rows)?,
        (Type::Bf16, _) => halves::<Bf16>(operation, target, to, rows)?,
        (Type::F16x2, _) => pairs::<F16>(operation, target, to, rows)?,
        (Type::Bf16x2, _) => pairs::<Bf16>(operation, target, to, rows)?,
        (Type::F32 | Type::F64, _) => return None,
        (Type::B128, "exch") => update::<u128>(target, to, rows, |_, a, _| a),
        (Type::B128, "cas") => {
            update::<u128>(target, to, rows, |old, a, b| if old == a { b } else { old })
        }
        _ => match of.bytes() {
            2 => match operation {
                "exch" => update::<u16>(target, to, rows, |_, a, _| a),
                "cas" => {
                    update::<u16>(target, to, rows, |old, a, b| if old == a { b } else { old })
                }
                _ => return None,
            },
            4 => integers!(operation, of.is_signed(), target, to, rows, u32, i32),
            8 => integers!(operation, of.is_signed(), target, to, rows, u64, i64),
            _ => return None,
        },
    })
}

/// `add.f64` in global memory: a NaN keeps its bits, and that of the instruction comes first.
fn add_f64_in_global(old: u64, a: u64) -> u64 {
    if f64::from_bits(a).is_nan() {
        a
    } else if f64::from_bits(old).is_nan() {
        old
    } else {
        add_f64_in_shared(old, a)
    }
}

/// `add.f64` in shared memory: as `add`, with the word of memory as the second operand.
fn add_f64_in_shared(old: u64, a: u64) -> u64 {
    Float::add::<NEAREST, false, false>(f64::from_bits(a), f64::from_bits(old)).to_bits()
}

/// What an operation makes of a number of 16 bits in memory and that of the instruction.
fn half_operation<H: half::Half>(operation: &str) -> Option<fn(u16, u16) -> u16> {
    Some(match operation {
        "add" => half::add::<H, false, false>,
        "min" => half::min::<H, false, false, false>,
        "max" => half::max::<H, false, false, false>,
        _ => return None,
    })
}

fn halves<H: half::Half>(
    operation: &str,
    target: Target,
    to: Option<u32>,
    rows: [u32; 2],
) -> Option<Access> {
    let change = half_operation::<H>(operation)?;
    Some(update::<u16>(target, to, rows, move |old, a, _| change(old, a)))
}

fn pairs<H: half::Half>(
    operation: &str,
    target: Target,
    to: Option<u32>,
    rows: [u32; 2],
) -> Option<Access> {
    let change = half_operation::<H>(operation)?;
    Some(update::<u32>(target, to, rows, move |old, a, _| half::pair2(old, a, change)))
}

/// What an operation makes of the bits of a word in memory and of those of the instruction.
pub(super) type Change = fn(u64, u64) -> u64;

/// The change that an operation on a type is, for copies that change memory.
pub(super) fn reduction(operation: &str, of: Type) -> Option<Change> {
    macro_rules! narrow {
        ($type:ty, $f:expr) => {{
            |old, a| {
                let change: fn($type, $type) -> $type = $f;
                change(old as $type, a as $type) as u64
            }
        }};
    }
    Some(match (operation, of) {
        ("and", _) => |old, a| old & a,
        ("or", _) => |old, a| old | a,
        ("xor", _) => |old, a| old ^ a,
        ("add", Type::F32) => |old, a| {
            let (old, a) = (f32::from_bits(old as u32), f32::from_bits(a as u32));
            Float::add::<NEAREST, true, false>(old, a).to_bits().into()
        },
        ("add", Type::F64) => add_f64_in_global,
        ("add", Type::F16) => narrow!(u16, half::add::<F16, false, false>),
        ("min", Type::F16) => narrow!(u16, half::min::<F16, false, false, false>),
        ("max", Type::F16) => narrow!(u16, half::max::<F16, false, false, false>),
        ("add", Type::Bf16) => narrow!(u16, half::add::<Bf16, false, false>),
        ("min", Type::Bf16) => narrow!(u16, half::min::<Bf16, false, false, false>),
        ("max", Type::Bf16) => narrow!(u16, half::max::<Bf16, false, false, false>),
        ("add", _) => u64::wrapping_add,
        ("min", Type::U32) => narrow!(u32, Ord::min),
        ("max", Type::U32) => narrow!(u32, Ord::max),
        ("min", Type::S32) => |old, a| u64::from((old as i32).min(a as i32) as u32),
        ("max", Type::S32) => |old, a| u64::from((old as i32).max(a as i32) as u32),
        ("min", Type::U64) => Ord::min,
        ("max", Type::U64) => Ord::max,
        ("min", Type::S64) => |old, a| (old as i64).min(a as i64) as u64,
        ("max", Type::S64) => |old, a| (old as i64).max(a as i64) as u64,
        ("inc", Type::U32) => |old, a| if old >= a { 0 } else { old + 1 },
        ("dec", Type::U32) => |old, a| if old == 0 || old > a { a } else { old - 1 },
        _ => return None,
    })
}

impl<'t> Lowering<'_, 't> {
    /// `atom` and `red`.
    pub(super) fn atomic(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        if name.takes("async") {
            return Ok(false);
        }
        let (space, lanes) = (self.space(name), self.lanes(name));
        let Some(operation) = name.take_of(OPERATIONS) else { return Ok(false) };
        name.ignore(HINTS);
        name.ignore(&["noftz"]);
        let of = name.of_type(0);
        let (to, rest) = match operands {
            rest if name.base == "red" => (&Operand::Sink, rest),
            [to, rest @ ..] => (to, rest),
            [] => return self.operands(3),
        };
        let [address, value, more @ ..] = rest else { return self.operands(3) };
        let target = self.target(address, space)?;
        self.function.has_atomics |= matches!(target.place, Place::Global | Place::Generic);
        if lanes > 1 {
            return self.atomic_vector(operation, of, target, lanes, to, value);
        }
        let a = self.atomic_source(value, of)?;
        let b = match (operation, more) {
            ("cas", [b, ..]) => self.atomic_source(b, of)?,
            ("cas", []) => return self.operands(4),
            _ => a,
        };
        let to = match to {
            Operand::Sink => None,
            other if of == Type::B128 => Some(self.pair(other)?),
            other if of.bytes() == 8 => Some(self.destination::<u64>(other)?),
            other => Some(self.destination::<u32>(other)?),
        };
        match access(operation, of, target, to, [a, b]) {
            Some(access) => self.push(Action::Access(access)),
            None => return Ok(false),
        }
        Ok(true)
    }

    /// The row of an operand of an atomic operation; the first one for 128 bits.
    pub(super) fn atomic_source(&mut self, operand: &Operand<'t>, of: Type) -> Result<u32> {
        match of.bytes() {
            16 => self.pair(operand),
            8 => self.source::<u64>(operand, of),
            _ => self.source::<u32>(operand, of),
        }
    }

    /// An operation on each element of a vector of up to 32 bits each.
    fn atomic_vector(
        &mut self,
        operation: &str,
        of: Type,
        target: Target,
        lanes: usize,
        to: &Operand<'t>,
        value: &Operand<'t>,
    ) -> Result<bool> {
        let Operand::Vector(values) = value else {
            return self.error("a vector is expected");
        };
        let results = match to {
            Operand::Sink => vec![Operand::Sink; lanes],
            Operand::Vector(list) => list.clone(),
            _ => return self.error("a vector is expected"),
        };
        if values.len() != lanes || results.len() != lanes || of.bytes() > 4 {
            return self.error("the number of registers differs from the vector's");
        }
        let bytes = (lanes * of.bytes()) as u64;
        self.push(Action::Access(each_lane(target, move |_, _, _, _, address| {
            match address % bytes {
                0 => Ok(()),
                _ => Err(Fault::at(FaultKind::Misaligned, address)),
            }
        })));
        let mut copies = Vec::new();
        for (place, (value, result)) in values.iter().zip(&results).enumerate() {
            let a = self.source::<u32>(value, of)?;
            // All elements are read before the first result is written.
            let to = match result {
                Operand::Sink => None,
                other => {
                    let (to, scratch) = (self.destination::<u32>(other)?, self.new_narrow());
                    copies.push((to, scratch));
                    Some(scratch)
                }
            };
            match access(operation, of, target.behind(place * of.bytes()), to, [a, a]) {
                Some(access) => self.push(Action::Access(access)),
                None => return Ok(false),
            }
        }
        for (to, from) in copies {
            self.push(Action::Compute(unary::<u32, u32>(to, from, |value| value)));
        }
        Ok(true)
    }
}

/// An atomic operation of the active lanes, one after the other.
fn update<W: Word + AtomicCell>(
    target: Target,
    to: Option<u32>,
    [a, b]: [u32; 2],
    change: impl Fn(W, W, W) -> W + Copy + Send + Sync + 'static,
) -> Access {
    Box::new(move |registers, mask, memory| {
        let addresses = target.addresses(registers);
        let (a_row, b_row) = (W::row(registers, a), W::row(registers, b));
        let mut old = [W::default(); LANES];
        for lane in mask.lanes() {
            let (a, b) = (a_row[lane], b_row[lane]);
            old[lane] =
                memory.update::<W>(target.place, lane, addresses[lane], |old| change(old, a, b))?;
        }
        if let Some(to) = to {
            W::put_row(registers, mask, to, &old);
        }
        Ok(())
    })
}

/// An addition of floats, which differs between global memory and the others.
fn add_floats<W: Word + AtomicCell>(
    target: Target,
    to: Option<u32>,
    a: u32,
    in_global: impl Fn(W, W) -> W + Copy + Send + Sync + 'static,
    in_shared: impl Fn(W, W) -> W + Copy + Send + Sync + 'static,
) -> Access {
    match target.place {
        Place::Global => update::<W>(target, to, [a, a], move |old, a, _| in_global(old, a)),
        Place::Generic => Box::new(move |registers, mask, memory| {
            let (addresses, values) = (target.addresses(registers), W::row(registers, a));
            let mut old = [W::default(); LANES];
            for lane in mask.lanes() {
                let (address, value) = (addresses[lane], values[lane]);
                let is_shared = address & WINDOW_MASK == SHARED_WINDOW;
                old[lane] = memory.update::<W>(target.place, lane, address, |old| {
                    if is_shared { in_shared(old, value) } else { in_global(old, value) }
                })?;
            }
            if let Some(to) = to {
                W::put_row(registers, mask, to, &old);
            }
            Ok(())
        }),
        _ => update::<W>(target, to, [a, a], move |old, a, _| in_shared(old, a)),
    }
}

/// A word of an atomic operation in registers.
trait AtomicCell: Copy {
    fn row(registers: &Registers, index: u32) -> [Self; LANES];
    fn put_row(registers: &mut Registers, mask: Mask, to: u32, values: &[Self; LANES]);
}

macro_rules! atomic_cell {
    ($($type:ty),*) => {$(
        impl AtomicCell for $type {
            fn row(registers: &Registers, index: u32) -> [Self; LANES] {
                <$type as Element>::rows(registers)[index as usize].map(<$type as Element>::of)
            }
            fn put_row(registers: &mut Registers, mask: Mask, to: u32, values: &[Self; LANES]) {
                let cells = values.map(<$type as Element>::cell);
                store::<$type>(registers, mask, to, &cells);
            }
        }
    )*};
}

atomic_cell!(u16, u32, u64);

impl AtomicCell for u128 {
    fn row(registers: &Registers, index: u32) -> [Self; LANES] {
        let rows = &registers.wide[index as usize..index as usize + 2];
        std::array::from_fn(|lane| u128::from(rows[1][lane]) << 64 | u128::from(rows[0][lane]))
    }

    fn put_row(registers: &mut Registers, mask: Mask, to: u32, values: &[Self; LANES]) {
        store::<u64>(registers, mask, to, &values.map(|value| value as u64));
        store::<u64>(registers, mask, to + 1, &values.map(|value| (value >> 64) as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reductions_are_those_of_the_isa() {
        let apply = |operation, of, old: u64, a: u64| reduction(operation, of).unwrap()(old, a);
        assert_eq!(apply("inc", Type::U32, 3, 3), 0);
        assert_eq!(apply("dec", Type::U32, 0, 9), 9);
        assert_eq!(apply("min", Type::S32, 0xffff_ffff, 1), 0xffff_ffff);
        assert_eq!(apply("max", Type::S64, u64::MAX, 1), 1);
        assert_eq!(apply("add", Type::F16, 0x3c00, 0x3c00), 0x4000);
        assert_eq!(apply("max", Type::Bf16, 0x3f80, 0xbf80), 0x3f80);
        assert!(reduction("exch", Type::U32).is_none());
    }

    #[test]
    fn a_nan_of_f64_keeps_its_bits_in_global_memory() {
        // A GPU's answers.
        let (quiet, signalling, one) = (0x7ff8_0000_0000_0000, 0x7ff0_0000_0000_0001, 1f64);
        assert_eq!(add_f64_in_global(signalling, one.to_bits()), signalling);
        assert_eq!(add_f64_in_global(signalling, quiet), quiet);
        assert_eq!(add_f64_in_shared(signalling, one.to_bits()), 0x7ff8_0000_0000_0001);
        assert_eq!(add_f64_in_shared(signalling, quiet), 0x7ff8_0000_0000_0001);
    }
}
