//! What the threads of this process are at, as far as the system tells (/proc/self/task).

use std::fs::File;
use std::io::Error;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

/// Ticks of /proc/self/task/*/stat (10 ms) that a thread may compute before it is left alone; half of
/// it for the next one, since a host that spins will spin again.
const PATIENCE: u64 = 5;
const LEAST_PATIENCE: u64 = 2;
/// So long at most, whatever the thread does.
pub(super) const LONGEST: Duration = Duration::from_secs(5);
/// A thread that has made no call while it slept through so many of others is a stranger from then
/// on, as those are that were there before the machine: nobody waits for it before its first call.
const STRANGE: u32 = 1000;
/// After so many looks the list is read anew: strangers may end unseen, and others come.
const LOOKS: u32 = 64;
/// Files of more threads are not kept open.
const OPEN_THREADS: usize = 16;

/// The threads.
pub(super) struct Census {
    /// The folder, whose links count the threads.
    folder: Option<File>,
    /// In order of their creation.
    threads: Vec<Thread>,
    patience: u64,
    /// Looks since the list was read.
    looks: u32,
    /// The list cannot be read, for want of /proc or of descriptors: nobody is waited for, which is another
    /// run, not a wrong one.
    is_blind: bool,
}

/// A thread.
struct Thread {
    id: i32,
    /// Looks at it while it slept, before its first call; [`CALLER`] after it.
    slept: u32,
    /// Its files "stat" and "schedstat".
    files: Option<(File, Option<File>)>,
    /// It was first seen running then, having used so many ticks.
    runs: Option<(Instant, u64)>,
    /// It computes for long, and nobody waits for it any more until it sleeps.
    left_alone: bool,
}

/// No stranger for ever.
const CALLER: u32 = u32::MAX;

/// What a look at a thread shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sight {
    /// It has used so many ticks.
    Running(u64),
    /// It was given a processor so often, where the system counts it.
    Asleep(Option<u64>),
    Gone,
}

impl Sight {
    /// Of a thread at which cannot be looked: nobody waits for it, which is another run, not a wrong one.
    const UNSEEN: Sight = Sight::Asleep(None);

    /// Of a thread whose file cannot be read.
    fn none(error: &Error) -> Sight {
        let is_gone = matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH));
        if is_gone { Sight::Gone } else { Sight::UNSEEN }
    }
}

impl Default for Census {
    fn default() -> Census {
        Census { folder: None, threads: Vec::new(), patience: PATIENCE, looks: 0, is_blind: false }
    }
}

impl Census {
    /// All threads there are now but the calling one are strangers.
    pub(super) fn begin(&mut self) {
        self.list();
        self.threads.iter_mut().for_each(|thread| thread.slept = STRANGE);
    }

    /// A thread makes its first call.
    pub(super) fn add_caller(&mut self, id: i32) {
        self.threads.push(Thread { slept: CALLER, ..Thread::new(id) });
    }

    /// Does every thread sleep but for those that are `known` to do nothing?
    ///
    /// One after the other is looked at, and one may wake another meanwhile. So all are looked at
    /// twice: who slept both times, without having run in between, slept in the middle. There they
    /// are counted, since a thread that came after the list was read has been looked at by nobody.
    pub(super) fn is_quiet(&mut self, known: &[i32]) -> bool {
        let count = self.count();
        if count == Some(known.len()) {
            self.threads.iter_mut().for_each(Thread::has_arrived);
            return true;
        }
        self.looks += 1;
        if count.is_none_or(|count| count != self.threads.len()) || self.looks >= LOOKS {
            self.list();
        }
        let others = |thread: &&Thread| !known.contains(&thread.id) && thread.slept != STRANGE;
        // One alone wakes nobody.
        let twice = self.threads.iter().filter(others).count() > 1;
        let first = self.look(known, twice);
        if self.is_blind {
            return true;
        }
        first.is_some() && self.is_complete() && (!twice || first == self.look(known, true))
    }

    /// Is every thread that there is on the list?
    pub(super) fn is_complete(&mut self) -> bool {
        let is_complete = self.count().is_none_or(|count| count == self.threads.len())
            && self.threads.iter().filter(|thread| thread.slept == STRANGE).all(Thread::exists);
        if !is_complete {
            self.list();
        }
        is_complete || self.is_blind
    }

    /// Puts threads in the order of their creation.
    pub(super) fn sort<T>(&mut self, items: &mut [T], id: impl Fn(&T) -> i32) {
        if items.len() > 1 {
            self.list();
            let place = |item: &T| self.threads.iter().position(|thread| thread.id == id(item));
            items.sort_by_key(place);
        }
    }

    fn count(&mut self) -> Option<usize> {
        if self.folder.is_none() {
            self.folder = File::open("/proc/self/task").ok();
        }
        let links = self.folder.as_ref()?.metadata().ok()?.nlink() as usize;
        links.checked_sub(2).filter(|count| *count > 0)
    }

    /// Reads the list anew.
    fn list(&mut self) {
        let entries = std::fs::read_dir("/proc/self/task");
        self.is_blind = entries.is_err();
        let Ok(entries) = entries else { return };
        let mut old = std::mem::take(&mut self.threads);
        self.looks = 0;
        for entry in entries {
            self.is_blind |= entry.is_err();
            let Ok(entry) = entry else { continue };
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let known = old.iter().position(|thread| thread.id == id);
            self.threads.push(match known {
                Some(index) => old.swap_remove(index),
                None => Thread::new(id),
            });
        }
    }

    /// How often each thread that is not known was given a processor; `None` if one is running.
    fn look(&mut self, known: &[i32], counts: bool) -> Option<Vec<(i32, Option<u64>)>> {
        let mut seen = Vec::new();
        let (mut is_quiet, mut is_stale) = (true, false);
        for (index, thread) in self.threads.iter_mut().enumerate() {
            if known.contains(&thread.id) {
                thread.has_arrived();
                continue;
            }
            if thread.slept == STRANGE {
                continue;
            }
            match thread.look(index < OPEN_THREADS, counts) {
                Sight::Asleep(times) => {
                    (thread.runs, thread.left_alone) = (None, false);
                    if thread.slept < STRANGE {
                        thread.slept += 1;
                    }
                    seen.push((thread.id, times));
                }
                Sight::Gone => is_stale = true,
                Sight::Running(_) if thread.left_alone => {}
                Sight::Running(ticks) => {
                    let (since, before) = *thread.runs.get_or_insert((Instant::now(), ticks));
                    if ticks - before >= self.patience || since.elapsed() > LONGEST {
                        thread.left_alone = true;
                        self.patience = (self.patience / 2).max(LEAST_PATIENCE);
                    } else {
                        is_quiet = false;
                    }
                }
            }
        }
        if is_stale {
            // Another may have come in its place, so that the count is the same.
            self.list();
            return None;
        }
        is_quiet.then_some(seen)
    }
}

/// The ticks that a thread has used, if it is running.
pub(super) fn running(id: i32) -> Option<u64> {
    match Thread::new(id).look(false, false) {
        Sight::Running(ticks) => Some(ticks),
        Sight::Asleep(_) | Sight::Gone => None,
    }
}

impl Thread {
    fn new(id: i32) -> Thread {
        Thread { id, slept: 0, files: None, runs: None, left_alone: false }
    }

    /// It stands at the turnstile.
    fn has_arrived(&mut self) {
        (self.runs, self.left_alone, self.slept) = (None, false, CALLER);
    }

    /// Has it not ended?
    fn exists(&self) -> bool {
        let process = std::process::id();
        // SAFETY: no signal is sent.
        let result = unsafe { libc::syscall(libc::SYS_tgkill, process, self.id, 0) };
        result == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
    }

    fn look(&mut self, keep: bool, counts: bool) -> Sight {
        if self.files.is_none() {
            let open = |name| File::open(format!("/proc/self/task/{}/{name}", self.id));
            let times = || (keep || counts).then(|| open("schedstat").ok()).flatten();
            match open("stat") {
                Ok(stat) => self.files = Some((stat, times())),
                Err(error) => return Sight::none(&error),
            }
        }
        let sight = match &self.files {
            Some((stat, times)) => Thread::read(stat, times.as_ref().filter(|_| counts)),
            None => Sight::UNSEEN,
        };
        if !keep {
            self.files = None;
        }
        sight
    }

    fn read(stat: &File, times: Option<&File>) -> Sight {
        let mut text = [0; 512];
        match stat.read_at(&mut text, 0) {
            Ok(length) => text.get(..length).and_then(|text| Thread::parse(text, times)),
            Err(error) => Some(Sight::none(&error)),
        }
        .unwrap_or(Sight::UNSEEN)
    }

    fn parse(text: &[u8], times: Option<&File>) -> Option<Sight> {
        // The name, in parentheses, may hold anything.
        let end = text.iter().rposition(|byte| *byte == b')')?;
        let text = std::str::from_utf8(text.get(end + 1..)?).ok()?;
        let mut fields = text.split_ascii_whitespace();
        let state = fields.next()?;
        if matches!(state, "R" | "D" | "t") {
            let mut ticks = fields.skip(10).map_while(|field| field.parse::<u64>().ok());
            return Some(Sight::Running(ticks.next()? + ticks.next()?));
        }
        let times = times.and_then(|file| {
            let mut text = [0; 96];
            let length = file.read_at(&mut text, 0).ok()?;
            let text = std::str::from_utf8(text.get(..length)?).ok()?;
            text.split_ascii_whitespace().nth(2)?.parse().ok()
        });
        Some(Sight::Asleep(times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    fn own_id() -> i32 {
        // SAFETY: gettid has no preconditions.
        unsafe { libc::gettid() }
    }

    #[test]
    fn a_thread_that_computes_is_seen_until_it_is_left_alone() {
        let (stop, (tell, told)) = (AtomicBool::new(false), channel());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                tell.send(own_id()).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let id = told.recv().unwrap();
            let mut census = Census::default();
            census.list();
            // Other tests have threads of their own.
            census.threads.retain(|thread| thread.id == id);
            assert!(census.look(&[], true).is_none(), "it runs");
            assert!(census.look(&[id], true).is_some(), "it is known");
            let start = Instant::now();
            while census.look(&[], true).is_none() {
                assert!(start.elapsed() < 2 * LONGEST, "it is left alone in the end");
            }
            assert!(census.threads[0].left_alone);
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_thread_that_waits_sleeps_and_one_that_ended_is_gone() {
        let ((tell, told), (end, ended)) = (channel(), channel::<()>());
        let thread = std::thread::spawn(move || {
            tell.send(own_id()).unwrap();
            ended.recv().unwrap_err();
        });
        let id = told.recv().unwrap();
        let mut census = Census::default();
        census.list();
        census.threads.retain(|thread| thread.id == id);
        while census.look(&[], true).is_none() {
            std::thread::yield_now();
        }
        let seen = census.look(&[], true).unwrap();
        assert_eq!(seen.len(), 1);
        assert_eq!(census.look(&[], true), Some(seen), "it did not run in between");
        drop(end);
        thread.join().unwrap();
        census.threads.retain(|thread| thread.id == id);
        while census.threads.iter().any(|thread| thread.id == id) {
            assert!(census.look(&[], true).is_none());
            census.threads.retain(|thread| thread.id == id);
        }
    }

    #[test]
    fn strangers_are_not_waited_for_before_they_call() {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let ((tell, told), stop) = (channel(), &stop);
            scope.spawn(move || {
                tell.send(own_id()).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let id = told.recv().unwrap();
            let mut census = Census::default();
            census.begin();
            census.threads.retain(|thread| thread.id == id);
            assert_eq!(census.look(&[], true), Some(Vec::new()));
            assert_eq!(census.look(&[id], true), Some(Vec::new()), "it makes a call");
            assert!(census.look(&[], true).is_none());
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn threads_are_sorted_by_their_creation() {
        let (end, ended) = channel::<()>();
        let ended = std::sync::Mutex::new(ended);
        std::thread::scope(|scope| {
            let mut ids = Vec::new();
            for _ in 0..4 {
                let (tell, told) = channel();
                let ended = &ended;
                scope.spawn(move || {
                    tell.send(own_id()).unwrap();
                    let _ = ended.lock().map(|ended| ended.recv());
                });
                ids.push(told.recv().unwrap());
            }
            let mut shuffled = vec![ids[2], ids[0], ids[3], ids[1]];
            Census::default().sort(&mut shuffled, |id| *id);
            assert_eq!(shuffled, ids);
            drop(end);
        });
    }
}
