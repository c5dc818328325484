//! What is compared after every step, and what must be so when memory runs out.

use super::api;
use super::books::{Held, round_size};
use super::hands::THREADS;
use super::ops::MIB;
use super::view::{Shown, View};
use super::world::{Settled, World};
use tcuda::ffi::snapshot::{TCUDA_BLOCK_ACTIVE_ALLOCATED, TCUDA_BLOCK_ACTIVE_PENDING_FREE};

impl World {
    /// Learns from a snapshot which pending blocks became free, and checks that they may or must.
    pub fn settle(&mut self, view: &View, settled: Settled) {
        let still = |address: &u64, held: &Held| {
            view.blocks.get(address).is_some_and(|shown| {
                shown.state == TCUDA_BLOCK_ACTIVE_PENDING_FREE
                    && (shown.bytes, shown.requested) == (held.bytes(), held.requested)
            })
        };
        let (waiting, gone): (Vec<_>, Vec<_>) =
            self.pending.iter().map(|(a, h)| (*a, *h)).partition(|(a, h)| still(a, h));
        for (address, held) in gone {
            let allowed = match settled {
                Settled::Nothing => false,
                // Where streams share, others' memory was wanted, or the block is in another's
                // arena.
                Settled::Arena { held: arena, .. } => {
                    self.machine.shares
                        || arena.is_of_arena(&held)
                        || self.ended.contains(&held.queue)
                }
                Settled::All { .. } => true,
            };
            assert!(allowed, "the pending block at {address:#x} {held:?} became free: {settled:?}");
            self.pending.remove(&address);
            self.stats[held.device as usize].activate(&held, -1);
        }
        for (address, held) in waiting {
            let required = match settled {
                Settled::Nothing => false,
                Settled::Arena { held: arena, must } => {
                    must && !self.machine.shares && arena.is_of_arena(&held)
                }
                Settled::All { must } => must,
            };
            assert!(!required, "the block at {address:#x} {held:?} is still pending");
        }
    }

    /// The library shows just what the model has.
    pub fn compare(&mut self, view: &View) {
        let mut live = self.live.iter().peekable();
        for (address, shown) in &view.blocks {
            let held = match shown.state {
                TCUDA_BLOCK_ACTIVE_ALLOCATED => {
                    let (wanted, block) = live.next().expect("a block more than in the model");
                    assert_eq!(address, wanted, "the next live block");
                    block.held
                }
                TCUDA_BLOCK_ACTIVE_PENDING_FREE => {
                    *self.pending.get(address).expect("a pending block more than in the model")
                }
                _ => continue,
            };
            let (native, stream_id) = match self.machine.shares {
                // Its segment is of another stream.
                true => (shown.native, shown.stream_id),
                false => self.names[&held.queue],
            };
            let wanted = Shown {
                bytes: held.bytes(),
                requested: held.requested,
                state: shown.state,
                device: held.device,
                native,
                stream_id,
                is_small: held.is_in_small(),
            };
            assert_eq!(*shown, wanted, "the block at {address:#x}");
        }
        assert!(live.next().is_none(), "a live block is not shown");
        for device in 0..self.machine.devices {
            let found = api::statistics(device);
            self.stats[device as usize].compare(device, &found);
            // Threads' default streams have one name.
            let arenas_are_known = !self.has_recycled && !self.uses_per_thread();
            view.compare(device, &found, arenas_are_known, self.has_lost);
        }
        for caller in 0..THREADS {
            assert_eq!(
                self.hands.on(caller, api::device_current),
                self.device[caller],
                "thread {caller}"
            );
        }
    }

    fn uses_per_thread(&self) -> bool {
        self.bases.keys().any(|(queue, _)| self.is_per_thread(*queue))
    }

    pub fn learn_base(&mut self, address: u64, held: &Held) {
        let base = self.bases.entry((held.queue, held.is_in_small())).or_insert(address);
        *base = (*base).min(address);
    }

    /// Running out of memory is right when nothing cached fits, nothing is pending, and the driver
    /// has not as much left, or the arena's addresses are used up.
    pub fn may_be_out_of_memory(&self, view: &View, held: &Held) {
        let (free, total) = api::memory_info(held.device);
        if held.requested > total {
            return;
        }
        let is_pending = |shown: &Shown| {
            shown.device == held.device && shown.state == TCUDA_BLOCK_ACTIVE_PENDING_FREE
        };
        assert!(!view.blocks.values().any(is_pending), "pending blocks were not waited for");
        let size = round_size(held.requested);
        let arena = (self.names[&held.queue], held.is_in_small());
        let of_arena = |shown: &&Shown| {
            shown.device == held.device
                && (((shown.native, shown.stream_id), shown.is_small) == arena)
        };
        let largest = view.blocks.values().filter(of_arena).filter(|shown| shown.requested == 0);
        let largest = largest.map(|shown| shown.bytes).max().unwrap_or(0);
        let is_known = !self.has_recycled && !self.is_per_thread(held.queue);
        assert!(!is_known || largest < size, "a cached block of {largest} bytes would do");
        let wanted = size.div_ceil(2 * MIB) * 2 * MIB;
        if free < wanted {
            return;
        }
        let slot = (total / 2 * 3).next_power_of_two();
        let base = self.bases.get(&(held.queue, held.is_in_small())).copied().unwrap_or(0);
        let ends = view.blocks.iter().filter(|(_, shown)| of_arena(shown));
        let end = ends.map(|(address, shown)| address + shown.bytes).max().unwrap_or(base);
        assert!(
            !is_known || self.machine.shares || end + wanted > base + slot,
            "the driver has {free} bytes for a request of {size}"
        );
    }
}
