//! Device memory that is registered with cuFile. Memory of several mappings of the driver, as large
//! blocks of the cache have, is registered mapping by mapping, and transferred so.

use super::{Files, device_of};
use crate::base::error::{Error, Result};
use crate::base::waiting;
use crate::driver::cufile::{self, Cufile, Failure, Place};
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::gpus::Gpus;
use crate::memory;
use crate::ops::copy;

/// A registered part of a mapping.
#[derive(Clone, Copy)]
pub(super) struct Buffer {
    address: u64,
    bytes: u64,
    /// The address that the host registered.
    owner: u64,
    device: i32,
    /// The driver's number of the allocation. Another number: that memory is gone.
    number: u64,
}

impl Buffer {
    fn end(&self) -> u64 {
        self.address + self.bytes
    }

    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.address < end && start < self.end()
    }
}

/// The number of bytes from an address, at most so many, that are in one mapping of the driver.
fn in_one_mapping(gpus: &Gpus, address: u64, bytes: u64) -> Result<u64> {
    Ok(copy::range_of(gpus, address)?.map_or(bytes, |(_, end)| bytes.min(end - address)))
}

impl Files {
    /// Registers device memory, at least one byte.
    pub fn register(&self, gpus: &Gpus, address: u64, bytes: u64) -> Result<()> {
        waiting::refuse_in_callback()?;
        let device = device_of(gpus, address, bytes)?;
        let cufile = self.cufile(gpus)?;
        let end = address + bytes;
        self.unregister_if(gpus, cufile, |buffer| {
            buffer.overlaps(address, end) && is_gone(gpus, buffer)
        });
        if self.buffers.lock().iter().any(|buffer| buffer.overlaps(address, end)) {
            return Err(Error::InvalidPointer {
                ptr: address as usize,
                why: "begins a range that is registered already, in part at least; \
                      tcuda_file_unregister_buffer ends a registration",
            });
        }
        let _relaxed = Relaxed::enter(gpus.driver());
        let _context = device.enter()?;
        let outcome = self.register_pieces(gpus, cufile, (address, end), device.ordinal());
        if outcome.is_err() {
            self.unregister_if(gpus, cufile, |buffer| {
                buffer.owner == address && buffer.overlaps(address, end)
            });
        }
        outcome
    }

    fn register_pieces(
        &self,
        gpus: &Gpus,
        cufile: &Cufile,
        (owner, end): (u64, u64),
        device: i32,
    ) -> Result<()> {
        let mut address = owner;
        while address < end {
            let bytes = in_one_mapping(gpus, address, end - address)?;
            let number = copy::allocation_number(gpus, address)?;
            let no_room = |_| Error::OutOfHostMemory("a registration");
            cufile.register_buffer(address, bytes)?;
            let listed = {
                let mut buffers = self.buffers.lock();
                let room = buffers.try_reserve(1).map_err(no_room);
                room.map(|()| buffers.push(Buffer { address, bytes, owner, device, number }))
            };
            if listed.is_err() {
                let _ = cufile.deregister_buffer(address);
                return listed;
            }
            address += bytes;
        }
        Ok(())
    }

    /// Ends the registration of memory, by the address that was registered.
    pub fn unregister(&self, gpus: &Gpus, address: u64) -> Result<()> {
        waiting::refuse_in_callback()?;
        if !self.buffers.lock().iter().any(|buffer| buffer.owner == address) {
            return Err(not_registered(address));
        }
        let cufile = self.cufile(gpus)?;
        let _relaxed = Relaxed::enter(gpus.driver());
        match self.unregister_if(gpus, cufile, |buffer| buffer.owner == address) {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }

    /// Ends all registrations.
    pub(super) fn unregister_all(&self, gpus: &Gpus) {
        if let Ok(cufile) = self.cufile(gpus) {
            self.unregister_if(gpus, cufile, |_| true);
        }
    }

    /// Ends the registrations of memory that the host has freed, before the cache gives it back to
    /// the driver. The caller holds no lock.
    pub(crate) fn unregister_freed(&self, gpus: &Gpus) {
        if self.buffers.lock().is_empty() {
            return;
        }
        if let Ok(cufile) = self.cufile(gpus) {
            let _relaxed = Relaxed::enter(gpus.driver());
            self.unregister_if(gpus, cufile, |buffer| {
                memory::extent(buffer.address).is_err() || is_gone(gpus, buffer)
            });
        }
    }

    /// Ends the registrations for which `ends` is true; returns the first failure.
    fn unregister_if(
        &self,
        gpus: &Gpus,
        cufile: &Cufile,
        mut ends: impl FnMut(&Buffer) -> bool,
    ) -> Option<Failure> {
        let (mut index, mut failed) = (0, None);
        loop {
            // `ends` may take locks.
            let Some(buffer) = self.buffers.lock().get(index).copied() else { return failed };
            if !ends(&buffer) {
                index += 1;
                continue;
            }
            let is_listed = {
                let mut buffers = self.buffers.lock();
                let at = buffers.iter().position(|known| known.address == buffer.address);
                at.map(|at| buffers.swap_remove(at)).is_some()
            };
            if !is_listed {
                // Another thread has ended it.
                continue;
            }
            let _context = gpus.device(buffer.device).and_then(|device| device.enter());
            match cufile.deregister_buffer(buffer.address) {
                Err(Failure::Call(error)) if error.code == cufile::NOT_REGISTERED => (),
                Err(failure) => failed = failed.or(Some(failure)),
                Ok(()) => (),
            }
        }
    }

    /// The beginning of a range of memory, as cuFile transfers it at once: in a registered buffer,
    /// or in one mapping.
    pub(super) fn place_of(&self, gpus: &Gpus, address: u64, bytes: u64) -> Result<Place> {
        let end = address + bytes;
        let found = {
            let buffers = self.buffers.lock();
            let in_range = buffers.iter().filter(|buffer| buffer.overlaps(address, end));
            in_range.min_by_key(|buffer| buffer.address).copied()
        };
        let whole = |bytes| Place { base: address, offset: 0, bytes };
        match found {
            Some(buffer) if is_gone(gpus, &buffer) => {
                let cufile = self.cufile(gpus)?;
                let is_it = |known: &Buffer| {
                    (known.address, known.number) == (buffer.address, buffer.number)
                };
                self.unregister_if(gpus, cufile, is_it);
                self.place_of(gpus, address, bytes)
            }
            Some(buffer) if buffer.address <= address => {
                let (base, offset) = (buffer.address, address - buffer.address);
                Ok(Place { base, offset, bytes: bytes.min(buffer.end() - address) })
            }
            // The registered buffer begins later.
            Some(buffer) => in_one_mapping(gpus, address, buffer.address - address).map(whole),
            None => in_one_mapping(gpus, address, bytes).map(whole),
        }
    }
}

/// Does the memory of a registration exist no more?
fn is_gone(gpus: &Gpus, buffer: &Buffer) -> bool {
    copy::allocation_number(gpus, buffer.address).is_ok_and(|number| number != buffer.number)
}

/// The error for an address at which no registered range begins.
pub fn not_registered(address: u64) -> Error {
    Error::InvalidPointer {
        ptr: address as usize,
        why: "is not the address of a range of tcuda_file_register_buffer, or it was unregistered \
              already, or tcuda was shut down since",
    }
}
