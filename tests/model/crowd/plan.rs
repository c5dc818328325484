//! What a crowd of threads is going to do: a machine, streams, rounds. It all follows from a seed;
//! what the threads then do to each other does not.

use super::super::ops::{MIB, Rule, text_of};
use super::super::world::Machine;

/// Random numbers that are the same everywhere.
#[derive(Clone, Debug)]
pub struct Choice(u64);

impl Choice {
    pub fn new(seed: u64) -> Choice {
        Choice(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// What each thread may do in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Everything at once.
    Mixed,
    /// Nothing is freed: peaks are what is held at the end.
    Allocate,
    /// Nothing is allocated: peaks stay.
    Free,
    /// Thread 0 has the large blocks for itself, the others share the small ones: the peaks of the
    /// large pool are those of one thread.
    Split,
    /// Each thread keeps to a device, as long as there are enough.
    Devices,
}

#[derive(Clone, Debug)]
pub struct Round {
    pub flavour: Flavour,
    /// Operations of each thread.
    pub steps: usize,
    /// Driver calls that fail meanwhile, as tcuda_backend_faults takes them; or none.
    pub faults: String,
    pub resets_peak: bool,
    pub resets_totals: bool,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub machine: Machine,
    pub seed: u64,
    pub threads: usize,
    /// Streams of each device that all threads use, beside the default one; every thread has one of
    /// its own as well.
    pub shared: usize,
    /// The largest block.
    pub largest: u64,
    /// The sizes of all blocks; any, if there are none here.
    pub sizes: Vec<u64>,
    /// Nothing may run out of memory.
    pub is_roomy: bool,
    pub rounds: Vec<Round>,
}

const CALLS: &[&str] = &[
    "*",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamWaitEvent",
    "cuStreamIsCapturing",
    "cuStreamSynchronize",
    "cuStreamQuery",
    "cuMemcpyAsync",
    "cuMemsetD8Async",
    "cuCtxPushCurrent",
];

fn faults(choice: &mut Choice) -> String {
    let rules = (0..choice.between(1, 4)).map(|_| {
        let (call, nth, forever) = (choice.of(CALLS), choice.between(1, 40), choice.once_in(4));
        let effect = choice.of(&["1", "2", "2", "999", "slow:50us"]);
        Rule { call, nth, effect, forever }
    });
    text_of(rules)
}

impl Plan {
    pub fn new(seed: u64, schedule: &str) -> Plan {
        let mut choice = Choice::new(seed);
        let threads = choice.between(2, 8) as usize;
        let is_roomy = choice.once_in(3);
        let memory_mib = if is_roomy { 4096 } else { choice.of(&[8, 16, 32, 64]) };
        let schedule = match schedule {
            "adversarial" => format!("adversarial:{}", choice.next() as u32),
            other => other.to_owned(),
        };
        let peers = choice.of(&["full", "none", "pairs"]);
        let devices = choice.between(1, 3) as i32;
        let shares = choice.once_in(2);
        let machine = Machine { devices, memory_mib, peers, schedule, shares };
        let flavours = [
            Flavour::Mixed,
            Flavour::Mixed,
            Flavour::Mixed,
            Flavour::Allocate,
            Flavour::Free,
            Flavour::Split,
            Flavour::Devices,
        ];
        let rounds = (0..choice.between(2, 8))
            .map(|_| Round {
                flavour: choice.of(&flavours),
                steps: choice.between(1, 60) as usize,
                faults: if choice.once_in(3) { faults(&mut choice) } else { String::new() },
                resets_peak: choice.once_in(2),
                resets_totals: choice.once_in(3),
            })
            .collect();
        let shared = choice.between(0, 3) as usize;
        let largest = if is_roomy { 3 * MIB } else { 12 * MIB };
        let sizes = (0..choice.below(3)).map(|_| choice.between(1, 3 * MIB)).collect();
        Plan { machine, seed, threads, shared, largest, sizes, is_roomy, rounds }
    }

    /// May this thread use blocks of this size and device in a round?
    pub fn allows(&self, flavour: Flavour, thread: usize, is_small: bool, device: usize) -> bool {
        let devices = self.machine.devices as usize;
        match flavour {
            Flavour::Split => is_small == (thread != 0),
            Flavour::Devices if self.threads <= devices => device == thread,
            Flavour::Devices => device == thread % devices,
            _ => true,
        }
    }
}
