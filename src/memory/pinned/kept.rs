//! Pinned memory that graphs use at each launch: it is kept until the last of them is gone.
//!
//! A block that is kept and not listed here is kept for ever: a capture of the host's own used it, of
//! whose graph nobody tells.

use super::HostMemory;
use super::heap::{Heap, KEPT};
use super::past;
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::gpu::stream::Stream;
use crate::memory::arena::block::State;
use crate::runtime::Runtime;

/// Blocks that graphs use, by address, and how many do.
pub(super) struct Kept(Mutex<Vec<(usize, u32)>>);

impl Kept {
    pub(super) fn new() -> Kept {
        Kept(Mutex::new(Rank::LEAF, Vec::new()))
    }

    /// One graph more uses a block; `is_kept`: it is kept already. Where there is no host memory it is
    /// kept for ever.
    fn add(&self, address: usize, is_kept: bool) {
        let mut list = self.0.lock();
        match list.binary_search_by_key(&address, |known| known.0) {
            Ok(index) => list[index].1 = list[index].1.saturating_add(1),
            Err(index) if !is_kept && list.try_reserve(1).is_ok() => {
                list.insert(index, (address, 1));
            }
            Err(_) => (),
        }
    }

    /// A block is kept for ever.
    fn forget(&self, address: usize) {
        let mut list = self.0.lock();
        if let Ok(index) = list.binary_search_by_key(&address, |known| known.0) {
            list.remove(index);
        }
    }

    /// One graph less uses a block; true: none does any more.
    fn remove(&self, address: usize) -> bool {
        let mut list = self.0.lock();
        let Ok(index) = list.binary_search_by_key(&address, |known| known.0) else { return false };
        list[index].1 -= 1;
        if list[index].1 > 0 {
            return false;
        }
        list.remove(index);
        true
    }
}

impl HostMemory {
    /// Keeps a block that a captured stream uses: as long as the graph of that capture of ours, else for
    /// ever. The caller holds the heap's lock.
    pub(super) fn keep(&self, runtime: &Runtime, capture: Option<u64>, heap: &mut Heap, id: u32) {
        let address = heap.address_of(id);
        let is_kept = heap.blocks[id].waits == KEPT;
        match capture.map(|number| runtime.captures.use_pinned(number, address)) {
            Some(Ok(true)) => self.kept.add(address, is_kept),
            Some(Ok(false)) => (),
            Some(Err(_)) | None => self.kept.forget(address),
        }
        heap.blocks[id].waits = KEPT;
    }

    /// One graph more uses blocks that another uses.
    pub fn keep_again(&self, blocks: &[usize]) {
        blocks.iter().for_each(|address| self.kept.add(*address, true));
    }

    /// A graph that used these blocks is gone. What the host has freed is free when the streams have done
    /// what they hold now; what it has not, waits for them once it is freed.
    pub fn unkeep<'a>(
        &self,
        runtime: &Runtime,
        blocks: &[usize],
        streams: impl Iterator<Item = &'a Stream> + Clone,
    ) {
        for address in blocks.iter().filter(|address| self.kept.remove(**address)) {
            let Some(place) = self.directory.find(*address) else { continue };
            let index = place.heap as usize;
            let mut held = self.heap(index);
            let Some(heap) = held.as_deref_mut() else { continue };
            let found = heap.find_kept(place.segment, place.base, *address);
            if let Some(id) = found {
                self.let_go(heap, id, streams.clone());
            }
            let unwanted = heap.unwanted;
            drop(held);
            if unwanted > 0 {
                self.give_unwanted(runtime, index);
            }
        }
    }

    fn let_go<'a>(&self, heap: &mut Heap, id: u32, streams: impl Iterator<Item = &'a Stream>) {
        for stream in streams {
            // Without a note of it nobody would know when it is free: it is kept for ever.
            let Ok(head) = heap.uses.add(heap.blocks[id].uses, id, stream) else { return };
            heap.blocks[id].uses = head;
        }
        heap.blocks[id].waits = 0;
        if heap.blocks[id].state != State::Pending {
            return;
        }
        if heap.blocks[id].uses == 0 {
            past::free_completed(heap, id);
            self.counts.no_block(heap.release(id));
        } else if !heap.enqueue(id) {
            heap.deferred.overflow += 1;
        }
    }
}
