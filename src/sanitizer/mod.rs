//! The stream sanitizer: finds accesses to the same bytes that nothing orders, by the order that
//! the program makes, not by what happened by chance.
//!
//! What queues work tells of it here, after the driver has taken it, with no lock held under which
//! the driver or the host may not be called. Off, each of these is a load and a branch.

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

use crate::gpu::stream::Stream;
use crate::runtime::Runtime;
use crate::tensor::Tensor;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use hooks::leave;
pub use hooks::{Call, Point, Recording};
pub use report::{Access, DEFAULT_MAX_REPORTS, Report};
pub use switch::{Listener, count, disable, enable, report, report_text};
pub(crate) use switch::{begin, forget, in_child, is_wanted, stop};

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Is anybody watching?
#[inline(always)]
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// What an operation does with bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Reads them.
    Read,
    /// Writes them.
    Write,
    /// Both.
    ReadWrite,
}

/// Which bytes.
#[derive(Clone, Copy, Debug)]
pub enum Bytes<'a> {
    /// `rows` times `bytes`, whose beginnings are `pitch` apart.
    Rows {
        /// The first byte.
        ptr: u64,
        /// Of a row.
        bytes: u64,
        /// Rows; 1 is a plain range.
        rows: u64,
        /// From one to the next.
        pitch: u64,
    },
    /// The elements of a tensor; one in plain memory of the host is none.
    Tensor(&'a Tensor),
}

/// Bytes that an operation touches.
#[derive(Clone, Copy, Debug)]
pub struct Touch<'a> {
    /// Which.
    pub bytes: Bytes<'a>,
    /// What it does with them.
    pub mode: Mode,
}

impl<'a> Touch<'a> {
    /// Reads a range.
    #[inline]
    pub fn read(ptr: u64, bytes: u64) -> Touch<'a> {
        Touch::rows(ptr, bytes, 1, 0, Mode::Read)
    }

    /// Writes a range.
    #[inline]
    pub fn write(ptr: u64, bytes: u64) -> Touch<'a> {
        Touch::rows(ptr, bytes, 1, 0, Mode::Write)
    }

    /// Rows of bytes.
    #[inline]
    pub fn rows(ptr: u64, bytes: u64, rows: u64, pitch: u64, mode: Mode) -> Touch<'a> {
        Touch { bytes: Bytes::Rows { ptr, bytes, rows, pitch }, mode }
    }

    /// A tensor's elements.
    #[inline]
    pub fn tensor(tensor: &'a Tensor, mode: Mode) -> Touch<'a> {
        Touch { bytes: Bytes::Tensor(tensor), mode }
    }
}

/// An operation was queued: "tcuda_copy", with all that it touches.
#[inline(always)]
pub fn operation(runtime: &Runtime, stream: &Stream, label: &'static str, touches: &[Touch<'_>]) {
    if is_on() {
        hooks::operation(runtime, stream, label, touches);
    }
}

/// How many bytes a block that was given out has from an address on; 0 where nobody knows of one.
pub fn rest_of_block(address: u64) -> u64 {
    if is_on() { hooks::rest_of_block(address) } else { 0 }
}

/// The same as [`operation`] with a name of the host's.
#[inline(always)]
pub fn named_operation(runtime: &Runtime, stream: &Stream, name: &str, touches: &[Touch<'_>]) {
    if is_on() {
        hooks::named_operation(runtime, stream, name, touches);
    }
}

/// Work on several streams that begins when all have come to it, and ends for all at once.
#[inline(always)]
pub fn collective(runtime: &Runtime, label: &'static str, members: &[(&Stream, &[Touch<'_>])]) {
    if is_on() {
        hooks::collective(runtime, label, members);
    }
}

/// An event, known by its key, was recorded.
#[inline(always)]
pub fn event_recorded(runtime: &Runtime, event: u64, stream: &Stream) {
    if is_on() {
        hooks::event_recorded(runtime, event, stream);
    }
}

/// A stream waits for it.
#[inline(always)]
pub fn event_waited(runtime: &Runtime, event: u64, stream: &Stream) {
    if is_on() {
        hooks::event_waited(runtime, event, stream);
    }
}

/// It is destroyed: the key may be another's.
#[inline(always)]
pub fn event_gone(event: u64) {
    if is_on() {
        hooks::event_gone(event);
    }
}

/// A stream waits for all that another holds now.
#[inline(always)]
pub fn stream_waits(runtime: &Runtime, stream: &Stream, other: &Stream) {
    if is_on() {
        hooks::stream_waits(runtime, stream, other);
    }
}

/// All that a stream holds now. Taken before the driver is asked or waited for, and handed to
/// [`reached`] when that said that it is over; also for functions of hosts, when they begin.
#[inline(always)]
pub fn point_of_stream(runtime: &Runtime, stream: &Stream) -> Option<Point> {
    if is_on() { hooks::point_of_stream(runtime, stream) } else { None }
}

/// The same of work that is about to be queued there: of what the driver orders before that, too.
#[inline(always)]
pub fn point_of_work(runtime: &Runtime, stream: &Stream) -> Option<Point> {
    if is_on() { hooks::point_of_work(runtime, stream) } else { None }
}

/// What an event was last recorded behind.
#[inline(always)]
pub fn point_of_event(event: u64) -> Option<Point> {
    if is_on() { hooks::point_of_event(event) } else { None }
}

/// All that the streams of a device hold now.
#[inline(always)]
pub fn point_of_device(device: i32) -> Option<Point> {
    if is_on() { hooks::point_of_all(Some(device)) } else { None }
}

/// All that all streams hold now.
#[inline(always)]
pub fn point_of_everything() -> Option<Point> {
    if is_on() { hooks::point_of_all(None) } else { None }
}

/// The host knows that it is over.
#[inline(always)]
pub fn reached(point: Option<Point>) {
    if let Some(point) = point {
        hooks::reached(&point);
    }
}

/// A block was given out, in the order of a stream; before its host sees it.
#[inline(always)]
pub fn allocated(runtime: &Runtime, ptr: u64, bytes: u64, stream: &Stream) {
    if is_on() {
        hooks::allocated(runtime, ptr, bytes, stream);
    }
}

/// The same in the order of a stream of the library's, while no memory goes to pools or captures.
#[inline]
pub fn allocated_plainly(ptr: u64, bytes: u64, stream: &Stream) {
    if is_on() {
        hooks::allocated_plainly(ptr, bytes, stream);
    }
}

/// A block is about to be free; before anybody else can get it.
#[inline(always)]
pub fn freed(ptr: u64) {
    if is_on() {
        hooks::freed(ptr);
    }
}

/// The allocator will wait for a stream as well before the block at `ptr` (inside which it may lie)
/// serves again.
#[inline(always)]
pub fn used_on(ptr: u64, stream: &Stream) {
    if is_on() {
        hooks::used_on(ptr, stream);
    }
}

/// Pinned memory of the host was given out.
#[inline(always)]
pub fn pinned(ptr: u64, bytes: u64) {
    if is_on() {
        hooks::pinned(ptr, bytes);
    }
}

/// It is about to be free.
#[inline(always)]
pub fn unpinned(ptr: u64) {
    if is_on() {
        hooks::freed(ptr);
    }
}

/// The number of the capture that a stream is in; before it ends.
#[inline(always)]
pub fn capture_of(runtime: &Runtime, stream: &Stream) -> Option<u64> {
    if is_on() { hooks::capture_number(runtime, stream) } else { None }
}

/// A capture has ended: what was captured, to be kept with the graph. None when nothing is known.
#[inline(always)]
pub fn capture_ended(capture: Option<u64>) -> Option<Recording> {
    capture.and_then(hooks::capture_ended)
}

/// A graph is about to be launched by an executable, which is known by a key; a launch comes after
/// the one before of the same executable, whatever their streams.
#[inline(always)]
pub fn graph_launched(
    runtime: &Runtime,
    stream: &Stream,
    executable: u64,
    recording: Option<&Recording>,
) {
    if is_on() {
        hooks::graph_launched(runtime, stream, executable, recording);
    }
}

/// An executable is destroyed: its key may be another's.
#[inline(always)]
pub fn executable_gone(executable: u64) {
    if is_on() {
        hooks::executable_gone(executable);
    }
}

/// A captured stream records an event at each launch of what is captured.
#[inline(always)]
pub fn event_recorded_in_graph(runtime: &Runtime, event: u64, stream: &Stream) {
    if is_on() {
        hooks::event_outside(runtime, event, stream, true);
    }
}

/// A captured stream waits for an event at each launch of what is captured.
#[inline(always)]
pub fn event_waited_in_graph(runtime: &Runtime, event: u64, stream: &Stream) {
    if is_on() {
        hooks::event_outside(runtime, event, stream, false);
    }
}

/// A stream waits for what nobody here can know: it comes after everything.
#[inline(always)]
pub fn waits_for_everything(runtime: &Runtime, stream: &Stream) {
    if is_on() {
        hooks::waits_for_everything(runtime, stream);
    }
}

/// Begins a call that tells of several things, or that takes locks under which the host may not be
/// called; before any lock. The host's frames are asked for now, and reports handed over when the
/// outermost of these ends, after the last lock was given back.
#[inline(always)]
pub fn call() -> Option<Call> {
    if is_on() { Some(hooks::Call::begin()) } else { None }
}
