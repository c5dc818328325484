//! The table of driver calls, filled with the simulated machine's functions.

use super::{
    capture_calls, context, device, event, graph, graph_calls, ipc, memory_calls, module_calls,
    pointer, pool, replay, stream, transfer, virtual_memory,
};
use crate::driver::{NAMES, Table};
use std::ffi::{CStr, c_char, c_void};

/// Every call of the table.
pub fn table() -> Table {
    Table {
        cuInit: Some(device::init),
        cuDriverGetVersion: Some(device::driver_version),
        cuDeviceGetCount: Some(device::count),
        cuDeviceGet: Some(device::get_device),
        cuDeviceGetName: Some(device::name),
        cuDeviceGetUuid: Some(device::uuid),
        cuDeviceTotalMem: Some(device::total_memory),
        cuDeviceGetAttribute: Some(device::attribute),
        cuDevicePrimaryCtxRetain: Some(context::retain),
        cuDevicePrimaryCtxRelease: Some(context::release),
        cuDevicePrimaryCtxReset: Some(context::reset),
        cuDevicePrimaryCtxGetState: Some(context::state),
        cuDeviceCanAccessPeer: Some(device::can_access_peer),
        cuCtxEnablePeerAccess: Some(context::enable_peer_access),
        cuCtxGetCurrent: Some(context::get_current),
        cuCtxSetCurrent: Some(context::set_current),
        cuCtxPushCurrent: Some(context::push_current),
        cuCtxPopCurrent: Some(context::pop_current),
        cuCtxGetDevice: Some(context::get_device),
        cuCtxSynchronize: Some(context::synchronize),
        cuCtxGetStreamPriorityRange: Some(context::priority_range),

        cuStreamCreateWithPriority: Some(stream::create),
        cuStreamDestroy: Some(stream::destroy),
        cuStreamQuery: Some(stream::query),
        cuStreamSynchronize: Some(stream::synchronize),
        cuStreamWaitEvent: Some(stream::wait_event),
        cuStreamGetPriority: Some(stream::get_priority),
        cuStreamGetFlags: Some(stream::get_flags),
        cuStreamGetCtx: Some(stream::get_context),
        cuStreamGetId: Some(stream::get_id),
        cuLaunchHostFunc: Some(stream::launch_host_function),
        cuStreamIsCapturing: Some(capture_calls::is_capturing),
        cuStreamGetCaptureInfo: Some(capture_calls::info),
        cuThreadExchangeStreamCaptureMode: Some(capture_calls::exchange_mode),
        cuStreamBeginCapture: Some(capture_calls::begin),
        cuStreamEndCapture: Some(capture_calls::end),

        cuGraphDestroy: Some(graph::destroy),
        cuGraphGetNodes: Some(graph::get_nodes),
        cuGraphGetEdges: Some(graph::get_edges),
        cuGraphNodeGetType: Some(graph::node_type),
        cuGraphInstantiateWithFlags: Some(replay::instantiate),
        cuGraphExecUpdate: Some(graph_calls::update),
        cuGraphLaunch: Some(replay::launch),
        cuGraphExecDestroy: Some(replay::destroy),
        cuGraphDebugDotPrint: Some(graph_calls::print),

        cuEventCreate: Some(event::create),
        cuEventDestroy: Some(event::destroy),
        cuEventRecord: Some(event::record),
        cuEventRecordWithFlags: Some(event::record_with_flags),
        cuEventQuery: Some(event::query),
        cuEventSynchronize: Some(event::synchronize),
        cuEventElapsedTime: Some(event::elapsed_time),

        cuMemGetInfo: Some(memory_calls::info),
        cuMemAlloc: Some(memory_calls::allocate),
        cuMemFree: Some(memory_calls::free),
        cuMemHostAlloc: Some(memory_calls::host_allocate),
        cuMemFreeHost: Some(memory_calls::host_free),
        cuMemHostRegister: Some(memory_calls::host_register),
        cuMemHostUnregister: Some(memory_calls::host_unregister),
        cuPointerGetAttribute: Some(pointer::attribute),
        cuMemcpyAsync: Some(transfer::copy_async),
        cuMemcpyPeerAsync: Some(transfer::copy_peer_async),
        cuMemcpy2DAsync: Some(transfer::copy_2d_async),
        cuMemcpy3DPeerAsync: Some(transfer::copy_3d_peer_async),
        cuMemsetD8Async: Some(transfer::set_8_async),
        cuMemsetD16Async: Some(transfer::set_16_async),
        cuMemsetD32Async: Some(transfer::set_32_async),

        cuMemGetAllocationGranularity: Some(virtual_memory::granularity),
        cuMemAddressReserve: Some(virtual_memory::reserve),
        cuMemAddressFree: Some(virtual_memory::unreserve),
        cuMemCreate: Some(virtual_memory::create),
        cuMemRelease: Some(virtual_memory::release),
        cuMemMap: Some(virtual_memory::map),
        cuMemUnmap: Some(virtual_memory::unmap),
        cuMemSetAccess: Some(virtual_memory::set_access),
        cuMemGetAccess: Some(virtual_memory::get_access),

        cuIpcGetMemHandle: Some(ipc::get_memory),
        cuIpcOpenMemHandle: Some(ipc::open_memory),
        cuIpcCloseMemHandle: Some(ipc::close_memory),
        cuIpcGetEventHandle: Some(ipc::get_event),
        cuIpcOpenEventHandle: Some(ipc::open_event),
        cuMemExportToShareableHandle: Some(ipc::export),
        cuMemImportFromShareableHandle: Some(ipc::import),

        cuDeviceGetDefaultMemPool: Some(pool::get_default),
        cuMemPoolCreate: Some(pool::create),
        cuMemPoolDestroy: Some(pool::destroy),
        cuMemPoolSetAttribute: Some(pool::set_attribute),
        cuMemPoolGetAttribute: Some(pool::get_attribute),
        cuMemPoolSetAccess: Some(pool::set_access),
        cuMemPoolTrimTo: Some(pool::trim_to),
        cuMemAllocAsync: Some(pool::allocate_async),
        cuMemAllocFromPoolAsync: Some(pool::allocate_from_pool_async),
        cuMemFreeAsync: Some(pool::free_async),

        cuProfilerStart: Some(context::profiler),
        cuProfilerStop: Some(context::profiler),

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
