//! Puts the layers together: which backend runs, initialisation at the first call, shutdown, and
//! the hooks of lower layers.

pub(crate) mod pointer_kind;
pub(crate) mod selection;
mod threads;

use crate::base::error::{Error, Result};
use crate::base::lifecycle::Holder;
use crate::base::text::Text;
use crate::base::thread::{self, Inside, try_box};
use crate::base::{environment, stderr, waiting};
use crate::collectives::path;
use crate::driver::{Driver, code, cuda, inject, sim};
use crate::file::Files;
use crate::gpu::device::{Device, MAX_DEVICES};
use crate::gpu::external_registry::{self, MarkStreams};
use crate::gpu::gpus::{self, Gpus};
use crate::graph::hooks;
use crate::graph::unreleased::{self, Unreleased};
use crate::interop::torch::Pools;
use crate::ipc::Ipc;
use crate::jit::store::Store;
use crate::memory;
use crate::memory::DeviceMemory;
use crate::memory::config::settings::{self, Settings};
use crate::memory::device::hooks::Hooks;
use crate::memory::device::{backend, uncached};
use crate::memory::fallback::observers;
use crate::memory::pinned::HostMemory;
use crate::memory::pools::active_captures::Captures;
use crate::memory::pools::stream_routes;
use crate::memory::trace::{history, listeners};
use crate::observe::flags::{self, Watcher};
use crate::ops::kernels::Kernels;
use crate::profiling::nvtx::own;
use crate::random::generator::DefaultGenerator;
use crate::random::{self, pending};
use crate::runtime::selection::{Backend, Selection};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// libcuda was started in this process: a forked child cannot use it, also after a shutdown.
static CUDA_STARTED: AtomicBool = AtomicBool::new(false);

/// Enters the library for a call of the host.
#[inline(always)]
pub fn enter() -> Result<Inside> {
    match thread::enter_fast() {
        Some(inside) => Ok(inside),
        None => threads::enter_slow(),
    }
}

/// The GPUs; initialises the library if it is not initialised.
#[inline(always)]
pub fn get(inside: &Inside) -> Result<&Gpus> {
    match gpus::existing(inside) {
        Some(gpus) => Ok(gpus),
        None => initialise(inside),
    }
}

#[cold]
fn initialise(inside: &Inside) -> Result<&Gpus> {
    threads::install();
    let _uncancelled = waiting::uncancelled();
    let lifecycle = gpus::lifecycle();
    let held = lifecycle.hold()?;
    if let Some(gpus) = gpus::existing(inside) {
        return Ok(gpus);
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
    memory::install(&MEMORY_HOOKS);
    external_registry::MARK_STREAMS.install(Some(&MARK_STREAMS));
    let mut gpus = try_box(Gpus::new(driver, count, gpus::next_generation())?, "the list of GPUs")?;
    add_subsystems(&mut gpus, &settings)?;
    pending::apply(&gpus);
    memory::choose_settings(settings);
    settings.warn();
    lifecycle.begin(&held, gpus);
    flags::end(Watcher::Forks);
    own::set(is_annotated);
    crate::sanitizer::begin(is_watched);
    get(inside)
}

/// How the search for streams without references finds those that memory refers to.
static MARK_STREAMS: MarkStreams = |gpus, marker| {
    for device in &gpus.devices {
        device.memory().mark_streams(marker);
    }
    gpus.pinned().mark_streams(marker);
};

/// What the allocator calls of the layers above it.
static MEMORY_HOOKS: Hooks = Hooks {
    release_unused: |gpus| {
        unreleased::retry(gpus);
        gpus.ipc().collect(gpus);
        gpus.files().unregister_freed(gpus);
    },
    release_exports: |gpus| {
        gpus.files().unregister_freed(gpus);
        let needs_collection = gpus.ipc().needs_collection();
        if needs_collection {
            gpus.ipc().try_collect(gpus);
        }
        needs_collection
    },
    exported_block_freed: |gpus, address| gpus.ipc().freed_by_host(address),
    remove_exported_block: |gpus, address| gpus.ipc().remove_freed(address),
};

/// Gives the devices the state of the layers above `gpu`. Not inlined, because it uses much stack.
#[inline(never)]
fn add_subsystems(gpus: &mut Gpus, settings: &Settings) -> Result<()> {
    let driver = gpus.driver();
    for device in &mut gpus.devices {
        let memory = DeviceMemory::new(device, settings)?;
        let generator = DefaultGenerator::new(device.ordinal())?;
        let subsystems = &mut device.subsystems;
        subsystems.set(try_box(memory, "the memory of a device")?);
        subsystems.set(try_box(generator, "a generator")?);
        subsystems.set(try_box(Kernels::new(driver), "the kernels of a device")?);
        subsystems.set(try_box(random::loaded::Loaded::new(driver), "random numbers")?);
        subsystems.set(try_box(path::Loaded::new(driver), "collective calls")?);
        subsystems.set(try_box(Store::new(driver), "compiled kernels")?);
    }
    let host = HostMemory::new(driver, gpus.generation);
    host.set_settings(&settings.host)?;
    let subsystems = &mut gpus.subsystems;
    subsystems.set(try_box(host, "pinned memory")?);
    subsystems.set(try_box(Pools::new(), "the pools of PyTorch")?);
    subsystems.set(try_box(Captures::new(), "the captures")?);
    subsystems.set(try_box(Unreleased::new(), "the ends of graphs")?);
    subsystems.set(try_box(Ipc::new()?, "exports and imports")?);
    subsystems.set(try_box(Files::new(), "the files")?);
    Ok(())
}

/// Changes the allocator's settings by a text, now and for later initialisations; on failure
/// nothing changes.
pub fn configure(inside: &Inside, text: &str) -> Result<()> {
    // Held, so that no initialisation comes between the two.
    let _held = gpus::lifecycle().hold()?;
    let before = settings::current()?;
    let settings = before.changed_by(text, "config")?;
    let gpus = gpus::existing(inside);
    let devices = gpus.map_or(&[][..], |gpus| &gpus.devices);
    if settings.backend != before.backend {
        backend::require_fresh(devices)?;
    }
    if let Some(gpus) = gpus {
        gpus.pinned().set_settings(&settings.host)?;
    }
    memory::choose_settings(settings);
    let fraction = settings.per_process_memory_fraction;
    for device in devices {
        device.memory().configure(&settings);
        // Only a new value: otherwise the value of tcuda_memory_fraction_set stays.
        if fraction != before.per_process_memory_fraction {
            device.memory().set_fraction(fraction)?;
        }
    }
    settings.warn();
    Ok(())
}

/// Loads and starts the backend, and counts its devices.
fn start_driver(held: &Holder<'_>) -> Result<(&'static Driver, i32)> {
    if !gpus::lifecycle().has_driver() {
        take_faults()?;
        let new = match selection::backend()? {
            Backend::Cuda => Driver::new(None, cuda::table().map_err(Error::NoDriver)?),
            Backend::Sim => power_on()?,
        };
        let boxed = try_box(new, "the driver's table").inspect_err(|_| sim::power_off())?;
        gpus::lifecycle().begin_driver(held, boxed);
    }
    // SAFETY: the lock is held, and the GPUs, which use it, end before it.
    let Some(driver) = (unsafe { gpus::lifecycle().driver() }) else {
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

/// Powers the simulated machine on.
fn power_on() -> Result<Driver> {
    // The library is opened before the options are locked.
    sim::interface().map_err(Error::Simulator)?;
    selection::with_options(|options| sim::power_on(options).map_err(Error::Simulator))
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
    let held = gpus::lifecycle().hold()?;
    if gpus::existing(inside).is_some() {
        return Err(Error::InvalidState(
            "the backend cannot change once the library is initialised; call \
             tcuda_backend_select first, or tcuda_shutdown before it",
        ));
    }
    let selection = Selection::new(backend, options)?;
    gpus::lifecycle().end_driver(&held, thread::wait_for_others, stop_driver);
    selection::choose(selection);
    Ok(())
}

/// "cuda" or "sim": the backend that runs, or would run.
pub fn backend_name(inside: &Inside) -> &'static CStr {
    match gpus::existing_driver(inside).map(Driver::name) {
        Some("sim") => Backend::Sim.name(),
        Some(_) => Backend::Cuda.name(),
        None => selection::name(),
    }
}

/// The simulator's functions, if it runs, or would run.
pub fn simulated(inside: &Inside) -> Result<Option<&'static sim::Interface>> {
    match gpus::existing_driver(inside) {
        Some(driver) => Ok(driver.simulated()),
        None if selection::backend()? == Backend::Sim => {
            sim::interface().map(Some).map_err(Error::Simulator)
        }
        None => Ok(None),
    }
}

/// Does the simulated machine run, or would it?
pub fn is_simulated(inside: &Inside) -> Result<bool> {
    match gpus::existing_driver(inside) {
        Some(driver) => Ok(driver.is_simulated()),
        None => Ok(selection::backend()? == Backend::Sim),
    }
}

/// Number of devices that this process can use; 0 without a driver. Creates no context.
pub fn device_count(inside: &Inside) -> Result<i32> {
    if let Some(gpus) = gpus::existing(inside) {
        return Ok(gpus.devices.len() as i32);
    }
    let held = gpus::lifecycle().hold()?;
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
    let held = gpus::lifecycle().hold()?;
    gpus::next_generation();
    if gpus::existing(inside).is_some() {
        flags::begin(Watcher::Forks);
    }
    history::stop();
    crate::sanitizer::stop();
    own::set(false);
    let destroy = || {
        observers::detach_all();
        listeners::detach_all();
        stream_routes::end_all();
        hooks::detach_all();
        destroy_handles(inside)
    };
    let others = thread::wait_for_others;
    // Marked as waiting, so that objects that other threads make meanwhile are not kept for it.
    let collect = || {
        let _waiting = waiting::begin();
        thread::collect();
    };
    let live = gpus::lifecycle().end(&held, others, destroy, collect, close, |driver| {
        inject::clear();
        stop_driver(driver);
    });
    inject::forget();
    memory::forget_settings();
    backend::forget();
    crate::driver::sync_debug::forget();
    crate::gpu::stray_contexts::forget();
    history::forget();
    crate::sanitizer::forget();
    crate::gpu::current::forget(thread::block());
    Ok(live)
}

/// Frees what the GPUs hold; no thread uses them any more.
fn close(gpus: &Gpus) {
    // All devices settle before any of them frees memory, which another one may still use.
    gpus.devices.iter().for_each(Device::settle);
    gpus.ipc().end(gpus);
    gpus.files().close(gpus);
    crate::interop::math_handles::close(gpus);
    uncached::close(gpus);
    gpus.devices.iter().for_each(close_device);
    crate::gpu::green_context::close(gpus.driver());
    gpus.pinned().close(&gpus.devices);
    #[cfg(any(test, feature = "host_faults"))]
    crate::base::host_faults::reached(crate::base::host_faults::Stage::Closed);
    gpus.devices.iter().for_each(Device::release_context);
    crate::ops::callback::abandon_all();
    crate::ops::stream_range::forget_all();
}

/// Frees what a device holds, once every device has settled. The library's records of it are
/// dropped even if the driver fails.
pub(crate) fn close_device(device: &Device) {
    let context = if device.has_context() { device.enter().ok() } else { None };
    device.memory().close(device);
    device.kernels().close();
    device.random().close();
    device.comm().close();
    device.compiled().close();
    device.close();
    drop(context);
}

/// Stops the backend; no thread uses it any more.
fn stop_driver(driver: Box<Driver>) {
    if driver.is_simulated() {
        #[cfg(any(test, feature = "host_faults"))]
        crate::base::host_faults::reached(crate::base::host_faults::Stage::Released);
        sim::power_off();
    }
}

/// Was the driver started? Then a child that is forked from now on cannot use the library.
pub(crate) fn is_started() -> bool {
    CUDA_STARTED.load(Ordering::Acquire) || gpus::lifecycle().has_driver()
}
