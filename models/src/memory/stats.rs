//! Statistics.

#[path = "../../../src/memory/stats/account.rs"]
pub mod account;
#[path = "../../../src/memory/stats/class_counters.rs"]
pub mod class_counters;
#[path = "../../../src/memory/stats/headroom.rs"]
pub mod headroom;
#[path = "../../../src/memory/stats/ledger.rs"]
pub mod ledger;
#[path = "../../../src/memory/stats/scopes.rs"]
pub mod scopes;
