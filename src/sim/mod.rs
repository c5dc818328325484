//! The simulated machine: fills the same table of driver calls without a GPU.
//!
//! One machine is on at a time ([`power_on`], [`power_off`]). Handles are numbers that are looked
//! up in tables. Device addresses are PROT_NONE for the host and are looked up as well. So any
//! argument returns the CUresult that a GPU would return and never crashes.
//!
//! A file imports files of the groups before its own, and of its own group without a circle
//! (`tests/layers.rs`):
//!
//! 1. memory (begin with `memory.rs`);
//! 2. operations and the streams that queue them (`queue.rs`);
//! 3. devices, which run operations (`hardware.rs`);
//! 4. schedules, which decide when an operation runs (`schedule.rs`);
//! 5. what the host creates: modules, pools, events, graphs;
//! 6. the machine, which has all of these (`machine.rs`);
//! 7. the calls of the driver, a file for each kind (`*_calls.rs`), and their table.

// What all of them use: locks, arguments, options, tables of handles, threads.
mod arguments;
mod config;
mod handles;
mod load;
mod sync;
mod worker;

// 1. Memory: of each device, the address space over it, and the pinned ranges of the host.
mod address_space;
mod host_memory;
mod memory;
mod physical;
mod shared;
mod slots;
mod unit;

// 2. Operations, and the streams that queue them.
mod copy;
mod journal;
mod kernel;
mod parameters;
mod queue;
mod shared_event;

// 3. Devices: their contexts, and how they run an operation.
mod context;
mod hardware;

// 4. Schedules: when operations run and, under an adversarial one, which thread continues.
mod adversary;
mod adversary_policy;
mod helper;
mod lanes;
mod schedule;
mod thread_scheduler;
mod thread_state;
mod trace;

// 5. What the host creates: modules, pools, events, graphs.
mod capture;
mod event;
mod exec;
mod graph;
mod graph_memory;
mod module;
mod pool;
mod segment;

// 6. The machine, and the entry of every call.
mod entry;
mod leaks;
mod machine;

// 7. The calls of the driver, and their table.
mod capture_calls;
mod context_calls;
mod device_calls;
mod event_calls;
mod exec_calls;
mod graph_calls;
mod ipc_calls;
mod memory_calls;
mod module_calls;
mod pointer_calls;
mod pool_calls;
mod stream_calls;
mod table;
mod transfer_calls;
mod virtual_memory_calls;

#[cfg(test)]
mod tests;

pub use crate::base::error::SimulatorError as ConfigError;
pub use config::{Config, Leaks, Peers, ScheduleKind};
pub use machine::LiveObjects;
pub use table::table;

use crate::base::progress;
use crate::base::reserve;
use crate::driver::telemetry::Rates;
use crate::driver::{SimulatedBackend, Table};
use crate::observe::turn;
use entry::{MACHINE, machine};
use hardware::in_callback;
use machine::Machine;
use std::sync::Arc;
use sync::{read, write};

/// Powers the machine on with options such as "devices=4,memory=16GiB,schedule=threads". Returns
/// the table of its calls.
pub fn power_on(options: &str) -> Result<Table, ConfigError> {
    let _reserve = reserve::hold().ok_or(ConfigError::Host(libc::ENOMEM))?;
    let config = Config::parse(options)?;
    let mut machine = write(&MACHINE);
    if machine.is_some() {
        return Err(ConfigError::AlreadyOn);
    }
    // Unless queries take time, runs are repeatable.
    let is_repeatable = config.query_time.is_none();
    let keeps_turns = matches!(config.schedule, ScheduleKind::Adversarial(_));
    *machine = Some(Arc::new(Machine::new(config)?));
    progress::set_repeatable(is_repeatable);
    turn::install(keeps_turns.then_some(&KEEPER));
    Ok(table())
}

/// Finishes all queued work and frees everything. Afterwards calls return `DEINITIALIZED` until
/// [`power_on`]. Does nothing when the machine is off, or inside a callback.
pub fn power_off() {
    if in_callback() {
        return;
    }
    let _reserve = reserve::hold();
    let Some(machine) = write(&MACHINE).take() else { return };
    turn::install(None);
    progress::set_repeatable(false);
    machine.drain();
    leaks::report_machine(&machine);
    for device in &machine.hardware.devices {
        device.context.streams().iter().for_each(|stream| stream.close());
    }
    machine.schedule.close();
}

/// What the machine provides besides its table.
pub static BACKEND: SimulatedBackend = SimulatedBackend { function: table::function };

/// Counts the live objects; all zero when the machine is off.
pub fn live_objects() -> LiveObjects {
    match &*read(&MACHINE) {
        Some(machine) => machine.live_objects(),
        None => LiveObjects::default(),
    }
}

/// Utilisation of a device over the last second; 0 when the machine is off.
pub fn rates(device: i32) -> Rates {
    let Some(machine) = machine() else { return Rates::default() };
    let device =
        usize::try_from(device).ok().and_then(|device| machine.hardware.devices.get(device));
    let Some(device) = device else { return Rates::default() };
    let now = machine.hardware.now();
    Rates { kernels: device.kernels.percent(now), memory: device.memory.percent(now) }
}

/// Serialises tests, since there is one machine. Powers off a machine that an earlier test left on.
#[cfg(test)]
pub(crate) fn test_lock() -> std::sync::MutexGuard<'static, ()> {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let guard = sync::lock(&LOCK);
    power_off();
    guard
}

/// The hooks that the library's calls run while an adversarial machine is on.
static KEEPER: turn::Scheduler = turn::Scheduler { call: meet, yield_turn: give_way };

fn meet() {
    #[cfg(any(test, feature = "host_faults"))]
    let _in_driver = crate::base::host_faults::in_driver();
    // Without memory for the reserve, threads are not scheduled.
    let Some(_reserve) = reserve::hold() else { return };
    // A callback is part of an operation: its calls are not scheduled.
    if let Some(machine) = machine().filter(|_| !in_callback()) {
        machine.schedule.call();
    }
}

fn give_way() -> bool {
    #[cfg(any(test, feature = "host_faults"))]
    let _in_driver = crate::base::host_faults::in_driver();
    let Some(_reserve) = reserve::hold() else { return false };
    machine().is_some_and(|machine| machine.schedule.adversary.give_way())
}
