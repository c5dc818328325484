//! Prototypes of calls that are newer than cudarc's (CUDA 12.9), as in NVIDIA's cuda.h. Only their
//! types are used.

#![allow(non_snake_case, non_camel_case_types, reason = "CUDA's own names")]

use cudarc::driver::sys::{
    self, CUdevResourceDesc, CUdevice, CUgraphExec, CUgraphNode, CUgreenCtx, CUresult,
};
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

/// Integers: drivers have more values than cudarc's enums, of which a value must not be another.
pub type CUdevice_attribute = c_int;
/// As above.
pub type CUdevResourceType = c_uint;

/// A resource of a device, as since CUDA 13.4: cudarc's has fewer fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUdevResource {
    /// [`RESOURCE_SM`] or another one; 0: no resource.
    pub kind: CUdevResourceType,
    /// The driver's own.
    _padding: [u8; 92],
    /// Of multiprocessors: their number, the smallest part, the multiple of parts, flags, locality
    /// domain. Of the configuration of work queues: device, concurrency, scope.
    pub words: [c_uint; 10],
    /// The next one of a list.
    _next: *mut c_void,
}

const _: () = assert!(size_of::<CUdevResource>() == size_of::<sys::CUdevResource>());

/// Multiprocessors.
pub const RESOURCE_SM: CUdevResourceType = 1;
/// The configuration of work queues. CUDA 13.1.
pub const RESOURCE_WORKQUEUE_CONFIG: CUdevResourceType = 1000;
/// The number of locality domains of a device. CUDA 13.4.
pub const ATTRIBUTE_LOCALITY_DOMAIN_COUNT: CUdevice_attribute = 149;
/// Flag of a resource and of a group: its multiprocessors are of one locality domain. CUDA 13.4.
pub const GROUP_LOCALITY_DOMAIN: c_uint = 2;

impl CUdevResource {
    /// No resource.
    pub const NONE: CUdevResource =
        CUdevResource { kind: 0, _padding: [0; 92], words: [0; 10], _next: std::ptr::null_mut() };

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the fields have no padding between or after them.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

/// What a group of multiprocessors of a split shall be. CUDA 13.1.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CU_DEV_SM_RESOURCE_GROUP_PARAMS {
    /// Number of multiprocessors; 0: as many as there are.
    pub count: c_uint,
    /// How many of them are scheduled together.
    pub coscheduled: c_uint,
    /// How many of them if possible.
    pub preferred_coscheduled: c_uint,
    /// Of the driver.
    pub flags: c_uint,
    /// The locality domain, with [`GROUP_LOCALITY_DOMAIN`].
    pub locality_domain: c_uint,
    /// Zero.
    pub reserved: [c_uint; 11],
}

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
    cuDevSmResourceSplit(
        result: *mut CUdevResource, count: c_uint, input: *const CUdevResource,
        remainder: *mut CUdevResource, flags: c_uint,
        groups: *mut CU_DEV_SM_RESOURCE_GROUP_PARAMS);
    // With enums and structures that newer drivers extend.
    cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    cuDeviceGetDevResource(
        device: CUdevice, resource: *mut CUdevResource, kind: CUdevResourceType);
    cuGreenCtxGetDevResource(
        green: CUgreenCtx, resource: *mut CUdevResource, kind: CUdevResourceType);
    cuDevSmResourceSplitByCount(
        result: *mut CUdevResource, count: *mut c_uint, input: *const CUdevResource,
        remainder: *mut CUdevResource, flags: c_uint, minimum: c_uint);
    cuDevResourceGenerateDesc(
        descriptor: *mut CUdevResourceDesc, resources: *mut CUdevResource, count: c_uint);
}
