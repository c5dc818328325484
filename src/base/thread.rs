//! What a thread carries: its current device and streams, and whether it is inside the library (`epoch`).

use crate::base::epoch::{Fence, Members, Presence, Visit};
use crate::base::error::{Error, Result};
use crate::base::retired::{List, Reclaimable, Retired};
use crate::base::{sync, waiting};
use crate::observe::flags::{self, Watcher};
use crate::observe::turn;
use crate::runtime;
use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{
    AtomicI32, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
use std::time::{Duration, Instant};

pub(crate) use crate::base::waiting::observe;
pub use crate::base::waiting::{InCallback, is_in_callback, is_observing};

/// The thread block of `thread.c`.
#[repr(C)]
pub struct Block {
    /// Is it inside? First, so that its address is the block's.
    pub(crate) presence: Presence,
    /// Current device, where the thread's context says nothing; see `runtime`.
    pub(crate) device: AtomicU32,
    /// 0 until the thread is on the list; see `share`.
    pub(crate) registered: AtomicU32,
    /// Generation of the runtime to which `streams` belongs.
    pub(crate) generation: AtomicU64,
    /// Current streams, one for each device; NULL: none was ever set.
    pub(crate) streams: AtomicPtr<c_void>,
    /// Handle of its current stream, where there is one device alone, as long as `known_in` is the
    /// present life of the library; 0 there: it is not known.
    pub(crate) known_stream: AtomicUsize,
    pub(crate) known_in: AtomicU64,
    /// Sentence about the last failure; NULL: none yet; NO_ROOM, FORKED: stand for one.
    pub(crate) message: AtomicPtr<c_void>,
    /// Private pools that it uses; NULL: none. (`memory::route`)
    pub(crate) routes: AtomicPtr<c_void>,
    /// Native code behind the last failure.
    pub(crate) native: AtomicU32,
    /// Host functions in streams that this thread is in; the top bit: it is in an observer.
    pub(crate) callbacks: AtomicU16,
    /// How often it has left for good: destructors of the host's may come back.
    departures: AtomicU16,
    /// Ranges of `nvtx` that it has open.
    pub(crate) ranges: AtomicU32,
    /// Which thread it is and how often it has waited for a device (`waits.rs`).
    pub(crate) waits: AtomicU64,
    /// Says of this thread whether it lives; NULL: nobody wanted to know. (`thread_lifetime.rs`)
    pub(crate) lifetime: AtomicPtr<c_void>,
}

const _: () = assert!(size_of::<Block>() == 112, "as in thread.c");
const _: () = assert!(std::mem::offset_of!(Block, presence) == 0, "a thread has one address");

/// Stands for a sentence for which there was no memory.
pub const NO_ROOM: *mut c_void = std::ptr::without_provenance_mut(1);
/// Stands for what a thread of a forked child is told: its destructor never runs, so it owns nothing.
pub const FORKED: *mut c_void = std::ptr::without_provenance_mut(2);

/// The address of the block, as compiled C finds it: its distance from the thread pointer is fixed when
/// the library is loaded, and linkers know these two instructions.
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
#[inline(always)]
fn block_address() -> *const Block {
    let block: *const Block;
    // SAFETY: reads the thread pointer and a distance, neither of which changes while a thread lives.
    unsafe {
        std::arch::asm!(
            "mov {block}, qword ptr fs:[0]",
            "add {block}, qword ptr [rip + tcuda_thread@GOTTPOFF]",
            block = out(reg) block,
            options(pure, nomem, nostack),
        );
    }
    block
}

#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64")))]
#[inline(always)]
fn block_address() -> *const Block {
    unsafe extern "C" {
        fn tcuda_thread_block() -> *const Block;
    }
    // SAFETY: takes nothing, and gives the address of a thread-local.
    unsafe { tcuda_thread_block() }
}

/// This thread's block.
#[inline(always)]
pub fn block() -> &'static Block {
    // SAFETY: it is of this layout and lives as long as the thread, zeroed at first, and all fields are
    // atomics.
    unsafe { &*block_address() }
}

/// This thread, as a number: no other that lives has it.
#[inline(always)]
pub fn address() -> usize {
    block_address() as usize
}

static MEMBERS: Members = Members::new();
static RETIRED: Retired = Retired::new();

static KEY: AtomicU32 = AtomicU32::new(0);
/// The process in which a thread makes the key and the handlers, or one of these.
static PREPARED_BY: AtomicI32 = AtomicI32::new(UNPREPARED);
const UNPREPARED: i32 = 0;
const PREPARED: i32 = -1;
static MODE: AtomicU32 = AtomicU32::new(MODE_UNKNOWN);
const MODE_UNKNOWN: u32 = 0;
/// membarrier works, so that entering needs no fence.
const MODE_MEMBARRIER: u32 = 1;
const MODE_FENCE: u32 = 2;
/// This is the child of a process that had started the driver.
const MODE_FORKED: u32 = 3;

/// Changes the mode; from another one than that of light fences nobody comes back to it.
fn choose(mode: u32, order: Ordering) {
    let before = MODE.swap(mode, order);
    let needs_more = |mode: u32| mode != MODE_UNKNOWN && mode != MODE_MEMBARRIER;
    flags::change(Watcher::Fences, needs_more(before), needs_more(mode));
}

/// Is this such a fork?
pub fn is_forked() -> bool {
    MODE.load(Ordering::Relaxed) == MODE_FORKED
}

/// Is this thread inside the library?
pub fn is_inside() -> bool {
    block().presence.depth() > 0
}

/// A number that no other thread of this process has, or had.
pub fn number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    // Rarely asked for, so that it need not lie in the block, where room is short.
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        }
        number.get()
    })
}

/// Says that this thread is inside the library, until it is dropped.
pub struct Inside {
    pub(crate) block: &'static Block,
}

/// Enters the library.
#[inline(always)]
pub fn enter() -> Result<Inside> {
    match enter_quickly() {
        Some(inside) => Ok(inside),
        None => enter_slowly(block()),
    }
}

/// The same for a thread that was inside before, if nobody keeps turns and a fence costs nothing.
#[inline(always)]
fn enter_quickly() -> Option<Inside> {
    let block = block();
    if block.registered.load(Ordering::Relaxed) == 0 || flags::is_watched_by(flags::ENTRIES) {
        return None;
    }
    block.presence.enter(Fence::Light);
    Some(Inside { block })
}

#[cold]
fn enter_slowly(block: &'static Block) -> Result<Inside> {
    if block.registered.load(Ordering::Relaxed) == 0 {
        register(block)?;
    }
    if !is_forked() {
        let _uncancelled = waiting::uncancelled();
        // Outside still: nobody waits for a thread that waits for its turn.
        turn::call();
    }
    if is_forked() {
        return Err(Error::Forked);
    }
    enter_beside_forks(block);
    Ok(Inside { block })
}

/// Enters when no fork waits for all threads to be outside.
fn enter_beside_forks(block: &'static Block) {
    loop {
        block.presence.enter(present_fence());
        // Read inside: a fork that is not seen here sees that this thread is inside. A call inside a call
        // goes on, since the fork waits for the outer one.
        if FORKS.load(Ordering::Relaxed) == 0 || block.presence.depth() > 1 {
            return;
        }
        block.presence.leave();
        sync::nap();
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        leave_call(self.block);
    }
}

#[inline(always)]
fn leave_call(block: &Block) {
    if block.presence.leave() {
        collect();
        block.presence.leave_last();
    }
}

impl Inside {
    /// Is this the outermost call of the thread?
    pub fn is_outermost(&self) -> bool {
        self.block.presence.depth() == 1
    }
}

/// Comes back into the library when dropped, also when a panic passes.
struct Return(&'static Block);

impl Drop for Return {
    fn drop(&mut self) {
        turn::call();
        enter_beside_forks(self.0);
    }
}

/// How a thread that is a member announces that it enters.
pub(crate) fn present_fence() -> Fence {
    if MODE.load(Ordering::Relaxed) == MODE_MEMBARRIER { Fence::Light } else { Fence::Full }
}

/// Runs `body`, which may take long, outside the library: nobody who waits for this thread to leave
/// waits for it. Afterwards the runtime may be another one, or none. A call inside a call stays.
///
/// # Safety
/// Nobody of this call uses, during `body` or later, a reference that was good because the thread was
/// inside.
pub unsafe fn outside<R>(inside: &Inside, body: impl FnOnce() -> R) -> R {
    if !inside.is_outermost() {
        return body();
    }
    leave_call(inside.block);
    let _return = Return(inside.block);
    body()
}

/// POSIX promises four rounds of destructors: whoever comes back after the third departure might not
/// leave again, and its block would stay on the list when its memory is gone.
const DEPARTURES: u16 = 3;

/// What such a thread is told.
pub const ENDING: &CStr = c"this thread is ending: it has left tcuda for good";

/// Will this thread's destructor not run, unless a later call enters?
pub fn is_unknown() -> bool {
    block().registered.load(Ordering::Relaxed) == 0
}

/// Has this thread, which is ending, left for the last time?
pub fn has_left() -> bool {
    block().departures.load(Ordering::Relaxed) >= DEPARTURES
}

#[cold]
fn register(block: &'static Block) -> Result<()> {
    #[cfg(any(test, feature = "host_faults"))]
    let _ours = crate::base::host_faults::ours();
    if is_forked() {
        return Err(Error::Forked);
    }
    if has_left() {
        return Err(Error::InvalidState(ENDING.to_str().unwrap_or("")));
    }
    if MODE.load(Ordering::Relaxed) == MODE_UNKNOWN {
        let works = sync::register_heavy_fence();
        choose(if works { MODE_MEMBARRIER } else { MODE_FENCE }, Ordering::Relaxed);
    }
    prepare()?;
    let key = KEY.load(Ordering::Relaxed);
    let address = std::ptr::from_ref(block) as usize;
    MEMBERS.join(&block.presence, || {
        // SAFETY: the key exists; the value is only handed back to `leave`.
        let failed = unsafe { libc::pthread_setspecific(key, address as *const c_void) };
        if failed == 0 { Ok(()) } else { Err(Error::OutOfHostMemory("a thread's state")) }
    })?;
    block.registered.store(1, Ordering::Relaxed);
    Ok(())
}

/// Makes the key of threads' destructors and registers the handlers of forks, once. No lock guards this: a
/// fork that comes before the handlers are there would leave it held in the child for ever. A child of a
/// process that was at it does it anew.
fn prepare() -> Result<()> {
    // SAFETY: it has no conditions.
    let own = unsafe { libc::getpid() };
    loop {
        match PREPARED_BY.load(Ordering::Acquire) {
            PREPARED => return Ok(()),
            pid if pid == own => sync::nap(),
            pid => {
                let exchanged =
                    PREPARED_BY.compare_exchange(pid, own, Ordering::AcqRel, Ordering::Relaxed);
                if exchanged.is_ok() {
                    break;
                }
            }
        }
    }
    let made = make_key_and_handlers();
    let state = if made.is_ok() { PREPARED } else { UNPREPARED };
    PREPARED_BY.store(state, Ordering::Release);
    made
}

fn make_key_and_handlers() -> Result<()> {
    let mut key = 0;
    // SAFETY: `key` is writable; the destructor is ours, and the library is never unloaded.
    let failed = unsafe { libc::pthread_key_create(&mut key, Some(leave)) };
    if failed != 0 {
        return Err(Error::OutOfHostMemory("a thread's state"));
    }
    KEY.store(key, Ordering::Relaxed);
    // Last, and once: registered twice, the first would lock what the second locks again.
    // SAFETY: the handlers live in a library that is never unloaded.
    let failed =
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
    if failed != 0 {
        // Without them a child would use what it must not: nothing enters, and the next call tries again.
        // SAFETY: just made, and no thread has a value under it.
        unsafe { libc::pthread_key_delete(key) };
        return Err(Error::OutOfHostMemory("the handlers of forks"));
    }
    Ok(())
}

/// Forks for which threads wait before they enter. A child has only the thread that forked, so that a lock
/// that another one holds is never given back there. A child that may use the library is therefore made
/// when no other thread is inside: no lock is held then, and all that they guard is whole.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How long a fork waits for calls to end. A child made beside one that takes longer cannot use the library.
const FORK_PATIENCE: Duration = Duration::from_secs(1);

unsafe extern "C" fn before_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    // The child of a process that started the driver cannot use the library in any case.
    barrier();
    let (begin, own) = (Instant::now(), &block().presence);
    while !runtime::is_started()
        && MEMBERS.are_others_inside(own)
        && begin.elapsed() < FORK_PATIENCE
    {
        sync::nap();
    }
    MEMBERS.hold();
}

unsafe extern "C" fn after_fork() {
    MEMBERS.release();
    FORKS.fetch_sub(1, Ordering::SeqCst);
}

/// In the child only the forking thread exists.
unsafe extern "C" fn in_child() {
    // The handlers are there, though the thread that registered them may not have said so yet.
    PREPARED_BY.store(PREPARED, Ordering::Release);
    FORKS.store(0, Ordering::SeqCst);
    crate::ipc::close_in_child();
    crate::sanitizer::in_child();
    let were_inside = MEMBERS.keep_only(&block().presence);
    runtime::forget_in_child();
    if were_inside || runtime::is_lost_by_fork() {
        choose(MODE_FORKED, Ordering::Relaxed);
    }
}

/// Runs when a registered thread ends.
unsafe extern "C" fn leave(address: *mut c_void) {
    let block = address.cast::<Block>();
    // SAFETY: set by `register` to this thread's block, which outlives its destructors.
    let block = unsafe { &*block };
    if !is_forked() {
        // Inside, so that a fork waits for the locks that this takes.
        enter_beside_forks(block);
        crate::memory::pools::route::forget(block);
        crate::interop::blas::leave(address as usize);
        crate::memory::stats::figures::leave();
        crate::memory::trace::history::end_thread();
        crate::sanitizer::leave();
        leave_call(block);
    }
    MEMBERS.part(&block.presence);
    block.registered.store(0, Ordering::Relaxed);
    block.departures.fetch_add(1, Ordering::Relaxed);
    if !is_forked() {
        // Others look at them while it is on the list (`current.rs`).
        crate::gpu::current::forget(block);
        crate::base::thread_lifetime::end(block);
    }
    let message = block.message.swap(std::ptr::null_mut(), Ordering::Relaxed);
    if message != NO_ROOM && message != FORKED {
        // SAFETY: from malloc, or NULL, and no longer reachable.
        unsafe { libc::free(message) };
    }
}

/// A number that this thread has in a life of the library: from 0 on, in the order in which threads ask,
/// so that neighbours share as little as they can.
#[inline]
pub fn share(generation: u64, next: &AtomicU32) -> u32 {
    let word = block().registered.load(Ordering::Relaxed);
    // Bit 0: on the list. Bits 1 to 8: the number. The rest: the life, from 1 on.
    let life = ((generation as u32) & 0x7f_ffff).max(1);
    if word >> 9 == life { word >> 1 & 0xff } else { choose_share(life, next) }
}

#[cold]
fn choose_share(life: u32, next: &AtomicU32) -> u32 {
    let number = next.fetch_add(1, Ordering::Relaxed) & 0xff;
    block().registered.store(1 | number << 1 | life << 9, Ordering::Relaxed);
    number
}

/// Makes what this thread did visible to all before it looks at where they are.
fn barrier() {
    if MODE.load(Ordering::Relaxed) == MODE_MEMBARRIER && !sync::heavy_fence() {
        do_without_heavy_fences();
    }
    fence(Ordering::SeqCst);
}

/// Runs `body` on each thread that was ever inside and lives; what it did before is seen.
pub(crate) fn each(mut body: impl FnMut(&Block)) {
    barrier();
    // SAFETY: threads leave the list, which is locked, before their block goes.
    MEMBERS.each(|address| body(unsafe { &*(address as *const Block) }));
}

/// Waits until every other thread that is inside the library now has left it.
pub fn wait_for_others() {
    barrier();
    let _waiting = waiting::begin();
    MEMBERS.wait_for_others(&block().presence);
}

/// Forbidden since they were tried: threads must use full fences from now on, and what those did that
/// were on their way with a light one gets time to be seen.
#[cold]
fn do_without_heavy_fences() {
    choose(MODE_FENCE, Ordering::SeqCst);
    std::thread::sleep(std::time::Duration::from_millis(50));
}

/// Are there heavy fences, so that a light one is enough for others?
pub fn has_heavy_fences() -> bool {
    MODE.load(Ordering::Relaxed) == MODE_MEMBARRIER
}

/// May a lock be biased to this thread? Only to one that is inside, so that a [`Visit`] tells where it
/// is.
pub fn may_own() -> bool {
    has_heavy_fences() && is_inside()
}

/// Makes what this thread did visible to all who use light fences, before it looks at what they did.
pub fn reach_all() {
    // What was biased while there were heavy fences stays so, until the bias is taken away.
    if !has_heavy_fences() || !sync::heavy_fence() {
        do_without_heavy_fences();
    }
    fence(Ordering::SeqCst);
}

/// The call that the thread of an address is in now, if it is in one.
pub fn visit_of(thread: usize) -> Option<Visit> {
    MEMBERS.visit_of(thread)
}

/// Has the thread left it?
pub fn is_over(visit: &Visit) -> bool {
    !MEMBERS.is_on(visit)
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

const BATCH: usize = 64;

/// The present era of what is retired.
pub(crate) fn era() -> u64 {
    RETIRED.era()
}

/// A box for a value that will be retired, made before anybody else can see it.
pub fn reclaimable<T>(value: T, what: &'static str) -> Result<Box<Reclaimable<T>>> {
    try_box(Reclaimable::new(value, RETIRED.era()), what)
}

/// Drops an object once no thread that is inside now can still see it. Never blocks on them.
pub fn retire<T: Send + 'static>(object: Box<Reclaimable<T>>) {
    if RETIRED.add(object) >= BATCH {
        collect_of(4 * BATCH);
    }
}

/// The same for a list; they are dropped by a later collection.
pub fn retire_all(mut objects: List) {
    while let Some(object) = objects.pop() {
        RETIRED.add(object);
    }
}

/// Drops retired objects that no call can see.
pub fn collect() {
    collect_of(usize::MAX);
}

fn collect_of(most: usize) {
    // A callback may destroy what the call around it still uses: then this thread counts too.
    let presence = &block().presence;
    let own = (presence.depth() <= 1).then_some(presence);
    if own.is_none() {
        presence.request_collection();
    }
    RETIRED.collect(&MEMBERS, own, most, barrier);
}

/// A value that lives for ever, in tests: on a list, so that leak checkers know that it is meant.
#[cfg(test)]
pub(crate) fn for_ever<T: Send + 'static>(value: T) -> &'static T {
    static KEPT: std::sync::Mutex<Vec<usize>> = std::sync::Mutex::new(Vec::new());
    let value: &'static T = Box::leak(Box::new(value));
    KEPT.lock().unwrap().push(std::ptr::from_ref(value) as usize);
    value
}
