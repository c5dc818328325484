//! Communicators, where there is no NCCL: none can be made, and every handle is a wrong one. Groups
//! come and go all the same.

use super::tensor::View;
use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::Out;
use crate::status_of;
use crate::world::World;
use std::ptr::null;
use tcuda::ffi::communicator::*;
use tcuda::ffi::tensor::tcuda_tensor;

/// A machine may have an NCCL, which is for GPUs.
fn without_nccl(e: &mut Expect) {
    e.also(&[status::NO_LIBRARY, status::OUT_OF_HOST_MEMORY]);
}

pub(super) fn version(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut parts = [(); 3].map(|()| Out::<i32>::required(i, &mut e));
    without_nccl(&mut e);
    let [major, minor, patch] = &mut parts;
    let status = status_of!(tcuda_nccl_version(major.ptr(), minor.ptr(), patch.ptr()));
    let is_there = w.judge(status, &e);
    for part in &mut parts {
        part.check(is_there);
    }
}

pub(super) fn unique_id(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut id = tcuda_unique_id { bytes: [0xA5; 128] };
    let is_null = i.rarely(8);
    if is_null {
        e.wrong(status::INVALID_ARGUMENT);
    }
    e.wrong(status::NO_LIBRARY);
    e.wrong(status::OUT_OF_HOST_MEMORY);
    let ptr = if is_null { std::ptr::null_mut() } else { &raw mut id };
    assert!(!w.judge(status_of!(tcuda_communicator_unique_id(ptr)), &e));
    assert!(id.bytes == [0xA5; 128]);
}

pub(super) fn init_rank(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let id = tcuda_unique_id { bytes: [i.below(256) as u8; 128] };
    let id = if i.rarely(8) { null() } else { &raw const id };
    let (ranks, rank) = (i.one_of(&[1, 2, 0, -1, i32::MAX]), i.one_of(&[0, 1, -1, i32::MIN]));
    let device = i.one_of(&[0, -1, 1, 64, -2]);
    let mut out = Out::<*mut tcuda_communicator>::required(i, &mut e);
    for wrong in [status::INVALID_ARGUMENT, status::INVALID_DEVICE, status::NO_LIBRARY] {
        e.wrong(wrong);
    }
    let status = status_of!(tcuda_communicator_init_rank(id, ranks, rank, device, out.ptr()));
    assert!(out.check(w.judge(status, &e)).is_none());
}

pub(super) fn init_all(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let devices = [i.one_of(&[0, 1, -1, 99]), i.one_of(&[1, 0, 2])];
    let list = if i.rarely(8) { null() } else { devices.as_ptr() };
    let count = i.one_of(&[1, 2, 0, usize::MAX]);
    // One of them is the room of all: nothing is ever written.
    let mut out = Out::<*mut tcuda_communicator>::required(i, &mut e);
    for wrong in [status::INVALID_ARGUMENT, status::INVALID_DEVICE, status::NO_LIBRARY] {
        e.wrong(wrong);
    }
    let status = status_of!(tcuda_communicator_init_all(list, count, out.ptr()));
    assert!(out.check(w.judge(status, &e)).is_none());
}

/// A handle, which is not a communicator's.
fn handle(w: &World, i: &mut Input, e: &mut Expect) -> *mut tcuda_communicator {
    e.wrong(status::INVALID_HANDLE);
    w.handle(i, &[], &w.events) as *mut tcuda_communicator
}

pub(super) fn destroy(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let communicator = handle(w, i, &mut e);
    if communicator.is_null() {
        e = Expect::default();
    }
    w.judge(status_of!(tcuda_communicator_destroy(communicator)), &e);
}

pub(super) fn abort(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let communicator = handle(w, i, &mut e);
    w.judge(status_of!(tcuda_communicator_abort(communicator)), &e);
}

pub(super) fn query(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let communicator = handle(w, i, &mut e);
    w.judge(status_of!(tcuda_communicator_query(communicator)), &e);
}

pub(super) fn group_begin(w: &mut World, _: &mut Input) {
    let mut e = Expect::default();
    e.also(&[status::OUT_OF_HOST_MEMORY]);
    w.judge(status_of!(tcuda_communicator_group_begin()), &e);
}

pub(super) fn group_end(w: &mut World, _: &mut Input) {
    let mut e = Expect::default();
    // None is open, or a call in it failed, as they all do here.
    e.also(&[status::INVALID_STATE]);
    w.judge(status_of!(tcuda_communicator_group_end()), &e);
}

/// What all verbs have besides a handle and a stream.
struct Arguments {
    views: [Option<View>; 2],
    op: i32,
    rank: i32,
}

impl Arguments {
    fn choose(w: &World, i: &mut Input) -> Arguments {
        let views = [(); 2].map(|()| (!i.rarely(6)).then(|| View::choose(w, i)));
        Arguments { views, op: i.one_of(&[0, 1, 3, 4, -1]), rank: i.one_of(&[0, 1, -1]) }
    }

    fn input(&self) -> *const tcuda_tensor {
        self.views[0].as_ref().map_or(null(), |view| &raw const view.tensor)
    }

    fn output(&self) -> *const tcuda_tensor {
        self.views[1].as_ref().map_or(null(), |view| &raw const view.tensor)
    }
}

macro_rules! verbs {
    ($a:ident: $($verb:ident = $function:ident($($argument:expr),*);)*) => {
        $(pub(super) fn $verb(w: &mut World, i: &mut Input) {
            let mut e = Expect::default();
            let communicator = handle(w, i, &mut e);
            e.wrong(status::INVALID_ARGUMENT);
            let (stream, $a) = (w.stream(i, &mut e), Arguments::choose(w, i));
            w.judge(status_of!($function(communicator, $($argument,)* stream)), &e);
        })*
    };
}

verbs! { a:
    all_reduce = tcuda_communicator_all_reduce(a.input(), a.output(), a.op);
    broadcast = tcuda_communicator_broadcast(a.input(), a.output(), a.rank);
    reduce = tcuda_communicator_reduce(a.input(), a.output(), a.op, a.rank);
    all_gather = tcuda_communicator_all_gather(a.input(), a.output());
    reduce_scatter = tcuda_communicator_reduce_scatter(a.input(), a.output(), a.op);
    send = tcuda_communicator_send(a.input(), a.rank);
    recv = tcuda_communicator_recv(a.output(), a.rank);
}
