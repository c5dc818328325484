//! The lowest layer: some files of the library, and some over loom's types.

#[path = "../../../src/base/epoch.rs"]
pub mod epoch;
pub mod error;
#[path = "../../../src/base/lifecycle.rs"]
pub mod lifecycle;
#[path = "../../../src/base/lock.rs"]
pub mod lock;
#[path = "../../../src/base/log.rs"]
pub mod log;
#[path = "../../../src/base/published.rs"]
pub mod published;
pub mod rank;
#[path = "../../../src/base/retired.rs"]
pub mod retired;
pub mod stderr;
pub mod sync;
pub mod thread;
pub mod waiting;
