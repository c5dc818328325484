//! What arenas count: blocks by their own class, and free memory by the arena's.
//!
//! Blocks up to 1 MiB are small in every statistic, as in PyTorch. But memory that is kept apart
//! for some of them is missing elsewhere, and the other way round. Programs whose blocks of 64 KiB
//! to 1 MiB came from small arenas needed up to 4 % more memory. So small arenas of mapped memory
//! have blocks of up to 64 KiB only, and large arenas count blocks of both classes.

use crate::memory::arena::Arena;
use crate::memory::arena::arena_lock::ArenaLock;
use crate::memory::arena::member::Member;
use crate::memory::config::size::{Class, SMALL, UNIT};
use crate::memory::stats::ledger::{Account, Split};

/// The class of a block of mapped memory.
#[inline(always)]
fn class_of_mapped(bytes: i64) -> Class {
    if bytes <= SMALL as i64 { Class::Small } else { Class::Large }
}

impl Member for Arena {
    #[inline]
    fn lock(&self) -> &ArenaLock {
        &self.lock
    }

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
        body(unsafe { self.account() })
    }
}

impl Arena {
    /// The account.
    ///
    /// # Safety The caller holds the lock, or the ledger's while the holder of the lock is parked,
    /// and has no other reference to the account.
    #[allow(clippy::mut_from_ref, reason = "the locks make it exclusive")]
    #[inline(always)]
    pub(in crate::memory) unsafe fn account(&self) -> &mut Account {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.account.get() }
    }

    /// The class of one of its blocks.
    #[inline]
    pub(in crate::memory) fn class_of(&self, units: u32) -> Class {
        if self.segmented { self.class } else { class_of_mapped(i64::from(units) * UNIT as i64) }
    }

    /// Counts an allocated block of mapped memory that is not oversize, if the headroom allows.
    /// False: nothing was done.
    ///
    /// # Safety
    /// The caller holds the lock and is not parked, and has no reference to the account.
    #[inline(always)]
    pub(in crate::memory) unsafe fn count_alloc(
        &self,
        bytes: i64,
        requested: i64,
        split: Split,
    ) -> bool {
        // SAFETY: the caller's promise.
        let account = unsafe { self.account() };
        account.count_alloc(class_of_mapped(bytes), bytes, requested, split)
    }

    /// Counts a freed block in the same way.
    ///
    /// # Safety
    /// The same.
    #[inline(always)]
    pub(in crate::memory) unsafe fn count_free(
        &self,
        bytes: i64,
        requested: i64,
        split: Split,
    ) -> bool {
        // SAFETY: the caller's promise.
        let account = unsafe { self.account() };
        account.count_free(class_of_mapped(bytes), bytes, requested, split)
    }

    /// [`Arena::count_alloc`] with headroom of its stream's arena of the other class, if this
    /// thread owns that arena's lock and this arena's headroom alone does not allow the block.
    /// False: nothing was done.
    ///
    /// # Safety
    /// The same.
    #[inline(never)]
    pub(in crate::memory) unsafe fn count_alloc_joint(
        &self,
        bytes: i64,
        requested: i64,
        split: Split,
    ) -> bool {
        let class = class_of_mapped(bytes);
        self.with_partner(|account, other| {
            account.count_alloc_with(other, class, (bytes, requested), split)
        })
    }

    /// [`Arena::count_free`] in the same way.
    ///
    /// # Safety
    /// The same.
    #[inline(never)]
    pub(in crate::memory) unsafe fn count_free_joint(
        &self,
        bytes: i64,
        requested: i64,
        split: Split,
    ) -> bool {
        let class = class_of_mapped(bytes);
        self.with_partner(|account, other| {
            account.count_free_with(other, class, (bytes, requested), split)
        })
    }

    /// Counts a freed block that other streams may still use.
    ///
    /// # Safety
    /// The same.
    #[inline]
    pub(in crate::memory) unsafe fn count_deferred_free(&self, bytes: i64, oversize: bool) {
        let class = self.class_of((bytes as u64 / UNIT) as u32);
        // SAFETY: the caller's promise.
        unsafe { self.account() }.count_deferred_free(class, bytes, oversize);
    }
}

/// Bytes of the pending blocks of an arena. The caller holds its lock.
pub(in crate::memory) fn pending_bytes(arena: &Arena) -> u64 {
    // SAFETY: the lock is held and we are not parked.
    unsafe { arena.account() }.waiting_bytes() as u64
}
