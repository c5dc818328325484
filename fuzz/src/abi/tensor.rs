//! Tensors, and capsules of DLPack. The lender here counts what comes back.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::Out;
use crate::status_of;
use crate::world::{CALLS, World};
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use tcuda::ffi::tensor::*;

/// DLPack's own.
#[repr(C)]
pub struct Managed {
    version: [u32; 2],
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    flags: u64,
    tensor: tcuda_tensor,
}

/// Ends a loan.
unsafe extern "C" fn give_back(managed: *mut Managed) {
    CALLS.destroyed.fetch_add(1, Ordering::Relaxed);
    // SAFETY: from Box::into_raw below, and the library calls this once.
    drop(unsafe { Box::from_raw(managed) });
}

/// Sizes and strides of a tensor, and the tensor that leads to them.
pub struct View {
    /// What the library gets.
    pub tensor: tcuda_tensor,
    _sizes: Box<[i64]>,
    /// Bytes of its block that it may write.
    pub is_right: bool,
}

const TYPES: [(u8, u8, u16); 16] = [
    (2, 32, 1),
    (2, 64, 1),
    (2, 16, 1),
    (4, 16, 1),
    (0, 8, 1),
    (0, 16, 1),
    (0, 32, 1),
    (0, 64, 1),
    (1, 8, 1),
    (6, 8, 1),
    (5, 64, 1),
    (1, 32, 1),
    (10, 8, 1),
    (17, 4, 2),
    (2, 32, 4),
    (99, 7, 0),
];

impl View {
    /// A view of a live block, or of none; often right.
    pub fn choose(w: &World, i: &mut Input) -> View {
        let (code, bits, lanes) = i.one_of(&TYPES);
        let ndim = i.below(4);
        let sizes_of = [0i64, 1, 2, 3, 5, 8, 16, -1, i64::MAX];
        let strides_of = [1i64, 2, 3, 8, 40, 0, -1, i64::MIN];
        let mut sizes: Vec<i64> = (0..ndim).map(|_| sizes_of[i.below(12) % 9]).collect();
        sizes.extend((0..ndim).map(|_| strides_of[i.below(12) % 8]));
        let mut sizes = sizes.into_boxed_slice();
        let shape = if ndim == 0 { std::ptr::null_mut() } else { sizes.as_mut_ptr() };
        let with_strides = ndim > 0 && i.u8() < 128;
        let strides = if with_strides { shape.wrapping_add(ndim) } else { std::ptr::null_mut() };
        let block = match w.blocks.len() {
            0 => None,
            count => Some(&w.blocks[i.below(count)]),
        };
        let data = block.map_or(0, |block| block.ptr);
        let device_type = i.one_of(&[2, 2, 2, 2, 2, 1, 13, 7]);
        let own = block.map_or(0, |block| block.device);
        let device_id = if i.rarely(16) { i.below(4) as i32 } else { own };
        let tensor = tcuda_tensor {
            data: data as *mut c_void,
            device: tcuda_tensor_device { device_type, device_id },
            ndim: if i.rarely(32) { i.one_of(&[-1, 65, i32::MAX]) } else { ndim as i32 },
            dtype: tcuda_dtype { code, bits, lanes },
            shape,
            strides,
            byte_offset: i.one_of(&[0, 0, 0, 4, 8, 64, 3, u64::MAX]),
        };
        // Managed memory is not asked whose it is.
        let is_right = device_type != 13;
        View { tensor, _sizes: sizes, is_right }
    }
}

/// What a tensor that may be wrong in many ways may give.
pub fn may_be_wrong(e: &mut Expect) {
    e.also(&[
        status::INVALID_ARGUMENT,
        status::INVALID_POINTER,
        status::INVALID_DEVICE,
        status::NOT_SUPPORTED,
    ]);
}

pub(super) fn from_dlpack(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let view = View::choose(w, i);
    let managed = Box::into_raw(Box::new(Managed {
        version: [i.one_of(&[1, 1, 1, 0, 2]), i.one_of(&[0, 1, 99])],
        manager: std::ptr::null_mut(),
        deleter: Some(give_back),
        flags: i.one_of(&[0, 1, 2, 4, 7, u64::MAX]),
        tensor: view.tensor,
    }));
    let is_null = i.rarely(16);
    if is_null {
        e.wrong(status::INVALID_ARGUMENT);
    }
    may_be_wrong(&mut e);
    let mut tensor = zero();
    let ptr = if is_null { std::ptr::null_mut() } else { &raw mut tensor };
    let status = status_of!(tcuda_tensor_from_dlpack(managed.cast(), ptr));
    if !w.judge(status, &e) {
        assert!(tensor.shape.is_null(), "an output was written by a call that failed");
        // SAFETY: on failure it stays the caller's.
        drop(unsafe { Box::from_raw(managed) });
        return;
    }
    CALLS.owed.fetch_add(1, Ordering::Relaxed);
    // Released, or moved out and then given back as any consumer does.
    if i.u8() < 128 {
        let mut out = std::ptr::null_mut();
        let status = status_of!(tcuda_tensor_to_dlpack(&mut tensor, &mut out));
        if w.judge(status, &Expect::default()) {
            let out = out.cast::<Managed>();
            // Where elements begin behind `data`, another capsule comes, which gives this one back.
            let is_right = out == managed || view.tensor.byte_offset != 0;
            assert!(is_right, "another capsule came back");
            // SAFETY: moved out, so that it is ours.
            if let Some(deleter) = unsafe { (*out).deleter } {
                // SAFETY: as above, called once.
                unsafe { deleter(out) };
            }
            return;
        }
    }
    let released = status_of!(tcuda_tensor_release(&mut tensor));
    assert_eq!(released, status::OK);
    assert!(tensor.shape.is_null() && tensor.data.is_null());
}

pub(super) fn to_dlpack(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut view = View::choose(w, i);
    may_be_wrong(&mut e);
    let ptr = view.tensor.data as usize;
    // What is managed belongs to an owner that the library does not know.
    if !view.is_right {
        return;
    }
    let is_null = i.rarely(16);
    let mut out = std::ptr::null_mut();
    let place = if is_null { std::ptr::null_mut() } else { &raw mut out };
    if is_null {
        e.wrong(status::INVALID_ARGUMENT);
    }
    // A block with a handle is freed by that.
    if w.blocks.iter().any(|block| block.ptr == ptr && block.handle != 0) {
        return;
    }
    let status = status_of!(tcuda_tensor_to_dlpack(&mut view.tensor, place));
    if !w.judge(status, &e) {
        assert!(out.is_null());
        return;
    }
    assert!(view.tensor.data.is_null() && view.tensor.shape.is_null());
    let managed = out.cast::<Managed>();
    // SAFETY: just made, and a consumer's now.
    let deleter = unsafe { (*managed).deleter };
    // SAFETY: called once.
    unsafe { deleter.expect("a deleter")(managed) };
    w.remove_block(|block| block.ptr == ptr && ptr != 0);
}

pub(super) fn release(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut view = View::choose(w, i);
    let is_null = i.rarely(8);
    let ptr = if is_null { std::ptr::null_mut() } else { &raw mut view.tensor };
    let is_empty = view.tensor.shape.is_null() && view.tensor.data.is_null();
    if !is_null && !is_empty {
        e.wrong(status::INVALID_ARGUMENT);
    }
    w.judge(status_of!(tcuda_tensor_release(ptr)), &e);
}

pub(super) fn device_of(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let view = View::choose(w, i);
    let is_null = i.rarely(8);
    let ptr = if is_null { std::ptr::null() } else { &raw const view.tensor };
    if is_null {
        e.wrong(status::INVALID_ARGUMENT);
    }
    // A view that was chosen wrong.
    e.also(&[status::INVALID_ARGUMENT]);
    let mut out = Out::<i32>::required(i, &mut e);
    let status = status_of!(tcuda_tensor_device_of(ptr, out.ptr()));
    if let Some(device) = out.check(w.judge(status, &e)) {
        let own = view.tensor.device.device_id;
        assert!(device == -1 || device == own, "{device}");
    }
}

fn zero() -> tcuda_tensor {
    // SAFETY: plain data, for which zero is a value.
    unsafe { std::mem::zeroed() }
}
