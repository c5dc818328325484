//! The decisions of an adversarial seed. Each decision is a function of the seed and of the
//! operation's number, without a generator that advances. So removing one decision does not change
//! the others.

use super::queue::Action;

/// Maximum delay, in later operations, of an operation without a waiter. Queues stay bounded, as
/// those of a driver are.
const FOREVER: u64 = 4096;

/// Hash inputs for the kinds of decisions, so that decisions about one operation are independent.
const DELAY: u64 = 1;
const ORDER: u64 = 2;
const TEAR: u64 = 3;
const PATIENCE: u64 = 4;
const EPOCHS: u64 = 5;
const SELECT: u64 = 6;
const PREEMPT: u64 = 7;

/// The pattern of delays that a seed uses for a whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DelayPattern {
    /// An operation runs only when a wait requires it; of the runnable operations, the newest
    /// first.
    Reverse,
    /// An operation runs only when a wait requires it, in random order.
    Lazy,
    /// Every operation has its own random delay.
    RandomDelay,
    /// Streams have priorities, which change at a few operations.
    Streams,
    /// The operations of one stream in N are delayed, the others run at once.
    Starved(u64),
    /// One operation in N is delayed, the others run at once.
    Few(u64),
    /// Operations of one kind are delayed, the others run at once.
    Kind(u8),
}

/// The schedule of one operation.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    /// Number of operations that are queued after it before it becomes due; 0: it runs at once.
    pub(super) delay: u64,
    /// Priority: of the runnable operations, the one with the lowest key runs first.
    pub(super) key: u64,
    pub(super) tear: Tear,
    /// Number of queries that return "not ready" before a query runs the operation.
    pub(super) patience: u8,
}

/// How an operation is split into two steps, between which others may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tear {
    Whole,
    /// First half first.
    Halves,
    /// Second half first.
    Backwards,
    /// The first step reads everything, the second step writes everything.
    ReadsEarly,
}

/// The decisions of a seed.
pub(super) struct Strategy {
    seed: u64,
    pattern: DelayPattern,
    /// One operation in N is torn; 0: none.
    torn: u64,
    /// The byte that fills memory which was never written; 0: memory is not filled.
    pub(super) poison: u8,
    /// One call of a thread in N switches to another thread.
    preempt_one_in: u64,
    /// Numbers of operations at which the priorities of streams change.
    changes: [u64; 4],
}

/// Spreads a number over all bits (the finaliser of splitmix64).
const fn mix(mut value: u64) -> u64 {
    value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Strategy {
    pub(super) fn new(seed: u64) -> Strategy {
        let mut strategy = Strategy {
            seed: mix(seed),
            pattern: DelayPattern::Reverse,
            torn: 0,
            poison: 0,
            preempt_one_in: 1,
            changes: [0; 4],
        };
        // Seed 0 only delays operations.
        if seed == 0 {
            return strategy;
        }
        let choice = strategy.seed;
        strategy.pattern = match choice % 10 {
            0 | 1 => DelayPattern::Lazy,
            2 | 3 => DelayPattern::RandomDelay,
            4 | 5 => DelayPattern::Streams,
            6 => DelayPattern::Starved(2 + (choice >> 8) % 3),
            7 | 8 => DelayPattern::Few([2, 4, 8, 32][(choice >> 8) as usize % 4]),
            _ => DelayPattern::Kind((choice >> 8) as u8 % 4),
        };
        strategy.torn = [0, 1, 2, 8][(choice >> 16) as usize % 4];
        strategy.poison = if (choice >> 24) % 2 == 1 { (choice >> 32) as u8 | 0x81 } else { 0 };
        strategy.preempt_one_in = [1, 3, 10, 50][(choice >> 40) as usize % 4];
        // The length of the run is unknown, so change `i` has a range that grows with `i`.
        for index in 0..strategy.changes.len() {
            let random = strategy.hash(EPOCHS, index as u64);
            strategy.changes[index] = random % (8 << (3 * index));
        }
        strategy
    }

    #[inline]
    fn hash(&self, purpose: u64, number: u64) -> u64 {
        mix(self.seed ^ mix(purpose << 56 ^ number))
    }

    /// The plan of operation `number` (from 1) on the `order`th stream in order of first use.
    pub(super) fn plan(&self, number: u64, order: u64, action: &Action) -> Plan {
        let random = self.hash(DELAY, number);
        let one_in = |count: u64| random.is_multiple_of(count);
        let (late, key) = match self.pattern {
            DelayPattern::Reverse => (true, u64::MAX - number),
            DelayPattern::Lazy => (true, self.hash(ORDER, number)),
            DelayPattern::RandomDelay => {
                let delay = random % (2 << (random >> 32 & 3));
                return Plan { delay, ..self.details(number, self.hash(ORDER, number)) };
            }
            DelayPattern::Streams => {
                let epoch = self.changes.iter().filter(|change| **change <= number).count() as u64;
                (true, self.hash(ORDER, order << 3 | epoch))
            }
            DelayPattern::Starved(count) => (self.hash(ORDER, order).is_multiple_of(count), number),
            DelayPattern::Few(count) => (one_in(count), number),
            DelayPattern::Kind(kind) => (kind == kind_of(action), number),
        };
        Plan { delay: if late { FOREVER } else { 0 }, ..self.details(number, key) }
    }

    /// Selects the thread that runs, of `threads` runnable ones.
    pub(super) fn select(&self, decision: u64, threads: usize) -> usize {
        (self.hash(SELECT, decision) % threads as u64) as usize
    }

    /// True if the thread that has just run must yield to another.
    pub(super) fn preempts(&self, decision: u64) -> bool {
        self.hash(PREEMPT, decision).is_multiple_of(self.preempt_one_in)
    }

    /// The plan of an operation that runs as soon as possible.
    pub(super) fn undelayed(number: u64) -> Plan {
        Plan { delay: 0, key: number, tear: Tear::Whole, patience: 0 }
    }

    fn details(&self, number: u64, key: u64) -> Plan {
        let random = self.hash(TEAR, number);
        let tear = match random >> 32 & 3 {
            _ if self.torn == 0 || !random.is_multiple_of(self.torn) => Tear::Whole,
            0 => Tear::Halves,
            1 => Tear::Backwards,
            _ => Tear::ReadsEarly,
        };
        Plan { delay: 0, key, tear, patience: self.hash(PATIENCE, number) as u8 & 3 }
    }
}

/// The kinds that [`DelayPattern::Kind`] distinguishes.
fn kind_of(action: &Action) -> u8 {
    match action {
        Action::HostFunction(_) | Action::Callback(_) => 0,
        Action::Copy(_) => 1,
        Action::Kernel(_) | Action::Writes(_) | Action::Fill(_) | Action::Branch(_) => 2,
        Action::Record(_) | Action::Value(_) | Action::Nothing | Action::Reset(_) => 3,
    }
}
