//! Pinned memory of the host, straight from the driver: what copies run beside the host's own work.

use crate::device::{CURRENT, Device};
use crate::driver::{Driver, code};
use crate::error::{Error, Result};
use crate::lock::{Held, Mutex};
use crate::memory::Relaxed;
use crate::rank::Rank;
use crate::runtime::Runtime;
use std::collections::HashMap;
use std::ffi::c_void;
use std::hash::{BuildHasherDefault, DefaultHasher};

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Held,
    /// The driver is being asked to take it back.
    Leaving,
}

/// Blocks by their addresses. With keys of its own each map would ask the system for random ones, and
/// panic without.
type Blocks = HashMap<usize, State, BuildHasherDefault<DefaultHasher>>;

/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every device, not for the current one alone.
const PORTABLE: u32 = 1;

/// The pinned memory of the process.
pub struct HostMemory {
    driver: &'static Driver,
    blocks: Mutex<Blocks>,
}

impl HostMemory {
    pub(crate) fn new(driver: &'static Driver) -> HostMemory {
        HostMemory { driver, blocks: Mutex::new(Rank::LEAF, Blocks::default()) }
    }

    fn blocks(&self) -> Held<'_, Blocks> {
        self.blocks.lock()
    }

    /// Page-locked memory; no bytes are no block.
    pub fn allocate(&self, runtime: &Runtime, bytes: usize) -> Result<usize> {
        if bytes == 0 {
            return Ok(0);
        }
        let _relaxed = Relaxed::enter(self.driver);
        let _context = runtime.device(CURRENT)?.enter()?;
        let mut block: *mut c_void = std::ptr::null_mut();
        // SAFETY: `block` is writable, a context is current.
        match unsafe { self.driver.cuMemHostAlloc(&mut block, bytes, PORTABLE) } {
            Err(error) if error.code == code::OUT_OF_MEMORY => {
                return Err(Error::OutOfHostMemory("pinned memory; free some, or ask for less"));
            }
            other => other?,
        }
        let mut blocks = self.blocks();
        if blocks.try_reserve(1).is_err() {
            drop(blocks);
            // SAFETY: just allocated, and nobody knows of it.
            let _ = unsafe { self.driver.cuMemFreeHost(block) };
            return Err(Error::OutOfHostMemory("the list of pinned blocks"));
        }
        blocks.insert(block as usize, State::Held);
        Ok(block as usize)
    }

    /// Gives a block back; the driver waits for the work that may use it. What it refuses stays a block.
    pub fn free(&self, runtime: &Runtime, block: usize) -> Result<()> {
        let _relaxed = Relaxed::enter(self.driver);
        let _context = runtime.device(CURRENT)?.enter()?;
        if !self.change(block, State::Held, State::Leaving) {
            return Err(unknown_block(block));
        }
        // SAFETY: it came from cuMemHostAlloc, and nobody else has it leave.
        let freed = unsafe { self.driver.cuMemFreeHost(block as *mut c_void) };
        if freed.is_err() {
            self.change(block, State::Leaving, State::Held);
        } else {
            // Held once more: the address is another thread's by now.
            let mut blocks = self.blocks();
            if blocks.get(&block) == Some(&State::Leaving) {
                blocks.remove(&block);
            }
        }
        Ok(freed?)
    }

    /// Was the block in this state, so that it is in the other one now?
    fn change(&self, block: usize, from: State, to: State) -> bool {
        match self.blocks().get_mut(&block) {
            Some(state) if *state == from => {
                *state = to;
                true
            }
            _ => false,
        }
    }

    /// Gives everything back. Nobody is inside, no work is under way; `devices` have their contexts.
    pub(crate) fn close(&self, devices: &[Device]) {
        let mut blocks = std::mem::take(&mut *self.blocks());
        let active = devices.iter().find(|device| device.has_context());
        let _context = active.and_then(|device| device.enter().ok());
        for (block, _) in blocks.drain() {
            // Once more where it is refused: a failure that passes leaves nothing behind.
            for _ in 0..2 {
                // SAFETY: as in `free`.
                if unsafe { self.driver.cuMemFreeHost(block as *mut c_void) }.is_ok() {
                    break;
                }
            }
        }
    }
}

/// The error of an address that is not a block.
pub fn unknown_block(block: usize) -> Error {
    Error::InvalidHostPointer {
        ptr: block,
        why: "is not pinned memory of tcuda_host_malloc, was freed already, or tcuda was shut down \
              since",
    }
}
