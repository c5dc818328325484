//! Finding the block from any address in it.

use super::*;
use crate::memory;
use crate::memory::arena::addresses;
use crate::memory::extent;
use proptest::prelude::*;

/// Allocates and frees, and looks up addresses in live blocks, freed blocks and between blocks.
fn every_address_leads_to_its_block(options: &str, sizes: &[(u64, bool)]) {
    on_machine(options, |bench| {
        let stream = bench.stream();
        let mut live: Vec<(u64, u64)> = Vec::new();
        let mut freed: Vec<(u64, u64)> = Vec::new();
        for (bytes, frees) in sizes {
            let address = bench.malloc(stream, *bytes);
            freed.retain(|(start, bytes)| start + bytes <= address || address + bytes <= *start);
            live.push((address, *bytes));
            if *frees {
                let gone = live.swap_remove(live.len() / 2);
                bench.free(gone.0);
                freed.push(gone);
            }
            for (start, bytes) in &live {
                for at in [0, 1, bytes / 3, bytes / 2, bytes - 1] {
                    assert_eq!(extent(start + at).unwrap(), Some((*start, *bytes)));
                }
            }
            // The address of a freed block may be the end of a live block that is larger than
            // requested.
            let is_live = |start| live.iter().any(|(address, _)| *address == start);
            for (start, bytes) in &freed {
                for at in [0, bytes / 2, bytes - 1].map(|at| start + at) {
                    assert!(!matches!(extent(at), Ok(Some((start, _))) if !is_live(start)));
                }
            }
        }
    });
}

const MOST: u64 = 5 * MIB;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn addresses_lead_to_their_blocks(
        sizes in proptest::collection::vec((1u64..MOST, any::<bool>(), any::<bool>()), 1..40),
        mapped: bool,
    ) {
        let sizes: Vec<(u64, bool)> = sizes
            .iter()
            .map(|(bytes, is_small, frees)| {
                (if *is_small { bytes % 9000 + 1 } else { *bytes }, *frees)
            })
            .collect();
        let options = if mapped { "memory=1GiB" } else { "memory=1GiB,virtual_memory=none" };
        every_address_leads_to_its_block(options, &sizes);
    }
}

#[test]
fn addresses_of_no_block_are_invalid() {
    on_machine("memory=256MiB", |bench| {
        let stream = bench.stream();
        let blocks: Vec<u64> = (0..3000).map(|_| bench.malloc(stream, 512)).collect();
        blocks[1..].iter().for_each(|block| bench.free(*block));
        assert!(extent(blocks[2999]).is_err() && extent(blocks[1] + 5).is_err());
        assert_eq!(extent(blocks[0] + 511).unwrap(), Some((blocks[0], 512)));
        assert_eq!(extent(0x1000).unwrap(), None);
    });
}

/// The memory of a vacant slot belongs to the library and to no arena: the next slot, the last
/// slot, and the part of a slot behind its last block. Memory that is not reserved is unknown.
#[test]
fn addresses_of_vacant_slots_have_no_extent() {
    on_machine("memory=256MiB", |bench| {
        let stream = bench.stream();
        let block = bench.malloc(stream, 512);
        let mut reserved = 0;
        for shift in 12..47 {
            let address = block + (1 << shift);
            if addresses::device_of(address).is_none() {
                assert_eq!(extent(address).unwrap(), None, "{shift}");
                continue;
            }
            reserved += 1;
            assert!(matches!(extent(address), Err(Error::InvalidPointer { .. })), "{shift}");
            let used = memory::record_around(address, address, stream);
            assert!(matches!(used, Err(Error::InvalidPointer { .. })), "{shift}");
            let is_in_arena = addresses::arena_of(address).is_some();
            assert_eq!(memory::device_of(address).is_some(), is_in_arena, "{shift}");
        }
        // Eight slots of 512 MiB.
        assert!(reserved >= 31 - 12, "{reserved}");
        bench.free(block);
    });
}
