//! Executable graphs: the chains of their operations, the streams that run these, and the memory
//! that a launch allocates.

use super::arguments::require;
use super::graph::{Node, Work};
use super::graph_memory::{Block, GraphMemory};
use super::handles::Handles;
use super::queue::{Point, Stream};
use super::sync::{lock, read, write};
use crate::base::code;
use std::ffi::c_ulonglong;
use std::sync::{Arc, Mutex, RwLock};

/// Flag of `cuGraphInstantiateWithFlags`: the memory of the last launch is freed at the next.
const FREE_AT_LAUNCH: c_ulonglong = 1;

/// All executable graphs.
pub(super) struct Execs {
    pub(super) table: RwLock<Handles<Arc<Exec>>>,
    /// Destroyed ones with a launch that has not finished.
    retired: Mutex<Vec<Arc<Exec>>>,
}

impl Execs {
    pub(super) fn new() -> Execs {
        Execs { table: RwLock::new(Handles::new(10)), retired: Mutex::default() }
    }

    /// Removes those with work for a device whose context is destroyed.
    pub(super) fn forget_device(&self, device: usize) {
        let removed = write(&self.table).extract(|exec| !exec.chains.contains(&device));
        self.retire(removed);
    }

    /// Keeps removed executable graphs until their last launches have finished.
    pub(super) fn retire(&self, removed: Vec<Arc<Exec>>) {
        removed.iter().for_each(|exec| exec.close());
        lock(&self.retired).extend(removed);
        self.drop_finished();
    }

    /// Drops destroyed executable graphs without unfinished work, and their memory.
    pub(super) fn drop_finished(&self) {
        let over: Vec<Arc<Exec>> =
            lock(&self.retired).extract_if(.., |exec| exec.is_over()).collect();
        drop(over);
    }
}

/// An executable graph.
pub(super) struct Exec {
    pub(super) flags: c_ulonglong,
    /// Replaced by an update; the order stays the same.
    nodes: RwLock<Vec<Arc<Node>>>,
    /// For each node: the chain in which it runs.
    pub(super) chain_of: Vec<usize>,
    /// For each chain: its device. The first chain runs on the stream of the launch if that has the
    /// same device.
    pub(super) chains: Vec<usize>,
    pub(super) launched: Mutex<Launched>,
}

/// The streams and the end of earlier launches.
#[derive(Default)]
pub(super) struct Launched {
    /// For each chain: the stream created for it.
    pub(super) streams: Vec<Option<Arc<Stream>>>,
    /// The end of the last launch: launches of one graph do not run concurrently.
    pub(super) last: Option<Point>,
}

impl Exec {
    pub(super) fn new(nodes: Vec<Arc<Node>>, flags: c_ulonglong) -> Exec {
        let (mut chain_of, mut chains, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for (number, node) in nodes.iter().enumerate() {
            // A node extends a chain whose last node it depends on, or begins a chain.
            let goes_on =
                node.after.iter().map(|before| chain_of[*before]).find(|chain: &usize| {
                    node.after.contains(&ends[*chain]) && chains[*chain] == node.device
                });
            let chain = goes_on.unwrap_or(chains.len());
            if chain == chains.len() {
                chains.push(node.device);
                ends.push(number);
            }
            ends[chain] = number;
            chain_of.push(chain);
        }
        let streams = vec![None; chains.len()];
        let launched = Mutex::new(Launched { streams, last: None });
        Exec { flags, nodes: RwLock::new(nodes), chain_of, chains, launched }
    }

    /// The operations of the next launch.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        read(&self.nodes).clone()
    }

    /// Replaces the operations of later launches.
    pub(super) fn replace(&self, nodes: Vec<Arc<Node>>) {
        let before = std::mem::replace(&mut *write(&self.nodes), nodes);
        drop(before);
    }

    /// Allocates the graph's memory. Fails if an earlier launch allocated it and it was not freed.
    pub(super) fn take_memory(&self, memory: &GraphMemory, nodes: &[Arc<Node>]) -> Result<(), i32> {
        if self.flags & FREE_AT_LAUNCH != 0 {
            free_blocks(memory, nodes, false);
        }
        let taken = blocks(nodes, false).any(|block| block.is_live());
        require(!taken, code::INVALID_VALUE)?;
        let known = blocks(nodes, true).all(|block| {
            block.is_live() || blocks(nodes, false).any(|own| Arc::ptr_eq(own, block))
        });
        require(known, code::INVALID_VALUE)?;
        blocks(nodes, false).for_each(|block| block.take(memory));
        free_blocks(memory, nodes, true);
        Ok(())
    }

    /// Destroys its streams; they end after their queued work.
    fn close(&self) {
        lock(&self.launched).streams.iter().flatten().for_each(|stream| stream.destroy());
    }

    fn is_over(&self) -> bool {
        lock(&self.launched).last.as_ref().is_none_or(Point::is_reached)
    }
}

/// The blocks that operations allocate, or with `frees`, free.
fn blocks(nodes: &[Arc<Node>], frees: bool) -> impl Iterator<Item = &Arc<Block>> {
    nodes.iter().filter_map(move |node| match &node.work {
        Work::Allocate(block) if !frees => Some(block),
        Work::Free(block) if frees => Some(block),
        _ => None,
    })
}

/// Frees those blocks that are allocated.
fn free_blocks(memory: &GraphMemory, nodes: &[Arc<Node>], frees: bool) {
    for block in blocks(nodes, frees) {
        let _ = block.free(memory);
    }
}
