//! The fallback: moves elements between any memories in any layout. It needs no peer access and no
//! kernels, and is slower than the fast paths.

use super::check::MemoryKind;
use super::moves::Move;
use super::path::{Part, Strided};
use super::team::{Devices, Team, Worker};
use crate::base::error::{Error, Result};
use crate::collectives::dispatch;
use crate::collectives::layout::Form;
use crate::driver::sync_debug;
use crate::gpu::gpus::Gpus;
use crate::gpu::sanitizer_reports;
use crate::gpu::stream::Stream;
use crate::memory;
use crate::ops::copy;
use crate::sanitizer::Touch;

/// The most driver calls for a move before it is packed in scratch memory instead.
const MAX_CALLS: u64 = 8;

/// Device memory or pinned memory for the duration of a call. When dropped, it is freed in the
/// order of the queued work.
pub struct Scratch<'a> {
    gpus: &'a Gpus,
    /// The first address.
    pub address: u64,
    bytes: u64,
    /// The stream that orders it; `None` for pinned memory.
    stream: Option<&'a Stream>,
}

impl<'a> Scratch<'a> {
    /// Allocates device memory on the team's stream of the device.
    pub fn on(team: &Team<'a>, device: i32, bytes: u64) -> Result<Scratch<'a>> {
        let gpus = team.gpus();
        let device = gpus.device(device)?;
        let stream = team.stream(device.ordinal());
        let address = device.memory().allocate(gpus, device, stream, bytes)?;
        Ok(Scratch { gpus, address, bytes, stream: Some(stream) })
    }

    /// Allocates pinned memory.
    pub fn pinned(gpus: &'a Gpus, bytes: u64) -> Result<Scratch<'a>> {
        let address = gpus.pinned().allocate(gpus, bytes as usize)? as u64;
        Ok(Scratch { gpus, address, bytes, stream: None })
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        // A failure cannot be reported here.
        let _ = match self.stream {
            None => self.gpus.pinned().free(self.gpus, self.address as usize),
            Some(stream) => {
                // The next owner of the memory may conflict with this write if it ignores the
                // stream's order.
                let touch = Touch::write(self.address, self.bytes);
                sanitizer_reports::operation(self.gpus, stream, "scratch of tcuda_comm", &[touch]);
                memory::free(self.gpus, self.address)
            }
        };
    }
}

/// Queues a move.
pub fn run(team: &Team, moved: &Move) -> Result<()> {
    let form = &moved.form;
    match (moved.src, moved.dst) {
        (MemoryKind::Device(from), MemoryKind::Device(to)) if from == to => {
            on_device(team, from, form)
        }
        (MemoryKind::Device(from), MemoryKind::Device(to)) => between(team, from, to, form),
        (MemoryKind::Device(device), host) => to_host(team, device, host, form),
        (host, MemoryKind::Device(device)) => from_host(team, host, device, form),
        (_, _) => {
            in_host(form);
            Ok(())
        }
    }
}

/// Copies all rows of a form on a stream.
fn copy_all(team: &Team, form: &Form, stream: &Stream) -> Result<()> {
    let gpus = team.gpus();
    form.for_each_rows(&mut |part| {
        let (rows, src, dst) = part.rows().unwrap_or((1, part.width, part.width));
        if rows == 1 {
            return copy::copy(gpus, part.dst, part.src, part.width, stream);
        }
        let to = copy::Rows { address: part.dst, pitch: dst };
        let from = copy::Rows { address: part.src, pitch: src };
        copy::copy_2d(gpus, to, from, part.width, rows, stream)
    })
}

/// Copies within a device's memory, on its stream.
#[inline(never)]
fn on_device(team: &Team, device: i32, form: &Form) -> Result<()> {
    if form.num_rows() > MAX_CALLS
        && let Some(elements) = form.elements()?
    {
        let at = |address| Part { device, address };
        let (src, dst) = (at(form.src), at(form.dst));
        let piece = Strided { src, dst, element: elements.element, dims: elements.dims() };
        if dispatch::strided(team, &[piece])? {
            return Ok(());
        }
    }
    copy_all(team, form, team.stream(device))
}

/// Copies between two devices.
#[inline(never)]
fn between(team: &Team, from: i32, to: i32, form: &Form) -> Result<()> {
    if form.num_rows() <= MAX_CALLS {
        return send(team, from, to, form);
    }
    // The transfer is contiguous: packed on the source device, unpacked on the destination.
    let bytes = form.bytes();
    let packed = Scratch::on(team, from, bytes)?;
    pack(team, from, form, packed.address)?;
    if is_compact_at_end(form)? {
        return send_packed(team, (from, to), form, packed.address, None);
    }
    let arrived = Scratch::on(team, to, bytes)?;
    send_packed(team, (from, to), form, packed.address, Some(arrived.address))?;
    unpack(team, to, form, arrived.address)
}

// Each step has its own form, in a function of its own, because forms need much stack.
#[inline(never)]
fn pack(team: &Team, device: i32, form: &Form, to: u64) -> Result<()> {
    on_device(team, device, &form.packing(to)?)
}

#[inline(never)]
fn unpack(team: &Team, device: i32, form: &Form, from: u64) -> Result<()> {
    on_device(team, device, &form.unpacking(from)?)
}

#[inline(never)]
fn is_compact_at_end(form: &Form) -> Result<bool> {
    Ok(form.unpacking(0)?.is_range())
}

/// Sends packed elements to the destination, or to where they are unpacked from.
#[inline(never)]
fn send_packed(
    team: &Team,
    (from, to): (i32, i32),
    form: &Form,
    packed: u64,
    arrived: Option<u64>,
) -> Result<()> {
    match arrived {
        None => send(team, from, to, &form.unpacking(packed)?),
        Some(arrived) => send(team, from, to, &range(packed, arrived, form)),
    }
}

/// The bytes of a form, as one contiguous range.
fn range(src: u64, dst: u64, form: &Form) -> Form {
    Form::range(src, dst, form.bytes())
}

/// Copies contiguous bytes between two devices.
pub fn send_range(
    team: &Team,
    (from, src): (i32, u64),
    (to, dst): (i32, u64),
    bytes: u64,
) -> Result<()> {
    send(team, from, to, &Form::range(src, dst, bytes))
}

/// Copies between two devices on the stream of the source device. It is ordered after the stream of
/// the destination device, which then waits for it.
fn send(team: &Team, from: i32, to: i32, form: &Form) -> Result<()> {
    if team.is_capturing() && !team.reaches(from, to)? {
        return Err(Error::Capturing {
            operation: "a collective call between devices without peer access",
            why: "CUDA records no such copies; make the call outside of it",
        });
    }
    let (stream, other) = (team.stream(from), Devices::one(to));
    let ordered = team.order_after(stream, other);
    team.leave();
    ordered?;
    let queued = copy_all(team, form, stream);
    // The work that was queued is waited for even after a failure.
    let released = team.release(stream, other);
    team.leave();
    if released.is_err() {
        let parts = [
            Part { device: from, address: form.read().0 },
            Part { device: to, address: form.written().0 },
        ];
        team.keep_blocks(&[Worker { stream, touches: other }], parts.into_iter());
    }
    queued.and(released)
}

/// Copies with a kernel, if the host memory is pinned and mapped on the device at the same address.
/// False: it is not.
#[inline(never)]
fn through_kernel(
    team: &Team,
    device: i32,
    (first, bytes): (u64, u64),
    form: &Form,
) -> Result<bool> {
    let Some(elements) = form.elements()? else { return Ok(false) };
    let gpus = team.gpus();
    if !copy::is_mapped(gpus, gpus.device(device)?, first, bytes)? {
        return Ok(false);
    }
    let at = |address| Part { device, address };
    let (src, dst) = (at(form.src), at(form.dst));
    let piece = Strided { src, dst, element: elements.element, dims: elements.dims() };
    let is_done = dispatch::strided(team, &[piece])?;
    if is_done {
        // A kernel does not reveal that it uses pinned memory, so that the use is recorded here.
        gpus.pinned().used(gpus, first, team.stream(device));
    }
    Ok(is_done)
}

/// Copies from the host to a device.
#[inline(never)]
fn from_host(team: &Team, host: MemoryKind, device: i32, form: &Form) -> Result<()> {
    let stream = team.stream(device);
    if form.num_rows() <= MAX_CALLS {
        return copy_all(team, form, stream);
    }
    let bytes = form.bytes();
    let arrived =
        if is_compact_at_end(form)? { None } else { Some(Scratch::on(team, device, bytes)?) };
    let target = arrived.as_ref().map_or(form.dst, |scratch| scratch.address);
    match host {
        MemoryKind::Pageable => {
            refuse_capture(team)?;
            let packed = Scratch::pinned(team.gpus(), bytes)?;
            in_host(&form.packing(packed.address)?);
            copy_all(team, &range(packed.address, target, form), stream)?;
        }
        // The stream reads pinned memory later.
        _ => copy_all(team, &form.packing(target)?, stream)?,
    }
    match arrived {
        Some(scratch) => unpack(team, device, form, scratch.address),
        None => Ok(()),
    }
}

/// Copies from a device to the host.
#[inline(never)]
fn to_host(team: &Team, device: i32, host: MemoryKind, form: &Form) -> Result<()> {
    let stream = team.stream(device);
    let is_pageable = host == MemoryKind::Pageable;
    if form.num_rows() <= MAX_CALLS {
        copy_all(team, form, stream)?;
        return if is_pageable { wait(team, stream) } else { Ok(()) };
    }
    if host == MemoryKind::Pinned && through_kernel(team, device, form.written(), form)? {
        return Ok(());
    }
    let bytes = form.bytes();
    let packing = form.packing(0)?;
    let packed = if packing.is_range() { None } else { Some(Scratch::on(team, device, bytes)?) };
    let source = match &packed {
        Some(scratch) => {
            pack(team, device, form, scratch.address)?;
            scratch.address
        }
        None => form.src,
    };
    if !is_pageable {
        return copy_all(team, &form.unpacking(source)?, stream);
    }
    refuse_capture(team)?;
    let arrived = Scratch::pinned(team.gpus(), bytes)?;
    copy_all(team, &range(source, arrived.address, form), stream)?;
    wait(team, stream)?;
    in_host(&form.unpacking(arrived.address)?);
    Ok(())
}

/// An error in a capture: work of the host itself cannot be captured.
fn refuse_capture(team: &Team) -> Result<()> {
    if team.is_capturing() {
        return Err(Error::Capturing {
            operation: "a collective call with pageable memory that is not contiguous",
            why: "pass pinned memory, or a contiguous tensor",
        });
    }
    Ok(())
}

/// Waits for a stream; in a capture no work runs yet.
fn wait(team: &Team, stream: &Stream) -> Result<()> {
    if team.is_capturing() {
        return Ok(());
    }
    // The check of the host tensor has checked the sync debug mode.
    let _documented = sync_debug::documented();
    stream.synchronize(team.gpus())
}

/// Copies within host memory, at once.
fn in_host(form: &Form) {
    copy_in_host(form.src, form.dst, form.width as usize, form.dims());
}

fn copy_in_host(src: u64, dst: u64, width: usize, dims: &[(u64, i64, i64)]) {
    let Some(((size, src_stride, dst_stride), inner)) = dims.split_last() else {
        let (from, to) = (src as *const u8, dst as *mut u8);
        // SAFETY: both views are host memory, as the caller guarantees, and do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, width) };
        return;
    };
    let (mut src, mut dst) = (src, dst);
    for _ in 0..*size {
        copy_in_host(src, dst, width, inner);
        (src, dst) = (src.wrapping_add_signed(*src_stride), dst.wrapping_add_signed(*dst_stride));
    }
}
