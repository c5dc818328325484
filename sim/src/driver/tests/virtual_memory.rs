//! Rules of virtual memory.

use super::*;

const G: usize = GRANULARITY;

#[test]
fn a_range_is_mapped_once_whole_and_inside_its_reservation() {
    let bench = Bench::new("memory=64MiB");
    let base = bench.reserve(8 * G);
    let handle = bench.create(0, 2 * G);
    let map = |address, bytes, offset| cu!(bench, cuMemMap(address, bytes, offset, handle, 0));
    assert_eq!(map(base + 1, G, 0), code::NOT_SUPPORTED);
    assert_eq!(map(base, G / 2, 0), code::NOT_SUPPORTED);
    assert_eq!(map(base, 3 * G, 0), code::NOT_SUPPORTED);
    assert_eq!(map(base, 2 * G, G), code::NOT_SUPPORTED);
    assert_eq!(map(base, G, 1), code::NOT_SUPPORTED);
    assert_eq!(map(base + 7 * G as u64, 2 * G, 0), code::INVALID_VALUE);
    assert_eq!(map(base + 64 * G as u64, 2 * G, 0), code::INVALID_VALUE);
    assert_eq!(cu!(bench, cuMemMap(base, G, 0, handle + 64, 0)), code::INVALID_VALUE);
    assert_eq!(map(base, 2 * G, 0), 0);
    assert_eq!(map(base + G as u64, 2 * G, 0), code::INVALID_VALUE);
    assert_eq!(map(base + 2 * G as u64, 2 * G, 0), 0, "a handle can be mapped twice");
    // Whole mappings only, one or more.
    let unmap = |address, bytes| cu!(bench, cuMemUnmap(address, bytes));
    assert_eq!(unmap(base, G), code::INVALID_VALUE);
    assert_eq!(unmap(base + G as u64, 2 * G), code::INVALID_VALUE);
    assert_eq!(unmap(base, 3 * G), code::INVALID_VALUE);
    assert_eq!(bench.grant(base, G, 0), code::INVALID_VALUE);
    assert_eq!(bench.grant(base, 5 * G, 0), code::INVALID_VALUE);
    assert_eq!(bench.grant(base, 4 * G, 1), code::INVALID_VALUE);
    assert_eq!(bench.grant(base, 4 * G, 0), 0);
    assert_eq!(cu!(bench, cuMemAddressFree(base, 8 * G)), code::INVALID_VALUE);
    assert_eq!(unmap(base, 8 * G), 0, "holes are nothing to unmap");
    assert_eq!(unmap(base, 3 * G), 0);
    assert_eq!(cu!(bench, cuMemAddressFree(base, 4 * G)), code::INVALID_VALUE);
    ok!(bench, cuMemAddressFree(base, 8 * G));
    assert_eq!(cu!(bench, cuMemAddressFree(base, 8 * G)), code::INVALID_VALUE);
    ok!(bench, cuMemRelease(handle));
    assert_eq!(cu!(bench, cuMemRelease(handle)), code::INVALID_VALUE);
}

#[test]
fn arguments_are_checked() {
    let bench = Bench::new("memory=64MiB");
    let (mut address, mut handle, mut granularity) = (0, 0, 0);
    let option = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    ok!(bench, cuMemGetAllocationGranularity(&mut granularity, &properties(0), option as u32));
    assert_eq!(granularity, G);
    ok!(bench, cuMemGetAllocationGranularity(&mut granularity, &properties(1), option as u32));
    let mut reserve =
        |bytes, alignment| cu!(bench, cuMemAddressReserve(&mut address, bytes, alignment, 0, 0));
    assert_eq!(reserve(0, 0), code::INVALID_VALUE);
    assert_eq!(reserve(G + 4096, 0), code::INVALID_VALUE);
    assert_eq!(reserve(G, 3), code::INVALID_VALUE);
    assert_eq!(reserve(1 << 60, 0), code::OUT_OF_MEMORY);
    assert_eq!(reserve(G, 1 << 30), 0);
    assert_eq!(reserve(usize::MAX - G + 1, 1 << 63), code::OUT_OF_MEMORY);
    assert_eq!(address % (1 << 30), 0);
    let mut create =
        |bytes, device| cu!(bench, cuMemCreate(&mut handle, bytes, &properties(device), 0));
    assert_eq!(create(G - 1, 0), code::INVALID_VALUE);
    assert_eq!(create(0, 0), code::INVALID_VALUE);
    assert_eq!(create(G, -1), code::INVALID_DEVICE);
    assert_eq!(create(66 << 20, 0), code::OUT_OF_MEMORY);
    assert_eq!(create(64 << 20, 0), 0);
    assert_eq!(create(G, 0), code::OUT_OF_MEMORY);
}

#[test]
fn terabytes_can_be_reserved_and_a_hint_is_honoured() {
    let bench = Bench::new("");
    let first = bench.reserve(6 << 40);
    let second = bench.reserve(1 << 40);
    assert!(second >= first + (6 << 40) || second + (1 << 40) <= first);
    ok!(bench, cuMemAddressFree(first, 6 << 40));
    let wanted = first + 16 * G as u64;
    let mut address = 0;
    ok!(bench, cuMemAddressReserve(&mut address, G, 0, wanted, 0));
    assert_eq!(address, wanted);
    ok!(bench, cuMemAddressReserve(&mut address, G, 0, wanted, 0));
    assert_ne!(address, wanted);
}

#[test]
fn remapping_keeps_the_data_and_memory_lives_until_its_last_mapping() {
    let bench = Bench::new("memory=16MiB");
    let all = bench.free();
    let base = bench.reserve(8 * G);
    let (first, second) = (bench.create(0, G), bench.create(0, G));
    assert_eq!(bench.free(), all - 2 * G);
    ok!(bench, cuMemMap(base, G, 0, first, 0));
    ok!(bench, cuMemMap(base + G as u64, G, 0, second, 0));
    assert_eq!(bench.grant(base, 2 * G, 0), 0);
    let stream = bench.stream();
    let written: Vec<u8> = (0..1000).map(|index| index as u8).collect();
    let across = base + G as u64 - 500;
    assert_eq!(bench.store(across, &written, stream), 0);
    ok!(bench, cuMemRelease(first));
    ok!(bench, cuMemRelease(second));
    assert_eq!(bench.free(), all - 2 * G, "mappings keep memory");
    let mut found = vec![0; 1000];
    assert_eq!(bench.fetch(across, &mut found, stream), 0);
    assert_eq!(found, written);
    ok!(bench, cuMemUnmap(base, 2 * G));
    assert_eq!(bench.free(), all);

    // The same handle at another address, at two addresses at once, in the opposite order.
    let handle = bench.create(0, 2 * G);
    ok!(bench, cuMemMap(base, 2 * G, 0, handle, 0));
    assert_eq!(bench.grant(base, 2 * G, 0), 0);
    assert_eq!(bench.store(base, &written, stream), 0);
    ok!(bench, cuMemUnmap(base, 2 * G));
    let moved = base + 4 * G as u64;
    ok!(bench, cuMemMap(moved, 2 * G, 0, handle, 0));
    assert_eq!(bench.grant(moved, 2 * G, 0), 0);
    assert_eq!(bench.fetch(moved, &mut found, stream), 0);
    assert_eq!(found, written);
    ok!(bench, cuMemUnmap(moved, 2 * G));
    assert_eq!(bench.free(), all - 2 * G, "the handle keeps memory");
    ok!(bench, cuMemRelease(handle));
    assert_eq!(bench.free(), all);
}

#[test]
fn fragmented_memory_is_still_memory() {
    let bench = Bench::new("memory=16MiB");
    let handles: Vec<u64> = (0..8).map(|_| bench.create(0, G)).collect();
    for handle in handles.iter().step_by(2) {
        ok!(bench, cuMemRelease(*handle));
    }
    let scattered = bench.create(0, 4 * G);
    let base = bench.reserve(4 * G);
    ok!(bench, cuMemMap(base, 4 * G, 0, scattered, 0));
    assert_eq!(bench.grant(base, 4 * G, 0), 0);
    let stream = bench.stream();
    ok!(bench, cuMemsetD32Async(base, 0x0102_0304, G, stream));
    let mut found = vec![0; 4 * G];
    assert_eq!(bench.fetch(base, &mut found, stream), 0);
    assert!(found.chunks_exact(4).all(|word| word == [4, 3, 2, 1]));
}

#[test]
fn access_is_granted_per_device() {
    let bench = Bench::new("devices=3,peers=pairs,memory=64MiB");
    let base = bench.reserve(G);
    let handle = bench.create(0, G);
    ok!(bench, cuMemMap(base, G, 0, handle, 0));
    let flags = |device| {
        let mut flags = 99;
        ok!(bench, cuMemGetAccess(&mut flags, &location(device), base));
        flags
    };
    assert_eq!((flags(0), flags(1)), (0, 0));
    assert_eq!(bench.grant(base, G, 2), code::INVALID_DEVICE);
    assert_eq!(bench.grant(base, G, 1), 0);
    assert_eq!((flags(0), flags(1)), (0, 3));
    // Device 0 may not write yet, device 1 may.
    bench.use_device(1);
    ok!(bench, cuMemsetD8Async(base, 1, 10, bench.stream()));
    ok!(bench, cuCtxSynchronize());
    bench.use_device(0);
    assert_eq!(cu!(bench, cuMemsetD8Async(base, 1, 10, bench.stream())), code::INVALID_VALUE);
    ok!(bench, cuCtxSynchronize());
}

#[test]
fn an_illegal_address_is_sticky_and_never_a_crash() {
    for schedule in ["immediate", "threads"] {
        let bench = Bench::new(&format!("devices=2,memory=64MiB,schedule={schedule}"));
        let other = bench.use_device(1);
        bench.use_device(0);
        let stream = bench.stream();
        let event = bench.event(0);
        let freed = bench.allocate(G);
        ok!(bench, cuMemFree(freed));
        ok!(bench, cuEventRecord(event, stream));
        // A fill that is invalid at the call is refused, without side effects...
        assert_eq!(cu!(bench, cuMemsetD8Async(freed, 1, 16, stream)), code::INVALID_VALUE);
        ok!(bench, cuStreamSynchronize(stream));
        // ...an error in a running kernel is sticky.
        let mut module = ptr::null_mut();
        let mut function = ptr::null_mut();
        let image = c".version 7.8\n.target sm_52\n.entry illegal_address () {\n\
            .reg .b64 a; mov.b64 a, 8; st.global.b64 [a], a; }"
            .as_ptr();
        ok!(bench, cuModuleLoadData(&mut module, image.cast()));
        ok!(bench, cuModuleGetFunction(&mut function, module, c"illegal_address".as_ptr()));
        let (no_parameters, no_extra) = (ptr::null_mut(), ptr::null_mut());
        let launched = cu!(
            bench,
            cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, no_parameters, no_extra)
        );
        assert_eq!(launched, 0);
        assert_eq!(cu!(bench, cuStreamSynchronize(stream)), code::ILLEGAL_ADDRESS);
        assert_eq!(cu!(bench, cuStreamQuery(stream)), code::ILLEGAL_ADDRESS);
        assert_eq!(cu!(bench, cuEventQuery(event)), code::ILLEGAL_ADDRESS);
        assert_eq!(cu!(bench, cuMemAlloc(&mut 0, 1)), code::ILLEGAL_ADDRESS);
        assert_eq!(cu!(bench, cuCtxSynchronize()), code::ILLEGAL_ADDRESS);
        // The other device has failed as well: the process has failed.
        ok!(bench, cuCtxSetCurrent(other));
        assert_eq!(cu!(bench, cuCtxSynchronize()), code::ILLEGAL_ADDRESS);
        drop(bench);
        let bench = Bench::new("");
        ok!(bench, cuCtxSynchronize());
    }
}
