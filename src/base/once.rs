//! A value that is initialised at its first use. Other threads wait meanwhile, as for a lock; so it
//! has a rank.

use crate::base::lock::Lock;
use crate::base::rank::Rank;
use once_cell::sync::OnceCell;

/// The cell of the value.
pub struct Once<T> {
    cell: OnceCell<T>,
    /// Held by the thread that makes the value. OnceCell would block too, but its waiters need host
    /// memory.
    making: Lock,
}

impl<T> Once<T> {
    /// A cell without a value.
    pub const fn new(rank: Rank) -> Once<T> {
        Once { cell: OnceCell::new(), making: Lock::new(rank) }
    }

    /// The value, if there is one.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.cell.get()
    }

    /// Is a thread making the value?
    pub fn is_being_made(&self) -> bool {
        self.making.is_held()
    }

    /// The value, made now if there is none; after a failure the next call tries again.
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
