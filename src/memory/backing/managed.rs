//! Managed memory: pages that devices and the host share, and that the driver moves to where they
//! are used.

use super::source::Source;
use crate::base::error::{Error, Result};
use crate::driver::sys::{CUdevice_attribute, CUmem_advise};
use crate::driver::{CudaError, code};
use crate::gpu::device::Device;
use crate::gpu::stream::{Stream, is_capturing};

/// Flag: no advice about where the pages are used.
pub const NO_ADVICE: u32 = 1;
/// Flag: the pages are moved to the device after their allocation.
pub const PREFETCH: u32 = 2;
/// Flag: only the host uses the memory, until it is attached to a stream or to all.
pub const ATTACH_HOST: u32 = 4;

/// CU_MEM_ATTACH_GLOBAL and CU_MEM_ATTACH_HOST.
const GLOBAL: u32 = 1;
const HOST: u32 = 2;

/// cuMemAllocManaged, with flags.
#[derive(Clone, Copy, Debug)]
pub struct ManagedSource {
    flags: u32,
}

impl ManagedSource {
    /// A source with checked flags.
    pub fn new(flags: u32) -> Result<ManagedSource> {
        if flags & !(NO_ADVICE | PREFETCH | ATTACH_HOST) != 0 {
            return Err(Error::OutOfRange {
                name: "flags",
                value: flags.into(),
                allowed: "combine TCUDA_MANAGED_NO_ADVICE, _PREFETCH and _ATTACH_HOST, or use 0",
            });
        }
        Ok(ManagedSource { flags })
    }

    /// What PyTorch advises: the device uses the pages, and they are to be there. A failure changes
    /// no result of any work, and is ignored.
    fn advise(&self, device: &Device, stream: &Stream, address: u64, bytes: usize) {
        let (driver, handle) = (device.driver(), device.handle());
        if !matches!(can_advise(device), Ok(true)) {
            return;
        }
        if self.flags & NO_ADVICE == 0 {
            use CUmem_advise::*;
            for advice in [CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_MEM_ADVISE_SET_ACCESSED_BY] {
                // SAFETY: managed memory that was just allocated.
                let _ = unsafe { driver.cuMemAdvise(address, bytes, advice, handle) };
            }
        }
        // A graph would move the pages at each replay.
        if self.flags & PREFETCH != 0 && matches!(is_capturing(driver, stream.native()), Ok(false))
        {
            // SAFETY: as above; the stream is alive.
            let _ = unsafe { driver.cuMemPrefetchAsync(address, bytes, handle, stream.native()) };
        }
    }
}

/// Can the driver move pages to the device on request? Others move all pages at each launch.
pub(in crate::memory) fn can_advise(device: &Device) -> Result<bool> {
    use CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
    Ok(device.attribute_or(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0)? != 0)
}

impl Source for ManagedSource {
    fn allocate(&self, device: &Device, stream: &Stream, bytes: u64) -> Result<u64> {
        let _context = device.enter()?;
        let (mut address, bytes) = (0, bytes as usize);
        let attach = if self.flags & ATTACH_HOST != 0 { HOST } else { GLOBAL };
        // SAFETY: `address` is writable, the device's context is current.
        let given = unsafe { device.driver().cuMemAllocManaged(&mut address, bytes, attach) };
        given.map_err(explain)?;
        self.advise(device, stream, address, bytes);
        Ok(address)
    }

    fn free(&self, device: &Device, _stream: &Stream, address: u64, _bytes: u64) -> Result<()> {
        let _context = device.enter()?;
        // SAFETY: from cuMemAllocManaged, and freed once.
        unsafe { device.driver().cuMemFree(address) }?;
        Ok(())
    }

    fn name(&self) -> &'static str {
        "cuMemAllocManaged"
    }
}

/// The error of a call for managed memory.
pub(in crate::memory) fn explain(error: CudaError) -> Error {
    match error.code {
        code::NOT_SUPPORTED => Error::NotSupported { what: "managed memory", by: "device" },
        _ => error.into(),
    }
}
