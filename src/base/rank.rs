//! The order of locks, checked in debug builds: a thread never waits for a lock while it holds one
//! of the same or a later rank. Trying a lock is always allowed, because it cannot deadlock.

#[cfg(debug_assertions)]
use std::cell::Cell;

/// The place of a lock in that order. Empty in release builds.
#[derive(Clone, Copy)]
pub struct Rank(#[cfg(debug_assertions)] u8);

macro_rules! ranks {
    ($($(#[$doc:meta])* $name:ident),*) => {
        #[cfg(debug_assertions)]
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "only to number them")]
        enum Number { $($name),*, COUNT }

        impl Rank {
            $($(#[$doc])* pub const $name: Rank = Rank(
                #[cfg(debug_assertions)] { Number::$name as u8 },
            );)*
        }

        #[cfg(debug_assertions)]
        const NAMES: [&str; Number::COUNT as usize] = [$(stringify!($name)),*];
    };
}

ranks! {
    /// Initialisation and shutdown.
    LIFE,
    /// A captured host function during a call.
    CALLABLE,
    /// Graphs whose templates are read or destroyed.
    TEMPLATES,
    /// A graph.
    GRAPH,
    /// A private pool that goes to sleep or wakes.
    POOL,
    /// The exports to other processes, while one is added or collected.
    IPC,
    /// Values made at their first use; making one may need a context, and locks of later ranks.
    ONCE,
    /// The recorded history of the allocators, as a whole.
    HISTORY,
    /// An arena's blocks.
    ARENA,
    /// An arena's blocks, while the holder waits for the ledger or the device and keeps no
    /// reference.
    PARKED,
    /// A device's ledger.
    LEDGER,
    /// A part of the table of uncached blocks.
    DIRECT,
    /// Blocks of pinned host memory.
    HOST,
    /// A stream that is queried, or on which an event is recorded, unless it is captured.
    STREAM,
    /// Retired objects that a call may still see.
    RETIRED,
    /// A device's context, retained at its first use.
    CONTEXT,
    /// No other lock is taken under it, except those of the driver's table.
    LEAF,
    /// Injected faults: any driver call may read them.
    RULES
}

#[cfg(debug_assertions)]
thread_local! {
    static HELD: [Cell<u32>; NAMES.len()] = const { [const { Cell::new(0) }; NAMES.len()] };
}

#[cfg(debug_assertions)]
impl Rank {
    /// Checks, before waiting for a lock of this rank.
    pub fn check(self) {
        HELD.with(|held| {
            let later = held[usize::from(self.0)..].iter().position(|count| count.get() > 0);
            let later = later.map(|index| NAMES[usize::from(self.0) + index]);
            let own = NAMES[usize::from(self.0)];
            assert!(later.is_none(), "lock order: {own} is waited for with {later:?} held");
        });
    }

    /// Counts a lock of this rank that this thread has taken.
    pub fn note_taken(self) {
        HELD.with(|held| held[usize::from(self.0)].update(|count| count + 1));
    }

    /// Counts a lock of this rank that this thread is about to release.
    pub fn note_released(self) {
        HELD.with(|held| held[usize::from(self.0)].update(|count| count.wrapping_sub(1)));
    }
}

/// The name of a lock that this thread holds, other than those of the `allowed` ranks.
#[cfg(debug_assertions)]
pub fn held_besides(allowed: &[Rank]) -> Option<&'static str> {
    let is_held = |index: usize, held: &[Cell<u32>]| {
        held[index].get() > 0 && allowed.iter().all(|rank| usize::from(rank.0) != index)
    };
    HELD.with(|held| (0..NAMES.len()).find(|index| is_held(*index, held)).map(|index| NAMES[index]))
}

/// Checks, before a host function that may call the library. Rank LIFE is allowed: a nested call
/// fails there instead of waiting.
#[cfg(debug_assertions)]
pub fn before_host_function() {
    match crate::base::thread::is_in_callback() {
        // It is called by a host function of a graph.
        true => before_captured_function(),
        false => before_function(&[Rank::LIFE]),
    }
}

/// The same before a host function in a graph, which a driver may call on the launching thread.
#[cfg(debug_assertions)]
pub fn before_captured_function() {
    before_function(&[Rank::LIFE, Rank::CALLABLE, Rank::GRAPH]);
}

#[cfg(debug_assertions)]
fn before_function(allowed: &[Rank]) {
    let held = held_besides(allowed).unwrap_or("");
    assert!(held.is_empty(), "a host function is called with {held} held");
}

#[cfg(not(debug_assertions))]
impl Rank {
    /// Checks nothing.
    #[inline(always)]
    pub fn check(self) {}

    /// Counts nothing.
    #[inline(always)]
    pub fn note_taken(self) {}

    /// Counts nothing.
    #[inline(always)]
    pub fn note_released(self) {}
}

/// Without checks.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn before_host_function() {}

/// Without checks.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn before_captured_function() {}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::base::lock::{Lock, Mutex};

    #[test]
    fn the_documented_order_passes() {
        let life = Mutex::new(Rank::LIFE, ());
        let (arena, other) = (Lock::new(Rank::ARENA), Lock::new(Rank::ARENA));
        let ledger = Lock::new(Rank::LEDGER);
        let _life = life.lock();
        let _arena = arena.guard();
        let _ledger = ledger.guard();
        assert!(other.try_lock(), "trying cannot deadlock");
        other.unlock();
        let leaf = Mutex::new(Rank::LEAF, ());
        let _leaf = leaf.lock();
    }

    #[test]
    #[should_panic(expected = "lock order: ARENA is waited for with Some(\"LEDGER\") held")]
    fn an_inversion_is_caught() {
        let (arena, ledger) = (Lock::new(Rank::ARENA), Lock::new(Rank::LEDGER));
        let _ledger = ledger.guard();
        let _arena = arena.guard();
    }

    #[test]
    #[should_panic(expected = "lock order: LEAF is waited for with Some(\"LEAF\") held")]
    fn two_of_a_rank_are_caught() {
        let (first, second) = (Mutex::new(Rank::LEAF, 1), Mutex::new(Rank::LEAF, 2));
        let _first = first.lock();
        let _second = second.lock();
    }

    #[test]
    #[should_panic(expected = "a host function is called with LEAF held")]
    fn a_host_function_called_with_a_lock_is_caught() {
        let (life, leaf) = (Mutex::new(Rank::LIFE, ()), Mutex::new(Rank::LEAF, ()));
        let _life = life.lock();
        before_host_function();
        let _leaf = leaf.lock();
        before_host_function();
    }

    #[test]
    fn a_released_lock_is_forgotten() {
        let (arena, ledger) = (Lock::new(Rank::ARENA), Lock::new(Rank::LEDGER));
        drop(ledger.guard());
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = ledger.guard();
            panic!("for the test");
        }));
        assert!(caught.is_err());
        drop(arena.guard());
        assert_eq!(held_besides(&[]), None);
    }
}
