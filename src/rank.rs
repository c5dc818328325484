//! The order in which locks are taken, checked in debug builds: a thread never waits for a lock while
//! it holds one of the same or a later rank. Trying is free, since it cannot deadlock.

#[cfg(debug_assertions)]
use std::cell::Cell;

/// The place of a lock in that order. Nothing in release builds.
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
    /// An arena's blocks.
    ARENA,
    /// A device's ledger.
    LEDGER,
    /// Objects that wait until nobody can see them.
    RETIRED,
    /// Under which no other is taken, but for those of the driver's table.
    LEAF,
    /// Injected failures: any driver call may ask for them.
    RULES
}

#[cfg(debug_assertions)]
thread_local! {
    static HELD: [Cell<u32>; NAMES.len()] = const { [const { Cell::new(0) }; NAMES.len()] };
}

#[cfg(debug_assertions)]
impl Rank {
    /// Before waiting for a lock of this rank.
    pub fn before(self) {
        HELD.with(|held| {
            let later = held[usize::from(self.0)..].iter().position(|count| count.get() > 0);
            let later = later.map(|index| NAMES[usize::from(self.0) + index]);
            let own = NAMES[usize::from(self.0)];
            assert!(later.is_none(), "lock order: {own} is waited for with {later:?} held");
        });
    }

    /// Once it is held.
    pub fn taken(self) {
        HELD.with(|held| held[usize::from(self.0)].update(|count| count + 1));
    }

    /// Before it is given back.
    pub fn given(self) {
        HELD.with(|held| held[usize::from(self.0)].update(|count| count.wrapping_sub(1)));
    }
}

/// Before a function of the host's is called, which may call us.
#[cfg(debug_assertions)]
pub fn nothing_is_held() {
    HELD.with(|held| {
        let name = held.iter().position(|count| count.get() > 0).map(|index| NAMES[index]);
        assert!(name.is_none(), "a function of the host's is called with {name:?} held");
    });
}

#[cfg(not(debug_assertions))]
impl Rank {
    /// Before waiting for a lock of this rank.
    #[inline(always)]
    pub fn before(self) {}

    /// Once it is held.
    #[inline(always)]
    pub fn taken(self) {}

    /// Before it is given back.
    #[inline(always)]
    pub fn given(self) {}
}

/// Before a function of the host's is called, which may call us.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn nothing_is_held() {}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::lock::{Lock, Mutex};

    #[test]
    fn the_order_of_the_book_passes() {
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
    #[should_panic(expected = "called with Some(\"LIFE\") held")]
    fn a_host_called_with_a_lock_is_caught() {
        let life = Mutex::new(Rank::LIFE, ());
        let _life = life.lock();
        nothing_is_held();
    }

    #[test]
    fn what_was_given_back_is_forgotten() {
        let (arena, ledger) = (Lock::new(Rank::ARENA), Lock::new(Rank::LEDGER));
        drop(ledger.guard());
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = ledger.guard();
            panic!("for the test");
        }));
        assert!(caught.is_err());
        drop(arena.guard());
        nothing_is_held();
    }
}
