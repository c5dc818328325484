//! The sources of pinned memory: cuMemHostAlloc, or system memory that is pinned afterwards.

use super::stats::HostStatistics;
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

/// Pinned memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    pub base: usize,
    pub bytes: usize,
    pub origin: Origin,
}

impl Memory {
    /// One past the last address.
    pub fn end(&self) -> usize {
        self.base + self.bytes
    }
}

/// The source of pinned segments.
pub struct Source {
    driver: &'static Driver,
    /// A range that is pinned once, and the bytes of it that segments were cut from.
    reserve: Mutex<Option<(Memory, usize)>>,
    /// The statistics, except those of blocks.
    pub statistics: Mutex<HostStatistics>,
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
pub fn enter(gpus: &Gpus) -> Result<ContextGuard> {
    let current = gpus.device(CURRENT)?;
    if current.has_context() {
        return current.enter();
    }
    gpus.devices.iter().find(|device| device.has_context()).unwrap_or(current).enter()
}

impl Source {
    pub fn new(driver: &'static Driver) -> Source {
        let statistics = Mutex::new(Rank::LEAF, HostStatistics::default());
        Source { driver, reserve: Mutex::new(Rank::LEAF, None), statistics }
    }

    /// Obtains between `least` and `bytes` bytes, in whole pages: a piece of the reserve if there
    /// is one, otherwise `bytes`, or `least` if memory is short.
    pub fn obtain(
        &self,
        gpus: &Gpus,
        settings: &HostSettings,
        (least, bytes): (usize, usize),
    ) -> Result<Memory> {
        let _relaxed = Relaxed::enter(self.driver);
        let _context = enter(gpus)?;
        if let Some(piece) = self.cut(settings, least, bytes)? {
            return Ok(piece);
        }
        match self.pin(settings, bytes) {
            Err(Error::OutOfHostMemory(_)) if least < bytes => self.pin(settings, least),
            pinned => pinned,
        }
    }

    /// Cuts a piece off the reserve, which is pinned at its first use.
    fn cut(&self, settings: &HostSettings, least: usize, bytes: usize) -> Result<Option<Memory>> {
        // Whole MiB.
        let whole = settings.reserve_segment_bytes as usize;
        if whole == 0 {
            return Ok(None);
        }
        let exists = self.reserve.lock().is_some();
        if !exists {
            if whole as u64 >= super::TOO_LARGE {
                return Err(no_reserve());
            }
            let new = self.pin(settings, whole).map_err(|error| match error {
                Error::OutOfHostMemory(_) => no_reserve(),
                other => other,
            })?;
            let other = self.reserve.lock().get_or_insert((new, 0)).0;
            if other.base != new.base {
                self.close_segment(new);
            }
        }
        let mut reserve = self.reserve.lock();
        let Some((Memory { base, bytes: all, .. }, used)) = reserve.as_mut() else {
            return Ok(None);
        };
        let bytes = bytes.min(*all - *used);
        if bytes < least {
            return Ok(None);
        }
        let base = *base + *used;
        *used += bytes;
        Ok(Some(Memory { base, bytes, origin: Origin::Reserve }))
    }

    fn pin(&self, settings: &HostSettings, bytes: usize) -> Result<Memory> {
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
        self.statistics.lock().count(bytes as i64, begun.elapsed());
        Ok(Memory { base, bytes, origin })
    }

    /// Maps memory, touches it with several threads, then pins it.
    fn register(&self, num_threads: u32, bytes: usize) -> Result<usize> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: maps new pages at an address that the system chooses.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(no_memory());
        }
        threads::touch(base as usize, bytes, num_threads as usize);
        // SAFETY: fresh memory of ours, a context is current.
        let registered = unsafe { self.driver.cuMemHostRegister(base, bytes, PORTABLE) };
        registered.map(|()| base as usize).map_err(|error| {
            unmap(base as usize, bytes);
            // The system limits the locked memory: that counts as no memory.
            if error.code == code::OPERATING_SYSTEM { no_memory() } else { error.into() }
        })
    }

    /// Frees a segment; the driver waits for all work of its devices.
    pub fn give(&self, gpus: &Gpus, memory: Memory) -> Result<()> {
        let _relaxed = Relaxed::enter(self.driver);
        let _context = enter(gpus)?;
        self.unpin(memory)
    }

    fn unpin(&self, Memory { base, bytes, origin }: Memory) -> Result<()> {
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
        self.statistics.lock().count(-(bytes as i64), begun.elapsed());
        Ok(())
    }

    /// Frees a segment that is no longer in any list. Tries twice, so that a transient failure
    /// leaves nothing behind. A context is current.
    pub fn close_segment(&self, memory: Memory) {
        let _ = self.unpin(memory).or_else(|_| self.unpin(memory));
    }

    /// Frees the reserve; its pieces are no longer in use, and a context is current.
    pub fn close(&self) {
        let reserve = self.reserve.lock().take();
        reserve.into_iter().for_each(|(memory, _)| self.close_segment(memory));
    }
}

fn unmap(base: usize, bytes: usize) {
    // SAFETY: the mapping that `register` made, no longer in use.
    unsafe { libc::munmap(base as *mut c_void, bytes) };
}
