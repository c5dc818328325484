//! The invariants of an arena, listed at the top of `arena/mod.rs`, and tests that `check` reports
//! each violation. The other tests rely on it.

use super::super::arena::ArenaState;
use super::{MIB, on_machine};
use crate::memory::arena::addresses::arena_of;
use crate::memory::arena::block::{Block, NONE, State};
use crate::memory::arena::foreign_free::Owner;
use crate::memory::config::size::CLASSES;
use crate::memory::stats::ledger::{
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, Account, COUNTERS, Changes, INACTIVE_SPLIT,
    INACTIVE_SPLIT_BYTES, OVERSIZE, REQUESTED_BYTES,
};

impl ArenaState {
    /// Checks every invariant except the account, whose values it returns; else the first
    /// violation.
    pub fn check(&self) -> std::result::Result<Changes, String> {
        let own = self.class as usize;
        if self.segments.is_some() {
            return self.check_segments();
        }
        let (mut id, mut below, mut at, mut sums) = (self.first, NONE, 0u32, [[0i64; COUNTERS]; 2]);
        let (mut free, mut free_bytes, mut active, mut mapped) = (0, 0, 0, 0);
        let (mut remapped, mut gaps) = (Vec::new(), 0);
        while id != NONE {
            let block = &self.blocks[id];
            if block.start != at || block.previous != below || block.units == 0 {
                return Err(format!(
                    "block {id} at {} does not follow {below} at {at}",
                    block.start
                ));
            }
            let is_served = !matches!(block.state, State::Hole | State::Gap | State::Lent);
            mapped += if is_served { block.bytes() } else { 0 };
            match block.state {
                State::Vacant => return Err(format!("block {id} is vacant")),
                State::Hole | State::Gap if block.next == NONE => {
                    return Err("a hole at the end".into());
                }
                State::Hole if below != NONE && self.blocks[below].state == State::Hole => {
                    return Err(format!("blocks {below} and {id} are neighbouring holes"));
                }
                State::Hole => (),
                State::Gap => gaps += block.units,
                State::Lent => remapped.push(id),
                State::Free => {
                    if below != NONE && self.blocks[below].state == State::Free {
                        return Err(format!("blocks {below} and {id} are free neighbours"));
                    }
                    if id != self.wilderness && !self.bins.contains(&self.blocks, id) {
                        return Err(format!("free block {id} is in no bin"));
                    }
                    (free, free_bytes) = (free + 1, free_bytes + block.bytes());
                }
                State::ForeignFree => {
                    let owner = self.owner_of(id);
                    if owner == Owner::ARENA {
                        return Err(format!("block {id} is free for no stream"));
                    }
                    if below != NONE
                        && self.blocks[below].state == State::ForeignFree
                        && self.owner_of(below) == owner
                    {
                        return Err(format!("blocks {below} and {id} are free neighbours"));
                    }
                    if !self.foreign.is_in_bins(&self.blocks, owner, id) {
                        return Err(format!("block {id} is in no bin of its stream"));
                    }
                    (free, free_bytes) = (free + 1, free_bytes + block.bytes());
                }
                State::Quick => {
                    if !self.quick.contains(&self.blocks, id) {
                        return Err(format!("quick block {id} is in no list"));
                    }
                    (free, free_bytes) = (free + 1, free_bytes + block.bytes());
                }
                State::Allocated | State::Pending => {
                    active += 1;
                    add_active(block, &mut sums);
                }
            }
            (below, at, id) = (id, block.end(), block.next);
        }
        let last_is_free = below != NONE && self.blocks[below].state == State::Free;
        if self.last != below || self.wilderness != if last_is_free { below } else { NONE } {
            return Err("last or wilderness is wrong".into());
        }
        for (id, rest) in self.check_views(&mut remapped, at)? {
            (active, mapped) = (active + 1, mapped + self.blocks[id].bytes());
            add_active(&self.blocks[id], &mut sums);
            if rest != NONE {
                let bytes = self.blocks[rest].bytes();
                (free, free_bytes, mapped) = (free + 1, free_bytes + bytes, mapped + bytes);
            }
        }
        if (free, free_bytes, active) != (self.free_blocks, self.free_bytes, self.active_blocks) {
            return Err("the counts of free or active blocks are wrong".into());
        }
        if active > 0 {
            (sums[own][INACTIVE_SPLIT], sums[own][INACTIVE_SPLIT_BYTES]) = (free, free_bytes);
        }
        if gaps != self.gaps {
            return Err(format!("{gaps} units in gaps, {} counted", self.gaps));
        }
        if mapped != self.segment.bytes() as i64 {
            return Err(format!("{mapped} bytes in blocks, {} mapped", self.segment.bytes()));
        }
        self.check_starts().map(|()| sums)
    }
}

/// Checks the account of a heap: it equals the sums over the blocks of its arenas.
pub fn check_account(account: &Account, sums: &[Changes]) -> std::result::Result<(), String> {
    for class in CLASSES {
        let mut expected = [0; COUNTERS];
        for sums in sums {
            expected.iter_mut().zip(sums[class as usize]).for_each(|(all, one)| *all += one);
        }
        let counted = account.current(class);
        if expected != counted {
            return Err(format!("the account has {counted:?}, the blocks {expected:?}"));
        }
    }
    Ok(())
}

fn add_active(block: &Block, sums: &mut [[i64; COUNTERS]; 2]) {
    let sums = &mut sums[usize::from(block.bytes() > MIB as i64)];
    if block.state == State::Allocated {
        sums[ALLOCATION] += 1;
        sums[ALLOCATED_BYTES] += block.bytes();
        sums[OVERSIZE] += i64::from(block.oversize);
    }
    sums[ACTIVE] += 1;
    sums[ACTIVE_BYTES] += block.bytes();
    sums[REQUESTED_BYTES] += block.requested as i64;
}

/// The blocks of the arena that `violation` corrupts, by their positions: a free block between two
/// allocated ones, a hole between two more, and an allocated block at the end.
struct Places {
    first: u32,
    free: u32,
    between: u32,
    before_hole: u32,
    hole: u32,
    last: u32,
}

impl Places {
    fn of(state: &ArenaState) -> Places {
        let mut ids = Vec::new();
        let mut id = state.first;
        while id != NONE {
            ids.push(id);
            id = state.blocks[id].next;
        }
        let states: Vec<State> = ids.iter().map(|id| state.blocks[*id].state).collect();
        let (used, free) = (State::Allocated, State::Free);
        assert_eq!(states, [used, free, used, free, used, State::Hole, used]);
        let [first, free, between, _, before_hole, hole, last] = ids[..] else { unreachable!() };
        Places { first, free, between, before_hole, hole, last }
    }
}

/// The report of `check` after an arena was corrupted.
fn violation(breaks: impl FnOnce(&mut ArenaState, &mut Account, Places)) -> String {
    on_machine("memory=1GiB", |bench| {
        let stream = bench.stream();
        let blocks: Vec<u64> = (0..5).map(|_| bench.malloc(stream, 4 * MIB)).collect();
        bench.free(blocks[1]);
        bench.free(blocks[3]);
        bench.empty_cache();
        let filled = bench.malloc(stream, 2 * MIB);
        bench.malloc(stream, MIB + 512);
        bench.free(filled);
        bench.check();
        let arena = arena_of(blocks[0]).unwrap().0;
        let mut guard = arena.guard();
        bench.memory().merge_quick(&mut guard);
        let (state, account) = guard.state_and_account();
        let places = Places::of(state);
        breaks(state, account, places);
        state.check().and_then(|sums| check_account(account, &[sums])).unwrap_err()
    })
}

#[track_caller]
fn is_reported(what: &str, breaks: impl FnOnce(&mut ArenaState, &mut Account, Places)) {
    let violation = violation(breaks);
    assert!(violation.contains(what), "{violation:?} instead of {what:?}");
}

#[test]
fn a_gap_between_blocks_is_reported() {
    is_reported("does not follow", |state, _, at| state.blocks[at.free].start += 1);
    is_reported("does not follow", |state, _, at| state.blocks[at.between].previous = at.first);
    is_reported("does not follow", |state, _, at| state.blocks[at.first].units = 0);
    is_reported("is vacant", |state, _, at| state.blocks[at.between].state = State::Vacant);
}

#[test]
fn unmerged_neighbours_are_reported() {
    is_reported("are free neighbours", |state, _, at| state.blocks[at.between].state = State::Free);
    is_reported("are neighbouring holes", |state, _, at| {
        state.blocks[at.before_hole].state = State::Hole;
    });
    is_reported("a hole at the end", |state, _, at| state.blocks[at.last].state = State::Hole);
}

#[test]
fn an_unlisted_free_block_is_reported() {
    is_reported("is in no bin", |state, _, at| state.bins.remove(&mut state.blocks, at.free));
    is_reported("is in no bin", |state, _, at| state.blocks[at.first].state = State::Free);
    is_reported("last or wilderness", |state, _, at| state.wilderness = at.free);
    is_reported("last or wilderness", |state, _, at| state.last = at.hole);
}

#[test]
fn an_unlisted_quick_block_is_reported() {
    is_reported("is in no list", |state, _, at| state.blocks[at.free].state = State::Quick);
}

#[test]
fn wrong_counts_are_reported() {
    is_reported("the counts of free or active", |state, _, _| state.free_blocks += 1);
    is_reported("the counts of free or active", |state, _, _| state.free_bytes -= 512);
    is_reported("the counts of free or active", |state, _, _| state.active_blocks -= 1);
    is_reported("mapped", |state, _, at| {
        state.blocks[at.hole].state = State::Pending;
        state.active_blocks += 1;
    });
    for (counter, class) in (0..COUNTERS).flat_map(|counter| CLASSES.map(|class| (counter, class)))
    {
        is_reported("the account has", |_, account, _| account.count_wrongly(class, counter));
    }
}

#[test]
fn a_wrong_foreign_free_list_is_reported() {
    let violation = |breaks: &dyn Fn(&mut ArenaState)| {
        super::sharing("memory=1GiB", |bench| {
            let (owner, other) = (bench.stream(), bench.stream());
            bench.free(bench.malloc(owner, 40 * MIB));
            let blocks = [bench.malloc(other, 10 * MIB), bench.malloc(other, 10 * MIB)];
            bench.free(blocks[0]);
            bench.check();
            let arena = arena_of(blocks[0]).unwrap().0;
            let mut guard = arena.guard();
            let (state, account) = guard.state_and_account();
            assert_eq!(state.blocks[state.first].state, State::ForeignFree);
            breaks(state);
            state.check().and_then(|sums| check_account(account, &[sums])).unwrap_err()
        })
    };
    let ids = |state: &ArenaState| (state.first, state.blocks[state.first].next);
    let unowned = violation(&|state| {
        let (free, _) = ids(state);
        state.blocks[free].uses = 0;
    });
    assert!(unowned.contains("is free for no stream"), "{unowned}");
    let not_joined = violation(&|state| {
        let (_, used) = ids(state);
        state.blocks[used].state = State::ForeignFree;
    });
    assert!(not_joined.contains("are free neighbours"), "{not_joined}");
    let in_no_bin = violation(&|state| {
        let (free, used) = ids(state);
        state.blocks[free].units += 1 << 14;
        state.blocks[used].start += 1 << 14;
        state.blocks[used].units -= 1 << 14;
    });
    assert!(in_no_bin.contains("is in no bin of its stream"), "{in_no_bin}");
}
