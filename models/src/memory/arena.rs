//! Pieces of arenas.

#[path = "../../../src/memory/arena/arena_lock.rs"]
pub mod arena_lock;
#[path = "../../../src/memory/arena/contention.rs"]
pub mod contention;
#[path = "../../../src/memory/arena/member.rs"]
pub mod member;
#[path = "../../../src/memory/arena/registry.rs"]
pub mod registry;
