//! What a thread carries: its current device and streams, and the word that says whether it is inside
//! the library.
//!
//! That word makes every call an epoch: whoever takes something away for good (a destroyed handle's
//! object, the whole runtime at shutdown) waits until the threads that were inside have left. Entering
//! costs two plain stores; the waiting side pays with a membarrier.

use crate::error::{Error, Result};
use crate::lock::Lock;
use once_cell::sync::OnceCell;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
use std::sync::{Mutex, PoisonError};

/// The thread block of `thread.c`.
#[repr(C)]
pub struct Block {
    /// Odd while the thread is inside the library.
    sequence: AtomicU64,
    /// Calls inside calls: callbacks may come back.
    depth: AtomicU32,
    /// Current device, where the thread's context says nothing; see `runtime`.
    pub(crate) device: AtomicU32,
    /// Generation of the runtime to which `streams` belongs.
    pub(crate) generation: AtomicU64,
    /// Current streams, one for each device; NULL: none was ever set.
    pub(crate) streams: AtomicPtr<c_void>,
    /// Sentence about the last failure; NULL: none yet.
    pub(crate) message: AtomicPtr<c_void>,
    /// Native code behind the last failure.
    pub(crate) native: AtomicU32,
    /// 1 once the thread is on the list.
    registered: AtomicU32,
    /// `sequence` when shutdown began to wait.
    waited_for: AtomicU64,
    spare: u64,
}

const _: () = assert!(size_of::<Block>() == 64, "as in thread.c");

unsafe extern "C" {
    fn tcuda_thread_block() -> *mut Block;
}

/// This thread's block.
#[inline]
pub fn block() -> &'static Block {
    // SAFETY: gives the address of a thread-local of this layout.
    let block = unsafe { tcuda_thread_block() };
    // SAFETY: it lives as long as the thread, zeroed at first, and all fields are atomics.
    unsafe { &*block }
}

/// Addresses of the blocks of all threads that were ever inside and live. A lock of our own guards
/// it, which a fork can hold from before to after.
struct Threads {
    lock: Lock,
    list: UnsafeCell<Vec<usize>>,
}

// SAFETY: the list is used with the lock held only.
unsafe impl Sync for Threads {}

static THREADS: Threads = Threads { lock: Lock::new(), list: UnsafeCell::new(Vec::new()) };

/// Runs `body` on the list of threads.
fn with_threads<R>(body: impl FnOnce(&mut Vec<usize>) -> R) -> R {
    let _guard = THREADS.lock.guard();
    // SAFETY: the lock is held.
    body(unsafe { &mut *THREADS.list.get() })
}

static KEY: OnceCell<libc::pthread_key_t> = OnceCell::new();
static MODE: AtomicU32 = AtomicU32::new(MODE_UNKNOWN);
const MODE_UNKNOWN: u32 = 0;
/// membarrier works, so that entering needs no fence.
const MODE_MEMBARRIER: u32 = 1;
const MODE_FENCE: u32 = 2;
/// This is the child of a process that had started the driver.
const MODE_FORKED: u32 = 3;

/// Is this such a fork?
pub fn is_forked() -> bool {
    MODE.load(Ordering::Relaxed) == MODE_FORKED
}

/// Is this thread inside the library?
#[cfg(any(test, feature = "host_faults"))]
pub fn is_inside() -> bool {
    block().depth.load(Ordering::Relaxed) > 0
}

/// Says that this thread is inside the library, until it is dropped.
pub struct Inside {
    block: &'static Block,
}

/// Enters the library.
#[inline]
pub fn enter() -> Result<Inside> {
    let block = block();
    if block.registered.load(Ordering::Relaxed) == 0 {
        register(block)?;
    }
    let mode = MODE.load(Ordering::Relaxed);
    if mode == MODE_FORKED {
        return Err(Error::Forked);
    }
    let depth = block.depth.load(Ordering::Relaxed);
    block.depth.store(depth + 1, Ordering::Relaxed);
    if depth == 0 {
        let sequence = block.sequence.load(Ordering::Relaxed);
        block.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        if mode == MODE_MEMBARRIER {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }
    Ok(Inside { block })
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        let depth = self.block.depth.load(Ordering::Relaxed);
        self.block.depth.store(depth - 1, Ordering::Relaxed);
        if depth == 1 {
            let sequence = self.block.sequence.load(Ordering::Relaxed);
            self.block.sequence.store(sequence.wrapping_add(1), Ordering::Release);
        }
    }
}

impl Inside {
    /// Is this the outermost call of the thread?
    pub fn is_outermost(&self) -> bool {
        self.block.depth.load(Ordering::Relaxed) == 1
    }
}

const MEMBARRIER_PRIVATE_EXPEDITED: i32 = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

fn membarrier(command: i32) -> bool {
    // SAFETY: takes integers only.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    result == 0
}

#[cold]
fn register(block: &'static Block) -> Result<()> {
    #[cfg(any(test, feature = "host_faults"))]
    let _ours = crate::host_faults::ours();
    if is_forked() {
        return Err(Error::Forked);
    }
    if MODE.load(Ordering::Relaxed) == MODE_UNKNOWN {
        let works = membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED)
            && membarrier(MEMBARRIER_PRIVATE_EXPEDITED);
        MODE.store(if works { MODE_MEMBARRIER } else { MODE_FENCE }, Ordering::Relaxed);
    }
    let key = *KEY.get_or_try_init(|| {
        let mut key = 0;
        // SAFETY: `key` is writable; the destructor is ours, and the library is never unloaded.
        let failed = unsafe { libc::pthread_key_create(&mut key, Some(leave)) };
        if failed != 0 {
            return Err(Error::OutOfHostMemory("a thread's state"));
        }
        // Once: registered twice, the first would lock what the second locks again.
        // SAFETY: the handlers live in a library that is never unloaded.
        let failed =
            unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
        if failed != 0 {
            // Without them a child would use what it must not: nobody enters, and the next call
            // tries again.
            // SAFETY: just made, and no thread has a value under it.
            unsafe { libc::pthread_key_delete(key) };
            return Err(Error::OutOfHostMemory("the handlers of forks"));
        }
        Ok(key)
    })?;
    let address = std::ptr::from_ref(block) as usize;
    with_threads(|threads| {
        threads.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a thread's state"))?;
        // SAFETY: the key exists; the value is only handed back to `leave`.
        let failed = unsafe { libc::pthread_setspecific(key, address as *const c_void) };
        if failed != 0 {
            return Err(Error::OutOfHostMemory("a thread's state"));
        }
        threads.push(address);
        block.registered.store(1, Ordering::Relaxed);
        Ok(())
    })
}

unsafe extern "C" fn before_fork() {
    THREADS.lock.lock();
}

unsafe extern "C" fn after_fork() {
    THREADS.lock.unlock();
}

/// In the child only the forking thread exists.
unsafe extern "C" fn in_child() {
    let own = std::ptr::from_ref(block()) as usize;
    // SAFETY: the lock is held since before the fork.
    unsafe { &mut *THREADS.list.get() }.retain(|thread| *thread == own);
    THREADS.lock.unlock();
    if crate::runtime::is_lost_by_fork() {
        MODE.store(MODE_FORKED, Ordering::Relaxed);
    }
}

/// Runs when a registered thread ends.
unsafe extern "C" fn leave(address: *mut c_void) {
    let block = address.cast::<Block>();
    // SAFETY: set by `register` to this thread's block, which outlives its destructors.
    let block = unsafe { &*block };
    with_threads(|threads| {
        if let Some(index) = threads.iter().position(|thread| *thread == address as usize) {
            threads.swap_remove(index);
        }
    });
    block.registered.store(0, Ordering::Relaxed);
    crate::stream::forget_current(block);
    let message = block.message.swap(std::ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: from malloc, or NULL, and no longer reachable.
    unsafe { libc::free(message) };
}

/// Makes what this thread did visible to all before it looks at where they are.
fn barrier() -> bool {
    let done =
        MODE.load(Ordering::Relaxed) != MODE_MEMBARRIER || membarrier(MEMBARRIER_PRIVATE_EXPEDITED);
    fence(Ordering::SeqCst);
    done
}

/// Waits until every other thread that is inside the library now has left it.
pub fn wait_for_others() {
    if !barrier() {
        // Forbidden since it was tried: threads must use fences from now on, and those that are on
        // their way in get time to be seen.
        MODE.store(MODE_FENCE, Ordering::SeqCst);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let own = std::ptr::from_ref(block()) as usize;
    let sequence = |address: usize| {
        // SAFETY: threads leave the list, which is locked, before their block goes.
        let block = unsafe { &*(address as *const Block) };
        (block, block.sequence.load(Ordering::Acquire))
    };
    with_threads(|threads| {
        for address in threads.iter().copied() {
            let (block, sequence) = sequence(address);
            block.waited_for.store(sequence, Ordering::Relaxed);
        }
    });
    let somebody_stays = || {
        with_threads(|threads| {
            threads.iter().copied().filter(|address| *address != own).any(|address| {
                let (block, sequence) = sequence(address);
                sequence % 2 == 1 && block.waited_for.load(Ordering::Relaxed) == sequence
            })
        })
    };
    while somebody_stays() {
        std::thread::yield_now();
    }
}

/// Adds the other threads that are inside now, with their sequence numbers; false: no host memory.
fn inside_now(own: usize, seen: &mut Vec<(usize, u64)>) -> bool {
    with_threads(|threads| {
        for address in threads.iter().copied().filter(|address| *address != own) {
            // SAFETY: threads leave the list, which is locked, before their block goes.
            let block = unsafe { &*(address as *const Block) };
            let sequence = block.sequence.load(Ordering::Acquire);
            if sequence % 2 == 1 {
                if seen.try_reserve(1).is_err() {
                    return false;
                }
                seen.push((address, sequence));
            }
        }
        true
    })
}

fn still_inside(address: usize, sequence: u64) -> bool {
    with_threads(|threads| {
        if !threads.contains(&address) {
            return false;
        }
        // SAFETY: threads leave the list, which is locked, before their block goes.
        let block = unsafe { &*(address as *const Block) };
        block.sequence.load(Ordering::Acquire) == sequence
    })
}

/// A box whose failure to find memory is an error, not an abort.
pub fn try_box<T>(value: T, what: &'static str) -> Result<Box<T>> {
    let mut room: Vec<T> = Vec::new();
    room.try_reserve_exact(1).map_err(|_| Error::OutOfHostMemory(what))?;
    room.push(value);
    let slice = Box::into_raw(room.into_boxed_slice());
    // SAFETY: a slice of one element is that element, with the same layout.
    Ok(unsafe { Box::from_raw(slice.cast::<T>()) })
}

/// Objects taken out of use, with the threads that may still look at them.
struct Retired {
    objects: Vec<Box<dyn Send>>,
    waiting_for: Vec<(usize, u64)>,
}

static RETIRED: Mutex<Retired> =
    Mutex::new(Retired { objects: Vec::new(), waiting_for: Vec::new() });
static RETIRING: Mutex<Vec<Box<dyn Send>>> = Mutex::new(Vec::new());
const BATCH: usize = 64;
/// Where retired objects wait when the list finds no host memory.
static SPARE: Mutex<[Option<Box<dyn Send>>; BATCH]> = Mutex::new([const { None }; BATCH]);

/// Drops an object once no thread that is inside now can still see it. Never blocks on them.
pub fn retire(object: Box<dyn Send>) {
    let mut young = RETIRING.lock().unwrap_or_else(PoisonError::into_inner);
    if young.try_reserve(1).is_err() {
        drop(young);
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        match spare.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(object),
            // The only safe place is nowhere.
            None => std::mem::forget(object),
        }
        return;
    }
    young.push(object);
    let full = young.len() >= BATCH;
    drop(young);
    if full {
        collect();
    }
}

/// Moves retired objects one step on, dropping those that nobody can see.
pub fn collect() {
    // A callback may destroy what the call around it still uses: then this thread counts too.
    let nested = block().depth.load(Ordering::Relaxed) > 1;
    let own = if nested { 0 } else { std::ptr::from_ref(block()) as usize };
    let mut retired = RETIRED.lock().unwrap_or_else(PoisonError::into_inner);
    retired.waiting_for.retain(|(address, sequence)| still_inside(*address, *sequence));
    if !retired.waiting_for.is_empty() {
        return;
    }
    let mut waiting_for = Vec::new();
    let mut young = RETIRING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut objects = std::mem::take(&mut *young);
    drop(young);
    let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
    for place in spare.iter_mut().filter(|place| place.is_some()) {
        if objects.try_reserve(1).is_ok() {
            objects.extend(place.take());
        }
    }
    drop(spare);
    let old = std::mem::replace(&mut retired.objects, objects);
    if !barrier() || !inside_now(own, &mut waiting_for) {
        // Nobody can tell who still sees them: they stay for ever.
        std::mem::forget(std::mem::take(&mut retired.objects));
    }
    let nobody = waiting_for.is_empty();
    retired.waiting_for = waiting_for;
    let young = if nobody { std::mem::take(&mut retired.objects) } else { Vec::new() };
    drop(retired);
    // Outside the lock: what is dropped may retire more.
    drop(old);
    drop(young);
}

/// Drops all retired objects; the caller has waited for everyone who could see them.
pub fn drain() {
    loop {
        let old =
            std::mem::take(&mut RETIRED.lock().unwrap_or_else(PoisonError::into_inner).objects);
        let young = std::mem::take(&mut *RETIRING.lock().unwrap_or_else(PoisonError::into_inner));
        let spare =
            SPARE.lock().unwrap_or_else(PoisonError::into_inner).each_mut().map(Option::take);
        if old.is_empty() && young.is_empty() && spare.iter().all(Option::is_none) {
            return;
        }
    }
}
