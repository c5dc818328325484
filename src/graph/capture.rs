//! How captures begin and end, in the order of PyTorch's steps.

use super::conditional::Bodies;
use super::{
    Graph, GraphState, NOT_CAPTURED, Phase, Registered, TEMPLATES, annotations, destroy_graph,
    hooks, num_nodes,
};
use crate::base::error::{Error, Result};
use crate::base::{thread, waiting};
use crate::driver::Driver;
use crate::driver::sys::{CUgraph, CUstreamCaptureMode};
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::external_registry::HeldStream;
use crate::gpu::gpus::Gpus;
use crate::gpu::sanitizer_reports;
use crate::gpu::stream::{Stream, capture_of, is_capturing};
use crate::graph::reclamation::GraphResources;
use crate::memory::arena::pool::Pool;
use crate::memory::device::backend::Server;
use crate::memory::pools::active_captures::Uses;
use crate::sanitizer;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

/// An active capture of a graph.
pub(super) struct Capture {
    pub(super) stream: HeldStream,
    /// The thread that began it, if only that thread may end it.
    thread: Option<u64>,
    /// Number in the list of active captures.
    pub(super) number: u64,
    /// Those of conditional nodes.
    pub(super) bodies: Bodies,
}

impl Capture {
    /// An error unless the calling thread may go on with it.
    pub(super) fn require_thread(&self) -> Result<()> {
        match self.thread.is_some_and(|thread| thread != thread::number()) {
            false => Ok(()),
            true => Err(Error::InvalidState(
                "a capture ends on the thread that began it, unless that was with \
                 TCUDA_CAPTURE_RELAXED; the capture goes on",
            )),
        }
    }
}

fn mode_of(number: i32) -> Result<CUstreamCaptureMode> {
    use CUstreamCaptureMode::*;
    match number {
        0 => Ok(CU_STREAM_CAPTURE_MODE_GLOBAL),
        1 => Ok(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
        2 => Ok(CU_STREAM_CAPTURE_MODE_RELAXED),
        _ => Err(Error::OutOfRange {
            name: "error_mode",
            value: number.into(),
            allowed: "use TCUDA_CAPTURE_GLOBAL, _THREAD_LOCAL or _RELAXED",
        }),
    }
}

/// Ends the capture of a stream. NULL if the driver returned no graph.
pub(super) fn end_capture(driver: &Driver, stream: &Stream) -> Result<CUgraph> {
    let mut graph = null_mut();
    // SAFETY: the stream is alive, and `graph` is writable.
    unsafe { driver.cuStreamEndCapture(stream.native(), &mut graph) }?;
    Ok(graph)
}

impl Graph {
    /// Begins to capture a stream. Without a pool, its allocations come from a new pool.
    pub fn capture_begin(
        &self,
        gpus: &Gpus,
        stream: &Stream,
        pool: Option<Pool>,
        mode: i32,
    ) -> Result<()> {
        waiting::refuse_in_callback()?;
        let cu_mode = mode_of(mode)?;
        if stream.is_default() {
            return Err(Error::Invalid(
                "a device's default stream cannot be captured: pass one of tcuda_stream_create. \
                 The graph may be replayed on any stream.",
            ));
        }
        let device = gpus.device(stream.device())?;
        let _context = device.enter()?;
        if stream.is_capturing(gpus)? {
            return Err(Error::Capturing {
                operation: "tcuda_graph_capture_begin",
                why: "one capture of a stream ends before the next begins",
            });
        }
        let has_pools = matches!(device.memory().server(), Server::Cache);
        if !has_pools && pool.is_some() {
            let (what, by) =
                ("a private pool", "allocator backend: only \"native\" has them; pass NULL");
            return Err(Error::NotSupported { what, by });
        }
        let own = stream.on_this_thread(gpus)?;
        device.memory().end_all(gpus);
        let pool = match pool {
            None if has_pools => Some(Pool::of_graph()?),
            pool => pool,
        };
        let handle = self.handle.load(Ordering::Relaxed);
        let failed = self.state.lock().begin(gpus, own, pool, (mode, cu_mode), handle)?;
        let Some((error, unused)) = failed else {
            self.notify(hooks::CAPTURE_BEGUN);
            return Ok(());
        };
        // The host's functions are freed with no lock held.
        unused.release(gpus);
        Err(error)
    }

    /// Ends the capture, and instantiates the graph unless the template is kept. True if the graph
    /// is empty. On failure the graph is reset. Hooks run between the steps.
    pub fn capture_end(&self, gpus: &Gpus) -> Result<bool> {
        waiting::refuse_in_callback()?;
        let (template, is_empty) = self.take_template(gpus)?;
        self.notify(hooks::CAPTURE_ENDED);
        if !self.keeps {
            let is_new = self.with_template(gpus, template, |state| match state.exec {
                0 => state.instantiate(gpus.driver(), gpus.device(state.device)?).map(|()| true),
                // A hook has replayed it.
                _ => Ok(false),
            })?;
            if is_new {
                self.notify(hooks::INSTANTIATED);
            }
            self.with_template(gpus, template, |state| {
                destroy_graph(gpus.driver(), std::mem::take(&mut state.template));
                Ok(())
            })?;
        }
        Ok(is_empty)
    }

    /// Ends the capture, and stores the template. True if it is empty.
    fn take_template(&self, gpus: &Gpus) -> Result<(usize, bool)> {
        let (outcome, resources) = {
            let _templates = TEMPLATES.lock();
            let mut state = self.state.lock();
            let Phase::Capturing(capture) = &state.phase else {
                return Err(Error::InvalidState(
                    "the graph is not being captured: call tcuda_graph_capture_begin first",
                ));
            };
            capture.require_thread()?;
            capture.bodies.require_ended()?;
            let outcome = capture.bodies.outcome();
            let ended = match (state.stop_capture(Some(gpus)), outcome) {
                (Ok(graph), Err(error)) => {
                    destroy_graph(gpus.driver(), graph as usize);
                    Err(error)
                }
                (ended, _) => ended,
            };
            match ended.and_then(|graph| state.take_over(gpus, graph)) {
                Ok(found) => return Ok(found),
                Err(error) => (error, state.clear()),
            }
        };
        resources.release(gpus);
        Err(outcome)
    }

    /// Runs a step after the end of a capture, unless a hook or another thread has emptied the
    /// graph since. On failure the graph is reset.
    fn with_template<R>(
        &self,
        gpus: &Gpus,
        template: usize,
        body: impl FnOnce(&mut GraphState) -> Result<R>,
    ) -> Result<R> {
        let (outcome, resources) = {
            let _templates = TEMPLATES.lock();
            let mut state = self.state.lock();
            if !matches!(state.phase, Phase::Captured) || state.template != template {
                return Err(Error::InvalidState("the graph was emptied while its capture ended"));
            }
            match body(&mut state) {
                Ok(found) => return Ok(found),
                Err(error) => (error, state.clear()),
            }
        };
        resources.release(gpus);
        Err(outcome)
    }

    /// Ends the capture without a graph, on any thread. Does nothing if the graph is not being
    /// captured.
    pub fn capture_abort(&self, gpus: &Gpus) -> Result<()> {
        waiting::refuse_in_callback()?;
        let resources = {
            let _templates = TEMPLATES.lock();
            let mut state = self.state.lock();
            match state.phase {
                Phase::Capturing(_) => (),
                Phase::Empty => return Ok(()),
                Phase::Captured => {
                    return Err(Error::InvalidState(
                        "the capture has ended already; tcuda_graph_reset drops the graph",
                    ));
                }
            }
            state.abandon(Some(gpus));
            state.clear()
        };
        resources.release(gpus);
        Ok(())
    }
}

impl GraphState {
    /// Begins a capture on a stream; the state is empty. If the driver fails: its error, and what
    /// the capture used.
    fn begin(
        &mut self,
        gpus: &Gpus,
        own: &Stream,
        pool: Option<Pool>,
        (mode, cu_mode): (i32, CUstreamCaptureMode),
        handle: usize,
    ) -> Result<Option<(Error, GraphResources)>> {
        match self.phase {
            Phase::Empty => (),
            Phase::Capturing(_) => {
                return Err(Error::InvalidState(
                    "the graph is being captured already: end or abort that capture first",
                ));
            }
            Phase::Captured => {
                return Err(Error::InvalidState(
                    "the graph has a capture already: make another by tcuda_graph_create, or \
                     empty this one by tcuda_graph_reset",
                ));
            }
        }
        let pool = pool.map(Pool::for_graph);
        self.held.make_room_for_pools(1)?;
        self.register(gpus, gpus.device_of(own)?.generator())?;
        self.driver = Some(gpus.driver());
        let number = gpus.captures().begin(gpus, own, pool.as_ref().map(Pool::share), None)?;
        let listed = annotations::capture_begins(number, handle);
        let begun = listed.and_then(|()| self.begin_capture(gpus, own, cu_mode, number));
        if let Err(error) = begun {
            annotations::capture_ended(number);
            let mut unused = GraphResources::default();
            unused.take(gpus.captures().end(gpus, number));
            return Ok(Some((error, unused)));
        }
        self.device = own.device();
        self.held.pools.extend(pool);
        let is_bound = mode != 2 || own.is_per_thread();
        let thread = is_bound.then(thread::number);
        let (stream, bodies) = (HeldStream::new(own), Bodies::default());
        self.phase = Phase::Capturing(Capture { stream, thread, number, bodies });
        Ok(None)
    }

    /// Prepares the generators and begins the capture. On failure it undoes both.
    fn begin_capture(
        &mut self,
        gpus: &Gpus,
        stream: &Stream,
        mode: CUstreamCaptureMode,
        number: u64,
    ) -> Result<()> {
        let driver = gpus.driver();
        let mut outcome = Ok(());
        let mut prepared = 0;
        for Registered { generator, .. } in &self.generators {
            outcome = generator.capture_prologue();
            if outcome.is_err() {
                break;
            }
            prepared += 1;
        }
        if outcome.is_ok() {
            // SAFETY: the stream is alive.
            let begin = || unsafe { driver.cuStreamBeginCapture(stream.native(), mode) };
            let begun = stream.captured_by(begin);
            outcome = begun.map_err(Error::from).and_then(|()| {
                let id = capture_of(gpus.driver(), stream.native()).and_then(|id| {
                    id.ok_or(Error::InvalidState("the stream's capture was ended by another"))
                });
                match id {
                    Ok(id) => {
                        gpus.captures().set_driver_id(number, id);
                        for Registered { generator, .. } in &self.generators {
                            generator.capture_begun(id);
                        }
                        Ok(())
                    }
                    Err(error) => {
                        gpus.unreleased().discard(driver, stream);
                        Err(error)
                    }
                }
            });
        }
        if outcome.is_err() {
            for Registered { generator, .. } in &self.generators[..prepared] {
                generator.capture_epilogue();
            }
        }
        outcome
    }

    /// Ends an active capture and destroys its template.
    pub(super) fn abandon(&mut self, gpus: Option<&Gpus>) {
        let driver = self.driver;
        if let (Ok(graph), Some(driver)) = (self.stop_capture(gpus), driver) {
            destroy_graph(driver, graph as usize);
        }
    }

    /// Ends the capture in the driver, and in the list of active captures if there is a runtime.
    fn stop_capture(&mut self, gpus: Option<&Gpus>) -> Result<CUgraph> {
        let Phase::Capturing(mut capture) = std::mem::replace(&mut self.phase, Phase::Empty) else {
            return Err(Error::InvalidState(NOT_CAPTURED));
        };
        let Some(driver) = self.driver else { return Err(Error::InvalidState(NOT_CAPTURED)) };
        let _relaxed = Relaxed::enter(driver);
        let stream = &*capture.stream;
        let device = gpus.and_then(|gpus| gpus.device(stream.device()).ok());
        let _context = device.and_then(|device| device.enter().ok());
        capture.bodies.close(driver, gpus.zip(device));
        let captured = gpus.and_then(|gpus| sanitizer_reports::capture_of(gpus, stream));
        let ended = end_capture(driver, stream);
        let recording = sanitizer::capture_ended(captured);
        self.annotations = annotations::capture_ended(capture.number);
        if let Some(gpus) = gpus {
            if ended.is_err() {
                // The failed call may have left the stream captured.
                gpus.unreleased().discard(driver, stream);
            }
            let uses = gpus.captures().end(gpus, capture.number);
            self.held.take(Uses { recording, ..uses });
        }
        for registered in &mut self.generators {
            registered.increment = registered.generator.capture_epilogue();
        }
        let graph = ended?;
        if graph.is_null() {
            return Err(Error::InvalidState("the capture gave no graph"));
        }
        Ok(graph)
    }

    /// Stores the captured template. True if it is empty.
    fn take_over(&mut self, gpus: &Gpus, graph: CUgraph) -> Result<(usize, bool)> {
        self.template = graph as usize;
        let is_empty = num_nodes(gpus.driver(), graph)? == 0;
        self.annotations.end_all(gpus.driver(), graph)?;
        self.phase = Phase::Captured;
        Ok((self.template, is_empty))
    }
}

/// Ends a capture and destroys its graph. False: the driver failed.
pub(super) fn discard(driver: &Driver, stream: &Stream) -> bool {
    for _ in 0..2 {
        if let Ok(false) = is_capturing(driver, stream.native()) {
            return true;
        }
        if let Ok(graph) = end_capture(driver, stream) {
            destroy_graph(driver, graph as usize);
            return true;
        }
    }
    is_capturing(driver, stream.native()).is_ok_and(|is_captured| !is_captured)
}
