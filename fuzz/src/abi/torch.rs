//! The functions that PyTorch calls: they have no status, so that what they did is seen in what
//! comes out, and in the model's counts.

use crate::expect::Expect;
use crate::input::Input;
use crate::outputs::Out;
use crate::tell;
use crate::world::{Mode, World};
use std::ffi::c_void;
use tcuda::ffi::torch::*;

const MIB: isize = 1 << 20;
const SIZES: [isize; 12] =
    [512, 1, 0, 513, 70_000, MIB, MIB + 1, 5 * MIB, 30 * MIB, -1, isize::MIN, isize::MAX];
const IDS: [(u64, u64); 5] = [(1, 0), (2, 0), (0, 1), (0, 2), (u64::MAX, u64::MAX)];

pub(super) fn malloc(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let bytes = i.one_of(&SIZES);
    let (device, native) = (w.device(i, &mut e), w.native(i));
    // SAFETY: any stream and device will do.
    let ptr = unsafe { tcuda_torch_malloc(bytes, device, native) };
    tell(format_args!("tcuda_torch_malloc({bytes}, {device}, {native:?}) = {ptr:?}"));
    assert!(ptr.is_null() || bytes > 0, "{bytes} bytes at {ptr:?}");
    assert!(ptr.is_null() || e.wrong.is_empty() || w.mode == Mode::Threads, "device {device}");
    if !ptr.is_null() {
        // The device that -1 means is not asked for: where it matters, there is one.
        let device = if device == -1 { found_on(ptr, w) } else { device };
        w.add_block(ptr, bytes as usize, device, 0);
    }
}

fn found_on(ptr: *mut c_void, w: &World) -> i32 {
    let mut device = 0;
    // SAFETY: the output is a local.
    let status = unsafe { tcuda::ffi::device::tcuda_device_of(ptr, &mut device) };
    assert!(matches!(status, tcuda::ffi::status::tcuda_status::Ok) || w.mode != Mode::Strict);
    device
}

pub(super) fn free(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let ptr = w.address(i, &mut e);
    let owner = w.blocks.iter().find(|block| block.ptr == ptr as usize && block.handle != 0);
    if owner.is_some() {
        return;
    }
    let (bytes, device, native) = (i.one_of(&SIZES), w.device(i, &mut e), w.native(i));
    tell(format_args!("tcuda_torch_free({ptr:?})"));
    // SAFETY: any address will do.
    unsafe { tcuda_torch_free(ptr, bytes, device, native) };
    if !ptr.is_null() {
        w.remove_block(|block| block.ptr == ptr as usize);
    }
}

pub(super) fn init(w: &mut World, i: &mut Input) {
    let count = i.one_of(&[1, 2, 3, 0, -1, i32::MAX]);
    tcuda_torch_init(count);
    assert!(w.is_initialized() || w.mode != Mode::Strict || w.selected.is_none());
}

pub(super) fn reset(_: &mut World, _: &mut Input) {
    tcuda_torch_reset();
}

pub(super) fn memory_fraction(w: &mut World, i: &mut Input) {
    let device = w.device(i, &mut Expect::default());
    // What limits memory would have to be known to the model.
    tcuda_torch_memory_fraction(i.one_of(&[1.0, -0.1, 1.1, f64::NAN, f64::INFINITY]), device);
}

pub(super) fn base_alloc(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let ptr = w.address(i, &mut e);
    let mut out = Out::<usize>::optional(i);
    // SAFETY: any address will do; the output is one, or NULL.
    let base = unsafe { tcuda_torch_base_alloc(ptr, out.ptr()) };
    tell(format_args!("tcuda_torch_base_alloc({ptr:?}) = {base:?}"));
    let length = out.check(!base.is_null());
    if let Some(block) = w.blocks.iter().find(|block| block.ptr == ptr as usize && block.ptr != 0) {
        let is_lost = w.lost || w.mode == Mode::Threads;
        assert!(is_lost || !base.is_null(), "a block without a segment");
        let (base, end) = (base as usize, block.ptr + block.bytes);
        assert!(is_lost || base <= block.ptr && length.is_none_or(|length| end <= base + length));
    }
}

pub(super) fn record_stream(w: &mut World, i: &mut Input) {
    let ptr = w.address(i, &mut Expect::default());
    let native = w.native(i);
    tell(format_args!("tcuda_torch_record_stream({ptr:?}, {native:?})"));
    // SAFETY: any address and stream will do.
    unsafe { tcuda_torch_record_stream(ptr, native) };
}

pub(super) fn begin_allocate_to_pool(w: &mut World, i: &mut Input) {
    let (device, (id0, id1)) = (w.device(i, &mut Expect::default()), i.one_of(&IDS));
    tell(format_args!("tcuda_torch_begin_allocate_to_pool({device}, {id0}, {id1})"));
    // SAFETY: the filter is not looked at.
    unsafe { tcuda_torch_begin_allocate_to_pool(device, id0, id1, std::ptr::dangling()) };
}

pub(super) fn end_allocate_to_pool(w: &mut World, i: &mut Input) {
    let (device, (id0, id1)) = (w.device(i, &mut Expect::default()), i.one_of(&IDS));
    tell(format_args!("tcuda_torch_end_allocate_to_pool({device}, {id0}, {id1})"));
    tcuda_torch_end_allocate_to_pool(device, id0, id1);
}

pub(super) fn release_pool(w: &mut World, i: &mut Input) {
    let (device, (id0, id1)) = (w.device(i, &mut Expect::default()), i.one_of(&IDS));
    tell(format_args!("tcuda_torch_release_pool({device}, {id0}, {id1})"));
    tcuda_torch_release_pool(device, id0, id1);
}

pub(super) fn mark_capture_begin(w: &mut World, i: &mut Input) {
    let device = w.device(i, &mut Expect::default());
    tell(format_args!("tcuda_torch_mark_capture_begin({device})"));
    tcuda_torch_mark_capture_begin(device);
}

pub(super) fn mark_capture_end(w: &mut World, i: &mut Input) {
    let device = w.device(i, &mut Expect::default());
    tell(format_args!("tcuda_torch_mark_capture_end({device})"));
    tcuda_torch_mark_capture_end(device);
}
