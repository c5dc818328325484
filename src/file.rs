//! Files that are replaced as a whole: whoever reads one finds the old text or the new.

use crate::error::{Error, Result};
use crate::text::Text;
use std::ffi::{CStr, c_int};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes that are written at a time.
const CHUNK: usize = 16 << 10;

static NUMBER: AtomicU32 = AtomicU32::new(0);

fn failed(path: &str) -> Error {
    let code = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    Error::File { path: Text::new(path), code }
}

/// Makes a file where there is none, for who is to write it by name.
pub fn can_be_written(path: &CStr) -> Result<()> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: the path ends with a NUL.
    let file = unsafe { libc::open(path.as_ptr(), flags, 0o666) };
    if file < 0 {
        return Err(failed(path.to_str().unwrap_or("the file")));
    }
    // SAFETY: just opened, and nobody else's.
    drop(unsafe { OwnedFd::from_raw_fd(file) });
    Ok(())
}

struct Writer<'a> {
    file: OwnedFd,
    path: &'a str,
    chunk: [u8; CHUNK],
    len: usize,
}

impl Writer<'_> {
    fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.len == CHUNK {
                self.flush()?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK - self.len));
            self.chunk[self.len..self.len + now.len()].copy_from_slice(now);
            self.len += now.len();
            bytes = later;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let mut rest = &self.chunk[..self.len];
        while !rest.is_empty() {
            // SAFETY: an open file, and so many readable bytes.
            let written =
                unsafe { libc::write(self.file.as_raw_fd(), rest.as_ptr().cast(), rest.len()) };
            match usize::try_from(written) {
                Ok(written) => rest = &rest[written.min(rest.len())..],
                Err(_) if interrupted() => (),
                Err(_) => return Err(failed(self.path)),
            }
        }
        self.len = 0;
        Ok(())
    }
}

fn interrupted() -> bool {
    std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
}

/// A path with a suffix and a NUL. The standard's own would abort without host memory.
fn name(path: &str, suffix: std::fmt::Arguments<'_>) -> Result<Vec<u8>> {
    let mut name = Vec::new();
    let room = path.len() + 48;
    name.try_reserve_exact(room).map_err(|_| Error::OutOfHostMemory("the name of a file"))?;
    name.extend_from_slice(path.as_bytes());
    let _ = name.write_fmt(suffix);
    name.push(0);
    Ok(name)
}

fn c_text(name: &[u8]) -> Result<&CStr> {
    CStr::from_bytes_with_nul(name).map_err(|_| Error::Invalid("path has a NUL inside"))
}

/// Keeps from this thread the signal by which the system ends a process that writes a file longer than its
/// limit allows (ulimit -f): the write fails as on a full disk.
struct Limited {
    signal: libc::sigset_t,
    before: libc::sigset_t,
    /// It waited before, for others.
    waits: bool,
}

fn limit_signal() -> libc::sigset_t {
    // SAFETY: integers, for which zeros are right.
    let mut signals = unsafe { std::mem::zeroed() };
    // SAFETY: ours to write.
    unsafe { libc::sigemptyset(&mut signals) };
    // SAFETY: as above, and a signal that there is.
    unsafe { libc::sigaddset(&mut signals, libc::SIGXFSZ) };
    signals
}

impl Limited {
    fn begin() -> Limited {
        let signal = limit_signal();
        // SAFETY: integers, for which zeros are right.
        let (mut before, mut waiting) = unsafe { std::mem::zeroed::<[libc::sigset_t; 2]>() }.into();
        // SAFETY: both are whole sets.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signal, &mut before) };
        // SAFETY: ours to write.
        unsafe { libc::sigpending(&mut waiting) };
        // SAFETY: a whole set.
        let waits = unsafe { libc::sigismember(&waiting, libc::SIGXFSZ) } == 1;
        Limited { signal, before, waits }
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        if !self.waits {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: a whole set; nothing is asked of who sent it.
            unsafe { libc::sigtimedwait(&self.signal, std::ptr::null_mut(), &now) };
        }
        // SAFETY: what held before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

/// Gives a file the content that `body` writes; on failure it stays as it was.
pub fn replace(
    path: &str,
    body: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
) -> Result<()> {
    replace_with(path, 0o666, body)
}

/// The same for a file with this mode.
pub fn replace_with(
    path: &str,
    mode: libc::c_uint,
    body: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let goal = name(path, format_args!(""))?;
    let fresh = name(path, format_args!(".{}.{number}.tmp", std::process::id()))?;
    let (goal, fresh) = (c_text(&goal)?, c_text(&fresh)?);
    let flags: c_int = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
    // SAFETY: a NUL-terminated name.
    let file = unsafe { libc::open(fresh.as_ptr(), flags, mode) };
    if file < 0 {
        return Err(failed(path));
    }
    // SAFETY: just opened, and nobody else's.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    let _limited = Limited::begin();
    let mut writer = Writer { file, path, chunk: [0; CHUNK], len: 0 };
    let written = body(&mut |bytes| writer.put(bytes)).and_then(|()| writer.flush());
    drop(writer);
    let renamed = written.and_then(|()| rename(fresh, goal, path));
    if renamed.is_err() {
        // SAFETY: a NUL-terminated name.
        unsafe { libc::unlink(fresh.as_ptr()) };
    }
    renamed
}

fn rename(from: &CStr, to: &CStr, path: &str) -> Result<()> {
    // SAFETY: NUL-terminated names.
    match unsafe { libc::rename(from.as_ptr(), to.as_ptr()) } {
        0 => Ok(()),
        _ => Err(failed(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_or_stays() {
        let directory = std::env::temp_dir().join(format!("tcuda-file-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("snapshot");
        let name = path.to_str().unwrap();
        let long = vec![7; 3 * CHUNK + 5];
        replace(name, |put| put(&long)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), long);
        let refused = replace(name, |put| {
            put(b"half")?;
            Err(Error::Invalid("for the test"))
        });
        assert!(refused.is_err());
        assert_eq!(std::fs::read(&path).unwrap(), long);
        replace(name, |put| put(b"new")).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "nothing else is left");
        let nowhere = replace("/nonexistent/tcuda", |put| put(b"x"));
        assert!(matches!(nowhere, Err(Error::File { code: libc::ENOENT, .. })));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
