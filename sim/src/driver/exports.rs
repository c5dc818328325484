//! The functions of the driver that the library exports, and the search for them by name.
//!
//! A function is in the file of its kind under its name in the library, which tells the version of
//! its signature: `cuMemAlloc_v2`. Programs find it by that name, or by its name in CUDA's
//! documentation and a version of CUDA (`cuGetProcAddress`).

use super::arguments::{put, require};
use super::device_calls::VERSION;
use super::entry::guard;
use super::per_thread_calls::FORMS;
use super::{
    attribute_calls, batch_calls, capture_calls, condition_calls, context_calls, copy_calls,
    device_calls, edge_calls, error_calls, event_calls, exec_calls, exec_node_calls, fill_calls,
    function_calls, graph_calls, graph_id_calls, graph_memory_calls, green_calls, ipc_calls,
    launch_calls, library_calls, link_calls, managed_calls, memory_calls, module_calls, node_calls,
    node_parameter_calls, occupancy_calls, own_context_calls, pointer_calls, pool_calls,
    resource_calls, setting_calls, stream_calls, transfer_calls, user_object_calls, value_calls,
    virtual_memory_calls,
};
use crate::base::code;
use cudarc::driver::sys::{CUdriverProcAddressQueryResult, CUuuid, cuuint64_t};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

/// A function that the library exports.
pub(super) struct Export {
    /// Its name in CUDA's documentation.
    pub(super) name: &'static str,
    /// The first version of CUDA that has the signature, 11.4 as 11040.
    pub(super) since: i32,
    /// Its name in the library.
    pub(super) symbol: &'static str,
    /// Its address.
    pub(super) address: fn() -> *mut c_void,
}

/// `module { name since = symbol(parameters); ... }`. A function with `parameter as number`
/// receives a value of an enum as a number, since programs may pass any.
/// that the function receives as a number, since programs may pass any.
macro_rules! exports {
    ($($module:tt {
        $($name:ident $since:literal = $symbol:ident(
            $($parameter:ident $(as $number:ty)?),*
        );)*
    })*) => {
        /// All of them.
        pub(super) const EXPORTS: &[Export] = &[$($(Export {
            name: stringify!($name),
            since: $since,
            symbol: stringify!($symbol),
            address: || $module::$symbol as *mut c_void,
        },)*)*];

        // The parameters have the types of CUDA's header. Nothing is called.
        $($(const _: () = {
            let _ = |$($parameter),*| {
                // SAFETY: not called.
                let _ = unsafe { prototypes::$symbol($($parameter),*) };
                // SAFETY: not called.
                let _ = unsafe { $module::$symbol($($parameter $(as $number)?),*) };
            };
        };)*)*
    };
}

/// cudarc's prototypes and ours.
mod prototypes {
    pub(super) use super::super::newer::*;
    pub(super) use cudarc::driver::sys::*;
}

exports! {
    self {
        cuGetProcAddress 12000 = cuGetProcAddress_v2(symbol, function, version, flags, status);
        cuGetExportTable 3000 = cuGetExportTable(table, id);
    }
    device_calls {
        cuInit 2000 = cuInit(flags);
        cuDriverGetVersion 2020 = cuDriverGetVersion(version);
        cuDeviceGetCount 2000 = cuDeviceGetCount(count);
        cuDeviceGet 2000 = cuDeviceGet(device, ordinal);
        cuDeviceGetName 2000 = cuDeviceGetName(name, len, device);
        cuDeviceGetUuid 9020 = cuDeviceGetUuid(uuid, device);
        cuDeviceGetUuid 11040 = cuDeviceGetUuid_v2(uuid, device);
        cuDeviceTotalMem 3020 = cuDeviceTotalMem_v2(bytes, device);
        cuDeviceGetAttribute 2000 = cuDeviceGetAttribute(value, attribute as c_uint, device);
        cuDeviceGetPCIBusId 4010 = cuDeviceGetPCIBusId(text, len, device);
        cuDeviceGetByPCIBusId 4010 = cuDeviceGetByPCIBusId(device, id);
        cuDeviceGetLuid 10000 = cuDeviceGetLuid(luid, node_mask, device);
        cuDeviceGetP2PAttribute 8000 = cuDeviceGetP2PAttribute(
            value, attribute as c_uint, device, peer);
        cuDeviceComputeCapability 2000 = cuDeviceComputeCapability(major, minor, device);
        cuDeviceGetProperties 2000 = cuDeviceGetProperties(properties, device);
        cuDeviceGetExecAffinitySupport 11040 = cuDeviceGetExecAffinitySupport(
            supported, kind as c_uint, device);
        cuDeviceCanAccessPeer 4000 = cuDeviceCanAccessPeer(possible, device, peer);
    }
    error_calls {
        cuGetErrorName 6000 = cuGetErrorName(status as c_uint, text);
        cuGetErrorString 6000 = cuGetErrorString(status as c_uint, text);
    }
    context_calls {
        cuDevicePrimaryCtxRetain 7000 = cuDevicePrimaryCtxRetain(context, device);
        cuDevicePrimaryCtxRelease 11000 = cuDevicePrimaryCtxRelease_v2(device);
        cuDevicePrimaryCtxReset 11000 = cuDevicePrimaryCtxReset_v2(device);
        cuDevicePrimaryCtxGetState 7000 = cuDevicePrimaryCtxGetState(device, flags, active);
        cuDevicePrimaryCtxSetFlags 11000 = cuDevicePrimaryCtxSetFlags_v2(device, flags);
        cuCtxDisablePeerAccess 4000 = cuCtxDisablePeerAccess(peer);
        cuCtxEnablePeerAccess 4000 = cuCtxEnablePeerAccess(peer, flags);
        cuCtxGetCurrent 4000 = cuCtxGetCurrent(context);
        cuCtxSetCurrent 4000 = cuCtxSetCurrent(context);
        cuCtxPushCurrent 4000 = cuCtxPushCurrent_v2(context);
        cuCtxPopCurrent 4000 = cuCtxPopCurrent_v2(context);
        cuCtxGetDevice 2000 = cuCtxGetDevice(device);
        cuCtxSynchronize 2000 = cuCtxSynchronize();
        cuCtxGetStreamPriorityRange 5050 = cuCtxGetStreamPriorityRange(least, greatest);
        cuProfilerStart 4000 = cuProfilerStart();
        cuProfilerStop 4000 = cuProfilerStop();
    }
    own_context_calls {
        cuCtxCreate 3020 = cuCtxCreate_v2(context, flags, device);
        cuCtxCreate 11040 = cuCtxCreate_v3(context, affinities, count, flags, device);
        cuCtxCreate 12050 = cuCtxCreate_v4(context, parameters, flags, device);
        cuCtxDestroy 4000 = cuCtxDestroy_v2(context);
        cuCtxAttach 2000 = cuCtxAttach(context, flags);
        cuCtxDetach 2000 = cuCtxDetach(context);
    }
    green_calls {
        cuGreenCtxCreate 12040 = cuGreenCtxCreate(green, description, device, flags);
        cuGreenCtxDestroy 12040 = cuGreenCtxDestroy(green);
        cuCtxFromGreenCtx 12040 = cuCtxFromGreenCtx(context, green);
        cuGreenCtxGetId 12090 = cuGreenCtxGetId(green, id);
        cuGreenCtxStreamCreate 12050 = cuGreenCtxStreamCreate(stream, green, flags, priority);
        cuStreamGetGreenCtx 12040 = cuStreamGetGreenCtx(stream, green);
        cuGreenCtxRecordEvent 12040 = cuGreenCtxRecordEvent(green, event);
        cuGreenCtxWaitEvent 12040 = cuGreenCtxWaitEvent(green, event);
    }
    resource_calls {
        cuDeviceGetDevResource 12040 = cuDeviceGetDevResource(device, resource, kind as c_uint);
        cuCtxGetDevResource 12040 = cuCtxGetDevResource(context, resource, kind as c_uint);
        cuGreenCtxGetDevResource 12040 = cuGreenCtxGetDevResource(green, resource, kind as c_uint);
        cuStreamGetDevResource 13010 = cuStreamGetDevResource(stream, resource, kind as c_uint);
        cuDevSmResourceSplitByCount 12040 = cuDevSmResourceSplitByCount(
            result, groups, input, remainder, flags, minimum);
        cuDevSmResourceSplit 13010 = cuDevSmResourceSplit(
            result, number, input, remainder, flags, parameters);
        cuDevResourceGenerateDesc 12040 = cuDevResourceGenerateDesc(
            description, resources, number);
    }
    setting_calls {
        cuCtxGetApiVersion 3020 = cuCtxGetApiVersion(context, version);
        cuCtxGetId 12000 = cuCtxGetId(context, id);
        cuCtxGetFlags 7000 = cuCtxGetFlags(flags);
        cuCtxSetFlags 12010 = cuCtxSetFlags(flags);
        cuCtxGetLimit 3010 = cuCtxGetLimit(value, limit as c_uint);
        cuCtxSetLimit 3010 = cuCtxSetLimit(limit as c_uint, value);
        cuCtxGetCacheConfig 3020 = cuCtxGetCacheConfig(config as *mut c_uint);
        cuCtxSetCacheConfig 3020 = cuCtxSetCacheConfig(config as c_uint);
        cuCtxGetSharedMemConfig 4020 = cuCtxGetSharedMemConfig(config as *mut c_uint);
        cuCtxSetSharedMemConfig 4020 = cuCtxSetSharedMemConfig(config as c_uint);
        cuCtxResetPersistingL2Cache 11000 = cuCtxResetPersistingL2Cache();
    }
    stream_calls {
        cuStreamCreate 2000 = cuStreamCreate(stream, flags);
        cuStreamCreateWithPriority 5050 = cuStreamCreateWithPriority(stream, flags, priority);
        cuStreamDestroy 4000 = cuStreamDestroy_v2(stream);
        cuStreamQuery 2000 = cuStreamQuery(stream);
        cuStreamSynchronize 2000 = cuStreamSynchronize(stream);
        cuStreamWaitEvent 3020 = cuStreamWaitEvent(stream, event, flags);
        cuStreamGetPriority 5050 = cuStreamGetPriority(stream, priority);
        cuStreamGetFlags 5050 = cuStreamGetFlags(stream, flags);
        cuStreamGetCtx 9020 = cuStreamGetCtx(stream, context);
        cuStreamGetCtx 12050 = cuStreamGetCtx_v2(stream, context, green);
        cuStreamGetId 12000 = cuStreamGetId(stream, id);
        cuStreamGetDevice 12080 = cuStreamGetDevice(stream, device);
        cuStreamAddCallback 5000 = cuStreamAddCallback(stream, function, user_data, flags);
        cuLaunchHostFunc 10000 = cuLaunchHostFunc(stream, function, user_data);
    }
    value_calls {
        cuStreamWaitValue32 11070 = cuStreamWaitValue32_v2(stream, address, value, flags);
        cuStreamWriteValue32 11070 = cuStreamWriteValue32_v2(stream, address, value, flags);
        cuStreamWaitValue64 11070 = cuStreamWaitValue64_v2(stream, address, value, flags);
        cuStreamWriteValue64 11070 = cuStreamWriteValue64_v2(stream, address, value, flags);
        cuStreamBatchMemOp 11070 = cuStreamBatchMemOp_v2(stream, count, operations, flags);
    }
    attribute_calls {
        cuStreamGetAttribute 11000 = cuStreamGetAttribute(stream, attribute as c_uint, value);
        cuStreamSetAttribute 11000 = cuStreamSetAttribute(stream, attribute as c_uint, value);
        cuStreamCopyAttributes 11000 = cuStreamCopyAttributes(dst, src);
    }
    capture_calls {
        cuStreamIsCapturing 10000 = cuStreamIsCapturing(stream, status);
        cuStreamGetCaptureInfo 11030 = cuStreamGetCaptureInfo_v2(
            stream, status, id, graph, dependencies, count);
        cuStreamGetCaptureInfo 12030 = cuStreamGetCaptureInfo_v3(
            stream, status, id, graph, dependencies, data, count);
        cuThreadExchangeStreamCaptureMode 10010 = cuThreadExchangeStreamCaptureMode(mode);
        cuStreamBeginCapture 10010 = cuStreamBeginCapture_v2(stream, mode as c_uint);
        cuStreamBeginCaptureToGraph 12030 = cuStreamBeginCaptureToGraph(
            stream, graph, dependencies, data, count, mode as c_uint);
        cuStreamUpdateCaptureDependencies 11030 = cuStreamUpdateCaptureDependencies(
            stream, dependencies, count, flags);
        cuStreamUpdateCaptureDependencies 12030 = cuStreamUpdateCaptureDependencies_v2(
            stream, dependencies, data, count, flags);
        cuStreamEndCapture 10000 = cuStreamEndCapture(stream, graph);
    }
    graph_calls {
        cuGraphCreate 10000 = cuGraphCreate(graph, flags);
        cuGraphClone 10000 = cuGraphClone(clone, graph);
        cuGraphNodeFindInClone 10000 = cuGraphNodeFindInClone(found, node, clone);
        cuGraphDestroy 10000 = cuGraphDestroy(graph);
        cuGraphDestroyNode 10000 = cuGraphDestroyNode(node);
        cuGraphGetNodes 10000 = cuGraphGetNodes(graph, nodes, count);
        cuGraphGetRootNodes 10000 = cuGraphGetRootNodes(graph, nodes, count);
        cuGraphNodeGetType 10000 = cuGraphNodeGetType(node, kind);
        cuGraphExecUpdate 12000 = cuGraphExecUpdate_v2(exec, graph, info);
        cuGraphDebugDotPrint 11030 = cuGraphDebugDotPrint(graph, path, flags);
    }
    graph_id_calls {
        cuGraphNodeGetContainingGraph 13010 = cuGraphNodeGetContainingGraph(node, graph);
        cuGraphNodeGetLocalId 13010 = cuGraphNodeGetLocalId(node, id);
        cuGraphNodeGetToolsId 13010 = cuGraphNodeGetToolsId(node, id);
        cuGraphGetId 13010 = cuGraphGetId(graph, id);
        cuGraphExecGetId 13010 = cuGraphExecGetId(exec, id);
    }
    edge_calls {
        cuGraphGetEdges 10000 = cuGraphGetEdges(graph, from, to, count);
        cuGraphGetEdges 12030 = cuGraphGetEdges_v2(graph, from, to, data, count);
        cuGraphNodeGetDependencies 10000 = cuGraphNodeGetDependencies(node, dependencies, count);
        cuGraphNodeGetDependencies 12030 = cuGraphNodeGetDependencies_v2(
            node, dependencies, data, count);
        cuGraphNodeGetDependentNodes 10000 = cuGraphNodeGetDependentNodes(node, dependents, count);
        cuGraphNodeGetDependentNodes 12030 = cuGraphNodeGetDependentNodes_v2(
            node, dependents, data, count);
        cuGraphAddDependencies 10000 = cuGraphAddDependencies(graph, from, to, count);
        cuGraphAddDependencies 12030 = cuGraphAddDependencies_v2(graph, from, to, data, count);
        cuGraphRemoveDependencies 10000 = cuGraphRemoveDependencies(graph, from, to, count);
        cuGraphRemoveDependencies 12030 = cuGraphRemoveDependencies_v2(
            graph, from, to, data, count);
    }
    exec_calls {
        cuGraphInstantiate 12000 = cuGraphInstantiateWithFlags(exec, graph, flags);
        cuGraphInstantiateWithFlags 11040 = cuGraphInstantiateWithFlags(exec, graph, flags);
        cuGraphInstantiateWithParams 12000 = cuGraphInstantiateWithParams(exec, graph, params);
        cuGraphUpload 11010 = cuGraphUpload(exec, stream);
        cuGraphExecGetFlags 12000 = cuGraphExecGetFlags(exec, flags);
        cuGraphLaunch 10000 = cuGraphLaunch(exec, stream);
        cuGraphExecDestroy 10000 = cuGraphExecDestroy(exec);
    }
    exec_node_calls {
        cuGraphExecKernelNodeSetParams 12000 = cuGraphExecKernelNodeSetParams_v2(
            exec, node, params);
        cuGraphExecMemcpyNodeSetParams 10020 = cuGraphExecMemcpyNodeSetParams(
            exec, node, params, context);
        cuGraphExecMemsetNodeSetParams 10020 = cuGraphExecMemsetNodeSetParams(
            exec, node, params, context);
        cuGraphExecHostNodeSetParams 10020 = cuGraphExecHostNodeSetParams(exec, node, params);
        cuGraphExecChildGraphNodeSetParams 11010 = cuGraphExecChildGraphNodeSetParams(
            exec, node, child);
        cuGraphExecEventRecordNodeSetEvent 11010 = cuGraphExecEventRecordNodeSetEvent(
            exec, node, event);
        cuGraphExecEventWaitNodeSetEvent 11010 = cuGraphExecEventWaitNodeSetEvent(
            exec, node, event);
        cuGraphExecBatchMemOpNodeSetParams 11070 = cuGraphExecBatchMemOpNodeSetParams(
            exec, node, params);
        cuGraphExecNodeSetParams 12020 = cuGraphExecNodeSetParams(exec, node, params);
        cuGraphNodeSetEnabled 11060 = cuGraphNodeSetEnabled(exec, node, is_enabled);
        cuGraphNodeGetEnabled 11060 = cuGraphNodeGetEnabled(exec, node, is_enabled);
    }
    node_calls {
        cuGraphAddKernelNode 12000 = cuGraphAddKernelNode_v2(
            node, graph, dependencies, count, params);
        cuGraphAddMemcpyNode 10000 = cuGraphAddMemcpyNode(
            node, graph, dependencies, count, params, context);
        cuGraphAddMemsetNode 10000 = cuGraphAddMemsetNode(
            node, graph, dependencies, count, params, context);
        cuGraphAddHostNode 10000 = cuGraphAddHostNode(
            node, graph, dependencies, count, params);
        cuGraphAddEmptyNode 10000 = cuGraphAddEmptyNode(
            node, graph, dependencies, count);
        cuGraphAddChildGraphNode 10000 = cuGraphAddChildGraphNode(
            node, graph, dependencies, count, child);
        cuGraphAddEventRecordNode 11010 = cuGraphAddEventRecordNode(
            node, graph, dependencies, count, event);
        cuGraphAddEventWaitNode 11010 = cuGraphAddEventWaitNode(
            node, graph, dependencies, count, event);
        cuGraphAddMemAllocNode 11040 = cuGraphAddMemAllocNode(
            node, graph, dependencies, count, params);
        cuGraphAddMemFreeNode 11040 = cuGraphAddMemFreeNode(
            node, graph, dependencies, count, address);
        cuGraphAddBatchMemOpNode 11070 = cuGraphAddBatchMemOpNode(
            node, graph, dependencies, count, params);
        cuGraphAddNode 12020 = cuGraphAddNode(
            node, graph, dependencies, count, params);
        cuGraphAddNode 12030 = cuGraphAddNode_v2(node, graph, dependencies, data, count, params);
    }
    condition_calls {
        cuGraphConditionalHandleCreate 12030 = cuGraphConditionalHandleCreate(
            handle, graph, context, default, flags);
    }
    node_parameter_calls {
        cuGraphKernelNodeGetParams 12000 = cuGraphKernelNodeGetParams_v2(node, result);
        cuGraphKernelNodeSetParams 12000 = cuGraphKernelNodeSetParams_v2(node, params);
        cuGraphMemcpyNodeGetParams 10000 = cuGraphMemcpyNodeGetParams(node, result);
        cuGraphMemcpyNodeSetParams 10000 = cuGraphMemcpyNodeSetParams(node, params);
        cuGraphMemsetNodeGetParams 10000 = cuGraphMemsetNodeGetParams(node, result);
        cuGraphMemsetNodeSetParams 10000 = cuGraphMemsetNodeSetParams(node, params);
        cuGraphHostNodeGetParams 10000 = cuGraphHostNodeGetParams(node, result);
        cuGraphHostNodeSetParams 10000 = cuGraphHostNodeSetParams(node, params);
        cuGraphChildGraphNodeGetGraph 10000 = cuGraphChildGraphNodeGetGraph(node, result);
        cuGraphEventRecordNodeGetEvent 11010 = cuGraphEventRecordNodeGetEvent(node, result);
        cuGraphEventRecordNodeSetEvent 11010 = cuGraphEventRecordNodeSetEvent(node, event);
        cuGraphEventWaitNodeGetEvent 11010 = cuGraphEventWaitNodeGetEvent(node, result);
        cuGraphEventWaitNodeSetEvent 11010 = cuGraphEventWaitNodeSetEvent(node, event);
        cuGraphMemAllocNodeGetParams 11040 = cuGraphMemAllocNodeGetParams(node, result);
        cuGraphMemFreeNodeGetParams 11040 = cuGraphMemFreeNodeGetParams(node, result);
        cuGraphBatchMemOpNodeGetParams 11070 = cuGraphBatchMemOpNodeGetParams(node, result);
        cuGraphBatchMemOpNodeSetParams 11070 = cuGraphBatchMemOpNodeSetParams(node, params);
        cuGraphKernelNodeGetAttribute 11000 = cuGraphKernelNodeGetAttribute(
            node, attribute as c_uint, value);
        cuGraphKernelNodeSetAttribute 11000 = cuGraphKernelNodeSetAttribute(
            node, attribute as c_uint, value);
        cuGraphKernelNodeCopyAttributes 11000 = cuGraphKernelNodeCopyAttributes(target, source);
        cuGraphNodeSetParams 12020 = cuGraphNodeSetParams(node, params);
    }
    graph_memory_calls {
        cuDeviceGetGraphMemAttribute 11040 = cuDeviceGetGraphMemAttribute(
            device, attribute as c_uint, value);
        cuDeviceSetGraphMemAttribute 11040 = cuDeviceSetGraphMemAttribute(
            device, attribute as c_uint, value);
        cuDeviceGraphMemTrim 11040 = cuDeviceGraphMemTrim(device);
    }
    user_object_calls {
        cuUserObjectCreate 11030 = cuUserObjectCreate(object, user_data, destroy, count, flags);
        cuUserObjectRetain 11030 = cuUserObjectRetain(object, count);
        cuUserObjectRelease 11030 = cuUserObjectRelease(object, count);
        cuGraphRetainUserObject 11030 = cuGraphRetainUserObject(graph, object, count, flags);
        cuGraphReleaseUserObject 11030 = cuGraphReleaseUserObject(graph, object, count);
    }
    event_calls {
        cuEventCreate 2000 = cuEventCreate(event, flags);
        cuEventDestroy 4000 = cuEventDestroy_v2(event);
        cuEventRecord 2000 = cuEventRecord(event, stream);
        cuEventRecordWithFlags 11010 = cuEventRecordWithFlags(event, stream, flags);
        cuEventQuery 2000 = cuEventQuery(event);
        cuEventSynchronize 2000 = cuEventSynchronize(event);
        cuEventElapsedTime 2000 = cuEventElapsedTime(milliseconds, start, end);
        cuEventElapsedTime 12080 = cuEventElapsedTime_v2(milliseconds, start, end);
        cuCtxRecordEvent 12050 = cuCtxRecordEvent(context, event);
        cuCtxWaitEvent 12050 = cuCtxWaitEvent(context, event);
    }
    memory_calls {
        cuMemGetInfo 3020 = cuMemGetInfo_v2(free, total);
        cuMemAlloc 3020 = cuMemAlloc_v2(ptr, bytes);
        cuMemFree 3020 = cuMemFree_v2(ptr);
        cuMemAllocPitch 3020 = cuMemAllocPitch_v2(ptr, pitch, width, rows, element);
        cuMemGetAddressRange 3020 = cuMemGetAddressRange_v2(start, bytes, ptr);
        cuMemAllocHost 3020 = cuMemAllocHost_v2(ptr, bytes);
        cuMemHostGetDevicePointer 3020 = cuMemHostGetDevicePointer_v2(device_ptr, ptr, flags);
        cuMemHostGetFlags 2030 = cuMemHostGetFlags(flags, ptr);
        cuMemHostAlloc 2020 = cuMemHostAlloc(ptr, bytes, flags);
        cuMemFreeHost 2000 = cuMemFreeHost(ptr);
        cuMemHostRegister 6050 = cuMemHostRegister_v2(ptr, bytes, flags);
        cuMemHostUnregister 4000 = cuMemHostUnregister(ptr);
    }
    managed_calls {
        cuMemAllocManaged 6000 = cuMemAllocManaged(ptr, bytes, flags);
        cuMemPrefetchAsync 8000 = cuMemPrefetchAsync(ptr, bytes, device, stream);
        cuMemPrefetchAsync 12020 = cuMemPrefetchAsync_v2(ptr, bytes, location, flags, stream);
        cuMemAdvise 8000 = cuMemAdvise(ptr, bytes, advice as c_uint, device);
        cuMemAdvise 12020 = cuMemAdvise_v2(ptr, bytes, advice as c_uint, location);
        cuMemRangeGetAttribute 8000 = cuMemRangeGetAttribute(
            data, size, which as c_uint, ptr, bytes);
        cuMemRangeGetAttributes 8000 = cuMemRangeGetAttributes(
            data, sizes, which, count, ptr, bytes);
        cuStreamAttachMemAsync 6000 = cuStreamAttachMemAsync(stream, ptr, bytes, flags);
    }
    pointer_calls {
        cuPointerGetAttribute 4000 = cuPointerGetAttribute(data, attribute as c_uint, ptr);
        cuPointerGetAttributes 7000 = cuPointerGetAttributes(count, attributes, data, ptr);
        cuPointerSetAttribute 6000 = cuPointerSetAttribute(value, attribute as c_uint, ptr);
    }
    transfer_calls {
        cuMemcpyAsync 4000 = cuMemcpyAsync(dst, src, bytes, stream);
        cuMemcpyPeerAsync 4000 = cuMemcpyPeerAsync(
            dst, dst_context, src, src_context, bytes, stream);
        cuMemcpy2DAsync 3020 = cuMemcpy2DAsync_v2(copy, stream);
        cuMemcpy3DPeerAsync 4000 = cuMemcpy3DPeerAsync(copy, stream);
        cuMemcpyHtoDAsync 3020 = cuMemcpyHtoDAsync_v2(dst, src, bytes, stream);
        cuMemcpyDtoHAsync 3020 = cuMemcpyDtoHAsync_v2(dst, src, bytes, stream);
        cuMemcpyDtoDAsync 3020 = cuMemcpyDtoDAsync_v2(dst, src, bytes, stream);
        cuMemcpy3DAsync 3020 = cuMemcpy3DAsync_v2(copy, stream);
    }
    batch_calls {
        cuMemcpyBatchAsync 12080 = cuMemcpyBatchAsync(
            dsts, srcs, sizes, count, attributes, starts, num_attributes, refused, stream);
        cuMemcpy3DBatchAsync 12080 = cuMemcpy3DBatchAsync(
            count, operations, refused, flags, stream);
    }
    copy_calls {
        cuMemcpy 4000 = cuMemcpy(dst, src, bytes);
        cuMemcpyHtoD 3020 = cuMemcpyHtoD_v2(dst, src, bytes);
        cuMemcpyDtoH 3020 = cuMemcpyDtoH_v2(dst, src, bytes);
        cuMemcpyDtoD 3020 = cuMemcpyDtoD_v2(dst, src, bytes);
        cuMemcpyPeer 4000 = cuMemcpyPeer(dst, dst_context, src, src_context, bytes);
        cuMemcpy2D 3020 = cuMemcpy2D_v2(copy);
        cuMemcpy2DUnaligned 3020 = cuMemcpy2DUnaligned_v2(copy);
        cuMemcpy3D 3020 = cuMemcpy3D_v2(copy);
        cuMemcpy3DPeer 4000 = cuMemcpy3DPeer(copy);
    }
    fill_calls {
        cuMemsetD8 3020 = cuMemsetD8_v2(ptr, value, count);
        cuMemsetD16 3020 = cuMemsetD16_v2(ptr, value, count);
        cuMemsetD32 3020 = cuMemsetD32_v2(ptr, value, count);
        cuMemsetD2D8 3020 = cuMemsetD2D8_v2(ptr, pitch, value, count, rows);
        cuMemsetD2D16 3020 = cuMemsetD2D16_v2(ptr, pitch, value, count, rows);
        cuMemsetD2D32 3020 = cuMemsetD2D32_v2(ptr, pitch, value, count, rows);
        cuMemsetD8Async 3020 = cuMemsetD8Async(ptr, value, count, stream);
        cuMemsetD16Async 3020 = cuMemsetD16Async(ptr, value, count, stream);
        cuMemsetD32Async 3020 = cuMemsetD32Async(ptr, value, count, stream);
        cuMemsetD2D8Async 3020 = cuMemsetD2D8Async(ptr, pitch, value, count, rows, stream);
        cuMemsetD2D16Async 3020 = cuMemsetD2D16Async(ptr, pitch, value, count, rows, stream);
        cuMemsetD2D32Async 3020 = cuMemsetD2D32Async(ptr, pitch, value, count, rows, stream);
    }
    virtual_memory_calls {
        cuMemGetAllocationGranularity 10020 = cuMemGetAllocationGranularity(
            granularity, properties, option as c_uint);
        cuMemAddressReserve 10020 = cuMemAddressReserve(ptr, bytes, alignment, address, flags);
        cuMemAddressFree 10020 = cuMemAddressFree(ptr, bytes);
        cuMemCreate 10020 = cuMemCreate(handle, bytes, properties, flags);
        cuMemRelease 10020 = cuMemRelease(handle);
        cuMemRetainAllocationHandle 11000 = cuMemRetainAllocationHandle(handle, ptr);
        cuMemGetAllocationPropertiesFromHandle 10020 = cuMemGetAllocationPropertiesFromHandle(
            properties, handle);
        cuMemMap 10020 = cuMemMap(ptr, bytes, offset, handle, flags);
        cuMemUnmap 10020 = cuMemUnmap(ptr, bytes);
        cuMemSetAccess 10020 = cuMemSetAccess(ptr, bytes, access, count);
        cuMemGetAccess 10020 = cuMemGetAccess(flags, location, ptr);
    }
    ipc_calls {
        cuIpcGetMemHandle 4010 = cuIpcGetMemHandle(handle, ptr);
        cuIpcOpenMemHandle 11000 = cuIpcOpenMemHandle_v2(ptr, handle, flags);
        cuIpcCloseMemHandle 4010 = cuIpcCloseMemHandle(ptr);
        cuIpcGetEventHandle 4010 = cuIpcGetEventHandle(handle, event);
        cuIpcOpenEventHandle 4010 = cuIpcOpenEventHandle(event, handle);
        cuMemExportToShareableHandle 10020 = cuMemExportToShareableHandle(
            shareable, handle, kind, flags);
        cuMemImportFromShareableHandle 10020 = cuMemImportFromShareableHandle(
            handle, shareable, kind);
    }
    pool_calls {
        cuDeviceGetDefaultMemPool 11020 = cuDeviceGetDefaultMemPool(pool, device);
        cuDeviceGetMemPool 11020 = cuDeviceGetMemPool(pool, device);
        cuDeviceSetMemPool 11020 = cuDeviceSetMemPool(device, pool);
        cuMemPoolCreate 11020 = cuMemPoolCreate(pool, properties);
        cuMemPoolDestroy 11020 = cuMemPoolDestroy(pool);
        cuMemPoolSetAttribute 11020 = cuMemPoolSetAttribute(pool, attribute as c_uint, value);
        cuMemPoolGetAttribute 11020 = cuMemPoolGetAttribute(pool, attribute as c_uint, value);
        cuMemPoolSetAccess 11020 = cuMemPoolSetAccess(pool, access, count);
        cuMemPoolGetAccess 11020 = cuMemPoolGetAccess(flags, pool, location);
        cuMemPoolTrimTo 11020 = cuMemPoolTrimTo(pool, bytes_to_keep);
        cuMemAllocAsync 11020 = cuMemAllocAsync(ptr, bytes, stream);
        cuMemAllocFromPoolAsync 11020 = cuMemAllocFromPoolAsync(ptr, bytes, pool, stream);
        cuMemFreeAsync 11020 = cuMemFreeAsync(ptr, stream);
    }
    module_calls {
        cuModuleLoadData 2000 = cuModuleLoadData(module, image);
        cuModuleLoadDataEx 2010 = cuModuleLoadDataEx(module, image, count, options, values);
        cuModuleLoadFatBinary 2000 = cuModuleLoadFatBinary(module, image);
        cuModuleLoad 2000 = cuModuleLoad(module, path);
        cuModuleUnload 2000 = cuModuleUnload(module);
        cuModuleGetFunction 2000 = cuModuleGetFunction(function, module, name);
        cuModuleGetGlobal 3020 = cuModuleGetGlobal_v2(address, bytes, module, name);
        cuModuleGetFunctionCount 12040 = cuModuleGetFunctionCount(count, module);
        cuModuleEnumerateFunctions 12040 = cuModuleEnumerateFunctions(functions, count, module);
        cuModuleGetLoadingMode 11070 = cuModuleGetLoadingMode(mode);
    }
    library_calls {
        cuLibraryLoadData 12000 = cuLibraryLoadData(
            library, image, options, values, count, library_options, library_values,
            library_count);
        cuLibraryLoadFromFile 12000 = cuLibraryLoadFromFile(
            library, path, options, values, count, library_options, library_values,
            library_count);
        cuLibraryUnload 12000 = cuLibraryUnload(library);
        cuLibraryGetKernel 12000 = cuLibraryGetKernel(kernel, library, name);
        cuLibraryGetKernelCount 12040 = cuLibraryGetKernelCount(count, library);
        cuLibraryEnumerateKernels 12040 = cuLibraryEnumerateKernels(kernels, count, library);
        cuLibraryGetModule 12000 = cuLibraryGetModule(module, library);
        cuLibraryGetGlobal 12000 = cuLibraryGetGlobal(address, bytes, library, name);
        cuLibraryGetManaged 12000 = cuLibraryGetManaged(address, bytes, library, name);
        cuLibraryGetUnifiedFunction 12000 = cuLibraryGetUnifiedFunction(function, library, name);
        cuKernelGetFunction 12000 = cuKernelGetFunction(function, kernel);
        cuKernelGetLibrary 12050 = cuKernelGetLibrary(library, kernel);
        cuKernelGetName 12030 = cuKernelGetName(name, kernel);
        cuKernelGetParamInfo 12040 = cuKernelGetParamInfo(kernel, index, offset, size);
        cuKernelGetAttribute 12000 = cuKernelGetAttribute(
            value, attribute as c_uint, kernel, device);
        cuKernelSetAttribute 12000 = cuKernelSetAttribute(
            attribute as c_uint, value, kernel, device);
        cuKernelSetCacheConfig 12000 = cuKernelSetCacheConfig(kernel, config as c_uint, device);
    }
    link_calls {
        cuLinkCreate 6050 = cuLinkCreate_v2(count, options, values, state);
        cuLinkAddData 6050 = cuLinkAddData_v2(
            state, kind as c_uint, data, size, name, count, options, values);
        cuLinkAddFile 6050 = cuLinkAddFile_v2(state, kind as c_uint, path, count, options, values);
        cuLinkComplete 5050 = cuLinkComplete(state, image, size);
        cuLinkDestroy 5050 = cuLinkDestroy(state);
    }
    function_calls {
        cuFuncGetAttribute 2020 = cuFuncGetAttribute(value, attribute as c_uint, function);
        cuFuncSetAttribute 9000 = cuFuncSetAttribute(function, attribute as c_uint, value);
        cuFuncGetParamInfo 12040 = cuFuncGetParamInfo(function, index, offset, size);
        cuFuncGetName 12030 = cuFuncGetName(name, function);
        cuFuncGetModule 11000 = cuFuncGetModule(module, function);
        cuFuncSetCacheConfig 3000 = cuFuncSetCacheConfig(function, config as c_uint);
        cuFuncSetSharedMemConfig 4020 = cuFuncSetSharedMemConfig(function, config as c_uint);
        cuFuncLoad 12040 = cuFuncLoad(function);
        cuFuncIsLoaded 12040 = cuFuncIsLoaded(state, function);
    }
    occupancy_calls {
        cuOccupancyMaxActiveBlocksPerMultiprocessor 6050 =
            cuOccupancyMaxActiveBlocksPerMultiprocessor(
            blocks, function, block_size, shared_bytes);
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags 7000 =
            cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            blocks, function, block_size, shared_bytes, flags);
        cuOccupancyMaxPotentialBlockSize 6050 = cuOccupancyMaxPotentialBlockSize(
            grid_size, block_size, function, shared_of, shared_bytes, limit);
        cuOccupancyMaxPotentialBlockSizeWithFlags 7000 = cuOccupancyMaxPotentialBlockSizeWithFlags(
            grid_size, block_size, function, shared_of, shared_bytes, limit, flags);
        cuOccupancyAvailableDynamicSMemPerBlock 10020 = cuOccupancyAvailableDynamicSMemPerBlock(
            bytes, function, blocks, block_size);
        cuOccupancyMaxPotentialClusterSize 11070 = cuOccupancyMaxPotentialClusterSize(
            size, function, config);
        cuOccupancyMaxActiveClusters 11070 = cuOccupancyMaxActiveClusters(
            clusters, function, config);
    }
    launch_calls {
        cuLaunchKernel 4000 = cuLaunchKernel(
            function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
            parameters, extra);
        cuLaunchKernelEx 11060 = cuLaunchKernelEx(config, function, parameters, extra);
        cuLaunchCooperativeKernel 9000 = cuLaunchCooperativeKernel(
            function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
            parameters);
    }
}

/// The address of a function by its name in the library, else the newest of its name; NULL if there
/// is none.
pub(super) fn find(name: &str) -> *mut c_void {
    let export = EXPORTS.iter().find(|export| export.symbol == name).map(|export| export.address);
    let form = || FORMS.iter().find(|form| form.symbol == name).map(|form| form.address);
    match export.or_else(form) {
        Some(address) => address(),
        None => by_version(name, c_int::MAX, 0).unwrap_or(null_mut()),
    }
}

/// The newest signature of a function up to a version of CUDA, in the form that flags request. An
/// error says whether the function has only newer ones.
fn by_version(
    name: &str,
    version: i32,
    flags: cuuint64_t,
) -> Result<*mut c_void, CUdriverProcAddressQueryResult> {
    use CUdriverProcAddressQueryResult::*;
    let named = || EXPORTS.iter().filter(|export| export.name == name);
    let usable = named().filter(|export| export.since <= version);
    match usable.max_by_key(|export| export.since) {
        Some(export) => {
            let mut forms = FORMS.iter().filter(|_| flags & PER_THREAD != 0);
            let form = forms.find(|form| form.of == export.symbol);
            Ok(form.map_or(export.address, |form| form.address)())
        }
        None if named().next().is_some() => Err(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT),
        None => Err(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),
    }
}

/// CU_GET_PROC_ADDRESS_LEGACY_STREAM and CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM.
const STREAM_FLAGS: cuuint64_t = LEGACY | PER_THREAD;
const LEGACY: cuuint64_t = 1;
const PER_THREAD: cuuint64_t = 2;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: cuuint64_t,
) -> c_int {
    // SAFETY: the caller's promise; no status is written.
    unsafe { cuGetProcAddress_v2(symbol, function, version, flags, null_mut()) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: cuuint64_t,
    status: *mut CUdriverProcAddressQueryResult,
) -> c_int {
    guard(|| {
        require(!symbol.is_null() && flags <= STREAM_FLAGS, code::INVALID_VALUE)?;
        require((1..=VERSION).contains(&version), code::INVALID_VALUE)?;
        // SAFETY: not NULL, and NUL-terminated by the caller's promise.
        let name = unsafe { CStr::from_ptr(symbol) }.to_str().unwrap_or_default();
        let found = by_version(name, version, flags);
        put!(function, found.unwrap_or(null_mut()))?;
        if !status.is_null() {
            put!(
                status,
                found.err().unwrap_or(CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS)
            )?;
        }
        found.map(drop).map_err(|_| code::NOT_FOUND)
    })
}

/// No table is known: their contents are not documented. NVRTC 12.9 looks for one of developer
/// tools and does without it, but does not work without the function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGetExportTable(
    _table: *mut *const c_void,
    _id: *const CUuuid,
) -> c_int {
    code::INVALID_VALUE
}
