//! Pinned memory of the host, straight from the driver: what copies run beside the host's own work.

use crate::device::{CURRENT, Device};
use crate::driver::{Driver, code};
use crate::error::{Error, Result};
use crate::lock::{Held, Mutex};
use crate::memory::Relaxed;
use crate::rank::Rank;
use crate::runtime::Runtime;
use std::collections::HashSet;
use std::ffi::c_void;
use std::hash::{BuildHasherDefault, DefaultHasher};

/// Addresses. With keys of its own each set would ask the system for random ones, and panic without.
type Blocks = HashSet<usize, BuildHasherDefault<DefaultHasher>>;

/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every device, not for the current one alone.
const PORTABLE: u32 = 1;

/// The pinned memory of the process.
pub struct HostMemory {
    driver: &'static Driver,
    /// Addresses of what the host holds.
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
        blocks.insert(block as usize);
        Ok(block as usize)
    }

    /// Gives a block back; the driver waits for the work that may use it.
    pub fn free(&self, runtime: &Runtime, block: usize) -> Result<()> {
        let _relaxed = Relaxed::enter(self.driver);
        let _context = runtime.device(CURRENT)?.enter()?;
        // Off the list first: from the driver's call on the address may be another thread's.
        if !self.blocks().remove(&block) {
            return Err(unknown_block(block));
        }
        // SAFETY: it came from cuMemHostAlloc, and whoever took it off the list frees it.
        unsafe { self.driver.cuMemFreeHost(block as *mut c_void) }?;
        Ok(())
    }

    /// Gives everything back. Nobody is inside, no work is under way; `devices` have their contexts.
    pub(crate) fn close(&self, devices: &[Device]) {
        let mut blocks = std::mem::take(&mut *self.blocks());
        let active = devices.iter().find(|device| device.has_context());
        let _context = active.and_then(|device| device.enter().ok());
        for block in blocks.drain() {
            // SAFETY: as in `free`. An error is the driver's last word.
            let _ = unsafe { self.driver.cuMemFreeHost(block as *mut c_void) };
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
