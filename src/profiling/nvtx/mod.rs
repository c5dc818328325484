//! NVTX, by which NVIDIA's tools are told what a program does. A tool names its library in
//! NVTX_INJECTION64_PATH; without it nothing is loaded, and nobody is told.
//!
//! Here: marks and ranges of the default domain. What the tool is told is the same as PyTorch's
//! torch.cuda.nvtx tells it; how many ranges a thread has open is counted here, so that a program
//! gets the same numbers with a tool and without one.

pub mod device;
pub mod memory;
pub mod own;
mod table;

use crate::base::error::{Error, Result};
use crate::base::once::Once;
use crate::base::rank::Rank;
use crate::base::thread;
use crate::driver::library::{Library, Spec};
use std::convert::Infallible;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The tool's library; a tool that is not there is no failure.
static LIBRARY: Spec = Spec {
    title: "the tool that reads NVTX",
    variable: c"NVTX_INJECTION64_PATH",
    names: &[],
    advice: "",
};

static TOOL: Once<Option<Library>> = Once::new(Rank::ONCE);

/// The tool, if there is one.
fn tool() -> Option<&'static Library> {
    if let Some(known) = TOOL.get() {
        return known.as_ref();
    }
    let open = || {
        crate::base::environment::value(LIBRARY.variable)?;
        Library::open(&LIBRARY).ok()
    };
    let tool = TOOL.get_or_try_init(|| Ok::<_, Infallible>(open()));
    tool.ok().and_then(Option::as_ref)
}

/// Does a tool listen? Asked at the first mark or range.
static LISTENER: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const NOBODY: u8 = 1;
const SOMEBODY: u8 = 2;

/// Is it known that nobody listens?
#[inline(always)]
pub fn is_unheard() -> bool {
    LISTENER.load(Ordering::Acquire) == NOBODY
}

/// Does a tool listen? Its first steps are taken here, with no lock held that it could want.
pub fn is_heard() -> bool {
    match LISTENER.load(Ordering::Acquire) {
        UNKNOWN => find_listener(),
        known => known == SOMEBODY,
    }
}

/// Inside the library, so that a fork waits for it. A forked child that may not enter finds the tool for
/// itself, unless another thread of the parent was about to: what that left cannot be used.
#[cold]
fn find_listener() -> bool {
    let inside = thread::enter();
    if inside.is_err() && (TOOL.is_being_made() || table::is_being_introduced()) {
        return false;
    }
    let is_heard = tool().is_some_and(table::introduce);
    LISTENER.store(if is_heard { SOMEBODY } else { NOBODY }, Ordering::Release);
    is_heard
}

/// An instant.
pub fn mark(message: &CStr) {
    if is_heard() {
        table::mark(message);
    }
}

/// Counts one more range that this thread has open; gives its depth, from 0. None: there are too many.
#[inline(always)]
pub fn deepen() -> Option<i32> {
    let ranges = &thread::block().ranges;
    let depth = ranges.load(Ordering::Relaxed);
    if depth == i32::MAX as u32 {
        return None;
    }
    ranges.store(depth + 1, Ordering::Relaxed);
    Some(depth as i32)
}

/// Counts one less; gives the depth of that which ends. None: none is open.
#[inline(always)]
pub fn surface() -> Option<i32> {
    let ranges = &thread::block().ranges;
    let depth = ranges.load(Ordering::Relaxed).checked_sub(1)?;
    ranges.store(depth, Ordering::Relaxed);
    Some(depth as i32)
}

/// Opens a range of this thread; gives its depth.
pub fn push(message: &CStr) -> Result<i32> {
    let depth = deepen().ok_or(Error::InvalidState(
        "this thread has two thousand million ranges open; end each one that you begin",
    ))?;
    if is_heard() {
        table::push(message);
    }
    Ok(depth)
}

/// Ends the last one that this thread opened; gives its depth.
pub fn pop() -> Result<i32> {
    let depth = surface().ok_or(Error::InvalidState(
        "this thread has no range open; each tcuda_nvtx_range_pop ends a tcuda_nvtx_range_push of \
         the same thread",
    ))?;
    if is_heard() {
        table::pop();
    }
    Ok(depth)
}

/// Opens a range that any thread may end; gives the tool's number of it, or one of ours.
pub fn start(message: &CStr) -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let known = if is_heard() { table::start(message) } else { None };
    known.unwrap_or_else(|| LAST.fetch_add(1, Ordering::Relaxed) + 1)
}

/// Ends it. A number that is none is the tool's to ignore, as in NVTX.
pub fn end(id: u64) {
    if is_heard() {
        table::end(id);
    }
}
