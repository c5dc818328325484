//! The table of driver calls, filled with the simulated machine's functions.

use super::{
    capture_calls, context_calls, device_calls, event_calls, exec_calls, graph_calls, ipc_calls,
    memory_calls, module_calls, pointer_calls, pool_calls, stream_calls, transfer_calls,
    virtual_memory_calls,
};
use crate::driver::{NAMES, Table};
use std::ffi::{CStr, c_char, c_void};

/// Every call of the table.
pub fn table() -> Table {
    Table {
        cuInit: Some(device_calls::init),
        cuDriverGetVersion: Some(device_calls::driver_version),
        cuDeviceGetCount: Some(device_calls::count),
        cuDeviceGet: Some(device_calls::get_device),
        cuDeviceGetName: Some(device_calls::name),
        cuDeviceGetUuid: Some(device_calls::uuid),
        cuDeviceTotalMem: Some(device_calls::total_memory),
        cuDeviceGetAttribute: Some(device_calls::attribute),
        cuDevicePrimaryCtxRetain: Some(context_calls::retain),
        cuDevicePrimaryCtxRelease: Some(context_calls::release),
        cuDevicePrimaryCtxReset: Some(context_calls::reset),
        cuDevicePrimaryCtxGetState: Some(context_calls::state),
        cuDeviceCanAccessPeer: Some(device_calls::can_access_peer),
        cuCtxEnablePeerAccess: Some(context_calls::enable_peer_access),
        cuCtxGetCurrent: Some(context_calls::get_current),
        cuCtxSetCurrent: Some(context_calls::set_current),
        cuCtxPushCurrent: Some(context_calls::push_current),
        cuCtxPopCurrent: Some(context_calls::pop_current),
        cuCtxGetDevice: Some(context_calls::get_device),
        cuCtxSynchronize: Some(context_calls::synchronize),
        cuCtxGetStreamPriorityRange: Some(context_calls::priority_range),

        cuStreamCreateWithPriority: Some(stream_calls::create),
        cuStreamDestroy: Some(stream_calls::destroy),
        cuStreamQuery: Some(stream_calls::query),
        cuStreamSynchronize: Some(stream_calls::synchronize),
        cuStreamWaitEvent: Some(stream_calls::wait_event),
        cuStreamGetPriority: Some(stream_calls::get_priority),
        cuStreamGetFlags: Some(stream_calls::get_flags),
        cuStreamGetCtx: Some(stream_calls::get_context),
        cuStreamGetId: Some(stream_calls::get_id),
        cuLaunchHostFunc: Some(stream_calls::launch_host_function),
        cuStreamIsCapturing: Some(capture_calls::is_capturing),
        cuStreamGetCaptureInfo: Some(capture_calls::info),
        cuThreadExchangeStreamCaptureMode: Some(capture_calls::exchange_mode),
        cuStreamBeginCapture: Some(capture_calls::begin),
        cuStreamEndCapture: Some(capture_calls::end),

        cuGraphDestroy: Some(graph_calls::destroy),
        cuGraphGetNodes: Some(graph_calls::get_nodes),
        cuGraphGetEdges: Some(graph_calls::get_edges),
        cuGraphNodeGetType: Some(graph_calls::node_type),
        cuGraphInstantiateWithFlags: Some(exec_calls::instantiate),
        cuGraphExecUpdate: Some(graph_calls::update),
        cuGraphLaunch: Some(exec_calls::launch),
        cuGraphExecDestroy: Some(exec_calls::destroy),
        cuGraphDebugDotPrint: Some(graph_calls::print),

        cuEventCreate: Some(event_calls::create),
        cuEventDestroy: Some(event_calls::destroy),
        cuEventRecord: Some(event_calls::record),
        cuEventRecordWithFlags: Some(event_calls::record_with_flags),
        cuEventQuery: Some(event_calls::query),
        cuEventSynchronize: Some(event_calls::synchronize),
        cuEventElapsedTime: Some(event_calls::elapsed_time),

        cuMemGetInfo: Some(memory_calls::info),
        cuMemAlloc: Some(memory_calls::allocate),
        cuMemFree: Some(memory_calls::free),
        cuMemHostAlloc: Some(memory_calls::host_allocate),
        cuMemFreeHost: Some(memory_calls::host_free),
        cuMemHostRegister: Some(memory_calls::host_register),
        cuMemHostUnregister: Some(memory_calls::host_unregister),
        cuPointerGetAttribute: Some(pointer_calls::attribute),
        cuMemcpyAsync: Some(transfer_calls::copy_async),
        cuMemcpyPeerAsync: Some(transfer_calls::copy_peer_async),
        cuMemcpy2DAsync: Some(transfer_calls::copy_2d_async),
        cuMemcpy3DPeerAsync: Some(transfer_calls::copy_3d_peer_async),
        cuMemsetD8Async: Some(transfer_calls::set_8_async),
        cuMemsetD16Async: Some(transfer_calls::set_16_async),
        cuMemsetD32Async: Some(transfer_calls::set_32_async),

        cuMemGetAllocationGranularity: Some(virtual_memory_calls::granularity),
        cuMemAddressReserve: Some(virtual_memory_calls::reserve),
        cuMemAddressFree: Some(virtual_memory_calls::unreserve),
        cuMemCreate: Some(virtual_memory_calls::create),
        cuMemRelease: Some(virtual_memory_calls::release),
        cuMemMap: Some(virtual_memory_calls::map),
        cuMemUnmap: Some(virtual_memory_calls::unmap),
        cuMemSetAccess: Some(virtual_memory_calls::set_access),
        cuMemGetAccess: Some(virtual_memory_calls::get_access),

        cuIpcGetMemHandle: Some(ipc_calls::get_memory),
        cuIpcOpenMemHandle: Some(ipc_calls::open_memory),
        cuIpcCloseMemHandle: Some(ipc_calls::close_memory),
        cuIpcGetEventHandle: Some(ipc_calls::get_event),
        cuIpcOpenEventHandle: Some(ipc_calls::open_event),
        cuMemExportToShareableHandle: Some(ipc_calls::export),
        cuMemImportFromShareableHandle: Some(ipc_calls::import),

        cuDeviceGetDefaultMemPool: Some(pool_calls::get_default),
        cuMemPoolCreate: Some(pool_calls::create),
        cuMemPoolDestroy: Some(pool_calls::destroy),
        cuMemPoolSetAttribute: Some(pool_calls::set_attribute),
        cuMemPoolGetAttribute: Some(pool_calls::get_attribute),
        cuMemPoolSetAccess: Some(pool_calls::set_access),
        cuMemPoolTrimTo: Some(pool_calls::trim_to),
        cuMemAllocAsync: Some(pool_calls::allocate_async),
        cuMemAllocFromPoolAsync: Some(pool_calls::allocate_from_pool_async),
        cuMemFreeAsync: Some(pool_calls::free_async),

        cuProfilerStart: Some(context_calls::profiler),
        cuProfilerStop: Some(context_calls::profiler),

        cuModuleLoadData: Some(module_calls::load),
        cuModuleUnload: Some(module_calls::unload),
        cuModuleGetFunction: Some(module_calls::get_function),
        cuFuncGetAttribute: Some(module_calls::get_attribute),
        cuFuncSetAttribute: Some(module_calls::set_attribute),
        cuFuncGetParamInfo: Some(module_calls::parameter),
        cuOccupancyMaxActiveBlocksPerMultiprocessor: Some(module_calls::occupancy),
        cuLaunchKernel: Some(module_calls::launch),
    }
}

/// The address of a driver call by name; NULL if there is none. It serves tests that replace a
/// library which calls the driver directly.
///
/// # Safety
/// The name is NULL or NUL-terminated.
pub unsafe extern "C" fn function(name: *const c_char) -> *mut c_void {
    if name.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: not NULL, and NUL-terminated by the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let index = NAMES.iter().position(|known| known.as_bytes() == name);
    index.and_then(|index| table().address(index)).unwrap_or(std::ptr::null_mut())
}
