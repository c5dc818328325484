//! What a graph holds, and how it is given back: the memory of a graph that is gone is unowned before
//! its last launches are over, on whatever streams those were.

use super::Registered;
use super::functions::Functions;
use crate::base::error::{Error, Result};
use crate::gpu::device::Device;
use crate::gpu::external_registry::HeldStream;
use crate::gpu::stream::Stream;
use crate::gpu::sync_debug;
use crate::graph::active_captures::Uses;
use crate::memory::pools::pool::Pool;
use crate::memory::{self, Relaxed};
use crate::runtime::Runtime;
use crate::sanitizer::Recording;

/// What a launch does besides what the driver knows.
#[derive(Default)]
pub(super) struct Content {
    /// Host functions.
    pub(super) functions: Functions,
    /// What the sanitizer was told; none: nobody watched the capture.
    pub(super) recording: Option<Recording>,
}

/// What a graph holds: its own pool first.
#[derive(Default)]
pub(super) struct Leaving {
    pub(super) pools: Vec<Pool>,
    pinned: Vec<usize>,
    /// What its template runs.
    own: Content,
    /// What its executable runs since that was updated.
    pub(super) updated: Option<Content>,
    /// They end with no lock held.
    pub(super) generators: Vec<Registered>,
    /// Where it was launched.
    streams: Vec<HeldStream>,
}

const NO_ROOM: Error = Error::OutOfHostMemory("what a graph holds");

impl Leaving {
    pub(super) fn make_room_for_pools(&mut self, more: usize) -> Result<()> {
        self.pools.try_reserve(more).map_err(|_| NO_ROOM)
    }

    /// An error where a pool sleeps.
    #[inline]
    pub(super) fn require_awake(&self) -> Result<()> {
        match self.pools.iter().any(Pool::is_asleep) {
            true => Err(Error::InvalidState(
                "a private pool of the graph sleeps: call tcuda_mem_pool_wake before the replay",
            )),
            false => Ok(()),
        }
    }

    /// What its capture used.
    pub(super) fn take(&mut self, uses: Uses) {
        let Uses { mut pools, pinned, functions, recording } = uses;
        self.pinned = pinned;
        self.own = Content { functions, recording };
        if !pools.is_empty() {
            std::mem::swap(&mut self.pools, &mut pools);
            // The list of the others was made with room for its own, which comes first.
            self.pools.extend(pools);
            self.pools.rotate_right(1);
        }
    }

    /// It is launched on a stream.
    #[inline]
    pub(super) fn note(&mut self, stream: &Stream) -> Result<()> {
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

    /// The same, held twice; of what a launch runs the template's.
    pub(super) fn share(&self, runtime: &Runtime) -> Result<Leaving> {
        let mut other = Leaving::default();
        other.make_room_for_pools(self.pools.len())?;
        other.pinned.try_reserve(self.pinned.len()).map_err(|_| NO_ROOM)?;
        let Content { functions, recording } = &self.own;
        other.own = Content { functions: functions.share()?, recording: recording.clone() };
        other.pools.extend(self.pools.iter().map(Pool::share));
        other.pinned.extend(&self.pinned);
        runtime.host.keep_again(&other.pinned);
        Ok(other)
    }

    /// Room for what another holds.
    pub(super) fn make_room(&mut self, other: &Leaving) -> Result<()> {
        self.make_room_for_pools(other.pools.len())?;
        self.pinned.try_reserve(other.pinned.len()).map_err(|_| NO_ROOM)
    }

    /// Holds what another held, for which there is room; gives back what it held already.
    pub(super) fn join(&mut self, mut other: Leaving) -> Leaving {
        let mut index = 0;
        while let Some(pool) = other.pools.get(index) {
            if self.pools.iter().any(|own| own.id() == pool.id()) {
                index += 1;
            } else {
                self.pools.push(other.pools.swap_remove(index));
            }
        }
        other.pinned.retain(|address| match self.pinned.binary_search(address) {
            Ok(_) => true,
            Err(place) => {
                self.pinned.insert(place, *address);
                false
            }
        });
        // Launches that are under way keep their functions themselves.
        other.updated = self.updated.replace(std::mem::take(&mut other.own));
        other
    }

    /// Gives it all back, in the order of the launches. The caller holds no lock.
    pub(super) fn settle(mut self, runtime: &Runtime) {
        // They know themselves where they were used.
        drop(std::mem::take(&mut self.generators));
        drop((std::mem::take(&mut self.own), self.updated.take()));
        if self.pools.is_empty() && self.pinned.is_empty() {
            return;
        }
        let _relaxed = Relaxed::enter(runtime.driver());
        if !self.try_settle(runtime) {
            runtime.captures.linger(self);
        }
    }

    /// The same; false: it must stay, because a stream on which it was launched is captured now.
    fn try_settle(&self, runtime: &Runtime) -> bool {
        let streams = || self.streams.iter().map(|stream| &**stream);
        if streams().any(|stream| stream.is_capturing(runtime).unwrap_or(false)) {
            return false;
        }
        for stream in streams() {
            // What cannot be waited for in order is waited for here.
            if self.line_up(runtime, stream).is_err() {
                let _needed = sync_debug::needed();
                let _ = memory::wait_for(runtime, stream);
            }
        }
        runtime.host.unkeep(runtime, &self.pinned, streams());
        true
    }

    /// Has the streams whose memory is in the pools come after what was launched.
    fn line_up(&self, runtime: &Runtime, launched: &Stream) -> Result<()> {
        let is_needed = |device: &Device| {
            self.pools.iter().any(|pool| device.memory.serves_others(pool.id(), launched))
        };
        if !runtime.devices.iter().any(is_needed) {
            return Ok(());
        }
        let device = runtime.device(launched.device())?;
        let _context = device.enter()?;
        let Some(end) = memory::end_of(runtime, device, launched)? else { return Ok(()) };
        for device in &runtime.devices {
            for pool in &self.pools {
                device.memory.come_after_launch(runtime, pool.id(), launched, end.event())?;
            }
        }
        Ok(())
    }
}
