//! The streams of others that are known, until they are over and nothing names them.
//!
//! A stream that is over for good is named still by what was not given back: handles, arenas, blocks that
//! it used, threads whose current stream it is, graphs that were launched on it. Those that are rare hold it
//! ([`HeldStream`]); those on the ways that every call takes do not count, and are looked for instead: each time so many
//! streams have come, all of them at once, which costs a constant for each.
//!
//! A stream goes in three steps. It is over and not held: from then on only a search of this table
//! leads to it, which takes it back. No call that may have found it before is left (`retired.rs`, by an
//! object that is retired for it, [`GracePeriod`]): so what names it still was written before. It is looked for
//! and not found: it is retired.

use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::retired::{List, Reclaimable};
use crate::base::thread::{self, try_box};
use crate::driver::sys::CUevent;
use crate::gpu::current;
use crate::gpu::external_life::UNKNOWN;
use crate::gpu::stream::{PER_THREAD, Stream, Streams};
use crate::memory::arena::Arena;
use crate::runtime::Runtime;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// At least so many streams come between two searches.
const MIN_ADDED: usize = 64;

const NO_ROOM: Error = Error::OutOfHostMemory("a stream");

/// Searches in the tables of devices are numbered.
static SEARCHES: AtomicU64 = AtomicU64::new(0);

/// How many hold a stream, itself included, and [`GRACE_PERIOD`] for a [`GracePeriod`]. It is there as long as any of
/// them: what holds streams may go after the runtime.
#[derive(Debug)]
pub(crate) struct Holders(*const AtomicU32);

// SAFETY: a number that all threads may change.
unsafe impl Send for Holders {}
// SAFETY: as above.
unsafe impl Sync for Holders {}

impl Holders {
    /// Of a stream that stays until shutdown: nobody counts.
    pub(crate) const NONE: Holders = Holders(std::ptr::null());

    /// The stream itself.
    pub(crate) fn new() -> Result<Holders> {
        Ok(Holders(Box::into_raw(try_box(AtomicU32::new(1), "a stream")?)))
    }

    fn count(&self) -> Option<&AtomicU32> {
        // SAFETY: NULL, or there as long as this.
        unsafe { self.0.as_ref() }
    }

    fn share(&self) -> Holders {
        self.add(1);
        Holders(self.0)
    }

    /// Does nothing hold the stream? A watch does not.
    fn are_none(&self) -> bool {
        self.count().is_some_and(|count| count.load(Ordering::Acquire) % GRACE_PERIOD == 1)
    }

    /// Is a call left that may have found the stream before it was watched?
    fn in_grace_period(&self) -> bool {
        self.count().is_some_and(|count| count.load(Ordering::Acquire) >= GRACE_PERIOD)
    }

    /// A watch, for a stream that is not watched and was made in an era.
    fn begin_grace_period(&self, born: u64) -> Result<Box<Reclaimable<GracePeriod>>> {
        let period = try_box(
            Reclaimable::new(GracePeriod(ManuallyDrop::new(Holders(self.0))), born),
            "a stream",
        )?;
        self.add(GRACE_PERIOD);
        Ok(period)
    }

    fn add(&self, number: u32) {
        if let Some(count) = self.count() {
            count.fetch_add(number, Ordering::AcqRel);
        }
    }

    /// Takes a number back; the last frees the count.
    fn take(&self, number: u32) {
        if self.count().is_some_and(|count| count.fetch_sub(number, Ordering::AcqRel) == number) {
            // SAFETY: made by `new` with Box::into_raw, and this was the last reference.
            drop(unsafe { Box::from_raw(self.0.cast_mut()) });
        }
    }
}

impl Drop for Holders {
    fn drop(&mut self) {
        self.take(1);
    }
}

/// In the count of holders: a watch.
const GRACE_PERIOD: u32 = 1 << 31;

/// Dropped once no call is left that may have found a stream before this was retired.
struct GracePeriod(ManuallyDrop<Holders>);

impl Drop for GracePeriod {
    fn drop(&mut self) {
        self.0.take(GRACE_PERIOD);
    }
}

/// A stream that stays as long as this.
#[derive(Debug)]
pub struct HeldStream(*const Stream, #[expect(dead_code, reason = "it counts")] Holders);

// SAFETY: streams are shared by all threads.
unsafe impl Send for HeldStream {}
// SAFETY: as above.
unsafe impl Sync for HeldStream {}

impl HeldStream {
    /// Holds it.
    pub fn new(stream: &Stream) -> HeldStream {
        HeldStream(stream, stream.holders.share())
    }

    /// Is it this one?
    pub fn is(&self, stream: &Stream) -> bool {
        std::ptr::eq(self.0, stream)
    }
}

impl Deref for HeldStream {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        // SAFETY: held, and what holds streams goes before the runtime.
        unsafe { &*self.0 }
    }
}

/// The table: lists, by what streams are known by.
#[allow(clippy::vec_box, reason = "streams must not move when a list grows")]
pub(crate) struct ExternalStreams {
    lists: Vec<Vec<Box<Reclaimable<Stream>>>>,
    count: usize,
    /// Streams that came since the last search, and so many are wanted before the next.
    added: usize,
    next_search: usize,
}

impl ExternalStreams {
    /// No stream.
    pub(crate) const fn new() -> ExternalStreams {
        ExternalStreams { lists: Vec::new(), count: 0, added: 0, next_search: MIN_ADDED }
    }

    /// The list of a stream: of a thread's own the driver's number says which, handles of others tell more.
    fn list(&self, native: usize, driver_id: Option<u64>) -> Option<usize> {
        let key = if native == PER_THREAD { driver_id? } else { native as u64 };
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        // A power of two, or none.
        Some(mixed as usize & self.lists.len().checked_sub(1)?)
    }

    /// Streams that may be known so, the newest first.
    pub(crate) fn candidates(
        &self,
        native: usize,
        driver_id: Option<u64>,
    ) -> impl Iterator<Item = &Stream> {
        let list = self.list(native, driver_id).map(|list| &self.lists[list]);
        list.into_iter().flatten().rev().map(|stream| &***stream)
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Reclaimable<Stream>> {
        self.lists.iter().flatten().map(|stream| &**stream)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Adds one.
    pub(crate) fn add(&mut self, stream: Box<Reclaimable<Stream>>) -> Result<&Stream> {
        if self.count >= self.lists.len() {
            self.enlarge()?;
        }
        let list = self.list(stream.native() as usize, Some(stream.driver_id)).ok_or(NO_ROOM)?;
        self.lists[list].try_reserve(1).map_err(|_| NO_ROOM)?;
        self.lists[list].push(stream);
        self.count += 1;
        self.added += 1;
        self.lists[list].last().map(|stream| &***stream).ok_or(NO_ROOM)
    }

    /// Twice as many lists; on failure everything is as it was.
    fn enlarge(&mut self) -> Result<()> {
        let length = (self.lists.len() * 2).max(16);
        let mut larger = ExternalStreams::new();
        larger.lists.try_reserve_exact(length).map_err(|_| NO_ROOM)?;
        larger.lists.resize_with(length, Vec::new);
        let mut counts: Vec<usize> = Vec::new();
        counts.try_reserve_exact(length).map_err(|_| NO_ROOM)?;
        counts.resize(length, 0);
        for stream in self.all() {
            let list = larger.list(stream.native() as usize, Some(stream.driver_id));
            list.into_iter().for_each(|list| counts[list] += 1);
        }
        for (list, count) in larger.lists.iter_mut().zip(counts) {
            list.try_reserve_exact(count).map_err(|_| NO_ROOM)?;
        }
        for stream in self.lists.drain(..).flatten() {
            if let Some(list) = larger.list(stream.native() as usize, Some(stream.driver_id)) {
                larger.lists[list].push(stream);
            }
        }
        self.lists = larger.lists;
        Ok(())
    }

    /// Takes out those that `is_it` says, as many as there is room for.
    #[allow(clippy::vec_box, reason = "they go as they are")]
    fn take(&mut self, is_it: impl Fn(&Stream) -> bool) -> Vec<Box<Reclaimable<Stream>>> {
        let mut taken = Vec::new();
        for list in &mut self.lists {
            let mut index = 0;
            while index < list.len() {
                if is_it(&list[index]) && taken.try_reserve(1).is_ok() {
                    taken.push(list.remove(index));
                    self.count -= 1;
                } else {
                    index += 1;
                }
            }
        }
        taken
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let event = self.external_life.take_event();
        if let Some(driver) = self.driver.filter(|_| event > UNKNOWN) {
            // SAFETY: ours, and nobody can name it any more.
            let _ = unsafe { driver.cuEventDestroy(event as CUevent) };
        }
    }
}

/// Marks streams that are named somewhere.
#[derive(Clone, Copy)]
pub(crate) struct Marker(u64);

impl Marker {
    /// It is named; NULL is none.
    pub(crate) fn mark(self, stream: *const Stream) {
        // SAFETY: NULL, or named by who is looked at, so that it is there.
        if let Some(stream) = unsafe { stream.as_ref() } {
            // Another device's search may be under way.
            stream.mark.fetch_max(self.0, Ordering::Relaxed);
        }
    }
}

impl Stream {
    /// Is it over, and held by nobody? The table is locked.
    fn is_unused(&self) -> bool {
        let has_arena = |place: &AtomicPtr<Arena>| !place.load(Ordering::Acquire).is_null();
        self.is_over()
            && !self.external_life.has_handle()
            && self.holders.are_none()
            && !self.arenas.iter().any(has_arena)
    }
}

/// How the door takes the borrowed handle of a stream back that goes.
static FORGET_HANDLE: Mutex<Option<fn(usize)>> = Mutex::new(Rank::LEAF, None);

/// Says so.
pub fn on_end(forget: fn(usize)) {
    *FORGET_HANDLE.lock() = Some(forget);
}

impl Streams {
    /// Has streams go that are over and named nowhere, if it is worth it; `anyhow`: in any case. The caller
    /// holds no lock.
    pub(crate) fn forget_ended(&self, runtime: &Runtime, anyhow: bool) {
        {
            let external = self.external.lock();
            if external.count == 0 || !anyhow && external.added < external.next_search {
                return;
            }
        }
        if self.searching.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.find_unused() {
            let search = SEARCHES.fetch_add(1, Ordering::AcqRel) + 1;
            self.mark_references(runtime, Marker(search));
            self.drop_unmarked(search);
        }
        thread::collect();
        self.searching.store(false, Ordering::Release);
    }

    /// Begins to watch those that are left; is one that was watched seen by no call any more?
    fn find_unused(&self) -> bool {
        let mut periods = List::new();
        let mut found = false;
        {
            let mut external = self.external.lock();
            external.added = 0;
            for stream in external.all() {
                let is_unused = stream.is_unused();
                if !is_unused || stream.holders.in_grace_period() {
                    stream.was_unused.fetch_and(is_unused, Ordering::Relaxed);
                } else if stream.was_unused.load(Ordering::Relaxed) {
                    found = true;
                } else if let Ok(period) = stream.holders.begin_grace_period(stream.born()) {
                    stream.was_unused.store(true, Ordering::Relaxed);
                    periods.push(period);
                }
            }
            external.next_search = MIN_ADDED.max(external.count / 2);
        }
        thread::retire_all(periods);
        found
    }

    /// Marks all streams that are named by who does not hold them.
    fn mark_references(&self, runtime: &Runtime, marker: Marker) {
        current::each(self.generation(), |stream| marker.mark(stream));
        for device in &runtime.devices {
            device.memory.mark_streams(marker);
        }
        runtime.host.mark_streams(marker);
    }

    fn drop_unmarked(&self, search: u64) {
        let gone = self.external.lock().take(|stream| {
            let is_marked = stream.mark.load(Ordering::Relaxed) >= search;
            let is_seen =
                !stream.was_unused.load(Ordering::Relaxed) || stream.holders.in_grace_period();
            !is_seen && !is_marked && stream.is_unused()
        });
        let forget = *FORGET_HANDLE.lock();
        for stream in gone {
            let handle = stream.handle.load(Ordering::Acquire);
            if let Some(forget) = forget.filter(|_| handle != 0) {
                forget(handle);
            }
            thread::retire(stream);
        }
    }
}
