//! Hooks: functions of the host that run at the steps of a graph's life, for one graph or for all.
//! They run with no lock of a graph held, so that they may look at the graph. Those of all graphs
//! run first, both in the order of their registration.

use super::Graph;
use crate::base::error::Result;
use crate::base::observers::{Observers, next_number};
use crate::base::shared::Shared;
use crate::base::waiting;
use crate::driver::sys::{CUgraph, CUgraphExec};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The capture has begun.
pub const CAPTURE_BEGUN: u32 = 1;
/// The capture has ended; the template exists.
pub const CAPTURE_ENDED: u32 = 2;
/// The graph was made executable, perhaps again; the template still exists.
pub const INSTANTIATED: u32 = 4;
/// The graph is about to be launched.
pub const REPLAY_BEGINS: u32 = 8;
/// The launch was queued, or failed.
pub const REPLAY_QUEUED: u32 = 16;
/// What was captured is about to be destroyed.
pub const DESTROYED: u32 = 32;
/// All of them.
pub const ALL_EVENTS: u32 = 63;

/// A graph as a hook sees it.
#[derive(Clone, Copy)]
pub struct Seen {
    /// The host's handle; 0: a graph of a callable.
    pub handle: usize,
    /// The template; NULL: none.
    pub template: CUgraph,
    /// What is launched; NULL: none.
    pub exec: CUgraphExec,
}

/// A function of the host.
pub trait Hook: Send + Sync {
    /// Runs it.
    fn run(&self, event: u32, seen: &Seen);
    /// Called once the hook is in the list; registering it can no longer fail.
    fn attached(&self);
}

/// A hook with the events that it observes.
pub struct Entry {
    events: u32,
    hook: Box<dyn Hook>,
}

/// Number of hooks that exist.
static COUNT: AtomicUsize = AtomicUsize::new(0);

impl Entry {
    fn new(events: u32, hook: Box<dyn Hook>) -> Entry {
        COUNT.fetch_add(1, Ordering::Relaxed);
        Entry { events, hook }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The hooks of all graphs.
static ALL: Observers<Entry> = Observers::new();

/// The hooks of a graph.
pub type Hooks = Observers<Entry>;

/// Where a hook is registered: in the list of a graph, or in that of all graphs.
pub struct Registration {
    list: Option<Shared<Hooks>>,
    number: u64,
}

impl Registration {
    /// A place in the list of a graph, or of all graphs.
    pub fn new(graph: Option<&Graph>) -> Result<Registration> {
        Ok(Registration { list: graph.map(Graph::hooks).transpose()?, number: next_number() })
    }

    /// A second owner of the same place.
    pub fn share(&self) -> Registration {
        Registration { list: self.list.as_ref().map(Shared::share), number: self.number }
    }

    fn list(&self) -> &Hooks {
        self.list.as_deref().unwrap_or(&ALL)
    }

    /// Registers a hook. On failure it is dropped and `attached` was not called.
    pub fn attach(&self, events: u32, hook: Box<dyn Hook>) -> Result<()> {
        self.list().attach(self.number, Entry::new(events, hook), |entry| entry.hook.attached())
    }

    /// Removes the hook, if its graph did not.
    pub fn detach(&self) {
        self.list().detach(self.number);
    }
}

/// Removes the hooks of all graphs.
pub fn detach_all() {
    ALL.detach_all();
}

/// Is any hook registered?
#[inline]
pub(super) fn are_any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// Runs the hooks of a list for an event.
fn run(list: &Hooks, event: u32, seen: &Seen) {
    let mut last = 0;
    while let Some((number, entry)) = list.after(last) {
        last = number;
        if entry.events & event != 0 {
            let _waiting = waiting::in_host_function();
            entry.hook.run(event, seen);
        }
    }
}

impl Graph {
    /// The list of its hooks, which it makes for the first.
    fn hooks(&self) -> Result<Shared<Hooks>> {
        let mut state = self.state.lock();
        if let Some(hooks) = &state.hooks {
            return Ok(hooks.share());
        }
        let hooks = Shared::new(Hooks::new(), "the hooks of a graph")?;
        state.hooks = Some(hooks.share());
        Ok(hooks)
    }

    /// Removes its hooks, when the host destroys it.
    pub fn detach_hooks(&self) {
        let hooks = self.state.lock().hooks.take();
        if let Some(hooks) = hooks {
            hooks.detach_all();
        }
    }

    /// Runs the hooks for an event. The caller holds no lock.
    #[inline]
    pub(super) fn notify(&self, event: u32) {
        if are_any() {
            self.run_hooks(event);
        }
    }

    #[cold]
    #[inline(never)]
    fn run_hooks(&self, event: u32) {
        let (seen, own) = {
            let state = self.state.lock();
            let handle = self.handle.load(Ordering::Relaxed);
            let seen = Seen { handle, template: state.graph(), exec: state.executable() };
            (seen, state.hooks.as_ref().map(Shared::share))
        };
        run(&ALL, event, &seen);
        if let Some(own) = own {
            run(&own, event, &seen);
        }
    }
}
