//! Copies that complete later, and the barrier objects in shared memory that wait for them.

use super::super::registers::{Registers, choose, unary};
use super::super::{Access, Action, Preset, Slot};
use super::Lowering;
use super::atomic::{self, Change, reduction};
use super::memory::Target;
use super::name::Name;
use crate::memory::fault::{Fault, FaultKind};
use crate::memory::{CLUSTER_SHIFT, Memory, Place, WINDOW_MASK, pending_count};
use crate::ptx::Result;
use crate::ptx::tree::{Operand, Space};
use crate::ptx::types::Type;

/// The modifiers of barrier objects that say which threads see what.
const SCOPES: &[&str] = &["relaxed", "acquire", "release", "cta", "cluster"];

impl<'t> Lowering<'_, 't> {
    /// Instructions of copies and of barrier objects.
    pub(super) fn transfer(
        &mut self,
        name: &mut Name<'t>,
        operands: &[Operand<'t>],
    ) -> Result<bool> {
        match name.base {
            "cp" => self.cp(name, operands),
            "mbarrier" => self.mbarrier(name, operands),
            "st" => self.store_async(name, operands),
            "red" => self.reduce_async(name, operands),
            _ => Ok(false),
        }
    }

    /// Copies between global and shared memory. They are done at once, so that waits for them only
    /// order accesses for the search for races.
    fn cp(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        if name.takes("reduce") {
            name.ignore(&["async", "bulk"]);
            return self.bulk(name, operands, true);
        }
        name.ignore(&["async"]);
        let is_bulk = name.takes("bulk");
        let (commits, waits_for_all) = (name.takes("commit_group"), name.takes("wait_all"));
        if commits || waits_for_all || name.takes("wait_group") {
            name.ignore(if is_bulk { &["read"] } else { &[] });
            let except = match operands {
                [Operand::Integer(groups)] => u32::try_from(*groups).unwrap_or(u32::MAX),
                _ => 0,
            };
            if !is_bulk {
                self.push(Action::Access(Box::new(move |_, mask, memory| {
                    match (commits || waits_for_all, commits) {
                        (true, true) => memory.commit_copies(mask),
                        (true, false) => memory.wait_for_all_copies(mask),
                        _ => memory.wait_for_copies(mask, except),
                    }
                    Ok(())
                })));
            }
            return Ok(true);
        }
        if is_bulk {
            return self.bulk(name, operands, false);
        }
        if name.takes("mbarrier") {
            // The copies are done: the thread arrives now. Without .noinc the barrier also expects
            // one arrival more, which changes nothing.
            let arrives = name.takes("noinc");
            name.ignore(&["arrive", "shared", "shared::cta"]);
            let [barrier] = operands else { return self.operands(1) };
            let target = self.target(barrier, Space::Shared)?;
            self.push(Action::Access(each_lane(target, move |_, memory, place, lane, address| {
                match arrives {
                    true => memory.arrive(place, lane, address, 1, false).map(drop),
                    false => {
                        memory.signal(place, lane, address);
                        Ok(())
                    }
                }
            })));
            return Ok(true);
        }
        name.ignore(&["ca", "cg", "L2::64B", "L2::128B", "L2::256B", "L2::cache_hint"]);
        name.ignore(&["shared", "shared::cta", "global"]);
        let (to, from, bytes, rest) = match operands {
            [to, from, Operand::Integer(bytes), rest @ ..] => (to, from, *bytes, rest),
            _ => return self.error("the size of a copy is no constant"),
        };
        let to = self.target(to, Space::Shared)?;
        let from = self.target(from, Space::Global)?;
        // The number of bytes that are read; the others become zero.
        let size = match rest.first() {
            Some(size @ Operand::Integer(_)) => Some(self.source::<u32>(size, Type::U32)?),
            Some(size @ (Operand::Register(_) | Operand::Not(_))) => match self.slot(size) {
                Ok(Slot::Narrow(row)) => Some(row),
                // The policy of a cache hint.
                Ok(Slot::Wide(_)) => None,
                // A predicate: true if nothing is read.
                _ => {
                    let (condition, row) = (self.condition(size)?, self.new_narrow());
                    let bytes = bytes as u32;
                    let choice =
                        move |ignores: bool, _: u32, _: u32| if ignores { 0 } else { bytes };
                    let size = choose::<u32, u32, u32>(row, condition, row, row, choice);
                    self.push_always(size);
                    Some(row)
                }
            },
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

    /// `cp.async.bulk` and `cp.reduce.async.bulk`.
    fn bulk(
        &mut self,
        name: &mut Name<'t>,
        operands: &[Operand<'t>],
        reduces: bool,
    ) -> Result<bool> {
        if name.takes("tensor") {
            return Ok(false);
        }
        name.ignore(&["L2::cache_hint"]);
        if name.takes("prefetch") {
            name.ignore(&["L2", "global"]);
            let [from, size, ..] = operands else { return self.operands(2) };
            self.target(from, Space::Global)?;
            self.source::<u32>(size, Type::U32)?;
            return Ok(true);
        }
        let signals = name.takes("mbarrier::complete_tx::bytes");
        if !signals && !name.takes("bulk_group") {
            return Ok(false);
        }
        let is_multicast = name.takes("multicast::cluster");
        let is_global = name.takes("global");
        name.ignore(&["shared::cluster", "shared::cta"]);
        let (to_space, from_space) = match (signals, is_global) {
            (true, true) => (Space::Shared, Space::Global),
            (true, false) => (Space::Shared, Space::Shared),
            (false, true) => (Space::Global, Space::Shared),
            (false, false) => return Ok(false),
        };
        let [to, from, size, rest @ ..] = operands else { return self.operands(3) };
        let to = self.target(to, to_space)?;
        let from = self.target(from, from_space)?;
        let size = self.source::<u32>(size, Type::U32)?;
        let barrier = match (signals, rest) {
            (false, _) => None,
            (true, [barrier, ..]) => Some(self.target(barrier, Space::Shared)?),
            (true, []) => return self.operands(4),
        };
        let blocks = match (is_multicast, rest) {
            (true, [_, blocks, ..]) => Some(self.source::<u32>(blocks, Type::U16)?),
            (true, _) => return self.operands(5),
            (false, _) => None,
        };
        let change = if reduces {
            name.ignore(&["noftz"]);
            let list = ["and", "or", "xor", "add", "inc", "dec", "min", "max"];
            let Some(operation) = name.take_of(&list) else { return Ok(false) };
            let of = name.of_type(0);
            let Some(change) = reduction(operation, of) else { return Ok(false) };
            Some((change, of.bytes()))
        } else {
            None
        };
        self.function.has_atomics |= reduces;
        self.push(Action::Access(Box::new(move |registers, mask, memory| {
            let (into, out_of) = (to.addresses(registers), from.addresses(registers));
            let barriers = barrier.map(|it| it.addresses(registers));
            for lane in mask.lanes() {
                let size = registers.narrow[size as usize][lane];
                let blocks = blocks.map(|row| registers.narrow[row as usize][lane] & 0xffff);
                let mut copy_to = |block: Option<u32>| {
                    let source = (from.place, out_of[lane]);
                    let sink = (to.place, in_block(into[lane], block));
                    copy_bytes(memory, lane, sink, source, size, change)?;
                    match (barrier, barriers) {
                        (Some(barrier), Some(addresses)) => memory.expect_transactions(
                            barrier.place,
                            lane,
                            in_block(addresses[lane], block),
                            -i64::from(size),
                        ),
                        _ => Ok(()),
                    }
                };
                let outcome = match blocks {
                    None => copy_to(None),
                    Some(blocks) => (0..16)
                        .filter(|block| blocks >> block & 1 != 0)
                        .try_for_each(|block| copy_to(Some(block))),
                };
                outcome.map_err(|fault| fault.of_lane(lane))?;
            }
            Ok(())
        })));
        Ok(true)
    }

    /// Completes transactions of a barrier object after a store or a reduction of some bytes.
    fn signal(&mut self, barrier: &Operand<'t>, bytes: usize) -> Result<()> {
        let target = self.target(barrier, Space::Shared)?;
        let bytes = bytes as i64;
        self.push(Action::Access(each_lane(target, move |_, memory, place, lane, address| {
            memory.expect_transactions(place, lane, address, -bytes)
        })));
        Ok(())
    }

    /// `st.async` and `st.bulk`.
    fn store_async(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        if name.takes("bulk") {
            name.ignore(&["weak", "shared::cta"]);
            let [to, size, Operand::Integer(0)] = operands else { return self.operands(3) };
            let to = self.target(to, Space::Shared)?;
            let size = self.source::<u64>(size, Type::U64)?;
            self.push(Action::Access(each_lane(
                to,
                move |registers, memory, place, lane, address| {
                    let size = registers.wide[size as usize][lane];
                    if (address | size) & 7 != 0 {
                        return Err(Fault::at(FaultKind::Misaligned, address));
                    }
                    (0..size).step_by(8).try_for_each(|at| {
                        memory.store_one::<8>(place, lane, address + at, &[0; 8])
                    })
                },
            )));
            return Ok(true);
        }
        if !name.takes("async") || !name.takes("mbarrier::complete_tx::bytes") {
            return Ok(false);
        }
        name.ignore(&["weak", "shared::cluster"]);
        let [to, from, barrier] = operands else { return self.operands(3) };
        let access = self.store_access(name, to, from, Space::Shared)?;
        self.push(Action::Access(access));
        let bytes = name.of_type(0).bytes();
        let lanes = if let Operand::Vector(list) = from { list.len() } else { 1 };
        self.signal(barrier, bytes * lanes)?;
        Ok(true)
    }

    /// `red.async`.
    fn reduce_async(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        if !name.takes("async") || !name.takes("mbarrier::complete_tx::bytes") {
            return Ok(false);
        }
        name.ignore(&["relaxed", "cluster", "shared::cluster"]);
        let list = ["inc", "dec", "min", "max", "add", "and", "or", "xor"];
        let Some(operation) = name.take_of(&list) else { return Ok(false) };
        let [to, value, barrier] = operands else { return self.operands(3) };
        let of = name.of_type(0);
        let target = self.target(to, Space::Shared)?;
        let value = self.atomic_source(value, of)?;
        match atomic::access(operation, of, target, None, [value, value]) {
            Some(access) => self.push(Action::Access(access)),
            None => return Ok(false),
        }
        self.signal(barrier, of.bytes())?;
        Ok(true)
    }

    /// Objects in shared memory at which threads and copies arrive.
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
        let has_parity = name.takes("parity");
        let is_remote = name.takes("shared::cluster");
        // An arrival with .noComplete may not be the last one.
        name.ignore(&["shared", "shared::cta", "noComplete"]);
        name.ignore(SCOPES);
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
                let to = match to {
                    Operand::Sink => None,
                    _ if is_remote => None,
                    other => Some(self.destination::<u64>(other)?),
                };
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
            Some("pending_count") => {
                let [to, state] = operands else { return self.operands(2) };
                let to = self.destination::<u32>(to)?;
                let state = self.source::<u64>(state, Type::B64)?;
                let compute = unary::<u32, u64>(to, state, |state| pending_count(state));
                self.push(Action::Compute(compute));
                return Ok(true);
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
                        Slot::Wide(row) | Slot::Pair(row) | Slot::Mask(row) => {
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

type Outcome = std::result::Result<(), Fault>;

/// Can be used by several threads.
pub(super) trait Shared: Send + Sync {}

impl<T: Send + Sync> Shared for T {}

/// Runs a function for each active lane with its address.
pub(super) fn each_lane(
    target: Target,
    run: impl Fn(&mut Registers, &mut Memory<'_>, Place, usize, u64) -> Outcome + Shared + 'static,
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

/// The address of shared memory in another block of the cluster.
fn in_block(address: u64, block: Option<u32>) -> u64 {
    let offset = (1 << CLUSTER_SHIFT) - 1;
    match block {
        None => address,
        Some(block) => address & (WINDOW_MASK | offset) | u64::from(block + 1) << CLUSTER_SHIFT,
    }
}

/// Copies bytes for one lane, or changes memory by elements of them. `change` has what becomes of
/// an element, and the bytes of one.
fn copy_bytes(
    memory: &mut Memory<'_>,
    lane: usize,
    (to_place, to): (Place, u64),
    (from_place, from): (Place, u64),
    size: u32,
    change: Option<(Change, usize)>,
) -> std::result::Result<(), Fault> {
    const CHUNK: usize = 16;
    if let Some(wrong) = [to, from, size.into()].into_iter().find(|it| it % CHUNK as u64 != 0) {
        return Err(Fault::at(FaultKind::Misaligned, wrong));
    }
    for at in (0..u64::from(size)).step_by(CHUNK) {
        let bytes = memory.load_one::<CHUNK>(from_place, lane, from.wrapping_add(at))?;
        let to = to.wrapping_add(at);
        let Some((change, element)) = change else {
            memory.store_one::<CHUNK>(to_place, lane, to, &bytes)?;
            continue;
        };
        for (place, bytes) in bytes.chunks_exact(element).enumerate() {
            let mut raw = [0; 8];
            raw[..element].copy_from_slice(bytes);
            let (value, to) = (u64::from_le_bytes(raw), to + (place * element) as u64);
            match element {
                2 => {
                    let change = |old: u16| change(old.into(), value) as u16;
                    memory.update::<u16>(to_place, lane, to, change)?;
                }
                4 => {
                    let change = |old: u32| change(old.into(), value) as u32;
                    memory.update::<u32>(to_place, lane, to, change)?;
                }
                _ => {
                    memory.update::<u64>(to_place, lane, to, |old| change(old, value))?;
                }
            }
        }
    }
    Ok(())
}
