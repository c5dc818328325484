//! Communicators: a rank of an NCCL group, and its collectives.
//!
//! A call of NCCL lasts as long as the other ranks take. It is made outside the library
//! (`thread::outside`), so that a shutdown does not wait for another process. One call at a time
//! uses a communicator, as NCCL requires. Error queries and aborts do not wait for that call. The
//! thread that ends a communicator takes NCCL's handle out of it, so that it ends once.

mod context;
pub mod group;
mod join;
pub mod verbs;

pub use join::{init_all, init_rank, unique_id};

use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::sync;
use crate::base::thread::{self, Inside};
use crate::driver::nccl::{Comm, Functions, code};
use crate::driver::sys::CUevent;
use crate::gpu::external_life::EndState;
use crate::gpu::external_registry::HeldStream;
use crate::gpu::gpus::{self, Gpus};
use crate::gpu::sanitizer_reports;
use crate::gpu::stream::{self, Stream};
use crate::sanitizer::{self, Point};
use context::Context;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// NCCL is creating it.
const JOINING: u32 = 0;
/// Ready for use.
const LIVE: u32 = 1;
/// A destroy waits for its work.
const DESTROYING: u32 = 2;
/// Aborted.
const ABORTED: u32 = 3;

/// How long an abort waits for a running call before it aborts NCCL's handle during the call.
const ABORT_TIMEOUT: Duration = Duration::from_millis(100);

/// One rank of a group.
pub struct Communicator {
    functions: &'static Functions,
    context: Context,
    device: i32,
    rank: i32,
    ranks: i32,
    /// NCCL's handle; NULL: not created yet, or ended.
    comm: AtomicPtr<c_void>,
    state: AtomicU32,
    /// A call uses it.
    busy: AtomicBool,
    /// Threads that query its error state.
    num_queries: AtomicU32,
    /// The stream of its last operation.
    last: Mutex<Option<HeldStream>>,
}

/// The error for a communicator in this state.
fn unusable(state: u32) -> Error {
    Error::InvalidState(match state {
        ABORTED => "the communicator was aborted: destroy it, and make a new one",
        DESTROYING => "the communicator is being destroyed",
        _ => "the communicator is not ready yet",
    })
}

impl Communicator {
    fn new(
        functions: &'static Functions,
        context: Context,
        (device, rank, ranks): (i32, i32, i32),
    ) -> Communicator {
        Communicator {
            functions,
            context,
            device,
            rank,
            ranks,
            comm: AtomicPtr::new(std::ptr::null_mut()),
            state: AtomicU32::new(JOINING),
            busy: AtomicBool::new(false),
            num_queries: AtomicU32::new(0),
            last: Mutex::new(Rank::LEAF, None),
        }
    }

    /// Stores the stream of its last operation.
    fn set_last_stream(&self, stream: &Stream) {
        let before = self.last.lock().replace(HeldStream::new(stream));
        drop(before);
    }

    /// The stream of its last operation, for a thread that has entered the library since.
    fn last(&self) -> Option<HeldStream> {
        self.last.lock().as_ref().map(|last| HeldStream::new(last))
    }

    fn state(&self) -> u32 {
        self.state.load(Ordering::SeqCst)
    }

    fn require_live(&self) -> Result<()> {
        match self.state() {
            LIVE => Ok(()),
            state => Err(unusable(state)),
        }
    }

    /// Changes the state. False: the state was not `from`.
    fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    fn try_acquire(&self) -> bool {
        !self.busy.swap(true, Ordering::SeqCst)
    }

    fn release(&self) {
        self.busy.store(false, Ordering::SeqCst);
    }

    /// Waits until no other call uses it, and acquires it. The thread is outside the library.
    fn acquire(&self) -> Result<()> {
        loop {
            self.require_live()?;
            if self.try_acquire() {
                // A thread that ends it changes the state before it checks for a running call.
                return self.require_live().inspect_err(|_| self.release());
            }
            sync::nap();
        }
    }

    /// Waits while NCCL works in the background, as with `NCCL_COMM_BLOCKING=0`. The caller has
    /// acquired it, and is outside the library.
    fn wait_in_progress(&self, call: &'static str, state: u32) -> Result<()> {
        loop {
            if self.state() != state {
                return Err(unusable(self.state()));
            }
            let mut result: c_int = code::SUCCESS;
            let comm = self.comm.load(Ordering::SeqCst);
            // SAFETY: alive: the thread that ends it waits for its holder; `result` is writable.
            let queried = unsafe { (self.functions.async_error)(comm, &mut result) };
            self.functions.check("ncclCommGetAsyncError", queried)?;
            if result != code::IN_PROGRESS {
                return Ok(self.functions.check(call, result)?);
            }
            sync::nap();
        }
    }

    /// Waits after a call of NCCL, if the result says that it continues in the background.
    fn wait_if_in_progress(&self, call: &'static str, result: i32) -> Result<()> {
        if result == code::IN_PROGRESS { self.wait_in_progress(call, LIVE) } else { Ok(()) }
    }

    /// An error if an operation of it has failed.
    pub fn query(&self) -> Result<()> {
        self.num_queries.fetch_add(1, Ordering::SeqCst);
        let state = self.state();
        let comm = self.comm.load(Ordering::SeqCst);
        let outcome = match state {
            LIVE | DESTROYING if !comm.is_null() => {
                let mut result: c_int = code::SUCCESS;
                // SAFETY: alive: the thread that ends it waits for queries; `result` is writable.
                let queried = unsafe { (self.functions.async_error)(comm, &mut result) };
                let queried = self.functions.check("ncclCommGetAsyncError", queried);
                queried.and_then(|()| self.functions.check("a collective of NCCL's", result))
            }
            _ => Ok(()),
        };
        self.num_queries.fetch_sub(1, Ordering::SeqCst);
        match state {
            LIVE | DESTROYING => Ok(outcome?),
            state => Err(unusable(state)),
        }
    }

    /// Takes NCCL's handle, which only the caller may end; NULL: already taken.
    fn take(&self) -> Comm {
        let comm = self.comm.swap(std::ptr::null_mut(), Ordering::SeqCst);
        // Each query makes one short call.
        while self.num_queries.load(Ordering::SeqCst) > 0 {
            sync::yield_now();
        }
        comm
    }

    /// Aborts its work, even during a call that hangs.
    pub fn abort(&self, inside: &Inside) -> Result<()> {
        if !self.change(LIVE, ABORTED) && !self.change(DESTROYING, ABORTED) {
            return match self.state() {
                ABORTED => Ok(()),
                state => Err(unusable(state)),
            };
        }
        // SAFETY: the GPUs are not used after this.
        unsafe { thread::outside(inside, || self.abort_now()) }
    }

    /// Aborts NCCL's handle. A running call gets time to return: with `NCCL_COMM_BLOCKING=0` it
    /// does. Otherwise NCCL stops the call, as when PyTorch's watchdog aborts.
    fn abort_now(&self) -> Result<()> {
        let start = Instant::now();
        let mut held = self.try_acquire();
        while !held && start.elapsed() < ABORT_TIMEOUT {
            sync::nap();
            held = self.try_acquire();
        }
        let comm = self.take();
        let outcome = if comm.is_null() {
            Ok(())
        } else {
            // SAFETY: no other thread ends it.
            let result = self.context.within(|_| unsafe { (self.functions.abort)(comm) });
            self.functions.check("ncclCommAbort", result)
        };
        if held {
            self.release();
        }
        Ok(outcome?)
    }

    /// Waits for its work, and ends it.
    pub fn destroy(&self, inside: &Inside, gpus: &Gpus) -> Result<()> {
        if self.state() == ABORTED {
            return Ok(());
        }
        if !self.change(LIVE, DESTROYING) {
            return Err(unusable(self.state()));
        }
        let generation = gpus.generation;
        let wait_result = match self.begin_drain(gpus) {
            Ok(None) => Ok(()),
            Ok(Some(event)) => self.drain(inside, generation, event, self.point(gpus)),
            Err(error) => Err(error),
        };
        // On a lost device the work never completes. After any other error NCCL itself waits.
        let lost =
            wait_result.err().filter(|error| matches!(error, Error::Cuda(e) if e.is_sticky()));
        let is_lost = lost.is_some();
        // SAFETY: the GPUs are not used after this.
        let ended = unsafe { thread::outside(inside, || self.end(is_lost)) };
        lost.map_or(ended, Err)
    }

    /// Ends NCCL's handle. Aborts it if its work has failed, because that never completes.
    fn end(&self, is_lost: bool) -> Result<()> {
        if is_lost || self.query().is_err() {
            return self.abort_now();
        }
        while !self.try_acquire() {
            if self.state() == ABORTED {
                return Ok(());
            }
            sync::nap();
        }
        let comm = self.take();
        let outcome = if comm.is_null() {
            Ok(())
        } else {
            // SAFETY: no other thread ends it.
            let result = self.context.within(|_| unsafe { (self.functions.destroy)(comm) });
            self.functions.check("ncclCommDestroy", result)
        };
        self.release();
        Ok(outcome?)
    }

    /// Records an event after its work. `None`: there is nothing to wait for, or the stream is
    /// captured.
    fn begin_drain(&self, gpus: &Gpus) -> Result<Option<CUevent>> {
        let Some(last) = self.last() else { return Ok(None) };
        if last.is_per_thread()
            || last.is_external() && !matches!(last.end_state(), EndState::Alive(_))
        {
            // The stream cannot be used from this thread. NCCL itself waits.
            return Ok(None);
        }
        let device = gpus.device(self.device)?;
        let event = device.events.take_untimed(device)?;
        match last.unless_captured(gpus, || last.record(gpus, event)) {
            Ok(Some(())) => Ok(Some(event)),
            other => {
                device.events.give_untimed(event);
                other.map(|_| None)
            }
        }
    }

    /// The key of its last operation in the sanitizer; captured operations have another key. Both
    /// keys are odd and handles of events are even, so that no event has the same key.
    fn key(&self, gpus: &Gpus, stream: &Stream) -> Result<u64> {
        let in_capture = u64::from(stream.is_capturing(gpus)?);
        Ok(self.own_key() + 2 * in_capture)
    }

    fn own_key(&self) -> u64 {
        std::ptr::from_ref(self) as u64 + 1
    }

    /// The sanitizer's point at the end of the stream of its last operation, if the sanitizer is
    /// on.
    fn point(&self, gpus: &Gpus) -> Option<Point> {
        let last = self.last()?;
        sanitizer_reports::point_of_stream(gpus, &last)
    }

    /// Waits until `event` completes or the communicator is aborted. Returns the event to its pool.
    /// `over`: what the sanitizer learns from a completed wait.
    fn drain(
        &self,
        inside: &Inside,
        generation: u64,
        event: CUevent,
        over: Option<Point>,
    ) -> Result<()> {
        loop {
            let now = gpus::existing(inside).filter(|now| now.generation == generation);
            let Some(gpus) = now else { return Ok(()) };
            // SAFETY: a live event of this runtime.
            let queried = stream::finished(unsafe { gpus.driver().cuEventQuery(event) });
            let is_over = !matches!(queried, Ok(false)) || self.state() == ABORTED;
            // Failed work may never complete.
            if is_over || self.query().is_err() {
                gpus.device(self.device)?.events.give_untimed(event);
                if let Ok(true) = queried {
                    sanitizer::reached(over);
                }
                return queried.map(|_| ());
            }
            // SAFETY: the GPUs are looked up again.
            unsafe { thread::outside(inside, sync::nap) };
        }
    }

    /// Ends it at shutdown, after all work is complete: like destroy, except that a hanging call is
    /// aborted. Returns whether its handle counts as leaked.
    pub fn close(&self) -> bool {
        if self.change(JOINING, ABORTED) {
            // The running init returns no handle, and ends NCCL's handle itself.
            return false;
        }
        let before = self.state.swap(ABORTED, Ordering::SeqCst);
        if before == ABORTED {
            return true;
        }
        let is_free = self.try_acquire();
        if is_free {
            self.release();
        }
        // There is no caller to report a failure to.
        let _ = if is_free { self.end_at_shutdown() } else { self.abort_now() };
        true
    }

    fn end_at_shutdown(&self) -> Result<()> {
        let comm = self.comm.load(Ordering::SeqCst);
        let mut result: c_int = code::SUCCESS;
        if !comm.is_null() {
            // SAFETY: alive: other threads have left the library, or cannot use it.
            unsafe { (self.functions.async_error)(comm, &mut result) };
        }
        let comm = self.take();
        if comm.is_null() {
            return Ok(());
        }
        let is_well = result == code::SUCCESS;
        let end = if is_well { self.functions.destroy } else { self.functions.abort };
        // SAFETY: no other thread ends it.
        let result = self.context.within(|_| unsafe { end(comm) });
        Ok(self.functions.check("ncclCommDestroy", result)?)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        sanitizer::event_gone(self.own_key());
        sanitizer::event_gone(self.own_key() + 2);
        let comm = self.take();
        if !comm.is_null() {
            // SAFETY: no other reference exists.
            self.context.within(|_| unsafe { (self.functions.abort)(comm) });
        }
    }
}
