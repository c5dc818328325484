//! Files that are written atomically: a reader finds either the old content or the new one.
//!
//! The content is written to a temporary file in the same folder, which is then renamed to the
//! path. A FIFO, a terminal or a device keeps its name, and the content is written into it.

use crate::base::error::{Error, Result};
use crate::base::host_calls;
use crate::base::text::Text;
use crate::base::waiting;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

/// Size of one write.
const CHUNK: usize = 16 << 10;

/// How long the reader of a FIFO may read nothing, in milliseconds.
const FIFO_TIMEOUT: c_int = if cfg!(test) { 100 } else { 10_000 };

/// Limit of symbolic links that are followed, as in Linux.
const MOST_LINKS: usize = 40;

static NUMBER: AtomicU32 = AtomicU32::new(0);

const NO_MEMORY: Error = Error::OutOfHostMemory("the name of a file");

fn last_code() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn shown(path: &CStr) -> &str {
    path.to_str().unwrap_or("the file")
}

/// Advice for an error of the system, as the end of a sentence.
pub fn advice(code: i32) -> &'static str {
    match code {
        libc::EACCES | libc::EPERM | libc::EROFS => {
            "name a file, in a directory, that this user may write"
        }
        libc::EISDIR => "it is a directory: name a file in it",
        libc::ENXIO => "nothing reads it: open a FIFO for reading first",
        libc::ETIMEDOUT | libc::EPIPE => "its reader has stopped reading",
        libc::ENAMETOOLONG => "shorten the path",
        libc::EMFILE | libc::ENFILE => "raise the limit of open files (ulimit -n)",
        libc::EFBIG => "raise the limit of the size of a file (ulimit -f)",
        _ => "name a directory that exists, with room in it",
    }
}

/// Advice for an error of the system with a file of the host, as the end of a sentence.
pub fn remedy(code: i32) -> &'static str {
    match code {
        libc::ENOENT => "name a file that exists, or a new one in a directory that exists",
        libc::EACCES | libc::EPERM | libc::EROFS => "name a file that this user may use so",
        libc::ENOTDIR => "a part of the path is not a directory",
        libc::ELOOP => "its symbolic links lead in a circle",
        libc::ESPIPE | libc::ENXIO => "a pipe or socket has no offsets: name a file or a device",
        libc::ENOSPC | libc::EDQUOT => "make room on its file system",
        libc::EFBIG => "raise the limit of the size of a file (ulimit -f)",
        libc::ETXTBSY => "it is a program that runs",
        libc::EIO => "its device failed",
        libc::EISDIR | libc::ENAMETOOLONG | libc::EMFILE | libc::ENFILE => advice(code),
        _ => "see errno(3)",
    }
}

fn failed_with(path: &CStr, code: i32) -> Error {
    Error::File { path: Text::new(shown(path)), code }
}

fn failed(path: &CStr) -> Error {
    failed_with(path, last_code())
}

fn owned(file: RawFd) -> Option<OwnedFd> {
    // SAFETY: just opened, and owned by nothing else.
    (file >= 0).then(|| unsafe { OwnedFd::from_raw_fd(file) })
}

/// A NUL-terminated name. The standard library's would abort without host memory.
fn name(parts: &[&[u8]]) -> Result<Vec<u8>> {
    let mut name = Vec::new();
    let length = parts.iter().map(|part| part.len()).sum::<usize>() + 1;
    name.try_reserve_exact(length).map_err(|_| NO_MEMORY)?;
    parts.iter().for_each(|part| name.extend_from_slice(part));
    name.push(0);
    Ok(name)
}

fn c_text(name: &[u8]) -> Result<&CStr> {
    CStr::from_bytes_with_nul(name).map_err(|_| Error::Invalid("path has a NUL inside"))
}

/// The folder of a path: up to the last slash.
fn folder(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    &path[..end]
}

/// The status of the file at a path; `None`: there is none.
fn status(path: &CStr) -> Result<Option<libc::stat>> {
    // SAFETY: a structure of integers.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a path with a NUL, and `status` is writable.
    match unsafe { libc::stat(path.as_ptr(), &mut status) } {
        0 => Ok(Some(status)),
        _ if last_code() == libc::ENOENT => Ok(None),
        _ => Err(failed(path)),
    }
}

/// The NUL-terminated path, with symbolic links resolved.
fn resolved(path: &CStr) -> Result<Vec<u8>> {
    let mut goal = name(&[path.to_bytes()])?;
    let mut target: Vec<u8> = Vec::new();
    let room = libc::PATH_MAX as usize;
    target.try_reserve_exact(room).map_err(|_| NO_MEMORY)?;
    for _ in 0..MOST_LINKS {
        let (link, to) = (goal.as_ptr().cast(), target.as_mut_ptr().cast());
        // SAFETY: `goal` ends with a NUL, and `target` has room for so many bytes.
        let length = unsafe { libc::readlink(link, to, room) };
        let Ok(length) = usize::try_from(length) else { return Ok(goal) };
        // SAFETY: so many bytes were written.
        unsafe { target.set_len(length.min(room)) };
        let base = if target.starts_with(b"/") { &[][..] } else { folder(&goal) };
        goal = name(&[base, &target])?;
    }
    Err(failed_with(path, libc::ELOOP))
}

/// A new temporary file beside a path; removed unless it is kept.
struct TempFile {
    file: OwnedFd,
    name: Vec<u8>,
    goal: Vec<u8>,
    is_kept: bool,
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.is_kept {
            // SAFETY: a name with a NUL.
            unsafe { libc::unlink(self.name.as_ptr().cast()) };
        }
    }
}

impl TempFile {
    /// Creates one. Names of earlier processes that were killed may exist already.
    fn new(path: &CStr, goal: Vec<u8>, mode: c_uint) -> Result<TempFile> {
        const ATTEMPTS: u32 = 1000;
        let flags: c_int = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
        for _ in 0..ATTEMPTS {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let mut end = [0u8; 32];
            let mut rest = &mut end[..];
            let _ = write!(rest, ".tcuda-{}-{number}.tmp", std::process::id());
            let length = end.iter().position(|byte| *byte == 0).unwrap_or(end.len());
            let name = name(&[folder(&goal[..goal.len() - 1]), &end[..length]])?;
            // SAFETY: a name with a NUL.
            if let Some(file) = owned(unsafe { libc::open(name.as_ptr().cast(), flags, mode) }) {
                return Ok(TempFile { file, name, goal, is_kept: false });
            }
            if last_code() != libc::EEXIST {
                return Err(failed(path));
            }
        }
        Err(failed_with(path, libc::EEXIST))
    }

    /// Copies owner and permissions of the file that it replaces. If the group cannot be kept, its
    /// permissions are limited to those of all others.
    fn copy_permissions(&self, path: &CStr, before: &libc::stat) -> Result<()> {
        let file = self.file.as_raw_fd();
        let mut mode = before.st_mode & 0o777;
        let unchanged = u32::MAX;
        // SAFETY: an open file.
        if unsafe { libc::fchown(file, before.st_uid, before.st_gid) } != 0
            // SAFETY: as above.
            && unsafe { libc::fchown(file, unchanged, before.st_gid) } != 0
        {
            mode &= !0o070 | (mode & 0o007) << 3;
        }
        // SAFETY: as above.
        if unsafe { libc::fchmod(file, mode) } == 0 { Ok(()) } else { Err(failed(path)) }
    }

    /// Renames it to the path.
    fn keep(mut self, path: &CStr) -> Result<()> {
        let (from, to) = (self.name.as_ptr().cast(), self.goal.as_ptr().cast());
        // SAFETY: names with a NUL.
        if unsafe { libc::rename(from, to) } != 0 {
            return Err(failed(path));
        }
        self.is_kept = true;
        Ok(())
    }
}

/// The destination of content.
enum Destination {
    /// A temporary file that is renamed to the path.
    TempFile(TempFile),
    /// The existing FIFO, terminal or device.
    Special(OwnedFd),
}

impl Destination {
    fn of(path: &CStr) -> Result<Destination> {
        let before = status(path)?;
        let Some(before) = before else {
            return Ok(Destination::TempFile(TempFile::new(path, resolved(path)?, 0o666)?));
        };
        match before.st_mode & libc::S_IFMT {
            libc::S_IFREG => {
                // SAFETY: a path with a NUL.
                let access = unsafe {
                    libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK, libc::AT_EACCESS)
                };
                if access != 0 {
                    return Err(failed(path));
                }
                let fresh = TempFile::new(path, resolved(path)?, 0o600)?;
                fresh.copy_permissions(path, &before)?;
                Ok(Destination::TempFile(fresh))
            }
            libc::S_IFDIR => Err(failed_with(path, libc::EISDIR)),
            _ => {
                // Opening a FIFO without a reader is an error at once, instead of an endless wait.
                let flags: c_int =
                    libc::O_WRONLY | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
                // SAFETY: a path with a NUL.
                let file = owned(unsafe { libc::open(path.as_ptr(), flags) });
                file.map(Destination::Special).ok_or_else(|| failed(path))
            }
        }
    }
}

struct Writer<'a> {
    file: RawFd,
    path: &'a CStr,
    chunk: Vec<u8>,
}

impl<'a> Writer<'a> {
    fn new(file: &OwnedFd, path: &'a CStr) -> Result<Writer<'a>> {
        let mut chunk = Vec::new();
        chunk.try_reserve_exact(CHUNK).map_err(|_| Error::OutOfHostMemory("a file's content"))?;
        Ok(Writer { file: file.as_raw_fd(), path, chunk })
    }

    fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.chunk.len() == CHUNK {
                self.flush()?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK - self.chunk.len()));
            self.chunk.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let _waiting = waiting::begin();
        let mut rest = &self.chunk[..];
        while !rest.is_empty() {
            // SAFETY: an open file, and so many readable bytes.
            let written = unsafe { libc::write(self.file, rest.as_ptr().cast(), rest.len()) };
            match usize::try_from(written) {
                Ok(written) => rest = &rest[written.min(rest.len())..],
                Err(_) => match last_code() {
                    libc::EINTR => (),
                    libc::EAGAIN => self.wait_for_reader()?,
                    code => return Err(failed_with(self.path, code)),
                },
            }
        }
        self.chunk.clear();
        Ok(())
    }

    /// Waits until a FIFO has room, at most [`FIFO_TIMEOUT`].
    fn wait_for_reader(&self) -> Result<()> {
        let mut poll = libc::pollfd { fd: self.file, events: libc::POLLOUT, revents: 0 };
        // SAFETY: one whole entry.
        match unsafe { libc::poll(&mut poll, 1, FIFO_TIMEOUT) } {
            0 => Err(failed_with(self.path, libc::ETIMEDOUT)),
            ready if ready < 0 && last_code() != libc::EINTR => Err(failed(self.path)),
            _ => Ok(()),
        }
    }
}

/// Blocks the signals by which the system ends a process that writes a file beyond its limit
/// (ulimit -f), or a FIFO without a reader: the write fails instead.
pub(crate) struct BlockedSignals {
    /// Those of the signals that were not pending before.
    signals: libc::sigset_t,
    before: libc::sigset_t,
}

fn no_signals() -> libc::sigset_t {
    // SAFETY: integers, for which zeros are right.
    let mut signals = unsafe { std::mem::zeroed() };
    // SAFETY: ours to write.
    unsafe { libc::sigemptyset(&mut signals) };
    signals
}

impl BlockedSignals {
    const SIGNALS: [c_int; 2] = [libc::SIGXFSZ, libc::SIGPIPE];

    /// Blocks them until it is dropped.
    pub(crate) fn begin() -> BlockedSignals {
        let (mut all, mut signals) = (no_signals(), no_signals());
        let (mut before, mut waiting) = (no_signals(), no_signals());
        for signal in BlockedSignals::SIGNALS {
            // SAFETY: ours to write, and an existing signal.
            unsafe { libc::sigaddset(&mut all, signal) };
        }
        // SAFETY: both are whole sets.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before) };
        // SAFETY: ours to write.
        unsafe { libc::sigpending(&mut waiting) };
        for signal in BlockedSignals::SIGNALS {
            // SAFETY: a whole set.
            if unsafe { libc::sigismember(&waiting, signal) } != 1 {
                // SAFETY: ours to write, and a signal that there is.
                unsafe { libc::sigaddset(&mut signals, signal) };
            }
        }
        BlockedSignals { signals, before }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let taken = || {
            // SAFETY: a whole set; the signal's sender is not requested.
            unsafe { libc::sigtimedwait(&self.signals, std::ptr::null_mut(), &now) }
        };
        while taken() > 0 {}
        // SAFETY: the previous mask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

fn write(
    file: &OwnedFd,
    path: &CStr,
    body: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let mut writer = Writer::new(file, path)?;
    body(&mut |bytes| writer.put(bytes))?;
    writer.flush()
}

/// Gives a file the content that `body` writes; on failure the file is unchanged. Its owner and
/// permissions stay, and a symbolic link stays one.
pub fn replace(
    path: &str,
    body: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let path = name(&[path.as_bytes()])?;
    let path = c_text(&path)?;
    let _quiet = BlockedSignals::begin();
    match Destination::of(path)? {
        Destination::TempFile(fresh) => {
            write(&fresh.file, path, body)?;
            fresh.keep(path)
        }
        Destination::Special(file) => write(&file, path, body),
    }
}

/// [`replace`] for a file that only this user may read, whatever its permissions were.
pub fn replace_private(
    path: &str,
    body: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let goal = name(&[path.as_bytes()])?;
    let path = name(&[path.as_bytes()])?;
    let path = c_text(&path)?;
    let _quiet = BlockedSignals::begin();
    let fresh = TempFile::new(path, goal, 0o600)?;
    write(&fresh.file, path, body)?;
    fresh.keep(path)
}

/// Gives a file the content that `body` writes to a path; on failure the file is unchanged.
pub fn replace_by_name(path: &CStr, body: impl FnOnce(&CStr) -> Result<()>) -> Result<()> {
    let _quiet = BlockedSignals::begin();
    match Destination::of(path)? {
        Destination::TempFile(fresh) => {
            body(c_text(&fresh.name)?)?;
            fresh.keep(path)
        }
        Destination::Special(file) => {
            let text = owned(host_calls::memory_file(c"tcuda")).ok_or_else(|| failed(path))?;
            let mut own = [0u8; 32];
            let _ = write!(&mut own[..], "/proc/self/fd/{}\0", text.as_raw_fd());
            let own = CStr::from_bytes_until_nul(&own).map_err(|_| failed_with(path, 0))?;
            body(own)?;
            write(&file, path, |put| copy(&text, path, put))
        }
    }
}

/// Copies a file from its start.
fn copy(from: &OwnedFd, path: &CStr, put: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut bytes = [0u8; CHUNK];
    let mut at = 0;
    loop {
        let to = bytes.as_mut_ptr().cast::<c_void>();
        // SAFETY: an open file, and room for so many bytes.
        let length = unsafe { libc::pread(from.as_raw_fd(), to, CHUNK, at) };
        match usize::try_from(length) {
            Ok(0) => return Ok(()),
            Ok(length) => {
                put(&bytes[..length.min(CHUNK)])?;
                at += length as libc::off_t;
            }
            Err(_) if last_code() == libc::EINTR => (),
            Err(_) => return Err(failed(path)),
        }
    }
}

/// The content of a regular file, or its first `most` bytes; `None`: it cannot be read.
pub fn read_regular(path: &CStr, most: usize) -> Result<Option<Vec<u8>>> {
    let flags: c_int = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    // SAFETY: a path with a NUL.
    let Some(file) = owned(unsafe { libc::open(path.as_ptr(), flags) }) else { return Ok(None) };
    // SAFETY: a structure of integers.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: an open file, and `status` is writable.
    let known = unsafe { libc::fstat(file.as_raw_fd(), &mut status) } == 0;
    if !known || status.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Ok(None);
    }
    let mut content: Vec<u8> = Vec::new();
    loop {
        let room = most.saturating_sub(content.len());
        let rest = (status.st_size as usize + 1).saturating_sub(content.len());
        let now = rest.clamp(CHUNK, 1 << 20).min(room);
        if now == 0 {
            return Ok(Some(content));
        }
        content.try_reserve(now).map_err(|_| Error::OutOfHostMemory("a file"))?;
        let to = content.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: an open file, and there is room for so many bytes.
        let read = unsafe { libc::read(file.as_raw_fd(), to, now) };
        match usize::try_from(read) {
            Ok(0) => return Ok(Some(content)),
            // SAFETY: so many more were written.
            Ok(read) => unsafe { content.set_len(content.len() + read) },
            Err(_) if last_code() == libc::EINTR => (),
            Err(_) => return Ok(None),
        }
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
