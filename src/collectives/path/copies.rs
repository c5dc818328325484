//! Copies of rows of bytes between devices: scatter and gather.
//!
//! Most calls have a hub: one device that all rows come from or go to. A small call is one kernel
//! on the hub. Otherwise each row is copied on the stream of its other device, so that the engines
//! of all devices work in parallel, and only the hub waits.

use super::chain::copy;
use super::limits::{SMALL_COPIES, WIDE_ROW};
use super::loaded::Kernel;
use super::table::{MAX_ITEMS, Table};
use super::{Part, Rows, with_ordering};
use crate::base::error::Result;
use crate::base::inline_vec::Few;
use crate::collectives::team::{Devices, INLINE_CAPACITY, Team, Worker};
use crate::ops::copy::{self, copy_2d_plain};

/// The driver's maximum pitch.
const MAX_PITCH: u64 = i32::MAX as u64;

/// How rows are copied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CopyMethod {
    /// As one contiguous range.
    ContiguousBytes,
    /// As one 2D copy by an engine.
    Wide,
    /// Row by row, by an engine.
    Each,
    Kernel,
}

impl Rows {
    /// Rows that are one contiguous range.
    pub fn flat(src: Part, dst: Part, bytes: u64) -> Rows {
        Rows { src, dst, width: bytes, rows: 1, src_pitch: 0, dst_pitch: 0 }
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> u64 {
        self.width.saturating_mul(self.rows)
    }

    fn method(&self) -> CopyMethod {
        let is_dense = self.src_pitch == self.width && self.dst_pitch == self.width;
        let pitch = self.src_pitch.max(self.dst_pitch);
        if self.rows == 1 || is_dense {
            CopyMethod::ContiguousBytes
        } else if self.width >= WIDE_ROW.get() && pitch <= MAX_PITCH {
            CopyMethod::Wide
        } else if self.width > MAX_ITEMS {
            CopyMethod::Each
        } else {
            CopyMethod::Kernel
        }
    }

    /// Splits the rows into parts that fit into a table.
    fn parts(self) -> impl Iterator<Item = Rows> {
        let most = (MAX_ITEMS / self.width.max(1)).max(1);
        (0..self.rows).step_by(most as usize).map(move |row| {
            let at = |part: Part, pitch: u64| Part {
                address: part.address.wrapping_add(row.wrapping_mul(pitch)),
                ..part
            };
            Rows {
                src: at(self.src, self.src_pitch),
                dst: at(self.dst, self.dst_pitch),
                rows: most.min(self.rows - row),
                ..self
            }
        })
    }
}

/// The device that all pairs come from or go to, if there is one; otherwise the source of the
/// first.
pub(super) fn hub(mut pairs: impl Iterator<Item = (Part, Part)> + Clone) -> i32 {
    let Some((src, dst)) = pairs.clone().next() else { return 0 };
    let comes = pairs.clone().all(|pair| pair.0.device == src.device);
    let goes = pairs.all(|pair| pair.1.device == dst.device);
    if goes && !comes { dst.device } else { src.device }
}

/// The device that copies a pair, if the hub does not do all copies.
pub(super) fn other_of(hub: i32, src: Part, dst: Part, is_alone: bool) -> i32 {
    match is_alone {
        true => hub,
        false if src.device == hub => dst.device,
        false => src.device,
    }
}

/// The workers of all pairs; `None`: a device lacks access to memory that it would use.
pub(super) fn workers<'a>(
    team: &Team<'a>,
    hub: i32,
    pairs: impl Iterator<Item = (Part, Part)> + Clone,
) -> Result<Option<Few<Worker<'a>, INLINE_CAPACITY>>> {
    let is_alone = pairs.clone().count() == 1;
    let mut workers: Few<Worker<'a>, INLINE_CAPACITY> = Few::new();
    for (src, dst) in pairs {
        let device = other_of(hub, src, dst, is_alone);
        if !team.can_all_use(Devices::one(device), [src, dst].into_iter())? {
            return Ok(None);
        }
        let touches = Devices::one(src.device).with(dst.device);
        match workers.iter_mut().find(|worker| worker.stream.device() == device) {
            Some(worker) => touches.iter().for_each(|device| worker.touches.add(device)),
            None => workers.push(Worker { stream: team.stream(device), touches })?,
        }
    }
    Ok(Some(workers))
}

/// The hub as the only worker, if it has access to all parts.
pub(super) fn alone<'a>(
    team: &Team<'a>,
    hub: i32,
    pairs: impl Iterator<Item = (Part, Part)> + Clone,
) -> Result<Option<Worker<'a>>> {
    let parts = pairs.clone().flat_map(|(src, dst)| [src, dst]);
    if !team.can_all_use(Devices::one(hub), parts)? {
        return Ok(None);
    }
    let touches = pairs.flat_map(|(src, dst)| [src.device, dst.device]).collect();
    Ok(Some(Worker { stream: team.stream(hub), touches }))
}

/// Copies rows.
pub fn copies(team: &Team, rows: &[Rows]) -> Result<bool> {
    let pairs = rows.iter().filter(|rows| rows.bytes() > 0).map(|rows| (rows.src, rows.dst));
    let bytes = rows.iter().fold(0u64, |all, rows| all.saturating_add(rows.bytes()));
    if bytes == 0 {
        return Ok(true);
    }
    let hub = hub(pairs.clone());
    let parts = || pairs.clone().flat_map(|(src, dst)| [src, dst]);
    let is_range = pairs.clone().count() == 1
        && rows.iter().all(|rows| rows.method() == CopyMethod::ContiguousBytes);
    if bytes <= SMALL_COPIES.get()
        && !is_range
        && let Some(worker) = alone(team, hub, pairs.clone())?
    {
        return with_ordering(team, &[worker], parts(), || {
            by_kernel(team, worker, rows.iter(), bytes)
        });
    }
    let is_alone = pairs.clone().count() == 1;
    match workers(team, hub, pairs.clone())? {
        Some(workers) => with_ordering(team, &workers, parts(), || {
            workers.iter().try_for_each(|worker| {
                let device = worker.stream.device();
                let own = rows.iter().filter(|rows| {
                    rows.bytes() > 0 && other_of(hub, rows.src, rows.dst, is_alone) == device
                });
                by_engine(team, *worker, own.clone())?;
                let left = own.filter(|rows| rows.method() == CopyMethod::Kernel);
                by_kernel(team, *worker, left, bytes)
            })
        }),
        // The hub may have access to the others even if they have none to it.
        None => match alone(team, hub, pairs.clone())? {
            Some(worker) => with_ordering(team, &[worker], parts(), || {
                by_engine(team, worker, rows.iter())?;
                let left = rows.iter().filter(|rows| rows.method() == CopyMethod::Kernel);
                by_kernel(team, worker, left, bytes)
            }),
            None => Ok(false),
        },
    }
}

fn by_kernel<'r>(
    team: &Team,
    worker: Worker,
    rows: impl Iterator<Item = &'r Rows>,
    bytes: u64,
) -> Result<()> {
    let mut parts = rows.filter(|rows| rows.bytes() > 0).flat_map(|rows| rows.parts()).peekable();
    while parts.peek().is_some() {
        let mut table = Table::new(Kernel::Rows, bytes)?;
        while parts.next_if(|part| table.add_rows(part)).is_some() {}
        table.launch(team, worker.stream)?;
    }
    Ok(())
}

fn by_engine<'r>(team: &Team, worker: Worker, rows: impl Iterator<Item = &'r Rows>) -> Result<()> {
    let (gpus, stream) = (team.gpus(), worker.stream);
    for rows in rows.filter(|rows| rows.bytes() > 0) {
        let (src, dst) = (rows.src.address, rows.dst.address);
        match rows.method() {
            CopyMethod::Kernel => (),
            CopyMethod::ContiguousBytes => copy(team, stream, dst, src, rows.bytes())?,
            CopyMethod::Each => (0..rows.rows).try_for_each(|row| {
                let (src, dst) = (src + row * rows.src_pitch, dst + row * rows.dst_pitch);
                copy(team, stream, dst, src, rows.width)
            })?,
            CopyMethod::Wide => {
                team.enter(gpus.device(stream.device())?)?;
                let dst = copy::Rows { address: dst, pitch: rows.dst_pitch };
                let src = copy::Rows { address: src, pitch: rows.src_pitch };
                copy_2d_plain(gpus, dst, src, rows.width, rows.rows, stream)?;
            }
        }
    }
    Ok(())
}
