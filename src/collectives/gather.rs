//! Concatenation of tensors along a dimension: gather.

use super::Tensors;
use super::check::{self, MemoryKind};
use super::team::INLINE_CAPACITY;
use super::teams::{Piece, Range, Ranges, Teams, with_room};
use crate::base::error::{Result, Which};
use crate::base::inline_vec::Few;
use crate::collectives::contiguous::ContiguousBytes;
use crate::collectives::outputs::{Draft, Outputs, Target};
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::tensor::{Dtype, MAX_DIMS, Sizes, Tensor, compact, dtype::code};

/// The concatenation of tensors: its shape and layout, and their memory.
struct Concatenation {
    shape: Sizes,
    strides: Sizes,
    dim: usize,
    dtype: Dtype,
    kinds: Few<MemoryKind, INLINE_CAPACITY>,
    /// The tensors that are contiguous.
    flats: Few<ContiguousBytes, INLINE_CAPACITY>,
}

impl Concatenation {
    fn none() -> Concatenation {
        Concatenation {
            shape: Sizes::new(),
            strides: Sizes::new(),
            dim: 0,
            dtype: Dtype::new(code::UINT, 8),
            kinds: Few::new(),
            flats: Few::new(),
        }
    }

    /// Reads and checks the tensors, and determines PyTorch's layout of the result.
    #[inline(never)]
    fn set(&mut self, gpus: &Gpus, tensors: Tensors<'_>, dim: i32) -> Result<()> {
        check::require_some("count", tensors.len)?;
        let (mut first, mut next) = (Tensor::none(), Tensor::none());
        (tensors.read)(0, &mut first)?;
        first.require_dimension();
        let dim = check::dimension(dim, first.shape().len())?;
        let Concatenation { shape, strides, kinds, flats, .. } = self;
        shape.fill(first.shape().iter().copied())?;
        let (mut format, mut whole) = (Format::of(&first), 0i64);
        for index in 0..tensors.len {
            let which = Which::of("tensors", index);
            let tensor = match index {
                0 => &first,
                _ => {
                    (tensors.read)(index, &mut next)?;
                    next.require_dimension();
                    &next
                }
            };
            check::require_dtype(which, tensor, first.dtype)?;
            let size = tensor.shape().get(dim).copied();
            shape[dim] = size.unwrap_or(shape[dim]);
            check::require_shape(which, tensor, shape)?;
            whole = whole.saturating_add(shape[dim]);
            if Format::of(tensor) != format {
                format = Format::Contiguous;
            }
            let kind = MemoryKind::of(gpus, tensor)?;
            kinds.push(kind)?;
            if let Some(flat) = ContiguousBytes::of(kind, tensor) {
                flats.push(flat)?;
            }
        }
        shape[dim] = whole;
        strides.fill(shape.iter().copied())?;
        format.strides(shape, strides);
        (self.dim, self.dtype) = (dim, first.dtype);
        Ok(())
    }

    /// Is each tensor one contiguous range of a contiguous result?
    fn are_ranges(&self) -> bool {
        self.flats.len() == self.kinds.len() && self.shape[..self.dim].iter().all(|size| *size == 1)
    }

    fn bytes(&self) -> u64 {
        self.flats.iter().map(|flat| flat.bytes).sum()
    }

    /// Queues the tensors as ranges of an output. If `is_own`, the output is of this call, and the
    /// host waits for ranges in host memory.
    fn run(
        &self,
        teams: &Teams<'_>,
        by: &[usize],
        (to, mut address): (MemoryKind, u64),
        is_own: bool,
        operation: &'static str,
    ) -> Result<()> {
        let mut ranges = Ranges::new();
        for (src, team) in self.flats.iter().zip(by) {
            ranges.push(Range { src: *src, dst: (to, address), team: *team })?;
            address += src.bytes;
        }
        teams.run_ranges(&ranges, operation)?;
        if is_own { teams.wait_for_ranges(&ranges) } else { Ok(()) }
    }
}

/// PyTorch's memory formats.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Contiguous,
    ChannelsLast,
}

impl Format {
    /// The memory format of a tensor.
    fn of(tensor: &Tensor) -> Format {
        let (shape, strides) = (tensor.shape(), tensor.strides());
        let order: &[usize] = match shape.len() {
            4 => &[1, 3, 2, 0],
            5 => &[1, 4, 3, 2, 0],
            _ => return Format::Contiguous,
        };
        let mut least = 0i64;
        let rises = strides[1] != 0
            && order.iter().all(|dim| {
                let (size, stride) = (shape[*dim], strides[*dim]);
                // Ambiguous strides count as contiguous.
                let is_either = *dim == 0 && least == strides[1];
                let fits = size != 0 && stride >= least && !is_either;
                least = stride.saturating_mul(size.max(1));
                fits
            });
        if rises { Format::ChannelsLast } else { Format::Contiguous }
    }

    fn strides(self, shape: &[i64], strides: &mut [i64]) {
        if self == Format::Contiguous {
            return compact(shape, strides);
        }
        let mut stride = 1i64;
        let last_to_first = (2..shape.len()).rev();
        for dim in std::iter::once(1).chain(last_to_first).chain([0]) {
            strides[dim] = stride;
            stride = stride.saturating_mul(shape[dim]);
        }
    }
}

/// The teams for tensors that move to an output, and the team of each.
fn teams_of<'a>(
    gpus: &'a Gpus,
    kinds: &[MemoryKind],
    stream: Option<&'a Stream>,
) -> Result<(Teams<'a>, Few<usize, INLINE_CAPACITY>)> {
    let mut teams = Teams::new(gpus);
    let by = kinds.iter().map(|kind| teams.join(*kind, stream));
    let mut places = Few::new();
    by.into_iter().try_for_each(|place| places.push(place?))?;
    teams.begin()?;
    Ok((teams, places))
}

#[inline(never)]
fn parts(
    tensors: Tensors<'_>,
    joined: &Concatenation,
    by: &[usize],
    (to, out): (MemoryKind, &Tensor),
) -> Result<Vec<Piece>> {
    let (mut pieces, mut start) = (with_room(tensors.len)?, 0);
    for (index, (kind, team)) in joined.kinds.iter().zip(by).enumerate() {
        pieces.push(Piece { src: (*kind, Tensor::none()), dst: (to, *out), team: *team });
        let Piece { src: (_, tensor), dst: (_, part), .. } = &mut pieces[index];
        (tensors.read)(index, tensor)?;
        tensor.require_dimension();
        let size = tensor.shape()[joined.dim];
        part.narrow(joined.dim, start, size)?;
        start += size;
    }
    Ok(pieces)
}

/// Concatenates tensors into a new output.
pub fn gather<'a>(
    gpus: &'a Gpus,
    tensors: Tensors<'_>,
    dim: i32,
    destination: i32,
) -> Result<Outputs<'a>> {
    let mut joined = Concatenation::none();
    joined.set(gpus, tensors, dim)?;
    let target = check::target(gpus, destination)?;
    let (teams, by) = teams_of(gpus, &joined.kinds, target.stream())?;
    let mut draft = Draft::new(gpus, 1, joined.shape.len(), 1)?;
    let sizes: (&[i64], &[i64]) = (&joined.shape, &joined.strides);
    if joined.are_ranges() && is_compact(sizes) {
        let address = draft.range(target, joined.dtype, sizes, joined.bytes())?;
        let outs = draft.finish()?;
        joined.run(&teams, &by, (target.kind(), address), true, "tcuda_comm_gather")?;
        return Ok(outs);
    }
    let (pieces, outs) = draft_parts(draft, target, tensors, &joined, &by)?;
    teams.run(&pieces, "tcuda_comm_gather")?;
    teams.wait_for_host(&pieces)?;
    Ok(outs)
}

/// The pieces of the output, and the output.
#[inline(never)]
fn draft_parts<'a>(
    mut draft: Draft<'a>,
    target: Target<'_>,
    tensors: Tensors<'_>,
    joined: &Concatenation,
    by: &[usize],
) -> Result<(Vec<Piece>, Outputs<'a>)> {
    let mut out = Tensor::none();
    draft.dense(target, joined.dtype, (&joined.shape, &joined.strides), &mut out)?;
    let outs = draft.finish()?;
    Ok((parts(tensors, joined, by, (target.kind(), &out))?, outs))
}

/// Are these the strides of a contiguous tensor?
#[inline(never)]
fn is_compact((shape, strides): (&[i64], &[i64])) -> bool {
    let mut expected = [0; MAX_DIMS];
    compact(shape, &mut expected);
    expected[..shape.len()] == *strides
}

/// Concatenates tensors into an output of the caller.
pub fn gather_into(gpus: &Gpus, tensors: Tensors<'_>, dim: i32, out: &Tensor) -> Result<()> {
    let mut joined = Concatenation::none();
    joined.set(gpus, tensors, dim)?;
    let which = Which::all("out");
    check::require_dtype(which, out, joined.dtype)?;
    check::require_shape(which, out, &joined.shape)?;
    check::require_no_overlap(out)?;
    let to = MemoryKind::of(gpus, out)?;
    let stream = match to.device() {
        Some(device) => Some(check::current(gpus, device)?),
        None => None,
    };
    let (teams, by) = teams_of(gpus, &joined.kinds, stream)?;
    match ContiguousBytes::of(to, out).filter(|_| joined.are_ranges()) {
        Some(flat) => {
            by.iter().try_for_each(|team| teams.record(*team, &flat))?;
            joined.run(&teams, &by, (to, flat.address), false, "tcuda_comm_gather_into")
        }
        None => {
            let pieces = parts(tensors, &joined, &by, (to, out))?;
            teams.run(&pieces, "tcuda_comm_gather_into")
        }
    }
}

#[cfg(test)]
#[path = "gather_tests.rs"]
mod tests;
