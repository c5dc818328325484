//! The fast paths of collectives, for devices with peer access to each other's memory.
//!
//! A function returns false if it cannot do the work, with nothing queued. The caller then takes
//! the fallback.

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

/// Memory of a device, or pinned host memory at an address that the device can access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The device that owns it.
    pub device: i32,
    /// The first address.
    pub address: u64,
}

/// Rows of bytes, copied from one part to another. The destinations of a call overlap nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// The source.
    pub src: Part,
    /// The destination.
    pub dst: Part,
    /// Bytes of a row.
    pub width: u64,
    /// Number of rows; 1: a contiguous range, whose pitches are ignored.
    pub rows: u64,
    /// Source pitch in bytes.
    pub src_pitch: u64,
    /// Destination pitch in bytes.
    pub dst_pitch: u64,
}

/// A dimension: (size, source stride, destination stride), strides in bytes.
pub type Dim = (u64, i64, i64);

/// A copy of elements with strides.
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a> {
    /// Address of the first element.
    pub src: Part,
    /// Address where it is written.
    pub dst: Part,
    /// Bytes of an element: 1, 2, 4, 8 or 16.
    pub element: u64,
    /// At most 25. The first changes fastest and should have the smallest stride.
    pub dims: &'a [Dim],
}

/// The number type of a sum. Complex numbers are added part by part; signed and unsigned integers
/// are added alike.
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

/// `dst` becomes ((s0 + s1) + s2) + ..., rounded to the number type after each step.
#[derive(Clone, Copy, Debug)]
pub struct Sum<'a> {
    /// The number type.
    pub number: Number,
    /// Number of elements.
    pub elements: u64,
    /// The sources, in the order of the additions.
    pub sources: &'a [Part],
    /// May be the first source, or memory that is no source.
    pub dst: Part,
}

/// One of many pieces that are sent to all other devices.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Address on the root.
    pub src: u64,
    /// Offset in a block; pieces are sorted by it.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Pieces, and their destinations: a block of one layout on each other device.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// The pieces of the block.
    pub pieces: &'a [Piece],
    /// The destinations. All blocks of a call have the same devices in the same order.
    pub parts: &'a [Part],
    /// Number of bytes.
    pub bytes: u64,
}

/// The devices that own these parts.
fn all_devices(parts: impl Iterator<Item = Part>) -> Devices {
    parts.map(|part| part.device).collect()
}

/// Runs `queue` between the waits of and for the workers. `parts` is the memory that it uses. Work
/// that was queued is ordered even if `queue` fails.
fn with_ordering<'a>(
    team: &Team<'a>,
    workers: &[Worker<'a>],
    parts: impl Iterator<Item = Part> + Clone,
    queue: impl FnOnce() -> Result<()>,
) -> Result<bool> {
    team.begin()?;
    let ordered = team.order_workers_after_members(workers);
    if ordered.is_err() {
        team.leave();
    }
    ordered?;
    let queued = queue();
    let joined = team.order_members_after_workers(workers);
    team.leave();
    if joined.is_err() {
        team.keep_blocks(workers, parts);
    }
    queued.and(joined).map(|()| true)
}
