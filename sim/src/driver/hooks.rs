//! What the machine calls of the host that powered it on.

use super::sync::{read, write};
use std::ffi::{CStr, c_char};
use std::fmt;
use std::io::{self, Write};
use std::sync::RwLock;
use std::time::{Duration, Instant};

/// Functions of the host; each may be NULL. They may be called from any thread.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Hooks {
    /// Size of this structure, for later versions.
    pub bytes: usize,
    /// Number of calls of a driver function, given by its name ("cuEventDestroy"), that the host
    /// has refused by itself instead of making them. Objects that are alive for this reason are
    /// not reported as leaked.
    pub refused: Option<unsafe extern "C" fn(name: *const c_char) -> u64>,
    /// Takes a line about a failed kernel or module, without a line end. NULL: such lines go to
    /// stderr, unless the environment's TCUDA_LOG is "off".
    pub log: Option<unsafe extern "C" fn(line: *const c_char)>,
    /// A host thread has got its turn (adversarial schedules): its number, in the order in which
    /// threads arrived first.
    pub turn: Option<unsafe extern "C" fn(thread: u64)>,
    /// Passes the time of a query (option `question`), for a host whose clock is not the system's.
    /// NULL: the query spins for so long.
    pub pass: Option<unsafe extern "C" fn(nanoseconds: u64)>,
}

impl Hooks {
    /// The hooks of a host whose version may have fewer.
    ///
    /// # Safety
    /// `hooks` is NULL, or begins with the number of its bytes.
    pub(super) unsafe fn read(hooks: *const Hooks) -> Hooks {
        let mut own = Hooks::default();
        if !hooks.is_null() {
            // SAFETY: the first field, by the caller's promise.
            let bytes = unsafe { hooks.cast::<usize>().read() }.min(size_of::<Hooks>());
            let to = (&raw mut own).cast::<u8>();
            // SAFETY: no more bytes than either has; zeros are no functions.
            unsafe { to.copy_from_nonoverlapping(hooks.cast(), bytes) };
        }
        own
    }
}

static HOOKS: RwLock<Hooks> = RwLock::new(Hooks {
    bytes: size_of::<Hooks>(),
    refused: None,
    log: None,
    turn: None,
    pass: None,
});

/// Replaces the hooks.
pub(super) fn install(hooks: Hooks) {
    *write(&HOOKS) = hooks;
}

/// Number of calls of a driver function that the host refused.
pub(super) fn refused(name: &CStr) -> usize {
    let refused = read(&HOOKS).refused;
    // SAFETY: the host's function takes a NUL-terminated name.
    refused.map_or(0, |refused| unsafe { refused(name.as_ptr()) }) as usize
}

/// Longest line of the log.
const LINE: usize = 2000;

/// Writes a line to the host's log, or to stderr.
pub(super) fn log_error(line: fmt::Arguments<'_>) {
    let mut buffer = [0; LINE];
    // A line that is too long is cut.
    let mut rest = &mut buffer[..LINE - 1];
    let _ = rest.write_fmt(line);
    let left = rest.len();
    let text = &buffer[..LINE - left];
    let Ok(text) = CStr::from_bytes_until_nul(text) else { return };
    let log = read(&HOOKS).log;
    match log {
        // SAFETY: a NUL-terminated text.
        Some(log) => unsafe { log(text.as_ptr()) },
        None if std::env::var_os("TCUDA_LOG").is_some_and(|level| level == "off") => {}
        None => {
            let _ = writeln!(io::stderr(), "tcuda_sim: error: {}", text.to_string_lossy());
        }
    }
}

/// Passes the time of a query.
pub(super) fn pass(nanoseconds: u64) {
    let pass = read(&HOOKS).pass;
    match pass {
        // SAFETY: the host's function takes any number.
        Some(pass) => unsafe { pass(nanoseconds) },
        None => {
            let began = Instant::now();
            while began.elapsed() < Duration::from_nanos(nanoseconds) {}
        }
    }
}

/// Tells the observer of turns that a thread has got its turn.
pub(super) fn notify_turn(thread: u64) {
    let turn = read(&HOOKS).turn;
    if let Some(turn) = turn {
        // SAFETY: the host's function takes any number.
        unsafe { turn(thread) };
    }
}
