//! Reports to the stream sanitizer that concern streams. The sanitizer knows streams and captures
//! as numbers; these functions resolve them on the calling thread.

use crate::base::error::Result;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::{self, Order, Stream};
use crate::observe::flags;
use crate::sanitizer::{self, Kind, Point, Recording, StreamInfo, StreamNow, Touch, entries};

/// Records an operation that was queued on `stream`, with all bytes that it accesses. `label` is
/// the name of the called function, for example "tcuda_copy".
#[inline(always)]
pub fn operation(gpus: &Gpus, stream: &Stream, label: &'static str, touches: &[Touch<'_>]) {
    if sanitizer::is_on() {
        with(gpus, stream, |at| entries::operation(at, label, touches))
    }
}

/// As [`operation`], with a name that the host chose.
#[inline(always)]
pub fn named_operation(gpus: &Gpus, stream: &Stream, name: &str, touches: &[Touch<'_>]) {
    if sanitizer::is_on() {
        with(gpus, stream, |at| entries::named_operation(at, name, touches))
    }
}

/// Records one operation on several streams: it starts when all streams have reached it, and ends
/// on all of them at once.
#[inline(always)]
pub fn collective(gpus: &Gpus, label: &'static str, members: &[(&Stream, &[Touch<'_>])]) {
    if sanitizer::is_on() {
        resolve_members(gpus, label, members);
    }
}

#[cold]
fn resolve_members(gpus: &Gpus, label: &'static str, members: &[(&Stream, &[Touch<'_>])]) {
    let mut list = Vec::new();
    if list.try_reserve_exact(members.len()).is_err() {
        return entries::note_loss();
    }
    for (stream, touches) in members {
        let Some((capture, info)) = resolve(gpus, stream) else { return };
        list.push((capture, info, *touches));
    }
    entries::collective(label, &list);
}

/// Records that an event, identified by its key, was recorded on `stream`.
#[inline(always)]
pub fn event_recorded(gpus: &Gpus, event: u64, stream: &Stream) {
    if sanitizer::is_on() {
        with(gpus, stream, |at| entries::event_recorded(at, event))
    }
}

/// Records that `stream` waits for an event.
#[inline(always)]
pub fn event_waited(gpus: &Gpus, event: u64, stream: &Stream) {
    if sanitizer::is_on() {
        with(gpus, stream, |at| entries::event_waited(at, event))
    }
}

/// Records that each launch of the graph under capture records an event.
#[inline(always)]
pub fn event_recorded_in_graph(gpus: &Gpus, event: u64, stream: &Stream) {
    if sanitizer::is_on() {
        with(gpus, stream, |at| entries::event_outside(at.0, event, true))
    }
}

/// Records that each launch of the graph under capture waits for an event.
#[inline(always)]
pub fn event_waited_in_graph(gpus: &Gpus, event: u64, stream: &Stream) {
    if sanitizer::is_on() {
        with(gpus, stream, |at| entries::event_outside(at.0, event, false))
    }
}

/// Records that `stream` waits for all work that `other` holds now.
#[inline(always)]
pub fn stream_waits(gpus: &Gpus, stream: &Stream, other: &Stream) {
    if sanitizer::is_on() {
        with(gpus, stream, |at| with(gpus, other, |other| entries::stream_waits(at, other.1)));
    }
}

/// Records a wait for work that this process cannot know, for example of another process: `stream`
/// then comes after everything.
#[inline(always)]
pub fn waits_for_everything(gpus: &Gpus, stream: &Stream) {
    if sanitizer::is_on() {
        with(gpus, stream, entries::waits_for_everything)
    }
}

/// Returns the point after all work that `stream` holds now. The caller takes it before it queries
/// or waits for the stream, and passes it to [`reached`] when the driver reports that the work is
/// complete. Host functions on a stream do the same when they begin.
#[inline(always)]
pub fn point_of_stream(gpus: &Gpus, stream: &Stream) -> Option<Point> {
    if sanitizer::is_on() { with(gpus, stream, entries::point_of_stream) } else { None }
}

/// As [`point_of_stream`], for work that is about to be queued on `stream`: the point also includes
/// the work of other streams that the driver orders before it.
#[inline(always)]
pub fn point_of_work(gpus: &Gpus, stream: &Stream) -> Option<Point> {
    if sanitizer::is_on() { with(gpus, stream, entries::point_of_work) } else { None }
}

/// Records an allocated block in the order of `stream`. The caller has not yet returned its address
/// to the host.
#[inline(always)]
pub fn allocated(gpus: &Gpus, ptr: u64, bytes: u64, stream: &Stream) {
    if sanitizer::is_on() {
        resolve_allocation(gpus, ptr, bytes, stream);
    }
}

/// The driver is queried for a capture only when the allocator does so.
#[cold]
fn resolve_allocation(gpus: &Gpus, ptr: u64, bytes: u64, stream: &Stream) {
    if gpus.has_captures() || flags::is_watched_by(flags::ROUTES) {
        return with(gpus, stream, |at| entries::allocated(at, ptr, bytes));
    }
    let stream = stream.on_this_thread(gpus).unwrap_or(stream);
    entries::allocated((0, info_of(gpus, stream, false)), ptr, bytes);
}

/// As [`allocated`], for a stream of the library, while the sanitizer is the only active observer:
/// then no allocation is routed to a private pool and no capture gets memory.
#[inline]
pub fn allocated_uncaptured(ptr: u64, bytes: u64, stream: &Stream) {
    if sanitizer::is_on() {
        let kind = if stream.is_default() { Kind::Legacy } else { Kind::NonBlocking };
        entries::allocated((0, info(stream, kind)), ptr, bytes);
    }
}

/// Records that `stream` uses the block that contains `ptr`: the allocator waits for `stream`
/// before it reuses the block.
#[inline(always)]
pub fn used_on(ptr: u64, stream: &Stream) {
    if sanitizer::is_on() {
        entries::used_on(ptr, stream.serial);
    }
}

/// Records that the block that contains `ptr` is in the order of `stream` from now on.
#[inline(always)]
pub fn handed_over(gpus: &Gpus, ptr: u64, stream: &Stream) {
    if sanitizer::is_on() {
        entries::handed_over(ptr, info_of(gpus, stream, false));
    }
}

/// Returns the number of the capture that `stream` is part of, before that capture ends.
#[inline(always)]
pub fn capture_of(gpus: &Gpus, stream: &Stream) -> Option<u64> {
    if sanitizer::is_on() {
        with(gpus, stream, |(capture, _)| (capture != 0).then_some(capture))
    } else {
        None
    }
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
    if sanitizer::is_on() {
        with(gpus, stream, |at| entries::graph_launched(at, executable, recording));
    }
}

/// Runs `body` on the stream as the sanitizer knows it, unless that cannot be found out.
#[cold]
fn with<R: Default>(gpus: &Gpus, stream: &Stream, body: impl FnOnce(StreamNow) -> R) -> R {
    resolve(gpus, stream).map(body).unwrap_or_default()
}

/// Resolves a stream on the calling thread.
fn resolve(gpus: &Gpus, stream: &Stream) -> Option<StreamNow> {
    let stream = stream.on_this_thread(gpus).unwrap_or(stream);
    match capture(gpus, stream) {
        Ok(number) => Some((number, info_of(gpus, stream, number != 0))),
        Err(_) => {
            // The capture is unknown, so the operation cannot be recorded.
            entries::note_loss();
            None
        }
    }
}

fn capture(gpus: &Gpus, stream: &Stream) -> Result<u64> {
    if stream.is_default() {
        // The default stream cannot be captured.
        return Ok(0);
    }
    let _context = stream.enter(gpus)?;
    Ok(stream::capture_of(gpus.driver(), stream.native())?.unwrap_or(0))
}

fn info(stream: &Stream, kind: Kind) -> StreamInfo {
    StreamInfo { key: stream.serial, id: stream.id(), device: stream.device(), kind }
}

fn info_of(gpus: &Gpus, stream: &Stream, is_captured: bool) -> StreamInfo {
    let kind = match () {
        () if stream.is_default() => Kind::Legacy,
        () if stream.is_per_thread() => Kind::Blocking,
        () if !stream.is_external() => Kind::NonBlocking,
        // The kind is not used for captured streams.
        () if is_captured => Kind::NonBlocking,
        () => match stream.order(gpus) {
            Ok(Order::Free) => Kind::NonBlocking,
            // If it is unknown: too much order causes no false report.
            Ok(Order::Blocking) | Err(_) => Kind::Blocking,
        },
    };
    info(stream, kind)
}
