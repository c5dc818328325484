//! Streams that the library creates for its own work.

use crate::base::error::{Error, Result};
use crate::base::once::Once;
use crate::base::rank::Rank;
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::{PER_PRIORITY, Stream, Streams};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The most streams for the copies of collective calls.
pub const MAX_LANES: usize = 4;

/// The internal streams of a device.
pub(crate) struct InternalStreams {
    /// For work of other devices' streams on this device's memory; see `in_order_of`.
    work: Once<Box<Stream>>,
    /// On which the driver frees memory that several streams used.
    unifying: Once<Box<Stream>>,
    /// For the copies of collective calls; see `collectives/path/chain.rs`.
    lanes: [Once<Box<Stream>>; MAX_LANES],
    /// The pooled stream on which graphs are captured; NULL until the first capture.
    capture: AtomicPtr<Stream>,
    /// On which the bodies of conditional nodes are captured.
    bodies: [Once<Box<Stream>>; u32::BITS as usize],
    /// A bit for each of `bodies` that an active capture has.
    taken_bodies: AtomicU32,
}

impl InternalStreams {
    pub(crate) fn new() -> InternalStreams {
        InternalStreams {
            work: Once::new(Rank::ONCE),
            unifying: Once::new(Rank::ONCE),
            lanes: [const { Once::new(Rank::ONCE) }; MAX_LANES],
            capture: AtomicPtr::default(),
            bodies: [const { Once::new(Rank::ONCE) }; u32::BITS as usize],
            taken_bodies: AtomicU32::new(0),
        }
    }

    /// All that were created.
    pub(crate) fn made(&self) -> impl Iterator<Item = &Stream> {
        let all = [&self.work, &self.unifying].into_iter().chain(&self.lanes).chain(&self.bodies);
        all.filter_map(Once::get).map(|stream| &**stream)
    }
}

const TOO_MANY_BODIES: &str = "32 streams of the device are in use for bodies of conditional \
                               nodes: end a capture first";

impl Streams {
    /// Runs work on this device's memory in the order of another device's stream: on a stream of
    /// this device, between two waits.
    pub(crate) fn in_order_of(
        &self,
        gpus: &Gpus,
        other: &Stream,
        work: impl FnOnce(&Stream) -> Result<()>,
    ) -> Result<()> {
        let device = gpus.device(self.ordinal)?;
        let side = self.internal.work.get_or_try_init(|| self.create(device, 0, 0))?;
        side.wait_stream(gpus, other)?;
        work(side)?;
        other.wait_stream(gpus, side)
    }

    /// A stream that waits for others, so that none of them has to wait for another.
    pub(crate) fn unifying(&self, device: &Device) -> Result<&Stream> {
        Ok(self.internal.unifying.get_or_try_init(|| self.create(device, 0, 0))?)
    }

    /// A stream for copies of collective calls, whose number is below [`MAX_LANES`].
    pub(crate) fn lane(&self, device: &Device, lane: usize) -> Result<&Stream> {
        let lane = &self.internal.lanes[lane % MAX_LANES];
        Ok(lane.get_or_try_init(|| self.create(device, 0, 0))?)
    }

    /// The pooled stream on which graphs are captured, the same each time.
    pub(crate) fn for_captures(&self, device: &Device) -> Result<&Stream> {
        let place = &self.internal.capture;
        if place.load(Ordering::Acquire).is_null() {
            let next = std::ptr::from_ref(self.next(device, 0)?).cast_mut();
            // Another thread may have set one first.
            let none = std::ptr::null_mut();
            let _ = place.compare_exchange(none, next, Ordering::AcqRel, Ordering::Acquire);
        }
        // SAFETY: not NULL; boxed, and dropped only with `self`.
        Ok(unsafe { &*place.load(Ordering::Acquire) })
    }

    /// Takes a stream for the bodies of conditional nodes, and returns its number. It is given back
    /// by [`Streams::give_back_body`].
    pub(crate) fn take_body(&self, device: &Device) -> Result<usize> {
        let taken = &self.internal.taken_bodies;
        let free = |taken: u32| (taken != u32::MAX).then(|| taken | (taken + 1));
        let before = taken
            .try_update(Ordering::Relaxed, Ordering::Relaxed, free)
            .map_err(|_| Error::InvalidState(TOO_MANY_BODIES))?;
        let number = before.trailing_ones() as usize;
        // PyTorch's stream ids, with indices beyond those of its pools.
        let id = 1 | 1 << 1 | ((PER_PRIORITY + number) as i64) << 5;
        let made = self.internal.bodies[number].get_or_try_init(|| self.create(device, id, 0));
        if let Err(error) = made {
            self.give_back_body(number);
            return Err(error);
        }
        Ok(number)
    }

    /// A stream that was taken.
    pub(crate) fn body(&self, number: usize) -> Option<&Stream> {
        self.internal.bodies.get(number)?.get().map(|stream| &**stream)
    }

    /// Gives back the stream with this number; it is not captured.
    pub(crate) fn give_back_body(&self, number: usize) {
        self.internal.taken_bodies.fetch_and(!(1 << number), Ordering::Relaxed);
    }

    /// All external streams.
    fn externals(&self) -> Result<Vec<&Stream>> {
        let (external, mut streams) = (self.external.lock(), Vec::new());
        let no_memory = |_| Error::OutOfHostMemory("a list of streams");
        streams.try_reserve_exact(external.len()).map_err(no_memory)?;
        streams.extend(external.all().map(|stream| self.extend(stream)));
        Ok(streams)
    }

    /// Runs `body` for each stream that hosts use, or used; stops at the first error.
    pub(crate) fn each(&self, mut body: impl FnMut(&Stream) -> Result<()>) -> Result<()> {
        body(self.default())?;
        self.pooled().try_for_each(&mut body)?;
        self.internal.bodies.iter().filter_map(Once::get).try_for_each(|stream| body(stream))?;
        self.externals()?.into_iter().try_for_each(body)
    }
}
