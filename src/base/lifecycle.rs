//! The life of the library: its runtime and its driver come and go while threads call.
//!
//! Whoever begins or ends one holds the lock; whoever uses one is inside. What ends is made
//! unreachable first, and goes when those who were inside have left. So nobody who is inside may wait
//! for the lock while its holder waits for them.

use crate::base::error::{Error, Result};
use crate::base::lock::{Guard, Lock};
use crate::base::rank::Rank;
use crate::base::sync::{self, AtomicBool, AtomicPtr, Ordering};

/// Runtime and driver, each there or not.
pub struct Life<R, D> {
    /// Serialises beginnings and ends; taken before every other lock.
    lock: Lock,
    runtime: AtomicPtr<R>,
    driver: AtomicPtr<D>,
    /// Set while the lock's holder waits for others to leave: those must not wait for it in turn.
    closing: AtomicBool,
}

/// The lock, held.
pub type Holder<'a> = Guard<'a>;

/// Says, while it lives, that the lock's holder waits for other threads to leave the library.
struct Closing<'a>(&'a AtomicBool);

impl<'a> Closing<'a> {
    fn begin(closing: &'a AtomicBool) -> Closing<'a> {
        closing.store(true, Ordering::Release);
        Closing(closing)
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<R, D> Life<R, D> {
    sync::constant! {
        /// Nothing is there.
        pub fn new() -> Life<R, D> {
            Life {
                lock: Lock::new(Rank::LIFE),
                runtime: AtomicPtr::new(std::ptr::null_mut()),
                driver: AtomicPtr::new(std::ptr::null_mut()),
                closing: AtomicBool::new(false),
            }
        }
    }

    /// Waits for the lock, unless its holder is waiting for this very thread.
    pub fn hold(&self) -> Result<Holder<'_>> {
        // Its own rank is left out: a line of log under it may come back here, and is turned away.
        Rank::ONCE.before();
        let _waiting = sync::waiting();
        loop {
            match self.lock.try_guard() {
                Some(held) => return Ok(held),
                None if self.closing.load(Ordering::Acquire) => {
                    return Err(Error::InvalidState(
                        "another thread shuts the library down or selects its backend; try again",
                    ));
                }
                None => sync::nap(),
            }
        }
    }

    /// Could nobody take the lock now?
    pub fn is_held(&self) -> bool {
        self.lock.try_guard().is_none()
    }

    /// The runtime, if it is there.
    ///
    /// # Safety
    /// This thread is inside, and keeps the reference no longer than that.
    #[inline]
    pub unsafe fn runtime<'a>(&self) -> Option<&'a R> {
        // SAFETY: it is freed only after every thread that was inside has left.
        unsafe { self.runtime.load(Ordering::Acquire).as_ref() }
    }

    /// The driver, if it is there.
    ///
    /// # Safety
    /// As for the runtime; or this thread holds the lock, which ending it needs.
    pub unsafe fn driver<'a>(&self) -> Option<&'a D> {
        // SAFETY: as for the runtime.
        unsafe { self.driver.load(Ordering::Acquire).as_ref() }
    }

    /// Is there a driver?
    pub fn has_driver(&self) -> bool {
        !self.driver.load(Ordering::Acquire).is_null()
    }

    /// Shows a driver, where there was none.
    pub fn begin_driver(&self, _held: &Holder<'_>, driver: Box<D>) {
        self.driver.store(Box::into_raw(driver), Ordering::Release);
    }

    /// Shows a runtime, where there was none.
    pub fn begin(&self, _held: &Holder<'_>, runtime: Box<R>) {
        self.runtime.store(Box::into_raw(runtime), Ordering::Release);
    }

    /// Ends the runtime, and then the driver. `others` waits until all other threads have left that
    /// are inside at the time, `destroy` takes all handles out of use and counts them, `collect`
    /// drops what was retired and no call can see, `close` ends the runtime, if there is one, and
    /// `stop` the driver. What others make, destroy and use meanwhile needs neither, and is left
    /// alone: it may be dropped later. So nothing here goes on for as long as others do.
    pub fn end(
        &self,
        held: &Holder<'_>,
        others: impl Fn(),
        destroy: impl FnOnce() -> usize,
        collect: impl Fn(),
        close: impl FnOnce(&R),
        stop: impl FnOnce(Box<D>),
    ) -> usize {
        let _closing = Closing::begin(&self.closing);
        let runtime = self.runtime.swap(std::ptr::null_mut(), Ordering::AcqRel);
        others();
        let live = destroy();
        // Calls that destroy a handle of this life have retired its object by then.
        others();
        // Begins another era: calls that begin from here on find none of these objects.
        collect();
        others();
        // No other thread drops them: a collection beside this keeps them for this very call, which is
        // inside since before the calls that may see them now.
        collect();
        if !runtime.is_null() {
            // SAFETY: from Box::into_raw, and nobody is inside any more who could have seen it.
            close(&*unsafe { Box::from_raw(runtime) });
        }
        self.end_driver(held, others, stop);
        live
    }

    /// Ends the driver, if there is one. There is no runtime.
    pub fn end_driver(&self, _held: &Holder<'_>, others: impl Fn(), stop: impl FnOnce(Box<D>)) {
        let driver = self.driver.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if driver.is_null() {
            return;
        }
        let _closing = Closing::begin(&self.closing);
        others();
        // SAFETY: from Box::into_raw, and nobody is inside any more who could have seen it.
        stop(unsafe { Box::from_raw(driver) });
    }
}
