//! Conversions of numbers.

use super::super::Action;
use super::super::Slot;
use super::super::registers::{Element, binary, ternary, unary};
use super::Lowering;
use super::name::Name;
use crate::number::convert::{self, E4m3, E5m2, KEEP};
use crate::number::float::{DOWN, NEAREST, UP, ZERO};
use crate::number::half::{Bf16, F16, Half};
use crate::number::rounding::AWAY;
use crate::ptx::Result;
use crate::ptx::tree::Operand;
use crate::ptx::types::Type;

/// Runs an expression with `$t` as an integer type of any size.
macro_rules! with_whole {
    ($self:ident, $of:expr, $t:ident => $body:expr) => {
        with_whole!(@ $self, $of, $t, $body, (U8 | Type::B8, u8), (S8, i8), (U16 | Type::B16, u16),
            (S16, i16), (U32 | Type::B32, u32), (S32, i32), (U64 | Type::B64, u64), (S64, i64))
    };
    (
        @ $self:ident, $of:expr, $t:ident, $body:expr,
        $(($type:ident $(| $other:path)?, $rust:ty)),*
    ) => {
        match $of {
            $(Type::$type $(| $other)? => {
                type $t = $rust;
                $body
            })*
            other => return $self.error(format!("{other:?} is no integer type")),
        }
    };
}

/// Runs an expression with a constant for the rounding.
macro_rules! with_rounding {
    ($r:expr, |$R:ident| $body:expr) => {
        match $r {
            ZERO => {
                const $R: u8 = ZERO;
                $body
            }
            DOWN => {
                const $R: u8 = DOWN;
                $body
            }
            UP => {
                const $R: u8 = UP;
                $body
            }
            _ => {
                const $R: u8 = NEAREST;
                $body
            }
        }
    };
}

/// The modifiers of a conversion.
#[derive(Clone, Copy)]
struct Modes {
    rounding: u8,
    to_integer: u8,
    ftz: bool,
    sat: bool,
    relu: bool,
    satfinite: bool,
}

impl<'t> Lowering<'_, 't> {
    /// `cvt` and `cvt.pack`.
    pub(super) fn convert(
        &mut self,
        name: &mut Name<'t>,
        operands: &[Operand<'t>],
    ) -> Result<bool> {
        if name.base != "cvt" {
            return Ok(false);
        }
        if name.takes("pack") {
            return self.pack(name, operands);
        }
        let rounding = match name.take_of(&["rn", "rna", "rz", "rm", "rp"]) {
            Some("rna") => AWAY,
            Some("rz") => ZERO,
            Some("rm") => DOWN,
            Some("rp") => UP,
            _ => NEAREST,
        };
        let to_integer = match name.take_of(&["rni", "rzi", "rmi", "rpi"]) {
            Some("rni") => NEAREST,
            Some("rzi") => ZERO,
            Some("rmi") => DOWN,
            Some("rpi") => UP,
            _ => KEEP,
        };
        let modes = Modes {
            rounding,
            to_integer,
            ftz: name.takes("ftz"),
            sat: name.takes("sat"),
            relu: name.takes("relu"),
            satfinite: name.takes("satfinite"),
        };
        let (to, from) = (name.of_type(0), name.of_type(1));
        use Type::*;
        match (to, from) {
            (F16x2 | Bf16x2, F32) => self.pair_of_halves(operands, to, modes),
            (Tf32, F32) => self.tf32(operands, modes),
            (E4m3x2 | E5m2x2, F32 | F16x2) | (F16x2, E4m3x2 | E5m2x2) => {
                self.octets(operands, to, from, modes)
            }
            (F32, F32) => {
                let Modes { ftz, sat, .. } = modes;
                macro_rules! same {
                    ($R:expr) => {
                        self.cast::<f32, f32>(operands, to, from, move |a| match (ftz, sat) {
                            (false, false) => convert::f32_to_f32::<{ $R }, false, false>(a),
                            (false, true) => convert::f32_to_f32::<{ $R }, false, true>(a),
                            (true, false) => convert::f32_to_f32::<{ $R }, true, false>(a),
                            (true, true) => convert::f32_to_f32::<{ $R }, true, true>(a),
                        })
                    };
                }
                match modes.to_integer {
                    KEEP => same!(KEEP),
                    other => with_rounding!(other, |R| same!(R)),
                }
            }
            (F64, F64) => {
                let sat = modes.sat;
                macro_rules! same {
                    ($R:expr) => {
                        self.cast::<f64, f64>(operands, to, from, move |a| match sat {
                            false => convert::f64_to_f64::<{ $R }, false>(a),
                            true => convert::f64_to_f64::<{ $R }, true>(a),
                        })
                    };
                }
                match modes.to_integer {
                    KEEP => same!(KEEP),
                    other => with_rounding!(other, |R| same!(R)),
                }
            }
            (F64, F32) => {
                let Modes { ftz, sat, .. } = modes;
                self.cast::<f64, f32>(operands, to, from, move |a| match (ftz, sat) {
                    (false, false) => convert::f32_to_f64::<false, false>(a),
                    (false, true) => convert::f32_to_f64::<false, true>(a),
                    (true, false) => convert::f32_to_f64::<true, false>(a),
                    (true, true) => convert::f32_to_f64::<true, true>(a),
                })
            }
            (F32, F64) => {
                let Modes { ftz, sat, .. } = modes;
                with_rounding!(modes.rounding, |R| {
                    self.cast::<f32, f64>(operands, to, from, move |a| match (ftz, sat) {
                        (false, false) => convert::f64_to_f32::<R, false, false>(a),
                        (false, true) => convert::f64_to_f32::<R, false, true>(a),
                        (true, false) => convert::f64_to_f32::<R, true, false>(a),
                        (true, true) => convert::f64_to_f32::<R, true, true>(a),
                    })
                })
            }
            (F16 | Bf16, _) => match to {
                F16 => self.make_half::<F16Format>(operands, to, from, modes),
                _ => self.make_half::<Bf16Format>(operands, to, from, modes),
            },
            (_, F16) => self.out_of_half::<F16Format>(operands, to, from, modes),
            (_, Bf16) => self.out_of_half::<Bf16Format>(operands, to, from, modes),
            (_, F32) => {
                let ftz = modes.ftz;
                with_rounding!(modes.integer(), |R| with_whole!(self, to, I => {
                    self.cast::<I, f32>(operands, to, from, move |a| match ftz {
                        false => convert::f32_to_integer::<I, R, false>(a),
                        true => convert::f32_to_integer::<I, R, true>(a),
                    })
                }))
            }
            (_, F64) => with_rounding!(modes.integer(), |R| with_whole!(self, to, I => {
                self.cast::<I, f64>(operands, to, from, |a| convert::f64_to_integer::<I, R>(a))
            })),
            (F32, _) => {
                let sat = modes.sat;
                with_rounding!(modes.rounding, |R| with_whole!(self, from, I => {
                    self.cast::<f32, I>(operands, to, from, move |a| match sat {
                        false => convert::integer_to_f32::<I, R, false>(a),
                        true => convert::integer_to_f32::<I, R, true>(a),
                    })
                }))
            }
            (F64, _) => {
                let sat = modes.sat;
                with_rounding!(modes.rounding, |R| with_whole!(self, from, I => {
                    self.cast::<f64, I>(operands, to, from, move |a| match sat {
                        false => convert::integer_to_f64::<I, R, false>(a),
                        true => convert::integer_to_f64::<I, R, true>(a),
                    })
                }))
            }
            _ => with_whole!(self, from, S => with_whole!(self, to, D => match modes.sat {
                false => self.cast(operands, to, from, |a: S| convert::resize::<S, D, false>(a)),
                true => self.cast(operands, to, from, |a: S| convert::resize::<S, D, true>(a)),
            })),
        }
    }

    /// A conversion to a register that can be larger than the type.
    fn cast<D: Element, S: Element>(
        &mut self,
        operands: &[Operand<'t>],
        to_type: Type,
        from_type: Type,
        f: impl Fn(S) -> D + Copy + Send + Sync + 'static,
    ) -> Result<bool> {
        let [to, from] = operands else { return self.operands(2) };
        let from = self.source::<S>(from, from_type)?;
        let slot = self.any_destination(to, to_type)?;
        let register = match to {
            Operand::Register(number) => self.body.registers[*number as usize].bytes(),
            _ => to_type.bytes(),
        };
        let is_extended = to_type.is_signed() && register > to_type.bytes();
        match (slot, D::IS_WIDE, is_extended) {
            (Slot::Narrow(to), false, false) | (Slot::Wide(to), true, _) => {
                self.push(Action::Compute(unary::<D, S>(to, from, f)));
            }
            (Slot::Narrow(to), false, true) => {
                let scratch = self.new_narrow();
                self.push_always(unary::<D, S>(scratch, from, f));
                let compute = match (to_type.bytes(), register) {
                    (1, 2) => unary::<i16, i8>(to, scratch, i16::from),
                    (1, _) => unary::<i32, i8>(to, scratch, i32::from),
                    _ => unary::<i32, i16>(to, scratch, i32::from),
                };
                self.push(Action::Compute(compute));
            }
            (Slot::Wide(to), false, _) => {
                let scratch = self.new_narrow();
                self.push_always(unary::<D, S>(scratch, from, f));
                let compute = match (to_type.is_signed(), to_type.bytes()) {
                    (true, 1) => unary::<i64, i8>(to, scratch, i64::from),
                    (true, 2) => unary::<i64, i16>(to, scratch, i64::from),
                    (true, _) => unary::<i64, i32>(to, scratch, i64::from),
                    (false, _) => unary::<u64, u32>(to, scratch, u64::from),
                };
                self.push(Action::Compute(compute));
            }
            _ => return self.error("the destination is smaller than the type"),
        }
        Ok(true)
    }

    fn make_half<F: Format>(
        &mut self,
        operands: &[Operand<'t>],
        to: Type,
        from: Type,
        modes: Modes,
    ) -> Result<bool> {
        let Modes { ftz, sat, relu, satfinite, .. } = modes;
        match from {
            Type::F32 => with_rounding!(modes.rounding, |R| {
                self.cast::<u16, f32>(operands, to, from, move |a| {
                    F::from_f32::<R>(a, ftz, sat, relu, satfinite)
                })
            }),
            Type::F64 => with_rounding!(modes.rounding, |R| {
                self.cast::<u16, f64>(operands, to, from, move |a| match sat {
                    false => convert::f64_to_half::<F::Half, R, false>(a),
                    true => convert::f64_to_half::<F::Half, R, true>(a),
                })
            }),
            Type::F16 | Type::Bf16 if from == to => {
                macro_rules! same {
                    ($R:expr) => {
                        self.cast::<u16, u16>(operands, to, from, move |a| match sat {
                            false => convert::half_to_same::<F::Half, { $R }, false>(a),
                            true => convert::half_to_same::<F::Half, { $R }, true>(a),
                        })
                    };
                }
                match modes.to_integer {
                    KEEP => same!(KEEP),
                    other => with_rounding!(other, |R| same!(R)),
                }
            }
            Type::F16 => with_rounding!(modes.rounding, |R| {
                self.cast::<u16, u16>(operands, to, from, |a| {
                    convert::half_to_half::<F16, F::Half, R>(a)
                })
            }),
            Type::Bf16 => with_rounding!(modes.rounding, |R| {
                self.cast::<u16, u16>(operands, to, from, |a| {
                    convert::half_to_half::<Bf16, F::Half, R>(a)
                })
            }),
            _ => with_rounding!(modes.rounding, |R| with_whole!(self, from, I => {
                self.cast::<u16, I>(operands, to, from, move |a| match sat {
                    false => convert::integer_to_half::<I, F::Half, R, false>(a),
                    true => convert::integer_to_half::<I, F::Half, R, true>(a),
                })
            })),
        }
    }

    fn out_of_half<F: Format>(
        &mut self,
        operands: &[Operand<'t>],
        to: Type,
        from: Type,
        modes: Modes,
    ) -> Result<bool> {
        let Modes { ftz, sat, .. } = modes;
        match to {
            Type::F32 => self.cast::<f32, u16>(operands, to, from, move |a| match (ftz, sat) {
                (false, false) => convert::half_to_f32::<F::Half, false, false>(a),
                (false, true) => convert::half_to_f32::<F::Half, false, true>(a),
                (true, false) => convert::half_to_f32::<F::Half, true, false>(a),
                (true, true) => convert::half_to_f32::<F::Half, true, true>(a),
            }),
            Type::F64 => self.cast::<f64, u16>(operands, to, from, move |a| match sat {
                false => convert::half_to_f64::<F::Half, false>(a),
                true => convert::half_to_f64::<F::Half, true>(a),
            }),
            _ => with_rounding!(modes.integer(), |R| with_whole!(self, to, I => {
                self.cast(operands, to, from, |a: u16| {
                    convert::half_to_integer::<F::Half, I, R>(a)
                })
            })),
        }
    }

    fn pair_of_halves(&mut self, operands: &[Operand<'t>], to: Type, modes: Modes) -> Result<bool> {
        let of = (Type::F32, Type::F32);
        let Modes { relu, satfinite, .. } = modes;
        macro_rules! pair {
            ($half:ty) => {
                with_rounding!(modes.rounding, |R| {
                    self.binary(operands, of, move |a: f32, b: f32| match (relu, satfinite) {
                        (false, false) => convert::f32_pair_to_half::<$half, R, false, false>(a, b),
                        (false, true) => convert::f32_pair_to_half::<$half, R, false, true>(a, b),
                        (true, false) => convert::f32_pair_to_half::<$half, R, true, false>(a, b),
                        (true, true) => convert::f32_pair_to_half::<$half, R, true, true>(a, b),
                    })
                })
            };
        }
        match to {
            Type::F16x2 => pair!(F16),
            _ => pair!(Bf16),
        }
    }

    fn tf32(&mut self, operands: &[Operand<'t>], modes: Modes) -> Result<bool> {
        let Modes { relu, satfinite, rounding, .. } = modes;
        self.unary(operands, Type::F32, move |a: f32| match (rounding, relu, satfinite) {
            (AWAY, _, false) => convert::f32_to_tf32::<AWAY, false, false>(a),
            (AWAY, ..) => convert::f32_to_tf32::<AWAY, false, true>(a),
            (ZERO, false, false) => convert::f32_to_tf32::<ZERO, false, false>(a),
            (ZERO, true, false) => convert::f32_to_tf32::<ZERO, true, false>(a),
            (ZERO, false, true) => convert::f32_to_tf32::<ZERO, false, true>(a),
            (ZERO, true, true) => convert::f32_to_tf32::<ZERO, true, true>(a),
            (_, false, false) => convert::f32_to_tf32::<NEAREST, false, false>(a),
            (_, true, false) => convert::f32_to_tf32::<NEAREST, true, false>(a),
            (_, false, true) => convert::f32_to_tf32::<NEAREST, false, true>(a),
            (_, true, true) => convert::f32_to_tf32::<NEAREST, true, true>(a),
        })
    }

    /// Pairs of numbers of 8 bits.
    fn octets(
        &mut self,
        operands: &[Operand<'t>],
        to: Type,
        from: Type,
        modes: Modes,
    ) -> Result<bool> {
        let relu = modes.relu;
        macro_rules! pairs {
            ($octet:ty) => {
                match from {
                    Type::F32 => {
                        let [to, a, b] = operands else { return self.operands(3) };
                        let to = self.destination::<u16>(to)?;
                        let (a, b) = (self.source::<f32>(a, from)?, self.source::<f32>(b, from)?);
                        let compute = binary::<u16, f32, f32>(to, a, b, move |a, b| match relu {
                            false => convert::f32_pair_to_octets::<$octet, false>(a, b),
                            true => convert::f32_pair_to_octets::<$octet, true>(a, b),
                        });
                        self.push(Action::Compute(compute));
                        Ok(true)
                    }
                    Type::F16x2 => self.unary(operands, from, move |a: u32| match relu {
                        false => convert::f16_pair_to_octets::<$octet, false>(a),
                        true => convert::f16_pair_to_octets::<$octet, true>(a),
                    }),
                    _ => self.unary(operands, from, move |a: u16| match relu {
                        false => convert::octets_to_f16_pair::<$octet, false>(a),
                        true => convert::octets_to_f16_pair::<$octet, true>(a),
                    }),
                }
            };
        }
        match (to, from) {
            (Type::E4m3x2, _) | (_, Type::E4m3x2) => pairs!(E4m3),
            _ => pairs!(E5m2),
        }
    }

    /// `cvt.pack.sat`: two integers into parts of a word.
    fn pack(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        name.ignore(&["sat"]);
        let four_or_two =
            |name: &mut Name<'t>| name.take_if(|part| matches!(part, "u4" | "s4" | "u2" | "s2"));
        let small = four_or_two(name);
        let of = name.of_type(0);
        let (to, a, b, c) = match operands {
            [to, a, b] => (to, a, b, None),
            [to, a, b, c] => (to, a, b, Some(c)),
            _ => return self.operands(3),
        };
        let to = self.destination::<u32>(to)?;
        let (a, b) = (self.source::<i32>(a, Type::S32)?, self.source::<i32>(b, Type::S32)?);
        let c = match c {
            Some(c) => self.source::<u32>(c, Type::B32)?,
            None => self.preset(super::super::Preset::Bits(0), false),
        };
        let compute = match (small, of) {
            (Some("u2"), _) => ternary(to, a, b, c, |a, b, c| convert::pack::<2, false>(a, b, c)),
            (Some("s2"), _) => ternary(to, a, b, c, |a, b, c| convert::pack::<2, true>(a, b, c)),
            (Some("u4"), _) => ternary(to, a, b, c, |a, b, c| convert::pack::<4, false>(a, b, c)),
            (Some(_), _) => ternary(to, a, b, c, |a, b, c| convert::pack::<4, true>(a, b, c)),
            (None, Type::U8) => ternary(to, a, b, c, |a, b, c| convert::pack::<8, false>(a, b, c)),
            (None, Type::S8) => ternary(to, a, b, c, |a, b, c| convert::pack::<8, true>(a, b, c)),
            (None, Type::U16) => {
                ternary(to, a, b, c, |a, b, c| convert::pack::<16, false>(a, b, c))
            }
            (None, _) => ternary(to, a, b, c, |a, b, c| convert::pack::<16, true>(a, b, c)),
        };
        self.push(Action::Compute(compute));
        Ok(true)
    }
}

impl Modes {
    /// The rounding to an integer; `cvt` to one has it always.
    fn integer(self) -> u8 {
        if self.to_integer == KEEP { ZERO } else { self.to_integer }
    }
}

/// A format of 16 bits, with the conversion that has most modifiers.
trait Format: 'static {
    type Half: Half + 'static;

    /// `cvt` from `f32` with all modifiers.
    #[inline(always)]
    fn from_f32<const R: u8>(a: f32, ftz: bool, sat: bool, relu: bool, satfinite: bool) -> u16 {
        macro_rules! by {
            ($ftz:literal, $sat:literal, $relu:literal, $finite:literal) => {
                convert::f32_to_half::<Self::Half, R, $ftz, $sat, $relu, $finite>(a)
            };
        }
        match (ftz, sat, relu, satfinite) {
            (false, false, false, false) => by!(false, false, false, false),
            (false, false, false, true) => by!(false, false, false, true),
            (false, false, true, false) => by!(false, false, true, false),
            (false, false, true, true) => by!(false, false, true, true),
            (false, true, ..) => by!(false, true, false, false),
            (true, false, ..) => by!(true, false, false, false),
            (true, true, ..) => by!(true, true, false, false),
        }
    }
}

struct F16Format;
struct Bf16Format;

impl Format for F16Format {
    type Half = F16;
}

impl Format for Bf16Format {
    type Half = Bf16;
}
