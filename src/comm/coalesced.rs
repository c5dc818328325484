//! Many tensors at once: where they lie in blocks that several share, and how they get there.

use super::check::{self, Home};
use super::members::{self, Members, wait_for};
use super::moves::Moves;
use super::outs::{Draft, Outs, Target, is_at};
use super::path::{Block, Part, Piece};
use super::plain::{self, Scratch};
use super::reduce::{Adding, number_of, root_of};
use super::team::{Devices, Team};
use super::told::{self, Told};
use super::{Tensors, ways};
use crate::device::{CPU, CURRENT, Device};
use crate::error::{Error, Result, Which};
use crate::memory;
use crate::runtime::Runtime;
use crate::tensor::bundle::Site;
use crate::tensor::{MAX_DIMS, Tensor, compact};

/// PyTorch's: the most bytes of a block.
const BUFFER_BYTES: u64 = 10 << 20;
/// Tensors in a block begin at multiples of this.
const ALIGNMENT: u64 = 512;
const NO_ROOM: Error = Error::OutOfHostMemory("the tensors of a collective");
const PARTS_OF_BYTES: Error =
    Error::Invalid("a tensor is no whole number of bytes; pass one of more elements");

/// A tensor, as far as its copies depend on it: all that it takes not to read it again.
struct Laid {
    /// Where it is itself.
    own: Site,
    read_only: bool,
    is_compact: bool,
    /// Where its sizes and strides begin among all.
    start: usize,
    ndim: usize,
    bytes: u64,
    /// In which block it lies, and where there; `None`: it has no elements.
    site: Option<(usize, u64)>,
}

/// Where tensors lie.
struct Layout {
    tensors: Vec<Laid>,
    /// Of each tensor its sizes, then its strides.
    sizes: Vec<i64>,
    /// Of each block its bytes, and how many tensors lie in it.
    blocks: Vec<(u64, usize)>,
    most: u64,
}

impl Layout {
    fn with_room(tensors: usize, buffer_bytes: u64) -> Result<Layout> {
        let most = if buffer_bytes == 0 { BUFFER_BYTES } else { buffer_bytes };
        let mut layout =
            Layout { tensors: Vec::new(), sizes: Vec::new(), blocks: Vec::new(), most };
        layout.tensors.try_reserve_exact(tensors).map_err(|_| NO_ROOM)?;
        Ok(layout)
    }

    /// The next tensor: in the last block, unless that would get too large.
    fn add(&mut self, tensor: &Tensor) -> Result<()> {
        let (start, ndim) = (self.sizes.len(), tensor.shape().len());
        self.sizes.try_reserve(2 * ndim).map_err(|_| NO_ROOM)?;
        self.sizes.extend_from_slice(tensor.shape());
        self.sizes.extend_from_slice(tensor.strides());
        let bits = tensor.numel * tensor.dtype.element_bits();
        if !bits.is_multiple_of(8) {
            return Err(PARTS_OF_BYTES);
        }
        let bytes = bits / 8;
        let site = if bytes == 0 { None } else { Some(self.place(bytes)?) };
        self.tensors.try_reserve(1).map_err(|_| NO_ROOM)?;
        let (own, read_only) = (Site::of(tensor), tensor.read_only);
        let is_compact = tensor.is_compact();
        self.tensors.push(Laid { own, read_only, is_compact, start, ndim, bytes, site });
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

    fn shape(&self, laid: &Laid) -> &[i64] {
        &self.sizes[laid.start..laid.start + laid.ndim]
    }

    fn strides(&self, laid: &Laid) -> &[i64] {
        &self.sizes[laid.start + laid.ndim..laid.start + 2 * laid.ndim]
    }

    /// Sizes of all tensors.
    fn num_sizes(&self) -> usize {
        self.sizes.len() / 2
    }

    /// Blocks of this layout, as outputs of a draft: their numbers there, and where they are.
    fn allocate(&self, draft: &mut Draft<'_>, target: Target<'_>) -> Result<Vec<(u32, u64)>> {
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(self.blocks.len()).map_err(|_| NO_ROOM)?;
        for (bytes, _) in &self.blocks {
            blocks.push(draft.block(target, *bytes)?);
        }
        Ok(blocks)
    }

    /// A tensor in such a block, its elements side by side.
    fn slice(
        &self,
        draft: &mut Draft<'_>,
        target: Target<'_>,
        blocks: &[(u32, u64)],
        laid: &Laid,
    ) -> Result<u64> {
        let mut strides = [0; MAX_DIMS];
        let strides = &mut strides[..laid.ndim];
        compact(self.shape(laid), strides);
        let (block, address) = match laid.site {
            Some((block, offset)) => (Some(blocks[block].0), blocks[block].1 + offset),
            None => (None, 0),
        };
        draft.slice(target, laid.own.dtype, (self.shape(laid), strides), block, address)?;
        Ok(address)
    }
}

/// Copies of many tensors on each device; on the first, they themselves.
pub fn broadcast_coalesced<'a>(
    runtime: &'a Runtime,
    tensors: Tensors<'_>,
    devices: &[i32],
    buffer_bytes: u64,
) -> Result<Outs<'a>> {
    check::require_some("num_devices", devices.len())?;
    let mut members = Members::new(runtime);
    let mut targets = Vec::new();
    targets.try_reserve_exact(devices.len()).map_err(|_| NO_ROOM)?;
    for device in devices {
        let target = check::target(runtime, *device)?;
        members.add_target(target);
        targets.push(target);
    }
    let first = targets[0];
    let mut layout = Layout::with_room(tensors.len, buffer_bytes)?;
    for index in 0..tensors.len {
        let tensor = (tensors.read)(index)?;
        let home = Home::of(runtime, &tensor)?;
        if !is_at(home, first) {
            return Err(Error::Elsewhere {
                which: Which::of("tensors", index),
                place: home.device().unwrap_or(CPU),
                expected: devices[0],
            });
        }
        if let (Some(stream), true) = (first.stream(), tensor.numel > 0) {
            memory::record_around(tensor.address, tensor.data, stream)?;
        }
        layout.add(&tensor)?;
    }
    let team = members.team()?;
    let is_own = |target: &Target<'_>| first.home() == target.home();
    let others = targets.iter().filter(|target| !is_own(target)).count();
    let all = |each: usize| each.saturating_mul(devices.len());
    let num_blocks = layout.blocks.len().saturating_mul(others);
    let mut draft = Draft::new(runtime, all(tensors.len), all(layout.num_sizes()), num_blocks)?;
    let mut copies = Vec::new();
    copies.try_reserve_exact(others).map_err(|_| NO_ROOM)?;
    for target in &targets {
        if is_own(target) {
            for laid in &layout.tensors {
                let sizes = (layout.shape(laid), layout.strides(laid));
                draft.alias_of(laid.own, sizes, laid.read_only)?;
            }
            continue;
        }
        let blocks = layout.allocate(&mut draft, *target)?;
        for laid in &layout.tensors {
            layout.slice(&mut draft, *target, &blocks, laid)?;
        }
        copies.push((target.home(), blocks));
    }
    let outs = draft.finish()?;
    send(&team, tensors, &layout, first, &copies)?;
    told::tell(&team, "tcuda_comm_broadcast_coalesced", |told| {
        for index in (0..tensors.len).filter(|_| !copies.is_empty()) {
            // It was looked at before.
            if let Ok(tensor) = (tensors.read)(index)
                && let Ok(home) = Home::of(runtime, &tensor)
            {
                told.read(home, &tensor);
            }
        }
        let blocks = |(home, blocks): &Copied| {
            let blocks = blocks.iter().zip(&layout.blocks);
            blocks.for_each(|((_, at), (bytes, _))| told.written_range(*home, *at, *bytes));
        };
        copies.iter().for_each(blocks);
    });
    if copies.iter().any(|(home, _)| home.device().is_none()) {
        wait_for(&team, first.home().device().into_iter().collect())?;
    }
    Ok(outs)
}

/// Where copies of all blocks are.
type Copied = (Home, Vec<(u32, u64)>);

/// Queues copies of all tensors into the blocks.
fn send(
    team: &Team<'_>,
    tensors: Tensors<'_>,
    layout: &Layout,
    first: Target<'_>,
    copies: &[Copied],
) -> Result<()> {
    let Some(root) = first.home().device() else {
        return move_each(team, tensors, layout, copies.iter());
    };
    // Of several copies on one device the others are made there.
    let mut seen = Devices::default();
    let (mut far, mut rest) = (Vec::new(), Vec::new());
    far.try_reserve_exact(copies.len()).map_err(|_| NO_ROOM)?;
    rest.try_reserve_exact(copies.len()).map_err(|_| NO_ROOM)?;
    for copy in copies {
        match copy.0 {
            Home::Device(device) if !seen.has(device) => {
                seen.add(device);
                far.push((device, copy));
            }
            _ => rest.push(copy),
        }
    }
    if !far.is_empty() {
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
        // Tensors are in the order of their blocks.
        let mut rest = pieces.as_slice();
        for (block, (bytes, tensors)) in layout.blocks.iter().enumerate() {
            let (own, others) = rest.split_at(*tensors);
            rest = others;
            let parts = &parts[block * far.len()..][..far.len()];
            blocks.push(Block { pieces: own, parts, bytes: *bytes });
        }
        if !ways::broadcast_blocks(team, root, &blocks)? {
            blocks.iter().try_for_each(|block| send_block(team, root, block))?;
        }
    }
    move_each(team, tensors, layout, rest.into_iter())
}

/// What is sent, block by block; what does not lie side by side is packed first.
fn pieces<'a>(
    team: &Team<'a>,
    tensors: Tensors<'_>,
    layout: &Layout,
    root: i32,
) -> Result<(Vec<Piece>, Vec<Scratch<'a>>)> {
    let (mut pieces, mut scratch) = (Vec::new(), Vec::new());
    let mut packing = Moves::default();
    pieces.try_reserve_exact(tensors.len).map_err(|_| NO_ROOM)?;
    for (index, laid) in layout.tensors.iter().enumerate() {
        let Some((_, offset)) = laid.site else { continue };
        let mut src = laid.own.data.wrapping_add(laid.own.byte_offset);
        if !laid.is_compact {
            let tensor = (tensors.read)(index)?;
            let room = Scratch::on(team, root, laid.bytes)?;
            let packed = tensor.side_by_side(room.address)?;
            packing.add((Home::Device(root), &tensor), (Home::Device(root), &packed))?;
            src = room.address;
            scratch.try_reserve(1).map_err(|_| NO_ROOM)?;
            scratch.push(room);
        }
        pieces.push(Piece { src, offset, bytes: laid.bytes });
    }
    packing.run(team)?;
    Ok((pieces, scratch))
}

/// A block without fast ways: packed on its device, then sent to one after the other.
fn send_block(team: &Team<'_>, root: i32, block: &Block) -> Result<()> {
    let packed;
    let src = match block.pieces {
        [only] => only.src,
        pieces => {
            packed = Scratch::on(team, root, block.bytes)?;
            for piece in pieces {
                let to = (root, packed.address + piece.offset);
                plain::send_range(team, (root, piece.src), to, piece.bytes)?;
            }
            packed.address
        }
    };
    let send = |part: &Part| {
        plain::send_range(team, (root, src), (part.device, part.address), block.bytes)
    };
    block.parts.iter().try_for_each(send)
}

/// Tensor by tensor.
fn move_each<'c>(
    team: &Team<'_>,
    tensors: Tensors<'_>,
    layout: &Layout,
    copies: impl Iterator<Item = &'c Copied> + Clone,
) -> Result<()> {
    let mut moves = Moves::default();
    for (index, laid) in layout.tensors.iter().enumerate() {
        let (Some((block, offset)), Some(_)) = (laid.site, copies.clone().next()) else {
            continue;
        };
        let tensor = (tensors.read)(index)?;
        let home = Home::of(team.runtime(), &tensor)?;
        for (to, blocks) in copies.clone() {
            let copy = tensor.side_by_side(blocks[block].1 + offset)?;
            moves.add((home, &tensor), (*to, &copy))?;
        }
    }
    moves.run(team)
}

/// Tensors of several devices that are added up, and which of them comes first.
struct Column {
    tensors: Vec<(Home, Tensor)>,
    root: usize,
}

impl Column {
    fn with_room(num_devices: usize) -> Result<Column> {
        let mut tensors = Vec::new();
        tensors.try_reserve_exact(num_devices).map_err(|_| NO_ROOM)?;
        Ok(Column { tensors, root: 0 })
    }

    /// Those of a number in each list, with PyTorch's checks.
    fn read(
        &mut self,
        runtime: &Runtime,
        tensors: Tensors<'_>,
        (number, num_tensors): (usize, usize),
        target: Target<'_>,
    ) -> Result<()> {
        self.tensors.clear();
        for index in (number..tensors.len).step_by(num_tensors) {
            let tensor = (tensors.read)(index)?;
            if let Some((_, first)) = self.tensors.first() {
                let which = Which::of("tensors", index);
                check::require_dtype(which, &tensor, first.dtype)?;
                check::require_shape(which, &tensor, first.shape())?;
            }
            self.tensors.push((Home::of(runtime, &tensor)?, tensor));
        }
        self.root = root_of(self.tensors.iter().map(|(home, _)| *home), target)?;
        Ok(())
    }

    /// In the order in which they are added.
    fn in_order(&self) -> impl Iterator<Item = (Home, &Tensor)> + Clone {
        let others = self.tensors.iter().enumerate().filter(|(index, _)| *index != self.root);
        let first = std::iter::once(&self.tensors[self.root]);
        first.chain(others.map(|(_, other)| other)).map(|(home, tensor)| (*home, tensor))
    }
}

/// Sums of many tensors.
pub fn reduce_add_coalesced<'a>(
    runtime: &'a Runtime,
    tensors: Tensors<'_>,
    num_devices: usize,
    destination: i32,
    buffer_bytes: u64,
) -> Result<Outs<'a>> {
    check::require_some("num_devices", num_devices)?;
    let num_tensors = tensors.len / num_devices;
    let target = check::target(runtime, destination)?;
    let mut members = Members::new(runtime);
    members.add_target(target);
    let mut layout = Layout::with_room(num_tensors, buffer_bytes)?;
    let mut column = Column::with_room(num_devices)?;
    // For the host the first device adds that has a tensor.
    let mut adder = target.home().device();
    let mut writers = Devices::default();
    for number in 0..num_tensors {
        column.read(runtime, tensors, (number, num_tensors), target)?;
        for (home, _) in &column.tensors {
            members.add_home(*home)?;
            adder = adder.or(home.device());
            home.device().into_iter().for_each(|device| writers.add(device));
        }
        let (_, first) = &column.tensors[column.root];
        number_of(first.dtype)?;
        layout.add(first)?;
    }
    let adder = adder.map_or_else(|| runtime.device(CURRENT).map(Device::ordinal), Ok)?;
    members.add_device(adder)?;
    let team = members.team()?;
    let mut draft = Draft::new(runtime, num_tensors, layout.num_sizes(), layout.blocks.len())?;
    let mut adding = Adding::with_room(&team, adder, tensors.len, num_tensors)?;
    let mut moves = Moves::default();
    let mut blocks = None;
    let mut told = Told::begin("tcuda_comm_reduce_add_coalesced");
    for (number, laid) in layout.tensors.iter().enumerate() {
        column.read(runtime, tensors, (number, num_tensors), target)?;
        for (home, tensor) in &column.tensors {
            members::record(&team, *home, tensor)?;
        }
        let (home, first) = &column.tensors[column.root];
        if num_devices == 1 && is_at(*home, target) {
            draft.alias(first)?;
            continue;
        }
        if blocks.is_none() {
            blocks = Some(layout.allocate(&mut draft, target)?);
        }
        let address = layout.slice(&mut draft, target, blocks.as_deref().unwrap_or(&[]), laid)?;
        let out = first.side_by_side(address)?;
        if let Some(told) = &mut told {
            column.tensors.iter().for_each(|(home, tensor)| told.read(*home, tensor));
            told.written(target.home(), &out);
        }
        match num_devices {
            1 => moves.add((*home, first), (target.home(), &out))?,
            _ => adding.item(column.in_order(), (target.home(), &out))?,
        }
    }
    let outs = draft.finish()?;
    moves.run(&team)?;
    adding.run()?;
    if let Some(told) = &told {
        told.tell(&team);
    }
    if matches!(target, Target::Host) {
        writers.add(adder);
        wait_for(&team, writers)?;
    }
    Ok(outs)
}
