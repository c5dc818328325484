//! What looks at calls: flags and tables of hooks, by ids and addresses only. Imports nothing of this crate.
//!
//! Begin with `flags.rs`: the one word that a hot path reads to learn whether anything looks.

pub mod flags;
pub mod turn;
