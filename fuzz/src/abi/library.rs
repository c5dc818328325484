//! The library itself: version, errors, log, backend, shutdown.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::left;
use crate::outputs::{Out, TextOut};
use crate::status_of;
use crate::text::text_argument;
use crate::world::{
    CALLS, Mode, OPTIONS, RIGHT_OPTIONS, World, destructor, last_error as sentence, log_line,
};
use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::Ordering;
use tcuda::driver::NAMES;
use tcuda::ffi::call::*;
use tcuda::ffi::library::*;

pub(super) fn version(_: &mut World, _: &mut Input) {
    assert_eq!(tcuda_version(), 1000);
}

pub(super) fn status_name(_: &mut World, i: &mut Input) {
    let number = i.u32() as i32;
    // SAFETY: a constant text.
    let name = unsafe { CStr::from_ptr(tcuda_status_name(number)) }.to_bytes();
    assert!(name == b"unknown" || name.starts_with(b"TCUDA_STATUS_"));
}

pub(super) fn last_error(_: &mut World, _: &mut Input) {
    assert!(!tcuda_last_error().is_null());
}

pub(super) fn last_error_message(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut out = TextOut::new(i, &mut e);
    let before = sentence();
    let (buf, len) = (out.buf(), out.len);
    let status = status_of!(tcuda_last_error_message(buf, len, out.needed.ptr()));
    if let Some(copy) = out.check(w.judge(status, &e)) {
        assert_eq!(copy, before);
    }
}

pub(super) fn last_error_native(_: &mut World, _: &mut Input) {
    tcuda_last_error_native();
}

pub(super) fn call(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let name = i.one_of(&[
        c"tcuda_device_current".as_ptr(),
        c"tcuda_call".as_ptr(),
        c"tcuda_version".as_ptr(),
        c"tcuda_\xff".as_ptr(),
        c"".as_ptr(),
        std::ptr::null(),
    ]);
    let count = i.one_of(&[1, 0, 2, usize::MAX]);
    let mut out = Out::<i32>::new();
    let arguments = [out.ptr() as u64];
    let list = if i.rarely(16) { std::ptr::null() } else { arguments.as_ptr() };
    let size = i.one_of(&[size_of::<tcuda_error>(), 16, 0, usize::MAX]);
    let mut error: tcuda_error = tcuda_error {
        struct_size: size,
        status: tcuda::ffi::status::tcuda_status::Internal,
        native_code: 0,
        message: [0x55; 2048],
    };
    let object = if i.rarely(16) { std::ptr::null_mut() } else { &raw mut error };
    let is_current = name == c"tcuda_device_current".as_ptr();
    let is_sized = size == size_of::<tcuda_error>();
    if !is_current || count != 1 || list.is_null() || object.is_null() || !(is_sized || size == 16)
    {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let status = status_of!(tcuda_call(name, list, count, object));
    out.check(w.judge(status, &e));
    if object.is_null() || !(is_sized || size == 16) {
        assert_eq!(error.status as i32, status::INTERNAL);
        return;
    }
    assert_eq!(error.status as i32, status);
    let text: Vec<u8> = error.message.iter().map(|byte| *byte as u8).collect();
    match status {
        _ if !is_sized => assert!(text.iter().all(|byte| *byte == 0x55)),
        status::OK => assert!(text.iter().all(|byte| *byte == 0)),
        _ => assert_eq!(CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap(), sentence()),
    }
}

pub(super) fn set_log_callback(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let level = i.one_of(&[4, 0, 1, 2, 3, 5, -1, i32::MAX]);
    if !(0..=4).contains(&level) {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let callback: tcuda_log_fn = if i.rarely(64) { None } else { Some(log_line) };
    let destroy = if i.rarely(64) { None } else { Some(destructor as unsafe extern "C" fn(_)) };
    let data = std::ptr::from_ref(&CALLS).cast_mut().cast::<c_void>();
    let owed = usize::from(destroy.is_some());
    CALLS.owed.fetch_add(owed, Ordering::Relaxed);
    let status = status_of!(tcuda_set_log_callback(level, callback, data, destroy));
    if !w.judge(status, &e) {
        CALLS.owed.fetch_sub(owed, Ordering::Relaxed);
    }
}

pub(super) fn backend_select(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (name, sim) = match i.u8() {
        0..=199 => (c"sim".as_ptr(), true),
        200..=215 => (c"cuda".as_ptr(), false),
        216..=223 => (std::ptr::null(), true),
        224..=231 => (c"SIM".as_ptr(), true),
        232..=239 => (c"\xff".as_ptr(), true),
        _ => (c"".as_ptr(), true),
    };
    let index = i.below(OPTIONS.len() + 1);
    let options = OPTIONS.get(index).map_or(std::ptr::null(), |options| options.as_ptr());
    let right_name = name == c"sim".as_ptr() || name == c"cuda".as_ptr();
    if !right_name || (RIGHT_OPTIONS..OPTIONS.len()).contains(&index) {
        e.wrong(status::INVALID_ARGUMENT);
    }
    if !sim && !options.is_null() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    if w.is_initialized() {
        e.wrong(status::INVALID_STATE);
    }
    // NULL is the environment's TCUDA_SIM, of which nothing is known here.
    if w.mode == Mode::Threads || (sim && options.is_null()) {
        return;
    }
    let status = status_of!(tcuda_backend_select(name, options));
    if w.judge(status, &e) {
        w.selected = if sim { Some(index) } else { None };
    }
}

pub(super) fn backend_name(w: &mut World, _: &mut Input) {
    // SAFETY: a constant text.
    let name = unsafe { CStr::from_ptr(tcuda_backend_name()) };
    assert!(name == if w.selected.is_some() { c"sim" } else { c"cuda" });
}

/// Names of driver calls, and some that nearly are.
const CALL_NAMES: [&[u8]; 10] = [
    b"cuMemMap",
    b"cuMemCreate",
    b"cuStreamSynchronize",
    b"cuInit",
    b"cuEventRecord",
    b"",
    b"cuMemMap ",
    b"cumemmap",
    b"cuMemMap_v2",
    b"\x80",
];
const RIGHT_CALL_NAMES: usize = 5;

pub(super) fn backend_call_count(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (name, known) = text_argument(i, &CALL_NAMES, RIGHT_CALL_NAMES);
    match known {
        // NULL means all of them.
        Some(false) if name.is_some() => e.wrong(status::INVALID_ARGUMENT),
        Some(_) => (),
        None => e.also(&[status::INVALID_ARGUMENT]),
    }
    let mut out = Out::<u64>::required(i, &mut e);
    let name = name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
    let status = status_of!(tcuda_backend_call_count(name, out.ptr()));
    out.check(w.judge(status, &e));
}

pub(super) fn backend_function(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (name, known) = text_argument(i, &CALL_NAMES, RIGHT_CALL_NAMES);
    match known {
        Some(true) if name.is_some() => (),
        Some(_) => e.wrong(status::INVALID_ARGUMENT),
        None => e.also(&[status::INVALID_ARGUMENT]),
    }
    let mut out = Out::<*mut c_void>::required(i, &mut e);
    let name = name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
    let status = status_of!(tcuda_backend_function(name, out.ptr()));
    out.check(w.judge(status, &e));
}

pub(super) fn backend_inject(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (name, known) = text_argument(i, &CALL_NAMES, RIGHT_CALL_NAMES);
    match known {
        Some(false) if name.is_some() => e.wrong(status::INVALID_ARGUMENT),
        Some(_) => (),
        None => e.also(&[status::INVALID_ARGUMENT]),
    }
    let forever = w.flag(i, &mut e);
    // Rules that fire are for runs that expect failures; others take back what is not there.
    let nth = if w.mode == Mode::Faults { i.one_of(&[0, 1, 2, 3, 10, 100, u64::MAX]) } else { 0 };
    let code = if i.rarely(8) { 0 } else { i.one_of(&FAILURE_CODES) };
    if code == 0 && nth != 0 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    e.also(&[status::INVALID_ARGUMENT]);
    let name = name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
    w.judge(status_of!(tcuda_backend_inject(name, nth, code, forever)), &e);
}

/// Texts with rules: none that ever fires, then some that do, then wrong ones.
const RULES: [&[u8]; 24] = [
    b"",
    b" , ,",
    b"cuMemMap@18446744073709551615=2",
    b"*@18446744073709551614=999!, cuInit@18446744073709551615=lost:700",
    b"*@3=2",
    b"cuMemMap@1=2!",
    b"*@2=lost",
    b"*@9=lost:700,cuEventRecord@1=999",
    b"cuMemCreate@1=slow:1us",
    b"cuStreamCreateWithPriority@1=1,cuMemHostAlloc@1=2,cuEventCreate@2=2",
    b"malloc@7=fail",
    b"malloc@3=fail!",
    b"*@1=0",
    b"*@0=2",
    b"cuMemMap",
    b"cuMemMap@1",
    b"cuMemMap=1",
    b"cuNothing@1=2",
    b"*@1=lost!",
    b"*@1=lost:2",
    b"*@1=slow:61s",
    b"*@18446744073709551616=2",
    b"malloc@1=2",
    b"\xff@1=2",
];
const QUIET_RULES: usize = 4;
const RIGHT_RULES: usize = 12;

pub(super) fn backend_faults(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (text, known) = text_argument(i, &RULES, RIGHT_RULES);
    let bytes = text.as_ref().map_or(&b""[..], |text| text.to_bytes());
    let quiet = bytes.is_empty() || RULES[..QUIET_RULES].contains(&bytes);
    // Rules that fire are for runs that expect failures. A slow call is not waited for.
    let fires = w.mode == Mode::Faults && (known == Some(true) || !bytes.contains(&b'w'));
    if known != Some(false) && !quiet && !fires {
        return;
    }
    match known {
        // NULL takes all rules back.
        Some(false) if text.is_some() => e.wrong(status::INVALID_ARGUMENT),
        Some(_) => (),
        None => e.also(&[status::INVALID_ARGUMENT]),
    }
    let pointer = text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    let ok = w.judge(status_of!(tcuda_backend_faults(pointer)), &e);
    w.lost |= ok && bytes.windows(4).any(|word| word == b"lost");
}

pub(super) fn backend_fault_count(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut out = Out::<u64>::required(i, &mut e);
    let status = status_of!(tcuda_backend_fault_count(out.ptr()));
    if let Some(fired) = out.check(w.judge(status, &e)) {
        assert!(fired >= w.fired, "{fired} faults after {}", w.fired);
        assert!(w.mode == Mode::Faults || fired == w.fired, "a fault that nobody asked for");
        w.fired = fired;
    }
}

/// CUresults: of every kind that the library tells apart, and some that do not exist.
pub const FAILURE_CODES: [i32; 20] =
    [2, 1, 999, 3, 4, 100, 101, 201, 214, 400, 500, 600, 700, 709, 719, 801, 901, 906, 12345, -7];

/// Some rules at the head of an input: the nth call of a function gives a code.
pub(super) fn inject_some(i: &mut Input) {
    if i.rarely(48) {
        let (nth, forever) = (1 + i.below(200), if i.rarely(64) { "!" } else { "" });
        let rule = CString::new(format!("malloc@{nth}=fail{forever}")).unwrap_or_default();
        assert_eq!(status_of!(tcuda_backend_faults(rule.as_ptr())), status::OK, "{}", sentence());
    }
    for _ in 0..i.below(4) {
        let choice = usize::from(i.u8());
        // More than the names: any of them.
        let name = NAMES.get(choice % (NAMES.len() + 16));
        let name = name.map(|name| CString::new(*name).unwrap_or_default());
        let name = name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
        let nth = match i.u8() {
            few @ 0..=199 => u64::from(few % 50) + 1,
            _ => i.u16().into(),
        };
        let (code, forever) = (i.one_of(&FAILURE_CODES), i32::from(i.rarely(64)));
        let status = status_of!(tcuda_backend_inject(name, nth, code, forever));
        assert_eq!(status, status::OK, "{}", sentence());
    }
}

pub(super) fn shutdown(w: &mut World, i: &mut Input) {
    // Seldom: everything before it is gone.
    if !i.rarely(64) || !w.may_be_shut_down {
        return;
    }
    let mut live = Out::<usize>::optional(i);
    let e = Expect::default();
    let status = status_of!(tcuda_shutdown(live.ptr()));
    let ok = w.judge(status, &e);
    let live = live.check(ok);
    if ok {
        assert!(w.mode == Mode::Threads || live.is_none_or(|live| live as isize == w.counted));
        w.was_shut_down = true;
        if w.mode != Mode::Threads {
            // Rules are still set.
            left::check(w.lost || w.mode == Mode::Faults);
        }
        w.forget_all();
    }
}
