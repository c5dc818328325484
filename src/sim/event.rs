//! Events: points in streams.

use super::arguments::{put, require};
use super::graph::Work;
use super::queue::{Action, Mark, Point, Stream};
use super::shared_event::SharedEvent;
use super::sync::{lock, read, write};
use super::{Machine, capture, entry, entry_checked, schedule, stream};
use crate::driver::code;
use crate::driver::sys::{CUevent, CUstream};
use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// `CU_EVENT_DISABLE_TIMING` and `CU_EVENT_INTERPROCESS`.
const DISABLE_TIMING: c_uint = 2;
const INTERPROCESS: c_uint = 4;
/// All flags, with `CU_EVENT_BLOCKING_SYNC`.
const KNOWN: c_uint = 1 | DISABLE_TIMING | INTERPROCESS;

/// An event: the point of its last record.
pub(super) struct Event {
    pub(super) device: usize,
    flags: c_uint,
    recorded: Mutex<Recorded>,
    /// The part that is shared with other processes.
    pub(super) shared: Option<Arc<SharedEvent>>,
}

/// The last record of an event.
#[derive(Clone, Default)]
pub(super) enum Recorded {
    #[default]
    Never,
    At(Arc<Mark>),
    /// The end of what was recorded on a stream of a capture.
    Captured(Arc<Captured>),
}

/// A capture, and numbers of nodes of its graph.
pub(super) struct Captured {
    pub(super) capture: u64,
    pub(super) ends: Vec<usize>,
}

impl Event {
    pub(super) fn of_another(device: usize, shared: SharedEvent) -> Event {
        let (flags, recorded) = (DISABLE_TIMING | INTERPROCESS, Mutex::default());
        Event { device, flags, recorded, shared: Some(Arc::new(shared)) }
    }

    pub(super) fn recorded(&self, machine: &Arc<Machine>) -> Recorded {
        let own = lock(&self.recorded).clone();
        let Some(shared) = &self.shared else { return own };
        let number = match &own {
            Recorded::Captured(_) => return own,
            Recorded::At(mark) => mark.shared.as_ref().map_or(0, |(_, number)| *number),
            Recorded::Never => 0,
        };
        let last = shared.recorded();
        if last <= number {
            return own;
        }
        // Another process recorded it last.
        Recorded::At(Arc::new(Mark {
            stream: shared.follow(machine, last),
            position: AtomicU64::new(last),
            time: AtomicU64::new(0),
            timed: false,
            shared: None,
        }))
    }

    pub(super) fn set(&self, recorded: Recorded) {
        *lock(&self.recorded) = recorded;
    }

    /// The recorded point; `None` if it was never recorded or recorded in a capture.
    pub(super) fn point(&self) -> Option<Point> {
        match &*lock(&self.recorded) {
            Recorded::At(mark) => Some(mark.point()),
            Recorded::Never | Recorded::Captured(_) => None,
        }
    }

    /// Queues its record on a stream.
    pub(super) fn record_at(
        &self,
        machine: &Arc<Machine>,
        stream: &Arc<Stream>,
        waits: Vec<Point>,
    ) -> Result<Point, i32> {
        let mark = Arc::new(Mark {
            stream: Arc::clone(stream),
            position: AtomicU64::new(u64::MAX),
            time: AtomicU64::new(0),
            timed: self.flags & DISABLE_TIMING == 0,
            shared: self.shared.as_ref().map(|shared| (Arc::clone(shared), shared.record())),
        });
        let action = Action::Record(Arc::clone(&mark));
        let submitted = schedule::submit(machine, stream, waits, action);
        if let (Err(_), Some((shared, number))) = (&submitted, &mark.shared) {
            shared.forget(*number);
        }
        let point = submitted?;
        self.set(Recorded::At(mark));
        Ok(point)
    }

    /// The recorded point, for a query by the host.
    fn queried_mark(&self, machine: &Arc<Machine>) -> Result<Option<Arc<Mark>>, i32> {
        let mark = match self.recorded(machine) {
            Recorded::Captured(captured) => {
                return Err(capture::refuse_event(machine, &captured, true));
            }
            Recorded::Never => None,
            Recorded::At(mark) => Some(mark),
        };
        capture::refuse_unsafe(machine)?;
        Ok(mark)
    }
}

/// Some calls check the event handle before they check that the driver is initialised.
fn check_handle(event: CUevent) -> Result<(), i32> {
    require(!event.is_null(), code::INVALID_HANDLE)
}

/// The event of a handle.
#[inline]
pub(super) fn get(machine: &Machine, event: CUevent) -> Result<Arc<Event>, i32> {
    read(&machine.events).find(event.addr()).map(Arc::clone)
}

pub(super) unsafe extern "C" fn create(event: *mut CUevent, flags: c_uint) -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        require(!event.is_null() && flags & !KNOWN == 0, code::INVALID_VALUE)?;
        let shareable = flags & INTERPROCESS == 0 || flags & DISABLE_TIMING != 0;
        require(shareable, code::INVALID_VALUE)?;
        let shared = match flags & INTERPROCESS {
            0 => None,
            _ => Some(SharedEvent::create(&machine.memory.physical[context.device])?),
        };
        let (device, recorded) = (context.device, Mutex::default());
        let created = Event { device, flags, recorded, shared: shared.map(Arc::new) };
        let handle = write(&machine.events).insert(Arc::new(created));
        put!(event, ptr::without_provenance_mut(handle))
    })
}

pub(super) unsafe extern "C" fn destroy(event: CUevent) -> c_int {
    entry_checked(check_handle(event), |machine| {
        machine.usable()?;
        let mut events = write(&machine.events);
        machine.devices[events.find(event.addr())?.device].context.check()?;
        events.remove(event.addr()).map(drop).ok_or(code::INVALID_HANDLE)
    })
}

pub(super) unsafe extern "C" fn record(event: CUevent, stream: CUstream) -> c_int {
    // SAFETY: the same promise.
    unsafe { record_with_flags(event, stream, 0) }
}

pub(super) unsafe extern "C" fn record_with_flags(
    event: CUevent,
    stream: CUstream,
    flags: c_uint,
) -> c_int {
    entry(|machine| {
        let stream = stream::get(machine, stream)?;
        let event = get(machine, event)?;
        require(flags <= 1, code::INVALID_VALUE)?;
        require(event.device == stream.device, code::INVALID_HANDLE)?;
        if flags == 1 {
            // CU_EVENT_RECORD_EXTERNAL is for captures only.
            require(capture::records(machine, &stream)?, code::ILLEGAL_STATE)?;
            return capture::add(machine, &stream, Work::Record(event));
        }
        if capture::mark(machine, &stream, &event)? {
            return Ok(());
        }
        event.record_at(machine, &stream, Vec::new()).map(drop)
    })
}

pub(super) unsafe extern "C" fn query(event: CUevent) -> c_int {
    entry_checked(check_handle(event), |machine| {
        machine.spend_query_time();
        let event = get(machine, event)?;
        let waiting = event.queried_mark(machine)?.filter(|mark| !mark.is_reached());
        machine.devices[event.device].context.check()?;
        let Some(mark) = waiting else { return Ok(()) };
        schedule::poll(machine, &mark.point());
        Err(code::NOT_READY)
    })
}

pub(super) unsafe extern "C" fn synchronize(event: CUevent) -> c_int {
    entry_checked(check_handle(event), |machine| {
        let event = get(machine, event)?;
        match event.queried_mark(machine)? {
            Some(mark) => schedule::wait(machine, &mark.point()),
            None => machine.devices[event.device].context.check(),
        }
    })
}

pub(super) unsafe extern "C" fn elapsed_time(
    milliseconds: *mut f32,
    start: CUevent,
    end: CUevent,
) -> c_int {
    entry_checked(check_handle(start).and(check_handle(end)), |machine| {
        require(!milliseconds.is_null(), code::INVALID_HANDLE)?;
        let (start, end) = (get(machine, start)?, get(machine, end)?);
        require(start.device == end.device, code::INVALID_HANDLE)?;
        machine.devices[start.device].context.check()?;
        let mark = |event: &Event| match event.recorded(machine) {
            Recorded::At(mark) if mark.timed => Ok(mark),
            Recorded::At(_) | Recorded::Never => Err(code::INVALID_HANDLE),
            Recorded::Captured(captured) => Err(capture::refuse_event(machine, &captured, false)),
        };
        let (start, end) = (mark(&start)?, mark(&end)?);
        require(start.is_reached() && end.is_reached(), code::NOT_READY)?;
        let time = |mark: &Mark| mark.time.load(Ordering::Relaxed) as f64;
        put!(milliseconds, ((time(&end) - time(&start)) / 1e6) as f32)
    })
}
