//! NVTX ranges of a stream: host functions open and close them when the stream gets there. In a
//! graph they do so at each launch.

use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::shared::Shared;
use crate::base::thread::try_box;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::ops::callback::{self, Callback};
use crate::profiling::nvtx::{is_attached, table};
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

/// A range that is sent to a tool.
struct Range {
    /// The message, with its NUL.
    message: Vec<u8>,
    /// The tool's id of the open range; 0: not open; ENDED: its end ran before its start.
    open: AtomicU64,
}

/// In `open`: the streams of start and end are not ordered.
const ENDED: u64 = u64::MAX;

impl Range {
    fn new(message: &CStr) -> Result<Shared<Range>> {
        const WHAT: &str = "the message of a range";
        let bytes = message.to_bytes_with_nul();
        let mut copy = Vec::new();
        copy.try_reserve_exact(bytes.len()).map_err(|_| Error::OutOfHostMemory(WHAT))?;
        copy.extend_from_slice(bytes);
        Shared::new(Range { message: copy, open: AtomicU64::new(0) }, WHAT)
    }

    fn begin(&self) {
        let Ok(message) = CStr::from_bytes_with_nul(&self.message) else { return };
        // Ids with a special meaning here are not kept.
        let Some(id) = table::start(message).filter(|id| !matches!(*id, 0 | ENDED)) else { return };
        // Another launch of the graph may run on another stream: the tool sees the ranges one after
        // the other.
        match self.open.swap(id, Ordering::AcqRel) {
            0 => (),
            ENDED => self.end(),
            before => table::end(before),
        }
    }

    fn end(&self) {
        let close = |open| Some(if open == 0 { ENDED } else { 0 });
        match self.open.fetch_update(Ordering::AcqRel, Ordering::Acquire, close) {
            Ok(0 | ENDED) | Err(_) => (),
            Ok(id) => table::end(id),
        }
    }
}

/// A range without a queued end.
struct Started {
    number: u64,
    /// `None`: no tool is attached.
    range: Option<Shared<Range>>,
    /// Its end is being queued.
    ends: bool,
}

/// The ranges of all streams, and the last number.
static STARTED: Mutex<(Vec<Started>, u64)> = Mutex::new(Rank::LEAF, (Vec::new(), 0));

/// Opens a range when the stream gets there; returns its number, which is not an id of the tool.
pub fn start(gpus: &Gpus, stream: &Stream, message: &CStr) -> Result<u64> {
    let range = if is_attached() { Some(Range::new(message)?) } else { None };
    let number = list(range.as_ref().map(Shared::share))?;
    if let Some(range) = range
        && let Err(error) = queue(gpus, stream, "tcuda_nvtx_device_range_start", begin, range)
    {
        drop(take(number));
        return Err(error);
    }
    Ok(number)
}

/// Closes a range when the stream gets there.
pub fn end(gpus: &Gpus, stream: &Stream, number: u64) -> Result<()> {
    let range = {
        let mut started = STARTED.lock();
        let known = started.0.iter_mut().find(|known| known.number == number && !known.ends);
        let Some(known) = known else {
            return Err(Error::OutOfRange {
                name: "id",
                value: number as i64,
                allowed: "pass that of a tcuda_nvtx_device_range_start that was not ended yet",
            });
        };
        known.ends = true;
        known.range.as_ref().map(Shared::share)
    };
    if let Some(range) = range
        && let Err(error) = queue(gpus, stream, "tcuda_nvtx_device_range_end", finish, range)
    {
        let mut started = STARTED.lock();
        if let Some(known) = started.0.iter_mut().find(|known| known.number == number) {
            known.ends = false;
        }
        return Err(error);
    }
    drop(take(number));
    Ok(())
}

/// Removes all ranges without an end.
pub(crate) fn forget_all() {
    let forgotten = std::mem::take(&mut STARTED.lock().0);
    drop(forgotten);
}

fn list(range: Option<Shared<Range>>) -> Result<u64> {
    let mut started = STARTED.lock();
    let no_room = |_| Error::OutOfHostMemory("a range of a stream");
    started.0.try_reserve(1).map_err(no_room)?;
    started.1 += 1;
    let number = started.1;
    started.0.push(Started { number, range, ends: false });
    Ok(number)
}

fn take(number: u64) -> Option<Started> {
    let mut started = STARTED.lock();
    let index = started.0.iter().position(|known| known.number == number)?;
    Some(started.0.swap_remove(index))
}

fn queue(
    gpus: &Gpus,
    stream: &Stream,
    operation: &'static str,
    function: unsafe extern "C" fn(*mut c_void),
    range: Shared<Range>,
) -> Result<()> {
    let owner = Box::into_raw(try_box(range, "a range of a stream")?);
    let user_data = owner.cast::<c_void>();
    let callback = Callback { function, user_data, destroy: Some(let_go) };
    callback::add(gpus, stream, callback).map_err(|error| {
        // SAFETY: from Box::into_raw, and the driver did not take it.
        drop(unsafe { Box::from_raw(owner) });
        match error {
            Error::Capturing { why, .. } => Error::Capturing { operation, why },
            other => other,
        }
    })
}

unsafe extern "C" fn begin(range: *mut c_void) {
    // SAFETY: from `queue`, and alive until `let_go`.
    unsafe { &*range.cast::<Shared<Range>>() }.begin();
}

unsafe extern "C" fn finish(range: *mut c_void) {
    // SAFETY: as above.
    unsafe { &*range.cast::<Shared<Range>>() }.end();
}

unsafe extern "C" fn let_go(range: *mut c_void) {
    // SAFETY: from Box::into_raw in `queue`, and this comes last.
    drop(unsafe { Box::from_raw(range.cast::<Shared<Range>>()) });
}
