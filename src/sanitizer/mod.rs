//! The stream sanitizer: reports two accesses to the same bytes that no stream order, event or host
//! wait orders. It looks at the order that the program establishes, not at when the work happened
//! to run.
//!
//! It knows devices, streams, captures and events as numbers, and memory as addresses.
//! `gpu::sanitizer_reports` translates: code that queues work calls the functions there and here
//! after the driver has accepted the work. The caller holds no lock under which calls to the driver
//! or the host are forbidden. While the sanitizer is off, each function costs one load and one
//! branch.
//!
//! Imports `base` and `observe`. Begin with `entries.rs` and `state.rs`.

mod block_life;
mod blocks;
mod change;
mod check;
mod clock;
mod domain;
pub(crate) mod entries;
mod ranges;
mod recording;
mod report;
mod shape;
mod state;
mod store;
mod switch;
pub mod sync_points;
#[cfg(test)]
mod tests;
mod text;

use std::sync::atomic::{AtomicBool, Ordering};

pub use domain::{Kind, StreamInfo};
pub(crate) use entries::leave;
pub use entries::{Call, Point, Recording, StreamNow};
pub use report::{Access, DEFAULT_MAX_REPORTS, Report};
pub use switch::{Listener, count, disable, enable, report, report_text};
pub(crate) use switch::{begin, forget, in_child, is_wanted, stop};

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Returns whether the sanitizer is on.
#[inline(always)]
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// How an operation accesses bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The operation reads the bytes.
    Read,
    /// The operation writes the bytes.
    Write,
    /// The operation reads and writes the bytes.
    ReadWrite,
}

/// The bytes of a [`Touch`].
#[derive(Clone, Copy, Debug)]
pub enum Bytes<'a> {
    /// `rows` rows of `bytes` bytes; the starts of two neighbours are `pitch` bytes apart.
    Rows {
        /// Address of the first byte.
        ptr: u64,
        /// Bytes per row.
        bytes: u64,
        /// Number of rows; 1 is a contiguous range.
        rows: u64,
        /// Distance between the starts of two rows, in bytes.
        pitch: u64,
    },
    /// The elements of a strided array.
    Elements(&'a dyn Elements),
}

/// A strided array.
pub trait Elements: std::fmt::Debug {
    /// Has it no bytes that a device can access?
    fn is_ignored(&self) -> bool;
    /// The address of its first byte, and one past its last; `None`: they are not known.
    fn range(&self) -> Option<(u64, u64)>;
    /// Does it fill this range without gaps?
    fn is_compact(&self) -> bool;
    /// The size of each dimension, and the distance of neighbours in elements.
    fn dims(&self) -> (&[i64], &[i64]);
    /// Bits of an element.
    fn element_bits(&self) -> u64;
}

/// The most dimensions of a strided array.
pub const MAX_DIMS: usize = 64;

/// Bytes that an operation accesses, and how.
#[derive(Clone, Copy, Debug)]
pub struct Touch<'a> {
    /// The bytes.
    pub bytes: Bytes<'a>,
    /// Whether the operation reads or writes them.
    pub mode: Mode,
}

impl<'a> Touch<'a> {
    /// A read of a contiguous range.
    #[inline]
    pub fn read(ptr: u64, bytes: u64) -> Touch<'a> {
        Touch::rows(ptr, bytes, 1, 0, Mode::Read)
    }

    /// A write of a contiguous range.
    #[inline]
    pub fn write(ptr: u64, bytes: u64) -> Touch<'a> {
        Touch::rows(ptr, bytes, 1, 0, Mode::Write)
    }

    /// An access to rows of bytes.
    #[inline]
    pub fn rows(ptr: u64, bytes: u64, rows: u64, pitch: u64, mode: Mode) -> Touch<'a> {
        Touch { bytes: Bytes::Rows { ptr, bytes, rows, pitch }, mode }
    }

    /// An access to the elements of a strided array.
    #[inline]
    pub fn elements(array: &'a dyn Elements, mode: Mode) -> Touch<'a> {
        Touch { bytes: Bytes::Elements(array), mode }
    }
}

/// Returns the number of bytes from `address` to the end of its allocated block, or 0 if no block
/// is known there.
pub fn rest_of_block(address: u64) -> u64 {
    if is_on() { entries::rest_of_block(address) } else { 0 }
}

/// Records that an event is destroyed; another event may get its key.
#[inline(always)]
pub fn event_gone(event: u64) {
    if is_on() {
        entries::event_gone(event);
    }
}

/// Returns the point at which an event was last recorded.
#[inline(always)]
pub fn point_of_event(event: u64) -> Option<Point> {
    if is_on() { entries::point_of_event(event) } else { None }
}

/// Returns the point after all work that the streams of a device hold now.
#[inline(always)]
pub fn point_of_device(device: i32) -> Option<Point> {
    if is_on() { entries::point_of_all(Some(device)) } else { None }
}

/// Returns the point after all work that all streams hold now.
#[inline(always)]
pub fn point_of_everything() -> Option<Point> {
    if is_on() { entries::point_of_all(None) } else { None }
}

/// Records that the host knows that all work before `point` is complete.
#[inline(always)]
pub fn reached(point: Option<Point>) {
    if let Some(point) = point {
        entries::reached(&point);
    }
}

/// Records that a block is about to be freed, before another allocation can get its memory.
#[inline(always)]
pub fn freed(ptr: u64) {
    if is_on() {
        entries::freed(ptr);
    }
}

/// Records an allocated block of pinned host memory.
#[inline(always)]
pub fn pinned(ptr: u64, bytes: u64) {
    if is_on() {
        entries::pinned(ptr, bytes);
    }
}

/// Records that a block of pinned host memory is about to be freed.
#[inline(always)]
pub fn unpinned(ptr: u64) {
    if is_on() {
        entries::freed(ptr);
    }
}

/// Records that a capture has ended. Returns its operations, to be kept with the graph, or `None`
/// if none are known.
#[inline(always)]
pub fn capture_ended(capture: Option<u64>) -> Option<Recording> {
    capture.and_then(entries::capture_ended)
}

/// Records that an executable is destroyed; another one may get its key.
#[inline(always)]
pub fn executable_gone(executable: u64) {
    if is_on() {
        entries::executable_gone(executable);
    }
}

/// Begins a call that records several operations, or that takes locks under which host functions
/// are forbidden. The caller takes no lock before. The host's frames are captured now. Reports are
/// delivered when the outermost such call ends, after its last lock is released.
#[inline(always)]
pub fn call() -> Option<Call> {
    if is_on() { Some(entries::Call::begin()) } else { None }
}
