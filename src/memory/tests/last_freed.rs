//! The block that was freed last, which stays unmerged until another block is freed or a search
//! runs.

use super::{Bench, KIB, MIB, on_machine, without_remapping};
use crate::gpu::stream::Stream;
use crate::memory::arena::addresses::arena_of;

/// The offset of a block in its arena.
fn place(address: u64) -> u64 {
    arena_of(address).unwrap().1
}

fn join(bench: Bench, address: u64) {
    let arena = arena_of(address).unwrap().0;
    bench.memory().merge_quick(&mut arena.guard());
}

#[test]
fn the_block_that_was_freed_last_is_allocated_again() {
    on_machine("memory=4GiB", |bench| {
        let stream = bench.stream();
        for bytes in [KIB, 20 * MIB] {
            let first = bench.malloc(stream, bytes);
            for _ in 0..3 {
                bench.free(first);
                bench.check();
                assert_eq!(bench.malloc(stream, bytes), first);
                bench.check();
            }
            bench.free(first);
            let smaller = bench.malloc(stream, bytes / 2);
            if bytes == KIB {
                assert_eq!(
                    smaller,
                    first + bytes,
                    "a small one is kept while there is room behind it"
                );
            } else {
                assert_eq!(
                    smaller, first,
                    "joined with what is behind it, of which it is the front"
                );
            }
            bench.free(smaller);
        }
    });
}

/// The same program on two streams; one of them merges each block at once. Large blocks get the
/// same offsets, so that delayed merging costs no memory.
#[test]
fn large_blocks_get_the_same_offsets_as_with_immediate_merging() {
    without_remapping("memory=64GiB", |bench| {
        let streams: [&Stream; 2] = [bench.stream(), bench.stream()];
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut below = |bound: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % bound
        };
        let mut live: Vec<[u64; 2]> = Vec::new();
        let mut again = 0;
        for _ in 0..20_000 {
            if live.len() > 2 && below(100) < 50 {
                let blocks = live.swap_remove(below(live.len() as u64) as usize);
                blocks.iter().for_each(|block| bench.free(*block));
                join(bench, blocks[1]);
                again += 1;
            } else if live.len() < 40 {
                let bytes = (3 + below(9)) * MIB / 2;
                let blocks = streams.map(|stream| bench.malloc(stream, bytes));
                assert_eq!(place(blocks[0]), place(blocks[1]), "of {bytes} bytes");
                live.push(blocks);
            }
        }
        assert!(again > 5_000);
        bench.check();
    });
}
