//! Large sums by copy engines.
//!
//! What is added is dealt in chunks to the owners. The owner of a chunk copies what it lacks of it into
//! scratch memory, adds up, and copies the sum to the destination, on one of its lanes: so what an owner
//! does is in order by itself, and no event is needed but before and after all.

use super::chain::{copy, lanes};
use super::limits::{LINE, MOST_SUM_CHUNK, chunk};
use super::table::Table;
use super::{NO_ROOM, Sum, in_order};
use crate::comm::team::{Devices, Team, Worker};
use crate::error::{Error, Result};
use crate::memory;
use crate::runtime::Runtime;

/// Scratch memory of lanes; given back when it is dropped, in the order of the streams on which it was
/// allocated, which come after the lanes by then.
struct Scratch<'a> {
    runtime: &'a Runtime,
    addresses: Vec<u64>,
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        for address in &self.addresses {
            let _ = memory::free(self.runtime, *address);
        }
    }
}

impl<'a> Scratch<'a> {
    /// So many bytes for each lane; `None`: there is no memory for that.
    fn new(team: &Team<'a>, workers: &[Worker<'a>], bytes: u64) -> Result<Option<Scratch<'a>>> {
        let mut scratch = Scratch { runtime: team.runtime(), addresses: Vec::new() };
        scratch.addresses.try_reserve_exact(workers.len()).map_err(|_| NO_ROOM)?;
        for worker in workers {
            let device = team.runtime().device(worker.stream.device())?;
            let stream = team.stream(device.ordinal());
            match device.memory.allocate(team.runtime(), device, stream, bytes) {
                Ok(address) => scratch.addresses.push(address),
                Err(Error::OutOfMemory(_) | Error::PoolOutOfMemory(_) | Error::OverLimit) => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(scratch))
    }
}

/// Adds up; false: there is no memory for it, and nothing was queued.
pub(super) fn sum(team: &Team, owners: Devices, touches: Devices, item: &Sum) -> Result<bool> {
    let workers = lanes(team, owners.iter(), touches)?;
    let (size, bytes) = (item.number.bytes(), item.bytes());
    let most = MOST_SUM_CHUNK.get().clamp(LINE, bytes.next_multiple_of(LINE)) / LINE * LINE;
    // A slot for each source elsewhere, as aligned as the destination.
    let (slot, odd) = (most + LINE, item.dst.address % LINE);
    let Some(scratch) = Scratch::new(team, &workers, slot * item.sources.len() as u64)? else {
        return Ok(false);
    };
    let mut sources = Vec::new();
    sources.try_reserve_exact(item.sources.len()).map_err(|_| NO_ROOM)?;
    in_order(team, &workers, || {
        let (mut at, mut turn) = (0, 0);
        while at < bytes {
            let length = chunk(bytes - at, workers.len() as u64, most).min(most);
            let (stream, base) =
                (workers[turn % workers.len()].stream, scratch.addresses[turn % workers.len()]);
            let own = stream.device();
            let mut next = base + odd;
            sources.clear();
            for source in item.sources {
                if source.device == own {
                    sources.push(source.address + at);
                } else {
                    copy(team.runtime(), stream, next, source.address + at, length)?;
                    sources.push(next);
                    next += slot;
                }
            }
            let is_there = own == item.dst.device;
            let sum = if is_there { item.dst.address + at } else { base + odd };
            let mut table = Table::of_sums(item.number, length, sources.len());
            table.add_sum(sum, length / size, sources.iter().copied());
            table.launch(team.runtime().device(own)?, stream)?;
            if !is_there {
                copy(team.runtime(), stream, item.dst.address + at, sum, length)?;
            }
            at += length;
            turn += 1;
        }
        Ok(())
    })
}
