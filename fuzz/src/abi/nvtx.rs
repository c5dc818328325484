//! Marks, ranges, and the profiler.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::Out;
use crate::status_of;
use crate::text::text_argument;
use crate::world::World;
use std::borrow::Cow;
use std::ffi::{CStr, c_char};
use tcuda::ffi::nvtx::*;

type Message = Option<Cow<'static, CStr>>;

/// Any text will do, and none will not.
fn message(i: &mut Input, e: &mut Expect) -> Message {
    let (message, _) = text_argument(i, &[b"", b"a range", b"\xff\xfe"], 3);
    if message.is_none() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    message
}

fn address(message: &Message) -> *const c_char {
    message.as_ref().map_or(std::ptr::null(), |text| text.as_ptr())
}

pub(super) fn mark(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let text = message(i, &mut e);
    w.judge(status_of!(tcuda_nvtx_mark(address(&text))), &e);
}

pub(super) fn push(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let text = message(i, &mut e);
    let mut depth = Out::<i32>::new();
    let status = status_of!(tcuda_nvtx_range_push(address(&text), depth.ptr()));
    assert!(depth.check(w.judge(status, &e)).is_none_or(|depth| depth >= 0));
}

pub(super) fn pop(w: &mut World, _: &mut Input) {
    let mut e = Expect::default();
    // Perhaps none is open.
    e.also(&[status::INVALID_STATE]);
    let mut depth = Out::<i32>::new();
    let status = status_of!(tcuda_nvtx_range_pop(depth.ptr()));
    assert!(depth.check(w.judge(status, &e)).is_none_or(|depth| depth >= 0));
}

pub(super) fn start(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let text = message(i, &mut e);
    let mut id = Out::<u64>::required(i, &mut e);
    let status = status_of!(tcuda_nvtx_range_start(address(&text), id.ptr()));
    if let Some(id) = id.check(w.judge(status, &e)) {
        assert_eq!(status_of!(tcuda_nvtx_range_end(id)), status::OK);
    }
}

pub(super) fn end(w: &mut World, i: &mut Input) {
    w.judge(status_of!(tcuda_nvtx_range_end(i.u64())), &Expect::default());
}

pub(super) fn device_start(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let text = message(i, &mut e);
    let stream = w.stream(i, &mut e);
    let mut id = Out::<u64>::required(i, &mut e);
    let status = status_of!(tcuda_nvtx_device_range_start(address(&text), stream, id.ptr()));
    if let Some(id) = id.check(w.judge(status, &e))
        && !i.rarely(4)
    {
        let mut e = Expect::default();
        let stream = w.stream(i, &mut e);
        w.judge(status_of!(tcuda_nvtx_device_range_end(id, stream)), &e);
    }
}

pub(super) fn device_end(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let id = i.u64();
    let stream = w.stream(i, &mut e);
    // A small number may be one that was left open.
    e.also(&[status::INVALID_ARGUMENT]);
    w.judge(status_of!(tcuda_nvtx_device_range_end(id, stream)), &e);
}

pub(super) fn profiler_start(w: &mut World, _: &mut Input) {
    w.judge(status_of!(tcuda_profiler_start()), &Expect::default());
}

pub(super) fn profiler_stop(w: &mut World, _: &mut Input) {
    w.judge(status_of!(tcuda_profiler_stop()), &Expect::default());
}
