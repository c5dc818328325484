//! Random operations against a simple model.

use super::super::arena::Arena;
use super::{Bench, KIB, MIB, is_invalid_pointer, on_machine, sharing, without_remapping};
use crate::base::error::Error;
use crate::base::progress;
use crate::driver::{Call, inject};
use crate::gpu::stream::Stream;
use crate::memory::arena::addresses::arena_of;
use crate::memory::arena::block::{NONE, State};
use crate::memory::config::size::{Class, SMALL_ARENA, round_size};
use crate::memory::record_stream;
use crate::memory::stats::ledger::{
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, REQUESTED_BYTES, Stat, StatArray,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

const STREAMS: usize = 3;
const COUNTERS: [usize; 5] = [ALLOCATION, ALLOCATED_BYTES, ACTIVE, ACTIVE_BYTES, REQUESTED_BYTES];

/// Numbers that choose a block are taken modulo the number of candidates.
#[derive(Clone, Debug)]
enum Op {
    Malloc { stream: usize, bytes: u64 },
    MallocFailing { stream: usize, bytes: u64, call: Call, nth: u64, code: i32 },
    Free { pick: usize },
    FreeAgain { pick: usize },
    FreeInside { pick: usize, offset: u64 },
    FreeForeign { address: u64 },
    RecordStream { pick: usize, stream: usize },
    EmptyCache,
    ResetPeak,
    ResetAccumulated,
}

fn bytes() -> impl Strategy<Value = u64> + Clone {
    let around = |size: u64, by: u64| size - by..=size + by;
    prop_oneof![
        1 => Just(0),
        4 => 1..=2 * KIB,
        3 => around(512, 2),
        3 => 1..=MIB,
        3 => around(SMALL_ARENA, 520),
        3 => around(MIB, 520),
        3 => around(2 * MIB, 520),
        3 => MIB..=40 * MIB,
        2 => 40 * MIB..=200 * MIB,
    ]
}

/// Sizes that leave idle handles on both sides of blocks in use.
fn large_bytes() -> impl Strategy<Value = u64> + Clone {
    prop_oneof![
        2 => (1u64..=4).prop_map(|mib| mib * MIB + 512),
        4 => (1u64..=24).prop_map(|mib| 2 * mib * MIB),
        2 => MIB..=90 * MIB,
    ]
}

/// A few sizes, so that blocks fit where others were.
fn few_bytes() -> impl Strategy<Value = u64> + Clone {
    prop_oneof![
        2 => (1u64..=4).prop_map(|parts| parts * 200 * KIB),
        2 => (1u64..=4).prop_map(|mib| 2 * mib * MIB),
        1 => (1u64..=4).prop_map(|mib| 20 * mib * MIB),
    ]
}

fn op(streams: usize, bytes: impl Strategy<Value = u64> + Clone) -> impl Strategy<Value = Op> {
    let call =
        prop_oneof![Just(Call::cuMemCreate), Just(Call::cuMemMap), Just(Call::cuMemSetAccess)];
    let code = prop_oneof![Just(1), Just(2), Just(999)];
    let malloc =
        (0..streams, bytes.clone()).prop_map(|(stream, bytes)| Op::Malloc { stream, bytes });
    let failing =
        (0..streams, bytes, call, 1u64..4, code).prop_map(|(stream, bytes, call, nth, code)| {
            Op::MallocFailing { stream, bytes, call, nth, code }
        });
    prop_oneof![
        12 => malloc,
        3 => failing,
        10 => any::<usize>().prop_map(|pick| Op::Free { pick }),
        1 => any::<usize>().prop_map(|pick| Op::FreeAgain { pick }),
        1 => (any::<usize>(), 1u64..4096)
            .prop_map(|(pick, offset)| Op::FreeInside { pick, offset }),
        1 => any::<u64>().prop_map(|address| Op::FreeForeign { address }),
        5 => (any::<usize>(), 0..STREAMS)
            .prop_map(|(pick, stream)| Op::RecordStream { pick, stream }),
        1 => Just(Op::EmptyCache),
        1 => Just(Op::ResetPeak),
        1 => Just(Op::ResetAccumulated),
    ]
}

#[derive(Clone)]
struct Live {
    stream: usize,
    address: u64,
    requested: u64,
    is_shared: bool,
}

impl Live {
    fn bytes(&self) -> u64 {
        round_size(self.requested)
    }

    fn class(&self) -> Class {
        if self.bytes() <= MIB { Class::Small } else { Class::Large }
    }
}

/// The expected state.
#[derive(Default)]
struct Model {
    live: BTreeMap<u64, Live>,
    /// Freed blocks that other streams used, and that were not polled since.
    pending: Vec<Live>,
    freed: Vec<u64>,
    stats: [StatArray; 8],
    retries: u64,
    ooms: u64,
}

impl Model {
    fn add(&mut self, counter: usize, class: Class, by: i64) {
        for row in [0, class.row()] {
            let Stat { current, peak, allocated, freed } = &mut self.stats[counter][row];
            *current += by;
            *peak = (*peak).max(*current);
            *(if by > 0 { allocated } else { freed }) += by.abs();
        }
    }

    fn hold(&mut self, block: &Live, sign: i64) {
        self.add(ALLOCATION, block.class(), sign);
        self.add(ALLOCATED_BYTES, block.class(), sign * block.bytes() as i64);
    }

    fn activate(&mut self, block: &Live, sign: i64) {
        self.add(ACTIVE, block.class(), sign);
        self.add(ACTIVE_BYTES, block.class(), sign * block.bytes() as i64);
        self.add(REQUESTED_BYTES, block.class(), sign * block.requested as i64);
    }

    fn malloc(&mut self, address: u64, block: Live) {
        self.hold(&block, 1);
        self.activate(&block, 1);
        self.freed.retain(|known| *known != address);
        assert_eq!(address % 512, 0);
        if let Some((below, other)) = self.live.range(..=address).next_back() {
            assert!(below + other.bytes() <= address, "overlaps the block below");
        }
        if let Some((above, _)) = self.live.range(address..).next() {
            assert!(address + block.bytes() <= *above, "overlaps the block above");
        }
        self.live.insert(address, block);
    }

    fn free(&mut self, address: u64) {
        let block = self.live.remove(&address).unwrap();
        self.hold(&block, -1);
        self.freed.push(address);
        if block.is_shared {
            self.pending.push(block);
        } else {
            self.activate(&block, -1);
        }
    }

    /// The schedule is immediate, so that a poll finds all work complete.
    fn settle(&mut self, which: impl Fn(&Live) -> bool) {
        let (done, waiting) = self.pending.drain(..).partition(|block| which(block));
        self.pending = waiting;
        let done: Vec<Live> = done;
        done.iter().for_each(|block| self.activate(block, -1));
    }

    fn pick(&self, pick: usize) -> Option<u64> {
        self.live.keys().copied().nth(pick % self.live.len().max(1))
    }
}

/// Is a freed block still pending?
fn is_pending(arena: &Arena, address: u64) -> bool {
    let state = arena.guard();
    let views = state.segment.views.live().map(|view| view.block);
    for mut id in std::iter::once(state.first).chain(views) {
        while id != NONE {
            if state.address(arena.base, id) == address {
                return state.blocks[id].state == State::Pending;
            }
            id = state.blocks[id].next;
        }
    }
    false
}

struct Run<'a> {
    bench: Bench<'a>,
    streams: Vec<&'a Stream>,
    model: Model,
}

impl Run<'_> {
    fn malloc(&mut self, stream: usize, requested: u64) -> Result<u64, Error> {
        // As if the host had learned of completed work, so that the arena is polled.
        progress::notify();
        let outcome = self.bench.try_malloc(self.streams[stream], requested);
        if requested == 0 {
            assert_eq!(outcome.unwrap(), 0);
            return Ok(0);
        }
        let address = *outcome.as_ref().unwrap_or(&0);
        let block = Live { stream, address, requested, is_shared: false };
        let class = if block.bytes() > SMALL_ARENA { Class::Large } else { Class::Small };
        // SAFETY: made by the call above, if it got so far, and kept until shutdown.
        let own = unsafe { self.streams[stream].heap(false).as_ref() };
        let own = own.map(|heap| heap.arena(class));
        // Its own arena was polled; other arenas were polled if their memory was needed.
        self.model.settle(|pending| {
            let arena = arena_of(pending.address).unwrap().0;
            own.is_some_and(|own| std::ptr::eq(arena, own)) || !is_pending(arena, pending.address)
        });
        let retries = self.bench.memory().statistics().num_alloc_retries;
        if retries != self.model.retries {
            // It reclaimed from all streams.
            self.model.retries += 1;
            self.model.settle(|_| true);
        }
        match outcome {
            Ok(address) => self.model.malloc(address, block),
            Err(Error::OutOfMemory(_)) => self.model.ooms += 1,
            Err(_) => (),
        }
        outcome
    }

    fn apply(&mut self, op: &Op) {
        let free = |address| super::super::free(self.bench.gpus, address);
        match *op {
            Op::Malloc { stream, bytes } => match self.malloc(stream, bytes) {
                Ok(_) | Err(Error::OutOfMemory(_)) => (),
                Err(other) => panic!("{other}"),
            },
            Op::MallocFailing { stream, bytes, call, nth, code } => {
                assert!(inject::set(Some(call as usize), nth, code, false));
                let outcome = self.malloc(stream, bytes);
                // Out of memory is retried, so that the call survives one failure.
                match outcome {
                    Ok(_) | Err(Error::OutOfMemory(_)) => (),
                    Err(Error::Cuda(error)) => assert_eq!((error.code, code == 2), (code, false)),
                    Err(other) => panic!("{other}"),
                }
                inject::clear();
            }
            Op::Free { pick } => {
                if let Some(address) = self.model.pick(pick) {
                    free(address).unwrap();
                    self.model.free(address);
                }
            }
            Op::FreeAgain { pick } => {
                let freed = &self.model.freed;
                if let Some(address) = freed.get(pick % freed.len().max(1)) {
                    is_invalid_pointer(free(*address));
                    is_invalid_pointer(record_stream(*address, self.streams[0]));
                }
            }
            Op::FreeInside { pick, offset } => {
                if let Some(address) = self.model.pick(pick)
                    && !self.model.live.contains_key(&(address + offset))
                {
                    is_invalid_pointer(free(address + offset));
                }
            }
            Op::FreeForeign { address } => {
                if !self.model.live.contains_key(&address) {
                    is_invalid_pointer(free(address));
                }
            }
            Op::RecordStream { pick, stream } => {
                if let Some(address) = self.model.pick(pick) {
                    record_stream(address, self.streams[stream]).unwrap();
                    let block = self.model.live.get_mut(&address).unwrap();
                    block.is_shared |= block.stream != stream;
                }
            }
            Op::EmptyCache => {
                self.bench.empty_cache();
                self.model.settle(|_| true);
            }
            Op::ResetPeak => {
                self.bench.memory().reset_peak();
                let stats = self.model.stats.as_flattened_mut();
                stats.iter_mut().for_each(|stat| stat.peak = stat.current);
            }
            Op::ResetAccumulated => {
                self.bench.memory().reset_accumulated();
                let stats = self.model.stats.as_flattened_mut();
                stats.iter_mut().for_each(|stat| (stat.allocated, stat.freed) = (0, 0));
                (self.model.retries, self.model.ooms) = (0, 0);
            }
        }
    }

    fn compare(&self) {
        self.bench.check();
        let found = self.bench.memory().statistics();
        for counter in COUNTERS {
            assert_eq!(
                found.counters[counter], self.model.stats[counter],
                "counter {counter}: all, small, large"
            );
        }
        assert_eq!(
            (found.num_ooms, found.num_alloc_retries),
            (self.model.ooms, self.model.retries)
        );
        assert_eq!(self.bench.in_use(), found.reserved_bytes[0].current as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: CASES,
        max_shrink_iters: 2000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_operations_agree_with_the_model(
        ops in proptest::collection::vec(op(STREAMS, bytes()), 1..120),
    ) {
        on_machine("memory=1GiB", |bench| run(bench, &ops));
    }

    /// With little memory, so that idle memory of one stream serves another.
    #[test]
    fn random_operations_agree_where_streams_share(
        ops in proptest::collection::vec(op(STREAMS, large_bytes()), 1..120),
    ) {
        sharing("memory=256MiB", |bench| run(bench, &ops));
    }

    /// With a few sizes, some of them small, so that streams find blocks that others freed.
    #[test]
    fn random_operations_agree_where_streams_take_turns(
        ops in proptest::collection::vec(op(STREAMS, few_bytes()), 1..200),
    ) {
        sharing("memory=256MiB", |bench| run(bench, &ops));
    }

    /// With little memory, so that idle memory serves through views.
    #[test]
    fn random_operations_agree_where_memory_is_short(
        ops in proptest::collection::vec(op(2, large_bytes()), 1..120),
    ) {
        on_machine("memory=256MiB", |bench| run(bench, &ops));
    }

    #[test]
    fn random_operations_agree_without_remapping(
        ops in proptest::collection::vec(op(2, large_bytes()), 1..120),
    ) {
        without_remapping("memory=256MiB", |bench| run(bench, &ops));
    }
}

fn run(bench: Bench, ops: &[Op]) {
    let streams = (0..STREAMS).map(|_| bench.stream()).collect();
    let mut run = Run { bench, streams, model: Model::default() };
    // The driver counts the context as memory in use.
    bench.device.context().unwrap();
    for op in ops {
        run.apply(op);
        run.compare();
    }
    while let Some(address) = run.model.pick(0) {
        bench.free(address);
        run.model.free(address);
        run.compare();
    }
    bench.empty_cache();
    run.model.settle(|_| true);
    run.compare();
    assert_eq!(bench.reserved(), 0);
}
/// Each case checks everything after every operation.
const CASES: u32 = 256;
