//! A value that is made at its first use: who comes meanwhile waits, as for a lock, so it has a rank.

use crate::base::lock::Lock;
use crate::base::rank::Rank;
use once_cell::sync::OnceCell;

/// The place of the value.
pub struct Once<T> {
    cell: OnceCell<T>,
    /// Held by who makes the value. Not left to the cell, whose waiters need host memory.
    making: Lock,
}

impl<T> Once<T> {
    /// Not made yet.
    pub const fn new(rank: Rank) -> Once<T> {
        Once { cell: OnceCell::new(), making: Lock::new(rank) }
    }

    /// The value, if it was made.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.cell.get()
    }

    /// Is a thread making the value?
    pub fn is_being_made(&self) -> bool {
        self.making.is_held()
    }

    /// The value, made now if it was not; a failure leaves it to the next who asks.
    #[inline]
    pub fn get_or_try_init<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        match self.cell.get() {
            Some(value) => Ok(value),
            None => self.try_init(make),
        }
    }

    #[cold]
    fn try_init<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        let _making = self.making.guard();
        self.cell.get_or_try_init(make)
    }
}
