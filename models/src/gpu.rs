//! Streams of hosts.

#[path = "../../src/gpu/external_life.rs"]
pub mod external_life;
