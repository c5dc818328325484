//! What an external stream leaves behind with its last handle: from then on its owner may destroy it,
//! and nobody may ask it any more.

use crate::driver::sys::CUevent;
use crate::error::Result;
use crate::runtime::Runtime;
use crate::stream::Stream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// No event, because the host waited for the stream when its last handle went.
const ENDED: usize = 1;

/// What stands for an external stream once its owner may have destroyed it.
pub(crate) enum Farewell {
    /// Nothing: it was waited for.
    Ended,
    /// This event.
    Event(CUevent),
    /// Its end could be neither recorded nor waited for: only its whole context can be.
    Unknown,
}

/// The end of a stream, as far as it is known.
pub(crate) struct End {
    /// An event recorded when the last handle went; 0: none yet, ENDED: none is needed.
    event: AtomicUsize,
    /// The last handle went and left nothing that stands for the stream.
    is_unknown: AtomicBool,
}

impl End {
    pub(crate) const fn new() -> End {
        End { event: AtomicUsize::new(0), is_unknown: AtomicBool::new(false) }
    }

    /// What stands for the stream; `None`: no handle went yet.
    #[inline]
    pub(crate) fn get(&self) -> Option<Farewell> {
        if self.is_unknown.load(Ordering::Acquire) {
            return Some(Farewell::Unknown);
        }
        match self.event.load(Ordering::Acquire) {
            0 => None,
            ENDED => Some(Farewell::Ended),
            event => Some(Farewell::Event(event as CUevent)),
        }
    }

    /// Nothing stands for it, not even what an earlier handle left.
    pub(crate) fn set_unknown(&self) {
        self.is_unknown.store(true, Ordering::Release);
    }

    /// The host waited for it.
    pub(crate) fn was_waited_for(&self) {
        let _ = self.event.compare_exchange(0, ENDED, Ordering::AcqRel, Ordering::Acquire);
        self.is_unknown.store(false, Ordering::Release);
    }

    /// Records the present end of a stream that is alive.
    pub(crate) fn record(&self, runtime: &Runtime, stream: &Stream) -> Result<()> {
        self.record_event(runtime, stream)?;
        self.is_unknown.store(false, Ordering::Release);
        Ok(())
    }

    fn record_event(&self, runtime: &Runtime, stream: &Stream) -> Result<()> {
        let device = runtime.device(stream.device())?;
        let known = self.event.load(Ordering::Acquire);
        if known > ENDED {
            return stream.record(runtime, known as CUevent);
        }
        let event = device.events.take_untimed(device)?;
        if let Err(error) = stream.record(runtime, event) {
            device.events.give_untimed(event);
            return Err(error);
        }
        let new = event as usize;
        match self.event.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(first) => {
                device.events.give_untimed(event);
                stream.record(runtime, first as CUevent)
            }
        }
    }

    /// The event, at the end of all.
    pub(crate) fn take_event(&self) -> Option<CUevent> {
        let event = self.event.swap(0, Ordering::AcqRel);
        (event > ENDED).then_some(event as CUevent)
    }
}
