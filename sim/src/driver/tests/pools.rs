//! Stream-ordered pools.

use super::*;

/// The unit in which pools allocate memory.
const SEGMENT: usize = 32 << 20;

fn pool(bench: &Bench) -> CUmemoryPool {
    let mut pool = ptr::null_mut();
    ok!(bench, cuDeviceGetDefaultMemPool(&mut pool, 0));
    pool
}

fn get(bench: &Bench, pool: CUmemoryPool, attribute: CUmemPool_attribute) -> u64 {
    let mut value = 0u64;
    ok!(bench, cuMemPoolGetAttribute(pool, attribute as u32, ptr::from_mut(&mut value).cast()));
    value
}

fn set(bench: &Bench, pool: CUmemoryPool, attribute: CUmemPool_attribute, mut value: u64) -> i32 {
    cu!(bench, cuMemPoolSetAttribute(pool, attribute as u32, ptr::from_mut(&mut value).cast()))
}

fn allocate(bench: &Bench, bytes: usize, stream: CUstream) -> u64 {
    let mut address = 0;
    ok!(bench, cuMemAllocAsync(&mut address, bytes, stream));
    address
}

use CUmemPool_attribute::*;

#[test]
fn counters_are_honest_and_memory_comes_back() {
    let bench = Bench::new("memory=256MiB");
    let (pool, stream) = (pool(&bench), bench.stream());
    let all = bench.free();
    let first = allocate(&bench, 1000, stream);
    let second = allocate(&bench, 3 << 20, stream);
    assert_eq!(get(&bench, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 1000 + (3 << 20));
    assert_eq!(get(&bench, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), SEGMENT as u64);
    assert_eq!(bench.free(), all - SEGMENT);
    ok!(bench, cuMemsetD8Async(first, 1, 1000, stream));
    ok!(bench, cuMemFreeAsync(first, stream));
    assert_eq!(cu!(bench, cuMemFreeAsync(first, stream)), code::INVALID_VALUE);
    assert_eq!(cu!(bench, cuMemFreeAsync(second + 512, stream)), code::INVALID_VALUE);
    assert_eq!(allocate(&bench, 900, stream), first, "reused in stream order");
    ok!(bench, cuMemFreeAsync(first, stream));
    ok!(bench, cuMemFree(second));
    assert_eq!(get(&bench, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    assert_eq!(get(&bench, pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 1000 + (3 << 20));
    assert_eq!(set(&bench, pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, 1), code::INVALID_VALUE);
    assert_eq!(set(&bench, pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0), 0);
    assert_eq!(get(&bench, pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 0);
    ok!(bench, cuStreamSynchronize(stream));
    assert_eq!(bench.free(), all, "the threshold is 0");

    assert_eq!(set(&bench, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX), 0);
    let third = allocate(&bench, 40 << 20, stream);
    ok!(bench, cuMemFreeAsync(third, stream));
    ok!(bench, cuStreamSynchronize(stream));
    assert_eq!(bench.free(), all - (64 << 20));
    ok!(bench, cuMemPoolTrimTo(pool, 64 << 20));
    assert_eq!(bench.free(), all - (64 << 20));
    ok!(bench, cuMemPoolTrimTo(pool, 0));
    assert_eq!(bench.free(), all);
    let mut address = 0;
    let call = cu!(bench, cuMemAllocAsync(&mut address, 257 << 20, stream));
    assert_eq!(call, code::OUT_OF_MEMORY);
    assert_eq!(allocate(&bench, 256 << 20, stream) % 512, 0);
}

#[test]
fn memory_freed_on_another_stream_is_waited_for() {
    let bench = Bench::new("schedule=threads,memory=32MiB");
    let (held, other, gate) = (bench.stream(), bench.stream(), Gate::new());
    let first = allocate(&bench, SEGMENT, held);
    gate.hold(&bench, held);
    ok!(bench, cuMemsetD8Async(first, 1, SEGMENT, held));
    ok!(bench, cuMemFreeAsync(first, held));
    let second = allocate(&bench, SEGMENT, other);
    assert_eq!(second, first);
    ok!(bench, cuMemsetD8Async(second, 2, SEGMENT, other));
    assert_eq!(cu!(bench, cuStreamQuery(other)), code::NOT_READY);
    gate.open();
    let mut found = [0; 16];
    assert_eq!(bench.fetch(second, &mut found, other), 0);
    assert_eq!(found, [2; 16]);

    // Without internal dependencies, the freed memory is not reused.
    let pool = pool(&bench);
    let gate = Gate::new();
    assert_eq!(set(&bench, pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0), 0);
    gate.hold(&bench, other);
    ok!(bench, cuMemFreeAsync(second, other));
    let mut address = 0;
    let call = cu!(bench, cuMemAllocAsync(&mut address, SEGMENT, held));
    assert_eq!(call, code::OUT_OF_MEMORY);
    assert_eq!(live_objects().pool_blocks, 0);
    gate.open();

    // Without opportunistic reuse, finished work counts only after the host waits for it.
    ok!(bench, cuStreamSynchronize(other));
    assert_eq!(set(&bench, pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0), 0);
    let gate = Gate::new();
    let kept = allocate(&bench, SEGMENT / 2, other);
    let freed = allocate(&bench, SEGMENT / 2, other);
    gate.hold(&bench, other);
    ok!(bench, cuMemFreeAsync(freed, other));
    gate.open();
    while cu!(bench, cuStreamQuery(other)) != 0 {
        std::thread::yield_now();
    }
    let call = cu!(bench, cuMemAllocAsync(&mut address, 16, held));
    assert_eq!((call, address), (code::OUT_OF_MEMORY, 0));
    ok!(bench, cuStreamSynchronize(other));
    assert_eq!(allocate(&bench, 16, held), freed);
    assert_eq!(live_objects().pool_blocks, 2);
    ok!(bench, cuMemFree(kept));
}

#[test]
fn pools_are_created_shared_and_destroyed() {
    let bench = Bench::new("devices=2,memory=64MiB");
    let properties = CUmemPoolProps {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: location(0),
        win32SecurityAttributes: ptr::null_mut(),
        maxSize: 0,
        usage: 0,
        reserved: [0; 54],
    };
    let mut created = ptr::null_mut();
    ok!(bench, cuMemPoolCreate(&mut created, &properties));
    assert_eq!(live_objects().pools, 1);
    let (stream, all) = (bench.stream(), bench.free());
    let mut address = 0;
    ok!(bench, cuMemAllocFromPoolAsync(&mut address, 100, created, stream));
    ok!(bench, cuMemsetD8Async(address, 4, 100, stream));
    let access = CUmemAccessDesc {
        location: location(1),
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    ok!(bench, cuMemPoolSetAccess(created, &access, 1));
    bench.use_device(1);
    let on_second = bench.stream();
    ok!(bench, cuMemsetD8Async(address, 5, 50, on_second));
    ok!(bench, cuStreamSynchronize(on_second));
    bench.use_device(0);
    let mut found = [0; 100];
    assert_eq!(bench.fetch(address, &mut found, stream), 0);
    assert_eq!((found[0], found[99]), (5, 4));
    assert_eq!(cu!(bench, cuMemPoolDestroy(pool(&bench))), code::INVALID_VALUE);
    ok!(bench, cuMemPoolDestroy(created));
    assert_eq!(cu!(bench, cuMemPoolDestroy(created)), code::INVALID_VALUE);
    assert_eq!(live_objects().pools, 0);
    // Its last block keeps the memory.
    assert_eq!(bench.free(), all - SEGMENT);
    assert_eq!(bench.fetch(address, &mut found, stream), 0);
    ok!(bench, cuMemFreeAsync(address, stream));
    ok!(bench, cuStreamSynchronize(stream));
    assert_eq!(bench.free(), all);
    let call = cu!(bench, cuMemAllocFromPoolAsync(&mut address, 100, created, stream));
    assert_eq!(call, code::INVALID_VALUE);
}
