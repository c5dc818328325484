//! All of `torch.cuda` as one small C library.
//!
//! Two floors, one door, one seam (ARCHITECTURE.md): the core (the modules here) knows nothing of C;
//! [`ffi`] translates and decides nothing; only [`driver`] knows how a GPU is reached.

pub mod blas;
pub mod brief;
pub mod callback;
pub mod comm;
pub mod communicator;
pub mod copy;
pub mod device;
pub mod driver;
pub mod environment;
pub mod epoch;
pub mod error;
pub mod event;
pub mod farewell;
pub mod few;
pub mod ffi;
pub mod file;
pub mod fill;
mod foreign;
pub mod graph;
#[cfg(any(test, feature = "host_faults"))]
pub mod host_faults;
mod image;
pub mod ipc;
pub mod jit;
pub mod kernels;
pub mod life;
pub mod lock;
pub mod log;
pub mod memory;
pub mod monitor;
pub mod nvtx;
pub mod once;
pub mod profiler;
pub mod progress;
pub mod random;
pub mod rank;
pub mod reserve;
pub mod runtime;
pub mod sanitizer;
mod selection;
mod shared;
mod side;
pub mod stderr;
pub mod stream;
pub mod sync;
pub mod sync_debug;
pub mod tensor;
pub mod text;
pub mod thread;
pub mod told;
pub mod torch;
pub mod turn;
pub mod waits;
pub mod watch;
