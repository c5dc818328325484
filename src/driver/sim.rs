//! The simulated GPU: opens `libtcuda_sim.so`, whose interface beside the driver API powers a
//! machine on and off. Its driver calls fill the same [`Table`] as libcuda's.

use super::cuda::with_nul;
use super::library::{Library, Spec, Text};
use super::telemetry::Rates;
use super::{Driver, NAMES, Table, inject};
pub use crate::base::error::SimulatorError;
use crate::base::log::Level;
use crate::base::once::Once;
use crate::base::progress;
use crate::base::rank::Rank;
use crate::base::stderr;
use crate::observe::turn;
use std::ffi::{CStr, c_char, c_int, c_void};

static LIBRARY: Spec = Spec {
    title: "the simulator",
    variable: c"TCUDA_SIM_PATH",
    beside: Some(c"libtcuda_sim.so"),
    names: &[c"libtcuda_sim.so"],
    advice: "put it into the folder of libtcuda.so, or of the executable that contains tcuda",
};

/// The version of the interface; `sim/src/driver/interface.rs` describes it.
const VERSION: u32 = 1;

/// Results of the interface's functions.
const OK: c_int = 0;
const NO_RESOURCES: c_int = 2;

/// A text for the interface.
#[derive(Clone, Copy)]
#[repr(C)]
struct Argument {
    bytes: *const u8,
    length: usize,
}

/// Room for a message of the interface.
#[derive(Clone, Copy)]
#[repr(C)]
struct Message {
    text: *mut c_char,
    room: usize,
}

/// What the simulator calls.
#[repr(C)]
struct Hooks {
    bytes: usize,
    refused: Option<unsafe extern "C" fn(*const c_char) -> u64>,
    log: Option<unsafe extern "C" fn(*const c_char)>,
    turn: Option<unsafe extern "C" fn(u64)>,
    pass: Option<unsafe extern "C" fn(u64)>,
}

#[derive(Default)]
#[repr(C)]
struct Started {
    is_repeatable: c_int,
    keeps_turns: c_int,
}

/// The functions of the simulator.
#[repr(C)]
pub struct Interface {
    bytes: usize,
    check: unsafe extern "C" fn(Argument, Message) -> c_int,
    power_on: unsafe extern "C" fn(Argument, *const Hooks, *mut Started, Message) -> c_int,
    power_off: extern "C" fn(),
    live_objects: unsafe extern "C" fn(*mut LiveObjects),
    rates: extern "C" fn(c_int) -> Rates,
    call: extern "C" fn(),
    yield_turn: extern "C" fn() -> c_int,
    /// Finds a driver function by its name or symbol; NULL if there is none.
    pub function: unsafe extern "C" fn(*const c_char) -> *mut c_void,
}

/// Counts of the objects of a simulated machine that were created and not destroyed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs, reason = "CUDA's own kinds of objects")]
pub struct LiveObjects {
    /// Retain counts of the primary contexts, added up.
    pub contexts: usize,
    /// Without the default ones.
    pub streams: usize,
    pub events: usize,
    /// By `cuMemAlloc`.
    pub allocations: usize,
    pub pool_blocks: usize,
    /// Of physical memory.
    pub handles: usize,
    pub mappings: usize,
    pub reservations: usize,
    /// Without the default ones.
    pub pools: usize,
    pub modules: usize,
    /// Executable ones, too.
    pub graphs: usize,
    /// Pinned ranges, allocated or registered.
    pub host_allocations: usize,
    /// Threads of the machine.
    pub workers: usize,
}

static INTERFACE: Once<&'static Interface> = Once::new(Rank::ONCE);

/// The simulator's functions; opens the library at the first call.
pub fn interface() -> Result<&'static Interface, SimulatorError> {
    INTERFACE
        .get_or_try_init(|| {
            let library = Library::open(&LIBRARY)?;
            let get = library.symbol(c"tcuda_sim_interface");
            if get.is_null() {
                return Err(SimulatorError::NotASimulator);
            }
            // SAFETY: the simulator's symbol of this name has this signature.
            let get = unsafe {
                std::mem::transmute::<*mut c_void, extern "C" fn(u32) -> *const Interface>(get)
            };
            // SAFETY: NULL, or a constant of a library that is never unloaded.
            let interface = unsafe { get(VERSION).as_ref() };
            let whole = interface.filter(|found| found.bytes >= size_of::<Interface>());
            whole.ok_or(SimulatorError::OtherVersion)
        })
        .copied()
}

/// Runs a function of the interface that takes options.
fn with(
    options: &str,
    body: impl FnOnce(&'static Interface, Argument, Message) -> c_int,
) -> Result<(), SimulatorError> {
    let mut buffer = [0u8; 512];
    let interface = interface()?;
    let argument = Argument { bytes: options.as_ptr(), length: options.len() };
    let message = Message { text: buffer.as_mut_ptr().cast(), room: buffer.len() };
    let outcome = body(interface, argument, message);
    let text = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
    match outcome {
        OK => Ok(()),
        NO_RESOURCES => Err(SimulatorError::NoResources(Text::of(text))),
        _ => Err(SimulatorError::Options(Text::of(text))),
    }
}

/// Checks the options of a machine.
pub fn check(options: &str) -> Result<(), SimulatorError> {
    with(options, |interface, options, message| {
        // SAFETY: texts with their lengths.
        unsafe { (interface.check)(options, message) }
    })
}

/// Powers a machine on with options such as "devices=4,memory=16GiB,schedule=threads".
pub fn power_on(options: &str) -> Result<Driver, SimulatorError> {
    let mut started = Started::default();
    let hooks = Hooks {
        bytes: size_of::<Hooks>(),
        refused: Some(refused),
        log: Some(log),
        turn: None,
        #[cfg(test)]
        pass: Some(pass),
        #[cfg(not(test))]
        pass: None,
    };
    with(options, |interface, options, message| {
        // SAFETY: texts with their lengths, a structure of this version, and room for the result.
        unsafe { (interface.power_on)(options, &hooks, &mut started, message) }
    })?;
    progress::set_repeatable(started.is_repeatable != 0);
    turn::install((started.keeps_turns != 0).then_some(&SCHEDULER));
    driver()
}

/// Finishes all work and frees everything. Afterwards calls fail until [`power_on`]. A machine that
/// other programs of the process use stays on.
pub fn power_off() {
    let Some(interface) = INTERFACE.get() else { return };
    turn::install(None);
    progress::set_repeatable(false);
    (interface.power_off)();
}

/// A driver over the machine that is on.
pub fn driver() -> Result<Driver, SimulatorError> {
    Ok(Driver::new(Some(interface()?), table()?))
}

/// The calls of the simulated driver.
pub fn table() -> Result<Table, SimulatorError> {
    let interface = interface()?;
    let find = |symbol: &CStr| {
        // SAFETY: NUL-terminated.
        unsafe { (interface.function)(symbol.as_ptr()) }
    };
    Ok(Table::fill(|_, symbol, _| with_nul(symbol, find)))
}

/// Counts the live objects; all zero when no machine is on.
pub fn live_objects() -> LiveObjects {
    let mut live = LiveObjects::default();
    if let Some(interface) = INTERFACE.get() {
        // SAFETY: room for the result.
        unsafe { (interface.live_objects)(&mut live) };
    }
    live
}

/// Utilisation of a device over the last second; 0 when no machine is on.
pub fn rates(device: i32) -> Rates {
    INTERFACE.get().map_or(Rates::default(), |interface| (interface.rates)(device))
}

/// The scheduler of threads while an adversarial machine is on.
static SCHEDULER: turn::Scheduler = turn::Scheduler { call, yield_turn };

fn call() {
    if let Some(interface) = INTERFACE.get() {
        (interface.call)();
    }
}

fn yield_turn() -> bool {
    INTERFACE.get().is_some_and(|interface| (interface.yield_turn)() != 0)
}

/// Number of calls of a driver function that injected faults refused.
unsafe extern "C" fn refused(name: *const c_char) -> u64 {
    // SAFETY: the simulator passes a NUL-terminated name.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let call = NAMES.iter().position(|known| known.as_bytes() == name);
    call.map_or(0, inject::refused_at)
}

/// Writes a line about a failed kernel or module to stderr, if TCUDA_LOG asks for errors. The
/// host's log callback does not get it: kernels run on threads that are not inside the library.
unsafe extern "C" fn log(line: *const c_char) {
    // SAFETY: the simulator passes a NUL-terminated text.
    let line = unsafe { CStr::from_ptr(line) };
    if stderr::takes(Level::Error as i32, 0) {
        stderr::log(Level::Error as i32, format_args!("{}", line.to_str().unwrap_or_default()));
    }
}

/// Passes the time of a query on the clock that tests can replace.
#[cfg(test)]
unsafe extern "C" fn pass(nanoseconds: u64) {
    let began = progress::now();
    while progress::now().wrapping_sub(began) < nanoseconds * progress::MOMENT / 1000 {}
}

/// Serialises tests, since there is one machine. Powers off a machine that an earlier test left on.
#[cfg(test)]
pub(crate) fn test_lock() -> std::sync::MutexGuard<'static, ()> {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let guard = LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    power_off();
    guard
}
