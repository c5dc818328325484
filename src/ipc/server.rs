//! The thread that answers other processes. It makes no driver call, and takes no lock except that
//! of the exports. When the system reports that a process has ended, all its imports are closed.

use super::exports::Exports;
use super::socket::{self, Answer, CLOSE, IMPORT, IMPORT_MAPPED, MAX_FILES, Received, Request};
use crate::base::descriptor::{Descriptor, errno};
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::memory::pinned::threads;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a process that does not read its answer may delay the others.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// Milliseconds until a system call is retried that lacked resources.
const RETRY_INTERVAL: libc::c_int = 100;
/// Milliseconds between checks for the end of the thread, if nothing wakes it.
const CHECK_INTERVAL: libc::c_int = 1000;

/// What the server thread shares with other threads.
pub struct ServerState {
    pub exports: Mutex<Exports>,
    /// An export has ended and was not collected yet.
    pub needs_collection: AtomicBool,
}

/// A running server thread, and the name of its socket.
pub struct Server {
    pub name: [u8; 16],
    thread: libc::pthread_t,
    start: *mut Start,
}

// SAFETY: the thread that `start` was passed to is the only user until it is joined.
unsafe impl Send for Server {}

struct Start {
    state: *const ServerState,
    listener: Descriptor,
    /// Requests the end of the thread.
    has_ended: AtomicBool,
}

impl Server {
    /// Starts the thread. `state` must not move until `end`.
    pub fn begin(state: &ServerState) -> Result<Server> {
        let name = socket::random()?;
        let listener = socket::listen(&name)?;
        let start = Start { state, listener, has_ended: AtomicBool::new(false) };
        let start = Box::into_raw(crate::base::thread::try_box(start, "a thread")?);
        let Some(thread) = threads::start(run, start.cast()) else {
            // SAFETY: from `into_raw`, and no thread got it.
            drop(unsafe { Box::from_raw(start) });
            return Err(Error::OutOfHostMemory("a thread that answers other processes"));
        };
        Ok(Server { name, thread, start })
    }

    /// Ends the thread, and waits for it.
    pub fn end(self) {
        // SAFETY: from `into_raw`, and taken back below.
        let start = unsafe { &*self.start };
        start.has_ended.store(true, Ordering::Release);
        // A connection wakes the thread. If that fails, or the host has closed the listener, the
        // thread checks within [`CHECK_INTERVAL`] by itself.
        drop(socket::connect(&self.name));
        threads::join(self.thread);
        // SAFETY: from `into_raw`, and its thread has ended.
        drop(unsafe { Box::from_raw(self.start) });
    }
}

extern "C" fn run(start: *mut c_void) -> *mut c_void {
    // SAFETY: the name ends with a NUL.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"tcuda ipc".as_ptr()) };
    // SAFETY: `end` takes it back after this thread has ended.
    let start = unsafe { &*start.cast::<Start>() };
    // SAFETY: valid until `end`.
    let state = unsafe { &*start.state };
    // A panic of the library ends this thread, not the process.
    let _ = catch_unwind(AssertUnwindSafe(|| ServerLoop::new(state, start).run()));
    std::ptr::null_mut()
}

/// A process that is connected.
struct Client {
    /// `None`: disconnected, but its imports count until the process ends.
    socket: Option<Descriptor>,
    /// A pidfd of the process; `None`: the system has none.
    process: Option<Descriptor>,
    /// Numbers of the exports that it holds.
    holds: Vec<u64>,
}

struct ServerLoop<'a> {
    state: &'a ServerState,
    listener: &'a Descriptor,
    has_ended: &'a AtomicBool,
    clients: Vec<Client>,
    poll_entries: Vec<libc::pollfd>,
    /// The system had no descriptor for another connection.
    lacks_descriptors: bool,
}

fn poll_entry(number: libc::c_int) -> libc::pollfd {
    libc::pollfd { fd: number, events: libc::POLLIN, revents: 0 }
}

impl<'a> ServerLoop<'a> {
    fn new(state: &'a ServerState, start: &'a Start) -> ServerLoop<'a> {
        let (clients, poll_entries, lacks_descriptors) = (Vec::new(), Vec::new(), false);
        let (listener, has_ended) = (&start.listener, &start.has_ended);
        ServerLoop { state, listener, has_ended, clients, poll_entries, lacks_descriptors }
    }

    fn run(&mut self) {
        while !self.has_ended.load(Ordering::Acquire) {
            self.poll_entries.clear();
            if self.poll_entries.try_reserve(1 + 2 * self.clients.len()).is_err() {
                std::thread::sleep(Duration::from_millis(RETRY_INTERVAL as u64));
                continue;
            }
            // `poll` ignores a negative descriptor.
            let listener = if self.lacks_descriptors { -1 } else { self.listener.number() };
            self.poll_entries.push(poll_entry(listener));
            for client in &self.clients {
                for part in [&client.socket, &client.process] {
                    self.poll_entries
                        .push(poll_entry(part.as_ref().map_or(-1, Descriptor::number)));
                }
            }
            let patience = if self.lacks_descriptors { RETRY_INTERVAL } else { CHECK_INTERVAL };
            let count = self.poll_entries.len() as libc::nfds_t;
            // SAFETY: `count` valid entries.
            let ready = unsafe { libc::poll(self.poll_entries.as_mut_ptr(), count, patience) };
            self.lacks_descriptors = false;
            if ready <= 0 {
                if ready < 0 && errno() != libc::EINTR {
                    // A failed `poll` is retried.
                    std::thread::sleep(Duration::from_millis(RETRY_INTERVAL as u64));
                }
                continue;
            }
            // Backwards, because a removal moves the last client.
            for index in (0..self.clients.len()).rev() {
                let [said, ended] =
                    [1, 2].map(|part| self.poll_entries[2 * index + part].revents != 0);
                if ended || said && !self.handle_request(index) {
                    self.disconnect(index, ended);
                }
            }
            if self.poll_entries[0].revents != 0 {
                self.accept();
            }
        }
    }

    /// Accepts a connection.
    fn accept(&mut self) {
        let listener = self.listener.number();
        let none = std::ptr::null_mut();
        // SAFETY: no address is requested.
        let taken = unsafe { libc::accept4(listener, none, none.cast(), libc::SOCK_CLOEXEC) };
        if taken < 0 {
            self.lacks_descriptors = true;
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

    /// Handles a request of a client. False: the client is gone, or its request is invalid.
    fn handle_request(&mut self, index: usize) -> bool {
        let client = &mut self.clients[index];
        let Some(socket) = &client.socket else { return true };
        let Some(received) = socket::receive::<Request>(socket) else { return false };
        let Received { value: Some(request), .. } = received else { return false };
        match request.what {
            IMPORT | IMPORT_MAPPED => {
                answer_import(self.state, client, &request, request.what == IMPORT)
            }
            CLOSE => {
                let number = self.state.exports.lock().number_of(&request.handle);
                let held = client.holds.iter().position(|known| Some(*known) == number);
                // A process that got no answer cannot know whether it holds the export.
                if let Some(at) = held {
                    let number = client.holds.swap_remove(at);
                    self.release(number);
                }
                true
            }
            _ => false,
        }
    }

    fn release(&self, number: u64) {
        if self.state.exports.lock().release(number) {
            self.state.needs_collection.store(true, Ordering::Release);
        }
    }

    /// Removes a client that has disconnected. Its process may still use its imports until it ends:
    /// the device finishes a process's work before the system reports its end.
    fn disconnect(&mut self, index: usize, ended: bool) {
        let client = &mut self.clients[index];
        if !ended && client.process.is_some() && !client.holds.is_empty() {
            client.socket = None;
            return;
        }
        let gone = self.clients.swap_remove(index);
        gone.holds.iter().for_each(|number| self.release(*number));
    }
}

/// Sends a client the memory of a handle. False: it could not be sent.
fn answer_import(
    state: &ServerState,
    client: &mut Client,
    request: &Request,
    with_files: bool,
) -> bool {
    let Some(socket) = &client.socket else { return false };
    let refuse = || socket::send(socket, &Answer::NO, &[], SEND_TIMEOUT);
    let mut exports = state.exports.lock();
    // A process holds each handle once here, and counts further imports itself.
    let is_held = exports.number_of(&request.handle).is_some_and(|n| client.holds.contains(&n));
    if is_held || client.holds.try_reserve(1).is_err() {
        drop(exports);
        return refuse();
    }
    let Some((number, range)) = exports.acquire(&request.handle) else {
        drop(exports);
        return refuse();
    };
    // The descriptors stay open while the export is held.
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
    let mut parts = files.chunks(MAX_FILES);
    let mut part = parts.next().unwrap_or_default();
    loop {
        let mut answer = Answer { is_known: 1, files: part.len() as u32, ..Answer::NO };
        answer.all = files.len() as u32;
        let mut numbers = [0i32; MAX_FILES];
        for (index, (file, bytes)) in part.iter().enumerate() {
            (numbers[index], answer.bytes[index]) = (*file, *bytes);
        }
        if !socket::send(socket, &answer, &numbers[..part.len()], SEND_TIMEOUT) {
            return false;
        }
        match parts.next() {
            Some(next) => part = next,
            None => return true,
        }
    }
}
