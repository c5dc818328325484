//! The devices: their contexts, their memory and their load. Runs the operations of streams.

use super::condition::Conditions;
use super::config::{Config, ScheduleKind};
use super::context::{Context, Created};
use super::copy;
use super::host_function::Callback;
use super::journal::Write;
use super::kernel::Run;
use super::load::Load;
use super::memory::Memory;
use super::queue::{Action, Stream};
use super::value::ValueOperation;
use crate::base::code;
use crate::exec::Options;
use crate::memory::race::Settings;
use std::cell::Cell;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The lowest and the highest priority of a stream.
pub(super) const LEAST_PRIORITY: c_int = 0;
pub(super) const GREATEST_PRIORITY: c_int = -5;

/// Minimum bytes of copies and fills whose time is measured; smaller ones are too short.
const MEASURED: usize = 64 << 10;

/// Interval between two looks at a value that a worker waits for. The host may store it without a
/// call.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// True if this thread is inside a callback of the host, where calls are not permitted.
#[inline]
pub(super) fn in_callback() -> bool {
    IN_CALLBACK.get()
}

/// Runs a callback with the status of its context.
fn call_back(callback: Callback, status: c_int) {
    IN_CALLBACK.set(true);
    // SAFETY: the host promised that the function can be called with these arguments.
    unsafe { (callback.function)(callback.stream, status, callback.user_data) };
    IN_CALLBACK.set(false);
}

/// A device.
pub(super) struct Device {
    /// Its number among all devices of the machine, visible or not.
    pub(super) ordinal: usize,
    pub(super) context: Context,
    /// Utilisation by kernels.
    pub(super) kernels: Load,
    /// Utilisation by memory reads and writes.
    pub(super) memory: Load,
}

/// All devices, and the memory that they share.
pub(super) struct Hardware {
    pub(super) devices: Vec<Device>,
    created: Created,
    pub(super) memory: Arc<Memory>,
    pub(super) conditions: Arc<Conditions>,
    /// How kernels run. The seed of an adversarial schedule orders blocks and warps as well.
    options: Options,
    /// Launches of kernels so far.
    launches: AtomicU64,
    /// When the machine was powered on.
    start: Instant,
}

impl Hardware {
    pub(super) fn new(devices: Vec<Device>, memory: Arc<Memory>, config: &Config) -> Hardware {
        let seed = match config.schedule {
            ScheduleKind::Adversarial(seed) => Some(seed),
            _ => None,
        };
        let options = Options {
            seed,
            multiprocessors: config.multiprocessors.unsigned_abs(),
            time_limit: config.kernel_time,
            races: config.races.then(Settings::default),
            ..Options::default()
        };
        let launches = AtomicU64::new(1);
        let (created, conditions) = (Created::default(), Arc::default());
        Hardware { devices, created, memory, conditions, options, launches, start: Instant::now() }
    }

    /// Nanoseconds since the machine was powered on.
    pub(super) fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Creates a context beside the primary one of a device; `None` if there were too many.
    pub(super) fn create_context(&self, device: usize) -> Option<&Context> {
        self.created.create(self.devices.len(), device)
    }

    /// Notes that a context which the host created was destroyed.
    pub(super) fn note_destroyed(&self, context: &Context) {
        self.created.note_destroyed(self.devices.len(), context);
    }

    /// The context of a number.
    #[inline]
    pub(super) fn context(&self, number: usize) -> Option<&Context> {
        match self.devices.get(number) {
            Some(device) => Some(&device.context),
            None => self.created.get(number - self.devices.len()),
        }
    }

    /// The context of a number, which an object has.
    #[inline]
    pub(super) fn owner(&self, number: usize) -> &Context {
        // Contexts are never removed, so there is one.
        self.context(number).unwrap_or(&self.devices[0].context)
    }

    /// All contexts, active or not.
    pub(super) fn contexts(&self) -> impl Iterator<Item = &Context> {
        self.devices.iter().map(|device| &device.context).chain(self.created.iter())
    }

    #[inline]
    pub(super) fn context_of(&self, stream: &Stream) -> &Context {
        self.owner(stream.context)
    }

    /// Runs an operation. A failure makes contexts unusable, in which nothing runs afterwards.
    pub(super) fn run(&self, stream: &Stream, action: Action) {
        let context = self.context_of(stream);
        let error = context.error.load(Ordering::Relaxed);
        if error != 0 {
            match action {
                // A skipped record is published, so that other processes do not wait for it.
                Action::Record(mark) => mark.publish(),
                Action::Callback(callback) => call_back(callback, error),
                _ => {}
            }
            return;
        }
        // A panic in an operation is a failure of the device, not of the host; the queue continues.
        let perform = AssertUnwindSafe(|| self.perform(stream, action));
        let outcome = catch_unwind(perform).unwrap_or(Err(code::LAUNCH_FAILED));
        IN_CALLBACK.set(false);
        if let Err(code) = outcome {
            context.fail(code);
            // Any failure except a device assertion fails the whole process (two GPUs, 580.159).
            if code != code::ASSERT {
                self.contexts().for_each(|context| context.fail(code));
            }
        }
    }

    /// True if an operation at the front of its queue can run: it does not wait for a value, or no
    /// longer. A wait that lasts until the context gives up fails the context.
    #[inline]
    pub(super) fn can_run(&self, stream: &Stream, action: &Action) -> bool {
        match action {
            Action::Value(value) => self.is_over(stream, value),
            _ => true,
        }
    }

    fn is_over(&self, stream: &Stream, value: &ValueOperation) -> bool {
        let context = self.context_of(stream);
        // Where the value cannot be read, the operation fails when it runs.
        let is_over = context.check().is_err()
            || value.is_satisfied(&self.memory, stream.device).unwrap_or(true);
        if is_over || self.now() < context.gives_up.load(Ordering::Relaxed) {
            return is_over;
        }
        context.fail(code::LAUNCH_TIMEOUT);
        true
    }

    /// Waits on the thread of a stream until an operation can run.
    pub(super) fn wait_for_value(&self, stream: &Stream, action: &Action) {
        while !self.can_run(stream, action) {
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn perform(&self, stream: &Stream, action: Action) -> Result<(), i32> {
        let device = &self.devices[stream.device];
        match action {
            Action::Nothing => {}
            Action::Record(mark) => {
                if mark.timed {
                    mark.time.store(self.now(), Ordering::Relaxed);
                }
                mark.publish();
            }
            Action::Fill(fill) => {
                let work = || copy::fill(&self.memory, stream.device, &fill);
                match fill.extent().unwrap_or(0) {
                    // A GPU runs a kernel for a fill.
                    MEASURED.. => self.measured(work, &[&device.kernels, &device.memory])?,
                    _ => work()?,
                }
            }
            Action::Value(value) => value.run(&self.memory, stream.device)?,
            Action::Copy(copy) => {
                let work = || copy::copy(&self.memory, stream.device, &copy);
                match copy.width.saturating_mul(copy.rows).saturating_mul(copy.depth) {
                    MEASURED.. => self.measured(work, &[&device.memory])?,
                    _ => work()?,
                }
            }
            Action::HostFunction(host) => {
                IN_CALLBACK.set(true);
                // SAFETY: the host promised that the function can be called with this argument.
                unsafe { (host.function)(host.user_data) };
            }
            Action::Callback(callback) => call_back(callback, code::SUCCESS),
            Action::Kernel(launch) => {
                let run = Run {
                    memory: &self.memory,
                    conditions: &self.conditions,
                    device: stream.device,
                    options: Options {
                        launch: self.launches.fetch_add(1, Ordering::Relaxed),
                        ..self.options
                    },
                    start: self.start,
                };
                let work = || launch.run(&run);
                self.measured(work, &[&device.kernels, &device.memory])?;
            }
            Action::Writes(writes) => writes.iter().for_each(Write::apply),
            Action::Reset(branches) => branches.iter().for_each(|branch| branch.reset()),
            Action::Branch(branch) => {
                // A loop without end fails as a kernel does.
                let end = Instant::now() + self.options.time_limit;
                let goes_on = || match Instant::now() < end {
                    true => Ok(()),
                    false => Err(code::LAUNCH_TIMEOUT),
                };
                branch.run(goes_on, |action| self.perform(stream, action))?;
            }
        }
        Ok(())
    }

    /// Runs work and adds its time to the loads.
    fn measured<R>(&self, work: impl FnOnce() -> R, loads: &[&Load]) -> R {
        let begin = self.now();
        let outcome = work();
        let end = self.now();
        loads.iter().for_each(|load| load.add(begin, end));
        outcome
    }
}
