//! Turns: with an adversarial schedule, which of several host threads goes on is the seed's decision.
//!
//! Each thread stands at the turnstile at every call, of the library and of the driver's table. When
//! no other thread is on its way (each stands here, sleeps or has ended), the seed picks one of those
//! that stand, and it alone goes on, up to its next call. So between two calls the threads of a host
//! run one after the other, whatever the system does, but for those that wake each other by means of
//! their own, and these meet here again.
//!
//! Whether a thread is on its way is asked of the system ([`census`](crate::sim::thread_state)). Where the answer
//! is wrong, two threads run at the same time, as they do without a turnstile: the run is another one,
//! but not a wrong one. Nobody holds a turn, so a thread that blocks holds up nobody.

use super::worker::Bell;
use super::{lock, worker};
use crate::sim::adversary_policy::Strategy;
use crate::sim::thread_state::Census;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Between two looks at the threads that are on their way, at first and in the long run.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LAST_PAUSE: Duration = Duration::from_millis(1);
/// No thread's.
const NONE: u64 = u64::MAX;

/// Why a thread stands here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// It makes a call.
    Call,
    /// It needs what another thread does.
    Wait,
}

/// The turnstile of a machine.
pub(super) struct Turnstile {
    turns: Mutex<Turns>,
    census: Mutex<Census>,
    /// Threads that come, but do not stand yet.
    arriving: AtomicUsize,
    /// Threads in the middle of a call that sleep for a moment, and those of the machine's own that
    /// are being started.
    busy: AtomicUsize,
    /// Changes with everything that a look at the threads can miss.
    stamp: AtomicU64,
    /// The process has had no other thread yet, if the C library knows.
    alone: Option<&'static AtomicU8>,
    /// A thread has the rank 0.
    has_first: AtomicBool,
    /// Tells this machine's ranks from others'.
    number: u64,
}

#[derive(Default)]
struct Turns {
    standing: Vec<Standing>,
    /// The machine's own threads that have nothing to do.
    idle: Vec<i32>,
    /// Turns given so far, and decisions not to give one.
    decisions: u64,
    /// Counts what may have ended a wait.
    activity: u64,
    /// Turns that only a wait for something else than a thread has made necessary.
    retries: usize,
    /// Threads that were let go and have not gone.
    leaving: usize,
    /// Rank of the last one, and the next rank.
    last: u64,
    ranks: u64,
    /// The thread that looks at the others again and again.
    watcher: Option<i32>,
    closed: bool,
}

/// A thread at the turnstile.
struct Standing {
    place: Arc<Place>,
    /// What it waits for has not happened before this activity.
    since: Option<u64>,
    /// The seed has decided that it goes on.
    goes_on: bool,
}

/// What a thread brings along.
struct Place {
    id: i32,
    /// The machine that gave the rank, and the rank: threads are told apart by the order in which
    /// they were created, among those that came at the same time.
    machine: AtomicU64,
    rank: AtomicU64,
    is_let_go: AtomicBool,
    wake: Condvar,
}

fn is_alone(alone: Option<&AtomicU8>) -> bool {
    alone.is_some_and(|alone| alone.load(Ordering::Relaxed) != 0)
}

thread_local! {
    /// From `Arc::into_raw`; given back when the thread ends.
    static PLACE: Cell<*const Place> = const { Cell::new(std::ptr::null()) };
    /// The machine and the rank once more, for a quick look.
    static OWN: Cell<(u64, u64)> = const { Cell::new((0, NONE)) };
}

impl Place {
    /// Where the thread had one before, this is the same.
    fn new() -> Arc<Place> {
        let (machine, rank) = OWN.get();
        Arc::new(Place {
            // SAFETY: gettid has no preconditions.
            id: unsafe { libc::gettid() },
            machine: AtomicU64::new(machine),
            rank: AtomicU64::new(rank),
            is_let_go: AtomicBool::new(false),
            wake: Condvar::new(),
        })
    }

    /// This thread's; a new one each time where none can be kept.
    fn own() -> Arc<Place> {
        let mut own = PLACE.get();
        if own.is_null() {
            let new = Place::new();
            if !worker::at_end(Place::forget) {
                return new;
            }
            own = Arc::into_raw(new);
            PLACE.set(own);
        }
        // SAFETY: from `into_raw`, and `forget` gives its reference back on this thread only.
        unsafe { Arc::increment_strong_count(own) };
        // SAFETY: the reference that was just added.
        unsafe { Arc::from_raw(own) }
    }

    /// This thread is ending.
    fn forget() {
        let own = PLACE.replace(std::ptr::null());
        // SAFETY: from `into_raw` in `own`, and given back once.
        drop(unsafe { Arc::from_raw(own) });
    }

    fn rank(&self, machine: u64) -> u64 {
        if self.machine.load(Ordering::Relaxed) == machine {
            self.rank.load(Ordering::Relaxed)
        } else {
            NONE
        }
    }

    fn set_rank(&self, machine: u64, rank: u64) {
        self.machine.store(machine, Ordering::Relaxed);
        self.rank.store(rank, Ordering::Relaxed);
    }
}

impl Turnstile {
    /// `counts`: of a machine that keeps turns.
    pub(super) fn new(counts: bool) -> Turnstile {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Looked up, since not every C library has it.
        // SAFETY: the name ends with NUL.
        let alone = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
        // SAFETY: a char of the C library, which is always there.
        let alone = unsafe { alone.cast::<AtomicU8>().as_ref() };
        let mut census = Census::default();
        if counts && !is_alone(alone) {
            census.begin();
        }
        Turnstile {
            turns: Mutex::new(Turns { last: NONE, ranks: 1, ..Turns::default() }),
            census: Mutex::new(census),
            arriving: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            stamp: AtomicU64::new(0),
            alone,
            has_first: AtomicBool::new(false),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// A thread makes a call: comes back when it is its turn.
    #[inline]
    pub(super) fn call(&self, strategy: &Strategy) {
        if is_alone(self.alone) {
            if !self.has_first.load(Ordering::Relaxed) {
                self.take_first();
            }
        } else {
            self.pass(strategy, Reason::Call);
        }
    }

    /// A thread needs what another one does: comes back when that may be done. `false`: the thread
    /// is a stranger here.
    pub(super) fn give_way(&self, strategy: &Strategy) -> bool {
        (self.rank() != NONE || super::schedule::in_callback()) && self.pass(strategy, Reason::Wait)
    }

    /// The calling thread's rank.
    pub(super) fn rank(&self) -> u64 {
        let (machine, rank) = OWN.get();
        if machine == self.number { rank } else { NONE }
    }

    #[cold]
    fn take_first(&self) {
        self.has_first.store(true, Ordering::Relaxed);
        let own = Place::own();
        own.set_rank(self.number, 0);
        lock(&self.census).add_caller(own.id);
        OWN.set((self.number, 0));
    }

    /// Stands at the turnstile until it is this thread's turn; `false` when the machine goes off.
    pub(super) fn pass(&self, strategy: &Strategy, reason: Reason) -> bool {
        self.arriving.fetch_add(1, Ordering::SeqCst);
        self.stamp.fetch_add(1, Ordering::SeqCst);
        let mut turns = lock(&self.turns);
        self.arriving.fetch_sub(1, Ordering::SeqCst);
        if turns.closed {
            return false;
        }
        let mut goes_on = false;
        if reason == Reason::Call && turns.last != NONE && turns.last == self.rank() {
            turns.decisions += 1;
            goes_on = !strategy.takes_turn_away(turns.decisions);
        }
        let place = Place::own();
        place.is_let_go.store(false, Ordering::Relaxed);
        let since = (reason == Reason::Wait).then_some(turns.activity);
        turns.standing.push(Standing { place: Arc::clone(&place), since, goes_on });
        self.stand(turns, strategy, &place)
    }

    fn stand<'a>(
        &'a self,
        mut turns: MutexGuard<'a, Turns>,
        strategy: &Strategy,
        place: &Arc<Place>,
    ) -> bool {
        let mut pause = FIRST_PAUSE;
        loop {
            turns = self.look(turns, strategy, place, pause == LAST_PAUSE);
            if turns.closed || place.is_let_go.load(Ordering::Relaxed) {
                break;
            }
            if turns.watcher.is_some_and(|watcher| watcher != place.id) {
                turns = place.wake.wait(turns).unwrap_or_else(PoisonError::into_inner);
            } else {
                turns.watcher = Some(place.id);
                let waited = place.wake.wait_timeout(turns, pause);
                let (guard, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
                turns = guard;
                let longer = (pause * 2).min(LAST_PAUSE);
                pause = if outcome.timed_out() { longer } else { FIRST_PAUSE };
            }
            if turns.closed || place.is_let_go.load(Ordering::Relaxed) {
                break;
            }
        }
        if turns.watcher == Some(place.id) {
            turns.watcher = None;
        }
        if place.is_let_go.load(Ordering::Relaxed) {
            turns.leaving -= 1;
            OWN.set((self.number, place.rank(self.number)));
        }
        turns.standing.retain(|standing| !Arc::ptr_eq(&standing.place, place));
        if turns.watcher.is_none()
            && let Some(next) = turns.standing.first()
        {
            next.place.wake.notify_one();
        }
        !turns.closed
    }

    /// Gives a turn if nobody is on the way. `retry`: also to one whose wait nothing has ended that
    /// is known here.
    fn look<'a>(
        &'a self,
        turns: MutexGuard<'a, Turns>,
        strategy: &Strategy,
        own: &Place,
        retry: bool,
    ) -> MutexGuard<'a, Turns> {
        let stamp = self.stamp.load(Ordering::SeqCst);
        if !self.may_give(&turns) || !(retry || turns.standing.iter().any(|one| turns.may_go(one)))
        {
            return turns;
        }
        let known = turns.known();
        drop(turns);
        let is_quiet = lock(&self.census).is_quiet(&known);
        let mut turns = lock(&self.turns);
        if is_quiet && stamp == self.stamp.load(Ordering::SeqCst) && self.may_give(&turns) {
            self.give(&mut turns, strategy, own);
        }
        turns
    }

    fn may_give(&self, turns: &Turns) -> bool {
        turns.leaving == 0
            && !turns.closed
            && self.arriving.load(Ordering::SeqCst) == 0
            && self.busy.load(Ordering::SeqCst) == 0
    }

    /// Lets one of the threads go.
    fn give(&self, turns: &mut Turns, strategy: &Strategy, own: &Place) {
        self.rank_newcomers(turns);
        turns.standing.sort_by_key(|one| one.place.rank(self.number));
        let mut free: Vec<usize> = (0..turns.standing.len()).collect();
        free.retain(|index| turns.may_go(&turns.standing[*index]));
        let chosen = if let Some(index) = turns.standing.iter().position(|one| one.goes_on) {
            index
        } else if free.is_empty() {
            // Depends on time: no decision of the seed's is spent on it.
            turns.retries += 1;
            turns.retries % turns.standing.len().max(1)
        } else {
            turns.decisions += 1;
            free[strategy.turn(turns.decisions, free.len())]
        };
        if chosen >= turns.standing.len() {
            return;
        }
        let Standing { place, goes_on, .. } = turns.standing.remove(chosen);
        if !free.is_empty() && !goes_on {
            turns.activity += 1;
            turns.last = place.rank(self.number);
        }
        turns.leaving += 1;
        self.stamp.fetch_add(1, Ordering::SeqCst);
        if turns.watcher == Some(place.id) {
            turns.watcher = None;
        }
        place.is_let_go.store(true, Ordering::Relaxed);
        if !std::ptr::eq(own, Arc::as_ptr(&place)) {
            place.wake.notify_one();
        }
    }

    fn rank_newcomers(&self, turns: &mut Turns) {
        let is_new = |one: &&Standing| one.place.rank(self.number) == NONE;
        let mut fresh: Vec<Arc<Place>> =
            turns.standing.iter().filter(is_new).map(|one| Arc::clone(&one.place)).collect();
        if fresh.is_empty() {
            return;
        }
        lock(&self.census).sort(&mut fresh, |place| place.id);
        for place in fresh {
            place.set_rank(self.number, turns.ranks);
            turns.ranks += 1;
        }
    }

    /// Something happened that a wait may have been for.
    pub(super) fn stir(&self) {
        let mut turns = lock(&self.turns);
        turns.activity += 1;
        self.stamp.fetch_add(1, Ordering::SeqCst);
    }

    /// A thread in a call falls asleep, and goes on by itself; or one of the machine's own is about
    /// to start, and ends this when it is ready.
    pub(super) fn begin_nap(&self) {
        self.busy.fetch_add(1, Ordering::SeqCst);
        self.stamp.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn end_nap(&self) {
        self.stamp.fetch_add(1, Ordering::SeqCst);
        self.busy.fetch_sub(1, Ordering::SeqCst);
    }

    /// A thread of the machine, `id`, sleeps until its bell rings, or so long; it holds no lock. Were
    /// it to hold one while it counts as idle, a thread in the middle of a call that waits for the
    /// lock would be taken for one that sleeps for long.
    pub(super) fn sleep(&self, id: i32, bell: &Bell, longest: Option<Duration>) {
        self.set_idle(id, true);
        bell.wait(longest);
        self.set_idle(id, false);
    }

    pub(super) fn set_idle(&self, id: i32, is_idle: bool) {
        let mut turns = lock(&self.turns);
        turns.idle.retain(|idle| *idle != id);
        if is_idle {
            turns.idle.push(id);
        }
        self.stamp.fetch_add(1, Ordering::SeqCst);
    }

    /// Does every thread sleep that does not stand here, but for the calling one, `id`? Gives what
    /// [`is_still`](Self::is_still) takes.
    pub(super) fn quiet(&self, id: i32) -> Option<u64> {
        let turns = lock(&self.turns);
        let stamp = self.stamp.load(Ordering::SeqCst);
        if !self.may_give(&turns) {
            return None;
        }
        let mut known = turns.known();
        drop(turns);
        known.push(id);
        lock(&self.census).is_quiet(&known).then_some(stamp)
    }

    /// Has nobody come or gone since?
    pub(super) fn is_still(&self, stamp: u64) -> bool {
        self.stamp.load(Ordering::SeqCst) == stamp
    }

    /// Looks at a thread while nobody who counts as standing holds a lock of the C library's that it
    /// may want: those who look at the threads allocate.
    pub(super) fn undisturbed<R>(&self, look: impl FnOnce() -> R) -> R {
        let _turns = lock(&self.turns);
        let _census = lock(&self.census);
        look()
    }

    /// Does a thread stand here that will go on in any case?
    pub(super) fn has_callers(&self) -> bool {
        lock(&self.turns).standing.iter().any(|one| one.since.is_none())
    }

    /// Lets everyone go.
    pub(super) fn close(&self) {
        let mut turns = lock(&self.turns);
        turns.closed = true;
        turns.standing.iter().for_each(|one| one.place.wake.notify_one());
    }
}

impl Turns {
    /// The threads of which is known that they do nothing.
    fn known(&self) -> Vec<i32> {
        let standing = self.standing.iter().map(|one| one.place.id);
        standing.chain(self.idle.iter().copied()).collect()
    }

    /// May what it waits for have happened?
    fn may_go(&self, one: &Standing) -> bool {
        one.since.is_none_or(|since| since != self.activity)
    }
}
