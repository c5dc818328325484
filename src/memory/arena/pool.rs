//! Private pools: memory that only allocations routed to the pool get.
//!
//! A pool is a number with references: of its handle, and of each thread that is routed to it. A
//! pool owns nothing; each arena stores the pool that it belongs to. When the last reference is
//! dropped, the arenas stay without a pool. Their memory is released with the next reclaim, or they
//! serve a new pool. The entries of pools are never freed, so that a thread that ends drops its
//! references without a driver call or a lock.

use crate::base::error::{Error, Result};
use crate::base::lock::{Lock, Mutex};
use crate::base::rank::Rank;
use crate::memory::backing::pluggable::Pluggable;
use crate::memory::config::pool_id::{GIVEN, MOST_GIVEN, OF_GRAPH, PLACE_BITS, PoolId};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Entries of the first chunk; each further chunk has twice as many as the one before.
const FIRST_CHUNK: usize = 256;
const CHUNKS: usize = 16;
/// Flag of a pool: other allocations may use its free blocks before they fail.
pub const USE_ON_OOM: u32 = 1;

/// Flag of a pool: its blocks are whole segments.
pub const NO_SPLIT: u32 = 2;

/// Internal flag of a pool: its segments come from an allocator of the host.
const FOREIGN: u32 = 1 << 30;
/// Internal flag of a pool: it sleeps.
const ASLEEP: u32 = 1 << 31;
/// Internal flag of a pool: it was used on a stream that the host captured through the driver. The
/// library does not know that capture's graph.
const CAPTURED: u32 = 1 << 29;

struct Place {
    /// The pool of this entry; 0: vacant.
    owner: AtomicU64,
    /// 0: the pool is dead, or not yet initialised.
    references: AtomicU32,
    /// The number of these references that graphs and captures hold.
    graphs: AtomicU32,
    flags: AtomicU32,
    /// The source of its segments; `None`: the driver.
    source: Mutex<Option<Pluggable>>,
    /// Held while the pool is put to sleep or woken.
    sleep: Lock,
}

impl Place {
    const fn new() -> Place {
        Place {
            owner: AtomicU64::new(0),
            references: AtomicU32::new(0),
            graphs: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            source: Mutex::new(Rank::LEAF, None),
            sleep: Lock::new(Rank::POOL),
        }
    }
}

static FIRST: [Place; FIRST_CHUNK] = [const { Place::new() }; FIRST_CHUNK];
/// Further chunks, allocated on demand and never freed.
static MORE: [AtomicPtr<Place>; CHUNKS - 1] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS - 1];
/// The number of entries.
static PLACES: AtomicUsize = AtomicUsize::new(FIRST_CHUNK);
/// The number of entries in use.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
/// Held while a chunk is allocated.
static GROWING: Mutex<()> = Mutex::new(Rank::LEAF, ());
/// Held while a pool is found or made by the pair of numbers that the host has given.
static PAIRING: Mutex<()> = Mutex::new(Rank::POOL, ());

/// An existing entry.
fn place(index: usize) -> &'static Place {
    let chunk = (index / FIRST_CHUNK + 1).ilog2() as usize;
    let offset = index - FIRST_CHUNK * ((1 << chunk) - 1);
    let more = chunk.checked_sub(1).map(|chunk| MORE[chunk].load(Ordering::Acquire));
    match more.filter(|places| !places.is_null()) {
        Some(places) => {
            // SAFETY: the chunk has `FIRST_CHUNK << chunk` places.
            let place = unsafe { places.add(offset) };
            // SAFETY: as above, and it is never freed.
            unsafe { &*place }
        }
        None => &FIRST[index % FIRST_CHUNK],
    }
}

/// Allocates another chunk if there are still only `known` entries.
fn grow(known: usize) -> Result<()> {
    const NO_ROOM: Error = Error::OutOfHostMemory("the table of private pools");
    let _held = GROWING.lock();
    let there = PLACES.load(Ordering::Acquire);
    if there > known {
        return Ok(());
    }
    let chunk = (there / FIRST_CHUNK + 1).ilog2() as usize;
    let slot = MORE.get(chunk - 1).ok_or(NO_ROOM)?;
    let mut places: Vec<Place> = Vec::new();
    places.try_reserve_exact(FIRST_CHUNK << chunk).map_err(|_| NO_ROOM)?;
    places.resize_with(FIRST_CHUNK << chunk, Place::new);
    slot.store(Box::into_raw(places.into_boxed_slice()).cast(), Ordering::Release);
    PLACES.store(there + (FIRST_CHUNK << chunk), Ordering::Release);
    Ok(())
}

impl PoolId {
    fn place(self) -> &'static Place {
        place((self.word() & ((1 << PLACE_BITS) - 1)) as usize)
    }

    /// Does a reference exist?
    pub fn is_alive(self) -> bool {
        let place = self.place();
        self != PoolId::DEFAULT
            && place.owner.load(Ordering::Acquire) == self.word()
            && place.references.load(Ordering::Acquire) > 0
    }

    /// Number of references; 0: it is dead.
    pub fn references(self) -> u32 {
        if self.is_alive() { self.place().references.load(Ordering::Acquire) } else { 0 }
    }

    /// May other allocations use its free blocks before they fail?
    pub fn serves_on_oom(self) -> bool {
        self.is_alive() && self.flags() & (USE_ON_OOM | ASLEEP) == USE_ON_OOM
    }

    /// May its unused memory be given back while it is alive and memory is short? Not if replays of
    /// a graph may write it, and not while it sleeps.
    pub(in crate::memory) fn may_shrink(self) -> bool {
        self.is_alive()
            && self.place().graphs.load(Ordering::Acquire) == 0
            && self.flags() & (ASLEEP | CAPTURED) == 0
    }

    /// Does a graph use it that the host captured through the driver, as PyTorch does? The pool is
    /// alive.
    pub(in crate::memory) fn has_host_graph(self) -> bool {
        const OF_HOST: u64 = GIVEN | OF_GRAPH;
        self.word() & OF_HOST == OF_HOST || self.flags() & CAPTURED != 0
    }

    /// Records that a stream on which the pool is used is captured by the host itself.
    pub(in crate::memory) fn note_capture(self) {
        self.place().flags.fetch_or(CAPTURED, Ordering::AcqRel);
    }

    /// Does it sleep?
    pub(in crate::memory) fn is_asleep(self) -> bool {
        self != PoolId::DEFAULT && self.is_alive() && self.flags() & ASLEEP != 0
    }

    /// The lock that is held while the pool is put to sleep or woken.
    pub(in crate::memory) fn sleep_lock(self) -> &'static Lock {
        &self.place().sleep
    }

    /// Sets whether it sleeps, and returns whether it did before.
    pub(in crate::memory) fn set_asleep(self, asleep: bool) -> bool {
        let flags = &self.place().flags;
        let before = match asleep {
            true => flags.fetch_or(ASLEEP, Ordering::AcqRel),
            false => flags.fetch_and(!ASLEEP, Ordering::AcqRel),
        };
        before & ASLEEP != 0
    }

    /// The allocator that its memory comes from, if that is not the driver.
    pub(in crate::memory) fn source(self) -> Option<Pluggable> {
        if self.flags() & FOREIGN == 0 {
            return None;
        }
        let source = self.place().source.lock();
        source.as_ref().filter(|_| self.is_alive()).map(Pluggable::share)
    }

    /// Does its memory come in segments, whatever the settings are?
    pub(in crate::memory) fn wants_segments(self) -> bool {
        self.is_alive() && self.flags() & (NO_SPLIT | FOREIGN) != 0
    }

    /// Are its blocks whole segments?
    pub fn keeps_whole(self) -> bool {
        self.is_alive() && self.flags() & NO_SPLIT != 0
    }

    fn flags(self) -> u32 {
        self.place().flags.load(Ordering::Acquire)
    }

    /// Sets the flags that the host may set. [`NO_SPLIT`] cannot be taken back.
    pub fn set_flags(self, flags: u32) -> Result<()> {
        let all = USE_ON_OOM | NO_SPLIT;
        let takes_back = |before: u32| before & !flags & NO_SPLIT != 0;
        let change = |before| (!takes_back(before)).then_some(before & !all | flags & all);
        let set = self.place().flags.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
        set.map(|_| ()).map_err(|_| {
            Error::InvalidState(
                "the pool has TCUDA_MEM_POOL_NO_SPLIT, which cannot be taken back; keep it",
            )
        })
    }

    /// Fails while the pool sleeps.
    pub(in crate::memory) fn require_awake(self) -> Result<()> {
        if self.is_asleep() {
            return Err(Error::InvalidState(
                "the private pool sleeps; call tcuda_mem_pool_wake before allocating from it",
            ));
        }
        Ok(())
    }
}

/// A counted reference to a pool.
#[derive(Debug)]
pub struct Pool {
    id: PoolId,
    /// Does a graph or a capture hold it?
    of_graph: bool,
}

impl Pool {
    /// Makes a pool with flags and an optional source of memory.
    pub fn new(flags: u32, source: Option<Pluggable>) -> Result<Pool> {
        static NEXT: AtomicU64 = AtomicU64::new(MOST_GIVEN + 1);
        Pool::claim_place(NEXT.fetch_add(1, Ordering::Relaxed), 0, flags, source)
    }

    /// Makes a pool for a capture.
    pub fn of_graph() -> Result<Pool> {
        static NEXT: AtomicU64 = AtomicU64::new(MOST_GIVEN + 1);
        Pool::claim_place(NEXT.fetch_add(1, Ordering::Relaxed), OF_GRAPH, 0, None)
    }

    /// A reference to the pool to which the host has given this pair of numbers. It is made if none
    /// is alive, with `source`, which is an error if one is.
    pub fn of_pair(pair: (u64, u64), source: Option<Pluggable>) -> Result<Pool> {
        let (kind, number) = match pair {
            (0, number @ 1..=MOST_GIVEN) => (GIVEN, number),
            (number @ 1..=MOST_GIVEN, 0) => (GIVEN | OF_GRAPH, number),
            (first, second) => {
                let (name, value) = if first == 0 { ("id1", second) } else { ("id0", first) };
                return Err(Error::OutOfRange {
                    name,
                    value: value.try_into().unwrap_or(i64::MAX),
                    allowed: "one of the two numbers is 0, the other 1 to 2^30 - 1",
                });
            }
        };
        loop {
            let pairing = PAIRING.lock();
            let found = Pool::find(kind | number << PLACE_BITS);
            if found.is_none() {
                source.iter().for_each(Pluggable::begin_use);
                return Pool::claim_place(number, kind, 0, source);
            }
            // The last reference to a pool may close a library: no lock is held when it is dropped.
            drop(pairing);
            match found {
                Some(Ok(_)) if source.is_some() => {
                    return Err(Error::InvalidState(
                        "a pool with these numbers exists; its allocator cannot change: pass NULL",
                    ));
                }
                Some(Ok(pool)) => return Ok(pool),
                Some(Err(_)) | None => {}
            }
        }
    }

    /// Adds a reference to the live pool whose word is this one, except for its entry. `Err`: its
    /// entry went to another pool meanwhile, which has the reference.
    fn find(word: u64) -> Option<Result<Pool, Pool>> {
        let is_it = |owner: u64| owner >> PLACE_BITS == word >> PLACE_BITS;
        (0..PLACES.load(Ordering::Acquire)).find_map(|index| {
            let place = place(index);
            if !is_it(place.owner.load(Ordering::Acquire)) {
                return None;
            }
            let add = |references: u32| (references > 0).then(|| references + 1);
            place.references.fetch_update(Ordering::AcqRel, Ordering::Relaxed, add).ok()?;
            let owner = place.owner.load(Ordering::Acquire);
            let pool = Pool { id: PoolId::of_word(owner), of_graph: false };
            Some(if is_it(owner) { Ok(pool) } else { Err(pool) })
        })
    }

    /// Finds a vacant entry for a new pool.
    fn claim_place(number: u64, kind: u64, flags: u32, source: Option<Pluggable>) -> Result<Pool> {
        let flags = flags | if source.is_some() { FOREIGN } else { 0 };
        let taken = TAKEN.fetch_add(1, Ordering::Relaxed) + 1;
        loop {
            let places = PLACES.load(Ordering::Acquire);
            // At least a quarter stays vacant, so that the search is short.
            if taken > places / 4 * 3
                && let Err(error) = grow(places)
            {
                TAKEN.fetch_sub(1, Ordering::Relaxed);
                return Err(error);
            }
            for turn in 0..places as u64 {
                let index = (number + turn) % places as u64;
                let id = kind | number << PLACE_BITS | index;
                let place = place(index as usize);
                if place.owner.compare_exchange(0, id, Ordering::AcqRel, Ordering::Relaxed).is_err()
                {
                    continue;
                }
                place.flags.store(flags, Ordering::Relaxed);
                if source.is_some() {
                    *place.source.lock() = source;
                }
                place.references.store(1, Ordering::Release);
                return Ok(Pool { id: PoolId::of_word(id), of_graph: false });
            }
        }
    }

    /// The pool.
    #[inline]
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// Does it sleep?
    pub fn is_asleep(&self) -> bool {
        self.id.is_asleep()
    }

    /// Adds a reference; it counts as a graph's if this one does.
    pub fn share(&self) -> Pool {
        self.share_as(self.of_graph)
    }

    /// Adds a reference that does not count as a graph's.
    pub fn share_for_host(&self) -> Pool {
        self.share_as(false)
    }

    fn share_as(&self, of_graph: bool) -> Pool {
        // This reference keeps the pool alive, so that the entry is still its own.
        let place = self.id.place();
        place.references.fetch_add(1, Ordering::Relaxed);
        if of_graph {
            place.graphs.fetch_add(1, Ordering::Release);
        }
        Pool { id: self.id, of_graph }
    }

    /// Turns this into the reference of a graph or a capture, which may write unused memory as
    /// well.
    pub fn for_graph(mut self) -> Pool {
        if !self.of_graph {
            self.of_graph = true;
            self.id.place().graphs.fetch_add(1, Ordering::Release);
        }
        self
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let place = self.id.place();
        if self.of_graph {
            place.graphs.fetch_sub(1, Ordering::Release);
        }
        if place.references.fetch_sub(1, Ordering::AcqRel) == 1 {
            // It may hold the last reference to a library: no lock is held when it is dropped.
            let is_foreign = self.id.flags() & FOREIGN != 0;
            let source = if is_foreign { place.source.lock().take() } else { None };
            place.owner.store(0, Ordering::Release);
            TAKEN.fetch_sub(1, Ordering::Relaxed);
            drop(source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_lives_as_long_as_a_reference() {
        let pool = Pool::new(USE_ON_OOM, None).unwrap();
        let id = pool.id();
        assert!(id.is_alive() && id.serves_on_oom());
        assert_eq!(id.pair().0, 0);
        assert_eq!(Pool::of_graph().unwrap().id().pair().1, 0);
        let other = pool.share();
        drop(pool);
        assert!(other.id() == id && id.is_alive());
        drop(other);
        assert!(!id.is_alive() && !id.serves_on_oom() && !PoolId::DEFAULT.is_alive());
    }

    #[test]
    fn a_pair_of_numbers_names_one_pool_while_it_lives() {
        let (of_host, of_graph) = ((0, MOST_GIVEN), (MOST_GIVEN, 0));
        let pool = Pool::of_pair(of_host, None).unwrap();
        let same = Pool::of_pair(of_host, None).unwrap();
        let other = Pool::of_pair(of_graph, None).unwrap();
        assert_eq!((pool.id(), pool.id().references()), (same.id(), 2));
        assert_ne!(other.id(), pool.id());
        assert_eq!([pool.id().pair(), other.id().pair()], [of_host, of_graph]);
        let own = Pool::new(0, None).unwrap().id().pair();
        assert!(own.1 > MOST_GIVEN && Pool::of_pair(own, None).is_err(), "no pair is of two pools");
        pool.id().set_flags(USE_ON_OOM).unwrap();
        assert!(same.id().serves_on_oom() && !other.id().serves_on_oom());
        pool.id().set_flags(NO_SPLIT).unwrap();
        assert!(!same.id().serves_on_oom() && same.id().keeps_whole());
        assert!(pool.id().set_flags(USE_ON_OOM).is_err() && same.id().keeps_whole());
        drop((pool, same));
        let pool = Pool::of_pair(of_host, None).unwrap();
        assert_eq!(pool.id().references(), 1);
        for pair in [(0, 0), (1, 1), (MOST_GIVEN + 1, 0), (0, MOST_GIVEN + 1), (u64::MAX, 0)] {
            let refused = Pool::of_pair(pair, None);
            assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{pair:?}");
        }
    }

    #[test]
    fn entries_are_reused_and_numbers_are_not() {
        let mut last = Pool::new(0, None).unwrap().id();
        for _ in 0..20_000 {
            let pool = Pool::new(0, None).unwrap();
            assert!(pool.id().pair().1 > last.pair().1 && !last.is_alive());
            last = pool.id();
        }
        assert!(PLACES.load(Ordering::Relaxed) < 1 << 17);
    }

    #[test]
    fn there_are_as_many_entries_as_needed() {
        let pools: Vec<Pool> = (0..10_000).map(|_| Pool::new(0, None).unwrap()).collect();
        assert!(pools.iter().all(|pool| pool.id().is_alive() && !pool.id().serves_on_oom()));
        let places: std::collections::HashSet<_> =
            pools.iter().map(|pool| std::ptr::from_ref(pool.id().place()) as usize).collect();
        assert_eq!(places.len(), pools.len());
        let ids: Vec<PoolId> = pools.iter().map(Pool::id).collect();
        drop(pools);
        assert!(ids.iter().all(|id| !id.is_alive()));
    }
}
