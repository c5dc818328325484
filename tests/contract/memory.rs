//! Memory that the driver hands out whole, and how much is left.

use crate::Row;
use crate::bench::{Bench, MIB, UNIT, cu};
use std::ptr::null_mut;
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["memory":
    bad_sizes, free_null, free_interior, free_twice, free_unknown, free_of_another_kind,
    alignment, free_waits_for_work, allocation_does_not_wait, use_after_free, past_the_end,
    use_of_a_freed_neighbour, a_gap_is_filled,
];

pub const ALONE: &[Row] = crate::rows!["alone: memory info":
    info_arithmetic, small_allocations_share, handles_count_not_mappings, info_outputs,
    pools_reserve_at_once, sizes_that_share, units_come_back, small_and_large,
];

fn bad_sizes(bench: &Bench) {
    bench.start();
    let mut address = 0;
    cu!(bench, cuMemAlloc(&mut address, 0) => 1);
    cu!(bench, cuMemAlloc(null_mut(), 16) => 1);
    cu!(bench, cuMemAlloc(&mut address, 1 << 60) => 2);
    cu!(bench, cuMemAlloc(&mut address, usize::MAX) => 2);
}

fn free_null(bench: &Bench) {
    bench.start();
    cu!(bench, cuMemFree(0) => 0);
    cu!(bench, cuMemFreeHost(null_mut()) => 0);
}

fn free_interior(bench: &Bench) {
    bench.start();
    let (small, large) = (bench.allocate(4096), bench.allocate(4 * MIB));
    cu!(bench, cuMemFree(small + 256) => 1);
    cu!(bench, cuMemFree(large + UNIT as u64) => 1);
    cu!(bench, cuMemFree(small) => 0);
    cu!(bench, cuMemFree(large) => 0);
}

fn free_twice(bench: &Bench) {
    bench.start();
    let (small, large) = (bench.allocate(4096), bench.allocate(4 * MIB));
    cu!(bench, cuMemFree(small) => 0);
    cu!(bench, cuMemFree(small) => 1);
    cu!(bench, cuMemFree(large) => 0);
    cu!(bench, cuMemFree(large) => 1);
    cu!(bench, cuCtxSynchronize() => 0);
}

fn free_unknown(bench: &Bench) {
    bench.start();
    let local = [0u8; 16];
    cu!(bench, cuMemFree(0x1000) => 1);
    cu!(bench, cuMemFree(crate::bench::host(&local)) => 1);
    cu!(bench, cuMemFree(u64::MAX) => 1);
    cu!(bench, cuMemFreeHost(local.as_ptr().cast_mut().cast()) => 1);
}

fn free_of_another_kind(bench: &Bench) {
    bench.start();
    let (device, mapped, pinned) = (bench.allocate(64), bench.mapped(UNIT), bench.pinned(4096));
    let mut block = 0;
    cu!(bench, cuMemAllocAsync(&mut block, 64, null_mut()) => 0);
    cu!(bench, cuMemFree(mapped) => 1);
    cu!(bench, cuMemFree(crate::bench::host(pinned)) => 1);
    cu!(bench, cuMemFreeHost(std::ptr::with_exposed_provenance_mut(device as usize)) => 1);
    cu!(bench, cuMemUnmap(device, UNIT) => 1);
    cu!(bench, cuMemAddressFree(device, UNIT) => 1);
    cu!(bench, cuMemFreeAsync(mapped, null_mut()) => 1);
    cu!(bench, cuMemFreeAsync(crate::bench::host(pinned), null_mut()) => 1);
    cu!(bench, cuMemFreeAsync(device, null_mut()) => 0);
    cu!(bench, cuMemFree(block) => 0);
    cu!(bench, cuMemFreeHost(pinned.as_mut_ptr().cast()) => 0);
}

fn alignment(bench: &Bench) {
    bench.start();
    for bytes in [1, 100, 513, 70_000, 3 * MIB] {
        bench.is(&format!("{bytes} bytes on 512"), bench.allocate(bytes) % 512, 0);
    }
    let (a, b) = (bench.allocate(1), bench.allocate(1));
    bench.is("distance of the smallest", b.abs_diff(a), 512);
}

fn free_waits_for_work(bench: &Bench) {
    bench.start();
    let address = bench.warm(4 * MIB);
    let stream = bench.stream(1);
    let gate = bench.hold(stream);
    bench.waits("cuMemFree", gate, true, || {
        cu!(bench, cuMemFree(address) => 0);
    });
}

fn allocation_does_not_wait(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let stream = bench.stream(1);
    let gate = bench.hold(stream);
    bench.waits("cuMemAlloc", gate, false, || {
        bench.allocate(4 * MIB);
    });
    bench.waits("cuMemHostAlloc", gate, false, || {
        bench.pinned(4096);
    });
    gate.open();
}

fn use_after_free(bench: &Bench) {
    bench.start();
    let address = bench.warm(4 * MIB);
    cu!(bench, cuMemFree(address) => 0);
    let buffer = [0u8; 64];
    cu!(bench, cuMemsetD8Async(address, 1, 64, null_mut()) => 1);
    cu!(bench, cuMemsetD32Async(address, 1, 4, null_mut()) => 1);
    bench.is("a buffer", buffer[0], 0);
    cu!(bench, cuCtxSynchronize() => 0);
}

fn past_the_end(bench: &Bench) {
    bench.start();
    let address = bench.allocate(4 * MIB);
    let other = bench.allocate(16 * MIB);
    cu!(bench, cuMemsetD8Async(address, 1, 4 * MIB + 1, null_mut()) => 1);
    cu!(bench, cuMemcpyAsync(address, other, 4 * MIB + 1, null_mut()) => 1);
    cu!(bench, cuMemcpyAsync(other, address, 4 * MIB + 1, null_mut()) => 1);
    let small = bench.allocate(512);
    cu!(bench, cuMemsetD8Async(small, 1, 513, null_mut()) => 1);
    cu!(bench, cuMemcpyAsync(small, other, 513, null_mut()) => 1);
    let tiny = bench.allocate(5);
    cu!(bench, cuMemsetD8Async(tiny, 1, 6, null_mut()) => 1);
    cu!(bench, cuCtxSynchronize() => 0);
}

fn info_arithmetic(bench: &Bench) {
    bench.start();
    let before = bench.free_memory();
    let address = bench.allocate(64 * MIB);
    bench.is("64 MiB less", before - bench.free_memory(), 64 * MIB);
    cu!(bench, cuMemFree(address) => 0);
    bench.is("as before", bench.free_memory() == before, true);
    let address = bench.allocate(3 * MIB);
    bench.is("3 MiB take", before - bench.free_memory(), 4 * MIB);
    cu!(bench, cuMemFree(address) => 0);
    let (mut free, mut total, mut device) = (0, 0, 0);
    cu!(bench, cuMemGetInfo(&mut free, &mut total) => 0);
    cu!(bench, cuDeviceTotalMem(&mut device, 0) => 0);
    bench.is("one total", (total == device, free <= total), (true, true));
}

fn small_allocations_share(bench: &Bench) {
    bench.start();
    bench.allocate(1024);
    let before = bench.free_memory();
    let small: Vec<u64> = (0..64).map(|_| bench.allocate(1024)).collect();
    bench.is("64 KiB in small pieces take", before - bench.free_memory(), 0);
    for address in small {
        cu!(bench, cuMemFree(address) => 0);
    }
    bench.is("as before", bench.free_memory() == before, true);
}

fn handles_count_not_mappings(bench: &Bench) {
    bench.start();
    let before = bench.free_memory();
    let address = bench.reserve(8 * UNIT);
    bench.is("a reservation takes", before - bench.free_memory(), 0);
    let created = bench.create(4 * UNIT);
    bench.is("a handle takes", before - bench.free_memory(), 4 * UNIT);
    cu!(bench, cuMemMap(address, 4 * UNIT, 0, created, 0) => 0);
    bench.is("a mapping takes", before - bench.free_memory(), 4 * UNIT);
    cu!(bench, cuMemRelease(created) => 0);
    bench.is("mapped and released", before - bench.free_memory(), 4 * UNIT);
    cu!(bench, cuMemUnmap(address, 4 * UNIT) => 0);
    bench.is("unmapped", before - bench.free_memory(), 0);
    cu!(bench, cuMemAddressFree(address, 8 * UNIT) => 0);
}

fn info_outputs(bench: &Bench) {
    bench.start();
    let mut bytes = 0;
    cu!(bench, cuMemGetInfo(null_mut(), &mut bytes) => 0);
    cu!(bench, cuMemGetInfo(&mut bytes, null_mut()) => 0);
    cu!(bench, cuMemGetInfo(null_mut(), null_mut()) => 0);
}

fn pools_reserve_at_once(bench: &Bench) {
    bench.start();
    let before = bench.free_memory();
    let mut block = 0;
    cu!(bench, cuMemAllocAsync(&mut block, 1, null_mut()) => 0);
    bench.is("a byte of a pool takes", before - bench.free_memory(), 32 * MIB);
    cu!(bench, cuMemFreeAsync(block, null_mut()) => 0);
    cu!(bench, cuStreamSynchronize(null_mut()) => 0);
    bench.is("freed and synchronised", before - bench.free_memory(), 0);
    cu!(bench, cuMemAllocAsync(&mut block, 100 * MIB, null_mut()) => 0);
    bench.is("100 MiB of a pool take", before - bench.free_memory(), 128 * MIB);
    let mut pool = null_mut::<CUmemPoolHandle_st>();
    cu!(bench, cuDeviceGetDefaultMemPool(&mut pool, 0) => 0);
}

/// What two allocations of a size take, one after the other.
fn sizes_that_share(bench: &Bench) {
    bench.start();
    bench.allocate(16 * MIB);
    for (bytes, expected) in [
        (MIB / 4, (2 * MIB, 0)),
        (MIB / 2, (2 * MIB, 0)),
        (MIB - 512, (2 * MIB, 0)),
        (MIB, (2 * MIB, 0)),
        (MIB + 1, (2 * MIB, 2 * MIB)),
        (3 * MIB / 2, (2 * MIB, 2 * MIB)),
        (2 * MIB - 1, (2 * MIB, 2 * MIB)),
        (2 * MIB, (2 * MIB, 2 * MIB)),
        (2 * MIB + 1, (4 * MIB, 4 * MIB)),
    ] {
        let before = bench.free_memory();
        let first = bench.allocate(bytes);
        let between = bench.free_memory();
        let second = bench.allocate(bytes);
        let taken = (before - between, between - bench.free_memory());
        bench.is(&format!("twice {bytes} bytes take"), taken, expected);
        cu!(bench, cuMemFree(first) => 0);
        cu!(bench, cuMemFree(second) => 0);
        bench.is("as before", before - bench.free_memory(), 0);
    }
}

fn units_come_back(bench: &Bench) {
    bench.start();
    let before = bench.free_memory();
    let (first, second) = (bench.allocate(1), bench.allocate(1));
    bench.is("two small ones take", before - bench.free_memory(), 2 * MIB);
    cu!(bench, cuMemFree(first) => 0);
    bench.is("one takes", before - bench.free_memory(), 2 * MIB);
    cu!(bench, cuMemFree(second) => 0);
    bench.is("none takes", before - bench.free_memory(), 0);
}

fn small_and_large(bench: &Bench) {
    bench.start();
    let before = bench.free_memory();
    let all: Vec<u64> = (0..5).map(|_| bench.allocate(MIB / 2)).collect();
    bench.is("five halves take", before - bench.free_memory(), 4 * MIB);
    let distances: Vec<u64> = all[..4].windows(2).map(|pair| pair[1].abs_diff(pair[0])).collect();
    bench.is("distances", distances, vec![MIB as u64 / 2; 3]);
    bench.allocate(3 * MIB);
    bench.is("a large one does not share", before - bench.free_memory(), 8 * MIB);
    bench.allocate(MIB / 2);
    bench.is("another half does", before - bench.free_memory(), 8 * MIB);
}

fn use_of_a_freed_neighbour(bench: &Bench) {
    bench.start();
    let (first, second, third) = (bench.allocate(512), bench.allocate(512), bench.allocate(512));
    cu!(bench, cuMemFree(second) => 0);
    cu!(bench, cuMemsetD8Async(second, 1, 512, null_mut()) => 1);
    cu!(bench, cuMemFree(second) => 1);
    cu!(bench, cuMemsetD8Async(first, 1, 512, null_mut()) => 0);
    cu!(bench, cuMemsetD8Async(third, 1, 512, null_mut()) => 0);
    cu!(bench, cuMemsetD8Async(first, 1, 513, null_mut()) => 1);
    cu!(bench, cuMemsetD8Async(third, 1, 513, null_mut()) => 1);
    cu!(bench, cuCtxSynchronize() => 0);
}

fn a_gap_is_filled(bench: &Bench) {
    bench.start();
    let small: Vec<u64> = (0..8).map(|_| bench.allocate(1000)).collect();
    bench.is("distance", small[1].abs_diff(small[0]), 1024);
    cu!(bench, cuMemFree(small[2]) => 0);
    cu!(bench, cuMemFree(small[5]) => 0);
    bench.is("the first gap", bench.allocate(1000) == small[2], true);
    bench.is("the second gap", bench.allocate(1000) == small[5], true);
}
