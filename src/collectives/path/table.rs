//! The parameters of the kernels in `kernels/comm_*.cu`: a table of entries, which are divided into
//! tiles for the thread blocks.

use super::loaded::Kernel;
use super::{Dim, Number, Rows};
use crate::base::error::Result;
use crate::base::place::{try_box_at, write_fields};
use crate::collectives::team::Team;
use crate::driver::sys::CUfunction;
use crate::gpu::stream::Stream;
use std::ffi::c_void;
use std::mem::MaybeUninit;

/// Words of a short table, as in `kernels/comm.cuh`.
pub const FEW: usize = 60;
/// Words of a long table.
pub const MANY: usize = 504;

/// Threads per thread block; the kernels are compiled for at most this many.
pub const BLOCK: u32 = 256;

/// Vectors per thread for large work: the loads that a thread has in flight.
const VECTORS: u64 = 4;

/// With fewer vectors than this, each thread has one, so that there are more thread blocks.
const MANY_VECTORS: u64 = 1 << 18;

/// The most thread blocks, which occupy any GPU; each then loops over tiles.
const MAX_BLOCKS: u32 = 1024;

/// The most items of an entry, because tiles are counted with 32 bits.
pub const MAX_ITEMS: u64 = 1 << 30;

/// A range of bytes divided into vectors, as in `kernels/comm.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Bytes of a vector: 16, 4 or 1.
    pub vector: u64,
    /// Bytes before the first aligned vector.
    pub head: u64,
    /// Number of aligned vectors.
    pub vectors: u64,
    /// Bytes after the last vector.
    pub tail: u64,
}

impl Span {
    /// `differences`: the bits in which addresses differ that are accessed together.
    pub fn new(dst: u64, differences: u64, bytes: u64) -> Span {
        let vector = match differences {
            _ if differences.is_multiple_of(16) => 16,
            _ if differences.is_multiple_of(4) => 4,
            _ => 1,
        };
        let head = (dst.wrapping_neg() % vector).min(bytes);
        let vectors = (bytes - head) / vector;
        Span { vector, head, vectors, tail: bytes - head - vectors * vector }
    }
}

/// The table of a kernel launch. The caller checks that entries fit.
pub struct Table {
    kernel: Kernel,
    /// Initialised up to `end`, and the last `used` words. The first two are written by `close`.
    words: [MaybeUninit<u64>; MANY],
    /// Index of the next entry; for strided elements, of its offset.
    end: usize,
    entries: u32,
    /// High half of the first word: the number of targets, or of sources of a sum.
    places: u32,
    /// The bits in which the targets differ from the first.
    apart: u64,
    tile: u64,
    tiles: u64,
    /// Words of the entries of strided elements.
    used: usize,
}

impl Table {
    /// An empty table. `bytes`: the size of the whole work, which decides how it is divided. In
    /// heap memory, because it is large for the stack.
    pub fn new(kernel: Kernel, bytes: u64) -> Result<Box<Table>> {
        let write = |place| {
            let each = if bytes / 16 < MANY_VECTORS { 1 } else { VECTORS };
            write_fields!(place, Table {
                kernel: kernel,
                end: 2,
                entries: 0,
                places: 0,
                apart: 0,
                tile: u64::from(BLOCK) * each,
                tiles: 0,
                used: 0,
                @ words: |_| (),
            });
            Ok(())
        };
        // SAFETY: writes all fields except the words, which may be uninitialised.
        unsafe { try_box_at("what a collective moves", write) }
    }

    /// A table for ranges that go to several places: `first` and `others`.
    pub fn with_targets(
        bytes: u64,
        first: u64,
        others: impl Iterator<Item = u64>,
    ) -> Result<Box<Table>> {
        let mut table = Table::new(Kernel::Spread, bytes)?;
        for other in others {
            let distance = other.wrapping_sub(first);
            table.write([distance]);
            table.apart |= distance;
        }
        table.places = table.end as u32 - 1;
        Ok(table)
    }

    /// Removes all entries of a table with targets.
    pub fn clear_entries(&mut self) {
        self.end = self.places as usize + 1;
        (self.entries, self.tiles) = (0, 0);
    }

    /// A table for sums of `sources` sources each.
    pub fn of_sums(number: Number, bytes: u64, sources: usize) -> Result<Box<Table>> {
        let mut table = Table::new(Kernel::Sum(number), bytes)?;
        table.places = sources as u32;
        Ok(table)
    }

    /// Does it have no entries?
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Is there space for an entry of this many words?
    fn has_room(&self, words: usize) -> bool {
        self.end + words <= MANY
    }

    fn write<const WORDS: usize>(&mut self, words: [u64; WORDS]) {
        self.words[self.end..self.end + WORDS].copy_from_slice(&words.map(MaybeUninit::new));
        self.end += WORDS;
    }

    fn push<const WORDS: usize>(&mut self, words: [u64; WORDS]) {
        self.write(words);
        self.entries += 1;
    }

    /// Assigns tiles to an entry. Returns its first tile in the high half of a word.
    fn take_tiles(&mut self, items: u64) -> u64 {
        let first = self.tiles << 32;
        self.tiles += items.div_ceil(self.tile).max(1);
        first
    }

    /// Adds a range of at most [`MAX_ITEMS`] bytes. False: no space.
    pub fn add_range(&mut self, src: u64, dst: u64, bytes: u64) -> bool {
        if !self.has_room(3) {
            return false;
        }
        let span = Span::new(dst, self.apart | (src ^ dst), bytes);
        let first = self.take_tiles(span.vectors);
        self.push([src, dst, bytes | first]);
        true
    }

    /// Adds rows of at most [`MAX_ITEMS`] bytes. False: no space.
    pub fn add_rows(&mut self, rows: &Rows) -> bool {
        if !self.has_room(6) {
            return false;
        }
        let (src, dst) = (rows.src.address, rows.dst.address);
        let pitches = if rows.rows > 1 { rows.src_pitch | rows.dst_pitch } else { 0 };
        let span = Span::new(dst, pitches | (src ^ dst), rows.width);
        let first = self.take_tiles(rows.rows * (span.vectors + span.head + span.tail));
        self.push([src, dst, rows.width, rows.src_pitch, rows.dst_pitch, rows.rows | first]);
        true
    }

    /// Adds at most [`MAX_ITEMS`] strided elements. False: no space.
    pub fn add_strided(&mut self, src: u64, dst: u64, element: u64, dims: &[Dim]) -> bool {
        let words = 4 + 3 * dims.len();
        if !self.has_room(1 + self.used + words) {
            return false;
        }
        // Entries differ in length. They grow down from the end of the words, until the table is
        // closed.
        let elements: u64 = dims.iter().map(|dim| dim.0).product();
        let first = self.take_tiles(elements);
        self.used += words;
        let at = MANY - self.used;
        let head =
            [src, dst, elements | (dims.len() as u64) << 32, element.trailing_zeros().into()];
        self.words[at..at + 4].copy_from_slice(&head.map(MaybeUninit::new));
        for (to, (size, from, by)) in self.words[at + 4..].chunks_exact_mut(3).zip(dims) {
            to.copy_from_slice(&[*size, *from as u64, *by as u64].map(MaybeUninit::new));
        }
        self.push([at as u64 | first]);
        true
    }

    /// Adds a sum of at most [`MAX_ITEMS`] elements. False: no space. All sums of a table have the
    /// same number of sources.
    pub fn add_sum(
        &mut self,
        dst: u64,
        elements: u64,
        sources: impl ExactSizeIterator<Item = u64> + Clone,
    ) -> bool {
        let Kernel::Sum(number) = self.kernel else { return false };
        if !self.has_room(2 + sources.len()) {
            return false;
        }
        let differences = sources.clone().fold(0, |all, source| all | (source ^ dst));
        let size = number.bytes();
        let span = Span::new(dst, differences, elements * size);
        let vectors =
            if span.vector == 16 && span.head.is_multiple_of(size) { span.vectors } else { 0 };
        let first = self.take_tiles(vectors + elements - vectors * (16 / size));
        self.push([dst, elements | first]);
        for source in sources {
            self.write([source]);
        }
        true
    }

    /// Completes the table. Returns its words, and whether it is a long one.
    pub fn close(&mut self) -> (&[u64], bool) {
        self.words[0].write(u64::from(self.places) << 32 | u64::from(self.entries));
        self.words[1].write(self.tile | self.tiles << 32);
        if self.used > 0 {
            let (from, by) = (MANY - self.used, MANY - self.used - self.end);
            self.words.copy_within(from.., self.end);
            for entry in &mut self.words[2..self.end] {
                // SAFETY: the entries up to here were written.
                *unsafe { entry.assume_init_mut() } -= by as u64;
            }
            self.end += self.used;
            self.used = 0;
        }
        let is_long = self.end > FEW;
        let words = if is_long { MANY } else { FEW };
        // The rest is unused, but the driver copies it.
        self.words[self.end..words].fill(MaybeUninit::new(0));
        // SAFETY: the words of entries were written, and the rest was filled just now.
        let words = unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), words) };
        (words, is_long)
    }

    /// Number of thread blocks.
    pub fn grid(&self) -> u32 {
        self.tiles.clamp(1, u64::from(MAX_BLOCKS)) as u32
    }

    /// Launches the kernel on a stream.
    pub fn launch(&mut self, team: &Team, stream: &Stream) -> Result<()> {
        let device = team.gpus().device(stream.device())?;
        let grid = self.grid();
        let kernel = self.kernel;
        let (words, is_long) = self.close();
        let function: CUfunction = device.comm().function(device, kernel, is_long)?;
        team.enter(device)?;
        let mut parameters = [words.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: the kernel has this one parameter, which the driver copies; the caller guarantees
        // the ranges, and the stream is alive.
        unsafe {
            device.driver().cuLaunchKernel(
                function,
                grid,
                1,
                1,
                BLOCK,
                1,
                1,
                0,
                stream.native(),
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }?;
        Ok(())
    }
}

impl Number {
    /// Bytes of a number.
    pub fn bytes(self) -> u64 {
        match self {
            Number::Bool | Number::Int8 => 1,
            Number::Int16 | Number::F16 | Number::BF16 => 2,
            Number::Int32 | Number::F32 => 4,
            Number::Int64 | Number::F64 => 8,
        }
    }
}
