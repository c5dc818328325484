//! Views: which blocks are remapped, and that no address maps memory that other blocks use, on the
//! device either.

use super::super::arena::ArenaState;
use super::super::record_stream;
use super::identity::may_use;
use super::order::Gate;
use super::{Bench, MIB, is_invalid_pointer, on_machine};
use crate::driver::sys::CUstreamCaptureMode;
use crate::driver::{Call, inject, sim};
use crate::gpu::stream::Stream;
use crate::memory::arena::addresses::arena_of;
use crate::memory::arena::block::{NONE, State};
use crate::memory::arena::segment::growth_cursor;
use crate::memory::config::size::Class;
use crate::memory::pools::mem_pool::MemPool;
use crate::memory::stats::ledger::Statistics;
use crate::memory::trace::history::{self, FramesFor, Recorder};
use crate::memory::trace::ring::Action;
use crate::memory::trace::snapshot::Snapshot;
use crate::ops::copy::{copy, fill};
use crate::runtime;
use std::collections::BTreeSet;

impl ArenaState {
    /// Checks the views of an arena that ends at a unit, and that each of its remapped blocks
    /// belongs to one view. Returns the blocks in views, each with the rest of its view, or
    /// [`NONE`].
    pub fn check_views(
        &self,
        remapped: &mut Vec<u32>,
        end: u32,
    ) -> Result<Vec<(u32, u32)>, String> {
        let (mut top, mut found, mut remapped_units) = (u32::MAX, Vec::new(), 0);
        for (start, units, block, own) in self.segment.views.all() {
            if start < end || start + units > top {
                return Err(format!("the view at {start} is not below {top} and above {end}"));
            }
            top = start;
            let mut sum = 0;
            for id in own {
                let place = remapped.iter().position(|known| known == id);
                remapped.swap_remove(place.ok_or(format!("block {id} is not remapped, or twice"))?);
                sum += self.blocks[*id].units;
            }
            if sum != if block == NONE { 0 } else { units } {
                return Err(format!("{sum} units are remapped to the view at {start} of {units}"));
            }
            remapped_units += sum;
            if block == NONE {
                continue;
            }
            let (id, rest) = (block, self.blocks[block].next);
            let block = &self.blocks[id];
            let left = if rest == NONE { 0 } else { self.blocks[rest].units };
            if block.start != start
                || block.units + left != units
                || !matches!(block.state, State::Allocated | State::Pending)
                || rest != NONE && self.blocks[rest].state != State::Free
            {
                return Err(format!("block {id} does not fill the view at {start}"));
            }
            found.push((id, rest));
        }
        let resets_cursor = self.class == Class::Small || !self.segment.views.is_empty();
        if self.growth_cursor != growth_cursor::ALL && !resets_cursor {
            return Err(format!("the growth cursor is {} without a view", self.growth_cursor));
        }
        if !remapped.is_empty() {
            return Err(format!("blocks {remapped:?} are remapped to no view"));
        }
        for (start, units) in self.segment.views.primaries() {
            let mut own = self.segment.mappings().iter();
            if !own.any(|mapping| (mapping.start, mapping.units) == (start, units)) {
                return Err(format!("the handle at {start} is unmapped, and has a view"));
            }
        }
        let mappings = self.segment.mappings().iter().filter(|mapping| mapping.is_remapped);
        if mappings.map(|mapping| mapping.units).sum::<u32>() != remapped_units {
            return Err("mappings are remapped, and their blocks are not".into());
        }
        Ok(found)
    }
}

/// Two free ranges of 80 MiB, each with a block of 4 MiB above, and nothing else.
pub fn two_free_ranges(bench: Bench, stream: &Stream) -> [u64; 4] {
    let blocks = [80, 4, 80, 4].map(|mib| bench.malloc(stream, mib * MIB));
    bench.free(blocks[0]);
    bench.free(blocks[2]);
    blocks
}

/// The number of views of the arena of an address.
pub fn views(address: u64) -> usize {
    let arena = arena_of(address).unwrap().0;
    arena.guard().segment.views.len()
}

/// Checks that the snapshot agrees with the statistics.
fn snapshot_agrees(bench: Bench) {
    let snapshot = Snapshot::of(&bench.gpus.devices, None, false).unwrap();
    let Statistics { reserved_bytes, segment, .. } = bench.memory().statistics();
    let bytes: u64 = snapshot.segments.iter().map(|segment| segment.bytes).sum();
    let found = (bytes as i64, snapshot.segments.len() as i64);
    assert_eq!(found, (reserved_bytes[0].current, segment[0].current));
}

#[test]
fn memory_idle_in_two_places_serves_one_block() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        let parts = two_free_ranges(bench, stream);
        let (reserved, in_use) = (bench.reserved(), bench.in_use());
        let block = bench.malloc(stream, 120 * MIB - 5);
        bench.check();
        snapshot_agrees(bench);
        assert_eq!((bench.reserved(), bench.in_use()), (reserved, in_use));
        assert_eq!(super::super::find(block).unwrap().bytes, 120 * MIB);
        is_invalid_pointer(super::super::free(bench.gpus, block + 512));
        // Memory that is not remapped still serves.
        let other = bench.malloc(stream, 16 * MIB);
        assert_eq!(bench.reserved(), reserved);
        bench.free(block);
        bench.check();
        snapshot_agrees(bench);
        is_invalid_pointer(super::super::free(bench.gpus, block));
        // The blocks at primary addresses are unchanged, and the view stays mapped.
        bench.free(other);
        assert_eq!(bench.malloc(stream, 80 * MIB), parts[0]);
        bench.free(parts[0]);
        let calls = bench.all_calls();
        for _ in 0..3 {
            assert_eq!(bench.malloc(stream, 120 * MIB), block);
            bench.check();
            bench.free(block);
        }
        assert_eq!(bench.all_calls(), calls);
        // While part of it is in use, the rest is too small.
        let part = bench.malloc(stream, 80 * MIB);
        let next = bench.malloc(stream, 120 * MIB);
        assert!(next != block && bench.reserved() > reserved);
        for address in [part, next, parts[1], parts[3]] {
            bench.free(address);
        }
        bench.check();
        bench.empty_cache();
        bench.check();
        assert_eq!((bench.reserved(), bench.in_use()), (0, in_use - reserved));
    });
}

/// The recorded map and unmap events lead to the state that the snapshot shows.
#[test]
fn the_history_agrees_with_the_snapshot() {
    on_machine("schedule=threads,memory=1GiB", |bench| {
        let recorder = Recorder {
            events: true,
            most: history::DEFAULT_EVENTS,
            frames_for: FramesFor::None,
            device: true,
            host: false,
            native: false,
            skip: 0,
            source: None,
        };
        history::record(Some(recorder), true).unwrap();
        let agrees = || {
            let snapshot = Snapshot::of(&bench.gpus.devices, None, true).unwrap();
            let mut mapped = BTreeSet::new();
            for event in snapshot.events_in(&snapshot.devices[0]) {
                for unit in (event.address..event.address + event.bytes).step_by(2 << 20) {
                    match event.action {
                        Action::SegmentMap => assert!(mapped.insert(unit)),
                        Action::SegmentUnmap => assert!(mapped.remove(&unit)),
                        _ => (),
                    }
                }
            }
            let segments = snapshot.segments.iter();
            let shown = segments.flat_map(|s| (s.address..s.address + s.bytes).step_by(2 << 20));
            assert_eq!(mapped, shown.collect());
        };
        let (stream, other) = (bench.stream(), bench.stream());
        two_free_ranges(bench, stream);
        for round in 0..2 {
            let block = bench.malloc(stream, 120 * MIB);
            agrees();
            if round == 1 {
                record_stream(block, other).unwrap();
            }
            bench.free(block);
            agrees();
        }
        bench.empty_cache();
        agrees();
        history::record(None, true).unwrap();
    });
}

/// Two blocks with a common handle are never live at the same time, whatever was mapped before.
#[test]
fn a_handle_is_remapped_once() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        two_free_ranges(bench, stream);
        let (large, small) = (bench.malloc(stream, 150 * MIB), 90 * MIB);
        bench.free(large);
        let first = bench.malloc(stream, small);
        assert_eq!(views(first), 2);
        bench.check();
        let reserved = bench.reserved();
        let second = bench.malloc(stream, 150 * MIB);
        assert!(second != large && bench.reserved() > reserved);
        bench.check();
        bench.free(first);
        bench.free(second);
        bench.check();
    });
}

#[test]
fn a_failure_leaves_everything_as_it_was() {
    for call in ["cuMemMap", "cuMemSetAccess", "cuMemCreate", "cuStreamIsCapturing"] {
        for nth in 1..=4 {
            for (code, unmaps) in [(999, true), (2, true), (999, false)] {
                on_machine("memory=1GiB", |bench| {
                    let stream = bench.stream();
                    let parts = two_free_ranges(bench, stream);
                    let before = sim::live_objects();
                    let unmap = if unmaps { "" } else { ",cuMemUnmap@1=999" };
                    inject::replace(
                        &inject::parse(&format!("{call}@{nth}={code}{unmap}")).unwrap(),
                    );
                    // It grows instead, or fails.
                    let outcome = bench.try_malloc(stream, 120 * MIB);
                    inject::clear();
                    bench.check();
                    if let Ok(block) = outcome {
                        bench.free(block);
                    } else {
                        assert_eq!(sim::live_objects(), before, "{call} {nth}");
                    }
                    bench.check();
                    let block = bench.malloc(stream, 120 * MIB);
                    bench.check();
                    for address in [block, parts[1], parts[3]] {
                        bench.free(address);
                    }
                    bench.empty_cache();
                    bench.check();
                    assert_eq!((bench.reserved(), sim::live_objects().mappings), (0, 0));
                });
            }
        }
    }
}

/// While a view cannot be unmapped, its memory is neither given back nor counted as given back.
#[test]
fn memory_stays_while_any_address_maps_it() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        let parts = two_free_ranges(bench, stream);
        bench.free(bench.malloc(stream, 120 * MIB));
        let before = (bench.reserved(), bench.in_use(), views(parts[1]));
        assert!(inject::set(Some(Call::cuMemUnmap as usize), 1, 999, false));
        assert!(bench.memory().empty_cache(bench.gpus).is_err());
        inject::clear();
        assert_eq!((bench.reserved(), bench.in_use(), views(parts[1])), before);
        bench.check();
        bench.empty_cache();
        assert_eq!((bench.reserved(), views(parts[1])), (8 * MIB, 0));
        bench.check();
    });
}

/// Nothing is unmapped while an operation may use it, not even to make room for other views.
#[test]
fn a_view_stays_until_its_stream_is_done() {
    // Room for 42 MiB of views.
    on_machine("schedule=threads,memory=84MiB", |bench| {
        let stream = bench.stream();
        let parts = [20, 2, 20, 2].map(|mib| bench.malloc(stream, mib * MIB));
        bench.free(parts[0]);
        bench.free(parts[2]);
        let first = bench.malloc(stream, 24 * MIB);
        assert_eq!(views(first), 1);
        let gate = Gate::on(bench, stream);
        fill(bench.gpus, first, &[7], 24 * MIB, stream).unwrap();
        bench.free(first);
        let unmapped = bench.calls(Call::cuMemUnmap);
        let second = bench.malloc(stream, 32 * MIB);
        assert_eq!((bench.calls(Call::cuMemUnmap), views(first)), (unmapped, 1));
        bench.check();
        bench.free(second);
        gate.open();
        // This would fail if the addresses were unmapped.
        stream.synchronize(bench.gpus).unwrap();
        bench.empty_cache();
        assert_eq!((views(first), bench.reserved()), (0, 4 * MIB));
        bench.check();
    });
}

/// The same under schedules that run work as late as possible. Each block is written and read
/// through the addresses that it has, and its bytes do not change until it is freed.
#[test]
fn writes_through_different_addresses_are_in_order() {
    for seed in 1..=8 {
        on_machine(&format!("schedule=adversarial:{seed},memory=80MiB"), |bench| {
            let stream = bench.stream();
            let witness = bench.malloc(stream, MIB);
            let (mut made, mut read) = (0, Vec::new());
            let mut live: Vec<(u64, u64, u8)> = Vec::new();
            let mut word: u64 = seed;
            for step in 0..120u32 {
                word = word.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let size = (1 + (word >> 40) % 14) * 2 * MIB;
                while live.iter().map(|block| block.1).sum::<u64>() + size > 40 * MIB {
                    let index = (word >> 33) as usize % live.len();
                    let (block, bytes, value) = live.swap_remove(index);
                    // Reads it before it is freed, at both ends and in the middle.
                    for at in [0, bytes / 2, bytes - 64] {
                        let to = witness + 64 * read.len() as u64;
                        copy(bench.gpus, to, block + at, 64, stream).unwrap();
                        read.push(value);
                    }
                    bench.free(block);
                }
                let block = bench.malloc(stream, size);
                let value = step as u8 | 1;
                fill(bench.gpus, block, &[value], size, stream).unwrap();
                live.push((block, size, value));
                made = made.max(views(block));
                bench.check();
                if step % 40 == 39 {
                    bench.empty_cache();
                }
            }
            assert!(made > 0, "seed {seed}");
            let mut bytes = vec![0u8; 64 * read.len()];
            let to = bytes.as_mut_ptr() as u64;
            copy(bench.gpus, to, witness, bytes.len() as u64, stream).unwrap();
            stream.synchronize(bench.gpus).unwrap();
            for (index, (found, wrote)) in bytes.chunks(64).zip(&read).enumerate() {
                assert!(found.iter().all(|byte| byte == wrote), "seed {seed}, read {index}");
            }
        });
    }
}

#[test]
fn a_recorded_block_stays_in_its_view_until_the_other_stream_is_done() {
    on_machine("schedule=threads,memory=1GiB", |bench| {
        let (stream, other) = (bench.stream(), bench.stream());
        let parts = two_free_ranges(bench, stream);
        let block = bench.malloc(stream, 120 * MIB);
        record_stream(block, other).unwrap();
        record_stream(block, stream).unwrap();
        let gate = Gate::on(bench, other);
        bench.free(block);
        bench.check();
        snapshot_agrees(bench);
        is_invalid_pointer(super::super::free(bench.gpus, block));
        let home = bench.malloc(stream, 80 * MIB);
        assert!(home != parts[0] && home != parts[2], "in use on the other stream");
        bench.check();
        bench.free(home);
        gate.open();
        other.synchronize(bench.gpus).unwrap();
        assert_eq!(bench.malloc(stream, 80 * MIB), parts[0]);
        bench.check();
        snapshot_agrees(bench);
    });
}

#[test]
fn small_blocks_and_private_pools_have_no_views() {
    on_machine("memory=1GiB", |bench| {
        let (stream, other) = (bench.stream(), bench.stream());
        // Idle memory of another stream does not help.
        two_free_ranges(bench, other);
        let block = bench.malloc(stream, 120 * MIB);
        assert_eq!((views(block), bench.reserved()), (0, 288 * MIB));
        let pool = MemPool::new(0, None).unwrap();
        pool.begin(0, bench.device).unwrap();
        let parts = two_free_ranges(bench, stream);
        let block = bench.malloc(stream, 120 * MIB);
        assert_eq!((views(parts[0]), bench.reserved()), (0, 288 * MIB + 288 * MIB));
        pool.end(bench.device).unwrap();
        bench.free(block);
        bench.check();
    });
}

/// While a stream is captured, no view is made for it.
#[test]
fn captured_streams_are_left_alone() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        let parts = two_free_ranges(bench, stream);
        let driver = bench.device.driver();
        let _context = bench.device.enter().unwrap();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        // SAFETY: a stream that lives.
        unsafe { driver.cuStreamBeginCapture(stream.native(), mode) }.unwrap();
        let block = bench.malloc(stream, 120 * MIB);
        assert_eq!((views(parts[1]), bench.reserved()), (0, 288 * MIB));
        let mut graph = std::ptr::null_mut();
        // SAFETY: it is captured, and `graph` is writable.
        unsafe { driver.cuStreamEndCapture(stream.native(), &mut graph) }.unwrap();
        // SAFETY: just made.
        unsafe { driver.cuGraphDestroy(graph) }.unwrap();
        bench.free(block);
        bench.check();
    });
}

#[test]
fn peers_reach_all_addresses_of_a_block() {
    on_machine("devices=2,memory=1GiB", |bench| {
        let [user, owner] = &bench.gpus.devices[..] else { panic!("two devices") };
        let on_owner = Bench { device: owner, ..bench };
        let stream = on_owner.stream();
        two_free_ranges(on_owner, stream);
        let old = on_owner.malloc(stream, 120 * MIB);
        assert!(!may_use(owner, user, old));
        user.enable_peer(owner).unwrap();
        assert!(may_use(owner, user, old) && may_use(owner, user, old + 119 * MIB));
        on_owner.free(old);
        let new = on_owner.malloc(stream, 140 * MIB);
        assert_eq!(views(new), 2);
        assert!(may_use(owner, user, new) && may_use(owner, user, new + 139 * MIB));
    });
}

/// If there is no room for a new view, the unused views are unmapped, and the arena may grow by
/// more.
#[test]
fn views_are_unmapped_for_others() {
    on_machine("memory=64MiB", |bench| {
        let stream = bench.stream();
        let parts = [20, 2, 20, 2].map(|mib| bench.malloc(stream, mib * MIB));
        bench.free(parts[0]);
        bench.free(parts[2]);
        let first = bench.malloc(stream, 24 * MIB);
        bench.free(first);
        let second = bench.malloc(stream, 36 * MIB);
        assert_eq!((views(second), bench.calls(Call::cuMemUnmap)), (1, 1));
        bench.check();
        assert_eq!(bench.reserved(), 44 * MIB);
        bench.free(second);
        bench.check();
    });
}

#[test]
fn views_are_unmapped_at_shutdown() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        two_free_ranges(bench, stream);
        bench.malloc(stream, 120 * MIB);
        runtime::close_device(bench.device);
        let left = sim::live_objects();
        assert_eq!((left.mappings, left.handles), (0, 0));
    });
}
