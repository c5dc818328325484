//! A cluster of blocks: their shared memory, their barriers, and the turns of their warps.

use super::warp::{Pause, Warp};
use super::{Grid, Slice};
use crate::memory::fault::{Fault, FaultKind};
use crate::memory::{Local, Memory, Shared};
use crate::registers::LANES;

/// Barriers of a block.
const BARRIERS: usize = 16;
/// Instructions of a warp before another one runs.
const QUANTUM: u64 = 1 << 16;
/// The same in a cooperative launch, whose blocks wait for each other.
const COOPERATIVE_QUANTUM: u64 = 1 << 12;
/// Quanta of a warp in a row, if it does not wait.
const PATIENCE: u32 = 16;

/// A barrier at which threads of a block, or of a cluster, wait.
#[derive(Clone, Copy, Default)]
pub(super) struct Barrier {
    /// Threads that have arrived.
    arrived: u32,
    /// The number that the arrivals named; 0: all threads that have not exited.
    threads: u32,
    /// How often all have arrived.
    pub(super) generation: u64,
    /// Of the arrivals so far: true predicates, and whether there was a false one.
    count: u32,
    /// Results of the last two generations: the number of true predicates, and of all.
    pub(super) results: [(u32, u32); 2],
}

impl Barrier {
    /// Threads arrive; returns the generation that they wait for to end.
    pub(super) fn arrive(&mut self, lanes: u32, threads: u32, truths: u32) -> u64 {
        self.arrived += lanes;
        self.threads = threads;
        self.count += truths;
        self.generation
    }

    /// Ends the generation if all have arrived.
    pub(super) fn settle(&mut self, live: u32) {
        let expected = if self.threads == 0 { live } else { self.threads };
        if self.arrived == 0 || self.arrived < expected {
            return;
        }
        self.results[(self.generation & 1) as usize] = (self.count, self.arrived);
        (self.arrived, self.count, self.threads) = (0, 0, 0);
        self.generation += 1;
    }
}

/// What the warps of a block share.
pub(super) struct Block {
    /// Its place in the grid.
    pub(super) place: [u32; 3],
    /// Its place in the cluster.
    pub(super) inner: [u32; 3],
    /// Its rank in the cluster.
    pub(super) rank: u32,
    pub(super) barriers: [Barrier; BARRIERS],
    /// Threads that have not exited.
    pub(super) live: u32,
    warps: Vec<Seat>,
}

/// A warp of a block.
enum Seat {
    /// It has not started.
    Waiting,
    Running(Box<Warp>),
    Ended,
}

/// The blocks of a cluster.
pub(super) struct Cluster {
    /// Its place among the clusters.
    pub(super) place: [u32; 3],
    blocks: Vec<Block>,
    shared: Shared,
    /// The barrier of the cluster.
    pub(super) barrier: Barrier,
    /// Threads that have not exited.
    pub(super) live: u32,
}

impl Cluster {
    pub(super) fn new(grid: &mut Grid<'_>, place: [u32; 3]) -> Result<Cluster, Fault> {
        let size: usize = grid.shape.cluster.iter().map(|count| *count as usize).product();
        let threads: u32 = grid.shape.block.iter().product();
        let each = grid.shared_bytes;
        let mut bytes = Vec::new();
        let fails = |_| Fault::new(FaultKind::OutOfMemory);
        bytes.try_reserve_exact(each * size).map_err(fails)?;
        bytes.resize(each * size, 0);
        let blocks = (0..size as u32).map(|rank| Block {
            place: [0; 3],
            inner: [0; 3],
            rank,
            barriers: [Barrier::default(); BARRIERS],
            live: 0,
            warps: (0..threads.div_ceil(LANES as u32)).map(|_| Seat::Ended).collect(),
        });
        let (blocks, shared) = (blocks.collect(), Shared { bytes, each });
        let mut cluster = Cluster { place, blocks, shared, barrier: Barrier::default(), live: 0 };
        cluster.start(grid, place);
        Ok(cluster)
    }

    /// Begins the blocks of another place.
    pub(super) fn start(&mut self, grid: &mut Grid<'_>, place: [u32; 3]) {
        let (shape, threads) = (grid.shape, grid.shape.block.iter().product::<u32>());
        if let Some(races) = &mut grid.races {
            races.start(place);
        }
        self.place = place;
        self.barrier = Barrier::default();
        self.live = threads * self.blocks.len() as u32;
        for block in &mut self.blocks {
            let [x, y, _] = shape.cluster;
            block.inner = [block.rank % x, block.rank / x % y, block.rank / x / y];
            block.place = std::array::from_fn(|d| place[d] * shape.cluster[d] + block.inner[d]);
            block.barriers = [Barrier::default(); BARRIERS];
            block.live = threads;
            block.warps.iter_mut().for_each(|seat| *seat = Seat::Waiting);
        }
    }

    /// Runs the warps until all have ended, or others should run.
    pub(super) fn run(&mut self, grid: &mut Grid<'_>) -> Result<Slice, Fault> {
        loop {
            let (mut progress, mut unfinished, mut should_wait) = (false, false, false);
            for block in 0..self.blocks.len() {
                let count = self.blocks[block].warps.len();
                let first = grid.random.as_mut().map_or(0, |it| it.below(count as u64) as usize);
                for turn in 0..count {
                    let warp = (first + turn) % count;
                    match self.run_warp(grid, block, warp)? {
                        None => {}
                        Some(Pause::Ended) => progress = true,
                        Some(Pause::Blocked { ran }) => {
                            progress |= ran;
                            unfinished = true;
                        }
                        Some(Pause::Yielded | Pause::Quantum) => {
                            (progress, unfinished, should_wait) = (true, true, true);
                        }
                    }
                }
            }
            if !unfinished {
                return Ok(Slice::Finished);
            }
            if !progress {
                // All wait for each other.
                return Err(self.deadlock(grid));
            }
            if should_wait {
                grid.check_time()?;
                return Ok(Slice::Unfinished);
            }
        }
    }

    fn deadlock(&self, _: &Grid<'_>) -> Fault {
        Fault { block: self.blocks[0].place, ..Fault::new(FaultKind::TimeLimit) }
    }

    /// Runs a warp until it pauses; `None` if it has ended before.
    fn run_warp(
        &mut self,
        grid: &mut Grid<'_>,
        block: usize,
        index: usize,
    ) -> Result<Option<Pause>, Fault> {
        let seat = &mut self.blocks[block].warps[index];
        let mut warp = match std::mem::replace(seat, Seat::Ended) {
            Seat::Ended => return Ok(None),
            Seat::Running(warp) => *warp,
            Seat::Waiting => {
                let mut warp = match grid.spare.pop() {
                    Some(warp) => warp,
                    None => Warp::new(grid),
                };
                warp.start(grid, &self.blocks[block], self.place, index as u32)?;
                warp
            }
        };
        if let Some(races) = &mut grid.races {
            races.enter(self.place, block, index as u32);
        }
        let mut local = std::mem::replace(&mut warp.local, Local { bytes: Vec::new(), each: 0 });
        let mut memory = Memory {
            machine: grid.machine,
            read: grid.windows[0],
            written: grid.windows[1],
            shared: &mut self.shared,
            rank: block,
            local: &mut local,
            parameters: grid.parameters,
            clock: warp.clock,
            updates: warp.updates,
            place: (0, 0),
            races: grid.races.take(),
        };
        let mut common = Common {
            block: &mut self.blocks[block],
            barrier: &mut self.barrier,
            live: &mut self.live,
        };
        let (most, mut patience) = match grid.options.cooperative {
            true => (COOPERATIVE_QUANTUM, 0),
            false => (QUANTUM, PATIENCE),
        };
        let outcome = loop {
            let quantum = match &mut grid.random {
                None => most,
                Some(random) => 1 + random.below(200),
            };
            match warp.run(grid, &mut memory, &mut common, quantum) {
                Ok(Pause::Quantum) if grid.random.is_none() && patience > 0 => {
                    patience -= 1;
                    if let Err(fault) = grid.check_time() {
                        break Err(fault);
                    }
                }
                outcome => break outcome,
            }
        };
        grid.windows = [memory.read, memory.written];
        grid.races = memory.races.take();
        (warp.clock, warp.updates) = (memory.clock, memory.updates);
        warp.local = local;
        let pause = outcome.map_err(|fault| warp.locate(grid, &self.blocks[block], fault))?;
        match pause {
            Pause::Ended => grid.spare.push(warp),
            _ => self.blocks[block].warps[index] = Seat::Running(Box::new(warp)),
        }
        Ok(Some(pause))
    }
}

/// What a warp changes of its block and cluster.
pub(super) struct Common<'a> {
    pub(super) block: &'a mut Block,
    pub(super) barrier: &'a mut Barrier,
    pub(super) live: &'a mut u32,
}

impl Common<'_> {
    /// Threads exit; barriers no longer wait for them.
    pub(super) fn exit(&mut self, lanes: u32) {
        self.block.live -= lanes;
        *self.live -= lanes;
        let live = self.block.live;
        self.block.barriers.iter_mut().for_each(|barrier| barrier.settle(live));
        self.barrier.settle(*self.live);
    }
}
