//! The registry of external streams. A stream stays here until its work is over and nothing refers
//! to it.
//!
//! A stream whose work is over may still be referred to by handles, arenas, blocks that it used,
//! threads whose current stream it is, and graphs that were launched on it. Rare references hold it
//! ([`HeldStream`]). References of hot paths do not count; instead they are searched for: each time
//! that a number of streams were added, for all streams at once, which costs a constant for each.
//!
//! A stream is removed in three steps. (1) It is over and not held: from then on only a lookup in
//! this table finds it, which resets the state. (2) No call is left that may have found it before
//! (`retired.rs`, by a retired [`GracePeriod`]), so that all references to it are visible. (3) The
//! search finds no reference: the stream is retired.

use crate::base::error::{Error, Result};
use crate::base::retired::{List, Reclaimable};
use crate::base::thread::{self, try_box};
use crate::driver::sys::CUevent;
use crate::gpu::current;
use crate::gpu::external_life::UNKNOWN;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::{PER_THREAD, Stream, Streams};
use crate::observe::table::Table;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Fewest added streams between two searches.
const MIN_ADDED: usize = 64;

const NO_ROOM: Error = Error::OutOfHostMemory("a stream");

/// Searches of all devices are numbered.
static SEARCHES: AtomicU64 = AtomicU64::new(0);

/// The number of holders of a stream, including itself, plus [`GRACE_PERIOD`] for a
/// [`GracePeriod`]. The count lives as long as any of them, because holders may outlive the
/// runtime.
#[derive(Debug)]
pub(crate) struct Holders(*const AtomicU32);

// SAFETY: an atomic count.
unsafe impl Send for Holders {}
// SAFETY: as above.
unsafe impl Sync for Holders {}

impl Holders {
    /// For streams that stay until shutdown: not counted.
    pub(crate) const NONE: Holders = Holders(std::ptr::null());

    /// The reference of the stream itself.
    pub(crate) fn new() -> Result<Holders> {
        Ok(Holders(Box::into_raw(try_box(AtomicU32::new(1), "a stream")?)))
    }

    fn count(&self) -> Option<&AtomicU32> {
        // SAFETY: NULL, or it lives as long as this reference.
        unsafe { self.0.as_ref() }
    }

    fn share(&self) -> Holders {
        self.add(1);
        Holders(self.0)
    }

    /// Does nothing hold the stream? A grace period does not.
    fn are_none(&self) -> bool {
        self.count().is_some_and(|count| count.load(Ordering::Acquire) % GRACE_PERIOD == 1)
    }

    /// Is a call left that may have found the stream before the grace period?
    fn in_grace_period(&self) -> bool {
        self.count().is_some_and(|count| count.load(Ordering::Acquire) >= GRACE_PERIOD)
    }

    /// Begins a grace period of a stream that was made in the era `born` and has none.
    fn begin_grace_period(&self, born: u64) -> Result<Box<Reclaimable<GracePeriod>>> {
        // Without host memory the period is dropped, which subtracts it again.
        self.add(GRACE_PERIOD);
        let period = GracePeriod(ManuallyDrop::new(Holders(self.0)));
        try_box(Reclaimable::new(period, born), "a stream")
    }

    fn add(&self, number: u32) {
        if let Some(count) = self.count() {
            count.fetch_add(number, Ordering::AcqRel);
        }
    }

    /// Subtracts from the count; the last reference frees it.
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

/// In the count of holders: a grace period.
const GRACE_PERIOD: u32 = 1 << 31;

/// Retired to be dropped once no call is left that may have found the stream before.
struct GracePeriod(ManuallyDrop<Holders>);

impl Drop for GracePeriod {
    fn drop(&mut self) {
        self.0.take(GRACE_PERIOD);
    }
}

/// A reference that keeps a stream alive.
#[derive(Debug)]
pub struct HeldStream(*const Stream, #[expect(dead_code, reason = "it counts")] Holders);

// SAFETY: streams are shared by all threads.
unsafe impl Send for HeldStream {}
// SAFETY: as above.
unsafe impl Sync for HeldStream {}

impl HeldStream {
    /// Holds a stream.
    pub fn new(stream: &Stream) -> HeldStream {
        HeldStream(stream, stream.holders.share())
    }

    /// Is it this stream?
    pub fn is(&self, stream: &Stream) -> bool {
        std::ptr::eq(self.0, stream)
    }
}

impl Deref for HeldStream {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        // SAFETY: held; nothing dereferences a holder after the devices are dropped.
        unsafe { &*self.0 }
    }
}

/// The table: a hash table of streams by their handle or number.
#[allow(clippy::vec_box, reason = "streams must not move when a list grows")]
pub(crate) struct ExternalStreams {
    lists: Vec<Vec<Box<Reclaimable<Stream>>>>,
    count: usize,
    /// Streams that were added since the last search, and how many are needed for the next.
    added: usize,
    next_search: usize,
}

impl ExternalStreams {
    /// An empty table.
    pub(crate) const fn new() -> ExternalStreams {
        ExternalStreams { lists: Vec::new(), count: 0, added: 0, next_search: MIN_ADDED }
    }

    /// The bucket of a stream: by the driver's number for a per-thread stream, otherwise by the
    /// handle.
    fn list(&self, native: usize, driver_id: Option<u64>) -> Option<usize> {
        let key = if native == PER_THREAD { driver_id? } else { native as u64 };
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        // The number of buckets is a power of two, or 0.
        Some(mixed as usize & self.lists.len().checked_sub(1)?)
    }

    /// Streams that may have this handle and number, the newest first.
    pub(crate) fn candidates(
        &self,
        native: usize,
        driver_id: Option<u64>,
    ) -> impl Iterator<Item = &Stream> {
        let list = self.list(native, driver_id).map(|list| &self.lists[list]);
        list.into_iter().flatten().rev().map(|stream| &***stream)
    }

    /// All streams.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Reclaimable<Stream>> {
        self.lists.iter().flatten().map(|stream| &**stream)
    }

    /// Number of streams.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Adds a stream.
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

    /// Doubles the number of buckets; on failure the table is unchanged.
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

    /// Removes the streams for which `is_it` is true, as far as there is host memory for the list.
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
            // SAFETY: the library's event, and no thread can use it any more.
            let _ = unsafe { driver.cuEventDestroy(event as CUevent) };
        }
    }
}

/// Marks streams to which something refers.
#[derive(Clone, Copy)]
pub(crate) struct Marker(u64);

impl Marker {
    /// Marks a stream; NULL is ignored.
    pub(crate) fn mark(self, stream: *const Stream) {
        // SAFETY: NULL, or the object that is searched refers to it, so that it is alive.
        if let Some(stream) = unsafe { stream.as_ref() } {
            // A search of another device may be under way.
            stream.mark.fetch_max(self.0, Ordering::Relaxed);
        }
    }
}

impl Stream {
    /// Is it over, not held, and without heaps? The table is locked.
    fn is_unused(&self) -> bool {
        let has_heap = |place: &AtomicPtr<c_void>| !place.load(Ordering::Acquire).is_null();
        self.is_over()
            && !self.external_life.has_handle()
            && self.holders.are_none()
            && !self.heaps.iter().any(has_heap)
    }
}

/// Marks the streams that blocks and pending work name.
pub(crate) type MarkStreams = fn(&Gpus, Marker);

/// Removes the borrowed handle of a stream that is dropped.
pub(crate) type ForgetHandle = fn(usize);

/// Installed by `runtime`.
pub(crate) static MARK_STREAMS: Table<MarkStreams> = Table::new();
/// Installed by `ffi` with the first borrowed handle.
pub(crate) static FORGET_HANDLE: Table<ForgetHandle> = Table::new();

impl Streams {
    /// Removes streams that are over and without references, if enough streams were added; with
    /// `anyhow` in any case. The caller holds no lock.
    pub(crate) fn forget_ended(&self, gpus: &Gpus, anyhow: bool) {
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
            self.mark_references(gpus, Marker(search));
            self.drop_unmarked(search);
        }
        thread::collect();
        self.searching.store(false, Ordering::Release);
    }

    /// Begins the grace periods of unused streams. Returns true if a grace period of one is over.
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

    /// Marks all streams to which something refers without holding them.
    fn mark_references(&self, gpus: &Gpus, marker: Marker) {
        current::each(self.generation(), |stream| marker.mark(stream));
        if let Some(mark_streams) = MARK_STREAMS.get() {
            mark_streams(gpus, marker);
        }
    }

    fn drop_unmarked(&self, search: u64) {
        let gone = self.external.lock().take(|stream| {
            let is_marked = stream.mark.load(Ordering::Relaxed) >= search;
            let is_seen =
                !stream.was_unused.load(Ordering::Relaxed) || stream.holders.in_grace_period();
            !is_seen && !is_marked && stream.is_unused()
        });
        for stream in gone {
            let handle = stream.handle.load(Ordering::Acquire);
            if let Some(forget) = FORGET_HANDLE.get().filter(|_| handle != 0) {
                forget(handle);
            }
            thread::retire(stream);
        }
    }
}
