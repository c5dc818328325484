//! A list of compiled kernels that is searched without a lock: entries are only added.

use super::store::Entry;
use crate::base::error::Result;
use crate::base::shared::Shared;
use crate::base::thread::try_box;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

struct Node<K> {
    key: K,
    entry: Shared<Entry>,
    next: *mut Node<K>,
}

/// Kernels, each with the key that it was compiled for.
pub struct Plans<K> {
    first: AtomicPtr<Node<K>>,
}

// SAFETY: nodes are immutable once they are reachable, and freed with the list.
unsafe impl<K: Send + Sync> Send for Plans<K> {}
// SAFETY: as above.
unsafe impl<K: Send + Sync> Sync for Plans<K> {}

impl<K: PartialEq> Plans<K> {
    /// An empty list.
    pub const fn new() -> Plans<K> {
        Plans { first: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The kernel for a key.
    #[inline]
    pub fn find(&self, key: &K) -> Option<&Shared<Entry>> {
        let mut at = self.first.load(Ordering::Acquire);
        while let Some(node) = NonNull::new(at) {
            // SAFETY: it lives as long as the list.
            let node = unsafe { node.as_ref() };
            if node.key == *key {
                return Some(&node.entry);
            }
            at = node.next;
        }
        None
    }

    /// Adds a kernel. If two threads add the same kernel, both entries stay.
    pub fn add(&self, key: K, entry: Shared<Entry>) -> Result<()> {
        let node = Box::into_raw(try_box(Node { key, entry, next: ptr::null_mut() }, "a kernel")?);
        let mut first = self.first.load(Ordering::Relaxed);
        loop {
            // SAFETY: not reachable yet, and owned by this thread.
            unsafe { (*node).next = first };
            // A thread that finds the node sees its fields.
            let put =
                self.first.compare_exchange(first, node, Ordering::Release, Ordering::Relaxed);
            match put {
                Ok(_) => return Ok(()),
                Err(now) => first = now,
            }
        }
    }
}

impl<K> Drop for Plans<K> {
    fn drop(&mut self) {
        let mut at = *self.first.get_mut();
        while !at.is_null() {
            // SAFETY: from Box::into_raw, and the list is not shared any more.
            let node = unsafe { Box::from_raw(at) };
            at = node.next;
        }
    }
}
