//! Instructions in which the lanes of a warp exchange values.

use super::super::Action;
use super::super::registers::{Element, LANES, Mask, Narrow, Registers, store, store_mask};
use super::Lowering;
use super::name::Name;
use crate::ptx::Result;
use crate::ptx::tree::Operand;
use crate::ptx::types::Type;

/// The lane from which `shfl` reads, and whether it is in range.
fn source_of_shuffle(mode: u8, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (by, bound, segment) = (b & 31, c & 31, c >> 8 & 31);
    let last = lane & segment | bound & !segment;
    let (from, is_in_range) = match mode {
        0 => {
            let from = lane as i32 - by as i32;
            (from as u32, from >= last as i32)
        }
        1 => (lane + by, lane + by <= last),
        2 => (lane ^ by, lane ^ by <= last),
        _ => {
            let from = lane & segment | by & !segment;
            (from, from <= last)
        }
    };
    if is_in_range { (from & 31, true) } else { (lane, false) }
}

impl<'t> Lowering<'_, 't> {
    /// Instructions of warps.
    pub(super) fn warp(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        match name.base {
            "shfl" => self.shuffle(name, operands),
            "vote" => self.vote(name, operands),
            "match" => self.matching(name, operands),
            "redux" => self.redux(name, operands),
            "activemask" => {
                let [to] = operands else { return self.operands(1) };
                let to = self.destination::<u32>(to)?;
                self.push(Action::Compute(Box::new(move |registers, mask| {
                    store::<u32>(registers, mask, to, &[mask.active; LANES]);
                })));
                Ok(true)
            }
            "elect" => {
                name.ignore(&["sync"]);
                let [to, members] = operands else { return self.operands(2) };
                let (to, is_it) = match to {
                    Operand::Pair(to, is_it) => (self.destination::<u32>(to)?, self.mask(is_it)?),
                    _ => return self.error("elect has two results"),
                };
                let members = self.source::<u32>(members, Type::B32)?;
                self.push(Action::Collective(
                    members,
                    Box::new(move |registers, mask| {
                        let leader = mask.active.trailing_zeros();
                        store::<u32>(registers, mask, to, &[leader; LANES]);
                        store_mask(registers, mask, is_it, 1 << leader);
                    }),
                ));
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Adds an instruction that waits for the lanes of a mask, if it has one.
    fn collective(
        &mut self,
        members: Option<&Operand<'t>>,
        compute: super::super::registers::Compute,
    ) -> Result<bool> {
        match members {
            Some(members) => {
                let members = self.source::<u32>(members, Type::B32)?;
                self.push(Action::Collective(members, compute));
            }
            None => self.push(Action::Compute(compute)),
        }
        Ok(true)
    }

    fn shuffle(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        let is_sync = name.takes("sync");
        let mode = match name.take_of(&["up", "down", "bfly", "idx"]) {
            Some("up") => 0u8,
            Some("down") => 1,
            Some("bfly") => 2,
            Some(_) => 3,
            None => return Ok(false),
        };
        let [to, a, b, c, rest @ ..] = operands else { return self.operands(4) };
        let (to, is_valid) = match to {
            Operand::Pair(to, is_valid) => (&**to, Some(self.mask(is_valid)?)),
            to => (to, None),
        };
        let to = self.destination::<u32>(to)?;
        let (a, b) = (self.source::<u32>(a, Type::B32)?, self.source::<u32>(b, Type::B32)?);
        let c = self.source::<u32>(c, Type::B32)?;
        let compute = Box::new(move |registers: &mut Registers, mask: Mask| {
            let rows = &registers.narrow;
            let (a, b, c) = (&rows[a as usize], &rows[b as usize], &rows[c as usize]);
            let (mut values, mut valid): (Narrow, u32) = ([0; LANES], 0);
            for lane in 0..LANES {
                let (from, is_in_range) = source_of_shuffle(mode, lane as u32, b[lane], c[lane]);
                values[lane] = a[from as usize];
                valid |= u32::from(is_in_range) << lane;
            }
            store::<u32>(registers, mask, to, &values);
            if let Some(is_valid) = is_valid {
                store_mask(registers, mask, is_valid, valid);
            }
        });
        self.collective(rest.first().filter(|_| is_sync), compute)
    }

    fn vote(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        let is_sync = name.takes("sync");
        let mode = name.take_of(&["all", "any", "uni", "ballot"]);
        let [to, condition, rest @ ..] = operands else { return self.operands(2) };
        let condition = self.condition(condition)?;
        let members = rest.first().filter(|_| is_sync);
        if mode == Some("ballot") {
            let to = self.destination::<u32>(to)?;
            return self.collective(
                members,
                Box::new(move |registers, mask| {
                    let bits = condition.read(registers) & mask.active;
                    store::<u32>(registers, mask, to, &[bits; LANES]);
                }),
            );
        }
        let to = self.mask(to)?;
        let decide: fn(u32, u32) -> bool = match mode {
            Some("all") => |bits, active| bits == active,
            Some("any") => |bits, _| bits != 0,
            _ => |bits, active| bits == 0 || bits == active,
        };
        self.collective(
            members,
            Box::new(move |registers, mask| {
                let bits = condition.read(registers) & mask.active;
                let result = if decide(bits, mask.active) { u32::MAX } else { 0 };
                store_mask(registers, mask, to, result);
            }),
        )
    }

    fn matching(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        name.ignore(&["sync"]);
        let is_all = name.takes("all");
        name.ignore(&["any"]);
        let [to, value, members] = operands else { return self.operands(3) };
        let (to, is_equal) = match to {
            Operand::Pair(to, is_equal) => (&**to, Some(self.mask(is_equal)?)),
            to => (to, None),
        };
        let to = self.destination::<u32>(to)?;
        let compute = match name.of_type(0).bytes() {
            8 => matches::<u64>(to, is_equal, self.source::<u64>(value, Type::B64)?, is_all),
            _ => matches::<u32>(to, is_equal, self.source::<u32>(value, Type::B32)?, is_all),
        };
        self.collective(Some(members), compute)
    }

    fn redux(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        name.ignore(&["sync"]);
        let operation = name.take_of(&["add", "min", "max", "and", "or", "xor"]);
        let of = name.of_type(0);
        if of.is_float() {
            return Ok(false);
        }
        let combine: fn(u32, u32) -> u32 = match (operation, of.is_signed()) {
            (Some("add"), _) => u32::wrapping_add,
            (Some("min"), false) => |a, b| a.min(b),
            (Some("max"), false) => |a, b| a.max(b),
            (Some("min"), true) => |a, b| (a as i32).min(b as i32) as u32,
            (Some("max"), true) => |a, b| (a as i32).max(b as i32) as u32,
            (Some("and"), _) => |a, b| a & b,
            (Some("or"), _) => |a, b| a | b,
            _ => |a, b| a ^ b,
        };
        let [to, value, members] = operands else { return self.operands(3) };
        let (to, value) = (self.destination::<u32>(to)?, self.source::<u32>(value, of)?);
        self.collective(
            Some(members),
            Box::new(move |registers, mask| {
                let row = &registers.narrow[value as usize];
                let total = mask.lanes().map(|lane| row[lane]).reduce(combine).unwrap_or(0);
                store::<u32>(registers, mask, to, &[total; LANES]);
            }),
        )
    }
}

/// `match`: the lanes with the same value.
fn matches<T: Element>(
    to: u32,
    is_equal: Option<u32>,
    value: u32,
    is_all: bool,
) -> super::super::registers::Compute
where
    T::Cell: PartialEq,
{
    Box::new(move |registers, mask| {
        let row = &T::rows(registers)[value as usize];
        let mut found: Narrow = [0; LANES];
        for lane in mask.lanes() {
            for other in mask.lanes() {
                found[lane] |= u32::from(row[lane] == row[other]) << other;
            }
        }
        if is_all {
            let is_same = mask.lanes().all(|lane| found[lane] == mask.active);
            let bits = if is_same { mask.active } else { 0 };
            store::<u32>(registers, mask, to, &[bits; LANES]);
            if let Some(is_equal) = is_equal {
                store_mask(registers, mask, is_equal, if is_same { u32::MAX } else { 0 });
            }
        } else {
            store::<u32>(registers, mask, to, &found);
        }
    })
}
