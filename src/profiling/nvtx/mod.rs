//! NVTX, the interface by which programs send annotations to NVIDIA's tools. A tool names its
//! library in NVTX_INJECTION64_PATH; without it nothing is loaded or sent.
//!
//! This module sends marks and ranges of the default domain, the same as PyTorch's torch.cuda.nvtx.
//! It counts the open ranges of each thread, so that a program gets the same depths with a tool and
//! without one.

pub mod memory;
pub mod own;
pub(crate) mod table;

use crate::base::error::{Error, Result};
use crate::base::once::Once;
use crate::base::rank::Rank;
use crate::base::thread;
use crate::driver::library::{Library, Spec};
use std::convert::Infallible;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The tool's library; its absence is not a failure.
static LIBRARY: Spec = Spec {
    title: "the tool that reads NVTX",
    variable: c"NVTX_INJECTION64_PATH",
    beside: None,
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

/// Is a tool attached? Determined at the first mark or range.
static TOOL_STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const ABSENT: u8 = 1;
const ATTACHED: u8 = 2;

/// Is it known that no tool is attached?
#[inline(always)]
pub fn is_known_absent() -> bool {
    TOOL_STATE.load(Ordering::Acquire) == ABSENT
}

/// Is a tool attached? Loads and initialises it at the first call, with no lock held that it could
/// need.
pub fn is_attached() -> bool {
    match TOOL_STATE.load(Ordering::Acquire) {
        UNKNOWN => attach_tool(),
        known => known == ATTACHED,
    }
}

/// Inside the library, so that a fork waits for it. A forked child that cannot enter loads the tool
/// itself, unless another thread of the parent was doing so: that half-initialised state cannot be
/// used.
#[cold]
fn attach_tool() -> bool {
    let inside = thread::enter();
    if inside.is_err() && (TOOL.is_being_made() || table::is_being_introduced()) {
        return false;
    }
    let is_attached = tool().is_some_and(table::introduce);
    TOOL_STATE.store(if is_attached { ATTACHED } else { ABSENT }, Ordering::Release);
    is_attached
}

/// Sends a mark.
pub fn mark(message: &CStr) {
    if is_attached() {
        table::mark(message);
    }
}

/// Counts one more open range of this thread; returns its depth, from 0. `None`: there are too
/// many.
#[inline(always)]
pub fn open_range() -> Option<i32> {
    let ranges = &thread::block().ranges;
    let depth = ranges.load(Ordering::Relaxed);
    if depth == i32::MAX as u32 {
        return None;
    }
    ranges.store(depth + 1, Ordering::Relaxed);
    Some(depth as i32)
}

/// Counts one open range less; returns the depth of the range that ends. `None`: none is open.
#[inline(always)]
pub fn close_range() -> Option<i32> {
    let ranges = &thread::block().ranges;
    let depth = ranges.load(Ordering::Relaxed).checked_sub(1)?;
    ranges.store(depth, Ordering::Relaxed);
    Some(depth as i32)
}

/// Opens a range of this thread; returns its depth.
pub fn push(message: &CStr) -> Result<i32> {
    let depth = open_range().ok_or(Error::InvalidState(
        "this thread has two thousand million ranges open; end each one that you begin",
    ))?;
    if is_attached() {
        table::push(message);
    }
    Ok(depth)
}

/// Ends the range that this thread opened last; returns its depth.
pub fn pop() -> Result<i32> {
    let depth = close_range().ok_or(Error::InvalidState(
        "this thread has no range open; each tcuda_nvtx_range_pop ends a tcuda_nvtx_range_push of \
         the same thread",
    ))?;
    if is_attached() {
        table::pop();
    }
    Ok(depth)
}

/// Opens a range that any thread may end; returns the tool's id of it, or an id of this library.
pub fn start(message: &CStr) -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let known = if is_attached() { table::start(message) } else { None };
    known.unwrap_or_else(|| LAST.fetch_add(1, Ordering::Relaxed) + 1)
}

/// Ends such a range. The tool ignores unknown ids, as in NVTX.
pub fn end(id: u64) {
    if is_attached() {
        table::end(id);
    }
}
