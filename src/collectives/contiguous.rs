//! Tensors whose elements lie side by side: nearly all of them, and as little as a verb must know.

use super::check::Home;
use super::moves::Moves;
use super::path::Part;
use super::team::{MOST, Team};
use crate::base::error::Result;
use crate::base::inline_vec::Few;
use crate::collectives::dispatch;
use crate::memory;
use crate::tensor::Tensor;

/// Bytes side by side, and whose they are: of a tensor that has elements, each of whole bytes, the last
/// dimension's first.
#[derive(Clone, Copy)]
pub struct Flat {
    /// Where they are.
    pub home: Home,
    /// The first.
    pub address: u64,
    /// Start of the memory, as its host knows it.
    pub data: u64,
    /// How many.
    pub bytes: u64,
}

impl Flat {
    /// A tensor's, if it is such a one.
    pub fn of(home: Home, tensor: &Tensor) -> Option<Flat> {
        let (address, data) = (tensor.address, tensor.data);
        let is_flat = tensor.numel > 0 && tensor.dtype.element_bytes().is_some();
        let bytes = tensor.whole_bytes().filter(|_| is_flat && tensor.is_compact())?;
        Some(Flat { home, address, data, bytes })
    }

    /// Says that they are used on the stream on which their device takes part.
    pub fn record(&self, team: &Team) -> Result<()> {
        match self.home.device() {
            Some(device) => memory::record_around(self.address, self.data, team.stream(device)),
            None => Ok(()),
        }
    }

    /// Do two meet?
    pub fn meets(&self, other: &Flat) -> bool {
        self.home == other.home
            && self.address < other.address.saturating_add(other.bytes)
            && other.address < self.address.saturating_add(self.bytes)
    }

    /// Queues copies of them. What goes to devices goes to all of these together.
    pub fn send(&self, team: &Team, dsts: &[(Home, u64)]) -> Result<()> {
        let (mut parts, mut moves) = (Few::<Part, MOST>::new(), Moves::default());
        let from = (self.home, self.address);
        for (home, address) in dsts.iter().filter(|dst| **dst != from) {
            match (self.home, *home) {
                (Home::Device(_), Home::Device(device)) => {
                    parts.push(Part { device, address: *address })?;
                }
                _ => moves.add_range(from, (*home, *address), self.bytes)?,
            }
        }
        if let (Home::Device(device), false) = (self.home, parts.is_empty()) {
            let src = Part { device, address: self.address };
            if !dispatch::broadcast(team, self.bytes, src, &parts)? {
                for part in parts.iter() {
                    moves.add_range(from, (Home::Device(part.device), part.address), self.bytes)?;
                }
            }
        }
        moves.run(team)
    }
}
