//! The recording of allocator events: a ring buffer for each device, with the stack of frames of
//! each event.
//!
//! `arena/events.rs` records the events of an arena.
//!
//! **Order.** An event of a block or segment is recorded with its arena's lock held, where the
//! arena changes and before the change is counted. Thus the ring has the events of an address in
//! the order in which they happened, across threads. Counting is the only step that waits with the
//! lock held. A snapshot, which freezes the arenas, therefore finds exactly the events of the state
//! that it shows. Numbering and sorting the events would give the first property, but not the
//! second.
//!
//! **Cost.** While recording is off, one flag word is read ([`crate::observe::flags`]). While it is
//! on, the host's function is called first, on the allocating thread and with no lock held; its
//! frames are kept in a thread-local until the event.

use super::ring::{Action, Event, Ring};
use super::stacks::{self, Pin};
use super::{listeners, metadata};
use crate::base::error::Result;
use crate::base::frames::{self, Source};
use crate::base::lock::{Held, Mutex};
use crate::base::published::Published;
use crate::base::rank::Rank;
use crate::base::retired::Reclaimable;
use crate::base::{thread, waiting};
use crate::gpu::device::MAX_DEVICES;
use crate::gpu::gpus::{self, Gpus};
use crate::gpu::stream::Stream;
use crate::memory::config::pool_id::PoolId;
use crate::observe::flags::{self, Watcher};
use crate::observe::table::Table;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::time::{SystemTime, UNIX_EPOCH};

/// The events that carry frames.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FramesFor {
    /// No events.
    None,
    /// No events, but blocks do.
    State,
    /// Allocations.
    Alloc,
    /// All events.
    All,
}

/// The options of a recording.
pub struct Recorder {
    /// Record events too, not only the frames of live blocks.
    pub events: bool,
    /// The largest number of events of a device.
    pub most: usize,
    /// The events that carry frames.
    pub frames_for: FramesFor,
    /// Record events of devices.
    pub device: bool,
    /// Record events of pinned memory.
    pub host: bool,
    /// Record native frames after those of the source.
    pub native: bool,
    /// The set of actions that are not recorded.
    pub skip: u32,
    /// The source of frames.
    pub source: Option<Box<dyn Source>>,
}

/// The largest capacity of a ring; larger requests are clamped to it.
pub const MOST_EVENTS: usize = 1 << 28;
/// The default capacity of a ring.
pub const DEFAULT_EVENTS: usize = 1 << 20;

/// None: recording is off.
static RECORDER: Published<Recorder> = Published::new();

/// Held while the whole record is changed or read.
static RECORDS: Mutex<()> = Mutex::new(Rank::HISTORY, ());

/// The index of the ring of pinned memory, after those of the devices.
const HOST: usize = MAX_DEVICES;
static RINGS: [Mutex<Ring>; MAX_DEVICES + 1] =
    [const { Mutex::new(Rank::LEAF, Ring::new()) }; MAX_DEVICES + 1];

thread_local! {
    /// The stream that a call gathers before it takes a lock.
    static STREAM: Cell<u64> = const { Cell::new(0) };
    /// The stack of the thread's last call, pinned at least until the call has stored its id in a
    /// block or event.
    static PINNED: Cell<ManuallyDrop<Pin>> = const { Cell::new(Pin::UNDROPPED) };
    /// In one place, which is smaller than two.
    static STATE: State = const {
        State { is_pending: Cell::new(false), in_source: Cell::new(false) }
    };
}

struct State {
    /// The pinned stack is that of the present call, which has not taken it yet.
    is_pending: Cell<bool>,
    /// The host's function is running: allocations that it makes get no frames.
    in_source: Cell<bool>,
}

/// Is recording on, or does anything listen to events?
#[inline(always)]
pub fn is_on() -> bool {
    RECORDER.is_some() || listeners::is_on()
}

/// The frames of this thread's current call. Events after its end do not get them. A call within a
/// call, of an observer for example, has frames of its own, and leaves those of the outer one.
#[must_use]
pub struct CallFrames {
    /// None: nothing is recorded.
    outer: Option<Gathered>,
}

/// What a call has gathered, and no event has taken.
struct Gathered {
    is_pending: bool,
    pin: Pin,
    stream: u64,
}

impl CallFrames {
    #[inline(always)]
    fn gather(needed: FramesFor, stream: impl FnOnce() -> u64) -> CallFrames {
        let outer = is_on().then(Gathered::take);
        if outer.is_some() {
            capture_stack(needed, stream());
        }
        CallFrames { outer }
    }
}

impl Drop for CallFrames {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(outer) = self.outer.take() {
            outer.restore();
        }
    }
}

impl Gathered {
    #[cold]
    fn take() -> Gathered {
        let is_pending = STATE.with(|state| state.is_pending.replace(false));
        let pin = match is_pending {
            true => ManuallyDrop::into_inner(PINNED.replace(Pin::UNDROPPED)),
            false => Pin::NONE,
        };
        Gathered { is_pending, pin, stream: STREAM.get() }
    }

    #[cold]
    fn restore(self) {
        STATE.with(|state| state.is_pending.set(self.is_pending));
        if self.is_pending {
            replace_pin(self.pin);
            STREAM.set(self.stream);
        }
    }
}

/// Gathers the frames before an allocation on a stream.
#[inline(always)]
pub fn before_allocation(stream: &Stream) -> CallFrames {
    CallFrames::gather(FramesFor::State, || stream.native() as u64)
}

/// Gathers the frames before an allocation of pinned memory, which has no stream.
#[inline(always)]
pub fn before_host_allocation() -> CallFrames {
    CallFrames::gather(FramesFor::State, || 0)
}

/// Gathers the frames before a free, an annotation, or the release of unused memory.
#[inline(always)]
pub fn before_free() -> CallFrames {
    CallFrames::gather(FramesFor::All, || 0)
}

/// Captures the stack of this thread, if the recorder wants frames for `needed`.
#[cold]
fn capture_stack(needed: FramesFor, stream: u64) {
    STREAM.set(stream);
    STATE.with(|state| state.is_pending.set(false));
    let Some(recorder) = RECORDER.get() else { return };
    let is_wanted = recorder.frames_for >= needed && (recorder.events || needed != FramesFor::All);
    if !is_wanted || STATE.with(|state| state.in_source.get()) {
        return;
    }
    let mut native = [0; frames::MAX_DEPTH];
    let len = if recorder.native { frames::addresses(&mut native) } else { 0 };
    let native = &native[..len];
    let mut pin = Pin::NONE;
    match &recorder.source {
        None => pin = stacks::keep(None, &mut std::iter::empty(), native),
        Some(source) => {
            let _waiting = waiting::in_host_function();
            STATE.with(|state| state.in_source.set(true));
            let mut context = source.context();
            source.capture(&mut |named| pin = stacks::keep(context.take(), named, native));
            STATE.with(|state| state.in_source.set(false));
        }
    }
    replace_pin(pin);
    // The host's function may have called the library, which overwrites both.
    STREAM.set(stream);
    STATE.with(|state| state.is_pending.set(true));
    // `try_lock`, because a snapshot may hold the lock; the next call tries again.
    if stacks::are_many()
        && let Some(records) = RECORDS.try_lock()
    {
        remove_unreferenced(&records);
    }
}

/// Replaces the thread's pin.
fn replace_pin(pin: Pin) {
    drop(ManuallyDrop::into_inner(PINNED.replace(ManuallyDrop::new(pin))));
}

/// Drops the pin of a thread that ends.
pub(crate) fn end_thread() {
    replace_pin(Pin::NONE);
}

/// Passes the stack of each live block, and perhaps 0, to a function.
pub type EachStack = fn(&Gpus, &mut dyn FnMut(u32));

static EACH_STACK: Table<EachStack> = Table::new();

/// Installs how the live blocks are found.
pub(in crate::memory) fn install(each_stack: &'static EachStack) {
    EACH_STACK.install(Some(each_stack));
}

/// Removes the stacks that no event, block or call references.
fn remove_unreferenced(_records: &Held<'_, ()>) {
    let (Ok(inside), Some(mut ids)) = (thread::enter(), stacks::begin()) else { return };
    let mut walked = 0;
    let mut add = |stack| {
        ids.add(stack);
        walked += 1;
    };
    // Blocks before events: see `stacks.rs`.
    if let Some(gpus) = gpus::existing(&inside) {
        let Some(each_stack) = EACH_STACK.get() else { return };
        each_stack(gpus, &mut add);
    }
    for ring in &RINGS {
        for event in ring.lock().iter() {
            add(event.stack);
            add(event.metadata);
            add(event.compilation);
        }
    }
    stacks::finish(&ids, walked);
}

/// The gathered stack, for the event of a segment, which other events of the call may follow.
pub(in crate::memory) fn pending_stack() -> u32 {
    if !STATE.with(|state| state.is_pending.get()) {
        return 0;
    }
    let pin = PINNED.replace(Pin::UNDROPPED);
    let stack = pin.id();
    PINNED.set(pin);
    stack
}

/// Takes the gathered stack.
pub(in crate::memory) fn take_stack() -> u32 {
    let stack = pending_stack();
    STATE.with(|state| state.is_pending.set(false));
    stack
}

fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as i64)
}

/// Adds an event, if the recorder wants it, and passes it to the listeners.
pub(in crate::memory) fn push(ring: usize, event: Event) {
    let recorder = RECORDER.get();
    let is_recorded = recorder.is_some_and(|recorder| {
        let is_wanted = if ring == HOST { recorder.host } else { recorder.device };
        recorder.events && is_wanted && recorder.skip & event.action.bit() == 0
    });
    if !is_recorded && !listeners::is_on() {
        return;
    }
    let has_frames = recorder.is_some_and(|recorder| recorder.frames_for >= FramesFor::Alloc);
    let stack = if has_frames { event.stack } else { 0 };
    // As in PyTorch, events of pinned memory have no texts.
    let (metadata, compilation) = if ring == HOST { (0, 0) } else { metadata::ids() };
    let metadata = if event.action == Action::Annotate { event.metadata } else { metadata };
    let event = Event { stack, metadata, compilation, time_us: now_us(), ..event };
    if listeners::is_on() {
        listeners::notify((ring != HOST).then_some(ring as i32), &event);
    }
    if let (Some(recorder), Some(ring)) = (recorder.filter(|_| is_recorded), RINGS.get(ring)) {
        ring.lock().push(event, recorder.most);
    }
}

/// Records an event of an uncached block; the caller holds its part of the table.
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
        let event = Event { address, bytes, stream, pool, stack, ..Event::of(action) };
        push(device as usize, event);
    }
}

/// Records that the host attached a stored text to an uncached block; the caller holds its part of
/// the table.
pub(in crate::memory) fn annotated(
    device: i32,
    address: u64,
    bytes: u64,
    stream: &Stream,
    metadata: u32,
) {
    let (pool, stream) = (PoolId::DEFAULT.word(), stream.native() as u64);
    let (stack, of) = (take_stack(), Event::of(Action::Annotate));
    let event = Event { address, bytes, stream, pool, stack, metadata, ..of };
    push(device as usize, event);
}

/// Takes the frames of this thread's current allocation.
pub(in crate::memory) fn take_frames() -> u32 {
    if is_on() { take_stack() } else { 0 }
}

/// The frames of the free of a block; without frames, those of its allocation, `stack`.
pub(in crate::memory) fn stack_of_uncached(stack: u32) -> u32 {
    match take_frames() {
        0 => stack,
        found => found,
    }
}

/// Records that an allocation of `bytes` failed while the driver reported `free` bytes. Needs no
/// lock.
pub fn out_of_memory(device: i32, bytes: u64, free: u64) {
    if is_on() {
        let (stack, stream) = (pending_stack(), STREAM.get());
        let of = Event::of(Action::OutOfMemory);
        let event = Event { address: free, bytes, stream, stack, ..of };
        push(device as usize, event);
    }
}

/// Records a snapshot of a device or pool that has `bytes` active bytes.
pub(in crate::memory) fn snapshot_taken(device: i32, bytes: u64, pool: PoolId) {
    if is_on() {
        let event = Event { bytes, pool: pool.word(), ..Event::of(Action::Snapshot) };
        push(device as usize, event);
    }
}

/// Records an event of pinned memory; the caller holds the lock of the memory that changes.
pub(in crate::memory) fn host_event(action: Action, address: u64, bytes: u64, stack: u32) {
    push(HOST, Event { address, bytes, stack, ..Event::of(action) });
}

/// Locks the ring of a device, or of pinned memory.
pub(in crate::memory) fn ring(device: Option<i32>) -> Held<'static, Ring> {
    let index = device.map_or(HOST, |device| (device as usize).min(HOST));
    RINGS[index].lock()
}

/// Keeps other threads from removing stacks and events.
pub(in crate::memory) fn lock_records() -> Held<'static, ()> {
    RECORDS.lock()
}

/// Starts a recording with new options, or stops it; `clear` drops the events so far.
pub fn record(recorder: Option<Recorder>, clear: bool) -> Result<()> {
    let new =
        recorder.map(|recorder| thread::reclaimable(recorder, "the recording")).transpose()?;
    if let Some(source) = new.as_ref().and_then(|recorder| recorder.source.as_ref()) {
        source.is_taken();
    }
    let records = RECORDS.lock();
    if new.is_none() {
        replace_pin(Pin::NONE);
    }
    let old = replace(new);
    if clear {
        clear_rings();
    }
    // Calls that are inside still record their stacks, which they have pinned.
    remove_unreferenced(&records);
    drop(records);
    old.into_iter().for_each(thread::retire);
    thread::collect();
    Ok(())
}

type Boxed = Option<Box<Reclaimable<Recorder>>>;

fn replace(new: Boxed) -> Boxed {
    let is_on = new.is_some();
    let old = RECORDER.replace(new);
    match (old.is_some(), is_on) {
        (false, true) => flags::begin(Watcher::History),
        (true, false) => flags::end(Watcher::History),
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

/// Stops recording, when a shutdown begins.
pub(crate) fn stop() {
    replace(None).into_iter().for_each(thread::retire);
}

/// Drops everything, when a shutdown ends and there are no blocks.
pub(crate) fn forget() {
    let _records = RECORDS.lock();
    clear_rings();
    stacks::forget();
}
