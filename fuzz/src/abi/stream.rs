//! Streams.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::Out;
use crate::status_of;
use crate::world::{CALLS, Mode, World, destructor, host_function};
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use tcuda::ffi::event::tcuda_event;
use tcuda::ffi::stream::*;

pub(super) fn create(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let priority = i.one_of(&[0, -1, -2, -5, 1, i32::MIN, i32::MAX]);
    let mut out = Out::<*mut tcuda_stream>::required(i, &mut e);
    let status = status_of!(tcuda_stream_create(device, priority, out.ptr()));
    if let Some(stream) = out.check(w.judge(status, &e)) {
        w.add_stream(stream, true);
    }
}

pub(super) fn destroy(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let stream = w.stream(i, &mut e);
    let status = status_of!(tcuda_stream_destroy(stream));
    w.judge(status, &e);
    if status == status::INVALID_HANDLE {
        return;
    }
    let gone = |entry: &crate::world::StreamEntry| entry.owned && entry.handle == stream as usize;
    if let Some(index) = w.streams.iter().position(gone) {
        w.dead.push(w.streams.swap_remove(index).handle);
        w.counted -= 1;
    }
}

pub(super) fn from_external(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let native = w.native(i);
    let mut out = Out::<*mut tcuda_stream>::required(i, &mut e);
    // The driver refuses what is no stream; a stream of another device is an argument's fault.
    e.also(&[status::CUDA_ERROR, status::INVALID_ARGUMENT]);
    let status = status_of!(tcuda_stream_from_external(device, native, out.ptr()));
    if let Some(stream) = out.check(w.judge(status, &e)) {
        w.add_stream(stream, true);
    }
}

pub(super) fn current(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut out = Out::<*mut tcuda_stream>::required(i, &mut e);
    let status = status_of!(tcuda_stream_current(device, out.ptr()));
    if let Some(stream) = out.check(w.judge(status, &e)) {
        w.add_stream(stream, false);
    }
}

pub(super) fn default(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut out = Out::<*mut tcuda_stream>::required(i, &mut e);
    let status = status_of!(tcuda_stream_default(device, out.ptr()));
    if let Some(stream) = out.check(w.judge(status, &e)) {
        w.add_stream(stream, false);
    }
}

pub(super) fn set_current(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let stream = w.stream(i, &mut e);
    let status = status_of!(tcuda_stream_set_current(stream));
    if !w.judge(status, &e) || stream.is_null() || w.mode != Mode::Strict {
        return;
    }
    // What was set is what is current: the same id, and the same device.
    let (mut set, mut found) = (0, 0);
    let mut now = std::ptr::null_mut();
    if status_of!(tcuda_stream_current(-1, &mut now)) == status::OK {
        w.add_stream(now, false);
        assert_eq!(status_of!(tcuda_stream_id(stream, &mut set)), status::OK);
        assert_eq!(status_of!(tcuda_stream_id(now, &mut found)), status::OK);
        assert_eq!(set, found, "the current stream is not the one that was set");
    }
}

pub(super) fn exchange(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let stream = w.stream(i, &mut e);
    let mut previous = Out::<*mut tcuda_stream>::required(i, &mut e);
    let mut device = Out::<i32>::required(i, &mut e);
    let status = status_of!(tcuda_stream_exchange(stream, previous.ptr(), device.ptr()));
    let ok = w.judge(status, &e);
    let (device, previous) = (device.check(ok), previous.check(ok));
    if device == Some(-1) {
        // Without a device there is no stream.
        assert!(
            previous == Some(std::ptr::null_mut()) && (w.mode == Mode::Threads || w.devices() == 0)
        );
        return;
    }
    if let Some(device) = device {
        assert!(device >= 0 && (w.mode == Mode::Threads || device < w.devices()));
    }
    if let Some(stream) = previous {
        w.add_stream(stream, false);
    }
}

pub(super) fn query(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let stream = w.stream(i, &mut e);
    let mut done = Out::<u8>::required(i, &mut e);
    let status = status_of!(tcuda_stream_query(stream, done.ptr().cast()));
    let answer = done.check_bool(w.judge(status, &e));
    assert!(answer != Some(false) || !w.is_immediate());
}

pub(super) fn synchronize(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let stream = w.stream(i, &mut e);
    w.judge(status_of!(tcuda_stream_synchronize(stream)), &e);
}

pub(super) fn wait_event(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (stream, event) = (w.stream(i, &mut e), w.event(i, &mut e));
    w.judge(status_of!(tcuda_stream_wait_event(stream, event)), &e);
}

pub(super) fn wait_stream(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (stream, other) = (w.stream(i, &mut e), w.stream(i, &mut e));
    w.judge(status_of!(tcuda_stream_wait_stream(stream, other)), &e);
}

pub(super) fn record_event(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (stream, event) = (w.stream(i, &mut e), w.event(i, &mut e));
    // The event may belong to another device.
    e.also(&[status::INVALID_ARGUMENT]);
    w.judge(status_of!(tcuda_stream_record_event(stream, event)), &e);
}

pub(super) fn record_new_event(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let stream = w.stream(i, &mut e);
    let flags = i.one_of(&[0, 1, 2, 3, 4, 6, 8, 9, 15, 5, 16, u32::MAX]);
    if flags > 15 || flags & 5 == 5 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let mut out = Out::<*mut tcuda_event>::required(i, &mut e);
    let status = status_of!(tcuda_stream_record_new_event(stream, flags, out.ptr()));
    if let Some(event) = out.check(w.judge(status, &e)) {
        assert!(!w.events.contains(&(event as usize)) && !event.is_null());
        w.events.push(event as usize);
        w.counted += 1;
    }
}

pub(super) fn add_callback(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let stream = w.stream(i, &mut e);
    let function: tcuda_host_fn = if i.rarely(16) { None } else { Some(host_function) };
    if function.is_none() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let destroy = if i.rarely(64) { None } else { Some(destructor as unsafe extern "C" fn(_)) };
    let data = std::ptr::from_ref(&CALLS).cast_mut().cast::<c_void>();
    // Before the call: the function may run, and be counted, at once.
    let owed = usize::from(destroy.is_some());
    CALLS.added.fetch_add(1, Ordering::Relaxed);
    CALLS.owed.fetch_add(owed, Ordering::Relaxed);
    let status = status_of!(tcuda_stream_add_callback(stream, function, data, destroy));
    if !w.judge(status, &e) {
        CALLS.added.fetch_sub(1, Ordering::Relaxed);
        CALLS.owed.fetch_sub(owed, Ordering::Relaxed);
    }
}

pub(super) fn device(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let stream = w.stream(i, &mut e);
    let mut out = Out::<i32>::required(i, &mut e);
    let status = status_of!(tcuda_stream_device(stream, out.ptr()));
    if let Some(device) = out.check(w.judge(status, &e)) {
        assert!(device >= 0 && (w.mode == Mode::Threads || device < w.devices()));
    }
}

pub(super) fn priority(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let stream = w.stream(i, &mut e);
    let mut out = Out::<i32>::required(i, &mut e);
    let status = status_of!(tcuda_stream_priority(stream, out.ptr()));
    if let Some(priority) = out.check(w.judge(status, &e)) {
        assert!((-5..=0).contains(&priority), "a priority of {priority}");
    }
}

pub(super) fn id(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let stream = w.stream(i, &mut e);
    let mut out = Out::<i64>::required(i, &mut e);
    let status = status_of!(tcuda_stream_id(stream, out.ptr()));
    out.check(w.judge(status, &e));
}

pub(super) fn native(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let stream = w.stream(i, &mut e);
    let mut out = Out::<*mut _>::required(i, &mut e);
    let status = status_of!(tcuda_stream_native(stream, out.ptr()));
    if let Some(native) = out.check(w.judge(status, &e)) {
        w.natives.push(native as usize);
    }
}

pub(super) fn priority_range(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut least = Out::<i32>::required(i, &mut e);
    let mut greatest = Out::<i32>::required(i, &mut e);
    let status = status_of!(tcuda_stream_priority_range(device, least.ptr(), greatest.ptr()));
    let ok = w.judge(status, &e);
    if let (Some(least), Some(greatest)) = (least.check(ok), greatest.check(ok)) {
        assert!(least == 0 && (-3..=0).contains(&greatest));
    }
}
