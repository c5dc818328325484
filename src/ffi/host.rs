//! Section "Pinned host memory" of the header.

use super::boundary::{Sized_, boundary, out, struct_out};
use super::statistics::{stat, tcuda_stat};
use super::status::tcuda_status;
use super::stream::{optional, tcuda_stream};
use crate::base::error::Error;
use crate::gpu::device::CURRENT;
use crate::memory::pinned;
use crate::memory::pinned::registered;
use crate::memory::pinned::stats::{HostStatistics, Times};
use crate::runtime::pointer_kind::{Kind, name_kind};
use std::ffi::c_void;

/// Durations of calls, in microseconds. Longest and shortest are since the peaks were reset, the
/// others since the totals were.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_duration {
    /// Sum.
    pub total_us: u64,
    /// The longest.
    pub max_us: u64,
    /// The shortest that took 1 microsecond or more.
    pub min_us: u64,
    /// Number of calls.
    pub count: u64,
    /// total_us / count.
    pub avg_us: u64,
}

/// torch.cuda.host_memory_stats(), the same names.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_host_memory_statistics {
    /// From TCUDA_INIT.
    pub struct_size: usize,
    /// Times that memory came from the driver.
    pub num_host_alloc: u64,
    /// Times that memory went back to it.
    pub num_host_free: u64,
    /// Segments obtained from the driver; blocks are cut out of them.
    pub allocations: tcuda_stat,
    /// Their bytes.
    pub allocated_bytes: tcuda_stat,
    /// Blocks held by the host, and freed ones awaiting streams.
    pub active_requests: tcuda_stat,
    /// Their bytes, rounded up to 64, above 64 KiB to 512.
    pub active_bytes: tcuda_stat,
    /// Durations of the num_host_alloc calls.
    pub host_alloc_time: tcuda_duration,
    /// Durations of the num_host_free calls.
    pub host_free_time: tcuda_duration,
}

// SAFETY: repr(C), plain data, struct_size first.
unsafe impl Sized_ for tcuda_host_memory_statistics {}

fn duration(times: &Times) -> tcuda_duration {
    tcuda_duration {
        total_us: times.total,
        max_us: times.max,
        min_us: times.min,
        count: times.count,
        avg_us: times.average(),
    }
}

/// Page-locked memory of the host, usable from all devices. Copies from and to it run in stream
/// order while the host continues, so that the host must not touch its bytes until the copy is
/// done. Sizes are rounded up to 64 bytes (to 512 above 64 KiB). Memory comes from the driver in
/// segments of 2 MiB and more, which are cached until tcuda_host_memory_empty_cache. Never waits
/// for a device. (torch.Tensor.pin_memory)
///
/// @param bytes     any size; 0: NULL and OK
/// @param[out] ptr  the block, aligned to 64 bytes, above 64 KiB to 512; the caller's, to be freed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_host_malloc(bytes: usize, ptr: *mut *mut c_void) -> tcuda_status {
    boundary(|call| {
        let ptr = out(ptr, "ptr")?;
        let gpus = call.gpus()?;
        ptr.set(gpus.pinned().allocate(gpus, bytes)? as *mut c_void);
        Ok(())
    })
}

/// Gives page-locked memory back, for the next tcuda_host_malloc. It is reused only after the
/// copies and fills of this library that use it, and the streams that tcuda_host_record named; the
/// host does not wait. Other work is not tracked: kernels, callbacks and copies by the driver
/// itself. (+)
///
/// @param ptr  what tcuda_host_malloc gave; may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_host_free(ptr: *mut c_void) -> tcuda_status {
    boundary(|call| {
        if ptr.is_null() {
            return Ok(());
        }
        // A finalizer may run after shutdown: it must not initialise the library again.
        match crate::gpu::gpus::existing(call.inside()) {
            Some(gpus) => (gpus.pinned().free(gpus, ptr as usize))
                .map_err(|error| name_kind(gpus, Kind::Pinned, error)),
            None => Err(pinned::unknown_block(ptr as usize)),
        }
    })
}

/// Records that a block is used on `stream`: once freed, it is not reused before the work queued
/// there at that time is done. For kernels, callbacks and copies that do not come from this
/// library; its own are recorded automatically. A block that is used on a stream while that is
/// captured into a graph may be used by each launch: it is reused only after the last graph of that
/// capture is destroyed and its launches are over. If the host captures by the driver itself, the
/// block is kept until tcuda_shutdown. (+)
///
/// @param ptr     any address in a block of tcuda_host_malloc; may be NULL: no-op
/// @param stream  NULL: the current stream of the current device
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_host_record(
    ptr: *mut c_void,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let stream = optional(stream, call)?;
        if ptr.is_null() {
            return Ok(());
        }
        let Some(gpus) = crate::gpu::gpus::existing(call.inside()) else {
            return Err(pinned::unknown_address(ptr as usize));
        };
        let stream = match stream {
            Some(stream) => stream,
            None => gpus.device(CURRENT)?.streams.current(),
        };
        (gpus.pinned().record(gpus, ptr as usize, stream.on_this_thread(gpus)?))
            .map_err(|error| name_kind(gpus, Kind::Pinned, error))
    })
}

/// How memory is registered: TCUDA_HOST_REGISTER_..., CUDA's numbers, which can be combined.
pub type tcuda_host_register_flags = u32;
/// Page-locked for all devices.
pub const TCUDA_HOST_REGISTER_PORTABLE: u32 = 1;
/// Kernels may use it at its own address. On systems with unified addressing it always is.
pub const TCUDA_HOST_REGISTER_MAPPED: u32 = 2;
/// Memory of a device, as of a PCIe card, which is not cached; its address and size are those of
/// whole pages.
pub const TCUDA_HOST_REGISTER_IO_MEMORY: u32 = 4;
/// Kernels only read it.
pub const TCUDA_HOST_REGISTER_READ_ONLY: u32 = 8;

// The layer below accepts the same flags.
const _: () = assert!(
    registered::FLAGS
        == TCUDA_HOST_REGISTER_PORTABLE
            | TCUDA_HOST_REGISTER_MAPPED
            | TCUDA_HOST_REGISTER_IO_MEMORY
            | TCUDA_HOST_REGISTER_READ_ONLY
);

/// Page-locks memory of the host where it is, so that copies of it are as fast, and as independent
/// of the host, as those of tcuda_host_malloc. The caller unregisters it before it frees it;
/// tcuda_shutdown unregisters what is left. It does not appear in tcuda_host_memory_stats.
/// TCUDA_STATUS_INVALID_POINTER if a part of it is page-locked already;
/// TCUDA_STATUS_OUT_OF_HOST_MEMORY at the system's limit of locked memory.
/// (torch.cuda.cudart().cudaHostRegister)
///
/// @param ptr    not NULL; the system locks the whole pages that the range touches
/// @param bytes  at least 1
/// @param flags  TCUDA_HOST_REGISTER_..., or 0
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_host_register(
    ptr: *mut c_void,
    bytes: usize,
    flags: tcuda_host_register_flags,
) -> tcuda_status {
    boundary(|call| {
        if ptr.is_null() {
            return Err(Error::Null { name: "ptr" });
        }
        if bytes == 0 || (ptr as usize).checked_add(bytes).is_none() {
            return Err(Error::OutOfRange {
                name: "bytes",
                value: bytes as i64,
                allowed: "use 1 to the end of the address space",
            });
        }
        if flags & !registered::FLAGS != 0 {
            return Err(Error::OutOfRange {
                name: "flags",
                value: flags.into(),
                allowed: "combine TCUDA_HOST_REGISTER_PORTABLE, _MAPPED, _IO_MEMORY and _READ_ONLY",
            });
        }
        let gpus = call.gpus()?;
        gpus.pinned().register(gpus, ptr as usize, bytes, flags)
    })
}

/// Ends the registration of memory. Waits for the work of the devices.
/// (torch.cuda.cudart().cudaHostUnregister)
///
/// @param ptr  as it was given to tcuda_host_register; may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_host_unregister(ptr: *mut c_void) -> tcuda_status {
    boundary(|call| {
        if ptr.is_null() {
            return Ok(());
        }
        match crate::gpu::gpus::existing(call.inside()) {
            Some(gpus) => gpus.pinned().unregister(gpus, ptr as usize),
            None => Err(registered::not_registered(ptr as usize)),
        }
    })
}

/// All statistics of pinned memory; zeros before initialisation. Each number is exact; while other
/// threads allocate, they may be of moments that differ a little. (torch.cuda.host_memory_stats,
/// torch.cuda.host_memory_stats_as_nested_dict)
///
/// @param[in,out] stats  start from TCUDA_INIT(tcuda_host_memory_statistics)
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_host_memory_stats(
    stats: *mut tcuda_host_memory_statistics,
) -> tcuda_status {
    boundary(|call| {
        let stats = struct_out(stats, "stats")?;
        let all = match crate::gpu::gpus::existing(call.inside()) {
            Some(gpus) => gpus.pinned().statistics(),
            None => HostStatistics::default(),
        };
        stats.set(&tcuda_host_memory_statistics {
            struct_size: size_of::<tcuda_host_memory_statistics>(),
            num_host_alloc: all.alloc_time.count,
            num_host_free: all.free_time.count,
            allocations: stat(&all.allocations),
            allocated_bytes: stat(&all.allocated_bytes),
            active_requests: stat(&all.active_requests),
            active_bytes: stat(&all.active_bytes),
            host_alloc_time: duration(&all.alloc_time),
            host_free_time: duration(&all.free_time),
        });
        Ok(())
    })
}

/// Peaks become the current values; the longest and shortest times are measured anew.
/// (torch.cuda.reset_peak_host_memory_stats)
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_host_memory_reset_peak() -> tcuda_status {
    boundary(|call| {
        if let Some(gpus) = crate::gpu::gpus::existing(call.inside()) {
            gpus.pinned().reset_peak();
        }
        Ok(())
    })
}

/// Totals become 0: allocated and freed, counts and times of calls.
/// (torch.cuda.reset_accumulated_host_memory_stats)
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_host_memory_reset_accumulated() -> tcuda_status {
    boundary(|call| {
        if let Some(gpus) = crate::gpu::gpus::existing(call.inside()) {
            gpus.pinned().reset_accumulated();
        }
        Ok(())
    })
}

/// Returns pinned memory in which no block is in use to the driver, which waits for the work of the
/// devices when there is any such memory. Freed blocks that still wait for streams stay. What the
/// driver refuses stays cached, and the first failure is the status. (+)
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_host_memory_empty_cache() -> tcuda_status {
    boundary(|call| {
        let Some(gpus) = crate::gpu::gpus::existing(call.inside()) else { return Ok(()) };
        gpus.pinned().empty_cache(gpus)
    })
}
