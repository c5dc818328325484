//! Scopes of statistics: peaks and totals of a period, independent of those of the device.

use super::{Bench, MIB, on_machine};
use crate::base::error::Error;
use crate::base::thread;
use crate::gpu::stream::Stream;
use crate::memory::stats::ledger::{ALLOCATED_BYTES, ALLOCATION, Stat, Statistics};
use proptest::prelude::*;

fn stat(current: i64, peak: i64, allocated: i64, freed: i64) -> Stat {
    Stat { current, peak, allocated, freed }
}

fn bytes(statistics: &Statistics) -> Stat {
    statistics.counters[ALLOCATED_BYTES][0]
}

#[test]
fn a_scope_sees_what_happens_in_it() {
    on_machine("memory=1GiB", |bench| {
        let (memory, stream) = (bench.memory(), bench.stream());
        let before = bench.malloc(stream, 1024);
        bench.free(bench.malloc(stream, 4096));
        memory.open_scope().unwrap();
        let first = bench.malloc(stream, 2048);
        memory.open_scope().unwrap();
        bench.free(bench.malloc(stream, 8192));
        bench.free(before);
        let inner = memory.close_scope().unwrap();
        assert_eq!(bytes(&inner), stat(2048, 3072 + 8192, 8192, 8192 + 1024));
        bench.free(first);
        bench.free(bench.malloc(stream, 3 * MIB));
        let outer = memory.close_scope().unwrap();
        assert_eq!(bytes(&outer).peak, 3 * MIB as i64);
        assert_eq!(bytes(&outer).allocated, 2048 + 8192 + 3 * MIB as i64);
        assert_eq!(outer.counters[ALLOCATION][0], stat(0, 3, 3, 4));
        assert_eq!(outer.counters[ALLOCATION][1], stat(0, 3, 2, 3), "small");
        assert_eq!(
            outer.reserved_bytes[0],
            stat(6 * MIB as i64, 6 * MIB as i64, 4 * MIB as i64, 0)
        );
        assert_eq!((outer.num_device_alloc, outer.num_device_free), (1, 0));
        assert!(matches!(memory.close_scope(), Err(Error::InvalidState(_))));
        bench.check();
    });
}

#[test]
fn resets_and_scopes_leave_each_other_alone() {
    on_machine("memory=64MiB", |bench| {
        let (memory, stream) = (bench.memory(), bench.stream());
        bench.free(bench.malloc(stream, 4096));
        memory.open_scope().unwrap();
        let held = bench.malloc(stream, 512);
        bench.free(bench.malloc(stream, 1024));
        assert!(bench.try_malloc(stream, 65 * MIB).is_err());
        memory.reset_peak();
        memory.reset_accumulated();
        assert_eq!(bytes(&memory.statistics()), stat(512, 512, 0, 0));
        bench.free(held);
        let scope = memory.close_scope().unwrap();
        assert_eq!(bytes(&scope), stat(0, 1536, 1536, 1536));
        assert_eq!((scope.num_ooms, scope.num_alloc_retries), (1, 1));
        assert_eq!((memory.statistics().num_ooms, bytes(&memory.statistics()).peak), (0, 512));
        // A scope changes neither the device's peak nor its totals.
        bench.free(bench.malloc(stream, 2048));
        memory.open_scope().unwrap();
        assert_eq!(bytes(&memory.close_scope().unwrap()), stat(0, 0, 0, 0));
        assert_eq!(bytes(&memory.statistics()), stat(0, 2048, 2048, 2560));
        bench.check();
    });
}

#[test]
fn each_thread_has_its_own_scopes() {
    on_machine("memory=1GiB", |bench| {
        let memory = bench.memory();
        memory.open_scope().unwrap();
        let stream = bench.stream();
        let theirs = std::thread::scope(|scope| {
            let other = || {
                let _inside = thread::enter().unwrap();
                assert!(matches!(memory.close_scope(), Err(Error::InvalidState(_))));
                memory.open_scope().unwrap();
                bench.free(bench.malloc(stream, 512));
                memory.close_scope().unwrap()
            };
            scope.spawn(other).join().unwrap()
        });
        assert_eq!(bytes(&theirs), stat(0, 512, 512, 512));
        assert_eq!(bytes(&memory.close_scope().unwrap()), stat(0, 512, 512, 512), "of any thread");
    });
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Malloc(usize, u64),
    Free(usize),
    Open,
    Close,
    ResetPeak,
    ResetTotals,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0usize..3, 1u64..6000).prop_map(|(stream, bytes)| Step::Malloc(stream, bytes)),
        1 => (0usize..3).prop_map(|stream| Step::Malloc(stream, 3 * MIB)),
        6 => any::<usize>().prop_map(Step::Free),
        2 => Just(Step::Open),
        2 => Just(Step::Close),
        1 => Just(Step::ResetPeak),
        1 => Just(Step::ResetTotals),
    ]
}

/// Compares the allocated bytes of every open scope with exact counts.
fn agrees(bench: Bench, streams: &[&Stream], steps: &[Step]) {
    let memory = bench.memory();
    let mut blocks: Vec<(u64, i64)> = Vec::new();
    // The device's own statistics, then the scopes.
    let mut marks = vec![stat(0, 0, 0, 0)];
    for step in steps {
        match *step {
            Step::Malloc(stream, asked) => {
                let size = (asked.next_multiple_of(512)) as i64;
                blocks.push((bench.malloc(streams[stream], asked), size));
                for mark in &mut marks {
                    mark.current += size;
                    mark.peak = mark.peak.max(mark.current);
                    mark.allocated += size;
                }
            }
            Step::Free(index) if !blocks.is_empty() => {
                let (address, size) = blocks.swap_remove(index % blocks.len());
                bench.free(address);
                for mark in &mut marks {
                    mark.current -= size;
                    mark.freed += size;
                }
            }
            Step::Open => {
                memory.open_scope().unwrap();
                marks.push(stat(marks[0].current, marks[0].current, 0, 0));
            }
            Step::Close if marks.len() > 1 => {
                let closed = memory.close_scope().unwrap();
                assert_eq!(Some(bytes(&closed)), marks.pop());
            }
            Step::ResetPeak => {
                memory.reset_peak();
                marks[0].peak = marks[0].current;
            }
            Step::ResetTotals => {
                memory.reset_accumulated();
                (marks[0].allocated, marks[0].freed) = (0, 0);
            }
            _ => (),
        }
        assert_eq!(bytes(&memory.statistics()), marks[0]);
        bench.check();
    }
    while marks.len() > 1 {
        assert_eq!(Some(bytes(&memory.close_scope().unwrap())), marks.pop());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn scopes_are_exact(steps in prop::collection::vec(step(), 1..120)) {
        on_machine("memory=1GiB", |bench| {
            agrees(bench, &[bench.stream(), bench.stream(), bench.stream()], &steps);
        });
    }
}

#[test]
fn scopes_end_with_the_thread_that_opened_them() {
    on_machine("memory=64MiB", |bench| {
        let (memory, stream) = (bench.memory(), bench.stream());
        memory.open_scope().unwrap();
        std::thread::scope(|scope| {
            let opening = scope.spawn(|| {
                let _inside = thread::enter().unwrap();
                (0..40).for_each(|_| memory.open_scope().unwrap());
                memory.close_scope().unwrap();
            });
            // The destructors of a joined thread have run.
            opening.join().unwrap();
        });
        assert_eq!(memory.stats.with(None, |stats| stats.ledger.open_scopes()), 1);
        bench.free(bench.malloc(stream, 4096));
        let own = memory.close_scope().unwrap();
        assert_eq!(bytes(&own).peak, 4096, "that of another thread stays");
        assert!(memory.close_scope().is_err());
        bench.check();
    });
}
