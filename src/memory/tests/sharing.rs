//! Sharing between streams: that memory in rotation is enough once, who waits for whom, and that nothing
//! is lost by it.

use super::super::stats::{ALLOCATED_BYTES, Statistics};
use super::order::Gate;
use super::{Bench, KIB, MIB, on_machine};
use crate::driver::Call;
use crate::stream::Stream;
use std::collections::VecDeque;

/// A generator of sizes that is the same each time.
struct Sizes(u64);

impl Sizes {
    fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        low + self.0 % (high - low)
    }
}

/// What a step of training does with memory: activations that are kept, buffers that are not, small
/// things between them, and gradients on the way back. Frees all.
fn step(bench: Bench, stream: &Stream, layers: u64, scale: u64, seed: u64) {
    let mut sizes = Sizes(seed * 2 + 1);
    let mut kept = Vec::new();
    for _ in 0..layers {
        let buffer = bench.malloc(stream, sizes.between(MIB, 24 * MIB) * scale / 8);
        kept.push(bench.malloc(stream, sizes.between(4 * MIB, 32 * MIB) * scale / 8));
        kept.push(bench.malloc(stream, sizes.between(512, 64 * KIB)));
        bench.free(buffer);
    }
    while let Some(small) = kept.pop() {
        let gradient = bench.malloc(stream, sizes.between(4 * MIB, 32 * MIB) * scale / 8);
        let other = bench.malloc(stream, sizes.between(512, MIB));
        bench.free(small);
        bench.free(kept.pop().unwrap());
        bench.free(other);
        bench.free(gradient);
    }
}

/// Step k runs on stream k % n, with the host four steps ahead; gives the statistics and added waits.
fn rotate(
    bench: Bench,
    streams: usize,
    steps: u64,
    body: impl Fn(Bench, &Stream, u64),
) -> (Statistics, u64) {
    let streams: Vec<_> = (0..streams).map(|_| bench.stream()).collect();
    let mut ahead = VecDeque::new();
    for k in 0..steps {
        let stream = streams[k as usize % streams.len()];
        ahead.push_back(Gate::on(bench, stream));
        body(bench, stream, k);
        bench.check();
        if ahead.len() > 4 {
            ahead.pop_front();
        }
    }
    drop(ahead);
    (bench.memory().statistics(), bench.memory().shared_waits())
}

fn ratio(statistics: &Statistics) -> f64 {
    let allocated = statistics.lanes[ALLOCATED_BYTES][0].peak;
    statistics.reserved_bytes[0].peak as f64 / allocated as f64
}

const HOST_WAITS: [Call; 3] =
    [Call::cuEventSynchronize, Call::cuStreamSynchronize, Call::cuCtxSynchronize];

#[test]
fn memory_in_rotation_is_enough_once() {
    for streams in [1, 2, 4, 8] {
        for (what, layers) in [("few", 6), ("many", 40)] {
            on_machine("schedule=threads,memory=8GiB", |bench| {
                let waited = HOST_WAITS.map(|call| bench.calls(call));
                let same = |bench: Bench, stream: &Stream, _| step(bench, stream, layers, 8, 7);
                let (statistics, waits) = rotate(bench, streams, 40, same);
                println!(
                    "{streams} {what} ratio {:.4} waits {waits} queries {}",
                    ratio(&statistics),
                    bench.calls(Call::cuStreamQuery)
                );
                assert_eq!(HOST_WAITS.map(|call| bench.calls(call)), waited);
            });
        }
    }
}

#[test]
fn memory_in_rotation_is_enough_with_steps_of_many_sizes() {
    for streams in [1, 2, 4, 8] {
        for (what, layers) in [("few", 6), ("many", 40)] {
            on_machine("schedule=threads,memory=8GiB", |bench| {
                let (statistics, waits) = rotate(bench, streams, 60, |bench, stream, k| {
                    step(bench, stream, layers, 4 + k * 5 % 8, k);
                });
                let single = { statistics };
                println!(
                    "var {streams} {what} ratio {:.4} {:?} waits {waits}",
                    ratio(&single),
                    single.reserved_bytes.map(|s| s.peak >> 20)
                );
            });
        }
    }
}
