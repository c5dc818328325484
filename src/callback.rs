//! Host functions in streams. Each is called once, and its `destroy` runs in any case, also when the
//! device is lost before the stream gets there. Those that are captured are the graph's.

use crate::error::{Error, Result};
use crate::graph::functions;
use crate::lock::Mutex;
use crate::progress;
use crate::rank::{Rank, before_host_function};
use crate::runtime::Runtime;
use crate::sanitizer::{self, Point};
use crate::stream::Stream;
use crate::thread::{self, try_box};
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
            before_host_function();
            // SAFETY: the host's own function, called once.
            unsafe { destroy(self.user_data) };
        }
    }
}

/// A callback while somebody watches, and what is over when it runs.
struct Watched {
    callback: Callback,
    before: Option<Point>,
}

/// What waits in a stream, at an address of its own.
trait Queued {
    /// Tells the kinds apart in [`WAITING`]: a bit that their addresses do not have.
    const MARK: usize;
    /// What the driver calls with the address.
    const CALL: unsafe extern "C" fn(*mut c_void);
}

impl Queued for Callback {
    const MARK: usize = 0;
    const CALL: unsafe extern "C" fn(*mut c_void) = call;
}

impl Queued for Watched {
    const MARK: usize = 1;
    const CALL: unsafe extern "C" fn(*mut c_void) = call_watched;
}

/// Addresses of the callbacks that have not run yet, with their marks.
static WAITING: Mutex<Vec<usize>> = Mutex::new(Rank::LEAF, Vec::new());

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
    if sanitizer::is_on() {
        let before = sanitizer::point_of_work(runtime, stream);
        return queue(runtime, stream, Watched { callback, before });
    }
    queue(runtime, stream, callback)
}

fn queue<T: Queued>(runtime: &Runtime, stream: &Stream, queued: T) -> Result<()> {
    let queued = try_box(queued, "a callback")?;
    let mut waiting = WAITING.lock();
    waiting.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a callback"))?;
    let address = Box::into_raw(queued);
    waiting.push(address as usize | T::MARK);
    drop(waiting);
    let native = stream.native();
    // SAFETY: `T::CALL` takes what `address` is, once.
    let taken = unsafe { runtime.driver().cuLaunchHostFunc(native, Some(T::CALL), address.cast()) };
    match taken {
        Err(error) if forget(address as usize | T::MARK) => {
            // SAFETY: from Box::into_raw, and still on the list, so that the driver did not take it.
            drop(unsafe { Box::from_raw(address) });
            Err(error.into())
        }
        // It has run: an error then is one of earlier work, which the next call tells as well.
        _ => Ok(()),
    }
}

fn forget(address: usize) -> bool {
    let mut waiting = WAITING.lock();
    match waiting.iter().position(|known| *known == address) {
        Some(index) => {
            waiting.swap_remove(index);
            true
        }
        None => false,
    }
}

unsafe extern "C" fn call(address: *mut c_void) {
    if !forget(address as usize | Callback::MARK) {
        return;
    }
    // SAFETY: from Box::into_raw in `queue`, and off the list, so that nobody else takes it.
    let callback = unsafe { Box::from_raw(address.cast::<Callback>()) };
    run(&callback);
}

unsafe extern "C" fn call_watched(address: *mut c_void) {
    if !forget(address as usize | Watched::MARK) {
        return;
    }
    // SAFETY: as in `call`.
    let Watched { callback, before } = *unsafe { Box::from_raw(address.cast::<Watched>()) };
    sanitizer::reached(before);
    run(&callback);
}

fn run(callback: &Callback) {
    before_host_function();
    progress::told();
    let _in_callback = thread::InCallback::begin();
    // SAFETY: the host's own function with its own data.
    unsafe { (callback.function)(callback.user_data) };
    callback.finish();
}

/// Frees the data of callbacks that will never run: the device is gone or idle.
pub(crate) fn abandon_all() {
    functions::abandon_all();
    let waiting = std::mem::take(&mut *WAITING.lock());
    for address in waiting {
        if address & Watched::MARK != 0 {
            let address = (address & !Watched::MARK) as *mut Watched;
            // SAFETY: from Box::into_raw in `queue`, and off the list.
            unsafe { Box::from_raw(address) }.callback.finish();
        } else {
            // SAFETY: as above.
            unsafe { Box::from_raw(address as *mut Callback) }.finish();
        }
    }
}
