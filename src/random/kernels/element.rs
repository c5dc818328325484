//! Element types, as conversions to and from bits.

use super::arithmetic::Acc;
use crate::random::number::{bfloat_of, half_of, of_bfloat, of_half};

/// An element type.
pub trait Element {
    /// Bytes of an element.
    const BYTES: usize;

    /// Converts an integer to bits, of which the low [`BYTES`](Self::BYTES) bytes count.
    fn of_integer(value: i64) -> u64;
}

/// A floating-point element type.
pub trait Float: Element {
    /// The type in which PyTorch computes it.
    type Acc: Acc;

    /// Converts a value to bits.
    fn of(value: Self::Acc) -> u64;
    /// Converts bits to a value.
    fn to(bits: u64) -> Self::Acc;
}

/// An element type for numbers of trials.
pub trait Trials: Element {
    /// The type in which PyTorch computes it.
    type Acc: Acc;

    /// Converts a number of trials to bits.
    fn of_trials(value: Self::Acc) -> u64;
}

macro_rules! float {
    ($name:ident, $acc:ty, $bytes:literal, $of:expr, $to:expr, $of_integer:expr) => {
        /// A floating-point element type.
        pub struct $name;

        impl Element for $name {
            const BYTES: usize = $bytes;

            fn of_integer(value: i64) -> u64 {
                $of_integer(value)
            }
        }

        impl Float for $name {
            type Acc = $acc;

            fn of(value: $acc) -> u64 {
                $of(value)
            }

            fn to(bits: u64) -> $acc {
                $to(bits)
            }
        }

        impl Trials for $name {
            type Acc = $acc;

            fn of_trials(value: $acc) -> u64 {
                Self::of(value)
            }
        }
    };
}

float!(
    F32,
    f32,
    4,
    |value: f32| u64::from(value.to_bits()),
    |bits| f32::from_bits(bits as u32),
    |value| u64::from((value as f32).to_bits())
);
float!(F16, f32, 2, |value| u64::from(half_of(value)), |bits| of_half(bits as u16), |value| {
    u64::from(half_of(value as f32))
});
float!(BF16, f32, 2, |value| u64::from(bfloat_of(value)), |bits| of_bfloat(bits as u16), |value| {
    u64::from(bfloat_of(value as f32))
});
float!(F64, f64, 8, f64::to_bits, f64::from_bits, |value| (value as f64).to_bits());

macro_rules! integer {
    ($name:ident, $bytes:literal) => {
        /// The bits of integers, signed or unsigned.
        pub struct $name;

        impl Element for $name {
            const BYTES: usize = $bytes;

            fn of_integer(value: i64) -> u64 {
                value as u64
            }
        }
    };
}

integer!(B8, 1);
integer!(B16, 2);
integer!(B32, 4);
integer!(B64, 8);
integer!(U8, 1);

/// Casts through the given integer type; values outside its range saturate.
macro_rules! trials {
    ($($name:ident $through:ty),*) => {$(
        impl Trials for $name {
            type Acc = f32;

            fn of_trials(value: f32) -> u64 {
                value as $through as u64
            }
        }
    )*};
}

trials!(B8 i32, B16 i32, B32 i32, B64 i64, U8 u32);

/// A boolean, stored as 0 or 1.
pub struct Bool;

impl Element for Bool {
    const BYTES: usize = 1;

    fn of_integer(value: i64) -> u64 {
        u64::from(value != 0)
    }
}
