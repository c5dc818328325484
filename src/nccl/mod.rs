//! Communicators: one rank of a group of NCCL's, and what it does with the others.
//!
//! NCCL's calls take as long as the other ranks let them, so that they are made outside the library
//! (`thread::outside`): a shutdown, or whoever waits for those who are inside, does not wait for another
//! process. One call at a time works with a communicator, as NCCL wants it; asking whether it failed and
//! aborting it need not wait for that. Whoever ends it takes NCCL's handle out, so that it ends once.

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
use crate::gpu::external_life::Standing;
use crate::gpu::external_registry::HeldStream;
use crate::gpu::stream::{self, Stream};
use crate::runtime::{self, Runtime};
use crate::sanitizer::{self, Point};
use context::Context;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// NCCL has not made it yet.
const JOINING: u32 = 0;
/// In use.
const LIVE: u32 = 1;
/// A destroy waits for its work.
const LEAVING: u32 = 2;
/// Broken off.
const ABORTED: u32 = 3;

/// So long an abort lets a call that is under way come to its end, before it ends NCCL's handle beside it.
const PATIENCE: Duration = Duration::from_millis(100);

/// One rank of a group.
pub struct Communicator {
    functions: &'static Functions,
    context: Context,
    device: i32,
    rank: i32,
    ranks: i32,
    /// NCCL's handle; NULL: not yet, or no more.
    comm: AtomicPtr<c_void>,
    state: AtomicU32,
    /// A call works with it.
    busy: AtomicBool,
    /// Threads that ask it how it is.
    askers: AtomicU32,
    /// The stream of its last work.
    last: Mutex<Option<HeldStream>>,
}

/// Why a communicator cannot be used.
fn unusable(state: u32) -> Error {
    Error::InvalidState(match state {
        ABORTED => "the communicator was aborted: destroy it, and make a new one",
        LEAVING => "the communicator is being destroyed",
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
            askers: AtomicU32::new(0),
            last: Mutex::new(Rank::LEAF, None),
        }
    }

    /// A stream is the one of its last work.
    fn note_last(&self, stream: &Stream) {
        let before = self.last.lock().replace(HeldStream::new(stream));
        drop(before);
    }

    /// The stream of its last work, for a thread that is inside since.
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

    /// Changes the state; false: it was another than `from`.
    fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    fn try_hold(&self) -> bool {
        !self.busy.swap(true, Ordering::SeqCst)
    }

    fn let_go(&self) {
        self.busy.store(false, Ordering::SeqCst);
    }

    /// Waits until no other call works with it; outside the library.
    fn hold(&self) -> Result<()> {
        loop {
            self.require_live()?;
            if self.try_hold() {
                // Who ends it has changed the state before it looks whether a call is under way.
                return self.require_live().inspect_err(|_| self.let_go());
            }
            sync::nap();
        }
    }

    /// Waits while NCCL works on it in the background, which it does where NCCL_COMM_BLOCKING is 0; outside
    /// the library. The caller holds it.
    fn settle(&self, call: &'static str, state: u32) -> Result<()> {
        loop {
            if self.state() != state {
                return Err(unusable(self.state()));
            }
            let mut result: c_int = code::SUCCESS;
            let comm = self.comm.load(Ordering::SeqCst);
            // SAFETY: alive: whoever ends it waits for its holder; `result` is writable.
            let asked = unsafe { (self.functions.async_error)(comm, &mut result) };
            self.functions.check("ncclCommGetAsyncError", asked)?;
            if result != code::IN_PROGRESS {
                return Ok(self.functions.check(call, result)?);
            }
            sync::nap();
        }
    }

    /// The same after a call, which says whether there is anything to wait for.
    fn settled(&self, call: &'static str, result: i32) -> Result<()> {
        if result == code::IN_PROGRESS { self.settle(call, LIVE) } else { Ok(()) }
    }

    /// An error if it failed meanwhile.
    pub fn query(&self) -> Result<()> {
        self.askers.fetch_add(1, Ordering::SeqCst);
        let state = self.state();
        let comm = self.comm.load(Ordering::SeqCst);
        let outcome = match state {
            LIVE | LEAVING if !comm.is_null() => {
                let mut result: c_int = code::SUCCESS;
                // SAFETY: alive: whoever ends it waits for those who ask; `result` is writable.
                let asked = unsafe { (self.functions.async_error)(comm, &mut result) };
                let asked = self.functions.check("ncclCommGetAsyncError", asked);
                asked.and_then(|()| self.functions.check("a collective of NCCL's", result))
            }
            _ => Ok(()),
        };
        self.askers.fetch_sub(1, Ordering::SeqCst);
        match state {
            LIVE | LEAVING => Ok(outcome?),
            state => Err(unusable(state)),
        }
    }

    /// NCCL's handle, to be ended by the caller alone; NULL: another has it.
    fn take(&self) -> Comm {
        let comm = self.comm.swap(std::ptr::null_mut(), Ordering::SeqCst);
        // They make one short call.
        while self.askers.load(Ordering::SeqCst) > 0 {
            sync::yield_now();
        }
        comm
    }

    /// Breaks its work off, also while a call hangs in it.
    pub fn abort(&self, inside: &Inside) -> Result<()> {
        if !self.change(LIVE, ABORTED) && !self.change(LEAVING, ABORTED) {
            return match self.state() {
                ABORTED => Ok(()),
                state => Err(unusable(state)),
            };
        }
        // SAFETY: nothing of the runtime is used any more.
        unsafe { thread::outside(inside, || self.end_at_once()) }
    }

    /// Ends NCCL's handle with all that hangs in it. A call that is under way is given time to end: with
    /// NCCL_COMM_BLOCKING=0 it notices. Otherwise NCCL tells it, as it does when PyTorch's watchdog aborts.
    fn end_at_once(&self) -> Result<()> {
        let start = Instant::now();
        let mut held = self.try_hold();
        while !held && start.elapsed() < PATIENCE {
            sync::nap();
            held = self.try_hold();
        }
        let comm = self.take();
        let outcome = if comm.is_null() {
            Ok(())
        } else {
            // SAFETY: nobody else ends it.
            let result = self.context.within(|_| unsafe { (self.functions.abort)(comm) });
            self.functions.check("ncclCommAbort", result)
        };
        if held {
            self.let_go();
        }
        Ok(outcome?)
    }

    /// Waits for its work and ends it. `true`: it was this call that did, so that its handle goes.
    pub fn leave(&self, inside: &Inside, runtime: &Runtime) -> Result<()> {
        if self.state() == ABORTED {
            return Ok(());
        }
        if !self.change(LIVE, LEAVING) {
            return Err(unusable(self.state()));
        }
        let generation = runtime.generation;
        let drained = match self.begin_drain(runtime) {
            Ok(None) => Ok(()),
            Ok(Some(event)) => self.drain(inside, generation, event, self.point(runtime)),
            Err(error) => Err(error),
        };
        // A device that is lost never gets to the end. Whatever else there was, NCCL waits by itself.
        let lost = drained.err().filter(|error| matches!(error, Error::Cuda(e) if e.is_sticky()));
        let is_lost = lost.is_some();
        // SAFETY: nothing of the runtime is used any more.
        let ended = unsafe { thread::outside(inside, || self.end(is_lost)) };
        lost.map_or(ended, Err)
    }

    /// Ends NCCL's handle; at once if its work failed, which would be waited for in vain.
    fn end(&self, is_lost: bool) -> Result<()> {
        if is_lost || self.query().is_err() {
            return self.end_at_once();
        }
        while !self.try_hold() {
            if self.state() == ABORTED {
                return Ok(());
            }
            sync::nap();
        }
        let comm = self.take();
        let outcome = if comm.is_null() {
            Ok(())
        } else {
            // SAFETY: nobody else ends it.
            let result = self.context.within(|_| unsafe { (self.functions.destroy)(comm) });
            self.functions.check("ncclCommDestroy", result)
        };
        self.let_go();
        Ok(outcome?)
    }

    /// An event behind its work; none: there is nothing to wait for, or what waits for a capture.
    fn begin_drain(&self, runtime: &Runtime) -> Result<Option<CUevent>> {
        let Some(last) = self.last() else { return Ok(None) };
        if last.is_per_thread()
            || last.is_external() && !matches!(last.standing(), Standing::Alive(_))
        {
            // Nobody can name it here; NCCL waits by itself.
            return Ok(None);
        }
        let device = runtime.device(self.device)?;
        let event = device.events.take_untimed(device)?;
        match last.unless_captured(runtime, || last.record(runtime, event)) {
            Ok(Some(())) => Ok(Some(event)),
            other => {
                device.events.give_untimed(event);
                other.map(|_| None)
            }
        }
    }

    /// By which the sanitizer knows the end of its work, in captures another than beside them: no
    /// event has such a key, since handles are even.
    fn key(&self, runtime: &Runtime, stream: &Stream) -> Result<u64> {
        let in_capture = u64::from(stream.is_capturing(runtime)?);
        Ok(self.own_key() + 2 * in_capture)
    }

    fn own_key(&self) -> u64 {
        std::ptr::from_ref(self) as u64 + 1
    }

    /// All that the stream of its last work holds, if anybody watches.
    fn point(&self, runtime: &Runtime) -> Option<Point> {
        let last = self.last()?;
        sanitizer::point_of_stream(runtime, &last)
    }

    /// Waits for an event, which goes back, or until the communicator was aborted. `over`: what the host
    /// knows once it is reached.
    fn drain(
        &self,
        inside: &Inside,
        generation: u64,
        event: CUevent,
        over: Option<Point>,
    ) -> Result<()> {
        loop {
            let now = runtime::existing(inside).filter(|now| now.generation == generation);
            let Some(runtime) = now else { return Ok(()) };
            // SAFETY: a live event of this runtime.
            let asked = stream::finished(unsafe { runtime.driver().cuEventQuery(event) });
            let is_over = !matches!(asked, Ok(false)) || self.state() == ABORTED;
            // Work that failed need not come to its end.
            if is_over || self.query().is_err() {
                runtime.device(self.device)?.events.give_untimed(event);
                if let Ok(true) = asked {
                    sanitizer::reached(over);
                }
                return asked.map(|_| ());
            }
            // SAFETY: the runtime is looked for anew.
            unsafe { thread::outside(inside, sync::nap) };
        }
    }

    /// At a shutdown, which waits for all work: as destroy, but for a call that hangs. Does it count as
    /// forgotten?
    pub fn close(&self) -> bool {
        if self.change(JOINING, ABORTED) {
            // Its init is under way, gives no handle, and ends it.
            return false;
        }
        let before = self.state.swap(ABORTED, Ordering::SeqCst);
        if before == ABORTED {
            return true;
        }
        let is_free = self.try_hold();
        if is_free {
            self.let_go();
        }
        // Nobody is told.
        let _ = if is_free { self.end_quietly() } else { self.end_at_once() };
        true
    }

    fn end_quietly(&self) -> Result<()> {
        let comm = self.comm.load(Ordering::SeqCst);
        let mut result: c_int = code::SUCCESS;
        if !comm.is_null() {
            // SAFETY: alive: the others have left the library, or cannot use it any more.
            unsafe { (self.functions.async_error)(comm, &mut result) };
        }
        let comm = self.take();
        if comm.is_null() {
            return Ok(());
        }
        let is_well = result == code::SUCCESS;
        let end = if is_well { self.functions.destroy } else { self.functions.abort };
        // SAFETY: nobody else ends it.
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
            // SAFETY: nobody else has it.
            self.context.within(|_| unsafe { (self.functions.abort)(comm) });
        }
    }
}
