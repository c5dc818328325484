//! Loads, stores, atomic operations, and the conversion of addresses.

use super::super::registers::{Element, LANES, Mask, Narrow, Registers, Wide, store, unary};
use super::super::{Access, Action, Preset, Slot};
use super::Lowering;
use super::name::Name;
use crate::memory::fault::Fault;
use crate::memory::{
    CLUSTER_SHIFT, LOCAL_WINDOW, Memory, PARAM_WINDOW, Place, SHARED_WINDOW, WINDOW_MASK,
};
use crate::number::float::{Float, NEAREST};
use crate::number::half::{self, Bf16, F16};
use crate::ptx::tree::{Operand, Space};
use crate::ptx::types::Type;
use crate::ptx::{LoadError, Result};

/// Hints of loads and stores that change no value.
const HINTS: &[&str] = &[
    "weak",
    "relaxed",
    "acquire",
    "release",
    "acq_rel",
    "volatile",
    "mmio",
    "cta",
    "cluster",
    "gpu",
    "sys",
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "nc",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::evict_first",
    "L2::evict_last",
    "L2::evict_normal",
    "L2::cache_hint",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "unified",
    "sc",
    "noftz",
];

/// The addresses of an access.
#[derive(Clone, Copy)]
enum Base {
    Narrow(u32),
    Wide(u32),
}

impl Base {
    #[inline(always)]
    fn addresses(self, registers: &Registers, offset: u64) -> Wide {
        match self {
            Base::Wide(row) if offset == 0 => registers.wide[row as usize],
            Base::Wide(row) => {
                let mut all = registers.wide[row as usize];
                all.iter_mut().for_each(|address| *address = address.wrapping_add(offset));
                all
            }
            Base::Narrow(row) => {
                let mut all = [0; LANES];
                for (to, from) in all.iter_mut().zip(&registers.narrow[row as usize]) {
                    *to = u64::from(from.wrapping_add(offset as u32));
                }
                all
            }
        }
    }
}

/// Where an access is.
#[derive(Clone, Copy)]
struct Target {
    place: Place,
    base: Base,
    offset: u64,
}

impl Target {
    #[inline(always)]
    fn addresses(&self, registers: &Registers) -> Wide {
        self.base.addresses(registers, self.offset)
    }
}

/// Writes the loaded bytes of an element to its register, extended by its sign if it has one.
#[inline(always)]
fn put<const N: usize, const SIZE: usize>(
    registers: &mut Registers,
    mask: Mask,
    to: Slot,
    values: &[[u8; N]; LANES],
    start: usize,
    is_signed: bool,
) {
    let raw = |lane: usize| {
        let mut raw = [0; 8];
        raw[..SIZE].copy_from_slice(&values[lane][start..start + SIZE]);
        u64::from_le_bytes(raw)
    };
    let unused = 64 - 8 * SIZE as u32;
    let extended = |raw: u64| match is_signed {
        true => ((raw << unused) as i64 >> unused) as u64,
        false => raw,
    };
    match to {
        Slot::Narrow(to) => {
            let row: Narrow = std::array::from_fn(|lane| extended(raw(lane)) as u32);
            store::<u32>(registers, mask, to, &row);
        }
        Slot::Wide(to) => {
            let row: Wide = std::array::from_fn(|lane| extended(raw(lane)));
            store::<u64>(registers, mask, to, &row);
        }
        Slot::Mask(_) => {}
    }
}

/// A load of elements of `SIZE` bytes, `N` bytes in all.
fn load<const N: usize, const SIZE: usize>(
    target: Target,
    to: Vec<Option<Slot>>,
    is_signed: bool,
) -> Access {
    if let ([Some(to)], true) = (to.as_slice(), N == SIZE) {
        let to = *to;
        return Box::new(move |registers, mask, memory| {
            let values = memory.load::<N>(target.place, &target.addresses(registers), mask)?;
            put::<N, SIZE>(registers, mask, to, &values, 0, is_signed);
            Ok(())
        });
    }
    Box::new(move |registers, mask, memory| {
        let values = memory.load::<N>(target.place, &target.addresses(registers), mask)?;
        for (place, to) in to.iter().enumerate() {
            if let Some(to) = to {
                put::<N, SIZE>(registers, mask, *to, &values, place * SIZE, is_signed);
            }
        }
        Ok(())
    })
}

/// A store of elements of `SIZE` bytes, `N` bytes in all.
fn store_to<const N: usize, const SIZE: usize>(target: Target, from: Vec<Slot>) -> Access {
    Box::new(move |registers, mask, memory| {
        let mut values = [[0; N]; LANES];
        for (place, from) in from.iter().enumerate() {
            let start = place * SIZE;
            match from {
                Slot::Narrow(row) => {
                    let row = &registers.narrow[*row as usize];
                    for lane in 0..LANES {
                        let bytes = u64::from(row[lane]).to_le_bytes();
                        values[lane][start..start + SIZE].copy_from_slice(&bytes[..SIZE]);
                    }
                }
                Slot::Wide(row) => {
                    let row = &registers.wide[*row as usize];
                    for lane in 0..LANES {
                        let bytes = row[lane].to_le_bytes();
                        values[lane][start..start + SIZE].copy_from_slice(&bytes[..SIZE]);
                    }
                }
                Slot::Mask(_) => {}
            }
        }
        memory.store::<N>(target.place, &target.addresses(registers), mask, &values)
    })
}

impl<'t> Lowering<'_, 't> {
    /// The state space in an instruction's name.
    pub(super) fn space(&mut self, name: &mut Name<'t>) -> Space {
        match name.take_of(&[
            "global",
            "shared",
            "shared::cta",
            "shared::cluster",
            "local",
            "const",
            "param",
            "param::entry",
            "param::func",
        ]) {
            None => Space::Generic,
            Some("global") => Space::Global,
            Some("local") => Space::Local,
            Some("const") => Space::Const,
            Some(other) if other.starts_with("param") => Space::Param,
            Some(_) => Space::Shared,
        }
    }

    fn place_of(&self, space: Space) -> Place {
        match space {
            Space::Generic => Place::Generic,
            Space::Global | Space::Const => Place::Global,
            Space::Shared => Place::Shared,
            Space::Local => Place::Local,
            // Parameters of functions are in local memory.
            Space::Param if self.tree.is_kernel => Place::Param,
            Space::Param => Place::Local,
        }
    }

    /// The target of an access.
    fn target(&mut self, operand: &Operand<'t>, space: Space) -> Result<Target> {
        let Operand::Address(base, offset) = operand else {
            return self.error("an address in brackets is expected");
        };
        let mut place = self.place_of(space);
        // The space of a name is the name's own: .param variables of a kernel's calls are local.
        match self.space_of(base) {
            Some(Space::Local) if space == Space::Param => place = Place::Local,
            Some(named) if space == Space::Generic => place = self.place_of(named),
            _ => {}
        }
        let base = match &**base {
            Operand::Integer(address) => {
                let address = (*address as u64).wrapping_add(*offset as u64);
                let row = self.preset(Preset::Bits(address), true);
                return Ok(Target { place, base: Base::Wide(row), offset: 0 });
            }
            other => match self.slot(other)? {
                Slot::Narrow(row) => Base::Narrow(row),
                Slot::Wide(row) => Base::Wide(row),
                Slot::Mask(_) => return self.error("a predicate is used as an address"),
            },
        };
        Ok(Target { place, base, offset: *offset as u64 })
    }

    /// A constant offset in a kernel's parameters.
    fn parameter_offset(&self, operand: &Operand<'t>) -> Option<u32> {
        let Operand::Address(base, offset) = operand else { return None };
        let Operand::Symbol(name, inner) = &**base else { return None };
        if !self.tree.is_kernel {
            return None;
        }
        let index = self.tree.parameters.iter().position(|it| it.name == *name)?;
        let start = self.function.parameters[index].offset as i64;
        u32::try_from(start + inner + offset).ok()
    }

    /// Instructions of memory.
    pub(super) fn memory(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        match name.base {
            "ld" | "ldu" => self.ld(name, operands),
            "st" => self.st(name, operands),
            "atom" | "red" => self.atomic(name, operands),
            "cvta" => self.cvta(name, operands),
            "isspacep" => self.isspacep(name, operands),
            "mapa" => self.mapa(name, operands),
            "getctarank" => self.getctarank(name, operands),
            "cp" => self.cp(name, operands),
            "mbarrier" => self.mbarrier(name, operands),
            "fence" | "membar" | "prefetch" | "prefetchu" | "discard" | "applypriority" => {
                while name.take_if(|_| true).is_some() {}
                self.push(Action::Compute(Box::new(|_, _| {})));
                Ok(true)
            }
            "createpolicy" => {
                while name.take_if(|_| true).is_some() {}
                let Some(to) = operands.first() else { return self.operands(1) };
                let to = self.destination::<u64>(to)?;
                self.push(Action::Compute(unary::<u64, u64>(to, to, |_| 0)));
                Ok(true)
            }
            "alloca" | "stacksave" | "stackrestore" => {
                let message = format!("{} is not executed by the software GPU", name.base);
                Err(LoadError::unsupported(self.line, message))
            }
            _ => Ok(false),
        }
    }

    fn lanes(&mut self, name: &mut Name<'t>) -> usize {
        match name.take_of(&["v2", "v4", "v8"]) {
            None => 1,
            Some("v2") => 2,
            Some("v4") => 4,
            Some(_) => 8,
        }
    }

    fn ld(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        let space = self.space(name);
        let lanes = self.lanes(name);
        name.ignore(HINTS);
        let of = name.of_type(0);
        let [to, from, ..] = operands else { return self.operands(2) };
        let list = match to {
            Operand::Vector(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        if list.len() != lanes {
            return self.error("the number of registers differs from the vector's");
        }
        let mut slots = Vec::new();
        for to in list {
            slots.push(match to {
                Operand::Sink => None,
                other => Some(self.any_destination(other, of)?),
            });
        }
        if let (Space::Param, Some(offset)) = (space, self.parameter_offset(from)) {
            for (place, slot) in slots.into_iter().enumerate() {
                let Some(slot) = slot else { continue };
                let at = offset + (place * of.bytes()) as u32;
                let preset = Preset::Parameter(at, of.bytes() as u8, of.is_signed());
                self.copy_preset(preset, slot);
            }
            return Ok(true);
        }
        let target = self.target(from, space)?;
        let is_signed = of.is_signed();
        let access = match (of.bytes(), lanes) {
            (1, 1) => load::<1, 1>(target, slots, is_signed),
            (1, 2) => load::<2, 1>(target, slots, is_signed),
            (1, 4) => load::<4, 1>(target, slots, is_signed),
            (2, 1) => load::<2, 2>(target, slots, is_signed),
            (2, 2) => load::<4, 2>(target, slots, is_signed),
            (2, 4) => load::<8, 2>(target, slots, is_signed),
            (4, 1) => load::<4, 4>(target, slots, is_signed),
            (4, 2) => load::<8, 4>(target, slots, is_signed),
            (4, 4) => load::<16, 4>(target, slots, is_signed),
            (4, 8) => load::<32, 4>(target, slots, is_signed),
            (8, 1) => load::<8, 8>(target, slots, is_signed),
            (8, 2) => load::<16, 8>(target, slots, is_signed),
            (8, 4) => load::<32, 8>(target, slots, is_signed),
            _ => return self.error("a load of this size does not exist"),
        };
        self.push(Action::Access(access));
        Ok(true)
    }

    /// Copies a value that is known from the start.
    fn copy_preset(&mut self, preset: Preset, to: Slot) {
        let compute = match to {
            Slot::Narrow(to) => {
                let from = self.preset(preset, false);
                unary::<u32, u32>(to, from, |value| value)
            }
            Slot::Wide(to) => {
                let from = self.preset(preset, true);
                unary::<u64, u64>(to, from, |value| value)
            }
            Slot::Mask(_) => return,
        };
        self.push(Action::Compute(compute));
    }

    fn st(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        if name.takes("async") || name.takes("bulk") {
            return Ok(false);
        }
        let space = self.space(name);
        let lanes = self.lanes(name);
        name.ignore(HINTS);
        let of = name.of_type(0);
        let [to, from, ..] = operands else { return self.operands(2) };
        let list = match from {
            Operand::Vector(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        if list.len() != lanes {
            return self.error("the number of registers differs from the vector's");
        }
        let mut slots = Vec::new();
        for from in list {
            slots.push(match of.bytes() {
                8 => Slot::Wide(self.source::<u64>(from, of)?),
                _ => Slot::Narrow(self.source::<u32>(from, of)?),
            });
        }
        let target = self.target(to, space)?;
        let access = match (of.bytes(), lanes) {
            (1, 1) => store_to::<1, 1>(target, slots),
            (1, 2) => store_to::<2, 1>(target, slots),
            (1, 4) => store_to::<4, 1>(target, slots),
            (2, 1) => store_to::<2, 2>(target, slots),
            (2, 2) => store_to::<4, 2>(target, slots),
            (2, 4) => store_to::<8, 2>(target, slots),
            (4, 1) => store_to::<4, 4>(target, slots),
            (4, 2) => store_to::<8, 4>(target, slots),
            (4, 4) => store_to::<16, 4>(target, slots),
            (4, 8) => store_to::<32, 4>(target, slots),
            (8, 1) => store_to::<8, 8>(target, slots),
            (8, 2) => store_to::<16, 8>(target, slots),
            (8, 4) => store_to::<32, 8>(target, slots),
            _ => return self.error("a store of this size does not exist"),
        };
        self.push(Action::Access(access));
        Ok(true)
    }

    fn cvta(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        let is_to = name.takes("to");
        let space = self.space(name);
        let window = match space {
            Space::Shared => SHARED_WINDOW,
            Space::Local => LOCAL_WINDOW,
            Space::Param if self.tree.is_kernel => PARAM_WINDOW,
            Space::Param => LOCAL_WINDOW,
            _ => 0,
        };
        let of = name.of_type(0);
        if of.bytes() != 8 {
            return self.error("only 64-bit addresses are converted");
        }
        match (is_to, window) {
            (_, 0) => self.unary(operands, of, |address: u64| address),
            (true, _) => self.unary(operands, of, |address: u64| address & !WINDOW_MASK),
            (false, _) => self.unary(operands, of, move |address: u64| address | window),
        }
    }

    fn isspacep(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        let is_cluster = name.takes("shared::cluster");
        let space = if is_cluster { Space::Shared } else { self.space(name) };
        let [to, address] = operands else { return self.operands(2) };
        let (to, address) = (self.mask(to)?, self.source::<u64>(address, Type::U64)?);
        let rank = self.preset(Preset::Special(super::Special::ClusterCtarank), false);
        self.push(Action::Compute(Box::new(move |registers, mask| {
            let (mut bits, own) = (0, registers.narrow[rank as usize]);
            for (lane, address) in registers.wide[address as usize].iter().enumerate() {
                let window = address & WINDOW_MASK;
                let block = address >> CLUSTER_SHIFT & 0xff;
                let is_inside = match space {
                    Space::Shared => {
                        let is_own = block == 0 || block == u64::from(own[lane]) + 1;
                        window == SHARED_WINDOW && (is_cluster || is_own)
                    }
                    Space::Local => window == LOCAL_WINDOW,
                    Space::Param => window == PARAM_WINDOW,
                    Space::Const => false,
                    _ => !matches!(window, SHARED_WINDOW | LOCAL_WINDOW | PARAM_WINDOW),
                };
                bits |= u32::from(is_inside) << lane;
            }
            super::super::registers::store_mask(registers, mask, to, bits);
        })));
        Ok(true)
    }

    /// The address of another block's shared memory.
    fn mapa(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        name.ignore(&["shared::cluster"]);
        let of = name.of_type(0);
        let offset = (1u64 << CLUSTER_SHIFT) - 1;
        let mut operands = operands.to_vec();
        if let Some(Operand::Local(..) | Operand::Symbol(..)) = operands.get(1)
            && of.bytes() == 4
        {
            let Slot::Wide(from) = self.slot(&operands[1])? else { return Ok(false) };
            let narrow = self.new_narrow();
            self.push_always(unary::<u32, u64>(narrow, from, |value| value as u32));
            let [to, _, rank] = operands.as_slice() else { return self.operands(3) };
            let (to, rank) = (self.destination::<u32>(to)?, self.source::<u32>(rank, Type::U32)?);
            self.push(Action::Compute(super::super::registers::binary::<u32, u32, u32>(
                to,
                narrow,
                rank,
                move |address, rank| address & offset as u32 | (rank + 1) << CLUSTER_SHIFT,
            )));
            return Ok(true);
        }
        operands.truncate(3);
        let types = (of, Type::U32);
        match of.bytes() {
            8 => self.binary(&operands, types, move |address: u64, rank: u32| {
                address & WINDOW_MASK | address & offset | u64::from(rank + 1) << CLUSTER_SHIFT
            }),
            _ => self.binary(&operands, types, move |address: u32, rank: u32| {
                address & offset as u32 | (rank + 1) << CLUSTER_SHIFT
            }),
        }
    }

    fn getctarank(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        name.ignore(&["shared::cluster"]);
        let of = name.of_type(0);
        let own = self.preset(Preset::Special(super::Special::ClusterCtarank), false);
        let [to, address, ..] = operands else { return self.operands(2) };
        let to = self.destination::<u32>(to)?;
        let rank = |address: u64, own: u32| match address >> CLUSTER_SHIFT & 0xff {
            0 => own,
            rank => rank as u32 - 1,
        };
        let compute = match of.bytes() {
            8 => {
                let address = self.source::<u64>(address, of)?;
                super::super::registers::binary::<u32, u64, u32>(to, address, own, rank)
            }
            _ => {
                let address = self.source::<u32>(address, of)?;
                super::super::registers::binary::<u32, u32, u32>(to, address, own, move |a, own| {
                    rank(a.into(), own)
                })
            }
        };
        self.push(Action::Compute(compute));
        Ok(true)
    }

    /// Copies from global to shared memory. They are done at once, so that waits have nothing to do.
    fn cp(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        if name.takes("bulk") {
            return Ok(false);
        }
        name.ignore(&["async", "ca", "cg", "L2::64B", "L2::128B", "L2::256B", "L2::cache_hint"]);
        if name.takes("commit_group") || name.takes("wait_group") || name.takes("wait_all") {
            self.push(Action::Compute(Box::new(|_, _| {})));
            return Ok(true);
        }
        if name.takes("mbarrier") {
            // The copies are done: the thread arrives now.
            let without = name.takes("noinc");
            name.ignore(&["arrive", "shared", "shared::cta"]);
            let [barrier] = operands else { return self.operands(1) };
            let target = self.target(barrier, Space::Shared)?;
            self.push(Action::Access(Box::new(move |registers, mask, memory| {
                let addresses = target.addresses(registers);
                for lane in mask.lanes() {
                    if without {
                        memory.arrive(target.place, lane, addresses[lane], 1, false)?;
                    }
                }
                Ok(())
            })));
            return Ok(true);
        }
        name.ignore(&["shared", "shared::cta", "global"]);
        let (to, from, bytes, rest) = match operands {
            [to, from, Operand::Integer(bytes), rest @ ..] => (to, from, *bytes, rest),
            _ => return self.error("the size of a copy is no constant"),
        };
        let to = self.target(to, Space::Shared)?;
        let from = self.target(from, Space::Global)?;
        // The number of bytes that are read; the others become zero.
        let size = match rest.first() {
            Some(size @ (Operand::Register(_) | Operand::Integer(_))) => {
                Some(self.source::<u32>(size, Type::U32)?)
            }
            _ => None,
        };
        let access = match bytes {
            4 => copy::<4>(to, from, size),
            8 => copy::<8>(to, from, size),
            16 => copy::<16>(to, from, size),
            _ => return self.error(format!("a copy of {bytes} bytes does not exist")),
        };
        self.push(Action::Access(access));
        Ok(true)
    }

    fn atomic(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        if name.takes("async") || name.takes("v2") || name.takes("v4") || name.takes("v8") {
            return Ok(false);
        }
        let space = self.space(name);
        let list = ["add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"];
        let Some(operation) = name.take_of(&list) else { return Ok(false) };
        name.ignore(HINTS);
        let of = name.of_type(0);
        let is_red = name.base == "red";
        let (to, rest) = match operands {
            rest if is_red => (&Operand::Sink, rest),
            [to, rest @ ..] => (to, rest),
            [] => return self.operands(3),
        };
        let [address, value, more @ ..] = rest else { return self.operands(3) };
        let target = self.target(address, space)?;
        self.function.has_atomics |= matches!(target.place, Place::Global | Place::Generic);
        let third = if operation == "cas" { more.first() } else { None };
        // An address that is no register leaves the operands' types alone.
        let access: Access = match of {
            Type::F32 => {
                let value = self.source::<f32>(value, of)?;
                let to = self.wanted::<u32>(to)?;
                // Shared memory keeps subnormal values, global memory does not.
                let flushes = target.place != Place::Shared;
                atomic::<u32>(target, to, [value, value], move |old, value, _| {
                    let (old, value) = (f32::from_bits(old), f32::from_bits(value));
                    match flushes {
                        true => Float::add::<NEAREST, true, false>(old, value).to_bits(),
                        false => Float::add::<NEAREST, false, false>(old, value).to_bits(),
                    }
                })
            }
            Type::F64 => {
                let value = self.source::<f64>(value, of)?;
                let to = self.wanted::<u64>(to)?;
                atomic::<u64>(target, to, [value, value], |old, value, _| {
                    let (old, value) = (f64::from_bits(old), f64::from_bits(value));
                    Float::add::<NEAREST, false, false>(old, value).to_bits()
                })
            }
            Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2 => {
                return self.atomic_half(operation, of, target, to, value);
            }
            Type::B128 => return Ok(false),
            _ => match of.bytes() {
                8 => {
                    let a = self.source::<u64>(value, of)?;
                    let b = match third {
                        Some(third) => self.source::<u64>(third, of)?,
                        None => a,
                    };
                    let to = self.wanted::<u64>(to)?;
                    match (operation, of) {
                        ("min", Type::S64) => atomic::<u64>(target, to, [a, b], |old, a, _| {
                            (old as i64).min(a as i64) as u64
                        }),
                        ("max", Type::S64) => atomic::<u64>(target, to, [a, b], |old, a, _| {
                            (old as i64).max(a as i64) as u64
                        }),
                        ("add", _) => {
                            atomic(target, to, [a, b], |old: u64, a, _| old.wrapping_add(a))
                        }
                        ("min", _) => atomic(target, to, [a, b], |old: u64, a, _| old.min(a)),
                        ("max", _) => atomic(target, to, [a, b], |old: u64, a, _| old.max(a)),
                        ("and", _) => atomic(target, to, [a, b], |old: u64, a, _| old & a),
                        ("or", _) => atomic(target, to, [a, b], |old: u64, a, _| old | a),
                        ("xor", _) => atomic(target, to, [a, b], |old: u64, a, _| old ^ a),
                        ("exch", _) => atomic(target, to, [a, b], |_: u64, a, _| a),
                        ("cas", _) => atomic(
                            target,
                            to,
                            [a, b],
                            |old: u64, a, b| {
                                if old == a { b } else { old }
                            },
                        ),
                        _ => return Ok(false),
                    }
                }
                4 => {
                    let a = self.source::<u32>(value, of)?;
                    let b = match third {
                        Some(third) => self.source::<u32>(third, of)?,
                        None => a,
                    };
                    let to = self.wanted::<u32>(to)?;
                    match (operation, of) {
                        ("min", Type::S32) => atomic::<u32>(target, to, [a, b], |old, a, _| {
                            (old as i32).min(a as i32) as u32
                        }),
                        ("max", Type::S32) => atomic::<u32>(target, to, [a, b], |old, a, _| {
                            (old as i32).max(a as i32) as u32
                        }),
                        ("add", _) => {
                            atomic(target, to, [a, b], |old: u32, a, _| old.wrapping_add(a))
                        }
                        ("min", _) => atomic(target, to, [a, b], |old: u32, a, _| old.min(a)),
                        ("max", _) => atomic(target, to, [a, b], |old: u32, a, _| old.max(a)),
                        ("inc", _) => {
                            atomic(
                                target,
                                to,
                                [a, b],
                                |old: u32, a, _| {
                                    if old >= a { 0 } else { old + 1 }
                                },
                            )
                        }
                        ("dec", _) => atomic(target, to, [a, b], |old: u32, a, _| {
                            if old == 0 || old > a { a } else { old - 1 }
                        }),
                        ("and", _) => atomic(target, to, [a, b], |old: u32, a, _| old & a),
                        ("or", _) => atomic(target, to, [a, b], |old: u32, a, _| old | a),
                        ("xor", _) => atomic(target, to, [a, b], |old: u32, a, _| old ^ a),
                        ("exch", _) => atomic(target, to, [a, b], |_: u32, a, _| a),
                        _ => atomic(
                            target,
                            to,
                            [a, b],
                            |old: u32, a, b| {
                                if old == a { b } else { old }
                            },
                        ),
                    }
                }
                _ => {
                    let a = self.source::<u32>(value, of)?;
                    let b = match third {
                        Some(third) => self.source::<u32>(third, of)?,
                        None => a,
                    };
                    let to = self.wanted::<u32>(to)?;
                    let Some("cas" | "exch") = Some(operation) else { return Ok(false) };
                    let is_exchange = operation == "exch";
                    atomic::<u16>(target, to, [a, b], move |old, a, b| {
                        if is_exchange {
                            a
                        } else if old == a {
                            b
                        } else {
                            old
                        }
                    })
                }
            },
        };
        self.push(Action::Access(access));
        Ok(true)
    }

    /// The destination of an atomic operation, which may be `_`.
    fn wanted<D: Element>(&mut self, to: &Operand<'t>) -> Result<Option<u32>> {
        match to {
            Operand::Sink => Ok(None),
            other => self.destination::<D>(other).map(Some),
        }
    }

    fn atomic_half(
        &mut self,
        operation: &str,
        of: Type,
        target: Target,
        to: &Operand<'t>,
        value: &Operand<'t>,
    ) -> Result<bool> {
        let (value, to) = (self.source::<u32>(value, of)?, self.wanted::<u32>(to)?);
        let pick: fn(u16, u16) -> u16 = match (operation, of) {
            ("add", Type::F16 | Type::F16x2) => half::add::<F16, false, false>,
            ("add", _) => half::add::<Bf16, false, false>,
            _ => return Ok(false),
        };
        let access = match of.bytes() {
            2 => atomic::<u16>(target, to, [value, value], move |old, value, _| pick(old, value)),
            _ => atomic::<u32>(target, to, [value, value], move |old, value, _| {
                let low = pick(old as u16, value as u16);
                let high = pick((old >> 16) as u16, (value >> 16) as u16);
                u32::from(low) | u32::from(high) << 16
            }),
        };
        self.push(Action::Access(access));
        Ok(true)
    }

    fn mbarrier(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        let operation = name.take_of(&[
            "init",
            "inval",
            "arrive",
            "arrive_drop",
            "test_wait",
            "try_wait",
            "pending_count",
            "expect_tx",
            "complete_tx",
        ]);
        let expects = name.takes("expect_tx");
        let (has_parity, without) = (name.takes("parity"), name.takes("noComplete"));
        let is_remote = name.takes("shared::cluster");
        name.ignore(&["shared", "shared::cta"]);
        name.ignore(HINTS);
        if without {
            return Ok(false);
        }
        let count_of = |this: &mut Self, operand: Option<&Operand<'t>>| match operand {
            Some(count) => this.source::<u32>(count, Type::U32),
            None => Ok(this.preset(Preset::Bits(1), false)),
        };
        let access: Access = match operation {
            Some("init") => {
                let [barrier, count] = operands else { return self.operands(2) };
                let target = self.target(barrier, Space::Shared)?;
                let count = self.source::<u32>(count, Type::U32)?;
                each_lane(target, move |registers, memory, place, lane, address| {
                    let count = registers.narrow[count as usize][lane];
                    memory.initialise_barrier(place, lane, address, count)
                })
            }
            Some("inval") => {
                let [barrier] = operands else { return self.operands(1) };
                let target = self.target(barrier, Space::Shared)?;
                each_lane(target, |_, _, _, _, _| Ok(()))
            }
            Some(arrival @ ("arrive" | "arrive_drop")) => {
                let (to, barrier, count) = match operands {
                    [barrier @ Operand::Address(..)] => (&Operand::Sink, barrier, None),
                    [barrier @ Operand::Address(..), count] => {
                        (&Operand::Sink, barrier, Some(count))
                    }
                    [to, barrier] => (to, barrier, None),
                    [to, barrier, count] => (to, barrier, Some(count)),
                    _ => return self.operands(2),
                };
                let drops = arrival == "arrive_drop";
                let target = self.target(barrier, Space::Shared)?;
                let transactions = if expects { Some(count_of(self, count)?) } else { None };
                let count = count_of(self, if expects { None } else { count })?;
                let to = if is_remote { None } else { self.wanted::<u64>(to)? };
                each_lane(target, move |registers, memory, place, lane, address| {
                    if let Some(bytes) = transactions {
                        let bytes = registers.narrow[bytes as usize][lane];
                        memory.expect_transactions(place, lane, address, i64::from(bytes))?;
                    }
                    let count = registers.narrow[count as usize][lane];
                    let state = memory.arrive(place, lane, address, count, drops)?;
                    if let Some(to) = to {
                        registers.wide[to as usize][lane] = state;
                    }
                    Ok(())
                })
            }
            Some(change @ ("expect_tx" | "complete_tx")) => {
                let [barrier, bytes] = operands else { return self.operands(2) };
                let target = self.target(barrier, Space::Shared)?;
                let bytes = self.source::<u32>(bytes, Type::U32)?;
                let sign = if change == "expect_tx" { 1 } else { -1 };
                each_lane(target, move |registers, memory, place, lane, address| {
                    let bytes = registers.narrow[bytes as usize][lane];
                    memory.expect_transactions(place, lane, address, sign * i64::from(bytes))
                })
            }
            Some("test_wait" | "try_wait") => {
                let [to, barrier, state, ..] = operands else { return self.operands(3) };
                let (to, target) = (self.mask(to)?, self.target(barrier, Space::Shared)?);
                let state = match has_parity {
                    true => Slot::Narrow(self.source::<u32>(state, Type::U32)?),
                    false => Slot::Wide(self.source::<u64>(state, Type::U64)?),
                };
                let access = each_lane(target, move |registers, memory, place, lane, address| {
                    let is_done = match state {
                        Slot::Narrow(row) => {
                            let parity = registers.narrow[row as usize][lane];
                            memory.is_phase_complete(place, lane, address, parity.into())?
                        }
                        Slot::Wide(row) | Slot::Mask(row) => {
                            let state = registers.wide[row as usize][lane];
                            memory.is_phase_complete(place, lane, address, state >> 63)?
                        }
                    };
                    let bit = 1 << lane;
                    let mask = &mut registers.masks[to as usize];
                    *mask = if is_done { *mask | bit } else { *mask & !bit };
                    Ok(())
                });
                self.push(Action::Access(access));
                // Others get a chance to arrive.
                self.push(Action::Yield);
                return Ok(true);
            }
            _ => return Ok(false),
        };
        self.push(Action::Access(access));
        Ok(true)
    }
}

/// Runs a function for each active lane with its address.
fn each_lane(
    target: Target,
    run: impl Fn(&mut Registers, &mut Memory<'_>, Place, usize, u64) -> std::result::Result<(), Fault>
    + Send
    + Sync
    + 'static,
) -> Access {
    Box::new(move |registers, mask, memory| {
        let addresses = target.addresses(registers);
        for lane in mask.lanes() {
            run(registers, memory, target.place, lane, addresses[lane])
                .map_err(|fault| fault.of_lane(lane))?;
        }
        Ok(())
    })
}

/// A copy of `N` bytes, of which a row may say how many are read.
fn copy<const N: usize>(to: Target, from: Target, size: Option<u32>) -> Access {
    Box::new(move |registers, mask, memory| {
        let (into, out_of) = (to.addresses(registers), from.addresses(registers));
        let Some(size) = size else {
            let values = memory.load::<N>(from.place, &out_of, mask)?;
            return memory.store::<N>(to.place, &into, mask, &values);
        };
        let sizes = registers.narrow[size as usize];
        for lane in mask.lanes() {
            let mut value = [0; N];
            for (place, byte) in value.iter_mut().enumerate().take(sizes[lane] as usize) {
                let at = out_of[lane].wrapping_add(place as u64);
                [*byte] =
                    memory.load_one::<1>(from.place, lane, at).map_err(|it| it.of_lane(lane))?;
            }
            memory
                .store_one::<N>(to.place, lane, into[lane], &value)
                .map_err(|fault| fault.of_lane(lane))?;
        }
        Ok(())
    })
}

/// An atomic operation of the active lanes, one after the other.
fn atomic<W: crate::memory::Word + AtomicCell>(
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
