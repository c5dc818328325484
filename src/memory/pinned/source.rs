//! The sources of pinned memory: cuMemHostAlloc, or system memory that is pinned afterwards.

use super::stats::Counts;
use super::threads;
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::driver::{Driver, code};
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::{CURRENT, ContextGuard};
use crate::gpu::gpus::Gpus;
use crate::memory::config::host_settings::HostSettings;
use std::ffi::c_void;
use std::time::Instant;

/// `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTREGISTER_PORTABLE`: pinned for every device, not only
/// for the current one.
const PORTABLE: u32 = 1;
/// Segment sizes are multiples of this.
pub const PAGE: usize = 4096;

/// How a segment was obtained, which determines how it is freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Allocated by cuMemHostAlloc.
    Driver,
    /// Mapped from the system, then pinned by cuMemHostRegister.
    Registered,
    /// A piece of the reserve, which is never freed on its own.
    Reserve,
}

/// A range that is pinned once, and from which segments are cut.
#[derive(Clone, Copy)]
struct Reserve {
    base: usize,
    bytes: usize,
    used: usize,
    origin: Origin,
}

/// The source of pinned segments.
pub struct Source {
    driver: &'static Driver,
    reserve: Mutex<Option<Reserve>>,
}

/// The error of a request for which there is no memory.
pub fn no_memory() -> Error {
    Error::OutOfHostMemory(
        "pinned memory; free some, call tcuda_host_memory_empty_cache, or ask for less",
    )
}

/// The error if there is no memory for the reserve.
fn no_reserve() -> Error {
    Error::OutOfHostMemory(
        "the reserve of pinned memory; ask for a smaller pinned_reserve_segment_size_mb by \
         tcuda_allocator_config_set",
    )
}

/// Enters a context in which memory can be pinned: an existing one if possible, so that no context
/// is created on a device that the host does not use.
fn enter(gpus: &Gpus) -> Result<ContextGuard> {
    let current = gpus.device(CURRENT)?;
    if current.has_context() {
        return current.enter();
    }
    gpus.devices.iter().find(|device| device.has_context()).unwrap_or(current).enter()
}

impl Source {
    pub fn new(driver: &'static Driver) -> Source {
        Source { driver, reserve: Mutex::new(Rank::LEAF, None) }
    }

    /// Obtains between `least` and `bytes` bytes, in whole pages: a piece of the reserve if there
    /// is one, otherwise `bytes`, or `least` if memory is short.
    pub fn obtain(
        &self,
        gpus: &Gpus,
        counts: &Counts,
        settings: &HostSettings,
        (least, bytes): (usize, usize),
    ) -> Result<(usize, usize, Origin)> {
        let _relaxed = Relaxed::enter(self.driver);
        let _context = enter(gpus)?;
        if let Some((base, bytes)) = self.cut(counts, settings, least, bytes)? {
            return Ok((base, bytes, Origin::Reserve));
        }
        match self.pin(counts, settings, bytes) {
            Err(Error::OutOfHostMemory(_)) if least < bytes => {
                self.pin(counts, settings, least).map(|(base, origin)| (base, least, origin))
            }
            pinned => pinned.map(|(base, origin)| (base, bytes, origin)),
        }
    }

    /// Cuts a piece off the reserve, which is pinned at its first use.
    fn cut(
        &self,
        counts: &Counts,
        settings: &HostSettings,
        least: usize,
        bytes: usize,
    ) -> Result<Option<(usize, usize)>> {
        // Whole MiB.
        let whole = settings.reserve_segment_bytes as usize;
        if whole == 0 {
            return Ok(None);
        }
        if self.reserve.lock().is_none() {
            if whole as u64 >= super::TOO_LARGE {
                return Err(no_reserve());
            }
            let (base, origin) =
                self.pin(counts, settings, whole).map_err(|error| match error {
                    Error::OutOfHostMemory(_) => no_reserve(),
                    other => other,
                })?;
            let mut reserve = self.reserve.lock();
            if reserve.is_none() {
                *reserve = Some(Reserve { base, bytes: whole, used: 0, origin });
            } else {
                drop(reserve);
                self.close_segment(counts, base, whole, origin);
            }
        }
        let mut reserve = self.reserve.lock();
        let Some(reserve) = reserve.as_mut() else { return Ok(None) };
        let bytes = bytes.min(reserve.bytes - reserve.used);
        if bytes < least {
            return Ok(None);
        }
        let base = reserve.base + reserve.used;
        reserve.used += bytes;
        Ok(Some((base, bytes)))
    }

    fn pin(
        &self,
        counts: &Counts,
        settings: &HostSettings,
        bytes: usize,
    ) -> Result<(usize, Origin)> {
        let begun = Instant::now();
        let (outcome, origin) = if settings.use_host_register {
            (self.register(settings.register_threads, bytes), Origin::Registered)
        } else {
            let mut base: *mut c_void = std::ptr::null_mut();
            // SAFETY: `base` is writable, a context is current.
            let outcome = unsafe { self.driver.cuMemHostAlloc(&mut base, bytes, PORTABLE) };
            (outcome.map_err(Error::from).map(|()| base as usize), Origin::Driver)
        };
        let base = match outcome {
            Err(Error::DriverOutOfMemory { .. }) => return Err(no_memory()),
            other => other?,
        };
        counts.count_segment(bytes, begun.elapsed());
        Ok((base, origin))
    }

    /// Maps memory, touches it with several threads, then pins it.
    fn register(&self, num_threads: u32, bytes: usize) -> Result<usize> {
        // SAFETY: maps new pages at an address that the system chooses.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(no_memory());
        }
        threads::touch(base as usize, bytes, num_threads as usize);
        // SAFETY: fresh memory of ours, a context is current.
        match unsafe { self.driver.cuMemHostRegister(base, bytes, PORTABLE) } {
            Ok(()) => Ok(base as usize),
            Err(error) => {
                unmap(base as usize, bytes);
                // The system limits the locked memory: that counts as no memory.
                let is_full = error.code == code::OPERATING_SYSTEM;
                if is_full { Err(no_memory()) } else { Err(error.into()) }
            }
        }
    }

    /// Frees a segment; the driver waits for all work of its devices.
    pub fn give(
        &self,
        gpus: &Gpus,
        counts: &Counts,
        (base, bytes, origin): (usize, usize, Origin),
    ) -> Result<()> {
        let _relaxed = Relaxed::enter(self.driver);
        let _context = enter(gpus)?;
        self.unpin(counts, base, bytes, origin)
    }

    fn unpin(&self, counts: &Counts, base: usize, bytes: usize, origin: Origin) -> Result<()> {
        let begun = Instant::now();
        let memory = base as *mut c_void;
        match origin {
            Origin::Reserve => return Ok(()),
            // SAFETY: from cuMemHostAlloc, and freed once.
            Origin::Driver => unsafe { self.driver.cuMemFreeHost(memory) }?,
            Origin::Registered => {
                // SAFETY: registered by `register`, and unregistered once.
                unsafe { self.driver.cuMemHostUnregister(memory) }?;
                unmap(base, bytes);
            }
        }
        counts.count_segment_free(bytes, begun.elapsed());
        Ok(())
    }

    /// Frees a segment that is no longer in any list. Tries twice, so that a transient failure
    /// leaves nothing behind. A context is current.
    pub fn close_segment(&self, counts: &Counts, base: usize, bytes: usize, origin: Origin) {
        if self.unpin(counts, base, bytes, origin).is_err() {
            let _ = self.unpin(counts, base, bytes, origin);
        }
    }

    /// Frees the reserve; its pieces are no longer in use, and a context is current.
    pub fn close(&self, counts: &Counts) {
        let reserve = self.reserve.lock().take();
        if let Some(Reserve { base, bytes, origin, .. }) = reserve {
            self.close_segment(counts, base, bytes, origin);
        }
    }
}

fn unmap(base: usize, bytes: usize) {
    // SAFETY: the mapping that `register` made, no longer in use.
    unsafe { libc::munmap(base as *mut c_void, bytes) };
}
