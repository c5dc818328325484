//! Growing, giving memory back, and filling holes.

use super::super::arena::heap::Heap;
use super::{Bench, KIB, MIB, is_invalid_pointer, on_machine};
use crate::base::error::Error;
use crate::driver::{Call, inject};
use crate::memory::arena::addresses::arena_of;
use crate::memory::arena::block::State;
use crate::memory::config::size::{Class, UNIT};

/// The sizes in MiB of the handles of an address's arena, in address order.
fn handles(address: u64) -> Vec<u64> {
    let arena = arena_of(address).unwrap().0;
    let state = arena.guard();
    state.segment.mappings().iter().map(|m| u64::from(m.units) * UNIT / MIB).collect()
}

/// The blocks of an address's arena, in address order.
fn blocks(address: u64) -> Vec<(State, u64)> {
    let arena = arena_of(address).unwrap().0;
    let state = arena.guard();
    let mut id = state.first;
    std::iter::from_fn(|| {
        let block = (id != 0).then(|| state.blocks[id])?;
        id = block.next;
        Some((block.state, block.bytes() as u64))
    })
    .collect()
}

fn segments(bench: Bench) -> i64 {
    bench.memory().statistics().segment[0].current
}

#[test]
fn grows_by_a_256th_in_handles_that_grow_with_the_arena() {
    on_machine("memory=16GiB", |bench| {
        let stream = bench.stream();
        let block = bench.malloc(stream, 218 * MIB - 512);
        let mut expected = vec![26; 8];
        expected.push(10);
        assert_eq!(handles(block), expected, "an eighth of the growth");
        assert_eq!(bench.reserved(), 218 * MIB);
        let more = bench.malloc(stream, 3 * MIB);
        assert_eq!(more, block + 218 * MIB - 512, "contiguous, from the last unit on");
        expected.push(4);
        assert_eq!(handles(block), expected, "what is missing is more than a 256th");
        assert_eq!(segments(bench), 1);
        let last = |count| handles(block).split_off(handles(block).len() - count);
        bench.malloc(stream, 13 * MIB);
        assert_eq!(last(2), [8, 4], "a MiB was left; no handle is smaller than 8 MiB");
        bench.malloc(stream, 1100 * MIB);
        assert_eq!((last(2), bench.reserved()), (vec![64, 12], 1334 * MIB), "64 MiB at most");
        bench.malloc(stream, 3 * MIB);
        assert_eq!((last(1), bench.reserved()), (vec![4], 1338 * MIB), "a 256th of the arena");
        bench.malloc(stream, 117 * MIB);
        assert_eq!(last(6), [22, 22, 22, 22, 22, 6], "a 64th of the arena; a MiB was left");
        let small = bench.malloc(stream, 1);
        assert_eq!(handles(small), [2]);
        assert_eq!(segments(bench), 2);
        bench.check();
    });
}

#[test]
fn what_is_mapped_ahead_of_need_is_at_most_a_256th_and_nothing_with_a_limit() {
    on_machine("memory=64GiB", |bench| {
        let stream = bench.stream();
        let fill = |count: u64| -> Vec<u64> {
            let mut blocks = Vec::new();
            for _ in 0..count {
                blocks.push(bench.malloc(stream, 2 * MIB));
                let needed = blocks.len() as u64 * 2 * MIB;
                assert!(bench.reserved() <= needed + needed / 256, "{needed} bytes");
            }
            blocks
        };
        let mut blocks = fill(2048);
        // 512 growths up to 1 GiB, by 4 MiB up to 1.5 GiB, by 6 up to 2, and so on up to 4.
        let growths = bench.calls(Call::cuMemSetAccess);
        let expected = 512 + 128 + 86 + 64 + 52 + 43 + 37;
        assert!(growths.abs_diff(expected) < 10, "{growths} growths");
        blocks.drain(..).for_each(|block| bench.free(block));
        bench.empty_cache();
        assert_eq!(bench.reserved(), 0);
        // Again, by a 64th up to 4 GiB: 64 growths up to 128 MiB, and at most log(32) / log(65/64)
        // rounded down to 2 MiB.
        let before = bench.calls(Call::cuMemSetAccess);
        let blocks: Vec<u64> = (0..2048).map(|_| bench.malloc(stream, 2 * MIB)).collect();
        assert_eq!(bench.reserved(), 4096 * MIB);
        let growths = bench.calls(Call::cuMemSetAccess) - before;
        assert!(growths < 64 + 350, "{growths} growths");
        blocks.into_iter().for_each(|block| bench.free(block));
        bench.empty_cache();
        bench.memory().set_fraction(0.5).unwrap();
        let blocks = fill(400);
        assert_eq!(bench.reserved(), 800 * MIB);
        blocks.into_iter().for_each(|block| bench.free(block));
        bench.check();
    });
}

/// Where the driver has no memory for a step, it is asked for what is missing.
#[test]
fn without_memory_for_a_step_an_arena_grows_by_what_is_missing() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        bench.malloc(stream, 1018 * MIB);
        bench.malloc(stream, 2 * MIB);
        assert_eq!(bench.reserved(), 1020 * MIB);
        bench.check();
    });
}

#[test]
fn a_live_unit_keeps_its_handle_and_no_other() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        let blocks: Vec<u64> = (0..32).map(|_| bench.malloc(stream, MIB / 2)).collect();
        assert_eq!(handles(blocks[0]), [2; 8]);
        bench.free(blocks[17]);
        let tiny = bench.malloc(stream, 65 * KIB);
        assert_eq!(tiny, blocks[17]);
        for (index, block) in blocks.iter().enumerate() {
            if index != 17 {
                bench.free(*block);
            }
        }
        bench.empty_cache();
        bench.check();
        assert_eq!((handles(tiny), bench.reserved(), segments(bench)), (vec![2], 2 * MIB, 1));
        assert_eq!(bench.in_use(), 2 * MIB);
        // The holes are filled, the lowest first, and only as far as needed.
        assert_eq!(bench.malloc(stream, 700 * KIB), tiny + 65 * KIB, "what is mapped goes first");
        let next = bench.malloc(stream, 900 * KIB);
        assert_eq!((next, bench.reserved()), (blocks[0], 4 * MIB));
        bench.check();
        bench.free(tiny);
        is_invalid_pointer(super::super::free(bench.gpus, tiny));
    });
}

#[test]
fn adjacent_holes_merge() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        let below = bench.malloc(stream, 64 * MIB);
        let above = bench.malloc(stream, 2 * MIB);
        bench.free(below);
        bench.empty_cache();
        assert_eq!(blocks(above), [(State::Hole, 64 * MIB), (State::Allocated, 2 * MIB)]);
        // Uses the lower part of the hole, which leaves a hole below a hole.
        for size in [2, 8, 2] {
            let part = bench.malloc(stream, size * MIB);
            assert_eq!(part, below);
            bench.free(part);
            bench.empty_cache();
            bench.check();
            assert_eq!(blocks(above), [(State::Hole, 64 * MIB), (State::Allocated, 2 * MIB)]);
        }
        // Both neighbours are holes.
        let parts: Vec<u64> = (0..3).map(|_| bench.malloc(stream, 2 * MIB)).collect();
        for part in [parts[0], parts[2], parts[1]] {
            bench.free(part);
            bench.empty_cache();
            bench.check();
        }
        assert_eq!(blocks(above), [(State::Hole, 64 * MIB), (State::Allocated, 2 * MIB)]);
        assert_eq!(bench.malloc(stream, 64 * MIB), below, "it fits where it was");
        assert_eq!(bench.reserved(), 66 * MIB);
    });
}

#[test]
fn a_hole_takes_a_block_with_the_free_ends_beside_it() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        let step = 4 * MIB;
        let parts: Vec<u64> = (0..5).map(|_| bench.malloc(stream, step - MIB / 2)).collect();
        let (first, last) = (parts[0], parts[4]);
        parts[1..4].iter().for_each(|part| bench.free(*part));
        bench.empty_cache();
        bench.check();
        let size = 3 * (step - MIB / 2);
        let whole = bench.malloc(stream, size);
        assert_eq!(whole, parts[1]);
        bench.check();
        [first, whole, last].iter().for_each(|block| bench.free(*block));
        bench.empty_cache();
        assert_eq!(bench.reserved(), 0);
        assert_eq!(bench.malloc(stream, size), first, "an empty arena starts anew");
    });
}

/// Many free blocks of nearly the right size hide the block that fits from the bounded search. The
/// allocation must find it nevertheless, before the arena grows.
#[test]
fn a_fitting_block_is_found_among_many_that_do_not_fit() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        // With blocks of 4100 units after one of 4 units; bins are 64 units wide here.
        let (near, wanted) = (4096 * UNIT, 4100 * UNIT);
        let mut kept = Vec::new();
        let mut freed = Vec::new();
        for _ in 0..60 {
            freed.push(bench.malloc(stream, near));
            kept.push(bench.malloc(stream, near + UNIT));
        }
        freed.iter().for_each(|block| bench.free(*block));
        let reserved = bench.reserved();
        let right = bench.malloc(stream, wanted);
        kept.push(bench.malloc(stream, near + UNIT));
        bench.free(right);
        bench.check();
        let grown = bench.reserved();
        assert!(grown > reserved);
        let found = bench.malloc(stream, wanted);
        assert_eq!((found, bench.reserved()), (right, grown), "it is free and fits");
        bench.check();
    });
}

/// The same if the memory comes from a hole, so that the new block is in a bin.
#[test]
fn memory_in_a_filled_hole_is_found() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        let (near, wanted) = (4096 * UNIT, 4100 * UNIT);
        // A hole of a whole handle, with four free units below it.
        let below = bench.malloc(stream, near * 2 - 4 * UNIT);
        let hole = bench.malloc(stream, wanted);
        assert_eq!(hole, below + near * 2 - 4 * UNIT);
        let mut freed = Vec::new();
        for _ in 0..60 {
            bench.malloc(stream, near + UNIT);
            freed.push(bench.malloc(stream, near));
        }
        bench.malloc(stream, near + UNIT);
        bench.free(hole);
        bench.empty_cache();
        assert_eq!(blocks(below)[1..3], [(State::Free, 4 * UNIT), (State::Hole, near)]);
        freed.iter().for_each(|block| bench.free(*block));
        assert_eq!(bench.malloc(stream, wanted), hole);
        bench.check();
    });
}

#[test]
fn a_failure_while_growing_leaves_nothing_behind() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        let block = bench.malloc(stream, 5 * MIB);
        let state = |address| (handles(address), blocks(address), bench.in_use());
        let before = state(block);
        let live = crate::driver::sim::live_objects();
        for call in [Call::cuMemCreate, Call::cuMemMap, Call::cuMemSetAccess] {
            let calls = if call == Call::cuMemSetAccess { 1 } else { 4 };
            for nth in 1..=calls {
                assert!(inject::set(Some(call as usize), nth, 999, false));
                let outcome = bench.try_malloc(stream, 90 * MIB);
                inject::clear();
                match outcome {
                    Err(Error::Cuda(error)) => assert_eq!(error.code, 999),
                    other => panic!("{call:?} {nth}: {other:?}"),
                }
                bench.check();
                assert_eq!(state(block), before, "{call:?} {nth}");
                assert_eq!(crate::driver::sim::live_objects(), live, "{call:?} {nth}");
            }
        }
        let next = bench.malloc(stream, 90 * MIB);
        assert_eq!(next, block + 5 * MIB);
        bench.check();
    });
}

#[test]
fn a_failed_reservation_of_addresses_is_retried_with_fewer() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        let reserve = Some(Call::cuMemAddressReserve as usize);
        assert!(inject::set(reserve, 1, 2, true));
        assert!(bench.try_malloc(stream, 512).is_err());
        inject::clear();
        bench.check();
        assert!(inject::set(reserve, 1, 2, false));
        let block = bench.malloc(stream, 512);
        bench.check();
        bench.free(block);
    });
}

#[test]
fn an_arena_without_a_block_knows_no_pointer() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        assert!(inject::set(Some(Call::cuMemCreate as usize), 1, 1, false));
        assert!(bench.try_malloc(stream, 512).is_err());
        // SAFETY: made by the call above, and kept until shutdown.
        let arena = unsafe { &*stream.heap(false) }.arena(Class::Small);
        is_invalid_pointer(super::super::free(bench.gpus, arena.base));
        // Another thread may find an arena before its first allocation.
        let slots = bench.memory().addresses.take_slots().unwrap();
        assert_ne!(slots[0].base, slots[1].base);
        let ranges = slots.map(|slot| (slot.base, slot.bytes));
        let policy = &bench.memory().policy;
        let mut fresh = Heap::new(0, policy, ranges, MIB, [None, None]).unwrap();
        assert!(fresh.arenas_mut()[0].state_mut().find(0, 0).is_err());
    });
}

#[test]
fn more_streams_than_a_reservation_has_slots() {
    on_machine("memory=1GiB", |bench| {
        let streams: Vec<_> = (0..32).map(|_| bench.stream()).collect();
        let mut all = Vec::new();
        for stream in &streams {
            all.push((bench.malloc(stream, 512), 512));
            all.push((bench.malloc(stream, 2 * MIB), 2 * MIB));
        }
        let default = bench.device.streams.default();
        all.push((bench.malloc(default, 512), 512));
        assert!(bench.calls(Call::cuMemAddressReserve) > 1);
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        bench.check();
        all.iter().for_each(|block| bench.free(block.0));
        bench.empty_cache();
        bench.check();
        assert_eq!(bench.in_use(), 0);
    });
}

#[test]
fn the_end_recedes_when_it_is_given_back() {
    on_machine("memory=256MiB", |bench| {
        let stream = bench.stream();
        let first = bench.malloc(stream, 3 * MIB);
        // Together, many more addresses than a slot has.
        for round in 0..50 {
            let block = bench.malloc(stream, 150 * MIB);
            assert_eq!(block, first + 3 * MIB, "round {round}");
            bench.free(block);
            bench.empty_cache();
            assert_eq!(bench.reserved(), 4 * MIB);
        }
        bench.check();
    });
}

#[test]
fn absurd_sizes_are_out_of_memory() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        let sizes = [
            GIB + 1,
            2 * GIB,
            2 * GIB + 1,
            1 << 40,
            (1 << 41) - 512,
            1 << 41,
            (1 << 41) + 512,
            1 << 50,
            (1 << 60) - 1,
            1 << 60,
            u64::MAX - 511,
            u64::MAX,
        ];
        for bytes in sizes {
            match bench.try_malloc(stream, bytes) {
                Err(Error::OutOfMemory(numbers)) => assert!(numbers.wanted >= bytes),
                other => panic!("{bytes}: {other:?}"),
            }
            bench.check();
        }
        bench.malloc(stream, GIB);
        assert_eq!(bench.in_use(), GIB);
    });
}

const GIB: u64 = 1 << 30;

/// A growth that fails and cannot be undone at once loses no memory.
#[test]
fn mappings_of_a_failed_growth_are_unmapped_later() {
    on_machine("memory=64MiB", |bench| {
        let stream = bench.stream();
        inject::set(Some(Call::cuMemSetAccess as usize), 1, 999, false);
        inject::set(Some(Call::cuMemUnmap as usize), 1, 999, false);
        assert!(bench.try_malloc(stream, 40 * MIB).is_err());
        bench.check();
        let block = bench.malloc(stream, 40 * MIB);
        bench.check();
        assert_eq!(bench.in_use(), 40 * MIB);
        bench.free(block);
        bench.empty_cache();
        assert_eq!(bench.in_use(), 0);
        assert_eq!(crate::driver::sim::live_objects().mappings, 0);
    });
}
