//! The fallbacks before an allocation fails, one by one, and the counters of each.

use super::{Bench, MIB, on_machine};
use crate::base::error::{Error, OutOfMemory};
use crate::base::thread;
use crate::driver::{Call, inject};
use crate::gpu::stream::Stream;
use crate::memory::config::settings::{self, Settings};
use crate::memory::fallback::observers::{self, Observes, Shortage};
use crate::memory::stats::ledger::{OVERSIZE, Statistics};
use crate::runtime;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn configure(text: &str) {
    runtime::configure(&thread::enter().unwrap(), text).unwrap();
}

fn statistics(bench: Bench) -> Statistics {
    bench.memory().statistics()
}

/// Retries, failures, rejections, waits for all streams.
fn counters(bench: Bench) -> [u64; 4] {
    let all = statistics(bench);
    [all.num_alloc_retries, all.num_ooms, all.num_oom_rejections, all.num_sync_all_streams]
}

#[track_caller]
fn runs_out(bench: Bench, stream: &Stream, bytes: u64) -> OutOfMemory {
    match bench.try_malloc(stream, bytes) {
        Err(Error::OutOfMemory(numbers)) => numbers,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_limit_is_kept_to_the_byte() {
    on_machine("memory=1GiB", |bench| {
        let (memory, stream) = (bench.memory(), bench.stream());
        assert_eq!(memory.fraction(), 1.0);
        // One byte less than 8 MiB.
        memory.set_fraction((8 * MIB) as f64 / (1u64 << 30) as f64 - 1e-10).unwrap();
        let numbers = runs_out(bench, stream, 8 * MIB);
        assert_eq!(numbers.limit, 8 * MIB - 1);
        assert_eq!((numbers.free, numbers.total, numbers.cached), (1 << 30, 1 << 30, 0));
        assert_eq!(bench.calls(Call::cuMemCreate), 0, "the driver was not asked");
        memory.set_fraction((8 * MIB) as f64 / (1u64 << 30) as f64).unwrap();
        let block = bench.malloc(stream, 8 * MIB);
        assert_eq!(runs_out(bench, stream, 512).limit, 8 * MIB);
        assert_eq!(counters(bench), [2, 2, 0, 2]);
        // A lower limit releases nothing.
        memory.set_fraction(0.0).unwrap();
        assert_eq!(bench.reserved(), 8 * MIB);
        bench.free(block);
        assert_eq!(bench.malloc(stream, 8 * MIB), block, "what is there serves");
        bench.free(block);
        runs_out(bench, stream, 9 * MIB);
        assert_eq!(bench.reserved(), 0, "the cache was freed before the failure");
        memory.set_fraction(1.0).unwrap();
        bench.free(bench.malloc(stream, 512 * MIB));
        for wrong in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            let error = memory.set_fraction(wrong).unwrap_err();
            let sentence = format!("invalid fraction:{wrong}. Please set within [0, 1].");
            assert_eq!(error.to_string(), sentence);
        }
        assert_eq!(memory.fraction(), 1.0);
        bench.check();
    });
}

#[test]
fn memory_that_is_given_back_or_fails_is_not_claimed() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        bench.memory().set_fraction(1.0 / 64.0).unwrap();
        for _ in 0..3 {
            inject::replace(&inject::parse("cuMemMap@1=999,cuMemUnmap@1=999").unwrap());
            assert!(bench.try_malloc(stream, 16 * MIB).is_err());
            inject::clear();
            let block = bench.malloc(stream, 16 * MIB);
            bench.free(block);
            bench.empty_cache();
        }
        bench.check();
    });
}

#[test]
fn threads_do_not_exceed_the_limit_together() {
    on_machine("memory=1GiB", |bench| {
        bench.memory().set_fraction(1.0 / 16.0).unwrap();
        let streams: Vec<_> = (0..4).map(|_| bench.stream()).collect();
        let blocks: usize = std::thread::scope(|scope| {
            let work = |stream: &'static Stream| {
                let _inside = thread::enter().unwrap();
                (0..40).filter(|_| bench.try_malloc(stream, 2 * MIB).is_ok()).count()
            };
            let threads: Vec<_> = streams
                .iter()
                .map(|stream| {
                    // SAFETY: streams live until shutdown, after the threads.
                    let stream = unsafe { &*std::ptr::from_ref::<Stream>(stream) };
                    scope.spawn(move || work(stream))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(blocks, 32);
        assert_eq!(statistics(bench).reserved_bytes[0].peak as u64, 64 * MIB);
        bench.check();
    });
}

#[test]
fn garbage_is_collected_before_the_driver_is_asked() {
    on_machine("memory=1GiB", |bench| {
        let (first, second) = (bench.stream(), bench.stream());
        // 80 % of 64 MiB are 51.2 MiB.
        configure("share_between_streams:False,garbage_collection_threshold:0.8");
        let old = bench.malloc(first, 40 * MIB);
        bench.free(old);
        bench.free(bench.malloc(second, 10 * MIB));
        assert_eq!(bench.reserved(), 50 * MIB, "without a limit nothing is collected");
        bench.memory().set_fraction(1.0 / 16.0).unwrap();
        let block = bench.malloc(second, 12 * MIB);
        assert_eq!(bench.reserved(), 52 * MIB, "50 MiB are not above the threshold");
        let unmapped = bench.calls(Call::cuMemUnmap);
        assert_eq!(unmapped, 0);
        // 52 MiB are above it: the excess is freed in whole mappings of large memory.
        let small = bench.malloc(second, 512);
        let next = bench.malloc(second, 4 * MIB);
        assert!(bench.calls(Call::cuMemUnmap) > unmapped);
        assert!(bench.reserved() < 58 * MIB);
        assert_eq!(counters(bench), [0, 0, 0, 0], "no retry, no wait for all streams");
        for address in [block, small, next] {
            bench.free(address);
        }
        bench.check();
    });
}

/// Without a limit for splitting, the whole cache is freed; with one, only the stream's own, if it
/// is enough. Nothing is freed if the two ranges can serve through a view.
#[test]
fn the_own_cache_is_freed_before_that_of_all_streams() {
    let apart = "lend_idle_memory:False";
    let limited = "lend_idle_memory:False,max_split_size_mb:20";
    for (text, retries) in [(apart, 1), (limited, 0), ("", 0)] {
        on_machine("memory=256MiB", |bench| {
            configure("share_between_streams:False");
            configure(text);
            let (own, other) = (bench.stream(), bench.stream());
            bench.free(bench.malloc(other, 40 * MIB));
            // Two free ranges, each followed by a block; neither is large enough.
            let blocks = [80, 4, 80, 4].map(|mib| bench.malloc(own, mib * MIB));
            bench.free(blocks[0]);
            bench.free(blocks[2]);
            let block = bench.malloc(own, 120 * MIB);
            assert_eq!(counters(bench)[0], retries, "{text}");
            assert_eq!(counters(bench)[3], retries);
            for address in [block, blocks[1], blocks[3]] {
                bench.free(address);
            }
            bench.check();
        });
    }
}

#[test]
fn an_early_rejection_runs_no_fallback_and_names_its_setting() {
    on_machine("memory=1GiB", |bench| {
        let (stream, other) = (bench.stream(), bench.stream());
        configure("share_between_streams:False,throw_on_cudamalloc_oom:True");
        configure("per_process_memory_fraction:0.0625");
        assert_eq!(bench.memory().fraction(), 0.0625);
        bench.free(bench.malloc(other, 60 * MIB));
        let numbers = runs_out(bench, stream, 8 * MIB);
        assert!(numbers.rejected);
        assert_eq!((numbers.wanted, numbers.limit), (8 * MIB, 64 * MIB));
        assert_eq!(counters(bench), [0, 0, 1, 0]);
        assert_eq!(bench.reserved(), 60 * MIB, "nothing was reclaimed");
        configure("throw_on_cudamalloc_oom:False");
        bench.free(bench.malloc(stream, 8 * MIB));
        assert_eq!(counters(bench), [1, 0, 1, 1]);
        // A failure of the driver is not an early rejection.
        configure("throw_on_cudamalloc_oom:True,per_process_memory_fraction:1.0");
        assert!(!runs_out(bench, stream, 2048 * MIB).rejected);
        bench.check();
    });
}

/// Frees its block at the first call, and returns a fixed answer.
struct Frees {
    asked: Arc<AtomicUsize>,
    order: usize,
    answer: bool,
    block: AtomicUsize,
    bench: (usize, usize),
}

impl Observes<Shortage> for Frees {
    fn freed_memory(&self, shortage: &Shortage) -> bool {
        // SAFETY: the test's bench outlives its observers.
        let gpus = unsafe { &*(self.bench.0 as *const crate::gpu::gpus::Gpus) };
        // SAFETY: as above.
        let device = unsafe { &*(self.bench.1 as *const crate::gpu::device::Device) };
        assert_eq!(self.asked.fetch_add(1, Ordering::Relaxed) % 2, self.order, "newest first");
        assert_eq!((shortage.device, shortage.limit), (0, 64 * MIB));
        let bench = Bench { gpus, device };
        // The functions of the C API enter the library likewise.
        let _inside = crate::base::thread::enter().unwrap();
        match bench.try_malloc(device.streams.default(), 512) {
            Err(Error::InvalidState(why)) => assert!(why.contains("observer"), "{why}"),
            other => panic!("{other:?}"),
        }
        let block = self.block.swap(0, Ordering::Relaxed);
        if block != 0 {
            bench.free(block as u64);
        }
        self.answer
    }

    fn attached(&self) {}
}

#[test]
fn observers_run_last_and_may_free() {
    on_machine("memory=64MiB", |bench| {
        configure("share_between_streams:False");
        let (stream, other) = (bench.stream(), bench.stream());
        let asked = Arc::new(AtomicUsize::new(0));
        let gpus = std::ptr::from_ref(bench.gpus) as usize;
        let device = std::ptr::from_ref(bench.device) as usize;
        let attach = |order, answer, block: u64| {
            let block = AtomicUsize::new(block as usize);
            let bench = (gpus, device);
            let frees = Frees { asked: Arc::clone(&asked), order, answer, block, bench };
            let number = crate::base::observers::next_number();
            observers::attach(number, Box::new(frees)).unwrap();
            number
        };
        let held = bench.malloc(other, 48 * MIB);
        let quiet = attach(1, false, 0);
        let frees = attach(0, true, held);
        // The block is freed to another stream's cache, which is released before the second
        // attempt.
        let block = bench.malloc(stream, 32 * MIB);
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        assert_eq!(counters(bench), [2, 0, 0, 2], "no failure: the second attempt was enough");
        // Observers run once per allocation: their answer after the second attempt is ignored.
        runs_out(bench, stream, 33 * MIB);
        assert_eq!(asked.load(Ordering::Relaxed), 4);
        assert_eq!(counters(bench), [4, 1, 0, 4]);
        observers::detach(frees);
        observers::detach(frees);
        observers::detach(quiet);
        runs_out(bench, stream, 33 * MIB);
        assert_eq!(asked.load(Ordering::Relaxed), 4);
        bench.free(block);
        // Allocations succeed again.
        bench.free(bench.malloc(stream, 512));
        bench.check();
        observers::detach_all();
    });
}

#[test]
fn oversize_blocks_are_counted_by_their_state_at_allocation() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        let before = bench.malloc(stream, 32 * MIB);
        configure("max_split_size_mb:32");
        let oversize = || statistics(bench).oversize_allocations;
        let (least, below) = (bench.malloc(stream, 32 * MIB - 511), bench.malloc(stream, 31 * MIB));
        assert_eq!((oversize().current, oversize().peak), (1, 1));
        configure("max_split_size_mb:20");
        let other = bench.malloc(stream, 20 * MIB);
        assert_eq!(statistics(bench).max_split_size, Some(20 * MIB));
        configure("");
        assert_eq!(statistics(bench).max_split_size, None);
        bench.free(before);
        bench.free(below);
        assert_eq!((oversize().current, oversize().allocated, oversize().freed), (2, 2, 0));
        bench.free(least);
        bench.free(other);
        assert_eq!((oversize().current, oversize().peak, oversize().freed), (0, 2, 2));
        bench.check();
        assert_eq!(statistics(bench).counters[OVERSIZE][1].peak, 0);
    });
}

#[test]
fn rounding_takes_effect_at_once_and_ends_with_the_library() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        configure("roundup_power2_divisions:4");
        let block = bench.malloc(stream, 1200 * 1024);
        let found = super::super::find(block).unwrap();
        assert_eq!((found.requested, found.bytes), (1200 * 1024, 1280 * 1024));
        // A request that is rounded up into the large class.
        let block = bench.malloc(stream, MIB - 1);
        assert_eq!(super::super::find(block).unwrap().bytes, MIB);
        bench.check();
    });
    assert_eq!(settings::current().unwrap(), Settings::DEFAULT);
}
