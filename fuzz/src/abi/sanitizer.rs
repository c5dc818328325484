//! The stream sanitizer: it watches what the other functions do.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::{Out, TextOut};
use crate::status_of;
use crate::text::text_argument;
use crate::world::{CALLS, World, destructor};
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use tcuda::ffi::history::tcuda_frame;
use tcuda::ffi::sanitizer::*;

unsafe extern "C" fn frames(_: *mut c_void, frames: *mut tcuda_frame, capacity: usize) -> usize {
    assert!(capacity > 1);
    let frame = tcuda_frame { name: c"f\xffg".as_ptr(), filename: std::ptr::null(), line: 3 };
    // SAFETY: there is room for `capacity`.
    unsafe { frames.write(frame) };
    1
}

unsafe extern "C" fn report(_: *mut c_void, report: *const tcuda_sanitizer_report) {
    // SAFETY: the library's for the time of the call.
    check(unsafe { &*report });
}

/// A report that is whole: the bytes that both touch are in both.
fn check(report: &tcuda_sanitizer_report) {
    let inside = |access: &tcuda_access| {
        let (start, end) = (access.ptr.addr(), access.ptr.addr() + access.bytes);
        assert!(start <= report.ptr.addr() && report.ptr.addr() + report.bytes <= end);
        assert!((1..=3).contains(&access.mode) && access.sequence > 0);
        for text in [access.label, access.frames] {
            // SAFETY: a text of the library's.
            assert!(unsafe { std::ffi::CStr::from_ptr(text) }.to_str().is_ok());
        }
    };
    assert!(report.bytes > 0);
    inside(&report.current);
    inside(&report.previous);
    assert!(report.current.mode | report.previous.mode != 1, "two reads");
}

pub(super) fn enable(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let without = i.rarely(4);
    let destroys = !without && !i.rarely(4);
    let mut options = tcuda_sanitizer_options {
        struct_size: size_of::<tcuda_sanitizer_options>(),
        max_reports: i.one_of(&[0, 1, 3, usize::MAX]),
        report: if i.rarely(4) { None } else { Some(report) },
        frames: if i.rarely(4) { None } else { Some(frames) },
        user_data: std::ptr::from_ref(&CALLS).cast_mut().cast::<c_void>(),
        destroy: destroys.then_some(destructor as unsafe extern "C" fn(_)),
    };
    if i.rarely(16) {
        options.struct_size = i.one_of(&[0, 7, (1 << 20) + 1, usize::MAX]);
        if !without {
            e.wrong(status::INVALID_ARGUMENT);
        }
    }
    let owed = usize::from(destroys);
    CALLS.owed.fetch_add(owed, Ordering::Relaxed);
    let options = if without { std::ptr::null() } else { &raw const options };
    let status = status_of!(tcuda_sanitizer_enable(options));
    if !w.judge(status, &e) {
        CALLS.owed.fetch_sub(owed, Ordering::Relaxed);
    }
}

pub(super) fn disable(w: &mut World, _: &mut Input) {
    let status = status_of!(tcuda_sanitizer_disable());
    w.judge(status, &Expect::default());
}

pub(super) fn access(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let stream = w.stream(i, &mut e);
    let mode = i.one_of(&[1, 2, 3, 2, 0, 4, -1]);
    if !(1..=3).contains(&mode) {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let (ptr, bytes) =
        (i.one_of(&[0, 1, 4096, 4100, usize::MAX]), i.one_of(&[0, 1, 64, usize::MAX]));
    if ptr == 0 && bytes > 0 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let (label, _) = text_argument(i, &[b"step", b"a kernel", b""], 3);
    if label.as_ref().is_some_and(|text| text.to_str().is_err()) {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let label = label.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    let ptr = ptr as *const c_void;
    let status = status_of!(tcuda_sanitizer_access(stream, ptr, bytes, mode, label));
    w.judge(status, &e);
}

pub(super) fn report_count(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut count = Out::<usize>::required(i, &mut e);
    let status = status_of!(tcuda_sanitizer_report_count(count.ptr()));
    count.check(w.judge(status, &e));
}

/// A number of a report, which may be none.
fn index(i: &mut Input, e: &mut Expect) -> usize {
    let index = i.one_of(&[0, 0, 1, 2, 999, usize::MAX]);
    match index {
        usize::MAX => e.wrong(status::INVALID_ARGUMENT),
        // Other threads find races, too.
        _ => e.also(&[status::INVALID_ARGUMENT]),
    };
    index
}

pub(super) fn report_get(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let index = index(i, &mut e);
    // SAFETY: a struct of numbers and pointers.
    let mut report: tcuda_sanitizer_report = unsafe { std::mem::zeroed() };
    report.struct_size = size_of::<tcuda_sanitizer_report>();
    if i.rarely(16) {
        report.struct_size = 5;
        e.wrong(status::INVALID_ARGUMENT);
    }
    let status = status_of!(tcuda_sanitizer_report_get(index, &mut report));
    if w.judge(status, &e) {
        check(&report);
    }
}

pub(super) fn report_text(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let index = index(i, &mut e);
    let mut out = TextOut::new(i, &mut e);
    let (buf, len) = (out.buf(), out.len);
    let status = status_of!(tcuda_sanitizer_report_text(index, buf, len, out.needed.ptr()));
    if let Some(text) = out.check(w.judge(status, &e)) {
        let known = "============================";
        assert!(text.starts_with(known) || known.starts_with(text), "{text}");
    }
}
