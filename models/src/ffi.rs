//! The tables of handles.

/// The part of the boundary that handles need.
pub mod boundary {
    use crate::base::thread::{self, Inside};

    /// A call that is inside the library.
    pub struct Call {
        _inside: Inside,
    }

    impl Call {
        pub fn begin() -> Call {
            Call { _inside: thread::enter() }
        }
    }
}

#[path = "../../src/ffi/handle.rs"]
pub mod handle;
#[path = "../../src/ffi/slot.rs"]
pub mod slot;
