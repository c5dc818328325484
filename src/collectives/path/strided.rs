//! Copies of strided elements between devices with kernels: one launch on the hub, or one on each
//! other device, like copies of rows.

use super::copies::{alone, hub, other_of, workers};
use super::limits::SMALL_COPIES;
use super::loaded::Kernel;
use super::table::{MAX_ITEMS, Table};
use super::{Dim, Strided, with_ordering};
use crate::base::error::Result;
use crate::collectives::team::{Team, Worker};

/// The most dimensions of a piece.
const MAX_STRIDED_DIMS: usize = 25;

/// A piece with the largest elements that alignment and strides allow.
#[derive(Clone, Copy)]
struct Shape {
    element: u64,
    /// One more dimension, for elements that are less aligned than their size.
    dims: [Dim; MAX_STRIDED_DIMS + 1],
    len: usize,
}

impl Shape {
    fn new(piece: &Strided) -> Shape {
        let mut shape =
            Shape { element: piece.element, dims: [(0, 0, 0); MAX_STRIDED_DIMS + 1], len: 0 };
        for dim in piece.dims.iter().filter(|dim| dim.0 != 1) {
            shape.dims[shape.len] = *dim;
            shape.len += 1;
        }
        shape.narrow(piece);
        while shape.widen(piece) {}
        shape
    }

    fn dims(&self) -> &[Dim] {
        &self.dims[..self.len]
    }

    /// The bits of all values that must be multiples of the element size, except the strides of the
    /// first `skip` dimensions.
    fn odds(&self, piece: &Strided, skip: usize) -> u64 {
        let steps = self.dims().iter().skip(skip).fold(0, |all, dim| all | dim.1 | dim.2);
        piece.src.address | piece.dst.address | steps as u64
    }

    /// Splits misaligned elements into smaller ones.
    fn narrow(&mut self, piece: &Strided) {
        let odds = self.odds(piece, 0) | self.element;
        let aligned = odds & odds.wrapping_neg();
        if aligned < self.element {
            self.dims.copy_within(..self.len, 1);
            self.dims[0] = (self.element / aligned, aligned as i64, aligned as i64);
            (self.element, self.len) = (aligned, self.len + 1);
        }
    }

    /// Merges pairs of elements into larger ones.
    fn widen(&mut self, piece: &Strided) -> bool {
        let (wide, step) = (2 * self.element, self.element as i64);
        let first = if self.len > 0 { self.dims[0] } else { return false };
        let fits = first.0.is_multiple_of(2) && (first.1, first.2) == (step, step);
        if wide > 16 || !fits || !self.odds(piece, 1).is_multiple_of(wide) {
            return false;
        }
        self.element = wide;
        self.dims[0] = (first.0 / 2, 2 * step, 2 * step);
        if self.dims[0].0 == 1 {
            self.dims.copy_within(1..self.len, 0);
            self.len -= 1;
        }
        true
    }

    fn elements(&self) -> u64 {
        self.dims().iter().fold(1, |all, dim| all.saturating_mul(dim.0))
    }

    /// Calls `body` with parts of at most [`MAX_ITEMS`] elements and their addresses. Modifies
    /// itself meanwhile, because a copy per dimension would need too much stack.
    fn for_each_part(
        &mut self,
        (src, dst): (u64, u64),
        body: &mut dyn FnMut(&Shape, u64, u64) -> Result<()>,
    ) -> Result<()> {
        let elements = self.elements();
        if elements <= MAX_ITEMS {
            return if elements == 0 { Ok(()) } else { body(self, src, dst) };
        }
        // Cuts the slowest dimension. It may be too long for one table even alone.
        let last = self.len - 1;
        let (size, from, to) = self.dims[last];
        let most = (MAX_ITEMS / (elements / size)).max(1);
        let mut at = 0;
        while at < size {
            self.dims[last].0 = most.min(size - at);
            self.len = if self.dims[last].0 == 1 { last } else { last + 1 };
            let moved = |start: u64, step: i64| start.wrapping_add(at.wrapping_mul(step as u64));
            self.for_each_part((moved(src, from), moved(dst, to)), body)?;
            at += most;
        }
        (self.dims[last].0, self.len) = (size, last + 1);
        Ok(())
    }
}

impl Strided<'_> {
    fn bytes(&self) -> u64 {
        self.dims.iter().fold(self.element, |all, dim| all.saturating_mul(dim.0))
    }
}

/// Copies strided elements.
pub fn strided(team: &Team, pieces: &[Strided]) -> Result<bool> {
    let there = pieces.iter().filter(|piece| piece.bytes() > 0);
    let pairs = there.clone().map(|piece| (piece.src, piece.dst));
    let bytes = there.clone().fold(0u64, |all, piece| all.saturating_add(piece.bytes()));
    if bytes == 0 || there.clone().any(|piece| piece.dims.len() > MAX_STRIDED_DIMS) {
        return Ok(bytes == 0);
    }
    let parts = || pairs.clone().flat_map(|(src, dst)| [src, dst]);
    let (hub, is_alone) = (hub(pairs.clone()), pairs.clone().count() == 1);
    if bytes > SMALL_COPIES.get()
        && let Some(workers) = workers(team, hub, pairs.clone())?
    {
        return with_ordering(team, &workers, parts(), || {
            workers.iter().try_for_each(|worker| {
                let device = worker.stream.device();
                let is_own =
                    |piece: &&Strided| other_of(hub, piece.src, piece.dst, is_alone) == device;
                by_kernel(team, *worker, there.clone().filter(is_own), bytes)
            })
        });
    }
    match alone(team, hub, pairs.clone())? {
        Some(worker) => {
            with_ordering(team, &[worker], parts(), || by_kernel(team, worker, there, bytes))
        }
        None => Ok(false),
    }
}

#[inline(never)]
fn by_kernel<'s>(
    team: &Team,
    worker: Worker,
    pieces: impl Iterator<Item = &'s Strided<'s>>,
    bytes: u64,
) -> Result<()> {
    let empty = || Table::new(Kernel::Strided, bytes);
    let mut table = empty()?;
    for piece in pieces {
        let places = (piece.src.address, piece.dst.address);
        Shape::new(piece).for_each_part(places, &mut |shape, src, dst| {
            if !table.add_strided(src, dst, shape.element, shape.dims()) {
                table.launch(team, worker.stream)?;
                table = empty()?;
                table.add_strided(src, dst, shape.element, shape.dims());
            }
            Ok(())
        })?;
    }
    if table.is_empty() { Ok(()) } else { table.launch(team, worker.stream) }
}

#[cfg(test)]
mod tests {
    use super::super::Part;
    use super::*;

    #[test]
    fn long_pieces_are_split() {
        let dims = [(1 << 29, 16, 16), (3, 1 << 40, 1 << 41), (2, 1 << 44, 1 << 45)];
        let part = Part { device: 0, address: 0 };
        let mut shape = Shape::new(&Strided { src: part, dst: part, element: 16, dims: &dims });
        let mut found = Vec::new();
        let mut note = |part: &Shape, src, dst| {
            assert_eq!(dst, 2 * src);
            found.push((src, part.elements()));
            Ok(())
        };
        shape.for_each_part((0, 0), &mut note).unwrap();
        let (two, one, next) = (1 << 30, 1 << 29, 1 << 44);
        let third = 2 << 40;
        assert_eq!(found, [(0, two), (third, one), (next, two), (next + third, one)]);
        assert_eq!(shape.dims(), dims);
    }
}
