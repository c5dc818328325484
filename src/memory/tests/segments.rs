//! Arenas of segments: their invariants, random operations seen through the public snapshot, and
//! the fallbacks before an allocation fails.

use super::super::arena::ArenaState;
use super::super::{find, record_stream};
use super::{Bench, KIB, MIB, is_invalid_pointer, on_machine};
use crate::base::thread;
use crate::driver::{Call, inject};
use crate::gpu::stream::Stream;
use crate::memory::arena::block::{NONE, State};
use crate::memory::arena::pool::USE_ON_OOM;
use crate::memory::config::size::UNIT;
use crate::memory::pools::mem_pool::MemPool;
use crate::memory::stats::ledger::{
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, COUNTERS, Changes, INACTIVE_SPLIT,
    INACTIVE_SPLIT_BYTES, OVERSIZE, REQUESTED_BYTES, only,
};
use crate::memory::trace::snapshot::{BlockState, Snapshot};
use crate::runtime;
use proptest::prelude::*;
use std::collections::BTreeMap;

impl ArenaState {
    /// Checks every invariant of an arena of segments except the account, whose values it returns;
    /// else the first violation.
    pub(super) fn check_segments(&self) -> std::result::Result<Changes, String> {
        let segments = self.segments.as_ref().unwrap();
        let (mut id, mut below, mut at, mut sums) = (self.first, NONE, 0u32, [0i64; COUNTERS]);
        let (mut blocks, mut free, mut active, mut bytes) = (0, 0, 0, 0);
        while id != NONE {
            let block = &self.blocks[id];
            let is_hole = block.state == State::Hole;
            if block.start != at || block.previous != below || block.units == 0 {
                return Err(format!("block {id} does not follow {below} at {at}"));
            }
            let was_hole = below != NONE && self.blocks[below].state == State::Hole;
            if is_hole && (was_hole || block.next == NONE) {
                return Err(format!("hole {id} has a hole beside it, or nothing above"));
            }
            if !is_hole {
                let segment = segments.of(block);
                let first = segment.start;
                let end = first + (segment.bytes / UNIT) as u32;
                if block.start < first || block.end() > end {
                    return Err(format!("block {id} is not inside its segment"));
                }
                let begins = below == NONE || was_hole;
                if (block.start == first) != begins {
                    return Err(format!("block {id} begins a segment, or follows a hole, alone"));
                }
                (blocks, bytes) = (blocks + 1, bytes + block.bytes());
            }
            match block.state {
                State::Vacant | State::Lent | State::ForeignFree => {
                    return Err(format!("block {id} is vacant"));
                }
                State::Quick => return Err(format!("block {id} of a segment is quick")),
                State::Hole | State::Gap => (),
                State::Free => {
                    if below != NONE && self.blocks[below].state == State::Free {
                        return Err(format!("blocks {below} and {id} are free neighbours"));
                    }
                    if !self.has_fit(id) {
                        return Err(format!("free block {id} would not be found"));
                    }
                    free += 1;
                    if self.is_split(id) {
                        sums[INACTIVE_SPLIT] += 1;
                        sums[INACTIVE_SPLIT_BYTES] += block.bytes();
                    }
                }
                State::Allocated | State::Pending => {
                    active += 1;
                    if block.state == State::Allocated {
                        sums[ALLOCATION] += 1;
                        sums[ALLOCATED_BYTES] += block.bytes();
                        sums[OVERSIZE] += i64::from(block.oversize);
                    }
                    sums[ACTIVE] += 1;
                    sums[ACTIVE_BYTES] += block.bytes();
                    sums[REQUESTED_BYTES] += block.requested as i64;
                }
            }
            (below, at, id) = (id, block.end(), block.next);
        }
        if (blocks, free, active) != (self.listed(), self.fit_count(), self.active_blocks) {
            return Err("the counts of blocks are wrong".into());
        }
        if self.last != below || self.wilderness != NONE || bytes != self.reserved().0 {
            return Err("the last block, the wilderness or the bytes are wrong".into());
        }
        self.check_starts().map(|()| only(self.class, sums))
    }
}

const SEGMENTS: &str = "expandable_segments:False";

fn in_segments<R>(options: &str, text: &str, body: impl FnOnce(Bench) -> R) -> R {
    on_machine(options, |bench| {
        runtime::configure(&thread::enter().unwrap(), text).unwrap();
        body(bench)
    })
}

/// The segments of the device: address, and the blocks as (bytes, state).
fn shape(bench: Bench) -> Vec<(u64, Vec<(u64, BlockState)>)> {
    let all = Snapshot::of(&bench.gpus.devices, None, false).unwrap();
    let blocks = |segment: &crate::memory::trace::snapshot::SegmentView| {
        let own = &all.blocks[segment.first_block..segment.first_block + segment.blocks];
        assert!(!segment.is_expandable);
        let mut at = segment.address;
        for block in own {
            assert_eq!(block.address, at, "blocks partition their segment");
            at += block.bytes;
        }
        assert_eq!(at, segment.address + segment.bytes);
        (segment.bytes, own.iter().map(|block| (block.bytes, block.state)).collect())
    };
    all.segments.iter().map(blocks).collect()
}

const USED: BlockState = BlockState::ActiveAllocated;
const FREE: BlockState = BlockState::Inactive;

#[test]
fn segments_are_split_and_merged_as_in_pytorch() {
    in_segments("memory=1GiB", SEGMENTS, |bench| {
        let stream = bench.stream();
        let a = bench.malloc(stream, 1000);
        let b = bench.malloc(stream, 600 * KIB);
        let rest = 2 * MIB - KIB - 600 * KIB;
        assert_eq!(shape(bench), [(2 * MIB, vec![(KIB, USED), (600 * KIB, USED), (rest, FREE)])]);
        bench.free(a);
        bench.free(b);
        assert_eq!(shape(bench), [(2 * MIB, vec![(2 * MIB, FREE)])]);
        bench.empty_cache();
        // 19 MiB leave exactly 1 MiB, which does not become a block; 512 bytes less do.
        let c = bench.malloc(stream, 9 * MIB);
        let d = bench.malloc(stream, 10 * MIB);
        assert_eq!(find(d).unwrap().bytes, 11 * MIB);
        assert_eq!(shape(bench), [(20 * MIB, vec![(9 * MIB, USED), (11 * MIB, USED)])]);
        bench.free(d);
        let d = bench.malloc(stream, 10 * MIB - 512);
        assert_eq!(find(d).unwrap().bytes, 10 * MIB - 512);
        let e = bench.malloc(stream, 10 * MIB + 1);
        assert_eq!(find(e).unwrap().bytes, 10 * MIB + 512, "of a segment of 12 MiB");
        assert_eq!(bench.reserved(), 32 * MIB);
        bench.check();
        for block in [c, d, e] {
            bench.free(block);
        }
        assert_eq!(bench.calls(Call::cuMemCreate), 0);
        bench.empty_cache();
        assert_eq!((bench.reserved(), bench.in_use()), (0, 0));
    });
}

#[test]
fn both_kinds_of_memory_serve_after_the_setting_changes() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        let configure = |text| runtime::configure(&thread::enter().unwrap(), text).unwrap();
        let mapped = bench.malloc(stream, 3 * MIB);
        configure(SEGMENTS);
        let segment = bench.malloc(stream, 3 * MIB);
        assert_eq!(bench.reserved(), 24 * MIB);
        bench.free(mapped);
        let other = bench.malloc(stream, 3 * MIB);
        assert_eq!(bench.reserved(), 24 * MIB, "from the segment, not from what is mapped");
        configure("expandable_segments:True");
        assert_eq!(bench.malloc(stream, 3 * MIB), mapped);
        for block in [mapped, segment, other] {
            bench.check();
            bench.free(block);
        }
        bench.empty_cache();
        assert_eq!((bench.reserved(), bench.in_use()), (0, 0));
    });
}

#[test]
fn a_pool_of_the_other_kind_serves_the_class_of_the_request() {
    const MAPPED: &str = "expandable_segments:True";
    for (pools, default) in [(SEGMENTS, MAPPED), (MAPPED, SEGMENTS)] {
        on_machine("memory=1GiB", |bench| {
            let stream = bench.stream();
            let configure = |text| runtime::configure(&thread::enter().unwrap(), text).unwrap();
            configure(pools);
            let pool = MemPool::new(USE_ON_OOM, None).unwrap();
            pool.begin(0, bench.device).unwrap();
            let sizes = [30 * KIB, 500 * KIB, 3 * MIB];
            let borrowed = sizes.map(|bytes| bench.malloc(stream, bytes));
            pool.end(bench.device).unwrap();
            borrowed.into_iter().for_each(|block| bench.free(block));
            configure(default);
            let memory = bench.memory();
            memory.set_fraction(bench.reserved() as f64 / memory.total() as f64).unwrap();
            let blocks = sizes.map(|bytes| bench.malloc(stream, bytes));
            let bytes =
                memory.statistics().counters[ALLOCATED_BYTES].map(|stat| stat.current as u64);
            assert_eq!(bytes[1..], [530 * KIB, 3 * MIB], "{default}");
            bench.check();
            blocks.into_iter().for_each(|block| bench.free(block));
            bench.check();
            pool.close();
        });
    }
}

#[test]
fn addresses_of_no_block_of_a_segment_are_refused() {
    in_segments("memory=1GiB", SEGMENTS, |bench| {
        let stream = bench.stream();
        let block = bench.malloc(stream, 3 * MIB);
        let free = |address| super::super::free(bench.gpus, address);
        for address in [block + 1, block + 512, block + 3 * MIB, block + 20 * MIB, block - 1] {
            is_invalid_pointer(free(address));
            is_invalid_pointer(record_stream(address, stream));
        }
        bench.free(block);
        is_invalid_pointer(free(block));
        bench.empty_cache();
        is_invalid_pointer(free(block));
    });
}

#[derive(Clone, Debug)]
enum Op {
    Malloc { stream: usize, bytes: u64 },
    MallocFailing { stream: usize, bytes: u64, call: Call, code: i32 },
    Free { pick: usize },
    FreeInside { pick: usize, offset: u64 },
    RecordStream { pick: usize, stream: usize },
    EmptyCache { failing: bool },
    Configure { text: &'static str },
}

const STREAMS: usize = 3;

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 1..=2 * KIB,
        3 => 1..=MIB,
        3 => MIB - 520..=MIB + 520,
        3 => MIB..=12 * MIB,
        2 => 12 * MIB..=80 * MIB,
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let call = prop_oneof![Just(Call::cuMemAlloc), Just(Call::cuEventSynchronize)];
    let code = prop_oneof![Just(1), Just(2), Just(999)];
    let failing = (0..STREAMS, bytes(), call, code)
        .prop_map(|(stream, bytes, call, code)| Op::MallocFailing { stream, bytes, call, code });
    let text = prop_oneof![
        3 => Just("expandable_segments:False"),
        1 => Just("expandable_segments:False,max_split_size_mb:24"),
        1 => Just("expandable_segments:False,roundup_power2_divisions:4"),
        1 => Just("expandable_segments:True"),
    ];
    prop_oneof![
        12 => (0..STREAMS, bytes()).prop_map(|(stream, bytes)| Op::Malloc { stream, bytes }),
        2 => failing,
        10 => any::<usize>().prop_map(|pick| Op::Free { pick }),
        1 => (any::<usize>(), 1u64..4096)
            .prop_map(|(pick, offset)| Op::FreeInside { pick, offset }),
        4 => (any::<usize>(), 0..STREAMS)
            .prop_map(|(pick, stream)| Op::RecordStream { pick, stream }),
        1 => any::<bool>().prop_map(|failing| Op::EmptyCache { failing }),
        1 => text.prop_map(|text| Op::Configure { text }),
    ]
}

/// Live blocks: address to requested bytes.
type Live = BTreeMap<u64, u64>;

/// Compares the public snapshot with the live blocks and the statistics.
fn compare(bench: Bench, live: &Live) {
    bench.check();
    let all = Snapshot::of(&bench.gpus.devices, None, false).unwrap();
    let mut held = BTreeMap::new();
    let (mut split, mut split_bytes, mut active) = (0, 0, 0);
    for segment in &all.segments {
        let own = &all.blocks[segment.first_block..segment.first_block + segment.blocks];
        let mut at = segment.address;
        for (index, block) in own.iter().enumerate() {
            assert_eq!(block.address, at);
            at += block.bytes;
            active += i64::from(block.state != FREE);
            if block.state == USED {
                held.insert(block.address, block.requested);
                assert!(block.bytes >= block.requested);
            }
            if segment.is_expandable {
                continue;
            }
            if block.state == FREE && own.len() > 1 {
                (split, split_bytes) = (split + 1, split_bytes + block.bytes as i64);
            }
            let is_pair = index > 0 && own[index - 1].state == FREE && block.state == FREE;
            assert!(!is_pair, "neighbours of a segment merge");
        }
        assert_eq!(at, segment.address + segment.bytes);
    }
    let apart = all.segments.windows(2).all(|two| two[0].address + two[0].bytes <= two[1].address);
    assert!(apart, "segments do not overlap");
    assert_eq!(&held, live);
    let found = bench.memory().statistics();
    let reserved: u64 = all.segments.iter().map(|segment| segment.bytes).sum();
    assert_eq!(found.reserved_bytes[0].current as u64, reserved);
    assert_eq!(found.segment[0].current as usize, all.segments.len());
    assert_eq!(found.counters[ACTIVE][0].current, active);
    if all.segments.iter().all(|segment| !segment.is_expandable) {
        assert_eq!(found.counters[INACTIVE_SPLIT][0].current, split);
        assert_eq!(found.counters[INACTIVE_SPLIT_BYTES][0].current, split_bytes);
    }
}

fn apply(bench: Bench, streams: &[&Stream], live: &mut Live, op: &Op) {
    let pick = |live: &Live, pick: usize| live.keys().nth(pick % live.len().max(1)).copied();
    match *op {
        Op::Malloc { stream, bytes } => {
            if let Ok(address) = bench.try_malloc(streams[stream], bytes) {
                assert!(live.insert(address, bytes).is_none());
            }
        }
        Op::MallocFailing { stream, bytes, call, code } => {
            inject::set(Some(call as usize), 1, code, false);
            let outcome = bench.try_malloc(streams[stream], bytes);
            inject::clear();
            if let Ok(address) = outcome {
                live.insert(address, bytes);
            }
        }
        Op::Free { pick: number } => {
            if let Some(address) = pick(live, number) {
                bench.free(address);
                live.remove(&address);
            }
        }
        Op::FreeInside { pick: number, offset } => {
            if let Some(address) = pick(live, number)
                && !live.contains_key(&(address + offset))
            {
                is_invalid_pointer(super::super::free(bench.gpus, address + offset));
            }
        }
        Op::RecordStream { pick: number, stream } => {
            if let Some(address) = pick(live, number) {
                record_stream(address, streams[stream]).unwrap();
            }
        }
        Op::EmptyCache { failing } => {
            if failing {
                inject::set(Some(Call::cuMemFree as usize), 1, 999, false);
            }
            let outcome = bench.memory().empty_cache(bench.gpus);
            inject::clear();
            assert!(failing || outcome.is_ok(), "{outcome:?}");
        }
        Op::Configure { text } => {
            runtime::configure(&thread::enter().unwrap(), text).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        max_shrink_iters: 2000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_operations_leave_every_invariant(ops in proptest::collection::vec(op(), 1..120)) {
        in_segments("memory=512MiB", SEGMENTS, |bench| {
            let streams: Vec<&Stream> = (0..STREAMS).map(|_| bench.stream()).collect();
            let mut live = Live::new();
            for op in &ops {
                apply(bench, &streams, &mut live, op);
                compare(bench, &live);
            }
            for address in std::mem::take(&mut live).into_keys() {
                bench.free(address);
            }
            bench.empty_cache();
            compare(bench, &live);
            assert_eq!((bench.reserved(), bench.in_use()), (0, 0));
        });
    }
}
