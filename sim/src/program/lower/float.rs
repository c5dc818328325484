//! Arithmetic of floating-point numbers.

use super::Lowering;
use super::name::Name;
use crate::number::approximate as approximation;
use crate::number::float::{DOWN, Float, NEAREST, UP, ZERO, comparison, property};
use crate::number::half::{self, Bf16, F16, Half};
use crate::ptx::Result;
use crate::ptx::tree::Operand;
use crate::ptx::types::Type;

/// Runs an expression with constants for the rounding, `.ftz` and `.sat`.
macro_rules! with_modes {
    ($r:expr, $ftz:expr, $sat:expr, |$R:ident, $F:ident, $S:ident| $body:expr) => {
        with_modes!(@ ($r, $ftz, $sat), $R, $F, $S, $body,
            (NEAREST, false, false), (NEAREST, true, false), (NEAREST, false, true),
            (NEAREST, true, true), (ZERO, false, false), (ZERO, true, false), (ZERO, false, true),
            (ZERO, true, true), (DOWN, false, false), (DOWN, true, false), (DOWN, false, true),
            (DOWN, true, true), (UP, false, false), (UP, true, false), (UP, false, true))
    };
    (
        @ $modes:expr, $R:ident, $F:ident, $S:ident, $body:expr,
        $(($r:path, $f:literal, $s:literal)),*
    ) => {
        match $modes {
            $(($r, $f, $s) => {
                const $R: u8 = $r;
                const $F: bool = $f;
                const $S: bool = $s;
                $body
            })*
            _ => {
                const $R: u8 = UP;
                const $F: bool = true;
                const $S: bool = true;
                $body
            }
        }
    };
}

/// Runs an expression with constants for two flags.
macro_rules! with_flags {
    ($a:expr, $b:expr, |$A:ident, $B:ident| $body:expr) => {
        match ($a, $b) {
            (false, false) => {
                const $A: bool = false;
                const $B: bool = false;
                $body
            }
            (false, true) => {
                const $A: bool = false;
                const $B: bool = true;
                $body
            }
            (true, false) => {
                const $A: bool = true;
                const $B: bool = false;
                $body
            }
            (true, true) => {
                const $A: bool = true;
                const $B: bool = true;
                $body
            }
        }
    };
}

/// The comparisons of floats by name.
const COMPARISONS: [(&str, u8); 14] = [
    ("eq", comparison::EQ),
    ("ne", comparison::NE),
    ("lt", comparison::LT),
    ("le", comparison::LE),
    ("gt", comparison::GT),
    ("ge", comparison::GE),
    ("equ", comparison::EQU),
    ("neu", comparison::NEU),
    ("ltu", comparison::LTU),
    ("leu", comparison::LEU),
    ("gtu", comparison::GTU),
    ("geu", comparison::GEU),
    ("num", comparison::NUM),
    ("nan", comparison::NAN),
];

/// Runs an expression with a constant for the comparison.
macro_rules! with_comparison {
    ($which:expr, |$C:ident| $body:expr) => {
        with_comparison!(@ $which, $C, $body, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
    };
    (@ $which:expr, $C:ident, $body:expr, $($number:literal),*) => {
        match $which {
            $($number => {
                const $C: u8 = $number;
                $body
            })*
            _ => {
                const $C: u8 = 13;
                $body
            }
        }
    };
}

impl<'t> Lowering<'_, 't> {
    /// Instructions of floating-point numbers.
    pub(super) fn float(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        match name.base {
            "setp" => return self.compare_floats(name, operands, name.of_type(0)),
            "set" => return self.compare_floats(name, operands, name.of_type(1)),
            "testp" => return self.testp(name, operands),
            _ => {}
        }
        let of = name.of_type(0);
        if name.types.len() == 2 && matches!(name.base, "add" | "sub" | "fma") && of == Type::F32 {
            return self.mixed(name, operands, name.of_type(1));
        }
        match of {
            Type::F32 => self.single(name, operands),
            Type::F64 => self.double(name, operands),
            Type::F16 | Type::F16x2 => self.halves::<F16>(name, operands, of == Type::F16x2),
            Type::Bf16 | Type::Bf16x2 => self.halves::<Bf16>(name, operands, of == Type::Bf16x2),
            _ => Ok(false),
        }
    }

    fn rounding(&mut self, name: &mut Name<'t>) -> u8 {
        match name.take_of(&["rn", "rz", "rm", "rp"]) {
            Some("rz") => ZERO,
            Some("rm") => DOWN,
            Some("rp") => UP,
            _ => NEAREST,
        }
    }

    fn single(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        if name.takes("approx") || name.takes("full") {
            return self.approximate(name, operands);
        }
        let of = Type::F32;
        let (two, three) = ((of, of), (of, of, of));
        let rounding = self.rounding(name);
        let (ftz, sat) = (name.takes("ftz"), name.takes("sat"));
        match name.base {
            "add" => with_modes!(rounding, ftz, sat, |R, F, S| {
                self.binary(operands, two, |a: f32, b: f32| Float::add::<R, F, S>(a, b))
            }),
            "sub" => with_modes!(rounding, ftz, sat, |R, F, S| {
                self.binary(operands, two, |a: f32, b: f32| Float::sub::<R, F, S>(a, b))
            }),
            "mul" => with_modes!(rounding, ftz, sat, |R, F, S| {
                self.binary(operands, two, |a: f32, b: f32| Float::mul::<R, F, S>(a, b))
            }),
            "fma" | "mad" => with_modes!(rounding, ftz, sat, |R, F, S| {
                self.ternary(operands, three, |a: f32, b: f32, c: f32| {
                    Float::fma::<R, F, S>(a, b, c)
                })
            }),
            "div" => with_modes!(rounding, ftz, false, |R, F, _S| {
                self.binary(operands, two, |a: f32, b: f32| Float::div::<R, F>(a, b))
            }),
            "rcp" => with_modes!(rounding, ftz, false, |R, F, _S| {
                self.unary(operands, of, |a: f32| Float::rcp::<R, F>(a))
            }),
            "sqrt" => with_modes!(rounding, ftz, false, |R, F, _S| {
                self.unary(operands, of, |a: f32| Float::sqrt::<R, F>(a))
            }),
            "abs" if ftz => self.unary(operands, of, |a: f32| Float::abs::<true>(a)),
            "abs" => self.unary(operands, of, |a: f32| Float::abs::<false>(a)),
            "neg" if ftz => self.unary(operands, of, |a: f32| Float::neg::<true>(a)),
            "neg" => self.unary(operands, of, |a: f32| Float::neg::<false>(a)),
            "copysign" => self.binary(operands, two, |a: f32, b: f32| Float::copysign(a, b)),
            "min" | "max" => self.minimum_of_floats(name, operands, ftz),
            _ => Ok(false),
        }
    }

    fn minimum_of_floats(
        &mut self,
        name: &mut Name<'t>,
        operands: &[Operand<'t>],
        ftz: bool,
    ) -> Result<bool> {
        let of = Type::F32;
        let (nan, xorsign, abs) = (name.takes("NaN"), name.takes("xorsign"), name.takes("abs"));
        let is_min = name.base == "min";
        if operands.len() == 4 {
            let three = (of, of, of);
            return with_flags!(ftz, nan, |F, N| match (is_min, abs) {
                (true, true) => {
                    self.ternary(operands, three, |a: f32, b, c| Float::min3::<F, N, true>(a, b, c))
                }
                (true, false) => {
                    self.ternary(operands, three, |a: f32, b, c| {
                        Float::min3::<F, N, false>(a, b, c)
                    })
                }
                (false, true) => {
                    self.ternary(operands, three, |a: f32, b, c| Float::max3::<F, N, true>(a, b, c))
                }
                (false, false) => {
                    self.ternary(operands, three, |a: f32, b, c| {
                        Float::max3::<F, N, false>(a, b, c)
                    })
                }
            });
        }
        let two = (of, of);
        with_flags!(ftz, nan, |F, N| match (is_min, xorsign) {
            (true, true) => self.binary(operands, two, |a: f32, b| Float::min::<F, N, true>(a, b)),
            (true, false) =>
                self.binary(operands, two, |a: f32, b| Float::min::<F, N, false>(a, b)),
            (false, true) => self.binary(operands, two, |a: f32, b| Float::max::<F, N, true>(a, b)),
            (false, false) =>
                self.binary(operands, two, |a: f32, b| Float::max::<F, N, false>(a, b)),
        })
    }

    fn double(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        let of = Type::F64;
        let (two, three) = ((of, of), (of, of, of));
        if name.takes("approx") {
            return match (name.base, name.takes("ftz")) {
                ("rcp", true) => self.unary(operands, of, |a| approximation::rcp_f64(a)),
                ("rsqrt", true) => self.unary(operands, of, |a| approximation::rsqrt_f64(a)),
                ("rsqrt", false) => self.unary(operands, of, |a| approximation::rsqrt_f64_full(a)),
                _ => Ok(false),
            };
        }
        let rounding = self.rounding(name);
        macro_rules! rounded {
            (|$R:ident| $body:expr) => {
                with_modes!(rounding, false, false, |$R, _F, _S| $body)
            };
        }
        match name.base {
            "add" => rounded!(|R| {
                self.binary(operands, two, |a: f64, b: f64| Float::add::<R, false, false>(a, b))
            }),
            "sub" => rounded!(|R| {
                self.binary(operands, two, |a: f64, b: f64| Float::sub::<R, false, false>(a, b))
            }),
            "mul" => rounded!(|R| {
                self.binary(operands, two, |a: f64, b: f64| Float::mul::<R, false, false>(a, b))
            }),
            "fma" | "mad" => rounded!(|R| {
                self.ternary(operands, three, |a: f64, b: f64, c: f64| {
                    Float::fma::<R, false, false>(a, b, c)
                })
            }),
            "div" => rounded!(|R| {
                self.binary(operands, two, |a: f64, b: f64| Float::div::<R, false>(a, b))
            }),
            "rcp" => rounded!(|R| self.unary(operands, of, |a: f64| Float::rcp::<R, false>(a))),
            "sqrt" => rounded!(|R| self.unary(operands, of, |a: f64| Float::sqrt::<R, false>(a))),
            "abs" => self.unary(operands, of, |a: f64| Float::abs::<false>(a)),
            "neg" => self.unary(operands, of, |a: f64| Float::neg::<false>(a)),
            "copysign" => self.binary(operands, two, |a: f64, b: f64| Float::copysign(a, b)),
            "min" => {
                self.binary(operands, two, |a: f64, b: f64| Float::min::<false, false, false>(a, b))
            }
            "max" => {
                self.binary(operands, two, |a: f64, b: f64| Float::max::<false, false, false>(a, b))
            }
            _ => Ok(false),
        }
    }

    /// Approximations of `f32`.
    fn approximate(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        let of = Type::F32;
        let (ftz, is_full) = (name.takes("ftz"), name.takes("full"));
        macro_rules! flushed {
            ($function:ident) => {
                match ftz {
                    true => self.unary(operands, of, |a| approximation::$function::<true>(a)),
                    false => self.unary(operands, of, |a| approximation::$function::<false>(a)),
                }
            };
        }
        match name.base {
            "ex2" => flushed!(ex2),
            "lg2" => flushed!(lg2),
            "sin" => flushed!(sin),
            "cos" => flushed!(cos),
            "rcp" => flushed!(rcp),
            "sqrt" => flushed!(sqrt),
            "rsqrt" => flushed!(rsqrt),
            "tanh" => self.unary(operands, of, |a| approximation::tanh(a)),
            "div" => {
                match (ftz, is_full) {
                    (true, true) => self
                        .binary(operands, (of, of), |a, b| approximation::div_full::<true>(a, b)),
                    (false, true) => self
                        .binary(operands, (of, of), |a, b| approximation::div_full::<false>(a, b)),
                    (true, false) => self
                        .binary(operands, (of, of), |a, b| approximation::div_approx::<true>(a, b)),
                    (false, false) => self.binary(operands, (of, of), |a, b| {
                        approximation::div_approx::<false>(a, b)
                    }),
                }
            }
            _ => Ok(false),
        }
    }

    /// Sums of `f32` with operands of 16 bits.
    fn mixed(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>], from: Type) -> Result<bool> {
        let rounding = self.rounding(name);
        let sat = name.takes("sat");
        let is_bf16 = from == Type::Bf16;
        let of = Type::F32;
        let widen = move |value: u16| match is_bf16 {
            true => Bf16::widen(value),
            false => F16::widen(value),
        };
        with_modes!(rounding, false, sat, |R, F, S| match name.base {
            "add" => self.binary(operands, (from, of), move |a: u16, b: f32| {
                Float::add::<R, F, S>(widen(a), b)
            }),
            "sub" => self.binary(operands, (from, of), move |a: u16, b: f32| {
                Float::sub::<R, F, S>(widen(a), b)
            }),
            _ => self.ternary(operands, (from, from, of), move |a: u16, b: u16, c: f32| {
                Float::fma::<R, F, S>(widen(a), widen(b), c)
            }),
        })
    }

    /// Arithmetic of 16 bits, or of pairs of them.
    fn halves<H: half::Half + 'static>(
        &mut self,
        name: &mut Name<'t>,
        operands: &[Operand<'t>],
        is_pair: bool,
    ) -> Result<bool> {
        name.ignore(&["rn", "approx"]);
        let (ftz, sat, relu) = (name.takes("ftz"), name.takes("sat"), name.takes("relu"));
        let is_oob = name.base == "fma" && name.takes("oob");
        let of = if is_pair { Type::B32 } else { Type::F16 };
        macro_rules! one {
            ($half:ident, $pair:ident, $($flag:expr),*) => {
                match is_pair {
                    false => self.unary(operands, of, |a: u16| half::$half::<H, $($flag),*>(a)),
                    true => self.unary(operands, of, |a: u32| half::$pair::<H, $($flag),*>(a)),
                }
            };
        }
        macro_rules! two {
            ($half:ident, $pair:ident, $($flag:expr),*) => {
                match is_pair {
                    false => self.binary(operands, (of, of), |a: u16, b: u16| {
                        half::$half::<H, $($flag),*>(a, b)
                    }),
                    true => self.binary(operands, (of, of), |a: u32, b: u32| {
                        half::$pair::<H, $($flag),*>(a, b)
                    }),
                }
            };
        }
        macro_rules! three {
            ($half:ident, $pair:ident, $($flag:expr),*) => {
                match is_pair {
                    false => self.ternary(operands, (of, of, of), |a: u16, b: u16, c: u16| {
                        half::$half::<H, $($flag),*>(a, b, c)
                    }),
                    true => self.ternary(operands, (of, of, of), |a: u32, b: u32, c: u32| {
                        half::$pair::<H, $($flag),*>(a, b, c)
                    }),
                }
            };
        }
        match name.base {
            "add" => with_flags!(ftz, sat, |F, S| two!(add, add_x2, F, S)),
            "sub" => with_flags!(ftz, sat, |F, S| two!(sub, sub_x2, F, S)),
            "mul" => with_flags!(ftz, sat, |F, S| two!(mul, mul_x2, F, S)),
            "fma" if is_oob => match relu {
                false => three!(fma_oob, fma_oob_x2, false),
                true => three!(fma_oob, fma_oob_x2, true),
            },
            "fma" | "mad" => with_flags!(ftz, sat, |F, S| match relu {
                false => three!(fma, fma_x2, F, S, false),
                true => three!(fma, fma_x2, F, S, true),
            }),
            "neg" if ftz => one!(neg, neg_x2, true),
            "neg" => one!(neg, neg_x2, false),
            "abs" if ftz => one!(abs, abs_x2, true),
            "abs" => one!(abs, abs_x2, false),
            "min" | "max" => {
                let (nan, xorsign) = (name.takes("NaN"), name.takes("xorsign"));
                name.ignore(&["abs"]);
                let is_min = name.base == "min";
                with_flags!(ftz, nan, |F, N| match (is_min, xorsign) {
                    (true, true) => two!(min, min_x2, F, N, true),
                    (true, false) => two!(min, min_x2, F, N, false),
                    (false, true) => two!(max, max_x2, F, N, true),
                    (false, false) => two!(max, max_x2, F, N, false),
                })
            }
            "ex2" => match (is_pair, ftz) {
                (false, false) => {
                    self.unary(operands, of, |a: u16| approximation::ex2_half::<H, false>(a))
                }
                (false, true) => {
                    self.unary(operands, of, |a: u16| approximation::ex2_half::<H, true>(a))
                }
                (true, false) => self.unary(operands, of, |a: u32| {
                    half::pair(a, |a| approximation::ex2_half::<H, false>(a))
                }),
                (true, true) => self.unary(operands, of, |a: u32| {
                    half::pair(a, |a| approximation::ex2_half::<H, true>(a))
                }),
            },
            "tanh" if is_pair => self
                .unary(operands, of, |a: u32| half::pair(a, |a| approximation::tanh_half::<H>(a))),
            "tanh" => self.unary(operands, of, |a: u16| approximation::tanh_half::<H>(a)),
            _ => Ok(false),
        }
    }

    fn compare_floats(
        &mut self,
        name: &mut Name<'t>,
        operands: &[Operand<'t>],
        of: Type,
    ) -> Result<bool> {
        if !of.is_float() && !matches!(of, Type::F16x2 | Type::Bf16x2) {
            return Ok(false);
        }
        let names = COMPARISONS.map(|(name, _)| name);
        let Some(which) = name.take_of(&names) else {
            return self.error("the comparison is unknown");
        };
        let which = COMPARISONS.iter().find(|(name, _)| *name == which).map_or(0, |(_, it)| *it);
        let ftz = name.takes("ftz");
        match of {
            Type::F32 if ftz => with_comparison!(which, |C| {
                self.compare(name, operands, of, |a: f32, b: f32| Float::compare::<C, true>(a, b))
            }),
            Type::F32 => with_comparison!(which, |C| {
                self.compare(name, operands, of, |a: f32, b: f32| Float::compare::<C, false>(a, b))
            }),
            Type::F64 => with_comparison!(which, |C| {
                self.compare(name, operands, of, |a: f64, b: f64| Float::compare::<C, false>(a, b))
            }),
            Type::F16x2 | Type::Bf16x2 => self.compare_pairs(name, operands, of, which, ftz),
            _ => {
                let test = test_half(of, which, ftz);
                self.compare(name, operands, of, test)
            }
        }
    }

    /// Comparisons of pairs, which give two predicates or a pair of results.
    fn compare_pairs(
        &mut self,
        name: &mut Name<'t>,
        operands: &[Operand<'t>],
        of: Type,
        which: u8,
        ftz: bool,
    ) -> Result<bool> {
        use super::super::Action;
        use super::super::registers::{choose, compare};
        let one = if of == Type::F16x2 { Type::F16 } else { Type::Bf16 };
        let test = test_half(one, which, ftz);
        let [_, a, b, ..] = operands else { return self.operands(3) };
        if name.base == "setp" {
            let (a, b) = (self.source::<u32>(a, of)?, self.source::<u32>(b, of)?);
            let mut low = self.outcome(name, operands)?;
            let high_to = low.opposite.take();
            self.push(Action::Compute(compare::<u16, u16>(low, a, b, test)));
            if let Some(to) = high_to {
                let high = super::super::registers::Outcome { to, ..low };
                self.push(Action::Compute(compare::<u32, u32>(high, a, b, move |a, b| {
                    test((a >> 16) as u16, (b >> 16) as u16)
                })));
            }
            return Ok(true);
        }
        let truth = match name.of_type(0) {
            Type::F16x2 => 0x3c00,
            Type::Bf16x2 => 0x3f80,
            _ => 0xffff,
        };
        let Some(combine) = name.take_of(&["and", "or", "xor"]) else {
            return self.binary(&operands[..3], (Type::B32, Type::B32), move |a: u32, b: u32| {
                half::pair2(a, b, |a, b| if test(a, b) { truth } else { 0 })
            });
        };
        let [to, a, b, with] = operands else { return self.operands(4) };
        let (to, with) = (self.destination::<u32>(to)?, self.condition(with)?);
        let (a, b) = (self.source::<u32>(a, of)?, self.source::<u32>(b, of)?);
        let combined = move |is_true: bool, with: bool| match combine {
            "and" => is_true & with,
            "or" => is_true | with,
            _ => is_true ^ with,
        };
        let f = move |with: bool, a: u32, b: u32| {
            half::pair2(a, b, |a, b| if combined(test(a, b), with) { truth } else { 0 })
        };
        self.push(Action::Compute(choose::<u32, u32, u32>(to, with, a, b, f)));
        Ok(true)
    }

    fn testp(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        use super::super::Action;
        use super::super::registers::{Condition, Outcome, compare};
        let list = ["finite", "infinite", "number", "notanumber", "normal", "subnormal"];
        let Some(which) = name.take_of(&list) else { return Ok(false) };
        let [to, a] = operands else { return self.operands(2) };
        let to = self.mask(to)?;
        let with = Condition { index: to, flip: 0 };
        let outcome = Outcome { to, opposite: None, combine: 0, with };
        macro_rules! tested {
            ($type:ty, $row:expr, $($name:literal => $property:ident),*) => {
                match which {
                    $($name => compare::<$type, $type>(outcome, $row, $row, |a, _| {
                        Float::test::<{ property::$property }>(a)
                    }),)*
                    _ => compare::<$type, $type>(outcome, $row, $row, |a, _| {
                        Float::test::<{ property::SUBNORMAL }>(a)
                    }),
                }
            };
        }
        let of = name.of_type(0);
        let compute = if of == Type::F64 {
            let row = self.source::<f64>(a, of)?;
            tested!(f64, row, "finite" => FINITE, "infinite" => INFINITE, "number" => NUMBER,
                "notanumber" => NOT_A_NUMBER, "normal" => NORMAL)
        } else {
            let row = self.source::<f32>(a, of)?;
            tested!(f32, row, "finite" => FINITE, "infinite" => INFINITE, "number" => NUMBER,
                "notanumber" => NOT_A_NUMBER, "normal" => NORMAL)
        };
        self.push(Action::Compute(compute));
        Ok(true)
    }
}

/// A comparison of two halves.
fn test_half(of: Type, which: u8, ftz: bool) -> fn(u16, u16) -> bool {
    with_comparison!(which, |C| match (of, ftz) {
        (Type::F16, false) => half::compare::<F16, C, false>,
        (Type::F16, true) => half::compare::<F16, C, true>,
        (_, false) => half::compare::<Bf16, C, false>,
        (_, true) => half::compare::<Bf16, C, true>,
    })
}
