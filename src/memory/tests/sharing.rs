//! Sharing between streams: rotation needs the memory only once, which stream waits for which, that
//! writes stay in order, and when nothing is shared.

use super::super::record_stream;
use super::order::Gate;
use super::{Bench, KIB, MIB, is_invalid_pointer};
use crate::base::thread;
use crate::driver::Call;
use crate::driver::sys::CUstreamCaptureMode;
use crate::gpu::stream::Stream;
use crate::memory::arena::addresses::arena_of;
use crate::memory::arena::block::State;
use crate::memory::pools::mem_pool::MemPool;
use crate::memory::stats::ledger::{ACTIVE, ALLOCATED_BYTES, ALLOCATION, Statistics};
use crate::memory::trace::history::{self, FramesFor, Recorder};
use crate::memory::trace::ring::Action;
use crate::memory::trace::snapshot::{BlockState, Snapshot};
use crate::ops::copy::{copy, fill};
use crate::runtime;
use std::collections::VecDeque;

const THREADS: &str = "schedule=threads,memory=8GiB";
const HOST_WAITS: [Call; 3] =
    [Call::cuEventSynchronize, Call::cuStreamSynchronize, Call::cuCtxSynchronize];
const MAPPING: [Call; 3] = [Call::cuMemCreate, Call::cuMemMap, Call::cuMemUnmap];

fn configure(text: &str) {
    runtime::configure(&thread::enter().unwrap(), text).unwrap();
}

/// A deterministic generator of sizes.
struct Sizes(u64);

impl Sizes {
    fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        low + self.0 % (high - low)
    }
}

/// A training step with layers of equal size: activations are kept until the backward pass.
fn equal_step(bench: Bench, stream: &Stream, layers: u64) {
    let mut kept = Vec::new();
    for _ in 0..layers {
        let buffer = bench.malloc(stream, 24 * MIB);
        kept.extend([16 * MIB, 8 * MIB, 20 * KIB].map(|bytes| bench.malloc(stream, bytes)));
        bench.free(buffer);
    }
    while let Some(activation) = kept.pop() {
        let gradient = bench.malloc(stream, 8 * MIB);
        bench.free(activation);
        bench.free(gradient);
    }
}

/// A training step with layers of random sizes.
fn random_step(bench: Bench, stream: &Stream, layers: u64, seed: u64) {
    let mut sizes = Sizes(seed * 2 + 1);
    let mut kept = Vec::new();
    for _ in 0..layers {
        let buffer = bench.malloc(stream, sizes.between(MIB, 24 * MIB));
        kept.push(bench.malloc(stream, sizes.between(4 * MIB, 32 * MIB)));
        kept.push(bench.malloc(stream, sizes.between(512, 64 * KIB)));
        bench.free(buffer);
    }
    while let Some(small) = kept.pop() {
        let gradient = bench.malloc(stream, sizes.between(4 * MIB, 32 * MIB));
        let other = bench.malloc(stream, sizes.between(512, MIB));
        bench.free(small);
        bench.free(kept.pop().unwrap());
        bench.free(other);
        bench.free(gradient);
    }
}

/// Runs step k on stream k % n, whose work is blocked; the host is four steps ahead.
fn rotate(bench: Bench, streams: usize, steps: u64, body: impl Fn(&Stream, u64)) -> Statistics {
    let streams: Vec<_> = (0..streams).map(|_| bench.stream()).collect();
    let host_waits = HOST_WAITS.map(|call| bench.calls(call));
    let mut ahead = VecDeque::new();
    for k in 0..steps {
        let stream = streams[k as usize % streams.len()];
        ahead.push_back(Gate::on(bench, stream));
        body(stream, k);
        bench.check();
        if ahead.len() > 4 {
            ahead.pop_front();
        }
    }
    assert_eq!(HOST_WAITS.map(|call| bench.calls(call)), host_waits);
    assert_eq!(bench.calls(Call::cuMemUnmap), 0);
    bench.memory().statistics()
}

fn ratio(statistics: &Statistics) -> f64 {
    let allocated = statistics.counters[ALLOCATED_BYTES][0].peak;
    statistics.reserved_bytes[0].peak as f64 / allocated as f64
}

#[test]
fn rotation_needs_the_memory_once() {
    for streams in [2, 4, 8] {
        super::sharing(THREADS, |bench| {
            let mapped = || MAPPING.map(|call| bench.calls(call));
            let weights = bench.malloc(bench.device.streams.default(), 300 * MIB);
            let found = rotate(bench, streams as usize, 5 * streams, |stream, k| {
                let before = mapped();
                equal_step(bench, stream, 48);
                // From the second round on, no memory is mapped.
                assert!(k < streams || mapped() == before, "step {k} of {streams} streams");
            });
            let ratio = ratio(&found);
            assert!(ratio <= 1.02, "{streams} streams: {ratio}");
            assert!(bench.memory().shared_waits() < 5 * streams, "one a step at most");
            let steps = 5 * streams as i64;
            let row = found.counters[ALLOCATION][0];
            assert_eq!((row.allocated, row.current), (steps * 48 * 7 + 1, 1));
            assert_eq!(found.counters[ACTIVE], found.counters[ALLOCATION]);
            bench.free(weights);
            bench.empty_cache();
            bench.check();
            assert_eq!(bench.reserved(), 0);
        });
    }
}

/// The need of a single stream, plus the minimum for each stream's small memory, plus a tolerance.
#[test]
fn rotation_needs_what_one_stream_needs() {
    for equal in [true, false] {
        let peak = |streams: usize| {
            super::sharing(THREADS, |bench| {
                let found = rotate(bench, streams, 24, |stream, k| {
                    random_step(bench, stream, 40, if equal { 7 } else { k });
                });
                found.reserved_bytes[0].peak as u64
            })
        };
        let alone = peak(1);
        for streams in [4, 8] {
            let (found, little) = (peak(streams), 2 * MIB * streams as u64 + 16 * MIB);
            assert!(found <= alone + alone / 25 + little, "{streams} streams {found}, one {alone}");
        }
    }
}

/// Some blocks stay, each on the stream of its step, between blocks that are freed.
#[test]
fn rotation_works_beside_blocks_that_stay() {
    super::sharing(THREADS, |bench| {
        let found = rotate(bench, 4, 40, |stream, k| {
            if k < 12 {
                bench.malloc(stream, 10 * MIB);
            }
            equal_step(bench, stream, 40);
            bench.malloc(stream, KIB);
        });
        let ratio = ratio(&found);
        assert!(ratio <= 1.05, "{ratio}");
        assert_eq!(found.counters[ALLOCATION][0].current, 52);
    });
}

/// Below the peak of the needed memory, streams have memory of their own.
#[test]
fn streams_stay_apart_while_there_is_memory() {
    super::sharing(THREADS, |bench| {
        let (first, second) = (bench.stream(), bench.stream());
        let both = [bench.malloc(first, 40 * MIB), bench.malloc(second, 30 * MIB)];
        both.into_iter().for_each(|block| bench.free(block));
        let _gate = Gate::on(bench, first);
        let calls = bench.all_calls();
        for _ in 0..3 {
            bench.free(bench.malloc(second, 30 * MIB));
            bench.free(bench.malloc(first, 40 * MIB));
        }
        assert_eq!(bench.all_calls(), calls);
        // 30 MiB more, beside the 40, were never needed; the idle memory is enough.
        let large = bench.malloc(second, 35 * MIB);
        assert_eq!((bench.reserved(), bench.memory().shared_waits()), (70 * MIB, 1));
        bench.free(large);
        bench.check();
    });
}

#[test]
fn idle_streams_are_not_waited_for() {
    super::sharing(THREADS, |bench| {
        let (first, second) = (bench.stream(), bench.stream());
        let block = bench.malloc(first, 40 * MIB);
        bench.free(block);
        first.synchronize(bench.gpus).unwrap();
        assert_eq!(bench.malloc(second, 30 * MIB), block);
        assert_eq!((bench.reserved(), bench.memory().shared_waits()), (40 * MIB, 0));
        bench.check();
    });
}

/// One event covers all free memory of a stream at that time, and all of a foreign free list.
#[test]
fn one_wait_covers_all_free_memory() {
    super::sharing(THREADS, |bench| {
        let (owner, second, third) = (bench.stream(), bench.stream(), bench.stream());
        let _gates = [owner, second, third].map(|stream| Gate::on(bench, stream));
        let waits = || bench.memory().shared_waits();
        let held = bench.malloc(owner, 10 * MIB);
        let block = bench.malloc(owner, 100 * MIB);
        bench.free(block);
        let parts = [20, 20, 20].map(|mib| bench.malloc(second, mib * MIB));
        assert_eq!((parts[0], waits()), (block, 1));
        // Freed on the other stream, it is in that stream's free list.
        bench.free(parts[0]);
        assert_eq!((bench.malloc(second, 20 * MIB), waits()), (parts[0], 1));
        // Even after the totals are reset, memory that is freed after an event needs another one.
        bench.memory().reset_accumulated();
        let more = bench.malloc(owner, 40 * MIB);
        assert_eq!(waits(), 1, "the rest still belongs to the owner");
        bench.free(more);
        let rest = bench.malloc(second, 40 * MIB);
        assert_eq!((rest, waits()), (more, 2));
        parts.into_iter().chain([rest]).for_each(|block| bench.free(block));
        // A third stream takes all memory of the second with one wait, and the owner takes it back
        // with one.
        let whole = bench.malloc(third, 100 * MIB);
        assert_eq!((whole, waits()), (block, 3));
        bench.free(whole);
        assert_eq!((bench.malloc(owner, 100 * MIB), waits()), (block, 4));
        assert_eq!(bench.reserved(), 110 * MIB);
        bench.free(held);
        bench.check();
    });
}

/// A stream that no longer owns memory of an arena gives its number to the next one, which is not
/// taken for it: the arena's stream waits for it.
#[test]
fn a_number_without_blocks_serves_another_stream() {
    super::sharing(THREADS, |bench| {
        let (owner, second, third) = (bench.stream(), bench.stream(), bench.stream());
        let block = bench.malloc(owner, 40 * MIB);
        bench.free(block);
        owner.synchronize(bench.gpus).unwrap();
        let (arena, waits) = (arena_of(block).unwrap().0, || bench.memory().shared_waits());
        for (user, wait) in [(second, 0), (third, 1)] {
            assert_eq!((bench.malloc(user, 40 * MIB), waits()), (block, 0));
            assert_eq!(arena.guard().owners_of(&[State::Allocated]), 2);
            let _gate = (wait == 1).then(|| Gate::on(bench, user));
            bench.free(block);
            if wait == 0 {
                user.synchronize(bench.gpus).unwrap();
            }
            assert_eq!((bench.malloc(owner, 40 * MIB), waits()), (block, wait));
            bench.free(block);
            if wait == 0 {
                owner.synchronize(bench.gpus).unwrap();
            }
            bench.check();
        }
    });
}

/// Adjacent blocks that are free on different streams serve one request.
#[test]
fn pieces_of_several_streams_serve_together() {
    super::sharing(THREADS, |bench| {
        let (owner, second, third) = (bench.stream(), bench.stream(), bench.stream());
        let block = bench.malloc(owner, 90 * MIB);
        bench.free(block);
        let _gates = [owner, second, third].map(|stream| Gate::on(bench, stream));
        let parts = [bench.malloc(second, 30 * MIB), bench.malloc(third, 30 * MIB)];
        parts.into_iter().for_each(|block| bench.free(block));
        bench.check();
        assert_eq!(bench.malloc(second, 90 * MIB), block);
        bench.check();
        bench.free(block);
        assert_eq!((bench.malloc(owner, 90 * MIB), bench.reserved()), (block, 90 * MIB));
        bench.check();
    });
}

/// If the idle memory is not enough, memory is mapped where the least is missing.
#[test]
fn missing_memory_is_added_to_idle_memory() {
    super::sharing(THREADS, |bench| {
        let (owner, second) = (bench.stream(), bench.stream());
        let block = bench.malloc(owner, 40 * MIB);
        bench.free(block);
        let _gate = Gate::on(bench, owner);
        assert_eq!(bench.malloc(second, 60 * MIB), block);
        assert_eq!((bench.reserved(), bench.memory().shared_waits()), (60 * MIB, 1));
        bench.check();
        bench.free(block);
        assert_eq!((bench.malloc(owner, 70 * MIB), bench.reserved()), (block, 70 * MIB));
        bench.check();
    });
}

/// Streams share before memory is given back or the host waits.
#[test]
fn a_limit_has_streams_share_first() {
    super::sharing(THREADS, |bench| {
        let (first, second) = (bench.stream(), bench.stream());
        bench.memory().set_fraction(100.0 / 8192.0).unwrap();
        let held = [bench.malloc(first, 60 * MIB), bench.malloc(second, 40 * MIB)];
        held.into_iter().for_each(|block| bench.free(block));
        let _gate = Gate::on(bench, first);
        let calls =
            || HOST_WAITS.into_iter().chain(MAPPING).map(|call| bench.calls(call)).sum::<u64>();
        let before = calls();
        let blocks = [bench.malloc(second, 30 * MIB), bench.malloc(second, 50 * MIB)];
        assert_eq!((calls(), bench.memory().shared_waits()), (before, 1));
        let all = bench.memory().statistics();
        assert_eq!((all.num_alloc_retries, all.num_device_free), (0, 0));
        blocks.into_iter().for_each(|block| bench.free(block));
        bench.check();
    });
}

#[test]
fn nothing_is_shared_where_that_was_not_wanted() {
    for text in ["share_between_streams:False", "expandable_segments:False"] {
        super::sharing("memory=1GiB", |bench| {
            configure(text);
            let (first, second) = (bench.stream(), bench.stream());
            bench.free(bench.malloc(first, 40 * MIB));
            bench.free(bench.malloc(second, 40 * MIB));
            assert_eq!(bench.reserved(), 80 * MIB, "{text}");
        });
    }
    // Memory that was shared before returns to its owner.
    super::sharing("memory=1GiB", |bench| {
        let (first, second) = (bench.stream(), bench.stream());
        let block = bench.malloc(first, 40 * MIB);
        bench.free(block);
        assert_eq!(bench.malloc(second, 40 * MIB), block);
        configure("share_between_streams:False");
        bench.free(block);
        assert_eq!(bench.malloc(first, 40 * MIB), block);
        bench.check();
    });
}

/// Memory of a private pool may be in a graph. A captured stream neither waits nor is waited for.
#[test]
fn pools_and_captured_streams_do_not_share() {
    super::sharing("memory=1GiB", |bench| {
        let (first, second, third) = (bench.stream(), bench.stream(), bench.stream());
        let pool = MemPool::new(0, None).unwrap();
        pool.begin(0, bench.device).unwrap();
        bench.free(bench.malloc(first, 40 * MIB));
        pool.end(bench.device).unwrap();
        bench.free(bench.malloc(second, 40 * MIB));
        assert_eq!(bench.reserved(), 80 * MIB);
        let driver = bench.gpus.driver();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        // SAFETY: a live stream.
        unsafe { driver.cuStreamBeginCapture(second.native(), mode) }.unwrap();
        let block = bench.malloc(third, 40 * MIB);
        assert_eq!((bench.reserved(), bench.calls(Call::cuEventRecord)), (120 * MIB, 0));
        let mut graph = std::ptr::null_mut();
        // SAFETY: as above, and the place is writable.
        unsafe { driver.cuStreamEndCapture(second.native(), &mut graph) }.unwrap();
        // SAFETY: the graph was just made.
        unsafe { driver.cuGraphDestroy(graph) }.unwrap();
        let other = bench.malloc(third, 40 * MIB);
        assert_eq!(bench.reserved(), 120 * MIB, "it is no more captured");
        bench.free(block);
        bench.free(other);
        bench.check();
    });
}

/// A block on another stream's free list waits for the arena's own stream if that uses the block,
/// and not for the stream of the list.
#[test]
fn blocks_of_foreign_lists_wait_for_recorded_streams() {
    super::sharing(THREADS, |bench| {
        let (owner, user) = (bench.stream(), bench.stream());
        let block = bench.malloc(owner, 40 * MIB);
        bench.free(block);
        owner.synchronize(bench.gpus).unwrap();
        assert_eq!(bench.malloc(user, 40 * MIB), block);
        record_stream(block, user).unwrap();
        bench.free(block);
        let active = || bench.memory().statistics().counters[ACTIVE][0].current;
        assert_eq!(active(), 0);
        is_invalid_pointer(super::super::free(bench.gpus, block));
        assert_eq!(bench.malloc(user, 40 * MIB), block);
        record_stream(block, owner).unwrap();
        let gate = Gate::on(bench, owner);
        bench.free(block);
        assert_eq!(active(), 1);
        bench.check();
        let next = bench.malloc(user, 30 * MIB);
        assert_ne!(next, block);
        gate.open();
        owner.synchronize(bench.gpus).unwrap();
        bench.free(next);
        assert_eq!(bench.malloc(owner, 40 * MIB), block);
        bench.check();
    });
}

/// Giving memory back waits for the streams of foreign free lists too.
#[test]
fn memory_of_foreign_lists_is_given_back_when_their_streams_are_done() {
    super::sharing(THREADS, |bench| {
        let (owner, user) = (bench.stream(), bench.stream());
        let block = bench.malloc(owner, 40 * MIB);
        bench.free(block);
        let other = bench.malloc(user, 40 * MIB);
        assert_eq!(other, block);
        fill(bench.gpus, other, &[7], 40 * MIB, user).unwrap();
        bench.free(other);
        let arena = arena_of(block).unwrap().0;
        {
            let state = arena.guard();
            let block = state.blocks[state.first];
            assert_eq!((block.state, block.bytes() as u64), (State::ForeignFree, 40 * MIB));
            assert_eq!(state.owner_of(state.first).bit(), 2);
        }
        bench.empty_cache();
        assert!(user.query(bench.gpus).unwrap());
        assert_eq!(bench.reserved(), 0);
        bench.check();
    });
}

#[test]
fn snapshots_and_records_name_the_stream_of_a_block() {
    super::sharing("memory=1GiB", |bench| {
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
        let (owner, user) = (bench.stream(), bench.stream());
        bench.free(bench.malloc(owner, 40 * MIB));
        let block = bench.malloc(user, 30 * MIB);
        bench.free(block);
        let snapshot = Snapshot::of(&bench.gpus.devices, None, true).unwrap();
        let events = snapshot.events_in(&snapshot.devices[0]).iter();
        let named: Vec<_> = events
            .filter(|event| matches!(event.action, Action::Alloc | Action::FreeCompleted))
            .map(|event| event.stream as usize)
            .collect();
        let (owner, user) = (owner.native() as usize, user.native() as usize);
        assert_eq!(named, [owner, owner, user, user]);
        let blocks: Vec<_> = snapshot.blocks.iter().map(|it| (it.bytes / MIB, it.state)).collect();
        assert_eq!(blocks, [(30, BlockState::Inactive), (10, BlockState::Inactive)]);
        assert_eq!((snapshot.segments.len(), snapshot.segments[0].stream), (1, owner));
        history::record(None, true).unwrap();
    });
}

/// Blocks move from stream to stream; each holds the bytes of its last writer.
#[test]
fn writes_of_alternating_streams_are_in_order() {
    for seed in 1..=12 {
        super::sharing(&format!("schedule=adversarial:{seed},memory=96MiB"), |bench| {
            let streams: Vec<_> = (0..4).map(|_| bench.stream()).collect();
            let witness = bench.malloc(streams[0], MIB);
            let (mut shared, mut read) = (0, Vec::new());
            let mut live: Vec<(u64, u64, u8, usize)> = Vec::new();
            let mut sizes = Sizes(seed);
            for step in 0..160u32 {
                let size = sizes.between(1, 10) * 2 * MIB;
                while live.iter().map(|block| block.1).sum::<u64>() + size > 40 * MIB {
                    let index = sizes.between(0, live.len() as u64) as usize;
                    let (block, bytes, value, stream) = live.swap_remove(index);
                    // Reads it before it is freed, at both ends and in the middle.
                    for at in [0, bytes / 2, bytes - 64] {
                        let to = witness + 64 * read.len() as u64;
                        copy(bench.gpus, to, block + at, 64, streams[stream]).unwrap();
                        read.push(value);
                    }
                    bench.free(block);
                }
                let stream = step as usize / 7 % 4;
                let block = bench.malloc(streams[stream], size);
                shared += usize::from(!arena_of(block).unwrap().0.heap().is_of(streams[stream]));
                fill(bench.gpus, block, &[step as u8 | 1], size, streams[stream]).unwrap();
                live.push((block, size, step as u8 | 1, stream));
                bench.check();
            }
            assert!(shared > 20 && bench.memory().shared_waits() > 0, "seed {seed}: {shared}");
            streams.iter().for_each(|stream| stream.synchronize(bench.gpus).unwrap());
            let mut bytes = vec![0u8; 64 * read.len()];
            let to = bytes.as_mut_ptr() as u64;
            copy(bench.gpus, to, witness, bytes.len() as u64, streams[0]).unwrap();
            streams[0].synchronize(bench.gpus).unwrap();
            for (index, (found, wrote)) in bytes.chunks(64).zip(&read).enumerate() {
                assert!(found.iter().all(|byte| byte == wrote), "seed {seed}, read {index}");
            }
        });
    }
}
