//! Sums of tensors of several devices.

use super::Tensors;
use super::check::{self, MemoryKind};
use super::members::{self, Members, wait_for};
use super::moves::{self, Moves};
use super::path::{Number, Part, Sum};
use super::team::{INLINE_CAPACITY, Team};
use crate::base::error::{Error, Result, Which};
use crate::base::inline_vec::Few;
use crate::collectives::contiguous::ContiguousBytes;
use crate::collectives::fallback::{self, Scratch};
use crate::collectives::layout::Form;
use crate::collectives::outputs::{Draft, Outputs, Target, is_at};
use crate::collectives::{dispatch, sanitizer_events};
use crate::gpu::device::CURRENT;
use crate::gpu::gpus::Gpus;
use crate::tensor::order::strides_of_copy;
use crate::tensor::{Dtype, MAX_DIMS, Parts, Place, Tensor, dtype::code};

pub(super) const NO_ROOM: Error = Error::OutOfHostMemory("what is added");
/// Bytes of scratch memory at a time, if tensors of other devices must be copied before they are
/// added.
const SCRATCH_BYTES: u64 = 64 << 20;

/// The number type of an element type, and how many numbers an element has.
pub fn number_of(dtype: Dtype) -> Result<(Number, u64)> {
    let number = match (dtype.code, dtype.bits) {
        (code::BOOL, 8) => Number::Bool,
        (code::INT | code::UINT, 8) => Number::Int8,
        (code::INT | code::UINT, 16) => Number::Int16,
        (code::INT | code::UINT, 32) => Number::Int32,
        (code::INT | code::UINT, 64) => Number::Int64,
        (code::FLOAT, 16) | (code::COMPLEX, 32) => Number::F16,
        (code::BFLOAT, 16) => Number::BF16,
        (code::FLOAT, 32) | (code::COMPLEX, 64) => Number::F32,
        (code::FLOAT, 64) | (code::COMPLEX, 128) => Number::F64,
        _ => {
            return Err(Error::Invalid(
                "tensors of this type cannot be added; pass integers of 8 bits or more, floats of \
                 16 to 64 bits, bfloat16, complex numbers of these, or bools",
            ));
        }
    };
    let parts = if dtype.code == code::COMPLEX { 2 } else { 1 };
    Ok((number, u64::from(dtype.lanes) * parts))
}

/// Index of the tensor that is added first: the last one on the destination, otherwise 0.
pub fn root_of(kinds: impl Iterator<Item = MemoryKind>, target: Target<'_>) -> usize {
    let on_it = kinds.enumerate().filter(|(_, kind)| is_at(*kind, target));
    on_it.last().map_or(0, |(root, _)| root)
}

/// The device that adds: the destination, or for the host the first device that has a tensor.
fn adder_of(gpus: &Gpus, kinds: &[MemoryKind], target: Target<'_>) -> Result<i32> {
    let first = || kinds.iter().find_map(|kind| kind.device());
    match target.kind().device().or_else(first) {
        Some(device) => Ok(device),
        None => Ok(gpus.device(CURRENT)?.ordinal()),
    }
}

/// The tensors of a sum, after PyTorch's checks.
struct Checked {
    first: Tensor,
    kinds: Few<MemoryKind, INLINE_CAPACITY>,
    /// All tensors if each is contiguous, aligned and on a device; otherwise empty.
    flats: Few<ContiguousBytes, INLINE_CAPACITY>,
    number: Number,
    /// Numbers in each tensor.
    elements: u64,
}

impl Checked {
    fn none() -> Checked {
        Checked {
            first: Tensor::none(),
            kinds: Few::new(),
            flats: Few::new(),
            number: Number::Bool,
            elements: 0,
        }
    }

    /// Reads and checks the tensors.
    #[inline(never)]
    fn set(&mut self, gpus: &Gpus, tensors: Tensors<'_>) -> Result<()> {
        check::require_some("count", tensors.len)?;
        let Checked { first, kinds, flats, .. } = self;
        let mut next = Tensor::none();
        (tensors.read)(0, first)?;
        for index in 0..tensors.len {
            let which = Which::of("tensors", index);
            let tensor = match index {
                0 => &*first,
                _ => {
                    (tensors.read)(index, &mut next)?;
                    &next
                }
            };
            check::require_dtype(which, tensor, first.dtype)?;
            check::require_shape(which, tensor, first.shape())?;
            let kind = MemoryKind::of(gpus, tensor)?;
            kinds.push(kind)?;
            if let Some(flat) =
                ContiguousBytes::of(kind, tensor).filter(|flat| flat.kind.device().is_some())
            {
                flats.push(flat)?;
            }
        }
        let (number, each) = number_of(first.dtype)?;
        let is_aligned = |flat: &ContiguousBytes| flat.address.is_multiple_of(number.bytes());
        if !(flats.len() == tensors.len && flats.iter().all(is_aligned)) {
            flats.clear();
        }
        (self.number, self.elements) = (number, first.numel * each);
        Ok(())
    }

    /// Queues the sum of contiguous tensors. The root is added first.
    fn add(&self, team: &Team, root: usize, dst: Part, operation: &'static str) -> Result<()> {
        let (flats, mut sources) = (&*self.flats, Few::<Part, INLINE_CAPACITY>::new());
        for flat in std::iter::once(&flats[root]).chain(others(flats, root)) {
            flat.record(team)?;
            let device = flat.kind.device().unwrap_or(dst.device);
            sources.push(Part { device, address: flat.address })?;
        }
        let (number, elements) = (self.number, self.elements);
        add_all(team, &[Sum { number, elements, sources: &sources, dst }])?;
        sanitizer_events::report(team, operation, |events| {
            flats.iter().for_each(|flat| events.read_flat(flat));
            events.written_range(
                MemoryKind::Device(dst.device),
                dst.address,
                elements * number.bytes(),
            );
        });
        Ok(())
    }
}

/// All except the root.
fn others(flats: &[ContiguousBytes], root: usize) -> impl Iterator<Item = &ContiguousBytes> {
    let is_other = move |(index, _): &(usize, &ContiguousBytes)| *index != root;
    flats.iter().enumerate().filter(is_other).map(|(_, flat)| flat)
}

/// The team of all devices whose memory is used, and the device that adds.
fn team_of<'a>(
    gpus: &'a Gpus,
    kinds: &[MemoryKind],
    target: Target<'a>,
) -> Result<(Team<'a>, i32)> {
    let mut members = Members::new(gpus);
    members.add_target(target)?;
    kinds.iter().try_for_each(|kind| members.add_kind(*kind))?;
    let adder = adder_of(gpus, kinds, target)?;
    members.add_device(adder)?;
    Ok((members.team()?, adder))
}

/// Adds tensors into a new output.
pub fn reduce_add<'a>(
    gpus: &'a Gpus,
    tensors: Tensors<'_>,
    destination: i32,
) -> Result<Outputs<'a>> {
    let mut checked = Checked::none();
    checked.set(gpus, tensors)?;
    let target = check::target(gpus, destination)?;
    let root = root_of(checked.kinds.iter().copied(), target);
    if root > 0 {
        (tensors.read)(root, &mut checked.first)?;
    }
    let first = &checked.first;
    let ndim = first.shape().len();
    let mut draft = Draft::new(gpus, 1, ndim, 1)?;
    if tensors.len == 1 && is_at(checked.kinds[root], target) {
        draft.alias(first)?;
        return draft.finish();
    }
    let (team, adder) = team_of(gpus, &checked.kinds, target)?;
    if let ([_, _, ..], Target::Device(..)) = (&*checked.flats, target) {
        // A contiguous result keeps the strides of the root.
        let sizes = (first.shape(), first.strides());
        let address = draft.range(target, first.dtype, sizes, checked.flats[root].bytes)?;
        let outs = draft.finish()?;
        checked.add(&team, root, Part { device: adder, address }, "tcuda_comm_reduce_add")?;
        return Ok(outs);
    }
    let outs = reduce_add_any((&team, adder), tensors, (&checked, root), draft, target)?;
    if matches!(target, Target::Host) {
        wait_for(&team, [adder].into_iter().collect())?;
    }
    Ok(outs)
}

/// [`reduce_add`] for tensors of any layout.
#[inline(never)]
fn reduce_add_any<'a>(
    (team, adder): (&Team<'_>, i32),
    tensors: Tensors<'_>,
    (checked, root): (&Checked, usize),
    mut draft: Draft<'a>,
    target: Target<'_>,
) -> Result<Outputs<'a>> {
    let mut out = Tensor::none();
    draft.copy_of(target, &checked.first, &mut out)?;
    let outs = draft.finish()?;
    let out = (target.kind(), &out);
    add(team, adder, &tensors.all()?, &checked.kinds, root, out, "tcuda_comm_reduce_add")?;
    Ok(outs)
}

/// Adds tensors into an output of the caller.
pub fn reduce_add_into(gpus: &Gpus, tensors: Tensors<'_>, out: &Tensor) -> Result<()> {
    let mut checked = Checked::none();
    checked.set(gpus, tensors)?;
    let which = Which::all("out");
    check::require_dtype(which, out, checked.first.dtype)?;
    check::require_shape(which, out, checked.first.shape())?;
    check::require_no_overlap(out)?;
    let kind = MemoryKind::of(gpus, out)?;
    let target = match kind.device() {
        Some(device) => check::target(gpus, device)?,
        None => Target::Host,
    };
    let root = root_of(checked.kinds.iter().copied(), target);
    let (team, adder) = team_of(gpus, &checked.kinds, target)?;
    members::record(&team, kind, out)?;
    let operation = "tcuda_comm_reduce_add_into";
    if let (flats @ [_, _, ..], Some(own)) = (&*checked.flats, ContiguousBytes::of(kind, out)) {
        let is_aligned = own.address.is_multiple_of(checked.number.bytes());
        let first = &flats[root];
        let is_apart = !others(flats, root).any(|flat| flat.overlaps(&own))
            && (!first.overlaps(&own) || first.address == own.address);
        if kind == MemoryKind::Device(adder) && is_aligned && is_apart {
            let dst = Part { device: adder, address: own.address };
            return checked.add(&team, root, dst, operation);
        }
    }
    add(&team, adder, &tensors.all()?, &checked.kinds, root, (kind, out), operation)
}

/// Adds tensors of any layout on a device into an output. The root is added first.
#[inline(never)]
fn add(
    team: &Team,
    adder: i32,
    tensors: &[Tensor],
    kinds: &[MemoryKind],
    root: usize,
    (kind, out): (MemoryKind, &Tensor),
    operation: &'static str,
) -> Result<()> {
    for (kind, tensor) in kinds.iter().zip(tensors) {
        members::record(team, *kind, tensor)?;
    }
    if let [only] = tensors {
        return moves::run_one(team, (kinds[0], only), (kind, out), operation);
    }
    let order = || std::iter::once(root).chain((0..tensors.len()).filter(|index| *index != root));
    let mut batch = SumBatch::new(team, adder);
    batch.reserve(tensors.len(), 1)?;
    let sources = order().map(|index| (kinds[index], &tensors[index]));
    batch.item(sources, (kind, out))?;
    batch.run()?;
    sanitizer_events::report(team, operation, |events| {
        kinds.iter().zip(tensors).for_each(|(kind, tensor)| events.read(*kind, tensor));
        events.written(kind, out);
    });
    Ok(())
}

/// Sums that one device computes in one go.
pub struct SumBatch<'t, 'a> {
    team: &'t Team<'a>,
    adder: i32,
    /// The sources of all items, one item after the other.
    sources: Vec<Part>,
    items: Vec<Item>,
    scratch: Vec<Scratch<'a>>,
    /// Copies of tensors in another layout or on the host: before the sums, and after them.
    before: Moves,
    after: Moves,
}

/// One sum, and its number of sources.
struct Item {
    number: Number,
    elements: u64,
    sources: usize,
    dst: Part,
}

impl<'t, 'a> SumBatch<'t, 'a> {
    /// No sums. Inlined, as [`Moves::new`].
    #[inline(always)]
    pub fn new(team: &'t Team<'a>, adder: i32) -> SumBatch<'t, 'a> {
        SumBatch {
            team,
            adder,
            sources: Vec::new(),
            items: Vec::new(),
            scratch: Vec::new(),
            before: Moves::new(),
            after: Moves::new(),
        }
    }

    /// Reserves host memory for this many sources and items.
    pub fn reserve(&mut self, sources: usize, items: usize) -> Result<()> {
        self.sources.try_reserve_exact(sources).map_err(|_| NO_ROOM)?;
        self.items.try_reserve_exact(items).map_err(|_| NO_ROOM)
    }

    /// Allocates device memory for the elements of a tensor, until all is queued.
    fn scratch(&mut self, device: i32, tensor: &Tensor) -> Result<u64> {
        let bytes = tensor.numel * tensor.dtype.element_bits() / 8;
        let scratch = Scratch::on(self.team, device, bytes)?;
        let address = scratch.address;
        self.scratch.try_reserve(1).map_err(|_| NO_ROOM)?;
        self.scratch.push(scratch);
        Ok(address)
    }

    /// Sets `place` to device memory for the sum, in a dense layout.
    #[inline(never)]
    fn place_for_sum(&mut self, out: &Tensor, place: &mut Tensor) -> Result<()> {
        let (data, dtype) = (self.scratch(self.adder, out)?, out.dtype);
        let mut strides = [0; MAX_DIMS];
        let strides = &mut strides[..out.shape().len()];
        strides_of_copy(out.shape(), out.strides(), strides);
        let (shape, strides) = (out.shape(), Some(&*strides));
        let on = Place::Cuda(self.adder);
        place.assign(Parts { data, byte_offset: 0, place: on, dtype, shape, strides })
    }

    /// Copies a source to `lowest` first, with the layout of the sum. Not inlined: a tensor
    /// takes a KiB of stack.
    #[inline(never)]
    fn copy_before(
        &mut self,
        (kind, source): (MemoryKind, &Tensor),
        sum: &Tensor,
        (device, lowest): (i32, u64),
    ) -> Result<()> {
        let mut like = *sum;
        // The first element may not have the lowest address.
        like.address = lowest.wrapping_add(sum.address.wrapping_sub(sum.range()?.0));
        (like.data, like.place) = (lowest, Place::Cuda(device));
        self.before.add((kind, source), (MemoryKind::Device(device), &like))
    }

    /// Adds the sum of two or more tensors of one shape and type.
    #[inline(never)]
    pub fn item<'s>(
        &mut self,
        sources: impl Iterator<Item = (MemoryKind, &'s Tensor)> + Clone,
        (kind, out): (MemoryKind, &Tensor),
    ) -> Result<()> {
        if out.numel == 0 {
            return Ok(());
        }
        let (number, each) = number_of(out.dtype)?;
        // The sum is dense. It is computed in the output if possible.
        let num_sources = sources.clone().count();
        let is_aligned = |address: u64| address.is_multiple_of(number.bytes());
        let is_in_place = kind == MemoryKind::Device(self.adder)
            && is_aligned(out.address)
            && is_dense(out)?
            && !overlaps(sources.clone(), (kind, out))?;
        let mut kept = Tensor::none();
        let sum = match is_in_place {
            true => out,
            false => {
                self.place_for_sum(out, &mut kept)?;
                self.after.add((MemoryKind::Device(self.adder), &kept), (kind, out))?;
                &kept
            }
        };
        let dst = Form::of(sum, sum)?.map_or(sum.address, |form| form.dst);
        for (kind, source) in sources {
            let form =
                Form::of(source, sum)?.filter(|form| form.is_range() && is_aligned(form.src));
            let part = match (kind.device(), form) {
                (Some(device), Some(form)) => Part { device, address: form.src },
                (device, _) => {
                    let device = device.unwrap_or(self.adder);
                    let address = self.scratch(device, sum)?;
                    self.copy_before((kind, source), sum, (device, address))?;
                    Part { device, address }
                }
            };
            self.sources.try_reserve(1).map_err(|_| NO_ROOM)?;
            self.sources.push(part);
        }
        let dst = Part { device: self.adder, address: dst };
        self.items.try_reserve(1).map_err(|_| NO_ROOM)?;
        self.items.push(Item { number, elements: out.numel * each, sources: num_sources, dst });
        Ok(())
    }

    /// Queues all sums, with the copies before and after.
    pub fn run(&self) -> Result<()> {
        self.before.run(self.team)?;
        let mut sums = Vec::new();
        sums.try_reserve_exact(self.items.len()).map_err(|_| NO_ROOM)?;
        let mut rest = self.sources.as_slice();
        for item in &self.items {
            let (sources, others) = rest.split_at(item.sources);
            rest = others;
            let Item { number, elements, dst, .. } = *item;
            sums.push(Sum { number, elements, sources, dst });
        }
        add_all(self.team, &sums)?;
        self.after.run(self.team)
    }
}

/// Is the tensor dense: do its elements fill all bytes from the first to the last?
fn is_dense(tensor: &Tensor) -> Result<bool> {
    Ok(Form::of(tensor, tensor)?.is_none_or(|form| form.is_range()))
}

/// Does the output overlap a source? The first source may be exactly the output.
#[inline(never)]
fn overlaps<'s>(
    sources: impl Iterator<Item = (MemoryKind, &'s Tensor)>,
    (kind, out): (MemoryKind, &Tensor),
) -> Result<bool> {
    let (first, end) = out.range()?;
    for (index, (own, source)) in sources.enumerate() {
        let (own_first, own_end) = source.range()?;
        if own != kind || own_end <= first || end <= own_first {
            continue;
        }
        let is_itself =
            Form::of(source, out)?.is_none_or(|form| form.is_range() && form.is_identity());
        if index > 0 || !is_itself {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Queues sums, on the fast path if possible.
pub fn add_all(team: &Team, sums: &[Sum]) -> Result<()> {
    if sums.is_empty() || dispatch::sum(team, sums)? {
        return Ok(());
    }
    sums.iter().try_for_each(|sum| add_on_one(team, sum))
}

/// Adds on the device of the sum. Sources of other devices are copied there first, in limited
/// portions.
fn add_on_one(team: &Team, sum: &Sum) -> Result<()> {
    let device = sum.dst.device;
    let far = sum.sources.iter().filter(|part| part.device != device).count() as u64;
    let each = sum.number.bytes();
    // A multiple of 256 elements, so that each portion has the alignment of the whole.
    let most = (SCRATCH_BYTES / far.max(1) / each).max(1).next_multiple_of(256);
    let elements = most.min(sum.elements);
    let pitch = (elements * each).next_multiple_of(256);
    let scratch = Scratch::on(team, device, pitch * far)?;
    let mut sources = Vec::new();
    sources.try_reserve_exact(sum.sources.len()).map_err(|_| NO_ROOM)?;
    let mut begin = 0;
    while begin < sum.elements {
        let elements = elements.min(sum.elements - begin);
        let mut next = scratch.address;
        sources.clear();
        for part in sum.sources {
            let from = part.address + begin * each;
            if part.device == device {
                sources.push(Part { device, address: from });
                continue;
            }
            fallback::send_range(team, (part.device, from), (device, next), elements * each)?;
            sources.push(Part { device, address: next });
            next += pitch;
        }
        let dst = Part { device, address: sum.dst.address + begin * each };
        let part = Sum { number: sum.number, elements, sources: &sources, dst };
        if !dispatch::sum(team, &[part])? {
            return Err(Error::NotSupported { what: "adding on a device", by: "driver" });
        }
        begin += elements;
    }
    Ok(())
}

#[cfg(test)]
#[path = "reduce_tests.rs"]
mod tests;
