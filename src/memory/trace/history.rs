//! Recording what the allocator does, while somebody wants it: events in a ring for each device, and
//! the frames of whoever caused them.
//!
//! **Order.** An event of a block or segment is recorded with its arena's lock held, right where the
//! arena changes and before the change is counted. So the events of an address are in a ring in the
//! order in which they happened, on whatever threads; and since counting is the only thing that waits
//! with the lock held, a snapshot, which holds the arenas still, finds the events of just what it
//! shows. A number for each event and sorting would give the first, not the second.
//!
//! **Cost.** Off, nothing: whether anybody looks is one word ([`crate::memory::watch`]). On, the host's function is called
//! first, on the thread that allocates and with no lock held; what it gave waits in the thread.

use super::frames::{self, Named};
use super::ring::{Action, Event, Ring};
use super::stacks::{self, Pin};
use crate::base::error::Result;
use crate::base::lock::{Held, Mutex};
use crate::base::rank::Rank;
use crate::base::retired::Reclaimable;
use crate::base::thread;
use crate::base::waiting;
use crate::gpu::device::MAX_DEVICES;
use crate::gpu::stream::Stream;
use crate::memory::DeviceMemory;
use crate::memory::arena::{Arena, ArenaState};
use crate::memory::backing::virtual_memory::arena_of;
use crate::memory::pools::pool::PoolId;
use crate::observe::flags::{self, Watcher};
use crate::runtime;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Whose function says where a thread is.
pub trait Source: Send + Sync {
    /// Asks it, and passes the frames on, innermost first.
    fn capture(&self, take: &mut dyn FnMut(&mut dyn Iterator<Item = Named<'_>>));
    /// Nothing can fail any more: it is the library's until it is dropped.
    fn is_taken(&self);
}

/// Which events carry frames.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FramesFor {
    /// None.
    None,
    /// None, but blocks do.
    State,
    /// Those of allocating.
    Alloc,
    /// All.
    All,
}

/// What is recorded, and how.
pub struct Recorder {
    /// Events as well, not the frames of live blocks alone.
    pub events: bool,
    /// The most events of a device.
    pub most: usize,
    /// Which carry frames.
    pub frames_for: FramesFor,
    /// Events of devices.
    pub device: bool,
    /// Events of pinned memory.
    pub host: bool,
    /// Native frames below those of the source.
    pub native: bool,
    /// A set of actions that are left out.
    pub skip: u32,
    /// The host's function.
    pub source: Option<Box<dyn Source>>,
}

/// The most events that a ring may be asked to hold; more is this.
pub const MOST_EVENTS: usize = 1 << 28;
/// What it holds unless something else is asked.
pub const DEFAULT_EVENTS: usize = 1 << 20;

/// NULL: nothing is recorded. One that was replaced lives until those who were inside have left.
static RECORDER: AtomicPtr<Recorder> = AtomicPtr::new(std::ptr::null_mut());

/// Held while what is recorded is changed as a whole, or read.
static RECORDS: Mutex<()> = Mutex::new(Rank::HISTORY, ());

/// The ring of pinned memory, after those of the devices.
const HOST: usize = MAX_DEVICES;
static RINGS: [Mutex<Ring>; MAX_DEVICES + 1] =
    [const { Mutex::new(Rank::LEAF, Ring::new()) }; MAX_DEVICES + 1];

/// What a call found out before it took a lock.
#[derive(Clone, Copy)]
struct Pending {
    stack: u32,
    stream: u64,
}

thread_local! {
    static PENDING: Cell<Pending> = const { Cell::new(Pending { stack: 0, stream: 0 }) };
    /// The stack of the thread's last call: it stays until the call has named it somewhere, and longer.
    static PINNED: Cell<ManuallyDrop<Pin>> = const { Cell::new(Pin::UNDROPPED) };
    /// The host's function is being called: what it does itself gets no frames.
    static IS_ASKING: Cell<bool> = const { Cell::new(false) };
}

/// Is anything recorded?
#[inline(always)]
pub fn is_on() -> bool {
    !RECORDER.load(Ordering::Relaxed).is_null()
}

fn recorder<'a>() -> Option<&'a Recorder> {
    waiting::assert_awake();
    // SAFETY: NULL, or one that lives while this thread, which is inside, can see it.
    unsafe { RECORDER.load(Ordering::Acquire).as_ref() }
}

/// Before an allocation: whose it will be, and for which stream.
#[inline(always)]
pub fn before_allocation(stream: &Stream) {
    if is_on() {
        gather(FramesFor::State, stream.native() as u64);
    }
}

/// The same of pinned memory, which is no stream's.
#[inline(always)]
pub fn before_host_allocation() {
    if is_on() {
        gather(FramesFor::State, 0);
    }
}

/// Before a block is freed.
#[inline(always)]
pub fn before_free() {
    if is_on() {
        gather(FramesFor::All, 0);
    }
}

/// Finds out where this thread is, if `needed` is asked for.
#[cold]
fn gather(needed: FramesFor, stream: u64) {
    PENDING.set(Pending { stack: 0, stream });
    let Some(recorder) = recorder() else { return };
    let is_wanted = recorder.frames_for >= needed && (recorder.events || needed != FramesFor::All);
    if !is_wanted || IS_ASKING.get() {
        return;
    }
    let mut native = [0; frames::DEEPEST];
    let len = if recorder.native { frames::addresses(&mut native) } else { 0 };
    let native = &native[..len];
    let mut pin = Pin::NONE;
    match &recorder.source {
        None => pin = stacks::keep(&mut std::iter::empty(), native),
        Some(source) => {
            let _waiting = waiting::in_host_function();
            IS_ASKING.set(true);
            source.capture(&mut |named| pin = stacks::keep(named, native));
            IS_ASKING.set(false);
        }
    }
    // The host's function may have come back and left something else here.
    PENDING.set(Pending { stack: pin.id(), stream });
    pin_instead(pin);
    // Trying, because a snapshot may hold the records, and the next call tries again.
    if stacks::are_many()
        && let Some(records) = RECORDS.try_lock()
    {
        forget_unnamed(&records);
    }
}

/// The thread's pin is this one from now on.
fn pin_instead(pin: Pin) {
    drop(ManuallyDrop::into_inner(PINNED.replace(ManuallyDrop::new(pin))));
}

/// This thread ends.
pub(crate) fn leave() {
    pin_instead(Pin::NONE);
}

impl DeviceMemory {
    /// Calls `add` with the stack of each live block, and with 0 for other indices.
    fn each_stack(&self, add: &mut impl FnMut(u32)) {
        let _ = self.each_arena(|arena| {
            // SAFETY: `each_arena` holds the lock.
            let blocks = &unsafe { arena.state() }.blocks;
            blocks.all().for_each(|id| add(blocks[id].stack()));
            Ok(())
        });
    }
}

/// Forgets the stacks that no event, block or call names.
fn forget_unnamed(_records: &Held<'_, ()>) {
    let (Ok(inside), Some(mut ids)) = (thread::enter(), stacks::begin()) else { return };
    let mut walked = 0;
    let mut add = |stack| {
        ids.add(stack);
        walked += 1;
    };
    // Blocks, then events: see `stacks.rs`.
    if let Some(runtime) = runtime::existing(&inside) {
        runtime.devices.iter().for_each(|device| device.memory.each_stack(&mut add));
        runtime.host.each_stack(&mut add);
    }
    for ring in &RINGS {
        ring.lock().iter().for_each(|event| add(event.stack));
    }
    stacks::finish(&ids, walked);
}

/// What `gather` found, for a segment that comes before its block.
pub(in crate::memory) fn pending_stack() -> u32 {
    PENDING.get().stack
}

/// Takes what `gather` found.
pub(in crate::memory) fn take_stack() -> u32 {
    let Pending { stack, .. } = PENDING.replace(Pending { stack: 0, stream: 0 });
    stack
}

fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as i64)
}

/// The event, as its recorder wants it.
fn push(ring: usize, event: Event) {
    let Some(recorder) = recorder() else { return };
    let is_wanted = if ring == HOST { recorder.host } else { recorder.device };
    if !recorder.events || !is_wanted || recorder.skip & event.action.bit() != 0 {
        return;
    }
    let has_frames = recorder.frames_for >= FramesFor::Alloc;
    let stack = if has_frames { event.stack } else { 0 };
    if let Some(ring) = RINGS.get(ring) {
        ring.lock().push(Event { stack, time_us: now_us(), ..event }, recorder.most);
    }
}

fn push_block(arena: &Arena, state: &ArenaState, id: u32, action: Action, stack: u32) {
    let block = &state.blocks[id];
    let address = state.address(arena.base, id);
    let stream = state.stream_of(arena, id).map_or(0, |stream| stream.native() as u64);
    let bytes = block.requested;
    let pool = arena.pool().word();
    let event = Event { address, bytes, stream, pool, time_us: 0, stack, action };
    push(arena.device as usize, event);
}

/// A block was taken. The caller holds the arena's lock, as for all that follow.
#[inline(always)]
pub fn allocated(arena: &Arena, state: &mut ArenaState, id: u32) {
    if is_on() {
        record_allocated(arena, state, id);
    }
}

#[cold]
fn record_allocated(arena: &Arena, state: &mut ArenaState, id: u32) {
    let stack = take_stack();
    state.blocks[id].set_stack(stack);
    push_block(arena, state, id, Action::Alloc, stack);
}

/// A block is about to be free at once.
#[inline(always)]
pub fn freed(arena: &Arena, state: &ArenaState, id: u32) {
    if is_on() {
        record_freed(arena, state, id);
    }
}

#[cold]
fn record_freed(arena: &Arena, state: &ArenaState, id: u32) {
    let stack = stack_of_free(state, id);
    push_block(arena, state, id, Action::FreeRequested, stack);
    push_block(arena, state, id, Action::FreeCompleted, stack);
}

/// As PyTorch does it: where freeing has no frames of its own, those of the allocation stand.
fn stack_of_free(state: &ArenaState, id: u32) -> u32 {
    match take_stack() {
        0 => state.blocks[id].stack(),
        stack => stack,
    }
}

/// A block that other streams use is about to be freed, and will wait for them.
#[inline(always)]
pub fn free_requested(arena: &Arena, state: &ArenaState, id: u32) {
    if is_on() {
        push_block(arena, state, id, Action::FreeRequested, stack_of_free(state, id));
    }
}

/// A block that waited is about to be free.
#[inline(always)]
pub fn free_completed(arena: &Arena, state: &ArenaState, id: u32) {
    if is_on() {
        push_block(arena, state, id, Action::FreeCompleted, state.blocks[id].stack());
    }
}

/// Something happened to a block that is in no arena; the caller holds its part of the table.
#[inline]
pub(in crate::memory) fn of_uncached(
    device: i32,
    action: Action,
    address: u64,
    bytes: u64,
    stream: &Stream,
    stack: u32,
) {
    if is_on() {
        let (pool, stream) = (PoolId::DEFAULT.word(), stream.native() as u64);
        let event = Event { address, bytes, stream, pool, time_us: 0, stack, action };
        push(device as usize, event);
    }
}

/// The frames of what this thread allocates.
pub(in crate::memory) fn take_frames() -> u32 {
    if is_on() { take_stack() } else { 0 }
}

/// The frames of freeing a block that was allocated by `stack`.
pub(in crate::memory) fn stack_of_uncached(stack: u32) -> u32 {
    match take_frames() {
        0 => stack,
        found => found,
    }
}

/// Memory came to addresses of an arena, or left them.
#[inline(always)]
pub fn segment(action: Action, address: u64, bytes: u64) {
    if is_on() && bytes > 0 {
        record_segment(action, address, bytes);
    }
}

#[cold]
fn record_segment(action: Action, address: u64, bytes: u64) {
    if let Some((arena, _)) = arena_of(address) {
        record_segment_of(arena, action, address, bytes);
    }
}

/// A segment came to an arena, or left it.
#[inline(always)]
pub fn segment_of(arena: &Arena, action: Action, address: u64, bytes: u64) {
    if is_on() {
        record_segment_of(arena, action, address, bytes);
    }
}

#[cold]
fn record_segment_of(arena: &Arena, action: Action, address: u64, bytes: u64) {
    let comes = matches!(action, Action::SegmentMap | Action::SegmentAlloc);
    let stack = if comes { pending_stack() } else { 0 };
    let stream = arena.stream().map_or(0, |stream| stream.native() as u64);
    let pool = arena.pool().word();
    let event = Event { address, bytes, stream, pool, time_us: 0, stack, action };
    push(arena.device as usize, event);
}

/// An allocation of `bytes` found no memory; the driver said that `free` bytes were free. No lock is
/// needed.
pub fn out_of_memory(device: i32, bytes: u64, free: u64) {
    if is_on() {
        let Pending { stack, stream } = PENDING.get();
        let action = Action::OutOfMemory;
        let pool = PoolId::DEFAULT.word();
        let event = Event { address: free, bytes, stream, pool, time_us: 0, stack, action };
        push(device as usize, event);
    }
}

/// A snapshot of a device or pool is being taken, which has so many active bytes.
pub(in crate::memory) fn snapshot_taken(device: i32, bytes: u64, pool: PoolId) {
    if is_on() {
        let action = Action::Snapshot;
        let pool = pool.word();
        let event = Event { address: 0, bytes, stream: 0, pool, time_us: 0, stack: 0, action };
        push(device as usize, event);
    }
}

/// Something happened to pinned memory; what changes it is held still by the caller.
pub(in crate::memory) fn host_event(action: Action, address: u64, bytes: u64, stack: u32) {
    let pool = PoolId::DEFAULT.word();
    push(HOST, Event { address, bytes, stream: 0, pool, time_us: 0, stack, action });
}

/// The events of a device, or of pinned memory, held still.
pub(in crate::memory) fn ring(device: Option<i32>) -> Held<'static, Ring> {
    let index = device.map_or(HOST, |device| (device as usize).min(HOST));
    RINGS[index].lock()
}

/// Keeps others from forgetting what is recorded.
pub(in crate::memory) fn hold_records() -> Held<'static, ()> {
    RECORDS.lock()
}

/// Records as `recorder` says from now on, or no longer; `clear` forgets the events so far.
pub fn record(recorder: Option<Recorder>, clear: bool) -> Result<()> {
    let new = match recorder {
        None => std::ptr::null_mut(),
        Some(recorder) => Reclaimable::into_value(thread::reclaimable(recorder, "the recording")?),
    };
    // SAFETY: NULL, or just made.
    if let Some(source) = unsafe { new.as_ref() }.and_then(|recorder| recorder.source.as_ref()) {
        source.is_taken();
    }
    let records = RECORDS.lock();
    let old = replace(new);
    if clear {
        clear_rings();
    }
    // What calls that are inside still record names stacks that they have pinned.
    forget_unnamed(&records);
    drop(records);
    retire(old);
    thread::collect();
    Ok(())
}

fn replace(new: *mut Recorder) -> *mut Recorder {
    let old = RECORDER.swap(new, Ordering::AcqRel);
    match (old.is_null(), new.is_null()) {
        (true, false) => flags::begin(Watcher::History),
        (false, true) => flags::end(Watcher::History),
        _ => {}
    }
    old
}

fn clear_rings() {
    for ring in &RINGS {
        let old = std::mem::replace(&mut *ring.lock(), Ring::new());
        drop(old);
    }
}

fn retire(old: *mut Recorder) {
    if !old.is_null() {
        // SAFETY: from `into_value`, and no longer reachable; threads that use it are waited for.
        thread::retire(unsafe { Reclaimable::from_value(old) });
    }
}

/// Stops recording, at the beginning of a shutdown.
pub(crate) fn stop() {
    retire(replace(std::ptr::null_mut()));
}

/// Forgets everything, at its end: there are no blocks any more.
pub(crate) fn forget() {
    let _records = RECORDS.lock();
    clear_rings();
    stacks::forget();
}
