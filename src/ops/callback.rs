//! Host functions in streams. Each is called once. Its `destroy` runs in any case, also if the
//! device is lost before the stream gets there. Captured host functions belong to the graph
//! instead.

use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::progress;
use crate::base::rank::Rank;
use crate::base::thread;
use crate::base::waiting;
use crate::gpu::gpus::Gpus;
use crate::gpu::sanitizer_reports;
use crate::gpu::stream::Stream;
use crate::ops::captured_callback;
use crate::sanitizer::{self, Point};
use std::ffi::c_void;

/// A host function with its data.
pub struct Callback {
    /// The function.
    pub function: unsafe extern "C" fn(*mut c_void),
    /// Its argument.
    pub user_data: *mut c_void,
    /// Frees the data; optional.
    pub destroy: Option<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: the host promises that its function may run on any thread.
unsafe impl Send for Callback {}

impl Callback {
    /// Frees the data. Called once, with no lock held.
    pub(crate) fn finish(&self) {
        if let Some(destroy) = self.destroy {
            let _waiting = waiting::in_host_function();
            // SAFETY: the host's own function, called once.
            unsafe { destroy(self.user_data) };
        }
    }
}

/// A callback that is queued in a stream.
struct QueuedCallback {
    callback: Callback,
    /// The sync point of the work before it, if the sanitizer is on.
    before: Option<Point>,
}

/// A slot of the table.
struct Slot {
    number: u64,
    /// The next vacant slot, if this one is vacant; [`NO_SLOT`]: none.
    next: u32,
    waiting: Option<QueuedCallback>,
}

const NO_SLOT: u32 = u32::MAX;

/// The callbacks that have not run yet. The driver gets an id: a count in the upper half, so that
/// ids are never reused, and the index of the slot. So each operation takes constant time.
struct Slots {
    list: Vec<Slot>,
    /// The first vacant slot.
    vacant: u32,
    taken: usize,
    last: u32,
}

/// Number of slots that are kept when none is used.
const KEPT: usize = 1024;

static WAITING: Mutex<Slots> = Mutex::new(Rank::LEAF, Slots::new());

impl Slots {
    const fn new() -> Slots {
        Slots { list: Vec::new(), vacant: NO_SLOT, taken: 0, last: 0 }
    }

    /// Inserts a callback and returns its id.
    fn insert(&mut self, waiting: QueuedCallback) -> Result<u64> {
        const NO_MEMORY: Error = Error::OutOfHostMemory("a callback");
        if self.vacant == NO_SLOT {
            let index = u32::try_from(self.list.len()).map_err(|_| NO_MEMORY)?;
            self.list.try_reserve(1).map_err(|_| NO_MEMORY)?;
            self.list.push(Slot { number: 0, next: NO_SLOT, waiting: None });
            self.vacant = index;
        }
        let index = self.vacant;
        let slot = self.list.get_mut(index as usize).ok_or(NO_MEMORY)?;
        self.vacant = slot.next;
        self.last = self.last.wrapping_add(1);
        slot.number = u64::from(self.last) << 32 | u64::from(index);
        slot.waiting = Some(waiting);
        self.taken += 1;
        Ok(slot.number)
    }

    /// Empties the table and returns its slots.
    fn clear(&mut self) -> Vec<Slot> {
        (self.vacant, self.taken) = (NO_SLOT, 0);
        std::mem::take(&mut self.list)
    }

    /// Removes a callback, if it is still there.
    fn remove(&mut self, number: u64) -> Option<QueuedCallback> {
        let index = number as u32;
        let slot = self.list.get_mut(index as usize)?;
        if slot.number != number {
            return None;
        }
        let waiting = slot.waiting.take()?;
        slot.next = self.vacant;
        self.vacant = index;
        self.taken -= 1;
        if self.taken == 0 && self.list.len() > KEPT {
            self.clear();
        }
        Some(waiting)
    }
}

/// Queues a callback; on failure the caller keeps it.
pub fn add(gpus: &Gpus, stream: &Stream, callback: Callback) -> Result<()> {
    let device = gpus.device(stream.device())?;
    let _context = device.enter()?;
    if stream.is_capturing(gpus)? {
        if let Some(capture) = gpus.captures().number_of(gpus, stream)? {
            return captured_callback::capture(gpus, stream.native(), capture, callback);
        }
        return Err(Error::Capturing {
            operation: "tcuda_stream_add_callback",
            why: "a host function runs once, and a graph many times; add it before or after",
        });
    }
    let before = sanitizer_reports::point_of_work(gpus, stream);
    let number = WAITING.lock().insert(QueuedCallback { callback, before })?;
    let native = stream.native();
    // SAFETY: `call` takes the callback of this id, once.
    let taken = unsafe { gpus.driver().cuLaunchHostFunc(native, Some(call), as_data(number)) };
    match taken {
        // Still there: the driver refused it, and the caller keeps it.
        Err(error) if take(number).is_some() => Err(error.into()),
        // It has run: the error is of earlier work, and the next call returns it as well.
        _ => Ok(()),
    }
}

fn as_data(number: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(number as usize)
}

fn take(number: u64) -> Option<QueuedCallback> {
    WAITING.lock().remove(number)
}

unsafe extern "C" fn call(data: *mut c_void) {
    let Some(QueuedCallback { callback, before }) = take(data.addr() as u64) else { return };
    sanitizer::reached(before);
    let _waiting = waiting::in_host_function();
    progress::notify();
    let _in_callback = thread::InCallback::begin();
    // SAFETY: the host's own function with its own data.
    unsafe { (callback.function)(callback.user_data) };
    callback.finish();
}

/// Frees the data of callbacks that will never run, because the device is lost or idle.
pub(crate) fn abandon_all() {
    captured_callback::free_all();
    let slots = WAITING.lock().clear();
    for waiting in slots.into_iter().filter_map(|slot| slot.waiting) {
        waiting.callback.finish();
    }
}
