//! Managed memory, and what is said about ranges of it.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::Out;
use crate::status_of;
use crate::world::{Mode, World};
use std::ffi::c_void;
use tcuda::ffi::managed::*;
use tcuda::ffi::memory::tcuda_free;
use tcuda::ffi::pluggable::tcuda_pluggable_allocator;

/// The most that a block has.
const MOST: usize = 1 << 20;

/// Allocates, uses a range, and frees: no other step meets the block.
fn with_block(
    w: &mut World,
    i: &mut Input,
    body: impl FnOnce(&mut World, &mut Input, *mut c_void),
) {
    let mut ptr = std::ptr::null_mut();
    let mut e = Expect::default();
    e.also(&[status::OUT_OF_MEMORY, status::OUT_OF_HOST_MEMORY]);
    let stream = std::ptr::null_mut();
    if !w.judge(status_of!(tcuda_managed_malloc(MOST, -1, stream, 1, &mut ptr)), &e) {
        return;
    }
    body(w, i, ptr);
    let mut e = Expect::default();
    e.also(&[status::CAPTURING]);
    let status = status_of!(tcuda_free(ptr));
    assert!(w.judge(status, &e) || w.mode != Mode::Strict || w.lost || status == status::CAPTURING);
}

pub(super) fn malloc(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let stream = w.stream(i, &mut e);
    let bytes = i.one_of(&[0, 1, 511, 4096, MOST, usize::MAX]);
    let flags = i.one_of(&[0, 1, 2, 3, 4, 7, 8, u32::MAX]);
    if flags > 7 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    // The stream may be of another device, or captured, which a prefetch there is not.
    e.also(&[
        status::INVALID_ARGUMENT,
        status::OUT_OF_MEMORY,
        status::OUT_OF_HOST_MEMORY,
        status::CAPTURING,
        status::CUDA_ERROR,
    ]);
    if bytes == usize::MAX {
        e.wrong(status::OUT_OF_MEMORY);
        e.wrong(status::OUT_OF_HOST_MEMORY);
        e.wrong(status::INVALID_ARGUMENT);
    }
    let mut out = Out::<*mut c_void>::required(i, &mut e);
    let status = status_of!(tcuda_managed_malloc(bytes, device, stream, flags, out.ptr()));
    if let Some(ptr) = out.check(w.judge(status, &e)) {
        assert_eq!(ptr.is_null(), bytes == 0);
        let freed = status_of!(tcuda_free(ptr));
        assert!(freed == status::OK || w.mode != Mode::Strict || w.lost);
    }
}

pub(super) fn allocator(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let flags = i.one_of(&[0, 1, 2, 4, 7, 8, u32::MAX]);
    if flags > 7 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let mut out = Out::<*mut tcuda_pluggable_allocator>::required(i, &mut e);
    let status = status_of!(tcuda_pluggable_allocator_managed(flags, out.ptr()));
    if let Some(allocator) = out.check(w.judge(status, &e)) {
        w.allocators.push(allocator as usize);
        w.counted += 1;
    }
}

fn length(i: &mut Input, e: &mut Expect) -> usize {
    let bytes = i.one_of(&[1, 4096, MOST, 0, usize::MAX]);
    if bytes == 0 || bytes == usize::MAX {
        e.wrong(status::INVALID_ARGUMENT);
    }
    bytes
}

/// A device, or the host.
fn place(w: &World, i: &mut Input, e: &mut Expect) -> i32 {
    if i.rarely(3) {
        return -2;
    }
    let mut of_device = Expect::default();
    let device = w.device(i, &mut of_device);
    if device != -2 {
        e.join(of_device);
    }
    device
}

pub(super) fn advise(w: &mut World, i: &mut Input) {
    with_block(w, i, |w, i, ptr| {
        let mut e = Expect::default();
        let bytes = length(i, &mut e);
        let device = place(w, i, &mut e);
        let advice = i.one_of(&[1, 2, 3, 4, 5, 6, 0, 7, -1]);
        if !(1..=6).contains(&advice) {
            e.wrong(status::INVALID_ARGUMENT);
        }
        w.judge(status_of!(tcuda_memory_advise(ptr, bytes, advice, device)), &e);
    });
}

pub(super) fn prefetch(w: &mut World, i: &mut Input) {
    with_block(w, i, |w, i, ptr| {
        let mut e = Expect::default();
        let bytes = length(i, &mut e);
        let device = place(w, i, &mut e);
        let stream = w.stream(i, &mut e);
        e.also(&[status::CAPTURING, status::CUDA_ERROR]);
        w.judge(status_of!(tcuda_memory_prefetch(ptr, bytes, device, stream)), &e);
    });
}

pub(super) fn attach(w: &mut World, i: &mut Input) {
    with_block(w, i, |w, i, ptr| {
        let mut e = Expect::default();
        let bytes = length(i, &mut e);
        let flags = i.one_of(&[1, 2, 4, 0, 3, u32::MAX]);
        if !matches!(flags, 1 | 2 | 4) {
            e.wrong(status::INVALID_ARGUMENT);
        }
        let stream = w.stream(i, &mut e);
        // A default stream, a captured one, or one of another device.
        e.also(&[
            status::INVALID_ARGUMENT,
            status::INVALID_POINTER,
            status::CAPTURING,
            status::CUDA_ERROR,
        ]);
        w.judge(status_of!(tcuda_memory_attach(ptr, bytes, flags, stream)), &e);
    });
}

pub(super) fn range(w: &mut World, i: &mut Input) {
    with_block(w, i, |w, i, ptr| {
        let mut e = Expect::default();
        let bytes = length(i, &mut e);
        let mut info = tcuda_memory_range_info {
            struct_size: size_of::<tcuda_memory_range_info>(),
            accessed_by: 0,
            is_accessed_by_host: 0,
            is_read_mostly: 0,
            preferred_device: 77,
            prefetched_device: 77,
        };
        let ok = w.judge(status_of!(tcuda_memory_range(ptr, bytes, &mut info)), &e);
        // No advice was given.
        let found = (info.preferred_device, info.prefetched_device, info.accessed_by);
        assert_eq!(found, if ok { (-1, -1, 0) } else { (77, 77, 0) });
    });
}
