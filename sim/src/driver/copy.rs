//! Copies and fills: moves the bytes. The calls that queue them are in
//! [`transfer_calls`](super::transfer_calls).

use super::address_space::{Accessor, Chunk, Chunks};
use super::memory::Memory;
use crate::base::code;
use std::ptr;

/// A word is never torn between two steps.
const WORD: usize = 8;
/// Maximum bytes of a copy that is read before it is written.
const READ_EARLY: usize = 4 << 20;

/// The start of one side of a copy.
#[derive(Clone)]
pub(super) enum Place {
    /// A device address.
    Device(usize),
    /// An address of the host.
    Host(usize),
    /// Bytes that were read from pageable memory when the copy was queued.
    Staged(Vec<u8>),
}

/// One side of a copy.
#[derive(Clone)]
pub(super) struct Side {
    pub(super) place: Place,
    /// Bytes from one row to the next.
    pub(super) pitch: usize,
    /// Bytes from one plane to the next.
    pub(super) plane: usize,
}

/// A copy of `depth` planes of `rows` rows of `width` bytes.
#[derive(Clone)]
pub(super) struct Copy {
    pub(super) source: Side,
    pub(super) target: Side,
    pub(super) width: usize,
    pub(super) rows: usize,
    pub(super) depth: usize,
    /// The call did not tell which side is of the host: queries return unified addresses.
    pub(super) is_unified: bool,
}

/// `rows` rows of `count` elements of `width` bytes, each set to the low bytes of `value`.
#[derive(Clone, Copy)]
pub(super) struct Fill {
    pub(super) address: usize,
    pub(super) value: u32,
    pub(super) width: usize,
    pub(super) count: usize,
    /// Bytes from one row to the next.
    pub(super) pitch: usize,
    pub(super) rows: usize,
}

impl Side {
    /// Returns this side advanced by `distance` bytes. Staged bytes are split there.
    fn split(&mut self, distance: usize) -> Side {
        let place = match &mut self.place {
            Place::Device(address) => Place::Device(*address + distance),
            Place::Host(address) => Place::Host(*address + distance),
            Place::Staged(staged) => Place::Staged(staged.split_off(distance)),
        };
        Side { place, pitch: self.pitch, plane: self.plane }
    }

    fn chunks(
        &self,
        memory: &Memory,
        distance: usize,
        bytes: usize,
        accessor: Accessor,
    ) -> Result<Chunks, i32> {
        let address = match &self.place {
            Place::Device(address) => {
                return memory.translate(address + distance, bytes, accessor);
            }
            Place::Host(address) => *address,
            Place::Staged(staged) => staged.as_ptr().expose_provenance(),
        };
        let mut chunks = Chunks::default();
        chunks.push(Chunk { address: address + distance, bytes });
        Ok(chunks)
    }
}

impl Copy {
    /// Bytes from the first to the last byte that one side accesses; `None` if it exceeds the
    /// address space.
    pub(super) fn extent(&self, side: &Side) -> Option<usize> {
        let rows = (self.rows - 1).checked_mul(side.pitch)?;
        let planes = (self.depth - 1).checked_mul(side.plane)?;
        rows.checked_add(planes)?.checked_add(self.width)
    }

    /// True if all host memory that one side accesses is mapped. Whether it is writable is not
    /// checked.
    pub(super) fn is_mapped_in_host(&self, side: &Side) -> bool {
        let Place::Host(start) = side.place else { return true };
        (0..self.depth).all(|plane| {
            (0..self.rows)
                .all(|row| is_readable(start + plane * side.plane + row * side.pitch, self.width))
        })
    }

    /// True if the copy has no bytes.
    pub(super) fn is_empty(&self) -> bool {
        self.width == 0 || self.rows == 0 || self.depth == 0
    }

    /// Takes the second half off; `None` when it is too small for that.
    pub(super) fn split(&mut self) -> Option<Copy> {
        let (mut width, mut rows, mut depth) = (0, 0, 0);
        if self.depth > 1 {
            depth = self.depth / 2;
        } else if self.rows > 1 {
            rows = self.rows / 2;
        } else if self.width >= 2 * WORD {
            width = self.width / 2 / WORD * WORD;
        } else {
            return None;
        }
        let halve = |side: &mut Side| side.split(width + rows * side.pitch + depth * side.plane);
        let (source, target) = (halve(&mut self.source), halve(&mut self.target));
        let mut second = Copy { source, target, ..*self };
        for (first, second, count) in [
            (&mut self.width, &mut second.width, width),
            (&mut self.rows, &mut second.rows, rows),
            (&mut self.depth, &mut second.depth, depth),
        ] {
            if count > 0 {
                *first = count;
                *second -= count;
            }
        }
        Some(second)
    }

    /// Merges contiguous rows into one row.
    pub(super) fn collapse(&mut self) {
        let tight = |rows: usize, width: usize, source: usize, target: usize| {
            rows == 1 || (source == width && target == width)
        };
        if !tight(self.rows, self.width, self.source.pitch, self.target.pitch) {
            return;
        }
        self.width *= self.rows;
        self.rows = 1;
        if tight(self.depth, self.width, self.source.plane, self.target.plane) {
            self.width *= self.depth;
            self.depth = 1;
        }
    }
}

/// True if a host range is readable. The system is queried for one byte of each page; if it gives
/// no answer, returns true.
fn is_readable(start: usize, bytes: usize) -> bool {
    const PAGE: usize = 4096;
    const AT_ONCE: usize = 64;
    let own = std::process::id() as libc::pid_t;
    let mut read = [0u8; AT_ONCE];
    let (mut at, end) = (start, start.saturating_add(bytes));
    while at < end {
        let none = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let mut pages = [none; AT_ONCE];
        let mut count = 0;
        for page in &mut pages {
            if at >= end {
                break;
            }
            *page = libc::iovec { iov_base: ptr::with_exposed_provenance_mut(at), iov_len: 1 };
            at = (at / PAGE + 1).saturating_mul(PAGE);
            count += 1;
        }
        let into = libc::iovec { iov_base: read.as_mut_ptr().cast(), iov_len: count };
        // SAFETY: `read` has room for a byte of each page; the system checks the pages itself.
        let done =
            unsafe { libc::process_vm_readv(own, &into, 1, pages.as_ptr(), count as u64, 0) };
        match usize::try_from(done) {
            Ok(done) if done < count => return false,
            Ok(_) => (),
            Err(_) => {
                let error = std::io::Error::last_os_error().raw_os_error();
                return error != Some(libc::EFAULT);
            }
        }
    }
    true
}

impl Fill {
    /// A fill of one row.
    pub(super) fn row(address: usize, value: u32, width: usize, count: usize) -> Fill {
        Fill { address, value, width, count, pitch: 0, rows: 1 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0 || self.rows == 0
    }

    /// Bytes from the first to the last byte that it writes; 0 without bytes, `None` if that
    /// exceeds the address space.
    pub(super) fn extent(&self) -> Option<usize> {
        let row = self.count.checked_mul(self.width)?;
        let Some(last) = self.rows.checked_sub(1) else { return Some(0) };
        last.checked_mul(self.pitch)?.checked_add(row)
    }

    /// True if its bytes are an extent, and its rows do not overlap.
    pub(super) fn is_valid(&self) -> bool {
        let is_row = |row| self.rows <= 1 || row <= self.pitch;
        self.extent().is_some() && self.count.checked_mul(self.width).is_some_and(is_row)
    }

    /// True if all elements are aligned.
    pub(super) fn is_aligned(&self) -> bool {
        let is_aligned = |bytes: usize| bytes.is_multiple_of(self.width);
        is_aligned(self.address) && (self.rows <= 1 || is_aligned(self.pitch))
    }

    /// Takes the second half off; `None` when it is too small for that.
    pub(super) fn split(&mut self) -> Option<Fill> {
        if self.rows > 1 {
            let first = self.rows / 2;
            let address = self.address + first * self.pitch;
            let rest = Fill { address, rows: self.rows - first, ..*self };
            self.rows = first;
            return Some(rest);
        }
        let first = self.count * self.width / 2 / WORD * WORD / self.width;
        if first == 0 {
            return None;
        }
        let rest =
            Fill { address: self.address + first * self.width, count: self.count - first, ..*self };
        self.count = first;
        Some(rest)
    }
}

/// Runs a copy on a device.
pub(super) fn copy(memory: &Memory, device: usize, copy: &Copy) -> Result<(), i32> {
    let reader = Accessor { device, write: false, staged: true };
    let writer = Accessor { write: true, ..reader };
    for plane in 0..copy.depth {
        for row in 0..copy.rows {
            let distance = |side: &Side| plane * side.plane + row * side.pitch;
            let from = distance(&copy.source);
            let source = copy.source.chunks(memory, from, copy.width, reader)?;
            let to = distance(&copy.target);
            let target = copy.target.chunks(memory, to, copy.width, writer)?;
            copy_chunks(&source, &target);
        }
    }
    Ok(())
}

/// Reads the whole source now, so that the copy only writes when it runs. Returns false if it is
/// too large or unreadable.
pub(super) fn read_now(memory: &Memory, device: usize, copy: &mut Copy) -> bool {
    let bytes = copy.width * copy.rows * copy.depth;
    if bytes > READ_EARLY || matches!(copy.source.place, Place::Staged(_)) {
        return false;
    }
    let accessor = Accessor { device, write: false, staged: true };
    let mut staged = Vec::new();
    if staged.try_reserve_exact(bytes).is_err() {
        return false;
    }
    for plane in 0..copy.depth {
        for row in 0..copy.rows {
            let distance = plane * copy.source.plane + row * copy.source.pitch;
            let chunks = copy.source.chunks(memory, distance, copy.width, accessor);
            let Ok(chunks) = chunks else { return false };
            for chunk in chunks.iter() {
                let start = ptr::with_exposed_provenance::<u8>(chunk.address);
                // SAFETY: as for the copy itself.
                staged.extend_from_slice(unsafe { std::slice::from_raw_parts(start, chunk.bytes) });
            }
        }
    }
    let (pitch, plane) = (copy.width, copy.width * copy.rows);
    copy.source = Side { place: Place::Staged(staged), pitch, plane };
    true
}

/// Copies between ranges of the same length.
fn copy_chunks(source: &Chunks, target: &Chunks) {
    let (mut sources, mut targets) = (source.iter(), target.iter());
    let (mut from, mut to) = (sources.next(), targets.next());
    while let (Some(a), Some(b)) = (&mut from, &mut to) {
        let bytes = a.bytes.min(b.bytes);
        let source = ptr::with_exposed_provenance::<u8>(a.address);
        let target = ptr::with_exposed_provenance_mut::<u8>(b.address);
        // SAFETY: device ranges were checked and lie in the alias of the device's memory. The
        // caller of the driver promised that host ranges are valid for the copy.
        unsafe { ptr::copy(source, target, bytes) };
        for (chunk, chunks) in
            [(&mut from, &mut sources as &mut dyn Iterator<Item = Chunk>), (&mut to, &mut targets)]
        {
            if let Some(rest) = chunk {
                rest.address += bytes;
                rest.bytes -= bytes;
                if rest.bytes == 0 {
                    *chunk = chunks.next();
                }
            }
        }
    }
}

/// Runs a fill on a device.
pub(super) fn fill(memory: &Memory, device: usize, fill: &Fill) -> Result<(), i32> {
    let accessor = Accessor { device, write: true, staged: false };
    let bytes = fill.count * fill.width;
    for row in 0..fill.rows {
        let start = fill.address + row * fill.pitch;
        for chunk in memory.translate(start, bytes, accessor)?.iter() {
            fill_chunk(chunk, fill);
        }
    }
    Ok(())
}

fn fill_chunk(chunk: Chunk, fill: &Fill) {
    let at = ptr::with_exposed_provenance_mut::<u8>(chunk.address);
    match fill.width {
        // SAFETY: the range was checked, and is aligned as the device address is.
        2 => unsafe { fill_elements(at.cast(), fill.value as u16, chunk.bytes / 2) },
        // SAFETY: as above.
        4 => unsafe { fill_elements(at.cast(), fill.value, chunk.bytes / 4) },
        // SAFETY: as above.
        _ => unsafe { ptr::write_bytes(at, fill.value as u8, chunk.bytes) },
    }
}

/// # Safety
/// `count` elements at `start` must be writable and aligned.
unsafe fn fill_elements<T: Clone>(start: *mut T, value: T, count: usize) {
    // SAFETY: the caller's promise; any bytes are an integer.
    unsafe { std::slice::from_raw_parts_mut(start, count) }.fill(value);
}

/// Copies the source from host memory into a buffer, row by row.
pub(super) fn stage(copy: &Copy, start: usize) -> Result<Vec<u8>, i32> {
    let total = copy.width.checked_mul(copy.rows).and_then(|plane| plane.checked_mul(copy.depth));
    let total = total.ok_or(code::INVALID_VALUE)?;
    let mut staged = Vec::new();
    staged.try_reserve_exact(total).map_err(|_| code::OUT_OF_MEMORY)?;
    for plane in 0..copy.depth {
        for row in 0..copy.rows {
            let address = start + plane * copy.source.plane + row * copy.source.pitch;
            let row = ptr::with_exposed_provenance::<u8>(address);
            // SAFETY: the caller of the driver promised that the source is readable now.
            let bytes = unsafe { std::slice::from_raw_parts(row, copy.width) };
            staged.extend_from_slice(bytes);
        }
    }
    Ok(staged)
}
