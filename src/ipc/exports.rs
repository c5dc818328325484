//! What this process gives to others: blocks, the memory around them, and who has which.

use super::descriptor::Descriptor;
use super::handle::{BYTES, Handle, Words};
use crate::base::error::{Error, Result};
use crate::driver::sys::CUevent;

/// Whether a block that the host frees may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// No other process has it.
    Go,
    /// Others have it: it goes later.
    Wait,
    /// The host freed it before.
    Again,
}

/// What the host does with a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// It has it.
    Host,
    /// It has freed it.
    Others,
    /// It is about to go.
    Nobody,
}

/// A block that other processes may have.
pub struct Kept {
    pub address: u64,
    pub holder: Holder,
    /// Exports of it that are not over.
    exports: u32,
}

/// Memory that is shared: a descriptor for each handle, while any export needs it.
pub struct Range {
    pub number: u64,
    pub base: u64,
    /// Of its handles; that of the first stands for all, since they stay while this does.
    pub first: u64,
    pub bytes: u64,
    pub files: Vec<Descriptor>,
    pub sizes: Vec<u64>,
    /// How cuMemAlloc's memory is named.
    pub memory: [u8; 64],
    /// Exports that need it.
    pub users: u32,
}

/// A handle that was given.
pub struct Export {
    pub number: u64,
    pub address: u64,
    pub device: i32,
    pub range: u64,
    /// NULL: none was needed.
    pub event: CUevent,
    pub handle: Handle,
    /// Processes that have it.
    holders: u32,
    /// Nobody else may have it.
    is_withdrawn: bool,
    /// Everyone who had it has let go.
    is_over: bool,
}

// SAFETY: events are shared by all threads.
unsafe impl Send for Export {}

impl Export {
    /// Does another process have it?
    pub fn is_held(&self) -> bool {
        self.holders > 0
    }
}

/// All of them.
pub struct Exports {
    pub blocks: Vec<Kept>,
    pub ranges: Vec<Range>,
    pub list: Vec<Export>,
    /// Events that handles name.
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

    /// Makes room for one of each.
    pub fn prepare(&mut self) -> Result<()> {
        self.blocks.try_reserve(1).map_err(|_| NO_ROOM)?;
        self.ranges.try_reserve(1).map_err(|_| NO_ROOM)?;
        self.list.try_reserve(1).map_err(|_| NO_ROOM)
    }

    /// A number that nothing else has.
    pub fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// The memory from a base on, if it is shared already.
    pub fn range_at(&mut self, base: u64, bytes: u64, first: u64) -> Option<&mut Range> {
        let is_it =
            |range: &&mut Range| (range.base, range.bytes, range.first) == (base, bytes, first);
        self.ranges.iter_mut().find(is_it)
    }

    fn kept(&mut self, address: u64) -> Option<usize> {
        self.blocks.iter().position(|kept| kept.address == address)
    }

    /// Does the host still have a block?
    pub fn is_hosts(&mut self, address: u64) -> bool {
        self.kept(address).is_none_or(|index| self.blocks[index].holder == Holder::Host)
    }

    /// One more export. There is room.
    pub fn add(&mut self, export: ExportParts) {
        let ExportParts { number, address, device, range, event, handle } = export;
        match self.kept(address) {
            Some(index) => self.blocks[index].exports += 1,
            None => self.blocks.push(Kept { address, holder: Holder::Host, exports: 1 }),
        }
        self.events += usize::from(!event.is_null());
        let (holders, is_withdrawn, is_over) = (0, false, false);
        self.list.push(Export {
            number,
            address,
            device,
            range,
            event,
            handle,
            holders,
            is_withdrawn,
            is_over,
        });
    }

    /// The export of a handle, if it is one, to the byte.
    fn of_handle(&mut self, handle: &Handle) -> Option<&mut Export> {
        let number = Words::unpack(handle).ok()?.export;
        let export = self.list.iter_mut().find(|export| export.number == number)?;
        let differs = (0..BYTES).fold(0, |all, at| all | (export.handle[at] ^ handle[at]));
        (differs == 0 && !export.is_over).then_some(export)
    }

    /// A process has a handle's block from now on: the export and the memory.
    pub fn hold(&mut self, handle: &Handle) -> Option<(u64, &Range)> {
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

    /// Nobody is given a handle's block from now on; true: and nobody has it. None: it is no handle.
    pub fn withdraw(&mut self, handle: &Handle) -> Option<bool> {
        let export = self.of_handle(handle)?;
        export.is_withdrawn = true;
        let number = export.number;
        Some(self.end(number))
    }

    /// A process has let go; true: it was the last.
    pub fn let_go(&mut self, number: u64) -> bool {
        if let Some(export) = self.list.iter_mut().find(|export| export.number == number) {
            export.holders = export.holders.saturating_sub(1);
        }
        self.end(number)
    }

    /// Ends an export that nobody has; true: it did.
    fn end(&mut self, number: u64) -> bool {
        let Some(export) = self.list.iter_mut().find(|export| export.number == number) else {
            return false;
        };
        if export.holders > 0 || export.is_over {
            return false;
        }
        export.is_over = true;
        let address = export.address;
        if let Some(index) = self.kept(address) {
            self.blocks[index].exports -= 1;
        }
        true
    }

    /// The host frees a block.
    pub fn freed_by_host(&mut self, address: u64) -> Verdict {
        let Some(index) = self.kept(address) else { return Verdict::Go };
        let kept = &mut self.blocks[index];
        match kept.holder {
            Holder::Others | Holder::Nobody => Verdict::Again,
            Holder::Host if kept.exports > 0 => {
                kept.holder = Holder::Others;
                Verdict::Wait
            }
            Holder::Host => {
                self.blocks.swap_remove(index);
                Verdict::Go
            }
        }
    }

    /// Is a block on the list?
    pub fn has(&mut self, address: u64) -> bool {
        self.kept(address).is_some()
    }

    /// Takes a block off the list that is about to go; false: it is not there.
    pub fn dismiss(&mut self, address: u64) -> bool {
        let Some(index) = self.kept(address) else { return false };
        let is_idle = self.blocks[index].holder == Holder::Nobody;
        if is_idle {
            self.blocks.swap_remove(index);
        }
        is_idle
    }

    /// An export that is over, and the memory if that is shared no longer.
    pub fn take_over(&mut self) -> Option<(Export, Option<Range>)> {
        let index = self.list.iter().position(|export| export.is_over)?;
        let export = self.list.swap_remove(index);
        self.events -= usize::from(!export.event.is_null());
        let position = self.ranges.iter().position(|range| range.number == export.range);
        let Some(at) = position else { return Some((export, None)) };
        self.ranges[at].users -= 1;
        let range = (self.ranges[at].users == 0).then(|| self.ranges.swap_remove(at));
        Some((export, range))
    }

    /// A block that no other process has any more, and whether the host has freed it.
    pub fn take_idle(&mut self) -> Option<(u64, bool)> {
        let is_idle = |kept: &Kept| kept.exports == 0 && kept.holder != Holder::Nobody;
        let index = self.blocks.iter().position(is_idle)?;
        let Kept { address, holder, .. } = self.blocks[index];
        if holder == Holder::Host {
            self.blocks.swap_remove(index);
            return Some((address, false));
        }
        self.blocks[index].holder = Holder::Nobody;
        Some((address, true))
    }

    /// An export that needed a range came to nothing.
    pub fn leave(&mut self, number: u64) {
        if let Some(range) = self.ranges.iter_mut().find(|range| range.number == number) {
            range.users -= 1;
        }
    }

    /// Blocks that the host has freed and others have.
    pub fn waiting(&self) -> usize {
        self.blocks.iter().filter(|kept| kept.holder == Holder::Others).count()
    }
}

/// What an export begins with.
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
        let mut words = Words::new();
        (words.export, words.bytes, words.range_bytes) = (number, 1, 1);
        let handle = words.pack();
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
    fn a_block_waits_for_all_who_have_it() {
        let mut exports = with_range();
        let (first, handle) = export(&mut exports, 4096);
        let (second, other) = export(&mut exports, 4096);
        assert_eq!(exports.hold(&handle).map(|(number, _)| number), Some(first));
        assert_eq!(exports.hold(&handle).map(|(number, _)| number), Some(first));
        assert_eq!(exports.hold(&other).map(|(number, _)| number), Some(second));
        assert_eq!(exports.freed_by_host(4096), Verdict::Wait);
        assert_eq!(exports.freed_by_host(4096), Verdict::Again);
        assert!(!exports.let_go(first));
        assert!(exports.let_go(first));
        assert!(exports.hold(&handle).is_none(), "it is over");
        assert!(exports.take_idle().is_none());
        assert!(exports.let_go(second));
        assert_eq!(exports.take_idle(), Some((4096, true)));
        assert_eq!(exports.take_idle(), None);
        assert_eq!(exports.freed_by_host(4096), Verdict::Again);
        assert!(exports.dismiss(4096) && !exports.dismiss(4096));
        assert!(exports.take_over().is_some_and(|(_, range)| range.is_none()));
        assert!(exports.take_over().is_some_and(|(_, range)| range.is_some()));
        assert!(exports.take_over().is_none());
    }

    #[test]
    fn every_byte_of_a_handle_counts() {
        let mut exports = with_range();
        let (_, mut handle) = export(&mut exports, 4096);
        for at in 0..BYTES {
            handle[at] ^= 1;
            assert!(exports.hold(&handle).is_none(), "{at}");
            handle[at] ^= 1;
        }
        assert!(exports.hold(&handle).is_some());
    }

    #[test]
    fn what_is_withdrawn_is_given_to_nobody() {
        let mut exports = with_range();
        let (number, handle) = export(&mut exports, 4096);
        let (_, other) = export(&mut exports, 4096);
        assert!(exports.hold(&handle).is_some());
        assert_eq!(exports.withdraw(&handle), Some(false), "one has it");
        assert!(exports.hold(&handle).is_none());
        assert_eq!(exports.withdraw(&other), Some(true));
        assert_eq!(exports.withdraw(&other), None);
        assert_eq!(exports.freed_by_host(4096), Verdict::Wait);
        assert!(exports.let_go(number));
        assert_eq!(exports.take_idle(), Some((4096, true)));
    }

    #[test]
    fn a_block_that_the_host_has_stays_its_own() {
        let mut exports = with_range();
        let (number, handle) = export(&mut exports, 4096);
        assert!(exports.hold(&handle).is_some());
        assert!(exports.let_go(number));
        assert_eq!(exports.take_idle(), Some((4096, false)));
        assert_eq!(exports.freed_by_host(4096), Verdict::Go, "nothing is known of it");
        assert!(!exports.let_go(number), "once");
    }
}
