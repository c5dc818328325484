//! Functions of a host that were captured: forward, and perhaps backward, with tensors that stay where
//! they are. Calling one copies what is new into them and replays. (torch.cuda.make_graphed_callables)

use super::Graph;
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::gpu::device::Device;
use crate::gpu::external_registry::HeldStream;
use crate::gpu::stream::Stream;
use crate::graph::static_buffers::{Blocks, Static};
use crate::memory;
use crate::memory::backend::Server;
use crate::memory::pools::pool::Pool;
use crate::ops::callback;
use crate::runtime::Runtime;
use crate::sanitizer;
use crate::tensor::Tensor;

/// Which of its functions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// Outputs of inputs.
    Forward,
    /// Gradients of the inputs of those of the outputs.
    Backward,
}

impl Pass {
    /// What the host calls.
    fn operation(self) -> &'static str {
        match self {
            Pass::Forward => "tcuda_graphed_callable_call",
            Pass::Backward => "tcuda_graphed_callable_call_backward",
        }
    }
}

/// A host's functions.
pub trait Function: Send + Sync {
    /// Queues the work of a pass on a stream; gives the tensors that it made, of which a backward pass
    /// may leave some out.
    fn run(
        &self,
        pass: Pass,
        inputs: &[Static],
        stream: &Stream,
        num_outputs: usize,
    ) -> Result<Vec<Option<Tensor>>>;
    /// Is there a backward pass?
    fn has_backward(&self) -> bool;
    /// Nothing can fail any more: it is the library's until it is dropped.
    fn is_taken(&self);
}

/// What is to be captured.
pub struct Plan {
    /// The host's functions.
    pub function: Box<dyn Function>,
    /// What the inputs are like, and what they hold at first.
    pub samples: Vec<Tensor>,
    /// Outputs of the forward pass.
    pub num_outputs: usize,
}

/// How.
pub struct Options {
    /// Where the memory comes from; none: a new pool.
    pub pool: Option<Pool>,
    /// How often everything runs before it is captured.
    pub warmups: u32,
    /// Of the captures.
    pub mode: i32,
}

/// Where the tensors are, and what must go.
#[derive(Default)]
struct Tensors {
    inputs: Vec<Static>,
    outputs: Vec<Static>,
    grad_outputs: Vec<Static>,
    grad_inputs: Vec<Option<Static>>,
    /// Memory of ours that holds them.
    blocks: Blocks,
    /// Where it was called.
    streams: Vec<HeldStream>,
}

/// What was captured.
pub struct Captured {
    device: i32,
    forward: Graph,
    backward: Option<Graph>,
    tensors: Tensors,
    /// Last, so that the host's data go after what used them.
    function: Box<dyn Function>,
}

/// A captured function; none before it is captured, and when it is closed.
pub struct Callable(Mutex<Option<Captured>>);

const NO_ROOM: Error = Error::OutOfHostMemory("a graphed callable");

/// What the host calls.
const MAKE: &str = "tcuda_graphed_callable_create";

/// While it is made: nobody else sees it, and the host's functions run with no lock held.
struct Making {
    plan: Plan,
    forward: Graph,
    backward: Option<Graph>,
    tensors: Tensors,
}

impl Making {
    fn new(plan: Plan) -> Making {
        let backward = plan.function.has_backward().then(|| Graph::new(false));
        Making { plan, forward: Graph::new(false), backward, tensors: Tensors::default() }
    }

    /// Places for the inputs, with what the samples hold.
    #[inline(never)]
    fn prepare(&mut self, runtime: &Runtime, device: &Device, stream: &Stream) -> Result<()> {
        let Tensors { inputs, blocks, .. } = &mut self.tensors;
        inputs.try_reserve_exact(self.plan.samples.len()).map_err(|_| NO_ROOM)?;
        for sample in &self.plan.samples {
            blocks.prepare(1)?;
            let (input, block) = Static::like(runtime, device, stream, sample)?;
            blocks.push(block);
            // The host may free it while it is read, where this fails and nobody can wait for that.
            if sample.numel > 0
                && let Ok(Some((start, _))) = memory::extent(sample.address)
            {
                memory::record_stream(start, stream)?;
            }
            input.take(runtime, sample, stream, MAKE)?;
            inputs.push(input);
        }
        Ok(())
    }

    fn run(&self, pass: Pass, inputs: &[Static], stream: &Stream) -> Result<Vec<Option<Tensor>>> {
        let num_outputs = match pass {
            Pass::Forward => self.plan.num_outputs,
            Pass::Backward => self.plan.samples.len(),
        };
        self.plan.function.run(pass, inputs, stream, num_outputs)
    }

    /// Runs it once; nothing of that stays.
    #[inline(never)]
    fn warm_up(&self, runtime: &Runtime, device: &Device, stream: &Stream) -> Result<()> {
        let mut used = Blocks::default();
        let done = self.try_warm_up(runtime, device, stream, &mut used);
        used.free(runtime, &[]);
        done
    }

    fn try_warm_up(
        &self,
        runtime: &Runtime,
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
        let gradients = gradients_of(runtime, device, stream, outputs.iter().flatten(), used)?;
        used.prepare(self.plan.samples.len())?;
        let made = self.run(Pass::Backward, &gradients, stream)?;
        used.add(&made, own);
        Ok(())
    }

    #[inline(never)]
    fn capture_forward(
        &mut self,
        runtime: &Runtime,
        stream: &Stream,
        (pool, mode): (Option<Pool>, i32),
    ) -> Result<()> {
        self.tensors.blocks.prepare(self.plan.num_outputs)?;
        self.forward.capture_begin(runtime, stream, pool, mode)?;
        let made = self.run(Pass::Forward, &self.tensors.inputs, stream);
        let made = end(runtime, &self.forward, &mut self.tensors.blocks, made)?;
        let Tensors { outputs, .. } = &mut self.tensors;
        outputs.try_reserve_exact(made.len()).map_err(|_| NO_ROOM)?;
        for tensor in made.iter().flatten() {
            outputs.push(Static::of(tensor)?);
        }
        Ok(())
    }

    #[inline(never)]
    fn capture_backward(
        &mut self,
        runtime: &Runtime,
        device: &Device,
        stream: &Stream,
        (pool, mode): (Option<Pool>, i32),
    ) -> Result<()> {
        let Some(graph) = &self.backward else { return Ok(()) };
        let outputs = self.tensors.outputs.iter().map(Static::tensor);
        let gradients = gradients_of(runtime, device, stream, outputs, &mut self.tensors.blocks)?;
        self.tensors.blocks.prepare(self.plan.samples.len())?;
        graph.capture_begin(runtime, stream, pool, mode)?;
        let made = self.run(Pass::Backward, &gradients, stream);
        let made = end(runtime, graph, &mut self.tensors.blocks, made)?;
        let Tensors { grad_inputs, grad_outputs, .. } = &mut self.tensors;
        *grad_outputs = gradients;
        grad_inputs.try_reserve_exact(made.len()).map_err(|_| NO_ROOM)?;
        for tensor in &made {
            grad_inputs.push(tensor.as_ref().map(Static::of).transpose()?);
        }
        Ok(())
    }

    /// Undoes all of it.
    fn undo(mut self, runtime: &Runtime) {
        self.tensors.blocks.free(runtime, &[]);
        self.forward.reset(runtime);
        if let Some(graph) = &self.backward {
            graph.reset(runtime);
        }
    }
}

/// Places for the gradients of outputs, which hold zeros.
#[inline(never)]
fn gradients_of<'a>(
    runtime: &Runtime,
    device: &Device,
    stream: &Stream,
    outputs: impl Iterator<Item = &'a Tensor>,
    blocks: &mut Blocks,
) -> Result<Vec<Static>> {
    let mut gradients = Vec::new();
    for output in outputs {
        blocks.prepare(1)?;
        gradients.try_reserve(1).map_err(|_| NO_ROOM)?;
        let (gradient, block) = Static::like(runtime, device, stream, output)?;
        blocks.push(block);
        gradient.clear(runtime, stream, MAKE)?;
        gradients.push(gradient);
    }
    Ok(gradients)
}

/// The tensors of a pass, `None` for those that it left out.
type Made = Vec<Option<Tensor>>;

/// Ends a capture, if what was captured came to its end: its memory goes with the callable.
fn end(runtime: &Runtime, graph: &Graph, blocks: &mut Blocks, made: Result<Made>) -> Result<Made> {
    match made {
        Ok(made) => {
            blocks.add(&made, None);
            graph.capture_end(runtime).map(|_| made)
        }
        Err(error) => {
            let _ = graph.capture_abort(runtime);
            Err(error)
        }
    }
}

/// Warms up and captures functions, which are called in this order; on failure nothing is left of it.
pub fn make(
    runtime: &Runtime,
    device: i32,
    plans: Vec<Plan>,
    options: Options,
) -> Result<Vec<Captured>> {
    callback::refuse()?;
    let device = runtime.device(device)?;
    let mut making = Vec::new();
    making.try_reserve_exact(plans.len()).map_err(|_| NO_ROOM)?;
    let mut captured = Vec::new();
    captured.try_reserve_exact(plans.len()).map_err(|_| NO_ROOM)?;
    making.extend(plans.into_iter().map(Making::new));
    let stream = device.streams.for_captures(device)?;
    if let Err(error) = capture_all(runtime, device, stream, &mut making, options) {
        // What was queued reads memory of the host's.
        let _ = stream.wait_for_host(runtime);
        making.into_iter().for_each(|making| making.undo(runtime));
        return Err(error);
    }
    let device = device.ordinal();
    captured.extend(making.into_iter().map(|making| {
        let Making { plan, forward, backward, tensors } = making;
        Captured { device, forward, backward, tensors, function: plan.function }
    }));
    Ok(captured)
}

fn capture_all(
    runtime: &Runtime,
    device: &Device,
    stream: &Stream,
    making: &mut [Making],
    options: Options,
) -> Result<()> {
    let Options { pool, warmups, mode } = options;
    let has_pools = matches!(device.memory.server(), Server::Cache);
    let pool = match pool {
        None if has_pools => Some(Pool::of_graph()?),
        pool => pool,
    };
    let of_pool = || (pool.as_ref().map(Pool::share), mode);
    device.synchronize_for_host()?;
    let _current = Current::begin(runtime, stream)?;
    for one in &mut *making {
        one.prepare(runtime, device, stream)?;
        for _ in 0..warmups {
            one.warm_up(runtime, device, stream)?;
        }
    }
    stream.wait_for_host(runtime)?;
    for one in &mut *making {
        one.capture_forward(runtime, stream, of_pool())?;
    }
    for one in making.iter_mut().rev() {
        one.capture_backward(runtime, device, stream, of_pool())?;
    }
    // What was put into their tensors is there, whatever stream they are called on.
    stream.wait_for_host(runtime)
}

/// A stream and its device are current for this thread, until it is dropped.
struct Current<'a> {
    runtime: &'a Runtime,
    displaced: *const Stream,
    device: i32,
}

impl Current<'_> {
    fn begin<'a>(runtime: &'a Runtime, stream: &Stream) -> Result<Current<'a>> {
        let device = runtime.current_device()?;
        let streams = &runtime.device(stream.device())?.streams;
        let displaced = streams.replace_current(stream, |before| Ok(std::ptr::from_ref(before)))?;
        let current = Current { runtime, displaced, device };
        runtime.set_current_device(stream.device())?;
        Ok(current)
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        // SAFETY: found by this call, which is not over.
        let displaced = unsafe { &*self.displaced };
        if let Ok(device) = self.runtime.device(displaced.device()) {
            let _ = device.streams.replace_current(displaced, |_| Ok(()));
        }
        let _ = self.runtime.set_current_device(self.device);
    }
}

impl Callable {
    /// Nothing yet.
    pub fn empty() -> Callable {
        Callable(Mutex::new(Rank::CALLABLE, None))
    }

    /// Takes what was captured; nothing can fail any more.
    pub fn fill(&self, captured: Captured) {
        captured.function.is_taken();
        *self.0.lock() = Some(captured);
    }

    /// Copies what is new into its tensors, replays, and gives what came out to `give`, in order.
    pub fn call(
        &self,
        runtime: &Runtime,
        pass: Pass,
        arguments: &[Tensor],
        stream: Option<&Stream>,
        num_results: usize,
        mut give: impl FnMut(usize, Option<&Static>),
    ) -> Result<()> {
        callback::refuse()?;
        // Before the lock, under which no function of the host's is called but those captured.
        let _told = sanitizer::call();
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
        let device = runtime.device(*own)?;
        let stream = stream.unwrap_or_else(|| device.streams.current());
        if stream.device() != *own {
            return Err(Error::Invalid(
                "the stream is of another device than the one that the callable was captured on",
            ));
        }
        if stream.is_capturing(runtime)? {
            return Err(Error::Capturing {
                operation: "tcuda_graphed_callable_call",
                why: "CUDA cannot launch a graph in a capture; end the capture first",
            });
        }
        for (input, argument) in inputs.iter().zip(arguments) {
            input.require_alike(argument)?;
        }
        graph.require_awake()?;
        for (input, argument) in inputs.iter().zip(arguments) {
            input.take(runtime, argument, stream, pass.operation())?;
        }
        graph.replay(runtime, Some(stream))?;
        let used_on = stream.on_this_thread(runtime)?;
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

    /// Gives its memory and graphs back, in the order of its calls, and the host's functions.
    pub fn close(&self, runtime: &Runtime) {
        let closed = self.0.lock().take();
        let Some(mut captured) = closed else { return };
        let streams = std::mem::take(&mut captured.tensors.streams);
        captured.tensors.blocks.free(runtime, &streams);
        captured.forward.reset(runtime);
        if let Some(graph) = &captured.backward {
            graph.reset(runtime);
        }
    }
}
