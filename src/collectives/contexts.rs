//! The current context of the thread while a call queues its work.

use crate::base::error::Result;
use crate::driver::sys::CUcontext;
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use std::cell::Cell;

/// The known state of this thread's current context.
#[derive(Clone, Copy)]
enum Current {
    /// The caller's context, not queried yet.
    Callers,
    /// The caller's context, which is this one.
    Known(CUcontext),
    /// This context was pushed over the caller's.
    Pushed(CUcontext),
}

/// Switches between the contexts of several devices. The first switch pushes a context, and later
/// ones replace it, so that each switch takes one driver call.
pub struct Contexts<'a> {
    gpus: &'a Gpus,
    current: Cell<Current>,
}

impl<'a> Contexts<'a> {
    /// The caller's context is current.
    pub fn new(gpus: &'a Gpus) -> Contexts<'a> {
        Contexts { gpus, current: Cell::new(Current::Callers) }
    }

    /// Makes a stream's context current if the driver needs it. Other streams of the call probably
    /// follow.
    #[inline]
    pub fn enter_for(&self, stream: &Stream) -> Result<()> {
        if !stream.needs_context() {
            return Ok(());
        }
        let context = self.gpus.device(stream.device())?.context()?;
        self.change(context)
    }

    /// Makes a device's context current. The caller's context may already be the right one.
    #[inline]
    pub fn enter(&self, device: &Device) -> Result<()> {
        let context = device.context()?;
        if let Current::Callers = self.current.get() {
            let mut callers = std::ptr::null_mut();
            // SAFETY: `callers` is writable.
            unsafe { self.gpus.driver().cuCtxGetCurrent(&mut callers) }?;
            self.current.set(Current::Known(callers));
        }
        self.change(context)
    }

    fn change(&self, context: CUcontext) -> Result<()> {
        let driver = self.gpus.driver();
        match self.current.get() {
            Current::Known(current) | Current::Pushed(current) if current == context => {
                return Ok(());
            }
            // SAFETY: retained until shutdown; replaces the pushed context.
            Current::Pushed(_) => unsafe { driver.cuCtxSetCurrent(context) }?,
            // SAFETY: retained until shutdown.
            Current::Callers | Current::Known(_) => unsafe { driver.cuCtxPushCurrent(context) }?,
        }
        self.current.set(Current::Pushed(context));
        Ok(())
    }

    /// Restores the caller's context.
    #[inline]
    pub fn leave(&self) {
        if let Current::Pushed(context) = self.current.replace(Current::Callers) {
            crate::gpu::device::leave(self.gpus.driver(), context);
        }
    }
}

impl Drop for Contexts<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
