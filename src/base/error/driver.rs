//! Messages about the driver: its absence, and what its failures mean.

use super::cuda::{CudaError, code, describe};
use super::library::LoadError;
use crate::base::environment;
use crate::base::text::function_of;
use std::fmt;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Advice where there is no GPU, but options of the simulated machine are set.
pub(super) fn simulator_hint() -> &'static str {
    match environment::value(c"TCUDA_SIM") {
        Some(_) => {
            "; TCUDA_SIM is set, but the simulated machine runs only where it is chosen: set \
             TCUDA_BACKEND=sim, or call tcuda_backend_select"
        }
        None => "",
    }
}

pub(super) const DESCRIPTORS: &str = "; raise the limit of open files (ulimit -n), or close some";

/// Advice if the system's error is that there are no descriptors left.
fn descriptor_hint(errno: i32) -> &'static str {
    if matches!(errno, libc::EMFILE | libc::ENFILE) { DESCRIPTORS } else { "" }
}

/// The same where the cause of a failure is not known: tries to create a descriptor.
fn missing_descriptor_hint() -> &'static str {
    // SAFETY: takes a flag alone.
    let descriptor = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if descriptor < 0 {
        return descriptor_hint(crate::base::descriptor::errno());
    }
    // SAFETY: just created, and not shared.
    unsafe { libc::close(descriptor) };
    ""
}

/// Returns the name of a function of the library, or of a type in it.
type Name = fn() -> &'static str;

/// The last function that invalidated a capture; NULL: none since a capture began.
static REFUSED: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Records the function of a failed call, if the failure invalidated a capture.
pub(crate) fn note_refused(error: &CudaError, function: Name) {
    const FIRST: i32 = code::STREAM_CAPTURE_UNSUPPORTED;
    const LAST: i32 = code::STREAM_CAPTURE_EVENT;
    let breaks = (FIRST..=LAST).contains(&error.code)
        && error.code != code::STREAM_CAPTURE_INVALIDATED
        && error.code != code::STREAM_CAPTURE_UNJOINED;
    if breaks {
        REFUSED.store(function as *mut (), Ordering::Relaxed);
    }
}

/// The first capture begins: earlier functions have not invalidated it.
pub(crate) fn forget_refused() {
    REFUSED.store(std::ptr::null_mut(), Ordering::Relaxed);
}

fn last_refused() -> Option<&'static str> {
    let function = REFUSED.load(Ordering::Relaxed);
    if function.is_null() {
        return None;
    }
    // SAFETY: `note_refused` stored a function of this type.
    let name = unsafe { std::mem::transmute::<*mut (), Name>(function) };
    Some(function_of(name()))
}

const RECORDED_IN_CAPTURE: &str = "; the event was last recorded in a capture, and has no meaning \
    outside it: record it anew, or make it with TCUDA_EVENT_EXTERNAL";

/// Advice about a failed call, as the end of its message, where a mistake of the host is the likely
/// cause.
fn remedy(error: &CudaError) -> &'static str {
    match (error.call, error.code) {
        ("cuIpcOpenEventHandle", code::INVALID_CONTEXT) => {
            "; the handle is this process's own, which only others can open: use the event itself"
        }
        ("cuIpcOpenEventHandle", code::INVALID_VALUE) => {
            "; the event is of another device: pass this process's number of the event's GPU"
        }
        ("cuIpcOpenEventHandle", code::MAP_FAILED) => {
            "; no event has this handle: its process must keep the event, and live, until it is \
             opened"
        }
        ("cuCtxEnablePeerAccess", code::TOO_MANY_PEERS) => {
            "; a device has at most 8 peers at a time"
        }
        ("cuLaunchKernel", code::INVALID_VALUE | code::LAUNCH_OUT_OF_RESOURCES) => {
            "; its grid, block or shared memory is beyond what the device and the kernel allow \
             (tcuda_device_properties)"
        }
        ("cuGraphExecUpdate", code::GRAPH_EXEC_UPDATE_FAILURE) => {
            "; the graphs differ in more than parameters: capture the same calls, or instantiate \
             anew"
        }
        (call, code::INVALID_VALUE)
            if call.starts_with("cuMemcpy") || call.starts_with("cuMemset") =>
        {
            "; an address is not memory that the device can reach, or the range is longer than \
             its memory"
        }
        (
            "cuEventQuery" | "cuEventSynchronize" | "cuEventElapsedTime" | "cuStreamWaitEvent",
            code::INVALID_VALUE,
        ) => RECORDED_IN_CAPTURE,
        (call, code::INVALID_HANDLE)
            if call.starts_with("cuStream") || call.starts_with("cuEvent") =>
        {
            "; a native stream or event is none, was destroyed, or is of another device"
        }
        (_, code::STREAM_CAPTURE_UNSUPPORTED) => {
            "; do it before or after the capture; for one on another thread, begin that with \
             TCUDA_CAPTURE_THREAD_LOCAL or _RELAXED"
        }
        (_, code::STREAM_CAPTURE_MERGE) => "; two captures would become one: end one of them first",
        (_, code::STREAM_CAPTURE_UNMATCHED) => "; it ends on the stream on which it began",
        (_, code::STREAM_CAPTURE_UNJOINED) => {
            "; a stream has captured work for which the captured stream does not wait: before the \
             end call tcuda_stream_wait_stream(captured, that stream)"
        }
        (_, code::STREAM_CAPTURE_ISOLATION) => {
            "; captured work cannot wait for work outside the capture: record the event in the \
             capture"
        }
        (_, code::STREAM_CAPTURE_IMPLICIT) => {
            "; the default stream takes no part in a capture: use streams of tcuda_stream_create"
        }
        (_, code::STREAM_CAPTURE_EVENT) => RECORDED_IN_CAPTURE,
        (_, code::STREAM_CAPTURE_WRONG_THREAD) => {
            "; the thread that began a capture ends it, unless it began with TCUDA_CAPTURE_RELAXED"
        }
        (_, code::OPERATING_SYSTEM | code::UNKNOWN | code::MAP_FAILED) => missing_descriptor_hint(),
        _ => "",
    }
}

/// The message of a failed driver call.
pub struct CudaErrorText<'a>(pub &'a CudaError);

impl fmt::Display for CudaErrorText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CudaError { call, code } = *self.0;
        let (name, text) = describe(code);
        write!(f, "{call} failed: {name} ({code}): {text}{}", remedy(self.0))?;
        if self.0.is_sticky() {
            write!(f, "; the device's context is unusable from now on: end the process")?;
        }
        if code != code::STREAM_CAPTURE_INVALIDATED {
            return Ok(());
        }
        match last_refused() {
            Some(function) => write!(
                f,
                "; it was broken by a call of {function}, which a capture does not allow: make it \
                 before or after the capture"
            ),
            None => write!(f, "; it was broken by a call to CUDA that did not go through tcuda"),
        }
    }
}

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
pub enum CudaLoadError {
    /// No libcuda could be loaded.
    #[error(transparent)]
    NoLibrary(#[from] LoadError),
    /// The loaded library is not a CUDA driver.
    #[error(
        "the library loaded as the CUDA driver has no cuInit or no cuDriverGetVersion: it is not \
         libcuda; correct or unset TCUDA_CUDA_DRIVER_PATH, or repair the installation"
    )]
    NotADriver,
    /// The driver is older than [`MINIMUM_VERSION`].
    #[error(
        "the CUDA driver is too old: it supports CUDA {}, and CUDA {} is needed; \
         update the NVIDIA driver", Version(*.found), Version(*.needed)
    )]
    TooOld {
        /// The driver's version, in the format of cuDriverGetVersion: 10020 is 10.2.
        found: i32,
        /// The oldest supported version.
        needed: i32,
    },
}

struct Version(i32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}
