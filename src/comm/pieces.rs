//! Splitting a tensor along a dimension, and joining tensors along one.

use super::Split;
use super::check::{self, Home};
use super::members::{self, Members, wait_for};
use super::moves::Moves;
use super::outs::{Draft, Outs, Target, is_at};
use super::team::Team;
use super::told;
use crate::error::{Error, Result, Which};
use crate::runtime::Runtime;
use crate::stream::Stream;
use crate::tensor::order::strides_of_copy;
use crate::tensor::{MAX_DIMS, Tensor, compact};

const NO_ROOM: Error = Error::OutOfHostMemory("the pieces of a tensor");
const NO_DIMENSION: Error =
    Error::Invalid("a tensor without dimensions cannot be split; give it one, of size 1");

/// A part of a tensor: `size` elements along a dimension, from `start` on.
fn narrow(tensor: &Tensor, dim: usize, start: i64, size: i64) -> Result<Tensor> {
    let mut shape = [0; MAX_DIMS];
    let shape = &mut shape[..tensor.shape().len()];
    shape.copy_from_slice(tensor.shape());
    shape[dim] = size;
    tensor.part(start.saturating_mul(tensor.strides()[dim]), shape)
}

/// PyTorch's sizes of `count` pieces: all alike but the last; perhaps fewer pieces.
fn equal_sizes(size: i64, count: usize) -> Result<Vec<i64>> {
    let most = i64::try_from(count).unwrap_or(i64::MAX).max(1);
    // Nothing is split into as many nothings.
    let each = size / most + i64::from(size % most > 0);
    let pieces = if each == 0 { most } else { size / each + i64::from(size % each > 0) };
    let mut sizes = Vec::new();
    sizes.try_reserve_exact(pieces as usize).map_err(|_| NO_ROOM)?;
    sizes.extend((0..pieces).map(|piece| each.min(size - piece * each)));
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

/// What goes from one memory to another, by which of the teams.
struct Piece {
    src: (Home, Tensor),
    dst: (Home, Tensor),
    team: usize,
}

/// The teams of a call: more than one where pieces go to one device on several of its streams.
struct Teams<'a> {
    runtime: &'a Runtime,
    members: Vec<Members<'a>>,
    teams: Vec<Team<'a>>,
}

impl<'a> Teams<'a> {
    fn new(runtime: &'a Runtime) -> Teams<'a> {
        Teams { runtime, members: Vec::new(), teams: Vec::new() }
    }

    /// The one by which a piece goes from `src` to a device on a stream, if it goes to one: the first in
    /// which both devices are on their streams.
    fn join(&mut self, src: Home, to: Option<&'a Stream>) -> Result<usize> {
        let own = to.map(|stream| stream.device());
        let from = match src.device().filter(|device| Some(*device) != own) {
            Some(device) => Some(check::current(self.runtime, device)?),
            None => None,
        };
        let streams = || [from, to].into_iter().flatten();
        let accepts = |members: &Members<'a>| streams().all(|stream| members.accepts(stream));
        let place = match self.members.iter().position(accepts) {
            Some(place) => place,
            None => {
                self.members.try_reserve(1).map_err(|_| NO_ROOM)?;
                self.members.push(Members::new(self.runtime));
                self.members.len() - 1
            }
        };
        streams().for_each(|stream| self.members[place].add(stream));
        Ok(place)
    }

    /// They are complete.
    fn begin(&mut self) -> Result<()> {
        self.teams.try_reserve_exact(self.members.len()).map_err(|_| NO_ROOM)?;
        self.members.iter().try_for_each(|members| {
            self.teams.push(members.team()?);
            Ok(())
        })
    }

    /// Queues all pieces.
    fn run(&self, pieces: &[Piece], operation: &'static str) -> Result<()> {
        for (index, team) in self.teams.iter().enumerate() {
            let mut moves = Moves::with_room(pieces.len())?;
            for piece in pieces.iter().filter(|piece| piece.team == index) {
                let ((from, src), (to, dst)) = (&piece.src, &piece.dst);
                members::record(team, *from, src)?;
                members::record(team, *to, dst)?;
                moves.add((*from, src), (*to, dst))?;
            }
            moves.run(team)?;
            told::tell(team, operation, |told| {
                for piece in pieces.iter().filter(|piece| piece.team == index) {
                    let ((from, src), (to, dst)) = (&piece.src, &piece.dst);
                    told.moved((*from, src), (*to, dst));
                }
            });
        }
        Ok(())
    }

    /// Waits for those that went to memory of the host that the call has allocated. In a capture they
    /// are there after a launch.
    fn wait_for_host(&self, pieces: &[Piece]) -> Result<()> {
        let goes_to_host = |piece: &&Piece| piece.dst.0.device().is_none();
        for (index, team) in self.teams.iter().enumerate() {
            let own = pieces.iter().filter(goes_to_host).filter(|piece| piece.team == index);
            wait_for(team, own.filter_map(|piece| piece.src.0.device()).collect())?;
        }
        Ok(())
    }
}

/// A list of pieces, with room for all.
fn with_room(count: usize) -> Result<Vec<Piece>> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|_| NO_ROOM)?;
    Ok(list)
}

/// Pieces of a tensor, one on each device; on its own, a view of it.
pub fn scatter<'a>(
    runtime: &'a Runtime,
    tensor: &Tensor,
    devices: &[i32],
    split: Split<'a>,
) -> Result<Outs<'a>> {
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
    let home = Home::of(runtime, tensor)?;
    let mut teams = Teams::new(runtime);
    let (mut targets, mut places) = (Vec::new(), Vec::new());
    targets.try_reserve_exact(devices.len()).map_err(|_| NO_ROOM)?;
    places.try_reserve_exact(devices.len()).map_err(|_| NO_ROOM)?;
    for (index, device) in devices.iter().enumerate() {
        let target = on_stream(runtime, check::target(runtime, *device)?, split, index)?;
        targets.push(target);
        let is_moved = index < sizes.len() && !is_at(home, target);
        places.push(if is_moved { teams.join(home, target.stream())? } else { 0 });
    }
    teams.begin()?;
    let mut draft =
        Draft::new(runtime, sizes.len(), sizes.len().saturating_mul(ndim), sizes.len())?;
    let (mut pieces, mut start) = (with_room(sizes.len())?, 0);
    for (index, size) in sizes.iter().enumerate() {
        let (piece, target) = (narrow(tensor, dim, start, *size)?, targets[index]);
        start += size;
        if is_at(home, target) {
            draft.alias(&piece)?;
            continue;
        }
        let mut strides = [0; MAX_DIMS];
        strides_of_copy(piece.shape(), piece.strides(), &mut strides[..ndim]);
        let out = draft.dense(target, piece.dtype, piece.shape(), &strides[..ndim])?;
        let (src, dst) = ((home, piece), (target.home(), out));
        pieces.push(Piece { src, dst, team: places[index] });
    }
    let outs = draft.finish()?;
    teams.run(&pieces, "tcuda_comm_scatter")?;
    teams.wait_for_host(&pieces)?;
    Ok(outs)
}

/// Pieces of a tensor, in the outputs, whose sizes say which.
pub fn scatter_into(
    runtime: &Runtime,
    tensor: &Tensor,
    outs: &[Tensor],
    split: Split<'_>,
) -> Result<()> {
    check::require_some("count", outs.len())?;
    let ndim = tensor.shape().len();
    if ndim == 0 {
        return Err(NO_DIMENSION);
    }
    let dim = check::dimension(split.dim, ndim)?;
    let home = Home::of(runtime, tensor)?;
    let mut teams = Teams::new(runtime);
    let (mut pieces, mut start) = (with_room(outs.len())?, 0i64);
    let size_of = |out: &Tensor| out.shape().get(dim).copied();
    let whole = tensor.shape()[dim];
    for (index, out) in outs.iter().enumerate() {
        let which = Which::of("outs", index);
        check::require_dtype(which, out, tensor.dtype)?;
        let mut shape = [0; MAX_DIMS];
        shape[..ndim].copy_from_slice(tensor.shape());
        shape[dim] = size_of(out).unwrap_or(whole);
        check::require_shape(which, out, &shape[..ndim])?;
        check::require_apart(out)?;
    }
    require_sum(outs.iter().filter_map(size_of), whole, "the sizes of outs")?;
    for (index, out) in outs.iter().enumerate() {
        let to = Home::of(runtime, out)?;
        let target = check::target(runtime, to.device().unwrap_or(crate::device::CPU))?;
        let target = on_stream(runtime, target, split, index)?;
        let size = size_of(out).unwrap_or(0);
        let piece = narrow(tensor, dim, start, size)?;
        start += size;
        let team = teams.join(home, target.stream())?;
        pieces.push(Piece { src: (home, piece), dst: (to, *out), team });
    }
    teams.begin()?;
    teams.run(&pieces, "tcuda_comm_scatter_into")
}

/// The same target on the stream that was named for a piece, which must be of its device.
fn on_stream<'a>(
    runtime: &'a Runtime,
    target: Target<'a>,
    split: Split<'a>,
    index: usize,
) -> Result<Target<'a>> {
    let Some(stream) = split.streams.get(index).copied().flatten() else { return Ok(target) };
    match target {
        Target::Device(device, _) if device.ordinal() == stream.device() => {
            Ok(Target::Device(device, stream.on_this_thread(runtime)?))
        }
        _ => Err(Error::PieceDevice {
            index,
            stream: stream.device(),
            piece: target.home().device().unwrap_or(crate::device::CPU),
        }),
    }
}

/// What tensors are together along a dimension.
struct Joined {
    shape: [i64; MAX_DIMS],
    strides: [i64; MAX_DIMS],
    ndim: usize,
    dim: usize,
}

impl Joined {
    /// PyTorch's checks, and the layout that it gives the result.
    fn of(tensors: &[Tensor], dim: i32) -> Result<Joined> {
        check::require_some("count", tensors.len())?;
        let first = with_dimension(&tensors[0])?;
        let ndim = first.shape().len();
        let dim = check::dimension(dim, ndim)?;
        let mut joined = Joined { shape: [0; MAX_DIMS], strides: [0; MAX_DIMS], ndim, dim };
        joined.shape[..ndim].copy_from_slice(first.shape());
        let mut format = Format::of(&first);
        let mut whole = 0i64;
        for (index, tensor) in tensors.iter().enumerate() {
            let (which, tensor) = (Which::of("tensors", index), with_dimension(tensor)?);
            check::require_dtype(which, &tensor, first.dtype)?;
            let size = tensor.shape().get(dim).copied();
            joined.shape[dim] = size.unwrap_or(joined.shape[dim]);
            check::require_shape(which, &tensor, &joined.shape[..ndim])?;
            whole = whole.saturating_add(joined.shape[dim]);
            if Format::of(&tensor) != format {
                format = Format::Contiguous;
            }
        }
        joined.shape[dim] = whole;
        format.strides(&joined.shape[..ndim], &mut joined.strides[..ndim]);
        Ok(joined)
    }

    fn shape(&self) -> &[i64] {
        &self.shape[..self.ndim]
    }

    fn strides(&self) -> &[i64] {
        &self.strides[..self.ndim]
    }
}

/// A tensor without dimensions counts as if it had one.
fn with_dimension(tensor: &Tensor) -> Result<Tensor> {
    if !tensor.shape().is_empty() {
        return Ok(*tensor);
    }
    tensor.reshaped(&[1], &[1])
}

/// PyTorch's memory formats.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Contiguous,
    ChannelsLast,
}

impl Format {
    /// Which one the strides of a tensor are taken for.
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
                // What could be either is contiguous.
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

/// The tensors as parts of what they become.
fn gather_pieces<'a>(
    runtime: &'a Runtime,
    tensors: &[Tensor],
    to: Home,
    stream: Option<&'a Stream>,
) -> Result<(Teams<'a>, Vec<(Home, usize)>)> {
    let (mut teams, mut homes) = (Teams::new(runtime), Vec::new());
    homes.try_reserve_exact(tensors.len()).map_err(|_| NO_ROOM)?;
    debug_assert!(to.device() == stream.map(|stream| stream.device()));
    for tensor in tensors {
        let home = Home::of(runtime, tensor)?;
        homes.push((home, teams.join(home, stream)?));
    }
    teams.begin()?;
    Ok((teams, homes))
}

fn parts(
    tensors: &[Tensor],
    homes: &[(Home, usize)],
    dim: usize,
    (to, out): (Home, &Tensor),
) -> Result<Vec<Piece>> {
    let (mut pieces, mut start) = (with_room(tensors.len())?, 0);
    for (tensor, (home, team)) in tensors.iter().zip(homes) {
        let tensor = with_dimension(tensor)?;
        let size = tensor.shape()[dim];
        let part = narrow(out, dim, start, size)?;
        start += size;
        pieces.push(Piece { src: (*home, tensor), dst: (to, part), team: *team });
    }
    Ok(pieces)
}

/// Tensors, joined.
pub fn gather<'a>(
    runtime: &'a Runtime,
    tensors: &[Tensor],
    dim: i32,
    destination: i32,
) -> Result<Outs<'a>> {
    let joined = Joined::of(tensors, dim)?;
    let target = check::target(runtime, destination)?;
    let (teams, homes) = gather_pieces(runtime, tensors, target.home(), target.stream())?;
    let mut draft = Draft::new(runtime, 1, joined.ndim, 1)?;
    let out = draft.dense(target, tensors[0].dtype, joined.shape(), joined.strides())?;
    let outs = draft.finish()?;
    let pieces = parts(tensors, &homes, joined.dim, (target.home(), &out))?;
    teams.run(&pieces, "tcuda_comm_gather")?;
    teams.wait_for_host(&pieces)?;
    Ok(outs)
}

/// Tensors, joined in an output.
pub fn gather_into(runtime: &Runtime, tensors: &[Tensor], dim: i32, out: &Tensor) -> Result<()> {
    let joined = Joined::of(tensors, dim)?;
    let which = Which::all("out");
    check::require_dtype(which, out, tensors[0].dtype)?;
    check::require_shape(which, out, joined.shape())?;
    check::require_apart(out)?;
    let to = Home::of(runtime, out)?;
    let stream = match to.device() {
        Some(device) => Some(check::current(runtime, device)?),
        None => None,
    };
    let (teams, homes) = gather_pieces(runtime, tensors, to, stream)?;
    let pieces = parts(tensors, &homes, joined.dim, (to, out))?;
    teams.run(&pieces, "tcuda_comm_gather_into")
}

#[cfg(test)]
#[path = "pieces_tests.rs"]
mod tests;
