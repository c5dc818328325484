//! The guarantee about fragmentation: a request fails only if it needs more than the idle handles
//! and the rest of the limit together. An idle handle has no block in use.

use super::{Bench, KIB, MIB, on_machine};
use crate::base::error::Error;
use crate::gpu::stream::Stream;
use crate::memory::arena::block::{NONE, State};
use crate::memory::config::size::UNIT;
use crate::memory::stats::ledger::{ALL, ALLOCATED_BYTES};
use proptest::prelude::*;

const LIMIT: u64 = 64 * MIB;
const STREAMS: usize = 2;

#[derive(Clone, Debug)]
enum Op {
    Malloc { stream: usize, bytes: u64 },
    Free { pick: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let bytes = prop_oneof![
        2 => 1..=MIB,
        4 => MIB..=8 * MIB,
        2 => MIB..=LIMIT,
        1 => (1..=LIMIT / MIB).prop_map(|mib| mib * MIB),
    ];
    prop_oneof![
        6 => (0..STREAMS, bytes).prop_map(|(stream, bytes)| Op::Malloc { stream, bytes }),
        5 => any::<usize>().prop_map(|pick| Op::Free { pick }),
    ]
}

/// The bytes of the handles that are in use, wholly or partly.
fn pinned(bench: Bench) -> u64 {
    bench.memory().with_ledger(None, |stats| {
        let mut pinned = 0;
        for arena in stats.arenas() {
            // SAFETY: the test has one thread, which changes nothing now.
            let state = unsafe { arena.frozen_state() };
            let mut idle = 0;
            let mut id = state.first;
            while id != NONE {
                let block = &state.blocks[id];
                if block.state == State::Free {
                    let (from, to) = state.segment.whole_within(block.start, block.end());
                    idle += u64::from(to - from) * UNIT;
                }
                id = block.next;
            }
            pinned += state.segment.bytes() - idle;
        }
        pinned
    })
}

fn run(bench: Bench, ops: &[Op]) {
    bench.memory().set_fraction(LIMIT as f64 / bench.memory().total() as f64).unwrap();
    let streams: Vec<&Stream> = (0..STREAMS).map(|_| bench.stream()).collect();
    let mut live = Vec::new();
    for op in ops {
        match op {
            Op::Free { .. } if live.is_empty() => (),
            Op::Free { pick } => bench.free(live.swap_remove(pick % live.len())),
            Op::Malloc { stream, bytes } => match bench.try_malloc(streams[*stream], *bytes) {
                Ok(address) => live.push(address),
                Err(Error::OutOfMemory(_)) => {
                    let (pinned, step) = (pinned(bench), 2 * MIB);
                    let missing = bytes.next_multiple_of(step);
                    assert!(
                        pinned + missing > LIMIT,
                        "{bytes} bytes are refused, and {pinned} in handles with live blocks"
                    );
                }
                Err(error) => panic!("{error}"),
            },
        }
        bench.check();
        assert!(bench.reserved() <= LIMIT);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        max_shrink_iters: 2000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_request_fails_only_for_lack_of_handles(ops in proptest::collection::vec(op(), 1..80)) {
        on_machine("memory=1GiB", |bench| run(bench, &ops));
    }
}

/// Memory that fills a hole may turn all memory into one free block. The arena then resets its
/// growth cursor, and must still find the block.
#[test]
fn memory_that_fills_the_last_hole_is_found() {
    let malloc = |stream, bytes| Op::Malloc { stream, bytes };
    let ops = [
        malloc(0, 1),
        malloc(0, 1),
        malloc(0, 2 * MIB - 511),
        malloc(1, 1),
        Op::Free { pick: 3 },
        malloc(0, 64 * KIB + 1),
        Op::Free { pick: 2 },
        malloc(0, 34 * MIB),
        Op::Free { pick: 2 },
        malloc(0, 28 * MIB + 1),
        Op::Free { pick: 2 },
        malloc(0, 34 * MIB + 1),
    ];
    on_machine("memory=1GiB", |bench| run(bench, &ops));
}

/// An example: 512 live bytes keep their handle of 2 MiB, and no more.
#[test]
fn live_units_keep_only_their_handles() {
    on_machine("memory=1GiB", |bench| {
        bench.memory().set_fraction(LIMIT as f64 / bench.memory().total() as f64).unwrap();
        let stream = bench.stream();
        let blocks: Vec<u64> = (0..64).map(|_| bench.malloc(stream, MIB)).collect();
        assert_eq!(bench.reserved(), LIMIT);
        // In every second handle half is in use: 16 of 32 handles are idle, no two of them
        // adjacent.
        for (index, block) in blocks.iter().enumerate() {
            if index % 4 != 0 {
                bench.free(*block);
            }
        }
        let block = bench.malloc(stream, 32 * MIB);
        assert!(matches!(bench.try_malloc(stream, MIB + 1), Err(Error::OutOfMemory(_))));
        let current = bench.memory().statistics().counters[ALLOCATED_BYTES][ALL].current as u64;
        assert_eq!((current, bench.reserved()), (48 * MIB, LIMIT));
        bench.free(block);
        bench.check();
    });
}
