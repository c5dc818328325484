//! Wrong arguments: virtual memory and pools.

use crate::Row;
use crate::bench::{Bench, UNIT, access, cu, handle, location, pool_properties, properties};
use std::ptr::{null, null_mut};
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["arguments":
    cuMemGetAllocationGranularity, cuMemAddressReserve, cuMemAddressFree, cuMemCreate, cuMemRelease,
    cuMemGetAllocationPropertiesFromHandle, cuMemMap, cuMemUnmap, cuMemSetAccess, cuMemGetAccess,
    cuDeviceGetDefaultMemPool,
    cuMemPoolCreate, cuMemPoolDestroy, cuMemPoolSetAttribute, cuMemPoolGetAttribute,
    cuMemPoolSetAccess, cuMemPoolTrimTo, cuMemAllocAsync, cuMemAllocFromPoolAsync, cuMemFreeAsync,
];

const U: u64 = UNIT as u64;

fn cuMemGetAllocationGranularity(bench: &Bench) {
    let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let mut bytes = 77;
    cu!(bench, cuMemGetAllocationGranularity(&mut bytes, &properties(0), least) => 3);
    bench.start();
    cu!(bench, cuMemGetAllocationGranularity(null_mut(), null(), least) => 1);
    cu!(bench, cuMemGetAllocationGranularity(null_mut(), &properties(0), least) => 1);
    cu!(bench, cuMemGetAllocationGranularity(&mut bytes, null(), least) => 1);
    bench.is("untouched", bytes, 77);
    cu!(bench, cuMemGetAllocationGranularity(&mut bytes, &properties(4096), least) => 0);
}

fn cuMemAddressReserve(bench: &Bench) {
    bench.start();
    let mut address = 77;
    for bytes in [0, 1, 4096, UNIT - 1, UNIT + 1, usize::MAX] {
        cu!(bench, cuMemAddressReserve(&mut address, bytes, 0, 0, 0) => 1);
    }
    for alignment in [1, 2, 4096, 1 << 40] {
        cu!(bench, cuMemAddressReserve(&mut address, UNIT, alignment, 0, 0) => 0);
    }
    address = 77;
    for alignment in [3, 4097, UNIT + 1, 3 * UNIT, usize::MAX] {
        cu!(bench, cuMemAddressReserve(&mut address, UNIT, alignment, 0, 0) => 1);
    }
    for flags in [1, 2, 1 << 63] {
        cu!(bench, cuMemAddressReserve(&mut address, UNIT, 0, 0, flags) => 1);
    }
    for bytes in [1 << 58, 1 << 62, usize::MAX - UNIT + 1] {
        cu!(bench, cuMemAddressReserve(&mut address, bytes, 0, 0, 0) => 2);
    }
    bench.is("untouched", address, 77);
    cu!(bench, cuMemAddressReserve(null_mut(), UNIT, 0, 0, 0) => 1);
    // A wish is no condition, but it must be one that could be met.
    cu!(bench, cuMemAddressReserve(&mut address, UNIT, 0, 4096, 0) => 1);
    cu!(bench, cuMemAddressReserve(&mut address, UNIT, 0, u64::MAX, 0) => 1);
}

fn cuMemAddressFree(bench: &Bench) {
    bench.start();
    let start = bench.reserve(4 * UNIT);
    cu!(bench, cuMemAddressFree(start, 0) => 1);
    cu!(bench, cuMemAddressFree(start, 4096) => 1);
    cu!(bench, cuMemAddressFree(start, 3 * UNIT) => 1);
    cu!(bench, cuMemAddressFree(start, 5 * UNIT) => 1);
    cu!(bench, cuMemAddressFree(start, usize::MAX) => 1);
    cu!(bench, cuMemAddressFree(start + 1, 4 * UNIT) => 1);
    cu!(bench, cuMemAddressFree(start + U, 3 * UNIT) => 1);
    cu!(bench, cuMemAddressFree(0, 4 * UNIT) => 1);
    cu!(bench, cuMemAddressFree(0, 0) => 1);
    cu!(bench, cuMemAddressFree(u64::MAX, UNIT) => 1);
    cu!(bench, cuMemAddressFree(start, 4 * UNIT) => 0);
}

fn cuMemCreate(bench: &Bench) {
    bench.start();
    let mut created = 77;
    for bytes in [0, 1, 4096, UNIT - 1, UNIT + 1, usize::MAX] {
        cu!(bench, cuMemCreate(&mut created, bytes, &properties(0), 0) => 1);
    }
    for bytes in [1 << 46, 1 << 62] {
        cu!(bench, cuMemCreate(&mut created, bytes, &properties(0), 0) => 2);
    }
    for device in [-1, 4096, i32::MAX, i32::MIN] {
        cu!(bench, cuMemCreate(&mut created, UNIT, &properties(device), 0) => 101);
    }
    for flags in [1, 1 << 63] {
        cu!(bench, cuMemCreate(&mut created, UNIT, &properties(0), flags) => 1);
    }
    cu!(bench, cuMemCreate(&mut created, UNIT, null(), 0) => 1);
    let mut wrong = properties(0);
    wrong.requestedHandleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_WIN32;
    cu!(bench, cuMemCreate(&mut created, UNIT, &wrong, 0) => 1);
    bench.is("untouched", created, 77);
    cu!(bench, cuMemCreate(null_mut(), UNIT, &properties(0), 0) => 1);
}

fn cuMemRelease(bench: &Bench) {
    cu!(bench, cuMemRelease(0) => 3);
    bench.start();
    cu!(bench, cuMemRelease(0) => 1);
}

fn cuMemGetAllocationPropertiesFromHandle(bench: &Bench) {
    let mut found = properties(77);
    cu!(bench, cuMemGetAllocationPropertiesFromHandle(&mut found, 1) => 3);
    bench.start();
    let handle = bench.create(UNIT);
    cu!(bench, cuMemGetAllocationPropertiesFromHandle(null_mut(), handle) => 1);
    cu!(bench, cuMemGetAllocationPropertiesFromHandle(&mut found, 0) => 1);
    bench.is("untouched", found.location.id, 77);
    cu!(bench, cuMemGetAllocationPropertiesFromHandle(&mut found, handle) => 0);
    bench.is("device", found.location.id, 0);
    bench.is("type of location", found.location.type_, properties(0).location.type_);
    bench.is("type", found.type_, properties(0).type_);
    bench.is("handle types", found.requestedHandleTypes, properties(0).requestedHandleTypes);
    cu!(bench, cuMemRelease(handle) => 0);
}

fn cuMemMap(bench: &Bench) {
    bench.start();
    let (start, created) = (bench.reserve(4 * UNIT), bench.create(2 * UNIT));
    cu!(bench, cuMemMap(start, 2 * UNIT, 0, 0, 0) => 1);
    cu!(bench, cuMemMap(start, 0, 0, created, 0) => 1);
    cu!(bench, cuMemMap(start, 2 * UNIT, 0, created, 1) => 1);
    cu!(bench, cuMemMap(start + 1, 2 * UNIT, 0, created, 0) => 1);
    cu!(bench, cuMemMap(start, usize::MAX, 0, created, 0) => 801);
    cu!(bench, cuMemMap(start, 2 * UNIT, 1, created, 0) => 801);
    cu!(bench, cuMemMap(start, 2 * UNIT, usize::MAX, created, 0) => 801);
    cu!(bench, cuMemMap(0, 2 * UNIT, 0, created, 0) => 1);
    cu!(bench, cuMemMap(1 << 46, 2 * UNIT, 0, created, 0) => 1);
    cu!(bench, cuMemMap(start, 2 * UNIT, 0, created, 0) => 0);
}

fn cuMemUnmap(bench: &Bench) {
    bench.start();
    let start = bench.mapped(2 * UNIT);
    cu!(bench, cuMemUnmap(start, 0) => 1);
    cu!(bench, cuMemUnmap(start, 4096) => 1);
    cu!(bench, cuMemUnmap(start + 1, 2 * UNIT) => 1);
    cu!(bench, cuMemUnmap(start, UNIT) => 1);
    cu!(bench, cuMemUnmap(start + U, UNIT) => 1);
    cu!(bench, cuMemUnmap(0, 2 * UNIT) => 1);
    cu!(bench, cuMemUnmap(1 << 46, 2 * UNIT) => 1);
    cu!(bench, cuMemUnmap(start, 2 * UNIT) => 0);
}

fn cuMemSetAccess(bench: &Bench) {
    bench.start();
    let (start, mut wrong) = (bench.mapped(2 * UNIT), access(0, 3));
    cu!(bench, cuMemSetAccess(start, 2 * UNIT, null(), 0) => 1);
    cu!(bench, cuMemSetAccess(start, 2 * UNIT, null(), 1) => 1);
    cu!(bench, cuMemSetAccess(start, 2 * UNIT, &wrong, 0) => 1);
    cu!(bench, cuMemSetAccess(start, 0, &wrong, 1) => 1);
    cu!(bench, cuMemSetAccess(start, UNIT, &wrong, 1) => 1);
    cu!(bench, cuMemSetAccess(start, 3 * UNIT, &wrong, 1) => 1);
    cu!(bench, cuMemSetAccess(start, usize::MAX, &wrong, 1) => 1);
    cu!(bench, cuMemSetAccess(start + 1, 2 * UNIT, &wrong, 1) => 1);
    cu!(bench, cuMemSetAccess(0, 2 * UNIT, &wrong, 1) => 1);
    for device in [-1, 4096, i32::MAX] {
        cu!(bench, cuMemSetAccess(start, 2 * UNIT, &access(device, 3), 1) => 1);
    }
    wrong.flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_MAX;
    cu!(bench, cuMemSetAccess(start, 2 * UNIT, &wrong, 1) => 1);
    let mut flags = 0;
    cu!(bench, cuMemGetAccess(&mut flags, &location(0), start) => 0);
    bench.is("unchanged", flags, 3);
}

fn cuMemGetAccess(bench: &Bench) {
    bench.start();
    let (start, mut flags) = (bench.mapped(UNIT), 77);
    cu!(bench, cuMemGetAccess(null_mut(), &location(0), start) => 1);
    cu!(bench, cuMemGetAccess(&mut flags, null(), start) => 1);
    for device in [-1, 4096, i32::MAX] {
        cu!(bench, cuMemGetAccess(&mut flags, &location(device), start) => 101);
    }
    for address in [0, 1, 1 << 46, u64::MAX] {
        cu!(bench, cuMemGetAccess(&mut flags, &location(0), address) => 1);
    }
    let mut wrong = location(0);
    wrong.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID;
    cu!(bench, cuMemGetAccess(&mut flags, &wrong, start) => 101);
    bench.is("cleared", flags, 0);
}

fn cuDeviceGetDefaultMemPool(bench: &Bench) {
    let mut pool = handle(77);
    cu!(bench, cuDeviceGetDefaultMemPool(&mut pool, 0) => 3);
    bench.start();
    for device in [-1, 4096, i32::MAX] {
        cu!(bench, cuDeviceGetDefaultMemPool(&mut pool, device) => 101);
    }
    bench.is("untouched", pool.addr(), 77);
    cu!(bench, cuDeviceGetDefaultMemPool(null_mut(), 0) => 1);
    cu!(bench, cuDeviceGetDefaultMemPool(null_mut(), -1) => 101);
}

fn cuMemPoolCreate(bench: &Bench) {
    bench.start();
    let mut pool = handle(77);
    cu!(bench, cuMemPoolCreate(null_mut(), &pool_properties(0)) => 1);
    cu!(bench, cuMemPoolCreate(&mut pool, null()) => 1);
    for device in [-1, 4096, i32::MAX] {
        cu!(bench, cuMemPoolCreate(&mut pool, &pool_properties(device)) => 1);
    }
    let mut wrong = pool_properties(0);
    wrong.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_INVALID;
    cu!(bench, cuMemPoolCreate(&mut pool, &wrong) => 1);
    wrong = pool_properties(0);
    wrong.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID;
    cu!(bench, cuMemPoolCreate(&mut pool, &wrong) => 1);
    wrong = pool_properties(0);
    wrong.handleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_WIN32;
    cu!(bench, cuMemPoolCreate(&mut pool, &wrong) => 1);
    bench.is("untouched", pool.addr() == 77 || pool.is_null(), true);
    wrong = pool_properties(0);
    wrong.handleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    cu!(bench, cuMemPoolCreate(&mut pool, &wrong) => 0);
    cu!(bench, cuMemPoolDestroy(pool) => 0);
}

fn cuMemPoolDestroy(bench: &Bench) {
    cu!(bench, cuMemPoolDestroy(null_mut()) => 3);
    bench.start();
    cu!(bench, cuMemPoolDestroy(null_mut()) => 1);
    cu!(bench, cuMemPoolDestroy(bench.default_pool()) => 1);
}

fn cuMemPoolSetAttribute(bench: &Bench) {
    use CUmemPool_attribute::*;
    bench.start();
    let (pool, mut value) = (bench.default_pool(), 0u64);
    let at = (&raw mut value).cast();
    cu!(bench, cuMemPoolSetAttribute(null_mut(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, at) => 1);
    cu!(bench, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, at) => 1);
    cu!(bench, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, at) => 1);
}

fn cuMemPoolGetAttribute(bench: &Bench) {
    use CUmemPool_attribute::*;
    bench.start();
    let (pool, mut value) = (bench.default_pool(), 77u64);
    let at = (&raw mut value).cast();
    cu!(bench, cuMemPoolGetAttribute(null_mut(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, at) => 1);
    cu!(bench, cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, null_mut()) => 1);
    bench.is("untouched", value, 77);
}

fn cuMemPoolSetAccess(bench: &Bench) {
    bench.start();
    let (pool, mut wrong) = (bench.default_pool(), access(0, 3));
    cu!(bench, cuMemPoolSetAccess(null_mut(), &wrong, 1) => 1);
    cu!(bench, cuMemPoolSetAccess(pool, null(), 1) => 1);
    cu!(bench, cuMemPoolSetAccess(pool, &wrong, 0) => 0);
    cu!(bench, cuMemPoolSetAccess(pool, null(), 0) => 1);
    for device in [-1, 4096, i32::MAX] {
        cu!(bench, cuMemPoolSetAccess(pool, &access(device, 3), 1) => 101);
    }
    cu!(bench, cuMemPoolSetAccess(pool, &access(0, 1), 1) => 801);
    wrong.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID;
    cu!(bench, cuMemPoolSetAccess(pool, &wrong, 1) => 801);
}

fn cuMemPoolTrimTo(bench: &Bench) {
    cu!(bench, cuMemPoolTrimTo(null_mut(), 0) => 3);
    bench.start();
    cu!(bench, cuMemPoolTrimTo(null_mut(), 0) => 1);
    cu!(bench, cuMemPoolTrimTo(bench.default_pool(), usize::MAX) => 0);
}

fn cuMemAllocAsync(bench: &Bench) {
    bench.start();
    let (stream, mut address) = (bench.stream(1), 77);
    cu!(bench, cuMemAllocAsync(null_mut(), 64, stream) => 1);
    cu!(bench, cuMemAllocAsync(null_mut(), 0, stream) => 1);
    for bytes in [1 << 45, 1 << 62, usize::MAX - 4096, usize::MAX] {
        cu!(bench, cuMemAllocAsync(&mut address, bytes, stream) => 2);
    }
    bench.is("untouched", address == 77 || address == 0, true);
    cu!(bench, cuMemAllocAsync(&mut address, 0, stream) => 0);
    bench.is("nothing", address, 0);
    cu!(bench, cuStreamSynchronize(stream) => 0);
}

fn cuMemAllocFromPoolAsync(bench: &Bench) {
    bench.start();
    let (stream, pool, mut address) = (bench.stream(1), bench.default_pool(), 77);
    cu!(bench, cuMemAllocFromPoolAsync(null_mut(), 64, pool, stream) => 1);
    cu!(bench, cuMemAllocFromPoolAsync(&mut address, 64, null_mut(), stream) => 1);
    cu!(bench, cuMemAllocFromPoolAsync(&mut address, 0, null_mut(), stream) => 1);
    for bytes in [1 << 45, 1 << 62, usize::MAX] {
        cu!(bench, cuMemAllocFromPoolAsync(&mut address, bytes, pool, stream) => 2);
    }
    bench.is("untouched", address == 77 || address == 0, true);
    cu!(bench, cuMemAllocFromPoolAsync(&mut address, 0, pool, stream) => 0);
    cu!(bench, cuStreamSynchronize(stream) => 0);
}

fn cuMemFreeAsync(bench: &Bench) {
    bench.start();
    let (stream, mut block) = (bench.stream(1), 0);
    cu!(bench, cuMemAllocAsync(&mut block, 4096, stream) => 0);
    for wrong in [1, block + 1, block + 512, block + 4096, 1 << 46, u64::MAX] {
        cu!(bench, cuMemFreeAsync(wrong, stream) => 1);
    }
    cu!(bench, cuMemFreeAsync(0, stream) => 0);
    cu!(bench, cuMemFreeAsync(block, stream) => 0);
    cu!(bench, cuStreamSynchronize(stream) => 0);
}
