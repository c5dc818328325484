//! Reports leaks, for the option `leaks=report`: lines on stderr when a context or the machine is
//! destroyed with live objects. A failed context has lost its objects and is not checked. An object
//! is no leak if an injected fault refused its destruction: the library destroys streams, events
//! and contexts only once, since on a GPU the first call may have succeeded.

use super::config::Leaks;
use super::context::Context;
use super::green::Green;
use super::hooks;
use super::machine::Machine;
use super::sync::read;
use crate::base::code;
use std::ffi::CStr;
use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::Ordering;

/// Objects of one kind.
type Count = (&'static str, usize);

/// "2 streams, 1 events"; zero counts are omitted.
struct List<'a>(&'a [Count]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, count) in self.0.iter().filter(|(_, count)| *count > 0) {
            write!(f, "{separator}{count} {name}")?;
            separator = ", ";
        }
        Ok(())
    }
}

/// Subtracts the objects whose destruction was refused.
fn forgotten(count: usize, destroy: &CStr) -> usize {
    count.saturating_sub(hooks::refused(destroy))
}

fn report(counts: &[Count], end: fmt::Arguments<'_>) {
    if counts.iter().any(|(_, count)| *count > 0) {
        // A failure to write to stderr is ignored.
        let _ = writeln!(io::stderr(), "simulated machine: {} alive when {end}", List(counts));
    }
}

fn reports_leaks_of(machine: &Machine, context: &Context) -> bool {
    machine.config.leaks == Leaks::Report && context.error.load(Ordering::Relaxed) == code::SUCCESS
}

/// Reports the live objects of a context after its last release.
pub(super) fn report_context(machine: &Machine, context: &Context) {
    if !reports_leaks_of(machine, context) {
        return;
    }
    let (device, number) = (context.device, context.number);
    let streams = read(&machine.streams).iter().filter(|it| it.context == number).count();
    let events = read(&machine.events).iter().filter(|it| it.context == number).count();
    let modules = read(&machine.modules).count_of(number);
    let counts = [
        ("streams", forgotten(streams, c"cuStreamDestroy")),
        ("events", forgotten(events, c"cuEventDestroy")),
        ("modules", forgotten(modules, c"cuModuleUnload")),
        ("allocations", read(&machine.memory.space).allocations_of(number)),
        ("pinned ranges of the host", read(&machine.memory.host).count_of(number)),
    ];
    report(&counts, format_args!("the context of device {device} ended"));
}

/// Reports the streams of a green context that is destroyed: nothing destroys them afterwards.
pub(super) fn report_green(machine: &Machine, green: &Green) {
    let device = green.partition.part.device;
    if !reports_leaks_of(machine, &machine.hardware.devices[device].context) {
        return;
    }
    let streams = read(&machine.streams).iter().filter(|stream| green.owns(stream)).count();
    let counts = [("streams", forgotten(streams, c"cuStreamDestroy"))];
    report(&counts, format_args!("a green context of device {device} ended"));
}

/// Reports the live objects of the machine.
pub(super) fn report_machine(machine: &Machine) {
    if !machine.hardware.contexts().all(|context| reports_leaks_of(machine, context)) {
        return;
    }
    let live = machine.live_objects();
    // Each retains its primary context.
    let greens = forgotten(machine.greens.len(), c"cuGreenCtxDestroy");
    let contexts = live.contexts.saturating_sub(machine.greens.len());
    let counts = [
        ("contexts", forgotten(contexts, c"cuDevicePrimaryCtxRelease")),
        ("green contexts", greens),
        ("memory handles", live.handles),
        ("mappings", live.mappings),
        ("reservations", live.reservations),
        ("pools", live.pools),
        ("blocks of pools", live.pool_blocks),
        ("libraries", read(&machine.modules).libraries.len()),
        ("links", read(&machine.links).len()),
    ];
    report(&counts, format_args!("it was powered off"));
}
