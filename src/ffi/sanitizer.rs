//! Section "Stream sanitizer" of the header.

use super::boundary::{Sized_, boundary, optional_text, out, struct_in, struct_out, text_out};
use super::history::{capture_by, tcuda_frames_fn};
use super::kernel::{TCUDA_ACCESS_READ, TCUDA_ACCESS_READ_WRITE, TCUDA_ACCESS_WRITE};
use super::library::tcuda_destroy_fn;
use super::status::tcuda_status;
use super::stream::{or_current, tcuda_stream};
use super::user_data::UserData;
use crate::base::error::{Error, Result};
use crate::base::frames::Named;
use crate::base::frames::Source;
use crate::base::thread::try_box;
use crate::gpu::sanitizer_reports;
use crate::sanitizer::{self, Access, Listener, Mode, Report, Touch};
use std::ffi::{c_char, c_void};

/// An access to memory by one operation.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_access {
    /// The first byte.
    pub ptr: *const c_void,
    /// Length from the first byte to the last; between rows, or strided elements, there may be
    /// other bytes.
    pub bytes: usize,
    /// The operation, "tcuda_copy"; "tcuda_graph_replay: tcuda_copy" in the launch of a graph.
    pub label: *const c_char,
    /// The host's frames, one line each, or "".
    pub frames: *const c_char,
    /// As tcuda_stream_id returns it.
    pub stream_id: i64,
    /// Number of the operation.
    pub sequence: u64,
    /// The stream's device.
    pub device: i32,
    /// TCUDA_ACCESS_...
    pub mode: i32,
}

/// Two unordered accesses. The texts belong to the library, and stay valid until tcuda_shutdown.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_sanitizer_report {
    /// From TCUDA_INIT.
    pub struct_size: usize,
    /// The first byte of the overlap.
    pub ptr: *const c_void,
    /// Length of the overlap.
    pub bytes: usize,
    /// The access that was queued later.
    pub current: tcuda_access,
    /// The access that was queued earlier.
    pub previous: tcuda_access,
    /// The block, and the host's frames at its allocation; or "".
    pub allocation: *const c_char,
    /// The missing order of the two: "stream 35 must wait for stream 3 after tcuda_copy ...".
    pub missing: *const c_char,
}

/// Receives each report when it is found, on the thread that queued the later access, with no lock
/// held. It may call tcuda, except tcuda_shutdown.
pub type tcuda_report_fn =
    Option<unsafe extern "C" fn(user_data: *mut c_void, report: *const tcuda_sanitizer_report)>;

/// Options of the sanitizer; zeros are defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_sanitizer_options {
    /// From TCUDA_INIT.
    pub struct_size: usize,
    /// The first so many are kept and passed to report, the others are only counted; 0: 1000.
    pub max_reports: usize,
    /// Receives reports; may be NULL: then they are lines of the log, at level warning.
    pub report: tcuda_report_fn,
    /// Returns the host's frames of each operation and allocation, on its thread; may be NULL.
    pub frames: tcuda_frames_fn,
    /// Passed to report, frames and destroy.
    pub user_data: *mut c_void,
    /// Called when the sanitizer is turned off, or enabled again; may be NULL.
    pub destroy: tcuda_destroy_fn,
}

// SAFETY: repr(C), plain data, struct_size first; a NULL function is None.
unsafe impl Sized_ for tcuda_sanitizer_options {}
// SAFETY: repr(C), plain data, struct_size first.
unsafe impl Sized_ for tcuda_sanitizer_report {}

/// The host's functions.
struct Host {
    report: tcuda_report_fn,
    frames: tcuda_frames_fn,
    user_data: UserData,
}

impl Source for Host {
    fn capture(&self, take: &mut dyn FnMut(&mut dyn Iterator<Item = Named<'_>>)) {
        capture_by(self.frames, self.user_data.ptr(), take);
    }

    fn is_taken(&self) {
        self.user_data.take();
    }
}

impl Listener for Host {
    fn has_frames(&self) -> bool {
        self.frames.is_some()
    }

    fn takes_reports(&self) -> bool {
        self.report.is_some()
    }

    fn take(&self, report: &Report) {
        let report = report_of(report);
        if let Some(function) = self.report {
            // SAFETY: the host's own function with its own data.
            unsafe { function(self.user_data.ptr(), &report) };
        }
    }
}

fn access_of(access: &Access) -> tcuda_access {
    tcuda_access {
        ptr: access.start as *const c_void,
        bytes: access.bytes as usize,
        label: access.label.0,
        frames: access.frames.0,
        stream_id: access.stream_id,
        sequence: access.sequence,
        device: access.device,
        mode: match access.mode {
            Mode::Read => TCUDA_ACCESS_READ,
            Mode::Write => TCUDA_ACCESS_WRITE,
            Mode::ReadWrite => TCUDA_ACCESS_READ_WRITE,
        },
    }
}

fn report_of(report: &Report) -> tcuda_sanitizer_report {
    tcuda_sanitizer_report {
        struct_size: size_of::<tcuda_sanitizer_report>(),
        ptr: report.start as *const c_void,
        bytes: report.bytes as usize,
        current: access_of(&report.current),
        previous: access_of(&report.previous),
        allocation: report.allocation.0,
        missing: report.missing.0,
    }
}

/// The options with defaults applied; fields that the host's struct lacks are zero.
fn read(options: *const tcuda_sanitizer_options) -> Result<tcuda_sanitizer_options> {
    let none = tcuda_sanitizer_options {
        struct_size: size_of::<tcuda_sanitizer_options>(),
        max_reports: 0,
        report: None,
        frames: None,
        user_data: std::ptr::null_mut(),
        destroy: None,
    };
    if options.is_null() { Ok(none) } else { struct_in(options, none, "options") }
}

/// Begins to record the accesses of streams to memory, and reports unordered accesses: two to the
/// same bytes, of which one writes, without an event, wait or synchronisation of the program
/// between them. Whether they overlapped in time does not matter. Work that is queued through tcuda
/// is recorded; report other kernels by tcuda_sanitizer_access. Work that was queued before is not
/// known. A second call begins anew: earlier reports are dropped. TCUDA_SANITIZER=1 in the
/// environment does this at initialisation, unless the host has turned it on or off before;
/// tcuda_shutdown ends it. Without a report function reports are warnings in the log, which go to
/// stderr if no log callback was set. (torch.cuda._sanitizer.enable_cuda_sanitizer)
///
/// @param options  may be NULL: all zero
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_sanitizer_enable(
    options: *const tcuda_sanitizer_options,
) -> tcuda_status {
    boundary(|_| {
        let tcuda_sanitizer_options { max_reports, report, frames, user_data, destroy, .. } =
            read(options)?;
        let host = Host { report, frames, user_data: UserData::new(user_data, destroy) };
        if host.report.is_none() && host.frames.is_none() && !host.user_data.has_destroy() {
            return sanitizer::enable(None, max_reports);
        }
        let host: Box<dyn Listener> = try_box(host, "the stream sanitizer")?;
        sanitizer::enable(Some(host), max_reports)
    })
}

/// Turns the sanitizer off; reports are dropped. No-op if it is off. (+)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_sanitizer_disable() -> tcuda_status {
    boundary(|_| {
        sanitizer::disable();
        Ok(())
    })
}

/// Records an access by a kernel that the host launched itself; call it right after the launch.
/// No-op while the sanitizer is off. (+)
///
/// @param stream  NULL is the current stream
/// @param ptr     memory of any device, or pinned memory; may be NULL if bytes is 0
/// @param bytes   length of the range; 0: nothing is recorded
/// @param mode    TCUDA_ACCESS_READ, _WRITE or _READ_WRITE
/// @param label   its name in reports; may be NULL: "kernel". Copied; each different one takes host
///                memory until tcuda_shutdown
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_sanitizer_access(
    stream: *mut tcuda_stream,
    ptr: *const c_void,
    bytes: usize,
    mode: i32,
    label: *const c_char,
) -> tcuda_status {
    boundary(|call| {
        let mode = match mode {
            TCUDA_ACCESS_READ => Mode::Read,
            TCUDA_ACCESS_WRITE => Mode::Write,
            TCUDA_ACCESS_READ_WRITE => Mode::ReadWrite,
            other => {
                return Err(Error::OutOfRange {
                    name: "mode",
                    value: other.into(),
                    allowed: "use TCUDA_ACCESS_READ, _WRITE or _READ_WRITE",
                });
            }
        };
        let label = optional_text(label, "label")?.unwrap_or("kernel");
        if ptr.is_null() && bytes > 0 {
            return Err(Error::Null { name: "ptr" });
        }
        let stream = or_current(stream, call)?;
        let touch = Touch::rows(ptr.addr() as u64, bytes as u64, 1, 0, mode);
        sanitizer_reports::named_operation(call.gpus()?, stream, label, &[touch]);
        Ok(())
    })
}

/// Number of reports since tcuda_sanitizer_enable, also those that are not kept; 0 while it is off.
/// (+)
///
/// @param[out] count  0 or more
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_sanitizer_report_count(count: *mut usize) -> tcuda_status {
    boundary(|_| {
        out(count, "count")?.set(sanitizer::count());
        Ok(())
    })
}

/// One of the reports that are kept. The struct is the host's, its texts are the library's.
/// (torch.cuda._sanitizer.UnsynchronizedAccessError)
///
/// @param index           0 is the oldest; one that is not kept is TCUDA_STATUS_INVALID_ARGUMENT
/// @param[in,out] report  start from TCUDA_INIT(tcuda_sanitizer_report)
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_sanitizer_report_get(
    index: usize,
    report: *mut tcuda_sanitizer_report,
) -> tcuda_status {
    boundary(|_| {
        let report = struct_out(report, "report")?;
        report.set(&report_of(&sanitizer::report(index)?));
        Ok(())
    })
}

/// A report as a text of several lines: both accesses with their frames, where the memory was
/// allocated, and the missing order. (the text of torch.cuda._sanitizer.UnsynchronizedAccessError)
///
/// @param index        0 is the oldest
/// @param[out] buf     may be NULL if len is 0
/// @param len          room in buf, in bytes
/// @param[out] needed  length without NUL; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_sanitizer_report_text(
    index: usize,
    buf: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> tcuda_status {
    boundary(|_| {
        let to = text_out(buf, len, needed)?;
        to.set(sanitizer::report_text(index)?)
    })
}
