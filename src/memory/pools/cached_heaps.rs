//! The heaps of a pool that served streams lately, as a route or a capture caches them.

use crate::gpu::stream::Stream;
use crate::memory::arena::heap::Heap;
use std::sync::atomic::Ordering;

/// How many are cached.
const CACHED: usize = 2;

/// Heaps of a pool that served streams lately.
#[derive(Default)]
pub struct CachedHeaps {
    /// Heaps, each with the value of `Stream::served` when it was cached.
    served: [Option<(u64, *const Heap)>; CACHED],
    /// The index of the entry that is replaced next.
    next: usize,
}

impl CachedHeaps {
    /// The heap that serves a stream, in segments or not.
    pub fn find(&self, stream: &Stream, segmented: bool) -> Option<*const Heap> {
        let served = stream.served.load(Ordering::Acquire);
        let heaps = self.served.iter().flatten().filter(|(stream, _)| *stream == served);
        // SAFETY: the pool is alive, and a heap that still serves its stream stays.
        heaps.map(|(_, heap)| *heap).find(|heap| unsafe { (**heap).segmented } == segmented)
    }

    /// Adds a heap, which serves this stream.
    pub fn add(&mut self, stream: &Stream, heap: &Heap) {
        self.served[self.next] = Some((stream.served.load(Ordering::Acquire), heap));
        self.next = (self.next + 1) % CACHED;
    }
}
