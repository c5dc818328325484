//! Loads, stores, and the conversion of addresses.

use super::super::registers::{LANES, Mask, Narrow, Registers, Wide, store, unary};
use super::super::{Access, Action, Parameter, Preset, Slot};
use super::Lowering;
use super::name::Name;
use crate::memory::{CLUSTER_SHIFT, LOCAL_WINDOW, PARAM_WINDOW, Place, SHARED_WINDOW, WINDOW_MASK};
use crate::ptx::Result;
use crate::ptx::tree::{Operand, Space};
use crate::ptx::types::Type;

/// Hints of loads and stores that change no value.
pub(super) const HINTS: &[&str] = &[
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
];

/// The modifiers of `fence` and `membar`. They do nothing but order accesses for the search for
/// races: the accesses of all threads are in the order of their instructions.
const FENCES: &[&str] = &[
    "sc",
    "acq_rel",
    "acquire",
    "release",
    "cta",
    "cluster",
    "gpu",
    "gl",
    "sys",
    "proxy",
    "alias",
    "async",
    "global",
    "shared::cta",
    "shared::cluster",
    "async::generic",
    "sync_restrict::shared::cta",
    "sync_restrict::shared::cluster",
    "mbarrier_init",
];

/// The modifiers of `createpolicy`, `prefetch`, `discard` and `applypriority`: hints.
const CACHE_HINTS: &[&str] = &[
    "fractional",
    "range",
    "cvt",
    "global",
    "local",
    "L1",
    "L2",
    "L2::evict_first",
    "L2::evict_last",
    "L2::evict_normal",
    "L2::evict_unchanged",
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
pub(super) struct Target {
    pub(super) place: Place,
    base: Base,
    offset: u64,
}

impl Target {
    /// The target some bytes further.
    pub(super) fn behind(self, bytes: usize) -> Target {
        Target { offset: self.offset.wrapping_add(bytes as u64), ..self }
    }

    #[inline(always)]
    pub(super) fn addresses(&self, registers: &Registers) -> Wide {
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
        raw[..SIZE.min(8)].copy_from_slice(&values[lane][start..start + SIZE.min(8)]);
        u64::from_le_bytes(raw)
    };
    let unused = 64 - 8 * SIZE.min(8) as u32;
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
        Slot::Pair(to) => {
            for half in 0..2 {
                let from = start + 8 * half;
                let mut row: Wide = [0; LANES];
                for lane in 0..LANES {
                    let mut raw = [0; 8];
                    raw.copy_from_slice(&values[lane][from..from + 8]);
                    row[lane] = u64::from_le_bytes(raw);
                }
                store::<u64>(registers, mask, to + half as u32, &row);
            }
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
pub(super) fn store_to<const N: usize, const SIZE: usize>(
    target: Target,
    from: Vec<Slot>,
) -> Access {
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
                Slot::Pair(row) => {
                    let rows = &registers.wide[*row as usize..*row as usize + 2];
                    for lane in 0..LANES {
                        values[lane][start..start + 8]
                            .copy_from_slice(&rows[0][lane].to_le_bytes());
                        values[lane][start + 8..start + 16]
                            .copy_from_slice(&rows[1][lane].to_le_bytes());
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
    pub(super) fn target(&mut self, operand: &Operand<'t>, space: Space) -> Result<Target> {
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
                Slot::Mask(_) | Slot::Pair(_) => {
                    return self.error("an address has 32 or 64 bits");
                }
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
            "fence" | "membar" => {
                name.ignore(FENCES);
                self.push(Action::Access(Box::new(|_, mask, memory| {
                    memory.fence(mask);
                    Ok(())
                })));
                Ok(true)
            }
            "prefetch" | "prefetchu" | "discard" | "applypriority" => {
                name.ignore(CACHE_HINTS);
                let [address, ..] = operands else { return self.operands(1) };
                self.target(address, Space::Generic)?;
                Ok(true)
            }
            "createpolicy" => {
                name.ignore(CACHE_HINTS);
                let Some(to) = operands.first() else { return self.operands(1) };
                let to = self.destination::<u64>(to)?;
                self.push(Action::Compute(unary::<u64, u64>(to, to, |_| 0)));
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    pub(super) fn lanes(&mut self, name: &mut Name<'t>) -> usize {
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
                if let Slot::Pair(row) = slot {
                    self.copy_preset(Preset::Parameter(at, 8, false), Slot::Wide(row));
                    self.copy_preset(Preset::Parameter(at + 8, 8, false), Slot::Wide(row + 1));
                    continue;
                }
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
            (16, 1) => load::<16, 16>(target, slots, is_signed),
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
            Slot::Pair(_) | Slot::Mask(_) => return,
        };
        self.push(Action::Compute(compute));
    }

    fn st(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        if name.takes("async") || name.takes("bulk") {
            return Ok(false);
        }
        let space = self.space(name);
        name.ignore(HINTS);
        let [to, from, ..] = operands else { return self.operands(2) };
        let access = self.store_access(name, to, from, space)?;
        self.push(Action::Access(access));
        Ok(true)
    }

    /// The store of a register or a vector.
    pub(super) fn store_access(
        &mut self,
        name: &mut Name<'t>,
        to: &Operand<'t>,
        from: &Operand<'t>,
        space: Space,
    ) -> Result<Access> {
        let (lanes, of) = (self.lanes(name), name.of_type(0));
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
                16 => Slot::Pair(self.pair(from)?),
                _ => Slot::Narrow(self.source::<u32>(from, of)?),
            });
        }
        let target = self.target(to, space)?;
        Ok(match (of.bytes(), lanes) {
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
            (16, 1) => store_to::<16, 16>(target, slots),
            _ => return self.error("a store of this size does not exist"),
        })
    }

    /// A place in the function's local memory.
    fn frame_target(&mut self, place: Parameter) -> Target {
        let row = self.preset(Preset::Frame(place.offset as i64), true);
        Target { place: Place::Local, base: Base::Wide(row), offset: 0 }
    }

    /// Loads a register from the function's local memory.
    pub(super) fn load_frame(&mut self, to: Slot, place: Parameter) {
        let target = self.frame_target(place);
        let to = vec![Some(to)];
        self.push(Action::Access(match place.bytes {
            1 => load::<1, 1>(target, to, false),
            2 => load::<2, 2>(target, to, false),
            4 => load::<4, 4>(target, to, false),
            8 => load::<8, 8>(target, to, false),
            _ => load::<16, 16>(target, to, false),
        }));
    }

    /// Stores a register in the function's local memory.
    pub(super) fn store_frame(&mut self, from: Slot, place: Parameter) {
        let target = self.frame_target(place);
        let from = vec![from];
        self.push(Action::Access(match place.bytes {
            1 => store_to::<1, 1>(target, from),
            2 => store_to::<2, 2>(target, from),
            4 => store_to::<4, 4>(target, from),
            8 => store_to::<8, 8>(target, from),
            _ => store_to::<16, 16>(target, from),
        }));
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
}
