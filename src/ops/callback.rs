//! Host functions in streams. Each is called once. Its `destroy` runs in any case, also if the
//! device is lost before the stream gets there. Captured host functions belong to the graph
//! instead.

use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::progress;
use crate::base::rank::Rank;
use crate::base::thread;
use crate::base::waiting;
use crate::gpu::stream::Stream;
use crate::graph::functions;
use crate::runtime::Runtime;
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
struct Waiting {
    callback: Callback,
    /// The sync point of the work before it, if the sanitizer is on.
    before: Option<Point>,
}

/// A slot of the table.
struct Place {
    number: u64,
    /// The next vacant slot, if this one is vacant; [`NO_PLACE`]: none.
    next: u32,
    waiting: Option<Waiting>,
}

const NO_PLACE: u32 = u32::MAX;

/// The callbacks that have not run yet. The driver gets an id: a count in the upper half, so that
/// ids are never reused, and the index of the slot. So each operation takes constant time.
struct Places {
    list: Vec<Place>,
    /// The first vacant slot.
    vacant: u32,
    taken: usize,
    last: u32,
}

/// Number of slots that are kept when none is used.
const KEPT: usize = 1024;

static WAITING: Mutex<Places> = Mutex::new(Rank::LEAF, Places::new());

impl Places {
    const fn new() -> Places {
        Places { list: Vec::new(), vacant: NO_PLACE, taken: 0, last: 0 }
    }

    /// Inserts a callback and returns its id.
    fn insert(&mut self, waiting: Waiting) -> Result<u64> {
        const NO_MEMORY: Error = Error::OutOfHostMemory("a callback");
        if self.vacant == NO_PLACE {
            let index = u32::try_from(self.list.len()).map_err(|_| NO_MEMORY)?;
            self.list.try_reserve(1).map_err(|_| NO_MEMORY)?;
            self.list.push(Place { number: 0, next: NO_PLACE, waiting: None });
            self.vacant = index;
        }
        let index = self.vacant;
        let place = self.list.get_mut(index as usize).ok_or(NO_MEMORY)?;
        self.vacant = place.next;
        self.last = self.last.wrapping_add(1);
        place.number = u64::from(self.last) << 32 | u64::from(index);
        place.waiting = Some(waiting);
        self.taken += 1;
        Ok(place.number)
    }

    /// Empties the table and returns its slots.
    fn clear(&mut self) -> Vec<Place> {
        (self.vacant, self.taken) = (NO_PLACE, 0);
        std::mem::take(&mut self.list)
    }

    /// Removes a callback, if it is still there.
    fn remove(&mut self, number: u64) -> Option<Waiting> {
        let index = number as u32;
        let place = self.list.get_mut(index as usize)?;
        if place.number != number {
            return None;
        }
        let waiting = place.waiting.take()?;
        place.next = self.vacant;
        self.vacant = index;
        self.taken -= 1;
        if self.taken == 0 && self.list.len() > KEPT {
            self.clear();
        }
        Some(waiting)
    }
}

/// An error in a host function of a stream: for calls that wait, or that take a lock which others
/// hold while they wait.
pub(crate) fn refuse() -> Result<()> {
    if thread::is_in_callback() { Err(Error::InCallback("")) } else { Ok(()) }
}

/// Queues a callback; on failure the caller keeps it.
pub fn add(runtime: &Runtime, stream: &Stream, callback: Callback) -> Result<()> {
    let device = runtime.device(stream.device())?;
    let _context = device.enter()?;
    if stream.is_capturing(runtime)? {
        if let Some(capture) = runtime.captures.number_of(runtime, stream)? {
            return functions::capture(runtime, stream.native(), capture, callback);
        }
        return Err(Error::Capturing {
            operation: "tcuda_stream_add_callback",
            why: "a host function runs once, and a graph many times; add it before or after",
        });
    }
    let before = sanitizer::point_of_work(runtime, stream);
    let number = WAITING.lock().insert(Waiting { callback, before })?;
    let native = stream.native();
    // SAFETY: `call` takes the callback of this id, once.
    let taken = unsafe { runtime.driver().cuLaunchHostFunc(native, Some(call), as_data(number)) };
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

fn take(number: u64) -> Option<Waiting> {
    WAITING.lock().remove(number)
}

unsafe extern "C" fn call(data: *mut c_void) {
    let Some(Waiting { callback, before }) = take(data.addr() as u64) else { return };
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
    functions::free_all();
    let places = WAITING.lock().clear();
    for waiting in places.into_iter().filter_map(|place| place.waiting) {
        waiting.callback.finish();
    }
}
