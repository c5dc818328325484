//! Many tensors in one call: their layout in shared blocks, and the transfer of the blocks.

use super::Tensors;
use super::check::{self, MemoryKind};
use super::members::{Members, wait_for};
use super::moves::Moves;
use super::path::{Block, Part, Piece};
use super::team::{Devices, Team};
use crate::base::error::{Error, Result, Which};
use crate::collectives::fallback::{self, Scratch};
use crate::collectives::outputs::{Draft, Outputs, Target, is_at};
use crate::collectives::{dispatch, sanitizer_events};
use crate::gpu::device::CPU;
use crate::gpu::gpus::Gpus;
use crate::memory;
use crate::tensor::bundle::Site;
use crate::tensor::{Place, Tensor};

/// The largest block, as in PyTorch.
const BUFFER_BYTES: u64 = 10 << 20;
/// Alignment of tensors in a block.
const ALIGNMENT: u64 = 512;
const NO_ROOM: Error = Error::OutOfHostMemory("the tensors of a collective");
const PARTS_OF_BYTES: Error =
    Error::Invalid("a tensor is no whole number of bytes; pass one of more elements");

/// A tensor in the layout; has all that its copies need, so that the tensor is not read again.
pub(super) struct PlacedTensor {
    /// The tensor's own site.
    own: Site,
    read_only: bool,
    is_compact: bool,
    /// Index of its first size in the layout.
    start: usize,
    ndim: usize,
    bytes: u64,
    /// Its block, and the offset in it; `None`: it has no elements, or is not copied.
    site: Option<(usize, u64)>,
}

/// The layout of tensors in blocks.
pub(super) struct Layout {
    pub(super) tensors: Vec<PlacedTensor>,
    /// For each tensor its sizes, then its strides.
    sizes: Vec<i64>,
    /// For each block its bytes, and its number of tensors.
    pub(super) blocks: Vec<(u64, usize)>,
    most: u64,
}

impl Layout {
    pub(super) fn with_room(tensors: usize, buffer_bytes: u64) -> Result<Layout> {
        let most = if buffer_bytes == 0 { BUFFER_BYTES } else { buffer_bytes };
        let mut layout =
            Layout { tensors: Vec::new(), sizes: Vec::new(), blocks: Vec::new(), most };
        layout.tensors.try_reserve_exact(tensors).map_err(|_| NO_ROOM)?;
        // An estimate: most tensors have at most two dimensions.
        layout.sizes.try_reserve(4 * tensors).map_err(|_| NO_ROOM)?;
        Ok(layout)
    }

    /// Adds a tensor to the last block, or to a new one if that would get too large. A tensor that
    /// `is_own` gets no place, because a block without tensors would never be freed.
    pub(super) fn add(&mut self, tensor: &Tensor, is_own: bool) -> Result<()> {
        let (start, ndim) = (self.sizes.len(), tensor.shape().len());
        self.sizes.try_reserve(2 * ndim).map_err(|_| NO_ROOM)?;
        self.sizes.extend_from_slice(tensor.shape());
        self.sizes.extend_from_slice(tensor.strides());
        let bits = tensor.numel * tensor.dtype.element_bits();
        if !bits.is_multiple_of(8) {
            return Err(PARTS_OF_BYTES);
        }
        let bytes = bits / 8;
        let site = if bytes == 0 || is_own { None } else { Some(self.place(bytes)?) };
        self.tensors.try_reserve(1).map_err(|_| NO_ROOM)?;
        let (own, read_only) = (Site::of(tensor), tensor.read_only);
        let is_compact = tensor.is_compact();
        self.tensors.push(PlacedTensor { own, read_only, is_compact, start, ndim, bytes, site });
        Ok(())
    }

    fn place(&mut self, bytes: u64) -> Result<(usize, u64)> {
        if let Some((last, tensors)) = self.blocks.last_mut() {
            let offset = last.next_multiple_of(ALIGNMENT);
            if offset.saturating_add(bytes) <= self.most {
                *last = offset + bytes;
                *tensors += 1;
                return Ok((self.blocks.len() - 1, offset));
            }
        }
        self.blocks.try_reserve(1).map_err(|_| NO_ROOM)?;
        self.blocks.push((bytes, 1));
        Ok((self.blocks.len() - 1, 0))
    }

    fn shape(&self, placed: &PlacedTensor) -> &[i64] {
        &self.sizes[placed.start..placed.start + placed.ndim]
    }

    fn strides(&self, placed: &PlacedTensor) -> &[i64] {
        &self.sizes[placed.start + placed.ndim..placed.start + 2 * placed.ndim]
    }

    /// Number of sizes of all tensors.
    pub(super) fn num_sizes(&self) -> usize {
        self.sizes.len() / 2
    }

    /// Allocates the blocks in a draft. Returns the index and address of each.
    pub(super) fn allocate(
        &self,
        draft: &mut Draft<'_>,
        target: Target<'_>,
    ) -> Result<Vec<(u32, u64)>> {
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(self.blocks.len()).map_err(|_| NO_ROOM)?;
        for (bytes, _) in &self.blocks {
            blocks.push(draft.block(target, *bytes)?);
        }
        Ok(blocks)
    }

    /// Adds an output for a tensor: contiguous, in its block. Returns its address.
    pub(super) fn slice(
        &self,
        draft: &mut Draft<'_>,
        target: Target<'_>,
        blocks: &[(u32, u64)],
        placed: &PlacedTensor,
    ) -> Result<u64> {
        let (block, address) = match placed.site {
            Some((block, offset)) => (Some(blocks[block].0), blocks[block].1 + offset),
            None => (None, 0),
        };
        draft.compact(target, placed.own.dtype, self.shape(placed), block, address)?;
        Ok(address)
    }
}

/// The memory kind of a tensor. If it is on the target's device, its use on the target's stream is
/// recorded.
pub(super) fn kind_of(gpus: &Gpus, tensor: &Tensor, target: Target<'_>) -> Result<MemoryKind> {
    let Target::Device(device, stream) = target else { return MemoryKind::of(gpus, tensor) };
    let own = MemoryKind::Device(device.ordinal());
    if tensor.numel > 0 && tensor.place == Place::Cuda(device.ordinal()) {
        let range = tensor.range()?;
        if memory::use_inside(device.ordinal(), tensor.address, range, stream)? {
            return Ok(own);
        }
    }
    let kind = MemoryKind::of(gpus, tensor)?;
    if kind == own && tensor.numel > 0 {
        memory::record_around(tensor.address, tensor.data, stream)?;
    }
    Ok(kind)
}

/// Broadcasts many tensors to each device. On the tensors' own device the outputs are the tensors.
pub fn broadcast_coalesced<'a>(
    gpus: &'a Gpus,
    tensors: Tensors<'_>,
    devices: &[i32],
    buffer_bytes: u64,
) -> Result<Outputs<'a>> {
    check::require_some("num_devices", devices.len())?;
    let mut members = Members::new(gpus);
    let mut targets = Vec::new();
    targets.try_reserve_exact(devices.len()).map_err(|_| NO_ROOM)?;
    for device in devices {
        let target = check::target(gpus, *device)?;
        members.add_target(target)?;
        targets.push(target);
    }
    let mut first = targets[0];
    let mut layout = Layout::with_room(tensors.len, buffer_bytes)?;
    let mut tensor = Tensor::none();
    for index in 0..tensors.len {
        (tensors.read)(index, &mut tensor)?;
        let kind = kind_of(gpus, &tensor, first)?;
        if !is_at(kind, first) {
            if index > 0 {
                return Err(Error::Elsewhere {
                    which: Which::of("tensors", index),
                    place: kind.device().unwrap_or(CPU),
                    expected: first.kind().device().unwrap_or(CPU),
                });
            }
            first = check::target(gpus, kind.device().unwrap_or(CPU))?;
            members.add_target(first)?;
            kind_of(gpus, &tensor, first)?;
        }
        layout.add(&tensor, false)?;
    }
    let team = members.team()?;
    let is_own = |target: &Target<'_>| first.kind() == target.kind();
    let others = targets.iter().filter(|target| !is_own(target)).count();
    let all = |each: usize| each.saturating_mul(devices.len());
    let num_blocks = layout.blocks.len().saturating_mul(others);
    let mut draft = Draft::new(gpus, all(tensors.len), all(layout.num_sizes()), num_blocks)?;
    let mut copies = Vec::new();
    copies.try_reserve_exact(others).map_err(|_| NO_ROOM)?;
    for target in &targets {
        if is_own(target) {
            for placed in &layout.tensors {
                let sizes = (layout.shape(placed), layout.strides(placed));
                draft.alias_of(placed.own, sizes, placed.read_only)?;
            }
            continue;
        }
        let blocks = layout.allocate(&mut draft, *target)?;
        for placed in &layout.tensors {
            layout.slice(&mut draft, *target, &blocks, placed)?;
        }
        copies.push((target.kind(), blocks));
    }
    let outs = draft.finish()?;
    send(&team, tensors, &layout, first, &copies)?;
    sanitizer_events::report(&team, "tcuda_comm_broadcast_coalesced", |events| {
        for index in (0..tensors.len).filter(|_| !copies.is_empty()) {
            // The checks have succeeded before.
            if (tensors.read)(index, &mut tensor).is_ok()
                && let Ok(kind) = MemoryKind::of(gpus, &tensor)
            {
                events.read(kind, &tensor);
            }
        }
        let blocks = |(kind, blocks): &Copied| {
            let blocks = blocks.iter().zip(&layout.blocks);
            blocks.for_each(|((_, at), (bytes, _))| events.written_range(*kind, *at, *bytes));
        };
        copies.iter().for_each(blocks);
    });
    if copies.iter().any(|(kind, _)| kind.device().is_none()) {
        wait_for(&team, first.kind().device().into_iter().collect())?;
    }
    Ok(outs)
}

/// The destination of a copy of all blocks, with the index and address of each.
type Copied = (MemoryKind, Vec<(u32, u64)>);

/// Queues copies of all tensors into the blocks.
fn send(
    team: &Team<'_>,
    tensors: Tensors<'_>,
    layout: &Layout,
    first: Target<'_>,
    copies: &[Copied],
) -> Result<()> {
    let root = first.kind().device();
    // Of several copies on one device, one is sent; the others are copied on the device.
    let mut seen = Devices::default();
    let (mut far, mut rest) = (Vec::new(), Vec::new());
    far.try_reserve_exact(copies.len()).map_err(|_| NO_ROOM)?;
    rest.try_reserve_exact(copies.len()).map_err(|_| NO_ROOM)?;
    for copy in copies {
        match copy.0 {
            MemoryKind::Device(device) if root.is_some() && !seen.has(device) => {
                seen.add(device);
                far.push((device, copy));
            }
            _ => rest.push(copy),
        }
    }
    if let Some(root) = root.filter(|_| !far.is_empty()) {
        let (pieces, _scratch) = pieces(team, tensors, layout, root)?;
        let num_blocks = layout.blocks.len();
        let (mut parts, mut blocks) = (Vec::new(), Vec::new());
        parts.try_reserve_exact(far.len().saturating_mul(num_blocks)).map_err(|_| NO_ROOM)?;
        blocks.try_reserve_exact(num_blocks).map_err(|_| NO_ROOM)?;
        for block in 0..num_blocks {
            let part = |(device, copy): &(i32, &Copied)| Part {
                device: *device,
                address: copy.1[block].1,
            };
            parts.extend(far.iter().map(part));
        }
        // The tensors are in the order of their blocks.
        let mut rest = pieces.as_slice();
        for (block, (bytes, tensors)) in layout.blocks.iter().enumerate() {
            let (own, others) = rest.split_at(*tensors);
            rest = others;
            let parts = &parts[block * far.len()..][..far.len()];
            blocks.push(Block { pieces: own, parts, bytes: *bytes });
        }
        if !dispatch::broadcast_blocks(team, root, &blocks)? {
            blocks.iter().try_for_each(|block| send_block(team, root, block))?;
        }
    }
    if rest.is_empty() { Ok(()) } else { move_each(team, root, tensors, layout, &rest) }
}

/// The pieces to send, block by block. Tensors that are not contiguous are packed first.
#[inline(never)]
fn pieces<'a>(
    team: &Team<'a>,
    tensors: Tensors<'_>,
    layout: &Layout,
    root: i32,
) -> Result<(Vec<Piece>, Vec<Scratch<'a>>)> {
    let (mut pieces, mut scratch) = (Vec::new(), Vec::new());
    let mut packing = Moves::new();
    pieces.try_reserve_exact(tensors.len).map_err(|_| NO_ROOM)?;
    for (index, placed) in layout.tensors.iter().enumerate() {
        let Some((_, offset)) = placed.site else { continue };
        let mut src = placed.own.data.wrapping_add(placed.own.byte_offset);
        if !placed.is_compact {
            let room = Scratch::on(team, root, placed.bytes)?;
            src = room.address;
            let to = [(MemoryKind::Device(root), src)].into_iter();
            add_moves(team, Some(root), (tensors, index), &mut packing, to)?;
            scratch.try_reserve(1).map_err(|_| NO_ROOM)?;
            scratch.push(room);
        }
        pieces.push(Piece { src, offset, bytes: placed.bytes });
    }
    packing.run(team)?;
    Ok((pieces, scratch))
}

/// Sends a block on the fallback path: packs it on its device, then sends it to each destination.
fn send_block(team: &Team<'_>, root: i32, block: &Block) -> Result<()> {
    let packed;
    let src = match block.pieces {
        [only] => only.src,
        pieces => {
            packed = Scratch::on(team, root, block.bytes)?;
            for piece in pieces {
                let to = (root, packed.address + piece.offset);
                fallback::send_range(team, (root, piece.src), to, piece.bytes)?;
            }
            packed.address
        }
    };
    let send = |part: &Part| {
        fallback::send_range(team, (root, src), (part.device, part.address), block.bytes)
    };
    block.parts.iter().try_for_each(send)
}

/// Copies each tensor separately.
#[inline(never)]
fn move_each(
    team: &Team<'_>,
    root: Option<i32>,
    tensors: Tensors<'_>,
    layout: &Layout,
    copies: &[&Copied],
) -> Result<()> {
    let mut moves = Moves::new();
    for (index, placed) in layout.tensors.iter().enumerate() {
        let Some((block, offset)) = placed.site else { continue };
        let places = copies.iter().map(|(to, blocks)| (*to, blocks[block].1 + offset));
        add_moves(team, root, (tensors, index), &mut moves, places)?;
    }
    moves.run(team)
}

/// Adds moves of a tensor to several contiguous destinations. `root`: its device; `None`: the host.
#[inline(never)]
fn add_moves(
    team: &Team<'_>,
    root: Option<i32>,
    (tensors, index): (Tensors<'_>, usize),
    moves: &mut Moves,
    places: impl Iterator<Item = (MemoryKind, u64)>,
) -> Result<()> {
    let (mut tensor, mut copy) = (Tensor::none(), Tensor::none());
    (tensors.read)(index, &mut tensor)?;
    let kind = match root {
        Some(root) => MemoryKind::Device(root),
        None => MemoryKind::of(team.gpus(), &tensor)?,
    };
    for (to, address) in places {
        tensor.set_contiguous(address, &mut copy)?;
        moves.add((kind, &tensor), (to, &copy))?;
    }
    Ok(())
}
