//! The memory that a warp reaches: global memory through the machine, shared memory of its cluster,
//! local memory of its threads. A wild access is a fault, never harm to the host.

mod access;
mod barrier;
pub mod fault;
mod observe;
pub mod race;

pub use access::Word;
pub use barrier::pending_count;

use fault::{Fault, FaultKind};
use race::{Detector, Race, Summary};
use std::ptr;

/// Generic addresses with these top bytes are in other spaces than global memory.
pub const SHARED_WINDOW: u64 = 0x0100_0000_0000_0000;
/// Local memory of a thread.
pub const LOCAL_WINDOW: u64 = 0x0200_0000_0000_0000;
/// Parameters of a kernel.
pub const PARAM_WINDOW: u64 = 0x0300_0000_0000_0000;
/// Functions, whose addresses are not memory.
pub const FUNCTION_WINDOW: u64 = 0x0400_0000_0000_0000;
/// The bits of an address that name a window.
pub const WINDOW_MASK: u64 = 0xff00_0000_0000_0000;
/// In the cluster's shared memory, the block of rank `r` begins at `(r + 1) << CLUSTER_SHIFT`.
pub const CLUSTER_SHIFT: u32 = 24;

/// A contiguous piece of the host's memory for addresses of a device.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The first device address.
    pub start: u64,
    /// The device address after the last.
    pub end: u64,
    /// The host's memory for `start`.
    pub host: *mut u8,
}

impl Window {
    /// Contains no address.
    pub const EMPTY: Window = Window { start: 0, end: 0, host: ptr::null_mut() };

    /// The host's memory for a range, if it lies in the window.
    #[inline(always)]
    fn find(&self, address: u64, bytes: u64) -> Option<*mut u8> {
        let inside = address.wrapping_sub(self.start);
        let size = self.end - self.start;
        (inside < size && bytes <= size - inside).then(|| self.host.wrapping_add(inside as usize))
    }
}

/// The machine that runs kernels, as they see it.
///
/// # Safety
/// Each [`Window`] that [`window`](Self::window) returns is memory that stays mapped, and readable
/// or writable as was asked, while kernels run, and of which no references exist.
pub unsafe trait Machine: Sync {
    /// The memory around an address; `None` if the device cannot read or write there.
    fn window(&self, address: u64, write: bool) -> Option<Window>;
    /// Takes text of `printf`.
    fn print(&self, text: &[u8]);
    /// Takes text for the standard error.
    fn print_error(&self, text: &[u8]);
    /// `malloc` in a kernel: an address, or 0.
    fn allocate(&self, bytes: u64) -> u64;
    /// `free` in a kernel; false if the address is no allocation.
    fn free(&self, address: u64) -> bool;
    /// `cudaGraphSetConditional`; false if the kernel has no such condition.
    fn set_condition(&self, _handle: u64, _value: u32) -> bool {
        false
    }
    /// Nanoseconds of the device's global timer.
    fn nanoseconds(&self) -> u64;
    /// True if the kernel is to end with a fault.
    fn is_cancelled(&self) -> bool;
    /// The multiprocessor of the block with a number; `None`: those of the device take turns.
    fn multiprocessor(&self, _block: u32) -> Option<u32> {
        None
    }
    /// The address of the workspace of a cooperative launch: two words, of which `grid.sync()` of
    /// CUDA's headers uses the second as its barrier. 0 in other launches.
    fn grid_workspace(&self) -> u64 {
        0
    }
    /// Takes a race of a kernel, as soon as it is found.
    fn report_race(&self, race: &Race) {
        self.print_error(format!("{race}\n").as_bytes());
    }
    /// Takes the number of races of a kernel after its end, if there were any or if not all
    /// accesses were checked.
    fn report_races(&self, summary: &Summary) {
        self.print_error(format!("{summary}\n").as_bytes());
    }
}

/// A state space, as an access names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Any: the address says which.
    Generic,
    /// Global and constant memory.
    Global,
    /// Shared memory of the block, and of the cluster.
    Shared,
    /// The thread's own.
    Local,
    /// The kernel's parameters.
    Param,
}

/// Shared memory of the blocks of a cluster, one behind the other.
pub struct Shared {
    /// The bytes of all blocks.
    pub bytes: Vec<u8>,
    /// Bytes of one block.
    pub each: usize,
}

/// Local memory of the threads of a warp, one behind the other.
pub struct Local {
    /// The bytes of all lanes.
    pub bytes: Vec<u8>,
    /// Bytes of one lane.
    pub each: usize,
}

impl Local {
    /// Grows the memory of each lane to at least this, up to a limit.
    pub fn reserve(&mut self, each: usize, limit: usize) -> Result<(), Fault> {
        if each <= self.each {
            return Ok(());
        }
        if each > limit {
            return Err(Fault::new(FaultKind::StackOverflow));
        }
        let each = each.next_power_of_two().min(limit).max(each);
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(each * 32).map_err(|_| Fault::new(FaultKind::OutOfMemory))?;
        bytes.resize(each * 32, 0);
        if self.each > 0 {
            for (old, new) in self.bytes.chunks(self.each).zip(bytes.chunks_mut(each)) {
                new[..old.len()].copy_from_slice(old);
            }
        }
        *self = Local { bytes, each };
        Ok(())
    }
}

/// What a warp reaches while it runs.
pub struct Memory<'a> {
    /// Global memory and the rest of the machine.
    pub machine: &'a dyn Machine,
    /// The last windows that were read and written.
    pub read: Window,
    /// See `read`.
    pub written: Window,
    /// Shared memory of the cluster.
    pub shared: &'a mut Shared,
    /// The rank of the warp's block in the cluster.
    pub rank: usize,
    /// Local memory of the warp.
    pub local: &'a mut Local,
    /// The parameters of the kernel.
    pub parameters: &'a [u8],
    /// Instructions that the warp has executed.
    pub clock: u64,
    /// Atomic operations that the warp has executed.
    pub updates: u64,
    /// The function and the instruction that runs, where it accesses memory.
    pub place: (u32, u32),
    /// Looks for races, if that is asked for.
    pub races: Option<Box<Detector>>,
}

impl Memory<'_> {
    /// The host's memory for a range of global memory.
    #[inline(always)]
    fn global(&mut self, address: u64, bytes: u64, write: bool) -> Result<*mut u8, Fault> {
        let window = if write { &self.written } else { &self.read };
        match window.find(address, bytes) {
            Some(found) => Ok(found),
            None => self.look_up(address, bytes, write),
        }
    }

    #[cold]
    fn look_up(&mut self, address: u64, bytes: u64, write: bool) -> Result<*mut u8, Fault> {
        let kind = match address & WINDOW_MASK {
            SHARED_WINDOW | LOCAL_WINDOW => FaultKind::AddressSpace,
            _ => FaultKind::IllegalAddress,
        };
        let wild = || Fault::at(kind, address);
        let found = self.machine.window(address, write).ok_or_else(wild)?;
        *(if write { &mut self.written } else { &mut self.read }) = found;
        found.find(address, bytes).ok_or_else(wild)
    }

    /// The index of a shared address in the cluster's bytes.
    #[inline(always)]
    fn shared_index(&self, address: u64, bytes: usize) -> Result<usize, Fault> {
        let (rank, offset) = match address >> CLUSTER_SHIFT {
            0 => (self.rank, address as usize),
            rank => (rank as usize - 1, (address & ((1 << CLUSTER_SHIFT) - 1)) as usize),
        };
        let start = rank.wrapping_mul(self.shared.each).wrapping_add(offset);
        if offset + bytes > self.shared.each || start + bytes > self.shared.bytes.len() {
            return Err(Fault::at(FaultKind::SharedRange, address));
        }
        Ok(start)
    }

    /// The index of a local address in the warp's bytes.
    #[inline(always)]
    fn local_index(&self, lane: usize, address: u64, bytes: usize) -> Result<usize, Fault> {
        if address >= self.local.each as u64 || bytes as u64 > self.local.each as u64 - address {
            return Err(Fault::at(FaultKind::LocalRange, address));
        }
        Ok(lane * self.local.each + address as usize)
    }

    /// The space of a generic address, and the address in it.
    #[inline(always)]
    fn resolve(place: Place, address: u64) -> (Place, u64) {
        if place != Place::Generic {
            return (place, address);
        }
        let inside = address & !WINDOW_MASK;
        match address & WINDOW_MASK {
            SHARED_WINDOW => (Place::Shared, inside),
            LOCAL_WINDOW => (Place::Local, inside),
            PARAM_WINDOW => (Place::Param, inside),
            _ => (Place::Global, address),
        }
    }
}
