//! What threads count for themselves, and what that says of the statistics once they have met.

use super::super::books::{LANES, round_size};
use super::super::ops::MIB;
use tcuda::ffi::statistics::{tcuda_memory_statistics, tcuda_stat};

pub const ROWS: [&str; 3] = ["all", "small_pool", "large_pool"];
/// Count, rounded bytes, bytes as asked for.
pub type Amount = [i64; 3];

/// What one thread did to one row of a device's statistics in a round.
#[derive(Clone, Copy, Default, Debug)]
pub struct Row {
    pub allocated: Amount,
    pub freed: Amount,
    /// The most that it was ahead of where it began.
    pub most: Amount,
}

/// What one thread did on one device.
#[derive(Clone, Default, Debug)]
pub struct Tally {
    pub rows: [Row; 3],
    pub ooms: u64,
    /// Blocks freed that other streams were recorded for.
    pub left_waiting: u64,
}

impl Tally {
    fn rows(&mut self, requested: u64) -> [&mut Row; 2] {
        let is_small = round_size(requested) <= MIB;
        let [all, small, large] = &mut self.rows;
        [all, if is_small { small } else { large }]
    }

    pub fn allocate(&mut self, requested: u64) {
        let amount = [1, round_size(requested) as i64, requested as i64];
        for row in self.rows(requested) {
            for (index, amount) in amount.into_iter().enumerate() {
                row.allocated[index] += amount;
                let ahead = row.allocated[index] - row.freed[index];
                row.most[index] = row.most[index].max(ahead);
            }
        }
    }

    pub fn free(&mut self, requested: u64) {
        let amount = [1, round_size(requested) as i64, requested as i64];
        for row in self.rows(requested) {
            for (freed, amount) in row.freed.iter_mut().zip(amount) {
                *freed += amount;
            }
        }
    }
}

/// What is known of a quantity: all but the peak, which lies between two values.
#[derive(Clone, Copy, Default, Debug)]
struct Quantity {
    current: i64,
    peak: i64,
    allocated: i64,
    freed: i64,
}

/// The statistics of a device as the model has them.
#[derive(Clone, Default)]
pub struct Books {
    /// By lane and row. The lanes of active blocks are learnt from snapshots.
    quantities: [[Quantity; 3]; 5],
    /// What the host holds, by row.
    held: [Amount; 3],
    /// Do blocks wait for streams, or did some since the threads last met?
    have_waited: [bool; 3],
    ooms: u64,
    retries: u64,
}

/// Which part of an amount a lane counts, and whether it counts blocks that wait as well.
const COUNTS: [(usize, bool); 5] = [(0, false), (1, false), (0, true), (1, true), (2, true)];

impl Books {
    /// Compares the statistics with what the threads did. `waiting` is, by row, what a snapshot
    /// shows of blocks that wait for streams. Says how many peaks were known exactly.
    pub fn compare(
        &mut self,
        device: usize,
        tallies: &[&Tally],
        waiting: &[Amount; 3],
        ooms_are_known: bool,
        found: &tcuda_memory_statistics,
    ) -> u64 {
        let lanes = [
            &found.allocation,
            &found.allocated_bytes,
            &found.active,
            &found.active_bytes,
            &found.requested_bytes,
        ];
        let mut exact = 0;
        for (row, row_name) in ROWS.iter().enumerate() {
            for tally in tallies {
                let Row { allocated, freed, .. } = tally.rows[row];
                for (part, held) in self.held[row].iter_mut().enumerate() {
                    *held += allocated[part] - freed[part];
                }
            }
            self.have_waited[row] |= tallies.iter().any(|tally| tally.left_waiting > 0);
            for (lane, found) in lanes.iter().enumerate() {
                let found: &tcuda_stat = [&found.all, &found.small_pool, &found.large_pool][row];
                let name = format!("device {device}, {}.{row_name}", LANES[lane]);
                let (part, has_waiting) = COUNTS[lane];
                let sum = |of: fn(&Row) -> &Amount| {
                    tallies.iter().map(|tally| of(&tally.rows[row])[part]).sum::<i64>()
                };
                let allocated = sum(|row| &row.allocated);
                // What waits for streams is released at any time.
                let may_wait = has_waiting && self.have_waited[row];
                let most = if may_wait { allocated } else { sum(|row| &row.most) };
                let current =
                    self.held[row][part] + if has_waiting { waiting[row][part] } else { 0 };
                let quantity = &mut self.quantities[lane][row];
                let freed = quantity.current + allocated - current;
                quantity.allocated += allocated;
                quantity.freed += freed;
                assert!(freed >= 0, "{name}: {freed} freed");
                assert_eq!(found.current as i64, current, "{name}.current");
                assert_eq!(found.allocated as i64, quantity.allocated, "{name}.allocated");
                assert_eq!(found.freed as i64, quantity.freed, "{name}.freed");
                let least = quantity.peak.max(quantity.current).max(current);
                let most = quantity.peak.max(quantity.current + most);
                let peak = found.peak as i64;
                assert!((least..=most).contains(&peak), "{name}.peak {peak}: {least} to {most}");
                // One thread's own order of calls says when it held most.
                let moves = |tally: &&&Tally| {
                    let Row { allocated, freed, .. } = &tally.rows[row];
                    allocated[part] + freed[part] > 0
                };
                let is_one = !may_wait && tallies.iter().filter(moves).count() == 1;
                if is_one {
                    assert_eq!(peak, most, "{name}.peak: it is one thread's");
                }
                exact += u64::from(least == most || is_one);
                (quantity.current, quantity.peak) = (current, peak);
            }
            self.have_waited[row] = waiting[row] != [0; 3];
        }
        let ooms = tallies.iter().map(|tally| tally.ooms).sum::<u64>();
        if ooms_are_known {
            assert_eq!(found.num_ooms, self.ooms + ooms, "device {device}, num_ooms");
        } else {
            // Other calls than those for memory may have been made to say so.
            let most = self.ooms + ooms;
            assert!((self.ooms..=most).contains(&found.num_ooms), "device {device}, num_ooms");
        }
        assert!(found.num_alloc_retries >= self.retries, "device {device}, num_alloc_retries");
        (self.ooms, self.retries) = (found.num_ooms, found.num_alloc_retries);
        exact
    }

    pub fn reset_peak(&mut self) {
        let quantities = self.quantities.as_flattened_mut();
        quantities.iter_mut().for_each(|quantity| quantity.peak = quantity.current);
    }

    pub fn reset_totals(&mut self) {
        let quantities = self.quantities.as_flattened_mut();
        quantities.iter_mut().for_each(|quantity| (quantity.allocated, quantity.freed) = (0, 0));
        (self.ooms, self.retries) = (0, 0);
    }
}
