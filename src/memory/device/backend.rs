//! What serves the requests of the process: the cache, the driver's plain memory without a cache,
//! the driver's pools, or an allocator of another library.

use crate::base::environment;
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::thread::Inside;
use crate::gpu::device::Device;
use crate::gpu::gpus::{self, Gpus};
use crate::memory::backing::pluggable::Pluggable;
use crate::memory::config::settings::{self, Backend, Settings};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// What serves requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Server {
    /// The arenas of `memory`.
    Cache = 0,
    /// cuMemAlloc and cuMemFree, each time.
    Driver = 1,
    /// The driver's memory pools.
    DriverPool = 2,
    /// An allocator of another library.
    Pluggable = 3,
}

impl Server {
    /// The variant of a number.
    pub(in crate::memory) fn of(number: u8) -> Server {
        match number {
            1 => Server::Driver,
            2 => Server::DriverPool,
            3 => Server::Pluggable,
            _ => Server::Cache,
        }
    }
}

/// Did the host leave caching on?
static CACHING: AtomicBool = AtomicBool::new(true);
/// Did the environment turn it off when the library was initialised?
static FORBIDDEN: AtomicBool = AtomicBool::new(false);
/// The allocator of another library from which all memory comes.
static CURRENT: Mutex<Option<Pluggable>> = Mutex::new(Rank::LEAF, None);

/// Each of these variables turns caching off if it is exactly "1", as in PyTorch.
const VARIABLES: [&CStr; 2] = [c"TCUDA_NO_MEMORY_CACHING", c"PYTORCH_NO_CUDA_MEMORY_CACHING"];

fn is_forbidden() -> bool {
    VARIABLES.iter().any(|variable| environment::value(variable) == Some(c"1"))
}

/// Reads the environment, at initialisation.
pub(crate) fn begin() {
    FORBIDDEN.store(is_forbidden(), Ordering::Relaxed);
}

/// What serves with these settings.
pub fn server(settings: &Settings) -> Server {
    match settings.backend {
        _ if CURRENT.lock().is_some() => Server::Pluggable,
        Backend::CudaMallocAsync => Server::DriverPool,
        Backend::Native
            if CACHING.load(Ordering::Relaxed) && !FORBIDDEN.load(Ordering::Relaxed) =>
        {
            Server::Cache
        }
        Backend::Native => Server::Driver,
    }
}

/// Is freed memory cached, if the native backend serves?
pub fn is_caching(initialised: bool) -> bool {
    let forbidden = if initialised { FORBIDDEN.load(Ordering::Relaxed) } else { is_forbidden() };
    CACHING.load(Ordering::Relaxed) && !forbidden
}

/// The allocator of another library that serves, if there is one.
pub fn pluggable() -> Option<Pluggable> {
    CURRENT.lock().as_ref().map(Pluggable::share)
}

/// Sets the allocator of another library, or none. The caller then configures the devices.
fn set_pluggable(allocator: Option<Pluggable>) {
    let mut current = CURRENT.lock();
    let old = std::mem::replace(&mut *current, allocator);
    drop(current);
    // This may close its library, so no lock is held.
    drop(old);
}

/// An error if memory was allocated already.
pub(crate) fn require_fresh(devices: &[Device]) -> Result<()> {
    if devices.iter().any(|device| device.memory().is_used()) {
        return Err(Error::InvalidState(
            "the allocator's backend cannot change after the first allocation; choose it before, \
             or call tcuda_shutdown",
        ));
    }
    Ok(())
}

/// Changes the allocator that serves requests, while no thread can initialise or shut down; with
/// `is_fresh` only before the first allocation.
fn change_server(inside: &Inside, is_fresh: bool, change: impl FnOnce()) -> Result<()> {
    let _held = gpus::hold()?;
    let devices = gpus::existing(inside).map_or(&[][..], |gpus| &gpus.devices);
    if is_fresh {
        require_fresh(devices)?;
    }
    let settings = settings::current()?;
    change();
    devices.iter().for_each(|device| device.memory().configure(&settings));
    Ok(())
}

/// Makes all memory come from an allocator of another library, or from tcuda again if there is
/// none, with the GPUs that it will serve. Called before the first allocation.
pub fn choose(inside: &Inside, allocator: Option<(&Pluggable, &Gpus)>) -> Result<()> {
    let current = pluggable();
    if let (Some(current), Some((new, _))) = (&current, allocator)
        && current.is(new)
    {
        return Ok(());
    }
    if let Some((new, gpus)) = allocator {
        require_fresh(&gpus.devices)?;
        // No lock is held: the allocator may call tcuda.
        new.begin_use();
        new.init(gpus.devices.len())?;
        for device in &gpus.devices {
            let fraction = device.memory().fraction();
            if fraction != 1.0 {
                new.set_fraction(fraction, device.ordinal())?;
            }
        }
    }
    change_server(inside, true, || set_pluggable(allocator.map(|(new, _)| new.share())))
}

/// Turns caching on or off, for allocations from now on.
pub fn enable_caching(inside: &Inside, enabled: bool) -> Result<()> {
    change_server(inside, false, || CACHING.store(enabled, Ordering::Relaxed))
}

/// PyTorch's name of the backend that serves with these settings.
pub fn name(settings: &Settings) -> &'static CStr {
    let is_pluggable = CURRENT.lock().is_some();
    match settings.backend {
        _ if is_pluggable => c"pluggable",
        Backend::CudaMallocAsync => c"cudaMallocAsync",
        Backend::Native => c"native",
    }
}

/// Resets all choices, at a shutdown.
pub(crate) fn forget() {
    set_pluggable(None);
    CACHING.store(true, Ordering::Relaxed);
    FORBIDDEN.store(false, Ordering::Relaxed);
}
