//! Tests of the allocator on the simulated machine: against a simple model, for the order of
//! streams, at the limits of growing and shrinking, and with many threads.

mod block_index;
mod check;
mod checkpoint;
mod ended;
mod exported;
mod extent;
mod fallbacks;
mod growth;
mod growth_credit;
mod growth_cursor;
mod guarantee;
mod identity;
mod last_freed;
mod model;
mod order;
mod pinned;
mod pinned_model;
mod ratio;
mod refusals;
mod scopes;
mod segments;
mod settings;
mod sharing;
mod snapshot_sums;
mod stacks;
mod threads;
mod threshold;
mod trace_excess;
mod uncached;
mod views;
mod waits;

use crate::base::error::{Error, Result};
use crate::base::thread;
use crate::driver::{Call, inject, sim};
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory::arena::arena_lock::HasLock;
use crate::memory::arena::member::Member;
use crate::memory::config::settings::Settings;
use crate::memory::config::size::Class;
use crate::memory::device::{DeviceMemory, DeviceStats};
use crate::memory::stats::ledger;
use crate::runtime;
use check::check_account;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Shuts the library down on drop, also after a failed test, so that the next test starts with a
/// new library.
struct Shutdown;

impl Drop for Shutdown {
    fn drop(&mut self) {
        inject::clear();
        let inside = thread::enter().unwrap();
        runtime::shutdown(&inside, |_| 0).unwrap();
    }
}

/// Runs a test on device 0 of a new machine. There is one machine, so that tests run one at a time.
fn on_machine<R>(options: &str, body: impl FnOnce(Bench) -> R) -> R {
    let _lock = sim::test_lock();
    let _shutdown = Shutdown;
    let inside = thread::enter().unwrap();
    runtime::select_backend(&inside, "sim", options).unwrap();
    let gpus = runtime::get(&inside).unwrap();
    body(Bench { gpus, device: &gpus.devices[0] })
}

/// The same, and streams share memory whenever more is requested than was ever needed.
fn sharing<R>(options: &str, body: impl FnOnce(Bench) -> R) -> R {
    on_machine(options, |bench| {
        runtime::configure(&thread::enter().unwrap(), "sharing_threshold:0").unwrap();
        body(bench)
    })
}

/// The same without remapping of idle memory.
fn without_remapping<R>(options: &str, body: impl FnOnce(Bench) -> R) -> R {
    on_machine(options, |bench| {
        let settings = Settings { lend_idle_memory: false, ..Settings::DEFAULT };
        bench.gpus.devices.iter().for_each(|device| device.memory().configure(&settings));
        body(bench)
    })
}

/// A xorshift generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// The objects that a test uses.
#[derive(Clone, Copy)]
struct Bench<'a> {
    gpus: &'a Gpus,
    device: &'a Device,
}

impl<'a> Bench<'a> {
    fn memory(&self) -> &'a DeviceMemory {
        self.device.memory()
    }

    fn stream(&self) -> &'a Stream {
        self.device.streams.next(self.device, 0).unwrap()
    }

    fn try_malloc(&self, stream: &Stream, bytes: u64) -> Result<u64> {
        self.memory().allocate(self.gpus, self.device, stream, bytes)
    }

    fn malloc(&self, stream: &Stream, bytes: u64) -> u64 {
        self.try_malloc(stream, bytes).unwrap()
    }

    fn free(&self, address: u64) {
        super::free(self.gpus, address).unwrap();
    }

    fn empty_cache(&self) {
        self.memory().empty_cache(self.gpus).unwrap();
    }

    /// Checks every invariant of every arena and of the ledger.
    #[track_caller]
    fn check(&self) {
        self.memory().check().unwrap();
    }

    fn reserved(&self) -> u64 {
        self.memory().statistics().reserved_bytes[0].current as u64
    }

    /// The memory in use, as the driver reports it.
    fn in_use(&self) -> u64 {
        let (free, total) = self.device.memory_info().unwrap();
        total - free
    }

    fn calls(&self, call: Call) -> u64 {
        self.gpus.driver().count(Some(call as usize))
    }

    fn all_calls(&self) -> u64 {
        self.gpus.driver().count(None)
    }
}

impl DeviceMemory {
    /// Checks every invariant of the arenas and of the counters; returns the first violation.
    /// Arenas that a thread is changing are left out, and with them the sum over all arenas.
    fn check(&self) -> std::result::Result<(), String> {
        self.with_ledger(None, |stats| stats.check())
    }
}

impl DeviceStats {
    /// Checks the arenas that `with_ledger` could lock, and the headroom of all arenas.
    fn check(&self) -> std::result::Result<(), String> {
        let (mut mapped, mut all_locked) = ([0i64; 3], true);
        for heap in &self.members {
            if !heap.lock().is_taken() {
                all_locked = false;
                continue;
            }
            let mut sums = Vec::new();
            for arena in heap.arenas() {
                // SAFETY: `with_ledger` has frozen the heap.
                let state = unsafe { arena.frozen_state() };
                let checked = state.check();
                sums.push(checked.map_err(|why| format!("arena at {:#x}: {why}", arena.base))?);
                for row in [ledger::ALL, arena.class.row()] {
                    mapped[row] += state.reserved().0;
                }
            }
            // SAFETY: as above.
            let checked = unsafe { heap.with_account(|account| check_account(account, &sums)) };
            checked.map_err(|why| format!("heap of {:#x}: {why}", heap.arenas()[0].base))?;
        }
        for class in [Class::Small, Class::Large] {
            let bytes = self.ledger.uncached.current(class)[ledger::ALLOCATED_BYTES];
            mapped[ledger::ALL] += bytes;
            mapped[class.row()] += bytes;
        }
        let mut statistics = ledger::Statistics::default();
        self.statistics(&mut statistics);
        let reserved = statistics.reserved_bytes.map(|stat| stat.current);
        if all_locked && reserved != mapped {
            return Err(format!("{mapped:?} bytes mapped, {reserved:?} reserved"));
        }
        let mut bounds = self.sums(|row| row.most);
        bounds[ledger::ALL] = self.ledger.uncached.most_of_all();
        self.each(|account| {
            let most = account.most_of_all();
            bounds[ledger::ALL].iter_mut().zip(most).for_each(|(sum, most)| *sum += most);
        });
        for (counter, rows) in statistics.counters.iter().enumerate() {
            for (row, stat) in rows.iter().enumerate() {
                let most = stat.peak + self.ledger.allowance()[counter];
                if bounds[row][counter] > most || stat.current > most {
                    let bound = bounds[row][counter];
                    return Err(format!(
                        "counter {counter} row {row}: up to {bound} without asking, {stat:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

#[track_caller]
fn is_invalid_pointer(outcome: Result<()>) {
    assert!(matches!(outcome, Err(Error::InvalidPointer { .. })), "{outcome:?}");
}
