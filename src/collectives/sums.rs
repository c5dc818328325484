//! Sums of many tensors in one call.

use super::Tensors;
use super::check::{self, MemoryKind};
use super::coalesced::{Layout, kind_of};
use super::members::{self, Members, wait_for};
use super::moves::Moves;
use super::path::{Number, Part, Sum};
use super::reduce::{SumBatch, add_all, number_of, root_of};
use super::team::{Devices, INLINE_CAPACITY, Team};
use crate::base::error::{Error, Result, Which};
use crate::base::inline_vec::Few;
use crate::collectives::contiguous::ContiguousBytes;
use crate::collectives::outputs::{Draft, Outputs, Target, is_at};
use crate::collectives::sanitizer_events::{self, SanitizerEvents};
use crate::gpu::device::CURRENT;
use crate::gpu::gpus::Gpus;
use crate::tensor::{Place, Tensor};

const OPERATION: &str = "tcuda_comm_reduce_add_coalesced";
const NO_ROOM: Error = Error::OutOfHostMemory("the tensors of a collective");

/// Lists of tensors, one list per device, concatenated.
#[derive(Clone, Copy)]
struct Lists<'a> {
    tensors: Tensors<'a>,
    num_devices: usize,
    num_tensors: usize,
}

impl Lists<'_> {
    /// Indices of the tensors with this number in each list.
    fn column(&self, number: usize) -> impl Iterator<Item = usize> + use<> {
        (number..self.tensors.len).step_by(self.num_tensors)
    }
}

/// The tensors of one sum, and which of them is added first.
struct Column {
    tensors: Vec<(MemoryKind, Tensor)>,
    root: usize,
}

impl Column {
    fn with_room(num_devices: usize) -> Result<Column> {
        let mut tensors = Vec::new();
        tensors.try_reserve_exact(num_devices).map_err(|_| NO_ROOM)?;
        Ok(Column { tensors, root: 0 })
    }

    /// Reads and checks the tensors with this number in each list.
    #[inline(never)]
    fn read(
        &mut self,
        gpus: &Gpus,
        lists: Lists<'_>,
        number: usize,
        target: Target<'_>,
    ) -> Result<()> {
        self.tensors.clear();
        for index in lists.column(number) {
            let mut tensor = Tensor::none();
            (lists.tensors.read)(index, &mut tensor)?;
            if let Some((_, first)) = self.tensors.first() {
                let which = Which::of("tensors", index);
                check::require_dtype(which, &tensor, first.dtype)?;
                check::require_shape(which, &tensor, first.shape())?;
            }
            self.tensors.push((MemoryKind::of(gpus, &tensor)?, tensor));
        }
        self.root = root_of(self.tensors.iter().map(|(kind, _)| *kind), target);
        Ok(())
    }

    /// The tensors in the order in which they are added.
    fn with_ordering(&self) -> impl Iterator<Item = (MemoryKind, &Tensor)> + Clone {
        let others = self.tensors.iter().enumerate().filter(|(index, _)| *index != self.root);
        let first = std::iter::once(&self.tensors[self.root]);
        first.chain(others.map(|(_, other)| other)).map(|(kind, tensor)| (*kind, tensor))
    }
}

/// The columns of all sums, while all tensors are contiguous and on devices.
struct Columns {
    /// Column by column; in each the root is the first.
    sources: Vec<Part>,
    numbers: Vec<(Number, u64)>,
    are_flat: bool,
}

impl Columns {
    fn with_room(tensors: usize, columns: usize) -> Result<Columns> {
        let (mut sources, mut numbers) = (Vec::new(), Vec::new());
        sources.try_reserve_exact(tensors).map_err(|_| NO_ROOM)?;
        numbers.try_reserve_exact(columns).map_err(|_| NO_ROOM)?;
        Ok(Columns { sources, numbers, are_flat: true })
    }

    /// Reads and checks all tensors. Adds their devices to `members`, and the sums to `layout`.
    /// Returns the first device that has a tensor, and all such devices.
    #[inline(never)]
    fn read<'a>(
        &mut self,
        gpus: &'a Gpus,
        lists: Lists<'_>,
        target: Target<'a>,
        members: &mut Members<'a>,
        layout: &mut Layout,
    ) -> Result<(Option<i32>, Devices)> {
        let tensors = lists.tensors;
        let (mut first_device, mut devices) = (None, Devices::default());
        let (mut first, mut next) = (Tensor::none(), Tensor::none());
        let (mut kinds, mut flats) = (
            Few::<MemoryKind, INLINE_CAPACITY>::new(),
            Few::<Option<ContiguousBytes>, INLINE_CAPACITY>::new(),
        );
        for number in 0..lists.num_tensors {
            kinds.clear();
            flats.clear();
            for index in lists.column(number) {
                let tensor = match index == number {
                    true => {
                        (tensors.read)(index, &mut first)?;
                        &first
                    }
                    false => {
                        (tensors.read)(index, &mut next)?;
                        let which = Which::of("tensors", index);
                        check::require_dtype(which, &next, first.dtype)?;
                        check::require_shape(which, &next, first.shape())?;
                        &next
                    }
                };
                let kind = kind_of(gpus, tensor, own_target(gpus, tensor)?)?;
                members.add_kind(kind)?;
                first_device = first_device.or(kind.device());
                kind.device().into_iter().for_each(|device| devices.add(device));
                kinds.push(kind)?;
                flats.push(ContiguousBytes::of(kind, tensor))?;
            }
            let root = root_of(kinds.iter().copied(), target);
            if root > 0 {
                (tensors.read)(number + root * lists.num_tensors, &mut first)?;
            }
            self.add(&flats, root, &first)?;
            let is_own = lists.num_devices == 1 && kinds.iter().all(|kind| is_at(*kind, target));
            layout.add(&first, is_own)?;
        }
        Ok((first_device, devices))
    }

    /// Adds the next column.
    fn add(
        &mut self,
        flats: &[Option<ContiguousBytes>],
        root: usize,
        first: &Tensor,
    ) -> Result<()> {
        let (number, each) = number_of(first.dtype)?;
        self.numbers.push((number, first.numel * each));
        let others = (0..flats.len()).filter(|index| *index != root);
        for index in std::iter::once(root).chain(others) {
            match flats[index].and_then(|flat| flat.kind.device().zip(Some(flat.address))) {
                Some((device, address)) if address.is_multiple_of(number.bytes()) => {
                    self.sources.push(Part { device, address });
                }
                _ => self.are_flat = false,
            }
        }
        Ok(())
    }
}

/// Adds many tensors into new outputs.
pub fn reduce_add_coalesced<'a>(
    gpus: &'a Gpus,
    tensors: Tensors<'_>,
    num_devices: usize,
    destination: i32,
    buffer_bytes: u64,
) -> Result<Outputs<'a>> {
    check::require_some("num_devices", num_devices)?;
    let num_tensors = tensors.len / num_devices;
    let target = check::target(gpus, destination)?;
    let mut members = Members::new(gpus);
    members.add_target(target)?;
    let mut layout = Layout::with_room(num_tensors, buffer_bytes)?;
    let mut columns = Columns::with_room(tensors.len, num_tensors)?;
    let lists = Lists { tensors, num_devices, num_tensors };
    let (first, mut writers) = columns.read(gpus, lists, target, &mut members, &mut layout)?;
    // For the host, the first device that has a tensor adds.
    let adder = match target.kind().device().or(first) {
        Some(adder) => adder,
        None => gpus.device(CURRENT)?.ordinal(),
    };
    members.add_device(adder)?;
    let team = members.team()?;
    let draft = Draft::new(gpus, num_tensors, layout.num_sizes(), layout.blocks.len())?;
    if columns.are_flat && num_devices > 1 && matches!(target, Target::Device(..)) {
        return add_flat((&team, adder), &columns, num_devices, (draft, target), &layout);
    }
    let outs = add_any((&team, adder), lists, (draft, target), &layout)?;
    if matches!(target, Target::Host) {
        writers.add(adder);
        wait_for(&team, writers)?;
    }
    Ok(outs)
}

/// Adds columns of contiguous tensors on devices.
#[inline(never)]
fn add_flat<'a>(
    (team, adder): (&Team<'_>, i32),
    columns: &Columns,
    num_devices: usize,
    (mut draft, target): (Draft<'a>, Target<'_>),
    layout: &Layout,
) -> Result<Outputs<'a>> {
    let blocks = layout.allocate(&mut draft, target)?;
    let mut sums = Vec::new();
    sums.try_reserve_exact(layout.tensors.len()).map_err(|_| NO_ROOM)?;
    let sources = columns.sources.chunks_exact(num_devices);
    let all = layout.tensors.iter().zip(&columns.numbers).zip(sources);
    for ((placed, (number, elements)), sources) in all {
        let address = layout.slice(&mut draft, target, &blocks, placed)?;
        let dst = Part { device: adder, address };
        sums.push(Sum { number: *number, elements: *elements, sources, dst });
    }
    let outs = draft.finish()?;
    add_all(team, &sums)?;
    sanitizer_events::report(team, OPERATION, |events| {
        for Sum { number, elements, sources, dst } in &sums {
            let bytes = elements * number.bytes();
            let mut read = |part: &Part| {
                events.read_range(MemoryKind::Device(part.device), part.address, bytes);
            };
            sources.iter().for_each(&mut read);
            events.written_range(MemoryKind::Device(dst.device), dst.address, bytes);
        }
    });
    Ok(outs)
}

/// Adds columns of tensors of any layout, one after the other.
#[inline(never)]
fn add_any<'a>(
    (team, adder): (&Team<'_>, i32),
    lists: Lists<'_>,
    (mut draft, target): (Draft<'a>, Target<'_>),
    layout: &Layout,
) -> Result<Outputs<'a>> {
    let mut column = Column::with_room(lists.num_devices)?;
    let mut batch = SumBatch::new(team, adder);
    batch.reserve(lists.tensors.len, lists.num_tensors)?;
    let mut moves = Moves::new();
    let mut blocks = None;
    let mut events = SanitizerEvents::begin(OPERATION);
    for (number, placed) in layout.tensors.iter().enumerate() {
        column.read(team.gpus(), lists, number, target)?;
        for (kind, tensor) in &column.tensors {
            members::record(team, *kind, tensor)?;
        }
        let (kind, first) = &column.tensors[column.root];
        if lists.num_devices == 1 && is_at(*kind, target) {
            draft.alias(first)?;
            continue;
        }
        if blocks.is_none() {
            blocks = Some(layout.allocate(&mut draft, target)?);
        }
        let address = layout.slice(&mut draft, target, blocks.as_deref().unwrap_or(&[]), placed)?;
        add_column(&column, (target, address), (&mut moves, &mut batch), &mut events)?;
    }
    let outs = draft.finish()?;
    moves.run(team)?;
    batch.run()?;
    if let Some(events) = &events {
        events.report(team);
    }
    Ok(outs)
}

#[inline(never)]
fn add_column(
    column: &Column,
    (target, address): (Target<'_>, u64),
    (moves, batch): (&mut Moves, &mut SumBatch<'_, '_>),
    events: &mut Option<SanitizerEvents>,
) -> Result<()> {
    let (kind, first) = &column.tensors[column.root];
    let mut out = Tensor::none();
    first.set_contiguous(address, &mut out)?;
    if let Some(events) = events {
        column.tensors.iter().for_each(|(kind, tensor)| events.read(*kind, tensor));
        events.written(target.kind(), &out);
    }
    match column.tensors.len() {
        1 => moves.add((*kind, first), (target.kind(), &out)),
        _ => batch.item(column.with_ordering(), (target.kind(), &out)),
    }
}

/// The current stream of the device that the tensor declares.
fn own_target<'a>(gpus: &'a Gpus, tensor: &Tensor) -> Result<Target<'a>> {
    match tensor.place {
        Place::Cuda(device) => check::target(gpus, device),
        _ => Ok(Target::Host),
    }
}
