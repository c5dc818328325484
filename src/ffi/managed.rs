//! Section "Memory" of the header: managed memory.

use super::boundary::{Sized_, boundary, out, struct_out};
use super::memory::place_of;
use super::pluggable::{ALLOCATORS, tcuda_pluggable_allocator};
use super::status::tcuda_status;
use super::stream::{or_current, tcuda_stream};
use crate::base::error::{Error, Result};
use crate::driver::sys::CUmem_advise;
use crate::memory::backing::managed::{self as source, ManagedSource};
use crate::memory::backing::pluggable::Pluggable;
use crate::memory::managed::{self, Range};
use std::ffi::c_void;

/// Flag: no advice to the driver. Without it the device is the preferred location, and accesses the
/// memory, as in PyTorch.
pub const TCUDA_MANAGED_NO_ADVICE: u32 = 1;
/// Flag: the memory is moved to the device once it is allocated, in the order of the stream.
pub const TCUDA_MANAGED_PREFETCH: u32 = 2;
/// Flag: only the host uses the memory, until tcuda_memory_attach.
pub const TCUDA_MANAGED_ATTACH_HOST: u32 = 4;

const _: () = assert!(TCUDA_MANAGED_NO_ADVICE == source::NO_ADVICE);
const _: () = assert!(TCUDA_MANAGED_PREFETCH == source::PREFETCH);
const _: () = assert!(TCUDA_MANAGED_ATTACH_HOST == source::ATTACH_HOST);

/// Advice: mostly read, so that each reader gets a copy of the pages. Ignores the device.
pub const TCUDA_ADVISE_SET_READ_MOSTLY: i32 = 1;
/// Undoes TCUDA_ADVISE_SET_READ_MOSTLY.
pub const TCUDA_ADVISE_UNSET_READ_MOSTLY: i32 = 2;
/// Advice: the pages are to be on the device, or the host.
pub const TCUDA_ADVISE_SET_PREFERRED_LOCATION: i32 = 3;
/// Undoes TCUDA_ADVISE_SET_PREFERRED_LOCATION. Ignores the device.
pub const TCUDA_ADVISE_UNSET_PREFERRED_LOCATION: i32 = 4;
/// Advice: the device, or the host, accesses the pages, wherever they are.
pub const TCUDA_ADVISE_SET_ACCESSED_BY: i32 = 5;
/// Undoes TCUDA_ADVISE_SET_ACCESSED_BY.
pub const TCUDA_ADVISE_UNSET_ACCESSED_BY: i32 = 6;

/// All streams use the memory.
pub const TCUDA_ATTACH_GLOBAL: u32 = 1;
/// Only the host uses it.
pub const TCUDA_ATTACH_HOST: u32 = 2;
/// Only the stream, and the host while the stream has no work.
pub const TCUDA_ATTACH_SINGLE: u32 = 4;

/// What the driver knows about a range of managed memory. Devices are ordinals, TCUDA_CPU_DEVICE,
/// or -1: none, or not the same for all of the range.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_memory_range_info {
    /// From TCUDA_INIT.
    pub struct_size: usize,
    /// Devices that were advised to access it, as bits.
    pub accessed_by: u64,
    /// 1: the host was advised to access it.
    pub is_accessed_by_host: i32,
    /// 1: advised to be mostly read.
    pub is_read_mostly: i32,
    /// Where it was advised to be.
    pub preferred_device: i32,
    /// Where tcuda_memory_prefetch moved it last.
    pub prefetched_device: i32,
}

// SAFETY: repr(C), plain data, struct_size first.
unsafe impl Sized_ for tcuda_memory_range_info {}

/// Allocates managed memory: the host and all devices use it at the same address, and the driver
/// moves its pages to where they are used. More can be allocated than a device has, within
/// tcuda_memory_fraction_set. It is counted in the statistics of the device, and freed by
/// tcuda_free, which waits for the device. It is not cached; memory of
/// tcuda_pluggable_allocator_managed is. Where the device has no
/// has_concurrent_managed_access, the host must not touch it while work runs. (+)
///
/// @param bytes     any size; 0: NULL and OK
/// @param device    ordinal, TCUDA_CURRENT_DEVICE: the stream's, else this thread's current one
/// @param stream    of the first use; NULL: the current stream of the device
/// @param flags     TCUDA_MANAGED_... combined, or 0
/// @param[out] ptr  the block, the caller's, to be freed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_managed_malloc(
    bytes: usize,
    device: i32,
    stream: *mut tcuda_stream,
    flags: u32,
    ptr: *mut *mut c_void,
) -> tcuda_status {
    boundary(|call| {
        let ptr = out(ptr, "ptr")?;
        let (gpus, device, stream) = place_of(call, device, stream)?;
        ptr.set(managed::allocate(gpus, device, stream, bytes as u64, flags)? as *mut c_void);
        Ok(())
    })
}

/// An allocator of managed memory, for tcuda_mem_pool_create: blocks of such a pool are managed,
/// cached and counted as others; or for tcuda_allocator_set_current.
/// (torch.cuda._use_uvm, with tcuda_mem_pool_begin)
///
/// @param flags           TCUDA_MANAGED_... combined, or 0; of each segment
/// @param[out] allocator  the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_pluggable_allocator_managed(
    flags: u32,
    allocator: *mut *mut tcuda_pluggable_allocator,
) -> tcuda_status {
    boundary(|_| {
        let allocator = out(allocator, "allocator")?;
        let made = Pluggable::managed(ManagedSource::new(flags)?)?;
        allocator.set(ALLOCATORS.insert(made)? as *mut tcuda_pluggable_allocator);
        Ok(())
    })
}

fn range(ptr: *const c_void, bytes: usize) -> Result<Range> {
    if ptr.is_null() {
        return Err(Error::Null { name: "ptr" });
    }
    Range::new(ptr as u64, bytes)
}

/// Advises the driver how a range of managed memory is used; results of work never depend on it.
/// TCUDA_STATUS_INVALID_POINTER for other memory. (+)
///
/// @param ptr     a managed address
/// @param bytes   1 or more; the driver rounds to pages
/// @param advice  TCUDA_ADVISE_...
/// @param device  ordinal, TCUDA_CURRENT_DEVICE or TCUDA_CPU_DEVICE
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_advise(
    ptr: *const c_void,
    bytes: usize,
    advice: i32,
    device: i32,
) -> tcuda_status {
    boundary(|call| {
        use CUmem_advise::*;
        let range = range(ptr, bytes)?;
        let advice = match advice {
            TCUDA_ADVISE_SET_READ_MOSTLY => CU_MEM_ADVISE_SET_READ_MOSTLY,
            TCUDA_ADVISE_UNSET_READ_MOSTLY => CU_MEM_ADVISE_UNSET_READ_MOSTLY,
            TCUDA_ADVISE_SET_PREFERRED_LOCATION => CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
            TCUDA_ADVISE_UNSET_PREFERRED_LOCATION => CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION,
            TCUDA_ADVISE_SET_ACCESSED_BY => CU_MEM_ADVISE_SET_ACCESSED_BY,
            TCUDA_ADVISE_UNSET_ACCESSED_BY => CU_MEM_ADVISE_UNSET_ACCESSED_BY,
            value => {
                return Err(Error::OutOfRange {
                    name: "advice",
                    value: value.into(),
                    allowed: "use a TCUDA_ADVISE_... constant",
                });
            }
        };
        range.advise(call.gpus()?, advice, device)
    })
}

/// Moves a range of managed memory to a device or the host, in the order of a stream; the host
/// does not wait. TCUDA_STATUS_INVALID_POINTER for other memory. (+)
///
/// @param ptr     a managed address
/// @param bytes   1 or more; the driver rounds to pages
/// @param device  ordinal, TCUDA_CURRENT_DEVICE or TCUDA_CPU_DEVICE
/// @param stream  of any device; NULL: the current stream of the current device
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_prefetch(
    ptr: *const c_void,
    bytes: usize,
    device: i32,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let range = range(ptr, bytes)?;
        range.prefetch(call.gpus()?, device, or_current(stream, call)?)
    })
}

/// Says which streams use managed memory from the present end of `stream` on. On devices without
/// has_concurrent_managed_access the host may use the memory while other streams run.
/// TCUDA_STATUS_INVALID_POINTER for other memory. (+)
///
/// @param ptr     as allocated
/// @param bytes   as allocated
/// @param flags   a TCUDA_ATTACH_... constant
/// @param stream  not a default stream for TCUDA_ATTACH_SINGLE; NULL: the current one
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_attach(
    ptr: *const c_void,
    bytes: usize,
    flags: u32,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let range = range(ptr, bytes)?;
        if !matches!(flags, TCUDA_ATTACH_GLOBAL | TCUDA_ATTACH_HOST | TCUDA_ATTACH_SINGLE) {
            return Err(Error::OutOfRange {
                name: "flags",
                value: flags.into(),
                allowed: "use TCUDA_ATTACH_GLOBAL, _HOST or _SINGLE",
            });
        }
        let stream = or_current(stream, call)?;
        if flags == TCUDA_ATTACH_SINGLE && stream.is_default() {
            return Err(Error::Invalid(
                "memory cannot be attached to a default stream alone; pass another stream",
            ));
        }
        range.attach(call.gpus()?, flags, stream)
    })
}

/// What the driver knows about a range of managed memory. TCUDA_STATUS_INVALID_POINTER for other
/// memory. (+)
///
/// @param ptr           a managed address
/// @param bytes         1 or more
/// @param[in,out] info  start from TCUDA_INIT(tcuda_memory_range_info)
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_range(
    ptr: *const c_void,
    bytes: usize,
    info: *mut tcuda_memory_range_info,
) -> tcuda_status {
    boundary(|call| {
        let (range, info) = (range(ptr, bytes)?, struct_out(info, "info")?);
        let advice = range.advice(call.gpus()?)?;
        info.set(&tcuda_memory_range_info {
            struct_size: size_of::<tcuda_memory_range_info>(),
            accessed_by: advice.accessed_by,
            is_accessed_by_host: advice.is_accessed_by_host.into(),
            is_read_mostly: advice.is_read_mostly.into(),
            preferred_device: advice.preferred,
            prefetched_device: advice.prefetched,
        });
        Ok(())
    })
}
