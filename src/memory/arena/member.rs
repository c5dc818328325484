//! A member of a device's statistics: what has an account and a lock.

use crate::memory::arena::arena_lock::{HasLock, LockGuard};
use crate::memory::stats::account::Account;

/// What has an account: an arena.
pub trait Member: HasLock + Sized {
    /// Another member, most likely of the same thread, that may have headroom when this one has
    /// none.
    fn partner(&self) -> Option<&Self>;

    /// Runs `body` on its account.
    ///
    /// # Safety
    /// The caller holds the member's lock and is not parked, or it holds the ledger's lock and the
    /// member is frozen. It has no other reference to the account.
    unsafe fn with_account<R>(&self, body: impl FnOnce(&mut Account) -> R) -> R;

    /// Runs `body` on a member's account and its partner's, without the ledger, if this thread is
    /// the owner of the partner's lock. False: it is not, or `body` returns false.
    ///
    /// # Safety
    /// The caller holds the member's lock and is not parked. It has no reference to the account.
    #[inline(always)]
    unsafe fn with_partner(&self, body: impl FnOnce(&mut Account, &mut Account) -> bool) -> bool {
        let Some(mut partner) = self.partner().and_then(LockGuard::second) else { return false };
        let with_both = |account: &mut Account| partner.with_account(|other| body(account, other));
        // SAFETY: the caller's promise.
        unsafe { self.with_account(with_both) }
    }
}

impl<M: Member> LockGuard<'_, M> {
    /// Runs `body` on the account.
    #[inline(always)]
    pub fn with_account<R>(&mut self, body: impl FnOnce(&mut Account) -> R) -> R {
        // SAFETY: the lock is held and not parked, and the guard is borrowed meanwhile.
        unsafe { self.holder().with_account(body) }
    }

    /// Runs `body` on the account and that of the member's partner, as [`Member::with_partner`].
    #[inline(always)]
    pub fn with_partner(&mut self, body: impl FnOnce(&mut Account, &mut Account) -> bool) -> bool {
        // SAFETY: the lock is held and not parked, and the guard is borrowed meanwhile.
        unsafe { self.holder().with_partner(body) }
    }
}
