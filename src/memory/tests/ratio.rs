//! The ratio of the reserved memory to the peak of the allocated memory.

use super::{MIB, on_machine};
use crate::memory::arena::addresses::arena_of;

/// With much memory, a small excess counts too.
#[test]
fn idle_memory_serves_before_an_arena_grows_by_half_a_percent() {
    on_machine("memory=8GiB", |bench| {
        let stream = bench.stream();
        // Each is more than a 256th of the arena, so that the arena grows only by what is missing.
        let blocks = [1980, 34, 34, 34, 34].map(|mib| bench.malloc(stream, mib * MIB));
        bench.free(blocks[1]);
        bench.free(blocks[3]);
        let block = bench.malloc(stream, 68 * MIB);
        bench.check();
        assert_eq!(bench.reserved(), 2116 * MIB);
        bench.free(block);
        // Less than that is not worth a view: the arena grows by what is missing.
        let little = [28, 28].map(|mib| bench.malloc(stream, mib * MIB));
        bench.malloc(stream, 10 * MIB);
        bench.check();
        assert_eq!(bench.reserved(), 2126 * MIB);
        little.into_iter().for_each(|block| bench.free(block));
        bench.check();
    });
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
