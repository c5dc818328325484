//! Hidden waits, told or refused: calls that make the host wait for the device. As in PyTorch these are
//! waits for a stream, and copies that end with one; who waits for a device or an event means to.

use crate::error::{Error, Result};
use crate::log;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// They wait.
pub const DEFAULT: i32 = 0;
/// They wait, and a line of log says so.
pub const WARN: i32 = 1;
/// They fail instead.
pub const ERROR: i32 = 2;

static MODE: AtomicI32 = AtomicI32::new(DEFAULT);

/// A call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// "tcuda_stream_synchronize".
    pub what: &'static str,
    /// What to do instead, as the end of a sentence.
    pub instead: &'static str,
}

/// For a stream.
pub const STREAM: Wait = Wait {
    what: "tcuda_stream_synchronize",
    instead: "order the work by events, or wait for an event",
};

/// For a copy from or to memory that the device cannot reach.
pub const PAGEABLE_COPY: Wait = Wait {
    what: "a copy from or to pageable host memory",
    instead: "use pinned memory (tcuda_host_malloc)",
};

/// What holds, for the whole process.
pub fn mode() -> i32 {
    MODE.load(Ordering::Relaxed)
}

/// Is any wait of interest?
#[inline]
pub fn is_on() -> bool {
    mode() != DEFAULT
}

/// Changes it.
pub fn set(mode: i32) -> Result<()> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !(DEFAULT..=ERROR).contains(&mode) {
        return Err(Error::OutOfRange {
            name: "mode",
            value: mode.into(),
            allowed: "use TCUDA_SYNC_DEBUG_DEFAULT, _WARN or _ERROR",
        });
    }
    MODE.store(mode, Ordering::Relaxed);
    if mode != DEFAULT && !TOLD.swap(true, Ordering::Relaxed) {
        log::warn_as_asked(format_args!(
            "sync debug mode knows waits for streams, and copies from and to pageable memory; \
             waits for devices and events, and those of other libraries, pass unseen"
        ));
    }
    Ok(())
}

/// Before a wait of the host's: refused, told, or nothing.
#[inline]
pub fn before(wait: Wait) -> Result<()> {
    if is_on() { judge(wait) } else { Ok(()) }
}

#[cold]
fn judge(wait: Wait) -> Result<()> {
    if mode() == ERROR {
        return Err(Error::WouldSynchronize(wait));
    }
    let Wait { what, instead } = wait;
    log::warn_as_asked(format_args!("{what} makes the host wait for the device; {instead}"));
    Ok(())
}

/// Back to the default.
pub(crate) fn forget() {
    MODE.store(DEFAULT, Ordering::Relaxed);
}
