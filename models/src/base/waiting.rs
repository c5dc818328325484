//! Threads that wait, like `src/base/waiting.rs`; its messages to the participants are modelled in
//! `tests/epoch.rs`.

/// Marks this thread as waiting while it is alive.
pub struct Waiting;

/// Begins to wait.
pub fn begin() -> Waiting {
    Waiting
}

/// Asserts that the thread does not wait, since a waiting thread must not read shared objects.
pub fn assert_awake() {}
