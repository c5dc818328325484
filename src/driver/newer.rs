//! Prototypes of calls that are newer than cudarc's (CUDA 12.9), as in NVIDIA's cuda.h. Only their
//! types are used.

#![allow(non_snake_case, reason = "CUDA's own names")]

use cudarc::driver::sys::{CUgraphExec, CUgraphNode, CUresult};
use std::ffi::{c_uint, c_ulonglong};

macro_rules! prototypes {
    ($($name:ident($($parameter:ident: $ty:ty),*);)*) => {
        $(#[doc = concat!("The type of `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// Does nothing.
        pub unsafe fn $name($(_: $ty),*) -> CUresult {
            CUresult::CUDA_ERROR_NOT_SUPPORTED
        })*
    };
}

prototypes! {
    // CUDA 13.1
    cuGraphNodeGetToolsId(node: CUgraphNode, id: *mut c_ulonglong);
    cuGraphExecGetId(exec: CUgraphExec, id: *mut c_uint);
}
