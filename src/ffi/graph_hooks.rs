//! Section "Graphs" of the header: hooks.

use super::boundary::{boundary, flag};
use super::graph::{GRAPHS, tcuda_graph};
use super::library::tcuda_destroy_fn;
use super::observer::{Registration, register, tcuda_observer};
use super::status::tcuda_status;
use super::user_data::UserData;
use crate::base::error::{Error, Result};
use crate::base::thread::try_box;
use crate::driver::sys::{CUgraph_st, CUgraphExec_st};
use crate::graph::Retained;
use crate::graph::hooks::{self, Hook, Seen};
use std::ffi::c_void;

/// Steps of a graph's life: TCUDA_GRAPH_..., which can be combined.
pub type tcuda_graph_event = u32;
/// The capture has begun. Work that the hook queues on the captured streams is captured, and calls
/// that are unsafe during captures invalidate it.
pub const TCUDA_GRAPH_CAPTURE_BEGUN: u32 = 1;
/// The capture has ended, neither aborted nor failed, and the graph is not executable yet; the
/// template exists, kept or not.
pub const TCUDA_GRAPH_CAPTURE_ENDED: u32 = 2;
/// The graph was made executable, perhaps again; the template exists, kept or not.
pub const TCUDA_GRAPH_INSTANTIATED: u32 = 4;
/// A replay is about to be queued; the graph is executable.
pub const TCUDA_GRAPH_REPLAY_BEGINS: u32 = 8;
/// A replay was queued, or failed; its work need not have run.
pub const TCUDA_GRAPH_REPLAY_QUEUED: u32 = 16;
/// What was captured is about to be destroyed, by tcuda_graph_reset or tcuda_graph_destroy. Replays
/// may still be running.
pub const TCUDA_GRAPH_DESTROYED: u32 = 32;

// The layers below have the same numbers.
const _: () = assert!(
    TCUDA_GRAPH_CAPTURE_BEGUN == hooks::CAPTURE_BEGUN
        && TCUDA_GRAPH_CAPTURE_ENDED == hooks::CAPTURE_ENDED
        && TCUDA_GRAPH_INSTANTIATED == hooks::INSTANTIATED
        && TCUDA_GRAPH_REPLAY_BEGINS == hooks::REPLAY_BEGINS
        && TCUDA_GRAPH_REPLAY_QUEUED == hooks::REPLAY_QUEUED
        && TCUDA_GRAPH_DESTROYED == hooks::DESTROYED
);

/// Called at a step of a graph's life, on the thread that takes it, perhaps on several threads at
/// once. It cannot stop the step. It may look at the graph, and call the library as the thread
/// could before. In a replay of a graphed callable, calls that wait give
/// TCUDA_STATUS_INVALID_STATE.
///
/// event is one of TCUDA_GRAPH_...; graph is NULL for those of a graphed callable; cu_graph, the
/// template, and cu_graph_exec are NULL where there is none at that step.
pub type tcuda_graph_hook_fn = Option<
    unsafe extern "C" fn(
        user_data: *mut c_void,
        event: tcuda_graph_event,
        graph: *mut tcuda_graph,
        cu_graph: *mut CUgraph_st,
        cu_graph_exec: *mut CUgraphExec_st,
    ),
>;

/// The host's function as a hook.
struct HostHook {
    hook: unsafe extern "C" fn(
        *mut c_void,
        tcuda_graph_event,
        *mut tcuda_graph,
        *mut CUgraph_st,
        *mut CUgraphExec_st,
    ),
    user_data: UserData,
}

impl Hook for HostHook {
    fn run(&self, event: u32, seen: &Seen) {
        let graph = seen.handle as *mut tcuda_graph;
        // SAFETY: the host's own function with its own data.
        unsafe { (self.hook)(self.user_data.ptr(), event, graph, seen.template, seen.exec) };
    }

    fn attached(&self) {
        self.user_data.take();
    }
}

impl Retained for UserData {
    fn taken(&self) {
        self.take();
    }
}

/// Registers a function that is called at steps of a graph's life, or of every graph's, those of
/// graphed callables included. Hooks of all graphs run before those of the graph, both in the order
/// of their registration. tcuda_graph_reset keeps the hooks of a graph, tcuda_graph_destroy removes
/// them, tcuda_shutdown removes all. Without any hook a replay costs a load and a branch more.
/// (torch.cuda.graphs.register_graph_capture_start_hook, register_graph_capture_end_hook,
/// register_graph_instantiate_hook, register_graph_replay_start_hook,
/// register_graph_replay_end_hook, register_graph_destroy_hook; of a CUDAGraph:
/// register_capture_start_hook, register_capture_end_hook, register_post_instantiate_hook,
/// register_replay_start_hook, register_replay_end_hook, register_destroy_callback)
///
/// @param graph          NULL: all graphs, present and future
/// @param events         TCUDA_GRAPH_..., at least one
/// @param hook           not NULL
/// @param user_data      the caller's, passed to the hook; may be NULL
/// @param destroy        called with user_data once no thread is in the hook; may be NULL
/// @param[out] observer  the caller's, to be destroyed, which removes the hook; may be NULL:
/// registered as long as the graph, or until tcuda_shutdown
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_on_event(
    graph: *mut tcuda_graph,
    events: tcuda_graph_event,
    hook: tcuda_graph_hook_fn,
    user_data: *mut c_void,
    destroy: tcuda_destroy_fn,
    observer: *mut *mut tcuda_observer,
) -> tcuda_status {
    boundary(|call| {
        let hook = hook.ok_or(Error::Null { name: "hook" })?;
        require_events(events)?;
        let graph = match graph.is_null() {
            true => None,
            false => Some(GRAPHS.get(graph as usize, "graph", call)?),
        };
        // Initialise: a registration ends at shutdown.
        call.gpus()?;
        let registration = hooks::Registration::new(graph)?;
        let host = HostHook { hook, user_data: UserData::new(user_data, destroy) };
        let host = try_box(host, "a hook")?;
        let kept = Registration::Graphs(registration.share());
        register(observer, kept, || registration.attach(events, host))
    })
}

/// Keeps an object of the host as long as what a graph captures: `destroy` is called when the graph
/// is reset or destroyed, or at tcuda_shutdown. An executable that tcuda_graph_update changed keeps
/// the objects of its source, too. (torch.cuda.CUDAGraph.retain_object)
///
/// @param graph        not NULL
/// @param user_data    passed to destroy; may be NULL
/// @param destroy      not NULL
/// @param synchronize  1: destroy is called after all replays are complete, which the host waits
///                     for; while a stream of them is captured, by a later tcuda_graph_reset or
///                     tcuda_memory_empty_cache. 0: at once, so that it must not free what replays
///                     may still use
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_retain(
    graph: *mut tcuda_graph,
    user_data: *mut c_void,
    destroy: tcuda_destroy_fn,
    synchronize: i32,
) -> tcuda_status {
    boundary(|call| {
        let graph = GRAPHS.get(graph as usize, "graph", call)?;
        if destroy.is_none() {
            return Err(Error::Null { name: "destroy" });
        }
        let waits = flag(synchronize, "synchronize")?;
        graph.retain(try_box(UserData::new(user_data, destroy), "what a graph holds")?, waits)
    })
}

fn require_events(events: u32) -> Result<()> {
    if events == 0 || events & !hooks::ALL_EVENTS != 0 {
        return Err(Error::OutOfRange {
            name: "events",
            value: events.into(),
            allowed: "combine TCUDA_GRAPH_CAPTURE_BEGUN to TCUDA_GRAPH_DESTROYED, at least one",
        });
    }
    Ok(())
}
