//! The forms of calls in which stream 0 is the default stream of the calling thread: with suffix
//! `_ptds` for calls on the default stream, `_ptsz` for calls that name a stream.

use super::context::with_own_default_stream;
use super::{
    attribute_calls, batch_calls, capture_calls, copy_calls, event_calls, exec_calls, fill_calls,
    launch_calls, managed_calls, pool_calls, resource_calls, stream_calls, transfer_calls,
    value_calls,
};
use cudarc::driver::sys::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_BATCH_OP,
    CUDA_MEMCPY3D_PEER, CUcontext, CUdevResource, CUdevice, CUdeviceptr, CUevent, CUfunction,
    CUgraph, CUgraphEdgeData, CUgraphExec, CUgraphNode, CUgreenCtx, CUhostFn, CUmemLocation,
    CUmemcpyAttributes, CUmemoryPool, CUstream, CUstreamAttrValue, CUstreamBatchMemOpParams,
    CUstreamCallback, CUstreamCaptureStatus, cuuint32_t, cuuint64_t,
};
use std::ffi::{c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

/// Such a form.
pub(super) struct Form {
    /// The name of the call in the library.
    pub(super) of: &'static str,
    /// Its own name there.
    pub(super) symbol: &'static str,
    /// Its address.
    pub(super) address: fn() -> *mut c_void,
}

/// `module { form = call(parameter: type, ...); ... }`
macro_rules! forms {
    ($($module:ident {
        $($form:ident = $call:ident($($parameter:ident: $type:ty),*);)*
    })*) => {
        $($(
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $form($($parameter: $type),*) -> c_int {
                with_own_default_stream(|| {
                    // SAFETY: the same promise.
                    unsafe { $module::$call($($parameter),*) }
                })
            }
        )*)*

        /// All of them.
        pub(super) const FORMS: &[Form] = &[$($(Form {
            of: stringify!($call),
            symbol: stringify!($form),
            address: || $form as *mut c_void,
        },)*)*];
    };
}

forms! {
    attribute_calls {
        cuStreamCopyAttributes_ptsz = cuStreamCopyAttributes(dst: CUstream, src: CUstream);
        cuStreamGetAttribute_ptsz = cuStreamGetAttribute(
            stream: CUstream, attribute: c_uint, value: *mut CUstreamAttrValue);
        cuStreamSetAttribute_ptsz = cuStreamSetAttribute(
            stream: CUstream, attribute: c_uint, value: *const CUstreamAttrValue);
    }
    capture_calls {
        cuStreamBeginCapture_v2_ptsz = cuStreamBeginCapture_v2(stream: CUstream, mode: c_uint);
        cuStreamBeginCaptureToGraph_ptsz = cuStreamBeginCaptureToGraph(
            stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode, data: *const
            CUgraphEdgeData, count: usize, mode: c_uint);
        cuStreamEndCapture_ptsz = cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
        cuStreamIsCapturing_ptsz = cuStreamIsCapturing(
            stream: CUstream, status: *mut CUstreamCaptureStatus);
        cuStreamGetCaptureInfo_v2_ptsz = cuStreamGetCaptureInfo_v2(
            stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut cuuint64_t, graph: *mut
            CUgraph, dependencies: *mut *const CUgraphNode, count: *mut usize);
        cuStreamGetCaptureInfo_v3_ptsz = cuStreamGetCaptureInfo_v3(
            stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut cuuint64_t, graph: *mut
            CUgraph, dependencies: *mut *const CUgraphNode, data: *mut *const CUgraphEdgeData,
            count: *mut usize);
        cuStreamUpdateCaptureDependencies_ptsz = cuStreamUpdateCaptureDependencies(
            stream: CUstream, dependencies: *mut CUgraphNode, count: usize, flags: c_uint);
        cuStreamUpdateCaptureDependencies_v2_ptsz = cuStreamUpdateCaptureDependencies_v2(
            stream: CUstream, dependencies: *mut CUgraphNode, data: *const CUgraphEdgeData, count:
            usize, flags: c_uint);
    }
    copy_calls {
        cuMemcpy_ptds = cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize);
        cuMemcpyHtoD_v2_ptds = cuMemcpyHtoD_v2(dst: CUdeviceptr, src: *const c_void, bytes: usize);
        cuMemcpyDtoH_v2_ptds = cuMemcpyDtoH_v2(dst: *mut c_void, src: CUdeviceptr, bytes: usize);
        cuMemcpyDtoD_v2_ptds = cuMemcpyDtoD_v2(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize);
        cuMemcpyPeer_ptds = cuMemcpyPeer(
            dst: CUdeviceptr, dst_context: CUcontext, src: CUdeviceptr, src_context: CUcontext,
            bytes: usize);
        cuMemcpy2D_v2_ptds = cuMemcpy2D_v2(copy: *const CUDA_MEMCPY2D);
        cuMemcpy2DUnaligned_v2_ptds = cuMemcpy2DUnaligned_v2(copy: *const CUDA_MEMCPY2D);
        cuMemcpy3D_v2_ptds = cuMemcpy3D_v2(copy: *const CUDA_MEMCPY3D);
        cuMemcpy3DPeer_ptds = cuMemcpy3DPeer(copy: *const CUDA_MEMCPY3D_PEER);
    }
    event_calls {
        cuEventRecord_ptsz = cuEventRecord(event: CUevent, stream: CUstream);
        cuEventRecordWithFlags_ptsz = cuEventRecordWithFlags(
            event: CUevent, stream: CUstream, flags: c_uint);
    }
    exec_calls {
        cuGraphLaunch_ptsz = cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
        cuGraphUpload_ptsz = cuGraphUpload(exec: CUgraphExec, stream: CUstream);
        cuGraphInstantiateWithParams_ptsz = cuGraphInstantiateWithParams(
            exec: *mut CUgraphExec, graph: CUgraph, params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS);
    }
    fill_calls {
        cuMemsetD8_v2_ptds = cuMemsetD8_v2(ptr: CUdeviceptr, value: c_uchar, count: usize);
        cuMemsetD16_v2_ptds = cuMemsetD16_v2(ptr: CUdeviceptr, value: c_ushort, count: usize);
        cuMemsetD32_v2_ptds = cuMemsetD32_v2(ptr: CUdeviceptr, value: c_uint, count: usize);
        cuMemsetD2D8_v2_ptds = cuMemsetD2D8_v2(
            ptr: CUdeviceptr, pitch: usize, value: c_uchar, count: usize, rows: usize);
        cuMemsetD2D16_v2_ptds = cuMemsetD2D16_v2(
            ptr: CUdeviceptr, pitch: usize, value: c_ushort, count: usize, rows: usize);
        cuMemsetD2D32_v2_ptds = cuMemsetD2D32_v2(
            ptr: CUdeviceptr, pitch: usize, value: c_uint, count: usize, rows: usize);
        cuMemsetD8Async_ptsz = cuMemsetD8Async(
            ptr: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream);
        cuMemsetD16Async_ptsz = cuMemsetD16Async(
            ptr: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream);
        cuMemsetD32Async_ptsz = cuMemsetD32Async(
            ptr: CUdeviceptr, value: c_uint, count: usize, stream: CUstream);
        cuMemsetD2D8Async_ptsz = cuMemsetD2D8Async(
            ptr: CUdeviceptr, pitch: usize, value: c_uchar, count: usize, rows: usize, stream:
            CUstream);
        cuMemsetD2D16Async_ptsz = cuMemsetD2D16Async(
            ptr: CUdeviceptr, pitch: usize, value: c_ushort, count: usize, rows: usize, stream:
            CUstream);
        cuMemsetD2D32Async_ptsz = cuMemsetD2D32Async(
            ptr: CUdeviceptr, pitch: usize, value: c_uint, count: usize, rows: usize, stream:
            CUstream);
    }
    launch_calls {
        cuLaunchKernel_ptsz = cuLaunchKernel(
            function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
            block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters:
            *mut *mut c_void, extra: *mut *mut c_void);
    }
    managed_calls {
        cuMemPrefetchAsync_ptsz = cuMemPrefetchAsync(
            ptr: CUdeviceptr, bytes: usize, device: CUdevice, stream: CUstream);
        cuMemPrefetchAsync_v2_ptsz = cuMemPrefetchAsync_v2(
            ptr: CUdeviceptr, bytes: usize, location: CUmemLocation, flags: c_uint, stream:
            CUstream);
        cuStreamAttachMemAsync_ptsz = cuStreamAttachMemAsync(
            stream: CUstream, ptr: CUdeviceptr, bytes: usize, flags: c_uint);
    }
    pool_calls {
        cuMemAllocAsync_ptsz = cuMemAllocAsync(
            ptr: *mut CUdeviceptr, bytes: usize, stream: CUstream);
        cuMemAllocFromPoolAsync_ptsz = cuMemAllocFromPoolAsync(
            ptr: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream);
        cuMemFreeAsync_ptsz = cuMemFreeAsync(ptr: CUdeviceptr, stream: CUstream);
    }
    resource_calls {
        cuStreamGetDevResource_ptsz = cuStreamGetDevResource(
            stream: CUstream, resource: *mut CUdevResource, kind: c_uint);
    }
    stream_calls {
        cuStreamGetPriority_ptsz = cuStreamGetPriority(stream: CUstream, priority: *mut c_int);
        cuStreamGetId_ptsz = cuStreamGetId(stream: CUstream, id: *mut c_ulonglong);
        cuStreamGetFlags_ptsz = cuStreamGetFlags(stream: CUstream, flags: *mut c_uint);
        cuStreamGetDevice_ptsz = cuStreamGetDevice(stream: CUstream, device: *mut CUdevice);
        cuStreamGetCtx_ptsz = cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
        cuStreamGetCtx_v2_ptsz = cuStreamGetCtx_v2(
            stream: CUstream, context: *mut CUcontext, green: *mut CUgreenCtx);
        cuStreamWaitEvent_ptsz = cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
        cuStreamAddCallback_ptsz = cuStreamAddCallback(
            handle: CUstream, function: CUstreamCallback, user_data: *mut c_void, flags: c_uint);
        cuStreamQuery_ptsz = cuStreamQuery(stream: CUstream);
        cuStreamSynchronize_ptsz = cuStreamSynchronize(stream: CUstream);
        cuLaunchHostFunc_ptsz = cuLaunchHostFunc(
            stream: CUstream, function: CUhostFn, user_data: *mut c_void);
    }
    value_calls {
        cuStreamWaitValue32_v2_ptsz = cuStreamWaitValue32_v2(
            stream: CUstream, address: CUdeviceptr, value: cuuint32_t, flags: c_uint);
        cuStreamWriteValue32_v2_ptsz = cuStreamWriteValue32_v2(
            stream: CUstream, address: CUdeviceptr, value: cuuint32_t, flags: c_uint);
        cuStreamWaitValue64_v2_ptsz = cuStreamWaitValue64_v2(
            stream: CUstream, address: CUdeviceptr, value: cuuint64_t, flags: c_uint);
        cuStreamWriteValue64_v2_ptsz = cuStreamWriteValue64_v2(
            stream: CUstream, address: CUdeviceptr, value: cuuint64_t, flags: c_uint);
        cuStreamBatchMemOp_v2_ptsz = cuStreamBatchMemOp_v2(
            stream: CUstream, count: c_uint, operations: *mut CUstreamBatchMemOpParams, flags:
            c_uint);
    }
    transfer_calls {
        cuMemcpyAsync_ptsz = cuMemcpyAsync(
            dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream);
        cuMemcpyPeerAsync_ptsz = cuMemcpyPeerAsync(
            dst: CUdeviceptr, dst_context: CUcontext, src: CUdeviceptr, src_context: CUcontext,
            bytes: usize, stream: CUstream);
        cuMemcpyHtoDAsync_v2_ptsz = cuMemcpyHtoDAsync_v2(
            dst: CUdeviceptr, src: *const c_void, bytes: usize, stream: CUstream);
        cuMemcpyDtoHAsync_v2_ptsz = cuMemcpyDtoHAsync_v2(
            dst: *mut c_void, src: CUdeviceptr, bytes: usize, stream: CUstream);
        cuMemcpyDtoDAsync_v2_ptsz = cuMemcpyDtoDAsync_v2(
            dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream);
        cuMemcpy2DAsync_v2_ptsz = cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream);
        cuMemcpy3DAsync_v2_ptsz = cuMemcpy3DAsync_v2(copy: *const CUDA_MEMCPY3D, stream: CUstream);
        cuMemcpy3DPeerAsync_ptsz = cuMemcpy3DPeerAsync(
            copy: *const CUDA_MEMCPY3D_PEER, stream: CUstream);
    }
    batch_calls {
        cuMemcpyBatchAsync_ptsz = cuMemcpyBatchAsync(
            dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize,
            attributes: *mut CUmemcpyAttributes, starts: *mut usize, num_attributes: usize,
            refused: *mut usize, stream: CUstream);
        cuMemcpy3DBatchAsync_ptsz = cuMemcpy3DBatchAsync(
            count: usize, operations: *mut CUDA_MEMCPY3D_BATCH_OP, refused: *mut usize,
            flags: c_ulonglong, stream: CUstream);
    }
}
