//! The current stream of each thread on each device.

use crate::base::error::Result;
use crate::base::thread::{self, Block, try_box};
use crate::base::waiting;
use crate::gpu::device::MAX_DEVICES;
use crate::gpu::stream::{Stream, Streams};
use std::sync::atomic::{AtomicPtr, Ordering};

impl Streams {
    /// This thread's current stream of the device.
    #[inline]
    pub fn current(&self) -> &Stream {
        let block = thread::block();
        if block.generation.load(Ordering::Relaxed) != self.generation() {
            return self.default();
        }
        let streams = block.streams.load(Ordering::Relaxed).cast::<Currents>();
        // SAFETY: NULL or this thread's array, which only this thread frees.
        let Some(streams) = (unsafe { streams.as_ref() }) else { return self.default() };
        waiting::assert_awake();
        let stream = streams[self.ordinal as usize].load(Ordering::Relaxed);
        // SAFETY: NULL or a stream of this runtime, which stays while it is a thread's current one.
        unsafe { stream.as_ref() }.unwrap_or(self.default())
    }

    /// Makes a stream of the device this thread's current one, after calling `before` with the
    /// previous one.
    #[inline(always)]
    pub fn replace_current<R>(
        &self,
        stream: &Stream,
        before: impl FnOnce(&Stream) -> Result<R>,
    ) -> Result<R> {
        let block = thread::block();
        if block.generation.load(Ordering::Relaxed) != self.generation() {
            self.begin_currents(block)?;
        }
        let streams = block.streams.load(Ordering::Relaxed).cast::<Currents>();
        // SAFETY: this thread's array, made above or before.
        let place = &unsafe { &*streams }[self.ordinal as usize];
        // SAFETY: as in `current`.
        let current = unsafe { place.load(Ordering::Relaxed).as_ref() };
        let outcome = before(current.unwrap_or(self.default()))?;
        place.store(std::ptr::from_ref(stream).cast_mut(), Ordering::Relaxed);
        block.known_in.store(0, Ordering::Relaxed);
        Ok(outcome)
    }

    #[cold]
    fn begin_currents(&self, block: &Block) -> Result<()> {
        forget(block);
        let fresh: Currents = [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_DEVICES];
        let fresh = Box::into_raw(try_box(fresh, "a thread's current streams")?);
        // Other threads read them (`each`).
        block.streams.store(fresh.cast(), Ordering::Release);
        block.generation.store(self.generation(), Ordering::Release);
        Ok(())
    }
}

type Currents = [AtomicPtr<Stream>; MAX_DEVICES];

/// Frees a thread's list of current streams, so that all are the default ones again.
pub(crate) fn forget(block: &Block) {
    block.known_in.store(0, Ordering::Relaxed);
    block.generation.store(0, Ordering::Relaxed);
    let streams = block.streams.swap(std::ptr::null_mut(), Ordering::Relaxed).cast::<Currents>();
    if !streams.is_null() {
        // SAFETY: made by `set_current` with Box::into_raw, and no longer reachable.
        drop(unsafe { Box::from_raw(streams) });
    }
}

/// Runs `body` on each thread's current streams in the present generation of the library.
pub(crate) fn each(generation: u64, mut body: impl FnMut(*const Stream)) {
    thread::each(|block| {
        if block.generation.load(Ordering::Acquire) != generation {
            return;
        }
        let streams = block.streams.load(Ordering::Acquire).cast::<Currents>();
        // SAFETY: the thread's array, which it frees only in another generation of the library, or
        // after it has left the list.
        let streams = unsafe { streams.as_ref() };
        streams.into_iter().flatten().for_each(|stream| body(stream.load(Ordering::Relaxed)));
    });
}
