//! A member of a device's statistics: what has an account and a lock.

use crate::memory::arena::arena_lock::ArenaLock;
use crate::memory::stats::account::Account;

/// What has an account: an arena.
pub trait Member {
    /// Its lock.
    fn lock(&self) -> &ArenaLock;

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
    /// the owner of the partner's lock. False: it is not, or `body` returns false. The caller holds
    /// the member's lock, and no reference to what it guards.
    #[inline(always)]
    fn with_partner(&self, body: impl FnOnce(&mut Account, &mut Account) -> bool) -> bool {
        let Some(partner) = self.partner() else { return false };
        let Some(_guard) = partner.lock().guard_second() else { return false };
        let with_both = |account: &mut Account| {
            // SAFETY: its lock is held too, and we are not parked.
            unsafe { partner.with_account(|other| body(account, other)) }
        };
        // SAFETY: the lock is held and we are not parked.
        unsafe { self.with_account(with_both) }
    }
}
