//! The fast ways of collective calls: between devices that reach each other's memory.
//!
//! Each function gives false where it cannot do it, with nothing queued: the caller has another
//! way.

mod chain;
mod copies;
pub mod limits;
pub mod loaded;
mod spread;
mod strided;
mod sum;
pub mod table;
#[cfg(test)]
mod tests;

use super::team::{Devices, Team, Worker};
use crate::base::error::Result;
pub use copies::copies;
pub use loaded::Loaded;
pub use spread::{broadcast, broadcast_blocks, broadcast_many};
pub use strided::strided;
pub use sum::sum;

/// Memory of a device; never of the host, unless it is pinned and this is where the device has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The device that has it.
    pub device: i32,
    /// The first byte.
    pub address: u64,
}

/// Rows of bytes, from one part to another. What a call writes overlaps nothing else of the call.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// From here.
    pub src: Part,
    /// To here.
    pub dst: Part,
    /// Bytes of a row.
    pub width: u64,
    /// How many rows; 1: a plain range, and the pitches do not matter.
    pub rows: u64,
    /// Bytes from a row to the next.
    pub src_pitch: u64,
    /// The same where it is written.
    pub dst_pitch: u64,
}

/// A dimension: its size, and the bytes from an element to the next in the source and where it is
/// written.
pub type Dim = (u64, i64, i64);

/// Elements in any order.
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a> {
    /// The first element.
    pub src: Part,
    /// Where it goes.
    pub dst: Part,
    /// Bytes of an element: 1, 2, 4, 8 or 16.
    pub element: u64,
    /// At most 25. The first changes fastest: it should be the one whose neighbours lie closest.
    pub dims: &'a [Dim],
}

/// What is added: sums of complex numbers are those of their parts, and those of integers do not
/// depend on whether they have a sign.
#[allow(missing_docs, reason = "their names are their description")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    F16,
    BF16,
    F32,
    F64,
}

/// `dst` becomes ((s0 + s1) + s2) + ..., rounded to the type after each step.
#[derive(Clone, Copy, Debug)]
pub struct Sum<'a> {
    /// What they are.
    pub number: Number,
    /// How many.
    pub elements: u64,
    /// What is added, in this order.
    pub sources: &'a [Part],
    /// May be the first source, or memory that is none.
    pub dst: Part,
}

/// A piece of many that are sent to all other devices.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Its first byte, on the root.
    pub src: u64,
    /// Where it goes, from the start of a block; pieces are in rising order.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// Pieces, and where they go: a block of one layout on each of the other devices.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// What it is made of.
    pub pieces: &'a [Piece],
    /// Where it is; of all blocks of a call, on the same devices in the same order.
    pub parts: &'a [Part],
    /// Its length.
    pub bytes: u64,
}

/// Whose memory it is.
fn all_devices(parts: impl Iterator<Item = Part>) -> Devices {
    parts.map(|part| part.device).collect()
}

/// Runs `queue`, which uses these parts, between waits of and for those who work. What was queued
/// is in order also where the rest of it failed.
fn in_order<'a>(
    team: &Team<'a>,
    workers: &[Worker<'a>],
    parts: impl Iterator<Item = Part> + Clone,
    queue: impl FnOnce() -> Result<()>,
) -> Result<bool> {
    team.begin()?;
    let lined_up = team.line_up(workers);
    if lined_up.is_err() {
        team.leave();
    }
    lined_up?;
    let queued = queue();
    let joined = team.let_go(workers);
    team.leave();
    if joined.is_err() {
        team.keep(workers, parts);
    }
    queued.and(joined).map(|()| true)
}
