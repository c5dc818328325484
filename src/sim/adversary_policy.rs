//! What an adversarial seed decides. Every decision is a function of the seed and of the number of
//! the operation, never of a generator that advances: leaving one out does not change the others.

use super::queue::Action;

/// An operation that nobody waits for is at most so many others late: queues stay bounded, as those
/// of a driver are.
const FOREVER: u64 = 4096;

/// Purposes of a hash, so that decisions about one operation do not depend on each other.
const DELAY: u64 = 1;
const ORDER: u64 = 2;
const TEAR: u64 = 3;
const PATIENCE: u64 = 4;
const EPOCHS: u64 = 5;
const TURN: u64 = 6;
const STAY: u64 = 7;

/// How a seed goes about a whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Habit {
    /// Nothing runs before somebody waits for it; of what may run, the newest first.
    Reverse,
    /// Nothing runs before somebody waits for it, then in random order.
    Lazy,
    /// Every operation has a delay of its own.
    Ragged,
    /// Streams have priorities, which change at a few operations.
    Streams,
    /// The operations of one stream in so many are late, the others run at once.
    Starved(u64),
    /// One operation in so many is late, the others run at once.
    Few(u64),
    /// Operations of one kind are late, the others run at once.
    Kind(u8),
}

/// What happens to an operation.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    /// So many operations must be queued after it before it runs of itself; 0: it runs at once.
    pub(super) delay: u64,
    /// Of what may run, the lowest runs first.
    pub(super) key: u64,
    pub(super) tear: Tear,
    /// Questions of the host that are answered with "not ready" before one makes progress.
    pub(super) patience: u8,
}

/// Whether an operation runs in two steps, between which others run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tear {
    Whole,
    /// First half first.
    Halves,
    /// Second half first.
    Backwards,
    /// All is read in the first step and written in the second.
    ReadsEarly,
}

/// The decisions of a seed.
pub(super) struct Strategy {
    seed: u64,
    habit: Habit,
    /// One operation in so many is torn; 0: none.
    torn: u64,
    /// What fills the bytes of memory that nobody has written; 0: it is left as it is.
    pub(super) poison: u8,
    /// One call in so many of a thread lets another one go on.
    stays: u64,
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
            habit: Habit::Reverse,
            torn: 0,
            poison: 0,
            stays: 1,
            changes: [0; 4],
        };
        // Seed 0 is plain lateness.
        if seed == 0 {
            return strategy;
        }
        let choice = strategy.seed;
        strategy.habit = match choice % 10 {
            0 | 1 => Habit::Lazy,
            2 | 3 => Habit::Ragged,
            4 | 5 => Habit::Streams,
            6 => Habit::Starved(2 + (choice >> 8) % 3),
            7 | 8 => Habit::Few([2, 4, 8, 32][(choice >> 8) as usize % 4]),
            _ => Habit::Kind((choice >> 8) as u8 % 4),
        };
        strategy.torn = [0, 1, 2, 8][(choice >> 16) as usize % 4];
        strategy.poison = if (choice >> 24) % 2 == 1 { (choice >> 32) as u8 | 0x81 } else { 0 };
        strategy.stays = [1, 3, 10, 50][(choice >> 40) as usize % 4];
        // The length of the run is unknown: each change lies in a range of its own magnitude.
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

    /// What happens to operation `number`, the first being 1, of the stream that was used `order`th.
    pub(super) fn plan(&self, number: u64, order: u64, action: &Action) -> Plan {
        let random = self.hash(DELAY, number);
        let one_in = |count: u64| random.is_multiple_of(count);
        let (late, key) = match self.habit {
            Habit::Reverse => (true, u64::MAX - number),
            Habit::Lazy => (true, self.hash(ORDER, number)),
            Habit::Ragged => {
                let delay = random % (2 << (random >> 32 & 3));
                return Plan { delay, ..self.details(number, self.hash(ORDER, number)) };
            }
            Habit::Streams => {
                let epoch = self.changes.iter().filter(|change| **change <= number).count() as u64;
                (true, self.hash(ORDER, order << 3 | epoch))
            }
            Habit::Starved(count) => (self.hash(ORDER, order).is_multiple_of(count), number),
            Habit::Few(count) => (one_in(count), number),
            Habit::Kind(kind) => (kind == kind_of(action), number),
        };
        Plan { delay: if late { FOREVER } else { 0 }, ..self.details(number, key) }
    }

    /// Of several threads that could go on, the one that does.
    pub(super) fn turn(&self, decision: u64, threads: usize) -> usize {
        (self.hash(TURN, decision) % threads as u64) as usize
    }

    /// Must the thread that has just run let another one go on?
    pub(super) fn takes_turn_away(&self, decision: u64) -> bool {
        self.hash(STAY, decision).is_multiple_of(self.stays)
    }

    /// The plan of an operation that runs as soon as it can.
    pub(super) fn friendly(number: u64) -> Plan {
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

/// The kinds that [`Habit::Kind`] tells apart.
fn kind_of(action: &Action) -> u8 {
    match action {
        Action::HostFunction(_) => 0,
        Action::Copy(_) => 1,
        Action::Kernel(_) | Action::Writes(_) | Action::Fill(_) => 2,
        Action::Record(_) | Action::Nothing => 3,
    }
}
