//! Collectives over tensors of several devices and of the host: mostly of one type and shape, so
//! that calls come to something, and each in memory of its own.

use super::tensor::{View, may_be_wrong};
use crate::expect::{Expect, status};
use crate::input::Input;
use crate::status_of;
use crate::world::{HOST, Mode, World};
use std::ffi::c_void;
use tcuda::ffi::comm::*;
use tcuda::ffi::stream::tcuda_stream;
use tcuda::ffi::tensor::*;

/// Types with and without sums.
const TYPES: [(u8, u8, u16); 10] = [
    (2, 32, 1),
    (0, 8, 1),
    (2, 16, 1),
    (4, 16, 1),
    (5, 64, 1),
    (6, 8, 1),
    (0, 64, 1),
    (10, 8, 1),
    (17, 4, 2),
    (17, 4, 1),
];
const SIZES: [i64; 8] = [2, 3, 0, 1, 5, 8, 17, 40];
/// The most tensors, or devices, of a list.
const MOST: usize = 6;
/// What an output is before a call.
const UNTOUCHED: i32 = 0x5A5A;

/// Tensors that look alike, in memory of their own.
struct Parts {
    tensors: Vec<tcuda_tensor>,
    _sizes: Vec<Box<[i64]>>,
    _views: Vec<View>,
    /// Blocks that are taken.
    used: Vec<usize>,
    is_host_used: bool,
    dtype: tcuda_dtype,
    shape: [i64; 2],
}

impl Parts {
    fn new(i: &mut Input) -> Parts {
        let (code, bits, lanes) = i.one_of(&TYPES);
        let shape = [i.one_of(&SIZES), i.one_of(&SIZES)];
        let dtype = tcuda_dtype { code, bits, lanes };
        let (tensors, _sizes, _views) = (Vec::new(), Vec::new(), Vec::new());
        Parts { tensors, _sizes, _views, used: Vec::new(), is_host_used: false, dtype, shape }
    }

    /// One more, often right.
    fn add(&mut self, w: &World, i: &mut Input) {
        let mut shape = self.shape;
        if i.rarely(24) {
            shape[i.below(2)] = i.one_of(&SIZES);
        }
        let bits = usize::from(self.dtype.bits) * usize::from(self.dtype.lanes);
        let bytes = (shape[0] * shape[1]) as usize * bits.div_ceil(8);
        let fits = |index: &usize| {
            let block = &w.blocks[*index];
            block.ptr != 0 && block.bytes >= bytes && !self.used.contains(&block.ptr)
        };
        let blocks: Vec<usize> = (0..w.blocks.len()).filter(fits).collect();
        let (mut data, mut kind, mut device) = (0, TCUDA_DEVICE_CUDA, i.below(3) as i32);
        if !blocks.is_empty() && !i.rarely(16) {
            let block = &w.blocks[blocks[i.below(blocks.len())]];
            (data, device) = (block.ptr, block.device);
            self.used.push(block.ptr);
        } else if bytes <= HOST && !self.is_host_used {
            (data, kind, device) = (w.host.as_ptr().expose_provenance(), TCUDA_DEVICE_CPU, 0);
            self.is_host_used = true;
        }
        if i.rarely(6) {
            (kind, device) = (i.one_of(&[1, 2, 3, 13, 7]), i.one_of(&[0, 1, 2, 9, -1]));
            // What is not where it is said to be must not be read as if it were.
            if kind != TCUDA_DEVICE_CUDA {
                data = 0;
            }
        }
        // By rows, or by columns.
        let strides = if i.rarely(64) { [1, shape[0].max(1)] } else { [shape[1].max(1), 1] };
        let mut sizes: Box<[i64]> = [shape, strides].concat().into_boxed_slice();
        let start = sizes.as_mut_ptr();
        self._sizes.push(sizes);
        self.tensors.push(tcuda_tensor {
            data: data as *mut c_void,
            device: tcuda_tensor_device { device_type: kind, device_id: device },
            ndim: if i.rarely(4) { i.one_of(&[0, 1, -1, 65]) } else { 2 },
            dtype: self.dtype,
            shape: start,
            strides: if i.u8() < 128 { start.wrapping_add(2) } else { std::ptr::null_mut() },
            byte_offset: 0,
        });
    }

    /// A list of them; what is read may be anything.
    fn inputs(w: &World, i: &mut Input, count: usize) -> Parts {
        let mut parts = Parts::new(i);
        for _ in 0..count {
            parts.add(w, i);
        }
        if i.rarely(12) && count > 0 {
            let view = View::choose(w, i);
            if view.tensor.device.device_type == TCUDA_DEVICE_CUDA {
                parts.tensors[i.below(count)] = view.tensor;
                parts._views.push(view);
            }
        }
        parts
    }
}

fn devices(w: &World, i: &mut Input, count: usize) -> Vec<i32> {
    let mut list = Vec::new();
    for _ in 0..count {
        list.push(match i.u8() {
            0..=15 => -2,
            16..=31 => -1,
            32..=39 => i.u32() as i32,
            choice => i32::from(choice) % w.devices().max(1),
        });
    }
    list
}

fn dim(i: &mut Input) -> i32 {
    i.one_of(&[0, 0, 1, -1, -2, 2, -3, i32::MAX, i32::MIN])
}

/// What a collective may give beside OK.
fn expect() -> Expect {
    let mut e = Expect::default();
    may_be_wrong(&mut e);
    e.also(&[status::OUT_OF_MEMORY, status::OUT_OF_HOST_MEMORY]);
    e
}

/// May its memory be gone during the call? Then it cannot be made.
fn is_unsafe(w: &World) -> bool {
    w.mode == Mode::Threads
}

/// A NULL where a list should be, now and then.
fn list<T>(values: &[T], i: &mut Input, e: &mut Expect) -> *const T {
    if !values.is_empty() && i.rarely(8) {
        // Other arguments may be looked at first.
        e.wrong(status::INVALID_ARGUMENT);
        [
            status::INVALID_POINTER,
            status::INVALID_DEVICE,
            status::NOT_SUPPORTED,
            status::INVALID_HANDLE,
        ]
        .into_iter()
        .for_each(|status| e.wrong(status));
        return std::ptr::null();
    }
    values.as_ptr()
}

/// DLPack's own.
#[repr(C)]
struct Managed {
    version: [u32; 2],
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// Outputs of the library: all or none are written, and they are released in some order and way.
fn filled(
    w: &mut World,
    i: &mut Input,
    e: &Expect,
    count: usize,
    call: impl FnOnce(*mut tcuda_tensor) -> i32,
) {
    // SAFETY: plain data, for which zero is a value.
    let mut untouched: tcuda_tensor = unsafe { std::mem::zeroed() };
    untouched.ndim = UNTOUCHED;
    let mut outs = vec![untouched; count + 1];
    let status = call(outs.as_mut_ptr());
    let succeeded = w.judge(status, e);
    assert_eq!(outs[count].ndim, UNTOUCHED, "an output behind the last was written");
    for out in &outs[..count] {
        assert_eq!(out.ndim != UNTOUCHED, succeeded, "outputs are written by what succeeds");
    }
    if !succeeded {
        return;
    }
    outs.truncate(count);
    while !outs.is_empty() {
        let mut out = outs.swap_remove(i.below(outs.len()));
        if i.rarely(64) && !out.shape.is_null() {
            let mut managed = std::ptr::null_mut();
            let status = status_of!(tcuda_tensor_to_dlpack(&mut out, &mut managed));
            if status == status::OK {
                let managed = managed.cast::<Managed>();
                // SAFETY: just made, and a consumer's now.
                let deleter = unsafe { (*managed).deleter };
                // SAFETY: called once.
                unsafe { deleter.expect("a deleter")(managed) };
                continue;
            }
        }
        let released = status_of!(tcuda_tensor_release(&mut out));
        assert!(released == status::OK || w.mode != Mode::Strict || w.lost, "{released}");
        assert!(out.shape.is_null() && out.data.is_null());
    }
}

pub(super) fn broadcast(w: &mut World, i: &mut Input) {
    let (mut e, count) = (expect(), i.below(MOST));
    let (parts, devices) = (Parts::inputs(w, i, 1), devices(w, i, count));
    let list = list(&devices, i, &mut e);
    if is_unsafe(w) {
        return;
    }
    let src = &raw const parts.tensors[0];
    filled(w, i, &e, count, |outs| status_of!(tcuda_comm_broadcast(src, list, count, outs)));
}

pub(super) fn broadcast_into(w: &mut World, i: &mut Input) {
    let (mut e, count) = (expect(), i.below(MOST));
    let parts = Parts::inputs(w, i, 1 + count);
    let outs = list(&parts.tensors[1..], i, &mut e);
    if is_unsafe(w) || !parts._views.is_empty() {
        return;
    }
    w.judge(status_of!(tcuda_comm_broadcast_into(&parts.tensors[0], outs, count)), &e);
    w.forget_contents();
}

pub(super) fn broadcast_coalesced(w: &mut World, i: &mut Input) {
    let (mut e, count) = (expect(), i.below(MOST));
    let parts = Parts::inputs(w, i, count);
    let devices = devices(w, i, count);
    let tensors = list(&parts.tensors, i, &mut e);
    let (bytes, number) = (i.one_of(&[0, 1, 100, 5000, usize::MAX]), devices.len());
    if is_unsafe(w) {
        return;
    }
    filled(w, i, &e, count * number, |outs| {
        status_of!(tcuda_comm_broadcast_coalesced(
            tensors,
            count,
            devices.as_ptr(),
            number,
            bytes,
            outs
        ))
    });
}

pub(super) fn reduce_add(w: &mut World, i: &mut Input) {
    let (mut e, count) = (expect(), i.below(MOST));
    let parts = Parts::inputs(w, i, count);
    let own = parts.tensors.first().map_or(0, |tensor| tensor.device.device_id);
    let destination = if i.rarely(64) { devices(w, i, 1)[0] } else { own };
    let tensors = list(&parts.tensors, i, &mut e);
    if is_unsafe(w) {
        return;
    }
    filled(w, i, &e, 1, |out| status_of!(tcuda_comm_reduce_add(tensors, count, destination, out)));
}

pub(super) fn reduce_add_into(w: &mut World, i: &mut Input) {
    let (mut e, count) = (expect(), i.below(MOST));
    let parts = Parts::inputs(w, i, 1 + count);
    let tensors = list(&parts.tensors[1..], i, &mut e);
    if is_unsafe(w) || !parts._views.is_empty() {
        return;
    }
    w.judge(status_of!(tcuda_comm_reduce_add_into(tensors, count, &parts.tensors[0])), &e);
    w.forget_contents();
}

pub(super) fn reduce_add_coalesced(w: &mut World, i: &mut Input) {
    let (mut e, number, count) = (expect(), i.below(4), i.below(4));
    let parts = Parts::inputs(w, i, number * count);
    let own = parts.tensors.first().map_or(0, |tensor| tensor.device.device_id);
    let destination = if i.rarely(64) { devices(w, i, 1)[0] } else { own };
    let tensors = list(&parts.tensors, i, &mut e);
    let bytes = i.one_of(&[0, 1, 100, 5000, usize::MAX]);
    if is_unsafe(w) {
        return;
    }
    filled(w, i, &e, count, |outs| {
        status_of!(tcuda_comm_reduce_add_coalesced(
            tensors,
            number,
            count,
            destination,
            bytes,
            outs
        ))
    });
}

/// Streams for pieces, or none of them.
fn streams(w: &World, i: &mut Input, e: &mut Expect, count: usize) -> Vec<*mut tcuda_stream> {
    if i.u8() < 160 {
        return Vec::new();
    }
    let mut wrong = Expect::default();
    let list = (0..count).map(|_| w.stream(i, &mut wrong)).collect();
    if !wrong.wrong.is_empty() {
        // A piece that is not there needs no stream; and something else may be wrong first.
        e.also(&[status::INVALID_HANDLE]);
    }
    list
}

pub(super) fn scatter(w: &mut World, i: &mut Input) {
    let (mut e, count) = (expect(), i.below(MOST));
    let parts = Parts::inputs(w, i, 1);
    let devices = devices(w, i, count);
    let streams = streams(w, i, &mut e, count);
    let of_streams = if streams.is_empty() { std::ptr::null() } else { streams.as_ptr() };
    let sizes: Vec<i64> = (0..count).map(|_| i.one_of(&[1, 0, 2, 3, -1, i64::MAX])).collect();
    let sizes = if i.u8() < 128 { std::ptr::null() } else { sizes.as_ptr() };
    let (list, dim) = (list(&devices, i, &mut e), dim(i));
    if is_unsafe(w) {
        return;
    }
    let tensor = &raw const parts.tensors[0];
    filled(w, i, &e, count, |outs| {
        status_of!(tcuda_comm_scatter(tensor, list, sizes, count, dim, of_streams, outs))
    });
}

pub(super) fn scatter_into(w: &mut World, i: &mut Input) {
    let (mut e, count) = (expect(), i.below(MOST));
    let parts = Parts::inputs(w, i, 1 + count);
    let streams = streams(w, i, &mut e, count);
    let of_streams = if streams.is_empty() { std::ptr::null() } else { streams.as_ptr() };
    let (outs, dim) = (list(&parts.tensors[1..], i, &mut e), dim(i));
    if is_unsafe(w) || !parts._views.is_empty() {
        return;
    }
    let tensor = &raw const parts.tensors[0];
    w.judge(status_of!(tcuda_comm_scatter_into(tensor, outs, count, dim, of_streams)), &e);
    w.forget_contents();
}

pub(super) fn gather(w: &mut World, i: &mut Input) {
    let (mut e, count) = (expect(), i.below(MOST));
    let parts = Parts::inputs(w, i, count);
    let (dim, destination) = (dim(i), devices(w, i, 1)[0]);
    let tensors = list(&parts.tensors, i, &mut e);
    if is_unsafe(w) {
        return;
    }
    filled(w, i, &e, 1, |out| status_of!(tcuda_comm_gather(tensors, count, dim, destination, out)));
}

pub(super) fn gather_into(w: &mut World, i: &mut Input) {
    let (mut e, count) = (expect(), i.below(MOST));
    let parts = Parts::inputs(w, i, 1 + count);
    let tensors = list(&parts.tensors[1..], i, &mut e);
    let dim = dim(i);
    // As large as all of them together, if there is room.
    let mut whole = parts.tensors[0];
    let mut shape = [parts.shape[0] * count as i64, parts.shape[1]];
    let room = w.blocks.iter().find(|block| block.ptr == whole.data as usize);
    let bits = i64::from(whole.dtype.bits) * i64::from(whole.dtype.lanes);
    if dim == 0 && room.is_some_and(|block| block.bytes as i64 >= shape[0] * shape[1] * bits) {
        (whole.shape, whole.strides) = (shape.as_mut_ptr(), std::ptr::null_mut());
    }
    if is_unsafe(w) || !parts._views.is_empty() {
        return;
    }
    w.judge(status_of!(tcuda_comm_gather_into(tensors, count, dim, &whole)), &e);
    w.forget_contents();
}
