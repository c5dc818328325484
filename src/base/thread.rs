//! The state of each thread: its current device and streams, and whether it is inside the library
//! (`epoch`).

use crate::base::epoch::{Fence, Participant, Participants, Visit};
use crate::base::error::{Error, Result};
use crate::base::retired::{List, Reclaimable, Retired};
use crate::base::{descriptor, sync, waiting};
use crate::observe::flags::{self, Watcher};
use crate::observe::table::Table;
use crate::observe::turn;
use std::alloc::Layout;
use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{
    AtomicI32, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
use std::time::{Duration, Instant};

pub(crate) use crate::base::waiting::observe;
pub use crate::base::waiting::{InCallback, is_in_callback, is_observing};

/// The thread block of `thread.c`.
#[repr(C)]
pub struct Block {
    /// Whether the thread is inside. The first field, so that its address is the block's.
    pub(crate) participant: Participant,
    /// The current device, where the thread's CUDA context does not determine it (`gpu/gpus.rs`).
    pub(crate) device: AtomicU32,
    /// 0 until the thread is in the list of participants, and in [`waiting::NoCalls`].
    pub(crate) registered: AtomicU32,
    /// Generation of the library to which `streams` belongs.
    pub(crate) generation: AtomicU64,
    /// Current streams, one for each device; NULL: none was set yet.
    pub(crate) streams: AtomicPtr<c_void>,
    /// Handle of the current stream, on a machine with one device. Valid while `known_in` is the
    /// present generation of the library.
    pub(crate) known_stream: AtomicUsize,
    pub(crate) known_in: AtomicU64,
    /// Message of the last failure; NULL: none yet. NO_ROOM and FORKED are markers of constant
    /// messages.
    pub(crate) message: AtomicPtr<c_void>,
    /// Private pools that the thread is routed to; NULL: none. (`memory/pools/route.rs`)
    pub(crate) routes: AtomicPtr<c_void>,
    /// Native code of the last failure.
    pub(crate) native: AtomicU32,
    /// Number of host functions of streams that this thread is in; the two top bits: it is in an
    /// observer, or in a host function under a lock.
    pub(crate) callbacks: AtomicU16,
    /// Number of times that the thread's destructor has run: destructors of the host may call the
    /// library again.
    departures: AtomicU16,
    /// Number of NVTX ranges that the thread has open.
    pub(crate) ranges: AtomicU32,
    /// Number of scopes of statistics that the thread has opened and not closed; some may have been
    /// closed by a shutdown.
    pub(crate) scopes: AtomicU32,
    /// The thread's number, and how often it has waited for a device (`waits.rs`).
    pub(crate) waits: AtomicU64,
    /// Shared state that says whether the thread is alive; NULL: it was not needed.
    /// (`thread_lifetime.rs`)
    pub(crate) lifetime: AtomicPtr<c_void>,
}

impl Block {
    /// Is the thread routed to a private pool?
    #[inline]
    pub fn is_routed(&self) -> bool {
        !self.routes.load(Ordering::Relaxed).is_null()
    }
}

const _: () = assert!(size_of::<Block>() == 112, "as in thread.c");
const _: () = assert!(std::mem::offset_of!(Block, participant) == 0, "a thread has one address");

/// Marker in `message`: there was no memory for the message.
pub const NO_ROOM: *mut c_void = std::ptr::without_provenance_mut(1);
/// Marker in `message` in a forked child: the thread's destructor never runs, so it must own no
/// memory.
pub const FORKED: *mut c_void = std::ptr::without_provenance_mut(2);

/// The address of the block, as compiled C computes it: its offset from the thread pointer is fixed
/// when the library is loaded, and linkers relax these two instructions.
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
#[inline(always)]
fn block_address() -> *const Block {
    let block: *const Block;
    // SAFETY: reads the thread pointer and an offset, which are constant while a thread lives.
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
    // SAFETY: it has this layout, lives as long as the thread, begins as zeroes, and has only
    // atomic fields.
    unsafe { &*block_address() }
}

/// This thread as a number that no other living thread has.
#[inline(always)]
pub fn address() -> usize {
    block_address() as usize
}

/// What the layers above do when a thread ends, and when the process forks.
pub struct Hooks {
    /// A thread ends. It is inside, so that a fork waits for the locks that are taken here.
    pub thread_ends: fn(&Block),
    /// A thread has left the list of participants, so that no other thread reads its block.
    pub thread_left: fn(&Block),
    /// Was the driver started? Then a child cannot use the library.
    pub is_started: fn() -> bool,
    /// In a forked child: ends what it has of the parent. True: it cannot use the library.
    pub in_child: fn() -> bool,
}

static HOOKS: Table<Hooks> = Table::new();

/// Installs the hooks, if none are installed. Until the library is initialised each thread comes
/// here when it enters for a call of the host (`Watcher::Forks`).
pub fn install(hooks: &'static Hooks) {
    // Nothing is written later: each call comes here where light fences are not enough.
    if HOOKS.get().is_none() {
        HOOKS.install(Some(hooks));
    }
}

static PARTICIPANTS: Participants = Participants::new();
static RETIRED: Retired = Retired::new();

static KEY: AtomicU32 = AtomicU32::new(0);
/// The process id of the thread that is creating the key and the fork handlers, or one of these
/// states.
static PREPARED_BY: AtomicI32 = AtomicI32::new(UNPREPARED);
const UNPREPARED: i32 = 0;
const PREPARED: i32 = -1;
static MODE: AtomicU32 = AtomicU32::new(MODE_UNKNOWN);
const MODE_UNKNOWN: u32 = 0;
/// membarrier works, so that entering needs only a light fence.
const MODE_MEMBARRIER: u32 = 1;
const MODE_FENCE: u32 = 2;
/// This is a forked child of a process that had started the driver.
const MODE_FORKED: u32 = 3;

/// Changes the mode. Once the mode is another than that of light fences, it never returns to it.
fn set_mode(mode: u32, order: Ordering) {
    let before = MODE.swap(mode, order);
    let needs_more = |mode: u32| mode != MODE_UNKNOWN && mode != MODE_MEMBARRIER;
    flags::change(Watcher::Fences, needs_more(before), needs_more(mode));
}

/// Is this a forked child in which the library cannot be used?
pub fn is_forked() -> bool {
    MODE.load(Ordering::Relaxed) == MODE_FORKED
}

/// Is this thread inside the library?
pub fn is_inside() -> bool {
    block().participant.depth() > 0
}

/// A number that no other thread of this process has or had.
pub fn number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    // Not in the block, which is small, because it is needed rarely.
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

/// Marks that this thread is inside the library, until it is dropped.
pub struct Inside {
    pub(crate) block: &'static Block,
}

/// Enters the library.
#[inline(always)]
pub fn enter() -> Result<Inside> {
    match enter_fast() {
        Some(inside) => Ok(inside),
        None => enter_slow(block()),
    }
}

/// [`enter`] for a registered thread, if no scheduler is installed and a light fence is enough.
#[inline(always)]
pub(crate) fn enter_fast() -> Option<Inside> {
    let block = block();
    if block.registered.load(Ordering::Relaxed) == 0 || flags::is_watched_by(flags::ENTRIES) {
        return None;
    }
    block.participant.enter(Fence::Light);
    Some(Inside { block })
}

#[cold]
fn enter_slow(block: &'static Block) -> Result<Inside> {
    if block.registered.load(Ordering::Relaxed) == 0 {
        register(block)?;
    }
    if !is_forked() {
        let _uncancelled = waiting::uncancelled();
        // Still outside: no thread waits for a thread that waits for its turn.
        turn::call();
    }
    if is_forked() {
        return Err(Error::Forked);
    }
    enter_unless_forking(block);
    Ok(Inside { block })
}

/// Enters, but not while a fork waits for all threads to leave.
fn enter_unless_forking(block: &'static Block) {
    loop {
        // A nested call continues, because the fork waits for the outer one. Another stays outside:
        // a child that is created while it is inside, if only to look, cannot use the library.
        if FORKS.load(Ordering::Relaxed) == 0 || block.participant.depth() > 0 {
            block.participant.enter(present_fence());
            // Read inside: a fork that is not seen here sees that this thread is inside.
            if FORKS.load(Ordering::Relaxed) == 0 || block.participant.depth() > 1 {
                return;
            }
            block.participant.leave();
        }
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
    if block.participant.leave() {
        collect();
        block.participant.leave_outermost();
    }
}

impl Inside {
    /// Is this the outermost call of the thread?
    pub fn is_outermost(&self) -> bool {
        self.block.participant.depth() == 1
    }
}

/// Enters the library again when it is dropped, also by a panic.
struct Return(&'static Block);

impl Drop for Return {
    fn drop(&mut self) {
        turn::call();
        enter_unless_forking(self.0);
    }
}

/// The fence that a registered thread executes when it enters.
pub(crate) fn present_fence() -> Fence {
    if MODE.load(Ordering::Relaxed) == MODE_MEMBARRIER { Fence::Light } else { Fence::Full }
}

/// Runs `body`, which may take long, outside the library, so that threads that wait for this one to
/// leave do not wait for it. Afterwards the library may be shut down, or initialised anew. A nested
/// call stays inside.
///
/// # Safety
/// The call uses no reference, during `body` or later, that was valid because the thread was
/// inside.
pub unsafe fn outside<R>(inside: &Inside, body: impl FnOnce() -> R) -> R {
    if !inside.is_outermost() {
        return body();
    }
    leave_call(inside.block);
    let _return = Return(inside.block);
    body()
}

/// POSIX guarantees four rounds of destructors. A thread that entered after the third might have no
/// further round, and its block would stay in the list after its memory is freed.
const DEPARTURES: u16 = 3;

/// The error of such a thread.
pub const ENDING: &CStr = c"this thread is ending: it has left tcuda for good";

/// Is this thread not registered, so that its destructor will not run?
pub fn is_unregistered() -> bool {
    block().registered.load(Ordering::Relaxed) == 0
}

/// Has this thread, which is ending, run its last destructor?
pub fn has_left() -> bool {
    block().departures.load(Ordering::Relaxed) >= DEPARTURES
}

#[cold]
fn register(block: &'static Block) -> Result<()> {
    #[cfg(any(test, feature = "host_faults"))]
    let _in_library = crate::base::host_faults::in_library();
    if is_forked() {
        return Err(Error::Forked);
    }
    waiting::NoCalls::refuse()?;
    if has_left() {
        return Err(Error::InvalidState(ENDING.to_str().unwrap_or("")));
    }
    if MODE.load(Ordering::Relaxed) == MODE_UNKNOWN {
        let works = sync::register_heavy_fence();
        set_mode(if works { MODE_MEMBARRIER } else { MODE_FENCE }, Ordering::Relaxed);
    }
    prepare()?;
    let key = KEY.load(Ordering::Relaxed);
    let address = std::ptr::from_ref(block) as usize;
    PARTICIPANTS.add(&block.participant, || {
        // SAFETY: the key exists; the value is only handed back to `leave`.
        let failed = unsafe { libc::pthread_setspecific(key, address as *const c_void) };
        if failed == 0 { Ok(()) } else { Err(Error::OutOfHostMemory("a thread's state")) }
    })?;
    block.registered.store(1, Ordering::Relaxed);
    Ok(())
}

/// Creates the key of the threads' destructors and registers the fork handlers, once. No lock
/// guards this: a fork before the handlers are registered would leave it locked in the child for
/// ever. A child of a process that was creating them creates them itself.
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
    // Last, and once: with two registrations, the first would lock what the second has locked.
    // SAFETY: the handlers live in a library that is never unloaded.
    let failed =
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
    if failed != 0 {
        // Without the handlers a child would use invalid state: nothing enters, and the next call
        // tries again.
        // SAFETY: just made, and no thread has a value under it.
        unsafe { libc::pthread_key_delete(key) };
        return Err(Error::OutOfHostMemory("the handlers of forks"));
    }
    Ok(())
}

/// Number of forks for which threads wait before they enter. A child has only the thread that
/// forked, so that a lock held by another thread would never be released there. So a child that may
/// use the library is created while no other thread is inside: then no lock is held, and the
/// guarded data is consistent.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How long a fork waits for calls to end. If one takes longer, the child cannot use the library.
const FORK_TIMEOUT: Duration = Duration::from_secs(1);

unsafe extern "C" fn before_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    // The child of a process that started the driver cannot use the library in any case, so do not
    // wait.
    barrier();
    let (begin, own) = (Instant::now(), &block().participant);
    while !HOOKS.get().is_some_and(|hooks| (hooks.is_started)())
        && PARTICIPANTS.are_others_inside(own)
        && begin.elapsed() < FORK_TIMEOUT
    {
        sync::nap();
    }
    PARTICIPANTS.lock_list();
}

unsafe extern "C" fn after_fork() {
    PARTICIPANTS.unlock_list();
    FORKS.fetch_sub(1, Ordering::SeqCst);
}

/// In a forked child only the thread that forked exists.
unsafe extern "C" fn in_child() {
    // The handlers are registered, though the registering thread may not have stored that yet.
    PREPARED_BY.store(PREPARED, Ordering::Release);
    FORKS.store(0, Ordering::SeqCst);
    descriptor::close_in_child();
    let is_lost = HOOKS.get().is_some_and(|hooks| (hooks.in_child)());
    let were_inside = PARTICIPANTS.keep_only(&block().participant);
    if were_inside || is_lost {
        set_mode(MODE_FORKED, Ordering::Relaxed);
    }
}

/// Runs when a registered thread ends.
unsafe extern "C" fn leave(address: *mut c_void) {
    let block = address.cast::<Block>();
    // SAFETY: set by `register` to this thread's block, which outlives its destructors.
    let block = unsafe { &*block };
    if !is_forked() {
        enter_unless_forking(block);
        if let Some(hooks) = HOOKS.get() {
            (hooks.thread_ends)(block);
        }
        leave_call(block);
    }
    PARTICIPANTS.remove(&block.participant);
    block.registered.store(0, Ordering::Relaxed);
    block.departures.fetch_add(1, Ordering::Relaxed);
    if !is_forked() {
        if let Some(hooks) = HOOKS.get() {
            (hooks.thread_left)(block);
        }
        crate::base::thread_lifetime::end(block);
    }
    let message = block.message.swap(std::ptr::null_mut(), Ordering::Relaxed);
    if message != NO_ROOM && message != FORKED {
        // SAFETY: from malloc, or NULL, and no longer reachable.
        unsafe { libc::free(message) };
    }
}

/// A small number of this thread in a generation of the library, in the order of first use from 0.
/// Threads with different numbers use different cache lines.
#[inline]
pub fn share(generation: u64, next: &AtomicU32) -> u32 {
    let word = block().registered.load(Ordering::Relaxed);
    // Bit 0: registered. Bits 1 to 8: the number. The rest: the generation, from 1 on.
    let life = ((generation as u32) & 0x7f_ffff).max(1);
    if word >> 9 == life { word >> 1 & 0xff } else { choose_share(life, next) }
}

#[cold]
fn choose_share(life: u32, next: &AtomicU32) -> u32 {
    let number = next.fetch_add(1, Ordering::Relaxed) & 0xff;
    block().registered.store(1 | number << 1 | life << 9, Ordering::Relaxed);
    number
}

/// Makes this thread's writes visible to all threads, before it reads whether they are inside.
fn barrier() {
    if MODE.load(Ordering::Relaxed) == MODE_MEMBARRIER && !sync::heavy_fence() {
        do_without_heavy_fences();
    }
    fence(Ordering::SeqCst);
}

/// Runs `body` on the block of each participant, whose earlier writes are visible.
pub(crate) fn each(mut body: impl FnMut(&Block)) {
    barrier();
    // SAFETY: a thread leaves the locked list before its block is freed.
    PARTICIPANTS.each(|address| body(unsafe { &*(address as *const Block) }));
}

/// Waits until every other thread that is inside the library now has left.
pub fn wait_for_others() {
    barrier();
    let _waiting = waiting::begin();
    PARTICIPANTS.wait_for_others(&block().participant);
}

/// Heavy fences have become forbidden: threads use full fences from now on. The sleep lets writes
/// of threads that were entering with a light fence become visible.
#[cold]
fn do_without_heavy_fences() {
    set_mode(MODE_FENCE, Ordering::SeqCst);
    std::thread::sleep(std::time::Duration::from_millis(50));
}

/// Are there heavy fences, so that other threads need only light ones?
pub fn has_heavy_fences() -> bool {
    MODE.load(Ordering::Relaxed) == MODE_MEMBARRIER
}

/// May a lock be biased to this thread? It must be inside, so that a [`Visit`] shows when it has
/// left.
pub fn can_be_biased() -> bool {
    has_heavy_fences() && is_inside()
}

/// Makes this thread's writes visible to all threads that use light fences, before it reads theirs.
pub fn fence_all_threads() {
    // A bias that was made with heavy fences stays until it is revoked.
    if !has_heavy_fences() || !sync::heavy_fence() {
        do_without_heavy_fences();
    }
    fence(Ordering::SeqCst);
}

/// The present call of the thread with this address; `None`: it is outside.
pub fn visit_of(thread: usize) -> Option<Visit> {
    PARTICIPANTS.visit_of(thread)
}

/// Has the thread left the call of the visit?
pub fn is_over(visit: &Visit) -> bool {
    !PARTICIPANTS.is_on(visit)
}

/// A box; an allocation failure is an error, not an abort.
pub fn try_box<T>(value: T, what: &'static str) -> Result<Box<T>> {
    if size_of::<T>() == 0 {
        return Ok(Box::new(value));
    }
    // SAFETY: its size is not 0.
    let room = unsafe { allocate(Layout::new::<T>()) };
    let room = room.ok_or(Error::OutOfHostMemory(what))?.cast::<T>();
    // SAFETY: room for it.
    unsafe { room.write(value) };
    // SAFETY: allocated by the global allocator with its layout, and initialised.
    Ok(unsafe { Box::from_raw(room.as_ptr()) })
}

/// Memory of a layout; `None`: there is none. One copy for all types, which makes the library
/// smaller.
///
/// # Safety
/// The size of the layout is not 0.
#[inline(never)]
unsafe fn allocate(layout: Layout) -> Option<NonNull<u8>> {
    // SAFETY: the caller's promise.
    NonNull::new(unsafe { std::alloc::alloc(layout) })
}

const BATCH: usize = 64;

/// The present era of retired objects.
pub(crate) fn era() -> u64 {
    RETIRED.era()
}

/// A box for a value that will be retired; create it before another thread can see the value.
pub fn reclaimable<T>(value: T, what: &'static str) -> Result<Box<Reclaimable<T>>> {
    try_box(Reclaimable::new(value, RETIRED.era()), what)
}

/// Drops an object once no thread that is inside now can still hold it. Does not wait for them.
pub fn retire<T: Send + 'static>(object: Box<Reclaimable<T>>) {
    if RETIRED.add(object) >= BATCH {
        collect_of(4 * BATCH);
    }
}

/// [`retire`] for a list; a later collection drops the objects.
pub fn retire_all(mut objects: List) {
    while let Some(object) = objects.pop() {
        RETIRED.add(object);
    }
}

/// Drops retired objects that no call can hold.
pub fn collect() {
    collect_of(usize::MAX);
}

fn collect_of(most: usize) {
    // A callback may destroy an object that the outer call still uses: then this thread counts too.
    let participant = &block().participant;
    let own = (participant.depth() <= 1).then_some(participant);
    if own.is_none() {
        participant.request_collection();
    }
    RETIRED.collect(&PARTICIPANTS, own, most, barrier);
}

/// A value that lives for ever, in tests; it is kept in a list, so that leak checkers can reach it.
#[cfg(test)]
pub(crate) fn for_ever<T: Send + 'static>(value: T) -> &'static T {
    static KEPT: std::sync::Mutex<Vec<usize>> = std::sync::Mutex::new(Vec::new());
    let value: &'static T = Box::leak(Box::new(value));
    KEPT.lock().unwrap().push(std::ptr::from_ref(value) as usize);
    value
}
