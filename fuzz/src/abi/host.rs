//! Pinned memory of the host.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::{Out, StructOut};
use crate::pinned::Pinned;
use crate::world::World;
use crate::{status_of, tell};
use std::ffi::c_void;
use std::sync::OnceLock;
use tcuda::ffi::host::*;

const SIZES: [usize; 16] = [
    4096,
    8000,
    256,
    16,
    1,
    0,
    64,
    65,
    4097,
    65_536,
    1 << 20,
    3 << 20,
    1 << 46,
    isize::MAX as usize,
    isize::MAX as usize + 1,
    usize::MAX,
];

pub(super) fn malloc(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let bytes = match i.u8() {
        0..=63 => i.u16().into(),
        choice => SIZES[usize::from(choice) % SIZES.len()],
    };
    // A machine has no limit of pinned memory but that of its host.
    if bytes >= 1 << 20 {
        e.also(&[status::OUT_OF_HOST_MEMORY]);
    }
    let mut out = Out::<*mut c_void>::required(i, &mut e);
    tell(format_args!("{bytes} bytes"));
    let status = status_of!(tcuda_host_malloc(bytes, out.ptr()));
    if let Some(ptr) = out.check(w.judge(status, &e)) {
        w.add_pinned(ptr.expose_provenance(), bytes);
    }
}

pub(super) fn free(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let ptr = w.pinned_address(i, &mut e);
    tell(format_args!("{ptr:?}"));
    let status = status_of!(tcuda_host_free(ptr));
    let ok = w.judge(status, &e);
    if status != status::INVALID_POINTER && !ptr.is_null() {
        w.remove_pinned(ptr as usize, ok);
    }
}

/// Pages to register, each alone or with others.
fn page(i: &mut Input) -> usize {
    static PAGES: OnceLock<usize> = OnceLock::new();
    let first = PAGES.get_or_init(|| {
        let bytes = Box::leak(vec![0u8; 7 * PAGE].into_boxed_slice());
        bytes.as_ptr().addr().next_multiple_of(PAGE)
    });
    first + i.below(4) * PAGE
}

const PAGE: usize = 4096;

/// What may be registered already, or not be.
const REFUSED: &[i32] = &[status::INVALID_POINTER, status::INVALID_STATE, status::CUDA_ERROR];

pub(super) fn register(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let ptr = if i.rarely(8) { 0 } else { page(i) };
    let bytes = i.one_of(&[PAGE, 1, 2 * PAGE, 0, usize::MAX]);
    let flags = i.one_of(&[0, 1, 2, 3, 16]);
    if ptr == 0 || bytes == 0 || bytes == usize::MAX || flags == 16 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    e.also(REFUSED);
    w.judge(status_of!(tcuda_host_register(ptr as *mut _, bytes, flags)), &e);
}

pub(super) fn unregister(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let ptr = if i.rarely(8) { 0 } else { page(i) };
    e.also(REFUSED);
    w.judge(status_of!(tcuda_host_unregister(ptr as *mut _)), &e);
}

pub(super) fn record(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut ptr = w.pinned_address(i, &mut Expect::default());
    if let Some(block) = w.pinned.iter().find(|block| block.ptr == ptr as usize) {
        // Any address inside will do.
        ptr = ptr.wrapping_byte_add(usize::from(i.u16()) % block.bytes);
    }
    let address = ptr as usize;
    let is_inside = |block: &Pinned| (block.ptr..block.ptr + block.bytes).contains(&address);
    if !ptr.is_null() && !w.pinned.iter().any(is_inside) {
        e.wrong(status::INVALID_POINTER);
    }
    let stream = w.stream(i, &mut e);
    tell(format_args!("{ptr:?}, stream {stream:?}"));
    w.judge(status_of!(tcuda_host_record(ptr, stream)), &e);
}

pub(super) fn stats(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut out = StructOut::new(i, &mut e, size_of::<tcuda_host_memory_statistics>());
    let status = status_of!(tcuda_host_memory_stats(out.ptr()));
    out.check(w.judge(status, &e));
}

pub(super) fn reset_peak(w: &mut World, _: &mut Input) {
    w.judge(status_of!(tcuda_host_memory_reset_peak()), &Expect::default());
}

pub(super) fn reset_accumulated(w: &mut World, _: &mut Input) {
    w.judge(status_of!(tcuda_host_memory_reset_accumulated()), &Expect::default());
}

pub(super) fn empty_cache(w: &mut World, _: &mut Input) {
    w.judge(status_of!(tcuda_host_memory_empty_cache()), &Expect::default());
}
