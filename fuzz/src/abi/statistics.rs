//! Statistics.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::{Out, StructOut, TextOut};
use crate::status_of;
use crate::text::text_argument;
use crate::world::World;
use tcuda::ffi::library::tcuda_backend_name;
use tcuda::ffi::statistics::*;
use tcuda::ffi::status::tcuda_status;

/// A device; before initialisation there are only zeros, for any device that a process can have.
fn device(w: &World, i: &mut Input, e: &mut Expect) -> i32 {
    let mut wrong = Expect::default();
    let device = w.device(i, &mut wrong);
    let is_possible = (-1..64).contains(&device);
    if !wrong.wrong.is_empty() && (w.is_initialized() || !is_possible) {
        e.wrong(status::INVALID_DEVICE);
    }
    device
}

pub(super) fn stats(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = device(w, i, &mut e);
    let mut out = StructOut::new(i, &mut e, size_of::<tcuda_memory_statistics>());
    let status = status_of!(tcuda_memory_stats(device, out.ptr()));
    out.check(w.judge(status, &e));
}

/// Keys that exist, and some that nearly do.
const KEYS: [&[u8]; 12] = [
    b"allocated_bytes.all.current",
    b"allocation.small_pool.peak",
    b"requested_bytes.large_pool.allocated",
    b"num_ooms",
    b"reserved_bytes.all.freed",
    b"inactive_split_bytes.all.current",
    b"max_split_size",
    b"segment.all.peak",
    b"",
    b"allocated_bytes.all",
    b"allocated_bytes.all.current.",
    b"\xc3\x28",
];
const RIGHT_KEYS: usize = 8;

pub(super) fn stat(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = device(w, i, &mut e);
    let (key, known) = text_argument(i, &KEYS, RIGHT_KEYS);
    match known {
        Some(true) => (),
        Some(false) => e.wrong(status::INVALID_ARGUMENT),
        None => e.also(&[status::INVALID_ARGUMENT]),
    }
    if !e.wrong.is_empty() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let mut out = Out::<u64>::required(i, &mut e);
    let key = key.as_ref().map_or(std::ptr::null(), |key| key.as_ptr());
    let status = status_of!(tcuda_memory_stat(device, key, out.ptr()));
    out.check(w.judge(status, &e));
}

pub(super) fn json(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = device(w, i, &mut e);
    let mut out = TextOut::new(i, &mut e);
    let (buf, len) = (out.buf(), out.len);
    let status = status_of!(tcuda_memory_stats_json(device, buf, len, out.needed.ptr()));
    if let Some(json) = out.check(w.judge(status, &e)) {
        assert!(json.starts_with('{') && json.ends_with('}'), "{json}");
    }
}

pub(super) fn keys(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = device(w, i, &mut e);
    let mut out = TextOut::new(i, &mut e);
    let (buf, len) = (out.buf(), out.len);
    let status = status_of!(tcuda_memory_stat_keys(device, buf, len, out.needed.ptr()));
    if let Some(keys) = out.check(w.judge(status, &e)) {
        assert!(keys.lines().count() >= 123, "{keys}");
    }
}

/// A function that gives bytes of a device.
type Bytes = unsafe extern "C" fn(i32, *mut usize) -> tcuda_status;

fn bytes(w: &mut World, i: &mut Input, function: Bytes) {
    let mut e = Expect::default();
    let device = device(w, i, &mut e);
    let mut out = Out::<usize>::required(i, &mut e);
    let status = status_of!(function(device, out.ptr()));
    out.check(w.judge(status, &e));
}

pub(super) fn allocated(w: &mut World, i: &mut Input) {
    bytes(w, i, tcuda_memory_allocated);
}

pub(super) fn max_allocated(w: &mut World, i: &mut Input) {
    bytes(w, i, tcuda_memory_max_allocated);
}

pub(super) fn reserved(w: &mut World, i: &mut Input) {
    bytes(w, i, tcuda_memory_reserved);
}

pub(super) fn max_reserved(w: &mut World, i: &mut Input) {
    bytes(w, i, tcuda_memory_max_reserved);
}

pub(super) fn reset_peak(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    w.judge(status_of!(tcuda_memory_reset_peak(device)), &e);
}

pub(super) fn reset_accumulated(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    w.judge(status_of!(tcuda_memory_reset_accumulated(device)), &e);
}

pub(super) fn summary(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let abbreviated = w.flag(i, &mut e);
    let mut out = TextOut::new(i, &mut e);
    let (buf, len) = (out.buf(), out.len);
    let status = status_of!(tcuda_memory_summary(device, abbreviated, buf, len, out.needed.ptr()));
    if let Some(table) = out.check(w.judge(status, &e)) {
        assert!(table.contains("CUDA OOMs"), "{table}");
    }
    assert!(!tcuda_backend_name().is_null());
}

pub(super) fn processes(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut out = TextOut::new(i, &mut e);
    let (buf, len) = (out.buf(), out.len);
    let status = status_of!(tcuda_memory_processes(device, buf, len, out.needed.ptr()));
    if let Some(text) = out.check(w.judge(status, &e)) {
        assert!(text.starts_with("GPU:") && text.contains("process "), "{text}");
    }
}

pub(super) fn process_list(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut process = tcuda_process { pid: 7, used_bytes: 7 };
    let capacity = i.below(2);
    let mut count = Out::<usize>::required(i, &mut e);
    let list = &raw mut process;
    let status = status_of!(tcuda_memory_process_list(device, list, capacity, count.ptr()));
    let done = w.judge(status, &e);
    count.check(done);
    let pid = if done && capacity > 0 { std::process::id().into() } else { 7 };
    assert_eq!(process.pid, pid, "{done}");
}

pub(super) fn largest_free(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut out = Out::<usize>::required(i, &mut e);
    let status = status_of!(tcuda_memory_largest_free(device, out.ptr()));
    out.check(w.judge(status, &e));
}

pub(super) fn segment_sizes(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let none = tcuda_segment_size { cu_stream: std::ptr::null_mut(), bytes: 0, is_small: 7 };
    let mut found = [none; 4];
    let capacity = i.below(5);
    let null = i.rarely(16);
    if null && capacity > 0 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let list = if null { std::ptr::null_mut() } else { found.as_mut_ptr() };
    let mut count = Out::<usize>::required(i, &mut e);
    let status = status_of!(tcuda_memory_segment_sizes(device, list, capacity, count.ptr()));
    let count = count.check(w.judge(status, &e)).unwrap_or(0);
    let written = if null { 0 } else { count.min(capacity) };
    for (index, size) in found.iter().enumerate() {
        assert_eq!(size.is_small == 7, index >= written);
        assert_eq!(size.bytes == 0, index >= written);
    }
}
