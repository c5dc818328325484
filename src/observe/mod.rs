//! Observation of calls: flags and tables of hooks, with ids and addresses only. Imports nothing of
//! this crate, except inside this folder.
//!
//! Begin with `flags.rs`: the one word that a hot path reads to check whether anything observes it.

pub mod flags;
pub mod table;
pub mod turn;
