//! Events: points in streams. They are created in the driver at their first record, and recycled.

use crate::base::error::{Error, Result};
use crate::base::lock::{Held, Mutex};
use crate::base::once::Once;
use crate::base::progress;
use crate::base::rank::Rank;
use crate::driver::sync_debug;
use crate::driver::sys::{CUevent, CUipcEventHandle};
use crate::driver::{Driver, code};
use crate::gpu::device::{CURRENT, Device};
use crate::gpu::gpus::Gpus;
use crate::gpu::sanitizer_reports;
use crate::gpu::stream::Stream;
use crate::sanitizer::{self, Point, sync_points};
use std::ffi::c_char;
use std::sync::atomic::{AtomicBool, Ordering};

/// The event can be timed.
pub const TIMING: u32 = 1;
/// Synchronising sleeps instead of spinning.
pub const BLOCKING: u32 = 2;
/// The event can be shared with another process.
pub const INTERPROCESS: u32 = 4;
/// The event is a node of its own in a captured graph.
pub const EXTERNAL: u32 = 8;

// The driver's flags.
const CU_BLOCKING_SYNC: u32 = 1;
const CU_DISABLE_TIMING: u32 = 2;
const CU_INTERPROCESS: u32 = 4;
const SHARED: u32 = CU_DISABLE_TIMING | CU_INTERPROCESS;
const CU_RECORD_EXTERNAL: u32 = 1;
const CU_WAIT_EXTERNAL: u32 = 1;

/// Recycled driver events of a device, by the flags they were created with.
pub struct EventPool {
    driver: &'static Driver,
    free: [Mutex<Free>; 8],
}

/// Unused events, with room for those in use, so that returning one cannot fail.
struct Free {
    events: Vec<usize>,
    out: usize,
}

impl EventPool {
    pub(crate) fn new(driver: &'static Driver) -> EventPool {
        let free = [const { Mutex::new(Rank::LEAF, Free { events: Vec::new(), out: 0 }) }; 8];
        EventPool { driver, free }
    }

    fn free(&self, flags: u32) -> Held<'_, Free> {
        self.free[flags as usize].lock()
    }

    fn take(&self, device: &Device, flags: u32) -> Result<CUevent> {
        let mut free = self.free(flags);
        let out = free.out + 1;
        free.events.try_reserve(out).map_err(|_| Error::OutOfHostMemory("an event"))?;
        free.out = out;
        if let Some(event) = free.events.pop() {
            return Ok(event as CUevent);
        }
        drop(free);
        let created = self.create(device, flags);
        if created.is_err() {
            self.free(flags).out -= 1;
        }
        created
    }

    fn create(&self, device: &Device, flags: u32) -> Result<CUevent> {
        let _context = device.enter()?;
        let mut event = std::ptr::null_mut();
        // SAFETY: `event` is writable, the device's context is current.
        unsafe { self.driver.cuEventCreate(&mut event, flags) }?;
        Ok(event)
    }

    fn give(&self, flags: u32, event: CUevent) {
        let mut free = self.free(flags);
        free.out -= 1;
        free.events.push(event as usize);
    }

    /// An event without timing, for the library's own ordering.
    pub(crate) fn take_untimed(&self, device: &Device) -> Result<CUevent> {
        self.take(device, CU_DISABLE_TIMING)
    }

    /// Returns an event to the pool; streams that wait for it still do.
    pub(crate) fn give_untimed(&self, event: CUevent) {
        self.give(CU_DISABLE_TIMING, event);
    }

    /// An event without timing that can be exported to other processes.
    pub(crate) fn take_shared(&self, device: &Device) -> Result<CUevent> {
        self.take(device, SHARED)
    }

    /// Returns a shared event, once no other process can wait for it any more.
    pub(crate) fn give_shared(&self, event: CUevent) {
        self.give(SHARED, event);
    }

    /// Closes another process's event.
    fn close_opened(&self, event: CUevent) {
        for _ in 0..2 {
            // SAFETY: opened by us, once.
            if unsafe { self.driver.cuEventDestroy(event) }.is_ok() {
                return;
            }
        }
    }

    /// Destroys an event that is in use: another process has its handle, and may record it.
    fn destroy(&self, flags: u32, event: CUevent) {
        for _ in 0..2 {
            // SAFETY: ours, and at its end.
            if unsafe { self.driver.cuEventDestroy(event) }.is_ok() {
                self.free(flags).out -= 1;
                return;
            }
        }
        // It is destroyed at shutdown.
        self.give(flags, event);
    }

    /// Destroys the events in the pool; the device's context is current.
    pub(crate) fn close(&self) {
        for free in &self.free {
            let mut free = free.lock();
            for event in free.events.drain(..) {
                // SAFETY: ours, and at its end.
                let _ = unsafe { self.driver.cuEventDestroy(event as CUevent) };
            }
        }
    }
}

/// The driver event of an event that was recorded.
#[derive(Clone, Copy)]
struct Created {
    device: i32,
    native: usize,
    pool: *const EventPool,
    /// It is another process's event.
    is_opened: bool,
}

// SAFETY: the pool is shared by all threads and outlives every event.
unsafe impl Send for Created {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Created {}

/// A point in a stream.
pub struct Event {
    flags: u32,
    created: Once<Created>,
    /// Another process may have its handle.
    is_exported: AtomicBool,
}

impl Event {
    /// An event without a device, which it gets at its first record.
    pub fn new(flags: u32) -> Result<Event> {
        if flags & !(TIMING | BLOCKING | INTERPROCESS | EXTERNAL) != 0 {
            return Err(Error::OutOfRange {
                name: "flags",
                value: flags.into(),
                allowed: "combine TCUDA_EVENT_TIMING, _BLOCKING, _INTERPROCESS and _EXTERNAL",
            });
        }
        if flags & INTERPROCESS != 0 && flags & TIMING != 0 {
            return Err(Error::Invalid(
                "flags have both TCUDA_EVENT_INTERPROCESS and TCUDA_EVENT_TIMING; CUDA cannot \
                 time events that are shared: leave one out",
            ));
        }
        Ok(Event::of(flags))
    }

    fn of(flags: u32) -> Event {
        Event { flags, created: Once::new(Rank::ONCE), is_exported: AtomicBool::new(false) }
    }

    /// Opens an event of another process by its handle.
    pub fn open(gpus: &Gpus, device: i32, handle: &[u8; 64]) -> Result<Event> {
        let device = gpus.device(device)?;
        let event = Event::of(INTERPROCESS);
        event.created.get_or_try_init(|| {
            let native = open_native(device, handle)? as usize;
            let (device, pool) = (device.ordinal(), &raw const device.events);
            Ok::<_, Error>(Created { device, native, pool, is_opened: true })
        })?;
        Ok(event)
    }

    /// A handle for other processes. An event that was never recorded is bound to the current
    /// device.
    pub fn ipc_handle(&self, gpus: &Gpus) -> Result<[u8; 64]> {
        if self.flags & INTERPROCESS == 0 {
            return Err(Error::Invalid(
                "the event has no handle for other processes: pass TCUDA_EVENT_INTERPROCESS to \
                 tcuda_event_create",
            ));
        }
        let created = self.created.get_or_try_init(|| {
            let device = gpus.device(CURRENT)?;
            let native = device.events.take(device, self.driver_flags())? as usize;
            let (device, pool) = (device.ordinal(), &raw const device.events);
            Ok::<_, Error>(Created { device, native, pool, is_opened: false })
        })?;
        if created.is_opened {
            return Err(Error::InvalidState(
                "the event is another process's, which alone can give its handle",
            ));
        }
        let handle = handle_of(gpus.device(created.device)?, created.native as CUevent)?;
        self.is_exported.store(true, Ordering::Relaxed);
        Ok(handle)
    }

    fn driver_flags(&self) -> u32 {
        let mut flags = 0;
        if self.flags & TIMING == 0 {
            flags |= CU_DISABLE_TIMING;
        }
        if self.flags & BLOCKING != 0 {
            flags |= CU_BLOCKING_SYNC;
        }
        if self.flags & INTERPROCESS != 0 {
            flags |= CU_INTERPROCESS;
        }
        flags
    }

    /// Its device; `None` before the first record.
    pub fn device(&self) -> Option<i32> {
        self.created.get().map(|created| created.device)
    }

    /// The driver's handle; NULL before the first record.
    pub fn native(&self) -> CUevent {
        self.created.get().map_or(std::ptr::null_mut(), |created| created.native as CUevent)
    }

    /// Captures the present end of a stream's queue. If a first record fails, the event still has
    /// no device.
    #[inline]
    pub fn record(&self, gpus: &Gpus, stream: &Stream) -> Result<()> {
        if sanitizer::is_on() {
            return self.record_observed(gpus, stream);
        }
        self.record_now(gpus, stream)
    }

    fn record_now(&self, gpus: &Gpus, stream: &Stream) -> Result<()> {
        let device = gpus.device_of(stream)?;
        let mut is_recorded = false;
        let created = self.created.get_or_try_init(|| {
            let event = device.events.take(device, self.driver_flags())?;
            if let Err(error) = self.record_native(gpus, device, stream, event) {
                device.events.give(self.driver_flags(), event);
                return Err(error);
            }
            is_recorded = true;
            let native = event as usize;
            let (pool, is_opened) = (&raw const device.events, false);
            Ok::<_, Error>(Created { device: stream.device(), native, pool, is_opened })
        })?;
        if created.device != stream.device() {
            return Err(Error::EventDevice { event: created.device, stream: stream.device() });
        }
        if !is_recorded {
            self.record_native(gpus, device, stream, created.native as CUevent)?;
        }
        Ok(())
    }

    fn record_native(
        &self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        event: CUevent,
    ) -> Result<()> {
        if !self.is_node(gpus, stream)? {
            return stream.record(gpus, event);
        }
        let _context = device.enter()?;
        // SAFETY: stream and event are alive and of one device.
        unsafe {
            gpus.driver().cuEventRecordWithFlags(event, stream.native(), CU_RECORD_EXTERNAL)
        }?;
        Ok(())
    }

    /// Is it a node of its own in the capture of the stream?
    #[inline]
    fn is_node(&self, gpus: &Gpus, stream: &Stream) -> Result<bool> {
        Ok(self.flags & EXTERNAL != 0 && stream.is_capturing(gpus)?)
    }

    /// Makes the further work of a stream wait for it; no-op if it was never recorded.
    #[inline]
    pub fn wait(&self, gpus: &Gpus, stream: &Stream) -> Result<()> {
        if sanitizer::is_on() {
            return self.wait_observed(gpus, stream);
        }
        self.wait_now(gpus, stream)
    }

    fn wait_now(&self, gpus: &Gpus, stream: &Stream) -> Result<()> {
        let Some(created) = self.created.get() else { return Ok(()) };
        let event = created.native as CUevent;
        if self.is_node(gpus, stream)? {
            let _context = gpus.device_of(stream)?.enter()?;
            // SAFETY: stream and event are alive.
            unsafe { gpus.driver().cuStreamWaitEvent(stream.native(), event, CU_WAIT_EXTERNAL) }?;
            return Ok(());
        }
        stream.wait(gpus, event)
    }

    /// `answer` if the event was never recorded, which requires no initialisation; otherwise
    /// `error`.
    #[cold]
    pub fn unless_recorded<T>(&self, error: Error, answer: T) -> Result<T> {
        if self.created.get().is_some() { Err(error) } else { Ok(answer) }
    }

    /// Has the recorded work completed? True if it was never recorded.
    #[inline(always)]
    pub fn query(&self, gpus: &Gpus) -> Result<bool> {
        if sanitizer::is_on() {
            return sync_points::queried(self.point(), || self.query_now(gpus));
        }
        self.query_now(gpus)
    }

    #[inline(always)]
    fn query_now(&self, gpus: &Gpus) -> Result<bool> {
        let Some(created) = self.created.get() else { return Ok(true) };
        // SAFETY: the event is alive; an event determines its context.
        match unsafe { gpus.driver().cuEventQuery(created.native as CUevent) } {
            Ok(()) => {
                progress::notify();
                Ok(true)
            }
            Err(error) if error.code == code::NOT_READY => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the recorded work has completed.
    #[inline]
    pub fn synchronize(&self, gpus: &Gpus) -> Result<()> {
        if sanitizer::is_on() {
            return sync_points::waited(self.point(), || self.synchronize_now(gpus));
        }
        self.synchronize_now(gpus)
    }

    fn synchronize_now(&self, gpus: &Gpus) -> Result<()> {
        let _documented = sync_debug::documented();
        let Some(created) = self.created.get() else { return Ok(()) };
        // SAFETY: the event is alive.
        unsafe { gpus.driver().cuEventSynchronize(created.native as CUevent) }?;
        Ok(())
    }

    #[cold]
    fn record_observed(&self, gpus: &Gpus, stream: &Stream) -> Result<()> {
        self.record_now(gpus, stream)?;
        let key = self.native() as u64;
        match self.is_node(gpus, stream) {
            Ok(true) => sanitizer_reports::event_recorded_in_graph(gpus, key, stream),
            _ => sanitizer_reports::event_recorded(gpus, key, stream),
        }
        Ok(())
    }

    #[cold]
    fn wait_observed(&self, gpus: &Gpus, stream: &Stream) -> Result<()> {
        self.wait_now(gpus, stream)?;
        let Some(created) = self.created.get() else { return Ok(()) };
        let key = created.native as u64;
        match self.is_node(gpus, stream) {
            Ok(true) => sanitizer_reports::event_waited_in_graph(gpus, key, stream),
            _ if self.is_shared(created) => sanitizer_reports::waits_for_everything(gpus, stream),
            _ => sanitizer_reports::event_waited(gpus, key, stream),
        }
        Ok(())
    }

    /// May another process have recorded it, after work that this process does not know?
    fn is_shared(&self, created: &Created) -> bool {
        created.is_opened || self.is_exported.load(Ordering::Relaxed)
    }

    /// The sync point of a wait for it, for the sanitizer.
    #[cold]
    fn point(&self) -> Option<Point> {
        let created = self.created.get()?;
        match self.is_shared(created) {
            true => sanitizer::point_of_everything(),
            false => sanitizer::point_of_event(created.native as u64),
        }
    }

    /// Milliseconds from this event to `end`.
    pub fn elapsed_ms(&self, gpus: &Gpus, end: &Event) -> Result<f32> {
        if self.flags & TIMING == 0 || end.flags & TIMING == 0 {
            return Err(Error::Invalid(
                "Both events must be created with argument 'enable_timing=True'. Pass \
                 TCUDA_EVENT_TIMING to tcuda_event_create.",
            ));
        }
        let (Some(first), Some(last)) = (self.created.get(), end.created.get()) else {
            return Err(Error::Invalid(
                "Both events must be recorded before calculating elapsed time.",
            ));
        };
        if first.device != last.device {
            return Err(Error::ElapsedDevices { start: first.device, end: last.device });
        }
        if !self.query(gpus)? || !end.query(gpus)? {
            return Err(Error::NotReady(
                "Both events must be completed before calculating elapsed time.",
            ));
        }
        let mut elapsed = 0.0;
        // SAFETY: both events are alive, `elapsed` is writable.
        unsafe {
            gpus.driver().cuEventElapsedTime(
                &mut elapsed,
                first.native as CUevent,
                last.native as CUevent,
            )
        }?;
        Ok(elapsed)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(created) = self.created.get() {
            // SAFETY: events are dropped before the device that holds the pool.
            let pool = unsafe { &*created.pool };
            let event = created.native as CUevent;
            sanitizer::event_gone(created.native as u64);
            match (created.is_opened, self.is_exported.load(Ordering::Relaxed)) {
                (true, _) => pool.close_opened(event),
                (false, true) => pool.destroy(self.driver_flags(), event),
                (false, false) => pool.give(self.driver_flags(), event),
            }
        }
    }
}

/// The driver's IPC handle of an event.
pub(crate) fn handle_of(device: &Device, event: CUevent) -> Result<[u8; 64]> {
    let _context = device.enter()?;
    let mut handle = CUipcEventHandle { reserved: [0; 64] };
    // SAFETY: `handle` is writable, the event is alive.
    unsafe { device.driver().cuIpcGetEventHandle(&mut handle, event) }?;
    Ok(handle.reserved.map(|byte| byte as u8))
}

/// Opens an event of another process.
pub(crate) fn open_native(device: &Device, handle: &[u8; 64]) -> Result<CUevent> {
    let _context = device.enter()?;
    let handle = CUipcEventHandle { reserved: handle.map(|byte| byte as c_char) };
    let mut event = std::ptr::null_mut();
    // SAFETY: `event` is writable; the driver validates the handle.
    unsafe { device.driver().cuIpcOpenEventHandle(&mut event, handle) }?;
    Ok(event)
}
