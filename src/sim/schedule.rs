//! Schedules: when operations run. All queued work goes through [`submit`], and every wait of the
//! host through [`reach`]. Another schedule needs another arm in these two and in the queries.

use super::config::ScheduleKind;
use super::context::Context;
use super::journal::Write;
use super::load::Load;
use super::queue::{Action, Kind, Point, Stream};
use super::sync::lock;
use super::worker::Worker;
use super::{Machine, capture, copy};
use crate::driver::code;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// True if this thread is inside a callback of the host, where calls are not permitted.
#[inline]
pub(super) fn in_callback() -> bool {
    IN_CALLBACK.get()
}

/// Queues an operation, or records it if the stream is captured. Returns its position in the
/// stream.
pub(super) fn submit(
    machine: &Arc<Machine>,
    stream: &Arc<Stream>,
    mut waits: Vec<Point>,
    action: Action,
) -> Result<Point, i32> {
    let Some(action) = capture::divert(machine, stream, action)? else {
        // Recorded work does not run now: position 0 is already reached.
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
        // Other threads run the missing operations.
        ScheduleKind::Immediate | ScheduleKind::Threads => points.iter().for_each(Point::wait),
        ScheduleKind::Adversarial(_) => machine.adversary.reach(machine, points),
    }
}

/// Notes that the host queried a point that is not reached.
pub(super) fn poll(machine: &Arc<Machine>, point: &Point) {
    if let ScheduleKind::Adversarial(_) = machine.config.schedule {
        machine.adversary.poll(machine, point);
    }
}

/// Notes that another process has reached a record.
pub(super) fn note_remote_progress(machine: &Machine) {
    if let ScheduleKind::Adversarial(_) = machine.config.schedule {
        machine.adversary.note_remote_progress();
    }
}

/// Notes that the host can read what operations write.
pub(super) fn share_memory(machine: &Arc<Machine>) {
    if let ScheduleKind::Adversarial(_) = machine.config.schedule {
        // Without the watcher, a host that waits for a word in memory would wait forever.
        machine.adversary.start_watcher(machine);
    }
}

/// Notes that another process may wait for queued work of the host, or the host for work of that
/// process.
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

/// Waits on the host, and returns the error of the stream's device, if any.
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
            for other in super::sync::read(&context.members).iter() {
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

/// Runs an operation. A failure makes contexts unusable, in which nothing runs afterwards.
pub(super) fn run(machine: &Arc<Machine>, stream: &Stream, action: Action) {
    let context = machine.context_of(stream);
    if context.error.load(Ordering::Relaxed) != 0 {
        // A skipped record is published, so that other processes do not wait for it.
        if let Action::Record(mark) = action {
            mark.publish();
        }
        return;
    }
    // A panic in an operation is a failure of the device, not of the host; the queue continues.
    let perform = AssertUnwindSafe(|| perform(machine, stream, action));
    let outcome = catch_unwind(perform).unwrap_or(Err(code::LAUNCH_FAILED));
    IN_CALLBACK.set(false);
    if let Err(code) = outcome {
        let leave = |context: &Context| {
            let _ = context.error.compare_exchange(0, code, Ordering::Relaxed, Ordering::Relaxed);
        };
        leave(context);
        // Any failure except a device assertion fails the whole process (two GPUs, 580.159).
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
            mark.publish();
        }
        Action::Fill(fill) => {
            let work = || copy::fill(&machine.memory, stream.device, &fill);
            match fill.width.saturating_mul(fill.count) {
                // A GPU runs a kernel for a fill.
                MEASURED.. => measured(machine, work, &[&device.kernels, &device.memory])?,
                _ => work()?,
            }
        }
        Action::Copy(copy) => {
            let work = || copy::copy(&machine.memory, stream.device, &copy);
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
            let work = || launch.run(&machine.memory, stream.device);
            measured(machine, work, &[&device.kernels, &device.memory])?;
        }
        Action::Writes(writes) => writes.iter().for_each(Write::apply),
    }
    Ok(())
}

/// Minimum bytes of copies and fills whose time is measured; smaller ones are too short.
const MEASURED: usize = 64 << 10;

/// Runs work and adds its time to the loads.
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
