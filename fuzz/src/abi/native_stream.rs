//! Memory for native streams. Whether a handle is a stream is known to the driver alone, so that
//! only what a call did is checked.

use super::memory::{device_of, size};
use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::Out;
use crate::world::{Mode, World};
use crate::{status_of, tell};
use std::ffi::c_void;
use tcuda::ffi::memory::tcuda_free;
use tcuda::ffi::native_stream::*;
use tcuda::ffi::ort::*;

pub(super) fn malloc_native(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let bytes = size(i);
    let (device, native) = (w.device(i, &mut e), w.native(i));
    let mut out = Out::<*mut c_void>::required(i, &mut e);
    tell(format_args!("{bytes} bytes, device {device}, native stream {native:?}"));
    let status = status_of!(tcuda_malloc_native(bytes, device, native, out.ptr()));
    add(w, &e, bytes, device, out.check(status == status::OK));
}

pub(super) fn malloc_native_aligned(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let bytes = size(i);
    let alignment = i.one_of(&[1, 2, 256, 512, 0, 3, 1024, usize::MAX]);
    let (device, native) = (w.device(i, &mut e), w.native(i));
    let mut out = Out::<*mut c_void>::required(i, &mut e);
    tell(format_args!("{bytes} bytes, {alignment}, device {device}, native stream {native:?}"));
    let status =
        status_of!(tcuda_malloc_native_aligned(bytes, alignment, device, native, out.ptr()));
    let is_right = [0, 1, 2, 256, 512].contains(&alignment);
    assert!(is_right || status != status::OK, "alignment {alignment}");
    add(w, &e, bytes, device, out.check(status == status::OK));
}

fn add(w: &mut World, e: &Expect, bytes: usize, device: i32, ptr: Option<*mut c_void>) {
    let Some(ptr) = ptr else { return };
    assert!(e.wrong.is_empty() || w.mode == Mode::Threads, "device {device}");
    w.add_block(ptr, bytes, device_of(ptr, device, w), 0);
}

pub(super) fn free_on(w: &mut World, i: &mut Input) {
    let ptr = w.address(i, &mut Expect::default());
    let native = w.native(i);
    // As in tcuda_free.
    if w.blocks.iter().any(|block| block.ptr == ptr as usize && block.handle != 0) {
        return;
    }
    tell(format_args!("{ptr:?}, native stream {native:?}"));
    let is_freed = status_of!(tcuda_free_on(ptr, native)) == status::OK;
    if !w.blocks.iter().any(|block| block.ptr == ptr as usize && block.ptr != 0) {
        return;
    }
    // A refused block is still there, unless the driver failed to free it.
    if !is_freed {
        let _ = status_of!(tcuda_free(ptr));
    }
    w.remove_block(|block| block.ptr == ptr as usize);
}

pub(super) fn ort_malloc(w: &mut World, i: &mut Input) {
    let bytes = size(i);
    let ptr = tcuda_ort_malloc(bytes);
    tell(format_args!("tcuda_ort_malloc({bytes}) = {ptr:?}"));
    if !ptr.is_null() {
        w.add_block(ptr, bytes, device_of(ptr, -1, w), 0);
    }
}

pub(super) fn ort_free(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let ptr = w.address(i, &mut e);
    if w.blocks.iter().any(|block| block.ptr == ptr as usize && block.handle != 0) {
        return;
    }
    tell(format_args!("tcuda_ort_free({ptr:?})"));
    // SAFETY: any address will do.
    unsafe { tcuda_ort_free(ptr) };
    if !ptr.is_null() {
        w.remove_block(|block| block.ptr == ptr as usize);
    }
}

pub(super) fn ort_empty_cache(_: &mut World, _: &mut Input) {
    tcuda_ort_empty_cache();
}
