//! Allocation: the calls that the fast path does not serve.

use crate::base::error::{Result, TOO_LARGE};
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::gpu::sanitizer_reports;
use crate::gpu::stream::Stream;
use crate::memory::arena::bins::SHORT_WALK;
use crate::memory::config::size::{Size, round_size};
use crate::memory::device::backend::Server;
use crate::memory::device::{Attempt, DeviceMemory, suballocations};
use crate::memory::fallback::observers;
use crate::memory::pools::route::{self, Keeper};
use crate::memory::trace::history;
use crate::observe::flags::{self, Watcher};
use std::sync::atomic::Ordering;

impl DeviceMemory {
    /// Allocates for a stream of `device`, whose memory this is.
    #[inline(always)]
    pub fn allocate(
        &self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        bytes: u64,
    ) -> Result<u64> {
        if bytes == 0 {
            return Ok(0);
        }
        // No policy changes the request, and a slot has enough addresses: it has more of them than
        // the device has memory.
        if bytes <= self.policy.plain() && !flags::is_watched() {
            let size = Size { bytes: round_size(bytes), oversize: false };
            return self.allocate_block::<false>(gpus, device, stream, bytes, size);
        }
        self.allocate_watched(gpus, device, stream, bytes)
    }

    #[cold]
    fn allocate_watched(
        &self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        bytes: u64,
    ) -> Result<u64> {
        // The driver may have to be queried about an external stream.
        let is_plain = bytes <= self.policy.plain() && !stream.is_external();
        if is_plain && flags::is_only(Watcher::Sanitizer) {
            let size = Size { bytes: round_size(bytes), oversize: false };
            let address = self.allocate_block::<false>(gpus, device, stream, bytes, size)?;
            sanitizer_reports::allocated_uncaptured(address, bytes, stream);
            return Ok(address);
        }
        let address = self.allocate_by_policy(gpus, device, stream, bytes)?;
        sanitizer_reports::allocated(gpus, address, bytes, stream);
        Ok(address)
    }

    fn allocate_by_policy(
        &self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        bytes: u64,
    ) -> Result<u64> {
        let _frames = history::before_allocation(stream);
        observers::check()?;
        if self.server() != Server::Cache && bytes < TOO_LARGE {
            return self.allocate_uncached(gpus, device, stream, bytes);
        }
        let most = self.addresses.slot_bytes();
        if bytes <= most {
            let size = self.policy.size_of(bytes);
            if size.bytes <= most {
                if self.policy.is_segmented() {
                    let mut keeper = Keeper::default();
                    let arena = self.routed_arena(gpus, device, stream, size, &mut keeper)?;
                    let request = size.request(bytes);
                    return self.allocate_in_segment(Attempt { gpus, device, arena, request });
                }
                return self.allocate_block::<true>(gpus, device, stream, bytes, size);
            }
        }
        if bytes < TOO_LARGE {
            let wanted = self.driver_bytes(bytes, self.policy.is_segmented());
            self.run_observers(device, wanted);
        }
        Err(self.refuse(gpus, device, bytes, self.policy.is_segmented()))
    }

    /// Allocates a block of this size for a request. `WATCHED`: what [`flags::is_watched`]
    /// returned.
    #[inline(always)]
    fn allocate_block<const WATCHED: bool>(
        &self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        bytes: u64,
        size: Size,
    ) -> Result<u64> {
        let request = size.request(bytes);
        let is_routed = || route::is_routed() || gpus.has_captures();
        let mut keeper = Keeper::default();
        let arena = match WATCHED && is_routed() {
            false => self.heap(gpus, device, stream, false)?.arena(size.arena_class(false)),
            true => match self.routed_arena(gpus, device, stream, size, &mut keeper)? {
                arena if arena.segmented => {
                    return self.allocate_in_segment(Attempt { gpus, device, arena, request });
                }
                arena => arena,
            },
        };
        {
            let state = &mut arena.enter()?;
            if state.uses.is_queue_empty() {
                if let Some(address) = self.take::<WATCHED>(state, request, SHORT_WALK)? {
                    return Ok(address);
                }
            } else if let Some(address) = self.settle_and_take(gpus, state, request)? {
                return Ok(address);
            }
        }
        self.allocate_slowly(Attempt { gpus, device, arena, request })
    }

    /// Allocates a block in an arena of segments.
    #[cold]
    fn allocate_in_segment(&self, attempt: Attempt) -> Result<u64> {
        let Attempt { gpus, device, arena, request } = attempt;
        let _context = suballocations::context(device);
        {
            let state = &mut arena.enter()?;
            let settled = self.settle(gpus, state, false);
            self.note_search(arena);
            if let Some(address) = self.take_in_segment(state, request)? {
                return Ok(address);
            }
            settled?;
        }
        self.allocate_slowly(attempt)
    }

    /// Allocates an uncached block.
    #[cold]
    fn allocate_uncached(
        &self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        bytes: u64,
    ) -> Result<u64> {
        self.has_uncached.store(true, Ordering::Relaxed);
        let stream = stream.on_this_thread(gpus)?;
        let origin = self.origin();
        let attempt = || self.try_uncached(gpus, device, stream, bytes, &origin);
        self.try_fallbacks_uncached(gpus, device, &origin, bytes, attempt)
    }
}
