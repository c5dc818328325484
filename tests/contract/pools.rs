//! Stream-ordered pools.

use crate::bench::{Bench, MIB, UNIT, cu, pool_properties};
use crate::{Row, rows};
use std::ffi::c_int;
use std::ptr;
use tcuda::driver::sys::{CUmemPool_attribute as Attribute, CUmemoryPool};

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

fn counters_of_pools(b: &Bench) {
    b.start();
    let (stream, mut pool, mut address) = (b.stream(1), ptr::null_mut(), 0);
    cu!(b, cuMemPoolCreate(&mut pool, &pool_properties(0)) => 0);
    cu!(b, cuMemAllocFromPoolAsync(&mut address, 1000, pool, stream) => 0);
    b.is("used", number(b, pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 1000);
    b.is("reserved", number(b, pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 32 << 20);
    cu!(b, cuMemFreeAsync(address, stream) => 0);
    cu!(b, cuStreamSynchronize(stream) => 0);
    b.is("used", number(b, pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    b.is("used at most", number(b, pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH), 1000);
    b.is("reserved", number(b, pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
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
