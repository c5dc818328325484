//! Pinned memory of the host: allocated and registered.

use crate::Row;
use crate::bench::{Bench, cu, host};
use std::ffi::c_void;
use std::ptr::null_mut;

pub const ROWS: &[Row] = crate::rows!["pinned":
    host_allocation, host_free_misuse, register_twice, register_parts, register_bad_arguments,
    unregister_misuse, registered_memory_works, wrong_way_back, registering_pinned_memory,
    unregistering_waits, freeing_pinned_waits, flags,
];

fn page(bytes: usize) -> &'static mut [u8] {
    let all = Vec::leak(vec![0u8; bytes + 4096]);
    let skip = all.as_ptr().align_offset(4096);
    &mut all[skip..skip + bytes]
}

fn host_allocation(bench: &Bench) {
    bench.start();
    let mut address = null_mut();
    cu!(bench, cuMemHostAlloc(&mut address, 0, 0) => 0);
    cu!(bench, cuMemHostAlloc(null_mut(), 16, 0) => 1);
    cu!(bench, cuMemHostAlloc(&mut address, 1 << 60, 0) => 2);
    cu!(bench, cuMemHostAlloc(&mut address, 5, 0) => 0);
    bench.is("on 512", address.addr() % 512, 0);
    cu!(bench, cuMemFreeHost(address) => 0);
}

fn flags(bench: &Bench) {
    bench.start();
    for flags in 0..8 {
        let mut address = null_mut();
        cu!(bench, cuMemHostAlloc(&mut address, 4096, flags) => 0);
        cu!(bench, cuMemFreeHost(address) => 0);
    }
    let mut address = null_mut();
    cu!(bench, cuMemHostAlloc(&mut address, 4096, 16) => 1);
    cu!(bench, cuMemHostAlloc(&mut address, 4096, 0x100) => 1);
}

fn host_free_misuse(bench: &Bench) {
    bench.start();
    let start = bench.pinned(8192).as_mut_ptr();
    cu!(bench, cuMemFreeHost(start.wrapping_add(64).cast()) => 1);
    cu!(bench, cuMemFreeHost(start.cast()) => 0);
    cu!(bench, cuMemFreeHost(start.cast()) => 1);
}

fn register_twice(bench: &Bench) {
    bench.start();
    let start: *mut c_void = page(8192).as_mut_ptr().cast();
    cu!(bench, cuMemHostRegister(start, 8192, 0) => 0);
    cu!(bench, cuMemHostRegister(start, 8192, 0) => 712);
    cu!(bench, cuMemHostRegister(start, 4096, 0) => 712);
    cu!(bench, cuMemHostUnregister(start) => 0);
    cu!(bench, cuMemHostUnregister(start) => 713);
    cu!(bench, cuMemHostRegister(start, 4096, 0) => 0);
    cu!(bench, cuMemHostUnregister(start) => 0);
}

fn register_parts(bench: &Bench) {
    bench.start();
    let start = page(5 * 4096).as_mut_ptr();
    let at = |index: usize| start.wrapping_add(index * 4096).cast::<c_void>();
    cu!(bench, cuMemHostRegister(at(1), 4096, 0) => 0);
    cu!(bench, cuMemHostRegister(at(0), 2 * 4096, 0) => 712);
    cu!(bench, cuMemHostRegister(at(1), 2 * 4096, 0) => 712);
    cu!(bench, cuMemHostRegister(at(0), 5 * 4096, 0) => 712);
    cu!(bench, cuMemHostRegister(at(2), 4096, 0) => 0);
    // Not whole pages, and two in one page.
    cu!(bench, cuMemHostRegister(at(3).wrapping_byte_add(64), 100, 0) => 0);
    cu!(bench, cuMemHostRegister(at(3).wrapping_byte_add(512), 100, 0) => 0);
    cu!(bench, cuMemHostUnregister(at(1)) => 0);
    cu!(bench, cuMemHostUnregister(at(2)) => 0);
    cu!(bench, cuMemHostUnregister(at(3).wrapping_byte_add(64)) => 0);
}

fn register_bad_arguments(bench: &Bench) {
    bench.start();
    let start: *mut c_void = page(4096).as_mut_ptr().cast();
    cu!(bench, cuMemHostRegister(null_mut(), 4096, 0) => 1);
    cu!(bench, cuMemHostRegister(start, 0, 0) => 1);
    cu!(bench, cuMemHostRegister(start, 4096, 0x10) => 1);
    cu!(bench, cuMemHostRegister(start, 4096, 1) => 0);
    cu!(bench, cuMemHostUnregister(start) => 0);
    cu!(bench, cuMemHostRegister(start, 4096, 3) => 0);
    cu!(bench, cuMemHostUnregister(start) => 0);
}

fn unregister_misuse(bench: &Bench) {
    bench.start();
    let start: *mut c_void = page(8192).as_mut_ptr().cast();
    cu!(bench, cuMemHostUnregister(null_mut()) => 1);
    cu!(bench, cuMemHostUnregister(start) => 713);
    cu!(bench, cuMemHostRegister(start, 8192, 0) => 0);
    cu!(bench, cuMemHostUnregister(start.wrapping_byte_add(4096)) => 1);
    cu!(bench, cuMemHostUnregister(start.wrapping_byte_add(1)) => 1);
    cu!(bench, cuMemHostUnregister(start) => 0);
}

fn registered_memory_works(bench: &Bench) {
    bench.start();
    let (memory, stream) = (page(4096), bench.stream(1));
    let device = bench.warm(4096);
    cu!(bench, cuMemHostRegister(memory.as_mut_ptr().cast(), 4096, 0) => 0);
    cu!(bench, cuMemsetD8Async(device, 7, 4096, stream) => 0);
    let gate = bench.hold(stream);
    bench.waits("a copy to registered memory", gate, false, || {
        cu!(bench, cuMemcpyAsync(host(memory), device, 4096, stream) => 0);
    });
    bench.is("not yet", memory[0], 0);
    gate.open();
    cu!(bench, cuStreamSynchronize(stream) => 0);
    bench.is("bytes", (memory[0], memory[4095]), (7, 7));
    cu!(bench, cuMemHostUnregister(memory.as_mut_ptr().cast()) => 0);
}

fn wrong_way_back(bench: &Bench) {
    bench.start();
    let start: *mut c_void = page(4096).as_mut_ptr().cast();
    let pinned: *mut c_void = bench.pinned(4096).as_mut_ptr().cast();
    cu!(bench, cuMemHostRegister(start, 4096, 0) => 0);
    cu!(bench, cuMemFreeHost(start) => 1);
    cu!(bench, cuMemHostUnregister(pinned) => 1);
    cu!(bench, cuMemHostUnregister(start) => 0);
    cu!(bench, cuMemFreeHost(pinned) => 0);
}

fn registering_pinned_memory(bench: &Bench) {
    bench.start();
    let pinned = bench.pinned(8192).as_mut_ptr();
    cu!(bench, cuMemHostRegister(pinned.cast(), 8192, 0) => 1);
    cu!(bench, cuMemHostRegister(pinned.wrapping_add(4096).cast(), 64, 0) => 1);
    let device = bench.allocate(8192) as usize;
    cu!(bench, cuMemHostRegister(
        std::ptr::with_exposed_provenance_mut(device), 4096, 0) => 1);
}

fn unregistering_waits(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (memory, stream) = (page(4096), bench.stream(1));
    cu!(bench, cuMemHostRegister(memory.as_mut_ptr().cast(), 4096, 0) => 0);
    let gate = bench.hold(stream);
    bench.waits("cuMemHostUnregister", gate, true, || {
        cu!(bench, cuMemHostUnregister(memory.as_mut_ptr().cast()) => 0);
    });
}

fn freeing_pinned_waits(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (memory, stream) = (bench.pinned(4096), bench.stream(1));
    let gate = bench.hold(stream);
    bench.waits("cuMemFreeHost", gate, true, || {
        cu!(bench, cuMemFreeHost(memory.as_mut_ptr().cast()) => 0);
    });
}
