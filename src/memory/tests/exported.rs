//! Blocks that other processes may have open: they do not change, whatever the host does. There are
//! no other processes; a withdrawn handle counts as closed.

use super::super::arena::ArenaState;
use super::super::record_stream;
use super::*;
use crate::ipc::Handle;
use crate::memory::arena::block::{NONE, State};
use crate::memory::device::exported::{self, keep};
use crate::memory::stats::ledger;
use proptest::prelude::*;

impl ArenaState {
    /// The number of blocks that other processes may have open.
    fn marked(&self) -> u32 {
        let (mut id, mut count) = (self.first, 0);
        while id != NONE {
            let is_marked = self.is_exported(id);
            assert!(!is_marked || self.blocks[id].state == State::Allocated, "it is in use");
            count += u32::from(is_marked);
            id = self.blocks[id].next;
        }
        count
    }
}

fn allocated(bench: Bench) -> i64 {
    bench.memory().statistics().counters[ledger::ALLOCATED_BYTES][ledger::ALL].current
}

fn check(bench: Bench) {
    bench.check();
    let every = bench.memory().each_arena(|state| {
        assert_eq!(state.marked(), state.exported(), "as many as are counted");
        Ok(())
    });
    every.unwrap();
}

/// Addresses of blocks that are live here or may be open elsewhere, and their handles.
struct Held {
    address: u64,
    bytes: u64,
    is_live: bool,
    handles: Vec<Handle>,
}

fn random_operations(options: &str, choices: &[(u8, u64)]) {
    on_machine(options, |bench| {
        let streams = [bench.stream(), bench.stream()];
        let ipc = &bench.gpus.ipc();
        let mut held: Vec<Held> = Vec::new();
        for (what, number) in choices {
            let index = (*number as usize).checked_rem(held.len()).unwrap_or(0);
            match (what % 8, held.get_mut(index)) {
                (0..=2, _) | (_, None) => {
                    let bytes = if number % 3 == 0 { number % (6 * MIB) } else { number % 9000 };
                    let address = bench.malloc(streams[index % 2], bytes + 1);
                    let meets = |other: &Held| {
                        other.address < address + bytes + 1 && address < other.address + other.bytes
                    };
                    assert!(!held.iter().any(meets), "it is still in use");
                    held.push(Held { address, bytes: bytes + 1, is_live: true, handles: vec![] });
                }
                (3, Some(block)) => {
                    let inside = block.address + number % block.bytes;
                    let given = ipc.export(bench.gpus, inside, streams[0]);
                    assert_eq!(given.is_ok(), block.is_live);
                    block.handles.extend(given);
                }
                (4, Some(block)) => {
                    if let Some(handle) = block.handles.pop() {
                        ipc.withdraw(bench.gpus, &handle).unwrap();
                        assert!(ipc.withdraw(bench.gpus, &handle).is_err());
                    }
                }
                (5, Some(block)) if block.is_live => {
                    record_stream(block.address, streams[(number % 2) as usize]).unwrap();
                }
                (6, Some(block)) => {
                    let freed = super::super::free(bench.gpus, block.address);
                    assert_eq!(freed.is_ok(), block.is_live);
                    block.is_live = false;
                }
                _ => bench.empty_cache(),
            }
            held.retain(|block| block.is_live || !block.handles.is_empty());
            check(bench);
        }
        for block in held {
            if block.is_live {
                bench.free(block.address);
            }
            for handle in &block.handles {
                ipc.withdraw(bench.gpus, handle).unwrap();
            }
        }
        bench.empty_cache();
        check(bench);
        assert_eq!((allocated(bench), bench.in_use()), (0, 0));
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn blocks_of_other_processes_stay(
        choices in proptest::collection::vec((any::<u8>(), any::<u64>()), 1..60),
        mapped: bool,
    ) {
        let options = if mapped { "memory=1GiB" } else { "memory=1GiB,virtual_memory=none" };
        random_operations(options, &choices);
    }
}

#[test]
fn all_memory_of_a_block_is_shared() {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        for bytes in [1, 4096, 3 * MIB, 100 * MIB + 5] {
            let address = bench.malloc(stream, bytes);
            let found = keep(address + bytes / 2).unwrap();
            assert_eq!((found.address, found.bytes), (address, bytes));
            let sum: u64 = found.handles.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(found.range_bytes, sum);
            assert!(found.base <= address && address + bytes <= found.base + sum);
            assert!(found.handles.iter().all(|(handle, _)| *handle != 0));
            exported::forget(address);
            bench.free(address);
        }
        check(bench);
    });
}
