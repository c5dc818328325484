//! Statistics: what each heap counts, how a device adds that up, and the keys by which a host
//! reads it.
//!
//! Begin with `ledger.rs`, which has the invariant.

pub mod account;
pub mod class_counters;
pub mod headroom;
pub(crate) mod keys;
pub mod ledger;
pub(crate) mod scopes;
pub(crate) mod summary;
