//! The primitives of the queues. `models/` compiles those against types that try every
//! interleaving; only this module differs.

pub use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub use std::sync::{Condvar, Mutex, MutexGuard};
