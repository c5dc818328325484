//! The stream sanitizer: reports two accesses to the same bytes that no stream order, event or host
//! wait orders. It looks at the order that the program establishes, not at when the work happened
//! to run.
//!
//! Code that queues work calls the functions here after the driver has accepted the work. The
//! caller holds no lock under which calls to the driver or the host are forbidden. While the
//! sanitizer is off, each function costs one load and one branch.

mod block_life;
mod blocks;
mod change;
mod check;
mod clock;
mod domain;
mod hooks;
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

use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::tensor::Tensor;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use hooks::leave;
pub use hooks::{Call, Point, Recording};
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
    /// The elements of a tensor. A tensor in pageable host memory is ignored.
    Tensor(&'a Tensor),
}

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

    /// An access to the elements of a tensor.
    #[inline]
    pub fn tensor(tensor: &'a Tensor, mode: Mode) -> Touch<'a> {
        Touch { bytes: Bytes::Tensor(tensor), mode }
    }
}

/// Records an operation that was queued on `stream`, with all bytes that it accesses. `label` is
/// the name of the called function, for example "tcuda_copy".
#[inline(always)]
pub fn operation(gpus: &Gpus, stream: &Stream, label: &'static str, touches: &[Touch<'_>]) {
    if is_on() {
        hooks::operation(gpus, stream, label, touches);
    }
}

/// Returns the number of bytes from `address` to the end of its allocated block, or 0 if no block
/// is known there.
pub fn rest_of_block(address: u64) -> u64 {
    if is_on() { hooks::rest_of_block(address) } else { 0 }
}

/// As [`operation`], with a name that the host chose.
#[inline(always)]
pub fn named_operation(gpus: &Gpus, stream: &Stream, name: &str, touches: &[Touch<'_>]) {
    if is_on() {
        hooks::named_operation(gpus, stream, name, touches);
    }
}

/// Records one operation on several streams: it starts when all streams have reached it, and ends
/// on all of them at once.
#[inline(always)]
pub fn collective(gpus: &Gpus, label: &'static str, members: &[(&Stream, &[Touch<'_>])]) {
    if is_on() {
        hooks::collective(gpus, label, members);
    }
}

/// Records that an event, identified by its key, was recorded on `stream`.
#[inline(always)]
pub fn event_recorded(gpus: &Gpus, event: u64, stream: &Stream) {
    if is_on() {
        hooks::event_recorded(gpus, event, stream);
    }
}

/// Records that `stream` waits for an event.
#[inline(always)]
pub fn event_waited(gpus: &Gpus, event: u64, stream: &Stream) {
    if is_on() {
        hooks::event_waited(gpus, event, stream);
    }
}

/// Records that an event is destroyed; another event may get its key.
#[inline(always)]
pub fn event_gone(event: u64) {
    if is_on() {
        hooks::event_gone(event);
    }
}

/// Records that `stream` waits for all work that `other` holds now.
#[inline(always)]
pub fn stream_waits(gpus: &Gpus, stream: &Stream, other: &Stream) {
    if is_on() {
        hooks::stream_waits(gpus, stream, other);
    }
}

/// Returns the point after all work that `stream` holds now. The caller takes it before it queries
/// or waits for the stream, and passes it to [`reached`] when the driver reports that the work is
/// complete. Host functions on a stream do the same when they begin.
#[inline(always)]
pub fn point_of_stream(gpus: &Gpus, stream: &Stream) -> Option<Point> {
    if is_on() { hooks::point_of_stream(gpus, stream) } else { None }
}

/// As [`point_of_stream`], for work that is about to be queued on `stream`: the point also includes
/// the work of other streams that the driver orders before it.
#[inline(always)]
pub fn point_of_work(gpus: &Gpus, stream: &Stream) -> Option<Point> {
    if is_on() { hooks::point_of_work(gpus, stream) } else { None }
}

/// Returns the point at which an event was last recorded.
#[inline(always)]
pub fn point_of_event(event: u64) -> Option<Point> {
    if is_on() { hooks::point_of_event(event) } else { None }
}

/// Returns the point after all work that the streams of a device hold now.
#[inline(always)]
pub fn point_of_device(device: i32) -> Option<Point> {
    if is_on() { hooks::point_of_all(Some(device)) } else { None }
}

/// Returns the point after all work that all streams hold now.
#[inline(always)]
pub fn point_of_everything() -> Option<Point> {
    if is_on() { hooks::point_of_all(None) } else { None }
}

/// Records that the host knows that all work before `point` is complete.
#[inline(always)]
pub fn reached(point: Option<Point>) {
    if let Some(point) = point {
        hooks::reached(&point);
    }
}

/// Records an allocated block in the order of `stream`. The caller has not yet returned its address
/// to the host.
#[inline(always)]
pub fn allocated(gpus: &Gpus, ptr: u64, bytes: u64, stream: &Stream) {
    if is_on() {
        hooks::allocated(gpus, ptr, bytes, stream);
    }
}

/// As [`allocated`], for a stream of the library, while the sanitizer is the only active observer:
/// then no allocation is routed to a private pool and no capture gets memory.
#[inline]
pub fn allocated_uncaptured(ptr: u64, bytes: u64, stream: &Stream) {
    if is_on() {
        hooks::allocated_uncaptured(ptr, bytes, stream);
    }
}

/// Records that a block is about to be freed, before another allocation can get its memory.
#[inline(always)]
pub fn freed(ptr: u64) {
    if is_on() {
        hooks::freed(ptr);
    }
}

/// Records that `stream` uses the block that contains `ptr`: the allocator waits for `stream`
/// before it reuses the block.
#[inline(always)]
pub fn used_on(ptr: u64, stream: &Stream) {
    if is_on() {
        hooks::used_on(ptr, stream);
    }
}

/// Records an allocated block of pinned host memory.
#[inline(always)]
pub fn pinned(ptr: u64, bytes: u64) {
    if is_on() {
        hooks::pinned(ptr, bytes);
    }
}

/// Records that a block of pinned host memory is about to be freed.
#[inline(always)]
pub fn unpinned(ptr: u64) {
    if is_on() {
        hooks::freed(ptr);
    }
}

/// Returns the number of the capture that `stream` is part of, before that capture ends.
#[inline(always)]
pub fn capture_of(gpus: &Gpus, stream: &Stream) -> Option<u64> {
    if is_on() { hooks::capture_number(gpus, stream) } else { None }
}

/// Records that a capture has ended. Returns its operations, to be kept with the graph, or `None`
/// if none are known.
#[inline(always)]
pub fn capture_ended(capture: Option<u64>) -> Option<Recording> {
    capture.and_then(hooks::capture_ended)
}

/// Records that `executable`, identified by a key, is about to be launched. A launch comes after
/// the previous launch of the same executable, whatever their streams.
#[inline(always)]
pub fn graph_launched(
    gpus: &Gpus,
    stream: &Stream,
    executable: u64,
    recording: Option<&Recording>,
) {
    if is_on() {
        hooks::graph_launched(gpus, stream, executable, recording);
    }
}

/// Records that an executable is destroyed; another one may get its key.
#[inline(always)]
pub fn executable_gone(executable: u64) {
    if is_on() {
        hooks::executable_gone(executable);
    }
}

/// Records that each launch of the graph under capture records an event.
#[inline(always)]
pub fn event_recorded_in_graph(gpus: &Gpus, event: u64, stream: &Stream) {
    if is_on() {
        hooks::event_outside(gpus, event, stream, true);
    }
}

/// Records that each launch of the graph under capture waits for an event.
#[inline(always)]
pub fn event_waited_in_graph(gpus: &Gpus, event: u64, stream: &Stream) {
    if is_on() {
        hooks::event_outside(gpus, event, stream, false);
    }
}

/// Records a wait for work that this process cannot know, for example of another process: `stream`
/// then comes after everything.
#[inline(always)]
pub fn waits_for_everything(gpus: &Gpus, stream: &Stream) {
    if is_on() {
        hooks::waits_for_everything(gpus, stream);
    }
}

/// Begins a call that records several operations, or that takes locks under which host functions
/// are forbidden. The caller takes no lock before. The host's frames are captured now. Reports are
/// delivered when the outermost such call ends, after its last lock is released.
#[inline(always)]
pub fn call() -> Option<Call> {
    if is_on() { Some(hooks::Call::begin()) } else { None }
}
