//! Splitting a tensor along a dimension: scatter.

use super::check::{self, MemoryKind};
use super::team::INLINE_CAPACITY;
use super::teams::{Piece, Range, Ranges, Teams, with_room};
use super::{Split, Tensors};
use crate::base::error::{Error, Result, Which};
use crate::base::inline_vec::Few;
use crate::collectives::contiguous::ContiguousBytes;
use crate::collectives::outputs::{Draft, Outputs, Target, is_at};
use crate::gpu::gpus::Gpus;
use crate::tensor::bundle::Site;
use crate::tensor::{Sizes, Tensor};

const NO_DIMENSION: Error =
    Error::Invalid("a tensor without dimensions cannot be split; give it one, of size 1");

/// PyTorch's chunk sizes: all equal except the last; there may be fewer than `count` chunks.
fn equal_sizes(size: i64, count: usize) -> Result<Few<i64, INLINE_CAPACITY>> {
    let most = i64::try_from(count).unwrap_or(i64::MAX).max(1);
    // A dimension of size 0 has `count` empty chunks.
    let each = size / most + i64::from(size % most > 0);
    let pieces = if each == 0 { most } else { size / each + i64::from(size % each > 0) };
    let mut sizes = Few::new();
    sizes.fill((0..pieces).map(|piece| each.min(size - piece * each)))?;
    Ok(sizes)
}

fn require_sum(sizes: impl Iterator<Item = i64>, size: i64, name: &'static str) -> Result<()> {
    let mut sum = 0i64;
    for piece in sizes {
        if piece < 0 {
            let allowed = "a size cannot be negative";
            return Err(Error::OutOfRange { name, value: piece, allowed });
        }
        sum = sum.saturating_add(piece);
    }
    if sum == size {
        return Ok(());
    }
    Err(Error::Sizes { name, sum, size })
}

/// Scatters a tensor to new outputs, one per device. On the tensor's own device it is a view.
pub fn scatter<'a>(
    gpus: &'a Gpus,
    tensor: &Tensor,
    devices: &[i32],
    split: Split<'a>,
) -> Result<Outputs<'a>> {
    check::require_some("count", devices.len())?;
    let ndim = tensor.shape().len();
    if ndim == 0 {
        return Err(NO_DIMENSION);
    }
    let dim = check::dimension(split.dim, ndim)?;
    let whole = tensor.shape()[dim];
    let equal;
    let sizes = match split.sizes {
        Some(sizes) => sizes,
        None => {
            equal = equal_sizes(whole, devices.len())?;
            &equal
        }
    };
    require_sum(sizes.iter().copied(), whole, "chunk_sizes")?;
    let kind = MemoryKind::of(gpus, tensor)?;
    let mut teams = Teams::new(gpus);
    let mut targets = Few::<(Target<'a>, usize), INLINE_CAPACITY>::new();
    for (index, device) in devices.iter().enumerate() {
        let target = on_stream(gpus, check::target(gpus, *device)?, split, index)?;
        let is_moved = index < sizes.len() && !is_at(kind, target);
        let team = if is_moved { teams.join(kind, target.stream())? } else { 0 };
        targets.push((target, team))?;
    }
    teams.begin()?;
    let mut draft = Draft::new(gpus, sizes.len(), sizes.len().saturating_mul(ndim), sizes.len())?;
    if let Some(cut) = Cut::of(kind, tensor, dim).filter(|_| !sizes.contains(&0)) {
        let mut ranges = Ranges::new();
        let (mut shape, strides, mut start) = (Sizes::new(), tensor.strides(), 0);
        shape.fill(tensor.shape().iter().copied())?;
        for (size, (target, team)) in sizes.iter().zip(targets.iter()) {
            let src = cut.piece(start, *size);
            start += *size;
            shape[dim] = *size;
            if is_at(kind, *target) {
                let (data, byte_offset) = (src.data, src.address.wrapping_sub(src.data));
                let site = Site { data, byte_offset, place: tensor.place, dtype: tensor.dtype };
                draft.alias_of(site, (&shape, strides), tensor.read_only)?;
                continue;
            }
            let address = draft.range(*target, tensor.dtype, (&shape, strides), src.bytes)?;
            ranges.push(Range { src, dst: (target.kind(), address), team: *team })?;
        }
        let outs = draft.finish()?;
        teams.run_ranges(&ranges, "tcuda_comm_scatter")?;
        teams.wait_for_ranges(&ranges)?;
        return Ok(outs);
    }
    let (mut pieces, mut start) = (with_room(sizes.len())?, 0);
    for (size, (target, team)) in sizes.iter().zip(targets.iter()) {
        draft_piece(
            &mut draft,
            &mut pieces,
            (kind, tensor),
            (dim, start, *size),
            (*target, *team),
        )?;
        start += size;
    }
    let outs = draft.finish()?;
    teams.run(&pieces, "tcuda_comm_scatter")?;
    teams.wait_for_host(&pieces)?;
    Ok(outs)
}

/// Adds a piece that is the whole tensor, to be narrowed, with an empty output. There is space.
#[inline(never)]
fn add_piece(
    pieces: &mut Vec<Piece>,
    (kind, tensor): (MemoryKind, &Tensor),
    to: MemoryKind,
    team: usize,
) {
    pieces.push(Piece { src: (kind, *tensor), dst: (to, Tensor::none()), team });
}

/// Adds the next piece and its output.
#[inline(never)]
fn draft_piece(
    draft: &mut Draft<'_>,
    pieces: &mut Vec<Piece>,
    (kind, tensor): (MemoryKind, &Tensor),
    (dim, start, size): (usize, i64, i64),
    (target, team): (Target<'_>, usize),
) -> Result<()> {
    add_piece(pieces, (kind, tensor), target.kind(), team);
    let last = pieces.len() - 1;
    let Piece { src: (_, piece), dst: (_, out), .. } = &mut pieces[last];
    piece.narrow(dim, start, size)?;
    if is_at(kind, target) {
        draft.alias(piece)?;
        pieces.truncate(last);
        return Ok(());
    }
    draft.copy_of(target, piece, out)
}

/// Scatters a tensor to outputs of the caller, whose sizes select the pieces.
pub fn scatter_into(
    gpus: &Gpus,
    tensor: &Tensor,
    outs: Tensors<'_>,
    split: Split<'_>,
) -> Result<()> {
    check::require_some("count", outs.len)?;
    let ndim = tensor.shape().len();
    if ndim == 0 {
        return Err(NO_DIMENSION);
    }
    let dim = check::dimension(split.dim, ndim)?;
    let kind = MemoryKind::of(gpus, tensor)?;
    let mut sizes = Few::<i64, INLINE_CAPACITY>::new();
    let mut flats = Few::<(MemoryKind, Option<ContiguousBytes>), INLINE_CAPACITY>::new();
    check_outs(gpus, (tensor, dim), outs, &mut sizes, &mut flats)?;
    let mut teams = Teams::new(gpus);
    let mut places = Few::<usize, INLINE_CAPACITY>::new();
    for (index, (to, _)) in flats.iter().enumerate() {
        let target = check::target(gpus, to.device().unwrap_or(crate::gpu::device::CPU))?;
        let target = on_stream(gpus, target, split, index)?;
        places.push(teams.join(kind, target.stream())?)?;
    }
    teams.begin()?;
    let are_flat = flats.iter().all(|(_, flat)| flat.is_some());
    if let Some(cut) = Cut::of(kind, tensor, dim).filter(|_| are_flat) {
        let (mut ranges, mut start) = (Ranges::new(), 0);
        let outs = flats.iter().filter_map(|(_, flat)| *flat);
        for ((out, team), size) in outs.zip(places.iter()).zip(sizes.iter()) {
            let src = cut.piece(start, *size);
            start += *size;
            teams.record(*team, &out)?;
            ranges.push(Range { src, dst: (out.kind, out.address), team: *team })?;
        }
        return teams.run_ranges(&ranges, "tcuda_comm_scatter_into");
    }
    let (mut pieces, mut start) = (with_room(outs.len)?, 0i64);
    for (index, ((to, _), team)) in flats.iter().zip(places.iter()).enumerate() {
        add_piece(&mut pieces, (kind, tensor), *to, *team);
        let Piece { src: (_, piece), dst: (_, out), .. } = &mut pieces[index];
        piece.narrow(dim, start, sizes[index])?;
        (outs.read)(index, out)?;
        start += sizes[index];
    }
    teams.run(&pieces, "tcuda_comm_scatter_into")
}

/// Checks the outputs; stores their sizes along the dimension, and their memory.
#[inline(never)]
fn check_outs(
    gpus: &Gpus,
    (tensor, dim): (&Tensor, usize),
    outs: Tensors<'_>,
    sizes: &mut Few<i64, INLINE_CAPACITY>,
    flats: &mut Few<(MemoryKind, Option<ContiguousBytes>), INLINE_CAPACITY>,
) -> Result<()> {
    let whole = tensor.shape()[dim];
    let (mut shape, mut out) = (Sizes::new(), Tensor::none());
    shape.fill(tensor.shape().iter().copied())?;
    for index in 0..outs.len {
        let which = Which::of("outs", index);
        (outs.read)(index, &mut out)?;
        check::require_dtype(which, &out, tensor.dtype)?;
        shape[dim] = out.shape().get(dim).copied().unwrap_or(whole);
        check::require_shape(which, &out, &shape)?;
        check::require_no_overlap(&out)?;
        sizes.push(shape[dim])?;
        let to = MemoryKind::of(gpus, &out)?;
        flats.push((to, ContiguousBytes::of(to, &out)))?;
    }
    require_sum(sizes.iter().copied(), whole, "the sizes of outs")
}

/// A tensor all of whose pieces are contiguous.
struct Cut {
    whole: ContiguousBytes,
    /// Bytes per index of the dimension.
    each: u64,
}

impl Cut {
    fn of(kind: MemoryKind, tensor: &Tensor, dim: usize) -> Option<Cut> {
        let whole = ContiguousBytes::of(kind, tensor)?;
        let is_first = tensor.shape()[..dim].iter().all(|size| *size == 1);
        is_first.then_some(Cut { whole, each: whole.bytes / tensor.shape()[dim] as u64 })
    }

    fn piece(&self, start: i64, size: i64) -> ContiguousBytes {
        let address = self.whole.address + start as u64 * self.each;
        ContiguousBytes { address, bytes: size as u64 * self.each, ..self.whole }
    }
}

/// The same target with the stream that the caller named for a piece, which must be of its device.
fn on_stream<'a>(
    gpus: &'a Gpus,
    target: Target<'a>,
    split: Split<'a>,
    index: usize,
) -> Result<Target<'a>> {
    let Some(stream) = split.streams.get(index).copied().flatten() else { return Ok(target) };
    match target {
        Target::Device(device, _) if device.ordinal() == stream.device() => {
            Ok(Target::Device(device, stream.on_this_thread(gpus)?))
        }
        _ => Err(Error::PieceDevice {
            index,
            stream: stream.device(),
            piece: target.kind().device().unwrap_or(crate::gpu::device::CPU),
        }),
    }
}

#[cfg(test)]
#[path = "pieces_tests.rs"]
mod tests;
