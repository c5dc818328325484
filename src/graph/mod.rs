//! Graphs: captured work that can be launched repeatedly.
//!
//! `memory/pools/active_captures.rs` lists captures and routes their allocations to their pools.
//! [`capture`] begins and ends them. [`reclamation`] releases what a graph held. Each graph has its
//! own lock. No lock that an allocation needs is taken under it, so that replays do not block
//! allocations.
//!
//! **Memory.** An allocation on a stream of a capture comes from the graph's private pool, on any
//! thread. While a capture is active, an allocation on another stream queries the driver whether
//! that stream has joined it. A thread's own pool and a capture nest: the later one counts, and the
//! graph keeps both pools. Memory of a destroyed graph is reused only after the last launch, which
//! may have been on another stream than the capture: `memory/device/graph_launches.rs` orders the
//! streams. A captured stream cannot tell where its launches end, so what such a graph held stays
//! until the next graph is destroyed or the cache is emptied.
//!
//! **Polling and captures.** The allocator holds a stream's `capture` lock while it polls the
//! stream or records an event on it. A capture of this library takes the same lock to begin, so
//! neither sees the other halfway.
//!
//! **Annotations** are texts on captured nodes; [`data`] shows them with the nodes and edges.
//!
//! **Conditional nodes** are captured as [`conditional`] says.
//!
//! **Hooks** of the host run at the steps of a graph's life, with no lock held: [`hooks`].
//!
//! **Host functions** are counted by the captures, templates and executables that contain them, and
//! by the calls that launches will make. The driver gets numbers, so a launch that the library does
//! not know of finds its function or nothing.

pub mod annotations;
pub mod callable;
mod capture;
mod conditional;
pub mod data;
pub mod hooks;
mod reclamation;
pub mod static_buffers;
pub(crate) mod unreleased;

use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::shared::Shared;
use crate::base::waiting;
use crate::driver::sys::{
    CUgraph, CUgraphExec, CUgraphExecUpdateResultInfo, CUgraphNode, CUstreamCaptureStatus,
};
use crate::driver::{CudaError, Driver};
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::gpu::sanitizer_reports;
use crate::gpu::stream::Stream;
pub use crate::graph::conditional::Condition;
pub use crate::graph::reclamation::Retained;
use crate::graph::reclamation::{Content, GraphResources};
use crate::memory::arena::pool::Pool;
use crate::memory::pools::mem_pool::MemPool;
use crate::random::capture::Registration;
use crate::random::generator::Generator;
use crate::sanitizer;
use annotations::Annotations;
use capture::Capture;
use data::Format;
use hooks::Hooks;
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH` and `_USE_NODE_PRIORITY`, as in PyTorch.
const INSTANTIATE_FLAGS: u64 = 1 | 8;

/// `CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE`.
const VERBOSE: u32 = 1;

/// A generator that a graph uses, and by how much a replay advances it.
struct Registered {
    generator: Registration,
    increment: u64,
}

/// Held while a template is read or destroyed: an update reads the template of another graph.
static TEMPLATES: Mutex<()> = Mutex::new(Rank::TEMPLATES, ());

/// The phase of the life of a graph.
enum Phase {
    Empty,
    Capturing(Capture),
    Captured,
}

struct GraphState {
    phase: Phase,
    device: i32,
    /// A `CUgraph`, if the host wants to keep it; 0: none.
    template: usize,
    /// A `CUgraphExec`; 0: none.
    exec: usize,
    /// The template has conditional nodes.
    is_conditional: bool,
    /// The driver that made both.
    driver: Option<&'static Driver>,
    generators: Vec<Registered>,
    /// Texts on the nodes of the template.
    annotations: Annotations,
    /// The resources of a graph that is not empty.
    held: GraphResources,
    /// The hooks of its end run, or have run.
    is_ending: bool,
    /// The host's hooks; `None`: there were none yet.
    hooks: Option<Shared<Hooks>>,
}

impl GraphState {
    fn graph(&self) -> CUgraph {
        self.template as CUgraph
    }

    fn executable(&self) -> CUgraphExec {
        self.exec as CUgraphExec
    }

    fn require_captured(&self, why: &'static str) -> Result<()> {
        match self.phase {
            Phase::Captured => Ok(()),
            Phase::Empty | Phase::Capturing(_) => Err(Error::InvalidState(why)),
        }
    }

    fn require_template(&self) -> Result<()> {
        self.require_captured(NOT_CAPTURED)?;
        match self.template {
            0 => Err(Error::InvalidState(
                "the graph has no template any more: make it by tcuda_graph_create with keep 1",
            )),
            _ => Ok(()),
        }
    }

    /// Registers a generator, once.
    fn register(&mut self, gpus: &Gpus, generator: &Generator) -> Result<()> {
        if self.generators.iter().any(|known| known.generator.is_of(generator)) {
            return Ok(());
        }
        let no_room = |_| Error::OutOfHostMemory("the generators of a graph");
        self.generators.try_reserve(1).map_err(no_room)?;
        let generator = generator.register(gpus)?;
        self.generators.push(Registered { generator, increment: 0 });
        Ok(())
    }

    /// An error if it uses random numbers: their seed and offset on the device belong to this
    /// graph.
    fn require_no_numbers(&self) -> Result<()> {
        match self.generators.iter().all(|registered| registered.increment == 0) {
            true => Ok(()),
            false => Err(Error::InvalidState(
                "a graph that takes random numbers cannot be updated, nor be a source; capture it \
                 anew",
            )),
        }
    }

    /// Instantiates the template, and destroys the previous executable.
    fn instantiate(&mut self, driver: &'static Driver, device: &Device) -> Result<()> {
        let _relaxed = Relaxed::enter(driver);
        let _context = device.enter()?;
        if self.is_conditional {
            // The driver allows one executable at a time (580.159).
            destroy_exec(driver, std::mem::take(&mut self.exec));
        }
        let mut exec: CUgraphExec = null_mut();
        // SAFETY: `exec` is writable, and the template is alive.
        unsafe { driver.cuGraphInstantiateWithFlags(&mut exec, self.graph(), INSTANTIATE_FLAGS) }?;
        let before = std::mem::replace(&mut self.exec, exec as usize);
        destroy_exec(driver, before);
        Ok(())
    }

    /// Resets the graph. Destroys the driver's objects, and returns the other resources, which the
    /// caller releases when it holds no lock.
    fn clear(&mut self) -> GraphResources {
        self.phase = Phase::Empty;
        (self.is_ending, self.is_conditional) = (false, false);
        self.annotations = Annotations::default();
        let (exec, template) = (std::mem::take(&mut self.exec), std::mem::take(&mut self.template));
        if let Some(driver) = self.driver.take() {
            let _relaxed = Relaxed::enter(driver);
            destroy_exec(driver, exec);
            destroy_graph(driver, template);
        }
        let mut resources = std::mem::take(&mut self.held);
        resources.generators = std::mem::take(&mut self.generators);
        resources
    }
}

/// Destroys a `CUgraphExec`, if there is one; retries once.
fn destroy_exec(driver: &Driver, exec: usize) {
    // SAFETY: owned, and no longer referenced; running launches are not affected.
    let destroy = || unsafe { driver.cuGraphExecDestroy(exec as CUgraphExec) };
    if exec != 0 {
        sanitizer::executable_gone(exec as u64);
        if destroy().is_err() {
            let _ = destroy();
        }
    }
}

/// Destroys a `CUgraph`, if there is one; retries once.
fn destroy_graph(driver: &Driver, graph: usize) {
    // SAFETY: owned, and no longer referenced.
    let destroy = || unsafe { driver.cuGraphDestroy(graph as CUgraph) };
    if graph != 0 && destroy().is_err() {
        let _ = destroy();
    }
}

/// Number of nodes of a `CUgraph`.
fn num_nodes(driver: &Driver, graph: CUgraph) -> Result<usize, CudaError> {
    let mut count = 0;
    // SAFETY: the graph is alive; with a NULL list only `count` is written.
    unsafe { driver.cuGraphGetNodes(graph, null_mut::<CUgraphNode>(), &mut count) }?;
    Ok(count)
}

/// Captured work that can be launched.
pub struct Graph {
    keeps: bool,
    /// The host's handle; 0: it has none.
    handle: AtomicUsize,
    state: Mutex<GraphState>,
}

const NOT_CAPTURED: &str = "the graph is empty: capture something into it first, by \
     tcuda_graph_capture_begin and tcuda_graph_capture_end";

impl Graph {
    /// An empty graph. `keeps`: the template stays after the capture.
    pub fn new(keeps: bool) -> Graph {
        let state = GraphState {
            phase: Phase::Empty,
            device: 0,
            template: 0,
            exec: 0,
            is_conditional: false,
            driver: None,
            generators: Vec::new(),
            annotations: Annotations::default(),
            held: GraphResources::default(),
            is_ending: false,
            hooks: None,
        };
        Graph { keeps, handle: AtomicUsize::new(0), state: Mutex::new(Rank::GRAPH, state) }
    }

    /// Sets the host's handle, before the host has it.
    pub fn set_handle(&self, handle: usize) {
        self.handle.store(handle, Ordering::Relaxed);
    }

    /// Registers a generator, so that replays advance it.
    pub fn register(&self, gpus: &Gpus, generator: &Generator) -> Result<()> {
        waiting::refuse_in_callback()?;
        let mut state = self.state.lock();
        if !matches!(state.phase, Phase::Empty) {
            return Err(Error::InvalidState(
                "generators are registered before the capture begins; reset the graph first",
            ));
        }
        state.register(gpus, generator)
    }

    /// Keeps an object of the host until the graph is reset; `waits`: also until its launches are
    /// complete.
    pub fn retain(&self, object: Box<dyn Retained>, waits: bool) -> Result<()> {
        waiting::refuse_in_callback()?;
        self.state.lock().held.retain(object, waits)
    }

    /// Instantiates the template, again if it was.
    pub fn instantiate(&self, gpus: &Gpus) -> Result<()> {
        waiting::refuse_in_callback()?;
        if !self.keeps {
            return Err(Error::InvalidState(
                "the graph was made without keep, and is executable when its capture ends",
            ));
        }
        let superseded = {
            let mut state = self.state.lock();
            state.require_captured(NOT_CAPTURED)?;
            let device = gpus.device(state.device)?;
            state.instantiate(gpus.driver(), device)?;
            state.held.updated.take()
        };
        // Dropping it may call the host's `destroy`, so that no lock is held.
        drop(superseded);
        self.notify(hooks::INSTANTIATED);
        Ok(())
    }

    /// Queues its work on a stream, by default the current stream of its device.
    #[inline]
    pub fn replay(&self, gpus: &Gpus, stream: Option<&Stream>) -> Result<()> {
        waiting::refuse_in_callback()?;
        self.replay_now(gpus, stream)
    }

    /// [`Graph::replay`] without the check that this thread may wait. Hooks run before and after
    /// the launch, also of one that fails.
    #[inline]
    pub(super) fn replay_now(&self, gpus: &Gpus, stream: Option<&Stream>) -> Result<()> {
        let has_hooks = hooks::are_any();
        if has_hooks {
            self.announce_replay(gpus)?;
        }
        let launched = if sanitizer::is_on() {
            // Before the lock: under it no other host function may be called.
            let _call = sanitizer::call();
            self.launch::<true>(gpus, stream)
        } else {
            self.launch::<false>(gpus, stream)
        };
        if has_hooks {
            self.notify(hooks::REPLAY_QUEUED);
        }
        launched
    }

    /// Makes the graph executable, and runs the hooks before a replay.
    #[cold]
    fn announce_replay(&self, gpus: &Gpus) -> Result<()> {
        let is_new = {
            let mut state = self.state.lock();
            state.require_captured(NOT_CAPTURED)?;
            let is_new = state.exec == 0;
            if is_new {
                let device = gpus.device(state.device)?;
                state.instantiate(gpus.driver(), device)?;
            }
            is_new
        };
        if is_new {
            self.notify(hooks::INSTANTIATED);
        }
        self.notify(hooks::REPLAY_BEGINS);
        Ok(())
    }

    fn launch<const WATCHED: bool>(&self, gpus: &Gpus, stream: Option<&Stream>) -> Result<()> {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.require_captured(NOT_CAPTURED)?;
        let device = gpus.device(state.device)?;
        let stream = stream.unwrap_or_else(|| device.streams.current());
        if stream.device() != state.device {
            return Err(Error::Invalid(
                "the stream is of another device than the one that the graph was captured on",
            ));
        }
        state.held.require_awake()?;
        let driver = gpus.driver();
        let _context = device.enter()?;
        if stream.is_capturing(gpus)? {
            return Err(Error::Capturing {
                operation: "tcuda_graph_replay",
                why: "CUDA cannot launch a graph in a capture; end the capture first",
            });
        }
        if state.exec == 0 {
            state.instantiate(driver, device)?;
        }
        state.held.add_stream(stream.on_this_thread(gpus)?)?;
        for Registered { generator, increment } in &state.generators {
            generator.replay_prologue(gpus, *increment, stream)?;
        }
        let Content { functions, recording } = state.held.content();
        let executable = state.exec as u64;
        functions.expect_calls();
        if WATCHED {
            // Before the launch, which may call the functions at once.
            sanitizer_reports::graph_launched(gpus, stream, executable, recording.as_ref());
            functions.set_sync_point(|| sanitizer_reports::point_of_stream(gpus, stream));
        }
        // SAFETY: the executable and the stream are alive, and of one device.
        let launched = unsafe { driver.cuGraphLaunch(state.executable(), stream.native()) };
        if launched.is_err() {
            functions.cancel_expected_calls();
            if WATCHED {
                sanitizer::reached(sanitizer_reports::point_of_stream(gpus, stream));
            }
        }
        Ok(launched?)
    }

    /// An error if its launch would use memory of a sleeping pool.
    pub(super) fn require_awake(&self) -> Result<()> {
        self.state.lock().held.require_awake()
    }

    /// Updates the executable with the template of another graph of the same shape. On failure it
    /// is unchanged.
    pub fn update(&self, gpus: &Gpus, source: &Graph) -> Result<()> {
        waiting::refuse_in_callback()?;
        let templates = TEMPLATES.lock();
        let (template, held) = {
            let source = source.state.lock();
            source.require_captured(NOT_CAPTURED)?;
            source.require_no_numbers()?;
            if source.template == 0 {
                return Err(Error::InvalidState(
                    "source has no template: make it by tcuda_graph_create with keep 1",
                ));
            }
            (source.graph(), source.held.share(gpus)?)
        };
        let (outcome, unneeded) = self.update_by(gpus, template, held);
        // Unneeded resources are released with no lock held.
        drop(templates);
        unneeded.release(gpus);
        outcome
    }

    /// Updates by a template that stays valid meanwhile. Returns the resources that it does not
    /// need.
    fn update_by(
        &self,
        gpus: &Gpus,
        template: CUgraph,
        held: GraphResources,
    ) -> (Result<()>, GraphResources) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let is_captured = state.require_captured(NOT_CAPTURED);
        let is_ready = is_captured.and_then(|()| state.require_no_numbers());
        let is_ready = is_ready.and_then(|()| match state.exec {
            0 => Err(Error::InvalidState(
                "the graph is not executable yet: call tcuda_graph_instantiate first",
            )),
            _ => state.held.make_room(&held),
        });
        let outcome = is_ready.and_then(|()| {
            let driver = gpus.driver();
            let _relaxed = Relaxed::enter(driver);
            let _context = gpus.device(state.device)?.enter()?;
            // SAFETY: plain data, for which zero is a value.
            let mut info: CUgraphExecUpdateResultInfo = unsafe { std::mem::zeroed() };
            // SAFETY: both are alive, and `info` is writable.
            unsafe { driver.cuGraphExecUpdate(state.executable(), template, &mut info) }?;
            Ok(())
        });
        // Earlier launches may still be running, so that it keeps the resources of both.
        let unneeded = if outcome.is_ok() { state.held.merge(held) } else { held };
        (outcome, unneeded)
    }

    /// True for the first of the resets of a captured graph: a hook may reset it, too.
    fn begins_to_end(&self) -> bool {
        let mut state = self.state.lock();
        let is_captured = matches!(state.phase, Phase::Captured);
        is_captured && !std::mem::replace(&mut state.is_ending, true)
    }

    /// Resets the graph; aborts its capture if it is active.
    pub fn reset(&self, gpus: &Gpus) {
        if self.begins_to_end() {
            self.notify(hooks::DESTROYED);
        }
        let resources = {
            let _templates = TEMPLATES.lock();
            let mut state = self.state.lock();
            state.abandon(Some(gpus));
            state.clear()
        };
        unreleased::retry(gpus);
        resources.release(gpus);
    }

    /// Its pool, as a handle for the host.
    pub fn pool(&self) -> Result<MemPool> {
        waiting::refuse_in_callback()?;
        let state = self.state.lock();
        state.require_captured(NOT_CAPTURED)?;
        match state.held.pools.first() {
            Some(pool) => Ok(MemPool::of(pool.share_for_host())),
            None => Err(Error::NotSupported {
                what: "a private pool",
                by: "allocator backend: only \"native\" has them",
            }),
        }
    }

    /// The pools that hold its memory, its own first.
    pub fn pools(&self) -> Result<Vec<MemPool>> {
        waiting::refuse_in_callback()?;
        let state = self.state.lock();
        state.require_captured(NOT_CAPTURED)?;
        let pools = &state.held.pools;
        let mut list = Vec::new();
        let no_room = |_| Error::OutOfHostMemory("the pools of a graph");
        list.try_reserve_exact(pools.len()).map_err(no_room)?;
        list.extend(pools.iter().map(|pool| MemPool::of(pool.share_for_host())));
        Ok(list)
    }

    /// Writes the template to a file, in DOT.
    pub fn dump(&self, gpus: &Gpus, path: &CStr) -> Result<()> {
        waiting::refuse_in_callback()?;
        self.state.lock().require_template()?;
        crate::base::file::replace_by_name(path, |path| {
            let _templates = TEMPLATES.lock();
            let state = self.state.lock();
            state.require_template()?;
            let _relaxed = Relaxed::enter(gpus.driver());
            // SAFETY: the graph is alive, and the path ends with a NUL.
            unsafe { gpus.driver().cuGraphDebugDotPrint(state.graph(), path.as_ptr(), VERBOSE) }?;
            Ok(())
        })
    }

    /// The nodes and edges of the template, as a text.
    pub fn data(&self, gpus: &Gpus, format: Format) -> Result<Vec<u8>> {
        waiting::refuse_in_callback()?;
        let _templates = TEMPLATES.lock();
        let state = self.state.lock();
        state.require_template()?;
        let _relaxed = Relaxed::enter(gpus.driver());
        let _context = gpus.device(state.device)?.enter()?;
        let annotations = &state.annotations.ended;
        data::write(gpus.driver(), state.graph(), state.executable(), annotations, format)
    }

    /// The driver's handles of the template and the executable; NULL: none.
    pub fn native(&self) -> Result<(CUgraph, CUgraphExec)> {
        waiting::refuse_in_callback()?;
        let state = self.state.lock();
        state.require_captured(NOT_CAPTURED)?;
        Ok((state.graph(), state.executable()))
    }
}

impl Drop for Graph {
    /// Releases a graph that was not reset, at the end of the library.
    fn drop(&mut self) {
        let resources = {
            let mut state = self.state.lock();
            state.abandon(None);
            state.clear()
        };
        drop(resources);
    }
}

/// A new pool that graphs can share.
pub fn pool_handle() -> Result<MemPool> {
    Ok(MemPool::of(Pool::new(0, None)?))
}

/// Is a stream captured? Creates no context.
pub fn is_capturing(gpus: &Gpus, stream: &Stream) -> Result<bool> {
    if !gpus.device(stream.device())?.has_context() {
        return Ok(false);
    }
    let _context = stream.enter(gpus)?;
    let mut status: i32 = 0;
    let out = std::ptr::from_mut(&mut status).cast::<CUstreamCaptureStatus>();
    // SAFETY: the driver writes an enum of this size; it is read as an integer.
    unsafe { gpus.driver().cuStreamIsCapturing(stream.native(), out) }?;
    Ok(status != 0)
}
