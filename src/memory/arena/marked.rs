//! Marked blocks: those that other processes may have, and those that a private pool lent to an
//! allocation outside of the pool. The list of streams of such a block has one entry more, which is
//! no stream.

use crate::base::error::Result;
use crate::gpu::stream::Stream;
use crate::memory::arena::ArenaState;
use crate::memory::arena::block::{NONE, State};

/// The entry for other processes in a block's list of streams. Its address is compared, and never
/// read through.
static PROCESSES: u64 = 0;

fn processes() -> *const Stream {
    std::ptr::from_ref(&PROCESSES).cast()
}

/// The same for the allocation to which a block was lent.
static BORROWER: u64 = 0;

fn borrower() -> *const Stream {
    std::ptr::from_ref(&BORROWER).cast()
}

/// Is this entry a stream, and none of these?
pub(in crate::memory) fn is_stream(stream: *const Stream) -> bool {
    ![processes(), borrower()].contains(&stream)
}

impl ArenaState {
    /// May other processes have a block?
    pub(in crate::memory) fn is_exported(&self, id: u32) -> bool {
        self.marked > 0 && self.uses.lists(self.blocks[id].uses, processes())
    }

    /// Blocks that other processes may have.
    pub(in crate::memory) fn exported(&self) -> u32 {
        self.marked - self.lent
    }

    /// Makes sure that a block can be marked as lent.
    pub(in crate::memory) fn prepare_lending(&mut self) -> Result<()> {
        self.uses.prepare()
    }

    /// Marks a block that was just taken as lent. [`ArenaState::prepare_lending`] was called
    /// before.
    pub(in crate::memory) fn lend(&mut self, id: u32) {
        let head = self.blocks[id].uses;
        if let Some(head) = self.uses.push(head, borrower()) {
            self.blocks[id].uses = head;
            (self.marked, self.lent) = (self.marked + 1, self.lent + 1);
        }
    }

    /// Ends the mark of a lent block before it is freed; false: it was not lent.
    pub(in crate::memory) fn end_lending(&mut self, id: u32) -> bool {
        let is_lent = self.is_lent(id);
        if is_lent {
            self.blocks[id].uses = self.uses.remove(self.blocks[id].uses, borrower());
            (self.marked, self.lent) = (self.marked - 1, self.lent - 1);
        }
        is_lent
    }

    fn is_lent(&self, id: u32) -> bool {
        self.lent > 0 && self.uses.lists(self.blocks[id].uses, borrower())
    }

    /// The first block that is lent.
    pub(in crate::memory) fn lent_block(&self) -> Option<u32> {
        let mut id = if self.lent > 0 { self.first } else { NONE };
        while id != NONE {
            if self.blocks[id].state == State::Allocated && self.is_lent(id) {
                return Some(id);
            }
            id = self.blocks[id].next;
        }
        None
    }

    pub(in crate::memory) fn forget_processes(&mut self, id: u32) {
        if self.is_exported(id) {
            self.blocks[id].uses = self.uses.remove(self.blocks[id].uses, processes());
            self.marked -= 1;
        }
    }

    /// Marks a block as one that other processes may have.
    pub(in crate::memory) fn mark_exported(&mut self, id: u32) -> Result<()> {
        if !self.is_exported(id) {
            self.blocks[id].uses = self.uses.add(self.blocks[id].uses, processes())?;
            self.marked += 1;
        }
        Ok(())
    }
}
