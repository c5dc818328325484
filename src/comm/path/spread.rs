//! Broadcasts by kernels, which write what they read to several devices at once.
//!
//! Small ones are one kernel on the root. Larger ones are cut into a range for each other device, its
//! owner, which reads that over its link and writes it to all the others: so every link carries about
//! as much as is broadcast, once, in one pass and with no wait between the devices.

use super::limits::{LARGE_BROADCAST, LINE, SMALL_BROADCAST};
use super::table::{MOST_ITEMS, Table};
use super::{NO_ROOM, Part, Piece, Rows, all_devices, chain, copies, in_order};
use crate::comm::team::{Devices, Team, Worker};
use crate::error::Result;

/// Copies bytes to several places.
pub fn broadcast(team: &Team, bytes: u64, src: Part, dsts: &[Part]) -> Result<bool> {
    if bytes == 0 || dsts.is_empty() {
        return Ok(true);
    }
    let pieces = [Piece { src: src.address, offset: 0, bytes }];
    // To one other an engine is as quick as a kernel.
    if dsts.len() > 1 {
        if is_small(team, bytes, src.device, dsts)? {
            return by_root(team, src.device, &pieces, dsts, bytes);
        }
        if can_own(team, src.device, [src].into_iter(), dsts)? {
            return match bytes < LARGE_BROADCAST.get() {
                true => by_owners(team, src.device, &pieces, dsts, bytes),
                false => chain::broadcast(team, bytes, src, dsts),
            };
        }
    }
    let mut rows = Vec::new();
    rows.try_reserve_exact(dsts.len()).map_err(|_| NO_ROOM)?;
    rows.extend(dsts.iter().map(|dst| Rows::flat(src, *dst, bytes)));
    copies(team, &rows)
}

/// Copies pieces of device `root` into a block of each other device, all of one layout.
pub fn broadcast_many(
    team: &Team,
    root: i32,
    pieces: &[Piece],
    blocks: &[Part],
    block_bytes: u64,
) -> Result<bool> {
    if blocks.is_empty() {
        return Ok(true);
    }
    if let [piece] = pieces {
        let src = Part { device: root, address: piece.src };
        let at = |block: &Part| Part { address: block.address + piece.offset, ..*block };
        let mut dsts = Vec::new();
        dsts.try_reserve_exact(blocks.len()).map_err(|_| NO_ROOM)?;
        dsts.extend(blocks.iter().map(at));
        return broadcast(team, piece.bytes, src, &dsts);
    }
    let sources = || pieces.iter().map(|piece| Part { device: root, address: piece.src });
    let is_alone = blocks.len() == 1;
    if is_small(team, block_bytes, root, blocks)?
        || is_alone && team.can_all_use(Devices::one(root), blocks.iter().copied())?
    {
        return by_root(team, root, pieces, blocks, block_bytes);
    }
    if can_own(team, root, sources(), blocks)? {
        return by_owners(team, root, pieces, blocks, block_bytes);
    }
    match team.can_all_use(Devices::one(root), blocks.iter().copied())? {
        true => by_root(team, root, pieces, blocks, block_bytes),
        false => Ok(false),
    }
}

/// Is it so little that the root does it alone, which can?
fn is_small(team: &Team, bytes: u64, root: i32, dsts: &[Part]) -> Result<bool> {
    Ok(bytes.saturating_mul(dsts.len() as u64) <= SMALL_BROADCAST.get()
        && team.can_all_use(Devices::one(root), dsts.iter().copied())?)
}

/// Can each of the others read the root's memory, and write that of all others?
fn can_own(
    team: &Team,
    root: i32,
    sources: impl Iterator<Item = Part>,
    dsts: &[Part],
) -> Result<bool> {
    let owners = all_devices(dsts.iter().copied());
    Ok(owners.len() == dsts.len()
        && !owners.has(root)
        && team.can_all_use(owners, sources.chain(dsts.iter().copied()))?)
}

/// One kernel, on the root.
fn by_root(team: &Team, root: i32, pieces: &[Piece], dsts: &[Part], bytes: u64) -> Result<bool> {
    let touches = all_devices(dsts.iter().copied()).with(root);
    let workers = [Worker { stream: team.stream(root), touches }];
    in_order(team, &workers, || spread(team, root, pieces, (dsts, 0), (0, bytes)))
}

/// A kernel on each of the others, for a range each.
fn by_owners(team: &Team, root: i32, pieces: &[Piece], dsts: &[Part], bytes: u64) -> Result<bool> {
    let touches = all_devices(dsts.iter().copied()).with(root);
    let mut workers = Vec::new();
    workers.try_reserve_exact(dsts.len()).map_err(|_| NO_ROOM)?;
    workers.extend(dsts.iter().map(|dst| Worker { stream: team.stream(dst.device), touches }));
    in_order(team, &workers, || {
        (0..dsts.len()).try_for_each(|owner| {
            let range = share(bytes, owner, dsts.len());
            spread(team, dsts[owner].device, pieces, (dsts, owner), range)
        })
    })
}

/// The range of bytes, or of something else, of one of several owners.
pub(super) fn share(whole: u64, index: usize, count: usize) -> (u64, u64) {
    let cut = |index| match index {
        0 => 0,
        _ if index == count => whole,
        _ => (u128::from(whole) * index as u128 / count as u128) as u64 / LINE * LINE,
    };
    (cut(index), cut(index + 1))
}

/// Writes what of the pieces lies in a range of the layout to all destinations, that of number `first`
/// first, so that not all devices write to the same one at a time.
fn spread(
    team: &Team,
    device: i32,
    pieces: &[Piece],
    (dsts, first): (&[Part], usize),
    (from, to): (u64, u64),
) -> Result<()> {
    let (stream, own) = (team.stream(device), dsts[first].address);
    let device = team.runtime().device(device)?;
    let others = || dsts[first + 1..].iter().chain(&dsts[..first]).map(|dst| dst.address);
    let empty = || Table::with_targets((to - from) * dsts.len() as u64, own, others());
    let mut table = empty();
    let start = pieces.partition_point(|piece| piece.offset + piece.bytes <= from);
    for piece in pieces[start..].iter().take_while(|piece| piece.offset < to) {
        let mut at = piece.offset.max(from);
        let end = (piece.offset + piece.bytes).min(to);
        while at < end {
            let bytes = (end - at).min(MOST_ITEMS);
            let src = piece.src + (at - piece.offset);
            if !table.add_range(src, own + at, bytes) {
                table.launch(device, stream)?;
                table = empty();
                table.add_range(src, own + at, bytes);
            }
            at += bytes;
        }
    }
    if table.is_empty() { Ok(()) } else { table.launch(device, stream) }
}
