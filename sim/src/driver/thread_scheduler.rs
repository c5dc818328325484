//! Schedules host threads: under an adversarial schedule, the seed decides which of them continues.
//!
//! A thread waits here at every call, of the library and of the driver's table. A thread is on its
//! way if it is neither waiting here, nor asleep, nor ended. When no other thread is on its way,
//! the seed selects one of the waiting threads, which alone runs to its next call. So the threads
//! of a host run one at a time between calls. The exception are threads that wake each other
//! without a call; they meet again at their next call.
//!
//! The system shows whether a thread is on its way ([`thread_state`](super::thread_state)). If
//! its answer is wrong, two threads run at the same time, as without a scheduler: the run is a
//! different one, but a valid one. A selected thread holds no lock, so if it blocks, it blocks no
//! other thread.

use super::adversary_policy::Strategy;
use super::hardware::in_callback;
use super::host_calls::thread_id;
use super::sync::lock;
use super::thread_state::ThreadStates;
use super::worker;
use super::worker::Parker;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// First and longest interval between two checks of the threads that are on their way.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LAST_PAUSE: Duration = Duration::from_millis(1);
/// The rank of a thread without a rank.
const NONE: u64 = u64::MAX;

/// The reason why a thread waits here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// It makes a call.
    Call,
    /// It waits for another thread's progress.
    Wait,
}

/// The thread scheduler of a machine.
pub(super) struct ThreadScheduler {
    state: Mutex<SchedulerState>,
    thread_states: Mutex<ThreadStates>,
    /// Number of threads that have begun to wait and are not in the list yet.
    arriving: AtomicUsize,
    /// Number of threads that sleep briefly in the middle of a call, and of the machine's threads
    /// that are being started.
    busy: AtomicUsize,
    /// Changes with every event that a check of the threads can miss.
    stamp: AtomicU64,
    /// The C library's flag that the process has only one thread, if it has this flag.
    alone: Option<&'static AtomicU8>,
    /// True if a thread has rank 0.
    has_first_rank: AtomicBool,
    /// Distinguishes the ranks of this machine from those of others.
    number: u64,
}

#[derive(Default)]
struct SchedulerState {
    waiting: Vec<WaitingThread>,
    /// Ids of the machine's own threads that are idle.
    idle: Vec<i32>,
    /// Number of decisions of the seed so far: threads selected, and checks whether a thread is
    /// preempted.
    decisions: u64,
    /// Number of events that may have ended a wait.
    activity: u64,
    /// Number of selections that were made only because no wait was known to have ended.
    retries: usize,
    /// Number of selected threads that have not continued yet.
    resuming: usize,
    /// Rank of the last selected thread, and the next rank.
    last: u64,
    ranks: u64,
    /// The thread that checks the others periodically.
    watcher: Option<i32>,
    closed: bool,
}

/// A thread that waits here.
struct WaitingThread {
    thread: Arc<ThreadRecord>,
    /// For a wait: it had not ended at this activity count. `None` for a call.
    since: Option<u64>,
    /// True if the seed has decided that this thread continues.
    continues: bool,
}

/// The scheduler's data of a thread.
struct ThreadRecord {
    id: i32,
    /// The machine that assigned the rank, and the rank. Ranks follow the order in which threads
    /// were created, among those that arrived at the same time.
    machine: AtomicU64,
    rank: AtomicU64,
    is_selected: AtomicBool,
    wake: Condvar,
}

fn is_alone(alone: Option<&AtomicU8>) -> bool {
    alone.is_some_and(|alone| alone.load(Ordering::Relaxed) != 0)
}

thread_local! {
    /// From `Arc::into_raw`; released when the thread ends.
    static RECORD: Cell<*const ThreadRecord> = const { Cell::new(std::ptr::null()) };
    /// A copy of machine and rank for fast access.
    static OWN: Cell<(u64, u64)> = const { Cell::new((0, NONE)) };
}

impl ThreadRecord {
    /// Starts with the thread's copy of its rank, if it has one.
    fn new() -> Arc<ThreadRecord> {
        let (machine, rank) = OWN.get();
        Arc::new(ThreadRecord {
            id: thread_id(),
            machine: AtomicU64::new(machine),
            rank: AtomicU64::new(rank),
            is_selected: AtomicBool::new(false),
            wake: Condvar::new(),
        })
    }

    /// The calling thread's; if it cannot be stored, a new one each time.
    fn own() -> Arc<ThreadRecord> {
        let mut own = RECORD.get();
        if own.is_null() {
            let new = ThreadRecord::new();
            if !worker::at_end(ThreadRecord::forget) {
                return new;
            }
            own = Arc::into_raw(new);
            RECORD.set(own);
        }
        // SAFETY: from `into_raw`, and only `forget` on this thread releases its reference.
        unsafe { Arc::increment_strong_count(own) };
        // SAFETY: the reference that was just added.
        unsafe { Arc::from_raw(own) }
    }

    /// Releases the data of the calling thread, which is ending.
    fn forget() {
        let own = RECORD.replace(std::ptr::null());
        // SAFETY: from `into_raw` in `own`, and released once.
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

impl ThreadScheduler {
    /// `counts`: true for a machine that schedules threads.
    pub(super) fn new(counts: bool) -> ThreadScheduler {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Looked up by name, since not every C library has it.
        // SAFETY: the name ends with NUL.
        let alone = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
        // SAFETY: a char of the C library, which is never unloaded.
        let alone = unsafe { alone.cast::<AtomicU8>().as_ref() };
        let mut thread_states = ThreadStates::default();
        if counts && !is_alone(alone) {
            thread_states.begin();
        }
        ThreadScheduler {
            state: Mutex::new(SchedulerState { last: NONE, ranks: 1, ..SchedulerState::default() }),
            thread_states: Mutex::new(thread_states),
            arriving: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            stamp: AtomicU64::new(0),
            alone,
            has_first_rank: AtomicBool::new(false),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Begins a call: returns when the thread is selected.
    #[inline]
    pub(super) fn call(&self, strategy: &Strategy) {
        if is_alone(self.alone) {
            if !self.has_first_rank.load(Ordering::Relaxed) {
                self.claim_first_rank();
            }
        } else {
            self.pass(strategy, Reason::Call);
        }
    }

    /// Waits for another thread's progress: returns when it may have happened. Returns `false` if
    /// the thread is not scheduled here.
    pub(super) fn wait_for_progress(&self, strategy: &Strategy) -> bool {
        (self.rank() != NONE || in_callback()) && self.pass(strategy, Reason::Wait)
    }

    /// The calling thread's rank.
    pub(super) fn rank(&self) -> u64 {
        let (machine, rank) = OWN.get();
        if machine == self.number { rank } else { NONE }
    }

    #[cold]
    fn claim_first_rank(&self) {
        self.has_first_rank.store(true, Ordering::Relaxed);
        let own = ThreadRecord::own();
        own.set_rank(self.number, 0);
        lock(&self.thread_states).add_caller(own.id);
        OWN.set((self.number, 0));
    }

    /// Waits until the thread is selected; `false` when the machine is powered off.
    pub(super) fn pass(&self, strategy: &Strategy, reason: Reason) -> bool {
        self.arriving.fetch_add(1, Ordering::SeqCst);
        self.stamp.fetch_add(1, Ordering::SeqCst);
        let mut state = lock(&self.state);
        self.arriving.fetch_sub(1, Ordering::SeqCst);
        if state.closed {
            return false;
        }
        let mut continues = false;
        if reason == Reason::Call && state.last != NONE && state.last == self.rank() {
            state.decisions += 1;
            continues = !strategy.preempts(state.decisions);
        }
        let thread = ThreadRecord::own();
        thread.is_selected.store(false, Ordering::Relaxed);
        let since = (reason == Reason::Wait).then_some(state.activity);
        state.waiting.push(WaitingThread { thread: Arc::clone(&thread), since, continues });
        self.wait_until_selected(state, strategy, &thread)
    }

    fn wait_until_selected<'a>(
        &'a self,
        mut state: MutexGuard<'a, SchedulerState>,
        strategy: &Strategy,
        thread: &Arc<ThreadRecord>,
    ) -> bool {
        let mut pause = FIRST_PAUSE;
        loop {
            state = self.select_if_quiet(state, strategy, thread, pause == LAST_PAUSE);
            if state.closed || thread.is_selected.load(Ordering::Relaxed) {
                break;
            }
            if state.watcher.is_some_and(|watcher| watcher != thread.id) {
                state = thread.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else {
                state.watcher = Some(thread.id);
                let waited = thread.wake.wait_timeout(state, pause);
                let (guard, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
                state = guard;
                let longer = (pause * 2).min(LAST_PAUSE);
                pause = if outcome.timed_out() { longer } else { FIRST_PAUSE };
            }
            if state.closed || thread.is_selected.load(Ordering::Relaxed) {
                break;
            }
        }
        if state.watcher == Some(thread.id) {
            state.watcher = None;
        }
        if thread.is_selected.load(Ordering::Relaxed) {
            state.resuming -= 1;
            OWN.set((self.number, thread.rank(self.number)));
        }
        state.waiting.retain(|waiting| !Arc::ptr_eq(&waiting.thread, thread));
        if state.watcher.is_none()
            && let Some(next) = state.waiting.first()
        {
            next.thread.wake.notify_one();
        }
        !state.closed
    }

    /// Selects a thread if no thread is on its way. With `retry`, it may select a thread whose wait
    /// is not known to have ended.
    fn select_if_quiet<'a>(
        &'a self,
        state: MutexGuard<'a, SchedulerState>,
        strategy: &Strategy,
        own: &ThreadRecord,
        retry: bool,
    ) -> MutexGuard<'a, SchedulerState> {
        let stamp = self.stamp.load(Ordering::SeqCst);
        if !self.may_select(&state)
            || !(retry || state.waiting.iter().any(|one| state.may_continue(one)))
        {
            return state;
        }
        let known = state.known();
        drop(state);
        let is_quiet = lock(&self.thread_states).is_quiet(&known);
        let mut state = lock(&self.state);
        if is_quiet && stamp == self.stamp.load(Ordering::SeqCst) && self.may_select(&state) {
            self.select(&mut state, strategy, own);
        }
        state
    }

    fn may_select(&self, state: &SchedulerState) -> bool {
        state.resuming == 0
            && !state.closed
            && self.arriving.load(Ordering::SeqCst) == 0
            && self.busy.load(Ordering::SeqCst) == 0
    }

    /// Selects one of the waiting threads.
    fn select(&self, state: &mut SchedulerState, strategy: &Strategy, own: &ThreadRecord) {
        self.rank_newcomers(state);
        state.waiting.sort_by_key(|one| one.thread.rank(self.number));
        let mut free: Vec<usize> = (0..state.waiting.len()).collect();
        free.retain(|index| state.may_continue(&state.waiting[*index]));
        let chosen = if let Some(index) = state.waiting.iter().position(|one| one.continues) {
            index
        } else if free.is_empty() {
            // Depends on time, so it consumes no decision of the seed.
            state.retries += 1;
            state.retries % state.waiting.len().max(1)
        } else {
            state.decisions += 1;
            free[strategy.select(state.decisions, free.len())]
        };
        if chosen >= state.waiting.len() {
            return;
        }
        let WaitingThread { thread, continues, .. } = state.waiting.remove(chosen);
        if !free.is_empty() && !continues {
            state.activity += 1;
            state.last = thread.rank(self.number);
        }
        state.resuming += 1;
        self.stamp.fetch_add(1, Ordering::SeqCst);
        if state.watcher == Some(thread.id) {
            state.watcher = None;
        }
        thread.is_selected.store(true, Ordering::Relaxed);
        if !std::ptr::eq(own, Arc::as_ptr(&thread)) {
            thread.wake.notify_one();
        }
    }

    fn rank_newcomers(&self, state: &mut SchedulerState) {
        let is_new = |one: &&WaitingThread| one.thread.rank(self.number) == NONE;
        let mut fresh: Vec<Arc<ThreadRecord>> =
            state.waiting.iter().filter(is_new).map(|one| Arc::clone(&one.thread)).collect();
        if fresh.is_empty() {
            return;
        }
        lock(&self.thread_states).sort(&mut fresh, |thread| thread.id);
        for thread in fresh {
            thread.set_rank(self.number, state.ranks);
            state.ranks += 1;
        }
    }

    /// Notes an event that may have ended a wait.
    pub(super) fn note_activity(&self) {
        let mut state = lock(&self.state);
        state.activity += 1;
        self.stamp.fetch_add(1, Ordering::SeqCst);
    }

    /// Begins a short sleep of a thread in a call, or the start of one of the machine's threads,
    /// which ends this itself when it is ready.
    pub(super) fn begin_short_sleep(&self) {
        self.busy.fetch_add(1, Ordering::SeqCst);
        self.stamp.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn end_short_sleep(&self) {
        self.stamp.fetch_add(1, Ordering::SeqCst);
        self.busy.fetch_sub(1, Ordering::SeqCst);
    }

    /// Parks thread `id` of the machine until it is woken or `longest` has passed. The thread must
    /// hold no lock. Otherwise a thread in the middle of a call that waits for the lock would look
    /// asleep.
    pub(super) fn park(&self, id: i32, parker: &Parker, longest: Option<Duration>) {
        self.set_idle(id, true);
        parker.park(longest);
        self.set_idle(id, false);
    }

    pub(super) fn set_idle(&self, id: i32, is_idle: bool) {
        let mut state = lock(&self.state);
        state.idle.retain(|idle| *idle != id);
        if is_idle {
            state.idle.push(id);
        }
        self.stamp.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns a stamp if all threads sleep, except those that wait here and the calling thread
    /// `id`. The stamp is the argument of [`is_unchanged`](Self::is_unchanged).
    pub(super) fn quiet_stamp(&self, id: i32) -> Option<u64> {
        let state = lock(&self.state);
        let stamp = self.stamp.load(Ordering::SeqCst);
        if !self.may_select(&state) {
            return None;
        }
        let mut known = state.known();
        drop(state);
        known.push(id);
        lock(&self.thread_states).is_quiet(&known).then_some(stamp)
    }

    /// True if no thread has arrived or continued since the stamp.
    pub(super) fn is_unchanged(&self, stamp: u64) -> bool {
        self.stamp.load(Ordering::SeqCst) == stamp
    }

    /// Runs `look`, which checks a thread, under the locks of the scheduler. Checks allocate, and
    /// an allocating thread that counts as waiting could hold a C library lock which the checked
    /// thread needs.
    pub(super) fn with_scheduler_locked<R>(&self, look: impl FnOnce() -> R) -> R {
        let _turns = lock(&self.state);
        let _thread_states = lock(&self.thread_states);
        look()
    }

    /// True if a thread waits here with a call, which needs no other thread's progress.
    pub(super) fn has_callers(&self) -> bool {
        lock(&self.state).waiting.iter().any(|one| one.since.is_none())
    }

    /// Releases all threads.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.waiting.iter().for_each(|one| one.thread.wake.notify_one());
    }
}

impl SchedulerState {
    /// Ids of the threads that are known to be waiting here or idle.
    fn known(&self) -> Vec<i32> {
        let waiting = self.waiting.iter().map(|one| one.thread.id);
        waiting.chain(self.idle.iter().copied()).collect()
    }

    /// True if the wait of `one` may have ended.
    fn may_continue(&self, one: &WaitingThread) -> bool {
        one.since.is_none_or(|since| since != self.activity)
    }
}
