//! The process-wide state: which backend runs, lazy initialisation, shutdown, forks, and contexts.

pub(crate) mod selection;

use crate::base::environment;
use crate::base::error::{Error, Result};
use crate::base::lifecycle::{Holder, Lifecycle};
use crate::base::place::{try_box_at, write_fields};
use crate::base::stderr;
use crate::base::text::Text;
use crate::base::thread::{self, Inside, try_box};
use crate::base::waiting;
use crate::driver::sys::CUcontext;
use crate::driver::{Driver, SimulatedBackend, Table, code, cuda, inject};
use crate::gpu::device::{Device, MAX_DEVICES};
use crate::graph::active_captures::Captures;
use crate::interop::torch::Pools;
use crate::ipc::Ipc;
use crate::memory::backend;
use crate::memory::backing::uncached;
use crate::memory::config::settings;
use crate::memory::fallback::observers;
use crate::memory::pinned::HostMemory;
use crate::memory::trace::history;
use crate::observe::flags::{self, Watcher};
use crate::profiling::nvtx::own;
use crate::random::pending;
use crate::runtime::selection::{Backend, Selection};
use crate::sim;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Everything that exists once the library is initialised.
pub struct Runtime {
    /// Devices by ordinal.
    pub devices: Vec<Device>,
    /// Pinned host memory.
    pub host: HostMemory,
    /// Private pools that PyTorch uses.
    pub torch: Pools,
    /// Captures by tcuda.
    pub captures: Captures,
    /// The exports to and imports from other processes.
    pub ipc: Ipc,
    /// Counts initialisations, so that state that threads cached in an earlier one is not used.
    pub generation: u64,
    driver: &'static Driver,
}

static LIFECYCLE: Lifecycle<Runtime, Driver> = Lifecycle::new();
/// The present generation: changes at each initialisation and each shutdown.
static GENERATION: AtomicU64 = AtomicU64::new(1);
/// libcuda was started in this process: a forked child cannot use it, also after a shutdown.
static CUDA_STARTED: AtomicBool = AtomicBool::new(false);

/// The runtime, initialised now if it was not.
#[inline(always)]
pub fn get(inside: &Inside) -> Result<&Runtime> {
    match existing(inside) {
        Some(runtime) => Ok(runtime),
        None => initialise(inside),
    }
}

/// The runtime, if it is initialised.
#[inline(always)]
pub fn existing(_inside: &Inside) -> Option<&Runtime> {
    // SAFETY: this thread is inside for as long.
    unsafe { LIFECYCLE.runtime() }
}

/// Is this the present generation of the library? Without being inside, the answer may be outdated
/// at once.
#[inline(always)]
pub fn is_present(generation: u64) -> bool {
    GENERATION.load(Ordering::Relaxed) == generation
}

/// The driver in use, if one was started.
pub fn existing_driver(_inside: &Inside) -> Option<&Driver> {
    // SAFETY: this thread is inside for as long.
    unsafe { LIFECYCLE.driver() }
}

#[cold]
fn initialise(inside: &Inside) -> Result<&Runtime> {
    let _uncancelled = waiting::uncancelled();
    let held = LIFECYCLE.hold()?;
    if let Some(runtime) = existing(inside) {
        return Ok(runtime);
    }
    let (driver, count) = start_driver(&held)?;
    if count == 0 {
        return Err(Error::NoDevice(
            "the driver is there, but no CUDA GPUs are available; check CUDA_VISIBLE_DEVICES, or \
             select the simulated machine with TCUDA_BACKEND=sim",
        ));
    }
    pending::check(count)?;
    let settings = settings::current()?;
    stderr::read_environment()?;
    let (is_annotated, is_watched) = (own::is_wanted()?, crate::sanitizer::is_wanted()?);
    backend::begin();
    let generation = GENERATION.fetch_add(1, Ordering::Relaxed) + 1;
    let mut devices = Vec::new();
    devices
        .try_reserve_exact(count as usize)
        .map_err(|_| Error::OutOfHostMemory("the list of devices"))?;
    for _ in 0..count {
        Device::add_to(&mut devices, driver, generation, &settings)?;
    }
    let ipc = Ipc::new()?;
    let write = |place| {
        write_fields!(
            place,
            Runtime {
                devices: devices,
                host: HostMemory::new(driver, generation),
                torch: Pools::new(),
                captures: Captures::new(),
                ipc: ipc,
                generation: generation,
                driver: driver,
            }
        );
        Ok(())
    };
    // SAFETY: `write` initialises all fields.
    let runtime = unsafe { try_box_at("the runtime", write) }?;
    runtime.host.set_settings(&settings.host);
    pending::apply(&runtime);
    settings::choose(settings);
    settings.warn();
    LIFECYCLE.begin(&held, runtime);
    flags::end(Watcher::Forks);
    own::set(is_annotated);
    crate::sanitizer::begin(is_watched);
    get(inside)
}

/// The runtime, if it is initialised; else calls `later`, and no thread can initialise meanwhile.
pub fn existing_or(
    inside: &Inside,
    later: impl FnOnce() -> Result<()>,
) -> Result<Option<&Runtime>> {
    if let Some(runtime) = existing(inside) {
        return Ok(Some(runtime));
    }
    let _held = LIFECYCLE.hold()?;
    match existing(inside) {
        Some(runtime) => Ok(Some(runtime)),
        None => later().map(|()| None),
    }
}

/// Changes the allocator's settings by a text, now and for later initialisations; on failure
/// nothing changes.
pub fn configure(inside: &Inside, text: &str) -> Result<()> {
    // Held, so that no initialisation comes between the two.
    let _held = LIFECYCLE.hold()?;
    let before = settings::current()?;
    let settings = before.changed_by(text, "config")?;
    let runtime = existing(inside);
    let devices = runtime.map_or(&[][..], |runtime| &runtime.devices);
    if settings.backend != before.backend {
        require_fresh(devices)?;
    }
    settings::choose(settings);
    if let Some(runtime) = runtime {
        runtime.host.set_settings(&settings.host);
    }
    let fraction = settings.per_process_memory_fraction;
    for device in devices {
        device.memory.configure(&settings);
        // Only a new value: otherwise the value of tcuda_memory_fraction_set stays.
        if fraction != before.per_process_memory_fraction {
            device.memory.set_fraction(fraction)?;
        }
    }
    settings.warn();
    Ok(())
}

/// An error if memory was allocated already.
pub(crate) fn require_fresh(devices: &[Device]) -> Result<()> {
    if devices.iter().any(|device| device.memory.is_used()) {
        return Err(Error::InvalidState(
            "the allocator's backend cannot change after the first allocation; choose it before, \
             or call tcuda_shutdown",
        ));
    }
    Ok(())
}

/// Changes the allocator that serves requests, while no thread can initialise or shut down; with
/// `is_fresh` only before the first allocation.
pub(crate) fn change_server(inside: &Inside, is_fresh: bool, change: impl FnOnce()) -> Result<()> {
    let _held = LIFECYCLE.hold()?;
    let devices = existing(inside).map_or(&[][..], |runtime| &runtime.devices);
    if is_fresh {
        require_fresh(devices)?;
    }
    let settings = settings::current()?;
    change();
    devices.iter().for_each(|device| device.memory.configure(&settings));
    Ok(())
}

/// Loads and starts the backend, and counts its devices.
fn start_driver(held: &Holder<'_>) -> Result<(&'static Driver, i32)> {
    if !LIFECYCLE.has_driver() {
        take_faults()?;
        let new = match selection::backend()? {
            Backend::Cuda => Driver::new(None, cuda::table().map_err(Error::NoDriver)?),
            Backend::Sim => Driver::new(Some(&sim::BACKEND), power_on()?),
        };
        let boxed = try_box(new, "the driver's table").inspect_err(|_| power_off())?;
        LIFECYCLE.begin_driver(held, boxed);
    }
    // SAFETY: the lock is held, and the runtime that keeps it ends before it.
    let Some(driver) = (unsafe { LIFECYCLE.driver() }) else {
        return Err(Error::Internal(Text::new("a driver that was not begun")));
    };
    if driver.name() == "cuda" {
        CUDA_STARTED.store(true, Ordering::Release);
    }
    let count = count_devices(driver)?.min(MAX_DEVICES as i32);
    Ok((driver, count))
}

/// Calls cuInit and counts the devices; without a device 0, not an error.
fn count_devices(driver: &Driver) -> Result<i32> {
    // SAFETY: no pointers.
    match unsafe { driver.cuInit(0) } {
        Ok(()) => (),
        Err(error) if error.code == code::NO_DEVICE => return Ok(0),
        Err(error) if error.code == code::STUB_LIBRARY => {
            return Err(Error::NoDevice(
                "libcuda is a stub of the CUDA toolkit: no GPU can be reached through it; put \
                 the driver's own libcuda.so.1 first, or set TCUDA_CUDA_DRIVER_PATH",
            ));
        }
        Err(error) => return Err(error.into()),
    }
    let mut count = 0;
    // SAFETY: `count` is writable.
    unsafe { driver.cuDeviceGetCount(&mut count) }?;
    Ok(count.max(0))
}

/// Creates the simulated machine.
fn power_on() -> Result<Table> {
    #[cfg(any(test, feature = "host_faults"))]
    let _in_driver = crate::base::host_faults::in_driver();
    let table =
        selection::with_options(|options| sim::power_on(options).map_err(Error::Simulator))?;
    crate::ops::fill::register_simulated();
    crate::random::kernels::register_simulated();
    crate::collectives::kernels::register_simulated();
    Ok(table)
}

/// Destroys the simulated machine.
fn power_off() {
    #[cfg(any(test, feature = "host_faults"))]
    let _in_driver = crate::base::host_faults::in_driver();
    sim::power_off();
}

/// Reads the fault rules of the environment, unless other rules are set.
fn take_faults() -> Result<()> {
    let faults = environment::text(c"TCUDA_FAULTS")?;
    if !faults.is_empty() && inject::is_empty() {
        inject::replace(&inject::parse(faults).map_err(Error::Faults)?);
    }
    Ok(())
}

/// Selects the backend; before initialisation only.
pub fn select_backend(inside: &Inside, name: &str, options: &str) -> Result<()> {
    let backend = Backend::parse(name, "name")?;
    let held = LIFECYCLE.hold()?;
    if existing(inside).is_some() {
        return Err(Error::InvalidState(
            "the backend cannot change once the library is initialised; call \
             tcuda_backend_select first, or tcuda_shutdown before it",
        ));
    }
    let selection = Selection::new(backend, options)?;
    LIFECYCLE.end_driver(&held, thread::wait_for_others, stop_driver);
    selection::choose(selection);
    Ok(())
}

/// "cuda" or "sim": the backend that runs, or would run.
pub fn backend_name(inside: &Inside) -> &'static CStr {
    match existing_driver(inside).map(Driver::name) {
        Some("sim") => Backend::Sim.name(),
        Some(_) => Backend::Cuda.name(),
        None => selection::name(),
    }
}

/// The functions of the simulated machine, if it runs, or would run.
pub fn simulated(inside: &Inside) -> Result<Option<&'static SimulatedBackend>> {
    match existing_driver(inside) {
        Some(driver) => Ok(driver.simulated()),
        None => Ok((selection::backend()? == Backend::Sim).then_some(&sim::BACKEND)),
    }
}

/// Does the simulated machine run, or would it?
pub fn is_simulated(inside: &Inside) -> Result<bool> {
    Ok(simulated(inside)?.is_some())
}

/// Number of devices that this process can use; 0 without a driver. Creates no context.
pub fn device_count(inside: &Inside) -> Result<i32> {
    if let Some(runtime) = existing(inside) {
        return Ok(runtime.devices.len() as i32);
    }
    let held = LIFECYCLE.hold()?;
    match start_driver(&held) {
        Ok((_, count)) => Ok(count),
        Err(Error::NoDriver(_) | Error::NoDevice(_) | Error::Cuda(_)) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Waits for all work, frees everything, and forgets the backend's state. Returns the number of
/// live objects that `destroy_handles` found.
pub fn shutdown(inside: &Inside, destroy_handles: impl FnOnce(&Inside) -> usize) -> Result<usize> {
    if !inside.is_outermost() || thread::is_in_callback() {
        return Err(Error::InvalidState("tcuda_shutdown cannot be called from a callback"));
    }
    let held = LIFECYCLE.hold()?;
    GENERATION.fetch_add(1, Ordering::Relaxed);
    if existing(inside).is_some() {
        flags::begin(Watcher::Forks);
    }
    history::stop();
    crate::sanitizer::stop();
    own::set(false);
    let destroy = || {
        observers::detach_all();
        destroy_handles(inside)
    };
    let others = thread::wait_for_others;
    // Marked as waiting, so that objects that other threads make meanwhile are not kept for it.
    let collect = || {
        let _waiting = waiting::begin();
        thread::collect();
    };
    let live = LIFECYCLE.end(&held, others, destroy, collect, close, |driver| {
        inject::clear();
        stop_driver(driver);
    });
    inject::forget();
    settings::forget();
    backend::forget();
    crate::gpu::sync_debug::forget();
    history::forget();
    crate::sanitizer::forget();
    crate::gpu::current::forget(thread::block());
    Ok(live)
}

/// Frees what the runtime holds; no thread uses it any more.
fn close(runtime: &Runtime) {
    // All devices settle before any of them frees memory, which another one may still use.
    runtime.devices.iter().for_each(Device::settle);
    runtime.ipc.end(runtime);
    crate::interop::blas::close(runtime);
    uncached::close(runtime);
    runtime.devices.iter().for_each(Device::close);
    runtime.host.close(&runtime.devices);
    #[cfg(any(test, feature = "host_faults"))]
    crate::base::host_faults::reached(crate::base::host_faults::Stage::Closed);
    runtime.devices.iter().for_each(Device::release_context);
    crate::ops::callback::abandon_all();
    crate::profiling::nvtx::device::forget_all();
}

/// Stops the backend; no thread uses it any more.
fn stop_driver(driver: Box<Driver>) {
    if driver.is_simulated() {
        #[cfg(any(test, feature = "host_faults"))]
        crate::base::host_faults::reached(crate::base::host_faults::Stage::Released);
        power_off();
    }
}

/// Was the driver started? Then a child that is forked from now on cannot use the library.
pub(crate) fn is_started() -> bool {
    CUDA_STARTED.load(Ordering::Acquire) || LIFECYCLE.has_driver()
}

/// In a forked child: is the library unusable? It is if the driver was started, or if a thread was
/// starting it.
pub(crate) fn is_lost_by_fork() -> bool {
    is_started() || LIFECYCLE.is_held()
}

/// In a forked child: invalidates what its thread has cached of the library.
pub(crate) fn forget_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

impl Runtime {
    /// The driver.
    #[inline]
    pub fn driver(&self) -> &'static Driver {
        self.driver
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
        let device = thread::block().device.load(Ordering::Relaxed) as i32;
        Ok(if (device as usize) < self.devices.len() { device } else { 0 })
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
