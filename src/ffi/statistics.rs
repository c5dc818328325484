//! Section "Memory" of the header: statistics.

use super::boundary::{
    Call, Sized_, boundary, boundary_without_guard, flag, out, out_list, struct_out, text, text_out,
};
use super::status::tcuda_status;
use crate::base::error::{Error, Result};
use crate::base::text::Text;
use crate::driver::sys::CUstream_st;
use crate::gpu::gpus;
use crate::memory::config::size::Class;
use crate::memory::stats::ledger::{
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, INACTIVE_SPLIT, INACTIVE_SPLIT_BYTES,
    REQUESTED_BYTES, Stat, StatArray, Statistics,
};
use crate::memory::{AllKeys, Json, Keys, Summary, in_row, nearest, pool_in};
use crate::telemetry::monitor::{Process, Processes};
use std::ffi::c_char;

/// A quantity: its present value, its highest value, the sum of all increases and of all decreases;
/// the last three since they were reset.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_stat {
    /// Present value.
    pub current: u64,
    /// Highest value.
    pub peak: u64,
    /// Sum of all increases.
    pub allocated: u64,
    /// Sum of all decreases.
    pub freed: u64,
}

/// A quantity of all blocks, of those up to 1 MiB, and of those above. Quantities of memory
/// (segment, reserved_bytes, inactive_split) are split by is_small of tcuda_segment_info instead:
/// so active_bytes of small_pool may exceed its reserved_bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_stat_by_pool {
    /// All.
    pub all: tcuda_stat,
    /// Up to 1 MiB.
    pub small_pool: tcuda_stat,
    /// Above 1 MiB.
    pub large_pool: tcuda_stat,
}

/// torch.cuda.memory_stats(), the same names.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_memory_statistics {
    /// From TCUDA_INIT.
    pub struct_size: usize,
    /// Allocated blocks.
    pub allocation: tcuda_stat_by_pool,
    /// Their bytes, rounded up to 512.
    pub allocated_bytes: tcuda_stat_by_pool,
    /// Allocated blocks, and freed ones that wait for streams.
    pub active: tcuda_stat_by_pool,
    /// Bytes of active blocks, rounded up to 512.
    pub active_bytes: tcuda_stat_by_pool,
    /// Requested bytes of active blocks.
    pub requested_bytes: tcuda_stat_by_pool,
    /// Contiguous ranges of memory from the driver.
    pub segment: tcuda_stat_by_pool,
    /// Bytes obtained from the driver.
    pub reserved_bytes: tcuda_stat_by_pool,
    /// Free blocks of a stream and pool in which other blocks are in use.
    pub inactive_split: tcuda_stat_by_pool,
    /// Their bytes.
    pub inactive_split_bytes: tcuda_stat_by_pool,
    /// Allocated blocks that were of at least max_split_size when they were allocated.
    pub oversize_allocations: tcuda_stat,
    /// Always zero: segments grow and shrink, and none is kept whole for its size.
    pub oversize_segments: tcuda_stat,
    /// Attempts to allocate after all reusable memory was reclaimed.
    pub num_alloc_retries: u64,
    /// Allocations that failed for want of memory.
    pub num_ooms: u64,
    /// Times that the host waited for all streams.
    pub num_sync_all_streams: u64,
    /// Times that memory came from the driver.
    pub num_device_alloc: u64,
    /// Times that memory went back to it.
    pub num_device_free: u64,
    /// From this size on blocks are oversize; UINT64_MAX: none is.
    pub max_split_size: u64,
    /// Allocations refused without a call of the driver.
    pub num_oom_rejections: u64,
}

// SAFETY: repr(C), plain data, struct_size first.
unsafe impl Sized_ for tcuda_memory_statistics {}

/// A statistic in its C form.
pub(super) fn stat(stat: &Stat) -> tcuda_stat {
    let unsigned = |value: i64| value.max(0) as u64;
    tcuda_stat {
        current: unsigned(stat.current),
        peak: unsigned(stat.peak),
        allocated: unsigned(stat.allocated),
        freed: unsigned(stat.freed),
    }
}

fn by_pool([all, small, large]: &StatArray) -> tcuda_stat_by_pool {
    tcuda_stat_by_pool { all: stat(all), small_pool: stat(small), large_pool: stat(large) }
}

/// Runs `body` on the statistics of a device; zeros before initialisation, when torch has none.
fn with_statistics<R>(call: &Call, device: i32, body: impl FnOnce(&Statistics) -> R) -> Result<R> {
    let mut all = Statistics::default();
    match gpus::existing(call.inside()) {
        Some(gpus) => gpus.device(device)?.memory().all_statistics(&mut all)?,
        None => crate::gpu::device::require_possible(device)?,
    }
    Ok(body(&all))
}

fn in_c(all: &Statistics) -> tcuda_memory_statistics {
    tcuda_memory_statistics {
        struct_size: size_of::<tcuda_memory_statistics>(),
        allocation: by_pool(&all.counters[ALLOCATION]),
        allocated_bytes: by_pool(&all.counters[ALLOCATED_BYTES]),
        active: by_pool(&all.counters[ACTIVE]),
        active_bytes: by_pool(&all.counters[ACTIVE_BYTES]),
        requested_bytes: by_pool(&all.counters[REQUESTED_BYTES]),
        segment: by_pool(&all.segment),
        reserved_bytes: by_pool(&all.reserved_bytes),
        inactive_split: by_pool(&all.counters[INACTIVE_SPLIT]),
        inactive_split_bytes: by_pool(&all.counters[INACTIVE_SPLIT_BYTES]),
        oversize_allocations: stat(&all.oversize_allocations),
        oversize_segments: stat(&all.oversize_segments),
        num_alloc_retries: all.num_alloc_retries,
        num_ooms: all.num_ooms,
        num_sync_all_streams: all.num_sync_all_streams,
        num_device_alloc: all.num_device_alloc,
        num_device_free: all.num_device_free,
        max_split_size: all.max_split_size.unwrap_or(u64::MAX),
        num_oom_rejections: all.num_oom_rejections,
    }
}

/// All statistics of a device at one moment; zeros before initialisation. With the backend
/// "cudaMallocAsync" the driver only counts bytes; docs/configuration.md lists which.
/// (torch.cuda.memory_stats)
///
/// @param device         ordinal, or TCUDA_CURRENT_DEVICE
/// @param[in,out] stats  start from TCUDA_INIT(tcuda_memory_statistics)
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_stats(
    device: i32,
    stats: *mut tcuda_memory_statistics,
) -> tcuda_status {
    boundary_without_guard(|call| {
        let stats = struct_out(stats, "stats")?;
        with_statistics(call, device, |all| stats.set(&in_c(all)))
    })
}

/// The larger of what the driver has free and of the largest free block of the cache, of any stream
/// and pool. A request of this size may fail all the same: the block may be another stream's.
/// (+: c10's cacheInfo)
///
/// @param device      ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] bytes  0 where there is neither
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_largest_free(device: i32, bytes: *mut usize) -> tcuda_status {
    boundary(|call| {
        let bytes = out(bytes, "bytes")?;
        let device = call.gpus()?.device(device)?;
        let (free, _) = device.memory_info()?;
        bytes.set(device.memory().largest_free()?.max(free) as usize);
        Ok(())
    })
}

/// The mapped memory of a stream in a size class.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_segment_size {
    /// Native handle; NULL: the default stream.
    pub cu_stream: *mut CUstream_st,
    /// Bytes that are mapped for it, in all pools.
    pub bytes: u64,
    /// 1: of blocks up to 64 KiB; 0: of larger ones.
    pub is_small: i32,
}

/// The mapped memory of each stream and size class of a device. Segments of cuMemAlloc, which
/// expandable_segments:False and pools with an allocator have, do not count.
/// (+: c10's getExpandableSegmentSizes)
///
/// @param device      ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] sizes  the first `capacity` of them; may be NULL when `capacity` is 0
/// @param capacity    length of the list
/// @param[out] count  number of streams and classes with mapped memory
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_segment_sizes(
    device: i32,
    sizes: *mut tcuda_segment_size,
    capacity: usize,
    count: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let count = out(count, "count")?;
        let sizes = out_list(sizes, capacity, "sizes")?;
        let found = call.gpus()?.device(device)?.memory().segment_sizes()?;
        sizes.set(found.iter().map(|size| tcuda_segment_size {
            cu_stream: size.stream as *mut CUstream_st,
            bytes: size.bytes,
            is_small: i32::from(size.class == Class::Small),
        }));
        count.set(found.len());
        Ok(())
    })
}

/// One statistic by torch's key, "allocated_bytes.all.peak" or "num_ooms". A private pool that was
/// used on the device has "reserved_bytes_by_private_pools.0_1.all.current", with the numbers of
/// tcuda_mem_pool_id, until the pool is destroyed and its memory went back to the driver.
/// "allocated", from torch's documents, is the same as "allocation". TCUDA_STATUS_INVALID_ARGUMENT
/// for other keys; the message names the nearest. (torch.cuda.memory_stats)
///
/// @param device      ordinal, or TCUDA_CURRENT_DEVICE
/// @param key         one of those that tcuda_memory_stat_keys lists
/// @param[out] value  bytes or a number, as the key says
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_stat(
    device: i32,
    key: *const c_char,
    value: *mut u64,
) -> tcuda_status {
    boundary(|call| {
        let key = text(key, "key")?;
        let value = out(value, "value")?;
        match value_of(call, device, key)? {
            Some(found) => {
                value.set(found);
                Ok(())
            }
            None => {
                Err(Error::UnknownKey { key: Text::new(key), nearest: Text::of(&nearest(key)) })
            }
        }
    })
}

fn value_of(call: &Call, device: i32, key: &str) -> Result<Option<u64>> {
    let Some((pool, rest)) = pool_in(key) else {
        return with_statistics(call, device, |all| Keys(all).get(key));
    };
    let Some(gpus) = gpus::existing(call.inside()) else { return Ok(None) };
    let row = gpus.device(device)?.memory().reserved_by_pool(pool);
    Ok(row.and_then(|row| in_row(&row, rest)))
}

/// The keys of tcuda_memory_stat, sorted like the dictionary of torch.cuda.memory_stats, separated
/// by newlines. Private pools have keys of their own, in the order in which they were first used on
/// the device. (the keys of torch.cuda.memory_stats)
///
/// @param device       ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] buf     may be NULL if len is 0
/// @param len          room in buf, in bytes
/// @param[out] needed  length without NUL; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_stat_keys(
    device: i32,
    buf: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let out = text_out(buf, len, needed)?;
        with_statistics(call, device, |_| ())?;
        out.set(AllKeys(&by_pools(call, device)?))
    })
}

fn by_pools(call: &Call, device: i32) -> Result<Vec<((u64, u64), StatArray)>> {
    match gpus::existing(call.inside()) {
        Some(gpus) => gpus.device(device)?.memory().reserved_by_pools(),
        None => Ok(Vec::new()),
    }
}

/// All statistics as JSON, nested as in torch.cuda.memory_stats_as_nested_dict; below
/// "reserved_bytes_by_private_pools" one entry for each private pool: "0_1" is the pool 0, 1.
/// (torch.cuda.memory_stats_as_nested_dict)
///
/// @param device       ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
/// @param len          room in buf, in bytes
/// @param[out] needed  length without the NUL; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_stats_json(
    device: i32,
    buf: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let out = text_out(buf, len, needed)?;
        let by_pool = by_pools(call, device)?;
        with_statistics(call, device, |all| out.set(Json { statistics: all, by_pool: &by_pool }))?
    })
}

/// Writes one of the statistics, a number of bytes.
fn bytes_of(device: i32, bytes: *mut usize, value: fn(&Statistics) -> i64) -> tcuda_status {
    boundary(|call| {
        let bytes = out(bytes, "bytes")?;
        bytes.set(with_statistics(call, device, value)?.max(0) as usize);
        Ok(())
    })
}

/// allocated_bytes.all.current: bytes of allocated blocks. (torch.cuda.memory_allocated)
///
/// @param device      ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] bytes  0 before initialisation
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_allocated(device: i32, bytes: *mut usize) -> tcuda_status {
    bytes_of(device, bytes, |all| all.counters[ALLOCATED_BYTES][0].current)
}

/// allocated_bytes.all.peak. (torch.cuda.max_memory_allocated)
///
/// @param device      ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] bytes  0 before initialisation
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_max_allocated(
    device: i32,
    bytes: *mut usize,
) -> tcuda_status {
    bytes_of(device, bytes, |all| all.counters[ALLOCATED_BYTES][0].peak)
}

/// reserved_bytes.all.current: bytes from the driver.
/// (torch.cuda.memory_reserved, torch.cuda.memory_cached)
///
/// @param device      ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] bytes  0 before initialisation
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_reserved(device: i32, bytes: *mut usize) -> tcuda_status {
    bytes_of(device, bytes, |all| all.reserved_bytes[0].current)
}

/// reserved_bytes.all.peak. (torch.cuda.max_memory_reserved, torch.cuda.max_memory_cached)
///
/// @param device      ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] bytes  0 before initialisation
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_max_reserved(device: i32, bytes: *mut usize) -> tcuda_status {
    bytes_of(device, bytes, |all| all.reserved_bytes[0].peak)
}

/// Every peak becomes its current value. (torch.cuda.reset_peak_memory_stats,
/// torch.cuda.reset_max_memory_allocated, torch.cuda.reset_max_memory_cached)
///
/// @param device  ordinal, or TCUDA_CURRENT_DEVICE
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_memory_reset_peak(device: i32) -> tcuda_status {
    boundary(|call| call.gpus()?.device(device)?.memory().reset_all_peaks())
}

/// Every total (allocated, freed, num_...) becomes 0. (torch.cuda.reset_accumulated_memory_stats)
///
/// @param device  ordinal, or TCUDA_CURRENT_DEVICE
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_memory_reset_accumulated(device: i32) -> tcuda_status {
    boundary(|call| {
        call.gpus()?.device(device)?.memory().reset_accumulated();
        Ok(())
    })
}

/// Opens a scope of statistics of a device: peaks and totals of all threads' calls from now on.
/// Scopes nest on each thread, and each is closed by the thread that opened it. Scopes and the
/// device's own statistics are independent: tcuda_memory_reset_peak and
/// tcuda_memory_reset_accumulated do not change open scopes. When a thread ends its scopes are
/// closed, and tcuda_shutdown closes all. (+)
///
/// @param device  ordinal, or TCUDA_CURRENT_DEVICE
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_memory_stats_push(device: i32) -> tcuda_status {
    boundary(|call| call.gpus()?.device(device)?.memory().open_scope())
}

/// Closes this thread's newest scope of a device and returns its statistics: each peak is the
/// highest value since the scope was opened, each total and num_... the sum since then, each
/// current value the present one. Outer scopes include it. TCUDA_STATUS_INVALID_STATE if the thread
/// has none. (+)
///
/// @param device         ordinal, or TCUDA_CURRENT_DEVICE
/// @param[in,out] stats  start from TCUDA_INIT(tcuda_memory_statistics); may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_stats_pop(
    device: i32,
    stats: *mut tcuda_memory_statistics,
) -> tcuda_status {
    boundary(|call| {
        let stats = if stats.is_null() { None } else { Some(struct_out(stats, "stats")?) };
        let all = call.gpus()?.device(device)?.memory().close_scope()?;
        if let Some(stats) = stats {
            stats.set(&in_c(&all));
        }
        Ok(())
    })
}

/// All statistics as a table to read. (torch.cuda.memory_summary)
///
/// @param device       ordinal, or TCUDA_CURRENT_DEVICE
/// @param abbreviated  1: without the rows of the pools; 0: with them
/// @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
/// @param len          room in buf, in bytes
/// @param[out] needed  length without the NUL; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_summary(
    device: i32,
    abbreviated: i32,
    buf: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let out = text_out(buf, len, needed)?;
        let abbreviated = flag(abbreviated, "abbreviated")?;
        let device = call.gpus()?.device(device)?;
        let mut statistics = Statistics::default();
        device.memory().all_statistics(&mut statistics)?;
        out.set(Summary { device: device.ordinal(), abbreviated, statistics })
    })
}

/// A process on a GPU.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_process {
    /// Its process id, in the driver's namespace: inside a container the ids are different.
    pub pid: u64,
    /// Its memory on the GPU in bytes; UINT64_MAX: the driver does not report it.
    pub used_bytes: u64,
}

/// The processes that compute on a GPU, and the memory of each, in torch's format: `GPU:` and
/// NVML's number of it, then a line for each. From NVML, which is loaded at the first use, from the
/// path in TCUDA_NVML_PATH if that is set; TCUDA_STATUS_NO_LIBRARY where there is none. The
/// simulated machine reports only this process. (torch.cuda.list_gpu_processes)
///
/// @param device       ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
/// @param len          room in buf, in bytes
/// @param[out] needed  length without the NUL; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_processes(
    device: i32,
    buf: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let out = text_out(buf, len, needed)?;
        out.set(Processes::of(call.gpus()?.device(device)?)?)
    })
}

/// tcuda_memory_processes as a list, in NVML's order. (torch.cuda.list_gpu_processes)
///
/// @param device          ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] processes  the first `capacity` of them; may be NULL when `capacity` is 0
/// @param capacity        length of the list
/// @param[out] count      number of processes
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_process_list(
    device: i32,
    processes: *mut tcuda_process,
    capacity: usize,
    count: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let count = out(count, "count")?;
        let processes = out_list(processes, capacity, "processes")?;
        let found = Processes::of(call.gpus()?.device(device)?)?;
        processes.set(found.list.iter().map(|Process { pid, used_bytes }| tcuda_process {
            pid: (*pid).into(),
            used_bytes: used_bytes.unwrap_or(u64::MAX),
        }));
        count.set(found.list.len());
        Ok(())
    })
}
