//! The trace files of examples/replay: its reader, in C, with arbitrary bytes. What it accepts is
//! replayed with all checks on a small simulated machine.

use crate::abi;
use crate::world::{Mode, World};

// For its symbols: the C code calls the library.
use tcuda as _;

unsafe extern "C" {
    fn tcuda_fuzz_trace(data: *const u8, length: usize) -> i32;
}

/// One input.
pub fn run(data: &[u8]) {
    let mut world = World::begin(Mode::Strict, 0);
    // SAFETY: reads so many bytes.
    let outcome = unsafe { tcuda_fuzz_trace(data.as_ptr(), data.len()) };
    assert_eq!(outcome, 0, "see trace.c");
    abi::finish(&mut world, None);
}
