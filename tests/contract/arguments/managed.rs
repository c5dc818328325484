//! Wrong arguments: managed memory.

use crate::Row;
use crate::bench::{Bench, cu};
use std::ffi::c_void;
use std::ptr::null_mut;
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["arguments":
    cuMemAllocManaged, cuMemAdvise, cuMemPrefetchAsync, cuStreamAttachMemAsync,
    cuMemRangeGetAttribute,
];

const BYTES: usize = 2 << 20;

fn managed(bench: &Bench) -> CUdeviceptr {
    let mut address = 0;
    cu!(bench, cuMemAllocManaged(&mut address, BYTES, 1) => 0);
    address
}

fn cuMemAllocManaged(bench: &Bench) {
    bench.start();
    let mut address = 77;
    cu!(bench, cuMemAllocManaged(null_mut(), 16, 1) => 1);
    cu!(bench, cuMemAllocManaged(&mut address, 0, 1) => 1);
    for flags in [0, 3, 4, 8, u32::MAX] {
        cu!(bench, cuMemAllocManaged(&mut address, 16, flags) => 1);
    }
    bench.is("untouched", address == 77 || address == 0, true);
    cu!(bench, cuMemAllocManaged(&mut address, 16, 2) => 0);
    cu!(bench, cuMemFree(address) => 0);
}

fn cuMemAdvise(bench: &Bench) {
    use CUmem_advise::*;
    bench.start();
    let (memory, plain) = (managed(bench), bench.allocate(4096));
    cu!(bench, cuMemAdvise(plain, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, 0) => 1);
    cu!(bench, cuMemAdvise(memory, 2 * BYTES, CU_MEM_ADVISE_SET_READ_MOSTLY, 0) => 1);
    cu!(bench, cuMemAdvise(memory, BYTES, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 1000) => 101);
    cu!(bench, cuMemAdvise(memory, BYTES, CU_MEM_ADVISE_SET_ACCESSED_BY, -1) => 0);
    cu!(bench, cuMemFree(memory) => 0);
}

fn cuMemPrefetchAsync(bench: &Bench) {
    bench.start();
    let (memory, plain) = (managed(bench), bench.allocate(4096));
    cu!(bench, cuMemPrefetchAsync(plain, 4096, 0, null_mut()) => 1);
    cu!(bench, cuMemPrefetchAsync(memory, 2 * BYTES, 0, null_mut()) => 1);
    cu!(bench, cuMemPrefetchAsync(memory, BYTES, 1000, null_mut()) => 101);
    cu!(bench, cuMemPrefetchAsync(memory, BYTES, -1, null_mut()) => 0);
    cu!(bench, cuCtxSynchronize() => 0);
    cu!(bench, cuMemFree(memory) => 0);
}

fn cuStreamAttachMemAsync(bench: &Bench) {
    bench.start();
    let memory = managed(bench);
    // 0 crashes the driver.
    for flags in [3, 8, u32::MAX] {
        cu!(bench, cuStreamAttachMemAsync(null_mut(), memory, BYTES, flags) => 1);
    }
    // A default stream is not one of several.
    cu!(bench, cuStreamAttachMemAsync(null_mut(), memory, BYTES, 4) => 1);
    cu!(bench, cuStreamAttachMemAsync(null_mut(), memory, BYTES, 2) => 0);
    cu!(bench, cuCtxSynchronize() => 0);
    cu!(bench, cuMemFree(memory) => 0);
}

fn cuMemRangeGetAttribute(bench: &Bench) {
    use CUmem_range_attribute::*;
    bench.start();
    let (memory, plain) = (managed(bench), bench.allocate(4096));
    let mut values = [77i32; 2];
    let to: *mut c_void = values.as_mut_ptr().cast();
    let which = CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY;
    cu!(bench, cuMemRangeGetAttribute(null_mut(), 4, which, memory, BYTES) => 1);
    cu!(bench, cuMemRangeGetAttribute(to, 8, which, memory, BYTES) => 1);
    cu!(bench, cuMemRangeGetAttribute(to, 4, which, memory, 0) => 1);
    cu!(bench, cuMemRangeGetAttribute(to, 4, which, plain, 4096) => 1);
    cu!(bench, cuMemRangeGetAttribute(to, 4, which, memory, 2 * BYTES) => 1);
    let which = CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY;
    cu!(bench, cuMemRangeGetAttribute(to, 6, which, memory, BYTES) => 1);
    cu!(bench, cuMemRangeGetAttribute(to, 8, which, memory, BYTES) => 0);
    bench.is("none", values, [-2, -2]);
    cu!(bench, cuMemFree(memory) => 0);
}
