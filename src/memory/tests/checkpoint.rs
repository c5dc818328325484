//! Allocation at addresses, and the return of a private pool to a list of blocks.

use super::{Bench, KIB, MIB, is_invalid_pointer, on_machine};
use crate::base::thread;
use crate::gpu::stream::Stream;
use crate::memory::arena::pool::NO_SPLIT;
use crate::memory::checkpoint::{self, PoolBlock};
use crate::memory::config::size::{Class, Size, round_size};
use crate::memory::pools::mem_pool::MemPool;
use crate::memory::stats::ledger::{
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, REQUESTED_BYTES, Stat,
};
use crate::memory::{find, record_stream};
use crate::runtime;
use proptest::prelude::*;
use std::collections::BTreeMap;

const STREAMS: usize = 2;
const COUNTERS: [usize; 5] = [ALLOCATION, ALLOCATED_BYTES, ACTIVE, ACTIVE_BYTES, REQUESTED_BYTES];

/// Numbers that choose a block or a checkpoint are taken modulo the number of candidates.
#[derive(Clone, Debug)]
enum Op {
    Malloc {
        stream: usize,
        bytes: u64,
    },
    Free {
        pick: usize,
    },
    /// At the address of a freed block, of its size less `less`.
    MallocAt {
        pick: usize,
        less: u64,
    },
    Checkpoint,
    Restore {
        pick: usize,
    },
    EmptyCache,
}

fn op() -> impl Strategy<Value = Op> {
    let bytes = prop_oneof![
        4 => 1..=2 * KIB,
        3 => (1u64..=200).prop_map(|parts| parts * KIB),
        3 => (1u64..=40).prop_map(|parts| parts * 200 * KIB),
        1 => Just(20 * MIB),
    ];
    let less = prop_oneof![3 => Just(0), 1 => 0..4 * KIB, 1 => 0..2 * MIB];
    prop_oneof![
        10 => (0..STREAMS, bytes).prop_map(|(stream, bytes)| Op::Malloc { stream, bytes }),
        7 => any::<usize>().prop_map(|pick| Op::Free { pick }),
        5 => (any::<usize>(), less).prop_map(|(pick, less)| Op::MallocAt { pick, less }),
        2 => Just(Op::Checkpoint),
        3 => any::<usize>().prop_map(|pick| Op::Restore { pick }),
        1 => Just(Op::EmptyCache),
    ]
}

struct Run<'a> {
    bench: Bench<'a>,
    streams: Vec<&'a Stream>,
    pool: MemPool,
    segmented: bool,
    live: BTreeMap<u64, PoolBlock>,
    freed: Vec<PoolBlock>,
    checkpoints: Vec<Vec<PoolBlock>>,
    stats: [Stat; COUNTERS.len()],
}

impl Run<'_> {
    fn count(&mut self, block: &PoolBlock, sign: i64) {
        let (bytes, requested) = (block.bytes as i64, block.requested as i64);
        for (stat, by) in self.stats.iter_mut().zip([1, bytes, 1, bytes, requested]) {
            stat.current += sign * by;
            stat.peak = stat.peak.max(stat.current);
            *(if sign > 0 { &mut stat.allocated } else { &mut stat.freed }) += by;
        }
    }

    fn added(&mut self, address: u64, requested: u64, stream: i64) {
        let found = find(address).unwrap();
        assert_eq!(found.requested, requested);
        let block = PoolBlock { address, requested, bytes: found.bytes, stream };
        self.add(block);
    }

    fn add(&mut self, block: PoolBlock) {
        self.count(&block, 1);
        assert!(self.live.insert(block.address, block).is_none());
    }

    fn remove(&mut self, address: u64) {
        let block = self.live.remove(&address).unwrap();
        self.count(&block, -1);
        self.freed.push(block);
    }

    fn overlaps(&self, address: u64, bytes: u64) -> bool {
        let below = self.live.range(..address + bytes).next_back();
        below.is_some_and(|(_, block)| block.address + block.bytes > address)
    }

    fn class_of(&self, bytes: u64) -> Class {
        Size { bytes, oversize: false }.arena_class(self.segmented)
    }

    fn apply(&mut self, op: &Op) {
        let gpus = self.bench.gpus;
        match *op {
            Op::Malloc { stream, bytes } => {
                self.pool.begin(1, self.bench.device).unwrap();
                let address = self.bench.malloc(self.streams[stream], bytes);
                self.pool.end(self.bench.device).unwrap();
                assert!(!self.overlaps(address, round_size(bytes)));
                self.added(address, bytes, self.streams[stream].id());
            }
            Op::Free { pick } => {
                if let Some(address) = self.live.keys().copied().nth(pick % self.live.len().max(1))
                {
                    self.bench.free(address);
                    self.remove(address);
                }
            }
            Op::MallocAt { pick, less } => {
                let Some(&block) = self.freed.get(pick % self.freed.len().max(1)) else { return };
                let requested = block.requested.saturating_sub(less).max(1);
                let bytes = round_size(requested);
                let is_free = !self.overlaps(block.address, bytes);
                // A block may be longer than its class: what is left of a segment.
                let is_class = self.class_of(round_size(block.requested)) == self.class_of(bytes);
                let outcome = checkpoint::allocate_at(gpus, &self.pool, block.address, requested);
                match is_free && is_class {
                    true => {
                        outcome.unwrap();
                        self.added(block.address, requested, block.stream);
                    }
                    false => is_invalid_pointer(outcome),
                }
            }
            Op::Checkpoint => {
                let list = checkpoint::live_blocks(self.bench.device, &self.pool).unwrap();
                self.checkpoints.push(list);
            }
            Op::Restore { pick } => {
                let count = self.checkpoints.len().max(1);
                let Some(list) = self.checkpoints.get(pick % count).cloned() else { return };
                checkpoint::restore(gpus, self.bench.device, &self.pool, &mut list.clone())
                    .unwrap();
                let wanted: BTreeMap<_, _> =
                    list.iter().map(|block| (block.address, *block)).collect();
                let is_stale = |block: &&PoolBlock| wanted.get(&block.address) != Some(block);
                let stale: Vec<_> = self.live.values().filter(is_stale).copied().collect();
                stale.iter().for_each(|block| self.remove(block.address));
                for block in &list {
                    if !self.live.contains_key(&block.address) {
                        self.add(*block);
                    }
                }
            }
            Op::EmptyCache => self.bench.empty_cache(),
        }
    }

    fn compare(&self) {
        self.bench.check();
        let live: Vec<_> = self.live.values().copied().collect();
        assert_eq!(checkpoint::live_blocks(self.bench.device, &self.pool).unwrap(), live);
        let found = self.bench.memory().statistics();
        for (counter, stat) in COUNTERS.into_iter().zip(self.stats) {
            assert_eq!(found.counters[counter][0], stat, "counter {counter}");
        }
    }
}

fn run(bench: Bench, (segmented, flags): (bool, u32), ops: &[Op]) {
    if segmented {
        runtime::configure(&thread::enter().unwrap(), "expandable_segments:False").unwrap();
    }
    let streams = (0..STREAMS).map(|_| bench.stream()).collect();
    let mut run = Run {
        bench,
        streams,
        pool: MemPool::new(flags, None).unwrap(),
        segmented: segmented || flags & NO_SPLIT != 0,
        live: BTreeMap::new(),
        freed: Vec::new(),
        checkpoints: Vec::new(),
        stats: [Stat::default(); COUNTERS.len()],
    };
    for op in ops {
        run.apply(op);
        run.compare();
    }
    // All that is left can be freed as any block.
    while let Some((&address, _)) = run.live.first_key_value() {
        bench.free(address);
        run.remove(address);
    }
    run.compare();
    run.pool.close();
    bench.empty_cache();
    assert_eq!(bench.reserved(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 128,
        max_shrink_iters: 2000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_checkpoints_agree_with_the_model(
        ops in proptest::collection::vec(op(), 1..100),
    ) {
        on_machine("memory=8GiB", |bench| run(bench, (false, 0), &ops));
    }

    #[test]
    fn random_checkpoints_agree_in_segments(
        ops in proptest::collection::vec(op(), 1..100),
    ) {
        on_machine("memory=8GiB", |bench| run(bench, (true, 0), &ops));
    }

    #[test]
    fn random_checkpoints_agree_where_blocks_are_whole_segments(
        ops in proptest::collection::vec(op(), 1..60),
    ) {
        on_machine("memory=8GiB", |bench| run(bench, (false, NO_SPLIT), &ops));
    }
}

#[test]
fn a_restore_that_fails_changes_nothing() {
    on_machine("memory=1GiB", |bench| {
        let (pool, other) = (MemPool::new(0, None).unwrap(), bench.stream());
        let malloc = |bytes| {
            pool.begin(1, bench.device).unwrap();
            let address = bench.malloc(bench.device.streams.default(), bytes);
            pool.end(bench.device).unwrap();
            address
        };
        let kept = malloc(3 * MIB);
        let freed = malloc(5000);
        let list = checkpoint::live_blocks(bench.device, &pool).unwrap();
        assert_eq!(list.len(), 2);
        bench.free(freed);
        let stale = malloc(MIB);
        record_stream(stale, other).unwrap();
        let before = checkpoint::live_blocks(bench.device, &pool).unwrap();
        let counters = bench.memory().statistics().counters;
        let refused = |list: &[PoolBlock]| {
            let mut list = list.to_vec();
            is_invalid_pointer(checkpoint::restore(bench.gpus, bench.device, &pool, &mut list));
            assert_eq!(checkpoint::live_blocks(bench.device, &pool).unwrap(), before);
            assert_eq!(bench.memory().statistics().counters, counters);
            bench.check();
        };
        // A stream uses a block that would be freed.
        refused(&list);
        bench.free(stale);
        let before = checkpoint::live_blocks(bench.device, &pool).unwrap();
        let counters = bench.memory().statistics().counters;
        let refused = |change: &dyn Fn(&mut PoolBlock)| {
            let mut list = list.clone();
            let index = list.iter().position(|block| block.address == freed).unwrap();
            change(&mut list[index]);
            is_invalid_pointer(checkpoint::restore(bench.gpus, bench.device, &pool, &mut list));
            assert_eq!(checkpoint::live_blocks(bench.device, &pool).unwrap(), before);
            assert_eq!(bench.memory().statistics().counters[ALLOCATION], counters[ALLOCATION]);
            bench.check();
        };
        refused(&|block| block.address += 1);
        refused(&|block| block.address = kept);
        refused(&|block| block.address += 1 << 40);
        refused(&|block| block.bytes -= 1);
        refused(&|block| block.bytes = 3 * MIB);
        refused(&|block| block.bytes = 0);
        refused(&|block| block.bytes = u64::MAX - 511);
        refused(&|block| block.requested = block.bytes + 1);
        refused(&|block| block.requested = 0);
        refused(&|block| block.stream += 1);
        checkpoint::restore(bench.gpus, bench.device, &pool, &mut list.clone()).unwrap();
        assert_eq!(checkpoint::live_blocks(bench.device, &pool).unwrap(), list);
        bench.free(kept);
        bench.free(freed);
        bench.check();
    });
}
