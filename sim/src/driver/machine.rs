//! The machine: its devices, what the host created on them, and the schedule of their work.

use super::address_space::{Access, Purpose, Reservation};
use super::adversary::Adversary;
use super::adversary_policy::Strategy;
use super::arguments::require;
use super::capture::Captures;
use super::config::{Config, ScheduleKind};
use super::context::{Context, has_own_default_stream, with_stack};
use super::environment;
use super::error::ConfigError;
use super::event::{Event, Recorded};
use super::exec::{Exec, Execs};
use super::graph::{Graph, Graphs, Node};
use super::graph_memory::GraphMemory;
use super::green::{Green, Greens, Scope};
use super::handles::Handles;
use super::hardware::{Device, Hardware};
use super::hooks;
use super::link::Links;
use super::load::Load;
use super::memory::Memory;
use super::module::{Function, Module, Modules, Owner};
use super::physical::{Allocation, Physical};
use super::pool::Pools;
use super::queue::{Action, Point, Stream};
use super::schedule::Schedule;
use super::sync::{lock, read, write};
use super::trace::Trace;
use super::unit::Block;
use super::user_object::UserObjects;
use super::visible::{self, Uuid};
use crate::base::code;
use crate::program::Program;
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUevent, CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUstream,
};
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

/// A machine: devices, what was created on them, and the address space that they share.
pub(super) struct Machine {
    pub(super) config: Config,
    /// Distinguishes this machine from earlier ones.
    pub(super) generation: u64,
    pub(super) initialised: AtomicBool,
    /// Why cuInit fails, if it does: no device is visible.
    pub(super) refusal: Result<(), i32>,
    /// A host that knows the library has powered it on, and not off.
    pub(super) is_hosted: AtomicBool,
    /// Programs use it through the exported functions: it stays on until the process ends.
    pub(super) is_shared: AtomicBool,
    pub(super) memory: Arc<Memory>,
    pub(super) hardware: Arc<Hardware>,
    pub(super) schedule: Arc<Schedule>,
    /// Physical memory handles.
    pub(super) handles: RwLock<Handles<Arc<Allocation>>>,
    /// For each of them: how often it was retained and not released.
    pub(super) retained: Mutex<BTreeMap<usize, usize>>,
    pub(super) graph_memory: Arc<GraphMemory>,
    pub(super) pools: Pools,
    pub(super) streams: RwLock<Handles<Arc<Stream>>>,
    pub(super) events: RwLock<Handles<Arc<Event>>>,
    pub(super) greens: Greens,
    pub(super) modules: RwLock<Modules>,
    pub(super) links: RwLock<Links>,
    pub(super) captures: Captures,
    pub(super) graphs: RwLock<Graphs>,
    pub(super) user_objects: UserObjects,
    pub(super) execs: Execs,
}

/// Counts of the objects that the host has created and not destroyed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LiveObjects {
    /// Retain counts of the primary contexts, added up, and contexts beside them. A green context
    /// counts as one retain.
    pub contexts: usize,
    /// Streams, without the default ones.
    pub streams: usize,
    /// Events.
    pub events: usize,
    /// Allocations by `cuMemAlloc`.
    pub allocations: usize,
    /// Allocations from pools; they outlive a context.
    pub pool_blocks: usize,
    /// Physical memory handles.
    pub handles: usize,
    /// Mapped ranges of virtual memory.
    pub mappings: usize,
    /// Reserved address ranges.
    pub reservations: usize,
    /// Pools, without the default ones.
    pub pools: usize,
    /// Modules, and libraries.
    pub modules: usize,
    /// Graphs and executable graphs.
    pub graphs: usize,
    /// Ranges of pinned host memory, allocated or registered.
    pub host_allocations: usize,
    /// Worker threads.
    pub workers: usize,
}

impl Machine {
    pub(super) fn new(config: Config) -> Result<Machine, ConfigError> {
        static GENERATION: AtomicU64 = AtomicU64::new(1);
        let seed = match config.schedule {
            ScheduleKind::Adversarial(seed) => Some(seed),
            ScheduleKind::Immediate | ScheduleKind::Threads => None,
        };
        let trace = config.trace.as_deref().map(Trace::open).transpose();
        let trace = trace.map_err(ConfigError::Trace)?;
        let strategy = Strategy::new(seed.unwrap_or(0));
        let visible = visible_devices(&config);
        let refusal = visible.as_ref().map(drop).map_err(|code| *code);
        let visible = visible.unwrap_or_default();
        let mut devices = Vec::with_capacity(visible.len());
        let mut physical = Vec::with_capacity(visible.len());
        for (index, ordinal) in visible.into_iter().enumerate() {
            let memory = Physical::new(index, config.memory, strategy.poison);
            physical.push(Arc::new(memory.map_err(no_memory)?));
            devices.push(Device {
                ordinal,
                context: Context::new(index),
                kernels: Load::default(),
                memory: Load::default(),
            });
        }
        let memory = Arc::new(Memory::new(physical));
        let hardware = Arc::new(Hardware::new(devices, Arc::clone(&memory), &config));
        let (of_adversary, late) = (Arc::clone(&hardware), config.late.clone());
        let adversary = Adversary::new(of_adversary, strategy, late, trace, seed.is_some());
        let pools = Pools::new(hardware.devices.len());
        let schedule = Schedule::new(config.schedule, Arc::clone(&hardware), adversary);
        let is_reported = config.destroyed;
        Ok(Machine {
            generation: GENERATION.fetch_add(1, Ordering::Relaxed),
            initialised: AtomicBool::new(false),
            refusal,
            is_hosted: AtomicBool::new(false),
            is_shared: AtomicBool::new(false),
            graph_memory: Arc::new(GraphMemory::new(&memory)),
            memory,
            hardware,
            schedule: Arc::new(schedule),
            pools,
            config,
            // Each table has its own kind of handle; kind 1 is used by contexts.
            streams: RwLock::new(Handles::reporting(2, "stream", is_reported)),
            events: RwLock::new(Handles::reporting(3, "event", is_reported)),
            greens: Greens::new(),
            handles: RwLock::new(Handles::new(4)),
            retained: Mutex::default(),
            modules: RwLock::new(Modules::new()),
            links: RwLock::new(Links::new(23)),
            captures: Captures::default(),
            graphs: RwLock::new(Graphs::new()),
            user_objects: UserObjects::new(),
            execs: Execs::new(),
        })
    }

    /// The context of a handle. A primary context may be inactive, another one not. The handle of a
    /// green context, destroyed or not, means the primary context.
    pub(super) fn context(&self, handle: CUcontext) -> Result<&Context, i32> {
        let context = self.known_context(handle)?;
        let is_usable = self.is_primary(context) || context.is_active();
        if is_usable { Ok(context) } else { Err(code::INVALID_CONTEXT) }
    }

    pub(super) fn is_primary(&self, context: &Context) -> bool {
        context.number < self.hardware.devices.len()
    }

    /// The context of a handle, destroyed or not.
    fn known_context(&self, handle: CUcontext) -> Result<&Context, i32> {
        Ok(self.known_scope(handle)?.context)
    }

    /// What the handle of a context means, destroyed or not.
    pub(super) fn known_scope(&self, handle: CUcontext) -> Result<Scope<'_>, i32> {
        let context = Context::number_of(handle).and_then(|number| self.hardware.context(number));
        if let Some(context) = context {
            return Ok(Scope { context, green: None });
        }
        let green = self.greens.of_context(handle.addr()).ok_or(code::INVALID_CONTEXT)?;
        let context = &self.hardware.devices[green.partition.part.device].context;
        Ok(Scope { context, green: Some(green) })
    }

    /// What the handle of a context means; an error if it is unusable.
    #[inline]
    pub(super) fn scope(&self, handle: CUcontext) -> Result<Scope<'_>, i32> {
        let scope = self.known_scope(handle)?;
        scope.check()?;
        require(scope.context.is_active(), code::CONTEXT_IS_DESTROYED)?;
        scope.context.check()?;
        Ok(scope)
    }

    /// The handle of the calling thread's current context.
    fn top_handle(&self) -> Result<Option<CUcontext>, i32> {
        let top = with_stack(self.generation, |stack| stack.last())?;
        Ok(top.filter(|handle| *handle != 0).map(ptr::without_provenance_mut))
    }

    /// The calling thread's current context, whatever its state.
    pub(super) fn top(&self) -> Result<Option<&Context>, i32> {
        self.top_handle()?.map(|handle| self.known_context(handle)).transpose()
    }

    /// The calling thread's current context; an error if it is unusable.
    #[inline]
    pub(super) fn current_scope(&self) -> Result<Scope<'_>, i32> {
        self.scope(self.top_handle()?.ok_or(code::INVALID_CONTEXT)?)
    }

    /// The calling thread's current context, the primary one if it is green; an error if it is
    /// unusable.
    #[inline]
    pub(super) fn current(&self) -> Result<&Context, i32> {
        Ok(self.current_scope()?.context)
    }

    /// Checks that the current context, if there is one, is usable.
    pub(super) fn usable(&self) -> Result<(), i32> {
        match self.top_handle()? {
            Some(handle) => self.scope(handle).map(drop),
            None => Ok(()),
        }
    }

    /// The device of an ordinal.
    pub(super) fn device(&self, device: CUdevice) -> Result<&Device, i32> {
        let index = usize::try_from(device).map_err(|_| code::INVALID_DEVICE)?;
        self.hardware.devices.get(index).ok_or(code::INVALID_DEVICE)
    }

    /// The device with an ordinal, if it is visible.
    pub(super) fn device_of(&self, ordinal: u64) -> Option<usize> {
        self.hardware.devices.iter().position(|device| device.ordinal as u64 == ordinal)
    }

    /// True if a device can access the memory of another.
    pub(super) fn can_access_peer(&self, device: usize, peer: usize) -> bool {
        let ordinal = |index: usize| self.hardware.devices[index].ordinal;
        self.config.can_access_peer(ordinal(device), ordinal(peer))
    }

    /// The stream of a handle. The fixed handles mean streams of the current context. Other streams
    /// have a context of their own and need no current one, as with the driver (580.159).
    #[inline]
    pub(super) fn stream(&self, stream: CUstream) -> Result<Arc<Stream>, i32> {
        match stream.addr() {
            0 if has_own_default_stream() => self.current_scope()?.per_thread(),
            0 | LEGACY => Ok(Arc::clone(self.current_scope()?.default_stream())),
            PER_THREAD => self.current_scope()?.per_thread(),
            handle => {
                let stream = read(&self.streams).find(handle).map(Arc::clone)?;
                self.hardware.context_of(&stream).check()?;
                Ok(stream)
            }
        }
    }

    /// The event of a handle.
    #[inline]
    pub(super) fn event(&self, event: CUevent) -> Result<Arc<Event>, i32> {
        read(&self.events).find(event.addr()).map(Arc::clone)
    }

    /// The function of a handle. The handle of a library's kernel means its function on a device.
    pub(super) fn function(
        &self,
        function: CUfunction,
        place: impl FnOnce() -> Result<Owner, i32>,
    ) -> Result<Function, i32> {
        let handle = self.function_handle(function, place)?;
        read(&self.modules).function(handle).ok_or(code::INVALID_HANDLE)
    }

    /// The handle of the function that a handle of a function or of a library's kernel means.
    pub(super) fn function_handle(
        &self,
        function: CUfunction,
        place: impl FnOnce() -> Result<Owner, i32>,
    ) -> Result<usize, i32> {
        let handle = function.addr();
        let modules = read(&self.modules);
        if modules.functions.get(handle).is_some() {
            return Ok(handle);
        }
        require(modules.kernels.get(handle).is_some(), code::INVALID_HANDLE)?;
        drop(modules);
        let place = place()?;
        write(&self.modules).function_of(&self.memory, handle, place)
    }

    /// The graph of a handle.
    pub(super) fn graph(&self, graph: CUgraph) -> Result<Arc<Graph>, i32> {
        read(&self.graphs).graphs.get(graph.addr()).map(Arc::clone).ok_or(code::INVALID_VALUE)
    }

    /// The graph of a node's handle, and the node.
    pub(super) fn node(&self, node: CUgraphNode) -> Result<(Arc<Graph>, Arc<Node>), i32> {
        Graphs::node(&self.graphs, node.addr()).ok_or(code::INVALID_VALUE)
    }

    /// The executable graph of a handle.
    pub(super) fn exec(&self, exec: CUgraphExec) -> Result<Arc<Exec>, i32> {
        read(&self.execs.table).get(exec.addr()).map(Arc::clone).ok_or(code::INVALID_VALUE)
    }

    /// Queues an operation, or records it if the stream is captured. Returns its position in the
    /// stream.
    pub(super) fn submit(
        &self,
        stream: &Arc<Stream>,
        waits: Vec<Point>,
        action: Action,
    ) -> Result<Point, i32> {
        match self.captures.divert(&self.graphs, stream, action)? {
            Some(action) => self.schedule.submit(stream, waits, action),
            // Recorded work does not run now: position 0 is already reached.
            None => Ok(Point { stream: Arc::clone(stream), position: 0 }),
        }
    }

    /// Queues the record of an event on a stream.
    pub(super) fn record(
        &self,
        event: &Event,
        stream: &Arc<Stream>,
        waits: Vec<Point>,
    ) -> Result<Point, i32> {
        let mark = event.new_mark(stream);
        let submitted = self.submit(stream, waits, Action::Record(Arc::clone(&mark)));
        if let (Err(_), Some((shared, number))) = (&submitted, &mark.shared) {
            shared.forget(*number);
        }
        let point = submitted?;
        event.set(Recorded::At(mark));
        Ok(point)
    }

    /// Waits on the host, and returns the error of the stream's device, if any.
    pub(super) fn wait(&self, point: &Point) -> Result<(), i32> {
        self.schedule.reach(std::slice::from_ref(point));
        self.hardware.context_of(&point.stream).check()?;
        self.release_idle_memory();
        Ok(())
    }

    /// At a synchronisation, graphs and pools release memory that no work uses.
    pub(super) fn release_idle_memory(&self) {
        if self.execs.are_retired() {
            self.execs.drop_finished();
        }
        if self.pools.are_in_use() {
            self.pools.release_idle(&self.memory);
        }
    }

    /// Waits until every stream of every device is idle.
    pub(super) fn drain(&self) {
        self.schedule.drain(self.hardware.contexts());
    }

    /// Ends a green context. Its queued work still runs, and its streams cannot be used any more.
    /// False if it was destroyed before.
    pub(super) fn end_green(&self, green: &Green) -> bool {
        if !self.greens.note_destroyed(green) {
            return false;
        }
        self.captures.forget_streams(&self.graphs, |stream| green.owns(stream));
        for stream in write(&self.streams).retire(|stream| !green.owns(stream)) {
            stream.destroy();
        }
        green.default.destroy();
        true
    }

    /// Destroys the objects of a context that ended.
    pub(super) fn destroy_objects_of(&self, context: &Context) {
        let number = context.number;
        self.captures.forget_context(&self.graphs, number);
        for stream in write(&self.streams).retire(|stream| stream.context != number) {
            stream.destroy();
        }
        write(&self.events).retire(|event| event.context != number);
        write(&self.modules).clear(|owner| owner == number);
        self.memory.forget_context(number);
        if self.is_primary(context) {
            self.execs.forget_device(context.device);
            self.memory.forget_device(context.device);
        }
    }

    /// Counts the live objects.
    pub(super) fn live_objects(&self) -> LiveObjects {
        let (mappings, reservations, allocations) = read(&self.memory.space).counts();
        LiveObjects {
            contexts: self.hardware.contexts().map(Context::live).sum(),
            streams: read(&self.streams).len(),
            events: read(&self.events).len(),
            allocations,
            pool_blocks: self.pools.blocks(),
            handles: read(&self.handles).len() + lock(&self.retained).values().sum::<usize>(),
            mappings,
            reservations,
            pools: self.pools.len(),
            modules: read(&self.modules).count(),
            graphs: read(&self.graphs).len() + read(&self.execs.table).len(),
            host_allocations: read(&self.memory.host).len(),
            workers: self.schedule.workers(),
        }
    }

    /// Notes that the host can read what kernels write to the managed variables of a program.
    pub(super) fn share_variables(&self, program: &Program) {
        if program.variables.iter().any(|variable| variable.is_managed) {
            self.schedule.share_memory();
        }
    }

    /// Passes the configured duration of a query.
    pub(super) fn spend_query_time(&self) {
        if let Some(nanoseconds) = self.config.query_time {
            hooks::pass(nanoseconds);
        }
    }

    /// The reservation that contains an address, and the block of `cuMemAlloc` or of a pool there.
    pub(super) fn block(&self, address: usize) -> Option<(Reservation, Option<(usize, Block)>)> {
        let space = read(&self.memory.space);
        let (_, reservation) = space.reservation(address)?;
        let block = match reservation.purpose {
            Purpose::Allocation(_) => space.blocks.around(address),
            Purpose::Virtual => None,
            Purpose::Module => {
                let id = space.mapping(address)?.1.allocation.id;
                // A module that is loaded takes these two locks in the opposite order.
                drop(space);
                let modules = read(&self.modules);
                let around = |module: &Module| module.variable_around(address as u64);
                let found = modules.modules.iter().find_map(around);
                found.map(|(start, bytes)| (start as usize, Block { bytes, id }))
            }
            Purpose::Managed(_, bytes) => {
                let (start, mapping) = space.mapping(address)?;
                let id = mapping.allocation.id;
                (address - start < bytes).then_some((start, Block { bytes, id }))
            }
            Purpose::Imported(_, start, bytes) => {
                let (_, mapping) = space.mapping(address)?;
                let is_inside = address.wrapping_sub(start) < bytes;
                is_inside.then_some((start, Block { bytes, id: mapping.allocation.id }))
            }
            Purpose::Pool => {
                let (_, mapping) = space.mapping(address)?;
                let Access::Pool(access) = &mapping.access else { return None };
                let (access, id) = (Arc::clone(access), mapping.allocation.id);
                // A growing pool takes these two locks in the opposite order.
                drop(space);
                let of_graph = || {
                    let (start, bytes) = self.graph_memory.around(address)?;
                    Some((start, Block { bytes, id }))
                };
                self.pools.of(&access).and_then(|pool| pool.block(address)).or_else(of_graph)
            }
        };
        Some((reservation, block))
    }
}

fn no_memory(code: i32) -> ConfigError {
    if code == libc::EFBIG { ConfigError::FileLimit } else { ConfigError::Host(code) }
}

/// The ordinals of the devices that the environment makes visible.
fn visible_devices(config: &Config) -> Result<Vec<usize>, i32> {
    let uuids: Vec<Uuid> = (0..config.devices).map(uuid).collect();
    visible::devices(environment::text(visible::NAME).as_deref(), &uuids)
}

/// The UUID of a device.
pub(super) fn uuid(ordinal: usize) -> Uuid {
    // The first part tells the devices apart, so that it alone names one.
    let mut uuid = *b"sim\0ulated GPU\0\0";
    uuid[3] = ordinal as u8;
    uuid
}
