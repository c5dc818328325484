//! Pinned memory: against a simple model, with slow streams, and by counting driver calls.

use super::order::Gate;
use super::{Bench, KIB, MIB, on_machine};
use crate::base::error::{Error, Result};
use crate::driver::{Call, inject};
use crate::gpu::stream::Stream;
use crate::memory::config::host_settings::HostSettings;
use crate::memory::pinned::stats::HostStatistics;
use crate::memory::stats::ledger::Stat;

impl Bench<'_> {
    pub(super) fn pin(&self, bytes: u64) -> usize {
        self.gpus.pinned().allocate(self.gpus, bytes as usize).unwrap()
    }

    pub(super) fn unpin(&self, block: usize) {
        self.gpus.pinned().free(self.gpus, block).unwrap();
    }

    pub(super) fn use_on(&self, block: usize, stream: &Stream) {
        self.gpus.pinned().record(self.gpus, block, stream).unwrap();
    }

    pub(super) fn host(&self) -> HostStatistics {
        self.gpus.pinned().statistics()
    }

    pub(super) fn set(&self, settings: HostSettings) {
        self.gpus.pinned().set_settings(&settings).unwrap();
    }

    pub(super) fn check_host(&self) {
        self.gpus.pinned().check().unwrap();
    }

    fn pinned_by_driver(&self) -> u64 {
        self.calls(Call::cuMemHostAlloc) - self.calls(Call::cuMemFreeHost)
    }
}

fn is_invalid(outcome: Result<()>) {
    assert!(matches!(outcome, Err(Error::InvalidHostPointer { .. })), "{outcome:?}");
}

fn stat(current: i64, peak: i64, allocated: i64, freed: i64) -> Stat {
    Stat { current, peak, allocated, freed }
}

#[test]
fn sizes_are_exact_and_a_segment_serves_many() {
    on_machine("memory=1GiB", |bench| {
        let sizes = [1, 64, 65, 5000, 64 * KIB];
        let rounded = [64, 64, 128, 5056, 64 * KIB];
        let blocks = sizes.map(|bytes| bench.pin(bytes));
        assert!(blocks.iter().all(|block| block % 64 == 0));
        assert_eq!(bench.host().active_bytes.current as u64, rounded.iter().sum::<u64>());
        assert_eq!(bench.calls(Call::cuMemHostAlloc), 1);
        let large = bench.pin(64 * KIB + 1);
        assert_eq!(large % 512, 0);
        let bytes = bench.host().active_bytes.current as u64 - rounded.iter().sum::<u64>();
        assert_eq!(bytes, 64 * KIB + 512);
        // A size that is no power of two is not rounded up to one.
        let huge = bench.pin(65 * MIB + 1);
        assert_eq!(bench.host().allocated_bytes.current as u64, 2 * 2 * MIB + 65 * MIB + 4096);
        bench.check_host();
        for block in blocks.into_iter().chain([large, huge]) {
            bench.unpin(block);
        }
        bench.check_host();
        let before = bench.all_calls();
        assert_eq!(bench.pin(65 * MIB), huge);
        bench.unpin(huge);
        assert_eq!(bench.all_calls(), before, "steady state makes no driver call");
        bench.gpus.pinned().empty_cache(bench.gpus).unwrap();
        assert_eq!(bench.pinned_by_driver(), 0);
        assert_eq!(bench.host().allocated_bytes.current, 0);
        bench.check_host();
    });
}

#[test]
fn every_statistic_has_its_value() {
    on_machine("memory=1GiB", |bench| {
        let (a, b) = (bench.pin(100), bench.pin(3 * MIB));
        bench.unpin(a);
        let stats = bench.host();
        let large = 3 * MIB as i64;
        assert_eq!(stats.active_requests, stat(1, 2, 2, 1));
        assert_eq!(stats.active_bytes, stat(large, large + 128, large + 128, 128));
        assert_eq!(stats.allocations, stat(2, 2, 2, 0));
        let segments = 6 * MIB as i64;
        assert_eq!(stats.allocated_bytes, stat(segments, segments, segments, 0));
        assert_eq!((stats.alloc_time.count, stats.free_time.count), (2, 0));
        assert!(stats.alloc_time.total >= stats.alloc_time.max);
        assert!(stats.alloc_time.max >= stats.alloc_time.min);
        // A freed block that waits for a stream is active.
        let stream = bench.stream();
        bench.use_on(b, stream);
        bench.unpin(b);
        assert_eq!(bench.host().active_requests, stat(1, 2, 2, 1));
        bench.gpus.pinned().empty_cache(bench.gpus).unwrap();
        let stats = bench.host();
        assert_eq!(stats.active_requests, stat(0, 2, 2, 2));
        assert_eq!(stats.allocated_bytes, stat(0, segments, segments, segments));
        assert_eq!(stats.free_time.count, 2);
        bench.gpus.pinned().reset_peak();
        bench.gpus.pinned().reset_accumulated();
        let stats = bench.host();
        assert_eq!(stats.active_bytes, stat(0, 0, 0, 0));
        assert_eq!(stats.allocated_bytes, stat(0, 0, 0, 0));
        assert_eq!((stats.alloc_time.count, stats.alloc_time.total), (0, 0));
        assert_eq!((stats.free_time.max, stats.free_time.min), (0, 0));
    });
}

#[test]
fn a_slow_stream_delays_only_its_own_blocks() {
    on_machine("schedule=threads,memory=1GiB", |bench| {
        let (slow, quick) = (bench.stream(), bench.stream());
        let gate = Gate::on(bench, slow);
        let (a, b) = (bench.pin(3000), bench.pin(3000));
        bench.use_on(a, slow);
        // Any address inside the block is accepted.
        bench.use_on(b + 2999, quick);
        bench.unpin(a);
        bench.unpin(b);
        is_invalid(bench.gpus.pinned().free(bench.gpus, a));
        is_invalid(bench.gpus.pinned().record(bench.gpus, b, quick));
        let mut seen = Vec::new();
        for _ in 0..10_000 {
            if seen.contains(&b) {
                break;
            }
            seen.push(bench.pin(3000));
        }
        assert!(seen.contains(&b), "the quick stream waits for the slow one");
        assert!(!seen.contains(&a), "{a:#x} is reused while its stream is held back");
        gate.open();
        slow.synchronize(bench.gpus).unwrap();
        for block in seen {
            bench.unpin(block);
        }
        for _ in 0..10_000 {
            let block = bench.pin(1);
            bench.unpin(block);
        }
        assert_eq!(bench.host().active_requests.current, 0);
        bench.check_host();
    });
}

#[test]
fn addresses_of_no_block_are_refused() {
    on_machine("memory=1GiB", |bench| {
        let host = &bench.gpus.pinned();
        is_invalid(host.free(bench.gpus, 4096));
        let block = bench.pin(1000);
        for wrong in [block + 1, block + 64, block - 64, block + 2 * MIB as usize] {
            is_invalid(host.free(bench.gpus, wrong));
        }
        is_invalid(host.record(bench.gpus, block + 1000, bench.stream()));
        bench.use_on(block + 999, bench.stream());
        bench.unpin(block);
        is_invalid(host.free(bench.gpus, block));
        host.empty_cache(bench.gpus).unwrap();
        is_invalid(host.free(bench.gpus, block));
        for bytes in [1 << 40, usize::MAX / 2, usize::MAX] {
            let outcome = host.allocate(bench.gpus, bytes);
            assert!(matches!(outcome, Err(Error::OutOfHostMemory(_))), "{outcome:?}");
        }
        bench.check_host();
    });
}

#[test]
fn settings_have_their_effects() {
    on_machine("memory=1GiB", |bench| {
        let default = HostSettings::DEFAULT;
        bench.set(HostSettings { max_round_threshold: MIB, ..default });
        let (rounded, exact) = (bench.pin(600 * KIB), bench.pin(MIB + 512));
        assert_eq!(bench.host().active_bytes.current as u64, MIB + MIB + 512);
        bench.unpin(rounded);
        bench.unpin(exact);
        // Memory above the limit is freed to the driver when its block is free, and only then.
        bench.gpus.pinned().empty_cache(bench.gpus).unwrap();
        bench.set(HostSettings { max_cached_bytes: 100, max_round_threshold: u64::MAX, ..default });
        let (kept, gone) = (bench.pin(100), bench.pin(101));
        assert_eq!(bench.host().active_bytes.current, 128 + 4096);
        assert_eq!(bench.pinned_by_driver(), 2);
        bench.use_on(gone, bench.stream());
        bench.unpin(gone);
        bench.unpin(kept);
        bench.stream().synchronize(bench.gpus).unwrap();
        let kept = bench.pin(100);
        bench.unpin(kept);
        let large = bench.pin(200);
        bench.unpin(large);
        assert_eq!(bench.pinned_by_driver(), 1);
        bench.check_host();
        bench.gpus.pinned().empty_cache(bench.gpus).unwrap();
        assert_eq!(bench.host().allocated_bytes.current, 0);
        // A segment that the driver fails to free is cached after all.
        inject::replace(&inject::parse("cuMemFreeHost@1=999").unwrap());
        let gone = bench.pin(5000);
        bench.unpin(gone);
        assert_eq!(bench.host().allocated_bytes.current, 8192);
        bench.check_host();
        bench.set(default);
        assert_eq!(bench.pin(8192), gone);
        bench.unpin(gone);
    });
}

#[test]
fn the_reserve_is_used_first_and_stays() {
    on_machine("memory=1GiB", |bench| {
        let default = HostSettings::DEFAULT;
        bench.set(HostSettings { reserve_segment_bytes: 3 * MIB, ..default });
        let (small, large) = (bench.pin(100), bench.pin(100 * KIB));
        assert_eq!(bench.calls(Call::cuMemHostAlloc), 1);
        assert_eq!(bench.host().allocated_bytes.current as u64, 3 * MIB);
        let beyond = bench.pin(2 * MIB);
        assert_eq!(bench.calls(Call::cuMemHostAlloc), 2, "the reserve has no such range left");
        for block in [small, large, beyond] {
            bench.unpin(block);
        }
        bench.gpus.pinned().empty_cache(bench.gpus).unwrap();
        assert_eq!(bench.host().allocated_bytes.current as u64, 3 * MIB);
        bench.check_host();
    });
}

#[test]
fn segments_that_touch_stay_apart() {
    on_machine("memory=1GiB", |bench| {
        let default = HostSettings::DEFAULT;
        bench.set(HostSettings { reserve_segment_bytes: 8 * MIB, ..default });
        // Both segments are cut from the reserve, one after the other.
        let blocks: Vec<usize> = (0..64).map(|_| bench.pin(64 * KIB)).collect();
        assert_eq!(blocks[32], blocks[0] + 2 * MIB as usize);
        bench.check_host();
        for block in &blocks {
            bench.unpin(*block);
            bench.check_host();
        }
        // Each is free as a whole, and serves no larger request.
        bench.set(default);
        let calls = bench.calls(Call::cuMemHostAlloc);
        let large = bench.pin(3 * MIB);
        assert_eq!(bench.calls(Call::cuMemHostAlloc), calls + 1);
        bench.unpin(large);
        bench.check_host();
    });
}

#[test]
fn memory_of_the_system_can_be_registered() {
    on_machine("memory=1GiB", |bench| {
        let default = HostSettings::DEFAULT;
        bench.set(HostSettings { use_host_register: true, register_threads: 4, ..default });
        let block = bench.pin(9 * MIB + 1);
        assert_eq!(bench.calls(Call::cuMemHostAlloc), 0);
        assert_eq!(bench.calls(Call::cuMemHostRegister), 1);
        // SAFETY: this block has at least this length.
        let bytes = unsafe { std::slice::from_raw_parts_mut(block as *mut u8, 9 << 20) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        bench.unpin(block);
        bench.gpus.pinned().empty_cache(bench.gpus).unwrap();
        assert_eq!(bench.calls(Call::cuMemHostUnregister), 1);
        // Memory that cannot be pinned is returned to the system.
        inject::replace(&inject::parse("cuMemHostRegister@1=2,cuMemHostRegister@2=2").unwrap());
        let outcome = bench.gpus.pinned().allocate(bench.gpus, 100);
        assert!(matches!(outcome, Err(Error::OutOfHostMemory(_))), "{outcome:?}");
        assert_eq!(bench.host().allocations.current, 0);
        bench.check_host();
    });
}

#[test]
fn the_next_segment_is_obtained_ahead() {
    on_machine("memory=1GiB", |bench| {
        let default = HostSettings::DEFAULT;
        bench.set(HostSettings { background_threads: true, ..default });
        let first = bench.pin(MIB);
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while bench.host().allocations.current < 2 && std::time::Instant::now() < until {
            // Half of the first segment is left: the helper obtains more.
            let more = bench.pin(MIB - 512);
            bench.unpin(more);
            std::thread::yield_now();
        }
        assert!(bench.host().allocations.current >= 2, "the helper obtained no segment");
        bench.unpin(first);
        bench.check_host();
    });
}
