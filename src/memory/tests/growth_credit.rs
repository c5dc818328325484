//! Growth credit: arenas that poll often, on a machine where a poll takes time. The thread's clock
//! advances with each read, so that runs are reproducible.

use super::super::record_stream;
use super::{Bench, KIB, MIB, on_machine};
use crate::base::progress::{MOMENT, by_reading};
use crate::driver::{Call, inject};
use crate::gpu::stream::Stream;

/// A device for which 32 MiB are few, and whose queries take 400 ns.
const TIMED: &str = "memory=4GiB,question=400";
const LITTLE: u64 = 32 * MIB;

/// Allocates blocks, uses them on two other streams, and frees them, `pause` nanoseconds apart.
/// Returns the number of queries.
fn rounds(bench: Bench, own: &Stream, bytes: u64, count: usize, pause: u64) -> u64 {
    let others = [bench.stream(), bench.stream()];
    let asked = bench.calls(Call::cuStreamQuery);
    for _ in 0..count {
        let block = bench.malloc(own, bytes);
        others.iter().for_each(|other| record_stream(block, other).unwrap());
        bench.free(block);
        by_reading::pass(pause * MOMENT / 1000);
    }
    bench.check();
    bench.calls(Call::cuStreamQuery) - asked
}

/// Runs a test with queries that take time.
fn timed<R>(options: &str, body: impl FnOnce(Bench) -> R) -> R {
    by_reading::during(|| on_machine(options, body))
}

#[test]
fn an_arena_that_polls_often_grows_until_it_polls_rarely() {
    // Large blocks wait only for a moment: some ten of them.
    for (bytes, together, least) in [(MIB, 16, 16 * MIB), (2 * MIB, 5, 8 * MIB)] {
        timed(TIMED, |bench| {
            let own = bench.stream();
            let before = rounds(bench, own, bytes, 40, 50);
            let reserved = bench.reserved();
            assert!(before >= 36, "{before} questions");
            assert_eq!(reserved, 2 * MIB, "a few questions are no reason");
            rounds(bench, own, bytes, 20_000, 50);
            let (asked, grown) = (rounds(bench, own, bytes, 6400, 50), bench.reserved() - reserved);
            assert!(asked <= 2 * 6400 / together, "{asked} questions");
            assert!((least..=LITTLE).contains(&grown), "{grown}");
            // Steady state.
            rounds(bench, own, bytes, 20_000, 50);
            assert_eq!(bench.reserved() - reserved, grown);
        });
    }
}

#[test]
fn an_arena_that_polls_seldom_gets_no_credit() {
    timed(TIMED, |bench| {
        let own = bench.stream();
        rounds(bench, own, MIB, 2000, 12_000);
        assert_eq!(bench.reserved(), 2 * MIB);
        // Every second poll is early, but the polls take only a fortieth of the time.
        for _ in 0..1000 {
            rounds(bench, own, 2 * MIB, 2, 100);
            by_reading::pass(60 * MOMENT);
        }
        assert_eq!(bench.reserved(), 2 * MIB);
    });
}

/// The pending bytes are never more than the few bytes of the device plus a block.
#[test]
fn the_growth_credit_is_small() {
    timed(TIMED, |bench| {
        rounds(bench, bench.stream(), 20 * MIB, 20_000, 50);
        assert_eq!(bench.reserved(), 40 * MIB);
        rounds(bench, bench.stream(), 40 * MIB, 2000, 50);
        assert_eq!(bench.reserved(), 80 * MIB);
    });
    timed("memory=64MiB,question=400", |bench| {
        rounds(bench, bench.stream(), MIB, 2000, 50);
        assert_eq!(bench.reserved(), 2 * MIB, "512 KiB are little");
        rounds(bench, bench.stream(), 128 * KIB, 2000, 50);
        assert_eq!(bench.reserved(), 4 * MIB);
    });
}

#[test]
fn with_half_of_the_memory_reserved_arenas_poll_instead_of_growing() {
    timed("memory=64GiB,question=400", |bench| {
        let own = bench.stream();
        let most = bench.malloc(bench.stream(), (32 << 30) - 6 * MIB);
        rounds(bench, own, MIB, 20_000, 50);
        assert_eq!(bench.reserved(), 32 << 30);
        bench.free(most);
    });
    timed(TIMED, |bench| {
        bench.memory().set_fraction(1.0 / 256.0).unwrap();
        rounds(bench, bench.stream(), MIB, 20_000, 50);
        assert_eq!(bench.reserved(), 8 * MIB, "of the 16 MiB that it may have");
    });
}

/// Small blocks of three streams, which other streams use.
#[test]
fn random_operations_leave_every_invariant() {
    for seed in 1..=4 {
        timed("memory=64GiB,question=3000", |bench| {
            let streams = [bench.stream(), bench.stream(), bench.stream()];
            let (mut state, mut live) = (seed * 0x9e37_79b9_u64, Vec::new());
            let mut random = |most: usize| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 11) as usize % most
            };
            for step in 0..6000 {
                if live.len() > random(20) {
                    let index = random(live.len());
                    bench.free(live.swap_remove(index));
                } else {
                    let magnitude = 9 + random(12);
                    let bytes = 1 + random(1 << magnitude) as u64;
                    let block = bench.malloc(streams[random(3)], bytes);
                    streams.iter().for_each(|other| record_stream(block, other).unwrap());
                    live.push(block);
                }
                if step % 500 == 0 {
                    bench.check();
                }
            }
            live.into_iter().for_each(|block| bench.free(block));
            bench.empty_cache();
            bench.check();
            assert_eq!((bench.reserved(), bench.in_use()), (0, 0));
        });
    }
}

#[test]
fn without_driver_memory_the_arena_polls() {
    timed(TIMED, |bench| {
        let own = bench.stream();
        rounds(bench, own, MIB, 40, 50);
        inject::set(Some(Call::cuMemCreate as usize), 1, 2, true);
        let asked = rounds(bench, own, MIB, 1000, 50);
        assert!(asked >= 1000 - 50, "{asked} questions");
        assert_eq!(bench.reserved(), 2 * MIB);
        inject::clear();
        rounds(bench, own, MIB, 1000, 50);
        assert!(bench.reserved() > 2 * MIB);
    });
}
