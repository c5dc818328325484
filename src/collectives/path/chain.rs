//! Large broadcasts with copy engines.
//!
//! The data is divided into chunks, which are assigned to the other devices in turn. The owner of a
//! chunk reads it from the root and writes it to the rest, on one of its lanes. So the work of an
//! owner is in order without events, except before and after the broadcast. Each link carries the
//! data once. The root always has a reader, because reading over the shared link takes longer than
//! writing.

use super::limits::{LANES, MAX_LANES, chunk};
use super::{Part, all_devices, with_ordering};
use crate::base::error::Result;
use crate::base::inline_vec::Few;
use crate::collectives::team::{Devices, INLINE_CAPACITY, Team, Worker};
use crate::gpu::stream::Stream;

/// The first lane of each device, then the second of each, and so on. In a capture the team's
/// streams are the lanes.
fn lanes<'a>(
    team: &Team<'a>,
    devices: impl Iterator<Item = i32> + Clone,
    touches: Devices,
) -> Result<Few<Worker<'a>, INLINE_CAPACITY>> {
    let count = match team.is_capturing() {
        true => 1,
        false => LANES.get().clamp(1, MAX_LANES as u64) as usize,
    };
    let mut lanes = Few::new();
    for lane in 0..count {
        for ordinal in devices.clone() {
            let device = team.gpus().device(ordinal)?;
            let stream = match team.is_capturing() {
                true => team.stream(ordinal),
                false => device.streams.lane(device, lane)?,
            };
            lanes.push(Worker { stream, touches })?;
        }
    }
    Ok(lanes)
}

/// Copies between devices. The stream's device must have access to both.
pub(super) fn copy(team: &Team, stream: &Stream, dst: u64, src: u64, bytes: u64) -> Result<()> {
    let gpus = team.gpus();
    team.enter(gpus.device(stream.device())?)?;
    // SAFETY: the caller guarantees the ranges; the stream is alive.
    unsafe { gpus.driver().cuMemcpyAsync(dst, src, bytes as usize, stream.native()) }?;
    Ok(())
}

/// Copies bytes to several devices that have access to each other and to the root.
pub(super) fn broadcast(team: &Team, bytes: u64, src: Part, dsts: &[Part]) -> Result<bool> {
    let touches = all_devices(dsts.iter().copied()).with(src.device);
    let workers = lanes(team, dsts.iter().map(|dst| dst.device), touches)?;
    let parts = dsts.iter().copied().chain([src]);
    with_ordering(team, &workers, parts, || {
        let (mut at, mut turn) = (0, 0);
        while at < bytes {
            let length = chunk(bytes - at, dsts.len() as u64);
            let stream = workers[turn % workers.len()].stream;
            let owner = turn % dsts.len();
            let own = dsts[owner].address + at;
            copy(team, stream, own, src.address + at, length)?;
            for other in dsts[owner + 1..].iter().chain(&dsts[..owner]) {
                copy(team, stream, other.address + at, own, length)?;
            }
            at += length;
            turn += 1;
        }
        Ok(())
    })
}

/// Runs `body`, which copies the same bytes to other devices. Meanwhile a lane copies them to
/// `near` on the root's own device. Returns false like `body`, with nothing queued.
pub(super) fn with_near_copies(
    team: &Team,
    bytes: u64,
    src: Part,
    near: &[Part],
    body: impl FnOnce() -> Result<bool>,
) -> Result<bool> {
    if near.is_empty() {
        return body();
    }
    team.begin()?;
    let gpus = team.gpus();
    let (device, stream) = (gpus.device(src.device)?, team.stream(src.device));
    let queue = |lane: &Stream| {
        near.iter()
            .filter(|dst| dst.address != src.address)
            .try_for_each(|dst| copy(team, lane, dst.address, src.address, bytes))
    };
    if team.is_capturing() {
        let done = body()? && queue(stream).map(|()| true)?;
        team.leave();
        return Ok(done);
    }
    let lane = device.streams.lane(device, 0)?;
    let event = device.events.take_untimed(device)?;
    // The lane waits for earlier work of the stream, but not for what `body` queues.
    let done = stream.record(gpus, event).and_then(|()| body());
    let ordered = match done {
        Ok(true) => team.wait(lane, event),
        _ => Ok(()),
    };
    device.events.give_untimed(event);
    if !done? {
        return Ok(false);
    }
    ordered?;
    let queued = queue(lane);
    let worker = [Worker { stream: lane, touches: Devices::one(src.device) }];
    let joined = team.order_members_after_workers(&worker);
    team.leave();
    if joined.is_err() {
        team.keep_blocks(&worker, near.iter().copied().chain([src]));
    }
    queued.and(joined).map(|()| true)
}
