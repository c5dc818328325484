//! Devices: ordinals, properties, primary contexts, peers.

use crate::base::error::{Error, Result};
use crate::base::once::Once;
use crate::base::place::write_fields;
use crate::base::rank::Rank;
use crate::driver::sync_debug;
use crate::driver::sys::{CUcontext, CUdevice, CUdevice_attribute, CUuuid};
use crate::driver::{CudaError, Driver, code, newer};
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::event::EventPool;
use crate::gpu::stream::Streams;
use crate::gpu::subsystem::{Subsystem, Subsystems};
use crate::gpu::waits::LastSync;
use crate::sanitizer::{self, sync_points};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub use crate::base::ordinal::{CPU, CURRENT, MAX_DEVICES};

/// Refuses ordinals that no machine has, while the number of devices is not known yet.
pub fn require_possible(device: i32) -> Result<()> {
    match device {
        CURRENT => Ok(()),
        0.. if (device as usize) < MAX_DEVICES => Ok(()),
        _ => Err(Error::ImpossibleDevice(device)),
    }
}

const NO_ROOM: Error = Error::OutOfHostMemory("the list of devices");

/// A device and everything that belongs to it.
pub struct Device {
    ordinal: i32,
    driver: &'static Driver,
    handle: CUdevice,
    total_memory: u64,
    context: Once<usize>,
    /// The same, readable without a call; 0: not retained yet.
    known_context: AtomicUsize,
    peers: [AtomicBool; MAX_DEVICES],
    /// The last wait for all of its work.
    pub(crate) last_sync: LastSync,
    /// Its streams.
    pub streams: Streams,
    /// Its recycled events.
    pub events: EventPool,
    /// State of the layers above.
    pub(crate) subsystems: Subsystems<Device>,
}

/// The fixed attributes of a device.
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "each field is documented in the header's tcuda_device_info")]
pub struct Properties {
    pub name: [std::ffi::c_char; 256],
    pub uuid: [u8; 16],
    pub total_memory_bytes: u64,
}

impl Device {
    /// Appends a device to a list that has room for it.
    #[inline(never)]
    pub(crate) fn add_to(
        devices: &mut Vec<Device>,
        driver: &'static Driver,
        generation: u64,
    ) -> Result<()> {
        let ordinal = devices.len() as i32;
        let mut handle = 0;
        // SAFETY: `handle` is writable.
        unsafe { driver.cuDeviceGet(&mut handle, ordinal) }?;
        let mut total = 0;
        // SAFETY: `total` is writable, the device exists.
        unsafe { driver.cuDeviceTotalMem(&mut total, handle) }?;
        let Some(place) = devices.spare_capacity_mut().first_mut() else { return Err(NO_ROOM) };
        write_fields!(
            place.as_mut_ptr(),
            Device {
                ordinal: ordinal,
                driver: driver,
                handle: handle,
                total_memory: total as u64,
                context: Once::new(Rank::CONTEXT),
                known_context: AtomicUsize::new(0),
                peers: [const { AtomicBool::new(false) }; MAX_DEVICES],
                last_sync: LastSync::new(),
                streams: Streams::new(driver, ordinal, generation),
                events: EventPool::new(driver),
                subsystems: Subsystems::new(),
            }
        );
        // SAFETY: there was room for one more, which is initialised.
        unsafe { devices.set_len(devices.len() + 1) };
        Ok(())
    }

    /// Is it a device of the simulated machine?
    pub fn is_simulated(&self) -> bool {
        self.driver.is_simulated()
    }

    /// The state that a layer above keeps for it.
    #[inline(always)]
    pub(crate) fn subsystem<S: Subsystem<Owner = Device>>(&self) -> &S {
        self.subsystems.get()
    }

    /// Its ordinal.
    #[inline]
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// The driver of the device.
    #[inline]
    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// The driver's handle of the device.
    pub fn handle(&self) -> CUdevice {
        self.handle
    }

    /// Its primary context, retained until shutdown.
    #[inline]
    pub fn context(&self) -> Result<CUcontext> {
        let known = self.known_context.load(Ordering::Acquire);
        if known != 0 {
            return Ok(known as CUcontext);
        }
        let context = *self.context.get_or_try_init(|| {
            let mut context = std::ptr::null_mut();
            // SAFETY: `context` is writable, the device exists.
            unsafe { self.driver.cuDevicePrimaryCtxRetain(&mut context, self.handle) }?;
            Ok::<usize, CudaError>(context as usize)
        })?;
        self.known_context.store(context, Ordering::Release);
        Ok(context as CUcontext)
    }

    /// Is its primary context retained?
    pub(crate) fn has_context(&self) -> bool {
        self.known_context.load(Ordering::Acquire) != 0
    }

    /// Is this its primary context? Retains it only if another library has made it active.
    pub fn is_context(&self, context: CUcontext) -> bool {
        let known = self.known_context.load(Ordering::Acquire);
        if known != 0 {
            return known == context as usize;
        }
        self.has_active_context().unwrap_or(false) && self.context().is_ok_and(|own| own == context)
    }

    /// Does its primary context exist, also one that another library created?
    pub fn has_active_context(&self) -> Result<bool> {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: both are writable, the device exists.
        unsafe { self.driver.cuDevicePrimaryCtxGetState(self.handle, &mut flags, &mut active) }?;
        Ok(active != 0)
    }

    /// Makes its context current until the guard is dropped, which restores the caller's.
    #[inline]
    pub fn enter(&self) -> Result<ContextGuard> {
        let context = self.context()?;
        let mut current = std::ptr::null_mut();
        // SAFETY: `current` is writable.
        unsafe { self.driver.cuCtxGetCurrent(&mut current) }?;
        if current == context {
            return Ok(ContextGuard { entered: None });
        }
        // SAFETY: retained until shutdown.
        unsafe { self.driver.cuCtxPushCurrent(context) }?;
        Ok(ContextGuard { entered: Some((self.driver, context)) })
    }

    /// One attribute.
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32> {
        self.attribute_by_number(attribute as i32)
    }

    fn attribute_by_number(&self, attribute: i32) -> Result<i32> {
        let mut value = 0;
        // SAFETY: `value` is writable, the device exists.
        unsafe { self.driver.cuDeviceGetAttribute(&mut value, attribute, self.handle) }?;
        Ok(value)
    }

    /// One attribute, or `unknown` where this driver does not have it.
    pub fn attribute_or(&self, attribute: CUdevice_attribute, unknown: i32) -> Result<i32> {
        or_unknown(self.attribute(attribute), unknown)
    }

    /// The number of its locality domains; 1 where the driver knows none.
    pub fn locality_domains(&self) -> Result<i32> {
        or_unknown(self.attribute_by_number(newer::ATTRIBUTE_LOCALITY_DOMAIN_COUNT), 1)
    }

    /// Its memory in bytes.
    pub fn total_memory(&self) -> u64 {
        self.total_memory
    }

    /// Free and total memory as the driver sees them.
    pub fn memory_info(&self) -> Result<(u64, u64)> {
        let _relaxed = Relaxed::enter(self.driver);
        let _context = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are writable, the context is current.
        unsafe { self.driver.cuMemGetInfo(&mut free, &mut total) }?;
        Ok((free as u64, total as u64))
    }

    /// Name, UUID and memory.
    pub fn properties(&self) -> Result<Properties> {
        let mut name = [0; 256];
        // SAFETY: the buffer has the length that is passed.
        unsafe { self.driver.cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, self.handle) }?;
        Ok(Properties { name, uuid: self.uuid()?, total_memory_bytes: self.total_memory })
    }

    /// Its unique id among all devices of the machine.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: `uuid` is writable.
        unsafe { self.driver.cuDeviceGetUuid(&mut uuid, self.handle) }?;
        Ok(uuid.bytes.map(|byte| byte as u8))
    }

    /// Compute capability.
    pub fn capability(&self) -> Result<(i32, i32)> {
        use CUdevice_attribute::*;
        Ok((
            self.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            self.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ))
    }

    /// Waits for all of its work.
    pub fn synchronize(&self) -> Result<()> {
        let _context = self.enter()?;
        // SAFETY: its context is current.
        unsafe { self.driver.cuCtxSynchronize() }?;
        self.last_sync.note();
        Ok(())
    }

    /// [`Device::synchronize`] for a call of the host that is documented to wait.
    #[inline]
    pub fn synchronize_for_host(&self) -> Result<()> {
        let _documented = sync_debug::documented();
        if sanitizer::is_on() {
            let point = sanitizer::point_of_device(self.ordinal);
            return sync_points::waited(point, || self.synchronize());
        }
        self.synchronize()
    }

    /// Can it map the memory of `peer`?
    pub fn can_access(&self, peer: &Device) -> Result<bool> {
        if self.ordinal == peer.ordinal {
            return Ok(false);
        }
        let mut possible = 0;
        // SAFETY: `possible` is writable, the devices exist.
        unsafe { self.driver.cuDeviceCanAccessPeer(&mut possible, self.handle, peer.handle) }?;
        Ok(possible != 0)
    }

    /// Lets it use memory of `peer`: that of cuMemAlloc by the context, and the cache's by range,
    /// for which `allow_ranges` is called.
    pub(crate) fn enable_peer_with(
        &self,
        peer: &Device,
        allow_ranges: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if !self.can_access(peer)? {
            return Err(Error::NotSupported {
                what: "peer access between these devices",
                by: "machine",
            });
        }
        let context = peer.context()?;
        let _context = self.enter()?;
        // SAFETY: a retained context.
        match unsafe { self.driver.cuCtxEnablePeerAccess(context, 0) } {
            Ok(()) => (),
            Err(error) if error.code == code::PEER_ACCESS_ALREADY_ENABLED => (),
            Err(error) => return Err(error.into()),
        }
        allow_ranges()?;
        self.peers[peer.ordinal as usize].store(true, Ordering::Release);
        Ok(())
    }

    /// Was `enable_peer_with` done for this peer?
    pub fn has_peer(&self, peer: i32) -> bool {
        self.peers.get(peer as usize).is_some_and(|enabled| enabled.load(Ordering::Acquire))
    }

    /// Waits for its work at shutdown. Errors are ignored: nothing can be done about them here.
    pub(crate) fn settle(&self) {
        if self.has_context() {
            let _ = self.synchronize();
        }
    }

    /// Ends its streams and events. Its context stays, because another device may still hold
    /// events of it.
    pub(crate) fn close(&self) {
        self.events.close();
        self.streams.close();
    }

    /// Releases the context, after every device was closed.
    pub(crate) fn release_context(&self) {
        if self.has_context() {
            // SAFETY: retained once, by `context`.
            let _ = unsafe { self.driver.cuDevicePrimaryCtxRelease(self.handle) };
        }
    }
}

/// The value of an attribute, or `unknown` where the driver does not have it.
fn or_unknown(value: Result<i32>, unknown: i32) -> Result<i32> {
    match value {
        Err(Error::Cuda(CudaError { code: code::INVALID_VALUE, .. })) => Ok(unknown),
        other => other,
    }
}

/// Restores the caller's context when dropped.
pub struct ContextGuard {
    entered: Option<(&'static Driver, CUcontext)>,
}

impl Drop for ContextGuard {
    #[inline]
    fn drop(&mut self) {
        if let Some((driver, entered)) = self.entered {
            leave(driver, entered);
        }
    }
}

/// Undoes the push of `entered`.
#[inline]
pub(crate) fn leave(driver: &Driver, entered: CUcontext) {
    let mut context = std::ptr::null_mut();
    // SAFETY: undoes the caller's push; `context` is writable.
    if unsafe { driver.cuCtxPopCurrent(&mut context) }.is_err() {
        pop_again(driver, entered);
    }
}

/// A failed pop may have left the pushed context current: pops again if it is.
#[cold]
fn pop_again(driver: &Driver, entered: CUcontext) {
    let mut context = std::ptr::null_mut();
    // SAFETY: `context` is writable.
    let queried = unsafe { driver.cuCtxGetCurrent(&mut context) };
    if queried.is_ok() && context == entered {
        // SAFETY: undoes the push of `Device::enter`; `context` is writable.
        let _ = unsafe { driver.cuCtxPopCurrent(&mut context) };
    }
}
