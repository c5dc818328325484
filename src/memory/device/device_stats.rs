//! The statistics of a device: the accounts of its heaps, added up while these are frozen.

use crate::base::lock::Lock;
use crate::base::rank::Rank;
use crate::base::retired::Reclaimable;
use crate::base::sync::{self, AtomicBool, Ordering, UnsafeCell};
use crate::base::{thread, waiting};
use crate::memory::arena::arena_lock::{ArenaLock, LockGuard};
use crate::memory::arena::member::Member;
use crate::memory::config::size::{CLASSES, Class};
use crate::memory::stats::class_counters::ClassCounters;
use crate::memory::stats::ledger::{
    ALL, Account, COUNTERS, Changes, Counters, Ledger, Statistics, Sums, only,
};

/// The state that the ledger's lock guards.
pub struct DeviceStats<M> {
    /// The peaks, and what the device itself counts.
    pub ledger: Ledger,
    /// All members.
    pub members: Vec<Box<Reclaimable<M>>>,
}

/// The statistics with their lock.
pub struct GuardedStats<M> {
    /// The ledger's lock. A thread takes it after a member's lock, and then only freezes members'
    /// locks.
    lock: Lock,
    /// Did some members get nothing when headroom was last distributed? A stale value makes a
    /// thread wait in vain, or take what others need.
    is_scarce: AtomicBool,
    stats: UnsafeCell<DeviceStats<M>>,
}

// SAFETY: the statistics are guarded by the lock.
unsafe impl<M: Send + Sync> Sync for GuardedStats<M> {}

impl<M: Member> GuardedStats<M> {
    /// Statistics without members.
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

    /// Runs `body` on what the device itself counts, while accounts change. `own` is a member whose
    /// lock the caller holds.
    pub fn with_ledger<R>(
        &self,
        own: &mut LockGuard<'_, M>,
        body: impl FnOnce(&mut Ledger) -> R,
    ) -> R {
        let _guard = own.parked(|| self.lock.guard());
        self.stats.with_mut(|stats| {
            // SAFETY: the lock is held.
            body(unsafe { &mut (*stats).ledger })
        })
    }

    /// Runs `body` while no account changes, and nothing else that the members' locks guard, except
    /// by `body`. `own` is a member whose lock the caller holds, if it holds one.
    pub fn with<R>(
        &self,
        own: Option<&mut LockGuard<'_, M>>,
        body: impl FnOnce(&mut DeviceStats<M>) -> R,
    ) -> R {
        let member = own.as_ref().map(|own| own.holder());
        let _guard = match own {
            Some(own) => own.parked(|| self.lock.guard()),
            None => self.lock.guard(),
        };
        self.stats.with_mut(|stats| {
            // SAFETY: the lock is held.
            let members = unsafe { &(*stats).members };
            let is_other = |other: &&M| member.is_none_or(|member| !std::ptr::eq(member, *other));
            let others = members.iter().map(|member| &***member).filter(is_other);
            ArenaLock::freeze_all(others.map(|member| member.lock()));
            let _frozen = FrozenAccounts(stats);
            // SAFETY: the lock is held.
            body(unsafe { &mut *stats })
        })
    }

    /// Runs `body` while accounts change. `own` is a member whose lock the caller holds.
    pub fn with_own<R>(
        &self,
        own: &mut LockGuard<'_, M>,
        body: impl FnOnce(&mut LockGuard<'_, M>, &mut DeviceStats<M>) -> R,
    ) -> R {
        let _guard = own.parked(|| self.lock.guard());
        self.stats.with_mut(|stats| {
            // SAFETY: the lock is held.
            body(own, unsafe { &mut *stats })
        })
    }

    /// Waits for the device with a member's lock held. Other threads use the statistics meanwhile.
    pub fn wait_for_device<R>(&self, own: &mut LockGuard<'_, M>, wait: impl FnOnce() -> R) -> R {
        own.parked_for_device(|| (wait(), self.lock.guard())).0
    }

    /// Counts changes of a member whose lock the caller holds.
    #[inline]
    pub fn count(&self, own: &mut LockGuard<'_, M>, changes: &Changes) {
        if !own.with_account(|account| account.apply(changes)) {
            self.count_in_ledger(own, changes);
        }
    }

    /// Counts changes in the ledger. If there is too little below the peaks for all that make
    /// requests, each takes it from another, and threads would do little else. So each waits a
    /// moment, while the others go on, and may be granted something.
    #[cold]
    fn count_in_ledger(&self, own: &mut LockGuard<'_, M>, changes: &Changes) {
        if self.is_scarce.load(Ordering::Relaxed) {
            drop(own.parked(|| {
                sync::pause();
                self.lock.guard()
            }));
            if own.with_account(|account| account.apply(changes)) {
                return;
            }
        }
        let member = own.holder();
        let is_enough = self.with(Some(own), |stats| {
            // SAFETY: all accounts are frozen.
            unsafe { member.with_account(|account| account.add(changes)) };
            stats.distribute(Some((member, changes)))
        });
        self.is_scarce.store(!is_enough, Ordering::Relaxed);
    }
}

/// Thaws the members' locks when dropped, also during a panic.
struct FrozenAccounts<M: Member>(*mut DeviceStats<M>);

impl<M: Member> Drop for FrozenAccounts<M> {
    fn drop(&mut self) {
        // SAFETY: the ledger's lock is held longer than this, and `body` is over.
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
            // SAFETY: all accounts are frozen.
            unsafe { member.with_account(&mut body) };
        }
    }

    /// Adds up a value of all accounts, and of the uncached blocks.
    pub fn sums(&self, value: impl Fn(&ClassCounters) -> Counters) -> Sums {
        let mut sums = [[0; COUNTERS]; 3];
        self.add_up(std::array::from_mut(&mut sums), |row| [value(row)]);
        sums
    }

    /// Adds several values to sums, and then adds up the sums of the classes.
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

    /// Removes a member whose blocks are gone, and keeps what it has counted; none: it is no
    /// member.
    pub fn remove(&mut self, member: &mut LockGuard<'_, M>) -> Option<Box<Reclaimable<M>>> {
        let own = member.holder();
        let index = self.members.iter().position(|known| std::ptr::eq(&***known, own))?;
        member.with_account(|account| self.ledger.keep_counts(account));
        Some(self.members.remove(index))
    }

    /// Counts a change of the uncached blocks, and raises the peaks to it.
    pub fn count_uncached(&mut self, class: Class, change: &Counters) {
        self.ledger.uncached.add(&only(class, *change));
        self.distribute(None);
    }

    /// Undoes such a change.
    pub fn undo_uncached(&mut self, class: Class, change: &Counters) {
        self.ledger.uncached.undo(&only(class, *change));
        self.distribute(None);
    }

    /// Raises the peaks to the present sums, and distributes anew what is left below them, among
    /// the members with a recent request: headroom of other members is missing where it is needed.
    ///
    /// If several threads make requests, each member first gets what it lacks to its values at its
    /// last request, as long as there is enough for one more. If the peak is low, equal parts would
    /// be too little for any member. The rest is then distributed in equal parts. `requester` is
    /// the member with the present request, and its changes. True: there was enough for all.
    pub fn distribute(&mut self, requester: Option<(&M, &Changes)>) -> bool {
        let sums = self.sums(ClassCounters::current);
        self.ledger.raise(&sums);
        if let Some((requester, changes)) = requester {
            self.ledger.note_requester(thread::address());
            // SAFETY: all accounts are frozen.
            unsafe {
                requester.with_account(|account| account.request(self.ledger.requests, changes))
            };
        }
        // A request is recent if at most so many came after it: an active member would have made
        // another one.
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
        // Nothing is granted if only one thread makes requests.
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
                // The requester gets what the parts of the others leave.
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
            // SAFETY: all accounts are frozen.
            unsafe { member.with_account(set) };
        }
        is_enough
    }

    /// Allows peaks to be too low, by at most this much, from now on.
    pub fn allow(&mut self, allowance: Counters) {
        self.ledger.allow(allowance);
        self.distribute(None);
    }

    /// Called before peaks are read: raises them to the present sums.
    pub fn raise_peaks(&mut self) {
        if !self.ledger.is_exact() {
            let sums = self.sums(ClassCounters::current);
            self.ledger.raise(&sums);
        }
    }

    /// Resets every peak to its current value.
    pub fn reset_peak(&mut self) {
        let sums = self.sums(ClassCounters::current);
        self.ledger.reset_peak(&sums);
        self.distribute(None);
    }

    /// Called after the cache was emptied: the highest need begins again.
    pub fn forget_highest(&mut self) {
        let sums = self.sums(ClassCounters::current);
        self.ledger.forget_highest(&sums);
        self.distribute(None);
    }

    /// Resets every total to 0.
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
        // The scope's peaks are lower than those below which the headroom was distributed.
        self.distribute(None);
        opened
    }

    /// Closes the newest scope of a thread, and returns what happened in it; none: it has none.
    pub fn close_scope(&mut self, owner: u64) -> Option<Statistics> {
        self.raise_peaks();
        let [current, increased, decreased] = self.totals();
        self.ledger.close_scope(owner, [&current, &increased, &decreased])
    }

    /// Fills in all statistics except the setting.
    pub fn statistics(&self, to: &mut Statistics) {
        let [current, increased, decreased] = self.totals();
        self.ledger.statistics(&current, &increased, &decreased, to);
    }
}
