//! Predicts the addresses of allocations: a freed block serves the next request of its size and
//! stream.

use super::program::{Id, Program, Step};
use std::collections::BTreeMap;

/// Real allocations lie below this address.
const FIRST: u64 = 1 << 60;

/// The capture, or 0, and the stream that free memory is for; no stream: pinned memory.
type Key = (usize, Option<Id>);

#[derive(Default)]
pub struct Model {
    /// Blocks that other streams use are never reused, as if those streams never finished.
    pub is_slow: bool,
    free: BTreeMap<Key, Vec<(u64, u64)>>,
    /// For each block: address, key, and whether other streams use it.
    places: BTreeMap<Id, (u64, Key, bool)>,
    /// The active capture, or 0, and the number of captures so far.
    capture: usize,
    captures: usize,
    allocated: u64,
}

impl Model {
    /// Runs a step; returns the predicted address of an allocation.
    pub fn step(&mut self, program: &Program, step: &Step) -> Option<u64> {
        match step {
            Step::Allocate { block, stream } => {
                return Some(self.place(program, *block, Some(*stream)));
            }
            Step::Pin { block } => return Some(self.place(program, *block, None)),
            Step::RecordStream { block, .. } | Step::HostRecord { block, .. } => self.share(*block),
            Step::Work { touches, .. } => {
                let pinned = |block: &Id| program.blocks[*block].device.is_none();
                let blocks = touches.iter().map(|touch| touch.0.block);
                blocks.filter(pinned).for_each(|block| self.share(block));
            }
            // A collective records the uses of its streams itself.
            Step::Collective { parts, .. } => {
                parts.iter().for_each(|part| self.share(part.1.block))
            }
            Step::Free { block } | Step::Unpin { block } => {
                if let Some((address, key, is_shared)) = self.places.remove(block) {
                    let bytes = program.blocks[*block].bytes;
                    if !(is_shared && self.is_slow) {
                        self.free.entry(key).or_default().push((address, bytes));
                    }
                }
            }
            Step::Begin { .. } => {
                self.captures += 1;
                self.capture = self.captures;
            }
            Step::End { .. } => self.capture = 0,
            _ => {}
        }
        None
    }

    fn share(&mut self, block: Id) {
        if let Some(place) = self.places.get_mut(&block) {
            place.2 = true;
        }
    }

    fn place(&mut self, program: &Program, block: Id, stream: Option<Id>) -> u64 {
        let bytes = program.blocks[block].bytes;
        let key = (self.capture, stream);
        let free = self.free.entry(key).or_default();
        let found = free.iter().rposition(|(_, size)| *size == bytes);
        let address = found.map(|found| free.remove(found).0).unwrap_or_else(|| {
            self.allocated += 1;
            FIRST + (self.allocated << 22)
        });
        self.places.insert(block, (address, key, false));
        address
    }
}

/// The predicted addresses of all allocations of a program, by line.
pub fn addresses(program: &Program, is_slow: bool) -> Vec<Option<u64>> {
    let mut model = Model { is_slow, ..Model::default() };
    program.lines.iter().map(|line| model.step(program, &line.step)).collect()
}
