//! Arenas, slots and streams that have ended: they are reused or freed.

use super::super::record_stream;
use super::identity::{native, wrap_native};
use super::{Bench, KIB, MIB, Random, on_machine};
use crate::base::thread;
use crate::driver::Call;
use crate::driver::sys::CUstream;
use crate::gpu::stream::Stream;
use crate::memory::arena::addresses::arena_of;
use crate::memory::arena::pool::Pool;
use crate::memory::arena::registry::Slot;
use crate::memory::pools::route;

const PER_THREAD: CUstream = 2 as CUstream;

fn destroy(bench: Bench, stream: &Stream) {
    let handle = stream.native();
    stream.remove_handle(bench.gpus).unwrap();
    let _context = bench.device.enter().unwrap();
    // SAFETY: made by `native`.
    unsafe { bench.device.driver().cuStreamDestroy(handle) }.unwrap();
}

/// The number of heaps of the device.
fn heaps(bench: Bench) -> usize {
    bench.memory().stats.with_members(|heaps| heaps.len())
}

fn streams(bench: Bench) -> usize {
    bench.device.streams.external.lock().len()
}

fn reservations(bench: Bench) -> u64 {
    bench.calls(Call::cuMemAddressReserve)
}

/// Repeats the search until a condition holds, because threads of other tests may be inside.
#[track_caller]
fn forget_until(bench: Bench, holds: impl Fn() -> bool) {
    for _ in 0..20_000 {
        bench.device.streams.forget_ended(bench.gpus, true);
        if holds() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("{} streams are left", streams(bench));
}

#[test]
fn the_next_stream_gets_what_the_last_one_left() {
    on_machine("memory=141GiB", |bench| {
        let mut mapped = 0;
        for round in 0..1000 {
            let stream = wrap_native(bench, native(bench));
            let (small, large) = (bench.malloc(stream, 1000), bench.malloc(stream, 3 * MIB));
            bench.free(small);
            bench.free(large);
            destroy(bench, stream);
            if round == 10 {
                mapped = bench.calls(Call::cuMemMap);
            }
        }
        assert_eq!(bench.calls(Call::cuMemMap), mapped, "nothing more is mapped");
        assert!(heaps(bench) <= 4, "{}", heaps(bench));
        assert_eq!(reservations(bench), 1);
        bench.check();
        bench.empty_cache();
        assert_eq!((bench.reserved(), heaps(bench)), (0, 0));
    });
}

#[test]
fn streams_that_are_over_go_with_their_events() {
    on_machine("memory=1GiB", |bench| {
        let own = bench.stream();
        let block = bench.malloc(own, MIB);
        let mut used = None;
        for round in 0..2000 {
            let stream = wrap_native(bench, native(bench));
            if round == 500 {
                record_stream(block, stream).unwrap();
                used = Some(stream.serial);
            }
            destroy(bench, stream);
            bench.device.streams.forget_ended(bench.gpus, false);
        }
        let serials = || -> Vec<u64> {
            bench.device.streams.external.lock().all().map(|stream| stream.serial).collect()
        };
        assert!(serials().contains(&used.unwrap()), "a block names it");
        bench.free(block);
        bench.malloc(own, MIB);
        forget_until(bench, || !serials().contains(&used.unwrap()));
        forget_until(bench, || streams(bench) < 10);
        let events = |call| bench.calls(call) as i64;
        let alive = events(Call::cuEventCreate) - events(Call::cuEventDestroy);
        assert!(alive < 400, "{alive} events");
    });
}

#[test]
fn a_stream_that_comes_back_is_the_same() {
    on_machine("memory=1GiB", |bench| {
        let handle = native(bench);
        let first = wrap_native(bench, handle);
        let serial = first.serial;
        first.remove_handle(bench.gpus).unwrap();
        bench.device.streams.forget_ended(bench.gpus, true);
        let again = wrap_native(bench, handle);
        for _ in 0..6 {
            bench.device.streams.forget_ended(bench.gpus, true);
        }
        assert_eq!((again.serial, streams(bench)), (serial, 1));
        again.remove_handle(bench.gpus).unwrap();
        forget_until(bench, || streams(bench) == 0);
    });
}

#[test]
fn threads_that_end_leave_nothing() {
    on_machine("memory=80GiB", |bench| {
        for _ in 0..300 {
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    let _inside = thread::enter().unwrap();
                    let own = bench.device.streams.external(bench.device, PER_THREAD).unwrap();
                    let blocks = [1000, 3 * MIB].map(|bytes| bench.malloc(own, bytes));
                    blocks.into_iter().for_each(|block| bench.free(block));
                });
                // A scope does not wait for the destructors of its threads; a join does.
                thread.join().unwrap();
            });
        }
        assert!(heaps(bench) <= 16, "{}", heaps(bench));
        assert_eq!(reservations(bench), 1);
        // The last thread may still be ending.
        while heaps(bench) > 0 {
            bench.empty_cache();
        }
        assert_eq!(bench.reserved(), 0);
    });
}

/// A thread that found an arena ended may be late: a new pool has taken it over.
#[test]
fn an_arena_that_serves_again_stays() {
    on_machine("memory=4GiB", |bench| {
        let (dead, pool) = (Pool::new(0, None).unwrap(), Pool::new(0, None).unwrap());
        let generation = bench.device.streams.generation();
        let stream = bench.stream();
        let allocate = |pool: &Pool| {
            route::begin(pool.share(), 0, 0, generation).unwrap();
            let block = bench.malloc(stream, 2 * MIB);
            route::end(pool.id(), 0, generation).unwrap();
            block
        };
        let block = allocate(&dead);
        let arena = arena_of(block).unwrap().0;
        bench.free(block);
        drop(dead);
        assert_eq!(allocate(&pool), block, "the new pool takes the heap over");
        bench.free(block);
        let before = heaps(bench);
        {
            let state = &mut arena.guard();
            assert!(bench.memory().take_out(state).is_none());
            bench.memory().make_available(bench.device, state, false);
        }
        assert!(heaps(bench) == before && arena.heap().is_of(stream) && arena.pool() == pool.id());
        assert_eq!(allocate(&pool), block);
        bench.check();
        bench.free(block);
        drop(pool);
        bench.empty_cache();
        assert_eq!((bench.reserved(), heaps(bench)), (0, 0));
    });
}

/// More arenas than there are slots for all of the memory. One of them grows into larger slots, and
/// behaves as in a single slot.
#[test]
fn an_arena_outgrows_its_slot() {
    on_machine("memory=4GiB", |bench| {
        let pools: Vec<Pool> = (0..60).map(|_| Pool::new(0, None).unwrap()).collect();
        let generation = bench.device.streams.generation();
        let stream = bench.stream();
        let mut blocks = Vec::new();
        for pool in &pools {
            route::begin(pool.share(), 0, 0, generation).unwrap();
            blocks.push(bench.malloc(stream, 1000));
            route::end(pool.id(), 0, generation).unwrap();
        }
        bench.check();
        let last = pools.last().unwrap();
        route::begin(last.share(), 0, 0, generation).unwrap();
        let large: Vec<u64> = (0..400).map(|_| bench.malloc(stream, 8 * MIB)).collect();
        bench.check();
        let arena = arena_of(large[0]).unwrap().0;
        for block in &large {
            let (found, offset) = arena_of(*block).unwrap();
            assert!(std::ptr::eq(found, arena) && offset == block - arena.base);
        }
        let slots: Vec<Slot> = arena.guard().slots.all().collect();
        assert!(slots.len() >= 3, "{}", slots.len());
        assert!(slots.windows(2).all(|pair| pair[0].base + pair[0].bytes <= pair[1].base));
        let is_inside = |block: &u64| slots.iter().any(|slot| block - slot.base < slot.bytes);
        assert!(large.iter().all(is_inside));
        // Then blocks are freed and allocated at random.
        let mut random = Random(9);
        let mut large = large;
        for _ in 0..2000 {
            if random.below(2) == 0 && large.len() < 400 {
                large.push(bench.malloc(stream, (1 + random.below(8)) * MIB + 1));
            } else if !large.is_empty() {
                let index = random.below(large.len() as u64) as usize;
                bench.free(large.swap_remove(index));
            }
        }
        bench.check();
        large.into_iter().for_each(|block| bench.free(block));
        route::end(last.id(), 0, generation).unwrap();
        blocks.into_iter().for_each(|block| bench.free(block));
        drop(pools);
        bench.empty_cache();
        assert_eq!((bench.reserved(), heaps(bench)), (0, 0));
        bench.check();
    });
}

/// Streams, pools and blocks are created and destroyed at random. The invariants hold, live blocks
/// are disjoint, and at the end nothing is left.
#[test]
fn random_programs_leave_nothing() {
    for seed in 1..12 {
        on_machine("memory=2GiB", |bench| random_program(bench, seed));
    }
}

struct Block {
    address: u64,
    bytes: u64,
}

fn random_program(bench: Bench, seed: u64) {
    let mut random = Random(seed * 7919);
    let generation = bench.device.streams.generation();
    let (mut named, mut pools): (Vec<&Stream>, Vec<Pool>) = (Vec::new(), Vec::new());
    let mut blocks: Vec<Block> = Vec::new();
    for step in 0..3000 {
        match random.below(10) {
            0 if named.len() < 40 => named.push(wrap_native(bench, native(bench))),
            1 if !named.is_empty() => {
                let index = random.below(named.len() as u64) as usize;
                destroy(bench, named.swap_remove(index));
            }
            2 if pools.len() < 30 => pools.push(Pool::new(0, None).unwrap()),
            3 if !pools.is_empty() => {
                drop(pools.swap_remove(random.below(pools.len() as u64) as usize));
            }
            4..=6 if blocks.len() < 60 => {
                let stream = match named.len() as u64 {
                    0 => bench.device.streams.default(),
                    count => named[random.below(count) as usize],
                };
                let bytes = if random.below(2) == 0 { 200 * KIB } else { 6 * MIB };
                let bytes = 1 + random.below(bytes);
                let pool = pools.last().filter(|_| random.below(2) == 0);
                if let Some(pool) = pool {
                    route::begin(pool.share(), 0, 0, generation).unwrap();
                }
                blocks.push(Block { address: bench.malloc(stream, bytes), bytes });
                if let Some(pool) = pool {
                    route::end(pool.id(), 0, generation).unwrap();
                }
            }
            7..=8 if !blocks.is_empty() => {
                let index = random.below(blocks.len() as u64) as usize;
                let block = blocks.swap_remove(index);
                if let Some(stream) = named.last().filter(|_| random.below(3) == 0) {
                    record_stream(block.address, stream).unwrap();
                }
                bench.free(block.address);
            }
            9 if random.below(20) == 0 => bench.empty_cache(),
            _ => (),
        }
        if step % 100 == 0 {
            bench.check();
            blocks.sort_by_key(|block| block.address);
            let are_apart = |pair: &[Block]| pair[0].address + pair[0].bytes <= pair[1].address;
            assert!(blocks.windows(2).all(are_apart), "seed {seed}");
        }
    }
    blocks.into_iter().for_each(|block| bench.free(block.address));
    named.into_iter().for_each(|stream| destroy(bench, stream));
    drop(pools);
    bench.empty_cache();
    bench.check();
    assert_eq!(bench.reserved(), 0, "seed {seed}");
    // The default stream keeps its arenas.
    assert!(heaps(bench) <= 2, "seed {seed}: {}", heaps(bench));
    forget_until(bench, || streams(bench) == 0);
    assert!(reservations(bench) <= 3, "seed {seed}: slots are used again");
}
