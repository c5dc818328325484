//! The block index: every address leads to its block and no other, and the index is small.

use super::super::arena::{Arena, ArenaState};
use super::super::pointer::{self, cached_extent};
use super::{Bench, KIB, MIB, Random, is_invalid_pointer, on_machine};
use crate::memory::arena::addresses::arena_of;
use crate::memory::arena::block::{Block, State};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const GIB: u64 = 1 << 30;

impl ArenaState {
    /// Is every block in the index exactly once, at the right place, and nothing else?
    pub(super) fn check_starts(&self) -> std::result::Result<(), String> {
        let mut noted = self.block_index.all(&self.blocks);
        noted.sort_unstable();
        let should_be = |id: &u32| self.blocks[*id].state.is_noted();
        if !self.blocks.all().filter(should_be).eq(noted.iter().copied()) {
            return Err("other blocks are noted than those in use".into());
        }
        let is_found = |id: &u32| {
            let Block { start, state, .. } = self.blocks[*id];
            state != State::Allocated || self.find_around(start) == Some(*id)
        };
        match noted.iter().find(|id| !is_found(id)) {
            None => Ok(()),
            Some(id) => Err(format!("block {id} is not where it is looked for")),
        }
    }
}

impl Random {
    /// A size that is as likely between 512 bytes and 1 KiB as between 8 and 16 MiB.
    fn bytes(&mut self) -> u64 {
        let least = 512 << self.below(15);
        least + self.below(least)
    }
}

type Model = BTreeMap<u64, u64>;

fn compare(model: &Model, random: &mut Random) {
    let (Some((low, _)), Some((last, bytes))) = (model.first_key_value(), model.last_key_value())
    else {
        return;
    };
    let inside = model.iter().map(|(start, bytes)| start + bytes - 1).collect::<Vec<u64>>();
    let span = last + bytes - low + 4 * MIB;
    let anywhere = (0..200).map(|_| low + random.below(span)).collect::<Vec<u64>>();
    // The starts of blocks, and the units around them.
    let units = anywhere.iter().map(|address| address & !511).collect::<Vec<u64>>();
    for address in model.keys().chain(&inside).chain(&anywhere).chain(&units).copied() {
        let found = pointer::find(address).ok().map(|found| found.requested);
        assert_eq!(found, model.get(&address).copied(), "{address:#x}");
        let below = model.range(..=address).next_back().map(|(start, bytes)| (*start, *bytes));
        let holding = below.filter(|(start, bytes)| address < start + bytes);
        let around = cached_extent(address).map(|(_, start, bytes)| (start, bytes));
        // A block may be longer than requested.
        assert!(around == holding || holding.is_none() && around == below, "{address:#x}");
    }
}

fn agrees(options: &str, seed: u64) {
    on_machine(options, |bench| {
        let stream = bench.stream();
        let mut random = Random(seed | 1);
        let (mut model, mut gone) = (Model::new(), 0);
        // More blocks than the initial table holds, fewer, and more again.
        for (steps, most) in [(900, 800), (500, 40), (1200, 900)] {
            for step in 0..steps {
                let place = random.below(model.len().max(1) as u64) as usize;
                let address = model.keys().nth(place).copied();
                if let Some(address) = address.filter(|_| model.len() as u64 > random.below(most)) {
                    bench.free(address);
                    model.remove(&address);
                    gone = address;
                }
                if model.len() < most as usize && (most > 100 || random.below(3) == 0) {
                    let bytes = random.bytes();
                    model.insert(bench.malloc(stream, bytes), bytes);
                }
                if gone != 0 && !model.contains_key(&gone) {
                    is_invalid_pointer(super::super::free(bench.gpus, gone));
                }
                if step % 250 == 249 {
                    compare(&model, &mut random);
                    bench.check();
                }
            }
            bench.empty_cache();
            compare(&model, &mut random);
            bench.check();
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn every_address_leads_to_its_block_and_no_other(seed: u64) {
        agrees("memory=32GiB", seed);
        agrees("memory=32GiB,virtual_memory=none", seed);
    }
}

/// The host memory of the arenas' block tables, per block; partly used pages are left out.
fn cost(arenas: &BTreeSet<*const Arena>, live: usize) -> usize {
    let bytes = |arena: &*const Arena| {
        // SAFETY: an arena lives until shutdown.
        let arena = unsafe { &**arena };
        arena.guard().host_bytes().saturating_sub(2 * 4 * KIB as usize)
    };
    arenas.iter().map(bytes).sum::<usize>() / live
}

fn arena(address: u64) -> *const Arena {
    std::ptr::from_ref(arena_of(address).unwrap().0)
}

fn allocate(bench: Bench, count: u64, bytes: u64) -> Vec<u64> {
    let stream = bench.stream();
    (0..count).map(|_| bench.malloc(stream, bytes)).collect()
}

/// At most 44 bytes and three index entries of 4 bytes.
#[test]
fn a_live_block_costs_the_host_little() {
    let sizes = [512, 4 * KIB, 64 * KIB, 256 * KIB, MIB, 2 * MIB, 20 * MIB, GIB];
    for bytes in sizes {
        // Counts at different fill levels of the table.
        for count in [16 << 10, 9 << 10, 700] {
            let count = count.min(512 * GIB / bytes);
            let memory = (count * bytes / GIB + 8).next_power_of_two();
            on_machine(&format!("memory={memory}GiB"), |bench| {
                let blocks = allocate(bench, count, bytes);
                let cost = cost(&BTreeSet::from([arena(blocks[0])]), blocks.len());
                println!("{bytes} bytes, {count} blocks: {cost} a block");
                assert!(cost <= 56, "{bytes} bytes: {cost} a block");
            });
        }
    }
}

/// The free blocks between them need memory too.
#[test]
fn a_block_among_others_of_all_sizes_costs_little() {
    on_machine("memory=128GiB", |bench| {
        let stream = bench.stream();
        let mut random = Random(88_172_645_463_325_252);
        for live in [1000, 12_000] {
            let mut blocks: Vec<u64> =
                (0..live).map(|_| bench.malloc(stream, random.bytes())).collect();
            for _ in 0..4 * live {
                let block = &mut blocks[random.below(live) as usize];
                bench.free(*block);
                *block = bench.malloc(stream, random.bytes());
            }
            let arenas = blocks.iter().map(|block| arena(*block)).collect();
            let cost = cost(&arenas, blocks.len());
            println!("{live} of all sizes: {cost} a block");
            assert!(cost <= 80, "{cost} a block");
            blocks.iter().for_each(|block| bench.free(*block));
        }
    });
}

/// Blocks of one size, whatever it is, are spread over the table like others.
#[test]
fn lists_are_short_for_every_size() {
    for units in (1..3000).step_by(37).chain([1597, 2048, 4181, 6765, 8192, 10_946, 1 << 15]) {
        let longest = crate::memory::arena::block_index::longest_of_stride(units, 1000);
        assert!(longest <= 8, "{units} units: {longest} blocks in a list");
    }
}
