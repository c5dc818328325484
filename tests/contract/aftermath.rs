//! What each call gives in a context that a kernel has broken.

use crate::Row;
use crate::bench::{
    Bench, PER_THREAD, UNIT, access, cu, handle, host, location, pool_properties, properties,
};
use crate::errors::fail;
use std::ffi::c_void;
use std::ptr::null_mut;
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["after an error":
    devices, contexts, streams, events, memory, pinned_memory, pointers, copies, fills,
    virtual_memory, pools, modules, launches, captures,
];

fn devices(bench: &Bench) {
    bench.start();
    fail(bench, bench.writer(), bench.stream(1));
    let (mut number, mut bytes, mut name) = (0, 0, [0; 64]);
    cu!(bench, cuInit(0) => 0);
    cu!(bench, cuDriverGetVersion(&mut number) => 0);
    cu!(bench, cuDeviceGetCount(&mut number) => 0);
    cu!(bench, cuDeviceGet(&mut number, 0) => 0);
    cu!(bench, cuDeviceGetName(name.as_mut_ptr(), 64, 0) => 0);
    cu!(bench, cuDeviceGetUuid(&mut CUuuid { bytes: [0; 16] }, 0) => 0);
    cu!(bench, cuDeviceTotalMem(&mut bytes, 0) => 0);
    let warp = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE;
    cu!(bench, cuDeviceGetAttribute(&mut number, warp as i32, 0) => 0);
    cu!(bench, cuDeviceCanAccessPeer(&mut number, 0, 0) => 0);
    cu!(bench, cuDeviceGetDefaultMemPool(&mut null_mut(), 0) => 0);
}

fn contexts(bench: &Bench) {
    let context = bench.start();
    fail(bench, bench.writer(), bench.stream(1));
    let (mut seen, mut number, mut flags, mut active) = (null_mut(), 9, 9, 9);
    cu!(bench, cuCtxGetCurrent(&mut seen) => 0);
    bench.is("current", seen == context, true);
    cu!(bench, cuCtxGetDevice(&mut number) => 0);
    cu!(bench, cuCtxGetStreamPriorityRange(&mut number, &mut number) => 700);
    cu!(bench, cuCtxSynchronize() => 700);
    cu!(bench, cuCtxPushCurrent(context) => 0);
    cu!(bench, cuCtxPopCurrent(&mut seen) => 0);
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    cu!(bench, cuCtxSetCurrent(context) => 0);
    cu!(bench, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active) => 0);
    bench.is("active", active, 1);
    cu!(bench, cuDevicePrimaryCtxRetain(&mut seen, 0) => 0);
    cu!(bench, cuDevicePrimaryCtxRelease(0) => 0);
    cu!(bench, cuCtxEnablePeerAccess(context, 0) => 700);
}

fn streams(bench: &Bench) {
    bench.start();
    let (stream, event) = (bench.stream(1), bench.event());
    fail(bench, bench.writer(), stream);
    let (mut id, mut number, mut context, mut created) = (0, 9, null_mut(), null_mut());
    for stream in [stream, null_mut(), handle(PER_THREAD)] {
        cu!(bench, cuStreamQuery(stream) => 700);
        cu!(bench, cuStreamSynchronize(stream) => 700);
        cu!(bench, cuStreamGetId(stream, &mut id) => 700);
        cu!(bench, cuStreamGetPriority(stream, &mut number) => 700);
        cu!(bench, cuStreamGetCtx(stream, &mut context) => 700);
        cu!(bench, cuStreamWaitEvent(stream, event, 0) => 700);
        bench.count(stream, 700);
    }
    cu!(bench, cuStreamCreateWithPriority(&mut created, 1, 0) => 700);
    cu!(bench, cuStreamDestroy(stream) => 700);
}

fn captures(bench: &Bench) {
    bench.start();
    let stream = bench.stream(1);
    fail(bench, bench.writer(), stream);
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    cu!(bench, cuStreamIsCapturing(stream, &mut status) => 700);
    cu!(bench, cuStreamGetCaptureInfo(
        stream, &mut status, null_mut(), null_mut(), null_mut(), null_mut()) => 700);
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    cu!(bench, cuThreadExchangeStreamCaptureMode(&mut mode) => 0);
}

fn events(bench: &Bench) {
    bench.start();
    let (stream, recorded, unrecorded) = (bench.stream(1), bench.event(), bench.event());
    cu!(bench, cuEventRecord(recorded, stream) => 0);
    cu!(bench, cuEventSynchronize(recorded) => 0);
    fail(bench, bench.writer(), stream);
    let (mut ms, mut created) = (0.0, null_mut());
    for event in [recorded, unrecorded] {
        cu!(bench, cuEventQuery(event) => 700);
        cu!(bench, cuEventSynchronize(event) => 700);
        cu!(bench, cuEventElapsedTime(&mut ms, event, event) => 700);
    }
    cu!(bench, cuEventRecord(recorded, stream) => 700);
    cu!(bench, cuEventRecordWithFlags(recorded, stream, 0) => 700);
    cu!(bench, cuEventCreate(&mut created, 0) => 700);
    cu!(bench, cuEventDestroy(recorded) => 700);
    cu!(bench, cuEventDestroy(unrecorded) => 700);
}

fn memory(bench: &Bench) {
    bench.start();
    let (small, large) = (bench.allocate(64), bench.allocate(4 * UNIT));
    fail(bench, bench.writer(), bench.stream(1));
    let mut address = 0;
    cu!(bench, cuMemAlloc(&mut address, 64) => 700);
    cu!(bench, cuMemAlloc(&mut address, 0) => 700);
    cu!(bench, cuMemGetInfo(&mut 0, &mut 0) => 700);
    cu!(bench, cuMemFree(0) => 700);
    cu!(bench, cuMemFree(small) => 700);
    cu!(bench, cuMemFree(large) => 700);
    cu!(bench, cuMemFree(0x1000) => 700);
}

fn pinned_memory(bench: &Bench) {
    bench.start();
    let pinned: *mut c_void = bench.pinned(4096).as_mut_ptr().cast();
    let all = Vec::leak(vec![0u8; 3 * 4096]);
    let skip = all.as_ptr().align_offset(4096);
    let (first, second) = all[skip..skip + 8192].split_at_mut(4096);
    let (first, second) = (first.as_mut_ptr().cast(), second.as_mut_ptr().cast());
    cu!(bench, cuMemHostRegister(first, 4096, 0) => 0);
    fail(bench, bench.writer(), bench.stream(1));
    cu!(bench, cuMemHostAlloc(&mut null_mut(), 64, 0) => 700);
    cu!(bench, cuMemHostRegister(second, 4096, 0) => 700);
    cu!(bench, cuMemHostUnregister(first) => 700);
    cu!(bench, cuMemFreeHost(pinned) => 700);
    cu!(bench, cuMemFreeHost(null_mut()) => 700);
}

fn pointers(bench: &Bench) {
    use CUpointer_attribute::*;
    bench.start();
    let (small, mapped, pinned) = (bench.allocate(64), bench.mapped(UNIT), bench.pinned(64));
    fail(bench, bench.writer(), bench.stream(1));
    let mut value = 0u64;
    for pointer in [small, mapped, host(pinned)] {
        for attribute in [CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_SIZE] {
            cu!(bench, cuPointerGetAttribute((&raw mut value).cast(), attribute, pointer) => 0);
        }
    }
}

fn copies(bench: &Bench) {
    let context = bench.start();
    let (stream, address, pinned) = (bench.stream(1), bench.warm(64), bench.pinned(64));
    fail(bench, bench.writer(), stream);
    cu!(bench, cuMemcpyAsync(host(pinned), address, 64, stream) => 700);
    cu!(bench, cuMemcpyAsync(address, address + 32, 16, null_mut()) => 700);
    cu!(bench, cuMemcpyAsync(address, address, 0, stream) => 700);
    cu!(bench, cuMemcpyPeerAsync(address, context, address + 32, context, 16, stream) => 700);
}

fn fills(bench: &Bench) {
    bench.start();
    let (stream, address) = (bench.stream(1), bench.warm(64));
    fail(bench, bench.writer(), stream);
    cu!(bench, cuMemsetD8Async(address, 1, 64, stream) => 700);
    cu!(bench, cuMemsetD16Async(address, 1, 32, stream) => 700);
    cu!(bench, cuMemsetD32Async(address, 1, 16, null_mut()) => 700);
    cu!(bench, cuMemsetD8Async(address, 1, 0, stream) => 700);
}

fn virtual_memory(bench: &Bench) {
    bench.start();
    let (start, mapped) = (bench.reserve(4 * UNIT), bench.mapped(UNIT));
    let kept = bench.create(UNIT);
    fail(bench, bench.writer(), bench.stream(1));
    let (mut address, mut created, mut bytes, mut flags) = (0, 0, 0, 0);
    let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    cu!(bench, cuMemGetAllocationGranularity(&mut bytes, &properties(0), least) => 0);
    cu!(bench, cuMemAddressReserve(&mut address, UNIT, 0, 0, 0) => 0);
    cu!(bench, cuMemAddressFree(address, UNIT) => 0);
    cu!(bench, cuMemCreate(&mut created, UNIT, &properties(0), 0) => 0);
    let mut found = properties(77);
    cu!(bench, cuMemGetAllocationPropertiesFromHandle(&mut found, kept) => 0);
    bench.is("device", found.location.id, 0);
    cu!(bench, cuMemMap(start, UNIT, 0, kept, 0) => 0);
    cu!(bench, cuMemSetAccess(start, UNIT, &access(0, 3), 1) => 0);
    cu!(bench, cuMemGetAccess(&mut flags, &location(0), mapped) => 0);
    cu!(bench, cuMemUnmap(mapped, UNIT) => 0);
    cu!(bench, cuMemRelease(kept) => 0);
    cu!(bench, cuMemAddressFree(mapped, UNIT) => 0);
}

fn pools(bench: &Bench) {
    bench.start();
    let (stream, pool, mut own) = (bench.stream(1), bench.default_pool(), null_mut());
    let (mut block, mut other, mut value) = (0, 0, 0u64);
    cu!(bench, cuMemAllocAsync(&mut block, 64, stream) => 0);
    cu!(bench, cuMemAllocAsync(&mut other, 64, stream) => 0);
    cu!(bench, cuMemPoolCreate(&mut own, &pool_properties(0)) => 0);
    fail(bench, bench.writer(), stream);
    let used = CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
    let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    cu!(bench, cuMemPoolGetAttribute(pool, used, (&raw mut value).cast()) => 0);
    cu!(bench, cuMemPoolSetAttribute(pool, threshold, (&raw mut value).cast()) => 0);
    cu!(bench, cuMemPoolSetAccess(pool, &access(0, 3), 1) => 0);
    cu!(bench, cuMemPoolTrimTo(pool, 0) => 0);
    cu!(bench, cuMemAllocAsync(&mut value, 64, stream) => 700);
    cu!(bench, cuMemAllocFromPoolAsync(&mut value, 64, own, stream) => 700);
    cu!(bench, cuMemFreeAsync(block, stream) => 700);
    cu!(bench, cuMemFree(other) => 700);
    cu!(bench, cuMemPoolDestroy(own) => 0);
    cu!(bench, cuMemPoolCreate(&mut own, &pool_properties(0)) => 0);
}

fn modules(bench: &Bench) {
    bench.start();
    let module = bench.module();
    let function = bench.function(module, c"contract_nothing");
    fail(bench, bench.writer(), bench.stream(1));
    let (mut found, mut loaded, mut number) = (null_mut(), null_mut(), 0);
    cu!(bench, cuModuleLoadData(&mut loaded, crate::kernels::PTX.as_ptr().cast()) => 700);
    cu!(bench, cuModuleGetFunction(&mut found, module, c"contract_write".as_ptr()) => 700);
    cu!(bench, cuModuleGetFunction(&mut found, module, c"contract_nothing".as_ptr()) => 700);
    let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
    cu!(bench, cuFuncGetAttribute(&mut number, most, function) => 700);
    let shared = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    cu!(bench, cuFuncSetAttribute(function, shared, 1024) => 700);
    cu!(bench, cuOccupancyMaxActiveBlocksPerMultiprocessor(
        &mut number, function, 128, 0) => 700);
    cu!(bench, cuModuleUnload(module) => 700);
}

fn launches(bench: &Bench) {
    bench.start();
    let function = bench.function(bench.module(), c"contract_nothing");
    let stream = bench.stream(1);
    fail(bench, bench.writer(), stream);
    bench.launch(function, stream, 700);
    bench.launch(function, null_mut(), 700);
    cu!(bench, cuLaunchKernel(
        function, 0, 1, 1, 1, 1, 1, 0, stream, null_mut(), null_mut()) => 700);
    cu!(bench, cuLaunchKernel(
        null_mut(), 1, 1, 1, 1, 1, 1, 0, stream, null_mut(), null_mut()) => 700);
}
