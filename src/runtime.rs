//! The process-wide state: which backend runs, lazy initialisation, shutdown, forks, and contexts.

use crate::device::{Device, MAX_DEVICES};
use crate::driver::sys::CUcontext;
use crate::driver::{CudaError, Driver, Table, code, cuda, inject, sim};
use crate::environment;
use crate::error::{Error, Result};
use crate::lock::{Held, Mutex};
use crate::memory::host::HostMemory;
use crate::rank::Rank;
use crate::text::Text;
use crate::thread::{self, Inside, try_box};
use std::ffi::{CStr, c_char};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

/// How a GPU is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// libcuda.
    Cuda,
    /// The simulated machine.
    Sim,
}

impl Backend {
    /// "cuda" or "sim".
    pub fn name(self) -> &'static CStr {
        match self {
            Backend::Cuda => c"cuda",
            Backend::Sim => c"sim",
        }
    }

    fn parse(name: &str, parameter: &'static str) -> Result<Backend> {
        match name {
            "cuda" => Ok(Backend::Cuda),
            "sim" => Ok(Backend::Sim),
            _ => Err(Error::BadText {
                name: parameter,
                value: Text::new(name),
                allowed: "use \"cuda\" or \"sim\"",
            }),
        }
    }
}

/// Everything that exists once the library is initialised.
pub struct Runtime {
    /// Devices by ordinal.
    pub devices: Vec<Device>,
    /// Pinned memory of the host.
    pub host: HostMemory,
    /// Counts initialisations, so that what threads remember of an earlier one is not believed.
    pub generation: u64,
    driver: &'static Driver,
}

/// What `tcuda_backend_select` said.
struct Selection {
    backend: Option<Backend>,
    options: String,
}

static SELECTION: Mutex<Selection> =
    Mutex::new(Rank::LEAF, Selection { backend: None, options: String::new() });
/// Serialises initialisation and shutdown; taken before every other lock.
static LIFE: Mutex<()> = Mutex::new(Rank::LIFE, ());
static DRIVER: AtomicPtr<Driver> = AtomicPtr::new(std::ptr::null_mut());
static RUNTIME: AtomicPtr<Runtime> = AtomicPtr::new(std::ptr::null_mut());
static GENERATION: AtomicU64 = AtomicU64::new(0);
/// Set while `shutdown` waits for others to leave: those must not wait for it in turn.
static CLOSING: AtomicBool = AtomicBool::new(false);
/// libcuda was started in this process: a child cannot use it, also after a shutdown.
static CUDA_STARTED: AtomicBool = AtomicBool::new(false);

/// Waits for LIFE, unless a shutdown is waiting for this very thread.
fn life() -> Result<Held<'static, ()>> {
    // Its own rank is left out: a line of log under LIFE may come back here, and is turned away.
    Rank::ARENA.before();
    loop {
        match LIFE.try_lock() {
            Some(held) => return Ok(held),
            None if CLOSING.load(Ordering::Acquire) => {
                return Err(Error::InvalidState(
                    "another thread shuts the library down or selects its backend; try again",
                ));
            }
            None => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}

/// The runtime, initialised now if it was not.
#[inline]
pub fn get(inside: &Inside) -> Result<&Runtime> {
    match existing(inside) {
        Some(runtime) => Ok(runtime),
        None => initialise(inside),
    }
}

/// The runtime, if it is initialised.
#[inline]
pub fn existing(_inside: &Inside) -> Option<&Runtime> {
    let runtime = RUNTIME.load(Ordering::Acquire);
    // SAFETY: shutdown frees it only after every thread that was inside has left.
    unsafe { runtime.as_ref() }
}

/// The driver in use, if one was started.
pub fn existing_driver(_inside: &Inside) -> Option<&Driver> {
    let driver = DRIVER.load(Ordering::Acquire);
    // SAFETY: as for the runtime.
    unsafe { driver.as_ref() }
}

#[cold]
fn initialise(inside: &Inside) -> Result<&Runtime> {
    let _life = life()?;
    if let Some(runtime) = existing(inside) {
        return Ok(runtime);
    }
    let (driver, count) = start_driver()?;
    if count == 0 {
        return Err(Error::NoDevice(
            "the driver is there, but no CUDA GPUs are available; check CUDA_VISIBLE_DEVICES, or \
             select the simulated machine with TCUDA_BACKEND=sim",
        ));
    }
    let generation = GENERATION.fetch_add(1, Ordering::Relaxed) + 1;
    let mut devices = Vec::new();
    devices
        .try_reserve_exact(count as usize)
        .map_err(|_| Error::OutOfHostMemory("the list of devices"))?;
    for ordinal in 0..count {
        devices.push(Device::new(driver, ordinal, generation)?);
    }
    let runtime = try_box(
        Runtime { devices, host: HostMemory::new(driver), generation, driver },
        "the runtime",
    )?;
    RUNTIME.store(Box::into_raw(runtime), Ordering::Release);
    get(inside)
}

/// Loads and starts the backend, and counts its devices. The caller holds LIFE.
fn start_driver() -> Result<(&'static Driver, i32)> {
    let mut driver = DRIVER.load(Ordering::Acquire);
    if driver.is_null() {
        take_faults()?;
        let new = match chosen_backend()? {
            Backend::Cuda => Driver::new("cuda", cuda::table().map_err(Error::NoDriver)?),
            Backend::Sim => Driver::new("sim", power_on()?),
        };
        let boxed = try_box(new, "the driver's table").inspect_err(|_| power_off())?;
        driver = Box::into_raw(boxed);
        DRIVER.store(driver, Ordering::Release);
    }
    // SAFETY: it was just made, and only shutdown, which needs LIFE, frees it.
    let driver: &'static Driver = unsafe { &*driver };
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

fn chosen_backend() -> Result<Backend> {
    let chosen = SELECTION.lock().backend;
    match chosen {
        Some(backend) => Ok(backend),
        None => match environment::text(c"TCUDA_BACKEND")? {
            "" => Ok(Backend::Cuda),
            name => Backend::parse(name, "TCUDA_BACKEND"),
        },
    }
}

/// Powers the simulated machine on.
fn power_on() -> Result<Table> {
    let selection = SELECTION.lock();
    let options = if selection.backend.is_some() && !selection.options.is_empty() {
        selection.options.as_str()
    } else {
        environment::text(c"TCUDA_SIM")?
    };
    #[cfg(any(test, feature = "host_faults"))]
    let _theirs = crate::host_faults::theirs();
    let table = sim::power_on(options).map_err(Error::Simulator)?;
    crate::fill::register_simulated();
    Ok(table)
}

/// Powers it off.
fn power_off() {
    #[cfg(any(test, feature = "host_faults"))]
    let _theirs = crate::host_faults::theirs();
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
    let _life = life()?;
    if existing(inside).is_some() {
        return Err(Error::InvalidState(
            "the backend cannot change once the library is initialised; call \
             tcuda_backend_select first, or tcuda_shutdown before it",
        ));
    }
    if backend == Backend::Cuda && !options.is_empty() {
        return Err(Error::BadText {
            name: "options",
            value: Text::new(options),
            allowed: "the backend \"cuda\" has none; pass NULL",
        });
    }
    if backend == Backend::Sim {
        #[cfg(any(test, feature = "host_faults"))]
        let _theirs = crate::host_faults::theirs();
        sim::Config::parse(options).map_err(Error::Simulator)?;
    }
    let mut copy = String::new();
    copy.try_reserve(options.len()).map_err(|_| Error::OutOfHostMemory("the options"))?;
    copy.push_str(options);
    stop_driver();
    *SELECTION.lock() = Selection { backend: Some(backend), options: copy };
    Ok(())
}

/// "cuda" or "sim": what runs, or would run.
pub fn backend_name(inside: &Inside) -> &'static CStr {
    let backend = match existing_driver(inside).map(Driver::name) {
        Some("sim") => Backend::Sim,
        Some(_) => Backend::Cuda,
        None => chosen_backend().unwrap_or(Backend::Cuda),
    };
    backend.name()
}

/// Devices that this process can use; without a driver 0. Creates no context.
pub fn device_count(inside: &Inside) -> Result<i32> {
    if let Some(runtime) = existing(inside) {
        return Ok(runtime.devices.len() as i32);
    }
    let _life = life()?;
    match start_driver() {
        Ok((_, count)) => Ok(count),
        Err(Error::NoDriver(_) | Error::NoDevice(_) | Error::Cuda(_)) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Waits for all work, frees everything, and forgets the backend's state. Gives the number of
/// objects that `destroy_handles` still found alive.
pub fn shutdown(inside: &Inside, destroy_handles: impl FnOnce(&Inside) -> usize) -> Result<usize> {
    if !inside.is_outermost() {
        return Err(Error::InvalidState("tcuda_shutdown cannot be called from a callback"));
    }
    let _life = life()?;
    let _closing = Closing::begin();
    let runtime = RUNTIME.swap(std::ptr::null_mut(), Ordering::AcqRel);
    thread::wait_for_others();
    let live = destroy_handles(inside);
    // Those who came meanwhile may have found a handle; whoever comes now finds none.
    thread::wait_for_others();
    // Objects wait for the threads that could see them; those have left.
    thread::drain();
    // Another thread may have begun to drop some of them; that needs the runtime as well.
    thread::wait_for_others();
    crate::stream::forget_current(thread::block());
    if !runtime.is_null() {
        // SAFETY: it came from Box::into_raw, and nobody is inside any more.
        let runtime = unsafe { Box::from_raw(runtime) };
        runtime.devices.iter().for_each(Device::close);
        runtime.host.close(&runtime.devices);
        #[cfg(any(test, feature = "host_faults"))]
        crate::host_faults::reached(crate::host_faults::Stage::Closed);
        runtime.devices.iter().for_each(Device::release_context);
        crate::callback::abandon_all();
    }
    inject::clear();
    stop_driver();
    Ok(live)
}

/// Says, while it lives, that LIFE's holder waits for other threads to leave the library.
struct Closing;

impl Closing {
    fn begin() -> Closing {
        CLOSING.store(true, Ordering::Release);
        Closing
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        CLOSING.store(false, Ordering::Release);
    }
}

/// Lets go of the backend. The caller holds LIFE and knows that no runtime exists.
fn stop_driver() {
    let driver = DRIVER.swap(std::ptr::null_mut(), Ordering::AcqRel);
    if driver.is_null() {
        return;
    }
    let _closing = Closing::begin();
    thread::wait_for_others();
    // SAFETY: it came from Box::into_raw, and nobody is inside any more.
    let driver = unsafe { Box::from_raw(driver) };
    if driver.name() == "sim" {
        #[cfg(any(test, feature = "host_faults"))]
        crate::host_faults::reached(crate::host_faults::Stage::Released);
        power_off();
    }
}

/// In the child of a fork: is the library unusable here? It is when the driver was started, or when
/// another thread was in the middle of starting it.
pub(crate) fn is_lost_by_fork() -> bool {
    CUDA_STARTED.load(Ordering::Acquire)
        || !DRIVER.load(Ordering::Acquire).is_null()
        || LIFE.try_lock().is_none()
        || SELECTION.try_lock().is_none()
}

impl Runtime {
    /// The driver.
    #[inline]
    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// A device by ordinal; -1: the thread's current one.
    #[inline]
    pub fn device(&self, ordinal: i32) -> Result<&Device> {
        let ordinal =
            if ordinal == crate::device::CURRENT { self.current_device()? } else { ordinal };
        self.devices
            .get(ordinal as usize)
            .ok_or(Error::InvalidDevice { device: ordinal, count: self.devices.len() as i32 })
    }

    /// The device of the thread's current context when that is a primary one, else the one that this
    /// thread set.
    #[inline]
    pub fn current_device(&self) -> Result<i32> {
        if self.devices.len() == 1 {
            return Ok(0);
        }
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

/// The sentence about a failed driver call.
pub struct CudaErrorText<'a>(pub &'a CudaError);

impl fmt::Display for CudaErrorText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CudaError { call, code } = *self.0;
        let (name, text) = crate::driver::describe(code);
        write!(f, "{call} failed: {name} ({code}): {text}")?;
        if self.0.is_sticky() {
            write!(f, "; the device's context is unusable from now on: end the process")?;
        }
        Ok(())
    }
}

/// Reads a NUL-terminated buffer that the driver wrote.
pub fn text_of(buffer: &[c_char]) -> &str {
    let end = buffer.iter().position(|byte| *byte == 0).unwrap_or(buffer.len());
    // SAFETY: c_char and u8 have the same layout; the range is inside the buffer.
    let bytes = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), end) };
    std::str::from_utf8(bytes).unwrap_or("")
}
