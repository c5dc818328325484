//! As much of the library's errors as the pieces under model have.

/// A failure.
#[derive(Debug)]
pub enum Error {
    /// No host memory for what is named.
    OutOfHostMemory(&'static str),
    /// A handle that is none.
    InvalidHandle { name: &'static str, value: usize, kind: &'static str, why: &'static str },
    /// Right call, wrong time.
    InvalidState(&'static str),
    /// In a host function of a stream.
    InCallback(&'static str),
}

/// Outcome of an operation that can fail.
pub type Result<T> = std::result::Result<T, Error>;
