//! Stream-ordered pools.

use crate::bench::{Bench, MIB, UNIT, access, cu, host_pool_properties, pool_properties};
use crate::other_calls::{Calls, other};
use crate::{Row, rows};
use std::ffi::c_int;
use std::ptr;
use tcuda::driver::sys::{
    CUmemAccess_flags, CUmemLocation, CUmemLocationType as Location,
    CUmemPool_attribute as Attribute, CUmemoryPool, CUstream,
};

pub const ROWS: &[Row] = rows!("pools":
    default_pools,
    blocks_of_a_pool,
    frees_to_pools_that_are_wrong,
    freed_memory_comes_again_on_the_stream,
    frees_keep_the_order_of_the_stream,
    attributes_of_pools,
    counters_of_pools,
    a_threshold_keeps_memory,
    trims_of_pools,
    destroyed_pools,
    blocks_freed_like_others,
    access_of_pools,
    pool_memory_is_usable_in_order,
    past_the_end_of_a_block,
    use_of_a_freed_block,
    blocks_have_ids,
    places_of_pools,
    access_of_host_pools,
    memory_of_host_pools,
    counters_of_host_pools,
    host_pools_in_captures,
    pools_of_two_devices,
    host_pools_of_two_devices,
);

fn default_pools(b: &Bench) {
    b.start();
    let (first, second) = (b.default_pool(), b.default_pool());
    b.is("the same", first == second, true);
    cu!(b, cuMemPoolDestroy(first) => 1);
    let mut pool = ptr::null_mut();
    cu!(b, cuDeviceGetDefaultMemPool(&mut pool, 99) => 101);
    cu!(b, cuMemPoolCreate(&mut pool, &pool_properties(99)) => 1);
    cu!(b, cuMemPoolCreate(&mut pool, ptr::null()) => 1);
}

fn blocks_of_a_pool(b: &Bench) {
    b.start();
    let stream = b.stream(1);
    let mut address = 0;
    cu!(b, cuMemAllocAsync(&mut address, 0, stream) => 0);
    cu!(b, cuMemAllocAsync(ptr::null_mut(), 64, stream) => 1);
    cu!(b, cuMemAllocAsync(&mut address, 64, stream) => 0);
    b.is("aligned to 512", address % 512, 0);
    cu!(b, cuMemsetD8Async(address, 3, 64, stream) => 0);
    b.is("bytes", b.fetch(address, 64, stream), vec![3; 64]);
    cu!(b, cuMemFreeAsync(address, stream) => 0);
    cu!(b, cuStreamSynchronize(stream) => 0);
}

fn frees_to_pools_that_are_wrong(b: &Bench) {
    b.start();
    let (stream, mut address) = (b.stream(1), 0);
    cu!(b, cuMemAllocAsync(&mut address, 4 * MIB, stream) => 0);
    cu!(b, cuMemFreeAsync(address + 512, stream) => 1);
    cu!(b, cuMemFreeAsync(address, stream) => 0);
    cu!(b, cuMemFreeAsync(address, stream) => 1);
    cu!(b, cuMemFreeAsync(0, stream) => 0);
    let mapped = b.mapped(UNIT);
    cu!(b, cuMemFreeAsync(mapped, stream) => 1);
    let host = [0u8; 64];
    cu!(b, cuMemFreeAsync(crate::bench::host(&host), stream) => 1);
}

fn freed_memory_comes_again_on_the_stream(b: &Bench) {
    b.start();
    let (stream, mut first, mut second) = (b.stream(1), 0, 0);
    cu!(b, cuMemAllocAsync(&mut first, 4 * MIB, stream) => 0);
    let gate = b.hold(stream);
    cu!(b, cuMemFreeAsync(first, stream) => 0);
    cu!(b, cuMemAllocAsync(&mut second, 4 * MIB, stream) => 0);
    b.is("the same block", second == first, true);
    gate.open();
    cu!(b, cuMemFreeAsync(second, stream) => 0);
}

fn frees_keep_the_order_of_the_stream(b: &Bench) {
    b.start();
    let (stream, mut address) = (b.stream(1), 0);
    b.warm(64);
    cu!(b, cuMemAllocAsync(&mut address, 4 * MIB, stream) => 0);
    let gate = b.hold(stream);
    cu!(b, cuMemsetD8Async(address, 1, 4 * MIB, stream) => 0);
    b.waits("free", gate, false, || {
        cu!(b, cuMemFreeAsync(address, stream) => 0);
    });
    gate.open();
    cu!(b, cuStreamSynchronize(stream) => 0);
}

fn number(b: &Bench, pool: CUmemoryPool, attribute: Attribute) -> u64 {
    let mut value = u64::MAX;
    cu!(b, cuMemPoolGetAttribute(pool, attribute, ptr::from_mut(&mut value).cast()) => 0);
    value
}

fn attributes_of_pools(b: &Bench) {
    b.start();
    let mut pool = ptr::null_mut();
    cu!(b, cuMemPoolCreate(&mut pool, &pool_properties(0)) => 0);
    for reuse in [
        Attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
        Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
        Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
    ] {
        let mut value: c_int = -1;
        cu!(b, cuMemPoolGetAttribute(pool, reuse, ptr::from_mut(&mut value).cast()) => 0);
        b.is("reuse", value, 1);
        value = 0;
        cu!(b, cuMemPoolSetAttribute(pool, reuse, ptr::from_mut(&mut value).cast()) => 0);
        value = 9;
        cu!(b, cuMemPoolGetAttribute(pool, reuse, ptr::from_mut(&mut value).cast()) => 0);
        b.is("reuse", value, 0);
    }
    b.is("threshold", number(b, pool, Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
    for counter in [
        Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
        Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
    ] {
        let mut value = 0u64;
        cu!(b, cuMemPoolSetAttribute(pool, counter, ptr::from_mut(&mut value).cast()) => 1);
    }
    for high in
        [Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH]
    {
        let mut value = 1u64;
        cu!(b, cuMemPoolSetAttribute(pool, high, ptr::from_mut(&mut value).cast()) => 1);
        value = 0;
        cu!(b, cuMemPoolSetAttribute(pool, high, ptr::from_mut(&mut value).cast()) => 0);
    }
}

/// Counts a block of a new pool, in use and freed.
fn count(b: &Bench, pool: CUmemoryPool, stream: CUstream) {
    let mut address = 0;
    cu!(b, cuMemAllocFromPoolAsync(&mut address, 1000, pool, stream) => 0);
    b.is("used", number(b, pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 1000);
    b.is("reserved", number(b, pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 32 << 20);
    cu!(b, cuMemFreeAsync(address, stream) => 0);
    cu!(b, cuStreamSynchronize(stream) => 0);
    b.is("used", number(b, pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    b.is("used at most", number(b, pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH), 1000);
    b.is("reserved", number(b, pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
}

fn counters_of_pools(b: &Bench) {
    b.start();
    let (stream, mut pool) = (b.stream(1), ptr::null_mut());
    cu!(b, cuMemPoolCreate(&mut pool, &pool_properties(0)) => 0);
    count(b, pool, stream);
}

fn a_threshold_keeps_memory(b: &Bench) {
    b.start();
    let (stream, mut pool, mut address) = (b.stream(1), ptr::null_mut(), 0);
    cu!(b, cuMemPoolCreate(&mut pool, &pool_properties(0)) => 0);
    let mut keep = u64::MAX;
    let threshold = Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    cu!(b, cuMemPoolSetAttribute(pool, threshold, ptr::from_mut(&mut keep).cast()) => 0);
    cu!(b, cuMemAllocFromPoolAsync(&mut address, MIB, pool, stream) => 0);
    cu!(b, cuMemFreeAsync(address, stream) => 0);
    cu!(b, cuStreamSynchronize(stream) => 0);
    b.is("kept", number(b, pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 32 << 20);
    cu!(b, cuMemPoolTrimTo(pool, 0) => 0);
    b.is("trimmed", number(b, pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
}

fn trims_of_pools(b: &Bench) {
    b.start();
    let (stream, mut pool, mut address) = (b.stream(1), ptr::null_mut(), 0);
    cu!(b, cuMemPoolTrimTo(ptr::null_mut(), 0) => 1);
    cu!(b, cuMemPoolCreate(&mut pool, &pool_properties(0)) => 0);
    cu!(b, cuMemPoolTrimTo(pool, 0) => 0);
    cu!(b, cuMemAllocFromPoolAsync(&mut address, MIB, pool, stream) => 0);
    cu!(b, cuMemPoolTrimTo(pool, 0) => 0);
    b.is("in use", number(b, pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 32 << 20);
}

fn destroyed_pools(b: &Bench) {
    b.start();
    let (stream, mut pool, mut address) = (b.stream(1), ptr::null_mut(), 0);
    cu!(b, cuMemPoolCreate(&mut pool, &pool_properties(0)) => 0);
    cu!(b, cuMemAllocFromPoolAsync(&mut address, MIB, pool, stream) => 0);
    cu!(b, cuMemPoolDestroy(pool) => 0);
    cu!(b, cuMemsetD8Async(address, 1, MIB, stream) => 0);
    cu!(b, cuMemFreeAsync(address, stream) => 0);
    cu!(b, cuStreamSynchronize(stream) => 0);
    cu!(b, cuMemPoolDestroy(ptr::null_mut()) => 1);
}

fn blocks_freed_like_others(b: &Bench) {
    b.start();
    let (stream, mut address) = (b.stream(1), 0);
    cu!(b, cuMemAllocAsync(&mut address, MIB, stream) => 0);
    cu!(b, cuMemFree(address) => 0);
    cu!(b, cuMemFreeAsync(address, stream) => 1);
    let memory = b.allocate(MIB);
    cu!(b, cuMemFreeAsync(memory, stream) => 0);
    cu!(b, cuStreamSynchronize(stream) => 0);
}

fn access_of_pools(b: &Bench) {
    b.start();
    let mut pool = ptr::null_mut();
    cu!(b, cuMemPoolCreate(&mut pool, &pool_properties(0)) => 0);
    cu!(b, cuMemPoolSetAccess(pool, &crate::bench::access(0, 3), 1) => 0);
    cu!(b, cuMemPoolSetAccess(pool, &crate::bench::access(0, 0), 1) => 101);
    cu!(b, cuMemPoolSetAccess(pool, &crate::bench::access(99, 3), 1) => 101);
}

fn pool_memory_is_usable_in_order(b: &Bench) {
    b.start();
    let (first, second, event) = (b.stream(1), b.stream(1), b.event());
    let mut address = 0;
    cu!(b, cuMemAllocAsync(&mut address, 64, first) => 0);
    cu!(b, cuEventRecord(event, first) => 0);
    cu!(b, cuStreamWaitEvent(second, event, 0) => 0);
    cu!(b, cuMemsetD8Async(address, 8, 64, second) => 0);
    b.is("bytes", b.fetch(address, 64, second), vec![8; 64]);
    cu!(b, cuMemFreeAsync(address, second) => 0);
}

fn past_the_end_of_a_block(b: &Bench) {
    b.start();
    let (stream, other, mut block) = (b.stream(1), b.warm(8192), 0);
    cu!(b, cuMemAllocAsync(&mut block, 5000, stream) => 0);
    cu!(b, cuMemsetD8Async(block, 1, 5000, stream) => 0);
    cu!(b, cuMemsetD8Async(block, 1, 5001, stream) => 1);
    cu!(b, cuMemsetD8Async(block + 4999, 1, 2, stream) => 1);
    cu!(b, cuMemcpyAsync(block, other, 5001, stream) => 1);
    cu!(b, cuMemcpyAsync(other, block, 5001, stream) => 1);
    cu!(b, cuStreamSynchronize(stream) => 0);
}

fn use_of_a_freed_block(b: &Bench) {
    b.start();
    let (stream, mut block, mut kept) = (b.stream(1), 0, 0);
    cu!(b, cuMemAllocAsync(&mut kept, 5000, stream) => 0);
    cu!(b, cuMemAllocAsync(&mut block, 5000, stream) => 0);
    cu!(b, cuMemFreeAsync(block, stream) => 0);
    cu!(b, cuMemsetD8Async(block, 1, 64, stream) => 1);
    cu!(b, cuStreamSynchronize(stream) => 0);
    cu!(b, cuMemsetD8Async(block, 1, 64, stream) => 1);
    cu!(b, cuStreamSynchronize(stream) => 0);
}

fn blocks_have_ids(b: &Bench) {
    use tcuda::driver::sys::CUpointer_attribute::*;
    b.start();
    let (stream, mut first, mut second) = (b.stream(1), 0, 0);
    cu!(b, cuMemAllocAsync(&mut first, 5000, stream) => 0);
    cu!(b, cuMemAllocAsync(&mut second, 100, stream) => 0);
    let ask = |attribute, address| {
        let mut value = 0u64;
        cu!(b, cuPointerGetAttribute((&raw mut value).cast(), attribute, address) => 0);
        value
    };
    let id = |address| ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, address);
    b.is("two ids", id(first) != id(second), true);
    b.is("one id", id(first) == id(first + 4999), true);
    b.is("its start", ask(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, second + 9) == second, true);
    b.is("its size", ask(CU_POINTER_ATTRIBUTE_RANGE_SIZE, second + 9), 100);
    b.is("one segment", ask(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, second) == first, true);
    let mut value = 0u64;
    for address in [first + 5000, second + 100, second + 4096] {
        cu!(b, cuPointerGetAttribute(
            (&raw mut value).cast(), CU_POINTER_ATTRIBUTE_RANGE_SIZE, address) => 1);
    }
    let before = id(second);
    cu!(b, cuMemFreeAsync(second, stream) => 0);
    cu!(b, cuMemAllocAsync(&mut second, 100, stream) => 0);
    b.is("not recycled", id(second) != before, true);
}

fn places_of_pools(b: &Bench) {
    b.start();
    let calls = Calls::find(b);
    let mut pool = ptr::null_mut();
    for (kind, id, status) in [
        (Location::CU_MEM_LOCATION_TYPE_HOST, 0, 0),
        (Location::CU_MEM_LOCATION_TYPE_HOST, -1, 0),
        (Location::CU_MEM_LOCATION_TYPE_HOST, 7, 0),
        (Location::CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, 0),
        (Location::CU_MEM_LOCATION_TYPE_HOST_NUMA, -1, 1),
        (Location::CU_MEM_LOCATION_TYPE_HOST_NUMA, 999, 1),
        (Location::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0, 1),
        (Location::CU_MEM_LOCATION_TYPE_INVALID, 0, 1),
    ] {
        let properties = host_pool_properties(kind, id);
        if cu!(b, cuMemPoolCreate(&mut pool, &properties) => status) == 0 {
            other!(b, calls, cuDeviceSetMemPool(0, pool) => 1);
            cu!(b, cuMemPoolDestroy(pool) => 0);
        }
    }
}

fn access_of_host_pools(b: &Bench) {
    b.start();
    let calls = Calls::find(b);
    let (stream, mut pool, mut address) = (b.stream(1), ptr::null_mut(), 0);
    let properties = host_pool_properties(Location::CU_MEM_LOCATION_TYPE_HOST, 0);
    cu!(b, cuMemPoolCreate(&mut pool, &properties) => 0);
    let ask = |kind, id, status| {
        let mut flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
        let mut at = CUmemLocation { type_: kind, id };
        other!(b, calls, cuMemPoolGetAccess(&mut flags, pool, &mut at) => status);
        flags as u32
    };
    let device = Location::CU_MEM_LOCATION_TYPE_DEVICE;
    b.is("of the device", ask(device, 0, 0), 0);
    b.is("of the host", ask(Location::CU_MEM_LOCATION_TYPE_HOST, 0, 0), 3);
    b.is("of a node", ask(Location::CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, 0), 3);
    cu!(b, cuMemPoolSetAccess(pool, &access(0, 3), 1) => 0);
    cu!(b, cuMemPoolSetAccess(pool, &access(0, 1), 1) => 801);
    b.is("of the device", ask(device, 0, 0), 3);
    cu!(b, cuMemPoolSetAccess(pool, &access(0, 0), 1) => 0);
    b.is("of the device", ask(device, 0, 0), 0);
    cu!(b, cuMemAllocFromPoolAsync(&mut address, 64, pool, stream) => 0);
    cu!(b, cuMemsetD8Async(address, 1, 64, stream) => 1);
    cu!(b, cuStreamSynchronize(stream) => 0);
    cu!(b, cuMemPoolSetAccess(pool, &access(0, 3), 1) => 0);
    cu!(b, cuMemsetD8Async(address, 1, 64, stream) => 0);
    cu!(b, cuStreamSynchronize(stream) => 0);
    let host = [
        Location::CU_MEM_LOCATION_TYPE_HOST,
        Location::CU_MEM_LOCATION_TYPE_HOST_NUMA,
        Location::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT,
    ];
    for (kind, statuses) in host.into_iter().zip([[0, 801], [0, 801], [1, 1]]) {
        for (protection, status) in [3, 0].into_iter().zip(statuses) {
            let mut access = access(0, protection);
            access.location.type_ = kind;
            cu!(b, cuMemPoolSetAccess(pool, &access, 1) => status);
        }
    }
    b.is("of a node that is not there", ask(Location::CU_MEM_LOCATION_TYPE_HOST_NUMA, 999, 0), 3);
    b.is("of the thread's node", ask(Location::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0, 1), 0);
    b.is("of another id", ask(Location::CU_MEM_LOCATION_TYPE_HOST, 7, 0), 3);
    b.is("of another device", ask(device, 99, 1), 0);
    // A pool of the device, for the host.
    let pool = b.default_pool();
    for (kind, protection) in host[..2].iter().flat_map(|kind| [(*kind, 3), (*kind, 0)]) {
        let (mut flags, mut access) =
            (CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ, access(0, protection));
        access.location.type_ = kind;
        other!(b, calls, cuMemPoolGetAccess(&mut flags, pool, &mut access.location) => 0);
        b.is("of the host", flags as u32, 0);
        cu!(b, cuMemPoolSetAccess(pool, &access, 1) => 801);
    }
}

/// Until a device has access, only copies, which the driver stages, reach the memory.
fn memory_of_host_pools(b: &Bench) {
    b.start();
    let calls = Calls::find(b);
    for kind in [Location::CU_MEM_LOCATION_TYPE_HOST, Location::CU_MEM_LOCATION_TYPE_HOST_NUMA] {
        let (stream, mut pool, mut address) = (b.stream(1), ptr::null_mut(), 0);
        cu!(b, cuMemPoolCreate(&mut pool, &host_pool_properties(kind, 0)) => 0);
        cu!(b, cuMemAllocFromPoolAsync(&mut address, 5000, pool, stream) => 0);
        b.is("aligned to 512", address % 512, 0);
        cu!(b, cuStreamSynchronize(stream) => 0);
        let bytes: *mut u8 = ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the block lies in memory of the host, and no work uses it.
        unsafe { bytes.write_bytes(7, 5000) };
        for has_access in [false, true] {
            let status = |without| if has_access { 0 } else { without };
            cu!(b, cuMemPoolSetAccess(pool, &access(0, if has_access { 3 } else { 0 }), 1) => 0);
            b.is("bytes", b.fetch(address, 64, stream), vec![7; 64]);
            let (mut pointer, mut start, mut length) = (0, 0, 0);
            other!(b, calls, cuMemHostGetDevicePointer_v2(&mut pointer, bytes.cast(), 0) => 1);
            other!(b, calls, cuMemGetAddressRange_v2(
                &mut start, &mut length, address + 9) => status(500));
            b.is(
                "range",
                (start == address, length),
                (has_access, if has_access { 5000 } else { 0 }),
            );
            cu!(b, cuMemsetD8Async(address + 64, 3, 4936, stream) => status(1));
            cu!(b, cuMemsetD8Async(address + 64, 3, 4937, stream) => 1);
            cu!(b, cuStreamSynchronize(stream) => 0);
            // SAFETY: as above.
            let seen = unsafe { bytes.wrapping_add(4999).read() };
            b.is("last byte", seen, if has_access { 3 } else { 7 });
        }
        let mut flags = 9;
        other!(b, calls, cuMemHostGetFlags(&mut flags, bytes.cast()) => 1);
        cu!(b, cuMemHostRegister(bytes.cast(), 5000, 0) => 1);
        cu!(b, cuMemHostUnregister(bytes.cast()) => 1);
        cu!(b, cuMemFreeHost(bytes.cast()) => 1);
        cu!(b, cuMemFreeAsync(address, stream) => 0);
        cu!(b, cuMemFreeAsync(address, stream) => 1);
        cu!(b, cuMemsetD8Async(address, 1, 64, stream) => 1);
        cu!(b, cuMemAllocFromPoolAsync(&mut address, 5000, pool, stream) => 0);
        cu!(b, cuMemFree(address) => 0);
        cu!(b, cuMemPoolDestroy(pool) => 0);
    }
}

fn counters_of_host_pools(b: &Bench) {
    b.start();
    let (stream, mut pool, mut address) = (b.stream(1), ptr::null_mut(), 0);
    let properties = host_pool_properties(Location::CU_MEM_LOCATION_TYPE_HOST, 0);
    cu!(b, cuMemPoolCreate(&mut pool, &properties) => 0);
    b.is("threshold", number(b, pool, Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
    count(b, pool, stream);
    cu!(b, cuMemAllocFromPoolAsync(&mut address, 40 * MIB, pool, stream) => 0);
    b.is("reserved", number(b, pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 64 << 20);
}

fn host_pools_in_captures(b: &Bench) {
    b.start();
    let (stream, mut pool, mut address) = (b.stream(1), ptr::null_mut(), 0);
    let properties = host_pool_properties(Location::CU_MEM_LOCATION_TYPE_HOST, 0);
    cu!(b, cuMemPoolCreate(&mut pool, &properties) => 0);
    cu!(b, cuStreamBeginCapture(stream, crate::capture::RELAXED) => 0);
    cu!(b, cuMemAllocFromPoolAsync(&mut address, 64, pool, stream) => 801);
    let mut graph = ptr::null_mut();
    cu!(b, cuStreamEndCapture(stream, &mut graph) => 0);
}

/// A copy that names no context of the other device reaches the memory of a pool only with access,
/// unlike memory of `cuMemAlloc`.
fn pools_of_two_devices(b: &Bench) {
    b.start();
    b.need_two_devices();
    let (calls, here, stream) = (Calls::find(b), b.warm(64), b.stream(1));
    let first = b.use_device(0);
    let second = b.use_device(1);
    let (mut pool, mut there, other) = (ptr::null_mut(), 0, b.stream(1));
    cu!(b, cuMemPoolCreate(&mut pool, &pool_properties(1)) => 0);
    cu!(b, cuMemAllocFromPoolAsync(&mut there, 64, pool, other) => 0);
    cu!(b, cuMemsetD8Async(there, 7, 64, other) => 0);
    cu!(b, cuStreamSynchronize(other) => 0);
    b.use_device(0);
    for has_access in [false, true, false] {
        let status = if has_access { 0 } else { 1 };
        cu!(b, cuMemPoolSetAccess(pool, &access(0, if has_access { 3 } else { 0 }), 1) => 0);
        cu!(b, cuMemcpyAsync(there, here, 64, stream) => status);
        cu!(b, cuMemcpyAsync(here, there, 64, stream) => status);
        other!(b, calls, cuMemcpyDtoDAsync_v2(there, here, 64, stream) => status);
        cu!(b, cuMemsetD8Async(there, 7, 64, stream) => status);
        cu!(b, cuMemcpyPeerAsync(here, first, there, second, 64, stream) => 0);
        b.is("bytes", b.fetch(here, 64, stream), vec![7; 64]);
        let mut host = [0u8; 64];
        let target = crate::bench::host(&host);
        cu!(b, cuMemcpyAsync(target, there, 64, stream) => status);
        other!(b, calls, cuMemcpyDtoHAsync_v2(
            host.as_mut_ptr().cast(), there, 64, stream) => status);
        cu!(b, cuStreamSynchronize(stream) => 0);
        cu!(b, cuMemsetD8Async(here, 7, 64, stream) => 0);
    }
}

/// The devices have access one by one.
fn host_pools_of_two_devices(b: &Bench) {
    b.start();
    b.need_two_devices();
    let (mut pool, mut address, stream) = (ptr::null_mut(), 0, b.stream(1));
    let properties = host_pool_properties(Location::CU_MEM_LOCATION_TYPE_HOST, 0);
    cu!(b, cuMemPoolCreate(&mut pool, &properties) => 0);
    cu!(b, cuMemAllocFromPoolAsync(&mut address, 64, pool, stream) => 0);
    cu!(b, cuMemPoolSetAccess(pool, &access(0, 3), 1) => 0);
    cu!(b, cuMemsetD8Async(address, 7, 64, stream) => 0);
    cu!(b, cuStreamSynchronize(stream) => 0);
    b.use_device(1);
    let other = b.stream(1);
    cu!(b, cuMemsetD8Async(address, 8, 64, other) => 1);
    b.is("bytes", b.fetch(address, 64, other), vec![7; 64]);
    cu!(b, cuMemPoolSetAccess(pool, &access(1, 3), 1) => 0);
    cu!(b, cuMemsetD8Async(address, 8, 64, other) => 0);
    b.is("bytes", b.fetch(address, 64, other), vec![8; 64]);
}
