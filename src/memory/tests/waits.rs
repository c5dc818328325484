//! After a thread waited for a device or a stream, its allocations do not query what was freed
//! before the wait.

use super::super::record_stream;
use super::order::{Gate, THREADS};
use super::{Bench, KIB, identity, on_machine};
use crate::base::thread;
use crate::driver::Call;
use crate::gpu::stream::Stream;
use crate::memory::stats::ledger::{ACTIVE, ALLOCATION};

/// Waits for the device, or for each stream.
fn wait_for(bench: Bench, all: bool, streams: &[&Stream]) {
    match all {
        true => bench.gpus.device(0).unwrap().synchronize().unwrap(),
        false => streams.iter().for_each(|stream| stream.synchronize(bench.gpus).unwrap()),
    }
}

#[test]
fn after_a_wait_no_stream_is_queried() {
    for all in [true, false] {
        for is_busy in [false, true] {
            on_machine(THREADS, |bench| {
                let (own, others) = (bench.stream(), [bench.stream(), bench.stream()]);
                // A thread gets its identity at its first wait.
                wait_for(bench, all, &others);
                let block = bench.malloc(own, KIB);
                others.iter().for_each(|other| record_stream(block, other).unwrap());
                let gate = is_busy.then(|| Gate::on(bench, others[0]));
                bench.free(block);
                if let Some(gate) = gate {
                    assert_ne!(bench.malloc(own, KIB), block, "and now it waits for an event");
                    gate.open();
                }
                wait_for(bench, all, &others);
                let calls = bench.all_calls();
                assert_eq!(bench.malloc(own, KIB), block);
                assert_eq!(bench.all_calls(), calls);
                bench.check();
            });
        }
    }
}

/// A wait does not cover blocks that are freed after it, even if they are in the same batch as
/// earlier ones.
#[test]
fn a_wait_covers_only_earlier_frees() {
    for all in [true, false] {
        for alone in [true, false] {
            on_machine(THREADS, |bench| {
                let (own, other) = (bench.stream(), bench.stream());
                wait_for(bench, all, &[other]);
                let [early, late] = [KIB, KIB].map(|bytes| bench.malloc(own, bytes));
                [early, late].iter().for_each(|block| record_stream(*block, other).unwrap());
                if !alone {
                    bench.free(early);
                }
                wait_for(bench, all, &[other]);
                let gate = Gate::on(bench, other);
                bench.free(late);
                for _ in 0..3 {
                    assert_ne!(bench.malloc(own, KIB), late, "its stream is busy");
                }
                gate.open();
                wait_for(bench, all, &[other]);
                bench.malloc(own, KIB);
                let counters = bench.memory().statistics().counters;
                let [active, allocated] = [ACTIVE, ALLOCATION].map(|counter| counters[counter][0]);
                assert_eq!(active.current, allocated.current, "no block is pending");
                bench.check();
            });
        }
    }
}

/// A wait on another thread does not cover blocks that this thread frees meanwhile, and a wait on
/// this thread does not cover blocks freed on another.
#[test]
fn frees_and_waits_of_other_threads_are_queried() {
    for waits_here in [true, false] {
        on_machine(THREADS, |bench| {
            let (own, other) = (bench.stream(), bench.stream());
            let wait = || wait_for(bench, true, &[]);
            let block = bench.malloc(own, KIB);
            record_stream(block, other).unwrap();
            let there = |free: bool| {
                std::thread::scope(|scope| {
                    let body = || {
                        let _inside = thread::enter().unwrap();
                        wait();
                        if free {
                            bench.free(block);
                        } else {
                            wait();
                        }
                    };
                    scope.spawn(body).join().unwrap();
                });
            };
            wait();
            if waits_here {
                there(true);
                wait();
            } else {
                bench.free(block);
                there(false);
            }
            let asked = bench.calls(Call::cuStreamQuery);
            assert_eq!(bench.malloc(own, KIB), block);
            assert_eq!(bench.calls(Call::cuStreamQuery) - asked, 1);
            bench.check();
        });
    }
}

/// A stream of the host may be of another context, and its handle may have been reused.
#[test]
fn external_streams_are_queried() {
    on_machine(THREADS, |bench| {
        let native = identity::native(bench);
        let other = bench.device.streams.external(bench.device, native).unwrap();
        let own = bench.stream();
        wait_for(bench, true, &[]);
        let block = bench.malloc(own, KIB);
        record_stream(block, other).unwrap();
        bench.free(block);
        wait_for(bench, true, &[]);
        other.synchronize(bench.gpus).unwrap();
        let asked = bench.calls(Call::cuStreamQuery);
        assert_eq!(bench.malloc(own, KIB), block);
        assert_eq!(bench.calls(Call::cuStreamQuery) - asked, 1);
    });
}
