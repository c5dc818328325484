//! Devices.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::{Out, StructOut, TextOut};
use crate::status_of;
use crate::world::{Mode, World};
use std::ffi::c_void;
use tcuda::driver::math_library::{cublasContext, cusolverDnContext};
use tcuda::ffi::device::*;
use tcuda::ffi::stream::tcuda_stream_synchronize;

pub(super) fn init(w: &mut World, _: &mut Input) {
    w.judge(status_of!(tcuda_init()), &Expect::default());
}

pub(super) fn is_initialized(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut out = Out::<u8>::required(i, &mut e);
    let status = status_of!(tcuda_is_initialized(out.ptr().cast()));
    out.check_bool(w.judge(status, &e));
}

pub(super) fn is_available(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut out = Out::<u8>::required(i, &mut e);
    let status = status_of!(tcuda_is_available(out.ptr().cast()));
    let available = out.check_bool(w.judge(status, &e));
    assert!(w.mode != Mode::Strict || available.is_none_or(|yes| yes == w.selected.is_some()));
}

pub(super) fn count(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut out = Out::<i32>::required(i, &mut e);
    let status = status_of!(tcuda_device_count(out.ptr()));
    let count = out.check(w.judge(status, &e));
    assert!(w.mode != Mode::Strict || count.is_none_or(|count| count == w.devices()));
}

pub(super) fn current(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut out = Out::<i32>::required(i, &mut e);
    let status = status_of!(tcuda_device_current(out.ptr()));
    if let Some(device) = out.check(w.judge(status, &e)) {
        // A fault may have left one of an earlier program.
        assert!(device >= 0 && (w.mode != Mode::Strict || device < w.devices()));
    }
}

/// A device to make current: a negative one changes nothing.
fn to_set(w: &World, i: &mut Input, e: &mut Expect) -> i32 {
    let mut wrong = Expect::default();
    let device = w.device(i, &mut wrong);
    if device >= 0 && !wrong.wrong.is_empty() {
        e.wrong(status::INVALID_DEVICE);
    }
    device
}

pub(super) fn set(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = to_set(w, i, &mut e);
    let status = status_of!(tcuda_device_set(device));
    if w.judge(status, &e) && w.mode == Mode::Strict && device >= 0 {
        let mut now = -1;
        assert_eq!(status_of!(tcuda_device_current(&mut now)), status::OK);
        assert_eq!(now, device);
    }
}

pub(super) fn exchange(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = to_set(w, i, &mut e);
    let mut out = Out::<i32>::required(i, &mut e);
    let status = status_of!(tcuda_device_exchange(device, out.ptr()));
    if let Some(device) = out.check(w.judge(status, &e)) {
        assert!(device >= 0 && (w.mode == Mode::Threads || device < w.devices()));
    }
}

pub(super) fn of(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut any = Expect::default();
    let ptr = w.address(i, &mut any);
    let mut out = Out::<i32>::required(i, &mut e);
    let status = status_of!(tcuda_device_of(ptr, out.ptr()));
    let Some(device) = out.check(w.judge(status, &e)) else { return };
    if ptr.is_null() {
        assert_eq!(device, -1);
    }
    let mut owner = w.blocks.iter().filter(|block| block.ptr != 0 && block.ptr == ptr as usize);
    assert!(owner.all(|block| block.device == device) || w.mode == Mode::Threads);
    let host = w.host.as_ptr().cast::<c_void>();
    if status_of!(tcuda_device_of(host, out.ptr())) == status::OK {
        assert!(out.check(true).is_none_or(|device| device == -1), "host memory");
    }
}

pub(super) fn name(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut out = TextOut::new(i, &mut e);
    let (buf, len) = (out.buf(), out.len);
    let status = status_of!(tcuda_device_name(device, buf, len, out.needed.ptr()));
    if let Some(name) = out.check(w.judge(status, &e)) {
        assert_eq!(name, "Simulated GPU");
    }
}

pub(super) fn capability(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let (mut major, mut minor) = (Out::<i32>::required(i, &mut e), Out::required(i, &mut e));
    let status = status_of!(tcuda_device_capability(device, major.ptr(), minor.ptr()));
    let ok = w.judge(status, &e);
    assert!(major.check(ok).is_none_or(|major| major == 9));
    assert!(minor.check(ok).is_none_or(|minor: i32| minor == 0));
}

pub(super) fn properties(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut out = StructOut::new(i, &mut e, size_of::<tcuda_device_info>());
    let status = status_of!(tcuda_device_properties(device, out.ptr()));
    out.check(w.judge(status, &e));
}

pub(super) fn can_access_peer(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (device, peer) = (w.device(i, &mut e), w.device(i, &mut e));
    let mut out = Out::<u8>::required(i, &mut e);
    let status = status_of!(tcuda_device_can_access_peer(device, peer, out.ptr().cast()));
    let possible = out.check_bool(w.judge(status, &e));
    assert!(device != peer || possible != Some(true), "its own peer");
}

pub(super) fn enable_peer_access(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (device, peer) = (w.device(i, &mut e), w.device(i, &mut e));
    e.also(&[status::NOT_SUPPORTED]);
    w.judge(status_of!(tcuda_device_enable_peer_access(device, peer)), &e);
}

pub(super) fn synchronize(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    w.judge(status_of!(tcuda_device_synchronize(device)), &e);
}

pub(super) fn arch_list(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut out = TextOut::new(i, &mut e);
    let (buf, len) = (out.buf(), out.len);
    let status = status_of!(tcuda_arch_list(buf, len, out.needed.ptr()));
    out.check(w.judge(status, &e));
}

pub(super) fn gencode_flags(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut out = TextOut::new(i, &mut e);
    let (buf, len) = (out.buf(), out.len);
    let status = status_of!(tcuda_gencode_flags(buf, len, out.needed.ptr()));
    out.check(w.judge(status, &e));
}

pub(super) fn sync_debug_mode_get(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut out = Out::<i32>::required(i, &mut e);
    let status = status_of!(tcuda_sync_debug_mode_get(out.ptr()));
    let mode = out.check(w.judge(status, &e));
    assert!(w.mode == Mode::Threads || mode.is_none_or(|mode| mode == 0));
}

/// A mode, a wait in it, and the default again, of which the other functions know nothing.
pub(super) fn sync_debug_mode_set(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mode = i.one_of(&[0, 1, 2, 3, -1, i32::MAX, i32::MIN]);
    if !(0..=2).contains(&mode) {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let set = w.judge(status_of!(tcuda_sync_debug_mode_set(mode)), &e);
    let waited = status_of!(tcuda_stream_synchronize(std::ptr::null_mut()));
    assert!(w.mode == Mode::Threads || waited != status::WOULD_SYNCHRONIZE || set && mode == 2);
    assert_eq!(status_of!(tcuda_sync_debug_mode_set(0)), status::OK);
}

/// There is no cuBLAS for the simulated machine.
pub(super) fn blas_handle(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut out = Out::<*mut cublasContext>::required(i, &mut e);
    e.also(&[status::NOT_SUPPORTED]);
    let status = status_of!(tcuda_blas_handle(device, out.ptr()));
    out.check(w.judge(status, &e));
}

/// Nor is there a cuSOLVER.
pub(super) fn solver_handle(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut out = Out::<*mut cusolverDnContext>::required(i, &mut e);
    e.also(&[status::NOT_SUPPORTED]);
    let status = status_of!(tcuda_solver_handle(device, out.ptr()));
    out.check(w.judge(status, &e));
}

pub(super) fn primary_contexts(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut device = -7;
    let capacity = i.below(2);
    let mut count = Out::<usize>::required(i, &mut e);
    let status = status_of!(tcuda_device_primary_contexts(&mut device, capacity, count.ptr()));
    let found = count.check(w.judge(status, &e));
    assert_eq!(device != -7, capacity > 0 && found.is_some_and(|count| count > 0));
}

pub(super) fn context_check_mode_get(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut out = Out::<i32>::required(i, &mut e);
    let status = status_of!(tcuda_context_check_mode_get(out.ptr()));
    if let Some(mode) = out.check(w.judge(status, &e)) {
        assert!((0..=2).contains(&mode));
    }
}

/// The other steps choose devices as they like.
pub(super) fn context_check_mode_set(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mode = i.one_of(&[0, 0, 0, 3, -1]);
    if mode != 0 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    w.judge(status_of!(tcuda_context_check_mode_set(mode)), &e);
}
