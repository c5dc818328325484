//! Copies of a tensor on several devices: broadcast.

use super::Tensors;
use super::check::{self, Home};
use super::members::{self, Members, wait_for};
use super::moves::Moves;
use super::path::Part;
use super::team::{MOST, Team};
use crate::base::error::{Error, Result, Which};
use crate::base::inline_vec::Few;
use crate::base::thread::try_box;
use crate::collectives::contiguous::Flat;
use crate::collectives::fallback::Scratch;
use crate::collectives::layout::Form;
use crate::collectives::outputs::{Draft, Outs, is_at};
use crate::collectives::{dispatch, sanitizer_events};
use crate::runtime::Runtime;
use crate::tensor::{Sizes, Tensor, compact};

const NO_ROOM: Error = Error::OutOfHostMemory("the outputs of a broadcast");

/// Copies of a tensor that is not contiguous.
struct Copies<'t> {
    src: (Home, &'t Tensor),
    dsts: Vec<(Home, Tensor)>,
}

/// Broadcasts a tensor to new outputs, one per device. On the tensor's own device it is the tensor.
pub fn broadcast<'a>(runtime: &'a Runtime, src: &Tensor, devices: &[i32]) -> Result<Outs<'a>> {
    let home = Home::of(runtime, src)?;
    let mut members = Members::new(runtime);
    members.add_home(home)?;
    for device in devices {
        members.add_target(check::target(runtime, *device)?)?;
    }
    let team = members.team()?;
    members::record(&team, home, src)?;
    let (len, shape) = (devices.len(), src.shape());
    let mut draft = Draft::new(runtime, len, len.saturating_mul(shape.len()), len)?;
    let mut strides = Sizes::new();
    strides.fill(shape.iter().copied())?;
    compact(shape, &mut strides);
    let flat = Flat::of(home, src);
    let mut sent = Few::<(Home, u64), MOST>::new();
    let mut copies = Copies { src: (home, src), dsts: Vec::new() };
    let mut is_for_host = false;
    for device in devices {
        let target = check::target(runtime, *device)?;
        if is_at(home, target) {
            draft.alias(src)?;
            continue;
        }
        is_for_host |= target.home().device().is_none();
        match flat {
            Some(flat) => {
                let address = draft.range(target, src.dtype, (shape, &strides), flat.bytes)?;
                sent.push((target.home(), address))?;
            }
            None => {
                let copy = copies.next(target.home())?;
                draft.dense(target, src.dtype, (shape, &strides), copy)?;
            }
        }
    }
    let outs = draft.finish()?;
    match flat {
        Some(flat) => {
            flat.send(&team, &sent)?;
            tell_sent(&team, "tcuda_comm_broadcast", &flat, &sent);
        }
        None => {
            copies.run(&team)?;
            copies.tell(&team, "tcuda_comm_broadcast");
        }
    }
    if is_for_host {
        wait_for(&team, home.device().into_iter().collect())?;
    }
    Ok(outs)
}

/// Broadcasts a tensor to outputs of the caller.
pub fn broadcast_into(runtime: &Runtime, src: &Tensor, outs: Tensors<'_>) -> Result<()> {
    let home = Home::of(runtime, src)?;
    let mut members = Members::new(runtime);
    members.add_home(home)?;
    let flats = checked(runtime, &mut members, src, &outs)?;
    let team = members.team()?;
    members::record(&team, home, src)?;
    match Flat::of(home, src).zip(flats) {
        Some((flat, flats)) => send_flat(&team, &flat, &flats),
        None => copy_into(&team, (home, src), outs),
    }
}

/// Checks the outputs. Returns their memory if all are contiguous.
#[inline(never)]
fn checked<'a>(
    runtime: &Runtime,
    members: &mut Members<'a>,
    src: &Tensor,
    outs: &Tensors<'_>,
) -> Result<Option<Few<Flat, MOST>>> {
    let mut flats = Few::<Flat, MOST>::new();
    let mut out = Tensor::none();
    for index in 0..outs.len {
        let which = Which::of("outs", index);
        (outs.read)(index, &mut out)?;
        check::require_dtype(which, &out, src.dtype)?;
        check::require_shape(which, &out, src.shape())?;
        check::require_apart(&out)?;
        let home = Home::of(runtime, &out)?;
        members.add_home(home)?;
        if let Some(out) = Flat::of(home, &out) {
            flats.push(out)?;
        }
    }
    Ok((flats.len() == outs.len).then_some(flats))
}

#[inline(never)]
fn send_flat(team: &Team, flat: &Flat, flats: &[Flat]) -> Result<()> {
    flats.iter().try_for_each(|out| out.record(team))?;
    let mut dsts = Few::<(Home, u64), MOST>::new();
    dsts.fill(flats.iter().map(|out| (out.home, out.address)))?;
    flat.send(team, &dsts)?;
    tell_sent(team, "tcuda_comm_broadcast_into", flat, &dsts);
    Ok(())
}

#[inline(never)]
fn copy_into(team: &Team, src: (Home, &Tensor), outs: Tensors<'_>) -> Result<()> {
    let mut copies = Copies { src, dsts: Vec::new() };
    copies.dsts.try_reserve_exact(outs.len).map_err(|_| NO_ROOM)?;
    for index in 0..outs.len {
        let out = copies.next(Home::Pageable)?;
        (outs.read)(index, out)?;
        let home = Home::of(team.runtime(), out)?;
        members::record(team, home, out)?;
        copies.dsts[index].0 = home;
    }
    copies.run(team)?;
    copies.tell(team, "tcuda_comm_broadcast_into");
    Ok(())
}

fn tell_sent(team: &Team, operation: &'static str, flat: &Flat, dsts: &[(Home, u64)]) {
    sanitizer_events::tell(team, operation, |told| dsts.iter().for_each(|to| told.sent(flat, *to)));
}

impl Copies<'_> {
    /// Adds a destination, to be set by the caller.
    #[inline(never)]
    fn next(&mut self, home: Home) -> Result<&mut Tensor> {
        self.dsts.try_reserve(1).map_err(|_| NO_ROOM)?;
        self.dsts.push((home, Tensor::none()));
        let last = self.dsts.len() - 1;
        Ok(&mut self.dsts[last].1)
    }

    /// Queues the copies. Ranges to several devices become one broadcast.
    fn run(&self, team: &Team) -> Result<()> {
        let (home, src) = self.src;
        let Some(root) = home.device() else { return self.move_all(team, home, src) };
        let is_far = |to: &Home| to.device().is_some_and(|device| device != root);
        let num_far = self.dsts.iter().filter(|(to, _)| is_far(to)).count();
        let is_packed = num_far > 1 && !self.dsts.iter().all(|(_, dst)| is_range(src, dst));
        // Gathers its elements once, instead of for each destination.
        let packed = if is_packed { Some(pack(team, (home, root), src)?) } else { None };
        let src = packed.as_ref().map_or(src, |packed| &packed.1);
        self.move_all(team, home, src)
    }

    fn tell(&self, team: &Team, operation: &'static str) {
        sanitizer_events::tell(team, operation, |told| {
            self.dsts.iter().for_each(|(home, dst)| told.moved(self.src, (*home, dst)));
        });
    }

    fn move_all(&self, team: &Team, home: Home, src: &Tensor) -> Result<()> {
        let mut ranges = Vec::new();
        ranges.try_reserve_exact(self.dsts.len()).map_err(|_| NO_ROOM)?;
        let mut moves = Moves::default();
        let sent = self.sort(home, src, &mut ranges, &mut moves)?;
        if let Some((from, width)) = sent {
            let parts = collect(ranges.iter().map(|(part, _)| *part))?;
            if !dispatch::broadcast(team, width, from, &parts)? {
                for (part, to) in &ranges {
                    moves.add_range((home, from.address), (*to, part.address), width)?;
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
        home: Home,
        src: &Tensor,
        ranges: &mut Vec<(Part, Home)>,
        moves: &mut Moves,
    ) -> Result<Option<(Part, u64)>> {
        let (root, mut sent) = (home.device(), None);
        for (to, dst) in &self.dsts {
            let Some(form) = Form::of(src, dst)? else { continue };
            match (root, to.device()) {
                _ if *to == home && form.stays() => (),
                (Some(root), Some(device)) if form.is_range() => {
                    ranges.push((Part { device, address: form.dst }, *to));
                    sent = Some((Part { device: root, address: form.src }, form.width));
                }
                _ => moves.add_form(home, *to, form)?,
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
    (home, root): (Home, i32),
    src: &Tensor,
) -> Result<Box<(Scratch<'a>, Tensor)>> {
    let bytes = (src.numel * src.dtype.element_bits()).div_ceil(8);
    let scratch = Scratch::on(team, root, bytes)?;
    let mut packed = try_box((scratch, Tensor::none()), "the outputs of a broadcast")?;
    src.set_contiguous(packed.0.address, &mut packed.1)?;
    let mut packing = Moves::default();
    packing.add((home, src), (home, &packed.1))?;
    packing.run(team)?;
    Ok(packed)
}

fn collect<T>(items: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(items.len()).map_err(|_| NO_ROOM)?;
    list.extend(items);
    Ok(list)
}
