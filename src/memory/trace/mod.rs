//! The history of events, the stacks of frames, the metadata of the host, and snapshots with their
//! output formats.
//!
//! Begin with `history.rs` and `snapshot.rs`.

pub mod dictionary;
pub mod history;
pub(crate) mod json;
pub mod listeners;
pub mod metadata;
pub(crate) mod page;
pub(crate) mod pickle;
pub mod ring;
pub mod snapshot;
pub mod stacks;
