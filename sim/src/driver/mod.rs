//! The simulated machine, and CUDA's driver API on it.
//!
//! One machine is on at a time. A host that knows the library powers it on and off
//! (`interface.rs`); for a program that only calls the driver, cuInit does (`exports.rs`). Handles
//! are numbers that are looked up in tables. Device addresses, except those of managed memory, are
//! PROT_NONE for the host and are looked up as well. So any argument returns the CUresult that a
//! GPU would return and never crashes.
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
//! 7. the calls of the driver, a file for each kind (`*_calls.rs`), and their exports;
//! 8. the interface beside them.

// What all of them use: locks, arguments, options, tables of handles, threads.
mod arguments;
mod condition;
mod config;
mod environment;
mod error;
mod handles;
mod hooks;
mod load;
mod model;
mod multiprocessors;
mod sync;
mod visible;
mod worker;

// 1. Memory: of each device, the address space over it, and the pinned ranges of the host.
mod address_space;
mod host_memory;
mod managed;
mod memory;
mod physical;
mod shared;
mod slots;
mod unit;

// 2. Operations, and the streams that queue them.
mod copy;
mod host_function;
mod journal;
mod kernel;
mod parameters;
mod partition;
mod queue;
mod shared_event;
mod stream_attributes;
mod value;

// 3. Devices: their contexts, and how they run an operation.
mod context;
mod hardware;
mod host_calls;
mod settings;

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
mod attributes;
mod capture;
mod event;
mod exec;
mod graph;
mod graph_id_calls;
mod graph_memory;
mod green;
mod image;
mod jit;
mod link;
mod module;
mod occupancy;
mod pool;
mod resource;
mod segment;
mod user_object;

// 6. The machine, and the entry of every call.
mod entry;
mod leaks;
mod machine;

// 7. The calls of the driver, and their exports.
mod attribute_calls;
mod batch_calls;
mod capture_calls;
mod condition_calls;
mod context_calls;
mod copy_calls;
mod device_calls;
mod edge_calls;
mod error_calls;
mod event_calls;
mod exec_calls;
mod exec_node_calls;
mod exports;
mod fill_calls;
mod function_calls;
mod graph_calls;
mod graph_memory_calls;
mod green_calls;
mod ipc_calls;
mod launch_attributes;
mod launch_calls;
mod library_calls;
mod link_calls;
mod managed_calls;
mod memory_calls;
mod module_calls;
mod node_calls;
mod node_parameter_calls;
mod node_tasks;
mod occupancy_calls;
mod own_context_calls;
mod per_thread_calls;
mod pointer_calls;
mod pool_calls;
mod resource_calls;
mod setting_calls;
mod stream_calls;
mod transfer_calls;
mod user_object_calls;
mod value_calls;
mod virtual_memory_calls;

// 8. The interface beside them.
mod interface;
mod newer;

#[cfg(test)]
mod tests;

pub use config::{Config, Leaks, Peers, ScheduleKind};
pub use error::ConfigError;
pub use hooks::Hooks;
pub use interface::{Interface, Rates, Started};
pub use machine::LiveObjects;

use crate::base::{code, reserve};
use context::Context;
use entry::{MACHINE, machine, note_power_on, refuse_children, require_no_fork};
use hardware::in_callback;
use machine::Machine;
use std::ffi::c_int;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use sync::{read, write};

/// How long a machine that is powered off waits for values.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// Powers a machine on with options such as "devices=4,memory=16GiB,schedule=threads". If other
/// programs of the process use a machine already, the same options, or none, join it.
pub fn power_on(options: &str, hooks: Hooks) -> Result<Started, ConfigError> {
    let _reserve = reserve::hold().ok_or(ConfigError::Host(libc::ENOMEM))?;
    let config = Config::parse(options)?;
    let mut on = write(&MACHINE);
    let machine = match &*on {
        None => {
            let machine = Arc::new(Machine::new(config)?);
            note_power_on();
            Arc::clone(on.insert(machine))
        }
        Some(machine) => {
            let is_same = options.trim().is_empty() || machine.config == config;
            if !is_same || !machine.is_shared.load(Ordering::Acquire) {
                return Err(ConfigError::AlreadyOn);
            }
            Arc::clone(machine)
        }
    };
    if machine.is_hosted.swap(true, Ordering::AcqRel) {
        return Err(ConfigError::AlreadyOn);
    }
    hooks::install(hooks);
    Ok(Started {
        // Unless queries take time, runs are repeatable.
        is_repeatable: c_int::from(machine.config.query_time.is_none()),
        keeps_turns: c_int::from(matches!(machine.config.schedule, ScheduleKind::Adversarial(_))),
    })
}

/// Finishes all queued work and frees everything. Afterwards calls return `DEINITIALIZED` until
/// [`power_on`]; before the first machine they return `NOT_INITIALIZED`. Does nothing when the
/// machine is off, or inside a callback. A machine that other programs of the process use stays on.
pub fn power_off() {
    if in_callback() {
        return;
    }
    let _reserve = reserve::hold();
    let mut on = write(&MACHINE);
    if on.as_ref().is_some_and(|machine| machine.is_shared.load(Ordering::Acquire)) {
        on.iter().for_each(|machine| machine.is_hosted.store(false, Ordering::Release));
        hooks::install(Hooks::default());
        return;
    }
    let Some(machine) = on.take() else { return };
    drop(on);
    let contexts: Vec<&Context> = machine.hardware.contexts().collect();
    machine.schedule.drain_at_end(&contexts, LAST_PATIENCE);
    leaks::report_machine(&machine);
    for context in machine.hardware.contexts() {
        context.streams().iter().for_each(|stream| stream.close());
    }
    machine.schedule.close();
    hooks::install(Hooks::default());
}

/// Powers a machine on, with the options of the environment, for a program that only calls the
/// driver.
fn power_on_for_program() -> Result<(), i32> {
    require_no_fork()?;
    if machine().is_some() {
        return Ok(());
    }
    let _reserve = reserve::hold().ok_or(code::OUT_OF_MEMORY)?;
    let options = environment::text("TCUDA_SIM").unwrap_or_default();
    let mut on = write(&MACHINE);
    if on.is_some() {
        return Ok(());
    }
    let new = Config::parse(&options).and_then(Machine::new);
    let new = new.map_err(|error| {
        hooks::log_error(format_args!("{error}"));
        if error.is_the_hosts() { code::OUT_OF_MEMORY } else { code::SYSTEM_NOT_READY }
    })?;
    // Before another thread finds it: a host may join it, and not power it off.
    new.is_shared.store(true, Ordering::Release);
    note_power_on();
    refuse_children();
    *on = Some(Arc::new(new));
    Ok(())
}

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

/// A call of the host begins: returns when it is this thread's turn.
extern "C" fn meet() {
    // Without memory for the reserve, threads are not scheduled.
    let Some(_reserve) = reserve::hold() else { return };
    let _ = catch_unwind(|| {
        // A callback is part of an operation: its calls are not scheduled.
        if let Some(machine) = machine().filter(|_| !in_callback()) {
            machine.schedule.call();
        }
    });
}

/// Lets another thread make progress; 0: this thread is not scheduled.
extern "C" fn give_way() -> c_int {
    let Some(_reserve) = reserve::hold() else { return 0 };
    let gave = catch_unwind(|| machine().is_some_and(|on| on.schedule.adversary.give_way()));
    c_int::from(gave.unwrap_or(false))
}
