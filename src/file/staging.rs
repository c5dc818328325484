//! Transfers through two chunks of pinned memory in turn: while the system reads or writes one of
//! them, the device copies the other.

use super::{Extent, OpenFile};
use crate::base::descriptor::errno;
use crate::base::error::{Access, Result};
use crate::base::waiting;
use crate::driver::sync_debug;
use crate::driver::sys::CUevent;
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::ops::copy;
use std::ffi::c_void;

/// Size of a chunk, for transfers of at least as much.
const CHUNK: u64 = 8 << 20;

/// Pinned memory, and the event after its last copy.
struct Chunk {
    address: u64,
    event: CUevent,
}

/// The chunks of a transfer.
struct Chunks<'a> {
    gpus: &'a Gpus,
    stream: &'a Stream,
    /// The stream's device, which owns the events.
    device: &'a Device,
    /// Size of each.
    bytes: u64,
    chunks: [Option<Chunk>; 2],
}

impl<'a> Chunks<'a> {
    /// Allocates one chunk for a transfer that fits into it, else two.
    fn new(gpus: &'a Gpus, stream: &'a Stream, total: u64) -> Result<Chunks<'a>> {
        let device = gpus.device_of(stream)?;
        let bytes = total.min(CHUNK);
        let mut all = Chunks { gpus, stream, device, bytes, chunks: [None, None] };
        let count = if total > bytes { 2 } else { 1 };
        for index in 0..count {
            let event = device.events.take_untimed(device)?;
            match gpus.pinned().allocate(gpus, bytes as usize) {
                Ok(address) => all.chunks[index] = Some(Chunk { address: address as u64, event }),
                Err(error) => {
                    device.events.give_untimed(event);
                    return Err(error);
                }
            }
        }
        Ok(all)
    }

    /// The address and the event of the chunk for the step of this number.
    fn of(&self, step: u64) -> (u64, CUevent) {
        let chunk = self.chunks[step as usize % 2].as_ref().or(self.chunks[0].as_ref());
        chunk.map_or((0, std::ptr::null_mut()), |chunk| (chunk.address, chunk.event))
    }

    /// Waits for the copy of a step.
    fn wait(&self, step: u64) -> Result<()> {
        let _context = self.stream.enter(self.gpus)?;
        // SAFETY: an event of the pool, recorded after the copy of that step.
        unsafe { sync_debug::wait_for_event(self.gpus.driver(), self.of(step).1) }?;
        Ok(())
    }

    /// Queues the copy of a step.
    fn copy(&self, step: u64, dst: u64, src: u64, bytes: u64) -> Result<()> {
        copy::copy(self.gpus, dst, src, bytes, self.stream)?;
        self.stream.record(self.gpus, self.of(step).1)
    }
}

impl Drop for Chunks<'_> {
    fn drop(&mut self) {
        for chunk in self.chunks.iter().flatten() {
            self.device.events.give_untimed(chunk.event);
            // Allocated here. A copy that is still queued is waited for by the cache.
            let _ = self.gpus.pinned().free(self.gpus, chunk.address as usize);
        }
    }
}

/// Waits for the stream after a transfer, so that a failed one is over as well when the call
/// returns.
fn ended(gpus: &Gpus, stream: &Stream, outcome: Result<u64>) -> Result<u64> {
    let waited = stream.synchronize(gpus);
    outcome.and_then(|done| waited.map(|()| done))
}

/// Reads from the file into memory, up to the end of the file.
pub(super) fn read(gpus: &Gpus, file: &OpenFile, extent: Extent, stream: &Stream) -> Result<u64> {
    let chunks = Chunks::new(gpus, stream, extent.bytes)?;
    let outcome = read_steps(file, extent, &chunks);
    ended(gpus, stream, outcome)
}

fn read_steps(file: &OpenFile, extent: Extent, chunks: &Chunks<'_>) -> Result<u64> {
    let (mut done, mut step) = (0, 0);
    while done < extent.bytes {
        if step >= 2 {
            chunks.wait(step - 2)?;
        }
        let wanted = (extent.bytes - done).min(chunks.bytes);
        let (chunk, _) = chunks.of(step);
        let got = read_at(file, chunk, wanted, extent.offset + done)?;
        if got > 0 {
            chunks.copy(step, extent.address + done, chunk, got)?;
        }
        done += got;
        step += 1;
        if got < wanted {
            break;
        }
    }
    Ok(done)
}

/// Writes memory to the file.
pub(super) fn write(gpus: &Gpus, file: &OpenFile, extent: Extent, stream: &Stream) -> Result<u64> {
    let chunks = Chunks::new(gpus, stream, extent.bytes)?;
    let outcome = write_steps(file, extent, &chunks);
    ended(gpus, stream, outcome)
}

fn write_steps(file: &OpenFile, extent: Extent, chunks: &Chunks<'_>) -> Result<u64> {
    let part = |step: u64| {
        let start = step * chunks.bytes;
        (start, (extent.bytes - start).min(chunks.bytes))
    };
    let copy = |step: u64| {
        let (start, bytes) = part(step);
        chunks.copy(step, chunks.of(step).0, extent.address + start, bytes)
    };
    let steps = extent.bytes.div_ceil(chunks.bytes);
    copy(0)?;
    for step in 0..steps {
        if step + 1 < steps {
            copy(step + 1)?;
        }
        chunks.wait(step)?;
        let (start, bytes) = part(step);
        write_at(file, chunks.of(step).0, bytes, extent.offset + start)?;
    }
    Ok(extent.bytes)
}

/// Reads bytes of the file into pinned memory; fewer only at the end of the file.
fn read_at(file: &OpenFile, to: u64, bytes: u64, offset: u64) -> Result<u64> {
    let _waiting = waiting::begin();
    let mut done = 0;
    while done < bytes {
        let (number, at) = (file.descriptor.number(), offset + done);
        let (to, room) = ((to + done) as *mut c_void, (bytes - done) as usize);
        // SAFETY: an open file, and so many bytes of a chunk that no copy uses.
        match unsafe { libc::pread(number, to, room, at as libc::off_t) } {
            0 => break,
            got if got > 0 => done += got as u64,
            _ => match errno() {
                libc::EINTR => (),
                code => return Err(file.failed(Access::Read(at), code)),
            },
        }
    }
    Ok(done)
}

/// Writes bytes of pinned memory to the file.
fn write_at(file: &OpenFile, from: u64, bytes: u64, offset: u64) -> Result<()> {
    let _waiting = waiting::begin();
    let mut done = 0;
    while done < bytes {
        let (number, at) = (file.descriptor.number(), offset + done);
        let (from, rest) = ((from + done) as *const c_void, (bytes - done) as usize);
        // SAFETY: an open file, and so many bytes of a chunk whose copy is complete.
        match unsafe { libc::pwrite(number, from, rest, at as libc::off_t) } {
            0 => return Err(file.failed(Access::Write(at), libc::EIO)),
            put if put > 0 => done += put as u64,
            _ => match errno() {
                libc::EINTR => (),
                code => return Err(file.failed(Access::Write(at), code)),
            },
        }
    }
    Ok(())
}
