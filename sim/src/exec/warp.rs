//! A warp: 32 threads that run together while they agree, and apart where they do not.
//!
//! A fragment is a set of lanes at one instruction. A branch on which lanes disagree splits it. The
//! parts meet again where all paths lead (a join), as the hardware's compiler arranges it. Lanes
//! may wait for others of their warp: fragments take turns, and where the lanes that a join expects
//! do not come for long, or cannot come, the join is opened, so that those at it go on alone.

use super::Grid;
use super::block::{Block, Common};
use super::builtin;
use crate::memory::fault::{Fault, FaultKind};
use crate::memory::{FUNCTION_WINDOW, Local, Memory, WINDOW_MASK};
use crate::program::flow::NEVER;
use crate::program::{
    Action, Barrier, Call, Callee, Function, Instruction, Preset, Program, Reduction, Slot,
    Special, Stack,
};
use crate::registers::{Compute, LANES, Mask, Registers, store, store_mask};

const NONE: u32 = u32::MAX;
/// Calls within each other.
const MOST_FRAMES: usize = 4096;
/// Instructions of a warp while lanes wait at a join, after which the join is opened.
const PATIENCE: u64 = 1 << 20;
/// The same if there were atomic operations among them: lanes may wait for a lock.
const LOCK_PATIENCE: u64 = 1 << 12;
/// Instructions of a fragment before another one of its warp runs.
const TURN: u64 = 1 << 12;
/// What a pause that a thread asks for counts as, in instructions.
const YIELD_COST: u64 = 1 << 16;

/// Why a warp stops running for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// All threads have exited.
    Ended,
    /// All wait for other warps; `ran` is true if an instruction ran before that.
    Blocked {
        /// True if an instruction ran.
        ran: bool,
    },
    /// A thread lets others run.
    Yielded,
    /// The quantum is used up.
    Quantum,
}

/// A call of a function that has not returned.
struct Frame {
    function: u32,
    registers: Registers,
    /// Where its local memory begins, and ends.
    base: usize,
    top: usize,
    /// The frame that called, and the instruction of the call.
    caller: u32,
    call: u32,
    /// Where its result is and goes, and how many bytes it has.
    result: Option<(usize, usize, usize)>,
    /// The lanes in it.
    lanes: u32,
}

/// Lanes at one instruction.
#[derive(Clone, Copy)]
struct Fragment {
    frame: u32,
    pc: u32,
    lanes: u32,
    /// The innermost join that waits for them.
    join: u32,
    state: State,
}

/// What a fragment waits for.
#[derive(Clone, Copy)]
enum State {
    Ready,
    /// Other lanes of the warp, at the same instruction.
    Members(u32),
    /// A barrier of the block: number, generation, and what becomes of the predicates.
    Barrier(u32, u64, Option<Reduction>),
    /// The barrier of the cluster: generation.
    Cluster(u64),
}

/// Where lanes meet that a branch or a call separated.
#[derive(Clone, Copy)]
struct Join {
    frame: u32,
    /// The instruction before the one that they continue with.
    pc: u32,
    /// The join around it.
    outer: u32,
    expected: u32,
    arrived: u32,
    /// Lanes that arrive go on at once.
    is_open: bool,
    /// The numbers of instructions and of atomic operations when the first lanes arrived.
    since: (u64, u64),
}

/// A warp.
pub(super) struct Warp {
    frames: Vec<Option<Frame>>,
    fragments: Vec<Fragment>,
    joins: Vec<Option<Join>>,
    /// Registers of functions that returned.
    spare: Vec<(u32, Registers)>,
    /// Lanes that have not exited.
    live: u32,
    index: u32,
    /// The place of its cluster.
    cluster: [u32; 3],
    /// The generation of the cluster's barrier at which the threads arrived.
    cluster_arrival: u64,
    pub(super) local: Local,
    pub(super) clock: u64,
    pub(super) updates: u64,
    /// Instructions that pauses count as.
    pauses: u64,
    /// Where the last instruction ran, for faults.
    place: (u32, u32),
    /// Lanes that met at barriers of the warp, one mask for each.
    met: Vec<u32>,
    /// Stands for the registers of a frame that does not exist.
    none: Registers,
}

fn new_registers(function: &Function) -> Registers {
    let mut registers = Registers {
        narrow: vec![[0; LANES]; function.narrow as usize],
        wide: vec![[0; LANES]; function.wide as usize],
        masks: vec![0; function.masks as usize],
    };
    for (preset, slot) in &function.presets {
        if let Preset::Bits(bits) = preset {
            fill(&mut registers, *slot, *bits);
        }
    }
    registers
}

/// Sets all lanes of a register.
fn fill(registers: &mut Registers, slot: Slot, bits: u64) {
    match slot {
        Slot::Narrow(row) => registers.narrow[row as usize] = [bits as u32; LANES],
        Slot::Wide(row) => registers.wide[row as usize] = [bits; LANES],
        Slot::Pair(row) => {
            registers.wide[row as usize] = [bits; LANES];
            registers.wide[row as usize + 1] = [0; LANES];
        }
        Slot::Mask(row) => registers.masks[row as usize] = bits as u32,
    }
}

/// Sets a register lane by lane.
fn fill_by(registers: &mut Registers, slot: Slot, value: impl Fn(u32) -> u32) {
    let row: [u32; LANES] = std::array::from_fn(|lane| value(lane as u32));
    match slot {
        Slot::Narrow(to) => registers.narrow[to as usize] = row,
        Slot::Wide(to) => registers.wide[to as usize] = row.map(u64::from),
        Slot::Pair(_) | Slot::Mask(_) => {}
    }
}

/// The place of a thread in a block.
pub(super) fn thread_of(block: [u32; 3], warp: u32, lane: u32) -> [u32; 3] {
    let index = warp * LANES as u32 + lane;
    [index % block[0], index / block[0] % block[1], index / block[0] / block[1]]
}

impl Warp {
    pub(super) fn new(grid: &Grid<'_>) -> Warp {
        let function = &grid.program.functions[grid.kernel as usize];
        let frame = Frame {
            function: grid.kernel,
            registers: new_registers(function),
            base: 0,
            top: function.frame,
            caller: NONE,
            call: 0,
            result: None,
            lanes: 0,
        };
        Warp {
            frames: vec![Some(frame)],
            fragments: Vec::new(),
            joins: Vec::new(),
            spare: Vec::new(),
            live: 0,
            index: 0,
            cluster: [0; 3],
            cluster_arrival: 0,
            local: Local { bytes: Vec::new(), each: 0 },
            clock: 0,
            updates: 0,
            pauses: 0,
            place: (0, 0),
            met: Vec::new(),
            none: Registers::default(),
        }
    }

    /// Begins with the threads of a place.
    pub(super) fn start(
        &mut self,
        grid: &Grid<'_>,
        block: &Block,
        cluster: [u32; 3],
        index: u32,
    ) -> Result<(), Fault> {
        let threads: u32 = grid.shape.block.iter().product();
        let count = (threads - index * LANES as u32).min(LANES as u32);
        let lanes = u32::MAX >> (LANES as u32 - count);
        (self.live, self.index) = (lanes, index);
        (self.clock, self.updates, self.pauses) = (0, 0, 0);
        self.cluster = cluster;
        self.joins.clear();
        self.fragments.clear();
        let fragment = Fragment { frame: 0, pc: 0, lanes, join: NONE, state: State::Ready };
        self.fragments.push(fragment);
        self.frames.truncate(1);
        let function = &grid.program.functions[grid.kernel as usize];
        self.local.reserve(function.frame, grid.options.stack_limit)?;
        let Some(Some(frame)) = self.frames.first_mut() else { return Ok(()) };
        (frame.lanes, frame.top) = (lanes, function.frame);
        self.set_presets(grid, block, 0);
        Ok(())
    }

    /// Sets the registers that have a value from the start, except for constants.
    fn set_presets(&mut self, grid: &Grid<'_>, block: &Block, frame: usize) {
        let (warp, cluster) = (self.index, self.cluster);
        let Some(Some(frame)) = self.frames.get_mut(frame) else { return };
        let function = &grid.program.functions[frame.function as usize];
        let registers = &mut frame.registers;
        for (preset, slot) in &function.presets {
            match *preset {
                Preset::Bits(_) => {}
                Preset::Symbol(symbol, offset) => {
                    let address = grid.symbols.address(symbol).wrapping_add(offset as u64);
                    fill(registers, *slot, address);
                }
                Preset::Frame(offset) => {
                    fill(registers, *slot, (frame.base as i64 + offset) as u64)
                }
                Preset::Parameter(offset, bytes, is_signed) => {
                    let mut raw = [0; 8];
                    let range = offset as usize..offset as usize + usize::from(bytes);
                    if let Some(from) = grid.parameters.get(range) {
                        raw[..from.len()].copy_from_slice(from);
                    }
                    let shift = 64 - 8 * u32::from(bytes);
                    let value = u64::from_le_bytes(raw) << shift;
                    let value = match is_signed {
                        true => (value as i64 >> shift) as u64,
                        false => value >> shift,
                    };
                    fill(registers, *slot, value);
                }
                Preset::Special(special) => {
                    set_special(registers, *slot, special, grid, block, (cluster, warp));
                }
            }
        }
    }

    /// Adds to a fault where it happened.
    pub(super) fn locate(&self, grid: &Grid<'_>, block: &Block, fault: Fault) -> Fault {
        let (function, pc) = self.place;
        let lane = fault.lane.unwrap_or(0);
        let thread = thread_of(grid.shape.block, self.index, lane);
        let code = &grid.program.functions[function as usize].code;
        let Some(Instruction { line, source, .. }) = code.get(pc as usize) else {
            return Fault { block: block.place, thread, ..fault };
        };
        let file = grid.program.files.get(&source.0);
        let source = file.map(|file| (file.clone(), source.1));
        Fault { block: block.place, thread, line: *line, source, ..fault }
    }

    /// Runs fragments until all have ended or wait, or the quantum is used up.
    pub(super) fn run(
        &mut self,
        grid: &mut Grid<'_>,
        memory: &mut Memory<'_>,
        common: &mut Common<'_>,
        quantum: u64,
    ) -> Result<Pause, Fault> {
        let begin = memory.clock;
        let end = begin + quantum;
        loop {
            if self.fragments.is_empty() {
                return Ok(Pause::Ended);
            }
            let count = self.fragments.len();
            let first = match &mut grid.random {
                Some(random) if count > 1 => random.below(count as u64) as usize,
                _ => count - 1,
            };
            // The newest first: the sides of an inner branch meet before outer ones go on.
            let order = (0..count).map(|turn| (first + count - turn) % count);
            let Some(index) = order.into_iter().find(|index| self.is_ready(*index, common)) else {
                // Those that wait here may be waited for.
                if self.open_joins(|_| true) {
                    continue;
                }
                return Ok(Pause::Blocked { ran: memory.clock != begin });
            };
            self.resume(index, memory, common);
            let index = self.merge(index);
            let turn = end.min(memory.clock + TURN);
            let Some(pause) = self.run_fragment(index, grid, memory, common, turn)? else {
                continue;
            };
            self.pause(index, pause, memory);
            if pause != Pause::Quantum || memory.clock >= end {
                return Ok(pause);
            }
        }
    }

    /// Prepares the next turn: a fragment that spins must not keep the others from running.
    fn pause(&mut self, index: usize, pause: Pause, memory: &mut Memory<'_>) {
        if index < self.fragments.len() {
            let fragment = self.fragments.remove(index);
            self.fragments.insert(0, fragment);
        }
        if pause == Pause::Yielded {
            self.pauses += YIELD_COST;
        }
        let (now, updates) = self.now(memory);
        self.open_joins(|join| {
            let patience = if join.since.1 == updates { PATIENCE } else { LOCK_PATIENCE };
            now - join.since.0 > patience
        });
    }

    /// The numbers of instructions, with what pauses count as, and of atomic operations.
    fn now(&self, memory: &Memory<'_>) -> (u64, u64) {
        (memory.clock + self.pauses, memory.updates)
    }

    /// Lets the lanes go on that wait at joins for which `opens` is true, now and in future. True
    /// if there were any.
    fn open_joins(&mut self, opens: impl Fn(&Join) -> bool) -> bool {
        let mut were_any = false;
        for index in 0..self.joins.len() {
            let Some(Some(join)) = self.joins.get_mut(index) else { continue };
            if join.arrived != 0 && opens(join) {
                join.is_open = true;
                were_any = true;
                self.settle(index as u32);
            }
        }
        were_any
    }

    /// Unites a fragment with the others at the same instruction, and returns its index.
    fn merge(&mut self, index: usize) -> usize {
        if self.fragments.len() == 1 {
            return index;
        }
        let Fragment { frame, pc, join, .. } = self.fragments[index];
        let (mut at, mut index) = (0, index);
        while let Some(other) = self.fragments.get(at) {
            let is_same = (other.frame, other.pc, other.join) == (frame, pc, join);
            if at == index || !is_same || !matches!(other.state, State::Ready) {
                at += 1;
                continue;
            }
            let lanes = other.lanes;
            self.fragments.remove(at);
            index -= usize::from(at < index);
            self.fragments[index].lanes |= lanes;
        }
        index
    }

    /// True if a fragment can run.
    fn is_ready(&self, index: usize, common: &Common<'_>) -> bool {
        match self.fragments[index].state {
            State::Ready => true,
            State::Members(_) => false,
            State::Barrier(number, generation, _) => {
                common.block.barriers[number as usize].generation > generation
            }
            State::Cluster(generation) => common.barrier.generation > generation,
        }
    }

    /// Ends a fragment's wait, and gives it the result of a barrier.
    fn resume(&mut self, index: usize, memory: &mut Memory<'_>, common: &Common<'_>) {
        let Fragment { frame, lanes, state, .. } = self.fragments[index];
        self.fragments[index].state = State::Ready;
        if let Some(races) = &mut memory.races {
            match state {
                State::Barrier(number, generation, _) => races.resume(number, generation, lanes),
                State::Cluster(generation) => races.resume_in_cluster(generation, lanes),
                State::Ready | State::Members(_) => {}
            }
        }
        let State::Barrier(number, generation, Some(reduction)) = state else { return };
        let results = common.block.barriers[number as usize].results;
        let (truths, all) = results[(generation & 1) as usize];
        let Some(Some(frame)) = self.frames.get_mut(frame as usize) else { return };
        let mask = Mask { active: lanes, whole: false };
        let bits = |is_true: bool| if is_true { u32::MAX } else { 0 };
        let registers = &mut frame.registers;
        match reduction {
            Reduction::Count(to) => store::<u32>(registers, mask, to, &[truths; LANES]),
            Reduction::All(to) => store_mask(registers, mask, to, bits(truths == all)),
            Reduction::Any(to) => store_mask(registers, mask, to, bits(truths > 0)),
        }
    }

    /// Runs a fragment until it ends, waits or pauses; `None` if another one should run.
    fn run_fragment(
        &mut self,
        index: usize,
        grid: &mut Grid<'_>,
        memory: &mut Memory<'_>,
        common: &mut Common<'_>,
        end: u64,
    ) -> Result<Option<Pause>, Fault> {
        let program = grid.program;
        let Fragment { frame: place, mut pc, lanes, join, .. } = self.fragments[index];
        let live = self.live;
        let Some(Some(frame)) = self.frames.get_mut(place as usize) else { return Ok(None) };
        let code = program.functions[frame.function as usize].code.as_slice();
        let registers = &mut frame.registers;
        let mut clock = memory.clock;
        // What computes and accesses memory runs here; the rest is rarer and below.
        let instruction = loop {
            let instruction = &code[pc as usize];
            if clock >= end {
                memory.clock = clock;
                self.fragments[index].pc = pc;
                return Ok(Some(Pause::Quantum));
            }
            clock += 1;
            let active = match instruction.guard {
                None => lanes,
                Some(condition) => lanes & condition.read(registers),
            };
            let mask = Mask { active, whole: active == live };
            match &instruction.action {
                Action::Compute(run) => {
                    if active != 0 {
                        run(registers, mask);
                    }
                    pc += 1;
                }
                Action::Access(run) => {
                    if active != 0 {
                        (memory.clock, memory.place) = (clock, (frame.function, pc));
                        if let Err(fault) = run(registers, mask, memory) {
                            self.place = (frame.function, pc);
                            return Err(fault);
                        }
                    }
                    pc += 1;
                }
                Action::Branch { target, .. } if active == lanes => pc = *target,
                Action::Join if join == NONE => pc += 1,
                _ if active == 0 && !matches!(instruction.action, Action::Join) => pc += 1,
                _ => break instruction,
            }
        };
        memory.clock = clock;
        self.place = (frame.function, pc);
        self.fragments[index].pc = pc;
        let active = match instruction.guard {
            None => lanes,
            Some(condition) => lanes & condition.read(registers),
        };
        memory.place = self.place;
        let before = self.live;
        let outcome = self.act(index, &instruction.action, active, grid, memory, common);
        if let Some(races) = &mut memory.races {
            self.met.iter().for_each(|lanes| races.meet(*lanes));
            if before != self.live {
                races.exit(before & !self.live);
            }
        }
        self.met.clear();
        outcome
    }

    /// Performs an action of control flow for the active lanes of a fragment.
    fn act(
        &mut self,
        index: usize,
        action: &Action,
        active: u32,
        grid: &mut Grid<'_>,
        memory: &mut Memory<'_>,
        common: &mut Common<'_>,
    ) -> Result<Option<Pause>, Fault> {
        let Fragment { pc, lanes, .. } = self.fragments[index];
        match action {
            Action::Branch { target, join } => {
                self.diverge(index, &[(*target, active)], lanes & !active, *join, grid);
            }
            Action::Indexed { index: row, targets, join } => {
                let mut sides: Vec<(u32, u32)> = Vec::new();
                let indices = self.registers(index).narrow[*row as usize];
                for lane in (Mask { active, whole: false }).lanes() {
                    let wild = || Fault::new(FaultKind::IllegalInstruction).of_lane(lane);
                    let target = *targets.get(indices[lane] as usize).ok_or_else(wild)?;
                    match sides.iter_mut().find(|(known, _)| *known == target) {
                        Some((_, lanes)) => *lanes |= 1 << lane,
                        None => sides.push((target, 1 << lane)),
                    }
                }
                self.diverge(index, &sides, lanes & !active, *join, grid);
            }
            Action::Join => self.arrive(index, memory),
            Action::Return => self.give_back(index, active, grid.program, memory, common),
            Action::Exit => self.exit(index, active, grid.program, common),
            Action::Call(call) => self.call(index, call, active, grid, memory, common)?,
            Action::Trap(kind) => {
                let lane = active.trailing_zeros() as usize;
                return Err(Fault::new(*kind).of_lane(lane));
            }
            Action::Stack(change) => self.change_stack(index, *change, active, grid, memory)?,
            Action::Yield => {
                self.fragments[index].pc = pc + 1;
                return Ok(Some(Pause::Yielded));
            }
            Action::Collective(members, run) => {
                let members = self.registers(index).narrow[*members as usize]
                    [active.trailing_zeros() as usize & 31];
                self.separate(index, active);
                self.meet(index, members, Some(run), grid.program);
            }
            Action::WarpBarrier(members) => {
                let members = self.registers(index).narrow[*members as usize]
                    [active.trailing_zeros() as usize & 31];
                self.separate(index, active);
                self.meet(index, members, None, grid.program);
            }
            Action::Barrier(barrier) => {
                self.separate(index, active);
                let (number, generation) = self.wait(index, barrier, common)?;
                if let Some(races) = &mut memory.races {
                    races.arrive(number, generation, active, barrier.waits);
                }
            }
            Action::ClusterBarrier { arrives, waits } => {
                self.separate(index, active);
                if *arrives {
                    self.cluster_arrival = common.barrier.arrive(active.count_ones(), 0, 0);
                    if let Some(races) = &mut memory.races {
                        races.arrive_at_cluster(self.cluster_arrival, active);
                    }
                    common.barrier.settle(*common.live);
                }
                self.fragments[index].pc = pc + 1;
                if *waits {
                    self.fragments[index].state = State::Cluster(self.cluster_arrival);
                }
            }
            // These ran already.
            Action::Compute(_) | Action::Access(_) => {}
        }
        Ok(None)
    }

    /// Changes the end of a function's local memory.
    fn change_stack(
        &mut self,
        index: usize,
        change: Stack,
        active: u32,
        grid: &Grid<'_>,
        memory: &mut Memory<'_>,
    ) -> Result<(), Fault> {
        self.fragments[index].pc += 1;
        let place = self.fragments[index].frame as usize;
        let Some(Some(frame)) = self.frames.get_mut(place) else { return Ok(()) };
        let mask = Mask { active, whole: false };
        match change {
            Stack::Allocate { to, bytes, align } => {
                let start = frame.top.next_multiple_of(align);
                let sizes = &frame.registers.wide[bytes as usize];
                let most = mask.lanes().map(|lane| sizes[lane]).max().unwrap_or(0);
                let most = usize::try_from(most).unwrap_or(usize::MAX);
                let top = start.saturating_add(most);
                memory.local.reserve(top, grid.options.stack_limit)?;
                frame.top = top;
                store::<u64>(&mut frame.registers, mask, to, &[start as u64; LANES]);
            }
            Stack::Save(to) => {
                store::<u64>(&mut frame.registers, mask, to, &[frame.top as u64; LANES]);
            }
            // While other lanes are elsewhere in the function, their memory is kept.
            Stack::Restore(from) if active == frame.lanes => {
                let ends = &frame.registers.wide[from as usize];
                let end = mask.lanes().map(|lane| ends[lane]).max().unwrap_or(0);
                frame.top = frame.top.min(usize::try_from(end).unwrap_or(usize::MAX));
            }
            Stack::Restore(_) => {}
        }
        Ok(())
    }

    fn registers(&mut self, index: usize) -> &mut Registers {
        let frame = self.fragments[index].frame as usize;
        match self.frames.get_mut(frame) {
            Some(Some(frame)) => &mut frame.registers,
            // A fragment's frame exists as long as it has lanes.
            _ => &mut self.none,
        }
    }

    /// The lanes outside of `active` go on with the next instruction.
    fn separate(&mut self, index: usize, active: u32) {
        let fragment = &mut self.fragments[index];
        let rest = fragment.lanes & !active;
        if rest != 0 {
            fragment.lanes = active;
            let others = Fragment { pc: fragment.pc + 1, lanes: rest, ..*fragment };
            self.fragments.push(others);
        }
    }

    /// Splits a fragment: some lanes go to targets, the rest to the next instruction.
    fn diverge(
        &mut self,
        index: usize,
        sides: &[(u32, u32)],
        rest: u32,
        join: u32,
        grid: &mut Grid<'_>,
    ) {
        let Fragment { frame, pc, lanes, join: outer, .. } = self.fragments[index];
        if let ([(target, _)], 0) = (sides, rest) {
            self.fragments[index].pc = *target;
            return;
        }
        let is_around = |it: &Join| it.frame == frame && it.pc == join;
        let inner = if join == NEVER || self.join(outer).is_some_and(is_around) {
            outer
        } else {
            let expected = lanes;
            let (arrived, is_open, since) = (0, false, (0, 0));
            let pc = join;
            self.add_join(Join { frame, pc, outer, expected, arrived, is_open, since })
        };
        let state = State::Ready;
        let following = (pc + 1, rest);
        let mut sides: Vec<(u32, u32)> = std::iter::once(following)
            .chain(sides.iter().copied())
            .filter(|it| it.1 != 0)
            .collect();
        if let Some(random) = &mut grid.random {
            let by = random.below(sides.len() as u64) as usize;
            sides.rotate_left(by);
        }
        // The first side goes on now.
        for (place, (pc, lanes)) in sides.into_iter().enumerate() {
            let fragment = Fragment { frame, pc, lanes, join: inner, state };
            match place {
                0 => self.fragments[index] = fragment,
                _ => self.fragments.insert(index, fragment),
            }
        }
    }

    fn join(&self, index: u32) -> Option<&Join> {
        self.joins.get(index as usize)?.as_ref()
    }

    fn add_join(&mut self, join: Join) -> u32 {
        match self.joins.iter().position(Option::is_none) {
            Some(free) => {
                self.joins[free] = Some(join);
                free as u32
            }
            None => {
                self.joins.push(Some(join));
                self.joins.len() as u32 - 1
            }
        }
    }

    /// A fragment reaches a place where lanes meet; only those of its innermost join wait.
    fn arrive(&mut self, index: usize, memory: &Memory<'_>) {
        let Fragment { frame, pc, lanes, join, .. } = self.fragments[index];
        let is_it = self.join(join).is_some_and(|it| it.frame == frame && it.pc == pc);
        if !is_it {
            self.fragments[index].pc = pc + 1;
            return;
        }
        self.fragments.remove(index);
        self.arrive_at(join, lanes, memory);
    }

    /// Lanes arrive at a join.
    fn arrive_at(&mut self, index: u32, lanes: u32, memory: &Memory<'_>) {
        let now = self.now(memory);
        if let Some(Some(join)) = self.joins.get_mut(index as usize) {
            if join.arrived == 0 {
                join.since = now;
            }
            join.arrived |= lanes;
        }
        self.settle(index);
    }

    /// Lets the lanes of a join go on if it is open or all have arrived, and ends it if none is
    /// expected any more.
    fn settle(&mut self, index: u32) {
        let Some(slot) = self.joins.get_mut(index as usize) else { return };
        let Some(join) = slot else { return };
        if join.arrived != join.expected && !join.is_open {
            return;
        }
        let Join { frame, pc, outer, arrived: lanes, .. } = *join;
        join.expected &= !lanes;
        join.arrived = 0;
        if join.expected == 0 {
            *slot = None;
        }
        if lanes != 0 {
            let (pc, state) = (pc + 1, State::Ready);
            self.fragments.push(Fragment { frame, pc, lanes, join: outer, state });
        }
    }

    /// Lanes leave joins without arriving there: those from `from` outwards, up to `until`.
    fn leave_joins(&mut self, lanes: u32, from: u32, until: u32) {
        let mut at = from;
        while at != until {
            let Some(Some(join)) = self.joins.get_mut(at as usize) else { return };
            join.expected &= !lanes;
            let outer = join.outer;
            self.settle(at);
            at = outer;
        }
    }

    /// Lanes leave a frame.
    fn leave_frame(&mut self, frame: u32, lanes: u32) {
        if frame == 0 {
            return;
        }
        let Some(slot) = self.frames.get_mut(frame as usize) else { return };
        if let Some(left) = slot {
            left.lanes &= !lanes;
            if left.lanes == 0
                && let Some(left) = slot.take()
            {
                self.spare.push((left.function, left.registers));
            }
        }
        while self.frames.len() > 1 && matches!(self.frames.last(), Some(None)) {
            self.frames.pop();
        }
    }

    /// Threads end.
    fn exit(&mut self, index: usize, lanes: u32, program: &Program, common: &mut Common<'_>) {
        self.live &= !lanes;
        let Fragment { frame, join, .. } = self.fragments[index];
        self.remove_lanes(index, lanes);
        self.leave_joins(lanes, join, NONE);
        let mut at = frame;
        while let Some(Some(it)) = self.frames.get(at as usize) {
            let caller = it.caller;
            self.leave_frame(at, lanes);
            at = caller;
        }
        common.exit(lanes.count_ones());
        self.check_members(program);
    }

    /// Takes lanes out of a fragment; those that remain skip the instruction.
    fn remove_lanes(&mut self, index: usize, lanes: u32) {
        let fragment = &mut self.fragments[index];
        fragment.lanes &= !lanes;
        fragment.pc += 1;
        if fragment.lanes == 0 {
            self.fragments.remove(index);
        }
    }

    /// Lanes return from a function; from the kernel they exit.
    fn give_back(
        &mut self,
        index: usize,
        lanes: u32,
        program: &Program,
        memory: &mut Memory<'_>,
        common: &mut Common<'_>,
    ) {
        let Fragment { frame: place, join, .. } = self.fragments[index];
        let Some(Some(frame)) = self.frames.get(place as usize) else { return };
        let Frame { caller, call, result, .. } = *frame;
        if caller == NONE {
            self.exit(index, lanes, program, common);
            return;
        }
        if let Some((from, to, bytes)) = result {
            for lane in (Mask { active: lanes, whole: false }).lanes() {
                let start = lane * memory.local.each;
                memory.local.bytes.copy_within(start + from..start + from + bytes, start + to);
            }
        }
        self.remove_lanes(index, lanes);
        // The join of the call is the innermost of the caller's frame.
        let mut at = join;
        while let Some(found) = self.join(at)
            && !(found.frame == caller && found.pc == call)
        {
            at = found.outer;
        }
        self.leave_joins(lanes, join, at);
        self.leave_frame(place, lanes);
        self.arrive_at(at, lanes, memory);
    }

    /// Calls functions, or a function of the driver.
    fn call(
        &mut self,
        index: usize,
        call: &Call,
        active: u32,
        grid: &mut Grid<'_>,
        memory: &mut Memory<'_>,
        common: &mut Common<'_>,
    ) -> Result<(), Fault> {
        let Fragment { frame, pc, lanes, join: outer, .. } = self.fragments[index];
        let Some(Some(caller)) = self.frames.get(frame as usize) else { return Ok(()) };
        let (base, top) = (caller.base, caller.top);
        let mask = Mask { active, whole: false };
        let groups: Vec<(u32, u32)> = match call.callee {
            Callee::Builtin(which) => {
                let origin = builtin::Origin { block: common.block.place, warp: self.index };
                let ends = builtin::call(which, call, base, mask, &origin, grid, memory)?;
                if ends {
                    self.exit(index, active, grid.program, common);
                } else {
                    self.fragments[index].pc = pc + 1;
                }
                return Ok(());
            }
            Callee::Function(function) => vec![(function, active)],
            Callee::Indirect(row) => {
                let mut groups: Vec<(u32, u32)> = Vec::new();
                for lane in mask.lanes() {
                    let address = caller.registers.wide[row as usize][lane];
                    let function =
                        function_at(grid.program, address).map_err(|it| it.of_lane(lane))?;
                    match groups.iter_mut().find(|(known, _)| *known == function) {
                        Some((_, lanes)) => *lanes |= 1 << lane,
                        None => groups.push((function, 1 << lane)),
                    }
                }
                groups
            }
        };
        if self.frames.len() + groups.len() > MOST_FRAMES {
            return Err(Fault::new(FaultKind::StackOverflow));
        }
        let rest = lanes & !active;
        let (expected, arrived, since) = (lanes, rest, self.now(memory));
        let join = Join { frame, pc, outer, expected, arrived, is_open: false, since };
        let join = self.add_join(join);
        self.fragments.remove(index);
        for (function, lanes) in groups {
            let callee = &grid.program.functions[function as usize];
            let base_of = top.next_multiple_of(16);
            memory.local.reserve(base_of + callee.frame, grid.options.stack_limit)?;
            for (from, to) in call.arguments.iter().zip(&callee.parameters) {
                let bytes = from.bytes.min(to.bytes);
                for lane in (Mask { active: lanes, whole: false }).lanes() {
                    let start = lane * memory.local.each;
                    let from = start + base + from.offset;
                    memory.local.bytes.copy_within(from..from + bytes, start + base_of + to.offset);
                }
            }
            let result = call.result.zip(callee.result).map(|(to, from)| {
                (base_of + from.offset, base + to.offset, from.bytes.min(to.bytes))
            });
            let known = self.spare.iter().position(|(of, _)| *of == function);
            let registers = match known {
                Some(at) => self.spare.swap_remove(at).1,
                None => new_registers(callee),
            };
            let made = Frame {
                function,
                registers,
                base: base_of,
                top: base_of + callee.frame,
                caller: frame,
                call: pc,
                result,
                lanes,
            };
            let place = self.add_frame(made);
            self.set_presets(grid, common.block, place as usize);
            let state = State::Ready;
            self.fragments.push(Fragment { frame: place, pc: 0, lanes, join, state });
        }
        Ok(())
    }

    fn add_frame(&mut self, frame: Frame) -> u32 {
        match self.frames.iter().position(Option::is_none) {
            Some(free) => {
                self.frames[free] = Some(frame);
                free as u32
            }
            None => {
                self.frames.push(Some(frame));
                self.frames.len() as u32 - 1
            }
        }
    }

    /// A fragment waits for the lanes of a mask; if all are here, they run an instruction together.
    fn meet(&mut self, index: usize, members: u32, run: Option<&Compute>, program: &Program) {
        let Fragment { lanes, pc, .. } = self.fragments[index];
        if members & self.live & !lanes != 0 {
            self.fragments[index].state = State::Members(members);
            self.check_members(program);
            return;
        }
        match run {
            Some(run) => {
                let mask = Mask { active: lanes, whole: lanes == self.live };
                run(self.registers(index), mask);
            }
            None => self.met.push(lanes),
        }
        self.fragments[index].pc = pc + 1;
    }

    /// Lets those fragments go on whose lanes have all come.
    fn check_members(&mut self, program: &Program) {
        let mut at = 0;
        while let Some(first) = self.fragments.get(at).copied() {
            at += 1;
            let State::Members(members) = first.state else { continue };
            let Some(Some(frame)) = self.frames.get(first.frame as usize) else { continue };
            let code = &program.functions[frame.function as usize].code;
            let Some(Instruction { action, .. }) = code.get(first.pc as usize) else { continue };
            let is_collective = matches!(action, Action::Collective(..));
            // Lanes meet at the same instruction; at a barrier of the warp, at any.
            let is_here = |it: &Fragment| {
                matches!(it.state, State::Members(others) if others == members)
                    && (!is_collective || (it.pc == first.pc && it.frame == first.frame))
            };
            let all =
                self.fragments.iter().filter(|it| is_here(it)).fold(0, |all, it| all | it.lanes);
            if members & self.live & !all != 0 {
                continue;
            }
            let mut gone: Vec<Fragment> = Vec::new();
            self.fragments.retain(|it| {
                let is_here = is_here(it);
                if is_here {
                    gone.push(*it);
                }
                !is_here
            });
            if let Action::Collective(_, run) = action
                && let Some(Some(frame)) = self.frames.get_mut(first.frame as usize)
            {
                run(&mut frame.registers, Mask { active: all, whole: all == self.live });
            }
            if !is_collective {
                self.met.push(all);
            }
            for mut fragment in gone {
                (fragment.pc, fragment.state) = (fragment.pc + 1, State::Ready);
                let is_same = |it: &&mut Fragment| {
                    matches!(it.state, State::Ready)
                        && (it.frame, it.pc, it.join)
                            == (fragment.frame, fragment.pc, fragment.join)
                };
                match self.fragments.iter_mut().find(is_same) {
                    Some(same) => same.lanes |= fragment.lanes,
                    None => self.fragments.push(fragment),
                }
            }
            at = 0;
        }
    }

    /// A fragment arrives at a barrier of the block.
    /// Returns the number of the barrier and its generation.
    fn wait(
        &mut self,
        index: usize,
        barrier: &Barrier,
        common: &mut Common<'_>,
    ) -> Result<(u32, u64), Fault> {
        let Fragment { pc, lanes, .. } = self.fragments[index];
        let registers = self.registers(index);
        let lane = lanes.trailing_zeros() as usize;
        let number = registers.narrow[barrier.number as usize][lane];
        let threads = barrier.threads.map_or(0, |row| registers.narrow[row as usize][lane]);
        let truths = barrier
            .reduction
            .map_or(0, |(_, condition)| (condition.read(registers) & lanes).count_ones());
        let live = common.block.live;
        let Some(state) = common.block.barriers.get_mut(number as usize) else {
            return Err(Fault::new(FaultKind::IllegalInstruction).of_lane(lane));
        };
        if !threads.is_multiple_of(LANES as u32) {
            return Err(Fault::new(FaultKind::IllegalInstruction).of_lane(lane));
        }
        let mut count = lanes.count_ones();
        // Where warps count, their lanes that have exited or never were count with the lowest one.
        if threads != 0 && lanes & self.live & self.live.wrapping_neg() != 0 {
            count += LANES as u32 - self.live.count_ones();
        }
        let generation = state.arrive(count, threads, truths);
        state.settle(live);
        let fragment = &mut self.fragments[index];
        fragment.pc = pc + 1;
        if barrier.waits {
            let reduction = barrier.reduction.map(|(reduction, _)| reduction);
            fragment.state = State::Barrier(number, generation, reduction);
        }
        Ok((number, generation))
    }
}

/// The function at an address.
fn function_at(program: &Program, address: u64) -> Result<u32, Fault> {
    let index = (address & !WINDOW_MASK) >> 4;
    let is_function = address & WINDOW_MASK == FUNCTION_WINDOW && address & 15 == 0 && index > 0;
    match program.functions.get(index.wrapping_sub(1) as usize) {
        Some(function) if is_function && function.is_defined => Ok(index as u32 - 1),
        _ => Err(Fault::at(FaultKind::IllegalCall, address)),
    }
}

/// Sets one of the special registers.
fn set_special(
    registers: &mut Registers,
    slot: Slot,
    special: Special,
    grid: &Grid<'_>,
    block: &Block,
    (cluster, warp): ([u32; 3], u32),
) {
    let shape = &grid.shape;
    let dimension = |values: [u32; 3], d: u8| values.get(usize::from(d)).copied().unwrap_or(0);
    let extent = |values: [u32; 3], d: u8| values.get(usize::from(d)).copied().unwrap_or(1);
    let size: u32 = shape.cluster.iter().product();
    let value = match special {
        Special::Tid(d) => {
            return fill_by(registers, slot, |lane| {
                dimension(thread_of(shape.block, warp, lane), d)
            });
        }
        Special::LaneId => return fill_by(registers, slot, |lane| lane),
        Special::LanemaskEq => return fill_by(registers, slot, |lane| 1 << lane),
        Special::LanemaskLt => return fill_by(registers, slot, |lane| (1 << lane) - 1),
        Special::LanemaskLe => return fill_by(registers, slot, |lane| u32::MAX >> (31 - lane)),
        Special::LanemaskGe => return fill_by(registers, slot, |lane| u32::MAX << lane),
        Special::LanemaskGt => return fill_by(registers, slot, |lane| (u32::MAX << lane) << 1),
        Special::Ntid(d) => extent(shape.block, d),
        Special::Ctaid(d) => dimension(block.place, d),
        Special::Nctaid(d) => extent(shape.grid, d),
        Special::WarpId => warp,
        Special::NwarpId => shape.block.iter().product::<u32>().div_ceil(LANES as u32),
        Special::SmId => {
            let [x, y, z] = block.place;
            let index = (z * shape.grid[1] + y).wrapping_mul(shape.grid[0]).wrapping_add(x);
            let of_device = index % grid.options.multiprocessors.max(1);
            grid.machine.multiprocessor(index).unwrap_or(of_device)
        }
        Special::NsmId => grid.options.multiprocessors,
        Special::GridId => return fill(registers, slot, grid.options.launch),
        Special::ClusterId(d) => dimension(cluster, d),
        Special::NclusterId(d) => {
            let d = usize::from(d).min(2);
            shape.grid[d] / shape.cluster[d].max(1)
        }
        Special::ClusterCtaid(d) => dimension(block.inner, d),
        Special::ClusterNctaid(d) => extent(shape.cluster, d),
        Special::ClusterCtarank => block.rank,
        Special::ClusterNctarank => size,
        Special::IsExplicitCluster => {
            return fill(registers, slot, if size > 1 { u64::MAX } else { 0 });
        }
        Special::DynamicShared => shape.dynamic_shared,
        Special::TotalShared => grid.shared_bytes as u32,
        Special::GridWorkspace(half) => (grid.machine.grid_workspace() >> (32 * half)) as u32,
    };
    fill(registers, slot, value.into());
}
