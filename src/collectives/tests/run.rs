//! Runs one call on a machine of its own, in the middle of late work. Its inputs are written just
//! before it, its outputs are read just after it, and then all this memory is overwritten.

use super::api::{self, Graph, Outcome, Stream};
use super::buffer::{Buffer, Filled, Layout, Place, Shape};
use super::case::Case;
use super::number;
use super::random::Random;
use super::reference::{Array, Kind, element_bytes, numel};
use crate::driver::{Call, inject};
use crate::ffi::tensor::tcuda_tensor;

/// A driver call that is omitted but reports success.
#[derive(Clone, Copy, Debug)]
pub struct Omitted {
    pub call: Call,
    /// 1 for the first call.
    pub number: u64,
}

/// What a successful run has counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    pub waits: u64,
    pub records: u64,
    /// Was a call omitted?
    pub was_omitted: bool,
}

/// A comparison to make at the end of the run.
struct Pending {
    what: String,
    expected: Array,
    read: Read,
}

enum Read {
    /// Elements that were read already.
    Now(Array),
    /// A tensor that the library filled in, from a copy in pinned memory.
    Filled(Filled, usize),
    /// A block of the test, from a copy in pinned memory.
    Image(usize, usize),
    /// A block in host memory.
    Host(usize),
}

/// The state of a run.
pub struct World<'a> {
    pub case: &'a Case,
    pub random: Random,
    omitted: Option<Omitted>,
    pub facts: Facts,
    currents: Vec<Stream>,
    foreign: Vec<Stream>,
    made: Vec<Stream>,
    /// Pinned memory that is used until the end.
    staged: Vec<usize>,
    pub sources: Vec<Buffer>,
    pub outs: Vec<Buffer>,
    guards: Vec<(usize, usize)>,
    pub graph: Option<Graph>,
    pending: Vec<Pending>,
    filled: Vec<tcuda_tensor>,
}

const GUARD: usize = 3000;

impl<'a> World<'a> {
    pub fn new(case: &'a Case, omitted: Option<Omitted>) -> Outcome<World<'a>> {
        let Case { devices, peers, schedule, .. } = case;
        api::select(&format!("devices={devices},memory=96MiB,peers={peers},schedule={schedule}"))?;
        let mut world = World {
            case,
            random: Random(case.seed),
            omitted,
            facts: Facts::default(),
            currents: Vec::new(),
            foreign: Vec::new(),
            made: Vec::new(),
            staged: Vec::new(),
            sources: Vec::new(),
            outs: Vec::new(),
            guards: Vec::new(),
            graph: None,
            pending: Vec::new(),
            filled: Vec::new(),
        };
        api::device_set(world.random.below(case.devices as usize) as i32)?;
        for device in 0..case.devices {
            if case.own_streams {
                let stream = world.stream(device)?;
                api::make_current(stream)?;
            }
            world.currents.push(api::current(device)?);
            let other =
                if case.foreign { world.stream(device)? } else { world.currents[device as usize] };
            world.foreign.push(other);
        }
        Ok(world)
    }

    pub fn stream(&mut self, device: i32) -> Outcome<Stream> {
        let stream = api::stream(device)?;
        self.made.push(stream);
        Ok(stream)
    }

    /// The current stream of a device.
    pub fn current(&self, device: i32) -> Stream {
        self.currents[device as usize]
    }

    fn pinned(&mut self, bytes: usize) -> Outcome<usize> {
        let address = api::host_malloc(bytes.max(1))?;
        self.staged.push(address);
        Ok(address)
    }

    pub fn draw(&mut self, kind: Kind, shape: &[i64]) -> Array {
        let random = &mut self.random;
        let bytes = number::draw(kind, &mut || random.next(), numel(shape));
        Array { kind, shape: shape.to_vec(), bytes }
    }

    fn layout(&mut self, shape: &[i64], irregular: Shape) -> Layout {
        let kind = if self.case.irregular && self.random.below(3) > 0 {
            irregular
        } else {
            Shape::Compact
        };
        Layout::choose(shape, kind, &mut self.random)
    }

    /// Writes a block late, in the order of its stream; host memory is written at once.
    fn write(&mut self, buffer: &mut Buffer, image: &[u8]) -> Outcome<()> {
        if let Place::Device(_) = buffer.place {
            let staged = self.pinned(image.len())?;
            // SAFETY: pinned memory of this many bytes, owned by this run.
            unsafe { (staged as *mut u8).copy_from_nonoverlapping(image.as_ptr(), image.len()) };
            api::fill(buffer.address, 0x11, buffer.bytes, buffer.stream)?;
            return api::copy(buffer.address, staged, buffer.bytes, buffer.stream);
        }
        buffer.host().copy_from_slice(image);
        Ok(())
    }

    /// Adds a source with random elements. Returns them as its layout has them.
    pub fn source(&mut self, place: Place, kind: Kind, shape: &[i64]) -> Outcome<Array> {
        let (array, layout) = (self.draw(kind, shape), self.layout(shape, Shape::Repeats));
        let stream = match place {
            Place::Device(device) => self.foreign[device as usize],
            _ => Stream::CURRENT,
        };
        let mut buffer = Buffer::new(place, kind, layout, stream, &mut self.random)?;
        let array = buffer.repeated(&array);
        let image = buffer.image(&array);
        self.write(&mut buffer, &image)?;
        if let Place::Device(device) = place {
            self.order(self.current(device), buffer.stream)?;
        }
        self.sources.push(buffer);
        Ok(array)
    }

    /// Overwrites each source with new elements, in the order of its stream.
    pub fn write_sources_anew(&mut self) -> Outcome<Vec<Array>> {
        let mut sources = std::mem::take(&mut self.sources);
        let mut arrays = Vec::new();
        for source in &mut sources {
            let array = self.draw(source.kind, &source.layout.shape.clone());
            arrays.push(source.repeated(&array));
            let image = source.image(&arrays[arrays.len() - 1]);
            self.write(source, &image)?;
        }
        self.sources = sources;
        Ok(arrays)
    }

    fn order(&self, stream: Stream, after: Stream) -> Outcome<()> {
        if stream == after { Ok(()) } else { api::wait_stream(stream, after) }
    }

    /// Adds an output of the caller, which is written on `stream`; NULL: the current stream.
    pub fn out(&mut self, place: Place, kind: Kind, shape: &[i64], stream: Stream) -> Outcome<()> {
        let layout = self.layout(shape, Shape::Odd);
        let stream = match place {
            Place::Device(device) if stream == Stream::CURRENT => self.current(device),
            _ => stream,
        };
        let mut buffer = Buffer::new(place, kind, layout, stream, &mut self.random)?;
        let none = Array { kind, shape: shape.to_vec(), bytes: self.draw(kind, shape).bytes };
        let image = buffer.image(&none);
        self.write(&mut buffer, &image)?;
        self.outs.push(buffer);
        Ok(())
    }

    pub fn source_tensors(&mut self) -> Vec<tcuda_tensor> {
        self.sources.iter_mut().map(Buffer::tensor).collect()
    }

    pub fn out_tensors(&mut self) -> Vec<tcuda_tensor> {
        self.outs.iter_mut().map(Buffer::tensor).collect()
    }

    /// Allocates and frees blocks on each stream, with late work in between.
    fn churn(&mut self) -> Outcome<()> {
        let (each, tensors) =
            (numel(&self.case.shape) * element_bytes(self.case.kind), self.case.tensors.min(4));
        let bytes = each * tensors;
        let streams: Vec<(i32, Stream)> = (0..).zip(self.currents.iter().copied()).collect();
        for (device, stream) in streams {
            let mut blocks = Vec::new();
            // Among them sizes that the call will allocate: small blocks are only reused for the
            // same size.
            let whole = self.case.list.len().max(1) * bytes.max(1);
            let aligned = (tensors * each.next_multiple_of(512)).max(1);
            for bytes in [512, 2 * bytes + 512, whole, aligned, bytes.max(1), bytes + 4000] {
                let block = api::malloc(bytes, device, stream)?;
                api::fill(block, 0x77, bytes, stream)?;
                blocks.push(block);
            }
            blocks.into_iter().try_for_each(api::free)?;
        }
        // The host may write pinned memory as soon as it gets it.
        let mut blocks = Vec::new();
        for bytes in [512, bytes.max(1), 4096, 2 * bytes + 512] {
            let block = api::host_malloc(bytes)?;
            // SAFETY: pinned memory of this many bytes, owned by this test.
            unsafe { (block as *mut u8).write_bytes(0x99, bytes) };
            blocks.push(block);
        }
        blocks.into_iter().try_for_each(api::host_free)
    }

    /// Allocates guards beside the outputs, and queues late work.
    pub fn prepare(&mut self) -> Outcome<()> {
        for device in 0..self.case.devices {
            let stream = self.current(device);
            let guard = api::malloc(GUARD, device, stream)?;
            api::fill(guard, 0xC7, GUARD, stream)?;
            let copy = self.pinned(GUARD)?;
            self.guards.push((guard, copy));
        }
        self.churn()
    }

    /// Makes the call, between late work.
    pub fn call<R>(&mut self, call: impl FnOnce(&mut World<'a>) -> Outcome<R>) -> Outcome<R> {
        if self.graph.is_none() {
            self.prepare()?;
        }
        let count = |call: Call| -> u64 {
            let inside = crate::base::thread::enter().unwrap();
            let driver = crate::gpu::gpus::existing_driver(&inside);
            driver.map_or(0, |driver| driver.count(Some(call as usize)))
        };
        let before = (count(Call::cuStreamWaitEvent), count(Call::cuEventRecord), inject::fired());
        if let Some(omitted) = self.omitted {
            // Selects an omitted call, which reports success.
            assert!(inject::set(Some(omitted.call as usize), omitted.number, 0, false));
        }
        let outcome = call(self);
        if let Some(omitted) = self.omitted {
            inject::set(Some(omitted.call as usize), 0, 0, false);
        }
        self.facts.waits = count(Call::cuStreamWaitEvent) - before.0;
        self.facts.records = count(Call::cuEventRecord) - before.1;
        self.facts.was_omitted = inject::fired() > before.2;
        outcome
    }

    /// Reads an output of the library on a stream or the current one, and releases it at the end.
    pub fn expect(
        &mut self,
        what: String,
        out: tcuda_tensor,
        expected: Array,
        stream: Stream,
    ) -> Outcome<()> {
        let filled = Filled::of(&out);
        self.filled.push(out);
        if !filled.is_dense() && !self.is_alias(&out) {
            return Err(format!(
                "{what}: {:?} with strides {:?} has gaps",
                filled.shape, filled.strides
            ));
        }
        let read = match out.device.device_type {
            2 => {
                let device = out.device.device_id;
                let stream = if stream == Stream::CURRENT { self.current(device) } else { stream };
                let copy = self.pinned(filled.span)?;
                api::copy(copy, filled.lowest, filled.span, stream)?;
                Read::Filled(filled, copy)
            }
            _ if filled.span == 0 => Read::Now(filled.read(&[])),
            _ => Read::Now(filled.read(host_bytes(filled.lowest, filled.span))),
        };
        self.pending.push(Pending { what, expected, read });
        Ok(())
    }

    /// Is it in the memory of a source?
    pub fn is_alias(&self, out: &tcuda_tensor) -> bool {
        let address = out.data as usize + out.byte_offset as usize;
        self.sources
            .iter()
            .any(|source| (source.address..source.address + source.bytes.max(1)).contains(&address))
    }

    /// Reads an output of the caller.
    pub fn expect_out(&mut self, index: usize, expected: Array) -> Outcome<()> {
        let (place, address, bytes) =
            (self.outs[index].place, self.outs[index].address, self.outs[index].bytes);
        let read = match place {
            Place::Device(_) => {
                let (stream, copy) = (self.outs[index].stream, self.pinned(bytes)?);
                api::copy(copy, address, bytes, stream)?;
                // A late write of the call would hit this fill.
                api::fill(address, 0x44, bytes, stream)?;
                Read::Image(index, copy)
            }
            Place::Pinned => Read::Host(index),
            Place::Pageable => {
                let image = self.outs[index].host().to_vec();
                self.outs[index].host().fill(0x44);
                Read::Now(self.outs[index].read(&image)?)
            }
        };
        self.pending.push(Pending { what: format!("out {index}"), expected, read });
        Ok(())
    }

    /// Overwrites or frees the sources right after the call.
    fn overwrite_sources(&mut self) -> Outcome<()> {
        for index in 0..self.sources.len() {
            let (address, bytes) = (self.sources[index].address, self.sources[index].bytes);
            let device = match self.sources[index].place {
                Place::Device(device) => device,
                Place::Pageable => {
                    // The call has read pageable memory before it returned.
                    self.sources[index].host().fill(0x22);
                    continue;
                }
                Place::Pinned => {
                    // The block is only reused when all reads are complete.
                    api::host_free(address)?;
                    self.sources[index].address = api::host_malloc(bytes)?;
                    self.sources[index].host().fill(0x33);
                    continue;
                }
            };
            // The stream that owns the block has no record of the other stream; only the library
            // has.
            let stream = self.foreign[device as usize];
            let is_aliased = self.filled.iter().any(|out| {
                (address..address + bytes).contains(&(out.data as usize + out.byte_offset as usize))
            });
            if is_aliased && stream != self.current(device) {
                // The host reads the alias on the current stream, which the library has not
                // recorded.
                continue;
            }
            if stream == self.current(device) && self.random.one_in(2) {
                api::fill(address, 0x33, bytes, stream)?;
                continue;
            }
            api::free(address)?;
            let block = api::malloc(bytes, device, stream)?;
            api::fill(block, 0x33, bytes, stream)?;
            self.sources[index].address = block;
        }
        Ok(())
    }

    /// Waits, compares the results, and frees everything.
    pub fn end(&mut self) -> Outcome<Facts> {
        for index in 0..self.guards.len() {
            let (guard, copy) = self.guards[index];
            api::copy(copy, guard, GUARD, self.currents[index])?;
        }
        self.overwrite_sources()?;
        self.churn()?;
        // Late work runs when it is waited for: in another order for each seed.
        let first = self.random.below(self.case.devices as usize) as i32;
        for device in 0..self.case.devices {
            api::synchronize((first + device) % self.case.devices)?;
        }
        for index in 0..self.pending.len() {
            self.compare(index)?;
        }
        for (device, (guard, copy)) in self.guards.iter().enumerate() {
            if host_bytes(*copy, GUARD).iter().any(|byte| *byte != 0xC7) {
                return Err(format!("memory beside the tensors of device {device} was written"));
            }
            api::free(*guard)?;
        }
        self.graph.take().map_or(Ok(()), api::destroy_graph)?;
        let mut filled = std::mem::take(&mut self.filled);
        // In random order.
        (1..filled.len()).for_each(|index| filled.swap(index, self.random.below(index + 1)));
        filled.iter_mut().try_for_each(api::release)?;
        self.sources.iter_mut().chain(&mut self.outs).try_for_each(Buffer::free)?;
        self.staged.drain(..).try_for_each(api::host_free)?;
        for device in 0..self.case.devices {
            let left = api::allocated(device)?;
            if left != 0 {
                return Err(format!("{left} bytes of device {device} are allocated at the end"));
            }
        }
        self.made.drain(..).try_for_each(api::destroy)?;
        Ok(self.facts)
    }

    fn compare(&mut self, index: usize) -> Outcome<()> {
        let Pending { what, read, .. } = &self.pending[index];
        let found = match read {
            Read::Now(array) => array.clone(),
            Read::Filled(filled, copy) => filled.read(host_bytes(*copy, filled.span)),
            Read::Image(out, copy) => {
                let out = &self.outs[*out];
                out.read(host_bytes(*copy, out.bytes)).map_err(|why| format!("{what}: {why}"))?
            }
            Read::Host(out) => {
                let image = self.outs[*out].host().to_vec();
                self.outs[*out].read(&image).map_err(|why| format!("{what}: {why}"))?
            }
        };
        if self.pending[index].expected.is_same(&found) {
            return Ok(());
        }
        let Pending { what, expected, .. } = &self.pending[index];
        if (&expected.kind, &expected.shape) != (&found.kind, &found.shape) {
            return Err(format!(
                "{what}: {:?} {:?}, expected {:?} {:?}",
                found.kind, found.shape, expected.kind, expected.shape
            ));
        }
        let element = element_bytes(expected.kind);
        let pairs = expected.bytes.chunks(element).zip(found.bytes.chunks(element));
        let wrong: Vec<usize> = pairs
            .enumerate()
            .filter(|(_, (a, b))| !number::is_same(expected.kind, a, b))
            .map(|(index, _)| index)
            .collect();
        let first = wrong[0] * element;
        Err(format!(
            "{what}: {} of {} elements differ, first {}: {:x?}, expected {:x?}",
            wrong.len(),
            expected.bytes.len() / element,
            wrong[0],
            &found.bytes[first..first + element],
            &expected.bytes[first..first + element]
        ))
    }
}

fn host_bytes<'a>(address: usize, bytes: usize) -> &'a [u8] {
    // SAFETY: host memory of this many bytes, which is not written any more.
    unsafe { std::slice::from_raw_parts(address as *const u8, bytes) }
}
