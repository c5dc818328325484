//! Heaps: the arenas of one stream and pool, for small and for large blocks, under one lock and
//! with one account.
//!
//! The two arenas keep small blocks apart from large ones. What belongs to the stream is common: a
//! block that is counted in one arena may use the headroom that a block of the other has left, and
//! a thread that allocates in both needs one lock.

use crate::base::error::{Error, Result};
use crate::base::place::{try_box_at, write_fields};
use crate::base::retired::Reclaimable;
use crate::base::{thread, waiting};
use crate::gpu::stream::Stream;
use crate::memory::arena::arena_lock::{ArenaLock, HasLock, LockGuard};
use crate::memory::arena::block_index::BlockIndex;
use crate::memory::arena::member::Member;
use crate::memory::arena::segmented::Segments;
use crate::memory::arena::{Arena, ArenaState};
use crate::memory::config::policy::Policy;
use crate::memory::config::pool_id::PoolId;
use crate::memory::config::size::{CLASSES, Class};
use crate::memory::stats::ledger::Account;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};

/// What a heap serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Role {
    /// Its stream, in its pool.
    Serving,
    /// No stream now; the next stream of its pool may have it.
    Idle,
    /// Nothing: the next stream that needs a heap gets it with its memory.
    Spare,
}

/// No graph that the host captured uses its memory.
const NO_HOST_GRAPH: u64 = 0;
/// Such a graph may use its memory at each launch, on any stream.
const HOST_GRAPH: u64 = 1;
/// The number of the first wait for launches.
pub(in crate::memory) const FIRST_WAIT: u64 = 2;

/// The arenas of one stream and pool.
pub struct Heap {
    arenas: [Arena; 2],
    /// Does its memory come in whole segments?
    pub segmented: bool,
    /// [`Role`]. Changes under its lock and the ledger's.
    role: AtomicU8,
    /// The stream in whose order its memory is used.
    pub stream: AtomicPtr<Stream>,
    /// The private pool that it belongs to. Changes under the ledger's lock.
    pool: AtomicU64,
    /// [`NO_HOST_GRAPH`], [`HOST_GRAPH`], or the number of the last wait for launches that began
    /// after the end of the pool.
    host_graph: AtomicU64,
    /// Guards `account` and the states of the arenas. While the holder is parked, the holder of the
    /// ledger may use `account` and read the states. A thread that parks has left them consistent,
    /// and keeps no reference.
    lock: ArenaLock,
    account: UnsafeCell<Account>,
}

// SAFETY: the cell is guarded by the lock that its comment names; the rest is atomic or fixed.
unsafe impl Sync for Heap {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Heap {}

impl HasLock for Heap {
    #[inline(always)]
    fn lock(&self) -> &ArenaLock {
        &self.lock
    }
}

impl Member for Heap {
    #[inline]
    unsafe fn with_account<R>(&self, body: impl FnOnce(&mut Account) -> R) -> R {
        // SAFETY: the caller's promise.
        body(unsafe { &mut *self.account.get() })
    }
}

impl Stream {
    /// The heap that serves it, in segments or not; NULL: none yet.
    #[inline(always)]
    pub(in crate::memory) fn heap(&self, segmented: bool) -> *mut Heap {
        self.heaps[usize::from(segmented)].load(Ordering::Acquire).cast()
    }
}

impl Heap {
    /// An empty heap of a device. The addresses of each arena, or its units for `segments`, are so
    /// many bytes from a base, and it has at most `memory` bytes at a time. The policy outlives it
    /// and does not move.
    pub fn new(
        device: i32,
        policy: &Policy,
        ranges: [(u64, u64); 2],
        memory: u64,
        segments: [Option<Box<Segments>>; 2],
    ) -> Result<Box<Reclaimable<Heap>>> {
        let write = |place: *mut Heap| {
            let heap = NonNull::new(place).ok_or(Error::OutOfHostMemory("an arena"))?;
            let segmented = segments[0].is_some();
            let tables = [BlockIndex::new()?, BlockIndex::new()?];
            let write_arenas = |arenas: *mut [Arena; 2]| {
                let arenas = arenas.cast::<Arena>();
                let parts = CLASSES.into_iter().zip(ranges).zip(segments.into_iter().zip(tables));
                for ((class, range), (segments, table)) in parts {
                    // SAFETY: one of the two.
                    let arena = unsafe { arenas.add(class as usize) };
                    Arena::write(
                        arena,
                        heap,
                        (device, policy),
                        (range, memory),
                        class,
                        (segments, table),
                    );
                }
            };
            write_fields!(place, Heap {
                segmented: segmented,
                role: AtomicU8::new(Role::Serving as u8),
                stream: AtomicPtr::new(std::ptr::null_mut()),
                pool: AtomicU64::new(PoolId::DEFAULT.word()),
                host_graph: AtomicU64::new(NO_HOST_GRAPH),
                lock: ArenaLock::new(),
                account: UnsafeCell::new(Account::default()),
                @ arenas: write_arenas,
            });
            Ok(())
        };
        let born = thread::era();
        // SAFETY: the place has room.
        let write = |place| unsafe { Reclaimable::write(place, born, write) };
        // SAFETY: all of them write all fields.
        unsafe { try_box_at("an arena", write) }
    }

    /// Its arena of a class.
    #[inline(always)]
    pub fn arena(&self, class: Class) -> &Arena {
        &self.arenas[class as usize]
    }

    /// Its arenas.
    pub fn arenas(&self) -> &[Arena; 2] {
        &self.arenas
    }

    /// The same of a heap that no other thread can find yet.
    pub(in crate::memory) fn arenas_mut(&mut self) -> &mut [Arena; 2] {
        &mut self.arenas
    }

    /// Takes its lock; the guard gives the arena of small blocks.
    #[inline]
    pub fn guard(&self) -> ArenaGuard<'_> {
        self.arenas[0].guard()
    }

    /// Its stream.
    #[inline]
    pub fn stream(&self) -> Option<&Stream> {
        waiting::assert_awake();
        // SAFETY: NULL or a stream, which stays while its heaps or a call may refer to it.
        unsafe { self.stream.load(Ordering::Acquire).as_ref() }
    }

    /// Does it serve this stream?
    pub(in crate::memory) fn is_of(&self, stream: &Stream) -> bool {
        std::ptr::eq(self.stream.load(Ordering::Acquire), stream)
    }

    /// Its pool.
    #[inline]
    pub fn pool(&self) -> PoolId {
        PoolId::of_word(self.pool.load(Ordering::Relaxed))
    }

    /// What it serves.
    pub(in crate::memory) fn role(&self) -> Role {
        match self.role.load(Ordering::Relaxed) {
            0 => Role::Serving,
            1 => Role::Idle,
            _ => Role::Spare,
        }
    }

    /// Sets what it serves. The caller holds the ledger.
    pub(in crate::memory) fn set_role(&self, role: Role) {
        self.role.store(role as u8, Ordering::Relaxed);
    }

    /// Is it a spare?
    pub(in crate::memory) fn is_spare(&self) -> bool {
        self.role() == Role::Spare
    }

    /// Assigns it to a stream and a pool.
    pub(in crate::memory) fn assign(&self, stream: &Stream, pool: PoolId) {
        if self.pool() != pool {
            self.host_graph.store(NO_HOST_GRAPH, Ordering::Relaxed);
        }
        self.pool.store(pool.word(), Ordering::Relaxed);
        self.set_role(Role::Serving);
        self.stream.store(std::ptr::from_ref(stream).cast_mut(), Ordering::Release);
    }

    /// Has its private pool ended?
    pub(in crate::memory) fn pool_has_ended(&self) -> bool {
        let pool = self.pool();
        pool != PoolId::DEFAULT && !pool.is_alive()
    }

    /// Records that a graph uses its memory that the host captured through the driver.
    #[inline]
    pub(in crate::memory) fn note_host_graph(&self) {
        if self.host_graph.load(Ordering::Relaxed) == NO_HOST_GRAPH {
            self.host_graph.store(HOST_GRAPH, Ordering::Relaxed);
        }
    }

    /// Has it memory of a pool, not ended, that such a graph uses?
    pub(in crate::memory) fn is_of_host_graph(&self) -> bool {
        self.host_graph.load(Ordering::Relaxed) != NO_HOST_GRAPH
            && self.pool().is_alive()
            && self.arenas.iter().any(|arena| arena.counted() != 0)
    }

    /// Has its pool ended, and may launches of such a graph still use its memory?
    pub(in crate::memory) fn awaits_launches(&self) -> bool {
        self.host_graph.load(Ordering::Relaxed) != NO_HOST_GRAPH && self.pool_has_ended()
    }

    /// A wait for all work of the device begins. Its number is unique, and at least [`FIRST_WAIT`].
    /// The caller holds the ledger.
    pub(in crate::memory) fn begin_wait_for_launches(&self, number: u64) {
        self.host_graph.store(number, Ordering::Relaxed);
    }

    /// That wait is over: no launch uses its memory, if it awaited that when the wait began. The
    /// caller holds the ledger.
    pub(in crate::memory) fn end_wait_for_launches(&self, number: u64) {
        let (old, new) = (number, NO_HOST_GRAPH);
        let _ = self.host_graph.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Can it be assigned to a stream and another pool? Its own pool is dead, nothing in it is in
    /// use, and its memory was used in the order of that stream alone. The caller holds the ledger.
    pub(in crate::memory) fn can_serve(&self, stream: &Stream) -> bool {
        if !self.pool_has_ended() || self.awaits_launches() {
            return false;
        }
        // Segments may be of another source than the next pool's.
        let keeps_memory = self.is_of(stream) && !self.segmented;
        self.inspect(|state| state.is_unused() && (keeps_memory || state.reserved().0 == 0))
    }

    /// Is nothing in it in use? The caller holds the ledger.
    pub(in crate::memory) fn is_unused(&self) -> bool {
        self.inspect(ArenaState::is_unused)
    }

    /// Does `body` hold for each arena, whose states do not change meanwhile? The caller holds the
    /// ledger.
    fn inspect(&self, body: impl Fn(&ArenaState) -> bool) -> bool {
        self.lock.freeze();
        // SAFETY: it is frozen, or its holder is parked.
        let seen = self.arenas.iter().all(|arena| body(unsafe { arena.frozen_state() }));
        self.lock.thaw();
        seen
    }
}

/// An arena whose heap's lock this thread holds; dereferences to the guarded state.
pub struct ArenaGuard<'a> {
    /// The lock.
    pub(in crate::memory) lock: LockGuard<'a, Heap>,
    arena: &'a Arena,
}

impl<'a> ArenaGuard<'a> {
    /// Takes the lock.
    #[inline]
    pub(super) fn of(arena: &'a Arena) -> ArenaGuard<'a> {
        ArenaGuard { lock: LockGuard::of(arena.heap()), arena }
    }

    /// Takes the lock. Fails in a host function of a stream if the holder waits for the device.
    #[inline]
    pub(super) fn enter(arena: &'a Arena) -> Result<ArenaGuard<'a>> {
        LockGuard::enter(arena.heap()).map(|lock| ArenaGuard { lock, arena })
    }

    /// Takes the lock if this thread is the owner.
    #[inline(always)]
    pub fn of_owner(arena: &'a Arena) -> Option<ArenaGuard<'a>> {
        LockGuard::of_owner(arena.heap()).map(|lock| ArenaGuard { lock, arena })
    }

    /// [`LockGuard::enter_as`].
    #[inline(always)]
    pub fn enter_as<const OWNER: bool>(arena: &'a Arena) -> Option<ArenaGuard<'a>> {
        LockGuard::enter_as::<OWNER>(arena.heap()).map(|lock| ArenaGuard { lock, arena })
    }

    /// The arena.
    #[inline(always)]
    pub fn arena(&self) -> &'a Arena {
        self.arena
    }

    /// Goes to the heap's arena of a class.
    pub(in crate::memory) fn select(&mut self, class: Class) {
        self.arena = self.lock.holder().arena(class);
    }

    /// Runs `body` for each arena of the heap; stops at the first error.
    pub(in crate::memory) fn each(
        &mut self,
        mut body: impl FnMut(&mut ArenaGuard<'a>) -> Result<()>,
    ) -> Result<()> {
        CLASSES.into_iter().try_for_each(|class| {
            self.select(class);
            body(self)
        })
    }

    /// Does `body` hold for each arena of the heap?
    pub(in crate::memory) fn all(&mut self, body: impl Fn(&ArenaGuard<'a>) -> bool) -> bool {
        CLASSES.into_iter().all(|class| {
            self.select(class);
            body(self)
        })
    }

    /// The account.
    #[inline(always)]
    pub(in crate::memory) fn account(&mut self) -> &mut Account {
        // SAFETY: the lock is held and not parked, and the guard is borrowed meanwhile.
        unsafe { &mut *self.lock.holder().account.get() }
    }

    /// The state and the account.
    #[inline(always)]
    pub(in crate::memory) fn state_and_account(&mut self) -> (&mut ArenaState, &mut Account) {
        let account: *mut Account = self.account();
        // SAFETY: it is not part of the state, and the guard is borrowed meanwhile.
        (self, unsafe { &mut *account })
    }
}

impl Deref for ArenaGuard<'_> {
    type Target = ArenaState;

    #[inline(always)]
    fn deref(&self) -> &ArenaState {
        // SAFETY: the lock is held and not parked, and the guard is borrowed meanwhile.
        unsafe { &*self.arena.state.get() }
    }
}

impl DerefMut for ArenaGuard<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut ArenaState {
        // SAFETY: the lock is held and not parked, and the guard is borrowed meanwhile.
        unsafe { &mut *self.arena.state.get() }
    }
}
