//! When operations run. Everything that queues work goes through [`submit`], every wait of the host
//! through [`reach`]: another schedule is another arm in these two, and a say in the queries.

use super::config::ScheduleKind;
use super::context::Context;
use super::journal::Write;
use super::load::Load;
use super::queue::{Action, Kind, Point, Stream};
use super::worker::Worker;
use super::{Machine, capture, code, copy, lock};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Is this thread inside a callback of the host, where no call is permitted?
#[inline]
pub(super) fn in_callback() -> bool {
    IN_CALLBACK.get()
}

/// Queues an operation, or records it where the stream is captured; gives its position in the stream.
pub(super) fn submit(
    machine: &Arc<Machine>,
    stream: &Arc<Stream>,
    mut waits: Vec<Point>,
    action: Action,
) -> Result<Point, i32> {
    let Some(action) = capture::divert(machine, stream, action)? else {
        // Nothing runs: whoever waits for it has waited.
        return Ok(Point { stream: Arc::clone(stream), position: 0 });
    };
    add_default_stream_waits(machine, stream, &mut waits);
    let position = match machine.config.schedule {
        ScheduleKind::Immediate => {
            waits.iter().for_each(Point::wait);
            let position = stream.begin(&action);
            run(machine, stream, action);
            stream.finish(position);
            position
        }
        ScheduleKind::Threads => {
            waits.retain(|point| !point.is_reached());
            stream.push(waits, action, || spawn(machine, stream))?
        }
        ScheduleKind::Adversarial(_) => {
            if let Action::HostFunction(_) = action {
                machine.adversary.require_helper(machine)?;
            }
            machine.adversary.submit(machine, stream, waits, action)
        }
    };
    Ok(Point { stream: Arc::clone(stream), position })
}

/// Waits on the host until some points are reached.
pub(super) fn reach(machine: &Arc<Machine>, points: &[Point]) {
    match machine.config.schedule {
        // Somebody else runs what is missing.
        ScheduleKind::Immediate | ScheduleKind::Threads => points.iter().for_each(Point::wait),
        ScheduleKind::Adversarial(_) => machine.adversary.reach(machine, points),
    }
}

/// The host has asked whether a point is reached, and it is not.
pub(super) fn poll(machine: &Arc<Machine>, point: &Point) {
    if let ScheduleKind::Adversarial(_) = machine.config.schedule {
        machine.adversary.poll(machine, point);
    }
}

/// Something is reached that no stream of ours has done.
pub(super) fn passed_elsewhere(machine: &Machine) {
    if let ScheduleKind::Adversarial(_) = machine.config.schedule {
        machine.adversary.passed_elsewhere();
    }
}

/// The host can see from now on what operations write.
pub(super) fn share_memory(machine: &Arc<Machine>) {
    if let ScheduleKind::Adversarial(_) = machine.config.schedule {
        // Without the thread, a host that waits for a word in memory waits for ever.
        machine.adversary.start_watcher(machine);
    }
}

/// Another process may wait from now on for what the host has queued, or the host for that one's.
pub(super) fn share_events(machine: &Arc<Machine>) {
    machine.adversary.helpers.share_events();
    share_memory(machine);
}

/// Waits until every stream of some contexts is idle.
pub(super) fn drain<'a>(machine: &Arc<Machine>, contexts: impl IntoIterator<Item = &'a Context>) {
    let mut tails = Vec::new();
    for context in contexts {
        tails.extend(context.streams().iter().map(Stream::tail));
    }
    reach(machine, &tails);
}

/// Waits on the host, and reports what went wrong on the stream's device.
pub(super) fn wait(machine: &Arc<Machine>, point: &Point) -> Result<(), i32> {
    reach(machine, std::slice::from_ref(point));
    machine.context_of(&point.stream).check()?;
    machine.release_idle_pool_memory();
    Ok(())
}

/// The legacy default stream and the blocking streams of its context wait for each other.
fn add_default_stream_waits(machine: &Machine, stream: &Arc<Stream>, waits: &mut Vec<Point>) {
    let context = machine.context_of(stream);
    match stream.kind {
        Kind::NonBlocking => {}
        Kind::Blocking => {
            if !context.legacy.is_idle() {
                waits.push(context.legacy.tail());
            }
        }
        Kind::Legacy => {
            for other in super::read(&context.members).iter() {
                if other.kind == Kind::Blocking && !other.is_idle() {
                    waits.push(other.tail());
                }
            }
        }
    }
}

fn spawn(machine: &Arc<Machine>, stream: &Arc<Stream>) -> Result<(), i32> {
    let (machine_of_worker, stream) = (Arc::clone(machine), Arc::clone(stream));
    let worker = Worker::start(format!("sim stream {}", stream.id), move || {
        while let Some(operation) = stream.pop() {
            operation.waits.iter().for_each(Point::wait);
            run(&machine_of_worker, &stream, operation.action);
            stream.finish(operation.position);
        }
    });
    let worker = worker.ok_or(code::OUT_OF_MEMORY)?;
    let mut workers = lock(&machine.workers);
    workers.retain(|worker| !worker.is_over());
    workers.push(worker);
    Ok(())
}

/// Runs an operation; a failure makes contexts unusable, and then nothing more is done there.
pub(super) fn run(machine: &Arc<Machine>, stream: &Stream, action: Action) {
    let context = machine.context_of(stream);
    if context.error.load(Ordering::Relaxed) != 0 {
        // Other processes wait no longer for what is never done.
        if let Action::Record(mark) = action {
            mark.show();
        }
        return;
    }
    // What panics in an operation is the device's failure, not the host's; the queue goes on.
    let perform = AssertUnwindSafe(|| perform(machine, stream, action));
    let outcome = catch_unwind(perform).unwrap_or(Err(code::LAUNCH_FAILED));
    IN_CALLBACK.set(false);
    if let Err(code) = outcome {
        let leave = |context: &Context| {
            let _ = context.error.compare_exchange(0, code, Ordering::Relaxed, Ordering::Relaxed);
        };
        leave(context);
        // But for an assertion it is the whole process that has failed (two GPUs, 580.159).
        if code != code::ASSERT {
            machine.devices.iter().for_each(|device| leave(&device.context));
        }
    }
}

fn perform(machine: &Arc<Machine>, stream: &Stream, action: Action) -> Result<(), i32> {
    let device = &machine.devices[stream.device];
    match action {
        Action::Nothing => {}
        Action::Record(mark) => {
            if mark.timed {
                mark.time.store(now(machine.start), Ordering::Relaxed);
            }
            mark.show();
        }
        Action::Fill(fill) => {
            let work = || copy::fill(machine, stream.device, &fill);
            match fill.width.saturating_mul(fill.count) {
                // A GPU fills by a kernel.
                MEASURED.. => measured(machine, work, &[&device.kernels, &device.memory])?,
                _ => work()?,
            }
        }
        Action::Copy(copy) => {
            let work = || copy::copy(machine, stream.device, &copy);
            match copy.width.saturating_mul(copy.rows).saturating_mul(copy.depth) {
                MEASURED.. => measured(machine, work, &[&device.memory])?,
                _ => work()?,
            }
        }
        Action::HostFunction(host) => {
            IN_CALLBACK.set(true);
            // SAFETY: the host promised that the function can be called with this argument.
            unsafe { (host.function)(host.user_data) };
        }
        Action::Kernel(launch) => {
            IN_CALLBACK.set(true);
            let work = || launch.run(machine, stream.device);
            measured(machine, work, &[&device.kernels, &device.memory])?;
        }
        Action::Writes(writes) => writes.iter().for_each(Write::apply),
    }
    Ok(())
}

/// From so many bytes on, what copies and fills take is measured: less is over before the clock is read.
const MEASURED: usize = 64 << 10;

/// Runs work, and notes how long that took.
fn measured<R>(machine: &Machine, work: impl FnOnce() -> R, loads: &[&Load]) -> R {
    let begin = now(machine.start);
    let outcome = work();
    let end = now(machine.start);
    loads.iter().for_each(|load| load.add(begin, end));
    outcome
}

pub(super) fn now(start: Instant) -> u64 {
    start.elapsed().as_nanos() as u64
}
