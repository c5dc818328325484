//! What could not be released when a capture or a graph ended. The next end of a graph, and
//! emptying the cache, try again.

use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::driver::Driver;
use crate::gpu::external_registry::HeldStream;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::gpu::subsystem::{Kind as SubsystemKind, Subsystem};
use crate::graph::capture::discard;
use crate::graph::reclamation::GraphResources;

/// What could not be released yet.
pub struct Unreleased {
    /// Resources of graphs.
    resources: Mutex<Vec<GraphResources>>,
    /// Streams whose captures the driver failed to end.
    captures: Mutex<Vec<HeldStream>>,
}

// SAFETY: no other type has this kind, and the runtime sets it before a call can use it.
unsafe impl Subsystem for Unreleased {
    type Owner = Gpus;
    const KIND: SubsystemKind = SubsystemKind::UnreleasedGraphs;
}

impl Gpus {
    /// What could not be released when a capture or a graph ended.
    pub(super) fn unreleased(&self) -> &Unreleased {
        self.subsystem()
    }
}

/// Tries again to release what could not be released when a capture or a graph ended.
pub(crate) fn retry(gpus: &Gpus) {
    gpus.unreleased().retry(gpus);
}

impl Unreleased {
    pub(crate) fn new() -> Unreleased {
        Unreleased {
            resources: Mutex::new(Rank::LEAF, Vec::new()),
            captures: Mutex::new(Rank::LEAF, Vec::new()),
        }
    }

    /// Ends a capture and drops its graph. If the driver fails, [`retry`] tries again.
    pub(super) fn discard(&self, driver: &Driver, stream: &Stream) {
        if discard(driver, stream) {
            return;
        }
        let mut captures = self.captures.lock();
        if captures.try_reserve(1).is_ok() {
            captures.push(HeldStream::new(stream));
        }
    }

    fn retry(&self, gpus: &Gpus) {
        let captures = std::mem::take(&mut *self.captures.lock());
        for stream in captures {
            let _context = stream.enter(gpus);
            self.discard(gpus.driver(), &stream);
        }
        let resources = std::mem::take(&mut *self.resources.lock());
        for resources in resources {
            resources.release(gpus);
        }
    }

    /// Keeps resources that cannot be released yet.
    pub(super) fn add(&self, resources: GraphResources) {
        let mut list = self.resources.lock();
        if list.try_reserve(1).is_ok() {
            return list.push(resources);
        }
        // Without host memory for the list they are never released.
        drop(list);
        std::mem::forget(resources);
    }
}
