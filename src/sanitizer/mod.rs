//! The stream sanitizer: finds accesses to the same bytes that nothing orders, by the order that the
//! program makes, not by what happened by chance.
//!
//! What queues work tells of it here, after the driver has taken it, with no lock held under which the
//! driver or the host may not be called. Off, each of these is a load and a branch.

pub mod heard;

use crate::runtime::Runtime;
use crate::stream::Stream;
use crate::tensor::Tensor;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// What a stream, event or device had before it at some moment; joined once that is over.
#[derive(Clone, Default)]
pub struct Point(());

/// What was captured, for the launches of its graph; a copy costs little.
#[derive(Clone, Default)]
pub struct Recording(());

/// An operation was queued: "tcuda_copy", with all that it touches.
#[inline(always)]
pub fn operation(
    _runtime: &Runtime,
    _stream: &Stream,
    _label: &'static str,
    _touches: &[Touch<'_>],
) {
    if is_on() {}
}

/// Work on several streams that begins when all have come to it, and ends for all at once.
#[inline(always)]
pub fn collective(_runtime: &Runtime, _label: &'static str, _members: &[(&Stream, &[Touch<'_>])]) {
    if is_on() {}
}

/// An event, known by its key, was recorded.
#[inline(always)]
pub fn event_recorded(_runtime: &Runtime, _event: u64, _stream: &Stream) {
    if is_on() {}
}

/// A stream waits for it.
#[inline(always)]
pub fn event_waited(_runtime: &Runtime, _event: u64, _stream: &Stream) {
    if is_on() {}
}

/// It is destroyed: the key may be another's.
#[inline(always)]
pub fn event_gone(_event: u64) {
    if is_on() {}
}

/// A stream waits for all that another holds now.
#[inline(always)]
pub fn stream_waits(_runtime: &Runtime, _stream: &Stream, _other: &Stream) {
    if is_on() {}
}

/// All that a stream holds now. Taken before the driver is asked or waited for, and handed to
/// [`reached`] when that said that it is over; also for functions of hosts, when they begin.
#[inline(always)]
pub fn point_of_stream(_runtime: &Runtime, _stream: &Stream) -> Option<Point> {
    None
}

/// What an event was last recorded behind.
#[inline(always)]
pub fn point_of_event(_event: u64) -> Option<Point> {
    None
}

/// All that the streams of a device hold now.
#[inline(always)]
pub fn point_of_device(_device: i32) -> Option<Point> {
    None
}

/// The host knows that it is over.
#[inline(always)]
pub fn reached(_point: Option<Point>) {}

/// A block was given out, in the order of a stream; before its host sees it.
#[inline(always)]
pub fn allocated(_runtime: &Runtime, _ptr: u64, _bytes: u64, _stream: &Stream) {
    if is_on() {}
}

/// A block is about to be free; before anybody else can get it.
#[inline(always)]
pub fn freed(_ptr: u64) {
    if is_on() {}
}

/// The allocator will wait for a stream as well before the block at `ptr` (inside which it may lie)
/// serves again.
#[inline(always)]
pub fn used_on(_ptr: u64, _stream: &Stream) {
    if is_on() {}
}

/// Pinned memory of the host was given out.
#[inline(always)]
pub fn pinned(_ptr: u64, _bytes: u64) {
    if is_on() {}
}

/// It is about to be free.
#[inline(always)]
pub fn unpinned(_ptr: u64) {
    if is_on() {}
}

/// The number of the capture that a stream is in; before it ends.
#[inline(always)]
pub fn capture_of(_runtime: &Runtime, _stream: &Stream) -> Option<u64> {
    None
}

/// A capture has ended: what was captured, to be kept with the graph. None when nothing is known.
#[inline(always)]
pub fn capture_ended(_capture: Option<u64>) -> Option<Recording> {
    None
}

/// A graph is about to be launched by an executable, which is known by a key; a launch comes after
/// the one before of the same executable, whatever their streams.
#[inline(always)]
pub fn graph_launched(
    _runtime: &Runtime,
    _stream: &Stream,
    _executable: u64,
    _recording: Option<&Recording>,
) {
    if is_on() {}
}

/// An executable is destroyed: its key may be another's.
#[inline(always)]
pub fn executable_gone(_executable: u64) {
    if is_on() {}
}

/// A captured stream records an event at each launch of what is captured.
#[inline(always)]
pub fn event_recorded_in_graph(_runtime: &Runtime, _event: u64, _stream: &Stream) {
    if is_on() {}
}

/// A captured stream waits for an event at each launch of what is captured.
#[inline(always)]
pub fn event_waited_in_graph(_runtime: &Runtime, _event: u64, _stream: &Stream) {
    if is_on() {}
}

/// A stream waits for what nobody here can know: it comes after everything.
#[inline(always)]
pub fn waits_for_everything(_runtime: &Runtime, _stream: &Stream) {
    if is_on() {}
}

/// All that all streams hold now.
#[inline(always)]
pub fn point_of_everything() -> Option<Point> {
    None
}

/// A call that tells of several things, or that takes locks under which the host may not be called: it
/// asks the host for its frames once, now, and hands reports over at its end.
pub struct Call(());

impl Drop for Call {
    fn drop(&mut self) {}
}

/// Begins such a call, before any lock; it ends when the last lock was given back.
#[inline(always)]
pub fn call() -> Option<Call> {
    None
}
