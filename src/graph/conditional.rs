//! Conditional nodes: work of a graph that a launch runs if a value in memory is not 0, or as long
//! as it is not.
//!
//! A kernel before the node sets its condition. The work of its body is captured on a stream of the
//! library, into a graph of its own, which becomes a child in the node's body when the body ends.
//! It is not captured into the body itself (cuStreamBeginCaptureToGraph): the driver frees a body
//! whose capture fails, and then crashes when it destroys the graph (580.159). A child has no
//! conditional nodes. So where one begins within a body, what the body has until then becomes a
//! child before it.
//!
//! A body that fails makes the whole capture fail: the node is in the graph, and a loop with an
//! empty body would not end.

use super::annotations::frontier_of;
use super::capture::{Capture, end_capture};
use super::{Graph, GraphState, NOT_CAPTURED, Phase, destroy_graph, num_nodes};
use crate::base::error::{Error, Result};
use crate::base::{thread, waiting};
use crate::driver::Driver;
use crate::driver::sys::{
    CUDA_CONDITIONAL_NODE_PARAMS, CUgraph, CUgraphConditionalNodeType, CUgraphNode,
    CUgraphNodeParams, CUgraphNodeType, CUstreamCaptureMode,
};
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::Device;
use crate::gpu::external_registry::HeldStream;
use crate::gpu::gpus::Gpus;
use crate::gpu::sanitizer_reports as reports;
use crate::gpu::stream::{Stream, capture_of};
use crate::memory::arena::pool::Pool;
use crate::sanitizer::{self, Recording, Touch};
use std::ffi::c_void;
use std::ptr::{from_mut, null, null_mut};

/// What a condition does.
#[derive(Clone, Copy)]
pub enum Condition {
    /// The body runs once, or not.
    If,
    /// The body runs again and again, or not at all.
    While,
}

/// A body that is being captured.
struct Body {
    /// Where it is captured.
    stream: HeldStream,
    /// Its number in the list of active captures.
    number: u64,
    /// The driver's graph of the node's body, and the last node in it; 0: none.
    graph: usize,
    last: usize,
    /// The driver's handle of the condition.
    condition: u64,
    /// The stream whose work comes before the node and after it.
    outer: HeldStream,
    /// What the sanitizer recorded until the last conditional node within it.
    recordings: Vec<Recording>,
    /// The thread that began it, and the stream that was current there.
    thread: u64,
    before: HeldStream,
}

/// The bodies of a capture.
#[derive(Default)]
pub(super) struct Bodies {
    /// Those that have not ended, the innermost last.
    open: Vec<Body>,
    /// For each stream on which nodes began: the number of the stream of their bodies. Bodies that
    /// can run at the same time have different streams, whose memory is apart.
    streams: Vec<(HeldStream, usize)>,
    /// A body has failed.
    has_failed: bool,
}

impl Bodies {
    /// An error if one is being captured.
    pub(super) fn require_ended(&self) -> Result<()> {
        match self.open.is_empty() {
            true => Ok(()),
            false => Err(Error::InvalidState(
                "the body of a conditional node is being captured: call \
                 tcuda_graph_conditional_end first; the capture goes on",
            )),
        }
    }

    /// An error if one has failed.
    pub(super) fn outcome(&self) -> Result<()> {
        match self.has_failed {
            false => Ok(()),
            true => Err(Error::CaptureInvalidated(
                "the body of a conditional node could not be captured: see the error of \
                 tcuda_graph_conditional_begin or _end",
            )),
        }
    }

    /// The number of the stream for the bodies of nodes that begin on `outer`.
    fn stream_for(&mut self, device: &Device, outer: &Stream) -> Result<usize> {
        if let Some((_, number)) = self.streams.iter().find(|(known, _)| known.is(outer)) {
            return Ok(*number);
        }
        self.streams.try_reserve(1).map_err(|_| NO_ROOM)?;
        let number = device.streams.take_body(device)?;
        self.streams.push((HeldStream::new(outer), number));
        Ok(number)
    }

    /// Ends those that are being captured, without a result, and gives back their streams.
    pub(super) fn close(&mut self, driver: &Driver, runtime: Option<(&Gpus, &Device)>) {
        while let Some(body) = self.open.pop() {
            match runtime {
                Some((gpus, device)) => {
                    gpus.unreleased().discard(driver, &body.stream);
                    drop(gpus.captures().end(gpus, body.number));
                    body.leave(device);
                }
                None => drop(super::capture::discard(driver, &body.stream)),
            }
        }
        for (_, number) in self.streams.drain(..) {
            if let Some((_, device)) = runtime {
                device.streams.give_back_body(number);
            }
        }
    }
}

const NO_ROOM: Error = Error::OutOfHostMemory("a conditional node");

const NAME: &str = "tcuda_graph_conditional_begin";

impl Graph {
    /// Begins the body of a conditional node behind the work of a stream, by default the current
    /// one. The stream of the body becomes current. Returns what `keep` makes of that stream.
    pub fn conditional_begin<R>(
        &self,
        gpus: &Gpus,
        condition: Condition,
        predicate: u64,
        stream: Option<&Stream>,
        keep: impl FnOnce(&Stream) -> Result<R>,
    ) -> Result<R> {
        waiting::refuse_in_callback()?;
        let _call = sanitizer::call();
        let mut state = self.state.lock();
        let (capture, pool) = state.active()?;
        let device = gpus.device(capture.stream.device())?;
        let _relaxed = Relaxed::enter(gpus.driver());
        let _context = device.enter()?;
        let outer = stream.unwrap_or_else(|| device.streams.current()).on_this_thread(gpus)?;
        let root = capture.root(gpus.driver())?;
        capture.require_place(gpus.driver(), root, outer)?;
        let bodies = &mut capture.bodies;
        bodies.open.try_reserve(1).map_err(|_| NO_ROOM)?;
        let number = bodies.stream_for(device, outer)?;
        let Some(stream) = device.streams.body(number) else { return Err(NO_ROOM) };
        let kept = keep(stream)?;
        let handle = create_condition(gpus.driver(), device, root)?;
        set(gpus, device, handle, predicate, outer, NAME)?;
        let mut body = Body {
            stream: HeldStream::new(stream),
            number: 0,
            graph: 0,
            last: 0,
            condition: handle,
            outer: HeldStream::new(outer),
            recordings: Vec::new(),
            thread: thread::number(),
            before: HeldStream::new(device.streams.current()),
        };
        body.begin(gpus, pool.as_ref(), capture.number)?;
        // First, since afterwards the node is in the graph.
        let entered = device.streams.replace_current(&body.stream, |_| Ok(()));
        let added = entered
            .and_then(|()| capture.add_node(gpus, device, pool.as_ref(), condition, &mut body));
        if let Err(error) = added {
            body.leave(device);
            gpus.unreleased().discard(gpus.driver(), &body.stream);
            drop(gpus.captures().end(gpus, body.number));
            return Err(error);
        }
        capture.bodies.open.push(body);
        state.is_conditional = true;
        Ok(kept)
    }

    /// Sets the condition of the node whose body is being captured, behind the work of a stream, by
    /// default the current one.
    pub fn conditional_set(
        &self,
        gpus: &Gpus,
        predicate: u64,
        stream: Option<&Stream>,
    ) -> Result<()> {
        waiting::refuse_in_callback()?;
        let _call = sanitizer::call();
        let mut state = self.state.lock();
        let (capture, _) = state.active()?;
        let body = capture.bodies.open.last().ok_or(NO_BODY)?;
        let device = gpus.device(capture.stream.device())?;
        let _relaxed = Relaxed::enter(gpus.driver());
        let _context = device.enter()?;
        let stream = stream.unwrap_or_else(|| device.streams.current()).on_this_thread(gpus)?;
        let id = |stream: &Stream| capture_of(gpus.driver(), stream.native());
        let own = id(&body.stream)?;
        if own.is_none() || id(stream)? != own {
            return Err(Error::InvalidState(
                "the stream is not captured into the innermost body: pass the body's stream, or \
                 one that waits for it",
            ));
        }
        set(gpus, device, body.condition, predicate, stream, "tcuda_graph_conditional_set")
    }

    /// Ends the innermost body. The stream that was current before it is current again.
    pub fn conditional_end(&self, gpus: &Gpus) -> Result<()> {
        waiting::refuse_in_callback()?;
        let _call = sanitizer::call();
        let mut state = self.state.lock();
        let (capture, _) = state.active()?;
        let device = gpus.device(capture.stream.device())?;
        let _relaxed = Relaxed::enter(gpus.driver());
        let _context = device.enter()?;
        let body = capture.bodies.open.pop_if(|body| body.thread == thread::number());
        let Some(mut body) = body else {
            return Err(match capture.bodies.open.is_empty() {
                true => NO_BODY,
                false => Error::InvalidState("a body ends on the thread that began it"),
            });
        };
        let ended = body.end(gpus);
        body.leave(device);
        capture.bodies.has_failed |= ended.is_err();
        let last = ended?;
        for recording in body.recordings.iter().chain(&last) {
            reports::graph_launched(gpus, &body.outer, 0, Some(recording));
        }
        Ok(())
    }
}

const NO_BODY: Error = Error::InvalidState(
    "no body of a conditional node is being captured: call tcuda_graph_conditional_begin first",
);

impl GraphState {
    /// The active capture, which the calling thread may go on with, and its pool.
    fn active(&mut self) -> Result<(&mut Capture, Option<Pool>)> {
        let pool = self.held.pools.first().map(Pool::share);
        let Phase::Capturing(capture) = &mut self.phase else {
            return Err(Error::InvalidState(
                "the graph is not being captured: call tcuda_graph_capture_begin first",
            ));
        };
        capture.require_thread()?;
        capture.bodies.outcome()?;
        Ok((capture, pool))
    }
}

impl Capture {
    /// The graph that the driver captures into.
    fn root(&self, driver: &Driver) -> Result<CUgraph> {
        match frontier_of(driver, &self.stream)? {
            Some((graph, _)) => Ok(graph),
            None => Err(Error::CaptureInvalidated(
                "the capture was invalidated before: end or abort it, and capture again",
            )),
        }
    }

    /// An error if no conditional node can begin on a stream.
    fn require_place(&self, driver: &Driver, root: CUgraph, stream: &Stream) -> Result<()> {
        let is_here = match self.bodies.open.last() {
            Some(body) => body.stream.is(stream),
            None => frontier_of(driver, stream)?.is_some_and(|(graph, _)| graph == root),
        };
        match is_here {
            true => Ok(()),
            false => Err(Error::InvalidState(
                "a conditional node begins on a stream that the graph captures; within a body, on \
                 the body's stream",
            )),
        }
    }

    /// Adds a node with an empty body. On failure there is none, or the capture has failed.
    fn add_node(
        &mut self,
        gpus: &Gpus,
        device: &Device,
        pool: Option<&Pool>,
        condition: Condition,
        body: &mut Body,
    ) -> Result<()> {
        let driver = gpus.driver();
        let Some(parent) = self.bodies.open.last_mut() else {
            let Some((root, frontier)) = frontier_of(driver, &body.outer)? else {
                return Err(Error::InvalidState(NOT_CAPTURED));
            };
            let (mut node, graph) = add(driver, device, root, &frontier, condition, body)?;
            body.graph = graph;
            let native = body.outer.native();
            // SAFETY: the stream is captured, and the node is of its graph; 1: only this one.
            let set = unsafe {
                driver.cuStreamUpdateCaptureDependencies(native, &mut node, 1, SET_DEPENDENCIES)
            };
            self.bodies.has_failed |= set.is_err();
            return Ok(set?);
        };
        let added = parent.end(gpus).and_then(|recording| {
            parent.recordings.try_reserve(1).map_err(|_| NO_ROOM)?;
            parent.recordings.extend(recording);
            let before = if parent.last == 0 { &[][..] } else { &[parent.last] };
            let (node, graph) =
                add(driver, device, parent.graph as CUgraph, before, condition, body)?;
            (parent.last, body.graph) = (node as usize, graph);
            parent.begin(gpus, pool, self.number)
        });
        self.bodies.has_failed |= added.is_err();
        added
    }
}

/// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`.
const SET_DEPENDENCIES: u32 = 1;

/// Adds a node to a graph. Returns it, and its body.
fn add(
    driver: &Driver,
    device: &Device,
    graph: CUgraph,
    before: &[usize],
    condition: Condition,
    body: &Body,
) -> Result<(CUgraphNode, usize)> {
    let kind = match condition {
        Condition::If => CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_IF,
        Condition::While => CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_WHILE,
    };
    // SAFETY: plain data, for which zero is a value.
    let mut params: CUgraphNodeParams = unsafe { std::mem::zeroed() };
    params.type_ = CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL;
    params.__bindgen_anon_1.conditional = CUDA_CONDITIONAL_NODE_PARAMS {
        handle: body.condition,
        type_: kind,
        size: 1,
        phGraph_out: null_mut(),
        ctx: device.context()?,
    };
    let (mut node, list) = (null_mut(), before.as_ptr().cast());
    // SAFETY: the graph is alive, the nodes are its own, and the rest is readable or writable.
    unsafe { driver.cuGraphAddNode(&mut node, graph, list, null(), before.len(), &mut params) }?;
    // SAFETY: the member that was set, of plain data.
    let bodies = unsafe { params.__bindgen_anon_1.conditional }.phGraph_out;
    // SAFETY: the driver's list of one graph, which lives as long as the node.
    let graph = unsafe { bodies.read() };
    Ok((node, graph as usize))
}

fn create_condition(driver: &Driver, device: &Device, root: CUgraph) -> Result<u64> {
    let (mut handle, context) = (0, device.context()?);
    // SAFETY: the graph is alive, and `handle` is writable.
    unsafe { driver.cuGraphConditionalHandleCreate(&mut handle, root, context, 0, 0) }?;
    Ok(handle)
}

/// Queues the kernel that sets a condition to whether the byte at an address is not 0.
fn set(
    gpus: &Gpus,
    device: &Device,
    condition: u64,
    predicate: u64,
    stream: &Stream,
    label: &'static str,
) -> Result<()> {
    let function = device.kernels().condition(device)?;
    let (mut handle, mut address) = (condition, predicate);
    let mut arguments: [*mut c_void; 2] =
        [from_mut(&mut handle).cast(), from_mut(&mut address).cast()];
    let (native, arguments) = (stream.native(), arguments.as_mut_ptr());
    let driver = gpus.driver();
    // SAFETY: the kernel has these parameters, which the driver copies; the host promises the byte.
    unsafe { driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, native, arguments, null_mut()) }?;
    reports::operation(gpus, stream, label, &[Touch::read(predicate, 1)]);
    Ok(())
}

impl Body {
    /// Begins to capture its stream.
    fn begin(&mut self, gpus: &Gpus, pool: Option<&Pool>, outer: u64) -> Result<()> {
        let (driver, stream) = (gpus.driver(), &*self.stream);
        let number = gpus.captures().begin(gpus, stream, pool.map(Pool::share), Some(outer))?;
        // The capture of the graph decides which calls are unsafe.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is alive.
        let begin = || unsafe { driver.cuStreamBeginCapture(stream.native(), mode) };
        let id = stream.captured_by(begin).map_err(Error::from).and_then(|()| {
            let id = capture_of(driver, stream.native())?;
            id.ok_or(Error::InvalidState("the stream's capture was ended by another"))
        });
        match id {
            Ok(id) => {
                gpus.captures().set_driver_id(number, id);
                self.number = number;
                Ok(())
            }
            Err(error) => {
                gpus.unreleased().discard(driver, stream);
                drop(gpus.captures().end(gpus, number));
                Err(error)
            }
        }
    }

    /// Ends the capture of its stream, and adds what was captured to the node's body.
    fn end(&mut self, gpus: &Gpus) -> Result<Option<Recording>> {
        let (driver, stream) = (gpus.driver(), &*self.stream);
        let captured = reports::capture_of(gpus, stream);
        let ended = end_capture(driver, stream);
        let recording = sanitizer::capture_ended(captured);
        if ended.is_err() {
            gpus.unreleased().discard(driver, stream);
        }
        drop(gpus.captures().end(gpus, self.number));
        let graph = ended?;
        let added = self.add_child(driver, graph);
        destroy_graph(driver, graph as usize);
        added.map(|()| recording)
    }

    /// Adds a copy of a graph to the node's body.
    fn add_child(&mut self, driver: &Driver, graph: CUgraph) -> Result<()> {
        if num_nodes(driver, graph)? == 0 {
            return Ok(());
        }
        require_kinds(driver, graph)?;
        let (mut node, own) = (null_mut(), self.graph as CUgraph);
        let (before, count) = (&self.last, usize::from(self.last != 0));
        let before = std::ptr::from_ref(before).cast();
        // SAFETY: both graphs are alive, the node before is one of the first, or `count` is 0.
        unsafe { driver.cuGraphAddChildGraphNode(&mut node, own, before, count, graph) }?;
        self.last = node as usize;
        Ok(())
    }

    /// Makes the stream current that was so before the body, on the thread that began it.
    fn leave(&self, device: &Device) {
        if self.thread == thread::number() {
            // It fails only where a thread has no streams yet.
            let _ = device.streams.replace_current(&self.before, |_| Ok(()));
        }
    }
}

/// An error if a graph has nodes that bodies cannot have.
fn require_kinds(driver: &Driver, graph: CUgraph) -> Result<()> {
    let mut nodes: Vec<CUgraphNode> = Vec::new();
    let mut count = num_nodes(driver, graph)?;
    nodes.try_reserve_exact(count).map_err(|_| NO_ROOM)?;
    nodes.resize(count, null_mut());
    // SAFETY: the graph is alive, and the list has `count` elements.
    unsafe { driver.cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count) }?;
    for node in nodes {
        let mut kind = 0;
        // SAFETY: the driver writes an enum of this size, read as an integer.
        unsafe { driver.cuGraphNodeGetType(node, from_mut::<i32>(&mut kind).cast()) }?;
        let what = match kind {
            // Kernels, copies, fills, graphs, and nodes without work.
            0 | 1 | 2 | 4 | 5 => continue,
            3 => "a host function in the body of a conditional node",
            6 | 7 => "an event in the body of a conditional node",
            10 | 11 => "memory of the driver's own pools in the body of a conditional node",
            _ => "an operation in the body of a conditional node",
        };
        return Err(Error::NotSupported { what, by: "driver; queue it before or after the node" });
    }
    Ok(())
}
