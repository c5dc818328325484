//! The fast ways of collective calls: between devices that reach each other's memory.
//!
//! Each function gives false where it cannot do it, with nothing queued: the caller has another way.

pub mod loaded;

use super::team::Team;
use crate::error::Result;
pub use loaded::Loaded;

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

/// Copies bytes to several places.
pub fn broadcast(_team: &Team, _bytes: u64, _src: Part, _dsts: &[Part]) -> Result<bool> {
    Ok(false)
}

/// Copies pieces of device `root` into a block of each other device, all of one layout.
pub fn broadcast_many(
    _team: &Team,
    _root: i32,
    _pieces: &[Piece],
    _blocks: &[Part],
    _block_bytes: u64,
) -> Result<bool> {
    Ok(false)
}

/// Copies rows.
pub fn copies(_team: &Team, _rows: &[Rows]) -> Result<bool> {
    Ok(false)
}

/// Copies elements.
pub fn strided(_team: &Team, _pieces: &[Strided]) -> Result<bool> {
    Ok(false)
}

/// Adds up. Where all parts are of one device it never gives false.
pub fn sum(_team: &Team, _items: &[Sum]) -> Result<bool> {
    Ok(false)
}
