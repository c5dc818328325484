//! Opening files: flags, direct access, and what cannot be transferred.

use super::OpenFile;
use crate::base::descriptor::{Descriptor, errno};
use crate::base::error::{Access, Error, Result};
use crate::base::text::Text;
use crate::base::waiting;
use std::ffi::{CStr, c_int};

/// The file is read.
pub const READ: u32 = 1;
/// The file is written.
pub const WRITE: u32 = 2;
/// The file is created if there is none.
pub const CREATE: u32 = 4;
/// The file is emptied.
pub const TRUNCATE: u32 = 8;
/// Transfers pass through pinned memory, without cuFile.
pub const STAGING: u32 = 16;
/// All flags.
pub const FLAGS: u32 = READ | WRITE | CREATE | TRUNCATE | STAGING;

/// Permissions of a new file, before those that the process's umask removes.
const MODE: libc::c_uint = 0o666;

/// A path in messages.
pub(super) fn shown(path: &CStr) -> Text {
    match path.to_str() {
        Ok(path) => Text::new(path),
        Err(_) => Text::of(&path.to_bytes().escape_ascii()),
    }
}

/// Checks flags.
pub(super) fn check(flags: u32) -> Result<()> {
    let allowed = if flags & !FLAGS != 0 {
        "combine TCUDA_FILE_READ, _WRITE, _CREATE, _TRUNCATE and _STAGING"
    } else if flags & (READ | WRITE) == 0 {
        "add TCUDA_FILE_READ, TCUDA_FILE_WRITE or both"
    } else if flags & (CREATE | TRUNCATE) != 0 && flags & WRITE == 0 {
        "TCUDA_FILE_CREATE and _TRUNCATE need TCUDA_FILE_WRITE"
    } else {
        return Ok(());
    };
    Err(Error::OutOfRange { name: "flags", value: flags.into(), allowed })
}

/// Makes a system call until no signal interrupts it; its result, or its errno.
fn retried(mut call: impl FnMut() -> c_int) -> Result<c_int, i32> {
    loop {
        match call() {
            result if result >= 0 => return Ok(result),
            _ => match errno() {
                libc::EINTR => (),
                code => return Err(code),
            },
        }
    }
}

/// Opens a file; is it a regular one? cuFile's files are opened for direct access, if their file
/// system has it.
pub(super) fn open(path: &CStr, flags: u32) -> Result<(Descriptor, bool)> {
    let failed = |code| Error::FileAccess { path: shown(path), access: Access::Open, code };
    let mut how = match flags & (READ | WRITE) {
        READ => libc::O_RDONLY,
        WRITE => libc::O_WRONLY,
        _ => libc::O_RDWR,
    };
    if flags & CREATE != 0 {
        how |= libc::O_CREAT;
    }
    let direct = if flags & STAGING == 0 { libc::O_DIRECT } else { 0 };
    let _waiting = waiting::begin();
    let (file, direct) = match open_with(path, how | direct) {
        // No direct access.
        Err(libc::EINVAL) if direct != 0 => (open_with(path, how).map_err(failed)?, 0),
        outcome => (outcome.map_err(failed)?, direct),
    };
    let status = status_of(&file).map_err(failed)?;
    let kind = status.st_mode & libc::S_IFMT;
    match kind {
        libc::S_IFDIR => return Err(failed(libc::EISDIR)),
        libc::S_IFIFO | libc::S_IFSOCK => return Err(failed(libc::ESPIPE)),
        _ => (),
    }
    // SAFETY: changes flags of an open file.
    retried(|| unsafe { libc::fcntl(file.number(), libc::F_SETFL, direct) }).map_err(failed)?;
    Ok((file, kind == libc::S_IFREG))
}

/// Opens a path. A FIFO is opened without waiting for its other end.
fn open_with(path: &CStr, how: c_int) -> Result<Descriptor, i32> {
    let how = how | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    // SAFETY: a path with a NUL.
    retried(|| unsafe { libc::open(path.as_ptr(), how, MODE) }).map(Descriptor::take)
}

fn status_of(file: &Descriptor) -> Result<libc::stat, i32> {
    // SAFETY: a structure of integers.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: an open file, and `status` is writable.
    retried(|| unsafe { libc::fstat(file.number(), &mut status) }).map(|_| status)
}

/// The size of a regular file.
pub(super) fn size(file: &OpenFile) -> Result<u64> {
    let status = status_of(&file.descriptor).map_err(|code| file.failed(Access::Read(0), code))?;
    Ok(status.st_size as u64)
}

/// Empties a regular file.
pub(super) fn truncate(file: &OpenFile) -> Result<()> {
    let _waiting = waiting::begin();
    let number = file.descriptor.number();
    // SAFETY: an open file.
    let done = retried(|| unsafe { libc::ftruncate(number, 0) });
    done.map(drop).map_err(|code| file.failed(Access::Write(0), code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_say_nothing_are_refused() {
        for flags in [READ, WRITE, READ | WRITE, WRITE | CREATE | TRUNCATE, READ | STAGING] {
            assert!(check(flags).is_ok(), "{flags}");
        }
        for flags in [0, STAGING, READ | CREATE, READ | TRUNCATE, READ | 32, u32::MAX] {
            assert!(check(flags).is_err(), "{flags}");
        }
    }
}
