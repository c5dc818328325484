//! Broadcasts with kernels that write to several devices at once.
//!
//! A small broadcast is one kernel on the root. A larger one is divided into a range for each other
//! device, its owner. The owner reads its range over its link and writes it to all others. So each
//! link carries about the size of the broadcast once, without waits between the devices.

use super::limits::{LARGE_BROADCAST, LINE, SMALL_BROADCAST};
use super::table::{MAX_ITEMS, Table};
use super::{Block, Part, Piece, Rows, all_devices, chain, copies, with_ordering};
use crate::base::error::Result;
use crate::base::inline_vec::Few;
use crate::collectives::team::{Devices, INLINE_CAPACITY, INLINE_ROWS, Team, Worker};

/// Copies bytes to several places.
pub fn broadcast(team: &Team, bytes: u64, src: Part, dsts: &[Part]) -> Result<bool> {
    if bytes == 0 || dsts.is_empty() {
        return Ok(true);
    }
    let block =
        Block { pieces: &[Piece { src: src.address, offset: 0, bytes }], parts: dsts, bytes };
    // For a single destination a copy engine is as fast as a kernel.
    if dsts.len() > 1 && is_small(team, src.device, &[block])? {
        return by_root(team, src.device, &[block]);
    }
    let is_far = |dst: &&Part| dst.device != src.device;
    let (mut far, mut near) =
        (Few::<Part, INLINE_CAPACITY>::new(), Few::<Part, INLINE_CAPACITY>::new());
    far.fill(dsts.iter().filter(is_far).copied())?;
    near.fill(dsts.iter().filter(|dst| !is_far(dst)).copied())?;
    chain::with_near_copies(team, bytes, src, &near, || broadcast_far(team, bytes, src, &far))
}

/// Copies bytes to other devices.
fn broadcast_far(team: &Team, bytes: u64, src: Part, dsts: &[Part]) -> Result<bool> {
    let block =
        Block { pieces: &[Piece { src: src.address, offset: 0, bytes }], parts: dsts, bytes };
    if dsts.len() > 1 && can_own(team, src.device, &[block])? {
        return match bytes < LARGE_BROADCAST.get() {
            true => by_owners(team, src.device, &[block]),
            false => chain::broadcast(team, bytes, src, dsts),
        };
    }
    let mut rows = Few::<Rows, INLINE_ROWS>::new();
    rows.fill(dsts.iter().map(|dst| Rows::flat(src, *dst, bytes)))?;
    copies(team, &rows)
}

/// Copies pieces of device `root` into a block on each other device; the blocks have one layout.
pub fn broadcast_many(
    team: &Team,
    root: i32,
    pieces: &[Piece],
    blocks: &[Part],
    block_bytes: u64,
) -> Result<bool> {
    broadcast_blocks(team, root, &[Block { pieces, parts: blocks, bytes: block_bytes }])
}

/// Copies pieces into several blocks on each other device, as one transfer.
pub fn broadcast_blocks(team: &Team, root: i32, blocks: &[Block]) -> Result<bool> {
    let Some(first) = blocks.first().filter(|block| !block.parts.is_empty()) else {
        return Ok(true);
    };
    if let ([Block { pieces: [piece], .. }], parts) = (blocks, first.parts) {
        let src = Part { device: root, address: piece.src };
        let at = |part: &Part| Part { address: part.address + piece.offset, ..*part };
        let mut dsts = Few::<Part, INLINE_CAPACITY>::new();
        dsts.fill(parts.iter().map(at))?;
        return broadcast(team, piece.bytes, src, &dsts);
    }
    if first.parts.len() > 1 && !is_small(team, root, blocks)? && can_own(team, root, blocks)? {
        return by_owners(team, root, blocks);
    }
    match team.can_all_use(Devices::one(root), parts_of(blocks))? {
        true => by_root(team, root, blocks),
        false => Ok(false),
    }
}

/// All destinations of the blocks.
fn parts_of(blocks: &[Block]) -> impl Iterator<Item = Part> + Clone {
    blocks.iter().flat_map(|block| block.parts.iter().copied())
}

/// All destinations and sources of the blocks.
fn all_parts(root: i32, blocks: &[Block]) -> impl Iterator<Item = Part> + Clone {
    let pieces = blocks.iter().flat_map(|block| block.pieces);
    pieces.map(move |piece| Part { device: root, address: piece.src }).chain(parts_of(blocks))
}

fn bytes_of(blocks: &[Block]) -> u64 {
    blocks.iter().fold(0, |all, block| all.saturating_add(block.bytes))
}

/// The devices whose memory the broadcast accesses.
fn touched(root: i32, blocks: &[Block]) -> Devices {
    all_devices(parts_of(blocks)).with(root)
}

/// Is it small enough for the root alone, and does the root have access to all destinations?
fn is_small(team: &Team, root: i32, blocks: &[Block]) -> Result<bool> {
    let targets = blocks.first().map_or(0, |block| block.parts.len() as u64);
    Ok(bytes_of(blocks).saturating_mul(targets) <= SMALL_BROADCAST.get()
        && team.can_all_use(Devices::one(root), parts_of(blocks))?)
}

/// Can each other device read the root's memory and write the memory of all others?
fn can_own(team: &Team, root: i32, blocks: &[Block]) -> Result<bool> {
    let Some(first) = blocks.first() else { return Ok(false) };
    let owners = all_devices(first.parts.iter().copied());
    let is_alike = |block: &Block| {
        let devices = |parts: &'_ [Part]| parts.iter().map(|part| part.device).collect::<Devices>();
        block.parts.len() == first.parts.len() && devices(block.parts) == owners
    };
    Ok(owners.len() == first.parts.len()
        && !owners.has(root)
        && blocks.iter().all(is_alike)
        && team.can_all_use(owners, all_parts(root, blocks))?)
}

/// Copies with one kernel, on the root.
fn by_root(team: &Team, root: i32, blocks: &[Block]) -> Result<bool> {
    let workers = [Worker { stream: team.stream(root), touches: touched(root, blocks) }];
    with_ordering(team, &workers, all_parts(root, blocks), || {
        blocks.iter().try_for_each(|block| spread(team, root, block, 0, (0, block.bytes)))
    })
}

/// Copies with one kernel on each other device, which handles one range of all blocks.
fn by_owners(team: &Team, root: i32, blocks: &[Block]) -> Result<bool> {
    let (owners, touches) = (blocks[0].parts, touched(root, blocks));
    let of_owner = |own: &Part| Worker { stream: team.stream(own.device), touches };
    let mut workers = Few::<Worker, INLINE_CAPACITY>::new();
    workers.fill(owners.iter().map(of_owner))?;
    let whole = bytes_of(blocks);
    with_ordering(team, &workers, all_parts(root, blocks), || {
        workers.iter().enumerate().try_for_each(|(index, worker)| {
            let (from, to) = share(whole, index, workers.len());
            let (mut start, device) = (0, worker.stream.device());
            for block in blocks {
                let inside = |at: u64| at.saturating_sub(start).min(block.bytes);
                let range = (inside(from), inside(to));
                if range.0 < range.1 {
                    let own = |part: &Part| part.device == device;
                    let first = block.parts.iter().position(own).unwrap_or(0);
                    spread(team, device, block, first, range)?;
                }
                start += block.bytes;
            }
            Ok(())
        })
    })
}

/// The range of one owner, out of `count` equal ranges.
pub(super) fn share(whole: u64, index: usize, count: usize) -> (u64, u64) {
    let cut = |index| match index {
        0 => 0,
        _ if index == count => whole,
        _ => (u128::from(whole) * index as u128 / count as u128) as u64 / LINE * LINE,
    };
    (cut(index), cut(index + 1))
}

/// Copies a range of a block's layout to all destinations. Destination `first` comes first, so that
/// not all devices write to the same one at a time.
fn spread(
    team: &Team,
    device: i32,
    block: &Block,
    first: usize,
    (from, to): (u64, u64),
) -> Result<()> {
    let (pieces, dsts) = (block.pieces, block.parts);
    let (stream, own) = (team.stream(device), dsts[first].address);
    let others = dsts[first + 1..].iter().chain(&dsts[..first]).map(|dst| dst.address);
    let mut table = Table::with_targets((to - from) * dsts.len() as u64, own, others)?;
    let start = pieces.partition_point(|piece| piece.offset + piece.bytes <= from);
    for piece in pieces[start..].iter().take_while(|piece| piece.offset < to) {
        let mut at = piece.offset.max(from);
        let end = (piece.offset + piece.bytes).min(to);
        while at < end {
            let bytes = (end - at).min(MAX_ITEMS);
            let src = piece.src + (at - piece.offset);
            if !table.add_range(src, own + at, bytes) {
                table.launch(team, stream)?;
                table.clear_entries();
                table.add_range(src, own + at, bytes);
            }
            at += bytes;
        }
    }
    if table.is_empty() { Ok(()) } else { table.launch(team, stream) }
}
