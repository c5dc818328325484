//! Exact counting with many threads.

use super::{Bench, MIB, Random, on_machine};
use crate::base::thread;
use crate::gpu::stream::Stream;
use crate::memory::config::size::round_size;
use crate::memory::stats::ledger::{
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, REQUESTED_BYTES, Stat,
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

const THREADS: usize = 6;

#[derive(Default)]
struct Totals {
    count: i64,
    bytes: i64,
    requested: i64,
    held: Vec<(u64, u64)>,
}

/// Allocates and frees for a while; another thread may free some of the blocks.
fn work(bench: Bench, streams: [&Stream; 2], seed: u64, shared: &Mutex<Vec<(u64, u64)>>) -> Totals {
    let _inside = thread::enter().unwrap();
    let mut random = Random(seed);
    let mut totals = Totals::default();
    let end = Instant::now() + Duration::from_millis(500);
    while Instant::now() < end {
        for _ in 0..50 {
            let is_full = totals.held.len() > 200;
            if !is_full && random.below(2) == 0 {
                let largest = if random.below(8) == 0 { 4 * MIB } else { 20_000 };
                let requested = 1 + random.below(largest);
                let stream = streams[random.below(2) as usize];
                let address = bench.malloc(stream, requested);
                totals.count += 1;
                totals.bytes += round_size(requested) as i64;
                totals.requested += requested as i64;
                totals.held.push((address, requested));
            } else if !totals.held.is_empty() {
                let index = random.below(totals.held.len() as u64) as usize;
                let block = totals.held.swap_remove(index);
                let mut shared = shared.lock().unwrap();
                shared.push(block);
                let index = random.below(shared.len() as u64) as usize;
                let block = shared.swap_remove(index);
                drop(shared);
                bench.free(block.0);
            }
        }
    }
    totals
}

#[test]
fn totals_are_exact_with_many_threads() {
    on_machine("memory=8GiB", |bench| {
        let common = bench.stream();
        let shared = Mutex::new(Vec::new());
        let is_done = AtomicBool::new(false);
        let totals: Vec<Totals> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..THREADS)
                .map(|index| {
                    let (own, shared) = (bench.stream(), &shared);
                    scope.spawn(move || {
                        work(bench, [own, common], 0x9e37_79b9 + index as u64 * 977, shared)
                    })
                })
                .collect();
            // Meanwhile the invariants are checked and peaks are reset.
            let watcher = scope.spawn(|| {
                let _inside = thread::enter().unwrap();
                while !is_done.load(Ordering::Relaxed) {
                    bench.check();
                    bench.memory().reset_peak();
                    std::thread::yield_now();
                }
            });
            let totals = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
            is_done.store(true, Ordering::Relaxed);
            watcher.join().unwrap();
            totals
        });
        bench.check();
        let sum = |value: fn(&Totals) -> i64| totals.iter().map(value).sum::<i64>();
        let mut held: Vec<(u64, u64)> = totals.iter().flat_map(|t| t.held.clone()).collect();
        held.extend(shared.into_inner().unwrap());
        held.sort_unstable();
        for pair in held.windows(2) {
            assert!(pair[0].0 + round_size(pair[0].1) <= pair[1].0, "live blocks overlap");
        }
        let bytes = held.iter().map(|block| round_size(block.1) as i64).sum::<i64>();
        let requested = held.iter().map(|block| block.1 as i64).sum::<i64>();
        let counters = bench.memory().statistics().counters;
        for (counter, current, allocated) in [
            (ALLOCATION, held.len() as i64, sum(|t| t.count)),
            (ACTIVE, held.len() as i64, sum(|t| t.count)),
            (ALLOCATED_BYTES, bytes, sum(|t| t.bytes)),
            (ACTIVE_BYTES, bytes, sum(|t| t.bytes)),
            (REQUESTED_BYTES, requested, sum(|t| t.requested)),
        ] {
            let [all, small, large] = counters[counter];
            assert_eq!((all.current, all.allocated), (current, allocated), "counter {counter}");
            assert_eq!(all.allocated - all.freed, all.current);
            assert_eq!(small.current + large.current, all.current);
            assert_eq!(small.allocated + large.allocated, all.allocated);
        }
        held.iter().for_each(|block| bench.free(block.0));
        bench.empty_cache();
        bench.check();
        assert_eq!((bench.reserved(), bench.in_use()), (0, 0));
    });
}

/// Uses streams in bursts, some of them long enough that an arena is biased to this thread. Returns
/// the number of allocations and of bytes.
fn bursts(bench: Bench, streams: &[&Stream], seed: u64) -> (i64, i64) {
    let mut random = Random(seed);
    let (mut count, mut bytes) = (0, 0);
    // A few streams at a time, so that threads contend; then other streams, whose arenas are still
    // biased.
    for streams in streams.chunks(4) {
        for _ in 0..150 {
            let stream = streams[random.below(4) as usize];
            let requested = 512 * (1 + random.below(1000));
            for _ in 0..1 + random.below(200) {
                // Separate calls: a bias begins only after the call of the previous owner has
                // returned.
                let _inside = thread::enter().unwrap();
                let address = bench.malloc(stream, requested);
                bench.free(address);
                count += 1;
                bytes += round_size(requested) as i64;
            }
        }
    }
    (count, bytes)
}

#[test]
fn biases_that_come_and_go_lose_no_count() {
    on_machine("memory=8GiB", |bench| {
        let streams: Vec<&Stream> = (0..32).map(|_| bench.stream()).collect();
        let is_done = AtomicBool::new(false);
        let totals: Vec<(i64, i64)> = std::thread::scope(|scope| {
            let workers: Vec<_> = (1..=3)
                .map(|seed| {
                    let streams = &streams;
                    scope.spawn(move || bursts(bench, streams, 0x9e37_79b9 * seed))
                })
                .collect();
            // The ledger suspends biases meanwhile.
            let watcher = scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    let _inside = thread::enter().unwrap();
                    bench.check();
                    let [all, ..] = bench.memory().statistics().counters[ALLOCATION];
                    assert!((0..=3).contains(&all.current), "{} blocks are held", all.current);
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            let totals = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
            is_done.store(true, Ordering::Relaxed);
            watcher.join().unwrap();
            totals
        });
        bench.check();
        let count = totals.iter().map(|total| total.0).sum::<i64>();
        let bytes = totals.iter().map(|total| total.1).sum::<i64>();
        let counters = bench.memory().statistics().counters;
        for (counter, expected) in [(ALLOCATION, count), (ALLOCATED_BYTES, bytes)] {
            let [all, ..] = counters[counter];
            assert_eq!((all.current, all.allocated, all.freed), (0, expected, expected));
        }
    });
}

/// Two threads take turns, so that the true peak of the sum is known while headroom moves between
/// them.
#[test]
fn peaks_are_exact_across_threads() {
    type Step = Box<dyn FnOnce(Bench, &Stream) + Send>;
    on_machine("memory=1GiB", |bench| {
        let blocks: &Mutex<Vec<u64>> = thread::for_ever(Mutex::default());
        let malloc = |bytes: u64| -> Step {
            Box::new(move |bench, stream| blocks.lock().unwrap().push(bench.malloc(stream, bytes)))
        };
        let free = |index: usize| -> Step {
            Box::new(move |bench, _| {
                let address = blocks.lock().unwrap()[index];
                bench.free(address);
            })
        };
        // Thread (0 or 1), operation, and then the current and peak bytes of all blocks and of
        // large blocks.
        let steps: Vec<(usize, Step, [u64; 4])> = vec![
            (0, malloc(10 * MIB), [10 * MIB, 10 * MIB, 10 * MIB, 10 * MIB]),
            (1, malloc(5 * MIB), [15 * MIB, 15 * MIB, 15 * MIB, 15 * MIB]),
            (0, free(0), [5 * MIB, 15 * MIB, 5 * MIB, 15 * MIB]),
            (1, malloc(7 * MIB), [12 * MIB, 15 * MIB, 12 * MIB, 15 * MIB]),
            (0, malloc(2 * MIB), [14 * MIB, 15 * MIB, 14 * MIB, 15 * MIB]),
            (0, malloc(MIB), [15 * MIB, 15 * MIB, 14 * MIB, 15 * MIB]),
            (1, malloc(512), [15 * MIB + 512, 15 * MIB + 512, 14 * MIB, 15 * MIB]),
            (0, free(1), [10 * MIB + 512, 15 * MIB + 512, 9 * MIB, 15 * MIB]),
            (1, free(2), [3 * MIB + 512, 15 * MIB + 512, 2 * MIB, 15 * MIB]),
            (1, malloc(12 * MIB), [15 * MIB + 512, 15 * MIB + 512, 14 * MIB, 15 * MIB]),
            (0, malloc(2 * MIB), [17 * MIB + 512, 17 * MIB + 512, 16 * MIB, 16 * MIB]),
        ];
        std::thread::scope(|scope| {
            let (done, finished) = channel::<()>();
            let hands = [0, 1].map(|_| {
                let (hand, tasks) = channel::<Step>();
                let (stream, done) = (bench.stream(), done.clone());
                scope.spawn(move || {
                    let _inside = thread::enter().unwrap();
                    for task in tasks {
                        task(bench, stream);
                        done.send(()).unwrap();
                    }
                });
                hand
            });
            for (index, (thread, step, expected)) in steps.into_iter().enumerate() {
                hands[thread].send(step).unwrap();
                finished.recv().unwrap();
                bench.check();
                let [all, _, large]: [Stat; 3] =
                    bench.memory().statistics().counters[ALLOCATED_BYTES];
                let found = [all.current, all.peak, large.current, large.peak];
                assert_eq!(found, expected.map(|bytes| bytes as i64), "step {index}");
            }
        });
    });
}

/// Four threads take turns; at most three blocks exist at a time. A request for headroom takes what
/// it needs from the other threads and not the rest, which would leave each of them too little.
#[test]
fn a_request_leaves_headroom_to_the_other_threads() {
    const ROUNDS: usize = 64;
    on_machine("memory=1GiB", |bench| {
        let streams: Vec<&Stream> = (0..4).map(|_| bench.stream()).collect();
        let asks = || bench.memory().with_ledger(None, |stats| stats.ledger.requests);
        let blocks: Vec<u64> =
            streams[..3].iter().map(|stream| bench.malloc(stream, MIB)).collect();
        blocks.into_iter().for_each(|block| bench.free(block));
        let (turn, mut before) = (&AtomicUsize::new(0), 0);
        let half = &Barrier::new(streams.len() + 1);
        std::thread::scope(|scope| {
            for (index, stream) in streams.iter().enumerate() {
                scope.spawn(move || {
                    let _inside = thread::enter().unwrap();
                    for round in 0..2 * ROUNDS {
                        if round == ROUNDS {
                            half.wait();
                            half.wait();
                        }
                        while turn.load(Ordering::Acquire) != round * 4 + index {
                            std::thread::yield_now();
                        }
                        bench.free(bench.malloc(stream, MIB));
                        turn.fetch_add(1, Ordering::Release);
                    }
                });
            }
            half.wait();
            before = asks();
            half.wait();
        });
        let asked = asks() - before;
        assert!(asked <= 3 * ROUNDS as u64, "{asked} of {} asked", 4 * ROUNDS);
        let [all, ..] = bench.memory().statistics().counters[ALLOCATION];
        assert_eq!((all.current, all.peak), (0, 3));
        bench.check();
    });
}
