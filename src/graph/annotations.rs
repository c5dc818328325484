//! Annotations: texts on the nodes that are captured while they are open on a stream.
//!
//! When an annotation begins, the nodes that the stream's next work depends on are noted, with the
//! nodes that depend on them already. When it ends, the nodes that were added behind them since are
//! its own. So it covers work of other streams that joins behind its beginning, too.

use super::data::EdgeData;
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::driver::sys::{CUgraph, CUgraphEdgeData, CUgraphNode, CUstreamCaptureStatus};
use crate::driver::{CudaError, CudaResult, Driver};
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use std::ptr::null_mut;

const NO_ROOM: Error = Error::OutOfHostMemory("the annotations of a graph");

/// A text, and the nodes that have it.
pub(super) struct Annotation {
    pub(super) text: Vec<u8>,
    /// Sorted.
    pub(super) nodes: Vec<usize>,
}

/// A node behind which the annotated nodes are added; 0: the graph itself, whose dependents are the
/// nodes without dependencies.
struct Start {
    node: usize,
    /// Its dependents when the annotation began.
    known: Vec<usize>,
}

/// An annotation that has not ended.
struct Open {
    /// The stream's handle of the driver.
    stream: usize,
    text: Vec<u8>,
    starts: Vec<Start>,
}

/// An active capture of this library.
struct Active {
    /// Its number in the list of active captures.
    number: u64,
    /// The host's handle of the graph; 0: a graph of a callable.
    graph: usize,
    annotations: Annotations,
}

/// The annotations of a capture.
#[derive(Default)]
pub(super) struct Annotations {
    open: Vec<Open>,
    /// In the order of their ends, so that the inner of two comes first.
    pub(super) ended: Vec<Annotation>,
}

static ACTIVE: Mutex<Vec<Active>> = Mutex::new(Rank::LEAF, Vec::new());

/// Lists a capture.
pub(super) fn capture_begins(number: u64, graph: usize) -> Result<()> {
    let mut active = ACTIVE.lock();
    active.try_reserve(1).map_err(|_| NO_ROOM)?;
    active.push(Active { number, graph, annotations: Annotations::default() });
    Ok(())
}

/// Removes a capture from the list, and returns its annotations.
pub(super) fn capture_ended(number: u64) -> Annotations {
    let mut active = ACTIVE.lock();
    let index = active.iter().position(|capture| capture.number == number);
    index.map(|index| active.swap_remove(index).annotations).unwrap_or_default()
}

/// The host's handle of the graph that a stream is captured into. 0: none of this library.
pub fn graph_of(gpus: &Gpus, stream: &Stream) -> Result<usize> {
    let Some(number) = gpus.captures().number_of(gpus, stream)? else { return Ok(0) };
    let active = ACTIVE.lock();
    let found = active.iter().find(|capture| capture.number == number);
    Ok(found.map_or(0, |capture| capture.graph))
}

/// Runs `body` on the annotations of an active capture. `None`: it has ended.
fn with<R>(number: u64, body: impl FnOnce(&mut Annotations) -> R) -> Option<R> {
    let mut active = ACTIVE.lock();
    let found = active.iter_mut().find(|capture| capture.number == number);
    found.map(|capture| body(&mut capture.annotations))
}

/// Begins an annotation on a stream. Does nothing if this library does not capture the stream, or
/// captures it into the body of a conditional node.
pub fn push(gpus: &Gpus, stream: &Stream, text: &str) -> Result<()> {
    let Some(number) = gpus.captures().number_outside_bodies(gpus, stream)? else {
        return Ok(());
    };
    let mut copy = Vec::new();
    copy.try_reserve_exact(text.len()).map_err(|_| NO_ROOM)?;
    copy.extend_from_slice(text.as_bytes());
    let _context = stream.enter(gpus)?;
    let native = stream.native();
    let Some(starts) = starts_of(gpus.driver(), stream)? else { return Ok(()) };
    with(number, |annotations| {
        annotations.open.try_reserve(1).map_err(|_| NO_ROOM)?;
        annotations.open.push(Open { stream: native as usize, text: copy, starts });
        Ok(())
    })
    .unwrap_or(Ok(()))
}

/// Ends the last annotation that was begun on a stream. Does nothing where `push` does not. On
/// failure it stays open.
pub fn pop(gpus: &Gpus, stream: &Stream) -> Result<()> {
    let Some(number) = gpus.captures().number_outside_bodies(gpus, stream)? else {
        return Ok(());
    };
    let _context = stream.enter(gpus)?;
    let native = stream.native() as usize;
    let driver = gpus.driver();
    let Some((graph, _)) = frontier_of(driver, stream)? else { return Ok(()) };
    let last = with(number, |annotations| {
        let index = annotations.open.iter().rposition(|open| open.stream == native);
        index.map(|index| annotations.open.remove(index))
    });
    let Some(mut last) = last.flatten() else {
        return Err(Error::InvalidState(
            "no annotation is open on this stream: begin one by tcuda_graph_annotation_push",
        ));
    };
    let ended = last.nodes(driver, graph).and_then(|nodes| {
        with(number, |annotations| annotations.end(&mut last, nodes)).unwrap_or(Ok(()))
    });
    if ended.is_err() {
        with(number, |annotations| {
            if annotations.open.try_reserve(1).is_ok() {
                annotations.open.push(last);
            }
        });
    }
    ended
}

impl Annotations {
    /// Adds an annotation that has ended. On failure `last` is unchanged.
    fn end(&mut self, last: &mut Open, nodes: Vec<usize>) -> Result<()> {
        self.ended.try_reserve(1).map_err(|_| NO_ROOM)?;
        self.ended.push(Annotation { text: std::mem::take(&mut last.text), nodes });
        Ok(())
    }

    /// Ends those that are open, in the template that was captured.
    pub(super) fn end_all(&mut self, driver: &'static Driver, graph: CUgraph) -> Result<()> {
        while let Some(mut last) = self.open.pop() {
            let nodes = last.nodes(driver, graph)?;
            self.end(&mut last, nodes)?;
        }
        Ok(())
    }
}

impl Open {
    /// The nodes that were added since it began, sorted.
    fn nodes(&self, driver: &'static Driver, graph: CUgraph) -> Result<Vec<usize>> {
        let _relaxed = Relaxed::enter(driver);
        let (mut found, mut left) = (Vec::new(), Vec::new());
        let mut seen = Vec::new();
        for start in &self.starts {
            insert(&mut seen, start.node)?;
        }
        for start in &self.starts {
            for node in dependents(driver, graph, start.node)? {
                if !start.known.contains(&node) && insert(&mut seen, node)? {
                    push_to(&mut left, node)?;
                }
            }
        }
        while let Some(node) = left.pop() {
            insert(&mut found, node)?;
            for node in dependents(driver, graph, node)? {
                if insert(&mut seen, node)? {
                    push_to(&mut left, node)?;
                }
            }
        }
        Ok(found)
    }
}

fn push_to(list: &mut Vec<usize>, node: usize) -> Result<()> {
    list.try_reserve(1).map_err(|_| NO_ROOM)?;
    list.push(node);
    Ok(())
}

/// Inserts a node into a sorted list. False: it is there already.
fn insert(list: &mut Vec<usize>, node: usize) -> Result<bool> {
    let Err(place) = list.binary_search(&node) else { return Ok(false) };
    list.try_reserve(1).map_err(|_| NO_ROOM)?;
    list.insert(place, node);
    Ok(true)
}

/// The graph that a stream is captured into, and the nodes that its next work depends on.
pub(super) fn frontier_of(
    driver: &Driver,
    stream: &Stream,
) -> Result<Option<(CUgraph, Vec<usize>)>> {
    let (mut status, mut id, mut graph) = (0i32, 0, null_mut());
    let (mut nodes, mut count) = (std::ptr::null::<CUgraphNode>(), 0);
    let out = std::ptr::from_mut(&mut status).cast::<CUstreamCaptureStatus>();
    // SAFETY: the driver writes an enum of this size, read as an integer; all are writable.
    unsafe {
        driver.cuStreamGetCaptureInfo(
            stream.native(),
            out,
            &mut id,
            &mut graph,
            &mut nodes,
            &mut count,
        )
    }?;
    if status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE as i32 {
        return Ok(None);
    }
    let mut frontier = Vec::new();
    for index in 0..count {
        // SAFETY: the driver's list has `count` elements.
        let node = unsafe { nodes.add(index) };
        // SAFETY: as above; it is valid until the next call for this stream.
        let node = unsafe { node.read() };
        push_to(&mut frontier, node as usize)?;
    }
    Ok(Some((graph, frontier)))
}

/// What an annotation that begins now begins behind. `None`: the stream is not captured.
fn starts_of(driver: &'static Driver, stream: &Stream) -> Result<Option<Vec<Start>>> {
    let Some((graph, mut frontier)) = frontier_of(driver, stream)? else { return Ok(None) };
    let _relaxed = Relaxed::enter(driver);
    if frontier.is_empty() {
        push_to(&mut frontier, 0)?;
    }
    let mut starts = Vec::new();
    starts.try_reserve_exact(frontier.len()).map_err(|_| NO_ROOM)?;
    for node in frontier {
        starts.push(Start { node, known: dependents(driver, graph, node)? });
    }
    Ok(Some(starts))
}

/// The nodes that depend on a node; of 0, the nodes without dependencies.
fn dependents(driver: &'static Driver, graph: CUgraph, node: usize) -> Result<Vec<usize>> {
    let node = node as CUgraphNode;
    let (mut list, mut edges) = (Vec::new(), Vec::new());
    // A node may be added between the two calls.
    let mut count = 0;
    query(driver, graph, node, &mut count, null_mut(), null_mut())?;
    if count > 0 {
        list.try_reserve_exact(count).map_err(|_| NO_ROOM)?;
        list.resize(count, 0usize);
        edges.try_reserve_exact(count).map_err(|_| NO_ROOM)?;
        edges.resize(count, EdgeData::default());
        query(
            driver,
            graph,
            node,
            &mut count,
            list.as_mut_ptr().cast(),
            edges.as_mut_ptr().cast(),
        )?;
        list.truncate(count);
    }
    Ok(list)
}

/// `nodes` and `edges` have `count` elements, or are NULL.
fn query(
    driver: &'static Driver,
    graph: CUgraph,
    node: CUgraphNode,
    count: &mut usize,
    nodes: *mut CUgraphNode,
    edges: *mut CUgraphEdgeData,
) -> CudaResult {
    if node.is_null() {
        // SAFETY: the graph is alive, and the list as long as `count` tells.
        return unsafe { driver.cuGraphGetRootNodes(graph, nodes, count) };
    }
    // SAFETY: the node is alive, and the lists are as long as `count` tells.
    match unsafe { driver.cuGraphNodeGetDependentNodes_v2(node, nodes, edges, count) } {
        // SAFETY: as above.
        Err(error) if error.code == CudaError::MISSING => unsafe {
            driver.cuGraphNodeGetDependentNodes(node, nodes, count)
        },
        found => found,
    }
}
