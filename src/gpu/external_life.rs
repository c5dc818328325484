//! Streams of others: until when one may be named to the driver, and what stands for it afterwards.
//!
//! The owner of a stream may destroy it once its last handle is gone. So whoever names it to the
//! driver for another reason than a handle (memory that was used on it) says so meanwhile, and the
//! last handle goes only when nobody does.

use crate::base::sync::{self, AtomicU64, AtomicUsize, Ordering};

/// Stands for an event where none is needed: the host waited for the stream when its handle went.
pub const ENDED: usize = 1;

/// Stands for an event where there is none: the stream could be neither recorded nor waited for, so
/// that nobody knows when it ends before all of its context does.
pub const UNKNOWN: usize = 2;

/// One handle, in the upper half of the word; the lower half counts who names the stream.
const HANDLE: u64 = 1 << 32;

/// The handles of a stream, and the event that was recorded when the last one went.
pub struct ExternalStreamLife {
    word: AtomicU64,
    /// 0: none yet.
    event: AtomicUsize,
}

/// How a stream stands.
pub enum EndState<'a> {
    /// It may be named as long as this is kept; nothing may be waited for meanwhile.
    Alive(StreamUse<'a>),
    /// Its owner may have destroyed it: this event stands for it, or nothing of it is left.
    Gone(Option<usize>),
    /// The same, and nothing stands for it.
    Lost,
}

/// Says that the stream is named to the driver, until it is dropped.
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

    /// Is there a handle, so that the stream lives?
    pub fn has_handle(&self) -> bool {
        self.word.load(Ordering::Acquire) >= HANDLE
    }

    /// A handle goes. When it was the last, whoever still names the stream has done so afterwards.
    pub fn drop_handle(&self) {
        let before = self.word.fetch_sub(HANDLE, Ordering::AcqRel);
        if before >= 2 * HANDLE {
            return;
        }
        // They make a call or two of the driver's, which wait for nothing. A new handle ends it too.
        while (1..HANDLE).contains(&self.word.load(Ordering::Acquire)) {
            sync::yield_now();
        }
    }

    /// May the stream be named? Where it never had an event, it is its owner's promise that it lives.
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

    /// The event; 0: none yet.
    pub fn event(&self) -> usize {
        self.event.load(Ordering::Acquire)
    }

    /// Puts an event, which is recorded, in the place of the one that was known; else gives the one
    /// that came first.
    pub fn replace_event(&self, known: usize, new: usize) -> Result<(), usize> {
        self.event.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    /// Takes the event, at the end of everything.
    pub fn take_event(&self) -> usize {
        self.event.swap(0, Ordering::AcqRel)
    }
}

impl Drop for StreamUse<'_> {
    fn drop(&mut self) {
        self.0.word.fetch_sub(1, Ordering::Release);
    }
}
