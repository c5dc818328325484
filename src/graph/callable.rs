//! Graphed callables: a host's forward function, and optionally its backward function, captured as
//! graphs with tensors at fixed addresses. A call copies its arguments into these tensors and
//! replays the graph. (`torch.cuda.make_graphed_callables`)

use super::{Graph, hooks};
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::waiting::{self, InCallback};
use crate::gpu::device::Device;
use crate::gpu::external_registry::HeldStream;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::graph::static_buffers::{Blocks, StaticTensor};
use crate::memory::arena::pool::Pool;
use crate::memory::device::backend::Server;
use crate::tensor::Tensor;
use crate::{memory, sanitizer};

/// Selects the forward or the backward function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// Computes outputs from inputs.
    Forward,
    /// Computes gradients of inputs from gradients of outputs.
    Backward,
}

impl Pass {
    /// The public function that runs this pass.
    fn operation(self) -> &'static str {
        match self {
            Pass::Forward => "tcuda_graphed_callable_call",
            Pass::Backward => "tcuda_graphed_callable_call_backward",
        }
    }
}

/// The host's functions of one callable.
pub trait Function: Send + Sync {
    /// Queues a pass on a stream. Returns the tensors that it made; a backward pass may leave some
    /// out.
    fn run(
        &self,
        pass: Pass,
        inputs: &[StaticTensor],
        stream: &Stream,
        num_outputs: usize,
    ) -> Result<Vec<Option<Tensor>>>;
    /// Is there a backward function?
    fn has_backward(&self) -> bool;
    /// Transfers ownership to the library. The caller has no step left that can fail.
    fn commit(&self);
}

/// One callable to be captured.
pub struct Plan {
    /// The host's functions.
    pub function: Box<dyn Function>,
    /// Samples of the inputs: their shapes and initial contents.
    pub samples: Vec<Tensor>,
    /// Number of outputs of the forward pass.
    pub num_outputs: usize,
}

/// Options of [`make`].
pub struct Options {
    /// Pool for the graphs; `None`: a new pool.
    pub pool: Option<Pool>,
    /// Number of warm-up runs before the capture.
    pub warmups: u32,
    /// Capture mode.
    pub mode: i32,
}

/// Tensors of a callable, and the memory to free when it is closed.
#[derive(Default)]
struct Tensors {
    inputs: Vec<StaticTensor>,
    outputs: Vec<StaticTensor>,
    grad_outputs: Vec<StaticTensor>,
    grad_inputs: Vec<Option<StaticTensor>>,
    /// Blocks of the library in which the tensors are.
    blocks: Blocks,
    /// Streams on which it was called.
    streams: Vec<HeldStream>,
}

/// A callable that was captured.
pub struct Captured {
    device: i32,
    forward: Graph,
    backward: Option<Graph>,
    tensors: Tensors,
    /// The last field: the host's data is destroyed after everything that uses it.
    function: Box<dyn Function>,
}

/// A graphed callable; `None` before its capture and after it is closed.
pub struct Callable(Mutex<Option<Captured>>);

const NO_ROOM: Error = Error::OutOfHostMemory("a graphed callable");

/// The public function that makes callables.
const MAKE: &str = "tcuda_graphed_callable_create";

/// A callable that is being captured. Only one thread can reach it, and the host's functions run
/// with no lock held.
struct PendingCallable {
    plan: Plan,
    forward: Graph,
    backward: Option<Graph>,
    tensors: Tensors,
}

impl PendingCallable {
    fn new(plan: Plan) -> PendingCallable {
        let backward = plan.function.has_backward().then(|| Graph::new(false));
        PendingCallable { plan, forward: Graph::new(false), backward, tensors: Tensors::default() }
    }

    /// Allocates the inputs, and copies the samples into them.
    #[inline(never)]
    fn prepare(&mut self, gpus: &Gpus, device: &Device, stream: &Stream) -> Result<()> {
        let Tensors { inputs, blocks, .. } = &mut self.tensors;
        inputs.try_reserve_exact(self.plan.samples.len()).map_err(|_| NO_ROOM)?;
        for sample in &self.plan.samples {
            blocks.prepare(1)?;
            let (input, block) = StaticTensor::like(gpus, device, stream, sample)?;
            blocks.push(block);
            // The host may free the sample during the copy, if this fails before a wait.
            if sample.numel > 0
                && let Ok(Some((start, _))) = memory::extent(sample.address)
            {
                memory::record_stream(start, stream)?;
            }
            input.take(gpus, sample, stream, MAKE)?;
            inputs.push(input);
        }
        Ok(())
    }

    fn run(
        &self,
        pass: Pass,
        inputs: &[StaticTensor],
        stream: &Stream,
    ) -> Result<Vec<Option<Tensor>>> {
        let num_outputs = match pass {
            Pass::Forward => self.plan.num_outputs,
            Pass::Backward => self.plan.samples.len(),
        };
        self.plan.function.run(pass, inputs, stream, num_outputs)
    }

    /// Runs the passes once, and frees what they made.
    #[inline(never)]
    fn warm_up(&self, gpus: &Gpus, device: &Device, stream: &Stream) -> Result<()> {
        let mut used = Blocks::default();
        let done = self.try_warm_up(gpus, device, stream, &mut used);
        used.free(gpus, &[]);
        done
    }

    fn try_warm_up(
        &self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        used: &mut Blocks,
    ) -> Result<()> {
        let own = Some(&self.tensors.blocks);
        used.prepare(self.plan.num_outputs)?;
        let outputs = self.run(Pass::Forward, &self.tensors.inputs, stream)?;
        used.add(&outputs, own);
        if self.backward.is_none() {
            return Ok(());
        }
        let gradients = gradients_of(gpus, device, stream, outputs.iter().flatten(), used)?;
        used.prepare(self.plan.samples.len())?;
        let made = self.run(Pass::Backward, &gradients, stream)?;
        used.add(&made, own);
        Ok(())
    }

    #[inline(never)]
    fn capture_forward(
        &mut self,
        gpus: &Gpus,
        stream: &Stream,
        (pool, mode): (Option<Pool>, i32),
    ) -> Result<()> {
        self.tensors.blocks.prepare(self.plan.num_outputs)?;
        self.forward.capture_begin(gpus, stream, pool, mode)?;
        let made = self.run(Pass::Forward, &self.tensors.inputs, stream);
        let made = end(gpus, &self.forward, &mut self.tensors.blocks, made)?;
        let Tensors { outputs, .. } = &mut self.tensors;
        outputs.try_reserve_exact(made.len()).map_err(|_| NO_ROOM)?;
        for tensor in made.iter().flatten() {
            outputs.push(StaticTensor::of(tensor)?);
        }
        Ok(())
    }

    #[inline(never)]
    fn capture_backward(
        &mut self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        (pool, mode): (Option<Pool>, i32),
    ) -> Result<()> {
        let Some(graph) = &self.backward else { return Ok(()) };
        let outputs = self.tensors.outputs.iter().map(StaticTensor::tensor);
        let gradients = gradients_of(gpus, device, stream, outputs, &mut self.tensors.blocks)?;
        self.tensors.blocks.prepare(self.plan.samples.len())?;
        graph.capture_begin(gpus, stream, pool, mode)?;
        let made = self.run(Pass::Backward, &gradients, stream);
        let made = end(gpus, graph, &mut self.tensors.blocks, made)?;
        let Tensors { grad_inputs, grad_outputs, .. } = &mut self.tensors;
        *grad_outputs = gradients;
        grad_inputs.try_reserve_exact(made.len()).map_err(|_| NO_ROOM)?;
        for tensor in &made {
            grad_inputs.push(tensor.as_ref().map(StaticTensor::of).transpose()?);
        }
        Ok(())
    }

    /// Frees the memory and resets the graphs.
    fn undo(mut self, gpus: &Gpus) {
        self.tensors.blocks.free(gpus, &[]);
        self.forward.reset(gpus);
        if let Some(graph) = &self.backward {
            graph.reset(gpus);
        }
    }
}

/// Allocates gradients of these outputs, filled with zeros.
#[inline(never)]
fn gradients_of<'a>(
    gpus: &Gpus,
    device: &Device,
    stream: &Stream,
    outputs: impl Iterator<Item = &'a Tensor>,
    blocks: &mut Blocks,
) -> Result<Vec<StaticTensor>> {
    let mut gradients = Vec::new();
    for output in outputs {
        blocks.prepare(1)?;
        gradients.try_reserve(1).map_err(|_| NO_ROOM)?;
        let (gradient, block) = StaticTensor::like(gpus, device, stream, output)?;
        blocks.push(block);
        gradient.clear(gpus, stream, MAKE)?;
        gradients.push(gradient);
    }
    Ok(gradients)
}

/// The tensors that a pass made; `None`: left out.
type Made = Vec<Option<Tensor>>;

/// Ends the capture of a pass and takes over its memory. Aborts the capture if the pass failed.
fn end(gpus: &Gpus, graph: &Graph, blocks: &mut Blocks, made: Result<Made>) -> Result<Made> {
    match made {
        Ok(made) => {
            blocks.add(&made, None);
            graph.capture_end(gpus).map(|_| made)
        }
        Err(error) => {
            let _ = graph.capture_abort(gpus);
            Err(error)
        }
    }
}

/// Warms up and captures callables, in this order. On failure it undoes everything.
pub fn make(gpus: &Gpus, device: i32, plans: Vec<Plan>, options: Options) -> Result<Vec<Captured>> {
    waiting::refuse_in_callback()?;
    let device = gpus.device(device)?;
    let mut pending = Vec::new();
    pending.try_reserve_exact(plans.len()).map_err(|_| NO_ROOM)?;
    let mut captured = Vec::new();
    captured.try_reserve_exact(plans.len()).map_err(|_| NO_ROOM)?;
    pending.extend(plans.into_iter().map(PendingCallable::new));
    let stream = device.streams.for_captures(device)?;
    if let Err(error) = capture_all(gpus, device, stream, &mut pending, options) {
        // Queued copies may still read host memory.
        let _ = stream.wait_for_host(gpus);
        pending.into_iter().for_each(|pending| pending.undo(gpus));
        return Err(error);
    }
    let device = device.ordinal();
    captured.extend(pending.into_iter().map(|pending| {
        let PendingCallable { plan, forward, backward, tensors } = pending;
        Captured { device, forward, backward, tensors, function: plan.function }
    }));
    Ok(captured)
}

fn capture_all(
    gpus: &Gpus,
    device: &Device,
    stream: &Stream,
    pending: &mut [PendingCallable],
    options: Options,
) -> Result<()> {
    let Options { pool, warmups, mode } = options;
    let has_pools = matches!(device.memory().server(), Server::Cache);
    let pool = match pool {
        None if has_pools => Some(Pool::of_graph()?),
        pool => pool,
    };
    let of_pool = || (pool.as_ref().map(Pool::share), mode);
    device.synchronize_for_host()?;
    let _current = Current::begin(gpus, stream)?;
    for one in &mut *pending {
        one.prepare(gpus, device, stream)?;
        for _ in 0..warmups {
            one.warm_up(gpus, device, stream)?;
        }
    }
    stream.wait_for_host(gpus)?;
    for one in &mut *pending {
        one.capture_forward(gpus, stream, of_pool())?;
    }
    for one in pending.iter_mut().rev() {
        one.capture_backward(gpus, device, stream, of_pool())?;
    }
    // The contents of the tensors are complete for a call on any stream.
    stream.wait_for_host(gpus)
}

/// Makes a stream and its device current on this thread, until it is dropped.
struct Current<'a> {
    gpus: &'a Gpus,
    displaced: *const Stream,
    device: i32,
}

impl Current<'_> {
    fn begin<'a>(gpus: &'a Gpus, stream: &Stream) -> Result<Current<'a>> {
        let device = gpus.current_device()?;
        let streams = &gpus.device(stream.device())?.streams;
        let displaced = streams.replace_current(stream, |before| Ok(std::ptr::from_ref(before)))?;
        let current = Current { gpus, displaced, device };
        gpus.set_current_device(stream.device())?;
        Ok(current)
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        // SAFETY: this call found the stream and has not returned, so that the stream lives.
        let displaced = unsafe { &*self.displaced };
        if let Ok(device) = self.gpus.device(displaced.device()) {
            let _ = device.streams.replace_current(displaced, |_| Ok(()));
        }
        let _ = self.gpus.set_current_device(self.device);
    }
}

impl Callable {
    /// A callable without a capture.
    pub fn empty() -> Callable {
        Callable(Mutex::new(Rank::CALLABLE, None))
    }

    /// Installs what was captured. Cannot fail.
    pub fn fill(&self, captured: Captured) {
        captured.function.commit();
        *self.0.lock() = Some(captured);
    }

    /// Copies the arguments into the tensors, replays, and passes each result to `give`, in order.
    pub fn call(
        &self,
        gpus: &Gpus,
        pass: Pass,
        arguments: &[Tensor],
        stream: Option<&Stream>,
        num_results: usize,
        mut give: impl FnMut(usize, Option<&StaticTensor>),
    ) -> Result<()> {
        waiting::refuse_in_callback()?;
        // Before the lock: under it only the captured host functions may run.
        let _call = sanitizer::call();
        let mut held = self.0.lock();
        let Some(captured) = held.as_mut() else {
            return Err(Error::InvalidState("the callable is being destroyed by another thread"));
        };
        let Captured { device: own, forward, backward, tensors, .. } = captured;
        let (graph, inputs) = match (pass, backward) {
            (Pass::Forward, _) => (&*forward, &tensors.inputs),
            (Pass::Backward, Some(graph)) => (&*graph, &tensors.grad_outputs),
            (Pass::Backward, None) => {
                return Err(Error::InvalidState(
                    "the callable was made without a backward function: pass one in tcuda_callable",
                ));
            }
        };
        let results = match pass {
            Pass::Forward => tensors.outputs.len(),
            Pass::Backward => tensors.grad_inputs.len(),
        };
        if inputs.len() != arguments.len() || results != num_results {
            return Err(Error::Invalid(
                "the callable was captured with another number of inputs or outputs",
            ));
        }
        let device = gpus.device(*own)?;
        let stream = stream.unwrap_or_else(|| device.streams.current());
        if stream.device() != *own {
            return Err(Error::Invalid(
                "the stream is of another device than the one that the callable was captured on",
            ));
        }
        if stream.is_capturing(gpus)? {
            return Err(Error::Capturing {
                operation: "tcuda_graphed_callable_call",
                why: "CUDA cannot launch a graph in a capture; end the capture first",
            });
        }
        for (input, argument) in inputs.iter().zip(arguments) {
            input.require_same_layout(argument)?;
        }
        graph.require_awake()?;
        for (input, argument) in inputs.iter().zip(arguments) {
            input.take(gpus, argument, stream, pass.operation())?;
        }
        {
            // Hooks run with this lock held, as captured host functions do.
            let _callback = hooks::are_any().then(InCallback::begin);
            graph.replay_now(gpus, Some(stream))?;
        }
        let used_on = stream.on_this_thread(gpus)?;
        if !tensors.streams.iter().any(|known| known.is(used_on)) {
            tensors.streams.try_reserve(1).map_err(|_| NO_ROOM)?;
            tensors.streams.push(HeldStream::new(used_on));
        }
        match pass {
            Pass::Forward => {
                tensors.outputs.iter().enumerate().for_each(|(i, found)| give(i, Some(found)));
            }
            Pass::Backward => {
                let found = tensors.grad_inputs.iter().enumerate();
                found.for_each(|(i, found)| give(i, found.as_ref()));
            }
        }
        Ok(())
    }

    /// Frees the memory in the order of the calls, resets the graphs, and drops the host's
    /// functions.
    pub fn close(&self, gpus: &Gpus) {
        let closed = self.0.lock().take();
        let Some(mut captured) = closed else { return };
        let streams = std::mem::take(&mut captured.tensors.streams);
        captured.tensors.blocks.free(gpus, &streams);
        captured.forward.reset(gpus);
        if let Some(graph) = &captured.backward {
            graph.reset(gpus);
        }
    }
}
