//! Streams that the host or another library created: one object for each stream.
//!
//! The driver may reuse a handle for another stream, so that streams are identified by the driver's
//! stream id. While a stream is captured its id cannot be queried, because that would invalidate
//! the capture. How it is identified then depends on the caller.

use crate::base::error::{Error, Result};
use crate::base::once::Once;
use crate::base::thread_lifetime::Lifetime;
use crate::base::{thread, waiting};
use crate::driver::CudaError;
use crate::driver::sys::{CUcontext, CUstream};
use crate::gpu::device::{Device, leave};
use crate::gpu::external_registry::Holders;
use crate::gpu::green_context::GreenStream;
use crate::gpu::stream::{LEGACY, PER_THREAD, Stream, Streams, is_capturing};
use std::sync::atomic::Ordering;

/// In place of the id of a stream that was first seen in a capture; no stream has this id.
const UNNUMBERED: u64 = u64::MAX;

/// How a captured stream is identified, whose id cannot be queried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Captured {
    /// By a handle of the host, which keeps it alive.
    ByHandle,
    /// By its address: the newest stream with that address, or a new one.
    ByAddress,
}

impl Stream {
    /// Is it external and without a handle? Its owner may have destroyed it.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_external() && !self.is_per_thread() && !self.external_life.has_handle()
    }
}

impl Stream {
    /// Can no more work be queued on it? Earlier work may still run.
    pub(crate) fn is_over(&self) -> bool {
        match self.is_per_thread() {
            true => self.thread.as_ref().is_some_and(Lifetime::has_ended),
            false => self.is_gone() && self.external_life.event() != 0,
        }
    }

    /// Is it not the default stream of another thread, nor of this thread before it ended and came
    /// back?
    fn may_be_own(&self) -> bool {
        self.thread.as_ref().is_none_or(Lifetime::is_own)
    }
}

impl Streams {
    /// The object of an external stream.
    pub(crate) fn external(&self, device: &Device, native: CUstream) -> Result<&Stream> {
        self.known(device, native, Captured::ByHandle)
    }

    /// The object of a stream whose owner passes it in each call without a handle, as PyTorch does.
    /// While it is captured, a destroyed stream and a new one with the same address cannot be
    /// distinguished. Memory that is allocated then comes from the capture's pool, whose graph has
    /// its own order.
    pub(crate) fn named(&self, device: &Device, native: CUstream) -> Result<&Stream> {
        let stream = self.known(device, native, Captured::ByAddress)?;
        // Counts as a handle, so that the stream stays alive when other handles are dropped.
        if stream.is_external() && !stream.is_named.swap(true, Ordering::AcqRel) {
            stream.add_handle();
        }
        Ok(stream)
    }

    fn known(&self, device: &Device, native: CUstream, captured: Captured) -> Result<&Stream> {
        if native.is_null() || native as usize == LEGACY {
            return Ok(self.default());
        }
        let _context = device.enter()?;
        // A query of a captured stream's id would invalidate the capture, and fails if the capture
        // was invalidated.
        let is_captured = is_capturing(self.driver, native)?;
        let by_address = captured == Captured::ByAddress && native as usize != PER_THREAD;
        if is_captured
            && by_address
            && let Some(stream) = self.newest(native, None, true)
        {
            return Ok(stream);
        }
        let driver_id = match is_captured {
            true => None,
            false => Some(self.driver_id(native)?),
        };
        if let Some(stream) = self.newest(native, driver_id, false) {
            return Ok(stream);
        }
        if native as usize != PER_THREAD {
            self.check_context(device, native)?;
        }
        let driver_id = match driver_id {
            Some(id) => id,
            None if by_address => UNNUMBERED,
            None => {
                return Err(Error::Capturing {
                    operation: "tcuda_stream_from_external",
                    why: "tcuda does not know the stream yet; call it before the capture begins",
                });
            }
        };
        self.add(native, driver_id)
    }

    /// Adds a stream that was just created in a green context.
    pub(crate) fn add_green(&self, green: GreenStream) -> Result<&Stream> {
        let native = green.native();
        let stream = self.add(native, self.driver_id(native)?)?;
        // Not before: a stream that is not added would end it while the table is locked.
        let _ = stream.green.set(green);
        Ok(stream)
    }

    /// The newest stream of this address: with this id; without an id, one with a handle, or any if
    /// `any` is true.
    fn newest(&self, native: CUstream, driver_id: Option<u64>, any: bool) -> Option<&Stream> {
        waiting::assert_awake();
        let is_it = |stream: &Stream| {
            let is_same = driver_id.is_none_or(|id| id == stream.driver_id);
            is_same && stream.native() == native && stream.may_be_own()
        };
        let mut pooled = self.pool.iter().flatten().filter_map(Once::get);
        if let Some(stream) = pooled.find(|stream| is_it(stream)) {
            return Some(stream);
        }
        let is_alive = |stream: &Stream| {
            let has_handle = !stream.is_per_thread() && stream.external_life.has_handle();
            driver_id.is_some() || any || has_handle
        };
        let external = self.external.lock();
        let mut candidates = external.candidates(native as usize, driver_id);
        let found = candidates.find(|stream| is_it(stream) && is_alive(stream))?;
        found.was_unused.store(false, Ordering::Relaxed);
        Some(self.extend(found))
    }

    fn add(&self, native: CUstream, driver_id: u64) -> Result<&Stream> {
        let mut priority = 0;
        // SAFETY: the caller's promise that the stream is alive; `priority` is writable.
        unsafe { self.driver.cuStreamGetPriority(native, &mut priority) }?;
        let mut stream =
            Stream::new(self.ordinal, native as usize, native as i64, priority, driver_id);
        stream.external = true;
        stream.driver = Some(self.driver);
        stream.holders = Holders::new()?;
        if stream.is_per_thread() {
            stream.thread = Some(Lifetime::own()?);
        }
        let stream = thread::reclaimable(stream, "a stream")?;
        let mut external = self.external.lock();
        // Another thread may have added it first.
        let is_it = |known: &Stream| {
            known.native() == native && known.driver_id == driver_id && known.may_be_own()
        };
        let mut candidates = external.candidates(native as usize, Some(driver_id));
        if let Some(known) = candidates.find(|known| is_it(known)) {
            known.was_unused.store(false, Ordering::Relaxed);
            return Ok(self.extend(known));
        }
        drop(candidates);
        let stream = external.add(stream)?;
        Ok(self.extend(stream))
    }

    /// A reference that outlives the lock of the table: a stream is dropped only after all calls
    /// that may have found it.
    pub(crate) fn extend<'a>(&'a self, stream: &Stream) -> &'a Stream {
        // SAFETY: boxed, and alive as long as this call.
        unsafe { &*std::ptr::from_ref(stream) }
    }

    fn check_context(&self, device: &Device, native: CUstream) -> Result<()> {
        let context = self.context_of(native)?;
        if context == device.context()? || self.is_green(device, native, context)? {
            Ok(())
        } else {
            Err(Error::Invalid(
                "cu_stream belongs to another device, or to a context that is neither the primary \
                 one nor a green one; name the stream's own device",
            ))
        }
    }

    /// Is the context of a stream a green one of the device?
    fn is_green(&self, device: &Device, native: CUstream, context: CUcontext) -> Result<bool> {
        let mut green = std::ptr::null_mut();
        // SAFETY: the caller's promise that the stream is alive; `green` is writable.
        match unsafe { self.driver.cuStreamGetGreenCtx(native, &mut green) } {
            Ok(()) if !green.is_null() => {}
            Ok(()) => return Ok(false),
            Err(error) if error.code == CudaError::MISSING => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        let mut found = -1;
        // SAFETY: the context of a live stream.
        unsafe { self.driver.cuCtxPushCurrent(context) }?;
        // SAFETY: `found` is writable.
        let queried = unsafe { self.driver.cuCtxGetDevice(&mut found) };
        leave(self.driver, context);
        queried?;
        Ok(found == device.handle())
    }

    /// The context of a stream that is not one of CUDA's fixed handles.
    pub(crate) fn context_of(&self, native: CUstream) -> Result<CUcontext> {
        let mut context = std::ptr::null_mut();
        // SAFETY: the caller's promise that the stream is alive; `context` is writable.
        unsafe { self.driver.cuStreamGetCtx(native, &mut context) }?;
        Ok(context)
    }

    /// The driver's stream id, or the handle if the driver is too old to have ids.
    pub(crate) fn driver_id(&self, native: CUstream) -> Result<u64> {
        let mut id = 0;
        // SAFETY: the stream is alive, `id` is writable.
        match unsafe { self.driver.cuStreamGetId(native, &mut id) } {
            Ok(()) => Ok(id),
            Err(error) if error.code == CudaError::MISSING => Ok(native as u64),
            Err(error) => Err(error.into()),
        }
    }
}
