//! Initialisation, and contexts: current, pushed, retained and released.

use crate::Row;
use crate::bench::{
    Bench, LEGACY, PER_THREAD, UNIT, access, cu, handle, pool_properties, properties,
};
use std::ptr::null_mut;
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["contexts":
    before_init, devices, attributes_of_devices, no_current_context, streams_without_a_context,
    work_without_a_context, destroy_without_a_context, push_and_pop, set_replaces_the_top,
    primary_state, released_too_often, released_while_current, calls_after_release,
    retained_again, null_contexts, priorities, threads_have_their_own, null_outputs,
    peers_with_itself, objects_after_release, handles_after_release,
    handles_after_release_without_a_context, kernels_after_release,
];

fn current(bench: &Bench) -> CUcontext {
    let mut context = handle(99);
    cu!(bench, cuCtxGetCurrent(&mut context) => 0);
    context
}

fn before_init(bench: &Bench) {
    let (mut number, mut context, mut address) = (0, null_mut(), 0);
    cu!(bench, cuDriverGetVersion(&mut number) => 0);
    bench.is("a version", number >= 12000, true);
    cu!(bench, cuDriverGetVersion(null_mut()) => 1);
    cu!(bench, cuDeviceGetCount(&mut number) => 3);
    cu!(bench, cuDeviceGet(&mut number, 0) => 3);
    cu!(bench, cuCtxGetCurrent(&mut context) => 3);
    cu!(bench, cuDevicePrimaryCtxRetain(&mut context, 0) => 3);
    cu!(bench, cuMemAlloc(&mut address, 16) => 3);
    cu!(bench, cuMemFree(0) => 3);
    cu!(bench, cuStreamQuery(null_mut()) => 3);
    cu!(bench, cuMemAddressReserve(&mut address, UNIT, 0, 0, 0) => 3);
    cu!(bench, cuInit(1) => 1);
    cu!(bench, cuDeviceGetCount(&mut number) => 3);
    cu!(bench, cuInit(0) => 0);
    cu!(bench, cuInit(0) => 0);
    cu!(bench, cuInit(1) => 1);
    cu!(bench, cuDeviceGetCount(&mut number) => 0);
}

fn devices(bench: &Bench) {
    cu!(bench, cuInit(0) => 0);
    let (mut count, mut device, mut bytes) = (0, 77, 0);
    cu!(bench, cuDeviceGetCount(&mut count) => 0);
    cu!(bench, cuDeviceGetCount(null_mut()) => 1);
    cu!(bench, cuDeviceGet(&mut device, 0) => 0);
    bench.is("device 0", device, 0);
    cu!(bench, cuDeviceGet(&mut device, -1) => 101);
    cu!(bench, cuDeviceGet(&mut device, count) => 101);
    cu!(bench, cuDeviceGet(null_mut(), 0) => 1);
    bench.is("untouched on failure", device, 0);
    let mut name = [1; 64];
    cu!(bench, cuDeviceGetName(name.as_mut_ptr(), 64, 0) => 0);
    bench.is("a name ends", name.contains(&0), true);
    let mut short = [1; 8];
    cu!(bench, cuDeviceGetName(short.as_mut_ptr(), 4, 0) => 0);
    bench.is("a short name", (short[..3] == name[..3], short[3], short[4]), (true, 0, 1));
    cu!(bench, cuDeviceGetName(short.as_mut_ptr(), 4, count) => 101);
    cu!(bench, cuDeviceTotalMem(&mut bytes, 0) => 0);
    cu!(bench, cuDeviceTotalMem(null_mut(), 0) => 1);
    cu!(bench, cuDeviceTotalMem(&mut bytes, -1) => 101);
    let mut uuid = CUuuid { bytes: [0; 16] };
    cu!(bench, cuDeviceGetUuid(&mut uuid, 0) => 0);
    cu!(bench, cuDeviceGetUuid(&mut uuid, count) => 101);
    cu!(bench, cuDeviceGetUuid(null_mut(), 0) => 1);
    let mut possible = 7;
    cu!(bench, cuDeviceCanAccessPeer(&mut possible, 0, 0) => 0);
    bench.is("a peer of itself", possible, 0);
    cu!(bench, cuDeviceCanAccessPeer(&mut possible, 0, count) => 101);
    cu!(bench, cuDeviceCanAccessPeer(null_mut(), 0, 0) => 1);
}

fn attributes_of_devices(bench: &Bench) {
    use CUdevice_attribute::*;
    cu!(bench, cuInit(0) => 0);
    let mut value = 0;
    for (attribute, expected) in [
        (CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
        (CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024),
        (CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64),
        (CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, i32::MAX),
        (CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535),
        (CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152),
        (CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232_448),
        (CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536),
        (CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048),
        (CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9),
        (CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
        (CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1),
        (CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1),
        (CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1),
        (CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED, 1),
        (CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED, 1),
        (CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
        (CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1),
        (CU_DEVICE_ATTRIBUTE_INTEGRATED, 0),
        (CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512),
        (CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024),
    ] {
        cu!(bench, cuDeviceGetAttribute(&mut value, attribute as i32, 0) => 0);
        bench.is(&format!("{attribute:?}"), value, expected);
    }
    cu!(bench, cuDeviceGetAttribute(null_mut(), CU_DEVICE_ATTRIBUTE_WARP_SIZE as i32, 0) => 1);
    cu!(bench, cuDeviceGetAttribute(&mut value, CU_DEVICE_ATTRIBUTE_WARP_SIZE as i32, -1) => 101);
}

fn no_current_context(bench: &Bench) {
    cu!(bench, cuInit(0) => 0);
    bench.is("no current context", current(bench).is_null(), true);
    let (mut address, mut number, mut size, mut id) = (0, 0, 0, 0);
    let (mut stream, mut event, mut context) = (null_mut(), null_mut(), null_mut());
    cu!(bench, cuMemAlloc(&mut address, 16) => 201);
    cu!(bench, cuMemFree(0) => 0);
    cu!(bench, cuMemGetInfo(&mut size, &mut 0) => 201);
    cu!(bench, cuMemHostAlloc(&mut null_mut(), 16, 0) => 201);
    cu!(bench, cuStreamCreateWithPriority(&mut stream, 0, 0) => 201);
    cu!(bench, cuEventCreate(&mut event, 0) => 201);
    cu!(bench, cuCtxSynchronize() => 201);
    cu!(bench, cuCtxGetDevice(&mut number) => 201);
    cu!(bench, cuCtxPopCurrent(&mut context) => 201);
    cu!(bench, cuCtxGetStreamPriorityRange(&mut number, &mut 0) => 201);
    for stream in [0, LEGACY, PER_THREAD] {
        let stream = handle(stream);
        cu!(bench, cuStreamQuery(stream) => 201);
        cu!(bench, cuStreamSynchronize(stream) => 201);
        cu!(bench, cuStreamGetId(stream, &mut id) => 201);
        cu!(bench, cuStreamGetPriority(stream, &mut number) => 201);
        cu!(bench, cuStreamGetCtx(stream, &mut context) => 201);
        cu!(bench, cuMemAllocAsync(&mut address, 16, stream) => 201);
    }
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    cu!(bench, cuStreamIsCapturing(null_mut(), &mut status) => 201);
    cu!(bench, cuMemsetD8Async(4096, 0, 4, null_mut()) => 201);
    cu!(bench, cuMemcpyAsync(4096, 8192, 4, null_mut()) => 201);
    let mut module = null_mut();
    cu!(bench, cuModuleLoadData(&mut module, crate::kernels::PTX.as_ptr().cast()) => 201);
    // These are of the device, or of the process.
    let (mut mode, mut pool) = (CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED, null_mut());
    cu!(bench, cuThreadExchangeStreamCaptureMode(&mut mode) => 0);
    cu!(bench, cuDeviceGetDefaultMemPool(&mut pool, 0) => 0);
    cu!(bench, cuMemPoolCreate(&mut pool, &pool_properties(0)) => 0);
    cu!(bench, cuMemPoolDestroy(pool) => 0);
    let mut created = 0;
    cu!(bench, cuMemAddressReserve(&mut address, UNIT, 0, 0, 0) => 0);
    cu!(bench, cuMemCreate(&mut created, UNIT, &properties(0), 0) => 0);
    cu!(bench, cuMemMap(address, UNIT, 0, created, 0) => 0);
    cu!(bench, cuMemSetAccess(address, UNIT, &access(0, 3), 1) => 0);
    cu!(bench, cuMemUnmap(address, UNIT) => 0);
    cu!(bench, cuMemRelease(created) => 0);
    cu!(bench, cuMemAddressFree(address, UNIT) => 0);
}

fn streams_without_a_context(bench: &Bench) {
    bench.start();
    let (stream, event, address) = (bench.stream(1), bench.event(), bench.warm(64));
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    let (mut id, mut number, mut context, mut ms) = (0, 0, null_mut(), 0.0);
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    cu!(bench, cuEventRecord(event, stream) => 0);
    cu!(bench, cuStreamWaitEvent(stream, event, 0) => 0);
    cu!(bench, cuStreamSynchronize(stream) => 0);
    cu!(bench, cuStreamQuery(stream) => 0);
    cu!(bench, cuEventSynchronize(event) => 0);
    cu!(bench, cuEventQuery(event) => 0);
    cu!(bench, cuEventElapsedTime(&mut ms, event, event) => 0);
    cu!(bench, cuStreamGetId(stream, &mut id) => 0);
    cu!(bench, cuStreamGetPriority(stream, &mut number) => 0);
    cu!(bench, cuStreamGetCtx(stream, &mut context) => 0);
    cu!(bench, cuStreamIsCapturing(stream, &mut status) => 0);
    cu!(bench, cuMemFree(address) => 0);
}

fn work_without_a_context(bench: &Bench) {
    bench.start();
    let (stream, address, pinned) = (bench.stream(1), bench.warm(64), bench.pinned(64));
    let (writer, module, event) = (bench.writer(), bench.module(), bench.event());
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    let (mut block, mut kind, mut function) = (0, 0u32, null_mut());
    cu!(bench, cuMemsetD8Async(address, 1, 64, stream) => 0);
    cu!(bench, cuMemcpyAsync(crate::bench::host(pinned), address, 64, stream) => 0);
    bench.write(writer, address, 5, stream, 0);
    cu!(bench, cuLaunchHostFunc(stream, Some(nothing), null_mut()) => 0);
    cu!(bench, cuMemAllocAsync(&mut block, 64, stream) => 0);
    cu!(bench, cuPointerGetAttribute(
        (&raw mut kind).cast(),
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        address,
    ) => 0);
    cu!(bench, cuModuleGetFunction(&mut function, module, c"contract_write".as_ptr()) => 0);
    cu!(bench, cuModuleUnload(module) => 0);
    cu!(bench, cuEventRecord(event, null_mut()) => 201);
    cu!(bench, cuMemFree(address) => 0);
    cu!(bench, cuMemFreeHost(pinned.as_mut_ptr().cast()) => 0);
}

unsafe extern "C" fn nothing(_: *mut std::ffi::c_void) {}

fn destroy_without_a_context(bench: &Bench) {
    bench.start();
    let (stream, event) = (bench.stream(1), bench.event());
    let mut page = vec![0u8; 8192];
    cu!(bench, cuMemHostRegister(page.as_mut_ptr().cast(), 8192, 0) => 0);
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    cu!(bench, cuMemHostUnregister(page.as_mut_ptr().cast()) => 0);
    cu!(bench, cuEventDestroy(event) => 0);
    cu!(bench, cuStreamDestroy(stream) => 0);
}

fn push_and_pop(bench: &Bench) {
    let context = bench.start();
    let mut popped = null_mut();
    cu!(bench, cuCtxPushCurrent(context) => 0);
    cu!(bench, cuCtxPushCurrent(context) => 0);
    cu!(bench, cuCtxPopCurrent(&mut popped) => 0);
    bench.is("popped", popped == context, true);
    cu!(bench, cuCtxPopCurrent(null_mut()) => 0);
    bench.is("one left", current(bench) == context, true);
    cu!(bench, cuCtxPopCurrent(&mut popped) => 0);
    bench.is("none left", current(bench).is_null(), true);
    cu!(bench, cuCtxPopCurrent(&mut popped) => 201);
}

fn set_replaces_the_top(bench: &Bench) {
    let context = bench.start();
    let mut popped = handle(7);
    cu!(bench, cuCtxPushCurrent(context) => 0);
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    bench.is("after setting none over one", current(bench) == context, true);
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    bench.is("after setting none", current(bench).is_null(), true);
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    cu!(bench, cuCtxPopCurrent(&mut popped) => 201);
    cu!(bench, cuCtxSetCurrent(context) => 0);
    cu!(bench, cuCtxSetCurrent(context) => 0);
    cu!(bench, cuCtxPopCurrent(&mut popped) => 0);
    cu!(bench, cuCtxPopCurrent(&mut popped) => 201);
}

fn state(bench: &Bench) -> (u32, i32) {
    let (mut flags, mut active) = (9, 9);
    cu!(bench, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active) => 0);
    (flags, active)
}

fn primary_state(bench: &Bench) {
    cu!(bench, cuInit(0) => 0);
    bench.is("before", state(bench), (0, 0));
    let (mut context, mut again) = (null_mut(), null_mut());
    cu!(bench, cuDevicePrimaryCtxRetain(&mut context, 0) => 0);
    cu!(bench, cuDevicePrimaryCtxRetain(&mut again, 0) => 0);
    bench.is("the same", context == again, true);
    bench.is("not made current", current(bench).is_null(), true);
    bench.is("retained", state(bench), (0, 1));
    cu!(bench, cuDevicePrimaryCtxRelease(0) => 0);
    bench.is("retained once", state(bench), (0, 1));
    cu!(bench, cuDevicePrimaryCtxRelease(0) => 0);
    bench.is("released", state(bench), (0, 0));
    let (mut flags, mut active) = (9, 9);
    cu!(bench, cuDevicePrimaryCtxGetState(-1, &mut flags, &mut active) => 101);
    cu!(bench, cuDevicePrimaryCtxGetState(0, null_mut(), &mut active) => 1);
    cu!(bench, cuDevicePrimaryCtxGetState(0, &mut flags, null_mut()) => 1);
}

fn released_too_often(bench: &Bench) {
    cu!(bench, cuInit(0) => 0);
    cu!(bench, cuDevicePrimaryCtxRelease(0) => 201);
    cu!(bench, cuDevicePrimaryCtxRelease(-1) => 101);
    cu!(bench, cuDevicePrimaryCtxRetain(&mut null_mut(), 0) => 0);
    cu!(bench, cuDevicePrimaryCtxRelease(0) => 0);
    cu!(bench, cuDevicePrimaryCtxRelease(0) => 201);
    cu!(bench, cuDevicePrimaryCtxRetain(null_mut(), 0) => 1);
    cu!(bench, cuDevicePrimaryCtxRetain(&mut null_mut(), -1) => 101);
}

fn released_while_current(bench: &Bench) {
    let context = bench.start();
    cu!(bench, cuDevicePrimaryCtxRelease(0) => 0);
    let (mut now, mut device) = (null_mut(), 5);
    cu!(bench, cuCtxGetCurrent(&mut now) => 0);
    bench.is("still the current one", now == context, true);
    cu!(bench, cuCtxGetDevice(&mut device) => 0);
    cu!(bench, cuCtxPushCurrent(context) => 0);
    cu!(bench, cuCtxSetCurrent(context) => 0);
    cu!(bench, cuCtxPopCurrent(&mut now) => 0);
    bench.is("popped", now == context, true);
}

fn calls_after_release(bench: &Bench) {
    bench.start();
    cu!(bench, cuDevicePrimaryCtxRelease(0) => 0);
    let (mut address, mut stream, mut event, mut size) = (0, null_mut(), null_mut(), 0);
    cu!(bench, cuMemAlloc(&mut address, 16) => 709);
    cu!(bench, cuMemGetInfo(&mut size, &mut 0) => 709);
    cu!(bench, cuStreamCreateWithPriority(&mut stream, 0, 0) => 709);
    cu!(bench, cuEventCreate(&mut event, 0) => 709);
    cu!(bench, cuCtxSynchronize() => 709);
    cu!(bench, cuStreamQuery(null_mut()) => 709);
    cu!(bench, cuStreamSynchronize(null_mut()) => 709);
    cu!(bench, cuMemHostAlloc(&mut null_mut(), 16, 0) => 709);
    cu!(bench, cuCtxGetStreamPriorityRange(&mut 0, &mut 0) => 709);
    cu!(bench, cuMemFree(0) => 709);
    let mut module = null_mut();
    cu!(bench, cuModuleLoadData(&mut module, crate::kernels::PTX.as_ptr().cast()) => 709);
    cu!(bench, cuMemAddressReserve(&mut address, UNIT, 0, 0, 0) => 0);
    cu!(bench, cuMemAddressFree(address, UNIT) => 0);
}

fn retained_again(bench: &Bench) {
    let context = bench.start();
    let address = bench.allocate(UNIT);
    cu!(bench, cuDevicePrimaryCtxRelease(0) => 0);
    let mut again = null_mut();
    cu!(bench, cuDevicePrimaryCtxRetain(&mut again, 0) => 0);
    bench.is("the same handle", again == context, true);
    cu!(bench, cuCtxSetCurrent(again) => 0);
    cu!(bench, cuMemFree(address) => 1);
    let fresh = bench.allocate(UNIT);
    cu!(bench, cuMemsetD8Async(fresh, 3, UNIT, null_mut()) => 0);
    cu!(bench, cuCtxSynchronize() => 0);
}

fn objects_after_release(bench: &Bench) {
    bench.start();
    let pinned = bench.pinned(64);
    let address = bench.mapped(UNIT);
    let pool = bench.default_pool();
    let mut block = 0;
    cu!(bench, cuMemAllocAsync(&mut block, 64, null_mut()) => 0);
    cu!(bench, cuDevicePrimaryCtxRelease(0) => 0);
    bench.use_device(0);
    bench.is("the pool is the same", bench.default_pool() == pool, true);
    // Memory that was created without a context lives on.
    cu!(bench, cuMemsetD8Async(address, 9, 64, null_mut()) => 0);
    bench.is("bytes", bench.fetch(address, 2, null_mut()), vec![9, 9]);
    cu!(bench, cuMemUnmap(address, UNIT) => 0);
    cu!(bench, cuMemFreeHost(pinned.as_mut_ptr().cast()) => 1);
    cu!(bench, cuMemFreeAsync(block, null_mut()) => 0);
}

fn null_contexts(bench: &Bench) {
    bench.start();
    cu!(bench, cuCtxPushCurrent(null_mut()) => 1);
    cu!(bench, cuCtxEnablePeerAccess(null_mut(), 0) => 201);
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    cu!(bench, cuCtxPushCurrent(null_mut()) => 1);
}

fn priorities(bench: &Bench) {
    bench.start();
    let (mut least, mut greatest) = (99, 99);
    cu!(bench, cuCtxGetStreamPriorityRange(&mut least, &mut greatest) => 0);
    bench.is("range", (least, greatest), (0, -5));
    cu!(bench, cuCtxGetStreamPriorityRange(null_mut(), &mut greatest) => 0);
    cu!(bench, cuCtxGetStreamPriorityRange(&mut least, null_mut()) => 0);
    cu!(bench, cuCtxGetStreamPriorityRange(null_mut(), null_mut()) => 0);
}

fn threads_have_their_own(bench: &Bench) {
    let context = bench.start().addr();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            bench.is("none on a new thread", current(bench).is_null(), true);
            cu!(bench, cuCtxSetCurrent(handle(context)) => 0);
            cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
        });
    });
    bench.is("ours", current(bench).addr() == context, true);
}

fn null_outputs(bench: &Bench) {
    bench.start();
    cu!(bench, cuCtxGetCurrent(null_mut()) => 1);
    cu!(bench, cuCtxGetDevice(null_mut()) => 1);
    cu!(bench, cuDeviceGetDefaultMemPool(null_mut(), 0) => 1);
    cu!(bench, cuDeviceGetDefaultMemPool(&mut null_mut(), -1) => 101);
}

fn peers_with_itself(bench: &Bench) {
    let context = bench.start();
    cu!(bench, cuCtxEnablePeerAccess(context, 0) => 217);
    cu!(bench, cuCtxEnablePeerAccess(context, 1) => 1);
}

fn handles_after_release(bench: &Bench) {
    let context = bench.start();
    let (stream, event, unrecorded) = (bench.stream(1), bench.event(), bench.event());
    cu!(bench, cuEventRecord(event, stream) => 0);
    let address = bench.warm(64);
    cu!(bench, cuDevicePrimaryCtxRelease(0) => 0);
    let (mut id, mut number, mut of, mut ms) = (0, 0, null_mut(), 0.0);
    cu!(bench, cuStreamQuery(stream) => 709);
    cu!(bench, cuStreamSynchronize(stream) => 709);
    cu!(bench, cuStreamWaitEvent(stream, event, 0) => 709);
    cu!(bench, cuStreamGetId(stream, &mut id) => 709);
    cu!(bench, cuStreamGetPriority(stream, &mut number) => 709);
    cu!(bench, cuStreamGetCtx(stream, &mut of) => 709);
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    cu!(bench, cuStreamIsCapturing(stream, &mut status) => 709);
    bench.count(stream, 709);
    cu!(bench, cuMemsetD8Async(address, 1, 64, stream) => 709);
    cu!(bench, cuMemcpyAsync(address, address + 32, 16, stream) => 709);
    cu!(bench, cuMemcpyPeerAsync(address, context, address + 32, context, 16, stream) => 709);
    cu!(bench, cuMemAllocAsync(&mut id, 64, stream) => 709);
    cu!(bench, cuMemFreeAsync(address, stream) => 709);
    for event in [event, unrecorded] {
        cu!(bench, cuEventQuery(event) => 709);
        cu!(bench, cuEventSynchronize(event) => 709);
        cu!(bench, cuEventRecord(event, stream) => 709);
        cu!(bench, cuEventElapsedTime(&mut ms, event, event) => 709);
        cu!(bench, cuEventDestroy(event) => 709);
    }
    cu!(bench, cuStreamDestroy(stream) => 709);
}

fn handles_after_release_without_a_context(bench: &Bench) {
    bench.start();
    let (stream, event, address) = (bench.stream(1), bench.event(), bench.warm(64));
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    cu!(bench, cuDevicePrimaryCtxRelease(0) => 0);
    cu!(bench, cuStreamQuery(stream) => 709);
    cu!(bench, cuStreamSynchronize(stream) => 709);
    cu!(bench, cuEventQuery(event) => 709);
    cu!(bench, cuEventSynchronize(event) => 709);
    cu!(bench, cuEventRecord(event, stream) => 709);
    cu!(bench, cuMemsetD8Async(address, 1, 64, stream) => 709);
    cu!(bench, cuStreamDestroy(stream) => 709);
    cu!(bench, cuEventDestroy(event) => 709);
}

fn kernels_after_release(bench: &Bench) {
    bench.start();
    let (module, stream) = (bench.module(), bench.stream(1));
    let (function, mut found, mut number) = (bench.writer(), null_mut(), 0);
    cu!(bench, cuDevicePrimaryCtxRelease(0) => 0);
    bench.write(function, 4096, 1, stream, 709);
    bench.write(function, 4096, 1, null_mut(), 709);
    cu!(bench, cuModuleGetFunction(&mut found, module, c"contract_write".as_ptr()) => 709);
    cu!(bench, cuOccupancyMaxActiveBlocksPerMultiprocessor(
        &mut number, function, 128, 0) => 709);
    cu!(bench, cuModuleUnload(module) => 709);
}
