//! The simulated machine: fills the same table of driver calls without a GPU.
//!
//! One machine is on at a time ([`power_on`], [`power_off`]). Handles are numbers that are looked
//! up in tables. Device addresses are PROT_NONE for the host and are looked up as well. So any
//! argument returns the CUresult that a GPU would return and never crashes. Work is queued on
//! streams ([`queue`]) and run by a schedule ([`schedule`]).

mod address_space;
mod adversary;
mod adversary_policy;
mod arguments;
mod capture;
mod capture_calls;
mod compiled;
mod compiler;
mod config;
mod context;
mod copy;
mod device;
mod event;
mod graph;
mod graph_calls;
mod graph_memory;
mod handles;
mod helper;
mod host_memory;
mod ipc;
mod journal;
mod kernel;
mod lanes;
mod leaks;
mod load;
mod memory;
mod memory_calls;
mod module;
mod module_calls;
mod parameters;
mod physical;
mod pointer;
mod pool;
mod ptx;
mod queue;
mod replay;
mod schedule;
mod segment;
mod shared;
mod shared_event;
mod slots;
mod stream;
mod sync;
mod table;
#[cfg(test)]
mod tests;
mod thread_scheduler;
mod thread_state;
mod trace;
mod transfer;
mod unit;
mod virtual_memory;
mod worker;

pub use crate::base::error::SimulatorError as ConfigError;
pub use config::{Config, Leaks, Peers, ScheduleKind};
pub use kernel::{KernelFn, Launch, register_kernel};
pub use table::table;

use crate::base::progress;
use crate::base::reserve;
use crate::driver::telemetry::Rates;
use crate::driver::{SimulatedBackend, Table, code};
use crate::observe::turn;
use address_space::{Access, PoolAccess, Purpose, Reservation};
use adversary::Adversary;
use arguments::require;
use capture::Captures;
use context::Context;
use device::Device;
use event::Event;
use graph::Graphs;
use graph_memory::GraphMemory;
use handles::Handles;
use load::Load;
use memory::Memory;
use module::Modules;
use physical::{Allocation, Physical};
use pool::Pool;
use queue::Stream;
use replay::Exec;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;
use sync::{lock, read, write};
use unit::Block;
use worker::Worker;

/// The machine that is on.
static MACHINE: RwLock<Option<Arc<Machine>>> = RwLock::new(None);

/// A machine: devices, what was created on them, and the address space that they share.
struct Machine {
    config: Config,
    /// Distinguishes this machine from earlier ones.
    generation: u64,
    start: Instant,
    initialised: AtomicBool,
    devices: Vec<Device>,
    memory: Arc<Memory>,
    handles: RwLock<Handles<Arc<Allocation>>>,
    streams: RwLock<Handles<Arc<Stream>>>,
    events: RwLock<Handles<Arc<Event>>>,
    modules: RwLock<Modules>,
    captures: Captures,
    graphs: RwLock<Graphs>,
    graph_memory: GraphMemory,
    /// Destroyed executable graphs with a launch that has not finished.
    retired_execs: Mutex<Vec<Arc<Exec>>>,
    pools: RwLock<Handles<Arc<Pool>>>,
    /// Destroyed pools with blocks that the host or unfinished work still uses.
    retired_pools: Mutex<Vec<Arc<Pool>>>,
    /// True once any pool has allocated memory.
    pools_in_use: AtomicBool,
    workers: Mutex<Vec<Worker>>,
    /// The adversarial schedule and its queues.
    adversary: Adversary,
}

/// Counts of the objects that the host has created and not destroyed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveObjects {
    /// Retain counts of the primary contexts, added up.
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
    /// Modules.
    pub modules: usize,
    /// Graphs and executable graphs.
    pub graphs: usize,
    /// Ranges of pinned host memory, allocated or registered.
    pub host_allocations: usize,
    /// Worker threads.
    pub workers: usize,
}

impl Machine {
    fn new(config: Config) -> Result<Machine, ConfigError> {
        static GENERATION: AtomicU64 = AtomicU64::new(1);
        let seed = match config.schedule {
            ScheduleKind::Adversarial(seed) => Some(seed),
            ScheduleKind::Immediate | ScheduleKind::Threads => None,
        };
        let adversary = Adversary::new(seed, config.late.clone(), config.trace.as_deref())?;
        let poison = adversary.poison();
        let mut pools = Handles::new(6);
        let mut devices = Vec::with_capacity(config.devices);
        let mut physical = Vec::with_capacity(config.devices);
        for index in 0..config.devices {
            let memory = Physical::new(index, config.memory, poison).map_err(no_memory)?;
            physical.push(Arc::new(memory));
            devices.push(Device {
                context: Context::new(index),
                default_pool: Pool::insert(&mut pools, index, true),
                kernels: Load::default(),
                memory: Load::default(),
            });
        }
        Ok(Machine {
            adversary,
            config,
            generation: GENERATION.fetch_add(1, Ordering::Relaxed),
            start: Instant::now(),
            initialised: AtomicBool::new(false),
            devices,
            memory: Arc::new(Memory::new(physical)),
            // Each table has its own kind of handle; kind 1 is used by contexts.
            streams: RwLock::new(Handles::new(2)),
            events: RwLock::new(Handles::new(3)),
            handles: RwLock::new(Handles::new(4)),
            modules: RwLock::new(Modules { modules: Handles::new(5), functions: Handles::new(7) }),
            captures: Captures::default(),
            graphs: RwLock::new(Graphs::new()),
            graph_memory: GraphMemory::default(),
            retired_execs: Mutex::default(),
            pools: RwLock::new(pools),
            retired_pools: Mutex::default(),
            pools_in_use: AtomicBool::new(false),
            workers: Mutex::default(),
        })
    }

    /// Waits until every stream of every device is idle.
    fn drain(self: &Arc<Self>) {
        let contexts = self.devices.iter().map(|device| &device.context);
        schedule::drain(self, contexts);
    }

    /// Destroys the objects of a context whose retain count is 0.
    fn destroy_objects_of(&self, context: &Context) {
        let device = context.device;
        capture::forget_device(self, device);
        replay::forget_device(self, device);
        for stream in write(&self.streams).retire(|stream| stream.device != device) {
            stream.destroy();
        }
        write(&self.events).retire(|event| event.device != device);
        write(&self.modules).clear(|owner| owner == device);
        self.memory.forget_device(device);
    }

    /// The pool with this access, destroyed or not; `None` if its last segment is freed.
    fn pool_of(&self, access: &Arc<PoolAccess>) -> Option<Arc<Pool>> {
        let pools = read(&self.pools);
        let retired = lock(&self.retired_pools);
        let found = pools.iter().chain(&*retired).find(|pool| Arc::ptr_eq(&pool.access, access));
        found.map(Arc::clone)
    }

    fn live_objects(&self) -> LiveObjects {
        let (mappings, reservations, allocations) = read(&self.memory.space).counts();
        let blocks = |pools: &mut dyn Iterator<Item = &Arc<Pool>>| -> usize {
            pools.map(|pool| pool.blocks()).sum()
        };
        let pool_blocks =
            blocks(&mut read(&self.pools).iter()) + blocks(&mut lock(&self.retired_pools).iter());
        LiveObjects {
            contexts: self.devices.iter().map(|device| device.context.retain_count()).sum(),
            streams: read(&self.streams).len(),
            events: read(&self.events).len(),
            allocations,
            pool_blocks,
            handles: read(&self.handles).len(),
            mappings,
            reservations,
            pools: read(&self.pools).len() - self.devices.len(),
            modules: read(&self.modules).modules.len(),
            graphs: read(&self.graphs).len(),
            host_allocations: read(&self.memory.host).len(),
            workers: lock(&self.workers).iter().filter(|worker| !worker.is_over()).count(),
        }
    }
}

impl Machine {
    /// Spins for the configured duration of a query.
    fn spend_query_time(&self) {
        let Some(nanoseconds) = self.config.query_time else { return };
        let began = progress::now();
        while progress::now().wrapping_sub(began) < nanoseconds * progress::MOMENT / 1000 {}
    }
}

impl Machine {
    /// The reservation that contains an address, and the block of `cuMemAlloc` or of a pool there.
    pub(super) fn block(&self, address: usize) -> Option<(Reservation, Option<(usize, Block)>)> {
        let space = read(&self.memory.space);
        let (_, reservation) = space.reservation(address)?;
        let block = match reservation.purpose {
            Purpose::Allocation(_) => space.blocks.around(address),
            Purpose::Virtual => None,
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
                    let (start, bytes) = graph_memory::around(self, address)?;
                    Some((start, Block { bytes, id }))
                };
                self.pool_of(&access).and_then(|pool| pool.block(address)).or_else(of_graph)
            }
        };
        Some((reservation, block))
    }
}

fn no_memory(code: i32) -> ConfigError {
    if code == libc::EFBIG { ConfigError::FileLimit } else { ConfigError::Host(code) }
}

/// Powers the machine on with options such as "devices=4,memory=16GiB,schedule=threads". Returns
/// the table of its calls.
pub fn power_on(options: &str) -> Result<Table, ConfigError> {
    let _reserve = reserve::hold().ok_or(ConfigError::Host(libc::ENOMEM))?;
    let config = Config::parse(options)?;
    let mut machine = write(&MACHINE);
    if machine.is_some() {
        return Err(ConfigError::AlreadyOn);
    }
    let keeps_turns = matches!(config.schedule, ScheduleKind::Adversarial(_));
    *machine = Some(Arc::new(Machine::new(config)?));
    turn::install(keeps_turns.then_some(&KEEPER));
    Ok(table())
}

/// Finishes all queued work and frees everything. Afterwards calls return `DEINITIALIZED` until
/// [`power_on`]. Does nothing when the machine is off, or inside a callback.
pub fn power_off() {
    if schedule::in_callback() {
        return;
    }
    let _reserve = reserve::hold();
    let Some(machine) = write(&MACHINE).take() else { return };
    turn::install(None);
    machine.drain();
    machine.report_leaks();
    for device in &machine.devices {
        device.context.streams().iter().for_each(|stream| stream.close());
    }
    machine.adversary.close();
    let workers = std::mem::take(&mut *lock(&machine.workers));
    workers.into_iter().for_each(Worker::join);
}

/// What the machine provides besides its table.
pub static BACKEND: SimulatedBackend = SimulatedBackend {
    compile: compiler::compile,
    compiler_texts: compiler::texts,
    include_paths: compiler::include_paths,
    function: table::function,
    uses_clock,
};

/// True if the machine's queries take a configured time, so that callers pace queries by the clock.
fn uses_clock() -> bool {
    read(&MACHINE).as_ref().is_some_and(|machine| machine.config.query_time.is_some())
}

/// Counts the live objects; all zero when the machine is off.
pub fn live_objects() -> LiveObjects {
    match &*read(&MACHINE) {
        Some(machine) => machine.live_objects(),
        None => LiveObjects::default(),
    }
}

/// Utilisation of a device over the last second; 0 when the machine is off.
pub fn rates(device: i32) -> Rates {
    let Some(machine) = machine() else { return Rates::default() };
    let device = usize::try_from(device).ok().and_then(|device| machine.devices.get(device));
    let Some(device) = device else { return Rates::default() };
    let now = schedule::now(machine.start);
    Rates { kernels: device.kernels.percent(now), memory: device.memory.percent(now) }
}

/// Serialises tests, since there is one machine. Powers off a machine that an earlier test left on.
#[cfg(test)]
pub(crate) fn test_lock() -> std::sync::MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    let guard = lock(&LOCK);
    power_off();
    guard
}

/// The machine that is on.
#[inline]
fn machine() -> Option<Arc<Machine>> {
    read(&MACHINE).as_ref().map(Arc::clone)
}

/// The hooks that the library's calls run while an adversarial machine is on.
static KEEPER: turn::Scheduler = turn::Scheduler { call: meet, yield_turn: give_way };

fn meet() {
    #[cfg(any(test, feature = "host_faults"))]
    let _in_driver = crate::base::host_faults::in_driver();
    // Without memory for the reserve, threads are not scheduled.
    let Some(_reserve) = reserve::hold() else { return };
    // A callback is part of an operation: its calls are not scheduled.
    if let Some(machine) = machine().filter(|_| !schedule::in_callback()) {
        machine.adversary.call();
    }
}

fn give_way() -> bool {
    #[cfg(any(test, feature = "host_faults"))]
    let _in_driver = crate::base::host_faults::in_driver();
    let Some(_reserve) = reserve::hold() else { return false };
    machine().is_some_and(|machine| machine.adversary.give_way())
}

/// The wrapper of every call that works before cuInit.
#[inline]
fn entry_before_init(body: impl FnOnce(&Arc<Machine>) -> Result<(), i32>) -> c_int {
    let call = || {
        if schedule::in_callback() {
            return Err(code::NOT_PERMITTED);
        }
        // From here on no small host allocation can fail.
        let _reserve = reserve::hold().ok_or(code::OUT_OF_MEMORY)?;
        let machine = machine().ok_or(code::DEINITIALIZED)?;
        if let ScheduleKind::Adversarial(_) = machine.config.schedule {
            machine.adversary.call();
        }
        body(&machine)
    };
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => code::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => code::UNKNOWN,
    }
}

/// The wrapper of every other call: catches panics, and keeps the machine alive during the call.
#[inline]
fn entry(body: impl FnOnce(&Arc<Machine>) -> Result<(), i32>) -> c_int {
    entry_before_init(|machine| {
        require(machine.initialised.load(Ordering::Acquire), code::NOT_INITIALIZED)?;
        body(machine)
    })
}

/// The wrapper of a call that validates an argument before it checks that the driver is
/// initialised.
#[inline]
fn entry_checked(
    check: Result<(), i32>,
    body: impl FnOnce(&Arc<Machine>) -> Result<(), i32>,
) -> c_int {
    entry_before_init(|machine| {
        check?;
        require(machine.initialised.load(Ordering::Acquire), code::NOT_INITIALIZED)?;
        body(machine)
    })
}
