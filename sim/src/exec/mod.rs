//! Runs a kernel: its grid of clusters of blocks of warps.
//!
//! One thread of the host runs all blocks. A warp runs until it ends or waits; then the next one
//! runs. So a kernel without barriers needs the registers of one warp only. Blocks that wait for
//! other blocks (cooperative kernels, spin locks) are resident together and take turns.

mod block;
mod builtin;
pub mod heap;
mod races;
mod random;
mod warp;

use crate::memory::fault::{Fault, FaultKind};
use crate::memory::race::{Detector, Settings};
use crate::memory::{Machine, Window};
use crate::program::{Program, Symbol, function_address};
use block::Cluster;
use random::Random;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use warp::Warp;

/// Warps whose registers are kept for the next launch.
const KEPT_WARPS: usize = 64;
/// Clusters that are resident together at most, if they wait for each other.
const RESIDENT: usize = 256;

/// A kernel of a loaded module.
pub struct Kernel {
    program: Arc<Program>,
    index: u32,
    /// Where its shared variables begin.
    shared: BTreeMap<u32, usize>,
    /// Bytes of shared memory besides the launch's.
    pub shared_bytes: usize,
    /// Bytes of its parameters.
    pub parameter_bytes: usize,
    warps: Mutex<Vec<Warp>>,
}

/// The blocks and threads of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Blocks of a cluster in x, y and z.
    pub cluster: [u32; 3],
    /// Bytes of shared memory for arrays without a size.
    pub dynamic_shared: u32,
}

/// How a kernel runs.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Orders blocks and interleaves warps; `None`: one after the other.
    pub seed: Option<u64>,
    /// The longest time that a kernel may take.
    pub time_limit: Duration,
    /// The most local memory that a thread may have.
    pub stack_limit: usize,
    /// The number of multiprocessors that kernels see.
    pub multiprocessors: u32,
    /// The number of the launch.
    pub launch: u64,
    /// Looks for races; the machine takes the reports. Kernels that mostly access memory take about
    /// ten times as long.
    pub races: Option<Settings>,
    /// All clusters are resident from the start, so that they can wait for each other.
    pub cooperative: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            seed: None,
            time_limit: Duration::from_secs(60),
            stack_limit: 512 << 10,
            multiprocessors: 132,
            launch: 0,
            races: None,
            cooperative: false,
        }
    }
}

impl Kernel {
    /// A kernel of a program by name.
    pub fn find(program: &Arc<Program>, name: &str) -> Option<Kernel> {
        let index = program.kernel(name)?;
        Some(Kernel::new(program, index))
    }

    /// The kernel at an index of the program's functions.
    pub fn new(program: &Arc<Program>, index: u32) -> Kernel {
        let (shared, shared_bytes) = program.shared_layout(index);
        let parameters = &program.functions[index as usize].parameters;
        let parameter_bytes = parameters.iter().map(|it| it.offset + it.bytes).max().unwrap_or(0);
        let (program, warps) = (Arc::clone(program), Mutex::default());
        Kernel { program, index, shared, shared_bytes, parameter_bytes, warps }
    }

    /// The program that contains it.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Its index among the functions of the program.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Runs it to its end. `addresses` are those of the program's variables, `parameters` the bytes
    /// of its parameters.
    pub fn run(
        &self,
        machine: &dyn Machine,
        addresses: &[u64],
        shape: Shape,
        parameters: &[u8],
        options: &Options,
    ) -> Result<(), Fault> {
        let warps = std::mem::take(&mut *self.warps.lock().unwrap_or_else(PoisonError::into_inner));
        let mut grid = Grid {
            program: &self.program,
            kernel: self.index,
            machine,
            symbols: Symbols { addresses, shared: &self.shared },
            shape,
            parameters,
            options,
            shared_bytes: self.shared_bytes + shape.dynamic_shared as usize,
            random: options.seed.map(|seed| Random::new(seed ^ options.launch.rotate_left(32))),
            end: Instant::now() + options.time_limit,
            failed: None,
            windows: [Window::EMPTY; 2],
            spare: warps,
            clusters: Vec::new(),
            races: None,
        };
        if let Some(settings) = options.races {
            grid.look_for_races(settings);
        }
        let outcome = grid.run().and_then(|()| match grid.failed.take() {
            Some(fault) => Err(fault),
            None => Ok(()),
        });
        if let Some(races) = grid.races.take() {
            races::report(machine, &races.summary());
        }
        grid.spare.truncate(KEPT_WARPS);
        let mut kept = self.warps.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < grid.spare.len() {
            *kept = grid.spare;
        }
        outcome.map_err(|fault| Fault {
            kernel: self.program.functions[self.index as usize].name.clone(),
            ..fault
        })
    }
}

/// The addresses of what a kernel names.
#[derive(Clone, Copy)]
struct Symbols<'a> {
    addresses: &'a [u64],
    shared: &'a BTreeMap<u32, usize>,
}

impl Symbols<'_> {
    fn address(&self, symbol: Symbol) -> u64 {
        match symbol {
            Symbol::Function(index) => function_address(index),
            Symbol::Variable(index) => match self.shared.get(&index) {
                Some(offset) => *offset as u64,
                None => self.addresses.get(index as usize).copied().unwrap_or(0),
            },
        }
    }
}

/// A launch that runs.
struct Grid<'a> {
    program: &'a Program,
    kernel: u32,
    machine: &'a dyn Machine,
    symbols: Symbols<'a>,
    shape: Shape,
    parameters: &'a [u8],
    options: &'a Options,
    /// Bytes of shared memory of a block.
    shared_bytes: usize,
    random: Option<Random>,
    end: Instant,
    /// A fault that ends the kernel only after its last thread: a failed assertion.
    failed: Option<Fault>,
    /// The memory that was read and written last.
    windows: [Window; 2],
    /// Warps whose registers can be used again.
    spare: Vec<Warp>,
    /// Clusters whose memory can be used again.
    clusters: Vec<Cluster>,
    /// Looks for races.
    races: Option<Box<Detector>>,
}

/// What a slice of a cluster's run came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slice {
    /// All threads have ended.
    Finished,
    /// Others should run.
    Unfinished,
}

impl Grid<'_> {
    fn run(&mut self) -> Result<(), Fault> {
        let Shape { grid, cluster, .. } = self.shape;
        let counts: [u64; 3] = std::array::from_fn(|d| u64::from(grid[d] / cluster[d].max(1)));
        let total: u64 = counts.iter().product();
        // In the order of the seed: a multiple of an odd number that has no factor with the total.
        let (step, first) = match &mut self.random {
            None => (1, 0),
            Some(random) => (coprime(random.next(), total), random.next() % total.max(1)),
        };
        let mut resident = VecDeque::new();
        let mut started = 0u64;
        let eager = match &mut self.random {
            _ if self.options.cooperative => usize::MAX,
            Some(random) => 1 + random.below(4) as usize,
            None => 1,
        };
        loop {
            while started < total && resident.len() < eager {
                let index =
                    (first as u128 + u128::from(started) * u128::from(step)) % u128::from(total);
                resident.push_back(self.start(index as u64, counts)?);
                started += 1;
            }
            let Some(mut current) = resident.pop_front() else { return Ok(()) };
            match current.run(self)? {
                Slice::Finished => {
                    if let Some(races) = &mut self.races {
                        races.finish(current.place);
                    }
                    self.clusters.push(current);
                }
                Slice::Unfinished => {
                    // It may wait for a block that has not started.
                    if started < total && resident.len() < RESIDENT {
                        let index = (first as u128 + u128::from(started) * u128::from(step))
                            % u128::from(total);
                        resident.push_back(self.start(index as u64, counts)?);
                        started += 1;
                    }
                    resident.push_back(current);
                }
            }
        }
    }

    fn start(&mut self, index: u64, counts: [u64; 3]) -> Result<Cluster, Fault> {
        let place = [
            (index % counts[0]) as u32,
            (index / counts[0] % counts[1]) as u32,
            (index / counts[0] / counts[1]) as u32,
        ];
        match self.clusters.pop() {
            Some(mut cluster) => {
                cluster.start(self, place);
                Ok(cluster)
            }
            None => Cluster::new(self, place),
        }
    }

    /// Fails if the kernel has run too long or is to end.
    fn check_time(&self) -> Result<(), Fault> {
        if Instant::now() > self.end || self.machine.is_cancelled() {
            return Err(Fault::new(FaultKind::TimeLimit));
        }
        Ok(())
    }
}

/// A number that has no factor in common with `total`.
fn coprime(from: u64, total: u64) -> u64 {
    let divisor = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let mut step = from % total.max(1);
    while divisor(step, total) != 1 {
        step += 1;
    }
    step
}
