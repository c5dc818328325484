//! The tables of handles.

/// As much of the boundary as handles need.
pub mod boundary {
    use crate::thread::{self, Inside};

    /// A call that is inside the library.
    pub struct Call(#[expect(dead_code, reason = "leaves when it is dropped")] Inside);

    impl Call {
        pub fn begin() -> Call {
            Call(thread::enter())
        }
    }
}

#[path = "../../src/ffi/handle.rs"]
pub mod handle;
#[path = "../../src/ffi/slot.rs"]
pub mod slot;
