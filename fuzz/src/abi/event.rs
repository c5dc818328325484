//! Events.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::Out;
use crate::status_of;
use crate::world::{Mode, World};
use tcuda::ffi::event::*;

pub(super) fn create(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let flags = i.one_of(&[0, 1, 2, 3, 4, 6, 8, 9, 15, 5, 16, u32::MAX]);
    if flags > 15 || flags & 5 == 5 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let mut out = Out::<*mut tcuda_event>::required(i, &mut e);
    let status = status_of!(tcuda_event_create(flags, out.ptr()));
    if let Some(event) = out.check(w.judge(status, &e)) {
        assert!(!w.events.contains(&(event as usize)) && !event.is_null());
        w.events.push(event as usize);
        w.counted += 1;
    }
}

pub(super) fn destroy(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let event = w.event(i, &mut e);
    if event.is_null() {
        e = Expect::default();
    }
    let status = status_of!(tcuda_event_destroy(event));
    w.judge(status, &e);
    if status == status::INVALID_HANDLE {
        return;
    }
    if let Some(index) = w.events.iter().position(|known| *known == event as usize) {
        w.dead.push(w.events.swap_remove(index));
        w.counted -= 1;
    }
}

pub(super) fn record(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (event, stream) = (w.event(i, &mut e), w.stream(i, &mut e));
    // The event may belong to another device.
    e.also(&[status::INVALID_ARGUMENT]);
    let status = status_of!(tcuda_event_record(event, stream));
    if w.judge(status, &e) && w.is_immediate() && !w.lost {
        let mut done = false;
        assert_eq!(status_of!(tcuda_event_query(event, &mut done)), status::OK);
        assert!(done);
    }
}

pub(super) fn query(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let event = w.event(i, &mut e);
    let mut done = Out::<u8>::required(i, &mut e);
    let status = status_of!(tcuda_event_query(event, done.ptr().cast()));
    let answer = done.check_bool(w.judge(status, &e));
    assert!(answer != Some(false) || !w.is_immediate());
}

pub(super) fn synchronize(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let event = w.event(i, &mut e);
    w.judge(status_of!(tcuda_event_synchronize(event)), &e);
}

pub(super) fn wait(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (event, stream) = (w.event(i, &mut e), w.stream(i, &mut e));
    w.judge(status_of!(tcuda_event_wait(event, stream)), &e);
}

pub(super) fn elapsed_ms(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (start, end) = (w.event(i, &mut e), w.event(i, &mut e));
    let mut out = Out::<f32>::required(i, &mut e);
    // Without timing, never recorded, of two devices, not over yet.
    e.also(&[status::INVALID_ARGUMENT, status::NOT_READY, status::CUDA_ERROR]);
    let status = status_of!(tcuda_event_elapsed_ms(start, end, out.ptr()));
    if let Some(elapsed) = out.check(w.judge(status, &e)) {
        assert!(elapsed.is_finite());
    }
}

pub(super) fn device(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let event = w.event(i, &mut e);
    let mut out = Out::<i32>::required(i, &mut e);
    let status = status_of!(tcuda_event_device(event, out.ptr()));
    if let Some(device) = out.check(w.judge(status, &e)) {
        assert!(device >= -1 && (w.mode == Mode::Threads || device < w.devices()));
    }
}

pub(super) fn native(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let event = w.event(i, &mut e);
    let mut out = Out::<*mut _>::required(i, &mut e);
    let status = status_of!(tcuda_event_native(event, out.ptr()));
    if let Some(native) = out.check(w.judge(status, &e)) {
        w.natives.push(native as usize);
    }
}
