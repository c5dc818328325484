//! Life of external streams: whether the driver may still be called with one, and which event
//! replaces it afterwards.
//!
//! The owner of an external stream may destroy it once its last handle is dropped. Other uses
//! (memory that was used on it) have no handle: they count themselves while they call the driver
//! with the stream, and the drop of the last handle waits until that count is 0.

use crate::base::sync::{self, AtomicU64, AtomicUsize, Ordering};

/// In place of an event: none is needed, because the host waited for the stream when its last
/// handle was dropped.
pub const ENDED: usize = 1;

/// In place of an event: there is none. The stream could be neither recorded nor waited for, so its
/// work is known to be over only when that of its whole context is.
pub const UNKNOWN: usize = 2;

/// One handle, in the upper half of the word; the lower half counts current uses without a handle.
const HANDLE: u64 = 1 << 32;

/// The handles of a stream, and the event that was recorded when the last one was dropped.
pub struct ExternalStreamLife {
    word: AtomicU64,
    /// 0: no event yet.
    event: AtomicUsize,
}

/// What may be used in place of a stream.
pub enum EndState<'a> {
    /// The stream itself, as long as the guard is kept; its holder must not wait for anything
    /// meanwhile.
    Alive(StreamUse<'a>),
    /// Its owner may have destroyed it: use this event; `None`: its work is over.
    Gone(Option<usize>),
    /// Its owner may have destroyed it, and there is no event.
    Lost,
}

/// Counts as a use of the stream, until it is dropped.
pub struct StreamUse<'a>(&'a ExternalStreamLife);

impl ExternalStreamLife {
    sync::constant! {
        /// No handle, and no event.
        pub fn new() -> ExternalStreamLife {
            ExternalStreamLife { word: AtomicU64::new(0), event: AtomicUsize::new(0) }
        }
    }

    /// Counts a handle.
    pub fn add_handle(&self) {
        self.word.fetch_add(HANDLE, Ordering::AcqRel);
    }

    /// Is there a handle, so that the stream is alive?
    pub fn has_handle(&self) -> bool {
        self.word.load(Ordering::Acquire) >= HANDLE
    }

    /// Drops a handle. If it was the last one, waits for the current uses of the stream.
    pub fn drop_handle(&self) {
        let before = self.word.fetch_sub(HANDLE, Ordering::AcqRel);
        if before >= 2 * HANDLE {
            return;
        }
        // Uses last for one or two driver calls, which do not block. A new handle ends the wait
        // too.
        while (1..HANDLE).contains(&self.word.load(Ordering::Acquire)) {
            sync::yield_now();
        }
    }

    /// What may be used in place of the stream? If there was never an event, the owner promises
    /// that the stream is alive.
    pub fn end_state(&self) -> EndState<'_> {
        let before = self.word.fetch_add(1, Ordering::Acquire);
        let named = StreamUse(self);
        if before >= HANDLE {
            return EndState::Alive(named);
        }
        match self.event() {
            0 => EndState::Alive(named),
            ENDED => EndState::Gone(None),
            UNKNOWN => EndState::Lost,
            event => EndState::Gone(Some(event)),
        }
    }

    /// The event; 0: no event yet.
    pub fn event(&self) -> usize {
        self.event.load(Ordering::Acquire)
    }

    /// Replaces the event `known` by `new`, which is recorded; `Err`: the event that another thread
    /// has set first.
    pub fn replace_event(&self, known: usize, new: usize) -> Result<(), usize> {
        self.event.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    /// Takes the event, when the stream is dropped.
    pub fn take_event(&self) -> usize {
        self.event.swap(0, Ordering::AcqRel)
    }
}

impl Drop for StreamUse<'_> {
    fn drop(&mut self) {
        self.0.word.fetch_sub(1, Ordering::Release);
    }
}
