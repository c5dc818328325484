//! The library's own kernels on the software GPU.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Instant;
use tcuda_sim::exec::{Options, Shape};
use tcuda_sim::host::HostMachine;

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn shape(grid: u32, block: u32) -> Shape {
    Shape { grid: [grid, 1, 1], block: [block, 1, 1], cluster: [1; 3], dynamic_shared: 0 }
}

fn kernel_text(name: &str) -> String {
    let path = format!("{}/../kernels/{name}.ptx", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

/// Fills `bytes` at `offset` of a buffer with a value.
fn fill(offset: u64, value: &[u8], bytes: u64, blocks: u32) -> Vec<u8> {
    let mut host = HostMachine::default();
    let loaded = host.load(&kernel_text("fill")).unwrap();
    let buffer = host.add(&vec![0xee; (offset + bytes + 64) as usize]);
    let pattern: Vec<u8> = value.iter().copied().cycle().take(32).collect();
    let mut parameters = words(&[buffer + offset, bytes]);
    parameters.extend_from_slice(&pattern);
    parameters.extend_from_slice(&(value.len() as u32).to_le_bytes());
    let (size, options) = (shape(blocks, 256), Options::default());
    host.run(&loaded, "tcuda_fill_pattern", size, &parameters, &options).unwrap().unwrap();
    host.get(buffer)
}

#[test]
fn a_fill_writes_its_pattern_and_nothing_else() {
    for (offset, length, bytes, blocks) in
        [(0, 3, 1000, 1), (5, 16, 100_000, 3), (7, 12, 65_536, 2), (1, 5, 17, 1), (15, 7, 1, 1)]
    {
        let value: Vec<u8> = (1..=length).collect();
        let found = fill(offset, &value, bytes, blocks);
        let expected = |at: u64| match at.checked_sub(offset) {
            Some(inside) if inside < bytes => value[(inside % u64::from(length)) as usize],
            _ => 0xee,
        };
        for (at, byte) in found.iter().enumerate() {
            assert_eq!(*byte, expected(at as u64), "byte {at} of {bytes} at {offset}");
        }
    }
}

#[test]
#[ignore = "measures"]
fn speed() {
    measure(&Options::default());
    println!("The same, and looking for races:");
    let races = Some(tcuda_sim::memory::race::Settings::default());
    measure(&Options { races, ..Options::default() });
}

fn measure(options: &Options) {
    let mut host = HostMachine::default();
    let loaded = host.load(&kernel_text("fill")).unwrap();
    let bytes = 64 << 20;
    let buffer = host.add(&vec![0; bytes]);
    let mut parameters = words(&[buffer, bytes as u64, 1, 2, 3, 4]);
    parameters.extend_from_slice(&16u32.to_le_bytes());
    for _ in 0..3 {
        let begin = Instant::now();
        let size = shape(4096, 256);
        host.run(&loaded, "tcuda_fill_pattern", size, &parameters, options).unwrap().unwrap();
        let rate = bytes as f64 / begin.elapsed().as_secs_f64() / 1e6;
        println!("fill: {rate:.0} MB/s");
    }
    let kernel = tcuda_sim::exec::Kernel::find(&loaded.program, "tcuda_fill_pattern").unwrap();
    let small = shape(1, 256);
    let mut parameters = words(&[buffer, 4096, 1, 2, 3, 4]);
    parameters.extend_from_slice(&16u32.to_le_bytes());
    let begin = Instant::now();
    for _ in 0..10_000 {
        kernel.run(&host, &loaded.addresses, small, &parameters, options).unwrap();
    }
    println!("a small fill: {:.2} us", begin.elapsed().as_secs_f64() * 1e2);
    // Normal random numbers: PyTorch's grid for this many.
    let numel = 4u64 << 20;
    let threads = 132 * 8 * 256u64;
    let waves = numel.div_ceil(threads * 4);
    let full = numel / (threads * 4);
    let loaded = host.load(&kernel_text("random_normal")).unwrap();
    let target = [numel | threads << 32, waves | 1 << 32, full << 32];
    let scalars = [0, f64::to_bits(1.0), 0, 0];
    let parameters = words(&[&[buffer, 7, 0, 0, 0][..], &target[..], &scalars[..]].concat());
    let grid = (threads / 4 / 256) as u32;
    for name in ["tcuda_random_normal_f32", "tcuda_random_normal_f64"] {
        let begin = Instant::now();
        let size = shape(grid, 256);
        host.run(&loaded, name, size, &parameters, options).unwrap().unwrap();
        let rate = numel as f64 / begin.elapsed().as_secs_f64() / 1e6;
        println!("{name}: {rate:.1} M/s");
    }
    // c = a + b, as a jit kernel does it.
    let loaded = host.load(ADD).unwrap();
    let count = 8u64 << 20;
    let parameters = words(&[buffer, buffer, buffer + 4 * count, count]);
    for _ in 0..3 {
        let begin = Instant::now();
        let size = shape((count / 1024) as u32, 256);
        host.run(&loaded, "add", size, &parameters, options).unwrap().unwrap();
        let rate = count as f64 / begin.elapsed().as_secs_f64() / 1e6;
        println!("add: {rate:.0} M elements/s");
    }
}

/// Adds floats, four to a thread.
const ADD: &str = ".version 7.8\n.target sm_52\n.address_size 64\n.entry add(.param .u64 a,\n\
    .param .u64 b, .param .u64 c, .param .u64 n) { .reg .pred %p; .reg .b32 %r<4>;\n\
    .reg .f32 %f<12>; .reg .b64 %d<10>; mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x;\n\
    mov.u32 %r2, %tid.x; mad.lo.s32 %r3, %r0, %r1, %r2; cvt.s64.s32 %d0, %r3;\n\
    shl.b64 %d0, %d0, 2; ld.param.u64 %d1, [n]; setp.ge.u64 %p, %d0, %d1; @%p bra $end;\n\
    ld.param.u64 %d2, [a]; ld.param.u64 %d3, [b]; ld.param.u64 %d4, [c];\n\
    cvta.to.global.u64 %d2, %d2; shl.b64 %d5, %d0, 2; add.s64 %d6, %d2, %d5;\n\
    add.s64 %d7, %d3, %d5; add.s64 %d8, %d4, %d5;\n\
    ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%d6]; ld.global.v4.f32 {%f4, %f5, %f6, %f7}, [%d7];\n\
    add.f32 %f8, %f0, %f4; add.f32 %f9, %f1, %f5; add.f32 %f10, %f2, %f6;\n\
    add.f32 %f11, %f3, %f7; st.global.v4.f32 [%d8], {%f8, %f9, %f10, %f11};\n$end: ret; }";
