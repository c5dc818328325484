//! Threads that wait, as `src/base/waiting.rs` has it; what it says to the members is modelled in
//! `tests/epoch.rs`.

/// Says that this thread waits.
pub struct Waiting;

/// Begins to wait.
pub fn begin() -> Waiting {
    Waiting
}

/// A thread that waits finds nothing.
pub fn assert_awake() {}
