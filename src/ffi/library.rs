//! Section "Library" of the header.

use super::boundary::{Call, boundary, boundary_outside, flag, optional_text, out, text, text_out};
use super::callable::CALLABLES;
use super::communicator::COMMUNICATORS;
use super::event::EVENTS;
use super::file::FILES;
use super::generator::GENERATORS;
use super::graph::GRAPHS;
use super::green_context::{GREEN_CONTEXTS, SM_PARTITIONS};
use super::jit::JITS;
use super::kernel::KERNELS;
use super::mem_pool::MEM_POOLS;
use super::memory::ALLOCATIONS;
use super::observer::OBSERVERS;
use super::pluggable::ALLOCATORS;
use super::snapshot::SNAPSHOTS;
use super::status::{last_message, last_native, name_of, tcuda_status};
use super::stream::STREAMS;
use super::user_data::UserData;
use crate::base::error::{Error, Result};
use crate::base::log::{self, Level};
use crate::base::text::Text;
use crate::base::thread::try_box;
use crate::base::waiting;
use crate::base::{text, thread};
use crate::driver::inject;
use crate::driver::sync_debug;
use crate::gpu::gpus;
use crate::runtime::{self, selection};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::fmt;

/// Any device parameter: this thread's current device.
pub const TCUDA_CURRENT_DEVICE: i32 = -1;
/// Host memory, as the destination of a collective. Older versions of torch wrote -1 for it there,
/// which is the current device here.
pub const TCUDA_CPU_DEVICE: i32 = -2;

/// Severity of a log line: TCUDA_LOG_...
pub type tcuda_log_level = i32;
/// Nothing.
pub const TCUDA_LOG_OFF: i32 = 0;
/// Something failed.
pub const TCUDA_LOG_ERROR: i32 = 1;
/// Something is likely wrong.
pub const TCUDA_LOG_WARNING: i32 = 2;
/// Something rare happened.
pub const TCUDA_LOG_INFO: i32 = 3;
/// Details for debugging.
pub const TCUDA_LOG_DEBUG: i32 = 4;

/// Frees user_data: see Callbacks on the front page.
pub type tcuda_destroy_fn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;
/// Receives one log line, without its newline; any thread; must not call tcuda.
pub type tcuda_log_fn = Option<
    unsafe extern "C" fn(user_data: *mut c_void, level: tcuda_log_level, message: *const c_char),
>;

const VERSION: u32 = {
    const fn number(text: &str) -> u32 {
        let (bytes, mut value, mut index) = (text.as_bytes(), 0, 0);
        while index < bytes.len() {
            value = value * 10 + (bytes[index] - b'0') as u32;
            index += 1;
        }
        value
    }
    number(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000_000
        + number(env!("CARGO_PKG_VERSION_MINOR")) * 1000
        + number(env!("CARGO_PKG_VERSION_PATCH"))
};
/// Version of the loaded library, to compare with TCUDA_VERSION. (+)
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_version() -> u32 {
    VERSION
}

/// Name of a status, "TCUDA_STATUS_OUT_OF_MEMORY"; "unknown" for other numbers.
/// (torch.cuda.cudaStatus)
///
/// @param status  any number
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_status_name(status: i32) -> *const c_char {
    name_of(status).as_ptr()
}

/// Sentence about this thread's last failure, valid until its next one; "" if there was none. What
/// is longer than 2,047 bytes, as the output of a compiler may be, is cut.
/// Successful calls keep it.
/// (the text of torch.cuda.CudaError, which torch.cuda.check_error raises)
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_last_error() -> *const c_char {
    last_message()
}

/// The same as tcuda_last_error, copied. (+)
///
/// @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
/// @param len          room in buf, in bytes
/// @param[out] needed  length without the NUL; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_last_error_message(
    buf: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> tcuda_status {
    // Works in a forked child too, which cannot enter the library but needs to learn why.
    boundary_outside(|| {
        let out = text_out(buf, len, needed)?;
        // SAFETY: a NUL-terminated text of this thread, or a constant.
        let message = unsafe { CStr::from_ptr(last_message()) };
        out.set(message.to_str().unwrap_or(""))
    })
}

/// Native code of this thread's last failure: a CUresult, an errno or a callback's; 0 if there is
/// none. (the code of torch.cuda.CudaError)
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_last_error_native() -> i32 {
    last_native()
}

/// Size of a log line, including the NUL.
const LINE: usize = 1024;

/// The host's function as a log sink.
struct HostSink {
    callback: unsafe extern "C" fn(*mut c_void, tcuda_log_level, *const c_char),
    user_data: UserData,
}

thread_local! {
    static IS_WRITING: Cell<bool> = const { Cell::new(false) };
}

/// Marks that this thread is in the log callback, until it is dropped.
struct Writing;

impl Writing {
    /// `None` inside the log callback: calls from there write no lines, because that would recurse.
    fn begin() -> Option<Writing> {
        (!IS_WRITING.replace(true)).then_some(Writing)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        IS_WRITING.set(false);
    }
}

impl log::LogSink for HostSink {
    fn take(&self, level: Level, line: fmt::Arguments<'_>) {
        let Some(_writing) = Writing::begin() else { return };
        let mut buffer = [0u8; LINE];
        text::write(&mut buffer, line);
        let _waiting = waiting::in_host_function();
        // SAFETY: the host's own function with its own data.
        unsafe { (self.callback)(self.user_data.ptr(), level as i32, buffer.as_ptr().cast()) };
    }
}

/// Sends log lines up to `level` to a function, in place of the last one. Until the first call only
/// warnings of tools that the host has turned on are written, to stderr: reports of the stream
/// sanitizer without a report function, and those of sync debug mode. The environment's TCUDA_LOG
/// (off, error, warning, info or debug) is the level up to which all lines are written to stderr;
/// it is read at initialisation. (+)
///
/// @param level      TCUDA_LOG_OFF to TCUDA_LOG_DEBUG
/// @param callback   may be NULL: silence, also on stderr
/// @param user_data  the caller's, passed to the callback; may be NULL
/// @param destroy    called with user_data when the callback is replaced; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_set_log_callback(
    level: tcuda_log_level,
    callback: tcuda_log_fn,
    user_data: *mut c_void,
    destroy: tcuda_destroy_fn,
) -> tcuda_status {
    boundary(|_| {
        if !(TCUDA_LOG_OFF..=TCUDA_LOG_DEBUG).contains(&level) {
            return Err(Error::OutOfRange {
                name: "level",
                value: level.into(),
                allowed: "use TCUDA_LOG_OFF to TCUDA_LOG_DEBUG",
            });
        }
        let user_data = UserData::new(user_data, destroy);
        let listener = match callback {
            None => {
                // Nothing keeps its data, so that it is destroyed now.
                user_data.take();
                None
            }
            Some(callback) => {
                let host = try_box(HostSink { callback, user_data }, "the log callback")?;
                let address: *const HostSink = &*host;
                let listener = log::Listener { level, sink: host };
                let listener = thread::reclaimable(listener, "the log callback")?;
                // SAFETY: boxed, so that its address has not changed.
                unsafe { &*address }.user_data.take();
                Some(listener)
            }
        };
        log::set_listener(listener);
        thread::collect();
        Ok(())
    })
}

/// Selects the backend; before initialisation, or after tcuda_shutdown. Without it the
/// environment's TCUDA_BACKEND and TCUDA_SIM decide, and without those it is "cuda": the library
/// never selects the simulated machine by itself. (+)
///
/// @param name     "cuda" or "sim"
/// @param options  of the simulated machine, "devices=4,memory=16GiB"; may be NULL: TCUDA_SIM's
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_backend_select(
    name: *const c_char,
    options: *const c_char,
) -> tcuda_status {
    boundary(|call| {
        let name = text(name, "name")?;
        let options = optional_text(options, "options")?.unwrap_or("");
        runtime::select_backend(call.inside(), name, options)
    })
}

/// "cuda" or "sim": the backend that runs, or would run. (+)
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_backend_name() -> *const c_char {
    let mut name = None;
    // The name has no status: where a call cannot enter, as in a forked child, it is what was
    // selected.
    let _ = boundary(|call| {
        name = Some(runtime::backend_name(call.inside()));
        Ok(())
    });
    name.unwrap_or_else(selection::name).as_ptr()
}

/// The index of a driver function; `None` for all of them.
fn driver_function(function: *const c_char) -> Result<Option<usize>> {
    match optional_text(function, "function")? {
        None => Ok(None),
        Some(name) => match inject::index_of(name) {
            Some(index) => Ok(Some(index)),
            None => Err(Error::BadText {
                name: "function",
                value: Text::new(name),
                allowed: "name a driver call that tcuda makes, such as \"cuMemMap\"",
            }),
        },
    }
}

/// Number of calls of a driver function so far. Exact on the simulated machine; of a GPU's driver,
/// two calls at the same moment may count as one. (+)
///
/// @param function  "cuMemMap"; may be NULL: of all
/// @param[out] count  calls since initialisation; 0 before it
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_backend_call_count(
    function: *const c_char,
    count: *mut u64,
) -> tcuda_status {
    boundary(|call| {
        let count = out(count, "count")?;
        let function = driver_function(function)?;
        count.set(gpus::existing_driver(call.inside()).map_or(0, |driver| driver.count(function)));
        Ok(())
    })
}

/// Address of a driver function as the library calls it: in the driver, or in the simulated
/// machine. So a host that makes driver calls of its own, for example to capture a stream, runs on
/// both. The function has the version that the library uses: cuStreamGetCaptureInfo that of CUDA
/// 11.3, cuGraphGetEdges that of 10.0. Calls of the host through it are not counted, and
/// tcuda_backend_inject and tcuda_backend_faults do not affect them. Initialises the library; the
/// address is valid until tcuda_shutdown. (+)
///
/// @param function      "cuStreamBeginCapture": without the suffix of a version
/// @param[out] address  of the function, borrowed; TCUDA_STATUS_NOT_SUPPORTED where there is none
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_backend_function(
    function: *const c_char,
    address: *mut *mut c_void,
) -> tcuda_status {
    boundary(|call| {
        let address = out(address, "address")?;
        let function = driver_function(function)?.ok_or(Error::Null { name: "function" })?;
        address.set(call.gpus()?.driver().address(function)?);
        Ok(())
    })
}

/// Makes a driver function fail, for tests of the host. (+)
///
/// @param function  "cuMemMap"; may be NULL: any
/// @param nth       its nth call from now fails; 0 removes the rule of this function
/// @param result    its result, a CUresult: 2 for CUDA_ERROR_OUT_OF_MEMORY; 0 only if nth is 0
/// @param forever   1: every later call fails as well
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_backend_inject(
    function: *const c_char,
    nth: u64,
    result: i32,
    forever: i32,
) -> tcuda_status {
    boundary(|_| {
        let function = driver_function(function)?;
        let forever = flag(forever, "forever")?;
        if result == 0 && nth != 0 {
            return Err(Error::OutOfRange {
                name: "result",
                value: 0,
                allowed: "a call that is not made cannot succeed; use a CUresult such as 2",
            });
        }
        if inject::set(function, nth, result, forever) {
            Ok(())
        } else {
            Err(Error::Invalid("too many functions have a rule; take some back with nth = 0"))
        }
    })
}

/// Injects faults, for tests of the host: driver calls that fail or are slow, and devices that are
/// lost, on a GPU and on the simulated machine. The rules replace all earlier ones, also those of
/// tcuda_backend_inject; tcuda_shutdown removes them.
///
/// A rule is "function@k=effect"; commas separate rules, and there can be 32. The function is a
/// driver call that tcuda makes, or * for any. Its kth call from now on (1: the next) has the
/// effect; if the rule ends with a !, all later calls have it as well.
///
/// "cuMemMap@3=2", with a CUresult: the third call is not made and gives CUDA_ERROR_OUT_OF_MEMORY;
/// "*@17=999!" fails the 17th call and every later one.
///
/// "cuMemCreate@1=slow:20ms", with a time in us, ms or s, at most 60s: the call is made after a
/// pause.
///
/// "*@40=lost": the device of the call is lost, with code 719, or "lost:700" with one of 214, 700,
/// 709 and 714 to 718. From then on every call that works with this device or its context returns
/// that code, also calls that free and destroy; that is TCUDA_STATUS_DEVICE_LOST. Other devices
/// still work. The device stays lost until tcuda_shutdown, also when the rules are removed. After
/// that it works again, unlike a device that is really lost.
///
/// The environment's TCUDA_FAULTS is read in the same way at initialisation, unless rules are set
/// by then; if it is wrong, the call that initialises gives TCUDA_STATUS_INVALID_ARGUMENT. (+)
///
/// @param rules  may be NULL, as "": removes all rules
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_backend_faults(rules: *const c_char) -> tcuda_status {
    boundary(|_| {
        let rules = optional_text(rules, "rules")?.unwrap_or("");
        inject::replace(&inject::parse(rules).map_err(Error::Faults)?);
        Ok(())
    })
}

/// Number of driver calls that failed or were slow because of tcuda_backend_inject,
/// tcuda_backend_faults or TCUDA_FAULTS, including calls to lost devices. (+)
///
/// @param[out] fired  since the process began
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_backend_fault_count(fired: *mut u64) -> tcuda_status {
    boundary(|_| {
        out(fired, "fired")?.set(inject::fired());
        Ok(())
    })
}

/// Destroys every handle of a table, logs handles that the host did not destroy, and returns their
/// number.
fn destroy_handles<T: Send + Sync>(
    table: &super::handle::Table<T>,
    counts: impl Fn(&T) -> bool,
) -> usize {
    let live = table.remove_all(counts);
    if live > 0 {
        let name = table.name();
        let (s, are) = if live == 1 { ("", "is") } else { ("s", "are") };
        log::write(
            Level::Warning,
            format_args!("tcuda_shutdown: {live} {name} handle{s} {are} alive"),
        );
    }
    live
}

fn destroy_all_handles(_call: &Call) -> usize {
    crate::nccl::group::forget();
    // Communicators come first: only their end may complete the work that they have queued.
    destroy_handles(&COMMUNICATORS, |communicator| communicator.close())
        + destroy_handles(&FILES, |file| {
            file.close();
            true
        })
        + destroy_handles(&ALLOCATIONS, |_| true)
        + destroy_handles(&OBSERVERS, |_| true)
        + destroy_handles(&CALLABLES, |_| true)
        + destroy_handles(&GRAPHS, |_| true)
        + destroy_handles(&JITS, |_| true)
        + destroy_handles(&KERNELS, |_| true)
        + destroy_handles(&SNAPSHOTS, |_| true)
        + destroy_handles(&MEM_POOLS, |_| true)
        + destroy_handles(&ALLOCATORS, |_| true)
        + destroy_handles(&EVENTS, |_| true)
        + destroy_handles(&SM_PARTITIONS, |_| true)
        + destroy_handles(&GREEN_CONTEXTS, |_| true)
        + destroy_handles(&GENERATORS, |generator| !generator.is_borrowed())
        + destroy_handles(&STREAMS, |stream| !stream.is_borrowed())
}

/// Waits for all work and frees everything. Handles that are still alive are logged and counted,
/// and become stale; memory that was not freed becomes invalid. The next call that needs the
/// library initialises it again. Not from a callback. (+)
///
/// @param[out] live_handles  live handles, without borrowed ones; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_shutdown(live_handles: *mut usize) -> tcuda_status {
    boundary(|call| {
        let _documented = sync_debug::documented();
        let live = runtime::shutdown(call.inside(), |_| destroy_all_handles(call))?;
        if !live_handles.is_null() {
            out(live_handles, "live_handles")?.set(live);
        }
        Ok(())
    })
}
