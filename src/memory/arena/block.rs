//! Blocks: ranges of an arena, linked in address order. Sizes and positions are in units of 512
//! bytes. A block is identified by its index; 0 is no block.

use crate::base::error::Result;
use crate::base::region::{Region, Zeroed};
use crate::memory::config::size::{Request, UNIT};

/// No block.
pub const NONE: u32 = 0;

/// The state of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// An index that is not in use.
    Vacant = 0,
    /// Mapped and free.
    Free = 1,
    /// Allocated to the host.
    Allocated = 2,
    /// Freed, but other streams may still use it.
    Pending = 3,
    /// Addresses without memory.
    Hole = 4,
    /// Free, and not yet merged with its neighbours (`quick.rs`).
    Quick = 5,
    /// Mapped; its memory is remapped at other addresses meanwhile.
    Lent = 6,
    /// Free in the order of another stream than the arena's (`foreign_free.rs`).
    ForeignFree = 7,
    /// Addresses between two slots of the arena, which do not belong to it.
    Gap = 8,
}

impl State {
    /// Is such a block in the block index (`block_index.rs`)?
    #[inline]
    pub fn is_noted(self) -> bool {
        matches!(self, State::Allocated | State::Pending | State::Quick)
    }
}

/// A block. All fields but one are at most 4 bytes long, so that with an alignment of 4 it has 44
/// bytes.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
pub struct Block {
    /// Bytes that the host requested.
    pub requested: u64,
    /// First unit.
    pub start: u32,
    /// Length in units.
    pub units: u32,
    /// Neighbour below.
    pub previous: u32,
    /// Neighbour above.
    pub next: u32,
    /// Neighbour in its bin; in a quick list, the block after the next. A block in use is in no
    /// bin, and keeps its stack here: see [`Block::stack`].
    pub bin_previous: u32,
    /// Neighbour in its bin. In use: a block that may be allocated, and freed, soon after this one.
    pub bin_next: u32,
    /// The next block in its list of `block_index.rs`, while it is there.
    pub later: u32,
    /// First entry of its list of other streams that use it; 0: none.
    pub uses: u32,
    /// Number of streams that it still waits for.
    pub waits: u16,
    /// Its state.
    pub state: State,
    /// Did it count as oversize when it was allocated?
    pub oversize: bool,
}

// SAFETY: integers, false, and State has a value 0.
unsafe impl Zeroed for Block {}

impl Block {
    /// A block that was not requested, without links.
    #[inline]
    pub fn new(start: u32, units: u32, state: State) -> Block {
        Block {
            requested: 0,
            start,
            units,
            previous: NONE,
            next: NONE,
            bin_previous: NONE,
            bin_next: NONE,
            later: NONE,
            uses: 0,
            waits: 0,
            state,
            oversize: false,
        }
    }

    /// One past its last unit.
    pub fn end(&self) -> u32 {
        self.start + self.units
    }

    /// Id of the stack that allocated it, if stacks were recorded; 0: none.
    pub fn stack(&self) -> u32 {
        match self.state {
            State::Allocated | State::Pending => self.bin_previous,
            _ => 0,
        }
    }

    /// Sets the stack of a block in use.
    pub fn set_stack(&mut self, stack: u32) {
        self.bin_previous = stack;
    }

    /// Makes it the allocated block of a request.
    #[inline(always)]
    pub fn set_allocated(&mut self, request: Request) {
        self.state = State::Allocated;
        self.requested = request.bytes;
        self.set_stack(0);
        self.oversize = request.oversize;
    }

    /// The order in which free blocks are taken: the smaller one first, of equals the lower.
    #[inline(always)]
    pub fn key(&self) -> u64 {
        u64::from(self.units) << 32 | u64::from(self.start)
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> i64 {
        i64::from(self.units) * UNIT as i64
    }
}

/// Prefetches the cache line of a block for writing.
#[inline(always)]
fn prefetch_line(block: *const Block) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no visible effect, and a processor that does not know it ignores it.
    unsafe {
        std::arch::asm!(
            "prefetchw byte ptr [{block}]",
            block = in(reg) block,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = block;
}

/// All blocks of an arena.
pub struct Blocks {
    region: Region<Block>,
    used: u32,
    vacant: u32,
    vacant_count: u32,
}

impl Blocks {
    /// No blocks, with room for at most `capacity`.
    pub fn new(capacity: usize) -> Blocks {
        let region = Region::new(capacity + 1);
        Blocks { region, used: 1, vacant: NONE, vacant_count: 0 }
    }

    /// The block of an index, if it exists.
    #[inline(always)]
    pub fn get(&self, id: u32) -> Option<&Block> {
        self.region.as_slice().get(id as usize)
    }

    /// [`Blocks::get`], mutable.
    #[inline(always)]
    pub fn get_mut(&mut self, id: u32) -> Option<&mut Block> {
        self.region.as_mut_slice().get_mut(id as usize)
    }

    /// One past the highest index that `get` finds.
    #[inline(always)]
    pub fn indices(&self) -> usize {
        self.region.as_slice().len()
    }

    /// Every index that was ever in use, vacant or not.
    pub fn all(&self) -> std::ops::Range<u32> {
        1..self.used
    }

    /// Prefetches a block that is about to be written, if it exists. Another thread may have
    /// written it last.
    #[inline(always)]
    pub fn prefetch(&self, id: u32) {
        if let Some(block) = self.get(id) {
            prefetch_line(block);
        }
    }

    /// Extends `id` by its neighbour above, whose index becomes vacant.
    #[inline]
    pub fn absorb(&mut self, id: u32, next: u32) {
        self[id].units += self[next].units;
        self.unlink(next);
        self.give(next);
    }

    /// The block that contains a unit, or [`NONE`]: found by a walk in address order from `first`,
    /// or from the block of a sample that starts nearest below the unit. `is_in_row`: is a block
    /// linked with `first`, not vacant?
    pub fn holding(&self, first: u32, unit: u32, is_in_row: impl Fn(&Block) -> bool) -> u32 {
        let is_below = |id: &u32| {
            let block = &self[*id];
            block.start <= unit && is_in_row(block)
        };
        let every = self.all().len().isqrt().max(1);
        let sample = self.all().step_by(every).filter(is_below);
        let mut id = sample.max_by_key(|id| self[*id].start).unwrap_or(first);
        while id != NONE && self[id].end() <= unit {
            id = self[id].next;
        }
        id
    }

    /// Bytes of host memory of the blocks.
    #[cfg(test)]
    pub fn resident(&self) -> usize {
        self.region.resident()
    }

    /// Makes sure that `count` calls of [`Blocks::take`] succeed.
    #[inline]
    pub fn prepare(&mut self, count: u32) -> Result<()> {
        let wanted = (self.used + count.saturating_sub(self.vacant_count)) as usize;
        if wanted <= self.region.as_slice().len() { Ok(()) } else { self.region.grow(wanted) }
    }

    /// Stores a block at a vacant index and returns the index. [`Blocks::prepare`] was called
    /// before.
    #[inline]
    pub fn take(&mut self, block: Block) -> u32 {
        let id = if self.vacant != NONE {
            let id = self.vacant;
            self.vacant = self[id].next;
            self.vacant_count -= 1;
            id
        } else {
            self.used += 1;
            self.used - 1
        };
        self[id] = block;
        id
    }

    /// Makes an index vacant.
    #[inline]
    pub fn give(&mut self, id: u32) {
        debug_assert!(id != NONE);
        let vacant = self.vacant;
        let block = &mut self[id];
        block.state = State::Vacant;
        block.next = vacant;
        self.vacant = id;
        self.vacant_count += 1;
    }

    /// Links `id` between `below` and `above` in address order. Each of these may be [`NONE`].
    #[inline]
    pub fn link(&mut self, id: u32, below: u32, above: u32) {
        let block = &mut self[id];
        block.previous = below;
        block.next = above;
        // Without a branch: the links of the block of index 0 are never read.
        self[below].next = id;
        self[above].previous = id;
    }

    /// Takes `id` out of address order.
    #[inline]
    pub fn unlink(&mut self, id: u32) {
        let Block { previous, next, .. } = self[id];
        self[previous].next = next;
        self[next].previous = previous;
    }
}

impl std::ops::Index<u32> for Blocks {
    type Output = Block;

    #[inline]
    fn index(&self, id: u32) -> &Block {
        &self.region.as_slice()[id as usize]
    }
}

impl std::ops::IndexMut<u32> for Blocks {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut Block {
        &mut self.region.as_mut_slice()[id as usize]
    }
}
