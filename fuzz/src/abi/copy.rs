//! Copies and fills. Host memory is always valid: it cannot be checked. Device memory is that of
//! live blocks, and now and then anything in the range of device addresses, which loses the device.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::status_of;
use crate::world::{HOST, Mode, World};
use std::ffi::c_void;
use tcuda::ffi::copy::*;
use tcuda::ffi::memory::tcuda_record_stream;
use tcuda::ffi::stream::{tcuda_stream, tcuda_stream_current};

/// Bytes of a row, or of all that is copied.
const LENGTHS: [usize; 12] = [16, 1, 0, 3, 64, 100, 255, 256, 511, 512, 4096, 8000];

/// One side of a copy.
#[derive(Clone, Copy)]
enum Side {
    /// At an offset of the host memory.
    Host(usize),
    /// At an offset of a block.
    Block(usize, usize),
    /// At an offset of pinned memory.
    Pinned(usize, usize),
    /// Somewhere in the range of device addresses, or NULL.
    Wild(usize),
}

impl Side {
    /// A side with room for `bytes`.
    fn choose(w: &World, i: &mut Input, bytes: usize) -> Side {
        let choice = i.u8();
        if choice >= 252 {
            let base = w.blocks.first().map_or(0, |block| block.ptr);
            return Side::Wild(if base == 0 { 0 } else { base.wrapping_add(i.u32() as usize) });
        }
        // Another thread's shutdown would take the memory from under a copy.
        let fits = |index: &usize| w.pinned[*index].bytes >= bytes;
        let pinned: Vec<usize> = (0..w.pinned.len()).filter(fits).collect();
        if choice < 32 && !pinned.is_empty() {
            let index = pinned[usize::from(choice) % pinned.len()];
            let room = w.pinned[index].bytes - bytes;
            return Side::Pinned(index, i.one_of(&[0, 1, 16, 255, room]).min(room));
        }
        let fits = |index: &usize| w.blocks[*index].bytes >= bytes && w.blocks[*index].ptr != 0;
        let blocks: Vec<usize> = (0..w.blocks.len()).filter(fits).collect();
        if choice < 64 || blocks.is_empty() {
            return Side::Host(i.u16() as usize % (HOST - bytes.min(HOST) + 1));
        }
        let index = blocks[usize::from(choice) % blocks.len()];
        let room = w.blocks[index].bytes - bytes;
        let offset = i.one_of(&[0, 0, 1, 3, 16, 64, 255, room]).min(room);
        Side::Block(index, offset)
    }

    fn address(self, w: &World) -> usize {
        match self {
            Side::Host(offset) => w.host.as_ptr().expose_provenance() + offset,
            Side::Block(index, offset) => w.blocks[index].ptr + offset,
            Side::Pinned(index, offset) => w.pinned[index].ptr + offset,
            Side::Wild(address) => address,
        }
    }

    /// The byte at an offset, if it is known.
    fn get(self, w: &World, at: usize) -> Option<u8> {
        match self {
            Side::Host(offset) => Some(w.host[offset + at]),
            Side::Block(index, offset) => w.blocks[index].shadow.get(offset + at),
            Side::Pinned(index, offset) => w.pinned[index].get(offset + at, w),
            Side::Wild(_) => None,
        }
    }
}

/// A range of one side against another: must not overlap.
fn overlap(w: &World, dst: Side, src: Side, bytes: usize) -> bool {
    let (dst, src) = (dst.address(w), src.address(w));
    dst < src + bytes && src < dst + bytes
}

/// What the sides of a copy do to what is known. True: to be called.
fn prepare(w: &mut World, dst: Side, src: Side, bytes: usize, e: &mut Expect) -> bool {
    for side in [dst, src] {
        match side {
            Side::Wild(0) if bytes > 0 => e.wrong(status::INVALID_ARGUMENT),
            // Without a block there is nothing but host memory there.
            Side::Wild(_) => w.lost = true,
            _ => (),
        }
    }
    let stays = w.mode != Mode::Threads || !w.may_be_shut_down;
    stays && bytes <= HOST && !overlap(w, dst, src, bytes)
}

/// What comes from a device, and work that is done at once, must be what the model knows.
fn arrived(w: &World, src: Side, byte: Option<u8>, found: Option<u8>) {
    let settled = !matches!(src, Side::Host(_)) && w.is_immediate() && !w.lost;
    let (Some(byte), Some(found), true) = (byte, found, settled) else { return };
    assert_eq!(byte, found, "a byte that was copied to the host");
}

/// Copies in the model: pairs of offsets.
fn follow(w: &mut World, dst: Side, src: Side, before: &[Option<u8>], rows: &[(usize, usize)]) {
    if let Side::Wild(_) = dst {
        w.forget_contents();
        return;
    }
    let mut next = before.iter();
    for (start, width) in rows {
        for at in 0..*width {
            let byte = next.next().copied().flatten();
            match dst {
                Side::Block(index, offset) => w.blocks[index].shadow.set(offset + start + at, byte),
                Side::Host(offset) => {
                    let found = w.host[offset + start + at];
                    arrived(w, src, byte, Some(found));
                }
                Side::Pinned(index, offset) => {
                    arrived(w, src, byte, w.pinned[index].get(offset + start + at, w));
                }
                Side::Wild(_) => (),
            }
        }
    }
}

/// Says on which stream blocks were used, as a host must: what is freed may be unmapped before work
/// of another stream than its own got there.
fn recorded(w: &World, sides: &[Side], stream: *mut tcuda_stream) {
    let blocks = || {
        sides.iter().filter_map(|side| match side {
            Side::Block(index, _) => w.blocks.get(*index),
            _ => None,
        })
    };
    let (Some(first), false) = (blocks().next(), w.is_immediate()) else { return };
    let mut used = stream;
    if used.is_null() && status_of!(tcuda_stream_current(first.device, &mut used)) != status::OK {
        return;
    }
    for block in blocks() {
        // Before the first call, or on a lost device, there is nothing to be kept.
        let _ = status_of!(tcuda_record_stream(block.ptr as *mut c_void, used));
    }
}

pub(super) fn copy(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let bytes = i.one_of(&LENGTHS);
    let (dst, src) = (Side::choose(w, i, bytes), Side::choose(w, i, bytes));
    let stream = w.stream(i, &mut e);
    if !prepare(w, dst, src, bytes, &mut e) {
        return;
    }
    let before: Vec<_> = (0..bytes).map(|at| src.get(w, at)).collect();
    let (to, from) = (dst.address(w) as *mut c_void, src.address(w) as *const c_void);
    let status = status_of!(tcuda_copy(to, from, bytes, stream));
    recorded(w, &[dst, src], stream);
    if w.judge(status, &e) {
        follow(w, dst, src, &before, &[(0, bytes)]);
    } else if e.wrong.is_empty() {
        w.forget_contents();
    }
}

pub(super) fn copy_2d(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (width, rows) = (i.one_of(&LENGTHS[..9]), i.one_of(&[2, 1, 0, 3, 7]));
    let pitch = |i: &mut Input| match i.u8() {
        0..=15 => width / 2,
        choice => width + [0, 1, 16, 256][usize::from(choice) % 4],
    };
    let (dst_pitch, src_pitch) = (pitch(i), pitch(i));
    let bytes = dst_pitch.max(src_pitch).max(width) * rows;
    let (dst, src) = (Side::choose(w, i, bytes), Side::choose(w, i, bytes));
    let stream = w.stream(i, &mut e);
    if width > 0 && rows > 1 && dst_pitch.min(src_pitch) < width {
        e.wrong(status::INVALID_ARGUMENT);
    }
    if !prepare(w, dst, src, if width == 0 { 0 } else { bytes }, &mut e) {
        return;
    }
    let at = |pitch: usize, row: usize| row * pitch;
    let before: Vec<_> = (0..rows)
        .flat_map(|row| (0..width).map(move |column| (row, column)))
        .map(|(row, column)| src.get(w, at(src_pitch, row) + column))
        .collect();
    let (to, from) = (dst.address(w) as *mut c_void, src.address(w) as *const c_void);
    let status = status_of!(tcuda_copy_2d(to, dst_pitch, from, src_pitch, width, rows, stream));
    recorded(w, &[dst, src], stream);
    if w.judge(status, &e) {
        let places: Vec<_> = (0..rows).map(|row| (at(dst_pitch, row), width)).collect();
        follow(w, dst, src, &before, &places);
    } else if e.wrong.is_empty() {
        w.forget_contents();
    }
}

pub(super) fn fill(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let value_bytes = i.one_of(&[1, 2, 4, 8, 16, 3, 5, 12, 15, 0, 17, usize::MAX]);
    let count = i.one_of(&[1, 4, 0, 7, 16, 33, 500]);
    let value: [u8; 16] = std::array::from_fn(|_| i.u8());
    let from: *const c_void = if i.rarely(8) { std::ptr::null() } else { value.as_ptr().cast() };
    if !(1..=16).contains(&value_bytes) || from.is_null() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let bytes = value_bytes.min(16) * count;
    let dst = Side::choose(w, i, bytes);
    let stream = w.stream(i, &mut e);
    let dst = match dst {
        // A fill of host memory is the driver's to refuse; only NULL is ours.
        Side::Host(_) | Side::Pinned(..) => Side::Wild(0),
        other => other,
    };
    match dst {
        Side::Wild(0) if count > 0 => e.wrong(status::INVALID_ARGUMENT),
        Side::Wild(address) if address != 0 => w.lost = true,
        _ => (),
    }
    // A fill beside a block's end would be a fault of this program.
    let enormous = count > 0 && i.rarely(8);
    let count = if enormous { usize::MAX / 2 } else { count };
    if enormous && e.wrong.is_empty() {
        // Leaves the address space, or reaches far behind the block.
        w.lost = true;
        e.also(&[status::INVALID_ARGUMENT]);
    }
    let address = dst.address(w) as *mut c_void;
    let status = status_of!(tcuda_fill(address, from, value_bytes, count, stream));
    recorded(w, &[dst], stream);
    if !w.judge(status, &e) {
        if e.wrong.is_empty() {
            w.forget_contents();
        }
        return;
    }
    match dst {
        Side::Block(index, offset) if !enormous && w.mode != Mode::Threads => {
            for at in 0..bytes {
                w.blocks[index].shadow.set(offset + at, Some(value[at % value_bytes]));
            }
        }
        Side::Block(..) | Side::Wild(_) => w.forget_contents(),
        Side::Host(_) | Side::Pinned(..) => (),
    }
}
