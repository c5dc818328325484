//! Sources of memory that the library does not map itself: one call for each piece of memory, which
//! is given back whole.

use crate::base::error::Result;
use crate::gpu::device::Device;
use crate::gpu::stream::Stream;

/// Allocates pieces of memory. It is called with no lock held except those of `driver::held` for
/// cuMemAlloc and cuMemFree. A call may wait for the device, or run code of the host.
pub trait Source: Send + Sync {
    /// Allocates a piece for a stream of the device. Lack of memory is
    /// [`Error::DriverOutOfMemory`].
    ///
    /// [`Error::DriverOutOfMemory`]: crate::base::error::Error::DriverOutOfMemory
    fn allocate(&self, device: &Device, stream: &Stream, bytes: u64) -> Result<u64>;

    /// Frees a piece, with the arguments of its allocation. After a failure the piece is still
    /// allocated.
    fn free(&self, device: &Device, stream: &Stream, address: u64, bytes: u64) -> Result<()>;

    /// The name in messages.
    fn name(&self) -> &'static str;
}

/// The driver's cuMemAlloc and cuMemFree; cuMemFree waits for the device.
#[derive(Clone, Copy, Debug)]
pub struct DriverSource;

impl Source for DriverSource {
    fn allocate(&self, device: &Device, _stream: &Stream, bytes: u64) -> Result<u64> {
        let _context = device.enter()?;
        let mut address = 0;
        // SAFETY: `address` is writable, the device's context is current.
        unsafe { device.driver().cuMemAlloc(&mut address, bytes as usize) }?;
        Ok(address)
    }

    fn free(&self, device: &Device, _stream: &Stream, address: u64, _bytes: u64) -> Result<()> {
        let _context = device.enter()?;
        // SAFETY: from cuMemAlloc, and freed once.
        unsafe { device.driver().cuMemFree(address) }?;
        Ok(())
    }

    fn name(&self) -> &'static str {
        "cuMemAlloc"
    }
}
