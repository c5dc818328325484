//! A device's stats: the accounts of its arenas, added up while none of them changes.

use crate::base::lock::Lock;
use crate::base::rank::Rank;
use crate::base::retired::Reclaimable;
use crate::base::sync::{self, AtomicBool, Ordering, UnsafeCell};
use crate::base::{thread, waiting};
use crate::memory::arena::arena_lock::ArenaLock;
use crate::memory::stats::class_counters::ClassCounters;
use crate::memory::stats::ledger::{
    ALL, Account, CLASSES, COUNTERS, Changes, Class, Counters, Ledger, Statistics, Sums, only,
};

/// What has an account in the stats: an arena.
pub trait Member {
    /// Its lock.
    fn lock(&self) -> &ArenaLock;

    /// Another member, most likely of the same thread, that may have headroom when this one has none.
    fn partner(&self) -> Option<&Self>;

    /// Runs `body` on its account.
    ///
    /// # Safety
    /// The caller holds the member's lock and is not parked, or holds the stats while the member is
    /// held still, and has no other reference to the account.
    unsafe fn with_account<R>(&self, body: impl FnOnce(&mut Account) -> R) -> R;
}

/// What the ledger's lock guards.
pub struct DeviceStats<M> {
    /// The peaks, and what the device itself counts.
    pub ledger: Ledger,
    /// All members.
    pub members: Vec<Box<Reclaimable<M>>>,
}

/// The stats with their lock.
pub struct GuardedStats<M> {
    /// Taken after a member's lock, never before one that it waits for.
    lock: Lock,
    /// Did some get nothing when headroom was shared out the last time? Whoever reads something else waits in
    /// vain, or takes what others need.
    is_scarce: AtomicBool,
    stats: UnsafeCell<DeviceStats<M>>,
}

// SAFETY: the stats are guarded by the lock.
unsafe impl<M: Send + Sync> Sync for GuardedStats<M> {}

impl<M: Member> GuardedStats<M> {
    /// DeviceStats without members.
    pub fn new() -> GuardedStats<M> {
        let stats = DeviceStats { ledger: Ledger::default(), members: Vec::new() };
        let is_scarce = AtomicBool::new(false);
        GuardedStats { lock: Lock::new(Rank::LEDGER), is_scarce, stats: UnsafeCell::new(stats) }
    }

    /// Runs `body` with the lock alone: accounts change meanwhile.
    pub fn with_members<R>(&self, body: impl FnOnce(&mut Vec<Box<Reclaimable<M>>>) -> R) -> R {
        waiting::assert_awake();
        let _guard = self.lock.guard();
        self.stats.with_mut(|stats| {
            // SAFETY: the lock is held.
            body(unsafe { &mut (*stats).members })
        })
    }

    /// Runs `body` on what the device itself counts, while accounts change. `own` is a member whose lock the
    /// caller holds, with no reference to what it guards.
    pub fn with_ledger<R>(&self, own: &M, body: impl FnOnce(&mut Ledger) -> R) -> R {
        own.lock().park();
        let _guard = self.lock.guard();
        own.lock().unpark();
        self.stats.with_mut(|stats| {
            // SAFETY: the lock is held.
            body(unsafe { &mut (*stats).ledger })
        })
    }

    /// Runs `body` while no account changes, and nothing else that the members' locks guard but by
    /// `body`. `own` is a member whose lock the caller holds, if it does.
    pub fn with<R>(&self, own: Option<&M>, body: impl FnOnce(&mut DeviceStats<M>) -> R) -> R {
        if let Some(own) = own {
            own.lock().park();
        }
        let _guard = self.lock.guard();
        if let Some(own) = own {
            own.lock().unpark();
        }
        self.stats.with_mut(|stats| {
            // SAFETY: the lock is held.
            let members = unsafe { &(*stats).members };
            let is_other = |member: &&M| own.is_none_or(|own| !std::ptr::eq(own, *member));
            let others = members.iter().map(|member| &***member).filter(is_other);
            ArenaLock::freeze_all(others.map(|member| member.lock()));
            let _frozen = FrozenAccounts(stats);
            // SAFETY: the lock is held.
            body(unsafe { &mut *stats })
        })
    }

    /// Runs `body` while accounts change. `own` is a member whose lock the caller holds, with no reference
    /// to what it guards.
    pub fn with_own<R>(&self, own: &M, body: impl FnOnce(&mut DeviceStats<M>) -> R) -> R {
        own.lock().park();
        let _guard = self.lock.guard();
        own.lock().unpark();
        self.stats.with_mut(|stats| {
            // SAFETY: the lock is held.
            body(unsafe { &mut *stats })
        })
    }

    /// Waits for the device with a member's lock held, but no reference to what it guards: the stats
    /// go on meanwhile.
    pub fn wait_for_device<R>(&self, own: &M, wait: impl FnOnce() -> R) -> R {
        own.lock().set_waits(true);
        let result = self.wait_parked(own, wait);
        own.lock().set_waits(false);
        result
    }

    /// The same for a wait that is soon over.
    fn wait_parked<R>(&self, own: &M, wait: impl FnOnce() -> R) -> R {
        own.lock().park();
        let result = wait();
        let _guard = self.lock.guard();
        own.lock().unpark();
        result
    }

    /// Makes changes of a member known. The caller holds the member's lock, and no reference to what
    /// it guards.
    #[inline]
    pub fn count(&self, own: &M, changes: &Changes) {
        // SAFETY: the lock is held and we are not parked.
        let applied = unsafe { own.with_account(|account| account.apply(changes)) };
        if !applied {
            self.count_in_ledger(own, changes);
        }
    }

    /// Runs `body` on a member's account and its partner's, without the stats, if this thread is the owner of that one;
    /// false: it is not, or `body` says so. The caller holds the member's lock, and no reference to
    /// what it guards.
    #[inline(always)]
    pub fn with_partner(own: &M, body: impl FnOnce(&mut Account, &mut Account) -> bool) -> bool {
        let Some(partner) = own.partner() else { return false };
        let Some(_guard) = partner.lock().guard_second() else { return false };
        let with_both = |account: &mut Account| {
            // SAFETY: its lock is held too, and we are not parked.
            unsafe { partner.with_account(|other| body(account, other)) }
        };
        // SAFETY: the lock is held and we are not parked.
        unsafe { own.with_account(with_both) }
    }

    /// Where there is not enough below the peaks for all that ask, and each takes it from another, threads
    /// would do little else: so each waits a moment, while the others go on, and may be given something.
    #[cold]
    fn count_in_ledger(&self, own: &M, changes: &Changes) {
        if self.is_scarce.load(Ordering::Relaxed) {
            self.wait_parked(own, sync::pause);
            // SAFETY: the lock is held and we are not parked.
            if unsafe { own.with_account(|account| account.apply(changes)) } {
                return;
            }
        }
        let is_enough = self.with(Some(own), |stats| {
            // SAFETY: all accounts are held still.
            unsafe { own.with_account(|account| account.add(changes)) };
            stats.share_out(Some((own, changes)))
        });
        self.is_scarce.store(!is_enough, Ordering::Relaxed);
    }
}

/// Gives the members' locks back that the stats took, also when a panic passes.
struct FrozenAccounts<M: Member>(*mut DeviceStats<M>);

impl<M: Member> Drop for FrozenAccounts<M> {
    fn drop(&mut self) {
        // SAFETY: the stats' lock is held longer than this, and `body` is over.
        let members = unsafe { &(*self.0).members };
        for member in members {
            member.lock().thaw();
        }
    }
}

impl<M: Member> DeviceStats<M> {
    /// Runs `body` on each account.
    pub fn each(&self, mut body: impl FnMut(&mut Account)) {
        for member in &self.members {
            // SAFETY: the stats hold all accounts still.
            unsafe { member.with_account(&mut body) };
        }
    }

    /// Adds up a value of all accounts, and of the blocks that are in no arena.
    pub fn sums(&self, value: impl Fn(&ClassCounters) -> Counters) -> Sums {
        let mut sums = [[0; COUNTERS]; 3];
        self.add_up(std::array::from_mut(&mut sums), |row| [value(row)]);
        sums
    }

    /// Adds several values to sums, and then those of the classes up.
    #[inline(always)]
    fn add_up<const N: usize>(
        &self,
        all: &mut [Sums; N],
        values: impl Fn(&ClassCounters) -> [Counters; N],
    ) {
        self.each(|account| account.add_to(all, &values));
        self.ledger.uncached.add_to(all, &values);
        for [of_all, small, large] in all {
            *of_all = std::array::from_fn(|counter| small[counter] + large[counter]);
        }
    }

    /// The sums of currents, of increases and of decreases.
    #[inline(always)]
    fn totals(&self) -> [Sums; 3] {
        let mut all = [[[0; COUNTERS]; 3], self.ledger.removed[0], self.ledger.removed[1]];
        self.add_up(&mut all, ClassCounters::counts);
        let [current, increased, mut decreased] = all;
        for ((decreased, increased), current) in decreased.iter_mut().zip(&increased).zip(&current)
        {
            for ((base, increased), current) in decreased.iter_mut().zip(increased).zip(current) {
                *base += increased - current;
            }
        }
        [current, increased, decreased]
    }

    /// Takes a member out whose blocks are gone, and keeps what it has counted; none: it is no member. The
    /// caller holds its lock.
    pub fn remove(&mut self, member: &M) -> Option<Box<Reclaimable<M>>> {
        let index = self.members.iter().position(|known| std::ptr::eq(&***known, member))?;
        // SAFETY: the caller holds the lock and is not parked.
        unsafe { member.with_account(|account| self.ledger.keep_counts(account)) };
        Some(self.members.remove(index))
    }

    /// Counts a change of the blocks that are in no arena, and raises the peaks to it.
    pub fn count_uncached(&mut self, class: Class, change: &Counters) {
        self.ledger.uncached.add(&only(class, *change));
        self.share_out(None);
    }

    /// Undoes such a change.
    pub fn undo_uncached(&mut self, class: Class, change: &Counters) {
        self.ledger.uncached.undo(&only(class, *change));
        self.share_out(None);
    }

    /// Raises the peaks to what is, and shares out anew what is left below them: among the members that
    /// asked lately, since what others hold is missing where it is needed. Where several threads ask, each
    /// member first gets what it lacks to what it had when it asked, as long as there is enough for one more:
    /// where the peak is low, equal parts would be too little for anybody. What is left then they share. Was
    /// there enough for all? `asked`: by whom, and for what.
    pub fn share_out(&mut self, requester: Option<(&M, &Changes)>) -> bool {
        let sums = self.sums(ClassCounters::current);
        self.ledger.raise(&sums);
        if let Some((requester, changes)) = requester {
            self.ledger.note_requester(thread::address());
            // SAFETY: the stats hold all accounts still.
            unsafe {
                requester.with_account(|account| account.request(self.ledger.requests, changes))
            };
        }
        // So many asked in the meantime that it would have been among them.
        let lately = 16 + 4 * self.members.len() as u64;
        let since = (self.ledger.requests + 1).saturating_sub(lately);
        let mut counts = [0; 3];
        self.each(|account| {
            counts[ALL] += i64::from(account.has_requested(None, since));
            for class in CLASSES {
                counts[class.row()] += i64::from(account.has_requested(Some(class), since));
            }
        });
        let (mut left, mut is_enough) = (self.ledger.left(&sums), true);
        let is_crowded = self.ledger.is_crowded();
        // Nothing is given where only one thread asks.
        if std::mem::replace(&mut self.ledger.has_granted, is_crowded) || is_crowded {
            self.each(|account| {
                account.clear_grant();
                for class in CLASSES {
                    if is_crowded && account.has_requested(Some(class), since) {
                        is_enough &= account.grant(class, |lacking| left.take(class, lacking));
                    }
                }
            });
        }
        for member in &self.members {
            let requester = requester.filter(|(requester, _)| std::ptr::eq(*requester, &***member));
            let set = |account: &mut Account| {
                // What the others' parts leave is for the one that asked.
                let all = match account.has_requested(None, since) {
                    true => left.part(ALL, counts[ALL], requester.is_some()),
                    false => [0; COUNTERS],
                };
                let of = CLASSES.map(|class| {
                    let row = class.row();
                    let requester = requester
                        .is_some_and(|(_, changes)| changes[class as usize] != [0; COUNTERS]);
                    match account.has_requested(Some(class), since) {
                        true => left.part(row, counts[row], requester),
                        false => [0; COUNTERS],
                    }
                });
                account.set_headroom(all, of);
            };
            // SAFETY: the stats hold all accounts still.
            unsafe { member.with_account(set) };
        }
        is_enough
    }

    /// Peaks are short by so much at most from now on.
    pub fn allow(&mut self, allowance: Counters) {
        self.ledger.allow(allowance);
        self.share_out(None);
    }

    /// Somebody is about to look at peaks: none is lower than what is now.
    pub fn see(&mut self) {
        if !self.ledger.is_exact() {
            let sums = self.sums(ClassCounters::current);
            self.ledger.raise(&sums);
        }
    }

    /// Every peak becomes its current value.
    pub fn reset_peak(&mut self) {
        let sums = self.sums(ClassCounters::current);
        self.ledger.reset_peak(&sums);
        self.share_out(None);
    }

    /// The cache was emptied.
    pub fn forget_highest(&mut self) {
        let sums = self.sums(ClassCounters::current);
        self.ledger.forget_highest(&sums);
        self.share_out(None);
    }

    /// Every total becomes 0.
    pub fn reset_accumulated(&mut self) {
        let [_, increased, decreased] = self.totals();
        self.ledger.reset_accumulated(&increased, &decreased);
        self.each(Account::reset_accumulated);
        self.ledger.uncached.reset_accumulated();
    }

    /// Opens a scope of a thread; false: no host memory.
    pub fn open_scope(&mut self, owner: u64) -> bool {
        let [current, increased, decreased] = self.totals();
        let opened = self.ledger.open_scope(owner, [&current, &increased, &decreased]);
        // Its peaks are lower than those below which the headroom was shared out.
        self.share_out(None);
        opened
    }

    /// Closes the newest scope of a thread and gives what happened in it; none: it has none.
    pub fn close_scope(&mut self, owner: u64) -> Option<Statistics> {
        self.see();
        let [current, increased, decreased] = self.totals();
        self.ledger.close_scope(owner, [&current, &increased, &decreased])
    }

    /// Fills in all statistics, but the setting among them.
    pub fn statistics(&self, to: &mut Statistics) {
        let [current, increased, decreased] = self.totals();
        self.ledger.statistics(&current, &increased, &decreased, to);
    }
}
