//! Stacks of frames, each kept once: the same call allocates again and again.

use crate::error::{Error, Result};
use crate::lock::Mutex;
use crate::rank::Rank;
use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};

/// A frame as its source knows it.
#[derive(Clone, Copy)]
pub struct Named<'a> {
    /// Function.
    pub name: &'a [u8],
    /// File; may be empty.
    pub filename: &'a [u8],
    /// Line in it.
    pub line: i32,
}

/// A frame that is kept: its texts by their ids, or an address that is looked up when it is read.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Frame {
    name: u32,
    filename: u32,
    /// Line; 0 of native frames.
    pub line: i32,
    /// Where a native frame will return to; 0: it is the host's.
    address: usize,
}

/// Things one after the other, each found again by its hash. Ids begin with 1.
struct Kept<T> {
    items: Vec<T>,
    ends: Vec<usize>,
    ids: HashMap<u64, u32, BuildHasherDefault<DefaultHasher>>,
}

impl<T: Copy + PartialEq + Hash> Kept<T> {
    const fn new() -> Kept<T> {
        let ids = HashMap::with_hasher(BuildHasherDefault::new());
        Kept { items: Vec::new(), ends: Vec::new(), ids }
    }

    fn get(&self, id: u32) -> &[T] {
        let Some(index) = (id as usize).checked_sub(1) else { return &[] };
        let start = index.checked_sub(1).map_or(0, |below| self.ends[below]);
        &self.items[start..self.ends[index]]
    }

    /// The id of a list, kept now if it was not; none without host memory.
    fn keep(&mut self, list: &[T]) -> Option<u32> {
        let mut hasher = DefaultHasher::new();
        list.hash(&mut hasher);
        let mut hash = hasher.finish();
        while let Some(id) = self.ids.get(&hash) {
            if self.get(*id) == list {
                return Some(*id);
            }
            hash = hash.wrapping_add(1);
        }
        let id = self.append(list)?;
        self.ids.insert(hash, id);
        Some(id)
    }

    fn append(&mut self, list: &[T]) -> Option<u32> {
        self.ids.try_reserve(1).ok()?;
        self.items.try_reserve(list.len()).ok()?;
        self.ends.try_reserve(1).ok()?;
        let id = u32::try_from(self.ends.len() + 1).ok()?;
        self.items.extend_from_slice(list);
        self.ends.push(self.items.len());
        Some(id)
    }

    /// A copy to be read.
    fn try_clone(&self) -> Result<Kept<T>> {
        let no_memory = |_| Error::OutOfHostMemory("a snapshot");
        let mut copy = Kept::new();
        copy.items.try_reserve_exact(self.items.len()).map_err(no_memory)?;
        copy.ends.try_reserve_exact(self.ends.len()).map_err(no_memory)?;
        copy.items.extend_from_slice(&self.items);
        copy.ends.extend_from_slice(&self.ends);
        Ok(copy)
    }
}

/// Stacks, and the frames and texts that they are made of.
pub struct Stacks {
    texts: Kept<u8>,
    frames: Kept<Frame>,
    stacks: Kept<u32>,
}

impl Default for Stacks {
    fn default() -> Stacks {
        Stacks::new()
    }
}

/// The most frames of a stack that come from one source.
pub const DEEPEST: usize = 128;

impl Stacks {
    /// None.
    pub const fn new() -> Stacks {
        Stacks { texts: Kept::new(), frames: Kept::new(), stacks: Kept::new() }
    }

    /// The id of a stack, innermost frame first; 0: it is empty, or there is no host memory.
    pub fn keep(&mut self, named: &mut dyn Iterator<Item = Named<'_>>, native: &[usize]) -> u32 {
        let mut list = [0; 2 * DEEPEST];
        let mut len = 0;
        for frame in named.take(DEEPEST) {
            let Some(name) = self.texts.keep(frame.name) else { return 0 };
            let Some(filename) = self.texts.keep(frame.filename) else { return 0 };
            let frame = Frame { name, filename, line: frame.line, address: 0 };
            let Some(id) = self.frames.keep(&[frame]) else { return 0 };
            list[len] = id;
            len += 1;
        }
        for address in native.iter().take(DEEPEST) {
            let frame = Frame { name: 0, filename: 0, line: 0, address: *address };
            let Some(id) = self.frames.keep(&[frame]) else { return 0 };
            list[len] = id;
            len += 1;
        }
        if len == 0 { 0 } else { self.stacks.keep(&list[..len]).unwrap_or(0) }
    }

    /// A copy in which native frames have names.
    fn to_be_read(&self) -> Result<Stacks> {
        Ok(Stacks {
            texts: self.texts.try_clone()?,
            frames: self.frames.try_clone()?,
            stacks: self.stacks.try_clone()?,
        })
    }

    fn look_up(&mut self) -> Result<()> {
        for index in 0..self.frames.items.len() {
            let address = self.frames.items[index].address;
            if address != 0 {
                let (name, filename) = symbol(address);
                let no_memory = Error::OutOfHostMemory("the names of native frames");
                let Some(filename) = self.texts.append(filename) else { return Err(no_memory) };
                let Some(name) = self.texts.append(name) else { return Err(no_memory) };
                let frame = &mut self.frames.items[index];
                (frame.name, frame.filename) = (name, filename);
            }
        }
        Ok(())
    }

    /// Number of stacks; ids are 1 to this.
    pub fn count(&self) -> usize {
        self.stacks.ends.len()
    }

    /// Number of frames.
    pub fn frame_count(&self) -> usize {
        self.frames.items.len()
    }

    /// The frames of a stack by their ids, innermost first, without our own.
    pub fn stack(&self, id: u32) -> impl Iterator<Item = u32> {
        let frames = if id as usize > self.count() { &[] } else { self.stacks.get(id) };
        let native = frames.iter().position(|id| self.frame(*id).address != 0);
        let (named, native) = frames.split_at(native.unwrap_or(frames.len()));
        // The host called a function of ours; what that called in turn is nobody's concern.
        let is_entry = |id: &u32| self.name(self.frame(*id)).starts_with(b"tcuda_");
        let entry = native.iter().position(is_entry).unwrap_or(0);
        named.iter().chain(&native[entry..]).copied()
    }

    /// A frame.
    pub fn frame(&self, id: u32) -> Frame {
        let none = Frame { name: 0, filename: 0, line: 0, address: 0 };
        self.frames.get(id).first().copied().unwrap_or(none)
    }

    /// Its function.
    pub fn name(&self, frame: Frame) -> &[u8] {
        self.texts.get(frame.name)
    }

    /// Its file.
    pub fn filename(&self, frame: Frame) -> &[u8] {
        self.texts.get(frame.filename)
    }
}

/// The stacks of what is recorded.
static STACKS: Mutex<Stacks> = Mutex::new(Rank::LEAF, Stacks::new());

/// Keeps a stack.
pub fn keep(named: &mut dyn Iterator<Item = Named<'_>>, native: &[usize]) -> u32 {
    STACKS.lock().keep(named, native)
}

/// A copy of all stacks, for reading.
pub fn copy() -> Result<Stacks> {
    let mut copy = STACKS.lock().to_be_read()?;
    copy.look_up()?;
    Ok(copy)
}

/// Forgets them all: nobody has an id of one any more.
pub fn forget() {
    let old = std::mem::take(&mut *STACKS.lock());
    drop(old);
}

type Walk = extern "C" fn(*mut c_void, *mut c_void) -> c_int;

unsafe extern "C" {
    // What Rust's own panics use, so that it is there in every build.
    fn _Unwind_Backtrace(walk: Walk, data: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

struct Walked<'a> {
    addresses: &'a mut [usize],
    len: usize,
}

extern "C" fn step(context: *mut c_void, data: *mut c_void) -> c_int {
    // SAFETY: what `addresses` passes, for the time of that call.
    let walked = unsafe { &mut *data.cast::<Walked<'_>>() };
    // SAFETY: the context that the unwinder gives.
    let address = unsafe { _Unwind_GetIP(context) };
    match walked.addresses.get_mut(walked.len) {
        Some(place) if address != 0 => {
            *place = address;
            walked.len += 1;
            0
        }
        // _URC_NORMAL_STOP: enough.
        _ => 4,
    }
}

/// The return addresses of this thread's calls, innermost first; gives their number.
pub fn addresses(addresses: &mut [usize]) -> usize {
    let mut walked = Walked { addresses, len: 0 };
    // SAFETY: `step` uses what it gets as what this passes.
    unsafe { _Unwind_Backtrace(step, (&raw mut walked).cast()) };
    walked.len
}

/// The function and file at an address, as far as the loader knows them.
fn symbol(address: usize) -> (&'static [u8], &'static [u8]) {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // The call itself lies before the address to which it returns.
    // SAFETY: `info` is writable; any address is allowed.
    let found = unsafe { libc::dladdr((address - 1) as *const c_void, &mut info) };
    if found == 0 {
        return (b"??", b"");
    }
    let text = |text: *const libc::c_char, otherwise: &'static [u8]| {
        if text.is_null() {
            return otherwise;
        }
        // SAFETY: a text of the loader's, which lives while the library is loaded, and is copied now.
        unsafe { CStr::from_ptr(text) }.to_bytes()
    };
    (text(info.dli_sname, b"??"), text(info.dli_fname, b""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &'static str, line: i32) -> Named<'static> {
        Named { name: name.as_bytes(), filename: b"model.py", line }
    }

    fn lines(stacks: &Stacks, id: u32) -> Vec<(String, i32)> {
        let frames = stacks.stack(id).map(|id| stacks.frame(id));
        let text = |frame| String::from_utf8(stacks.name(frame).to_vec()).unwrap();
        frames.map(|frame| (text(frame), frame.line)).collect()
    }

    #[test]
    fn the_same_stack_is_kept_once() {
        let mut stacks = Stacks::new();
        let first = stacks.keep(&mut [named("inner", 3), named("outer", 9)].into_iter(), &[]);
        let other = stacks.keep(&mut [named("outer", 9)].into_iter(), &[]);
        let again = stacks.keep(&mut [named("inner", 3), named("outer", 9)].into_iter(), &[]);
        assert_eq!((first, other, again), (1, 2, 1));
        assert_eq!((stacks.count(), stacks.frame_count()), (2, 2));
        assert_eq!(lines(&stacks, 1), [("inner".to_owned(), 3), ("outer".to_owned(), 9)]);
        assert_eq!(stacks.filename(stacks.frame(1)), b"model.py");
        assert_eq!(stacks.keep(&mut [].into_iter(), &[]), 0);
        assert_eq!(stacks.stack(0).chain(stacks.stack(3)).count(), 0);
    }

    #[test]
    fn lists_that_share_a_hash_are_told_apart() {
        let mut kept = Kept::<u8>::new();
        let mut hasher = DefaultHasher::new();
        b"abc"[..].hash(&mut hasher);
        let first = kept.append(b"other").unwrap();
        kept.ids.insert(hasher.finish(), first);
        let second = kept.keep(b"abc").unwrap();
        assert_ne!(first, second);
        assert_eq!(kept.keep(b"abc"), Some(second));
        assert_eq!((kept.get(first), kept.get(second)), (&b"other"[..], &b"abc"[..]));
    }

    #[test]
    fn native_frames_are_found_and_named() {
        let mut found = [0; DEEPEST];
        let len = addresses(&mut found);
        assert!(len > 3, "{len}");
        let mut stacks = Stacks::new();
        let id = stacks.keep(&mut [named("host", 1)].into_iter(), &found[..len]);
        let mut copy = stacks.to_be_read().unwrap();
        copy.look_up().unwrap();
        assert_eq!(copy.stack(id).count(), len + 1);
        let last = copy.frame(copy.stack(id).last().unwrap());
        assert!(!copy.name(last).is_empty());
        assert!(!copy.filename(last).is_empty());
    }
}
