//! Pinned memory of the host.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::Out;
use crate::world::World;
use crate::{status_of, tell};
use std::ffi::c_void;
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
