//! Limits, observers and settings.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::{Out, StructOut, TextOut};
use crate::status_of;
use crate::text::text_argument;
use crate::world::{CALLS, Mode, World};
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use tcuda::ffi::limits::*;
use tcuda::ffi::memory::tcuda_malloc;
use tcuda::ffi::observer::*;
use tcuda::ffi::statistics::*;

pub(super) fn fraction_get(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut out = Out::<f64>::required(i, &mut e);
    let status = status_of!(tcuda_memory_fraction_get(device, out.ptr()));
    if let Some(fraction) = out.check(w.judge(status, &e)) {
        assert!((0.0..=1.0).contains(&fraction));
    }
}

/// Limits that no program of these reaches, and values that are none.
pub(super) fn fraction_set(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let fraction = i.one_of(&[1.0, 1.0, 1.0, -1.0, 1.5, f64::NAN, f64::INFINITY]);
    if !(0.0..=1.0).contains(&fraction) {
        e.wrong(status::INVALID_ARGUMENT);
    }
    w.judge(status_of!(tcuda_memory_fraction_set(device, fraction)), &e);
}

unsafe extern "C" fn observe(_: *mut c_void, device: i32, _: usize, _: usize, _: usize) -> i32 {
    let mut ptr = std::ptr::null_mut();
    let refused = status_of!(tcuda_malloc(1, device, std::ptr::null_mut(), &mut ptr));
    assert!(refused != status::OK && ptr.is_null(), "an observer allocated");
    device & 1
}

unsafe extern "C" fn forget(_: *mut c_void) {
    CALLS.destroyed.fetch_add(1, Ordering::Relaxed);
}

pub(super) fn on_out_of_memory(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let callback: tcuda_out_of_memory_fn = if i.rarely(8) { None } else { Some(observe) };
    if callback.is_none() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let mut out = Out::<*mut tcuda_observer>::optional(i);
    let null = std::ptr::null_mut();
    let destroy = Some(forget as unsafe extern "C" fn(*mut c_void));
    let status = status_of!(tcuda_memory_on_out_of_memory(callback, null, destroy, out.ptr()));
    let ok = w.judge(status, &e);
    if ok {
        CALLS.owed.fetch_add(1, Ordering::Relaxed);
    }
    if let Some(observer) = out.check(ok) {
        assert!(!observer.is_null());
        w.observers.push(observer as usize);
        w.counted += 1;
    }
}

unsafe extern "C" fn see(_: *mut c_void, _: i32, bytes: usize, _: usize, total: usize) {
    assert!(bytes > 0 && total > 0);
}

pub(super) fn on_rejection(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let callback: tcuda_rejection_fn = if i.rarely(8) { None } else { Some(see) };
    if callback.is_none() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let mut out = Out::<*mut tcuda_observer>::optional(i);
    let null = std::ptr::null_mut();
    let destroy = Some(forget as unsafe extern "C" fn(*mut c_void));
    let status = status_of!(tcuda_memory_on_rejection(callback, null, destroy, out.ptr()));
    let ok = w.judge(status, &e);
    if ok {
        CALLS.owed.fetch_add(1, Ordering::Relaxed);
    }
    if let Some(observer) = out.check(ok) {
        w.observers.push(observer as usize);
        w.counted += 1;
    }
}

pub(super) fn observer_destroy(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let observer = w.observer(i, &mut e);
    let status = status_of!(tcuda_observer_destroy(observer as *mut tcuda_observer));
    if w.judge(status, &e) && observer != 0 {
        w.observers.retain(|live| *live != observer);
        w.dead.push(observer);
        w.counted -= 1;
    }
}

pub(super) fn config_get(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut out = TextOut::new(i, &mut e);
    let (buf, len) = (out.buf(), out.len);
    let status = status_of!(tcuda_allocator_config_get(buf, len, out.needed.ptr()));
    if let Some(text) = out.check(w.judge(status, &e)) {
        assert!(text.starts_with("backend:native,"), "{text}");
    }
}

/// Texts that leave the sizes of blocks alone, and some that are wrong.
const TEXTS: [&[u8]; 9] = [
    b"",
    b"max_split_size_mb:20",
    b"garbage_collection_threshold:0.5,release_lock_on_cudamalloc:True",
    b"roundup_power2_divisions:[1:1,>:0],expandable_segments:True",
    b"pinned_num_register_threads:4",
    b"max_split_size_mb:19",
    b"backend:native:",
    b"roundup_power2_divisions:[1:2",
    b"\xc3\x28",
];
const RIGHT_TEXTS: usize = 5;

pub(super) fn config_set(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (text, known) = text_argument(i, &TEXTS, RIGHT_TEXTS);
    let text = match (text, known) {
        // Any other text might be a right one, after which blocks have other sizes.
        (_, None) => return,
        (text, known) => {
            if known == Some(false) {
                e.wrong(status::INVALID_ARGUMENT);
            }
            text
        }
    };
    let text = text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    w.judge(status_of!(tcuda_allocator_config_set(text)), &e);
}

pub(super) fn stats_push(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    w.judge(status_of!(tcuda_memory_stats_push(device)), &e);
}

pub(super) fn stats_pop(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    e.also(&[status::INVALID_STATE]);
    if i.rarely(4) {
        let null = std::ptr::null_mut();
        w.judge(status_of!(tcuda_memory_stats_pop(device, null)), &e);
        return;
    }
    let mut of_struct = Expect::default();
    let mut out = StructOut::new(i, &mut of_struct, size_of::<tcuda_memory_statistics>());
    // Unlike other structs it may be NULL.
    if !out.ptr::<tcuda_memory_statistics>().is_null() && !of_struct.wrong.is_empty() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let status = status_of!(tcuda_memory_stats_pop(device, out.ptr()));
    assert!(w.mode != Mode::Strict || status != status::OUT_OF_MEMORY);
    out.check(w.judge(status, &e));
}
