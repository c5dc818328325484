//! Prototypes of calls that are newer than cudarc's (CUDA 12.9), as in NVIDIA's cuda.h. Only their
//! types are used.

use cudarc::driver::sys::{
    CUdevResource, CUdevResourceType, CUgraph, CUgraphExec, CUgraphNode, CUgreenCtx, CUresult,
    CUstream,
};
use std::ffi::{c_uint, c_ulonglong};

/// What the host wants of a group of multiprocessors.
#[allow(non_snake_case, non_camel_case_types, reason = "CUDA's own names")]
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct CU_DEV_SM_RESOURCE_GROUP_PARAMS {
    pub(super) smCount: c_uint,
    pub(super) coscheduledSmCount: c_uint,
    pub(super) preferredCoscheduledSmCount: c_uint,
    pub(super) flags: c_uint,
    pub(super) localityDomainId: c_uint,
    pub(super) reserved: [c_uint; 11],
}

macro_rules! prototypes {
    ($($name:ident($($parameter:ident: $ty:ty),*);)*) => {
        $(#[allow(non_snake_case, reason = "CUDA's own names")]
        pub(super) unsafe fn $name($(_: $ty),*) -> CUresult {
            CUresult::CUDA_ERROR_NOT_SUPPORTED
        })*
    };
}

prototypes! {
    // CUDA 12.9, of later headers
    cuGreenCtxGetId(green: CUgreenCtx, id: *mut c_ulonglong);
    // CUDA 13.1
    cuGraphNodeGetContainingGraph(node: CUgraphNode, graph: *mut CUgraph);
    cuGraphNodeGetLocalId(node: CUgraphNode, id: *mut c_uint);
    cuGraphNodeGetToolsId(node: CUgraphNode, id: *mut c_ulonglong);
    cuGraphGetId(graph: CUgraph, id: *mut c_uint);
    cuGraphExecGetId(exec: CUgraphExec, id: *mut c_uint);
    cuDevSmResourceSplit(
        result: *mut CUdevResource, groups: c_uint, input: *const CUdevResource,
        remainder: *mut CUdevResource, flags: c_uint,
        parameters: *mut CU_DEV_SM_RESOURCE_GROUP_PARAMS);
    cuStreamGetDevResource(
        stream: CUstream, resource: *mut CUdevResource, kind: CUdevResourceType);
}
