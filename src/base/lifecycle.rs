//! The lifecycle of the library: its runtime and its driver are created and destroyed while threads
//! make calls.
//!
//! A thread holds the lock to begin or end one of them, and is inside the library to use one. To
//! end one, it is first made unreachable; it is destroyed when the threads that were inside have
//! left. So a thread that is inside must not wait for the lock while its holder waits for that
//! thread.

use crate::base::error::{Error, Result};
use crate::base::lock::{Guard, Lock};
use crate::base::rank::Rank;
use crate::base::sync::{self, AtomicBool, AtomicPtr, Ordering};

/// The runtime (in the library `gpu::gpus::Gpus`) and the driver; each may be absent.
pub struct Lifecycle<R, D> {
    /// Serialises beginnings and ends; taken before every other lock.
    lock: Lock,
    runtime: AtomicPtr<R>,
    driver: AtomicPtr<D>,
    /// Set while the holder of the lock waits for other threads to leave; those must not wait for
    /// the lock.
    closing: AtomicBool,
}

/// The lock, held.
pub type Holder<'a> = Guard<'a>;

/// Sets `closing` until it is dropped.
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

impl<R, D> Lifecycle<R, D> {
    sync::constant! {
        /// Without a runtime and a driver.
        pub fn new() -> Lifecycle<R, D> {
            Lifecycle {
                lock: Lock::new(Rank::LIFE),
                runtime: AtomicPtr::new(std::ptr::null_mut()),
                driver: AtomicPtr::new(std::ptr::null_mut()),
                closing: AtomicBool::new(false),
            }
        }
    }

    /// Waits for the lock. Fails if its holder waits for other threads to leave.
    pub fn hold(&self) -> Result<Holder<'_>> {
        // Rank LIFE itself is not checked: a log line under the lock may call back into the
        // library, where this call then fails.
        Rank::ONCE.check();
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

    /// Is the lock held now?
    pub fn is_held(&self) -> bool {
        self.lock.try_guard().is_none()
    }

    /// The runtime, if there is one.
    ///
    /// # Safety
    /// This thread is inside, and does not keep the reference after it has left.
    #[inline]
    pub unsafe fn runtime<'a>(&self) -> Option<&'a R> {
        // SAFETY: it is freed only after every thread that was inside has left.
        unsafe { self.runtime.load(Ordering::Acquire).as_ref() }
    }

    /// The driver, if there is one.
    ///
    /// # Safety
    /// As for the runtime; or this thread holds the lock, without which the driver cannot end.
    pub unsafe fn driver<'a>(&self) -> Option<&'a D> {
        // SAFETY: as for the runtime.
        unsafe { self.driver.load(Ordering::Acquire).as_ref() }
    }

    /// Is there a driver?
    pub fn has_driver(&self) -> bool {
        !self.driver.load(Ordering::Acquire).is_null()
    }

    /// Publishes a driver; there was none.
    pub fn begin_driver(&self, _held: &Holder<'_>, driver: Box<D>) {
        self.driver.store(Box::into_raw(driver), Ordering::Release);
    }

    /// Publishes a runtime; there was none.
    pub fn begin(&self, _held: &Holder<'_>, runtime: Box<R>) {
        self.runtime.store(Box::into_raw(runtime), Ordering::Release);
    }

    /// Ends the runtime, and then the driver. `others` waits until all other threads that are
    /// inside now have left. `destroy` removes all handles and returns their number. `collect`
    /// drops retired objects that no call can see. `close` ends the runtime, if there is one, and
    /// `stop` the driver. Objects that other threads make, destroy or use meanwhile need neither
    /// runtime nor driver; they may be dropped later. So this does not take longer because other
    /// threads keep making calls.
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
        // By now calls that destroy a handle of this generation have retired its object.
        others();
        // Begins a new era: calls that begin from here on cannot find these objects.
        collect();
        others();
        // No other thread drops them: a concurrent collection keeps them because of this call,
        // which has been inside for longer than the calls that may see them now.
        collect();
        if !runtime.is_null() {
            // SAFETY: from Box::into_raw, and no thread is inside any more that could have seen it.
            close(&*unsafe { Box::from_raw(runtime) });
        }
        self.end_driver(held, others, stop);
        live
    }

    /// Ends the driver, if there is one. There must be no runtime.
    pub fn end_driver(&self, _held: &Holder<'_>, others: impl Fn(), stop: impl FnOnce(Box<D>)) {
        let driver = self.driver.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if driver.is_null() {
            return;
        }
        let _closing = Closing::begin(&self.closing);
        others();
        // SAFETY: from Box::into_raw, and no thread is inside any more that could have seen it.
        stop(unsafe { Box::from_raw(driver) });
    }
}
