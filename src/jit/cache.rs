//! Compiled kernels on disk, shared between processes. A damaged or unsuitable file counts as
//! missing: the kernel is compiled again, and the file is replaced.

use super::includes;
use super::text::TextBuffer;
use crate::base::environment;
use crate::base::error::Result;
use crate::base::file;
use crate::base::waiting;
use crate::driver::Driver;
use crate::driver::compiler::{Image, Linkage, Program};
use std::ffi::{CStr, c_int};
use std::fmt::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The start of each file. The number changes with the format.
const MAGIC: &[u8; 8] = b"tcudaK01";

/// Bytes of the header: magic, length of the rest, checksum, key, versions, and length of the name.
const HEADER: usize = 56;

/// Larger files are ignored.
const MAX_BYTES: u64 = 256 << 20;

/// Identifies a program and the target that it is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(pub [u64; 2]);

/// Two hash sums with different multipliers, updated by words.
struct Hash([u64; 2]);

impl Hash {
    fn new() -> Hash {
        Hash([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344])
    }

    fn word(&mut self, word: u64) {
        const MULTIPLIERS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93];
        for (sum, multiplier) in self.0.iter_mut().zip(MULTIPLIERS) {
            *sum = (*sum ^ word).wrapping_mul(multiplier);
            *sum ^= *sum >> 29;
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
    }
}

impl Key {
    /// The key of a program for a driver's compiler, including the content of included files.
    /// `None`: the included files cannot be determined.
    pub fn of(program: &Program<'_>, driver: &Driver) -> Result<Option<Key>> {
        let mut hash = Hash::new();
        for text in [env!("CARGO_PKG_VERSION"), driver.name()] {
            hash.bytes(text.as_bytes());
        }
        hash.word(program.capability.into());
        for text in [program.title, program.entry, program.source] {
            hash.bytes(text.to_bytes());
        }
        program.flags.iter().for_each(|flag| hash.bytes(flag.to_bytes()));
        if program.linkage != Linkage::Whole {
            hash.word(program.linkage as u64);
        }
        for image in program.images {
            hash.word(image.kind as u64);
            hash.bytes(image.bytes);
        }
        let is_known = includes::for_each(program, &mut |content| match content {
            Some(content) => hash.bytes(content),
            None => hash.word(u64::MAX),
        })?;
        Ok(is_known.then_some(Key(hash.0)))
    }

    /// The key of a compiled image.
    pub fn of_image(image: &Image) -> Key {
        let mut hash = Hash::new();
        hash.bytes(b"image");
        hash.bytes(&image.entry);
        hash.bytes(&image.bytes);
        Key(hash.0)
    }
}

/// The directory of the files, with a slash at the end and without a NUL; `None`: no cache.
fn directory() -> Option<TextBuffer> {
    if environment::value(c"TCUDA_KERNEL_CACHE") == Some(c"0") {
        return None;
    }
    directory_of([c"TCUDA_KERNEL_CACHE_PATH", c"XDG_CACHE_HOME", c"HOME"].map(environment::value))
}

fn directory_of([own, base, home]: [Option<&CStr>; 3]) -> Option<TextBuffer> {
    // A relative `XDG_CACHE_HOME` is ignored, as its specification requires.
    let base = base.filter(|base| base.to_bytes().starts_with(b"/"));
    let (base, more) = match (own, base) {
        (Some(own), _) => (own, "/"),
        (None, Some(base)) => (base, "/tcuda/kernels/"),
        (None, None) => (home?, "/.cache/tcuda/kernels/"),
    };
    let mut path = TextBuffer::default();
    let base = base.to_str().ok()?.trim_end_matches('/');
    write!(path, "{base}{more}").ok()?;
    Some(path)
}

/// The path of a program's file, with a NUL.
fn path(key: &Key) -> Option<Vec<u8>> {
    let mut path = directory()?;
    write!(path, "{:016x}{:016x}.kernel", key.0[0], key.0[1]).ok()?;
    path.with_nul().ok()
}

fn c_text(bytes: &[u8]) -> Option<&CStr> {
    CStr::from_bytes_with_nul(bytes).ok()
}

/// Creates the missing directories of a path, accessible to this user only.
fn make_directories(path: &mut [u8]) {
    for at in 1..path.len() {
        if path[at] != b'/' {
            continue;
        }
        path[at] = 0;
        // SAFETY: the path ends with a NUL here. A failure shows when the file is written.
        unsafe { libc::mkdir(path.as_ptr().cast(), 0o700) };
        path[at] = b'/';
    }
}

/// Opens a file that this user owns and no other user can write. Returns its length too.
fn open(path: &CStr) -> Option<(OwnedFd, u64)> {
    let flags: c_int = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    // SAFETY: the path ends with a NUL.
    let file = unsafe { libc::open(path.as_ptr(), flags) };
    if file < 0 {
        return None;
    }
    // SAFETY: just opened, and not owned elsewhere.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    // SAFETY: a structure of integers.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: an open file, and `status` is writable.
    if unsafe { libc::fstat(file.as_raw_fd(), &mut status) } != 0 {
        return None;
    }
    // SAFETY: no preconditions.
    let user = unsafe { libc::geteuid() };
    let is_own = status.st_uid == user && status.st_mode & 0o022 == 0;
    let is_file = status.st_mode & libc::S_IFMT == libc::S_IFREG;
    (is_own && is_file).then_some((file, status.st_size as u64))
}

fn read(file: &OwnedFd, length: u64) -> Option<Vec<u8>> {
    let length = usize::try_from(length).ok().filter(|_| length <= MAX_BYTES)?;
    let mut bytes: Vec<u8> = Vec::new();
    bytes.try_reserve_exact(length).ok()?;
    bytes.resize(length, 0);
    let mut done = 0;
    while done < length {
        let to = bytes[done..].as_mut_ptr().cast();
        // SAFETY: an open file, and the buffer has this much space.
        let now = unsafe { libc::read(file.as_raw_fd(), to, length - done) };
        match usize::try_from(now) {
            Ok(0) => return None,
            Ok(now) => done += now,
            Err(_) if std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => (),
            Err(_) => return None,
        }
    }
    Some(bytes)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// The header of a file. Its checksum covers everything else.
fn header(key: &Key, image: &Image) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let length = (image.entry.len() + image.bytes.len()) as u64;
    let versions = u64::from(image.version);
    let words = [length, 0, key.0[0], key.0[1], versions, image.entry.len() as u64];
    header[..8].copy_from_slice(MAGIC);
    for (to, word) in header[8..].chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    let sum = checksum(&header, &image.entry, &image.bytes);
    header[16..24].copy_from_slice(&sum.to_le_bytes());
    header
}

fn checksum(header: &[u8], entry: &[u8], bytes: &[u8]) -> u64 {
    let mut hash = Hash::new();
    hash.bytes(&header[..16]);
    hash.bytes(&header[24..HEADER]);
    hash.bytes(entry);
    hash.bytes(bytes);
    hash.0[0] ^ hash.0[1].rotate_left(32)
}

/// Decodes a file; `None` if it is damaged or of another key.
fn image_of(mut bytes: Vec<u8>, key: &Key) -> Option<Image> {
    if bytes.len() < HEADER || &bytes[..8] != MAGIC {
        return None;
    }
    let name = usize::try_from(word(&bytes, 48)).ok()?;
    let is_whole = word(&bytes, 8) == (bytes.len() - HEADER) as u64
        && [word(&bytes, 24), word(&bytes, 32)] == key.0
        && (1..=bytes.len() - HEADER).contains(&name);
    if !is_whole {
        return None;
    }
    let (header, rest) = bytes.split_at(HEADER);
    let (entry, image) = rest.split_at(name);
    if checksum(header, entry, image) != word(header, 16) || c_text(entry).is_none() {
        return None;
    }
    let version = word(header, 40) as u32;
    let mut copy = Vec::new();
    copy.try_reserve_exact(name).ok()?;
    copy.extend_from_slice(entry);
    bytes.drain(..HEADER + name);
    Some(Image { bytes, entry: copy, version })
}

/// Reads the image of a program from disk. `None` if another compiler `version` made it; 0 accepts
/// any version.
pub fn load(key: &Key, version: u32) -> Option<Image> {
    let path = path(key)?;
    let _waiting = waiting::begin();
    let (file, length) = open(c_text(&path)?)?;
    let image = image_of(read(&file, length)?, key)?;
    (version == 0 || image.version == version).then_some(image)
}

/// Writes an image to disk. Failures are ignored.
pub fn store(key: &Key, image: &Image) {
    let Some(mut path) = path(key) else { return };
    let header = header(key, image);
    let write = |path: &[u8]| {
        let text = path.strip_suffix(b"\0").and_then(|path| std::str::from_utf8(path).ok());
        let Some(text) = text else { return true };
        let body = |put: &mut dyn FnMut(&[u8]) -> Result<()>| {
            put(&header)?;
            put(&image.entry)?;
            put(&image.bytes)
        };
        file::replace_private(text, body).is_ok()
    };
    if !write(&path) {
        make_directories(&mut path);
        write(&path);
    }
}

/// Deletes an image that does not load.
pub fn forget(key: &Key) {
    let Some(path) = path(key) else { return };
    // SAFETY: the path ends with a NUL.
    unsafe { libc::unlink(path.as_ptr().cast()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Image {
        Image {
            bytes: (0..=255).cycle().take(1000).collect(),
            entry: b"add\0".to_vec(),
            version: 7,
        }
    }

    #[test]
    fn a_damaged_file_is_ignored() {
        let (key, image) = (Key([1, 2]), image());
        let mut file = header(&key, &image).to_vec();
        file.extend_from_slice(&image.entry);
        file.extend_from_slice(&image.bytes);
        let found = image_of(file.clone(), &key).unwrap();
        assert_eq!((found.bytes, found.entry), (image.bytes, image.entry));
        assert_eq!(found.version, 7);
        assert!(image_of(file.clone(), &Key([1, 3])).is_none());
        for length in 0..file.len() {
            assert!(image_of(file[..length].to_vec(), &key).is_none(), "{length}");
        }
        for at in 0..file.len() {
            for bit in [0, 7] {
                let mut wrong = file.clone();
                wrong[at] ^= 1 << bit;
                assert!(image_of(wrong, &key).is_none(), "byte {at}");
            }
        }
        file.push(0);
        assert!(image_of(file, &key).is_none());
    }

    #[test]
    fn the_first_configured_directory_is_used() {
        let place = |own, base, home| {
            directory_of([own, base, home]).map(|path| String::from_utf8(path.0).unwrap())
        };
        let (own, base, home) = (Some(c"own/"), Some(c"/base//"), Some(c"/home/me"));
        assert_eq!(place(own, base, home).as_deref(), Some("own/"));
        assert_eq!(place(None, base, home).as_deref(), Some("/base/tcuda/kernels/"));
        let of_home = Some("/home/me/.cache/tcuda/kernels/");
        assert_eq!(place(None, Some(c"base"), home).as_deref(), of_home, "relative");
        assert_eq!(place(None, None, home).as_deref(), of_home);
        assert_eq!(place(None, Some(c"base"), None), None);
        assert_eq!(place(Some(c"\xff"), base, home), None, "no text");
    }

    #[test]
    fn different_texts_have_different_keys() {
        let mut seen = std::collections::BTreeSet::new();
        for text in ["", "\0", "\0\0", "a", "b", "aaaaaaaa", "aaaaaaaaa", "aaaaaaab"] {
            let mut hash = Hash::new();
            hash.bytes(text.as_bytes());
            assert!(seen.insert(hash.0));
        }
    }
}
