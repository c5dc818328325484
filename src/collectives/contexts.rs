//! Whose context is current while a call queues its work.

use crate::base::error::Result;
use crate::driver::sys::CUcontext;
use crate::gpu::device::Device;
use crate::gpu::stream::Stream;
use crate::runtime::Runtime;
use std::cell::Cell;

/// What is current on this thread.
#[derive(Clone, Copy)]
enum Current {
    /// What the caller had; nobody has asked.
    Callers,
    /// The same, and it is this one.
    Known(CUcontext),
    /// This one, over the caller's.
    Pushed(CUcontext),
}

/// The context of one device after the other, over the caller's: pushed once and changed from there, so
/// that queueing on several devices takes a call of the driver for each that follows another.
pub struct Contexts<'a> {
    runtime: &'a Runtime,
    current: Cell<Current>,
}

impl<'a> Contexts<'a> {
    /// The caller's is current.
    pub fn new(runtime: &'a Runtime) -> Contexts<'a> {
        Contexts { runtime, current: Cell::new(Current::Callers) }
    }

    /// That of a stream, where the driver needs it. Others of the call are likely to follow.
    #[inline]
    pub fn enter_for(&self, stream: &Stream) -> Result<()> {
        if !stream.needs_context() {
            return Ok(());
        }
        let context = self.runtime.device(stream.device())?.context()?;
        self.change(context)
    }

    /// That of a device. Where it is the first, it may well be the caller's.
    #[inline]
    pub fn enter(&self, device: &Device) -> Result<()> {
        let context = device.context()?;
        if let Current::Callers = self.current.get() {
            let mut callers = std::ptr::null_mut();
            // SAFETY: `callers` is writable.
            unsafe { self.runtime.driver().cuCtxGetCurrent(&mut callers) }?;
            self.current.set(Current::Known(callers));
        }
        self.change(context)
    }

    fn change(&self, context: CUcontext) -> Result<()> {
        let driver = self.runtime.driver();
        match self.current.get() {
            Current::Known(current) | Current::Pushed(current) if current == context => {
                return Ok(());
            }
            // SAFETY: retained until shutdown; it takes the place of the one that was pushed.
            Current::Pushed(_) => unsafe { driver.cuCtxSetCurrent(context) }?,
            // SAFETY: retained until shutdown.
            Current::Callers | Current::Known(_) => unsafe { driver.cuCtxPushCurrent(context) }?,
        }
        self.current.set(Current::Pushed(context));
        Ok(())
    }

    /// The caller's is current again.
    #[inline]
    pub fn leave(&self) {
        if let Current::Pushed(context) = self.current.replace(Current::Callers) {
            crate::gpu::device::leave(self.runtime.driver(), context);
        }
    }
}

impl Drop for Contexts<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
