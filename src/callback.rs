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

/// What waits in a stream, at an address of its own.
struct Waiting {
    callback: Callback,
    /// What is over when it runs, if anybody watches.
    before: Option<Point>,
}

/// Addresses of what has not run yet.
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
    let before = sanitizer::point_of_work(runtime, stream);
    let queued = try_box(Waiting { callback, before }, "a callback")?;
    let mut waiting = WAITING.lock();
    waiting.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a callback"))?;
    let address = Box::into_raw(queued);
    waiting.push(address as usize);
    drop(waiting);
    let native = stream.native();
    // SAFETY: `call` takes what `address` is, once.
    let taken = unsafe { runtime.driver().cuLaunchHostFunc(native, Some(call), address.cast()) };
    match taken {
        Err(error) if forget(address as usize) => {
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
    if !forget(address as usize) {
        return;
    }
    // SAFETY: from Box::into_raw in `add`, and off the list, so that nobody else takes it.
    let Waiting { callback, before } = *unsafe { Box::from_raw(address.cast::<Waiting>()) };
    sanitizer::reached(before);
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
        // SAFETY: from Box::into_raw in `add`, and off the list.
        let waiting = unsafe { Box::from_raw(address as *mut Waiting) };
        waiting.callback.finish();
    }
}
