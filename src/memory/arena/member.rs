//! A member of a device's statistics: what has an account and a lock.

use crate::memory::arena::arena_lock::{HasLock, LockGuard};
use crate::memory::stats::account::Account;

/// What has an account: a heap.
pub trait Member: HasLock + Sized {
    /// Runs `body` on its account.
    ///
    /// # Safety
    /// The caller holds the member's lock and is not parked, or it holds the ledger's lock and the
    /// member is frozen. It has no other reference to the account.
    unsafe fn with_account<R>(&self, body: impl FnOnce(&mut Account) -> R) -> R;
}

impl<M: Member> LockGuard<'_, M> {
    /// Runs `body` on the account.
    #[inline(always)]
    pub fn with_account<R>(&mut self, body: impl FnOnce(&mut Account) -> R) -> R {
        // SAFETY: the lock is held and not parked, and the guard is borrowed meanwhile.
        unsafe { self.holder().with_account(body) }
    }
}
