//! Lists of functions of the host that observe something. They run in the order of their numbers,
//! with no lock held, and may be removed meanwhile, also by themselves.

use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::shared::Shared;
use std::sync::atomic::{AtomicU64, Ordering};

/// A new number for an observer, greater than all earlier ones.
pub fn next_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Observers with their numbers, oldest first.
pub struct Observers<T>(Mutex<Vec<(u64, Shared<T>)>>);

impl<T> Observers<T> {
    /// An empty list.
    pub const fn new() -> Observers<T> {
        Observers(Mutex::new(Rank::LEAF, Vec::new()))
    }

    /// Adds an observer under its number. `attached` runs once nothing can fail any more, and
    /// before another thread can find the observer. On failure the observer is dropped.
    pub fn attach(&self, number: u64, observer: T, attached: impl FnOnce(&T)) -> Result<()> {
        let observer = Shared::new(observer, "an observer")?;
        let mut list = self.0.lock();
        if list.try_reserve(1).is_err() {
            drop(list);
            return Err(Error::OutOfHostMemory("the list of observers"));
        }
        attached(&observer);
        let index = list.partition_point(|(known, _)| *known < number);
        list.insert(index, (number, observer));
        Ok(())
    }

    /// Removes an observer if it is in the list. It is dropped here, or on the last of the threads
    /// that are running it.
    pub fn detach(&self, number: u64) {
        let mut list = self.0.lock();
        let found = list.binary_search_by_key(&number, |(known, _)| *known);
        let observer = found.ok().map(|index| list.remove(index).1);
        drop(list);
        drop(observer);
    }

    /// Removes all observers.
    pub fn detach_all(&self) {
        let observers = std::mem::take(&mut *self.0.lock());
        drop(observers);
    }

    /// The newest observer with a number below this one.
    pub fn before(&self, number: u64) -> Option<(u64, Shared<T>)> {
        let list = self.0.lock();
        let index = list.partition_point(|(known, _)| *known < number).checked_sub(1)?;
        list.get(index).map(|(known, observer)| (*known, observer.share()))
    }

    /// The oldest observer with a number above this one.
    pub fn after(&self, number: u64) -> Option<(u64, Shared<T>)> {
        let list = self.0.lock();
        let index = list.partition_point(|(known, _)| *known <= number);
        list.get(index).map(|(known, observer)| (*known, observer.share()))
    }
}

impl<T> Default for Observers<T> {
    fn default() -> Observers<T> {
        Observers::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_pass_what_is_removed_meanwhile() {
        let list = Observers::new();
        let mut attached = 0;
        for number in [2, 1, 3] {
            list.attach(number, number * 10, |_| attached += 1).unwrap();
        }
        assert_eq!(attached, 3);
        let (first, observer) = list.after(0).unwrap();
        assert_eq!((first, *observer), (1, 10));
        list.detach(2);
        list.detach(2);
        assert_eq!(list.after(first).map(|(number, _)| number), Some(3));
        assert_eq!(list.before(u64::MAX).map(|(number, _)| number), Some(3));
        assert_eq!(list.before(3).map(|(number, _)| number), Some(1));
        list.detach_all();
        assert!(list.after(0).is_none() && list.before(u64::MAX).is_none());
    }
}
