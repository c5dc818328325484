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

fn kernel(name: &str) -> String {
    let path = format!("{}/../kernels/{name}.ptx", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

/// Fills `bytes` at `offset` of a buffer with a value.
fn fill(offset: u64, value: &[u8], bytes: u64, blocks: u32) -> Vec<u8> {
    let mut host = HostMachine::default();
    let loaded = host.load(&kernel("fill")).unwrap();
    let buffer = host.add(&vec![0xee; (offset + bytes + 64) as usize]);
    let pattern: Vec<u8> = value.iter().copied().cycle().take(32).collect();
    let mut parameters = words(&[buffer + offset, bytes]);
    parameters.extend_from_slice(&pattern);
    parameters.extend_from_slice(&(value.len() as u32).to_le_bytes());
    let (shape, options) = (shape(blocks, 256), Options::default());
    host.run(&loaded, "tcuda_fill_pattern", shape, &parameters, &options).unwrap().unwrap();
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
    let mut host = HostMachine::default();
    let loaded = host.load(&kernel("fill")).unwrap();
    let bytes = 64 << 20;
    let buffer = host.add(&vec![0; bytes]);
    let mut parameters = words(&[buffer, bytes as u64, 1, 2, 3, 4]);
    parameters.extend_from_slice(&16u32.to_le_bytes());
    for _ in 0..3 {
        let begin = Instant::now();
        let (shape, options) = (shape(4096, 256), Options::default());
        host.run(&loaded, "tcuda_fill_pattern", shape, &parameters, &options).unwrap().unwrap();
        let rate = bytes as f64 / begin.elapsed().as_secs_f64() / 1e6;
        println!("fill: {rate:.0} MB/s");
    }
    let kernel = tcuda_sim::exec::Kernel::find(&loaded.program, "tcuda_fill_pattern").unwrap();
    let shape = shape(1, 256);
    let mut parameters = words(&[buffer, 4096, 1, 2, 3, 4]);
    parameters.extend_from_slice(&16u32.to_le_bytes());
    let begin = Instant::now();
    for _ in 0..10_000 {
        kernel.run(&host, &loaded.addresses, shape, &parameters, &Options::default()).unwrap();
    }
    println!("a small fill: {:.2} us", begin.elapsed().as_secs_f64() * 1e2);
}
