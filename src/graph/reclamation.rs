//! Resources that a graph holds, and how they are released. Its memory must not be reused before
//! its last launches are complete, on whatever streams they run.

use super::Registered;
use crate::base::error::{Error, Result};
use crate::base::shared::Shared;
use crate::driver::sync_debug;
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::Device;
use crate::gpu::external_registry::HeldStream;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory;
use crate::memory::arena::pool::Pool;
use crate::memory::pools::active_captures::Uses;
use crate::ops::captured_callback::Functions;
use crate::sanitizer::Recording;

/// What a launch runs besides the driver's work.
#[derive(Default)]
pub(super) struct Content {
    /// Its host functions.
    pub(super) functions: Functions,
    /// What the sanitizer recorded; `None`: it was off during the capture.
    pub(super) recording: Option<Recording>,
}

/// An object of the host that a graph keeps; dropping it destroys it.
pub trait Retained: Send + Sync {
    /// Called once the graph keeps it; before, dropping it does not destroy it.
    fn taken(&self);
}

/// The resources of a graph. Its own pool is the first.
#[derive(Default)]
pub(super) struct GraphResources {
    pub(super) pools: Vec<Pool>,
    pinned: Vec<usize>,
    /// What its template runs.
    own: Content,
    /// What its executable runs, if it was updated.
    pub(super) updated: Option<Content>,
    /// Dropped with no lock held.
    pub(super) generators: Vec<Registered>,
    /// Objects of the host; an updated graph shares those of its source.
    retained: Vec<Shared<Box<dyn Retained>>>,
    /// The launches must be complete before they are destroyed.
    waits: bool,
    /// Streams on which it was launched.
    streams: Vec<HeldStream>,
}

const NO_ROOM: Error = Error::OutOfHostMemory("what a graph holds");

impl GraphResources {
    pub(super) fn make_room_for_pools(&mut self, more: usize) -> Result<()> {
        self.pools.try_reserve(more).map_err(|_| NO_ROOM)
    }

    /// An error if a pool sleeps.
    #[inline]
    pub(super) fn require_awake(&self) -> Result<()> {
        match self.pools.iter().any(Pool::is_asleep) {
            true => Err(Error::InvalidState(
                "a private pool of the graph sleeps: call tcuda_mem_pool_wake before the replay",
            )),
            false => Ok(()),
        }
    }

    /// Takes over what its capture used.
    pub(super) fn take(&mut self, uses: Uses) {
        let Uses { mut pools, pinned, functions, recording } = uses;
        self.pinned = pinned;
        self.own = Content { functions: Functions::of_capture(functions), recording };
        if !pools.is_empty() {
            std::mem::swap(&mut self.pools, &mut pools);
            // `retain` reserved space for the graph's own pool, which must be the first.
            self.pools.extend(pools);
            self.pools.rotate_right(1);
        }
    }

    /// Keeps an object of the host.
    pub(super) fn retain(&mut self, object: Box<dyn Retained>, waits: bool) -> Result<()> {
        let object = Shared::new(object, "what a graph holds")?;
        self.retained.try_reserve(1).map_err(|_| NO_ROOM)?;
        object.taken();
        self.waits |= waits;
        self.retained.push(object);
        Ok(())
    }

    /// Records that it is launched on a stream.
    #[inline]
    pub(super) fn add_stream(&mut self, stream: &Stream) -> Result<()> {
        if !self.streams.iter().any(|known| known.is(stream)) {
            self.streams.try_reserve(1).map_err(|_| NO_ROOM)?;
            self.streams.push(HeldStream::new(stream));
        }
        Ok(())
    }

    /// What a launch runs.
    #[inline]
    pub(super) fn content(&self) -> &Content {
        self.updated.as_ref().unwrap_or(&self.own)
    }

    /// A second holder of the same resources; its content is that of the template.
    pub(super) fn share(&self, gpus: &Gpus) -> Result<GraphResources> {
        let mut other = GraphResources::default();
        other.make_room_for_pools(self.pools.len())?;
        other.pinned.try_reserve(self.pinned.len()).map_err(|_| NO_ROOM)?;
        let Content { functions, recording } = &self.own;
        other.own = Content { functions: functions.share()?, recording: recording.clone() };
        other.retained.try_reserve(self.retained.len()).map_err(|_| NO_ROOM)?;
        other.retained.extend(self.retained.iter().map(Shared::share));
        other.waits = self.waits;
        other.pools.extend(self.pools.iter().map(Pool::share));
        other.pinned.extend(&self.pinned);
        gpus.pinned().add_graph_to_pinned(&other.pinned);
        Ok(other)
    }

    /// Reserves space for the resources of another.
    pub(super) fn make_room(&mut self, other: &GraphResources) -> Result<()> {
        self.make_room_for_pools(other.pools.len())?;
        self.retained.try_reserve(other.retained.len()).map_err(|_| NO_ROOM)?;
        self.pinned.try_reserve(other.pinned.len()).map_err(|_| NO_ROOM)
    }

    /// Adds the resources of another, for which there is space. Returns those that it held already.
    pub(super) fn merge(&mut self, mut other: GraphResources) -> GraphResources {
        let mut index = 0;
        while let Some(pool) = other.pools.get(index) {
            if self.pools.iter().any(|own| own.id() == pool.id()) {
                index += 1;
            } else {
                self.pools.push(other.pools.swap_remove(index));
            }
        }
        let mut index = 0;
        while let Some(object) = other.retained.get(index) {
            if self.retained.iter().any(|own| own.is(object)) {
                index += 1;
            } else {
                self.retained.push(other.retained.swap_remove(index));
            }
        }
        self.waits |= other.waits;
        other.pinned.retain(|address| match self.pinned.binary_search(address) {
            Ok(_) => true,
            Err(place) => {
                self.pinned.insert(place, *address);
                false
            }
        });
        // Running launches keep their functions alive themselves.
        other.updated = self.updated.replace(std::mem::take(&mut other.own));
        other
    }

    /// Releases all resources, ordered after the launches. The caller holds no lock.
    pub(super) fn release(mut self, gpus: &Gpus) {
        // Generators know where they were used.
        drop(std::mem::take(&mut self.generators));
        drop((std::mem::take(&mut self.own), self.updated.take()));
        if self.pools.is_empty() && self.pinned.is_empty() && !self.waits {
            return;
        }
        let _relaxed = Relaxed::enter(gpus.driver());
        if !self.try_release(gpus) {
            gpus.unreleased().add(self);
        }
    }

    /// False: not released, because a stream on which it was launched is captured now, or because
    /// the driver can neither order nor complete its launches, which still use its memory.
    fn try_release(&self, gpus: &Gpus) -> bool {
        let streams = || self.streams.iter().map(|stream| &**stream);
        if streams().any(|stream| stream.is_capturing(gpus).unwrap_or(false)) {
            return false;
        }
        for stream in streams() {
            // The host waits if the streams cannot be ordered on the device.
            if self.waits || self.order_pools_after(gpus, stream).is_err() {
                let _required = sync_debug::required();
                if memory::wait_for(gpus, stream).is_err() {
                    return false;
                }
            }
        }
        gpus.pinned().remove_graph_from_pinned(gpus, &self.pinned, streams());
        true
    }

    /// Orders the streams that own memory of the pools after the launches on `launched`.
    fn order_pools_after(&self, gpus: &Gpus, launched: &Stream) -> Result<()> {
        let is_needed = |device: &Device| {
            self.pools.iter().any(|pool| device.memory().serves_others(pool.id(), launched))
        };
        if !gpus.devices.iter().any(is_needed) {
            return Ok(());
        }
        let device = gpus.device(launched.device())?;
        let _context = device.enter()?;
        let Some(end) = memory::end_of(gpus, device, launched)? else { return Ok(()) };
        for device in &gpus.devices {
            for pool in &self.pools {
                device.memory().order_after_launch(gpus, pool.id(), launched, end.event())?;
            }
        }
        Ok(())
    }
}
