//! Wrong arguments: devices and contexts.

use crate::Row;
use crate::bench::{Bench, cu, handle};
use crate::other_calls::{Calls, other};
use std::ptr::{null, null_mut};
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["arguments":
    cuInit, cuDriverGetVersion, cuDeviceGetCount, cuDeviceGet, cuDeviceGetName, cuDeviceGetUuid,
    cuDeviceTotalMem, cuDeviceGetAttribute, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRelease,
    cuDevicePrimaryCtxReset, cuDevicePrimaryCtxGetState, cuDeviceCanAccessPeer,
    cuCtxEnablePeerAccess, cuCtxGetCurrent, cuCtxSetCurrent, cuCtxPushCurrent, cuCtxPopCurrent,
    cuCtxGetDevice, cuCtxSynchronize, cuCtxGetStreamPriorityRange, cuProfilerStart, cuProfilerStop,
    cuGetExportTable,
];

/// Ordinals of devices that no machine has.
const ABSENT: [i32; 4] = [-1, -2, 4096, i32::MAX];

fn cuInit(bench: &Bench) {
    for flags in [1, 2, 0x8000_0000, u32::MAX] {
        cu!(bench, cuInit(flags) => 1);
    }
    cu!(bench, cuDeviceGetCount(&mut 0) => 3);
    cu!(bench, cuInit(0) => 0);
}

fn cuDriverGetVersion(bench: &Bench) {
    cu!(bench, cuDriverGetVersion(null_mut()) => 1);
    bench.start();
    cu!(bench, cuDriverGetVersion(null_mut()) => 1);
}

fn cuDeviceGetCount(bench: &Bench) {
    cu!(bench, cuDeviceGetCount(null_mut()) => 3);
    bench.start();
    cu!(bench, cuDeviceGetCount(null_mut()) => 1);
}

fn cuDeviceGet(bench: &Bench) {
    bench.start();
    let mut device = 77;
    for ordinal in ABSENT {
        cu!(bench, cuDeviceGet(&mut device, ordinal) => 101);
    }
    bench.is("untouched", device, 77);
    cu!(bench, cuDeviceGet(null_mut(), 0) => 1);
    cu!(bench, cuDeviceGet(null_mut(), -1) => 1);
}

fn cuDeviceGetName(bench: &Bench) {
    bench.start();
    let mut name = [7; 8];
    for device in ABSENT {
        cu!(bench, cuDeviceGetName(name.as_mut_ptr(), 8, device) => 101);
    }
    bench.is("untouched", name, [7; 8]);
    cu!(bench, cuDeviceGetName(name.as_mut_ptr(), 1, 0) => 0);
    bench.is("only its end", name, [0, 7, 7, 7, 7, 7, 7, 7]);
}

fn cuDeviceGetUuid(bench: &Bench) {
    bench.start();
    let mut uuid = CUuuid { bytes: [7; 16] };
    for device in ABSENT {
        cu!(bench, cuDeviceGetUuid(&mut uuid, device) => 101);
    }
    bench.is("untouched", uuid.bytes, [7; 16]);
    cu!(bench, cuDeviceGetUuid(null_mut(), 0) => 1);
    cu!(bench, cuDeviceGetUuid(null_mut(), -1) => 1);
}

fn cuDeviceTotalMem(bench: &Bench) {
    bench.start();
    let mut bytes = 77;
    for device in ABSENT {
        cu!(bench, cuDeviceTotalMem(&mut bytes, device) => 101);
    }
    bench.is("cleared", bytes, 0);
    cu!(bench, cuDeviceTotalMem(null_mut(), 0) => 1);
    cu!(bench, cuDeviceTotalMem(null_mut(), -1) => 1);
}

fn cuDeviceGetAttribute(bench: &Bench) {
    use CUdevice_attribute::*;
    bench.start();
    let mut value = 77;
    for device in ABSENT {
        let attribute = CU_DEVICE_ATTRIBUTE_WARP_SIZE as i32;
        cu!(bench, cuDeviceGetAttribute(&mut value, attribute, device) => 101);
    }
    bench.is("untouched", value, 77);
    cu!(bench, cuDeviceGetAttribute(null_mut(), CU_DEVICE_ATTRIBUTE_WARP_SIZE as i32, 0) => 1);
    cu!(bench, cuDeviceGetAttribute(null_mut(), CU_DEVICE_ATTRIBUTE_WARP_SIZE as i32, -1) => 1);
}

fn cuDevicePrimaryCtxRetain(bench: &Bench) {
    bench.start();
    let mut context = handle(77);
    for device in ABSENT {
        cu!(bench, cuDevicePrimaryCtxRetain(&mut context, device) => 101);
    }
    bench.is("untouched", context.addr(), 77);
    cu!(bench, cuDevicePrimaryCtxRetain(null_mut(), 0) => 1);
    cu!(bench, cuDevicePrimaryCtxRetain(null_mut(), -1) => 101);
    // The failed call has retained nothing.
    cu!(bench, cuDevicePrimaryCtxRelease(0) => 0);
    cu!(bench, cuDevicePrimaryCtxRelease(0) => 201);
}

fn cuDevicePrimaryCtxRelease(bench: &Bench) {
    bench.start();
    for device in ABSENT {
        cu!(bench, cuDevicePrimaryCtxRelease(device) => 101);
    }
    cu!(bench, cuCtxSynchronize() => 0);
}

fn cuDevicePrimaryCtxReset(bench: &Bench) {
    cu!(bench, cuDevicePrimaryCtxReset(0) => 3);
    cu!(bench, cuInit(0) => 0);
    cu!(bench, cuDevicePrimaryCtxReset(0) => 0);
    for device in ABSENT {
        cu!(bench, cuDevicePrimaryCtxReset(device) => 101);
    }
}

fn cuDevicePrimaryCtxGetState(bench: &Bench) {
    bench.start();
    let (mut flags, mut active) = (77, 77);
    for device in ABSENT {
        cu!(bench, cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) => 101);
    }
    cu!(bench, cuDevicePrimaryCtxGetState(0, null_mut(), &mut active) => 1);
    cu!(bench, cuDevicePrimaryCtxGetState(0, &mut flags, null_mut()) => 1);
    bench.is("untouched", (flags, active), (77, 77));
    cu!(bench, cuDevicePrimaryCtxGetState(-1, null_mut(), null_mut()) => 1);
}

fn cuDeviceCanAccessPeer(bench: &Bench) {
    bench.start();
    let mut possible = 77;
    for device in ABSENT {
        cu!(bench, cuDeviceCanAccessPeer(&mut possible, device, 0) => 101);
        cu!(bench, cuDeviceCanAccessPeer(&mut possible, 0, device) => 101);
    }
    bench.is("untouched", possible, 77);
    cu!(bench, cuDeviceCanAccessPeer(null_mut(), 0, 0) => 1);
    cu!(bench, cuDeviceCanAccessPeer(null_mut(), -1, 0) => 1);
}

fn cuCtxEnablePeerAccess(bench: &Bench) {
    let context = bench.start();
    cu!(bench, cuCtxEnablePeerAccess(null_mut(), 0) => 201);
    cu!(bench, cuCtxEnablePeerAccess(null_mut(), 1) => 201);
    cu!(bench, cuCtxEnablePeerAccess(context, 1) => 1);
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    cu!(bench, cuCtxEnablePeerAccess(context, 0) => 201);
}

fn cuCtxGetCurrent(bench: &Bench) {
    cu!(bench, cuCtxGetCurrent(null_mut()) => 3);
    bench.start();
    cu!(bench, cuCtxGetCurrent(null_mut()) => 1);
}

fn cuCtxSetCurrent(bench: &Bench) {
    cu!(bench, cuCtxSetCurrent(null_mut()) => 3);
    bench.start();
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
}

fn cuCtxPushCurrent(bench: &Bench) {
    cu!(bench, cuCtxPushCurrent(null_mut()) => 3);
    bench.start();
    cu!(bench, cuCtxPushCurrent(null_mut()) => 1);
    cu!(bench, cuCtxSynchronize() => 0);
}

fn cuCtxPopCurrent(bench: &Bench) {
    let mut context = handle(77);
    cu!(bench, cuCtxPopCurrent(&mut context) => 3);
    cu!(bench, cuInit(0) => 0);
    cu!(bench, cuCtxPopCurrent(&mut context) => 201);
    bench.is("untouched", context.addr(), 77);
    cu!(bench, cuCtxPopCurrent(null_mut()) => 201);
}

fn cuCtxGetDevice(bench: &Bench) {
    let mut device = 77;
    cu!(bench, cuCtxGetDevice(&mut device) => 3);
    cu!(bench, cuInit(0) => 0);
    cu!(bench, cuCtxGetDevice(&mut device) => 201);
    cu!(bench, cuCtxGetDevice(null_mut()) => 1);
    bench.is("untouched", device, 77);
    bench.start();
    cu!(bench, cuCtxGetDevice(null_mut()) => 1);
}

fn cuCtxSynchronize(bench: &Bench) {
    cu!(bench, cuCtxSynchronize() => 3);
    cu!(bench, cuInit(0) => 0);
    cu!(bench, cuCtxSynchronize() => 201);
}

fn cuCtxGetStreamPriorityRange(bench: &Bench) {
    let (mut least, mut greatest) = (77, 77);
    cu!(bench, cuCtxGetStreamPriorityRange(&mut least, &mut greatest) => 3);
    cu!(bench, cuInit(0) => 0);
    cu!(bench, cuCtxGetStreamPriorityRange(&mut least, &mut greatest) => 201);
    bench.is("untouched", (least, greatest), (77, 77));
    cu!(bench, cuCtxGetStreamPriorityRange(null_mut(), null_mut()) => 201);
}

fn cuProfilerStart(bench: &Bench) {
    cu!(bench, cuProfilerStart() => 3);
    cu!(bench, cuInit(0) => 0);
    cu!(bench, cuProfilerStart() => 201);
    bench.use_device(0);
    cu!(bench, cuProfilerStart() => 0);
    cu!(bench, cuProfilerStart() => 0);
}

fn cuProfilerStop(bench: &Bench) {
    cu!(bench, cuProfilerStop() => 3);
    cu!(bench, cuInit(0) => 0);
    cu!(bench, cuProfilerStop() => 201);
    bench.use_device(0);
    cu!(bench, cuProfilerStop() => 0);
}

/// No driver has a table of this name.
fn cuGetExportTable(bench: &Bench) {
    bench.start();
    let (calls, name, mut table) = (Calls::find(bench), b"no table of them", null());
    other!(bench, calls, cuGetExportTable(&mut table, name) => 1);
    bench.is("untouched", table.is_null(), true);
    other!(bench, calls, cuGetExportTable(null_mut(), name) => 1);
    other!(bench, calls, cuGetExportTable(&mut table, null()) => 1);
}
