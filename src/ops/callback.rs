//! Host functions in streams. Each is called once, and its `destroy` runs in any case, also when the
//! device is lost before the stream gets there. Those that are captured are the graph's.

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

/// A host's function with its data.
pub struct Callback {
    /// What to call.
    pub function: unsafe extern "C" fn(*mut c_void),
    /// What it gets.
    pub user_data: *mut c_void,
    /// Frees the data; may be missing.
    pub destroy: Option<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: the host promises that its function may run on any thread.
unsafe impl Send for Callback {}

impl Callback {
    /// Frees the data; with no lock held, and once.
    pub(crate) fn finish(&self) {
        if let Some(destroy) = self.destroy {
            let _waiting = waiting::in_host_function();
            // SAFETY: the host's own function, called once.
            unsafe { destroy(self.user_data) };
        }
    }
}

/// What waits in a stream, under a number.
struct Waiting {
    callback: Callback,
    /// What is over when it runs, if anybody watches.
    before: Option<Point>,
}

/// A place for what waits.
struct Place {
    number: u64,
    /// The next vacant place, where this one is vacant; [`NO_PLACE`]: none.
    next: u32,
    waiting: Option<Waiting>,
}

const NO_PLACE: u32 = u32::MAX;

/// What has not run yet. The driver gets numbers: a count in the upper half, so that a number means one
/// callback for ever, and the index of the place. So each step takes the same time however many wait.
struct Places {
    list: Vec<Place>,
    /// The first that is vacant.
    vacant: u32,
    taken: usize,
    last: u32,
}

/// So many places stay when none is taken.
const KEPT: usize = 1024;

static WAITING: Mutex<Places> = Mutex::new(Rank::LEAF, Places::new());

impl Places {
    const fn new() -> Places {
        Places { list: Vec::new(), vacant: NO_PLACE, taken: 0, last: 0 }
    }

    /// Keeps it, and gives its number.
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

    /// Leaves nothing, and gives what there was.
    fn clear(&mut self) -> Vec<Place> {
        (self.vacant, self.taken) = (NO_PLACE, 0);
        std::mem::take(&mut self.list)
    }

    /// Takes it out, if it is still there.
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

/// An error in a host function of a stream: for what waits, or for a lock that others hold while they wait.
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
    // SAFETY: `call` takes what is under the number, once.
    let taken = unsafe { runtime.driver().cuLaunchHostFunc(native, Some(call), as_data(number)) };
    match taken {
        // Still there: the driver did not take it, and the caller keeps it.
        Err(error) if take(number).is_some() => Err(error.into()),
        // It has run: an error then is one of earlier work, which the next call tells as well.
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

/// Frees the data of callbacks that will never run: the device is gone or idle.
pub(crate) fn abandon_all() {
    functions::free_all();
    let places = WAITING.lock().clear();
    for waiting in places.into_iter().filter_map(|place| place.waiting) {
        waiting.callback.finish();
    }
}
