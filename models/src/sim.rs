//! The queues of the simulated machine's streams, and the types of the machine that they use.

use queue::{Action, Kind, Operation, Point, Stream};
use std::sync::Arc;

#[allow(dead_code, reason = "the machine's calls use more of it")]
#[allow(clippy::arc_with_non_send_sync, reason = "loom's threads are no threads of the machine")]
#[path = "../../sim/src/driver/queue.rs"]
mod queue;

mod condition {
    pub struct Condition;

    impl Condition {
        pub fn value(&self) -> u32 {
            0
        }

        pub fn reset(&self) {}
    }
}

mod copy {
    #[derive(Clone)]
    pub struct Copy;
    #[derive(Clone, Copy)]
    pub struct Fill;
}

mod host_function {
    #[derive(Clone, Copy)]
    pub struct HostFunction;
    #[derive(Clone, Copy)]
    pub struct Callback;
}

mod journal {
    pub struct Write;
}

mod kernel {
    pub struct Launch;

    impl Launch {
        pub fn for_next_launch(&self) -> Launch {
            Launch
        }
    }
}

mod partition {
    pub struct Partition {
        pub green: usize,
        pub id: u64,
    }
}

mod shared_event {
    pub struct SharedEvent;

    impl SharedEvent {
        pub fn reach(&self, _: u64) {}
    }
}

mod stream_attributes {
    pub struct Attributes;

    impl Attributes {
        pub fn new() -> Attributes {
            Attributes
        }
    }
}

mod value {
    #[derive(Clone, Copy)]
    pub struct ValueOperation;
}

mod sync {
    use crate::base::sync::{Mutex, MutexGuard};

    pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }
}

/// A stream's queue, as the schedules use it.
#[derive(Clone)]
pub struct Queue(Arc<Stream>);

/// A position in a queue.
#[derive(Clone)]
pub struct Place(Point);

impl Place {
    pub fn wait(&self) {
        self.0.wait();
    }

    pub fn is_reached(&self) -> bool {
        self.0.is_reached()
    }
}

impl Queue {
    #[expect(clippy::new_without_default, reason = "nothing is default about it")]
    pub fn new() -> Queue {
        Queue(Stream::new(0, Kind::NonBlocking, 0))
    }

    /// Runs an operation on this thread, as the immediate schedule does where no worker has one.
    pub fn runs(&self, waits: &[Place], operation: impl FnOnce()) {
        waits.iter().for_each(Place::wait);
        let position = self.0.begin(&Action::Nothing, || true).expect("no worker has operations");
        operation();
        self.0.finish(position);
    }

    /// Queues an operation for a worker, as the schedule `threads` does; `spawn` starts one.
    pub fn push(&self, waits: &[Place], spawn: impl FnOnce()) -> Place {
        let waits = waits.iter().map(|place| place.0.clone()).collect();
        let spawn = || {
            spawn();
            Ok(())
        };
        let position = self.0.push(waits, Action::Nothing, spawn).unwrap();
        Place(Point { stream: Arc::clone(&self.0), position })
    }

    /// The body of a worker: `operation` runs each operation, given its number.
    pub fn works(&self, operation: impl Fn(u64)) {
        while let Some(Operation { position, waits, .. }) = self.0.pop() {
            waits.iter().for_each(Point::wait);
            operation(position);
            self.0.finish(position);
        }
    }

    /// The position after all operations queued so far.
    pub fn tail(&self) -> Place {
        Place(self.0.tail())
    }

    pub fn close(&self) {
        self.0.close();
    }

    pub fn is_idle(&self) -> bool {
        self.0.is_idle()
    }
}
