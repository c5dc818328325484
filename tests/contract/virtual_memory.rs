//! Virtual memory: reserve, create, map, grant, and back.

use crate::Row;
use crate::bench::{Bench, UNIT, access, cu, host, location, properties};
use std::ptr::{null, null_mut};
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["virtual memory":
    granularity, reserve, reserve_at, free_addresses, create, release, map_bad_arguments,
    map_over_another, map_twice, map_part_of_a_handle, map_after_release, unmap_rules,
    unmap_two_at_once, unmap_over_the_end, unmap_over_a_neighbour, the_handle_keeps_its_bytes,
    no_access_before_grant, set_access_rules,
    set_access_over_two, set_access_flags, get_access, read_only, access_ends_with_the_mapping,
    copies_over_two_mappings, copies_into_a_hole, unmapping_does_not_wait, large_reservations,
    revoked_access, free_addresses_with_a_mapping,
];

const U: u64 = UNIT as u64;

fn granularity(bench: &Bench) {
    use CUmemAllocationGranularity_flags::*;
    cu!(bench, cuInit(0) => 0);
    let mut bytes = 0;
    for option in [CU_MEM_ALLOC_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED] {
        cu!(bench, cuMemGetAllocationGranularity(&mut bytes, &properties(0), option) => 0);
        bench.is("granularity", bytes, UNIT);
    }
    let option = CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    cu!(bench, cuMemGetAllocationGranularity(null_mut(), &properties(0), option) => 1);
    cu!(bench, cuMemGetAllocationGranularity(&mut bytes, null(), option) => 1);
    cu!(bench, cuMemGetAllocationGranularity(&mut bytes, &properties(-1), option) => 0);
    let mut wrong = properties(0);
    wrong.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_INVALID;
    cu!(bench, cuMemGetAllocationGranularity(&mut bytes, &wrong, option) => 0);
}

fn reserve(bench: &Bench) {
    bench.start();
    let mut address = 77;
    cu!(bench, cuMemAddressReserve(&mut address, 0, 0, 0, 0) => 1);
    cu!(bench, cuMemAddressReserve(&mut address, UNIT + 1, 0, 0, 0) => 1);
    cu!(bench, cuMemAddressReserve(&mut address, UNIT / 2, 0, 0, 0) => 1);
    cu!(bench, cuMemAddressReserve(&mut address, UNIT, 3, 0, 0) => 1);
    cu!(bench, cuMemAddressReserve(&mut address, UNIT, 0, 0, 2) => 1);
    cu!(bench, cuMemAddressReserve(null_mut(), UNIT, 0, 0, 0) => 1);
    cu!(bench, cuMemAddressReserve(&mut address, 1 << 60, 0, 0, 0) => 2);
    bench.is("untouched", address, 77);
    cu!(bench, cuMemAddressReserve(&mut address, UNIT, 64 << 20, 0, 0) => 0);
    bench.is("aligned", address % (64 << 20), 0);
    cu!(bench, cuMemAddressReserve(&mut address, UNIT, 4096, 0, 0) => 0);
    bench.is("aligned to the granularity", address % U, 0);
}

fn reserve_at(bench: &Bench) {
    bench.start();
    let start = bench.reserve(64 * UNIT);
    cu!(bench, cuMemAddressFree(start, 64 * UNIT) => 0);
    let mut address = 0;
    cu!(bench, cuMemAddressReserve(&mut address, UNIT, 0, start + 8 * U, 0) => 0);
    let mut other = 0;
    cu!(bench, cuMemAddressReserve(&mut other, UNIT, 0, start + 8 * U, 0) => 0);
    bench.is("elsewhere when it is taken", other != address, true);
}

fn free_addresses(bench: &Bench) {
    bench.start();
    let start = bench.reserve(4 * UNIT);
    cu!(bench, cuMemAddressFree(start, UNIT) => 1);
    cu!(bench, cuMemAddressFree(start + U, 3 * UNIT) => 1);
    cu!(bench, cuMemAddressFree(start, 8 * UNIT) => 1);
    cu!(bench, cuMemAddressFree(start, 0) => 1);
    cu!(bench, cuMemAddressFree(0, UNIT) => 1);
    cu!(bench, cuMemAddressFree(start, 4 * UNIT) => 0);
    cu!(bench, cuMemAddressFree(start, 4 * UNIT) => 1);
}

fn free_addresses_with_a_mapping(bench: &Bench) {
    bench.start();
    let start = bench.mapped(UNIT);
    cu!(bench, cuMemAddressFree(start, UNIT) => 1);
    bench.store(start, &[5, 6], null_mut());
    bench.is("still there", bench.fetch(start, 2, null_mut()), vec![5, 6]);
    cu!(bench, cuMemUnmap(start, UNIT) => 0);
    cu!(bench, cuMemAddressFree(start, UNIT) => 0);
}

fn create(bench: &Bench) {
    bench.start();
    let mut handle = 77;
    cu!(bench, cuMemCreate(&mut handle, 0, &properties(0), 0) => 1);
    cu!(bench, cuMemCreate(&mut handle, UNIT + 1, &properties(0), 0) => 1);
    cu!(bench, cuMemCreate(&mut handle, UNIT, &properties(0), 1) => 1);
    cu!(bench, cuMemCreate(null_mut(), UNIT, &properties(0), 0) => 1);
    cu!(bench, cuMemCreate(&mut handle, UNIT, null(), 0) => 1);
    cu!(bench, cuMemCreate(&mut handle, UNIT, &properties(-1), 0) => 101);
    cu!(bench, cuMemCreate(&mut handle, UNIT, &properties(999), 0) => 101);
    cu!(bench, cuMemCreate(&mut handle, 1 << 50, &properties(0), 0) => 2);
    let mut wrong = properties(0);
    wrong.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_INVALID;
    cu!(bench, cuMemCreate(&mut handle, UNIT, &wrong, 0) => 1);
    let mut wrong = properties(0);
    wrong.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID;
    cu!(bench, cuMemCreate(&mut handle, UNIT, &wrong, 0) => 1);
    let mut shared = properties(0);
    shared.requestedHandleTypes =
        CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    bench.is("untouched", handle, 77);
    cu!(bench, cuMemCreate(&mut handle, UNIT, &shared, 0) => 0);
    cu!(bench, cuMemRelease(handle) => 0);
}

fn release(bench: &Bench) {
    bench.start();
    let handle = bench.create(UNIT);
    cu!(bench, cuMemRelease(handle) => 0);
}

fn map_bad_arguments(bench: &Bench) {
    bench.start();
    let (start, handle) = (bench.reserve(4 * UNIT), bench.create(2 * UNIT));
    cu!(bench, cuMemMap(start + 4096, 2 * UNIT, 0, handle, 0) => 1);
    cu!(bench, cuMemMap(start, UNIT + 4096, 0, handle, 0) => 801);
    cu!(bench, cuMemMap(start, 0, 0, handle, 0) => 1);
    cu!(bench, cuMemMap(start, 2 * UNIT, 0, handle, 1) => 1);
    cu!(bench, cuMemMap(start, 4 * UNIT, 0, handle, 0) => 801);
    cu!(bench, cuMemMap(start, 2 * UNIT, 0, 0, 0) => 1);
    cu!(bench, cuMemMap(0, 2 * UNIT, 0, handle, 0) => 1);
    cu!(bench, cuMemMap(start + 64 * U, 2 * UNIT, 0, handle, 0) => 1);
    cu!(bench, cuMemMap(start, 2 * UNIT, 4096, handle, 0) => 801);
    cu!(bench, cuMemMap(start, 2 * UNIT, UNIT, handle, 0) => 801);
    cu!(bench, cuMemMap(start, 2 * UNIT, 0, handle, 0) => 0);
    let plain = bench.allocate(4 * UNIT);
    cu!(bench, cuMemMap(plain, 2 * UNIT, 0, handle, 0) => 1);
}

fn map_over_another(bench: &Bench) {
    bench.start();
    let start = bench.reserve(8 * UNIT);
    let (one, two) = (bench.create(2 * UNIT), bench.create(2 * UNIT));
    cu!(bench, cuMemMap(start + 2 * U, 2 * UNIT, 0, one, 0) => 0);
    cu!(bench, cuMemMap(start + 2 * U, 2 * UNIT, 0, two, 0) => 1);
    cu!(bench, cuMemMap(start + U, 2 * UNIT, 0, two, 0) => 1);
    cu!(bench, cuMemMap(start + 3 * U, 2 * UNIT, 0, two, 0) => 1);
    cu!(bench, cuMemMap(start, 2 * UNIT, 0, two, 0) => 0);
}

fn map_twice(bench: &Bench) {
    bench.start();
    let (start, handle) = (bench.reserve(4 * UNIT), bench.create(2 * UNIT));
    cu!(bench, cuMemMap(start, 2 * UNIT, 0, handle, 0) => 0);
    cu!(bench, cuMemMap(start + 2 * U, 2 * UNIT, 0, handle, 0) => 0);
    cu!(bench, cuMemSetAccess(start, 4 * UNIT, &access(0, 3), 1) => 0);
    bench.store(start + 5, b"alias", null_mut());
    let seen = bench.fetch(start + 2 * U + 5, 5, null_mut());
    bench.is("the same memory", seen == b"alias", true);
    cu!(bench, cuMemUnmap(start, 2 * UNIT) => 0);
    let seen = bench.fetch(start + 2 * U + 5, 5, null_mut());
    bench.is("still there", seen == b"alias", true);
}

fn map_part_of_a_handle(bench: &Bench) {
    bench.start();
    let (start, handle) = (bench.reserve(8 * UNIT), bench.create(4 * UNIT));
    cu!(bench, cuMemMap(start, UNIT, 0, handle, 0) => 801);
    cu!(bench, cuMemMap(start + U, UNIT, UNIT, handle, 0) => 801);
    cu!(bench, cuMemMap(start, 4 * UNIT, 0, handle, 0) => 0);
}

fn map_after_release(bench: &Bench) {
    bench.start();
    let (start, handle) = (bench.reserve(4 * UNIT), bench.create(2 * UNIT));
    cu!(bench, cuMemMap(start, 2 * UNIT, 0, handle, 0) => 0);
    cu!(bench, cuMemRelease(handle) => 0);
    cu!(bench, cuMemSetAccess(start, 2 * UNIT, &access(0, 3), 1) => 0);
    cu!(bench, cuMemUnmap(start, 2 * UNIT) => 0);
}

fn unmap_rules(bench: &Bench) {
    bench.start();
    let (start, handle) = (bench.reserve(8 * UNIT), bench.create(4 * UNIT));
    cu!(bench, cuMemUnmap(start, UNIT) => 0);
    cu!(bench, cuMemMap(start, 4 * UNIT, 0, handle, 0) => 0);
    cu!(bench, cuMemUnmap(start, UNIT) => 1);
    cu!(bench, cuMemUnmap(start + U, 3 * UNIT) => 1);
    cu!(bench, cuMemUnmap(start, 0) => 1);
    cu!(bench, cuMemUnmap(0, UNIT) => 1);
    cu!(bench, cuMemUnmap(start, 4 * UNIT) => 0);
    cu!(bench, cuMemUnmap(start, 4 * UNIT) => 0);
}

fn unmap_two_at_once(bench: &Bench) {
    bench.start();
    let start = bench.reserve(8 * UNIT);
    let (one, two) = (bench.create(2 * UNIT), bench.create(UNIT));
    cu!(bench, cuMemMap(start, 2 * UNIT, 0, one, 0) => 0);
    cu!(bench, cuMemMap(start + 2 * U, UNIT, 0, two, 0) => 0);
    cu!(bench, cuMemUnmap(start, 3 * UNIT) => 0);
    cu!(bench, cuMemMap(start, 2 * UNIT, 0, one, 0) => 0);
    cu!(bench, cuMemMap(start + 3 * U, UNIT, 0, two, 0) => 0);
    // With a hole between them.
    cu!(bench, cuMemUnmap(start, 4 * UNIT) => 0);
}

/// `cuMemUnmap` does not look at reservations: into unreserved addresses, or into the next
/// one.
fn unmap_over_the_end(bench: &Bench) {
    bench.start();
    let start = bench.reserve(8 * UNIT);
    cu!(bench, cuMemAddressFree(start, 8 * UNIT) => 0);
    let mut address = 0;
    cu!(bench, cuMemAddressReserve(&mut address, 4 * UNIT, 0, start, 0) => 0);
    bench.is("the address asked for", address == start, true);
    let (one, two) = (bench.create(4 * UNIT), bench.create(4 * UNIT));
    cu!(bench, cuMemMap(start, 4 * UNIT, 0, one, 0) => 0);
    cu!(bench, cuMemUnmap(start, 8 * UNIT) => 0);
    cu!(bench, cuMemMap(start, 4 * UNIT, 0, two, 0) => 0);
}

fn unmap_over_a_neighbour(bench: &Bench) {
    bench.start();
    let start = bench.reserve(8 * UNIT);
    cu!(bench, cuMemAddressFree(start, 8 * UNIT) => 0);
    let next = start + 4 * U;
    for asked in [start, next] {
        let mut address = 0;
        cu!(bench, cuMemAddressReserve(&mut address, 4 * UNIT, 0, asked, 0) => 0);
        bench.is("the address asked for", address == asked, true);
        let handle = bench.create(4 * UNIT);
        cu!(bench, cuMemMap(asked, 4 * UNIT, 0, handle, 0) => 0);
    }
    let other = bench.create(4 * UNIT);
    cu!(bench, cuMemUnmap(start, 8 * UNIT) => 0);
    cu!(bench, cuMemMap(start, 4 * UNIT, 0, other, 0) => 0);
    let other = bench.create(4 * UNIT);
    cu!(bench, cuMemMap(next, 4 * UNIT, 0, other, 0) => 0);
}

fn the_handle_keeps_its_bytes(bench: &Bench) {
    bench.start();
    let (start, handle) = (bench.reserve(4 * UNIT), bench.create(UNIT));
    cu!(bench, cuMemMap(start, UNIT, 0, handle, 0) => 0);
    cu!(bench, cuMemSetAccess(start, UNIT, &access(0, 3), 1) => 0);
    bench.store(start, b"kept", null_mut());
    cu!(bench, cuMemUnmap(start, UNIT) => 0);
    cu!(bench, cuMemMap(start + 2 * U, UNIT, 0, handle, 0) => 0);
    cu!(bench, cuMemSetAccess(start + 2 * U, UNIT, &access(0, 3), 1) => 0);
    let seen = bench.fetch(start + 2 * U, 4, null_mut());
    bench.is("bytes", seen == b"kept", true);
}

fn no_access_before_grant(bench: &Bench) {
    bench.start();
    let (start, handle, plain) = (bench.reserve(UNIT), bench.create(UNIT), bench.warm(64));
    cu!(bench, cuMemsetD8Async(start, 1, 64, null_mut()) => 1);
    cu!(bench, cuMemMap(start, UNIT, 0, handle, 0) => 0);
    cu!(bench, cuMemsetD8Async(start, 1, 64, null_mut()) => 1);
    cu!(bench, cuMemsetD32Async(start, 1, 16, null_mut()) => 1);
    cu!(bench, cuMemcpyAsync(start, plain, 64, null_mut()) => 1);
    cu!(bench, cuMemcpyAsync(plain, start, 64, null_mut()) => 1);
    cu!(bench, cuCtxSynchronize() => 0);
}

fn set_access_rules(bench: &Bench) {
    bench.start();
    let (start, handle) = (bench.reserve(8 * UNIT), bench.create(4 * UNIT));
    let rw = access(0, 3);
    cu!(bench, cuMemSetAccess(start, UNIT, &rw, 1) => 1);
    cu!(bench, cuMemMap(start, 4 * UNIT, 0, handle, 0) => 0);
    cu!(bench, cuMemSetAccess(start, 0, &rw, 1) => 1);
    cu!(bench, cuMemSetAccess(start, 4 * UNIT, &rw, 0) => 1);
    cu!(bench, cuMemSetAccess(start, 4 * UNIT, null(), 1) => 1);
    cu!(bench, cuMemSetAccess(start, 4 * UNIT + 4096, &rw, 1) => 1);
    cu!(bench, cuMemSetAccess(start + 4096, UNIT, &rw, 1) => 1);
    cu!(bench, cuMemSetAccess(start, 8 * UNIT, &rw, 1) => 1);
    cu!(bench, cuMemSetAccess(start, 4 * UNIT, &access(-1, 3), 1) => 1);
    cu!(bench, cuMemSetAccess(start, 4 * UNIT, &access(999, 3), 1) => 1);
    let mut wrong = rw;
    wrong.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID;
    cu!(bench, cuMemSetAccess(start, 4 * UNIT, &wrong, 1) => 1);
    cu!(bench, cuMemSetAccess(start, UNIT, &rw, 1) => 1);
    cu!(bench, cuMemSetAccess(start + U, 3 * UNIT, &rw, 1) => 1);
    cu!(bench, cuMemSetAccess(start, 4 * UNIT, &rw, 1) => 0);
    cu!(bench, cuMemSetAccess(start, 4 * UNIT, &rw, 1) => 0);
    cu!(bench, cuMemSetAccess(start, 4 * UNIT, [rw, rw].as_ptr(), 2) => 0);
    let plain = bench.allocate(4 * UNIT);
    cu!(bench, cuMemSetAccess(plain, 2 * UNIT, &rw, 1) => 1);
}

fn set_access_over_two(bench: &Bench) {
    bench.start();
    let start = bench.reserve(8 * UNIT);
    let (one, two) = (bench.create(UNIT), bench.create(UNIT));
    cu!(bench, cuMemMap(start, UNIT, 0, one, 0) => 0);
    cu!(bench, cuMemMap(start + 2 * U, UNIT, 0, two, 0) => 0);
    cu!(bench, cuMemSetAccess(start, 3 * UNIT, &access(0, 3), 1) => 0);
    let mut flags = 9;
    cu!(bench, cuMemGetAccess(&mut flags, &location(0), start) => 0);
    bench.is("granted around the hole", flags, 3);
    cu!(bench, cuMemUnmap(start + 2 * U, UNIT) => 0);
    cu!(bench, cuMemMap(start + U, UNIT, 0, two, 0) => 0);
    cu!(bench, cuMemSetAccess(start, 2 * UNIT, &access(0, 3), 1) => 0);
    cu!(bench, cuMemGetAccess(&mut flags, &location(0), start + U) => 0);
    bench.is("both granted", flags, 3);
}

fn set_access_flags(bench: &Bench) {
    bench.start();
    let (start, handle) = (bench.reserve(UNIT), bench.create(UNIT));
    cu!(bench, cuMemMap(start, UNIT, 0, handle, 0) => 0);
    let mut flags = 9;
    for (protection, expected) in [(0, 0), (3, 3), (1, 1), (3, 3), (0, 0)] {
        cu!(bench, cuMemSetAccess(start, UNIT, &access(0, protection), 1) => 0);
        cu!(bench, cuMemGetAccess(&mut flags, &location(0), start) => 0);
        bench.is("protection", flags, expected);
    }
}

fn get_access(bench: &Bench) {
    bench.start();
    let (start, handle) = (bench.reserve(4 * UNIT), bench.create(2 * UNIT));
    let mut flags = 9;
    cu!(bench, cuMemGetAccess(&mut flags, &location(0), start) => 1);
    cu!(bench, cuMemMap(start, 2 * UNIT, 0, handle, 0) => 0);
    cu!(bench, cuMemGetAccess(&mut flags, &location(0), start) => 0);
    bench.is("before a grant", flags, 0);
    cu!(bench, cuMemSetAccess(start, 2 * UNIT, &access(0, 3), 1) => 0);
    cu!(bench, cuMemGetAccess(&mut flags, &location(0), start + U + 77) => 0);
    bench.is("after it, inside", flags, 3);
    cu!(bench, cuMemGetAccess(null_mut(), &location(0), start) => 1);
    cu!(bench, cuMemGetAccess(&mut flags, null(), start) => 1);
    cu!(bench, cuMemGetAccess(&mut flags, &location(-1), start) => 101);
    cu!(bench, cuMemGetAccess(&mut flags, &location(0), 0) => 1);
    cu!(bench, cuMemGetAccess(&mut flags, &location(0), start + 2 * U) => 1);
    let plain = bench.allocate(UNIT);
    cu!(bench, cuMemGetAccess(&mut flags, &location(0), plain) => 0);
}

fn read_only(bench: &Bench) {
    bench.start();
    let (start, plain) = (bench.mapped(UNIT), bench.warm(64));
    bench.store(start, b"read", null_mut());
    cu!(bench, cuMemSetAccess(start, UNIT, &access(0, 1), 1) => 0);
    bench.is("bytes", bench.fetch(start, 4, null_mut()) == b"read", true);
    cu!(bench, cuMemcpyAsync(plain, start, 4, null_mut()) => 0);
    cu!(bench, cuMemcpyAsync(start, plain, 4, null_mut()) => 1);
    cu!(bench, cuMemsetD8Async(start, 1, 4, null_mut()) => 1);
    cu!(bench, cuCtxSynchronize() => 0);
}

fn revoked_access(bench: &Bench) {
    bench.start();
    let start = bench.mapped(UNIT);
    bench.warm(64);
    cu!(bench, cuMemSetAccess(start, UNIT, &access(0, 0), 1) => 0);
    cu!(bench, cuMemsetD8Async(start, 1, 4, null_mut()) => 1);
    cu!(bench, cuMemSetAccess(start, UNIT, &access(0, 3), 1) => 0);
    cu!(bench, cuMemsetD8Async(start, 1, 4, null_mut()) => 0);
    cu!(bench, cuCtxSynchronize() => 0);
}

fn access_ends_with_the_mapping(bench: &Bench) {
    bench.start();
    let (start, handle) = (bench.reserve(UNIT), bench.create(UNIT));
    let mut flags = 9;
    cu!(bench, cuMemMap(start, UNIT, 0, handle, 0) => 0);
    cu!(bench, cuMemSetAccess(start, UNIT, &access(0, 3), 1) => 0);
    cu!(bench, cuMemUnmap(start, UNIT) => 0);
    cu!(bench, cuMemMap(start, UNIT, 0, handle, 0) => 0);
    cu!(bench, cuMemGetAccess(&mut flags, &location(0), start) => 0);
    bench.is("mapped anew", flags, 0);
}

fn copies_over_two_mappings(bench: &Bench) {
    bench.start();
    let start = bench.reserve(2 * UNIT);
    for index in 0..2 {
        let handle = bench.create(UNIT);
        cu!(bench, cuMemMap(start + index * U, UNIT, 0, handle, 0) => 0);
    }
    cu!(bench, cuMemSetAccess(start, 2 * UNIT, &access(0, 3), 1) => 0);
    cu!(bench, cuMemsetD8Async(start + U - 8, 6, 16, null_mut()) => 0);
    bench.store(start + U - 2, &[1, 2, 3, 4], null_mut());
    bench.is("bytes", bench.fetch(start + U - 3, 6, null_mut()), vec![6, 1, 2, 3, 4, 6]);
}

fn copies_into_a_hole(bench: &Bench) {
    bench.start();
    let (start, handle, plain) = (bench.reserve(2 * UNIT), bench.create(UNIT), bench.warm(64));
    cu!(bench, cuMemMap(start, UNIT, 0, handle, 0) => 0);
    cu!(bench, cuMemSetAccess(start, UNIT, &access(0, 3), 1) => 0);
    let buffer = [0u8; 64];
    cu!(bench, cuMemsetD8Async(start + U - 8, 6, 16, null_mut()) => 1);
    cu!(bench, cuMemcpyAsync(start + U - 8, plain, 16, null_mut()) => 1);
    cu!(bench, cuMemcpyAsync(plain, start + U - 8, 16, null_mut()) => 1);
    cu!(bench, cuMemcpyAsync(start + U - 8, host(&buffer), 16, null_mut()) => 1);
    cu!(bench, cuCtxSynchronize() => 0);
}

fn unmapping_does_not_wait(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (start, stream) = (bench.mapped(UNIT), bench.stream(1));
    let gate = bench.hold(stream);
    bench.waits("cuMemCreate", gate, false, || {
        let handle = bench.create(UNIT);
        cu!(bench, cuMemRelease(handle) => 0);
    });
    bench.waits("cuMemUnmap", gate, false, || {
        cu!(bench, cuMemUnmap(start, UNIT) => 0);
    });
    bench.waits("cuMemMap and cuMemSetAccess", gate, false, || {
        bench.mapped(UNIT);
    });
    gate.open();
    cu!(bench, cuCtxSynchronize() => 0);
}

fn large_reservations(bench: &Bench) {
    bench.start();
    let mut address = 0;
    for _ in 0..4 {
        cu!(bench, cuMemAddressReserve(&mut address, 16 << 40, 0, 0, 0) => 0);
    }
    cu!(bench, cuMemAddressFree(address, 16 << 40) => 0);
}
