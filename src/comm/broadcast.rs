//! Copies of a tensor on several devices.

use super::check::{self, Home};
use super::form::Form;
use super::members::{self, Members, wait_for};
use super::moves::Moves;
use super::outs::{Draft, Outs, is_at};
use super::path::Part;
use super::plain::Scratch;
use super::team::Team;
use super::{told, ways};
use crate::error::{Error, Result, Which};
use crate::runtime::Runtime;
use crate::tensor::{MAX_DIMS, Parts, Tensor, compact};

const NO_ROOM: Error = Error::OutOfHostMemory("the outputs of a broadcast");

/// Where copies go.
struct Copies<'t> {
    src: (Home, &'t Tensor),
    dsts: Vec<(Home, Tensor)>,
}

/// A copy of a tensor on each device; on its own, itself.
pub fn broadcast<'a>(runtime: &'a Runtime, src: &Tensor, devices: &[i32]) -> Result<Outs<'a>> {
    let home = Home::of(runtime, src)?;
    let mut members = Members::new(runtime);
    members.add_home(home)?;
    for device in devices {
        members.add_target(check::target(runtime, *device)?);
    }
    let team = members.team()?;
    members::record(&team, home, src)?;
    let (len, ndim) = (devices.len(), src.shape().len());
    let mut draft = Draft::new(runtime, len, len.saturating_mul(ndim), len)?;
    let mut copies = Copies { src: (home, src), dsts: Vec::new() };
    copies.dsts.try_reserve_exact(len).map_err(|_| NO_ROOM)?;
    for device in devices {
        let target = check::target(runtime, *device)?;
        if is_at(home, target) {
            draft.alias(src)?;
            continue;
        }
        let mut strides = [0; MAX_DIMS];
        compact(src.shape(), &mut strides);
        let copy = draft.dense(target, src.dtype, src.shape(), &strides[..ndim])?;
        copies.dsts.push((target.home(), copy));
    }
    let outs = draft.finish()?;
    copies.run(&team)?;
    copies.tell(&team, "tcuda_comm_broadcast");
    if copies.dsts.iter().any(|(to, _)| to.device().is_none()) {
        wait_for(&team, home.device().into_iter().collect())?;
    }
    Ok(outs)
}

/// A copy of a tensor in each output.
pub fn broadcast_into(runtime: &Runtime, src: &Tensor, outs: &[Tensor]) -> Result<()> {
    let home = Home::of(runtime, src)?;
    let mut members = Members::new(runtime);
    members.add_home(home)?;
    let mut copies = Copies { src: (home, src), dsts: Vec::new() };
    copies.dsts.try_reserve_exact(outs.len()).map_err(|_| NO_ROOM)?;
    for (index, out) in outs.iter().enumerate() {
        let which = Which::of("outs", index);
        check::require_dtype(which, out, src.dtype)?;
        check::require_shape(which, out, src.shape())?;
        check::require_apart(out)?;
        let home = Home::of(runtime, out)?;
        members.add_home(home)?;
        copies.dsts.push((home, *out));
    }
    let team = members.team()?;
    members::record(&team, home, src)?;
    copies.dsts.iter().try_for_each(|(home, out)| members::record(&team, *home, out))?;
    copies.run(&team)?;
    copies.tell(&team, "tcuda_comm_broadcast_into");
    Ok(())
}

impl Copies<'_> {
    fn tell(&self, team: &Team, operation: &'static str) {
        told::tell(team, operation, |told| {
            self.dsts.iter().for_each(|(home, dst)| told.moved(self.src, (*home, dst)));
        });
    }

    /// Queues them. What goes to several devices as one range goes to all together.
    fn run(&self, team: &Team) -> Result<()> {
        let (home, src) = self.src;
        let Some(root) = home.device() else { return self.move_all(team, home, src) };
        let is_far = |to: &Home| to.device().is_some_and(|device| device != root);
        let num_far = self.dsts.iter().filter(|(to, _)| is_far(to)).count();
        let is_range = |src: &Tensor, dst: &Tensor| -> Result<bool> {
            Ok(Form::of(src, dst)?.is_none_or(|form| form.is_range()))
        };
        let mut packed = None;
        let mut strides = [0; MAX_DIMS];
        let strides = &mut strides[..src.shape().len()];
        compact(src.shape(), strides);
        if num_far > 1 && !self.dsts.iter().all(|(_, dst)| matches!(is_range(src, dst), Ok(true))) {
            // Its elements are gathered once, not for each.
            let bytes = (src.numel * src.dtype.element_bits()).div_ceil(8);
            let scratch = Scratch::on(team, root, bytes)?;
            let view = Tensor::new(Parts {
                data: scratch.address,
                byte_offset: 0,
                place: src.place,
                dtype: src.dtype,
                shape: src.shape(),
                strides: Some(strides),
            })?;
            let mut packing = Moves::with_room(1)?;
            packing.add((home, src), (home, &view))?;
            packing.run(team)?;
            packed = Some((scratch, view));
        }
        let src = packed.as_ref().map_or(src, |(_, view)| view);
        self.move_all(team, home, src)
    }

    fn move_all(&self, team: &Team, home: Home, src: &Tensor) -> Result<()> {
        let root = home.device();
        let mut ranges = Vec::new();
        ranges.try_reserve_exact(self.dsts.len()).map_err(|_| NO_ROOM)?;
        let mut moves = Moves::with_room(self.dsts.len())?;
        let mut sent = None;
        for (to, dst) in &self.dsts {
            let Some(form) = Form::of(src, dst)? else { continue };
            match (root, to.device()) {
                _ if *to == home && form.stays() => (),
                (Some(root), Some(device)) if form.is_range() => {
                    ranges.push((Part { device, address: form.dst }, *to));
                    sent = Some((Part { device: root, address: form.src }, form));
                }
                _ => moves.add_form(home, *to, form)?,
            }
        }
        if let Some((from, form)) = sent {
            let parts = collect(ranges.iter().map(|(part, _)| *part))?;
            if !ways::broadcast(team, form.width, from, &parts)? {
                for (part, to) in &ranges {
                    moves.add_form(home, *to, form.sent_to(part.address))?;
                }
            }
        }
        moves.run(team)
    }
}

fn collect<T>(items: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(items.len()).map_err(|_| NO_ROOM)?;
    list.extend(items);
    Ok(list)
}
