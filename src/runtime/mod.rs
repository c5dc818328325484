//! The process-wide state: which backend runs, lazy initialisation, shutdown, forks, and contexts.

pub(crate) mod selection;

use crate::base::environment;
use crate::base::error::{Error, Result};
use crate::base::lifecycle::{Holder, Life};
use crate::base::place::{try_box_at, write_fields};
use crate::base::stderr;
use crate::base::text::Text;
use crate::base::thread::{self, Inside, try_box};
use crate::base::waiting;
use crate::driver::sys::CUcontext;
use crate::driver::{Driver, Table, code, cuda, inject};
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
    /// Pinned memory of the host.
    pub host: HostMemory,
    /// Private pools that PyTorch named.
    pub torch: Pools,
    /// Captures of ours.
    pub captures: Captures,
    /// What is shared with other processes.
    pub ipc: Ipc,
    /// Counts initialisations, so that what threads remember of an earlier one is not believed.
    pub generation: u64,
    driver: &'static Driver,
}

static LIFE: Life<Runtime, Driver> = Life::new();
/// Another number in each life of the library, and between two.
static GENERATION: AtomicU64 = AtomicU64::new(1);
/// libcuda was started in this process: a child cannot use it, also after a shutdown.
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
    unsafe { LIFE.runtime() }
}

/// Is this the life of the library to which what a thread knows of it belongs? Says nothing of a
/// moment later to who is not inside.
#[inline(always)]
pub fn is_present(generation: u64) -> bool {
    GENERATION.load(Ordering::Relaxed) == generation
}

/// The driver in use, if one was started.
pub fn existing_driver(_inside: &Inside) -> Option<&Driver> {
    // SAFETY: this thread is inside for as long.
    unsafe { LIFE.driver() }
}

#[cold]
fn initialise(inside: &Inside) -> Result<&Runtime> {
    let _uncancelled = waiting::uncancelled();
    let held = LIFE.hold()?;
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
    // SAFETY: that writes all fields.
    let runtime = unsafe { try_box_at("the runtime", write) }?;
    runtime.host.set_settings(&settings.host);
    pending::apply(&runtime);
    settings::choose(settings);
    settings.warn();
    LIFE.begin(&held, runtime);
    flags::end(Watcher::Forks);
    own::set(is_annotated);
    crate::sanitizer::begin(is_watched);
    get(inside)
}

/// The runtime, if it is initialised; else `later` is called, with nobody initialising meanwhile.
pub fn existing_or(
    inside: &Inside,
    later: impl FnOnce() -> Result<()>,
) -> Result<Option<&Runtime>> {
    if let Some(runtime) = existing(inside) {
        return Ok(Some(runtime));
    }
    let _held = LIFE.hold()?;
    match existing(inside) {
        Some(runtime) => Ok(Some(runtime)),
        None => later().map(|()| None),
    }
}

/// Changes the allocator's settings by a text, for now and for later; on failure nothing changes.
pub fn configure(inside: &Inside, text: &str) -> Result<()> {
    // Held, so that no initialisation comes between the two.
    let _held = LIFE.hold()?;
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
        // Only a new value: what tcuda_memory_fraction_set said holds beside other settings.
        if fraction != before.per_process_memory_fraction {
            device.memory.set_fraction(fraction)?;
        }
    }
    settings.warn();
    Ok(())
}

/// An error once memory was allocated.
pub(crate) fn require_fresh(devices: &[Device]) -> Result<()> {
    if devices.iter().any(|device| device.memory.is_used()) {
        return Err(Error::InvalidState(
            "the allocator's backend cannot change after the first allocation; choose it before, \
             or call tcuda_shutdown",
        ));
    }
    Ok(())
}

/// Changes who serves requests, with nobody initialising or shutting down meanwhile; `is_fresh`: only
/// before the first allocation.
pub(crate) fn change_server(inside: &Inside, is_fresh: bool, change: impl FnOnce()) -> Result<()> {
    let _held = LIFE.hold()?;
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
    if !LIFE.has_driver() {
        take_faults()?;
        let new = match selection::backend()? {
            Backend::Cuda => Driver::new("cuda", cuda::table().map_err(Error::NoDriver)?),
            Backend::Sim => Driver::new("sim", power_on()?),
        };
        let boxed = try_box(new, "the driver's table").inspect_err(|_| power_off())?;
        LIFE.begin_driver(held, boxed);
    }
    // SAFETY: the lock is held, and the runtime that keeps it ends before it.
    let Some(driver) = (unsafe { LIFE.driver() }) else {
        return Err(Error::Internal(Text::new("a driver that was not begun")));
    };
    if driver.name() == "cuda" {
        CUDA_STARTED.store(true, Ordering::Release);
    }
    let count = count_devices(driver)?.min(MAX_DEVICES as i32);
    Ok((driver, count))
}

/// Starts the driver proper; no device is 0, not an error.
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

/// Powers the simulated machine on.
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

/// Powers it off.
fn power_off() {
    #[cfg(any(test, feature = "host_faults"))]
    let _in_driver = crate::base::host_faults::in_driver();
    sim::power_off();
}

/// Takes the faults that the environment asks for, unless others are set.
fn take_faults() -> Result<()> {
    let faults = environment::text(c"TCUDA_FAULTS")?;
    if !faults.is_empty() && inject::is_empty() {
        inject::replace(&inject::parse(faults).map_err(Error::Faults)?);
    }
    Ok(())
}

/// Chooses the backend; before initialisation only.
pub fn select_backend(inside: &Inside, name: &str, options: &str) -> Result<()> {
    let backend = Backend::parse(name, "name")?;
    let held = LIFE.hold()?;
    if existing(inside).is_some() {
        return Err(Error::InvalidState(
            "the backend cannot change once the library is initialised; call \
             tcuda_backend_select first, or tcuda_shutdown before it",
        ));
    }
    let selection = Selection::new(backend, options)?;
    LIFE.end_driver(&held, thread::wait_for_others, stop_driver);
    selection::choose(selection);
    Ok(())
}

/// "cuda" or "sim": what runs, or would run.
pub fn backend_name(inside: &Inside) -> &'static CStr {
    match existing_driver(inside).map(Driver::name) {
        Some("sim") => Backend::Sim.name(),
        Some(_) => Backend::Cuda.name(),
        None => selection::name(),
    }
}

/// Is it the simulated machine that runs, or would run?
pub fn is_simulated(inside: &Inside) -> Result<bool> {
    match existing_driver(inside) {
        Some(driver) => Ok(driver.is_simulated()),
        None => Ok(selection::backend()? == Backend::Sim),
    }
}

/// Devices that this process can use; without a driver 0. Creates no context.
pub fn device_count(inside: &Inside) -> Result<i32> {
    if let Some(runtime) = existing(inside) {
        return Ok(runtime.devices.len() as i32);
    }
    let held = LIFE.hold()?;
    match start_driver(&held) {
        Ok((_, count)) => Ok(count),
        Err(Error::NoDriver(_) | Error::NoDevice(_) | Error::Cuda(_)) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Waits for all work, frees everything, and forgets the backend's state. Gives the number of
/// objects that `destroy_handles` still found alive.
pub fn shutdown(inside: &Inside, destroy_handles: impl FnOnce(&Inside) -> usize) -> Result<usize> {
    if !inside.is_outermost() || thread::is_in_callback() {
        return Err(Error::InvalidState("tcuda_shutdown cannot be called from a callback"));
    }
    let held = LIFE.hold()?;
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
    // It finds nothing that others make meanwhile, which would be kept for it.
    let collect = || {
        let _waiting = waiting::begin();
        thread::collect();
    };
    let live = LIFE.end(&held, others, destroy, collect, close, |driver| {
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

/// Gives back what the runtime holds; nobody uses it any more.
fn close(runtime: &Runtime) {
    // All of them before any gives memory back: another device may be about to use it.
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

/// Lets go of the backend; nobody uses it any more.
fn stop_driver(driver: Box<Driver>) {
    if driver.is_simulated() {
        #[cfg(any(test, feature = "host_faults"))]
        crate::base::host_faults::reached(crate::base::host_faults::Stage::Released);
        power_off();
    }
}

/// Was the driver started? A child that is forked then cannot use the library.
pub(crate) fn is_started() -> bool {
    CUDA_STARTED.load(Ordering::Acquire) || LIFE.has_driver()
}

/// In the child of a fork: is the library unusable here? It is when the driver was started, or when a
/// thread was in the middle of starting it.
pub(crate) fn is_lost_by_fork() -> bool {
    is_started() || LIFE.is_held()
}

/// In the child of a fork: what its thread knows of the library belongs to another life of it.
pub(crate) fn forget_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

impl Runtime {
    /// The driver.
    #[inline]
    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// The device of the thread's current context when that is a primary one, else the one that this
    /// thread set.
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
