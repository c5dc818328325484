//! Section "Memory" of the header: snapshots.

use super::boundary::{Sized_, boundary, bytes_out, flag, out, struct_out, text, text_out};
use super::handle::Table;
use super::history::tcuda_frame_context;
use super::status::tcuda_status;
use crate::base::error::{Error, Result};
use crate::base::thread;
use crate::driver::sys::CUstream_st;
use crate::gpu::gpus;
use crate::memory::config::size::Class;
use crate::memory::trace::snapshot::{BlockState, Snapshot};
use std::ffi::{c_char, c_void};

/// Segments and blocks of all devices at one moment.
pub struct tcuda_memory_snapshot {
    _private: [u8; 0],
}

pub(super) static SNAPSHOTS: Table<Snapshot> = Table::new(4, "snapshot");

/// State of a block, by torch's names: TCUDA_BLOCK_...
pub type tcuda_block_state = i32;
/// "inactive": cached, not allocated.
pub const TCUDA_BLOCK_INACTIVE: tcuda_block_state = 0;
/// "active_allocated": held by the host.
pub const TCUDA_BLOCK_ACTIVE_ALLOCATED: tcuda_block_state = 1;
/// "active_pending_free": freed, but recorded streams may still use it (tcuda_record_stream).
pub const TCUDA_BLOCK_ACTIVE_PENDING_FREE: tcuda_block_state = 2;

/// A contiguous range of memory from the driver, which serves one stream and size class.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_segment_info {
    /// From TCUDA_INIT.
    pub struct_size: usize,
    /// First byte.
    pub ptr: *mut c_void,
    /// Length, the sum of its blocks.
    pub total_bytes: u64,
    /// Bytes of allocated blocks.
    pub allocated_bytes: u64,
    /// Bytes of allocated blocks, and of freed ones that wait for streams.
    pub active_bytes: u64,
    /// Requested bytes of active blocks.
    pub requested_bytes: u64,
    /// Index of its first block; the others follow, in the order of addresses.
    pub first_block: usize,
    /// Number of its blocks.
    pub block_count: usize,
    /// Native handle of its stream; NULL: the default one.
    pub cu_stream: *mut CUstream_st,
    /// As tcuda_stream_id returns it.
    pub stream_id: i64,
    /// Ordinal.
    pub device: i32,
    /// 1: of blocks up to 64 KiB; 0: of larger ones. Blocks up to 1 MiB count as small in
    /// statistics all the same. With expandable_segments:False, 1: of blocks up to 1 MiB, as in
    /// torch.
    pub is_small: i32,
    /// The first number of tcuda_mem_pool_id of its private pool; both are 0 if it is in none.
    pub pool_id0: u64,
    /// The second number of tcuda_mem_pool_id.
    pub pool_id1: u64,
}

// SAFETY: repr(C), plain data, struct_size first.
unsafe impl Sized_ for tcuda_segment_info {}

/// A part of a segment.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_block_info {
    /// From TCUDA_INIT.
    pub struct_size: usize,
    /// First byte.
    pub ptr: *mut c_void,
    /// Length.
    pub bytes: u64,
    /// Requested bytes; 0 when inactive.
    pub requested_bytes: u64,
    /// Ordinal.
    pub device: i32,
    /// TCUDA_BLOCK_...
    pub state: tcuda_block_state,
    /// What tcuda_frame_context_fn gave for the allocation, valid until the snapshot is destroyed;
    /// NULL without history.
    pub context: *mut tcuda_frame_context,
}

// SAFETY: repr(C), plain data, struct_size first.
unsafe impl Sized_ for tcuda_block_info {}

/// The segments and blocks of all devices now, empty before initialisation. Each device is listed
/// at one moment, one device after the other; a call that another thread makes meanwhile is shown
/// either not at all or complete. Does not wait for the device. (torch.cuda.memory_snapshot)
///
/// @param with_history   1: with the recorded history; 0: only the present state
/// @param[out] snapshot  the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_snapshot_create(
    with_history: i32,
    snapshot: *mut *mut tcuda_memory_snapshot,
) -> tcuda_status {
    boundary(|call| {
        let snapshot = out(snapshot, "snapshot")?;
        let with_history = flag(with_history, "with_history")?;
        let taken = match gpus::existing(call.inside()) {
            Some(gpus) => Snapshot::of(&gpus.devices, None, with_history)?,
            None => Snapshot::before_any_use()?,
        };
        snapshot.set(SNAPSHOTS.insert(taken)? as *mut tcuda_memory_snapshot);
        Ok(())
    })
}

/// Destroys a snapshot, with its references to contexts. (+)
///
/// @param snapshot  may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_memory_snapshot_destroy(
    snapshot: *mut tcuda_memory_snapshot,
) -> tcuda_status {
    boundary(|_| {
        if snapshot.is_null() {
            return Ok(());
        }
        SNAPSHOTS.remove(snapshot as usize, "snapshot")?;
        // It may be large, and have objects of the host.
        thread::collect();
        Ok(())
    })
}

/// Sizes of a snapshot: its segments are in the order of devices and addresses, and so are the
/// blocks of all of them. (torch.cuda.memory_snapshot)
///
/// @param snapshot            from tcuda_memory_snapshot_create or tcuda_mem_pool_snapshot
/// @param[out] segment_count  number of segments
/// @param[out] block_count    number of blocks of all segments
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_snapshot_counts(
    snapshot: *mut tcuda_memory_snapshot,
    segment_count: *mut usize,
    block_count: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let segments = out(segment_count, "segment_count")?;
        let blocks = out(block_count, "block_count")?;
        let snapshot = SNAPSHOTS.get(snapshot as usize, "snapshot", call)?;
        segments.set(snapshot.segments.len());
        blocks.set(snapshot.blocks.len());
        Ok(())
    })
}

/// The element of a list, or an error.
pub(super) fn element<T>(list: &[T], index: usize) -> Result<&T> {
    list.get(index).ok_or(Error::OutOfRange {
        name: "index",
        value: i64::try_from(index).unwrap_or(i64::MAX),
        allowed: "use one below the count of such elements in the snapshot",
    })
}

/// A segment of a snapshot. (torch.cuda.memory_snapshot)
///
/// @param snapshot         from tcuda_memory_snapshot_create or tcuda_mem_pool_snapshot
/// @param index            below the number of segments
/// @param[in,out] segment  start from TCUDA_INIT(tcuda_segment_info)
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_snapshot_segment(
    snapshot: *mut tcuda_memory_snapshot,
    index: usize,
    segment: *mut tcuda_segment_info,
) -> tcuda_status {
    boundary(|call| {
        let segment = struct_out(segment, "segment")?;
        let snapshot = SNAPSHOTS.get(snapshot as usize, "snapshot", call)?;
        let found = element(&snapshot.segments, index)?;
        segment.set(&tcuda_segment_info {
            struct_size: size_of::<tcuda_segment_info>(),
            ptr: found.address as *mut c_void,
            total_bytes: found.bytes,
            allocated_bytes: found.allocated,
            active_bytes: found.active,
            requested_bytes: found.requested,
            first_block: found.first_block,
            block_count: found.blocks,
            cu_stream: found.stream as *mut CUstream_st,
            stream_id: found.stream_id,
            device: found.device,
            is_small: i32::from(found.class == Class::Small),
            pool_id0: found.pool.pair().0,
            pool_id1: found.pool.pair().1,
        });
        Ok(())
    })
}

/// The context of a stack of a snapshot, or NULL.
pub(super) fn context_in(snapshot: &Snapshot, stack: u32) -> *mut tcuda_frame_context {
    let context = snapshot.stacks.context(stack);
    context.map_or(std::ptr::null_mut(), |context| context.as_ptr().cast())
}

/// A block of a snapshot. (torch.cuda.memory_snapshot)
///
/// @param snapshot       from tcuda_memory_snapshot_create or tcuda_mem_pool_snapshot
/// @param index          below the number of blocks; a segment has the index of its first
/// @param[in,out] block  start from TCUDA_INIT(tcuda_block_info)
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_snapshot_block(
    snapshot: *mut tcuda_memory_snapshot,
    index: usize,
    block: *mut tcuda_block_info,
) -> tcuda_status {
    boundary(|call| {
        let block = struct_out(block, "block")?;
        let snapshot = SNAPSHOTS.get(snapshot as usize, "snapshot", call)?;
        let found = element(&snapshot.blocks, index)?;
        block.set(&tcuda_block_info {
            struct_size: size_of::<tcuda_block_info>(),
            ptr: found.address as *mut c_void,
            bytes: found.bytes,
            requested_bytes: found.requested,
            device: found.device,
            state: match found.state {
                BlockState::Inactive => TCUDA_BLOCK_INACTIVE,
                BlockState::ActiveAllocated => TCUDA_BLOCK_ACTIVE_ALLOCATED,
                BlockState::ActivePendingFree => TCUDA_BLOCK_ACTIVE_PENDING_FREE,
            },
            context: context_in(snapshot, found.stack),
        });
        Ok(())
    })
}

/// A snapshot as a pickle, of the dictionary that torch.cuda.memory._snapshot gives: the memory_viz
/// page of PyTorch and torch/cuda/_memory_viz.py open it. (torch.cuda.memory._snapshot)
///
/// @param snapshot     from tcuda_memory_snapshot_create or tcuda_mem_pool_snapshot
/// @param[out] buf     bytes, without a NUL; not usable where they are cut
/// @param len          room in buf, in bytes
/// @param[out] needed  length; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_snapshot_pickle(
    snapshot: *mut tcuda_memory_snapshot,
    buf: *mut c_void,
    len: usize,
    needed: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let out = bytes_out(buf, len, needed)?;
        let snapshot = SNAPSHOTS.get(snapshot as usize, "snapshot", call)?;
        out.fill(|sink| snapshot.pickle(sink))
    })
}

/// The same dictionary as JSON, in ASCII. The frames are repeated for each event, so that a long
/// history of deep stacks is large. (+)
///
/// @param snapshot     from tcuda_memory_snapshot_create or tcuda_mem_pool_snapshot
/// @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
/// @param len          room in buf, in bytes
/// @param[out] needed  length without the NUL; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_snapshot_json(
    snapshot: *mut tcuda_memory_snapshot,
    buf: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let out = text_out(buf, len, needed)?;
        let snapshot = SNAPSHOTS.get(snapshot as usize, "snapshot", call)?;
        out.fill(|sink| snapshot.json(sink))
    })
}

/// A snapshot as one HTML page that needs no other file and no network: allocated memory over time
/// by block, and a map of the segments. (+)
///
/// @param snapshot     from tcuda_memory_snapshot_create or tcuda_mem_pool_snapshot
/// @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
/// @param len          room in buf, in bytes
/// @param[out] needed  length without the NUL; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_snapshot_html(
    snapshot: *mut tcuda_memory_snapshot,
    buf: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let out = text_out(buf, len, needed)?;
        let snapshot = SNAPSHOTS.get(snapshot as usize, "snapshot", call)?;
        out.fill(|sink| snapshot.page(sink))
    })
}

/// Writes a snapshot to a file: first to a temporary file in the same directory, which is then
/// renamed, so that the path never has half of a snapshot. TCUDA_STATUS_FILE_ERROR where it cannot
/// be written. (torch.cuda.memory._dump_snapshot)
///
/// @param snapshot  from tcuda_memory_snapshot_create or tcuda_mem_pool_snapshot
/// @param path      ends in .pickle, .json or .html, which is the format
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_snapshot_save(
    snapshot: *mut tcuda_memory_snapshot,
    path: *const c_char,
) -> tcuda_status {
    boundary(|call| {
        let path = text(path, "path")?;
        SNAPSHOTS.get(snapshot as usize, "snapshot", call)?.save(path)
    })
}
