//! The states of the threads of this process, as far as the system shows them (/proc/self/task).

use std::fs::File;
use std::io::Error;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

/// Ticks of /proc/self/task/*/stat (10 ms) that a thread may compute before it is no longer waited
/// for. The next thread gets half as many, since a host that spins will spin again.
const PATIENCE: u64 = 5;
const LEAST_PATIENCE: u64 = 2;
/// Maximum time that a thread is waited for.
pub(super) const LONGEST: Duration = Duration::from_secs(5);
/// Threads that existed before the machine are strangers: they are not waited for before their
/// first call. So is a thread that was seen asleep this many times without a call of its own.
const STRANGER_CHECKS: u32 = 1000;
/// Number of checks after which the thread list is read again, since strangers may end unnoticed
/// and others start.
const CHECKS_PER_LIST: u32 = 64;
/// Maximum number of threads whose files are kept open.
const OPEN_THREADS: usize = 16;

/// The known threads of this process.
pub(super) struct ThreadStates {
    /// The directory /proc/self/task, whose link count gives the number of threads.
    folder: Option<File>,
    /// In order of creation.
    threads: Vec<Thread>,
    patience: u64,
    /// Number of checks since the list was read.
    checks: u32,
    /// True if the list cannot be read, without /proc or descriptors. Then no thread is waited for:
    /// the run is a different one, but a valid one.
    is_unreadable: bool,
}

/// A thread and what was observed of it.
struct Thread {
    id: i32,
    /// Number of checks that saw it asleep before its first call; [`CALLER`] after that call.
    slept: u32,
    /// Its files "stat" and "schedstat" in /proc.
    files: Option<(File, Option<File>)>,
    /// The time when it was first seen running, and its CPU ticks then.
    runs: Option<(Instant, u64)>,
    /// True if it has computed too long; it is not waited for until it sleeps.
    is_ignored: bool,
}

/// Value of `slept` for a thread that can never become a stranger.
const CALLER: u32 = u32::MAX;

/// The result of a check of a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Observation {
    /// Running; the CPU ticks it has used.
    Running(u64),
    /// Asleep; the number of times it was scheduled, if the system counts them.
    Asleep(Option<u64>),
    Gone,
}

impl Observation {
    /// A thread that cannot be checked is not waited for: the run is a different one, but a valid
    /// one.
    const UNKNOWN: Observation = Observation::Asleep(None);

    /// The result for a thread whose file cannot be read.
    fn none(error: &Error) -> Observation {
        let is_gone = matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH));
        if is_gone { Observation::Gone } else { Observation::UNKNOWN }
    }
}

impl Default for ThreadStates {
    fn default() -> ThreadStates {
        ThreadStates {
            folder: None,
            threads: Vec::new(),
            patience: PATIENCE,
            checks: 0,
            is_unreadable: false,
        }
    }
}

impl ThreadStates {
    /// Marks all existing threads except the calling one as strangers.
    pub(super) fn begin(&mut self) {
        self.list();
        self.threads.iter_mut().for_each(|thread| thread.slept = STRANGER_CHECKS);
    }

    /// Adds a thread that makes its first call.
    pub(super) fn add_caller(&mut self, id: i32) {
        self.threads.push(Thread { slept: CALLER, ..Thread::new(id) });
    }

    /// True if every thread sleeps, except those that are `known` to wait or to be idle.
    ///
    /// Threads are checked one after the other, and one may wake another meanwhile. So all are
    /// checked twice. A thread that was asleep both times and was not scheduled in between was
    /// asleep in the middle. At that moment the threads are counted, since the checks miss a thread
    /// that started after the list was read.
    pub(super) fn is_quiet(&mut self, known: &[i32]) -> bool {
        let count = self.count();
        if count == Some(known.len()) {
            self.threads.iter_mut().for_each(Thread::note_arrival);
            return true;
        }
        self.checks += 1;
        if count.is_none_or(|count| count != self.threads.len()) || self.checks >= CHECKS_PER_LIST {
            self.list();
        }
        let others =
            |thread: &&Thread| !known.contains(&thread.id) && thread.slept != STRANGER_CHECKS;
        // A single thread has no other thread to wake.
        let twice = self.threads.iter().filter(others).count() > 1;
        let first = self.check(known, twice);
        if self.is_unreadable {
            return true;
        }
        first.is_some() && self.is_complete() && (!twice || first == self.check(known, true))
    }

    /// True if the list contains every thread.
    pub(super) fn is_complete(&mut self) -> bool {
        let is_complete = self.count().is_none_or(|count| count == self.threads.len())
            && self
                .threads
                .iter()
                .filter(|thread| thread.slept == STRANGER_CHECKS)
                .all(Thread::exists);
        if !is_complete {
            self.list();
        }
        is_complete || self.is_unreadable
    }

    /// Sorts items by the creation order of their threads.
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

    /// Reads the list again.
    fn list(&mut self) {
        let entries = std::fs::read_dir("/proc/self/task");
        self.is_unreadable = entries.is_err();
        let Ok(entries) = entries else { return };
        let mut old = std::mem::take(&mut self.threads);
        self.checks = 0;
        for entry in entries {
            self.is_unreadable |= entry.is_err();
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

    /// The number of times that each thread not in `known` was scheduled; `None` if one is running.
    fn check(&mut self, known: &[i32], counts: bool) -> Option<Vec<(i32, Option<u64>)>> {
        let mut seen = Vec::new();
        let (mut is_quiet, mut is_stale) = (true, false);
        for (index, thread) in self.threads.iter_mut().enumerate() {
            if known.contains(&thread.id) {
                thread.note_arrival();
                continue;
            }
            if thread.slept == STRANGER_CHECKS {
                continue;
            }
            match thread.check(index < OPEN_THREADS, counts) {
                Observation::Asleep(times) => {
                    (thread.runs, thread.is_ignored) = (None, false);
                    if thread.slept < STRANGER_CHECKS {
                        thread.slept += 1;
                    }
                    seen.push((thread.id, times));
                }
                Observation::Gone => is_stale = true,
                Observation::Running(_) if thread.is_ignored => {}
                Observation::Running(ticks) => {
                    let (since, before) = *thread.runs.get_or_insert((Instant::now(), ticks));
                    if ticks - before >= self.patience || since.elapsed() > LONGEST {
                        thread.is_ignored = true;
                        self.patience = (self.patience / 2).max(LEAST_PATIENCE);
                    } else {
                        is_quiet = false;
                    }
                }
            }
        }
        if is_stale {
            // A new thread may have replaced it, with the same total count.
            self.list();
            return None;
        }
        is_quiet.then_some(seen)
    }
}

/// The CPU ticks of a thread if it is running.
pub(super) fn running(id: i32) -> Option<u64> {
    match Thread::new(id).check(false, false) {
        Observation::Running(ticks) => Some(ticks),
        Observation::Asleep(_) | Observation::Gone => None,
    }
}

impl Thread {
    fn new(id: i32) -> Thread {
        Thread { id, slept: 0, files: None, runs: None, is_ignored: false }
    }

    /// Resets the observations: the thread waits at the scheduler.
    fn note_arrival(&mut self) {
        (self.runs, self.is_ignored, self.slept) = (None, false, CALLER);
    }

    /// True if the thread has not ended.
    fn exists(&self) -> bool {
        let process = std::process::id();
        // SAFETY: no signal is sent.
        let result = unsafe { libc::syscall(libc::SYS_tgkill, process, self.id, 0) };
        result == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
    }

    fn check(&mut self, keep: bool, counts: bool) -> Observation {
        if self.files.is_none() {
            let open = |name| File::open(format!("/proc/self/task/{}/{name}", self.id));
            let times = || (keep || counts).then(|| open("schedstat").ok()).flatten();
            match open("stat") {
                Ok(stat) => self.files = Some((stat, times())),
                Err(error) => return Observation::none(&error),
            }
        }
        let sight = match &self.files {
            Some((stat, times)) => Thread::read(stat, times.as_ref().filter(|_| counts)),
            None => Observation::UNKNOWN,
        };
        if !keep {
            self.files = None;
        }
        sight
    }

    fn read(stat: &File, times: Option<&File>) -> Observation {
        let mut text = [0; 512];
        match stat.read_at(&mut text, 0) {
            Ok(length) => text.get(..length).and_then(|text| Thread::parse(text, times)),
            Err(error) => Some(Observation::none(&error)),
        }
        .unwrap_or(Observation::UNKNOWN)
    }

    fn parse(text: &[u8], times: Option<&File>) -> Option<Observation> {
        // The name, in parentheses, may contain any bytes.
        let end = text.iter().rposition(|byte| *byte == b')')?;
        let text = std::str::from_utf8(text.get(end + 1..)?).ok()?;
        let mut fields = text.split_ascii_whitespace();
        let state = fields.next()?;
        if matches!(state, "R" | "D" | "t") {
            let mut ticks = fields.skip(10).map_while(|field| field.parse::<u64>().ok());
            return Some(Observation::Running(ticks.next()? + ticks.next()?));
        }
        let times = times.and_then(|file| {
            let mut text = [0; 96];
            let length = file.read_at(&mut text, 0).ok()?;
            let text = std::str::from_utf8(text.get(..length)?).ok()?;
            text.split_ascii_whitespace().nth(2)?.parse().ok()
        });
        Some(Observation::Asleep(times))
    }
}

#[cfg(test)]
mod tests {
    use super::super::host_calls::thread_id;
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    #[test]
    fn a_thread_that_computes_is_seen_until_it_is_left_alone() {
        let (stop, (id_sender, id_receiver)) = (AtomicBool::new(false), channel());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                id_sender.send(thread_id()).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let id = id_receiver.recv().unwrap();
            let mut thread_states = ThreadStates::default();
            thread_states.list();
            // Other tests have threads of their own.
            thread_states.threads.retain(|thread| thread.id == id);
            assert!(thread_states.check(&[], true).is_none(), "it runs");
            assert!(thread_states.check(&[id], true).is_some(), "it is known");
            let start = Instant::now();
            while thread_states.check(&[], true).is_none() {
                assert!(start.elapsed() < 2 * LONGEST, "it is left alone in the end");
            }
            assert!(thread_states.threads[0].is_ignored);
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_thread_that_waits_sleeps_and_one_that_ended_is_gone() {
        let ((id_sender, id_receiver), (end, ended)) = (channel(), channel::<()>());
        let thread = std::thread::spawn(move || {
            id_sender.send(thread_id()).unwrap();
            ended.recv().unwrap_err();
        });
        let id = id_receiver.recv().unwrap();
        let mut thread_states = ThreadStates::default();
        thread_states.list();
        thread_states.threads.retain(|thread| thread.id == id);
        while thread_states.check(&[], true).is_none() {
            std::thread::yield_now();
        }
        let seen = thread_states.check(&[], true).unwrap();
        assert_eq!(seen.len(), 1);
        assert_eq!(thread_states.check(&[], true), Some(seen), "it did not run in between");
        drop(end);
        thread.join().unwrap();
        thread_states.threads.retain(|thread| thread.id == id);
        while thread_states.threads.iter().any(|thread| thread.id == id) {
            assert!(thread_states.check(&[], true).is_none());
            thread_states.threads.retain(|thread| thread.id == id);
        }
    }

    #[test]
    fn strangers_are_not_waited_for_before_they_call() {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let ((id_sender, id_receiver), stop) = (channel(), &stop);
            scope.spawn(move || {
                id_sender.send(thread_id()).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let id = id_receiver.recv().unwrap();
            let mut thread_states = ThreadStates::default();
            thread_states.begin();
            thread_states.threads.retain(|thread| thread.id == id);
            assert_eq!(thread_states.check(&[], true), Some(Vec::new()));
            assert_eq!(thread_states.check(&[id], true), Some(Vec::new()), "it makes a call");
            assert!(thread_states.check(&[], true).is_none());
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
                let (id_sender, id_receiver) = channel();
                let ended = &ended;
                scope.spawn(move || {
                    id_sender.send(thread_id()).unwrap();
                    let _ = ended.lock().map(|ended| ended.recv());
                });
                ids.push(id_receiver.recv().unwrap());
            }
            let mut shuffled = vec![ids[2], ids[0], ids[3], ids[1]];
            ThreadStates::default().sort(&mut shuffled, |id| *id);
            assert_eq!(shuffled, ids);
            drop(end);
        });
    }
}
