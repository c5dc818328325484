//! Copies in one, two and three dimensions.

use crate::bench::{Bench, UNIT, cu, host};
use crate::{Row, rows};
use std::ptr;
use tcuda::driver::sys::{CUDA_MEMCPY2D, CUmemorytype};

pub const ROWS: &[Row] = rows!("copies":
    copies_there_and_back,
    copies_of_nothing,
    copies_between_hosts,
    copies_that_are_wrong,
    copies_past_the_end,
    copies_of_rows,
    rows_that_are_wrong,
    copies_between_devices,
    copies_named_by_contexts,
);

fn copies_there_and_back(b: &Bench) {
    b.start();
    let (first, second, stream) = (b.allocate(256), b.allocate(256), b.stream(1));
    let bytes: Vec<u8> = (0..=255).collect();
    b.store(first, &bytes, stream);
    cu!(b, cuMemcpyAsync(second + 1, first, 255, stream) => 0);
    b.is("bytes", b.fetch(second + 1, 255, stream), bytes[..255].to_vec());
}

fn copies_of_nothing(b: &Bench) {
    b.start();
    let (memory, stream) = (b.allocate(64), b.stream(1));
    cu!(b, cuMemcpyAsync(memory, memory, 0, stream) => 0);
    cu!(b, cuMemcpyAsync(0, 0, 0, stream) => 0);
    cu!(b, cuMemcpyAsync(0, memory, 0, stream) => 0);
}

fn copies_between_hosts(b: &Bench) {
    b.start();
    let (source, target, stream) = ([7u8; 64], [0u8; 64], b.stream(1));
    cu!(b, cuMemcpyAsync(host(&target), host(&source), 64, stream) => 0);
    cu!(b, cuStreamSynchronize(stream) => 0);
    b.is("bytes", std::hint::black_box(&target)[63], 7);
}

fn copies_that_are_wrong(b: &Bench) {
    b.start();
    let (memory, stream) = (b.allocate(64), b.stream(1));
    cu!(b, cuMemcpyAsync(0, memory, 64, stream) => 1);
    cu!(b, cuMemcpyAsync(memory, 0, 64, stream) => 1);
    // Addresses without an owner are taken as the host's, and read: no rows for those.
    cu!(b, cuMemFree(memory) => 0);
    cu!(b, cuStreamSynchronize(stream) => 0);
}

fn copies_past_the_end(b: &Bench) {
    b.start();
    let (memory, mapped, stream) = (b.allocate(UNIT), b.mapped(UNIT), b.stream(1));
    cu!(b, cuMemcpyAsync(memory, mapped, UNIT + 64, stream) => 1);
    cu!(b, cuMemcpyAsync(mapped, memory, UNIT + 64, stream) => 1);
    cu!(b, cuMemsetD8Async(mapped, 1, UNIT + 1, stream) => 1);
    cu!(b, cuStreamSynchronize(stream) => 0);
}

/// Rows from the host to a device.
fn rows_to(memory: u64, source: &[u8], width: usize, pitches: (usize, usize)) -> CUDA_MEMCPY2D {
    CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: source.as_ptr().cast(),
        srcDevice: 0,
        srcArray: ptr::null_mut(),
        srcPitch: pitches.0,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: ptr::null_mut(),
        dstDevice: memory,
        dstArray: ptr::null_mut(),
        dstPitch: pitches.1,
        WidthInBytes: width,
        Height: 3,
    }
}

fn copies_of_rows(b: &Bench) {
    b.start();
    let (memory, stream) = (b.warm(64), b.stream(1));
    let source: Vec<u8> = (0..30).collect();
    cu!(b, cuMemcpy2DAsync(&rows_to(memory, &source, 4, (10, 8)), stream) => 0);
    let seen = b.fetch(memory, 24, stream);
    let expected =
        vec![0, 1, 2, 3, 0, 0, 0, 0, 10, 11, 12, 13, 0, 0, 0, 0, 20, 21, 22, 23, 0, 0, 0, 0];
    b.is("bytes", seen, expected);
}

fn rows_that_are_wrong(b: &Bench) {
    b.start();
    let (memory, stream) = (b.warm(64), b.stream(1));
    let source: Vec<u8> = (0..64).collect();
    cu!(b, cuMemcpy2DAsync(&rows_to(memory, &source, 8, (4, 8)), stream) => 1);
    cu!(b, cuMemcpy2DAsync(&rows_to(memory, &source, 8, (8, 4)), stream) => 1);
    cu!(b, cuMemcpy2DAsync(&rows_to(0, &source, 8, (8, 8)), stream) => 1);
    cu!(b, cuMemcpy2DAsync(&rows_to(memory, &source, 0, (8, 8)), stream) => 0);
    cu!(b, cuMemcpy2DAsync(ptr::null(), stream) => 1);
    cu!(b, cuStreamSynchronize(stream) => 0);
}

fn copies_between_devices(b: &Bench) {
    b.start();
    b.need_two_devices();
    let (here, stream) = (b.warm(64), b.stream(1));
    b.use_device(1);
    let there = b.warm(64);
    b.use_device(0);
    cu!(b, cuMemsetD8Async(here, 9, 64, stream) => 0);
    cu!(b, cuMemcpyAsync(there, here, 64, stream) => 0);
    b.is("bytes", b.fetch(there, 64, stream), vec![9; 64]);
    // A copy reaches the other device, a fill only with peer access.
    cu!(b, cuMemsetD8Async(there, 1, 64, stream) => 1);
    cu!(b, cuStreamSynchronize(stream) => 0);
}

fn copies_named_by_contexts(b: &Bench) {
    let context = b.start();
    let (first, second, stream) = (b.warm(64), b.warm(64), b.stream(1));
    cu!(b, cuMemsetD8Async(first, 9, 64, stream) => 0);
    cu!(b, cuMemcpyPeerAsync(second, context, first, context, 64, stream) => 0);
    b.is("bytes", b.fetch(second, 64, stream), vec![9; 64]);
    cu!(b, cuMemcpyPeerAsync(second, ptr::null_mut(), first, context, 64, stream) => 0);
    cu!(b, cuMemcpyPeerAsync(0, context, first, context, 64, stream) => 1);
}
