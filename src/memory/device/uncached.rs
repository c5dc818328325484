//! Uncached blocks, which are in no arena: one call to their source to get a block, one to free it.
//!
//! A table of parts, each with its own lock, maps addresses to blocks. A block leaves the table
//! before it is freed, because another thread can get its address as soon as it is free. For the
//! same reason its end is recorded and counted before, and undone if the source fails to free it.

use crate::base::error::{Error, Result};
use crate::base::lock::{Held, Mutex};
use crate::base::log::{self, Level};
use crate::base::rank::Rank;
use crate::base::text::Count;
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::Device;
use crate::gpu::external_registry::HeldStream;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory::arena::{addresses, segmented};
use crate::memory::backing::pluggable::Pluggable;
use crate::memory::backing::source::{DriverSource, Source};
use crate::memory::config::size::{Class, SMALL};
use crate::memory::device::backend::Server;
use crate::memory::device::lookup::{Found, unknown_pointer};
use crate::memory::device::{DeviceMemory, backend, stream_end};
use crate::memory::stats::ledger;
use crate::memory::stats::ledger::{COUNTERS, Counters};
use crate::memory::trace::history;
use crate::memory::trace::ring::Action;
use crate::memory::trace::stacks::{self, Pin};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicBool, Ordering};

/// The source of a block.
#[derive(Debug)]
pub(in crate::memory) enum Origin {
    /// cuMemAlloc.
    Driver,
    /// The driver's memory pool; `captured`: within a graph capture.
    DriverPool { captured: bool },
    /// An allocator of another library.
    Pluggable(Pluggable),
}

impl Origin {
    /// Does the library count its blocks? The driver counts the blocks of its own pools.
    fn is_counted(&self) -> bool {
        !matches!(self, Origin::DriverPool { .. })
    }
}

/// An uncached block.
#[derive(Debug)]
pub(in crate::memory) struct Block {
    pub device: i32,
    pub bytes: u64,
    pub origin: Origin,
    stream: HeldStream,
    /// Other streams that use the block.
    uses: Vec<HeldStream>,
    pub stack: Pin,
}

impl Block {
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    pub fn uses(&self) -> impl Iterator<Item = &Stream> {
        self.uses.iter().map(|stream| &**stream)
    }

    pub fn class(&self) -> Class {
        if self.bytes <= SMALL { Class::Small } else { Class::Large }
    }

    fn counters(&self, sign: i64) -> Counters {
        let mut counters = [0; COUNTERS];
        let bytes = self.bytes as i64 * sign;
        for (counter, value) in [
            (ledger::ALLOCATION, sign),
            (ledger::ALLOCATED_BYTES, bytes),
            (ledger::ACTIVE, sign),
            (ledger::ACTIVE_BYTES, bytes),
            (ledger::REQUESTED_BYTES, bytes),
        ] {
            counters[counter] = value;
        }
        counters
    }

    fn record(&self, address: u64, actions: &[Action], stack: u32) {
        for action in actions {
            history::of_uncached(self.device, *action, address, self.bytes, self.stream(), stack);
        }
    }
}

/// A hasher of its own would make each map read random keys from the system, and panic on failure.
pub(in crate::memory) type Blocks = HashMap<u64, Block, BuildHasherDefault<DefaultHasher>>;

const PARTS: usize = 16;

static TABLE: [Mutex<Blocks>; PARTS] =
    [const { Mutex::new(Rank::DIRECT, Blocks::with_hasher(BuildHasherDefault::new())) }; PARTS];

/// Was there an uncached block since the start? If not, no lookup is needed.
static IS_USED: AtomicBool = AtomicBool::new(false);

fn part(address: u64) -> &'static Mutex<Blocks> {
    // Addresses from the driver are multiples of 512 bytes, often of much more.
    let mixed = (address >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &TABLE[(mixed >> 60) as usize % PARTS]
}

pub(crate) fn is_used() -> bool {
    IS_USED.load(Ordering::Relaxed)
}

/// Does an uncached block begin at this address?
pub(in crate::memory) fn has(address: u64) -> bool {
    is_used() && part(address).lock().contains_key(&address)
}

/// Runs `body` on a live block.
pub(in crate::memory) fn with<R>(
    address: u64,
    body: impl FnOnce(&mut Block) -> Result<R>,
) -> Result<R> {
    let mut blocks = part(address).lock();
    body(blocks.get_mut(&address).ok_or_else(|| unknown_pointer(address))?)
}

/// Freezes the table. For a caller that holds the ledger, so that the parts are locked by `hold`.
pub(in crate::memory) fn freeze() -> [Held<'static, Blocks>; PARTS] {
    std::array::from_fn(|index| TABLE[index].hold())
}

/// The sizes of a live block.
#[cold]
pub(in crate::memory) fn find(address: u64) -> Result<Found> {
    with(address, |block| Ok(Found { requested: block.bytes, bytes: block.bytes }))
}

/// Records that the host attached a stored text to a live block.
pub(in crate::memory) fn annotate(address: u64, metadata: u32) -> Result<()> {
    with(address, |block| {
        history::annotated(block.device, address, block.bytes, block.stream(), metadata);
        Ok(())
    })
}

/// Id of the stack that allocated a live block; 0: none was recorded.
pub(in crate::memory) fn stack_of(address: u64) -> Result<u32> {
    with(address, |block| Ok(block.stack.id()))
}

/// The source's allocation that contains a block, and its length, if known.
pub(in crate::memory) fn segment_of(address: u64) -> Result<(u64, u64)> {
    let (bytes, allocator) = with(address, |block| {
        let allocator = match &block.origin {
            Origin::Pluggable(allocator) => Some(allocator.share()),
            _ => None,
        };
        Ok((block.bytes, allocator))
    })?;
    // The allocator is called with no lock held.
    let base = allocator.map_or(Ok(None), |allocator| allocator.base_of(address))?;
    Ok(base.unwrap_or((address, bytes)))
}

/// The device of the uncached block that begins at an address.
pub fn device_of(address: u64) -> Option<i32> {
    if !is_used() {
        return None;
    }
    part(address).lock().get(&address).map(|block| block.device)
}

/// Was the block at an address allocated for a stream?
pub(in crate::memory) fn is_of(address: u64, stream: &Stream) -> bool {
    with(address, |block| Ok(block.stream.is(stream))).unwrap_or(false)
}

/// Records that a block is also used on `stream`.
#[cold]
pub(in crate::memory) fn record_stream(address: u64, stream: &Stream) -> Result<()> {
    let mut is_own = false;
    let hook_owner = with(address, |block| {
        match &block.origin {
            Origin::Pluggable(allocator) if !allocator.is_managed() => {
                return Ok(Some(allocator.share()));
            }
            Origin::DriverPool { .. } if block.stream.is(stream) => {
                is_own = true;
                return Ok(None);
            }
            // Before the driver frees a block, it waits for all work of the block's device.
            Origin::Driver | Origin::Pluggable(_) if stream.device() == block.device => {
                return Ok(None);
            }
            _ => (),
        }
        if !block.uses.iter().any(|known| known.is(stream)) {
            let no_memory = |_| Error::OutOfHostMemory("the streams of a block");
            block.uses.try_reserve(1).map_err(no_memory)?;
            block.uses.push(HeldStream::new(stream));
        }
        Ok(None)
    })?;
    if is_own {
        log::write(
            Level::Warning,
            format_args!(
                "tcuda_record_stream names the stream on which {address:#x} was allocated: that is \
                 unnecessary and has no effect"
            ),
        );
    }
    if let Some(allocator) = hook_owner {
        allocator.record_stream(address, stream)?;
    }
    Ok(())
}

/// Moves a block of a driver's pool to the order of another stream of its device. False: the block
/// keeps its order.
#[cold]
pub(in crate::memory) fn hand_over(address: u64, stream: &Stream) -> Result<bool> {
    let before = with(address, |block| {
        let is_ordered = matches!(block.origin, Origin::DriverPool { captured: false });
        if !is_ordered || block.device != stream.device() || stream.is_per_thread() {
            return Ok(None);
        }
        block.uses.retain(|known| !known.is(stream));
        Ok(Some(std::mem::replace(&mut block.stream, HeldStream::new(stream))))
    })?;
    // The stream of before is released with no lock held.
    Ok(before.is_some())
}

/// Inserts a new block in the table and records it; on failure returns the block. If a block of a
/// graph was left at this address, replaces it and returns its bytes.
#[expect(clippy::result_large_err, reason = "the block goes back without host memory")]
fn insert(address: u64, mut block: Block, stack: u32) -> std::result::Result<u64, (Error, Block)> {
    IS_USED.store(true, Ordering::Relaxed);
    let mut blocks = part(address).lock();
    let is_cached =
        addresses::device_of(address).or_else(|| segmented::device_of(address)).is_some();
    let known = blocks.get(&address);
    // A block that a graph allocates and does not free ends with the graph, of which the driver
    // does not notify.
    let is_left = |known: &Block| {
        matches!(known.origin, Origin::DriverPool { captured: true })
            && matches!(block.origin, Origin::DriverPool { .. })
    };
    if is_cached || known.is_some_and(|known| !is_left(known)) {
        return Err((ADDRESS_IN_USE, block));
    }
    let left = known.map_or(0, |known| known.bytes);
    if let Some(known) = known {
        let actions = [Action::FreeRequested, Action::FreeCompleted];
        known.record(address, &actions, history::stack_of_uncached(known.stack.id()));
    }
    if blocks.try_reserve(1).is_err() {
        return Err((Error::OutOfHostMemory("the table of blocks"), block));
    }
    block.stack = stacks::pin(stack);
    let actions: &[Action] = match block.origin.is_counted() {
        true => &[Action::SegmentAlloc, Action::Alloc],
        false => &[Action::Alloc],
    };
    block.record(address, actions, stack);
    blocks.insert(address, block);
    Ok(left)
}

const ADDRESS_IN_USE: Error = Error::InvalidState(
    "the pluggable allocator gave an address that is in use already; it must give each once until \
     it is freed",
);

/// Removes a block that is about to be freed from the table, and records that.
fn take(address: u64) -> Result<Block> {
    let mut blocks = part(address).lock();
    let block = blocks.remove(&address).ok_or_else(|| unknown_pointer(address))?;
    let actions: &[Action] = match block.origin.is_counted() {
        true => &[Action::FreeRequested, Action::FreeCompleted, Action::SegmentFree],
        false => &[Action::FreeRequested, Action::FreeCompleted],
    };
    block.record(address, actions, history::stack_of_uncached(block.stack.id()));
    Ok(block)
}

/// Frees a block to its source.
#[cold]
pub(in crate::memory) fn free(gpus: &Gpus, address: u64) -> Result<()> {
    let block = take(address)?;
    let device = gpus.device(block.device)?;
    device.memory().release_uncached(gpus, device, address, block)
}

/// Frees all blocks, at shutdown: no other thread is inside, and no work is pending.
pub(crate) fn close(gpus: &Gpus) {
    let mut given_back = 0;
    for part in &TABLE {
        let blocks = std::mem::take(&mut *part.lock());
        for (address, block) in blocks {
            let Some(device) = gpus.devices.get(block.device as usize) else { continue };
            let give = || match &block.origin {
                // The graphs own these blocks.
                Origin::DriverPool { captured: true } => Ok(()),
                // cuMemFree also frees blocks of a memory pool.
                Origin::Driver | Origin::DriverPool { .. } => {
                    DriverSource.free(device, block.stream(), address, block.bytes)
                }
                Origin::Pluggable(allocator) => {
                    given_back += 1;
                    allocator.free(device, block.stream(), address, block.bytes)
                }
            };
            // Tries twice, so that a transient failure leaves nothing behind.
            let mut give = give;
            if give().is_err() {
                let _ = give();
            }
        }
    }
    if given_back > 0 {
        log::write(
            Level::Warning,
            format_args!(
                "tcuda_shutdown: gave {} back to a pluggable allocator",
                Count(given_back as usize, "block")
            ),
        );
    }
    IS_USED.store(false, Ordering::Relaxed);
}

impl DeviceMemory {
    /// The source of a new block of this device.
    pub(in crate::memory) fn origin(&self) -> Origin {
        match (self.server(), backend::pluggable()) {
            (Server::Pluggable, Some(allocator)) => Origin::Pluggable(allocator),
            (Server::DriverPool, _) => Origin::DriverPool { captured: false },
            _ => Origin::Driver,
        }
    }

    /// Allocates a block once, without fallbacks.
    pub(in crate::memory) fn try_uncached(
        &self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        bytes: u64,
        origin: &Origin,
    ) -> Result<u64> {
        let limit = &self.virtual_memory.limit;
        if !limit.claim(bytes) {
            return Err(Error::OverLimit);
        }
        let (device_ordinal, uses, stack) = (self.ordinal, Vec::new(), Pin::NONE);
        let given = {
            let _relaxed = Relaxed::enter(self.driver);
            match origin {
                Origin::Driver => DriverSource
                    .allocate(device, stream, bytes)
                    .map(|address| (address, Origin::Driver)),
                Origin::DriverPool { .. } => self
                    .allocate_in_pool(gpus, device, stream, bytes)
                    .map(|(address, captured)| (address, Origin::DriverPool { captured })),
                Origin::Pluggable(allocator) => allocator
                    .allocate(device, stream, bytes)
                    .map(|address| (address, Origin::Pluggable(allocator.share()))),
            }
        };
        let (address, origin) = given.inspect_err(|_| limit.release(bytes))?;
        let stream = HeldStream::new(stream);
        let block = Block { device: device_ordinal, bytes, origin, stream, uses, stack };
        let (is_counted, class, counters) =
            (block.origin.is_counted(), block.class(), block.counters(1));
        match insert(address, block, history::take_frames()) {
            Ok(left) => limit.release(left),
            Err((error, block)) => {
                // If the address is in use already, the block there stays.
                if matches!(error, Error::OutOfHostMemory(_)) {
                    let _ = self.release_to_source(gpus, device, address, &block);
                }
                limit.release(bytes);
                return Err(error);
            }
        }
        if is_counted {
            self.with_ledger(None, |stats| {
                stats.count_uncached(class, &counters);
                stats.ledger.count_reserved(class, bytes as i64, 1);
            });
        }
        Ok(address)
    }

    /// Frees a block that is no longer in the table.
    fn release_to_source(
        &self,
        gpus: &Gpus,
        device: &Device,
        address: u64,
        block: &Block,
    ) -> Result<()> {
        let _relaxed = Relaxed::enter(self.driver);
        let source: &dyn Source = match &block.origin {
            Origin::Driver => &DriverSource,
            Origin::DriverPool { .. } => return self.free_in_pool(gpus, device, address, block),
            Origin::Pluggable(allocator) => allocator,
        };
        // cuMemFree waits for the work of its own device only.
        block.uses().try_for_each(|stream| match stream_end::wait_for(gpus, stream) {
            // Freeing must not need host memory.
            Err(Error::OutOfHostMemory(_)) => gpus.device(stream.device())?.synchronize(),
            other => other,
        })?;
        source.free(device, block.stream(), address, block.bytes)
    }

    /// Frees a block that was removed from the table; on failure, puts it back.
    fn release_uncached(
        &self,
        gpus: &Gpus,
        device: &Device,
        address: u64,
        block: Block,
    ) -> Result<()> {
        let block = match self.postpone(gpus, address, block) {
            Ok(None) => return Ok(()),
            Ok(Some(block)) => block,
            Err((error, block)) => {
                put_back(address, block);
                return Err(error);
            }
        };
        self.release_now(gpus, device, address, block)
    }

    /// Frees a block that no capture postpones; on failure, puts it back.
    pub(in crate::memory) fn release_now(
        &self,
        gpus: &Gpus,
        device: &Device,
        address: u64,
        block: Block,
    ) -> Result<()> {
        let (class, bytes, counters) = (block.class(), block.bytes as i64, block.counters(-1));
        let is_counted = block.origin.is_counted();
        if is_counted {
            self.with_ledger(None, |stats| {
                stats.count_uncached(class, &counters);
                stats.ledger.count_reserved(class, -bytes, -1);
            });
        }
        if let Err(error) = self.release_to_source(gpus, device, address, &block) {
            if is_counted {
                self.with_ledger(None, |stats| {
                    stats.undo_uncached(class, &counters);
                    stats.ledger.undo_given_back(class, bytes, 1);
                });
            }
            put_back(address, block);
            return Err(error);
        }
        self.virtual_memory.limit.release(bytes as u64);
        Ok(())
    }
}

/// Puts a block back in the table after its source failed to free it.
pub(in crate::memory) fn put_back(address: u64, block: Block) {
    let stack = block.stack.id();
    if insert(address, block, stack).is_err() {
        log::write(
            Level::Error,
            format_args!("no host memory to remember {address:#x}, which the driver kept"),
        );
    }
}
