//! Refusals: by the driver, for lack of host memory, or because a table is full.

use super::{MIB, on_machine};
use crate::base::error::Error;
use crate::driver::{Call, inject};

#[test]
fn every_arena_is_emptied_and_the_first_failure_returned() {
    on_machine("memory=1GiB", |bench| {
        let blocks = [(); 3].map(|()| bench.malloc(bench.stream(), 4 * MIB));
        blocks.into_iter().for_each(|block| bench.free(block));
        assert_eq!(bench.reserved(), 12 * MIB);
        inject::replace(&inject::parse("cuMemUnmap@1=999,cuMemUnmap@2=998").unwrap());
        match bench.memory().empty_cache(bench.gpus) {
            Err(Error::Cuda(error)) => assert_eq!((error.call, error.code), ("cuMemUnmap", 999)),
            other => panic!("{other:?}"),
        }
        assert_eq!(bench.reserved(), 8 * MIB, "the third arena has nothing to do with it");
        bench.check();
        inject::clear();
        bench.empty_cache();
        assert_eq!(bench.reserved(), 0);
        bench.check();
    });
}

/// Pinned memory that cannot be listed is given back to the driver.
#[test]
fn pinned_memory_is_not_lost_for_lack_of_host_memory() {
    on_machine("memory=1GiB", |bench| {
        let host = &bench.gpus.pinned();
        let held = || bench.calls(Call::cuMemHostAlloc) - bench.calls(Call::cuMemFreeHost);
        let mut given_back = 0;
        let block = (1..100).find_map(|k| {
            inject::replace(&inject::parse(&format!("malloc@{k}=fail")).unwrap());
            let outcome = host.allocate(bench.gpus, 4096);
            inject::clear();
            match outcome {
                Ok(block) => Some(block),
                Err(Error::OutOfHostMemory(_)) => {
                    given_back += usize::from(bench.calls(Call::cuMemFreeHost) > 0);
                    assert_eq!(held(), 0, "k = {k}");
                    None
                }
                Err(error) => panic!("k = {k}: {error:?}"),
            }
        });
        assert!(given_back > 0, "the list never grew");
        assert_eq!(held(), 1);
        host.free(bench.gpus, block.unwrap()).unwrap();
        host.empty_cache(bench.gpus).unwrap();
        assert_eq!(held(), 0);
    });
}

/// If the driver reserves only one slot at a time, the table of reservations becomes full. Existing
/// streams continue to work, and the library starts with an empty table after a shutdown.
#[test]
fn a_full_table_of_reservations_refuses_another_stream() {
    const ROOM: usize = 128;
    const LEVELS: i32 = 4;
    on_machine("memory=1GiB", |bench| {
        let reserved = || bench.calls(Call::cuMemAddressReserve);
        // Each of the first two reservations is a slot. Every other one is a window of smallest
        // slots, of which two serve a new heap. The requests for more addresses fail.
        let malloc_in_few_slots = |stream, is_first: bool| {
            let (fail, calls) = match is_first {
                true => ((1..=9).chain(11..=20), 21),
                false => ((1..=9).chain(0..=0), 10),
            };
            let rule = |k: u64| format!("cuMemAddressReserve@{k}=2");
            let rules: Vec<String> = fail.filter(|k| *k > 0).map(rule).collect();
            inject::replace(&inject::parse(&rules.join(",")).unwrap());
            let before = reserved();
            let block = bench.malloc(stream, 512);
            inject::clear();
            assert_eq!(reserved() - before, calls);
            block
        };
        let stream = |level: i32| bench.device.streams.next(bench.device, -level).unwrap();
        let streams: Vec<_> = (1..ROOM as i32).map(|index| stream(index % LEVELS)).collect();
        let mut blocks = Vec::new();
        for (index, stream) in streams.iter().enumerate() {
            malloc_in_few_slots(stream, index == 0);
            let before = reserved();
            blocks.push(bench.malloc(stream, MIB + 512));
            assert_eq!(reserved(), before);
        }
        let before = reserved();
        match bench.try_malloc(stream(0), 512) {
            Err(Error::OutOfHostMemory(what)) => assert!(what.contains("too many reservations")),
            other => panic!("{other:?}"),
        }
        assert_eq!(reserved(), before, "the driver was not asked");
        bench.free(blocks[0]);
        assert_eq!(bench.malloc(streams[0], MIB + 512), blocks[0]);
        bench.check();
    });
    on_machine("memory=1GiB", |bench| {
        bench.malloc(bench.stream(), 512);
        bench.check();
    });
}
