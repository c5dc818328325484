//! Blocks and the cache.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::Out;
use crate::world::{Mode, World};
use crate::{status_of, tell};
use std::ffi::c_void;
use tcuda::ffi::device::*;
use tcuda::ffi::memory::*;
use tcuda::ffi::stream::*;

const MIB: usize = 1 << 20;
const SIZES: [usize; 24] = [
    512,
    1,
    0,
    511,
    513,
    1000,
    4096,
    65_536,
    MIB - 512,
    MIB,
    MIB + 1,
    2 * MIB,
    2 * MIB + 1,
    5 * MIB,
    10 * MIB,
    20 * MIB + 3,
    32 * MIB,
    62 * MIB,
    64 * MIB,
    65 * MIB,
    1 << 40,
    1 << 62,
    isize::MAX as usize,
    usize::MAX,
];

pub(super) fn size(i: &mut Input) -> usize {
    match i.u8() {
        0..=15 => i.u64() as usize,
        16..=63 => i.u32() as usize >> 8,
        64..=127 => i.u16().into(),
        choice => SIZES[usize::from(choice) % SIZES.len()],
    }
}

/// The stream and device of an allocation; a stream names its device as well.
fn place(w: &World, i: &mut Input, e: &mut Expect) -> (i32, *mut tcuda_stream) {
    let device = w.device(i, e);
    let stream = w.stream(i, e);
    e.also(&[status::OUT_OF_MEMORY]);
    if !stream.is_null() && device != -1 {
        // Perhaps another device's stream.
        e.also(&[status::INVALID_ARGUMENT]);
        if !e.wrong.is_empty() {
            e.wrong(status::INVALID_ARGUMENT);
        }
    }
    (device, stream)
}

/// The device on which a block must be.
pub(super) fn device_of(address: *mut c_void, asked: i32, w: &World) -> i32 {
    let mut device = -1;
    let known = status_of!(tcuda_device_of(address, &mut device)) == status::OK;
    assert!(known || w.lost || w.mode != Mode::Strict);
    if known && !address.is_null() && w.mode != Mode::Threads {
        assert!(asked == -1 || asked == device, "on {device} instead of {asked}");
    }
    if known { device } else { asked }
}

pub(super) fn malloc(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let bytes = size(i);
    let (device, stream) = place(w, i, &mut e);
    let mut out = Out::<*mut c_void>::required(i, &mut e);
    tell(format_args!("{bytes} bytes, device {device}, stream {stream:?}"));
    let status = status_of!(tcuda_malloc(bytes, device, stream, out.ptr()));
    if let Some(ptr) = out.check(w.judge(status, &e)) {
        w.add_block(ptr, bytes, device_of(ptr, device, w), 0);
    }
}

pub(super) fn free(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let ptr = w.address(i, &mut e);
    // The blocks of allocations are the caller's as well: once freed, the handle has none.
    let owner = w.blocks.iter().find(|block| block.ptr == ptr as usize && block.handle != 0);
    if owner.is_some() {
        return;
    }
    tell(format_args!("{ptr:?}"));
    let status = status_of!(tcuda_free(ptr));
    w.judge(status, &e);
    assert_ne!(status, status::OUT_OF_HOST_MEMORY, "freeing wants memory");
    if status != status::INVALID_POINTER && !ptr.is_null() {
        w.remove_block(|block| block.ptr == ptr as usize);
    }
}

pub(super) fn record_stream(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (ptr, stream) = (w.address(i, &mut e), w.stream(i, &mut e));
    tell(format_args!("{ptr:?}, stream {stream:?}"));
    w.judge(status_of!(tcuda_record_stream(ptr, stream)), &e);
}

pub(super) fn allocation_create(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let bytes = size(i);
    let (device, stream) = place(w, i, &mut e);
    let mut out = Out::<*mut tcuda_allocation>::required(i, &mut e);
    tell(format_args!("{bytes} bytes, device {device}, stream {stream:?}"));
    let status = status_of!(tcuda_allocation_create(bytes, device, stream, out.ptr()));
    let Some(handle) = out.check(w.judge(status, &e)) else { return };
    let (mut ptr, mut known) = (std::ptr::null_mut(), 0);
    if w.mode != Mode::Threads {
        assert_eq!(status_of!(tcuda_allocation_pointer(handle, &mut ptr)), status::OK);
        assert_eq!(status_of!(tcuda_allocation_bytes(handle, &mut known)), status::OK);
        assert_eq!(known, bytes);
        w.add_block(ptr, bytes, device_of(ptr, device, w), handle as usize);
    } else if status_of!(tcuda_allocation_pointer(handle, &mut ptr)) == status::OK {
        w.add_block(ptr, bytes, device, handle as usize);
    }
}

pub(super) fn allocation_destroy(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.allocation(i, &mut e);
    if handle.is_null() {
        e = Expect::default();
    }
    tell(format_args!("{handle:?}"));
    let status = status_of!(tcuda_allocation_destroy(handle));
    w.judge(status, &e);
    assert_ne!(status, status::OUT_OF_HOST_MEMORY, "freeing wants memory");
    if status != status::INVALID_HANDLE && !handle.is_null() {
        w.remove_block(|block| block.handle == handle as usize);
    }
}

pub(super) fn allocation_pointer(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.allocation(i, &mut e);
    let mut out = Out::<*mut c_void>::required(i, &mut e);
    let status = status_of!(tcuda_allocation_pointer(handle, out.ptr()));
    let ptr = out.check(w.judge(status, &e));
    if let Some(block) = w.blocks.iter().find(|block| block.handle == handle as usize) {
        assert!(ptr.is_none_or(|ptr| ptr as usize == block.ptr) || w.mode == Mode::Threads);
    }
}

pub(super) fn allocation_bytes(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.allocation(i, &mut e);
    let mut out = Out::<usize>::required(i, &mut e);
    let status = status_of!(tcuda_allocation_bytes(handle, out.ptr()));
    let bytes = out.check(w.judge(status, &e));
    if let Some(block) = w.blocks.iter().find(|block| block.handle == handle as usize) {
        assert!(bytes.is_none_or(|bytes| bytes == block.bytes) || w.mode == Mode::Threads);
    }
}

pub(super) fn allocation_device(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.allocation(i, &mut e);
    let mut out = Out::<i32>::required(i, &mut e);
    let status = status_of!(tcuda_allocation_device(handle, out.ptr()));
    if let Some(device) = out.check(w.judge(status, &e)) {
        assert!(device >= 0 && (w.mode == Mode::Threads || device < w.devices()));
    }
}

pub(super) fn allocation_stream(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.allocation(i, &mut e);
    let mut out = Out::<*mut tcuda_stream>::required(i, &mut e);
    let status = status_of!(tcuda_allocation_stream(handle, out.ptr()));
    if let Some(stream) = out.check(w.judge(status, &e)) {
        w.add_stream(stream, false);
    }
}

pub(super) fn empty_cache(w: &mut World, _: &mut Input) {
    w.judge(status_of!(tcuda_memory_empty_cache()), &Expect::default());
}

pub(super) fn info(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let (mut free, mut total) = (Out::<usize>::required(i, &mut e), Out::required(i, &mut e));
    let status = status_of!(tcuda_memory_info(device, free.ptr(), total.ptr()));
    let ok = w.judge(status, &e);
    let (free, total) = (free.check(ok), total.check(ok));
    if w.mode != Mode::Threads && ok {
        assert_eq!(total, Some(64 * MIB));
        assert!(free <= total);
    }
}

pub(super) fn base(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let ptr = w.address(i, &mut e);
    if ptr.is_null() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    // An address within a segment is right as well.
    let is_block = w.blocks.iter().any(|block| block.ptr == ptr as usize);
    if !is_block && !ptr.is_null() {
        e = Expect::default();
        e.also(&[status::INVALID_POINTER]);
    }
    let mut out = Out::<*mut c_void>::required(i, &mut e);
    let mut bytes = Out::<usize>::required(i, &mut e);
    let status = status_of!(tcuda_memory_base(ptr, out.ptr(), bytes.ptr()));
    let ok = w.judge(status, &e);
    if let (Some(base), Some(bytes)) = (out.check(ok), bytes.check(ok)) {
        let (base, at) = (base as usize, ptr as usize);
        assert!(base <= at && at - base < bytes);
    }
}
