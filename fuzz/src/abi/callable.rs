//! Graphed callables, of functions that queue nothing, fail, or describe an input as their output.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::Out;
use crate::status_of;
use crate::world::{Mode, World};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use tcuda::ffi::callable::*;
use tcuda::ffi::stream::tcuda_stream;
use tcuda::ffi::tensor::tcuda_tensor;

unsafe extern "C" fn nothing(
    _: *mut c_void,
    _: *const tcuda_tensor,
    _: usize,
    _: *mut tcuda_stream,
    _: *mut tcuda_tensor,
    _: usize,
) -> i32 {
    0
}

unsafe extern "C" fn fails(
    _: *mut c_void,
    _: *const tcuda_tensor,
    _: usize,
    _: *mut tcuda_stream,
    _: *mut tcuda_tensor,
    _: usize,
) -> i32 {
    -7
}

pub(super) fn create(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let works = !i.rarely(4);
    let forward = if works { nothing } else { fails };
    if !works {
        e.wrong(status::CALLBACK_FAILED);
    }
    let mut callable = tcuda_callable {
        struct_size: size_of::<tcuda_callable>(),
        forward: if i.rarely(8) { None } else { Some(forward) },
        backward: if i.rarely(2) { Some(forward) } else { None },
        user_data: null_mut(),
        destroy: None,
        sample_inputs: null(),
        num_inputs: 0,
        num_outputs: 0,
    };
    if callable.forward.is_none() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    if i.rarely(8) {
        // More than there is, or none of them described.
        (callable.num_inputs, callable.num_outputs) = i.one_of(&[(1, 0), (usize::MAX, 0), (0, 1)]);
        e.wrong(status::INVALID_ARGUMENT);
    }
    let count = usize::from(!i.rarely(8));
    if count == 0 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let mut out = Out::<*mut tcuda_graphed_callable>::required(i, &mut e);
    if w.mode == Mode::Threads {
        // It waits for the device, which others may use.
        return;
    }
    e.also(&[status::INVALID_STATE, status::OUT_OF_HOST_MEMORY, status::CUDA_ERROR]);
    let status = status_of!(tcuda_graphed_callable_create(&callable, count, null(), out.ptr()));
    if let Some(made) = out.check(w.judge(status, &e)) {
        w.callables.push(made as usize);
        w.counted += 1;
    }
}

pub(super) fn destroy(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.callable(i, &mut e);
    if handle == 0 {
        e = Expect::default();
    }
    let status = status_of!(tcuda_graphed_callable_destroy(handle as *mut _));
    w.judge(status, &e);
    if status == status::INVALID_HANDLE {
        return;
    }
    if let Some(index) = w.callables.iter().position(|callable| *callable == handle) {
        w.dead.push(w.callables.swap_remove(index));
        w.counted -= 1;
    }
}

pub(super) fn call(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (handle, stream) = (w.callable(i, &mut e), w.stream(i, &mut e));
    let count = usize::from(i.rarely(4));
    if count > 0 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    // The stream of another device.
    e.also(&[status::INVALID_ARGUMENT]);
    let status = status_of!(tcuda_graphed_callable_call(
        handle as *mut _,
        null(),
        count,
        stream,
        null_mut(),
        0
    ));
    w.judge(status, &e);
}

pub(super) fn call_backward(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (handle, stream) = (w.callable(i, &mut e), w.stream(i, &mut e));
    e.also(&[status::INVALID_ARGUMENT, status::INVALID_STATE]);
    let status = status_of!(tcuda_graphed_callable_call_backward(
        handle as *mut _,
        null(),
        0,
        stream,
        null_mut(),
        0
    ));
    w.judge(status, &e);
}
