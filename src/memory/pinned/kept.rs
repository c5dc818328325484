//! Pinned blocks that graphs use at each launch: they are kept until the last of these graphs is
//! destroyed.
//!
//! A kept block that is not listed here is kept forever: it was used in a capture that the host
//! made through the driver, and the end of that graph is not known.

use super::HostMemory;
use super::events;
use super::heap::{Heap, KEPT};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory::arena::block::State;

/// Blocks that graphs use: address and number of graphs.
pub(super) struct Kept(Mutex<Vec<(usize, u32)>>);

impl Kept {
    pub(super) fn new() -> Kept {
        Kept(Mutex::new(Rank::LEAF, Vec::new()))
    }

    /// Counts one more graph that uses a block; `is_kept`: the block is kept already. Without host
    /// memory the block is kept forever.
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

    /// Marks a block as kept forever.
    fn forget(&self, address: usize) {
        let mut list = self.0.lock();
        if let Ok(index) = list.binary_search_by_key(&address, |known| known.0) {
            list.remove(index);
        }
    }

    /// Counts one graph less that uses a block; true: it was the last.
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
    /// Keeps a block that a captured stream uses: until the graph of this library's capture is
    /// destroyed, otherwise forever. The caller holds the heap's lock.
    pub(super) fn keep(&self, gpus: &Gpus, capture: Option<u64>, heap: &mut Heap, id: u32) {
        let address = heap.address_of(id);
        let is_kept = heap.blocks[id].waits == KEPT;
        match capture.map(|number| gpus.captures().use_pinned(number, address)) {
            Some(Ok(true)) => self.kept.add(address, is_kept),
            Some(Ok(false)) => (),
            Some(Err(_)) | None => self.kept.forget(address),
        }
        heap.blocks[id].waits = KEPT;
    }

    /// Counts one more graph that uses blocks which another graph uses already.
    pub fn add_graph_to_pinned(&self, blocks: &[usize]) {
        blocks.iter().for_each(|address| self.kept.add(*address, true));
    }

    /// A graph that used these blocks was destroyed. Blocks that the host has freed become free
    /// after the present work of the streams. The other blocks wait for these streams once they are
    /// freed.
    pub fn remove_graph_from_pinned<'a>(
        &self,
        gpus: &Gpus,
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
                self.release_kept(heap, id, streams.clone());
            }
            let unwanted = heap.unwanted;
            drop(held);
            if unwanted > 0 {
                self.give_unwanted(gpus, index);
            }
        }
    }

    fn release_kept<'a>(
        &self,
        heap: &mut Heap,
        id: u32,
        streams: impl Iterator<Item = &'a Stream>,
    ) {
        for stream in streams {
            // If the use cannot be recorded, the block is kept forever, because its last use is
            // unknown.
            let Ok(head) = heap.uses.add(heap.blocks[id].uses, stream) else { return };
            heap.blocks[id].uses = head;
        }
        heap.blocks[id].waits = 0;
        if heap.blocks[id].state != State::Pending {
            return;
        }
        if heap.blocks[id].uses == 0 {
            events::free_completed(heap, id);
            self.counts.count_free(heap.release(id));
        } else {
            heap.enqueue(id);
        }
    }
}
