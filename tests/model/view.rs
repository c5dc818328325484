//! The public snapshot, and what must hold in every one.

use super::api;
use super::ops::{MIB, SMALL_ARENA};
use std::collections::BTreeMap;
use tcuda::ffi::snapshot::*;
use tcuda::ffi::statistics::tcuda_memory_statistics;

/// A block with what its segment says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    pub bytes: u64,
    pub requested: u64,
    pub state: i32,
    pub device: i32,
    pub native: usize,
    pub stream_id: i64,
    /// Its segment is.
    pub is_small: bool,
}

impl Shown {
    /// Device, stream and size class.
    pub fn arena(&self) -> (i32, usize, i64, bool) {
        (self.device, self.native, self.stream_id, self.is_small)
    }
}

pub struct View {
    pub segments: Vec<tcuda_segment_info>,
    pub blocks: BTreeMap<u64, Shown>,
}

impl View {
    /// Takes a snapshot and checks what needs no model: blocks partition their segments, sums are
    /// right, and nothing overlaps.
    pub fn take() -> View {
        let (segments, list) = api::snapshot().unwrap();
        let mut blocks = BTreeMap::new();
        let (mut next, mut end, mut device) = (0, 0, 0);
        for segment in &segments {
            assert!(segment.device >= device, "devices are in order");
            if segment.device > device {
                (device, end) = (segment.device, 0);
            }
            let start = segment.ptr as u64;
            assert!(start >= end, "segments overlap, or are out of order");
            assert!(segment.block_count > 0);
            assert_eq!(segment.first_block, next);
            let mut sums = [0; 3];
            let mut at = start;
            for block in &list[next..next + segment.block_count] {
                let is_active = block.state != TCUDA_BLOCK_INACTIVE;
                assert_eq!(block.ptr as u64, at, "blocks partition their segment");
                assert!(block.bytes > 0 && block.bytes % 512 == 0, "{} bytes", block.bytes);
                assert_eq!(block.device, segment.device);
                assert_eq!(block.requested_bytes > 0, is_active);
                assert!(block.requested_bytes <= block.bytes);
                assert!(!is_active || (block.bytes <= SMALL_ARENA) == (segment.is_small == 1));
                let is_allocated = block.state == TCUDA_BLOCK_ACTIVE_ALLOCATED;
                sums[0] += if is_allocated { block.bytes } else { 0 };
                sums[1] += if is_active { block.bytes } else { 0 };
                sums[2] += block.requested_bytes;
                let shown = Shown {
                    bytes: block.bytes,
                    requested: block.requested_bytes,
                    state: block.state,
                    device,
                    native: segment.cu_stream as usize,
                    stream_id: segment.stream_id,
                    is_small: segment.is_small == 1,
                };
                assert!(blocks.insert(at, shown).is_none(), "one block at {at:#x}");
                at += block.bytes;
            }
            next += segment.block_count;
            end = start + segment.total_bytes;
            assert_eq!(at, end, "blocks partition their segment");
            let told = [segment.allocated_bytes, segment.active_bytes, segment.requested_bytes];
            assert_eq!(sums, told, "sums of the segment at {start:#x}");
        }
        assert_eq!(next, list.len());
        View { segments, blocks }
    }

    /// Blocks that the host holds.
    pub fn live(&self) -> impl Iterator<Item = (&u64, &Shown)> {
        self.blocks.iter().filter(|(_, shown)| shown.state == TCUDA_BLOCK_ACTIVE_ALLOCATED)
    }

    /// The statistics are the sums over what is shown; no other thread is at work.
    pub fn compare(
        &self,
        device: i32,
        stats: &tcuda_memory_statistics,
        arenas_are_known: bool,
        has_lost: bool,
    ) {
        let mut sums = [[0u64; 3]; 7];
        let mut add = |lane: usize, is_small: bool, by: u64| {
            sums[lane][0] += by;
            sums[lane][if is_small { 1 } else { 2 }] += by;
        };
        for segment in self.segments.iter().filter(|segment| segment.device == device) {
            add(5, segment.is_small == 1, 1);
            add(6, segment.is_small == 1, segment.total_bytes);
        }
        let blocks = || self.blocks.values().filter(|block| block.device == device);
        for block in blocks() {
            let is_small = block.bytes <= MIB;
            if block.state == TCUDA_BLOCK_ACTIVE_ALLOCATED {
                add(0, is_small, 1);
                add(1, is_small, block.bytes);
            }
            if block.state != TCUDA_BLOCK_INACTIVE {
                add(2, is_small, 1);
                add(3, is_small, block.bytes);
                add(4, is_small, block.requested);
            }
        }
        let told = [
            ("allocation", &stats.allocation),
            ("allocated_bytes", &stats.allocated_bytes),
            ("active", &stats.active),
            ("active_bytes", &stats.active_bytes),
            ("requested_bytes", &stats.requested_bytes),
            ("segment", &stats.segment),
            ("reserved_bytes", &stats.reserved_bytes),
        ];
        for (sums, (name, stat)) in sums.iter().zip(told) {
            let told = [&stat.all, &stat.small_pool, &stat.large_pool].map(|stat| stat.current);
            assert_eq!(*sums, told, "device {device}: blocks shown, and {name}");
        }
        if arenas_are_known {
            let mut arenas: BTreeMap<_, (bool, u64)> = BTreeMap::new();
            for block in blocks() {
                let arena = arenas.entry(block.arena()).or_default();
                arena.0 |= block.state != TCUDA_BLOCK_INACTIVE;
                arena.1 += u64::from(block.state == TCUDA_BLOCK_INACTIVE);
            }
            let split = arenas.values().filter(|arena| arena.0).map(|arena| arena.1).sum::<u64>();
            assert_eq!(stats.inactive_split.all.current, split, "device {device}: inactive_split");
        }
        let (free, total) = api::memory_info(device);
        let is_right = sums[6][0] == total - free || (has_lost && sums[6][0] < total - free);
        assert!(is_right, "device {device}: reserved, and gone from the driver");
    }
}
