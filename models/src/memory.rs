//! The allocator's pieces that threads share without its locks, or by them.

#[path = "../../src/memory/account.rs"]
pub mod account;
#[path = "../../src/memory/arena_lock.rs"]
pub mod arena_lock;
#[path = "../../src/memory/books.rs"]
pub mod books;
#[path = "../../src/memory/habit.rs"]
pub mod habit;
#[path = "../../src/memory/lend.rs"]
pub mod lend;
#[path = "../../src/memory/registry.rs"]
pub mod registry;
#[path = "../../src/memory/row.rs"]
pub mod row;
#[path = "../../src/memory/scopes.rs"]
pub mod scopes;
#[path = "../../src/memory/slack.rs"]
pub mod slack;
#[path = "../../src/memory/stats.rs"]
pub mod stats;
