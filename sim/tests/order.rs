//! Kernels that rely on an order of warps or blocks: each barrier that is left out, and each block
//! that relies on another's turn, gives another result under at least one of 100 seeds. The whole
//! kernels give the same result under all.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "order/kernels.rs"]
mod kernels;

use kernels::{BLOCKS, ORDERED, THREADS, WITH_BARRIERS, text};
use tcuda_sim::exec::{Options, Shape};
use tcuda_sim::host::HostMachine;

const SEEDS: u64 = 100;

/// The output of a kernel under a seed.
fn output(text: &str, seed: Option<u64>) -> Vec<u8> {
    let mut host = HostMachine::default();
    let loaded = host.load(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let bytes = 4 * (THREADS * BLOCKS + 1) as usize;
    let out = host.add(&vec![0; bytes]);
    let (grid, block) = ([BLOCKS, 1, 1], [THREADS, 1, 1]);
    let shape = Shape { grid, block, cluster: [1; 3], dynamic_shared: 0 };
    let options = Options { seed, ..Options::default() };
    host.run(&loaded, "f", shape, &out.to_le_bytes(), &options).unwrap().unwrap();
    host.get(out)
}

/// The first seed that gives another output than the expected one.
fn found_by(text: &str, expected: &[u8]) -> Option<u64> {
    (0..SEEDS).find(|seed| output(text, Some(*seed)) != expected)
}

#[test]
fn missing_barriers_are_found() {
    let (mut planted, mut missed) = (0, Vec::new());
    for (name, body) in WITH_BARRIERS {
        let whole = text(body, None);
        let expected = output(&whole, None);
        assert_eq!(found_by(&whole, &expected), None, "{name}: nothing is missing");
        for index in 0..body.matches("BAR ").count() {
            planted += 1;
            if found_by(&text(body, Some(index)), &expected).is_none() {
                missed.push((name, index));
            }
        }
    }
    assert_eq!(missed, []);
    assert!(planted >= 14, "{planted}");
}

#[test]
fn orders_of_blocks_and_warps_are_found() {
    for (name, body) in ORDERED {
        let whole = text(body, None);
        // Without a seed, blocks and warps run in order.
        assert!(found_by(&whole, &output(&whole, None)).is_some(), "{name}");
    }
}
