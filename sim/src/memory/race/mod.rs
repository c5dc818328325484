//! Finds data races: accesses of two threads of a launch to the same bytes, of which at least one
//! writes and at least one is not atomic, and which nothing orders.
//!
//! Each thread has a vector clock, which holds the last epoch of each other thread that happened
//! before. Shadow memory holds the accesses to each word with their epochs. An access whose epoch
//! the clock of a later one does not contain races with it, in whatever order the launch happened
//! to execute them.
//!
//! What orders accesses:
//! - the order of a thread's instructions;
//! - barriers of the block and of the cluster, and `bar.warp.sync`. The other instructions of a
//!   warp with `.sync` (`shfl`, `vote`, `match`, `redux`, `elect`) exchange registers; PTX orders
//!   no memory by them, so they order none here;
//! - a write that releases and a read that acquires its value. Releases are `.release` or a fence
//!   before a relaxed or volatile write or an atomic operation; acquires are the reverse. Scopes
//!   are ignored. A barrier of the block carries both on to other threads;
//! - arrivals at an `mbarrier` and a test that finds its phase complete;
//! - for copies of `cp.async`, `cp.async.bulk` and `st.async`: the wait of the thread or the
//!   `mbarrier` that they signal. Until then they race with the thread that started them.
//!
//! A plain load whose value an `atom.cas` compares counts as relaxed, since that verifies it.
//!
//! Where only some programs rely on an order, it is assumed. What is missed because of this and
//! because of bounded memory is not reported; what is reported is a race by the rules of PTX.

mod clock;
mod order;
mod report;
mod shadow;
mod sync;

pub use order::Order;
pub(super) use order::{Acquires, Effects, Releases};
pub use report::{Access, Action, Race, Settings, Space, Summary};

use clock::{Clock, NumberMap, join_into, joined};
use shadow::{Budget, COPY, Conflict, Entry, Kind, MOST_SITES, Shadow, Viewer};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use sync::{Block, Cluster, Meeting, Thread};

/// Pairs of instructions that a launch reports at most.
const MOST_REPORTS: usize = 16;
/// Threads of a warp.
const LANES: u32 = 32;
/// Bytes of a word whose release is kept.
const WORD: u64 = 4;

/// An instruction of a program.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// Its line in the PTX text.
    pub line: u32,
    /// File and line of the source, 0 if unknown.
    pub source: (u32, u32),
    /// The order of its accesses.
    pub order: Order,
}

/// A variable and where it is.
#[derive(Clone, Debug)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// Its space.
    pub space: Space,
    /// Its first address; in shared memory, from the start of the block's.
    pub start: u64,
    /// Its bytes; 0 if they reach to the end of the block's shared memory.
    pub bytes: u64,
}

/// A launch.
pub struct Launch {
    /// The name of the kernel.
    pub kernel: String,
    /// The instructions of each function.
    pub sites: Vec<Vec<Site>>,
    /// Source files by number.
    pub files: std::collections::BTreeMap<u32, String>,
    /// Variables in shared and global memory.
    pub variables: Vec<Named>,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Blocks of a cluster in x, y and z.
    pub cluster: [u32; 3],
    /// Bytes of shared memory of a block.
    pub shared_bytes: u64,
}

/// Where an access is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Location {
    Global(u64),
    /// In the bytes of the cluster.
    Shared(u64),
}

/// What an instruction does at a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Read,
    Write,
    /// An atomic operation.
    Update,
}

/// A race that was found.
#[derive(Clone, Copy)]
pub(super) struct Found {
    conflict: Conflict,
    entry: Entry,
    thread: u32,
    location: Location,
    bytes: u32,
}

impl Found {
    /// True if both accesses write.
    pub(super) fn is_of_writes(&self) -> bool {
        self.conflict.entry.kind().is_write() && self.entry.kind().is_write()
    }
}

/// The races of a launch that runs.
pub struct Detector {
    launch: Launch,
    /// The number of the first instruction of each function.
    first_sites: Vec<u32>,
    block_threads: u32,
    clusters: HashMap<[u32; 3], Box<Cluster>>,
    /// The cluster, block and warp that run.
    current: Box<Cluster>,
    place: [u32; 3],
    rank: usize,
    /// The index in the block of the warp's first thread.
    first: u32,
    /// The instruction that runs: its number and the effects of its accesses.
    site: u32,
    global: Shadow,
    /// What was released with the value of a word of global memory.
    released: NumberMap<Rc<Clock>>,
    budget: Budget,
    pairs: HashSet<(u32, Kind, u32, Kind, bool)>,
    summary: Summary,
    /// The last row of reads, while nothing else has happened: a loop that waits repeats it.
    row: Option<Row>,
}

/// Reads of the lanes of a warp: the instruction, the active lanes and the addresses.
type Row = (u32, u32, [u64; LANES as usize]);

impl Cluster {
    fn empty() -> Box<Cluster> {
        Box::new(Cluster {
            blocks: Vec::new(),
            shadow: Shadow::default(),
            released: NumberMap::default(),
            barrier: sync::Meetings::default(),
            exited: None,
        })
    }
}

impl Detector {
    /// Begins with a launch; `None` if its grid has too many threads.
    pub fn new(launch: Launch, settings: Settings) -> Option<Detector> {
        let block_threads: u32 = launch.block.iter().product();
        let blocks: u128 = launch.grid.iter().map(|count| u128::from(*count)).product();
        if blocks * u128::from(block_threads) >= u128::from(COPY) {
            return None;
        }
        let mut end = 0u32;
        let first_sites = launch.sites.iter().map(|list| {
            let first = end;
            end = end.saturating_add(list.len() as u32);
            first
        });
        let first_sites = first_sites.collect();
        let summary = Summary { kernel: launch.kernel.clone(), ..Summary::default() };
        Some(Detector {
            launch,
            first_sites,
            block_threads,
            clusters: HashMap::new(),
            current: Cluster::empty(),
            place: [u32::MAX; 3],
            rank: 0,
            first: 0,
            site: 0,
            global: Shadow::default(),
            released: NumberMap::default(),
            budget: Budget { bytes: settings.bytes, is_exhausted: false },
            pairs: HashSet::new(),
            summary,
            row: None,
        })
    }

    /// What was found.
    pub fn summary(&self) -> Summary {
        let is_incomplete = self.budget.is_exhausted;
        Summary { is_incomplete, reported: self.pairs.len() as u32, ..self.summary.clone() }
    }

    /// The blocks of a cluster begin.
    pub fn start(&mut self, place: [u32; 3]) {
        let [x, y, z] = self.launch.cluster;
        let mut made = Cluster::empty();
        for rank in 0..x * y * z {
            let inner = [rank % x, rank / x % y, rank / x / y];
            let [i, j, k]: [u32; 3] =
                std::array::from_fn(|d| place[d] * self.launch.cluster[d] + inner[d]);
            let index = (k * self.launch.grid[1] + j) * self.launch.grid[0] + i;
            made.blocks.push(Block::new(index * self.block_threads, self.block_threads));
        }
        self.clusters.insert(place, made);
    }

    /// The blocks of a cluster have ended.
    pub fn finish(&mut self, place: [u32; 3]) {
        if self.place == place {
            self.place = [u32::MAX; 3];
            self.current.shadow.give_back(&mut self.budget);
            self.current = Cluster::empty();
        } else if let Some(cluster) = self.clusters.remove(&place) {
            cluster.shadow.give_back(&mut self.budget);
        }
    }

    /// A warp of a block runs from now on.
    pub fn enter(&mut self, place: [u32; 3], rank: usize, warp: u32) {
        (self.rank, self.first) = (rank, warp * LANES);
        self.row = None;
        if self.place == place {
            return;
        }
        let next = self.clusters.remove(&place).unwrap_or_else(Cluster::empty);
        let last = std::mem::replace(&mut self.current, next);
        if self.place != [u32::MAX; 3] {
            self.clusters.insert(self.place, last);
        }
        self.place = place;
    }

    /// Calls a function for each of some lanes with its number and clocks.
    fn each(&mut self, lanes: u32, mut run: impl FnMut(u32, &mut Thread)) {
        self.row = None;
        let Some(block) = self.current.blocks.get_mut(self.rank) else { return };
        for lane in (0..LANES).filter(|lane| lanes >> lane & 1 != 0) {
            let index = self.first + lane;
            if let Some(thread) = block.threads.get_mut(index as usize) {
                run(block.first + index, thread);
            }
        }
    }

    /// Lanes pass a fence.
    pub(super) fn fence(&mut self, lanes: u32) {
        self.each(lanes, |number, thread| thread.fence(number));
    }

    /// Lanes end a group of their copies.
    pub(super) fn commit_copies(&mut self, lanes: u32) {
        self.each(lanes, |_, thread| thread.copies = thread.copies.saturating_add(1));
    }

    /// Lanes wait for all groups of their copies but the last ones.
    pub(super) fn wait_for_copies(&mut self, lanes: u32, except: u32) {
        self.each(lanes, |_, thread| {
            let complete = (thread.copies - 1).saturating_sub(except);
            thread.copied = thread.copied.max(complete);
        });
    }

    /// Lanes of the warp wait for each other.
    pub fn meet(&mut self, lanes: u32) {
        let mut meeting = Meeting::default();
        self.each(lanes, |number, thread| meeting.arrive(number, thread, true));
        self.each(lanes, |_, thread| meeting.resume(thread, None));
    }

    /// Lanes arrive at a barrier of the block.
    pub fn arrive(&mut self, barrier: u32, generation: u64, lanes: u32, waits: bool) {
        let Some(block) = self.current.blocks.get_mut(self.rank) else { return };
        let Some(meetings) = block.barriers.get_mut(barrier as usize) else { return };
        let mut meeting = std::mem::take(meetings.at(generation));
        self.each(lanes, |number, thread| meeting.arrive(number, thread, waits));
        let Some(block) = self.current.blocks.get_mut(self.rank) else { return };
        *block.barriers[barrier as usize].at(generation) = meeting;
    }

    /// Lanes that waited at a barrier of the block go on.
    pub fn resume(&mut self, barrier: u32, generation: u64, lanes: u32) {
        let Some(block) = self.current.blocks.get_mut(self.rank) else { return };
        let exited = block.exited.clone();
        let Some(meetings) = block.barriers.get_mut(barrier as usize) else { return };
        let mut meeting = std::mem::take(meetings.at(generation));
        self.each(lanes, |_, thread| meeting.resume(thread, exited.as_ref()));
        let Some(block) = self.current.blocks.get_mut(self.rank) else { return };
        *block.barriers[barrier as usize].at(generation) = meeting;
    }

    /// Lanes arrive at the barrier of the cluster.
    pub fn arrive_at_cluster(&mut self, generation: u64, lanes: u32) {
        let mut meeting = std::mem::take(self.current.barrier.at(generation));
        // Between its arrival and its wait a thread goes on in a new epoch.
        self.each(lanes, |number, thread| meeting.arrive(number, thread, false));
        *self.current.barrier.at(generation) = meeting;
    }

    /// Lanes that waited at the barrier of the cluster go on.
    pub fn resume_in_cluster(&mut self, generation: u64, lanes: u32) {
        let exited = self.current.exited.clone();
        let mut meeting = std::mem::take(self.current.barrier.at(generation));
        self.each(lanes, |_, thread| meeting.resume_after(thread, exited.as_ref()));
        *self.current.barrier.at(generation) = meeting;
    }

    /// Lanes end.
    pub fn exit(&mut self, lanes: u32) {
        let mut meeting = Meeting::default();
        self.each(lanes, |number, thread| meeting.arrive(number, thread, false));
        let clock = meeting.clock();
        if self.current.blocks.len() > 1 {
            join_into(&mut self.current.exited, &clock);
        }
        let Some(block) = self.current.blocks.get_mut(self.rank) else { return };
        join_into(&mut block.exited, &clock);
    }

    /// Memory is given to a thread: what others did with it before does not count.
    pub fn forget(&mut self, address: u64, bytes: u64) {
        self.global.forget(address, bytes);
    }

    /// The instruction that runs; returns the order of its accesses.
    pub(super) fn begin(&mut self, function: u32, pc: u32) -> Effects {
        let first = self.first_sites.get(function as usize).copied().unwrap_or(0);
        self.site = first.saturating_add(pc);
        let site = self.launch.sites.get(function as usize).and_then(|it| it.get(pc as usize));
        site.map_or(Order::Weak, |site| site.order).effects()
    }

    /// True if reads repeat the last ones.
    pub(super) fn repeats(&self, lanes: u32, addresses: &[u64; LANES as usize]) -> bool {
        self.row
            .as_ref()
            .is_some_and(|row| (row.0, row.1) == (self.site, lanes) && row.2 == *addresses)
    }

    /// Reads have been recorded.
    pub(super) fn keep_row(&mut self, lanes: u32, addresses: &[u64; LANES as usize]) {
        self.row = Some((self.site, lanes, *addresses));
    }

    /// Records an access of a lane; returns a race if there is one.
    pub(super) fn access(
        &mut self,
        lane: usize,
        location: Location,
        bytes: u32,
        done: Use,
        effects: Effects,
    ) -> Option<Found> {
        self.row = None;
        let cluster = &mut *self.current;
        let block = cluster.blocks.get_mut(self.rank)?;
        let index = self.first + lane as u32;
        let number = block.first + index;
        let thread = block.threads.get_mut(index as usize)?;
        let (shadow, released, at) = match location {
            Location::Global(at) => (&mut self.global, &mut self.released, at),
            Location::Shared(at) => (&mut cluster.shadow, &mut cluster.released, at),
        };
        let is_strong = effects.is_strong || done == Use::Update;
        let words = at / WORD..(at + u64::from(bytes)).div_ceil(WORD);
        if is_strong && done != Use::Write && !released.is_empty() {
            for clock in words.clone().filter_map(|word| released.get(&word)) {
                match effects.acquires {
                    Acquires::Now => thread.acquire(clock),
                    Acquires::AtFence => join_into(&mut thread.unfenced, clock),
                    Acquires::No => {}
                }
            }
        }
        let kind = match (done, is_strong) {
            (Use::Read, false) => Kind::Read,
            (Use::Read, true) => Kind::AtomicRead,
            (Use::Write, false) => Kind::Write,
            (Use::Write, true) | (Use::Update, _) => Kind::AtomicWrite,
        };
        let (by, epoch) = match effects.is_copy {
            false => (number, thread.epoch),
            true => (number | COPY, thread.copies),
        };
        let entry = Entry::new(by, epoch, self.site, kind);
        let viewer = Viewer {
            thread: number,
            clock: &thread.clock,
            copied: thread.copied,
            is_copy: effects.is_copy,
        };
        let mut found = shadow.access(at, bytes.into(), entry, viewer, &mut self.budget);
        if let (Some(conflict), Some(clock), true) = (found, &thread.unfenced, is_strong) {
            // The atomic read itself comes after what was released with its value.
            let viewer = Viewer { clock, ..viewer };
            if viewer.first_unordered(conflict.entry).is_none() {
                found = None;
            }
        }
        if is_strong && done != Use::Read {
            let clock = match effects.releases {
                Releases::No => None,
                Releases::Fenced => thread.fenced.clone(),
                Releases::Now => Some(Rc::new(thread.known(number, false))),
                Releases::Copies => Some(Rc::new(thread.known(number, true))),
            };
            match effects.releases {
                Releases::Now => thread.advance(),
                Releases::Copies => {
                    thread.advance();
                    thread.copies = thread.copies.saturating_add(1);
                }
                Releases::No | Releases::Fenced => {}
            }
            for word in words {
                match (&clock, done) {
                    // The value of an atomic operation carries on what the one before released.
                    (Some(clock), Use::Update) => {
                        let known = released.entry(word).or_insert_with(|| Rc::clone(clock));
                        *known = joined(known, clock);
                    }
                    (Some(clock), _) => drop(released.insert(word, Rc::clone(clock))),
                    (None, Use::Update) => {}
                    (None, _) if released.is_empty() => {}
                    (None, _) => drop(released.remove(&word)),
                }
            }
        }
        let conflict = found?;
        Some(Found { conflict, entry, thread: by, location, bytes })
    }

    /// Counts a race; returns it if it is to be reported.
    pub(super) fn count(&mut self, found: &Found, is_same_value: bool) -> Option<Race> {
        *match is_same_value {
            true => &mut self.summary.same_value,
            false => &mut self.summary.races,
        } += 1;
        let (first, second) = (found.conflict.entry, found.entry);
        let pair = (first.site(), first.kind(), second.site(), second.kind(), is_same_value);
        if self.pairs.len() >= MOST_REPORTS || !self.pairs.insert(pair) {
            return None;
        }
        let (space, address) = match found.location {
            Location::Global(_) => (Space::Global, found.conflict.address),
            Location::Shared(_) => {
                (Space::Shared, found.conflict.address % self.launch.shared_bytes.max(1))
            }
        };
        let is_inside = |it: &&Named| {
            let inside = address.wrapping_sub(it.start);
            it.space == space && address >= it.start && (it.bytes == 0 || inside < it.bytes)
        };
        let variable = self.launch.variables.iter().find(is_inside);
        Some(Race {
            kernel: self.launch.kernel.clone(),
            space,
            address,
            bytes: found.bytes,
            variable: variable.map(|it| (it.name.clone(), address - it.start)),
            first: self.describe(first, found.conflict.thread),
            second: self.describe(second, found.thread),
            is_same_value,
        })
    }

    fn describe(&self, entry: Entry, thread: u32) -> Access {
        let (number, is_copy) = (thread & !COPY, thread & COPY != 0);
        let place = |index: u32, [x, y, _]: [u32; 3]| {
            let (x, y) = (x.max(1), y.max(1));
            [index % x, index / x % y, index / x / y]
        };
        let each = self.block_threads.max(1);
        let site = entry.site();
        let function = self.first_sites.partition_point(|first| *first <= site);
        let known = function.checked_sub(1).and_then(|function| {
            let pc = site - self.first_sites[function];
            self.launch.sites[function].get(pc as usize)
        });
        let known = known.filter(|_| site < MOST_SITES - 1);
        let source = known.and_then(|site| {
            let file = self.launch.files.get(&site.source.0)?;
            Some((file.clone(), site.source.1))
        });
        Access {
            action: match entry.kind() {
                Kind::Read => Action::Read,
                Kind::Write => Action::Write,
                Kind::AtomicRead => Action::AtomicRead,
                Kind::AtomicWrite => Action::AtomicWrite,
            },
            is_copy,
            block: place(number / each, self.launch.grid),
            thread: place(number % each, self.launch.block),
            line: known.map_or(0, |site| site.line),
            source,
        }
    }
}
