//! Snapshots of the caches. What one holds is compared with the model when it is taken, and must
//! stay as it is.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::{Out, StructOut};
use crate::status_of;
use crate::world::{Mode, World};
use tcuda::ffi::snapshot::*;
use tcuda::ffi::statistics::tcuda_memory_reserved;

/// A live snapshot.
#[derive(Clone, Copy)]
pub struct SnapshotEntry {
    /// The handle.
    pub handle: usize,
    /// What it holds, where that is known: segments and blocks.
    pub counts: Option<(usize, usize)>,
}

fn counts_of(snapshot: *mut tcuda_memory_snapshot) -> (usize, usize) {
    let (mut segments, mut blocks) = (0, 0);
    let counted = status_of!(tcuda_memory_snapshot_counts(snapshot, &mut segments, &mut blocks));
    assert_eq!(counted, status::OK);
    (segments, blocks)
}

fn segment_of(snapshot: *mut tcuda_memory_snapshot, index: usize) -> tcuda_segment_info {
    let mut info = tcuda_segment_info {
        struct_size: size_of::<tcuda_segment_info>(),
        ptr: std::ptr::null_mut(),
        total_bytes: 0,
        allocated_bytes: 0,
        active_bytes: 0,
        requested_bytes: 0,
        first_block: 0,
        block_count: 0,
        cu_stream: std::ptr::null_mut(),
        stream_id: 0,
        device: 0,
        is_small: 0,
        pool_id0: 0,
        pool_id1: 0,
    };
    // No line of trace for each of them.
    // SAFETY: a live handle, and a struct of the right size.
    let found = unsafe { tcuda_memory_snapshot_segment(snapshot, index, &mut info) } as i32;
    assert_eq!(found, status::OK);
    info
}

fn block_of(snapshot: *mut tcuda_memory_snapshot, index: usize) -> tcuda_block_info {
    let mut info = tcuda_block_info {
        struct_size: size_of::<tcuda_block_info>(),
        ptr: std::ptr::null_mut(),
        bytes: 0,
        requested_bytes: 0,
        device: 0,
        state: 0,
        context: std::ptr::null_mut(),
    };
    // SAFETY: as above.
    let found = unsafe { tcuda_memory_snapshot_block(snapshot, index, &mut info) } as i32;
    assert_eq!(found, status::OK);
    info
}

/// Sums over the blocks of a segment: all, held by the host, not free, as asked for.
#[derive(Default, PartialEq, Debug)]
struct Sums([u64; 4]);

/// The blocks partition their segments, and those that the host holds are the model's.
fn compare(w: &World, snapshot: *mut tcuda_memory_snapshot) -> (usize, usize) {
    let (segments, blocks) = counts_of(snapshot);
    let mut held = Vec::new();
    let mut reserved = vec![0; w.devices().max(0) as usize];
    let (mut next_block, mut last) = (0, (0, 0));
    for index in 0..segments {
        let segment = segment_of(snapshot, index);
        let start = segment.ptr as usize;
        assert!((segment.device, start) >= last, "segments out of order");
        assert!((0..w.devices()).contains(&segment.device) && segment.block_count > 0);
        assert_eq!(segment.first_block, next_block, "blocks belong to no segment");
        let (mut at, mut sums) = (start, Sums::default());
        for index in next_block..next_block + segment.block_count {
            let block = block_of(snapshot, index);
            assert_eq!(block.ptr as usize, at, "a gap before a block");
            assert_eq!(block.device, segment.device);
            let is_free = block.state == TCUDA_BLOCK_INACTIVE;
            // Free neighbours may be of two streams, or rest until they are joined: a snapshot does
            // not tell.
            assert!(
                block.requested_bytes <= block.bytes && !(is_free && block.requested_bytes > 0)
            );
            if block.state == TCUDA_BLOCK_ACTIVE_ALLOCATED {
                held.push((block.ptr as usize, block.requested_bytes as usize, block.device));
                sums.0[1] += block.bytes;
            }
            sums.0[0] += block.bytes;
            sums.0[2] += if is_free { 0 } else { block.bytes };
            sums.0[3] += block.requested_bytes;
            at += block.bytes as usize;
        }
        let told = [
            segment.total_bytes,
            segment.allocated_bytes,
            segment.active_bytes,
            segment.requested_bytes,
        ];
        assert_eq!(sums, Sums(told), "the sums of segment {index}");
        next_block += segment.block_count;
        last = (segment.device, start + segment.total_bytes as usize);
        reserved[segment.device as usize] += segment.total_bytes as usize;
    }
    assert_eq!(next_block, blocks, "blocks behind the last segment");
    let mut model: Vec<_> = w
        .blocks
        .iter()
        .filter(|block| block.ptr != 0)
        .map(|block| (block.ptr, block.bytes, block.device))
        .collect();
    model.sort_unstable();
    held.sort_unstable();
    assert_eq!(held, model, "blocks that the host holds");
    for (device, reserved) in reserved.into_iter().enumerate().filter(|_| w.is_initialized()) {
        let mut told = 0;
        assert_eq!(status_of!(tcuda_memory_reserved(device as i32, &mut told)), status::OK);
        assert_eq!(reserved, told, "reserved bytes of device {device}");
    }
    (segments, blocks)
}

pub(super) fn create(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let with_history = w.flag(i, &mut e);
    let mut out = Out::<*mut tcuda_memory_snapshot>::required(i, &mut e);
    let status = status_of!(tcuda_memory_snapshot_create(with_history, out.ptr()));
    let Some(snapshot) = out.check(w.judge(status, &e)) else { return };
    let known = w.mode != Mode::Threads && !w.lost;
    let counts = known.then(|| compare(w, snapshot));
    w.snapshots.push(SnapshotEntry { handle: snapshot as usize, counts });
    w.counted += 1;
}

pub(super) fn destroy(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.snapshot(i, &mut e);
    if handle == 0 {
        e = Expect::default();
    }
    let status = status_of!(tcuda_memory_snapshot_destroy(handle as *mut _));
    w.judge(status, &e);
    if status == status::INVALID_HANDLE {
        return;
    }
    if let Some(index) = w.snapshots.iter().position(|entry| entry.handle == handle) {
        w.dead.push(w.snapshots.swap_remove(index).handle);
        w.counted -= 1;
    }
}

/// What a handle is known to hold.
fn known(w: &World, handle: usize) -> Option<(usize, usize)> {
    w.snapshots.iter().find(|entry| entry.handle == handle).and_then(|entry| entry.counts)
}

pub(super) fn counts(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.snapshot(i, &mut e);
    let (mut segments, mut blocks) =
        (Out::<usize>::required(i, &mut e), Out::<usize>::required(i, &mut e));
    let status =
        status_of!(tcuda_memory_snapshot_counts(handle as *mut _, segments.ptr(), blocks.ptr()));
    let ok = w.judge(status, &e);
    let found = segments.check(ok).zip(blocks.check(ok));
    if let (Some(found), Some(known)) = (found, known(w, handle)) {
        assert_eq!(found, known, "a snapshot changed");
    }
}

/// An index into a list of so many, or of an unknown number.
fn index(i: &mut Input, count: Option<usize>, e: &mut Expect) -> usize {
    let index = match i.u8() {
        few @ 0..=223 => usize::from(few % 16),
        224..=239 => count.unwrap_or(0),
        240..=247 => usize::MAX,
        _ => i.u64() as usize,
    };
    match count {
        Some(count) if index >= count => e.wrong(status::INVALID_ARGUMENT),
        Some(_) => (),
        None => e.also(&[status::INVALID_ARGUMENT]),
    }
    index
}

pub(super) fn segment(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.snapshot(i, &mut e);
    let index = index(i, known(w, handle).map(|(segments, _)| segments), &mut e);
    let mut out = StructOut::new(i, &mut e, size_of::<tcuda_segment_info>());
    let status = status_of!(tcuda_memory_snapshot_segment(handle as *mut _, index, out.ptr()));
    out.check(w.judge(status, &e));
}

pub(super) fn block(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.snapshot(i, &mut e);
    let index = index(i, known(w, handle).map(|(_, blocks)| blocks), &mut e);
    let mut out = StructOut::new(i, &mut e, size_of::<tcuda_block_info>());
    let status = status_of!(tcuda_memory_snapshot_block(handle as *mut _, index, out.ptr()));
    out.check(w.judge(status, &e));
}
