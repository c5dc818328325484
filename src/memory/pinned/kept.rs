//! Pinned blocks that graphs use at each launch: they are kept until the last of these graphs is
//! destroyed. The number of these graphs is in the field `bin_next` of such a block, in which
//! `waits` is [`KEPT`].
//!
//! A kept block of 0 graphs is kept forever: it was used in a capture that the host made through
//! the driver, and the end of that graph is not known.

use super::HostMemory;
use super::heap::{Heap, KEPT};
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory::arena::block::{Block, State};

impl HostMemory {
    /// Keeps a block that a captured stream uses: until the graph of this library's capture is
    /// destroyed, otherwise forever. The caller holds the heap's lock.
    pub(super) fn keep(&self, gpus: &Gpus, capture: Option<u64>, heap: &mut Heap, id: u32) {
        let address = heap.address_of(id);
        let block = &mut heap.blocks[id];
        match capture.map(|number| gpus.captures().use_pinned(number, address)) {
            Some(Ok(true)) if block.waits != KEPT => block.bin_next = 1,
            Some(Ok(true)) => block.bin_next += u32::from(block.bin_next > 0),
            Some(Ok(false)) if block.waits == KEPT => (),
            _ => block.bin_next = 0,
        }
        block.waits = KEPT;
    }

    /// Counts one more graph that uses blocks which another graph uses already.
    pub fn add_graph_to_pinned(&self, blocks: &[usize]) {
        for address in blocks {
            if let Some((mut heap, id)) = self.find(*address, is_of_graph) {
                heap.blocks[id].bin_next += 1;
            }
        }
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
        for address in blocks {
            let Some((mut heap, id)) = self.find(*address, is_of_graph) else { continue };
            heap.blocks[id].bin_next -= 1;
            if heap.blocks[id].bin_next == 0 {
                self.release_kept(&mut heap, id, streams.clone());
            }
            self.give_unwanted(gpus, heap);
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
        if heap.blocks[id].state == State::Pending {
            self.defer(heap, id);
        }
    }
}

/// Is a block, in use or pending, kept for graphs of this library?
fn is_of_graph(block: &Block, _: u64) -> bool {
    block.waits == KEPT && block.bin_next > 0
}
