//! The part of the library's errors that the modelled modules need.

/// A failure.
#[derive(Debug)]
pub enum Error {
    /// No host memory for the named purpose.
    OutOfHostMemory(&'static str),
    /// An invalid handle.
    InvalidHandle { name: &'static str, value: usize, kind: &'static str, why: &'static str },
    /// A call in a state that does not allow it.
    InvalidState(&'static str),
    /// A call inside a host function of a stream.
    InCallback(&'static str),
}

/// Outcome of an operation that can fail.
pub type Result<T> = std::result::Result<T, Error>;
