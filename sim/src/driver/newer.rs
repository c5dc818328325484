//! Prototypes of calls that are newer than cudarc's (CUDA 12.9), as in NVIDIA's cuda.h. Only their
//! types are used.

use cudarc::driver::sys::{CUgraph, CUgraphExec, CUgraphNode, CUresult};
use std::ffi::{c_uint, c_ulonglong};

macro_rules! prototypes {
    ($($name:ident($($parameter:ident: $ty:ty),*);)*) => {
        $(#[allow(non_snake_case, reason = "CUDA's own names")]
        pub(super) unsafe fn $name($(_: $ty),*) -> CUresult {
            CUresult::CUDA_ERROR_NOT_SUPPORTED
        })*
    };
}

prototypes! {
    // CUDA 13.1
    cuGraphNodeGetContainingGraph(node: CUgraphNode, graph: *mut CUgraph);
    cuGraphNodeGetLocalId(node: CUgraphNode, id: *mut c_uint);
    cuGraphNodeGetToolsId(node: CUgraphNode, id: *mut c_ulonglong);
    cuGraphGetId(graph: CUgraph, id: *mut c_uint);
    cuGraphExecGetId(exec: CUgraphExec, id: *mut c_uint);
}
