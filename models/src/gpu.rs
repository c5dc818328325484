//! Streams that the host created.

#[path = "../../src/gpu/external_life.rs"]
pub mod external_life;
