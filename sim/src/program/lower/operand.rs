//! Operands: registers, constants and addresses as rows.

use super::super::registers::{Condition, Element, unary};
use super::super::{Action, Preset, Slot, Special, Symbol};
use super::{Local, Lowering, unknown};
use crate::ptx::Result;
use crate::ptx::tree::{Operand, Space};
use crate::ptx::types::Type;

/// The bits of a constant of a type.
pub(super) fn constant(operand: &Operand<'_>, of: Type) -> Option<u64> {
    Some(match (operand, of) {
        (Operand::Integer(value), Type::F64) => (*value as f64).to_bits(),
        (Operand::Integer(value), Type::F32) => (*value as f32).to_bits().into(),
        (Operand::Integer(value), _) => *value as u64,
        (Operand::Single(bits), Type::F64) => f64::from(f32::from_bits(*bits)).to_bits(),
        (Operand::Single(bits), _) => u64::from(*bits),
        (Operand::Double(bits), Type::F32) => u64::from((f64::from_bits(*bits) as f32).to_bits()),
        (Operand::Double(bits), _) => *bits,
        _ => return None,
    })
}

impl<'t> Lowering<'_, 't> {
    /// The row of a source operand. A register of another width is converted.
    pub(super) fn source<A: Element>(&mut self, operand: &Operand<'t>, of: Type) -> Result<u32> {
        if let Some(bits) = constant(operand, of) {
            let bits = if A::IS_WIDE { bits } else { bits & narrow_mask(of) };
            return Ok(self.preset(Preset::Bits(bits), A::IS_WIDE));
        }
        let slot = self.slot(operand)?;
        Ok(match (slot, A::IS_WIDE) {
            (Slot::Narrow(index), false) | (Slot::Wide(index), true) => index,
            (Slot::Wide(index), false) => {
                let to = self.new_narrow();
                self.push_always(unary::<u32, u64>(to, index, |value| value as u32));
                to
            }
            (Slot::Narrow(index), true) => {
                let to = self.new_wide();
                self.push_always(match of.is_signed() {
                    true => unary::<i64, i32>(to, index, i64::from),
                    false => unary::<u64, u32>(to, index, u64::from),
                });
                to
            }
            (Slot::Pair(_), _) => return self.error("a register of 128 bits is too large"),
            (Slot::Mask(_), _) => return self.error("a predicate is used as a value"),
        })
    }

    /// The first of the two rows of a register of 128 bits.
    pub(super) fn pair(&self, operand: &Operand<'t>) -> Result<u32> {
        match operand {
            Operand::Register(number) => match self.registers[*number as usize] {
                Slot::Pair(index) => Ok(index),
                _ => self.error("a register of 128 bits is expected"),
            },
            _ => self.error("a register of 128 bits is expected"),
        }
    }

    /// The row of a destination, with the width of its register or, for `_`, of the type.
    pub(super) fn destination<D: Element>(&mut self, operand: &Operand<'t>) -> Result<u32> {
        match (operand, D::IS_WIDE) {
            (Operand::Sink, true) => Ok(self.new_wide()),
            (Operand::Sink, false) => Ok(self.new_narrow()),
            (Operand::Register(number), is_wide) => {
                match (self.registers[*number as usize], is_wide) {
                    (Slot::Narrow(index), false) | (Slot::Wide(index), true) => Ok(index),
                    _ => self.error("the destination has another size than the instruction"),
                }
            }
            _ => self.error("the destination is no register"),
        }
    }

    /// The place of a destination, of any size.
    pub(super) fn any_destination(&mut self, operand: &Operand<'t>, of: Type) -> Result<Slot> {
        match operand {
            Operand::Register(number) => Ok(self.registers[*number as usize]),
            Operand::Sink if of.bytes() == 8 => Ok(Slot::Wide(self.new_wide())),
            Operand::Sink if of.bytes() == 16 => Ok(Slot::Pair(self.new_pair())),
            Operand::Sink => Ok(Slot::Narrow(self.new_narrow())),
            _ => self.error("the destination is no register"),
        }
    }

    /// Runs a computation whatever the guard says: its result is a scratch register.
    pub(super) fn push_always(&mut self, compute: super::super::registers::Compute) {
        let guard = self.guard.take();
        self.push(Action::Compute(compute));
        self.guard = guard;
    }

    /// A predicate as a source.
    pub(super) fn condition(&mut self, operand: &Operand<'t>) -> Result<Condition> {
        match operand {
            Operand::Not(inner) => {
                let Condition { index, flip } = self.condition(inner)?;
                Ok(Condition { index, flip: !flip })
            }
            Operand::Register(number) => match self.registers[*number as usize] {
                Slot::Mask(index) => Ok(Condition { index, flip: 0 }),
                _ => self.error("a register that is no predicate is used as one"),
            },
            Operand::Integer(value) => {
                let index = self.preset_mask(if *value != 0 { u32::MAX } else { 0 });
                Ok(Condition { index, flip: 0 })
            }
            _ => self.error("an operand is no predicate"),
        }
    }

    /// A predicate as a destination.
    pub(super) fn mask(&mut self, operand: &Operand<'t>) -> Result<u32> {
        match operand {
            Operand::Sink => Ok(self.new_mask()),
            Operand::Register(number) => match self.registers[*number as usize] {
                Slot::Mask(index) => Ok(index),
                _ => self.error("the destination is no predicate"),
            },
            _ => self.error("the destination is no predicate"),
        }
    }

    /// The place of a register, a special register or an address.
    pub(super) fn slot(&mut self, operand: &Operand<'t>) -> Result<Slot> {
        match operand {
            Operand::Register(number) => Ok(self.registers[*number as usize]),
            Operand::Special(name) => self.special(name),
            Operand::Local(variable, offset) => {
                let preset = match self.variables[*variable as usize] {
                    Local::Frame(start) => Preset::Frame(start as i64 + offset),
                    Local::Module(index) => self.symbol_of_variable(index, *offset),
                };
                Ok(Slot::Wide(self.preset(preset, true)))
            }
            Operand::Symbol(name, offset) => {
                let preset = self.named_address(name, *offset)?;
                Ok(Slot::Wide(self.preset(preset, true)))
            }
            _ => self.error("an operand is neither a register nor a constant"),
        }
    }

    fn symbol_of_variable(&mut self, index: u32, offset: i64) -> Preset {
        if self.module.list[index as usize].space == Space::Shared {
            self.function.shared.push(index);
        }
        Preset::Symbol(Symbol::Variable(index), offset)
    }

    /// The address of a parameter, a variable or a function.
    fn named_address(&mut self, name: &str, offset: i64) -> Result<Preset> {
        if let Some(index) = self.tree.parameters.iter().position(|it| it.name == name) {
            let start = self.function.parameters[index].offset as i64;
            return Ok(match self.tree.is_kernel {
                true => Preset::Bits((start + offset) as u64),
                false => Preset::Frame(start + offset),
            });
        }
        if self.tree.results.iter().any(|it| it.name == name) {
            let start = self.function.result.map_or(0, |result| result.offset);
            return Ok(Preset::Frame(start as i64 + offset));
        }
        match self.module.symbol(name) {
            Some(Symbol::Variable(index)) => Ok(self.symbol_of_variable(index, offset)),
            Some(Symbol::Function(index)) => {
                self.function.calls.push(index);
                Ok(Preset::Symbol(Symbol::Function(index), offset))
            }
            None => Err(unknown(self.line, name)),
        }
    }

    /// The space of a name's address; `None` for registers.
    pub(super) fn space_of(&self, operand: &Operand<'t>) -> Option<Space> {
        match operand {
            Operand::Local(variable, _) => match self.variables[*variable as usize] {
                Local::Frame(_) => Some(Space::Local),
                Local::Module(index) => Some(self.module.list[index as usize].space),
            },
            Operand::Symbol(name, _) => {
                if self.tree.parameters.iter().chain(&self.tree.results).any(|it| it.name == *name)
                {
                    return Some(if self.tree.is_kernel { Space::Param } else { Space::Local });
                }
                match self.module.symbol(name)? {
                    Symbol::Variable(index) => Some(self.module.list[index as usize].space),
                    Symbol::Function(_) => None,
                }
            }
            _ => None,
        }
    }

    fn special(&mut self, name: &str) -> Result<Slot> {
        let (base, dimension) = match name.rsplit_once('.') {
            Some((base, "x")) => (base, 0),
            Some((base, "y")) => (base, 1),
            Some((base, "z")) => (base, 2),
            Some((base, "w")) => (base, 3),
            _ => (name, 0),
        };
        let special = match base {
            "%tid" => Special::Tid(dimension),
            "%ntid" => Special::Ntid(dimension),
            "%ctaid" => Special::Ctaid(dimension),
            "%nctaid" => Special::Nctaid(dimension),
            "%laneid" => Special::LaneId,
            "%warpid" => Special::WarpId,
            "%nwarpid" => Special::NwarpId,
            "%smid" => Special::SmId,
            "%nsmid" => Special::NsmId,
            "%gridid" => Special::GridId,
            "%lanemask_eq" => Special::LanemaskEq,
            "%lanemask_le" => Special::LanemaskLe,
            "%lanemask_lt" => Special::LanemaskLt,
            "%lanemask_ge" => Special::LanemaskGe,
            "%lanemask_gt" => Special::LanemaskGt,
            "%clusterid" => Special::ClusterId(dimension),
            "%nclusterid" => Special::NclusterId(dimension),
            "%cluster_ctaid" => Special::ClusterCtaid(dimension),
            "%cluster_nctaid" => Special::ClusterNctaid(dimension),
            "%cluster_ctarank" => Special::ClusterCtarank,
            "%cluster_nctarank" => Special::ClusterNctarank,
            "%is_explicit_cluster" => {
                let index = self.new_mask();
                let preset = Preset::Special(Special::IsExplicitCluster);
                self.function.presets.push((preset, Slot::Mask(index)));
                return Ok(Slot::Mask(index));
            }
            "%dynamic_smem_size" => Special::DynamicShared,
            "%total_smem_size" | "%aggr_smem_size" => Special::TotalShared,
            "%clock" | "%clock_hi" | "%clock64" | "%globaltimer" | "%globaltimer_lo"
            | "%globaltimer_hi" => return self.timer(base),
            "%current_graph_exec" => return Ok(Slot::Wide(self.preset(Preset::Bits(0), true))),
            "%envreg1" => Special::GridWorkspace(1),
            "%envreg2" => Special::GridWorkspace(0),
            _ if base.starts_with("%envreg") || base.starts_with("%pm") => {
                return Ok(Slot::Narrow(self.preset(Preset::Bits(0), false)));
            }
            "%reserved_smem_offset_begin"
            | "%reserved_smem_offset_cap"
            | "%reserved_smem_offset_end"
            | "%reserved_smem_offset_0"
            | "%reserved_smem_offset_1" => {
                return Ok(Slot::Narrow(self.preset(Preset::Bits(0), false)));
            }
            _ => return self.error(format!("{name} is no special register")),
        };
        if special == Special::GridId {
            return Ok(Slot::Wide(self.preset(Preset::Special(special), true)));
        }
        Ok(Slot::Narrow(self.preset(Preset::Special(special), false)))
    }

    /// A register that counts: it is read anew each time.
    fn timer(&mut self, name: &str) -> Result<Slot> {
        let is_wide = matches!(name, "%clock64" | "%globaltimer");
        let is_high = name.ends_with("_hi");
        let is_clock = name.starts_with("%clock");
        let guard = self.guard.take();
        let slot = match is_wide {
            true => Slot::Wide(self.new_wide()),
            false => Slot::Narrow(self.new_narrow()),
        };
        self.push(Action::Access(Box::new(move |registers, _, memory| {
            let now = match is_clock {
                true => memory.clock,
                false => memory.machine.nanoseconds(),
            };
            match slot {
                Slot::Wide(index) => registers.wide[index as usize] = [now; 32],
                Slot::Narrow(index) => {
                    let part = if is_high { now >> 32 } else { now };
                    registers.narrow[index as usize] = [part as u32; 32];
                }
                Slot::Pair(_) | Slot::Mask(_) => {}
            }
            Ok(())
        })));
        self.guard = guard;
        Ok(slot)
    }
}

/// The bits that a narrow register of a type has.
fn narrow_mask(of: Type) -> u64 {
    match of.bytes() {
        1 => 0xff,
        2 => 0xffff,
        _ => 0xffff_ffff,
    }
}
