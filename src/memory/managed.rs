//! Blocks of managed memory, and what the host tells the driver about ranges of it.

use crate::base::error::{Error, Result};
use crate::base::ordinal::CPU;
use crate::driver::sys::{CUmem_advise, CUmem_range_attribute};
use crate::driver::{CudaResult, code};
use crate::gpu::device::{Device, MAX_DEVICES};
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory::backing::managed::{ManagedSource, explain};
use crate::memory::backing::pluggable::Pluggable;
use crate::memory::device::uncached::Origin;
use std::ffi::c_void;

/// CU_DEVICE_CPU and CU_DEVICE_INVALID.
const DRIVER_CPU: i32 = -1;
const DRIVER_NONE: i32 = -2;

/// In place of a device: none.
pub const NONE: i32 = -1;

/// A range of managed memory.
#[derive(Clone, Copy)]
pub struct Range {
    address: u64,
    bytes: usize,
}

/// What the driver knows about a range. Devices are ordinals, [`CPU`], or [`NONE`] where the parts
/// of the range differ or nothing was said.
pub struct Advice {
    /// Are the pages copied to where they are read?
    pub is_read_mostly: bool,
    /// Where the pages are to be.
    pub preferred: i32,
    /// Where they were last prefetched to.
    pub prefetched: i32,
    /// Devices that use all of the range, as bits.
    pub accessed_by: u64,
    /// Does the host use all of it?
    pub is_accessed_by_host: bool,
}

/// Allocates a block of managed memory, which is freed as other blocks.
pub fn allocate(
    gpus: &Gpus,
    device: &Device,
    stream: &Stream,
    bytes: u64,
    flags: u32,
) -> Result<u64> {
    let source = ManagedSource::new(flags)?;
    if bytes == 0 {
        return Ok(0);
    }
    let origin = Origin::Pluggable(Pluggable::managed(source)?);
    device.memory().try_uncached(gpus, device, stream, bytes, &origin)
}

impl Range {
    /// A range of at least a byte.
    pub fn new(address: u64, bytes: usize) -> Result<Range> {
        if bytes == 0 || address.checked_add(bytes as u64).is_none() {
            return Err(Error::OutOfRange {
                name: "bytes",
                value: bytes as i64,
                allowed: "use 1 to the length of the memory behind ptr",
            });
        }
        Ok(Range { address, bytes })
    }

    /// Advises the driver how the range is used, and by which device where the advice says that.
    pub fn advise(self, gpus: &Gpus, advice: CUmem_advise, device: i32) -> Result<()> {
        let (_context, location) = (gpus.device(NONE)?.enter()?, location_of(gpus, device)?);
        // SAFETY: the driver looks the range up.
        let outcome =
            unsafe { gpus.driver().cuMemAdvise(self.address, self.bytes, advice, location) };
        self.checked(outcome, device)
    }

    /// Moves the pages to a device or the host, in the order of a stream.
    pub fn prefetch(self, gpus: &Gpus, device: i32, stream: &Stream) -> Result<()> {
        let (_context, location) = (stream.enter(gpus)?, location_of(gpus, device)?);
        // SAFETY: the driver looks the range up; the stream is alive.
        let outcome = unsafe {
            gpus.driver().cuMemPrefetchAsync(self.address, self.bytes, location, stream.native())
        };
        self.checked(outcome, device)
    }

    /// Says which streams use the range, from the present end of a stream on.
    pub fn attach(self, gpus: &Gpus, flags: u32, stream: &Stream) -> Result<()> {
        let _context = stream.enter(gpus)?;
        let (driver, native) = (gpus.driver(), stream.native());
        // SAFETY: the driver looks the range up; the stream is alive.
        let outcome =
            unsafe { driver.cuStreamAttachMemAsync(native, self.address, self.bytes, flags) };
        self.checked(outcome, stream.device())
    }

    /// What the driver knows about it.
    pub fn advice(self, gpus: &Gpus) -> Result<Advice> {
        use CUmem_range_attribute::*;
        let _context = gpus.device(NONE)?.enter()?;
        let one = |which| -> Result<i32> {
            let mut value = 0i32;
            self.attribute(gpus, std::slice::from_mut(&mut value), which)?;
            Ok(value)
        };
        let device = |number| match number {
            DRIVER_CPU => CPU,
            _ => ordinal_of(gpus, number).unwrap_or(NONE),
        };
        let mut users = [DRIVER_NONE; MAX_DEVICES + 1];
        self.attribute(gpus, &mut users, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY)?;
        let bits = users.iter().filter_map(|number| ordinal_of(gpus, *number));
        Ok(Advice {
            is_read_mostly: one(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY)? != 0,
            preferred: device(one(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION)?),
            prefetched: device(one(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION)?),
            accessed_by: bits.fold(0, |bits, ordinal| bits | 1 << ordinal),
            is_accessed_by_host: users.contains(&DRIVER_CPU),
        })
    }

    fn attribute(
        self,
        gpus: &Gpus,
        values: &mut [i32],
        which: CUmem_range_attribute,
    ) -> Result<()> {
        let (to, size) = (values.as_mut_ptr().cast::<c_void>(), size_of_val(values));
        // SAFETY: `to` has `size` bytes; the driver looks the range up.
        let outcome = unsafe {
            gpus.driver().cuMemRangeGetAttribute(to, size, which, self.address, self.bytes)
        };
        self.checked(outcome, NONE)
    }

    fn checked(self, outcome: CudaResult, device: i32) -> Result<()> {
        outcome.map_err(|error| match error.code {
            code::INVALID_VALUE => Error::InvalidPointer {
                ptr: self.address as usize,
                why: "does not begin a range of managed memory of that length; use memory of \
                      tcuda_managed_malloc or cuMemAllocManaged",
            },
            code::INVALID_DEVICE if device >= 0 => Error::NotSupported {
                what: "moving single pages of managed memory, concurrent managed access,",
                by: "device",
            },
            _ => explain(error),
        })
    }
}

/// The driver's number of a device or of the host.
fn location_of(gpus: &Gpus, device: i32) -> Result<i32> {
    if device == CPU { Ok(DRIVER_CPU) } else { Ok(gpus.device(device)?.handle()) }
}

fn ordinal_of(gpus: &Gpus, handle: i32) -> Option<i32> {
    gpus.devices.iter().find(|device| device.handle() == handle).map(Device::ordinal)
}
