//! The thread that answers other processes. It makes no driver call and takes no lock but that of the
//! exports; a process that dies, however it does, has let go of everything once the system says so.

use super::descriptor::{Descriptor, errno};
use super::exports::Exports;
use super::socket::{self, Answer, CLOSE, IMPORT, IMPORT_MAPPED, MOST_FILES, Question, Received};
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::memory::pinned::threads;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long one process may hold up the others by not reading its answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Milliseconds until the system is asked again for what it did not have.
const PAUSE: libc::c_int = 100;
/// Milliseconds between two looks whether the thread is to end, where nothing wakes it.
const LOOK: libc::c_int = 1000;

/// What the thread shares with the others.
pub struct Desk {
    pub exports: Mutex<Exports>,
    /// Something is over that was not collected yet.
    pub has_news: AtomicBool,
}

/// A thread that answers, under a name.
pub struct Server {
    pub name: [u8; 16],
    thread: libc::pthread_t,
    start: *mut Start,
}

// SAFETY: what `start` points to is the thread's until it was joined.
unsafe impl Send for Server {}

struct Start {
    desk: *const Desk,
    listener: Descriptor,
    /// The thread is to end.
    is_over: AtomicBool,
}

impl Server {
    /// Starts it; `desk` stays where it is until `end`.
    pub fn begin(desk: &Desk) -> Result<Server> {
        let name = socket::random()?;
        let listener = socket::listen(&name)?;
        let start = Start { desk, listener, is_over: AtomicBool::new(false) };
        let start = Box::into_raw(crate::base::thread::try_box(start, "a thread")?);
        let Some(thread) = threads::start(run, start.cast()) else {
            // SAFETY: from `into_raw`, and no thread got it.
            drop(unsafe { Box::from_raw(start) });
            return Err(Error::OutOfHostMemory("a thread that answers other processes"));
        };
        Ok(Server { name, thread, start })
    }

    /// Waits until it has ended; no process is answered any more.
    pub fn end(self) {
        // SAFETY: from `into_raw`, and taken back below.
        let start = unsafe { &*self.start };
        start.is_over.store(true, Ordering::Release);
        // It wakes by a connection. Where the system refuses that, or the host has closed the listener, it
        // looks within [`LOOK`] by itself.
        drop(socket::connect(&self.name));
        threads::join(self.thread);
        // SAFETY: from `into_raw`, and the thread that had it is over.
        drop(unsafe { Box::from_raw(self.start) });
    }
}

extern "C" fn run(start: *mut c_void) -> *mut c_void {
    // SAFETY: a name that ends with a NUL.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"tcuda ipc".as_ptr()) };
    // SAFETY: `end` takes it back once this thread is over.
    let start = unsafe { &*start.cast::<Start>() };
    // SAFETY: it stays until `end`.
    let desk = unsafe { &*start.desk };
    // A panic of ours ends this thread, not the host.
    let _ = catch_unwind(AssertUnwindSafe(|| Answering::new(desk, start).run()));
    std::ptr::null_mut()
}

/// A process that asks.
struct Client {
    /// None: it has hung up, and still has what it has until it ends.
    socket: Option<Descriptor>,
    /// Of the process; none: the system has no such descriptors.
    process: Option<Descriptor>,
    /// Numbers of the exports that it has.
    holds: Vec<u64>,
}

struct Answering<'a> {
    desk: &'a Desk,
    listener: &'a Descriptor,
    is_over: &'a AtomicBool,
    clients: Vec<Client>,
    asked: Vec<libc::pollfd>,
    /// The system had no descriptor for one more client.
    is_short: bool,
}

fn question(number: libc::c_int) -> libc::pollfd {
    libc::pollfd { fd: number, events: libc::POLLIN, revents: 0 }
}

impl<'a> Answering<'a> {
    fn new(desk: &'a Desk, start: &'a Start) -> Answering<'a> {
        let (clients, asked, is_short) = (Vec::new(), Vec::new(), false);
        let (listener, is_over) = (&start.listener, &start.is_over);
        Answering { desk, listener, is_over, clients, asked, is_short }
    }

    fn run(&mut self) {
        while !self.is_over.load(Ordering::Acquire) {
            self.asked.clear();
            if self.asked.try_reserve(1 + 2 * self.clients.len()).is_err() {
                std::thread::sleep(Duration::from_millis(PAUSE as u64));
                continue;
            }
            // A negative number is not asked.
            let listener = if self.is_short { -1 } else { self.listener.number() };
            self.asked.push(question(listener));
            for client in &self.clients {
                for part in [&client.socket, &client.process] {
                    self.asked.push(question(part.as_ref().map_or(-1, Descriptor::number)));
                }
            }
            let patience = if self.is_short { PAUSE } else { LOOK };
            let count = self.asked.len() as libc::nfds_t;
            // SAFETY: so many whole questions.
            let ready = unsafe { libc::poll(self.asked.as_mut_ptr(), count, patience) };
            self.is_short = false;
            if ready <= 0 {
                if ready < 0 && errno() != libc::EINTR {
                    // Refused: it is asked again, since it has nothing else to do.
                    std::thread::sleep(Duration::from_millis(PAUSE as u64));
                }
                continue;
            }
            // From the end, so that what goes does not move what is still to be looked at.
            for index in (0..self.clients.len()).rev() {
                let [said, ended] = [1, 2].map(|part| self.asked[2 * index + part].revents != 0);
                if ended || said && !self.hear(index) {
                    self.part(index, ended);
                }
            }
            if self.asked[0].revents != 0 {
                self.welcome();
            }
        }
    }

    /// Takes a connection.
    fn welcome(&mut self) {
        let listener = self.listener.number();
        let none = std::ptr::null_mut();
        // SAFETY: no address is asked for.
        let taken = unsafe { libc::accept4(listener, none, none.cast(), libc::SOCK_CLOEXEC) };
        if taken < 0 {
            self.is_short = true;
            return;
        }
        let socket = Descriptor::take(taken);
        let Some(pid) = socket::same_user(&socket) else { return };
        if self.clients.try_reserve(1).is_err() {
            return;
        }
        // SAFETY: makes a descriptor.
        let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let process = Descriptor::of(process, "pidfd_open").ok();
        self.clients.push(Client { socket: Some(socket), process, holds: Vec::new() });
    }

    /// Answers what a client says; false: it is gone, or makes no sense.
    fn hear(&mut self, index: usize) -> bool {
        let client = &mut self.clients[index];
        let Some(socket) = &client.socket else { return true };
        let Some(received) = socket::receive::<Question>(socket) else { return false };
        let Received { value: Some(question), .. } = received else { return false };
        match question.what {
            IMPORT | IMPORT_MAPPED => give(self.desk, client, &question, question.what == IMPORT),
            CLOSE => {
                let number = self.desk.exports.lock().number_of(&question.handle);
                let held = client.holds.iter().position(|known| Some(*known) == number);
                // Who had no answer does not know whether there is something to close.
                if let Some(at) = held {
                    let number = client.holds.swap_remove(at);
                    self.let_go(number);
                }
                true
            }
            _ => false,
        }
    }

    fn let_go(&self, number: u64) {
        if self.desk.exports.lock().let_go(number) {
            self.desk.has_news.store(true, Ordering::Release);
        }
    }

    /// A client is gone. Its process may still use what it has, until that has ended: the device is done
    /// with a process before the system says so.
    fn part(&mut self, index: usize, ended: bool) {
        let client = &mut self.clients[index];
        if !ended && client.process.is_some() && !client.holds.is_empty() {
            client.socket = None;
            return;
        }
        let gone = self.clients.swap_remove(index);
        gone.holds.iter().for_each(|number| self.let_go(*number));
    }
}

/// Gives a client what a handle stands for; false: it could not be sent.
fn give(desk: &Desk, client: &mut Client, question: &Question, with_files: bool) -> bool {
    let Some(socket) = &client.socket else { return false };
    let refuse = || socket::send(socket, &Answer::NO, &[], PATIENCE);
    let mut exports = desk.exports.lock();
    // A process says so once for each of its handles, and counts the rest itself.
    let is_held = exports.number_of(&question.handle).is_some_and(|n| client.holds.contains(&n));
    if is_held || client.holds.try_reserve(1).is_err() {
        drop(exports);
        return refuse();
    }
    let Some((number, range)) = exports.hold(&question.handle) else {
        drop(exports);
        return refuse();
    };
    // Descriptors stay open as long as the export is held.
    let count = if with_files { range.files.len() } else { 0 };
    let mut files: Vec<(i32, u64)> = Vec::new();
    let is_room = files.try_reserve(count).is_ok();
    if is_room {
        let pairs = range.files.iter().zip(&range.sizes).take(count);
        files.extend(pairs.map(|(file, bytes)| (file.number(), *bytes)));
    }
    drop(exports);
    client.holds.push(number);
    if !is_room {
        return false;
    }
    send_all(socket, &files)
}

fn send_all(socket: &Descriptor, files: &[(i32, u64)]) -> bool {
    let mut parts = files.chunks(MOST_FILES);
    let mut part = parts.next().unwrap_or_default();
    loop {
        let mut answer = Answer { is_known: 1, files: part.len() as u32, ..Answer::NO };
        answer.all = files.len() as u32;
        let mut numbers = [0i32; MOST_FILES];
        for (index, (file, bytes)) in part.iter().enumerate() {
            (numbers[index], answer.bytes[index]) = (*file, *bytes);
        }
        if !socket::send(socket, &answer, &numbers[..part.len()], PATIENCE) {
            return false;
        }
        match parts.next() {
            Some(next) => part = next,
            None => return true,
        }
    }
}
