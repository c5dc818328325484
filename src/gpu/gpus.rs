//! The GPUs of one initialisation of the library: the driver, its devices, and the state that the
//! layers above keep for them.

use crate::base::error::{Error, Result};
use crate::base::lifecycle::{Holder, Lifecycle};
use crate::base::thread::{self, Inside};
use crate::driver::Driver;
use crate::driver::sys::CUcontext;
use crate::gpu::device::{CURRENT, Device};
use crate::gpu::stream::Stream;
use crate::gpu::subsystem::{Subsystem, Subsystems};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The GPUs that this process uses, from an initialisation to the next shutdown.
pub struct Gpus {
    /// State of the layers above that exists once for all devices. Dropped before the devices,
    /// whose streams it may hold.
    pub(crate) subsystems: Subsystems<Gpus>,
    /// Devices by ordinal.
    pub devices: Vec<Device>,
    /// Counts initialisations, so that state that threads cached in an earlier one is not used.
    pub generation: u64,
    driver: &'static Driver,
    /// Number of captures that the library has begun and not ended.
    num_captures: AtomicUsize,
}

static LIFECYCLE: Lifecycle<Gpus, Driver> = Lifecycle::new();
/// The present generation: changes at each initialisation and each shutdown.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// The beginning and the end of the GPUs and their driver.
pub(crate) fn lifecycle() -> &'static Lifecycle<Gpus, Driver> {
    &LIFECYCLE
}

/// The GPUs, if the library is initialised.
#[inline(always)]
pub fn existing(_inside: &Inside) -> Option<&Gpus> {
    // SAFETY: this thread is inside for as long.
    unsafe { LIFECYCLE.runtime() }
}

/// The GPUs, if the library is initialised; else calls `later`, and no thread can initialise
/// meanwhile.
pub fn existing_or(inside: &Inside, later: impl FnOnce() -> Result<()>) -> Result<Option<&Gpus>> {
    if let Some(gpus) = existing(inside) {
        return Ok(Some(gpus));
    }
    let _held = hold()?;
    match existing(inside) {
        Some(gpus) => Ok(Some(gpus)),
        None => later().map(|()| None),
    }
}

/// Keeps the library from being initialised or shut down until the guard is dropped.
pub(crate) fn hold() -> Result<Holder<'static>> {
    LIFECYCLE.hold()
}

/// The driver in use, if one was started.
pub fn existing_driver(_inside: &Inside) -> Option<&Driver> {
    // SAFETY: this thread is inside for as long.
    unsafe { LIFECYCLE.driver() }
}

/// Is this the present generation of the library? Without being inside, the answer may be outdated
/// at once.
#[inline(always)]
pub fn is_present(generation: u64) -> bool {
    GENERATION.load(Ordering::Relaxed) == generation
}

/// Ends the present generation; returns the next one.
pub(crate) fn next_generation() -> u64 {
    GENERATION.fetch_add(1, Ordering::Relaxed) + 1
}

impl Gpus {
    /// The GPUs of a driver, without state of the layers above.
    pub(crate) fn new(driver: &'static Driver, count: i32, generation: u64) -> Result<Gpus> {
        let mut devices = Vec::new();
        devices
            .try_reserve_exact(count as usize)
            .map_err(|_| Error::OutOfHostMemory("the list of devices"))?;
        for _ in 0..count {
            Device::add_to(&mut devices, driver, generation)?;
        }
        let (num_captures, subsystems) = (AtomicUsize::new(0), Subsystems::new());
        Ok(Gpus { subsystems, devices, generation, driver, num_captures })
    }

    /// The driver.
    #[inline]
    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// The state that a layer above keeps once for all devices.
    #[inline(always)]
    pub(crate) fn subsystem<S: Subsystem<Owner = Gpus>>(&self) -> &S {
        self.subsystems.get()
    }

    /// Counts a capture that begins, of the library, or of the host and marked.
    pub(crate) fn begin_capture(&self) {
        self.num_captures.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a capture that ends.
    pub(crate) fn end_capture(&self) {
        self.num_captures.fetch_sub(1, Ordering::AcqRel);
    }

    /// Is any capture known that is active?
    #[inline]
    pub(crate) fn has_captures(&self) -> bool {
        self.num_captures.load(Ordering::Acquire) != 0
    }

    /// A device by ordinal; -1: the thread's current one.
    #[inline(always)]
    pub fn device(&self, ordinal: i32) -> Result<&Device> {
        match self.devices.as_slice() {
            // The only device is current, whatever the thread's context is.
            [only] if ordinal == CURRENT => Ok(only),
            devices => match devices.get(ordinal as usize) {
                Some(device) => Ok(device),
                None => self.device_of_thread(ordinal),
            },
        }
    }

    /// [`Gpus::device`] if that does not require the thread's context.
    #[inline(always)]
    pub fn device_if_known(&self, ordinal: i32) -> Option<&Device> {
        match self.devices.as_slice() {
            [only] if matches!(ordinal, 0 | CURRENT) => Some(only),
            devices => devices.get(usize::try_from(ordinal).ok()?),
        }
    }

    /// The device of a stream.
    #[inline(always)]
    pub fn device_of(&self, stream: &Stream) -> Result<&Device> {
        let ordinal = stream.device();
        match self.devices.get(ordinal as usize) {
            Some(device) => Ok(device),
            None => self.device_of_thread(ordinal),
        }
    }

    #[inline(never)]
    fn device_of_thread(&self, ordinal: i32) -> Result<&Device> {
        let ordinal = if ordinal == CURRENT { self.current_device()? } else { ordinal };
        let count = self.devices.len() as i32;
        let missing = || Error::InvalidDevice { device: ordinal, count };
        self.devices.get(ordinal as usize).ok_or_else(missing)
    }

    /// The device of the thread's current context if that is a primary one, else the device that
    /// this thread set.
    #[inline(always)]
    pub fn current_device(&self) -> Result<i32> {
        if self.devices.len() == 1 { Ok(0) } else { self.current_of_several() }
    }

    #[inline(never)]
    fn current_of_several(&self) -> Result<i32> {
        let context = self.current_context()?;
        if !context.is_null()
            && let Some(device) = self.devices.iter().find(|device| device.is_context(context))
        {
            return Ok(device.ordinal());
        }
        if !context.is_null()
            && let Some(device) = self.device_of_green_context()?
        {
            return Ok(device.ordinal());
        }
        let device = thread::block().device.load(Ordering::Relaxed) as i32;
        Ok(if (device as usize) < self.devices.len() { device } else { 0 })
    }

    /// The device of the thread's current context if that is a green one.
    fn device_of_green_context(&self) -> Result<Option<&Device>> {
        let mut green = std::ptr::null_mut();
        // SAFETY: NULL is the default stream of the current context; `green` is writable.
        let queried = unsafe { self.driver.cuStreamGetGreenCtx(std::ptr::null_mut(), &mut green) };
        // Drivers before 12.4 have none; a context that has ended has no device.
        if queried.is_err() || green.is_null() {
            return Ok(None);
        }
        let mut device = 0;
        // SAFETY: `device` is writable.
        unsafe { self.driver.cuCtxGetDevice(&mut device) }?;
        Ok(self.devices.iter().find(|known| known.handle() == device))
    }

    /// The thread's current context, perhaps NULL.
    pub fn current_context(&self) -> Result<CUcontext> {
        let mut context = std::ptr::null_mut();
        // SAFETY: `context` is writable.
        unsafe { self.driver.cuCtxGetCurrent(&mut context) }?;
        Ok(context)
    }

    /// Makes a device current for this thread, in the driver as well.
    pub fn set_current_device(&self, ordinal: i32) -> Result<()> {
        let device = self.device(ordinal)?;
        let context = device.context()?;
        // SAFETY: a primary context that is retained until shutdown.
        unsafe { self.driver.cuCtxSetCurrent(context) }?;
        thread::block().device.store(device.ordinal() as u32, Ordering::Relaxed);
        Ok(())
    }
}
