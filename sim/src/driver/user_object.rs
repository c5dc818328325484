//! User objects: data of the host that graphs keep alive. A function of the host frees it after
//! the last reference.

use super::handles::Handles;
use super::hardware::Hardware;
use super::host_function::HostFunction;
use super::queue::{Action, Kind, Stream};
use super::schedule::Schedule;
use super::sync::lock;
use crate::base::code;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// A user object.
pub(super) struct UserObject {
    destructor: HostFunction,
    schedule: Weak<Schedule>,
    /// The stream on which the functions of the host run.
    stream: Arc<Stream>,
}

/// References to user objects: the number for each handle.
#[derive(Clone, Default)]
pub(super) struct References(BTreeMap<usize, (Arc<UserObject>, u64)>);

/// The references that the host holds.
pub(super) struct UserObjects {
    pub(super) held: Mutex<References>,
    /// Handles are not used again, since a graph can hold the last reference.
    handles: Mutex<Handles<()>>,
    stream: OnceLock<Arc<Stream>>,
}

impl Drop for UserObject {
    fn drop(&mut self) {
        // After power off, as at the end of a program, the function is not called.
        if let Some(schedule) = self.schedule.upgrade() {
            let action = Action::HostFunction(self.destructor);
            let _ = schedule.submit(&self.stream, Vec::new(), action);
        }
    }
}

impl References {
    /// Adds references.
    pub(super) fn add(&mut self, handle: usize, object: Arc<UserObject>, count: u32) {
        self.0.entry(handle).or_insert((object, 0)).1 += u64::from(count);
    }

    /// The object of a handle.
    pub(super) fn get(&self, handle: usize) -> Option<Arc<UserObject>> {
        self.0.get(&handle).map(|(object, _)| Arc::clone(object))
    }

    /// Removes references. The caller drops the object without a lock.
    pub(super) fn remove(&mut self, handle: usize, count: u32) -> Result<Arc<UserObject>, i32> {
        let (object, held) = self.0.get_mut(&handle).ok_or(code::INVALID_VALUE)?;
        let object = Arc::clone(object);
        *held = held.checked_sub(u64::from(count)).ok_or(code::INVALID_VALUE)?;
        if *held == 0 {
            self.0.remove(&handle);
        }
        Ok(object)
    }

    /// The objects, to be kept by an executable graph.
    pub(super) fn objects(&self) -> Vec<Arc<UserObject>> {
        self.0.values().map(|(object, _)| Arc::clone(object)).collect()
    }
}

impl UserObjects {
    pub(super) fn new() -> UserObjects {
        let handles = Mutex::new(Handles::new(15));
        UserObjects { held: Mutex::default(), handles, stream: OnceLock::new() }
    }

    /// Creates an object with references of the host, and returns its handle.
    pub(super) fn create(
        &self,
        hardware: &Hardware,
        schedule: &Arc<Schedule>,
        destructor: HostFunction,
        count: u32,
    ) -> usize {
        let stream = self.stream.get_or_init(|| {
            let stream = Stream::new(0, Kind::NonBlocking, 0);
            hardware.context_of(&stream).add_stream(&stream);
            stream
        });
        let (schedule, stream) = (Arc::downgrade(schedule), Arc::clone(stream));
        let object = Arc::new(UserObject { destructor, schedule, stream });
        let handle = lock(&self.handles).insert(());
        lock(&self.held).add(handle, object, count);
        handle
    }
}
