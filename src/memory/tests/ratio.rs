//! The ratio of the reserved memory to the peak of the allocated memory.

use super::{MIB, on_machine};
use crate::memory::arena::addresses::arena_of;

/// With much memory, a small excess counts too.
#[test]
fn idle_memory_serves_before_an_arena_grows() {
    on_machine("memory=8GiB", |bench| {
        let stream = bench.stream();
        // Each is more than a 256th of the arena, so that the arena grows only by what is missing.
        let blocks = [1980, 34, 34, 34, 34].map(|mib| bench.malloc(stream, mib * MIB));
        bench.free(blocks[1]);
        bench.free(blocks[3]);
        bench.malloc(stream, 68 * MIB);
        bench.check();
        assert_eq!(bench.reserved(), 2116 * MIB);
    });
}

/// A view that spares less than a 32nd of its length is not worth the mapping.
#[test]
fn little_idle_memory_does_not_serve_before_an_arena_grows() {
    for (idle, reserved) in [(2, 1980 + 2 + 34 + 68), (4, 1980 + 4 + 34 + 64)] {
        on_machine("memory=8GiB", |bench| {
            let stream = bench.stream();
            // With a limit, an arena grows only by what is missing.
            bench.memory().set_fraction(0.9).unwrap();
            let blocks = [1980, idle, 34].map(|mib| bench.malloc(stream, mib * MIB));
            bench.free(blocks[1]);
            bench.malloc(stream, 68 * MIB);
            bench.check();
            assert_eq!(bench.reserved(), reserved * MIB);
        });
    }
}

/// An earlier large program has no influence on the handles of the next one.
#[test]
fn after_a_large_program_a_small_one_has_handles_of_its_own_size() {
    let largest = |before: u64| {
        on_machine("memory=64GiB", |bench| {
            let stream = bench.stream();
            bench.free(bench.malloc(stream, before * MIB));
            bench.empty_cache();
            let blocks: Vec<u64> = (0..8).map(|_| bench.malloc(stream, 60 * MIB)).collect();
            let arena = arena_of(blocks[0]).unwrap().0;
            let state = arena.guard();
            state.segment.mappings().iter().map(|mapping| mapping.units).max().unwrap()
        })
    };
    assert_eq!(largest(20480), largest(64));
}
