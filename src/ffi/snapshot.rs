//! Section "Memory" of the header: snapshots.

use super::boundary::{Sized_, boundary, bytes_out, flag, out, struct_out, text, text_out};
use super::handle::Table;
use super::status::tcuda_status;
use crate::base::error::{Error, Result};
use crate::driver::sys::CUstream_st;
use crate::memory::stats::ledger::Class;
use crate::memory::trace::snapshot::{BlockState, Snapshot};
use crate::runtime;
use std::ffi::{c_char, c_void};

/// Segments and blocks of all devices at one moment.
pub struct tcuda_memory_snapshot {
    _private: [u8; 0],
}

pub(super) static SNAPSHOTS: Table<Snapshot> = Table::new(4, "snapshot");

/// What a block is, by torch's names: TCUDA_BLOCK_...
pub type tcuda_block_state = i32;
/// "inactive": cached, not allocated.
pub const TCUDA_BLOCK_INACTIVE: tcuda_block_state = 0;
/// "active_allocated": held by the host.
pub const TCUDA_BLOCK_ACTIVE_ALLOCATED: tcuda_block_state = 1;
/// "active_pending_free": freed, but awaiting streams of tcuda_record_stream.
pub const TCUDA_BLOCK_ACTIVE_PENDING_FREE: tcuda_block_state = 2;

/// A contiguous range of memory from the driver, which serves one stream and size class.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_segment_info {
    /// From TCUDA_INIT.
    pub struct_size: usize,
    /// First byte.
    pub ptr: *mut c_void,
    /// Length; what its blocks have together.
    pub total_bytes: u64,
    /// Of blocks held by the host.
    pub allocated_bytes: u64,
    /// Those, and of freed blocks awaiting streams.
    pub active_bytes: u64,
    /// Of active blocks, as asked for.
    pub requested_bytes: u64,
    /// Index of its first block; the others follow, by address.
    pub first_block: usize,
    /// Number of its blocks.
    pub block_count: usize,
    /// Native handle of its stream; NULL: the default one.
    pub cu_stream: *mut CUstream_st,
    /// What tcuda_stream_id gives for it.
    pub stream_id: i64,
    /// Ordinal.
    pub device: i32,
    /// 1: of blocks up to 64 KiB; 0: of larger ones, those up to 1 MiB among them, which count as
    /// small in statistics. With expandable_segments:False, 1: of blocks up to 1 MiB, as in torch.
    pub is_small: i32,
    /// What tcuda_mem_pool_id gives for its private pool; 0 and 0: it is in none.
    pub pool_id0: u64,
    /// The second number.
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
    /// Bytes as asked for; 0 when inactive.
    pub requested_bytes: u64,
    /// Ordinal.
    pub device: i32,
    /// TCUDA_BLOCK_...
    pub state: tcuda_block_state,
}

// SAFETY: repr(C), plain data, struct_size first.
unsafe impl Sized_ for tcuda_block_info {}

/// The segments and blocks of all devices now, empty before initialisation. A device is listed at
/// one moment, one device after the other; of a call that another thread is in the middle of, it
/// shows the state before or after. Does not wait for the device. (torch.cuda.memory_snapshot)
///
/// @param with_history   1: with what tcuda_memory_record_history recorded; 0: as it is now only
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
        let taken = match runtime::existing(call.inside()) {
            Some(runtime) => Snapshot::of(&runtime.devices, None, with_history)?,
            None => Snapshot::before_any_use()?,
        };
        snapshot.set(SNAPSHOTS.insert(taken)? as *mut tcuda_memory_snapshot);
        Ok(())
    })
}

/// Forgets a snapshot. (+)
///
/// @param snapshot  may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_memory_snapshot_destroy(
    snapshot: *mut tcuda_memory_snapshot,
) -> tcuda_status {
    boundary(|_| {
        if snapshot.is_null() { Ok(()) } else { SNAPSHOTS.remove(snapshot as usize, "snapshot") }
    })
}

/// How much a snapshot has: segments in the order of devices and addresses, and the blocks of all of
/// them in the same order. (torch.cuda.memory_snapshot)
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

/// The element of a list of a snapshot.
fn element<T>(list: &[T], index: usize) -> Result<&T> {
    list.get(index).ok_or(Error::OutOfRange {
        name: "index",
        value: i64::try_from(index).unwrap_or(i64::MAX),
        allowed: "use one below what tcuda_memory_snapshot_counts gives",
    })
}

/// A segment of a snapshot. (torch.cuda.memory_snapshot)
///
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

/// A block of a snapshot. (torch.cuda.memory_snapshot)
///
/// @param index          below the number of blocks; a segment names its first
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
        });
        Ok(())
    })
}

/// A snapshot as a pickle, of the dictionary that torch.cuda.memory._snapshot gives: the memory_viz
/// page of PyTorch and torch/cuda/_memory_viz.py open it. (torch.cuda.memory._snapshot)
///
/// @param[out] buf  bytes, without a NUL; of no use where they are cut
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

/// The same dictionary as JSON, in ASCII; the frames are written out at each place, so that a long
/// history of deep stacks is large. (+)
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

/// A snapshot as one page that needs no other file and no network: allocated memory over time by
/// block, and a map of the segments. (+)
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

/// Writes a snapshot to a file: first to one beside it, which then takes its name, so that the path
/// never has half of one. TCUDA_STATUS_FILE_ERROR where it cannot be written.
/// (torch.cuda.memory._dump_snapshot)
///
/// @param path  ends in .pickle, .json or .html, which says how it is written
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
