//! Copies of a tensor on several devices: broadcast.

use super::Tensors;
use super::check::{self, MemoryKind};
use super::members::{self, Members, wait_for};
use super::moves::Moves;
use super::path::Part;
use super::team::{INLINE_CAPACITY, Team};
use crate::base::error::{Error, Result, Which};
use crate::base::inline_vec::Few;
use crate::base::thread::try_box;
use crate::collectives::contiguous::ContiguousBytes;
use crate::collectives::fallback::Scratch;
use crate::collectives::layout::Form;
use crate::collectives::outputs::{Draft, Outputs, is_at};
use crate::collectives::{dispatch, sanitizer_events};
use crate::gpu::gpus::Gpus;
use crate::tensor::{Sizes, Tensor, compact};

const NO_ROOM: Error = Error::OutOfHostMemory("the outputs of a broadcast");

/// Copies of a tensor that is not contiguous.
struct Copies<'t> {
    src: (MemoryKind, &'t Tensor),
    dsts: Vec<(MemoryKind, Tensor)>,
}

/// Broadcasts a tensor to new outputs, one per device. On the tensor's own device it is the tensor.
pub fn broadcast<'a>(gpus: &'a Gpus, src: &Tensor, devices: &[i32]) -> Result<Outputs<'a>> {
    let kind = MemoryKind::of(gpus, src)?;
    let mut members = Members::new(gpus);
    members.add_kind(kind)?;
    for device in devices {
        members.add_target(check::target(gpus, *device)?)?;
    }
    let team = members.team()?;
    members::record(&team, kind, src)?;
    let (len, shape) = (devices.len(), src.shape());
    let mut draft = Draft::new(gpus, len, len.saturating_mul(shape.len()), len)?;
    let mut strides = Sizes::new();
    strides.fill(shape.iter().copied())?;
    compact(shape, &mut strides);
    let flat = ContiguousBytes::of(kind, src);
    let mut sent = Few::<(MemoryKind, u64), INLINE_CAPACITY>::new();
    let mut copies = Copies { src: (kind, src), dsts: Vec::new() };
    let mut is_for_host = false;
    for device in devices {
        let target = check::target(gpus, *device)?;
        if is_at(kind, target) {
            draft.alias(src)?;
            continue;
        }
        is_for_host |= target.kind().device().is_none();
        match flat {
            Some(flat) => {
                let address = draft.range(target, src.dtype, (shape, &strides), flat.bytes)?;
                sent.push((target.kind(), address))?;
            }
            None => {
                let copy = copies.next(target.kind())?;
                draft.dense(target, src.dtype, (shape, &strides), copy)?;
            }
        }
    }
    let outs = draft.finish()?;
    match flat {
        Some(flat) => {
            flat.send(&team, &sent)?;
            report_sent(&team, "tcuda_comm_broadcast", &flat, &sent);
        }
        None => {
            copies.run(&team)?;
            copies.report(&team, "tcuda_comm_broadcast");
        }
    }
    if is_for_host {
        wait_for(&team, kind.device().into_iter().collect())?;
    }
    Ok(outs)
}

/// Broadcasts a tensor to outputs of the caller.
pub fn broadcast_into(gpus: &Gpus, src: &Tensor, outs: Tensors<'_>) -> Result<()> {
    let kind = MemoryKind::of(gpus, src)?;
    let mut members = Members::new(gpus);
    members.add_kind(kind)?;
    let flats = checked(gpus, &mut members, src, &outs)?;
    let team = members.team()?;
    members::record(&team, kind, src)?;
    match ContiguousBytes::of(kind, src).zip(flats) {
        Some((flat, flats)) => send_flat(&team, &flat, &flats),
        None => copy_into(&team, (kind, src), outs),
    }
}

/// Checks the outputs. Returns their memory if all are contiguous.
#[inline(never)]
fn checked<'a>(
    gpus: &Gpus,
    members: &mut Members<'a>,
    src: &Tensor,
    outs: &Tensors<'_>,
) -> Result<Option<Few<ContiguousBytes, INLINE_CAPACITY>>> {
    let mut flats = Few::<ContiguousBytes, INLINE_CAPACITY>::new();
    let mut out = Tensor::none();
    for index in 0..outs.len {
        let which = Which::of("outs", index);
        (outs.read)(index, &mut out)?;
        check::require_dtype(which, &out, src.dtype)?;
        check::require_shape(which, &out, src.shape())?;
        check::require_no_overlap(&out)?;
        let kind = MemoryKind::of(gpus, &out)?;
        members.add_kind(kind)?;
        if let Some(out) = ContiguousBytes::of(kind, &out) {
            flats.push(out)?;
        }
    }
    Ok((flats.len() == outs.len).then_some(flats))
}

#[inline(never)]
fn send_flat(team: &Team, flat: &ContiguousBytes, flats: &[ContiguousBytes]) -> Result<()> {
    flats.iter().try_for_each(|out| out.record(team))?;
    let mut dsts = Few::<(MemoryKind, u64), INLINE_CAPACITY>::new();
    dsts.fill(flats.iter().map(|out| (out.kind, out.address)))?;
    flat.send(team, &dsts)?;
    report_sent(team, "tcuda_comm_broadcast_into", flat, &dsts);
    Ok(())
}

#[inline(never)]
fn copy_into(team: &Team, src: (MemoryKind, &Tensor), outs: Tensors<'_>) -> Result<()> {
    let mut copies = Copies { src, dsts: Vec::new() };
    copies.dsts.try_reserve_exact(outs.len).map_err(|_| NO_ROOM)?;
    for index in 0..outs.len {
        let out = copies.next(MemoryKind::Pageable)?;
        (outs.read)(index, out)?;
        let kind = MemoryKind::of(team.gpus(), out)?;
        members::record(team, kind, out)?;
        copies.dsts[index].0 = kind;
    }
    copies.run(team)?;
    copies.report(team, "tcuda_comm_broadcast_into");
    Ok(())
}

fn report_sent(
    team: &Team,
    operation: &'static str,
    flat: &ContiguousBytes,
    dsts: &[(MemoryKind, u64)],
) {
    sanitizer_events::report(team, operation, |events| {
        dsts.iter().for_each(|to| events.sent(flat, *to))
    });
}

impl Copies<'_> {
    /// Adds a destination, to be set by the caller.
    #[inline(never)]
    fn next(&mut self, kind: MemoryKind) -> Result<&mut Tensor> {
        self.dsts.try_reserve(1).map_err(|_| NO_ROOM)?;
        self.dsts.push((kind, Tensor::none()));
        let last = self.dsts.len() - 1;
        Ok(&mut self.dsts[last].1)
    }

    /// Queues the copies. Ranges to several devices become one broadcast.
    fn run(&self, team: &Team) -> Result<()> {
        let (kind, src) = self.src;
        let Some(root) = kind.device() else { return self.move_all(team, kind, src) };
        let is_far = |to: &MemoryKind| to.device().is_some_and(|device| device != root);
        let num_far = self.dsts.iter().filter(|(to, _)| is_far(to)).count();
        let is_packed = num_far > 1 && !self.dsts.iter().all(|(_, dst)| is_range(src, dst));
        // Gathers its elements once, instead of for each destination.
        let packed = if is_packed { Some(pack(team, (kind, root), src)?) } else { None };
        let src = packed.as_ref().map_or(src, |packed| &packed.1);
        self.move_all(team, kind, src)
    }

    fn report(&self, team: &Team, operation: &'static str) {
        sanitizer_events::report(team, operation, |events| {
            self.dsts.iter().for_each(|(kind, dst)| events.moved(self.src, (*kind, dst)));
        });
    }

    fn move_all(&self, team: &Team, kind: MemoryKind, src: &Tensor) -> Result<()> {
        let mut ranges = Vec::new();
        ranges.try_reserve_exact(self.dsts.len()).map_err(|_| NO_ROOM)?;
        let mut moves = Moves::new();
        let sent = self.sort(kind, src, &mut ranges, &mut moves)?;
        if let Some((from, width)) = sent {
            let parts = collect(ranges.iter().map(|(part, _)| *part))?;
            if !dispatch::broadcast(team, width, from, &parts)? {
                for (part, to) in &ranges {
                    moves.add_range((kind, from.address), (*to, part.address), width)?;
                }
            }
        }
        moves.run(team)
    }

    /// Collects the ranges between devices in `ranges`, and the other moves in `moves`. Returns the
    /// source and length of the ranges.
    #[inline(never)]
    fn sort(
        &self,
        kind: MemoryKind,
        src: &Tensor,
        ranges: &mut Vec<(Part, MemoryKind)>,
        moves: &mut Moves,
    ) -> Result<Option<(Part, u64)>> {
        let (root, mut sent) = (kind.device(), None);
        for (to, dst) in &self.dsts {
            let Some(form) = Form::of(src, dst)? else { continue };
            match (root, to.device()) {
                _ if *to == kind && form.is_identity() => (),
                (Some(root), Some(device)) if form.is_range() => {
                    ranges.push((Part { device, address: form.dst }, *to));
                    sent = Some((Part { device: root, address: form.src }, form.width));
                }
                _ => moves.add_form(kind, *to, form)?,
            }
        }
        Ok(sent)
    }
}

#[inline(never)]
fn is_range(src: &Tensor, dst: &Tensor) -> bool {
    matches!(Form::of(src, dst), Ok(form) if form.as_ref().is_none_or(Form::is_range))
}

/// A contiguous copy of a tensor on its own device.
#[inline(never)]
fn pack<'a>(
    team: &'a Team,
    (kind, root): (MemoryKind, i32),
    src: &Tensor,
) -> Result<Box<(Scratch<'a>, Tensor)>> {
    let bytes = (src.numel * src.dtype.element_bits()).div_ceil(8);
    let scratch = Scratch::on(team, root, bytes)?;
    let mut packed = try_box((scratch, Tensor::none()), "the outputs of a broadcast")?;
    src.set_contiguous(packed.0.address, &mut packed.1)?;
    let mut packing = Moves::new();
    packing.add((kind, src), (kind, &packed.1))?;
    packing.run(team)?;
    Ok(packed)
}

fn collect<T>(items: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(items.len()).map_err(|_| NO_ROOM)?;
    list.extend(items);
    Ok(list)
}
