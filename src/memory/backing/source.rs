//! Where memory comes from that is not mapped by us: one call for each piece, given back as it came.

use crate::base::error::Result;
use crate::gpu::device::Device;
use crate::gpu::stream::Stream;

/// What gives memory, a piece at a time. Called with no lock held but those of `driver::held` for
/// cuMemAlloc and cuMemFree: it may wait for the device, or be the host's own function.
pub trait Source: Send + Sync {
    /// A piece for a stream of the device. Want of memory is [`Error::DriverOutOfMemory`].
    ///
    /// [`Error::DriverOutOfMemory`]: crate::base::error::Error::DriverOutOfMemory
    fn allocate(&self, device: &Device, stream: &Stream, bytes: u64) -> Result<u64>;

    /// Gives a piece back that it gave, with what was said then. What fails is still a piece.
    fn free(&self, device: &Device, stream: &Stream, address: u64, bytes: u64) -> Result<()>;

    /// What messages call it.
    fn name(&self) -> &'static str;
}

/// The driver's plain memory, which waits for the device when it goes.
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
        // SAFETY: from cuMemAlloc, and nobody else gives it back.
        unsafe { device.driver().cuMemFree(address) }?;
        Ok(())
    }

    fn name(&self) -> &'static str {
        "cuMemAlloc"
    }
}
