//! What this process exports: blocks, the memory around them, and how many processes hold each.

use super::handle::{BYTES, Handle, HandleFields};
use crate::base::descriptor::Descriptor;
use crate::base::error::{Error, Result};
use crate::driver::sys::CUevent;
use crate::memory::device::hooks::Verdict;

/// State of an exported block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockState {
    /// Allocated by the host.
    Allocated,
    /// Freed by the host; other processes hold it.
    FreedByHost,
    /// Freed by the host; no process holds it, and it is about to be freed here.
    BeingFreed,
}

/// A block that other processes may hold.
pub struct SharedBlock {
    pub address: u64,
    pub state: BlockState,
    /// Its exports that have not ended.
    exports: u32,
}

/// Memory around exported blocks, opened for other processes while an export needs it.
pub struct Range {
    pub number: u64,
    pub base: u64,
    /// The driver's handle at its start. It identifies the memory, because the handles exist as
    /// long as this range.
    pub first: u64,
    pub bytes: u64,
    pub files: Vec<Descriptor>,
    pub sizes: Vec<u64>,
    /// The IPC handle, if the memory came from `cuMemAlloc`.
    pub memory: [u8; 64],
    /// Number of exports that need it.
    pub users: u32,
}

/// An exported handle.
pub struct Export {
    pub number: u64,
    pub address: u64,
    pub device: i32,
    pub range: u64,
    /// NULL: no event was needed.
    pub event: CUevent,
    pub handle: Handle,
    /// Number of processes that hold it.
    holders: u32,
    /// No further process may import it.
    is_withdrawn: bool,
    /// Every process that held it has closed it.
    has_ended: bool,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Export {}

impl Export {
    /// Does another process hold it?
    pub fn is_held(&self) -> bool {
        self.holders > 0
    }
}

/// All exports of this process.
pub struct Exports {
    pub blocks: Vec<SharedBlock>,
    pub ranges: Vec<Range>,
    pub list: Vec<Export>,
    /// Number of exports that have an event.
    pub events: usize,
    last_number: u64,
}

const NO_ROOM: Error = Error::OutOfHostMemory("the list of what is shared");

impl Exports {
    pub const fn new() -> Exports {
        Exports {
            blocks: Vec::new(),
            ranges: Vec::new(),
            list: Vec::new(),
            events: 0,
            last_number: 0,
        }
    }

    /// Reserves space for one block, one range and one export.
    pub fn prepare(&mut self) -> Result<()> {
        self.blocks.try_reserve(1).map_err(|_| NO_ROOM)?;
        self.ranges.try_reserve(1).map_err(|_| NO_ROOM)?;
        self.list.try_reserve(1).map_err(|_| NO_ROOM)
    }

    /// A number that is unique in this process.
    pub fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// The range with this base, length and first handle, if there is one.
    pub fn range_at(&mut self, base: u64, bytes: u64, first: u64) -> Option<&mut Range> {
        let is_it =
            |range: &&mut Range| (range.base, range.bytes, range.first) == (base, bytes, first);
        self.ranges.iter_mut().find(is_it)
    }

    fn block_index(&mut self, address: u64) -> Option<usize> {
        self.blocks.iter().position(|block| block.address == address)
    }

    /// Has the host not freed the block?
    pub fn is_held_by_host(&mut self, address: u64) -> bool {
        self.block_index(address)
            .is_none_or(|index| self.blocks[index].state == BlockState::Allocated)
    }

    /// Adds an export; there is space.
    pub fn add(&mut self, export: ExportParts) {
        let ExportParts { number, address, device, range, event, handle } = export;
        match self.block_index(address) {
            Some(index) => self.blocks[index].exports += 1,
            None => {
                self.blocks.push(SharedBlock { address, state: BlockState::Allocated, exports: 1 })
            }
        }
        self.events += usize::from(!event.is_null());
        let (holders, is_withdrawn, has_ended) = (0, false, false);
        self.list.push(Export {
            number,
            address,
            device,
            range,
            event,
            handle,
            holders,
            is_withdrawn,
            has_ended,
        });
    }

    /// The export of a handle, if all its bytes match.
    fn of_handle(&mut self, handle: &Handle) -> Option<&mut Export> {
        let number = HandleFields::unpack(handle).ok()?.export;
        let export = self.list.iter_mut().find(|export| export.number == number)?;
        let differs = (0..BYTES).fold(0, |all, at| all | (export.handle[at] ^ handle[at]));
        (differs == 0 && !export.has_ended).then_some(export)
    }

    /// Counts a process that imports a handle. Returns the number of the export, and its memory.
    pub fn acquire(&mut self, handle: &Handle) -> Option<(u64, &Range)> {
        let export = self.of_handle(handle)?;
        if export.is_withdrawn {
            return None;
        }
        export.holders += 1;
        let (number, range) = (export.number, export.range);
        self.ranges.iter().find(|known| known.number == range).map(|range| (number, range))
    }

    /// The number of a handle's export.
    pub fn number_of(&mut self, handle: &Handle) -> Option<u64> {
        self.of_handle(handle).map(|export| export.number)
    }

    /// Withdraws a handle, so that no further process can import it. True: the export has ended.
    /// `None`: it is no handle of this process.
    pub fn withdraw(&mut self, handle: &Handle) -> Option<bool> {
        let export = self.of_handle(handle)?;
        export.is_withdrawn = true;
        let number = export.number;
        Some(self.end(number))
    }

    /// Counts a process that has closed an import. True: it was the last.
    pub fn release(&mut self, number: u64) -> bool {
        if let Some(export) = self.list.iter_mut().find(|export| export.number == number) {
            export.holders = export.holders.saturating_sub(1);
        }
        self.end(number)
    }

    /// Ends an export that no process holds. True if it ended now.
    fn end(&mut self, number: u64) -> bool {
        let Some(export) = self.list.iter_mut().find(|export| export.number == number) else {
            return false;
        };
        if export.holders > 0 || export.has_ended {
            return false;
        }
        export.has_ended = true;
        let address = export.address;
        if let Some(index) = self.block_index(address) {
            self.blocks[index].exports -= 1;
        }
        true
    }

    /// Decides what happens to a block that the host frees.
    pub fn freed_by_host(&mut self, address: u64) -> Verdict {
        let Some(index) = self.block_index(address) else { return Verdict::Free };
        let block = &mut self.blocks[index];
        match block.state {
            BlockState::FreedByHost | BlockState::BeingFreed => Verdict::AlreadyFreed,
            BlockState::Allocated if block.exports > 0 => {
                block.state = BlockState::FreedByHost;
                Verdict::Defer
            }
            BlockState::Allocated => {
                self.blocks.swap_remove(index);
                Verdict::Free
            }
        }
    }

    /// Is there an entry for this block?
    pub fn has(&mut self, address: u64) -> bool {
        self.block_index(address).is_some()
    }

    /// Removes a block that is about to be freed. False: there is no such block.
    pub fn remove_freed(&mut self, address: u64) -> bool {
        let Some(index) = self.block_index(address) else { return false };
        let is_idle = self.blocks[index].state == BlockState::BeingFreed;
        if is_idle {
            self.blocks.swap_remove(index);
        }
        is_idle
    }

    /// Removes an export that has ended; also its range if no export needs that any more.
    pub fn take_ended(&mut self) -> Option<(Export, Option<Range>)> {
        let index = self.list.iter().position(|export| export.has_ended)?;
        let export = self.list.swap_remove(index);
        self.events -= usize::from(!export.event.is_null());
        let position = self.ranges.iter().position(|range| range.number == export.range);
        let Some(at) = position else { return Some((export, None)) };
        self.ranges[at].users -= 1;
        let range = (self.ranges[at].users == 0).then(|| self.ranges.swap_remove(at));
        Some((export, range))
    }

    /// A block that no other process holds any more, and whether the host has freed it.
    pub fn take_idle(&mut self) -> Option<(u64, bool)> {
        let is_idle =
            |block: &SharedBlock| block.exports == 0 && block.state != BlockState::BeingFreed;
        let index = self.blocks.iter().position(is_idle)?;
        let SharedBlock { address, state, .. } = self.blocks[index];
        if state == BlockState::Allocated {
            self.blocks.swap_remove(index);
            return Some((address, false));
        }
        self.blocks[index].state = BlockState::BeingFreed;
        Some((address, true))
    }

    /// Removes the use of a range by an export that failed.
    pub fn release_range(&mut self, number: u64) {
        if let Some(range) = self.ranges.iter_mut().find(|range| range.number == number) {
            range.users -= 1;
        }
    }

    /// Number of blocks that the host has freed and other processes hold.
    pub fn num_waiting(&self) -> usize {
        self.blocks.iter().filter(|block| block.state == BlockState::FreedByHost).count()
    }
}

/// The fields of a new export.
pub struct ExportParts {
    pub number: u64,
    pub address: u64,
    pub device: i32,
    pub range: u64,
    pub event: CUevent,
    pub handle: Handle,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(exports: &mut Exports, address: u64) -> (u64, Handle) {
        exports.prepare().unwrap();
        let number = exports.next_number();
        let mut fields = HandleFields::new();
        (fields.export, fields.bytes, fields.range_bytes) = (number, 1, 1);
        let handle = fields.pack();
        let (range, event, device) = (7, std::ptr::null_mut(), 0);
        exports.add(ExportParts { number, address, device, range, event, handle });
        (number, handle)
    }

    fn with_range() -> Exports {
        let mut exports = Exports::new();
        let (files, sizes) = (Vec::new(), Vec::new());
        exports.ranges.push(Range {
            number: 7,
            base: 4096,
            first: 1,
            bytes: 8192,
            files,
            sizes,
            memory: [0; 64],
            users: 2,
        });
        exports
    }

    #[test]
    fn a_block_is_freed_after_the_last_holder_closes_it() {
        let mut exports = with_range();
        let (first, handle) = export(&mut exports, 4096);
        let (second, other) = export(&mut exports, 4096);
        assert_eq!(exports.acquire(&handle).map(|(number, _)| number), Some(first));
        assert_eq!(exports.acquire(&handle).map(|(number, _)| number), Some(first));
        assert_eq!(exports.acquire(&other).map(|(number, _)| number), Some(second));
        assert_eq!(exports.freed_by_host(4096), Verdict::Defer);
        assert_eq!(exports.freed_by_host(4096), Verdict::AlreadyFreed);
        assert!(!exports.release(first));
        assert!(exports.release(first));
        assert!(exports.acquire(&handle).is_none(), "it is over");
        assert!(exports.take_idle().is_none());
        assert!(exports.release(second));
        assert_eq!(exports.take_idle(), Some((4096, true)));
        assert_eq!(exports.take_idle(), None);
        assert_eq!(exports.freed_by_host(4096), Verdict::AlreadyFreed);
        assert!(exports.remove_freed(4096) && !exports.remove_freed(4096));
        assert!(exports.take_ended().is_some_and(|(_, range)| range.is_none()));
        assert!(exports.take_ended().is_some_and(|(_, range)| range.is_some()));
        assert!(exports.take_ended().is_none());
    }

    #[test]
    fn every_byte_of_a_handle_is_compared() {
        let mut exports = with_range();
        let (_, mut handle) = export(&mut exports, 4096);
        for at in 0..BYTES {
            handle[at] ^= 1;
            assert!(exports.acquire(&handle).is_none(), "{at}");
            handle[at] ^= 1;
        }
        assert!(exports.acquire(&handle).is_some());
    }

    #[test]
    fn a_withdrawn_handle_cannot_be_imported() {
        let mut exports = with_range();
        let (number, handle) = export(&mut exports, 4096);
        let (_, other) = export(&mut exports, 4096);
        assert!(exports.acquire(&handle).is_some());
        assert_eq!(exports.withdraw(&handle), Some(false), "one has it");
        assert!(exports.acquire(&handle).is_none());
        assert_eq!(exports.withdraw(&other), Some(true));
        assert_eq!(exports.withdraw(&other), None);
        assert_eq!(exports.freed_by_host(4096), Verdict::Defer);
        assert!(exports.release(number));
        assert_eq!(exports.take_idle(), Some((4096, true)));
    }

    #[test]
    fn a_block_that_the_host_holds_is_not_freed() {
        let mut exports = with_range();
        let (number, handle) = export(&mut exports, 4096);
        assert!(exports.acquire(&handle).is_some());
        assert!(exports.release(number));
        assert_eq!(exports.take_idle(), Some((4096, false)));
        assert_eq!(exports.freed_by_host(4096), Verdict::Free, "nothing is known of it");
        assert!(!exports.release(number), "once");
    }
}
