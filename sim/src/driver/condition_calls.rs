//! The call that creates conditions of graphs.

use super::arguments::{put, require};
use super::entry::entry;
use super::sync::lock;
use crate::base::code;
use cudarc::driver::sys::{CUcontext, CUgraph, CUgraphConditionalHandle};
use std::ffi::{c_int, c_uint};

/// `CU_GRAPH_COND_ASSIGN_DEFAULT`.
const ASSIGN_DEFAULT: c_uint = 1;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphConditionalHandleCreate(
    handle: *mut CUgraphConditionalHandle,
    graph: CUgraph,
    context: CUcontext,
    default: c_uint,
    flags: c_uint,
) -> c_int {
    entry(|machine| {
        require(!handle.is_null() && flags & !ASSIGN_DEFAULT == 0, code::INVALID_VALUE)?;
        let graph = machine.graph(graph)?;
        require(!context.is_null(), code::INVALID_CONTEXT)?;
        machine.context(context)?;
        let default = (flags == ASSIGN_DEFAULT).then_some(default);
        let made = machine.hardware.conditions.create(graph.root, default);
        put!(handle, made.handle)?;
        lock(&graph.conditions).push(made);
        Ok(())
    })
}
