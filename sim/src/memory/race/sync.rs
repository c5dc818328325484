//! The clocks of threads, and what barriers make of them.

use super::clock::{Clock, NumberMap, join_into, joined};
use super::shadow::{COPY, LAST_EPOCH, Shadow};
use std::rc::Rc;

/// Barriers of a block.
const BARRIERS: usize = 16;
/// Generations of a barrier whose clock is kept: a thread may resume after others have arrived at
/// the next ones.
const GENERATIONS: usize = 4;

/// The clocks of a thread.
#[derive(Clone)]
pub(super) struct Thread {
    /// What happened before, except for its own accesses.
    pub(super) clock: Rc<Clock>,
    /// Its epoch. It ends when the thread releases what it has done.
    pub(super) epoch: u32,
    /// The epoch of its copies, and the last one that it has waited for.
    pub(super) copies: u32,
    pub(super) copied: u32,
    /// What happened before its last fence, which its relaxed writes release.
    pub(super) fenced: Option<Rc<Clock>>,
    /// What was released with the values that its relaxed reads read, until its next fence.
    pub(super) unfenced: Option<Rc<Clock>>,
}

impl Thread {
    fn new(clock: &Rc<Clock>) -> Thread {
        let (clock, fenced, unfenced) = (Rc::clone(clock), None, None);
        Thread { clock, epoch: 1, copies: 1, copied: 0, fenced, unfenced }
    }

    /// What happened before, its own accesses included.
    pub(super) fn known(&self, thread: u32, has_copies: bool) -> Clock {
        let copied = if has_copies { self.copies } else { self.copied };
        let copies = (copied > 0).then_some((thread | COPY, copied));
        self.clock.join(&Clock::of(std::iter::once((thread, self.epoch)).chain(copies)))
    }

    pub(super) fn advance(&mut self) {
        self.epoch = (self.epoch + 1).min(LAST_EPOCH);
    }

    pub(super) fn acquire(&mut self, clock: &Rc<Clock>) {
        self.clock = joined(&self.clock, clock);
    }

    pub(super) fn fence(&mut self, thread: u32) {
        if let Some(unfenced) = self.unfenced.take() {
            self.acquire(&unfenced);
        }
        self.fenced = Some(Rc::new(self.known(thread, false)));
        self.advance();
    }
}

/// Threads that arrive at a barrier, and what all of them know together.
#[derive(Default)]
pub(super) struct Meeting {
    clocks: Vec<Rc<Clock>>,
    fenced: Vec<Rc<Clock>>,
    /// Threads and their epochs, and those of copies that they waited for.
    members: Vec<(u32, u32)>,
    copied: Vec<(u32, u32)>,
    /// The last epoch of the threads that wait.
    last: u32,
    /// Threads that wait, whose epochs are raised to the last one: equal epochs are one run.
    waiting: Vec<u32>,
    joined: Option<Joined>,
}

#[derive(Clone)]
struct Joined {
    clock: Rc<Clock>,
    fenced: Option<Rc<Clock>>,
    /// The epoch of the threads that waited.
    epoch: u32,
}

fn push(list: &mut Vec<Rc<Clock>>, clock: &Rc<Clock>) {
    if !list.iter().rev().take(4).any(|known| Rc::ptr_eq(known, clock)) {
        list.push(Rc::clone(clock));
    }
}

impl Meeting {
    /// A thread arrives.
    ///
    /// What it read with relaxed reads but has not fenced counts as acquired, and what it fenced
    /// may be released by another thread after the barrier: one thread of a block often
    /// synchronises with other blocks for all, with fences before or after the block's barrier.
    pub(super) fn arrive(&mut self, number: u32, thread: &mut Thread, waits: bool) {
        self.joined = None;
        push(&mut self.clocks, &thread.clock);
        if let Some(unfenced) = &thread.unfenced {
            push(&mut self.clocks, unfenced);
        }
        if let Some(fenced) = &thread.fenced {
            push(&mut self.fenced, fenced);
        }
        if thread.copied > 0 {
            self.copied.push((number | COPY, thread.copied));
        }
        if waits {
            self.last = self.last.max(thread.epoch);
            self.waiting.push(number);
        } else {
            self.members.push((number, thread.epoch));
            thread.advance();
        }
    }

    fn join(&mut self, exited: Option<&Rc<Clock>>) -> Joined {
        if let Some(joined) = &self.joined {
            return joined.clone();
        }
        let last = self.last;
        self.members.extend(self.waiting.drain(..).map(|thread| (thread, last)));
        // A thread that exits may be here twice.
        for list in [&mut self.members, &mut self.copied] {
            list.sort_unstable();
            list.dedup_by(|later, kept| {
                let is_same = later.0 == kept.0;
                kept.1 = if is_same { kept.1.max(later.1) } else { kept.1 };
                is_same
            });
        }
        let epochs = self.members.iter().chain(&self.copied).copied();
        let mut clock = Clock::of(epochs);
        for other in self.clocks.iter().chain(exited) {
            clock = clock.join(other);
        }
        let mut fenced = None;
        self.fenced.iter().for_each(|one| join_into(&mut fenced, one));
        let epoch = last.saturating_add(1).min(LAST_EPOCH);
        let joined = Joined { clock: Rc::new(clock), fenced, epoch };
        self.joined = Some(joined.clone());
        joined
    }

    /// A thread that waited goes on.
    pub(super) fn resume(&mut self, thread: &mut Thread, exited: Option<&Rc<Clock>>) {
        let Joined { clock, fenced, epoch } = self.join(exited);
        (thread.clock, thread.epoch) = (clock, epoch.max(thread.epoch));
        (thread.fenced, thread.unfenced) = (fenced, None);
    }

    /// A thread that arrived before it waited goes on.
    pub(super) fn resume_after(&mut self, thread: &mut Thread, exited: Option<&Rc<Clock>>) {
        let Joined { clock, fenced, .. } = self.join(exited);
        thread.acquire(&clock);
        fenced.iter().for_each(|joined| join_into(&mut thread.fenced, joined));
    }

    /// What all know.
    pub(super) fn clock(mut self) -> Rc<Clock> {
        self.join(None).clock
    }
}

/// The last generations of a barrier.
#[derive(Default)]
pub(super) struct Meetings {
    list: Vec<(u64, Meeting)>,
}

impl Meetings {
    pub(super) fn at(&mut self, generation: u64) -> &mut Meeting {
        let at = match self.list.iter().position(|(known, _)| *known == generation) {
            Some(at) => at,
            None => {
                if self.list.len() >= GENERATIONS {
                    self.list.remove(0);
                }
                self.list.push((generation, Meeting::default()));
                self.list.len() - 1
            }
        };
        &mut self.list[at].1
    }
}

/// A block.
pub(super) struct Block {
    /// The number of its first thread.
    pub(super) first: u32,
    pub(super) threads: Vec<Thread>,
    pub(super) barriers: [Meetings; BARRIERS],
    /// What the threads that have exited knew: they count as arrived at later barriers.
    pub(super) exited: Option<Rc<Clock>>,
}

impl Block {
    pub(super) fn new(first: u32, threads: u32) -> Block {
        let clock = Rc::default();
        Block {
            first,
            threads: vec![Thread::new(&clock); threads as usize],
            barriers: Default::default(),
            exited: None,
        }
    }
}

/// The blocks of a cluster.
pub(super) struct Cluster {
    pub(super) blocks: Vec<Block>,
    pub(super) shadow: Shadow,
    /// What was released with the value of a word of shared memory.
    pub(super) released: NumberMap<Rc<Clock>>,
    pub(super) barrier: Meetings,
    pub(super) exited: Option<Rc<Clock>>,
}
