//! Memory of the host that it registers: page-locked where it is, until it is unregistered.

use super::{HostMemory, source};
use crate::base::error::{Error, Result};
use crate::base::waiting;
use crate::driver::{CudaResult, code};
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::gpus::Gpus;
use std::ffi::c_void;

/// Flags that a registration may have: CU_MEMHOSTREGISTER_PORTABLE, _DEVICEMAP, _IOMEMORY and
/// _READ_ONLY.
pub const FLAGS: u32 = 1 | 2 | 4 | 8;

impl HostMemory {
    /// Registers a range. Memory that is page-locked already is refused.
    pub fn register(&self, gpus: &Gpus, address: usize, bytes: usize, flags: u32) -> Result<()> {
        waiting::refuse_in_callback()?;
        // The driver calls that an invalid value.
        if self.has(address) || self.has(address + bytes - 1) {
            return Err(locked_already(address));
        }
        let no_room = |_| Error::OutOfHostMemory("a registration");
        // Room first: what the driver did must be in the list.
        self.registered.lock().try_reserve(1).map_err(no_room)?;
        let _relaxed = Relaxed::enter(self.driver);
        let _context = source::enter(gpus)?;
        // SAFETY: the host promises that the range is its own, and mapped.
        let done = unsafe { self.driver.cuMemHostRegister(address as *mut c_void, bytes, flags) };
        done.map_err(|error| match error.code {
            code::HOST_MEMORY_ALREADY_REGISTERED => locked_already(address),
            // The system limits the locked memory.
            code::OPERATING_SYSTEM => source::no_memory(),
            _ => error.into(),
        })?;
        let mut registered = self.registered.lock();
        if let Err(refused) = registered.try_reserve(1) {
            // Other registrations took the room meanwhile.
            drop(registered);
            self.unregister_for_good(address);
            return Err(no_room(refused));
        }
        registered.push(address);
        Ok(())
    }

    /// Ends a registration, by the address of its range. The driver waits for the devices, and
    /// decides which of two threads that end the same one does. On failure it stays.
    pub fn unregister(&self, gpus: &Gpus, address: usize) -> Result<()> {
        waiting::refuse_in_callback()?;
        if !self.registered.lock().contains(&address) {
            return Err(not_registered(address));
        }
        let _relaxed = Relaxed::enter(self.driver);
        let _context = source::enter(gpus)?;
        self.unregister_now(address).map_err(|error| match error.code {
            code::HOST_MEMORY_NOT_REGISTERED => not_registered(address),
            _ => error.into(),
        })?;
        let mut registered = self.registered.lock();
        if let Some(index) = registered.iter().position(|known| *known == address) {
            registered.swap_remove(index);
        }
        Ok(())
    }

    /// Ends all registrations; a context is current.
    pub(super) fn unregister_all(&self) {
        let registered = std::mem::take(&mut *self.registered.lock());
        for address in registered {
            self.unregister_for_good(address);
        }
    }

    /// Tries twice, so that a transient failure leaves nothing behind.
    fn unregister_for_good(&self, address: usize) {
        let _ = self.unregister_now(address).or_else(|_| self.unregister_now(address));
    }

    fn unregister_now(&self, address: usize) -> CudaResult {
        // SAFETY: the driver checks that a range is registered there.
        unsafe { self.driver.cuMemHostUnregister(address as *mut c_void) }
    }
}

fn locked_already(address: usize) -> Error {
    Error::InvalidHostPointer {
        ptr: address,
        why: "begins a range that is page-locked already, in part at least: it overlaps memory of \
              tcuda_host_malloc, or a registration, which tcuda_host_unregister ends",
    }
}

/// The error for an address at which no registered range begins.
pub fn not_registered(address: usize) -> Error {
    Error::InvalidHostPointer {
        ptr: address,
        why: "is not the address of a range of tcuda_host_register, or it was unregistered \
              already, or tcuda was shut down since",
    }
}
