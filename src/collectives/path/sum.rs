//! Sums of memory on several devices: ((s0 + s1) + s2) + ..., bit for bit the same on every path.
//!
//! A small sum is one kernel on the destination, which reads over the links. A larger one is
//! divided into a range for each other device, its owner, which adds its range and writes it to the
//! destination. So each link carries about the size of the sum once. Copy engines would use the
//! links better, but need scratch memory and more calls, and were not faster (H200: 361 GB/s
//! against 374).

use super::limits::{LINE, SMALL_SUM};
use super::spread::share;
use super::table::{MAX_ITEMS, Table};
use super::{Number, Part, Sum, all_devices, with_ordering};
use crate::base::error::Result;
use crate::base::inline_vec::Few;
use crate::collectives::team::{Devices, INLINE_CAPACITY, Team, Worker};
use crate::gpu::stream::Stream;
use std::iter::Peekable;

impl Number {
    /// All number types.
    pub const ALL: [Number; 9] = {
        use Number::*;
        [Bool, Int8, Int16, Int32, Int64, F16, BF16, F32, F64]
    };
}

impl Sum<'_> {
    /// Bytes of the result.
    pub(super) fn bytes(&self) -> u64 {
        match self.sources.is_empty() {
            true => 0,
            false => self.elements.saturating_mul(self.number.bytes()),
        }
    }

    /// All memory that it reads and writes.
    fn parts(&self) -> impl Iterator<Item = Part> + Clone {
        self.sources.iter().copied().chain([self.dst])
    }
}

/// Computes sums. Never returns false if all parts are on one device.
pub fn sum(team: &Team, items: &[Sum]) -> Result<bool> {
    let there = || items.iter().filter(|item| item.bytes() > 0);
    let Some(first) = there().next() else { return Ok(true) };
    let devices = all_devices(there().flat_map(Sum::parts));
    let bytes = there().fold(0u64, |all, item| all.saturating_add(item.bytes()));
    let root = first.dst.device;
    let mut owners = devices.without(root);
    // With one other device, the destination has the whole link for itself.
    if owners.len() < 2 {
        owners = Devices::one(root);
    }
    let carried = bytes.saturating_mul(devices.len() as u64 - 1);
    let parts = || there().flat_map(Sum::parts);
    let can_root = team.can_all_use(Devices::one(root), parts())?;
    if can_root && carried <= SMALL_SUM.get() {
        return by_owners(team, Devices::one(root), devices, items, bytes);
    }
    if !(owners == Devices::one(root) && can_root || team.can_all_use(owners, parts())?) {
        return match can_root {
            true => by_owners(team, Devices::one(root), devices, items, bytes),
            false => Ok(false),
        };
    }
    by_owners(team, owners, devices, items, bytes)
}

/// Adds with one kernel on each owner, which handles one range.
fn by_owners(
    team: &Team,
    owners: Devices,
    touches: Devices,
    items: &[Sum],
    bytes: u64,
) -> Result<bool> {
    let of_owner = |owner| Worker { stream: team.stream(owner), touches };
    let mut workers = Few::<Worker, INLINE_CAPACITY>::new();
    workers.fill(owners.iter().map(of_owner))?;
    with_ordering(team, &workers, items.iter().flat_map(Sum::parts), || {
        workers.iter().enumerate().try_for_each(|(index, worker)| {
            let range = share(bytes, index, workers.len());
            Number::ALL
                .iter()
                .filter(|number| items.iter().any(|item| item.number == **number))
                .try_for_each(|number| add(team, worker.stream, *number, items, range))
        })
    })
}

/// Adds the part of all items of one type that is in a range of the whole.
fn add(
    team: &Team,
    stream: &Stream,
    number: Number,
    items: &[Sum],
    (from, to): (u64, u64),
) -> Result<()> {
    let size = number.bytes();
    let mut start = 0;
    let ranges = items.iter().filter_map(|item| {
        let bytes = item.bytes();
        // Owners on both sides of a cut compute the same value.
        let cut = |at: u64| match at.saturating_sub(start) {
            inside if inside >= bytes => bytes,
            inside => inside / LINE * LINE,
        };
        let range = (cut(from), cut(to));
        start += bytes;
        (item.number == number && range.0 < range.1).then_some((item, range))
    });
    let most = MAX_ITEMS * size;
    let parts = ranges.flat_map(|(item, (from, to))| {
        let parts = (from..to).step_by(most as usize);
        parts.map(move |at| (item, at, most.min(to - at)))
    });
    let mut parts = parts.peekable();
    while let Some((first, ..)) = parts.peek() {
        let count = first.sources.len();
        let mut table = Table::of_sums(number, to - from, count)?;
        let fits = |(item, at, bytes): &(&Sum, u64, u64)| {
            let sources = item.sources.iter().map(|source| source.address + at);
            item.sources.len() == count
                && table.add_sum(item.dst.address + at, bytes / size, sources)
        };
        add_while(&mut parts, fits);
        table.launch(team, stream)?;
    }
    Ok(())
}

/// Consumes parts while they fit.
fn add_while<T>(parts: &mut Peekable<impl Iterator<Item = T>>, mut fits: impl FnMut(&T) -> bool) {
    while parts.next_if(|part| fits(part)).is_some() {}
}
