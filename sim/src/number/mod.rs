//! What an instruction computes for one thread: pure functions of its operands, bit for bit as a
//! GPU computes them.

pub mod approximate;
pub mod convert;
pub mod float;
pub mod half;
pub mod integer;
pub mod rounding;
pub mod video;
