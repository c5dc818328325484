//! The calls for user objects.

use super::arguments::{put, require};
use super::entry::entry;
use super::host_function::HostFunction;
use super::sync::lock;
use crate::base::code;
use cudarc::driver::sys::{CUgraph, CUhostFn, CUuserObject};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC` and `CU_GRAPH_USER_OBJECT_MOVE`.
const NO_DESTRUCTOR_SYNC: c_uint = 1;
const MOVE: c_uint = 1;

/// Checks a number of references.
fn check(count: c_uint) -> Result<(), i32> {
    require(count > 0 && count <= c_int::MAX.unsigned_abs(), code::INVALID_VALUE)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuUserObjectCreate(
    object: *mut CUuserObject,
    user_data: *mut c_void,
    destroy: CUhostFn,
    count: c_uint,
    flags: c_uint,
) -> c_int {
    entry(|machine| {
        check(count)?;
        require(!object.is_null() && flags == NO_DESTRUCTOR_SYNC, code::INVALID_VALUE)?;
        let function = destroy.ok_or(code::INVALID_VALUE)?;
        let destructor = HostFunction { function, user_data };
        let handle =
            machine.user_objects.create(&machine.hardware, &machine.schedule, destructor, count);
        put!(object, ptr::without_provenance_mut(handle))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuUserObjectRetain(object: CUuserObject, count: c_uint) -> c_int {
    entry(|machine| {
        check(count)?;
        let mut held = lock(&machine.user_objects.held);
        let found = held.get(object.addr()).ok_or(code::INVALID_VALUE)?;
        held.add(object.addr(), found, count);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuUserObjectRelease(object: CUuserObject, count: c_uint) -> c_int {
    entry(|machine| {
        check(count)?;
        let released = lock(&machine.user_objects.held).remove(object.addr(), count)?;
        drop(released);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphRetainUserObject(
    graph: CUgraph,
    object: CUuserObject,
    count: c_uint,
    flags: c_uint,
) -> c_int {
    entry(|machine| {
        check(count)?;
        require(flags & !MOVE == 0, code::INVALID_VALUE)?;
        let graph = machine.graph(graph)?;
        let mut held = lock(&machine.user_objects.held);
        let found = match flags {
            MOVE => held.remove(object.addr(), count)?,
            _ => held.get(object.addr()).ok_or(code::INVALID_VALUE)?,
        };
        drop(held);
        lock(&graph.objects).add(object.addr(), found, count);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphReleaseUserObject(
    graph: CUgraph,
    object: CUuserObject,
    count: c_uint,
) -> c_int {
    entry(|machine| {
        check(count)?;
        let graph = machine.graph(graph)?;
        let released = lock(&graph.objects).remove(object.addr(), count)?;
        drop(released);
        Ok(())
    })
}
