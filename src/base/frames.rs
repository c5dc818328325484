//! Stacks of frames, each stored once, because the same call allocates again and again.

use crate::base::error::{Error, Result};
use crate::base::waiting::NoCalls;
use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::ptr::NonNull;

/// A frame with its texts, as its source passes it.
#[derive(Clone, Copy)]
pub struct Named<'a> {
    /// Function name.
    pub name: &'a [u8],
    /// File name; may be empty.
    pub filename: &'a [u8],
    /// Line number.
    pub line: i32,
}

/// How an object of the host that stands for a stack begins: with the functions that count its
/// references. Without them it is never destroyed.
#[repr(C)]
pub struct ContextHead {
    /// Adds a reference.
    pub retain: Option<unsafe extern "C" fn(*mut c_void)>,
    /// Drops a reference.
    pub release: Option<unsafe extern "C" fn(*mut c_void)>,
}

/// A reference to an object of the host that stands for a stack.
pub struct Context(NonNull<ContextHead>);

// SAFETY: the host promises that any thread may count and drop references.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Takes over a reference of the host. `None`: NULL.
    pub fn adopt(object: *mut ContextHead) -> Option<Context> {
        NonNull::new(object).map(Context)
    }

    /// The object.
    pub fn as_ptr(&self) -> *mut ContextHead {
        self.0.as_ptr()
    }

    /// Gives the reference to the host.
    pub fn into_raw(self) -> *mut ContextHead {
        std::mem::ManuallyDrop::new(self).as_ptr()
    }

    fn call(&self, which: impl Fn(&ContextHead) -> Option<unsafe extern "C" fn(*mut c_void)>) {
        // SAFETY: this reference keeps the object alive.
        let head = unsafe { self.0.as_ref() };
        let Some(function) = which(head) else { return };
        let _refused = NoCalls::begin();
        // SAFETY: the host's own function with its own object.
        unsafe { function(self.as_ptr().cast()) };
    }

    /// Adds a reference.
    pub fn share(&self) -> Context {
        self.call(|head| head.retain);
        Context(self.0)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.call(|head| head.release);
    }
}

/// A stored frame: the ids of its texts, an address that is resolved when the frame is read, or a
/// context.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Frame {
    name: u32,
    filename: u32,
    /// Line number; 0 in native frames.
    pub line: i32,
    /// Is it a context of the host? The first frame of a stack may be one.
    is_context: bool,
    /// The return address of a native frame, or the address of a context; 0: a frame of the host's
    /// source.
    address: usize,
}

impl Frame {
    const NONE: Frame = Frame { name: 0, filename: 0, line: 0, is_context: false, address: 0 };

    fn is_native(self) -> bool {
        self.address != 0 && !self.is_context
    }
}

/// The range of a list in the items of a [`Interned`].
#[derive(Clone, Copy)]
struct Span {
    start: u32,
    len: u32,
}

const NOTHING: Span = Span { start: 0, len: 0 };

/// Lists, each stored once and found by its hash. Ids start at 1 and never change. The id of a
/// removed list is reused.
struct Interned<T> {
    items: Vec<T>,
    spans: Vec<Span>,
    /// The unused ids.
    vacant: Vec<u32>,
    ids: HashMap<u64, u32, BuildHasherDefault<DefaultHasher>>,
}

impl<T: Copy + PartialEq + Hash> Interned<T> {
    const fn new() -> Interned<T> {
        let ids = HashMap::with_hasher(BuildHasherDefault::new());
        Interned { items: Vec::new(), spans: Vec::new(), vacant: Vec::new(), ids }
    }

    fn get(&self, id: u32) -> &[T] {
        let index = (id as usize).wrapping_sub(1);
        let span = self.spans.get(index).copied().unwrap_or(NOTHING);
        &self.items[span.start as usize..][..span.len as usize]
    }

    /// The id of a list; `Err`: the key for inserting it.
    fn find(&self, list: &[T]) -> std::result::Result<u32, u64> {
        let mut hasher = DefaultHasher::new();
        list.hash(&mut hasher);
        let mut key = hasher.finish();
        while let Some(id) = self.ids.get(&key) {
            if self.get(*id) == list {
                return Ok(*id);
            }
            key = key.wrapping_add(1);
        }
        Err(key)
    }

    /// The id of a list, which is stored if it is new. `None`: no host memory.
    fn intern(&mut self, list: &[T]) -> Option<u32> {
        match self.find(list) {
            Ok(id) => Some(id),
            Err(key) => {
                let id = self.append(list)?;
                self.ids.insert(key, id);
                Some(id)
            }
        }
    }

    fn append(&mut self, list: &[T]) -> Option<u32> {
        self.ids.try_reserve(1).ok()?;
        self.items.try_reserve(list.len()).ok()?;
        self.spans.try_reserve(1).ok()?;
        let start = u32::try_from(self.items.len()).ok()?;
        let span = Span { start, len: u32::try_from(list.len()).ok()? };
        let id = match self.vacant.pop() {
            Some(id) => id,
            None => {
                self.spans.push(NOTHING);
                u32::try_from(self.spans.len()).ok()?
            }
        };
        self.items.extend_from_slice(list);
        self.spans[id as usize - 1] = span;
        Some(id)
    }

    /// A copy with only the lists of these ids, under the same ids. `None`: no host memory.
    fn only(&self, ids: &Ids) -> Option<Interned<T>> {
        let mut new = Interned::new();
        let count = ids.iter().next_back().unwrap_or(0);
        let wanted = ids.iter().map(|id| self.get(id).len()).sum();
        new.items.try_reserve_exact(wanted).ok()?;
        new.spans.try_reserve_exact(count as usize).ok()?;
        new.vacant.try_reserve_exact(count as usize - ids.iter().count()).ok()?;
        new.ids.try_reserve(ids.iter().count()).ok()?;
        // Vacant ids are popped from the end, so that the lowest is reused first and the table
        // stays short.
        new.vacant.extend((1..=count).rev().filter(|id| !ids.has(*id)));
        for id in 1..=count {
            new.spans.push(NOTHING);
            if !ids.has(id) {
                continue;
            }
            let list = self.get(id);
            if let Err(key) = new.find(list) {
                new.ids.insert(key, id);
            }
            new.spans[id as usize - 1] =
                Span { start: new.items.len() as u32, len: list.len() as u32 };
            new.items.extend_from_slice(list);
        }
        Some(new)
    }

    /// The approximate host memory of the lists. Vacant ids do not count. Otherwise a table would
    /// seem full immediately, and would take more ids each time it is emptied.
    fn bytes(&self) -> usize {
        let lists = self.spans.len() - self.vacant.len();
        self.items.len() * size_of::<T>() + lists * BYTES_OF_AN_ID
    }

    /// A copy for reading.
    fn try_clone(&self) -> Result<Interned<T>> {
        let no_memory = |_| Error::OutOfHostMemory("a snapshot");
        let mut copy = Interned::new();
        copy.items.try_reserve_exact(self.items.len()).map_err(no_memory)?;
        copy.spans.try_reserve_exact(self.spans.len()).map_err(no_memory)?;
        copy.items.extend_from_slice(&self.items);
        copy.spans.extend_from_slice(&self.spans);
        Ok(copy)
    }
}

/// A span, an entry of the hash table, and its share of the table's spare capacity.
const BYTES_OF_AN_ID: usize = 48;

/// A set of ids, which start at 1.
pub struct Ids(Vec<bool>);

impl Ids {
    fn up_to(count: usize) -> Option<Ids> {
        let mut set = Vec::new();
        set.try_reserve_exact(count + 1).ok()?;
        set.resize(count + 1, false);
        Some(Ids(set))
    }

    /// Adds an id; ignores 0 and ids beyond the end.
    pub fn add(&mut self, id: u32) {
        if let Some(has) = self.0.get_mut(id as usize) {
            *has = id != 0;
        }
    }

    fn has(&self, id: u32) -> bool {
        self.0.get(id as usize).is_some_and(|has| *has)
    }

    /// All ids of the set, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> {
        let indices = self.0.iter().enumerate();
        indices.filter(|(_, has)| **has).map(|(id, _)| id as u32)
    }
}

/// Stacks, and the frames and texts that they consist of.
pub struct Stacks {
    texts: Interned<u8>,
    frames: Interned<Frame>,
    stacks: Interned<u32>,
    /// The references to contexts, by the ids of their frames, from 1 on.
    contexts: Vec<Option<Context>>,
    /// If the stacks take more bytes than this, unreferenced stacks should be removed.
    most: usize,
}

impl Default for Stacks {
    fn default() -> Stacks {
        Stacks::new()
    }
}

/// The largest number of frames of a stack from one source.
pub const MAX_DEPTH: usize = 128;

/// Below this number of bytes, no search for unreferenced stacks runs.
const LEAST: usize = 256 << 10;

impl Stacks {
    /// No stacks.
    pub const fn new() -> Stacks {
        Stacks {
            texts: Interned::new(),
            frames: Interned::new(),
            stacks: Interned::new(),
            contexts: Vec::new(),
            most: LEAST,
        }
    }

    /// Stores a stack, innermost frame first, and returns its id. 0: it is empty, or there is no
    /// host memory.
    pub fn intern(
        &mut self,
        context: Option<Context>,
        named: &mut dyn Iterator<Item = Named<'_>>,
        native: &[usize],
    ) -> u32 {
        let mut list = [0; 1 + 2 * MAX_DEPTH];
        let mut len = 0;
        if let Some(context) = context {
            let Some(id) = self.intern_context(context) else { return 0 };
            list[0] = id;
            len = 1;
        }
        for frame in named.take(MAX_DEPTH) {
            let Some(name) = self.texts.intern(frame.name) else { return 0 };
            let Some(filename) = self.texts.intern(frame.filename) else { return 0 };
            let frame = Frame { name, filename, line: frame.line, ..Frame::NONE };
            let Some(id) = self.frames.intern(&[frame]) else { return 0 };
            list[len] = id;
            len += 1;
        }
        for address in native.iter().take(MAX_DEPTH) {
            let frame = Frame { address: *address, ..Frame::NONE };
            let Some(id) = self.frames.intern(&[frame]) else { return 0 };
            list[len] = id;
            len += 1;
        }
        if len == 0 { 0 } else { self.stacks.intern(&list[..len]).unwrap_or(0) }
    }

    /// The frame of a context, which the table keeps; a second reference to one is dropped.
    fn intern_context(&mut self, context: Context) -> Option<u32> {
        let address = context.as_ptr() as usize;
        let id = self.frames.intern(&[Frame { is_context: true, address, ..Frame::NONE }])?;
        let missing = (id as usize).saturating_sub(self.contexts.len());
        self.contexts.try_reserve(missing).ok()?;
        self.contexts.resize_with(self.contexts.len() + missing, || None);
        self.contexts[id as usize - 1] = Some(context);
        Some(id)
    }

    /// The context of a stack.
    pub fn context(&self, id: u32) -> Option<&Context> {
        let first = *self.stacks.get(id).first()?;
        self.contexts.get((first as usize).checked_sub(1)?)?.as_ref()
    }

    /// The contexts of these frames, each with a reference of its own. `None`: no host memory.
    fn share_contexts(&self, is_wanted: impl Fn(u32) -> bool) -> Option<Vec<Option<Context>>> {
        let mut list = Vec::new();
        list.try_reserve_exact(self.contexts.len()).ok()?;
        for (index, context) in self.contexts.iter().enumerate() {
            let context = context.as_ref().filter(|_| is_wanted(index as u32 + 1));
            list.push(context.map(Context::share));
        }
        while list.pop_if(|last| last.is_none()).is_some() {}
        Some(list)
    }

    /// Do the stacks take so much memory that the unreferenced ones should be removed?
    pub fn are_many(&self) -> bool {
        self.bytes() > self.most
    }

    fn bytes(&self) -> usize {
        let contexts = self.contexts.len() * size_of::<Option<Context>>();
        self.texts.bytes() + self.frames.bytes() + self.stacks.bytes() + contexts
    }

    /// An empty set for ids of stacks. `None`: no host memory.
    pub fn no_ids(&self) -> Option<Ids> {
        Ids::up_to(self.count())
    }

    /// Removes all stacks except these, with their frames and texts. Without host memory it removes
    /// none. The search for references visited `walked` places. Returns the stacks to be dropped.
    pub fn keep_only(&mut self, ids: &Ids, walked: usize) -> Stacks {
        let new = self.only(ids);
        let left = new.as_ref().unwrap_or(self).bytes();
        // The next search starts only after enough new stacks, so that its cost is a small fraction
        // of storing them. A search also visits each id; new stacks fit into the vacant ids until
        // then.
        let ids = self.texts.spans.len() + self.frame_count() + self.count();
        let more = left.max(walked.saturating_mul(16)).max(ids.saturating_mul(8));
        let most = left + more.max(LEAST);
        match new {
            Some(new) => std::mem::replace(self, Stacks { most, ..new }),
            None => {
                self.most = most;
                Stacks::new()
            }
        }
    }

    fn only(&self, ids: &Ids) -> Option<Stacks> {
        let mut of_frames = Ids::up_to(self.frame_count())?;
        let mut of_texts = Ids::up_to(self.texts.spans.len())?;
        ids.iter().flat_map(|id| self.stacks.get(id)).for_each(|frame| of_frames.add(*frame));
        for frame in of_frames.iter().flat_map(|id| self.frames.get(id)) {
            of_texts.add(frame.name);
            of_texts.add(frame.filename);
        }
        Some(Stacks {
            texts: self.texts.only(&of_texts)?,
            frames: self.frames.only(&of_frames)?,
            stacks: self.stacks.only(ids)?,
            contexts: self.share_contexts(|id| of_frames.has(id))?,
            most: 0,
        })
    }

    /// A copy for reading.
    pub fn copy_for_reading(&self) -> Result<Stacks> {
        Ok(Stacks {
            texts: self.texts.try_clone()?,
            frames: self.frames.try_clone()?,
            stacks: self.stacks.try_clone()?,
            contexts: self
                .share_contexts(|_| true)
                .ok_or(Error::OutOfHostMemory("the contexts of a snapshot"))?,
            most: 0,
        })
    }

    /// Resolves the native frames of a copy.
    pub fn resolve(&mut self) -> Result<()> {
        for index in 0..self.frames.items.len() {
            let Frame { address, .. } = self.frames.items[index];
            if self.frames.items[index].is_native() {
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

    /// The largest id of a stack; lower ids may be vacant.
    pub fn count(&self) -> usize {
        self.stacks.spans.len()
    }

    /// The largest id of a frame.
    pub fn frame_count(&self) -> usize {
        self.frames.spans.len()
    }

    /// The ids of a stack's frames, innermost first, without the frames inside this library.
    pub fn stack(&self, id: u32) -> impl Iterator<Item = u32> {
        let frames = self.stacks.get(id);
        let has_context = frames.first().is_some_and(|first| self.frame(*first).is_context);
        let frames = &frames[usize::from(has_context)..];
        let native = frames.iter().position(|id| self.frame(*id).is_native());
        let (named, native) = frames.split_at(native.unwrap_or(frames.len()));
        // The host called this function of the library; the frames below it are internal.
        let is_entry = |id: &u32| self.name(self.frame(*id)).starts_with(b"tcuda_");
        let entry = native.iter().position(is_entry).unwrap_or(0);
        named.iter().chain(&native[entry..]).copied()
    }

    /// The text that is stored, with a NUL at its end, as a stack of one frame; "" for 0.
    pub fn text(&self, id: u32) -> &CStr {
        let name = self.stacks.get(id).first().map_or(&b""[..], |id| self.name(self.frame(*id)));
        CStr::from_bytes_until_nul(name).unwrap_or(c"")
    }

    /// The frame of an id.
    pub fn frame(&self, id: u32) -> Frame {
        self.frames.get(id).first().copied().unwrap_or(Frame::NONE)
    }

    /// The function name of a frame.
    pub fn name(&self, frame: Frame) -> &[u8] {
        self.texts.get(frame.name)
    }

    /// The file name of a frame.
    pub fn filename(&self, frame: Frame) -> &[u8] {
        self.texts.get(frame.filename)
    }
}

type Walk = extern "C" fn(*mut c_void, *mut c_void) -> c_int;

unsafe extern "C" {
    // Rust's panics use the same unwinder, so that it is linked into every build.
    fn _Unwind_Backtrace(walk: Walk, data: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

struct Walked<'a> {
    addresses: &'a mut [usize],
    len: usize,
}

extern "C" fn step(context: *mut c_void, data: *mut c_void) -> c_int {
    // SAFETY: passed by `addresses`, and valid during that call.
    let walked = unsafe { &mut *data.cast::<Walked<'_>>() };
    // SAFETY: the context that the unwinder passes.
    let address = unsafe { _Unwind_GetIP(context) };
    match walked.addresses.get_mut(walked.len) {
        Some(place) if address != 0 => {
            *place = address;
            walked.len += 1;
            0
        }
        // _URC_NORMAL_STOP: the buffer is full.
        _ => 4,
    }
}

/// Writes the return addresses of this thread's calls, innermost first; returns their number.
pub fn addresses(addresses: &mut [usize]) -> usize {
    let mut walked = Walked { addresses, len: 0 };
    // SAFETY: `step` casts `data` to the type that is passed here.
    unsafe { _Unwind_Backtrace(step, (&raw mut walked).cast()) };
    walked.len
}

/// The function and file of an address, as far as the dynamic loader knows them.
fn symbol(address: usize) -> (&'static [u8], &'static [u8]) {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // The call instruction is before the return address.
    // SAFETY: `info` is writable; any address is allowed.
    let found = unsafe { libc::dladdr((address - 1) as *const c_void, &mut info) };
    if found == 0 {
        return (b"??", b"");
    }
    let text = |text: *const libc::c_char, otherwise: &'static [u8]| {
        if text.is_null() {
            return otherwise;
        }
        // SAFETY: a text of the loader, valid while the library is loaded, and copied now.
        unsafe { CStr::from_ptr(text) }.to_bytes()
    };
    (text(info.dli_sname, b"??"), text(info.dli_fname, b""))
}

/// The host's source of frames.
pub trait Source: Send + Sync {
    /// Calls the host's function and passes the frames to `take`, innermost first.
    fn capture(&self, take: &mut dyn FnMut(&mut dyn Iterator<Item = Named<'_>>));
    /// Calls the host's function for an object that stands for the stack.
    fn context(&self) -> Option<Context> {
        None
    }
    /// Called once the recording has begun; the source now belongs to the library, which drops it
    /// later.
    fn is_taken(&self);
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
    fn the_same_stack_is_stored_once() {
        let mut stacks = Stacks::new();
        let first =
            stacks.intern(None, &mut [named("inner", 3), named("outer", 9)].into_iter(), &[]);
        let other = stacks.intern(None, &mut [named("outer", 9)].into_iter(), &[]);
        let again =
            stacks.intern(None, &mut [named("inner", 3), named("outer", 9)].into_iter(), &[]);
        assert_eq!((first, other, again), (1, 2, 1));
        assert_eq!((stacks.count(), stacks.frame_count()), (2, 2));
        assert_eq!(lines(&stacks, 1), [("inner".to_owned(), 3), ("outer".to_owned(), 9)]);
        assert_eq!(stacks.filename(stacks.frame(1)), b"model.py");
        assert_eq!(stacks.intern(None, &mut [].into_iter(), &[]), 0);
        assert_eq!(stacks.stack(0).chain(stacks.stack(3)).count(), 0);
    }

    #[test]
    fn lists_with_equal_hashes_are_distinguished() {
        let mut interned = Interned::<u8>::new();
        let mut hasher = DefaultHasher::new();
        b"abc"[..].hash(&mut hasher);
        let first = interned.append(b"other").unwrap();
        interned.ids.insert(hasher.finish(), first);
        let second = interned.intern(b"abc").unwrap();
        assert_ne!(first, second);
        assert_eq!(interned.intern(b"abc"), Some(second));
        assert_eq!((interned.get(first), interned.get(second)), (&b"other"[..], &b"abc"[..]));
    }

    #[test]
    fn unreferenced_stacks_are_removed_and_the_others_keep_their_ids() {
        let mut stacks = Stacks::new();
        let outer = named("outer", 9);
        let mut keep =
            |line| stacks.intern(None, &mut [named("inner", line), outer].into_iter(), &[]);
        let ids: Vec<u32> = (1..=100).map(&mut keep).collect();
        let mut wanted = stacks.no_ids().unwrap();
        [0, ids[2], ids[69], 101].into_iter().for_each(|id| wanted.add(id));
        let before = stacks.bytes();
        drop(stacks.keep_only(&wanted, 0));
        assert!(stacks.bytes() < before, "{} of {before}", stacks.bytes());
        assert_eq!((stacks.count(), stacks.stacks.ids.len(), stacks.frames.ids.len()), (70, 2, 3));
        for id in [3, 70] {
            let expected = [("inner".to_owned(), id as i32), ("outer".to_owned(), 9)];
            assert_eq!(lines(&stacks, id), expected);
        }
        assert_eq!(stacks.stack(4).count(), 0);
        // Stored stacks are found; new ones reuse vacant ids.
        let mut keep =
            |line| stacks.intern(None, &mut [named("inner", line), outer].into_iter(), &[]);
        assert_eq!((keep(3), keep(70)), (3, 70));
        let again: Vec<u32> = (101..=168).map(&mut keep).collect();
        assert!(again.iter().all(|id| *id < 70 && *id != 3), "{again:?}");
        assert_eq!(keep(169), 71);
        let none = stacks.no_ids().unwrap();
        drop(stacks.keep_only(&none, 0));
        assert_eq!((stacks.count(), stacks.frame_count(), stacks.bytes()), (0, 0, 0));
    }

    #[test]
    fn the_largest_id_does_not_grow_while_the_last_stack_is_referenced() {
        let mut stacks = Stacks::new();
        let (mut line, mut longest) = (0, 0);
        for search in 0..100 {
            let mut last = 0;
            while !stacks.are_many() {
                line += 1;
                last = stacks.intern(None, &mut [named("inner", line)].into_iter(), &[]);
            }
            let mut wanted = stacks.no_ids().unwrap();
            wanted.add(last);
            drop(stacks.keep_only(&wanted, 0));
            assert_eq!(lines(&stacks, last), [("inner".to_owned(), line)]);
            longest = if search == 0 { 2 * stacks.count() } else { longest };
            assert!(stacks.count() <= longest, "{} after {search} searches", stacks.count());
        }
    }

    #[test]
    fn native_frames_are_found_and_resolved() {
        let mut found = [0; MAX_DEPTH];
        let len = addresses(&mut found);
        assert!(len > 3, "{len}");
        let mut stacks = Stacks::new();
        let id = stacks.intern(None, &mut [named("host", 1)].into_iter(), &found[..len]);
        let mut copy = stacks.copy_for_reading().unwrap();
        copy.resolve().unwrap();
        assert_eq!(copy.stack(id).count(), len + 1);
        let last = copy.frame(copy.stack(id).last().unwrap());
        assert!(!copy.name(last).is_empty());
        assert!(!copy.filename(last).is_empty());
    }
}
