//! When memory is reused: at once on its own stream, and after the recorded streams otherwise.

use super::super::record_stream;
use super::{Bench, KIB, MIB, is_invalid_pointer, on_machine};
use crate::base::thread;
use crate::driver::Call;
use crate::gpu::stream::Stream;
use crate::memory::arena::deferred_free::JOINED;
use crate::memory::config::size::Class;
use crate::memory::stats::ledger::{ACTIVE, ALL, ALLOCATION, REQUESTED_BYTES};
use crate::ops::callback::{self, Callback};
use crate::runtime;
use std::ffi::c_void;
use std::sync::{Condvar, Mutex};

pub(super) const THREADS: &str = "schedule=threads,memory=1GiB";

/// Blocks a stream until it is opened or dropped.
pub(super) struct Gate(&'static (Mutex<bool>, Condvar));

impl Gate {
    pub(super) fn on(bench: Bench, stream: &Stream) -> Gate {
        // Leaked, because the stream may read it after a failed test has returned.
        let gate: &'static _ = crate::base::thread::for_ever((Mutex::new(false), Condvar::new()));
        let user_data = std::ptr::from_ref(gate).cast_mut().cast();
        let callback = Callback { function: wait_for_gate, user_data, destroy: None };
        callback::add(bench.gpus, stream, callback).unwrap();
        Gate(gate)
    }

    pub(super) fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

unsafe extern "C" fn wait_for_gate(gate: *mut c_void) {
    // SAFETY: leaked by `Gate::on`.
    let (is_open, opened) = unsafe { &*gate.cast::<(Mutex<bool>, Condvar)>() };
    drop(opened.wait_while(is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
}

/// Current blocks: allocated, active, and requested bytes.
fn current(bench: Bench) -> (i64, i64, i64) {
    let counters = bench.memory().statistics().counters;
    (
        counters[ALLOCATION][0].current,
        counters[ACTIVE][0].current,
        counters[REQUESTED_BYTES][0].current,
    )
}

#[test]
fn a_recorded_block_waits_for_the_other_stream() {
    for bytes in [1000, 3 * MIB] {
        on_machine(THREADS, |bench| {
            let (own, other) = (bench.stream(), bench.stream());
            let block = bench.malloc(own, bytes);
            record_stream(block, other).unwrap();
            record_stream(block, other).unwrap();
            let gate = Gate::on(bench, other);
            bench.free(block);
            assert_eq!(current(bench), (0, 1, bytes as i64));
            is_invalid_pointer(super::super::free(bench.gpus, block));
            for _ in 0..3 {
                let next = bench.malloc(own, bytes);
                assert_ne!(next, block, "in use on the other stream");
                bench.check();
                bench.free(next);
            }
            assert_eq!(current(bench), (0, 1, bytes as i64));
            gate.open();
            other.synchronize(bench.gpus).unwrap();
            // One of the two is the block that was allocated in the meantime.
            let both = [bench.malloc(own, bytes), bench.malloc(own, bytes)];
            assert!(both.contains(&block));
            assert_eq!(current(bench), (2, 2, 2 * bytes as i64));
            bench.check();
        });
    }
}

#[test]
fn a_block_waits_for_every_stream_that_used_it() {
    // In either order of completion.
    for (early, late) in [(0, 1), (1, 0)] {
        on_machine(THREADS, |bench| {
            let own = bench.stream();
            let users = [bench.stream(), bench.stream()];
            let block = bench.malloc(own, KIB);
            record_stream(block, users[0]).unwrap();
            record_stream(block, users[1]).unwrap();
            let gates = [Gate::on(bench, users[0]), Gate::on(bench, users[1])];
            bench.free(block);
            assert_ne!(bench.malloc(own, KIB), block);
            gates[early].open();
            users[early].synchronize(bench.gpus).unwrap();
            assert_ne!(bench.malloc(own, KIB), block, "stream {late} still uses it");
            gates[late].open();
            users[late].synchronize(bench.gpus).unwrap();
            assert_eq!(bench.malloc(own, KIB), block);
            bench.check();
        });
    }
}

/// The event of an earlier batch must not free blocks that were freed after it was recorded.
#[test]
fn blocks_freed_later_wait_for_later_work() {
    on_machine(THREADS, |bench| {
        let (own, other) = (bench.stream(), bench.stream());
        let (early, late) = (bench.malloc(own, KIB), bench.malloc(own, KIB));
        record_stream(early, other).unwrap();
        record_stream(late, other).unwrap();
        let first = Gate::on(bench, other);
        bench.free(early);
        // Closes the batch of the early block.
        assert_ne!(bench.malloc(own, KIB), early);
        let second = Gate::on(bench, other);
        bench.free(late);
        first.open();
        let mut reused = Vec::new();
        // The stream reaches the second gate on its own thread.
        while !reused.contains(&early) {
            reused.push(bench.malloc(own, KIB));
            assert!(!reused.contains(&late), "work queued before its free is not done");
            bench.check();
        }
        assert_eq!(current(bench).1 - current(bench).0, 1, "the late block is still pending");
        assert!((0..4).all(|_| bench.malloc(own, KIB) != late));
        second.open();
        other.synchronize(bench.gpus).unwrap();
        bench.malloc(own, KIB);
        assert_eq!(current(bench).0, current(bench).1, "no block is pending");
    });
}

/// Adjacent pending blocks are freed as one, which must not affect any counter: in any order, in
/// both classes, and next to a live block.
#[test]
fn blocks_that_are_freed_together_are_counted_singly() {
    let sizes = [MIB, MIB, 512 * KIB, 512 * KIB, 2 * MIB, 3 * MIB, 3 * MIB, 21 * MIB];
    for order in [[0, 1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1, 0], [3, 4, 5, 0, 1, 2, 6, 7]] {
        for lives in [None, Some(0), Some(4), Some(7)] {
            on_machine(THREADS, |bench| {
                let (own, other) = (bench.stream(), bench.stream());
                let blocks = sizes.map(|bytes| bench.malloc(own, bytes - 100));
                blocks.iter().for_each(|block| record_stream(*block, other).unwrap());
                let gate = Gate::on(bench, other);
                let freed = order.into_iter().filter(|index| Some(*index) != lives);
                let freed: Vec<_> = freed.collect();
                freed.iter().for_each(|index| bench.free(blocks[*index]));
                let before = bench.memory().statistics().counters;
                let joined = JOINED.get();
                gate.open();
                other.synchronize(bench.gpus).unwrap();
                // No free block fits, so that the arena polls.
                let asks = bench.malloc(own, 70 * MIB);
                let is_next = |pair: &[usize]| {
                    pair[1] == pair[0] + 1 && (sizes[pair[0]] <= MIB) == (sizes[pair[1]] <= MIB)
                };
                let joins = freed.windows(2).filter(|pair| is_next(pair)).count();
                assert_eq!(JOINED.get() - joined, joins, "{order:?} {lives:?}");
                bench.free(asks);
                bench.check();
                let counters = bench.memory().statistics().counters;
                let gone = |counter: usize, row: usize| {
                    let asked = if counter == REQUESTED_BYTES { 70 * MIB as i64 } else { 1 };
                    let asked = if row == Class::Small.row() { 0 } else { asked };
                    counters[counter][row].freed - before[counter][row].freed - asked
                };
                let left = |row: usize| {
                    let is_of = |index: usize| {
                        let is_small = sizes[index] <= MIB;
                        row == ALL || is_small == (row == Class::Small.row())
                    };
                    let all = (0..sizes.len()).filter(|index| Some(*index) != lives);
                    all.filter(|index| is_of(*index)).map(|index| sizes[index]).collect::<Vec<_>>()
                };
                for row in [ALL, Class::Small.row(), Class::Large.row()] {
                    let (blocks, bytes) = (left(row).len(), left(row).iter().sum::<u64>());
                    assert_eq!(gone(ACTIVE, row), blocks as i64, "{order:?} {lives:?}");
                    let requested = bytes - 100 * blocks as u64;
                    assert_eq!(gone(REQUESTED_BYTES, row), requested as i64);
                }
                assert_eq!(current(bench).1, i64::from(lives.is_some()));
                lives.into_iter().for_each(|index| bench.free(blocks[index]));
                bench.empty_cache();
                assert_eq!((bench.reserved(), current(bench)), (0, (0, 0, 0)));
            });
        }
    }
}

/// Pending blocks of a small arena are also freed as one: no quick list keeps them apart.
#[test]
fn small_blocks_that_are_freed_together_merge() {
    on_machine(THREADS, |bench| {
        let (own, other) = (bench.stream(), bench.stream());
        let blocks: Vec<u64> = (0..8).map(|_| bench.malloc(own, 4 * KIB)).collect();
        blocks.iter().for_each(|block| record_stream(*block, other).unwrap());
        blocks.iter().for_each(|block| bench.free(*block));
        let joined = JOINED.get();
        other.synchronize(bench.gpus).unwrap();
        assert_eq!(bench.malloc(own, 32 * KIB), blocks[0]);
        assert_eq!(JOINED.get() - joined, 7);
        bench.check();
    });
}

#[test]
fn recording_a_block_on_its_own_stream_has_no_effect() {
    on_machine(THREADS, |bench| {
        let own = bench.stream();
        let block = bench.malloc(own, KIB);
        record_stream(block, own).unwrap();
        let _gate = Gate::on(bench, own);
        bench.free(block);
        assert_eq!(bench.malloc(own, KIB), block, "reused in the stream's order");
    });
}

#[test]
fn many_frees_share_one_event() {
    on_machine(THREADS, |bench| {
        let (own, other) = (bench.stream(), bench.stream());
        let blocks: Vec<u64> = (0..1000).map(|_| bench.malloc(own, KIB)).collect();
        blocks.iter().for_each(|block| record_stream(*block, other).unwrap());
        let gate = Gate::on(bench, other);
        let before = bench.all_calls();
        blocks.iter().for_each(|block| bench.free(*block));
        assert_eq!(bench.all_calls(), before, "a free makes no driver call");
        let before = bench.calls(Call::cuEventRecord);
        for _ in 0..10 {
            bench.malloc(own, KIB);
        }
        assert_eq!(bench.calls(Call::cuEventRecord) - before, 1);
        assert_eq!(current(bench).1, 1010);
        // Blocks that are freed while that event is pending wait for the next event, all together.
        for _ in 0..10 {
            let block = bench.malloc(own, KIB);
            record_stream(block, other).unwrap();
            bench.free(block);
        }
        assert_eq!(bench.calls(Call::cuEventRecord) - before, 1);
        assert_eq!(current(bench), (10, 1020, 1020 * KIB as i64));
        gate.open();
        other.synchronize(bench.gpus).unwrap();
        bench.malloc(own, KIB);
        assert_eq!(current(bench).1, 11, "no block is pending");
        // An idle stream needs no event.
        assert_eq!(bench.calls(Call::cuEventRecord) - before, 1);
        bench.check();
    });
}

/// A host that waits for one stream again and again, while another stays busy.
#[test]
fn waits_of_the_host_begin_no_groups() {
    on_machine(THREADS, |bench| {
        let (own, busy, third) = (bench.stream(), bench.stream(), bench.stream());
        let gate = Gate::on(bench, busy);
        for _ in 0..100 {
            let block = bench.malloc(own, KIB);
            record_stream(block, busy).unwrap();
            bench.free(block);
            third.synchronize(bench.gpus).unwrap();
        }
        let groups = || {
            // SAFETY: made by the calls above, and kept until shutdown.
            let heap = unsafe { &*own.heap(false) };
            heap.guard().uses.groups()
        };
        assert!((1..=2).contains(&groups()), "{} groups", groups());
        gate.open();
        busy.synchronize(bench.gpus).unwrap();
        bench.malloc(own, KIB);
        assert_eq!((groups(), current(bench).1), (0, 1), "no block is pending");
        bench.check();
    });
}

/// A poll costs more than an allocation. While the host has not learned of any completion, most
/// allocations do not poll, but no arena grows without a poll.
#[test]
fn incomplete_events_are_polled_rarely() {
    on_machine(THREADS, |bench| {
        let (own, others) = (bench.stream(), [bench.stream(), bench.stream()]);
        let share = |block| others.iter().for_each(|other| record_stream(block, other).unwrap());
        let blocks: Vec<u64> = (0..64).map(|_| bench.malloc(own, KIB)).collect();
        blocks.iter().for_each(|block| share(*block));
        let gates = others.map(|other| Gate::on(bench, other));
        blocks.iter().for_each(|block| bench.free(*block));
        let asked = || bench.calls(Call::cuEventQuery) + bench.calls(Call::cuStreamQuery);
        let (calls, before) = (bench.all_calls(), asked());
        for _ in 0..160 {
            let block = bench.malloc(own, KIB);
            share(block);
            bench.free(block);
        }
        assert!(asked() - before <= 2 * 20, "{} questions", asked() - before);
        assert!(bench.all_calls() - calls <= 100, "{} calls", bench.all_calls() - calls);
        assert_eq!(bench.calls(Call::cuEventRecord), 2);
        assert_eq!(current(bench), (0, 224, 224 * KIB as i64));
        gates.iter().for_each(Gate::open);
        // Once the host has learned that all work is complete, the next allocation uses that too.
        others.iter().for_each(|other| other.synchronize(bench.gpus).unwrap());
        bench.malloc(own, KIB);
        assert_eq!(current(bench), (1, 1, KIB as i64));
        bench.check();
    });
}

/// Completions that the library did not observe are found by a poll before an arena grows.
#[test]
fn an_arena_polls_before_it_grows() {
    on_machine("schedule=threads,memory=64MiB", |bench| {
        let (own, other) = (bench.stream(), bench.stream());
        let kept = bench.malloc(own, 2 * MIB);
        let block = bench.malloc(own, 40 * MIB);
        record_stream(block, other).unwrap();
        let gate = Gate::on(bench, other);
        bench.free(block);
        bench.free(kept);
        for _ in 0..8 {
            bench.free(bench.malloc(own, 2 * MIB));
        }
        assert_eq!(current(bench).1, 1);
        // Through the driver, without this library.
        gate.open();
        std::thread::sleep(std::time::Duration::from_millis(100));
        let reserved = bench.reserved();
        bench.malloc(own, 40 * MIB);
        assert_eq!((bench.reserved(), current(bench).1), (reserved, 1));
        bench.check();
    });
}

#[test]
fn steady_state_makes_no_driver_call() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        let sizes = [1, 512, 4096, MIB, MIB + 1, 20 * MIB];
        let pair = |index: usize| bench.free(bench.malloc(stream, sizes[index % sizes.len()]));
        (0..sizes.len()).for_each(pair);
        let before = bench.all_calls();
        (0..10_000).for_each(pair);
        assert_eq!(bench.all_calls(), before);
    });
}

#[test]
fn the_last_freed_block_is_the_next_one() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        let blocks: Vec<u64> = (0..64).map(|_| bench.malloc(stream, 1000)).collect();
        for index in [3, 60, 17] {
            bench.free(blocks[index]);
            assert_eq!(bench.malloc(stream, 1000), blocks[index]);
        }
        let other = bench.stream();
        bench.free(blocks[5]);
        let foreign = bench.malloc(other, 1000);
        assert!(!blocks.contains(&foreign), "another stream's memory");
    });
}

#[test]
fn emptying_the_cache_waits_for_the_streams_it_takes_from() {
    for held in 0..2 {
        on_machine(THREADS, |bench| {
            let streams = [bench.stream(), bench.stream()];
            let block = bench.malloc(streams[0], 4 * MIB);
            record_stream(block, streams[1]).unwrap();
            let gate = Gate::on(bench, streams[held]);
            bench.free(block);
            std::thread::scope(|scope| {
                let emptied = scope.spawn(|| {
                    let _inside = crate::base::thread::enter().unwrap();
                    bench.empty_cache();
                });
                std::thread::sleep(std::time::Duration::from_millis(50));
                assert!(!emptied.is_finished(), "stream {held} is not done");
                gate.open();
                emptied.join().unwrap();
            });
            assert_eq!((bench.reserved(), current(bench)), (0, (0, 0, 0)));
            bench.check();
        });
    }
}

#[test]
fn memory_cached_for_another_stream_is_reclaimed_before_an_allocation_fails() {
    on_machine("memory=64MiB", |bench| {
        runtime::configure(&thread::enter().unwrap(), "share_between_streams:False").unwrap();
        let (own, other) = (bench.stream(), bench.stream());
        bench.free(bench.malloc(other, 40 * MIB));
        bench.free(bench.malloc(other, KIB));
        let block = bench.malloc(own, 40 * MIB);
        let statistics = bench.memory().statistics();
        assert_eq!((statistics.num_alloc_retries, statistics.num_ooms), (1, 0));
        assert_eq!(bench.reserved(), 40 * MIB);
        assert!(bench.try_malloc(own, 40 * MIB).is_err());
        let statistics = bench.memory().statistics();
        assert_eq!((statistics.num_alloc_retries, statistics.num_ooms), (2, 1));
        bench.check();
        bench.free(block);
        assert_eq!(bench.malloc(own, 40 * MIB), block);
    });
}
