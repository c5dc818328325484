//! Stream capture: the streams that participate, the operations that they record instead of running
//! them, and the calls that invalidate a capture. Every rule is a row of the contract suite.

use super::arguments::require;
use super::event::{Captured, Event, Recorded};
use super::graph::{Graph, Graphs, Task, Work};
use super::queue::{Action, Kind, Stream};
use super::sync::lock;
use super::worker;
use crate::base::code;
use cudarc::driver::sys::CUgraphEdgeData;
use std::cell::Cell;
use std::ffi::c_uint;
use std::ptr::null;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

/// `CU_KERNEL_NODE_ATTRIBUTE_PRIORITY`.
const PRIORITY: c_uint = 8;

/// Modes of captures and threads.
pub(super) const GLOBAL: c_uint = 0;
pub(super) const RELAXED: c_uint = 2;

thread_local! {
    static MODE: Cell<c_uint> = const { Cell::new(GLOBAL) };
}

/// The active captures.
#[derive(Default)]
pub(super) struct Captures {
    /// Number of active captures; most calls read only this.
    count: AtomicUsize,
    list: Mutex<Vec<Capture>>,
}

/// An active capture.
pub(super) struct Capture {
    pub(super) id: u64,
    mode: c_uint,
    /// The thread that began it.
    thread: u64,
    pub(super) graph: Arc<Graph>,
    /// True if the capture created the graph.
    owns_graph: bool,
    /// True after a call that a capture cannot record; such a capture can only be ended.
    pub(super) broken: bool,
    /// The first is the stream on which the capture began.
    members: Vec<Member>,
}

/// A stream that participates in a capture.
struct Member {
    stream: Arc<Stream>,
    /// Numbers of the nodes that its next operation depends on.
    ends: Vec<usize>,
    /// Handles that `cuStreamGetCaptureInfo` returned last, and as many zeros: the data of the
    /// edges from these nodes.
    shown: Vec<usize>,
}

const _: () = assert!(size_of::<CUgraphEdgeData>() == size_of::<usize>());

/// The results of `cuStreamGetCaptureInfo`.
pub(super) struct Info {
    pub(super) broken: bool,
    pub(super) id: u64,
    pub(super) graph: usize,
    /// Pointers to the node handles and to the data of the edges from them, NULL if there are none.
    pub(super) dependencies: *const usize,
    pub(super) data: *const usize,
    pub(super) count: usize,
}

/// Exchanges the calling thread's mode. The driver accepts any number (580.159).
pub(super) fn exchange_mode(mode: c_uint) -> c_uint {
    MODE.replace(mode)
}

impl Captures {
    #[inline]
    fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    fn list(&self) -> MutexGuard<'_, Vec<Capture>> {
        lock(&self.list)
    }

    /// Removes captures. Returns them, so that the caller drops them without the lock.
    fn remove(&self, list: &mut Vec<Capture>, gone: impl Fn(&Capture) -> bool) -> Vec<Capture> {
        let removed: Vec<Capture> = list.extract_if(.., |capture| gone(capture)).collect();
        self.count.store(list.len(), Ordering::Relaxed);
        removed
    }
}

impl Capture {
    fn takes_part(&self, stream: &Stream) -> bool {
        self.members.iter().any(|member| member.stream.id == stream.id)
    }

    fn began_on(&self, stream: &Stream) -> bool {
        self.members.first().is_some_and(|member| member.stream.id == stream.id)
    }

    /// True if a participating stream is one that the legacy stream `legacy` waits for.
    fn concerns_legacy(&self, legacy: &Stream) -> bool {
        let waits = |member: &Member| {
            member.stream.kind == Kind::Blocking && member.stream.context == legacy.context
        };
        self.members.iter().any(waits)
    }

    fn uses(&self, is_meant: impl Fn(&Stream) -> bool) -> bool {
        self.members.iter().any(|member| is_meant(&member.stream))
    }

    fn member(&mut self, stream: &Stream) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.stream.id == stream.id)
    }

    fn add(&mut self, graphs: &RwLock<Graphs>, stream: &Stream, work: Work) -> Result<(), i32> {
        let graph = Arc::clone(&self.graph);
        let member = self.member(stream).ok_or(code::UNKNOWN)?;
        let after = std::mem::take(&mut member.ends);
        let mut task = Task::from(work);
        if let Work::Action(Action::Kernel(_)) = task.work {
            // A node has the priority of its stream.
            let priority = stream.priority.cast_unsigned().into();
            task.attributes.insert(PRIORITY, [priority, 0, 0, 0, 0, 0, 0, 0]);
        }
        member.ends.push(graph.add(graphs, stream.device, after, task));
        Ok(())
    }

    /// Destroys the graph, unless the host created it.
    fn destroy_graph(&self, graphs: &RwLock<Graphs>) {
        if self.owns_graph {
            self.graph.destroy(graphs);
        }
    }

    /// True if every recorded operation is ordered before the end of the first stream.
    fn is_joined(&self) -> bool {
        let Some((first, others)) = self.members.split_first() else { return true };
        let before = self.graph.ancestors(&first.ends);
        others.iter().flat_map(|member| &member.ends).all(|node| before.contains(node))
    }
}

impl Captures {
    /// True if an operation that is queued on the stream must be recorded.
    #[inline]
    pub(super) fn records(&self, stream: &Stream) -> Result<bool, i32> {
        if !self.any() {
            return Ok(false);
        }
        let mut list = self.list();
        refuse_legacy(&mut list, stream, true)?;
        match of(&mut list, stream) {
            None => Ok(false),
            Some(capture) if capture.broken => Err(code::STREAM_CAPTURE_INVALIDATED),
            Some(_) => Ok(true),
        }
    }

    /// Records an action if the stream is captured; otherwise returns it.
    #[inline]
    pub(super) fn divert(
        &self,
        graphs: &RwLock<Graphs>,
        stream: &Stream,
        action: Action,
    ) -> Result<Option<Action>, i32> {
        if !self.records(stream)? {
            return Ok(Some(action));
        }
        self.add(graphs, stream, Work::Action(action)).map(|()| None)
    }

    /// Records work of a captured stream.
    pub(super) fn add(
        &self,
        graphs: &RwLock<Graphs>,
        stream: &Stream,
        work: Work,
    ) -> Result<(), i32> {
        let mut list = self.list();
        let capture = of(&mut list, stream).ok_or(code::ILLEGAL_STATE)?;
        capture.add(graphs, stream, work)
    }

    /// The graph of a stream's capture.
    pub(super) fn graph_of(&self, stream: &Stream) -> Result<Arc<Graph>, i32> {
        let mut list = self.list();
        let capture = of(&mut list, stream).ok_or(code::ILLEGAL_STATE)?;
        Ok(Arc::clone(&capture.graph))
    }

    /// A call that a captured stream cannot record, whatever the mode.
    pub(super) fn refuse(&self, stream: &Stream) -> Result<(), i32> {
        if !self.any() {
            return Ok(());
        }
        let mut list = self.list();
        refuse_legacy(&mut list, stream, true)?;
        let Some(capture) = of(&mut list, stream) else { return Ok(()) };
        capture.broken = true;
        Err(code::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Invalidates the stream's capture because an operation cannot be recorded.
    pub(super) fn invalidate(&self, stream: &Stream) {
        if let Some(capture) = of(&mut self.list(), stream) {
            capture.broken = true;
        }
    }

    /// Refuses a query of or wait for a captured stream. During other captures it is an unsafe
    /// call.
    pub(super) fn refuse_wait(&self, stream: &Stream) -> Result<(), i32> {
        self.refuse(stream)?;
        self.refuse_unsafe()
    }

    /// Refuses a wait for streams of which one takes part in a capture.
    pub(super) fn refuse_wait_for_all(
        &self,
        is_meant: impl Fn(&Stream) -> bool,
    ) -> Result<(), i32> {
        if !self.any() {
            return Ok(());
        }
        let mut refused = false;
        for capture in self.list().iter_mut().filter(|capture| capture.uses(&is_meant)) {
            capture.broken = true;
            refused = true;
        }
        require(!refused, code::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Checks a call that is unsafe during a capture. The modes of the thread and of the captures
    /// decide whether it is refused. Captures that forbid the call are invalidated.
    #[inline]
    pub(super) fn refuse_unsafe(&self) -> Result<(), i32> {
        if !self.any() {
            return Ok(());
        }
        let (mode, thread) = (MODE.get(), worker::identity());
        let mut refused = false;
        for capture in self.list().iter_mut() {
            let forbids = match mode {
                RELAXED.. => false,
                _ if capture.thread == thread => capture.mode != RELAXED,
                _ => mode == GLOBAL && capture.mode == GLOBAL,
            };
            capture.broken |= forbids;
            refused |= forbids;
        }
        require(!refused, code::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Returns the error for an event whose capture is active. With `breaks`, it also invalidates
    /// the capture. An event of an invalidated or ended capture has no state.
    pub(super) fn refuse_event(&self, event: &Captured, breaks: bool) -> i32 {
        let mut list = self.list();
        match list.iter_mut().find(|capture| capture.id == event.capture && !capture.broken) {
            Some(capture) => {
                capture.broken |= breaks;
                code::STREAM_CAPTURE_EVENT
            }
            None => code::INVALID_VALUE,
        }
    }

    /// Records an event on a captured stream: the event marks the end of the operations recorded
    /// there.
    pub(super) fn mark(&self, stream: &Stream, event: &Arc<Event>) -> Result<bool, i32> {
        if !self.records(stream)? {
            return Ok(false);
        }
        let mut list = self.list();
        let capture = of(&mut list, stream).ok_or(code::ILLEGAL_STATE)?;
        let id = capture.id;
        let ends = capture.member(stream).ok_or(code::UNKNOWN)?.ends.clone();
        event.set(Recorded::Captured(Arc::new(Captured { capture: id, ends })));
        Ok(true)
    }

    /// Handles a stream's wait for an event if a capture is involved; returns true if it did.
    pub(super) fn wait(&self, stream: &Arc<Stream>, recorded: &Recorded) -> Result<bool, i32> {
        if !self.any() && !matches!(recorded, Recorded::Captured(_)) {
            return Ok(false);
        }
        let captured = self.records(stream)?;
        let mut list = self.list();
        let own = list.iter().position(|capture| capture.takes_part(stream));
        let captured = captured && own.is_some();
        let from = match recorded {
            Recorded::Never => return Ok(captured),
            Recorded::At(_) if !captured => return Ok(false),
            // Work from before a capture is not part of it.
            Recorded::At(_) => {
                break_all(&mut list, &[own]);
                return Err(code::STREAM_CAPTURE_ISOLATION);
            }
            Recorded::Captured(from) => from,
        };
        let other = list.iter().position(|found| found.id == from.capture && !found.broken);
        let Some(index) = other else {
            break_all(&mut list, &[own]);
            return Err(code::INVALID_VALUE);
        };
        if stream.kind == Kind::Legacy {
            break_all(&mut list, &[other]);
            return Err(code::STREAM_CAPTURE_IMPLICIT);
        }
        if captured && own != other {
            break_all(&mut list, &[own, other]);
            return Err(code::STREAM_CAPTURE_MERGE);
        }
        let capture = &mut list[index];
        if capture.member(stream).is_none() {
            let stream = Arc::clone(stream);
            capture.members.push(Member { stream, ends: Vec::new(), shown: Vec::new() });
        }
        let member = capture.member(stream).ok_or(code::UNKNOWN)?;
        for node in &from.ends {
            if !member.ends.contains(node) {
                member.ends.push(*node);
            }
        }
        Ok(true)
    }

    /// Adds nodes to those that a stream's next operation depends on; with `replaces` only they
    /// remain.
    pub(super) fn depend(
        &self,
        stream: &Stream,
        nodes: &[usize],
        replaces: bool,
    ) -> Result<(), i32> {
        require(self.records(stream)?, code::ILLEGAL_STATE)?;
        let mut list = self.list();
        let capture = of(&mut list, stream).ok_or(code::ILLEGAL_STATE)?;
        let numbers = capture.graph.numbers(nodes).ok_or(code::INVALID_VALUE)?;
        let ends = &mut capture.member(stream).ok_or(code::UNKNOWN)?.ends;
        if replaces {
            ends.clear();
        }
        for number in numbers {
            if !ends.contains(&number) {
                ends.push(number);
            }
        }
        Ok(())
    }

    /// Begins a capture. It adds to a graph of the host after some of its nodes, or to a new graph.
    pub(super) fn begin(
        &self,
        graphs: &RwLock<Graphs>,
        stream: &Arc<Stream>,
        mode: c_uint,
        into: Option<(Arc<Graph>, Vec<usize>)>,
    ) -> Result<(), i32> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut list = self.list();
        refuse_legacy(&mut list, stream, true)?;
        require(stream.kind != Kind::Legacy, code::STREAM_CAPTURE_UNSUPPORTED)?;
        require(of(&mut list, stream).is_none(), code::ILLEGAL_STATE)?;
        require(mode <= RELAXED, code::INVALID_VALUE)?;
        let owns_graph = into.is_none();
        let (graph, ends) = into.unwrap_or_else(|| (Graph::insert(graphs), Vec::new()));
        list.push(Capture {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            mode,
            thread: worker::identity(),
            graph,
            owns_graph,
            broken: false,
            members: vec![Member { stream: Arc::clone(stream), ends, shown: Vec::new() }],
        });
        self.count.store(list.len(), Ordering::Relaxed);
        Ok(())
    }

    /// Ends a capture and returns its graph.
    pub(super) fn end(&self, graphs: &RwLock<Graphs>, stream: &Stream) -> Result<usize, i32> {
        let mut list = self.list();
        refuse_legacy(&mut list, stream, true)?;
        let capture = of(&mut list, stream).ok_or(code::ILLEGAL_STATE)?;
        if !capture.began_on(stream) {
            capture.broken = true;
            return Err(code::STREAM_CAPTURE_UNMATCHED);
        }
        let outcome = if capture.broken {
            Err(code::STREAM_CAPTURE_INVALIDATED)
        } else if capture.mode != RELAXED && capture.thread != worker::identity() {
            Err(code::STREAM_CAPTURE_WRONG_THREAD)
        } else if !capture.is_joined() {
            Err(code::STREAM_CAPTURE_UNJOINED)
        } else {
            Ok(capture.graph.handle())
        };
        let ended = self.remove(&mut list, |capture| capture.began_on(stream));
        drop(list);
        if outcome.is_err() {
            ended.iter().for_each(|capture| capture.destroy_graph(graphs));
        }
        outcome
    }

    /// Ends the capture that began on a destroyed stream.
    pub(super) fn forget_stream(&self, graphs: &RwLock<Graphs>, stream: &Stream) {
        self.discard(graphs, |capture| capture.began_on(stream));
    }

    /// Ends the captures that use a context that is destroyed.
    pub(super) fn forget_context(&self, graphs: &RwLock<Graphs>, context: usize) {
        self.discard(graphs, |capture| capture.uses(|stream| stream.context == context));
    }

    /// Ends the captures that began on streams which end with their green context.
    pub(super) fn forget_streams(&self, graphs: &RwLock<Graphs>, ends: impl Fn(&Stream) -> bool) {
        self.discard(graphs, |capture| {
            capture.members.first().is_some_and(|member| ends(&member.stream))
        });
    }

    /// Ends captures and destroys their graphs.
    fn discard(&self, graphs: &RwLock<Graphs>, gone: impl Fn(&Capture) -> bool) {
        if self.any() {
            let mut list = self.list();
            let ended = self.remove(&mut list, gone);
            drop(list);
            ended.iter().for_each(|capture| capture.destroy_graph(graphs));
        }
    }

    /// Describes the capture in which a stream participates, if any.
    pub(super) fn info(&self, stream: &Stream) -> Result<Option<Info>, i32> {
        if !self.any() {
            return Ok(None);
        }
        let mut list = self.list();
        refuse_legacy(&mut list, stream, false)?;
        let Some(capture) = of(&mut list, stream) else { return Ok(None) };
        let graph = Arc::clone(&capture.graph);
        let (broken, id) = (capture.broken, capture.id);
        let member = capture.member(stream).ok_or(code::UNKNOWN)?;
        let mut shown = graph.handles(&member.ends);
        let count = shown.len();
        shown.resize(2 * count, 0);
        // An unchanged list keeps its address.
        if member.shown != shown {
            member.shown = shown;
        }
        let (handles, data) = member.shown.split_at(count);
        let start = |list: &[usize]| if list.is_empty() { null() } else { list.as_ptr() };
        let (dependencies, data) = (start(handles), start(data));
        Ok(Some(Info { broken, id, graph: graph.handle(), dependencies, data, count }))
    }
}

/// The capture in which a stream participates.
fn of<'a>(list: &'a mut [Capture], stream: &Stream) -> Option<&'a mut Capture> {
    list.iter_mut().find(|capture| capture.takes_part(stream))
}

/// The legacy stream cannot be used while a stream that it waits for is captured.
fn refuse_legacy(list: &mut [Capture], stream: &Stream, breaks: bool) -> Result<(), i32> {
    let mut refused = false;
    if stream.kind == Kind::Legacy {
        for capture in list.iter_mut().filter(|capture| capture.concerns_legacy(stream)) {
            capture.broken |= breaks;
            refused = true;
        }
    }
    require(!refused, code::STREAM_CAPTURE_IMPLICIT)
}

fn break_all(list: &mut [Capture], places: &[Option<usize>]) {
    for index in places.iter().flatten() {
        list[*index].broken = true;
    }
}
