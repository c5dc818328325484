//! Barrier objects in shared memory: `mbarrier`.
//!
//! A word of 64 bits: bit 63 is the parity of the current phase, bits 62 to 42 the transactions
//! that are expected (signed), bits 41 to 21 the arrivals that are pending, bits 20 to 0 the
//! arrivals of a
//! phase.

use super::fault::{Fault, FaultKind};
use super::race::{Effects, Use};
use super::{Memory, Place};

const COUNT_BITS: u32 = 21;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

/// The parts of a barrier's word.
struct Barrier {
    parity: bool,
    transactions: i64,
    pending: u64,
    count: u64,
}

impl Barrier {
    fn of(word: u64) -> Barrier {
        let transactions = (word << 1) as i64 >> (64 - COUNT_BITS);
        Barrier {
            parity: word >> 63 != 0,
            transactions,
            pending: word >> COUNT_BITS & COUNT,
            count: word & COUNT,
        }
    }

    fn word(&self) -> u64 {
        u64::from(self.parity) << 63
            | (self.transactions as u64 & COUNT) << (2 * COUNT_BITS)
            | (self.pending & COUNT) << COUNT_BITS
            | self.count & COUNT
    }

    /// Begins the next phase if all have arrived and no transaction is expected.
    fn settle(&mut self) {
        if self.pending == 0 && self.transactions == 0 {
            self.parity = !self.parity;
            self.pending = self.count;
        }
    }
}

/// `mbarrier.pending_count`: the arrivals that a state still expects.
pub fn pending_count(state: u64) -> u32 {
    Barrier::of(state).pending as u32
}

impl Memory<'_> {
    /// `mbarrier.init`.
    pub fn initialise_barrier(
        &mut self,
        place: Place,
        lane: usize,
        address: u64,
        count: u32,
    ) -> Result<(), Fault> {
        let count = u64::from(count);
        let fresh = Barrier { parity: false, transactions: 0, pending: count, count }.word();
        if self.races.is_some() {
            self.observe(place, lane, address, 8, Use::Write, None);
        }
        self.change::<u64>(place, lane, address, |_| fresh).map(drop)
    }

    /// Arrives at a barrier; returns its state before.
    pub fn arrive(
        &mut self,
        place: Place,
        lane: usize,
        address: u64,
        count: u32,
        drops: bool,
    ) -> Result<u64, Fault> {
        if self.races.is_some() {
            self.observe_signal(place, lane, address);
        }
        self.change::<u64>(place, lane, address, |word| {
            let mut barrier = Barrier::of(word);
            barrier.pending = barrier.pending.saturating_sub(count.into());
            if drops {
                barrier.count = barrier.count.saturating_sub(count.into());
            }
            barrier.settle();
            barrier.word()
        })
    }

    /// Expects more bytes of transactions, or fewer.
    pub fn expect_transactions(
        &mut self,
        place: Place,
        lane: usize,
        address: u64,
        bytes: i64,
    ) -> Result<(), Fault> {
        let change = |word| {
            let mut barrier = Barrier::of(word);
            barrier.transactions += bytes;
            barrier.settle();
            barrier.word()
        };
        if self.races.is_some() {
            self.observe_signal(place, lane, address);
        }
        self.change::<u64>(place, lane, address, change).map(drop)
    }

    /// True if the phase of this parity is complete: the current one has the other parity.
    pub fn is_phase_complete(
        &mut self,
        place: Place,
        lane: usize,
        address: u64,
        parity: u64,
    ) -> Result<bool, Fault> {
        if !address.is_multiple_of(8) {
            return Err(Fault::at(FaultKind::Misaligned, address).of_lane(lane));
        }
        let word = self.read_one::<8>(place, lane, address).map_err(|it| it.of_lane(lane))?;
        let is_complete = Barrier::of(u64::from_le_bytes(word)).parity != (parity & 1 != 0);
        if self.races.is_some() {
            self.observe_as(place, lane, address, 8, Use::Read, Effects::test(is_complete));
        }
        Ok(is_complete)
    }
}
