//! Log lines on stderr, for a host without a log callback: lines up to the level TCUDA_LOG, and
//! warnings of tools that the host has turned on.

use crate::base::environment;
use crate::base::error::{Error, Result};
use crate::base::text::{self, Text};
use crate::base::waiting;
use std::fmt;
use std::sync::atomic::{AtomicI32, Ordering};

/// The values of TCUDA_LOG, in the order of `log::Level`.
const NAMES: [&str; 5] = ["off", "error", "warning", "info", "debug"];
/// TCUDA_LOG is not set.
const UNSET: i32 = -1;
/// TCUDA_LOG was not read yet.
const UNREAD: i32 = -2;

static WANTED: AtomicI32 = AtomicI32::new(UNREAD);

fn from_environment() -> Result<i32> {
    let name = environment::text(c"TCUDA_LOG")?;
    if name.is_empty() {
        return Ok(UNSET);
    }
    match NAMES.iter().position(|known| *known == name) {
        Some(level) => Ok(level as i32),
        None => Err(Error::BadText {
            name: "TCUDA_LOG",
            value: Text::new(name),
            allowed: "use off, error, warning, info or debug",
        }),
    }
}

/// Reads TCUDA_LOG, at initialisation.
pub(crate) fn read_environment() -> Result<()> {
    WANTED.store(from_environment()?, Ordering::Relaxed);
    Ok(())
}

/// Do lines of this level go to stderr? `otherwise` is the highest level that does if TCUDA_LOG is
/// not set.
pub fn takes(level: i32, otherwise: i32) -> bool {
    let mut wanted = WANTED.load(Ordering::Relaxed);
    if wanted == UNREAD {
        wanted = from_environment().unwrap_or(UNSET);
        WANTED.store(wanted, Ordering::Relaxed);
    }
    level <= if wanted == UNSET { otherwise } else { wanted }
}

/// Writes a log line.
pub fn log(level: i32, line: fmt::Arguments<'_>) {
    let name = usize::try_from(level).ok().and_then(|level| NAMES.get(level)).unwrap_or(&"log");
    write(format_args!("{name}: {line}"));
}

/// Size of a line: a message and its prefix.
const LINE: usize = 2200;

/// Writes a line with the library's name as prefix.
pub fn write(line: fmt::Arguments<'_>) {
    let mut buffer = [0; LINE];
    text::write(&mut buffer[..LINE - 1], format_args!("tcuda: {line}"));
    let end = buffer.iter().position(|byte| *byte == 0).unwrap_or(LINE - 1);
    buffer[end] = b'\n';
    let _waiting = waiting::begin();
    // Without stderr the line is lost.
    // SAFETY: so many bytes of the buffer.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, buffer.as_ptr().cast(), end + 1) };
}
