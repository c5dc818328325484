//! Contiguous tensors: the common case, described by an address and a length.

use super::check::MemoryKind;
use super::moves::Moves;
use super::path::Part;
use super::team::{INLINE_CAPACITY, Team};
use crate::base::error::Result;
use crate::base::inline_vec::Few;
use crate::collectives::dispatch;
use crate::memory;
use crate::tensor::Tensor;

/// The bytes of a contiguous tensor in row-major order, which has elements of whole bytes.
#[derive(Clone, Copy)]
pub struct ContiguousBytes {
    /// The memory kind.
    pub kind: MemoryKind,
    /// The first address.
    pub address: u64,
    /// Start of the memory, as the host knows it.
    pub data: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl ContiguousBytes {
    /// The bytes of a tensor, if it is contiguous and not empty.
    pub fn of(kind: MemoryKind, tensor: &Tensor) -> Option<ContiguousBytes> {
        let (address, data) = (tensor.address, tensor.data);
        let is_flat = tensor.numel > 0 && tensor.dtype.element_bytes().is_some();
        let bytes = tensor.whole_bytes().filter(|_| is_flat && tensor.is_compact())?;
        Some(ContiguousBytes { kind, address, data, bytes })
    }

    /// Records that the team's stream of their device uses them.
    pub fn record(&self, team: &Team) -> Result<()> {
        match self.kind.device() {
            Some(device) => memory::record_around(self.address, self.data, team.stream(device)),
            None => Ok(()),
        }
    }

    /// Do two ranges overlap?
    pub fn overlaps(&self, other: &ContiguousBytes) -> bool {
        self.kind == other.kind
            && self.address < other.address.saturating_add(other.bytes)
            && other.address < self.address.saturating_add(self.bytes)
    }

    /// Queues copies of the bytes. Copies to devices become one broadcast.
    pub fn send(&self, team: &Team, dsts: &[(MemoryKind, u64)]) -> Result<()> {
        let (mut parts, mut moves) = (Few::<Part, INLINE_CAPACITY>::new(), Moves::new());
        let from = (self.kind, self.address);
        for (kind, address) in dsts.iter().filter(|dst| **dst != from) {
            match (self.kind, *kind) {
                (MemoryKind::Device(_), MemoryKind::Device(device)) => {
                    parts.push(Part { device, address: *address })?;
                }
                _ => moves.add_range(from, (*kind, *address), self.bytes)?,
            }
        }
        if let (MemoryKind::Device(device), false) = (self.kind, parts.is_empty()) {
            let src = Part { device, address: self.address };
            if !dispatch::broadcast(team, self.bytes, src, &parts)? {
                for part in parts.iter() {
                    moves.add_range(
                        from,
                        (MemoryKind::Device(part.device), part.address),
                        self.bytes,
                    )?;
                }
            }
        }
        moves.run(team)
    }
}
