//! What arenas count: blocks by their own class, and free memory by the arena's.
//!
//! Blocks up to 1 MiB are small in every statistic, as in PyTorch. But memory that is kept apart
//! for some of them is missing elsewhere, and the other way round. Programs whose blocks of 64 KiB
//! to 1 MiB came from small arenas needed up to 4 % more memory. So small arenas of mapped memory
//! have blocks of up to 64 KiB only, and large arenas count blocks of both classes.

use crate::memory::arena::arena_lock::{ArenaLock, HasLock};
use crate::memory::arena::member::Member;
use crate::memory::arena::{Arena, ArenaGuard, ArenaState};
use crate::memory::config::size::{Class, SMALL, UNIT};
use crate::memory::stats::ledger::{Account, Split};

/// The class of a block of mapped memory.
#[inline(always)]
fn class_of_mapped(bytes: i64) -> Class {
    if bytes <= SMALL as i64 { Class::Small } else { Class::Large }
}

impl HasLock for Arena {
    #[inline(always)]
    fn lock(&self) -> &ArenaLock {
        &self.lock
    }
}

impl Member for Arena {
    /// The arena of the other class that serves its stream.
    #[inline]
    fn partner(&self) -> Option<&Arena> {
        let class = match self.class {
            Class::Small => Class::Large,
            Class::Large => Class::Small,
        };
        let place = class as usize + if self.segmented { 2 } else { 0 };
        let arena = self.stream()?.arena(place);
        // SAFETY: NULL or an arena of this device, which lives as long as a call may have found it.
        unsafe { arena.as_ref() }
    }

    #[inline]
    unsafe fn with_account<R>(&self, body: impl FnOnce(&mut Account) -> R) -> R {
        // SAFETY: the caller's promise.
        body(unsafe { &mut *self.account.get() })
    }
}

impl Arena {
    /// The class of one of its blocks.
    #[inline]
    pub(in crate::memory) fn class_of(&self, units: u32) -> Class {
        if self.segmented { self.class } else { class_of_mapped(i64::from(units) * UNIT as i64) }
    }

    /// [`ArenaGuard::count_alloc_joint`].
    ///
    /// # Safety
    /// The caller holds the lock and is not parked, and has no reference to the account.
    #[inline(never)]
    unsafe fn count_alloc_joint(&self, bytes: i64, requested: i64, split: Split) -> bool {
        let class = class_of_mapped(bytes);
        let count = |account: &mut Account, other: &mut Account| {
            account.count_alloc_with(other, class, (bytes, requested), split)
        };
        // SAFETY: the caller's promise.
        unsafe { self.with_partner(count) }
    }

    /// [`ArenaGuard::count_free_joint`].
    ///
    /// # Safety
    /// The same.
    #[inline(never)]
    unsafe fn count_free_joint(&self, bytes: i64, requested: i64, split: Split) -> bool {
        let class = class_of_mapped(bytes);
        let count = |account: &mut Account, other: &mut Account| {
            account.count_free_with(other, class, (bytes, requested), split)
        };
        // SAFETY: the caller's promise.
        unsafe { self.with_partner(count) }
    }
}

impl ArenaGuard<'_> {
    /// The account.
    #[inline(always)]
    pub(in crate::memory) fn account(&mut self) -> &mut Account {
        // SAFETY: the lock is held and not parked, and the guard is borrowed meanwhile.
        unsafe { &mut *self.holder().account.get() }
    }

    /// The state and the account.
    #[inline(always)]
    pub(in crate::memory) fn state_and_account(&mut self) -> (&mut ArenaState, &mut Account) {
        let account: *mut Account = self.account();
        // SAFETY: it is not part of the state, and the guard is borrowed meanwhile.
        (self, unsafe { &mut *account })
    }

    /// Counts an allocated block of mapped memory that is not oversize, if the headroom allows.
    /// False: nothing was done.
    #[inline(always)]
    pub(in crate::memory) fn count_alloc(
        &mut self,
        bytes: i64,
        requested: i64,
        split: Split,
    ) -> bool {
        self.account().count_alloc(class_of_mapped(bytes), bytes, requested, split)
    }

    /// Counts a freed block in the same way.
    #[inline(always)]
    pub(in crate::memory) fn count_free(
        &mut self,
        bytes: i64,
        requested: i64,
        split: Split,
    ) -> bool {
        self.account().count_free(class_of_mapped(bytes), bytes, requested, split)
    }

    /// [`ArenaGuard::count_alloc`] with headroom of its stream's arena of the other class, if this
    /// thread owns that arena's lock and this arena's headroom alone does not allow the block.
    /// False: nothing was done.
    #[inline(always)]
    pub(in crate::memory) fn count_alloc_joint(
        &mut self,
        bytes: i64,
        requested: i64,
        split: Split,
    ) -> bool {
        // SAFETY: the lock is held and not parked, and the guard is borrowed meanwhile.
        unsafe { self.holder().count_alloc_joint(bytes, requested, split) }
    }

    /// [`ArenaGuard::count_free`] in the same way.
    #[inline(always)]
    pub(in crate::memory) fn count_free_joint(
        &mut self,
        bytes: i64,
        requested: i64,
        split: Split,
    ) -> bool {
        // SAFETY: the lock is held and not parked, and the guard is borrowed meanwhile.
        unsafe { self.holder().count_free_joint(bytes, requested, split) }
    }

    /// Counts a freed block that other streams may still use.
    #[inline]
    pub(in crate::memory) fn count_deferred_free(&mut self, bytes: i64, oversize: bool) {
        let class = self.holder().class_of((bytes as u64 / UNIT) as u32);
        self.account().count_deferred_free(class, bytes, oversize);
    }

    /// Bytes of the pending blocks.
    pub(in crate::memory) fn pending_bytes(&mut self) -> u64 {
        self.account().waiting_bytes() as u64
    }
}
