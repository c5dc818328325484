//! Green contexts: parts of the multiprocessors of a device, with streams. Everything else that is
//! created while one is current belongs to the primary context of the device.

use super::arguments::require;
use super::context::Context;
use super::handles::Handles;
use super::partition::{Part, Partition};
use super::physical::next_id;
use super::queue::{Kind, Stream};
use super::resource::Workqueue;
use super::sync::{lock, read, write};
use crate::base::code;
use cudarc::driver::sys::{CUcontext, CUdevResourceDesc, CUgreenCtx};
use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// Kinds of handles: green contexts, the same as contexts, and descriptions of resources.
const GREEN: usize = 26;
const CONTEXT: usize = 27;
const DESCRIPTION: usize = 28;
const SHIFT: u32 = 36;
const STRIDE: usize = 64;

/// Number of destroyed green contexts whose handles mean no other one.
const MOST_DESTROYED: usize = 1024;
/// Number of descriptions, which are never destroyed; equal ones are one.
const MOST_DESCRIPTIONS: usize = 1 << 16;

/// A green context.
pub(super) struct Green {
    pub(super) partition: Arc<Partition>,
    pub(super) workqueue: Workqueue,
    /// Its default stream.
    pub(super) default: Arc<Stream>,
    is_alive: AtomicBool,
}

impl Green {
    fn new(handle: usize, context: &Context, described: &Description) -> Green {
        let id = next_id();
        let mut workqueue = described.workqueue;
        if workqueue.id == 0 {
            workqueue.id = id;
        }
        let partition = Arc::new(Partition::new(id, handle, described.part));
        let default = new_stream(context, &partition, 0);
        Green { partition, workqueue, default, is_alive: AtomicBool::new(true) }
    }

    pub(super) fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::Acquire)
    }

    /// The error of a destroyed one.
    pub(super) fn check(&self) -> Result<(), i32> {
        require(self.is_alive(), code::CONTEXT_IS_DESTROYED)
    }

    pub(super) fn owns(&self, stream: &Stream) -> bool {
        stream.green_id() == Some(self.partition.id)
    }
}

/// A new stream of a green context. All are independent of each other and of the legacy stream,
/// whatever the host requests (580.159).
fn new_stream(context: &Context, partition: &Arc<Partition>, priority: i32) -> Arc<Stream> {
    let partition = Some(Arc::clone(partition));
    let stream = Stream::within(context.place(), partition, Kind::NonBlocking, priority);
    context.add_stream(&stream);
    stream
}

/// The context that the handle of a green context means.
pub(super) fn context_of(green: usize) -> CUcontext {
    ptr::without_provenance_mut(green + ((CONTEXT - GREEN) << SHIFT))
}

/// The streams that a context has: of a green one its own, of another one all.
pub(super) struct Scope<'a> {
    pub(super) context: &'a Context,
    pub(super) green: Option<Arc<Green>>,
}

impl Scope<'_> {
    pub(super) fn covers(&self, stream: &Stream) -> bool {
        let is_here = stream.context == self.context.number;
        is_here && self.green.as_ref().is_none_or(|green| green.owns(stream))
    }

    pub(super) fn streams(&self) -> Vec<Arc<Stream>> {
        let mut streams = self.context.streams();
        streams.retain(|stream| self.covers(stream));
        streams
    }

    /// The error of a destroyed green context.
    pub(super) fn check(&self) -> Result<(), i32> {
        self.green.as_ref().map_or(Ok(()), |green| green.check())
    }

    /// True if a stream is one of the context itself, not of a green context of it.
    pub(super) fn owns(&self, stream: &Stream) -> bool {
        stream.context == self.context.number && stream.green_id() == self.green_id()
    }

    /// Its default stream.
    pub(super) fn default_stream(&self) -> &Arc<Stream> {
        self.green.as_ref().map_or(&self.context.legacy, |green| &green.default)
    }

    /// The calling thread's default stream, which a green context does not have (580.159).
    pub(super) fn per_thread(&self) -> Result<Arc<Stream>, i32> {
        require(self.green.is_none(), code::INVALID_HANDLE)?;
        Ok(self.context.per_thread())
    }

    /// A new stream in it.
    pub(super) fn stream(&self, kind: Kind, priority: i32) -> Arc<Stream> {
        match &self.green {
            Some(green) => new_stream(self.context, &green.partition, priority),
            None => {
                let (context, device) = self.context.place();
                let stream = Stream::of(context, device, kind, priority);
                self.context.add_stream(&stream);
                stream
            }
        }
    }

    /// The partition of the green context, if it is one.
    pub(super) fn partition(&self) -> Option<Arc<Partition>> {
        self.green.as_ref().map(|green| Arc::clone(&green.partition))
    }

    /// The ID of the green context, if it is one.
    pub(super) fn green_id(&self) -> Option<u64> {
        self.green.as_ref().map(|green| green.partition.id)
    }
}

/// What a green context is to have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Description {
    pub(super) part: Part,
    pub(super) workqueue: Workqueue,
}

/// The green contexts, and the descriptions of resources.
pub(super) struct Greens {
    table: RwLock<Table>,
    descriptions: Mutex<Vec<Description>>,
}

struct Table {
    handles: Handles<Arc<Green>>,
    /// Handles of destroyed ones, the oldest first.
    destroyed: VecDeque<usize>,
}

impl Greens {
    pub(super) fn new() -> Greens {
        let table = Table { handles: Handles::new(GREEN), destroyed: VecDeque::new() };
        Greens { table: RwLock::new(table), descriptions: Mutex::default() }
    }

    /// Creates a green context of a primary context.
    pub(super) fn create(&self, context: &Context, described: &Description) -> usize {
        let mut table = write(&self.table);
        let new = |handle| Arc::new(Green::new(handle, context, described));
        table.handles.insert_with(new)
    }

    /// The green context of a handle, destroyed or not.
    fn known(&self, handle: usize) -> Option<Arc<Green>> {
        read(&self.table).handles.get(handle).map(Arc::clone)
    }

    /// The green context of a handle.
    pub(super) fn find(&self, handle: CUgreenCtx) -> Result<Arc<Green>, i32> {
        let green = self.known(handle.addr()).ok_or(code::INVALID_CONTEXT)?;
        green.check()?;
        Ok(green)
    }

    /// The green context that the handle of a context means, destroyed or not.
    #[inline]
    pub(super) fn of_context(&self, context: usize) -> Option<Arc<Green>> {
        let is_green = context >> SHIFT == CONTEXT;
        is_green.then(|| self.known(context - ((CONTEXT - GREEN) << SHIFT))).flatten()
    }

    /// Notes that a green context is destroyed. False if it was before.
    pub(super) fn note_destroyed(&self, green: &Green) -> bool {
        if !green.is_alive.swap(false, Ordering::AcqRel) {
            return false;
        }
        let mut table = write(&self.table);
        table.destroyed.push_back(green.partition.green);
        let surplus = table.destroyed.len().saturating_sub(MOST_DESTROYED);
        for _ in 0..surplus {
            let oldest = table.destroyed.pop_front();
            oldest.and_then(|handle| table.handles.remove(handle));
        }
        true
    }

    /// Those of a device that are not destroyed.
    pub(super) fn of_device(&self, device: usize) -> Vec<Arc<Green>> {
        let table = read(&self.table);
        let is_there =
            |green: &&Arc<Green>| green.is_alive() && green.partition.part.device == device;
        table.handles.iter().filter(is_there).cloned().collect()
    }

    /// Number of those that are not destroyed.
    pub(super) fn len(&self) -> usize {
        let table = read(&self.table);
        table.handles.len() - table.destroyed.len()
    }

    /// The handle of a description.
    pub(super) fn describe(&self, description: Description) -> Result<CUdevResourceDesc, i32> {
        let mut all = lock(&self.descriptions);
        let index = all.iter().position(|known| *known == description).unwrap_or(all.len());
        if index == all.len() {
            require(index < MOST_DESCRIPTIONS, code::OUT_OF_MEMORY)?;
            all.push(description);
        }
        Ok(ptr::without_provenance_mut((DESCRIPTION << SHIFT) + index * STRIDE))
    }

    pub(super) fn description(&self, handle: CUdevResourceDesc) -> Option<Description> {
        let distance = handle.addr().checked_sub(DESCRIPTION << SHIFT)?;
        let index = (distance % STRIDE == 0).then_some(distance / STRIDE)?;
        lock(&self.descriptions).get(index).copied()
    }
}
