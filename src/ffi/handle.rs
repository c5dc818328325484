//! Checked handles: a tag, a generation and an index, in the form of a pointer that no machine can
//! dereference. A lookup takes no lock and makes no atomic read-modify-write: removed objects are
//! kept until the calls that could see them are over (`thread::retire`).

use super::boundary::Call;
use super::slot::Slot;
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::retired::Reclaimable;
use crate::base::sync::{self, AtomicPtr, AtomicUsize, FIRST_CHUNK, Ordering};
use crate::base::thread::{self, Inside};
use crate::base::waiting;

/// Bits of the index, then of the generation; the tag is the top byte, which makes the address
/// non-canonical.
const INDEX_BITS: u32 = 24;
const TAG_SHIFT: u32 = 56;
const TAG: usize = 0x40;
const CHUNKS: usize = 16;

const _: () = assert!(usize::BITS == 64, "handles need 64 bits");

/// The handles of one kind.
pub struct Table<T: Send + Sync + 'static> {
    /// The top byte of its handles.
    tag: usize,
    name: &'static str,
    chunks: [AtomicPtr<Slot<T>>; CHUNKS],
    /// Vacant indices, and the number of slots that exist.
    vacant: Mutex<(Vec<u32>, usize)>,
    live: AtomicUsize,
}

/// Chunk of an index, and position in the chunk; each chunk is twice as long as the one before.
fn place(index: usize) -> (usize, usize) {
    let chunk = (index / FIRST_CHUNK + 1).ilog2() as usize;
    (chunk, index - FIRST_CHUNK * ((1 << chunk) - 1))
}

const NO_MEMORY: Error = Error::OutOfHostMemory("a handle");

/// Takes a vacant index, or adds one. One copy for all tables, which makes the library smaller.
#[inline(never)]
fn take_index(
    vacant: &Mutex<(Vec<u32>, usize)>,
    add_chunk: &dyn Fn(usize) -> Result<()>,
) -> Result<usize> {
    let mut vacant = vacant.lock();
    if let Some(index) = vacant.0.pop() {
        return Ok(index as usize);
    }
    let index = vacant.1;
    let (chunk, offset) = place(index);
    if offset == 0 {
        // Reserve space for every index, so that a removal cannot fail.
        let more = index + (FIRST_CHUNK << chunk) - vacant.0.len();
        vacant.0.try_reserve(more).map_err(|_| NO_MEMORY)?;
        add_chunk(chunk)?;
    }
    vacant.1 += 1;
    Ok(index)
}

impl<T: Send + Sync + 'static> Table<T> {
    sync::constant! {
        /// A table without handles; `kind`, below 0x10, distinguishes its handles from those of
        /// other tables.
        pub fn new(kind: usize, name: &'static str) -> Table<T> {
            Table {
                tag: TAG | kind,
                name,
                chunks: sync::repeat!(AtomicPtr::new(std::ptr::null_mut())),
                vacant: Mutex::new(Rank::LEAF, (Vec::new(), 0)),
                live: AtomicUsize::new(0),
            }
        }
    }

    /// Inserts an object and returns its handle.
    pub fn insert(&self, object: T) -> Result<usize> {
        let object = Reclaimable::into_value(thread::reclaimable(object, "a handle")?);
        match self.vacant_slot() {
            Ok((index, slot)) => {
                let generation = slot.fill(object) as usize;
                self.live.fetch_add(1, Ordering::Relaxed);
                Ok(self.tag << TAG_SHIFT | generation << INDEX_BITS | index)
            }
            Err(error) => {
                // SAFETY: from `into_value`, and no other reference exists.
                drop(unsafe { Reclaimable::from_value(object) });
                Err(error)
            }
        }
    }

    fn vacant_slot(&self) -> Result<(usize, &Slot<T>)> {
        let index = take_index(&self.vacant, &|chunk| self.add_chunk(chunk))?;
        self.slot(index).map(|slot| (index, slot)).ok_or(NO_MEMORY)
    }

    /// Allocates the slots of a chunk, unless it has them.
    #[cold]
    fn add_chunk(&self, chunk: usize) -> Result<()> {
        let pointer = self.chunks.get(chunk).ok_or(NO_MEMORY)?;
        if pointer.load(Ordering::Relaxed).is_null() {
            let count = FIRST_CHUNK << chunk;
            let mut slots: Vec<Slot<T>> = Vec::new();
            slots.try_reserve_exact(count).map_err(|_| NO_MEMORY)?;
            slots.resize_with(count, Slot::new);
            let slots = Box::into_raw(slots.into_boxed_slice());
            pointer.store(slots.cast(), Ordering::Release);
        }
        Ok(())
    }

    #[inline]
    fn slot(&self, index: usize) -> Option<&Slot<T>> {
        let (chunk, place) = place(index);
        self.slot_in(chunk, place)
    }

    #[inline]
    fn slot_in(&self, chunk: usize, place: usize) -> Option<&Slot<T>> {
        let slots = self.chunks.get(chunk)?.load(Ordering::Acquire);
        if slots.is_null() {
            return None;
        }
        // SAFETY: a chunk has this many slots, and is never freed.
        let slot = unsafe { slots.add(place) };
        // SAFETY: as above.
        Some(unsafe { &*slot })
    }

    /// The object of a handle.
    #[inline]
    pub fn get<'a>(&self, handle: usize, name: &'static str, _call: &'a Call) -> Result<&'a T> {
        match self.find(handle) {
            // SAFETY: kept until this call is over.
            Some(object) => Ok(unsafe { &*object }),
            None => Err(self.refuse(handle, name)),
        }
    }

    /// [`Table::get`] without an error: `None` for an invalid handle.
    #[inline(always)]
    pub fn known<'a>(&self, handle: usize, _inside: &'a Inside) -> Option<&'a T> {
        // SAFETY: kept until this call is over.
        self.find(handle).map(|object| unsafe { &*object })
    }

    #[inline]
    fn find(&self, handle: usize) -> Option<*const T> {
        waiting::assert_awake();
        let index = handle & ((1 << INDEX_BITS) - 1);
        if index >= FIRST_CHUNK {
            return self.find_far(handle);
        }
        // Most tables use only the first chunk.
        self.is_ours(handle).then(|| self.slot_in(0, index))??.find((handle >> INDEX_BITS) as u32)
    }

    #[cold]
    fn find_far(&self, handle: usize) -> Option<*const T> {
        self.slot_of(handle)?.find((handle >> INDEX_BITS) as u32)
    }

    #[inline]
    fn is_ours(&self, handle: usize) -> bool {
        handle >> TAG_SHIFT == self.tag
    }

    #[inline]
    fn slot_of(&self, handle: usize) -> Option<&Slot<T>> {
        if !self.is_ours(handle) {
            return None;
        }
        self.slot(handle & ((1 << INDEX_BITS) - 1))
    }

    #[cold]
    fn refuse(&self, handle: usize, name: &'static str) -> Error {
        let top = handle >> TAG_SHIFT;
        let why = if handle == 0 {
            "it is NULL"
        } else if top == self.tag {
            "it was destroyed, or tcuda was shut down since"
        } else if top & 0xf0 == TAG {
            "it is a handle of another kind"
        } else {
            "tcuda never gave it out"
        };
        Error::InvalidHandle { name, value: handle, kind: self.name, why }
    }

    /// Removes a handle; its object is freed when no thread can see it any more.
    pub fn remove(&self, handle: usize, name: &'static str) -> Result<()> {
        let generation = (handle >> INDEX_BITS) as u32;
        let found = self.slot_of(handle).and_then(|slot| slot.empty(generation));
        let Some(object) = found else { return Err(self.refuse(handle, name)) };
        self.live.fetch_sub(1, Ordering::Relaxed);
        // A slot whose generations are used up is never used again.
        if generation != u32::MAX {
            let index = handle & ((1 << INDEX_BITS) - 1);
            self.vacant.lock().0.push(index as u32);
        }
        // SAFETY: from `into_value` in `insert`, and now unreachable.
        thread::retire(unsafe { Reclaimable::from_value(object) });
        Ok(())
    }

    /// Removes all handles and returns the number of objects for which `counts` is true.
    pub fn remove_all(&self, counts: impl Fn(&T) -> bool) -> usize {
        let slots = self.vacant.lock().1;
        let mut counted = 0;
        for index in 0..slots {
            let Some(slot) = self.slot(index) else { break };
            let generation = slot.generation() as usize;
            let handle = self.tag << TAG_SHIFT | generation << INDEX_BITS | index;
            if let Some(object) = self.find(handle) {
                // SAFETY: alive: this thread is inside, and it was just found.
                let counts = counts(unsafe { &*object });
                // Fails only if another thread has destroyed the handle first.
                let removed = self.remove(handle, "handle").is_ok();
                counted += usize::from(counts && removed);
            }
        }
        counted
    }

    /// "stream", "event", ...
    pub fn name(&self) -> &'static str {
        self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::boundary::boundary;

    #[test]
    fn indices_fill_chunks_without_gaps() {
        let mut last = (0, 0);
        assert_eq!(place(0), (0, 0));
        for index in 1..100_000 {
            let here = place(index);
            assert!(here == (last.0, last.1 + 1) || here == (last.0 + 1, 0), "{index}: {here:?}");
            assert!(here.1 < FIRST_CHUNK << here.0);
            last = here;
        }
    }

    /// Otherwise a handle of one table could name an object of the other.
    #[test]
    fn tables_have_kinds_of_their_own() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ffi");
        let mut kinds = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let source = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            let tables = source.lines().filter(|line| line.starts_with("pub(super) static "));
            let kind = |line: &str| {
                line.split_once("Table::new(")?.1.split_once(',')?.0.parse::<usize>().ok()
            };
            kinds.extend(tables.filter_map(kind));
        }
        kinds.sort_unstable();
        assert!(kinds.len() >= 16 && kinds.iter().all(|kind| *kind < 0x10), "{kinds:?}");
        assert!(kinds.windows(2).all(|pair| pair[0] < pair[1]), "twice: {kinds:?}");
    }

    #[test]
    fn handles_die_once_and_stay_dead() {
        static TABLE: Table<u32> = Table::new(1, "number");
        let status = boundary(|call| {
            let first = TABLE.insert(7)?;
            assert_eq!(*TABLE.get(first, "n", call)?, 7);
            TABLE.remove(first, "n")?;
            assert!(TABLE.get(first, "n", call).is_err());
            assert!(TABLE.remove(first, "n").is_err());
            let second = TABLE.insert(8)?;
            assert_ne!(first, second);
            assert!(TABLE.get(first, "n", call).is_err());
            for bits in [0, 1, usize::MAX, second ^ 1 << 30, second ^ 3 << 56, second + 1] {
                assert!(TABLE.get(bits, "n", call).is_err(), "{bits:#x}");
            }
            assert_eq!(TABLE.remove_all(|_| true), 1);
            Ok(())
        });
        assert_eq!(status as i32, 0);
    }
}
