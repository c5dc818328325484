//! Repeated passes of a program: they find their blocks where they were in the first pass, and make
//! no driver calls.

use super::views::{two_free_ranges, views};
use super::{Bench, KIB, MIB, Random, on_machine};
use crate::gpu::stream::Stream;
use crate::memory::config::settings::Settings;

const SEEDS: u64 = if cfg!(debug_assertions) { 24 } else { 300 };

/// A pass of allocations with sizes and lifetimes that repeat; returns the addresses.
fn pass(bench: Bench, stream: &Stream, seed: u64) -> Vec<u64> {
    let mut word = seed;
    let mut random = |below: u64| {
        word = word.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (word >> 33) % below
    };
    let (mut live, mut all) = (Vec::new(), Vec::new());
    for _ in 0..400 {
        if live.len() < 24 && random(5) < 3 {
            live.push(bench.malloc(stream, (1 + random(80)) * MIB + random(3) * 512));
            all.extend(live.last());
        } else if !live.is_empty() {
            let index = random(live.len() as u64) as usize;
            bench.free(live.swap_remove(index));
        }
    }
    live.into_iter().for_each(|block| bench.free(block));
    all
}

/// Every block has the same address, without a driver call. On a device with 16 GiB there is room
/// for all views, so that none is unmapped.
#[test]
fn a_pass_that_is_repeated_is_the_same() {
    for seed in 1..=SEEDS {
        on_machine("memory=16GiB", |bench| {
            let stream = bench.stream();
            let first = pass(bench, stream, seed);
            bench.check();
            let before = (bench.all_calls(), bench.reserved());
            for _ in 0..3 {
                assert_eq!(pass(bench, stream, seed), first, "seed {seed}");
                bench.check();
                assert_eq!((bench.all_calls(), bench.reserved()), before, "seed {seed}");
            }
        });
    }
}

/// An arena whose growth cursor was reset still uses all of its memory, whatever size is requested
/// first.
#[test]
fn memory_above_the_cursor_serves_before_the_driver_is_called() {
    for (size, lends) in [(168, true), (168, false), (120, false), (90, true)] {
        on_machine("memory=1GiB", |bench| {
            let stream = bench.stream();
            let blocks = two_free_ranges(bench, stream);
            let first = bench.malloc(stream, 120 * MIB);
            bench.free(first);
            bench.free(blocks[1]);
            bench.free(blocks[3]);
            // A search merges the blocks of the quick lists; then all memory is one block.
            let small = bench.malloc(stream, MIB);
            assert_eq!((small, views(small)), (blocks[0], 1));
            bench.free(small);
            if !lends {
                let settings = Settings { lend_idle_memory: false, ..Settings::DEFAULT };
                bench.memory().configure(&settings);
            }
            let calls = bench.all_calls();
            let block = bench.malloc(stream, size * MIB);
            bench.check();
            assert_eq!((block, bench.all_calls()), (blocks[0], calls), "{size} MiB");
            bench.free(block);
            bench.check();
        });
    }
}

/// The same with many small blocks, which the quick lists keep unmerged; returns the addresses.
fn small_pass(bench: Bench, stream: &Stream, seed: u64) -> Vec<u64> {
    let mut random = Random(seed);
    let (mut live, mut all) = (Vec::new(), Vec::new());
    for _ in 0..8000 {
        if random.below(5) < 3 {
            live.push(bench.malloc(stream, 1 + random.below(64 * KIB)));
            all.extend(live.last());
        } else if !live.is_empty() {
            let index = random.below(live.len() as u64) as usize;
            bench.free(live.swap_remove(index));
        }
    }
    live.into_iter().for_each(|block| bench.free(block));
    all
}

/// Every block has the same address, without a driver call.
#[test]
fn small_blocks_keep_their_addresses() {
    for seed in 1..=SEEDS / 2 {
        on_machine("memory=1GiB", |bench| {
            let stream = bench.stream();
            let first = small_pass(bench, stream, seed);
            bench.check();
            let before = (bench.all_calls(), bench.reserved());
            for _ in 0..3 {
                assert!(small_pass(bench, stream, seed) == first, "seed {seed}");
                assert_eq!((bench.all_calls(), bench.reserved()), before, "seed {seed}");
            }
            bench.check();
        });
    }
}
