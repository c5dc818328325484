//! Uncached blocks, together with cached ones, against a simple model.

use super::{Bench, MIB, is_invalid_pointer, on_machine};
use crate::base::error::Error;
use crate::base::thread;
use crate::driver::{Call, inject};
use crate::gpu::stream::Stream;
use crate::memory::config::size::round_size;
use crate::memory::device::backend;
use crate::memory::device::lookup::Found;
use crate::memory::stats::ledger::{
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, REQUESTED_BYTES, Stat, Statistics,
};
use crate::memory::trace::snapshot::Snapshot;
use crate::memory::{find, record_stream};
use proptest::prelude::*;
use std::collections::BTreeMap;

const COUNTERS: [usize; 5] = [ALLOCATION, ALLOCATED_BYTES, ACTIVE, ACTIVE_BYTES, REQUESTED_BYTES];

#[derive(Clone, Debug)]
enum Op {
    Malloc {
        stream: usize,
        bytes: u64,
    },
    /// The driver has no memory, once or until the next call.
    MallocFailing {
        stream: usize,
        bytes: u64,
        code: i32,
        forever: bool,
    },
    Free {
        pick: usize,
    },
    FreeFailing {
        pick: usize,
    },
    FreeAgain {
        pick: usize,
    },
    RecordStream {
        pick: usize,
        stream: usize,
    },
    Cache {
        enabled: bool,
    },
    EmptyCache,
    ResetPeak,
    ResetAccumulated,
}

fn op() -> impl Strategy<Value = Op> {
    let bytes = || prop_oneof![1..=2048u64, MIB - 2..=MIB + 2, MIB..=5 * MIB];
    let code = prop_oneof![Just(2), Just(999)];
    prop_oneof![
        12 => (0..2usize, bytes()).prop_map(|(stream, bytes)| Op::Malloc { stream, bytes }),
        2 => (0..2usize, bytes(), code, any::<bool>()).prop_map(
            |(stream, bytes, code, forever)| Op::MallocFailing { stream, bytes, code, forever }),
        8 => any::<usize>().prop_map(|pick| Op::Free { pick }),
        2 => any::<usize>().prop_map(|pick| Op::FreeFailing { pick }),
        1 => any::<usize>().prop_map(|pick| Op::FreeAgain { pick }),
        2 => (any::<usize>(), 0..2usize)
            .prop_map(|(pick, stream)| Op::RecordStream { pick, stream }),
        3 => any::<bool>().prop_map(|enabled| Op::Cache { enabled }),
        1 => Just(Op::EmptyCache),
        1 => Just(Op::ResetPeak),
        1 => Just(Op::ResetAccumulated),
    ]
}

#[derive(Clone, Copy)]
struct Live {
    requested: u64,
    has_uncached: bool,
    is_shared: bool,
}

impl Live {
    fn bytes(self) -> u64 {
        if self.has_uncached { self.requested } else { round_size(self.requested) }
    }
}

struct Machine<'a> {
    bench: Bench<'a>,
    streams: [&'a Stream; 2],
    live: BTreeMap<u64, Live>,
    freed: Vec<u64>,
    is_caching: bool,
    /// All, small, large of each of `COUNTERS`.
    stats: [[Stat; 3]; COUNTERS.len()],
}

impl Machine<'_> {
    fn count(&mut self, block: Live, sign: i64) {
        let bytes = block.bytes() as i64;
        let requested = block.requested as i64;
        let row = if block.bytes() <= MIB { 1 } else { 2 };
        for (index, change) in [1, bytes, 1, bytes, requested].into_iter().enumerate() {
            for row in [0, row] {
                let stat = &mut self.stats[index][row];
                stat.current += change * sign;
                stat.peak = stat.peak.max(stat.current);
                *if sign > 0 { &mut stat.allocated } else { &mut stat.freed } += change;
            }
        }
    }

    fn pick(&self, pick: usize) -> Option<(u64, Live)> {
        let count = self.live.len();
        let (address, live) = self.live.iter().nth(pick.checked_rem(count)?)?;
        Some((*address, *live))
    }

    fn add(&mut self, address: u64, bytes: u64) {
        let has_uncached = !self.is_caching;
        let block = Live { requested: bytes, has_uncached, is_shared: false };
        let before = self.live.range(..address + block.bytes()).next_back();
        assert!(before.is_none_or(|(start, live)| start + live.bytes() <= address), "overlap");
        self.count(block, 1);
        assert!(self.live.insert(address, block).is_none());
        self.freed.retain(|freed| *freed != address);
    }

    fn remove(&mut self, address: u64, block: Live) {
        self.count(block, -1);
        self.live.remove(&address);
        self.freed.push(address);
    }

    fn run(&mut self, op: &Op) {
        let bench = self.bench;
        match *op {
            Op::Malloc { stream, bytes } => {
                let address = bench.malloc(self.streams[stream], bytes);
                self.add(address, bytes);
            }
            Op::MallocFailing { stream, bytes, code, forever } => {
                inject::set(Some(Call::cuMemAlloc as usize), 1, code, forever);
                let outcome = bench.try_malloc(self.streams[stream], bytes);
                inject::clear();
                match outcome {
                    Ok(address) => self.add(address, bytes),
                    Err(Error::OutOfMemory(_)) => assert_eq!(code, 2),
                    Err(error) => assert!(code == 999, "{error}"),
                }
            }
            Op::Free { pick } => {
                let Some((address, block)) = self.pick(pick) else { return };
                bench.free(address);
                self.remove(address, block);
            }
            Op::FreeFailing { pick } => {
                let Some((address, block)) = self.pick(pick) else { return };
                inject::set(Some(Call::cuMemFree as usize), 1, 999, false);
                let outcome = super::super::free(bench.gpus, address);
                inject::clear();
                assert_eq!(outcome.is_err(), block.has_uncached, "{outcome:?}");
                if outcome.is_ok() {
                    self.remove(address, block);
                }
            }
            Op::FreeAgain { pick } => {
                let Some(index) = pick.checked_rem(self.freed.len()) else { return };
                is_invalid_pointer(super::super::free(bench.gpus, self.freed[index]));
                is_invalid_pointer(find(self.freed[index] ^ 1).map(drop));
            }
            Op::RecordStream { pick, stream } => {
                let Some((address, block)) = self.pick(pick) else { return };
                // A freed cached block would be pending, and active longer than in the model.
                if block.has_uncached && !block.is_shared {
                    record_stream(address, self.streams[stream]).unwrap();
                }
            }
            Op::Cache { enabled } => {
                let inside = thread::enter().unwrap();
                backend::enable_caching(&inside, enabled).unwrap();
                self.is_caching = enabled;
            }
            Op::EmptyCache => bench.empty_cache(),
            Op::ResetPeak => {
                bench.memory().reset_all_peaks().unwrap();
                self.stats.iter_mut().flatten().for_each(|stat| stat.peak = stat.current);
            }
            Op::ResetAccumulated => {
                bench.memory().reset_accumulated();
                for stat in self.stats.iter_mut().flatten() {
                    (stat.allocated, stat.freed) = (0, 0);
                }
            }
        }
    }

    fn compare(&self) {
        self.bench.check();
        let mut found = Statistics::default();
        self.bench.memory().all_statistics(&mut found).unwrap();
        for (counter, expected) in COUNTERS.iter().zip(&self.stats) {
            assert_eq!(found.counters[*counter], *expected, "counter {counter}");
        }
        for (address, live) in &self.live {
            let found = Found { requested: live.requested, bytes: live.bytes() };
            assert_eq!(find(*address).unwrap(), found);
        }
        let snapshot = Snapshot::of(&self.bench.gpus.devices, None, false).unwrap();
        let plain = snapshot.segments.iter().filter(|segment| !segment.is_expandable);
        let listed: Vec<(u64, u64)> = plain.map(|plain| (plain.address, plain.bytes)).collect();
        let direct = self.live.iter().filter(|(_, live)| live.has_uncached);
        let expected: Vec<(u64, u64)> = direct.map(|(at, live)| (*at, live.requested)).collect();
        assert_eq!(listed, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_agree_with_the_model(ops in proptest::collection::vec(op(), 1..120)) {
        on_machine("memory=1GiB", |bench| {
            let streams = [bench.stream(), bench.stream()];
            let (live, freed, stats) = (BTreeMap::new(), Vec::new(), Default::default());
            let mut machine = Machine { bench, streams, live, freed, is_caching: true, stats };
            for op in &ops {
                machine.run(op);
                machine.compare();
            }
            while let Some((address, block)) = machine.pick(0) {
                bench.free(address);
                machine.remove(address, block);
            }
            bench.empty_cache();
            machine.compare();
            assert_eq!((bench.reserved(), bench.in_use()), (0, 0));
        });
    }
}

#[test]
fn the_error_of_an_address_says_if_it_was_freed() {
    on_machine("memory=64MiB", |bench| {
        let text = |outcome: crate::base::error::Result<()>| outcome.unwrap_err().to_string();
        assert!(!text(super::super::free(bench.gpus, 512)).contains("freed already"));
        let inside = thread::enter().unwrap();
        backend::enable_caching(&inside, false).unwrap();
        let address = bench.malloc(bench.stream(), 100);
        bench.free(address);
        assert!(text(super::super::free(bench.gpus, address)).contains("was freed already"));
    });
}
