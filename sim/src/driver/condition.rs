//! The conditions of graphs' conditional nodes: values that kernels set.

use super::sync::{read, write};
use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, RwLock, Weak};

/// The conditions of all graphs, by handle.
#[derive(Default)]
pub(super) struct Conditions {
    all: RwLock<BTreeMap<u64, Weak<Condition>>>,
    last: AtomicU64,
}

/// A value that kernels of a graph set.
pub(super) struct Condition {
    pub(super) handle: u64,
    /// The ID of the outermost graph that it belongs to.
    pub(super) root: u32,
    /// The value at the beginning of each launch; `None`: that of the last launch.
    default: Option<c_uint>,
    value: AtomicU32,
    /// A node has it.
    pub(super) is_used: AtomicBool,
    conditions: Arc<Conditions>,
}

impl Drop for Condition {
    fn drop(&mut self) {
        write(&self.conditions.all).remove(&self.handle);
    }
}

impl Condition {
    pub(super) fn value(&self) -> u32 {
        self.value.load(Ordering::Relaxed)
    }

    /// Sets it to its value at the beginning of a launch.
    pub(super) fn reset(&self) {
        if let Some(value) = self.default {
            self.value.store(value, Ordering::Relaxed);
        }
    }
}

impl Conditions {
    /// Creates a condition of the graph with this ID.
    pub(super) fn create(self: &Arc<Self>, root: u32, default: Option<c_uint>) -> Arc<Condition> {
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let made = Arc::new(Condition {
            handle,
            root,
            default,
            value: AtomicU32::new(0),
            is_used: AtomicBool::new(false),
            conditions: Arc::clone(self),
        });
        write(&self.all).insert(handle, Arc::downgrade(&made));
        made
    }

    /// The condition of a handle.
    pub(super) fn find(&self, handle: u64) -> Option<Arc<Condition>> {
        read(&self.all).get(&handle).and_then(Weak::upgrade)
    }

    /// Sets a condition; false if the handle is none.
    pub(super) fn set(&self, handle: u64, value: u32) -> bool {
        let found = self.find(handle);
        found.is_some_and(|condition| {
            condition.value.store(value, Ordering::Relaxed);
            true
        })
    }
}
