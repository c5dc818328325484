//! Sharing with other processes, of which there are none here: whatever comes from one is made up.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::Out;
use crate::status_of;
use crate::world::World;
use std::ffi::c_void;
use tcuda::ffi::event::*;
use tcuda::ffi::ipc::*;

/// Bytes that begin like a handle, and go on as the input has them.
fn made_up<const N: usize>(i: &mut Input, begins: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    let begins = if i.rarely(3) { &[] } else { begins };
    bytes[..begins.len()].copy_from_slice(begins);
    for _ in 0..i.below(32) {
        let at = usize::from(i.u16()) % N;
        bytes[at] = i.u8();
    }
    bytes
}

/// Of what is no block: what other processes may have is never given back here.
pub(super) fn export(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let stream = w.stream(i, &mut e);
    let on_stack = std::ptr::from_ref(&e).addr();
    let ptr = i.one_of(&[0, 1, 4096, on_stack, usize::MAX]);
    // The stream may be captured.
    e.wrong(if ptr == 0 { status::INVALID_ARGUMENT } else { status::INVALID_POINTER });
    e.wrong(status::CAPTURING);
    let mut handle = tcuda_ipc_handle { bytes: [0xC5; 512] };
    let out = if i.rarely(16) { std::ptr::null_mut() } else { &raw mut handle };
    e.wrong(if out.is_null() { status::INVALID_ARGUMENT } else { status::INVALID_POINTER });
    let status = status_of!(tcuda_ipc_export(ptr as *mut c_void, stream, out));
    w.judge(status, &e);
    assert_ne!(status, status::OK);
    assert!(handle.bytes.iter().all(|byte| *byte == 0xC5), "an output of a call that failed");
}

pub(super) fn import(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let stream = w.stream(i, &mut e);
    let bytes = made_up(i, b"tcudaipc\x01");
    // On a device that does not exist, of a process that is not there.
    e.wrong(status::INVALID_ARGUMENT);
    e.wrong(status::NO_DEVICE);
    let mut out = Out::<*mut c_void>::required(i, &mut e);
    let handle = tcuda_ipc_handle { bytes };
    let handle = if i.rarely(16) { std::ptr::null() } else { &raw const handle };
    let none = std::ptr::null_mut();
    let status = status_of!(tcuda_ipc_import(handle, stream, out.ptr(), none));
    w.judge(status, &e);
    assert_ne!(status, status::OK);
}

/// What is exported and withdrawn leaves nothing behind.
pub(super) fn withdraw(w: &mut World, i: &mut Input) {
    let mut handle = tcuda_ipc_handle { bytes: [0; 512] };
    let mut e = Expect::default();
    e.wrong(status::INVALID_ARGUMENT);
    let (ptr, stream) = (w.address(i, &mut Expect::default()), w.stream(i, &mut Expect::default()));
    let exported = status_of!(tcuda_ipc_export(ptr, stream, &mut handle)) == status::OK;
    if !exported || i.rarely(4) {
        let bytes = made_up(i, b"tcudaipc\x01");
        w.judge(status_of!(tcuda_ipc_withdraw(&tcuda_ipc_handle { bytes })), &e);
    }
    if exported {
        w.judge(status_of!(tcuda_ipc_withdraw(&handle)), &Expect::default());
        w.judge(status_of!(tcuda_ipc_withdraw(&handle)), &e);
    }
}

pub(super) fn close(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (ptr, stream) = (w.address(i, &mut e), w.stream(i, &mut e));
    if !ptr.is_null() {
        e.wrong(status::INVALID_POINTER);
    }
    w.judge(status_of!(tcuda_ipc_close(ptr, stream)), &e);
}

pub(super) fn collect(w: &mut World, _: &mut Input) {
    w.judge(status_of!(tcuda_ipc_collect()), &Expect::default());
}

pub(super) fn event_handle(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let event = w.event(i, &mut e);
    // Most have none.
    e.also(&[status::INVALID_ARGUMENT]);
    let mut handle = tcuda_ipc_event_handle { bytes: [0xC5; 64] };
    let out = if i.rarely(16) { std::ptr::null_mut() } else { &raw mut handle };
    if out.is_null() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    if w.judge(status_of!(tcuda_event_ipc_handle(event, out)), &e) {
        let mut opened = std::ptr::null_mut();
        let status = status_of!(tcuda_event_from_ipc_handle(-1, &handle, &mut opened));
        assert!(status != status::OK && opened.is_null(), "it is this process's own");
    }
}

pub(super) fn event_from_handle(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let handle = tcuda_ipc_event_handle { bytes: made_up(i, b"tveacudt") };
    e.wrong(status::CUDA_ERROR);
    let mut out = Out::<*mut tcuda_event>::required(i, &mut e);
    let status = status_of!(tcuda_event_from_ipc_handle(device, &handle, out.ptr()));
    w.judge(status, &e);
    assert_ne!(status, status::OK);
}
