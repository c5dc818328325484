//! The calls of the sanitizer itself, and its reports.

use super::api::{Handle, call};
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tcuda::ffi::sanitizer::*;
use tcuda::ffi::stream::tcuda_stream;

/// One access of a report.
#[derive(Clone, Debug)]
pub struct Side {
    pub first: u64,
    pub bytes: u64,
    pub label: String,
    pub stream: i64,
    pub sequence: u64,
    pub device: i32,
    pub mode: i32,
}

#[derive(Clone, Debug)]
pub struct Report {
    /// The program line that was running.
    pub line: usize,
    pub first: u64,
    pub bytes: u64,
    pub current: Side,
    pub previous: Side,
    pub missing: String,
    pub text: String,
}

static LINE: AtomicUsize = AtomicUsize::new(0);
static FOUND: Mutex<Vec<Report>> = Mutex::new(Vec::new());

fn found() -> MutexGuard<'static, Vec<Report>> {
    FOUND.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the line that runs now.
pub fn line(number: usize) {
    LINE.store(number, Ordering::Relaxed);
}

fn text(of: *const c_char) -> String {
    assert!(!of.is_null(), "a report without a text");
    // SAFETY: a NUL-terminated text of the library.
    unsafe { CStr::from_ptr(of) }.to_string_lossy().into_owned()
}

fn side(of: &tcuda_access) -> Side {
    assert_eq!(text(of.frames), "", "no frame function is set");
    Side {
        first: of.ptr as u64,
        bytes: of.bytes as u64,
        label: text(of.label),
        stream: of.stream_id,
        sequence: of.sequence,
        device: of.device,
        mode: of.mode,
    }
}

fn report_of(report: &tcuda_sanitizer_report, line: usize) -> Report {
    Report {
        line,
        first: report.ptr as u64,
        bytes: report.bytes as u64,
        current: side(&report.current),
        previous: side(&report.previous),
        missing: text(report.missing),
        text: String::new(),
    }
}

unsafe extern "C" fn take(_: *mut c_void, report: *const tcuda_sanitizer_report) {
    // SAFETY: the library passes a report that is valid during the call.
    let report = unsafe { &*report };
    found().push(report_of(report, LINE.load(Ordering::Relaxed)));
}

/// Turns the sanitizer on.
pub fn begin() {
    found().clear();
    let options = tcuda_sanitizer_options {
        struct_size: size_of::<tcuda_sanitizer_options>(),
        max_reports: 0,
        report: Some(take),
        frames: None,
        user_data: null_mut(),
        destroy: None,
    };
    call!(tcuda_sanitizer_enable(&options));
}

/// Turns the sanitizer off. Returns its reports, which must equal the stored ones.
pub fn end() -> Vec<Report> {
    let mut reports = std::mem::take(&mut *found());
    let mut count = 0;
    call!(tcuda_sanitizer_report_count(&mut count));
    assert_eq!(count, reports.len(), "reports that were not handed over");
    for (index, report) in reports.iter_mut().enumerate() {
        // SAFETY: plain data, for which zero is a value.
        let mut kept: tcuda_sanitizer_report = unsafe { std::mem::zeroed() };
        kept.struct_size = size_of::<tcuda_sanitizer_report>();
        call!(tcuda_sanitizer_report_get(index, &mut kept));
        let kept = report_of(&kept, report.line);
        assert_eq!(format!("{kept:?}"), format!("{report:?}"), "a report changed");
        report.text = text_of(index);
    }
    call!(tcuda_sanitizer_disable());
    reports
}

fn text_of(index: usize) -> String {
    let mut needed = 0;
    call!(tcuda_sanitizer_report_text(index, null_mut(), 0, &mut needed));
    let mut buffer = vec![0u8; needed + 1];
    let start = buffer.as_mut_ptr().cast();
    call!(tcuda_sanitizer_report_text(index, start, buffer.len(), &mut needed));
    text(buffer.as_ptr().cast())
}

/// Reports the access of a kernel of the host.
pub fn access(stream: Handle, first: u64, bytes: u64, mode: i32, label: &str) {
    let label = CString::new(label).unwrap();
    let stream = stream as *mut tcuda_stream;
    let (ptr, bytes) = (first as *const c_void, bytes as usize);
    call!(tcuda_sanitizer_access(stream, ptr, bytes, mode, label.as_ptr()));
}
