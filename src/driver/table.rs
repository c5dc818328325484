//! The table of driver calls: every call that the library makes, with the driver's own signature.
//!
//! A line is `name = symbol @ level (parameters)`. `name` is looked up by cuGetProcAddress_v2 at
//! `level`: the CUDA version that introduced this signature, if later versions changed it; else
//! 12.9. `symbol` is looked up by dlsym, and is the name of cudarc's prototype, or of that in
//! [`newer`], which is compared at compile time.

use super::newer::{
    CU_DEV_SM_RESOURCE_GROUP_PARAMS, CUdevResource, CUdevResourceType, CUdevice_attribute,
};
use super::{CudaResult, Driver, inject, newer};
use crate::base::{progress, thread, waiting};
use crate::driver::sync_debug;
use cudarc::driver::sys;
use cudarc::driver::sys::*;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};
use std::ptr::null_mut;

/// The level of symbols without a level in the table.
pub const LEVEL: i32 = 12090;

macro_rules! level {
    () => {
        LEVEL
    };
    ($level:literal) => {
        $level
    };
}

/// cudarc's prototypes, and ours in their place.
mod prototypes {
    pub use super::newer::{
        cuDevResourceGenerateDesc, cuDevSmResourceSplit, cuDevSmResourceSplitByCount,
        cuDeviceGetAttribute, cuDeviceGetDevResource, cuGraphExecGetId, cuGraphNodeGetToolsId,
        cuGreenCtxGetDevResource,
    };
    pub use super::sys::*;
}

macro_rules! driver_calls {
    ($($name:ident = $symbol:ident $(@ $level:literal)? ($($arg:ident: $ty:ty),*);)*) => {
        /// Function pointers with the driver's own signatures; a call that is absent is `None`.
        #[derive(Clone, Copy, Default)]
        #[allow(non_snake_case, reason = "CUDA's own names")]
        #[repr(C)]
        pub struct Table {
            $(#[doc = concat!("`", stringify!($name), "` of the CUDA driver API.")]
            pub $name: Option<unsafe extern "C" fn($($ty),*) -> c_int>,)*
        }

        /// The calls of the table, as indices of counters.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        #[allow(non_camel_case_types, reason = "CUDA's own names")]
        pub enum Call {
            $(#[doc = concat!("`", stringify!($name), "`.")] $name,)*
        }

        /// Names of the calls, in the order of [`Call`].
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];

        // The signatures equal the prototypes.
        $(const _: unsafe fn($($ty),*) -> CUresult = prototypes::$symbol;)*

        /// Symbols and levels of the calls, in the same order.
        const SYMBOLS: [(&str, i32); NAMES.len()] =
            [$((stringify!($symbol), level!($($level)?))),*];

        #[allow(non_snake_case, reason = "CUDA's own names")]
        #[allow(clippy::too_many_arguments, reason = "CUDA's own signatures")]
        impl Driver {
            $(#[doc = concat!("Calls `", stringify!($name), "`, counted; a fault may be injected.")]
            ///
            /// # Safety
            /// Pointers and handles must be what the CUDA driver API requires of this call.
            // Inlined, they make the library 28 KB larger.
            #[inline(never)]
            pub unsafe fn $name(&self, $($arg: $ty),*) -> CudaResult {
                let Some(function) = self.table.$name else {
                    return Err(super::CudaError::missing(stringify!($name)));
                };
                #[cfg(debug_assertions)]
                crate::driver::lock_rules::check(Call::$name);
                self.count_call(Call::$name);
                if const { sync_debug::waits(Call::$name) } {
                    // The driver may not detect this: it could wait for the very function that
                    // makes the call.
                    if thread::is_in_callback() {
                        let code = super::code::NOT_PERMITTED;
                        return Err(super::CudaError { call: stringify!($name), code });
                    }
                    if sync_debug::is_on() {
                        sync_debug::check_call(Call::$name, stringify!($name))?;
                    }
                }
                let call = || {
                    if inject::armed() {
                        let arguments = [$((stringify!($arg), super::word(&$arg))),*];
                        if let Some(code) = inject::take(self, Call::$name, &arguments) {
                            return super::CudaError::check(stringify!($name), code);
                        }
                    }
                    #[cfg(any(test, feature = "host_faults"))]
                    let _in_driver = crate::base::host_faults::in_driver();
                    // SAFETY: the caller's promise.
                    let code = unsafe { function($($arg),*) };
                    if const { super::shows_completion(Call::$name) }
                        && code == super::code::SUCCESS
                    {
                        progress::notify();
                    }
                    super::CudaError::check(stringify!($name), code)
                };
                // Not an Option, which would be kept and checked for the other calls too.
                if const { super::waits(Call::$name) } {
                    let _waiting = waiting::begin();
                    call()
                } else {
                    call()
                }
            })*
        }
    };
}

impl Table {
    /// The address of a call, by its index in [`NAMES`].
    pub fn address(&self, index: usize) -> Option<*mut c_void> {
        let addresses = Addresses { table: *self };
        // SAFETY: both fields are as many pointers.
        let addresses = unsafe { addresses.pointers };
        addresses.get(index).copied().filter(|address| !address.is_null())
    }

    /// Fills the table: `resolve(name, symbol, level)` returns an address, or NULL.
    pub fn fill(mut resolve: impl FnMut(&str, &str, i32) -> *mut c_void) -> Table {
        let mut pointers = [null_mut(); NAMES.len()];
        for (pointer, (name, (symbol, level))) in pointers.iter_mut().zip(NAMES.iter().zip(SYMBOLS))
        {
            *pointer = resolve(name, symbol, level);
        }
        // SAFETY: the driver's symbols have the signatures of the fields, and NULL is `None`.
        unsafe { Addresses { pointers }.table }
    }
}

/// The pointers of a table, with their signatures and without.
#[repr(C)]
union Addresses {
    table: Table,
    pointers: [*mut c_void; NAMES.len()],
}

driver_calls! {
    // Devices and contexts
    cuInit = cuInit(flags: c_uint);
    cuDriverGetVersion = cuDriverGetVersion(version: *mut c_int);
    cuDeviceGetCount = cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet = cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetName = cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    cuDeviceGetUuid = cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
    cuDeviceTotalMem = cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    cuDeviceGetAttribute = cuDeviceGetAttribute(
        value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    cuDevicePrimaryCtxRetain = cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuDevicePrimaryCtxRelease = cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    cuDevicePrimaryCtxReset = cuDevicePrimaryCtxReset_v2(device: CUdevice);
    cuDevicePrimaryCtxGetState = cuDevicePrimaryCtxGetState(
        device: CUdevice, flags: *mut c_uint, active: *mut c_int);
    cuDeviceCanAccessPeer = cuDeviceCanAccessPeer(
        possible: *mut c_int, device: CUdevice, peer: CUdevice);
    cuCtxEnablePeerAccess = cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);
    cuCtxGetCurrent = cuCtxGetCurrent(context: *mut CUcontext);
    cuCtxSetCurrent = cuCtxSetCurrent(context: CUcontext);
    cuCtxPushCurrent = cuCtxPushCurrent_v2(context: CUcontext);
    cuCtxPopCurrent = cuCtxPopCurrent_v2(context: *mut CUcontext);
    cuCtxGetDevice = cuCtxGetDevice(device: *mut CUdevice);
    cuCtxSynchronize = cuCtxSynchronize();
    cuCtxGetStreamPriorityRange = cuCtxGetStreamPriorityRange(
        least: *mut c_int, greatest: *mut c_int);

    // Green contexts
    cuDeviceGetDevResource = cuDeviceGetDevResource(
        device: CUdevice, resource: *mut CUdevResource, kind: CUdevResourceType);
    cuDevSmResourceSplitByCount = cuDevSmResourceSplitByCount(
        result: *mut CUdevResource, count: *mut c_uint, input: *const CUdevResource,
        remainder: *mut CUdevResource, flags: c_uint, minimum: c_uint);
    cuDevSmResourceSplit = cuDevSmResourceSplit @ 13010 (
        result: *mut CUdevResource, count: c_uint, input: *const CUdevResource,
        remainder: *mut CUdevResource, flags: c_uint,
        groups: *mut CU_DEV_SM_RESOURCE_GROUP_PARAMS);
    cuDevResourceGenerateDesc = cuDevResourceGenerateDesc(
        descriptor: *mut CUdevResourceDesc, resources: *mut CUdevResource, count: c_uint);
    cuGreenCtxCreate = cuGreenCtxCreate(
        green: *mut CUgreenCtx, descriptor: CUdevResourceDesc, device: CUdevice, flags: c_uint);
    cuGreenCtxDestroy = cuGreenCtxDestroy(green: CUgreenCtx);
    cuGreenCtxGetDevResource = cuGreenCtxGetDevResource(
        green: CUgreenCtx, resource: *mut CUdevResource, kind: CUdevResourceType);
    cuGreenCtxStreamCreate = cuGreenCtxStreamCreate(
        stream: *mut CUstream, green: CUgreenCtx, flags: c_uint, priority: c_int);
    cuCtxFromGreenCtx = cuCtxFromGreenCtx(context: *mut CUcontext, green: CUgreenCtx);
    cuStreamGetGreenCtx = cuStreamGetGreenCtx(stream: CUstream, green: *mut CUgreenCtx);

    // Streams
    cuStreamCreateWithPriority = cuStreamCreateWithPriority(
        stream: *mut CUstream, flags: c_uint, priority: c_int);
    cuStreamDestroy = cuStreamDestroy_v2(stream: CUstream);
    cuStreamQuery = cuStreamQuery(stream: CUstream);
    cuStreamSynchronize = cuStreamSynchronize(stream: CUstream);
    cuStreamWaitEvent = cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    cuStreamGetPriority = cuStreamGetPriority(stream: CUstream, priority: *mut c_int);
    cuStreamGetFlags = cuStreamGetFlags(stream: CUstream, flags: *mut c_uint);
    cuStreamGetCtx = cuStreamGetCtx @ 9020 (stream: CUstream, context: *mut CUcontext);
    cuStreamGetId = cuStreamGetId(stream: CUstream, id: *mut c_ulonglong);
    cuLaunchHostFunc = cuLaunchHostFunc(
        stream: CUstream, function: CUhostFn, user_data: *mut c_void);
    cuStreamIsCapturing = cuStreamIsCapturing(
        stream: CUstream, status: *mut CUstreamCaptureStatus);
    cuStreamGetCaptureInfo = cuStreamGetCaptureInfo_v2 @ 11030 (
        stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut cuuint64_t,
        graph: *mut CUgraph, dependencies: *mut *const CUgraphNode, count: *mut usize);
    cuThreadExchangeStreamCaptureMode = cuThreadExchangeStreamCaptureMode(
        mode: *mut CUstreamCaptureMode);
    cuStreamBeginCapture = cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
    cuStreamEndCapture = cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    cuStreamUpdateCaptureDependencies = cuStreamUpdateCaptureDependencies @ 11030 (
        stream: CUstream, nodes: *mut CUgraphNode, count: usize, flags: c_uint);

    // Graphs
    cuGraphDestroy = cuGraphDestroy(graph: CUgraph);
    cuGraphGetNodes = cuGraphGetNodes(
        graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize);
    cuGraphGetEdges = cuGraphGetEdges @ 10000 (
        graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, count: *mut usize);
    cuGraphGetEdges_v2 = cuGraphGetEdges_v2 @ 12030 (
        graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, data: *mut CUgraphEdgeData,
        count: *mut usize);
    cuGraphGetRootNodes = cuGraphGetRootNodes(
        graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize);
    cuGraphNodeGetDependentNodes = cuGraphNodeGetDependentNodes @ 10000 (
        node: CUgraphNode, nodes: *mut CUgraphNode, count: *mut usize);
    cuGraphNodeGetDependentNodes_v2 = cuGraphNodeGetDependentNodes_v2 @ 12030 (
        node: CUgraphNode, nodes: *mut CUgraphNode, data: *mut CUgraphEdgeData,
        count: *mut usize);
    cuGraphNodeGetType = cuGraphNodeGetType(node: CUgraphNode, kind: *mut CUgraphNodeType);
    cuGraphNodeGetToolsId = cuGraphNodeGetToolsId @ 13010 (
        node: CUgraphNode, id: *mut c_ulonglong);
    cuGraphExecGetId = cuGraphExecGetId @ 13010 (exec: CUgraphExec, id: *mut c_uint);
    cuGraphKernelNodeGetParams = cuGraphKernelNodeGetParams_v2 @ 12000 (
        node: CUgraphNode, params: *mut CUDA_KERNEL_NODE_PARAMS);
    cuGraphMemcpyNodeGetParams = cuGraphMemcpyNodeGetParams(
        node: CUgraphNode, params: *mut CUDA_MEMCPY3D);
    cuGraphMemsetNodeGetParams = cuGraphMemsetNodeGetParams(
        node: CUgraphNode, params: *mut CUDA_MEMSET_NODE_PARAMS);
    cuGraphHostNodeGetParams = cuGraphHostNodeGetParams(
        node: CUgraphNode, params: *mut CUDA_HOST_NODE_PARAMS);
    cuGraphEventRecordNodeGetEvent = cuGraphEventRecordNodeGetEvent(
        node: CUgraphNode, event: *mut CUevent);
    cuGraphEventWaitNodeGetEvent = cuGraphEventWaitNodeGetEvent(
        node: CUgraphNode, event: *mut CUevent);
    cuGraphMemAllocNodeGetParams = cuGraphMemAllocNodeGetParams(
        node: CUgraphNode, params: *mut CUDA_MEM_ALLOC_NODE_PARAMS);
    cuGraphMemFreeNodeGetParams = cuGraphMemFreeNodeGetParams(
        node: CUgraphNode, ptr: *mut CUdeviceptr);
    cuGraphAddChildGraphNode = cuGraphAddChildGraphNode(
        node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize,
        child: CUgraph);
    cuGraphConditionalHandleCreate = cuGraphConditionalHandleCreate @ 12030 (
        handle: *mut CUgraphConditionalHandle, graph: CUgraph, context: CUcontext,
        default: c_uint, flags: c_uint);
    cuGraphAddNode = cuGraphAddNode_v2 @ 12030 (
        node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
        data: *const CUgraphEdgeData, count: usize, params: *mut CUgraphNodeParams);
    cuGraphChildGraphNodeGetGraph = cuGraphChildGraphNodeGetGraph(
        node: CUgraphNode, graph: *mut CUgraph);
    cuGraphInstantiateWithFlags = cuGraphInstantiateWithFlags(
        exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
    cuGraphExecUpdate = cuGraphExecUpdate_v2(
        exec: CUgraphExec, graph: CUgraph, info: *mut CUgraphExecUpdateResultInfo);
    cuGraphLaunch = cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
    cuGraphExecDestroy = cuGraphExecDestroy(exec: CUgraphExec);
    cuGraphDebugDotPrint = cuGraphDebugDotPrint(
        graph: CUgraph, path: *const c_char, flags: c_uint);

    // Events
    cuEventCreate = cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventDestroy = cuEventDestroy_v2(event: CUevent);
    cuEventRecord = cuEventRecord(event: CUevent, stream: CUstream);
    cuEventRecordWithFlags = cuEventRecordWithFlags(
        event: CUevent, stream: CUstream, flags: c_uint);
    cuEventQuery = cuEventQuery(event: CUevent);
    cuEventSynchronize = cuEventSynchronize(event: CUevent);
    cuEventElapsedTime = cuEventElapsedTime(
        milliseconds: *mut f32, start: CUevent, end: CUevent);

    // Memory
    cuMemGetInfo = cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemAlloc = cuMemAlloc_v2(ptr: *mut CUdeviceptr, bytes: usize);
    cuMemFree = cuMemFree_v2(ptr: CUdeviceptr);
    cuMemAllocManaged = cuMemAllocManaged(ptr: *mut CUdeviceptr, bytes: usize, flags: c_uint);
    cuMemAdvise = cuMemAdvise @ 8000 (
        ptr: CUdeviceptr, bytes: usize, advice: CUmem_advise, device: CUdevice);
    cuMemPrefetchAsync = cuMemPrefetchAsync @ 8000 (
        ptr: CUdeviceptr, bytes: usize, device: CUdevice, stream: CUstream);
    cuStreamAttachMemAsync = cuStreamAttachMemAsync(
        stream: CUstream, ptr: CUdeviceptr, bytes: usize, flags: c_uint);
    cuMemRangeGetAttribute = cuMemRangeGetAttribute(
        data: *mut c_void, size: usize, attribute: CUmem_range_attribute, ptr: CUdeviceptr,
        bytes: usize);
    cuMemHostAlloc = cuMemHostAlloc(ptr: *mut *mut c_void, bytes: usize, flags: c_uint);
    cuMemFreeHost = cuMemFreeHost(ptr: *mut c_void);
    cuMemHostRegister = cuMemHostRegister_v2(ptr: *mut c_void, bytes: usize, flags: c_uint);
    cuMemHostUnregister = cuMemHostUnregister(ptr: *mut c_void);
    cuPointerGetAttribute = cuPointerGetAttribute(
        data: *mut c_void, attribute: CUpointer_attribute, ptr: CUdeviceptr);
    cuMemcpyAsync = cuMemcpyAsync(
        dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemcpyPeerAsync = cuMemcpyPeerAsync(
        dst: CUdeviceptr, dst_context: CUcontext, src: CUdeviceptr, src_context: CUcontext,
        bytes: usize, stream: CUstream);
    cuMemcpy2DAsync = cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream);
    cuMemcpy3DPeerAsync = cuMemcpy3DPeerAsync(
        copy: *const CUDA_MEMCPY3D_PEER, stream: CUstream);
    cuMemsetD8Async = cuMemsetD8Async(
        ptr: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream);
    cuMemsetD16Async = cuMemsetD16Async(
        ptr: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream);
    cuMemsetD32Async = cuMemsetD32Async(
        ptr: CUdeviceptr, value: c_uint, count: usize, stream: CUstream);

    // Virtual memory
    cuMemGetAllocationGranularity = cuMemGetAllocationGranularity(
        granularity: *mut usize, properties: *const CUmemAllocationProp,
        option: CUmemAllocationGranularity_flags);
    cuMemAddressReserve = cuMemAddressReserve(
        ptr: *mut CUdeviceptr, bytes: usize, alignment: usize, address: CUdeviceptr,
        flags: c_ulonglong);
    cuMemAddressFree = cuMemAddressFree(ptr: CUdeviceptr, bytes: usize);
    cuMemCreate = cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle, bytes: usize,
        properties: *const CUmemAllocationProp, flags: c_ulonglong);
    cuMemRelease = cuMemRelease(handle: CUmemGenericAllocationHandle);
    cuMemGetAllocationPropertiesFromHandle = cuMemGetAllocationPropertiesFromHandle(
        properties: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle);
    cuMemMap = cuMemMap(
        ptr: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle,
        flags: c_ulonglong);
    cuMemUnmap = cuMemUnmap(ptr: CUdeviceptr, bytes: usize);
    cuMemSetAccess = cuMemSetAccess(
        ptr: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize);
    cuMemGetAccess = cuMemGetAccess(
        flags: *mut c_ulonglong, location: *const CUmemLocation, ptr: CUdeviceptr);

    // Sharing with other processes
    cuIpcGetMemHandle = cuIpcGetMemHandle(handle: *mut CUipcMemHandle, ptr: CUdeviceptr);
    cuIpcOpenMemHandle = cuIpcOpenMemHandle_v2(
        ptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint);
    cuIpcCloseMemHandle = cuIpcCloseMemHandle(ptr: CUdeviceptr);
    cuIpcGetEventHandle = cuIpcGetEventHandle(handle: *mut CUipcEventHandle, event: CUevent);
    cuIpcOpenEventHandle = cuIpcOpenEventHandle(event: *mut CUevent, handle: CUipcEventHandle);
    cuMemExportToShareableHandle = cuMemExportToShareableHandle(
        shareable: *mut c_void, handle: CUmemGenericAllocationHandle,
        kind: CUmemAllocationHandleType, flags: c_ulonglong);
    cuMemImportFromShareableHandle = cuMemImportFromShareableHandle(
        handle: *mut CUmemGenericAllocationHandle, shareable: *mut c_void,
        kind: CUmemAllocationHandleType);

    // Stream-ordered pools
    cuDeviceGetDefaultMemPool = cuDeviceGetDefaultMemPool(
        pool: *mut CUmemoryPool, device: CUdevice);
    cuMemPoolCreate = cuMemPoolCreate(
        pool: *mut CUmemoryPool, properties: *const CUmemPoolProps);
    cuMemPoolDestroy = cuMemPoolDestroy(pool: CUmemoryPool);
    cuMemPoolSetAttribute = cuMemPoolSetAttribute(
        pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
    cuMemPoolGetAttribute = cuMemPoolGetAttribute(
        pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
    cuMemPoolSetAccess = cuMemPoolSetAccess(
        pool: CUmemoryPool, access: *const CUmemAccessDesc, count: usize);
    cuMemPoolTrimTo = cuMemPoolTrimTo(pool: CUmemoryPool, bytes_to_keep: usize);
    cuMemAllocAsync = cuMemAllocAsync(ptr: *mut CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemAllocFromPoolAsync = cuMemAllocFromPoolAsync(
        ptr: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream);
    cuMemFreeAsync = cuMemFreeAsync(ptr: CUdeviceptr, stream: CUstream);

    // Profilers
    cuProfilerStart = cuProfilerStart();
    cuProfilerStop = cuProfilerStop();

    // Modules and kernels
    cuModuleLoadData = cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
    cuModuleUnload = cuModuleUnload(module: CUmodule);
    cuLinkCreate = cuLinkCreate_v2(
        count: c_uint, options: *mut CUjit_option, values: *mut *mut c_void,
        state: *mut CUlinkState);
    cuLinkAddData = cuLinkAddData_v2(
        state: CUlinkState, kind: CUjitInputType, data: *mut c_void, size: usize,
        name: *const c_char, count: c_uint, options: *mut CUjit_option,
        values: *mut *mut c_void);
    cuLinkComplete = cuLinkComplete(
        state: CUlinkState, image: *mut *mut c_void, size: *mut usize);
    cuLinkDestroy = cuLinkDestroy(state: CUlinkState);
    cuModuleGetFunction = cuModuleGetFunction(
        function: *mut CUfunction, module: CUmodule, name: *const c_char);
    cuFuncGetAttribute = cuFuncGetAttribute(
        value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction);
    cuFuncSetAttribute = cuFuncSetAttribute(
        function: CUfunction, attribute: CUfunction_attribute, value: c_int);
    cuFuncGetName = cuFuncGetName(name: *mut *const c_char, function: CUfunction);
    cuKernelGetFunction = cuKernelGetFunction(function: *mut CUfunction, kernel: CUkernel);
    cuFuncGetParamInfo = cuFuncGetParamInfo(
        function: CUfunction, index: usize, offset: *mut usize, size: *mut usize);
    cuOccupancyMaxActiveBlocksPerMultiprocessor = cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int, function: CUfunction, block_size: c_int, shared_bytes: usize);
    cuOccupancyMaxPotentialBlockSize = cuOccupancyMaxPotentialBlockSize(
        grid_size: *mut c_int, block_size: *mut c_int, function: CUfunction,
        shared_of: CUoccupancyB2DSize, shared_bytes: usize, limit: c_int);
    cuOccupancyMaxPotentialClusterSize = cuOccupancyMaxPotentialClusterSize(
        size: *mut c_int, function: CUfunction, config: *const CUlaunchConfig);
    cuOccupancyMaxActiveClusters = cuOccupancyMaxActiveClusters(
        clusters: *mut c_int, function: CUfunction, config: *const CUlaunchConfig);
    cuLaunchKernel = cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint,
        stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void);
    cuLaunchKernelEx = cuLaunchKernelEx(
        config: *const CUlaunchConfig, function: CUfunction, parameters: *mut *mut c_void,
        extra: *mut *mut c_void);
}
