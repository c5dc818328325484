//! Integer arithmetic, logic, shifts, and what moves and selects bits of any type.

use super::super::registers::{
    Compute, Condition, Element, LANES, Outcome, binary, choose, compare, quaternary, store,
    store_mask, ternary, unary,
};
use super::super::{Action, Slot};
use super::Lowering;
use super::name::Name;
use crate::number::integer::{self as number, Integer, permute};
use crate::ptx::Result;
use crate::ptx::tree::Operand;
use crate::ptx::types::Type;

/// Runs an expression with `$t` as the integer type of an instruction.
macro_rules! with_integer {
    ($self:ident, $of:expr, $t:ident => $body:expr) => {
        match $of {
            Type::U16 | Type::B16 => {
                type $t = u16;
                $body
            }
            Type::S16 => {
                type $t = i16;
                $body
            }
            Type::U32 | Type::B32 => {
                type $t = u32;
                $body
            }
            Type::S32 => {
                type $t = i32;
                $body
            }
            Type::U64 | Type::B64 => {
                type $t = u64;
                $body
            }
            Type::S64 => {
                type $t = i64;
                $body
            }
            other => return $self.error(format!("{other:?} is no integer type")),
        }
    };
}

/// Runs an expression with `$t` as an unsigned type of the same size.
macro_rules! with_bits {
    ($self:ident, $of:expr, $t:ident => $body:expr) => {
        match $of.bytes() {
            1 => {
                type $t = u8;
                $body
            }
            2 => {
                type $t = u16;
                $body
            }
            4 => {
                type $t = u32;
                $body
            }
            8 => {
                type $t = u64;
                $body
            }
            _ => return $self.error(format!("{:?} is not supported here", $of)),
        }
    };
}

impl<'t> Lowering<'_, 't> {
    pub(super) fn unary<D: Element, A: Element>(
        &mut self,
        operands: &[Operand<'t>],
        of: Type,
        f: impl Fn(A) -> D + Copy + Send + Sync + 'static,
    ) -> Result<bool> {
        let [to, a] = operands else { return self.operands(2) };
        let (to, a) = (self.destination::<D>(to)?, self.source::<A>(a, of)?);
        self.push(Action::Compute(unary(to, a, f)));
        Ok(true)
    }

    pub(super) fn binary<D: Element, A: Element, B: Element>(
        &mut self,
        operands: &[Operand<'t>],
        (of_a, of_b): (Type, Type),
        f: impl Fn(A, B) -> D + Copy + Send + Sync + 'static,
    ) -> Result<bool> {
        let [to, a, b] = operands else { return self.operands(3) };
        let to = self.destination::<D>(to)?;
        let (a, b) = (self.source::<A>(a, of_a)?, self.source::<B>(b, of_b)?);
        self.push(Action::Compute(binary(to, a, b, f)));
        Ok(true)
    }

    pub(super) fn ternary<D: Element, A: Element, B: Element, C: Element>(
        &mut self,
        operands: &[Operand<'t>],
        (of_a, of_b, of_c): (Type, Type, Type),
        f: impl Fn(A, B, C) -> D + Copy + Send + Sync + 'static,
    ) -> Result<bool> {
        let [to, a, b, c] = operands else { return self.operands(4) };
        let to = self.destination::<D>(to)?;
        let (a, b) = (self.source::<A>(a, of_a)?, self.source::<B>(b, of_b)?);
        let c = self.source::<C>(c, of_c)?;
        self.push(Action::Compute(ternary(to, a, b, c, f)));
        Ok(true)
    }

    pub(super) fn quaternary<R: Element, A: Element, B: Element, C: Element, D: Element>(
        &mut self,
        operands: &[Operand<'t>],
        of: [Type; 4],
        f: impl Fn(A, B, C, D) -> R + Copy + Send + Sync + 'static,
    ) -> Result<bool> {
        let [to, a, b, c, d] = operands else { return self.operands(5) };
        let to = self.destination::<R>(to)?;
        let (a, b) = (self.source::<A>(a, of[0])?, self.source::<B>(b, of[1])?);
        let (c, d) = (self.source::<C>(c, of[2])?, self.source::<D>(d, of[3])?);
        self.push(Action::Compute(quaternary(to, a, b, c, d, f)));
        Ok(true)
    }

    pub(super) fn operands<T>(&self, expected: usize) -> Result<T> {
        self.error(format!("{expected} operands are expected"))
    }

    /// Instructions of integers and bits.
    pub(super) fn integer(
        &mut self,
        name: &mut Name<'t>,
        operands: &[Operand<'t>],
    ) -> Result<bool> {
        let of = name.of_type(0);
        let two = (of, of);
        let three = (of, of, of);
        if of == Type::Pred && self.predicate(name, operands)? {
            return Ok(true);
        }
        let base = name.base;
        match base {
            "add" | "sub" if name.takes("cc") => self.chain(name, operands, of, false),
            "addc" | "subc" => self.chain(name, operands, of, true),
            "mad" if name.takes("cc") => self.chain(name, operands, of, false),
            "madc" => self.chain(name, operands, of, true),
            "add" | "sub" if name.takes("sat") => match name.base {
                "add" => self.binary(operands, two, |a, b| i32::saturating_add(a, b)),
                _ => self.binary(operands, two, |a, b| i32::saturating_sub(a, b)),
            },
            "add" if matches!(of, Type::U16x2 | Type::S16x2) => {
                self.binary(operands, two, |a, b| number::add_x2(a, b))
            }
            "add" => {
                with_integer!(self, of, T => {
                    self.binary(operands, two, |a, b| T::wrapping_add(a, b))
                })
            }
            "sub" => {
                with_integer!(self, of, T => {
                    self.binary(operands, two, |a, b| T::wrapping_sub(a, b))
                })
            }
            "mul" => self.multiply(name, operands, of),
            "mad" => self.multiply_add(name, operands, of),
            "mul24" => {
                let is_high = name.takes("hi");
                name.ignore(&["lo"]);
                match (of, is_high) {
                    (Type::S32, false) => {
                        self.binary(operands, two, |a, b| number::mul24_lo_s32(a, b))
                    }
                    (Type::S32, true) => {
                        self.binary(operands, two, |a, b| number::mul24_hi_s32(a, b))
                    }
                    (_, false) => self.binary(operands, two, |a, b| number::mul24_lo_u32(a, b)),
                    (_, true) => self.binary(operands, two, |a, b| number::mul24_hi_u32(a, b)),
                }
            }
            "mad24" => {
                let (is_high, saturates) = (name.takes("hi"), name.takes("sat"));
                name.ignore(&["lo"]);
                match (of, is_high) {
                    (Type::S32, true) if saturates => {
                        self.ternary(operands, three, |a, b, c| number::mad24_hi_sat_s32(a, b, c))
                    }
                    (Type::S32, false) => self.ternary(operands, three, |a, b, c: i32| {
                        number::mul24_lo_s32(a, b).wrapping_add(c)
                    }),
                    (Type::S32, true) => self.ternary(operands, three, |a, b, c: i32| {
                        number::mul24_hi_s32(a, b).wrapping_add(c)
                    }),
                    (_, false) => self.ternary(operands, three, |a, b, c: u32| {
                        number::mul24_lo_u32(a, b).wrapping_add(c)
                    }),
                    (_, true) => self.ternary(operands, three, |a, b, c: u32| {
                        number::mul24_hi_u32(a, b).wrapping_add(c)
                    }),
                }
            }
            "sad" => {
                with_integer!(self, of, T => {
                    self.ternary(operands, three, |a, b, c| <T as Integer>::sad(a, b, c))
                })
            }
            "div" => {
                with_integer!(self, of, T => {
                    self.binary(operands, two, |a, b| <T as Integer>::div(a, b))
                })
            }
            "rem" => {
                with_integer!(self, of, T => {
                    self.binary(operands, two, |a, b| <T as Integer>::rem(a, b))
                })
            }
            "abs" => match of {
                Type::S16 => self.unary(operands, of, |a| i16::wrapping_abs(a)),
                Type::S64 => self.unary(operands, of, |a| i64::wrapping_abs(a)),
                _ => self.unary(operands, of, |a| i32::wrapping_abs(a)),
            },
            "neg" => match of {
                Type::S16 => self.unary(operands, of, |a| i16::wrapping_neg(a)),
                Type::S64 => self.unary(operands, of, |a| i64::wrapping_neg(a)),
                _ => self.unary(operands, of, |a| i32::wrapping_neg(a)),
            },
            "min" | "max" => self.minimum(name, operands, of),
            "and" => with_bits!(self, of, T => self.binary(operands, two, |a: T, b: T| a & b)),
            "or" => with_bits!(self, of, T => self.binary(operands, two, |a: T, b: T| a | b)),
            "xor" => with_bits!(self, of, T => self.binary(operands, two, |a: T, b: T| a ^ b)),
            "not" => with_bits!(self, of, T => self.unary(operands, of, |a: T| !a)),
            "cnot" => {
                with_integer!(self, of, T => self.unary(operands, of, |a| <T as Integer>::cnot(a)))
            }
            "shl" => with_integer!(self, of, T => {
                self.binary(operands, (of, Type::U32), |a: T, by: u32| Integer::shl(a, by))
            }),
            "shr" => with_integer!(self, of, T => {
                self.binary(operands, (of, Type::U32), |a: T, by: u32| Integer::shr(a, by))
            }),
            "mov" => self.mov(operands, of),
            "selp" => self.selp(operands, of),
            "slct" => self.slct(name, operands, of),
            "set" | "setp" => self.compare_integers(name, operands),
            _ => self.bits(name, operands, of),
        }
    }

    /// Logic of predicates.
    fn predicate(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        let combine: fn(u32, u32) -> u32 = match name.base {
            "and" => |a, b| a & b,
            "or" => |a, b| a | b,
            "xor" => |a, b| a ^ b,
            "not" => |a, _| !a,
            "mov" => |a, _| a,
            _ => return Ok(false),
        };
        let [to, a, rest @ ..] = operands else { return self.operands(2) };
        let to = self.mask(to)?;
        let a = match a {
            // mov.pred p, %is_explicit_cluster;
            Operand::Special(_) => match self.slot(a)? {
                Slot::Mask(index) => Condition { index, flip: 0 },
                _ => return self.error("an operand is no predicate"),
            },
            _ => self.condition(a)?,
        };
        let b = match rest.first() {
            Some(b) => self.condition(b)?,
            None => a,
        };
        self.push(Action::Compute(Box::new(move |registers, mask| {
            let bits = combine(a.read(registers), b.read(registers));
            store_mask(registers, mask, to, bits);
        })));
        Ok(true)
    }

    fn multiply(
        &mut self,
        name: &mut Name<'t>,
        operands: &[Operand<'t>],
        of: Type,
    ) -> Result<bool> {
        let two = (of, of);
        if name.takes("wide") {
            return match of {
                Type::U16 => {
                    self.binary(operands, two, |a: u16, b: u16| u32::from(a) * u32::from(b))
                }
                Type::S16 => {
                    self.binary(operands, two, |a: i16, b: i16| i32::from(a) * i32::from(b))
                }
                Type::U32 => {
                    self.binary(operands, two, |a: u32, b: u32| u64::from(a) * u64::from(b))
                }
                _ => self.binary(operands, two, |a: i32, b: i32| i64::from(a) * i64::from(b)),
            };
        }
        if name.takes("hi") {
            return with_integer!(self, of, T => {
                self.binary(operands, two, |a, b| <T as Integer>::mul_hi(a, b))
            });
        }
        name.ignore(&["lo"]);
        with_integer!(self, of, T => {
            self.binary(operands, two, |a, b| T::wrapping_mul(a, b))
        })
    }

    fn multiply_add(
        &mut self,
        name: &mut Name<'t>,
        operands: &[Operand<'t>],
        of: Type,
    ) -> Result<bool> {
        let three = (of, of, of);
        if name.takes("wide") {
            return match of {
                Type::U16 => {
                    self.ternary(operands, (of, of, Type::U32), |a: u16, b: u16, c: u32| {
                        (u32::from(a) * u32::from(b)).wrapping_add(c)
                    })
                }
                Type::S16 => {
                    self.ternary(operands, (of, of, Type::S32), |a: i16, b: i16, c: i32| {
                        (i32::from(a) * i32::from(b)).wrapping_add(c)
                    })
                }
                Type::U32 => {
                    self.ternary(operands, (of, of, Type::U64), |a: u32, b: u32, c: u64| {
                        (u64::from(a) * u64::from(b)).wrapping_add(c)
                    })
                }
                _ => self.ternary(operands, (of, of, Type::S64), |a: i32, b: i32, c: i64| {
                    (i64::from(a) * i64::from(b)).wrapping_add(c)
                }),
            };
        }
        if name.takes("hi") {
            if name.takes("sat") {
                return self.ternary(operands, three, |a, b, c| number::mad_hi_sat_s32(a, b, c));
            }
            return with_integer!(self, of, T => {
                self.ternary(operands, three, |a: T, b: T, c: T| {
                    Integer::mul_hi(a, b).wrapping_add(c)
                })
            });
        }
        name.ignore(&["lo"]);
        with_integer!(self, of, T => {
            self.ternary(operands, three, |a: T, b: T, c: T| a.wrapping_mul(b).wrapping_add(c))
        })
    }

    fn minimum(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>], of: Type) -> Result<bool> {
        let two = (of, of);
        let relu = name.takes("relu");
        match (name.base, of, relu) {
            ("min", Type::U16x2, _) => self.binary(operands, two, |a, b| number::min_u16x2(a, b)),
            (_, Type::U16x2, _) => self.binary(operands, two, |a, b| number::max_u16x2(a, b)),
            ("min", Type::S16x2, false) => {
                self.binary(operands, two, |a, b| number::min_s16x2::<false>(a, b))
            }
            ("min", Type::S16x2, true) => {
                self.binary(operands, two, |a, b| number::min_s16x2::<true>(a, b))
            }
            (_, Type::S16x2, false) => {
                self.binary(operands, two, |a, b| number::max_s16x2::<false>(a, b))
            }
            (_, Type::S16x2, true) => {
                self.binary(operands, two, |a, b| number::max_s16x2::<true>(a, b))
            }
            ("min", _, true) => self.binary(operands, two, |a, b| number::min_relu_s32(a, b)),
            (_, _, true) => self.binary(operands, two, |a, b| number::max_relu_s32(a, b)),
            ("min", ..) => {
                with_integer!(self, of, T => {
                    self.binary(operands, two, |a: T, b: T| a.min(b))
                })
            }
            _ => with_integer!(self, of, T => self.binary(operands, two, |a: T, b: T| a.max(b))),
        }
    }

    /// Sums with carries: `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc`.
    fn chain(
        &mut self,
        name: &mut Name<'t>,
        operands: &[Operand<'t>],
        of: Type,
        takes_carry: bool,
    ) -> Result<bool> {
        let gives = name.takes("cc") || !takes_carry;
        let is_high = name.takes("hi");
        name.ignore(&["lo"]);
        let carry = match self.carry {
            Some(carry) => carry,
            None => {
                let carry = self.preset_mask(0);
                self.carry = Some(carry);
                carry
            }
        };
        // `sub.cc` subtracts as `subc` does with a carry.
        let input = match (takes_carry, name.base) {
            (true, _) => None,
            (false, base) => Some(if base == "sub" { u32::MAX } else { 0 }),
        };
        let flags = (carry, input, gives);
        let is_signed = of.is_signed();
        let base = name.base.trim_end_matches('c');
        let (to, a, b, c) = match (base, operands) {
            ("mad", [to, a, b, c]) => (to, a, b, c),
            ("add" | "sub", [to, a, b]) => (to, a, b, b),
            _ => return self.operands(3 + usize::from(base == "mad")),
        };
        let compute = if of.bytes() == 8 {
            let to = self.destination::<u64>(to)?;
            let (a, b) = (self.source::<u64>(a, of)?, self.source::<u64>(b, of)?);
            let rows = [to, a, b, self.source::<u64>(c, of)?];
            match (base, is_high, is_signed) {
                ("add", ..) => carried(rows, flags, |a, b, _, c| number::add_carry_64(a, b, c)),
                ("sub", ..) => carried(rows, flags, |a, b, _, c| number::sub_carry_64(a, b, c)),
                (_, false, _) => {
                    carried(rows, flags, |a, b, c, carry| number::mad_lo_carry_64(a, b, c, carry))
                }
                (_, true, false) => carried(rows, flags, |a, b, c, carry| {
                    number::mad_hi_carry_64::<false>(a, b, c, carry)
                }),
                (_, true, true) => carried(rows, flags, |a, b, c, carry| {
                    number::mad_hi_carry_64::<true>(a, b, c, carry)
                }),
            }
        } else {
            let to = self.destination::<u32>(to)?;
            let (a, b) = (self.source::<u32>(a, of)?, self.source::<u32>(b, of)?);
            let rows = [to, a, b, self.source::<u32>(c, of)?];
            match (base, is_high, is_signed) {
                ("add", ..) => carried(rows, flags, |a, b, _, c| number::add_carry_32(a, b, c)),
                ("sub", ..) => carried(rows, flags, |a, b, _, c| number::sub_carry_32(a, b, c)),
                (_, false, _) => {
                    carried(rows, flags, |a, b, c, carry| number::mad_lo_carry_32(a, b, c, carry))
                }
                (_, true, false) => carried(rows, flags, |a, b, c, carry| {
                    number::mad_hi_carry_32::<false>(a, b, c, carry)
                }),
                (_, true, true) => carried(rows, flags, |a, b, c, carry| {
                    number::mad_hi_carry_32::<true>(a, b, c, carry)
                }),
            }
        };
        self.push(Action::Compute(compute));
        Ok(true)
    }

    /// Instructions of bit fields and bytes.
    fn bits(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>], of: Type) -> Result<bool> {
        let two = (of, of);
        let three = (of, of, of);
        let field = (of, Type::U32, Type::U32);
        match name.base {
            "popc" => match of.bytes() {
                8 => self.unary(operands, of, |a| u64::count_ones(a)),
                _ => self.unary(operands, of, |a| u32::count_ones(a)),
            },
            "clz" => match of.bytes() {
                8 => self.unary(operands, of, |a| u64::leading_zeros(a)),
                _ => self.unary(operands, of, |a| u32::leading_zeros(a)),
            },
            "brev" => match of.bytes() {
                8 => self.unary(operands, of, |a| u64::reverse_bits(a)),
                _ => self.unary(operands, of, |a| u32::reverse_bits(a)),
            },
            "bfind" => match (of, name.takes("shiftamt")) {
                (Type::S32, false) => self.unary(operands, of, |a| number::bfind_s32::<false>(a)),
                (Type::S32, true) => self.unary(operands, of, |a| number::bfind_s32::<true>(a)),
                (Type::U64, false) => self.unary(operands, of, |a| number::bfind_u64::<false>(a)),
                (Type::U64, true) => self.unary(operands, of, |a| number::bfind_u64::<true>(a)),
                (Type::S64, false) => self.unary(operands, of, |a| number::bfind_s64::<false>(a)),
                (Type::S64, true) => self.unary(operands, of, |a| number::bfind_s64::<true>(a)),
                (_, false) => self.unary(operands, of, |a| number::bfind_u32::<false>(a)),
                (_, true) => self.unary(operands, of, |a| number::bfind_u32::<true>(a)),
            },
            "fns" => self.ternary(operands, (Type::B32, Type::B32, Type::S32), |a, b, c| {
                number::fns(a, b, c)
            }),
            "bfe" => match of {
                Type::S32 => self.ternary(operands, field, |a, b, c| number::bfe_s32(a, b, c)),
                Type::U64 => self.ternary(operands, field, |a, b, c| number::bfe_u64(a, b, c)),
                Type::S64 => self.ternary(operands, field, |a, b, c| number::bfe_s64(a, b, c)),
                _ => self.ternary(operands, field, |a, b, c| number::bfe_u32(a, b, c)),
            },
            "bfi" => {
                let of = [of, of, Type::U32, Type::U32];
                match of[0].bytes() {
                    8 => self.quaternary(operands, of, |a, b, c, d| number::bfi_b64(a, b, c, d)),
                    _ => self.quaternary(operands, of, |a, b, c, d| number::bfi_b32(a, b, c, d)),
                }
            }
            "szext" => {
                let wraps = name.takes("wrap");
                name.ignore(&["clamp"]);
                match (of, wraps) {
                    (Type::S32, true) => {
                        self.binary(operands, two, |a, b| number::szext::<true, true>(a, b))
                    }
                    (Type::S32, false) => {
                        self.binary(operands, two, |a, b| number::szext::<true, false>(a, b))
                    }
                    (_, true) => {
                        self.binary(operands, two, |a, b| number::szext::<false, true>(a, b))
                    }
                    (_, false) => {
                        self.binary(operands, two, |a, b| number::szext::<false, false>(a, b))
                    }
                }
            }
            "bmsk" => match name.take_of(&["wrap", "clamp"]) {
                Some("wrap") => self.binary(operands, two, |a, b| number::bmsk::<true>(a, b)),
                _ => self.binary(operands, two, |a, b| number::bmsk::<false>(a, b)),
            },
            "dp4a" => {
                let is_signed = |place| name.of_type(place) == Type::S32;
                match (is_signed(0), is_signed(1)) {
                    (false, false) => self
                        .ternary(operands, three, |a, b, c| number::dp4a::<false, false>(a, b, c)),
                    (false, true) => self
                        .ternary(operands, three, |a, b, c| number::dp4a::<false, true>(a, b, c)),
                    (true, false) => self
                        .ternary(operands, three, |a, b, c| number::dp4a::<true, false>(a, b, c)),
                    (true, true) => {
                        self.ternary(operands, three, |a, b, c| number::dp4a::<true, true>(a, b, c))
                    }
                }
            }
            "dp2a" => {
                let is_high = name.takes("hi");
                name.ignore(&["lo"]);
                let is_signed = |place| name.of_type(place) == Type::S32;
                let (a, b) = (is_signed(0), is_signed(1));
                self.ternary(operands, three, move |x, y, z| match (a, b, is_high) {
                    (false, false, false) => number::dp2a::<false, false, false>(x, y, z),
                    (false, false, true) => number::dp2a::<false, false, true>(x, y, z),
                    (false, true, false) => number::dp2a::<false, true, false>(x, y, z),
                    (false, true, true) => number::dp2a::<false, true, true>(x, y, z),
                    (true, false, false) => number::dp2a::<true, false, false>(x, y, z),
                    (true, false, true) => number::dp2a::<true, false, true>(x, y, z),
                    (true, true, false) => number::dp2a::<true, true, false>(x, y, z),
                    (true, true, true) => number::dp2a::<true, true, true>(x, y, z),
                })
            }
            "lop3" => {
                let [to, a, b, c, Operand::Integer(table), rest @ ..] = operands else {
                    return self.operands(5);
                };
                let table = *table as u8;
                let (to, is_set) = match to {
                    Operand::Pair(to, is_set) => (&**to, Some(&**is_set)),
                    to => (to, None),
                };
                let to = self.destination::<u32>(to)?;
                let (a, b) = (self.source::<u32>(a, of)?, self.source::<u32>(b, of)?);
                let c = self.source::<u32>(c, of)?;
                let f = move |a: u32, b: u32, c: u32| number::lop3(a, b, c, table);
                self.push(Action::Compute(ternary(to, a, b, c, f)));
                if let (Some(is_set), [with, ..]) = (is_set, rest) {
                    let sink = Operand::Sink;
                    let of_compare = [is_set.clone(), sink.clone(), sink, with.clone()];
                    let outcome = self.outcome(name, &of_compare)?;
                    let is_not_zero = compare::<u32, u32>(outcome, to, to, |value, _| value != 0);
                    self.push(Action::Compute(is_not_zero));
                }
                Ok(true)
            }
            "shf" => {
                let (is_left, wraps) = (name.takes("l"), name.takes("wrap"));
                name.ignore(&["r", "clamp"]);
                match (is_left, wraps) {
                    (true, true) => {
                        self.ternary(operands, three, |a, b, c| number::shf_l::<true>(a, b, c))
                    }
                    (true, false) => {
                        self.ternary(operands, three, |a, b, c| number::shf_l::<false>(a, b, c))
                    }
                    (false, true) => {
                        self.ternary(operands, three, |a, b, c| number::shf_r::<true>(a, b, c))
                    }
                    (false, false) => {
                        self.ternary(operands, three, |a, b, c| number::shf_r::<false>(a, b, c))
                    }
                }
            }
            "prmt" => match name.take_of(&["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"]) {
                None => self.ternary(operands, three, |a, b, c| {
                    number::prmt::<{ permute::DEFAULT }>(a, b, c)
                }),
                Some("f4e") => self.ternary(operands, three, |a, b, c| {
                    number::prmt::<{ permute::FORWARD }>(a, b, c)
                }),
                Some("b4e") => self.ternary(operands, three, |a, b, c| {
                    number::prmt::<{ permute::BACKWARD }>(a, b, c)
                }),
                Some("rc8") => self.ternary(operands, three, |a, b, c| {
                    number::prmt::<{ permute::REPLICATE_8 }>(a, b, c)
                }),
                Some("ecl") => self.ternary(operands, three, |a, b, c| {
                    number::prmt::<{ permute::CLAMP_LEFT }>(a, b, c)
                }),
                Some("ecr") => self.ternary(operands, three, |a, b, c| {
                    number::prmt::<{ permute::CLAMP_RIGHT }>(a, b, c)
                }),
                Some(_) => self.ternary(operands, three, |a, b, c| {
                    number::prmt::<{ permute::REPLICATE_16 }>(a, b, c)
                }),
            },
            _ => Ok(false),
        }
    }

    /// `mov`: registers, addresses, and vectors packed into a word or unpacked from one.
    fn mov(&mut self, operands: &[Operand<'t>], of: Type) -> Result<bool> {
        let [to, from] = operands else { return self.operands(2) };
        if of == Type::B128 {
            return self.mov_pair(to, from);
        }
        match (to, from) {
            (Operand::Vector(parts), _) => {
                let bits = match of.bytes().checked_div(parts.len()) {
                    Some(bytes @ (1 | 2 | 4)) if bytes * parts.len() == of.bytes() => bytes * 8,
                    _ => return self.error("a vector does not fit the type of mov"),
                };
                let word = match of.bytes() {
                    8 => {
                        let row = self.source::<u64>(from, of)?;
                        Slot::Wide(row)
                    }
                    _ => Slot::Narrow(self.source::<u32>(from, of)?),
                };
                for (place, part) in parts.iter().enumerate() {
                    if *part == Operand::Sink {
                        continue;
                    }
                    let shift = (place * bits) as u32;
                    let compute = match (word, bits) {
                        (Slot::Wide(row), _) => {
                            let to = self.destination::<u32>(part)?;
                            let low = u64::MAX >> (64 - bits);
                            unary::<u32, u64>(to, row, move |word| (word >> shift & low) as u32)
                        }
                        (Slot::Narrow(row) | Slot::Pair(row) | Slot::Mask(row), _) => {
                            let to = self.destination::<u32>(part)?;
                            let low = u32::MAX >> (32 - bits);
                            unary::<u32, u32>(to, row, move |word| word >> shift & low)
                        }
                    };
                    self.push(Action::Compute(compute));
                }
                Ok(true)
            }
            (_, Operand::Vector(parts)) => {
                let bits = of.bytes() * 8 / parts.len().max(1);
                let part_type = match bits {
                    8 => Type::B8,
                    16 => Type::B16,
                    _ => Type::B32,
                };
                let mut rows = Vec::new();
                for part in parts {
                    rows.push(self.source::<u32>(part, part_type)?);
                }
                let compute: Compute = match (of.bytes(), rows.as_slice()) {
                    (8, [low, high]) => {
                        let to = self.destination::<u64>(to)?;
                        binary::<u64, u32, u32>(to, *low, *high, |low, high| {
                            u64::from(low) | u64::from(high) << 32
                        })
                    }
                    (8, [a, b, c, d]) => {
                        let to = self.destination::<u64>(to)?;
                        quaternary::<u64, u16, u16, u16, u16>(to, *a, *b, *c, *d, |a, b, c, d| {
                            let (a, b, c, d) = (a.into(), b.into(), c.into(), u64::from(d));
                            let low: u64 = a;
                            let second: u64 = b;
                            let third: u64 = c;
                            low | second << 16 | third << 32 | d << 48
                        })
                    }
                    (4, [low, high]) => {
                        let to = self.destination::<u32>(to)?;
                        binary::<u32, u16, u16>(to, *low, *high, |low, high| {
                            u32::from(low) | u32::from(high) << 16
                        })
                    }
                    (4, [a, b, c, d]) => {
                        let to = self.destination::<u32>(to)?;
                        quaternary::<u32, u8, u8, u8, u8>(to, *a, *b, *c, *d, |a, b, c, d| {
                            u32::from_le_bytes([a, b, c, d])
                        })
                    }
                    (2, [low, high]) => {
                        let to = self.destination::<u32>(to)?;
                        binary::<u32, u8, u8>(to, *low, *high, |low, high| {
                            u32::from(low) | u32::from(high) << 8
                        })
                    }
                    _ => return self.error("a vector does not fit the type of mov"),
                };
                self.push(Action::Compute(compute));
                Ok(true)
            }
            _ => with_bits!(self, of, T => self.unary(operands, of, |value: T| value)),
        }
    }

    /// `mov.b128`: between registers of 128 bits, and their halves or quarters.
    fn mov_pair(&mut self, to: &Operand<'t>, from: &Operand<'t>) -> Result<bool> {
        match (to, from) {
            (Operand::Vector(parts), _) => {
                let row = self.pair(from)?;
                for (place, part) in parts.iter().enumerate().filter(|it| *it.1 != Operand::Sink) {
                    let compute = match parts.len() {
                        2 => {
                            let to = self.destination::<u64>(part)?;
                            unary::<u64, u64>(to, row + place as u32, |half| half)
                        }
                        4 => {
                            let to = self.destination::<u32>(part)?;
                            let (row, shift) = (row + place as u32 / 2, 32 * (place as u32 % 2));
                            unary::<u32, u64>(to, row, move |half| (half >> shift) as u32)
                        }
                        _ => return self.error("a vector does not fit the type of mov"),
                    };
                    self.push(Action::Compute(compute));
                }
            }
            (_, Operand::Vector(parts)) => {
                let to = self.pair(to)?;
                match parts.as_slice() {
                    [low, high] => {
                        for (place, part) in [low, high].into_iter().enumerate() {
                            let from = self.source::<u64>(part, Type::B64)?;
                            let to = to + place as u32;
                            self.push(Action::Compute(unary::<u64, u64>(to, from, |half| half)));
                        }
                    }
                    [a, b, c, d] => {
                        for (place, [low, high]) in [[a, b], [c, d]].into_iter().enumerate() {
                            let low = self.source::<u32>(low, Type::B32)?;
                            let high = self.source::<u32>(high, Type::B32)?;
                            let to = to + place as u32;
                            let compute = binary::<u64, u32, u32>(to, low, high, |low, high| {
                                u64::from(low) | u64::from(high) << 32
                            });
                            self.push(Action::Compute(compute));
                        }
                    }
                    _ => return self.error("a vector does not fit the type of mov"),
                }
            }
            _ => {
                let (to, from) = (self.pair(to)?, self.pair(from)?);
                for half in 0..2 {
                    let compute = unary::<u64, u64>(to + half, from + half, |half| half);
                    self.push(Action::Compute(compute));
                }
            }
        }
        Ok(true)
    }

    fn selp(&mut self, operands: &[Operand<'t>], of: Type) -> Result<bool> {
        let [to, a, b, condition] = operands else { return self.operands(4) };
        let condition = self.condition(condition)?;
        let compute = with_bits!(self, of, T => {
            let to = self.destination::<T>(to)?;
            let (a, b) = (self.source::<T>(a, of)?, self.source::<T>(b, of)?);
            choose::<T, T, T>(to, condition, a, b, |which, a, b| if which { a } else { b })
        });
        self.push(Action::Compute(compute));
        Ok(true)
    }

    fn slct(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>], of: Type) -> Result<bool> {
        let by = name.of_type(1);
        let flushes = name.takes("ftz");
        with_bits!(self, of, T => match by {
            Type::F32 => self.ternary(operands, (of, of, by), move |a: T, b: T, c: f32| {
                let c = if flushes { crate::number::float::flush(c) } else { c };
                if c >= 0.0 { a } else { b }
            }),
            _ => self.ternary(operands, (of, of, by), |a: T, b: T, c: i32| {
                if c >= 0 { a } else { b }
            }),
        })
    }

    /// The parts of `setp p|q, a, b, c`.
    pub(super) fn outcome(
        &mut self,
        name: &mut Name<'t>,
        operands: &[Operand<'t>],
    ) -> Result<Outcome> {
        let combine = match name.take_of(&["and", "or", "xor"]) {
            None => 0,
            Some("and") => 1,
            Some("or") => 2,
            Some(_) => 3,
        };
        let (to, opposite) = match operands.first() {
            Some(Operand::Pair(to, opposite)) => (self.mask(to)?, Some(self.mask(opposite)?)),
            Some(to) => (self.mask(to)?, None),
            None => return self.operands(3),
        };
        let with = match (combine, operands.get(3)) {
            (0, _) => Condition { index: to, flip: 0 },
            (_, Some(other)) => self.condition(other)?,
            (_, None) => return self.operands(4),
        };
        Ok(Outcome { to, opposite, combine, with })
    }

    fn compare_integers(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        let list = ["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"];
        let Some(which) = name.take_of(&list) else {
            return self.error("the comparison is unknown");
        };
        let of = name.of_type(usize::from(name.base == "set"));
        // lo, ls, hi and hs compare as unsigned numbers.
        let of = match (which, of.bytes()) {
            ("lo" | "ls" | "hi" | "hs", 2) => Type::U16,
            ("lo" | "ls" | "hi" | "hs", 4) => Type::U32,
            ("lo" | "ls" | "hi" | "hs", _) => Type::U64,
            _ => of,
        };
        with_integer!(self, of, T => match which {
            "eq" => self.compare(name, operands, of, |a: T, b: T| a == b),
            "ne" => self.compare(name, operands, of, |a: T, b: T| a != b),
            "lt" | "lo" => self.compare(name, operands, of, |a: T, b: T| a < b),
            "le" | "ls" => self.compare(name, operands, of, |a: T, b: T| a <= b),
            "gt" | "hi" => self.compare(name, operands, of, |a: T, b: T| a > b),
            _ => self.compare(name, operands, of, |a: T, b: T| a >= b),
        })
    }

    /// `setp` or `set` with a comparison.
    pub(super) fn compare<A: Element>(
        &mut self,
        name: &mut Name<'t>,
        operands: &[Operand<'t>],
        of: Type,
        f: impl Fn(A, A) -> bool + Copy + Send + Sync + 'static,
    ) -> Result<bool> {
        let [to, a, b, ..] = operands else { return self.operands(3) };
        let (a, b) = (self.source::<A>(a, of)?, self.source::<A>(b, of)?);
        if name.base == "setp" {
            let outcome = self.outcome(name, operands)?;
            self.push(Action::Compute(compare::<A, A>(outcome, a, b, f)));
            return Ok(true);
        }
        let scratch = self.new_mask();
        let rest = [
            Operand::Sink,
            Operand::Sink,
            Operand::Sink,
            operands.get(3).cloned().unwrap_or(Operand::Sink),
        ];
        let mut outcome = self.outcome(name, &rest[..])?;
        outcome.to = scratch;
        self.push(Action::Compute(compare::<A, A>(outcome, a, b, f)));
        let truth = match name.of_type(0) {
            Type::F32 => 0x3f80_0000,
            Type::F16 => 0x3c00,
            Type::Bf16 => 0x3f80,
            Type::U16 | Type::S16 | Type::B16 => 0xffff,
            _ => u32::MAX,
        };
        let to = self.destination::<u32>(to)?;
        let condition = Condition { index: scratch, flip: 0 };
        let choice = move |which: bool, _: u32, _: u32| if which { truth } else { 0 };
        self.push(Action::Compute(choose::<u32, u32, u32>(to, condition, to, to, choice)));
        Ok(true)
    }
}

/// A sum that reads or writes the carry flag. It reads it where `input` is none.
fn carried<T: Element>(
    [to, a, b, c]: [u32; 4],
    (carry, input, gives): (u32, Option<u32>, bool),
    f: impl Fn(T, T, T, bool) -> (T, bool) + Copy + Send + Sync + 'static,
) -> Compute {
    Box::new(move |registers, mask| {
        let flags = input.unwrap_or_else(|| registers.masks[carry as usize]);
        let rows = T::rows(registers);
        let (a, b, c) = (&rows[a as usize], &rows[b as usize], &rows[c as usize]);
        let mut values = [T::Cell::default(); LANES];
        let mut out = 0;
        for lane in 0..LANES {
            let carry = flags >> lane & 1 != 0;
            let (value, carry) = f(T::of(a[lane]), T::of(b[lane]), T::of(c[lane]), carry);
            values[lane] = value.cell();
            out |= u32::from(carry) << lane;
        }
        store::<T>(registers, mask, to, &values);
        if gives {
            store_mask(registers, mask, carry, out);
        }
    })
}
