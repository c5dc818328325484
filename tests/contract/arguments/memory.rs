//! Wrong arguments: memory that is handed out whole, copies and fills.

use crate::Row;
use crate::bench::{Bench, cu, handle, host};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["arguments":
    cuMemGetInfo, cuMemAlloc, cuMemFree, cuMemHostAlloc, cuMemFreeHost, cuMemHostRegister,
    cuMemHostUnregister, cuPointerGetAttribute, cuMemcpyAsync, cuMemcpyPeerAsync,
    cuMemcpy2DAsync, cuMemcpy3DPeerAsync, cuMemsetD8Async, cuMemsetD16Async, cuMemsetD32Async,
];

fn cuMemGetInfo(bench: &Bench) {
    let (mut free, mut total) = (77, 77);
    cu!(bench, cuMemGetInfo(&mut free, &mut total) => 3);
    cu!(bench, cuInit(0) => 0);
    cu!(bench, cuMemGetInfo(&mut free, &mut total) => 201);
    bench.is("cleared", (free, total), (0, 0));
    cu!(bench, cuMemGetInfo(null_mut(), null_mut()) => 201);
}

fn cuMemAlloc(bench: &Bench) {
    bench.start();
    let mut address = 77;
    cu!(bench, cuMemAlloc(null_mut(), 0) => 1);
    cu!(bench, cuMemAlloc(null_mut(), 16) => 1);
    cu!(bench, cuMemAlloc(&mut address, 0) => 1);
    for bytes in [1 << 45, 1 << 62, usize::MAX - 4096, usize::MAX - 1, usize::MAX] {
        cu!(bench, cuMemAlloc(&mut address, bytes) => 2);
    }
    bench.is("untouched", address == 77 || address == 0, true);
    cu!(bench, cuMemAlloc(&mut address, 16) => 0);
}

fn cuMemFree(bench: &Bench) {
    bench.start();
    let address = bench.allocate(4096);
    for wrong in [1, 511, address + 1, address + 512, address + 4095, 1 << 47, u64::MAX] {
        cu!(bench, cuMemFree(wrong) => 1);
    }
    cu!(bench, cuMemFree(address) => 0);
}

fn cuMemHostAlloc(bench: &Bench) {
    bench.start();
    let mut address = handle(77);
    cu!(bench, cuMemHostAlloc(null_mut(), 16, 0) => 1);
    cu!(bench, cuMemHostAlloc(null_mut(), 0, 0) => 1);
    for flags in [8, 0x10, 0x40, 0x8000_0000, u32::MAX] {
        cu!(bench, cuMemHostAlloc(&mut address, 16, flags) => 1);
        cu!(bench, cuMemHostAlloc(&mut address, 0, flags) => 1);
    }
    for bytes in [1 << 50, usize::MAX - 4096, usize::MAX] {
        cu!(bench, cuMemHostAlloc(&mut address, bytes, 0) => 2);
    }
    bench.is("untouched", address.addr() == 77 || address.is_null(), true);
}

fn cuMemFreeHost(bench: &Bench) {
    bench.start();
    let (start, device) = (bench.pinned(8192).as_mut_ptr(), bench.allocate(64));
    cu!(bench, cuMemFreeHost(start.wrapping_add(1).cast()) => 1);
    cu!(bench, cuMemFreeHost(start.wrapping_add(4096).cast()) => 1);
    cu!(bench, cuMemFreeHost(handle(1)) => 1);
    cu!(bench, cuMemFreeHost(handle(usize::MAX)) => 1);
    cu!(bench, cuMemFreeHost(handle(device as usize)) => 1);
    cu!(bench, cuMemFreeHost(start.cast()) => 0);
}

fn cuMemHostRegister(bench: &Bench) {
    bench.start();
    let memory = Vec::leak(vec![0u8; 8192]);
    let start: *mut c_void = memory.as_mut_ptr().cast();
    cu!(bench, cuMemHostRegister(null_mut(), 64, 0) => 1);
    cu!(bench, cuMemHostRegister(null_mut(), 0, 0) => 1);
    cu!(bench, cuMemHostRegister(start, 0, 0) => 1);
    for flags in [0x10, 0x40, 0x8000_0000, u32::MAX] {
        cu!(bench, cuMemHostRegister(start, 64, flags) => 1);
    }
    cu!(bench, cuMemHostRegister(start, usize::MAX, 0) => 1);
    cu!(bench, cuMemHostUnregister(start) => 713);
}

fn cuMemHostUnregister(bench: &Bench) {
    bench.start();
    let local = [0u8; 64];
    cu!(bench, cuMemHostUnregister(null_mut()) => 1);
    cu!(bench, cuMemHostUnregister(local.as_ptr().cast_mut().cast()) => 713);
    cu!(bench, cuMemHostUnregister(handle(1)) => 713);
    let device = bench.allocate(64) as usize;
    cu!(bench, cuMemHostUnregister(handle(device)) => 1);
}

fn cuPointerGetAttribute(bench: &Bench) {
    use CUpointer_attribute::*;
    bench.start();
    let (address, local, mut value) = (bench.allocate(64), [0u8; 8], 77u64);
    let out: *mut c_void = (&raw mut value).cast();
    for attribute in [CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_RANGE_SIZE] {
        cu!(bench, cuPointerGetAttribute(null_mut(), attribute, address) => 1);
        cu!(bench, cuPointerGetAttribute(out, attribute, 0) => 1);
        cu!(bench, cuPointerGetAttribute(out, attribute, 1) => 1);
        cu!(bench, cuPointerGetAttribute(out, attribute, host(&local)) => 1);
        cu!(bench, cuPointerGetAttribute(out, attribute, address + 64) => 1);
        cu!(bench, cuPointerGetAttribute(out, attribute, address - 1) => 1);
        cu!(bench, cuPointerGetAttribute(out, attribute, u64::MAX) => 1);
    }
}

fn cuMemcpyAsync(bench: &Bench) {
    bench.start();
    let (address, stream) = (bench.allocate(4096), bench.stream(1));
    cu!(bench, cuMemcpyAsync(0, address, 64, stream) => 1);
    cu!(bench, cuMemcpyAsync(address, 0, 64, stream) => 1);
    cu!(bench, cuMemcpyAsync(0, 0, 64, stream) => 1);
    cu!(bench, cuMemcpyAsync(0, 0, 0, stream) => 0);
    cu!(bench, cuMemcpyAsync(address, address, 4097, stream) => 1);
    cu!(bench, cuMemcpyAsync(address, address, usize::MAX, stream) => 1);
    cu!(bench, cuMemcpyAsync(address, address + 2048, 2049, stream) => 1);
    cu!(bench, cuStreamSynchronize(stream) => 0);
}

fn cuMemcpyPeerAsync(bench: &Bench) {
    let context = bench.start();
    let (address, stream) = (bench.allocate(4096), bench.stream(1));
    cu!(bench, cuMemcpyPeerAsync(0, context, address, context, 64, stream) => 1);
    cu!(bench, cuMemcpyPeerAsync(address, context, 0, context, 64, stream) => 1);
    cu!(bench, cuMemcpyPeerAsync(address, context, address, context, 4097, stream) => 1);
    cu!(bench, cuMemcpyPeerAsync(address, context, address + 1024, null_mut(), 64, stream) => 0);
    cu!(bench, cuMemcpyPeerAsync(address, null_mut(), address + 1024, null_mut(), 64, stream) => 0);
    cu!(bench, cuMemcpyPeerAsync(0, null_mut(), 0, null_mut(), 0, stream) => 0);
    cu!(bench, cuStreamSynchronize(stream) => 0);
}

/// A copy of three rows of eight bytes within device memory.
fn rows(target: u64, source: u64) -> CUDA_MEMCPY2D {
    CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: null(),
        srcDevice: source,
        srcArray: null_mut(),
        srcPitch: 16,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: null_mut(),
        dstDevice: target,
        dstArray: null_mut(),
        dstPitch: 16,
        WidthInBytes: 8,
        Height: 3,
    }
}

fn cuMemcpy2DAsync(bench: &Bench) {
    bench.start();
    let (source, target, stream) = (bench.allocate(4096), bench.allocate(4096), bench.stream(1));
    let mut copy = rows(target, source);
    cu!(bench, cuMemcpy2DAsync(&copy, stream) => 0);
    copy.Height = 0;
    cu!(bench, cuMemcpy2DAsync(&copy, stream) => 0);
    copy.dstDevice = 0;
    cu!(bench, cuMemcpy2DAsync(&copy, stream) => 0);
    copy.Height = 3;
    cu!(bench, cuMemcpy2DAsync(&copy, stream) => 1);
    copy = rows(target, source);
    copy.srcXInBytes = 9;
    cu!(bench, cuMemcpy2DAsync(&copy, stream) => 1);
    copy = rows(target, source);
    copy.Height = 257;
    cu!(bench, cuMemcpy2DAsync(&copy, stream) => 1);
    copy = rows(target, source);
    copy.srcY = 254;
    cu!(bench, cuMemcpy2DAsync(&copy, stream) => 1);
    copy = rows(target, source);
    copy.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_ARRAY;
    cu!(bench, cuMemcpy2DAsync(&copy, stream) => 1);
    copy = rows(target, source);
    copy.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_HOST;
    cu!(bench, cuMemcpy2DAsync(&copy, stream) => 1);
    copy = rows(target, source);
    copy.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_UNIFIED;
    cu!(bench, cuMemcpy2DAsync(&copy, stream) => 0);
    copy = rows(target, source);
    (copy.srcPitch, copy.dstPitch, copy.Height) = (0, 0, 1);
    cu!(bench, cuMemcpy2DAsync(&copy, stream) => 0);
    copy.Height = 2;
    cu!(bench, cuMemcpy2DAsync(&copy, stream) => 0);
    cu!(bench, cuStreamSynchronize(stream) => 0);
}

/// A copy of two planes of three rows of eight bytes within device memory.
fn planes(target: u64, source: u64, context: CUcontext) -> CUDA_MEMCPY3D_PEER {
    CUDA_MEMCPY3D_PEER {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: null(),
        srcDevice: source,
        srcArray: null_mut(),
        srcContext: context,
        srcPitch: 16,
        srcHeight: 4,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: null_mut(),
        dstDevice: target,
        dstArray: null_mut(),
        dstContext: context,
        dstPitch: 16,
        dstHeight: 4,
        WidthInBytes: 8,
        Height: 3,
        Depth: 2,
    }
}

fn cuMemcpy3DPeerAsync(bench: &Bench) {
    let context = bench.start();
    let (source, target, stream) = (bench.allocate(4096), bench.allocate(4096), bench.stream(1));
    let whole = || planes(target, source, context);
    cu!(bench, cuMemcpy3DPeerAsync(&whole(), stream) => 0);
    let mut copy = whole();
    (copy.srcContext, copy.dstContext) = (null_mut(), null_mut());
    cu!(bench, cuMemcpy3DPeerAsync(&copy, stream) => 0);
    copy = whole();
    copy.Depth = 0;
    cu!(bench, cuMemcpy3DPeerAsync(&copy, stream) => 0);
    copy = whole();
    copy.dstDevice = 0;
    cu!(bench, cuMemcpy3DPeerAsync(&copy, stream) => 1);
    copy = whole();
    copy.srcPitch = 7;
    cu!(bench, cuMemcpy3DPeerAsync(&copy, stream) => 1);
    copy = whole();
    copy.srcHeight = 2;
    cu!(bench, cuMemcpy3DPeerAsync(&copy, stream) => 1);
    copy = whole();
    copy.srcLOD = 1;
    cu!(bench, cuMemcpy3DPeerAsync(&copy, stream) => 0);
    copy = whole();
    copy.dstZ = 63;
    cu!(bench, cuMemcpy3DPeerAsync(&copy, stream) => 1);
    copy = whole();
    copy.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_ARRAY;
    cu!(bench, cuMemcpy3DPeerAsync(&copy, stream) => 1);
    cu!(bench, cuStreamSynchronize(stream) => 0);
}

// A size that overflows is not noticed by the driver, and breaks the context: no rows.

fn cuMemsetD8Async(bench: &Bench) {
    bench.start();
    let (address, stream) = (bench.allocate(4096), bench.stream(1));
    cu!(bench, cuMemsetD8Async(0, 1, 64, stream) => 1);
    cu!(bench, cuMemsetD8Async(0, 1, 0, stream) => 0);
    cu!(bench, cuMemsetD8Async(address, 1, 0, stream) => 0);
    cu!(bench, cuMemsetD8Async(address, 1, 4097, stream) => 1);
    cu!(bench, cuMemsetD8Async(address + 4095, 1, 2, stream) => 1);
    cu!(bench, cuMemsetD8Async(1, 1, 1, stream) => 1);
    cu!(bench, cuStreamSynchronize(stream) => 0);
}

fn cuMemsetD16Async(bench: &Bench) {
    bench.start();
    let (address, stream) = (bench.allocate(4096), bench.stream(1));
    cu!(bench, cuMemsetD16Async(0, 1, 64, stream) => 1);
    cu!(bench, cuMemsetD16Async(address, 1, 0, stream) => 0);
    cu!(bench, cuMemsetD16Async(address + 1, 1, 1, stream) => 1);
    cu!(bench, cuMemsetD16Async(address + 1, 1, 0, stream) => 0);
    cu!(bench, cuMemsetD16Async(address, 1, 2049, stream) => 1);
    cu!(bench, cuStreamSynchronize(stream) => 0);
}

fn cuMemsetD32Async(bench: &Bench) {
    bench.start();
    let (address, stream) = (bench.allocate(4096), bench.stream(1));
    cu!(bench, cuMemsetD32Async(0, 1, 64, stream) => 1);
    cu!(bench, cuMemsetD32Async(address, 1, 0, stream) => 0);
    cu!(bench, cuMemsetD32Async(address + 2, 1, 1, stream) => 1);
    cu!(bench, cuMemsetD32Async(address + 1, 1, 0, stream) => 0);
    cu!(bench, cuMemsetD32Async(address, 1, 1025, stream) => 1);
    cu!(bench, cuStreamSynchronize(stream) => 0);
}
